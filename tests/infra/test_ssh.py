"""The kind `ssh`: Debian's OpenSSH on the loopback, with keys of its own; and what is said where it cannot be had."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dask
import pytest
from distributed import Client
from pydantic import ValidationError

from infra.clusters import hosts
from infra.clusters.model import Cluster
from infra.clusters.remote import worker_options, worker_settings
from infra.clusters.resolve import resolve_cluster
from infra.workers.imports import pre_import
from tasks.cluster.dask_pool import workers_at
from tasks.errors import GiveUpError, JobError
from tests.clusters import IMPORTS, make_cluster
from tests.conftest import free_port
from tests.faults.jobs import BLOCK, make_data
from tests.infra.elsewhere import ROOT, commands_with, digests, eventually, make_certificates, run_job

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin")
LOADED = ",".join(pre_import(IMPORTS))
pytestmark = [pytest.mark.system, pytest.mark.xdist_group("clusters")]
needs_sshd = pytest.mark.skipif(SSHD is None, reason="needs sshd: apt-get install openssh-server")

CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
PidFile none
AuthorizedKeysFile {folder}/user.pub
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
SetEnv PYTHONPATH={root} PYTHONWARNINGS=ignore
LogLevel ERROR
"""


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The section `ssh` for this host, without `hosts`, while a server answers."""
    folder, port = tmp_path_factory.mktemp("ssh"), free_port()
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "config").write_text(CONFIG.format(port=port, folder=folder, root=ROOT))
    (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    server = subprocess.Popen([str(SSHD), "-D", "-e", "-f", str(folder / "config")], stderr=subprocess.DEVNULL)
    try:
        keys = {"key": str(folder / "user"), "known_hosts": str(folder / "known")}
        yield {"port": port, "python": sys.executable, **keys}
    finally:
        server.terminate()
        server.wait(20)


def folders() -> set[Path]:
    """Folders of certificates and spilled data on the host; what tests make has another name, and what a killed process
    has left may be among them."""
    return set(Path("/tmp").glob("rowmill-ssh-*"))


class Ran(NamedTuple):
    """A run over SSH on two workers: its state and output; while it ran, the address of its scheduler, its workers as
    the scheduler knew them, their variables, the folder on the host and the modes of what was in it, where Dask spills,
    and the command lines with keys and of Dask's processes; the folders that it left."""

    state: Any
    out: Path
    address: str
    workers: list[dict[str, Any]]
    variables: list[dict[str, str]]
    folder: Path
    modes: dict[str, str]
    scratch: list[Path]
    keys: list[str]
    processes: list[str]
    left: set[Path]


@pytest.fixture(scope="module")
def ran(sshd: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, prefect_server: Any) -> Ran:
    before, place, seen = folders(), tmp_path_factory.mktemp("run"), dict[str, Any]()

    def look(cluster: Any) -> None:
        (folder,) = folders() - before
        entries = [folder, *folder.glob("*.pem")]
        seen.update(address=cluster.scheduler_address, folder=folder)
        seen["modes"] = {path.name: oct(path.stat().st_mode & 0o777) for path in entries}
        seen["keys"], seen["processes"] = commands_with("PRIVATE KEY"), commands_with("distributed.cli.dask_spec")
        with Client(cluster, set_as_default=False) as client:
            seen["workers"] = [*workers_at(client).values()]
            seen["variables"] = [*client.run(lambda: dict(os.environ)).values()]
            spills = [*client.run(lambda dask_worker: dask_worker.local_directory).values()]
            spills.append(client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.local_directory))
        seen["scratch"] = [Path(spill) for spill in spills]

    hosts = {**sshd, "hosts": ["127.0.0.1", "127.0.0.1"]}
    section = {"kind": "ssh", "ssh": hosts, "threads_per_worker": 3, "memory_limit": "1GB",
               "resources": {"transform": {"GPU": 1}, "ingest": {"disk": 2}}}  # fmt: skip
    with dask.config.set({"logging.distributed": "critical"}):  # as a command does, and processes elsewhere inherit it
        state = run_job(make_data(place / "in", files=2), place / "out", section, look)
    return Ran(state, place / "out", left=folders() - before, **seen)


