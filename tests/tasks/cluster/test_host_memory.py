"""Results in the host memory of a worker, copied by other workers of the host."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from infra.workers import forkserver
from tasks.cluster.dask_pool import workers_at
from tasks.cluster.transfer import host_memory
from tasks.core import lent_bytes
from tasks.engines.cpu.order import Pieces, cut
from tasks.shuffle.pieces import PackedPieces, PartitionPieces, pack_ranges
from tests.clusters import IMPORTS

ROWS = 300_000
SUM = int(np.arange(ROWS)[ROWS - ROWS // 2 :].sum())  # of the numbers that `packed` has
TO_US = {"recipient": {host_memory.OFFER: host_memory.this_host(), "address": "tcp://127.0.0.1:1"}}


def packed(rows: int = ROWS) -> PackedPieces:
    """The first of two ranges of a partition, in buffers of its own."""
    numbers = np.arange(rows)
    columns = {
        "n": pa.array(numbers),
        "s": pa.array(numbers.astype(str)),
        "f": pa.array(numbers / 2, mask=numbers % 3 == 0),
    }
    made = cut(columns, numbers[::-1].astype(np.uint64), np.array([0, rows // 2, rows]))
    return pack_ranges(PartitionPieces([made]), 0, 1)


def equal(found: PackedPieces, wanted: PackedPieces) -> bool:
    (one,), (other,) = found.pieces, wanted.pieces
    same = one.positions.tolist() == other.positions.tolist() and one.offsets.tolist() == other.offsets.tolist()
    return same and one.table.equals(other.table) and (found.first, found.last) == (wanted.first, wanted.last)


def lender(pipe: Any) -> None:
    held = [packed(), packed()]
    pipe.send([host_memory.dump(value, TO_US) for value in held])
    pipe.recv()


@pytest.fixture
def lent() -> Iterator[tuple[Any, list[Any]]]:
    """(the connection to a process, what it says of two results that it holds)."""
    forkserver.start(IMPORTS.tasks)  # that of the workers, which has imported what is needed
    forks = multiprocessing.get_context("forkserver")
    pipe, theirs = forks.Pipe()
    process = forks.Process(target=lender, args=(theirs,))
    process.start()
    theirs.close()
    yield process, pipe.recv()
    if process.is_alive():
        pipe.send("done")
    process.join(30)


@pytest.mark.system
@pytest.mark.xdist_group("determinism")
def test_another_process_copies_what_is_lent(lent: Any) -> None:
    process, dumped = lent
    for header, frames in dumped:
        assert frames == []
        assert header["process"] == process.pid
        found = host_memory.load(header, frames)
        assert equal(found, packed())
        found.pieces[0].table.validate(full=True)


@pytest.mark.system
@pytest.mark.xdist_group("determinism")
def test_a_process_that_is_gone_is_a_lost_worker(lent: Any) -> None:
    process, ((header, frames), *_) = lent
    with pytest.raises(ConnectionResetError, match="is gone"):  # another one has its number
        host_memory.load({**header, "started": header["started"] - 1}, frames)
    process.kill()
    process.join(30)
    with pytest.raises(ConnectionResetError, match=f"memory of process {process.pid} cannot be read"):
        host_memory.load(header, frames)


@pytest.mark.parametrize(
    "context",
    [None, {}, {"recipient": None}, {"recipient": {}}, {"recipient": {host_memory.OFFER: "another host"}}],
)
def test_others_are_sent_the_bytes(context: Any) -> None:
    with pytest.raises(NotImplementedError):
        host_memory.dump(packed(), context)


def test_small_results_are_sent() -> None:
    with pytest.raises(NotImplementedError):
        host_memory.dump(packed(1000), TO_US)


def test_nothing_is_offered_where_the_kernel_forbids_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Worker:
        connection_args: dict[str, Any] = {}
        rpc = type("Rpc", (), {"connection_args": {"handshake_overrides": {"other": 1}}})

    host_memory.offer(Worker)
    assert Worker.connection_args["handshake_overrides"] == {host_memory.OFFER: host_memory.this_host()}
    assert Worker.rpc.connection_args["handshake_overrides"] == {"other": 1, host_memory.OFFER: host_memory.this_host()}
    host_memory.this_host.cache_clear()
    for refused in (errno.EPERM, errno.ENOSYS, errno.ESRCH):
        monkeypatch.setattr(host_memory, "_copy_chunk", lambda *_, number=refused: -number)
        Worker.connection_args = {}
        host_memory.offer(Worker)
        assert Worker.connection_args == {}
        with pytest.raises(NotImplementedError):
            host_memory.dump(packed(), {"recipient": {host_memory.OFFER: ""}})
        host_memory.this_host.cache_clear()


@pytest.mark.system
@pytest.mark.xdist_group("determinism")
def test_what_is_forbidden_later_is_an_error_that_says_so(lent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "_copy_chunk", lambda *_: -errno.EPERM)
    with pytest.raises(PermissionError, match="cannot be read"):
        host_memory.load(*lent[1][0])


def test_copies_go_on_where_the_kernel_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    real = host_memory._copy_chunk
    monkeypatch.setattr(host_memory, "_copy_chunk", lambda process, into, start: real(process, into[:1000], start))
    here, there = np.zeros(12_345, np.uint8), np.arange(12_345).astype(np.uint8)
    host_memory._copy_from_process(os.getpid(), here, there.ctypes.data)
    assert here.tolist() == there.tolist()


def read_here(parts: Any) -> int:
    """In a worker: the sum of a column of what came."""
    return int(sum(piece.table["n"].to_numpy().sum() for part in parts for piece in part.pieces))


def lent_of_host() -> int:
    return lent_bytes.totals()[1]


@pytest.fixture
def two_workers_of_this_test() -> Iterator[Any]:
    from distributed import Client

    from infra.clusters.model import Cluster
    from tests.clusters import make_cluster

    with (
        make_cluster(Cluster(kind="cpu", workers=2, threads_per_worker=1)) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.mark.system
@pytest.mark.xdist_group("determinism")
@pytest.mark.promise("Workers of one host then copy the pieces that they need out of each other's memory")
@pytest.mark.promise("Large pieces within a host are copied past TLS, by processes of one user only")
def test_workers_of_a_host_copy_pieces_from_each_other(two_workers: Any) -> None:
    client = two_workers
    one, other = sorted(workers_at(client))
    before = client.run(lent_of_host)
    assert one.startswith("tls://")  # what they say to each other, not what they copy
    made = [client.submit(packed, ROWS, workers=[where], pure=False) for where in (one, other)]
    found = client.submit(read_here, made, workers=[other]).result()
    assert found == 2 * SUM
    sent = client.run(lent_of_host)
    assert sent[one] - before[one] > 8 * ROWS // 2
    assert sent[other] == before[other]
    assert equal(client.gather(made[0]), packed())  # the client has offered nothing
    assert client.run(lent_of_host) == sent
    assert isinstance(made[0].result().pieces[0], Pieces)


def kill_who_lends() -> None:
    """In a worker: from now on the process that holds a result ends before it is read."""
    from distributed.protocol.serialize import dask_deserialize

    def load(header: Any, frames: Any) -> Any:
        os.kill(header["process"], signal.SIGKILL)
        while host_memory._read_start_time(header["process"]) == header["started"]:
            time.sleep(0.01)
        return host_memory.load(header, frames)

    dask_deserialize.register(PackedPieces)(load)


@pytest.mark.system
@pytest.mark.xdist_group("determinism")
def test_a_worker_that_is_killed_while_it_is_read_is_a_lost_one(two_workers_of_this_test: Any) -> None:
    client = two_workers_of_this_test
    one, other = sorted(workers_at(client))
    made = client.submit(packed, ROWS, workers=[one], allow_other_workers=True, pure=False)
    assert made.result().first == 0
    client.run(kill_who_lends, workers=[other])
    read = client.submit(read_here, [made], workers=[other], pure=False)
    assert read.result(timeout=120) == SUM  # made again where it is needed
