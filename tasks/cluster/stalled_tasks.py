"""Finds stalled stages: tasks wait, none runs, none ends, and no worker is expected.

Dask can lose a task, by an error of its own or by a restriction that no worker meets, without any message: the stage
would wait for the task for ever.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from heapq import nsmallest
from typing import TYPE_CHECKING, Any

from tasks.cluster.dask_pool import DaskPool
from tasks.errors import TransientError

if TYPE_CHECKING:
    from dask.typing import Key
    from distributed import Client, Scheduler

LOOK_SECONDS = 10.0  # between two checks, at most; or a fifth of the allowed time
SILENT = 30.0  # seconds after which the last report of a worker is out of date
SHOWN = 5  # tasks that a message names
EXPECTED = "rowmill-workers-expected"  # key in the metadata of the scheduler: until when workers are expected
log = logging.getLogger("rowmill")
Facts = Mapping[str, Any]


class Stall:
    """How long nothing has moved. `waiting` returns a value that changes when one of the awaited tasks ends."""

    def __init__(self, client: Client, waiting: Callable[[], Sequence[Any]], seconds: float) -> None:
        self.client = client
        self.waiting = waiting
        self.seconds = seconds
        self.every = min(LOOK_SECONDS, seconds / 5)
        self.moved = time.monotonic()
        self.last: tuple[int, int] = (0, -1)

    def check(self) -> Facts | None:
        """Return the scheduler's facts once nothing has moved for `seconds`; else None."""
        now = time.monotonic()
        try:
            count = len(self.waiting())
            if not count:
                self.moved = now
                return None
            now_there = self.client.run_on_scheduler(moves_of)
        except Exception as error:  # one of others may have no rowmill; of one that is lost the stage hears by itself
            log.debug("the scheduler does not tell what it does: %s: %s", type(error).__name__, error)
            self.moved = now
            return None
        before = self.last
        self.last = (count, now_there["count"])
        if before != self.last or now_there["running"] or now_there["expected"]:
            self.moved = now
            return None
        if now - self.moved < self.seconds:
            return None
        facts: Facts = self.client.run_on_scheduler(state_of)
        return facts


@contextmanager
def watch_for_stall(name: str, pool: DaskPool, seconds: float) -> Iterator[None]:
    """While the block runs, cancel the tasks of a stage that stalls; the TransientError has the stage tried again."""
    stall = Stall(pool.client, pool.waiting, seconds)
    ended = threading.Event()
    caught: list[Facts] = []

    def follow() -> None:
        while not ended.wait(stall.every):
            with suppress(Exception):
                if facts := stall.check():
                    caught.append(facts)
                    log.warning("%s has made no progress for %g s: %s", name, seconds, text_of(facts))
                    pool.client.cancel(pool.waiting(), force=True)
                    return

    thread = threading.Thread(target=follow, name="rowmill-stalls", daemon=True)
    thread.start()
    try:
        yield
    except Exception as error:
        if not caught:
            raise
        raise make_stall_error(name, seconds, caught[0]) from error
    finally:
        ended.set()


class NotBegunError(TransientError):
    """No worker has begun with a stage."""


def make_stall_error(
    name: str, seconds: float, facts: Facts, kind: type[TransientError] = TransientError
) -> TransientError:
    return kind(
        f"{name} made no progress for {seconds:g} s",
        where="the Dask scheduler of this run",
        why=f"no task ran or ended; the scheduler reports: {text_of(facts)}",
        do="compare what the tasks need (cluster.resources) with what the workers offer; raise run.stalled_after if "
        "the workers are only waiting; run the same job again: what is done is kept",
    )


def expect_workers(client: Client, cluster: Any, seconds: float) -> None:
    """Tell the scheduler that requested workers (in a queue, or as the work grows) have not come yet: for so many
    seconds from now, tasks that wait for them do not count as stalled."""
    scaled = getattr(cluster, "scaled", None) or cluster
    with suppress(Exception):
        if scaled.plan - scaled.observed:
            client.set_metadata(EXPECTED, time.time() + seconds)


