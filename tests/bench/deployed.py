"""A run through a deployment on this host: server, `rowmill deploy`, a process worker, the run, its state and seconds.

    python -m tests.bench.deployed --rows 10000000
    python -m tests.bench.deployed --recipe ecommerce --rows 100000 --kind cpu --folder /dev/shm

Nothing but this host is needed. It exits with 0 if the run is Completed, on the workers that were asked for.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FINAL = ("Completed", "Failed", "Crashed", "Cancelled", "TimedOut")
POOL = "rowmill-bench"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--recipe", default="toy")
    parser.add_argument("--kind", default="auto", help="cluster.kind of the job: auto, cuda, cpu")
    parser.add_argument("--folder", type=Path, help="where data and outputs go for a while; the system's if left out")
    parser.add_argument("--timeout", type=float, default=480, help="seconds for the run")
    return parser.parse_args()


def main() -> int:
    """Everything in a folder of its own, which is gone afterwards, as are the server and the worker."""
    asked = arguments()
    place = Path(tempfile.mkdtemp(prefix="rowmill-deployed-", dir=asked.folder))
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        del os.environ[name]
    (place / "home").mkdir()
    os.environ |= {
        "PREFECT_HOME": str(place / "prefect"), "HOME": str(place / "home"), "PYTHONPATH": str(ROOT),
        "PREFECT_SERVER_API_PORT": "4299", "PREFECT_WORKER_QUERY_SECONDS": "1",
    }  # fmt: skip
    from infra.orchestration.server import ensure_server, stop_server

    try:
        began = time.monotonic()
        server = ensure_server()
        print(f"server   {server.api_url}, {time.monotonic() - began:.1f} s", flush=True)
        return run(asked, place)
    finally:
        stop_server()
        shutil.rmtree(place, ignore_errors=True)


def run(asked: argparse.Namespace, place: Path) -> int:
    began = time.monotonic()
    subprocess.run([sys.executable, "-P", "-m", "rowmill", "deploy", "--pool", POOL], cwd=place, check=True)
    print(f"deployed in {time.monotonic() - began:.1f} s", flush=True)
    with (place / "worker.log").open("w") as log:
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", "prefect", "worker", "start", "--pool", POOL],
            cwd=place, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        state, seconds = started(asked)
    finally:
        worker.terminate()
        try:
            worker.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
    print(f"run      {state} {seconds:.1f} s after it was asked for (worker's poll, process and cluster included)")
    found = sorted(place.glob("out/nightly/v*/**/_manifest.json"))
    for path in found:
        manifest: dict[str, Any] = json.loads(path.read_text())
        stages = ", ".join(f"{name} {stage['seconds']:.2f}" for name, stage in manifest["stages"].items())
        print(f"output   {manifest['rows']['out']:,} rows in {len(manifest['parts'])} files, engine "
              f"{manifest['engine']}, {manifest['seconds']:.2f} s from ingest to commit ({stages})")  # fmt: skip
    if state != "Completed" or not found:
        print((place / "worker.log").read_text()[-6000:])
        return 1
    return 0


def started(asked: argparse.Namespace) -> tuple[str, float]:
    """Ask for a run of preprocess/nightly and wait for its end: the name of its state, and seconds."""
    from prefect import get_client

    source = {"path": "data/bench", "sample": {"name": asked.recipe, "rows": asked.rows}}
    given = {"recipe": asked.recipe, "source": source, "cluster": {"kind": asked.kind}}
    with get_client(sync_client=True) as client:
        client.pause_deployment(client.read_deployment_by_name("watch-source/every-minute").id)
        nightly = client.read_deployment_by_name("preprocess/nightly")
        began = time.monotonic()
        asked_for = client.create_flow_run_from_deployment(nightly.id, parameters=given)
        while True:
            found = client.read_flow_run(asked_for.id)
            waited = time.monotonic() - began
            if found.state_name in FINAL or waited > asked.timeout:
                message = found.state.message if found.state else ""
                print(f"state    {found.state_name} {message or ''}".rstrip())
                return str(found.state_name), waited
            time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
