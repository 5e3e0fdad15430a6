"""The checks of a batch: its profile against the last good version, and against what the earlier ones predict.

Every check compares a figure with a threshold. A threshold that the job does not set is the largest of four parts: a
floor below which no change matters, the noise of a sample of so many rows, the scatter of the same figure over the good
versions, and (for distributions) the largest distance between these. A batch passes if it is near any of: the
prediction by trend and weekday, the last version, the last version of the same weekday.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from statistics import NormalDist

import numpy as np

from tasks.core.contract import Contract
from tasks.core.settings import OF_STEPS, Check, Checks
from tasks.core.strict_json import JsonObject
from tasks.gate.contract_values import format_percent, format_value
from tasks.gate.distances import Array, count_in_cells, jensen_shannon, quantile_cells
from tasks.gate.distributions import (
    Cells,
    Moved,
    References,
    find_newcomers,
    find_references,
    find_vanished_values,
    has_all_values,
    list_cells,
    measure_move,
)
from tasks.gate.earlier_outputs import Past
from tasks.gate.expected_range import (
    ROWS_CHANCE,
    TREND,
    WINDOW,
    Expected,
    WeekdayCalendar,
    describe_change,
    describe_row_change,
    expect_rows,
    limit_error,
    make_calendar,
    predict,
)
from tasks.gate.figures import (
    Key,
    Scale,
    choose_scale,
    compute_figures,
    compute_noise,
    family,
    format_values,
    share_below,
)
from tasks.gate.verdict import Finding, Level
from tasks.profile.output_profile import Association, ColumnProfile, Profile

CHANCE = 0.01  # of a false alarm for a normal batch, in all checks but `rows` together
DRIFT = 0.25  # standard deviations by which a column's values move from batch to batch: its bins are not compared then
DRIFTING = ("mean", "extremes", "quantiles")  # of ids and times, these move in every batch: they need a trend first
# share and number of rows with values that no earlier version had
NEW_FLOOR = 0.001
NEW_ROWS = 10
NEW_OF_MANY = 0.05  # the share where a profile names the most frequent values only: a new product may sell at once
# shares of rows with values that have vanished, though every earlier version had them
GONE_FLOOR = 0.005
GONE_OF_MANY = 0.01
STRONG = 0.05  # Cramér's V from which on two columns are associated ..
SURE = 3.5  # .. if its square is so many standard deviations, of chance or between versions, above 0
ASSOCIATION_LOST = 0.5  # the share of its mean strength that an association loses, for a finding ..
PARTNERS = 3  # .. with each of the columns with which it was strongest
FEW_VALUES = 100  # values of a column: with fewer, the number of distinct ones says little
TWICE_CELLS = 64  # counts that must have a common divisor: fewer may have one by chance


@dataclass
class BatchChecks:
    """The profile of a batch, and the good versions with which it is compared."""

    profile: Profile
    history: list[Past]
    settings: Checks
    day: date | None
    notes: list[str] = field(default_factory=list)
    proposed: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    has_more_rows: bool = False  # than expected

    def __post_init__(self) -> None:
        days = [past.day for past in self.history if past.day is not None]
        if len(days) == len(self.history):  # a version of an earlier run date may have been published later
            self.history.sort(key=lambda past: past.day or date.min, reverse=True)
        self.past = self.history[:WINDOW][::-1]  # oldest first
        last = self.past[-1].profile.columns if self.past else {}
        names = self.profile.columns
        self.retyped = [
            name for name in names if name in last and family(names[name]) != family(last[name]) and names[name].values
        ]
        self.columns = [name for name in sorted(names) if name not in self.retyped]
        own = compute_figures(self.profile)
        self.figures = {key: value for key, value in own.items() if key.column not in self.retyped}
        self.past_figures = [past.figures for past in self.past]
        distances = 5 * len(self.columns)
        self.chance = CHANCE / max(len(self.figures) + distances, 1)
        self.z = _to_standard_errors(self.chance)
        self.calendars: dict[tuple[int, ...], WeekdayCalendar] = {}

    # levels, thresholds and words

    def settings_of(self, name: str) -> Check:
        return self.settings.check(name)

    def choose_level(self, check: str, version_count: int) -> Level | None:
        """Choose the level of a finding of a check; None if the check is off.

        With few versions a finding only warns, unless the job sets the level or the threshold.
        """
        settings = self.settings_of(check)
        if settings.level == "off":
            return None
        if settings.level is not None:
            return settings.level
        set_by_user = settings.threshold is not None or version_count >= self.settings.nights
        return self.settings.on_finding if set_by_user else "warn"

    def propose(self, check: str, name: str, threshold: float) -> None:
        """Note the threshold of a check for `_gate.json`; for figures of one name, the largest counts."""
        known = self.proposed[check].get(name, 0.0)
        self.proposed[check][name] = max(known, float(f"{threshold:.4g}"))

    def effective_threshold(self, check: str, name: str, version_count: int, learned: float) -> float:
        """Return the threshold that the job sets, else the learned one, which is proposed after enough versions."""
        if version_count >= self.settings.nights:
            self.propose(check, name, learned)
        set_by_user = self.settings_of(check).threshold
        return learned if set_by_user is None else set_by_user

    def is_column_of_check(self, check: str, column: str) -> bool:
        columns = self.settings_of(check).columns
        return columns is None or any(name in columns for name in column.split(", "))

    def title_of(self, key: Key) -> str:
        """Name the column of a figure, or the columns of its step; "" for figures of the rows."""
        if key.column in self.profile.steps and key.check in OF_STEPS:
            step = self.profile.steps[key.column]
            return ", ".join(step.columns)
        return key.column

    def calendar_of(self, places: tuple[int, ...]) -> WeekdayCalendar:
        if places not in self.calendars:
            self.calendars[places] = make_calendar([self.past[place].day for place in places], self.day)
        return self.calendars[places]

    def describe_comparison(self, version_count: int, design: WeekdayCalendar) -> str:
        """Describe what a figure is compared with."""
        if version_count == 1:
            return f"{self.past[-1].version} had"
        weekday = " and the weekday" if design.weekdays else ""
        return f"{version_count} good nights{weekday} predict"

    # checks

    def check_columns(self, contract: Contract | None) -> Iterator[Finding]:
        """Check for columns of the source, read or not, that are new, missing or of another type than in the last
        version."""
        level = self.choose_level("columns", len(self.past))
        if not self.past or level is None:
            return
        last = self.past[-1].profile.types
        now = self.profile.types
        earlier = {name for past in self.past for name in past.profile.types}
        ruled = contract.columns if contract else {}
        version = self.past[-1].version
        for name in sorted({*last, *now}):
            if name in ruled:
                continue
            unread = " (the job does not read it)" if name in self.profile.unread else ""
            if name not in now:
                text = f"{name}: the column is missing, {version} had it as {last[name]}"
                yield Finding(name, "columns", None, last[name], 1.0, 0.0, level, text)
            elif name not in earlier:
                text = f"{name}: the column ({now[name]}) is new, {version} did not have it{unread}"
                yield Finding(name, "columns", now[name], None, 1.0, 0.0, level, text)
            elif name in last and now[name] != last[name] and "null" not in (now[name], last[name]):
                text = f"{name}: the column is {now[name]}, it was {last[name]} in {version}{unread}"
                yield Finding(name, "columns", now[name], last[name], 1.0, 0.0, level, text)

    def check_constants(self) -> Iterator[Finding]:
        """Check for columns with one value in all rows that had several in every earlier version."""
        for name in self.columns:
            now = self.profile.columns[name]
            past = self.find_earlier_columns(name)[1]
            level = self.choose_level("constant", len(past))
            if level is None or not past or now.values < 20 or not now.is_constant:
                continue
            fewest = min(round(column.distinct) for column in past)
            if fewest >= 2:
                only = format_value(now.top[0][0] if now.top else now.minimum)
                text = f"{name}: all {now.values:,} values are {only!r}, the good nights had at least {fewest:,}"
                yield Finding(name, "constant", 1, fewest, 1.0, 0.0, level, f"{text} different ones")

    def find_earlier_columns(self, name: str) -> tuple[tuple[int, ...], list[ColumnProfile]]:
        """Find the earlier versions that have a column in the same family of types.

        Returns their places in `past`, and the column of each.
        """
        kind = family(self.profile.columns[name])
        places = []
        columns = []
        for place, past in enumerate(self.past):
            column = past.profile.columns.get(name)
            if column is not None and column.values and family(column) == kind:
                places.append(place)
                columns.append(column)
        return tuple(places), columns

    def check_figures(self) -> Iterator[Finding]:
        """Check for figures that are far from all of: their prediction, the last version, the last of the weekday."""
        for places, keys in self._group_figures().items():
            design = self.calendar_of(places)
            profiles = [self.past[n].profile for n in places]
            figures = [self.past_figures[n] for n in places]
            scales = [choose_scale(key, profiles, figures, self.profile) for key in keys]
            scale_by_key = dict(zip(keys, scales, strict=True))
            past = np.array([[scale.to(values[key]) for key, scale in scale_by_key.items()] for values in figures])
            prediction = predict(past, design)
            reach = limit_error(prediction.scale, design.degrees, self.chance)
            for number, (key, scale) in enumerate(zip(keys, scales, strict=True)):
                near = [float(prediction.center[number]), *(float(row[number]) for row in prediction.others)]
                expected = self._expect(key, past[:, number], near, places, design)
                far = float(reach[number])
                if key.check == "rows":
                    far = float(limit_error(prediction.scale[number], design.degrees, ROWS_CHANCE))
                finding = self.check_figure(key, scale, expected, far, places, design)
                if finding is not None:
                    yield finding

    def _group_figures(self) -> dict[tuple[int, ...], list[Key]]:
        """Group the batch's figures by the versions that have them, without those that too few versions have."""
        groups: dict[tuple[int, ...], list[Key]] = defaultdict(list)
        for key in sorted(self.figures):
            places = tuple(place for place, figures in enumerate(self.past_figures) if key in figures)
            settings = self.settings_of(key.check)
            needs_trend = key.check in DRIFTING and settings.threshold is None
            if len(places) >= (TREND if needs_trend else 1) and settings.level != "off":
                groups[places].append(key)
        return groups

    def _expect(
        self, key: Key, past: Array, near: list[float], places: tuple[int, ...], design: WeekdayCalendar
    ) -> Expected:
        """Compute what a figure is expected to be, on its scale; `near` are its predictions."""
        early = len(places) < self.settings.nights
        if key.check == "rows":
            days, versions = zip(*((self.past[n].day, self.past[n].version) for n in places), strict=True)
            return expect_rows(list(past), days, versions, self.day, near, design, early)
        if early and key.check in DRIFTING and len(places) > 1:  # a counter may grow by steps of any size
            return Expected(near, 2 * float(np.abs(np.diff(past)).max()))
        if early and key.check == "distinct":  # fewer rows have fewer values
            rows = max(self.profile.rows, 1) / max(self.past[places[-1]].profile.rows, 1)
            return Expected([*near, float(past[-1]) + math.log(rows)])
        return Expected(near)

    def check_figure(
        self, key: Key, scale: Scale, before: Expected, reach: float, places: tuple[int, ...], design: WeekdayCalendar
    ) -> Finding | None:
        """Compare a figure with what is expected; None if it is near enough, or its check is off."""
        value = self.figures[key]
        last = self.past_figures[places[-1]][key]
        column = self.profile.columns.get(key.column)
        now = scale.to(value)
        early = len(places) < self.settings.nights
        expected = min(before.near, key=lambda one: abs(now - one))
        less, more = self._limit_changes(key, scale, before, reach, places, design)
        bound = more if now >= expected else -less
        figure = scale.change(now, expected)
        threshold = scale.change(expected + bound, expected)
        if not early:
            widest = max(scale.change(expected + side, expected) for side in (more, -less))
            self.propose(key.check, self.title_of(key), widest)
        set_by_user = self.settings_of(key.check).threshold
        threshold = threshold if set_by_user is None else set_by_user
        level = self.choose_level(key.check, len(places))
        if level is None or not figure > threshold or (key.check == "repeated" and now <= expected):
            return None
        if (
            key.check == "quantiles"
            and set_by_user is None
            and not self.is_quantile_shift(key, column, scale.back(expected))
        ):
            return None
        self.has_more_rows |= key.check == "rows" and now > expected
        kind = family(column) if column else ""
        texts = format_values(key, value, scale.back(expected), kind)
        text = _describe_figure(key, self.title_of(key), texts, figure, threshold, now > expected, kind)
        text = text.replace("{compared}", before.compared or self.describe_comparison(len(places), design))
        return Finding(
            self.title_of(key),
            key.check,
            _to_plain_number(value),
            _to_plain_number(last),
            figure,
            threshold,
            level,
            text,
        )

    def _limit_changes(
        self, key: Key, scale: Scale, before: Expected, reach: float, places: tuple[int, ...], design: WeekdayCalendar
    ) -> tuple[float, float]:
        """Compute how much less and how much more than expected a figure may be, on its scale.

        That is the largest of its floor, of what `before` allows at least and, with enough versions, of `reach`: but
        at most what `before` allows, and at least the noise of a sample.
        """
        z = _to_standard_errors(ROWS_CHANCE) if key.check == "rows" else self.z
        column = self.profile.columns.get(key.column)
        noise = compute_noise(key, column, self.figures[key], *self.count_values(key, places[-1]), z, scale)
        parts = [scale.early if len(places) < self.settings.nights else scale.floor, before.least]
        if design.degrees >= 3:
            parts.append(reach)
        less, more = (max(min(max(parts), most), noise) for most in (before.fewer, before.more))
        return less, more

    def count_values(self, key: Key, place: int) -> tuple[int, int]:
        """Count the values from which a figure was made: the batch's, and those of the version at `place`."""
        if key.check in OF_STEPS:
            steps = self.past[place].profile.steps.get(key.column)
            return self.profile.steps[key.column].rows, steps.rows if steps else 1
        last = self.past[place].profile
        if key.check == "repeated":
            return self.profile.compared, last.compared
        if not key.column:
            return self.profile.rows, last.rows
        now = self.profile.columns[key.column]
        before = last.columns[key.column]
        if key.check == "quantiles":
            return now.in_bins, before.in_bins
        return (now.rows, before.rows) if key.check == "nulls" else (now.values, before.values)

    def is_quantile_shift(self, key: Key, column: ColumnProfile | None, expected: float) -> bool:
        """Return whether a quantile has moved for many rows.

        A quantile between two frequent values jumps though almost nothing has changed. So the share of rows below the
        expected value must differ from the quantile's, by more than 5 points and the noise.
        """
        if column is None or not column.bins:
            return False
        q = float(key.part.split()[0]) / 100
        step = max(abs(expected) / 16, 1e-300)
        below = share_below(column.bins, expected - step)
        upto = share_below(column.bins, expected + step)
        room = 0.05 + self.z * math.sqrt(q * (1 - q) / max(column.in_bins, 1))
        return below > q + room or upto < q - room

    def check_distributions(self) -> Iterator[Finding]:
        """Check for distributions that have moved, and for pairs of columns that look swapped."""
        spread: list[str] = []
        for name in self.columns:
            places, past = self.find_earlier_columns(name)
            now = self.profile.columns[name]
            if not past or not now.values:
                continue
            if drifts := self.is_drifting(name, places):
                self.notes.append(f"{name}: its values move on every night: compared by mean and extremes, not by bins")
            for cells in list_cells(past, now):
                if cells.part == "bins" and (drifts or (len(places) < 2 and _may_be_counter(past[-1], now))):
                    continue
                if cells.part == "values" and drifts and len(places) < self.settings.nights:
                    continue
                whole = (cells, find_references(cells, self.calendar_of(places)))
                few = cells.for_psi()
                ways = {"l_infinity": whole, "jensen_shannon": whole}
                ways["psi"] = whole if few is cells else (few, find_references(few, self.calendar_of(places)))
                for check, (chosen, known) in ways.items():
                    finding = self.check_distance(name, check, chosen, known, places)
                    if finding is not None:
                        yield finding
                        spread.append(name)
        yield from self.check_swapped_columns(list(dict.fromkeys(spread)))

    def check_distance(
        self, name: str, check: str, cells: Cells, near: References, places: tuple[int, ...]
    ) -> Finding | None:
        level = self.choose_level(check, len(places))
        if level is None:
            return None
        design = self.calendar_of(places)
        move = measure_move(check, cells, near, self.chance, self.z, self.settings.nights)
        if not move.early:
            self.propose(check, name, move.threshold)
        set_by_user = self.settings_of(check).threshold
        move = move if set_by_user is None else replace(move, threshold=set_by_user)
        if not move.figure > move.threshold:
            return None
        text = _describe_move(name, move).replace("{compared}", self.describe_comparison(len(places), design))
        return Finding(name, check, move.now, move.before, move.figure, move.threshold, level, text)

    def is_drifting(self, name: str, places: tuple[int, ...]) -> bool:
        """Return whether the numbers of a column grow so much with every batch that bins cannot be compared, as ids
        do."""
        means = [self.past_figures[place].get(Key("mean", name), math.nan) for place in places]
        deviations = [self.past[place].profile.columns[name].std or 0.0 for place in places]
        if len(means) < 2 or family(self.profile.columns[name]) != "number":
            return False
        middle = float(np.median(deviations))
        return middle > 0 and bool(abs(np.median(np.diff(means))) > DRIFT * middle)

    def check_swapped_columns(self, spread: Sequence[str]) -> Iterator[Finding]:
        """Check for pairs of columns of which each is nearer to the other's past than to its own."""
        level = self.choose_level("swapped", len(self.past))
        if level is None:
            return
        taken: set[str] = set()
        for number, one in enumerate(spread):
            for other in spread[number + 1 :]:
                if {one, other} & taken or not self.are_comparable(one, other):
                    continue
                crossed = max(self.measure_distance(one, other), self.measure_distance(other, one))
                own = min(self.measure_distance(one, one), self.measure_distance(other, other))
                if crossed < own / 2:
                    taken |= {one, other}
                    text = (
                        f"{one} and {other} look swapped: each is nearer to what the other was "
                        f"(Jensen-Shannon distance {crossed:.3g}) than to its own past ({own:.3g})"
                    )
                    yield Finding(f"{one}, {other}", "swapped", crossed, own, own, 2 * crossed, level, text)

    def are_comparable(self, one: str, other: str) -> bool:
        first = self.profile.columns[one]
        second = self.profile.columns[other]
        return family(first) == family(second) and bool(first.buckets) == bool(second.buckets)

    def measure_distance(self, now: str, past: str) -> float:
        """Measure the distance of a column of this batch from another column of the last good version."""
        column = self.profile.columns[now]
        before = next(one.profile.columns[past] for one in reversed(self.past) if past in one.profile.columns)
        if column.bins and before.bins and family(column) == "number":
            ends = quantile_cells([before.bins])
            return float(jensen_shannon(count_in_cells(column.bins, ends), count_in_cells(before.bins, ends)))
        if column.buckets and before.buckets:
            return float(jensen_shannon(column.buckets, before.buckets))
        return 0.0

    def check_new_values(self) -> Iterator[Finding]:
        """Check for values that no earlier version had, if they have more rows than new values used to have."""
        for name in self.columns:
            places, past = self.find_earlier_columns(name)
            now = self.profile.columns[name]
            level = self.choose_level("new_values", len(past))
            newcomers = find_newcomers(past, now) if level and not self.is_drifting(name, places) else None
            if newcomers is None or level is None:
                continue
            share = newcomers.share
            few = NEW_ROWS / max(now.values, 1)
            floor = NEW_FLOOR if all(has_all_values(column) for column in (*past, now)) else NEW_OF_MANY
            learned = max(floor, 3 * newcomers.largest_before, few)
            threshold = self.effective_threshold("new_values", name, len(past), learned)
            if not share > threshold:
                continue
            values = ", ".join(f"{value!r} ({count:,})" for value, count in newcomers.values[:5])
            text = (
                f"{name}: {format_percent(share)} of the values were in none of {len(past)} good nights: {values}"
                f"{', ..' if len(newcomers.values) > 5 else ''} (threshold {format_percent(threshold)})"
            )
            now_values = [value for value, _ in newcomers.values[:5]]
            yield Finding(name, "new_values", now_values, None, share, threshold, level, text)

    def check_vanished_values(self) -> Iterator[Finding]:
        """Check for values that every earlier version had and this batch lacks: the mirror of `check_new_values`."""
        for name in self.columns:
            places, past = self.find_earlier_columns(name)
            now = self.profile.columns[name]
            level = self.choose_level("vanished_values", len(past))
            gone = find_vanished_values(past, now) if level and not self.is_drifting(name, places) else None
            if gone is None or level is None:
                continue
            floor = GONE_FLOOR if all(has_all_values(column) for column in (*past, now)) else GONE_OF_MANY
            learned = max(floor, 3 * gone.largest_before)
            threshold = self.effective_threshold("vanished_values", name, len(past), learned)
            if not gone.share > threshold:
                continue
            values = ", ".join(f"{value!r} ({format_percent(share)})" for value, share in gone.values[:5])
            text = (
                f"{name}: values that had at least {format_percent(gone.share)} in each of {len(past)} good nights "
                "are gone: "
                f"{values}{', ..' if len(gone.values) > 5 else ''} (threshold {format_percent(threshold)})"
            )
            before = [value for value, _ in gone.values[:5]]
            yield Finding(name, "vanished_values", None, before, gone.share, threshold, level, text)

    def check_associations(self, swapped: Sequence[Finding]) -> Iterator[Finding]:
        """Check for columns that have lost their association with others: their values may be those of other rows.

        Columns that are swapped are left out.
        """
        past = [version.profile for version in self.past if version.profile.associations]
        level = self.choose_level("associations", len(past))
        if not past or level is None or not self.profile.associations:
            return
        threshold = self.settings_of("associations").threshold
        most_lost = ASSOCIATION_LOST if threshold is None else threshold
        pairs = _find_strong_pairs(self.profile, past)
        of_swapped = {name for finding in swapped for name in finding.column.split(", ")}
        lost = {name: _find_lost_association(name, pairs) for name in self.columns if name not in of_swapped}
        too_much = {name: one for name, one in lost.items() if one is not None and one.share > most_lost}
        reported: set[str] = set()
        # A column that has lost more partners comes first: it explains what these have lost with it.
        for name, one in sorted(too_much.items(), key=lambda item: (-len(item[1].partners), item[0])):
            if reported.issuperset(one.partners):  # all of them are reported already: the fault is theirs
                continue
            reported.add(name)
            strengths = [pairs[pair] for pair in _sort_pairs(name, one.partners)]
            was = ", ".join(f"{strength.before:.2f}" for strength in strengths)
            now = ", ".join(f"{strength.now:.2f}" for strength in strengths)
            text = (
                f"{name}: its values no longer go together with those of {', '.join(one.partners)}, as if they were of "
                f"other rows: Cramér's V is {now}; in {len(past)} good night{'s' * (len(past) > 1)} it was "
                f"{was} on average (lost {format_percent(one.share)}, threshold {format_percent(most_lost)})"
            )
            first = strengths[0]
            yield Finding(name, "associations", first.now, first.before, one.share, most_lost, level, text)

    def check_duplicates(self, findings: Sequence[Finding]) -> Iterator[Finding]:
        """Check for rows that were delivered twice: in this batch, or in this batch and an earlier one.

        Three signs count: the figures are those of an earlier version; the counts of all values have a common divisor;
        or there are more rows than expected, but not more distinct values.
        """
        level = self.choose_level("duplicated", self.settings.nights if self.past else 0)
        if level is None or not self.profile.rows:
            return
        for past in reversed(self.past):
            if past.day is not None and past.day == self.day:  # a rerun of a date has the same rows
                continue
            if _have_same_rows(self.profile, past.profile):
                text = f"the rows are those of {past.version}: {self.profile.rows:,} rows with the same values"
                yield Finding("", "duplicated", self.profile.rows, past.profile.rows, 1.0, 0.0, level, text)
                return
        times = _find_common_divisor(self.profile)
        if times > 1 and not any(_find_common_divisor(past.profile) % times == 0 for past in self.past):
            text = f"every row occurs {times} times: all counts of values are multiples of {times}"
            yield Finding("", "duplicated", times, 1, float(times), 1.0, level, text)
            return
        rows_finding = next((one for one in findings if one.check == "rows"), None)
        if rows_finding is None or not self.has_more_rows:
            return
        wide = [name for name in self.columns if self.has_many_values(name)]
        grown = [name for name in wide if self.measure_growth(name) > 0.5 * rows_finding.figure]
        if wide and not grown:
            text = (
                f"some rows look delivered twice: there are {format_percent(rows_finding.figure)} more rows than "
                f"expected, and not more distinct values of {', '.join(wide[:5])}"
            )
            yield replace(rows_finding, check="duplicated", now=self.profile.rows, level=level, text=text)

    def has_many_values(self, name: str) -> bool:
        """Return whether a column had a distinct value for every fifth row or more: new rows bring new values."""
        past = self.find_earlier_columns(name)[1]
        if not past or not all(column.is_distinct_known for column in (*past[-7:], self.profile.columns[name])):
            return False
        return past[-1].values >= FEW_VALUES and past[-1].distinct > 0.2 * past[-1].values

    def measure_growth(self, name: str) -> float:
        """Measure by how much the number of distinct values exceeds the largest of the last seven versions."""
        past = self.find_earlier_columns(name)[1][-7:]
        return self.profile.columns[name].distinct / max(column.distinct for column in past) - 1


