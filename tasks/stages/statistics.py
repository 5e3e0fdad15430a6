"""Stage 2, statistics: all operators learn, phase by phase.

In: the plan of the training data. Out: the learned state of the workflow and its manifest, in `state/` of the staging
folder, and decoded columns in the workers' memory for transform.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import date
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tasks.cluster import column_cache
from tasks.cluster.pool import Pool
from tasks.core.plan import Plan
from tasks.core.schema import Schema
from tasks.core.stage_results import StatisticsResult
from tasks.core.strict_json import JsonObject
from tasks.errors import DataError
from tasks.graph.binding import Bound, Step
from tasks.graph.failed_casts import merge_largest
from tasks.graph.learned_text import collect_report_tables, tabulate_growth
from tasks.graph.matching import Matched, index_learned_steps
from tasks.graph.partition_work import Work
from tasks.graph.state import Saving, State, check_saved, save_refit_tables
from tasks.job import profiles
from tasks.job.apply_fitted import bind_graph
from tasks.job.refitting import LEARN_FROM, copy_base, match_to_base
from tasks.job.request import Request, SavedPlans
from tasks.job.split_work import work_of
from tasks.learning import observe
from tasks.learning.growth import Base
from tasks.learning.refit_modes import Mode, modes
from tasks.ops.base import Learned, RefitDate
from tasks.stages.cache_policy import cache_for_transform
from tasks.stages.progress import Progress, RowCounter, no_progress
from tasks.storage.atomic import no_space, partial_folder, read_record, write_json
from tasks.storage.files import check_unchanged

GROWTH_ROWS = 100  # most steps of a refit that an artifact shows


def statistics(request: Request, pool: Pool, progress: Progress = no_progress) -> StatisticsResult:
    """Learn what the operators of the workflow learn, and save it in `state/`, unless an earlier start did so."""
    start = time.perf_counter()
    work = work_of(request, SavedPlans(request), request.splits[0])
    plan: Plan = work.source
    folder = request.staging.folder / "state"
    fingerprint = request.state_fingerprint(plan.fingerprint)
    manifest = read_record(folder / "manifest.json")
    reused = manifest.get("fingerprint") == fingerprint and is_whole(folder, manifest["digest"])
    if request.run.profile and reused and manifest.get("profiled", True):
        reused = profiles.load_profile(request, profiles.STATISTICS, fingerprint) is not None
    bound = work.bound
    phases = observe.passes(work.bound)
    cache = None
    if not reused:
        counter = RowCounter(progress, plan.rows * max(phases, 1))
        with cache_for_transform(request, plan, work, pool) as cache:
            manifest = _learn_and_save(request, replace(work, cache=cache), pool, folder, fingerprint, counter)
    progress(plan.rows, plan.rows)
    return StatisticsResult(
        rows=plan.rows * phases,
        nbytes=_estimate_needed_bytes(plan, bound),
        phases=phases,
        operators=len({step.node for step in bound.learned}),
        learned=len(bound.learned),
        digest=manifest["digest"],
        reused=reused,
        tables=manifest.get("tables", {}),
        halved=manifest.get("halved", 0),
        failed_casts=manifest.get("failed_casts", ()),
        downsampled=manifest.get("left_out", {}).get("downsampled"),
        other_splits=manifest.get("left_out", {}).get("other_splits"),
        decoded=column_cache.sum_cached_bytes(pool, cache),
        profile=profiles.STATISTICS if request.run.profile else "",
        seconds=time.perf_counter() - start,
    )


def _learn_and_save(
    request: Request, work: Work, pool: Pool, folder: Path, fingerprint: str, counter: RowCounter
) -> JsonObject:
    """Learn and save: the state and its manifest get to `folder` by one rename; return the manifest. Large tables are
    written while others are still put in order."""
    run = request.run
    plan = work.source
    bound = work.bound
    side_files = request.side_files
    base = base_of(request, plan.schema)
    if base and request.base and request.base.learn_from:
        base = _learn_new_steps(request, base, plan.schema, pool)
    with ExitStack() as stack:
        with no_space(folder):
            partial = stack.enter_context(partial_folder(folder))
        saving = stack.enter_context(Saving(partial))
        passes = observe.PassOptions(
            run.min_partition_size, lambda _, rows: counter.add(rows), saving.begin, bool(run.profile)
        )
        result = observe.learn(work, plan, pool, base, passes)
        state = result.state
        plans = SavedPlans(request)
        check_unchanged(*plans.sources(request.splits[0]))
        check_side_files(request, side_files)
        with no_space(folder):
            tables = collect_report_tables(bound.learned, state.values)
            if request.base:
                tables = {f"On top of {request.base.version}": tabulate_growth(state.changes)[:GROWTH_ROWS], **tables}
            digest = state.save(partial, saving, run.keep_partials)
            if state.refit_tables:
                save_refit_tables(partial, state.refit_tables, digest)
            casts = merge_largest(result.failed)
            manifest = {"fingerprint": fingerprint, "digest": digest, "tables": tables, "halved": result.halved}
            manifest |= {"failed_casts": casts, "left_out": dict(result.left_out)}
            manifest["learned_rows"] = result.count_learned_rows(plan.rows)
            if run.profile and result.seen is None:  # no row was read: what an earlier start has seen is of other work
                manifest["profiled"] = False
                (request.staging.folder / profiles.STATISTICS).unlink(missing_ok=True)
            if result.seen is not None:
                profile = profiles.profile_of(result.seen, bound, casts, plan, plans.columns(request.splits[0]))
                profiles.save(request, profiles.STATISTICS, profile, fingerprint)
            write_json(partial / "manifest.json", manifest)
            stack.close()
    return manifest


def decide_modes(request: Request, source: Schema | None = None) -> dict[str, Mode]:
    """Decide what the refit does with each learned step; {} for a fit.

    It is also {} for changed features without the columns of the `source`. A JobError for settings that are impossible,
    and for features that would move ids.
    """
    if request.base is None or (request.changes_features and source is None):
        return {}
    source = source or request.fitted_schema
    changes = match_to_base(request, source)
    bound = bind_graph(request, source)
    return modes(bound, request.base.settings, request.base.all, changes.new if changes else {})


def base_of(request: Request, source: Schema) -> Base | None:
    """Load what learning starts from; None for a fit."""
    base = request.base
    if not base:
        return None
    folder = copy_base(request)
    since = date.fromisoformat(base.since) if base.since else None
    refit = RefitDate(date.fromisoformat(base.day), base.forget, base.all, since)
    state = State.load(folder, digest=base.state)
    state.partials  # noqa: B018  # a JobError where they were not saved, before any row is read
    if changes := match_to_base(request, source):
        state = _rename_matched_steps(state, changes, index_learned_steps(bind_graph(request, source)))
    return Base(state, request.first_row, decide_modes(request, source), refit, base.version)


def _learn_new_steps(request: Request, base: Base, source: Schema, pool: Pool) -> Base:
    """Let the new steps of a base learn from the rows of `refit.learn_from`; the refit continues with them."""
    new = {key for key, mode in base.modes.items() if mode.mode == "new"}
    if not new:
        return base
    plans = SavedPlans(request)
    work = work_of(request, plans, LEARN_FROM, source)
    rest = {k: Mode("frozen") for k in base.modes if k not in new}
    passes = observe.PassOptions(request.run.min_partition_size)
    state = observe.learn(work, work.source, pool, replace(base, modes={**base.modes, **rest}), passes).state
    check_unchanged(*plans.sources(LEARN_FROM))
    values, partials = (
        {**own, **{key: learned[key] for key in new if key in learned}}
        for own, learned in ((base.state.values, state.values), (base.state.partials, state.partials))
    )
    assert request.base
    ordinary = modes(work.bound, request.base.settings, request.base.all)
    on_top = {
        key: replace(ordinary[key], why=f"{ordinary[key].why}; new, and learned from refit.learn_from first")
        for key in new
    }
    return replace(base, state=State(values, partials, rows=base.state.rows), modes={**base.modes, **on_top})


def _rename_matched_steps(state: State, changes: Matched, steps: Mapping[str, Step]) -> State:
    """Rename the steps of the state of a base to the keys of a job with other features; drop those that do not
    continue."""
    values, partials = (
        {key: learned[old] for key, old in changes.keys.items() if old in learned}
        for learned in (state.values, state.partials)
    )
    for key in changes.retuned:
        op = steps[key].op
        if isinstance(op, Learned) and (known := values.get(key) or partials.get(key)):
            op.check_retuned(known, steps[key].unit)
    return State(values, partials, rows=state.rows)


def check_side_files(request: Request, before: list[Any]) -> None:
    """Raise a DataError if a file that an operator reads besides the source has changed since `before`."""
    for file, now in zip_longest(before, request.side_files, fillvalue=["a file of a folder"]):
        if file != now:
            raise DataError(
                "a side table changed during the run",
                where=file[0],
                why=f"its size and version were {file[1:]} and are {now[1:]} now",
                do="run the same job again once nothing writes to it",
            )


def is_whole(folder: Path, digest: str) -> bool:
    """Return whether a saved state has this digest, and none of its tables is damaged."""
    try:
        check_saved(folder, digest)
    except (DataError, OSError):
        return False
    return True


def _estimate_needed_bytes(plan: Plan, bound: Bound) -> int:
    """Estimate how many decoded bytes the statistics read, by the share of their columns."""
    needed = bound.source_columns([place for s in bound.learned for place in s.fit_inputs.values()], training=True)
    return plan.nbytes * len(needed) // max(len(plan.schema), 1)
