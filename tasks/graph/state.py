"""The learned state: plain JSON values and one Parquet table per vocabulary, each with its digest; never pickle.

`state.json` holds what `apply` needs, and the digests of the two files that it does not need: `partials.json`, what a
refit needs besides, and `changes.json`, what the last refit changed. Both are read on demand.

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
from typing import Annotated, Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from tasks import engines
from tasks.core.strict_json import JsonObject, decode_floats, encode_floats
from tasks.core.versions import VALUE_RULES
from tasks.engines.algorithms.protocol import Kernels
from tasks.errors import DataError, JobError
from tasks.graph.mapped_tables import LEAST_ROWS, MappedTables
from tasks.ops.base import Learned, Operator
from tasks.ops.fitted_values import FittedSteps, FittedValues
from tasks.sources.formats.bounds import validate_table
from tasks.storage.documents import Count, Form, Names, Number, TableName, make_damage_error, parse_document
from tasks.storage.own_files import CHANGES, PARTIALS

# 1: every table in one file; 2: no infinities, sums of floats as one number; 3: partials in state.json; 4: no rules
FORMAT = 5
PART = 1 << 19  # rows of a file
BATCH = 1 << 16  # rows that are encoded at once
VOCABULARY = {"values", "size", "distinct", "occurrences"}  # what a step has learned that is a vocabulary with counts
CHANGES_FORMAT = 1
SECTIONS = {
    PARTIALS: "partials",
    CHANGES: "changes",
}  # files next to state.json, and the keys under which it has their digests
# Names tables that only the run that has learned them uses. On disk a refit is called a night: in this name, in the key
# `of_night` of each step, and in the names of the tables.
REFIT_TABLES = "of_night.json"
SUFFIX = ".vocab"  # Parquet, under a name that no reader of a folder takes for data


class TableForm(Form):
    table: TableName
    rows: Count
    sha256: str


class FileForm(Form):
    file: Literal["partials.json", "changes.json"]
    sha256: str


class StateForm(Form):
    format: Number
    rules: Annotated[int, Field(ge=1, le=VALUE_RULES)] = 1
    fitted: dict[str, FittedValues]
    partials: FileForm | None = None
    changes: FileForm | None = None


class PartialsForm(Form):
    format: Number
    rows: Count = 0
    partials: dict[str, JsonObject]


class OldAndNewForm(Form):
    old: Count
    new: Count


class ChangeForm(Form):
    op: str
    columns: Names
    mode: Literal["merged", "appended", "frozen", "new"]
    why: str


class ChangesForm(Form):
    format: Number
    base: str
    rows: OldAndNewForm
    steps: dict[str, ChangeForm]


class State:
    """Fitted values by step: `values[key]` is a dict of JSON values and Arrow tables.

    `partials` (by step) are for a refit, `changes` are what the refit that made this state changed ({} for a fit):
    `base` and `rows` as in `changes.json`, and `steps`. If they are functions, these are called when they are first
    needed. `rows` is how many rows were learned from (0: unknown), which is saved with the partials. `refit_tables` are
    the tables of steps that a refit has just learned (`Grown.refit_table`); they are not saved with the state, but by
    `save_refit_tables`. `mapped` has the large tables of the steps in `digests`, by which it names what `apply` takes
    of them. `rules` is the number of the rules by which its operators hash and join values (`VALUE_RULES`):
    a refit keeps its base's.
    """

    def __init__(
        self,
        values: FittedSteps | None = None,
        partials: Mapping[str, JsonObject] | Callable[[], tuple[dict[str, JsonObject], int]] | None = None,
        changes: JsonObject | Callable[[], JsonObject] | None = None,
        rows: int = 0,
        refit_tables: Mapping[str, pa.Table] | None = None,
        rules: int = VALUE_RULES,
        mapped: MappedTables | None = None,
        digests: Mapping[str, str] | None = None,
    ) -> None:
        self.mapped = mapped
        self.digests = dict(digests or {})
        self.values: dict[str, FittedValues] = dict(values or {})
        self._partials = partials if callable(partials) else dict(partials or {})
        self._changes = changes if callable(changes) else dict(changes or {})
        self._rows = rows
        self.rules = rules
        self.refit_tables = dict(refit_tables or {})
        self.check_table: Callable[[str], JsonObject] = self.values.__getitem__  # the values with all tables
        self._prepared: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()

    @property
    def partials(self) -> dict[str, JsonObject]:
        """What a refit needs besides the values, by step; a JobError if it was saved without."""
        with self._lock:
            if callable(self._partials):
                self._partials, self._rows = self._partials()
            return self._partials

    @property
    def rows(self) -> int:
        """How many rows were learned from, by the fit and all refits; 0 if the state does not say so."""
        _ = self.partials
        return self._rows

    @property
    def changed(self) -> JsonObject:
        """What the last refit changed, as in `changes.json`; {} for the state of a fit."""
        with self._lock:
            if callable(self._changes):
                self._changes = self._changes()
            return self._changes

    @property
    def changes(self) -> dict[str, JsonObject]:
        """What the last refit changed, by step."""
        steps: dict[str, JsonObject] = self.changed.get("steps", {})
        return steps

    def prepare_step(self, key: str, op: Operator, engine: Kernels) -> object:
        """Prepare the `fitted` of a step's `apply`, once per process and engine; None if the step learns nothing."""
        if not isinstance(op, Learned):
            return None
        place = key, engine.NAME
        if place in self._prepared:  # a request does not wait for the lock
            return self._prepared[place]
        with self._lock:
            if place not in self._prepared:
                whole = partial(self._prepare, key, op, engine)
                table = self.refit_tables.get(key)
                prepared = whole() if table is None else op.prepare_refit(table, self.values[key], whole, engine)
                engines.synchronize()
                self._prepared[place] = prepared  # only now: other threads read without the lock
            return self._prepared[place]

    def _prepare(self, key: str, op: Learned, engine: Kernels) -> object:
        fitted = self.check_table(key)
        if self.mapped is None or key not in self.digests or engine.NAME != "pandas":
            return _prepare_fitted(key, op, fitted, engine)
        identity = [type(op).__module__, op.to_json(), self.digests[key], self.rules]
        return self.mapped.open_lookup(identity, lambda: _prepare_fitted(key, op, fitted, engine))

    def __getstate__(self) -> dict[str, Any]:
        side_files = {"partials": self.partials, "changes": self.changed, "rows": self.rows}
        return {"values": self.values, **side_files, "rules": self.rules}

    def __setstate__(self, state: JsonObject) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def save(self, folder: Path, begun: Saving | None = None, keep_partials: bool = True) -> str:
        """Write `state.json`, the files next to it and their tables; return the digest that names the whole state.

        `begun` has written some of the tables there already, or is about to. Without `keep_partials`, what only a refit
        needs is left out.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with begun or Saving(folder) as saving:
            fitted = _save_tables(self.values, "v", saving)
            partials = _save_tables(self.partials, "p", saving) if keep_partials else None
            changes = _save_tables(self.changes, "changes-", saving)
            side_files: JsonObject = {PARTIALS: None, CHANGES: None}
            if partials is not None:
                side_files[PARTIALS] = {
                    "format": FORMAT,
                    "rows": self.rows,
                    "partials": encode_floats(_await_tables(partials, _make_table_entry)),
                }
            if self.changed:
                steps = encode_floats(_await_tables(changes, _make_table_entry))
                side_files[CHANGES] = {"format": CHANGES_FORMAT, **self.changed, "steps": steps}
            steps = encode_floats(_await_tables(fitted, _make_table_entry))
            data: JsonObject = {"format": FORMAT, "rules": self.rules, "fitted": steps}
        texts = {name: _write_as_text(content) for name, content in side_files.items() if content}
        for name, content in texts.items():
            _write(folder / name, content.encode())
        data |= {SECTIONS[name]: _make_file_entry(name, texts.get(name)) for name in (PARTIALS, CHANGES)}
        text = _write_as_text(data)
        _write(folder / "state.json", text.encode())
        used = {entry["table"] for content in (data, *side_files.values()) for entry in _list_tables(content or {})}
        stale = [path for path in folder.glob(f"*{SUFFIX}") if path.name not in used]
        for path in stale + [folder / name for name in side_files if name not in texts]:
            path.unlink(missing_ok=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @staticmethod
    def load(
        folder: Path, partials: bool = True, digest: str | None = None, mapped: MappedTables | None = None
    ) -> State:
        """Load the state of a folder; tables are checked against their digests, state.json against `digest`
        (DataError).

        What only a refit needs, which may be much larger than what is applied, and what the last refit changed stay in
        the folder until they are needed; they are checked then. Without `partials` they are not loaded at all.

        Large tables are read from `mapped` where it has them; there, they were checked when they were written.
        """
        data = _read_state_file(folder, digest)
        values = _read_values(folder, data["fitted"], mapped)
        rules = data.get("rules", 1)
        if not partials:
            return State(values, rules=rules)
        side_files = partial(_read_partials, folder, data), partial(_read_changes, folder, data)
        return State(values, *side_files, rules=rules, mapped=mapped, digests=_digest_large_steps(data["fitted"]))

    @staticmethod
    def load_heads(folder: Path) -> State:
        """Load the state as manifests and reports need it.

        They show the first values of a large vocabulary and its numbers, so only the first file of each of its tables
        is read.
        """
        return State(_read_values(folder, _read_heads(folder)))

    @staticmethod
    def bytes_of_heads(folder: Path) -> int:
        """Count the bytes of the files that `load_heads` reads."""
        values = [value for fitted in _read_heads(folder).values() for value in fitted.values()]
        return sum((folder / file["table"]).stat().st_size for value in values for file in _list_table_files(value))

    @staticmethod
    def load_for_run(folder: Path) -> State:
        """Load the state in the staging folder of a run, to apply it.

        For steps whose table `save_refit_tables` has saved there, the other tables stay in the folder until a row has a
        value that the rows of the refit lack.
        """
        refit_tables = _read_refit_tables(folder)
        if not refit_tables:
            return State.load(folder, partials=False)
        data = _read_state_file(folder)
        fitted = data["fitted"]
        first = {
            key: {n: v for n, v in values.items() if key not in refit_tables or not _list_table_files(v)}
            for key, values in fitted.items()
        }
        state = State(_read_values(folder, first), refit_tables=refit_tables, rules=data.get("rules", 1))
        state.check_table = lambda key: _read_values(folder, {key: fitted[key]})[key]
        return state


def save_refit_tables(folder: Path, tables: Mapping[str, pa.Table], digest: str) -> None:
    """Save the tables of a refit (`Grown.refit_table`), by step, next to the state of this digest, for workers.

    They are not part of the state: a copy of it does not have them.
    """
    with Saving(folder) as saving:
        steps = _save_tables({key: {"of_night": table} for key, table in tables.items()}, "night-", saving)
        content = {"state": digest, "steps": encode_floats(_await_tables(steps, _make_table_entry))}
    _write(folder / REFIT_TABLES, _write_as_text(content).encode())


def _read_refit_tables(folder: Path) -> dict[str, pa.Table]:
    """Read what `save_refit_tables` has saved.

    {} if there is nothing for this state, or it is damaged: the state has all values, too.
    """
    if not (folder / REFIT_TABLES).exists():
        return {}
    try:
        content = read_json(folder / REFIT_TABLES)
        if content["state"] != _digest(folder / "state.json"):
            return {}
        _check_tables(folder / REFIT_TABLES, "steps", content["steps"])
        return {key: values["of_night"] for key, values in _read_values(folder, content["steps"]).items()}
    except (DataError, KeyError, TypeError, AttributeError):
        return {}


class Saving:
    """The files of a state's tables. `begin` writes those of a table before the rest of the state is known."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._make_threads = _make_threads()
        self._begun: dict[int, tuple[pa.Table, list[Future[JsonObject]]]] = {}  # by id: a table and its files

    def begin(self, values: FittedSteps) -> None:
        """Write the tables among what a step has learned, in threads, while the caller goes on."""
        for table in values.values():
            if isinstance(table, pa.Table):
                self._begun[id(table)] = table, self._submit_files(table, f"begun-{uuid.uuid4().hex}")

    def files(self, table: pa.Table, name: str) -> list[Future[JsonObject]]:
        """Write the files of a table under `name`, unless they are being written; return the futures of their
        entries."""
        if id(table) not in self._begun:
            return self._submit_files(table, name)
        _, files = self._begun.pop(id(table))
        paths = self._make_paths(name, len(files))
        return [self._make_threads.submit(_rename_table_file, *both) for both in zip(files, paths, strict=True)]

    def _submit_files(self, table: pa.Table, name: str) -> list[Future[JsonObject]]:
        starts = range(0, max(table.num_rows, 1), PART)
        paths = self._make_paths(name, len(starts))
        slices = [table.slice(start, PART) for start in starts]
        return [self._make_threads.submit(write_table, *both) for both in zip(paths, slices, strict=True)]

    def _make_paths(self, name: str, files: int) -> list[Path]:
        names = [f"{name}-{i:04d}" for i in range(files)] if files > 1 else [name]
        return [self.folder / f"{name}{SUFFIX}" for name in names]

    def __enter__(self) -> Saving:
        return self

    def __exit__(self, *_: object) -> None:
        self._make_threads.shutdown(cancel_futures=True)


