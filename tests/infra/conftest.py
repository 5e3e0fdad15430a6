"""One world of operations for the session: the deployments of infra/prefect.yaml, and a worker of their pool."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.job.access import CLUSTERS, SWITCHES
from tests.infra.operations import POOL, ended, folder_with_decoys, pause_schedules, started, watch_only


@pytest.fixture(scope="session")
def home(prefect_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which `rowmill deploy` was called, with decoys in it; log.txt is what it said.

    What the deployments would start by themselves is left to the tests. The automations go after them: the server looks
    at them for each event of other tests.
    """
    from prefect import get_client

    folder = folder_with_decoys(tmp_path_factory.mktemp("deployed"))
    assert ended(started(folder, "rowmill", "deploy", "--pool", POOL)) == 0, (folder / "log.txt").read_text()
    watch_only(folder)
    with get_client(sync_client=True) as client:
        pause_schedules(client)
        yield folder
        for name in ("zombie-runs", "zombie-starts", "on-new-data"):
            for automation in client.read_automations_by_name(f"rowmill-{name}"):
                client.delete_automation(automation.id)


@pytest.fixture(scope="session")
def worker(home: Path, cluster: Any, engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A process worker of the pool, started elsewhere, whose runs may use the session's cluster; its log. The runs are
    forks, but for those that ask for a process of their own."""
    folder = tmp_path_factory.mktemp("worker")
    # A run on GPUs is not forked: what CUDA has set up in a process does not work in its forks.
    program = "prefect" if engine == "cudf" else "tests.infra.forking_worker"
    command = ("worker", "start", "--pool", POOL, "--name", "the-worker")
    process = started(folder, program, *command, **{CLUSTERS: cluster.scheduler_address, SWITCHES: "tls"})
    yield folder / "log.txt"
    process.terminate()
    ended(process)
