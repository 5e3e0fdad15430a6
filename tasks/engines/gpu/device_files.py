"""Reads partitions of Parquet files straight to the GPU, writes files from it, and measures its memory.

The name of a Series marks a type that cuDF lacks (`tasks.engines.convert.gpu_types`), or a date.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache

import cudf
import cupy
import pyarrow as pa
import pyarrow.parquet as pq
import pylibcudf as plc
import rmm

from tasks.core.dtypes import is_list as is_list_type
from tasks.core.dtypes import leaf_type
from tasks.core.plan import EXPLODED, File, Partition, Piece, Plan, rows_together
from tasks.core.schema import Schema, make_file_metadata
from tasks.engines.convert import host_files, parquet_layout
from tasks.engines.convert.encodings import are_encoded_on_gpu, is_encodable
from tasks.engines.convert.gpu_types import mark_of
from tasks.engines.convert.host_files import OutputSpec
from tasks.engines.convert.parquet_layout import Chunk
from tasks.engines.gpu.columns import (
    DATE,
    DECIMALS,
    all_finite,
    cast,
    column,
    device,
    from_pylibcudf,
    host,
    host_as,
    renumber_rows,
)
from tasks.engines.gpu.kernels import pinned_copies
from tasks.engines.gpu.kernels.column_arrays import Column
from tasks.engines.gpu.order import OrderedRows
from tasks.engines.gpu.parquet_encoder import encode_table
from tasks.storage.checksum import DigestedFile
from tasks.storage.files import open_planned_path

ROW_GROUP = 4_000_000
SMALLEST_ROW_GROUP = 5_000  # that cuDF writes
UNLIMITED_BYTES = 1 << 40  # of a row group: its rows decide, however wide they are
# cuDF fills dictionaries by a hash table from many threads, and pads delta encodings with uninitialized memory: the
# same rows would give other bytes each time. Plain values are always the same.
DICTIONARIES = plc.io.types.DictionaryPolicy.NEVER
# Least and greatest value and nulls of each row group, by which readers, and tables of Iceberg, leave out what a filter
# does not need. Those of pages take more space and are seldom read.
STATISTICS = plc.io.types.StatisticsFreq.STATISTICS_ROWGROUP
CODECS = {"auto": "SNAPPY", "snappy": "SNAPPY", "zstd": "ZSTD", "lz4": "LZ4", "none": "NONE"}

OPEN_FILES = 256  # of one call of the reader: often a process may open only 1,024
# One call of cuDF's reader: files, the row groups of each, rows skipped, rows taken (-1: all rows of the row groups).
Read = tuple[list[File], list[list[int]], int, int]


# Reading


def read_partition(plan: Plan, partition: Partition, columns: Sequence[str]) -> dict[str, Column]:
    """Read those columns of a partition that cuDF can read, of local Parquet files.

    The host's reader reads the other columns, and turns lists into rows. It reads the whole partition if this returns
    {}. A DataError, for a file that has changed since the plan, is raised.
    """
    names = [name for name in columns if _is_readable(plan, name)]
    if not names or EXPLODED in plan.options or any("://" in f.path for f in plan.files):
        return {}
    types = {name: plan.schema[name].dtype for name in names}
    pieces = [piece for block in partition.blocks for piece in block.pieces]
    differ = bool(plan.options.get("on_host"))  # other columns, which the host reads, may differ between the files
    try:
        tables = [_read_rows(read, names, differ) for read in _plan_reads(plan.files, pieces)]
    except (RuntimeError, ValueError, OSError):
        return {}  # the host's reader raises an error that names the file
    joined = plc.concatenate.concatenate(tables) if len(tables) > 1 else tables[0]
    if joined.num_rows() != partition.rows:
        return {}
    try:
        return all_finite({n: _conform_column(c, types[n]) for n, c in zip(names, joined.columns(), strict=True)})
    except (ValueError, NotImplementedError):  # a value that does not fit its type, or a cast that cuDF lacks
        return {}


def _is_readable(plan: Plan, name: str) -> bool:
    """Say whether cuDF can read a column.

    It cannot read the names of folders, which are not in the files. It does not read UUIDs as text, wraps times of 96
    bits, and lacks the types that need a mark. A source that is a frame has no `format`.
    """
    if getattr(plan, "format", None) != "parquet" or name in plan.options.get("folders", ()):
        return False
    if name not in {*plan.schema}:  # a field of a struct
        return False
    dtype = plan.schema[name].dtype
    return (
        name not in plan.options.get("on_host", ()) and mark_of(dtype) is None and _is_type_readable(leaf_type(dtype))
    )


def _is_type_readable(leaf: pa.DataType) -> bool:
    """Say whether cuDF reads and writes the type as it is."""
    return is_encodable(leaf) or pa.types.is_string(leaf) or pa.types.is_decimal128(leaf)


@lru_cache(maxsize=4096)
def _footer_rows(file: File) -> tuple[int, ...]:
    """Read the number of rows of each row group of a file; DataError if the file has changed since the plan."""
    with open_planned_path(file) as name:
        metadata = pq.read_metadata(name)
    return tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))


def _plan_reads(files: Sequence[File], pieces: Sequence[Piece]) -> list[Read]:
    """Plan the calls of the reader: one for whole row groups of up to `OPEN_FILES` files, one per cut row group."""
    reads: list[Read] = []
    for piece in rows_together(pieces):
        file = files[piece.file]
        rows = _footer_rows(file)
        whole = piece.start == 0 and piece.stop == rows[piece.group]
        if not whole:
            reads.append(([file], [], sum(rows[: piece.group]) + piece.start, piece.stop - piece.start))
        elif reads and reads[-1][3] < 0 and reads[-1][0][-1] is file:
            reads[-1][1][-1].append(piece.group)
        elif reads and reads[-1][3] < 0 and len(reads[-1][0]) < OPEN_FILES:
            reads[-1][0].append(file)
            reads[-1][1].append([piece.group])
        else:
            reads.append(([file], [[piece.group]], 0, -1))
    return reads


def _read_rows(read: Read, columns: list[str], differ: bool) -> plc.Table:
    """Read the rows of one call of the reader; DataError if a file has changed since the plan.

    cuDF opens the files through descriptors that were compared with the plan, so that it reads no other files.
    `differ`: the files may differ in other columns, which are not read here.
    """
    files, groups, skip, rows = read
    with ExitStack() as opened:
        names = [opened.enter_context(open_planned_path(file)) for file in files]
        builder = plc.io.parquet.ParquetReaderOptions.builder(plc.io.SourceInfo(names))
        options = builder.allow_mismatched_pq_schemas(differ).build()
        options.set_column_names(columns)
        if rows < 0:
            options.set_row_groups(groups)
        else:
            options.set_skip_rows(skip)
            options.set_num_rows(rows)
        table = plc.io.parquet.read_parquet(options)
    names_in_table = table.column_names()
    parts = table.tbl.columns()
    return plc.Table([parts[names_in_table.index(name)] for name in columns])


def _conform_column(values: plc.Column, wanted: pa.DataType) -> Column:
    """Cast a column that cuDF has read to the type of the plan; NaN stays NaN.

    Decimals of 32 and 64 bits become 128 bits wide, as the host's reader has them: partitions of both are joined.
    A column of only nulls is built anew: cuDF reads Parquet's type null as strings with uninitialized offsets.
    """
    if values.size() and values.null_count() == values.size():
        return column(pa.nulls(values.size(), wanted))
    series = from_pylibcudf(values)
    if pa.types.is_date32(wanted):
        series.name = DATE
    if pa.types.is_decimal(wanted) and isinstance(series.dtype, DECIMALS):
        return series.astype(cudf.Decimal128Dtype(wanted.precision, wanted.scale))
    if pa.types.is_timestamp(wanted) and wanted.tz and getattr(series.dtype, "tz", None) is None:
        series = series.dt.tz_localize("UTC").dt.tz_convert(wanted.tz)
    return cast(series, wanted)


# Writing


def host_columns(table: cudf.DataFrame | Mapping[str, Column], schema: Schema) -> pa.Table:
    """Copy the columns of the schema to host memory, in its types."""
    return pa.table({n: _to_host_array(table[n], c.dtype) for n, c in schema.items()})


def _to_host_array(values: Column, wanted: pa.DataType) -> pa.Array:
    if pa.types.is_null(leaf_type(wanted)):  # strings stand for them
        return host_as(values, wanted)
    return host(cast(_with_name(values, wanted), wanted))


def write_file(table: cudf.DataFrame | Mapping[str, Column], path: str, spec: OutputSpec) -> str | None:
    """Write a table as one file in the format of the section `output`; return its digest if it is known."""
    if _is_encoded_here(spec):
        return _write_encoded(iter([table]), path, spec)
    if _on_device(spec):
        return _write_parquet(_to_stored_table(table, spec.schema), path, spec)
    host_files.write_file(host_columns(table, spec.schema), path, spec)
    return None


def write_runs(tables: Iterator[cudf.DataFrame], path: str, spec: OutputSpec) -> str | None:
    """Write tables one after another as one file; return its digest if it is known.

    The iterator creates each table after the one before is written. The file is byte for byte that of `write_file`
    with all rows if every table but the last has a multiple of `run_unit` rows.
    """
    if not _on_device(spec):
        host_files.write_runs((host_columns(table, spec.schema) for table in tables), path, spec)
        return None
    if _is_encoded_here(spec):
        return _write_encoded(tables, path, spec)
    writer = None
    with DigestedFile(path) as file:
        sink = plc.io.SinkInfo([file])  # must outlive the writer, which writes through it but does not keep it alive
        try:
            while (table := next(tables, None)) is not None:
                stored = _to_stored_table(table, spec.schema)
                writer = writer or _open_writer(stored, sink, spec)
                writer.write(stored)
                del table, stored  # free their memory before the next table
            assert writer is not None
            writer.close([])
        finally:
            del writer
    return file.finish()


def run_unit(spec: OutputSpec) -> int:
    """Return the number of rows that a file stores together; 0 if the file can only be written at once.

    cuDF's chunked writer marks all times as UTC, so files that have times without a zone are written at once.
    """
    if not _on_device(spec):
        return host_files.run_unit(spec)
    if _is_encoded_here(spec):
        return spec.output.row_group_size or ROW_GROUP
    unzoned = any(pa.types.is_timestamp(c.leaf) and c.leaf.tz is None for c in spec.schema.columns)
    return 0 if unzoned else spec.output.row_group_size or ROW_GROUP


# Memory


def device_memory() -> tuple[int, int]:
    """Return (free, all) bytes of the GPU."""
    free, total = cupy.cuda.runtime.memGetInfo()
    return int(free), int(total)


def allocatable() -> int:
    """Return the bytes that this process may allocate on the GPU: the limit of RMM's resource, else all."""
    resource = rmm.mr.get_current_device_resource()
    total = device_memory()[1]
    while resource is not None:
        if isinstance(resource, rmm.mr.LimitingResourceAdaptor):
            return min(total, int(resource.get_allocation_limit()))
        if isinstance(resource, rmm.mr.PoolMemoryResource):
            return min(total, int(resource.pool_size()))
        resource = getattr(resource, "upstream_mr", None)
    return total