def check_saved(folder: Path, digest: str | None = None) -> None:
    """Raise a DataError if anything of the state in a folder is missing, damaged or of another format."""
    with _make_threads() as threads:
        list(threads.map(partial(check_table, folder), _list_all_tables(folder, _read_state_file(folder, digest))))


def load_changes(folder: Path) -> JsonObject:
    """Return what the refit that made the state of a folder changed, with its tables; {} where a fit made it."""
    return _read_changes(folder, _read_state_file(folder))


def list_state_files(folder: Path) -> list[Path]:
    """List the files of the state in a folder."""
    return [folder / name for name in _list_state_file_names(folder, _read_state_file(folder))]


def copy_saved(origin: Path, folder: Path) -> str:
    """Copy the state of one folder to another, by hard links if possible; return its digest."""
    names = _list_state_file_names(origin, _read_state_file(origin))
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).unlink(missing_ok=True)
        try:
            os.link(origin / name, folder / name)
        except OSError:  # another file system, or one without links
            shutil.copyfile(origin / name, folder / name)
    return _digest(folder / "state.json")


def _list_state_file_names(folder: Path, data: JsonObject) -> list[str]:
    """List the names of all files of a state."""
    side_files = [name for name in (PARTIALS, CHANGES) if _is_file(data.get(SECTIONS[name]))]
    return ["state.json", *side_files, *(entry["table"] for entry in _list_all_tables(folder, data))]


