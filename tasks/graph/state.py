"""The learned state: plain JSON values and one Parquet table per vocabulary, each with its digest; never pickle.

A table of more than `PART` rows lies in several files, so that it is encoded, digested and read side by side.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tasks import engines
from tasks.core.strict_json import decoded, encoded
from tasks.errors import DataError
from tasks.ops.base import Learned, Operator
from tasks.sources.formats.bounds import validated
from tasks.storage.metadata_forms import check_form, damaged

FORMAT = 3  # 1: every table in one file; 2: no infinities, sums of floats as one number
PART = 1 << 19  # rows of a file
SUFFIX = ".vocab"  # Parquet, under a name that no reader of a folder takes for data


class State:
    """Fitted values by step: `values[key]` is a dict of JSON values and Arrow tables.

    `partials` (by step) are for a refit; if they are a function, it is called when they are first needed. `changes` (by
    step) is what the refit that made this state changed; {} for the state of a fit.
    """

    def __init__(
        self, values: Mapping[str, dict[str, Any]] | None = None,
        partials: Mapping[str, dict[str, Any]] | Callable[[], dict[str, dict[str, Any]]] | None = None,
    ) -> None:  # fmt: skip
        self.values: dict[str, dict[str, Any]] = dict(values or {})
        self._partials = partials if callable(partials) else dict(partials or {})
        self.changes: dict[str, dict[str, Any]] = {}
        self._prepared: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()

    @property
    def partials(self) -> dict[str, dict[str, Any]]:
        with self._lock:
            if callable(self._partials):
                self._partials = self._partials()
            return self._partials

    def prepared(self, key: str, op: Operator, engine: ModuleType) -> Any:
        """The `fitted` of the step's `apply`, made once per process and engine; None if the step learns nothing."""
        if not isinstance(op, Learned):
            return None
        with self._lock:
            if (key, engine.NAME) not in self._prepared:
                self._prepared[key, engine.NAME] = _prepared(key, op, self.values[key], engine)
                engines.synchronize()
            return self._prepared[key, engine.NAME]

    def __getstate__(self) -> dict[str, Any]:
        return {"values": self.values, "partials": self.partials}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def save(self, folder: Path, begun: Saving | None = None) -> str:
        """Write `state.json` and its tables into the folder; returns the digest that names the whole state.

        `begun` has written some of them there already, or is about to.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with begun or Saving(folder) as saving:
            fitted, partials = _packed(self.values, "v", saving), _packed(self.partials, "p", saving)
            data: dict[str, Any] = {
                "format": FORMAT,
                "fitted": encoded(_waited(fitted, _noted)),
                "partials": encoded(_waited(partials, _noted)),
            }
        text = _text(data)
        _write(folder / "state.json", text.encode())
        used = {entry["table"] for entry in _tables(data)}
        for stale in folder.glob(f"*{SUFFIX}"):
            if stale.name not in used:
                stale.unlink()
        return hashlib.sha256(text.encode()).hexdigest()

    @staticmethod
    def load(folder: Path, partials: bool = True, digest: str | None = None) -> State:
        """The state of a folder; tables are checked against their digests, state.json against `digest` (DataError).

        The partials, which may be much larger than what is applied, stay in the folder until they are asked for.
        """
        data = _checked(folder, digest)
        if not partials:
            return State(_read(folder, data["fitted"]))
        with _threads() as threads:
            list(threads.map(partial(_whole, folder), _tables({"partials": data["partials"]})))
        return State(_read(folder, data["fitted"]), partial(_read, folder, data["partials"]))


class Saving:
    """The files of a state's tables. Those of a table may be written before the state is known whole: `begin`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._threads = folder, _threads()
        self._begun: dict[int, tuple[pa.Table, list[Future[dict[str, Any]]]]] = {}  # by id: a table and its files

    def begin(self, values: Mapping[str, Any]) -> None:
        """Write the tables among what a step has learned, beside what the caller does."""
        for table in values.values():
            if isinstance(table, pa.Table):
                self._begun[id(table)] = table, self._written(table, f"begun-{uuid.uuid4().hex}")

    def files(self, table: pa.Table, name: str) -> list[Future[dict[str, Any]]]:
        """Futures of the entries of the files of a table, which get `name`."""
        if id(table) not in self._begun:
            return self._written(table, name)
        _, files = self._begun.pop(id(table))
        paths = self._paths(name, len(files))
        return [self._threads.submit(_named, *both) for both in zip(files, paths, strict=True)]

    def _written(self, table: pa.Table, name: str) -> list[Future[dict[str, Any]]]:
        starts = range(0, max(table.num_rows, 1), PART)
        paths = self._paths(name, len(starts))
        slices = [table.slice(start, PART) for start in starts]
        return [self._threads.submit(_write_table, *both) for both in zip(paths, slices, strict=True)]

    def _paths(self, name: str, files: int) -> list[Path]:
        names = [f"{name}-{i:04d}" for i in range(files)] if files > 1 else [name]
        return [self.folder / f"{name}{SUFFIX}" for name in names]

    def __enter__(self) -> Saving:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)