# Writing: what both ways of writing use


def _on_device(spec: OutputSpec) -> bool:
    """Say whether cuDF writes the file; the host's writer writes what cuDF cannot: other formats, small row groups."""
    output = spec.output
    possible = output.format == "parquet" and (output.row_group_size or ROW_GROUP) >= SMALLEST_ROW_GROUP
    has_fixed_size_lists = any(c.stored_dtype != c.dtype for c in spec.schema.columns)  # which cuDF lacks
    return possible and not has_fixed_size_lists and output.compression in CODECS and _are_types_writable(spec.schema)


def _is_encoded_here(spec: OutputSpec) -> bool:
    """Say whether the file is encoded by `parquet_encoder`: without a codec, and of columns that it knows."""
    types = [column.dtype for column in spec.schema.columns]
    return are_encoded_on_gpu(types, spec.output.compression) and _on_device(spec)


def _write_encoded(tables: Iterator[cudf.DataFrame | Mapping[str, Column]], path: str, spec: OutputSpec) -> str:
    """Write tables one after another as one file that is encoded here; return its digest."""
    row_groups: list[list[Chunk]] = []
    with DigestedFile(path) as file:
        file.write(parquet_layout.MAGIC)
        while (table := next(tables, None)) is not None:
            stored = _to_stored_table(table, spec.schema)
            del table  # free its memory before the next one
            content, encoded = encode_table(stored, spec.output.row_group_size or ROW_GROUP)
            del stored
            start = file.tell()
            row_groups += [[chunk.moved(start) for chunk in chunks] for chunks in encoded]
            for piece in pinned_copies.copy_pieces(content):
                file.write(piece)
        file.write(parquet_layout.make_footer(host_files.file_schema(spec), row_groups))
    return file.finish()


