"""The files of a source: listed from its paths, or named by the metadata of a lake table, which also says what the
columns of the files are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tasks.core.dtypes import dtype_name, plain_type
from tasks.core.plan import File, ReadOptions
from tasks.core.settings import Source
from tasks.core.strict_json import JsonObject
from tasks.core.wings import from_wing, need_wing
from tasks.errors import NoInputError
from tasks.sources.formats import read_options
from tasks.sources.formats.parquet_fields import FIELD_IDS, FieldId
from tasks.storage.files import expand, look_up

# In a plan's options.
TABLE = "table"  # the table, its state, and how many of its data files the plan has
CONSTANTS = "constants"  # by column: by number of a file that lacks it, the text of its value in all rows of this file


@dataclass(frozen=True)
class TableFiles:
    """The data files of one state of a table that may have rows for the filter of the source.

    note: what a plan and a manifest say: kind, name, snapshot or version, number of files.
    paths: where the files are, in the order of their rows.
    schema: the columns of the table, in the types in which they are read.
    field_ids: how each column is found in files.
    constants: by column, for each path the text of the value that the metadata has for all rows of the file; None
        where that is null, or not known. The value counts for files without the column.
    """

    note: JsonObject
    paths: Sequence[str]
    schema: pa.Schema
    field_ids: Mapping[str, FieldId]
    constants: Mapping[str, Sequence[str | None]] = field(default_factory=dict)

    def declared(self, schemas: Sequence[pa.Schema]) -> dict[str, str]:
        """The columns that some file has in another type than the table, with the type of the table: files keep the
        type of their time when the type of a column grows."""
        types = {one.name: plain_type(one.type) for one in self.schema}
        differ: set[str] = set()
        seen = None
        for schema in schemas:
            if schema != seen:  # most files are like the one before
                differ |= {one.name for one in schema if plain_type(one.type) != types[one.name]}
            seen = schema
        return {name: dtype_name(dtype) for name, dtype in types.items() if name in differ}

    def options(self) -> ReadOptions:
        """What readers have to know, as options of a plan."""
        ids = {name: known.to_json() for name, known in self.field_ids.items()}
        return {TABLE: dict(self.note), FIELD_IDS: ids}


@dataclass(frozen=True)
class SourceFiles:
    """The files of a source as they are now; `table` is what its metadata says, None for a source of paths."""

    files: list[File]
    table: TableFiles | None = None


def list_source_files(source: Source) -> SourceFiles:
    """List the files of a source.

    A NoInputError if there are none, a JobError for a table if this installation lacks the wing or its extra.
    """
    options = read_options(source)["storage_options"]
    if not source.table:
        return SourceFiles(expand(source.path, options))
    need_wing("tasks/lake", f"source.{source.table}")
    table: TableFiles = from_wing("tasks/lake", "tables", "read_table")(source)  # type: ignore[misc]
    if not table.paths:
        raise NoInputError(
            "there is no input",
            where=str(source.path),
            why="this state of the table has no data files" + (" that are new" if source.since else ""),
            do="name another state of the table, or write rows to it",
        )
    return SourceFiles(look_up(table.paths, options, str(source.path)), table)


def constant(text: str | None, dtype: pa.DataType, rows: int) -> pa.Array:
    """A value that only the metadata has, in all rows of a file.

    >>> constant("2026-11-01", pa.date32(), 1)[0].as_py(), constant(None, pa.int8(), 1)[0].as_py()
    (datetime.date(2026, 11, 1), None)
    """
    if text is None:
        return pa.nulls(rows, dtype)
    return pa.repeat(pa.scalar(text).cast(dtype), rows)
