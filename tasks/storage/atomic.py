"""Files and folders written whole: under a temporary name, flushed, then renamed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import resource
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from tasks.core.strict_json import JsonObject, encode_floats
from tasks.core.units import amount
from tasks.errors import GiveUpError, JobError

UNWRITABLE = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    # a folder where a file is to be, or the other way round
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENOTEMPTY,
)


def write_json(path: Path, data: object) -> None:
    """Write a file whole or not at all, on disk before it has its name; strict JSON, infinities as {"float": "inf"}."""
    write_text(path, json.dumps(encode_floats(data), indent=1, allow_nan=False))


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all, on disk before it has its name."""
    with no_space(path), partial_file(path) as partial, partial.open("w") as file:
        lock_if_possible(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # tells that the writer lives
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_note(path: Path, data: object) -> None:
    """`write_json` of a note that lies in an output or beside it, where no run cleans up: what a killed writer of the
    same note has left goes."""
    remove_partials(path)
    write_json(path, data)


@contextmanager
def partial_file(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`: becomes `path` when the block ends, and is removed if it fails."""
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def lock_if_possible(file: IO[Any], how: int) -> None:
    """Lock an open file; without effect where the file system has no locks."""
    with suppress(OSError):
        fcntl.flock(file, how)


def remove_partials(path: Path) -> None:
    """Remove the temporary files of `path` whose writers were killed: a living writer of a note has a lock on its
    own (`lock_if_possible`)."""
    pattern = re.compile(rf"{re.escape(path.name)}\.[0-9a-f]{{8}}\.tmp")
    for left in [one for one in path.parent.glob("*.tmp") if pattern.fullmatch(one.name)]:
        with suppress(OSError):  # a writer has the lock, or has just finished; or there are no locks
            handle = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()
            finally:
                os.close(handle)


@contextmanager
def partial_folder(path: Path) -> Iterator[Path]:
    """An empty folder beside `path`: becomes `path` when the block ends, and is removed if it fails.

    Also removes the temporary folder of a killed process: `path` has one writer at a time.
    """
    for left in path.parent.glob(f"{path.name}.*.tmp"):
        shutil.rmtree(left, ignore_errors=True)
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        partial.mkdir(parents=True)
        yield partial
        shutil.rmtree(path, ignore_errors=True)
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def read_json(path: Path) -> Any:
    """The content of a JSON file; None if the file is missing or damaged."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None


def read_record(path: Path) -> JsonObject:
    """The content of a file with a JSON object; {} if the file is missing, damaged or holds something else."""
    content = read_json(path)
    return content if isinstance(content, dict) else {}


@contextmanager
def no_space(path: Path) -> Iterator[None]:
    """Turn failures of the file system in the block into errors that say what to do."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # cuDF's writers raise RuntimeError
        number = getattr(error, "errno", None)
        if number in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
            disk = shutil.disk_usage(existing(path))
            why = f"{amount(disk.free)} of {amount(disk.total)} are free there"
            raise GiveUpError(
                "there is no space left",
                where=str(path),
                why=why,
                do="free some space, or choose another output.path or run.scratch; "
                "then run the same job again: what is done is kept",
            ) from error
        if number == errno.EFBIG or "File too large" in str(error):
            limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
            bound = (
                f"a file of this process may have {amount(limit)} (ulimit -f)"
                if limit > 0
                else "the file system's bound"
            )
            raise GiveUpError(
                "a file would become larger than it may be",
                where=str(path),
                why=bound,
                do="raise the limit for the process that runs the workers, or write more and smaller "
                "files (output.files); then run the same job again",
            ) from error
        if number in UNWRITABLE:
            why = getattr(error, "strerror", "") or str(error)
            do = "choose another output.path or run.scratch, or give this user write access"
            raise JobError("the output cannot be written", where=str(path), why=why, do=do) from error
        raise


@contextmanager
def makeable(path: Path) -> Iterator[None]:
    """A PermissionError instead of FileNotFoundError for a folder in a place without files (/proc)."""
    try:
        yield
    except FileNotFoundError as error:
        raise PermissionError(errno.EACCES, "no folder can be made there", str(path)) from error


def existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def flush(path: Path) -> None:
    """Flush a file, or a folder's list of names, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def first_cause(error: BaseException) -> BaseException:
    """The first failure of copytree, which collects failures as texts, as an OSError."""
    if isinstance(error, shutil.Error) and error.args and error.args[0]:
        return OSError(str(error.args[0][0][2]))
    return error


def rename(source: Path, target: Path) -> Path:
    """Rename onto a free name or an empty folder; the rename is on disk when this returns."""
    source.rename(target)
    flush(target.parent)
    return target
