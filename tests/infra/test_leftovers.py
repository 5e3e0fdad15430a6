"""What killed processes leave on a host goes with a later start; what lives stays."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from infra.workers.multiprocessing_leftovers import remove_leftovers

pytestmark = pytest.mark.system


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short name: that of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="mr-") as folder:
        yield Path(folder)


def listening(folder: Path) -> socket.socket:
    folder.mkdir()
    found = socket.socket(socket.AF_UNIX)
    found.bind(str(folder / "listener-x"))
    found.listen(1)
    os.utime(folder, (1, 1))
    return found


def test_folders_of_sockets_go_when_nobody_listens(short: Path) -> None:
    living, dead = listening(short / "pymp-living"), listening(short / "pymp-dead")
    dead.close()
    for name in ("pymp-mine", "pymp-empty", "pymp-young", "other"):
        (short / name).mkdir()
    (short / "pymp-mine" / "notes.txt").write_text("mine")
    for name in ("pymp-mine", "pymp-empty", "other"):
        os.utime(short / name, (1, 1))
    gone = remove_leftovers(short, short)
    assert sorted(path.name for path in gone) == ["pymp-dead", "pymp-empty"]
    assert sorted(path.name for path in short.iterdir()) == ["other", "pymp-living", "pymp-mine", "pymp-young"]
    living.setblocking(False)
    with pytest.raises(BlockingIOError):  # it was asked without a connection
        living.accept()
    living.close()


def test_semaphores_go_when_no_process_has_them_and_they_are_a_day_old(short: Path) -> None:
    used = shared_memory.SharedMemory(create=True, size=32, name=f"sem.mp-test-{os.getpid()}")
    try:
        path = Path("/dev/shm") / f"sem.mp-test-{os.getpid()}"
        before = path.stat()
        os.utime(path, (1, 1))
        for name, age in (("sem.mp-old", 2 * 86_400), ("sem.mp-new", 60), ("sem.other", 2 * 86_400)):
            (short / name).write_bytes(bytes(32))
            os.utime(short / name, (time.time() - age, time.time() - age))
        assert [p.name for p in remove_leftovers(short, short)] == ["sem.mp-old"]
        assert path not in remove_leftovers(short)  # mapped by this process
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    finally:
        used.close()
        used.unlink()
