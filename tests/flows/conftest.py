"""Runs of `preprocess` for tests of flows, whose stages are done in this process: with Prefect, and without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.flows.runs import call, have_stages_here, run_any

Run = Callable[[dict[str, Any]], list[Path]]


@pytest.fixture
def stages_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the test runs, the stages of flows, also of those that commands start, run in this process, without a
    cluster and without task runs. For tests of what is around the stages."""
    have_stages_here(monkeypatch)


@pytest.fixture
def run_here(stages_here: None, prefect_server: Any) -> Run:
    """A flow run at the session's server whose stages run in this process."""
    from flows.preprocess import preprocess

    return lambda data: [Path(folder) for folder in run_any(preprocess, data)]


@pytest.fixture
def run_alone(stages_here: None) -> Run:
    """The function of the flow: no flow run is made, and no server hears of it."""
    from flows.preprocess import preprocess

    return lambda data: [Path(folder) for folder in call(preprocess, data)]
