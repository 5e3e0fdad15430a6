"""The plugins of every run of a flow: what it committed, the engines of its cluster, the speeds for later estimates."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

from distributed import Client

from flows.job import run_history
from flows.job.refit_job import AnyJob
from infra.clusters.encryption import security_of
from infra.clusters.resolve import stage_engines
from tasks.run.plugin import CurrentRun, RunPlugin
from tasks.shuffle.memory_exchange import release
from tasks.stages import reuse

COMMITTED: list[str] = []  # what the last run of this process has committed, for a command whose server has gone


class CommittedPlugin(RunPlugin):
    """Notes what a run of this process has committed."""

    place: ClassVar[int] = 0

    def committed(self, run: CurrentRun, outputs: Sequence[str]) -> None:
        COMMITTED[:] = outputs

    def ended(self, run: CurrentRun, error: BaseException | None) -> None:
        COMMITTED[:] = run.outputs


class ClusterPlugin(RunPlugin):
    """Chooses the engine of each stage by the workers of the cluster, and leaves nothing on a scheduler that the run
    has not started."""

    place: ClassVar[int] = 10

    def __init__(self, job: AnyJob) -> None:
        self.cluster = job.cluster

    def begin(self, run: CurrentRun) -> None:
        request = replace(run.request, stage_engines=dict(stage_engines(self.cluster)))
        run.request = request.of_stage(request.planned_stage)

    def ended(self, run: CurrentRun, error: BaseException | None) -> None:
        if self.cluster.kind != "address":
            return
        security = security_of(self.cluster)
        known = {"security": security, "set_as_default": False, "timeout": "8s"}
        with suppress(OSError), Client(self.cluster.address, **known) as client:
            release(client, reuse.exchange_prefix(run.request.staging))


class HistoryPlugin(RunPlugin):
    """Records the speed of a run, for the estimates of later ones."""

    place: ClassVar[int] = 91

    def __init__(self, job: AnyJob) -> None:
        self.recipe = getattr(job, "recipe", None)

    def committed(self, run: CurrentRun, outputs: Sequence[str]) -> None:
        run_history.record(run.request, run.results, self.recipe, run.run_id)
