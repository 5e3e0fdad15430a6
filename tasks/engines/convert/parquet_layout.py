"""What stands between the values of a Parquet file: headers of pages, definition levels, statistics and the footer.

Source: https://github.com/apache/parquet-format (parquet.thrift, Encodings.md)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.engines.convert.thrift import (
    BINARY,
    I16,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
    Struct,
    decode_struct,
    encode_number,
    encode_signed,
    encode_struct,
)

MAGIC = b"PAR1"
CREATED_BY = b"rowmill"

# Encodings of Parquet
PLAIN = 0
RLE = 3
DELTA_BINARY_PACKED = 5
RLE_DICTIONARY = 8

# Kinds of pages
DATA_PAGE = 0
DICTIONARY_PAGE = 2

UNCOMPRESSED = 0


@dataclass(frozen=True)
class Chunk:
    """A column in a row group, as the footer describes it: places in the file, sizes in bytes, counts of values.

    `low` and `high` are the least and the greatest value in the bytes of the encoding PLAIN; None if they are unknown.
    """

    encoding: int
    start: int
    data_start: int
    nbytes: int
    rows: int
    nulls: int
    low: bytes | None
    high: bytes | None

    @property
    def has_dictionary(self) -> bool:
        return self.data_start > self.start

    def moved(self, nbytes: int) -> Chunk:
        """Return the chunk that stands so many bytes later in the file."""
        return replace(self, start=self.start + nbytes, data_start=self.data_start + nbytes)


def make_data_page_header(nbytes: int, rows: int, encoding: int) -> bytes:
    """Make the header of a page of so many bytes behind it, which has `rows` values, nulls counted.

    Put together by hand, since files have many pages.

    >>> decode_struct(make_data_page_header(300, 7, PLAIN)) == {
    ...     1: (I32, DATA_PAGE), 2: (I32, 300), 3: (I32, 300),
    ...     5: (STRUCT, {1: (I32, 7), 2: (I32, PLAIN), 3: (I32, RLE), 4: (I32, RLE)}),
    ... }
    True
    """
    size = encode_signed(nbytes)
    values = encode_signed(rows)
    return b"".join((b"\x15\x00\x15", size, b"\x15", size, b"\x2c\x15", values, _DATA_PAGE_ENDS[encoding]))


_DATA_PAGE_ENDS = {
    encoding: bytes([0x15, 2 * encoding, 0x15, 2 * RLE, 0x15, 2 * RLE, 0, 0])
    for encoding in (PLAIN, DELTA_BINARY_PACKED, RLE_DICTIONARY)
}


def make_dictionary_page_header(nbytes: int, values: int) -> bytes:
    """Make the header of a dictionary of so many bytes; its values are in their order."""
    dictionary: Struct = {1: (I32, values), 2: (I32, PLAIN), 3: (TRUE, True)}
    return encode_struct({1: (I32, DICTIONARY_PAGE), 2: (I32, nbytes), 3: (I32, nbytes), 7: (STRUCT, dictionary)})


@lru_cache(maxsize=4096)
def make_page_head(body: int, rows: int, count: int, encoding: int, index_bits: int) -> tuple[bytes, int, bytes]:
    """Make what stands before the `body` bytes of the values of a data page, `count` of whose rows are not null.

    It is the header with the beginning of the definition levels; the bytes of a bit for each row, 0 without nulls; and
    what stands between them and the values, which are indices of so many bits into a dictionary, or not (0).
    """
    prefix = bytes([index_bits]) + _make_packed_run_head(count) if index_bits else b""
    if count == rows:
        bits = 0
        run = encode_number(rows << 1) + b"\x01"  # a run of ones
    else:
        bits = packed_bytes(rows, 1)
        run = _make_packed_run_head(rows)
    levels = (len(run) + bits).to_bytes(4, "little") + run
    head = make_data_page_header(len(levels) + bits + len(prefix) + body, rows, encoding) + levels
    return (head, bits, prefix) if bits else (head + prefix, 0, b"")


def _make_packed_run_head(values: int) -> bytes:
    """Make what stands before a run of numbers of a fixed number of bits, which are stored in eights."""
    return encode_number((values + 7) // 8 << 1 | 1)


def packed_bytes(values: int, bits: int) -> int:
    """Compute the bytes of numbers of so many bits, in eights.

    >>> packed_bytes(8, 3), packed_bytes(9, 3)
    (3, 6)
    """
    return (values + 7) // 8 * bits


def make_footer(schema: pa.Schema, row_groups: Sequence[Sequence[Chunk]]) -> bytes:
    """Make the end of a file, from behind its last row group on: the footer, its length and the magic bytes.

    Columns have a fixed width. `ARROW:schema` and the metadata of the schema are among its keys.
    """
    footer = dict(_make_empty_footer(schema))
    groups = [_describe_row_group(schema, number, chunks) for number, chunks in enumerate(row_groups)]
    footer[3] = I64, sum(chunks[0].rows for chunks in row_groups)
    footer[4] = LIST, (STRUCT, groups)
    footer[6] = BINARY, CREATED_BY
    encoded = encode_struct(footer)
    return encoded + len(encoded).to_bytes(4, "little") + MAGIC


@lru_cache(maxsize=16)
def _make_empty_footer(schema: pa.Schema) -> Struct:
    """Make the footer of a file without rows, as PyArrow writes it: it knows Parquet's type for each of Arrow's."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema, store_schema=True).close()
    content = sink.getvalue().to_pybytes()
    length = int.from_bytes(content[-8:-4], "little")
    return decode_struct(content[-8 - length : -8])


