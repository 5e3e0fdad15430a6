"""Train a model on a published output, as soon as it is published: the deployment `train` of infra/prefect.yaml."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from prefect import flow, get_run_logger

import flows
from flows.job.deployed import enter_folder
from flows.job.run_labels import label_host
from flows.run.run_names import run_name
from tasks.errors import GiveUpError, JobError
from tasks.manifest import outputs
from tasks.storage.allowed_roots import check_path
from tasks.storage.discarded import is_discarded
from tasks.storage.published_copy import open_published

EXAMPLE = Path(flows.__file__).parent / "recipes" / "torch_example.py"


@flow(name="train", persist_result=False, flow_run_name=run_name)
def train(path: str, version: str = "", storage_options: str | None = None) -> str:
    """Train the PyTorch example on a published output; returns the folder or URL that it reads, which may be its split
    train.

    The example runs in a process of its own and writes to the log of the run. A run that is cancelled ends it.

    Args:
        path: folder or URL of the output, or of the version, that was published
        version: name of the version, such as v0006; for people who look at the runs
        storage_options: for URLs, a name; the options are the JSON in the variable ROWMILL_STORAGE_<NAME>
    """
    label_host()
    enter_folder()
    check_path(path, "path")
    with open_published(path, storage_options, "the output", "path") as origin:
        folders = outputs(origin.folder) if origin.folder.is_dir() else []
        if not folders:
            raise JobError(
                "there is no output to train on", where=path, do="give the path that a publication has named"
            )
        if is_discarded(origin.folder):
            raise JobError("the output was discarded after its publication", where=path, do="train on another version")
        place = origin.name(folders[0])
    if importlib.util.find_spec("torch") is None:
        raise JobError("the example needs PyTorch", where=str(EXAMPLE), do="pip install 'rowmill[torch]'")
    get_run_logger().info("training on %s", place)
    _run([sys.executable, "-P", str(EXAMPLE), place, *([storage_options] if storage_options else [])])
    return place


def _run(command: list[str]) -> None:
    """Run a command and log its lines; a GiveUpError if it fails. Whatever ends this run ends the command."""
    log = get_run_logger()
    lines = list[str]()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                lines = [*lines[-9:], line.rstrip()]
                log.info("%s", line.rstrip())
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        raise GiveUpError(
            "the training failed", where=command[-1], why=" / ".join(lines), do="the log of this run has all its lines"
        )
