"""What the tests cost: the CPU seconds of every process that they start, and the limits on them.

`pytest` runs as the child of a process that does nothing but wait (`stand_watch`). Linux makes that process the parent of
whatever outlives its own parent (PR_SET_CHILD_SUBREAPER), so that a server which a test leaves behind, or a worker whose
nanny was killed, is counted, too. The CPU seconds of a run are the sum over all of these processes, dead and alive.

A test is charged for its own process and that process's descendants. Not charged are fixtures of the session, and the
session's Prefect server, which all xdist workers share: it has a line of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import platform
import resource
import signal
import struct
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

METHOD = "subreaper: rusage of all descendants, the dead by wait4(2), the living by /proc/PID/stat"
TICKS = os.sysconf("SC_CLK_TCK")
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
SLOWNESS = "ROWMILL_TEST_SLOWNESS"  # of this host, measured by the session that started the xdist workers
# CPU seconds of `calibrate` on the host on which the limits were set: an AMD EPYC of 2026, Python 3.11.
CALIBRATED_SECONDS = 0.09
SHOWN_TESTS = 40
SHOWN_FILES = 15
SHOWN_SECONDS = 0.1  # a test or a file that used less is not listed
FAILS_AT = 3  # times the limit of one test


@dataclass(frozen=True)
class Cost:
    """The CPU seconds of a test and its processes, and the seconds that it took."""

    cpu: float
    wall: float


class Watch:
    """The parent of this session, and what it has counted: the CPU seconds of processes that outlived their parents."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 8)
        self.pid = 0

    @property
    def orphans(self) -> float:
        return struct.unpack("d", self._shared[:8])[0]

    def begin(self) -> None:
        """Go on as the child of a process that reaps every descendant without a parent. It ends as this one ends."""
        libc = ctypes.CDLL(None, use_errno=True)
        watcher = os.getpid()
        child = os.fork()
        if child:
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            self._stand_watch(child)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        self.pid = watcher

    def _stand_watch(self, child: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the child, too
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: os.kill(child, number))
        while True:
            pid, status, usage = os.wait4(-1, 0)
            if pid == child:
                break
            self._shared[:8] = struct.pack("d", self.orphans + usage.ru_utime + usage.ru_stime)
        if os.WIFSIGNALED(status):
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
            os.kill(os.getpid(), os.WTERMSIG(status))
        os._exit(os.waitstatus_to_exitcode(status))


def calibrate() -> float:
    """Return how many times slower than the reference host this one is, at least 1: loops of Python, sorting by NumPy."""
    import numpy

    def work() -> float:
        began = time.process_time()
        counts: dict[int, int] = defaultdict(int)
        for number in range(400_000):
            counts[number * 7919 % 4096] += number
        values = numpy.arange(1_500_000, dtype=numpy.int64) * 2654435761 % 1_000_003
        numpy.sort(values)
        return time.process_time() - began

    return max(1.0, min(work() for _ in range(3)) / CALIBRATED_SECONDS)


