"""Writes Arrow tables as Parquet, Arrow, CSV or ORC files. The bytes depend only on rows, their order and types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.orc as orc
import pyarrow.parquet as pq

from tasks.core.dtypes import dtype_name
from tasks.core.schema import Schema, make_file_metadata
from tasks.core.settings import Output
from tasks.errors import DataError

ROW_GROUP = 1_000_000
ORC_BATCH = 1024
FAST = ("snappy", "lz4")  # codecs that users choose for speed
LEAST_SAVING = 1 / 8  # of the bytes of a column: a fast codec that saves less costs more time than it is worth
# rows of the sample that shows the saving, and the runs of rows that the sample has
SAMPLE = 1 << 16
RUNS = 8


class FileWriting(Protocol):
    """How the files of an output are written."""

    @property
    def output(self) -> Output: ...
    @property
    def schema(self) -> Schema: ...
    @property
    def dictionary_columns(self) -> list[str]: ...


def conform(table: pa.Table, schema: Schema) -> pa.Table:
    """The columns of the schema in its exact types, without dictionary encoding.

    The order of a dictionary would depend on the order in which pieces arrived.
    """
    columns = [_of_type(table.column(name), column.dtype) for name, column in schema.items()]
    return pa.table(columns, schema=schema.to_arrow())


def _as_stored(table: pa.Table, writing: FileWriting) -> pa.Table:
    """The table in the types of the files; a DataError for a list of another length than its type has."""
    stored = file_schema(writing)
    try:
        return table if table.schema.types == stored.types else table.cast(stored)
    except pa.ArrowInvalid as error:
        named = [c.name for c in writing.schema.columns if c.stored_dtype != c.dtype]
        raise DataError(
            f"the lists of {' or '.join(map(repr, named))} have other lengths than those of the fit",
            where="output",
            why=str(error).partition("\n")[0],
            do="give lists of that length, or fit all rows again with source.schema: "
            f"{{{named[0]}: {dtype_name(writing.schema[named[0]].dtype)}}}, which takes lists of any length",
        ) from None


def file_schema(writing: FileWriting) -> pa.Schema:
    """The columns in the types of the files."""
    sized = writing.output.format in ("parquet", "arrow")
    columns = writing.schema.columns
    return pa.schema(
        [(c.name, c.stored_dtype if sized else c.dtype) for c in columns], make_file_metadata(writing.schema)
    )


def _of_type(values: pa.ChunkedArray, dtype: pa.DataType) -> pa.ChunkedArray:
    plain = values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values
    return plain if plain.type == dtype else plain.cast(dtype)  # Arrow's cast to the same type spoils lists of nulls


def _append_batches(file: pq.ParquetWriter | pa.ipc.RecordBatchFileWriter, table: pa.Table, rows: int) -> None:
    """Append batches of `rows` rows, copied to buffers of their own: with a slice Arrow stores bytes of later rows."""
    for start in range(0, table.num_rows, rows):
        slices = [c.combine_chunks() for c in table.slice(start, rows).columns]
        own = [_zero_where_null(pa.concat_arrays([s.slice(0, 0), s])) for s in slices]
        file.write_batch(pa.record_batch(own, schema=table.schema))


def _zero_where_null(values: pa.Array) -> pa.Array:
    """The values with zero bytes in place of nulls: Arrow stores these bytes, and equal rows must give equal files."""
    if not values.null_count or values.type.num_buffers != 2 or pa.types.is_nested(values.type):
        return values
    mask, data = values.buffers()
    if pa.types.is_boolean(values.type):
        return pa.Array.from_buffers(values.type, len(values), [mask, values.fill_null(False).buffers()[1]])
    width = values.type.bit_width // 8
    rows = np.frombuffer(data, np.uint8, len(values) * width).reshape(-1, width).copy()
    rows[np.asarray(values.is_null())] = 0
    return pa.Array.from_buffers(values.type, len(values), [mask, pa.py_buffer(rows)])


def write_file(table: pa.Table, path: str, writing: FileWriting) -> None:
    """The table as one file in the format, compression and row groups of the section `output`."""
    write_runs(iter([table]), path, writing)


def write_runs(tables: Iterator[pa.Table], path: str, writing: FileWriting) -> None:
    """Tables one after another as one file; the iterator creates the next table when one is written.

    The file has the same bytes as one table of all rows if the number of rows of each table but the last is a multiple
    of `run_unit`.
    """
    table = _next(tables, writing)
    with _open_writer(path, writing, column_codecs(table, writing)) as append:
        while table is not None:
            append(table)
            del table  # free its memory before the next table
            table = _next(tables, writing)


def _next(tables: Iterator[pa.Table], writing: FileWriting) -> pa.Table | None:
    table = next(tables, None)
    if table is None:
        return None
    return _as_stored(conform(table, writing.schema), writing).replace_schema_metadata(
        make_file_metadata(writing.schema)
    )


def column_codecs(table: pa.Table | None, writing: FileWriting) -> str | dict[str, str]:
    """The codec of each column of a Parquet file that begins with this table; one name if all columns have the same.

    Users choose snappy and lz4 for speed. A column of which they save less than an eighth, such as random numbers, is
    stored uncompressed: that is faster to write and to read. A sample of the first row group decides, so the number of
    tables does not matter. Files of few rows, and codecs that save space, always compress all columns.
    """
    output = writing.output
    codec = str(writing.output.compression)
    rows = min(table.num_rows, run_unit(writing)) if table is not None else 0
    if table is None or output.format != "parquet" or codec not in FAST or rows < 4 * SAMPLE:
        return codec
    sample = pa.concat_tables([table.slice(rows // RUNS * run, SAMPLE // RUNS) for run in range(RUNS)])
    sink = pa.BufferOutputStream()
    pq.write_table(sample, sink, compression=codec, use_dictionary=writing.dictionary_columns)
    group = pq.read_metadata(pa.BufferReader(sink.getvalue())).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {
        c.path_in_schema: codec if c.total_compressed_size <= (1 - LEAST_SAVING) * c.total_uncompressed_size else "none"
        for c in columns
    }


def run_unit(writing: FileWriting) -> int:
    """The number of rows that a file stores together; 0 if a file cannot be written in runs."""
    together = {"csv": 1, "orc": ORC_BATCH}
    return together.get(writing.output.format) or writing.output.row_group_size or ROW_GROUP


def _append_lines(file: pacsv.CSVWriter, table: pa.Table) -> None:
    """Append a table of one column; DataError for a null, which would be an empty line, which readers skip."""
    if nulls := table.column(0).null_count:
        raise DataError(
            f"{nulls:,} null(s) of the only column {table.column_names[0]!r} cannot be written as CSV",
            where="output.format",
            why="each would be an empty line, which readers skip",
            do="fill them (FillMissing), write a second column, or choose parquet, arrow or orc",
        )
    file.write_table(table)


@contextmanager
def _open_writer(path: str, writing: FileWriting, codecs: str | dict[str, str]) -> Iterator[Callable[[pa.Table], None]]:
    """Open a new file of the format and compression of the output; yields the function that appends a table."""
    output = writing.output
    schema = file_schema(writing)
    rows = output.row_group_size or ROW_GROUP
    codec = output.compression
    if output.format == "parquet":
        named = writing.dictionary_columns
        with pq.ParquetWriter(path, schema, compression=codecs, use_dictionary=named, store_schema=True) as file:
            yield lambda table: file.write_table(table, row_group_size=rows)
    elif output.format == "arrow":
        options = pa.ipc.IpcWriteOptions(compression=codec if codec in ("zstd", "lz4") else None)
        with pa.ipc.new_file(path, schema, options=options) as file:
            yield lambda table: _append_batches(file, table, rows)
    elif output.format == "csv":
        with pacsv.CSVWriter(path, schema) as file:
            yield file.write_table if len(schema) > 1 else partial(_append_lines, file)
    else:
        named_codec = {"none": "uncompressed", "gzip": "zlib"}.get(codec, codec)
        with orc.ORCWriter(path, compression=named_codec, batch_size=ORC_BATCH) as file:
            yield file.write
