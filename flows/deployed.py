"""Where a run of a deployment works: in the folder that the deployment names, which Prefect must not import from."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tasks.errors import GiveUpError

FOLDER = "MILLRACE_FOLDER"


def enter_folder() -> None:
    """Go to the folder in the variable MILLRACE_FOLDER, if there is one; GiveUpError where it is not on this host.

    Relative paths of the job start there. Its modules come last in the search, so that a flows/ or tasks/ in it hides
    none of ours; Prefect would import from it first, were it the current folder while the flow is loaded.
    """
    folder = os.environ.get(FOLDER)
    try:
        os.chdir(folder or ".")
    except OSError as error:
        what, do = "the folder of the deployment is not here", f"mount it, or change {FOLDER} in its job_variables"
        raise GiveUpError(what, where=str(folder), why=str(error), do=do) from None
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
