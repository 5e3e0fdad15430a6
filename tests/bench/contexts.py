"""A plugin of pytest: coverage.py notes which tests ran a line, by their node ids. tests/bench/mutants.py needs it.

    pytest -p tests.bench.contexts && coverage combine

Each process of pytest-xdist measures its own tests and writes a file of its own.
"""

from __future__ import annotations

import os
from typing import Any

import coverage
import pytest

SOURCES = ["flows", "infra", "tasks"]
measuring: list[coverage.Coverage] = []  # of this process


def runs_tests(config: pytest.Config) -> bool:
    """Return whether this process runs tests itself: with pytest-xdist its workers do."""
    return "PYTEST_XDIST_WORKER" in os.environ or not config.getoption("numprocesses", None)


def pytest_configure(config: pytest.Config) -> None:
    if runs_tests(config):
        measuring.append(coverage.Coverage(data_suffix=True, branch=True, source=SOURCES))
        measuring[0].start()


def pytest_unconfigure() -> None:
    if measuring:
        measuring[0].stop()
        measuring[0].save()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    for running in measuring:
        running.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        for running in measuring:
            running.switch_context("")
