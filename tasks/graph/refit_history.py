"""The history of a fitted workflow: the batches that it has learned, and a table of their files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from tasks.core.strict_json import JsonObject
from tasks.core.units import amount
from tasks.graph.state import check_table, read_table, write_table
from tasks.storage.atomic import read_json
from tasks.storage.documents import make_damage_error
from tasks.storage.own_files import FITTED, PARTIALS, STATE, tables_of

FILES = "files.vocab"
# limits of the table of batches in a report
BATCHES_SHOWN = 30
ID_COLUMNS_SHOWN = 4
# A batch is the rows of one fit or refit. Files call it a night: the column here, and the key `nights` of a history.
SCHEMA = pa.schema([("path", pa.string()), ("size", pa.int64()), ("digest", pa.string()), ("night", pa.int32())])


def files_table(files: Sequence[tuple[str, int, str]], batch: int) -> pa.Table:
    """Make the table of files: a row for each (path, size, digest) of the batch with this number."""
    rows = [(*file, batch) for file in files]
    columns = zip(*rows, strict=True) if rows else ([] for _ in SCHEMA)
    return pa.table(
        [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def with_batch(before: JsonObject, batch: JsonObject) -> JsonObject:
    """Return the history with one more batch ({day, rows, learned, files, ids, rowmill}).

    It does not name a table of files: `save_history` adds that of the new batch.
    """
    batches = [*before.get("nights", ()), dict(batch)]
    return {"rows": int(before.get("rows", 0)) + int(batch["rows"]), "nights": batches}


def save_history(folder: Path, history: JsonObject, files: pa.Table) -> JsonObject:
    """Write the table of files into the folder; return the history for `workflow.json`, which names the table."""
    return {**history, "files": write_table(folder / FILES, files)}


def read_files(folder: Path, history: JsonObject) -> pa.Table:
    """Read the table of files of a history, with the columns of `SCHEMA`; empty if it has none."""
    if not history.get("files"):
        return SCHEMA.empty_table()
    table = read_table(folder, history["files"])
    if not table.schema.equals(SCHEMA):
        raise make_damage_error(folder / FILES, "", f"its columns are {table.schema.names}, not {SCHEMA.names}")
    return table


def check_history(folder: Path, data: JsonObject) -> None:
    """Raise a DataError if the table of files that a `workflow.json` names is missing or damaged.

    Also if its batches have more rows than the whole history.
    """
    history = data.get("history") or {}
    batches = history.get("nights", [])
    if history.get("files"):
        check_table(folder, history["files"])
    if sum(batch["rows"] for batch in batches) > history.get("rows", 0):
        raise make_damage_error(folder / FITTED, "history.rows", "its nights have more rows")


def history_lines(folder: Path, data: JsonObject) -> list[str]:
    """Describe the batches that a fitted workflow has learned, and the sizes of what applying and a refit need."""
    apply_bytes, refit_bytes = measure_fitted_workflow(folder)
    sizes = f"saved: {amount(apply_bytes)} for applying, {amount(refit_bytes)} more for a refit"
    history = data.get("history")
    if not history or not history["nights"]:
        return [sizes]
    batches = history["nights"]
    first = batches[0]["day"]
    last = batches[-1]["day"]
    files = sum(batch["files"] for batch in batches)
    days = f"the night of {last}" if len(batches) == 1 else f"{len(batches):,} nights, {first} to {last}"
    return [f"learned: {count_learned_rows(history):,} rows in {files:,} file{'s' * (files != 1)} of {days}", sizes]


def count_learned_rows(history: JsonObject) -> int:
    """Count the rows from which all batches of a history were learned.

    `rows` counts all rows that got a number, also those of other splits; `learned` of a batch only the rows from which
    it learned. Rows that no batch accounts for count as learned.
    """
    unlisted = int(history["rows"]) - sum(int(batch["rows"]) for batch in history["nights"])
    return unlisted + sum(int(batch.get("learned", batch["rows"])) for batch in history["nights"])


def batch_rows(data: JsonObject) -> list[JsonObject]:
    """Tabulate the last batches of a `workflow.json`, the newest first.

    A row has day, rows, files, the number of all ids, and those of the columns that have the most.
    """
    batches = (data.get("history") or {}).get("nights", [])[-BATCHES_SHOWN:]
    ids = batches[-1].get("ids", {}) if batches else {}
    columns_shown = sorted(ids, key=lambda name: (-ids[name], name))[:ID_COLUMNS_SHOWN]
    return [
        {
            "day": batch["day"],
            "rows": f"{batch.get('learned', batch['rows']):,}",
            "files": f"{batch['files']:,}",
            "ids": f"{sum(batch.get('ids', {}).values()):,}",
            **{f"ids of {name}": f"{batch.get('ids', {}).get(name, 0):,}" for name in columns_shown},
        }
        for batch in reversed(batches)
    ]


def measure_fitted_workflow(folder: Path) -> tuple[int, int]:
    """Measure a fitted workflow: (bytes that applying needs, further bytes that a refit needs).

    Applying needs state.json and its tables; a refit also partials.json, its tables and the table of files.
    """
    own = {path: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    for_apply = {STATE, *(name for name, _ in tables_of(read_json(folder / STATE)))}
    for_refit = {PARTIALS, FILES, *(name for name, _ in tables_of(read_json(folder / PARTIALS)))}
    apply_bytes = sum(size for path, size in own.items() if path.name in for_apply)
    return apply_bytes, sum(size for path, size in own.items() if path.name in for_refit - for_apply)
