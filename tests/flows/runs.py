"""Real runs for tests: the flow in this process, on the session's cluster, reporting to the session's server."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from tests.infra.elsewhere import until
from tests.running import section_of


def run_flow(data: Mapping[str, Any], cluster: Any) -> list[Path]:
    """Run `preprocess` with the parameters of a job on a running cluster; the folders that were committed."""
    from flows.preprocess import preprocess

    return [Path(folder) for folder in run_on(preprocess, data, cluster)]


def run_on(flow: Any, data: Mapping[str, Any], cluster: Any) -> Any:
    """Run any of the flows with its parameters on a running cluster; what it returns."""
    from prefect import tags
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    from infra.clusters.model import Cluster
    from infra.orchestration.task_runner import runner

    where = section_of(cluster)
    on_cluster: Any = runner(Cluster(**where))
    # Prefect's heartbeats sleep in whole seconds, and the end of a run waits for them: the commands have none, either.
    silent = temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})
    with silent, tags(data["output"]["path"]):  # by which a test finds its run
        return flow.with_options(task_runner=on_cluster)(**{**data, "cluster": where})


def completed_tasks(run: str, names: Sequence[str]) -> list[Any]:
    """The task runs of a flow run once all of these names are completed and no other is there; the server hears of
    them some time after they change."""
    from prefect import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    def there() -> list[Any]:
        runs = api.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[UUID(run)])))
        return runs if {r.name: r.state_name for r in runs} == dict.fromkeys(names, "Completed") else []

    with get_client(sync_client=True) as api:
        return list(until(there, f"completed tasks {', '.join(names)}"))


def rows_of(folder: Path) -> pa.Table:
    """All rows of an output, in the order of its files."""
    return pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob("*.parquet")))


def key_of(out: Path, flow: str = "preprocess") -> str:
    """What the keys of the artifacts of a run to this output begin with."""
    return f"{flow}-" + re.sub("[^a-z0-9]+", "-", f"{out.parent.name}-{out.name}".lower())
