"""Memory of a GPU that other processes open: two processes on one GPU, and Dask workers that exchange pieces."""

from __future__ import annotations

import multiprocessing
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.cluster.dask_pool import workers_at

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("clusters")]
MIB = 1 << 20


def worker_shape() -> Any:
    return SimpleNamespace(connection_args={"ssl_context": None}, rpc=SimpleNamespace(connection_args={}))


class Result:
    """What a task has returned."""


def lender(pipe: Any) -> None:
    """A process that lends a small buffer and one of 64 MiB, then tells whether they end with their owner."""
    import cupy
    from rmm.allocators.cupy import rmm_cupy_allocator

    from tasks.cluster.transfer import cuda_ipc
    from tasks.core import lent_bytes

    cupy.cuda.set_allocator(rmm_cupy_allocator)
    worker = worker_shape()
    cuda_ipc.prepare(worker, 0.1, shared=True)
    told = worker.rpc.connection_args["handshake_overrides"]
    assert worker.connection_args["handshake_overrides"] == told
    to_us = {"recipient": {**told, "address": "tcp://127.0.0.1:1"}}
    owner, buffers = Result(), [cupy.arange(3, dtype=cupy.uint8), cupy.full(64 * MIB, 7, cupy.uint8)]
    offer = told[cuda_ipc.OFFER]
    elsewhere = [{**offer, "host": "another"}, {**offer, "gpus": ["another"]}]
    for recipient in (None, {}, {"recipient": None}, *({"recipient": {cuda_ipc.OFFER: other}} for other in elsewhere)):
        assert cuda_ipc.lend(buffers[0], owner, recipient) is None
    pipe.send([cuda_ipc.lend(buffer, owner, to_us) for buffer in buffers])
    assert lent_bytes.totals()[0] == 64 * MIB + 3
    assert lends_twice_what_is_packed_once(to_us)
    buffers.clear()
    assert pipe.recv() == "copied once"
    again = cupy.zeros(64 * MIB, cupy.uint8)  # would lie where the second lay, had that been let go
    cupy.cuda.get_current_stream().synchronize()
    pipe.send("still there")
    assert pipe.recv() == "copied twice"
    held = len(weakref.finalize._registry)
    del owner, again
    pipe.send(held - len(weakref.finalize._registry))
    pipe.close()


def lends_twice_what_is_packed_once(to_us: Any) -> bool:
    import cudf

    from tasks.cluster.transfer import gpu_results
    from tasks.learning.large_table_types import Slice

    value = Slice(cudf.DataFrame({"n": range(1000)}))
    (first, frames), again = (gpu_results.dump(value, "dask", to_us) for _ in range(2))
    assert again == (first, frames) == (first, [])
    assert first["buffer"]["lent"]["nbytes"] >= 8000
    assert len(gpu_results.dump(value, "dask", None)[1]) > 0  # to others it is sent
    del value
    return gpu_results._lent == {}


def test_another_process_copies_what_is_lent() -> None:
    import cupy

    from tasks.cluster.transfer import cuda_ipc

    spawn = multiprocessing.get_context("spawn")
    pipe, theirs = spawn.Pipe()
    process = spawn.Process(target=lender, args=(theirs,))
    process.start()
    theirs.close()  # where it fails, what it would have said is not waited for
    try:
        small, large = pipe.recv()
        assert cupy.asnumpy(cuda_ipc.fetch(small)).tolist() == [0, 1, 2]
        assert bool((cuda_ipc.fetch(large) == 7).all())
        pipe.send("copied once")
        assert pipe.recv() == "still there"
        assert bool((cuda_ipc.fetch(large) == 7).all())
        pipe.send("copied twice")
        assert pipe.recv() == 2  # both loans have ended
    finally:
        process.join(30)
    assert process.exitcode == 0
    cuda_ipc._opened.pop(large["pool"])
    with pytest.raises(OSError, match="refused"):
        cuda_ipc.fetch(large)


@pytest.fixture(scope="module", params=["tls", "tcp"])
def workers(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Three workers on one GPU, as those of a host with several are set up."""
    from dask import config
    from distributed import Client, LocalCluster

    from infra.clusters.encryption import temporary
    from infra.environment import GPU_ENVIRONMENT, local_environment, use_settings
    from infra.workers.imports import pre_import_settings, preload_settings
    from tests.clusters import IMPORTS

    use_settings(preload_settings(IMPORTS))
    spoken = {"protocol": request.param, "security": temporary() if request.param == "tls" else None}
    with (
        local_environment(GPU_ENVIRONMENT),
        config.set({"rowmill.gpu-pool": {"limit": 0.2, "shared": True}, **pre_import_settings(IMPORTS)}),
        LocalCluster(n_workers=3, threads_per_worker=2, dashboard_address="127.0.0.1:0", **spoken) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.run(as_dask_cuda_does)
        yield client


def as_dask_cuda_does() -> None:
    import importlib

    import cupy
    from rmm.allocators.cupy import rmm_cupy_allocator

    from infra.workers.imports import pre_import
    from tests.clusters import IMPORTS

    cupy.cuda.set_allocator(rmm_cupy_allocator)
    for module in pre_import(IMPORTS):
        importlib.import_module(module)


def pieces_of(rows: int) -> Any:
    """A partition cut in two, its first range in a buffer of its own."""
    import numpy as np
    import pyarrow as pa

    from tasks import engines
    from tasks.shuffle.pieces import PartitionPieces, pack_ranges

    engine = engines.engine("cudf")
    table = pa.table({"n": np.arange(rows), "s": np.arange(rows).astype(str)})
    columns = {name: engine.column(table[name]) for name in table.column_names}
    cut = engine.cut(columns, engine.xp.arange(rows)[::-1], np.array([0, rows // 2, rows]))
    return pack_ranges(PartitionPieces([cut]), 0, 1)


def numbers_of(packed: Any) -> list[int]:
    from tasks import engines

    table, positions, _ = engines.engine("cudf").pieces_to_host(packed.pieces[0])
    assert table["s"].to_pylist() == [str(n) for n in table["n"].to_pylist()]
    return [*table["n"].to_pylist(), *positions.tolist()]


def lent_bytes() -> int:
    from tasks.core import lent_bytes

    return lent_bytes.totals()[0]


@pytest.mark.promise("each copies the pieces that it needs out of the other GPUs' memory by itself (CUDA IPC)")
@pytest.mark.promise("Large pieces within a host are copied past TLS, by processes of one user only")
def test_workers_of_a_host_take_pieces_out_of_each_others_gpu(workers: Any) -> None:
    rows = 1000
    one, other, _ = workers_at(workers)
    assert one.partition("://")[0] == workers.scheduler.address.partition("://")[0]
    made = workers.submit(pieces_of, rows, workers=[one], pure=False)
    found = workers.submit(numbers_of, made, workers=[other], pure=False).result()
    assert found == [*range(rows - 1, rows // 2 - 1, -1), *range(rows // 2)]
    lent = workers.run(lent_bytes)
    assert lent[one] > 8 * rows // 2
    assert lent[other] == 0


def test_what_is_learned_is_lent(workers: Any) -> None:
    from tests.infra.test_cuda import learned, rows_learned

    one, *others = workers_at(workers)
    before = workers.run(lent_bytes)
    made = workers.submit(learned, 0, workers=[one], pure=False)
    for other in others:  # the second gets it of either of those that have it then
        assert workers.submit(rows_learned, made, workers=[other], pure=False).result() == 1 << 21
    now = workers.run(lent_bytes)
    assert sum(now.values()) - sum(before.values()) >= 2 * 12 * (1 << 20)
    assert now[one] > before[one]
