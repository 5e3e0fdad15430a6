"""Deployments of a prefect.yaml, served from one process or registered for a work pool."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import yaml

import infra
from infra.orchestration.deployment_file import (
    FILE,
    LIGHT,
    SOURCE,
    complete,
    flow_of,
    full_name,
    is_light,
    read_file,
    to_runner_arguments,
)
from infra.orchestration.pool_template import job_template, warn_of_template
from infra.orchestration.server import MOST_LETTERS, prefect_home, refusals, ui_url
from tasks.errors import GiveUpError, JobError, visible

LIGHT_LIMIT = 2  # light runs at once, beside the jobs
AUTOMATIONS = Path(infra.__file__).parent / "automations.yaml"
# blocks that hold a URL
WEBHOOK = "rowmill-notify"
OUTPUTS_WEBHOOK = "rowmill-notify-outputs"
# The lines of a notification that say which run it is, as an expression of Jinja. Before a run knows its host and its
# output (flows/run/signs_of_life.py), they are those of its worker and of its parameters.
RUN_LINES = """
 ~ "\\nrun: " ~ flow_run.name
 ~ ("\\noutput: " ~ OUTPUT if OUTPUT else "")
 ~ ("\\nhost: " ~ HOST if HOST else "")
 ~ "\\npage: UI/runs/flow-run/" ~ flow_run.id
