"""Whether a run that was cut off has published what the next start of the same command is about to make.

A kill may come at any moment after the rename that publishes. What lies in the staging folder may be gone by then, so
that the output alone tells: it has the same rows of the same date, learned or written by the same job.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.compute as pc

from tasks.core.strict_json import JsonObject
from tasks.errors import DataError
from tasks.graph.refit_history import read_files
from tasks.graph.saved_workflow import find_fitted_folder, read_fitted
from tasks.job.learned_files import find_learned_files, is_last_batch
from tasks.job.request import Request, SavedPlans
from tasks.storage.atomic import read_record
from tasks.storage.discarded import is_discarded
from tasks.storage.output import PublishedOutput
from tasks.storage.own_files import MANIFEST, find_description, versions_of


def find_published_work(request: Request, plans: SavedPlans) -> Path | None:
    """Find the output, or the version, that has the work of this request already; None if there is none.

    It is also None for a request that does not follow an interrupted run: a request for
    the same work is then meant to do it again.
    """
    if not request.resumes:
        return None
    target = request.staging.target
    newest = next(reversed(versions_of(target)), target)
    if find_description(newest) is None or is_discarded(newest) or not _is_of_date(newest, request.dated):
        return None
    try:
        has_work = _has_work(newest, request, plans)
    except DataError:  # a damaged output counts as other work
        return None
    return newest if has_work else None


def _is_of_date(output: Path, dated: JsonObject) -> bool:
    published = PublishedOutput(output)
    noted = {**published.fitted, **published.manifest}.get("dated")
    run_date = noted.get("run_date") if isinstance(noted, dict) else None
    return bool(run_date == dated.get("run_date"))


def _has_work(output: Path, request: Request, plans: SavedPlans) -> bool:
    base = request.base
    if base is not None and os.path.realpath(base.path) == os.path.realpath(find_fitted_folder(output)):
        # with refit.all, a run that was cut off earlier looks the same
        return not base.all and not request.changes_features and _has_learned(output, plans, base.again)
    if base is None and request.flow == "fit":
        return PublishedOutput(output).fitted.get("graph") == request.graph and _has_learned(output, plans)
    return _is_written_by(output, request, plans)


def _has_learned(output: Path, plans: SavedPlans, again: bool = False) -> bool:
    """Return whether the last batch that an output has learned is that of the plans; with `again` once more, since the
    files are in an earlier batch, too."""
    folder = find_fitted_folder(output)
    history = read_fitted(folder).get("history") or {}
    batches = history.get("nights", ())
    known = read_files(folder, history)
    if not is_last_batch(plans.learned_files, known, batches):
        return False
    earlier = known.filter(pc.less(known["night"], len(batches) - 1))
    return not again or bool(find_learned_files(plans.learned_files, earlier))


def _is_written_by(output: Path, request: Request, plans: SavedPlans) -> bool:
    """Return whether all splits of an output were written by the job of the request, from the same source.

    The first plan is told by the contents of its files, as learned: with `source.keys` it is of scratch files, which
    are others each time.
    """
    job = request.parts_fingerprint()
    taught = None if request.fitted else request.plan_names[0]
    for split in request.splits:
        prints = read_record(output / split / MANIFEST).get("fingerprints")
        if not isinstance(prints, dict) or prints.get("job") != job:
            return False
        is_learned = request.source.plan_name(split) == taught
        if not is_learned and prints.get("source") != plans.plan(split).fingerprint:
            return False
    return taught is None or _has_learned(output, plans)
