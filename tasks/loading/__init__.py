"""The rows of an output as batches for training: every row once over all ranks and workers, in a new order every epoch.

An epoch is one sequence of all rows: the row groups of all files in an order drawn from (seed, epoch), and the rows of
each row group in an order drawn from (seed, epoch, row group). A shard (one worker of one rank) takes a contiguous part
of this sequence; the parts of all shards are equal in size to one row. So shards need no communication, and each of
them reads contiguous row groups.
"""

from __future__ import annotations

import logging
import os
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tasks.cluster.out_of_memory import is_out_of_memory
from tasks.core.dtypes import leaf_type
from tasks.core.pickled_fields import PickledFields
from tasks.core.plan import File
from tasks.core.schema import Schema
from tasks.engines import engine
from tasks.errors import DataError, HostError, JobError, near
from tasks.loading.batch_arrays import (
    Arrays,
    GroupColumn,
    arrays,
    assemble_batch,
    fill_null_floats,
    group_columns,
    in_order,
    jagged,
)
from tasks.loading.remote_parts import ArrowRanges, CopiesAhead, Place, RangesAhead, RemoteParts
from tasks.manifest import Manifest, alike, choose_versions, common_columns
from tasks.storage.cached_copies import CachedCopies
from tasks.storage.credentials import storage
from tasks.storage.discarded import check_discarded
from tasks.storage.documents import DIGEST
from tasks.storage.files import local_folder
from tasks.storage.files_being_read import OpenFolder, make_output_gone_error, open_output
from tasks.storage.own_files import current
from tasks.storage.published_copy import open_published

__all__ = ["Arrays", "Batches", "Group", "Loader", "Shard", "arrays", "check_order", "jagged", "loader"]

