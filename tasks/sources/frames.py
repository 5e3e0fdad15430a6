"""Frames in memory as sources: tables here, or futures of tables on the workers of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tasks.core.dtypes import fixed_size, plain_type
from tasks.core.plan import LIMITS, Block, Limits, Piece, Unit, cut_blocks
from tasks.core.schema import Column, Schema, check_names
from tasks.engines.convert import libraries
from tasks.errors import DataError, JobError
from tasks.sources.formats.conform import conform


@dataclass(frozen=True)
class Frames:
    """Tables (or `RemoteTable`s) in the order of their rows, with the rows and bytes of each."""

    tables: tuple[Any, ...]
    rows: tuple[int, ...]
    nbytes: tuple[int, ...]
    schema: Schema

    def blocks(self, limits: Limits = LIMITS) -> tuple[Block, ...]:
        """Blocks of 1 Mi rows of each table; small tables are joined."""
        units = [Unit(Piece(i, 0, n), n, b) for i, (n, b) in enumerate(zip(self.rows, self.nbytes, strict=True))]
        return cut_blocks(units, limits.join_below, limits.frame_rows)

    def read(self, pieces: Sequence[Piece], columns: Sequence[str]) -> pa.Table:
        """The rows of the pieces, in their order, conformed like rows of files."""
        schema = pa.schema([(name, self.schema[name].dtype) for name in columns])
        whole = {number: _here(self.tables[number]) for number in {p.file for p in pieces}}
        parts = [whole[p.file].select(list(columns)).slice(p.start, p.stop - p.start) for p in pieces]
        return conform(pa.concat_tables([conform(part, schema) for part in parts]), schema)


FINISHED: Any = "finished"  # rows were counted: the table was made


class RemoteTable:
    """A table on the workers of a Dask cluster. The future stays where the data set is; a task gets only its key."""

    def __init__(self, key: Any, future: Any = None) -> None:
        self.key, self.future = key, future

    def __reduce__(self) -> tuple[type[RemoteTable], tuple[Any]]:
        return RemoteTable, (self.key,)

    def fetch(self) -> pa.Table:
        """The table, brought here; a task steps aside meanwhile, so that a lost table can be made again."""
        from distributed import Future, get_client, worker_client

        if self.future is not None:
            return self.future.result()
        try:
            with worker_client() as client:
                return Future(self.key, client=client, state=FINISHED).result()
        except ValueError:  # not in a task
            return Future(self.key, client=get_client(), state=FINISHED).result()


def _here(table: object) -> pa.Table:
    return table.fetch() if isinstance(table, RemoteTable) else table


def frames_of(source: object) -> Frames:
    """The frames of a pandas, Arrow, cuDF, Dask or dask_cudf frame, or of a list of these but the Dask ones."""
    if libraries.library(source) == "dask" and hasattr(source, "to_delayed"):
        return _frames(*_of_dask(source))
    tables = [libraries.from_any(frame) for frame in (source if isinstance(source, (list, tuple)) else [source])]
    if not tables or any(t is None for t in tables):
        raise JobError(
            f"{type(source).__module__}.{type(source).__name__} is not a source",
            where="Dataset",
            do="give a path, a list of paths, or a pandas, Arrow, cuDF or Dask frame",
        )
    return _frames(tables, [_facts(t) for t in tables])


def _of_dask(frame: Any) -> tuple[list[Any], list[tuple[int, int, pa.Schema]]]:
    """Each partition as a table: futures on the workers where a client is current, else computed here in threads."""
    parts = frame.to_delayed()
    client = _current_client()
    if client is not None:
        futures = client.compute([_delayed_table(part) for part in parts])
        return [RemoteTable(f.key, f) for f in futures], client.gather(client.map(_facts, futures, pure=False))
    with ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(lambda part: to_table(part.compute(scheduler="sync")), parts))
    return tables, [_facts(t) for t in tables]


def _delayed_table(part: object) -> Any:
    import dask

    return dask.delayed(to_table)(part)


def _current_client() -> Any:
    try:
        from distributed import get_client

        return get_client()
    except (ImportError, ValueError):
        return None


def to_table(frame: object) -> pa.Table:
    """A partition of a Dask frame as a table."""
    table = libraries.from_any(frame)
    if table is None:
        raise JobError(
            f"a Dask frame of {type(frame).__name__} is not a source", do="give one of pandas or cuDF frames"
        )
    return table


def _facts(table: pa.Table) -> tuple[int, int, pa.Schema]:
    return table.num_rows, table.nbytes, table.schema.remove_metadata()


def _frames(tables: Sequence[Any], facts: Sequence[tuple[int, int, pa.Schema]]) -> Frames:
    rows, nbytes, schemas = zip(*facts, strict=True)
    if sum(rows) == 0:
        raise DataError("the input has no rows at all", where="Dataset", do="give a frame with rows")
    check_names(schemas[0].names, "Dataset")
    types: dict[str, pa.DataType] = {f.name: plain_type(f.type) for f in schemas[0]}
    for number, schema in enumerate(schemas):
        if set(schema.names) != set(types):
            raise DataError(
                "frames have different columns",
                where=f"frame {number}",
                why=f"{', '.join(schema.names)} here, {', '.join(types)} in the first",
            )
        types = {n: plain_type(schema.field(n).type) if pa.types.is_null(t) else t for n, t in types.items()}
    sizes = {n: fixed_size({schema.field(n).type for schema in schemas}) for n in types}
    columns = [Column(n, pa.string() if pa.types.is_null(t) else t, properties=sizes[n]) for n, t in types.items()]
    return Frames(tuple(tables), tuple(rows), tuple(nbytes), Schema(columns))
