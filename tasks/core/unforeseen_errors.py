"""Unforeseen errors of Python or of a library: turned into errors that a user can report."""

from __future__ import annotations

import platform
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tasks.errors import RowmillError, TransientError

PACKAGES = ("rowmill", "prefect", "dask", "pandas", "pyarrow", "numpy", "fastavro", "cudf-cu13", "cudf-cu12")
ROOT = Path(__file__).parents[2]
ROWMILL_CODE = tuple(f"{ROOT}/{folder}/" for folder in ("flows", "infra", "rowmill", "tasks"))
LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3[^/]*/|^<(?!ipython)")


class DefectError(RowmillError):
    """A defect of rowmill or of a library, for a bug report. `trace` is the traceback as text."""

    trace: str = ""

    def __reduce__(self):  # takes the traceback from a worker to the process that shows it
        return _rebuilt, (self.what, self.where, self.why, self.do, self.trace)


def _rebuilt(what: str, where: str, why: str, do: str, trace: str) -> DefectError:
    error = DefectError(what, where=where, why=why, do=do)
    error.trace = trace
    return error


def defect(error: BaseException, doing: str, where: str = "") -> RowmillError:
    """A DefectError that says what failed, where in the work and in the code, with the facts for a bug report.

    An error of the operating system is not a defect: it becomes a TransientError that names the file.
    """
    if isinstance(error, OSError):
        places = [str(name) for name in (error.filename, where, *getattr(error, "__notes__", ())) if name]
        return TransientError(
            f"{doing} failed: {error.strerror or str(error) or type(error).__name__}",
            where="; ".join(places),
            why=type(error).__name__ + (f", errno {error.errno}" if error.errno else ""),
            do="check the file, its disk and the network, then give the same command again",
        )
    text = (str(error).splitlines() or [""])[0][:300]
    notes = ", ".join(str(note) for note in getattr(error, "__notes__", ()))
    place = "; ".join(part for part in (where, notes, _line_of(error)) if part)
    return _rebuilt(
        f"{doing} failed with an unexpected error",
        place,
        f"{type(error).__name__}{f': {text}' if text else ''}; this is a bug in rowmill or in one of its libraries",
        "report it to the maintainers of rowmill, with these lines, those that --debug adds, and the job; "
        f"versions: {', '.join(versions())}",
        "".join(traceback.format_exception(error)),
    )


@contextmanager
def at(where: str) -> Iterator[None]:
    """Add the place (a partition, a file) to unforeseen errors in the block."""
    try:
        yield
    except RowmillError:
        raise
    except Exception as error:
        error.add_note(where)
        raise


def reason(error: BaseException) -> str:
    """The type and text of an error in a user's function, and the last line of the user's code in its traceback.

    Installed packages do not count as the user's code.
    """
    frames = traceback.extract_tb(error.__traceback__)
    users = [f for f in frames if not f.filename.startswith(ROWMILL_CODE) and not LIBRARY.search(f.filename)]
    line = f"; line {users[-1].lineno} of {users[-1].filename}, in {users[-1].name}" if users else ""
    return f"{type(error).__name__}: {error}{line}"


def versions() -> list[str]:
    """The versions of this installation, for a bug report."""
    from importlib.metadata import version

    packages = []
    for package in PACKAGES:
        with suppress(Exception):
            packages.append(f"{package} {version(package)}")
    return [*packages, f"Python {platform.python_version()}", platform.platform(terse=True)]


def _line_of(error: BaseException) -> str:
    """The last line of rowmill's own code in the traceback of the error."""
    own = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(ROWMILL_CODE)]
    return f"{Path(own[-1].filename).relative_to(ROOT)}, line {own[-1].lineno}" if own else ""
