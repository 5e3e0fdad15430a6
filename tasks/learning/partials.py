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

Tree = dict[tuple[int, int], Any]  # (level, index) -> partial of the blocks [index 2^level, (index + 1) 2^level)


@dataclass(frozen=True)
class Phase(PickledFields):
    """One pass over the source: the steps that learn in it; in further passes the steps with an open question.

    `unchanged` are the keys of the steps that do not look at the rows, since a refit leaves them as they are.
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
    """What a step observed in some blocks: the complete subtrees of a fixed tree, so that all merges give the same.

    If merging is exact in any order, one value, as the tree {(-1, 0): value}.
    """

    step: Step
    tree: Tree


@dataclass(eq=False)
class Observed(TaskResult):
    """The partials of some blocks by step, how often a partition was halved to make them, the casts that failed, and
    what was seen of the rows."""

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
    """The partial of all blocks of a tree, merged in their order."""
    whole = None
    for _place, value in sorted(tree.items(), key=lambda item: item[0][1] << max(item[0][0], 0)):
        whole = value if whole is None else op.merge(whole, value)
    return whole


def with_size(observed: Observed) -> Observed:
    """The same partials, computed (GPUs work behind), with `nbytes` cached before other threads read it."""
    engines.synchronize()
    _ = observed.nbytes
    return observed


@retry_without_cache
def merge(partials: Sequence[Observed]) -> Observed:
    """The partials of several partitions as one."""
    if len(partials) == 1:
        return partials[0]
    merged: dict[str, Partial] = {}
    for key, first in partials[0].partials.items():
        op = first.step.op
        trees = [p.partials[key].tree for p in partials]
        assert isinstance(op, Learned)
        try:
            if (-1, 0) in first.tree:
                tree = {(-1, 0): large_tables.merge_all(op, [t[-1, 0] for t in trees])}
            else:
                tree = join_siblings(op, {place: partial for t in trees for place, partial in t.items()})
        except Exception as error:
            raise explain_error(error, first.step, "statistics") from error
        merged[key] = Partial(first.step, tree)
    failed = sum_records(p.failed for p in partials)
    seen = rows_seen.merge_seen(p.seen for p in partials)
    return with_size(Observed(merged, sum(p.halved for p in partials), failed, seen))


def join_siblings(op: Learned, tree: Tree) -> Tree:
    """Merge two subtrees with the same parent into that parent, until no such pair is left.

    So the same partials are merged with each other in any order of arrival.
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