OPEN_FILES = 8
# Row groups whose orders are drawn at once: a thread draws 30 M rows/s, and a GPU takes three times as many.
ORDERS_AHEAD = 3
FORMATS = ("parquet", "arrow")
GPU_MODULES = ("cudf", "pylibcudf", "rmm", "cupy")
B = TypeVar("B")  # a batch as the caller gets it
log = logging.getLogger("rowmill")


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
            raise JobError(
                f"there is no worker {self.worker} of {self.workers}, rank {self.rank} of {self.ranks}",
                do="count ranks and workers from 0",
            )

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
    """Batches of the rows of an output folder, as Arrow tables, or as arrays in the memory of a device.

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
        versions are left out, with a warning, and so are those that have other ids than the newest one.
    global_batches: the same order for any number of ranks and workers. batch_size is then the rows of all ranks
        together: batch n of an epoch is rows [n * batch_size, (n + 1) * batch_size) of its sequence, rank r of R takes
        the part from r/R to (r + 1)/R of it, and the workers of a rank take turns. All ranks have the same number of
        batches; of a last batch with fewer rows than ranks, some ranks have 0 rows. A rank then reads each row group
        that its part of a batch touches, so small row groups or large batches are read with the least waste.
    ahead: batches that threads read before they are needed; 0: none. In host memory lie these batches, the row group of
        which the next ones are made, and the row group behind it.
    storage_options: for an output behind a URL, whose `path` names it: the options of its storage, or their name
        (`ROWMILL_STORAGE_<NAME>`).
    cache: a folder of this host into which the parts of a URL are copied: each once for all processes of the host and
        all epochs, compared with its digest. None: the row groups are read by ranges, the columns that are needed
        alone, in each epoch anew; up to 256 MiB of the next ones are fetched meanwhile, in each process that iterates.
    cache_bytes: the size of that folder, above which the parts used longest ago are removed.
    device: None: batches are Arrow tables. `cpu`, `cuda` (the current GPU) or `cuda:1`: a batch is a map of arrays,
        named and typed as `arrays` does, in that memory: NumPy's, or CuPy's, which PyTorch, JAX and others take over
        without a copy (DLPack: `torch.from_dlpack`). Rows, order, values and states are those of Arrow tables. cuDF
        decodes the row groups of Parquet files on the GPU; Arrow files, and columns that cuDF does not read, are
        read into host memory and copied. cuDF reads parts behind a URL from their copies in `cache`; without, Arrow
        reads them.

    In the memory of a device lie the decoded row groups that a batch and the `ahead` next ones touch, with `ahead` at
    least two: two where batches are smaller than row groups. One that is being read takes more than its own size for a
    moment, since its order is another copy, and cuDF unpacks its pages. A batch is made on the stream that is
    current for CuPy when it is taken, of row groups that a thread decodes on a stream of its own. CuPy's pool and RMM
    allocate; where RMM has its default resource, whose frees wait for all work of the GPU, the loader sets the
    asynchronous one.

    A loader holds its output: after a run has replaced it, all epochs of this loader, also in processes to which it
    travels, have the old rows as long as `run.keep_replaced` leaves them, and `output.keep_versions` leaves versions
    that a loader on the same host holds. Each version takes an open file of the process.

    Errors: a JobError for a batch_size below 1, an unknown column, and an output of csv or orc files; a DataError for a
    folder that is not an output, for a file that is missing or has another size or other rows than the manifest says,
    and for an output that was replaced and is gone. With a device, a HostError where cuDF is not installed, no GPU
    answers, or its memory is too small, and the errors of `arrays` as soon as the row group is read.
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
    device: str | None = None
    storage_options: str | Mapping[str, Any] | None = field(default=None, repr=False, hash=False)
    cache: str | None = None
    cache_bytes: int = 100 * 2**30

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise JobError(f"batch_size is {self.batch_size}", do="give 1 or more")
        if self.cache is not None:
            local_folder(self.cache, "the cache", "cache")
        if self.ahead < 0:
            raise JobError(f"ahead is {self.ahead}", do="give 0 or more batches to read ahead")
        object.__setattr__(self, "device", device_name(self.device))
        if self.global_batches and self.even:
            raise JobError(
                "even and global_batches do not go together",
                why="with global_batches all ranks have the same number of batches anyway",
                do="leave out even",
            )
        form = self.manifest.data["output"]["format"]
        for other in self.manifests:
            if (now := other.data["output"]["format"]) != form:
                raise JobError(
                    "the versions are of several formats",
                    where=other.path,
                    why=f"{now} and {form}",
                    do="name versions of one format",
                )
        if form not in FORMATS:
            raise JobError(
                f"rows of {form} files cannot be read by parts",
                where=self.path,
                why="a loader reads row groups, which parquet and arrow files have",
                do="write the output with output.format: parquet or arrow",
            )
        for name in self.columns or ():
            if name not in self.schema:
                raise JobError(f"there is no column {name!r}", where=self.path, do=near(name, self.schema))
        self._opened  # noqa: B018

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_published": self._published}

    def with_settings(self, **settings: Any) -> Loader:
        """Make a loader with other settings, of the output that this one holds."""
        changed = object.__new__(Loader)
        changed.__dict__.update(self.__dict__ | settings)
        changed.__post_init__()
        return changed

    @cached_property
    def _published(self) -> _Published:
        """What the output says of itself, as it was when this loader was made."""
        several = self.versions is not None
        with open_published(self.path, self.storage_options, "the output", "path", every_version=several) as origin:
            if self.versions is None:
                check_discarded(current(origin.folder), origin.folder, origin.name)
                folders = [origin.folder]
            else:
                folders = choose_versions(origin.folder, self.versions, origin)
            manifests = [Manifest.load(folder) for folder in folders]
            places = [Path(manifest.path) for manifest in manifests]
            manifests = [replace(manifest, path=origin.name(Path(manifest.path))) for manifest in manifests]
            files = [origin.at(place).list_files() for place in places] if origin.is_copy else None
            return _Published(manifests, common_columns(manifests, places), files)

    @property
    def manifests(self) -> list[Manifest]:
        """What each version says of itself, the oldest first; a list of one without `versions`."""
        return self._published.manifests

    @cached_property
    def _opened(self) -> list[OpenFolder]:
        """The folders of the versions, which this process holds; none of a URL."""
        if self._published.files is not None:
            return []
        return [open_output(Path(manifest.path), manifest.data) for manifest in self.manifests]

    @cached_property
    def remote_parts(self) -> RemoteParts | None:
        """The parts of an output behind a URL; None for one of this host. A DataError for a part that is missing or has
        another size than its manifest says."""
        if self._published.files is None:
            return None
        files = {}
        digests = {}
        for manifest, listed in zip(self.manifests, self._published.files, strict=True):
            for part in manifest.parts:
                file = listed.get(part["path"])
                if file is None:
                    raise _make_damage_error(manifest.path, f"{part['path']} is missing")
                _check_size(file.size, part, manifest.path)
                name = self._name(manifest, part["path"])
                files[name], digests[name] = file, part["xxh3_128"]
        cache = None if self.cache is None else CachedCopies(Path(self.cache), self.cache_bytes)
        is_arrow = self.manifest.data["output"]["format"] == "arrow"
        return RemoteParts(files, digests, storage(self.storage_options), is_arrow, cache)

    @cached_property
    def _places(self) -> dict[str, tuple[OpenFolder, str]]:
        """The folder of each file, and its path in it, by the name that a group has."""
        return {
            self._name(manifest, part["path"]): (opened, part["path"])
            for manifest, opened in zip(self.manifests, self._opened, strict=True)
            for part in manifest.parts
        }

    def _name(self, manifest: Manifest, part: str) -> str:
        return part if self.versions is None else os.path.relpath(Path(manifest.path) / part, self.manifest.path)

    def place(self, name: str) -> Path:
        """Find a file of the groups, also of an output that was replaced. A DataError if it is gone."""
        opened, part = self._places[name]
        place = opened.path / part
        if not place.exists():
            raise (
                make_output_gone_error(opened.folder)
                if opened.is_moved
                else _make_damage_error(str(opened.folder), f"{part} is missing")
            )
        return place

    @property
    def manifest(self) -> Manifest:
        """What the output, or the newest of its versions, says of itself."""
        return self.manifests[-1]

    @property
    def schema(self) -> Schema:
        """Types, tags, cardinalities and embedding sizes of the columns that all versions have: those of the newest
        version, whose ids hold for all before it."""
        return self._published.schema

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of a batch in their order."""
        return self.columns if self.columns is not None else tuple(self.schema)

    @cached_property
    def groups(self) -> list[Group]:
        """The groups of rows that files store together (row groups, record batches), in the manifest's order."""
        arrow = self.manifest.data["output"]["format"] == "arrow"
        groups = []
        remote = None if self.remote_parts is None else self.remote_parts.read_group_rows()
        for manifest in self.manifests:
            for part in manifest.parts:
                name = self._name(manifest, part["path"])
                rows = (
                    _read_group_rows(self.place(name), part, manifest.path, arrow) if remote is None else remote[name]
                )
                _check_rows(rows, part, manifest.path)
                groups += [Group(name, number, n) for number, n in enumerate(rows) if n]
        return groups

    @property
    def rows(self) -> int:
        """The number of rows of the output."""
        return sum(group.rows for group in self.groups)

    def rows_of(self, shard: Shard) -> tuple[int, int]:
        """Compute the part [first, last) of an epoch's sequence that a shard takes."""
        if self.global_batches:
            raise JobError(
                "with global_batches a shard has a part of every batch, not one run of rows", do="see Loader.span"
            )
        total = self.rows
        shards = shard.shards
        number = shard.number
        if self.even:
            each = total // shards
            return number * each, (number + 1) * each
        return total * number // shards, total * (number + 1) // shards

    def batches_of(self, shard: Shard) -> int:
        """Count the batches that a shard gives in an epoch."""
        if self.global_batches:
            steps = self.rows // self.batch_size if self.drop_last else -(-self.rows // self.batch_size)
            return len(range(shard.worker, steps, shard.workers))
        first, last = self.rows_of(shard)
        return (last - first) // self.batch_size if self.drop_last else -(-(last - first) // self.batch_size)

    def order(self, epoch: int) -> np.ndarray:
        """Return the numbers of the groups in the order in which an epoch goes through them."""
        if not self.shuffle:
            return np.arange(len(self.groups))
        return np.random.default_rng([self.seed, epoch]).permutation(len(self.groups))

    def __iter__(self) -> Batches:
        return self.batches()

    def batches(self, epoch: int = 0, shard: Shard | None = None) -> Batches:
        """Return the batches of a shard (default: the only one) in an epoch, numbered from 0."""
        return Batches(self, epoch, shard or Shard())

    def span(self, shard: Shard, number: int) -> tuple[int, int]:
        """Compute the part [first, last) of an epoch's sequence that is batch `number` of a shard."""
        if self.global_batches:
            first = (shard.worker + number * shard.workers) * self.batch_size
            rows = min(self.batch_size, self.rows - first)
            return first + rows * shard.rank // shard.ranks, first + rows * (shard.rank + 1) // shard.ranks
        first, last = self.rows_of(shard)
        first += number * self.batch_size
        return first, min(first + self.batch_size, last)

    def order_of(self, shard: Shard) -> dict[str, Any]:
        """Return what decides which rows the batches of a shard have; a state of another order is refused."""
        order: dict[str, Any] = {
            "output": [manifest.data.get(DIGEST) for manifest in self.manifests],
            "rows": self.rows,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "global_batches": self.global_batches,
        }
        if not self.global_batches:
            order |= {"even": self.even, "rank": shard.rank, "ranks": shard.ranks}
        return order


