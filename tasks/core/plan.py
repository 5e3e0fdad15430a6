"""The plan of a source: files, blocks, partitions, row numbers, schema and fingerprints, as plain values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from tasks.core.schema import Column, Schema
from tasks.core.strict_json import JsonObject

MOST_ROWS = 1 << 30  # of a partition on a GPU: cuDF's columns have less than 2^31

ReadOptions: TypeAlias = dict[str, Any]  # how the files of a plan are read: settings of their format and of the plan


@dataclass(frozen=True)
class File:
    """A source file as it was when it was listed: size in bytes, modification time in ns, and a digest of what names
    its content (a footer).

    Of a local file also its inode, the time of its last change of any kind (ctime, ns) and the real path where `path`
    leads elsewhere; of a storage the version that it names (an ETag). `tasks.storage.source_changes` compares them.
    """

    path: str
    size: int
    mtime: int
    digest: str = ""
    inode: int = 0
    ctime: int = 0
    real: str = ""
    version: str = ""

    def to_json(self) -> list[Any]:
        return [self.path, self.size, self.mtime, self.digest, self.inode, self.ctime, self.real, self.version]


@dataclass(frozen=True)
class Piece:
    """Rows [start, stop) of one row group, or of a text file the records in bytes [start, stop).

    Where elements of lists are the rows (`EXPLODED`), the piece is `rows` of the elements in this stored range: those
    after the first `skip` and before the last `left`.
    """

    file: int
    start: int
    stop: int
    group: int = 0
    skip: int = 0
    rows: int | None = None
    left: int = 0

    @property
    def stored(self) -> Piece:
        """The stored range, without regard to the elements of lists in it."""
        return Piece(self.file, self.start, self.stop, self.group)

    def to_json(self) -> list[int]:
        stored = [self.file, self.start, self.stop, self.group]
        return stored if self.rows is None else [*stored, self.skip, self.rows, self.left]


@dataclass(frozen=True)
class Block:
    """The unit of row numbers and of statistics: it depends on the data alone, never on workers or partition size."""

    number: int
    first_row: int
    rows: int
    nbytes: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Input:
    """A frame that reaches a task as an argument of its own: it stays where it is until the task runs.

    On the client `frame` is what Dask computes (a Delayed) or the frame itself, in the task it is the frame; no pickle
    has it. `rows` and `hashes` (of the values, by column) are those of the pass that counted its rows.
    """

    number: int
    frame: Any
    rows: int = 0
    hashes: Mapping[str, int] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "frame": None}


@dataclass(frozen=True)
class Partition:
    """A run of whole blocks: the unit of work. `inputs` are the frames that have its rows, where no file has them."""

    number: int
    blocks: tuple[Block, ...]
    inputs: tuple[Input, ...] = field(default=(), compare=False, repr=False)

    @property
    def rows(self) -> int:
        return sum(b.rows for b in self.blocks)

    @property
    def first_row(self) -> int:
        return self.blocks[0].first_row

    @property
    def nbytes(self) -> int:
        return sum(b.nbytes for b in self.blocks)

    def by_block(self) -> list[Partition]:
        """Each block alone, with the frames that have its rows."""
        frames = [{piece.file for piece in block.pieces} for block in self.blocks]
        return [
            Partition(block.number, (block,), tuple(one for one in self.inputs if one.number in numbers))
            for block, numbers in zip(self.blocks, frames, strict=True)
        ]

    def halves(self) -> tuple[Partition, ...]:
        """Two runs of blocks with about half of the rows each, or itself alone when it is one block."""
        if len(self.blocks) == 1:
            return (self,)
        middle = self.first_row + self.rows // 2
        cut = min(max(1, sum(b.first_row + b.rows <= middle for b in self.blocks)), len(self.blocks) - 1)
        return replace(self, blocks=self.blocks[:cut]), replace(self, blocks=self.blocks[cut:])

    def with_frames(self, frames: Sequence[Any]) -> Partition:
        """The partition with these frames in its inputs."""
        return replace(self, inputs=tuple(replace(one, frame=f) for one, f in zip(self.inputs, frames, strict=True)))


@dataclass(frozen=True)
class Plan:
    """The source as blocks and partitions. `nbytes` are decoded bytes (estimated where the format does not say).

    `reading` is how the files of the source were read (`tasks.sources.reading_rules`), also where the plan is of
    scratch files.
    """

    files: tuple[File, ...]
    format: str
    schema: Schema
    blocks: tuple[Block, ...]
    partitions: tuple[Partition, ...]
    skipped: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    reading: dict[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(b.rows for b in self.blocks)

    @property
    def numbered_rows(self) -> int:
        """How many rows have a number: also those that were left out where rows were brought together by keys, since
        the others keep their numbers."""
        return int(self.options.get(NUMBERED_ROWS, self.rows))

    @property
    def nbytes(self) -> int:
        return sum(b.nbytes for b in self.blocks)

    @property
    def block_starts(self) -> np.ndarray:
        return np.array([b.first_row for b in self.blocks], dtype=np.int64)

    def alone(self, block: Block) -> Partition:
        """A block as a partition of its own."""
        inputs = next((p.inputs for p in self.partitions if p.inputs and block in p.blocks), ())
        return Partition(0, (block,), inputs)

    def with_storage_options(self, options: Mapping[str, Any] | None) -> Plan:
        """The plan with the secrets that `to_json` leaves out: for plans read back from a file."""
        return replace(self, options={**self.options, "storage_options": options or {}})

    @property
    def fingerprint(self) -> str:
        """Names the rows and their order: files, blocks and schema, not how they are cut into partitions."""
        rows = {k: v for k, v in self.to_json().items() if k not in ("partitions", "reading")}
        text = json.dumps(rows, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> JsonObject:
        """Plain values; storage options stay out, since they may hold secrets (see `with_storage_options`)."""
        return {
            "files": [f.to_json() for f in self.files],
            "format": self.format,
            "schema": self.schema.to_json(),
            "blocks": [[b.first_row, b.rows, b.nbytes, [piece.to_json() for piece in b.pieces]] for b in self.blocks],
            "partitions": [len(p.blocks) for p in self.partitions],
            "skipped": list(self.skipped),
            "options": {k: v for k, v in self.options.items() if k not in ("storage_options", OPTION, PARSED)},
            "reading": self.reading,
        }

    @staticmethod
    def from_json(data: JsonObject) -> Plan:
        blocks = tuple(
            Block(number, first, rows, nbytes, tuple(Piece(*piece) for piece in pieces))
            for number, (first, rows, nbytes, pieces) in enumerate(data["blocks"])
        )
        remaining: Iterator[Block] = iter(blocks)
        return Plan(
            files=tuple(File(*item) for item in data["files"]),
            format=data["format"],
            schema=Schema.from_json(data["schema"]),
            blocks=blocks,
            partitions=tuple(
                Partition(i, tuple(next(remaining) for _ in range(n))) for i, n in enumerate(data["partitions"])
            ),
            skipped=tuple(data["skipped"]),
            options=data["options"],
            reading=data.get("reading", {}),
        )


def cut_partitions(blocks: tuple[Block, ...], partition_size: int, even: bool = False) -> tuple[Partition, ...]:
    """Runs of whole blocks of at most `partition_size` decoded bytes each (at least one block).

    `even`: as few as there are of such a size in all, as equal as the blocks allow; some may be larger by a block.
    """
    runs = _even_runs(blocks, partition_size) if even else runs_of(blocks, partition_size)
    return tuple(Partition(i, tuple(run)) for i, run in enumerate(runs))


def rows_together(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces with neighbouring rows of one row group put together again."""
    together: list[Piece] = []
    for piece in pieces:
        last = together[-1] if together else None
        if last and (last.file, last.group, last.stop) == (piece.file, piece.group, piece.start):
            together[-1] = replace(last, stop=piece.stop)
        else:
            together.append(piece)
    return together