def _describe_row_group(schema: pa.Schema, number: int, chunks: Sequence[Chunk]) -> Struct:
    nbytes = sum(chunk.nbytes for chunk in chunks)
    columns = [_describe_chunk(field, chunk) for field, chunk in zip(schema, chunks, strict=True)]
    return {
        1: (LIST, (STRUCT, columns)),
        2: (I64, nbytes),
        3: (I64, chunks[0].rows),
        5: (I64, chunks[0].start),
        6: (I64, nbytes),
        7: (I16, number % (1 << 15)),  # readers do not use it, and it has 16 bits
    }


def _describe_chunk(field: pa.Field, chunk: Chunk) -> Struct:
    encodings = [RLE, chunk.encoding]
    if chunk.has_dictionary:
        encodings.append(PLAIN)
    column: Struct = {
        1: (I32, physical_type(field.type)),
        2: (LIST, (I32, encodings)),
        3: (LIST, (BINARY, [field.name.encode()])),
        4: (I32, UNCOMPRESSED),
        5: (I64, chunk.rows),
        6: (I64, chunk.nbytes),
        7: (I64, chunk.nbytes),
        9: (I64, chunk.data_start),
        12: (STRUCT, _describe_statistics(chunk)),
    }
    if chunk.has_dictionary:
        column[11] = I64, chunk.start
    return {2: (I64, 0), 3: (STRUCT, column)}


def _describe_statistics(chunk: Chunk) -> Struct:
    statistics: Struct = {3: (I64, chunk.nulls)}
    if chunk.low is not None and chunk.high is not None:
        statistics[5] = BINARY, chunk.high
        statistics[6] = BINARY, chunk.low
    return statistics


def physical_type(dtype: pa.DataType) -> int:
    """Return the number of Parquet's type that stores the type: BOOLEAN, INT32, INT64, FLOAT or DOUBLE.

    >>> [physical_type(t) for t in (pa.bool_(), pa.int8(), pa.timestamp("us"), pa.float32(), pa.float64())]
    [0, 1, 2, 4, 5]
    """
    if pa.types.is_boolean(dtype):
        return 0
    if pa.types.is_float32(dtype):
        return 4
    if pa.types.is_float64(dtype):
        return 5
    return 2 if dtype.bit_width == 64 else 1
