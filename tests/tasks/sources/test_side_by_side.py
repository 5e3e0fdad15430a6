"""Facts about reading the blocks of a partition side by side, as for a GPU."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from tasks.core.plan import Limits, Plan
from tasks.core.settings import Source
from tasks.errors import DataError
from tasks.sources import reader
from tasks.sources.planning import make_plan
from tasks.sources.reader import read, read_side_by_side

ROWS = 1000
TABLE = pa.table(
    {"i": range(ROWS), "s": [f"word {i % (i // 100 + 1)}" for i in range(ROWS)], "f": [0.5, None] * (ROWS // 2)}
)


@pytest.fixture(params=["csv", "parquet", "arrow"])
def plan(request: pytest.FixtureRequest, tmp_path: Path) -> Plan:
    """One partition of many blocks in two files."""
    for name, part in (("a", TABLE.slice(0, 600)), ("b", TABLE.slice(600))):
        path = tmp_path / f"{name}.{request.param}"
        if request.param == "csv":
            pacsv.write_csv(part, path)
        elif request.param == "parquet":
            pq.write_table(part, path, row_group_size=150)
        else:
            with pa.ipc.new_file(path, part.schema) as file:
                file.write_table(part, max_chunksize=150)
    limits = Limits(join_below=1, cut_above=50, range_bytes=500)
    return make_plan(Source(path=str(tmp_path), format=request.param), limits=limits)


def test_rows_and_their_order_are_those_of_one_reader(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    (partition,), asked = plan.partitions, []
    monkeypatch.setattr(reader, "read", lambda *a: asked.append(a[1]) or read(*a))
    found = read_side_by_side(plan, partition, ["s", "f", "i"], smallest=1)
    assert found.to_pydict() == TABLE.select(["s", "f", "i"]).to_pydict()
    assert len(asked) > 2
    assert sorted(block.number for run in asked for block in run.blocks) == [b.number for b in plan.blocks]
    if plan.format != "csv":  # no row group is decoded by two
        groups = [{(piece.file, piece.group) for block in run.blocks for piece in block.pieces} for run in asked]
        assert sum(map(len, groups)) == len(set.union(*groups))
    asked.clear()
    assert read_side_by_side(plan, partition, ["i"]).to_pydict() == {"i": list(range(ROWS))}
    assert asked == [partition]


def test_what_is_wrong_is_told_with_its_file(plan: Plan, tmp_path: Path) -> None:
    (partition,), path = plan.partitions, tmp_path / f"b.{plan.format}"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError) as error:
        read_side_by_side(plan, partition, ["i"], smallest=1)
    assert str(path) in str(error.value.where)
