"""A real cluster of one GPU: who allocates, and that no CUDA library is imported by the flow's process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("clusters")]
ROOT = Path(__file__).resolve().parents[2]


def of_worker(dask_worker: Any) -> dict[str, Any]:
    """What a worker process on a GPU sees of itself."""
    import gc
    import os
    import sys

    import cudf
    import cupy
    import rmm

    allocator = cupy.cuda.get_allocator()
    return {
        "spill": cudf.get_option("spill"), "resource": type(rmm.mr.get_current_device_resource()).__name__,
        "cupy": getattr(allocator, "__name__", ""), "gpu": os.environ["CUDA_VISIBLE_DEVICES"],
        "streams": os.environ["CUDF_PER_THREAD_STREAM"], "offered": dask_worker.state.total_resources,
        "sum": int(cudf.Series(range(10)).sum()), "threads": dask_worker.state.nthreads,
        "profiled": "profile" in dask_worker.periodic_callbacks,
        "loaded": {"flows.preprocess", "tasks.cluster.transfer.gpu_worker"} <= set(sys.modules),
        "frozen": gc.isenabled() and gc.get_freeze_count() > 200_000,
    }  # fmt: skip


def test_a_worker_allocates_through_rmm_and_offers_its_gpu() -> None:
    from distributed import Client

    from infra.clusters.model import Cluster
    from tests.clusters import make_cluster

    asked = Cluster(kind="cuda", workers=1, rmm_pool_size="4GB", threads_per_worker=2)
    with make_cluster(asked) as cluster, Client(cluster, set_as_default=False) as client:
        (seen,) = client.run(of_worker).values()
        assert cluster.scheduler.allowed_failures == 0
    gpu = seen.pop("gpu")
    assert gpu.startswith("GPU-")
    assert seen == {
        "spill": False, "resource": "LimitingResourceAdaptor", "cupy": "rmm_cupy_allocator", "streams": "1",
        "offered": {"GPU": 1}, "sum": 45, "threads": 2, "profiled": False,
        "loaded": True, "frozen": True,
    }  # fmt: skip


def cores() -> set[int]:
    """The cores that a worker may use."""
    import os

    return os.sched_getaffinity(0)


@pytest.mark.promise("A worker uses the cores near its GPU", "infra/README.md#on-several-gpus")
def test_a_worker_keeps_to_the_cores_of_the_process_that_starts_it() -> None:
    from distributed import Client

    from infra.clusters.model import Cluster
    from tests.clusters import make_cluster

    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(before)[:2]))
    try:
        with make_cluster(Cluster(kind="cuda", workers=1)) as cluster, Client(cluster, set_as_default=False) as client:
            assert list(client.run(cores).values()) == [set(sorted(before)[:2])]
    finally:
        os.sched_setaffinity(0, before)


def learned(number: int) -> Any:
    """What a partition of statistics gives: a table of 2 M counts, 32 MB on the device."""
    import numpy as np
    import pyarrow as pa

    from tasks import engines, ops
    from tasks.graph.node import as_node
    from tasks.graph.partition_work import Work
    from tasks.learning.observe import observe
    from tasks.learning.partials import Phase
    from tests.learning import cut

    source = cut(pa.table({"c": np.arange(number << 21, (number + 1) << 21) << 20}), 1 << 21)
    work = Work(source, as_node(["c"] >> ops.Categorify()), source.plan.schema, "cudf", training=True, depth=1)
    assert engines.engine("cudf")
    return observe(Phase(work, 1, 0), source.plan.partitions[0])


def rows_learned(found: Any) -> int:
    """The rows of what `learned` gave, which is on the device again."""
    (partial,) = found.partials.values()
    table = partial.tree[-1, 0]
    assert type(table).__module__.partition(".")[0] == "cudf"
    return len(table)


def spilled_to_host(dask_worker: Any) -> int:
    from tasks.cluster.monitor import _count_spilled_bytes

    return _count_spilled_bytes(dask_worker.data)[0]


def test_what_is_learned_spills_to_the_host() -> None:
    from distributed import Client, wait

    from infra.clusters.model import Cluster
    from tests.clusters import make_cluster

    asked = Cluster(kind="cuda", workers=1, rmm_pool_size="4GB", device_memory_limit="80MB")
    with make_cluster(asked) as cluster, Client(cluster) as client:
        results = client.map(learned, range(4), pure=False)
        wait(results)
        (spilled,) = client.run(spilled_to_host).values()
        assert 60e6 < spilled < 75e6  # two of four tables of 34 MB do not fit into 80 MB
        assert client.gather(client.map(rows_learned, results, pure=False)) == [1 << 21] * 4


def test_the_flow_process_imports_neither_cudf_nor_cupy() -> None:
    code = (
        "import sys; from infra.clusters.model import Cluster; from infra.clusters.kinds import make_cluster\n"
        "if __name__ == '__main__':\n"
        "    with make_cluster(Cluster(kind='auto', workers=1, rmm_pool_size='2GB')): pass\n"
        "    print(sorted({'cudf', 'cupy', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
