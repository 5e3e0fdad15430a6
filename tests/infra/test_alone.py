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
from infra.orchestration import deployments
from tasks.errors import GiveUpError
try:
    with deployments._alone(["preprocess/mine"]):
        print("served")
except GiveUpError as error:
    print(error)
"""


def second(folder: Path) -> str:
    command = [sys.executable, "-c", SECOND]
    environment = {"PREFECT_HOME": str(folder), "HOME": str(folder), "PYTHONPATH": python_path()}
    if url := PREFECT_API_URL.value():  # the lock is for a deployment of one server: both processes mean the same
        environment["PREFECT_API_URL"] = url
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True).stdout


@pytest.mark.promise("`another process serves`")
def test_one_process_of_a_host_serves_a_deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployments, "prefect_home", lambda: tmp_path)
    with deployments._alone(["preprocess/mine"]):
        assert second(tmp_path).startswith("another process serves preprocess/mine already")
        with pytest.raises(GiveUpError, match="another process serves"), deployments._alone(["preprocess/mine"]):
            pass
        with deployments._alone(["preprocess/other"]):
            pass
    assert second(tmp_path) == "served\n"
