"""Reading partitions of Parquet straight to the device, and writing files from it."""

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
from tasks.engines.convert import host_files
from tasks.engines.convert.gpu_types import mark_of
from tasks.engines.convert.host_files import FileWriting
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
from tasks.engines.gpu.kernels.column_arrays import Column
from tasks.engines.gpu.order import OrderedRows
from tasks.storage.checksum import DigestedFile
from tasks.storage.files import open_planned_path

ROW_GROUP = 4_000_000
SMALLEST_ROW_GROUP = 5_000  # that cuDF writes
ANY_SIZE = 1 << 40  # bytes of a row group: rows decide, on every width of row
# cuDF fills dictionaries by a hash table from many threads, and pads delta encodings with what the memory held before:
# each writing of the same rows would give other bytes. Plain values under snappy are the same every time, no slower.
DICTIONARIES = plc.io.types.DictionaryPolicy.NEVER
CODECS = {"snappy": "SNAPPY", "zstd": "ZSTD", "lz4": "LZ4", "none": "NONE"}

OPEN_FILES = 256  # of one call: a process may often open no more than 1,024
Run = tuple[list[File], list[list[int]], int, int]  # files, their row groups, rows skipped, rows taken (-1: all)


# Reading


def read_partition(plan: Plan, partition: Partition, columns: Sequence[str]) -> dict[str, Column]:
    """The columns of a partition of local Parquet files that are read on the device; the host's reader has the rest,
    and turns lists into rows."""
    names = [name for name in columns if _is_read(plan, name)]
    if not names or EXPLODED in plan.options or any("://" in f.path for f in plan.files):
        return {}
    types = {name: plan.schema[name].dtype for name in names}
    pieces = [piece for block in partition.blocks for piece in block.pieces]
    differ = bool(plan.options.get("on_host"))  # files may have further columns, or others, beside those read here
    try:
        tables = [_read_run(run, names, differ) for run in _plan_runs(plan.files, pieces)]
    except (RuntimeError, ValueError, OSError):
        return {}  # the host's reader says what is wrong with which file
    joined = plc.concatenate.concatenate(tables) if len(tables) > 1 else tables[0]
    if joined.num_rows() != partition.rows:
        return {}
    try:
        return all_finite({n: _conform_column(c, types[n]) for n, c in zip(names, joined.columns(), strict=True)})
    except (ValueError, NotImplementedError):  # a value that does not fit its type, or a cast that there is not
        return {}


def _is_read(plan: Plan, name: str) -> bool:
    """Whether cuDF reads a column: folders' names are in no file, and cuDF does not read UUIDs as text, wraps times of
    96 bits and lacks the types that need a mark."""
    if getattr(plan, "format", None) != "parquet" or name in plan.options.get("folders", ()):
        return False
    if name not in {*plan.schema}:  # a field of a struct
        return False
    dtype = plan.schema[name].dtype
    return name not in plan.options.get("on_host", ()) and mark_of(dtype) is None and _readable(leaf_type(dtype))


def _readable(leaf: pa.DataType) -> bool:
    plain = pa.types.is_integer(leaf) or pa.types.is_floating(leaf) or pa.types.is_boolean(leaf)
    return (
        plain
        or pa.types.is_string(leaf)
        or pa.types.is_timestamp(leaf)
        or pa.types.is_date32(leaf)
        or pa.types.is_decimal128(leaf)
    )


@lru_cache(maxsize=4096)
def _footer_rows(file: File) -> tuple[int, ...]:
    """The rows of each row group of a file as it was when it was planned."""
    with open_planned_path(file) as name:
        metadata = pq.read_metadata(name)
    return tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))


def _plan_runs(files: Sequence[File], pieces: Sequence[Piece]) -> list[Run]:
    """The arguments of each call of the reader: whole row groups of up to `OPEN_FILES` files together, a cut row group
    by itself."""
    runs: list[Run] = []
    for piece in rows_together(pieces):
        file = files[piece.file]
        rows = _footer_rows(file)
        whole = piece.start == 0 and piece.stop == rows[piece.group]
        if not whole:
            runs.append(([file], [], sum(rows[: piece.group]) + piece.start, piece.stop - piece.start))
        elif runs and runs[-1][3] < 0 and runs[-1][0][-1] is file:
            runs[-1][1][-1].append(piece.group)
        elif runs and runs[-1][3] < 0 and len(runs[-1][0]) < OPEN_FILES:
            runs[-1][0].append(file)
            runs[-1][1].append([piece.group])
        else:
            runs.append(([file], [[piece.group]], 0, -1))
    return runs


