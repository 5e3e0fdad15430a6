"""Workers that a stage lost: how many there were, with how much memory, and whether a GPU went with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from infra import gpus
from infra.gpu_errors import make_lost_gpu_error, missing
from infra.gpus import Gpu
from tasks.cluster.dask_pool import workers_at
from tasks.cluster.lost_worker import advise_smaller_work
from tasks.core.units import amount
from tasks.errors import RowmillError, TransientError
from tasks.storage.files_being_read import RAN, doing


@dataclass(frozen=True)
class WorkersAtStart:
    """The workers with which a stage began: processes, threads and host memory in bytes of each (0: no limit),
    and the GPUs of this host."""

    processes: int
    threads: int
    memory: int
    gpus: tuple[Gpu, ...] = ()

    @property
    def text(self) -> str:
        """The workers in words, with figures."""
        each = f" with {amount(self.memory)} of memory each" if self.memory else ""
        return f"{self.processes} worker(s) of {self.threads} thread(s){each}"


def workers_of(client: object, engine: str) -> WorkersAtStart:
    """Return the workers of a running cluster."""
    workers = list(workers_at(client).values())
    threads = max((w["nthreads"] for w in workers), default=0)
    memory = min((w["memory_limit"] or 0 for w in workers), default=0)
    return WorkersAtStart(len(workers), threads, memory, tuple(gpus.visible()) if engine == "cudf" else ())


def in_every_attempt(name: str, attempts: int, before: WorkersAtStart, notes: Sequence[str] = ()) -> RowmillError:
    """The error for a stage that lost a worker in each of its attempts; `notes` say what was going on in the last
    one."""
    if gone := missing(before.gpus):
        return make_lost_gpu_error(gone, before.gpus, f"during {name}")
    host = psutil.virtual_memory()
    return TransientError(
        f"a worker was lost in each of {attempts} attempts of {name}",
        where=doing(notes),
        why="workers were killed from outside, or by the host for lack of memory, or crashed (then their output, the "
        f"terminal or the log of the service, has 'Fatal Python error'); there were {before.text}; "
        f"{amount(host.available)} of this host's {amount(host.total)} are free now",
        do="check the host's memory; give workers less to do at once (lower cluster.threads_per_worker, "
        f"{advise_smaller_work(name)}) or more memory (cluster.memory_limit); "
        "raise run.retries if something else kills them; "
        f"run the same job again: what is done is kept{_advice_on(notes)}",
    )


def _advice_on(notes: Sequence[str]) -> str:
    """What to try where work that was going on may have ended the worker; "" where nothing is known of it."""
    if not notes:
        return ""
    begin = "; if memory is not short, this work itself may kill the worker: try the job without"
    if any(note.startswith(RAN) for note in notes):
        return f"{begin} that function, or call it on the rows of that file"
    return (
        f"{begin} these files; a file that is overwritten while it is read ends its reader, too: write it under "
        "another name, then rename it"
    )
