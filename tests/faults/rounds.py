"""Rounds of a job in processes that cost little: forks of one process that has loaded everything.

`Rounds` starts `python -m tests.faults.rounds`, which loads rowmill once and has no threads. Each round is a fork of
it that runs a job and writes what became of it into a file: {"committed": [..]} or {"error": ..}, and how many file
operations of Python it made. A fault comes at the n-th of these operations: the process kills itself (kill -9), or a
disk fills up but for some bytes.
"""

from __future__ import annotations

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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, Self

from tests.conftest import python_path

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
    """How a round ended: exit status (negative: the signal), folders that were committed, or the error."""

    status: int
    committed: list[str]
    error: dict[str, str]
    operations: int

    @property
    def killed(self) -> bool:
        return self.status == -signal.SIGKILL


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

    def begin(self, do: str, job: dict[str, Any], **faults: Any) -> tuple[int, Path]:
        """(process, where its result will be) of a round that runs from now on."""
        self._number += 1
        result = self.folder / f"{self._number}.json"
        return self._ask(begin=do, job=job, result=str(result), faults=faults), result

    def end(self, begun: tuple[int, Path]) -> Ended:
        """Waits for the end of a round."""
        pid, result = begun
        status = self._ask(end=pid)
        found = json.loads(result.read_text()) if result.exists() else {}
        result.unlink(missing_ok=True)
        return Ended(status, found.get("committed", []), found.get("error", {}), found.get("operations", 0))

    def run(self, do: str, job: dict[str, Any], after: float | None = None, **faults: Any) -> Ended:
        """A round from beginning to end; kill -9 `after` so many seconds."""
        begun = self.begin(do, job, **faults)
        if after is not None:
            time.sleep(after)
            os.kill(begun[0], signal.SIGKILL)  # nobody but `end` takes the number away
        return self.end(begun)


def run_stages(job: dict[str, Any]) -> list[str]:
    """All stages of a job in this process as its flow runs them, without Prefect and without a cluster."""
    from flows.job.job import make_job
    from tasks.cluster.local_pool import LocalPool
    from tasks.stages import commit, ingest, shuffle_write, statistics, transform
    from tests.stages import report_of

    made = make_job(job)
    request = made.request("pandas")
    staging, pool = request.staging, LocalPool(2)
    staging.check(made.output.on_existing)
    with staging.locked(wait=made.run.lock == "wait") as owner:
        staging.check(made.output.on_existing)
        request = replace(request, owner=owner)
        done = [ingest.ingest(request, pool), statistics.statistics(request, pool)]
        for split in request.splits:
            done += [
                transform.transform(request, split, pool),
                shuffle_write.shuffle_write(request, split, pool),
            ]
        with commit.Closing(request, report_of(request)) as closing:
            return [manifest.path for manifest in commit.commit(request, done, closing=closing)]


def run_flow(job: dict[str, Any]) -> list[str]:
    """The real flow, which starts its workers and reports to the session's server."""
    from infra.orchestration.server import ensure_server

    ensure_server()
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    from flows.preprocess import preprocess

    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        return list(preprocess(**job))


WORK = {"stages": run_stages, "flow": run_flow}


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


def child(question: dict[str, Any]) -> NoReturn:
    """Run the job in this fork, and end it without what only the parent may tidy up."""
    os.setsid()
    faulthandler.enable()
    answer: dict[str, Any] = {}
    operations = Operations(**question["faults"])
    try:
        answer["committed"] = WORK[question["begin"]](question["job"])
    except BaseException as error:
        traceback.print_exc()
        parts = {name: str(getattr(error, name, "") or "") for name in ("what", "where", "why", "do")}
        answer["error"] = {"type": type(error).__name__, "text": str(error), **parts}
    answer["operations"] = operations.count
    sys.stderr.flush()
    result = Path(question["result"])
    draft = result.with_suffix(".tmp")
    draft.write_text(json.dumps(answer))
    draft.rename(result)
    os._exit(0 if "committed" in answer else 1)


def main() -> None:
    """Forks as it is asked on stdin, a JSON object a line."""
    for module in ("flows.preprocess", "infra.workers.preimport", "tasks.report.page"):
        importlib.import_module(module)
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
                os.close(0)
                child(question)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
