"""The last run dates of a deployment side by side, as Markdown: rows, seconds, size, ids, drift, verdict."""

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
from tasks.stages.progress_artifact import open_prefect_client
from tasks.storage.atomic import read_json
from tasks.storage.own_files import CHANGES, GATE, SPLITS, WORKFLOW

MOST_RUN_DATES = 30  # in the table
LARGEST_STATE = 64 * 2**20  # bytes of a state.json whose vocabularies are counted
NO_DATA = "no data"
MOST_RUNS = 200  # of a deployment that the table looks at: as many as the server gives at once
log = logging.getLogger("rowmill")


@dataclass(frozen=True)
class VocabularySizes:
    """The sizes of all vocabularies together, and how many of their values are new since the previous run date.

    None if unknown: an output that learned nothing has no ids, and only a refit says what is new.
    """

    ids: int | None = None
    newcomers: int | None = None


@dataclass(frozen=True)
class GateResult:
    """The gate's verdict on an output, and its worst finding."""

    verdict: str = ""
    drift: float | None = None  # the figure of the worst finding divided by its threshold
    column: str = ""
    file: str = ""  # the first in which the worst finding begins


def tabulate_run_dates(
    deployed_job: DeployedJob,
    runs: Mapping[date, Any],
    outcomes: Mapping[date, str],
    recorded: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """Tabulate the last run dates, the newest first; above the table stands how many of them have no output.

    `runs` has the newest flow run of each run date, `outcomes` how run dates without an output ended. `recorded` has
    rows and seconds by run id, for outputs that later ones have replaced. Columns that are empty throughout are left
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
        begun = {*expected, *runs, *outcomes}  # what was tried by hand counts, too, although no schedule expects it
        missing = [day for day in sorted(begun) if day not in outputs and day >= oldest]
        missing = [day for day in missing if outcomes.get(day) != NO_DATA]
    every = sorted({*missing, *outputs, *runs, *outcomes}, reverse=True)
    rows = [
        {
            calendar.unit: calendar.format_run_date(day),
            **_format_row(outputs.get(day), runs.get(day), outcomes.get(day), recorded or {}),
        }
        for day in every
        if day >= oldest
    ]
    head = _describe_missing(deployed_job, missing)
    used = {name for row in rows for name, text in row.items() if text}
    shown = [{name: text for name, text in row.items() if name in used} for row in rows]
    return f"{head}\n\n{markdown_table(shown)}" if shown else head


def _describe_missing(deployed_job: DeployedJob, missing: list[date]) -> str:
    unit = deployed_job.calendar.unit
    if not deployed_job.has_date:
        return f"The runs of {deployed_job.name}. Its job names no date: each stands at the day on which it began."
    if not missing:
        return f"Every {unit} of {deployed_job.name} has a published output."
    listed = ", ".join(map(deployed_job.calendar.format_run_date, missing[:MOST_RUN_DATES]))
    if len(missing) > MOST_RUN_DATES:
        listed += ", .."
    return (
        f"**{len(missing):,} {unit}(s) without a published output**: {listed}. "
        f"`rowmill backfill {deployed_job.name} --missing` makes them."
    )


def _format_row(
    output: DatedOutput | None, flow_run: Any, outcome: str | None, recorded: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Write the cells of a run date as texts; "" for unknown figures."""
    run_id = output.run if output and output.run else str(flow_run.id) if flow_run else ""
    existing = output if output and not output.is_removed else None
    if existing:
        state = f"published: {existing.path.name}"
        stages = existing.stages
        rows = existing.rows
        seconds = existing.seconds
        vocabularies = read_vocabulary_sizes(existing.path)
        gate = read_gate_result(existing.path)
    else:
        state = outcome or (str(flow_run.state_name) if flow_run else "no run")
        if output:
            state = f"published, and removed by keep_versions: {output.path.name}"
        figures = recorded.get(run_id, {})
        stages = figures.get("seconds", {})
        rows = figures.get("rows")
        seconds = sum(stages.values()) or None
        vocabularies = VocabularySizes()
        gate = GateResult()
    return {
        "run": Markdown(f"[{run_id[:8]}]({url_for('flow-run', obj_id=run_id)})" if run_id else ""),
        "state": state,
        "rows": _format_number(rows),
        "seconds": _format_seconds(seconds),
        **{name: _format_seconds(stages.get(name)) for name in STAGES},
        "size": amount(existing.nbytes) if existing and existing.nbytes is not None else "",
        "ids": _format_number(vocabularies.ids),
        "newcomers": _format_number(vocabularies.newcomers),
        "drift": "" if gate.drift is None else f"{gate.drift:.1f} x {gate.column}",
        "verdict": gate.verdict,
        "begins in": gate.file,
        "sent (UTC)": _format_sent_time(existing),
    }


def _format_sent_time(output: DatedOutput | None) -> str:
    """Say when the Prefect server heard of an output, to the minute; "" if it has not, or if the note is damaged."""
    try:
        publication = read_publication(output.path) if output else None
        sent = datetime.fromisoformat(publication.sent) if publication and publication.sent else None
    except (DataError, ValueError):
        return ""
    return f"{sent.astimezone(UTC):%Y-%m-%d %H:%M}" if sent else ""


def read_vocabulary_sizes(output: Path) -> VocabularySizes:
    """Read the sizes of an output's vocabularies from its fitted workflow."""
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
    return VocabularySizes(sum(sizes) if sizes else None, _count_newcomers(read_json(folder / CHANGES)))


def _count_newcomers(changes: object) -> int | None:
    """Count the values that got an id in a refit; None without one."""
    steps = changes.get("steps") if isinstance(changes, dict) else None
    grown = [
        one["new_size"] - one["old_size"]
        for one in (steps.values() if isinstance(steps, dict) else ())
        if isinstance(one, dict) and isinstance(one.get("new_size"), int) and isinstance(one.get("old_size"), int)
    ]
    return sum(grown) if grown else None


def read_gate_result(output: Path) -> GateResult:
    """Read what the gate said of an output, whichever splits hold its note; empty where no gate looked at it."""
    notes = [read_json(folder / GATE) for folder in (output, *(output / split for split in SPLITS))]
    notes = [note for note in notes if isinstance(note, dict)]
    words = [str(note.get("gate") or note.get("verdict") or "") for note in notes]
    worst: Mapping[str, Any] = max(
        notes, key=lambda note: max((drift for drift, *_ in _find_drifts(note)), default=0.0), default={}
    )
    drift, column, file = max(_find_drifts(worst), default=(None, "", ""))
    # the commit puts the same note into every split, so that any verdict but `pass` is that of all
    verdict = next((word for word in words if word not in ("", "pass")), words[0] if words else "")
    return GateResult(verdict, drift, column, file)


def _find_drifts(note: object) -> Iterator[tuple[float, str, str]]:
    """Yield (figure / threshold, column, first file in which it begins) of every finding in a gate's note, at any
    depth."""
    if isinstance(note, list):
        for one in note:
            yield from _find_drifts(one)
    if not isinstance(note, dict):
        return
    figure = note.get("figure")
    threshold = note.get("threshold")
    if isinstance(figure, int | float) and isinstance(threshold, int | float) and threshold > 0:
        yield figure / threshold, str(note.get("column") or "rows"), str(next(iter(note.get("files") or ()), ""))
    for name, one in note.items():
        if name not in ("accepted", "proposed"):
            yield from _find_drifts(one)


def _format_number(value: float | None) -> str:
    return "" if value is None else f"{value:,}"


def _format_seconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


# The artifact


def write_run_dates_artifact(outcomes: Mapping[date, str]) -> None:
    """Write the table of the current flow run's deployment as an artifact; nothing without a deployment.

    `outcomes` says of run dates without an output how this run ended for them. An error here, such as a server that is
    away, is a warning: the run itself has done its work.
    """
    context = FlowRunContext.get()
    flow_run = context.flow_run if context else None
    deployment_id = getattr(flow_run, "deployment_id", None)
    if context is None or context.flow is None or flow_run is None or deployment_id is None:
        return
    try:
        with open_prefect_client(), get_client(sync_client=True) as client:
            deployment = client.read_deployment(deployment_id)
            deployed_job = make_deployed_job(f"{context.flow.name}/{deployment.name}", deployment)
            runs = _read_runs_by_run_date(client, deployed_job)
            text = tabulate_run_dates(deployed_job, runs, outcomes, rates_by_run())
        write_markdown(artifact_key(deployed_job.name), text, f"The nights of {deployed_job.name}")
    except Exception as error:
        log.warning("the table of nights could not be written: %s", error)


def artifact_key(name: str) -> str:
    """Make the key of the artifact of a deployment's run dates.

    >>> artifact_key("preprocess/Nightly 2")
    'rowmill-nights-preprocess-nightly-2'
    """
    return f"rowmill-nights-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}"


def _read_runs_by_run_date(client: Any, deployed_job: DeployedJob) -> dict[date, Any]:
    """Ask the server for the newest flow run of each run date."""
    calendar = deployed_job.calendar
    since = calendar.begin(calendar.back(deployed_job.today(), MOST_RUN_DATES))
    expected = FlowRunFilterExpectedStartTime(after_=since, before_=datetime.now(UTC))
    flow_runs = client.read_flow_runs(
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployed_job.id])),
        flow_run_filter=FlowRunFilter(expected_start_time=expected),
        sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        limit=MOST_RUNS,
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
