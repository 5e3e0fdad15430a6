"""Row groups that `source.filter` leaves out by the statistics in footers: what is not opened, and what must stay."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.plan import Plan
from tasks.core.settings import Source
from tasks.sources.formats import parquet_chunks
from tasks.sources.planning import make_plan
from tasks.sources.reader import file_of, read
from tests.object_store import ObjectStore

DAYS, ROWS = 365, 100  # row groups, and rows of each


def groups_of(plan: Plan) -> list[int]:
    return [piece.group for block in plan.blocks for piece in block.pieces]


def write(folder: Path, groups: list[Any], name: str = "a.parquet", **options: Any) -> None:
    """A file with a row group for each list of values of the column x."""
    tables = [pa.table({"x": values, "n": range(len(values))}) for values in groups]
    with pq.ParquetWriter(folder / name, tables[0].schema, **options) as writer:
        for table in tables:
            writer.write_table(table.cast(tables[0].schema))


def year(folder: Path) -> Path:
    begin = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)
    schema = pa.schema([("time", pa.timestamp("us", "UTC")), ("day", pa.date32()), ("n", pa.int64())])
    with pq.ParquetWriter(folder / "year.parquet", schema) as writer:
        for day in range(DAYS):
            times = [begin + dt.timedelta(days=day, seconds=864 * i) for i in range(ROWS)]
            days = [time.date() for time in times]
            writer.write_table(pa.table({"time": times, "day": days, "n": range(ROWS)}, schema=schema))
    return folder / "year.parquet"


ONE_DAY = ["time >= '2025-03-01' and time < '2025-03-02'", "day == '2025-03-01'", "day in ['2025-03-01'] and n >= 0",
           "between(day, '2025-03-01', '2025-03-01')", "'2025-03-01' == day"]  # fmt: skip


@pytest.mark.parametrize("condition", ONE_DAY)
def test_one_day_of_a_year_opens_one_row_group(tmp_path: Path, condition: str) -> None:
    year(tmp_path)
    plan = make_plan(Source(path=str(tmp_path), filter=condition))
    assert groups_of(plan) == [59]
    assert plan.rows == ROWS
    assert set(read(plan, plan.partitions[0], ["day"])["day"].to_pylist()) == {dt.date(2025, 3, 1)}
    assert Plan.from_json(plan.to_json()).fingerprint == plan.fingerprint


@pytest.mark.system
def test_one_day_of_a_year_fetches_one_row_group_of_an_object(tmp_path: Path, object_store: ObjectStore) -> None:
    object_store.put("year/year.parquet", year(tmp_path).read_bytes())
    source = Source(path="s3://shop/year", storage_options=object_store.options, filter=ONE_DAY[1])
    parquet_chunks.footers.forget()
    plan = make_plan(source)
    with object_store.proxy.counting() as traffic:
        assert read(plan, plan.partitions[0]).num_rows == ROWS
    assert traffic.by_kind == {"get": 1}
    assert traffic.fetched < 3_000


def test_a_row_is_where_it_is_in_its_file(tmp_path: Path) -> None:
    year(tmp_path)
    plan = make_plan(Source(path=str(tmp_path), filter="day >= '2025-03-01' and day != '2025-03-05'"))
    assert file_of(plan, 0) == (str(tmp_path / "year.parquet"), 59 * ROWS)
    assert file_of(plan, ROWS + 7) == (str(tmp_path / "year.parquet"), 60 * ROWS + 7)


GROUPS = [[1, 5], [6, 9], [None, 20]]


@pytest.mark.promise("Row groups of Parquet that it rules out")
@pytest.mark.parametrize(
    ("condition", "groups"),
    [
        ("x < 6", [0]),
        ("x <= 6", [0, 1]),
        ("x > 9", [2]),
        ("x == 5 or x == 20", [0, 2]),
        ("x in [3, 100]", [0]),
        ("x == 7.5", [1]),
        ("x != 5", [0, 1, 2]),
        ("not (x < 6)", [0, 1, 2]),
        ("x is None", [0, 1, 2]),
        ("x + 1 < 6", [0, 1, 2]),
        ("x > 5 and n == 1", [1, 2]),
        ("x > 5 and n == 7", [0]),  # no row group
        ("x > 100", [0]),  # one stays, so that what keeps no row fails as ever
        ("x < n", [0, 1, 2]),
        ("x < 1 + 1", [0]),
    ],
)
def test_what_may_pass_stays(tmp_path: Path, condition: str, groups: list[int]) -> None:
    write(tmp_path, GROUPS)
    assert groups_of(make_plan(Source(path=str(tmp_path), filter=condition))) == groups


@pytest.mark.parametrize(
    ("groups", "options", "condition", "left"),
    [
        ([["a", "b"], ["c", "d"]], {}, "x == 'c'", [1]),
        ([["a" * 500], ["b" * 500]], {}, "x >= 'b'", [1]),
        ([[1.0, float("nan")], [3.0, 4.0]], {}, "x > 2", [1]),
        ([[1], [2]], {"write_statistics": False}, "x > 1", [0, 1]),
        ([pa.nulls(2, pa.int64()), [2]], {}, "x > 1", [0, 1]),
        ([pa.array([2**63 + 1], pa.uint64()), pa.array([1], pa.uint64())], {}, "x > 5", [0]),
        ([pa.array([1], pa.int8()), pa.array([-1], pa.int8())], {}, "x < 0", [1]),
        ([[True], [False]], {}, "x == True", [0, 1]),
        ([[b"a"], [b"b"]], {}, "n == 0", [0, 1]),
    ],
)
def test_types_and_footers(
    tmp_path: Path, groups: list[Any], options: dict[str, Any], condition: str, left: list[int]
) -> None:
    write(tmp_path, groups, **options)
    assert groups_of(make_plan(Source(path=str(tmp_path), filter=condition))) == left


def test_a_column_that_is_read_as_another_type_does_not_decide(tmp_path: Path) -> None:
    write(tmp_path, [["1", "10"], ["2", "3"]])  # as texts, "10" is less than "2"
    assert groups_of(make_plan(Source(path=str(tmp_path), filter="x >= 5", schema={"x": "int64"}))) == [0, 1]


def test_files_of_which_nothing_is_left_stay_in_the_plan(tmp_path: Path) -> None:
    write(tmp_path, [[1], [2]], "a.parquet")
    write(tmp_path, [[3], [4]], "b.parquet")
    plan = make_plan(Source(path=str(tmp_path), filter="x == 4"))
    assert ([Path(file.path).name for file in plan.files], plan.rows) == (["a.parquet", "b.parquet"], 1)
    assert read(plan, plan.partitions[0])["x"].to_pylist() == [4]


@pytest.mark.parametrize("seed", range(5))
def test_no_row_that_passes_is_lost(tmp_path: Path, seed: int) -> None:
    draws = np.random.default_rng(seed)
    groups = [draws.integers(low, low + 30, 20).tolist() for low in draws.integers(0, 100, 12)]
    write(tmp_path, groups)
    low, high = sorted(draws.integers(0, 130, 2).tolist())
    plan = make_plan(Source(path=str(tmp_path), filter=f"x >= {low} and x < {high}"))
    values = [value for part in plan.partitions for value in read(plan, part)["x"].to_pylist()]
    expected = [value for group in groups for value in group if low <= value < high]
    assert [value for value in values if low <= value < high] == expected
