"""The Prefect server dies in a run: the work goes on, the output is committed, and the command says so and ends."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from tests.conftest import free_port
from tests.faults.jobs import STAGES, make_data, make_job, plan_chaos
from tests.faults.rounds import Rounds, has_ended
from tests.faults.seeds import nightly
from tests.faults.small_blocks import ROWS
from tests.infra.elsewhere import until

pytestmark = [pytest.mark.xdist_group("rounds"), pytest.mark.timeout(600)]
SECONDS = 150.0  # in which the command has ended after its server died
UNRECORDED = 3
EACH_TIME = ("statistics",)  # the others with -m nightly
PATIENT = ("ingest", "shuffle_write")  # where a call is tried again as often as for users, which is a minute of waiting


@pytest.fixture
def own_server(tmp_path: Path, new_prefect_home: Callable[[Path], Path]) -> Iterator[dict[str, str | None]]:
    """The variables of commands that start a Prefect server of their own; it is stopped in the end."""
    yield {
        **{name: None for name in os.environ if name.startswith("PREFECT_")},
        "PREFECT_API_URL": None,
        "PREFECT_HOME": str(new_prefect_home(tmp_path / "prefect")),
        "PREFECT_SERVER_API_PORT": str(free_port()),
        "COLUMNS": "200",
    }
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
    stage: str, own_server: dict[str, str | None], tmp_path: Path, rounds: Rounds
) -> None:
    if stage not in PATIENT:
        own_server = own_server | {"PREFECT_CLIENT_MAX_RETRIES": "1"}
    make_data(tmp_path / "in", files=2, rows=ROWS)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(make_job(tmp_path / "in", tmp_path / "out")))
    plan = plan_chaos(tmp_path / "chaos.json", [{"at": STAGES[stage], "do": "hold"}])
    command = {"words": ["run", "job.yaml"], "folder": str(tmp_path), "environment": own_server}
    begun = rounds.begin("command", command, tmp_path / "said", in_workers=str(plan))
    process = psutil.Process(begun[0])
    try:
        held = tmp_path / "chaos.held"
        until(lambda: held.exists() or has_ended(process), "the worker is held", 300)
        assert not has_ended(process), (tmp_path / "said").read_text()
        assert kill_server(tmp_path)
        (tmp_path / "chaos.release").touch()
        began = time.monotonic()
        until(lambda: has_ended(process), "the command ends", 2 * SECONDS)
        seconds = time.monotonic() - began
    finally:
        process.kill()
        ended = rounds.end(begun)
    text = (tmp_path / "said").read_text()
    assert seconds < SECONDS, text
    assert ended.status == UNRECORDED, text
    assert "error: the Prefect server went away during the run" in text
    assert f"the output is committed and whole: {tmp_path}/out" in text
    assert "warning: the Prefect server does not answer" in text or "warning: an artifact could not" in text
    assert not [noise for noise in ("Traceback", "EventsWorker", "Error logging to API") if noise in text], text
    assert (tmp_path / "out" / "_manifest.json").exists()
    assert not (tmp_path / ".out.rowmill").exists()
