"""Columns as they are known before any data is read: types, tags and the sizes of vocabularies."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from tasks.core.dtypes import dtype_name, is_bytes, is_list, kind_of, leaf_type, parse_dtype, plain_type
from tasks.core.strict_json import decoded, encoded
from tasks.errors import DataError, JobError, near


class Tags(str, enum.Enum):  # noqa: UP042 (str() of a tag stays as it was)
    """Roles of a column, by which a graph can select."""

    CATEGORICAL = "categorical"
    CONTINUOUS = "continuous"
    TARGET = "target"
    LIST = "list"
    TIME = "time"
    USER_ID = "user_id"
    ITEM_ID = "item_id"
    SESSION_ID = "session_id"
    CONTEXT = "context"
    TEXT = "text"


@dataclass(frozen=True)
class Column:
    """Name, Arrow type, tags and properties (domain, cardinality, embedding) of a column."""

    name: str
    dtype: pa.DataType
    tags: frozenset[str] = frozenset()
    properties: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """One of number, string, bool, time, list, other (of the leaves' container, not of the leaves)."""
        return kind_of(self.dtype)

    @property
    def leaf(self) -> pa.DataType:
        """The type of the values: of the elements for a list column, else of the column."""
        return leaf_type(self.dtype)

    def tagged(self, *tags: str) -> Column:
        return replace(self, tags=self.tags | {str(getattr(t, "value", t)) for t in tags})

    def with_properties(self, **properties: Any) -> Column:
        return replace(self, properties={**self.properties, **properties})

    def to_json(self) -> dict[str, Any]:
        named = {"name": self.name, "dtype": dtype_name(self.dtype), "tags": sorted(self.tags)}
        return named | encoded(self.properties)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Column:
        properties = {k: decoded(v) for k, v in data.items() if k not in ("name", "dtype", "tags")}
        return Column(data["name"], plain_type(parse_dtype(data["dtype"])), frozenset(data.get("tags", ())), properties)


ROW = "__row__"  # the hidden column of row numbers, where `source.keys` brought rows into another order
HIDDEN = "__millrace_"  # columns that travel with the rows for sorting and are not written


def check_names(names: Sequence[str], where: str) -> None:
    """A DataError for names that occur twice, or that millrace uses for its own columns."""
    twice = sorted({name for name in names if names.count(name) > 1}) if len({*names}) < len(names) else []
    if twice:
        raise DataError(f"there are two columns {twice[0]!r}", where=where, do="rename one of them")
    for name in names:
        if name == ROW or name.startswith(HIDDEN):
            why = "millrace gives this name to a column of its own, which is not written"
            raise DataError(f"a column may not be called {name!r}", where=where, why=why, do="rename it")


class Schema(Mapping[str, Column]):
    """The columns of a frame in their order."""

    def __init__(self, columns: Iterable[Column] = ()) -> None:
        self._columns = {c.name: c for c in columns}

    def __getitem__(self, name: str) -> Column:
        try:
            return self._columns[name]
        except KeyError:
            raise JobError(f"there is no column {name!r}", do=near(name, self._columns)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __repr__(self) -> str:
        return "Schema(" + ", ".join(f"{c.name}: {dtype_name(c.dtype)}" for c in self._columns.values()) + ")"

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(self._columns.values())

    def with_tag(self, tag: str) -> list[str]:
        tag = str(getattr(tag, "value", tag))
        return [c.name for c in self.columns if tag in c.tags]

    def to_arrow(self) -> pa.Schema:
        return pa.schema([(c.name, c.dtype) for c in self.columns])

    def to_json(self) -> list[dict[str, Any]]:
        return [c.to_json() for c in self.columns]

    @staticmethod
    def from_arrow(schema: pa.Schema) -> Schema:
        return Schema(Column(f.name, plain_type(f.type)) for f in schema)

    @staticmethod
    def from_json(data: Iterable[Mapping[str, Any]]) -> Schema:
        return Schema(Column.from_json(item) for item in data)


def check_kinds(fitted: Schema, schema: Schema, needed: Iterable[str]) -> None:
    """Refuse data whose needed columns are of another kind than in the fit; narrower and wider types are allowed."""
    for name in needed:
        if name not in schema:
            continue  # binding the graph reports missing columns, with near names
        was, now = fitted[name].dtype, schema[name].dtype
        same = is_list(was) == is_list(now) and kind_of(leaf_type(was)) == kind_of(leaf_type(now))
        if not same and not pa.types.is_null(leaf_type(now)):
            raise DataError(
                f"column {name!r} is {dtype_name(now)}, the workflow was fitted with {dtype_name(was)}",
                do="give the column in its former type, for example by the schema of the source",
            )


DESCRIPTION = "millrace"  # the key under which Parquet and Arrow files say what their columns are


def described(schema: Schema) -> dict[str, str]:
    """Key-value metadata of a file about its columns, beyond their types: tags, cardinality, embedding size.

    >>> described(Schema([Column("x", pa.float32(), frozenset(["target"]))]))
    {'millrace': '{"columns": [{"name": "x", "dtype": "float32", "tags": ["target"]}]}'}
    """
    return {DESCRIPTION: json.dumps({"columns": schema.to_json()}, default=str)}


def embeddings_of(schema: Schema) -> dict[str, dict[str, int]]:
    """{column: {rows, dimension}} of all columns that hold ids."""
    sizes = {c.name: c.properties.get("embedding") for c in schema.columns}
    return {name: {"rows": size["rows"], "dimension": size["dimension"]} for name, size in sizes.items() if size}


def written_type(dtype: pa.DataType) -> pa.DataType:
    """The type of a column in outputs: times of whole seconds become milliseconds, since Parquet has no others.

    >>> written_type(pa.list_(pa.timestamp("s", "UTC"))), written_type(pa.time32("s"))
    (ListType(list<item: timestamp[ms, tz=UTC]>), Time32Type(time32[ms]))
    """
    if is_list(dtype):
        return pa.list_(written_type(dtype.value_type))
    if pa.types.is_struct(dtype):
        return pa.struct([(f.name, written_type(f.type)) for f in dtype])
    if pa.types.is_map(dtype):
        return pa.map_(written_type(dtype.key_type), written_type(dtype.item_type))
    if pa.types.is_timestamp(dtype) and dtype.unit == "s":
        return pa.timestamp("ms", dtype.tz)
    return pa.time32("ms") if dtype == pa.time32("s") else dtype


def check_ordered(schema: Mapping[str, Column], names: Iterable[str], where: str) -> None:
    """Refuse columns by which rows cannot be grouped or sorted: lists and structs have no single order."""
    for name in names:
        if kind_of(schema[name].dtype) in ("list", "other") and not is_bytes(schema[name].dtype):
            raise JobError(
                f"rows have no order by column {name!r}", where=where, why=f"it is {dtype_name(schema[name].dtype)}",
                do="name columns of single values: numbers, texts, times or bools",
            )  # fmt: skip
