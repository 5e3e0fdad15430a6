"""Runs that were killed, which the Prefect server still shows as Running: the next start marks them as crashed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.states import Crashed

from flows.commands.old_runs import FLOWS, PAGE
from flows.job.run_labels import OUTPUT, PROCESS, has_ended

WORKING = [StateType.RUNNING, StateType.CANCELLING]
MESSAGE = "the process of the run has ended without a word (it was killed?); a later start has noticed it"
log = logging.getLogger("rowmill")


def mark_dead_runs(output: str | None = None) -> list[str]:
    """Mark runs of rowmill's flows as crashed whose process, one of this host, has ended; return their names.

    Their task runs that have not ended are marked, too. A server that does not answer is no reason to stop a start.

    Args:
        output: Mark only runs to this output; None: all.
    """
    marked: list[str] = []
    try:
        with get_client(sync_client=True) as client:
            for run in working_runs(client):
                wanted = output is None or run.labels.get(OUTPUT) == output
                if wanted and has_ended(str(run.labels.get(PROCESS, ""))):
                    _mark(client, run)
                    marked.append(run.name)
    except Exception as error:
        log.debug("runs that were killed could not be looked for: %s", error)
    return marked


def working_runs(client: SyncPrefectClient) -> list[Any]:
    """Return the flow runs that the server takes for running."""
    return list(runs_of_states(client, WORKING))


def runs_of_states(
    client: SyncPrefectClient, states: Iterable[StateType], sort: FlowRunSort | None = None
) -> Iterator[Any]:
    """Yield the runs of rowmill's flows in these states, page by page."""
    flows = FlowFilter(name=FlowFilterName(any_=[*FLOWS]))
    chosen = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[*states])))
    offset = 0
    while page := client.read_flow_runs(
        flow_filter=flows, flow_run_filter=chosen, sort=sort, limit=PAGE, offset=offset
    ):
        yield from page
        offset += len(page)


def _mark(client: SyncPrefectClient, run: Any) -> None:
    """Mark a run, and those of its task runs that have not ended, as crashed."""
    of_run = FlowRunFilter(id=FlowRunFilterId(any_=[run.id]))
    working = TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=WORKING)))
    for task_run in client.read_task_runs(flow_run_filter=of_run, task_run_filter=working):
        client.set_task_run_state(task_run.id, Crashed(message=MESSAGE), force=True)
    client.set_flow_run_state(run.id, Crashed(message=MESSAGE), force=True)
