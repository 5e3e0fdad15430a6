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
# The variables that a run may have. All others stay those of the worker, since no list of the dangerous ones is whole:
# LD_PRELOAD, OPENSSL_CONF, OMP_TOOL_LIBRARIES and ARROW_LIBHDFS_DIR load libraries, KUBECONFIG and AWS_CONFIG_FILE name
# commands, MPLBACKEND names a module, AWS_ENDPOINT_URL and AZURE_STORAGE_ACCOUNT_NAME say where the data go, and
# ROWMILL_* are limits of the host.
ALLOWED = (
    "ROWMILL_(FOLDER|DEPLOYED_FROM)",
    "PYTHON(SAFEPATH|UNBUFFERED|HASHSEED)",
    "PREFECT_(SERVER_EPHEMERAL_ENABLED|LOGGING_LEVEL)",
    "DO_NOT_TRACK",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "AWS_(ACCESS_KEY_ID|DEFAULT_REGION|REGION)",
    "AZURE_(CLIENT_ID|TENANT_ID)",
    "OPENLINEAGE_(NAMESPACE|ENDPOINT)",
    "OTEL_SERVICE_NAME",
    # secrets, which Prefect's blocks give, also for functions of one's own
    "(?!(ROWMILL|PREFECT|DASK|PYTHON|LD)_)[A-Z][A-Z0-9_]*_(KEY|TOKEN|SECRET|PASSWORD|USER)",
)
NAMES = f"^({'|'.join(ALLOWED)})$"


def job_template() -> dict[str, Any]:
    """Prefect's template of a process pool without `command` and `working_dir`, and with the allowed variables of the
    environment alone."""
    from prefect.workers.process import ProcessWorker

    template: dict[str, Any] = copy.deepcopy(ProcessWorker.get_default_base_job_template())
    properties = template["variables"]["properties"]
    for name in REMOVED:
        properties.pop(name, None)
        template["job_configuration"].pop(name, None)
    properties["env"] |= {
        "description": f"Environment variables of a run: {FOLDER}, {SOURCE}, regions, devices, threads, "
        "and names that end in _KEY, _TOKEN, _SECRET, _PASSWORD or _USER. All others are those of the worker.",
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
