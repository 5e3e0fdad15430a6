"""Rounds of a job in processes that cost little: forks of one process that has loaded everything.

`Rounds` starts `python -m tests.faults.rounds`, which loads rowmill once and has no threads. Each round is a fork of
it that runs a job and writes what became of it into a file: {"committed": [..], "stages": [..]} or {"error": ..}, and
how many file operations of Python it made. A fault comes at the n-th of these operations: the process kills itself
(kill -9), or a disk fills up but for some bytes. Or it comes at the n-th call of a product function, as
`tests.faults.chaos` has it: in the fork, if it is one of `here`, or in workers that the fork starts, if it is in the
file `in_workers`. In all of them every file of a source is a block (`tests.faults.small_blocks`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Self

import dask
import psutil

from tests.conftest import python_path
from tests.faults import chaos, small_blocks

COMMANDS = ("flows.commands.launch", "flows.commands.progress_view", "flows.commands.stop_command")
EVENTS = (
    "open",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.listdir",
    "os.scandir",
    "shutil.rmtree",
)


@dataclass
class Ended:
    """How a round ended: exit status (negative: the signal), and what it answered as far as it came to its end: folders
    that were committed, stages that ran with whether each found its work done, or the error; what a function returned.
    """

    status: int
    committed: list[str] = field(default_factory=list)
    stages: list[tuple[str, bool]] = field(default_factory=list)
    error: dict[str, str] = field(default_factory=dict)
    operations: int = 0
    answer: Any = None

    @property
    def killed(self) -> bool:
        return self.status == -signal.SIGKILL


def has_ended(process: psutil.Process) -> bool:
    """Whether a process is over, though nobody may have asked for its status yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Rounds:
    """The process of which rounds are forks."""

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="rounds-")
        self.folder, self._number = Path(self._folder.name), 0
        self.log = (self.folder / "log.txt").open("wb")
        environment = os.environ | {"PYTHONPATH": python_path(), "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, "-m", "tests.faults.rounds"]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True
        )
        assert self.process.stdout
        assert self.process.stdout.readline() == "ready\n", self.says()
        return self

    def __exit__(self, *error: object) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()
        self.log.close()
        self._folder.cleanup()

    def says(self) -> str:
        """The end of what the rounds wrote to stderr."""
        return (self.folder / "log.txt").read_text(errors="replace")[-4000:]

    def _ask(self, **question: Any) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, self.says()
        return json.loads(answer)

    def begin(self, do: str, job: dict[str, Any], output: Path | None = None, **faults: Any) -> tuple[int, Path]:
        """(process, where its result will be) of a round that runs from now on: the job by its stages, as a flow or as
        a command, or a function of any module with the job's values as its arguments.

        What it prints goes to `output`, a file or a pipe that somebody reads, else into the log of all rounds.
        """
        self._number += 1
        result = self.folder / f"{self._number}.json"
        printed = str(output) if output else ""
        return self._ask(begin=do, job=job, result=str(result), output=printed, faults=faults), result

    def end(self, begun: tuple[int, Path]) -> Ended:
        """Waits for the end of a round."""
        pid, result = begun
        status = self._ask(end=pid)
        found = json.loads(result.read_text()) if result.exists() else {}
        result.unlink(missing_ok=True)
        return Ended(**found | {"status": status, "stages": [(name, done) for name, done in found.get("stages", [])]})

    def run(
        self, do: str, job: dict[str, Any], output: Path | None = None, after: float | None = None, **faults: Any
    ) -> Ended:
        """A round from beginning to end; kill -9 `after` so many seconds."""
        begun = self.begin(do, job, output, **faults)
        if after is not None:
            time.sleep(after)
            os.kill(begun[0], signal.SIGKILL)  # nobody but `end` takes the number away
        return self.end(begun)


def run_stages(job: dict[str, Any]) -> dict[str, Any]:
    """A run of a job in this process, without Prefect and without a cluster."""
    from flows.job.job import make_job
    from flows.nights.base import BasePlugin
    from tasks.cluster.local_pool import LocalPool
    from tasks.run.plugin import NothingToDoError
    from tasks.run.run import execute_on, run
    from tests.stages import Report, Results

    made = make_job(job)
    results = Results()
    try:
        manifests = run(made.request("pandas"), execute_on(LocalPool(2)), [BasePlugin(made), Report(), results])
    except NothingToDoError as published:
        return {"committed": published.outputs, "stages": []}
    return {
        "committed": [manifest.path for manifest in manifests],
        "stages": [(result.stage, result.reused) for result in results.all],
    }


