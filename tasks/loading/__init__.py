"""The rows of an output as batches for training: every row once over all ranks and workers, in a new order every epoch.

An epoch is one sequence of all rows: the row groups of all files in an order drawn from (seed, epoch), and the rows of
each row group in an order drawn from (seed, epoch, row group). A shard (one worker of one rank) takes a contiguous part
of this sequence; the parts of all shards are equal in size to one row. So shards need no communication, and each of
them reads contiguous row groups.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise JobError(f"batch_size is {self.batch_size}", do="give 1 or more")
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
        total, shards, number = self.rows, shard.shards, shard.number
        if self.even:
            each = total // shards
            return number * each, (number + 1) * each
        return total * number // shards, total * (number + 1) // shards

    def batches_of(self, shard: Shard) -> int:
        """How many batches a shard gives in an epoch."""
        first, last = self.rows_of(shard)
        return (last - first) // self.batch_size if self.drop_last else -(-(last - first) // self.batch_size)

    def order(self, epoch: int) -> np.ndarray:
        """The numbers of the groups in the order in which an epoch goes through them."""
        if not self.shuffle:
            return np.arange(len(self.groups))
        return np.random.default_rng([self.seed, epoch]).permutation(len(self.groups))

    def __iter__(self) -> Iterator[pa.Table]:
        return self.batches()

    def batches(self, epoch: int = 0, shard: Shard | None = None) -> Iterator[pa.Table]:
        """The batches of a shard (default: the only one) in an epoch, numbered from 0."""
        shard = shard or Shard()
        left, waiting, rows = self.batches_of(shard), list[pa.Table](), 0
        for table in self._runs(epoch, *self.rows_of(shard)):
            waiting.append(table)
            rows += table.num_rows
            while rows >= self.batch_size and left:
                whole = pa.concat_tables(waiting)
                yield whole.slice(0, self.batch_size).combine_chunks()
                left, rows = left - 1, rows - self.batch_size
                waiting = [whole.slice(self.batch_size)] if rows else []
        if left and rows:
            yield pa.concat_tables(waiting).combine_chunks()

    def _runs(self, epoch: int, first: int, last: int) -> Iterator[pa.Table]:
        """Rows [first, last) of an epoch, a group or a part of one at a time."""
        before, files = 0, _Files(self)
        for number in self.order(epoch):
            group = self.groups[number]
            low, high = max(first - before, 0), min(last - before, group.rows)
            before += group.rows
            if low < high:
                table = files.read(group)
                if self.shuffle:
                    rows = np.random.default_rng([self.seed, epoch, int(number)]).permutation(group.rows)[low:high]
                    yield table.take(pa.array(rows))
                else:
                    yield table.slice(low, high - low)
            if before >= last:
                return


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


def loader(path: str | Path, columns: Sequence[str] | None = None, **settings: Any) -> Loader:
    """Make the Loader of an output folder; `settings` are the other parameters of `Loader`.

    for batch in loader("out/toy", batch_size=65536):  # Arrow tables
        ...
    """
    return Loader(str(path), columns=None if columns is None else tuple(columns), **settings)
