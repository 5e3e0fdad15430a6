"""What several tests of flows take: a run on the session's cluster, and the API of its Prefect server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.flows.runs import run_flow


@pytest.fixture
def run(cluster: Any, prefect_server: Any) -> Callable[[dict[str, Any]], list[Path]]:
    return lambda data: run_flow(data, cluster)


@pytest.fixture
def api(prefect_server: Any) -> Iterator[Any]:
    from prefect import get_client

    with get_client(sync_client=True) as client:
        yield client