@pytest.mark.promise("scheduler on the first host, a worker on each (one per GPU)")
@needs_sshd
def test_a_run_on_workers_started_over_ssh(ran: Ran) -> None:
    assert ran.state.is_completed()
    assert sum(rows for rows, _ in digests(ran.out)) == 2 * BLOCK
    assert len(ran.processes) >= 3
    assert eventually(lambda: not commands_with("distributed.cli.dask_spec"))
    assert ran.left == set()


@pytest.mark.promise(
    "Workers over SSH and SLURM spill into a new folder of that user alone, which is removed when they end"
)
@needs_sshd
def test_workers_are_as_asked_and_their_certificates_are_theirs_alone(ran: Ran) -> None:
    assert ran.address.startswith("tls://")
    shapes = [(worker["nthreads"], worker["memory_limit"], worker["resources"]) for worker in ran.workers]
    assert shapes == [(3, 10**9, {"GPU": 1, "disk": 2})] * 2
    told = [(variables["OMP_NUM_THREADS"], variables["PYTHONSAFEPATH"]) for variables in ran.variables]
    assert told == [("3", "1")] * 2
    assert ran.modes == {ran.folder.name: "0o700", "ca.pem": "0o600", "cert.pem": "0o600", "key.pem": "0o600"}
    # Dask loads pickles from its scratch folder and puts it into sys.path: nobody else may write there.
    assert all(path.is_relative_to(ran.folder) for path in ran.scratch)
    assert ran.keys == []


@needs_sshd
@pytest.mark.parametrize(
    ("change", "what", "why"),
    [
        ({"key": "{other}"}, "a host cannot be reached by SSH", "Permission denied"),
        ({"known_hosts": "{empty}"}, "a host cannot be reached by SSH", "Host key is not trusted"),
        ({"port": 1}, "a host cannot be reached by SSH", "Connect call failed"),
        ({"python": "/no/python"}, "a host is not ready for workers", "/no/python: "),
        ({"gpus": 1}, "a host is not ready for workers", "missing: the package cudf, the package dask_cuda"),
    ],
)
def test_hosts_that_cannot_be_had(
    sshd: dict[str, Any], change: dict[str, Any], what: str, why: str, tmp_path: Path
) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    (tmp_path / "empty").write_text("")
    places = {"other": tmp_path / "other", "empty": tmp_path / "empty"}
    change = {k: v.format(**places) if isinstance(v, str) else v for k, v in change.items()}
    before = folders()
    with pytest.raises(GiveUpError) as caught:
        make_cluster(Cluster(kind="ssh", ssh={**sshd, "hosts": ["127.0.0.1"], **change}))
    assert caught.value.what == what
    assert caught.value.where.startswith("cluster.ssh: 127.0.0.1")
    assert why in caught.value.why
    assert folders() <= before


@pytest.mark.promise("scheduler on the first host, a worker on each (one per GPU)")
def test_gpus_of_other_hosts_are_used_by_dask_cuda() -> None:
    one = Cluster(kind="ssh", ssh={"hosts": ["a"], "gpus": 1}, rmm_pool_size="60GB")
    assert resolve_cluster(one) == ("ssh", "cudf")
    assert worker_options(one, 1, IMPORTS) == {
        "nthreads": 8, "dashboard": False, "dashboard_address": "127.0.0.1:0", "device_memory_limit": 0.45,
        "rmm_allocator_external_lib_list": ["cupy"], "pre_import": LOADED, "resources": "GPU=1",
    }  # fmt: skip
    hosts = {"hosts": ["a"], "gpus": 4}
    four = Cluster(kind="ssh", ssh=hosts, memory_limit="0.2", threads_per_worker=4, protocol="ucx", unencrypted=True)
    assert worker_options(four, 4, IMPORTS) == {
        "nthreads": 4, "memory_limit": 0.2, "dashboard": False, "dashboard_address": "127.0.0.1:0",
        "rmm_pool_size": 0.6, "device_memory_limit": 0.45,
        "rmm_allocator_external_lib_list": ["cupy"], "pre_import": LOADED, "resources": "GPU=1",
    }  # fmt: skip


