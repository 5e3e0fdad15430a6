"""Parquet files of both engines: small and the same every time, in the encodings of one rule."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import engines
from tasks.core.schema import Schema
from tasks.core.settings import Output
from tasks.engines.convert.encodings import choose_encoding

ROWS = 25_000
GROUP = 10_000
WHOLE = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
RANDOM = np.random.default_rng(20261129)


def random_numbers(dtype: str, low: int, high: int) -> np.ndarray:
    return RANDOM.integers(low, high, ROWS, dtype=dtype, endpoint=True)


def make_columns() -> dict[str, pa.Array]:
    """Columns of all widths and ranges; 2000-01-01 is 946,684,800 seconds behind 1970."""
    columns: dict[str, Any] = {}
    for dtype in WHOLE:
        limits = np.iinfo(dtype)
        columns[f"{dtype} of all values"] = random_numbers(dtype, limits.min, limits.max)
        columns[f"{dtype} of few values"] = random_numbers(dtype, limits.max - 20, limits.max)
        columns[f"{dtype} of a range"] = random_numbers(dtype, limits.min, limits.min + min(limits.max, 10**6))
    columns["sorted"] = np.cumsum(RANDOM.integers(0, 10**6, ROWS))
    columns["one value"] = np.full(ROWS, -7)
    columns["float32"] = RANDOM.normal(size=ROWS).astype(np.float32)
    columns["float64"] = RANDOM.normal(size=ROWS)
    columns["zeros"] = np.where(RANDOM.random(ROWS) < 0.5, 0.0, -0.0)
    columns["boolean"] = RANDOM.random(ROWS) < 0.3
    arrays = {name: pa.array(values) for name, values in columns.items()}
    seconds = pa.array(946_684_800 + RANDOM.integers(0, 86_400, ROWS))
    for unit, factor in {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}.items():
        times = pa.compute.multiply(seconds, factor)
        arrays[f"time in {unit}"] = times.cast(pa.timestamp(unit, "UTC"))
    arrays["date"] = pa.array(RANDOM.integers(0, 20_000, ROWS, dtype=np.int32)).cast(pa.date32())
    return arrays


def with_nulls(values: pa.Array) -> pa.Array:
    """A fifth of the rows is null, and all of rows 3,000 to 8,000."""
    rows = np.arange(ROWS)
    nulls = (RANDOM.random(ROWS) < 0.2) | ((rows >= 3_000) & (rows < 8_000))
    return pa.compute.if_else(pa.array(nulls), pa.scalar(None, values.type), values)


COLUMNS = make_columns()
TABLE = pa.table(
    {
        **COLUMNS,
        **{f"{name}, nulls": with_nulls(values) for name, values in COLUMNS.items()},
        "null": pa.nulls(ROWS, pa.int64()),
    }
)


@pytest.fixture
def small_pages(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of several pages, of which one has nulls alone."""
    if engine == "cudf":
        monkeypatch.setattr("tasks.engines.gpu.parquet_encoder.PAGE_ROWS", 1_500)


def write(engine: str, path: Path, *tables: pa.Table, **output: Any) -> Path:
    """Write tables as runs of one file."""
    kernels = engines.engine(engine)
    writing = SimpleNamespace(
        schema=Schema.from_arrow(tables[0].schema),
        output=Output(path="x", **{"row_group_size": GROUP, **output}),
        dictionary_columns=[],
    )
    kernels.write_runs((engines.table_on(engine, table) for table in tables), str(path), writing)
    return path


def encoding_of(path: Path, column: str) -> str:
    metadata = pq.read_metadata(path)
    encodings = metadata.row_group(0).column(metadata.schema.names.index(column)).encodings
    if "RLE_DICTIONARY" in encodings:
        return "dictionary"
    if "DELTA_BINARY_PACKED" in encodings:
        return "delta"
    return "split" if "BYTE_STREAM_SPLIT" in encodings else "plain"


def stored(table: pa.Table) -> pa.Table:
    """The table with the types of Parquet, which has no times in seconds."""
    types = [pa.timestamp("ms", t.tz) if t == pa.timestamp("s", "UTC") else t for t in table.schema.types]
    return table.cast(pa.schema(list(zip(table.column_names, types, strict=True))))


@pytest.mark.promise("Parquet files hold the exact values and types in every encoding")
@pytest.mark.parametrize("compression", ["auto", "none", "zstd"])
def test_values_and_statistics(engine: str, small_pages: None, tmp_path: Path, compression: str) -> None:
    path = write(engine, tmp_path / "a.parquet", TABLE, compression=compression)
    pq.write_table(TABLE, tmp_path / "b.parquet", row_group_size=GROUP)
    assert pq.read_table(path).equals(stored(TABLE))
    ours = pq.read_metadata(path)
    theirs = pq.read_metadata(tmp_path / "b.parquet")
    assert ours.schema.equals(theirs.schema)
    for group in range(3):
        for column in range(ours.num_columns):
            found = ours.row_group(group).column(column).statistics
            wanted = theirs.row_group(group).column(column).statistics
            assert found.null_count == wanted.null_count
            assert repr((found.min, found.max)) == repr((wanted.min, wanted.max))  # zeros have a sign


