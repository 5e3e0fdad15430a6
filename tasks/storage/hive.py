"""Hive folders: the rows of a file by the values of the columns that name its folders, `country=DE/part-00003.parquet`.

The names are those that pyarrow writes: values in percent-encoding, nulls as `__HIVE_DEFAULT_PARTITION__`. Read, they
are columns of the source like others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa

from tasks.core.dtypes import dtype_name, parse_dtype, plain_type
from tasks.core.schema import Column, Schema
from tasks.errors import DataError, JobError, near

NULL = "__HIVE_DEFAULT_PARTITION__"
MOST_FOLDERS = 10_000  # of one output; each file of the order has a part in almost every folder
MOST_NAME = 255  # bytes of a folder's name, as Linux file systems take them
WHERE = "output.partition_on"


def check_columns(names: Sequence[str], written: Mapping[str, Column]) -> None:
    """Refuse columns that cannot name folders: unknown ones, ones of other types than text, integers, bools and dates.

    >>> check_columns(["x"], {"x": Column("x", pa.float32())})
    Traceback (most recent call last):
    tasks.errors.JobError: column 'x' cannot name folders
      where: output.partition_on
      why: it is float32, the values of which are not names
      do: give a column of text, integers, bools or dates: Bucketize makes integers of numbers
    """
    for name in names:
        if name not in written:
            raise JobError(f"there is no column {name!r} in the output", where=WHERE, do=near(name, written))
        if names.count(name) > 1:
            raise JobError(f"column {name!r} is named twice", where=WHERE, do="name each column once")
        if name.startswith(("_", ".")) or any(c in name for c in "=/\0"):
            raise JobError(
                f"column {name!r} cannot name folders",
                where=WHERE,
                why="readers of folders overlook names that begin with _ or ., and cut names at =",
                do="give it another name with the operator Rename",
            )
        dtype = written[name].dtype
        if not (
            pa.types.is_string(dtype)
            or pa.types.is_integer(dtype)
            or pa.types.is_boolean(dtype)
            or pa.types.is_date32(dtype)
        ):
            raise JobError(
                f"column {name!r} cannot name folders",
                where=WHERE,
                why=f"it is {dtype_name(dtype)}, the values of which are not names",
                do="give a column of text, integers, bools or dates: " + _instead(dtype),
            )
    if names and len(names) == len(written):
        raise JobError(
            "no column is left for the files",
            where=WHERE,
            why="every column of the output names folders",
            do="leave one out",
        )


def _instead(dtype: pa.DataType) -> str:
    if pa.types.is_temporal(dtype):
        return "DateParts makes integers of times"
    if pa.types.is_floating(dtype) or pa.types.is_decimal(dtype):
        return "Bucketize makes integers of numbers"
    return "Categorify makes ids of values" if not pa.types.is_list(dtype) else "a list has no single value"


def drop_folder_columns(schema: Schema, names: Sequence[str]) -> Schema:
    """The columns that are in the files themselves."""
    return Schema(column for name, column in schema.items() if name not in names)


def folder_name(name: str, value: object) -> str:
    """The folder of a value.

    >>> folder_name("kind", "a/b c"), folder_name("n", -3), folder_name("new", True), folder_name("kind", None)
    ('kind=a%2Fb%20c', 'n=-3', 'new=true', 'kind=__HIVE_DEFAULT_PARTITION__')
    """
    if value is None:
        return f"{name}={NULL}"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    folder = f"{name}={quote(text, safe='')}"
    if text == NULL or len(folder.encode()) > MOST_NAME:
        why = "readers take this text for null" if text == NULL else f"a folder's name has at most {MOST_NAME} bytes"
        raise DataError(
            f"a value of column {name!r} cannot name a folder",
            where=f"{WHERE}: {text[:80]!r}",
            why=why,
            do="replace the value, or do not partition on this column",
        )
    return folder


def check_number(columns: pa.Table, where: str) -> None:
    """Refuse columns with far too many values, as soon as some of the rows show it; `where` names these rows."""
    combinations = _codes(columns)[1]
    if len(combinations) > MOST_FOLDERS:
        raise _too_many(columns, len(combinations), where)


def _too_many(columns: pa.Table, number: int, where: str) -> JobError:
    names = ", ".join(columns.column_names)
    return JobError(
        f"{number:,} folders would be made of {names}",
        where=f"{WHERE}, {where}",
        why=f"{columns.num_rows:,} rows have that many values; at most {MOST_FOLDERS:,} are allowed",
        do="take fewer columns, or ones of fewer values: HashBucket and Bucketize make them",
    )


def folders(columns: pa.Table, where: str = "") -> tuple[np.ndarray, list[tuple[str, int, int]]]:
    """(rows by folder, each folder with its rows [start, stop) among them): rows of a folder keep their order.

    >>> folders(pa.table({"k": ["b", None, "b", "a"]}))
    (array([1, 3, 0, 2]), [('k=__HIVE_DEFAULT_PARTITION__', 0, 1), ('k=a', 1, 2), ('k=b', 2, 4)])
    """
    codes, combinations = _codes(columns)
    if len(combinations) > MOST_FOLDERS:
        raise _too_many(columns, len(combinations), where)
    names = ["/".join(folder_name(n, v) for n, v in zip(columns.column_names, c, strict=True)) for c in combinations]
    by_name = sorted(range(len(names)), key=names.__getitem__)
    rank = np.empty(len(names), dtype=np.int64)
    rank[by_name] = np.arange(len(names))
    places = rank.take(codes)
    ends = np.cumsum(np.bincount(places, minlength=len(names)))
    starts = ends - np.diff(ends, prepend=0)
    ranges = [(names[i], int(starts[r]), int(ends[r])) for r, i in enumerate(by_name)]
    return np.argsort(places, kind="stable"), ranges


def _codes(columns: pa.Table) -> tuple[np.ndarray, list[tuple[Any, ...]]]:
    """(the number of each row's combination of values, the combinations in the order of their numbers)."""
    codes = np.zeros(columns.num_rows, dtype=np.int64)
    combinations = np.zeros((1, 0), dtype=np.int64)
    dictionaries = []
    for column in columns.columns:
        plain = column.combine_chunks()
        encoded = (
            plain.dictionary_encode(null_encoding="encode")
            if columns.num_rows
            else pa.array([], plain.type).dictionary_encode()
        )
        dictionary = encoded.dictionary.to_pylist()
        both = codes * max(len(dictionary), 1) + np.asarray(encoded.indices, dtype=np.int64)
        seen, codes = np.unique(both, return_inverse=True)
        before, own = np.divmod(seen, max(len(dictionary), 1))
        combinations = np.column_stack([combinations.take(before, axis=0), own])
        dictionaries.append(dictionary)
    values = [tuple(d[int(i)] for d, i in zip(dictionaries, row, strict=True)) for row in combinations]
    return codes, values if columns.num_rows else []


def advice(parts: Sequence[Mapping[str, Any]], files: int) -> str:
    """Advice where folders divide the rows among very many small files; else an empty text."""
    rows = sum(part["rows"] for part in parts)
    if len(parts) <= 1000 or rows // len(parts) >= 10_000:
        return ""
    return (
        f"{len(parts):,} parts of {rows // len(parts):,} rows on average: folders times files ({files:,}); "
        "fewer output.files, or partition_on with fewer values, make fewer and larger ones"
    )


# Reading


def parse_folder_columns(
    paths: Sequence[str], sources: Sequence[str], missing: str | None = None
) -> dict[str, list[str | None]]:
    """Column -> its value for each file, from the names of folders below the sources; `missing` without such a folder.

    >>> parse_folder_columns(["/d/day=1/a.csv", "/d/day=%2Bx/b.csv"], ["/d"])
    {'day': ['1', '+x']}
    >>> parse_folder_columns(["/d/day=1/a.csv"], ["/d/day=1/a.csv"])
    {}
    """
    bases = sorted((_base(source) for source in sources), key=len, reverse=True)
    by_file = [_values(path, next((base for base in bases if path.startswith(base)), path)) for path in paths]
    names = dict.fromkeys(name for values in by_file for name in values)
    return {name: [values.get(name, missing) for values in by_file] for name in names}


def _base(source: str) -> str:
    """The path below which names of folders are values: the source itself, or the folder of its first pattern."""
    plain = re.split(r"[*?\[]", source, maxsplit=1)[0]
    return plain.rpartition("/")[0] + "/" if plain != source else source.rstrip("/") + "/"


def _values(path: str, base: str) -> dict[str, str | None]:
    folders = [part.partition("=") for part in path[len(base) :].split("/")[:-1] if "=" in part]
    return {name: None if value == NULL else unquote(value) for name, _, value in folders if name}


def column_of(name: str, values: Sequence[str | None], declared: str | None) -> Column:
    """The column of a folder's name: of the declared type, else integers, dates or bools if all values are, else text.

    >>> [column_of("c", v, None).dtype for v in (["1", None], ["007"], ["2024-01-31"], ["true", "false"], [None])]
    [DataType(int64), DataType(string), DataType(date32[day]), DataType(bool), DataType(string)]
    """
    if declared is not None:
        return Column(name, plain_type(parse_dtype(declared)))
    texts = {value for value in values if value is not None}
    for dtype in (pa.int64(), pa.date32(), pa.bool_()) if texts else ():
        try:
            typed = pa.array(sorted(texts)).cast(dtype).to_pylist()
        except pa.ArrowInvalid:
            continue
        if {folder_name("", value)[1:] for value in typed} == {quote(value, safe="") for value in texts}:
            return Column(name, dtype)
    return Column(name, pa.string())


def convert_folder_values(values: Sequence[str | None], dtype: pa.DataType, declared: bool = False) -> pa.Array:
    """Values of folders' names as their column's type; a DataError for a value that is not of this type."""
    places = {value: place for place, value in enumerate(dict.fromkeys(values))}
    distinct = pa.concat_arrays([constant(value, dtype, 1, declared) for value in places])
    return distinct.take(pa.array([places[value] for value in values]))


def constant(value: str | None, dtype: pa.DataType, rows: int, declared: bool = False) -> pa.Array:
    """A folder's value repeated for so many rows; a DataError if it is not of the column's type, or if its type is not
    `declared` and the value would become another one.

    >>> constant("07", pa.int64(), 2, declared=True).to_pylist()
    [7, 7]
    """
    if value is None:
        return pa.nulls(rows, dtype)
    try:
        typed = pa.scalar(value).cast(dtype)
        if pa.types.is_integer(dtype) and not declared and str(typed) != value:
            raise DataError(
                f"{value!r} in a folder's name would be the same as {str(typed)!r}",
                where="source.path",
                why=f"the column is {dtype_name(dtype)}",
                do=f"rename the folder, or name the type of the column in source.schema: "
                f"{dtype_name(dtype)} takes them as one value, string keeps them apart",
            )
        return pa.repeat(typed, rows)
    except pa.ArrowInvalid:
        raise DataError(
            f"{value!r} in a folder's name is not of type {dtype_name(dtype)}",
            where="source.path",
            do="give the column another type in source.schema",
        ) from None
