"""The artifact of a deployment's nights: each day with its run, rows, seconds and state."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from prefect import get_client
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterExpectedStartTime,
)
from prefect.client.schemas.sorting import FlowRunSort
from prefect.context import FlowRunContext
from prefect.utilities.urls import url_for

from flows.job.nights import Deployed, deployed
from tasks.errors import JobError
from tasks.job.run_date import parse_run_date, zone_of
from tasks.report import markdown_table
from tasks.stages.progress_artifact import fresh_client

DAYS = 30  # in the table
RUNS = 200  # of the deployment that are looked at, as many as the server gives at once
log = logging.getLogger("millrace")


def show_nights(outcomes: Mapping[date, str]) -> None:
    """Write the artifact of the nights of the deployment of the current flow run; nothing without a deployment.

    `outcomes` says of days without an output how this run ended for them. A server that is away is no reason to fail.
    """
    context = FlowRunContext.get()
    flow_run = context.flow_run if context else None
    deployment_id = getattr(flow_run, "deployment_id", None)
    if context is None or context.flow is None or flow_run is None or deployment_id is None:
        return
    try:
        with fresh_client(), get_client(sync_client=True) as client:
            deployment = client.read_deployment(deployment_id)
            nights = deployed(f"{context.flow.name}/{deployment.name}", deployment)
            runs = _runs_by_day(client, nights)
            text = nights_text(nights, runs, outcomes)
            create_markdown_artifact(text, key=artifact_key(nights.name), description=f"The nights of {nights.name}")
    except Exception as error:
        log.warning("the table of nights could not be written: %s", error)


def artifact_key(name: str) -> str:
    """The key of the artifact of a deployment's nights.

    >>> artifact_key("preprocess/Nightly 2")
    'millrace-nights-preprocess-nightly-2'
    """
    return f"millrace-nights-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}"


def nights_text(nights: Deployed, runs: Mapping[date, Any], outcomes: Mapping[date, str]) -> str:
    """The table of the last nights as Markdown, the newest first, and above it how many days have no output.

    `runs` has the newest flow run of each day.
    """
    outputs, today = nights.published(), nights.today()
    oldest = today - timedelta(days=DAYS - 1)
    expected = nights.missing(max(nights.first_day(), oldest)) if nights.schedules else []
    missing = [day for day in sorted({*expected, *runs, *outcomes}) if day not in outputs and day >= oldest]
    missing = [day for day in missing if outcomes.get(day) != "no data"]
    days = sorted({*missing, *outputs, *runs, *outcomes}, reverse=True)
    rows = []
    for day in [day for day in days if day >= oldest]:
        night, flow_run = outputs.get(day), runs.get(day)
        run_id = night.run if night and night.run else str(flow_run.id) if flow_run else ""
        if night:
            state = f"published: {night.path.name}"
        else:
            state = outcomes.get(day) or (str(flow_run.state_name) if flow_run else "no run")
        rows.append(
            {
                "day": day.isoformat(),
                "run": f"[{run_id[:8]}]({url_for('flow-run', obj_id=run_id)})" if run_id else "",
                "rows": f"{night.rows:,}" if night and night.rows is not None else "",
                "seconds": f"{night.seconds:,.1f}" if night and night.seconds is not None else "",
                "state": state.replace("|", "\\|").replace("\n", " "),
            }
        )
    if not missing:
        head = f"Every day of {nights.name} has a published output."
    else:
        listed = ", ".join(day.isoformat() for day in missing[:DAYS]) + (", .." if len(missing) > DAYS else "")
        head = (
            f"**{len(missing):,} day(s) without a published output**: {listed}. "
            f"`millrace backfill {nights.name} --missing` makes them."
        )
    return f"{head}\n\n{markdown_table(rows)}" if rows else head


def _runs_by_day(client: Any, nights: Deployed) -> dict[date, Any]:
    """The newest flow run of each day that the server knows, by the day that it is of."""
    zone = zone_of(nights.run.timezone)
    since = datetime.combine(nights.today() - timedelta(days=DAYS), time(), zone)
    expected = FlowRunFilterExpectedStartTime(after_=since, before_=datetime.now(UTC))
    flow_runs = client.read_flow_runs(
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[nights.id])),
        flow_run_filter=FlowRunFilter(expected_start_time=expected),
        sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=RUNS,
    )  # fmt: skip
    runs: dict[date, Any] = {}
    for run in flow_runs:
        section = run.parameters.get("run")
        text = section.get("date") if isinstance(section, Mapping) else None
        try:
            day = (
                parse_run_date(text, nights.run.timezone).day
                if text
                else run.expected_start_time.astimezone(zone).date()
            )
        except JobError:
            continue
        runs.setdefault(day, run)
    return runs
