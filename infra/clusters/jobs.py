"""The kind `slurm`: each worker is a job in a queue of SLURM, by dask-jobqueue. Needs the extra `slurm`."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask.config

from infra.clusters.encryption import protocol_of, security_of
from infra.clusters.model import Slurm, first_workers
from infra.clusters.remote import (
    CUDA_COMMAND,
    LOOPBACK,
    RunningCluster,
    library,
    nested,
    worker_arguments,
    worker_settings,
)
from infra.paths import expanded
from infra.workers.imports import NO_IMPORTS, WorkerImports
from tasks.errors import GiveUpError, JobError

if TYPE_CHECKING:
    from infra.clusters.model import Cluster

ANSWER_SECONDS = 30
PLAIN_COMMAND = "distributed.cli.dask_worker"  # the default of dask-jobqueue


def open_queue(opened: RunningCluster, cluster: Cluster, imports: WorkerImports) -> None:
    """Start a scheduler in this process and submit jobs for its workers; GiveUpError when SLURM refuses them."""
    library("dask_jobqueue", "dask-jobqueue", "slurm")
    if shutil.which("sbatch") is None:
        raise GiveUpError(
            "SLURM's commands are not here",
            where="cluster.kind = slurm",
            why="no sbatch in PATH",
            do="run rowmill on a login node of the cluster",
        )
    jobs = make(cluster, imports)
    opened.on_close.append(partial(end, jobs))
    opened.scheduler_address, opened.security, opened.scaled = jobs.scheduler_address, jobs.security, jobs
    opened.delay = partial(_queue, jobs.job_name)
    _ask_first(jobs.job_script())
    if cluster.adapt:
        jobs.adapt(minimum=first_workers(cluster), maximum=cluster.adapt.maximum)
    else:
        jobs.scale(first_workers(cluster))


def make(cluster: Cluster, imports: WorkerImports = NO_IMPORTS) -> Any:
    """The cluster of dask-jobqueue: a scheduler in this process, and no job yet."""
    from dask_jobqueue import SLURMCluster

    section = cluster.slurm
    assert section is not None
    security, processes = security_of(cluster), max(1, section.gpus)
    settings = worker_settings(cluster, section.gpus, imports=imports)
    arguments = [
        *worker_arguments(cluster, section.gpus, imports, "interface", "local_directory"),
        '--local-directory "$rowmill_scratch"',
    ]
    extra = [f"--gres=gpu:{section.gpus}"] if section.gpus else []
    scheduler = {
        "protocol": f"{protocol_of(cluster, security)}://",
        "security": security,
        "port": 0,
        "dashboard": cluster.dashboard,
        "dashboard_address": LOOPBACK,
    }
    return SLURMCluster(
        job_name="rowmill",
        queue=section.queue,
        account=section.account,
        walltime=section.walltime,
        cores=section.cores,
        memory=section.memory,
        processes=processes,
        python=f"{section.python or sys.executable} -P",
        worker_command=CUDA_COMMAND if section.gpus else PLAIN_COMMAND,
        worker_extra_args=arguments,
        job_extra_directives=[*extra, *([] if section.log_directory else ["--output=/dev/null"]), *section.directives],
        job_script_prologue=[*section.setup, *_own_scratch(cluster), exported(settings)],
        log_directory=section.log_directory,
        interface=cluster.interface,
        silence_logs=logging.ERROR,
        protocol=f"{protocol_of(cluster, security)}://",
        security=security,
        shared_temp_directory=_shared(section),
        scheduler_options=scheduler | ({"interface": cluster.interface} if cluster.interface else {}),
    )


def exported(settings: dict[str, Any]) -> str:
    """The line of a job that gives Dask's settings to its workers."""
    return f"export DASK_INTERNAL_INHERIT_CONFIG={dask.config.serialize(nested(settings))}"


def _own_scratch(cluster: Cluster) -> list[str]:
    """Lines of a job that make a folder of this user alone for spilled data, and remove it when the job ends.

    Dask loads pickles from there and puts it into `sys.path`: who can write into it runs code.
    """
    place = shlex.quote(cluster.local_directory) if cluster.local_directory else '"${TMPDIR:-/tmp}"'
    return [
        f"rowmill_scratch=$(mkdir -p {place} && mktemp -d {place}/rowmill-XXXXXXXX) || exit 1",
        "trap 'rm -rf \"$rowmill_scratch\"' EXIT",
    ]


def end(jobs: Any) -> None:
    """Close the scheduler, which cancels the jobs, and the open files of its temporary certificates."""
    jobs.close()
    for part in ("ca_file", "cert", "key"):
        if file := getattr(jobs, f"_job_{part}", None):
            file.close()


def _shared(section: Slurm) -> str:
    """The folder for temporary certificates, which dask-jobqueue writes for this user only and removes at its end."""
    place = Path(expanded(section.shared_directory))
    if not os.access(place, os.W_OK):
        raise JobError(
            "temporary certificates cannot be written",
            where=f"cluster.slurm.shared_directory = {place}",
            do="name a folder of yours that all nodes see",
        )
    return str(place)


def _ask_first(script: str) -> None:
    """Have SLURM check the job before one is submitted: dask-jobqueue would only log the refusal."""
    answer = _ask(["sbatch", "--test-only"], script)
    if answer.returncode:
        lines = answer.stderr.replace("sbatch: error: ", "").replace("allocation failure: ", "").splitlines()
        raise GiveUpError(
            "SLURM refuses the job",
            where="cluster.slurm",
            why="; ".join(line for line in lines if line),
            do="`sinfo` shows partitions and limits: change cores, memory, gpus, queue, account or walltime",
        )


def _queue(name: str) -> str:
    """The jobs in the queue: number, state, reason."""
    answer = _ask(["squeue", "--me", "--noheader", "--name", name, "--format", "job %i: %T (%r)"])
    gone = "the queue holds no job of it any more; cluster.slurm.log_directory keeps what they wrote"
    return "; ".join(answer.stdout.splitlines()) or gone


def _ask(command: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
