"""Soak: scheduled small runs of a real `rowmill serve` for hours, with kills; what grows in memory and on disk.

    python -m tests.bench.soak --minutes 120
    python -m tests.bench.soak --minutes 3 --every 20 --kill-every 30 --out /tmp/soak.json

A Prefect server, `rowmill serve` and their folders (PREFECT_HOME, HOME, TMPDIR, as root also /dev/shm) are the soak's
own. The file of deployments has three: `preprocess/soak` every `--every` seconds, `watch-source/soak` every minute, and
`preprocess/arrived` on the event of new files, of which one is written every two minutes. About every `--kill-every`
seconds a process is killed with kill -9: a worker, a fork server or the process of a flow, drawn by `--seed`, at a
random moment of its life. Every output is compared, file by file, with that of an undisturbed run.

Each minute is a sample: resident bytes, handles and threads of the serving process and of the Prefect server, processes
below the serving one, files in TMPDIR and /dev/shm, `.rowmill` folders, bytes of the server's database. The result is
written after each sample, too: whatever ends the soak, what was measured is there. At the end each figure gets a line
by least squares through the samples after the warm-up (a fifth of the time), in units per hour with the standard error,
and a verdict: `steady` where the slope less two standard errors is at most what the figure may grow, else `grows`. The
database may grow, by what each run adds; that is given per run.

Exit status 0 if nothing grows, every output is right, and no run ended in a state that no kill explains.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import json
import math
import os
import platform
import random
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).parent / "results" / "soak-cpu.json"
FINAL = ("Completed", "Failed", "Crashed", "Cancelled", "TimedOut")
JOB: dict[str, Any] = {
    "features": [
        {"columns": ["x", "y"], "ops": [{"op": "FillMissing", "fill_value": 0}, {"op": "Normalize"}]},
        {"columns": ["name", "id"], "ops": [{"op": "Categorify"}]},
    ],
    "label": ["label"],
    "cluster": {"kind": "cpu", "workers": 1, "threads_per_worker": 2},
}
OUTPUT = {"files": 2, "seed": 7}
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x00020000, 0x4000, 1 << 18  # of unshare(2) and mount(2)
MB = 1_000_000
# What a figure may grow in an hour: less than a day of it would matter to anybody. Counts may not grow at all, but for
# what is there or not at the moment of a sample.
ALLOWED = {
    "serve_rss_mb": 10.0, "serve_handles": 2.0, "serve_threads": 2.0,
    "server_rss_mb": 20.0, "server_handles": 2.0, "server_threads": 2.0,
    "processes": 2.0, "temporary_files": 2.0, "shared_memory_mb": 5.0, "staging": 1.0,
}  # fmt: skip


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--every", type=int, default=30, help="seconds between scheduled runs")
    parser.add_argument("--kill-every", type=float, default=90, help="seconds between kills, on average; 0 for none")
    parser.add_argument("--rows", type=int, default=20_000, help="rows of a run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--port", type=int, default=4397, help="of the Prefect server")
    parser.add_argument("--folder", type=Path, help="where everything goes for a while; the system's if left out")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Everything in a folder of its own, which is gone afterwards, as are the server and all processes."""
    options = arguments(argv)
    private = own_shared_memory()
    place = Path(tempfile.mkdtemp(prefix="soak-", dir=options.folder))
    for name in [name for name in os.environ if name.startswith(("PREFECT_", "ROWMILL_"))]:
        del os.environ[name]
    for folder in ("home", "tmp", "work"):
        (place / folder).mkdir()
    os.environ |= {
        "PREFECT_HOME": str(place / "prefect"), "HOME": str(place / "home"), "PYTHONPATH": str(ROOT),
        "PREFECT_SERVER_API_PORT": str(options.port), "TMPDIR": str(place / "tmp"),
    }  # fmt: skip
    from infra.orchestration.server import ensure_server, stop_server

    try:
        server = ensure_server()
        print(f"server   {server.api_url}, everything is in {place}", flush=True)
        result = soak(options, place, private)
    finally:
        stop_server()
        shutil.rmtree(place, ignore_errors=True)
    print(
        json.dumps({name: result[name] for name in ("runs", "kills", "outputs", "fits", "left", "verdict")}, indent=1)
    )
    return 0 if result["verdict"]["ok"] else 1


