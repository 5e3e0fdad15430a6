"""A run whose output nobody reads any more: its reader, a worker of Prefect or `head`, has ended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from prefect import get_client

from tests.faults.jobs import digests, make_data, make_job
from tests.faults.rounds import Rounds

pytestmark = [pytest.mark.xdist_group("rounds"), pytest.mark.timeout(900)]


@pytest.mark.promise("A run whose worker is gone goes on and commits", "flows/OPERATIONS.md#on-a-host-of-its-own")
def test_a_run_goes_on_when_nobody_reads_its_output(tmp_path: Path, rounds: Rounds, prefect_server: Any) -> None:
    data = make_data(tmp_path / "data", files=1)
    assert rounds.run("stages", make_job(data, tmp_path / "quiet")).status == 0
    output = tmp_path / "output"
    os.mkfifo(output)
    run = rounds.begin("flow", make_job(data, tmp_path / "out"), output=output)
    with output.open() as reader:
        first = next(line for line in reader if "Beginning flow run" in line or "ingest on" in line)
    assert first
    ended = rounds.end(run)
    with get_client(sync_client=True) as client:
        said = [log.message for log in client.read_logs(limit=200)]
    assert digests(tmp_path / "out") == digests(tmp_path / "quiet"), (ended, said)
