"""Publishes whole outputs only: a staging folder, a lock beside the target, and one rename that publishes."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from tasks.core.settings import Output, Run
from tasks.core.strict_json import JsonObject
from tasks.errors import GiveUpError, JobError, RowmillError, few, rewrite_error
from tasks.storage import own_files
from tasks.storage.atomic import (
    first_cause,
    flush,
    makeable,
    no_space,
    read_json,
    read_record,
    remove_partials,
    rename,
    write_json,
    write_text,
)
from tasks.storage.files import local_folder, local_path
from tasks.storage.output_mirror import OutputMirror, find_mirror, with_urls
from tasks.storage.own_files import ASKS, LATEST, OUTBOX
from tasks.storage.process_identity import has_ended, namespace, start_time

OPENINGS = 20  # attempts to make the folders of a run
STALE_SECONDS = 60.0  # without a sign of life, after which an owner on another host counts as dead
KEEP_REPLACED = 600.0  # seconds that a replaced output stays for its readers
EXCHANGE = 2  # RENAME_EXCHANGE of renameat2(2)
AT_FDCWD = -100
NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV)  # of systems without it
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
OnExisting = Literal["fail", "replace", "version"]
log = logging.getLogger("rowmill")


class Staging:
    """The folder `<parent>/.<name>.rowmill/`, or one under `scratch`, in which a run to `target` works.

    It has plan, state, exchange and the parts under `new/`; the next start of the same job uses it again. Under a
    scratch folder its name has a digest of the target's path, and the note `target.json` names the target. The lock is
    always beside the target, and so are both sides of a swap, which must be on one file system. A replaced output stays
    beside the target until the time at the end of its name.

    Of an output on an object store, `target` is its mirror on this host (`output_mirror`), which has no parts.
    """

    def __init__(
        self,
        target: str | Path,
        scratch: str | Path | None = None,
        keep_replaced: float = KEEP_REPLACED,
        storage_options: str | Mapping[str, Any] | None = None,
    ) -> None:
        if scratch is not None:
            local_folder(scratch, "the scratch folder", "run.scratch")
        self.mirror = find_mirror(target, storage_options)
        if self.mirror:
            self.target = self.mirror.folder
        else:
            local_folder(target, "the output", "output.path")
            self.target = Path(os.path.realpath(local_path(str(target))))
        self.keep_replaced = keep_replaced
        name = self.target.name
        self.resumes = False  # with the lock: whether a run was cut off here, or has ended while this one waited
        self.mended = ""  # with the lock: how a swap that was cut off was finished
        self.beside = self.folder = self.target.parent / f".{name}.rowmill"
        self.scratch = Path(os.path.realpath(local_path(str(scratch)))) if scratch else None
        if self.scratch:
            self.folder = self.scratch / f".{name}.{_digest_of(self.target)}.rowmill"
        self.new = self.folder / "new"
        self.notes = self.folder / "parts"
        self.landed = self.beside / "new"
        self.lock = self.beside / "lock"
        self.swap = self.beside / "swap.json"
        self.old = self.target.parent / f".{name}.rowmill-old"  # how the names of `olds` begin

    @classmethod
    def of(cls, output: Output, run: Run) -> Staging:
        """The staging folder of a job, by two of its sections."""
        return cls(output.path, run.scratch, run.keep_replaced, output.storage_options)

    @property
    def address(self) -> str:
        """The output as people name it: its path, or its URL."""
        return self.mirror.url if self.mirror else str(self.target)

    @property
    def olds(self) -> list[Path]:
        """The replaced outputs that are still here, the newest last."""
        replaced = [
            (until, path)
            for path in self.target.parent.glob(f"{_escape_pattern(self.old.name)}-*")
            if (until := until_of(path)) is not None
        ]
        return [path for _, path in sorted(replaced)]

    @property
    def asks_in(self) -> Path | None:
        """The staging folder under a scratch folder in which a night of this target has asked, by the note beside the
        target; None without a note, and for a note of a folder that is no staging folder of this target. Whether that
        folder and its question are still there is for the caller to see."""
        note = read_json(self.beside / ASKS)
        folder = Path(str(note.get("folder"))) if isinstance(note, dict) else None
        return folder if folder is not None and is_work_of(folder, self.target) else None

    @property
    def has_remains(self) -> bool:
        """Whether a run works here, or was cut off here: the folder beside the target is the last thing that goes, but
        for events that wait for the Prefect server."""
        try:
            names = [path.name for path in self.beside.iterdir()]
        except OSError:
            return False
        return names != [OUTBOX]

    def check(self, on_existing: OnExisting, is_resumed: bool = False) -> None:
        """Refuse a target that must not be changed.

        `is_resumed`: a run was cut off here. An output that exists may be what it has published, which is known when
        the source has been looked at: with `fail` it is refused then.
        """
        if self.mirror:
            self._refresh_mirror(self.mirror, on_existing)
        if not self.target.exists() or (is_resumed and on_existing == "fail"):
            return
        if not self.target.is_dir():
            raise JobError("the output exists and is a file", where=self.address, do="choose another output.path")
        if not any(self.target.iterdir()):
            return
        if on_existing == "fail":
            do = "choose another output.path, or set output.on_existing to replace or version"
            why = "output.on_existing is 'fail'"
            raise JobError("the output already exists", where=self.address, why=why, do=do)
        if on_existing == "version" and (self.target / LATEST).is_dir():
            do = "move it away: it is to be a file with the name of a version"
            raise JobError(f"{LATEST} of the output is a folder", where=str(self.target / LATEST), do=do)
        if on_existing == "version" and own_files.find_description(self.target) is not None:
            do = "choose another output.path, or move its files into a folder v0001 inside it"
            raise JobError("the output is a single output, not a folder of versions", where=self.address, do=do)
        if on_existing == "replace":
            inode = _inode(self.target)
            known = own_files.list_expected_files(self.target)
            strangers = [name for name, _ in zip(own_files.strangers(self.target, known), range(3), strict=False)]
            if (strangers or not known) and _inode(self.target) != inode:
                self.check(on_existing)  # another run replaced it meanwhile: `strangers` mixes both
                return
            if strangers or not known:
                what = "the output holds files that rowmill did not write, so it is not replaced"
                raise JobError(
                    what,
                    where=self.address,
                    why=f"such as {', '.join(strangers)}" if strangers else "",
                    do="choose another output.path, or move these files away",
                )

    def _refresh_mirror(self, mirror: OutputMirror, on_existing: OnExisting) -> None:
        """Bring the mirror up to date, unless a run of this host does so; refuse a place with files of others."""
        if not mirror.owner and not self.in_use():
            mirror.pull()
        if on_existing == "version" or any(self.target.glob("*")):
            return
        if strangers := mirror.list_strangers():
            raise JobError(
                "there are files at the place of the output that rowmill did not write",
                where=mirror.url,
                why=f"such as {few(strangers, most=3)}",
                do="choose another output.path, or move these files away",
            )

    def open(self) -> None:
        """Make the folders of the work in progress, and check that this run can write there.

        Between any two of these steps, another run on this output that ends may remove the empty folders.
        """
        with no_space(self.folder), makeable(self.folder):
            for attempt in range(OPENINGS):
                try:
                    self._make_folders()
                    return
                except (FileNotFoundError, FileExistsError):
                    if attempt == OPENINGS - 1:
                        raise
                    time.sleep(0.01)

    def _make_folders(self) -> None:
        for folder in dict.fromkeys((self.folder, self.beside)):
            folder.mkdir(parents=True, exist_ok=True)
            _probe(folder, f".rowmill-probe-{uuid.uuid4().hex[:8]}")
        _probe(self.target.parent, f"{self.old.name}-{int(time.time())}-{os.getpid()}")  # as long as any name here
        if self.folder != self.beside and not (self.folder / "target.json").exists():
            write_json(self.folder / "target.json", {"target": str(self.target)})

    def reset(self) -> None:
        """Remove the parts of another job or of other data."""
        for folder in (self.new, self.notes):
            for path in [p for p in folder.rglob("*") if p.is_symlink() or not p.is_dir()]:
                self.discard(path)
            own_files.remove_empty(folder)

    def discard(self, path: Path) -> None:
        """Remove a file of the work in progress, or move it away if rowmill did not write it."""
        inside = path.relative_to(self.folder)
        if own_files.WORK.fullmatch(str(inside)):
            path.unlink(missing_ok=True)
            return
        aside = self.folder / "not-of-rowmill" / f"{uuid.uuid4().hex[:8]}-{path.name}"
        aside.parent.mkdir(exist_ok=True)
        path.rename(aside)
        log.warning("%s was not written by rowmill: moved to %s", path, aside)

    def publish(self, on_existing: OnExisting) -> Path:
        """Make the new output visible with one rename; returns its path."""
        if self.mirror:
            until = int(time.time() + self.keep_replaced)
            self.mirror.publish(self.new, self.folder, on_existing == "version", until)
        with no_space(self.target):
            new = self._land()
            if on_existing == "version":
                return self._publish_version(new)
            self.check(on_existing)
            if self.target.exists() and any(self.target.iterdir()):
                self._exchange(new)
            else:
                rename(new, self.target)
        self.clean()
        return self.target

    @contextmanager
    def upload_ahead(self, on_existing: OnExisting) -> Iterator[None]:
        """Upload parts to an object store while the block writes them; nothing for a local output."""
        if self.mirror is None:
            yield
            return
        with self.mirror.upload_ahead(self.new, self.notes, self.folder, on_existing == "version"):
            yield

    def _exchange(self, new: Path) -> None:
        """Put the new output in the place of the old one in one step, so that readers see one of them, whole.

        `swap.json` has the inode of the new output, for the run after a kill, which knows all paths by itself: the new
        output is beside the target first. A file system that cannot exchange two folders needs two renames, between
        which there is no target.
        """
        if new != self.landed:
            new = rename(new, self.landed)
        write_json(self.swap, {"new": _inode(new)})
        flush(self.beside)
        try:
            exchange(new, self.target)
        except OSError as error:
            if error.errno not in NO_EXCHANGE:
                raise
            text = (
                "%s: this file system cannot exchange folders (%s): two renames, between which readers find no output"
            )
            log.warning(text, self.target, error.strerror)
            rename(self.target, self._old_name())
            try:
                rename(new, self.target)
            except OSError:
                self.mend()
                raise
        else:
            flush(self.target.parent)
            flush(new.parent)
            rename(new, self._old_name())
        self.swap.unlink(missing_ok=True)

    def put_away(self, version: Path) -> bool:
        """Remove a version as a whole, so that no reader sees half of it; False if a file was put there meanwhile:
        then the version stays."""
        away = self._old_name(0)
        version.rename(away)
        if next(own_files.strangers(away), None) is not None:
            away.rename(version)
            return False
        own_files.remove_output(away)
        if self.mirror:
            self.mirror.drop(version.name)
        return not away.exists()

    def _old_name(self, seconds: float | None = None) -> Path:
        """A free name for an output that is replaced now, with the second until which it stays at the end."""
        until = int(time.time() + (self.keep_replaced if seconds is None else seconds))
        names = [f"{self.old.name}-{until}", *(f"{self.old.name}-{until}-{n}" for n in range(1, 1000))]
        return next(path for name in names if not os.path.lexists(path := self.target.parent / name))

    def _land(self) -> Path:
        """The new output on the target's file system, copied there if necessary: after that renames are enough."""
        if self.folder == self.beside:
            return self.new
        if self.landed.exists():  # of a run with another scratch folder, or of one that was cut off
            own_files.remove_work(self.beside, spare=lambda path: not path.startswith("new"))
        if _are_one_file_system(self.folder, self.beside):
            return self.new
        partial = self.landed.with_name(f"new.{uuid.uuid4().hex[:8]}.tmp")
        try:
            shutil.copytree(self.new, partial)
        except BaseException as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise first_cause(error) from error
        for file in (p for p in partial.rglob("*") if p.is_file()):
            flush(file)
        return rename(partial, self.landed)

    def _publish_version(self, new: Path) -> Path:
        self.target.mkdir(parents=True, exist_ok=True)
        numbers = [int(p.name[1:]) for p in self.target.iterdir() if own_files.VERSION.fullmatch(p.name)]
        version = rename(new, self.target / f"v{max(numbers, default=0) + 1:04d}")
        self.point_to(version)
        self.clean()
        return version

    def point_to(self, version: Path) -> bool:
        """Let `_latest` name a version of this output; False if it names it already, and for an output without
        versions."""
        latest = self.target / LATEST
        if version.parent != self.target or own_files.read_latest(self.target) == version.name:
            return False
        remove_partials(latest)
        write_text(latest, version.name + "\n")
        if self.mirror:
            self.mirror.point_to(version.name)
        return True

    @property
    def is_cut_off(self) -> bool:
        """True if a swap began and did not end: it is going on, or a kill cut it off."""
        return self.swap.exists()

    def mend(self) -> str:
        """Finish a swap that was cut off: publish the new output if it is whole, else restore the old one; say which.

        Only for the owner of the lock: the swap of a living run looks the same.
        """
        done = self._mend_exchange()
        self._sweep()
        return done

    def _mend_exchange(self) -> str:
        note = read_json(self.swap)
        if not isinstance(note, dict):
            return ""
        new = self.landed
        done = ""
        if _inode(self.target) == note.get("new") is not None:
            if new.exists():
                rename(new, self._old_name())
            done = "the new output is in its place"
        elif not self.target.exists() and _inode(new) == note.get("new") is not None:
            rename(new, self.target)
            done = "the new output was put in its place"
        elif not self.target.exists() and self.olds:
            rename(self.olds[-1], self.target)
            self.swap.unlink(missing_ok=True)
            return "the old output was put back"
        self.swap.unlink(missing_ok=True)
        if done:
            self.clean()
        return done

    def _sweep(self, now: float | None = None) -> list[Path]:
        """Remove replaced outputs whose time is over."""
        now = time.time() if now is None else now
        over = [path for path in self.olds if (until_of(path) or 0) <= now]
        for path in over:
            if path.is_file():  # a probe of a run that was killed
                path.unlink(missing_ok=True)
            left = own_files.remove_output(path)
            if left and path.exists():
                log.warning("%s stays: %s in it was not written by rowmill", path, left[0])
        return over

    def clean(self) -> None:
        """Remove the work in progress; the lock, which its owner removes, events that wait for the Prefect server, a
        note on work in another scratch folder, and files of others stay."""
        self._sweep()
        spared = ("lock", OUTBOX) if self.asks_in == self.folder else ("lock", OUTBOX, ASKS)
        for folder in dict.fromkeys((self.folder, self.beside)):
            if left := own_files.remove_work(folder, spare=lambda path: path.startswith(spared)):
                log.warning("%s stays: %s in it was not written by rowmill", folder, left[0])

    def is_owned_by(self, owner: str) -> bool:
        """True if the lock is this owner's: the work of a dead flow stops once another flow has the lock."""
        return read_record(self.lock).get("id") == owner

    def check_owner(self, owner: str) -> None:
        """A GiveUpError if another run has the lock: this run gave no sign of life for too long."""
        if self.mirror:
            self.mirror.check_owner()
        if owner and not self.is_owned_by(owner):
            raise GiveUpError(
                "another run took over",
                where=self.address,
                why="the flow that started this stage is gone, or gave no sign of life for a minute",
                do="follow the run that holds the lock",
            )

    def in_use(self) -> bool:
        """True while a run has the lock that lives, or showed a sign of life within `STALE_SECONDS`."""
        return self.lock.exists() and not _is_dead(read_record(self.lock), self.lock)

    @contextmanager
    def hold_lock(self, wait: bool = False) -> Iterator[str]:
        """Lock the target while the block runs. An owner is dead if its process is, or after a minute of silence."""
        owner = _me(self.target)
        self.resumes = self.has_remains
        handle = self._acquire(self.lock, owner, wait)
        stop = threading.Event()
        beat = threading.Thread(target=_beat, args=(handle, stop), daemon=True, name="rowmill-lock")
        beat.start()
        try:
            self.mended = self.mend()
            with self._hold_store_lock(owner, wait):
                yield owner["id"]
        finally:
            stop.set()
            beat.join()
            os.close(handle)
            if not (self.folder / "plan.json").exists():
                self.clean()  # nothing that another start could use
            self._let_go(owner["id"])

    @contextmanager
    def _hold_store_lock(self, owner: JsonObject, wait: bool) -> Iterator[None]:
        """Lock an output on an object store, too; carry over what the block has changed. Nothing for a local output."""
        if self.mirror is None:
            yield
            return
        try:
            with self.mirror.hold_lock(owner, wait):
                try:
                    yield
                except Exception:
                    with _log_failure("what changed beside the output is not carried over to %s", self.mirror.url):
                        self._push_mirror(self.mirror)
                    raise
                self._push_mirror(self.mirror)
        except RowmillError as error:
            renamed = rewrite_error(error, with_urls)
        else:
            return
        raise renamed  # without the error that names paths of the mirror

    def _push_mirror(self, mirror: OutputMirror) -> None:
        mirror.push(int(time.time() + self.keep_replaced))

    def _let_go(self, owner: str) -> None:
        if self.is_owned_by(owner):
            for left in self.beside.glob("lock.*"):  # drafts of processes that were killed; a live one makes it again
                left.unlink(missing_ok=True)
            self.lock.unlink(missing_ok=True)
        self._drop_empty()

    def _drop_empty(self) -> None:
        """Remove the folders of the work in progress if nothing is in them."""
        if self.folder != self.beside and [p.name for p in self.folder.glob("*")] == ["target.json"]:
            (self.folder / "target.json").unlink(missing_ok=True)
        for folder in dict.fromkeys((self.folder, self.beside)):
            with suppress(OSError):
                folder.rmdir()

    def _acquire(self, path: Path, owner: JsonObject, wait: bool) -> int:
        """A descriptor of the lock, once `owner` has it."""
        while True:
            self.open()
            with no_space(path), suppress(FileNotFoundError):  # the previous owner may be removing the folder
                if (handle := _take(path, owner)) is not None:
                    return handle
            holder = self._drop_stale(path)
            if holder is None:
                continue
            if not wait:
                self._drop_empty()
                who = f"process {holder.get('pid')} on {holder.get('host')}"
                raise JobError(
                    "another run is working on this output",
                    where=self.address,
                    why=f"{who} has held it since {holder.get('since')}",
                    do="wait for it, choose another output.path, or set run.lock to wait",
                )
            time.sleep(0.2)

    def _drop_stale(self, path: Path) -> JsonObject | None:
        """The lock's owner; None after removing the lock of a dead owner, which only one of several waiting runs does.

        Moves the lock aside first, and puts it back if its owner is another one by then: where flock does not reach
        other hosts (NFS), another run may have taken the lock meanwhile.
        """
        try:
            folder = os.open(self.beside, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            owner = read_record(path)
            if path.exists() and not _is_dead(owner, path):
                return owner
            aside = path.with_name(f"lock.{uuid.uuid4().hex}.stale")
            with suppress(FileNotFoundError):
                path.rename(aside)
                if read_record(aside).get("id") != owner.get("id"):
                    with suppress(OSError):
                        os.link(aside, path)
                aside.unlink(missing_ok=True)
            return None
        finally:
            os.close(folder)


@contextmanager
def _log_failure(text: str, *arguments: object) -> Iterator[None]:
    """Log an error of the block as a warning and go on: another error is on its way already."""
    try:
        yield
    except RowmillError as error:
        log.warning(f"{text}: %s", *arguments, error)


def is_work_of(folder: Path, target: Path) -> bool:
    """Whether a folder is the work in progress of a target: the one beside it, or one under any scratch folder."""
    if "\0" in f"{folder}{target}":  # of a note that is not ours
        return False
    folder = Path(os.path.realpath(folder))
    return folder in (Staging(target).folder, Staging(target, folder.parent).folder)


def _digest_of(target: Path) -> str:
    return hashlib.sha256(os.fsencode(target)).hexdigest()[:12]


def _escape_pattern(name: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", name)


def until_of(path: Path) -> int | None:
    """The second until which a replaced output stays, from its name; None for other names.

    >>> until_of(Path("/data/.out.rowmill-old-1700000000")), until_of(Path("/data/.out.rowmill-old"))
    (1700000000, None)
    """
    match = re.fullmatch(r"\..+\.rowmill-old-(\d+)(-\d+)?", path.name)
    return int(match[1]) if match else None


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _probe(folder: Path, name: str) -> None:
    """Raise an OSError if no file of this name can be made in the folder."""
    probe = folder / name
    probe.touch()
    probe.unlink()


def _are_one_file_system(folder: Path, other: Path) -> bool:
    """Whether a rename from one folder to the other is possible; between two mounts of one device it is not."""
    if folder.stat().st_dev != other.stat().st_dev:
        return False
    name = f".rowmill-probe-{uuid.uuid4().hex[:8]}"
    (folder / name).touch()
    try:
        (folder / name).rename(other / name)
        (other / name).unlink()
    except OSError:
        (folder / name).unlink(missing_ok=True)
        return False
    return True


def exchange(one: Path, other: Path) -> None:
    """Exchange two paths in one step; an OSError where the kernel or the file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):  # glibc before 2.28
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    paths = os.fsencode(one), os.fsencode(other)
    if libc.renameat2(AT_FDCWD, paths[0], AT_FDCWD, paths[1], ctypes.c_uint(EXCHANGE)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(other))


def _me(target: Path) -> JsonObject:
    boot, pidns = namespace()
    return {
        "id": uuid.uuid4().hex,
        "host": socket.gethostname(),
        "boot": boot,
        "pidns": pidns,
        "pid": os.getpid(),
        "start": start_time(os.getpid()),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        "target": str(target),
    }


def _take(path: Path, owner: JsonObject) -> int | None:
    """Create the lock with its content in one step, as a link to a file that is already whole. Returns its descriptor;
    None if there is a lock already."""
    draft = path.with_name(f"lock.{owner['id']}.tmp")
    try:
        draft.write_text(json.dumps(owner))
        handle = os.open(draft, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.link(draft, path)
        except OSError as error:
            if draft.stat().st_nlink == 2:  # the link was made, but the answer of the file server was lost
                return handle
            os.close(handle)
            if isinstance(error, FileExistsError):
                return None
            if error.errno not in NO_LINKS:
                raise
            return _take_without_links(path, owner)
        return handle
    finally:
        draft.unlink(missing_ok=True)


def _take_without_links(path: Path, owner: JsonObject) -> int | None:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return None
    os.write(handle, json.dumps(owner).encode())
    return handle


def _beat(handle: int, stop: threading.Event) -> None:
    """Give signs of life on this owner's lock, never on the lock of a run that took over."""
    while not stop.wait(STALE_SECONDS / 6):
        try:
            os.utime(handle)
        except OSError:
            return


def _is_dead(owner: JsonObject, path: Path) -> bool:
    """True if the owner of a lock is dead: its process has ended, or, where process numbers do not tell, there was no
    sign of life for a minute."""
    ended = has_ended(owner)
    if ended is not None:
        return ended
    try:
        return _now_at(path.parent) - path.stat().st_mtime > STALE_SECONDS
    except FileNotFoundError:
        return True


def _now_at(folder: Path) -> float:
    """The time of the file server of the folder, whose clock dates the signs of life."""
    probe = folder / f".rowmill-probe-{uuid.uuid4().hex[:8]}"
    try:
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink()
    except OSError:
        return time.time()
    return now
