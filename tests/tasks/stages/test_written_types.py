"""The types of columns in written files: those of `output_schema`, or those that the manifest says of the format."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tasks import ops
from tasks.core.schema import Schema
from tasks.core.settings import Output, Run, Source
from tasks.dataset import Dataset
from tasks.errors import DataError
from tasks.graph.node import as_node
from tasks.job.request import make_request
from tasks.manifest import Manifest
from tasks.workflow import Workflow
from tests.stages import run_stages

MOMENT = datetime(2020, 2, 29, 1, 2, 3)
TYPES: list[tuple[pa.DataType, Any]] = [
    *((dtype, 7) for dtype in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    *((dtype, 7) for dtype in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
    (pa.float16(), 1.5), (pa.float32(), 1.5), (pa.float64(), 1.5), (pa.bool_(), True), (pa.string(), "é"),
    (pa.large_string(), "é"), (pa.binary(), b"a"), (pa.binary(3), b"abc"),
    (pa.decimal32(7, 2), Decimal("1.25")), (pa.decimal64(15, 2), Decimal("1.25")),
    (pa.decimal128(30, 2), Decimal("1.25")), (pa.decimal256(50, 2), Decimal("1.25")),
    (pa.date32(), date(2020, 2, 29)), (pa.date64(), date(2020, 2, 29)),
    *((pa.time32(unit), time(1, 2, 3)) for unit in ("s", "ms")),
    *((pa.time64(unit), time(1, 2, 3)) for unit in ("us", "ns")),
    *((pa.timestamp(unit), MOMENT) for unit in ("s", "ms", "us", "ns")),
    *((pa.timestamp(unit, zone), MOMENT) for unit in ("s", "us") for zone in ("UTC", "Europe/Berlin", "+05:30")),
    *((pa.duration(unit), timedelta(seconds=7)) for unit in ("s", "us")),
    (pa.dictionary(pa.int8(), pa.string()), "a"),
]  # fmt: skip
NESTED = [(pa.list_(dtype), [value, None]) for dtype, value in TYPES if dtype != TYPES[-1][0]]
NESTED += [(pa.struct([("a", dtype)]), {"a": value}) for dtype, value in TYPES if pa.types.is_temporal(dtype)]
NESTED += [(pa.map_(pa.string(), pa.time32("s")), [("k", time(1, 2, 3))])]
LACKED = {  # what a format cannot hold, which is refused before a row is read
    "orc": ("uint", "time32", "time64", "duration", "decimal256", "decimal128(50"),
    "csv": ("list", "struct", "map", "binary", "duration", "decimal256"),
}


def columns_of(form: str) -> pa.Table:
    """A column of each type that files of the format hold, with two values and a null."""
    held = [(t, v) for t, v in [*TYPES, *NESTED] if not any(word in str(t) for word in LACKED.get(form, ()))]
    return pa.table({str(t): pa.array([v, None, v], t) for t, v in held})


@pytest.mark.promise("times of whole seconds are written in milliseconds, dates in milliseconds as days")
@pytest.mark.promise("The schema in the manifest says what the files hold")
@pytest.mark.parametrize("form", ["parquet", "arrow", "orc"])
@pytest.mark.parametrize("how", ["job", "python"])
def test_files_hold_the_types_that_are_said(how: str, form: str, tmp_path: Path, engine: str) -> None:
    table, out = columns_of(form), tmp_path / "out"
    assert table.num_columns > 30
    if how == "job":
        with pa.ipc.new_file(tmp_path / "in.arrow", table.schema) as file:
            file.write_table(table)
        output = Output(path=str(out), files=1, shuffle="none", format=form)
        source = Source(path=str(tmp_path / "in.arrow"))
        run_stages(make_request(source, as_node(table.column_names), output, Run(), engine))
        workflow = Workflow.load(out)
    else:
        workflow = Workflow(as_node(table.column_names))
        made = workflow.fit_transform(Dataset(table, engine=engine))
        made.to_parquet(str(out), files=1, shuffle="none", format=form)
    (part,) = out.glob("part-*")
    found = ds.dataset(part, format={"arrow": "ipc"}.get(form, form)).to_table()
    said = Schema.from_json(Manifest.load(out).data["schema"]).to_arrow()
    promised = workflow.output_schema.to_arrow()
    assert {n: (found.schema.field(n).type, said.field(n).type) for n in said.names
            if found.schema.field(n).type != said.field(n).type} == {}  # fmt: skip
    if form != "orc":
        assert promised.equals(said)
    for name in table.column_names:
        same = found[name].cast(promised.field(name).type)
        assert same.to_pylist() == table[name].cast(promised.field(name).type).to_pylist(), name


def test_the_schema_says_what_files_hold(tmp_path: Path, engine: str) -> None:
    """Parquet has no times of whole seconds and no dates in milliseconds, ORC nanoseconds alone."""
    day = date(2020, 2, 29)
    table = pa.table(
        {
            "s": pa.array([MOMENT, None], pa.timestamp("s")),
            "z": pa.array([MOMENT, None], pa.timestamp("us", "+05:30")),
            "d": pa.array([day, None], pa.date64()),
            "l": pa.array([[MOMENT], None], pa.list_(pa.timestamp("s"))),
            "b": pa.array([b"abc", None], pa.binary(3)),
        }
    )
    workflow = Workflow(as_node(table.column_names)).fit(Dataset(table, engine=engine))
    assert [str(c.dtype) for c in workflow.output_schema.columns] == [
        "timestamp[ms]", "timestamp[us, tz=+05:30]", "date32[day]", "list<item: timestamp[ms]>",
        "fixed_size_binary[3]",
    ]  # fmt: skip
    frame = workflow.transform(table)
    assert frame.schema.equals(workflow.output_schema.to_arrow())
    manifest = workflow.transform(Dataset(table, engine=engine)).to_parquet(str(tmp_path / "o"), files=1, format="orc")
    assert [c["dtype"] for c in manifest.data["schema"]] == [
        "timestamp[ns]", "timestamp[ns, tz=UTC]", "date32", "list<timestamp[ns]>", "binary"
    ]  # fmt: skip


def test_expressions_count_in_the_units_of_their_columns(engine: str) -> None:
    """What is written in milliseconds is computed with in seconds."""
    table = pa.table({"t": pa.array([MOMENT, None], pa.timestamp("s"))})
    nodes = ["t"] >> ops.Lambda(expression="cast(_, 'int64')", name="n")
    nodes += ["t"] >> ops.Lambda(expression="cast(cast(_, 'timestamp[ns]'), 'timestamp[s]')")
    workflow = Workflow(nodes).fit(Dataset(table, engine=engine))
    found = workflow.transform(table)
    assert found["n"].to_pylist() == [1582938123, None]
    assert found["t"].type == pa.timestamp("ms")
    assert found["t"].to_pylist() == [MOMENT, None]


def test_times_beyond_what_files_hold_are_named(tmp_path: Path, engine: str) -> None:
    table = pa.table({"t": pa.array([1, 2**60], pa.timestamp("s"))})
    made = Workflow(as_node(["t"])).fit_transform(Dataset(table, engine=engine))
    with pytest.raises(DataError, match=r"column 't' has times beyond timestamp\[ms\]"):
        made.to_parquet(str(tmp_path / "out"), files=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dtype", [pa.timestamp("s"), pa.time32("s"), pa.date64()], ids=str)
def test_a_source_of_parquet_is_what_was_written(dtype: pa.DataType, tmp_path: Path, engine: str) -> None:
    """An output that is read again has the types that it says."""
    table = pa.table(
        {"x": pa.array([0, 86_400_000], pa.int64()).cast(pa.int32() if dtype.bit_width == 32 else pa.int64())}
    )
    table = pa.table(
        {"x": table["x"].combine_chunks().view(dtype) if dtype != pa.time32("s") else pa.array([0, 9], dtype)}
    )
    pq.write_table(table, tmp_path / "in.parquet")
    source = Dataset(str(tmp_path / "in.parquet"), engine=engine)
    workflow = Workflow(as_node(["x"]))
    workflow.fit_transform(source).to_parquet(str(tmp_path / "out"), files=1)
    (part,) = (tmp_path / "out").glob("part-*.parquet")
    assert pq.read_schema(part).field("x").type == workflow.output_schema["x"].dtype == source.schema["x"].dtype
