"""Shares of memory: which exchange a run of known size takes, and that the shares fit together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from infra.clusters.cuda_settings import memory_settings, pool_settings
from infra.clusters.model import Cluster
from infra.gpus import Gpu
from tasks.core import memory_budget as budget
from tasks.core.schema import Schema
from tasks.engines import admission
from tasks.shuffle.choice import choose, spare, spare_on_device

TOY = pa.schema([(f"c{i}", pa.int64()) for i in range(3)] + [(f"f{i}", pa.float32()) for i in range(6)])
CRITEO = pa.schema([(f"c{i}", pa.int64()) for i in range(26)] + [(f"f{i}", pa.float32()) for i in range(14)])
GB = 10**9


@dataclass
class Pool:
    """A pool of so many workers, with bytes of host and GPU memory of all of them."""

    memory: int
    device_memory: int
    gpus: int = 1
    threads: int = 16

    @property
    def workers(self) -> list[str]:
        return [f"gpu{i}" for i in range(self.gpus)]


H200, TWO_H200, SMALL = Pool(128 * GB, 128 * GB), Pool(256 * GB, 256 * GB, 2), Pool(32 * GB, 8 * GB)


# 56 bytes a row of toy with its position, 272 of criteo
@pytest.mark.parametrize(
    ("engine", "pool", "schema", "rows", "kind", "on_host", "host_left", "gpu_left"),
    [
        ("cudf", H200, TOY, 20_000_000, "memory", False, 64_000_000_000, 32_000_000_000),
        ("cudf", H200, TOY, 788_000_000, "memory", False, 64_000_000_000, 19_872_000_000),
        ("cudf", H200, CRITEO, 100_000_000, "memory", False, 64_000_000_000, 32_000_000_000),
        ("cudf", H200, CRITEO, 240_000_000, "disk", False, 0, 0),
        ("cudf", TWO_H200, CRITEO, 100_000_000, "memory", False, 64_000_000_000, 32_000_000_000),
        ("cudf", SMALL, TOY, 20_000_000, "memory", False, 16_000_000_000, 2_000_000_000),
        ("cudf", SMALL, TOY, 788_000_000, "disk", False, 0, 0),
        ("cudf", SMALL, CRITEO, 20_000_000, "memory", True, 10_560_000_000, 0),
        ("pandas", SMALL, TOY, 20_000_000, "memory", False, 14_755_000_000, 0),
        ("pandas", SMALL, CRITEO, 100_000_000, "disk", False, 0, 0),
    ],
)
def test_the_exchange_of_a_known_size(
    engine: str, pool: Any, schema: pa.Schema, rows: int, kind: str, on_host: bool, host_left: int, gpu_left: int
) -> None:
    output = Schema.from_arrow(schema)
    assert choose("auto", rows, output, pool, engine)[::2] == (kind, on_host)
    assert spare("auto", rows, output, pool, engine) == host_left
    assert (spare_on_device("auto", rows, output, pool) if engine == "cudf" else 0) == gpu_left


def test_a_partition_that_a_gpu_takes() -> None:
    assert admission.fitting_partition(128 * GB) == 8 * GB
    assert admission.fitting_partition(8 * GB) == 500_000_000
    assert [admission.file_runs(memory, GB) for memory in (128 * GB, 8 * GB)] == [1, 5]


@pytest.mark.parametrize("protocol", ["tcp", "ucx"])
def test_pieces_and_work_fit_into_a_gpu_and_pieces_stay_where_results_do_not_spill(protocol: str) -> None:
    gpus, cluster = [Gpu(0, "GPU-0", "H200", 128 * GB)], Cluster(kind="cuda")
    spilling = memory_settings(cluster, gpus, protocol)
    pool = pool_settings(cluster, gpus, protocol).get("limit") or spilling["rmm_pool_size"]
    assert pool / (128 * GB) == pytest.approx({"tcp": 0.92, "ucx": 0.6}[protocol])
    assert (budget.PIECES_SHARE + budget.WORK_SHARE_OF_GPU) * pool < 128 * GB
    assert budget.PIECES_SHARE * pool < spilling["device_memory_limit"] < pool


def test_shares_inside_shares() -> None:
    assert budget.PIECES_SHARE + budget.WORK_SHARE_OF_GPU <= 1
    assert max(budget.CACHE_SHARE_OF_GPU, budget.TABLES_SHARE_OF_GPU) <= budget.PIECES_SHARE
    assert budget.PIECES_SHARE + budget.FREE_SHARE_OF_HOST + budget.STATE_SHARE_OF_HOST < 1
    assert admission.PLANNED * budget.copies("cudf") * admission.fitting_partition(8 * GB) == budget.work_limit(8 * GB)
