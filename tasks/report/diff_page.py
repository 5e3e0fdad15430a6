"""The page of two outputs side by side: one HTML file that needs no other files and no network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from tasks.gate.contract import percent
from tasks.gate.diff import Difference, Distribution
from tasks.report.svg import COLOURS, GRID, INK, MUTED, figure, label, rect

STYLE = """
body { margin: 0 auto; max-width: 1120px; padding: 2.2rem 1.6rem 4rem; color: #1f2933; background: #fff;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; font-variant-numeric: tabular-nums; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .7rem; padding-top: .8rem; border-top: 2px solid #1f2933; }
p { color: #5f6b77; } table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th { text-align: left; color: #5f6b77; border-bottom: 1px solid #1f2933; padding: .3rem .9rem .3rem 0; }
td { border-bottom: 1px solid #dfe4e8; padding: .32rem .9rem .32rem 0; vertical-align: top; overflow-wrap: anywhere; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(26rem, 1fr)); gap: 1.4rem 1.6rem; }
figure { margin: 0; } figure svg { width: 100%; height: auto; }
"""
WIDTH, ROW, NAME = 640, 16, 190
MOST_PLOTS = 60


def page(difference: Difference) -> str:
    """The page; names and values are escaped."""
    before, now = difference.before, difference.now
    title = f"{before.name} and {now.name}"
    days = " and ".join(side.day for side in (before, now) if side.day)
    parts = [f"<h1>{escape(title)}</h1>", f"<p>{escape(days)}</p>" if days else ""]
    parts += [f"<p>{escape(note)}</p>" for note in difference.notes]
    parts.append(_table("Rows", ("", before.name, now.name, "change"), difference.rows))
    if difference.schema:
        parts.append(_table("Columns of the output", ("column", before.name, now.name), difference.schema))
    if difference.vocabularies:
        sizes = [
            (v.columns, f"{v.before:,}", f"{v.now:,}", f"{v.new:,}", f"{v.gone:,}", f"{v.moved:,}", v.examples)
            for v in difference.vocabularies
        ]
        names = ("columns", before.name, now.name, "new", "gone", "ids that moved", "new values")
        parts.append(_table("Vocabularies", names, sizes))
    if difference.statistics:
        heads = ("column", "", before.name, now.name, "change")
        parts.append(_table("Statistics of the source", heads, difference.statistics))
    if difference.distributions:
        plots = [f"<figure>{plot(one, (before.name, now.name))}</figure>" for one in difference.distributions]
        more = len(plots) - MOST_PLOTS
        parts.append('<h2>Distributions, those that moved most first</h2><div class="plots">')
        parts += [*plots[:MOST_PLOTS], "</div>", f"<p>and {more:,} more columns</p>" if more > 0 else ""]
    head = f'<meta charset="utf-8"><title>{escape(title)}: rowmill diff</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<h2>{escape(title)}</h2><table><tr>{head}</tr>{body}</table>"


def plot(one: Distribution, names: tuple[str, str]) -> str:
    """The shares of both sides as bars beside each other, a row for each value or bin."""
    height = 40 + 2 * ROW * len(one.labels)
    most = max([*one.before, *one.now, 1e-9])
    body = [label(8, 32, f"Jensen-Shannon distance {one.jensen_shannon:.3g}, PSI {one.psi:.3g}")]
    for number, (name, before, now) in enumerate(zip(one.labels, one.before, one.now, strict=True)):
        y = 40 + 2 * ROW * number
        name = name if len(name) <= 30 else name[:28] + ".."
        body.append(label(NAME - 8, y + ROW, name, "end", INK))
        for place, share in enumerate((before, now)):
            wide = share / most * (WIDTH - NAME - 70)
            body.append(rect(NAME, y + place * (ROW - 3) + 2, max(wide, 0.5), ROW - 5, (MUTED, COLOURS[0])[place]))
            body.append(label(NAME + wide + 6, y + place * (ROW - 3) + 11, percent(share)))
        body.append(f'<path d="M{NAME} {y + 2 * ROW - 2}H{WIDTH - 8}" stroke="{GRID}"/>')
    title = f"{one.column}: {names[0]} (grey), {names[1]} (green)"
    return figure((WIDTH, height), title, "".join(body), [])
