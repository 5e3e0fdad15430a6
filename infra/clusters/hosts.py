"""Clusters on hosts over SSH, as Dask's SSHCluster starts them: checks, certificates and folders on the hosts."""

from __future__ import annotations

import asyncio
import inspect
import shlex
import sys
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distributed.security import Security

from infra.clusters.encryption import contents_of
from infra.clusters.keywords import Keywords
from infra.clusters.remote import RunningCluster, library, without_current_folder
from tasks.errors import GiveUpError

if TYPE_CHECKING:
    from asyncssh import SSHClientConnection

    from infra.clusters.model import Cluster

ADVICE = "try by hand: `ssh HOST PYTHON -m dask worker --help`"
# Answers with what is missing there, one name a line.
LOOK = """import importlib.util, os, sys
for name in sys.argv[1].split(): print("" if importlib.util.find_spec(name) else f"the package {name}")
for path in sys.argv[2:]: print("" if os.path.isfile(path) else f"the file {path}")"""


@dataclass(frozen=True)
class Hosts:
    """The hosts of a cluster: how each is reached, its Python, the folder that rowmill makes there, and where an error
    says that they are named."""

    connections: dict[str, dict[str, Any]]
    python: dict[str, str]
    folder: str
    place: str


def is_on_hosts(chosen: Callable[..., Any]) -> bool:
    """Tell whether a class starts processes on hosts over SSH, as Dask's SSHCluster does."""
    return {"hosts", "connect_options", "remote_python"} <= inspect.signature(chosen).parameters.keys()


def prepare(opened: RunningCluster, cluster: Cluster, security: Security | None) -> Hosts:
    """Check the hosts, and place temporary certificates there in a folder of this user alone, which is removed when the
    cluster is closed; GiveUpError names the host that cannot be had, and why."""
    library("asyncssh", "asyncssh", "ssh", cluster.place)
    hosts = _hosts_of(cluster)
    needed = ["infra", "distributed", *(["cudf", "dask_cuda"] if cluster.gpus else [])]
    paths = list(cluster.tls.model_dump().values()) if cluster.tls else []
    _aside(_everywhere(hosts, _check, needed, paths))
    opened.on_close.append(lambda: _aside(_everywhere(hosts, _remove)))
    _aside(_everywhere(hosts, _make_spill_folder, contents_of(security)))
    return hosts


def _hosts_of(cluster: Cluster) -> Hosts:
    arguments = cluster.class_arguments
    names = list(arguments.get("hosts") or [])

    def by_host(value: Any) -> dict[str, Any]:
        values = value if isinstance(value, list) else [value] * len(names)
        return dict(zip(names, values, strict=False))

    return Hosts(
        connections=by_host(arguments.get("connect_options") or {}),
        python=by_host(arguments.get("remote_python") or sys.executable),
        folder=f"{cluster.local_directory or '/tmp'}/rowmill-ssh-{uuid.uuid4().hex}",
        place=cluster.place,
    )


def certificate_files(hosts: Hosts, security: Security | None) -> dict[str, str]:
    """Return the files of the temporary certificates that were placed on the hosts; {} where there are none."""
    return {name: f"{hosts.folder}/{name}.pem" for name in contents_of(security)}


def host_arguments(cluster: Cluster, arguments: Keywords, hosts: Hosts, security: Security | None) -> Keywords:
    """The arguments of the class on hosts that were prepared: certificates for its client, and where workers spill."""
    spill = {"local_directory": hosts.folder} | dict(arguments.get("worker_options") or {})
    python = arguments.get("remote_python") or sys.executable
    several = isinstance(python, list)  # one for each host
    command = [*map(without_current_folder, python)] if several else without_current_folder(python)
    more: Keywords = {"worker_options": spill, "remote_python": command}
    if security is not None:
        more["security"] = security
        more["scheduler_options"] = {"protocol": "tls://"} | dict(arguments.get("scheduler_options") or {})
    if cluster.preset and cluster.gpus:
        devices = ",".join(cluster.visible_devices or [str(number) for number in range(cluster.gpus)])
        more["remote_python"] = f"env CUDA_VISIBLE_DEVICES={devices} {command}"
    return arguments | more


async def _everywhere(hosts: Hosts, work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    """A coroutine over a connection to every host, all at once; GiveUpError for the first that cannot be reached."""
    import asyncssh

    async def on(name: str) -> None:
        try:
            async with asyncssh.connect(name, **hosts.connections[name]) as connection:
                await work(connection, name, hosts, *arguments)
        except (OSError, asyncssh.Error) as error:
            why = getattr(error, "reason", "") or str(error) or type(error).__name__
            raise GiveUpError(
                "a host cannot be reached by SSH",
                where=f"{hosts.place}: {name}",
                why=why,
                do=f"make `ssh {name} true` work without a password; check user, port, key and known_hosts",
            ) from None

    await asyncio.gather(*(on(name) for name in hosts.connections))


async def _check(connection: SSHClientConnection, name: str, hosts: Hosts, needed: list[str], paths: list[str]) -> None:
    """Rowmill is there, and so are the certificates that the job names."""
    python = hosts.python[name]
    look = f"-c {shlex.quote(LOOK)} {shlex.join([' '.join(needed), *paths])}"
    seen = await connection.run(f"{without_current_folder(python)} {look}")
    missing = [line for line in str(seen.stdout).splitlines() if line]
    if seen.exit_status or missing:
        why = f"missing: {', '.join(missing)}" if missing else str(seen.stderr).strip().rpartition("\n")[2]
        raise GiveUpError(
            "a host is not ready for workers",
            where=f"{hosts.place}: {name}, {python}",
            why=why,
            do="install this rowmill there, or name the Python that has it: ssh.python, or remote_python of a class",
        )


async def _make_spill_folder(connection: SSHClientConnection, name: str, hosts: Hosts, texts: dict[str, str]) -> None:
    """Make a folder that only this user can use, for spilled data, with the temporary certificates in it."""
    folder = shlex.quote(hosts.folder)
    done = await connection.run(f"mkdir -p {shlex.quote(hosts.folder.rpartition('/')[0])} && mkdir -m 700 {folder}")
    if done.exit_status:
        raise GiveUpError(
            "the folder for spilled data cannot be made",
            where=f"{hosts.place}: {name}, {hosts.folder}",
            why=str(done.stderr).strip(),
            do="set cluster.local_directory to a folder that you can write to there",
        )
    for part, text in texts.items():
        await connection.run(f"umask 077 && cat > {folder}/{part}.pem", input=text, check=True)


async def _remove(connection: SSHClientConnection, name: str, hosts: Hosts) -> None:
    await connection.run(f"rm -rf {shlex.quote(hosts.folder)}")


def _aside(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, also where this thread has an event loop already."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()