def spent_by(pid: int | str) -> float:
    """CPU seconds of a process and of its children that have ended."""
    with contextlib.suppress(OSError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / TICKS
    return 0.0


def descendants(pid: int | str, but: str = "") -> Iterator[str]:
    """Numbers of the living descendants of a process, without one of them and its own."""
    for task in list_folder(Path(f"/proc/{pid}/task")):
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                if child != but:
                    yield child
                    yield from descendants(child, but)


def list_folder(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return list(folder.iterdir())
    return []


def session_server() -> str:
    """The number of the session's Prefect server, or none."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        note = Path(os.environ["PREFECT_HOME"]) / "rowmill-server.json"
        return str(json.loads(note.read_text())["pid"])
    return ""


class Meter:
    """Charges tests for what this process and its descendants use while they run."""

    def __init__(self) -> None:
        self.shared = 0.0  # of the running test's time, the part that fixtures of the session took
        self.depth = 0
        self.with_processes = False
        self.began = Cost(0, 0)

    def now(self) -> Cost:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        cpu = sum(usage.ru_utime + usage.ru_stime for usage in used)
        if self.with_processes:  # looking for them takes a millisecond; plain tests start none
            cpu += sum(map(spent_by, descendants(os.getpid(), but=session_server())))
        return Cost(cpu, time.perf_counter())

    def begin(self, with_processes: bool) -> None:
        self.with_processes = with_processes
        self.shared = 0.0
        self.began = self.now()

    def end(self) -> Cost:
        ended = self.now()
        return Cost(max(0.0, ended.cpu - self.began.cpu - self.shared), ended.wall - self.began.wall)


class CostPlugin:
    """Measures each test in the process that runs it; sums up in the process that the user started."""

    def __init__(self, config: pytest.Config, watch: Watch | None) -> None:
        self.config, self.watch = config, watch
        self.meter = Meter()
        self.costs: dict[str, Cost] = {}
        self.began = time.perf_counter()
        self.limit = float(config.getini("test_cpu_seconds"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Any:
        self.meter.begin(with_processes=bool(list(item.iter_markers("system")) or list(item.iter_markers("nightly"))))
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Any:
        if fixturedef.scope != "session" or self.meter.depth:
            return (yield)
        self.meter.depth += 1
        before = self.meter.now()
        try:
            return (yield)
        finally:
            self.meter.depth -= 1
            self.meter.shared += self.meter.now().cpu - before.cpu

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Any:
        done = yield
        cost = self.meter.end()
        item.stash[COST] = cost
        slowness = float(os.environ.get(SLOWNESS, 1))
        allowed = self.limit * slowness * FAILS_AT
        if cost.cpu > allowed and not item.get_closest_marker("nightly"):
            pytest.fail(
                f"the test used {cost.cpu:.1f} CPU seconds, and {allowed:.0f} are allowed on this host (test_cpu_seconds in "
                f"pyproject.toml, {FAILS_AT} times, on a host {slowness:.1f} times as slow): make it cheaper, or mark it nightly",
                pytrace=False,
            )
        return done

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = yield
        if call.when == "teardown" and (cost := item.stash.get(COST, None)):
            report.cost = [cost.cpu, cost.wall]  # travels with the report to the process that sums up
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        if hasattr(report, "cost"):
            # A test of a group is called NAME@GROUP by pytest-xdist.
            name = report.nodeid.rpartition("@")[0] if self.is_in_group(report.nodeid) else report.nodeid
            self.costs[name] = Cost(*report.cost)

    @staticmethod
    def is_in_group(name: str) -> bool:
        tail = name.rpartition("@")[2]
        return "@" in name and "]" not in tail and "::" not in tail

    def total(self) -> float:
        """CPU seconds of all processes since this session began."""
        own = spent_by(os.getpid()) + sum(map(spent_by, descendants(os.getpid())))
        if self.watch is None:
            return own
        # A living orphan is a child of the watcher.
        others = sum(spent_by(pid) for pid in descendants(self.watch.pid, but=str(os.getpid())))
        return own + others + self.watch.orphans

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if "PYTEST_XDIST_WORKER" in os.environ or not self.costs:
            return
        table = self.table()
        write = terminalreporter.write_line
        terminalreporter.section("what the tests cost")
        write(
            f"{table['core_minutes']} core minutes of all processes in {table['wall_minutes']} minutes with "
            f"{table['processes']} processes on {table['cores']} cores ({table['slowness']} times as slow as the reference); "
            f"of these the session's Prefect server {table['server_core_minutes']}"
        )
        for title, rows in (("tests", table["tests"]), ("files", table["files"])):
            shown = [row for row in rows if row["cpu"] >= SHOWN_SECONDS][: SHOWN_TESTS if title == "tests" else SHOWN_FILES]
            if shown:
                write(f"{'CPU s':>8} {'wall s':>8}  {title} that used most")
            for row in shown:
                write(f"{row['cpu']:8.1f} {row['wall']:8.1f}  {row['name']}")
        over = [row for row in table["tests"] if row["cpu"] > self.limit * table["slowness"]]
        for row in over:
            write(f"over the limit of {self.limit:.0f} CPU seconds a test: {row['name']} ({row['cpu']:.1f})", yellow=True)
        budget = float(self.config.getini("suite_core_minutes")) * table["slowness"]
        if "nightly" not in (self.config.getoption("-m") or "") and table["core_minutes"] > budget:
            write(f"over the budget of the suite: {table['core_minutes']} of {budget:.1f} core minutes", yellow=True)
        if path := self.config.getoption("--cost"):
            Path(path).write_text(json.dumps(table, indent=1) + "\n")

    def table(self) -> dict[str, Any]:
        files: dict[str, list[Cost]] = defaultdict(list)
        for name, cost in self.costs.items():
            files[name.partition("::")[0]].append(cost)
        summed = {name: Cost(sum(c.cpu for c in costs), sum(c.wall for c in costs)) for name, costs in files.items()}
        return {
            "method": METHOD if self.watch else "rusage of all descendants but those that outlived their parents",
            "cores": os.cpu_count(),
            "cpu": cpu_model(),
            "python": platform.python_version(),
            "processes": self.config.getoption("numprocesses", None) or 1,
            "slowness": round(float(os.environ.get(SLOWNESS, 1)), 2),
            "core_minutes": round(self.total() / 60, 2),
            "server_core_minutes": round(spent_by(session_server()) / 60, 2),
            "wall_minutes": round((time.perf_counter() - self.began) / 60, 2),
            "tests": by_cpu(self.costs),
            "files": by_cpu(summed),
        }


COST = pytest.StashKey[Cost]()


def by_cpu(costs: dict[str, Cost]) -> list[dict[str, Any]]:
    """Rows of a table, the dearest first."""
    ordered = sorted(costs.items(), key=lambda item: -item[1].cpu)
    return [{"name": name, "cpu": round(cost.cpu, 3), "wall": round(cost.wall, 3)} for name, cost in ordered]


def cpu_model() -> str:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor()


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--cost", metavar="FILE", help="write what each test cost as JSON")
    parser.addini("test_cpu_seconds", "CPU seconds of one test above which it is listed; three times as many fail")
    parser.addini("suite_core_minutes", "core minutes of a whole run above which its end warns")


def measure(config: pytest.Config, owner: bool) -> None:
    """Measure the tests of this session; `owner`: this is the process that the user started."""
    watch = None
    if owner and not config.option.collectonly:
        os.environ[SLOWNESS] = f"{calibrate():.3f}"
        watch = Watch()
        watch.begin()
    config.pluginmanager.register(CostPlugin(config, watch))