def check_saved(folder: Path, digest: str | None = None) -> None:
    """A DataError if anything of the state in a folder is missing, damaged or of a newer format."""
    with _threads() as threads:
        list(threads.map(partial(_whole, folder), _tables(_checked(folder, digest))))


def saved_files(folder: Path) -> list[Path]:
    """The files of the state in a folder."""
    return [folder / name for name in ["state.json", *(entry["table"] for entry in _tables(_checked(folder)))]]


def copy_saved(origin: Path, folder: Path) -> str:
    """The state of a folder in another one too, as it is; its digest. Where it is possible both share the files."""
    data = _checked(origin)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ["state.json", *(entry["table"] for entry in _tables(data))]:
        (folder / name).unlink(missing_ok=True)
        try:
            os.link(origin / name, folder / name)
        except OSError:  # another file system, or one without links
            shutil.copyfile(origin / name, folder / name)
    return _digest(folder / "state.json")


def _checked(folder: Path, digest: str | None = None) -> dict[str, Any]:
    """The content of state.json, checked; a DataError if it is damaged or of a newer format."""
    data = read_json(folder / "state.json", digest)
    if isinstance(data, dict) and isinstance(data.get("format"), int) and data["format"] > FORMAT:
        raise DataError(
            f"the state has format {data['format']}, this version reads up to {FORMAT}",
            where=str(folder),
            do="upgrade millrace",
        )
    path = folder / "state.json"
    check_form(data, "state", path)
    data.setdefault("partials", {})
    for section in ("fitted", "partials"):
        for key, values in data[section].items():
            for name, value in values.items():
                for file in _files(value):
                    field = f"{section}.{key}.{name}"
                    check_form(file, "table", path, field)
                    if (folder / file["table"]).is_symlink():
                        raise damaged(path, field, f"the table {file['table']} is a link")
    return data


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
    except (ValueError, RecursionError) as error:
        raise damaged(path, "", str(error).partition("\n")[0]) from None


def _prepared(key: str, op: Learned, fitted: dict[str, Any], engine: ModuleType) -> Any:
    """What `apply` takes; a DataError where what was learned is not what the operator learns."""
    try:
        return op.prepare(fitted, engine)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise damaged(
            Path("state.json"), f"fitted.{key}", f"{type(op).__name__} cannot use it: {type(error).__name__}: {error}"
        ) from error


def _threads() -> ThreadPoolExecutor:
    """Tables are encoded, decoded and digested side by side."""
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="millrace-state")


class _Parts(NamedTuple):
    """A table on its way from or to its files."""

    files: list[Future[Any]]


def _packed(values: Mapping[str, dict[str, Any]], prefix: str, saving: Saving) -> dict[str, dict[str, Any]]:
    """The values, with the futures of its files' entries in place of every table, which is written."""

    def packed(name: str, value: Any) -> Any:
        return _Parts(saving.files(value, name)) if isinstance(value, pa.Table) else value

    return {
        key: {name: packed(f"{prefix}{number:03d}-{name}", value) for name, value in fitted.items()}
        for number, (key, fitted) in enumerate(values.items())
    }


