"""The folder in which a run of a deployment works; Prefect must not import from it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from infra.orchestration.deployment_file import FOLDER
from tasks.errors import GiveUpError, JobError

TEMPORARY = re.compile(r"tmp[a-z0-9_]{8}prefect")  # the folder that a Prefect worker makes for a run and then removes


def enter_folder() -> None:
    """Go to the folder in the variable ROWMILL_FOLDER, if there is one; GiveUpError where it is not on this host.

    Relative paths of the job start there. Its modules come last in the search, so that a flows/ or tasks/ in it hides
    none of ours; Prefect would import from it first, were it the current folder while the flow is loaded.
    """
    folder = os.environ.get(FOLDER)
    try:
        os.chdir(folder or ".")
    except OSError as error:
        what = "the folder of the deployment is not here"
        do = f"mount it, or change {FOLDER} in its job_variables"
        raise GiveUpError(what, where=str(folder), why=str(error), do=do) from None
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def check_lasting(path: str | Path, key: str) -> None:
    """JobError where what a run writes would be in the temporary folder that Prefect removes when the run ends."""
    if any(TEMPORARY.fullmatch(part) for part in Path(path).absolute().parts):
        raise JobError(
            f"{key} would be lost",
            where=str(path),
            why="it starts in a temporary folder of Prefect, which is removed when the run ends",
            do=f"register the deployment with `rowmill deploy`, or write an absolute path, or name the folder of its "
            f"runs as {FOLDER} in work_pool.job_variables.env",
        )
