"""Nothing half-written: a staging folder beside the target, a lock, and one rename that publishes."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from tasks.errors import GiveUpError, JobError
from tasks.files import LATEST, is_remote, local_path

MANIFEST, WORKFLOW = "_manifest.json", "_workflow"
FITTED = "workflow.json"  # a fitted workflow has it instead of a manifest, written last as well
METADATA, COMMON_METADATA = "_metadata", "_common_metadata"  # of Parquet, by output.metadata_file
REPORTS = ("_report.html", "_performance.html")
OWN = {MANIFEST, WORKFLOW, LATEST, *REPORTS, METADATA, COMMON_METADATA}
STALE_SECONDS = 60.0  # without a sign of life from another host's owner
UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
OnExisting = Literal["fail", "replace", "version"]


def write_json(path: Path, data: Any) -> None:
    """Whole or not at all, and on disk before it has its name."""
    with no_space(path), partial_file(path) as partial, partial.open("w") as file:
        json.dump(data, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def partial_file(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to: it becomes `path` when all went well and is gone when not."""
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def partial_folder(path: Path) -> Iterator[Path]:
    """An empty folder beside `path`: it takes the place of `path` when all went well and is gone when not.

    What a killed process left of an earlier one goes: `path` has one writer at a time.
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
    """The content, or None if it is not there or not whole."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