@dataclass(frozen=True)
class PairStrength:
    """Cramér's V of two columns: the mean of the earlier versions, and that of this batch.

    `now` equals `before` unless it is surely less.
    """

    before: float
    now: float


@dataclass(frozen=True)
class LostAssociation:
    """The share of its association that a column has lost with each of its partners, at least; 1 is all."""

    partners: list[str]
    share: float


def _find_strong_pairs(profile: Profile, past: Sequence[Profile]) -> dict[tuple[str, str], PairStrength]:
    """Find the pairs of columns that are surely associated in the earlier versions, with their strengths."""
    pairs: dict[tuple[str, str], PairStrength] = {}
    for pair, association in profile.associations.items():
        earlier = [version.associations.get(pair, Association(0.0)) for version in past]
        squares = [one.v**2 for one in earlier]
        by_chance = float(np.mean([one.by_chance**2 for one in (association, *earlier)]))
        # Two errors add up: that of the mean of so many versions, and that of this batch.
        least = SURE * max(by_chance, float(np.std(squares))) * math.sqrt(1 + 1 / len(past))
        square = float(np.mean(squares))
        if square >= max(STRONG**2, least):
            before = math.sqrt(square)
            is_less = association.v**2 <= square - least
            pairs[pair] = PairStrength(before, association.v if is_less else before)
    return pairs