def _list_all_tables(folder: Path, data: JsonObject) -> list[JsonObject]:
    """List the entries of the files of all tables of a state, with those for a refit and of its last changes."""
    side_files = [_read_side_file(folder, data, name) or {} for name in (PARTIALS, CHANGES)]
    return [entry for content in (data, *side_files) for entry in _list_tables(content)]


def _read_state_file(folder: Path, digest: str | None = None) -> JsonObject:
    """Read state.json and check it; a DataError if it is damaged or has another format."""
    data = read_json(folder / "state.json", digest)
    path = folder / "state.json"
    number = data.get("format") if isinstance(data, dict) else None
    if isinstance(number, int) and number != FORMAT:
        do = "upgrade rowmill" if number > FORMAT else "fit the workflow again"
        raise DataError(f"the state has format {number}, this version reads format {FORMAT}", where=str(folder), do=do)
    parse_document(StateForm, data, path)
    _check_tables(path, "fitted", data["fitted"])
    return data


def _check_tables(path: Path, section: str, steps: Mapping[str, JsonObject]) -> None:
    """Raise a DataError for an entry of a table that is not valid."""
    for key, values in steps.items():
        for name, value in values.items():
            for file in _list_table_files(value):
                field = f"{section}.{key}.{name}"
                parse_document(TableForm, file, path, field)
                if (path.parent / file["table"]).is_symlink():
                    raise make_damage_error(path, field, f"the table {file['table']} is a link")


