"""Small tables beside the data, which every worker needs whole: Parquet or text files, or frames in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Annotated, Any, TypeGuard

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import GetJsonSchemaHandler, PlainSerializer, ValidationError, WrapValidator
from pydantic_core import PydanticOmit, core_schema

from tasks.core.dtypes import dtype_name, parse_dtype, plain_type
from tasks.core.plan import File
from tasks.core.schema import check_names
from tasks.core.settings import Source
from tasks.core.strict_json import JsonObject
from tasks.core.units import amount
from tasks.engines.convert import libraries
from tasks.errors import DataError, JobError, mistakes, near, place_text
from tasks.storage.allowed_roots import check_path
from tasks.storage.arrow_files import make_dataset
from tasks.storage.credentials import StorageOptions, storage
from tasks.storage.files import open_binary
from tasks.storage.store import MissingFileError
from tasks.storage.stores import list_files

MOST_BYTES = 4 << 30
READ = (
    "format",
    "header",
    "columns",
    "schema",
    "null_values",
    "delimiter",
    "skip_rows",
    "skip_initial_space",
    "decimal",
    "quote",
    "escape",
    "comment",
    "encoding",
)  # the settings of a source that a side table takes
Reader = Callable[[File, Mapping[str, Any]], pa.Table]
readers: dict[str, Reader] = {}  # `text`: from a file and settings to a table; `tasks.graph` sets it
MOST_SCHEMAS = 100
# What `side_schema` has read: a graph is bound many times, and each time would fetch a footer.
_schemas: dict[tuple[tuple[File, ...], str], pa.Schema] = {}
IN_MEMORY = "a frame in memory"  # the place in messages


class SideFrame:
    """A side table that was a frame in Python: what it held when its operator was made, or, in a saved workflow, its
    digest, number of rows and columns alone."""

    def __init__(self, table: pa.Table | None, facts: Mapping[str, Any] | None = None) -> None:
        self._table = table
        self._facts = facts

    @staticmethod
    def of(table: pa.Table) -> SideFrame:
        """The table with strings plain and NaN null; a JobError for a larger one than workers take."""
        check_names(table.column_names, IN_MEMORY)
        columns = _small(table, IN_MEMORY).columns
        return SideFrame(pa.table([_to_plain_array(column) for column in columns], table.column_names))

    @property
    def table(self) -> pa.Table:
        """What the frame held; a JobError where nothing but its digest is here."""
        if self._table is None:
            raise JobError(
                "the frame of a side table is not here",
                why="its digest alone was saved, and what an operator learned from it",
                do="load the whole workflow with Workflow.load, or give the frame again",
            )
        return self._table

    def restore(self, table: pa.Table) -> None:
        """Take what an operator has saved of the frame where the frame itself is not here."""
        if self._table is None:
            self._table = table

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        if self._facts is None:
            return self.table.schema
        return pa.schema([(name, parse_dtype(dtype)) for name, dtype in self._facts["columns"].items()])

    @cached_property
    def facts(self) -> JsonObject:
        """What a saved workflow says of the frame: sha256 of its content (as uncompressed Parquet), rows, columns."""
        if self._facts is not None:
            return dict(self._facts)
        digest = hashlib.sha256()
        pq.write_table(
            self.table.combine_chunks(),
            pa.PythonFile(_Hashed(digest), "w"),
            row_group_size=1 << 20,
            compression="none",
            use_dictionary=False,
            write_statistics=False,
            store_schema=False,
        )
        columns = {field.name: dtype_name(field.type) for field in self.table.schema}
        return {"frame": digest.hexdigest(), "rows": self.table.num_rows, "columns": columns}

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> core_schema.CoreSchema:
        return core_schema.custom_error_schema(
            core_schema.is_instance_schema(cls), "frame_type", custom_error_message="needs a frame"
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: object, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        raise PydanticOmit  # a job has no frames

    @staticmethod
    def is_saved(value: Any) -> TypeGuard[Mapping[str, Any]]:
        """Whether a value of JSON is what `facts` gave."""
        named = isinstance(value, Mapping) and set(value) == {"frame", "rows", "columns"}
        return named and isinstance(value["columns"], Mapping) and isinstance(value["rows"], int)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SideFrame) and self.facts == other.facts

    def __hash__(self) -> int:
        return hash(self.facts["frame"])

    def __str__(self) -> str:
        return IN_MEMORY

    def __repr__(self) -> str:
        rows = self._facts["rows"] if self._facts is not None else self.table.num_rows
        return f"<{rows:,} rows in memory: {', '.join(self.schema.names)}>"


class _Hashed:
    """A file whose bytes are digested, not stored."""

    closed = False

    def __init__(self, digest: Any) -> None:
        self._digest = digest
        self._place = 0

    def write(self, data: bytes) -> int:
        self._digest.update(data)
        self._place += len(data)
        return len(data)

    def tell(self) -> int:
        return self._place

    def flush(self) -> None: ...

    def close(self) -> None: ...


def side_table(value: object, checked: Callable[[Any], Any]) -> str | SideFrame:
    """A parameter that is a path, a frame, or what a saved workflow says of a frame."""
    if SideFrame.is_saved(value):
        return SideFrame(None, value)
    if isinstance(value, SideFrame):
        return value
    table = libraries.copy_from_any(value)
    return SideFrame.of(table) if table is not None else checked(str(value) if isinstance(value, Path) else value)


def _as_saved(value: object) -> object:
    """A side table as JSON: the path, or what identifies the frame."""
    return value.facts if isinstance(value, SideFrame) else value


AS_SAVED = PlainSerializer(_as_saved)
SideTable = Annotated[str | SideFrame, WrapValidator(side_table), AS_SAVED]


def frames_in(*values: Any) -> tuple[SideFrame, ...]:
    """The frames among parameters."""
    return tuple(value for value in values if isinstance(value, SideFrame))


def check_read_settings(read: JsonObject) -> None:
    """A ValueError for settings of a source by which no side table can be read."""
    for name in read:
        if name not in READ:
            raise ValueError(f"read takes no {name!r}: {near(name, READ)}")
    try:
        Source.model_validate({"path": "any", **read})
    except ValidationError as error:
        wrong = mistakes(error, read)[0]
        raise ValueError(f"read.{place_text(wrong.place)}: {wrong.text}") from None


def read_side_table(
    source: str | SideFrame,
    columns: list[str] | None = None,
    read: JsonObject | None = None,
    storage_options: str | None = None,
) -> pa.Table:
    """Read the whole table of a frame, of a file of any format, or of a folder of Parquet files; strings plain, NaN
    null. `read` are settings of a source, by which a file is read; `storage_options` names the options of a URL.

    Of Parquet, the chunks of the columns are fetched; text is fetched whole. A JobError if there is no such file, it
    has no known format, or the storage refuses this user; a DataError if it cannot be read or changes meanwhile.
    """
    if isinstance(source, SideFrame):
        return source.table if columns is None else source.table.select(columns)
    side_files = _find(source, read, storage_options)
    try:
        if side_files.is_folder:
            table = make_dataset(side_files.path, side_files.files, side_files.options).to_table(columns=columns)
        elif side_files.is_parquet:
            with open_binary(side_files.files[0], side_files.options) as file:
                table = pq.read_table(file, columns=columns)
        else:
            table = readers["text"](side_files.files[0], {**(read or {}), "storage_options": storage_options})
            table = table if columns is None else table.select(columns)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise DataError(
            "the side table cannot be read", where=source, why=str(error), do="fix or replace the file"
        ) from None
    return pa.table([_to_plain_array(c) for c in _small(table, source).columns], table.column_names)


def _small(table: pa.Table, where: str) -> pa.Table:
    if table.nbytes > MOST_BYTES:
        raise JobError(
            f"the side table has {amount(table.nbytes)}; it is copied to every worker",
            where=where,
            do=f"name fewer columns, or join so large a table before (at most {amount(MOST_BYTES)})",
        )
    return table


def side_schema(
    source: str | SideFrame, read: JsonObject | None = None, storage_options: str | None = None
) -> pa.Schema:
    """Names and types of the columns, from the footer (of a text file: from its text; of a frame: as they are)."""
    if isinstance(source, SideFrame):
        return source.schema
    side_files = _find(source, read, storage_options)
    key = side_files.files, repr(read)
    if key not in _schemas:
        if len(_schemas) >= MOST_SCHEMAS:
            _schemas.clear()
        _schemas[key] = _read_schema(source, side_files, read, storage_options)
    return _schemas[key]


def _read_schema(
    source: str, side_files: _SideFiles, read: JsonObject | None, storage_options: str | None
) -> pa.Schema:
    if not side_files.is_parquet:
        schema = read_side_table(source, None, read, storage_options).schema
    else:
        try:
            if side_files.is_folder:
                schema = make_dataset(side_files.path, side_files.files, side_files.options).schema
            else:
                with open_binary(side_files.files[0], side_files.options) as file:
                    schema = pq.read_schema(file)
        except (pa.ArrowException, OSError) as error:
            raise DataError("the side table cannot be read", where=source, why=str(error)) from None
    return pa.schema([(field.name, plain_type(field.type)) for field in schema])


@dataclass(frozen=True)
class _SideFiles:
    """The files of a side table as they were listed."""

    path: str
    files: tuple[File, ...]
    options: StorageOptions
    is_folder: bool
    is_parquet: bool  # read by its footer alone


def _find(path: str, read: JsonObject | None, storage_options: str | None) -> _SideFiles:
    """Find the files of a side table, all of them inside the allowed roots; a JobError if there are none."""
    check_path(path, "a side table")
    options = storage(storage_options, "storage_options of a side table")
    try:
        listed = list_files(path, options)
    except MissingFileError:
        raise JobError(
            f"there is no side table {path!r}", do="give the path of a Parquet, CSV or JSON lines file"
        ) from None
    if listed.is_folder and read:
        raise JobError(
            f"the side table {path!r} is a folder, which takes no settings of a source",
            where="read",
            do="give the path of a file, or leave read out for a folder of Parquet files",
        )
    files = [file for file in listed.files if not listed.is_folder or _counts(listed.path, file)]
    for file in files:
        check_path(file.path, "a side table")
    if not files:
        raise JobError(
            f"the side table {path!r} has no files",
            why="names that begin with _ or . do not count",
            do="give the path of a Parquet, CSV or JSON lines file",
        )
    is_parquet = not read and (listed.is_folder or PurePath(path).suffix in (".parquet", ".pq"))
    return _SideFiles(listed.path, tuple(files), options, listed.is_folder, is_parquet)


def _counts(folder: str, file: File) -> bool:
    """Whether a file of a folder is one of the table: Arrow ignores names that begin with `_` or `.`."""
    names = file.path.removeprefix(folder).strip("/").split("/")
    return not any(name.startswith(("_", ".")) for name in names)


def _to_plain_array(column: pa.ChunkedArray) -> pa.Array:
    plain = plain_type(column.type)
    values = (column if column.type == plain else column.cast(plain)).combine_chunks()
    values = values if isinstance(values, pa.Array) else pa.array([], plain)
    return pc.if_else(pc.is_nan(values), None, values) if pa.types.is_floating(plain) else values
