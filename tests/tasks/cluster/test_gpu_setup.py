"""Whatever computes on a GPU makes the process ready first, whoever started it. Nothing here needs a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.cluster.local_pool import LocalPool
from tasks.cluster.transfer import gpu_setup
from tasks.graph.partition_work import Work
from tasks.learning.observe import observe
from tasks.shuffle.cutting import cut_partition
from tasks.shuffle.key_ranges import reduce_range
from tasks.shuffle.writing import write_part
from tests.conftest import python_path

ROOT = Path(__file__).resolve().parents[3]
ON_GPU: Any = SimpleNamespace(engine="cudf")


class Prepared(Exception):
    """Raised in place of what needs CUDA."""


def kernels() -> Any:
    work = Work.__new__(Work)
    object.__setattr__(work, "engine", "cudf")
    return work.kernels


@pytest.mark.parametrize(
    "task",
    [
        lambda: observe(SimpleNamespace(work=ON_GPU), None),  # type: ignore[arg-type]
        lambda: cut_partition(SimpleNamespace(work=ON_GPU), None),  # type: ignore[arg-type]
        lambda: write_part(ON_GPU, None, []),  # type: ignore[arg-type]
        lambda: reduce_range(ON_GPU, None, []),  # type: ignore[arg-type]
        lambda: LocalPool(1, gpu_setup.allocatable).device_memory,
        kernels,
    ],
    ids=["observe", "cut_partition", "write_part", "reduce_range", "device_memory", "kernels"],
)
def test_tasks_prepare_their_process_first(task: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(engine: str) -> None:
        assert engine == "cudf"
        raise Prepared

    monkeypatch.setattr(gpu_setup, "prepare", prepare)
    with pytest.raises(Prepared):
        task()


PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
import results_without_gpu
sys.meta_path.insert(0, results_without_gpu.Finder())
from distributed import Client, LocalCluster
if __name__ == "__main__":
    here = LocalCluster(n_workers=1, processes=False, dashboard_address="127.0.0.1:0")
    with here as cluster, Client(cluster) as client:
        profiled = lambda dask_worker: "profile" in dask_worker.periodic_callbacks
        import tasks.engines.gpu
        before = list(client.run(profiled).values())
        client.submit(results_without_gpu.task, pure=False).result()
        import time
        until = time.monotonic() + 10
        while any(client.run(profiled).values()) and time.monotonic() < until:
            time.sleep(0.05)
        print(before, list(client.run(profiled).values()))
"""


@pytest.mark.system
def test_the_engine_leaves_dask_alone_and_the_first_task_stops_its_profiler() -> None:
    environment = {**os.environ, "PYTHONPATH": python_path()}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(tests=str(ROOT / "tests/tasks/engines"))],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[True] [False]"
