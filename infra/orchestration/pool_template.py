"""The job template of the pools that `rowmill deploy` makes: what the variables of a run may say.

Prefect's own template has the variables `command` and `working_dir`, and takes any variable of the environment: who
starts a run may have the worker run anything. The server checks the variables of each deployment, and of each run that
is started from one, against the schema of the pool's template.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from infra.orchestration.deployment_file import ENVIRONMENT, FOLDER, SOURCE

REMOVED = ("command", "working_dir")
# Variables that are limits of the host, or by which a process finds its code and its settings; values of blocks, such
# as keys of a storage, have other names.
RESERVED = (
    "ROWMILL_(?!(FOLDER|DEPLOYED_FROM)$)",
    "PYTHON(?!(SAFEPATH|UNBUFFERED|HASHSEED)$)",
    "PREFECT_(?!(SERVER_EPHEMERAL_ENABLED|LOGGING_LEVEL)$)",
    "(DASK|LD|XDG)_",
    "(PATH|HOME|ENV|BASH_ENV)$",
)
NAMES = f"^(?!{'|'.join(RESERVED)})[A-Za-z_][A-Za-z0-9_]*$"


def job_template() -> dict[str, Any]:
    """Prefect's template of a process pool without `command` and `working_dir`, and without reserved variables of the
    environment."""
    from prefect.workers.process import ProcessWorker

    template: dict[str, Any] = copy.deepcopy(ProcessWorker.get_default_base_job_template())
    properties = template["variables"]["properties"]
    for name in REMOVED:
        properties.pop(name, None)
        template["job_configuration"].pop(name, None)
    properties["env"] |= {
        "description": f"Environment variables of a run. Limits of the host ({FOLDER} and {SOURCE} are none), and what "
        "a process finds its code by, are those of the worker.",
        "propertyNames": {"pattern": NAMES},
        "properties": {"PYTHONSAFEPATH": {"const": ENVIRONMENT["PYTHONSAFEPATH"]}},
    }
    template["variables"]["additionalProperties"] = False  # env.NAME, too, would set a variable
    return template


def warn_of_template(pool: str, template: Mapping[str, Any]) -> str:
    """What to say of a process pool whose template lets runs set more than ours does; "" for ours."""
    variables = template.get("variables") or {}
    properties = variables.get("properties") or {}
    names = (properties.get("env") or {}).get("propertyNames")
    if (
        names == {"pattern": NAMES}
        and variables.get("additionalProperties") is False
        and not {*REMOVED} & {*properties}
    ):
        return ""
    return (
        f"the pool {pool} has another job template than rowmill's: who may start runs with job variables may run any "
        f"command as the worker's user, whatever the limits of the host; register with a new one: "
        "rowmill deploy --pool NAME"
    )
