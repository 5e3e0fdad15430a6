"""The command `backfill`: a run of a deployment for each day, or hour, of a range, in order."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from flows.commands.console import FAILED, terminal
from tasks.errors import GiveUpError, JobError, few

if TYPE_CHECKING:
    from flows.job.run_calendar import DeployedJob

POLL_SECONDS = 2.0
# seconds after which a run that has not begun is explained on the console
IDLE_SECONDS = 60.0
# seconds for which requests are retried while the server does not answer
AWAY_SECONDS = 3600.0
# runs of one run date
MOST_ATTEMPTS = 1000
# days or hours that are listed
MOST_SHOWN = 31
T = TypeVar("T")


def backfill(
    deployment: Annotated[str, typer.Argument(help="flow and name, as in preprocess/nightly", show_default=False)],
    from_: Annotated[
        str | None, typer.Option("--from", metavar="DAY", help="first day: 2026-10-01; or hour: 2026-10-01T03")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="DAY", help="last day or hour; the last that has begun if left out")
    ] = None,
    at_most: Annotated[int | None, typer.Option(min=1, help="start at most this many runs")] = None,
    missing: Annotated[
        bool,
        typer.Option("--missing", help="only days of the schedule; from the first published one if --from is left out"),
    ] = False,
    train_once: Annotated[
        bool, typer.Option("--train-once", help="start one training, on the newest output, when all runs have ended")
    ] = False,
) -> None:
    """Run a deployment for each day of a range that has no published output, one after another, the oldest first.

    The day is the value of {date}: run.date of the run. A job that names {hour} has a run for each hour: 23 or 25 on
    days on which the clocks change. A day is published if a manifest in the output has its date; call the command in
    the folder of the deployment, on a host that sees the output. `rowmill serve` or a worker executes the runs. A run
    that fails ends the command, since the next one may need it.

    If the command is interrupted, also by a restart of the server or the host, rerun it: it waits for a run that it has
    started, and skips days that have been published since.

    [bold]Examples[/bold]

      rowmill backfill preprocess/nightly --from 2026-10-01 --to 2026-11-23

      rowmill backfill preprocess/nightly --missing --at-most 3

      rowmill backfill preprocess/nightly --missing --train-once

      rowmill backfill preprocess/hourly --from 2026-11-22T03 --to 2026-11-22T17
    """
    console = terminal(soft_wrap=True)
    if from_ is None and not missing:
        raise JobError("a backfill needs its first day", where="--from", do="write --from 2026-10-01, or --missing")
    from flows.job.run_calendar import TRAIN_LATER
    from infra.orchestration.server import ensure_server

    server = ensure_server(console.print)
    deployed_job = _find_deployment(deployment)
    deployed_job.check()
    calendar = deployed_job.calendar
    first = calendar.parse(from_, "--from") if from_ is not None else None
    last = calendar.parse(to, "--to", is_last=True) if to is not None else deployed_job.find_last_run_date()
    if first is not None and first > last:
        raise _make_empty_range_error(deployed_job, first, last, from_, to)
    if to is None and last < deployed_job.today():
        paused = ", which is paused" if deployed_job.is_paused else ""
        console.print(
            f"{calendar.format_run_date(deployed_job.today())} is left to the schedule{paused}; --to includes it",
            markup=False,
        )
    outputs = deployed_job.find_all_outputs()
    unit = calendar.unit
    if missing or first is None:
        wanted = [run_date for run_date in deployed_job.missing(first, last) if run_date not in outputs]
        console.print(f"{len(wanted):,} {unit}(s) of the schedule have no published output", markup=False)
        if wanted:
            console.print(few(map(calendar.format_run_date, wanted), MOST_SHOWN), markup=False)
    else:
        every = calendar.between(first, last)
        wanted = [run_date for run_date in every if run_date not in outputs]
        console.print(f"{len(every):,} {unit}(s), {len(every) - len(wanted):,} of them are published", markup=False)
    removed = [run_date for run_date, output in outputs.items() if output.is_removed]
    removed_in_range = [run_date for run_date in removed if first is not None and first <= run_date <= last]
    if removed_in_range:
        count = f"{len(removed_in_range):,} of the published {unit}(s)"
        console.print(f"{count} were removed by output.keep_versions; they are not made again", markup=False)
    started = 0
    for run_date in wanted:
        if run_date in deployed_job.find_all_outputs():  # published meanwhile, by the schedule
            continue
        if at_most is not None and started == at_most:
            break
        started += 1
        name = calendar.format_run_date(run_date)
        tags = [TRAIN_LATER] if train_once else []
        ended = _run_for_date(
            deployed_job, run_date, lambda text: console.print(text, markup=False), server.ui_url, tags
        )
        if output := deployed_job.find_published_outputs().get(run_date):
            state = f"published: {output.path}"
        else:
            state = f"{ended.state_name}: {ended.state.message or ''}".strip(": ")
        console.print(f"{name}  {state}", markup=False)
        if not ended.state.is_completed():
            console.print(f"stopped at {name}: the {unit}s after it wait; fix it, then give the command again")
            raise typer.Exit(FAILED)
    outputs = deployed_job.find_all_outputs()
    left = [run_date for run_date in wanted if run_date not in outputs]
    console.print(f"{started:,} run(s); {len(left):,} {unit}(s) without a published output", markup=False)
    if train_once and (newest := _announce_newest(deployed_job)):
        console.print(f"rowmill.output.backfilled: a training can start on {newest}", markup=False)


def _announce_newest(deployed_job: DeployedJob) -> Path | None:
    """Send the event that triggers a training on the newest output, and return that output.

    None if nothing is published, or if that output triggered a training when it was published (`train` is "now"). The
    server counts the event of an output once.
    """
    from flows.published.events import make_backfilled_event
    from flows.published.outbox import send_new
    from tasks.job.publication import read_publication

    paths = [output.path for output in deployed_job.find_published_outputs().values()]
    publications = {path: publication for path in paths if (publication := read_publication(path)) is not None}
    if not publications:
        return None
    newest = max(publications, key=lambda path: publications[path].created)
    publication = publications[newest]
    if publication.train == "now":
        return None
    _retry_while_away(lambda: send_new([make_backfilled_event(newest, publication)]))
    return newest


def _make_empty_range_error(
    deployed_job: DeployedJob, first: date, last: date, from_: str | None, to: str | None
) -> JobError:
    """Make the error about a range that ends before it begins."""
    where = f"--from {from_} --to {to or deployed_job.calendar.format_run_date(last)}"
    do = "give --from an earlier day"
    if to is None and first == deployed_job.today():
        why = "its scheduled run has not begun, and without --to the range ends at the last that has"
        return JobError("the range is empty", where=where, why=why, do=f"give --to {from_}, to make it now")
    return JobError("the range is empty", where=where, do=do)


def _find_deployment(name: str) -> DeployedJob:
    """Find the deployment of a name; if there is none, raise a JobError that suggests existing names."""
    from prefect import get_client
    from prefect.exceptions import ObjectNotFound

    from flows.job.run_calendar import make_deployed_job
    from tasks.errors import near

    with get_client(sync_client=True) as client:
        try:
            return make_deployed_job(name, client.read_deployment_by_name(name))
        except (ObjectNotFound, ValueError):
            flows = {flow.id: flow.name for flow in client.read_flows()}
            names = [f"{flows.get(deployed.flow_id, '?')}/{deployed.name}" for deployed in client.read_deployments()]
            raise JobError(f"there is no deployment {name!r}", where="DEPLOYMENT", do=near(name, names)) from None


def _run_for_date(
    deployed_job: DeployedJob, run_date: date, say: Callable[[str], None], ui_url: str, tags: Sequence[str] = ()
) -> Any:
    """Return the flow run of a run date once it has ended: an unfinished one of an earlier backfill, or a new one.

    Each attempt has an idempotency key. A second backfill, or one that was interrupted before the server answered,
    gets the run that the server created for this key. If that run has already ended, or fails while this backfill
    waits for it, the next attempt follows.
    """
    from prefect import get_client

    from flows.job.run_calendar import BACKFILL

    own_token = uuid.uuid4().hex
    date_value = deployed_job.calendar.text(run_date)
    date_text = deployed_job.calendar.format_run_date(run_date)
    for attempt in range(MOST_ATTEMPTS):
        key = f"{BACKFILL}-{deployed_job.id}-{date_value}-{attempt}"

        def create(key: str = key) -> Any:
            with get_client(sync_client=True) as client:
                return client.create_flow_run_from_deployment(
                    deployed_job.id,
                    parameters={"run": {"date": date_value}},
                    idempotency_key=key,
                    tags=["rowmill", BACKFILL, *tags],
                    name=f"{deployed_job.name} {date_text}",
                    labels={BACKFILL: own_token},
                )

        run = _retry_while_away(create)
        # For a known key the server returns the run that exists: it has the token of the backfill that created it.
        is_new = run.labels.get(BACKFILL) == own_token
        if run.state is not None and run.state.is_final() and not is_new:
            continue
        say(
            f"{date_text}  {ui_url}/runs/flow-run/{run.id}{'' if is_new else ', which an earlier backfill has started'}"
        )
        ended = _wait_for_run(run.id, deployed_job, say)
        if is_new or ended.state.is_completed() or ended.state.is_cancelled():  # somebody cancelled it on purpose
            return ended
    raise GiveUpError(
        f"there were {MOST_ATTEMPTS:,} runs of {date_text}", where=deployed_job.name, do="look at the last one"
    )


def _wait_for_run(run_id: uuid.UUID, deployed_job: DeployedJob, say: Callable[[str], None]) -> Any:
    """Return the flow run once it has ended."""
    from prefect import get_client

    def read() -> Any:
        with get_client(sync_client=True) as client:
            return client.read_flow_run(run_id)

    began = time.monotonic()
    is_announced = False
    is_asked = False
    while True:
        run = _retry_while_away(read)
        if run.state is not None and run.state.is_final():
            return run
        if run.state is not None and run.state.is_paused() and not is_asked:
            is_asked = True
            say("the gate asks whether to publish it: answer on the run's page, or with rowmill publish|discard OUT")
        waits = run.state is None or run.state.is_scheduled() or run.state.is_pending()
        if not waits:  # a paused run is scheduled again when it is answered: its wait counts from then
            began = time.monotonic()
        if waits and not is_announced and time.monotonic() - began > IDLE_SECONDS:
            is_announced = True
            say(_explain_why_it_waits(deployed_job))
        time.sleep(POLL_SECONDS)


def _explain_why_it_waits(deployed_job: DeployedJob) -> str:
    """Explain in a sentence why a run has not begun: other runs are running, or nothing serves the deployment."""
    from prefect import get_client

    from flows.commands.dead_runs import working_runs

    def read() -> tuple[Any, list[Any]]:
        with get_client(sync_client=True) as client:
            return client.read_deployment(deployed_job.id), working_runs(client)

    deployment, working = _retry_while_away(read)
    if working:
        return f"it has not begun yet; running now: {few(run.name for run in working)}"
    if deployment.status is not None and deployment.status.value == "READY":
        return f"it has not begun yet; something serves {deployed_job.name}: look at the run's page"
    return (
        f"it has not begun yet, and nothing serves {deployed_job.name}: start `rowmill serve`, or a worker of its pool"
    )


def _retry_while_away(call: Callable[[], T]) -> T:
    """Return the result of a request to the Prefect server, retried while the server does not answer.

    Raises a GiveUpError after `AWAY_SECONDS`.
    """
    import httpx
    from prefect.exceptions import PrefectHTTPStatusError

    began = time.monotonic()
    while True:
        try:
            return call()
        except (httpx.TransportError, PrefectHTTPStatusError) as error:
            refused = isinstance(error, PrefectHTTPStatusError) and error.response.status_code < 500
            if refused:
                raise
            if time.monotonic() - began > AWAY_SECONDS:
                raise GiveUpError(
                    "the Prefect server does not answer",
                    why=str(error),
                    do="start it, then give the same command again: it goes on",
                ) from None
            time.sleep(POLL_SECONDS)
