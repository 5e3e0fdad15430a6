"""The job template of the pools that `deploy` makes: what a run's variables may say, at a real server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from infra.orchestration.deployments import ensure_pool
from infra.orchestration.pool_template import job_template, warn_of_template

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("published")]
OURS = {"PYTHONSAFEPATH": "1", "PREFECT_SERVER_EPHEMERAL_ENABLED": "false", "DO_NOT_TRACK": "1",
        "ROWMILL_FOLDER": "/jobs", "ROWMILL_DEPLOYED_FROM": "/jobs/prefect.yaml"}  # fmt: skip


@pytest.fixture
def pool(api: Any) -> Iterator[str]:
    name = f"pool-{uuid.uuid4().hex[:8]}"
    assert ensure_pool(name, 1) == ""
    assert ensure_pool(name, 1) == ""
    yield name
    api.delete_work_pool(name)


@pytest.fixture
def deployment(pool: str, api: Any) -> Any:
    """A deployment as `rowmill deploy` registers one."""
    from flows.watch_source import watch_source

    flow = api.create_flow(watch_source)
    return api.create_deployment(flow, pool, work_pool_name=pool, job_variables={"env": OURS})


REFUSED = {
    "command": {"command": "id"},
    "working_dir": {"working_dir": "/tmp"},
    "limits": {"env": {"ROWMILL_ALLOWED_ROOTS": "/"}},
    "modules": {"env": {"ROWMILL_FUNCTION_MODULES": "os"}},
    "a limit with a dot": {"env.ROWMILL_ALLOWED_ROOTS": "/"},
    "a name that begins like one of ours": {"env": {"ROWMILL_FOLDERS": "/"}},
    "code": {"env": {"PYTHONPATH": "/tmp"}},
    "code of the current folder": {"env": {"PYTHONSAFEPATH": ""}},
    "a library": {"env": {"LD_PRELOAD": "/tmp/x.so"}},
    "Dask's settings": {"env": {"DASK_DISTRIBUTED__WORKER__PRELOAD": "x"}},
    "Prefect's settings": {"env": {"PREFECT_LOGGING_SETTINGS_PATH": "/tmp/x.yml"}},
    "a shell": {"env": {"BASH_ENV": "/tmp/x"}},
    "a library of OpenSSL": {"env": {"OPENSSL_CONF": "/tmp/openssl.cnf"}},
    "commands for credentials": {"env": {"AWS_CONFIG_FILE": "/tmp/aws", "KUBECONFIG": "/tmp/kube"}},
    "a file's name": {"env": {"A B": "x"}},
}


@pytest.mark.promise(
    "template without them, in which variables cannot set `ROWMILL_*`", "infra/README.md#who-may-do-what"
)
@pytest.mark.parametrize("attack", REFUSED)
def test_the_variables_of_a_run_do_not_undo_limits(attack: str, deployment: Any, api: Any) -> None:
    from prefect.exceptions import PrefectHTTPStatusError

    with pytest.raises(PrefectHTTPStatusError, match="422"):
        api.create_flow_run_from_deployment(deployment, job_variables=REFUSED[attack])


@pytest.mark.promise("Variables of the worker itself, and values of Prefect's blocks in allowed variables, reach the")
def test_the_worker_s_variables_and_values_of_blocks_reach_the_run(
    pool: str, deployment: Any, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect import get_client
    from prefect.blocks.system import Secret
    from prefect.workers.process import ProcessJobConfiguration

    name = f"key-{pool}"
    Secret(value="hunter2").save(name, overwrite=True)
    monkeypatch.setenv("ROWMILL_ALLOWED_ROOTS", "/data")
    env = {"AWS_SECRET_ACCESS_KEY": f"{{{{ prefect.blocks.secret.{name} }}}}", "CUDA_VISIBLE_DEVICES": "1"}
    run = api.create_flow_run_from_deployment(deployment, job_variables={"env": env})

    async def resolve() -> ProcessJobConfiguration:
        async with get_client() as client:
            work_pool = await client.read_work_pool(pool)
            return await ProcessJobConfiguration.resolve_for_flow_run(
                run, client=client, work_pool=work_pool, worker_name="a"
            )

    configuration = asyncio.run(resolve())
    expected = {**OURS, "AWS_SECRET_ACCESS_KEY": "hunter2", "CUDA_VISIBLE_DEVICES": "1",
                "ROWMILL_ALLOWED_ROOTS": "/data"}  # fmt: skip
    assert {key: configuration.env.get(key) for key in expected} == expected
    assert configuration.command is not None
    assert configuration.command.endswith("-m prefect.engine")
    assert configuration.working_dir is None
    api.delete_block_document(api.read_block_document_by_name(name, "secret").id)


def test_an_older_pool_is_named(api: Any) -> None:
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.workers.process import ProcessWorker

    name = f"pool-{uuid.uuid4().hex[:8]}"
    template = ProcessWorker.get_default_base_job_template()
    api.create_work_pool(WorkPoolCreate(name=name, type="process", base_job_template=template))
    warning = ensure_pool(name, 1)
    assert warning.startswith(f"the pool {name} has another job template than rowmill's")
    assert warning.endswith("rowmill deploy --pool NAME")
    api.delete_work_pool(name)


def test_a_template_that_was_opened_is_named() -> None:
    assert warn_of_template("rowmill", job_template()) == ""
    for change in ("command", "working_dir"):
        template = job_template()
        template["variables"]["properties"][change] = {"type": "string"}
        assert warn_of_template("rowmill", template)
    template = job_template()
    del template["variables"]["properties"]["env"]["propertyNames"]
    assert warn_of_template("rowmill", template)
    assert warn_of_template("rowmill", {})
