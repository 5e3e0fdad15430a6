"""What a piece of work costs this process and its children, and what each stage of a run does."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

from flows.job.job import Job
from tasks.cluster.pool import Pool
from tasks.core.stage_results import StageResult
from tasks.run.plugin import CurrentRun, RunPlugin
from tests.cost import Cost, Meter
from tests.stages import run_stages

WHOLE = "whole"  # the name of a run among its stages


class _StageCosts(RunPlugin):
    """Measures the stages of a run."""

    def __init__(self) -> None:
        self.costs: dict[str, Cost] = {}
        self.results: list[StageResult] = []
        self._meter = Meter()

    def begin(self, run: CurrentRun) -> None:
        self._meter.begin(with_processes=True)

    def after(self, run: CurrentRun, result: StageResult) -> None:
        self.costs[result.stage] = self._meter.end()
        self.results.append(result)
        self._meter.begin(with_processes=True)


def measure(work: Callable[[], Any]) -> Cost:
    """Measure what a piece of work costs this process and its children."""
    gc.collect()
    meter = Meter()
    meter.begin(with_processes=True)
    work()
    return meter.end()


def measure_run(job: Job, pool: Pool | None = None) -> tuple[dict[str, Cost], list[StageResult]]:
    """Run a job from ingest to the committed output, on the workers of a pool or on two threads of this process.

    Return the costs of the run and of its stages, and the results of these.
    """
    stages = _StageCosts()
    whole = measure(lambda: run_stages(job.request("pandas"), threads=2, pool=pool, plugins=[stages]))
    return {WHOLE: whole, **stages.costs}, stages.results


def describe(cost: Cost) -> dict[str, float]:
    """A cost as a record has it."""
    return {"cpu": round(cost.cpu, 3), "wall": round(cost.wall, 3)}


@contextlib.contextmanager
def run_worker() -> Iterator[Pool]:
    """Run the worker that a job has on this host without a section `cluster`."""
    from distributed import Client

    from infra.clusters.model import Cluster
    from tasks.cluster.dask_pool import DaskPool
    from tests.clusters import make_cluster

    with make_cluster(Cluster(kind="cpu")) as cluster, Client(cluster, set_as_default=False) as client:
        yield DaskPool(client)
