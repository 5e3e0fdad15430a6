"""Learn: one pass over the needed columns per phase, all operators of the phase together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from tasks import engines
from tasks.cluster import monitor
from tasks.cluster.out_of_memory import compute_in_halves
from tasks.cluster.pool import Pool
from tasks.cluster.transfer import gpu_setup
from tasks.core.dtypes import dtype_name
from tasks.core.plan import Partition, Plan
from tasks.core.schema import ROW, Schema
from tasks.core.versions import VALUE_RULES
from tasks.engines.algorithms.moments import Moments
from tasks.errors import DataError
from tasks.graph.binding import SOURCE, Bound, Step
from tasks.graph.evaluation import describe_step, explain_error
from tasks.graph.failed_casts import Record, list_records
from tasks.graph.partition_work import Work, find_block_offsets
from tasks.graph.seen import Seen, find_counted_columns, join_passes
from tasks.graph.state import State
from tasks.learning import large_tables
from tasks.learning.count_tables import CountTables
from tasks.learning.finalize import Concluded, conclude
from tasks.learning.growth import Base, change_of, frozen_values, working_here
from tasks.learning.handles import Handles
from tasks.learning.partials import WHOLE, Observed, Partial, Phase, join_siblings, merge, with_size
from tasks.learning.refit_modes import Mode, behind, describe_changed_tables
from tasks.ops.base import Learned
from tasks.ops.continuous import Normalize
from tasks.ops.fitted_values import FittedValues
from tasks.ops.keyed import Keyed


@dataclass(frozen=True)
class PassOptions:
    """How the passes of `learn` are made.

    floor: partitions of fewer bytes are not halved where memory is short.
    progress: called with (phase, rows) as partitions are done, but not in further passes of a phase.
    known: called, from a thread, with what a step with large tables has learned while other steps are worked on.
    profile: whether each source column that is read is profiled, over all rows.
    """

    floor: int = 0
    progress: Callable[[int, int], None] | None = None
    known: Callable[[FittedValues], None] = lambda _: None
    profile: bool = False


@dataclass
class LearningResult:
    """What `learn` gives: the state; how often partitions were halved for want of memory; the casts that failed, by
    pass; what was seen of the rows (None without `PassOptions.profile`, and where no pass was needed); how many rows
    each rule of the source left out; whether there was a pass over the rows."""

    state: State
    halved: int = 0
    failed: list[list[Record]] = field(default_factory=list)
    seen: Seen | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    has_read_rows: bool = False

    def count_learned_rows(self, rows: int) -> int:
        """How many of the `rows` of a plan were learned from: those that the rules of the source leave; 0 without a
        pass. Filters of the graph may leave fewer to single operators."""
        gone = sum(self.left_out.get(reason, 0) for reason in ("filtered", "repeated", "other_splits", "downsampled"))
        return rows - gone if self.has_read_rows else 0


@dataclass(frozen=True)
class Phases:
    """What the phases of `learn` have in common: the graph as it is bound to the rows, and how these are read.

    unchanged: the keys of steps that do not look at the rows, since a refit leaves them as they are.
    """

    work: Work
    plan: Plan
    pool: Pool
    base: Base
    options: PassOptions
    bound: Bound
    unchanged: frozenset[str]

    @property
    def depths(self) -> list[int]:
        """The depths of the steps that learn from rows: a phase for each, in order."""
        return sorted({step.depth for step in self.bound.learning})


@dataclass
class LearnedSoFar:
    """What `learn` has learned so far; it grows with each pass.

    changes: by step, its entry in `changes.json`.
    passes: what each pass has seen of the rows, and what was counted of the tables that it concluded.
    """

    state: State
    changes: FittedValues
    refit_tables: dict[str, pa.Table] = field(default_factory=dict)
    halved: int = 0
    failed: list[list[Record]] = field(default_factory=list)
    passes: list[Seen] = field(default_factory=list)

    def add_values(self, fitted: FittedValues, for_refit: FittedValues) -> None:
        """Add what steps have learned, by their keys."""
        values = {**self.state.values, **fitted}
        partials = {**self.state.partials, **for_refit}
        self.state = State(values, partials, rules=self.state.rules)

    def add_pass(self, concluded: Concluded, steps: Mapping[str, Step], base: Base) -> None:
        """Add what a pass for these steps has come to."""
        self.halved += concluded.halved
        self.failed.append(concluded.failed)
        self.passes.append(concluded.seen)
        for key, one in concluded.done.items():
            self.changes[key] = change_of(steps[key], base.mode(steps[key]), one.change)
            if one.refit_table is not None:
                self.refit_tables[key] = one.refit_table
        self.add_values(concluded.each("fitted"), concluded.each("for_refit"))


def learn(
    work: Work, plan: Plan, pool: Pool, base: Base | None = None, options: PassOptions = PassOptions()
) -> LearningResult:
    """Learn a graph over all rows of the plan; with `base`, over these and all rows that the base has learned.

    A fit is a refit on an empty base. `work` has the graph, the source and its filter. A phase is one pass; steps whose
    operator left a question open (exact quantiles) share further passes over their columns alone.
    """
    bound = Bound(work.final, work.schema)
    is_fit = base is None
    base = base or Base.empty(bound)
    state = State(*from_parameters(bound, base), rules=VALUE_RULES if is_fit else base.state.rules)
    learned = LearnedSoFar(state, _changes_of_parameters(bound, state, base))
    if not base.refit.keep_ids_only:
        bound = Bound(work.final, work.schema, base.state.values)
    unchanged = _keep_frozen_steps(bound, base, learned)
    phases = Phases(work, plan, pool, base, options, bound, unchanged)
    for number, depth in enumerate(phases.depths):
        _learn_phase(phases, number, depth, learned)
    return LearningResult(
        _make_final_state(phases, learned, is_fit),
        halved=learned.halved,
        failed=learned.failed,
        seen=join_passes(learned.passes) if learned.passes and options.profile else None,
        left_out=learned.passes[0].left_out if learned.passes else {},
        has_read_rows=bool(learned.passes),
    )


def _keep_frozen_steps(bound: Bound, base: Base, learned: LearnedSoFar) -> frozenset[str]:
    """Add the values of frozen steps to what is learned; the keys of those that do not look at the rows."""
    learned.add_values(*frozen_values(base, bound))
    unchanged = [step for step in bound.learning if not base.learns(step)]
    learned.changes |= {step.key: change_of(step, base.mode(step), {"would": None}) for step in unchanged}
    return frozenset(step.key for step in unchanged)


def _learn_phase(phases: Phases, number: int, depth: int, learned: LearnedSoFar) -> None:
    """Learn the steps of one depth: in a pass over the rows, and in further ones while steps have open questions."""
    work = phases.work
    base = phases.base
    options = phases.options
    applied = _select_applied_values(phases.bound, depth, learned.state, phases.unchanged)
    state = State(applied, refit_tables=learned.refit_tables, rules=learned.state.rules)
    work = replace(work, state=state, training=True, depth=depth, first_row=base.first_row)
    phase = Phase(work, depth, options.floor, unchanged=phases.unchanged)
    progress = functools.partial(_report, options.progress, phases.plan, number) if options.progress else None
    columns: dict[str, str] = {}
    if options.profile:
        phase, columns = _profiling(phase, {name for rows in learned.passes for name in rows.columns})
    counts = CountTables(working_here(phases.pool, work.engine))
    while phase.steps:
        observed = Handles(phases.pool.gather(observe, merge, phase, phases.plan.partitions, progress))
        steps = {step.key: step for step in phase.steps}
        concluded = conclude(phases.pool, observed, steps, base, work.engine, options.known)
        learned.add_pass(concluded, steps, base)
        if columns:
            fitted = concluded.each("fitted")
            for_refit = concluded.each("for_refit")
            learned.passes.append(counts.sketch_columns(columns, concluded.tables, fitted, for_refit))
        # Further passes read the same rows: these are not profiled, counted or reported a second time.
        columns = {}
        progress = None
        phase = replace(phase, work=replace(phase.work, profile=None), questions=concluded.questions)


def _make_final_state(phases: Phases, learned: LearnedSoFar, is_fit: bool) -> State:
    """Make the state that is saved: steps in the order of the graph, and what a refit has changed in its base."""
    base = phases.base
    plan = phases.plan
    state = learned.state
    bound = Bound(phases.work.final, phases.work.schema, state.values)  # without the columns that steps have dropped
    order = [step.key for step in (*bound.learned_from_parameters, *bound.learning)]
    values = {key: state.values[key] for key in order}
    partials = {key: state.partials[key] for key in order} | base.collect_unused_vocabularies(order)
    changes = {
        "base": base.version,
        "rows": {"old": base.rows, "new": plan.numbered_rows},
        "steps": {key: learned.changes[key] for key in order if key in learned.changes},
    }
    rows = base.first_row + plan.numbered_rows
    return State(values, partials, {} if is_fit else changes, rows, learned.refit_tables, state.rules)


def _select_applied_values(bound: Bound, depth: int, state: State, unchanged: frozenset[str]) -> FittedValues:
    """What is learned so far; tables of keys only of the steps that a phase applies: workers need no others."""
    steps = [s for s in bound.learning if s.depth == depth and s.key not in unchanged]
    targets = [place for s in (*steps, *bound.filters) for place in s.fit_inputs.values()]
    applied = {step.key for step in bound.needed_steps(targets)}
    keyed = {s.key for s in bound.learning if isinstance(s.op, Keyed)}
    return {key: v if key in applied or key not in keyed else _drop_tables(v) for key, v in state.values.items()}


def _drop_tables(fitted: FittedValues) -> dict[str, Any]:
    return {name: value for name, value in fitted.items() if not isinstance(value, pa.Table)}


def _changes_of_parameters(bound: Bound, state: State, base: Base) -> dict[str, Any]:
    """What a refit reads again and now differs (a side table), with the learned steps behind it."""
    steps = {s.key: s for s in bound.learned_from_parameters}
    changes = {}
    _check_columns(bound, state, base)
    for key, why in describe_changed_tables(bound, base.state.values, state.values).items():
        step = steps[key]
        old = base.state.values[key]
        new = state.values[key]
        assert isinstance(step.op, Learned)
        later = [s.key for s in bound.learning if key in {u.key for u in behind(bound, s)}]
        changes[key] = change_of(step, Mode("merged", why), {**step.op.change(old, new, step.unit), "behind": later})
    return changes


def _check_columns(bound: Bound, state: State, base: Base) -> None:
    """A DataError if a side table has other columns than the base's fit read, or other types."""
    old, new = (Bound(bound.final, bound.source, {**base.state.values, **v}) for v in ({}, state.values))
    for before, now in zip(old.learned_from_parameters, new.learned_from_parameters, strict=True):
        if base.mode(now).mode == "new":
            continue
        was, are = ({c.name: dtype_name(c.dtype) for c in step.outputs} for step in (before, now))
        if was != are:
            differ = sorted(set(was.items()) ^ set(are.items()))
            raise DataError(
                f"{describe_step(now)} would make other columns than in the base",
                where=", ".join(now.op.files),
                why="they differ in " + ", ".join(dict.fromkeys(name for name, _ in differ)),
                do=f"give the table the columns that it had, or freeze it: refit: {{{type(now.op).__name__}: freeze}}",
            )


