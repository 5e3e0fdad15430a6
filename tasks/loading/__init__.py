"""The rows of an output as batches for training: every row once over all ranks and workers, in a new order every epoch.

An epoch is one sequence of all rows: the row groups of all files in an order drawn from (seed, epoch), and the rows of
each row group in an order drawn from (seed, epoch, row group). A shard (one worker of one rank) takes a contiguous part
of this sequence; the parts of all shards are equal in size to one row. So shards need no communication, and each of
them reads contiguous row groups.
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tasks.core.dtypes import is_list
from tasks.core.pickled_fields import PickledFields
from tasks.core.schema import Schema
from tasks.engines.convert.python_values import stored_type
from tasks.errors import DataError, JobError, near
from tasks.manifest import Manifest, chosen_versions
from tasks.storage.metadata_forms import DIGEST

OPEN_FILES = 8
FORMATS = ("parquet", "arrow")


@dataclass(frozen=True)
class Group:
    """The rows that a file stores together: a row group of Parquet, a record batch of Arrow."""

    path: str
    number: int
    rows: int


@dataclass(frozen=True)
class Shard:
    """One worker of one training process: `worker` of `workers` in `rank` of `ranks`, all counted from 0.

    The defaults are the only worker of the only rank. A JobError for a number that is not below its count.
    """

    rank: int = 0
    ranks: int = 1
    worker: int = 0
    workers: int = 1

    def __post_init__(self) -> None:
        if not (0 <= self.rank < self.ranks and 0 <= self.worker < self.workers):
            raise JobError(f"there is no worker {self.worker} of {self.workers}, rank {self.rank} of {self.ranks}",
                           do="count ranks and workers from 0")  # fmt: skip

    @property
    def number(self) -> int:
        """The number of this shard among all, from 0."""
        return self.rank * self.workers + self.worker

    @property
    def shards(self) -> int:
        """The number of all shards."""
        return self.ranks * self.workers


@dataclass(frozen=True)
class Loader(PickledFields):
    """Batches of the rows of an output folder, as Arrow tables.

    `for batch in loader(..)` gives the batches of the first epoch, `batches` those of any epoch and shard. Columns have
    the types of the output, and nulls stay null.

    path: the output folder; of an output with `train` and `valid`, one of these.
    batch_size: rows of a batch; the last batch of a shard may have fewer.
    columns: the columns to read, in this order; None: all.
    seed: the same seed gives the same order of rows in every epoch.
    shuffle: draw a new order for every epoch; False: the order of the files.
    drop_last: give whole batches only.
    even: give the same number of batches in every shard; an epoch then leaves out fewer rows than there are shards.
    versions: of an output with versions: `all`, `v0003..v0007`, `v0003..` or `v0003`; None: the newest one. Discarded
        versions are left out, with a warning.
    global_batches: the same order for any number of ranks and workers. batch_size is then the rows of all ranks
        together: batch n of an epoch is rows [n * batch_size, (n + 1) * batch_size) of its sequence, rank r of R takes
        the part from r/R to (r + 1)/R of it, and the workers of a rank take turns. All ranks have the same number of
        batches; of a last batch with fewer rows than ranks, some ranks have 0 rows. A rank then reads each row group
        that its part of a batch touches, so small row groups or large batches are read with the least waste.
    ahead: batches that a thread reads before they are needed; 0: none.

    Errors: a JobError for a batch_size below 1, an unknown column, and an output of csv or orc files; a DataError for a
    folder that is no output, and for a file that has other rows than the manifest says.
    """

    path: str
    batch_size: int = 4096
    columns: tuple[str, ...] | None = None
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    even: bool = False
    versions: str | None = None
    global_batches: bool = False
    ahead: int = 2

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise JobError(f"batch_size is {self.batch_size}", do="give 1 or more")
        if self.ahead < 0:
            raise JobError(f"ahead is {self.ahead}", do="give 0 or more batches to read ahead")
        if self.global_batches and self.even:
            raise JobError("even and global_batches do not go together",
                           why="with global_batches all ranks have the same number of batches anyway",
                           do="leave out even")  # fmt: skip
        form = self.manifest.data["output"]["format"]
        for other in self.manifests:
            if (now := other.data["output"]["format"]) != form:
                raise JobError("the versions are of several formats", where=other.path, why=f"{now} and {form}",
                               do="name versions of one format")  # fmt: skip
        if form not in FORMATS:
            raise JobError(f"rows of {form} files cannot be read by parts", where=self.path,
                           why="a loader reads row groups, which parquet and arrow files have",
                           do="write the output with output.format: parquet or arrow")  # fmt: skip
        for name in self.columns or ():
            if name not in self.schema:
                raise JobError(f"there is no column {name!r}", where=self.path, do=near(name, self.schema))

    @cached_property
    def manifests(self) -> list[Manifest]:
        """What each version says of itself, the oldest first; a list of one without `versions`."""
        if self.versions is None:
            return [Manifest.load(self.path)]
        return [Manifest.load(path) for path in chosen_versions(Path(self.path), self.versions)]

    @property
    def manifest(self) -> Manifest:
        """What the output, or the newest of its versions, says of itself."""
        return self.manifests[-1]

    @cached_property
    def schema(self) -> Schema:
        """Types, tags, cardinalities and embedding sizes of the columns: those of the newest version, whose ids hold
        for all before it."""
        return Schema.from_json(self.manifest.data["schema"])

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of a batch in their order."""
        return self.columns if self.columns is not None else tuple(self.schema)

    @cached_property
    def groups(self) -> list[Group]:
        """The groups of rows that files store together (row groups, record batches), in the manifest's order."""
        arrow = self.manifest.data["output"]["format"] == "arrow"
        groups = []
        for manifest in self.manifests:
            for part in manifest.parts:
                path = Path(manifest.path) / part["path"]
                stat = path.stat()
                rows = (_rows_of_arrow if arrow else _rows_of_parquet)(str(path), stat.st_size, stat.st_mtime_ns)
                if sum(rows) != part["rows"]:
                    raise DataError(f"{part['path']} holds {sum(rows):,} rows, the manifest says {part['rows']:,}",
                                    where=manifest.path, do="see what else is damaged: millrace verify")  # fmt: skip
                name = part["path"] if self.versions is None else os.path.relpath(path, self.manifest.path)
                groups += [Group(name, number, n) for number, n in enumerate(rows) if n]
        return groups

    @property
    def rows(self) -> int:
        """The number of rows of the output."""
        return sum(group.rows for group in self.groups)

    def rows_of(self, shard: Shard) -> tuple[int, int]:
        """The part [first, last) of an epoch's sequence that a shard takes."""
        if self.global_batches:
            raise JobError("with global_batches a shard has a part of every batch, not one run of rows",
                           do="see Loader.span")  # fmt: skip
        total, shards, number = self.rows, shard.shards, shard.number
        if self.even:
            each = total // shards
            return number * each, (number + 1) * each
        return total * number // shards, total * (number + 1) // shards

    def batches_of(self, shard: Shard) -> int:
        """How many batches a shard gives in an epoch."""
        if self.global_batches:
            steps = self.rows // self.batch_size if self.drop_last else -(-self.rows // self.batch_size)
            return len(range(shard.worker, steps, shard.workers))
        first, last = self.rows_of(shard)
        return (last - first) // self.batch_size if self.drop_last else -(-(last - first) // self.batch_size)

    def order(self, epoch: int) -> np.ndarray:
        """The numbers of the groups in the order in which an epoch goes through them."""
        if not self.shuffle:
            return np.arange(len(self.groups))
        return np.random.default_rng([self.seed, epoch]).permutation(len(self.groups))

    def __iter__(self) -> Batches:
        return self.batches()

    def batches(self, epoch: int = 0, shard: Shard | None = None) -> Batches:
        """The batches of a shard (default: the only one) in an epoch, numbered from 0."""
        return Batches(self, epoch, shard or Shard())

    def span(self, shard: Shard, number: int) -> tuple[int, int]:
        """The part [first, last) of an epoch's sequence that is batch `number` of a shard."""
        if self.global_batches:
            first = (shard.worker + number * shard.workers) * self.batch_size
            rows = min(self.batch_size, self.rows - first)
            return first + rows * shard.rank // shard.ranks, first + rows * (shard.rank + 1) // shard.ranks
        first, last = self.rows_of(shard)
        first += number * self.batch_size
        return first, min(first + self.batch_size, last)

    def order_of(self, shard: Shard) -> dict[str, Any]:
        """What decides which rows the batches of a shard have; a state of another order is refused."""
        order: dict[str, Any] = {
            "output": [manifest.data.get(DIGEST) for manifest in self.manifests], "rows": self.rows, "seed": self.seed,
            "shuffle": self.shuffle, "batch_size": self.batch_size, "drop_last": self.drop_last,
            "global_batches": self.global_batches,
        }  # fmt: skip
        if not self.global_batches:
            order |= {"even": self.even, "rank": shard.rank, "ranks": shard.ranks}
        return order


