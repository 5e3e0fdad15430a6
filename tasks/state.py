"""What was learned: plain JSON values and one Parquet table per vocabulary, each with its digest; never pickle."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks import frame
from tasks.errors import DataError
from tasks.ops.base import Learned, Operator

FORMAT = 1
ROW_GROUP = 1 << 20  # rows of a table that are encoded at once
SUFFIX = ".vocab"  # Parquet, under a name that no reader of a folder takes for data


class State:
    """Fitted values by step: `values[key]` is a dict of JSON values and Arrow tables. `partials` are kept for a
    refit."""

    def __init__(
        self, values: Mapping[str, dict[str, Any]] | None = None, partials: Mapping[str, dict[str, Any]] | None = None
    ) -> None:
        self.values: dict[str, dict[str, Any]] = dict(values or {})
        self.partials: dict[str, dict[str, Any]] = dict(partials or {})
        self._prepared: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()

    def prepared(self, key: str, op: Operator, engine: ModuleType) -> Any:
        """What the step's `apply` takes, made once per process and engine; None for a step that learns nothing."""
        if not isinstance(op, Learned):
            return None
        with self._lock:
            if (key, engine.NAME) not in self._prepared:
                self._prepared[key, engine.NAME] = op.prepare(self.values[key], engine)
                frame.synchronize()
            return self._prepared[key, engine.NAME]

    def __getstate__(self) -> dict[str, Any]:
        return {"values": self.values, "partials": self.partials}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def save(self, folder: Path) -> str:
        """Write `state.json` and its tables into the folder; returns the digest that names the whole state."""
        folder.mkdir(parents=True, exist_ok=True)
        data: dict[str, Any] = {
            "format": FORMAT,
            "fitted": _packed(self.values, folder, "v"),
            "partials": _packed(self.partials, folder, "p"),
        }
        text = json.dumps(data, indent=1, allow_nan=False)
        _write(folder / "state.json", text.encode())
        entries = [*data["fitted"].values(), *data["partials"].values()]
        used = {value["table"] for entry in entries for value in entry.values() if _is_table(value)}
        for stale in folder.glob(f"*{SUFFIX}"):
            if stale.name not in used:
                stale.unlink()
        return hashlib.sha256(text.encode()).hexdigest()

    @staticmethod
    def load(folder: Path, partials: bool = True, digest: str | None = None) -> State:
        """The state of a folder; tables are checked against their digests, state.json against `digest` (DataError)."""
        data = read_json(folder / "state.json", digest)
        if data.get("format", 0) > FORMAT:
            raise DataError(
                f"the state has format {data['format']}, this version reads up to {FORMAT}",
                where=str(folder),
                do="upgrade millrace",
            )
        return State(_unpacked(data["fitted"], folder), _unpacked(data["partials"], folder) if partials else {})


def read_json(path: Path, digest: str | None = None) -> dict[str, Any]:
    """The content of a JSON file of a saved workflow; a DataError if it is missing, damaged, or has another digest."""
    try:
        content = path.read_bytes()
        if digest is not None and hashlib.sha256(content).hexdigest() != digest:
            raise DataError(
                f"{path.name} is damaged",
                where=str(path),
                why="its digest differs",
                do="restore the folder or fit again",
            )
        return json.loads(content)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"{path.name} is missing", where=str(path.parent), do="give a folder that Workflow.save wrote"
        ) from None
    except ValueError as error:
        raise DataError(f"{path.name} is damaged", where=str(path), why=str(error)) from None


def _packed(values: Mapping[str, dict[str, Any]], folder: Path, prefix: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for number, (key, fitted) in enumerate(values.items()):
        out[key] = {}
        for name, value in fitted.items():
            if isinstance(value, pa.Table):
                file = f"{prefix}{number:03d}-{name}{SUFFIX}"
                value = {"table": file, "rows": value.num_rows, "sha256": _write_table(folder / file, value)}
            out[key][name] = value
    return out


def _unpacked(data: Mapping[str, Any], folder: Path) -> dict[str, dict[str, Any]]:
    return {
        key: {name: _table(folder, value) if _is_table(value) else value for name, value in fitted.items()}
        for key, fitted in data.items()
    }


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"table", "rows", "sha256"}


def _table(folder: Path, entry: Mapping[str, Any]) -> pa.Table:
    try:
        digest = _digest(folder / entry["table"])
    except OSError as error:
        raise DataError(f"the table {entry['table']} is missing", where=str(folder), why=str(error)) from None
    if digest != entry["sha256"]:
        raise DataError(
            f"the table {entry['table']} is damaged",
            where=str(folder),
            why="its digest differs",
            do="restore the folder or fit again",
        )
    with pa.OSFile(str(folder / entry["table"])) as file:
        return pq.read_table(file)


def _write_table(path: Path, table: pa.Table) -> str:
    """Write row group by row group, whole or not at all; the file's sha256."""
    partial = path.with_name(path.name + ".tmp")
    pq.write_table(table, partial, compression="zstd", row_group_size=ROW_GROUP)
    digest = _digest(partial)
    partial.replace(path)
    return digest


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    partial = path.with_name(path.name + ".tmp")
    partial.write_bytes(content)
    partial.replace(path)
