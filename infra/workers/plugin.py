"""A Dask plugin that sets up the workers of a cluster whatever started them, also those that join later."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import dask.config
from distributed import Worker, WorkerPlugin

from infra.workers.imports import WORKER_PRELOADS, WorkerImports


class SetUp(WorkerPlugin):
    """Settings and modules that workers of rowmill's own kinds get from their command or their nanny."""

    name = "rowmill"

    def __init__(self, settings: dict[str, Any], imports: WorkerImports, on_gpus: bool) -> None:
        self.settings, self.imports, self.on_gpus = settings, imports, on_gpus

    def setup(self, worker: Worker) -> None:
        dask.config.set(self.settings)
        worker.memory_manager.memory_pause_fraction = False  # read from the settings before the plugin came
        for module in (*WORKER_PRELOADS, *(() if self.on_gpus else self.imports.preloads)):
            import_module(module).dask_setup(worker)
        for module in self.imports.on_gpus if self.on_gpus else ():
            import_module(module)
