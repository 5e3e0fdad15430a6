"""Sidecars: files that a run writes next to its output, such as lines that cannot be read, metrics, lineage, reports.

A job names most of them, so each is checked before anything is written: a run replaces, and appends to, regular files
that an earlier run wrote, and nothing else. The folder is resolved once. When the file is written, each folder of that
path is opened without following links, so that a link put there meanwhile leads nowhere.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from tasks.errors import JobError
from tasks.storage.allowed_roots import check_path
from tasks.storage.atomic import lock_if_possible, no_space, remove_partials
from tasks.storage.files import is_remote, local_path, refuse_inside
from tasks.storage.own_files import LATEST, find_description
from tasks.storage.staging import Staging

FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe that was put there meanwhile would wait for its other end.
PRESENT = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Sidecar:
    """A file that a run writes next to its output.

    `key` is the key of the job that names it, `is_own(file)` decides by the bytes of a present file whether an earlier
    run wrote it, and `otherwise` is what a user can do instead of naming another file.
    """

    path: Path
    key: str
    is_own: Callable[[BinaryIO], bool]
    otherwise: str = ""

    @property
    def where(self) -> str:
        """The key with its value."""
        return f"{self.key} = {self.path}"

    @cached_property
    def folder(self) -> Path:
        """The folder of the file without links, resolved once."""
        return Path(os.path.realpath(self.path.parent))

    @property
    def real(self) -> Path:
        """The path of the file without links in its folders."""
        return self.folder / self.path.name

    def check(self) -> None:
        """A JobError unless nothing is at the path, or a file that an earlier run wrote. Writes nothing."""
        check_path(self.path, self.key)
        with _open_folder(self, make=False) as folder:
            if folder is not None:
                _check_present(self, folder)

    @contextmanager
    def replace(self) -> Iterator[BinaryIO]:
        """Write the file as a whole: it has its name when the block ends, and is removed if the block fails."""
        with no_space(self.path), _open_folder(self, make=True) as folder:
            assert folder is not None
            _check_present(self, folder)
            remove_partials(Path(f"/proc/self/fd/{folder}") / self.path.name)
            partial = f"{self.path.name}.{uuid.uuid4().hex[:8]}.tmp"
            with os.fdopen(os.open(partial, NEW, 0o666, dir_fd=folder), "wb") as file:
                try:
                    lock_if_possible(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # tells that the writer lives
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                    _check_present(self, folder)  # somebody may have put a file there meanwhile
                    os.rename(partial, self.path.name, src_dir_fd=folder, dst_dir_fd=folder)
                except BaseException:
                    os.unlink(partial, dir_fd=folder)
                    raise

    def append(self, data: bytes) -> None:
        """Append to the file, or create it; what was written of `data` is removed again where the disk is full."""
        with no_space(self.path), _open_folder(self, make=True) as folder:
            assert folder is not None
            _check_kind(self, folder)  # to open some devices does something already
            with _open_present(self, folder, os.O_RDWR | os.O_APPEND | os.O_CREAT) as file:
                lock_if_possible(file, fcntl.LOCK_EX)  # another run may append to the same file
                if not self.is_own(file):
                    raise _not_ours(self)
                before = file.seek(0, os.SEEK_END)
                try:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                except OSError:
                    os.truncate(file.fileno(), before)
                    raise


def check_sidecars(files: Sequence[Sidecar], sources: Iterable[str], staging: Staging | None = None) -> None:
    """A JobError for the first sidecar that a run must not write; nothing is written.

    Beyond `Sidecar.check`, a sidecar is not the file of another key, nor in the source of the run, in its output or
    work in progress, or in any other output.
    """
    sources = list(sources)
    named: dict[Path, str] = {}
    for file in files:
        file.check()
        if file.real in named:
            what = f"{file.key} and {named[file.real]} name the same file"
            raise JobError(what, where=file.where, why="one would replace the other", do="give each its own file")
        named[file.real] = file.key
        for source in sources:
            _check_outside_source(file, source)
        if staging is not None:
            _check_outside_run(file, staging)
        _check_outside_outputs(file)


def _check_outside_source(file: Sidecar, source: str) -> None:
    try:
        refuse_inside(source, str(file.real))
    except JobError as error:
        raise JobError(
            f"the file of {file.key} is inside the source",
            where=file.where,
            why=error.why,
            do="choose a path outside the source, or a name that begins with _",
        ) from None
    if not is_remote(source) and file.real in Path(os.path.realpath(local_path(source))).parents:
        what = f"the file of {file.key} is where a folder of the source is to be"
        raise JobError(what, where=file.where, why=f"the source is {source}", do="choose another path")


def _check_outside_run(file: Sidecar, staging: Staging) -> None:
    folders = (staging.target, staging.folder, staging.beside)
    if any(folder in (file.real, *file.real.parents) or file.real in folder.parents for folder in folders):
        raise JobError(
            f"the file of {file.key} is inside the output",
            where=file.where,
            why="a run publishes its own files only",
            do="choose a path outside the output",
        )


def _check_outside_outputs(file: Sidecar) -> None:
    for folder in file.real.parents:
        if find_description(folder) is not None or (folder / LATEST).is_file():
            raise JobError(
                f"the file of {file.key} is inside another output",
                where=file.where,
                why=f"{folder} is an output of rowmill, and would hold a file that is not part of it",
                do="choose a path outside of outputs",
            )


@contextmanager
def _open_folder(file: Sidecar, make: bool) -> Iterator[int | None]:
    """A handle of the folder, each part of its path opened without following links; None if it does not exist."""
    handle = os.open("/", FOLDER)
    try:
        for part in file.folder.parts[1:]:
            if make:
                _make_folder(part, handle)
            inner = _open_part(file, part, handle)
            if inner is None:
                yield None
                return
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


def _make_folder(name: str, inside: int) -> None:
    try:
        os.stat(name, dir_fd=inside, follow_symlinks=False)
    except FileNotFoundError:
        try:
            os.mkdir(name, dir_fd=inside)
        except FileExistsError:
            return  # another process was faster


def _open_part(file: Sidecar, name: str, inside: int) -> int | None:
    try:
        return os.open(name, FOLDER, dir_fd=inside)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise JobError(
            f"{name} is not a folder",
            where=file.where,
            why=f"{file.folder} was a folder when the path was resolved, or was to become one",
            do="correct the path",
        ) from None


def _check_present(file: Sidecar, folder: int) -> None:
    """A JobError unless nothing has the name in an open folder, or a file that an earlier run wrote."""
    if not _check_kind(file, folder):
        return
    with _open_present(file, folder, os.O_RDONLY) as present:
        if not file.is_own(present):
            raise _not_ours(file)


def _check_kind(file: Sidecar, folder: int) -> bool:
    """Whether something has the name; a JobError for all but regular files."""
    try:
        mode = os.stat(file.path.name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return False
    _refuse_kind(file, mode)
    return True


def _refuse_kind(file: Sidecar, mode: int) -> None:
    """A JobError for what is not a regular file: to replace it would destroy it, to write to it would do anything."""
    if stat.S_ISREG(mode):
        return
    kinds = {
        "a folder": stat.S_ISDIR,
        "a link": stat.S_ISLNK,
        "a device": lambda mode: stat.S_ISCHR(mode) or stat.S_ISBLK(mode),
        "a pipe": stat.S_ISFIFO,
    }
    kind = next((name for name, is_kind in kinds.items() if is_kind(mode)), "not a file")
    raise JobError(f"{file.path} is {kind}", where=file.where, why="a run would write there", do=_advice(file))


def _open_present(file: Sidecar, folder: int, flags: int) -> BinaryIO:
    """The open file of the name, which is a regular one."""
    try:
        handle = os.open(file.path.name, flags | PRESENT, 0o666, dir_fd=folder)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        _refuse_kind(file, stat.S_IFLNK)
        raise
    opened: BinaryIO = os.fdopen(handle, "rb" if flags == os.O_RDONLY else "r+b")
    try:
        _refuse_kind(file, os.fstat(handle).st_mode)
    except BaseException:
        opened.close()
        raise
    return opened


def _not_ours(file: Sidecar) -> JobError:
    what = f"{file.path} exists, and no run has written it"
    return JobError(what, where=file.where, why="a run would replace it, or append to it", do=_advice(file))


def _advice(file: Sidecar) -> str:
    return "; ".join(filter(None, ["give the path of a file that does not exist", file.otherwise]))
