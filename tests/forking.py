"""Processes of tests that fork others off what they have loaded themselves: an interpreter that imports Prefect and
rowmill costs more than most runs."""

from __future__ import annotations

import itertools
import os
import threading
from importlib import import_module
from multiprocessing import context, forkserver, get_context, resource_tracker, util
from typing import Any

PRELOADED = ("prefect.flow_engine", "prefect.runner._workspace_supervisor", "flows.preprocess", "flows.refit",
             "flows.train", "flows.watch_source")  # fmt: skip


def begin_forking() -> Any:
    """Begin the fork server of this process as a fork of it, once it has loaded what runs import; the context of
    `multiprocessing` whose processes are forks of that. To be called before this process has threads."""
    for module in PRELOADED:
        import_module(module)
    assert threading.active_count() == 1, threading.enumerate()
    resource_tracker.ensure_running()
    spawn, util.spawnv_passfds = util.spawnv_passfds, fork_server  # type: ignore[attr-defined]
    try:
        forkserver.ensure_running()
    finally:
        util.spawnv_passfds = spawn  # type: ignore[attr-defined]
    return get_context("forkserver")


def fork_server(_: object, arguments: list[Any], handles: list[int]) -> int:
    """What `spawnv_passfds` does with a new interpreter: run the code of these arguments with these files only."""
    if pid := os.fork():
        return pid
    try:
        for first, last in itertools.pairwise([2, *sorted(handles), os.sysconf("SC_OPEN_MAX")]):
            os.closerange(first + 1, last)
        forkserver._forkserver._lock = threading.Lock()  # type: ignore[attr-defined]  # it is held
        exec(arguments[-1], {})
    finally:
        os._exit(0)


def fork_runs(but: int = 0) -> None:
    """Have the runs of Prefect's runner, which are new interpreters, be forks, but for the first ones."""
    forks = begin_forking()
    own = [context.SpawnContext.Process] * but

    class Runs(context.SpawnContext):
        def Process(self, *arguments: Any, **known: Any) -> Any:  # type: ignore[override]
            return (own.pop() if own else forks.Process)(*arguments, **known)

    context._concrete_contexts["spawn"] = Runs()  # type: ignore[attr-defined]


if __name__ == "__main__":  # `rowmill`, of which the first run alone has an interpreter of its own
    from rowmill.cli import main

    fork_runs(but=1)
    main()
