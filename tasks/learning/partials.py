"""Partials of a phase: what one partition observed, and how two of them are merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tasks import engines
from tasks.cluster.out_of_memory import retry_without_cache
from tasks.core.pickled_fields import PickledFields
from tasks.engines.convert.frame_sizes import nbytes
from tasks.engines.task_result import TaskResult
from tasks.graph import seen as rows_seen
from tasks.graph.binding import Step
from tasks.graph.evaluation import explain_error
from tasks.graph.failed_casts import Record, sum_records
from tasks.graph.partition_work import Work
from tasks.graph.seen import Seen
from tasks.learning import large_tables
from tasks.ops.base import Learned

Tree = dict[tuple[int, int], Any]  # (level, index) -> value of the blocks [index 2^level, (index + 1) 2^level)
WHOLE = (-1, 0)  # the place of the only value of a tree, if values may be merged in any order


@dataclass(frozen=True)
class Phase(PickledFields):
    """One pass over the source, and the steps that learn in it: those of one depth.

    `questions` has, by step, what the operator still asks (`Learned.refine`); it is None in the first pass over these
    steps, in which all of them learn. `unchanged` are the keys of the steps that do not look at the rows, since a refit
    leaves them as they are. Partitions are halved down to `floor` bytes if memory is short.
    """

    work: Work
    depth: int
    floor: int
    questions: Mapping[str, Any] | None = None
    unchanged: frozenset[str] = frozenset()

    @cached_property
    def steps(self) -> list[Step]:
        steps = [s for s in self.work.bound.learning if s.depth == self.depth and s.key not in self.unchanged]
        return steps if self.questions is None else [s for s in steps if s.key in self.questions]

    def question(self, step: Step) -> object:
        return None if self.questions is None else self.questions[step.key]


@dataclass(frozen=True)
class Partial:
    """What a step observed in some blocks.

    `tree` has a value for each complete subtree of a fixed binary tree over all blocks. So the same values are merged
    with each other in every run. If merging is exact in any order, the tree has one value, under `WHOLE`.
    """

    step: Step
    tree: Tree


@dataclass(eq=False)
class Observed(TaskResult):
    """The partials of some blocks, by step.

    Also how often a partition was halved for them, the casts that failed, and what was seen of the rows.
    """

    partials: dict[str, Partial]
    halved: int = 0
    failed: list[Record] = field(default_factory=list)
    seen: Seen = field(default_factory=Seen)

    @cached_property
    def nbytes(self) -> int:
        return sum(nbytes(partial.tree) for partial in self.partials.values()) + self.seen.nbytes

    def device_parts(self) -> list[Any]:
        return [partial.tree for partial in self.partials.values()]


def whole_of(op: Learned, tree: Tree) -> object:
    """Merge the values of a tree in the order of their blocks; None for an empty tree."""
    whole = None
    for place in sorted(tree, key=_first_block):
        whole = tree[place] if whole is None else op.merge(whole, tree[place])
    return whole


def _first_block(place: tuple[int, int]) -> int:
    level, index = place
    return index << max(level, 0)


def with_size(observed: Observed) -> Observed:
    """Wait for the GPU, which works asynchronously, and cache `nbytes` before other threads read it."""
    engines.synchronize()
    _ = observed.nbytes
    return observed


@retry_without_cache
def merge(partials: Sequence[Observed]) -> Observed:
    """Merge the partials of several partitions."""
    if len(partials) == 1:
        return partials[0]
    merged: dict[str, Partial] = {}
    for key, first in partials[0].partials.items():
        op = first.step.op
        trees = [p.partials[key].tree for p in partials]
        assert isinstance(op, Learned)
        try:
            if WHOLE in first.tree:
                tree = {WHOLE: large_tables.merge_all(op, [t[WHOLE] for t in trees])}
            else:
                tree = join_siblings(op, {place: value for t in trees for place, value in t.items()})
        except Exception as error:
            raise explain_error(error, first.step, "statistics") from error
        merged[key] = Partial(first.step, tree)
    failed = sum_records(p.failed for p in partials)
    seen = rows_seen.merge_seen(p.seen for p in partials)
    return with_size(Observed(merged, sum(p.halved for p in partials), failed, seen))


def join_siblings(op: Learned, tree: Tree) -> Tree:
    """Merge two subtrees with the same parent into that parent, until no such pair is left.

    So the same pairs are merged whatever the order in which the values arrive.
    """
    tree = dict(tree)
    for level in range(64):
        at_level = sorted(i for lv, i in tree if lv == level)
        for index in at_level:
            if index % 2 == 0 and (level, index + 1) in tree:
                tree[level + 1, index // 2] = op.merge(tree.pop((level, index)), tree.pop((level, index + 1)))
        if not any(lv > level for lv, _ in tree):
            break
    return tree
