"""Partials of a phase: what one partition observed, and how two of them are merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tasks import engines
from tasks.cluster.out_of_memory import frugal
from tasks.core.pickled_fields import PickledFields
from tasks.engines.convert.sizes import nbytes
from tasks.engines.task_result import TaskResult
from tasks.graph.binding import Step
from tasks.graph.evaluation import explained
from tasks.graph.failed_casts import Record, added
from tasks.graph.partition_work import Work
from tasks.learning import large_tables
from tasks.ops.base import Learned

Tree = dict[tuple[int, int], Any]  # (level, index) -> partial of the blocks [index 2^level, (index + 1) 2^level)


@dataclass(frozen=True)
class Phase(PickledFields):
    """One pass: the steps that are learned in it. After a phase's first pass, those with a question left open."""

    work: Work
    depth: int
    floor: int
    questions: Mapping[str, Any] | None = None

    @cached_property
    def steps(self) -> list[Step]:
        asked = self.questions
        return [s for s in self.work.bound.learned if s.depth == self.depth and (asked is None or s.key in asked)]

    def question(self, step: Step) -> Any:
        return None if self.questions is None else self.questions[step.key]


@dataclass(frozen=True)
class Partial:
    """A step's partials of some blocks: one value where any order is exact, else the complete subtrees of a fixed
    tree."""

    step: Step
    tree: Tree


@dataclass(eq=False)
class Observed(TaskResult):
    """The partials of some blocks by step, how often a partition was halved to make them, and the casts that failed."""

    partials: dict[str, Partial]
    halved: int = 0
    failed: list[Record] = field(default_factory=list)

    @cached_property
    def nbytes(self) -> int:
        return sum(nbytes(partial.tree) for partial in self.partials.values())

    def device_parts(self) -> list[Any]:
        return [partial.tree for partial in self.partials.values()]


def _sized(made: Observed) -> Observed:
    """The partials once they are there for other threads, with their size."""
    engines.synchronize()
    _ = made.nbytes
    return made


@frugal
def merge(found: Sequence[Observed]) -> Observed:
    """The partials of several partitions as one."""
    if len(found) == 1:
        return found[0]
    merged: dict[str, Partial] = {}
    for key, first in found[0].partials.items():
        op, trees = first.step.op, [f.partials[key].tree for f in found]
        assert isinstance(op, Learned)
        try:
            if (-1, 0) in first.tree:
                tree = {(-1, 0): large_tables.merge_all(op, [t[-1, 0] for t in trees])}
            else:
                tree = join_siblings(op, {place: p for t in trees for place, p in t.items()})
        except Exception as error:
            raise explained(error, first.step, "statistics") from error
        merged[key] = Partial(first.step, tree)
    return _sized(Observed(merged, sum(f.halved for f in found), added(f.failed for f in found)))


def join_siblings(op: Learned, tree: Tree) -> Tree:
    """Every two subtrees with one parent as that parent's, until none are left: the same sums whatever came together
    when."""
    tree = dict(tree)
    for level in range(64):
        at_level = sorted(i for lv, i in tree if lv == level)
        for index in at_level:
            if index % 2 == 0 and (level, index + 1) in tree:
                tree[level + 1, index // 2] = op.merge(tree.pop((level, index)), tree.pop((level, index + 1)))
        if not any(lv > level for lv, _ in tree):
            break
    return tree
