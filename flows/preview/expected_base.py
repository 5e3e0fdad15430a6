"""The base that a run would take now, and what a preview says of it."""

from __future__ import annotations

from dataclasses import replace

from flows.job.job import Application
from flows.job.refit_job import AnyJob, Refit
from tasks.job.base_version import describe_batches, describe_other_ids, find_newest_good
from tasks.job.request import Request
from tasks.storage.output_mirror import address_of


def put_on_base(job: AnyJob, request: Request) -> tuple[Request, str]:
    """(the request on top of the base that a run would take now, a sentence on it or on having none); the base is not
    read whole."""
    if isinstance(job, Application):
        return request, ""
    if job.base_path is None:
        return request, describe_other_ids(request)
    choice = find_newest_good(job.base_path, thorough=False)
    if choice.version is None:
        nothing = f"nothing is published at {address_of(job.base_path)} yet: the run is a fit"
        return request, choice.all_discarded(job.base_path) or nothing
    version = choice.version
    passed = [*choice.damaged.values(), *(f"{name} was discarded" for name in choice.discarded)]
    more = f"; newer, and not good: {'; '.join(passed)}" if passed else ""
    inherited = f"; as in the base: {job.inherited}" if isinstance(job, Refit) and job.inherited else ""
    place = address_of(version.path)
    text = f"{place}, {version.learned_rows:,} rows of {describe_batches(version.data)}{more}{inherited}"
    return replace(job.request(request.engine, version), flow=request.flow), text