def _read_run(run: Run, columns: list[str], differ: bool) -> plc.Table:
    """The rows of a run; a DataError for a file that has changed since the plan. cuDF opens the files through
    descriptors that were compared with the plan, so that it reads no other files. `differ`: the files may differ in
    other columns."""
    files, groups, skip, rows = run
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
    read = table.column_names()
    parts = table.tbl.columns()
    return plc.Table([parts[read.index(name)] for name in columns])


def _conform_column(values: plc.Column, wanted: pa.DataType) -> Column:
    """A column that cuDF has read, in the type of the plan; NaN stays NaN.

    Decimals of 32 and 64 bits become 128 bits wide, as the host's reader has them: partitions of both are joined.
    A column of nulls alone is built anew: cuDF reads Parquet's type null as strings with uninitialized offsets.
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
    """The named columns of a table or frame in host memory, in the types of the schema."""
    return pa.table({n: _to_host_array(table[n], c.dtype) for n, c in schema.items()})


def _to_host_array(values: Column, wanted: pa.DataType) -> pa.Array:
    if pa.types.is_null(leaf_type(wanted)):  # strings stand for them
        return host_as(values, wanted)
    return host(cast(_with_name(values, wanted), wanted))


def write_file(table: cudf.DataFrame | Mapping[str, Column], path: str, writing: FileWriting) -> str | None:
    """The table as one file in the format, compression and row groups of the section `output`; its digest if known."""
    if _on_device(writing):
        return _write_parquet(_to_stored_table(table, writing.schema), path, writing)
    host_files.write_file(host_columns(table, writing.schema), path, writing)
    return None


def write_runs(tables: Iterator[cudf.DataFrame], path: str, writing: FileWriting) -> str | None:
    """Tables one after another as one file; the iterator makes the next when one is written. Its digest if known.

    The bytes are those of all rows at once if every table but the last has a whole number of `run_unit` rows.
    """
    if not _on_device(writing):
        host_files.write_runs((host_columns(table, writing.schema) for table in tables), path, writing)
        return None
    writer = None
    with DigestedFile(path) as file:
        sink = plc.io.SinkInfo([file])  # the writer does not keep it, and writes through it until it is gone itself
        try:
            while (table := next(tables, None)) is not None:
                run = _to_stored_table(table, writing.schema)
                writer = writer or _appending(run, sink, writing)
                writer.write(run)
                del table, run
            assert writer is not None
            writer.close([])
        finally:
            del writer
    return file.finish()


def run_unit(writing: FileWriting) -> int:
    """The rows that a file stores together; 0 where it can only be written at once.

    cuDF's writer by runs marks all times as UTC, so that files with times of no zone are only written at once.
    """
    if not _on_device(writing):
        return host_files.run_unit(writing)
    unzoned = any(pa.types.is_timestamp(c.leaf) and c.leaf.tz is None for c in writing.schema.columns)
    return 0 if unzoned else writing.output.row_group_size or ROW_GROUP


def device_memory() -> tuple[int, int]:
    """(free, all) bytes of the GPU."""
    free, total = cupy.cuda.runtime.memGetInfo()
    return int(free), int(total)


def allocatable() -> int:
    """Bytes that this process may allocate on the GPU: as many as RMM's resource is limited to, else all."""
    resource = rmm.mr.get_current_device_resource()
    total = device_memory()[1]
    while resource is not None:
        if isinstance(resource, rmm.mr.LimitingResourceAdaptor):
            return min(total, int(resource.get_allocation_limit()))
        if isinstance(resource, rmm.mr.PoolMemoryResource):
            return min(total, int(resource.pool_size()))
        resource = getattr(resource, "upstream_mr", None)
    return total


def _on_device(writing: FileWriting) -> bool:
    """Whether cuDF writes the file; the host's writer writes other formats, smaller row groups and so on."""
    output = writing.output
    possible = output.format == "parquet" and (output.row_group_size or ROW_GROUP) >= SMALLEST_ROW_GROUP
    sized = any(c.stored_dtype != c.dtype for c in writing.schema.columns)  # which cuDF lacks
    return possible and not sized and output.compression in CODECS and _writable(writing.schema)


def _to_stored_table(table: cudf.DataFrame | Mapping[str, Column], schema: Schema) -> plc.Table:
    """The named columns of a table or frame in the types of the schema, as libcudf writes them."""
    return plc.Table([_to_stored_column(table, name, column.dtype) for name, column in schema.items()])


