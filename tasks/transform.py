"""Every partition read, transformed, every row given its place in the order, cut into pieces by range of position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from tasks import frame, hive, monitor, shuffle
from tasks.errors import JobError, near
from tasks.failed_casts import Record, added, records
from tasks.frame.task_result import PiecesResult
from tasks.graph import SOURCE
from tasks.memory import in_halves
from tasks.on_host import to_host
from tasks.plan import Partition, Plan
from tasks.schema import HIDDEN, ROW, Schema, check_ordered
from tasks.settings import Output
from tasks.work import Work

RANGES_PER_FILE = 8
HASHES = 1 << 32


@dataclass(frozen=True)
class Order:
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

    @cached_property
    def layout(self) -> shuffle.Layout:
        return shuffle.Layout(self.rows, np.array(self.block_starts, dtype=np.int64), self.groups)

    @cached_property
    def edges(self) -> np.ndarray:
        return shuffle.range_edges(HASHES if self.mode == "key" else self.rows, self.ranges)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k in self.__dataclass_fields__}


@dataclass(frozen=True)
class Cutting:
    """What every partition of the transform stage shares."""

    work: Work
    order: Order
    floor: int = 0
    partition_on: tuple[str, ...] = ()
    stage: str = "transform"
    on_host: bool = False  # pieces leave the GPU
    shares: tuple[int, ...] = ()  # bounds of the ranges that each worker will write


@dataclass
class Cut(PiecesResult):
    """A partition's pieces (several where it had to be halved), with the rows that came in and went out."""

    pieces: list[Any] = field(default_factory=list)
    rows_in: int = 0
    rows_out: int = 0
    failed: list[list[Record]] = field(default_factory=list)

    @property
    def counts(self) -> np.ndarray:
        return sum((p.counts for p in self.pieces[1:]), self.pieces[0].counts)

    def ranges(self, first: int, last: int) -> list[Any]:
        return [p.ranges(first, last) for p in self.pieces]

    def rows_of(self, first: int, last: int) -> np.ndarray:
        """The rows of each of the ranges [first, last)."""
        return np.asarray(np.sum([p.counts for p in self.ranges(first, last)], axis=0, dtype=np.int64))


def number_of_files(output: Output, rows: int, workers: int) -> int:
    """The number of files before any row was dropped."""
    if output.rows_per_file:
        return max(1, -(-rows // output.rows_per_file))
    if output.files_per_worker:
        return output.files_per_worker * max(workers, 1)
    return output.files or 8


def make_order(output: Output, plan: Plan, files: int) -> Order:
    """The order of a plan's rows as the section `output` asks for it."""
    return Order(
        mode=output.shuffle,
        seed=output.seed,
        rows=plan.rows,
        block_starts=tuple(int(s) for s in plan.block_starts),
        groups=output.shuffle_groups,
        ranges=RANGES_PER_FILE * files,
        keys=tuple(output.keys),
        sort_by=tuple(output.sort_by),
    )


def cut_partition(cutting: Cutting, partition: Partition) -> Cut:
    """The partition's rows, transformed, in ranges of position."""
    cut, work = Cut(), cutting.work
    with frame.computing(work.engine, partition.nbytes):
        cut_part = partial(_cut, cutting)
        found = in_halves(cutting.stage, cut_part, partition, cutting.floor, work.source, work.engine)
    while found:  # one after another: what is copied to the host is let go on the GPU
        pieces, rows_in, rows_out, failed = found.pop(0)
        cut.pieces.append(to_host(pieces, work.engine, cutting.shares) if cutting.on_host else pieces)
        cut.rows_in += rows_in
        cut.rows_out += rows_out
        cut.failed.append(failed)
    monitor.count(cut.rows_in, partition.nbytes)
    return cut


def _cut(cutting: Cutting, partition: Partition) -> tuple[Any, int, int, list[Record]]:
    work, order, engine = cutting.work, cutting.order, cutting.work.kernels
    carried = carried_columns(work, order)
    targets = work.bound.targets + list(carried.values())
    evaluation = work.opened(partition, targets)
    out = evaluation.outputs()
    context = evaluation.contexts[work.bound.space]
    if cutting.partition_on:
        named = Schema(work.bound.output[name] for name in cutting.partition_on)
        hive.check_number(engine.host_columns(out, named), f"partition {partition.number}")
    if order.mode == "key":
        keys = [evaluation.column(*carried[f"key{i}"]) for i in range(len(order.keys))]
        positions = engine.hash_columns(keys).astype(engine.xp.uint64)
        out |= {HIDDEN + name: evaluation.column(*place) for name, place in carried.items()}
        out[HIDDEN + "row"] = engine.from_numbers(context.ordered())
        if order.keep_row:
            out[ROW] = engine.from_numbers(context.rows)
    else:
        positions = shuffle.MODES[order.mode](context.ordered(), order.layout, order.seed, engine.xp)
    pieces = engine.cut(out, positions, order.edges)
    frame.synchronize()
    return pieces, partition.rows, len(context.rows), records(evaluation.failed)


def carried_columns(work: Work, order: Order) -> dict[str, tuple[int, str]]:
    """The columns that `output.keys` and `output.sort_by` name: of the output, else of the source."""
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


def summary(cut: Cut) -> dict[str, Any]:
    """What the flow has to know of a cut: small plain values."""
    return {
        "rows_in": cut.rows_in,
        "rows_out": cut.rows_out,
        "counts": cut.counts,
        "nbytes": cut.nbytes,
        "halved": len(cut.pieces) - 1,
        "failed_casts": added(cut.failed),
    }


def totals(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The rows of every range, and the sums over all partitions."""
    counts = np.sum([s["counts"] for s in summaries], axis=0, dtype=np.int64)
    return {
        "counts": counts,
        "rows_in": sum(s["rows_in"] for s in summaries),
        "rows_out": int(counts.sum()),
        "nbytes": sum(s["nbytes"] for s in summaries),
        "halved": sum(s["halved"] for s in summaries),
        "failed_casts": added(s.get("failed_casts", []) for s in summaries),
    }
