"""Workers that are killed at bad moments come back, and their cluster closes."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest
from distributed import Client

from infra.clusters.model import Cluster
from tests.clusters import make_cluster
from tests.infra.elsewhere import is_worker

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("clusters")]


def next_worker(seen: set[int]) -> int:
    """The worker of this process' cluster that has just begun."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for child in psutil.Process().children(recursive=True):
            try:
                if child.pid not in seen and is_worker(child):
                    seen.add(child.pid)
                    return child.pid
            except psutil.NoSuchProcess:
                continue
    raise TimeoutError


def test_a_worker_killed_while_it_starts_is_started_again() -> None:
    seen = {child.pid for child in psutil.Process().children(recursive=True)}
    with make_cluster(Cluster(kind="cpu", workers=1)) as cluster:
        for moment in range(8):
            process = next_worker(seen)
            time.sleep(0.02 * moment)
            os.kill(process, signal.SIGKILL)
        with Client(cluster, set_as_default=False) as client:
            client.wait_for_workers(1, timeout=240)
            assert list(client.run(os.getpid).values()) == [next_worker(seen)]
