"""Transform and write from Python, without Prefect: the same decisions, pieces and files as in a flow."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tasks.cluster.dask_pool import DaskPool
from tasks.cluster.pool import Pool
from tasks.core.plan import Plan
from tasks.core.settings import Output
from tasks.gate.question import refuse_open
from tasks.graph.failed_casts import warn
from tasks.graph.node import Node, graph_to_json
from tasks.graph.partition_work import StateFolder, Work
from tasks.graph.saved_workflow import FittedNotes, read_fitted, save_fitted
from tasks.job.source_rules import counted
from tasks.manifest import Manifest
from tasks.shuffle.memory_exchange import memory_exchange
from tasks.shuffle.parts import check_types
from tasks.shuffle.rows_to_files import rows_to_files, write_files
from tasks.stages.commit import describe
from tasks.storage import hive
from tasks.storage.atomic import write_json
from tasks.storage.documents import seal
from tasks.storage.files import check_unchanged
from tasks.storage.own_files import MANIFEST, WORKFLOW
from tasks.storage.parquet_footers import write_footers
from tasks.storage.retention import publish
from tasks.storage.sample_data import made_up
from tasks.storage.staging import Staging

log = logging.getLogger("rowmill")


@dataclass(frozen=True)
class Origin:
    """Where transformed rows come from, for the output's manifest and workflow.

    `reading` is how the source was read that the workflow was fitted on; `final` is the whole graph, of which
    `left_out` are outputs that the source lacks the columns for. `row_rules` are the rules of the data set by which
    rows are left out, as the manifest has them.
    """

    reading: Mapping[str, Any] = field(default_factory=dict)
    final: Node | None = None
    left_out: Sequence[str] = ()
    row_rules: Mapping[str, Any] = field(default_factory=dict)


NO_ORIGIN = Origin()


def write_transformed(work: Work, plan: Plan, output: Output, pool: Pool, origin: Origin = NO_ORIGIN) -> Manifest:
    """Shuffle the rows of a fitted workflow into files under `output.path`, committed with one rename."""
    graph_to_json(work.final)  # a function without an import path is refused now, not when all is written
    started, staging = time.perf_counter(), Staging(output.path)
    staging.check(output.on_existing)
    with staging.locked():
        refuse_open(staging)
        staging.check(output.on_existing)
        staging.reset()
        for folder in (staging.new, staging.notes):
            folder.mkdir(parents=True)
        shuffle = rows_to_files(work, plan, output, len(pool.workers))
        hive.check_columns(output.partition_on, shuffle.schema)
        check_types(output, shuffle.schema)
        fitted, notes = staging.new / WORKFLOW, FittedNotes(origin.reading)
        save_fitted(origin.final or work.final, work.schema, work.learned, fitted, notes)
        shuffle = replace(shuffle, cutting=replace(shuffle.cutting, work=sent(work, fitted, pool)))
        exchange = memory_exchange(pool)
        try:
            pieces = shuffle.cut(exchange)
            between = time.perf_counter()
            parts = shuffle.parts(pieces.counts)
            records_of_parts = write_files(exchange, shuffle.writing(staging.new, staging.notes), parts)
            records = [record for of_part in records_of_parts for record in of_part]
        finally:
            exchange.close()
        check_unchanged(plan.files, plan.options.get("storage_options"))
        done = time.perf_counter()
        warn(pieces.failed_casts)
        stages = {
            "transform": _figures(between - started, plan.rows, pieces.nbytes)
            | ({"failed_casts": pieces.failed_casts} if pieces.failed_casts else {}),
            "shuffle_write": _figures(done - between, pieces.rows_out, sum(r["bytes"] for r in records)),
        }
        sample = made_up(file.path for file in plan.files)
        data = describe(
            plan.numbered_rows,
            pieces.left_out.get("other_splits"),
            records,
            work.bound.output,
            output,
            work.engine,
            exchange="memory",
            stages=stages,
            fingerprints={"source": plan.fingerprint},
            seconds=round(time.perf_counter() - started, 3),
            **({"reading": plan.reading} if plan.reading else {}),
            **({"row_rules": counted(origin.row_rules, pieces.left_out)} if origin.row_rules else {}),
            **({"made_up": sample} if sample else {}),
            **({"left_out": list(origin.left_out)} if origin.left_out else {}),
        )
        if output.metadata_file:
            data["footers"] = write_footers(staging.new, records)
        write_json(staging.new / MANIFEST, seal(data))
        manifest = Manifest(str(publish(staging, output)), data)
        if text := manifest.empty_files:
            log.warning("%s", text)
        return manifest


def sent(work: Work, fitted: Path, pool: Pool) -> Work:
    """The work as workers get it: other processes load the state from the folder of the fitted workflow."""
    if not isinstance(pool, DaskPool):
        return work
    return replace(work, state=StateFolder(str(fitted), read_fitted(fitted)["state"]))


def _figures(seconds: float, rows: int, nbytes: int) -> dict[str, Any]:
    return {"seconds": round(seconds, 3), "rows": rows, "bytes": nbytes, "retries": 0}
