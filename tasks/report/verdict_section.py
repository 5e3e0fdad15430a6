"""The gate's findings as rows of the HTML report, and the values of a column in two batches as a picture."""

from __future__ import annotations

from html import escape
from pathlib import Path

from tasks.core.strict_json import JsonObject
from tasks.gate.notes import read_gate
from tasks.gate.verdict import Verdict
from tasks.gate.verdict_text import list_acceptances, tabulate_findings
from tasks.profile.output_profile import ColumnProfile, bin_edges
from tasks.report.svg import COLOURS, GRID, INK, MUTED, data_url

BARS = 24  # of a plot
HEIGHT = 150
WIDTH = 560
TOP = 26
BOTTOM = 34


def section(folder: Path) -> JsonObject:
    """Collect what the report shows of the gate's note in an output: {gate, compared, rows, lines, notes}.

    {} if there is no note.
    """
    note = read_gate(folder)
    if note is None:
        return {}
    # the later of the two verdicts; a note without any has nothing to report
    verdict = note.verdicts.get("commit") or note.verdicts.get("statistics") or Verdict("pass", ())
    return {
        "gate": note.gate,
        "compared": verdict.compared_with,
        "rows": tabulate_findings(verdict.findings),
        "lines": list_acceptances(note),
        "notes": verdict.notes,
    }


def draw_distribution_url(now: ColumnProfile, before: ColumnProfile | None) -> str:
    """Draw the shares of a column's values as the address of a picture; "" if nothing was counted."""
    picture = draw_distribution(now, before)
    return data_url(picture) if picture else ""


def draw_distribution(now: ColumnProfile, before: ColumnProfile | None) -> str:
    """Draw the shares of a column's values, before and now side by side, as SVG; "" if nothing was counted."""
    names, shares = _compute_shares(now, before)
    if not names:
        return ""
    most = max((share for pair in shares for share in pair), default=0.0) or 1.0
    each = (WIDTH - 20) / len(names)
    body = [f'<text x="8" y="15" font-size="12.5" font-weight="600" fill="{INK}">{escape(now.name[:50])}</text>']
    for number, (text, colour) in enumerate((("yesterday", COLOURS[2]), ("today", COLOURS[1]))):
        x: float = WIDTH - 170 + 90 * number
        body.append(f'<rect x="{x}" y="7" width="10" height="10" fill="{colour}"/>')
        body.append(f'<text x="{x + 14}" y="16" fill="{MUTED}">{text}</text>')
    for place, (name, pair) in enumerate(zip(names, shares, strict=True)):
        for number, (share, colour) in enumerate(zip(pair, (COLOURS[2], COLOURS[1]), strict=True)):
            height = share / most * (HEIGHT - TOP - BOTTOM)
            x = 10 + place * each + number * each * 0.42
            wide = max(each * 0.4, 0.6)
            box = f'x="{x:.1f}" y="{HEIGHT - BOTTOM - height:.1f}" width="{wide:.1f}" height="{height:.1f}"'
            body.append(f'<rect {box} fill="{colour}"><title>{escape(name)}: {share:.2%}</title></rect>')
        if place % max(1, len(names) // 6) == 0:
            x = 10 + place * each
            body.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 15}" fill="{MUTED}">{escape(name[:14])}</text>')
    body.append(f'<path d="M8 {HEIGHT - BOTTOM}H{WIDTH - 8}" stroke="{GRID}"/>')
    frame = f'xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    inner = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>{"".join(body)}'
    return f'<svg {frame} font-family="sans-serif" font-size="11" role="img">{inner}</svg>'


def _compute_shares(now: ColumnProfile, before: ColumnProfile | None) -> tuple[list[str], list[tuple[float, float]]]:
    """Compute (names of bars, the shares before and now): nulls, then categories by frequency or numbers in order."""
    profiles = (before, now)
    if (now.top_exact and len(now.top) <= BARS) or now.bins is None:
        counts = [{str(value): count for value, count in (profile.top if profile else [])} for profile in profiles]
        names = list(dict.fromkeys([*counts[1], *counts[0]]))[: BARS - 1]  # one bar is for nulls
    else:
        bins = [dict(profile.bins or {}) if profile else {} for profile in profiles]
        every = sorted({*bins[0], *bins[1]})
        if not every:
            return [], []
        step = max(1, -(-len(every) // (BARS - 1)))
        groups = [every[start : start + step] for start in range(0, len(every), step)]
        names = [f"{bin_edges(group[0])[0]:.3g}" for group in groups]
        # Neighbouring bins may have equal names; a space makes the second a key of its own that looks the same.
        names = [name if names.index(name) == place else f"{name} " for place, name in enumerate(names)]
        counts = [
            dict(zip(names, (sum(one.get(b, 0) for b in group) for group in groups), strict=True)) for one in bins
        ]
    # 1 where there are no rows: shares of nothing are 0
    rows = [profile.rows if profile and profile.rows else 1 for profile in profiles]
    shares = [(counts[0].get(name, 0) / rows[0], counts[1].get(name, 0) / rows[1]) for name in names]
    if any(profile and profile.nulls for profile in profiles):
        names = ["null", *names]
        shares = [((before.nulls / rows[0]) if before else 0.0, now.nulls / rows[1]), *shares]
    return names, shares