class Batches(Iterator[pa.Table]):
    """The batches of a shard in an epoch, which can stop after any of them and go on in another process.

    `state_dict` says how far the caller has come, as JSON values; `load_state_dict` goes there and reads no batch that
    lies before. With `global_batches` a state of one number of ranks and workers is right for every other.
    """

    def __init__(self, loader: Loader, epoch: int, shard: Shard, start: int = 0) -> None:
        self.loader, self.shard = loader, shard
        self._begin(epoch, start)

    def _begin(self, epoch: int, start: int) -> None:
        self.epoch, self._taken, self._next = epoch, start, start
        self._sequence = _Sequence(self.loader, epoch)
        self._ahead = deque[Future[pa.Table]]()
        self._thread = ThreadPoolExecutor(1, "millrace-loader") if self.loader.ahead else None

    def __next__(self) -> pa.Table:
        total = self.loader.batches_of(self.shard)
        if self._thread is None:
            if self._taken >= total:
                raise StopIteration
            batch = self._sequence.read(*self.loader.span(self.shard, self._taken))
        else:
            while self._next < min(total, self._taken + 1 + self.loader.ahead):
                span = self.loader.span(self.shard, self._next)
                self._ahead.append(self._thread.submit(self._sequence.read, *span))
                self._next += 1
            if not self._ahead:
                self._thread.shutdown()
                raise StopIteration
            try:
                batch = self._ahead.popleft().result()
            except BaseException:  # the next call reads this batch again, it does not leave it out
                self._thread.shutdown(wait=False, cancel_futures=True)
                self._begin(self.epoch, self._taken)
                raise
        self._taken += 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        """How far the caller has come: batches that were read ahead do not count."""
        order, batch = self.loader.order_of(self.shard), self._taken
        if self.loader.global_batches:
            batch = self.shard.worker + batch * self.shard.workers
        else:
            order |= {"worker": self.shard.worker, "workers": self.shard.workers}
        return {"epoch": self.epoch, "batch": batch, "order": order}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where a state was taken. A JobError for a state of another output, order or shard."""
        order = self.loader.order_of(self.shard)
        start = state["batch"]
        if self.loader.global_batches:
            start = max(0, -(-(start - self.shard.worker) // self.shard.workers))
        else:
            order |= {"worker": self.shard.worker, "workers": self.shard.workers}
        check_order(state, order, self.loader.path)
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
        self._begin(state["epoch"], start)


def check_order(state: Mapping[str, Any], order: Mapping[str, Any], path: str) -> None:
    """Raise a JobError for a state whose batches are not those of this order, with all that differs."""
    was = state["order"]
    other = [name for name in order if was.get(name) != order[name]]
    if other:
        parts = [
            "the output was written anew" if name == "output" else f"{name} was {was.get(name)}, it is {order[name]}"
            for name in other
        ]
        raise JobError("the state is of another order of rows", where=path, why="; ".join(parts),
                       do="load it with the settings it was taken with, or begin the epoch anew")  # fmt: skip


class _Sequence:
    """The rows of an epoch by their place in it. The group that was read last stays in memory."""

    def __init__(self, loader: Loader, epoch: int) -> None:
        self.loader, self.epoch, self.files = loader, epoch, _Files(loader)
        self.order = loader.order(epoch)
        self.ends = np.cumsum([loader.groups[number].rows for number in self.order], dtype=np.int64)
        self.last: tuple[int, pa.Table, np.ndarray] | None = None

    def read(self, first: int, last: int) -> pa.Table:
        """Rows [first, last) in one piece."""
        pieces, at = list[pa.Table](), int(np.searchsorted(self.ends, first, side="right"))
        at = min(at, len(self.order) - 1)
        while True:
            _, table, rows = self._group(at)
            begin = int(self.ends[at]) - table.num_rows
            low, high = max(first - begin, 0), min(last - begin, table.num_rows)
            if self.loader.shuffle:
                pieces.append(table.take(pa.array(rows[low:high])))
            else:
                pieces.append(table.slice(low, high - low))
            if self.ends[at] >= last:
                return pa.concat_tables(pieces).combine_chunks()
            at += 1

    def _group(self, at: int) -> tuple[int, pa.Table, np.ndarray]:
        number = int(self.order[at])
        if self.last is None or self.last[0] != number:
            group = self.loader.groups[number]
            seed = [self.loader.seed, self.epoch, number]
            rows = np.random.default_rng(seed).permutation(group.rows) if self.loader.shuffle else np.arange(0)
            self.last = number, self.files.read(group), rows
        return self.last


class _Files:
    """The last files that were read, still open."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.open: OrderedDict[str, Any] = OrderedDict()
        self.arrow = loader.manifest.data["output"]["format"] == "arrow"

    def read(self, group: Group) -> pa.Table:
        """The columns of a group; those that name its folder have one value throughout."""
        file, named = self._file(group.path), self._named(group.path)
        inside = [name for name in self.loader.names if name not in named]
        if self.arrow:
            table = pa.Table.from_batches([file.get_batch(group.number)]).select(inside)
        else:
            table = file.read_row_group(group.number, columns=inside, use_threads=False)
        for name, value in named.items():
            if name in self.loader.names:
                column = pa.repeat(value, group.rows) if value.is_valid else pa.nulls(group.rows, value.type)
                table = table.append_column(name, column)
        return table.select(list(self.loader.names)).replace_schema_metadata(None)

    def _file(self, path: str) -> Any:
        if path not in self.open:
            where = str(Path(self.loader.manifest.path) / path)
            self.open[path] = pa.ipc.open_file(pa.memory_map(where)) if self.arrow else pq.ParquetFile(where)
            if len(self.open) > OPEN_FILES:
                self.open.popitem(last=False)
        self.open.move_to_end(path)
        return self.open[path]

    def _named(self, path: str) -> dict[str, pa.Scalar]:
        partitioning = self.loader.manifest.partitioning
        if partitioning is None:
            return {}
        values = ds.get_partition_keys(partitioning.parse(f"/{path}"))
        return {field.name: pa.scalar(values.get(field.name), field.type) for field in partitioning.schema}


