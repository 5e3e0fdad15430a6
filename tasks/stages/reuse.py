"""What a run finds of an earlier one: prepared partitions, pieces that are there, parts that are missing."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from tasks.cluster.pool import Pool
from tasks.core.plan import Plan
from tasks.core.row_sizes import row_bytes
from tasks.errors import DataError
from tasks.graph.partition_work import StateFolder, Work
from tasks.job.apply_fitted import subject
from tasks.job.request import PlanOf, Request
from tasks.manifest import seal
from tasks.shuffle.choice import make_exchange
from tasks.shuffle.disk_exchange import DiskExchange
from tasks.shuffle.memory_exchange import DaskMemory, LocalMemory
from tasks.shuffle.order import carried_columns, make_order, number_of_files
from tasks.shuffle.parts import Part, plan_parts, written
from tasks.shuffle.pieces import Cutting
from tasks.stages.cache_policy import taking_of
from tasks.storage.atomic import read_json
from tasks.storage.metadata_forms import DIGEST
from tasks.storage.staging import Staging


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
    source, output, run = request.source, request.output, request.run
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
    output, staging = request.output, request.staging
    parts = plan_parts(np.array(found["counts"]), output, ready.cutting.order, ready.files)
    names = {p: p.name(output.format) for p in parts}
    return parts, [
        p for p, n in names.items()
        if written(staging.notes / split / f"{n}.json", staging.new / split, ready.fingerprint) is None
    ]  # fmt: skip
