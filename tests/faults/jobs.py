"""A small job, its data, and what is looked at after a run: states of the run and its tasks, digests of files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from tests.infra.elsewhere import eventually
from tests.running import section_of

BLOCK = 65_536  # rows: the smallest row group that is a block of its own
STAGES = {
    "ingest": "tasks.stages.plan_splits:_each",
    "statistics": "tasks.learning.observe:_observe",
    "transform": "tasks.shuffle.cutting:_cut_partition",
    "shuffle_write": "tasks.shuffle.file_writer:check_footer",
}
FEATURES = [
    {"columns": ["x"], "ops": [{"op": "FillMissing", "fill_value": 0.5}, {"op": "Normalize"}]},
    {"columns": ["name"], "ops": [{"op": "Categorify"}]},
]


def make_data(folder: Path, files: int = 4, rows: int = BLOCK, seed: int = 0) -> Path:
    """`files` Parquet files of one block each: row, x (with nulls), name, label."""
    folder.mkdir(parents=True)
    draws = np.random.default_rng(seed)
    for number in range(files):
        x = pa.array(draws.normal(size=rows), mask=draws.random(rows) < 0.1)
        name = pa.array(np.char.add("n", draws.zipf(1.5, rows).clip(max=500).astype(str)))
        table = {
            "row": np.arange(number * rows, (number + 1) * rows),
            "x": x,
            "name": name,
            "label": draws.random(rows) < 0.3,
        }
        pq.write_table(pa.table(table), folder / f"{number}.parquet")
    return folder


def make_job(data: Any, out: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    """The parameters of the flow: four partitions, five files, one worker process with two threads."""
    return {
        "source": {"path": str(data), "partition_size": 1, **sections.get("source", {})},
        "features": sections.get("features", FEATURES),
        "label": sections.get("label", ["label"]),
        "output": {"path": str(out), "files": 5, "seed": 7, **sections.get("output", {})},
        "cluster": {"kind": "cpu", "threads_per_worker": 2, **sections.get("cluster", {})},
        "run": {"retries": 1, **sections.get("run", {})},
    }


def run_flow(job: dict[str, Any]) -> Any:
    """The final state of a run of the real flow on the session's server; nothing is raised."""
    from flows.preprocess import preprocess

    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        return preprocess(**job, return_state=True)


def task_runs(state: Any, expected: Sequence[tuple[str, str]] | None = None) -> list[tuple[str, str]]:
    """(name, final state) of the task runs of a flow run, in the order of their start.

    The server hears of them by messages, which may still be on their way when the flow has ended: what is `expected` is
    waited for.
    """
    if expected is not None:
        eventually(lambda: task_runs(state) == expected)
    chosen = FlowRunFilter(id=FlowRunFilterId(any_=[state.state_details.flow_run_id]))
    with get_client(sync_client=True) as client:
        runs = client.read_task_runs(flow_run_filter=chosen)
    # The message with `start_time` may come late; every message has this time.
    runs.sort(key=lambda r: r.expected_start_time or r.created)
    return [(r.name, str(r.state_name)) for r in runs]


def flow_state(state: Any) -> str:
    """What the server says of the run."""
    with get_client(sync_client=True) as client:
        return str(client.read_flow_run(state.state_details.flow_run_id).state_name)


def digests(folder: Path) -> dict[str, str]:
    """sha256 of every data file below the folder."""
    parts = sorted(p for p in folder.rglob("part-*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in parts}


def plan_chaos(path: Path, faults: Iterable[dict[str, Any]]) -> Path:
    """The plan of `tests.faults.chaos` for the workers that start from now on, every flag set."""
    plan = []
    for number, fault in enumerate(faults):
        flag = path.with_suffix(f".flag{number}")
        flag.touch()
        plan.append({"call": 1, "do": "kill", "flag": str(flag), **fault})
    path.write_text(json.dumps(plan))
    return path


def run_here(job: dict[str, Any], cluster: Any) -> Any:
    """The final state of a run of the real flow on a running cluster, which saves its start; nothing is raised."""
    from flows.preprocess import preprocess
    from infra.clusters.model import Cluster
    from infra.orchestration.task_runner import runner

    where = section_of(cluster)
    on_cluster: Any = runner(Cluster(**where))
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        return preprocess.with_options(task_runner=on_cluster)(**{**job, "cluster": where}, return_state=True)


def go(asked: dict[str, Any], engine: str, before: str = "", action: Callable[[], Any] = int) -> list[str]:
    """Run the stages of a job as the flow does, in this process, with the action `before` one (or `commit`).

    Return the stages that found their work done.
    """
    from flows.job.job import make_job as job_of
    from tasks.cluster.local_pool import LocalPool
    from tasks.stages import commit, ingest, shuffle_write, statistics, transform

    request, pool, done = job_of(asked).request(engine), LocalPool(2), []
    work = {
        "ingest": ingest.ingest,
        "statistics": statistics.statistics,
        "transform": transform.transform,
        "shuffle_write": shuffle_write.shuffle_write,
    }
    request.staging.check(request.output.on_existing)
    with request.staging.hold_lock():
        for name, stage in work.items():
            if name == before:
                action()
            done.append(stage(request, *([""] if name in ("transform", "shuffle_write") else []), pool))
        if before == "commit":
            action()
        commit.commit(request, done)
    return [s.stage for s in done if s.reused]


def reused(cluster_run: Any) -> dict[str, bool]:
    """Stage -> whether it found its work done, by the tables that the stages of a run published."""
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

    chosen = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[cluster_run.state_details.flow_run_id]))
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=chosen)
    texts = {a.key: a.data for a in found if a.type == "markdown"}
    ends = {name: f"-{name.replace('_', '-')}-summary" for name in STAGES}
    return {
        name: any("already done, not run again" in text for key, text in texts.items() if key.endswith(end))
        for name, end in ends.items()
    }
