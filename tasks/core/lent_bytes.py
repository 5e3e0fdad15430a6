"""Bytes of this process's memory that other processes have copied: counted where they are lent, read by the monitor."""

from __future__ import annotations

import threading

_lock = threading.Lock()
_of_gpu = _of_host = 0


def count(nbytes: int, on_host: bool = False) -> None:
    """Count bytes that another process copies out of the GPU, or the host memory, of this process."""
    global _of_gpu, _of_host
    with _lock:
        if on_host:
            _of_host += nbytes
        else:
            _of_gpu += nbytes


def totals() -> tuple[int, int]:
    """Bytes lent since the process started: (of its GPU, of its host memory)."""
    with _lock:
        return _of_gpu, _of_host
