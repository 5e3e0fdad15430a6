"""Fixtures of the tests of tasks/."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def two_workers() -> Iterator[Any]:
    """A client of a running cluster of two worker processes with one thread each, on cores on every engine."""
    from distributed import Client

    from infra.clusters.model import Cluster
    from tests.clusters import make_cluster

    asked = Cluster(kind="cpu", workers=2, threads_per_worker=1)
    with make_cluster(asked) as running, Client(running, set_as_default=False) as connected:
        yield connected
