"""Learn: one pass over the needed columns per phase, all operators of the phase together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tasks import frame, large, monitor
from tasks.decoded import Keeping
from tasks.errors import DataError
from tasks.evaluation import explained
from tasks.failed_casts import Record, added, records
from tasks.frame.size import nbytes
from tasks.frame.task_result import TaskResult
from tasks.graph import Bound, Node, Step
from tasks.memory import frugal, in_halves
from tasks.ops.base import Learned
from tasks.plan import Partition, Plan
from tasks.pool import Pool, merged
from tasks.schema import Schema
from tasks.state import State
from tasks.work import Work, block_offsets

FEW = 8  # steps that are worth a task of their own
Tree = dict[tuple[int, int], Any]  # (level, index) -> partial of the blocks [index 2^level, (index + 1) 2^level)


@dataclass(frozen=True)
class Phase:
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

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k in self.__dataclass_fields__}


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


def learn(source: Any, plan: Plan, final: Node, schema: Schema, engine: str, pool: Pool, filter: str | None = None,
          floor: int = 0, progress: Callable[[int, int], None] | None = None,
          halved: Callable[[int], None] | None = None,
          known: Callable[[Mapping[str, Any]], None] | None = None,
          keeping: Keeping | None = None,
          failed: Callable[[list[Record]], None] | None = None) -> State:  # fmt: skip
    """The state of a graph over all rows of the plan. `progress(phase, rows)` is called as partitions are done.

    `halved(times)` is told after each pass how often partitions were halved in it for want of memory, `known(values)`
    what a step with large tables has learned, from a thread, while others are worked on. A phase is one pass; steps
    whose operator left a question open (exact quantiles) share further passes over their columns alone, which
    `progress` does not hear of. What `keeping` names stays decoded on the workers. `failed(records)` is told after each
    pass which casts failed in it.
    """
    bound = Bound(final, schema)
    state = State(*given(bound))
    for number, depth in enumerate(sorted({s.depth for s in bound.learned})):
        done = functools.partial(_report, progress, plan, number) if progress else None
        work = Work(source, final, schema, engine, State(state.values), filter, training=True, depth=depth,
                    keeping=keeping)  # fmt: skip
        phase = Phase(work, depth, floor)
        while phase.steps:
            observed = pool.gather(observe, merge, phase, plan.partitions, done)
            fitted, kept, questions = conclude(
                pool, observed, halved or _unheard, known or _unheard, failed or _unheard
            )
            state = State({**state.values, **fitted}, {**state.partials, **kept})
            phase, done = replace(phase, questions=questions), None
    return state


def _unheard(_: Any) -> None:
    return


def _report(progress: Callable[[int, int], None], plan: Plan, phase: int, partition: int, _: Any) -> None:
    progress(phase, plan.partitions[partition].rows)


def given(bound: Bound) -> tuple[dict[str, Any], dict[str, Any]]:
    """(fitted values, partials) of the steps that learn from their parameters alone, such as a side table."""
    fitted = {}
    for step in bound.given:
        assert isinstance(step.op, Learned)
        try:
            fitted[step.key] = step.op.finalize_unit(None, step.unit)
        except Exception as error:
            raise explained(error, step, "statistics") from error
    return fitted, {key: {} for key in fitted}


def passes(final: Node, schema: Schema) -> int:
    """How many phases the statistics have, each of which reads the source."""
    return len({s.depth for s in Bound(final, schema).learned})


def observe(phase: Phase, partition: Partition) -> Observed:
    """The partials of one partition (of its halves, where memory is short)."""
    work = phase.work
    with frame.computing(work.engine, partition.nbytes):
        observe_part = functools.partial(_observe, phase)
        found = in_halves("statistics", observe_part, partition, phase.floor, work.source, work.engine)
        merged = merge(found)
    merged.halved = len(found) - 1
    monitor.count(partition.rows, partition.nbytes)
    return merged


def _observe(phase: Phase, partition: Partition) -> Observed:
    work, engine = phase.work, phase.work.kernels
    targets = [place for step in phase.steps for place in step.fit_inputs.values()]
    evaluation = work.opened(partition, targets)
    evaluation.columns(targets)
    offsets = {space: block_offsets(partition, c.ordered(), engine.xp) for space, c in evaluation.contexts.items()}
    found: dict[str, Partial] = {}
    for step in phase.steps:
        op = step.op
        assert isinstance(op, Learned)
        columns = evaluation.inputs(step, fitting=True)
        context = replace(evaluation.contexts[step.space], question=phase.question(step))
        starts = offsets[step.space]
        try:
            if order_free(step, work.bound):
                tree = {(-1, 0): large.split_if_large(op, op.observe_unit(columns, step.unit, context))}
            else:
                made = op.observe_blocks(columns, step.unit, context, starts)
                tree = join_siblings(op, {(0, b.number): p for b, p in zip(partition.blocks, made, strict=True)})
        except Exception as error:
            raise explained(error, step, evaluation.where) from error
        found[step.key] = Partial(step, tree)
    return _sized(Observed(found, failed=records(evaluation.failed)))


def _sized(made: Observed) -> Observed:
    """The partials once they are there for other threads, with their size."""
    frame.synchronize()
    _ = made.nbytes
    return made


def order_free(step: Step, bound: Bound) -> bool:
    schema = Schema(replace(bound.schemas[place][name], name=n) for n, (place, name) in step.fit_inputs.items())
    missing = [n for n in step.op.extra_columns(fitting=True) if n not in schema]
    if missing:
        raise DataError(
            f"{type(step.op).__name__} needs the column {missing[0]!r} to learn from",
            do="name a column of the source, or one that an entry above makes",
        )
    return step.op.order_free(step.unit, schema)  # type: ignore[attr-defined]


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
                tree = {(-1, 0): large.merge_all(op, [t[-1, 0] for t in trees])}
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


def conclude(
    pool: Pool,
    roots: list[Any],
    halved: Callable[[int], None],
    known: Callable[[Mapping[str, Any]], None],
    failed: Callable[[list[Record]], None],
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """`finalize` of the handles of partials, which the list loses; large tables in tasks of their own."""
    rows = dict[str, large.Rows]()
    noted = list[list[Record]]()
    for found, times, casts in pool.values(pool.call(_rows, [(root,) for root in roots])):
        rows = {key: rows[key] + told if key in rows else told for key, told in found.items()}
        halved(times)
        noted.append(casts)
    failed(added(noted))
    chains = {key: count for key, told in rows.items() if (count := large.chains_for(told))}
    shares = _shares([key for key in rows if key not in chains], pool.threads)
    if not chains and len(shares) == 1:
        return pool.values(pool.call(finalize, [(merged(pool, merge, [roots])[0],)]))[0]
    small = [pool.call(_only, [(root, share) for root in roots]) for share in shares]
    split = {key for key in chains if rows[key].large}
    if split:
        roots[:] = pool.call(_split, [(root, set(chains), split) for root in roots])
    cuts = [(key, chain) for key, count in chains.items() for chain in range(count)]
    parts = [pool.call(_chain, [(root, key, chain, chains[key]) for root in roots]) for key, chain in cuts]
    roots.clear()
    handles: dict[str, list[Any]] = {key: [] for key in chains}
    for (key, _), handle in zip(cuts, merged(pool, large.merge_parts, parts), strict=True):
        handles[key].append(handle)
        del handle
    del parts
    finalized = pool.call(finalize, [(one,) for one in merged(pool, merge, small)])  # beside the large ones
    del small
    learned = large.finalize(pool, handles, rows, known)
    found = [_joined(several) for several in zip(*pool.values(finalized), strict=True)]
    fitted = found[0] | {key: values for key, (values, _) in learned.items()}
    kept = found[1] | {key: partials for key, (_, partials) in learned.items()}
    return {k: fitted[k] for k in rows if k in fitted}, {k: kept[k] for k in rows if k in kept}, found[2]


def _shares(steps: Sequence[str], threads: int) -> list[list[str]]:
    """The steps as several threads finish them side by side, about equally many and at least `FEW` each.

    >>> _shares(["a", "b", "c"], 2), [len(share) for share in _shares(["s"] * 33, 16)]
    ([['a', 'b', 'c']], [9, 8, 8, 8])
    """
    count = max(1, min(threads, len(steps) // FEW))
    return [list(steps[i::count]) for i in range(count)]


def _joined(found: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: value for one in found for key, value in one.items()}


def _rows(found: Observed) -> tuple[dict[str, large.Rows], int, list[Record]]:
    """(the rows of each step, how often partitions were halved, the casts that failed)."""
    rows = {key: large.rows_of(p.step.op, p.tree.get((-1, 0))) for key, p in found.partials.items()}
    return rows, found.halved, found.failed


def _only(found: Observed, steps: Sequence[str]) -> Observed:
    return _sized(Observed({key: found.partials[key] for key in steps}))


def _split(found: Observed, keys: set[str], split: set[str]) -> Observed:
    """The partials of these steps, those of `split` as tables by hash."""
    made = {k: found.partials[k] for k in keys}
    for k in split:
        made[k] = Partial(made[k].step, {(-1, 0): large.split(made[k].step.op, made[k].tree[-1, 0])})
    return _sized(Observed(made))


def _chain(found: Observed, key: str, chain: int, chains: int) -> large.Part:
    partial = found.partials[key]
    return large.chain_of(partial.step.op, partial.step.unit, partial.tree[-1, 0], chain, chains)


@frugal
def finalize(found: Observed) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(fitted values, partials to keep) of every step; (questions) of those that need another pass."""
    fitted: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    questions: dict[str, Any] = {}
    for key, partial in found.partials.items():
        op = partial.step.op
        assert isinstance(op, Learned)
        whole = None
        for _place, value in sorted(partial.tree.items(), key=lambda item: item[0][1] << max(item[0][0], 0)):
            whole = value if whole is None else op.merge(whole, value)
        try:
            question = op.refine(whole)
            if question is not None:
                questions[key] = question
                continue
            fitted[key], kept[key] = op.parted(whole, op.finalize_unit(whole, partial.step.unit))
        except Exception as error:
            raise explained(error, partial.step, "statistics") from error
    frame.synchronize()
    return fitted, kept, questions
