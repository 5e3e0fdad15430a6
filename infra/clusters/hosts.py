"""The kind `ssh`: a scheduler and workers on hosts that answer SSH, by Dask's SSHCluster. Needs the extra `ssh`."""

from __future__ import annotations

import asyncio
import shlex
import sys
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import dask.config
from distributed import SpecCluster, SSHCluster
from distributed.security import Security

from infra.clusters.encryption import contents_of, protocol_of, security_of
from infra.clusters.model import Ssh
from infra.clusters.remote import (
    CUDA_CLASS,
    IDLE_SECONDS,
    LOOPBACK,
    SAYS_START,
    RunningCluster,
    library,
    worker_options,
    worker_settings,
)
from infra.workers.imports import WorkerImports
from tasks.errors import GiveUpError

if TYPE_CHECKING:
    from asyncssh import SSHClientConnection

    from infra.clusters.model import Cluster

# Answers with what is missing there, one name a line.
LOOK = """import importlib.util, os, sys
for name in sys.argv[1].split(): print("" if importlib.util.find_spec(name) else f"the package {name}")
for path in sys.argv[2:]: print("" if os.path.isfile(path) else f"the file {path}")"""


def open_hosts(opened: RunningCluster, cluster: Cluster, imports: WorkerImports) -> None:
    """Start scheduler and workers, each on its host; GiveUpError names the host that cannot be had, and why."""
    section = cluster.ssh
    assert section is not None
    library("asyncssh", "asyncssh", "ssh")
    security = opened.security = security_of(cluster)
    texts, folder = contents_of(security), f"{cluster.local_directory or '/tmp'}/rowmill-ssh-{uuid.uuid4().hex}"
    files = {name: f"{folder}/{name}.pem" for name in texts} or (cluster.tls.model_dump() if cluster.tls else None)
    _aside(_everywhere(section, _check, cluster))
    opened.on_close.append(lambda: _aside(_everywhere(section, _remove, folder)))
    _aside(_everywhere(section, _place, texts, folder))
    started = _start_processes(cluster, security, files, folder, imports)
    opened.on_close.append(started.close)
    opened.scheduler_address = started.scheduler_address


def _start_processes(
    cluster: Cluster, security: Security | None, files: dict[str, str] | None, scratch: str, imports: WorkerImports
) -> SpecCluster:
    section = cluster.ssh
    assert section is not None
    options = worker_options(cluster, section.gpus, imports) | {"local_directory": scratch}
    scheduler: dict[str, Any] = {
        "protocol": f"{protocol_of(cluster, security)}://",
        "port": 0,
        "dashboard": cluster.dashboard,
        "dashboard_address": LOOPBACK,
        "idle_timeout": f"{IDLE_SECONDS}s",
    }
    if cluster.interface:
        scheduler["interface"] = cluster.interface
    python = section.python or sys.executable
    if section.gpus:
        devices = ",".join(cluster.visible_devices or [str(number) for number in range(section.gpus)])
        python = f"env CUDA_VISIBLE_DEVICES={devices} {python}"
    settings = worker_settings(cluster, section.gpus, files, imports) | SAYS_START
    settings["temporary-directory"] = scratch  # the scheduler's is there, too
    try:
        with dask.config.set(settings):
            return SSHCluster(
                [section.hosts[0], *section.hosts],
                connect_options=section.connection(),
                worker_options=options,
                scheduler_options=scheduler,
                remote_python=f"{python} -P",
                security=security,
                worker_class=CUDA_CLASS if section.gpus else "distributed.Nanny",
            )
    except Exception as error:
        raise GiveUpError(
            "the workers could not be started over SSH",
            where=", ".join(dict.fromkeys(section.hosts)),
            why=f"{type(error).__name__}: {error}",
            do="try by hand: `ssh HOST " + (section.python or sys.executable) + " -m dask worker --help`",
        ) from None


async def _everywhere(section: Ssh, work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    """A coroutine over a connection to every host, all at once; GiveUpError for the first that cannot be reached."""
    asyncssh = library("asyncssh", "asyncssh", "ssh")

    async def on(host: str) -> None:
        try:
            async with asyncssh.connect(host, **section.connection()) as connection:
                await work(connection, host, *arguments)
        except (OSError, asyncssh.Error) as error:
            why = getattr(error, "reason", "") or str(error) or type(error).__name__
            raise GiveUpError(
                "a host cannot be reached by SSH",
                where=f"cluster.ssh: {host}",
                why=why,
                do=f"make `ssh {host} true` work without a password; check user, port, key and known_hosts",
            ) from None

    await asyncio.gather(*(on(host) for host in dict.fromkeys(section.hosts)))


async def _check(connection: SSHClientConnection, host: str, cluster: Cluster) -> None:
    """Rowmill is there, and so are the certificates that the job names."""
    section = cluster.ssh
    assert section is not None
    python = section.python or sys.executable
    needed = "infra distributed" + (" cudf dask_cuda" if section.gpus else "")
    paths = list(cluster.tls.model_dump().values()) if cluster.tls else []
    seen = await connection.run(f"{python} -P -c {shlex.quote(LOOK)} {shlex.join([needed, *paths])}")
    missing = [line for line in str(seen.stdout).splitlines() if line]
    if seen.exit_status or missing:
        why = f"missing: {', '.join(missing)}" if missing else str(seen.stderr).strip().rpartition("\n")[2]
        raise GiveUpError(
            "a host is not ready for workers",
            where=f"cluster.ssh: {host}, {python}",
            why=why,
            do="install this rowmill there, or set cluster.ssh.python to the Python that has it",
        )


async def _place(connection: SSHClientConnection, host: str, texts: dict[str, str], folder: str) -> None:
    """A folder that only this user can use, for spilled data, with the temporary certificates in it."""
    command = f"mkdir -p {shlex.quote(folder.rpartition('/')[0])} && mkdir -m 700 {shlex.quote(folder)}"
    done = await connection.run(command)
    if done.exit_status:
        raise GiveUpError(
            "the folder for spilled data cannot be made",
            where=f"cluster.ssh: {host}, {folder}",
            why=str(done.stderr).strip(),
            do="set cluster.local_directory to a folder that you can write to there",
        )
    for name, text in texts.items():
        await connection.run(f"umask 077 && cat > {shlex.quote(folder)}/{name}.pem", input=text, check=True)


async def _remove(connection: SSHClientConnection, host: str, folder: str) -> None:
    await connection.run(f"rm -rf {shlex.quote(folder)}")


def _aside(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, also where this thread has an event loop already."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()
