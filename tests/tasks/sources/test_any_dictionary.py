"""Columns whose storage is unusual: dictionaries with a null or a value twice, times of several units, Avro types that
grow."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from tasks.core.settings import Source
from tasks.dataset import Dataset
from tasks.errors import DataError
from tasks.ops import Categorify, DataStats
from tasks.sources.planning import make_plan
from tasks.sources.reader import read
from tasks.workflow import Workflow
from tests.frames import to_list

TEXTS = ["a", None, "b", "b"]
WITH_NULL = pa.array(TEXTS).dictionary_encode(null_encoding="encode")
TWICE = pa.DictionaryArray.from_arrays(pa.array([0, None, 1, 2]), pa.array(["a", "b", "b"]))


@pytest.mark.parametrize("values", [WITH_NULL, TWICE], ids=["null", "twice"])
@pytest.mark.parametrize("kind", ["file", "frame", "chunks"])
def test_a_dictionary_counts_by_its_values(engine: str, tmp_path: Path, values: pa.Array, kind: str) -> None:
    table = pa.table({"x": pa.chunked_array([values.slice(0, 2), values.slice(2)]) if kind == "chunks" else values})
    source = table
    if kind == "file":
        feather.write_feather(table, source := tmp_path / "in.arrow")
    plain = pa.table({"x": TEXTS})
    for options in ({}, {"freq_threshold": 2}):
        fitted = Workflow(["x"] >> DataStats() >> Categorify(**options)).fit(Dataset(source, engine=engine))
        expected = Workflow(["x"] >> DataStats() >> Categorify(**options)).fit(Dataset(plain, engine=engine))
        assert fitted.embeddings() == expected.embeddings()
        rows = to_list(expected.transform(Dataset(plain, engine=engine)).head()["x"])
        assert to_list(fitted.transform(Dataset(source, engine=engine)).head()["x"]) == rows
        assert to_list(expected.transform(Dataset(source, engine=engine)).head()["x"]) == rows
        assert expected.transform(table)["x"].to_pylist() == rows


@pytest.mark.parametrize("kind", ["timestamp", "duration"])
def test_the_number_of_a_time_is_not_taken_whatever_its_unit(engine: str, tmp_path: Path, kind: str) -> None:
    for name, unit, number in (("a", "us", 5_000_000), ("b", "ms", 5_000)):
        dtype = pa.timestamp(unit) if kind == "timestamp" else pa.duration(unit)
        pq.write_table(pa.table({"t": pa.array([number], dtype)}), tmp_path / f"{name}.parquet")
    for schema in ({"t": "int64"}, {"t": "float64"}, *([{"t": "string"}] if kind == "duration" else [])):
        with pytest.raises(DataError, match="the number of a time depends on its unit"):
            list(Dataset(tmp_path, engine=engine, schema=schema).to_iter())
    if kind == "timestamp":  # without a schema they are united; durations of two units are an error
        assert len({str(value) for value in to_list(Dataset(tmp_path, engine=engine).head()["t"])}) == 1


def written(folder: Path, **files: tuple[Any, list[Any]]) -> None:
    for name, (dtype, values) in files.items():
        record = {"type": "record", "name": "r", "fields": [{"name": "x", "type": dtype}]}
        with (folder / f"{name}.avro").open("wb") as file:
            fastavro.writer(file, record, [{"x": value} for value in values])


GROWING = {
    "int long": ("int", [1], "long", [2**40], [1, 2**40]),
    "float double": ("float", [1.5], "double", [0.1], [1.5, 0.1]),
    "long double": ("long", [7], "double", [0.5], [7.0, 0.5]),
    "null long": ("null", [None], "long", [2], [None, 2]),
    "lists": ({"type": "array", "items": "int"}, [[1]], {"type": "array", "items": "long"}, [[2**40]], [[1], [2**40]]),
}


@pytest.mark.parametrize("case", GROWING)
def test_avro_types_grow_from_one_file_to_the_next(engine: str, tmp_path: Path, case: str) -> None:
    before, old, after, new, expected = GROWING[case]
    written(tmp_path, a=(before, old), b=(after, new))
    assert to_list(Dataset(tmp_path, engine=engine).head()["x"]) == expected


def test_avro_texts_beside_numbers_and_dates_beside_times(engine: str, tmp_path: Path) -> None:
    written(tmp_path, a=("long", [7]), b=(["long", "string"], ["q"]))
    assert to_list(Dataset(tmp_path, engine=engine, schema={"x": "string"}).head()["x"]) == ["7", "q"]
    date, moment = (
        {"type": kind, "logicalType": name} for kind, name in (("int", "date"), ("long", "timestamp-micros"))
    )
    noon = datetime(2026, 11, 22, 12, tzinfo=UTC)
    written(tmp_path, a=(date, [noon.date()]), b=(moment, [noon]))
    times = to_list(Dataset(tmp_path, engine=engine).head()["x"])
    assert times == [noon.replace(hour=0), noon]


@pytest.mark.parametrize("format", ["arrow", "orc", "avro"])
def test_rows_are_read_where_no_column_is(tmp_path: Path, format: str) -> None:
    if format == "avro":
        written(tmp_path, a=("int", [1, 2]), b=("long", [3]))
    else:
        write = {"arrow": feather.write_feather, "orc": orc.write_table}[format]
        for name, values in (("a", [1, 2]), ("b", [3])):
            write(pa.table({"x": values}), str(tmp_path / f"{name}.{format}"))
    plan = make_plan(Source(path=str(tmp_path)))
    assert sum(read(plan, number, []).num_rows for number in range(len(plan.partitions))) == 3


def test_a_whole_number_that_a_union_with_fractions_does_not_hold_is_named(tmp_path: Path) -> None:
    written(tmp_path, a=(["null", "long", "double"], [2**53 + 1, 0.5]))
    with pytest.raises(DataError, match="column 'x' has a number that float64 does not hold") as error:
        Dataset(tmp_path, engine="pandas").head()
    assert error.value.where == str(tmp_path / "a.avro")


@pytest.mark.parametrize(
    "values",
    [
        pa.array([pa.MonthDayNano([1, 2, 3])] * 2),
        pa.array([[pa.MonthDayNano([1, 2, 3])]] * 2, pa.list_(pa.month_day_nano_interval())),
        pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]),
        pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array([5])),
    ],
    ids=["interval", "list of intervals", "union", "run-end encoded"],
)
def test_a_type_that_parquet_lacks_is_refused_by_the_name_of_its_column(tmp_path: Path, values: pa.Array) -> None:
    table = pa.table({"x": [1, 2], "odd": values})
    feather.write_feather(table, tmp_path / "in.arrow")
    with pytest.raises(DataError, match=r"column 'odd' is of type .*\n.*in.arrow\n.*no type of Parquet"):
        make_plan(Source(path=str(tmp_path / "in.arrow")))
    frame = Dataset(table)
    with pytest.raises(DataError, match="column 'odd' is of type"):
        Workflow(["x", "odd"]).fit(frame).transform(frame).to_parquet(str(tmp_path / "out"))
    assert Workflow(["x"] >> DataStats()).fit(frame).transform(table)["x"].to_pylist() == [1, 2]
