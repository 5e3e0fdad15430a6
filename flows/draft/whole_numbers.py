"""Whether the whole numbers of a column are codes or an amount: what their name, their values and their rows say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from flows.draft.names import is_amount_name, is_calendar_name, is_code_name

SCALE = 10  # the greatest number of a scale on which people judge
LEVELS = 12  # values: fewer are codes unless something speaks against it; more are an amount in turn
CALENDAR = 53  # weeks of a year: a calendar has no part with more values
FLAT = 50  # values that occur about equally often are codes: groups of a design; with more, chance makes them so, too
REPEATED = 4  # rows for each value, on average, of codes
FALLING = 0.75  # of the steps from one value to the next, in counts of things, where chance adds a standard deviation
RARE = 100  # a value of fewer rows than one in so many may be missing between others by chance
HUMP_FROM = 8  # values, below which a hump is found by chance
HUMP_ENDS = 0.4  # of the largest count: how often the least and the greatest value of a hump come at most
HUMP_DETOURS = 0.7  # of the largest count, up and down again beyond chance
DENSE = 1.05  # numbers from the least to the greatest for each that occurs: codes are given without gaps
MOST_GAPS = 1.5  # the same, of ages, scores and counts of a few rows
MOST_SKIPPED = 0.01  # of the steps from one row to the next: blocks that are missing
ERRATIC = 2.0  # like HUMP_DETOURS: the counts of a score or an age change less from one value to the next
# people round amounts to multiples of 5, of which there are 20 % otherwise
ROUND = 5
MOST_ROUND = 0.4
# a standard deviation, and a variance, in units of the mean: counts below are equal
UNEVEN = 0.1
BY_CHANCE = 1.5


@dataclass(frozen=True)
class WholeNumbers:
    """Whole numbers of a sample in the order of its rows; `values` has each once, in order, and `counts` its rows."""

    rows: np.ndarray
    values: np.ndarray
    counts: np.ndarray

    @property
    def low(self) -> int:
        return int(self.values[0])

    @property
    def high(self) -> int:
        return int(self.values[-1])

    @property
    def spacing(self) -> float:
        """Numbers from the least to the greatest, for each value."""
        return (self.high - self.low + 1) / len(self.values)

    @property
    def detours(self) -> float:
        """How far counts go up and down again from one value to the next, beyond chance and beyond one way up and one
        down, in units of twice the largest count: 0 for a hump, a slope or a level."""
        counts = self.counts.astype(np.float64)
        by_chance = 0.8 * np.sqrt(counts[1:] + counts[:-1])  # the mean difference of two counts of one rate
        steps = np.abs(np.diff(counts))
        return float(max((steps - by_chance).sum(), 0.0) / (2 * counts.max()))


def numbers_of(values: pa.ChunkedArray) -> WholeNumbers:
    """Return the numbers of a column without nulls, which are all whole and fit into int64."""
    rows = values.cast(pa.int64()).to_numpy()
    distinct, counts = np.unique(rows, return_counts=True)
    return WholeNumbers(rows, distinct, counts)


def are_codes(name: str, numbers: WholeNumbers) -> bool:
    """Tell whether whole numbers are codes, which have no order, rather than an amount.

    The name decides if it is that of an amount (age, num_items) or of something that has codes (county, channel).
    Numbers from 0 or 1 on that group the rows in blocks are codes, and so are flags and the parts of a calendar. Others
    are an amount if hardly one comes twice, if they count things, so that 0, 1, 2, .. become rarer and rarer, or if
    there are more than twelve, unless all come equally often, or one number rarely and the next one often.
    """
    if len(numbers.values) <= 2:
        return True  # a flag
    if is_amount_name(name):
        return False
    if is_code_name(name) or _are_block_numbers(numbers):
        return True
    if numbers.low < 0:
        return False
    if is_calendar_name(name) and len(numbers.values) <= CALENDAR:
        return True
    if REPEATED * len(numbers.values) > len(numbers.rows) or _are_counts(numbers):
        return False
    if _are_even(numbers):
        return True
    if len(numbers.values) <= LEVELS:
        return not (_are_hump(numbers) or _are_scale(numbers) or _begin_late(numbers))
    return _are_erratic(numbers)


def are_row_numbers(numbers: WholeNumbers) -> bool:
    """Tell whether numbers count the rows of a source, from 0 or 1 on; a number may be missing where a row is."""
    if len(numbers.rows) != len(numbers.values) or not _begin(numbers):
        return False
    steps = np.diff(numbers.rows)
    return bool((steps > 0).all() and numbers.spacing <= DENSE)


def _begin(numbers: WholeNumbers) -> bool:
    """Tell whether numbers begin where codes and counts do."""
    return numbers.low in (0, 1)


def _are_block_numbers(numbers: WholeNumbers) -> bool:
    """Tell whether the rows come in blocks of one number each, which count the blocks: panels and households are so. A
    number may be missing, since a sample has several ranges of the rows."""
    steps = np.diff(numbers.rows)
    count_on = bool((steps >= 0).all()) and _begin(numbers) and float((steps > 1).mean()) < MOST_SKIPPED
    return count_on and len(numbers.values) > LEVELS and 2 * len(numbers.values) <= len(numbers.rows)


def _are_counts(numbers: WholeNumbers) -> bool:
    """Tell whether 0, 1, 2, .. become rarer and rarer, or 1, 2, 3, .., or 2, 3, 4, .."""
    counts = numbers.counts
    values = numbers.values
    # The rare values at the end may have gaps: no family of the Titanic had six or seven children.
    common = values[RARE * counts >= len(numbers.rows)]
    if len(values) <= 3 + numbers.low or len(common) < 3 or numbers.low not in (0, 1, 2):
        return False
    begins_gapless = common[2] - numbers.low == 2 and common[-1] - numbers.low < MOST_GAPS * len(common)
    falls = counts[1:] <= counts[:-1] + np.sqrt(counts[:-1])
    is_falling = counts[0] >= 3 * counts[-1] and counts.max() in counts[:2] and falls.mean() >= FALLING
    return bool(begins_gapless and is_falling)


def _are_hump(numbers: WholeNumbers) -> bool:
    """Tell whether the values in the middle are common and those at both ends are rare, as scores are."""
    ends = (numbers.counts[0] + numbers.counts[-1]) / (2 * numbers.counts.max())
    return len(numbers.values) >= HUMP_FROM and ends <= HUMP_ENDS and numbers.detours <= HUMP_DETOURS


def _are_scale(numbers: WholeNumbers) -> bool:
    """Tell whether numbers are steps of a scale to ten, of which one may be missing."""
    return _begin(numbers) and numbers.high == SCALE and len(numbers.values) >= numbers.high - numbers.low


def _begin_late(numbers: WholeNumbers) -> bool:
    """Whether neighboring numbers begin where codes do not, such as the ages from 24 to 34; codes begin with 1, 11, 20
    or 1001."""
    digits = str(numbers.low).rstrip("0")
    begin_like_codes = len(digits) <= 1 or {*str(numbers.low)} <= {"0", "1"}
    return len(numbers.values) >= HUMP_FROM and numbers.spacing <= MOST_GAPS and not begin_like_codes


def _are_even(numbers: WholeNumbers) -> bool:
    """Whether all numbers from 0 or 1 on come equally often: nearly, if they are few, and exactly if they are many."""
    if numbers.spacing > 1 or not _begin(numbers):
        return False
    if len(numbers.values) > FLAT:
        return bool(numbers.counts.max() == numbers.counts.min())
    mean = numbers.counts.mean()
    spread = numbers.counts.std()
    return bool(spread <= max(UNEVEN * mean, np.sqrt(BY_CHANCE * mean)))


def _are_erratic(numbers: WholeNumbers) -> bool:
    """Whether numbers from 0 or 1 on, nearly without gaps, are rare and common in turn, as codes are; and not since
    people round them."""
    rounded = numbers.counts[numbers.values % ROUND == 0].sum()
    if rounded > MOST_ROUND * numbers.counts.sum():
        return False
    return _begin(numbers) and numbers.spacing <= DENSE and numbers.detours >= ERRATIC
