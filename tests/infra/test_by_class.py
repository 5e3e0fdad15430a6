"""The kind `class`: whole jobs through queues that a script plays, job scripts, what is refused, and what is closed."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.config
import psutil
import pytest
from distributed import Client, LocalCluster

from infra.clusters import by_class
from infra.clusters.encryption import temporary
from infra.clusters.expected import expected
from infra.clusters.model import Cluster
from infra.clusters.remote import RunningCluster
from infra.clusters.resolve import resolved
from tasks.errors import GiveUpError, JobError
from tasks.manifest import Manifest
from tests.clusters import IMPORTS, make_cluster
from tests.faults.jobs import BLOCK, digests, make_data
from tests.infra.elsewhere import ROOT, commands_with, eventually, run_job

pytest.importorskip("dask_jobqueue", reason="needs dask-jobqueue: pip install '.[test]'")
pytestmark = [pytest.mark.system, pytest.mark.xdist_group("clusters")]

SUBMIT = """#!/bin/bash
# A queue that runs each job at once: the script of the first argument, or of stdin, in a session of its own.
job=$(mktemp {folder}/job-XXXXXX.sh)
cat "${{1:-/dev/stdin}}" > "$job"
setsid bash "$job" > "$job.out" 2>&1 &
echo "Job <$!> is submitted"
"""
CANCEL = """#!/bin/bash
kill -- "-$1"
"""
COMMANDS = {"PBSCluster": ("qsub", "qdel"), "LSFCluster": ("bsub", "bkill")}


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the jobs of a queue whose commands are the first in PATH."""
    folder, place = tmp_path / "queue", tmp_path / "bin"
    folder.mkdir()
    place.mkdir()
    for submit, cancel in COMMANDS.values():
        for name, text in ((submit, SUBMIT.format(folder=folder)), (cancel, CANCEL)):
            (place / name).write_text(text)
            (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    return folder


def section(name: str, folder: Path, **more: Any) -> dict[str, Any]:
    """A cluster of dask-jobqueue with workers of one thread, whose jobs find this rowmill."""
    arguments = {"cores": 1, "memory": "1500MB", "python": sys.executable, "shared_temp_directory": str(folder),
                 "job_script_prologue": [f"export PYTHONPATH={ROOT}"], "local_directory": str(folder),
                 "interface": "lo"}  # fmt: skip
    return {"kind": "class", "cluster_class": f"dask_jobqueue.{name}", "cluster_kwargs": arguments, **more}


@pytest.mark.parametrize(
    ("name", "more"), [("PBSCluster", {"workers": 2}), ("LSFCluster", {"adapt_kwargs": {"minimum": 1, "maximum": 2}})]
)
def test_a_run_on_workers_from_a_queue(
    name: str, more: dict[str, Any], queue: Path, tmp_path: Path, prefect_server: Any
) -> None:
    data = make_data(tmp_path / "in", files=2)
    state = run_job(data, tmp_path / "out", section(name, tmp_path, **more))
    assert state.is_completed(), [log.read_text()[-2000:] for log in queue.glob("*.out")]
    manifest = Manifest.load(tmp_path / "out")
    assert sum(part["rows"] for part in manifest.parts) == 2 * BLOCK
    assert manifest.data["exchange"] == ("disk" if "adapt_kwargs" in more else "memory")
    scripts = [script.read_text() for script in queue.glob("*.sh")]
    assert len(scripts) == 2 if "workers" in more else scripts
    assert all("--tls-key" in script and "PRIVATE KEY" not in script for script in scripts)
    assert eventually(lambda: not commands_with(str(queue)))
    assert not list(tmp_path.glob(".dask-jobqueue*"))  # the certificates are removed


@pytest.mark.promise("follows the work between `minimum` and `maximum`")
def test_workers_that_come_and_go_in_the_middle_of_a_run_give_the_same_rows(
    tmp_path: Path, prefect_server: Any
) -> None:
    data = make_data(tmp_path / "in", files=8)
    breathing = {"cluster_class": "tests.infra.own_cluster.OwnCluster",
                 "cluster_kwargs": {"n_workers": 1, "threads_per_worker": 1, "memory_limit": "1GB"},
                 "adapt_kwargs": {"minimum": 1, "maximum": 4}}  # fmt: skip
    for name, cluster in (("one", {"kind": "cpu"}), ("four", breathing)):
        op = {"op": "tests.infra.own_cluster:Breathes", "scales": name == "four"}
        features = [{"columns": ["row"], "ops": [op]}, {"columns": ["name"], "ops": [{"op": "Categorify"}]}]
        assert run_job(data, tmp_path / name, cluster, features=features).is_completed()
    assert digests(tmp_path / "one") == digests(tmp_path / "four")
    assert Manifest.load(tmp_path / "four").data["exchange"] == "disk"
