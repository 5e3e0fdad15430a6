"""How fast a storage sends, by a short measurement."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.core.plan import File
from tasks.errors import RowmillError
from tasks.storage.stores import open_store

ROUNDS = (2**20, 8 * 2**20, 32 * 2**20)  # bytes: each connection needs some until it is fast
ENOUGH_SECONDS = 0.3  # of a round, which then says more than its first answer's delay
AT_ONCE = 16


def measure_bandwidth(files: Sequence[File], options: Mapping[str, Any] | None) -> float | None:
    """Bytes a second that the storage of these files sends now, by at most 41 MiB of the largest; None if none can be
    read."""
    largest = max(files, key=lambda file: file.size, default=None)
    if largest is None or not largest.size:
        return None
    try:
        store = open_store(largest.path, options)
        rate = 0.0
        for nbytes in ROUNDS:
            # Far apart, so that they are fetched side by side as those of a run are.
            width = -(-min(nbytes, largest.size) // AT_ONCE)
            starts = range(0, largest.size, -(-largest.size // AT_ONCE))
            began = time.perf_counter()
            parts = store.read_ranges(largest, [(start, start + width) for start in starts])
            seconds = time.perf_counter() - began
            rate = sum(map(len, parts)) / seconds
            if seconds > ENOUGH_SECONDS or nbytes >= largest.size:
                break
    except RowmillError:
        return None
    return rate
