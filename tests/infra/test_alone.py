"""One process of a host serves a deployment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL

from infra.orchestration import deployments
from tasks.errors import GiveUpError
from tests.conftest import python_path

pytestmark = pytest.mark.system

SECOND = """
import sys
from infra.orchestration import deployments
from tasks.errors import GiveUpError
for _ in range(2):
    try:
        with deployments._lock_served(["preprocess/mine"]):
            print("served")
    except GiveUpError as error:
        print(error.what, flush=True)
        sys.stdin.readline()
"""


@pytest.mark.promise("`another process serves`")
def test_one_process_of_a_host_serves_a_deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployments, "prefect_home", lambda: tmp_path)
    environment = {"PREFECT_HOME": str(tmp_path), "HOME": str(tmp_path), "PYTHONPATH": python_path()}
    if url := PREFECT_API_URL.value():  # the lock is for a deployment of one server: both processes mean the same
        environment["PREFECT_API_URL"] = url
    with deployments._lock_served(["preprocess/mine"]):
        second = subprocess.Popen(
            [sys.executable, "-c", SECOND], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert second.stdout
        assert second.stdout.readline() == "another process serves preprocess/mine already\n"
        with pytest.raises(GiveUpError, match="another process serves"), deployments._lock_served(["preprocess/mine"]):
            pass
        with deployments._lock_served(["preprocess/other"]):
            pass
    said, _ = second.communicate("again\n", timeout=120)
    assert said == "served\n"
