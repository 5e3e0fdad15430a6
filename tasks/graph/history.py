"""The history of a fitted workflow: the nights that it has learned, and a table of their files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.graph.state import _digest, _table, _whole, _write_table
from tasks.storage.metadata_forms import damaged
from tasks.storage.own_files import CHANGES, FITTED, tables_of

FILES = "files.vocab"
SCHEMA = pa.schema([("path", pa.string()), ("size", pa.int64()), ("digest", pa.string()), ("night", pa.int32())])


def files_table(files: Sequence[tuple[str, int, str]], night: int) -> pa.Table:
    """A row for each (path, size, digest), of the night with this number."""
    rows = [(*file, night) for file in files]
    columns = zip(*rows, strict=True) if rows else ([] for _ in SCHEMA)
    return pa.table(
        [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def with_night(before: Mapping[str, Any], night: Mapping[str, Any]) -> dict[str, Any]:
    """The history without its table of files, longer by a night ({day, rows, files, millrace})."""
    nights = [*before.get("nights", ()), dict(night)]
    return {"rows": int(before.get("rows", 0)) + int(night["rows"]), "nights": nights}


def save_history(folder: Path, history: Mapping[str, Any], files: pa.Table) -> dict[str, Any]:
    """Write the table of files into the folder; the history with its entry, as `workflow.json` has it."""
    return {**history, "files": _write_table(folder / FILES, files)}


def read_files(folder: Path, history: Mapping[str, Any]) -> pa.Table:
    """The table of files (path, size, digest, night) of a history; empty where it has none."""
    if not history.get("files"):
        return SCHEMA.empty_table()
    table = _table(folder, history["files"])
    if not table.schema.equals(SCHEMA):
        raise damaged(folder / FILES, "", f"its columns are {table.schema.names}, not {SCHEMA.names}")
    return table


def copy_changes(origin: Path, folder: Path) -> str:
    """The `changes.json` of a folder, and its tables, in another one too; its sha256."""
    for name in [CHANGES, *(name for name, _ in tables_of(json.loads((origin / CHANGES).read_bytes())))]:
        (folder / name).unlink(missing_ok=True)
        try:
            os.link(origin / name, folder / name)
        except OSError:  # another file system, or one without links
            shutil.copyfile(origin / name, folder / name)
    return _digest(folder / CHANGES)


def check_history(folder: Path, data: Mapping[str, Any]) -> None:
    """A DataError if the table of files that a `workflow.json` names, or its changes, are missing or damaged."""
    history = data.get("history") or {}
    nights = history.get("nights", [])
    if history.get("files"):
        _whole(folder, history["files"])
    if sum(night["rows"] for night in nights) > history.get("rows", 0):
        raise damaged(folder / FITTED, "history.rows", "its nights have more rows")
    if "changes" in data:
        _whole(folder, {"table": CHANGES, "sha256": data["changes"]})
        for name, sha256 in tables_of(json.loads((folder / CHANGES).read_bytes())):
            _whole(folder, {"table": name, "sha256": sha256})
