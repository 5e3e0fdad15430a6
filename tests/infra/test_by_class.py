"""The kind `class`: whole jobs through queues that a script plays, job scripts, what is refused, and what is closed."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask.config
import psutil
import pytest
from distributed import Client, SpecCluster
from pydantic import ValidationError

from flows.job.job import load_job
from infra.clusters import by_class
from infra.clusters.expected import estimate_workers
from infra.clusters.model import MANAGERS, Cluster, Engine
from infra.clusters.remote import RunningCluster
from infra.clusters.resolve import resolve_cluster
from infra.workers.imports import pre_import
from infra.workers.plugin import RetireByName, SetUp, _addresses
from tasks.cluster.dask_pool import DaskPool
from tasks.dataset import Dataset
from tasks.errors import GiveUpError, JobError
from tasks.manifest import Manifest
from tasks.stages.plan_splits import plan_split
from tests.clusters import IMPORTS, ON_LOOPBACK, ThreadWorker, make_cluster, start_threads
from tests.conftest import python_path
from tests.faults.jobs import BLOCK, digests, make_data, make_job
from tests.infra.elsewhere import DASK, commands_with, environment, eventually, processes, run_job
from tests.infra.own_cluster import OwnCluster
from tests.stages import run_stages

dask_jobqueue = pytest.importorskip("dask_jobqueue", reason="needs dask-jobqueue: pip install '.[test]'")
pytestmark = [pytest.mark.system, pytest.mark.xdist_group("clusters")]

SUBMIT = """#!/bin/bash
# A queue that runs each job at once: the script of the first argument, or of stdin, in a session of its own and in a
# folder of the queue. Where the tests run, packages called as rowmill's would be imported in their place.
job=$(mktemp {folder}/job-XXXXXX.sh)
cat "${{1:-/dev/stdin}}" > "$job"
cd {folder}
setsid bash "$job" > "$job.out" 2>&1 &
echo "Job <$!> is submitted"
"""
CANCEL = """#!/bin/bash
kill -- "-$1"
"""
COMMANDS = {"PBSCluster": ("qsub", "qdel"), "LSFCluster": ("bsub", "bkill")}


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the jobs of a queue whose commands are the first in PATH."""
    folder, place = tmp_path / "queue", tmp_path / "bin"
    folder.mkdir()
    place.mkdir()
    for submit, cancel in COMMANDS.values():
        for name, text in ((submit, SUBMIT.format(folder=folder)), (cancel, CANCEL)):
            (place / name).write_text(text)
            (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    return folder


def section(name: str, folder: Path, **more: Any) -> dict[str, Any]:
    """A cluster of dask-jobqueue with workers of one thread, whose jobs find this rowmill."""
    arguments = {"cores": 1, "memory": "1500MB", "python": sys.executable, "shared_temp_directory": str(folder),
                 "job_script_prologue": [f"export PYTHONPATH={python_path()}"], "local_directory": str(folder),
                 "interface": "lo", "nanny": False}  # fmt: skip
    return {"kind": "class", "cluster_class": f"dask_jobqueue.{name}", "cluster_kwargs": arguments, **more}


@pytest.mark.parametrize(
    ("name", "more"), [("PBSCluster", {"workers": 2}), ("LSFCluster", {"adapt_kwargs": {"minimum": 1, "maximum": 2}})]
)
def test_a_run_on_workers_from_a_queue(
    name: str, more: dict[str, Any], queue: Path, tmp_path: Path, prefect_server: Any
) -> None:
    data = make_data(tmp_path / "in", files=2)
    state = run_job(data, tmp_path / "out", section(name, tmp_path, **more))
    assert state.is_completed(), [log.read_text()[-2000:] for log in queue.glob("*.out")]
    manifest = Manifest.load(tmp_path / "out")
    assert sum(part["rows"] for part in manifest.parts) == 2 * BLOCK
    assert manifest.data["exchange"] == ("disk" if "adapt_kwargs" in more else "memory")
    scripts = [script.read_text() for script in queue.glob("*.sh")]
    assert len(scripts) == 2 if "workers" in more else scripts
    assert all("--tls-key" in script and "PRIVATE KEY" not in script for script in scripts)
    assert eventually(lambda: not commands_with(str(queue)))
    assert not list(tmp_path.glob(".dask-jobqueue*"))  # the certificates are removed


@pytest.mark.promise("the exchange is then on disk, and the rows are the same", "infra/README.md#on-a-cluster")
def test_workers_that_come_and_go_in_the_middle_of_a_run_give_the_same_rows(
    tmp_path: Path, prefect_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same job has its rows from the stages in this process."""
    data = make_data(tmp_path / "in")
    breathing = {"cluster_class": "tests.infra.own_cluster.OwnCluster",
                 "cluster_kwargs": {"n_workers": 1, "threads_per_worker": 1, "memory_limit": "1GB"},
                 "adapt_kwargs": {"minimum": 1, "maximum": 2}}  # fmt: skip

    def features(scales: bool) -> list[dict[str, Any]]:
        op = {"op": "tests.infra.own_cluster:Breathes", "scales": scales}
        return [{"columns": ["row"], "ops": [op]}, {"columns": ["name"], "ops": [{"op": "Categorify"}]}]

    run_stages(load_job(make_job(data, tmp_path / "here", features=features(False))).request("pandas"))
    sizes: list[int] = []
    scale_once = OwnCluster.scale_once

    def note_size(cluster: OwnCluster, bound: int) -> int:
        sizes.append(scale_once(cluster, bound))
        return sizes[-1]

    monkeypatch.setattr(OwnCluster, "scale_once", note_size)
    run = {"retries": 0}  # a worker that goes may be the one that has the stage, which then begins again elsewhere
    assert run_job(data, tmp_path / "two", breathing, features=features(True), run=run).is_completed()
    assert [size for size, _ in groupby(sizes)] == [2, 1]
    assert digests(tmp_path / "here") == digests(tmp_path / "two")
    assert Manifest.load(tmp_path / "two").data["exchange"] == "disk"


def answer_late(number: int) -> int:
    time.sleep(0.5)
    return number


@pytest.mark.parametrize("size", [1, 2])
def test_a_cluster_that_shrinks_hands_the_tasks_of_its_workers_on(size: int) -> None:
    """From three workers of a thread, of which some or all but one leave with a task at work; one loss is a failure."""
    of_threads = {"n_workers": 3, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    section = Cluster(kind="class", cluster_class="distributed.LocalCluster", cluster_kwargs=of_threads)
    with make_cluster(section) as cluster, Client(cluster, set_as_default=False) as client:
        assert client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.allowed_failures) == 0
        futures = client.map(answer_late, range(8), pure=False)
        assert eventually(lambda: sum(map(len, client.processing().values())) >= 3)
        cluster.scaled.scale(size)
        assert client.gather(futures) == list(range(8))
        assert eventually(lambda: len(client.scheduler_info(n_workers=-1)["workers"]) == size)


def test_workers_are_called_by_address_by_name_or_by_the_name_of_their_job() -> None:
    class Known:
        workers = {"tcp://a:1": 1, "tcp://a:2": 1, "tcp://a:3": 1}
        aliases = {0: "tcp://a:1", "job-1-0": "tcp://a:2", "job-10-0": "tcp://a:3"}

    known: Any = Known()
    assert _addresses(known, "tcp://a:3") == ["tcp://a:3"]
    assert _addresses(known, 0) == ["tcp://a:1"]
    assert _addresses(known, "job-1") == ["tcp://a:2"]
    assert _addresses(known, "job-2") == []


CONNECTS = "--interface lo --protocol tls:// --tls-ca-file CA --tls-cert CERT --tls-key KEY"
SCRATCH = ' --local-directory "$rowmill_scratch"'
OWN_FOLDER = [
    'rowmill_scratch=$(mkdir -p "${TMPDIR:-/tmp}" && mktemp -d "${TMPDIR:-/tmp}"/rowmill-XXXXXXXX) || exit 1',
    "trap 'rm -rf \"$rowmill_scratch\"' EXIT",
]
WORKER = (
    "python -m distributed.cli.dask_worker ADDRESS --name dummy-name --nthreads 4 --memory-limit 7.45GiB"
    f" --nworkers 2 --nanny --death-timeout 60{{}} {CONNECTS}"
)
SETTINGS = "DASK_INTERNAL_INHERIT_CONFIG=SETTINGS"
GPU_WORKER = (
    "python -P -m dask cuda worker ADDRESS --name dummy-name --nthreads {} --memory-limit {} --death-timeout 60"
    " --no-dashboard --dashboard-address 127.0.0.1:0 --device-memory-limit 0.45 --set-rmm-allocator-for-libs cupy"
    f" --pre-import {','.join(pre_import(IMPORTS))} --resources GPU=1{{}} {CONNECTS}"
)
OWN_WORKER = (
    f"python -m own.worker ADDRESS --name dummy-name --nthreads 8 --memory-limit 14.90GiB --death-timeout 60 {CONNECTS}"
)
HEADS = {
    "PBSCluster": ["#PBS -N dask-worker", "#PBS -q batch", "#PBS -A shop", "#PBS -l select=1:ncpus=8:mem=15GB",
                   "#PBS -l walltime=01:00:00"],
    "SGECluster": ["#$ -N dask-worker", "#$ -q batch", "#$ -P shop", "#$ -l h_rt=01:00:00", "#$ -cwd", "#$ -j y"],
    "LSFCluster": ["#BSUB -J dask-worker", "#BSUB -q batch", '#BSUB -P "shop"', "#BSUB -n 8",
                   '#BSUB -R "span[hosts=1]"', "#BSUB -M 16000000", "#BSUB -W 01:00:00"],
    "SLURMCluster": ["#SBATCH -J dask-worker", "#SBATCH -p batch", "#SBATCH -A shop", "#SBATCH -n 1",
                     "#SBATCH --cpus-per-task=8", "#SBATCH --mem=15G", "#SBATCH -t 01:00:00"],
    "OARCluster": ["#OAR -n dask-worker", "#OAR -q batch", "#OAR --project shop",
                   "#OAR -l /nodes=1/core=8,walltime=01:00:00"],
    "HTCondorCluster": ['MY.DaskWorkerName = "htcondor--$F(MY.JobId)--"', "batch_name = dummy-name",
                        "RequestCpus = MY.DaskWorkerCores", "RequestMemory = floor(MY.DaskWorkerMemory / 1048576)",
                        "RequestDisk = floor(MY.DaskWorkerDisk / 1024)", 'MY.JobId = "$(ClusterId).$(ProcId)"',
                        "MY.DaskWorkerCores = 8", "MY.DaskWorkerMemory = 16000000000",
                        "MY.DaskWorkerDisk = 1000000000"],
}  # fmt: skip
OWN = {
    "PBSCluster": {"account": "shop"}, "SGECluster": {"project": "shop"}, "LSFCluster": {"project": "shop"},
    "SLURMCluster": {"account": "shop"},
    "OARCluster": {"project": "shop", "memory_per_core_property_name": "not_applicable"},
    "HTCondorCluster": {"disk": "1GB"},
}  # fmt: skip


def script(opened: RunningCluster) -> list[str]:
    """The job that would be submitted, without the shebang, names of this host and settings in words."""
    text = opened.scaled.job_script().replace(opened.scheduler_address, "ADDRESS")
    text = re.sub(r"(INHERIT_CONFIG)=[\w=-]+", r"\1=SETTINGS", text)
    for part, word in (("ca_file", "CA"), ("cert", "CERT"), ("key", "KEY")):
        text = re.sub(rf"\S+\.dask-jobqueue\.worker\.{part}\.[\w-]+", word, text)
    return [line for line in text.splitlines()[1:] if line]


def job_of(name: str, folder: Path, engine: Engine | None = None, **more: Any) -> list[str]:
    """The job of a cluster of dask-jobqueue that has 8 cores."""
    arguments = {"cores": 8, "memory": "16GB", "python": "python", "interface": "lo",
                 "shared_temp_directory": str(folder), "job_script_prologue": ["module load python"],
                 **({} if name == "HTCondorCluster" else {"queue": "batch", "walltime": "01:00:00"}),
                 **OWN[name], **more}  # fmt: skip
    opened = RunningCluster()
    asked = Cluster(cluster_class=f"dask_jobqueue.{name}", cluster_kwargs=arguments, engine=engine)
    with patch.object(shutil, "which", str):
        by_class.open_class(opened, asked, IMPORTS)
    lines = script(opened)
    opened.close()
    assert list(folder.iterdir()) == []
    return lines


def job_with(name: str, *commands: str) -> list[str]:
    """The lines of a job of the manager that runs the commands."""
    if name == "HTCondorCluster":  # which gives each job a folder of its own
        commands = tuple(command.replace(SCRATCH, "") for command in commands if command not in OWN_FOLDER)
        return [*HEADS[name], f"Arguments = \"-c '{'; '.join(commands)}'\"", "Executable = /bin/sh", "Queue"]
    return [*HEADS[name], *commands]


@pytest.mark.parametrize("name", HEADS)
def test_the_jobs_of_all_managers(name: str, tmp_path: Path) -> None:
    assert job_of(name, tmp_path, processes=2) == job_with(
        name, "module load python", *OWN_FOLDER, WORKER.format(SCRATCH)
    )


@pytest.mark.promise(
    "start workers of dask-cuda with the options of rowmill's own kinds", "infra/README.md#on-a-cluster"
)
@pytest.mark.parametrize("name", HEADS)
def test_the_jobs_of_all_managers_on_gpus(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "rowmill.clusters"):
        lines = job_of(name, tmp_path, "cudf")
    worker = GPU_WORKER.format(8, "14.90GiB", SCRATCH)
    assert lines == job_with(name, "module load python", *OWN_FOLDER, f"export {SETTINGS}", worker)
    assert "each job starts `dask cuda worker` for 1 GPU(s)" in caplog.text


def test_a_job_with_several_gpus_and_arguments_of_one_s_own(tmp_path: Path) -> None:
    own = {
        "processes": 4,
        "worker_extra_args": ["--device-memory-limit", "0.6"],
        "job_extra_directives": ["-l ngpus=4"],
    }
    lines = job_of("PBSCluster", tmp_path, "cudf", **own)
    assert "#PBS -l ngpus=4" in lines
    assert lines[-1] == GPU_WORKER.format(2, "3.73GiB", f"{SCRATCH} --device-memory-limit 0.6")  # the last one counts


def test_a_worker_command_of_one_s_own_stays(tmp_path: Path) -> None:
    named = job_of("PBSCluster", tmp_path, "cudf", processes=1, worker_command="own.worker")
    with dask.config.set({"jobqueue.pbs.worker-command": "own.worker", "jobqueue.pbs.processes": 1}):
        configured = job_of("PBSCluster", tmp_path, "cudf")
    assert named == configured
    assert named[-2:] == ["module load python", OWN_WORKER]


def test_workers_over_ssh_and_of_clouds_are_of_dask_cuda() -> None:
    """The options are those that reach a host as JSON."""
    for name, given in (("distributed.SSHCluster", {"hosts": ["a", "b"]}), (f"{__name__}.Cloud", {"region": "north"})):
        own: dict[str, Any] = {**given, "worker_options": {"nthreads": 4}}
        plain = Cluster(cluster_class=name, cluster_kwargs=own)
        asked = Cluster(cluster_class=name, cluster_kwargs=own, engine="cudf")
        named = Cluster(cluster_class=name, cluster_kwargs={**own, "worker_class": "own.Worker"}, engine="cudf")
        chosen = by_class.check_class(asked)
        arguments = by_class._arguments(asked, chosen, SETTINGS, IMPORTS)
        options = json.loads(json.dumps(arguments["worker_options"]))
        assert arguments["worker_class"] == "dask_cuda.CUDAWorker"
        assert options.pop("death_timeout", 300) == 300
        assert options == {
            "nthreads": 4, "dashboard": False, "dashboard_address": "127.0.0.1:0", "device_memory_limit": 0.45,
            "rmm_allocator_external_lib_list": ["cupy"], "pre_import": ",".join(pre_import(IMPORTS)),
            "resources": "GPU=1",
        }  # fmt: skip
        assert "worker_class" not in by_class._arguments(plain, chosen, SETTINGS, IMPORTS)
        arguments = by_class._arguments(named, chosen, SETTINGS, IMPORTS)
        assert arguments["worker_class"] == "own.Worker"
        assert arguments["worker_options"].keys() <= {"nthreads", "death_timeout"}


class Machines(SpecCluster):  # type: ignore[misc]
    """A class of the shape of VMCluster in dask-cloudprovider."""

    def __init__(self, worker_class: str = "dask.distributed.Nanny", worker_options: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs, security=None)


class Cloud(Machines):
    """A class of the shape of GCPCluster, which looks into the arguments that it passes on."""

    def __init__(self, region: str = "", debug: bool = False, **kwargs: Any) -> None:
        if "worker_options" not in kwargs:
            kwargs["worker_options"] = {}
        super().__init__(**kwargs)


@pytest.mark.parametrize(
    ("kind", "hint"),
    [("pbs", "cluster_class: dask_jobqueue.PBSCluster"), ("Condor", "cluster_class: dask_jobqueue.HTCondorCluster"),
     ("aws", "cluster_class: dask_cloudprovider.aws.EC2Cluster"), ("yarn", "use kind: address")],
)  # fmt: skip
def test_a_manager_without_a_kind_is_answered_by_its_class(kind: Any, hint: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Cluster(kind=kind, cluster_kwargs={"cores": 1})
    assert hint in str(caught.value)


@pytest.mark.parametrize("name", sorted(name for name in {*MANAGERS.values()} if name.startswith("dask_jobqueue.")))
def test_the_classes_that_errors_name_exist(name: str) -> None:
    own = OWN.get(name.rpartition(".")[2], {})
    assert by_class.check_class(Cluster(cluster_class=name, cluster_kwargs={"cores": 1, "memory": "1GB", **own}))


@pytest.mark.promise("A plugin of Dask sets up every worker, also those that join later")
def test_workers_of_any_class_are_set_up_also_those_that_join_later(tmp_path: Path) -> None:
    """`dask worker` starts them, with nothing of rowmill in its command and its settings."""

    def of_worker(dask_worker: Any) -> dict[str, Any]:  # sent by value: no worker imports this module
        import sys

        import dask.config
        from distributed.protocol.serialize import dask_serialize

        from tasks.engines.task_result import TaskResult

        return {"pause": dask_worker.memory_manager.memory_pause_fraction, "switch": sys.getswitchinterval(),
                "shuffle": dask.config.get("dataframe.shuffle.method"),
                "transfers": TaskResult in dask_serialize._lookup}  # fmt: skip

    arguments = {"n_workers": 0, "protocol": "tcp", "host": "127.0.0.1"}
    opened = RunningCluster()
    asked = Cluster(cluster_class="distributed.LocalCluster", cluster_kwargs=arguments)
    by_class.open_class(opened, asked, IMPORTS)
    command = [*DASK, "worker", opened.scheduler_address, "--nthreads", "1", "--dashboard-address", "127.0.0.1:0",
               "--no-nanny"]  # fmt: skip
    with Client(opened, set_as_default=False) as client, processes([command], tmp_path):
        client.wait_for_workers(1, timeout=240)
        opened.on_workers(client)
        with processes([command], tmp_path):
            client.wait_for_workers(2, timeout=240)
            seen = list(client.run(of_worker).values())
    opened.close()
    assert seen == [{"pause": False, "switch": 0.001, "shuffle": "tasks", "transfers": True}] * 2


def test_workers_that_are_added_later_leave_no_thread_limit_in_this_process() -> None:
    """Dask's Nanny would set OMP_NUM_THREADS=1 in the process that starts it, and every later cluster would have it."""
    opened = RunningCluster()
    with patch.dict(os.environ):
        os.environ.pop("OMP_NUM_THREADS", None)
        arguments = {"n_workers": 0, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
        asked = Cluster(cluster_class="distributed.LocalCluster", cluster_kwargs=arguments)
        by_class.open_class(opened, asked, IMPORTS)
        with Client(opened, set_as_default=False) as client:
            opened.scaled.scale(1)
            client.wait_for_workers(1, timeout=240)
        opened.close()
        assert "OMP_NUM_THREADS" not in os.environ


CASES: dict[str, tuple[dict[str, Any], type[Exception], str, str]] = {
    "module": ({"cluster_class": "dask_yarn.YarnCluster"}, GiveUpError, "dask_yarn cannot be imported", "install its"),
    "class": ({"cluster_class": "dask_jobqueue.PSBCluster"}, JobError, "dask_jobqueue has no class PSBCluster",
              "did you mean 'PBSCluster'"),
    "argument": ({"cluster_class": "dask_jobqueue.PBSCluster",
                  "cluster_kwargs": {"cores": 1, "memory": "1GB", "qeue": "batch", "interface": "lo"}},
                 JobError, "PBSCluster does not take the arguments", "queue, project"),
    "value": ({"cluster_class": "dask_jobqueue.PBSCluster", "cluster_kwargs": {"cores": 1}}, JobError,
              "PBSCluster does not take the arguments", "PBSCluster(n_workers=0"),
    "missing": ({"cluster_class": "distributed.SSHCluster", "cluster_kwargs": {"host": ["a"]}, "workers": 1},
                JobError, "SSHCluster does not take the arguments", "SSHCluster(hosts:"),
    "late": ({"cluster_class": "distributed.LocalCluster", "cluster_kwargs": {"n_workers": 1, "cores": 2}}, JobError,
             "LocalCluster does not take the arguments", "LocalCluster(name=None"),
    "adapt": ({"cluster_class": "distributed.LocalCluster", "cluster_kwargs": {"n_workers": 1},
               "adapt_kwargs": {"most": 2}}, JobError, "adapt does not take the arguments", "adapt("),
    "start": ({"cluster_class": "distributed.LocalCluster", "cluster_kwargs": {"interface": "nowhere"}}, GiveUpError,
              "the cluster could not be started", "call the class in Python"),
}  # fmt: skip


@pytest.mark.promise("`does not take the arguments`")
@pytest.mark.promise("`has no class`")
@pytest.mark.parametrize("case", CASES)
def test_what_is_no_class_or_does_not_take_the_arguments(case: str, queue: Path) -> None:
    asked, kind, what, do = CASES[case]
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(kind, match=what) as caught:
        make_cluster(Cluster(**asked))
    assert do in str(caught.value.do)
    assert str(asked["cluster_class"]) in str(caught.value.where)
    assert eventually(lambda: not [p for p in set(psutil.Process().children(recursive=True)) - before if alive(p)])


def alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and "worker" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


@pytest.mark.promise("the command in the message, such as `qstat`")
def test_workers_that_never_come_and_where_to_look(queue: Path, tmp_path: Path) -> None:
    (tmp_path / "bin/qsub").write_text("#!/bin/bash\necho 7.server\n")
    asked = section("PBSCluster", tmp_path, workers=1, start_timeout=1)
    asked["cluster_kwargs"]["log_directory"] = str(tmp_path / "logs")
    threads = {*threading.enumerate()}
    with pytest.raises(GiveUpError, match="no worker has come within 1 s") as caught:
        make_cluster(Cluster(**asked))
    assert "`qstat -u $USER` shows them" in caught.value.why
    assert f"{tmp_path}/logs has their logs" in caught.value.why
    assert not list(tmp_path.glob(".dask-jobqueue*"))
    assert not [thread for thread in {*threading.enumerate()} - threads if thread.name.startswith("IO loop")]


def test_a_host_without_the_commands_of_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GiveUpError, match="bsub is not here"):
        make_cluster(Cluster(**section("LSFCluster", tmp_path)))


class OwnQueue(dask_jobqueue.PBSCluster):  # type: ignore[misc]
    """PBS, as a site wraps it."""


@pytest.mark.parametrize(
    ("name", "command"),
    [("dask_jobqueue.SGECluster", "qstat"), ("dask_jobqueue.LSFCluster", "bjobs"),
     ("dask_jobqueue.SLURMCluster", "squeue"), ("dask_jobqueue.HTCondorCluster", "condor_q"),
     ("dask_jobqueue.OARCluster", "oarstat"), (f"{__name__}.OwnQueue", "qstat"),
     ("dask_kubernetes.operator.KubeCluster", "kubectl get pods"), ("distributed.LocalCluster", "none has registered")],
)  # fmt: skip
def test_each_manager_has_a_command_of_its_own_to_look_at_workers(name: str, command: str) -> None:
    asked = Cluster(cluster_class=name)
    module, _, attribute = name.rpartition(".")
    assert command in by_class._delay(asked, getattr(importlib.import_module(module), attribute))


class Answers:
    """A client of a scheduler at an address."""

    scheduler = type("Scheduler", (), {"identity": None})

    def __init__(self, address: str) -> None:
        self.address = address
        self.plugins: list[Any] = []

    def sync(self, function: Any, n_workers: int) -> dict[str, str]:
        return {"address": self.address}

    def run(self, function: Any, *arguments: Any, on_error: str) -> dict[str, Any]:
        return {"tls://10.0.0.7:1": function.__name__ == "find_spec"}

    def register_plugin(self, plugin: Any) -> None:
        self.plugins.append(plugin)


def test_a_scheduler_that_anybody_reaches_is_refused_and_engines_are_those_of_the_workers() -> None:
    asked, open_to_all = Cluster(cluster_class="own.Class"), Answers("tcp://10.0.0.7:8786")
    plugin = SetUp({}, IMPORTS, False)
    with pytest.raises(JobError, match="the scheduler is not encrypted") as caught:
        by_class._set_up(asked, plugin, open_to_all)
    assert "cluster.unencrypted: true" in caught.value.do
    by_class._set_up(asked.model_copy(update={"unencrypted": True}), plugin, open_to_all)
    for address in ("tls://10.0.0.7:8786", "tcp://127.0.0.1:8786", "inproc://10.0.0.7/1/2"):
        by_class._set_up(asked, plugin, client := Answers(address))
        assert client.plugins[0] is plugin
        assert isinstance(client.plugins[1], RetireByName)
    with pytest.raises(GiveUpError, match="workers without a GPU"):
        by_class._set_up(asked, SetUp({}, IMPORTS, True), Answers("tls://10.0.0.7:8786"))


@pytest.mark.promise("slurm and for a `cluster_class`, whose `adapt` can also be called with `adapt_kwargs`")
def test_adapt_is_for_a_class_as_well() -> None:
    own = Cluster(cluster_class="distributed.LocalCluster", adapt={"minimum": 2, "maximum": 4})
    assert own.scaling == {"minimum": 2, "maximum": 4}
    own = own.model_copy(update={"adapt_kwargs": {"interval": "1s"}})
    assert own.scaling == {"minimum": 2, "maximum": 4, "interval": "1s"}
    assert len(estimate_workers(own).workers) == 2


def test_what_a_preview_expects_of_a_class() -> None:
    asked = {"cores": 8, "processes": 2, "memory": "16GB"}
    found = estimate_workers(Cluster(cluster_class="dask_jobqueue.PBSCluster", cluster_kwargs=asked, workers=4))
    assert (len(found.workers), found.threads, found.smallest_memory) == (4, 16, 8 * 10**9)
    asked = {"n_workers": 3, "threads_per_worker": 2, "memory_limit": "1GB"}
    found = estimate_workers(Cluster(cluster_class="distributed.LocalCluster", cluster_kwargs=asked))
    assert (len(found.workers), found.threads, found.smallest_memory) == (3, 6, 10**9)
    own = Cluster(cluster_class="tests.infra.own_cluster.OwnCluster", engine="cudf", adapt_kwargs={"minimum": 2})
    assert resolve_cluster(own) == ("class", "cudf")
    assert len(estimate_workers(own).workers) == 2
    with pytest.raises(JobError, match="PBSCluster does not take the arguments"):
        estimate_workers(Cluster(cluster_class="dask_jobqueue.PBSCluster", cluster_kwargs={"cores": 8}))


def test_a_partition_is_a_share_of_the_memory_of_the_smallest_worker(tmp_path: Path) -> None:
    """The workers have 1 GB and 4 GB: of 0.003 a partition has two of the four row groups, not all."""
    data = make_data(tmp_path / "in")
    limits = {"small": "1GB", "large": "4GB"}
    workers = {name: {"cls": ThreadWorker, "options": {"memory_limit": limit, "nthreads": 1, **ON_LOOPBACK}}
               for name, limit in limits.items()}  # fmt: skip
    with start_threads([], **workers) as cluster, Client(cluster, set_as_default=False) as client:
        pool = DaskPool(client)
        assert (pool.smallest_memory, pool.memory) == (10**9, 5 * 10**9)
        seen = {}
        for share in (0.0015, 0.003, 0.006):
            source = {"part_mem_fraction": share, "partition_size": None}
            request = load_job(make_job(data, tmp_path / "out", source=source)).request("pandas")
            dataset = Dataset(data, engine="pandas", part_mem_fraction=share, client=client).npartitions
            seen[share] = (len(plan_split(request, "", request.source.path, pool).plan.partitions), dataset)
    assert seen == {0.0015: (4, 4), 0.003: (2, 2), 0.006: (1, 1)}


def test_ctrl_c_stays_with_the_command_when_a_class_is_imported(tmp_path: Path) -> None:
    """dask-jobqueue sets a handler of its own when it is first imported, here in a process of its own."""
    code = """
import signal
from infra.clusters.by_class import check_class
from infra.clusters.model import Cluster
check_class(Cluster(cluster_class="dask_jobqueue.PBSCluster", cluster_kwargs={"cores": 1, "memory": "1GB"}))
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
def test_the_jobs_of_a_queue_on_gpus_give_the_rows_of_our_own_kind(
    queue: Path, tmp_path: Path, prefect_server: Any
) -> None:
    data, by_queue = make_data(tmp_path / "in", files=4), section("PBSCluster", tmp_path, engine="cudf", workers=1)
    by_queue["cluster_kwargs"] |= {"memory": "8GB", "cores": 4}
    for name, cluster in (("kind", {"kind": "cuda", "workers": 1}), ("queue", by_queue)):
        assert run_job(data, tmp_path / name, cluster).is_completed(), [log.read_text() for log in queue.glob("*.out")]
    assert digests(tmp_path / "kind") == digests(tmp_path / "queue")


@pytest.mark.gpu
def test_the_class_of_dask_cuda_gives_the_rows_of_our_own_kind(tmp_path: Path, prefect_server: Any) -> None:
    data = make_data(tmp_path / "in", files=4)
    by_name = {"cluster_class": "dask_cuda.LocalCUDACluster", "cluster_kwargs": {"n_workers": 1}, "engine": "cudf"}
    for name, cluster in (("kind", {"kind": "cuda", "workers": 1}), ("class", by_name)):
        assert run_job(data, tmp_path / name, cluster).is_completed()
    assert digests(tmp_path / "kind") == digests(tmp_path / "class")