def own_shared_memory() -> bool:
    """Give this process and its children a /dev/shm of their own, as root: files there are the soak's, all of them."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() or libc.unshare(CLONE_NEWNS):
        return False
    libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    return bool(libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=2g") == 0)


def soak(options: argparse.Namespace, place: Path, private: bool) -> dict[str, Any]:
    """Serve, kill and look for the minutes of the options; the whole result, which is also in the file `--out`."""
    work = place / "work"
    expected = undisturbed(work, options.rows)
    (work / "soak.yaml").write_text(json.dumps(deployments(options.every)))
    result: dict[str, Any] = {
        "command": shlex.join(["python", "-m", "tests.bench.soak", *told(options)]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"), "processor": platform.machine(), "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_at_start": [round(load, 2) for load in os.getloadavg()],
        "versions": {"python": platform.python_version(),
                     **{name: version(name) for name in ("prefect", "distributed", "pyarrow", "pandas")}},
        "own_shared_memory": private, "minutes": 0.0, "rows_per_run": options.rows, "seed": options.seed,
    }  # fmt: skip
    serve = start_serving(work)
    try:
        watch(options, place, serve, expected, result)
    finally:
        stopped = stop(serve)
    result["left"] = {"seconds_to_stop": stopped, **what_is_left(place)}
    finish(result, options)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    return result


def told(options: argparse.Namespace) -> list[str]:
    """The options that differ from the defaults, as they are written."""
    usual = vars(arguments([]))
    names = [name for name in usual if vars(options)[name] != usual[name] and name not in ("out", "folder", "port")]
    words = [word for name in names for word in (f"--{name.replace('_', '-')}", f"{vars(options)[name]:g}")]
    return words or ["--minutes", f"{options.minutes:g}"]


def deployments(every: int) -> dict[str, Any]:
    """The file of deployments: the scheduled run, the watch, and the run on what the watch has seen."""
    one = {"limit": 1, "collision_strategy": "ENQUEUE"}
    versions = {**OUTPUT, "on_existing": "version", "keep_versions": 3}
    return {
        "deployments": [
            {"name": "soak", "entrypoint": "flows.preprocess.preprocess", "tags": ["rowmill"],
             "concurrency_limit": one, "schedules": [{"interval": every, "slug": "soak"}],
             "parameters": {**JOB, "source": {"path": "data/toy"}, "output": {**versions, "path": "out/soak"}}},
            {"name": "arrived", "entrypoint": "flows.preprocess.preprocess", "tags": ["rowmill"],
             "concurrency_limit": one, "parameters": {**JOB, "output": {**versions, "path": "out/arrived"}},
             "triggers": [{"type": "event", "name": "soak-arrived", "expect": ["rowmill.data.arrived"],
                           "match": {"prefect.resource.id": "rowmill.source.*"},
                           "parameters": {"source": {"path": "{{ event.payload.paths }}"}}}]},
            {"name": "soak", "entrypoint": "flows.watch_source.watch_source", "tags": ["rowmill"],
             "concurrency_limit": {"limit": 1, "collision_strategy": "CANCEL_NEW"},
             "parameters": {"path": "data/incoming", "settle": 5}, "schedules": [{"interval": 60, "slug": "watch"}]},
        ]
    }  # fmt: skip


def undisturbed(work: Path, rows: int) -> dict[str, str]:
    """Make the data, and write them once with a job of the command; the digests of its files.

    Files that arrive are copies of the same data, so that these digests hold for the outputs of both deployments.
    """
    quiet = {**JOB, "source": {"path": "data/toy"}, "output": {**OUTPUT, "path": "out/quiet"}}
    (work / "quiet.yaml").write_text(json.dumps(quiet))
    for command in (
        ["sample", "toy", "--path", "data/toy", "--rows", str(rows), "--files", "1"],
        ["run", "quiet.yaml"],
    ):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "rowmill", *command], cwd=work, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"rowmill {' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return digests(work / "out/quiet")


def digests(output: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(output.glob("part-*"))}


def start_serving(work: Path) -> subprocess.Popen[bytes]:
    with (work / "serve.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "rowmill", "serve", "--file", "soak.yaml", "--limit", "2"],
            cwd=work, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


def stop(serve: subprocess.Popen[bytes]) -> float | None:
    """End it as systemd does; the seconds that it took, None where it had to be killed."""
    began = time.monotonic()
    serve.terminate()
    try:
        serve.wait(120)
        return round(time.monotonic() - began, 1)
    except subprocess.TimeoutExpired:
        os.killpg(serve.pid, signal.SIGKILL)
        serve.wait()
        return None


def watch(
    options: argparse.Namespace, place: Path, serve: subprocess.Popen[bytes], expected: dict[str, str],
    result: dict[str, Any],
) -> None:  # fmt: skip
    """Kill and look until the time is up; `result` grows with each sample."""
    draws, began = random.Random(options.seed), time.monotonic()
    samples: list[dict[str, Any]] = []
    kills: list[dict[str, Any]] = []
    checked: dict[str, bool] = {}
    server = server_process(place)
    next_sample = next_arrival = 0.0
    killer = Killer(draws, options.kill_every, serve.pid)
    while (now := time.monotonic() - began) < options.minutes * 60:
        if serve.poll() is not None:
            raise SystemExit(f"serve ended: {(place / 'work/serve.log').read_text()[-4000:]}")
        if killed := killer.look(now):
            kills.append({"minute": round(now / 60, 2), "killed": killed})
        if now >= next_arrival:
            arrive(place / "work", int(now))
            next_arrival += 120
        if now >= next_sample:
            check_outputs(place / "work/out", expected, checked)
            samples.append({"minute": round(now / 60, 2), **figures(place, psutil.Process(serve.pid), server)})
            next_sample += 60
            result |= {"minutes": round(now / 60, 1), "kills": summary_of(kills), "runs": runs(),
                       "outputs": outcome(checked), "samples": samples}  # fmt: skip
            options.out.write_text(json.dumps(result, indent=1) + "\n")
            print(json.dumps(samples[-1]), json.dumps(result["runs"]), flush=True)
        else:
            check_outputs(place / "work/out", expected, checked)
        time.sleep(1)
    result |= {"minutes": round((time.monotonic() - began) / 60, 1), "kills": summary_of(kills), "runs": runs(),
               "outputs": outcome(checked), "seconds_of_a_run": seconds(), "killed": kills, "ends": ends()}  # fmt: skip


def server_process(place: Path) -> psutil.Process:
    return psutil.Process(json.loads((place / "prefect/rowmill-server.json").read_text())["pid"])


class Killer:
    """kill -9 of processes below the serving one, about every `every` seconds.

    The kind is drawn first, then how long the first process of this kind that is there from then on may still live: up
    to `LIVES` seconds, so that all moments of a run have their turn.
    """

    KINDS, LIVES = ("flow", "fork server", "worker"), 12.0

    def __init__(self, draws: random.Random, every: float, serve: int) -> None:
        self.draws, self.every, self.serve = draws, every, serve
        self.victim: psutil.Process | None = None
        self._draw(0.0)

    def _draw(self, now: float) -> None:
        self.due = now + self.draws.expovariate(1 / self.every) if self.every else math.inf
        self.kind, self.lives = self.draws.choice(self.KINDS), self.draws.uniform(0, self.LIVES)
        self.victim = None

    def look(self, now: float) -> str:
        """Called each second; the kind of what it has killed just now, or ''."""
        if now < self.due:
            return ""
        if self.victim is None or not self.victim.is_running():
            self.victim = next((p for p in self._below() if kind_of(p, self.serve) == self.kind), None)
            self.due = now + self.lives if self.victim else now
            return ""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.victim.kill()
            killed = self.kind
            self._draw(now)
            return killed
        return ""

    def _below(self) -> list[psutil.Process]:
        return psutil.Process(self.serve).children(recursive=True)


def kind_of(process: psutil.Process, serve: int) -> str:
    """flow, fork server, worker, or other (the tracker of semaphores)."""
    try:
        parent, command = process.parent(), " ".join(process.cmdline())
        if parent is None:
            return "other"
        if parent.pid == serve:
            return "flow"
        if "multiprocessing.forkserver" in command:
            return "worker" if parent.cmdline() == process.cmdline() else "fork server"
    except psutil.NoSuchProcess:
        return "other"
    return "worker" if "spawn_main" in command else "other"


def arrive(work: Path, number: int) -> None:
    """A new file in a folder of its own below the watched one, and no more than three of them."""
    folder = work / f"data/incoming/at={number}"
    folder.mkdir(parents=True)
    shutil.copy(next((work / "data/toy").glob("*.parquet")), folder / "part-00000.parquet")
    for old in sorted(folder.parent.iterdir(), key=lambda p: p.stat().st_mtime)[:-3]:
        shutil.rmtree(old)


def check_outputs(out: Path, expected: dict[str, str], checked: dict[str, bool]) -> None:
    """Compare each version that is new with the undisturbed output."""
    for manifest in out.glob("*/v*/_manifest.json"):
        version_of = manifest.parent
        try:
            run = json.loads(manifest.read_text())["run"]
            if run not in checked:
                checked[run] = digests(version_of) == expected
        except FileNotFoundError:  # removed just now: keep_versions
            continue


def outcome(checked: dict[str, bool]) -> dict[str, int]:
    return {"verified": sum(checked.values()), "wrong": len(checked) - sum(checked.values())}


def summary_of(kills: list[dict[str, Any]]) -> dict[str, int]:
    return dict(sorted(Counter(kill["killed"] for kill in kills).items()))


def read_runs() -> list[Any]:
    """All flow runs that the server knows."""
    from prefect import get_client
    from prefect.client.schemas.sorting import FlowRunSort

    found: list[Any] = []
    with get_client(sync_client=True) as client:
        while page := client.read_flow_runs(limit=200, offset=len(found), sort=FlowRunSort.START_TIME_ASC):
            found += page
            if len(page) < 200:
                break
    return found


def runs() -> dict[str, int]:
    """State -> number of runs, without those that are only scheduled."""
    return dict(sorted(Counter(str(run.state_name) for run in read_runs() if run.state_name != "Scheduled").items()))


def ends() -> dict[str, int]:
    """What runs that are not Completed said at their end -> how many."""
    bad = [run for run in read_runs() if run.state_name in FINAL and run.state_name != "Completed"]
    texts = [f"{run.state_name}: {(run.state.message or '').strip().splitlines()[:1]}"[:200] for run in bad]
    return dict(Counter(texts).most_common())


def seconds() -> dict[str, float]:
    """How long the scheduled runs took that are Completed: the median of the first and of the last quarter."""
    scheduled = [run for run in read_runs() if (run.parameters.get("output") or {}).get("path") == "out/soak"]
    took = [run.total_run_time.total_seconds() for run in scheduled if run.state_name == "Completed"]
    quarter = max(1, len(took) // 4)
    parts = {"first quarter": took[:quarter], "last quarter": took[-quarter:]}
    return {name: round(statistics.median(part), 1) for name, part in parts.items() if part}


def figures(place: Path, serve: psutil.Process, server: psutil.Process) -> dict[str, float]:
    """What is looked at each minute."""
    files = [path for path in (place / "tmp").rglob("*") if "pymp-" not in str(path)]  # those stay after a kill
    shm = list(Path("/dev/shm").iterdir())
    databases = list((place / "prefect").glob("prefect.db*"))
    return {
        "serve_rss_mb": rss(serve), "serve_handles": serve.num_fds(), "serve_threads": serve.num_threads(),
        "server_rss_mb": rss(server), "server_handles": server.num_fds(), "server_threads": server.num_threads(),
        "processes": len(serve.children(recursive=True)),
        "temporary_files": len(files), "pymp": len(list((place / "tmp").glob("pymp-*"))),
        "semaphores": sum(path.name.startswith("sem.mp-") for path in shm),
        "shared_memory_mb": round(sum(size_of(path) for path in shm) / MB, 2),
        "staging": sum(1 for path in (place / "work").rglob(".*.rowmill*") if path.is_dir()),
        "database_mb": round(sum(size_of(path) for path in databases) / MB, 2),
    }  # fmt: skip


def rss(process: psutil.Process) -> float:
    return round(process.memory_info().rss / MB, 1)


def size_of(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def what_is_left(place: Path) -> dict[str, Any]:
    """15 s after serving has ended at the latest: processes of the soak besides the server, files, staging folders."""
    server, deadline = server_process(place), time.monotonic() + 15
    apart = {os.getpid(), server.pid, *(child.pid for child in server.children(recursive=True))}
    while True:
        lines = [command_of(p, str(place)) for p in psutil.process_iter() if p.pid not in apart]
        if not any(lines) or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    return {
        "processes": [line for line in lines if line],
        "pymp": len(list((place / "tmp").glob("pymp-*"))),
        "semaphores": len(list(Path("/dev/shm").glob("sem.mp-*"))),
        "staging": [str(p.relative_to(place)) for p in (place / "work").rglob(".*.rowmill*") if p.is_dir()],
    }


def command_of(process: psutil.Process, place: str) -> str:
    """The command line of a process of the soak, which is told by its HOME; '' for others, and for what has ended."""
    try:
        return " ".join(process.cmdline())[:120] if process.environ().get("HOME", "").startswith(place) else ""
    except psutil.Error:
        return ""


def line(samples: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Least squares of (minute, value): the slope per hour, and its standard error.

    >>> line([(0, 5), (30, 6), (60, 7)])
    (2.0, 0.0)
    """
    n = len(samples)
    mean_x, mean_y = sum(x for x, _ in samples) / n, sum(y for _, y in samples) / n
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread
    rest = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in samples)
    error = math.sqrt(rest / max(1, n - 2) / spread)
    return round(slope * 60, 3), round(error * 60, 3)


