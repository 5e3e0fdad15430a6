"""A plugin of pytest: coverage.py notes which tests ran a line, by their node ids. tests/bench/mutants.py needs it."""

from __future__ import annotations

from typing import Any

import coverage
import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    measuring = coverage.Coverage.current()
    if measuring is not None:
        measuring.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        if measuring is not None:
            measuring.switch_context("")
