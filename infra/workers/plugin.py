"""Dask plugins of any cluster: set up its workers, also those that join later, and have them retired by name."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import dask.config
from distributed import Scheduler, SchedulerPlugin, Worker, WorkerPlugin

from infra.workers.imports import WORKER_PRELOADS, WorkerImports


class SetUp(WorkerPlugin):
    """Settings and modules that workers of rowmill's own kinds get from their command or their nanny."""

    name = "rowmill"

    def __init__(self, settings: dict[str, Any], imports: WorkerImports, on_gpus: bool) -> None:
        self.settings = settings
        self.imports = imports
        self.on_gpus = on_gpus

    def setup(self, worker: Worker) -> None:
        dask.config.set(self.settings)
        worker.memory_manager.memory_pause_fraction = False  # read from the settings before the plugin came
        for module in (*WORKER_PRELOADS, *(() if self.on_gpus else self.imports.preloads)):
            import_module(module).dask_setup(worker)
        for module in self.imports.on_gpus if self.on_gpus else ():
            import_module(module)


class RetireByName(SchedulerPlugin):
    """Has the scheduler retire workers that are called by their names.

    When a cluster of Dask shrinks (`SpecCluster.scale`, distributed 2026.7 too), it asks its scheduler by the names of
    its workers. The scheduler compares them with addresses, passes over all of them, and the workers are closed with
    their tasks: each counts as killed, and with it the stage of the run. A worker that is retired hands its results on,
    and its tasks run again elsewhere. The names of a job that starts several workers begin with the name of the job.
    """

    name = "rowmill-retire-by-name"

    async def start(self, scheduler: Scheduler) -> None:
        retire = scheduler.handlers["retire_workers"]

        async def retire_by_name(workers: Sequence[Any] | None = None, **options: Any) -> Any:
            if workers is not None:
                workers = [address for one in workers for address in _addresses(scheduler, one)]
            return await retire(workers=workers, **options)

        scheduler.handlers["retire_workers"] = retire_by_name


def _addresses(scheduler: Scheduler, called: object) -> list[str]:
    """The addresses of the workers that are called by an address, a name, or the name of the job that started them."""
    if called in scheduler.workers:
        return [str(called)]
    names = [name for name in scheduler.aliases if name == called or str(name).startswith(f"{called}-")]
    return [scheduler.aliases[name] for name in names]
