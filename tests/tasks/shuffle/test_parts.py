"""Which rows stand in which file: equal to one row, full but the last, every row once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.core.settings import Output
from tasks.shuffle.parts import plan_parts
from tasks.shuffle.row_order import RANGES_PER_FILE, Order

counts_of = st.lists(st.integers(0, 50), min_size=8, max_size=64).filter(any)


def order(ranges: int, mode: str = "full") -> Order:
    return Order(mode, 0, 1000, (0,), 8, ranges)


def ranks(part: object, counts: np.ndarray) -> tuple[int, int]:
    """The ranks of a part's rows, from the ranges it gathers and the rows it leaves out."""
    low = int(counts[: part.first].sum()) + part.skip  # type: ignore[attr-defined]
    return low, low + part.rows  # type: ignore[attr-defined]


@pytest.mark.promise("files by number are equal to one row; by `rows_per_file` all are full but the last")
@given(counts_of, st.integers(1, 12))
def test_exactly_the_files_asked_for_equal_to_one_row(found: list[int], files: int) -> None:
    counts = np.array(found)
    parts = plan_parts(counts, Output(path="x", files=files), order(len(counts)), files)
    sizes = [p.rows for p in parts]
    assert len(parts) == files
    assert max(sizes) - min(sizes) <= 1
    edges = [ranks(p, counts) for p in parts if p.rows]
    assert [low for low, _ in edges] == [0, *(high for _, high in edges[:-1])]
    assert edges[-1][1] == counts.sum()
    assert all(int(counts[p.first : p.last].sum()) >= p.skip + p.rows for p in parts)


@given(counts_of, st.integers(1, 40))
def test_rows_per_file_fills_all_but_the_last(found: list[int], size: int) -> None:
    counts = np.array(found)
    parts = plan_parts(counts, Output(path="x", rows_per_file=size), order(len(counts)), 3)
    assert [p.rows for p in parts[:-1]] == [size] * (len(parts) - 1)
    assert 1 <= parts[-1].rows <= size
    assert sum(p.rows for p in parts) == counts.sum()


def test_key_takes_whole_ranges() -> None:
    counts = np.arange(2 * RANGES_PER_FILE)
    parts = plan_parts(counts, Output(path="x", shuffle="key", keys=["k"]), order(len(counts), "key"), 2)
    assert [(p.first, p.last, p.skip, p.rows) for p in parts] == [(0, 8, 0, 28), (8, 16, 0, 92)]
