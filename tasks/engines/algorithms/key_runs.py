"""Runs of rows with equal keys: their places, differences, windows and histories inside a run, one aggregate per run.

One body for both engines. A *place* is the number of a row when the rows are ordered run after run: runs in the order
of their first rows, rows inside a run in their own order. If the rows have this order already (the usual case), row =
place and no row moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType

import numpy as np
import pyarrow as pa

from tasks.engines.algorithms.exact_sums import (
    add_pairs,
    divide_pair,
    exponents,
    sums,
    two_sum,
    whole_difference,
    whole_halves,
)
from tasks.engines.algorithms.protocol import Kernels
from tasks.engines.algorithms.reductions import any_true, refuse_wrapped, sums_fit
from tasks.engines.hashing.canonical import decimal_halves
from tasks.engines.types import Array, Series
from tasks.errors import DataError

SMALLER = 64  # values are divided by 2^SMALLER where their sum overflows: no sum of up to 2^64 values overflows then
MOST_ELEMENTS = 2**31 - 1  # of the lists of one column: offsets are int32
TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True, eq=False)
class KeyRuns:
    """Runs of rows. `order`: the row of each place (None: row = place); `starts`: the first place of each run, then the
    number of rows.
    """

    engine: Kernels
    order: Array | None
    starts: Array

    @property
    def xp(self) -> ModuleType:
        return self.engine.xp

    @property
    def rows(self) -> int:
        return int(self.starts[-1])

    @cached_property
    def lengths(self) -> Array:
        return self.starts[1:] - self.starts[:-1]

    @cached_property
    def codes(self) -> Array:
        """The run of each place."""
        marks = self.xp.zeros(self.rows, dtype=self.xp.int64)
        marks[self.starts[1:-1]] = 1
        return self.xp.cumsum(marks)

    @cached_property
    def inside(self) -> Array:
        """For each place the number of places before it in its run."""
        return self.xp.arange(self.rows, dtype=self.xp.int64) - self.starts[:-1][self.codes]

    @cached_property
    def first_rows(self) -> Array:
        """The first row of each run."""
        return self.starts[:-1] if self.order is None else self.order[self.starts[:-1]]

    def order_by_place(self, column: Series) -> Series:
        """The column in the order of places."""
        return column if self.order is None else self.engine.take({"x": column}, self.order)["x"]

    def numbers(self, column: Series) -> tuple[Array, Array]:
        """(values, valid) of a column in the order of places; valid is always an array."""
        values, valid = self.engine.numbers(self.order_by_place(column))
        return values, self.xp.ones(len(values), dtype=bool) if valid is None else valid

    def by_row(self, values: Array) -> Array:
        """An array in the order of rows, of an array in the order of places."""
        if self.order is None:
            return values
        data = self.xp.empty_like(values)
        data[self.order] = values
        return data

    def column(self, values: Array, valid: Array) -> Series:
        """The column, in the order of rows, of values in the order of places."""
        return self.engine.from_numbers(self.by_row(values), self.by_row(valid))

    def sort_rows(self, columns: Sequence[Series], ascending: bool) -> KeyRuns:
        """The same runs, each sorted by columns (in the order of rows); nulls first, ties in their own order."""
        index = self.engine.sort_within(self.codes, [self.order_by_place(c) for c in columns], ascending)
        return KeyRuns(self.engine, index if self.order is None else self.order[index], self.starts)

    def limit_lengths(self, min_length: int, max_length: int | None, last: bool) -> tuple[KeyRuns, Array]:
        """(the runs of `min_length` rows or more, each cut to its first, or last, `max_length` places; their numbers).

        `column` does not work on them, since rows are missing.
        """
        xp = self.xp
        chosen = xp.flatnonzero(self.lengths >= min_length)
        begin = self.starts[:-1][chosen]
        lengths = self.lengths[chosen]
        if max_length is not None:
            cut = xp.minimum(lengths, max_length)
            begin = begin + (lengths - cut) if last else begin
            lengths = cut
        starts = xp.zeros(len(chosen) + 1, dtype=xp.int64)
        xp.cumsum(lengths, out=starts[1:])
        after = KeyRuns(self.engine, None, starts)
        places = begin[after.codes] + after.inside
        return KeyRuns(self.engine, places if self.order is None else self.order[places], starts), chosen


def find_runs(keys: Sequence[Series], engine: Kernels) -> KeyRuns:
    """The runs of rows with equal keys, adjacent or not; a null is a key like any other."""
    xp = engine.xp
    codes = engine.run_codes(keys)
    order = None
    starts = _starts(codes, xp)
    if len(codes) and len(starts) - 1 > int(codes.max()) + 1:
        order = xp.argsort(codes, kind="stable")
        first = order[_starts(codes[order], xp)[:-1]]  # of each code
        rank = xp.empty_like(first)
        rank[xp.argsort(first, kind="stable")] = xp.arange(len(first), dtype=first.dtype)
        codes = rank[codes]
        order = xp.argsort(codes, kind="stable")
        starts = _starts(codes[order], xp)
    return KeyRuns(engine, order, starts)


def _starts(codes: Array, xp: ModuleType) -> Array:
    if not len(codes):
        return xp.zeros(1, dtype=xp.int64)
    changes = xp.flatnonzero(codes[1:] != codes[:-1]).astype(xp.int64) + 1
    return xp.concatenate([xp.zeros(1, dtype=xp.int64), changes, xp.full(1, len(codes), dtype=xp.int64)])


def difference(column: Series, runs: KeyRuns, shift: int) -> Series:
    """x[i] - x[i - shift] inside a run, float64; times in seconds. Null if either value is null or outside the run.

    Integers and times are subtracted as integers, so that large values stay exact.
    """
    xp = runs.xp
    dtype = runs.engine.dtype(column)
    values, valid = runs.numbers(column)
    there = runs.inside - shift
    within = (there >= 0) & (there < runs.lengths[runs.codes])
    place = xp.arange(len(values), dtype=xp.int64)
    other = xp.where(within, place - shift, place)
    with np.errstate(over="ignore", invalid="ignore"):
        before = values[other]
        if values.dtype.kind == "f":
            differences = values.astype(xp.float64) - before.astype(xp.float64)
        else:
            differences = whole_difference(values, before, xp)
    multiply, divide = _seconds(dtype)
    return runs.column(differences * multiply / divide, within & valid & valid[other])


def _seconds(dtype: pa.DataType) -> tuple[int, int]:
    """(multiplier, divisor) that turn a difference of this type into seconds; (1, 1) for types other than times."""
    if not pa.types.is_temporal(dtype):
        return 1, 1
    if pa.types.is_date32(dtype):
        return 86_400, 1
    return 1, TICKS["ms" if pa.types.is_date64(dtype) else dtype.unit]


def rolling(column: Series, runs: KeyRuns, window: int, aggregation: str, min_periods: int) -> Series:
    """mean, sum, min or max of the non-null values in the last `window` rows of the run, float64.

    Null where there are fewer than `min_periods` such values. Windows are composed of windows of 1, 2, 4, .. rows, so
    that a sum has the error of pairwise summation and the same bits in every run.
    """
    xp = runs.xp
    values, valid = runs.numbers(column)
    window = min(window, max(len(values), 1))
    counts = _combine_windows(valid.astype(xp.int64), runs.inside, window, xp.add, 0, xp)
    combine, neutral = {"min": (xp.minimum, np.inf), "max": (xp.maximum, -np.inf)}.get(aggregation, (xp.add, 0.0))
    with np.errstate(over="ignore", invalid="ignore"):
        data = xp.where(valid, values.astype(xp.float64), neutral)
        aggregates = _combine_windows(data, runs.inside, window, combine, neutral, xp)
        if combine is xp.add and any_true(~xp.isfinite(aggregates)):  # of finite values smaller ones are added up
            infinite = _combine_windows(xp.where(xp.isinf(data), data, 0.0), runs.inside, window, combine, 0.0, xp)
            small = _combine_windows(xp.ldexp(data, -SMALLER), runs.inside, window, combine, neutral, xp)
            small = small / xp.maximum(counts, 1) if aggregation == "mean" else small
            large = ~xp.isfinite(aggregates)
            aggregates = aggregates / xp.maximum(counts, 1) if aggregation == "mean" else aggregates
            aggregates = xp.where(large, xp.ldexp(small, SMALLER), aggregates)
            aggregates = xp.where(infinite == 0, aggregates, infinite)
        elif aggregation == "mean":
            aggregates = aggregates / xp.maximum(counts, 1)
    return runs.column(aggregates, counts >= max(min_periods, 1))


def _combine_windows(
    values: Array, inside: Array, window: int, combine: Callable[[Array, Array], Array], neutral: float, xp: ModuleType
) -> Array:
    """For each place the combined values of the last `window` places of its run, by the binary digits of `window`."""

    def shift_values(data: Array, by: int) -> Array:
        if not by:
            return data
        out = xp.full_like(data, neutral)
        out[by:] = xp.where(inside[by:] >= by, data[:-by], neutral)
        return out

    total = xp.full_like(values, neutral)
    done = 0
    size = 1
    while window:
        if window & 1:
            total = combine(total, shift_values(values, done))
            done = done + size
        window >>= 1
        if window:
            values = combine(values, shift_values(values, size))
            size *= 2
    return total


def lag_column(column: Series, runs: KeyRuns, shift: int) -> Series:
    """The value `shift` places before each row in its run; null outside the run."""
    xp = runs.xp
    engine = runs.engine
    there = runs.inside - shift
    within = (there >= 0) & (there < runs.lengths[runs.codes])
    place = xp.where(within, xp.arange(runs.rows, dtype=xp.int64) - shift, 0)
    index = runs.by_row(xp.where(within, place if runs.order is None else runs.order[place], runs.rows))
    column = engine.decode(column)
    return with_filler(column, None, index, engine)


@dataclass(frozen=True, eq=False)
class Histories:
    """For each row the rows before it in its run, at most the last `length`; with `include_current` the row itself is
    the last of them. Rows that are equal in `ties` (a column in the order of rows) do not stand before each other.
    """

    runs: KeyRuns
    length: int
    ties: Series | None = None
    include_current: bool = False

    @cached_property
    def _places(self) -> tuple[Array, Array]:
        """For each row (the first place of its history, the number of places in it)."""
        runs = self.runs
        xp = self.runs.xp
        end = xp.arange(runs.rows, dtype=xp.int64)
        if self.ties is not None:
            codes = runs.engine.run_codes([runs.engine.from_numbers(runs.codes), runs.order_by_place(self.ties)])
            tied = KeyRuns(runs.engine, None, _starts(codes, xp))
            end = end - tied.inside
        earlier = xp.minimum(end - (xp.arange(runs.rows, dtype=xp.int64) - runs.inside), self.length - self._own)
        return runs.by_row(end - earlier), runs.by_row(earlier + self._own)

    @property
    def _own(self) -> int:
        return int(self.include_current)

    @property
    def counts(self) -> Array:
        """The number of rows in each row's history."""
        return self._places[1]

    @cached_property
    def _elements(self) -> Array:
        """The rows in the histories, one history after another."""
        runs = self.runs
        xp = self.runs.xp
        begin, counts = self._places
        _refuse_too_many(counts)
        filled = xp.flatnonzero(counts)
        places = _ranges(begin[filled], counts[filled], xp)
        if self.include_current:
            places[xp.cumsum(counts) - 1] = runs.by_row(xp.arange(runs.rows, dtype=xp.int64))
        return places if runs.order is None else runs.order[places]

    def lists(self, column: Series, min_length: int, pad: str | None, pad_value: object) -> Series:
        """The values of a column in the histories as lists; null for histories of fewer than `min_length` rows.

        `pad`, "left" or "right": lists of fewer than `length` values are filled up there with `pad_value`.
        """
        xp = self.runs.xp
        engine = self.runs.engine
        counts = self.counts
        valid = counts >= min_length if min_length > self._own else None
        column = engine.decode(column)
        elements = self._elements
        if valid is not None:
            elements = elements[valid[_owners(counts, xp)]]
            counts = xp.where(valid, counts, 0)
        if pad is None:
            return engine.make_lists(counts, valid, engine.take({"x": column}, elements)["x"])
        sizes = xp.full(len(counts), self.length, dtype=xp.int64)
        sizes = sizes if valid is None else xp.where(valid, sizes, 0)
        _refuse_too_many(sizes)
        filled = xp.flatnonzero(counts)
        first = (xp.cumsum(sizes) - sizes)[filled]
        first = first + (self.length - counts[filled]) if pad == "left" else first
        index = xp.full(int(sizes.sum()), self.runs.rows, dtype=xp.int64)
        index[_ranges(first, counts[filled], xp)] = elements
        return engine.make_lists(sizes, valid, with_filler(column, pad_value, index, engine))


