"""A cluster class of a user's own whose size follows an operator: three workers while it learns, one once it has."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from distributed import LocalCluster, get_client

from tasks.cluster.dask_pool import workers_at
from tasks.ops.base import Learned

SECONDS = 60


class OwnCluster(LocalCluster):
    """Scales when `scale_to` says so; its `adapt` takes the bounds only."""

    running: ClassVar[OwnCluster]

    def adapt(self, minimum: int, maximum: int) -> None:
        OwnCluster.running, self.bounds = self, (minimum, maximum)


def scale_to(bound: int) -> None:
    """In a task: bring the cluster, whose scheduler runs in the process of its class, to a bound, and wait for it."""

    def scale() -> int:
        number: int = OwnCluster.running.bounds[bound]
        OwnCluster.running.scale(number)
        return number

    client, deadline = get_client(), time.monotonic() + SECONDS
    number = client.run_on_scheduler(scale)
    while (there := len(workers_at(client))) != number:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{there} workers, not {number}")
        time.sleep(0.1)


class Breathes(Learned):
    """The column as it is; with `scales` the cluster grows when rows are observed and shrinks when it is finalized."""

    scales: bool = False

    def observe(self, column: Any) -> int:
        if self.scales:
            scale_to(1)
        return len(column)

    def merge(self, a: int, b: int) -> int:
        return a + b

    def finalize(self, partial: int) -> dict[str, Any]:
        if self.scales:
            scale_to(0)
        return {"rows": partial}

    def transform(self, column: Any, fitted: dict[str, Any]) -> Any:
        return column
