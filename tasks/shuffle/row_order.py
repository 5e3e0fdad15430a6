"""The order of an output: which file a row goes to, and which columns travel with it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from tasks.core.pickled_fields import PickledFields
from tasks.core.plan import Plan
from tasks.core.row_sizes import row_width
from tasks.core.schema import Schema, check_ordered
from tasks.core.settings import Output
from tasks.core.units import amount
from tasks.engines.convert.host_files import ROW_GROUP
from tasks.errors import JobError, near
from tasks.graph.binding import SOURCE
from tasks.graph.partition_work import Work
from tasks.shuffle import permutation

Estimated = Literal["", "about ", "at most "]  # what is said of a number of bytes
RANGES_PER_FILE = 8  # at least
RANGES_OF_A_ROW_GROUP = 4
PARTLY_NEEDED = 2  # ranges that a run of row groups reads whole: its first and its last one
MOST_RANGES = 512  # of all files, if they have more than the least: each partition notes the rows of each range
HASHES = 1 << 32
FILE_BYTES = 512 * 10**6  # of rows, uncompressed: large for reading, and a small part of a worker's memory
FILES = 8  # at least, and a multiple of it: eight ranks or workers get equally many
MOST_FILES = 10_000  # of a choice: each partition is cut into eight ranges for each file


@dataclass(frozen=True)
class Order(PickledFields):
    """Which row goes where: a shuffle mode over the plan's rows, and the ranges of position that pieces are cut
    into."""

    mode: str
    seed: int
    rows: int
    block_starts: tuple[int, ...]
    groups: int
    ranges: int
    keys: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    keep_row: bool = False  # the row number goes along as the column `__row__`
    of_file: int = RANGES_PER_FILE  # ranges that a file has

    @cached_property
    def layout(self) -> permutation.BlockLayout:
        return permutation.BlockLayout(self.rows, np.array(self.block_starts, dtype=np.int64), self.groups)

    @cached_property
    def edges(self) -> np.ndarray:
        return permutation.range_edges(HASHES if self.mode == "key" else self.rows, self.ranges)


def compute_number_of_files(output: Output, rows: int, schema: Schema, workers: int) -> int:
    """Compute the number of files before any row was dropped."""
    if output.rows_per_file:
        return max(1, -(-rows // output.rows_per_file))
    if output.files_per_worker:
        return output.files_per_worker * max(workers, 1)
    return output.files or choose_files(rows, schema)


def choose_files(rows: int, schema: Schema) -> int:
    """Choose the number of files for so many rows of a schema: at most `FILE_BYTES` in each, until there are
    `MOST_FILES`.

    >>> import pyarrow as pa
    >>> schema = Schema.from_arrow(pa.schema({"x": pa.int64(), "y": pa.int64()}))
    >>> [choose_files(rows, schema) for rows in (0, 256_000_000, 256_000_001, 10**9, 10**12)]
    [8, 8, 16, 32, 10000]
    """
    needed = -(-rows * row_width(schema) // FILE_BYTES)
    return min(max(-(-needed // FILES) * FILES, FILES), MOST_FILES)


def describe_choice(rows: int, row_bytes: int, estimated: Estimated = "") -> str:
    """Describe why a number of files was chosen.

    >>> describe_choice(160_000_000, 61)
    'chosen for 9.8 GB of rows of 61 bytes'
    """
    return f"chosen for {estimated}{amount(rows * row_bytes)} of rows of {row_bytes:,} bytes"


def ranges_of_file(output: Output, rows: int, files: int) -> int:
    """Compute the number of ranges of position of each file: several for each row group, unless they are too many.

    >>> [ranges_of_file(Output(path="out"), rows, 8) for rows in (1_000_000, 100_000_000, 10**9)]
    [8, 50, 64]
    """
    rows_of_range = max((output.row_group_size or ROW_GROUP) // RANGES_OF_A_ROW_GROUP, 1)
    wanted = -(-rows // (files * rows_of_range))
    return max(min(wanted, MOST_RANGES // files), RANGES_PER_FILE)


def make_order(output: Output, plan: Plan, files: int) -> Order:
    """Make the order of a plan's rows as the section `output` asks for it."""
    of_file = ranges_of_file(output, plan.rows, files)
    return Order(
        mode=output.shuffle,
        seed=output.seed,
        rows=plan.rows,
        block_starts=tuple(int(s) for s in plan.block_starts),
        groups=output.shuffle_groups,
        ranges=of_file * files,
        keys=tuple(output.keys),
        sort_by=tuple(output.sort_by),
        of_file=of_file,
    )


def locate_order_columns(work: Work, order: Order) -> dict[str, tuple[int, str]]:
    """Locate the columns that `output.keys` and `output.sort_by` name: in the output, else in the source."""
    bound = work.bound
    places: dict[str, tuple[int, str]] = {}
    if order.mode != "key":
        return places
    for kind, names in (("key", order.keys), ("sort", order.sort_by)):
        where = f"output.{'keys' if kind == 'key' else 'sort_by'}"
        for i, name in enumerate(names):
            if name in bound.output:
                places[f"{kind}{i}"] = (len(bound.nodes) - 1, name)
            elif name in bound.source and bound.space == SOURCE:
                places[f"{kind}{i}"] = (SOURCE, name)
            else:
                grouped = bound.space != SOURCE
                known = bound.output if grouped else {**bound.output, **bound.source}
                raise JobError(
                    f"there is no column {name!r}",
                    where=where,
                    why="the rows were grouped, so that only columns of the output are left" if grouped else "",
                    do=near(name, known),
                )
            check_ordered(bound.output if name in bound.output else bound.source, [name], where)
    return places


def list_output_places(work: Work, output: Output, plan: Plan) -> list[tuple[int, str]]:
    """List the columns of the output, and those that put its rows in order."""
    return [*work.bound.targets, *locate_order_columns(work, make_order(output, plan, 1)).values()]
