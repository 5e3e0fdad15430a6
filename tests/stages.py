"""The stages of a job one after another in this process, without Prefect, for tests of what they do."""

from __future__ import annotations

from typing import Any

from tasks.cluster.local_pool import LocalPool
from tasks.job.request import Request
from tasks.stages import commit, ingest, shuffle_write, statistics, transform


def run_stages(request: Request, threads: int = 2) -> list[dict[str, Any]]:
    """Ingest to commit; the summaries of the stages."""
    pool, kept = LocalPool(threads), dict[str, Any]()
    with request.staging.locked():
        done = [ingest.ingest(request, pool), *([] if request.fitted else [statistics.learn(request, pool)])]
        for split in request.splits:
            done += [
                transform.cut(request, split, pool, kept=kept),
                shuffle_write.write(request, split, pool, kept=kept),
            ]
        commit.commit(request, done)
    return done