@contextmanager
def no_space(path: Path) -> Iterator[None]:
    """Failures of the file system as errors that say what to do."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # cuDF's writers raise RuntimeError
        number = getattr(error, "errno", None)
        if number in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
            disk = shutil.disk_usage(existing(path))
            why = f"{_mb(disk.free)} of {_mb(disk.total)} are free there"
            raise GiveUpError("there is no space left", where=str(path), why=why,
                              do="free some space, or choose another output.path or run.scratch; "
                              "then run the same job again: what is done is kept") from error  # fmt: skip
        if number in UNWRITABLE:
            why = getattr(error, "strerror", "") or str(error)
            do = "choose another output.path or run.scratch, or let this user write there"
            raise JobError("the output cannot be written", where=str(path), why=why, do=do) from error
        raise


@contextmanager
def _makeable(path: Path) -> Iterator[None]:
    """A folder that cannot be made where the system keeps no files (/proc) is told as one nobody may write to."""
    try:
        yield
    except FileNotFoundError as error:
        raise PermissionError(errno.EACCES, "no folder can be made there", str(path)) from error


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB" if nbytes < 10**8 else f"{nbytes / 1e9:,.1f} GB"


def existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def own_output(target: Path) -> bool:
    """True if the folder holds what millrace wrote and nothing else."""
    entries = list(target.iterdir())
    if (target / LATEST).is_file():
        return all(p.name == LATEST or (_is_version(p) and own_output(p)) for p in entries)
    if {p.name for p in entries} <= {"train", "valid", WORKFLOW, *REPORTS} and (target / "train").is_dir():
        return all(own_output(p) for p in entries if p.name in ("train", "valid"))
    if (target / FITTED).is_file():
        return all(p.name in (FITTED, "state.json", "README.md") or p.suffix == ".vocab" for p in entries)
    manifest = read_json(target / MANIFEST)
    if not isinstance(manifest, dict) or "parts" not in manifest:
        return False
    parts = {target / part["path"] for part in manifest["parts"]}
    return all(p.name in OWN or p in parts or _only(p, parts) for p in entries)


def _only(folder: Path, parts: set[Path]) -> bool:
    """True for a folder of parts (`country=DE`) in which nothing else is."""
    inside = [p for p in folder.rglob("*") if not p.is_dir() or p.is_symlink()] if folder.is_dir() else []
    return bool(inside) and parts.issuperset(inside)


def _is_version(path: Path) -> bool:
    return path.is_dir() and path.name[:1] == "v" and path.name[1:].isdigit()


class Staging:
    """The folder `<parent>/.<name>.millrace/` (or the same under `scratch`) in which a run to `target` works.

    It holds lock, plan, state, exchange and the parts under `new/`, and the next start of the same job finds it again.
    The swap happens beside the target, so that both its renames stay on one file system wherever the scratch is.
    """

    def __init__(self, target: str | Path, scratch: str | Path | None = None) -> None:
        if is_remote(str(target)):
            raise JobError("the output is no local folder", where=f"output.path = {target}",
                           do="write to a mounted folder and copy the output from there")  # fmt: skip
        self.target = Path(os.path.realpath(local_path(str(target))))
        parent = Path(os.path.realpath(scratch)) if scratch else self.target.parent
        self.folder = parent / f".{self.target.name}.millrace"
        self.new, self.notes = self.folder / "new", self.folder / "parts"
        self.old = self.target.parent / f".{self.target.name}.millrace-old"
        self.landed = self.target.parent / f".{self.target.name}.millrace-new"

    def check(self, on_existing: OnExisting) -> None:
        """Refuse a target that must not be touched."""
        if not self.target.exists():
            return
        if not self.target.is_dir():
            raise JobError("the output exists and is a file", where=str(self.target), do="choose another output.path")
        if not any(self.target.iterdir()):
            return
        if on_existing == "fail":
            raise JobError("the output exists", where=str(self.target), why="output.on_existing is fail",
                           do="choose another output.path, or set on_existing to replace or version")  # fmt: skip
        if on_existing == "version" and any((self.target / n).exists() for n in (MANIFEST, FITTED)):
            raise JobError("the output is a single one, not a folder of versions", where=str(self.target),
                           do="choose another output.path, or move this one to v0001 inside of it")  # fmt: skip
        if on_existing == "replace" and not own_output(self.target):
            what = "the output holds files that millrace did not write, so it is not replaced"
            raise JobError(what, where=str(self.target), do="choose another output.path, or move these files away")

    def open(self) -> None:
        with no_space(self.folder), _makeable(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self.target.parent.mkdir(parents=True, exist_ok=True)
            for folder in {self.folder, self.target.parent}:
                probe = folder / f".millrace-probe-{uuid.uuid4().hex[:8]}"
                probe.touch()
                probe.unlink()

    def reset(self) -> None:
        """Forget the parts of another job or other data."""
        for folder in (self.new, self.notes):
            shutil.rmtree(folder, ignore_errors=True)

    def publish(self, on_existing: OnExisting) -> Path:
        """One rename makes the new output visible; returns where it is."""
        with no_space(self.target):
            new = self._land()
            if on_existing == "version":
                return self._publish_version(new)
            self.check(on_existing)
            if self.target.exists():
                shutil.rmtree(self.old, ignore_errors=True)
                _rename(self.target, self.old)
            try:
                _rename(new, self.target)
            except OSError:
                self.mend()
                raise
        self.clean()
        return self.target

    def _land(self) -> Path:
        """The new output on the target's file system: as it is, or copied, so that what is left are renames."""
        if self.new.stat().st_dev == self.target.parent.stat().st_dev:
            return self.new
        partial = self.landed.with_name(f"{self.landed.name}.tmp")
        for folder in (partial, self.landed):
            shutil.rmtree(folder, ignore_errors=True)
        try:
            shutil.copytree(self.new, partial)
        except BaseException as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise _first_cause(error) from error
        for file in (p for p in partial.rglob("*") if p.is_file()):
            flush(file)
        return _rename(partial, self.landed)

    def _publish_version(self, new: Path) -> Path:
        self.target.mkdir(parents=True, exist_ok=True)
        numbers = [int(p.name[1:]) for p in self.target.iterdir() if _is_version(p)]
        version = _rename(new, self.target / f"v{max(numbers, default=0) + 1:04d}")
        with partial_file(self.target / LATEST) as latest:
            latest.write_text(version.name + "\n")
            flush(latest)
        self.clean()
        return version

    def mend(self) -> None:
        """`old` without a target: a swap cut off between its renames. Whole new output goes forward, else back.

        Only for the owner of the lock: a swap that is going on looks the same.
        """
        if self.old.exists() and not self.target.exists():
            notes = (MANIFEST, f"train/{MANIFEST}", FITTED)
            whole = [p for p in (self.landed, self.new) if any((p / note).exists() for note in notes)]
            _rename(whole[0] if whole else self.old, self.target)
            if whole:
                self.clean()
        self._sweep()

    def _sweep(self) -> None:
        """Remove what a swap leaves beside the target, once the target is there (or there never was an old one)."""
        if self.target.exists() or not self.old.exists():
            for folder in (self.old, self.landed, self.landed.with_name(f"{self.landed.name}.tmp")):
                shutil.rmtree(folder, ignore_errors=True)

    def clean(self) -> None:
        """Remove everything but the lock, which whoever holds it lets go."""
        self._sweep()
        for entry in list(self.folder.glob("*")):
            if entry.name.startswith("lock"):
                continue
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)

    def owned_by(self, owner: str) -> bool:
        """True if the lock is this owner's: work of a flow that died stops when another one has taken over."""
        return (read_json(self.folder / "lock") or {}).get("id") == owner

    def in_use(self) -> bool:
        """True while a run holds the lock: one that lives, or showed a sign of life within `STALE_SECONDS`."""
        path = self.folder / "lock"
        return path.exists() and not _gone(read_json(path) or {}, path)

    @contextmanager
    def locked(self, wait: bool = False) -> Iterator[str]:
        """Only one run works for a target; an owner that is gone is told by its process, or by 60 s of silence."""
        path, owner = self.folder / "lock", _me()
        self._acquire(path, owner, wait)
        stop = threading.Event()
        beat = threading.Thread(target=_beat, args=(path, stop), daemon=True, name="millrace-lock")
        beat.start()
        try:
            self.mend()
            yield owner["id"]
        finally:
            stop.set()
            beat.join()
            if not (self.folder / "plan.json").exists():
                self.clean()  # nothing that another start could use
            self._let_go(owner["id"])

    def _let_go(self, owner: str) -> None:
        if self.owned_by(owner):
            for left in self.folder.glob("lock.*"):  # drafts of processes that were killed; a live one makes it again
                left.unlink(missing_ok=True)
            (self.folder / "lock").unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    def _acquire(self, path: Path, owner: dict[str, Any], wait: bool) -> None:
        while True:
            self.open()
            with no_space(path), suppress(FileNotFoundError):  # the owner before is just removing the folder
                if _take(path, owner):
                    return
            found = self._drop_stale(path)
            if found is None:
                continue
            if not wait:
                who = f"process {found.get('pid')} on {found.get('host')}"
                raise JobError("another run works on this output", where=str(self.target),
                               why=f"{who} has held it since {found.get('since')}",
                               do="wait for it, choose another output.path, or set run.lock to wait")  # fmt: skip
            time.sleep(0.2)

    def _drop_stale(self, path: Path) -> dict[str, Any] | None:
        """The lock's owner, or None after a dead one's lock was removed (by one of several that wait, not by each)."""
        try:
            folder = os.open(self.folder, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            found = read_json(path)
            if path.exists() and not _gone(found or {}, path):
                return found or {}
            path.unlink(missing_ok=True)
            return None
        finally:
            os.close(folder)


def flush(path: Path) -> None:
    """A file, or a folder's list of names, on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _first_cause(error: BaseException) -> BaseException:
    """copytree gathers what went wrong as texts: the first one as an OSError of its own."""
    if isinstance(error, shutil.Error) and error.args and error.args[0]:
        return OSError(str(error.args[0][0][2]))
    return error


def _rename(source: Path, target: Path) -> Path:
    """A rename onto nothing, or onto an empty folder, that is on disk when it returns."""
    if target.is_dir() and not any(target.iterdir()):
        target.rmdir()
    source.rename(target)
    flush(target.parent)
    return target


def _me() -> dict[str, Any]:
    return {"id": uuid.uuid4().hex, "host": socket.gethostname(), "pid": os.getpid(), "start": _start_time(os.getpid()),
            "since": time.strftime("%Y-%m-%d %H:%M:%S")}  # fmt: skip


def _take(path: Path, owner: dict[str, Any]) -> bool:
    """Create the lock with its content in one step: a link to a file that is already whole."""
    draft = path.with_name(f"lock.{owner['id']}.tmp")
    try:
        draft.write_text(json.dumps(owner))
        os.link(draft, path)
        return True
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)


def _beat(path: Path, stop: threading.Event) -> None:
    while not stop.wait(STALE_SECONDS / 6):
        try:
            os.utime(path)
        except OSError:
            return


def _gone(owner: dict[str, Any], path: Path) -> bool:
    if owner.get("host") == socket.gethostname():
        return _start_time(int(owner.get("pid", -1))) != owner.get("start")
    try:
        return time.time() - path.stat().st_mtime > STALE_SECONDS
    except FileNotFoundError:
        return True


def _start_time(pid: int) -> str | None:
    """When a process of this host was started, so that a reused number is not taken for the same process."""
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
    except (psutil.Error, ValueError):
        return None
