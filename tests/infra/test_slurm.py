"""The kind `slurm`: Debian's SLURM on this host as its only node; the jobs it would submit; and what it refuses."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dask.config
import pytest
from pydantic import ValidationError

from infra.clusters import by_class
from infra.clusters.model import Cluster
from infra.clusters.remote import RunningCluster
from tasks.errors import GiveUpError, JobError
from tasks.manifest import Manifest
from tests.clusters import IMPORTS, make_cluster
from tests.conftest import free_port
from tests.faults.jobs import BLOCK, make_data
from tests.infra.elsewhere import ROOT, digests, eventually, run_job

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"
pytestmark = [pytest.mark.system, pytest.mark.xdist_group("clusters")]
needs_slurm = pytest.mark.skipif(
    os.getuid() != 0 or not all(shutil.which(program, path=PATH) for program in PROGRAMS),
    reason="needs root, SLURM and munge: apt-get install slurm-wlm munge",
)
needs_jobqueue = pytest.mark.skipif(
    importlib.util.find_spec("dask_jobqueue") is None, reason="needs dask-jobqueue: pip install '.[slurm]'"
)

CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
SlurmctldPort={port}
SlurmdPort={node_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
KillWait=2
ReturnToService=2
EnforcePartLimits=ALL
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=short Nodes={host} Default=YES MaxTime=08:00:00 State=UP
"""


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A running SLURM of one node with two cores; SLURM_CONF of this process leads its commands there."""
    folder, host = tmp_path_factory.mktemp("slurm"), os.uname().nodename.partition(".")[0]
    for place in (folder, folder.parent, folder.parent.parent):
        place.chmod(0o755)  # munged wants every folder above its socket readable
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    (folder / "slurm.conf").write_text(CONFIG.format(folder=folder, host=host, port=free_port(), node_port=free_port()))
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    socket = folder / "munge.sock"
    munged = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={socket}",
              *(f"--{name}-file={folder}/munge.{name}" for name in ("seed", "pid", "log"))]  # fmt: skip
    environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": PATH}
    with pytest.MonkeyPatch.context() as patch, (folder / "out").open("w") as out:
        patch.setenv("SLURM_CONF", environment["SLURM_CONF"])
        patch.setenv("PATH", PATH)
        running = []
        try:
            for command in (munged, ["slurmctld", "-D"], ["slurmd", "-D"]):
                running.append(subprocess.Popen(command, env=environment, stdout=out, stderr=out))
                eventually(socket.exists)
            states = ["sinfo", "--noheader", "--format", "%T"]
            idle = eventually(lambda: "idle" in subprocess.run(states, capture_output=True, text=True).stdout, 40)
            assert idle, (folder / "slurmctld.log").read_text()[-2000:]
            yield folder
        finally:
            for process in reversed(running):
                process.terminate()
                process.wait(30)


def jobs() -> list[str]:
    return subprocess.run(["squeue", "--noheader"], capture_output=True, text=True, check=True).stdout.splitlines()


class Ran(NamedTuple):
    """A run on one or two jobs, as the work asks: its state, its job and output, the errors that jobs wrote, and the
    folders that they shared, or spilled into."""

    state: Any
    data: Path
    section: dict[str, Any]
    out: Path
    logs: Path
    shared: Path
    scratch: Path


@pytest.fixture(scope="module")
def ran(queue: Path, tmp_path_factory: pytest.TempPathFactory, prefect_server: Any) -> Ran:
    folder = tmp_path_factory.mktemp("run")
    data = make_data(folder / "in", files=2)
    logs, shared, scratch = (folder / name for name in ("logs", "shared", "scratch"))
    shared.mkdir()
    scratch.mkdir(mode=0o777)
    asked = {"cores": 1, "memory": "1500MB", "queue": "short", "walltime": "00:30:00", "python": sys.executable,
             "setup": [f"export PYTHONPATH={ROOT}"], "shared_directory": str(shared),
             "log_directory": str(logs)}  # fmt: skip
    section = {
        "kind": "slurm",
        "adapt": {"minimum": 1, "maximum": 2},
        "local_directory": str(scratch),
        "slurm": asked,
        "resources": {"transform": {"GPU": 1}},
    }
    return Ran(run_job(data, folder / "out", section), data, section, folder / "out", logs, shared, scratch)


@pytest.mark.promise("scheduler here, a job for each worker (or for its GPUs)")
@pytest.mark.promise(
    "Workers over SSH and SLURM spill into a new folder of that user alone, which is removed when they end"
)
@needs_slurm
def test_a_run_on_workers_from_the_queue(ran: Ran) -> None:
    assert ran.state.is_completed(), [log.read_text()[-2000:] for log in ran.logs.iterdir()]
    assert sum(rows for rows, _ in digests(ran.out)) == 2 * BLOCK
    assert len(list(ran.logs.glob("*.err"))) in (1, 2)
    assert eventually(lambda: not jobs())
    assert eventually(lambda: not list(ran.shared.iterdir()))
    assert eventually(lambda: not list(ran.scratch.iterdir()))  # each job removes its own folder


@pytest.mark.promise("number of workers, for the kinds cpu and slurm")
@needs_slurm
def test_where_the_number_of_jobs_follows_the_work_nothing_is_exchanged_in_memory(ran: Ran, tmp_path: Path) -> None:
    assert Manifest.load(ran.out).data["exchange"] == "disk"
    with pytest.raises(JobError, match="the exchange in memory needs workers that stay"):
        run_job(ran.data, tmp_path / "out", ran.section, run={"exchange": "memory"}).result()


@needs_slurm
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"queue": "night"}, "invalid partition specified: night; Invalid partition name specified"),
        ({"cores": 64}, "More processors requested than permitted"),
        ({"walltime": "1-00:00:00"}, "Requested time limit is invalid"),
    ],
)
def test_a_job_that_the_queue_refuses(queue: Path, change: dict[str, Any], why: str, tmp_path: Path) -> None:
    asked = {"cores": 1, "memory": "1GB", "shared_directory": str(tmp_path), **change}
    with pytest.raises(GiveUpError, match="SLURM refuses the job") as caught:
        make_cluster(Cluster(kind="slurm", slurm=asked))
    assert why in caught.value.why
    assert jobs() == []


@pytest.mark.promise("that the queue would take the job")
@needs_slurm
@pytest.mark.parametrize("more", [{"workers": 1}, {"adapt": {"maximum": 2}}, {}])
def test_the_queue_is_asked_first_for_a_class_too(queue: Path, more: dict[str, Any], tmp_path: Path) -> None:
    asked = {"cores": 1, "memory": "1GB", "queue": "night", "shared_temp_directory": str(tmp_path)}
    asked |= {} if more else {"n_workers": 1}
    section = {"cluster_class": "dask_jobqueue.SLURMCluster", "cluster_kwargs": asked, **more}
    with pytest.raises(GiveUpError, match="SLURM refuses the job") as caught:
        make_cluster(Cluster.model_validate(section))
    assert caught.value.where == "cluster.cluster_class = dask_jobqueue.SLURMCluster"
    assert "invalid partition specified: night" in caught.value.why
    assert jobs() == []


@pytest.mark.promise("seconds that workers may take to come")
@pytest.mark.promise("`no worker has come within`")
@needs_slurm
def test_a_job_that_does_not_start_in_time(queue: Path, tmp_path: Path) -> None:
    asked = {"cores": 1, "memory": "1GB", "shared_directory": str(tmp_path), "directives": ["--begin=now+1hour"]}
    with pytest.raises(GiveUpError, match="no worker has come within 2 s") as caught:
        make_cluster(Cluster(kind="slurm", workers=2, slurm=asked, start_timeout=2))
    assert caught.value.why.count("PENDING (BeginTime)") == 2
    assert eventually(lambda: not jobs())


def whole_script(cluster: Cluster) -> tuple[list[str], str]:
    """The lines of the job that would be submitted, and the address of its scheduler."""
    opened = RunningCluster()
    try:
        made = by_class.construct(opened, cluster, by_class.check_class(cluster), IMPORTS)
        return made.job_script().splitlines(), made.scheduler_address
    finally:
        opened.close()


def script(**asked: Any) -> list[str]:
    """The job that would be submitted, its inherited settings left out."""
    lines, address = whole_script(Cluster(kind="slurm", **asked))
    return [line.replace(address, "ADDRESS") for line in lines if line and "DASK_INTERNAL" not in line]


@needs_jobqueue
def test_the_job_of_a_worker_on_the_cores(tmp_path: Path) -> None:
    asked = {"cores": 16, "memory": "64GB", "queue": "batch", "account": "shop", "walltime": "02:00:00",
             "python": "/env/bin/python", "setup": ["module load python"], "directives": ["--exclusive"],
             "shared_directory": str(tmp_path)}  # fmt: skip
    assert script(slurm=asked, interface="lo", unencrypted=True, local_directory="/scratch") == [
        "#!/usr/bin/env bash",
        "#SBATCH -J rowmill",
        "#SBATCH -p batch",
        "#SBATCH -A shop",
        "#SBATCH -n 1",
        "#SBATCH --cpus-per-task=16",
        "#SBATCH --mem=60G",
        "#SBATCH -t 02:00:00",
        "#SBATCH --output=/dev/null",
        "#SBATCH --exclusive",
        "module load python",
        "rowmill_scratch=$(mkdir -p /scratch && mktemp -d /scratch/rowmill-XXXXXXXX) || exit 1",
        "trap 'rm -rf \"$rowmill_scratch\"' EXIT",
        "/env/bin/python -P -m distributed.cli.dask_worker ADDRESS --name dummy-name --nthreads 16"
        " --memory-limit 59.60GiB --nanny --death-timeout 60"
        ' --no-dashboard --dashboard-address 127.0.0.1:0 --local-directory "$rowmill_scratch" --interface lo'
        " --protocol tcp://",
    ]


@pytest.mark.promise("scheduler here, a job for each worker (or for its GPUs)")
@needs_jobqueue
def test_the_job_of_workers_on_gpus(tmp_path: Path) -> None:
    asked = {"cores": 32, "memory": "512GiB", "gpus": 4, "python": "python", "shared_directory": str(tmp_path),
             "log_directory": str(tmp_path / "logs")}  # fmt: skip
    lines = script(slurm=asked, interface="lo", rmm_pool_size="0.7")
    assert [line for line in lines[:-1] if "gres" in line or "cpus" in line or "--mem" in line] == [
        "#SBATCH --cpus-per-task=32", "#SBATCH --mem=512G", "#SBATCH --gres=gpu:4",
    ]  # fmt: skip
    command, tls = lines[-1].split(" --tls-ca-file ")
    assert command == (
        "python -P -m dask cuda worker ADDRESS --name dummy-name --nthreads 8 --memory-limit 128.00GiB"
        " --death-timeout 60 --nthreads 8 --no-dashboard --dashboard-address 127.0.0.1:0 --device-memory-limit 0.45"
        " --set-rmm-allocator-for-libs cupy --pre-import"
        " cudf,cupy,infra.workers.gpu_preload,tasks.cluster.transfer.gpu_worker,infra.workers.preimport"
        ' --resources GPU=1 --local-directory "$rowmill_scratch"'
        " --interface lo --protocol tls://"
    )
    assert f"--tls-key {tmp_path}/" in tls
    assert "PRIVATE KEY" not in "".join(lines)


@needs_jobqueue
def test_what_a_job_inherits_of_dask(tmp_path: Path) -> None:
    asked = {"cores": 2, "memory": "4GB", "shared_directory": str(tmp_path)}
    lines, _ = whole_script(Cluster(kind="slurm", slurm=asked, interface="lo"))
    (line,) = [line for line in lines if "DASK_INTERNAL" in line]
    inherited = dask.config.deserialize(line.removeprefix("export DASK_INTERNAL_INHERIT_CONFIG="))
    assert inherited["distributed"]["worker"]["preload"] == [
        "infra.workers.preload",
        "tasks.cluster.transfer.host_memory",
    ]
    assert inherited["distributed"]["scheduler"]["allowed-failures"] == 0
    assert "tls" not in inherited["distributed"]["comm"]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({}, "slurm.cores\n  Field required"),
        ({"cores": 1, "memory": "0.5"}, "'0.5' is not an amount of memory"),
        ({"cores": 1, "memory": "1GB", "walltime": 14400}, 'write "04:00:00" in quotes'),
        ({"cores": 1, "memory": "1GB", "setup": ["a\nb"]}, "holds a line break"),
        ({"cores": 1, "memory": "1GB", "partition": "x"}, "Extra inputs"),
    ],
)
def test_a_wrong_section_is_refused(section: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Cluster(kind="slurm", slurm=section)
    assert said in str(caught.value)


@needs_jobqueue
def test_where_slurm_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GiveUpError, match="sbatch is not here"):
        make_cluster(Cluster(kind="slurm", slurm={"cores": 1, "memory": "1GB"}))
    section = {"cores": 1, "memory": "1GB", "shared_directory": str(tmp_path / "none")}
    with pytest.raises(JobError, match="temporary certificates cannot be written"):
        whole_script(Cluster(kind="slurm", slurm=section))
