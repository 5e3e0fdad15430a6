"""Writes Arrow tables as Parquet, Arrow, CSV or ORC files, which have the same bytes for the same rows.

The bytes depend only on the rows, their order and types, not on the tables in which the rows arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.orc as orc
import pyarrow.parquet as pq

from tasks.core.dtypes import dtype_name
from tasks.core.schema import Schema, make_file_metadata
from tasks.core.settings import Output
from tasks.engines.convert.encodings import AUTO, SMALL_ENCODINGS, choose_encoding, saves_enough
from tasks.engines.convert.python_values import to_storage_type
from tasks.errors import DataError

ROW_GROUP = 1_000_000
ORC_BATCH = 1024
ENCODINGS = {"delta": "DELTA_BINARY_PACKED", "split": "BYTE_STREAM_SPLIT"}  # as PyArrow names those that are not plain
AUTO_CODEC = "snappy"  # that of the columns that it makes smaller
# The sample that shows the saving: its rows, and the slices of the row group from which they are taken.
SAMPLE_ROWS = 1 << 16
SAMPLE_SLICES = 8
MIN_ROWS_TO_SAMPLE = 4 * SAMPLE_ROWS


@dataclass(frozen=True)
class ParquetOptions:
    """How the columns of a file are stored: codecs, columns with dictionaries, encodings of other columns."""

    codecs: str | dict[str, str]
    dictionaries: list[str]
    encodings: dict[str, str]


class OutputSpec(Protocol):
    """The section `output`, the schema and the dictionary-encoded columns of the files to write."""

    @property
    def output(self) -> Output: ...
    @property
    def schema(self) -> Schema: ...
    @property
    def dictionary_columns(self) -> list[str]: ...


def conform(table: pa.Table, schema: Schema) -> pa.Table:
    """Return the columns of the schema in its exact types, without dictionary encoding.

    The order of a dictionary would depend on the order in which pieces arrived.
    """
    columns = [_cast_to_plain_type(table.column(name), column.dtype) for name, column in schema.items()]
    return pa.table(columns, schema=schema.to_arrow())


def _cast_to_file_types(table: pa.Table, spec: OutputSpec) -> pa.Table:
    """Cast a table to the types of the files; DataError if a list is longer or shorter than its fixed-size type."""
    stored = file_schema(spec)
    if table.schema.types == stored.types:
        return table
    try:
        return table.cast(stored)
    except pa.ArrowInvalid as error:
        list_columns = [c.name for c in spec.schema.columns if c.stored_dtype != c.dtype]
        raise DataError(
            f"the lists of {' or '.join(map(repr, list_columns))} have other lengths than those of the fit",
            where="output",
            why=str(error).partition("\n")[0],
            do="give lists of that length, or fit all rows again with source.schema: "
            f"{{{list_columns[0]}: {dtype_name(spec.schema[list_columns[0]].dtype)}}}, which takes lists of any length",
        ) from None


def file_schema(spec: OutputSpec) -> pa.Schema:
    """Make the Arrow schema of the files; only Parquet and Arrow files have lists of a fixed size."""
    keeps_list_sizes = spec.output.format in ("parquet", "arrow")
    fields = [(c.name, c.stored_dtype if keeps_list_sizes else c.dtype) for c in spec.schema.columns]
    return pa.schema(fields, make_file_metadata(spec.schema))


def _cast_to_plain_type(values: pa.ChunkedArray, dtype: pa.DataType) -> pa.ChunkedArray:
    plain = values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values
    # Arrow's cast to the same type spoils lists of nulls.
    return plain if plain.type == dtype else plain.cast(dtype)


def _append_batches(file: pq.ParquetWriter | pa.ipc.RecordBatchFileWriter, table: pa.Table, rows: int) -> None:
    """Append a table in batches of `rows` rows."""
    for start in range(0, table.num_rows, rows):
        slices = [c.combine_chunks() for c in table.slice(start, rows).columns]
        # Of a slice Arrow would also store bytes of later rows; concatenating it with an empty array forces a copy.
        copies = [_zero_where_null(pa.concat_arrays([s.slice(0, 0), s])) for s in slices]
        file.write_batch(pa.record_batch(copies, schema=table.schema))


def _zero_where_null(values: pa.Array) -> pa.Array:
    """Put zero bytes in place of nulls: Arrow stores these bytes, and equal rows must give equal files."""
    if not values.null_count or values.type.num_buffers != 2 or pa.types.is_nested(values.type):
        return values
    mask, data = values.buffers()
    if pa.types.is_boolean(values.type):
        return pa.Array.from_buffers(values.type, len(values), [mask, values.fill_null(False).buffers()[1]])
    width = values.type.bit_width // 8
    rows = np.frombuffer(data, np.uint8, len(values) * width).reshape(-1, width).copy()
    rows[np.asarray(values.is_null())] = 0
    return pa.Array.from_buffers(values.type, len(values), [mask, pa.py_buffer(rows)])


def write_file(table: pa.Table, path: str, spec: OutputSpec) -> None:
    """Write a table as one file in the format, compression and row groups of the section `output`."""
    write_runs(iter([table]), path, spec)


def write_runs(tables: Iterator[pa.Table], path: str, spec: OutputSpec) -> None:
    """Write tables one after another as one file; the iterator creates each table after the one before is written.

    The file has the same bytes as one table of all rows if the number of rows of each table but the last is a multiple
    of `run_unit`.
    """
    table = _next_converted(tables, spec)
    with _open_writer(path, spec, choose_options(table, spec)) as append:
        while table is not None:
            append(table)
            del table  # free its memory before the next table
            table = _next_converted(tables, spec)


def _next_converted(tables: Iterator[pa.Table], spec: OutputSpec) -> pa.Table | None:
    table = next(tables, None)
    if table is None:
        return None
    stored = _cast_to_file_types(conform(table, spec.schema), spec)
    return stored.replace_schema_metadata(make_file_metadata(spec.schema))


def choose_options(table: pa.Table | None, spec: OutputSpec) -> ParquetOptions:
    """Choose how the columns of a file that begins with this table are stored.

    The first row group decides, so the number of tables does not matter.
    """
    codec = resolve_codec(spec.output)
    if table is None or spec.output.format != "parquet":
        return ParquetOptions(codec, spec.dictionary_columns, {})
    group = table.slice(0, run_unit(spec))
    chosen = {name: _choose_column_encoding(group[name], spec.output.compression) for name in group.column_names}
    dictionaries = [
        name
        for name in group.column_names
        if chosen[name] == "dictionary" or (chosen[name] is None and name in spec.dictionary_columns)
    ]
    encodings = {name: ENCODINGS[encoding] for name, encoding in chosen.items() if encoding in ENCODINGS}
    options = ParquetOptions(codec, dictionaries, encodings)
    if spec.output.compression != AUTO or group.num_rows < MIN_ROWS_TO_SAMPLE:
        return options
    return replace(options, codecs=_choose_column_codecs(group, options))


def resolve_codec(output: Output) -> str:
    """Return the codec of the files; with `auto` that of the columns for which it is worth its time."""
    return AUTO_CODEC if output.compression == AUTO else str(output.compression)


def _choose_column_encoding(values: pa.ChunkedArray, compression: str) -> str | None:
    """Choose the encoding of a column; None if the rule of `encodings` does not say.

    Files with a codec that was given have plain numbers and times, which each reader knows.
    """
    dtype = values.type
    if pa.types.is_float32(dtype) or pa.types.is_float64(dtype):
        return "split" if compression == "zstd" else "plain"  # zstd finds that the bytes of exponents are alike
    is_known = pa.types.is_integer(dtype) or pa.types.is_timestamp(dtype) or pa.types.is_date32(dtype)
    if not is_known or compression not in SMALL_ENCODINGS:
        return None
    width = 8 if dtype.bit_width == 64 else 4  # bytes in Parquet
    extremes = pc.min_max(values.cast(to_storage_type(dtype)))
    low = extremes["min"].as_py()
    high = extremes["max"].as_py()
    return "plain" if low is None else choose_encoding(len(values) - values.null_count, low, high, width)


def _choose_column_codecs(group: pa.Table, options: ParquetOptions) -> dict[str, str]:
    """Choose the codec of each column of a row group by a sample: "none" where the codec saves less than an eighth.

    Random numbers, for example, are faster to write and to read as they are.
    """
    starts = [group.num_rows // SAMPLE_SLICES * number for number in range(SAMPLE_SLICES)]
    sample = pa.concat_tables([group.slice(start, SAMPLE_ROWS // SAMPLE_SLICES) for start in starts])
    sink = pa.BufferOutputStream()
    with _open_parquet(sink, sample.schema, options) as file:
        file.write_table(sample)
    written = pq.read_metadata(pa.BufferReader(sink.getvalue())).row_group(0)
    codecs = {}
    for column in (written.column(number) for number in range(written.num_columns)):
        is_worthwhile = saves_enough(column.total_compressed_size, column.total_uncompressed_size)
        codecs[column.path_in_schema] = AUTO_CODEC if is_worthwhile else "none"
    return codecs


def _open_parquet(target: str | pa.NativeFile, schema: pa.Schema, options: ParquetOptions) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        target,
        schema,
        compression=options.codecs,
        use_dictionary=options.dictionaries,
        column_encoding=options.encodings or None,
        store_schema=True,
    )


def run_unit(spec: OutputSpec) -> int:
    """Return the number of rows that a file stores together."""
    fixed_by_format = {"csv": 1, "orc": ORC_BATCH}
    return fixed_by_format.get(spec.output.format) or spec.output.row_group_size or ROW_GROUP


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
def _open_writer(path: str, spec: OutputSpec, options: ParquetOptions) -> Iterator[Callable[[pa.Table], None]]:
    """Open a new file in the format and compression of the output; yield the function that appends a table."""
    output = spec.output
    schema = file_schema(spec)
    rows = output.row_group_size or ROW_GROUP
    codec = resolve_codec(output)
    if output.format == "parquet":
        with _open_parquet(path, schema, options) as file:
            yield lambda table: file.write_table(table, row_group_size=rows)
    elif output.format == "arrow":
        arrow_options = pa.ipc.IpcWriteOptions(compression=codec if codec in ("zstd", "lz4") else None)
        with pa.ipc.new_file(path, schema, options=arrow_options) as file:
            yield lambda table: _append_batches(file, table, rows)
    elif output.format == "csv":
        with pacsv.CSVWriter(path, schema) as file:
            yield file.write_table if len(schema) > 1 else partial(_append_lines, file)
    else:
        orc_codec = {"none": "uncompressed", "gzip": "zlib"}.get(codec, codec)
        with orc.ORCWriter(path, compression=orc_codec, batch_size=ORC_BATCH) as file:
            yield file.write
