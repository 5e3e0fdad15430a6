"""All rows of a key in one block, sorted: the source in another order, as a plan over scratch files."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks import engines
from tasks.cluster.pool import Pool
from tasks.cluster.transfer import gpu_setup
from tasks.core.plan import RETYPED, Block, File, Piece, Plan, cut_partitions
from tasks.core.schema import HIDDEN, ROW, Column, Schema, check_ordered
from tasks.errors import JobError
from tasks.graph.binding import SOURCE, Bound
from tasks.graph.node import Node
from tasks.graph.partition_work import Work
from tasks.graph.row_rules import ALL_ROWS, RowRules
from tasks.shuffle.memory_exchange import memory_exchange
from tasks.shuffle.order import RANGES_PER_FILE, Order
from tasks.shuffle.parts import Part
from tasks.shuffle.pieces import Cutting, PartitionPieces
from tasks.sources.row_places import RUNS, runs_by_file
from tasks.storage.atomic import no_space
from tasks.storage.files import check_unchanged

BLOCK_ROWS = 1 << 20


@dataclass(frozen=True)
class Keying:
    """What every key block shares."""

    folder: str
    engine: str
    order: Order
    schema: Schema  # of the blocks


def key_blocks(rows: int) -> int:
    """The number of key blocks: equal ranges of the key hash, a power of two that depends on the number of rows alone.

    >>> key_blocks(10), key_blocks(3_000_000)
    (1, 4)
    """
    return 1 << max(0, (max(rows, 1) - 1).bit_length() - 20)


def by_keys(source: Any, plan: Plan, keys: Sequence[str], sort_by: Sequence[str], engine: str, pool: Pool, folder: Path,
            partition_size: int, floor: int = 0, rules: RowRules = ALL_ROWS) -> Plan:  # fmt: skip
    """The plan's rows sorted by (hash of the keys, keys, sort_by, row number), in Arrow files under `folder`.

    Nulls are keys like any other and come first. The row number stays with the row as the column `__row__`; a row's
    place in the new order is its order number. Blocks hold whole keys, so that runs of a key never cross a partition.
    Rows that `rules` leave out are not written.
    """
    check_ordered(plan.schema, (*keys, *sort_by), "source.keys and source.sort_by")
    blocks = key_blocks(plan.rows)
    order = Order("key", 0, plan.rows, (0,), 1, RANGES_PER_FILE * blocks, tuple(keys), tuple(sort_by), keep_row=True)
    everything = Node("pick", selection=tuple(plan.schema), name="source")
    work = Work(source, everything, plan.schema, engine, rules=rules)
    schema = Schema([*plan.schema.columns, Column(ROW, pa.uint64())])
    exchange = memory_exchange(pool)
    with no_space(folder):
        shutil.rmtree(folder, ignore_errors=True)  # what a run left that was cut off here
        folder.mkdir(parents=True)
    try:
        exchange.fill(Cutting(work, order, floor, stage="ingest"), plan.partitions, None)
        parts = [Part(b, b * RANGES_PER_FILE, (b + 1) * RANGES_PER_FILE, 0, 0) for b in range(blocks)]
        written = exchange.deliver(
            write_block, Keying(str(folder), engine, order, schema), parts, lambda p: (p.first, p.last), None
        )
    finally:
        exchange.close()
    check_unchanged(plan.files, plan.options.get("storage_options"))
    return keyed_plan(plan, schema, written, keys, sort_by, partition_size)


def write_block(keying: Keying, part: Part, cuts: Sequence[PartitionPieces]) -> tuple[str, int, int, int]:
    """(path, rows, decoded bytes, file size) of one key block, written whole or not at all."""
    gpu_setup.prepare(keying.engine)
    kernels = engines.engine(keying.engine)
    pieces = [piece for cut in cuts for piece in cut.ranges(part.first, part.last)]
    block = kernels.assemble_sorted(pieces, keying.order, HIDDEN)
    table = kernels.host_columns(block, keying.schema)
    path = Path(keying.folder) / f"block-{part.number:05d}.arrow"
    partial = path.with_suffix(".tmp")
    with no_space(path):
        with pa.ipc.new_file(str(partial), table.schema) as file:
            file.write_table(table.combine_chunks(), max_chunksize=max(table.num_rows, 1))
        partial.replace(path)
    return str(path), table.num_rows, table.nbytes, path.stat().st_size


def keyed_plan(
    plan: Plan, schema: Schema, written: Sequence[tuple[str, int, int, int]], keys: Sequence[str],
    sort_by: Sequence[str], size: int,
) -> Plan:  # fmt: skip
    files: list[File] = []
    blocks: list[Block] = []
    first = 0
    for path, rows, nbytes, bytes_on_disk in written:
        if rows:
            name = f"{plan.fingerprint}:{','.join(keys)}:{','.join(sort_by)}:{len(files)}"
            blocks.append(Block(len(blocks), first, rows, nbytes, (Piece(len(files), 0, rows, 0),)))
            files.append(File(path, bytes_on_disk, 0, name))
            first += rows
    return replace(
        plan,
        files=tuple(files),
        format="arrow",
        schema=schema,
        blocks=tuple(blocks),
        partitions=cut_partitions(tuple(blocks), size),
        options={
            "keyed": {"keys": list(keys), "sort_by": list(sort_by)},
            RUNS: runs_by_file(plan),
            **({RETYPED: plan.options[RETYPED]} if RETYPED in plan.options else {}),
        },
    )


def keys_of(plan: Plan) -> list[str]:
    """The keys by which `by_keys` brought the plan's rows together; none for other plans."""
    return list(plan.options.get("keyed", {}).get("keys", ()))


def check_runs(bound: Bound, source_keys: Sequence[str]) -> None:
    """Refuse operators that work on runs of a key where the rows of a key may lie in several partitions (JobError)."""
    keys = set(source_keys)
    for step in {s.key: s for s in bound.steps.values()}.values():
        if step.op.run_columns is None:
            continue
        wanted = getattr(step.op, step.op.run_columns)
        wanted = {wanted} if isinstance(wanted, str) else set(wanted)
        if not keys or not keys <= wanted:
            raise JobError(
                f"{type(step.op).__name__} needs all rows of {', '.join(sorted(wanted))} together",
                why=f"source.keys is {sorted(keys)}"
                if keys
                else "the source has no keys, so rows of one key lie in several partitions",
                do=f"set source.keys to {sorted(wanted)} (in Python: Dataset.shuffle_by_keys), "
                "and source.sort_by to their order",
            )
        changed = next((k for k in sorted(keys) if not _as_read(bound, *step.inputs[k])), None)
        if changed is not None:
            raise JobError(
                f"{type(step.op).__name__} needs the column {changed!r} as it stands in the source",
                why="an operator before it changed the values, so that rows of one value may lie in several partitions",
                do=f"take {changed!r} from the source here, and change it afterwards",
            )


def _as_read(bound: Bound, place: int, name: str) -> bool:
    """True if a column holds the values of the source's column of that name."""
    place, name = bound.origin(place, name)
    while place != SOURCE:
        step = bound.steps[place, name]
        is_key = step.op.groups_rows and name in getattr(step.op, step.op.run_columns or "")
        if name not in step.inputs or not (step.op.keeps_values or step.op.removes_rows or is_key):
            return False
        place, name = bound.origin(*step.inputs[name])
    return True
