"""`prefect` whose process workers fork the runs off one process that has loaded what they import: for tests that are
not about the process of a run.

A run whose name begins with OWN has an interpreter of its own, as with any worker.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.forking import begin_forking

OWN = "in a process of its own"
MARK = "ROWMILL_TEST_FORKED"  # a variable of a run that is a fork


def main() -> None:
    forks = begin_forking()
    import prefect.workers.process
    from prefect.cli import app
    from prefect.runner import _starter_engine, _workspace_starter

    class Starter(_workspace_starter.WorkspaceResolvingEngineCommandStarter):
        async def start(self, flow_run: Any, **known: Any) -> None:
            if not flow_run.name.startswith(OWN):
                self._environment[MARK] = "1"
            await super().start(flow_run, **known)

    run_process = _starter_engine.run_process

    async def start_run(command: list[str], env: dict[str, str], **known: Any) -> None:
        """What `run_process` of Prefect does, by a fork."""
        import anyio

        if MARK not in env:
            await run_process(command=command, env=env, **known)
            return
        run: Any = forks.Process(target=prepare_and_run, args=(command[-1], env, known["cwd"]))
        await anyio.to_thread.run_sync(run.start)
        known["task_status"].started(known["task_status_handler"](run))
        await anyio.to_thread.run_sync(run.join)

    prefect.workers.process.WorkspaceResolvingEngineCommandStarter = Starter  # type: ignore[misc]
    _starter_engine.run_process = start_run  # type: ignore[assignment]
    app()


def prepare_and_run(config: str, environment: dict[str, str], folder: Path) -> None:
    """What `python -m prefect.runner._workspace_supervisor CONFIG` does: the steps that a deployment names, and then
    the engine, which Prefect begins as another program in the same process."""
    from prefect.runner import _workspace_supervisor as supervisor

    os.setsid()
    engine: list[Any] = []

    async def launch(command: list[str], *, cwd: Path, environment: dict[str, str]) -> int:
        assert command[1:] == ["-m", "prefect.engine"], command
        engine.extend([environment, cwd])
        return 0

    supervisor._launch_engine = launch
    enter(environment, folder)
    status = supervisor.main([config])
    if engine:
        enter(*engine)
        sys.argv[1:] = []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # of a module that runs and is loaded
                runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)
        finally:
            atexit._run_exitfuncs()
            # It drains what Prefect sends in the background; a sender that has only just been made cannot be drained.
            with suppress(AssertionError):
                threading._shutdown()  # type: ignore[attr-defined]
    sys.exit(status)


def enter(environment: dict[str, str], folder: Path) -> None:
    """Have these variables and this current folder, as a new process."""
    from prefect.context import refresh_global_settings_context

    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    refresh_global_settings_context()


if __name__ == "__main__":
    main()
