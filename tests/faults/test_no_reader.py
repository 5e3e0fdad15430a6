"""A run whose output nobody reads any more: its reader, a worker of Prefect or `head`, has ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prefect import get_client

from tests.conftest import python_path
from tests.faults.jobs import digests, make_data, make_job, run_flow

pytestmark = [pytest.mark.xdist_group("flows"), pytest.mark.timeout(900)]


@pytest.mark.promise("A run whose worker is gone goes on and commits", "flows/OPERATIONS.md#on-a-host-of-its-own")
def test_a_run_goes_on_when_nobody_reads_its_output(tmp_path: Path, prefect_server: Any) -> None:
    data = make_data(tmp_path / "data")
    assert run_flow(make_job(data, tmp_path / "quiet")).is_completed()
    (tmp_path / "job.json").write_text(json.dumps(make_job(data, tmp_path / "out")))
    command = [sys.executable, "-m", "tests.faults.run_job", str(tmp_path / "job.json")]
    environment = os.environ | {"PYTHONPATH": python_path(), "PREFECT_LOGGING_LEVEL": "INFO"}
    with subprocess.Popen(
        command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout
        first = next(line for line in process.stdout if "Beginning flow run" in line or "ingest on" in line)
        process.stdout.close()
        assert first
        process.wait(700)
    with get_client(sync_client=True) as client:
        said = [log.message for log in client.read_logs(limit=200)]
    assert digests(tmp_path / "out") == digests(tmp_path / "quiet"), (process.returncode, said)
