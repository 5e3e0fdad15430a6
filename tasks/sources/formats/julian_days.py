"""Days of the Julian calendar, before 1582-10-15, in files of Spark 2, of Spark 3's legacy mode, and of ORC for Java.

Arrow and cuDF read all days in the Gregorian calendar, in which 0001-01-01 of Spark 2 is 0000-12-30. Of Parquet and
Avro the metadata say who wrote a file, as Spark itself decides it (DataSourceUtils.getRebaseSpec): without a version it
was Spark 2. Of ORC the footer says it: all versions of Spark write dates there as Java's ORC does, in both calendars.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.core.dtypes import is_list
from tasks.errors import DataError
from tasks.sources.formats.orc_footer import Footer

SPARK = b"org.apache.spark."
VERSION = SPARK + b"version"
ZONE = SPARK + b"timeZone"
SCHEMA = SPARK + b"sql.parquet.row.metadata"
LEGACY = {"INT96": (SPARK + b"legacyINT96", (3, 1)), "": (SPARK + b"legacyDateTime", (3, 0))}  # key, first version
AVRO_RECORD = "topLevelRecord"  # the name that Spark gives to the record of a row
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
    if VERSION not in keys:
        return SCHEMA in keys
    return _is_legacy_version(keys, kind)


def _is_legacy_version(keys: Mapping[bytes, bytes], kind: str) -> bool:
    key, since = LEGACY[kind]
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


def of_parquet(table: pa.Table, names: Sequence[str], metadata: pq.FileMetaData, path: str) -> pa.Table:
    """The table of a Parquet file with the days of these columns in the Gregorian calendar."""
    if not names:
        return table
    wide = {c.path.split(".")[0] for c in map(metadata.schema.column, range(metadata.num_columns)) if _is_wide(c)}
    advice = {name: _write_anew("parquet.int96" if name in wide else "parquet.datetime") for name in names}
    return _in_gregorian(table, advice, (metadata.metadata or {}).get(ZONE, b""), path)


def _is_wide(column: pq.ColumnSchema) -> bool:
    return bool(column.physical_type == "INT96")


def of_avro(table: pa.Table, record: str, metadata: Mapping[str, bytes], path: str) -> pa.Table:
    """The table of an Avro file, whose record has this name, with its days in the Gregorian calendar."""
    keys = {key.encode(): value for key, value in metadata.items()}
    is_legacy = _is_legacy_version(keys, "") if VERSION in keys else record.rpartition(".")[2] == AVRO_RECORD
    if not is_legacy:
        return table
    advice = dict.fromkeys(table.column_names, _write_anew("avro.datetime"))
    return _in_gregorian(table, advice, keys.get(ZONE, b""), path)


def of_orc(table: pa.Table, footer: Callable[[], Footer], path: str) -> pa.Table:
    """The table of an ORC file with its dates in the Gregorian calendar. Its times are all after 1677."""
    advice = "write the column as Parquet; or leave it out"
    names = [name for name in table.column_names if _has_julian(table.column(name))]
    if not names:  # of nearly all files, whose footer is not read again
        return table
    try:
        is_julian = footer().is_julian
    except ValueError:  # of a codec that is not read here
        raise _make_calendar_error(names[0], path, advice) from None
    return _in_gregorian(table, dict.fromkeys(names, advice), b"", path) if is_julian else table


def _write_anew(kind: str) -> str:
    """What to do about times whose zone is not known, in files of a kind for which Spark has settings."""
    mode = f"spark.sql.{kind}RebaseModeIn"
    return f"write the file again in Spark 3, with {mode}Read=LEGACY and {mode}Write=CORRECTED; or leave the column out"


def _in_gregorian(table: pa.Table, advice: Mapping[str, str], zone: bytes, path: str) -> pa.Table:
    """The table with the days of these columns in the Gregorian calendar.

    A DataError with the advice of the column for times that were not written in UTC, whose day is that of another zone,
    and for lists and structs.
    """
    is_utc = zone.decode(errors="replace") in UTC
    for name, do in advice.items():
        column = table.column(name)
        if not _has_julian(column):
            continue
        if not pa.types.is_date32(column.type) and not (pa.types.is_timestamp(column.type) and is_utc):
            raise _make_calendar_error(name, path, do)
        chunks = [_move_days(chunk) for chunk in column.chunks]
        table = table.set_column(table.column_names.index(name), name, pa.chunked_array(chunks, column.type))
    return table


def _has_julian(column: pa.ChunkedArray) -> bool:
    while is_list(column.type) or pa.types.is_map(column.type):
        if pa.types.is_map(column.type):
            column = pa.chunked_array([chunk.items for chunk in column.chunks], column.type.item_type)
        else:
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


def _make_calendar_error(name: str, path: str, do: str) -> DataError:
    return DataError(
        f"column {name!r} has times of the Julian calendar",
        where=path,
        why="Spark 2, Spark 3 in its legacy mode, or another program in Java wrote them: before 1582-10-15 its days "
        "are other ones; they are read where they are dates, or times of UTC, in columns that are not nested",
        do=do,
    )
