"""Finds the places of values in a vocabulary, on the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pylibcudf as plc

from tasks.engines.algorithms.reductions import extremes, total
from tasks.engines.gpu.columns import (
    DECIMALS,
    Column,
    column,
    device,
    dtype,
    host,
    raw,
    renumber_rows,
    synchronize,
    take_values,
    valid_rows,
)
from tasks.engines.gpu.kernels.column_arrays import array_of
from tasks.engines.gpu.kernels.string_tables import StringPlaces, is_text
from tasks.engines.types import Array

DENSE = 1 << 26  # a table this long (256 MB) is always worth it


_IDS = cupy.ElementwiseKernel(
    "int64 code, bool null, int64 first, int64 outside, int64 missing",
    "T id",
    "id = (T)(null ? missing : code < 0 ? outside : code + first)",
    "vocabulary_ids",
)


class Lookup:
    """Finds the places of values in a vocabulary, -1 for other values. Built once, then used from any thread.

    `keys` are the distinct rows of the vocabulary, one Arrow array per column; a null key matches nulls.
    """

    def __init__(self, keys: Sequence[pa.Array]) -> None:
        key_columns = [column(k) for k in keys]
        self.columns = [_OneColumn(k) for k in key_columns]
        self.size = len(key_columns[0])
        self.steps: list[tuple[int, _Numbers]] = []
        if len(key_columns) > 1:
            codes = self.columns[0].codes(key_columns[0])
            for one, key in zip(self.columns[1:], key_columns[1:], strict=True):
                mixed = codes * one.distinct + one.codes(key)
                inner = _Numbers(cupy.unique(mixed))
                self.steps.append((one.distinct, inner))
                codes = inner.places_of(mixed)
            self.places = cupy.empty(self.size, dtype=cupy.int64)
            self.places[codes] = cupy.arange(self.size)
        synchronize()

    def codes(self, columns: Sequence[Column]) -> cupy.ndarray:
        """int64 place of every row in the vocabulary, -1 where it is not there."""
        codes = self.columns[0].codes(columns[0])
        if len(self.columns) == 1:
            return codes
        for (distinct, inner), one, values in zip(self.steps, self.columns[1:], columns[1:], strict=True):
            more = one.codes(values)
            mixed = cupy.where((codes < 0) | (more < 0), -1, codes * distinct + more)
            codes = inner.places_of(mixed)
        if not self.size:
            return codes
        return cupy.where(codes < 0, -1, self.places.take(cupy.maximum(codes, 0)))


def vocabulary_ids(
    codes: Array, null: Array | None, first: int, outside: int | Array, missing: int, dtype: type, counted: bool
) -> tuple[cupy.ndarray, int]:
    """(`first` + code; `outside` (a number, or one for each row) where the code is -1, `missing` where null; how many
    codes are -1, if they are `counted`)."""
    mask = np.bool_(False) if null is None else null
    rest = outside if isinstance(outside, cupy.ndarray) else np.int64(outside)
    ids = _IDS(codes, mask, np.int64(first), rest, np.int64(missing), cupy.empty(len(codes), dtype))
    return ids, total(codes < 0) if counted else 0


class _Numbers:
    """Places of distinct int64 keys: a dense table for a small range, else sorted keys and binary search."""

    def __init__(self, keys: cupy.ndarray) -> None:
        self.dense: Any = None
        self.size = len(keys)
        low, high = extremes(keys) if self.size else (0, -1)
        self.low: int = low
        span = high - low + 1
        if span < max(DENSE, 4 * self.size):
            self.dense = cupy.full(span, -1, dtype=cupy.int32)
            self.dense[keys - self.low] = cupy.arange(self.size, dtype=cupy.int32)
        else:
            self.order = cupy.argsort(keys)
            self.sorted = keys[self.order]

    def places_of(self, keys: cupy.ndarray) -> cupy.ndarray:
        """int64 place of each key, -1 for others."""
        if not self.size:
            return cupy.full(len(keys), -1, dtype=cupy.int64)
        if self.dense is not None:
            inside = (keys >= self.low) & (keys <= self.low + len(self.dense) - 1)
            at = cupy.where(inside, keys - self.low, 0)
            return cupy.where(inside, self.dense.take(at), -1).astype(cupy.int64)
        at = cupy.minimum(cupy.searchsorted(self.sorted, keys), self.size - 1)
        return cupy.where(self.sorted.take(at) == keys, self.order.take(at), -1)


class _OneColumn:
    """Codes of one column's values among the distinct values of `keys`, in order of appearance."""

    def __init__(self, keys: Column) -> None:
        self.dtype = keys.dtype
        self.type = dtype(keys)
        self.text = _is_text(keys)
        distinct = _strings(keys) if self.text else keys
        table = plc.Table([device(distinct)])
        keep = plc.stream_compaction.DuplicateKeepOption.KEEP_FIRST
        equal = plc.types.NullEquality.EQUAL
        first = plc.stream_compaction.distinct_indices(table, keep, equal, plc.types.NanEquality.ALL_EQUAL)
        distinct = take_values(distinct, cupy.sort(array_of(first)))
        self.distinct = len(distinct)
        valid = valid_rows(distinct)
        self.null = -1 if valid is None else int(cupy.flatnonzero(~valid)[0])
        self.not_null = None if valid is None else cupy.flatnonzero(valid)
        self.keys = distinct if self.not_null is None else take_values(distinct, self.not_null)
        if self.text:
            self.strings = StringPlaces(self.keys)
        else:
            self.numbers = _Numbers(_bits(self.keys))

    def codes(self, values: Column) -> cupy.ndarray:
        """int64 code of each value, -1 for others; null has the code of a null key."""
        if self.text:
            places = self.strings.of(_strings(values))
        else:
            places = self._number_places(values)
        if self.not_null is not None and len(self.not_null):
            places = cupy.where(places < 0, -1, self.not_null.take(cupy.maximum(places, 0)))
        if self.text and self.null < 0:  # StringPlaces gives -1 for null already
            return places
        valid = valid_rows(values)
        return places if valid is None else cupy.where(valid, places, self.null)

    def _number_places(self, values: Column) -> cupy.ndarray:
        """Values of another type are compared by value: what the vocabulary's type cannot hold exactly is not in it."""
        here = dtype(values)
        if here == self.type:
            return self.numbers.places_of(_bits(values))
        if pa.types.is_null(here):
            return cupy.full(len(values), -1, dtype=cupy.int64)
        if pa.types.is_temporal(here) or pa.types.is_temporal(self.type):
            return self._time_places(host(values))
        converted = values.astype(self.dtype)
        exact = raw(converted.astype(values.dtype)) == raw(values)
        bits = _bits(converted)
        kinds = [getattr(d, "kind", "") for d in (values.dtype, self.dtype)]
        if kinds == ["f", "i"]:
            exact &= cupy.abs(raw(values)) < 2.0**63
        elif sorted(kinds) == ["i", "u"]:
            exact &= bits >= 0  # the same bits would mean another number
        return cupy.where(exact, self.numbers.places_of(bits), -1)

    def _time_places(self, values: pa.Array) -> cupy.ndarray:
        """The same of times in another unit, kind or zone, by Arrow's casts."""
        converted = pc.cast(values, self.type, safe=False)
        same = pc.fill_null(pc.equal(pc.cast(converted, values.type, safe=False), values), False)
        exact = cupy.asarray(np.asarray(same).astype(bool))
        return cupy.where(exact, self.numbers.places_of(_bits(column(converted))), -1)


def _is_text(values: Column) -> bool:
    return isinstance(values.dtype, DECIMALS) or is_text(values)


def _strings(values: Column) -> Column:
    return renumber_rows(values.astype("str")) if isinstance(values.dtype, DECIMALS) else values


def _bits(values: Column) -> cupy.ndarray:
    """int64 keys, equal for equal values; null rows hold anything."""
    data = raw(values)
    if data.dtype.kind == "f":
        return (data.astype(cupy.float64) + 0.0).view(cupy.int64)
    return data.astype(cupy.int64, copy=False)
