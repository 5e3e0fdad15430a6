"""Types in expressions: families of Arrow types, and units of times."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa

from tasks.core.dtypes import is_list

INT64 = pa.int64()
UINT64 = pa.uint64()
FLOAT64 = pa.float64()
BOOL = pa.bool_()
STRING = pa.string()
NANOSECONDS = {"day": 86_400 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


@lru_cache(maxsize=4096)
def family(dtype: pa.DataType) -> str:
    """The family of a type, by which the rules decide: bool, int, float, string, time, decimal, list, none or other."""
    if pa.types.is_timestamp(dtype) or pa.types.is_date32(dtype):
        return "time"
    tests = {
        "bool": pa.types.is_boolean,
        "int": pa.types.is_integer,
        "float": pa.types.is_floating,
        "none": pa.types.is_null,
        "string": pa.types.is_string,
        "decimal": pa.types.is_decimal,
        "list": is_list,
    }
    return next((name for name, test in tests.items() if test(dtype)), "other")


def time_type(unit: str, zone: str | None = None) -> pa.DataType:
    """The time type of a unit, which for day is that of dates."""
    return pa.date32() if unit == "day" else pa.timestamp(unit, zone)


def unit_of(dtype: pa.DataType) -> str:
    """The unit of a time type: day for dates, else s, ms, us or ns."""
    return "day" if pa.types.is_date32(dtype) else dtype.unit
