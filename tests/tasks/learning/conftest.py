"""What tests of tables that are too large for one task look at."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.learning import large_tables


@pytest.fixture
def chains(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each fit, into how many chains the table was split that was split most; 0 where no table was large."""
    counts, finalize = list[int](), large_tables.finalize

    def counted(pool: Any, chains: Any, *others: Any) -> Any:
        counts.append(max((len(handles) for handles in chains.values()), default=0))
        return finalize(pool, chains, *others)

    monkeypatch.setattr(large_tables, "finalize", counted)
    return counts
