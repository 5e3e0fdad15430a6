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

MAX_DENSE_RANGE = 1 << 26  # integers of a range up to this get a table (256 MB) with an entry per integer

_IDS = cupy.ElementwiseKernel(
    "int64 place, bool null, int64 first, int64 outside, int64 missing",
    "T id",
    "id = (T)(null ? missing : place < 0 ? outside : place + first)",
    "vocabulary_ids",
)


class Lookup:
    """Finds the places of values in a vocabulary, -1 for other values. Built once, then used from any thread.

    `keys` are the distinct rows of the vocabulary, one Arrow array per column; a null key matches nulls. Rows of
    several columns become one number as on the CPU: see `tasks.engines.cpu.lookup.Lookup`.
    """

    def __init__(self, keys: Sequence[pa.Array]) -> None:
        key_columns = [column(k) for k in keys]
        self.columns = [_OneColumn(k) for k in key_columns]
        self.size = len(key_columns[0])
        self.mixtures: list[tuple[int, _Numbers]] = []
        if len(key_columns) > 1:
            numbers = self.columns[0].find_places(key_columns[0])
            for key_column, key in zip(self.columns[1:], key_columns[1:], strict=True):
                mixed = numbers * key_column.distinct + key_column.find_places(key)
                mixture = _Numbers(cupy.unique(mixed))
                self.mixtures.append((key_column.distinct, mixture))
                numbers = mixture.find_places(mixed)
            self.place_of_number = cupy.empty(self.size, dtype=cupy.int64)
            self.place_of_number[numbers] = cupy.arange(self.size)
        synchronize()

    def find_places(self, columns: Sequence[Column]) -> cupy.ndarray:
        """Find the place of each row in the vocabulary, int64; -1 for a row that is not in the vocabulary."""
        numbers = self.columns[0].find_places(columns[0])
        if len(self.columns) == 1:
            return numbers
        for (distinct, mixture), key_column, values in zip(self.mixtures, self.columns[1:], columns[1:], strict=True):
            places = key_column.find_places(values)
            mixed = cupy.where((numbers < 0) | (places < 0), -1, numbers * distinct + places)
            numbers = mixture.find_places(mixed)
        if not self.size:
            return numbers
        return cupy.where(numbers < 0, -1, self.place_of_number.take(cupy.maximum(numbers, 0)))


def vocabulary_ids(
    places: Array, null: Array | None, first: int, outside: int | Array, missing: int, dtype: type, counted: bool
) -> tuple[cupy.ndarray, int]:
    """Make ids of places in a vocabulary; return (ids, number of places that are -1, or 0 if not `counted`).

    An id is `first` + place; `outside` (one number, or one per row) where the place is -1; `missing` where `null` is
    true. Counting makes the host wait for the GPU.
    """
    mask = np.bool_(False) if null is None else null
    outside_ids = outside if isinstance(outside, cupy.ndarray) else np.int64(outside)
    ids = _IDS(places, mask, np.int64(first), outside_ids, np.int64(missing), cupy.empty(len(places), dtype))
    return ids, total(places < 0) if counted else 0


class _Numbers:
    """Places of distinct int64 keys: a dense table for a small range, else sorted keys and binary search."""

    def __init__(self, keys: cupy.ndarray) -> None:
        self.dense: Any = None
        self.size = len(keys)
        low, high = extremes(keys) if self.size else (0, -1)
        self.low: int = low
        span = high - low + 1
        if span < max(MAX_DENSE_RANGE, 4 * self.size):
            self.dense = cupy.full(span, -1, dtype=cupy.int32)
            self.dense[keys - self.low] = cupy.arange(self.size, dtype=cupy.int32)
        else:
            self.order = cupy.argsort(keys)
            self.sorted = keys[self.order]

    def find_places(self, keys: cupy.ndarray) -> cupy.ndarray:
        """Find the place of each key, int64; -1 for a key that is not in the table."""
        if not self.size:
            return cupy.full(len(keys), -1, dtype=cupy.int64)
        if self.dense is not None:
            inside = (keys >= self.low) & (keys <= self.low + len(self.dense) - 1)
            entries = cupy.where(inside, keys - self.low, 0)
            return cupy.where(inside, self.dense.take(entries), -1).astype(cupy.int64)
        entries = cupy.minimum(cupy.searchsorted(self.sorted, keys), self.size - 1)
        return cupy.where(self.sorted.take(entries) == keys, self.order.take(entries), -1)


class _OneColumn:
    """Finds the places of values of one column among the distinct values of `keys`, in order of appearance."""

    def __init__(self, keys: Column) -> None:
        self.dtype = keys.dtype
        self.type = dtype(keys)
        self.is_text = _is_text(keys)
        distinct = _strings(keys) if self.is_text else keys
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
        if self.is_text:
            self.strings = StringPlaces(self.keys)
        else:
            self.numbers = _Numbers(_bits(self.keys))

    def find_places(self, values: Column) -> cupy.ndarray:
        """Find the place of each value, int64; -1 for a value that is not a key; a null has the place of a null key."""
        if self.is_text:
            places = self.strings.of(_strings(values))
        else:
            places = self._find_numbers(values)
        if self.not_null is not None and len(self.not_null):
            places = cupy.where(places < 0, -1, self.not_null.take(cupy.maximum(places, 0)))
        if self.is_text and self.null < 0:  # StringPlaces gives -1 for null already
            return places
        valid = valid_rows(values)
        return places if valid is None else cupy.where(valid, places, self.null)

    def _find_numbers(self, values: Column) -> cupy.ndarray:
        """Find numbers by value: a number that the type of the vocabulary cannot hold exactly is not in it."""
        values_type = dtype(values)
        if values_type == self.type:
            return self.numbers.find_places(_bits(values))
        if pa.types.is_null(values_type):
            return cupy.full(len(values), -1, dtype=cupy.int64)
        if pa.types.is_temporal(values_type) or pa.types.is_temporal(self.type):
            return self._find_times(host(values))
        converted = values.astype(self.dtype)
        exact = raw(converted.astype(values.dtype)) == raw(values)
        bits = _bits(converted)
        kinds = [getattr(d, "kind", "") for d in (values.dtype, self.dtype)]
        if kinds == ["f", "i"]:
            exact &= cupy.abs(raw(values)) < 2.0**63
        elif sorted(kinds) == ["i", "u"]:
            exact &= bits >= 0  # the same bits would mean another number
        return cupy.where(exact, self.numbers.find_places(bits), -1)

    def _find_times(self, values: pa.Array) -> cupy.ndarray:
        """Find times of another unit, kind or zone, which Arrow casts."""
        converted = pc.cast(values, self.type, safe=False)
        same = pc.fill_null(pc.equal(pc.cast(converted, values.type, safe=False), values), False)
        exact = cupy.asarray(np.asarray(same).astype(bool))
        return cupy.where(exact, self.numbers.find_places(_bits(column(converted))), -1)


def _is_text(values: Column) -> bool:
    return isinstance(values.dtype, DECIMALS) or is_text(values)


def _strings(values: Column) -> Column:
    return renumber_rows(values.astype("str")) if isinstance(values.dtype, DECIMALS) else values


def _bits(values: Column) -> cupy.ndarray:
    """Return int64 keys, equal for equal values; those of nulls mean nothing."""
    data = raw(values)
    if data.dtype.kind == "f":
        return (data.astype(cupy.float64) + 0.0).view(cupy.int64)
    return data.astype(cupy.int64, copy=False)