def _ranges(begin: Array, counts: Array, xp: ModuleType) -> Array:
    """begin[0], begin[0] + 1, .. (counts[0] numbers), then those of begin[1], and so on; all counts are 1 or more."""
    steps = xp.ones(int(counts.sum()), dtype=xp.int64)
    if len(begin):
        before = xp.concatenate([xp.zeros(1, dtype=xp.int64), (begin + counts - 1)[:-1]])
        steps[xp.cumsum(counts) - counts] = begin - before
    return xp.cumsum(steps)


def _owners(counts: Array, xp: ModuleType) -> Array:
    """0 counts[0] times, 1 counts[1] times, and so on."""
    ends = xp.cumsum(counts)
    places = xp.arange(int(counts.sum()), dtype=xp.int64)
    return xp.searchsorted(ends, places, side="right")


def with_filler(column: Series, filler: object, index: Array, engine: Kernels) -> Series:
    """Rows of a plain column by number; the number behind the last row gives the filler (None: null)."""
    last = engine.column(pa.array([filler], engine.dtype(column)))
    return engine.take(engine.concat([{"x": column}, {"x": last}]), index)["x"]


def _refuse_too_many(counts: Array) -> None:
    total = int(counts.sum())
    if total > MOST_ELEMENTS:
        raise DataError(
            f"the histories of one partition have {total:,} elements together",
            why=f"a column of lists holds up to {MOST_ELEMENTS:,}",
            do="make partitions smaller with source.partition_size, or the histories shorter",
        )


