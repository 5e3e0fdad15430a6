"""Distances of two distributions of counts: L-infinity, Jensen-Shannon, population stability index; their noise.

A distribution is an array of counts or shares over the same categories or bins, in the last axis; each is divided by
its own sum first. Of a distribution without any count nothing is known: its distance to any other is 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.core.dtypes import is_list
from tasks.core.schema import ROW
from tasks.engines.algorithms.arrow_arrays import one_array
from tasks.engines.convert.python_values import stored_type
from tasks.gate.output_profile import Association

Array = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int32]  # the cell of each row of a sample
Counts = npt.NDArray[np.int64]  # of the rows in each two cells
Distance = Array | np.float64  # of each row of cells, or of the one
EMPTY = 1e-4  # the share that an empty cell of a PSI counts with
CELLS = 16  # quantile bins of numbers
SMALL = 1 << 12  # cells of two columns together up to which one count of the rows tells both ways
AT_ONCE = 32  # columns with which one is associated in one step: their counts take at most 36 MB
FREQUENT = 8  # rows of the sample from which on a value is a cell of its own where columns are associated


def shares(counts: npt.ArrayLike) -> Array:
    """Counts divided by their sum over the last axis; zeros where there are no counts."""
    numbers = np.asarray(counts, np.float64)
    total = numbers.sum(axis=-1, keepdims=True)
    divided: Array = np.divide(numbers, total, out=np.zeros_like(numbers), where=total > 0)
    return divided


def l_infinity(one: npt.ArrayLike, other: npt.ArrayLike) -> Distance:
    """The largest change of a share, max |p - q|, 0 .. 1 (as `skew_comparator.infinity_norm` of TensorFlow Data
    Validation).

    >>> round(float(l_infinity([90, 10], [70, 30])), 6)
    0.2
    """
    p, q = _both(one, other)
    return np.abs(p - q).max(axis=-1, initial=0.0)


def jensen_shannon(one: npt.ArrayLike, other: npt.ArrayLike) -> Distance:
    """The Jensen-Shannon *distance* with logarithms of base 2, 0 (equal) .. 1 (no cell in common).

    sqrt((KL(p, m) + KL(q, m)) / 2), m = (p + q) / 2, KL(p, m) = sum p log2(p / m); the square root of the divergence
    (J. Lin, 1991), as scipy.spatial.distance.jensenshannon(p, q, base=2). Empty cells add nothing.

    >>> float(jensen_shannon([1, 0], [0, 5])), float(jensen_shannon([1, 3], [2, 6]))
    (1.0, 0.0)
    """
    p, q = _both(one, other)
    middle = (p + q) / 2
    divergence = (_kullback_leibler(p, middle) + _kullback_leibler(q, middle)) / 2
    return np.sqrt(np.clip(divergence, 0.0, 1.0))


def psi(one: npt.ArrayLike, other: npt.ArrayLike) -> Distance:
    """The population stability index, sum (p - q) ln(p / q): 0 (equal) and up (Siddiqi, 2006: below 0.1 is stable,
    above 0.25 has changed). A cell that is empty on one side counts with a share of 0.0001 there; one that is empty on
    both sides adds nothing.

    >>> round(float(psi([50, 50], [60, 40])), 4)
    0.0405
    """
    p, q = _both(one, other)
    there = (p > 0) | (q > 0)
    p, q = np.maximum(p, EMPTY), np.maximum(q, EMPTY)
    return np.where(there, (p - q) * np.log(p / q), 0.0).sum(axis=-1)


def _both(one: npt.ArrayLike, other: npt.ArrayLike) -> tuple[Array, Array]:
    p, q = np.broadcast_arrays(shares(one), shares(other))
    known = (p.sum(axis=-1, keepdims=True) > 0) & (q.sum(axis=-1, keepdims=True) > 0)
    return np.where(known, p, 0.0), np.where(known, q, 0.0)


def _kullback_leibler(p: Array, q: Array) -> Array:
    ratio = np.divide(p, q, out=np.ones_like(p), where=p > 0)
    total: Array = (p * np.log2(ratio)).sum(axis=-1)
    return total


DISTANCES = {"l_infinity": l_infinity, "jensen_shannon": jensen_shannon, "psi": psi}


def noise(name: str, reference: npt.ArrayLike, now: float, before: float, z: float) -> float:
    """The distance that is passed by chance with the probability of `z` standard deviations of a normal, if `now`
    and `before` values are drawn from the distribution `reference`.

    With n = 1 / (1 / now + 1 / before) and k cells that are not empty: for L-infinity, the largest of k changes,
    sqrt(z^2 + 2 ln k) sqrt(p (1 - p) / n) of the largest p (1 - p). The PSI is about chi-square(k - 1) / n, the
    Jensen-Shannon divergence about chi-square(k - 1) / (8 n ln 2), each at its mean + z standard deviations + 2 z^2 / 3
    (Wilson and Hilferty's tail).
    """
    if not now or not before:
        return 1.0
    p = shares(reference)
    n, k = 1 / (1 / now + 1 / before), int(np.count_nonzero(p))
    if name == "l_infinity":
        z = math.sqrt(z * z + 2 * math.log(max(k, 1)))
        return float(min(z * math.sqrt(float((p * (1 - p)).max(initial=0.0)) / n), 1.0))
    chi = max(k - 1, 1) + z * math.sqrt(2 * max(k - 1, 1)) + 2 * z * z / 3
    return chi / n if name == "psi" else math.sqrt(min(chi / (8 * n * math.log(2)), 1.0))


def quantile_cells(past: Sequence[Mapping[int, int]], cells: int = CELLS) -> Array:
    """The bins at which cells end, so that each cell has about 1 / `cells` of the values of the past: ascending, at
    most cells - 1 bins, each with the values in it on its left. Bins with many values are cells of their own.

    >>> quantile_cells([{1: 1, 2: 98, 3: 1}], 4).tolist(), quantile_cells([{n: 1 for n in range(8)}], 4).tolist()
    ([1.0, 2.0], [1.0, 3.0, 5.0])
    """
    numbers = sorted({number for bins in past for number in bins})
    total = shares([[bins.get(number, 0) for number in numbers] for bins in past]).sum(axis=0)
    if not len(total) or not total.sum():
        return np.zeros(0)
    passed = np.cumsum(total) / total.sum()
    before = np.concatenate([[0.0], passed[:-1]])
    ends = set()
    for place, share in enumerate(total / total.sum()):
        if share >= 1.5 / cells and place:
            ends.add(place - 1)
        crosses = math.floor(passed[place] * cells + 1e-9) > math.floor(before[place] * cells + 1e-9)
        if share >= 1.5 / cells or crosses:
            ends.add(place)
    return np.array([numbers[place] for place in sorted(ends) if place < len(numbers) - 1], np.float64)


def in_cells(bins: Mapping[int, int], ends: Array) -> Array:
    """The counts of bins in the cells that end at `ends`, and in a last cell for all above."""
    counts = np.zeros(len(ends) + 1)
    if bins:
        numbers = np.fromiter(bins.keys(), np.float64, len(bins))
        np.add.at(counts, np.searchsorted(ends, numbers), np.fromiter(bins.values(), np.float64, len(bins)))
    return counts


def t_limit(chance: float, degrees: float) -> float:
    """The value that Student's t with so many degrees of freedom passes, on either side together, with a probability
    (G. W. Hill, Algorithm 396, 1970): relative error below 1e-3 from 3 degrees on.

    >>> round(t_limit(0.05, 10), 3), round(t_limit(1e-6, 5), 1)
    (2.228, 28.5)
    """
    n = max(degrees, 1.0)
    if n <= 2:
        return math.sqrt(2 / (chance * (2 - chance)) - 2) if n == 2 else 1 / math.tan(chance * math.pi / 2)
    a = 1 / (n - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * n
    x, y = d * chance, (d * chance) ** (2 / n)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(chance / 2)
        y = x * x
        if n < 5:
            c += 0.3 * (n - 4.5) * (x + 0.6)
        c = (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b + c
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(min(a * y * y, 700.0))
    else:
        series = 1 / (((n + 6) / (n * y) - 0.089 * d - 0.822) * (n + 2) * 3) + 0.5 / (n + 4)
        y = (series * y - 1) * (n + 1) / (n + 2) + 1 / y
    return math.sqrt(n * y)


def associations(sample: pa.Table | None) -> tuple[dict[tuple[str, str], Association], int]:
    """How strongly each two columns of a sample of rows go together: Cramér's V, 0 (not at all) .. 1, with the bias of
    few rows taken off (Bergsma, 2013). By the names of the columns, in order; and over how many rows.

    Of a pair, one column counts by sixteenths of its values, the other value by value: a label may depend on a brand,
    and on nothing that sixteenths of all brands share. Values that are rare in the sample count by sixteenths there,
    too. The stronger of both ways counts. Texts are numbers by their hash. Rows that are null in one of the two do not
    count, nor do lists.

    >>> table = pa.table({"row": range(96), "a": [1, 2, 3] * 32, "b": [4.0, 5.0, 6.0] * 32, "c": [0] * 48 + [1] * 48})
    >>> pairs, rows = associations(table.rename_columns([ROW, "a", "b", "c"]))
    >>> {pair: round(association.v, 2) for pair, association in pairs.items()}
    {('a', 'b'): 1.0, ('a', 'c'): 0.0, ('b', 'c'): 0.0}
    """
    if sample is None or not sample.num_rows:
        return {}, 0
    columns = {name: sample[name] for name in sample.column_names if name != ROW and not is_list(sample[name].type)}
    codes = {name: _codes(one_array(column)) for name, column in sorted(columns.items())}
    names = [name for name, code in codes.items() if code.varies]
    pairs: dict[tuple[str, str], Association] = {}
    for place, name in enumerate(names):
        for start in range(place + 1, len(names), AT_ONCE):
            others = names[start : start + AT_ONCE]
            strengths = _associations(codes[name], [codes[other] for other in others])
            pairs |= {(name, other): association for other, association in zip(others, strengths, strict=True)}
    return pairs, sample.num_rows


class _Codes(NamedTuple):
    """The cells of a column's values, 0 for null and NaN: sixteenths (`coarse`), and of frequent values one each, the
    others by sixteenths (`fine`: `cells` of them). Fine cells ascend with their sixteenth: those of one begin at its
    place in `first`, so that counts of fine cells add up to counts of sixteenths."""

    coarse: Codes
    fine: Codes
    cells: int
    first: npt.NDArray[np.int64]

    @property
    def varies(self) -> bool:
        return len(self.first) > 2


def _codes(values: pa.Array) -> _Codes:
    numbers = np.asarray(values.cast(pa.uint8()) if pa.types.is_boolean(values.type) else _as_floats(values))
    known = ~np.isnan(numbers) if numbers.dtype.kind == "f" else np.ones(len(numbers), bool)
    coarse, fine = np.zeros((2, len(numbers)), np.int32)
    if not known.any():
        return _Codes(coarse, fine, 1, np.zeros(1, np.int64))
    distinct, places, counts = np.unique(numbers[known], return_inverse=True, return_counts=True)
    passed = np.cumsum(counts)
    ends = np.unique(np.searchsorted(passed, np.ceil(passed[-1] * np.arange(1, CELLS) / CELLS)))
    sixteenths = 1 + np.searchsorted(ends, np.arange(len(distinct)))
    own_cell = np.where(counts >= FREQUENT, 1 + np.arange(len(distinct)), 0)  # 0: with the rare ones of its sixteenth
    cells, cell = np.unique(sixteenths * (1 + len(distinct)) + own_cell, return_inverse=True)
    coarse[known], fine[known] = sixteenths[places], 1 + cell[places]
    _, first = np.unique(cells // (1 + len(distinct)), return_index=True)
    return _Codes(coarse, fine, 1 + len(cells), np.concatenate([[0], 1 + first]))


def _as_floats(values: pa.Array) -> pa.Array:
    if pa.types.is_temporal(values.type):
        values = values.cast(stored_type(values.type))
    return values.cast(pa.float64(), safe=False)


def _associations(one: _Codes, others: Sequence[_Codes]) -> list[Association]:
    """How strongly a column goes together with each of others: the stronger of both ways to count, since which of two
    columns has more values may change from night to night."""
    ways = [_both_ways(one, other) for other in others]
    fine, coarse = (cramers_v([way[number] for way in ways]) for number in (0, 1))
    return [max(pair) for pair in zip(fine, coarse, strict=True)]


def _both_ways(one: _Codes, other: _Codes) -> tuple[Counts, Counts]:
    """The counts by fine cells of one column and sixteenths of the other, and the other way around; without nulls."""
    if one.cells * other.cells > SMALL:
        fine = _counts(one.fine, one.cells, other.coarse, len(other.first))
        coarse = _counts(one.coarse, len(one.first), other.fine, other.cells)
    else:
        cells = _counts(one.fine, one.cells, other.fine, other.cells)
        fine = np.add.reduceat(cells, other.first, axis=1)
        coarse = np.add.reduceat(cells, one.first, axis=0)
    return fine[1:, 1:], coarse[1:, 1:]


def _counts(rows: Codes, height: int, columns: Codes, width: int) -> Counts:
    """Count the rows of the sample by the cells of two columns."""
    return np.bincount(rows * np.int32(width) + columns, minlength=height * width).reshape(height, width)


def cramers_v(tables: Sequence[Counts]) -> list[Association]:
    """Cramér's V of tables of counts that have the same rows, and the V that tables with the same sums, of columns that
    have nothing to do with each other, pass by chance with one standard deviation of their chi square. Rows and columns
    without a count do not count.

    >>> [[round(one, 3) for one in table] for table in cramers_v([np.array([[30, 10], [10, 30]])])]
    [[0.49, 0.134]]
    """
    if not tables:
        return []
    starts = np.cumsum([0, *(table.shape[1] for table in tables[:-1])])
    counts = np.concatenate(tables, axis=1).astype(np.float64)
    of_column = counts.sum(axis=0)
    by_row = _inverses(np.add.reduceat(counts, starts, axis=1))  # rows x tables
    by_column = _inverses(of_column)
    total = np.add.reduceat(of_column, starts)
    counts *= counts
    counts *= by_column
    squares = (np.add.reduceat(counts, starts, axis=1) * by_row).sum(axis=0)
    sums = np.stack([by_row.sum(axis=0), np.add.reduceat(by_column, starts)], axis=1)
    sizes = np.stack([(by_row > 0).sum(axis=0), np.add.reduceat((by_column > 0).astype(np.int64), starts)], axis=1)
    each = zip(total.tolist(), squares.tolist(), sizes.tolist(), sums.tolist(), strict=True)
    return [_cramers_v(*table) for table in each]


def _inverses(sums: Array) -> Array:
    """1 / each sum; 0 for a sum of 0."""
    inverses: Array = np.divide(1.0, sums, out=np.zeros_like(sums), where=sums > 0)
    return inverses


def _cramers_v(n: float, squares: float, sizes: list[int], inverses: list[float]) -> Association:
    """Cramér's V of a table of `n` rows of the sample: `squares` is the sum of count^2 / (sum of its row x sum of its
    column), `sizes` and `inverses` have the number of the table's rows and columns, and the sum of 1 / their sums.

    The variance of chi square is that of Mielke and Berry (1985), also for cells that expect less than one row.
    """
    if n <= 3 or min(sizes) < 2:
        return Association(0.0)
    phi = max(squares - 1 - (sizes[0] - 1) * (sizes[1] - 1) / (n - 1), 0.0)
    even = [(size - 1) * (n - size) / (n - 1) for size in sizes]
    rare = [(n * inverse - size**2) / (n - 2) for inverse, size in zip(inverses, sizes, strict=True)]
    variance = 2 * n / (n - 3) * (even[0] - rare[0]) * (even[1] - rare[1]) + n * n / (n - 1) * rare[0] * rare[1]
    cells = min(size - (size - 1) ** 2 / (n - 1) for size in sizes) - 1
    if cells <= 0:
        return Association(0.0)
    by_chance = math.sqrt(math.sqrt(max(variance, 0.0)) / n / cells)
    return Association(min(math.sqrt(phi / cells), 1.0), by_chance)