def run_flow(job: dict[str, Any]) -> dict[str, Any]:
    """The real flow, which starts its workers and reports to the session's server."""
    from infra.orchestration.server import ensure_server

    ensure_server()
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    from flows.preprocess import preprocess

    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        return {"committed": list(preprocess(**job))}


def run_command(job: dict[str, Any]) -> dict[str, Any]:
    """`rowmill` with these words in a folder; variables that are None are removed."""
    from prefect.context import refresh_global_settings_context
    from rowmill.cli import main

    os.chdir(job["folder"])
    for name, value in job["environment"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    refresh_global_settings_context()
    sys.argv = ["rowmill", *job["words"]]
    try:
        main()
    except SystemExit as ended:
        return {"status": ended.code or 0}
    return {"status": 0}


WORK = {"stages": run_stages, "flow": run_flow, "command": run_command}


def work_of(question: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """What a round does: one of `WORK`, or any function, as `module:function`, whose result is its answer."""
    module, _, name = question["begin"].rpartition(":")
    if not module:
        return WORK[name]
    function = getattr(importlib.import_module(module), name)
    return lambda job: {"answer": function(**job)}


class Operations:
    """Counts the file operations of this process, and lets a fault happen at one of them."""

    def __init__(self, kill_at: int = 0, fill_at: int = 0, fill: str = "", left: int = 0) -> None:
        self.kill_at, self.fill_at, self.fill, self.left = kill_at, fill_at, fill, left
        self.count, self.lock = 0, threading.Lock()
        sys.addaudithook(self.hear)

    def hear(self, event: str, _: Any) -> None:
        if event not in EVENTS:
            return
        with self.lock:
            self.count += 1
            now = self.count
        if now == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        elif now == self.fill_at:
            fill_up(Path(self.fill), self.left)


def fill_up(filler: Path, left: int) -> None:
    """Let a file take what is free on its disk but for `left` bytes."""
    disk = os.statvfs(filler.parent)
    free = disk.f_bavail * disk.f_frsize
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, free - left))


def load_in_workers(*modules: str) -> None:
    """Let the workers that this process starts, and those of its children, load these modules first."""
    os.environ["DASK_DISTRIBUTED__WORKER__PRELOAD"] = repr(list(modules))
    dask.config.set({"distributed.worker.preload": list(modules)})


def child(question: dict[str, Any]) -> NoReturn:
    """Run the job in this fork, and end it, but for a command without what only the parent may tidy up."""
    os.setsid()
    if question["output"]:
        output = os.open(question["output"], os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
    faulthandler.enable()
    answer: dict[str, Any] = {}
    faults = question["faults"]
    chaos.use(faults.pop("here", []))
    if "in_workers" in faults:
        os.environ[chaos.VARIABLE] = faults.pop("in_workers")
        load_in_workers(small_blocks.__name__, chaos.__name__)
    work = work_of(question)
    operations = Operations(**faults)
    try:
        answer |= work(question["job"])
    except BaseException as error:
        traceback.print_exc()
        parts = {name: str(getattr(error, name, "") or "") for name in ("what", "where", "why", "do")}
        answer["error"] = {"type": type(error).__name__, "text": str(error), **parts}
    answer["operations"] = operations.count
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.flush()
    result = Path(question["result"])
    draft = result.with_suffix(".tmp")
    draft.write_text(json.dumps(answer))
    draft.rename(result)
    if "status" in answer:
        sys.exit(answer["status"])  # with what libraries do as an interpreter ends
    os._exit(1 if "error" in answer else 0)


def main() -> None:
    """Forks as it is asked on stdin, a JSON object a line."""
    for module in ("flows.preprocess", "infra.workers.preimport", "tasks.report.page", "rowmill.cli", *COMMANDS):
        importlib.import_module(module)
    small_blocks.use()
    load_in_workers(small_blocks.__name__)
    this_program = sys.modules["__main__"]
    this_program.__spec__ = None  # or each worker would load it, and pytest with it
    del this_program.__file__
    assert threading.active_count() == 1, threading.enumerate()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        if "end" in question:
            answer = os.waitstatus_to_exitcode(os.waitpid(question["end"], 0)[1])
        else:
            answer = os.fork()
            if not answer:
                answers.close()
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                child(question)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