class Aggregate:
    """Aggregates of one column; every method returns a column with one value per run."""

    def __init__(self, column: Series, runs: KeyRuns) -> None:
        self.runs = runs
        self.engine = runs.engine
        self.xp = runs.engine.xp
        self.column = runs.order_by_place(column)

    @cached_property
    def valid(self) -> Array:
        """Which places are not null."""
        null = self.engine.null_rows([self.column])
        return self.xp.ones(self.runs.rows, dtype=bool) if null is None else ~null

    @cached_property
    def counts(self) -> Array:
        """The number of non-null values of each run."""
        return self._exact_sums(self.valid.astype(self.xp.int64))

    @cached_property
    def sorted(self) -> Series:
        """The column with each run sorted, nulls first."""
        index = self.engine.sort_within(self.runs.codes, [self.column])
        return self.engine.take({"x": self.column}, index)["x"]

    @cached_property
    def data(self) -> Array:
        """float64 values, 0 where null."""
        values, _ = self.engine.numbers(self.column)
        return self.xp.where(self.valid, values.astype(self.xp.float64), 0.0)

    def _exact_sums(self, values: Array) -> Array:
        running = self.xp.zeros(len(values) + 1, dtype=values.dtype)
        self.xp.cumsum(values, out=running[1:])
        return running[self.runs.starts[1:]] - running[self.runs.starts[:-1]]

    def _take_rows(self, column: Series, places: Array) -> Series:
        return self.engine.take({"x": column}, places)["x"]

    def list(self) -> Series:
        return self.engine.make_lists(self.runs.lengths, None, self.engine.decode(self.column))

    def first(self) -> Series:
        return self._take_rows(self.column, self.runs.starts[:-1])

    def last(self) -> Series:
        return self._take_rows(self.column, self.runs.starts[1:] - 1)

    def count(self) -> Series:
        return self.engine.from_numbers(self.counts)

    def nunique(self) -> Series:
        xp = self.xp
        groups = len(self.runs.lengths)
        places = xp.flatnonzero(self.valid)
        if not len(places):
            return self.engine.from_numbers(xp.zeros(groups, dtype=xp.int64))
        codes = self.runs.codes[places]
        pairs = self.engine.run_codes([self.engine.from_numbers(codes), self._take_rows(self.column, places)])
        owner = xp.zeros(int(pairs.max()) + 1, dtype=xp.int64)
        owner[pairs] = codes
        return self.engine.from_numbers(xp.bincount(owner, minlength=groups).astype(xp.int64))

    def min(self) -> Series:
        return self._take_rows(self.sorted, self.xp.minimum(self._lowest, self.runs.starts[1:] - 1))

    def max(self) -> Series:
        return self._take_rows(self.sorted, self.runs.starts[1:] - 1)

    @property
    def _lowest(self) -> Array:
        """The place of the least value of each run in `sorted`; the end of the run if all its values are null."""
        return self.runs.starts[1:] - self.counts

    def median(self) -> Series:
        last = self.runs.starts[1:] - 1
        low, high = ((self._lowest + self.xp.maximum(self.counts - more, 0) // 2) for more in (1, 0))
        low = self.xp.minimum(low, last)
        high = self.xp.minimum(high, last)
        if pa.types.is_decimal(self.engine.dtype(self.column)):
            ends = (self.engine.host(self._take_rows(self.sorted, place)) for place in (low, high))
            return self.engine.column(decimal_halves(*ends))
        values, _ = self.engine.numbers(self.sorted)
        low = values[low]
        high = values[high]
        if values.dtype.kind in "iu":
            wide = self.xp.uint64 if values.dtype.kind == "u" else self.xp.int64
            medians = whole_halves(low.astype(wide), high.astype(wide), self.xp)
            return self.engine.from_numbers(medians, self.counts > 0)
        low = low.astype(self.xp.float64)
        high = high.astype(self.xp.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            medians = (low + high) / 2
            beyond = self.xp.isinf(medians) & self.xp.isfinite(low) & self.xp.isfinite(high)
            # Only the sum is beyond float64, not the mean.
            medians = self.xp.where(beyond, low / 2 + high / 2, medians)
        return self.engine.from_numbers(medians, self.counts > 0)

    def sum(self) -> Series:
        values, _ = self.engine.numbers(self.column)
        if values.dtype.kind == "f":
            total, _, powers = self._sums_with_errors
            with np.errstate(over="ignore"):
                return self.engine.from_numbers(total if powers is None else self.xp.ldexp(total, powers))
        unsigned = values.dtype.kind == "u" and not pa.types.is_boolean(self.engine.dtype(self.column))
        wide = self.xp.uint64 if unsigned else self.xp.int64
        values = self.xp.where(self.valid, values, 0).astype(wide)
        sums = self._exact_sums(values)
        if not sums_fit(values, len(values)):
            refuse_wrapped(sums, self._sums(self.data))
        return self.engine.from_numbers(sums)

    def _sums(self, values: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return self.engine.run_sums(values, self.runs.starts)

    @cached_property
    def _sums_with_errors(self) -> tuple[Array, Array, Array | None]:
        """(sums, rounding errors, powers) by run of the values divided by 2^powers; no division if powers is None."""
        codes = self.runs.codes
        most_rows = int(self.runs.lengths.max()) if len(self.runs.lengths) else 0
        powers = exponents(self.data, codes, len(self.runs.lengths), self.engine, squares=True)
        data = self.data if powers is None else self.xp.ldexp(self.data, -powers[codes])
        self.scaled = data
        return *sums(data, self._sums, most_rows, self.xp), powers

    @cached_property
    def _scaled_means(self) -> Array:
        values, _ = self.engine.numbers(self.column)
        if values.dtype.kind in "iu" and values.dtype.itemsize == 8:  # beyond 2^53 float64 would round every value
            halves = values.astype(self.xp.int64) if values.dtype.kind == "i" else values
            high = self.xp.where(self.valid, (halves >> 32).astype(self.xp.int64), 0)
            low = self.xp.where(self.valid, (halves & 0xFFFFFFFF).astype(self.xp.int64), 0)
            high, low = (self._exact_sums(part) for part in (high, low))
            total = add_pairs(self._two(high, 2.0**32), self._two(low, 1.0))
        else:
            total = self._sums_with_errors[:2]
        return divide_pair(*total, self.xp.maximum(self.counts, 1), self.xp)

    def _two(self, values: Array, times: float) -> tuple[Array, Array]:
        """Integers times a power of two, as the sum of two floats."""
        high = (values >> 32).astype(self.xp.float64) * (2.0**32 * times)
        return two_sum(high, (values & 0xFFFFFFFF).astype(self.xp.float64) * times)

    def mean(self) -> Series:
        powers = self._sums_with_errors[2]
        means = self._scaled_means if powers is None else self.xp.ldexp(self._scaled_means, powers)
        return self.engine.from_numbers(means, (self.counts > 0) & ~self.xp.isnan(means))

    @cached_property
    def _scaled_variances(self) -> Array:
        """Variances (ddof 1) of the scaled values, from deviations, corrected by the rounding error of the mean."""
        n = self.xp.maximum(self.counts, 1)
        most_rows = int(self.runs.lengths.max()) if len(self.counts) else 0
        means = divide_pair(*self._sums_with_errors[:2], n, self.xp)
        with np.errstate(over="ignore", invalid="ignore"):
            deviations = self.xp.where(self.valid, self.scaled - means[self.runs.codes], 0.0)
            shift = self._sums(deviations) / n
            squares = sums(deviations * deviations, self._sums, most_rows, self.xp)[0] - n * shift * shift
            return self.xp.maximum(squares, 0.0) / self.xp.maximum(n - 1, 1)

    def var(self) -> Series:
        return self._spread(self._scaled_variances, 2)

    def std(self) -> Series:
        return self._spread(self.xp.sqrt(self._scaled_variances), 1)

    def _spread(self, spreads: Array, times: int) -> Series:
        powers = self._sums_with_errors[2]
        with np.errstate(over="ignore"):  # squares beyond float64 are infinite
            spreads = spreads if powers is None else self.xp.ldexp(spreads, times * powers)
        return self.engine.from_numbers(spreads, (self.counts > 1) & ~self.xp.isnan(spreads))
