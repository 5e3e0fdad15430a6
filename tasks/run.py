"""A run: the four stages as plain functions over a staging folder. A stage whose manifest is valid only reads it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tasks import decoded, hive, statistics
from tasks.applied import adapted, adopt, differences_of, missing_labels, null_types, subject
from tasks.commit import Staging, no_space, partial_folder, read_json, write_json
from tasks.decoded import Keeping
from tasks.errors import DataError
from tasks.estimate import checked_needs
from tasks.exchange import DaskMemory, LocalMemory
from tasks.exchange_choice import choose, make_exchange
from tasks.exchange_disk import DiskExchange
from tasks.failed_casts import Record, largest
from tasks.files import check_unchanged, expand
from tasks.finish import Closing, commit, commit_fitted
from tasks.graph import Bound
from tasks.ingest import make_plan, partition_size, read_options
from tasks.keeping import kept_for_transform, taking_of
from tasks.keys import by_keys, check_runs
from tasks.leftover import drop_damaged, halvings
from tasks.made_up import made_up, made_up_text
from tasks.manifest import seal
from tasks.noted_forms import DIGEST
from tasks.parallelism import dividing_threads, partition_limit
from tasks.plan import Plan
from tasks.pool import Pool
from tasks.reading_notes import FOLDER
from tasks.report import learned_tables
from tasks.request import PlanOf, Request, fingerprint, make_request
from tasks.row_sizes import row_bytes
from tasks.schema import Schema
from tasks.settings import Output
from tasks.shuffle_write import Part, Writing, check_types, plan_parts, write_part, written
from tasks.state import Saving, check_saved
from tasks.transform import Cutting, carried_columns, make_order, number_of_files, totals
from tasks.work import StateFolder, Work

__all__ = ["STAGES", "Closing", "Progress", "Request", "commit", "commit_fitted",
           "cut", "ingest", "learn", "make_request", "write"]  # fmt: skip
STAGES = ("ingest", "statistics", "transform", "shuffle_write")


class Progress(Protocol):
    """Told how far a stage is: rows done of rows in all."""

    def __call__(self, done: int, total: int) -> None: ...


def _silent(done: int, total: int) -> None:
    return


def ingest(request: Request, pool: Pool, progress: Progress = _silent) -> dict[str, Any]:
    """Look at the source; the plans are kept in `plan.json` and used again while the source stays as it is."""
    start = time.perf_counter()
    source = request.settings[0]
    if request.fitted:
        adopt(request)
    saved = PlanOf(request)
    names = {"": source.path} if not source.valid else {"train": source.path, "valid": source.valid}
    listed = {
        split: {f.path: f for f in expand(path, read_options(source)["storage_options"])}
        for split, path in names.items()
    }
    listing = {split: [[f.path, f.size, f.mtime] for f in files.values()] for split, files in listed.items()}
    asked = fingerprint(request.plan_fingerprint, listing)
    sample = [
        {**one, **({"of": "valid"} if split == "valid" else {})}
        for split, files in listing.items() for one in made_up(str(file[0]) for file in files)
    ] + request.fitted.get("made_up", [])  # fmt: skip
    now = {"asked": asked, "started": time.time(), "workers": len(pool.workers), "made_up": sample}
    reused = (
        saved.data.get("asked") == asked
        and all(saved.is_of(split, listed[split]) for split in names)
        and (not source.keys or saved.complete(request.splits))
    )
    if not reused:
        origins: dict[str, Any] = {}
        plans = {split: _planned(request, split, path, pool, origins) for split, path in names.items()}
        if source.valid:
            same_schema(plans["train"].schema, plans["valid"].schema)
        saved.set_plans(plans, origins)
    write_json(saved.path, {**saved.data, **now})
    saved = PlanOf(request)
    plans = {split: saved.plan(split) for split in names}
    rows = sum(p.rows for p in plans.values())
    progress(rows, rows)
    schema = plans[request.splits[0]].schema
    bound, left_out = Bound(*subject(request, schema)), ", ".join(missing_labels(request, schema))
    differs = "; ".join(differences_of(request, plans[request.splits[0]]))
    check_columns(request, bound)
    estimate = {} if request.flow == "fit" else checked_needs(request, plans, pool).summary()
    return {
        "stage": "ingest", "rows": rows, "bytes": sum(p.nbytes for p in plans.values()), "reused": reused,
        "files": sum(len(p.files) for p in plans.values()), "skipped": sum(len(p.skipped) for p in plans.values()),
        "blocks": sum(len(p.blocks) for p in plans.values()),
        "partitions": sum(len(p.partitions) for p in plans.values()),
        "columns": len(schema), "output_columns": len(bound.output),
        "threads": pool.threads, "workers": len(pool.workers), "seconds": time.perf_counter() - start,
        **({"left_out": left_out} if left_out else {}), **({"differs_from_fit": differs} if differs else {}),
        **({"made_up": made_up_text(sample)} if sample else {}),
        **estimate,
    }  # fmt: skip


def _planned(request: Request, split: str, path: Any, pool: Pool, origins: dict[str, Any]) -> Plan:
    """The plan of one split; with `source.keys` that of its rows brought together by keys, in scratch files: then
    `origins` gets the source's own files."""
    source, _, run = request.settings
    plan = make_plan(
        source.model_copy(update={"path": path, "valid": None}),
        parallel_map=partial(_mapped, pool),
        threads=dividing_threads(request.engine, pool),
        min_partition_size=run.min_partition_size,
        null_types=null_types(request),
        limit=partition_limit(request.engine, pool),
        fit=request.fit,
        notes=str(request.staging.folder / FOLDER),
    )
    plan = adapted(request, plan)
    check_columns(request, Bound(*subject(request, plan.schema)))  # columns and types, before any row is read
    if not source.keys:
        return plan
    if request.flow != "fit":
        checked_needs(request, {split: plan}, pool)  # before the scratch files of the keys are written
    threads, limit = dividing_threads(request.engine, pool), partition_limit(request.engine, pool)
    size = partition_size(source, plan.nbytes, threads, run.min_partition_size, limit=limit)
    folder = request.staging.folder / f"keyed{split}"
    origins[split] = [file.to_json() for file in plan.files]
    return by_keys(plan, plan, source.keys, source.sort_by, request.engine, pool, folder, size, run.min_partition_size)


