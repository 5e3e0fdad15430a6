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

# light runs at once, in addition to jobs: those of flows that look at a folder or wait (LIGHT in deployment_file.py)
LIGHT_LIMIT = 2
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

    At most `limit` jobs run at once; the others wait. Light runs do not wait for jobs. Runs start in the current
    folder. SIGTERM and Ctrl-C cancel the runs, pause the schedules and end this function; the next start resumes the
    schedules. A GiveUpError where another process of this host serves one of the deployments.
    """
    from prefect.runner import Runner

    check_notify(notify)
    _set_safe_path()
    specs = read_file(path)["deployments"]
    logging.getLogger("prefect.runner").addFilter(_make_capacity_filter())
    jobs: Any = Runner(name="rowmill", limit=limit, pause_on_shutdown=False)
    light: Any = Runner(name="rowmill-light", limit=LIGHT_LIMIT, pause_on_shutdown=False)
    with _lock_served(map(full_name, specs)):
        for spec in specs:
            with refusals("the Prefect server refuses a deployment", f"{path}: {full_name(spec)}"):
                (light if is_light(spec) else jobs).add_flow(flow_of(spec["entrypoint"]), **to_runner_arguments(spec))
        ensure_automations(notify)
        runners: list[Any] = []  # those that have a deployment
        if not all(map(is_light, specs)):
            runners.append(jobs)
        if any(map(is_light, specs)):
            runners.append(light)
        asyncio.run(_run_until_stopped(runners, [full_name(spec) for spec in specs]))


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


async def _run_until_stopped(runners: Sequence[Any], names: Sequence[str]) -> None:
    """Run until Ctrl-C or SIGTERM; then cancel the runs, and pause the schedules of the deployments of these names.

    Prefect's own handling of SIGTERM is not used. It raises SystemExit while schedules are being paused and leaves the
    runs running, and it pauses nothing behind a deployment that was deleted meanwhile.
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
    """Pause the schedules of the deployments that the server still has."""
    from prefect import get_client
    from prefect.exceptions import ObjectNotFound

    async with get_client() as client:
        for name in names:
            with suppress(ObjectNotFound):
                await client.pause_deployment((await client.read_deployment_by_name(name)).id)


@contextmanager
def _lock_served(names: Iterable[str]) -> Iterator[None]:
    """Hold a lock for each deployment: if two processes served it, the first that ends would pause its schedules."""
    with ExitStack() as locks:
        for name in names:
            lock = locks.enter_context(_locate_serving_file(name, ".lock").open("a+"))
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
    """Note which deployments of a file are served now; return those that the file has dropped since an earlier start.

    Only those are returned that were served from this host, and that the server still has.
    """
    from prefect import get_client
    from prefect.exceptions import ObjectNotFound

    def is_registered(name: str) -> bool:
        try:
            client.read_deployment_by_name(name)
        except ObjectNotFound:
            return False
        return True

    names = [full_name(spec) for spec in read_file(path)["deployments"]]
    note = _locate_serving_file(str(path.resolve()), ".json")
    try:
        noted = list(json.loads(note.read_text()))
    except (FileNotFoundError, ValueError):
        noted = []
    with get_client(sync_client=True) as client:
        dropped = [name for name in noted if name not in names and is_registered(name)]
    note.write_text(json.dumps([*names, *dropped]))  # each start names what left the file, until it is deleted
    return dropped


def _locate_serving_file(name: str, suffix: str) -> Path:
    """Name the lock or the note, on this host, of what is served under the current server: a deployment or a file."""
    from prefect.settings import PREFECT_API_URL

    digest = hashlib.sha256(f"{PREFECT_API_URL.value()} {name}".encode()).hexdigest()[:16]
    return prefect_home() / f"rowmill-serve-{digest}{suffix}"


class Deployed(NamedTuple):
    """The result of registering the deployments of a file for a pool."""

    names: list[str]  # of the file's deployments
    dropped: dict[str, Any]  # by name the id of deployments that the file no longer has
    others: list[str]  # names of other deployments in the pool
    moved: dict[str, str]  # by name the pool in which a deployment was before
    warning: str  # about the pool


