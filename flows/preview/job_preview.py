"""The preview of a job: schema, sample rows, plan, needs, time, and the reasons for which the run would be refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from flows.job.files_beside import check_files_beside
from flows.job.refit_job import AnyJob
from flows.job.run_history import Guess, guess
from flows.preview.expected_base import put_on_base
from flows.preview.preview_content import Preview
from flows.preview.readings import list_readings
from flows.preview.refusals import check_order, check_source, collect_target_errors
from flows.preview.source_plans import describe_lookalike_data, list_reading_notes, plan_source, provide_data
from flows.preview.split_files import estimate_files
from flows.preview.storage_traffic import estimate_traffic
from infra.clusters.expected import ExpectedWorkers, estimate_workers
from infra.clusters.model import Cluster
from tasks.core.plan import Plan
from tasks.core.settings import FlowName
from tasks.core.wings import from_wing
from tasks.errors import GiveUpError, RowmillError
from tasks.job.apply_fitted import bind_graph, list_differences, list_missing_labels
from tasks.job.refitting import match_to_base
from tasks.job.request import Request
from tasks.learning.refit_modes import mode_rows
from tasks.sources.bad_lines import bad_lines_of, bad_lines_text
from tasks.sources.uniting import without_unused
from tasks.stages.needs import explain_too_little_memory, needs
from tasks.stages.statistics import decide_modes
from tasks.stages.trial import list_used_columns, run_trial


def preview(job: AnyJob, flow: FlowName = "preprocess") -> Preview:
    """Preview a job without writing anything or starting a cluster; raises the errors of job and data."""
    refused: list[RowmillError] = []
    contract: list[str] = []
    workers = _workers(job.cluster, refused)
    request, base = put_on_base(job, replace(job.request(workers.engine), flow=flow))
    pin_table = from_wing("tasks/lake", "pinning", "pin_table")
    if pin_table is not None:
        request = pin_table(request)
    wanted_source = request.source
    check_files_beside(request)
    with provide_data(job, request) as (request, scale):
        plans = plan_source(request, workers, contract, refused)
        used = list_used_columns(request, bind_graph(request, plans[request.plan_names[0]].schema))
        plans = {split: without_unused(plan, used) for split, plan in plans.items()}
        first = plans[request.plan_names[0]]
        bound = bind_graph(request, first.schema)
        check_source(request, first, bound)
        sample = run_trial(request, first)
    files = estimate_files(request, plans, sample, scale, len(workers.workers))
    wanted = needs(request, plans, workers, sample, scale) if flow != "fit" else None
    if flow != "fit":
        check_order(request, plans)
    refused += collect_target_errors(request, wanted)
    if wanted and (error := explain_too_little_memory(request, plans, workers)):
        refused.append(error)
    changes = match_to_base(request, first.schema)
    readings = list_readings(request, bound, plans, scale)
    return Preview(
        target=request.staging.address,
        workers=workers,
        plans=plans,
        source=first.schema,
        job_source=request.source,
        sample=sample,
        readings=readings,
        traffic=estimate_traffic(request, bound.final, plans, readings, len(workers.workers)),
        needs=wanted,
        files=files if wanted else {},
        guess=_guess_time(request, plans, scale, workers),
        refused=refused,
        scale=scale,
        left_out=list_missing_labels(request, first.schema),
        differs=list_differences(request, first),
        made_up=describe_lookalike_data(request, plans, request.source != wanted_source),
        dated=job.dated,
        united=list_reading_notes(plans, used),
        contract=list(dict.fromkeys(contract)),
        bad_lines=bad_lines_text([file for plan in plans.values() for file in bad_lines_of(plan)]),
        base="; ".join([base, *(changes.lines if changes else ())]),
        modes=mode_rows(decide_modes(request, first.schema)),
    )


def _guess_time(request: Request, plans: Mapping[str, Plan], scale: float, workers: ExpectedWorkers) -> Guess | None:
    """How long the run may take, by earlier runs of the job."""
    rows = sum(plan.rows for plan in plans.values())
    nbytes = sum(plan.nbytes for plan in plans.values())
    return guess(request, int(rows * scale), int(nbytes * scale), workers.threads)


def _workers(cluster: Cluster, refused: list[RowmillError]) -> ExpectedWorkers:
    """The workers of the run; without any the reason is added to `refused`, and the cores of this host count."""
    try:
        return estimate_workers(cluster)
    except GiveUpError as error:
        refused.append(error)
        return estimate_workers(Cluster(kind="cpu"))
