"""The prediction of a batch's figures from those of earlier good versions: trend, weekday, and how sure that is.

All figures of a job have one design: a level, a trend by day and, after three weeks, an effect for each weekday, fitted
by least squares over the newest good versions. So one small matrix serves thousands of figures. Versions that are far
from their own prediction (a fault that was published) are drawn in before the last fit (Huber's pseudo-values).

The number of rows is judged more strictly than other figures, within bounds that no scatter widens: until each weekday
is known, a batch with half of its rows would hide in the scatter of a weekly pattern. Numbers of rows are logarithms
here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from statistics import median

import numpy as np

from tasks.gate.contract_values import format_percent
from tasks.gate.distances import Array, t_limit

WINDOW = 35  # newest versions that a prediction looks at
TREND = 3  # versions that a trend needs
WEEKS = 3  # versions of each weekday that weekday effects need
OUTLIER = 4.0  # standard deviations
ROWS_CHANCE = 1e-4  # of a false alarm for a normal batch, by the check `rows` alone
# the widest bounds for the number of rows: 40 % fewer, 70 % more
FEWER = -math.log(0.6)
MORE = math.log(1.7)
WIDE = math.log(5)  # the bound where no earlier version is comparable, as on the first weekend
SHIFT = math.log(1.3)  # a change against the weekday, beyond the week's usual one, from which on it may be permanent
WEEK = 7
SATURDAY = 5


@dataclass(frozen=True)
class WeekdayCalendar:
    """The design of a fit: a row of parameters for each earlier version (oldest first), and one for the run date."""

    past: Array  # versions x parameters
    run_date_row: Array  # parameters
    same_weekday: int | None  # the place of the newest version of the run date's weekday
    weekdays: bool  # whether weekdays have effects

    @property
    def degrees(self) -> int:
        """The degrees of freedom that are left for the scatter."""
        return len(self.past) - int(np.linalg.matrix_rank(self.past)) if len(self.past) else 0


def make_calendar(days: Sequence[date | None], run_date: date | None) -> WeekdayCalendar:
    """Make the design for versions, oldest first; versions without a date are one day apart.

    Up to two versions have a level only, three a trend. Weekdays have effects once each one that occurs, the run
    date's among them, has occurred three times.
    """
    ordinals = [day.toordinal() for day in days if day] if run_date and all(days) else []
    dated = bool(ordinals) and run_date is not None
    times = np.array(ordinals if dated else range(len(days)), np.float64)
    now = float(run_date.toordinal()) if dated and run_date else float(len(days))
    columns = [np.ones(len(days))]
    new = [1.0]
    if len(days) >= TREND and times.min() < times.max():
        center = times.mean()
        width = times.max() - times.min()
        columns.append((times - center) / width)
        new.append((now - center) / width)
    same = None
    weekdays = False
    if dated and run_date:
        past_weekdays = [day.weekday() for day in days if day]
        known = sorted(set(past_weekdays))
        today = run_date.weekday()
        same = max((place for place, weekday in enumerate(past_weekdays) if weekday == today), default=None)
        if today in known and len(known) > 1 and all(past_weekdays.count(weekday) >= WEEKS for weekday in known):
            weekdays = True
            for weekday in known[1:]:  # the level is that of the first one
                columns.append(np.array([float(one == weekday) for one in past_weekdays]))
                new.append(float(today == weekday))
    return WeekdayCalendar(np.stack(columns, 1) if len(days) else np.zeros((0, 1)), np.array(new), same, weekdays)


@dataclass(frozen=True)
class Prediction:
    """What figures are expected to be.

    center: the prediction, by figure.
    others: further values that would be normal (those of the last version and of the same weekday, moved by trend and
        weekday).
    scale: the standard deviation of a new batch around its prediction.
    left_out: what the other versions predict for each version (versions x figures).
    """

    center: Array
    others: Array
    scale: Array
    left_out: Array


def predict(figures: Array, design: WeekdayCalendar, robust: bool = True) -> Prediction:
    """Predict figures (versions x figures, oldest first, no NaN); `robust` draws outliers in."""
    version_count, count = figures.shape
    if not version_count:
        nothing = np.zeros((0, count))
        return Prediction(np.full(count, math.nan), nothing, np.full(count, math.inf), nothing)
    inverse = np.linalg.pinv(design.past)
    hat = design.past @ inverse
    leverage = np.clip(np.diag(hat), 0.0, 1 - 1e-6)
    pulled = figures
    for _ in range(3 if robust and design.degrees >= 3 else 0):
        fitted = hat @ pulled
        errors = (figures - fitted) / np.sqrt(1 - leverage)[:, None]
        bound = OUTLIER * _estimate_deviation(errors)
        pulled = fitted + np.clip(figures - fitted, -bound, bound)
    fitted = hat @ pulled
    errors = (figures - fitted) / np.sqrt(1 - leverage)[:, None]
    scale = np.maximum(_estimate_deviation(errors), 0.5 * np.sqrt((errors**2).mean(axis=0)))
    scale = scale * math.sqrt(
        1 + float(design.run_date_row @ np.linalg.pinv(design.past.T @ design.past) @ design.run_date_row)
    )
    center = design.run_date_row @ (inverse @ pulled)
    places = [version_count - 1] + ([design.same_weekday] if design.same_weekday is not None else [])
    others = np.stack([center + (figures - fitted)[place] for place in places])
    left_out = figures - (figures - fitted) / (1 - leverage)[:, None]
    return Prediction(center, others, scale, left_out)


def _estimate_deviation(errors: Array) -> Array:
    """Estimate the standard deviation from the median of the absolute errors, which outliers do not move."""
    middle: Array = 1.4826 * np.median(np.abs(errors), axis=0)
    return middle


def limit_error(scale: Array, degrees: int, chance: float) -> Array:
    """Compute the error that a normal batch exceeds with a probability, on both sides together."""
    if degrees < 1:
        return np.full_like(scale, math.inf)
    reach: Array = scale * t_limit(chance, degrees)
    return reach


@dataclass(frozen=True)
class Expected:
    """What a figure is expected to be.

    near: the values, any of which it may be near to.
    least: the least bound that counts as near.
    fewer, more: the widest bounds to either side.
    compared: what it is compared with, in words; "" for all good versions.
    """

    near: Sequence[float]
    least: float = 0.0
    fewer: float = math.inf
    more: float = math.inf
    compared: str = ""


def expect_rows(
    rows: Sequence[float],
    days: Sequence[date | None],
    versions: Sequence[str],
    run_date: date | None,
    predicted: Sequence[float],
    design: WeekdayCalendar,
    early: bool,
) -> Expected:
    """Compute the number of rows that earlier versions (oldest first) predict.

    Once each weekday has an effect, that is `predicted`, by trend and weekday. Before that it is the last version of
    the same weekday, and in the first week the last one of the same kind, a workday or not. Without dates it is
    `predicted`, or the seventh version before.
    """
    known = [day for day in days if day is not None]
    if run_date is None or len(known) < len(days):
        weekly = _expect_by_weekday(rows, [place - WEEK if place >= WEEK else None for place in range(len(rows) + 1)])
        near = [*predicted, *weekly]
        return Expected(near, WIDE, WIDE, WIDE) if early else Expected(near, 0.0, FEWER, MORE)
    if len(known) + 1 >= 2 * len({*known, run_date}):  # several runs a day: they have no weekly pattern
        return Expected(predicted)
    if design.weekdays:
        return Expected(predicted, 0.0, FEWER, MORE)
    same = [_find_same_weekday(known[:place], day) for place, day in enumerate([*known, run_date])]
    if (place := same[-1]) is not None:
        words = f"{versions[place]}, the last {known[place]:%A}, predicts"
        return Expected(_expect_by_weekday(rows, same), 0.0, FEWER, MORE, words)
    kinds = [day.weekday() >= SATURDAY for day in known]
    kind = run_date.weekday() >= SATURDAY
    if kind not in kinds:
        return Expected(predicted, WIDE, WIDE, WIDE)
    place = max(place for place, one in enumerate(kinds) if one == kind)
    more = [] if early and len({*kinds}) > 1 else predicted
    return Expected([rows[place], *more], 0.0, FEWER, MORE, "" if more else f"{versions[place]} had")


def _find_same_weekday(days: Sequence[date], run_date: date) -> int | None:
    """Find the newest of the days with a weekday; None if none is recent enough to be comparable."""
    places = [n for n, day in enumerate(days) if (run_date - day).days in range(0, WINDOW + 1, WEEK)]
    return max(places, default=None)


def _expect_by_weekday(rows: Sequence[float], same: Sequence[int | None]) -> list[float]:
    """Predict the rows from the same weekday before, changed by as much as the last week's were against theirs.

    If the last version changed by far more than that, its change gives a second prediction: it may be permanent.
    `same` has the place of the same weekday before for each version and, as its last item, for the run date.
    """
    if (place := same[-1]) is None:
        return []
    changes = [rows[n] - rows[before] for n, before in enumerate(same[:-1]) if before is not None][-WEEK:]
    week = median(changes) if len(changes) >= 3 else 0.0
    shifted = changes[-1:] if same[-2] is not None and abs(changes[-1] - week) > SHIFT else []
    return [rows[place] + change for change in (week, *shifted)]


def describe_change(figure: float, more: bool) -> str:
    """Describe a relative change of a count, in words that precede the count that was expected.

    >>> describe_change(0.25, False), describe_change(0.25, True), describe_change(474.0, True)
    ('25 % fewer than', '25 % more than', '475 times as many as')
    """
    if more and figure >= 2:
        return f"{1 + figure:,.3g} times as many as" if figure < 999 else f"{1 + figure:,.0f} times as many as"
    return f"{format_percent(figure)} {'more' if more else 'fewer'} than"


def describe_row_change(figure: float, more: bool) -> str:
    """Describe what a change of the number of rows most likely means.

    >>> describe_row_change(0.49, False), describe_row_change(0.9, False)
    ('half of the rows are missing', '90 % of the rows are missing')
    >>> describe_row_change(1.02, True), describe_row_change(0.3, True)
    ('there are twice as many rows', '')
    """
    if not more:
        share = "half" if abs(figure - 0.5) < 0.04 else format_percent(figure)
        return f"{share} of the rows are missing"
    return "there are twice as many rows" if abs(figure - 1) < 0.08 else ""
