"""Runs of equal keys: where they lie, differences and windows inside them, what is made of each. Both engines share it.

A *place* is a row's number when the rows stand run after run; runs stand in the order of their first rows, and inside a
run rows keep their order. Where the rows came that way already (the ordinary case), row = place and nothing is moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.frame.whole import refuse_wrapped, sums_fit

TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True, eq=False)
class Runs:
    """`order`: the row of each place (None: row = place); `starts`: every run's first place, and the number of rows."""

    engine: ModuleType
    order: Any
    starts: Any

    @property
    def xp(self) -> Any:
        return self.engine.xp

    @property
    def rows(self) -> int:
        return int(self.starts[-1])

    @cached_property
    def lengths(self) -> Any:
        return self.starts[1:] - self.starts[:-1]

    @cached_property
    def codes(self) -> Any:
        """The run of each place."""
        marks = self.xp.zeros(self.rows, dtype=self.xp.int64)
        marks[self.starts[1:-1]] = 1
        return self.xp.cumsum(marks)

    @cached_property
    def inside(self) -> Any:
        """How many places of its run stand before each place."""
        return self.xp.arange(self.rows, dtype=self.xp.int64) - self.starts[:-1][self.codes]

    @cached_property
    def first_rows(self) -> Any:
        """The row that stands first in each run."""
        return self.starts[:-1] if self.order is None else self.order[self.starts[:-1]]

    def placed(self, column: Any) -> Any:
        """A column by place."""
        return column if self.order is None else self.engine.take({"x": column}, self.order)["x"]

    def numbers(self, column: Any) -> tuple[Any, Any]:
        """(values, valid) by place; valid is an array."""
        values, valid = self.engine.numbers(self.placed(column))
        return values, self.xp.ones(len(values), dtype=bool) if valid is None else valid

    def column(self, values: Any, valid: Any) -> Any:
        """The column of values by place, by row again."""
        if self.order is not None:
            data, flags = self.xp.empty_like(values), self.xp.empty_like(valid)
            data[self.order], flags[self.order] = values, valid
            values, valid = data, flags
        return self.engine.from_numbers(values, valid)

    def sorted(self, columns: Sequence[Any], ascending: bool) -> Runs:
        """The same runs, each sorted by columns (given by row); nulls first, ties in the order they had."""
        index = self.engine.sorted_within(self.codes, [self.placed(c) for c in columns], ascending)
        return Runs(self.engine, index if self.order is None else self.order[index], self.starts)


def find_runs(keys: Sequence[Any], engine: ModuleType) -> Runs:
    """The runs of rows with equal keys, also of rows that lie apart; a null is a key like any other."""
    xp, codes, order = engine.xp, engine.run_codes(keys), None
    starts = _starts(codes, xp)
    if len(codes) and len(starts) - 1 > int(codes.max()) + 1:
        order = xp.argsort(codes, kind="stable")
        first = order[_starts(codes[order], xp)[:-1]]  # of each code
        rank = xp.empty_like(first)
        rank[xp.argsort(first, kind="stable")] = xp.arange(len(first), dtype=first.dtype)
        codes = rank[codes]
        order = xp.argsort(codes, kind="stable")
        starts = _starts(codes[order], xp)
    return Runs(engine, order, starts)


def _starts(codes: Any, xp: Any) -> Any:
    if not len(codes):
        return xp.zeros(1, dtype=xp.int64)
    changes = xp.flatnonzero(codes[1:] != codes[:-1]).astype(xp.int64) + 1
    return xp.concatenate([xp.zeros(1, dtype=xp.int64), changes, xp.full(1, len(codes), dtype=xp.int64)])


def difference(column: Any, runs: Runs, shift: int) -> Any:
    """x[i] - x[i - shift] inside a run, float64; times in seconds. Null where either is null or stands outside the run.

    Integers and times are subtracted as integers, so that large ones lose nothing.
    """
    xp, dtype = runs.xp, runs.engine.dtype(column)
    values, valid = runs.numbers(column)
    there = runs.inside - shift
    within = (there >= 0) & (there < runs.lengths[runs.codes])
    place = xp.arange(len(values), dtype=xp.int64)
    other = xp.where(within, place - shift, place)
    with np.errstate(over="ignore", invalid="ignore"):
        found = _subtracted(values, values[other], xp)
    multiply, divide = _seconds(dtype)
    return runs.column(found * multiply / divide, within & valid & valid[other])


