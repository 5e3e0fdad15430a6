"""Facts about columns of types that few operators take: they pass through any job, on either engine, as they came."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import engines, ops
from tasks.core.dtypes import leaf_type
from tasks.core.settings import Output, Run, Source
from tasks.dataset import Dataset
from tasks.engines.convert.gpu_types import from_stand_in, is_foreign, mark_of, stand_in, type_of_mark
from tasks.errors import DataError
from tasks.graph.node import as_node
from tasks.job.request import make_request
from tasks.manifest import Manifest
from tasks.workflow import Workflow
from tests.stages import Report, run_stages

ROWS = 40
LEAVES = [
    pa.int8(), pa.uint64(), pa.float32(), pa.bool_(), pa.string(), pa.binary(), pa.binary(3), pa.decimal128(9, 2),
    pa.decimal256(50, 3), pa.time32("ms"), pa.time64("us"), pa.date32(), pa.timestamp("us", "UTC"),
    pa.timestamp("us", "+05:30"), pa.timestamp("ns"), pa.duration("us"), pa.null(),
]  # fmt: skip


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    structs = st.lists(inner, max_size=3).map(lambda types: pa.struct(list(zip("abc", types, strict=False))))
    return st.one_of(inner.map(pa.list_), inner.map(lambda dtype: pa.map_(pa.string(), dtype)), structs)


TYPES = st.recursive(st.sampled_from(LEAVES), nested, max_leaves=5)


def value(draw: random.Random, dtype: pa.DataType) -> Any:
    """Any value of a type, null for one of five."""
    if draw.random() < 0.2 or pa.types.is_null(dtype):
        return None
    several, day = range(draw.randrange(3)), date(2000, 1, 1) + timedelta(days=draw.randrange(20_000))
    if pa.types.is_list(dtype):
        return [value(draw, dtype.value_type) for _ in several]
    if pa.types.is_map(dtype):
        return [(f"key {i}", value(draw, dtype.item_type)) for i in several]
    if pa.types.is_struct(dtype):
        return {field.name: value(draw, field.type) for field in dtype}
    if pa.types.is_timestamp(dtype):
        return datetime(day.year, 1, 1, tzinfo=UTC if dtype.tz else None)
    number = draw.randrange(100)
    return {
        "bool": number > 50,
        "string": "ö" * (number % 4),
        "binary": bytes([number, 255, 0])[: number % 4],
        "fixed_size_binary[3]": bytes([number, 255, 0]),
        "time32[ms]": time(number % 24, 3),
        "time64[us]": time(number % 24, 3, 2, 5),
        "date32[day]": day,
        "duration[us]": timedelta(microseconds=number),
    }.get(str(dtype), Decimal(number) / 4 if pa.types.is_decimal(dtype) else number)


def values(dtype: pa.DataType, rows: int, seed: int = 0) -> pa.Array:
    draw = random.Random(f"{seed} {dtype}")
    return pa.array([value(draw, dtype) for _ in range(rows)], dtype)


@given(TYPES.filter(is_foreign), st.integers(0, 9), st.integers(0, 5), st.integers(0, 99))
def test_what_stands_for_a_column_of_a_type_gives_it_back(dtype: pa.DataType, rows: int, first: int, seed: int) -> None:
    array = values(dtype, rows, seed).slice(first)
    found = stand_in(array)
    order = pa.array(random.Random(seed).sample(range(len(array)), len(array)), pa.int64())
    again = from_stand_in(found.take(order), dtype)

    again.validate(full=True)
    assert again.type == type_of_mark(mark_of(dtype)) == dtype
    assert again.to_pylist() == array.take(order).to_pylist()
    assert not is_foreign(dtype) or found.type != dtype


def test_what_cudf_forgets_of_types_without_values_is_restored() -> None:
    """Of lists without elements it makes lists of nulls, of strings that are all null and the like no type at all."""
    dtype = pa.map_(pa.string(), pa.struct([("a", pa.binary())]))
    found = from_stand_in(pa.array([[], None], pa.list_(pa.null())), dtype)
    found.validate(full=True)
    assert (found.type, found.to_pylist()) == (dtype, [[], None])
    assert from_stand_in(pa.nulls(2), dtype).equals(pa.nulls(2, dtype))


@given(TYPES, st.integers(0, 9), st.integers(0, 99))
def test_an_engine_has_columns_of_any_type(engine: str, dtype: pa.DataType, rows: int, seed: int) -> None:
    table = pa.table({"c": values(dtype, rows, seed)})
    for kernels in map(engines.engine, dict.fromkeys(["pandas", engine])):
        found = kernels.from_arrow(table)
        places = random.Random(seed).sample(range(rows), rows)
        taken = kernels.take(found, kernels.xp.asarray(places, dtype="int64"))
        joined = kernels.concat([found, taken, kernels.slice_rows(found, rows // 2, rows)])
        again = kernels.to_arrow(joined)["c"]
        expected = [*range(rows), *places, *range(rows // 2, rows)]
        assert again.type == kernels.dtype(joined["c"])
        if again.type != dtype and not pa.types.is_null(leaf_type(dtype)):  # lists on a GPU, whose schema knows it
            assert pa.types.is_list(dtype)
            again = again.cast(dtype)
        assert again.to_pylist() == table["c"].take(pa.array(expected, pa.int64())).to_pylist()


WIDE = {
    **{str(dtype): dtype for dtype in LEAVES},
    **{f"list of {dtype}": pa.list_(dtype) for dtype in LEAVES},
    **{f"struct of {dtype}": pa.struct([("a", dtype), ("b, c", pa.list_(dtype))]) for dtype in LEAVES},
    **{f"map to {dtype}": pa.map_(pa.string(), dtype) for dtype in LEAVES},
    "deep": pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.struct([("x", pa.decimal256(50, 3))])))])),
}


def table_of(types: dict[str, pa.DataType]) -> pa.Table:
    return pa.table({"number": list(range(ROWS)), **{name: values(dtype, ROWS) for name, dtype in types.items()}})


def rows_written(folder: Path, form: str) -> pa.Table:
    parts = [part["path"] for part in Manifest.load(folder).parts]
    return pa.concat_tables(ds.dataset(folder / p, format={"arrow": "ipc"}.get(form, form)).to_table() for p in parts)


@pytest.mark.promise("Columns of all other types (structs, maps, bytes) pass through to outputs of Parquet and Arrow")
@pytest.mark.parametrize(("form", "exchange"), [("parquet", "memory"), ("arrow", "disk")])
def test_columns_of_any_type_pass_through(form: str, exchange: str, tmp_path: Path, engine: str) -> None:
    """Types that no operator takes are written as they came, and the manifest tells them."""
    table = table_of({n: t for n, t in WIDE.items() if form == "arrow" or not _beyond_parquet(t)})
    with pa.ipc.new_file(tmp_path / "in.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=15)
    source = Source(path=str(tmp_path / "in.arrow"), partition_size=2_000)
    output = Output(path=str(tmp_path / "out"), files=3, seed=3, format=form)
    run = Run(min_partition_size=1, exchange=exchange)
    run_stages(make_request(source, as_node(table.column_names), output, run, engine), plugins=[Report()])

    found = rows_written(tmp_path / "out", form)
    assert found["number"].to_pylist() != table["number"].to_pylist()
    found = found.take(pa.compute.sort_indices(found["number"]))
    assert found.to_pydict() == table.to_pydict()
    said = {name: column.dtype for name, column in Workflow.load(tmp_path / "out").output_schema.items()}
    told = {"null": pa.string(), "list of null": pa.list_(pa.string())}  # where no value says anything else
    assert said == {"number": pa.int64()} | {name: told.get(name, table[name].type) for name in said if name in WIDE}
    assert (tmp_path / "out" / "_report.html").exists()


def _beyond_parquet(dtype: pa.DataType) -> bool:
    """Parquet has no durations."""
    return "duration" in str(dtype)


@pytest.mark.parametrize("form", ["parquet", "arrow", "orc"])
def test_structs_and_maps_are_in_files_of_each_format(form: str, tmp_path: Path, engine: str) -> None:
    types = {
        "struct": pa.struct([("a", pa.int64()), ("b, c", pa.list_(pa.string()))]),
        "map": pa.map_(pa.string(), pa.float64()),
        "small": pa.decimal128(5, 2),
        "bytes": pa.binary(),
    }
    table = table_of(types)
    pq.write_table(table, tmp_path / "in.parquet")
    source = Source(path=str(tmp_path / "in.parquet"))
    output = Output(path=str(tmp_path / "out"), files=1, shuffle="none", format=form)
    run_stages(make_request(source, as_node(table.column_names), output, Run(), engine))
    assert rows_written(tmp_path / "out", form).to_pydict() == table.to_pydict()
    assert Workflow.load(tmp_path / "out").output_schema.to_arrow().equals(table.schema)


@pytest.mark.parametrize("dtype", [pa.binary(), pa.binary(3), pa.time64("us")], ids=str)
def test_rows_are_brought_together_and_sorted_by_bytes_and_times_of_day(
    dtype: pa.DataType, tmp_path: Path, engine: str
) -> None:
    table = table_of({"key": dtype})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=7)
    source = Source(path=str(tmp_path / "in.parquet"), partition_size=300)
    output = Output(path=str(tmp_path / "out"), files=3, shuffle="key", keys=["key"], sort_by=["number"])
    run_stages(make_request(source, as_node(table.column_names), output, Run(min_partition_size=1), engine))
    found, runs = rows_written(tmp_path / "out", "parquet").to_pylist(), []
    for row in found:
        if not runs or runs[-1][0]["key"] != row["key"]:
            runs.append([])
        runs[-1].append(row)
    assert sorted(row["number"] for row in found) == list(range(ROWS))
    assert len(runs) == len(set(table["key"].to_pylist()))
    assert all([row["number"] for row in run] == sorted(row["number"] for row in run) for run in runs)


@pytest.mark.promise("Operators take numbers, texts, times, bools and lists of these")
@pytest.mark.parametrize(
    ("dtype", "make"),
    [
        (pa.time64("us"), lambda n: time(0, 0, n)),
        (pa.time32("ms"), lambda n: time(0, 0, n)),
        (pa.date64(), lambda n: date(1970, 1, 1 + n)),
        (pa.duration("us"), lambda n: timedelta(seconds=n)),
    ],
    ids=["time64", "time32", "date64", "duration"],
)
def test_operators_take_times_of_all_types(dtype: pa.DataType, make: Any, engine: str, tmp_path: Path) -> None:
    table = pa.table({"k": [1, 1, 2, 2], "t": pa.array([make(9), None, make(2), make(9)], dtype)})

    def made(node: Any, on: str = engine) -> dict[str, list[Any]]:
        out = Workflow(as_node(node)).fit_transform(Dataset(table, engine=on))
        out.to_parquet(str(tmp_path / "out"), files=1, shuffle="none", format="arrow", on_existing="replace")
        return rows_written(tmp_path / "out", "arrow").to_pydict()

    assert made(["t"] >> ops.Categorify()) == {"t": [3, 1, 4, 3]}
    assert made(["t"] >> ops.FillMissing(make(4))) == {"t": [make(9), make(4), make(2), make(9)]}
    assert made(["t", "k"] >> ops.Filter("t is not None")) == {"t": [make(9), make(2), make(9)], "k": [1, 2, 2]}
    hashed = made(["t"] >> ops.HashBucket(1000))["t"]
    assert hashed[0] == hashed[3] != hashed[2]
    assert hashed == made(["t"] >> ops.HashBucket(1000), "pandas")["t"]
    joined = made(["t"] >> ops.JoinGroupby(cont_cols=["k"], stats=["count", "max"]))
    assert joined == {"t_count": [2, 1, 1, 2], "t_k_max": [2, 1, 2, 2]}


@pytest.mark.parametrize("name", WIDE)
def test_rows_of_a_key_list_values_of_any_type(name: str, engine: str, tmp_path: Path) -> None:
    table = table_of({"c": WIDE[name]}).append_column("k", pa.array([i % 7 for i in range(ROWS)]))
    aggs = ["first", "last", "count", *([] if pa.types.is_list(WIDE[name]) else ["list"])]
    source = Dataset(table, engine=engine).shuffle_by_keys("k", sort_by="number")
    out = Workflow(["k", "c"] >> ops.Groupby(["k"], aggs={"c": aggs})).fit_transform(source)
    out.to_parquet(str(tmp_path / "out"), files=1, format="arrow")
    rows = {row["k"]: row for row in rows_written(tmp_path / "out", "arrow").to_pylist()}
    for key in range(7):
        expected = table["c"].to_pylist()[key::7]
        assert rows[key]["c_first"] == expected[0]
        assert rows[key]["c_last"] == expected[-1]
        assert rows[key]["c_count"] == sum(v is not None for v in expected)
        assert rows[key].get("c_list", expected) == expected


def test_what_cudf_cannot_hold_is_told(engine: str) -> None:
    table = pa.table({"x": [1], "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))})
    source = Dataset(table, engine=engine)
    if engine == "pandas":
        assert source.head().to_dict("list") == {"x": [1], "m": [[("k", 1)]]}
        return
    with pytest.raises(DataError, match="cuDF frames cannot hold column 'm'"):
        source.head()
    made = Workflow(as_node(["x", "m"])).fit_transform(source).head()  # what stands for it
    assert made["m"].to_arrow().to_pylist() == [[{"0": "k", "1": 1}]]
