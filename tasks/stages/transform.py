"""Stage 3, transform: every partition is transformed and cut into pieces."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from tasks.cluster import column_cache
from tasks.cluster.pool import Pool
from tasks.job.request import PlanOf, Request
from tasks.manifest import seal
from tasks.shuffle.choice import choose
from tasks.shuffle.pieces import totals
from tasks.stages.progress import Progress, _Counter, _silent
from tasks.stages.reuse import exchange_of, found_cut, missing_parts, prepared
from tasks.storage.atomic import write_json
from tasks.storage.files import check_unchanged


def cut(
    request: Request, split: str, pool: Pool, progress: Progress = _silent, kept: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Stage 3, transform: every partition of a split cut into pieces, which stay where they were made.

    Pieces that an earlier start left are kept; when all files are written none are needed. `kept` holds the exchange
    for shuffle_write where pieces live in this process.
    """
    start = time.perf_counter()
    ready = prepared(request, split)
    partitions, found = ready.plan.partitions, found_cut(request, split, ready)
    reused = found is not None and not missing_parts(request, split, ready, found)[1]
    if not reused:
        asked, output = request.run.exchange, ready.work.bound.output
        chosen = choose(asked, ready.plan.rows, output, pool, request.engine)
        exchange = exchange_of(request, ready, pool, chosen.kind)
        cutting = replace(ready.cutting, on_host=chosen.on_host)
        if kept is not None:
            kept[split] = exchange
        counter = _Counter(progress, ready.plan.rows)
        try:
            found = totals(exchange.fill(cutting, partitions, lambda i, _: counter.add(partitions[i].rows)))
        finally:
            column_cache.release(pool, ready.work.keeping)
        check_unchanged(*PlanOf(request).sources(split))
        found |= {
            "fingerprint": ready.fingerprint,
            "exchange": chosen.kind,
            "because": chosen.because,
            "on_host": chosen.on_host,
            "counts": found["counts"].tolist(),
        }
        write_json(request.staging.folder / f"exchange{split}.json", seal(found))
    assert found is not None
    progress(ready.plan.rows, ready.plan.rows)
    return {
        "stage": "transform", "split": split, "rows": found["rows_in"], "rows_out": found["rows_out"],
        "bytes": found["nbytes"], "halved": found["halved"], "partitions": len(partitions),
        "exchange": found["exchange"], "because": found["because"], "reused": reused,
        **({"failed_casts": found["failed_casts"]} if found.get("failed_casts") else {}),
        "seconds": time.perf_counter() - start,
    }  # fmt: skip
