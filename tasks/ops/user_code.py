"""Functions and classes of users' own modules: which modules may be named, and the import by path."""

from __future__ import annotations

import importlib
import os
import re
from types import ModuleType
from typing import Any

from tasks.errors import HostError, JobError

VARIABLE = "MILLRACE_FUNCTION_MODULES"


def allowed_modules() -> tuple[str, ...] | None:
    """The modules that jobs may name, as the host lists them (by comma or colon); None without a list: all of them."""
    text = os.environ.get(VARIABLE)
    return None if text is None else tuple(name for name in re.split(r"[,:\s]+", text) if name)


def is_allowed(module: str) -> bool:
    """Whether a module, or a package that it is in, may be named."""
    modules = allowed_modules()
    return modules is None or any(module == name or module.startswith(f"{name}.") for name in modules)


def check_module(path: str) -> None:
    """A HostError for `module:name` whose module is not allowed, before anything is imported."""
    if not is_allowed(path.partition(":")[0]):
        raise _refused(path, "")


def import_path(path: str) -> Any:
    """The object named `module:name` (a HostError says what is missing, or that it is not allowed)."""
    check_module(path)
    module_name, _, attribute = path.partition(":")
    try:
        named: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            named = getattr(named, part)
            if isinstance(named, ModuleType) and not is_allowed(named.__name__):
                raise _refused(path, f"it is in the module {named.__name__}; ")
    except (ImportError, AttributeError) as error:
        raise HostError(
            f"{path!r} cannot be imported",
            why=str(error),
            do="write module:name of something importable on every worker",
        ) from None
    home = getattr(named, "__module__", None)
    if isinstance(home, str) and not is_allowed(home):  # an allowed module imports others: theirs are not meant
        raise _refused(path, f"it is of the module {home}; ")
    return named


def refuse_reordered(result: Any, frame: Any) -> None:
    """A JobError for a Series whose index says that its rows are in another order than those that were given.

    Values are taken by position: where a function sorted the rows, each would land on another row.
    """
    if not (hasattr(result, "iloc") and hasattr(frame, "iloc")) or result.index.equals(frame.index):
        return
    if result.index.sort_values().equals(frame.index):
        raise JobError(
            "the function returned its rows in another order",
            why="the index of the Series is that of its rows, rearranged; values are taken by position",
            do="return result.sort_index()",
        )


def _refused(path: str, where: str) -> HostError:
    modules = allowed_modules() or ()
    listed = f"only those of {', '.join(modules)}" if modules else "none"
    return HostError(
        f"{path!r} may not be used",
        why=f"{where}of users' own functions and operators runs may use {listed} ({VARIABLE} of the host)",
        do="ask whoever runs the host to add the module there, or use an expression or a built-in operator",
    )
