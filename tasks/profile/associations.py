"""How strongly columns go together in a sample of their rows: Cramér's V of each two of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.core.dtypes import is_list
from tasks.core.schema import ROW
from tasks.engines.algorithms.arrow_arrays import one_array
from tasks.engines.convert.python_values import to_storage_type
from tasks.profile.output_profile import Association

Array = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int32]  # the cell of each row of a sample
Counts = npt.NDArray[np.int64]  # of the rows in each two cells
CELLS = 16  # quantile bins of numbers
SMALL = 1 << 12  # cells of two columns together up to which one count of the rows tells both ways
AT_ONCE = 32  # columns with which one is associated in one step: their counts take at most 36 MB
FREQUENT = 8  # rows of the sample from which on a value is a cell of its own where columns are associated


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
        values = values.cast(to_storage_type(values.type))
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
