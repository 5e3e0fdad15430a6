"""How long a person waits in the first minute: `--help`, `new`, `preview` and `run` on small data, from the shell to
the prompt.

Each command runs in a process of its own, in turns, with a Prefect server that is there already. Of each run: wall
seconds to the first line, to each line of the run's progress and to the prompt; CPU seconds of the command's own
process, of the fork server, of the workers, and of all that it started until the last of them is gone. Wall seconds
depend on what else the machine does, which `load` and `others_cpu_share` tell; CPU seconds depend on it much less.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from tests.cost import cpu_model

LIMITS = {"help": 0.3, "new": 2.0, "preview": 2.0, "run": 5.0}  # wall seconds to the prompt, on two cores without load
FIRST_LINE = 0.5  # wall seconds to the first line of `run`
CPU_LIMITS = {"help": 0.2, "new": 0.9, "preview": 2.2, "run": 4.8}  # of all processes, in `yardstick_seconds`
ROWS = 20_000
PR_SET_CHILD_SUBREAPER = 36
LOOK_SECONDS = 0.02
PROGRAM = "import sys; sys.argv[0] = 'rowmill'; from rowmill.cli import main; main()"
JOB = """\
source: {path: data/toy}
features:
  - columns: [x, y]
    ops: [{op: FillMissing, fill_value: 0}, {op: Normalize}]
  - columns: [name, id]
    ops: [{op: Categorify, freq_threshold: 2}]
