"""A scheduler and workers of somebody else, over TLS: a run uses them, and leaves them as they were."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import psutil
import pyarrow as pa
import pyarrow.csv as csv
import pytest
from distributed import Client, get_task_stream
from distributed.utils import get_ip
from pydantic import ValidationError

from infra.clusters import resolve
from infra.clusters.encryption import security_of
from infra.clusters.model import Cluster
from tasks.cluster.dask_pool import workers_at
from tasks.errors import GiveUpError, JobError
from tests.clusters import make_cluster
from tests.conftest import free_port
from tests.faults.jobs import BLOCK, make_data
from tests.infra.elsewhere import DASK, digests, make_certificates, processes, run_job, tls_arguments

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("clusters")]
WORKER = ["--nthreads", "1", "--no-nanny"]


class Elsewhere(NamedTuple):
    """The address, the section `tls` and the folder of a cluster that others started."""

    address: str
    tls: dict[str, str]
    folder: Path

    def section(self, **more: Any) -> dict[str, Any]:
        return {"kind": "address", "address": self.address, "tls": self.tls, **more}

    def client(self) -> Client:
        return Client(self.address, security=security_of(Cluster(**self.section())), set_as_default=False)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    """A scheduler on this host's own address, beyond the loopback, and two workers, of which one offers a GPU."""
    folder, host, port = tmp_path_factory.mktemp("elsewhere"), get_ip(), free_port()
    tls = make_certificates(folder / "tls")
    found = Elsewhere(f"tls://{host}:{port}", tls, folder)
    common = [*tls_arguments(tls), "--host", host, "--dashboard-address", "127.0.0.1:0"]
    worker = [*DASK, "worker", found.address, *common, *WORKER, "--local-directory", str(folder)]
    scheduler = [*DASK, "scheduler", *common, "--port", str(port)]
    with processes([scheduler, [*worker, "--resources", "GPU=1"], worker], folder):
        with found.client() as client:
            client.wait_for_workers(2, timeout=240)
        yield found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "in", files=2)


def facts(client: Client) -> dict[str, Any]:
    """What must be the same before and after a run: the workers, and nothing that is kept for somebody."""
    return {"pids": client.run(os.getpid), "published": client.list_datasets(), "kept": client.has_what()}


class Ran(NamedTuple):
    """A run there: its state and output, what was there before and after it, the worker that offers a GPU, and those
    that cut partitions."""

    state: Any
    out: Path
    before: dict[str, Any]
    after: dict[str, Any]
    on_gpu: str
    cutters: set[str]


@pytest.fixture(scope="module")
def ran(elsewhere: Elsewhere, data: Path, tmp_path_factory: pytest.TempPathFactory, prefect_server: Any) -> Ran:
    out = tmp_path_factory.mktemp("ran") / "out"
    with elsewhere.client() as client:
        workers, before = workers_at(client), facts(client)
        (on_gpu,) = [address for address, spec in workers.items() if spec["resources"] == {"GPU": 1}]
        with get_task_stream(client) as tasks:
            state = run_job(data, out, elsewhere.section(resources={"transform": {"GPU": 1}}))
        cutters = {task["worker"] for task in tasks.data if "cut_" in str(task["key"])}
        return Ran(state, out, before, facts(client), on_gpu, cutters)


@pytest.mark.promise("`dask scheduler` and `dask worker`", "infra/README.md#on-a-cluster")
def test_a_run_over_tls_leaves_the_cluster_as_it_was(ran: Ran, data: Path, tmp_path: Path) -> None:
    assert ran.state.is_completed()
    assert ran.after == ran.before
    assert run_job(data, tmp_path / "here", {"kind": "auto"}).is_completed()  # of the same engine
    assert digests(ran.out) == digests(tmp_path / "here")
    assert sum(rows for rows, _ in digests(ran.out)) == 2 * BLOCK


@pytest.mark.promise("what a stage takes of a worker's resources")
@pytest.mark.promise("runs the work of a stage on workers that offer it")
def test_a_stage_runs_where_its_resource_is(ran: Ran) -> None:
    assert ran.cutters == {ran.on_gpu}