@pytest.mark.promise("Parquet files can be read by other tools")
def test_others_read_the_files(engine: str, small_pages: None, tmp_path: Path) -> None:
    path = write(engine, tmp_path / "a.parquet", TABLE)
    pq.write_table(TABLE, tmp_path / "b.parquet", row_group_size=GROUP)
    assert pl.read_parquet(path).equals(pl.read_parquet(tmp_path / "b.parquet"), null_equal=True)
    ours, theirs = (f"(from '{tmp_path / name}.parquet')" for name in "ab")
    assert duckdb.sql(f"({ours} except all {theirs}) union all ({theirs} except all {ours})").fetchall() == []


@pytest.mark.gpu
def test_cudf_reads_the_files(small_pages: None, tmp_path: Path) -> None:
    import cudf

    path = write("cudf", tmp_path / "a.parquet", TABLE)
    wanted = pq.read_table(path)
    for name in TABLE.column_names:
        values = cudf.read_parquet(path, columns=[name])[name].to_arrow()
        assert values.cast(wanted[name].type).equals(wanted[name].combine_chunks()), name


@pytest.mark.parametrize(
    ("column", "encoding"),
    [
        ("int64 of few values", "dictionary"),
        ("uint64 of few values, nulls", "dictionary"),
        ("int64 of a range", "delta"),
        ("uint32 of a range, nulls", "delta"),
        ("int64 of all values", "plain"),
        ("sorted", "delta"),
        ("time in us", "delta"),
        ("date", "delta"),  # 20,000 values would need a dictionary larger than what it saves of 10,000 rows
        ("float32", "plain"),
        ("boolean", "plain"),
    ],
)
def test_the_encodings(engine: str, tmp_path: Path, column: str, encoding: str) -> None:
    assert encoding_of(write(engine, tmp_path / "a", TABLE.select([column])), column) == encoding


@pytest.mark.promise("Files with a codec that is given have plain numbers and times")
@pytest.mark.parametrize("column", ["int64 of a range", "time in us", "date"])
def test_with_a_codec_all_readers_know_the_encodings(engine: str, tmp_path: Path, column: str) -> None:
    assert encoding_of(write(engine, tmp_path / "a", TABLE.select([column]), compression="snappy"), column) == "plain"


@pytest.mark.promise("with zstd, floats are stored as BYTE_STREAM_SPLIT")
def test_zstd_gets_bytes_of_floats_apart(engine: str, tmp_path: Path) -> None:
    path = write(engine, tmp_path / "a", TABLE.select(["float32", "int64 of a range"]), compression="zstd")
    assert encoding_of(path, "float32") == "split"


def test_the_same_rows_have_the_same_bytes(engine: str, small_pages: None, tmp_path: Path) -> None:
    wanted = write(engine, tmp_path / "a", TABLE).read_bytes()
    for _ in range(4):
        assert write(engine, tmp_path / "b", TABLE).read_bytes() == wanted
    assert write(engine, tmp_path / "b", TABLE.slice(0, 2 * GROUP), TABLE.slice(2 * GROUP)).read_bytes() == wanted


@pytest.mark.parametrize(
    ("rows", "low", "high", "width", "encoding"),
    [
        (1_000_000, 0, 9, 8, "dictionary"),
        (10_000_000, 0, 131_071, 8, "dictionary"),  # 1 MiB
        (10_000_000, 0, 131_072, 8, "delta"),
        (50, 0, 9, 8, "delta"),  # ten values of a dictionary are more than fifty indices save
        (1_000_000, 0, (1 << 54) - 1, 8, "delta"),  # 55 bits and 12 bytes for each 128
        (1_000_000, 0, (1 << 55) - 1, 8, "plain"),
        (1_000_000, -(1 << 63), (1 << 63) - 1, 8, "plain"),
        (1_000_000, 0, (1 << 64) - 1, 8, "plain"),
        (1_000_000, 0, (1 << 26) - 1, 4, "delta"),
        (1_000_000, 0, (1 << 27) - 1, 4, "plain"),
    ],
)
def test_the_rule(rows: int, low: int, high: int, width: int, encoding: str) -> None:
    assert choose_encoding(rows, low, high, width) == encoding


def test_not_a_number(engine: str, tmp_path: Path) -> None:
    """cuDF's columns hold nulls in their place; statistics leave both out."""
    table = pa.table({"x": pa.array([math.nan, 2.0, None, 1.0] * 2_000)})
    path = write(engine, tmp_path / "a", table)
    statistics = pq.read_metadata(path).row_group(0).column(0).statistics
    assert (statistics.min, statistics.max) == (1.0, 2.0)
