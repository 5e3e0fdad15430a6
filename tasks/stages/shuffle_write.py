"""Stage 4, shuffle_write: every file gathers its pieces, is ordered, written and noted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.cluster.pool import Pool
from tasks.core.settings import Output
from tasks.errors import DataError
from tasks.job.request import PlanOf, Request
from tasks.shuffle.parts import Part, Writing, written
from tasks.shuffle.writing import write_part
from tasks.stages.progress import Progress, _Counter, _silent
from tasks.stages.resume import drop_damaged, halvings
from tasks.stages.reuse import exchange_of, found_cut, missing_parts, prepared
from tasks.stages.transform import cut
from tasks.storage import hive
from tasks.storage.atomic import no_space
from tasks.storage.files import check_unchanged


def write(
    request: Request, split: str, pool: Pool, progress: Progress = _silent, kept: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Stage 4, shuffle_write: the files of a split that are not there yet, under `new/`. What is gone is made again."""
    start = time.perf_counter()
    ready, staging, kept = prepared(request, split), request.staging, {} if kept is None else kept
    found = found_cut(request, split, ready)
    folder, notes = staging.new / split, staging.notes / split
    drop_damaged(folder, notes, pool)
    exchange = kept.get(split) or exchange_of(request, ready, pool, found["exchange"] if found else "memory")
    if found is None or (
        missing_parts(request, split, ready, found)[1] and not exchange.whole(len(ready.plan.partitions))
    ):
        cut(request, split, pool, kept=kept)
        exchange, found = kept[split], found_cut(request, split, ready)
    assert found is not None
    parts, missing = missing_parts(request, split, ready, found)
    for path in (folder, notes):
        with no_space(path):
            path.mkdir(parents=True, exist_ok=True)
    output, order = request.output, ready.cutting.order
    emptied = found["exchange"] == "disk" or found.get("on_host", False)  # an earlier millrace did not note it
    writing = Writing(str(folder), str(notes), request.engine, output, order, ready.work.bound.output,
                      ready.fingerprint, ready.cutting.floor, emptied)  # fmt: skip
    counter = _Counter(progress, sum(p.rows for p in parts))
    counter.add(sum(p.rows for p in parts) - sum(p.rows for p in missing))
    exchange.deliver(
        write_part, writing, missing, lambda p: (p.first, p.last), lambda i, _: counter.add(missing[i].rows)
    )
    exchange.close()
    check_unchanged(*PlanOf(request).sources(split))
    records = _records(parts, writing)
    return {
        "stage": "shuffle_write", "split": split, "rows": sum(r["rows"] for r in records),
        "bytes": sum(r["bytes"] for r in records), "files": len(parts), "parts": records,
        "rows_in": found["rows_in"], "rows_out": found["rows_out"], "halved": halvings(notes),
        "reused": not missing, "seconds": time.perf_counter() - start, **_folders(records, len(parts), output),
    }  # fmt: skip


def _folders(records: Sequence[dict[str, Any]], files: int, output: Output) -> dict[str, Any]:
    """What a summary says of Hive folders; nothing without them."""
    if not output.partition_on:
        return {}
    said = hive.advice(records, files)
    found = {"folders": len({r["path"].rpartition("/")[0] for r in records}), "folder_files": len(records)}
    return {**found, **({"advice": said} if said else {})}


def _records(parts: Sequence[Part], writing: Writing) -> list[dict[str, Any]]:
    """The notes of all parts; DataError if one went away meanwhile."""
    records: list[dict[str, Any]] = []
    for name in (p.name(writing.suffix) for p in parts):
        found = written(Path(writing.notes) / f"{name}.json", Path(writing.folder), writing.fingerprint)
        if found is None:
            raise DataError("a file that was written is gone", where=str(Path(writing.folder) / name),
                            why="something else removed or changed it", do="run the same job again")  # fmt: skip
        records += found
    return records