def _find_lost_association(name: str, pairs: Mapping[tuple[str, str], PairStrength]) -> LostAssociation | None:
    """Find what a column has lost of its strongest associations; None if it has none."""
    strong = [pair for pair in pairs if name in pair]
    strongest = sorted(strong, key=lambda pair: (-pairs[pair].before, pair))[:PARTNERS]
    if not strongest:
        return None
    partners = [other for pair in strongest for other in pair if other != name]
    return LostAssociation(partners, min(1 - pairs[pair].now / pairs[pair].before for pair in strongest))


def _sort_pairs(name: str, partners: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, other) if name < other else (other, name) for other in partners]


def _may_be_counter(before: ColumnProfile, now: ColumnProfile) -> bool:
    """Return whether a column of numbers may be a counter: then a move of its bins says nothing after a single
    version."""
    low = now.minimum
    return now.distinct > 0.5 * now.values or (isinstance(low, int | float) and low >= before.quantile(0.95))


def _to_standard_errors(chance: float) -> float:
    """Convert a probability to the number of standard errors that a normal variable exceeds with it, on both sides."""
    return -NormalDist().inv_cdf(chance / 2)


def _to_plain_number(value: float) -> int | float:
    return int(value) if float(value).is_integer() and abs(value) < 2**53 else float(value)