def test_gpus_without_ucx_allocate_asynchronously() -> None:
    def pool(**asked: Any) -> Any:
        cluster = Cluster(kind="ssh", ssh={"hosts": ["a"], "gpus": 4}, **asked)
        return worker_settings(cluster, 4).get("rowmill.gpu-pool")

    assert pool() == {"limit": 0.92, "shared": True}
    assert pool(rmm_pool_size="60GB", cuda_ipc=False) == {"limit": 60 * 10**9, "shared": False}
    assert pool(protocol="ucx", unencrypted=True) is None
    assert "rowmill.gpu-pool" not in worker_settings(Cluster(), 0)


def test_workers_elsewhere_are_told_what_to_load() -> None:
    gpus = Cluster(kind="ssh", ssh={"hosts": ["a"], "gpus": 4})
    assert pre_import(IMPORTS) == [
        "cudf", "cupy", "infra.workers.gpu_preload", "tasks.cluster.transfer.gpu_worker", "infra.workers.preimport",
    ]  # fmt: skip
    assert worker_settings(gpus, 4, imports=IMPORTS)["rowmill.worker-imports"] == ["flows.preprocess"]
    cores = worker_settings(Cluster(), 0, imports=IMPORTS)
    assert "rowmill.worker-imports" not in cores
    assert cores["distributed.worker.preload"] == ["infra.workers.preload", "tasks.cluster.transfer.host_memory"]
    assert cores["distributed.scheduler.preload"] == ["infra.workers.pages"]
    assert cores["distributed.dashboard.link"] == ""


