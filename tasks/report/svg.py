"""Small plots as SVG text: lines over time, bars, stages on a time axis. A plot takes a millisecond and 2 to 10 kB."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]
Band = tuple[str, float, float]
COLOURS = ("#0f766e", "#b45309", "#1d4ed8", "#be185d", "#4d7c0f", "#6d28d9", "#0369a1", "#7f1d1d")
INK = "#1f2933"
MUTED = "#66727f"
GRID = "#e3e7eb"
BAND = "#f3f6f8"
FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
LEFT = 58
RIGHT = 12
TOP = 30
BOTTOM = 24


def nice_step(span: float, steps: int = 4) -> float:
    """Choose a round distance for about `steps` ticks over a span.

    >>> [nice_step(s) for s in (10, 7.3, 0.9)]
    [2.5, 2.0, 0.25]
    """
    if not span > 0 or not math.isfinite(span):
        return 1.0
    power = 10.0 ** math.floor(math.log10(span / steps))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= span / steps * 0.999999)


SIZE = (640, 190)


def _draw_curve(points: Sequence[tuple[float, float]], colour: str) -> list[str]:
    """Draw a line through points of the drawing; a single point, which makes no line, is a dot."""
    path = "".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))
    line = f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.7" stroke-linejoin="round"/>'
    if len(points) > 1:
        return [line]
    x, y = points[0]
    return [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>', line]


def lines(
    title: str,
    curves: Mapping[str, Points],
    shown: Callable[[float], str],
    span: tuple[float, float] | None = None,
    bands: Sequence[Band] = (),
    ceiling: float | None = None,
    unit: str = " s",
) -> str:
    """Draw curves over seconds from zero up; `shown` writes a value of the y axis, `bands` are named stretches of time.

    `ceiling` draws a dashed line (a limit of memory, say) where the curves come near it. `unit` is that of the x axis.
    """
    width, height = SIZE
    curves = {name: points for name, points in curves.items() if points}
    first, last = span or _find_span(curves.values())
    top = max((y for points in curves.values() for _, y in points), default=0.0)
    limit = ceiling if ceiling and 0.4 * ceiling <= top else None
    step = nice_step(max(top, limit or 0.0) or 1.0)
    most = step * max(1, math.ceil(max(top, limit or 0.0) / step - 1e-9))

    def x(t: float) -> float:
        return LEFT + (t - first) / max(last - first, 1e-9) * (width - LEFT - RIGHT)

    def y(value: float) -> float:
        return height - BOTTOM - value / most * (height - TOP - BOTTOM)

    body = [
        _draw_bands(bands, x, height, first, last),
        *(_draw_grid_line(v, y(v), shown(v), width) for v in _list_ticks(most, step)),
    ]
    body += [_draw_time_axis(first, last, x, height, unit)]
    if limit:
        dashes = f'stroke="{MUTED}" stroke-dasharray="5 4" fill="none"'
        body.append(f'<path d="M{LEFT} {y(limit):.1f}H{width - RIGHT}" {dashes}/>')
    for number, points in enumerate(curves.values()):
        body += _draw_curve([(x(t), y(v)) for t, v in points], COLOURS[number % len(COLOURS)])
    return figure(SIZE, title, "".join(body), list(curves) if len(curves) > 1 else [])


def draw_stages(rows: Sequence[tuple[str, float, float, str]], width: int = 1060) -> str:
    """Draw stages as bars on one time axis: (name, begin, end, text next to the bar), in seconds from any common
    zero."""
    height = 26 * len(rows) + BOTTOM + 6
    highest = 4
    first = min((r[1] for r in rows), default=0.0)
    last = max((r[2] for r in rows), default=1.0)
    left = 150
    right = 120

    def x(t: float) -> float:
        return left + (t - first) / max(last - first, 1e-9) * (width - left - right)

    body = [_draw_time_axis(0.0, last - first, lambda t: x(t + first), height)]
    for number, (name, begin, end, text) in enumerate(rows):
        y = highest + 26 * number
        wide = max(x(end) - x(begin), 1.5)
        body += [label(left - 8, y + 12, name, "end", INK), rect(x(begin), y, wide, 16, COLOURS[0], 'rx="2"')]
        body.append(label(x(begin) + wide + 6, y + 12, text))
    return figure((width, height), "", "".join(body), [])


def bars(counts: Sequence[float], width: int = 120, height: int = 28) -> str:
    """Draw a histogram without axes, as wide as a table's cell."""
    most = max(counts, default=0) or 1
    each = width / max(len(counts), 1)
    heights = [max(n / most * height, 0.8) if n else 0.0 for n in counts]
    drawn = "".join(rect(i * each, height - h, max(each - 0.6, 0.4), h) for i, h in enumerate(heights) if h)
    base = f'<path d="M0 {height - 0.5}H{width}" stroke="{GRID}"/>'
    return f'<svg {_wrap_in_frame(width, height)} fill="{COLOURS[0]}" role="img">{base}{drawn}</svg>'