class _Published(NamedTuple):
    """What an output said of itself when a loader was made: its versions, the columns that all have, and of a URL the
    files of each version as they were listed."""

    manifests: list[Manifest]
    schema: Schema
    files: list[dict[str, File]] | None


class Batches(Iterator[B]):
    """The batches of a shard in an epoch, which can stop after any of them and go on in another process.

    `state_dict` says how far the caller has come, as JSON values; `load_state_dict` goes there and reads no batch that
    lies before. With `global_batches` a state of one number of ranks and workers is right for every other. A state does
    not depend on the loader's `device`.

    convert: makes of each batch what the caller gets, on the stream on which the batch is made.
    stream: with a GPU, gives the address of that stream; None: CuPy's current one.
    """

    def __init__(
        self,
        loader: Loader,
        epoch: int,
        shard: Shard,
        start: int = 0,
        *,
        convert: Callable[[Any], B] | None = None,
        stream: Callable[[], int] | None = None,
    ) -> None:
        self.loader = loader
        self.shard = shard
        self._convert = convert or _same
        self._stream = stream
        self._device = _open_device(loader.device) if loader.device else None
        self._begin(epoch, start)

    def _begin(self, epoch: int, start: int) -> None:
        self.epoch = epoch
        self._taken = start
        self._next = start
        numbers = range(start, self.loader.batches_of(self.shard))
        spans = _Spans(self.loader, self.shard, numbers)
        if self._device is None:
            self._sequence: _Sequence[B] = _Sequence(self.loader, epoch, self._convert, spans)
        else:
            self._sequence = _DeviceSequence(self.loader, epoch, self._convert, spans, self._device, self._stream)
        self._ahead = deque[Callable[[], Any]]()
        self._threads = _Threads.start(self.loader.ahead) if self.loader.ahead else None

    def __next__(self) -> B:
        total = self.loader.batches_of(self.shard)
        while self._next < min(total, self._taken + 1 + self.loader.ahead):
            self._ahead.append(self._sequence.begin(self._threads, *self.loader.span(self.shard, self._next)))
            self._next += 1
        if not self._ahead:
            self._end()
            raise StopIteration
        try:
            batch = self._sequence.batch(self._ahead.popleft()())
        except BaseException:  # the next call reads this batch again, it does not leave it out
            self._end(wait=False, cancel_futures=True)
            self._begin(self.epoch, self._taken)
            raise
        self._taken += 1
        return batch

    def _end(self, **how: bool) -> None:
        if self._threads is not None:
            self._threads.shutdown(**how)

    def state_dict(self) -> dict[str, Any]:
        """Return how far the caller has come: batches that were read ahead do not count."""
        order = self.loader.order_of(self.shard)
        batch = self._taken
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
        self._end(cancel_futures=True)
        self._begin(state["epoch"], start)