def test_a_missing_library_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, kind, section in (
        ("asyncssh", "ssh", {"hosts": ["a"]}),
        ("dask_jobqueue", "slurm", {"cores": 1, "memory": "1GB"}),
        ("dask_kubernetes.operator", "kubernetes", {"image": "i", "cores": 1, "memory": "1GB"}),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(GiveUpError, match=rf"is not installed\n  where: cluster.kind = {kind}") as caught:
            make_cluster(Cluster(**{"kind": kind, kind: section}))
        assert f"pip install 'rowmill[{kind}]'" in caught.value.do


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"kind": "ssh"}, "kind: ssh needs the section `ssh`"),
        ({"kind": "ssh", "ssh": {}}, "ssh.hosts\n  Field required"),
        ({"kind": "ssh", "ssh": {"hosts": []}}, "at least 1 item"),
        ({"kind": "ssh", "ssh": {"hosts": ["a"], "hots": 1}}, "ssh.hots\n  Extra inputs"),
        ({"kind": "cpu", "ssh": {"hosts": ["a"]}}, "`ssh` belongs to kind: ssh"),
        ({"kind": "ssh", "ssh": {"hosts": ["a"]}, "workers": 2}, "leave out `workers`"),
        ({"kind": "ssh", "ssh": {"hosts": ["a"]}, "adapt": {"maximum": 2}}, "kind: ssh does not scale"),
        ({"kind": "cpu", "resources": {"transfrom": {"GPU": 1}}}, "did you mean 'transform'"),
        ({"kind": "cpu", "resources": {"transform": {"GPU": 0}}}, "amounts are above 0"),
    ],
)
def test_a_wrong_section_is_refused(section: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Cluster(**section)
    assert said in str(caught.value)


def test_arguments_of_the_connection() -> None:
    login = {"user": "u", "port": 22, "key": "/k", "known_hosts": "/h"}
    asked = Cluster(kind="ssh", ssh={"hosts": ["a"], **login})
    assert asked.class_arguments["connect_options"] == {
        "username": "u", "port": 22, "client_keys": ["/k"], "known_hosts": "/h", "connect_timeout": 20,
    }  # fmt: skip
    bare = Cluster(kind="ssh", ssh={"hosts": ["a"]})
    assert bare.class_arguments["connect_options"] == {"connect_timeout": 20}


@pytest.mark.parametrize(
    ("named", "called"),
    [(None, f"{sys.executable} -P"), ("/env/python", "/env/python -P"), (["/a", "/b -P"], ["/a -P", "/b -P"])],
)
def test_the_python_of_a_host_does_not_import_from_its_current_folder(named: Any, called: Any) -> None:
    """By class as by kind: there may be another tasks/ in it."""
    asked = {"hosts": ["a", "b"], **({"remote_python": named} if named else {})}
    section = Cluster(cluster_class="distributed.SSHCluster", cluster_kwargs=asked)
    ready = hosts.Hosts({}, {}, "/tmp/folder", "")
    assert hosts.host_arguments(section, asked, ready, None)["remote_python"] == called
    kind = Cluster(kind="ssh", ssh={"hosts": ["a"], **({"python": named} if isinstance(named, str) else {})})
    assert hosts.host_arguments(kind, kind.class_arguments, ready, None)["remote_python"] == (
        called if isinstance(called, str) else f"{sys.executable} -P"
    )


@pytest.mark.promise("gets temporary certificates, as does SSHCluster")
@needs_sshd
def test_the_class_of_dask_for_ssh_gets_certificates_and_a_folder_of_its_own(sshd: dict[str, Any]) -> None:
    login = {"port": sshd["port"], "known_hosts": sshd["known_hosts"], "client_keys": [sshd["key"]]}
    scheduler = {"port": 0, "dashboard_address": "127.0.0.1:0"}
    asked = {"hosts": ["127.0.0.1"] * 2, "remote_python": sys.executable, "connect_options": login,
             "scheduler_options": scheduler, "worker_options": {"nthreads": 1}}  # fmt: skip
    before = folders()
    section = Cluster(cluster_class="distributed.SSHCluster", cluster_kwargs=asked)
    with make_cluster(section) as cluster, Client(cluster, set_as_default=False) as client:
        (folder,) = folders() - before
        assert cluster.scheduler_address.startswith("tls://")
        assert oct(folder.stat().st_mode & 0o777) == "0o700"
        assert {path.name for path in folder.glob("*.pem")} == {"ca.pem", "cert.pem", "key.pem"}
        (spill,) = client.run(lambda dask_worker: dask_worker.local_directory).values()
        assert Path(spill).is_relative_to(folder)
    assert folders() <= before
    unready = {**asked, "remote_python": "/no/python"}
    with pytest.raises(GiveUpError, match="a host is not ready for workers") as caught:
        make_cluster(section.model_copy(update={"cluster_kwargs": unready}))
    assert caught.value.where.startswith("cluster.cluster_class = distributed.SSHCluster: 127.0.0.1, /no/python")


@needs_sshd
def test_a_run_on_the_class_of_dask_for_ssh(sshd: dict[str, Any], tmp_path: Path, prefect_server: Any) -> None:
    """It passes on Dask's settings, so that certificates which are files reach its scheduler and its workers."""
    login = {"port": sshd["port"], "known_hosts": sshd["known_hosts"], "client_keys": [sshd["key"]]}
    scheduler = {"protocol": "tls://", "port": 0, "dashboard_address": "127.0.0.1:0"}
    worker = {"nthreads": 1, "local_directory": str(tmp_path)}
    asked = {"hosts": ["127.0.0.1"] * 2, "remote_python": sys.executable, "connect_options": login,
             "scheduler_options": scheduler, "worker_options": worker}  # fmt: skip
    section = {"cluster_class": "distributed.SSHCluster", "cluster_kwargs": asked, "start_timeout": 40}
    tls = make_certificates(tmp_path / "tls")
    assert run_job(make_data(tmp_path / "in", files=2), tmp_path / "there", {**section, "tls": tls}).is_completed()
    assert sum(rows for rows, _ in digests(tmp_path / "there")) == 2 * BLOCK
    assert eventually(lambda: not commands_with(str(tmp_path)))
    scheduler["protocol"], asked["worker_class"] = "tcp://", "distributed.Worker"
    with pytest.raises(JobError, match="the scheduler is not encrypted"):
        make_cluster(Cluster(**section))
    assert eventually(lambda: not commands_with(str(tmp_path)))