def check_columns(request: Request, bound: Bound) -> None:
    """Refuse what the columns and their types do not allow."""
    source, output, _ = request.settings
    check_runs(bound, source.keys)
    if request.flow != "fit":
        hive.check_columns(output.partition_on, bound.output)
        check_types(output, bound.output)


def _mapped(pool: Pool, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """`function` over the items on the pool, in chunks so that thousands of files are few tasks."""
    items = list(items)
    size = max(1, len(items) // (8 * pool.threads))
    chunks = [items[i : i + size] for i in range(0, len(items), size)]
    return [result for chunk in pool.map(_each, function, chunks) for result in chunk]


def _each(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    return [function(item) for item in items]


def same_schema(train: Schema, valid: Schema) -> None:
    for name, column in train.items():
        if name in valid and valid[name].dtype != column.dtype:
            raise DataError(
                f"column {name!r} has different types",
                where="source.path and source.valid",
                why=f"{column.dtype} in the training data, {valid[name].dtype} in the validation data",
                do=f"write the files with one type, or give it in source.schema: {{{name}: ..}}",
            )


def learn(request: Request, pool: Pool, progress: Progress = _silent) -> dict[str, Any]:
    """Stage 2, statistics: the state of the workflow, kept in `state/`."""
    start = time.perf_counter()
    plan = PlanOf(request).plan(request.splits[0])
    folder = request.staging.folder / "state"
    asked = request.state_fingerprint(plan.fingerprint)
    manifest = read_json(folder / "manifest.json") or {}
    reused = manifest.get("fingerprint") == asked and is_whole(folder, manifest["digest"])
    phases, bound = statistics.passes(request.final, plan.schema), Bound(request.final, plan.schema)
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
        "decoded": decoded.nbytes_held(pool, keeping),
        "seconds": time.perf_counter() - start,
    }


def _learned(
    request: Request, plan: Plan, bound: Bound, pool: Pool, folder: Path, asked: str, counter: _Counter,
    keeping: Keeping | None,
) -> dict[str, Any]:  # fmt: skip
    """The statistics; the state and its manifest in `folder`, put there by one rename. Large tables are written while
    others are still put in order."""
    source, _, run = request.settings
    halved: list[int] = []
    failed: list[list[Record]] = []
    side_files = request.side_files
    with ExitStack() as held:
        with no_space(folder):
            partial = held.enter_context(partial_folder(folder))
        saving = held.enter_context(Saving(partial))
        state = statistics.learn(plan, plan, request.final, plan.schema, request.engine, pool, source.filter,
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


def check_side_files(request: Request, before: list[Any]) -> None:
    """A DataError if a file that an operator reads besides the source is not what it was `before`."""
    for file, now in zip_longest(before, request.side_files, fillvalue=["a file of a folder"]):
        if file != now:
            raise DataError(
                "a side table changed while the run worked",
                where=file[0],
                why=f"its size, time and inode were {file[1:]} and are {now[1:]} now",
                do="run the same job again once nobody writes to it",
            )


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


class _Counter:
    def __init__(self, progress: Progress, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def add(self, rows: int) -> None:
        self.done += rows
        self.progress(self.done, self.total)


@dataclass(frozen=True)
class Prepared:
    """What transform and shuffle_write of one split both need."""

    plan: Plan
    work: Work
    cutting: Cutting
    files: int
    fingerprint: str

    name: str


def prepared(request: Request, split: str) -> Prepared:
    source, output, run = request.settings
    plans = PlanOf(request)
    plan = plans.plan(split)
    folder = request.staging.folder / "state"
    state = StateFolder(str(folder), (read_json(folder / "manifest.json") or {})["digest"])
    final, schema = subject(request, plan.schema)
    training = split != "valid" and not request.fitted
    keeping = taking_of(request, plan) if training else None
    work = Work(plan, final, schema, request.engine, state, source.filter, training, keeping=keeping)
    files = number_of_files(output, plan.rows, plans.workers)
    order = make_order(output, plan, files)
    carried_columns(work, order)
    named = request.parts_fingerprint(plan.fingerprint, state.digest, files, split)
    name = f"{exchange_prefix(request.staging)}{named[:16]}"
    cutting = Cutting(work, order, run.min_partition_size, tuple(output.partition_on))
    return Prepared(plan, work, cutting, files, named, name)


def exchange_prefix(staging: Staging) -> str:
    """What the names of a target's pieces on a scheduler begin with: those of other runs stay untouched."""
    return f"millrace-{hashlib.sha256(str(staging.folder).encode()).hexdigest()[:12]}-"


def exchange_of(request: Request, ready: Prepared, pool: Pool, kind: str) -> LocalMemory | DaskMemory | DiskExchange:
    """Where the pieces of a split go, or already are."""
    need = ready.plan.rows * row_bytes(ready.work.bound.output)
    return make_exchange(kind, pool, ready.name, request.staging.folder / "exchange", need)


def found_cut(request: Request, split: str, ready: Prepared) -> dict[str, Any] | None:
    """What the transform of exactly this work found, None if there was none yet."""
    found = read_json(request.staging.folder / f"exchange{split}.json")
    if not isinstance(found, dict) or found.get("fingerprint") != ready.fingerprint:
        return None
    return found if found.get(DIGEST) == seal(found)[DIGEST] else None  # one that was damaged is made again


def missing_parts(
    request: Request, split: str, ready: Prepared, found: dict[str, Any]
) -> tuple[list[Part], list[Part]]:
    """(all parts, those that are not written yet) of a split."""
    output, staging = request.settings[1], request.staging
    parts = plan_parts(np.array(found["counts"]), output, ready.cutting.order, ready.files)
    names = {p: p.name(output.format) for p in parts}
    return parts, [
        p for p, n in names.items()
        if written(staging.notes / split / f"{n}.json", staging.new / split, ready.fingerprint) is None
    ]  # fmt: skip


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
        asked, output = request.settings[2].exchange, ready.work.bound.output
        chosen = choose(asked, ready.plan.rows, output, pool, request.engine)
        exchange = exchange_of(request, ready, pool, chosen.kind)
        cutting = replace(ready.cutting, on_host=chosen.on_host)
        if kept is not None:
            kept[split] = exchange
        counter = _Counter(progress, ready.plan.rows)
        try:
            found = totals(exchange.fill(cutting, partitions, lambda i, _: counter.add(partitions[i].rows)))
        finally:
            decoded.release(pool, ready.work.keeping)
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
    output, order = request.settings[1], ready.cutting.order
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