def _report(progress: Callable[[int, int], None], plan: Plan, phase: int, partition: int, _: object) -> None:
    progress(phase, plan.partitions[partition].rows)


def from_parameters(bound: Bound, base: Base) -> tuple[dict[str, Any], dict[str, Any]]:
    """(fitted values, partials) of the steps that learn from their parameters alone, such as a side table; of frozen
    ones those of the base."""
    fitted = {}
    for step in bound.learned_from_parameters:
        assert isinstance(step.op, Learned)
        if base.mode(step).mode == "frozen":
            fitted[step.key] = base.state.values[step.key]
            continue
        if step.op.frames and step.key in base.state.values:
            step.op.restore_frames(base.state.values[step.key])
        try:
            fitted[step.key] = step.op.finalize_unit(None, step.unit)
        except Exception as error:
            raise explain_error(error, step, "statistics") from error
    return fitted, {key: {} for key in fitted}


def passes(bound: Bound) -> int:
    """How many phases the statistics of a graph have, each of which reads the source."""
    return len({s.depth for s in bound.learned})


def observe(phase: Phase, partition: Partition) -> Observed:
    """The partials of one partition (of its halves, where memory is short)."""
    work = phase.work
    gpu_setup.prepare(work.engine)
    with engines.computing(work.engine, partition.nbytes):
        observe_part = functools.partial(_observe, phase)
        parts = compute_in_halves("statistics", observe_part, partition, phase.floor, work.source, work.engine)
        merged = merge(parts)
    merged.halved = len(parts) - 1
    monitor.count(partition.rows, partition.nbytes)
    return merged