def _subtracted(a: Any, b: Any, xp: Any) -> Any:
    rough = a.astype(xp.float64) - b.astype(xp.float64)
    if a.dtype.kind == "f":
        return rough
    wide = xp.uint64 if a.dtype.kind == "u" else xp.int64
    exact = (a.astype(wide).view(xp.uint64) - b.astype(wide).view(xp.uint64)).view(xp.int64)  # modulo 2^64
    return xp.where(xp.abs(rough) < 2.0**62, exact.astype(xp.float64), rough)


def _seconds(dtype: pa.DataType) -> tuple[int, int]:
    """By what a difference is multiplied and divided to be one of seconds; (1, 1) for what is no time."""
    if not pa.types.is_temporal(dtype):
        return 1, 1
    if pa.types.is_date32(dtype):
        return 86_400, 1
    return 1, TICKS["ms" if pa.types.is_date64(dtype) else dtype.unit]


def rolling(column: Any, runs: Runs, window: int, aggregation: str, min_periods: int) -> Any:
    """mean, sum, min or max of the values of a run's last `window` rows that are not null, float64.

    Null where they are fewer than `min_periods`. Windows are put together from windows of 1, 2, 4, .. rows, so that a
    sum has the error of pairwise summation and the same bits every time.
    """
    xp = runs.xp
    values, valid = runs.numbers(column)
    window = min(window, max(len(values), 1))
    counts = _windowed(valid.astype(xp.int64), runs.inside, window, xp.add, 0, xp)
    combine, neutral = {"min": (xp.minimum, np.inf), "max": (xp.maximum, -np.inf)}.get(aggregation, (xp.add, 0.0))
    with np.errstate(over="ignore", invalid="ignore"):
        data = xp.where(valid, values.astype(xp.float64), neutral)
        found = _windowed(data, runs.inside, window, combine, neutral, xp)
        if aggregation == "mean":
            found = found / xp.maximum(counts, 1)
    return runs.column(found, counts >= max(min_periods, 1))


def _windowed(values: Any, inside: Any, window: int, combine: Callable[[Any, Any], Any], neutral: Any, xp: Any) -> Any:
    """The values of the last `window` places of each place's run combined, by the binary digits of `window`."""

    def shifted(data: Any, by: int) -> Any:
        if not by:
            return data
        out = xp.full_like(data, neutral)
        out[by:] = xp.where(inside[by:] >= by, data[:-by], neutral)
        return out

    total, done, size = xp.full_like(values, neutral), 0, 1
    while window:
        if window & 1:
            total, done = combine(total, shifted(values, done)), done + size
        window >>= 1
        if window:
            values = combine(values, shifted(values, size))
            size *= 2
    return total


