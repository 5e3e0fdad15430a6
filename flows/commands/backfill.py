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
IDLE_SECONDS = 60.0  # until it is said that no worker takes the run
AWAY_SECONDS = 3600.0  # that a server may be away
MOST_ATTEMPTS = 1000  # runs of one night
MOST_SHOWN = 31  # days or hours that are listed
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
    nights = _find_deployment(deployment)
    nights.check()
    calendar = nights.calendar
    first = calendar.parse(from_, "--from") if from_ is not None else None
    last = calendar.parse(to, "--to", is_last=True) if to is not None else nights.find_last_run_date()
    if first is not None and first > last:
        raise _empty_range(nights, first, last, from_, to)
    if to is None and last < nights.today():
        paused = ", which is paused" if nights.is_paused else ""
        console.print(
            f"{calendar.format_run_date(nights.today())} is left to the schedule{paused}; --to includes it",
            markup=False,
        )
    known = nights.find_all_outputs()
    unit = calendar.unit
    if missing or first is None:
        wanted = [night for night in nights.missing(first, last) if night not in known]
        console.print(f"{len(wanted):,} {unit}(s) of the schedule have no published output", markup=False)
        if wanted:
            console.print(few(map(calendar.format_run_date, wanted), MOST_SHOWN), markup=False)
    else:
        every = calendar.between(first, last)
        wanted = [night for night in every if night not in known]
        console.print(f"{len(every):,} {unit}(s), {len(every) - len(wanted):,} of them are published", markup=False)
    if gone := [one for one, night in known.items() if night.is_removed and first is not None and first <= one <= last]:
        text = f"{len(gone):,} of the published {unit}(s) were removed by output.keep_versions; they are not made again"
        console.print(text, markup=False)
    started = 0
    for one in wanted:
        if one in nights.find_all_outputs():  # meanwhile, by the schedule
            continue
        if at_most is not None and started == at_most:
            break
        started += 1
        name = calendar.format_run_date(one)
        tags = [TRAIN_LATER] if train_once else []
        ended = _run_for_date(nights, one, lambda text: console.print(text, markup=False), server.ui_url, tags)
        night = nights.find_published_outputs().get(one)
        state = f"published: {night.path}" if night else f"{ended.state_name}: {ended.state.message or ''}".strip(": ")
        console.print(f"{name}  {state}", markup=False)
        if not ended.state.is_completed():
            console.print(f"stopped at {name}: the {unit}s after it wait; fix it, then give the command again")
            raise typer.Exit(FAILED)
    known = nights.find_all_outputs()
    left = [one for one in wanted if one not in known]
    console.print(f"{started:,} run(s); {len(left):,} {unit}(s) without a published output", markup=False)
    if train_once and (newest := _announce_newest(nights)):
        console.print(f"rowmill.output.backfilled: a training can start on {newest}", markup=False)


def _announce_newest(nights: DeployedJob) -> Path | None:
    """Send the event on which a training starts for the newest output, and return that output.

    None where its training could start when it was published. The server counts the event of an output once.
    """
    from flows.published.events import make_backfilled_event
    from flows.published.outbox import send_new
    from tasks.job.publication import read_publication

    notes = [(night.path, read_publication(night.path)) for night in nights.find_published_outputs().values()]
    known = [(path, note) for path, note in notes if note is not None]
    if not known:
        return None
    newest, publication = max(known, key=lambda one: one[1].created)
    if publication.train == "now":
        return None
    _patiently(lambda: send_new([make_backfilled_event(newest, publication)]))
    return newest


def _empty_range(nights: DeployedJob, first: date, last: date, from_: str | None, to: str | None) -> JobError:
    """Return the error of a range that ends before it begins, with the way out."""
    where = f"--from {from_} --to {to or nights.calendar.format_run_date(last)}"
    do = "give --from an earlier day"
    if to is None and first == nights.today():
        why = "its scheduled run has not begun, and without --to the range ends at the last that has"
        return JobError("the range is empty", where=where, why=why, do=f"give --to {from_}, to make it now")
    return JobError("the range is empty", where=where, do=do)