@lru_cache(maxsize=100_000)
def _rows_of_parquet(path: str, size: int, mtime: int) -> tuple[int, ...]:
    """The rows of each row group of a file (as it is now: size and time are part of the key)."""
    footer = pq.read_metadata(path)
    return tuple(footer.row_group(i).num_rows for i in range(footer.num_row_groups))


@lru_cache(maxsize=100_000)
def _rows_of_arrow(path: str, size: int, mtime: int) -> tuple[int, ...]:
    with pa.memory_map(path) as source:
        file = pa.ipc.open_file(source)
        return tuple(file.get_batch(i).num_rows for i in range(file.num_record_batches))


def arrays(table: pa.Table) -> dict[str, np.ndarray]:
    """The columns of a batch as numpy arrays, by name; `<column>_offsets` says where the elements of each list begin.

    Numbers and booleans have the column's type; times are integers in the column's unit; a null float is NaN. A list
    column gives its elements, and offsets (int64, one more than rows): row i has elements [offsets[i], offsets[i + 1]).
    A null list has no elements. Errors: a DataError for a column that is not of numbers, and for nulls in a column of
    integers, booleans or times.

    >>> arrays(pa.table({"x": [1.5, None], "l": [[1, 2], [3]]}))
    {'x': array([1.5, nan]), 'l': array([1, 2, 3]), 'l_offsets': array([0, 2, 3])}
    """
    by_column: dict[str, np.ndarray] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        values = column.combine_chunks()
        if isinstance(values, pa.ChunkedArray):
            values = values.chunk(0) if values.num_chunks else pa.array([], values.type)
        if is_list(values.type):
            lengths = np.asarray(values.value_lengths().fill_null(0), dtype=np.int64)
            by_column[name] = _numbers(name, values.flatten())
            by_column[f"{name}_offsets"] = np.concatenate([[0], np.cumsum(lengths)])
        else:
            by_column[name] = _numbers(name, values)
    return by_column


