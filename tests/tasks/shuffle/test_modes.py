"""The five shuffle modes through all stages: the rows that come out, the order they are in, and that the bytes stay."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job.job import make_job
from tasks.cluster.dask_pool import DaskPool
from tasks.cluster.local_pool import LocalPool
from tasks.cluster.pool import Pool
from tasks.core.plan import Limits
from tasks.core.settings import Output
from tasks.shuffle import row_order
from tasks.sources import planning
from tasks.stages import commit, ingest, plan_splits, shuffle_write, statistics, transform

BLOCKS, ROWS = 12, 500
MODES: dict[str, dict[str, Any]] = {
    "none": {}, "partition": {}, "worker": {"shuffle_groups": 3}, "full": {}, "key": {"keys": ["k"], "sort_by": ["n"]},
}  # fmt: skip
FILTERS = {"all rows": None, "some dropped": "n % 7 != 3 and k != 'k5'"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Row groups that are blocks: n counts the rows, k has 40 values."""
    folder, n = tmp_path_factory.mktemp("modes"), np.arange(BLOCKS * ROWS)
    table = pa.table({"n": n, "k": np.char.add("k", (n * 7919 % 40).astype(str)), "x": n / 3})
    pq.write_table(table, folder / "in.parquet", row_group_size=ROWS)
    return folder


def written(
    source: Path, out: Path, engine: str, pool: Pool, mode: str, rows: str, size: int, **more: Any
) -> dict[str, bytes]:
    """The bytes of the files of a job in this mode, in partitions of about `size` bytes; `more` of the output."""
    request = make_job({
        "source": {"path": str(source), "partition_size": size, "filter": FILTERS[rows]},
        "features": [{"columns": ["n", "k"]}, {"columns": ["x"], "ops": [{"op": "Normalize"}]}],
        "output": {"path": str(out), "files": 5, "seed": 11, "shuffle": mode, **MODES[mode], **more},
        "run": {"min_partition_size": size, "exchange": "memory"},
    }).request(engine)  # fmt: skip
    with request.staging.hold_lock():
        done = [ingest.ingest(request, pool), statistics.statistics(request, pool)]
        done += [transform.transform(request, "", pool), shuffle_write.shuffle_write(request, "", pool)]
        commit.commit(request, done)
    return {p.name: p.read_bytes() for p in sorted(out.glob("part-*"))}


def check_order(mode: str, files: list[list[tuple[int, str]]], kept: list[int]) -> None:
    """The numbers and keys of the rows, file by file, are in the order that the mode promises."""
    numbers = [n for file in files for n, _ in file]
    blocks = [n // ROWS for n in numbers]
    runs = [block for block, _ in groupby(blocks)]
    if mode == "none":
        assert numbers == kept
    elif mode == "partition":
        assert sorted(runs) == list(range(BLOCKS))  # each block in one piece
        assert runs != sorted(runs)
        assert numbers != [n for block in runs for n in kept if n // ROWS == block]
    elif mode == "worker":
        ends = {block: (blocks.index(block), len(blocks) - blocks[::-1].index(block)) for block in set(blocks)}
        groups = Counter(max(high for low, high in ends.values() if low < end) for _, end in ends.values())
        assert sorted(groups.values()) == [4, 4, 4]  # four blocks share a run of places, and no others are in it
    elif mode == "full":
        assert len(runs) > 0.8 * len(numbers)
    else:
        where = Counter(key for file in files for key in {key for _, key in file})
        assert set(where.values()) == {1}
        for file in files:
            assert len([key for key, _ in groupby(key for _, key in file)]) == len({key for _, key in file})
            assert all(a < b for (a, k), (b, m) in pairwise(file) if k == m)


@pytest.mark.promise("none, partition (inside blocks), worker (inside groups of blocks), full, or key")
@pytest.mark.parametrize("rows", FILTERS)
@pytest.mark.parametrize("mode", MODES)
def test_rows_order_and_bytes_of_a_mode(
    mode: str, rows: str, source: Path, tmp_path: Path, engine: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_splits, "make_plan", partial(planning.make_plan, limits=Limits(join_below=1)))
    make = partial(written, source, engine=engine, mode=mode, rows=rows)
    first = make(tmp_path / "a", pool=LocalPool(1), size=20_000)
    assert len(first) == 5
    for number, (pool, size) in enumerate([(LocalPool(2), 1), (LocalPool(2), 10**9), (DaskPool(client), 20_000)]):
        assert make(tmp_path / str(number), pool=pool, size=size) == first

    tables = [pq.read_table(path) for path in sorted((tmp_path / "a").glob("part-*"))]
    files = [list(zip(t["n"].to_pylist(), t["k"].to_pylist(), strict=True)) for t in tables]
    given = [(n, f"k{n * 7919 % 40}") for n in range(BLOCKS * ROWS)]
    kept = [(n, k) for n, k in given if rows == "all rows" or (n % 7 != 3 and k != "k5")]
    assert Counter(row for file in files for row in file) == Counter(kept)
    check_order(mode, files, [n for n, _ in kept])
    if mode != "key":
        assert max(map(len, files)) - min(map(len, files)) <= 1


@pytest.mark.parametrize("mode", MODES)
def test_files_of_many_row_groups_have_more_ranges_and_the_same_bytes(
    source: Path, tmp_path: Path, engine: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(name: str) -> tuple[dict[str, bytes], int]:
        files = written(source, tmp_path / name, engine, LocalPool(1), mode, "some dropped", 4_000, row_group_size=40)
        return files, row_order.ranges_of_file(Output(path="x", row_group_size=40), BLOCKS * ROWS, 5)

    many = write("many")
    monkeypatch.setattr(row_order, "MOST_RANGES", 1)
    few = write("few")
    assert (many[1], few[1]) == (102, 8)
    assert many[0] == few[0]
    assert len(many[0]) == 5
