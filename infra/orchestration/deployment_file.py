"""A prefect.yaml: the deployments of a file, looked at as a whole before any of them is offered or registered."""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

import infra
from infra import bounded_yaml
from infra.paths import expand_home
from tasks.errors import JobError, mistakes, near, place_text

FILE = Path(infra.__file__).parent / "prefect.yaml"
# variables of a run: where it works, its file
FOLDER = "ROWMILL_FOLDER"
SOURCE = "ROWMILL_DEPLOYED_FROM"
TAG = "rowmill"  # by which the automations know a run of rowmill
# the queue of runs that must not wait for jobs, and their flows
LIGHT = "light"
LIGHT_FLOWS = {"watch-source"}
WORKING_DIRECTORY = "prefect.deployments.steps.set_working_directory"
# Runs import nothing from the folder in which they work, start no server of their own, and nothing leaves the host.
ENVIRONMENT = {"PYTHONSAFEPATH": "1", "PREFECT_SERVER_EPHEMERAL_ENABLED": "false", "DO_NOT_TRACK": "1"}


# What Prefect reads of a deployment. Another key is left alone, unless it looks like one of these.
KEYS = [
    *("build", "concurrency_limit", "concurrency_options", "description", "enforce_parameter_schema", "entrypoint"),
    *("flow_name", "name", "parameter_openapi_schema", "parameters", "paused", "pull", "push", "schedule", "schedules"),
    *("sla", "tags", "triggers", "version", "version_type", "work_pool"),
]


class _Deployment(BaseModel):
    """The keys that rowmill reads of a deployment; Prefect knows more of them."""

    model_config = ConfigDict(extra="allow", strict=True)

    name: str = Field(min_length=1)
    entrypoint: str
    description: str | None = None
    tags: list[str] | None = None
    parameters: dict[str, Any] | None = None
    schedules: list[dict[str, Any]] | None = None
    triggers: list[dict[str, Any]] | None = None
    concurrency_limit: int | dict[str, Any] | None = None
    work_pool: dict[str, Any] | None = None


def read_file(path: Path = FILE) -> dict[str, Any]:
    """Read the content of a prefect.yaml; a JobError where it cannot be read, or where a deployment is not right."""
    try:
        data = bounded_yaml.load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: no UTF-8, or a date that does not exist
        do = "give the path of a valid YAML file, or leave --file out"
        raise JobError("the file of deployments cannot be read", where=str(path), why=str(error), do=do) from None
    if not isinstance(data, dict) or not isinstance(data.get("deployments"), list) or not data["deployments"]:
        do = f"begin with a copy of {FILE}"
        if isinstance(data, dict) and "source" in data:
            do = f"it is a job: {do}, and name the job in a deployment, `parameters: {{job: {path}}}`"
        raise JobError("the file has no deployments", where=str(path), do=do)
    names: set[str] = set()
    for number, spec in enumerate(data["deployments"]):
        where = f"{path}: deployments[{number}]"
        name = _check_deployment(spec, where)
        if name in names:
            raise JobError(f"there are two deployments {name}", where=where, do="give one of them another name")
        names.add(name)
    return data


def full_name(spec: Mapping[str, Any]) -> str:
    """Return the name of a deployment in Prefect: `flow/name`."""
    return f"{flow_of(spec['entrypoint']).name}/{spec['name']}"


def flow_of(entrypoint: str) -> Any:
    """Return the flow of `module.path.name`; Prefect's own loader would look in the current folder first."""
    module, _, name = entrypoint.rpartition(".")
    return getattr(importlib.import_module(module), name)


def complete(spec: dict[str, Any], pull: Sequence[object] | None, folder: Path, source: str) -> None:
    """Put what a run needs into a deployment that is registered for a worker, as far as the file does not say it.

    The worker starts each run in a temporary folder, which it removes afterwards. So a run goes to ROWMILL_FOLDER as
    soon as its flow is loaded: that of the file, else the directory of the pull step set_working_directory, else
    `folder`, in which relative ones start, too. With pull steps of other kinds (a clone) the file decides.
    """
    steps = spec["pull"] if spec.get("pull") is not None else pull
    directories = [_working_directory(step) for step in steps or []]
    pool = dict(spec.get("work_pool") or {})
    variables = dict(pool.get("job_variables") or {})
    environment = {**ENVIRONMENT, **(variables.get("env") or {}), SOURCE: source}
    if all(directory is not None for directory in directories):
        # No step goes there before the flow is loaded: Prefect would import a flows/ of that folder.
        spec["pull"] = [{WORKING_DIRECTORY: {"directory": "."}}]
        environment.setdefault(FOLDER, (directories or ["."])[-1])
    if FOLDER in environment and "{{" not in str(environment[FOLDER]):
        environment[FOLDER] = str(folder / expand_home(str(environment[FOLDER])))
    if is_light(spec):
        pool.setdefault("work_queue_name", LIGHT)
    spec["work_pool"] = pool | {"job_variables": variables | {"env": environment}}
    spec["tags"] = list_tags(spec)


def _working_directory(step: object) -> str | None:
    """The directory that a pull step sets; None for a step of another kind, or a directory that another step gives."""
    settings = step.get(WORKING_DIRECTORY) if isinstance(step, dict) else None
    directory = settings.get("directory") if isinstance(settings, dict) else None
    return directory if isinstance(directory, str) and "{{" not in directory else None


