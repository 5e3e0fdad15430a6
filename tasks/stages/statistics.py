"""Stage 2, statistics: all operators learn, phase by phase."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tasks.cluster import column_cache
from tasks.cluster.column_cache import Keeping
from tasks.cluster.pool import Pool
from tasks.core.plan import Plan
from tasks.errors import DataError
from tasks.graph.binding import Bound
from tasks.graph.failed_casts import Record, largest
from tasks.graph.state import Saving, check_saved
from tasks.job.request import PlanOf, Request
from tasks.learning import observe
from tasks.report import learned_tables
from tasks.stages.cache_policy import kept_for_transform
from tasks.stages.progress import Progress, _Counter, _silent
from tasks.stages.reuse import check_side_files
from tasks.storage.atomic import no_space, partial_folder, read_json, write_json
from tasks.storage.files import check_unchanged


def learn(request: Request, pool: Pool, progress: Progress = _silent) -> dict[str, Any]:
    """Stage 2, statistics: the state of the workflow, kept in `state/`."""
    start = time.perf_counter()
    plan = PlanOf(request).plan(request.splits[0])
    folder = request.staging.folder / "state"
    asked = request.state_fingerprint(plan.fingerprint)
    manifest = read_json(folder / "manifest.json") or {}
    reused = manifest.get("fingerprint") == asked and is_whole(folder, manifest["digest"])
    phases, bound = observe.passes(request.final, plan.schema), Bound(request.final, plan.schema)
    keeping = None
    if not reused:
        counter = _Counter(progress, plan.rows * max(phases, 1))
        with kept_for_transform(request, plan, bound, pool) as keeping:
            manifest = _learned(request, plan, bound, pool, folder, asked, counter, keeping)
    progress(plan.rows, plan.rows)
    return {
        "stage": "statistics",
        "rows": plan.rows * phases,
        "bytes": _needed_bytes(plan, bound),
        "phases": phases,
        "operators": len({s.node for s in bound.learned}),
        "learned": len(bound.learned),
        "digest": manifest["digest"],
        "reused": reused,
        "tables": manifest.get("tables", {}),
        "halved": manifest.get("halved", 0),
        **({"failed_casts": manifest["failed_casts"]} if manifest.get("failed_casts") else {}),
        "decoded": column_cache.nbytes_held(pool, keeping),
        "seconds": time.perf_counter() - start,
    }


def _learned(
    request: Request, plan: Plan, bound: Bound, pool: Pool, folder: Path, asked: str, counter: _Counter,
    keeping: Keeping | None,
) -> dict[str, Any]:  # fmt: skip
    """The statistics; the state and its manifest in `folder`, put there by one rename. Large tables are written while
    others are still put in order."""
    source, run = request.source, request.run
    halved: list[int] = []
    failed: list[list[Record]] = []
    side_files = request.side_files
    with ExitStack() as held:
        with no_space(folder):
            partial = held.enter_context(partial_folder(folder))
        saving = held.enter_context(Saving(partial))
        state = observe.learn(plan, plan, request.final, plan.schema, request.engine, pool, source.filter,
                                 run.min_partition_size, lambda _, rows: counter.add(rows), halved.append,
                                 saving.begin, keeping, failed.append)  # fmt: skip
        check_unchanged(*PlanOf(request).sources(request.splits[0]))
        check_side_files(request, side_files)
        with no_space(folder):
            tables = learned_tables(bound.learned, state.values)
            digest = state.save(partial, saving)
            manifest = {"fingerprint": asked, "digest": digest, "tables": tables, "halved": sum(halved)}
            manifest |= {"failed_casts": largest(failed)}
            write_json(partial / "manifest.json", manifest)
            held.close()
    return manifest


def is_whole(folder: Path, digest: str) -> bool:
    """True if a saved state is the one of this digest and none of its tables is damaged."""
    try:
        check_saved(folder, digest)
    except (DataError, OSError):
        return False
    return True


def _needed_bytes(plan: Plan, bound: Bound) -> int:
    """About how many decoded bytes the statistics read: the share of their columns."""
    needed = bound.source_columns([place for s in bound.learned for place in s.fit_inputs.values()], training=True)
    return plan.nbytes * len(needed) // max(len(plan.schema), 1)
