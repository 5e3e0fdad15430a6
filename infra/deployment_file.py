"""A prefect.yaml: the deployments of a file, looked at as a whole before any of them is offered or registered."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tasks.errors import JobError, near

FILE = Path(__file__).parent / "prefect.yaml"


class _Deployment(BaseModel):
    """The keys that millrace reads of a deployment; Prefect knows more of them."""

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
    """The content of a prefect.yaml; a JobError where it cannot be read, or where a deployment is not right."""
    try:
        data = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise JobError("the file of deployments cannot be read", where=str(path), why=str(error)) from None
    if not isinstance(data, dict) or not isinstance(data.get("deployments"), list) or not data["deployments"]:
        raise JobError("the file has no deployments", where=str(path), do=f"begin with a copy of {FILE}")
    names: set[str] = set()
    for number, spec in enumerate(data["deployments"]):
        where = f"{path}: deployments[{number}]"
        name = _checked(spec, where)
        if name in names:
            raise JobError(f"there are two deployments {name}", where=where, do="give one of them another name")
        names.add(name)
    return data


def full_name(spec: Mapping[str, Any]) -> str:
    """What Prefect calls a deployment: `flow/name`."""
    return f"{flow_of(spec['entrypoint']).name}/{spec['name']}"


def flow_of(entrypoint: str) -> Any:
    """The flow of `module.path.name`; Prefect's own loader would look in the current folder first."""
    module, _, name = entrypoint.rpartition(".")
    return getattr(importlib.import_module(module), name)


def offered(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A deployment of the file as arguments of Prefect's runner, which serves it: no pool, schedules, triggers."""
    from prefect.client.schemas.objects import ConcurrencyLimitConfig
    from prefect.events import DeploymentEventTrigger
    from prefect.schedules import Schedule
    from prefect.types.entrypoint import EntrypointType

    limit = spec.get("concurrency_limit")
    return {
        "name": spec["name"],
        "description": spec.get("description"),
        "tags": spec.get("tags"),
        "parameters": spec.get("parameters"),
        "schedules": [Schedule(**_schedule(given)) for given in spec.get("schedules") or []],
        "triggers": [DeploymentEventTrigger.model_validate(given) for given in spec.get("triggers") or []],
        "concurrency_limit": ConcurrencyLimitConfig(**limit) if isinstance(limit, dict) else limit,
        "paused": False,
        "entrypoint_type": EntrypointType.MODULE_PATH,
    }


def _schedule(given: Mapping[str, Any]) -> dict[str, Any]:
    seconds = given.get("interval")
    return {**given, "interval": timedelta(seconds=seconds)} if isinstance(seconds, int | float) else dict(given)


def _checked(spec: Any, where: str) -> str:
    """The full name of a deployment; a JobError where Prefect would refuse it, or find nothing to run."""
    if not isinstance(spec, dict) or not (spec.get("name") and spec.get("entrypoint")):
        raise JobError("a deployment needs a name and an entrypoint", where=where)
    what, where = "a deployment is not right", f"{where} ({spec['name']})"
    if "schedule" in spec:
        raise JobError(what, where=where, why="schedule is not read", do="write schedules: [..]")
    try:
        _Deployment.model_validate(spec)
    except ValidationError as error:
        said = [f"{'.'.join(map(str, problem['loc'][:2]))}: {problem['msg']}" for problem in error.errors()]
        raise JobError(what, where=where, why="; ".join(dict.fromkeys(said))) from None
    flow = _flow(spec["entrypoint"], what, where)
    known = list(flow.parameters.properties)
    for name in spec.get("parameters") or {}:
        if name not in known:
            why = f"the flow {flow.name} has no parameter {name!r}"
            raise JobError(what, where=where, why=why, do=near(name, known))
    try:
        flow.to_deployment(**offered(spec))
    except (TypeError, ValueError) as error:
        why = str(error).split("\n    For further information")[0]
        raise JobError(what, where=where, why=why) from None
    return full_name(spec)


def _flow(entrypoint: str, what: str, where: str) -> Any:
    from prefect import Flow

    do = "write module.path.name, such as flows.preprocess.preprocess"
    try:
        flow = flow_of(entrypoint)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise JobError(what, where=where, why=f"entrypoint {entrypoint}: {error}", do=do) from None
    if not isinstance(flow, Flow):
        raise JobError(what, where=where, why=f"entrypoint {entrypoint} is no flow", do=do)
    return flow
