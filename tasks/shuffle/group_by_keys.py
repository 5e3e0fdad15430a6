"""All rows of a key in one block, sorted: the source in another order, as a plan over scratch files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from tasks.core.plan import NUMBERED_ROWS, RETYPED, Block, File, Piece, Plan, cut_partitions
from tasks.core.schema import Schema, check_ordered
from tasks.errors import JobError
from tasks.graph.binding import SOURCE, Bound, Step
from tasks.shuffle.key_ranges import KeyRanges, SourceRows, empty_folder, key_order, shuffle_by_key, with_row_number
from tasks.shuffle.memory_exchange import memory_exchange
from tasks.sources.parsed_text import write_table
from tasks.sources.row_places import RUNS, runs_by_file
from tasks.storage.files import check_unchanged


def by_keys(rows: SourceRows, keys: Sequence[str], sort_by: Sequence[str], folder: Path, partition_size: int) -> Plan:
    """Sort rows by (hash of the keys, keys, sort_by, row number), into a plan of Arrow files under `folder`.

    Nulls are keys like any other and come first. The row number stays with the row as the column `__row__`; a row's
    place in the new order is its order number. Blocks hold whole keys, so that runs of a key never cross a partition.
    Rows that the rules leave out are not written.
    """
    plan = rows.plan
    check_ordered(plan.schema, (*keys, *sort_by), "source.keys and source.sort_by")
    order = key_order(plan.rows, keys, sort_by)
    schema = with_row_number(plan.schema.columns)
    empty_folder(folder)
    ranges = KeyRanges(str(folder), rows.engine, order, schema, write_block)
    written = shuffle_by_key(rows, memory_exchange(rows.pool), ranges)
    check_unchanged(plan.files, plan.options.get("storage_options"))
    return make_keyed_plan(plan, schema, written, keys, sort_by, partition_size)


class KeyBlock(NamedTuple):
    """A file of rows of some keys: `nbytes` are decoded, `size` is that of the file."""

    path: str
    rows: int
    nbytes: int
    size: int


def write_block(table: pa.Table, path: Path) -> KeyBlock:
    """Write one key block whole or not at all."""
    path = path.with_name(f"block-{path.name}.arrow")
    write_table(table, path)
    return KeyBlock(str(path), table.num_rows, table.nbytes, path.stat().st_size)


def make_keyed_plan(
    plan: Plan,
    schema: Schema,
    written: Sequence[KeyBlock],
    keys: Sequence[str],
    sort_by: Sequence[str],
    size: int,
) -> Plan:
    files: list[File] = []
    blocks: list[Block] = []
    first = 0
    for path, rows, nbytes, bytes_on_disk in written:
        if rows:
            name = f"{plan.fingerprint}:{','.join(keys)}:{','.join(sort_by)}:{len(files)}"
            blocks.append(Block(len(blocks), first, rows, nbytes, (Piece(len(files), 0, rows, 0),)))
            files.append(File(path, bytes_on_disk, 0, name))
            first += rows
    options: dict[str, Any] = {
        "keyed": {"keys": list(keys), "sort_by": list(sort_by)},
        NUMBERED_ROWS: plan.numbered_rows,
        RUNS: runs_by_file(plan),
    }
    if RETYPED in plan.options:
        options[RETYPED] = plan.options[RETYPED]
    return replace(
        plan,
        files=tuple(files),
        format="arrow",
        schema=schema,
        blocks=tuple(blocks),
        partitions=cut_partitions(tuple(blocks), size),
        options=options,
    )


def keys_of(plan: Plan) -> list[str]:
    """Return the keys by which `by_keys` grouped the plan's rows; none for other plans."""
    return list(plan.options.get("keyed", {}).get("keys", ()))


def check_runs(bound: Bound, source_keys: Sequence[str]) -> None:
    """Refuse operators that work on runs of a key where the rows of a key may lie in several partitions (JobError)."""
    keys = set(source_keys)
    for step in {s.key: s for s in bound.steps.values()}.values():
        if step.op.run_columns is None:
            continue
        wanted = getattr(step.op, step.op.run_columns)
        wanted = {wanted} if isinstance(wanted, str) else set(wanted)
        if not wanted:  # MapPartitions works on whatever rows lie together
            continue
        if not keys or not keys <= wanted:
            raise JobError(
                f"{type(step.op).__name__} needs all rows of {', '.join(sorted(wanted))} together",
                why=f"source.keys is {sorted(keys)}"
                if keys
                else "the source has no keys, so rows of one key lie in several partitions",
                do=f"set source.keys to {sorted(wanted)} (in Python: Dataset.shuffle_by_keys), "
                "and source.sort_by to their order",
            )
        for key in sorted(keys):
            if (maker := _maker(bound, *step.inputs[key])) is not None:
                did = "changes its values" if key in maker.inputs else "makes it"
                raise JobError(
                    f"{type(step.op).__name__} needs the column {key!r} as it stands in the source",
                    why=f"{type(maker.op).__name__} before it {did}, so that rows of one value may lie in several "
                    "partitions",
                    do=f"take {key!r} from the source here, and change it afterwards",
                )


def _maker(bound: Bound, place: int, name: str) -> Step | None:
    """Return the step that changed or made a column; None if it holds the values of the source's column of its name."""
    place, name = bound.origin(place, name)
    while place != SOURCE:
        step = bound.steps[place, name]
        is_key = step.op.groups_rows and name in getattr(step.op, step.op.run_columns or "")
        keeps = step.op.keeps_values or step.op.removes_rows or step.op.hands_on or is_key
        if name not in step.inputs or not keeps:
            return step
        place, name = bound.origin(*step.inputs[name])
    return None
