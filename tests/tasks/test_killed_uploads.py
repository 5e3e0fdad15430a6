"""Runs to an object store that are killed at every request that changes something there: nothing is lost or mixed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.object_store import ObjectStore, Request

pytestmark = pytest.mark.system


def write(source: str, out: str, options: dict[str, Any], seed: int, cache: str) -> None:
    """The work of a process of its own; `cache` is the folder of its mirrors, which another host does not have."""
    os.environ["XDG_CACHE_HOME"] = cache
    from tasks import ops
    from tasks.dataset import Dataset
    from tasks.workflow import Workflow

    rows = Workflow(["word"] >> ops.Categorify()).fit_transform(Dataset(source))
    rows.to_parquet(f"s3://shop/{out}", files=2, seed=seed, on_existing="version", storage_options=options)


SERVER = """
import json, os, sys
import tasks.stages.without_prefect
from tests.tasks.test_killed_uploads import write
for line in sys.stdin:
    verb, arguments = json.loads(line)
    if verb == "wait":
        status = os.waitpid(arguments, 0)[1]
        print(os.waitstatus_to_exitcode(status), flush=True)
        continue
    pid = os.fork()
    if not pid:
        code = 1
        try:
            write(*arguments)
            code = 0
        finally:
            os._exit(code)
    print(pid, flush=True)
"""


class Runs:
    """Processes that write versions: forks of a process of their own, which has loaded what they need."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        self._folder = folder
        self._options = options
        self._source = folder / "rows.parquet"
        words = np.random.default_rng(1).integers(0, 50, 500).astype(str)
        pq.write_table(pa.table({"word": words}), self._source)
        command = [sys.executable, "-c", SERVER]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, out: str, seed: int, host: str = "a") -> int:
        """Begin a run; its process. Another host has another folder of mirrors."""
        return self._ask("start", [str(self._source), out, self._options, seed, str(self._folder / f"host-{host}")])

    def wait(self, pid: int) -> int:
        """The exit code of a run; that of a signal is negative."""
        return self._ask("wait", pid)

    def _ask(self, verb: str, arguments: object) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([verb, arguments]) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture
def runs(tmp_path: Path, object_store: ObjectStore) -> Iterator[Runs]:
    made = Runs(tmp_path, object_store.options)
    with made.process:
        yield made
        assert made.process.stdin is not None
        made.process.stdin.close()


def stop_at_put(pid: Future[int], name: str) -> Callable[[Request], Any]:
    """Stops a process at its first put of an object, as a host that hangs."""
    done: list[Request] = []

    def choose(request: Request) -> None:
        if request.kind == "put" and name in request.path and not done:
            done.append(request)
            os.kill(pid.result(), signal.SIGSTOP)

    return choose


def list_whole_versions(store: ObjectStore, out: str) -> list[str]:
    """The versions that are published; each has exactly the parts of its manifest."""
    if f"{out}/_manifest.json" not in store.list_keys(out):
        return []
    pointer = json.loads(store.get(f"{out}/_manifest.json"))
    for entry in pointer["versions"]:
        prefix = f"{out}/{entry['prefix']}"
        manifest = json.loads(store.get(f"{prefix}/_manifest.json"))
        parts = {part["path"]: part["bytes"] for part in manifest["parts"]}
        keys = [key for key in store.list_keys(prefix) if key.endswith(".parquet")]
        assert {key.removeprefix(f"{prefix}/"): len(store.get(key)) for key in keys} == parts
    return [entry["name"] for entry in pointer["versions"]]


@pytest.mark.parametrize("fault", ["cut", "lost"])  # before the store has the request, and after
def test_a_kill_leaves_the_versions_before_it_or_one_more(
    runs: Runs, object_store: ObjectStore, fault: Literal["cut", "lost"]
) -> None:
    out = f"outputs/killed-{fault}"
    published: list[str] = []
    number = 0
    while True:
        number += 1
        seen: list[Request] = []
        running: Future[int] = Future()

        def kill(request: Request) -> Any:
            if request.path.startswith(f"/shop/{out}") and request.kind not in ("get", "head", "list"):
                seen.append(request)  # noqa: B023
                if len(seen) == number:  # noqa: B023
                    os.kill(running.result(), signal.SIGKILL)  # noqa: B023
                    return fault
            return None

        with object_store.proxy.failing(kill):
            running.set_result(runs.start(out, number))
            code = runs.wait(running.result())
        now = list_whole_versions(object_store, out)
        assert now[: len(published)] == published
        assert len(now) <= len(published) + 1
        published = now
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert number > 10
    assert published


def test_a_run_that_stood_still_publishes_nothing_once_another_has_the_lock(
    runs: Runs, object_store: ObjectStore
) -> None:
    out = "outputs/stopped"
    pid: Future[int] = Future()
    with object_store.proxy.failing(stop_at_put(pid, "part-00000")):
        first = runs.start(out, 1)
        pid.set_result(first)
        until = time.monotonic() + 60
        while Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < until
            time.sleep(0.02)
    lock = object_store.backend.get_object("shop", f"{out}/_lock.json")
    lock.last_modified -= timedelta(seconds=100)
    second = runs.start(out, 2, host="b")
    assert runs.wait(second) == 0
    os.kill(first, signal.SIGCONT)
    assert runs.wait(first) == 1
    assert list_whole_versions(object_store, out) == ["v0001"]
    pointer = json.loads(object_store.get(f"{out}/_manifest.json"))
    manifest = json.loads(object_store.get(f"{out}/{pointer['versions'][0]['prefix']}/_manifest.json"))
    assert manifest["seed"] == 2
