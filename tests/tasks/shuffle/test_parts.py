"""Which rows stand in which file: equal to one row, full but the last, every row once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.core.schema import Column, Schema
from tasks.core.settings import Output
from tasks.shuffle import writing
from tasks.shuffle.parts import Part, Writing, divide_into_runs, plan_parts
from tasks.shuffle.permutation import range_edges
from tasks.shuffle.pieces import shares_of
from tasks.shuffle.row_order import RANGES_PER_FILE, Order, ranges_of_file

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


def test_files_of_one_worker_are_whole() -> None:
    assert shares_of(order(5 * RANGES_PER_FILE), 2) == (0, 24, 40)
    assert shares_of(Order("full", 0, 1000, (0,), 8, 150, of_file=50), 2) == (0, 100, 150)


@pytest.mark.parametrize(("rows", "ranges"), [(1_000_000, 8), (100_000_000, 50), (10**10, 64)])
def test_a_run_of_a_large_file_reads_few_rows_of_others(rows: int, ranges: int) -> None:
    output = Output(path="x", files=8)
    assert ranges_of_file(output, rows, 8) == ranges
    counts = np.diff(range_edges(rows, 8 * ranges))
    part = plan_parts(counts, output, Order("full", 0, rows, (0,), 8, 8 * ranges, of_file=ranges), 8)[3]
    runs = divide_into_runs(part, counts[part.first : part.last], 1_000_000, -(-part.rows // 1_000_000))
    assert sum(run.rows for run in runs) == part.rows
    needless = max(int(counts[run.first : run.last].sum()) - run.rows for run in runs)
    assert needless <= (500_000 if rows < 10**9 else 2 * rows // (8 * ranges))


@pytest.mark.parametrize(
    ("rows", "ranges", "limit", "runs"),
    [
        (2_000_000, 8, 200_000_000, 1),  # 192 MB for three copies of 32 bytes a row
        (12_500_000, 50, 200_000_000, 8),  # 1.2 GB, and 48 MB of each run for ranges that it needs in part
        (12_500_000, 8, 200_000_000, 13),  # 300 MB for these: a row group a run, and no smaller one
        (12_500_000, 50, 0, 1),
    ],
)
def test_a_file_that_does_not_fit_is_written_in_runs_that_fit_with_all_that_they_read(
    rows: int, ranges: int, limit: int, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "work_of_a_thread", lambda *_, **__: limit)
    schema = Schema(Column(name, pa.int64()) for name in "abc")
    settings = Writing("", "", "pandas", Output(path="x", files=8), order(8 * ranges), schema)
    assert writing.first_runs(settings, Part(3, 3 * ranges, 4 * ranges, 0, rows)) == runs
