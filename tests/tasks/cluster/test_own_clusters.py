"""Clusters that a user has started: `client=`, workers without preloads, and frames that stay with them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rowmill import svd

from tasks import ops
from tasks.cluster.transfer import gpu_setup
from tasks.core import lent_bytes
from tasks.dataset import Dataset
from tasks.errors import HostError, JobError
from tasks.workflow import Workflow
from tests.tasks.test_frames_in_place import ROWS, lazy, nodes, outputs, whole

pytestmark = pytest.mark.xdist_group("clusters")


@pytest.fixture(scope="module")
def plain() -> Iterator[Any]:
    """A cluster as a user starts it: two workers of one thread, which know nothing of rowmill."""
    from distributed import LocalCluster

    with (
        patch.dict(os.environ),  # in which Dask's Nanny leaves OMP_NUM_THREADS
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
    ):
        yield cluster


@pytest.fixture
def theirs(plain: Any) -> Iterator[Any]:
    from distributed import Client

    with Client(plain, set_as_default=False) as connected:
        yield connected


def sent_bytes(client: Any) -> int:
    return sum(client.run(lambda dask_worker: dask_worker.transfer_outgoing_bytes_total).values())


WIDE = 1 << 18  # rows of a partition of 4 MB


def wide(number: int) -> pd.DataFrame:
    return pd.DataFrame({"x": np.arange(WIDE) + float(number), "y": 0.5})


class Most:
    """A scheduler plugin that counts the partitions in the memory of the workers."""

    name = "rowmill-test-most"

    def __init__(self, prefix: str) -> None:
        self.prefix, self.here, self.most = prefix, set[Any](), 0

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if str(key).startswith(f"('{self.prefix}"):
            (self.here.add if finish == "memory" else self.here.discard)(key)
            self.most = max(self.most, len(self.here))


@pytest.mark.system
@pytest.mark.timeout(120)
def test_functions_that_pickle_refuses_go_from_one_worker_to_the_other(theirs: Any, engine: str) -> None:
    """The types of the function are learned, so that partial results, which have it, are merged between the workers."""

    def in_order(frame: Any) -> Any:
        return frame.sort_values("x")

    rows = 400_000  # so that a partial result is large enough to be copied by the workers
    falling = np.arange(rows, dtype=np.int32)[::-1]
    frame = pd.DataFrame({"x": falling, "y": falling, "name": np.arange(rows).astype(str)})
    learned = ["x"] >> ops.MapPartitions(in_order, ["x"])
    learned += ["y"] >> ops.MapPartitions(lambda frame: frame.sort_values("y"), ["y"])
    learned += ["name"] >> ops.Categorify()
    with theirs.as_current():
        dataset = Dataset(dd.from_pandas(frame, npartitions=4), engine=engine)
        assert len(Workflow(learned).fit_transform(dataset).to_ddf()) == rows


@pytest.mark.system
@pytest.mark.parametrize("where", ["threads", "workers"])
def test_arrays_of_a_result_and_of_a_data_set_made_of_it(theirs: Any, engine: str, where: str) -> None:
    frame = pd.DataFrame({"x": np.arange(300_000.0), "y": 1.0})
    with theirs.as_current() if where == "workers" else nullcontext():
        result = Dataset(dd.from_pandas(frame, npartitions=3), engine=engine).to_ddf()
        assert result.npartitions == 3
        assert float(result.values.mean().compute()) == 75_000.25
        assert result.to_dask_array(lengths=True).shape == (300_000, 2)
        again = Dataset(result, engine=engine)
        assert float(again.to_dask_array().mean().compute()) == 75_000.25
        assert len(svd(again).s) == 2


@pytest.mark.system
@pytest.mark.promise("Each pass has Dask compute the partitions where the workers are, works on them one at a time")
def test_partitions_stay_with_their_workers_one_at_a_time_and_nothing_is_collected(theirs: Any, plain: Any) -> None:
    """Without work stealing, by which Dask moves a task and its partition to a worker that has nothing to do."""
    from distributed.diagnostics.plugin import SchedulerPlugin

    class Plugin(Most, SchedulerPlugin):  # type: ignore[misc]
        pass

    most, scheduler = Plugin("wide"), plain.scheduler
    stealing = scheduler.extensions["stealing"]
    scheduler.add_plugin(most)
    plain.sync(stealing.stop)
    try:
        before = sent_bytes(theirs)
        dataset = Dataset(dd.from_map(wide, list(range(24))), engine="pandas")
        workflow = Workflow((["x"] >> ops.Normalize()) + ["y"]).fit(dataset, client=theirs)
        assert sent_bytes(theirs) - before < 1 << 20  # of 100 MB
    finally:
        plain.sync(stealing.start)
        scheduler.remove_plugin(most.name)
    assert dataset.num_rows == 24 * WIDE
    assert 1 <= most.most <= 6  # of 24: two threads, and what is next
    assert workflow.transform(pa.table({"x": [(WIDE - 1) / 2 + 11.5], "y": [0.0]}))["x"].to_pylist() == [0.0]


@pytest.mark.system
@pytest.mark.promise("`client=` takes precedence over the current client")
def test_a_client_takes_precedence_over_the_current_one(theirs: Any, tmp_path: Path) -> None:
    from distributed import Client, LocalCluster

    here = LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0")
    expected = outputs(Dataset(whole(2), engine="pandas"), tmp_path / "threads")
    pq.write_table(whole(2), tmp_path / "in.parquet", row_group_size=ROWS)
    with here as current, Client(current):
        sources = [Dataset(lazy("pandas", partitions=2), engine="pandas"), whole(2), tmp_path / "in.parquet"]
        for number, source in enumerate(sources):
            data = source if isinstance(source, Dataset) else Dataset(source, engine="pandas")
            assert outputs(data, tmp_path / f"{number}", client=theirs) == expected
        named = Dataset(tmp_path / "in.parquet", engine="pandas", client=theirs)
        assert outputs(named, tmp_path / "named") == expected
        assert outputs(named.persist(), tmp_path / "persisted") == expected
        assert outputs(sources[0].with_client(theirs).unique("n"), tmp_path / "unique") == expected
        assert outputs(named.shuffle_by_keys("s").unique("n"), tmp_path / "keys") != expected
        workflow = Workflow(nodes()).fit(named)
        assert workflow.transform(named).persist().head(1)["n"].tolist() == [0]
        assert len(workflow.transform(named).to_ddf().persist(scheduler=theirs).compute(scheduler=theirs)) == 2 * ROWS
        assert not current.scheduler.transition_log  # it had no task at all


@pytest.mark.system
@pytest.mark.promise("Any cluster will do, without preloads")
def test_workers_of_a_plain_cluster_read_results_out_of_each_others_memory(theirs: Any, tmp_path: Path) -> None:
    from tasks.cluster.transfer.host_memory import this_host

    if not this_host():
        pytest.skip("memory of other processes cannot be read here")
    data = Dataset(lazy("pandas", partitions=8), engine="pandas", client=theirs)
    outputs(data, tmp_path / "out")
    assert sum(on_host for _, on_host in theirs.run(lent_bytes.totals).values()) > 1 << 20


def test_a_frame_is_transformed_here_whatever_client_there_is(tmp_path: Path) -> None:
    workflow = Workflow(["x"] >> ops.Normalize()).fit(Dataset(whole(1), engine="pandas"))
    with pytest.raises(JobError, match="a client does not transform a frame"):
        workflow.transform(whole(1), client=object())


@pytest.mark.system
def test_a_worker_that_joins_later_is_ready_too(theirs: Any, plain: Any) -> None:
    Workflow(["x"] >> ops.Normalize()).fit(Dataset(lazy("pandas"), engine="pandas"), client=theirs)
    plain.scale(3)
    theirs.wait_for_workers(3, timeout=240)
    try:
        plugins = theirs.run(lambda dask_worker: "rowmill-pandas" in dask_worker.plugins)
        assert list(plugins.values()) == [True] * 3
    finally:
        plain.scale(2)


@pytest.mark.system
def test_what_this_process_holds_goes_to_the_workers_of_a_client(theirs: Any, tmp_path: Path) -> None:
    dataset = Dataset(whole(2), engine="pandas", partition_size="1MB").persist()
    assert outputs(dataset, tmp_path / "theirs", client=theirs) == outputs(dataset, tmp_path / "here")


@pytest.mark.parametrize("client", ["tcp://127.0.0.1:8786", object()])
def test_what_is_not_a_running_client_is_refused(client: Any) -> None:
    with pytest.raises(JobError, match="is not a running Dask client"):
        Workflow(["x"] >> ops.Normalize()).fit(whole(1), client=client)
    with pytest.raises(JobError, match="is not a running Dask client"):
        _ = Dataset(whole(1), engine="pandas", client=client).pool


class _Cluster:
    """A client whose workers answer so, and what was registered with them."""

    def __init__(self, error: Exception | None = None, slower: str = "") -> None:
        self.error, self.slower, self.plugins = error, slower, list[Any]()
        self.scheduler = type("Scheduler", (), {"address": "tcp://there:1"})

    def register_plugin(self, plugin: Any) -> None:
        if self.error:
            raise self.error
        self.plugins.append(plugin.name)

    def run(self, function: Any) -> dict[str, str]:
        return {"tcp://there:2": "", "tcp://there:3": self.slower}


def test_workers_are_made_ready_once_for_each_engine(caplog: pytest.LogCaptureFixture) -> None:
    client = _Cluster(slower="their GPUs have a pool of their own")
    for engine in ("pandas", "cudf", "pandas", "cudf"):
        gpu_setup.prepare_workers(client, engine)
    assert client.plugins == ["rowmill-pandas", "rowmill-cudf"]
    (line,) = caplog.messages
    assert "go from GPU to GPU through the host, which is slower" in line
    assert "as with TLS: a full shuffle of 158 M rows on two H100s takes 3.9 s instead of 1.4 s" in line
    assert "their GPUs have a pool of their own; start the workers as LocalCUDACluster() does without rmm" in line


def test_workers_without_rowmill_are_named() -> None:
    with pytest.raises(HostError, match="the workers lack a module") as caught:
        gpu_setup.prepare_workers(_Cluster(ModuleNotFoundError("No module named 'tasks'")), "pandas")
    assert caught.value.where == "the cluster at tcp://there:1"
    assert caught.value.why == "No module named 'tasks'"


# On GPUs


@pytest.fixture(scope="module")
def gpus() -> Iterator[Any]:
    """A client of LocalCUDACluster() as a user starts it; on a host with one GPU, two workers share it."""
    from dask_cuda import LocalCUDACluster
    from distributed import Client, LocalCluster

    from infra.gpus import visible

    plain = {"dashboard_address": "127.0.0.1:0"}
    several = len(visible()) > 1
    with patch.dict(os.environ):
        cluster = LocalCUDACluster(**plain) if several else LocalCluster(n_workers=2, threads_per_worker=1, **plain)
        with cluster, Client(cluster, set_as_default=False) as client:
            yield client


@pytest.mark.gpu
@pytest.mark.system
@pytest.mark.promise("Any cluster will do, without preloads")
def test_workers_of_a_plain_gpu_cluster_copy_out_of_each_others_gpu(
    gpus: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = outputs(Dataset(whole(8), engine="cudf"), tmp_path / "here")
    data = Dataset(lazy("cudf", partitions=8), engine="cudf", client=gpus)
    assert outputs(data, tmp_path / "out") == expected
    assert outputs(data.persist(), tmp_path / "persisted") == expected
    assert sum(on_gpu for on_gpu, _ in gpus.run(lent_bytes.totals).values()) > 1 << 20
    assert "slower" not in caplog.text


@pytest.mark.gpu
@pytest.mark.system
@pytest.mark.promise("On several GPUs this needs a `LocalCUDACluster()` and a client, and no options of Dask")
def test_group_by_and_merge_need_no_options_of_dask(gpus: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rowmill")
    with dask.config.set({"dataframe.shuffle.method": None}), gpus.as_current():
        rows = Dataset(whole(8), engine="cudf", partition_size="1MB").to_ddf()
        rows = rows.assign(k=rows["n"] % 1000)
        most = rows.groupby("k").agg({"x": "max"}, split_out=4).reset_index().rename(columns={"x": "most"})
        joined = rows.merge(most, on="k")[["k", "x", "most"]].compute().to_pandas()
        assert dask.config.get("dataframe.shuffle.method") == "tasks"
    assert len(joined) == 8 * ROWS
    assert (joined.groupby("k")["x"].max() == joined.groupby("k")["most"].first()).all()
    assert "dataframe.shuffle.method is set to tasks" in caplog.text


@pytest.mark.gpu
@pytest.mark.system
def test_a_pool_of_the_users_is_left_alone_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    from dask_cuda import LocalCUDACluster
    from distributed import Client

    own = LocalCUDACluster(n_workers=1, rmm_pool_size="1GB", dashboard_address="127.0.0.1:0")
    with own as cluster, Client(cluster, set_as_default=False) as client:
        dataset = Dataset(whole(1), engine="cudf", client=client)
        Workflow(nodes()).fit(dataset)
        Workflow(nodes()).fit(dataset)
    (line,) = [message for message in caplog.messages if "slower" in message]
    assert "managed by PoolMemoryResource of RMM" in line