def _observe(phase: Phase, partition: Partition) -> Observed:
    work = phase.work
    xp = work.kernels.xp
    targets = [place for step in phase.steps for place in step.fit_inputs.values()]
    evaluation = work.open_partition(partition, targets, phase.steps)
    evaluation.columns(targets)
    offsets = {space: find_block_offsets(partition, c.ordered(), xp) for space, c in evaluation.contexts.items()}
    partials: dict[str, Partial] = {}
    moments: dict[str, list[Moments]] = {}
    for step in phase.steps:
        op = step.op
        assert isinstance(op, Learned)
        columns = evaluation.inputs(step, fitting=True)
        context = replace(evaluation.context_of(step), question=phase.question(step))
        try:
            if order_free(step, work.bound):
                with evaluation.note_users_code(step):
                    observed = op.observe_unit(columns, step.unit, context)
                tree = {WHOLE: large_tables.split_if_large(op, observed)}
            else:
                with evaluation.note_users_code(step):
                    by_block = op.observe_blocks(columns, step.unit, context, offsets[step.space])
                if work.profile and not work.filters:
                    moments |= _take_moments_of_source(step, by_block, work.bound)
                tree = join_siblings(op, {(0, b.number): p for b, p in zip(partition.blocks, by_block, strict=True)})
        except Exception as error:
            raise explain_error(error, step, evaluation.describe_place(step)) from error
        partials[step.key] = Partial(step, tree)
    seen = Seen() if work.profile is None else work.profile_rows(evaluation, partition, moments)
    seen.left_out = evaluation.left_out
    return with_size(Observed(partials, failed=list_records(evaluation.failed), seen=seen))


