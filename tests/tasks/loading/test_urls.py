"""Training from an output behind a URL: the same batches as from its folder, and only the bytes that they need."""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import ops
from tasks.dataset import Dataset
from tasks.errors import DataError, HostError, JobError
from tasks.loading import Loader, Shard, loader, remote_parts
from tasks.manifest import Manifest
from tasks.sources.formats.parquet_chunks import footers
from tasks.storage.discarded import mark
from tasks.workflow import Workflow
from tests.object_store import ObjectStore, Traffic, fail_share

pytestmark = pytest.mark.system
ROWS = 1003
COLUMNS = ["number", "word"]


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    footers.forget()


def write(folder: Path, **output: Any) -> Path:
    rows = {
        "number": range(ROWS),
        "word": [["to", "be", "or"][i % 3] for i in range(ROWS)],
        "group": pa.array([i % 4 for i in range(ROWS)], pa.int16()),
        "wide": [f"{i:0200}" for i in range(ROWS)],
    }
    graph = ["number"] + (["word"] >> ops.Categorify()) + ["group", "wide"]
    transformed = Workflow(graph).fit_transform(Dataset(pa.table(rows), engine="pandas"))
    transformed.to_parquet(str(folder), **{"files": 3, "row_group_size": 100, "seed": 1, **output})
    return folder


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1003 rows in 3 files, in row groups of 100."""
    return write(tmp_path_factory.mktemp("urls") / "out")


def upload(store: ObjectStore, folder: Path, prefix: str) -> str:
    for path in folder.rglob("*"):
        if path.is_file():
            store.put(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())
    return f"s3://shop/{prefix}"


def batches_of(source: Loader, **shard: int) -> list[pa.Table]:
    return [batch for epoch in range(2) for batch in source.batches(epoch, Shard(**shard))]


def reads_of_parts(traffic: Traffic) -> list[Any]:
    return [one for one in traffic.requests if one.kind == "get" and "part-" in one.path]


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("output", [{}, {"format": "arrow"}, {"partition_on": ["group"], "files": 1}])
def test_batches_are_those_of_the_folder(
    cached: bool, output: dict[str, Any], object_store: ObjectStore, tmp_path: Path
) -> None:
    folder = write(tmp_path / "out", **output)
    url = upload(object_store, folder, f"loading/{tmp_path.name}")
    more: dict[str, Any] = {"cache": str(tmp_path / "parts")} if cached else {}
    remote = loader(url, COLUMNS, batch_size=64, storage_options=object_store.options, **more)
    local = loader(folder, COLUMNS, batch_size=64)
    assert batches_of(remote) == batches_of(local)
    for shard in ({"rank": 1, "ranks": 2}, {"worker": 2, "workers": 3}):
        assert batches_of(remote, **shard) == batches_of(local, **shard)
    spread = {"global_batches": True, "batch_size": 40}
    two = {"rank": 1, "ranks": 2, "worker": 1, "workers": 2}
    assert batches_of(remote.with_settings(**spread), **two) == batches_of(local.with_settings(**spread), **two)
    again = pickle.loads(pickle.dumps(remote))  # noqa: S301  # this test wrote it
    assert [*again] == [*local]
    state = (taken := remote.batches())
    first = [next(taken) for _ in range(5)]
    again = local.batches()
    again.load_state_dict(state.state_dict() | {"order": {**state.state_dict()["order"]}})
    assert [*first, *again] == [*local]


@pytest.mark.promise("the columns that are needed alone")
def test_only_the_chunks_of_the_columns_are_fetched(out: Path, object_store: ObjectStore) -> None:
    url = upload(object_store, out, "loading/chunks")
    with object_store.proxy.counting() as traffic:
        source = loader(url, COLUMNS, batch_size=128, storage_options=object_store.options)
        assert sum(batch.num_rows for batch in source) == ROWS
    needed = 0
    tails = 0
    for part in Manifest.load(out).parts:
        footer = pq.read_metadata(out / part["path"])
        tails += min(part["bytes"], 2**16)
        for group in range(footer.num_row_groups):
            needed += sum(footer.row_group(group).column(i).total_compressed_size for i in range(2))
    reads = reads_of_parts(traffic)
    assert sum(read.received for read in reads) <= 1.05 * needed + tails
    assert len(reads) == 3 + 12  # footers, and row groups, whose two chunks lie next to each other
    with object_store.proxy.counting() as traffic:
        assert sum(batch.num_rows for batch in source.batches(1)) == ROWS
    assert len(reads_of_parts(traffic)) == 12


@pytest.mark.promise("each once for all processes of the host and all epochs, compared with its digest")
def test_the_cache_fetches_each_part_once_and_keeps_to_its_limit(
    out: Path, object_store: ObjectStore, tmp_path: Path
) -> None:
    url = upload(object_store, out, "loading/cache")
    cache = tmp_path / "parts"
    sizes = [part["bytes"] for part in Manifest.load(out).parts]
    with object_store.proxy.counting() as traffic:
        for _ in range(2):
            source = loader(url, batch_size=128, storage_options=object_store.options, cache=str(cache))
            assert sum(batch.num_rows for batch in batches_of(source)) == 2 * ROWS
            del source
    fetched = sum(read.received for read in reads_of_parts(traffic))
    assert sum(sizes) <= fetched <= sum(sizes) + sum(min(size, 2**16) for size in sizes)
    assert len([path for path in cache.iterdir() if path.suffix != ".lock"]) == 3

    object_store.put("loading/cache/part-00001.parquet", bytes(sizes[1]))
    with pytest.raises(DataError, match="not a whole Parquet file"):
        loader(url, storage_options=object_store.options, cache=str(cache)).groups
    flipped = bytearray((out / "part-00001.parquet").read_bytes())
    flipped[len(flipped) // 3] ^= 1
    object_store.put("loading/cache/part-00001.parquet", bytes(flipped))
    source = loader(url, storage_options=object_store.options, cache=str(cache), shuffle=False)
    with pytest.raises(DataError, match="has other content than when it was written"):
        list(source)

    one = tmp_path / "one"
    settings = {"storage_options": object_store.options, "cache": str(one), "cache_bytes": 2 * max(sizes)}
    small = upload(object_store, out, "loading/small")
    for number in range(2):
        first = loader(small, batch_size=128, shuffle=False, **settings)
        assert next(iter(first)).num_rows == 128, number
    assert sum(path.stat().st_size for path in one.iterdir()) <= 3 * max(sizes)


def test_versions_are_chosen_as_from_the_folder(
    object_store: ObjectStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    for version in ("v0001", "v0002", "v0003"):
        write(folder / version, files=1, seed=int(version[1:]))
    mark(folder / "v0002", "half of the day was missing")
    (folder / "_latest").write_text("v0003\n")
    url = upload(object_store, folder, f"loading/{tmp_path.name}")
    monkeypatch.setenv("ROWMILL_STORAGE_SHOP", json.dumps(object_store.options))
    monkeypatch.setenv("ROWMILL_ALLOWED_ROOTS", f"{url}:{folder}")
    with caplog.at_level(logging.WARNING, "rowmill"):
        remote = loader(url, versions="all", storage_options="shop", batch_size=300)
    assert f"{url}/v0002 was discarded: it is left out" in caplog.text
    assert [manifest.path for manifest in remote.manifests] == [f"{url}/v0001", f"{url}/v0003"]
    assert [*remote] == [*loader(folder, versions="all", batch_size=300)]
    with pytest.raises(JobError, match="there is no version v0009") as error:
        loader(url, versions="v0009", storage_options="shop")
    assert error.value.where == url
    with pytest.raises(HostError, match="outside the allowed roots"):
        loader("s3://shop/else", storage_options="shop")
    data = Dataset(url, versions="v0001..v0003", storage_options="shop", engine="pandas")
    assert data.num_rows == 2 * ROWS
    assert data.source == [f"{url}/v0001", f"{url}/v0003"]


def test_damage_and_faults(out: Path, object_store: ObjectStore, tmp_path: Path) -> None:
    url = upload(object_store, out, "loading/faults")
    source = loader(url, COLUMNS, batch_size=128, storage_options=object_store.options)
    expected = [*loader(out, COLUMNS, batch_size=128)]
    with object_store.proxy.failing(fail_share(0.2, 1, 503, "cut")):
        assert [*source] == expected
    batches = source.batches()
    assert next(batches) == expected[0]
    object_store.put("loading/faults/part-00000.parquet", (out / "part-00001.parquet").read_bytes())
    with pytest.raises(DataError, match="changed"):
        list(batches)
    object_store.backend.delete_object("shop", "loading/faults/part-00002.parquet")
    with pytest.raises(DataError) as error:
        loader(url, storage_options=object_store.options).groups
    assert error.value.where == url


def test_what_is_fetched_ahead_has_a_bound(
    out: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = upload(object_store, out, "loading/bound")
    rooms: list[Any] = []

    class Room(remote_parts.InFlight):
        def __init__(self, limit: int) -> None:
            super().__init__(limit)
            rooms.append(self)

    monkeypatch.setattr(remote_parts, "InFlight", Room)
    monkeypatch.setattr(remote_parts, "ROOM", 8_000)
    source = loader(url, batch_size=10, storage_options=object_store.options)
    assert sum(batch.num_rows for batch in source) == ROWS
    assert 4_000 < rooms[0].most <= 8_000


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")  # from Python 3.12 on
@pytest.mark.promise("Workers may be forked")
def test_workers_that_are_forked_read_as_others_do(out: Path, object_store: ObjectStore, tmp_path: Path) -> None:
    url = upload(object_store, out, "loading/fork")
    source = loader(url, COLUMNS, batch_size=128, storage_options=object_store.options)
    assert source.rows == ROWS
    assert next(iter(source)).num_rows == 128  # the client is in use
    children = []
    for worker in range(2):
        if not (child := os.fork()):
            signal.alarm(60)  # whatever hangs
            try:
                batches = [*source.batches(0, Shard(worker=worker, workers=2))]
                (tmp_path / f"{worker}").write_bytes(pickle.dumps(batches))
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    local = loader(out, COLUMNS, batch_size=128)
    for worker in range(2):
        batches = pickle.loads((tmp_path / f"{worker}").read_bytes())  # noqa: S301  # this test wrote it
        assert batches == [*local.batches(0, Shard(worker=worker, workers=2))]


@pytest.mark.parametrize("cached", [False, True])
def test_arrays_of_a_device_are_those_of_the_folder(
    cached: bool, out: Path, object_store: ObjectStore, tmp_path: Path
) -> None:
    url = upload(object_store, out, "loading/device")
    more: dict[str, Any] = {"cache": str(tmp_path / "parts")} if cached else {}
    for size in (30, 250):
        settings: dict[str, Any] = {"batch_size": size, "device": "cpu"}
        remote = [*loader(url, COLUMNS, storage_options=object_store.options, **settings, **more)]
        local = [*loader(out, COLUMNS, **settings)]
        assert len(remote) == len(local) == -(-ROWS // size)
        for one, other in zip(remote, local, strict=True):
            assert all(np.array_equal(one[name], other[name]) for name in COLUMNS)


def test_several_loaders_of_a_process_do_not_wait_for_each_other(
    out: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = upload(object_store, out, "loading/two")
    monkeypatch.setattr(remote_parts, "ROOM", 8_000)
    both = [iter(loader(url, batch_size=64, storage_options=object_store.options)) for _ in range(4)]
    begun = [next(one).num_rows for one in both]  # each has fetched as much as it may, and pauses
    assert begun == [64] * 4
    assert [sum(batch.num_rows for batch in one) for one in both] == [ROWS - 64] * 4
