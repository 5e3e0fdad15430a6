"""Transform and write from Python, without Prefect: the same decisions, pieces and files as in a flow."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tasks.cluster.dask_pool import DaskPool
from tasks.cluster.lost_worker import explain_losses
from tasks.cluster.pool import Pool
from tasks.core.notes import leave_out_empty
from tasks.core.plan import Plan
from tasks.core.row_sizes import row_bytes, row_width
from tasks.core.settings import Output, Run
from tasks.core.strict_json import JsonObject
from tasks.core.wings import from_wing
from tasks.graph.failed_casts import warn
from tasks.graph.node import Node, graph_to_json
from tasks.graph.partition_work import StateFolder, Work
from tasks.graph.saved_workflow import FittedOrigin, read_fitted, save_fitted
from tasks.job.source_rules import add_rule_counts
from tasks.manifest import Manifest
from tasks.shuffle.choice import Choice, choose, make_exchange
from tasks.shuffle.parts import check_types
from tasks.shuffle.pieces import CutSummary, totals
from tasks.shuffle.row_order import compute_number_of_files, describe_choice
from tasks.shuffle.rows_to_files import RowsToFiles, rows_to_files, write_files
from tasks.stages.commit import describe_output
from tasks.stages.kept_order import KeptOrder, fits, keeps_order
from tasks.storage import hive
from tasks.storage.atomic import write_json
from tasks.storage.documents import seal
from tasks.storage.files import check_unchanged
from tasks.storage.output_mirror import place_of
from tasks.storage.own_files import MANIFEST, WORKFLOW
from tasks.storage.parquet_footers import write_footers
from tasks.storage.retention import publish
from tasks.storage.sample_data import find_sample_folders
from tasks.storage.staging import Staging

log = logging.getLogger("rowmill")


@dataclass(frozen=True)
class Origin:
    """Where transformed rows come from, for the output's manifest and workflow.

    `reading` is how the source was read that the workflow was fitted on; `final` is the whole graph, of which
    `left_out` are outputs that the source lacks the columns for. `row_rules` are the rules of the data set by which
    rows are left out, as the manifest has them.
    """

    reading: JsonObject = field(default_factory=dict)
    final: Node | None = None
    left_out: Sequence[str] = ()
    row_rules: JsonObject = field(default_factory=dict)


NO_ORIGIN = Origin()
DEFAULT_RUN = Run()
EXCHANGES = {"memory": "memory", "disk": "scratch files", KeptOrder.kind: "nowhere"}


def write_transformed(
    work: Work, plan: Plan, output: Output, pool: Pool, origin: Origin = NO_ORIGIN, run: Run = DEFAULT_RUN
) -> Manifest:
    """Shuffle the rows of a fitted workflow into files under `output.path`, committed with one rename.

    Of `run` the keys `exchange`, `scratch` and `min_partition_size` count, as in a job.
    """
    with explain_losses("to_parquet", pool, work.engine):
        return _write(work, plan, output, pool, origin, run)


def _write(work: Work, plan: Plan, output: Output, pool: Pool, origin: Origin, run: Run) -> Manifest:
    graph_to_json(work.final)  # a function without an import path is refused now, not when all is written
    started = time.perf_counter()
    staging = Staging.of(output, run)
    staging.check(output.on_existing)
    with staging.hold_lock():
        if check_no_open_question := from_wing("tasks/gate", "question", "check_no_open_question"):
            check_no_open_question(staging)
        staging.check(output.on_existing)
        staging.reset()
        for folder in (staging.new, staging.notes):
            folder.mkdir(parents=True)
        files = compute_number_of_files(output, plan.rows, work.bound.output, len(pool.workers))
        shuffle = rows_to_files(work, plan, output, files, run.min_partition_size)
        hive.check_columns(output.partition_on, shuffle.schema)
        check_types(output, shuffle.schema)
        fitted = staging.new / WORKFLOW
        save_fitted(origin.final or work.final, work.schema, work.learned, fitted, FittedOrigin(origin.reading))
        shuffle = replace(shuffle, cutting=replace(shuffle.cutting, work=prepare_for_workers(work, fitted, pool)))
        choice = _choose_exchange(work, plan, output, pool, run, shuffle)
        with staging.upload_ahead(output.on_existing):
            written = _write_rows(shuffle, plan, output, pool, staging, choice)
        check_unchanged(plan.files, plan.options.get("storage_options"))
        data = _describe_output(work, plan, output, origin, choice, written, started)
        if output.metadata_file:
            data["footers"] = write_footers(staging.new, written.records)
        write_json(staging.new / MANIFEST, seal(data))
        manifest = Manifest(place_of(publish(staging, output)), data)
        if text := manifest.empty_files:
            log.warning("%s", text)
        return manifest


@dataclass(frozen=True)
class WrittenRows:
    """The rows that were written: what is known of their pieces, a record of each part, and the moment between the two
    stages, as `time.perf_counter` has it."""

    pieces: CutSummary
    records: list[JsonObject]
    transformed: float


def _choose_exchange(work: Work, plan: Plan, output: Output, pool: Pool, run: Run, shuffle: RowsToFiles) -> Choice:
    """Choose where rows wait for their files; rows that keep their order need not wait."""
    in_order = run.exchange == "auto" and keeps_order(work, plan, output.shuffle)
    if in_order and fits(work, plan.rows, shuffle.files, pool):
        choice = Choice(KeptOrder.kind, "each file is made of its own rows, in their order")
    else:
        choice = choose(run.exchange, plan.rows, shuffle.schema, pool, work.engine)
    log.info("where rows wait for their files: %s; %s", EXCHANGES[choice.kind], choice.because)
    return choice


def _write_rows(
    shuffle: RowsToFiles, plan: Plan, output: Output, pool: Pool, staging: Staging, choice: Choice
) -> WrittenRows:
    """Transform the rows, and write them to the staging folder."""
    exchange = _open_exchange(choice, plan.rows * row_bytes(shuffle.schema), pool, staging)
    try:
        pieces = shuffle.cut(exchange, choice.on_host)
        transformed = time.perf_counter()
        parts = shuffle.parts(pieces.counts)
        if output.chooses_files:
            why = describe_choice(sum(part.rows for part in parts), row_width(shuffle.schema))
            log.info("output.files: %s, %s", f"{len(parts):,}", why)
        writing = shuffle.writing(staging.new, staging.notes, on_host=choice.off_device)
        records_of_parts = write_files(exchange, writing, parts)
        if isinstance(exchange, KeptOrder):
            pieces = totals(exchange.summaries)
        records = [record for of_part in records_of_parts for record in of_part]
    finally:
        exchange.close()
    return WrittenRows(pieces, records, transformed)


def _describe_output(
    work: Work, plan: Plan, output: Output, origin: Origin, choice: Choice, written: WrittenRows, started: float
) -> JsonObject:
    """Describe the output for the manifest; warn of casts that failed."""
    done = time.perf_counter()
    pieces = written.pieces
    records = written.records
    warn(pieces.failed_casts)
    transform = _make_stage_entry(written.transformed - started, plan.rows, pieces.nbytes)
    if pieces.failed_casts:
        transform["failed_casts"] = pieces.failed_casts
    nbytes = sum(record["bytes"] for record in records)
    shuffle_write = _make_stage_entry(done - written.transformed, pieces.rows_out, nbytes)
    more = {
        "reading": plan.reading,
        "row_rules": add_rule_counts(origin.row_rules, pieces.left_out) if origin.row_rules else {},
        "made_up": find_sample_folders(file.path for file in plan.files),
        "left_out": list(origin.left_out),
    }
    return describe_output(
        plan.numbered_rows,
        pieces.left_out.get("other_splits"),
        records,
        work.bound.output,
        output,
        work.engine,
        exchange=choice.kind,
        stages={"transform": transform, "shuffle_write": shuffle_write},
        fingerprints={"source": plan.fingerprint},
        seconds=round(time.perf_counter() - started, 3),
        **leave_out_empty(more),
    )


def _open_exchange(choice: Choice, need: int, pool: Pool, staging: Staging) -> Any:
    """Open the exchange of a choice; one of rows that keep their order has the same methods."""
    if choice.kind == KeptOrder.kind:
        return KeptOrder(pool)
    return make_exchange(choice.kind, pool, f"rowmill-{uuid.uuid4().hex[:12]}", staging.folder / "exchange", need)


def prepare_for_workers(work: Work, fitted: Path, pool: Pool) -> Work:
    """Prepare the work for workers: other processes load the state from the folder of the fitted workflow."""
    if not isinstance(pool, DaskPool):
        return work
    return replace(work, state=StateFolder(str(fitted), read_fitted(fitted)["state"]))


def _make_stage_entry(seconds: float, rows: int, nbytes: int) -> JsonObject:
    return {"seconds": round(seconds, 3), "rows": rows, "bytes": nbytes, "retries": 0}
