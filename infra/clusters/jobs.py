"""Clusters whose workers are jobs in a queue, by dask-jobqueue: arguments, scratch folders, early refusals."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask.config

from infra.clusters.keywords import Keywords
from infra.clusters.remote import CUDA_COMMAND, log, nest_settings, without_current_folder, worker_arguments
from infra.paths import expand_home
from infra.workers.imports import WorkerImports
from tasks.errors import GiveUpError, JobError

if TYPE_CHECKING:
    from infra.clusters.model import Cluster

ANSWER_SECONDS = 30
PLAIN_COMMAND = "distributed.cli.dask_worker"  # the default of dask-jobqueue
LOGS = "log_directory"  # which a job of dask-jobqueue makes
# commands that submit
SLURM = "sbatch"
HTCONDOR = "condor_submit"


def is_of_jobs(chosen: Any) -> bool:
    """Tell whether a class submits jobs: one of dask-jobqueue, or derived from one."""
    return getattr(chosen, "job_cls", None) is not None


def check_command(chosen: Any, where: str) -> None:
    """Raise a GiveUpError where the queue's command is not on this host."""
    submit = getattr(getattr(chosen, "job_cls", None), "submit_command", None)
    if submit and shutil.which(submit) is None:
        why = f"no {submit} in PATH"
        do = "run rowmill where jobs are submitted to the queue, such as a login node"
        raise GiveUpError(f"{submit} is not here", where=where, why=why, do=do)


def job_arguments(
    cluster: Cluster, chosen: Any, arguments: Keywords, settings: str, imports: WorkerImports
) -> Keywords:
    """Arguments for what a job runs, over those of preset or job: the command of workers, its options, and the lines
    before it. `settings` is the line that gives Dask's settings to the workers.

    Nothing but the Python of a preset for a `worker_command` of a user's own, in the job or in the configuration of
    dask-jobqueue. Workers of a class without a preset and without GPUs stay as the class starts them, but for their
    folder of spilled data.
    """
    known = _with_configuration(chosen, arguments)
    python = {"python": without_current_folder(known.get("python") or sys.executable)}
    if arguments.get("worker_command") is not None or known.get("worker_command") != PLAIN_COMMAND:
        return python if cluster.preset else {}
    options: list[str] = []
    lines: list[str] = []
    more: Keywords = {}
    if cluster.preset or cluster.gpus:
        more |= python
        without = ("interface", "local_directory") if cluster.preset else ("local_directory", "nthreads")
        options += worker_arguments(cluster, cluster.gpus, imports, *without)
        lines.append(settings)
    if cluster.preset:
        more["processes"] = max(1, cluster.gpus)
    elif cluster.gpus:
        more["processes"] = known.get("processes") or 1
    if cluster.gpus:
        more["worker_command"] = CUDA_COMMAND
        log.info("each job starts `%s` for %s GPU(s) (processes)", CUDA_COMMAND, more["processes"])
    # HTCondor gives each job a folder of its own, and would read the line as a macro of its own.
    if not known.get("local_directory") and chosen.job_cls.submit_command != HTCONDOR:
        options.append('--local-directory "$rowmill_scratch"')
        lines = [*own_scratch(cluster.local_directory), *lines]
    if options:
        more["worker_extra_args"] = [*options, *(known.get("worker_extra_args") or known.get("extra") or [])]
    if lines:
        more["job_script_prologue"] = [*(known.get("job_script_prologue") or known.get("env_extra") or []), *lines]
    return more


def _with_configuration(chosen: Any, arguments: Keywords) -> Keywords:
    """Return the arguments, and those that the configuration of dask-jobqueue has for a class."""
    name = arguments.get("config_name") or chosen.job_cls.default_config_name()
    configured = dask.config.get(f"jobqueue.{name}", {})
    known = {key.replace("-", "_"): value for key, value in configured.items()}
    return known | {key: value for key, value in arguments.items() if value is not None}


def export_settings(settings: Keywords) -> str:
    """The line of a job that gives Dask's settings to its workers."""
    return f"export DASK_INTERNAL_INHERIT_CONFIG={dask.config.serialize(nest_settings(settings))}"


def own_scratch(folder: str | None) -> list[str]:
    """Lines of a job that make a folder of this user alone for spilled data, and remove it when the job ends.

    Dask loads pickles from there and puts it into `sys.path`: who can write into it runs code.
    """
    place = shlex.quote(folder) if folder else '"${TMPDIR:-/tmp}"'
    return [
        f"rowmill_scratch=$(mkdir -p {place} && mktemp -d {place}/rowmill-XXXXXXXX) || exit 1",
        "trap 'rm -rf \"$rowmill_scratch\"' EXIT",
    ]


def check_shared(folder: object, where: str) -> str:
    """The folder for temporary certificates, which dask-jobqueue writes for this user only and removes at its end; a
    JobError where they cannot be written."""
    place = Path(expand_home(str(folder)))
    if not os.access(place, os.W_OK):
        raise JobError(
            "temporary certificates cannot be written",
            where=f"{where}: {place}",
            do="name a folder of yours that all nodes see: slurm.shared_directory, or shared_temp_directory of a class",
        )
    return str(place)


def ask_first(jobs: Any, where: str) -> None:
    """Have the queue check the job before one is submitted, where it has a command for that: dask-jobqueue would only
    log the refusal, and the run would wait for a job that never comes. GiveUpError with the answer."""
    if jobs.job_cls.submit_command != SLURM:
        return
    answer = _ask([SLURM, "--test-only"], jobs.job_script())
    if answer.returncode:
        lines = answer.stderr.replace("sbatch: error: ", "").replace("allocation failure: ", "").splitlines()
        raise GiveUpError(
            "SLURM refuses the job",
            where=where,
            why="; ".join(line for line in lines if line),
            do="`sinfo` shows partitions and limits: change cores, memory, gpus, queue, account or walltime",
        )


def queue_state(jobs: Any) -> str:
    """Return the jobs in a queue of SLURM: number, state, reason; "" for other queues."""
    if jobs is None or jobs.job_cls.submit_command != SLURM:
        return ""
    answer = _ask(["squeue", "--me", "--noheader", "--name", jobs.job_name, "--format", "job %i: %T (%r)"])
    gone = f"the queue holds no job of it any more; {LOGS} keeps what they wrote"
    return "; ".join(answer.stdout.splitlines()) or gone


def end(jobs: Any) -> None:
    """Close the scheduler, which cancels the jobs, and the open files of its temporary certificates."""
    jobs.close()
    for part in ("ca_file", "cert", "key"):
        if file := getattr(jobs, f"_job_{part}", None):
            file.close()


def _ask(command: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
