"""The distribution of a column over the nights, as counts in common cells: values by name, buckets of values, bins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tasks.engines.hashing import murmur3
from tasks.gate.contract_values import percent
from tasks.gate.distances import DISTANCES, Array, Distance, in_cells, noise, quantile_cells, shares
from tasks.gate.expected_range import TREND, WeekdayCalendar, limit, predict
from tasks.gate.figures import family, format_limit
from tasks.profile.output_profile import BUCKETS, TOP, ColumnProfile, bin_edges

MOST_NAMES = 400  # values that are cells of their own
FREQUENT = 20  # of them are cells of a PSI
FOLDED = 16  # cells of a PSI into which buckets go
FLOORS = {"l_infinity": 0.03, "jensen_shannon": 0.05, "psi": 0.1}  # changes that never count
MANY = 64  # cells beyond which chance alone moves a distribution, and one or two nights do not tell by how much
EARLY = {"l_infinity": 0.2, "jensen_shannon": 0.3, "psi": 0.5}  # with few nights
A_WEEK = 7  # nights: with fewer, nothing tells a value that has vanished from one that is missing at weekends
EXPECTED_ROWS = 20  # of a value that has vanished: fewer may be missing by chance, or since one visitor did not come


@dataclass(frozen=True)
class Cells:
    """Counts of the nights before (nights x cells, oldest first) and of tonight, and what each cell is for people."""

    part: str
    past: Array
    now: Array
    labels: Sequence[str]

    def for_psi(self) -> Cells:
        """The few cells over which a PSI means something: the most frequent values and the rest, or folded buckets."""
        if self.part in ("bins", "hours") or (self.part == "values" and len(self.now) <= FREQUENT + 1):
            return self
        if self.part == "values":
            order = np.argsort(-shares(self.past).sum(axis=0), kind="stable")
            first = order[:FREQUENT]
            rest = order[FREQUENT:]
            past = np.concatenate([self.past[:, first], self.past[:, rest].sum(axis=1, keepdims=True)], axis=1)
            now = np.concatenate([self.now[first], [self.now[rest].sum()]])
            return Cells(self.part, past, now, [*(self.labels[place] for place in first), "all other values"])
        past = self.past.reshape(len(self.past), -1, FOLDED).sum(axis=1)
        labels = [f"one sixteenth of the values, by hash ({place})" for place in range(FOLDED)]
        return Cells(self.part, past, self.now.reshape(-1, FOLDED).sum(axis=0), labels)


def has_all_values(column: ColumnProfile) -> bool:
    """Whether a profile names every value of a column."""
    return column.top_exact and len(column.top) >= round(column.distinct)


def cells_of(past: Sequence[ColumnProfile], now: ColumnProfile) -> list[Cells]:
    """The distributions of a column that can be compared over these nights."""
    every = [*past, now]
    kind = family(now)
    ways: list[Cells] = []
    named = all(column.top_exact for column in every)
    if named and (values := _by_name(past, now)) is not None:
        ways.append(values)
    whole = named and all(has_all_values(column) for column in every)
    if all(column.buckets for column in every) and (not ways or not whole):
        counts = np.array([column.buckets for column in every], np.float64)
        ways.append(Cells("buckets", counts[:-1], counts[-1], _bucket_names(past[-1], now)))
    if kind == "number" and not (ways and whole) and all(column.bins for column in every):
        ends = quantile_cells([column.bins or {} for column in past])
        counts = np.stack([in_cells(column.bins or {}, ends) for column in every])
        ways.append(Cells("bins", counts[:-1], counts[-1], _labels(ends)))
    if kind == "moment" and all(column.hours for column in every):
        counts = np.array([column.hours for column in every], np.float64)
        ways.append(Cells("hours", counts[:-1], counts[-1], [f"{hour:02}:00 UTC" for hour in range(24)]))
    return ways


def _by_name(past: Sequence[ColumnProfile], now: ColumnProfile) -> Cells | None:
    names: dict[tuple[str, Any], int] = {}
    for column in (*past, now):
        for value, _ in column.top:
            names.setdefault((type(value).__name__, value), len(names))
    if len(names) > MOST_NAMES:
        return None
    counts = np.zeros((len(past) + 1, len(names) + 1))
    for night, column in enumerate((*past, now)):
        for value, count in column.top:
            counts[night, names[type(value).__name__, value]] = count
        counts[night, -1] = max(column.values - counts[night].sum(), 0.0)
    labels = [*(repr(value) for _, value in names), "all other values"]
    return Cells("values", counts[:-1], counts[-1], labels)


def _bucket_names(before: ColumnProfile, now: ColumnProfile) -> list[str]:
    """What is in each bucket: the most frequent value that hashes to it, where a profile names one."""
    names = [f"bucket {n} of values" for n in range(BUCKETS)]
    counted = sorted(dict((*before.top, *now.top)).items(), key=lambda one: one[1])
    values = [value for value, _ in counted if isinstance(value, str if family(now) == "text" else int)]
    huge = any(isinstance(value, int) and value >= 2**63 for value in values)
    for value, number in zip(values, murmur3.hash_array(pa.array(values, pa.uint64() if huge else None)), strict=True):
        names[number % BUCKETS] = f"{value!r} and others of its hash"
    return names


def _labels(ends: Array) -> list[str]:
    edges = [format_limit(float(f"{bin_edges(int(end))[1]:.3g}")) for end in ends]
    if not edges:
        return ["all values"]
    between = [f"{low} .. {high}" for low, high in pairwise(edges)]
    return [f"values up to {edges[0]}", *(f"values in {text}" for text in between), f"values above {edges[-1]}"]


@dataclass(frozen=True)
class Moved:
    """How far a distribution is from what was expected: `figure` and `threshold` of one distance, the cell that moved
    most with its share before and now, and the distances of the nights before."""

    check: str
    figure: float
    threshold: float
    early: bool
    label: str
    before: float
    now: float

    @property
    def most(self) -> str:
        return f"{self.label}: {percent(self.before)} -> {percent(self.now)}"


@dataclass(frozen=True)
class References:
    """The shares that tonight's may be near to (the last night's, the same weekday's, the expected ones), and what each
    night before was expected to be."""

    near: list[Array]
    left_out: Array | None


def references(cells: Cells, design: WeekdayCalendar) -> References:
    past = shares(cells.past)
    near = [past[-1]] + ([past[design.same_weekday]] if design.same_weekday is not None else [])
    if len(past) < TREND:
        return References(near, None)
    predicted = predict(np.sqrt(past), design, robust=False)
    expected = np.clip(predicted.center, 0.0, None) ** 2
    return References([*near, expected], np.clip(predicted.left_out, 0.0, None) ** 2)


def measure_move(name: str, cells: Cells, known: References, chance: float, z: float, version_count: int) -> Moved:
    """One distance of tonight's distribution from the nearest of its references.

    The threshold: what is passed by chance by the distances of the nights before, each measured in the same way (its
    prediction made without it), half as much again as the largest of them, the noise of the sample, and a floor.
    """
    distance = DISTANCES[name]
    past = shares(cells.past)
    now = shares(cells.now)
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
        reach = middle + float(limit(np.array(spread), len(before) - 1, chance))
        threshold = max(threshold, min(reach, 4 * max(before)), 1.5 * max(before))
    change = np.abs(now - shares(nearest))
    place = int(change.argmax())
    return Moved(name, figure, threshold, early, cells.labels[place], float(shares(nearest)[place]), float(now[place]))


def _past_distances(distance: Callable[[Array, Array], Distance], past: Array, left_out: Array) -> list[float]:
    """The distance of each night but the first from the nearer of its prediction and the night before it."""
    nearest = np.minimum(distance(past[1:], left_out[1:]), distance(past[1:], past[:-1]))
    return [float(one) for one in nearest]


class Newcomers(NamedTuple):
    """Values that no night before has named, with their counts, and their share; the largest such share of a night
    before."""

    values: list[tuple[Any, int]]
    share: float
    largest_before: float


def newcomers(past: Sequence[ColumnProfile], now: ColumnProfile) -> Newcomers | None:
    """The new values of tonight; None unless every value was counted, on enough nights.

    Of a column with more values than a profile names, only those count that would have been named before: by their
    share, and by their number, since the rows of a visitor are not fewer in a night that has fewer rows.
    """
    if len(past) < 3 or not all(column.top_exact for column in (*past, now)) or not now.values:
        return None
    known: dict[tuple[str, Any], int] = {}
    least = 0.0
    fewest = 0
    largest = 0.0

    def strangers(column: ColumnProfile) -> list[tuple[Any, int]]:
        rows = max(least * column.values, fewest)
        return [(value, n) for value, n in column.top if (type(value).__name__, value) not in known and n > rows]

    for night, column in enumerate(past):
        if night >= 2:
            largest = max(largest, sum(n for _, n in strangers(column)) / max(column.values, 1))
        known |= {(type(value).__name__, value): night for value, _ in column.top}
        if not has_all_values(column) and len(column.top) >= TOP:
            fewest = max(fewest, 2 * column.top[-1][1])
            least = max(least, 2 * column.top[-1][1] / max(column.values, 1))
    new = strangers(now)
    return Newcomers(new, sum(n for _, n in new) / now.values, largest)


class Vanished(NamedTuple):
    """Values that every night before had and tonight has not, with the least share that they had in a night; the sum of
    these; the largest such sum of a night before."""

    values: list[tuple[Any, float]]
    share: float
    largest_before: float


def find_vanished_values(past: Sequence[ColumnProfile], now: ColumnProfile) -> Vanished | None:
    """The values that are gone tonight; None unless every value was counted, on enough nights.

    Of a column with more values than a profile names, a value counts as gone if it is not named, though it would be
    with half of its least share.
    """
    if len(past) < A_WEEK or not all(column.top_exact for column in (*past, now)) or not now.values:
        return None
    least: dict[tuple[str, Any], float] = {}

    def missing(column: ColumnProfile) -> list[tuple[Any, float]]:
        named = {(type(value).__name__, value) for value, _ in column.top}
        unnamed = (
            0 if has_all_values(column) else 2 * column.top[-1][1]
        )  # a value that is not named may have half as many
        fewest = max(EXPECTED_ROWS, unnamed) / max(column.values, 1)
        gone = [(key[1], share) for key, share in least.items() if key not in named and share > fewest]
        return sorted(gone, key=lambda one: -one[1])

    largest = 0.0
    for night, column in enumerate(past):
        if night >= 2:
            largest = max(largest, sum(share for _, share in missing(column)))
        shares_of = {(type(value).__name__, value): n / max(column.values, 1) for value, n in column.top}
        if night:
            least = {key: min(share, shares_of[key]) for key, share in least.items() if key in shares_of}
        else:
            least = shares_of
    gone = missing(now)
    return Vanished(gone, sum(share for _, share in gone), largest)
