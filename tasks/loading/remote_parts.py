"""Parts of an output behind a URL, for training.

Row groups are read by ranges, the next ones ahead; or parts are copied to a folder of this host, once for all of its
processes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice, tee
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.plan import File
from tasks.errors import DataError
from tasks.sources.formats import arrow
from tasks.sources.formats.parquet_chunks import open_ahead, read_footers
from tasks.storage.cached_copies import CachedCopies, CopyInUse, copy_file, describe_version, make_key
from tasks.storage.files import open_binary
from tasks.storage.ranges import InFlight
from tasks.storage.stores import open_store

ROOM = 256 * 2**20  # bytes that an iteration has fetched before they are decoded; one row group may be larger
COPIES_AHEAD = 2  # parts that are copied before they are needed
OPEN_FILES = 8


class Place(NamedTuple):
    """A row group by the name of its file and its number there."""

    name: str
    number: int


@dataclass(frozen=True)
class RemoteParts:
    """The parts of an output, or of versions of one, as they were listed, by their names; with their digests.

    cache: where parts are copied as a whole; None: they are read by ranges.
    """

    files: Mapping[str, File]
    digests: Mapping[str, str]
    storage: Mapping[str, Any]
    is_arrow: bool
    cache: CachedCopies | None

    def read_group_rows(self) -> dict[str, tuple[int, ...]]:
        """The rows of each group of each file, by its name: of Parquet the footers are read, of Arrow the headers."""
        if self.is_arrow:
            with ThreadPoolExecutor(COPIES_AHEAD) as threads:
                return dict(zip(self.files, threads.map(self._read_batch_rows, self.files.values()), strict=True))
        rows = {}
        for name, footer in zip(self.files, read_footers(self.files.values(), self.storage), strict=True):
            rows[name] = tuple(footer.row_group(i).num_rows for i in range(footer.num_row_groups))
        return rows

    def _read_batch_rows(self, file: File) -> tuple[int, ...]:
        return tuple(unit.rows for unit in arrow.inspect(file, {"storage_options": self.storage}).units)

    def fetch(self, name: str) -> CopyInUse:
        """The copy of a part; it is fetched unless it is there. A DataError if it is not as its manifest says."""
        assert self.cache is not None
        file = self.files[name]
        key = make_key(*describe_version(file), self.digests[name])
        return self.cache.fetch(key, file.size, partial(self._copy, name))

    def _copy(self, name: str, target: Path) -> None:
        file = self.files[name]
        if copy_file(open_store(file.path, self.storage), file, target) != self.digests[name]:
            raise DataError(
                "a part has other content than when it was written (xxh3-128 differs)",
                where=file.path,
                do="see what else is damaged: rowmill verify OUT; then copy the part there again",
            )


class RangesAhead:
    """The row groups of an iteration, in its order; the next ones are fetched meanwhile, as far as there is room."""

    def __init__(self, parts: RemoteParts, names: Sequence[str], places: Iterator[Place]) -> None:
        self._parts = parts
        self._names = names
        self._places, coming = tee(places)
        files = ((parts.files[place.name], {place.number}) for place in coming)
        own_names = {name: name for name in names}
        self._sources = open_ahead(files, lambda _file, _footer: own_names, parts.storage, InFlight(ROOM))

    def read(self, place: Place, columns: Sequence[str]) -> pa.Table:
        """Read columns of the next row group of the iteration."""
        expected = next(self._places)
        assert expected == place, (expected, place)
        source, footer = next(self._sources)
        with pq.ParquetFile(source, metadata=footer, pre_buffer=False) as file:
            return file.read_row_group(place.number, columns=list(columns), use_threads=False)


class ArrowRanges:
    """Record batches of Arrow files, of which only the columns that are needed are fetched."""

    def __init__(self, parts: RemoteParts) -> None:
        self._parts = parts
        self._open: OrderedDict[tuple[str, ...], pa.ipc.RecordBatchFileReader] = OrderedDict()

    def read(self, place: Place, columns: Sequence[str]) -> pa.Table:
        batch = self._find_reader(place.name, columns).get_batch(place.number)
        return pa.Table.from_batches([batch]).select(list(columns))

    def _find_reader(self, name: str, columns: Sequence[str]) -> pa.ipc.RecordBatchFileReader:
        """The reader of a file, which has read its index; those that were used last stay."""
        key = (name, *columns)
        if key not in self._open:
            opened = open_binary(self._parts.files[name], self._parts.storage)
            self._open[key] = arrow.open_columns(pa.PythonFile(opened, mode="r"), columns)
            if len(self._open) > OPEN_FILES:
                self._open.popitem(last=False)
        self._open.move_to_end(key)
        return self._open[key]


class CopiesAhead:
    """Copies of the parts of an iteration; those of its next row groups are fetched meanwhile."""

    def __init__(self, parts: RemoteParts, places: Iterator[Place]) -> None:
        self._parts = parts
        self._names = (place.name for place in places)
        self._threads = ThreadPoolExecutor(COPIES_AHEAD, thread_name_prefix="rowmill-copies")
        self._copies: OrderedDict[str, Future[CopyInUse]] = OrderedDict()
        self._coming: deque[str] = deque()

    def find(self, name: str) -> Path:
        """The path of the copy of the next row group's part: it stays until `OPEN_FILES` others were needed."""
        for coming in islice(self._names, COPIES_AHEAD + 1 - len(self._coming)):
            self._coming.append(coming)
            self._begin(coming)
        if self._coming and self._coming[0] == name:
            self._coming.popleft()
        self._begin(name)
        path = self._copies[name].result().path
        while len(self._copies) > OPEN_FILES:
            _, oldest = self._copies.popitem(last=False)
            if oldest.exception() is None:
                oldest.result().close()
        return path

    def _begin(self, name: str) -> None:
        if name not in self._copies:
            self._copies[name] = self._threads.submit(self._parts.fetch, name)
        self._copies.move_to_end(name)
