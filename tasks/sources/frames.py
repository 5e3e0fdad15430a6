"""Frames as sources: tables of this process, and frames that stay where they are, on a GPU or with Dask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from tasks import engines
from tasks.core.dtypes import dtype_name, kind_of, plain_type, size_property_of
from tasks.core.plan import LIMITS, Block, Input, Limits, Partition, Piece, Unit, cut_blocks, cut_partitions, runs_of
from tasks.core.schema import Column, Schema, check_names
from tasks.engines.algorithms.column_sketch import FACTOR, hash_bits, integer_bits
from tasks.engines.algorithms.protocol import Kernels
from tasks.engines.convert import libraries
from tasks.engines.convert.frame_sizes import nbytes
from tasks.engines.convert.gpu_types import is_foreign
from tasks.errors import DataError, JobError
from tasks.sources.formats.conform import conform, with_distinct_values

CHUNK = 1 << 14  # values that stay in the first levels of cache with what is computed of them


@dataclass(frozen=True)
class FrameFacts:
    """A frame in figures: its rows, bytes and types, hashes of its columns, and its index ("" for row numbers)."""

    rows: int
    nbytes: int
    schema: pa.Schema
    hashes: dict[str, int]
    index: str


Measure = Callable[[Sequence[Partition]], list[FrameFacts]]  # the facts of the frame of each partition, on the workers


@dataclass(frozen=True)
class Frames:
    """Frames in the order of their rows, with the rows and bytes of each: tables of the host, or inputs of tasks."""

    tables: tuple[pa.Table, ...]
    rows: tuple[int, ...]
    nbytes: tuple[int, ...]
    schema: Schema
    inputs: tuple[Input, ...] = ()
    indexes: tuple[str, ...] = ()  # that are dropped
    is_dask: bool = False  # the inputs are the partitions of a Dask frame

    def blocks(self, limits: Limits = LIMITS) -> tuple[Block, ...]:
        """Blocks of 1 Mi rows of each table. Small tables are joined; of the partitions of a Dask frame only those
        without a row are, with the next one."""
        units = [Unit(Piece(i, 0, n), n, b) for i, (n, b) in enumerate(zip(self.rows, self.nbytes, strict=True))]
        return cut_blocks(units, 1 if self.is_dask else limits.join_below, limits.frame_rows)

    def partitions(self, blocks: tuple[Block, ...], size: int) -> tuple[Partition, ...]:
        """Runs of whole blocks of at most `size` bytes. Inputs are not brought together for it, only within a block."""
        if not self.inputs:
            return cut_partitions(blocks, size)
        of_inputs = [list(run) for _, run in groupby(blocks, key=lambda block: block.pieces[0].file)]
        runs = [run for of_input in of_inputs for run in runs_of(of_input, size)]
        inputs = [sorted({piece.file for block in run for piece in block.pieces}) for run in runs]
        return tuple(Partition(i, tuple(r), tuple(self.inputs[n] for n in inputs[i])) for i, r in enumerate(runs))

    def read(self, pieces: Sequence[Piece], columns: Sequence[str], inputs: Sequence[Input] = ()) -> pa.Table:
        """The rows of the pieces, in their order, conformed like rows of files."""
        schema = pa.schema([(name, self.schema[name].dtype) for name in columns])
        own = {one.number: one for one in inputs}
        numbers = {piece.file for piece in pieces}
        whole = {n: _host_rows(own[n], columns) if n in own else self.tables[n] for n in numbers}
        parts = [whole[p.file].select(list(columns)).slice(p.start, p.stop - p.start) for p in pieces]
        return conform(pa.concat_tables([conform(with_distinct_values(part), schema) for part in parts]), schema)

    def on_device(self, partition: Partition, columns: Sequence[str], engine: Kernels) -> dict[str, Any]:
        """Columns of a partition of cuDF frames, which do not leave the GPU; the host's reader has the rest."""
        types = {name: self.schema[name].dtype for name in columns if name in self.schema}
        whole: dict[int, dict[str, Any]] = {}
        for one in partition.inputs:
            if libraries.library(one.frame) != "cudf" and not isinstance(one.frame, dict):
                return {}
            stored = _device_columns(one.frame, types, engine)
            _check_same(one, one.frame, stored, engine)
            try:
                whole[one.number] = {name: engine.cast(column, types[name]) for name, column in stored.items()}
            except (ValueError, NotImplementedError):
                return {}  # the host's reader says which value does not fit
        pieces = [piece for block in partition.blocks for piece in block.pieces]
        return engine.concat([engine.slice_rows(whole[p.file], p.start, p.stop) for p in pieces]) if whole else {}