@pytest.mark.promise("A client that shows no certificate of that authority is refused")
def test_who_has_no_certificate_of_the_authority_is_refused(elsewhere: Elsewhere, tmp_path: Path) -> None:
    strangers = make_certificates(tmp_path / "strangers")
    for section in (
        {"kind": "address", "address": elsewhere.address, "tls": strangers},
        {"kind": "address", "address": elsewhere.address.replace("tls://", "tcp://"), "unencrypted": True},
        {"kind": "address", "address": elsewhere.address},
    ):
        with patch.object(resolve, "LOOK_SECONDS", 2), pytest.raises(GiveUpError, match="no Dask scheduler") as caught:
            make_cluster(Cluster(**section))
        assert "certificates" in caught.value.do
    with make_cluster(Cluster(**elsewhere.section())) as cluster, Client(cluster, set_as_default=False) as client:
        assert client.submit(sum, [1, 2]).result(timeout=120) == 3


@pytest.mark.promise("Where only some do, columns that others hold decoded are read again")
def test_columns_that_stay_decoded_where_the_resource_is_not_are_read_again(
    elsewhere: Elsewhere, tmp_path: Path, prefect_server: Any
) -> None:
    """Dask would forget the resource together with the place, and the run would wait for ever."""
    (tmp_path / "in").mkdir()
    for number in range(4):
        table = pa.table(
            {"row": range(20_000), "x": [0.5] * 20_000, "name": ["a", "b"] * 10_000, "label": [1] * 20_000}
        )
        csv.write_csv(table, tmp_path / "in" / f"{number}.csv")
    section = elsewhere.section(resources={"transform": {"GPU": 1}, "shuffle_write": {"GPU": 1}})
    state = run_job(tmp_path / "in", tmp_path / "out", section, source={"partition_size": "1MB"},
                    run={"stalled_after": 60, "exchange": "memory"})  # fmt: skip
    assert state.is_completed()
    assert sum(rows for rows, _ in digests(tmp_path / "out")) == 80_000


@pytest.mark.promise("If none does, that is an error, not a wait", "infra/README.md#resources")
def test_a_resource_that_nobody_offers_is_an_error_not_a_wait(
    elsewhere: Elsewhere, data: Path, tmp_path: Path, prefect_server: Any
) -> None:
    section = elsewhere.section(resources={"statistics": {"GPU": 2}})
    with pytest.raises(GiveUpError) as caught:
        run_job(data, tmp_path / "out", section).result()
    assert str(caught.value).splitlines() == [
        "no worker offers what statistics takes: GPU=2",
        "  where: cluster.resources.statistics",
        "  why: the workers offer GPU=1",
        "  do: start workers with --resources 'GPU=2', or change cluster.resources",
    ]
    assert not (tmp_path / "out").exists()


@pytest.mark.promise("an error names the host and the path", "infra/README.md#shared-paths")
@pytest.mark.promise("`a worker does not share the folder of the run`")
@pytest.mark.promise("`does not see the same source`")
@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare, for own mounts")
def test_folders_that_a_worker_does_not_share_are_named(
    elsewhere: Elsewhere, data: Path, tmp_path: Path, prefect_server: Any
) -> None:
    (tmp_path / "out").mkdir()
    mounts = f'mount -t tmpfs none {data} && mount -t tmpfs none {tmp_path}/out && exec "$@"'
    host = elsewhere.address.removeprefix("tls://").partition(":")[0]
    worker = [*DASK, "worker", elsewhere.address, *tls_arguments(elsewhere.tls), "--host", host, *WORKER,
              "--dashboard-address", "127.0.0.1:0", "--local-directory", str(elsewhere.folder)]  # fmt: skip
    with elsewhere.client() as client, processes([["unshare", "-m", "sh", "-c", mounts, "sh", *worker]], tmp_path):
        client.wait_for_workers(3, timeout=240)
        with pytest.raises(JobError) as output:
            run_job(data, tmp_path / "out" / "new", elsewhere.section()).result()
        with pytest.raises(JobError) as source:
            run_job(data, tmp_path / "elsewhere", elsewhere.section()).result()
    assert output.value.what == "a worker does not share the folder of the run"
    assert output.value.where.endswith(f": {tmp_path}/out/.new.rowmill")
    assert f"({elsewhere.address.rpartition(':')[0]}:" in output.value.where
    assert output.value.why == "a file that the flow wrote there is not seen by the worker"
    assert "mount at the same path" in output.value.do
    assert (source.value.what, source.value.why) == ("a worker does not see the same source", "nothing is there")
    assert source.value.where.endswith(f": {data}")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == []


@pytest.mark.promise("`unencrypted: true` allows connections without TLS")
@pytest.mark.promise("the protocol (tls; ucx and tcp only with `unencrypted: true`)")
@pytest.mark.promise("`unencrypted: true` accepts that, which `protocol: ucx` and `tcp` need")
@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"kind": "address", "address": "tcp://10.0.0.5:8786"}, "tcp://10.0.0.5:8786 is not encrypted: give a tls"),
        ({"kind": "address", "address": "localhost:8786"},
         "address localhost:8786 has no scheme: write tls://localhost:8786, or tcp:// if it has no TLS"),
        ({"kind": "cpu", "interface": "eth7", "protocol": "tcp"}, "whoever reaches its ports could run code as the"),
        ({"kind": "ssh", "ssh": {"hosts": ["a"]}, "protocol": "ucx"}, "accept that with unencrypted: true"),
        ({"kind": "cuda", "protocol": "ucx"}, "every user of this host could run code as the user"),
        ({"kind": "cpu", "protocol": "tcp"}, "every user of this host could run code as the user of the run"),
        ({"unencrypted": True, "tls": {"ca": "a", "cert": "b", "key": "c"}}, "contradict each other"),
    ],
)  # fmt: skip
def test_nothing_is_unencrypted_unless_a_setting_says_so(section: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Cluster(**section)
    assert said in str(caught.value)
    if "tls" not in section:
        assert Cluster(**section, unencrypted=True).unencrypted


def test_schedulers_of_others_on_the_loopback_need_no_tls() -> None:
    for address in ("tcp://127.0.0.1:8786", "tcp://localhost:8786", "tcp://[::1]:8786"):
        assert security_of(Cluster(kind="address", address=address)) is None


def test_certificates_that_are_not_there_or_none(tmp_path: Path) -> None:
    tls = make_certificates(tmp_path / "tls")
    with pytest.raises(JobError, match=r"the certificate file is not there\n  where: cluster.tls.key = /no/key.pem"):
        security_of(Cluster(tls={**tls, "key": "/no/key.pem"}))
    Path(tls["cert"]).write_text("no certificate")
    with pytest.raises(JobError, match="the certificates cannot be used"):
        security_of(Cluster(tls=tls))
    with pytest.raises(ValidationError, match="ca\n  Field required"):
        Cluster(tls={"cert": "a", "key": "b"})


@pytest.mark.promise("Scheduler, workers and their nannies speak TLS, on this host as between hosts")
def test_workers_of_this_host_that_listen_beyond_it_are_encrypted() -> None:
    found = psutil.net_if_addrs().items()
    names = [name for name, places in found if name != "lo" and any(p.address == get_ip() for p in places)]
    if not names:
        pytest.skip("this host has the loopback only")
    with make_cluster(Cluster(kind="cpu", interface=names[0], threads_per_worker=1)) as cluster:
        assert cluster.scheduler_address.startswith("tls://")
        with Client(cluster, set_as_default=False) as client:
            assert client.submit(sum, [1, 2]).result(timeout=120) == 3
        plain = cluster.scheduler_address.replace("tls://", "tcp://")
        with patch.object(resolve, "LOOK_SECONDS", 2), pytest.raises(GiveUpError, match="no Dask scheduler answers"):
            make_cluster(Cluster(kind="address", address=plain, unencrypted=True))
    with pytest.raises(JobError, match="there is no network interface eth77"):
        make_cluster(Cluster(kind="cpu", interface="eth77"))
