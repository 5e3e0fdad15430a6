"""Learn: one pass over the needed columns per phase, all operators of the phase together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tasks import engines
from tasks.cluster import monitor
from tasks.cluster.column_cache import CacheKey
from tasks.cluster.out_of_memory import in_halves
from tasks.cluster.pool import Pool
from tasks.cluster.transfer import gpu_setup
from tasks.core.dtypes import dtype_name
from tasks.core.plan import Partition, Plan
from tasks.core.schema import ROW, Schema
from tasks.core.versions import VALUE_RULES
from tasks.engines.algorithms.moments import Moments
from tasks.errors import DataError
from tasks.graph.binding import SOURCE, Bound, Step
from tasks.graph.changes import Mode
from tasks.graph.evaluation import explained, titled
from tasks.graph.failed_casts import Record, records
from tasks.graph.node import Node
from tasks.graph.partition_work import Work, block_offsets
from tasks.graph.row_rules import ALL_ROWS, RowRules
from tasks.graph.seen import Seen, counted, together
from tasks.graph.state import State
from tasks.learning import large_tables
from tasks.learning.count_tables import CountTables
from tasks.learning.finalize import conclude, conclude_refit
from tasks.learning.handles import Handles
from tasks.learning.partials import Observed, Partial, Phase, join_siblings, merge, with_size
from tasks.learning.refit import Base, change_of, frozen_values, working_here
from tasks.learning.refit_modes import behind, changed_tables
from tasks.ops.base import Learned
from tasks.ops.continuous import Normalize
from tasks.ops.keyed import Keyed


def learn(source: Any, plan: Plan, final: Node, schema: Schema, engine: str, pool: Pool, filter: str | None = None,
          floor: int = 0, progress: Callable[[int, int], None] | None = None,
          halved: Callable[[int], None] | None = None,
          known: Callable[[Mapping[str, Any]], None] | None = None,
          cache: CacheKey | None = None,
          failed: Callable[[list[Record]], None] | None = None,
          base: Base | None = None,
          seen: Callable[[Seen], None] | None = None,
          rules: RowRules = ALL_ROWS,
          left_out: Callable[[Mapping[str, int]], None] | None = None) -> State:  # fmt: skip
    """The state of a graph over all rows of the plan; with `base`, of these and of all rows that the base has learned.
    `progress(phase, rows)` is called as partitions are done.

    After each pass, `halved(times)` is called with how often partitions were halved in it for want of memory, and
    `failed(records)` with the casts that failed in it. `known(values)` is called, from a thread, with what a step with
    large tables has learned while other steps are worked on. A phase is one pass; steps whose operator left a question
    open (exact quantiles) share further passes over their columns alone, without `progress`. The columns of
    `cache` stay decoded on the workers. `seen` is called once, where a pass was needed, with what was seen of the rows:
    each column that was read, over all rows. `rules` leave out rows beyond the filter; `left_out(counts)` is called
    with how many rows split and down-sampling left out, where a pass was needed.
    """
    bound = Bound(final, schema)
    value_rules = base.state.rules if base else VALUE_RULES
    state = State(*from_parameters(bound, base), rules=value_rules)
    changes = _changes_of_parameters(bound, state, base) if base else {}
    unchanged: frozenset[str] = frozenset()
    if base:
        if not base.night.keep_ids_only:
            bound = Bound(final, schema, base.state.values)
        fitted, partials = frozen_values(base, bound)
        state = State({**state.values, **fitted}, {**state.partials, **partials}, rules=value_rules)
        unchanged = frozenset(step.key for step in bound.learning if not base.learns(step))
        changes |= {s.key: change_of(s, base.mode(s), {"would": None}) for s in bound.learning if s.key in unchanged}
    passes_seen: list[Seen] = []
    of_night: dict[str, pa.Table] = {}
    for number, depth in enumerate(sorted({s.depth for s in bound.learning})):
        done = functools.partial(_report, progress, plan, number) if progress else None
        values = _applied_values(bound, depth, state, unchanged) if base else state.values
        learned = State(values, of_night=of_night, rules=value_rules)
        work = Work(source, final, schema, engine, learned, filter, training=True, depth=depth, cache=cache,
                    first_row=base.first_row if base else 0, rules=rules)  # fmt: skip
        phase = Phase(work, depth, floor, unchanged=unchanged)
        columns: dict[str, str] = {}
        if seen:
            known_columns = {name for rows in passes_seen for name in rows.columns}
            phase, columns = _profiling(phase, known_columns)
        counts = CountTables(working_here(pool, engine))
        while phase.steps:
            observed = Handles(pool.gather(observe, merge, phase, plan.partitions, done))
            hooks = halved or _ignore, known or _ignore, failed or _ignore
            if base:
                steps = {step.key: step for step in phase.steps}
                fitted, partials, questions, changed = conclude_refit(
                    pool, observed, *hooks, steps, base, engine, passes_seen.append, counts.add,
                    of_night.__setitem__
                )  # fmt: skip
                changes |= {key: change_of(steps[key], base.mode(steps[key]), c) for key, c in changed.items()}
            else:
                fitted, partials, questions = conclude(pool, observed, *hooks, passes_seen.append)
            state = State({**state.values, **fitted}, {**state.partials, **partials}, rules=value_rules)
            if columns:
                passes_seen.append(counts.seen(columns, fitted, partials))
            work = replace(phase.work, profile=None)
            phase, done, columns = replace(phase, work=work, questions=questions), None, {}
    if seen and passes_seen:
        seen(together(passes_seen))
    if left_out and passes_seen:
        left_out(passes_seen[0].left_out)
    if base:
        bound = Bound(final, schema, state.values)
        order = [s.key for s in (*bound.learned_from_parameters, *bound.learning)]
        changed = {
            "base": base.version,
            "rows": {"old": base.rows, "new": plan.rows},
            "steps": {key: changes[key] for key in order if key in changes},
        }
        partials = {k: state.partials[k] for k in order} | base.left_out(order)
        values, rows = {k: state.values[k] for k in order}, base.first_row + plan.rows
        return State(values, partials, changed, rows, of_night, value_rules)
    return State(state.values, state.partials, rows=plan.rows, rules=value_rules)


def _applied_values(bound: Bound, depth: int, state: State, unchanged: frozenset[str]) -> dict[str, Any]:
    """What is learned so far; tables of keys only of the steps that a phase applies: workers need no others."""
    steps = [s for s in bound.learning if s.depth == depth and s.key not in unchanged]
    targets = [place for s in (*steps, *bound.filters) for place in s.fit_inputs.values()]
    applied = {step.key for step in bound.needed_steps(targets)}
    keyed = {s.key for s in bound.learning if isinstance(s.op, Keyed)}
    return {key: v if key in applied or key not in keyed else _plain(v) for key, v in state.values.items()}


def _plain(fitted: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fitted.items() if not isinstance(value, pa.Table)}


def _changes_of_parameters(bound: Bound, state: State, base: Base) -> dict[str, Any]:
    """What a refit reads again and now differs (a side table), with the learned steps behind it."""
    steps, changes = {s.key: s for s in bound.learned_from_parameters}, {}
    _check_columns(bound, state, base)
    for key, why in changed_tables(bound, base.state.values, state.values).items():
        step, old, new = steps[key], base.state.values[key], state.values[key]
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
                f"{titled(now)} would make other columns than in the base",
                where=", ".join(now.op.files),
                why="they differ in " + ", ".join(dict.fromkeys(name for name, _ in differ)),
                do=f"give the table the columns that it had, or freeze it: refit: {{{type(now.op).__name__}: freeze}}",
            )


def _ignore(_: Any) -> None:
    return


def _report(progress: Callable[[int, int], None], plan: Plan, phase: int, partition: int, _: Any) -> None:
    progress(phase, plan.partitions[partition].rows)


def from_parameters(bound: Bound, base: Base | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """(fitted values, partials) of the steps that learn from their parameters alone, such as a side table; of frozen
    ones those of the base."""
    fitted = {}
    for step in bound.learned_from_parameters:
        assert isinstance(step.op, Learned)
        if base and base.mode(step).mode == "frozen":
            fitted[step.key] = base.state.values[step.key]
            continue
        if base and step.op.frames and step.key in base.state.values:
            step.op.restore_frames(base.state.values[step.key])
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
    gpu_setup.prepare(work.engine)
    with engines.computing(work.engine, partition.nbytes):
        observe_part = functools.partial(_observe, phase)
        parts = in_halves("statistics", observe_part, partition, phase.floor, work.source, work.engine)
        merged = merge(parts)
    merged.halved = len(parts) - 1
    monitor.count(partition.rows, partition.nbytes)
    return merged


def _observe(phase: Phase, partition: Partition) -> Observed:
    work, engine = phase.work, phase.work.kernels
    targets = [place for step in phase.steps for place in step.fit_inputs.values()]
    evaluation = work.opened(partition, targets)
    evaluation.columns(targets)
    offsets = {space: block_offsets(partition, c.ordered(), engine.xp) for space, c in evaluation.contexts.items()}
    partials: dict[str, Partial] = {}
    moments: dict[str, list[Moments]] = {}
    for step in phase.steps:
        op = step.op
        assert isinstance(op, Learned)
        columns = evaluation.inputs(step, fitting=True)
        context = replace(evaluation.contexts[step.space], question=phase.question(step))
        starts = offsets[step.space]
        try:
            if order_free(step, work.bound):
                with evaluation.noted(step):
                    observed = op.observe_unit(columns, step.unit, context)
                tree = {(-1, 0): large_tables.split_if_large(op, observed)}
            else:
                with evaluation.noted(step):
                    by_block = op.observe_blocks(columns, step.unit, context, starts)
                if isinstance(op, Normalize) and work.profile and not work.filters:
                    place, name = work.bound.origin(*step.fit_inputs[step.unit[0]])
                    moments |= {name: by_block} if place == SOURCE else {}
                tree = join_siblings(op, {(0, b.number): p for b, p in zip(partition.blocks, by_block, strict=True)})
        except Exception as error:
            raise explained(error, step, evaluation.where) from error
        partials[step.key] = Partial(step, tree)
    seen = Seen() if work.profile is None else work.seen(evaluation, partition, moments)
    seen.left_out = evaluation.left_out
    return with_size(Observed(partials, failed=records(evaluation.failed), seen=seen))


def _profiling(phase: Phase, known: set[str]) -> tuple[Phase, dict[str, str]]:
    """The phase that also profiles the source columns that it reads and that are not `known`; by step, those whose
    values the phase counts anyway."""
    work = phase.work
    targets = [place for step in phase.steps for place in step.fit_inputs.values()]
    names = [name for name in work.reads(targets) if name != ROW and name not in known]
    columns = {} if work.filters else counted(work.bound, phase.steps)
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
