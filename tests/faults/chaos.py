"""Faults on order, in the workers: a Dask preload that wraps product functions as a plan in a JSON file says.

`ROWMILL_TEST_CHAOS` names the file: a list of {"at": "module:function", "call": n, "do": .., "flag": path}. The n-th
call in a process does it if the flag file is still there; taking the flag away is what makes it happen only once. A
worker that is held stands still until the test lets it go.
"""

from __future__ import annotations

import functools
import importlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

VARIABLE = "ROWMILL_TEST_CHAOS"


def dask_setup(worker: Any) -> None:
    """Called by Dask in every worker process before its first task."""
    plan = os.environ.get(VARIABLE)
    if plan and Path(plan).exists():
        use(json.loads(Path(plan).read_text()))


def use(plan: Iterable[dict[str, Any]]) -> None:
    """Let this process meet the faults of a plan."""
    for fault in plan:
        module_name, _, place = fault["at"].partition(":")
        *classes, name = place.split(".")
        owner = functools.reduce(getattr, classes, importlib.import_module(module_name))
        setattr(owner, name, faulty(getattr(owner, name), fault))


def kill_at(place: str, call: int = 1) -> dict[str, Any]:
    """The fault that kills the process before the n-th call of `module:function` or `module:class.method`."""
    return {"at": place, "call": call, "do": "kill", "always": True}


def faulty(function: Callable[..., Any], fault: dict[str, Any]) -> Callable[..., Any]:
    """The function, which at its n-th call meets the fault, before or (`after`) when its work is done."""
    lock, calls = threading.Lock(), [0]

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with lock:
            calls[0] += 1
            due = calls[0] >= fault["call"] and taken(fault)
        if due and not fault.get("after"):
            ACTIONS[fault["do"]]()
        result = function(*args, **kwargs)
        if due:
            ACTIONS[fault["do"]]()
        return result

    return wrapped


def taken(fault: dict[str, Any]) -> bool:
    """True for the one process that takes the flag, or always for a fault that never ends."""
    if fault.get("always"):
        return True
    try:
        Path(fault["flag"]).unlink()
    except FileNotFoundError:
        return False
    return True


def kill_me() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop_me() -> None:
    """Stand still as a whole process, its heartbeats too."""
    os.kill(os.getpid(), signal.SIGSTOP)


def fall() -> None:
    """End this process with a last line."""
    os.write(2, b"there is no memory for this worker\n")
    os._exit(3)


def kill_the_flow() -> None:
    """Who started the worker is the process of the flow; the worker follows it."""
    flow: Any = multiprocessing.parent_process()
    os.kill(flow.pid, signal.SIGKILL)
    time.sleep(60)


def out_of_memory() -> None:
    raise MemoryError("injected: no memory for this partition")


def stall() -> None:
    """What this process submits next takes what no worker offers: it waits for ever."""
    from tasks.cluster.dask_pool import DaskPool

    submitted = DaskPool._map_to_futures

    def restricted(self: Any, *args: Any, **kwargs: Any) -> Any:
        DaskPool._map_to_futures = submitted  # type: ignore[method-assign]
        return submitted(self, *args, **{**kwargs, "resources": {"nowhere": 1}})

    DaskPool._map_to_futures = restricted  # type: ignore[method-assign]


def hiccup() -> None:
    raise ConnectionResetError("injected: the storage hung up")


def mute() -> None:
    """The server hears nothing of this process any more, such as how its stage ends."""
    from prefect.events.worker import EventsWorker

    EventsWorker.send = lambda self, event: None  # type: ignore[method-assign]


def hold() -> None:
    """Say that work stands still here (`.held` beside the plan), until `.release` is there or two minutes are over."""
    plan, deadline = Path(os.environ[VARIABLE]), time.monotonic() + 120
    plan.with_suffix(".held").touch()
    while not plan.with_suffix(".release").exists() and time.monotonic() < deadline:
        time.sleep(0.05)


ACTIONS: dict[str, Callable[[], None]] = {
    "kill": kill_me,
    "stop": stop_me,
    "fall": fall,
    "kill-flow": kill_the_flow,
    "out-of-memory": out_of_memory,
    "hiccup": hiccup,
    "hold": hold,
    "mute": mute,
    "stall": stall,
}
