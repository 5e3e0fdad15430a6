"""A graph as SVG text: boxes in columns from left to right, with curves between them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from tasks.report.svg import COLOURS, INK, MUTED, figure, label, rect

Arrow = tuple[Hashable, Hashable, str]  # from, to, kind
BETWEEN = 44.0  # from a column to the next
# half of the height that a box, and a line that passes between boxes, gets
BOX_HALF = 17.0
BEND_HALF = 9.0
SWEEPS = 3  # to the right, back, and to the right again


@dataclass(frozen=True)
class Bend:
    """Where a line to a later column passes between the boxes of a column; lines of one box and kind share it."""

    origin: Hashable
    kind: str
    column: int


@dataclass(frozen=True)
class BoxPlace:
    """The left end, the middle and the width of a box or a bend."""

    left: float
    middle: float
    width: float


def graph(
    boxes: Mapping[Hashable, tuple[str, str]],
    depths: Mapping[Hashable, int],
    arrows: Sequence[Arrow],
    note: str = "",
) -> str:
    """Draw boxes (kind and text) in columns by depth, with curves between them; those of the kind `learns` are dotted.

    A line over several columns passes between their boxes, not behind them. A box is as high as the mean of those that
    it takes from, where there is room.
    """
    steps = split_at_columns(depths, arrows)
    columns: list[list[Hashable]] = [[] for _ in range(max(depths.values(), default=0) + 1)]
    for key in boxes:
        columns[depths[key]].append(key)
    bends = [end for _, end, _ in steps if isinstance(end, Bend)]
    for bend in bends:
        columns[bend.column].append(bend)
    places = put_in_place(in_order(columns, steps), steps, boxes)
    right = max((place.left + place.width for place in places.values()), default=0.0)
    lowest = max((place.middle for place in places.values()), default=0.0)
    size = (max(round(right + 8), 200), round(lowest + (46 if note else 26)))
    body = "".join(_draw_arrow(places[start], places[end], kind, end in boxes) for start, end, kind in steps)
    body += "".join(_draw_line(places[bend], bend.kind) for bend in bends)
    body += "".join(_draw_box(places[key], *boxes[key]) for key in boxes)
    if note:
        body += label(8, size[1] - 10, note)
    return figure(size, "", body, [])


def split_at_columns(depths: Mapping[Hashable, int], arrows: Sequence[Arrow]) -> list[Arrow]:
    """Divide the arrows into steps from one column to the next.

    >>> split_at_columns({"a": 0, "b": 2}, [("a", "b", "after")])
    [('a', Bend(origin='a', kind='after', column=1), 'after'), (Bend(origin='a', kind='after', column=1), 'b', 'after')]
    """
    steps: dict[Arrow, None] = {}
    for start, end, kind in arrows:
        last = start
        for column in range(depths[start] + 1, depths[end]):
            bend = Bend(start, kind, column)
            steps[last, bend, kind] = None
            last = bend
        steps[last, end, kind] = None
    return list(steps)


def in_order(columns: Sequence[Sequence[Hashable]], steps: Sequence[Arrow]) -> list[list[Hashable]]:
    """Sort the columns by the mean place of what each box is connected with, so that few lines cross.

    >>> in_order([["a", "b"], ["c", "d"]], [("a", "d", "after"), ("b", "c", "after")])
    [['a', 'b'], ['d', 'c']]
    """
    ordered = [list(column) for column in columns]
    before: dict[Hashable, list[Hashable]] = {}
    after: dict[Hashable, list[Hashable]] = {}
    for start, end, _ in steps:
        before.setdefault(end, []).append(start)
        after.setdefault(start, []).append(end)
    for sweep in range(SWEEPS):
        for number in range(1, len(ordered)):
            ordered[number] = _sort_by_neighbours(ordered[number], ordered[number - 1], before)
        if sweep == SWEEPS - 1:
            break
        for number in range(len(ordered) - 2, -1, -1):
            ordered[number] = _sort_by_neighbours(ordered[number], ordered[number + 1], after)
    return ordered


def _sort_by_neighbours(
    column: Sequence[Hashable], neighbours: Sequence[Hashable], connected: Mapping[Hashable, Sequence[Hashable]]
) -> list[Hashable]:
    """Sort a column by the mean number of its neighbours in the column next to it; a box without any keeps its
    number."""
    number_of = {key: number for number, key in enumerate(neighbours)}
    wanted: dict[Hashable, float] = {}
    for number, key in enumerate(column):
        numbers = [number_of[other] for other in connected.get(key, ())]
        wanted[key] = sum(numbers) / len(numbers) if numbers else float(number)
    return sorted(column, key=wanted.__getitem__)


def put_in_place(
    columns: Sequence[Sequence[Hashable]], steps: Sequence[Arrow], boxes: Mapping[Hashable, tuple[str, str]]
) -> dict[Hashable, BoxPlace]:
    """Place each box and each bend: column by column from the left, from top to bottom."""
    places: dict[Hashable, BoxPlace] = {}
    before: dict[Hashable, list[Hashable]] = {}
    for start, end, _ in steps:
        before.setdefault(end, []).append(start)
    left = 8.0
    for column in columns:
        width = max((text_width(boxes[key][1]) + 18 for key in column if key in boxes), default=0.0)
        free_from = 7.0
        for key in column:
            half = BOX_HALF if key in boxes else BEND_HALF
            heights = [places[start].middle for start in before.get(key, ())]
            wanted = sum(heights) / len(heights) if heights else 0.0
            places[key] = BoxPlace(left, max(free_from + half, wanted), width)
            free_from = places[key].middle + half
        left += width + BETWEEN
    return places


def text_width(text: str) -> float:
    """Estimate how wide a text is in this size, in a wide font: capitals and East Asian characters take more room.

    >>> text_width("ab"), text_width("AB"), text_width("\u65e5")
    (12.0, 15.2, 11.0)
    """
    return sum(character_width(character) for character in text)


def character_width(character: str) -> float:
    """Estimate the width of a character."""
    if ord(character) > 0x2E7F:
        return 11.0
    return 7.6 if character.isupper() else 6.0


def _draw_arrow(start: BoxPlace, end: BoxPlace, kind: str, at_box: bool) -> str:
    x0 = start.left + start.width
    y0 = start.middle
    x1 = end.left
    y1 = end.middle
    half = (x1 - x0) / 2
    path = f"M{x0:.0f} {y0:.0f}C{x0 + half:.0f} {y0:.0f} {x1 - half:.0f} {y1:.0f} {x1:.0f} {y1:.0f}"
    drawn = f'<path d="{path}" fill="none" stroke="{MUTED}"{_draw_dots(kind)}/>'
    if not at_box:
        return drawn
    return drawn + f'<circle cx="{x1:.0f}" cy="{y1:.0f}" r="2.2" fill="{MUTED}"/>'


def _draw_line(place: BoxPlace, kind: str) -> str:
    path = f"M{place.left:.0f} {place.middle:.0f}H{place.left + place.width:.0f}"
    return f'<path d="{path}" fill="none" stroke="{MUTED}"{_draw_dots(kind)}/>'


def _draw_dots(kind: str) -> str:
    return ' stroke-dasharray="3 4"' if kind == "learns" else ""


def _draw_box(place: BoxPlace, kind: str, text: str) -> str:
    fill, stroke, corner = {"operator": ("#d7efe9", COLOURS[0], 12)}.get(kind, ("#ffffff", MUTED, 2))
    frame = rect(place.left, place.middle - 12, place.width, 24, fill, f'rx="{corner}" stroke="{stroke}"')
    return frame + label(place.left + place.width / 2, place.middle + 4, text, "middle", INK)
