"""`Column` and `Schema`: what is known of columns before any data is read (names, types, tags, properties)."""

from __future__ import annotations

import enum
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from tasks.core.dtypes import (
    dtype_name,
    field_type,
    is_bytes,
    is_list,
    is_storable,
    kind_of,
    leaf_type,
    parse_dtype,
    plain_type,
    schema_advice,
)
from tasks.core.nvtabular import KnownFromNVTabular, of_attribute
from tasks.core.strict_json import JsonObject, decode_floats, encode_floats
from tasks.errors import DataError, JobError, near


class _TagNames(enum.EnumMeta):
    """Tags of NVTabular that are not here raise an AttributeError that says what to write."""

    def __getattr__(cls, name: str) -> object:
        if advice := of_attribute("Tags", name):
            raise AttributeError(f"Tags.{name} does not exist: {advice}")
        return super().__getattribute__(name)


class Tags(str, enum.Enum, metaclass=_TagNames):  # noqa: UP042 (str() of a tag stays as it was)
    """Roles of a column. A graph selects columns by them (`Tags.CONTINUOUS`); a tag may also be any other text."""

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
    SAMPLE_WEIGHT = "sample_weight"


@dataclass(frozen=True)
class Column:
    """Name, Arrow type, tags and properties of a column.

    Properties are JSON values by name. Operators set `cardinality` (the number of ids), `domain` ({min, max} of the
    ids), `embedding` ({rows, dimension}), `value_count` ({min, max} of list lengths) and, before a fit, `settles`. A
    source of lists that all have one length by their type sets `fixed_size`: outputs store them so.
    """

    name: str
    dtype: pa.DataType
    tags: frozenset[str] = frozenset()
    properties: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """One of number, string, bool, time, list, other; a list column is a list, whatever its elements are."""
        return kind_of(self.dtype)

    @property
    def leaf(self) -> pa.DataType:
        """The type of the values: of the elements for a list column, else of the column."""
        return leaf_type(self.dtype)

    def tagged(self, *tags: str) -> Column:
        """The column with these tags (texts or `Tags`) beside its own."""
        return replace(self, tags=self.tags | {str(getattr(t, "value", t)) for t in tags})

    def with_properties(self, **properties: Any) -> Column:
        """The column with these properties beside its own; a new value replaces an old one."""
        return replace(self, properties={**self.properties, **properties})

    @property
    def stored_dtype(self) -> pa.DataType:
        """The type in Parquet and Arrow files: lists of one length have it in their type."""
        size = self.properties.get("fixed_size")
        return pa.list_(self.dtype.value_type, size) if size and pa.types.is_list(self.dtype) else self.dtype

    def to_json(self) -> JsonObject:
        """The column as in manifests: {name, dtype, tags, and each property}; infinities as {"float": "inf"}."""
        named = {"name": self.name, "dtype": dtype_name(self.dtype), "tags": sorted(self.tags)}
        return named | encode_floats(self.properties)

    @staticmethod
    def from_json(data: JsonObject) -> Column:
        """The column that `to_json` wrote."""
        properties = {k: decode_floats(v) for k, v in data.items() if k not in ("name", "dtype", "tags")}
        return Column(data["name"], plain_type(parse_dtype(data["dtype"])), frozenset(data.get("tags", ())), properties)


ROW = "__row__"  # the hidden column of row numbers, where `source.keys` brought rows into another order
HIDDEN = "__rowmill_"  # columns that travel with the rows for sorting and are not written


def check_names(names: Sequence[str], where: str, do: str = "give each a name of its own") -> None:
    """Raise a DataError for a name that two columns have, and for a name of rowmill's own columns."""
    if len({*names}) < len(names):
        counts = Counter(names)
        twice = min(name for name in counts if counts[name] > 1)
        raise DataError(two_columns(twice), where=where, do=do)
    for name in names:
        if name == ROW or name.startswith(HIDDEN):
            why = "rowmill gives this name to a column of its own, which is not written"
            raise DataError(f"a column may not be called {name!r}", where=where, why=why, do="rename it")