"""
OUTPUT = '(flow_run.labels["rowmill.output"] or flow_run.parameters.output.path or deployment.parameters.output.path)'
HOST = '(flow_run.labels["rowmill.host"] or flow_run.labels["prefect.worker.name"])'


def serve(path: Path = FILE, limit: int = 1, notify: str | None = None) -> None:
    """Offer the deployments of a file from this process, each run in a process of its own, until it is stopped.

    At most `limit` jobs at once; the others wait. Light runs (a look at a folder) do not wait for jobs. The current
    folder is that of the runs. SIGTERM and Ctrl-C cancel the runs that go on, pause the schedules and end it; the next
    start takes them up again. A GiveUpError where another process of this host serves one of them.
    """
    from prefect.runner import Runner

    check_notify(notify)
    _safe_path()
    specs = read_file(path)["deployments"]
    logging.getLogger("prefect.runner").addFilter(_make_capacity_filter())
    jobs: Any = Runner(name="rowmill", limit=limit, pause_on_shutdown=False)
    light: Any = Runner(name="rowmill-light", limit=LIGHT_LIMIT, pause_on_shutdown=False)
    with _alone(map(full_name, specs)):
        for spec in specs:
            with refusals("the Prefect server refuses a deployment", f"{path}: {full_name(spec)}"):
                (light if is_light(spec) else jobs).add_flow(flow_of(spec["entrypoint"]), **to_runner_arguments(spec))
        keep_automations(notify)
        runners = [light if is_it else jobs for is_it in sorted(set(map(is_light, specs)))]
        asyncio.run(_until_stopped(runners, [full_name(spec) for spec in specs]))


def _make_capacity_filter() -> Callable[[logging.LogRecord], bool]:
    """Return a log filter that lets a runner report waiting runs once for each number of them."""
    last_texts: list[str] = []

    def first(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if not text.endswith("(at capacity)"):
            return True
        new = text not in last_texts
        last_texts[:] = [text]
        return new

    return first


async def _until_stopped(runners: Sequence[Any], names: Sequence[str]) -> None:
    """Run until Ctrl-C or SIGTERM; then cancel what runs and pause the schedules of the deployments of these names, in
    this order and to the end.

    Prefect's own handler of SIGTERM raises SystemExit into the pausing, and lets the runs go on; and its own pausing
    ends at a deployment that was deleted meanwhile.
    """
    serving = [asyncio.create_task(runner.start()) for runner in runners]
    stopping: list[asyncio.Task[None]] = []

    def stop() -> None:
        if not stopping:
            stopping.extend(asyncio.create_task(runner.astop()) for runner in runners)

    while not all(runner.started for runner in runners) and not any(task.done() for task in serving):
        await asyncio.sleep(0.05)
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stop)
    try:
        await asyncio.gather(*serving)
    finally:
        await _pause(names)


async def _pause(names: Iterable[str]) -> None:
    """Pause the schedules of deployments, as far as they are still there."""
    from prefect import get_client
    from prefect.exceptions import ObjectNotFound

    async with get_client() as client:
        for name in names:
            with suppress(ObjectNotFound):
                await client.pause_deployment((await client.read_deployment_by_name(name)).id)


@contextmanager
def _alone(names: Iterable[str]) -> Iterator[None]:
    """Hold a lock for each deployment, since the first process that ends pauses the schedules of what it serves."""
    with ExitStack() as locks:
        for name in names:
            lock = locks.enter_context(_note_of(name, ".lock").open("a+"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise GiveUpError(
                    f"another process serves {name} already",
                    where=f"process {lock.read()}",
                    why="both would run it, and the first that ends would pause the schedules of both",
                    do="end that one first, or give the deployments of --file other names",
                ) from None
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
        yield


def update_served_note(path: Path) -> list[str]:
    """Note which deployments of a file are served now; return those of earlier starts on this host that have left the
    file since and that the server still has."""
    from prefect import get_client
    from prefect.exceptions import ObjectNotFound

    def at_server(name: str) -> bool:
        try:
            client.read_deployment_by_name(name)
        except ObjectNotFound:
            return False
        return True

    names = [full_name(spec) for spec in read_file(path)["deployments"]]
    note = _note_of(str(path.resolve()), ".json")
    try:
        noted = list(json.loads(note.read_text()))
    except (FileNotFoundError, ValueError):
        noted = []
    with get_client(sync_client=True) as client:
        left = [name for name in noted if name not in names and at_server(name)]
    note.write_text(json.dumps([*names, *left]))  # what left the file is named at each start until it is deleted
    return left


def _note_of(name: str, suffix: str) -> Path:
    """A file of this host for a deployment, or a file of deployments, that is served under the current server."""
    from prefect.settings import PREFECT_API_URL

    digest = hashlib.sha256(f"{PREFECT_API_URL.value()} {name}".encode()).hexdigest()[:16]
    return prefect_home() / f"rowmill-serve-{digest}{suffix}"


class Deployed(NamedTuple):
    """The deployments of a file, those that left it (name, id), names of others in the pool, those that were in
    another pool (name, pool), and a warning about the pool."""

    names: list[str]
    left: dict[str, Any]
    others: list[str]
    moved: dict[str, str]
    warning: str


def deploy(
    pool: str,
    path: Path = FILE,
    limit: int = 1,
    notify: str | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Deployed:
    """Register the deployments of a file for a work pool, which is made if there is none.

    Done again it updates what is there. The current folder is that of the runs, on the host of the worker, unless the
    file names another (ROWMILL_FOLDER, or the pull step set_working_directory). `on_progress` gets the name of each
    deployment as it is registered. GiveUpError with Prefect's own words when it refuses one.
    """
    check_notify(notify)
    data = read_file(path)
    warning = keep_pool(pool, limit)
    source = str(path.resolve())
    folder = Path.cwd()
    for spec in data["deployments"]:
        complete(spec, data.get("pull"), folder, source)
        spec["work_pool"] = {**(spec.get("work_pool") or {}), "name": pool}
    names = [full_name(spec) for spec in data["deployments"]]
    pools = _pools_of(names)
    with tempfile.TemporaryDirectory(prefix="rowmill-") as temporary:
        (copy := Path(temporary) / "prefect.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
        _prefect(temporary, on_progress, "deploy", "--all", "--prefect-file", str(copy))
    keep_automations(notify)
    moved = {name: before for name, before in pools.items() if before != pool}
    return Deployed(names, *_not_of(pool, source, names), moved, warning)


def _pools_of(names: Iterable[str]) -> dict[str, str]:
    """The pools in which deployments are, by their full names; without those that are in none or not registered."""
    from prefect import get_client
    from prefect.exceptions import ObjectNotFound

    pools = {}
    with get_client(sync_client=True) as client:
        for name in names:
            with suppress(ObjectNotFound):
                pools[name] = client.read_deployment_by_name(name).work_pool_name
    return {name: pool for name, pool in pools.items() if pool}


def prune(left: Mapping[str, Any]) -> None:
    """Delete deployments, with the runs of theirs that have not begun and the automations that start others."""
    from prefect import get_client

    with get_client(sync_client=True) as client:
        for deployment in left.values():
            client.delete_resource_owned_automations(f"prefect.deployment.{deployment}")
            client.delete_deployment(deployment)


def _not_of(pool: str, source: str, names: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """(deployments of this file that it does not have any more, other deployments) in a pool, by their full names."""
    from prefect import get_client
    from prefect.client.schemas.filters import WorkPoolFilter, WorkPoolFilterName

    left = {}
    others = []
    with get_client(sync_client=True) as client:
        for deployment in _all_deployments(client, WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))):
            name = f"{client.read_flow(deployment.flow_id).name}/{deployment.name}"
            if name in names:
                continue
            if ((deployment.job_variables or {}).get("env") or {}).get(SOURCE) == source:
                left[name] = deployment.id
            else:
                others.append(name)
    return dict(sorted(left.items())), sorted(others)


def _all_deployments(client: Any, of_pool: object) -> Iterator[Any]:
    """Page by page: the server gives 200 at once."""
    offset = 0
    while page := client.read_deployments(work_pool_filter=of_pool, limit=200, offset=offset):
        yield from page
        offset += len(page)


def _prefect(folder: str, on_progress: Callable[[str], None], *arguments: str) -> None:
    """A command of this Prefect, called in `folder`: it would import a flows/ of the current one."""
    _safe_path()
    command = [sys.executable, "-P", "-m", "prefect", "--no-prompt", *arguments]
    # So wide that no name is broken into lines, and every line as soon as it is written.
    environment = {**os.environ, "PWD": str(Path.cwd()), "COLUMNS": "1000", "PYTHONUNBUFFERED": "1"}
    lines: list[str] = []
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.strip(" │\n"))
            if registered := re.search(r"Deployment '(.+)' successfully created", line):
                on_progress(registered[1])
    if process.returncode:
        why = "\n       ".join(line[:MOST_LETTERS] for line in lines if line)[-MOST_LETTERS:]
        raise GiveUpError("the deployments could not be registered", where=f"prefect {arguments[0]}", why=why)


def keep_pool(name: str, limit: int) -> str:
    """Make, or update, a process work pool that runs `limit` jobs at once, and beside them `LIGHT_LIMIT` runs of light
    flows; return a warning about its job template, "" without one.

    Jobs wait in its queue `default`, light runs (a look at a folder) in the queue `light`, so that they do not wait for
    jobs. A pool of another type stays as it is, but for that queue.
    """
    from prefect import get_client
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            pool = client.read_work_pool(name)
        except ObjectNotFound:
            template = job_template()
            description = "rowmill: the jobs of a host, one after another; looks at watched folders beside them"
            pool = client.create_work_pool(
                WorkPoolCreate(name=name, type="process", base_job_template=template, description=description)
            )
        queues = {queue.name: queue for queue in client.read_work_queues(work_pool_name=name)}
        if LIGHT not in queues:
            client.create_work_queue(LIGHT, work_pool_name=name, concurrency_limit=LIGHT_LIMIT)
        if pool.type == "process":
            client.update_work_queue(queues["default"].id, concurrency_limit=limit)
            client.update_work_pool(name, WorkPoolUpdate(concurrency_limit=limit + LIGHT_LIMIT))
            return warn_of_template(name, pool.base_job_template)
    return ""


def check_notify(url: str | None, option: str = "--notify") -> None:
    """A JobError for what is not a URL to notify; it may be a secret, so only its scheme and host are shown."""
    if url is None:
        return
    try:
        parts = urlsplit(url)
        scheme = parts.scheme
        host = parts.hostname or ""
    except ValueError:  # brackets around what is not an address
        scheme = ""
        host = ""
    if scheme in ("http", "https") and host:
        return
    shown = f"{scheme}://{host}" if scheme and "://" in url else "a text without a scheme"
    raise JobError(f"{option} needs an http or https URL, not {visible(shown)}", where=option, do="write https://..")


def keep_automations(notify: str | None = None) -> None:
    """The automations of automations.yaml as they stand there; those that call a webhook only if there is a URL for it.

    A URL that was given once stays until another is given.
    """
    from prefect.automations import Automation

    check_notify(notify)
    for spec in automations(keep_webhook(WEBHOOK, notify), keep_webhook(OUTPUTS_WEBHOOK)):
        automation = Automation.model_validate(spec)
        known_id = _automation_id(spec["name"])
        automation.id = known_id
        with refusals("the Prefect server refuses an automation", f"{AUTOMATIONS}: {spec['name']}"):
            if known_id:
                cast(Any, automation).update()
            else:
                cast(Any, automation).create()


def automations(webhook: str | None, outputs_webhook: str | None = None) -> list[dict[str, Any]]:
    """The content of automations.yaml with the ids of the blocks of both webhooks; without a block, what needs none."""
    run = " ".join(RUN_LINES.split("\n")).replace("OUTPUT", OUTPUT).replace("HOST", HOST).replace("UI", ui_url())
    specs = yaml.safe_load(AUTOMATIONS.read_text())
    for spec in specs:
        for action in spec["actions"]:
            if "block_document_id" in action:
                is_of_outputs = "outputs_webhook" in action["block_document_id"]
                action["block_document_id"] = outputs_webhook if is_of_outputs else webhook
                action["payload"] = action["payload"].replace("~ ROWMILL_RUN", run)
    return [spec for spec in specs if all(a.get("block_document_id", "") is not None for a in spec["actions"])]


def _automation_id(name: str) -> Any:
    from prefect import get_client

    with get_client(sync_client=True) as client:
        matches = client.read_automations_by_name(name)
    return matches[0].id if matches else None


def keep_webhook(name: str, url: str | None = None) -> str | None:
    """Keep the URL, which may be a secret, in a block; return the id of the block, None where no URL was ever given."""
    from prefect.blocks.webhook import Webhook

    if url is None:
        try:
            block: Any = Webhook.load(name)
        except ValueError:
            return None
        return str(block._block_document_id)
    block = Webhook(url=url, headers={"Content-Type": "application/json"})
    return str(block.save(name, overwrite=True))


def _safe_path() -> None:
    """Child processes import nothing from the current folder, which may have a flows/ or tasks/ of its own."""
    os.environ["PYTHONSAFEPATH"] = "1"