def _find_deployment(name: str) -> DeployedJob:
    """Find the deployment of a name; a JobError that names those that there are."""
    from prefect import get_client
    from prefect.exceptions import ObjectNotFound

    from flows.job.run_calendar import make_deployed_job
    from tasks.errors import near

    with get_client(sync_client=True) as client:
        try:
            return make_deployed_job(name, client.read_deployment_by_name(name))
        except (ObjectNotFound, ValueError):
            flows = {flow.id: flow.name for flow in client.read_flows()}
            names = [f"{flows.get(one.flow_id, '?')}/{one.name}" for one in client.read_deployments()]
            raise JobError(f"there is no deployment {name!r}", where="DEPLOYMENT", do=near(name, names)) from None


def _run_for_date(
    deployed_job: DeployedJob, run_date: date, say: Callable[[str], None], ui_url: str, tags: Sequence[str] = ()
) -> Any:
    """Return the flow run of a night once it has ended: one that an earlier backfill has started, if it is completed or
    cancelled, else a new one.

    Each attempt of a night has an idempotency key, so that a second backfill, or one that was cut off before it heard
    of its run, gets the same run. An earlier attempt that failed, or whose host is gone, is followed by another.
    """
    from prefect import get_client

    from flows.job.run_calendar import BACKFILL

    own = uuid.uuid4().hex
    text = deployed_job.calendar.text(run_date)
    shown = deployed_job.calendar.format_run_date(run_date)
    for attempt in range(MOST_ATTEMPTS):
        key = f"{BACKFILL}-{deployed_job.id}-{text}-{attempt}"

        def create(key: str = key) -> Any:
            with get_client(sync_client=True) as client:
                return client.create_flow_run_from_deployment(
                    deployed_job.id,
                    parameters={"run": {"date": text}},
                    idempotency_key=key,
                    tags=["rowmill", BACKFILL, *tags],
                    name=f"{deployed_job.name} {shown}",
                    labels={BACKFILL: own},
                )

        run = _patiently(create)
        is_new = run.labels.get(BACKFILL) == own
        if run.state is not None and run.state.is_final() and not is_new:
            continue
        say(f"{shown}  {ui_url}/runs/flow-run/{run.id}{'' if is_new else ', which an earlier backfill has started'}")
        ended = _wait_for_run(run.id, deployed_job, say)
        if is_new or ended.state.is_completed() or ended.state.is_cancelled():  # cancelled: on purpose
            return ended
    raise GiveUpError(
        f"there were {MOST_ATTEMPTS:,} runs of {shown}", where=deployed_job.name, do="look at the last one"
    )


def _wait_for_run(run_id: uuid.UUID, nights: DeployedJob, say: Callable[[str], None]) -> Any:
    """Return the flow run once it has ended."""
    from prefect import get_client

    def read() -> Any:
        with get_client(sync_client=True) as client:
            return client.read_flow_run(run_id)

    began = time.monotonic()
    is_announced = False
    is_asked = False
    while True:
        run = _patiently(read)
        if run.state is not None and run.state.is_final():
            return run
        if run.state is not None and run.state.is_paused() and not is_asked:
            is_asked = True
            say("the gate asks whether to publish it: answer on the run's page, or with rowmill publish|discard OUT")
        waits = run.state is None or run.state.is_scheduled() or run.state.is_pending()
        if not waits:  # a run that has asked is scheduled once more when it is answered
            began = time.monotonic()
        if waits and not is_announced and time.monotonic() - began > IDLE_SECONDS:
            is_announced = True
            say(_why_it_waits(nights))
        time.sleep(POLL_SECONDS)


def _why_it_waits(nights: DeployedJob) -> str:
    """Return what the server knows about a run that has not begun: other runs that are running, or who serves it."""
    from prefect import get_client

    from flows.commands.dead_runs import working_runs

    def read() -> tuple[Any, list[Any]]:
        with get_client(sync_client=True) as client:
            return client.read_deployment(nights.id), working_runs(client)

    deployment, working = _patiently(read)
    if working:
        return f"it has not begun yet; running now: {few(run.name for run in working)}"
    if deployment.status is not None and deployment.status.value == "READY":
        return f"it has not begun yet; something serves {nights.name}: look at the run's page"
    return f"it has not begun yet, and nothing serves {nights.name}: start `rowmill serve`, or a worker of its pool"


def _patiently(call: Callable[[], T]) -> T:
    """What a request to the server gives, tried again while the server is away."""
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
