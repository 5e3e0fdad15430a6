"""Whether the first line of text names the columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from flows.draft.written_values import NULL_TEXTS, NUMBER, TIME

URL = re.compile(r"[a-z][a-z0-9+.-]*://\S+")
YEAR = re.compile("[12][0-9]{3}")
WHOLE = re.compile("[0-9]{1,9}")
SENTENCE = re.compile(r"(?:\S+\s+){4}.*[^?\s]\s*", re.DOTALL)  # five words and more; a question may be a name
LOST = "if they are values, the row is not read: say header: false and name the columns"
KEPT = "if they are names, leave out header and columns"


def names_without_header(rows: Sequence[Sequence[str]]) -> tuple[list[str], str]:
    """(names for the columns of text whose first line has values, none where it names the columns; what is doubtful
    about that, "" if nothing is).

    A text above numbers or times is a name. A number, a time, a URL above others, and what other lines have in its
    column are values. So are long texts above others, but that may be wrong.

    >>> names_without_header([["7", "x"], ["8", "y"]]), names_without_header([["id", "2026"], ["8", "5"]])
    ((['column_1', 'column_2'], ''), ([], ''))
    >>> names_without_header([["", "1940", "1945"], ["AU", "7.1", "6.9"], ["NO", "3.1", "2.9"]])
    ([], '')
    >>> names_without_header([["red", "S"], ["blue", "M"], ["red", "M"], ["blue", "S"]])
    (['column_1', 'column_2'], '')
    """
    first, *others = rows or [[]]
    numbered = [f"column_{number}" for number in range(1, len(first) + 1)]
    below = [
        [row[p] for row in others if p < len(row) and row[p] and row[p] not in NULL_TEXTS] for p in range(len(first))
    ]
    texts = [p for p, text in enumerate(first) if text and text not in NULL_TEXTS and not is_value(text)]
    if not others or any(below[p] and all(map(is_value, below[p])) for p in texts):
        return [], ""
    if len(texts) < len(first):
        return ([], "") if _is_index(first, below, texts) or _are_years(first, below) else (numbered, "")
    again = [p for p in texts if first[p] in {row[p] for row in others if p < len(row) and list(row) != list(first)}]
    if 2 * len(again) >= len(texts) or any(URL.fullmatch(first[p]) and _most(below[p], URL) for p in texts):
        return numbered, ""
    if again:
        return numbered, f"{first[again[0]]!r} of the first line comes again below it, so it counts as values; {KEPT}"
    if any(SENTENCE.fullmatch(first[p]) and _most(below[p], SENTENCE) for p in texts):
        return numbered, f"the first line has long texts, as the others have, so it counts as values; {KEPT}"
    if any(2 * len({*values}) <= len(values) for values in below):  # the first line is none of values that come often
        return [], ""
    return [], f"nothing but texts: the first line counts as names; {LOST}"


def is_value(text: str) -> bool:
    return bool(re.match(NUMBER, text) or re.match(TIME, text))


def _is_index(first: Sequence[str], below: Sequence[Sequence[str]], texts: Sequence[int]) -> bool:
    """Tell whether nothing but the first name is empty: pandas and R write the labels of rows below it, each once."""
    named = all(first[1:]) and len({*first}) == len(first)
    return not first[0] and named and bool(below[0]) and len({*below[0]}) == len(below[0])


def _are_years(first: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    """Tell whether the numbers of a line are years, or count on, and those below are others."""
    places = [place for place, text in enumerate(first) if is_value(text)]
    numbers = [int(first[place]) for place in places if WHOLE.fullmatch(first[place])]
    if len(numbers) < max(2, len(places)) or not all(a < b for a, b in pairwise(numbers)):
        return False
    if all(YEAR.fullmatch(first[place]) for place in places):
        return not any(_most(below[place], YEAR) for place in places)
    counted = numbers == [*range(numbers[0], numbers[0] + len(numbers))] and numbers[0] in (0, 1) and len(numbers) > 2
    return counted and not any(_most(below[place], WHOLE) for place in places)


def _most(values: Sequence[str], pattern: re.Pattern[str]) -> bool:
    return 2 * sum(bool(pattern.fullmatch(value)) for value in values) > len(values)
