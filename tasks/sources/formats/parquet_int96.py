"""Times of Parquet in 96 bits, as Spark, Hive and Impala write them: a Julian day and the nanoseconds of that day.

They are read as nanoseconds since 1970 in 64 bits, which reach from 1677 to 2262; Arrow wraps those beyond.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.core.dtypes import is_list, leaf_type, schema_advice
from tasks.errors import DataError

LAST = (2**63 - 1) // 1000  # microseconds since 1970 that are as many whole nanoseconds in 64 bits; also before 1970


def columns_of(schema: pq.ParquetSchema) -> list[str]:
    """The columns whose values, or elements of lists, are stored in 96 bits."""
    described = (schema.column(i) for i in range(len(schema)))
    return sorted({one.path.split(".")[0] for one in described if one.physical_type == "INT96"})


def in_range(table: pa.Table, micros: pa.Table, wanted: pa.Schema, path: str) -> pa.Table:
    """The table, with those columns of `micros`, the same times in whole microseconds, that nanoseconds cannot hold.

    A DataError names a column of these that is not wanted in another unit.
    """
    for name in micros.column_names:
        first, last = _bounds(micros.column(name))
        if first >= -LAST and last <= LAST:
            continue
        leaf = leaf_type(wanted.field(name).type)
        if not pa.types.is_timestamp(leaf) or leaf.unit == "ns":
            raise _beyond(name, wanted.field(name).type, first if first < -LAST else last, path)
        table = table.set_column(table.column_names.index(name), name, micros.column(name))
    return table


def _bounds(times: pa.ChunkedArray) -> tuple[int, int]:
    """The first and the last of the times, also of those in lists, in microseconds since 1970; (0, 0) of none."""
    while is_list(times.type):
        times = pc.list_flatten(times)
    bounds = pc.min_max(times.cast(pa.int64()))
    return bounds["min"].as_py() or 0, bounds["max"].as_py() or 0


def _beyond(name: str, dtype: pa.DataType, micros: int, path: str) -> DataError:
    shown = pc.strftime(pa.scalar(micros, pa.timestamp("us")), "%Y-%m-%d").as_py()
    wanted = pa.list_(pa.timestamp("us")) if is_list(dtype) else pa.timestamp("us")
    return DataError(
        f"column {name!r} has times that nanoseconds cannot hold",
        where=path,
        why=f"{shown} is not between 1677-09-21 and 2262-04-11; files of Spark and Hive (INT96) can hold it",
        do=f"read microseconds: {schema_advice(name, wanted)}",
    )