def is_light(spec: Mapping[str, Any]) -> bool:
    """True if the runs of a deployment take a second and no workers."""
    return flow_of(spec["entrypoint"]).name in LIGHT_FLOWS


def list_tags(spec: Mapping[str, Any]) -> list[str]:
    """List the tags of a deployment, with that of rowmill: without it no automation would look at its runs."""
    tags = list(spec.get("tags") or [])
    return tags if TAG in tags else [*tags, TAG]


def to_runner_arguments(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A deployment of the file as arguments of Prefect's runner, which serves it: no pool, schedules, triggers."""
    from prefect.client.schemas.objects import ConcurrencyLimitConfig
    from prefect.events import DeploymentEventTrigger
    from prefect.schedules import Schedule
    from prefect.types.entrypoint import EntrypointType

    limit = spec.get("concurrency_limit")
    return {
        "name": spec["name"],
        "description": spec.get("description"),
        "tags": list_tags(spec),
        "parameters": spec.get("parameters"),
        "schedules": [Schedule(**_schedule(one)) for one in spec.get("schedules") or []],
        "triggers": [DeploymentEventTrigger.model_validate(one) for one in spec.get("triggers") or []],
        "concurrency_limit": ConcurrencyLimitConfig(**limit) if isinstance(limit, dict) else limit,
        "paused": False,
        "entrypoint_type": EntrypointType.MODULE_PATH,
    }


def _schedule(schedule: Mapping[str, Any]) -> dict[str, Any]:
    seconds = schedule.get("interval")
    return {**schedule, "interval": timedelta(seconds=seconds)} if isinstance(seconds, int | float) else dict(schedule)


def _check_deployment(spec: object, where: str) -> str:
    """Check the full name of a deployment; a JobError where Prefect would refuse it, or find nothing to run."""
    if not isinstance(spec, dict) or not (spec.get("name") and spec.get("entrypoint")):
        do = "write name: nightly and entrypoint: flows.preprocess.preprocess"
        raise JobError("a deployment needs a name and an entrypoint", where=where, do=do)
    what = "a deployment is not valid"
    where = f"{where} ({spec['name']})"
    if "schedule" in spec:
        raise JobError(what, where=where, why="schedule is not read", do="write schedules: [..]")
    for key in spec.keys() - {*KEYS}:
        if difflib.get_close_matches(str(key), KEYS):
            raise JobError(what, where=where, why=f"{key} is not read", do=near(str(key), KEYS))
    try:
        _Deployment.model_validate(spec)
    except ValidationError as error:
        problems = [f"{place_text(one.place)}: {one.text}" for one in mistakes(error, spec)]
        raise JobError(what, where=where, why="; ".join(dict.fromkeys(problems))) from None
    from prefect.utilities.callables import parameter_schema

    flow = _flow(spec["entrypoint"], what, where)
    known = list(flow.parameters.properties)
    for name in spec.get("parameters") or {}:
        if name not in known:
            why = f"the flow {flow.name} has no parameter {name!r}"
            raise JobError(what, where=where, why=why, do=near(name, known))
    for value in _floats(spec.get("parameters")):
        if not math.isfinite(value):
            why = f"the server keeps parameters as JSON, which has no {value}"
            raise JobError(what, where=where, why=why, do=f"write {{float: {value}}} as the parameter of an operator")
    schema = dict(parameter_schema(flow).model_dump())  # the form, which `flow.parameters` does not know
    for number, section in enumerate([spec, *(spec.get("schedules") or [])]):
        if problem := _find_refusal(section.get("parameters") or {}, schema):
            place = f", schedules[{number - 1}]" if number else ""
            raise JobError(what, where=f"{where}{place}", why=problem, do="write what the form of the flow takes")
    try:
        flow.to_deployment(**to_runner_arguments(spec))
    except (TypeError, ValueError) as error:
        why = str(error).split("\n    For further information")[0]
        raise JobError(what, where=where, why=why) from None
    return full_name(spec)


def _floats(value: object) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _floats(inner)


def _find_refusal(parameters: Mapping[str, Any], schema: dict[str, Any]) -> str:
    """The parameters that the form of a flow refuses, in the server's words; "" if none, or if they hold templates,
    which only Prefect fills in."""
    from prefect.utilities.schema_tools.validation import ValidationError as Refused
    from prefect.utilities.schema_tools.validation import validate

    if "{{" in str(parameters):
        return ""
    # Only the call that raises checks the schema itself as well, which takes half a second for the form of a job.
    if not validate(dict(parameters), schema, ignore_required=True):
        return ""
    try:
        validate(dict(parameters), schema, raise_on_error=True, ignore_required=True)
    except Refused as error:
        return str(error)
    return ""


def _flow(entrypoint: str, what: str, where: str) -> Any:
    from prefect import Flow

    do = "write module.path.name, such as flows.preprocess.preprocess"
    try:
        flow = flow_of(entrypoint)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise JobError(what, where=where, why=f"entrypoint {entrypoint}: {error}", do=do) from None
    if not isinstance(flow, Flow):
        raise JobError(what, where=where, why=f"entrypoint {entrypoint} is not a flow", do=do)
    return flow
