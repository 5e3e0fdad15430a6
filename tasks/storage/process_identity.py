"""Which process a number means: of which boot, of which namespace of process numbers, and started when."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def namespace() -> tuple[str, str]:
    """(id of this boot, namespace of process numbers): where both are equal, a process number means the same process.
    Containers may share a host's name and number their own processes. Empty texts without /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot, str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return "", ""


def is_alive(pid: int, start: str | None) -> bool | None:
    """Return whether the process with this number lives and was started at `start`; None if that cannot be seen."""
    started = start_time(pid)
    if started is not None:
        return started == start
    try:
        os.kill(pid, 0)
    except PermissionError:  # /proc hides the processes of other users
        return None
    except (OSError, OverflowError):
        return False
    return False  # a zombie


def has_ended(owner: Mapping[str, Any]) -> bool | None:
    """Whether the process that a lock names has ended; None where its number tells nothing here."""
    if not owner.get("boot") or (owner["boot"], owner.get("pidns")) != namespace():
        return None
    alive = is_alive(int(owner.get("pid", -1)), owner.get("start"))
    return None if alive is None else not alive


def start_time(pid: int) -> str | None:
    """When a process was started, in ticks since the boot, to detect reused numbers; None if the process is gone."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in "ZXx" else fields[18]