def _to_stored_table(table: cudf.DataFrame | Mapping[str, Column], schema: Schema) -> plc.Table:
    """Convert the columns of the schema to its types, as libcudf writes them."""
    return plc.Table([_to_stored_column(table, name, column.dtype) for name, column in schema.items()])


def _to_stored_column(table: cudf.DataFrame | Mapping[str, Column], name: str, wanted: pa.DataType) -> plc.Column:
    stored = table.column_of_type(name, wanted) if isinstance(table, OrderedRows) else None
    if stored is None:
        stored = device(cast(_with_name(table[name], wanted), wanted))
    return plc.unary.cast(stored, plc.DataType(plc.TypeId.TIMESTAMP_DAYS)) if pa.types.is_date32(wanted) else stored


def _open_writer(first: plc.Table, sink: plc.io.SinkInfo, spec: OutputSpec) -> plc.io.parquet.ChunkedParquetWriter:
    """Open cuDF's writer of several tables, with the settings of `_write_parquet`; `first` is the first of them.

    It has no `utc_timestamps`: files with times without a zone are never written here (see `run_unit`).
    """
    schema = spec.schema
    output = spec.output
    options = (
        plc.io.parquet.ChunkedParquetWriterOptions.builder(sink)
        .metadata(_make_metadata(first, spec))
        .key_value_metadata([_make_key_values(schema)])
        .compression(plc.io.types.CompressionType[CODECS[output.compression]])
        .stats_level(STATISTICS)
        .row_group_size_rows(output.row_group_size or ROW_GROUP)
        .row_group_size_bytes(UNLIMITED_BYTES)
        .write_arrow_schema(False)
        .build()
    )
    options.set_dictionary_policy(DICTIONARIES)
    return plc.io.parquet.ChunkedParquetWriter.from_options(options)