def runs_of(
    blocks: Sequence[Block], most: int, together: Callable[[Block, Block], bool] = lambda last, block: False
) -> list[list[Block]]:
    """Runs of at most `most` decoded bytes, or of one block; neighbours for which `together` holds stay in one run."""
    runs: list[list[Block]] = []
    used = 0
    for block in blocks:
        if not runs or (used + block.nbytes > most and not together(runs[-1][-1], block)):
            runs.append([])
            used = 0
        runs[-1].append(block)
        used += block.nbytes
    return runs


def _even_runs(blocks: Sequence[Block], size: int) -> list[list[Block]]:
    """Runs of equal size: each block goes to the run in which its middle lies."""
    total = max(sum(block.nbytes for block in blocks), 1)
    rows = sum(block.rows for block in blocks)
    count = max(-(-total // size), -(-rows // MOST_ROWS))
    ends = accumulate(block.nbytes for block in blocks)
    parts = [count * (2 * end - block.nbytes) // (2 * total) for end, block in zip(ends, blocks, strict=True)]
    return [[block for _, block in run] for _, run in groupby(zip(parts, blocks, strict=True), key=itemgetter(0))]


@dataclass(frozen=True)
class Limits:
    """Where blocks are cut; other values than these are for tests, since row numbers' blocks must not vary."""

    join_below: int = 64 * 2**10
    cut_above: int = 4 * 2**20
    range_bytes: int = 64 * 2**20
    frame_rows: int = 2**20


LIMITS = Limits()
SMALLEST = 16 * 2**20  # bytes


@dataclass(frozen=True)
class Sizing:
    """The limits of partitions that a cluster sets: `threads` make partitions small enough that each thread gets about
    four, of at least `smallest` bytes; `memory` of a worker is what `part_mem_fraction` is a share of; no partition of
    several blocks has more than `limit` bytes. Partitions of up to `fastest` bytes are the fastest ones. None: no such
    limit."""

    threads: int | None = None
    smallest: int = SMALLEST
    memory: int | None = None
    limit: int | None = None
    fastest: int | None = None


NO_SIZING = Sizing()


@dataclass(frozen=True)
class Unit:
    """What a file stores together (a row group, a stripe, a range of records), before it is joined or cut to
    blocks.
    """

    piece: Piece
    rows: int
    nbytes: int


def cut_blocks(
    units: Iterable[Unit], join_below: int, cut_above: int, join_bytes: int | None = None
) -> tuple[Block, ...]:
    """Blocks in the order of the units: those under `join_below` rows are joined, those over `cut_above` rows are cut.

    Joining stops at `join_below` rows, before a unit that is large itself, and before `join_bytes` bytes where given:
    a partition cannot be smaller than a block, so that very wide rows would need much memory.
    """
    blocks: list[Block] = []
    waiting: list[Piece] = []
    rows = nbytes = 0  # of those waiting

    def emit(pieces: tuple[Piece, ...], rows: int, nbytes: int) -> None:
        first = blocks[-1].first_row + blocks[-1].rows if blocks else 0
        blocks.append(Block(len(blocks), first, rows, nbytes, pieces))

    for unit in units:
        if unit.rows == 0:
            continue
        too_many_bytes = join_bytes is not None and nbytes + unit.nbytes > join_bytes
        if waiting and (unit.rows >= join_below or too_many_bytes):
            emit(tuple(waiting), rows, nbytes)
            waiting = []
            rows = 0
            nbytes = 0
        if unit.rows > cut_above:
            for start in range(0, unit.rows, cut_above):
                stop = min(start + cut_above, unit.rows)
                piece = replace(unit.piece, start=unit.piece.start + start, stop=unit.piece.start + stop)
                emit((piece,), stop - start, unit.nbytes * stop // unit.rows - unit.nbytes * start // unit.rows)
            continue
        waiting.append(unit.piece)
        rows = rows + unit.rows
        nbytes = nbytes + unit.nbytes
        if rows >= join_below:
            emit(tuple(waiting), rows, nbytes)
            waiting = []
            rows = 0
            nbytes = 0
    if waiting:
        emit(tuple(waiting), rows, nbytes)
    return tuple(blocks)


PARSED = "parsed"  # in a plan's options: folder and columns of its parsed text; not part of the fingerprint
OPTION = "reading_notes"  # in a plan's options: the folder for notes on files being read; not part of the fingerprint
MADE = "made"  # in a plan's options: the columns that expressions of `source.schema` make: [expression, type as read]
SELF = "_"  # in such an expression: the column as it is read
FIELDS = "fields"  # in a plan's options: columns of its schema that are fields of structs, read in a type of their own
ADVICE = "advice"  # in a plan's options: by column, what to do about a value that its type, which is of a fit, lacks
AS_IN_FIT = "as_in_fit"  # in a plan's options: columns of structs, read with the fields that they have in a fit alone
NUMBERED_ROWS = "numbered_rows"  # in a plan's options: `Plan.numbered_rows` where they are not its rows
# In a plan's options: of the column whose elements are the rows: its name `column`, the type `dtype` of an element, the
# number `rows` of rows in the files, and how many of these are `empty`, so that they are no row of the plan.
EXPLODED = "exploded"
RETYPED = "retyped"  # in a plan's options: by column, the type that it has here, where that of a fit is narrower


def find_root_columns(plan: Plan, names: Iterable[str]) -> list[str]:
    """The columns of the files in which these columns are: a field of a struct is in the column of the struct."""
    own = {*plan.schema}.difference(plan.options.get(FIELDS, ()))
    return list(dict.fromkeys(name if name in own else plan.schema.root(name) or name for name in names))


def with_fields(plan: Plan, columns: Sequence[Column]) -> Plan:
    """The plan with fields of structs as columns of its schema, in these types."""
    if not columns:
        return plan
    names = {*plan.options.get(FIELDS, ()), *(column.name for column in columns)}
    schema = Schema([*plan.schema.columns, *columns])
    return replace(plan, schema=schema, options={**plan.options, FIELDS: sorted(names)})
