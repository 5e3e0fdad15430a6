"""The modules that processes of a cluster load before their first task: of infra, and those that flows hand down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from infra.workers.forked import WORKER_IMPORTS

WORKER_PRELOADS = ("infra.workers.preload",)
SCHEDULER_PRELOADS = ("infra.workers.pages",)


@dataclass(frozen=True)
class WorkerImports:
    """Names of modules that workers load beside those of infra.

    preloads: each worker without a GPU runs their `dask_setup(worker)`.
    on_gpus: each worker on a GPU imports them, after cuDF and CuPy.
    tasks: what the first task would import. The fork server imports them for its forks, and so does each worker on a
        GPU; other workers import them with their first task.
    """

    preloads: tuple[str, ...] = ()
    on_gpus: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()


NO_IMPORTS = WorkerImports()


def preload_settings(imports: WorkerImports) -> dict[str, Sequence[str]]:
    """Dask's settings for what workers and schedulers load first."""
    return {
        "distributed.worker.preload": [*WORKER_PRELOADS, *imports.preloads],
        "distributed.scheduler.preload": [*SCHEDULER_PRELOADS],
    }


def pre_import(imports: WorkerImports) -> list[str]:
    """What dask-cuda imports in a worker before its first task; what it needs of Prefect and the flows last, since all
    is frozen then."""
    return ["cudf", "cupy", "infra.workers.gpu_preload", *imports.on_gpus, "infra.workers.preimport"]


def pre_import_settings(imports: WorkerImports) -> dict[str, Any]:
    """Dask's setting by which `infra.workers.preimport` knows what to import."""
    return {WORKER_IMPORTS: [*imports.tasks]}
