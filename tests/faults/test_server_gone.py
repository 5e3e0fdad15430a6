"""The Prefect server dies in a run: the work goes on, the output is committed, and the command says so and ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from tests.conftest import free_port, python_path
from tests.faults import chaos
from tests.faults.jobs import STAGES, make_data, make_job, plan_chaos
from tests.faults.seeds import nightly
from tests.infra.elsewhere import until

pytestmark = [pytest.mark.xdist_group("killed-flow"), pytest.mark.timeout(600)]
COMMAND = [sys.executable, "-X", "faulthandler", "-P", "-c", "from rowmill.cli import main; main()", "run", "job.yaml"]
SECONDS = 150.0  # in which the command has ended after its server died
UNRECORDED = 3
EACH_TIME = ("statistics", "shuffle_write")  # one stage of each kind of patience; the others with -m nightly
PATIENT = ("ingest", "shuffle_write")  # where a call is tried again as often as for users, which is a minute of waiting


@pytest.fixture
def own_server(tmp_path: Path, new_prefect_home: Callable[[Path], Path]) -> Iterator[dict[str, str]]:
    """The environment of commands that start a Prefect server of their own; it is stopped in the end."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment = known | {
        "PREFECT_HOME": str(new_prefect_home(tmp_path / "prefect")), "PREFECT_SERVER_API_PORT": str(free_port()),
        "COLUMNS": "200", "PYTHONPATH": python_path(), chaos.VARIABLE: str(tmp_path / "chaos.json"),
        "DASK_DISTRIBUTED__WORKER__PRELOAD": "tests.faults.chaos",
    }  # fmt: skip
    yield environment
    kill_server(tmp_path)


def kill_server(folder: Path) -> bool:
    note = folder / "prefect" / "rowmill-server.json"
    pid = json.loads(note.read_text())["pid"] if note.exists() else None
    if pid is None or not psutil.pid_exists(pid):
        return False
    for process in [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]:
        process.send_signal(signal.SIGKILL)
    return True


@pytest.mark.promise("Then the command ends with exit status 3, within 150 s of the server's death or of the commit")
@pytest.mark.promise("`the Prefect server went away during the run`")
@pytest.mark.parametrize("stage", [*EACH_TIME, *nightly((stage,) for stage in STAGES if stage not in EACH_TIME)])
def test_a_server_that_dies_in_a_stage_costs_neither_the_output_nor_minutes(
    stage: str, own_server: dict[str, str], tmp_path: Path
) -> None:
    if stage not in PATIENT:
        own_server = own_server | {"PREFECT_CLIENT_MAX_RETRIES": "1"}
    make_data(tmp_path / "in", files=2)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(make_job(tmp_path / "in", tmp_path / "out")))
    plan_chaos(tmp_path / "chaos.json", [{"at": STAGES[stage], "do": "hold"}])
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(COMMAND, cwd=tmp_path, env=own_server, stdout=said, stderr=subprocess.STDOUT)
        try:
            held = tmp_path / "chaos.held"
            until(lambda: held.exists() or process.poll() is not None, "the worker is held", 300)
            assert process.poll() is None, (tmp_path / "said").read_text()
            assert kill_server(tmp_path)
            (tmp_path / "chaos.release").touch()
            began = time.monotonic()
            status = process.wait(2 * SECONDS)
        finally:
            process.kill()
            process.wait(30)
    text = (tmp_path / "said").read_text()
    assert time.monotonic() - began < SECONDS, text
    assert status == UNRECORDED, text
    assert "error: the Prefect server went away during the run" in text
    assert f"the output is committed and whole: {tmp_path}/out" in text
    assert "warning: the Prefect server does not answer" in text or "warning: an artifact could not" in text
    assert not [noise for noise in ("Traceback", "EventsWorker", "Error logging to API") if noise in text], text
    assert (tmp_path / "out" / "_manifest.json").exists()
    assert not (tmp_path / ".out.rowmill").exists()