def _same(batch: object) -> Any:
    return batch


def check_order(state: Mapping[str, Any], order: Mapping[str, Any], path: str) -> None:
    """Raise a JobError for a state whose batches are not those of this order, with all that differs."""
    was = state["order"]
    other = [name for name in order if was.get(name) != order[name]]
    if other:
        parts = [
            "the output was written anew" if name == "output" else f"{name} was {was.get(name)}, it is {order[name]}"
            for name in other
        ]
        raise JobError(
            "the state is of another order of rows",
            where=path,
            why="; ".join(parts),
            do="load it with the settings it was taken with, or begin the epoch anew",
        )


@dataclass(frozen=True)
class _Spans:
    """The batches that the caller may take, each as rows [first, last) of the epoch."""

    loader: Loader
    shard: Shard
    numbers: range

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return (self.loader.span(self.shard, number) for number in self.numbers)


class _Threads(NamedTuple):
    """The threads of an iteration: one reads row groups, some draw their orders, others make batches of them in host
    memory."""

    group_reader: ThreadPoolExecutor
    orderers: ThreadPoolExecutor
    batch_makers: ThreadPoolExecutor

    @staticmethod
    def start(ahead: int) -> _Threads:
        # One group at a time, since an open file is for one thread. A batch maker waits for the group reader, which
        # waits for the orderers, which wait for nobody.
        return _Threads(
            ThreadPoolExecutor(1, "rowmill-loader"),
            ThreadPoolExecutor(ORDERS_AHEAD, "rowmill-orders"),
            ThreadPoolExecutor(ahead, "rowmill-batches"),
        )

    def shutdown(self, **how: bool) -> None:
        for threads in self:
            threads.shutdown(**how)