def deploy(
    pool: str,
    path: Path = FILE,
    limit: int = 1,
    notify: str | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Deployed:
    """Register the deployments of a file for a work pool, which is made if there is none.

    A second call updates them. Runs start in the folder on the worker's host that is the current one here, unless the
    file names another (ROWMILL_FOLDER, or the pull step set_working_directory). `on_progress` gets the name of each
    deployment as it is registered. A GiveUpError with Prefect's own words if it refuses one.
    """
    check_notify(notify)
    data = read_file(path)
    warning = ensure_pool(pool, limit)
    source = str(path.resolve())
    folder = Path.cwd()
    for spec in data["deployments"]:
        complete(spec, data.get("pull"), folder, source)
        spec["work_pool"] = {**(spec.get("work_pool") or {}), "name": pool}
    names = [full_name(spec) for spec in data["deployments"]]
    pools_before = _find_pools(names)
    with tempfile.TemporaryDirectory(prefix="rowmill-") as temporary:
        copy = Path(temporary) / "prefect.yaml"
        copy.write_text(yaml.safe_dump(data, sort_keys=False))
        _call_prefect(temporary, on_progress, "deploy", "--all", "--prefect-file", str(copy))
    ensure_automations(notify)
    moved = {name: before for name, before in pools_before.items() if before != pool}
    dropped, others = _find_other_deployments(pool, source, names)
    return Deployed(names, dropped, others, moved, warning)


def _find_pools(names: Iterable[str]) -> dict[str, str]:
    """Find the pools of deployments, by their full names; without those that are in none or not registered."""
    from prefect import get_client
    from prefect.exceptions import ObjectNotFound

    pools = {}
    with get_client(sync_client=True) as client:
        for name in names:
            with suppress(ObjectNotFound):
                pools[name] = client.read_deployment_by_name(name).work_pool_name
    return {name: pool for name, pool in pools.items() if pool}


def prune(dropped: Mapping[str, Any]) -> None:
    """Delete deployments, with their runs that have not begun and the automations that their triggers have made."""
    from prefect import get_client

    with get_client(sync_client=True) as client:
        for deployment in dropped.values():
            client.delete_resource_owned_automations(f"prefect.deployment.{deployment}")
            client.delete_deployment(deployment)


def _find_other_deployments(pool: str, source: str, names: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Find the deployments in a pool that are not of these names: (id by name of those that the file once had, names of
    all others)."""
    from prefect import get_client
    from prefect.client.schemas.filters import WorkPoolFilter, WorkPoolFilterName

    dropped = {}
    others = []
    with get_client(sync_client=True) as client:
        for deployment in _list_deployments(client, WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))):
            name = f"{client.read_flow(deployment.flow_id).name}/{deployment.name}"
            if name in names:
                continue
            if ((deployment.job_variables or {}).get("env") or {}).get(SOURCE) == source:
                dropped[name] = deployment.id
            else:
                others.append(name)
    return dict(sorted(dropped.items())), sorted(others)


def _list_deployments(client: Any, of_pool: object) -> Iterator[Any]:
    """List deployments page by page: the server gives 200 at once."""
    offset = 0
    while page := client.read_deployments(work_pool_filter=of_pool, limit=200, offset=offset):
        yield from page
        offset += len(page)


def _call_prefect(folder: str, on_progress: Callable[[str], None], *arguments: str) -> None:
    """Run a command of this Prefect in `folder`: in the current folder it would import a flows/ that lies there."""
    _set_safe_path()
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


def ensure_pool(name: str, limit: int) -> str:
    """Create or update a process work pool that runs `limit` jobs and `LIGHT_LIMIT` light runs at once; return a
    warning about its job template, "" if it is fine.

    Jobs wait in its queue `default`, light runs in the queue `light`, so that they do not wait for jobs. A pool of
    another type only gets that queue.
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
    """Refuse what is not a URL to notify with a JobError. The URL may be a secret: only scheme and host are shown."""
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


def ensure_automations(notify: str | None = None) -> None:
    """Create or update the automations of automations.yaml; those that call a webhook only if its URL is known.

    A URL that was given once stays until another is given.
    """
    from prefect.automations import Automation

    check_notify(notify)
    for spec in fill_automations(ensure_webhook(WEBHOOK, notify), ensure_webhook(OUTPUTS_WEBHOOK)):
        automation = Automation.model_validate(spec)
        known_id = _find_automation(spec["name"])
        automation.id = known_id
        with refusals("the Prefect server refuses an automation", f"{AUTOMATIONS}: {spec['name']}"):
            if known_id:
                cast(Any, automation).update()
            else:
                cast(Any, automation).create()


def fill_automations(webhook: str | None, outputs_webhook: str | None = None) -> list[dict[str, Any]]:
    """Read automations.yaml, with the ids of the blocks of both webhooks, and without what needs a missing block."""
    # Jinja has braces of its own, so the places of these texts are words; "UI" comes last, since a URL may have others.
    run = " ".join(RUN_LINES.split("\n")).replace("OUTPUT", OUTPUT).replace("HOST", HOST).replace("UI", ui_url())
    specs = yaml.safe_load(AUTOMATIONS.read_text())
    for spec in specs:
        for action in spec["actions"]:
            if "block_document_id" in action:
                is_of_outputs = "outputs_webhook" in action["block_document_id"]
                action["block_document_id"] = outputs_webhook if is_of_outputs else webhook
                action["payload"] = action["payload"].replace("~ ROWMILL_RUN", run)
    return [spec for spec in specs if all(a.get("block_document_id", "") is not None for a in spec["actions"])]


def _find_automation(name: str) -> Any:
    from prefect import get_client

    with get_client(sync_client=True) as client:
        matches = client.read_automations_by_name(name)
    return matches[0].id if matches else None


def ensure_webhook(name: str, url: str | None = None) -> str | None:
    """Store the URL, which may be a secret, in a block; return the id of the block.

    Without a URL return the id of the block that an earlier call has stored; None if none has.
    """
    from prefect.blocks.webhook import Webhook

    if url is None:
        try:
            block: Any = Webhook.load(name)
        except ValueError:
            return None
        return str(block._block_document_id)
    block = Webhook(url=url, headers={"Content-Type": "application/json"})
    return str(block.save(name, overwrite=True))


def _set_safe_path() -> None:
    """Have child processes import nothing from the current folder, which may have a flows/ or tasks/ of its own."""
    os.environ["PYTHONSAFEPATH"] = "1"