def _to_stored_column(table: cudf.DataFrame | Mapping[str, Column], name: str, wanted: pa.DataType) -> plc.Column:
    stored = table.column_of_type(name, wanted) if isinstance(table, OrderedRows) else None
    if stored is None:
        stored = device(cast(_with_name(table[name], wanted), wanted))
    return plc.unary.cast(stored, plc.DataType(plc.TypeId.TIMESTAMP_DAYS)) if pa.types.is_date32(wanted) else stored


def _appending(first: plc.Table, sink: plc.io.SinkInfo, writing: FileWriting) -> plc.io.parquet.ChunkedParquetWriter:
    """cuDF's writer of several tables, with the settings of `_write_parquet`; `first` is the first of them."""
    schema = writing.schema
    output = writing.output
    options = (
        plc.io.parquet.ChunkedParquetWriterOptions.builder(sink)
        .metadata(_metadata(first, schema))
        .key_value_metadata([_footer(schema)])
        .compression(plc.io.types.CompressionType[CODECS[output.compression]])
        .stats_level(plc.io.types.StatisticsFreq.STATISTICS_NONE)
        .row_group_size_rows(output.row_group_size or ROW_GROUP)
        .row_group_size_bytes(ANY_SIZE)
        .write_arrow_schema(False)
        .build()
    )
    options.set_dictionary_policy(DICTIONARIES)
    return plc.io.parquet.ChunkedParquetWriter.from_options(options)


def _footer(schema: Schema) -> dict[str, str]:
    """Key-value metadata of a file."""
    arrow = schema.to_arrow().with_metadata(make_file_metadata(schema))
    return {"ARROW:schema": base64.b64encode(arrow.serialize().to_pybytes()).decode(), **make_file_metadata(schema)}


def _with_name(values: Column, wanted: pa.DataType) -> Column:
    """The values with the mark of their type, which columns of tables lose."""
    values = renumber_rows(values)
    dates = pa.types.is_date32(wanted) and values.dtype.kind == "M"
    values.name = DATE if dates else mark_of(wanted)
    return values


def _writable(schema: Schema) -> bool:
    leaves = [c.leaf for c in schema.columns]
    zones = {t.tz is not None for t in leaves if pa.types.is_timestamp(t)}
    own = all(mark_of(c.dtype) is None for c in schema.columns)  # types that cuDF has
    return own and all(_readable(leaf) for leaf in leaves) and len(zones) < 2


def _write_parquet(table: plc.Table, path: str, writing: FileWriting) -> str:
    """Write a file without statistics, which cost time and which no reader of whole files uses; returns its digest.

    cuDF's own writing to a path goes through one queue of threads, which wait for each other at a file's lock: 3.5 GB/s
    where a file that this thread writes by itself makes 10 GB/s on 16 cores.
    """
    schema = writing.schema
    output = writing.output
    file = DigestedFile(path)
    builder = plc.io.parquet.ParquetWriterOptions.builder(plc.io.SinkInfo([file]), table)
    zoned = any(getattr(c.leaf, "tz", None) is not None for c in schema.columns)
    options = (
        builder.metadata(_metadata(table, schema))
        .key_value_metadata([_footer(schema)])
        .compression(plc.io.types.CompressionType[CODECS[output.compression]])
        .stats_level(plc.io.types.StatisticsFreq.STATISTICS_NONE)
        .dictionary_policy(DICTIONARIES)
        .utc_timestamps(zoned)
        .write_arrow_schema(False)
        .build()
    )
    options.set_row_group_size_rows(output.row_group_size or ROW_GROUP)
    options.set_row_group_size_bytes(ANY_SIZE)
    with file:
        plc.io.parquet.write_parquet(options)
    return file.finish()


def _metadata(table: plc.Table, schema: Schema) -> plc.io.types.TableInputMetadata:
    metadata = plc.io.types.TableInputMetadata(table)
    for shown, field in zip(metadata.column_metadata, schema.columns, strict=True):
        shown.set_name(field.name).set_nullability(True)
        leaf = shown
        wanted = field.dtype
        while is_list_type(wanted):
            leaf = leaf.child(1)
            wanted = wanted.value_type
            leaf.set_name("element").set_nullability(True)
        if pa.types.is_decimal(wanted):
            leaf.set_decimal_precision(wanted.precision)
    return metadata
