"""Runs of one process leave no scheduler behind, which is 1.8 MB for each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from distributed import core
from distributed.dashboard import scheduler as dashboard

from infra.clusters import closed_schedulers
from tests.faults.jobs import make_data, make_job
from tests.infra.elsewhere import environment

pytestmark = pytest.mark.system

RUNS = """
import gc, json, logging, sys, time

from distributed import Scheduler

from flows.preprocess import preprocess
from infra.clusters import closed_schedulers

logging.disable(logging.INFO)
for _ in range(6):
    preprocess(**json.loads(sys.argv[1]))
    closed_schedulers.forget()
    gc.collect()
for _ in range(20):  # threads of the last runs may still be ending
    gc.collect()
    left = sum(isinstance(o, Scheduler) for o in gc.get_objects())
    if left <= 3:
        break
    time.sleep(0.5)
print(left)
"""


def test_runs_of_one_process_leave_no_scheduler(tmp_path: Path, prefect_server: Any) -> None:
    output = {"on_existing": "replace"}
    job = make_job(make_data(tmp_path / "in", files=1), tmp_path / "out", output=output, run={"keep_replaced": 0})
    command = [sys.executable, "-c", RUNS, json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    # The last one, and those of one or two runs in which threads of Prefect began: these hold what was current then.
    assert int(done.stdout.splitlines()[-1]) <= 3


def test_the_caches_of_dask_are_where_they_are_emptied() -> None:
    assert callable(core._expects_comm.cache_clear)
    cache = closed_schedulers.cache_of(dashboard.template_variables)
    assert closed_schedulers.cache_of(dashboard.template_variables) is cache, "Dask or toolz keeps it elsewhere now"
    cache["a scheduler"] = {}
    core._expects_comm(print_nothing)
    closed_schedulers.forget()
    assert cache == {}
    assert core._expects_comm.cache_info().currsize == 0


def print_nothing(comm: Any) -> None:
    """A handler of a comm."""
