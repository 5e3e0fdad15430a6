"""The history of a fitted workflow: the nights that it has learned, and a table of their files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.core.units import amount
from tasks.graph.state import check_table, read_table, write_table
from tasks.storage.atomic import read_json
from tasks.storage.documents import damaged
from tasks.storage.own_files import FITTED, PARTIALS, tables_of

FILES = "files.vocab"
NIGHTS_SHOWN, COLUMNS = 30, 4  # of a table for people
SCHEMA = pa.schema([("path", pa.string()), ("size", pa.int64()), ("digest", pa.string()), ("night", pa.int32())])


def files_table(files: Sequence[tuple[str, int, str]], night: int) -> pa.Table:
    """A row for each (path, size, digest), of the night with this number."""
    rows = [(*file, night) for file in files]
    columns = zip(*rows, strict=True) if rows else ([] for _ in SCHEMA)
    return pa.table(
        [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def with_night(before: Mapping[str, Any], night: Mapping[str, Any]) -> dict[str, Any]:
    """The history without its table of files, longer by a night ({day, rows, files, ids, rowmill})."""
    nights = [*before.get("nights", ()), dict(night)]
    return {"rows": int(before.get("rows", 0)) + int(night["rows"]), "nights": nights}


def save_history(folder: Path, history: Mapping[str, Any], files: pa.Table) -> dict[str, Any]:
    """Write the table of files into the folder; the history with its entry, as `workflow.json` has it."""
    return {**history, "files": write_table(folder / FILES, files)}


def read_files(folder: Path, history: Mapping[str, Any]) -> pa.Table:
    """The table of files (path, size, digest, night) of a history; empty where it has none."""
    if not history.get("files"):
        return SCHEMA.empty_table()
    table = read_table(folder, history["files"])
    if not table.schema.equals(SCHEMA):
        raise damaged(folder / FILES, "", f"its columns are {table.schema.names}, not {SCHEMA.names}")
    return table


def check_history(folder: Path, data: Mapping[str, Any]) -> None:
    """A DataError if the table of files that a `workflow.json` names is missing or damaged."""
    history = data.get("history") or {}
    nights = history.get("nights", [])
    if history.get("files"):
        check_table(folder, history["files"])
    if sum(night["rows"] for night in nights) > history.get("rows", 0):
        raise damaged(folder / FITTED, "history.rows", "its nights have more rows")


def history_lines(folder: Path, data: Mapping[str, Any]) -> list[str]:
    """The nights that a fitted workflow has learned, and the sizes of what applying and what a refit needs, for
    people."""
    apply_bytes, refit_bytes = saved_sizes(folder)
    sizes = f"saved: {amount(apply_bytes)} for applying, {amount(refit_bytes)} more for a refit"
    history = data.get("history")
    if not history or not history["nights"]:
        return [sizes]
    nights = history["nights"]
    first, last, files = nights[0]["day"], nights[-1]["day"], sum(night["files"] for night in nights)
    days = f"the night of {last}" if len(nights) == 1 else f"{len(nights):,} nights, {first} to {last}"
    return [f"learned: {history['rows']:,} rows in {files:,} files of {days}", sizes]


def night_rows(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The last nights of a `workflow.json`, the newest first: day, rows, files, and how many values had an id in all,
    with those of the columns that have the most."""
    nights = (data.get("history") or {}).get("nights", [])[-NIGHTS_SHOWN:]
    most = sorted((ids := nights[-1].get("ids", {}) if nights else {}), key=lambda name: (-ids[name], name))[:COLUMNS]
    return [
        {
            "day": night["day"],
            "rows": f"{night['rows']:,}",
            "files": f"{night['files']:,}",
            "ids": f"{sum(night.get('ids', {}).values()):,}",
            **{f"ids of {name}": f"{night.get('ids', {}).get(name, 0):,}" for name in most},
        }
        for night in reversed(nights)
    ]


def saved_sizes(folder: Path) -> tuple[int, int]:
    """(bytes of what applying needs, bytes of what a refit needs besides) of a fitted workflow: state.json and its
    tables; partials.json, its tables and the table of files."""
    own = {path: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    tables = {name for name, _ in tables_of(read_json(folder / "state.json"))}
    later = {PARTIALS, FILES, *(name for name, _ in tables_of(read_json(folder / PARTIALS)))}
    applying = sum(size for path, size in own.items() if path.name in tables | {"state.json"} - later)
    return applying, sum(size for path, size in own.items() if path.name in later - tables)