def frame_here(frame: Any) -> Any:
    """The frame in this process: itself, or what the current client, else this process, computes."""
    import dask

    return frame.compute() if dask.is_dask_collection(frame) else frame


def _host_rows(one: Input, columns: Sequence[str]) -> pa.Table:
    """The columns of a frame as a table, compared with the pass that counted its rows."""
    frame = frame_here(one.frame)
    engine = engines.engine("pandas")
    table = to_table(frame, columns) if columns else pa.table({})
    table = _in_plain_types(table) if one.hashes else table
    _check_same(one, frame, engine.from_arrow(table), engine)
    return table


def _in_plain_types(table: pa.Table) -> pa.Table:
    return conform(table, pa.schema([(field.name, plain_type(field.type)) for field in table.schema]))


def _check_same(one: Input, frame: Any, columns: Mapping[str, Any], engine: Kernels) -> None:
    """A DataError where a frame has other rows, or other values in these columns, than when its rows were counted."""
    rows = one.rows if isinstance(frame, dict) else len(frame)
    other = [n for n, c in columns.items() if n in one.hashes and content_hash(c, engine) != one.hashes[n]]
    if rows == one.rows and not other:
        return
    what = f"partition {one.number} of the frame has {rows:,} rows; when they were counted it had {one.rows:,}"
    if rows == one.rows:
        what = f"column {other[0]!r} of partition {one.number} of the frame has other values than when it was counted"
    why = "each pass computes a Dask frame anew, and this one is not the same each time (or a cuDF frame was changed)"
    do = "compute it once, and keep its partitions: Dataset(frame).persist()"
    raise DataError(what, where="Dataset", why=why, do=do)


def content_hash(values: Any, engine: Kernels) -> int:
    """A number of 64 bits of the values and their places, the same on both engines."""
    dtype = engine.dtype(values)
    if engine.is_list(values):
        lengths, valid = engine.list_lengths(values)
        lengths = lengths if valid is None else engine.xp.where(valid, lengths, -1)
        of_lengths = content_hash(engine.from_numbers(lengths), engine)
        return (3 * of_lengths + content_hash(engine.leaves(values), engine)) % 2**64
    if kind_of(dtype) == "other" and pa.types.is_nested(dtype):
        host = engines.engine("pandas")
        on_host = engine.host(values)
        if pa.types.is_map(dtype):
            entries = pa.struct([("key", dtype.key_type), ("value", dtype.item_type)])
            return content_hash(host.column(on_host.cast(pa.list_(entries))), host)
        parts = [on_host.is_null(), *on_host.flatten()]
        return sum((2 * i + 1) * content_hash(host.column(part), host) for i, part in enumerate(parts)) % 2**64
    xp = engine.xp
    rows = len(values)
    if kind_of(dtype) in ("number", "time", "bool") and not pa.types.is_decimal(dtype):
        stored, valid = engine.numbers(values)
        stored = stored.astype(xp.float64, copy=False).view(xp.uint64) if stored.dtype.kind == "f" else stored
        bits = integer_bits(stored, xp)
        bits = bits if valid is None else xp.where(valid, bits, xp.uint64(FACTOR))
    else:
        bits = engine.hash_columns([values]).astype(xp.uint64)
    step = CHUNK if xp is np else max(rows, 1)
    places = xp.arange(min(step, rows), dtype=xp.uint64) * xp.uint64(FACTOR)
    total = 0
    for start in range(0, rows, step):
        run = bits[start : start + step]
        placed = run + places[: len(run)] + xp.uint64(start * FACTOR % 2**64)
        total += int(hash_bits(hash_bits(placed, xp), xp).sum())
    return total % 2**64


def _device_columns(frame: Any, types: Mapping[str, pa.DataType], engine: Kernels) -> dict[str, Any]:
    """Columns of a cuDF frame as the engine has them, without those that need a stand-in; persisted ones are such."""
    if isinstance(frame, dict):
        return {name: frame[name] for name in types if name in frame}
    adopted = {n: engine.adopt(frame[n]) for n, dtype in types.items() if n in frame and not is_foreign(dtype)}
    return {name: engine.finite(column) for name, column in adopted.items()}


def measure_frame(frame: Any, engine: str) -> FrameFacts:
    """The facts of a partition of a Dask frame, or of a cuDF frame on the GPU."""
    on_gpu = engine == "cudf" and libraries.library(frame) == "cudf"
    kernels = engines.engine("cudf" if on_gpu else "pandas")
    table = to_table(frame.head(0) if on_gpu else frame)
    types = {field.name: plain_type(field.type) for field in table.schema}
    columns = _device_columns(frame, types, kernels) if on_gpu else kernels.from_arrow(_in_plain_types(table))
    hashes = {n: content_hash(c, kernels) for n, c in columns.items()}
    size = nbytes(frame if on_gpu else table)
    return FrameFacts(len(frame), size, table.schema.remove_metadata(), hashes, index_of(frame))


