"""The last nights of a deployment side by side, as Markdown: rows, seconds, size, ids, drift, verdict."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from prefect import get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterExpectedStartTime,
)
from prefect.client.schemas.sorting import FlowRunSort
from prefect.context import FlowRunContext
from prefect.utilities.urls import url_for

from flows.job.run_calendar import DatedOutput, DeployedJob, make_deployed_job
from flows.job.run_history import rates_by_run
from flows.run.artifacts import write_markdown
from tasks.core.markdown import Markdown, markdown_table
from tasks.core.settings import STAGES
from tasks.core.units import amount
from tasks.errors import DataError, JobError
from tasks.job.publication import read_publication
from tasks.job.run_date import parse_run_date
from tasks.stages.progress_artifact import fresh_client
from tasks.storage.atomic import read_json
from tasks.storage.own_files import CHANGES, GATE, SPLITS, WORKFLOW

MOST_RUN_DATES = 30  # in the table
LARGEST_STATE = 64 * 2**20  # bytes of a state.json whose vocabularies are counted
NO_DATA = "no data"
RUNS = 200  # of a deployment that the table of nights looks at, as many as the server gives at once
log = logging.getLogger("rowmill")


@dataclass(frozen=True)
class VocabularySizes:
    """The sizes of all vocabularies together, and how many of their values are new since the night before.

    None if unknown: an output that learned nothing has no ids, and only a refit says what is new.
    """

    ids: int | None = None
    newcomers: int | None = None


@dataclass(frozen=True)
class GateResult:
    """What the gate said of a night: `drift` is the largest share of a threshold that a finding reached."""

    verdict: str = ""
    drift: float | None = None
    column: str = ""
    file: str = ""  # the first in which the worst finding begins


def tabulate_run_dates(
    deployed_job: DeployedJob,
    runs: Mapping[date, Any],
    outcomes: Mapping[date, str],
    rates: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """The table of the last nights, the newest first, and above it how many nights have no output.

    `runs` has the newest flow run of each night, `outcomes` how nights without an output ended, `rates` the recorded
    figures of runs by their ids, for outputs that later ones have replaced. Columns that are empty throughout are left
    out.
    """
    outputs = deployed_job.find_all_outputs()
    calendar = deployed_job.calendar
    oldest = calendar.back(deployed_job.today(), MOST_RUN_DATES - 1)
    missing: list[date] = []
    if deployed_job.has_date:
        expected = (
            deployed_job.missing(max(deployed_job.find_first_run_date(), oldest)) if deployed_job.schedules else []
        )
        missing = [night for night in sorted({*expected, *runs, *outcomes}) if night not in outputs and night >= oldest]
        missing = [night for night in missing if outcomes.get(night) != NO_DATA]
    every = sorted({*missing, *outputs, *runs, *outcomes}, reverse=True)
    rows = [
        {
            calendar.unit: calendar.format_run_date(night),
            **_row(outputs.get(night), runs.get(night), outcomes.get(night), rates),
        }
        for night in every
        if night >= oldest
    ]
    head = _head(deployed_job, missing)
    used = {name for row in rows for name, text in row.items() if text}
    shown = [{name: text for name, text in row.items() if name in used} for row in rows]
    return f"{head}\n\n{markdown_table(shown)}" if shown else head


def _head(deployed_job: DeployedJob, missing: list[date]) -> str:
    unit = deployed_job.calendar.unit
    if not deployed_job.has_date:
        return f"The runs of {deployed_job.name}. Its job names no date: each stands at the day on which it began."
    if not missing:
        return f"Every {unit} of {deployed_job.name} has a published output."
    listed = ", ".join(map(deployed_job.calendar.format_run_date, missing[:MOST_RUN_DATES])) + (
        ", .." if len(missing) > MOST_RUN_DATES else ""
    )
    return (
        f"**{len(missing):,} {unit}(s) without a published output**: {listed}. "
        f"`rowmill backfill {deployed_job.name} --missing` makes them."
    )


def _row(
    output: DatedOutput | None, flow_run: Any, outcome: str | None, rates: Mapping[str, Mapping[str, Any]] | None
) -> dict[str, str]:
    """The cells of a night, as texts; "" for unknown figures."""
    run_id = output.run if output and output.run else str(flow_run.id) if flow_run else ""
    there = None if output and output.is_removed else output
    if there:
        state = f"published: {there.path.name}"
    elif output:
        state = f"published, and removed by keep_versions: {output.path.name}"
    else:
        state = outcome or (str(flow_run.state_name) if flow_run else "no run")
    recorded = (rates or {}).get(run_id, {}) if there is None else {}
    stages = there.stages if there else recorded.get("seconds", {})
    rows = there.rows if there else recorded.get("rows")
    seconds = there.seconds if there else sum(stages.values()) or None
    learned, judged = (
        (read_vocabulary_sizes(there.path), read_gate_result(there.path))
        if there
        else (VocabularySizes(), GateResult())
    )
    return {
        "run": Markdown(f"[{run_id[:8]}]({url_for('flow-run', obj_id=run_id)})" if run_id else ""),
        "state": state,
        "rows": _format_number(rows),
        "seconds": _seconds(seconds),
        **{name: _seconds(stages.get(name)) for name in STAGES},
        "size": amount(there.nbytes) if there and there.nbytes is not None else "",
        "ids": _format_number(learned.ids),
        "newcomers": _format_number(learned.newcomers),
        "drift": "" if judged.drift is None else f"{judged.drift:.1f} x {judged.column}",
        "verdict": judged.verdict,
        "begins in": judged.file,
        "sent (UTC)": _format_sent_time(there),
    }


def _format_sent_time(output: DatedOutput | None) -> str:
    """When the Prefect server heard of a night, to the minute: empty if it has not, or if the note is damaged."""
    try:
        publication = read_publication(output.path) if output else None
        sent = datetime.fromisoformat(publication.sent) if publication and publication.sent else None
    except (DataError, ValueError):
        return ""
    return f"{sent.astimezone(UTC):%Y-%m-%d %H:%M}" if sent else ""


def read_vocabulary_sizes(output: Path) -> VocabularySizes:
    """The vocabularies of an output, as its fitted workflow says their sizes."""
    folder = output / WORKFLOW if (output / WORKFLOW).is_dir() else output
    state = folder / "state.json"
    try:
        content = read_json(state) if state.stat().st_size <= LARGEST_STATE else None
    except OSError:
        return VocabularySizes()
    fitted = content.get("fitted") if isinstance(content, dict) else None
    sizes = [
        one["size"]
        for one in (fitted.values() if isinstance(fitted, dict) else ())
        if isinstance(one, dict) and "values" in one and isinstance(one.get("size"), int)
    ]
    return VocabularySizes(sum(sizes) if sizes else None, _newcomers(read_json(folder / CHANGES)))


def _newcomers(changes: object) -> int | None:
    """How many values got an id in a refit; None without one."""
    steps = changes.get("steps") if isinstance(changes, dict) else None
    grown = [
        one["new_size"] - one["old_size"]
        for one in (steps.values() if isinstance(steps, dict) else ())
        if isinstance(one, dict) and isinstance(one.get("new_size"), int) and isinstance(one.get("old_size"), int)
    ]
    return sum(grown) if grown else None


def read_gate_result(output: Path) -> GateResult:
    """What the gate said of an output, of all splits; empty where no gate looked at it."""
    notes = [read_json(folder / GATE) for folder in (output, *(output / split for split in SPLITS))]
    notes = [note for note in notes if isinstance(note, dict)]
    words = [str(note.get("gate") or note.get("verdict") or "") for note in notes]
    worst: Mapping[str, Any] = max(
        notes, key=lambda note: max((share for share, *_ in _shares(note)), default=0.0), default={}
    )
    share, column, file = max(_shares(worst), default=(None, "", ""))
    verdict = next((word for word in words if word not in ("", "pass")), words[0] if words else "")
    return GateResult(verdict, share, column, file)


def _shares(note: object) -> Iterator[tuple[float, str, str]]:
    """(figure / threshold, column, first file in which it begins) of every finding at any depth of a gate's note."""
    if isinstance(note, list):
        for one in note:
            yield from _shares(one)
    if not isinstance(note, dict):
        return
    figure = note.get("figure")
    threshold = note.get("threshold")
    if isinstance(figure, int | float) and isinstance(threshold, int | float) and threshold > 0:
        yield figure / threshold, str(note.get("column") or "rows"), str(next(iter(note.get("files") or ()), ""))
    for name, one in note.items():
        if name not in ("accepted", "proposed"):
            yield from _shares(one)