def _read_side_file(folder: Path, data: JsonObject, name: str) -> JsonObject | None:
    """Read `partials.json` or `changes.json` and check it; None if the state has none."""
    section = SECTIONS[name]
    if not data.get(section):
        return None
    if (folder / name).is_symlink():
        raise make_damage_error(folder / name, "", "it is a link")
    content: JsonObject = read_json(folder / name, data[section]["sha256"])
    parse_document(PartialsForm if section == "partials" else ChangesForm, content, folder / name)
    inner = "steps" if section == "changes" else section
    _check_tables(folder / name, inner, content[inner])
    return content


def _read_partials(folder: Path, data: JsonObject) -> tuple[dict[str, JsonObject], int]:
    """Read what only a refit needs, with its tables, and the number of learned rows; a JobError if it was left out."""
    content = _read_side_file(folder, data, PARTIALS)
    if content is None:
        raise JobError(
            "this state was saved without what a refit needs",
            where=str(folder),
            why="run.keep_partials was false",
            do="fit all rows again, with run.keep_partials: true",
        )
    return _read_values(folder, content["partials"]), content.get("rows", 0)


def _read_changes(folder: Path, data: JsonObject) -> JsonObject:
    """Return what the last refit changed, with its tables."""
    content = _read_side_file(folder, data, CHANGES)
    return {} if content is None else {**content, "steps": _read_values(folder, content["steps"])}