def _find_common_divisor(profile: Profile) -> int:
    """Find the largest number that divides the count of every value; 1 if there are few counts."""
    counts: list[Array] = []
    for column in profile.columns.values():
        for part in (column.buckets, list(column.bins.values()) if column.bins and column.sampled == 1 else None):
            if part:
                counts.append(np.array(part, np.int64))
    every = np.concatenate(counts) if counts else np.zeros(0, np.int64)
    every = every[every > 0]
    return int(np.gcd.reduce(every)) if len(every) >= TWICE_CELLS else 1


def _have_same_rows(one: Profile, other: Profile) -> bool:
    """Return whether two profiles are of the same rows."""
    shared = [name for name in one.columns if name in other.columns]
    if one.rows != other.rows or not shared:
        return False

    def parts(column: ColumnProfile) -> JsonObject:
        figures = {"nulls": column.nulls, "low": column.minimum, "high": column.maximum, "buckets": column.buckets}
        if column.sampled == 1:
            return figures | {"bins": dict(column.bins or {})}
        moments = [None if figure is None else f"{figure:.9g}" for figure in (column.mean, column.std)]
        return figures | {"moments": moments}  # a sample depends on the order of the rows, moments hardly do

    many = any(len(one.columns[name].bins or ()) > 8 or round(one.columns[name].distinct) > 50 for name in shared)
    return many and all(parts(one.columns[name]) == parts(other.columns[name]) for name in shared)