def index_of(frame: object) -> str:
    """The index of a frame in words; "" where it only numbers the rows, or where there is none."""
    index = getattr(frame, "index", None)
    if index is None or (type(index).__name__ == "RangeIndex" and index.name is None):
        return ""
    return " ".join([type(index).__name__, *(repr(name) for name in index.names if name is not None)])


def with_index(frame: Any, name: str) -> Any:
    """The frame with its index as the first column, of this name; a JobError where that is not possible."""
    what = ""
    do = "leave index out"
    if not hasattr(frame, "reset_index"):
        what = f"a {type(frame).__name__} has no index"
    elif frame.index.nlevels > 1:
        what = "the index has several levels"
        do = "make columns of them: frame.reset_index()"
    elif name in {str(column) for column in frame.columns}:
        what = f"the frame has a column {name!r}"
        do = "give the index another name"
    if what:
        raise JobError(what, where=f"Dataset, index={name!r}", do=do)
    frame = frame.copy(deep=False)
    frame.index.name = name  # cuDF takes no `names`
    return frame.reset_index()


def frames_of(source: Any, engine: str = "pandas", index: str | None = None, measure: Measure | None = None) -> Frames:
    """The frames of a pandas, Arrow, cuDF, Dask or dask_cudf frame, or of a list of these but the Dask ones.

    `measure` counts those that stay where they are: Dask frames, and with the engine cudf those of cuDF.
    """
    is_dask = is_dask_collection(source)
    if is_dask:
        import dask

        from tasks.sources.unfused_tasks import to_delayed_partitions

        check_dask_frame(source)
        named = dask.delayed(with_index, pure=True)
        frames = [part if index is None else named(part, index) for part in to_delayed_partitions(source)]
    else:
        frames = list(source) if isinstance(source, (list, tuple)) and source else [source]
        if any(isinstance(frame, dict) for frame in frames):
            do = "make a frame of rows or columns: pyarrow.Table.from_pylist(rows), pyarrow.table(columns)"
            raise JobError("a dict is not a source", where="Dataset", do=do)
        frames = [with_index(frame, index) for frame in frames] if index is not None else frames
        if engine != "cudf" or any(libraries.library(frame) != "cudf" for frame in frames):
            pairs = [(frame, to_table(frame)) for frame in frames]
            facts = [FrameFacts(t.num_rows, t.nbytes, t.schema.remove_metadata(), {}, index_of(f)) for f, t in pairs]
            return _frames([table for _, table in pairs], [], facts)
    inputs = [Input(number, frame) for number, frame in enumerate(frames)]
    alone = [Partition(one.number, (), (one,)) for one in inputs]
    facts = measure(alone) if measure else [measure_frame(frame_here(f), engine) for f in frames]
    if is_dask:  # of the partitions of a frame that was filtered or shuffled, the index is left over and says nothing
        facts = [replace(of_frame, index="" if index else index_of(source._meta)) for of_frame in facts]
    return replace(_frames([], inputs, facts), is_dask=is_dask)


def is_dask_collection(source: object) -> bool:
    """Whether the source is a frame, series, array or bag of Dask."""
    return libraries.library(source) == "dask" and hasattr(source, "to_delayed")


def check_dask_frame(source: object) -> None:
    """A JobError for a collection of Dask that is not a frame."""
    import dask.dataframe as dd

    if isinstance(source, dd.DataFrame):
        return
    what = f"a Dask {type(source).__name__} is not a source"
    why = "a data set has named columns"
    do = "give a frame: dask.dataframe.from_dask_array(array, columns=[..]), or series.to_frame()"
    raise JobError(what, where="Dataset", why=why, do=do)


def dask_schema(source: Any, index: str | None = None) -> Schema | None:
    """Names and types of a Dask frame, as its own description of the columns has them; None where that leaves a type
    open: objects of Python, and categories that are not known before they are computed."""
    meta = source._meta if index is None else with_index(source._meta, index)
    table = to_table(meta)
    check_names(table.column_names, "Dataset")
    on_host = libraries.library(meta) != "cudf"  # cuDF calls texts objects
    if on_host and any(_is_open(dtype) for dtype in meta.dtypes):
        return None
    types = {field.name: plain_type(field.type) for field in table.schema}
    if any(pa.types.is_null(dtype) for dtype in types.values()):
        return None
    return Schema(
        Column(name, dtype, properties=size_property_of({table.schema.field(name).type}))
        for name, dtype in types.items()
    )