def _take_moments_of_source(step: Step, by_block: list[Moments], bound: Bound) -> dict[str, list[Moments]]:
    """Take the moments of a column of the source, by its name, if a Normalize has observed it as it is; else {}."""
    if not isinstance(step.op, Normalize):
        return {}
    place, name = bound.origin(*step.fit_inputs[step.unit[0]])
    return {name: by_block} if place == SOURCE else {}


def _profiling(phase: Phase, known: set[str]) -> tuple[Phase, dict[str, str]]:
    """The phase that also profiles the source columns that it reads and that are not `known`; by step, those whose
    values the phase counts anyway."""
    work = phase.work
    targets = [place for step in phase.steps for place in step.fit_inputs.values()]
    names = [name for name in work.reads(targets) if name != ROW and name not in known]
    columns = {} if work.filters else find_counted_columns(work.bound, phase.steps)
    columns = {key: name for key, name in columns.items() if name in names}
    rest = tuple(name for name in names if name not in columns.values())
    return replace(phase, work=replace(work, profile=rest)), columns


def order_free(step: Step, bound: Bound) -> bool:
    """Whether merging the step's partials is exact in any order; a DataError if a column to learn from is missing."""
    schema = Schema(replace(bound.schemas[place][name], name=n) for n, (place, name) in step.fit_inputs.items())
    missing = [n for n in step.op.extra_columns(fitting=True) if n not in schema]
    if missing:
        raise DataError(
            f"{type(step.op).__name__} needs the column {missing[0]!r} to learn from",
            do="name a column of the source, or one that an entry above makes",
        )
    return step.op.order_free(step.unit, schema)  # type: ignore[attr-defined]
