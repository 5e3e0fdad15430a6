"""A cluster class of a user's own whose size follows an operator: two workers while it learns, one once it has."""

from __future__ import annotations

import inspect
import time
from typing import Any, ClassVar

from distributed import LocalCluster, get_client

from tasks.cluster.dask_pool import workers_at
from tasks.ops.base import Learned
from tests.clusters import ForkingNanny

SECONDS = 60


class OwnCluster(LocalCluster):
    """Scales when `scale_to` says so; its `adapt` takes the bounds only."""

    __signature__ = inspect.signature(LocalCluster)  # that rowmill checks arguments against
    running: ClassVar[OwnCluster]

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments, worker_class=ForkingNanny)

    def adapt(self, minimum: int, maximum: int) -> None:
        OwnCluster.running, self.bounds, self.has_shrunk = self, (minimum, maximum), False

    def scale_once(self, bound: int) -> int:
        """Grow, and later shrink, which may take a stage's work with it: its next attempt has the workers as they are.
        The number of workers."""
        if not self.has_shrunk:
            self.scale(self.bounds[bound])
        self.has_shrunk |= bound == 0
        return len(self.worker_spec)


def scale_to(bound: int) -> None:
    """In a task: bring the cluster, whose scheduler runs in the process of its class, to a bound, and wait for it."""

    client, deadline = get_client(), time.monotonic() + SECONDS
    number = client.run_on_scheduler(lambda: OwnCluster.running.scale_once(bound))
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
