"""A run on the cluster of the session, for tests of flows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.flows.runs import run_flow


@pytest.fixture
def run(cluster: Any, prefect_server: Any) -> Callable[[dict[str, Any]], list[Path]]:
    return lambda data: run_flow(data, cluster)