_Piece = tuple[Callable[[], Any], int, int]  # of a batch: gives the group, its first and last row in the epoch's order


class _EpochGroups:
    """The row groups of an epoch in their order. It does not know the sequence, which so ends with its last user."""

    def __init__(self, loader: Loader, epoch: int) -> None:
        self.groups = loader.groups
        self.order = loader.order(epoch)
        self.ends = np.cumsum([self.groups[number].rows for number in self.order], dtype=np.int64)

    def find_needed(self, spans: _Spans) -> Iterator[int]:
        """Yield the place of each group that the batches touch, in ascending order."""
        places = (at for span in spans for at, _, _ in self.find_places(*span))
        return (at for at, _ in groupby(places))

    def find_places(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Yield (place of a group in the epoch, first and last row in its order) of rows [first, last)."""
        at = min(int(np.searchsorted(self.ends, first, side="right")), len(self.order) - 1)
        while True:
            rows = self.group_at(at).rows
            begin = int(self.ends[at]) - rows
            yield at, max(first - begin, 0), min(last - begin, rows)
            if self.ends[at] >= last:
                return
            at += 1

    def group_at(self, at: int) -> Group:
        return self.groups[self.order[at]]


class _Sequence(Generic[B]):
    """The rows of an epoch by their place in it: whole row groups in the order of the epoch, cut into batches.

    A thread reads the groups of the batches that were begun. A group is let go when a batch behind it is taken; where
    less than two are left, the thread reads on: of batches smaller than a group, two groups are in memory.
    """

    def __init__(self, loader: Loader, epoch: int, convert: Callable[[Any], B], spans: _Spans) -> None:
        self.loader = loader
        self.epoch = epoch
        self.convert = convert
        self.epoch_groups = _EpochGroups(loader, epoch)
        needed = map(self.epoch_groups.group_at, self.epoch_groups.find_needed(spans))
        self.files = _Files(loader, needed, use_threads=spans.shard.workers == 1)
        self.needed = self.epoch_groups.find_needed(spans)
        self.needed_orders = self.epoch_groups.find_needed(spans)
        self.orders: dict[int, Callable[[], np.ndarray]] = {}  # by place; of groups that are still to be read
        self.groups: dict[int, Callable[[], Any]] = {}
        self.furthest = -1  # place of the last group that was begun

    def begin(self, threads: _Threads | None, first: int, last: int) -> Callable[[], Any]:
        """Have threads read rows [first, last); the function gives what `batch` makes a batch of. None: it reads."""
        places = list(self.epoch_groups.find_places(first, last))
        if threads is None:
            return lambda: self._cut(self._load_pieces(places))
        for at, _, _ in places:
            self._begin_group(threads, at)
        cut = self._begin_cut(threads, [(self.groups[at], low, high) for at, low, high in places])

        def take() -> Any:
            self._let_go(threads, places[0][0])
            return cut()

        return take

    def _load_pieces(self, places: list[tuple[int, int, int]]) -> list[_Piece]:
        """List the pieces of a batch; groups that are not in memory are read here."""
        self._forget(places[0][0])
        for at, _, _ in places:
            if at not in self.groups:
                self.groups[at] = partial(_same, self._load_group(at, partial(self._order, at)))
        return [(self.groups[at], low, high) for at, low, high in places]

    def _let_go(self, threads: _Threads, first: int) -> None:
        """Let go of the groups before a place, and have the thread read on where less than two are left."""
        self._forget(first)
        while len(self.groups) < 2 and (at := next(self.needed, -1)) >= 0:
            self._begin_group(threads, at)

    def _forget(self, first: int) -> None:
        self.groups = {at: group for at, group in self.groups.items() if at >= first}

    def _begin_group(self, threads: _Threads, at: int) -> None:
        if at > self.furthest:
            self._begin_orders(threads)
            order = self.orders.pop(at, partial(self._order, at))
            self.groups[at] = threads.group_reader.submit(self._load_group, at, order).result
            self.furthest = at

    def _begin_orders(self, threads: _Threads) -> None:
        """Have threads draw the orders of the next groups, which takes longer than to read them."""
        while self.loader.shuffle and len(self.orders) < ORDERS_AHEAD:
            at = next(self.needed_orders, None)
            if at is None:
                return
            self.orders[at] = threads.orderers.submit(self._order, at).result

    def _load_group(self, at: int, order: Callable[[], np.ndarray]) -> Any:
        """Read a group: its columns as files have them, and the order of its rows in the epoch (None: as they lie)."""
        table = self.files.read(self.epoch_groups.group_at(at), self.loader.names)
        return table, pa.array(order()) if self.loader.shuffle else None

    def _begin_cut(self, threads: _Threads, pieces: list[_Piece]) -> Callable[[], Any]:
        return threads.batch_makers.submit(self._cut, pieces).result

    def _cut(self, pieces: list[_Piece]) -> Any:
        """Make one table in one piece of all pieces, once their groups are read."""
        tables = list[pa.Table]()
        for group, low, high in pieces:
            table, order = group()
            rows = high - low
            tables.append(table.slice(low, rows) if order is None else table.take(order.slice(low, rows)))
        return pa.concat_tables(tables).combine_chunks()

    def batch(self, read: Any) -> B:
        """Make the batch that the caller gets of what `read` returns."""
        return self.convert(read)

    def _order(self, at: int) -> np.ndarray:
        """Return the order of the rows of a group."""
        seed = [self.loader.seed, self.epoch, int(self.epoch_groups.order[at])]
        return np.random.default_rng(seed).permutation(self.epoch_groups.group_at(at).rows)


class _DeviceSequence(_Sequence[B]):
    """The rows of an epoch in the memory of a device, where groups are put into the order of the epoch as a whole.

    The caller makes the batches, on its own stream, when it takes them.
    """

    def __init__(
        self,
        loader: Loader,
        epoch: int,
        convert: Callable[[Any], B],
        spans: _Spans,
        device: Any,
        stream: Callable[[], int] | None,
    ) -> None:
        super().__init__(loader, epoch, convert, spans)
        self.device = device
        self.stream = stream
        self.warned = False

    def _begin_cut(self, threads: _Threads, pieces: list[_Piece]) -> Callable[[], Any]:
        return partial(self._cut, pieces)

    def _cut(self, pieces: list[_Piece]) -> Any:
        return [(group(), low, high) for group, low, high in pieces]

    def batch(self, read: list[tuple[dict[str, GroupColumn], int, int]]) -> B:
        try:
            with self.device.handing_over(self.stream() if self.stream else None):
                return self.convert(assemble_batch(self.device.xp, read))
        except Exception as error:
            if is_out_of_memory(error):
                raise self._memory_error(error, "a batch", f"{self.loader.batch_size:,} rows") from error
            raise

    def _load_group(self, at: int, order: Callable[[], np.ndarray]) -> dict[str, GroupColumn]:
        """Load a group in the order of the epoch."""
        group = self.epoch_groups.group_at(at)
        try:
            with self.device.reading():
                columns = self._decode_group(group)
                index = self.device.put(order()) if self.loader.shuffle else None
                xp = self.device.xp
                host = self.device.host
                return {name: in_order(xp, host, columns.pop(name), index) for name in self.loader.names}
        except Exception as error:
            if is_out_of_memory(error):
                what = f"row group {group.number} of {group.path}"
                raise self._memory_error(error, what, f"{group.rows:,} rows") from error
            raise

    def _decode_group(self, group: Group) -> dict[str, GroupColumn]:
        """Decode the columns of a group that the device reads, and read those that only Arrow reads."""
        types = {name: self.loader.schema[name].dtype for name in self.loader.names}
        columns = dict[str, GroupColumn]()
        for name, (values, valid, offsets) in self._read_on_device(group, types).items():
            numbers = fill_null_floats(self.device.xp, name, leaf_type(types[name]), values, valid)
            columns[name] = GroupColumn(numbers, offsets)
        if others := [name for name in self.loader.names if name not in columns]:
            columns |= group_columns(self.files.read(group, others), self.device.put)
        return columns

    def _read_on_device(self, group: Group, types: dict[str, pa.DataType]) -> dict[str, tuple[Any, Any, Any]]:
        path = self.files.find_parquet(group.path)
        if path is None:
            return {}
        named = self.files.parse_folder_values(group.path)
        sized = {
            name for name in types if "fixed_size" in self.loader.schema[name].properties
        }  # rows of a length: Arrow's
        inside = {name: dtype for name, dtype in types.items() if name not in named and name not in sized}
        if len(self.loader.manifests) > 1:  # a version before may have smaller integers, which the host widens
            own = self.files.schema(group)
            inside = {name: dtype for name, dtype in inside.items() if own.field(name).type == dtype}
        try:
            stored: dict[str, tuple[Any, Any, Any]] = self.device.read(str(path), group.number, inside)
        except (RuntimeError, ValueError, OSError) as error:
            if is_out_of_memory(error):
                raise
            if not self.warned:  # once in an epoch
                self.warned = True
                what = "row groups are read on the host where cuDF fails, first row group %d of %s: %s"
                log.warning(what, group.number, Path(self.loader.manifest.path) / group.path, error)
            return {}
        return stored

    def _memory_error(self, error: Exception, what: str, size: str) -> HostError:
        return HostError(
            f"the memory of {self.device.name} is too small for {what}",
            where=self.loader.path,
            why=f"{size} of {len(self.loader.names)} columns: {error}",
            do="load fewer columns, give a smaller batch_size or ahead=0, or write the output with a smaller "
            "output.row_group_size",
        )


class _Files:
    """The last files that were read, still open; or what reads the parts behind a URL, for the groups that are needed,
    in their order."""

    def __init__(self, loader: Loader, needed: Iterator[Group], use_threads: bool) -> None:
        self.loader = loader
        self.use_threads = use_threads  # workers of a DataLoader have the cores together, each decodes on one
        self.open: OrderedDict[str, Any] = OrderedDict()
        self.arrow = loader.manifest.data["output"]["format"] == "arrow"
        self.ranges: RangesAhead | ArrowRanges | None = None
        self.copies: CopiesAhead | None = None
        if (parts := loader.remote_parts) is not None:
            places = (Place(group.path, group.number) for group in needed)
            if parts.cache is not None:
                self.copies = CopiesAhead(parts, places)
            else:
                self.ranges = ArrowRanges(parts) if self.arrow else RangesAhead(parts, loader.names, places)

    def read(self, group: Group, names: Sequence[str]) -> pa.Table:
        """Read columns of a group; those that name its folder have one value throughout."""
        named = self.parse_folder_values(group.path)
        inside = [name for name in names if name not in named]
        if self.ranges is not None:
            table = self.ranges.read(Place(group.path, group.number), inside)
        elif self.arrow:
            table = pa.Table.from_batches([self._file(group.path).get_batch(group.number)]).select(inside)
        else:
            table = self._file(group.path).read_row_group(group.number, columns=inside, use_threads=self.use_threads)
        for name, value in named.items():
            if name in names:
                column = pa.repeat(value, group.rows) if value.is_valid else pa.nulls(group.rows, value.type)
                table = table.append_column(name, column)
        table = table.select(list(names)).replace_schema_metadata(None)
        if len(self.loader.manifests) > 1:
            wanted = {name: self.loader.schema[name].dtype for name in names}
            fields = [(f.name, wanted[f.name] if alike(f.type, wanted[f.name]) else f.type) for f in table.schema]
            table = table.cast(pa.schema(fields))
        return table

    def schema(self, group: Group) -> pa.Schema:
        """Read the columns of the file of a group, as it stores them."""
        return self._file(group.path).schema_arrow

    def find_parquet(self, path: str) -> Path | None:
        """The Parquet file of this host that has a part; None where there is none."""
        if self.arrow or self.ranges is not None:
            return None
        return self._find_file(path)

    def _find_file(self, path: str) -> Path:
        return self.loader.place(path) if self.copies is None else self.copies.find(path)

    def _file(self, path: str) -> pa.RecordBatchFileReader | pq.ParquetFile:
        if self.copies is not None:
            self.copies.find(path)  # it counts as used, and the next ones are begun
        if path not in self.open:
            where = str(self._find_file(path))
            self.open[path] = pa.ipc.open_file(pa.memory_map(where)) if self.arrow else pq.ParquetFile(where)
            if len(self.open) > OPEN_FILES:
                self.open.popitem(last=False)
        self.open.move_to_end(path)
        return self.open[path]

    def parse_folder_values(self, path: str) -> dict[str, pa.Scalar]:
        """Parse the columns that the folder of a file names, with their values."""
        partitioning = self.loader.manifest.partitioning
        if partitioning is None:
            return {}
        values = ds.get_partition_keys(partitioning.parse(f"/{path}"))
        return {field.name: pa.scalar(values.get(field.name), field.type) for field in partitioning.schema}


_rows: dict[tuple[int, ...], tuple[int, ...]] = {}  # of the files that this process has looked at, as they were


def _read_group_rows(place: Path, part: Mapping[str, Any], folder: str, is_arrow: bool) -> tuple[int, ...]:
    """Read the rows of each group of a file; a DataError if it has another size than its manifest says."""
    stat = place.stat()
    _check_size(stat.st_size, part, folder)
    key = stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
    if key not in _rows:
        _rows[key] = (_read_arrow_rows if is_arrow else _read_parquet_rows)(str(place))
    return _rows[key]


def _check_size(size: int, part: Mapping[str, Any], folder: str) -> None:
    if size != part["bytes"]:
        raise _make_damage_error(folder, f"{part['path']} has {size:,} bytes, the manifest says {part['bytes']:,}")


def _check_rows(rows: Sequence[int], part: Mapping[str, Any], folder: str) -> None:
    if sum(rows) != part["rows"]:
        raise _make_damage_error(folder, f"{part['path']} holds {sum(rows):,} rows, the manifest says {part['rows']:,}")


def _make_damage_error(folder: str, what: str) -> DataError:
    return DataError(what, where=folder, do=f"see what else is damaged: rowmill verify {folder}")


def _read_parquet_rows(path: str) -> tuple[int, ...]:
    footer = pq.read_metadata(path)
    return tuple(footer.row_group(i).num_rows for i in range(footer.num_row_groups))


def _read_arrow_rows(path: str) -> tuple[int, ...]:
    with pa.memory_map(path) as source:
        file = pa.ipc.open_file(source)
        return tuple(file.get_batch(i).num_rows for i in range(file.num_record_batches))


def device_name(device: object) -> str | None:
    """Convert a `device` to text: None, `cpu`, `cuda` or `cuda:1`, also from a number or torch.device.

    A JobError for others; a HostError for a GPU if cuDF is not installed.
    """
    if device is None:
        return None
    name = f"cuda:{device}" if isinstance(device, int) else str(device)
    if name != "cpu" and not re.fullmatch(r"cuda(:\d+)?", name):
        raise JobError(f"device is {name!r}", do="give cpu, cuda or cuda:1, or None for batches in host memory")
    missing = [module for module in GPU_MODULES if find_spec(module) is None] if name != "cpu" else []
    if missing:
        raise HostError(
            "batches on a GPU need cuDF and CuPy",
            why=f"{' and '.join(missing)} cannot be imported",
            do="pip install 'rowmill[cuda13]' (or cuda12), or leave out device=",
        )
    return name


def _open_device(name: str) -> Any:
    """Open the memory that a `device` names. A HostError or JobError if no such GPU answers."""
    if name == "cpu":
        return engine("pandas").BatchDevice()
    try:
        kernels = engine("cudf")
    except Exception as error:  # cuDF looks at driver and GPU when it is imported, and says what it misses in many ways
        raise HostError(
            "batches on a GPU need a GPU that cuDF can use",
            why=f"{type(error).__name__}: {error}",
            do="look at nvidia-smi, or leave out device=",
        ) from error
    number = name.partition(":")[2]
    return kernels.BatchDevice(int(number) if number else None)


def loader(
    path: str | Path, columns: Sequence[str] | None = None, *, tags: Sequence[str] = (), **settings: Any
) -> Loader:
    """Make the Loader of an output folder; `settings` are the other parameters of `Loader`.

    tags: read the columns with any of these tags (texts or `Tags`), after `columns` and in the output's order. A
    JobError for a tag that no column has.

    for batch in loader("out/toy", batch_size=65536):  # Arrow tables
        ...
    for batch in loader("out/toy", batch_size=65536, device="cuda"):  # {column: array of CuPy}
        ...
    """
    source = Loader(str(path), columns=None if columns is None else tuple(columns), **settings)
    if not tags:
        return source
    tagged = source.schema.with_any_tag(tags, str(path))
    return source.with_settings(columns=tuple(dict.fromkeys([*(columns or ()), *tagged])))