def _make_key_values(schema: Schema) -> dict[str, str]:
    """Make the key-value metadata of a file."""
    arrow = schema.to_arrow().with_metadata(make_file_metadata(schema))
    return {"ARROW:schema": base64.b64encode(arrow.serialize().to_pybytes()).decode(), **make_file_metadata(schema)}


def _with_name(values: Column, wanted: pa.DataType) -> Column:
    """Give the values the mark of their type, which columns of tables lose."""
    values = renumber_rows(values)
    dates = pa.types.is_date32(wanted) and values.dtype.kind == "M"
    values.name = DATE if dates else mark_of(wanted)
    return values


def _are_types_writable(schema: Schema) -> bool:
    leaves = [c.leaf for c in schema.columns]
    zones = {t.tz is not None for t in leaves if pa.types.is_timestamp(t)}
    known_to_cudf = all(mark_of(c.dtype) is None for c in schema.columns)
    # cuDF marks all times of a file as UTC or none: `zones` has one item if all have a zone, or none has.
    return known_to_cudf and all(_is_type_readable(leaf) for leaf in leaves) and len(zones) < 2


def _write_parquet(table: plc.Table, path: str, spec: OutputSpec) -> str:
    """Write a file; return its digest.

    cuDF writes to a path through a pool of threads, which wait for each other at the file's lock: 3.5 GB/s. Writing
    through a Python file in this thread reaches 10 GB/s on 16 cores.
    """
    schema = spec.schema
    output = spec.output
    file = DigestedFile(path)
    builder = plc.io.parquet.ParquetWriterOptions.builder(plc.io.SinkInfo([file]), table)
    zoned = any(getattr(c.leaf, "tz", None) is not None for c in schema.columns)
    options = (
        builder.metadata(_make_metadata(table, spec))
        .key_value_metadata([_make_key_values(schema)])
        .compression(plc.io.types.CompressionType[CODECS[output.compression]])
        .stats_level(STATISTICS)
        .dictionary_policy(DICTIONARIES)
        .utc_timestamps(zoned)
        .write_arrow_schema(False)
        .build()
    )
    options.set_row_group_size_rows(output.row_group_size or ROW_GROUP)
    options.set_row_group_size_bytes(UNLIMITED_BYTES)
    with file:
        plc.io.parquet.write_parquet(options)
    return file.finish()


def _make_metadata(table: plc.Table, spec: OutputSpec) -> plc.io.types.TableInputMetadata:
    metadata = plc.io.types.TableInputMetadata(table)
    for column_metadata, field in zip(metadata.column_metadata, spec.schema.columns, strict=True):
        column_metadata.set_name(field.name).set_nullability(True)
        leaf = column_metadata
        wanted = field.dtype
        while is_list_type(wanted):
            leaf = leaf.child(1)
            wanted = wanted.value_type
            leaf.set_name("element").set_nullability(True)
        if spec.output.compression == "zstd" and pa.types.is_floating(field.dtype):
            leaf.set_encoding(plc.io.types.ColumnEncoding.BYTE_STREAM_SPLIT)
        if pa.types.is_decimal(wanted):
            leaf.set_decimal_precision(wanted.precision)
    return metadata
