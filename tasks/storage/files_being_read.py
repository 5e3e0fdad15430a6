"""What a process is doing: notes of the files that it reads and of the function of a user that it runs, which name it
if that ends the process; and folders of outputs that it holds, so that they are found where a replaced output goes, and
retention leaves them."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tasks.core.plan import OPTION
from tasks.core.strict_json import JsonObject
from tasks.errors import DataError, few
from tasks.storage.atomic import read_json
from tasks.storage.own_files import MANIFEST, SPLITS, output_of
from tasks.storage.staging import Staging

FOLDER = "reading"  # in a run's staging folder
RAN = "ran "  # how the note on a function of a user begins

_into: list[Path] = []


def note_into(folder: Path) -> None:
    """Have this process write its notes into a folder, whatever the options say."""
    _into[:] = [folder]


@contextmanager
def note_activity(options: Mapping[str, Any], *paths: str) -> Iterator[None]:
    """Note that this thread reads these files, or does what begins with `RAN`, in a small file that is removed when the
    block ends.

    Without a folder for it among the options nothing is noted. Notes are for people:
    one that cannot be written is left out.
    """
    folder = next(iter(_into), None) or options.get(OPTION)
    if not folder:
        yield
        return
    note = Path(folder) / f"{socket.gethostname()}-{os.getpid()}-{threading.get_native_id()}"
    outer = None
    with suppress(OSError):
        outer = note.read_bytes() if note.exists() else None
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_bytes(b"\n".join(os.fsencode(path) for path in paths[:20]))
    try:
        yield
    finally:
        with suppress(OSError):
            note.unlink() if outer is None else note.write_bytes(outer)


def notes_left(folder: Path) -> list[str]:
    """What processes were reading, and the functions that they ran, when they ended, sorted; the notes are removed."""
    paths: set[str] = set()
    with suppress(OSError):
        for note in folder.iterdir():
            paths |= {os.fsdecode(line) for line in note.read_bytes().split(b"\n") if line}
        shutil.rmtree(folder, ignore_errors=True)
    return sorted(paths)


def doing(notes: Sequence[str]) -> str:
    """What processes did that left these notes, for a message.

    >>> doing(["/data/a.parquet", "ran mine:f of partition 0"]), doing([])
    ('while it read /data/a.parquet; while it ran mine:f of partition 0', '')
    """
    files = [note for note in notes if not note.startswith(RAN)]
    parts = [*([f"read {format_files(files)}"] if files else []), *(note for note in notes if note.startswith(RAN))]
    return "; ".join(f"while it {part}" for part in parts[:5])


def format_files(files: Sequence[str]) -> str:
    """A few of the files, for a message."""
    return few(files, 5)


class OpenFolder:
    """A folder that this process reads. `path` leads to this very folder as long as it exists, wherever it is renamed
    to; a shared lock on it, which ends with this object or the process, keeps `output.keep_versions` of this host off.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def __reduce__(self) -> tuple[type[OpenFolder], tuple[Path]]:
        return OpenFolder, (self.folder,)

    @property
    def path(self) -> Path:
        name = Path(f"/proc/self/fd/{self._descriptor}")
        return name if name.exists() else self.folder

    @property
    def is_moved(self) -> bool:
        """Whether the folder's name leads to another one by now, or nowhere."""
        try:
            return not os.path.samestat(self.folder.stat(), os.fstat(self._descriptor))
        except OSError:
            return True


def open_output(folder: Path, manifest: JsonObject) -> OpenFolder:
    """Hold the output of a manifest, in its folder or where it went when it was replaced. A DataError if it is gone."""
    root, inside = (folder.parent, folder.name) if folder.name in SPLITS else (folder, "")
    for place in (folder, *(old / inside for old in Staging(root).olds)):
        with suppress(FileNotFoundError, NotADirectoryError):
            opened = OpenFolder(place)
            if read_json(opened.path / MANIFEST) == manifest:
                opened.folder = folder
                return opened
    raise make_output_gone_error(folder)


def make_output_gone_error(folder: Path) -> DataError:
    """The error for a reader whose output was replaced longer ago than `run.keep_replaced`, or removed."""
    return DataError(
        "the output that is read is gone",
        where=str(folder),
        why="it was replaced or removed, and the time of run.keep_replaced has passed",
        do="start again with the current output; a longer run.keep_replaced in the job that writes it gives readers "
        "more time",
    )


def open_outputs(files: Iterable[str]) -> list[OpenFolder]:
    """Hold the outputs that some local files are in."""
    folders = {parent for file in {os.path.dirname(file) for file in files} if (parent := output_of(file))}  # noqa: PTH120
    opened = []
    for folder in sorted(folders):
        with suppress(OSError):
            opened.append(OpenFolder(Path(folder)))
    return opened


@contextmanager
def without_readers(folder: Path) -> Iterator[bool]:
    """Whether no reader on this host holds an output, or a split of it, while the block runs."""
    with ExitStack() as stack:
        for place in (folder, *(folder / split for split in SPLITS if (folder / split).is_dir())):
            descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            except OSError:  # a file system without locks
                pass
        yield True
