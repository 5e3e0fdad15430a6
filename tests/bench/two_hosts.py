"""Recipes on two hosts, a worker on each, beside the same workers on one host: digests, seconds, bytes by each way.

    python -m tests.bench.two_hosts --engine cudf --folder /dev/shm/rowmill-hosts --out tests/bench/results/NAME.json
    python -m tests.bench.two_hosts --rows toy=1000000 criteo=100000 --folder /tmp/hosts --out hosts.json

The two hosts are namespaces of this machine: each has a network, process ids, mounts, a /dev/shm and a name of its own,
and a cable (a veth pair) joins them. Workers can then neither read each other's memory nor open each other's GPU
memory: all goes over TLS, or with `--protocol ucx` over UCX, which may use TCP only. It takes root; where namespaces
are refused, the hosts are two addresses of the loopback, and workers do not offer their memory. The result says which.

A host has one worker: a GPU, or half of the cores. The first of `--repeats` + 1 runs does not count. The exit status is
1 where digests differ.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.infra.elsewhere import DASK, make_certificates, tls_arguments

ROOT = Path(__file__).resolve().parents[2]
# What `dask cuda worker` needs to allocate and share memory as rowmill's own workers do: infra/README.md.
PRE_IMPORT = ("cudf,cupy,infra.workers.gpu_preload,tasks.cluster.transfer.gpu_worker,flows.preprocess,"
              "infra.workers.preimport")  # fmt: skip
NAMESPACES = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--kill-child", "--mount-proc"]
# A name and a /dev/shm of its own; $1, the folder of the benchmark, stays in sight where it lies in /dev/shm.
OWN = """hostname "$0"; folder=$1; shift
case $folder in /dev/shm/*) mount --bind "$folder" /mnt;; esac
mount -t tmpfs none /dev/shm || exit 1
case $folder in /dev/shm/*) mkdir -p "$folder"; mount --bind /mnt "$folder";; esac
exec "$@"
"""
WAY = re.compile(r"([\d.,]+ [kMGT]?B) between workers by ([a-z ]+)")


@dataclass(frozen=True)
class Host:
    """Where processes run: an address, and the words before their commands."""

    address: str
    words: tuple[str, ...] = ()


def refusal() -> str:
    """Why this machine has no namespaces for hosts; "" where it has."""
    if missing := [tool for tool in ("ip", "unshare") if not shutil.which(tool)]:
        return f"{missing[0]} is not installed"
    with suppress(subprocess.CalledProcessError), cabled() as (name, _):
        entered = ["ip", "netns", "exec", name, *NAMESPACES, "mount", "-t", "tmpfs", "none", "/dev/shm"]
        return "" if subprocess.run(entered, capture_output=True).returncode == 0 else "mounts are refused"
    return "network namespaces are refused"


@contextmanager
def cabled() -> Iterator[list[str]]:
    """The names of two network namespaces with a cable between them."""

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    names = [f"rowmill-{os.getpid()}-{letter}" for letter in "ab"]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "cable", "netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[1])
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-n", name, "link", "set", device, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


ADDRESSES = ("10.213.7.1", "10.213.7.2")


@contextmanager
def two_hosts(folder: Path) -> Iterator[list[Host]]:
    """Two hosts that share the disk, and the folder where it lies in /dev/shm."""
    with cabled() as names:
        yield [
            Host(address, ("ip", "netns", "exec", name, *NAMESPACES, "sh", "-c", OWN, name, str(folder)))
            for name, address in zip(names, ADDRESSES, strict=True)
        ]


@contextmanager
def running(commands: Sequence[tuple[Host, list[str]]], folder: Path, **more: str) -> Iterator[None]:
    """Commands that run on their hosts while the block does; `unshare` passes no signal on but its own death."""
    options: dict[str, Any] = {"cwd": folder, "env": os.environ | more, "stdout": subprocess.DEVNULL}
    started = [subprocess.Popen([*host.words, *words], **options) for host, words in commands]
    try:
        yield
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()


def worker(host: Host, gpus: str, address: str, folder: Path, engine: str, lends: bool) -> list[str]:
    """The command of the worker of a host, or of one for each of its GPUs: each sees all of them, as CUDA IPC needs.
    `lends`: others of its host may copy out of its memory."""
    common = [address, "--host", host.address, "--dashboard-address", f"{host.address}:0",
              "--local-directory", str(folder / f"worker{gpus}")]  # fmt: skip
    if engine == "pandas":
        preloads = ["infra.workers.preload", *(["tasks.cluster.transfer.host_memory"] if lends else [])]
        threads = max(1, len(os.sched_getaffinity(0)) // 2)
        return [*DASK, "worker", *common, "--nthreads", str(threads),
                *(word for name in preloads for word in ("--preload", name))]  # fmt: skip
    ucx = address.startswith("ucx")
    pool = {} if ucx else {"limit": 0.92, "shared": lends}
    memory = ["--rmm-pool-size", "0.6", "--device-memory-limit", "0.45"] if ucx else ["--device-memory-limit", "0.45"]
    return [
        "env", f"CUDA_VISIBLE_DEVICES={gpus}", f"DASK_ROWMILL__GPU_POOL={pool!r}", *DASK, "cuda", "worker",
        *common, "--nthreads", "16", *memory, "--set-rmm-allocator-for-libs", "cupy", "--pre-import", PRE_IMPORT,
    ]  # fmt: skip


def measure(
    hosts: Sequence[Host], folder: Path, runs: Sequence[dict[str, Any]], engine: str = "pandas", protocol: str = "tls",
    lends: bool = True, options: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """A scheduler, a Prefect server and the flow on the first host, a worker with these options on each; what `session`
    prints."""
    folder.mkdir(parents=True, exist_ok=True)
    first, port, server_port = hosts[0], free_port(), free_port()
    apart = hosts[0] != hosts[1]
    tls = make_certificates(folder / "tls") if protocol == "tls" else {}
    connection = tls_arguments(tls) if tls else ["--protocol", protocol]
    address, api = f"{protocol}://{first.address}:{port}", f"http://{first.address}:{server_port}/api"
    where = {"kind": "address", "address": address, **({"tls": tls} if tls else {"unencrypted": True})}
    scheduler = [*DASK, "scheduler", *connection, "--host", first.address, "--port", str(port),
                 "--dashboard-address", f"{first.address}:0"]  # fmt: skip
    server = [sys.executable, "-P", "-m", "prefect", "server", "start", "--host", first.address,
              "--port", str(server_port), "--no-services"]  # fmt: skip
    places = [(host, str(number)) for number, host in enumerate(hosts)]
    places = [(first, "0,1")] if engine == "cudf" and not apart else places
    ours = [*connection, *options]
    workers = [(host, worker(host, gpus, address, folder, engine, lends) + ours) for host, gpus in places]
    paths = [str(ROOT), f"{ROOT}/flows/public", *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {"PYTHONPATH": os.pathsep.join(paths), "DASK_LOGGING__DISTRIBUTED": "error",
                 "PREFECT_HOME": str(folder / "prefect"),
                 "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "PREFECT_API_URL": api,
                 **({"UCX_TLS": "tcp,cuda_copy"} if protocol == "ucx" and apart else {})}  # fmt: skip
    spec = folder / "session.json"
    spec.write_text(json.dumps({"where": where, "api": api, "workers": len(hosts), "runs": runs}))
    with running([(first, server), (first, scheduler), *workers], folder, **variables):
        command = [*first.words, sys.executable, "-m", "tests.bench.two_hosts", "--session", str(spec)]
        ended = subprocess.run(command, cwd=ROOT, env=os.environ | variables, stdout=subprocess.PIPE, text=True)
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith('{"')]
    if ended.returncode or not lines:
        sys.exit(f"the runs failed with status {ended.returncode}: {ended.stdout[-2000:]}")
    return dict(lines[-1])


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def session(spec: dict[str, Any]) -> dict[str, Any]:
    """In the process of the flow: wait for everything, then run; who the workers are, and each run with its ways."""
    from distributed import Client

    from infra.clusters.encryption import security_of
    from infra.clusters.model import Cluster
    from tests.bench.gpu import run_flow

    wait_for(f"{spec['api']}/health")
    cluster = Cluster(**spec["where"])
    with Client(cluster.address, security=security_of(cluster), set_as_default=False, timeout="120s") as client:
        client.wait_for_workers(spec["workers"], timeout=300)
        workers = [client.run(identity)[address] for address in sorted(client.nthreads())]
    runs = []
    for run in spec["runs"]:
        target = Path(run["target"])
        runs.append(run_flow(spec["where"], run["recipe"], run["changes"], target) | {"ways": ways(target)})
        print(run["recipe"], json.dumps(runs[-1]), file=sys.stderr, flush=True)
    return {"workers": workers, "runs": runs}


def wait_for(url: str, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def identity() -> dict[str, Any]:
    """What tells the host of this process from others."""
    spaces = {name: str(Path(f"/proc/self/ns/{name}").readlink()) for name in ("net", "pid", "mnt", "uts", "ipc")}
    return {"host": socket.gethostname(), "shared_memory": Path("/dev/shm").stat().st_dev, **spaces}


def ways(target: Path) -> dict[str, list[str]]:
    """The bytes that workers sent to each other, by the way they went, as the reports of an output list them."""
    found: dict[str, list[str]] = {}
    for report in sorted(target.rglob("_report.html")):
        for nbytes, way in WAY.findall(report.read_text()):
            found.setdefault(way.strip(), []).append(nbytes)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--session", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--engine", choices=["pandas", "cudf"], default="pandas")
    parser.add_argument("--rows", nargs="*", default=["toy=157680005", "criteo=20000000"], help="recipe=rows ..")
    parser.add_argument("--protocols", nargs="*", default=["tls"], choices=["tls", "ucx"])
    parser.add_argument("--exchanges", nargs="*", default=["memory", "disk"], choices=["memory", "disk"])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--files", type=int, default=32)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    if args.session:
        print(json.dumps(session(json.loads(args.session.read_text()))), flush=True)
        return
    if not args.folder or not args.out:
        parser.error("--folder and --out are needed")
    from tests.bench.gpu import machine, make_source

    args.folder.mkdir(parents=True, exist_ok=True)
    why, runs = refusal(), list[dict[str, Any]]()
    for recipe, _, rows in (text.partition("=") for text in args.rows):
        _, source = make_source(recipe, args.folder, int(rows), None)
        changes = [*source, "output.files_per_worker=null", f"output.files={args.files}"]
        for exchange in args.exchanges:
            case = {"recipe": recipe, "rows": int(rows), "exchange": exchange, "target": str(args.folder / "out")}
            runs += [{**case, "changes": [*changes, f"run.exchange={exchange}"]}] * (args.repeats + 1)
    print(f"two hosts: {'two addresses of the loopback, ' + why if why else 'two namespaces'}", flush=True)
    result: dict[str, Any] = {"hosts": f"loopback: {why}" if why else "namespaces", "engine": args.engine, "cases": []}
    for protocol in args.protocols:
        if protocol == "ucx" and not find_spec("ucxx"):
            print("ucx is left out: ucxx is not installed", flush=True)
            continue
        one = [Host("127.0.0.1")] * 2
        found = {"one": measure(one, args.folder / f"one-{protocol}", runs, args.engine, protocol)}
        if why:
            apart = [Host("127.0.0.1"), Host("127.0.0.2")]
            found["two"] = measure(apart, args.folder / f"two-{protocol}", runs, args.engine, protocol, lends=False)
        else:
            with two_hosts(args.folder) as hosts:
                found["two"] = measure(hosts, args.folder / f"two-{protocol}", runs, args.engine, protocol)
        result["workers"] = found["two"]["workers"]
        result["cases"] += list(cases(runs, found, protocol, args.repeats + 1))
    result |= {"command": " ".join(["python -m tests.bench.two_hosts", *sys.argv[1:]]),
               "date": time.strftime("%Y-%m-%d"), "machine": machine()}  # fmt: skip
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    for case in result["cases"]:
        print(json.dumps(case), flush=True)
    if not all(case["same_digest"] for case in result["cases"]):
        sys.exit("the digests differ")


def cases(
    runs: Sequence[dict[str, Any]], found: dict[str, Any], protocol: str, times: int
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Each recipe and exchange on one host and on two: median seconds, the stages and ways of the last run."""
    for start in range(0, len(runs), times):
        case = {name: runs[start][name] for name in ("recipe", "rows", "exchange")} | {"protocol": protocol}
        of = {name: one["runs"][start : start + times] for name, one in found.items()}
        digests = {run["digest"] for each in of.values() for run in each}
        for name, each in of.items():
            counted = each[1:] or each
            case[name] = {"seconds": statistics.median(run["seconds"] for run in counted),
                          "stages": counted[-1]["stages"], "ways": counted[-1]["ways"]}  # fmt: skip
        yield {**case, "digest": min(digests), "same_digest": len(digests) == 1}


if __name__ == "__main__":
    main()
