"""What the gate found, as a table, as Markdown with plots, and as rows of the HTML report."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from tasks.core.markdown import escaped, markdown_table
from tasks.gate.notes import GateNote, read_gate
from tasks.gate.question import GateStage
from tasks.gate.verdict import Finding, Verdict
from tasks.profile.output_profile import ColumnProfile, Profile, bin_edges
from tasks.report.svg import COLOURS, GRID, INK, MUTED, data_url

ROWS, PLOTS, BARS = 100, 8, 24  # findings of a table, columns that are drawn, bars of a plot
MARKDOWN = 80_000  # characters
HEIGHT, WIDTH, TOP, BOTTOM = 150, 560, 26, 34


def verdict_rows(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """One row for each finding: column, check, before, now, figure, threshold, what follows, and the files in which it
    begins."""
    rows = [
        {
            "column": one.column,
            "check": one.check,
            "yesterday": shown(one.before),
            "today": shown(one.now),
            "figure": shown(one.figure),
            "threshold": shown(one.threshold),
            "then": one.level,
            "begins in": ", ".join(one.files),
        }
        for one in findings[:ROWS]
    ]
    if len(findings) > ROWS:
        rows.append(dict.fromkeys(rows[0], "") | {"column": f"and {len(findings) - ROWS:,} more"})
    return rows


def section(folder: Path) -> dict[str, Any]:
    """What the report shows of the gate's note in an output: {gate, compared, rows, lines, notes}; {} without one."""
    note = read_gate(folder)
    if note is None:
        return {}
    verdict = note.verdicts.get("commit") or note.verdicts.get("statistics") or Verdict("pass", ())
    return {
        "gate": note.gate,
        "compared": verdict.compared_with,
        "rows": verdict_rows(verdict.findings),
        "lines": accepted_lines(note),
        "notes": verdict.notes,
    }


def shown(value: object) -> str:
    """A figure in few digits; "" for none.

    >>> [shown(value) for value in (0.123456, 1234567, None, "a", 2.0)]
    ['0.1235', '1,234,567', '', 'a', '2']
    """
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def verdict_markdown(stage: GateStage, note: GateNote, profile: Profile | None, before: Profile | None) -> str:
    """The verdict of a stage as Markdown: what was found, who accepted what, and plots of yesterday and today."""
    verdict = note.verdicts[stage]
    findings = verdict.findings
    compared = ", ".join(verdict.compared_with) or "nothing: there is no good version yet"
    parts = [f"### The gate after {stage}: {verdict.verdict}", f"Compared with {compared}."]
    if findings:
        lines = (f"- **{one.level}**: {escaped(one.text)}" for one in findings[:ROWS])
        parts += ["\n".join(lines), markdown_table(verdict_rows(findings))]
    parts += [f"{escaped(line)}." for line in accepted_lines(note)]
    if profile is not None:
        names = list(dict.fromkeys(one.column for one in findings if one.column in profile.columns))
        for name in names[:PLOTS]:
            picture = distribution(profile.columns[name], before.columns.get(name) if before else None)
            if picture:
                parts.append(f"![{escaped(name)}]({data_url(picture)})")
    while len("\n\n".join(parts)) > MARKDOWN and len(parts) > 3:
        parts.pop()
    return "\n\n".join(parts) + "\n"


def accepted_lines(note: GateNote) -> list[str]:
    """Who accepted which findings, and when."""
    return [
        f"{entry.who} published by hand at {entry.when}: "
        + ", ".join(f"{one.column} ({one.check})" for one in entry.findings)
        for entry in note.accepted
    ]


def distribution(now: ColumnProfile, before: ColumnProfile | None) -> str:
    """The shares of a column's values, yesterday and today side by side, as SVG; "" where nothing was counted."""
    names, shares = _shares(now, before)
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
            x, wide = 10 + place * each + number * each * 0.42, max(each * 0.4, 0.6)
            box = f'x="{x:.1f}" y="{HEIGHT - BOTTOM - height:.1f}" width="{wide:.1f}" height="{height:.1f}"'
            body.append(f'<rect {box} fill="{colour}"><title>{escape(name)}: {share:.2%}</title></rect>')
        if place % max(1, len(names) // 6) == 0:
            x = 10 + place * each
            body.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 15}" fill="{MUTED}">{escape(name[:14])}</text>')
    body.append(f'<path d="M8 {HEIGHT - BOTTOM}H{WIDTH - 8}" stroke="{GRID}"/>')
    frame = f'xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    inner = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>{"".join(body)}'
    return f'<svg {frame} font-family="sans-serif" font-size="11" role="img">{inner}</svg>'


def _shares(now: ColumnProfile, before: ColumnProfile | None) -> tuple[list[str], list[tuple[float, float]]]:
    """(names of bars, the shares of yesterday and today): nulls, then categories by frequency or numbers in order."""
    both = (before, now)
    if (now.top_exact and len(now.top) <= BARS) or now.bins is None:
        counts = [{str(value): count for value, count in (one.top if one else [])} for one in both]
        names = list(dict.fromkeys([*counts[1], *counts[0]]))[: BARS - 1]
    else:
        bins = [dict(one.bins or {}) if one else {} for one in both]
        every = sorted({*bins[0], *bins[1]})
        if not every:
            return [], []
        step = max(1, -(-len(every) // (BARS - 1)))
        groups = [every[start : start + step] for start in range(0, len(every), step)]
        names = [f"{bin_edges(group[0])[0]:.3g}" for group in groups]
        names = [name if names.index(name) == place else f"{name} " for place, name in enumerate(names)]
        counts = [
            dict(zip(names, (sum(one.get(b, 0) for b in group) for group in groups), strict=True)) for one in bins
        ]
    rows = [one.rows if one and one.rows else 1 for one in both]
    shares = [(counts[0].get(name, 0) / rows[0], counts[1].get(name, 0) / rows[1]) for name in names]
    if any(one and one.nulls for one in both):
        names = ["null", *names]
        shares = [((before.nulls / rows[0]) if before else 0.0, now.nulls / rows[1]), *shares]
    return names, shares
