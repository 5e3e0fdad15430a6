"""Columns that a codec does not make smaller are stored as they are, unless a codec is asked for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.schema import Schema
from tasks.core.settings import Output
from tasks.engines import engine

ROWS = 300_000
RANDOM = np.random.default_rng(0)
TABLE = pa.table(
    {
        "noise": RANDOM.random(ROWS, dtype=np.float32),
        "bit": RANDOM.integers(0, 2, ROWS, dtype=np.uint8),  # a bit in a Parquet file, too
        "sorted": np.arange(ROWS, dtype=np.int64),  # as differences, which repeat
        "repeated": np.repeat(RANDOM.random(ROWS // 10), 10),
        "noises": pa.FixedSizeListArray.from_arrays(RANDOM.random(2 * ROWS), 2).cast(pa.list_(pa.float64())),
    }
)


def stored(path: Path, *tables: pa.Table, **output: Any) -> dict[str, str]:
    """The codec of each column of the file's first row group, by its path inside the file."""
    schema = Schema.from_arrow(TABLE.schema)
    writing = SimpleNamespace(schema=schema, output=Output(path="x", **output), dictionary_columns=[])
    engine("pandas").write_runs(iter(tables), str(path), writing)
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {column.path_in_schema: column.compression for column in columns}


@pytest.mark.promise(
    "with compression: auto, Parquet columns of which snappy saves less than an eighth are stored uncompressed"
)
def test_noise_is_stored_as_it_is(tmp_path: Path) -> None:
    codecs = dict.fromkeys(("noise", "bit", "noises.list.element"), "UNCOMPRESSED")
    assert stored(tmp_path / "a", TABLE) == codecs | dict.fromkeys(("sorted", "repeated"), "SNAPPY")
    assert pq.read_table(tmp_path / "a").equals(TABLE)


def test_that_makes_the_file_smaller(tmp_path: Path) -> None:
    stored(tmp_path / "a", TABLE)
    pq.write_table(TABLE, tmp_path / "b", compression="snappy", use_dictionary=False)
    assert (tmp_path / "a").stat().st_size < 0.85 * (tmp_path / "b").stat().st_size


@pytest.mark.promise("a codec that is given is that of every column")
@pytest.mark.parametrize(
    ("codec", "name"),
    [("snappy", "SNAPPY"), ("lz4", "LZ4"), ("zstd", "ZSTD"), ("gzip", "GZIP"), ("none", "UNCOMPRESSED")],
)
def test_a_codec_that_is_given_holds_for_all_columns(tmp_path: Path, codec: str, name: str) -> None:
    assert set(stored(tmp_path / "a", TABLE, compression=codec).values()) == {name}


def test_few_rows_are_not_worth_a_sample(tmp_path: Path) -> None:
    assert set(stored(tmp_path / "a", TABLE.slice(0, 200_000)).values()) == {"SNAPPY"}
    assert set(stored(tmp_path / "b", TABLE, row_group_size=100_000).values()) == {"SNAPPY"}


def test_rows_that_come_in_several_tables_are_the_same_bytes(tmp_path: Path) -> None:
    rows = {"row_group_size": 270_000}
    at_once = stored(tmp_path / "a", TABLE, **rows)
    assert stored(tmp_path / "b", TABLE.slice(0, 270_000), TABLE.slice(270_000), **rows) == at_once
    assert "UNCOMPRESSED" in at_once.values()
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_file_of_no_table_is_a_file_of_no_rows(tmp_path: Path) -> None:
    writing = SimpleNamespace(schema=Schema.from_arrow(TABLE.schema), output=Output(path="x"), dictionary_columns=[])
    engine("pandas").write_runs(iter(()), str(tmp_path / "a"), writing)
    assert pq.read_metadata(tmp_path / "a").num_rows == 0