WORDS = {
    "repeated": "of the rows are equal to an earlier row",
    "nulls": "of the values are null",
    "out_of_vocabulary": "of the values (nulls are among them) have no id",
    "unmatched": "of the rows have no match in the joined table",
    "failed_casts": "of the values could not be cast",
}


def _describe_figure(
    key: Key, title: str, texts: Sequence[str], figure: float, threshold: float, more: bool, kind: str
) -> str:
    """Describe what changed, by how much, against what threshold; the caller fills in `{compared}`."""
    now, expected = texts
    if key.check in ("rows", "distinct"):
        what = f"rows: {now} rows" if key.check == "rows" else f"{title}: {now} distinct values"
        means = describe_row_change(figure, more) if key.check == "rows" else ""
        change = (
            f"{describe_change(figure, more)} the {expected} that {{compared}} (threshold {format_percent(threshold)})"
        )
        return f"{what}, {change}{means and f': {means}'}"
    if key.check in WORDS:
        return (
            f"{title or 'rows'}: {now} {WORDS[key.check]}, {{compared}} {expected}: "
            f"a change of {100 * figure:.3g} points (threshold {100 * threshold:.3g})"
        )
    what = {"mean": "the mean", "extremes": f"the {key.part} value"}.get(key.check, f"the {key.part} quantile")
    unit = "hours away" if kind == "moment" else "away on a log-like scale"
    if key.check == "mean":
        unit = "standard deviations away"
    return f"{title}: {what} is {now}, {{compared}} {expected}: {figure:.3g} {unit} (threshold {threshold:.3g})"


MOVES = {
    "l_infinity": "one share has moved by {:.3g} (L-infinity",
    "jensen_shannon": "the distribution has moved by {:.3g} (Jensen-Shannon distance",
    "psi": "the distribution has moved by {:.3g} (population stability index",
}


def _describe_move(name: str, move: Moved) -> str:
    words = MOVES[move.check].format(move.figure)
    return f"{name}: {words}, threshold {move.threshold:.3g}) from what {{compared}}; most at {move.most}"