def _read(folder: Path, data: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The values with their tables."""
    with _threads() as threads:

        def read(value: Any) -> Any:
            files = _files(value)
            return _Parts([threads.submit(_table, folder, file) for file in files]) if files else decoded(value)

        begun = {key: {name: read(v) for name, v in fitted.items()} for key, fitted in data.items()}
        return _waited(begun, pa.concat_tables)


def _waited(values: Mapping[str, dict[str, Any]], join: Callable[[list[Any]], Any]) -> dict[str, dict[str, Any]]:
    """The values, with the results for the files of every table joined by `join`."""
    return {
        key: {n: join([f.result() for f in v.files]) if isinstance(v, _Parts) else v for n, v in fitted.items()}
        for key, fitted in values.items()
    }


def _noted(files: list[dict[str, Any]]) -> dict[str, Any]:
    """The entry of a table in state.json."""
    return files[0] if len(files) == 1 else {"tables": files}


def _text(data: Mapping[str, Any]) -> str:
    """The text of state.json; a DataError that names the step whose learned values are no JSON."""
    try:
        return json.dumps(data, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        for key, learned in (*data["fitted"].items(), *data["partials"].items()):
            for name, value in learned.items():
                try:
                    json.dumps(value, allow_nan=False)
                except (TypeError, ValueError):
                    do = "let its operator give plain JSON values and Arrow tables"
                    raise DataError(f"what {key} learned cannot be saved: {name}", why=str(error), do=do) from None
        raise


def _files(value: Any) -> list[dict[str, Any]]:
    """The entries in state.json of the files of a table; [] for other values."""
    several = isinstance(value, dict) and set(value) == {"tables"} and isinstance(value["tables"], list)
    files = value["tables"] if several else [value]
    return files if all(isinstance(f, dict) and set(f) == {"table", "rows", "sha256"} for f in files) else []


def _tables(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries in state.json of the files of all tables."""
    entries = [entry for section in ("fitted", "partials") for entry in data.get(section, {}).values()]
    return [file for entry in entries for value in entry.values() for file in _files(value)]


def _whole(folder: Path, entry: Mapping[str, Any]) -> None:
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


def _table(folder: Path, entry: Mapping[str, Any]) -> pa.Table:
    _whole(folder, entry)
    path = folder / entry["table"]
    try:
        with pa.OSFile(str(path)) as file:
            table = validated(_in_its_types(pq.ParquetFile(file)))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise damaged(path, "", str(error).partition("\n")[0]) from None
    if table.num_rows != entry["rows"]:
        raise damaged(path, "", f"it has {table.num_rows:,} rows, state.json says {entry['rows']:,}")
    return table


def _in_its_types(file: pq.ParquetFile) -> pa.Table:
    """The table in the types that it was written in: Parquet has no times of seconds, keys that it gives back are
    finer."""
    table, noted = file.read(), (file.metadata.metadata or {}).get(b"ARROW:schema")
    for field in pa.ipc.read_schema(pa.py_buffer(base64.b64decode(noted))) if noted else ():
        values = table.column(field.name)
        if values.type != field.type:
            place = table.schema.get_field_index(field.name)
            table = table.set_column(place, field.name, values.cast(field.type))
    return table


def _write_table(path: Path, table: pa.Table) -> dict[str, Any]:
    """Write a table, whole or not at all; returns its entry in state.json.

    Without dictionaries, which are no use to distinct values, and under lz4: written in two thirds and read in half of
    the time of zstd with them, 1.2 to 1.7 times as large.
    """
    unfinished = path.with_name(path.name + ".tmp")
    pq.write_table(table, unfinished, compression="lz4", use_dictionary=False, write_statistics=False)
    digest = _digest(unfinished)
    unfinished.replace(path)
    return {"table": path.name, "rows": table.num_rows, "sha256": digest}


def _named(written: Future[dict[str, Any]], path: Path) -> dict[str, Any]:
    """The entry of a file, after it has been written and renamed to `path`."""
    noted = written.result()
    path.with_name(noted["table"]).replace(path)
    return {**noted, "table": path.name}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_bytes(content)
    unfinished.replace(path)
