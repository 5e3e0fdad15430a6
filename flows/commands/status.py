"""The commands `status` and `stop`: what the Prefect server does for rowmill, and the end of the one on this host."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands.console import FAILED, terminal
from tasks.errors import JobError, few

if TYPE_CHECKING:
    from infra.orchestration.server import RunningServer
    from tasks.gate.question import Question

# runs whose outputs may have an open question; the help text of `status` names the number
LATEST_RUNS = 200
# runs with a line of their own
MOST_SHOWN = 20


@dataclass(frozen=True)
class ServerRuns:
    """The runs of rowmill on a server: those that have not ended, and the outputs of the latest ones on this host."""

    unfinished: list[Any]
    outputs: list[Path]


def status() -> None:
    """Show the Prefect server, the runs that have not ended, and the nights that wait for an answer.

    Asks the configured server, otherwise the one on this host; starts none. Looks for waiting nights in the outputs of
    the latest 200 runs on this host. Exit status: 0 if a server answers, 1 otherwise.

    [bold]Examples[/bold]

      rowmill status
    """
    from infra.orchestration.server import running_server

    console = terminal(soft_wrap=True)
    server = running_server()
    if server is None:
        console.print("server   none runs; the next rowmill run, serve or deploy starts one", markup=False)
        raise typer.Exit(FAILED)
    for line in status_lines(server):
        console.print(line, markup=False)


def status_lines(server: RunningServer) -> Iterator[str]:
    """Yield a line for the server, for each run that has not ended, and for each night that waits for an answer."""
    from infra.orchestration.server import flow_run_url

    origin = f"started by rowmill, process {server.pid}" if server.pid else "not started by rowmill"
    yield f"server   {server.ui_url}, {origin}"
    runs = read_runs()
    counts = Counter(run.state_name for run in runs.unfinished)
    yield f"runs     {', '.join(f'{count} {name}' for name, count in sorted(counts.items())) or 'none'}"
    # Schedules have runs for days ahead. Those that are Late or AwaitingRetry have the same type, but are due.
    due = [run for run in runs.unfinished if run.state_name != "Scheduled"]
    for run in due[:MOST_SHOWN]:
        yield f"run      {run.name}, {run.state_name}: {flow_run_url(server.ui_url, run.id)}"
    if len(due) > MOST_SHOWN:
        yield f"run      and {len(due) - MOST_SHOWN:,} more: {server.ui_url}/runs"
    for question in open_questions(runs.outputs):
        yield f"waiting  {question.batch_text} waits for an answer until {question.until}: {question.commands}"


def read_runs() -> ServerRuns:
    """Read the runs of rowmill's flows from the server: all that have not ended, and the outputs of the latest ones."""
    from prefect import get_client
    from prefect.client.schemas.objects import TERMINAL_STATES, StateType
    from prefect.client.schemas.sorting import FlowRunSort

    from flows.commands.dead_runs import runs_of_states
    from flows.job.run_labels import HOST, OUTPUT

    begun_states = [state for state in StateType if state != StateType.SCHEDULED]
    unfinished_states = [state for state in StateType if state not in TERMINAL_STATES]
    order = FlowRunSort.START_TIME_DESC
    with get_client(sync_client=True) as client:
        latest = list(islice(runs_of_states(client, begun_states, order), LATEST_RUNS))
        unfinished = list(runs_of_states(client, unfinished_states, order))
    here = [run for run in latest if run.labels.get(HOST) == socket.gethostname()]
    outputs = dict.fromkeys(Path(str(run.labels[OUTPUT])) for run in here if OUTPUT in run.labels)
    return ServerRuns(unfinished, [*outputs])


def open_questions(outputs: list[Path]) -> Iterator[Question]:
    """Yield the questions of the gate about these outputs that wait for an answer; damaged ones are left out.

    A question is in the staging folder, which may be under a scratch folder that a note beside the output names.
    """
    from tasks.errors import RowmillError
    from tasks.gate.question import read_question
    from tasks.storage.staging import Staging

    for output in outputs:
        staging = Staging(output)
        try:
            question = read_question(staging.asks_in or staging.folder)
        except (RowmillError, OSError):
            continue
        if question is not None and question.is_open:
            yield question


def stop(
    force: Annotated[bool, typer.Option("--force", help="also while runs report to it; they end as failed")] = False,
) -> None:
    """Stop the Prefect server that rowmill has started on this host.

    Its database stays: the next start shows all runs again. A server that you started yourself is left alone. If runs
    are in progress, the server keeps running unless you give --force.

    [bold]Examples[/bold]

      rowmill stop
    """
    from infra.orchestration.server import own_server, stop_server

    console = terminal(soft_wrap=True)
    if (server := own_server()) is None:
        console.print("no Prefect server that rowmill has started runs here")
        return
    if not force:
        _refuse_to_stop_running_runs(server)
    stop_server()
    console.print(f"stopped the Prefect server {server.ui_url}; its database stays", markup=False)


def _refuse_to_stop_running_runs(server: RunningServer) -> None:
    """Raise a JobError if runs are running that report to this server."""
    from infra.orchestration.server import use_server

    use_server(server)
    working = [run.name for run in read_runs().unfinished if run.state_name == "Running"]
    if working:
        raise JobError(
            f"{len(working):,} run(s) report to the server",
            where=server.ui_url,
            why=f"{few(working)}: they would lose it",
            do="wait until they have ended, or cancel them; rowmill stop --force stops it now",
        )
