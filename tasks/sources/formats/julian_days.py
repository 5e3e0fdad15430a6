"""Days of the Julian calendar, before 1582-10-15, in Parquet files of Spark 2, and of Spark 3 in its legacy mode.

Arrow and cuDF read all days in the Gregorian calendar, in which 0001-01-01 of Spark 2 is 0000-12-30. The footer says
who wrote a file, as Spark itself decides it (DataSourceUtils.getRebaseSpec): without a version it was Spark 2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.core.dtypes import is_list
from tasks.errors import DataError

SPARK = b"org.apache.spark."
VERSION, ZONE, SCHEMA = SPARK + b"version", SPARK + b"timeZone", SPARK + b"sql.parquet.row.metadata"
LEGACY = {"INT96": (SPARK + b"legacyINT96", (3, 1)), "": (SPARK + b"legacyDateTime", (3, 0))}  # key, first version
GREGORIAN = -141_427  # the day 1582-10-15, in days since 1970
JULIAN_DAY = 2_440_588  # the number of 1970-01-01
PER_DAY = {"s": 86_400, "ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}
STATED_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
UTC = {"UTC", "Etc/UTC", "Z", "GMT", "Etc/GMT"}


def columns_of(metadata: pq.FileMetaData) -> list[str]:
    """The columns of a file with days of the Julian calendar, as far as its footer does not show that it has none."""
    keys = metadata.metadata or {}
    legacy = [kind for kind in LEGACY if _is_legacy(keys, kind)]
    if not legacy:  # most files: a footer of thousands of columns is not searched at each read
        return []
    names = set[str]()
    for number in range(metadata.num_columns):
        described = metadata.schema.column(number)
        kind = "INT96" if described.physical_type == "INT96" else ""
        is_time = kind or described.logical_type.type in ("DATE", "TIMESTAMP")
        if is_time and kind in legacy and _may_be_julian(metadata, number):
            names.add(described.path.split(".")[0])
    return sorted(names)


def _is_legacy(keys: Mapping[bytes, bytes], kind: str) -> bool:
    key, since = LEGACY[kind]
    if VERSION not in keys:
        return SCHEMA in keys
    numbers = keys[VERSION].decode(errors="replace").split(".")[:2]
    version = tuple(int(number) if number.isdecimal() else 0 for number in numbers)
    return version < since or key in keys


def _may_be_julian(metadata: pq.FileMetaData, number: int) -> bool:
    """Whether the least value of a column, as the footer states it, is before the Gregorian calendar, or not stated."""
    described = metadata.schema.column(number)
    if described.physical_type == "INT96":
        return True
    first = GREGORIAN
    if described.logical_type.type == "TIMESTAMP":
        first *= PER_DAY[STATED_UNITS[json.loads(described.logical_type.to_json())["timeUnit"]]]
    for group in range(metadata.num_row_groups):
        shown = metadata.row_group(group).column(number).statistics
        if shown is None or not shown.has_min_max or shown.min_raw < first:
            return True
    return False


def in_gregorian(table: pa.Table, names: Sequence[str], metadata: pq.FileMetaData, path: str) -> pa.Table:
    """The table with the days of these columns in the Gregorian calendar.

    A DataError for times that were not written in UTC, whose day is that of another zone, and for lists and structs.
    """
    zone = (metadata.metadata or {}).get(ZONE, b"?").decode(errors="replace")
    for name in names:
        column = table.column(name)
        if not _has_julian(column):
            continue
        if not pa.types.is_date32(column.type) and not (pa.types.is_timestamp(column.type) and zone in UTC):
            raise _refused(name, path, metadata)
        chunks = [_move_days(chunk) for chunk in column.chunks]
        table = table.set_column(table.column_names.index(name), name, pa.chunked_array(chunks, column.type))
    return table


def _has_julian(column: pa.ChunkedArray) -> bool:
    while is_list(column.type):
        column = pc.list_flatten(column)
    if pa.types.is_struct(column.type):
        fields = [pc.struct_field(column, number) for number in range(column.type.num_fields)]
        return any(map(_has_julian, fields))
    if not pa.types.is_date32(column.type) and not pa.types.is_timestamp(column.type):
        return False
    least = pc.min(column.cast(_count_type(column.type))).as_py()
    return least is not None and least < GREGORIAN * _per_day(column.type)


def _count_type(dtype: pa.DataType) -> pa.DataType:
    return pa.int32() if pa.types.is_date32(dtype) else pa.int64()


def _per_day(dtype: pa.DataType) -> int:
    return 1 if pa.types.is_date32(dtype) else PER_DAY[dtype.unit]


def _move_days(values: pa.Array) -> pa.Array:
    """Dates or times with the year, month and day that they have in the Julian calendar, up to its end."""
    per_day = _per_day(values.type)
    stored = values.cast(_count_type(values.type))
    counts = stored.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    days = counts // per_day
    years = (4 * (days + JULIAN_DAY + 32_082) + 3) // 1461 - 4800  # of the Julian calendar, from March on
    ahead = years // 100 - years // 400 - 2
    moved = np.where(days < GREGORIAN, counts - ahead * per_day, counts)
    return pa.array(moved, stored.type, mask=values.is_null().to_numpy(zero_copy_only=False)).cast(values.type)


def _refused(name: str, path: str, metadata: pq.FileMetaData) -> DataError:
    kinds = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    is_wide = any(one.path.split(".")[0] == name and one.physical_type == "INT96" for one in kinds)
    mode = "int96RebaseMode" if is_wide else "datetimeRebaseMode"
    return DataError(
        f"column {name!r} has times of the Julian calendar",
        where=path,
        why="Spark 2, or Spark 3 in its legacy mode, wrote them: before 1582-10-15 its days are other ones, in a zone "
        "that is not known to be UTC",
        do=f"write the file again in Spark 3, with spark.sql.parquet.{mode}InRead=LEGACY and "
        f"spark.sql.parquet.{mode}InWrite=CORRECTED; or leave the column out",
    )
