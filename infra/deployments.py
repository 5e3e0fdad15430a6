"""What runs by itself: the deployments of prefect.yaml, served from one process or registered for a work pool."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import yaml

from infra.deployment_file import FILE, flow_of, full_name, offered, read_file
from infra.server import prefect_home
from tasks.errors import GiveUpError, JobError

AUTOMATIONS, WEBHOOK = Path(__file__).parent / "automations.yaml", "millrace-notify"
HEARTBEAT_SECONDS = 30  # the least that Prefect allows


def serve(path: Path = FILE, limit: int = 1, notify: str | None = None) -> None:
    """Offer the deployments of a file from this process, each run in a process of its own, until it is stopped.

    At most `limit` runs at once; the others wait. The current folder is that of the runs. SIGTERM and Ctrl-C cancel
    the runs that go on, pause the schedules and end it; the next start takes them up again. A GiveUpError where another
    process of this host serves one of them.
    """
    from prefect.runner import Runner

    _safe_path()
    specs = read_file(path)["deployments"]
    runner: Any = Runner(name="millrace", limit=limit, heartbeat_seconds=HEARTBEAT_SECONDS, pause_on_shutdown=True)
    with _alone(map(full_name, specs)):
        for spec in specs:
            runner.add_flow(flow_of(spec["entrypoint"]), **offered(spec))
        keep_automations(notify)
        asyncio.run(_until_stopped(runner))


async def _until_stopped(runner: Any) -> None:
    """Run until Ctrl-C or SIGTERM; then cancel what runs and pause the schedules, in this order and to the end.

    Prefect's own handler of SIGTERM raises SystemExit into the pausing, and lets the runs go on.
    """
    serving = asyncio.create_task(runner.start())
    stopping: list[asyncio.Task[None]] = []

    def stop() -> None:
        if not stopping:
            stopping.append(asyncio.create_task(runner.astop()))

    while not runner.started and not serving.done():
        await asyncio.sleep(0.05)
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stop)
    await serving


@contextmanager
def _alone(names: Iterable[str]) -> Iterator[None]:
    """As the only process of this host that serves these deployments: the one that ends pauses their schedules."""
    from prefect.settings import PREFECT_API_URL

    with ExitStack() as held:
        for name in names:
            digest = hashlib.sha256(f"{PREFECT_API_URL.value()} {name}".encode()).hexdigest()[:16]
            lock = held.enter_context((prefect_home() / f"millrace-serve-{digest}.lock").open("a+"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise GiveUpError(
                    f"another process serves {name} already", where=f"process {lock.read()}",
                    why="both would run it, and the first that ends would pause the schedules of both",
                    do="end that one first, or give the deployments of --file other names",
                ) from None  # fmt: skip
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
        yield


def deploy(pool: str, path: Path = FILE, limit: int = 1, notify: str | None = None) -> list[str]:
    """Register the deployments of a file for a work pool, which is made if there is none; their names.

    Done again it updates what is there. The current folder is that of the runs, on the host of the worker. GiveUpError
    with Prefect's own words when it refuses one.
    """
    data = read_file(path)
    for spec in data["deployments"]:
        spec["work_pool"] = {**(spec.get("work_pool") or {}), "name": pool}
    keep_pool(pool, limit)
    with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
        (copy := Path(folder) / "prefect.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
        _prefect(folder, "deploy", "--all", "--prefect-file", str(copy))
    keep_automations(notify)
    return [full_name(spec) for spec in data["deployments"]]


def _prefect(folder: str, *arguments: str) -> None:
    """A command of this Prefect, called in `folder`: it would import a flows/ of the current one."""
    _safe_path()
    command = [sys.executable, "-P", "-m", "prefect", "--no-prompt", *arguments]
    environment = {**os.environ, "PWD": str(Path.cwd())}
    done = subprocess.run(
        command, cwd=folder, env=environment, text=True, capture_output=True, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        why = "\n       ".join(said[-8:])
        raise GiveUpError("the deployments could not be registered", where=f"prefect {arguments[0]}", why=why)


def keep_pool(name: str, limit: int) -> None:
    """A process work pool that runs `limit` jobs at once; one of another type stays as it is."""
    from prefect import get_client
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
    from prefect.exceptions import ObjectNotFound
    from prefect.workers.process import ProcessWorker

    with get_client(sync_client=True) as client:
        try:
            found = client.read_work_pool(name)
        except ObjectNotFound:
            template = ProcessWorker.get_default_base_job_template()
            client.create_work_pool(
                WorkPoolCreate(name=name, type="process", base_job_template=template, concurrency_limit=limit,
                               description="millrace: the jobs of a host, one after another")
            )  # fmt: skip
        else:
            if found.type == "process" and found.concurrency_limit != limit:
                client.update_work_pool(name, WorkPoolUpdate(concurrency_limit=limit))


def keep_automations(notify: str | None = None) -> None:
    """The automations of automations.yaml as they stand there; the one that notifies only if there is a URL for it.

    A URL that was given once stays until another is given.
    """
    from prefect.automations import Automation

    webhook = _webhook(notify)
    for spec in yaml.safe_load(AUTOMATIONS.read_text()):
        for action in spec["actions"]:
            if "block_document_id" in action:
                action["block_document_id"] = webhook
        if all(action.get("block_document_id", "") is not None for action in spec["actions"]):
            automation = Automation.model_validate(spec)
            found = _automation_id(spec["name"])
            automation.id = found
            if found:
                cast(Any, automation).update()
            else:
                cast(Any, automation).create()


def _automation_id(name: str) -> Any:
    from prefect import get_client

    with get_client(sync_client=True) as client:
        found = client.read_automations_by_name(name)
    return found[0].id if found else None


def _webhook(url: str | None) -> str | None:
    """The id of the block that holds the URL, which may be a secret; None where none was ever given."""
    from prefect.blocks.webhook import Webhook

    if url is None:
        try:
            block: Any = Webhook.load(WEBHOOK)
        except ValueError:
            return None
        return str(block._block_document_id)
    if not url.startswith(("http://", "https://")):
        raise JobError(f"{url!r} is no URL to notify", where="--notify", do="write https://..")
    block = Webhook(url=url, headers={"Content-Type": "application/json"})
    return str(block.save(WEBHOOK, overwrite=True))


def _safe_path() -> None:
    """Child processes import nothing from the current folder, which may have a flows/ or tasks/ of its own."""
    os.environ["PYTHONSAFEPATH"] = "1"
