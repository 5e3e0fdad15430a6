"""Requests to storages, and the bytes of their bodies: counted where a store sends them, read by the monitor.

What a client tries again by itself counts once.
"""

from __future__ import annotations

import threading
from typing import Literal

Kind = Literal["get", "list", "head", "put", "delete"]
REQUESTS = ("storage_gets", "storage_lists", "storage_heads", "storage_puts", "storage_deletes")
BYTES = ("storage_bytes_read", "storage_bytes_written")
NAMES = (*REQUESTS, *BYTES)  # of the figures of a stage

_lock = threading.Lock()
_counts = dict.fromkeys(NAMES, 0)


def count(kind: Kind, requests: int = 1, nbytes: int = 0) -> None:
    """Count requests of this process, with the bytes of files that they read (get) or write (put)."""
    with _lock:
        _counts[f"storage_{kind}s"] += requests
        if nbytes:
            _counts["storage_bytes_written" if kind == "put" else "storage_bytes_read"] += nbytes


def totals() -> dict[str, int]:
    """Requests and bytes since the process started, by `NAMES`."""
    with _lock:
        return dict(_counts)


def since(before: dict[str, int]) -> dict[str, int]:
    """What was counted since these totals, without zeros."""
    grown = {name: count - before[name] for name, count in totals().items()}
    return {name: count for name, count in grown.items() if count}
