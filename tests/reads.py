"""Which columns of which partitions the passes over the rows read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tasks.graph import partition_work


def count_reads(monkeypatch: pytest.MonkeyPatch, note: Callable[[Any, list[str]], object]) -> None:
    """Call `note(partition, columns)` before the host reads: by `read` on the CPU, by `read_side_by_side` for a GPU."""

    def counting(read: Any) -> Any:
        def counted(source: Any, partition: Any, columns: Any = None, **more: Any) -> Any:
            note(partition, list(columns))
            return read(source, partition, columns, **more)

        return counted

    for name in ("read", "read_side_by_side"):
        monkeypatch.setattr(partition_work, name, counting(getattr(partition_work, name)))