label: [label]
output: {path: out/toy, shuffle: full, seed: 0, files: 2, on_existing: replace}
"""
YARDSTICK = "import pandas, pyarrow.dataset, distributed, prefect.main"
COMMANDS: dict[str, list[str]] = {
    "help": ["--help"],
    "new": ["new", "data/toy"],
    "preview": ["preview", "job.yaml"],
    "run": ["run", "job.yaml"],
}


def measured(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """One run of a command in `folder`: its lines with the seconds at which they came, its wall and CPU seconds.

    This process becomes the parent of what the command leaves behind (its fork server), and waits for it: only so is
    its CPU time known.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before, busy = _children_cpu(), _machine_busy()
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM, *words], cwd=folder, env=dict(environment), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    roles = Roles(process.pid)
    assert process.stdout
    lines = [(round(time.perf_counter() - began, 3), line.rstrip()) for line in process.stdout]
    ended = process.pid
    _, status, own = os.wait4(ended, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    at_prompt = _machine_busy()
    _wait_for_all()
    roles.stop()
    cpu = _children_cpu() - before
    mine = own.ru_utime + own.ru_stime
    others = (at_prompt[0] - busy[0]) - cpu
    return {
        "status": process.returncode,
        "seconds": round(wall, 3),
        "first_line_seconds": lines[0][0] if lines else None,
        "lines": [[seconds, text[:60]] for seconds, text in lines],
        "cpu_seconds": round(cpu, 3),
        "cpu_seconds_by_process": {**roles.seconds(), "command and those it waited for": round(mine, 3)},
        "others_cpu_share": round(max(0.0, others) / max(at_prompt[1] - busy[1], 0.01), 3),
        "load": round(os.getloadavg()[0], 2),
    }


def yardstick_seconds(repeats: int = 3) -> float:
    """CPU seconds for the imports of the stack, the median of `repeats`. They vary with the machine and its load as a
    command's do, so that the ratio of the two varies little."""
    each = []
    for _ in range(repeats):
        before = _children_cpu()
        subprocess.run([sys.executable, "-c", YARDSTICK], check=True)
        each.append(_children_cpu() - before)
    return statistics.median(each)


class Roles:
    """The CPU seconds of the processes that a command starts, by what they are; a thread looks at them as long as
    they live."""

    def __init__(self, pid: int) -> None:
        self.pid, self.last, self.ended = pid, {}, threading.Event()
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()

    def _follow(self) -> None:
        me = psutil.Process()
        while not self.ended.wait(LOOK_SECONDS):
            for process in me.children(recursive=True):
                try:
                    times = process.cpu_times()
                    known = self.last.get(process.pid)
                    role = known[0] if known and known[0] != "worker" else self._role(process)
                    self.last[process.pid] = (role, times.user + times.system)
                except psutil.Error:
                    continue

    def _role(self, process: psutil.Process) -> str:
        if process.pid == self.pid:
            return "command"
        line = " ".join(process.cmdline())
        if "resource_tracker" in line:
            return "resource tracker"
        if "multiprocessing.forkserver" in line:  # forks have its command line
            parent = process.parent()
            return "worker" if parent and "multiprocessing.forkserver" in " ".join(parent.cmdline()) else "fork server"
        return "look at the data" if "own_process" in line else "other"

    def stop(self) -> None:
        self.ended.set()
        self.thread.join()

    def seconds(self) -> dict[str, float]:
        sums: dict[str, float] = {}
        for role, seconds in self.last.values():
            sums[role] = round(sums.get(role, 0.0) + seconds, 2)
        return sums


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _machine_busy() -> tuple[float, float]:
    """CPU seconds that all processes of the machine have used, and those that there were."""
    times = psutil.cpu_times()
    idle = times.idle + times.iowait
    whole = sum(times[:8])
    return whole - idle, whole


def _wait_for_all(seconds: float = 30.0) -> None:
    """Wait until every child is gone, those that others left behind included."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.02)
        except ChildProcessError:
            return


def prepared(folder: Path, rows: int, server: str | None) -> dict[str, str]:
    """The environment of the commands, in a folder with data and a job; without `server` (the address of its API) with
    a Prefect server of its own, which a first run starts."""
    root = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join([root, f"{root}/flows/public", *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "PYTHONDONTWRITE"))}
    environment |= {"PREFECT_HOME": str(folder / "prefect"), "PYTHONPATH": paths, "COLUMNS": "120"}
    if server is not None:
        environment["PREFECT_API_URL"] = server
    (folder / "job.yaml").write_text(JOB)
    first = [["sample", "toy", "--rows", str(rows), "--path", "data/toy"], ["run", "job.yaml"]]
    for words in first[:1] if server else first:
        command = [sys.executable, "-P", "-c", PROGRAM, *words]
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    return environment


def stop_server(folder: Path) -> None:
    note = folder / "prefect" / "rowmill-server.json"
    if note.exists():
        os.kill(json.loads(note.read_text())["pid"], signal.SIGTERM)


def measure(
    commands: Sequence[str], repeats: int, rows: int, folder: Path, server: str | None = None
) -> dict[str, list[dict[str, Any]]]:
    environment = prepared(folder, rows, server)
    try:
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
        for _ in range(repeats):
            for name in commands:
                runs[name].append(measured(COMMANDS[name], folder, environment))
        return runs
    finally:
        stop_server(folder)


def table(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The medians as Markdown, beside the limits."""
    rows = [
        "| command | to the prompt, s | limit, s | first line, s | CPU s of the command | of all processes | others |",
        "|---|---|---|---|---|---|---|",
    ]
    keys = ("seconds", "first_line_seconds", "cpu_seconds", "others_cpu_share")
    for name, of in runs.items():
        middle = {key: statistics.median(run[key] or 0.0 for run in of) for key in keys}
        own = statistics.median(run["cpu_seconds_by_process"].get("command", 0.0) for run in of)
        rows.append(
            f"| {name} | {middle['seconds']:.2f} | {LIMITS[name]} | {middle['first_line_seconds']:.2f} | {own:.2f} | "
            f"{middle['cpu_seconds']:.2f} | {middle['others_cpu_share']:.0%} |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--commands", nargs="*", default=list(COMMANDS), choices=list(COMMANDS))
    parser.add_argument("--folder", type=Path, help="where the data, the output and the server's database go")
    parser.add_argument(
        "--server", help="the address of the API of a Prefect server that is there; else one is started"
    )
    parser.add_argument("--lines", action="store_true", help="print the lines of the last run of each, with seconds")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rowmill-first-minute-") as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        runs = measure(args.commands, args.repeats, args.rows, folder, args.server)
        yardstick = yardstick_seconds()
    print(table(runs))
    print(f"\nthe imports of the stack take {yardstick:.2f} CPU seconds now")
    for name in args.commands if args.lines else ():
        last = runs[name][-1]
        print(f"\n{name}: {last['cpu_seconds_by_process']}")
        print("\n".join(f"{seconds:7.2f}  {text}" for seconds, text in last["lines"]))
    if args.out:
        result = {
            "command": f"python -m tests.bench.first_minute --repeats {args.repeats} --rows {args.rows}",
            "machine": cpu_model(),
            "cores": os.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
            "versions": {name: version(name) for name in ("prefect", "distributed", "pandas", "pyarrow")},
            "python": platform.python_version(),
            "yardstick": YARDSTICK,
            "yardstick_cpu_seconds": round(yardstick, 3),
            "limits_seconds": {**LIMITS, "first line of run": FIRST_LINE},
            "runs": runs,
        }
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