def _make_file_entry(name: str, text: str | None) -> JsonObject | None:
    """Make the entry in state.json of a file next to it."""
    return None if text is None else {"file": name, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def _is_file(entry: object) -> bool:
    return isinstance(entry, dict) and set(entry) == {"file", "sha256"}


def read_json(path: Path, digest: str | None = None) -> JsonObject:
    """Read the content of a JSON file of a saved workflow; a DataError if it is missing, damaged, or has another
    digest."""
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
        raise make_damage_error(path, "", str(error).partition("\n")[0]) from None


def _prepare_fitted(key: str, op: Learned, fitted: FittedValues, engine: Kernels) -> object:
    """Prepare what `apply` takes; a DataError if the operator cannot use what was learned."""
    try:
        return op.prepare(fitted, engine if op.is_built_in else engines.user_kernels(engine))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise make_damage_error(
            Path("state.json"), f"fitted.{key}", f"{type(op).__name__} cannot use it: {type(error).__name__}: {error}"
        ) from error


def _make_threads() -> ThreadPoolExecutor:
    """Make threads that encode, decode and digest tables in parallel."""
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="rowmill-state")


class _Parts(NamedTuple):
    """A table on its way from or to its files."""

    files: list[Future[Any]]


def _save_tables(values: FittedSteps, prefix: str, saving: Saving) -> dict[str, JsonObject]:
    """Write the tables among values; return the values with futures of the entries in place of each table."""

    def save_value(name: str, value: object) -> object:
        return _Parts(saving.files(value, name)) if isinstance(value, pa.Table) else value

    return {
        key: {name: save_value(f"{prefix}{number:03d}-{name}", value) for name, value in fitted.items()}
        for number, (key, fitted) in enumerate(values.items())
    }


def _digest_large_steps(fitted: JsonObject) -> dict[str, str]:
    """Digest what the steps with a large table have learned; their entries name the digests of the tables."""
    large = {key for key, values in fitted.items() if any(_is_large(_list_table_files(v)) for v in values.values())}
    return {key: hashlib.sha256(_write_as_text(fitted[key]).encode()).hexdigest() for key in large}


def _is_large(files: list[JsonObject]) -> bool:
    return sum(file["rows"] for file in files) >= LEAST_ROWS


def _read_values(folder: Path, data: JsonObject, mapped: MappedTables | None = None) -> dict[str, JsonObject]:
    """Read values with their tables; large ones from `mapped`."""
    with _make_threads() as threads:

        def read(value: object) -> object:
            files = _list_table_files(value)
            if mapped is not None and _is_large(files):
                digests = [file["sha256"] for file in files]
                return mapped.open_table(
                    digests, lambda: pa.concat_tables(threads.map(partial(read_table, folder), files))
                )
            return (
                _Parts([threads.submit(read_table, folder, file) for file in files]) if files else decode_floats(value)
            )

        begun = {key: {name: read(v) for name, v in fitted.items()} for key, fitted in data.items()}
        return _await_tables(begun, pa.concat_tables)


def _read_heads(folder: Path) -> JsonObject:
    """Read the entries of state.json, with only the first file of every table of a vocabulary."""
    fitted = _read_state_file(folder)["fitted"]
    return {key: _cut_to_head(values) if set(values) >= VOCABULARY else values for key, values in fitted.items()}


def _cut_to_head(values: FittedValues) -> JsonObject:
    return {name: files[0] if (files := _list_table_files(value)) else value for name, value in values.items()}


def _await_tables(values: FittedSteps, join: Callable[[list[Any]], Any]) -> dict[str, JsonObject]:
    """Replace the futures of the files of every table by their results, joined by `join`."""
    return {
        key: {n: join([f.result() for f in v.files]) if isinstance(v, _Parts) else v for n, v in fitted.items()}
        for key, fitted in values.items()
    }


def _make_table_entry(files: list[JsonObject]) -> JsonObject:
    """Make the entry of a table in state.json."""
    return files[0] if len(files) == 1 else {"tables": files}


