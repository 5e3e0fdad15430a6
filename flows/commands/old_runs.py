"""Old runs of rowmill on the Prefect server: what `clean --runs` removes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterEndTime,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import TERMINAL_STATES
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound

TAG = "rowmill"
FLOWS = ("preprocess", "fit", "apply", "refit", "watch-source", "train")
PAGE = 200


class Pruned(NamedTuple):
    """The numbers of removed runs and artifacts, and when the first and the last of the runs ended."""

    runs: int
    artifacts: int
    first: datetime | None
    last: datetime | None


def prune_runs(seconds: float, dry_run: bool = False) -> Pruned:
    """Remove the runs that ended so long ago, with their task runs, logs and artifacts, from the server.

    Only those of rowmill's own flows that have its tag; a run that has not ended stays, whatever its age.
    """
    runs = 0
    artifacts = 0
    ends = list[datetime]()
    before = datetime.now(UTC) - timedelta(seconds=seconds)
    with get_client(sync_client=True) as client:
        while page := _read_ended_runs(client, before, runs if dry_run else 0):
            ends += [run.end_time for run in page if run.end_time]
            shown = _artifacts(client, page)
            artifacts += len(shown)
            runs += len(page)
            for artifact in [] if dry_run else shown:
                _delete(client.delete_artifact, artifact.id)
            for run in [] if dry_run else page:
                _delete(client.delete_flow_run, run.id)
    return Pruned(runs, artifacts, min(ends, default=None), max(ends, default=None))


def _read_ended_runs(client: SyncPrefectClient, before: datetime, offset: int) -> list[Any]:
    flows = FlowFilter(name=FlowFilterName(any_=[*FLOWS]))
    chosen = FlowRunFilter(
        tags=FlowRunFilterTags(all_=[TAG]),
        end_time=FlowRunFilterEndTime(before_=before),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=sorted(TERMINAL_STATES))),
    )
    return list(
        client.read_flow_runs(
            flow_filter=flows, flow_run_filter=chosen, sort=FlowRunSort.END_TIME_DESC, limit=PAGE, offset=offset
        )
    )


def _artifacts(client: SyncPrefectClient, runs: list[Any]) -> list[Any]:
    ids = [run.id for run in runs]
    artifacts: list[Any] = []
    while page := client.read_artifacts(
        artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=ids)),
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=ids)),
        limit=PAGE,
        offset=len(artifacts),
    ):
        artifacts += page
    return artifacts


def _delete(delete: Any, number: object) -> None:
    try:
        delete(number)
    except ObjectNotFound:  # it was removed meanwhile
        return