async def lose_silent_workers(seconds: float, dask_scheduler: Scheduler) -> None:
    """Restart, in a scheduler, the workers that have been silent for so long (stopped, or waiting for a dead mount).

    Dask does that by itself after minutes. Their tasks fail as those of killed workers do.
    """
    dask_scheduler.worker_ttl = seconds
    await dask_scheduler.check_worker_ttl()


def moves_of(dask_scheduler: Scheduler) -> dict[str, Any]:
    """Return, in a scheduler, how many moves it has made, how many tasks run, and whether workers are expected.

    A stage itself has left the threads of its worker and waits for its tasks: it does not count. A worker that takes
    in results of others, or has not reported for a while, may be about to run something.
    """
    workers = list(dask_scheduler.workers.values())
    running = sum(task not in worker.long_running for worker in workers for task in worker.executing)
    silent = sum(time.time() - worker.last_seen > SILENT for worker in workers if worker.processing)
    moving = sum(bool(worker.metrics.get("transfer", {}).get("incoming_count")) for worker in workers)
    return {
        "count": int(dask_scheduler.transition_counter),
        "running": running + silent + moving,
        "expected": float(dask_scheduler.task_metadata.get(EXPECTED, 0)) > time.time(),
    }


def state_of(dask_scheduler: Scheduler) -> dict[str, Any]:
    """Describe, in a scheduler, the tasks that wait, their restrictions, and the resources of the workers."""
    workers = list(dask_scheduler.workers.values())
    stages = {task.key for worker in workers for task in worker.long_running}
    waiting = [
        task
        for task in dask_scheduler.tasks.values()
        if task.state not in ("memory", "erred", "forgotten") and task.key not in stages
    ]
    blocked = nsmallest(SHOWN, (task for task in waiting if not task.waiting_on), key=lambda task: str(task.key))
    return {
        "states": _count_names(str(task.state) for task in waiting),
        "names": _count_names(str(task.prefix.name) for task in waiting),
        "tasks": [
            {
                "key": str(task.key),
                "state": str(task.state),
                "resources": dict(task.resource_restrictions or {}),
                "workers": sorted(task.worker_restrictions or ()),
                "on": task.processing_on.address if task.processing_on else "",
            }
            for task in blocked
        ],
        "workers": {
            worker.address: {
                "name": str(worker.name),
                "threads": int(worker.nthreads),
                "status": worker.status.name,
                "resources": dict(worker.resources),
                "tasks": len(worker.processing) - len(worker.long_running),
            }
            for worker in workers
        },
    }


def has_begun(key: Key, dask_scheduler: Scheduler) -> bool:
    """Return, in a scheduler, whether a worker runs a task, or it has ended."""
    task = dask_scheduler.tasks.get(key)
    if task is None or task.state in ("memory", "erred"):
        return True
    return any(task in worker.long_running or task in worker.executing for worker in dask_scheduler.workers.values())


def text_of(facts: Facts) -> str:
    """Describe what a scheduler knows of tasks that do not move.

    >>> text_of({"states": {"waiting": 2}, "names": {"cut": 2}, "tasks": [], "workers": {}})
    '2 waiting (2 cut)'
    """
    states = ", ".join(f"{count} {state}" for state, count in facts["states"].items())
    names = ", ".join(f"{count} {name}" for name, count in facts["names"].items())
    lines = [f"{states or 'no task'} ({names})"]
    for task in facts["tasks"]:
        lines.append(
            ", ".join(
                [
                    f"{task['key']} is {task['state']}",
                    *([f"takes {_format_amounts(task['resources'])}"] if task["resources"] else []),
                    *([f"is asked of {' '.join(task['workers'])}"] if task["workers"] else []),
                    *([f"was given to {task['on']}"] if task["on"] else []),
                ]
            )
        )
    for address, worker in facts["workers"].items():
        offers = _format_amounts(worker["resources"]) or "nothing"
        lines.append(
            f"worker {worker['name']} ({address}) is {worker['status']} with {worker['threads']} thread(s) and "
            f"{worker['tasks']} task(s), offers {offers}"
        )
    return "; ".join(lines)


def _count_names(names: Iterator[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts


def _format_amounts(resources: Mapping[str, float]) -> str:
    return " ".join(f"{name}={amount:g}" for name, amount in resources.items())
