"""The cluster of a benchmark, made as a job makes its own."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def connected(engine: str, said: str | None) -> Iterator[Any]:
    """The current client of a new cluster; `said` (JSON) are further keys of the section cluster.

    GPUs always mean a cluster; on the CPU one is made when `said` is given, else there is None.
    """
    if engine == "pandas" and said is None:
        yield None
        return
    from distributed import Client

    from infra.clusters.model import Cluster
    from tests.clusters import make_cluster

    asked = {"kind": "cuda" if engine == "cudf" else "cpu", **json.loads(said or "{}")}
    start = time.perf_counter()
    with make_cluster(Cluster.model_validate(asked)) as cluster, Client(cluster, set_as_default=False) as client:
        print(f"cluster: {time.perf_counter() - start:.1f} s, {cluster}", file=sys.stderr, flush=True)
        with client.as_current():
            yield client
