"""Stage 3, transform: every partition is read, transformed and cut into pieces, which wait in an exchange.

In: the plan of the split and the learned state. Out: pieces in the memory of the workers or in scratch files, and a
note of how many rows there are in each range of position (`exchange{split}.json`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from tasks.cluster import column_cache
from tasks.cluster.pool import Pool
from tasks.core.stage_results import TransformResult
from tasks.job import profiles
from tasks.job.request import Request, SavedPlans
from tasks.shuffle.choice import Exchange, choose
from tasks.stages.progress import Progress, RowCounter, no_progress
from tasks.stages.reuse import PiecesNote, Prepared, exchange_of, missing_parts, prepare_split, read_pieces_note
from tasks.storage.files import check_unchanged


def transform(request: Request, split: str, pool: Pool, progress: Progress = no_progress) -> TransformResult:
    """Cut every partition of a split into pieces, which stay where they are made.

    Pieces of an earlier start are used again; when all files are written, no pieces are needed.
    """
    start = time.perf_counter()
    ready = prepare_split(request, split)
    note = read_pieces_note(request, split, ready)
    reused = note is not None and not missing_parts(request, split, ready, note)[1]
    if request.run.profile and reused:
        reused = profiles.load_profile(request, profiles.whole_name(split), ready.fingerprint) is not None
    if note is None or not reused:
        note, _ = cut_split(request, split, ready, pool, progress)
    progress(ready.plan.rows, ready.plan.rows)
    summary = note.summary
    choice = note.choice
    return TransformResult(
        split=split,
        rows=summary.rows_in,
        nbytes=summary.nbytes,
        seconds=time.perf_counter() - start,
        reused=reused,
        halved=summary.halved,
        failed_casts=summary.failed_casts,
        rows_out=summary.rows_out,
        partitions=len(ready.plan.partitions),
        exchange=choice.kind,
        because=choice.because,
        bad_lines=sum(file["count"] for file in SavedPlans(request).bad_lines(split))
        if request.source.bad_lines != "error"
        else None,
        downsampled=summary.left_out.get("downsampled"),
        other_splits=summary.left_out.get("other_splits"),
        null_in_train=summary.left_out.get("null_in_train"),
        profile=profiles.whole_name(split) if request.run.profile else "",
    )


def cut_split(
    request: Request, split: str, ready: Prepared, pool: Pool, progress: Progress = no_progress
) -> tuple[PiecesNote, Exchange]:
    """Cut all partitions of a split, as far as their pieces are not there; (the note, the exchange that has them)."""
    plan = ready.plan
    partitions = ready.plan.partitions
    choice = choose(request.run.exchange, plan.rows, ready.shuffle.schema, pool, request.engine)
    exchange = exchange_of(request, ready, pool, choice.kind)
    counter = RowCounter(progress, plan.rows)
    try:
        summary = ready.shuffle.cut(exchange, choice.on_host, lambda i, _: counter.add(partitions[i].rows))
    finally:
        column_cache.release(pool, ready.work.cache)
    plans = SavedPlans(request)
    check_unchanged(*plans.sources(split))
    note = PiecesNote(ready.fingerprint, choice, summary)
    if request.run.profile:
        _save_profile(request, split, ready, note, plans.columns(split))
    note.write(request, split)
    return note, exchange


def _save_profile(request: Request, split: str, ready: Prepared, note: PiecesNote, columns: Mapping[str, str]) -> None:
    """Write the whole profile of a split, with the types of all its `columns`: of what transform has read, and of what
    statistics has read before."""
    summary = note.summary
    work = ready.work
    profile = profiles.profile_of(summary.seen, work.bound, summary.failed_casts, work.source, columns)
    before = profiles.load_profile(request, profiles.STATISTICS) if ready.work.training else None
    whole = profile.with_columns_of(before) if before else profile
    profiles.save(request, profiles.whole_name(split), whole, ready.fingerprint)
