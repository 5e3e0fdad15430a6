"""The tiers of the tests: `pytest`, `pytest -m system` and `-m nightly`, and what a test of the first may not do."""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import sys
import threading
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import is_hypothesis_test

# A test that takes one of these, itself or by another fixture, is of the tier `system`.
FIXTURES = {"browser", "client", "cluster", "prefect_server", "rounds"}
# What the interpreter says of itself when a process begins or a socket gets an address (a server, or a forkserver's).
STARTS = {"subprocess.Popen", "multiprocessing.Process.start", "os.fork", "os.forkpty", "os.posix_spawn", "os.system",
          "os.exec", "socket.bind"}  # fmt: skip
MARK_IT = "a test that starts a process or a server needs the mark `system`"

running = ""  # the plain test that runs
everywhere = False  # in all threads: none of them belongs to a cluster that another test of the session has begun
starts: list[str] = []  # of this test


SEED = "ROWMILL_TEST_SEED"


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="what -m nightly draws everything from; without it a new one is drawn")


def is_nightly(config: pytest.Config) -> bool:
    """Tell whether the nightly tests run: all tests of a property are of these, too."""
    wanted = config.getoption("-m") or ""
    return "nightly" in wanted and "not nightly" not in wanted


def choose_seed(config: pytest.Config) -> None:
    """Give `--seed`, or a new seed, to all that draws in a nightly run; workers of xdist have that of their session."""
    seed = config.getoption("--seed")
    if seed is None and is_nightly(config):
        seed = int(os.environ.get(SEED, "0")) or random.SystemRandom().randrange(1, 1_000_000)
    if seed is not None:
        os.environ[SEED] = str(seed)
    if seed is not None and config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(seed)


def first_round() -> int:
    """The number of the first round of seeded faults: another one for each seed, 0 without a seed."""
    return 1_000 * int(os.environ.get(SEED, "0"))


def pytest_report_header() -> str:
    seed = os.environ.get(SEED, "")
    return f"seed {seed}: with --seed {seed} everything is drawn again" if seed else ""


def tier_of(item: pytest.Item) -> str:
    """Tell `nightly` and `system` from a test that starts no process and no server: that has no name."""
    return next((tier for tier in ("nightly", "system") if item.get_closest_marker(tier)), "")


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests of a tier, unless `-m` has its name or the node id of the test is an argument."""
    for item in items:
        if is_nightly(config) and is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("nightly")
        if FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("system")
    wanted = config.getoption("-m") or ""
    named = [argument for argument in config.args if "::" in argument]
    out = [
        item for item in items
        if tier_of(item) not in wanted and not any(item.nodeid in name or name in item.nodeid for name in named)
    ]  # fmt: skip
    if out:
        config.hook.pytest_deselected(items=out)
        left_out = set(out)
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Any:
    """Look for doctests only where there are any: in all objects of all modules of tests it takes seconds."""
    collectors = yield
    return [one for one in collectors if not isinstance(one, DoctestModule) or b">>>" in file_path.read_bytes()]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Watch what tests start, but not on GPUs, whose compilers are processes."""
    global everywhere
    if session.config.getoption("--engine") == "cudf":
        return
    importlib.import_module("urllib3")  # which binds a socket when it is imported, to know whether the host has IPv6
    everywhere = not any(map(tier_of, session.items))
    sys.addaudithook(refuse)
    start = BaseProcess.start

    def watched(self: BaseProcess) -> None:  # a process that is spawned has no event of its own
        refuse("multiprocessing.Process.start", ())
        start(self)

    BaseProcess.start = watched  # type: ignore[method-assign]


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if running and event in STARTS and (everywhere or threading.current_thread() is threading.main_thread()):
        starts.append(event)
        raise RuntimeError(f"{event}: {MARK_IT}")


@contextlib.contextmanager
def watching(item: pytest.Item) -> Iterator[None]:
    global running
    running = "" if tier_of(item) else item.nodeid
    try:
        yield
    finally:
        running = ""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Any:
    with watching(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    with watching(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Any:
    """Fail a test whose code has caught the refusal, or whose thread was refused."""
    refused = ", ".join(starts)
    starts.clear()
    done = yield
    if refused:
        pytest.fail(f"{refused}: {MARK_IT}")
    return done
