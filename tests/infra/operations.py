"""What the tests of deployments share: `rowmill deploy` as a process and in this one, and what becomes of runs."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from rowmill.cli import app
from typer.testing import CliRunner

from infra.orchestration import deployments
from tests.conftest import python_path
from tests.infra.elsewhere import until

POOL = "rowmill-test"  # of the one worker
SMALL = {"sample": {"name": "toy", "rows": 2000}}
FINAL = ("Completed", "Failed", "Crashed", "Cancelled", "TimedOut")


def folder_with_decoys(folder: Path) -> Path:
    """A current folder whose own flows/, tasks/ and yaml.py must not be imported by anybody."""
    for name in ("flows/__init__.py", "tasks/__init__.py", "yaml.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("raise RuntimeError('a decoy was imported')\n")
    return folder


def started(folder: Path, *command: str, **variables: str) -> subprocess.Popen[str]:
    """A Python module with arguments, in that folder, knowing the session's server and this rowmill only."""
    environment = os.environ | variables | {"PYTHONPATH": python_path(), "PREFECT_WORKER_QUERY_SECONDS": "1",
                                            "PREFECT_RUNNER_POLL_FREQUENCY": "1"}  # fmt: skip
    with (folder / "log.txt").open("a") as log:
        return subprocess.Popen([sys.executable, "-P", "-m", *command], cwd=folder, env=environment, text=True,
                                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)  # fmt: skip


def ended(process: subprocess.Popen[str], timeout: float = 150) -> int:
    try:
        return process.wait(timeout)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def prefect_in_process() -> Iterator[None]:
    """Let `deployments.deploy` call Prefect's command line in this process while the block runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", python_path())
        patch.setenv("PYTHONSAFEPATH", "1")
        patch.setattr(deployments, "_call_prefect", call_prefect)
        yield


def call_prefect(folder: str, on_progress: Callable[[str], None], *arguments: str) -> None:
    """What `deployments._call_prefect` does by a process; it has no words for a refusal."""
    from prefect.cli import _app

    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said), warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        patch.setenv("PWD", str(Path.cwd()))
        patch.setenv("COLUMNS", "1000")
        patch.chdir(folder)
        # It would take away the handlers of pytest.
        patch.setattr("prefect.logging.configuration.setup_logging", lambda *_, **__: None)
        with pytest.raises(SystemExit) as end:
            _app._app.meta(["--no-prompt", *arguments])
        gc.collect()  # a command leaves its connections to the end of its process
    assert not end.value.code, said.getvalue()
    for name in re.findall(r"Deployment '(.+)' successfully created", said.getvalue()):
        on_progress(name)


def deploy(folder: Path, specs: list[dict[str, Any]], *arguments: str) -> str:
    """What `rowmill deploy --file own.yaml` says, called in this process in a folder."""
    (folder / "own.yaml").write_text(yaml.safe_dump({"deployments": specs}))
    with pytest.MonkeyPatch.context() as patch, prefect_in_process():
        patch.chdir(folder)
        patch.setattr("flows.job.access.serving_limits", list)  # they would hold for all of this process
        done = CliRunner().invoke(app, ["deploy", "--pool", POOL, "--file", "own.yaml", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def final_state(api: Any, run_id: Any, log: Path | None = None) -> str:
    def state() -> str | None:
        name = api.read_flow_run(run_id).state_name
        return name if name in FINAL else None

    try:
        return str(until(state, f"run {run_id} in {api.read_flow_run(run_id).state_name}"))
    except AssertionError as error:
        raise AssertionError(f"{error}\n{log.read_text()[-3000:] if log else ''}") from None


def runs_of(api: Any, name: str) -> list[Any]:
    """The runs of the deployments of a name."""
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName

    return list(api.read_flow_runs(deployment_filter=DeploymentFilter(name=DeploymentFilterName(any_=[name]))))


def pause_schedules(api: Any) -> None:
    """Let no deployment of the pool start a run by itself: a test says when."""
    from prefect.client.schemas.filters import WorkPoolFilter, WorkPoolFilterName

    of_pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL]))
    for deployment in api.read_deployments(work_pool_filter=of_pool, limit=200):
        if deployment.schedules:
            api.pause_deployment(deployment.id)


@contextlib.contextmanager
def paused_pool(api: Any) -> Iterator[None]:
    """Let the worker take no run while the block runs."""
    from prefect.client.schemas.actions import WorkPoolUpdate

    api.update_work_pool(POOL, WorkPoolUpdate(is_paused=True))
    try:
        yield
    finally:
        api.update_work_pool(POOL, WorkPoolUpdate(is_paused=False))


def watch_only(folder: Path) -> None:
    """Let `preprocess/on-new-data` start on what arrives in a folder, not on the files of other tests, too."""
    from prefect.automations import Automation
    from prefect.events.schemas.automations import ResourceSpecification

    automation: Any = Automation.read(name="rowmill-on-new-data")
    automation.trigger.match = ResourceSpecification({"prefect.resource.id": f"rowmill.source.{folder}/*"})
    automation.update()
