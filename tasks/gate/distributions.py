"""The distributions of a column in several versions, as counts in common cells: single values, buckets, bins, hours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tasks.engines.hashing import murmur3
from tasks.gate.contract_values import format_percent
from tasks.gate.distances import DISTANCES, Array, Distance, count_in_cells, noise, quantile_cells, to_shares
from tasks.gate.expected_range import TREND, WeekdayCalendar, limit_error, predict
from tasks.gate.figures import family, format_value
from tasks.profile.output_profile import BUCKETS, TOP, ColumnProfile, bin_edges

MOST_NAMES = 400  # most values with a cell of their own
FREQUENT = 20  # most of them that have a cell of a PSI
FOLDED = 16  # cells of a PSI into which buckets are summed
FLOORS = {"l_infinity": 0.03, "jensen_shannon": 0.05, "psi": 0.1}  # changes that never count
MANY = 64  # cells beyond which chance alone moves a distribution, and one or two versions do not tell by how much
EARLY = {"l_infinity": 0.2, "jensen_shannon": 0.3, "psi": 0.5}  # floors with few versions
A_WEEK = 7  # versions: with fewer, a value that is missing at weekends looks as if it had vanished
EXPECTED_ROWS = 20  # of a value that has vanished: fewer may be missing by chance, or because one visitor stayed away


@dataclass(frozen=True)
class Cells:
    """The counts of earlier versions (versions x cells, oldest first) and of the batch, with a label for each cell."""

    part: str  # what a cell is: values, buckets, bins or hours
    past: Array
    now: Array
    labels: Sequence[str]

    def for_psi(self) -> Cells:
        """Merge cells into the few over which a PSI is meaningful: the most frequent values and the rest, or summed
        buckets."""
        if self.part in ("bins", "hours") or (self.part == "values" and len(self.now) <= FREQUENT + 1):
            return self
        if self.part == "values":
            order = np.argsort(-to_shares(self.past).sum(axis=0), kind="stable")
            first = order[:FREQUENT]
            rest = order[FREQUENT:]
            past = np.concatenate([self.past[:, first], self.past[:, rest].sum(axis=1, keepdims=True)], axis=1)
            now = np.concatenate([self.now[first], [self.now[rest].sum()]])
            return Cells(self.part, past, now, [*(self.labels[place] for place in first), "all other values"])
        past = self.past.reshape(len(self.past), -1, FOLDED).sum(axis=1)
        labels = [f"one sixteenth of the values, by hash ({place})" for place in range(FOLDED)]
        return Cells(self.part, past, self.now.reshape(-1, FOLDED).sum(axis=0), labels)


def has_all_values(column: ColumnProfile) -> bool:
    """Return whether a profile names every value of a column."""
    return column.top_exact and len(column.top) >= round(column.distinct)


def list_cells(past: Sequence[ColumnProfile], now: ColumnProfile) -> list[Cells]:
    """List the distributions of a column that can be compared over these versions.

    Values are the most exact; buckets and bins are added unless values cover all rows.
    """
    every = [*past, now]
    kind = family(now)
    ways: list[Cells] = []
    named = all(column.top_exact for column in every)
    if named and (values := _count_by_value(past, now)) is not None:
        ways.append(values)
    whole = named and all(has_all_values(column) for column in every)
    if all(column.buckets for column in every) and (not ways or not whole):
        counts = np.array([column.buckets for column in every], np.float64)
        ways.append(Cells("buckets", counts[:-1], counts[-1], _name_buckets(past[-1], now)))
    if kind == "number" and not (ways and whole) and all(column.bins for column in every):
        ends = quantile_cells([column.bins or {} for column in past])
        counts = np.stack([count_in_cells(column.bins or {}, ends) for column in every])
        ways.append(Cells("bins", counts[:-1], counts[-1], _name_bins(ends)))
    if kind == "moment" and all(column.hours for column in every):
        counts = np.array([column.hours for column in every], np.float64)
        ways.append(Cells("hours", counts[:-1], counts[-1], [f"{hour:02}:00 UTC" for hour in range(24)]))
    return ways


def _count_by_value(past: Sequence[ColumnProfile], now: ColumnProfile) -> Cells | None:
    """Count each named value, and all others together; None if too many values are named."""
    names: dict[tuple[str, Any], int] = {}
    for column in (*past, now):
        for value, _ in column.top:
            names.setdefault((type(value).__name__, value), len(names))
    if len(names) > MOST_NAMES:
        return None
    counts = np.zeros((len(past) + 1, len(names) + 1))
    for version, column in enumerate((*past, now)):
        for value, count in column.top:
            counts[version, names[type(value).__name__, value]] = count
        counts[version, -1] = max(column.values - counts[version].sum(), 0.0)
    labels = [*(repr(value) for _, value in names), "all other values"]
    return Cells("values", counts[:-1], counts[-1], labels)


def _name_buckets(before: ColumnProfile, now: ColumnProfile) -> list[str]:
    """Name each bucket by the most frequent value that hashes to it, if a profile names one."""
    names = [f"bucket {n} of values" for n in range(BUCKETS)]
    counted = sorted(dict((*before.top, *now.top)).items(), key=lambda one: one[1])
    values = [value for value, _ in counted if isinstance(value, str if family(now) == "text" else int)]
    huge = any(isinstance(value, int) and value >= 2**63 for value in values)
    for value, number in zip(values, murmur3.hash_array(pa.array(values, pa.uint64() if huge else None)), strict=True):
        names[number % BUCKETS] = f"{value!r} and others of its hash"
    return names


def _name_bins(ends: Array) -> list[str]:
    edges = [format_value(float(f"{bin_edges(int(end))[1]:.3g}")) for end in ends]
    if not edges:
        return ["all values"]
    between = [f"{low} .. {high}" for low, high in pairwise(edges)]
    return [f"values up to {edges[0]}", *(f"values in {text}" for text in between), f"values above {edges[-1]}"]


@dataclass(frozen=True)
class Moved:
    """How far a distribution is from what was expected, by one distance."""

    check: str  # the name of the distance
    figure: float
    threshold: float
    early: bool  # whether few versions are known
    label: str  # of the cell that moved most
    before: float  # its share before
    now: float

    @property
    def most(self) -> str:
        return f"{self.label}: {format_percent(self.before)} -> {format_percent(self.now)}"


@dataclass(frozen=True)
class References:
    """The shares of cells that a batch is compared with.

    near: those that it may be near to: of the last version, of the same weekday, and the predicted ones.
    left_out: what the other versions predict for each version; None with too few of them.
    """

    near: list[Array]
    left_out: Array | None


def find_references(cells: Cells, design: WeekdayCalendar) -> References:
    """Find the shares that a batch may be near to.

    Predictions are made of the roots of the shares, on which the sampling error of a share is the same for all shares.
    """
    past = to_shares(cells.past)
    near = [past[-1]] + ([past[design.same_weekday]] if design.same_weekday is not None else [])
    if len(past) < TREND:
        return References(near, None)
    predicted = predict(np.sqrt(past), design, robust=False)
    expected = np.clip(predicted.center, 0.0, None) ** 2
    return References([*near, expected], np.clip(predicted.left_out, 0.0, None) ** 2)


def measure_move(name: str, cells: Cells, known: References, chance: float, z: float, version_count: int) -> Moved:
    """Measure one distance of the batch's distribution from the nearest of its references.

    The threshold is the largest of: a floor; the noise of the sample; what the distances of earlier versions exceed by
    chance only; and one and a half times the largest of these. The distance of an earlier version is measured in the
    same way, from a prediction that is made without it.
    """
    distance = DISTANCES[name]
    past = to_shares(cells.past)
    now = to_shares(cells.now)
    before = [] if known.left_out is None else _past_distances(distance, past, known.left_out)
    far = [float(distance(now, reference)) for reference in known.near]
    figure = min(far)
    nearest = known.near[int(np.argmin(far))]
    bound = noise(name, nearest, float(cells.now.sum()), float(cells.past[-1].sum()), z)
    early = len(past) < version_count
    floor = EARLY[name] if early else FLOORS[name]
    if name == "jensen_shannon" and len(now) > MANY and len(before) < 2:
        floor = 1.0  # no distance is larger
    threshold = max(floor, bound)
    if len(before) >= 2:
        middle = float(np.median(before))
        spread = max(1.4826 * float(np.median(np.abs(np.array(before) - middle))), 0.5 * float(np.std(before)))
        reach = middle + float(limit_error(np.array(spread), len(before) - 1, chance))
        threshold = max(threshold, min(reach, 4 * max(before)), 1.5 * max(before))
    change = np.abs(now - to_shares(nearest))
    place = int(change.argmax())
    return Moved(
        name, figure, threshold, early, cells.labels[place], float(to_shares(nearest)[place]), float(now[place])
    )


def _past_distances(distance: Callable[[Array, Array], Distance], past: Array, left_out: Array) -> list[float]:
    """Measure the distance of each version but the first from the nearer of its prediction and the version before."""
    nearest = np.minimum(distance(past[1:], left_out[1:]), distance(past[1:], past[:-1]))
    return [float(one) for one in nearest]


class Newcomers(NamedTuple):
    """Values that no earlier version names, with their counts; their share; the largest such share of a version."""

    values: list[tuple[Any, int]]
    share: float
    largest_before: float


def find_newcomers(past: Sequence[ColumnProfile], now: ColumnProfile) -> Newcomers | None:
    """Find the new values of a batch; None unless every value was counted, in enough versions.

    Of a column with more values than a profile names, only those count that would have been named before: by their
    share, and by their number, because one visitor has as many rows in a small batch as in a large one.
    """
    if len(past) < 3 or not all(column.top_exact for column in (*past, now)) or not now.values:
        return None
    known: dict[tuple[str, Any], int] = {}
    least = 0.0
    fewest = 0
    largest = 0.0

    def list_unknown(column: ColumnProfile) -> list[tuple[Any, int]]:
        rows = max(least * column.values, fewest)
        return [(value, n) for value, n in column.top if (type(value).__name__, value) not in known and n > rows]

    for version, column in enumerate(past):
        if version >= 2:
            largest = max(largest, sum(n for _, n in list_unknown(column)) / max(column.values, 1))
        known |= {(type(value).__name__, value): version for value, _ in column.top}
        if not has_all_values(column) and len(column.top) >= TOP:
            fewest = max(fewest, 2 * column.top[-1][1])
            least = max(least, 2 * column.top[-1][1] / max(column.values, 1))
    new = list_unknown(now)
    return Newcomers(new, sum(n for _, n in new) / now.values, largest)


class Vanished(NamedTuple):
    """Values that every earlier version had and the batch lacks, with the least share that each had in a version; the
    sum of these shares; the largest such sum of a version."""

    values: list[tuple[Any, float]]
    share: float
    largest_before: float


def find_vanished_values(past: Sequence[ColumnProfile], now: ColumnProfile) -> Vanished | None:
    """Find the values that are gone; None unless every value was counted, in enough versions.

    Of a column with more values than a profile names, a value counts as gone if it is not named, though it would be
    with half of its least share.
    """
    if len(past) < A_WEEK or not all(column.top_exact for column in (*past, now)) or not now.values:
        return None
    least: dict[tuple[str, Any], float] = {}

    def list_missing(column: ColumnProfile) -> list[tuple[Any, float]]:
        named = {(type(value).__name__, value) for value, _ in column.top}
        # A value with this many rows would be named even if it had lost half of them.
        unnamed = 0 if has_all_values(column) else 2 * column.top[-1][1]
        fewest = max(EXPECTED_ROWS, unnamed) / max(column.values, 1)
        gone = [(key[1], share) for key, share in least.items() if key not in named and share > fewest]
        return sorted(gone, key=lambda one: -one[1])

    largest = 0.0
    for version, column in enumerate(past):
        if version >= 2:
            largest = max(largest, sum(share for _, share in list_missing(column)))
        shares_of = {(type(value).__name__, value): n / max(column.values, 1) for value, n in column.top}
        if version:
            least = {key: min(share, shares_of[key]) for key, share in least.items() if key in shares_of}
        else:
            least = shares_of
    gone = list_missing(now)
    return Vanished(gone, sum(share for _, share in gone), largest)