def _write_as_text(data: JsonObject) -> str:
    """Write one of the files as text; a DataError names the step whose learned values are not JSON."""
    try:
        return json.dumps(data, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        steps: JsonObject = next((data[n] for n in ("fitted", "partials", "steps") if n in data), {})
        for key, learned in steps.items():
            for name, value in learned.items():
                try:
                    json.dumps(value, allow_nan=False)
                except (TypeError, ValueError):
                    do = "let its operator give plain JSON values and Arrow tables"
                    raise DataError(f"what {key} learned cannot be saved: {name}", why=str(error), do=do) from None
        raise


def _list_table_files(value: Any) -> list[JsonObject]:
    """List the entries in state.json of the files of a table; [] for other values."""
    several = isinstance(value, dict) and set(value) == {"tables"} and isinstance(value["tables"], list)
    files = value["tables"] if several else [value]
    return files if all(isinstance(f, dict) and set(f) == {"table", "rows", "sha256"} for f in files) else []


def _list_tables(data: JsonObject) -> list[JsonObject]:
    """List the entries of the files of all tables in state.json, or in a file next to it."""
    sections = [data.get(name) for name in ("fitted", "partials", "steps")]
    entries = [entry for section in sections if section and not _is_file(section) for entry in section.values()]
    return [file for entry in entries for value in entry.values() for file in _list_table_files(value)]


def check_table(folder: Path, entry: JsonObject) -> None:
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


def read_table(folder: Path, entry: JsonObject) -> pa.Table:
    check_table(folder, entry)
    path = folder / entry["table"]
    try:
        with pa.OSFile(str(path)) as file:
            table = validate_table(_restore_types(pq.ParquetFile(file)))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise make_damage_error(path, "", str(error).partition("\n")[0]) from None
    if table.num_rows != entry["rows"]:
        raise make_damage_error(path, "", f"it has {table.num_rows:,} rows, state.json says {entry['rows']:,}")
    return table


def _restore_types(file: pq.ParquetFile) -> pa.Table:
    """Convert a table to the types in which it was written.

    Parquet has no times in seconds, and returns finer ones for keys. Columns may have nulls, whether these have some or
    not.
    """
    table = file.read()
    noted = (file.metadata.metadata or {}).get(b"ARROW:schema")
    for field in pa.ipc.read_schema(pa.py_buffer(base64.b64decode(noted))) if noted else ():
        values = table.column(field.name)
        if values.type != field.type:
            place = table.schema.get_field_index(field.name)
            table = table.set_column(place, field.name, values.cast(field.type))
    fields = [field.with_nullable(True) for field in table.schema]
    return pa.table(table.columns, schema=pa.schema(fields, table.schema.metadata))


def write_table(path: Path, table: pa.Table) -> JsonObject:
    """Write a table, whole or not at all; returns its entry in state.json.

    Without dictionaries, which are no use to distinct values, and under lz4: written in two thirds and read in half of
    the time of zstd with them, 1.2 to 1.7 times as large. Keys that are numbers lie byte by byte (BYTE_STREAM_SPLIT):
    ids in order take half of the bytes and of the time then, random ones what they did. A column without nulls says so,
    and large batches are handed on: a third of the time.
    """
    unfinished = path.with_name(path.name + ".tmp")
    keys = [field.name for field in table.schema if field.name != "count" and _is_whole_number(field.type)]
    fields = [
        field.with_nullable(column.null_count > 0 or pa.types.is_null(field.type))
        for field, column in zip(table.schema, table.columns, strict=True)
    ]
    pq.write_table(
        pa.table(table.columns, schema=pa.schema(fields, table.schema.metadata)),
        unfinished,
        compression="lz4",
        use_dictionary=False,
        write_statistics=False,
        column_encoding=dict.fromkeys(keys, "BYTE_STREAM_SPLIT") or None,
        write_batch_size=BATCH,
    )
    digest = _digest(unfinished)
    unfinished.replace(path)
    return {"table": path.name, "rows": table.num_rows, "sha256": digest}


def _is_whole_number(dtype: pa.DataType) -> bool:
    """Return whether Parquet stores values of the type as integers."""
    return bool(pa.types.is_integer(dtype) or pa.types.is_temporal(dtype))


def _rename_table_file(written: Future[JsonObject], path: Path) -> JsonObject:
    """Rename the file of a table to `path` once it is written; return its entry."""
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
