"""The columns of a lake table in its Parquet files, by the ids of fields: they stay when a column is renamed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.plan import ReadOptions
from tasks.errors import DataError

FIELD_IDS = "field_ids"  # in a plan's options: by column of the table, its `FieldId` as plain values
MARK = b"PARQUET:field_id"  # in the metadata of Arrow's fields


@dataclass(frozen=True)
class FieldId:
    """How a column of a table is found in a file: by the id of its field; by the names in files without ids, and where
    the table knows no ids.

    `fields` are the ids of the fields of a nested column, by their paths.
    """

    id: int | None
    names: tuple[str, ...] = ()
    fields: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> list[Any]:
        return [self.id, list(self.names), dict(self.fields)]


def find_columns(schema: pa.Schema, options: ReadOptions, path: str) -> dict[str, str] | None:
    """Find the columns of a table in the schema of a file: by column, its name in the file. None for files of no table.

    A DataError for a nested column whose fields are not those of the table.

    >>> file = pa.schema([pa.field("old", pa.int64(), metadata={MARK: b"1"})])
    >>> find_columns(file, {FIELD_IDS: {"new": FieldId(1).to_json(), "added": FieldId(2).to_json()}}, "a.parquet")
    {'new': 'old'}
    """
    if FIELD_IDS not in options:
        return None
    by_id = {int(one.metadata[MARK]): one for one in schema if MARK in (one.metadata or {})}
    if not by_id and not any(names for _, names, _ in options[FIELD_IDS].values()):
        raise DataError(
            "the columns of a data file are not known",
            where=path,
            why="the file has no field ids, and the table has no name mapping for such files",
            do="give the table one (schema.name-mapping.default), or rewrite the file",
        )
    names_there = {}
    for name, (number, names, fields) in options[FIELD_IDS].items():
        if number is not None and by_id:
            here = by_id.get(number)
        else:
            here = next((schema.field(known) for known in names if known in schema.names), None)
        if here is None:
            continue
        names_there[name] = here.name
        if fields:
            _check_fields(name, here, fields, path)
    return names_there


def names_in_file(footer: pq.FileMetaData, names: Collection[str], options: ReadOptions, path: str) -> dict[str, str]:
    """The names of columns in a file, which has all of them."""
    if FIELD_IDS not in options:
        return {name: name for name in names}
    wanted = {name: known for name, known in options[FIELD_IDS].items() if name in names}
    names_there = find_columns(footer.schema.to_arrow_schema(), {FIELD_IDS: wanted}, path) or {}
    return {name: names_there[name] for name in names}


def with_columns_of_table(schema: pa.Schema, columns: Mapping[str, str]) -> pa.Schema:
    """The schema of a file with the columns of a table alone, under their names in the table."""
    return pa.schema([schema.field(here).with_name(name) for name, here in columns.items()])


def list_field_ids(column: pa.Field) -> dict[str, int]:
    """List the ids of the fields of structs in a nested column, by their paths."""
    return dict(_walk_fields(column, ""))


def _walk_fields(column: pa.Field, path: str) -> Iterator[tuple[str, int]]:
    """Lists and maps add nothing to a path but which of the two fields of a map it is."""
    dtype = column.type
    if pa.types.is_struct(dtype):
        for inner in dtype:
            place = f"{path}.{inner.name}".lstrip(".")
            if MARK in (inner.metadata or {}):
                yield place, int(inner.metadata[MARK])
            yield from _walk_fields(inner, place)
    elif pa.types.is_map(dtype):
        yield from _walk_fields(dtype.key_field, f"{path}.key".lstrip("."))
        yield from _walk_fields(dtype.item_field, f"{path}.value".lstrip("."))
    elif pa.types.is_nested(dtype) and hasattr(dtype, "value_field"):
        yield from _walk_fields(dtype.value_field, path)


def _check_fields(name: str, column: pa.Field, fields: Mapping[str, int], path: str) -> None:
    """A DataError where fields of a nested column were renamed, added or dropped since the file was written."""
    here = list_field_ids(column)
    if here and here != fields:
        differs = sorted({place for place, _ in {*here.items()} ^ {*fields.items()}})[0]
        raise DataError(
            f"the fields of the nested column {name!r} are not those of the table",
            where=f"{path}, field {differs}",
            why="they were renamed, added or dropped after the file was written, which rowmill follows for whole "
            "columns only",
            do="rewrite the data files of the table (in Spark: CALL system.rewrite_data_files), or read a snapshot "
            "from before the change",
        )
