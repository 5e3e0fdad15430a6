"""What stands between the values of a Parquet file, put together by hand around values that numpy encodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.engines.convert import parquet_layout as layout
from tasks.engines.convert import thrift
from tasks.engines.convert.parquet_layout import Chunk


def footer_of(path: Path) -> bytes:
    content = path.read_bytes()
    length = int.from_bytes(content[-8:-4], "little")
    return content[-8 - length : -8]


@pytest.mark.parametrize("columns", [1, 40])
def test_a_footer_is_read_and_written_as_it_was(tmp_path: Path, columns: int) -> None:
    values = [1.5, None, -2.5]
    table = pa.table({f"column {number}": values for number in range(columns)} | {"lists": [[1], None, []]})
    pq.write_table(table, tmp_path / "a", row_group_size=2, write_page_index=True)
    footer = footer_of(tmp_path / "a")
    assert thrift.encode_struct(thrift.decode_struct(footer)) == footer


def test_fields_that_are_far_apart() -> None:
    fields: thrift.Struct = {
        1: (thrift.TRUE, True),
        2: (thrift.BYTE, 255),
        40: (thrift.I64, -(1 << 63)),
        41: (thrift.DOUBLE, bytes(8)),
        42: (thrift.LIST, (thrift.I32, list(range(20)))),
    }
    assert thrift.decode_struct(thrift.encode_struct(fields)) == fields


SCHEMA = pa.schema([pa.field("plain", pa.int64()), pa.field("small", pa.int32())], {"key": "value"})


def write_by_hand(path: Path) -> None:
    """Four rows: 10, null, 30, 40 as they are, and 7, 5, 7, 6 as indices of two bits into a dictionary of 5, 6, 7."""
    numbers = np.array([10, 30, 40]).tobytes()
    head, level_bytes, prefix = layout.make_page_head(len(numbers), 4, 3, layout.PLAIN, 0)
    assert (level_bytes, prefix) == (1, b"")
    plain = head + bytes([0b1101]) + numbers
    dictionary = np.array([5, 6, 7], np.int32).tobytes()
    indices = bytes([0b01_10_00_10, 0])  # eight indices, of which four are rows
    head, level_bytes, _ = layout.make_page_head(len(indices), 4, 4, layout.RLE_DICTIONARY, 2)
    assert level_bytes == 0
    dictionary = layout.make_dictionary_page_header(len(dictionary), 3) + dictionary
    small = dictionary + head + indices
    numbers_of = [np.int64(10).tobytes(), np.int64(40).tobytes()]
    chunks = [
        Chunk(layout.PLAIN, 4, 4, len(plain), 4, 1, *numbers_of),
        Chunk(layout.RLE_DICTIONARY, 0, len(dictionary), len(small), 4, 0, None, None).moved(4 + len(plain)),
    ]
    path.write_bytes(layout.MAGIC + plain + small + layout.make_footer(SCHEMA, [chunks]))


def test_a_file_by_hand(tmp_path: Path) -> None:
    write_by_hand(tmp_path / "a")
    table = pq.read_table(tmp_path / "a")
    assert table.to_pydict() == {"plain": [10, None, 30, 40], "small": [7, 5, 7, 6]}
    assert table.schema.equals(SCHEMA, check_metadata=True)
    metadata = pq.read_metadata(tmp_path / "a")
    assert (metadata.num_rows, metadata.created_by) == (4, "rowmill")
    statistics = metadata.row_group(0).column(0).statistics
    assert (statistics.min, statistics.max, statistics.null_count) == (10, 40, 1)
    assert not metadata.row_group(0).column(1).statistics.has_min_max


def test_a_file_without_rows(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(layout.MAGIC + layout.make_footer(SCHEMA, []))
    assert pq.read_table(tmp_path / "a").equals(SCHEMA.empty_table())