def _format_number(value: float | None) -> str:
    return "" if value is None else f"{value:,}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


# The artifact


def show_run_dates(outcomes: Mapping[date, str]) -> None:
    """Write the artifact of the nights of the deployment of the current flow run; nothing without a deployment.

    `outcomes` says of nights without an output how this run ended for them. A server that is away is no reason to fail.
    """
    context = FlowRunContext.get()
    flow_run = context.flow_run if context else None
    deployment_id = getattr(flow_run, "deployment_id", None)
    if context is None or context.flow is None or flow_run is None or deployment_id is None:
        return
    try:
        with fresh_client(), get_client(sync_client=True) as client:
            deployment = client.read_deployment(deployment_id)
            nights = make_deployed_job(f"{context.flow.name}/{deployment.name}", deployment)
            text = tabulate_run_dates(nights, _read_runs_by_run_date(client, nights), outcomes, rates_by_run())
        write_markdown(artifact_key(nights.name), text, f"The nights of {nights.name}")
    except Exception as error:
        log.warning("the table of nights could not be written: %s", error)


def artifact_key(name: str) -> str:
    """The key of the artifact of a deployment's nights.

    >>> artifact_key("preprocess/Nightly 2")
    'rowmill-nights-preprocess-nightly-2'
    """
    return f"rowmill-nights-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}"


def _read_runs_by_run_date(client: Any, deployed_job: DeployedJob) -> dict[date, Any]:
    """The newest flow run of each night that the server knows, by the night that it is of."""
    calendar = deployed_job.calendar
    since = calendar.begin(calendar.back(deployed_job.today(), MOST_RUN_DATES))
    expected = FlowRunFilterExpectedStartTime(after_=since, before_=datetime.now(UTC))
    flow_runs = client.read_flow_runs(
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployed_job.id])),
        flow_run_filter=FlowRunFilter(expected_start_time=expected),
        sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        limit=RUNS,
    )
    runs: dict[date, Any] = {}
    for run in flow_runs:
        section = run.parameters.get("run")
        text = section.get("date") if isinstance(section, Mapping) else None
        try:
            moment = parse_run_date(text, calendar.timezone).time if text else run.expected_start_time
        except JobError:
            continue
        runs.setdefault(calendar.run_date_of(moment), run)
    return runs
