"""The same seed gives the same bytes: for any number of workers, either exchange, and any size of partitions.

With `--engine cudf` the workers are GPUs: 1, 2 and 4 of them, up to as many as there are.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job.job import make_job
from infra import gpus
from infra.clusters.model import Cluster
from tasks.cluster.dask_pool import DaskPool, workers_at
from tasks.cluster.local_pool import LocalPool
from tasks.cluster.pool import Pool
from tasks.core.plan import Limits, Partition, Plan
from tasks.job.request import Request
from tasks.sources.planning import make_plan
from tasks.stages import commit, ingest, plan_splits, shuffle_write, statistics, transform
from tests.clusters import make_cluster
from tests.faults.seeds import nightly

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("determinism")]

ROWS, ROW_GROUP = 28_000, 2_000
BLOCKS = 14  # every row group is one, so that each worker has several partitions without millions of rows


# Each worker, exchange and size of partitions with each other; the other combinations run nightly.
PAIRS = {(1, "memory", 1), (1, "disk", 4), (2, "memory", 4), (2, "disk", 1), (3, "memory", 1), (3, "disk", 4)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "workers" not in metafunc.fixturenames:
        return
    counts, on_gpus = (1, 2, 3), metafunc.config.getoption("--engine") == "cudf"
    if on_gpus:
        counts = tuple(n for n in (1, 2, 4) if n <= len(gpus.visible()))
    cases = list(itertools.product(counts, ("memory", "disk"), (1, 4)))
    chosen = [case for case in cases if on_gpus or case in PAIRS]
    others = nightly(case for case in cases if case not in chosen)
    metafunc.parametrize(("workers", "exchange", "blocks"), [*chosen, *others], indirect=["workers"], scope="module")


@pytest.fixture(scope="module")
def workers(request: pytest.FixtureRequest, engine: str) -> Iterator[Any]:
    """A client of a cluster of so many workers, on cores those of the session where it has them; GPUs leave room for
    others' tests."""
    from distributed import Client

    if engine == "pandas" and request.param == 2:
        yield request.getfixturevalue("two_workers")
        return
    asked = Cluster(kind="cpu", workers=request.param, threads_per_worker=1)
    if engine == "cudf":
        asked = Cluster(kind="cuda", workers=request.param, rmm_pool_size="2GB", device_memory_limit="4GB")
    on_one = engine == "pandas" and request.param == 1
    with (
        nullcontext(request.getfixturevalue("cluster")) if on_one else make_cluster(asked) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(request.param, timeout=240)
        assert len(workers_at(client)) == request.param
        yield client


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files, nulls and repeated strings, floats whose sums depend on their order."""
    folder, rng = tmp_path_factory.mktemp("determinism"), np.random.default_rng(1)
    for number in range(2):
        rows = ROWS // 2
        names = rng.zipf(1.3, rows) % 5_000
        table = pa.table({
            "n": np.arange(rows) + number * rows,
            "x": pa.array(rng.normal(1e6, 1, rows), mask=rng.random(rows) < 0.1),
            "name": pa.array([f"name-{i}" if i else None for i in names.tolist()]),
            "y": rng.random(rows) < 0.3,
            "tags": [[int(v), int(v) % 3] if v % 4 else None for v in names.tolist()],
        })  # fmt: skip
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=ROW_GROUP)
    return folder


def in_partitions_of(blocks: int) -> Callable[..., Plan]:
    """`make_plan`, but with partitions of so many blocks."""

    def planned(source: Any, **options: Any) -> Plan:
        plan = make_plan(source, limits=Limits(join_below=1), **options)
        assert len(plan.blocks) == BLOCKS
        cuts = [plan.blocks[start : start + blocks] for start in range(0, BLOCKS, blocks)]
        return replace(plan, partitions=tuple(Partition(i, cut) for i, cut in enumerate(cuts)))

    return planned


def asked(source: Path, out: Path, engine: str, exchange: str) -> Request:
    """Two phases, out-of-fold encodings, a filter and a full shuffle."""
    job = make_job({
        "source": {"path": str(source), "filter": "n % 11 != 5"},
        "features": [
            {"columns": ["x"], "ops": [{"op": "FillMedian"}, {"op": "Normalize"}]},
            {"columns": ["name", "tags"], "ops": [{"op": "Categorify", "freq_threshold": 2}]},
            {"columns": ["name"], "ops": [{"op": "TargetEncoding", "target": "y", "kfold": 3}]},
            {"columns": ["n"]},
        ],
        "label": ["y"],
        "output": {"path": str(out), "files": 7, "seed": 11},
        "run": {"exchange": exchange},
    })  # fmt: skip
    return job.request(engine)


def made(request: Request, pool: Pool, blocks: int) -> dict[str, str]:
    """The stages run on the pool: the digests of what was learned and of every file."""
    with request.staging.hold_lock(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(plan_splits, "make_plan", in_partitions_of(blocks))
        done = [ingest.ingest(request, pool), statistics.statistics(request, pool)]
        done += [transform.transform(request, "", pool), shuffle_write.shuffle_write(request, "", pool)]
        commit.commit(request, done)
    assert done[0].partitions == -(-BLOCKS // blocks)
    folder = Path(request.output.path)
    assert json.loads((folder / "_manifest.json").read_text())["exchange"] == request.run.exchange
    paths = [*sorted(folder.glob("part-*.parquet")), folder / "_workflow" / "state.json"]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory, engine: str) -> dict[str, str]:
    """What the threads of this process make of it as one partition."""
    out = tmp_path_factory.mktemp("expected") / "out"
    found = made(asked(source, out, engine, "memory"), LocalPool(2), BLOCKS)
    assert len(found) == 8
    rows = pq.read_table(out)["n"].to_pylist()
    assert sorted(rows) == [n for n in range(ROWS) if n % 11 != 5]
    assert rows != sorted(rows)
    return found


@pytest.mark.promise("The same seed gives the same rows in the same order, whatever the number of workers")
@pytest.mark.promise("So neither the number of workers nor the partition size nor a retry changes a byte")
@pytest.mark.promise("the decoded size of the rows that are processed at a time. It does not change the output")
@pytest.mark.promise("the same seed gives the same order")
@pytest.mark.promise("The rows and their order are the same on any number of GPUs")
@pytest.mark.promise("Neither the number of workers nor the partition size nor a retry changes a byte")
def test_one_seed_one_output(
    workers: Any, source: Path, tmp_path: Path, engine: str, expected: dict[str, str], exchange: str, blocks: int
) -> None:
    with workers.as_current():
        assert made(asked(source, tmp_path / "out", engine, exchange), DaskPool(workers), blocks) == expected
