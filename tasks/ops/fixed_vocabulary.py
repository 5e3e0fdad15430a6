"""Vocabularies that a job gives (`vocabs` of Categorify) in place of learned ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tasks.core.dtypes import dtype_name
from tasks.errors import DataError
from tasks.ops.continuous import DURATION


def check_values(vocabs: Mapping[str, Sequence[Any]] | Sequence[Any] | None) -> None:
    """Raise a ValueError for a vocabulary with a null, or with a value that occurs twice."""
    for values in vocabs.values() if isinstance(vocabs, Mapping) else [vocabs or []]:
        seen = set()
        for value in (tuple(v) if isinstance(v, list) else v for v in values):
            if any(part != part for part in (value if isinstance(value, tuple) else (value,))):
                raise ValueError(
                    "vocabs holds NaN, which is read as null: write None in a tuple, and leave it out alone"
                )
            if value is None or (isinstance(value, tuple) and all(v is None for v in value)):
                raise ValueError("vocabs holds a null, which has the id 1 anyway")
            if value in seen:
                raise ValueError(f"vocabs holds {value!r} twice")
            seen.add(value)


def to_typed_columns(vocabulary: Sequence[Any], types: Sequence[pa.DataType], name: str) -> list[pa.Array]:
    """The values as arrays of the columns' types; texts become times and decimals. DataError if they do not fit."""
    try:
        if len(types) == 1:
            return [_to_array(list(vocabulary), types[0])]
        rows = [tuple(value) for value in vocabulary]
        if any(len(row) != len(types) for row in rows):
            raise ValueError(f"every value is a tuple of {len(types)}")
        return [_to_array([row[i] for row in rows], dtype) for i, dtype in enumerate(types)]
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise DataError(
            f"Categorify: vocabs does not fit {name!r} of type {', '.join(dtype_name(t) for t in types)}",
            why=str(error),
            do="give values of the column's type",
        ) from None


def make_learned_values(vocabulary: Sequence[Any], types: Sequence[pa.DataType], name: str) -> dict[str, Any]:
    """What Categorify has learned where it does not count: the values in their order, without counts."""
    columns = to_typed_columns(vocabulary, types, name)
    counts = pa.nulls(len(vocabulary), pa.int64())
    table = pa.table([*columns, counts], [*(f"v{i}" for i in range(len(columns))), "count"])
    return {"values": table, "size": len(vocabulary), "nulls": 0}


def _to_array(values: list[Any], dtype: pa.DataType) -> pa.Array:
    if any(isinstance(v, str) for v in values) and (pa.types.is_temporal(dtype) or pa.types.is_decimal(dtype)):
        if pa.types.is_duration(dtype):
            return pa.array([v if v is None else DURATION.validate_python(v) for v in values], dtype)
        return pa.array([v if v is None else str(v) for v in values], pa.string()).cast(dtype)
    array = pa.array(values, dtype)
    if not pa.types.is_floating(dtype) and array.to_pylist() != values:
        raise ValueError("a value would change")
    return array
