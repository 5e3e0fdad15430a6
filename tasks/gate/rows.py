"""How many rows a night is expected to have: those of its weekday before, within bounds that no scatter widens.

The number of rows is judged more strictly than other figures: nights with half of their rows hide in the scatter of a
weekly pattern until each weekday is known. Numbers of rows are logarithms here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from statistics import median

from tasks.gate.contract import percent
from tasks.gate.expected_range import WINDOW, WeekdayCalendar

CHANCE = 1e-4  # of a false alarm in a plain night, by this check alone
FEWER, MORE = -math.log(0.6), math.log(1.7)  # the widest bounds: 40 % fewer, 70 % more
WIDE = math.log(5)  # the bound where no night is like tonight: on the first weekend
SHIFT = math.log(1.3)  # the change of a night against its weekday, beyond that of a week, from which on it may stay
WEEK, SATURDAY = 7, 5


@dataclass(frozen=True)
class Expected:
    """What a figure of tonight may be `near` to, the `least` bound, the widest bounds for `fewer` and `more`, and what
    it is compared with, in words ("" for all good nights)."""

    near: Sequence[float]
    least: float = 0.0
    fewer: float = math.inf
    more: float = math.inf
    compared: str = ""


def expected_rows(
    rows: Sequence[float], days: Sequence[date | None], versions: Sequence[str], tonight: date | None,
    predicted: Sequence[float], design: WeekdayCalendar, early: bool,
) -> Expected:  # fmt: skip
    """The rows that nights before (oldest first) lead to expect.

    Once each weekday has an effect, that is `predicted`, by trend and weekday. Before that it is the last night of the
    same weekday, and in the first week the last night of the same kind, a workday or not. Nights without a date are
    near to `predicted`, or to the seventh night before.
    """
    known = [day for day in days if day is not None]
    if tonight is None or len(known) < len(days):
        weekly = _weekly(rows, [place - WEEK if place >= WEEK else None for place in range(len(rows) + 1)])
        return Expected([*predicted, *weekly], *((WIDE, WIDE, WIDE) if early else (0.0, FEWER, MORE)))
    if len(known) + 1 >= 2 * len({*known, tonight}):  # several runs a day
        return Expected(predicted)
    if design.weekdays:
        return Expected(predicted, 0.0, FEWER, MORE)
    same = [_same_weekday(known[:place], day) for place, day in enumerate([*known, tonight])]
    if (place := same[-1]) is not None:
        words = f"{versions[place]}, the last {known[place]:%A}, leads to expect"
        return Expected(_weekly(rows, same), 0.0, FEWER, MORE, words)
    kinds = [day.weekday() >= SATURDAY for day in known]
    kind = tonight.weekday() >= SATURDAY
    if kind not in kinds:
        return Expected(predicted, WIDE, WIDE, WIDE)
    place = max(place for place, one in enumerate(kinds) if one == kind)
    more = [] if early and len({*kinds}) > 1 else predicted
    return Expected([rows[place], *more], 0.0, FEWER, MORE, "" if more else f"{versions[place]} had")


def _same_weekday(days: Sequence[date], tonight: date) -> int | None:
    """The newest night of a weekday; None where that is too long ago to say something about tonight."""
    places = [n for n, day in enumerate(days) if (tonight - day).days in range(0, WINDOW + 1, WEEK)]
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
