"""What the tests cost: the CPU seconds of every process that they start, and the limits on them.

`pytest` goes on as the child of a process that only waits (`Watch`). Linux makes that process the parent of every
process that outlives its own parent (PR_SET_CHILD_SUBREAPER), so that a server which a test leaves running and a
worker whose nanny was killed are counted, too. A run costs the sum over all of these processes, dead and alive.

A test is charged for its own process and for that process's descendants. It is not charged for fixtures of the
session, nor for the session's Prefect server, which all xdist workers share and which has a figure of its own.
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

from tests.tiers import tier_of

# Limits on the reference host. They go down, to 10 and 16, as the dear tests become cheap.
TEST_CPU_SECONDS = 20.0  # of one test
SUITE_CORE_MINUTES = 40.0  # of a run of all tests but the nightly ones
WITH_WATCH = "all descendants of a subreaper: the dead by wait4(2), the living by /proc/PID/stat"
WITHOUT_WATCH = "descendants of this process, without those that outlived their parents"
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
        """CPU seconds of the processes that it has reaped."""
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
    """Return how many times as slow as the reference host this one is, at least 1, in Python's loops and in NumPy."""
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
    """The pids of the living descendants of a process; `but` leaves out one of them with its own descendants."""
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
    """The pid of the session's Prefect server; empty if it is not running."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        note = Path(os.environ["PREFECT_HOME"]) / "rowmill-server.json"
        return str(json.loads(note.read_text())["pid"])
    return ""


def cpu_of(who: int) -> float:
    """CPU seconds of this process, or of its children that have ended."""
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


class Meter:
    """Charges tests for what this process and its descendants use while they run."""

    def __init__(self) -> None:
        self.with_processes = False
        self.began = Cost(0, 0)
        self.not_charged = 0.0  # CPU seconds that fixtures of the session took during the test

    def now(self) -> Cost:
        cpu = cpu_of(resource.RUSAGE_SELF)
        if self.with_processes:  # a plain test starts none, but those of a fixture may end when it does
            cpu += cpu_of(resource.RUSAGE_CHILDREN)
            cpu += sum(map(spent_by, descendants(os.getpid(), but=session_server())))
        return Cost(cpu, time.perf_counter())

    def begin(self, with_processes: bool) -> None:
        self.with_processes = with_processes
        self.not_charged = 0.0
        self.began = self.now()

    def end(self) -> Cost:
        ended = self.now()
        used = ended.cpu - self.began.cpu - self.not_charged
        # Less than nothing where a process that was there before has outlived its parent: it is the watch's child now.
        return Cost(max(0.0, used), ended.wall - self.began.wall)


class CostPlugin:
    """Measures each test in the process that runs it, and sums up in the process that the user started."""

    def __init__(self, config: pytest.Config, watch: Watch | None) -> None:
        self.config = config
        self.watch = watch
        self.meter = Meter()
        self.in_session_fixture = False
        self.costs: dict[str, Cost] = {}
        self.began = time.perf_counter()
        self.slowness = float(os.environ.get(SLOWNESS, "1"))
        self.test_limit = config.getoption("--test-cpu-seconds") * self.slowness
        self.suite_limit = config.getoption("--suite-core-minutes") * self.slowness

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Any:
        self.meter.begin(with_processes=bool(tier_of(item)))
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Any:
        if fixturedef.scope != "session" or self.in_session_fixture:
            return (yield)
        before = self.meter.now()
        self.in_session_fixture = True
        try:
            return (yield)
        finally:
            self.in_session_fixture = False
            self.meter.not_charged += self.meter.now().cpu - before.cpu

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Any:
        done = yield
        cost = self.meter.end()
        item.stash[COST] = cost
        allowed = FAILS_AT * self.test_limit
        # With a GPU, the first test that needs a kernel compiles it, and the first of a process makes a CUDA context.
        limited = tier_of(item) != "nightly" and self.config.getoption("--engine", "pandas") == "pandas"
        if limited and cost.cpu > allowed:
            pytest.fail(
                f"the test used {cost.cpu:.1f} CPU seconds; {allowed:.0f} are allowed on this host, which is "
                f"{self.slowness:.1f} times as slow as the reference (TEST_CPU_SECONDS in tests/cost.py): make it "
                "cheaper, or mark it nightly",
                pytrace=False,
            )
        return done

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = yield
        if call.when == "teardown" and COST in item.stash:
            cost = item.stash[COST]
            report.cost = [cost.cpu, cost.wall]  # travels with the report to the process that sums up
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        if hasattr(report, "cost"):
            self.costs[without_group(report.nodeid)] = Cost(*report.cost)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.costs:
            return
        table = self.table()
        terminalreporter.section("what the tests cost")
        for line in describe(table):
            terminalreporter.write_line(line)
        for row in table["tests"]:
            if row["cpu"] > self.test_limit:
                warning = f"over the limit of {self.test_limit:.0f} CPU seconds: {row['name']} ({row['cpu']:.1f})"
                terminalreporter.write_line(warning, yellow=True)
        if "nightly" not in (self.config.getoption("-m") or "") and table["core_minutes"] > self.suite_limit:
            warning = f"over the budget of the suite: {table['core_minutes']} of {self.suite_limit:.1f} core minutes"
            terminalreporter.write_line(warning, yellow=True)
        if path := self.config.getoption("--cost"):
            Path(path).write_text(json.dumps(table, indent=1) + "\n")

    def table(self) -> dict[str, Any]:
        files: dict[str, Cost] = defaultdict(lambda: Cost(0, 0))
        for name, cost in self.costs.items():
            file = name.partition("::")[0]
            files[file] = Cost(files[file].cpu + cost.cpu, files[file].wall + cost.wall)
        return {
            "method": WITH_WATCH if self.watch else WITHOUT_WATCH,
            "cores": os.cpu_count(),
            "cpu": cpu_model(),
            "python": platform.python_version(),
            "processes": self.config.getoption("numprocesses", None) or 1,
            "slowness": round(self.slowness, 2),
            "core_minutes": round(self.total() / 60, 2),
            "of tests": round(sum(cost.cpu for cost in self.costs.values()) / 60, 2),
            "of the session's server": round(spent_by(session_server()) / 60, 2),
            "of orphans": round(self.watch.orphans / 60, 2) if self.watch else None,
            "wall_minutes": round((time.perf_counter() - self.began) / 60, 2),
            "files": by_cpu(files),
            "tests": by_cpu(self.costs),
        }

    def total(self) -> float:
        """CPU seconds of all processes since this session began."""
        own = spent_by(os.getpid()) + sum(map(spent_by, descendants(os.getpid())))
        if self.watch is None:
            return own
        living_orphans = descendants(self.watch.pid, but=str(os.getpid()))
        return own + self.watch.orphans + sum(map(spent_by, living_orphans))


COST = pytest.StashKey[Cost]()


def without_group(name: str) -> str:
    """The node id of a test that pytest-xdist calls NODE_ID@GROUP. A parameter in brackets may have an @, too."""
    test, _, group = name.rpartition("@")
    return test if test and not set(group) & set("]:/") else name


def by_cpu(costs: dict[str, Cost]) -> list[dict[str, Any]]:
    """Rows of a table, the dearest first."""
    ordered = sorted(costs.items(), key=lambda item: -item[1].cpu)
    return [{"name": name, "cpu": round(cost.cpu, 3), "wall": round(cost.wall, 3)} for name, cost in ordered]


def describe(table: dict[str, Any]) -> Iterator[str]:
    """Lines with the sums of a run, and with the tests and files that used most."""
    yield f"{table['core_minutes']} core minutes of all processes, in {table['wall_minutes']} minutes"
    shares = (f"{table[share]} {share}" for share in ("of tests", "of the session's server", "of orphans"))
    yield f"{', '.join(shares)}; the rest of starts and collection"
    yield f"{table['cores']} cores, {table['slowness']} times as slow as the reference, {table['processes']} processes"
    for kind, most in (("tests", SHOWN_TESTS), ("files", SHOWN_FILES)):
        rows = [row for row in table[kind] if row["cpu"] >= SHOWN_SECONDS]
        if rows:
            yield f"{'CPU s':>8} {'wall s':>8}  {kind} that used most"
        for row in rows[:most]:
            yield f"{row['cpu']:8.1f} {row['wall']:8.1f}  {row['name']}"


def cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--cost", metavar="FILE", help="write what each test cost as JSON")
    parser.addoption(
        "--test-cpu-seconds", type=float, default=TEST_CPU_SECONDS, metavar="SECONDS",
        help="CPU seconds of one test above which it is listed; three times as many fail",
    )  # fmt: skip
    parser.addoption(
        "--suite-core-minutes", type=float, default=SUITE_CORE_MINUTES, metavar="MINUTES",
        help="core minutes of a whole run above which its end warns",
    )  # fmt: skip


def measure(config: pytest.Config, owner: bool) -> None:
    """Measure the tests of this session; `owner`: the user started this process, which goes on as a child of it."""
    watch = None
    if owner and not config.option.collectonly:
        os.environ[SLOWNESS] = f"{calibrate():.3f}"
        watch = Watch()
        watch.begin()
    config.pluginmanager.register(CostPlugin(config, watch))