class Aggregate:
    """One column by runs; every method gives one value per run."""

    def __init__(self, column: Any, runs: Runs) -> None:
        self.runs, self.engine, self.xp = runs, runs.engine, runs.engine.xp
        self.column = runs.placed(column)

    @cached_property
    def valid(self) -> Any:
        """Which places are not null."""
        null = self.engine.null_rows([self.column])
        return self.xp.ones(self.runs.rows, dtype=bool) if null is None else ~null

    @cached_property
    def counts(self) -> Any:
        """Values that are not null, by run."""
        return self._exact_sums(self.valid.astype(self.xp.int64))

    @cached_property
    def sorted(self) -> Any:
        """The column with every run sorted, its nulls first."""
        index = self.engine.sorted_within(self.runs.codes, [self.column])
        return self.engine.take({"x": self.column}, index)["x"]

    @cached_property
    def data(self) -> Any:
        """float64 values, 0 where null."""
        values, _ = self.engine.numbers(self.column)
        return self.xp.where(self.valid, values.astype(self.xp.float64), 0.0)

    def _exact_sums(self, values: Any) -> Any:
        running = self.xp.zeros(len(values) + 1, dtype=values.dtype)
        self.xp.cumsum(values, out=running[1:])
        return running[self.runs.starts[1:]] - running[self.runs.starts[:-1]]

    def _rows(self, column: Any, places: Any) -> Any:
        return self.engine.take({"x": column}, places)["x"]

    def list(self) -> Any:
        return self.engine.make_lists(self.runs.lengths, None, self.engine.decode(self.column))

    def first(self) -> Any:
        return self._rows(self.column, self.runs.starts[:-1])

    def last(self) -> Any:
        return self._rows(self.column, self.runs.starts[1:] - 1)

    def count(self) -> Any:
        return self.engine.from_numbers(self.counts)

    def nunique(self) -> Any:
        xp, groups = self.xp, len(self.runs.lengths)
        kept = xp.flatnonzero(self.valid)
        if not len(kept):
            return self.engine.from_numbers(xp.zeros(groups, dtype=xp.int64))
        codes = self.runs.codes[kept]
        pairs = self.engine.run_codes([self.engine.from_numbers(codes), self._rows(self.column, kept)])
        owner = xp.zeros(int(pairs.max()) + 1, dtype=xp.int64)
        owner[pairs] = codes
        return self.engine.from_numbers(xp.bincount(owner, minlength=groups).astype(xp.int64))

    def min(self) -> Any:
        return self._rows(self.sorted, self.xp.minimum(self._lowest, self.runs.starts[1:] - 1))

    def max(self) -> Any:
        return self._rows(self.sorted, self.runs.starts[1:] - 1)

    @property
    def _lowest(self) -> Any:
        """The place of each run's least value when its nulls stand first; its end where all are null."""
        return self.runs.starts[1:] - self.counts

    def median(self) -> Any:
        last = self.runs.starts[1:] - 1
        low, high = ((self._lowest + self.xp.maximum(self.counts - more, 0) // 2) for more in (1, 0))
        values = self.engine.numbers(self.sorted)[0].astype(self.xp.float64)
        low, high = values[self.xp.minimum(low, last)], values[self.xp.minimum(high, last)]
        with np.errstate(over="ignore", invalid="ignore"):
            found = (low + high) / 2
            beyond = self.xp.isinf(found) & self.xp.isfinite(low) & self.xp.isfinite(high)
        found = self.xp.where(beyond, low / 2 + high / 2, found)  # their sum alone is beyond float64
        return self.engine.from_numbers(found, self.counts > 0)

    def sum(self) -> Any:
        values, _ = self.engine.numbers(self.column)
        if values.dtype.kind == "f":
            return self.engine.from_numbers(self._sums(self.data))
        unsigned = values.dtype.kind == "u" and not pa.types.is_boolean(self.engine.dtype(self.column))
        wide = self.xp.uint64 if unsigned else self.xp.int64
        values = self.xp.where(self.valid, values, 0).astype(wide)
        sums = self._exact_sums(values)
        if not sums_fit(values, len(values)):
            refuse_wrapped(sums, self._sums(self.data))
        return self.engine.from_numbers(sums)

    def _sums(self, values: Any) -> Any:
        with np.errstate(over="ignore", invalid="ignore"):
            return self.engine.run_sums(values, self.runs.starts)

    @cached_property
    def means(self) -> Any:
        return self._sums(self.data) / self.xp.maximum(self.counts, 1)

    def mean(self) -> Any:
        return self.engine.from_numbers(self.means, self.counts > 0)

    @cached_property
    def variances(self) -> Any:
        """ddof 1, from deviations; what rounding left in the mean is taken out."""
        n = self.xp.maximum(self.counts, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            deviations = self.xp.where(self.valid, self.data - self.means[self.runs.codes], 0.0)
            shift = self._sums(deviations) / n
            squares = self._sums(deviations * deviations) - n * shift * shift
            return self.xp.maximum(squares, 0.0) / self.xp.maximum(n - 1, 1)

    def var(self) -> Any:
        return self.engine.from_numbers(self.variances, self.counts > 1)

    def std(self) -> Any:
        return self.engine.from_numbers(self.xp.sqrt(self.variances), self.counts > 1)