def jagged(columns: Mapping[str, np.ndarray], names: Sequence[str]) -> dict[str, Any]:
    """Columns of `arrays` in the jagged form of TorchRec: {keys, values, lengths}, one column behind the other.

    A column of single values has lists of length 1. `lengths` (int32) has those of the first column's rows, then those
    of the second's; `KeyedJaggedTensor(keys, values, lengths)` takes them as tensors. A JobError for no names, an
    unknown column, and columns of several types.

    >>> jagged(arrays(pa.table({"x": [7, 8], "l": [[1, 2], []]})), ["l", "x"])
    {'keys': ['l', 'x'], 'values': array([1, 2, 7, 8]), 'lengths': array([2, 0, 1, 1], dtype=int32)}
    """
    for name in names:
        if name not in columns:
            raise JobError(f"there is no column {name!r} in the batch", do=near(name, columns))
    types = {name: columns[name].dtype.name for name in names}
    if len(set(types.values())) != 1:
        why = ", ".join(f"{name} is {dtype}" for name, dtype in types.items()) or "no column is named"
        raise JobError("the columns of a jagged tensor have one type", why=why, do="name columns of one type")
    lengths = [
        np.diff(columns[f"{name}_offsets"]) if f"{name}_offsets" in columns else np.ones(len(columns[name]), np.int64)
        for name in names
    ]
    return {
        "keys": list(names), "values": np.concatenate([columns[name] for name in names]),
        "lengths": np.concatenate(lengths).astype(np.int32),
    }  # fmt: skip


