"""What a night's figures are expected to be, of those of the good nights before: trend, weekday, and how sure that is.

All figures of a job have one design: a level, a trend by day and, after three weeks, an effect for each weekday, fitted
by least squares over the newest good nights. So one small matrix serves thousands of figures. Nights that are far from
their own prediction (a fault that was published) are drawn in before the last fit (Huber's pseudo-values).

The number of rows is judged more strictly than other figures, within bounds that no scatter widens: nights with half of
their rows hide in the scatter of a weekly pattern until each weekday is known. Numbers of rows are logarithms here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from statistics import median

import numpy as np

from tasks.gate.contract_values import percent
from tasks.gate.distances import Array, t_limit

WINDOW = 35  # newest nights that a prediction looks at
TREND = 3  # nights that a trend needs
WEEKS = 3  # nights that each weekday needs
OUTLIER = 4.0  # standard deviations
ROWS_CHANCE = 1e-4  # of a false alarm in a plain night, by this check alone
# the widest bounds: 40 % fewer, 70 % more
FEWER = -math.log(0.6)
MORE = math.log(1.7)
WIDE = math.log(5)  # the bound where no night is like tonight: on the first weekend
SHIFT = math.log(1.3)  # the change of a night against its weekday, beyond that of a week, from which on it may stay
WEEK = 7
SATURDAY = 5


@dataclass(frozen=True)
class WeekdayCalendar:
    """The nights before (oldest first) and tonight, as rows of a design; `weekdays`: whether these have effects."""

    past: Array  # nights x parameters
    run_date_row: Array  # parameters
    same_weekday: int | None  # the newest night before of tonight's weekday
    weekdays: bool

    @property
    def degrees(self) -> int:
        """Degrees of freedom that are left for the scatter."""
        return len(self.past) - int(np.linalg.matrix_rank(self.past)) if len(self.past) else 0


def calendar(days: Sequence[date | None], run_date: date | None) -> WeekdayCalendar:
    """The design of nights, oldest first; nights without a date count one after another.

    A level alone up to two nights, a trend from three on, weekdays where each that is there, and tonight's, is there
    three times.
    """
    number = [day.toordinal() for day in days if day] if run_date and all(days) else []
    dated = bool(number) and run_date is not None
    times = np.array(number if dated else range(len(days)), np.float64)
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
        of = [day.weekday() for day in days if day]
        there = sorted(set(of))
        same = max((place for place, weekday in enumerate(of) if weekday == run_date.weekday()), default=None)
        if run_date.weekday() in there and len(there) > 1 and all(of.count(weekday) >= WEEKS for weekday in there):
            weekdays = True
            for weekday in there[1:]:
                columns.append(np.array([float(one == weekday) for one in of]))
                new.append(float(run_date.weekday() == weekday))
    return WeekdayCalendar(np.stack(columns, 1) if len(days) else np.zeros((0, 1)), np.array(new), same, weekdays)


@dataclass(frozen=True)
class Prediction:
    """What figures are expected to be: `center` by figure; `others` are further values that would be plain, too (the
    last night's and the same weekday's, moved by trend and weekday). `scale` is the standard deviation of a new night
    around its prediction, `left_out` what each night before was expected to be by the others (nights x figures)."""

    center: Array
    others: Array
    scale: Array
    left_out: Array


def predict(figures: Array, design: WeekdayCalendar, robust: bool = True) -> Prediction:
    """The prediction of figures (nights x figures, oldest first, no NaN)."""
    nights, count = figures.shape
    if not nights:
        nothing = np.zeros((0, count))
        return Prediction(np.full(count, math.nan), nothing, np.full(count, math.inf), nothing)
    inverse = np.linalg.pinv(design.past)
    hat = design.past @ inverse
    leverage = np.clip(np.diag(hat), 0.0, 1 - 1e-6)
    pulled = figures
    for _ in range(3 if robust and design.degrees >= 3 else 0):
        fitted = hat @ pulled
        errors = (figures - fitted) / np.sqrt(1 - leverage)[:, None]
        bound = OUTLIER * _middle_scale(errors)
        pulled = fitted + np.clip(figures - fitted, -bound, bound)
    fitted = hat @ pulled
    errors = (figures - fitted) / np.sqrt(1 - leverage)[:, None]
    scale = np.maximum(_middle_scale(errors), 0.5 * np.sqrt((errors**2).mean(axis=0)))
    scale = scale * math.sqrt(
        1 + float(design.run_date_row @ np.linalg.pinv(design.past.T @ design.past) @ design.run_date_row)
    )
    center = design.run_date_row @ (inverse @ pulled)
    places = [nights - 1] + ([design.same_weekday] if design.same_weekday is not None else [])
    others = np.stack([center + (figures - fitted)[place] for place in places])
    left_out = figures - (figures - fitted) / (1 - leverage)[:, None]
    return Prediction(center, others, scale, left_out)


def _middle_scale(errors: Array) -> Array:
    """The standard deviation by the median of the absolute errors, which outliers do not move."""
    middle: Array = 1.4826 * np.median(np.abs(errors), axis=0)
    return middle


def limit(scale: Array, degrees: int, chance: float) -> Array:
    """The error that a plain night passes with a probability, either side together."""
    if degrees < 1:
        return np.full_like(scale, math.inf)
    reach: Array = scale * t_limit(chance, degrees)
    return reach


@dataclass(frozen=True)
class Expected:
    """What a figure of tonight may be `near` to, the `least` bound, the widest bounds for `fewer` and `more`, and what
    it is compared with, in words ("" for all good nights)."""

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
    """The rows that nights before (oldest first) lead to expect.

    Once each weekday has an effect, that is `predicted`, by trend and weekday. Before that it is the last night of the
    same weekday, and in the first week the last night of the same kind, a workday or not. Nights without a date are
    near to `predicted`, or to the seventh night before.
    """
    known = [day for day in days if day is not None]
    if run_date is None or len(known) < len(days):
        weekly = _weekly(rows, [place - WEEK if place >= WEEK else None for place in range(len(rows) + 1)])
        return Expected([*predicted, *weekly], *((WIDE, WIDE, WIDE) if early else (0.0, FEWER, MORE)))
    if len(known) + 1 >= 2 * len({*known, run_date}):  # several runs a day
        return Expected(predicted)
    if design.weekdays:
        return Expected(predicted, 0.0, FEWER, MORE)
    same = [_same_weekday(known[:place], day) for place, day in enumerate([*known, run_date])]
    if (place := same[-1]) is not None:
        words = f"{versions[place]}, the last {known[place]:%A}, predicts"
        return Expected(_weekly(rows, same), 0.0, FEWER, MORE, words)
    kinds = [day.weekday() >= SATURDAY for day in known]
    kind = run_date.weekday() >= SATURDAY
    if kind not in kinds:
        return Expected(predicted, WIDE, WIDE, WIDE)
    place = max(place for place, one in enumerate(kinds) if one == kind)
    more = [] if early and len({*kinds}) > 1 else predicted
    return Expected([rows[place], *more], 0.0, FEWER, MORE, "" if more else f"{versions[place]} had")


def _same_weekday(days: Sequence[date], run_date: date) -> int | None:
    """The newest night of a weekday; None where that is too long ago to say something about tonight."""
    places = [n for n, day in enumerate(days) if (run_date - day).days in range(0, WINDOW + 1, WEEK)]
    return max(places, default=None)


def _weekly(rows: Sequence[float], same: Sequence[int | None]) -> list[float]:
    """The rows of the weekday before, changed by as much as the nights of the last week were against theirs, and, where
    the last night was far from that, as it was. `same` has the place of the weekday before of each night and tonight's.
    """
    if (place := same[-1]) is None:
        return []
    changes = [rows[n] - rows[before] for n, before in enumerate(same[:-1]) if before is not None][-WEEK:]
    week = median(changes) if len(changes) >= 3 else 0.0
    shifted = changes[-1:] if same[-2] is not None and abs(changes[-1] - week) > SHIFT else []
    return [rows[place] + change for change in (week, *shifted)]


def change_text(figure: float, more: bool) -> str:
    """A relative change of a count, in words that go before the count that was expected.

    >>> change_text(0.25, False), change_text(0.25, True), change_text(474.0, True)
    ('25 % fewer than', '25 % more than', '475 times as many as')
    """
    if more and figure >= 2:
        return f"{1 + figure:,.3g} times as many as" if figure < 999 else f"{1 + figure:,.0f} times as many as"
    return f"{percent(figure)} {'more' if more else 'fewer'} than"


def rows_text(figure: float, more: bool) -> str:
    """What a change of the number of rows most likely means.

    >>> rows_text(0.49, False), rows_text(0.9, False), rows_text(1.02, True), rows_text(0.3, True)
    ('half of the rows are missing', '90 % of the rows are missing', 'there are twice as many rows', '')
    """
    if not more:
        share = "half" if abs(figure - 0.5) < 0.04 else percent(figure)
        return f"{share} of the rows are missing"
    return "there are twice as many rows" if abs(figure - 1) < 0.08 else ""