def data_url(svg: str) -> str:
    """Convert the picture to the address of an image, for Markdown and pages without other files."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def width_of(picture: str) -> int:
    """Return the width of a picture of this module, in pixels.

    >>> width_of(figure((640, 190), "", "", []))
    640
    """
    return int(picture.partition(' width="')[2].partition('"')[0])


def _find_span(curves: Iterable[Points]) -> tuple[float, float]:
    moments = [t for points in curves for t, _ in points]
    return (min(moments), max(moments)) if moments else (0.0, 1.0)


def _list_ticks(most: float, step: float) -> list[float]:
    return [i * step for i in range(round(most / step) + 1)]


def _draw_grid_line(value: float, y: float, text: str, width: int) -> str:
    stroke = f'stroke="{GRID if value else MUTED}" stroke-width="{0.8 if value else 1}"'
    return f'<path d="M{LEFT} {y:.1f}H{width - RIGHT}" {stroke}/>' + label(LEFT - 6, y + 3.5, text, "end")


def _draw_time_axis(first: float, last: float, x: Callable[[float], float], height: int, unit: str = " s") -> str:
    step = nice_step(last - first, 6)
    ticks = range(math.ceil(first / step - 1e-9), math.floor(last / step + 1e-9) + 1)
    return "".join(label(x(i * step), height - 8, f"{round(i * step, 9):g}{unit}", "middle") for i in ticks)


def _draw_bands(bands: Sequence[Band], x: Callable[[float], float], height: int, first: float, last: float) -> str:
    shapes = []
    for number, (name, begin, end) in enumerate(bands):
        low = x(max(begin, first))
        high = x(min(end, last))
        if number % 2 == 0:
            shapes.append(rect(low, TOP, max(high - low, 0), height - TOP - BOTTOM, BAND))
        if high - low > 7 * len(name):
            shapes.append(label((low + high) / 2, TOP + 11, name, "middle"))
    return "".join(shapes)


def label(x: float, y: float, text: str, anchor: str = "start", fill: str = MUTED) -> str:
    """Text at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{escape(text)}</text>'


def rect(x: float, y: float, width: float, height: float, fill: str = "", more: str = "") -> str:
    """Draw a bar."""
    colour = f' fill="{fill}"' if fill else ""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{colour}{more and " " + more}/>'


def _wrap_in_frame(width: int, height: int) -> str:
    return f'xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'


def figure(size: tuple[int, int], title: str, body: str, legend: Sequence[str]) -> str:
    """Make the whole picture, with its title and legend."""
    width, height = size
    name = f'<text x="8" y="14" font-size="12.5" font-weight="600" fill="{INK}">{escape(title)}</text>' if title else ""
    place = 28 + 7.4 * len(title)
    for number, entry in enumerate(legend):
        name += rect(place, 7, 14, 3, COLOURS[number % len(COLOURS)]) + label(place + 18, 13, entry, fill=INK)
        place += 32 + 6.4 * len(entry)
    inner = f'<title>{escape(title)}</title><rect width="{width}" height="{height}" fill="#ffffff"/>{name}{body}'
    return f'<svg {_wrap_in_frame(width, height)} font-family="{FONT}" font-size="11" role="img">{inner}</svg>'