def _numbers(name: str, values: pa.Array) -> np.ndarray:
    dtype = values.type
    if pa.types.is_boolean(dtype):
        values = values.cast(pa.uint8())
    elif pa.types.is_temporal(dtype):
        values = values.cast(stored_type(dtype))
    elif not (pa.types.is_integer(dtype) or pa.types.is_floating(dtype)):
        raise DataError(f"column {name!r} is {dtype}, which is no number", why="arrays and tensors hold numbers",
                        do=f"leave {name!r} out of columns=, or apply Categorify to it in the job")  # fmt: skip
    if values.null_count and not pa.types.is_floating(values.type):
        raise DataError(f"column {name!r} has nulls", why=f"{dtype} has no number for them",
                        do="apply FillMissing or Categorify to it in the job")  # fmt: skip
    numbers = values.to_numpy(zero_copy_only=False)
    return numbers.astype(np.bool_) if pa.types.is_boolean(dtype) else np.ascontiguousarray(numbers)


def loader(
    path: str | Path, columns: Sequence[str] | None = None, *, tags: Sequence[str] = (), **settings: Any
) -> Loader:
    """Make the Loader of an output folder; `settings` are the other parameters of `Loader`.

    tags: read the columns with any of these tags (texts or `Tags`), after `columns` and in the output's order. A
    JobError for a tag that no column has.

    for batch in loader("out/toy", batch_size=65536):  # Arrow tables
        ...
    """
    source = Loader(str(path), columns=None if columns is None else tuple(columns), **settings)
    if not tags:
        return source
    tagged = source.schema.with_any_tag(tags, str(path))
    return replace(source, columns=tuple(dict.fromkeys([*(columns or ()), *tagged])))
