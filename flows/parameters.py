"""What was said of a run: the parameters of a flow call, and those of the deployment that they are laid over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefect import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound

from flows.deployed import enter_folder
from flows.job import laid_over


def job_data(given: Mapping[str, Any]) -> dict[str, Any]:
    """The job, as plain values: parameters that are null say nothing, and sections may be given in part.

    Prefect replaces a parameter of the deployment as a whole; here the keys of a section that the run does not name
    stay as the deployment has them, so that `-p output='{"seed": 1}'` changes the seed alone. A run of a deployment
    works in the deployment's folder.
    """
    said = {name: value for name, value in given.items() if value is not None}
    deployed = {name: value for name, value in _of_deployment().items() if name != "dry_run"}
    return laid_over(deployed, said)


def _of_deployment() -> dict[str, Any]:
    """The parameters of the deployment of the current run; empty without one, or when it is gone by now."""
    context = FlowRunContext.get()
    deployment = getattr(context.flow_run, "deployment_id", None) if context else None
    if deployment is None:
        return {}
    enter_folder()
    try:
        with get_client(sync_client=True) as client:
            return dict(client.read_deployment(deployment).parameters)
    except ObjectNotFound:
        return {}
