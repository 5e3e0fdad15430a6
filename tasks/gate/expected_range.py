"""What a night's figures are expected to be, of those of the good nights before: trend, weekday, and how sure that is.

All figures of a job have one design: a level, a trend by day and, after three weeks, an effect for each weekday, fitted
by least squares over the newest good nights. So one small matrix serves thousands of figures. Nights that are far from
their own prediction (a fault that was published) are drawn in before the last fit (Huber's pseudo-values).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from tasks.gate.distances import Array, t_limit

WINDOW = 35  # newest nights that a prediction looks at
TREND = 3  # nights that a trend needs
WEEKS = 3  # nights that each weekday needs
OUTLIER = 4.0  # standard deviations


@dataclass(frozen=True)
class WeekdayCalendar:
    """The nights before (oldest first) and tonight, as rows of a design; `weekdays`: whether these have effects."""

    past: Array  # nights x parameters
    tonight: Array  # parameters
    same_weekday: int | None  # the newest night before of tonight's weekday
    weekdays: bool

    @property
    def degrees(self) -> int:
        """Degrees of freedom that are left for the scatter."""
        return len(self.past) - int(np.linalg.matrix_rank(self.past)) if len(self.past) else 0


def calendar(days: Sequence[date | None], tonight: date | None) -> WeekdayCalendar:
    """The design of nights, oldest first; nights without a date count one after another.

    A level alone up to two nights, a trend from three on, weekdays where each that is there, and tonight's, is there
    three times.
    """
    number = [day.toordinal() for day in days if day] if tonight and all(days) else []
    dated = bool(number) and tonight is not None
    times = np.array(number if dated else range(len(days)), np.float64)
    now = float(tonight.toordinal()) if dated and tonight else float(len(days))
    columns, new = [np.ones(len(days))], [1.0]
    if len(days) >= TREND and times.min() < times.max():
        center, width = times.mean(), times.max() - times.min()
        columns.append((times - center) / width)
        new.append((now - center) / width)
    same, weekdays = None, False
    if dated and tonight:
        of = [day.weekday() for day in days if day]
        there = sorted(set(of))
        same = max((place for place, weekday in enumerate(of) if weekday == tonight.weekday()), default=None)
        if tonight.weekday() in there and len(there) > 1 and all(of.count(weekday) >= WEEKS for weekday in there):
            weekdays = True
            for weekday in there[1:]:
                columns.append(np.array([float(one == weekday) for one in of]))
                new.append(float(tonight.weekday() == weekday))
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
    scale = scale * math.sqrt(1 + float(design.tonight @ np.linalg.pinv(design.past.T @ design.past) @ design.tonight))
    center = design.tonight @ (inverse @ pulled)
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
