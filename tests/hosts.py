"""A host of a test's own: a folder with a deployment over it, a Prefect server, and commands that share them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.conftest import free_port, python_path

# `rowmill` whose runs are forks of one process that has loaded what they import: for tests that are not about the
# process of a run. Prefect's runner would give each an interpreter of its own. And it keeps no automations, which a
# server of many tests would look at for each of their events.
FORKING = """
from infra.orchestration import deployments
from rowmill.cli import main
from tests.forking import fork_runs

deployments.ensure_automations = lambda notify: None
fork_runs()
main()
"""
START = "from infra.orchestration.server import ensure_server; print(ensure_server().api_url)"


class Host:
    """The deployment `preprocess/nights` of a job, in nights.yaml of a folder, and a Prefect server in it."""

    def __init__(self, folder: Path, job: dict[str, Any], poll_seconds: int, **deployment: Any) -> None:
        self.folder, self.home, self.port = folder, folder / "prefect", free_port()
        spec = {"name": "nights", "entrypoint": "flows.preprocess.preprocess", "parameters": job, **deployment}
        (folder / "nights.yaml").write_text(yaml.safe_dump({"name": "n", "deployments": [spec]}))
        known = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_API")}
        self.environment = known | {
            "PREFECT_HOME": str(self.home), "PREFECT_SERVER_API_PORT": str(self.port), "PYTHONPATH": python_path(),
            "PREFECT_RUNNER_POLL_FREQUENCY": str(poll_seconds), "HOME": str(folder),
        }  # fmt: skip

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start Python with these arguments; what it prints goes to the log of all commands."""
        with (self.folder / "log.txt").open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-P", *arguments], cwd=self.folder, env=self.environment, text=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def rowmill(self, *arguments: str) -> subprocess.Popen[str]:
        return self.start("-m", "rowmill", *arguments)

    def serve(self) -> subprocess.Popen[str]:
        """Serve the deployment; its runs are forks of one process."""
        return self.start("-c", FORKING, "serve", "--file", "nights.yaml")

    def start_server(self) -> None:
        assert self.start("-c", START).wait(150) == 0, self.log

    def kill_server(self) -> None:
        process = psutil.Process(json.loads((self.home / "rowmill-server.json").read_text())["pid"])
        process.kill()
        psutil.wait_procs([process], 20)

    @property
    def log(self) -> str:
        path = self.folder / "log.txt"
        return path.read_text() if path.exists() else ""

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"
