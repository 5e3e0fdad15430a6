"""Limits of data from outside, checked before the data are used; also whether Arrow's arrays are valid.

A few bytes of a file can promise, or decompress to, more than any memory holds.
"""

from __future__ import annotations

import resource
from functools import cache

import psutil
import pyarrow as pa

from tasks.core.dtypes import MOST_DEPTH, leaf_type
from tasks.core.plan import ReadOptions
from tasks.core.units import binary_amount
from tasks.errors import DataError

MOST_RECORD_BYTES = 16 * 2**20
MOST_COLUMNS = 100_000
MOST_ROWS = 2**48  # of a row group or block: more than any file has


def record_limit(options: ReadOptions) -> int:
    """Return the bytes that one record of a text file may have: `source.max_record_bytes`."""
    return int(options.get("max_record_bytes") or MOST_RECORD_BYTES)


def block_limit(options: ReadOptions) -> int:
    """Return the bytes that may be decoded at once: `source.max_block_bytes`, else a quarter of what `_memory` says."""
    return int(options.get("max_block_bytes") or _memory() // 4)


@cache
def _memory() -> int:
    """Return the bytes that this process may use: the least of host memory, RLIMIT_AS and the container's limit."""
    known = [psutil.virtual_memory().total, resource.getrlimit(resource.RLIMIT_AS)[0]]
    try:
        with open("/sys/fs/cgroup/memory.max") as file:  # noqa: PTH123
            known.append(int(file.read()))
    except (OSError, ValueError):  # no container, or none with a limit
        pass
    return min(size for size in known if size > 0)  # an address space without a limit is -1


def check_block(path: str, nbytes: int, options: ReadOptions, what: str) -> None:
    """Raise a DataError if a block decodes to more bytes than `source.max_block_bytes`."""
    limit = block_limit(options)
    if nbytes > limit:
        raise make_block_error(path, f"{what} has {binary_amount(nbytes)} decoded", limit)


def make_block_error(path: str, why: str, limit: int) -> DataError:
    """Make the error for a block that decodes to more bytes than `limit`."""
    return DataError(
        "a file decodes to more than is read at once",
        where=path,
        why=f"{why}; source.max_block_bytes is {binary_amount(limit)}"
        " (if the job does not set it: a quarter of the memory that a process may use)",
        do="write the file in smaller pieces (several files, smaller blocks, text that is not compressed), or"
        " set source.max_block_bytes higher if the data are right and there is memory for them",
    )


def record_too_long(path: str, limit: int) -> DataError:
    """Make the error for a text file with a record of more than `limit` bytes."""
    return DataError(
        f"a record of a text file is longer than {binary_amount(limit)}",
        where=path,
        why=f"source.max_record_bytes is {binary_amount(limit)} "
        f"(if the job does not set it: {binary_amount(MOST_RECORD_BYTES)}); "
        "a line end or a closing quote may be missing",
        do="fix the file, or set source.max_record_bytes higher if its records are that long",
    )


def check_lines(data: bytes, path: str, options: ReadOptions) -> None:
    """Raise a DataError if a line has more bytes than `source.max_record_bytes`.

    From each line end, search backwards from the last place where the next one may be: few bytes are looked at.
    """
    limit = record_limit(options)
    start = 0
    while len(data) - start > limit:
        end = data.rfind(b"\n", start, start + limit + 1)
        end = end if end >= 0 else data.rfind(b"\r", start, start + limit + 1)
        if end < 0:
            raise record_too_long(path, limit)
        start = end + 1


def check_columns(count: int, path: str) -> None:
    """Raise a DataError for more columns than any table has."""
    if count > MOST_COLUMNS:
        raise DataError(
            f"a file has {count:,} columns",
            where=path,
            why=f"rowmill takes up to {MOST_COLUMNS:,}; a wrong delimiter or a missing line end makes too many",
            do="check source.delimiter and source.format, or write the values as lists",
        )


def depth_of(dtype: pa.DataType) -> int:
    """Count how deep lists and structs lie in each other; without recursion, whose limit a file could exceed."""
    deepest = 0
    todo = [(dtype, 0)]
    while todo:
        here, depth = todo.pop()
        deepest = max(deepest, depth)
        todo += [(here.field(i).type, depth + 1) for i in range(here.num_fields)]
    return deepest


def readable(schema: pa.Schema) -> pa.Schema:
    """Check that all names of a schema are text; return it without metadata.

    UnicodeDecodeError, which is a ValueError, for a name that is not.
    """
    todo = list(schema)
    while todo:
        field = todo.pop()
        _ = field.name  # decodes the name
        todo += [field.type.field(i) for i in range(field.type.num_fields)]
    return schema.remove_metadata()


def check_depth(schema: pa.Schema, path: str) -> None:
    """Raise a DataError for values nested deeper than `MOST_DEPTH`."""
    for field in schema:
        if depth_of(field.type) > MOST_DEPTH:
            raise make_depth_error(path, f"column {field.name!r}")


def make_depth_error(path: str, what: str) -> DataError:
    return DataError(
        f"{what} is nested more than {MOST_DEPTH} deep",
        where=path,
        why="lists and objects in each other to that depth are not a table",
        do="fix the file, or leave it out of source.path",
    )


def validate_table(table: pa.Table, encoded: bool = False) -> pa.Table:
    """Validate the arrays of a table (offsets, sizes, dictionary indices, UTF-8) and return it.

    pa.ArrowInvalid, with the name of the column, if an array is damaged. `encoded`: a decoder made and checked the
    dictionary indices, so of encoded columns only the values of the dictionaries are validated. Numbers cost no time,
    texts about that of copying them.
    """
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            for chunk in column.chunks:
                dictionary = encoded and pa.types.is_dictionary(chunk.type)
                (chunk.dictionary if dictionary else chunk).validate(full=_has_contents_to_check(chunk.type))
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(f"column {name!r}: {str(error).splitlines()[0]}") from None
    return table


def _has_contents_to_check(dtype: pa.DataType) -> bool:
    """Whether contents can be invalid (lists, texts, dictionaries): of numbers, only the length of the array can."""
    return not pa.types.is_primitive(leaf_type(dtype)) or leaf_type(dtype) is not dtype