def two_columns(name: str) -> str:
    return f"there are two columns {name!r}"


def own_names(names: Sequence[str]) -> list[str]:
    """The names of a file's columns; each further column of a name has its place behind it.

    >>> own_names(["x", "y", "x"])
    ['x', 'y', 'x (column 3)']
    """
    taken = set[str]()
    own = []
    for place, name in enumerate(names, 1):
        while name in taken:
            name += _place_in_file(place)
        taken.add(name)
        own.append(name)
    return own


def names_in_file(own: Sequence[str]) -> list[str]:
    """The names of which `own_names` made these."""
    return [name.removesuffix(_place_in_file(place)) for place, name in enumerate(own, 1)]


def _place_in_file(place: int) -> str:
    return f" (column {place})"


def check_storable(schema: pa.Schema, where: str = "") -> None:
    """Raise a DataError for a column whose values no type of Parquet holds."""
    for column in schema:
        if not is_storable(column.type):
            raise DataError(
                f"column {column.name!r} is of type {dtype_name(column.type)}",
                where=where,
                why="no type of Parquet holds intervals of months, unions or run-end encoded values",
                do="give the column another type before (for an interval: duration), or drop it",
            )


class Schema(KnownFromNVTabular, Mapping[str, Column]):
    """The columns of a frame in their order: a mapping from name to `Column`.

    `schema[name]` raises a JobError with near names for a column that does not exist. Fields of structs are there by
    their path (`item.id`), unless a column has this name or `fields` is False; they are not columns to iterate over.
    """

    _known_as = "Schema"

    def __init__(self, columns: Iterable[Column] = (), fields: bool = True) -> None:
        self._columns = {c.name: c for c in columns}
        self._fields = fields

    def root(self, name: str) -> str | None:
        """The column of structs of which a name is the path of a field; None for any other name."""
        ends = [place for place, letter in enumerate(name) if letter == "."]
        return next((name[:end] for end in ends if self._field(name[:end], name[end + 1 :]) is not None), None)

    def _field(self, root: str, path: str) -> pa.DataType | None:
        return field_type(self._columns[root].dtype, path) if root in self._columns else None

    def __getitem__(self, name: str) -> Column:
        try:
            return self._columns[name]
        except KeyError:
            root = self.root(name) if self._fields else None
            if root is not None:
                return Column(name, field_type(self._columns[root].dtype, name[len(root) + 1 :]))
            raise JobError(f"there is no column {name!r}", do=near(name, self._columns)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __contains__(self, name: object) -> bool:
        if name in self._columns or not self._fields or not isinstance(name, str):
            return name in self._columns
        return self.root(name) is not None

    def __repr__(self) -> str:
        return "Schema(" + ", ".join(f"{c.name}: {dtype_name(c.dtype)}" for c in self._columns.values()) + ")"

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns in their order."""
        return tuple(self._columns.values())

    def with_tag(self, tag: str) -> list[str]:
        """The names of the columns that have a tag (a text, or one of `Tags`)."""
        tag = str(getattr(tag, "value", tag))
        return [c.name for c in self.columns if tag in c.tags]

    def with_any_tag(self, tags: str | Iterable[str], where: str = "") -> list[str]:
        """The names of the columns that have any of these tags, in their order; a JobError for a tag that none has."""
        wanted = {str(getattr(tag, "value", tag)) for tag in ([tags] if isinstance(tags, str) else tags)}
        known = sorted({tag for column in self.columns for tag in column.tags})
        for tag in sorted(wanted - {*known}):
            raise JobError(f"no column has the tag {tag!r}", where=where, do=near(tag, known))
        return [c.name for c in self.columns if c.tags & wanted]

    def to_arrow(self) -> pa.Schema:
        """Names and types as an Arrow schema; tags and properties are left out."""
        return pa.schema([(c.name, c.dtype) for c in self.columns])

    def to_json(self) -> list[JsonObject]:
        """The columns as in manifests, a dict for each."""
        return [c.to_json() for c in self.columns]

    @staticmethod
    def from_arrow(schema: pa.Schema) -> Schema:
        """The columns of an Arrow schema, in the plain type of each (no dictionaries, views or large offsets)."""
        return Schema(Column(f.name, plain_type(f.type)) for f in schema)

    @staticmethod
    def from_json(data: Iterable[JsonObject]) -> Schema:
        """The schema that `to_json` wrote."""
        return Schema(Column.from_json(item) for item in data)


def check_kinds(fitted: Schema, applied: Schema, needed: Iterable[str], own_types: Collection[str] = ()) -> None:
    """Raise a DataError for a needed column of another kind than in the fit; narrower and wider types are right.
    `own_types` are the columns whose types the source sets itself."""
    for name in needed:
        if name not in applied:
            continue  # the graph says what is missing, with near names
        was = fitted[name].dtype
        now = applied[name].dtype
        same = is_list(was) == is_list(now) and kind_of(leaf_type(was)) == kind_of(leaf_type(now))
        if not same and not pa.types.is_null(leaf_type(now)):
            raise DataError(
                f"column {name!r} is {dtype_name(now)}, the workflow was fitted with {dtype_name(was)}",
                do=f"leave {name} out of source.schema: its fitted type counts"
                if name in own_types
                else f"if its values allow, read it in that type: {schema_advice(name, was)}",
            )


DESCRIPTION = "rowmill"  # the key under which Parquet and Arrow files say what their columns are


def make_file_metadata(schema: Schema) -> dict[str, str]:
    """The key-value metadata of a file about its columns beyond their types: tags, cardinality, embedding size.

    >>> make_file_metadata(Schema([Column("x", pa.float32(), frozenset(["target"]))]))
    {'rowmill': '{"columns": [{"name": "x", "dtype": "float32", "tags": ["target"]}]}'}
    """
    return {DESCRIPTION: json.dumps({"columns": schema.to_json()}, default=str)}


def embeddings_of(schema: Schema) -> dict[str, dict[str, int]]:
    """The size of the embedding table of each id column: {column: {rows, dimension}}."""
    sizes = {c.name: c.properties.get("embedding") for c in schema.columns}
    return {name: {"rows": size["rows"], "dimension": size["dimension"]} for name, size in sizes.items() if size}


def to_output_type(dtype: pa.DataType) -> pa.DataType:
    """The type in which outputs hold a type's values: Parquet has no times of whole seconds, they become milliseconds.

    >>> to_output_type(pa.list_(pa.timestamp("s", "UTC"))), to_output_type(pa.time32("s"))
    (ListType(list<item: timestamp[ms, tz=UTC]>), Time32Type(time32[ms]))
    """
    if is_list(dtype):
        return pa.list_(to_output_type(dtype.value_type))
    if pa.types.is_struct(dtype):
        return pa.struct([(f.name, to_output_type(f.type)) for f in dtype])
    if pa.types.is_map(dtype):
        return pa.map_(to_output_type(dtype.key_type), to_output_type(dtype.item_type))
    if pa.types.is_timestamp(dtype) and dtype.unit == "s":
        return pa.timestamp("ms", dtype.tz)
    return pa.time32("ms") if dtype == pa.time32("s") else dtype


def check_ordered(schema: Mapping[str, Column], names: Sequence[str], where: str) -> None:
    """Raise a JobError for columns that rows cannot be grouped or sorted by: one that does not exist, and a list or a
    struct, which has no order."""
    for name in names:
        if name not in schema:
            raise JobError(f"there is no column {name!r}", where=where, do=near(name, schema))
    for name in names:
        if kind_of(schema[name].dtype) in ("list", "other") and not is_bytes(schema[name].dtype):
            raise JobError(
                f"rows have no order by column {name!r}",
                where=where,
                why=f"it is {dtype_name(schema[name].dtype)}",
                do="name columns of single values: numbers, texts, times or bools",
            )
