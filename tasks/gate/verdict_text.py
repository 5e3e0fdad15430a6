"""What the gate found, as rows of a table and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tasks.core.markdown import escape_markdown, markdown_table
from tasks.core.strict_json import JsonObject
from tasks.gate.notes import GateNote
from tasks.gate.question import GateStage
from tasks.gate.verdict import Finding
from tasks.profile.output_profile import ColumnProfile, Profile

Draw = Callable[[ColumnProfile, ColumnProfile | None], str]  # draws the columns of this batch and of the one before
ROWS = 100  # most findings of a table
PLOTS = 8  # most columns that are drawn
MARKDOWN = 80_000  # most characters


def tabulate_findings(findings: Sequence[Finding]) -> list[JsonObject]:
    """Tabulate findings: column, check, before, now, figure, threshold, what follows, and the files in which each
    begins."""
    rows = [
        {
            "column": one.column,
            "check": one.check,
            "yesterday": format_figure(one.before),
            "today": format_figure(one.now),
            "figure": format_figure(one.figure),
            "threshold": format_figure(one.threshold),
            "then": one.level,
            "begins in": ", ".join(one.files),
        }
        for one in findings[:ROWS]
    ]
    if len(findings) > ROWS:
        rows.append(dict.fromkeys(rows[0], "") | {"column": f"and {len(findings) - ROWS:,} more"})
    return rows


def write_verdict_markdown(
    stage: GateStage, note: GateNote, profile: Profile | None, before: Profile | None, draw: Draw | None = None
) -> str:
    """Write the verdict of a stage as Markdown: findings, who accepted which, and plots of this batch and the last.

    `draw` returns the address of the picture of a column's values, "" for none; without it nothing is plotted.
    """
    verdict = note.verdicts[stage]
    findings = verdict.findings
    compared = ", ".join(verdict.compared_with) or "nothing: there is no good version yet"
    parts = [f"### The gate after {stage}: {verdict.verdict}", f"Compared with {compared}."]
    if findings:
        lines = (f"- **{one.level}**: {escape_markdown(one.text)}" for one in findings[:ROWS])
        parts += ["\n".join(lines), markdown_table(tabulate_findings(findings))]
    parts += [f"{escape_markdown(line)}." for line in list_acceptances(note)]
    if profile is not None and draw is not None:
        names = list(dict.fromkeys(one.column for one in findings if one.column in profile.columns))
        for name in names[:PLOTS]:
            picture = draw(profile.columns[name], before.columns.get(name) if before else None)
            if picture:
                parts.append(f"![{escape_markdown(name)}]({picture})")
    while len("\n\n".join(parts)) > MARKDOWN and len(parts) > 3:
        parts.pop()
    return "\n\n".join(parts) + "\n"


def list_acceptances(note: GateNote) -> list[str]:
    """List who accepted which findings, and when."""
    return [
        f"{entry.who} published by hand at {entry.when}: "
        + ", ".join(f"{one.column} ({one.check})" for one in entry.findings)
        for entry in note.accepted
    ]


def format_figure(value: object) -> str:
    """Format a figure in few digits; "" for none.

    >>> [format_figure(value) for value in (0.123456, 1234567, None, "a", 2.0)]
    ['0.1235', '1,234,567', '', 'a', '2']
    """
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
