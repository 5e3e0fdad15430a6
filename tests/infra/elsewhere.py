"""Dask's own commands as processes of a test, certificates for them, and a small job over what they make up."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil

ROOT = Path(__file__).resolve().parents[2]
DASK = [sys.executable, "-W", "ignore", "-m", "dask"]


def environment(**more: str) -> dict[str, str]:
    """That of a process elsewhere: this rowmill, and only errors of Dask."""
    from tests.conftest import python_path  # which changes the variables of its process: not in one of a benchmark

    return os.environ | {"PYTHONPATH": python_path(), "DASK_LOGGING__DISTRIBUTED": "error"} | more


@contextmanager
def processes(commands: Sequence[list[str]], folder: Path, **more: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Commands that run while the block does; the last one is stopped first."""
    running = [subprocess.Popen(command, cwd=folder, env=environment(**more)) for command in commands]
    try:
        yield running
    finally:
        for process in reversed(running):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)


def fork_dask(words: Sequence[str], folder: Path, **more: str) -> Any:
    """Dask's command with these words as a running process: a fork of the workers' fork server, which has imported what
    a worker needs, with the folder, variables and settings of a process elsewhere."""
    from infra.workers import forkserver
    from tests.clusters import IMPORTS

    forkserver.start(IMPORTS.tasks)
    forks = multiprocessing.get_context("forkserver")
    process = forks.Process(target=run_dask, args=(list(words), str(folder), environment(**more)))
    process.start()
    return process


def run_dask(words: list[str], folder: str, variables: Mapping[str, str]) -> None:
    import dask.config
    from dask.cli import run_cli
    from distributed.config import initialize_logging

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    warnings.simplefilter("ignore")
    dask.config.refresh()
    initialize_logging(dask.config.config)
    sys.argv = ["dask", *words]
    run_cli()


def eventually(fact: Callable[[], Any], seconds: float = 180) -> Any:
    """What `fact` says as soon as it says something true; what it last said when time is up.

    Where it takes long to ask, or to come true, it is asked less often: what is waited for needs the cores.
    """
    first = began = time.monotonic()
    while not (said := fact()) and (now := time.monotonic()) < first + seconds:
        time.sleep(min(max(0.1, 9 * (now - began), (now - first) / 20), 1.0))
        began = time.monotonic()
    return said


def until(fact: Callable[[], Any], what: str, seconds: float = 300) -> Any:
    """What `fact` says as soon as it says something true; the test fails when time is up."""
    said = eventually(fact, seconds)
    assert said, f"{what}: not within {seconds} s"
    return said


def is_worker(process: psutil.Process) -> bool:
    """Whether it is a worker of a local cluster: with an interpreter of its own, or a fork of the fork server. A
    process that has ended is none."""
    try:
        command, parent = process.cmdline(), process.parent()
        if any("multiprocessing.forkserver" in word for word in command):
            return parent is not None and parent.cmdline() == command
        return any("spawn_main" in word for word in command)
    except psutil.NoSuchProcess:
        return False


def commands_with(text: str) -> list[str]:
    """Command lines of running processes that hold a text."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or [])
        if text in line and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(line)
    return found


def make_certificates(folder: Path) -> dict[str, str]:
    """An authority of its own and a certificate signed by it, as the section `tls` names them."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def signed(subject: str, key: Any, by: Any, authority: bool) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder().subject_name(name(subject)).issuer_name(name("authority"))
            .public_key(key.public_key()).serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )  # fmt: skip
        return made.sign(by, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    folder.mkdir(parents=True)
    root, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    plain = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    texts = {"ca": signed("authority", root, root, True), "cert": signed("worker", key, root, False), "key": plain}
    for part, text in texts.items():
        (folder / f"{part}.pem").write_bytes(text)
    return {part: str(folder / f"{part}.pem") for part in texts}


def tls_arguments(tls: dict[str, str]) -> list[str]:
    """The same for Dask's commands."""
    return ["--protocol", "tls", "--tls-ca-file", tls["ca"], "--tls-cert", tls["cert"], "--tls-key", tls["key"]]


def run_job(
    data: Path, out: Path, cluster: dict[str, Any], look: Callable[[Any], object] | None = None, **sections: Any
) -> Any:
    """The final state of a run of the flow over `data`, four files of one row group, on this cluster. `look` is called
    with the cluster that the run has started, before its first task."""
    from infra.orchestration import task_runner
    from tests.faults.jobs import make_job, run_flow

    job = make_job(data, out, **sections)
    with patch.object(task_runner, "make_cluster", partial(make_and_look, look) if look else task_runner.make_cluster):
        return run_flow({**job, "cluster": cluster})


def make_and_look(look: Callable[[Any], object], *arguments: Any) -> Any:
    """A running cluster, at which `look` has looked; where it fails, the cluster is closed."""
    from infra.clusters.kinds import make_cluster

    cluster = make_cluster(*arguments)
    try:
        look(cluster)
    except BaseException:
        cluster.close()
        raise
    return cluster


def digests(out: Path) -> list[tuple[int, str]]:
    """Rows and checksum of each part of an output."""
    from tasks.manifest import Manifest

    return [(part["rows"], part["xxh3_128"]) for part in Manifest.load(out).parts]
