"""The job of a run: the parameters of its flow call, laid over those of its deployment."""

from __future__ import annotations

from collections.abc import Callable

from prefect import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound

from flows.job.dates import DateOf
from flows.job.deployed import enter_folder
from flows.job.job import Job, flat, is_written_out, make_job, overlay_job, read_job, with_whole_job
from flows.job.run_labels import label_host
from flows.job.yaml_lines import Lines
from tasks.core.strict_json import JsonObject
from tasks.errors import JobError
from tasks.storage.allowed_roots import check_path


def job_maker(parameters: JsonObject) -> Callable[[DateOf], Job]:
    """Return a function that gives the job of a run's parameters on a date; messages name the line of its job file."""
    lines = Lines()
    data = job_data(parameters, lines)
    return lambda date_of: make_job(data, lines, date_of)


def job_data(parameters: JsonObject, lines: Lines | None = None) -> JsonObject:
    """Return the job, as plain values: parameters that are null say nothing, and sections may be given in part.

    Prefect replaces a parameter of the deployment as a whole; here the keys of a section that the run does not name
    stay as the deployment has them, so that `-p output='{"seed": 1}'` changes the seed alone. A run of a deployment
    works in the deployment's folder. Where `job` names a job file, or has its text, all of it is laid over what stands
    there. The text of a whole job in `features` counts as what the run, or the deployment, says in its parameters.
    """
    label_host()
    lines = lines or Lines()
    values = {name: value for name, value in parameters.items() if value is not None and name != "dry_run"}
    deployed = {name: value for name, value in _of_deployment().items() if name != "dry_run"}
    data = overlay_job(with_whole_job(deployed, lines), with_whole_job(values, lines))
    file = data.pop("job", None)
    if file is None or file == "":
        return data
    if not isinstance(file, str):
        raise JobError("the job file needs a path", where="job", why=f"it is {file!r}", do="give the path as text")
    if not is_written_out(file):
        check_path(file, "job")
    written = read_job(file, lines=lines)
    for place, _ in flat(data):
        lines.forget_line(".".join(place))  # what is laid over a job file stands on none of its lines
    return overlay_job(written, data)


def _of_deployment() -> JsonObject:
    """Return the parameters of the deployment of the current run; empty without one, or when it is gone by now."""
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