def _is_open(dtype: Any) -> bool:
    """Whether a type of pandas does not tell what the values are."""
    is_object = isinstance(dtype, np.dtype) and dtype.kind == "O"
    return is_object or getattr(dtype, "name", "") == "category"


def own_frame(source: Any, columns: Sequence[str], schema: Schema, engine: str, index: str | None = None) -> Any:
    """Columns of a Dask frame as a Dask frame of the engine, partition by partition. Nothing is computed."""
    if index is not None:
        source = source.map_partitions(with_index, index, meta=with_index(source._meta, index))
    by_name = {str(name): name for name in source.columns}
    types = pa.schema([(name, schema[name].dtype) for name in columns])
    chosen = source[[by_name[name] for name in columns]]
    empty = libraries.to_frame(types.empty_table(), engine)
    return chosen.map_partitions(_as_engine_frame, types, engine, meta=empty).clear_divisions()


def _as_engine_frame(frame: Any, types: pa.Schema, engine: str) -> Any:
    """A partition of a Dask frame as the engine's frame, in these types; what is on the GPU stays there."""
    if engine == "cudf" and libraries.library(frame) == "cudf":
        kernels = engines.engine(engine)
        wanted = {field.name: field.type for field in types}
        stored = _device_columns(frame, wanted, kernels)
        if len(stored) == len(wanted):
            return kernels.user_frame({name: kernels.cast(stored[name], dtype) for name, dtype in wanted.items()})
    table = conform(with_distinct_values(to_table(frame, types.names)).select(types.names), types)
    return libraries.to_frame(table, engine)


def to_table(frame: Any, columns: Sequence[str] | None = None) -> pa.Table:
    """A frame, or these of its columns, as a table of the host."""
    if isinstance(frame, dict):  # columns of the GPU
        names = list(frame) if columns is None else [name for name in columns if name in frame]
        return pa.table({name: engines.engine("cudf").host(frame[name]) for name in names})
    if columns is not None:
        names = frame.column_names if isinstance(frame, pa.Table) else list(frame.columns)
        chosen = [name for name in names if str(name) in {*columns}]
        frame = frame.select(chosen) if isinstance(frame, pa.Table) else frame[chosen]
    table = libraries.from_any(frame)
    if table is None:
        what = f"{type(frame).__module__}.{type(frame).__name__} is not a source"
        raise JobError(what, where="Dataset", do="give a path, paths, or frames of pandas, Arrow, cuDF or Dask")
    return table


def _frames(tables: Sequence[pa.Table], inputs: Sequence[Input], facts: Sequence[FrameFacts]) -> Frames:
    schemas = [of_frame.schema for of_frame in facts]
    if not any(of_frame.rows for of_frame in facts):
        raise DataError("the input has no rows at all", where="Dataset", do="give a frame with rows")
    check_names(schemas[0].names, "Dataset")
    types = _unite_frame_types(schemas)
    sizes = {n: size_property_of({schema.field(n).type for schema in schemas}) for n in types}
    columns = [Column(n, pa.string() if pa.types.is_null(t) else t, properties=sizes[n]) for n, t in types.items()]
    counted = [replace(one, rows=f.rows, hashes=f.hashes) for one, f in zip(inputs, facts, strict=bool(inputs))]
    rows = tuple(f.rows for f in facts)
    sizes_in_bytes = tuple(f.nbytes for f in facts)
    dropped = tuple(dict.fromkeys(f.index for f in facts if f.index))
    return Frames(tuple(tables), rows, sizes_in_bytes, Schema(columns), tuple(counted), dropped)


def _unite_frame_types(schemas: Sequence[pa.Schema]) -> dict[str, pa.DataType]:
    """The types of the columns of all frames, of columns of nulls those of a frame that has values; a DataError where
    frames have different columns, or a column in types of different kinds."""
    types: dict[str, pa.DataType] = {f.name: plain_type(f.type) for f in schemas[0]}
    for number, schema in enumerate(schemas):
        if set(schema.names) != set(types):
            why = f"{', '.join(schema.names)} here, {', '.join(types)} in the first"
            raise DataError("frames have different columns", where=f"frame {number}", why=why)
        here = {name: plain_type(schema.field(name).type) for name in types}
        for name, dtype in here.items():
            if kind_of(dtype) != kind_of(types[name]) and pa.null() not in (dtype, types[name]):
                why = f"it is {dtype_name(dtype)} there, and {dtype_name(types[name])} before"
                what = f"column {name!r} of the frame changes its type"
                do = f"give it one type: frame.astype({{{name!r}: ..}})"
                raise DataError(what, where=f"frame {number}", why=why, do=do)
        types = {name: here[name] if pa.types.is_null(dtype) else dtype for name, dtype in types.items()}
    return types