def finish(result: dict[str, Any], options: argparse.Namespace) -> None:
    """The line of each figure, and the verdict."""
    warm = options.minutes / 5
    kept = [sample for sample in result["samples"] if sample["minute"] >= warm]
    result["warm_up_minutes"] = round(warm, 1)
    fits: dict[str, Any] = {}
    for name, allowed in ALLOWED.items() if len(kept) > 2 else ():
        values = [(sample["minute"], sample[name]) for sample in kept]
        slope, error = line(values)
        fits[name] = {"first": values[0][1], "last": values[-1][1], "most": max(v for _, v in values),
                      "per_hour": slope, "standard_error": error, "may": allowed,
                      "verdict": "steady" if slope - 2 * error <= allowed else "grows"}  # fmt: skip
    result["fits"] = fits
    ended = sum(count for state, count in result["runs"].items() if state in FINAL)
    grown = result["samples"][-1]["database_mb"] - result["samples"][0]["database_mb"]
    result["database_mb_per_run"] = round(grown / max(1, ended), 3)
    bad = result["runs"].get("Failed", 0) + result["runs"].get("TimedOut", 0) + result["runs"].get("Crashed", 0)
    kills = sum(result["kills"].values())
    left = result["left"]
    problems = [f"{name} grows: {fit['per_hour']} an hour" for name, fit in fits.items() if fit["verdict"] == "grows"]
    if result["outputs"]["wrong"] or not result["outputs"]["verified"]:
        problems.append(f"outputs: {result['outputs']}")
    if bad > kills:
        problems.append(f"{bad} runs failed or crashed after {kills} kills")
    if left["processes"]:
        problems.append(f"processes are left: {left['processes']}")
    if left["seconds_to_stop"] is None:
        problems.append("serve did not end within 120 s of SIGTERM")
    result["verdict"] = {"ok": not problems, "problems": problems}


if __name__ == "__main__":
    sys.exit(main())
