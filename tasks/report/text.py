"""Numbers to text: amounts, rates, a stage in a line, rows as a Markdown table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.core.units import rate

TABLE_ROWS = 20


def title_of(summary: Mapping[str, Any]) -> str:
    """A stage with its split, if there are several.

    >>> title_of({"stage": "transform", "split": "valid"}), title_of({"stage": "ingest"})
    ('transform valid', 'ingest')
    """
    return " ".join(part for part in (summary["stage"], summary.get("split") or "") if part)


def samples_path(staging: Path, summary: Mapping[str, Any]) -> Path:
    """Where the samples of a stage's workers wait for the report."""
    return staging / "samples" / f"{title_of(summary).replace(' ', '-')}.json"


def stage_line(summary: Mapping[str, Any]) -> str:
    """One sentence on a stage."""
    per_second = rate(summary["rows"], summary["seconds"])
    text = f"{title_of(summary)}: {summary['rows']:,} rows in {summary['seconds']:.2f} s, {per_second}"
    if summary.get("halved"):
        text += f", halved {summary['halved']:,} times for want of memory"
    if failed := summary.get("failed_casts"):
        text += f", casts failed in {sum(f['rows'] for f in failed):,} rows"
    return text + (" (found done, not run again)" if summary.get("reused") else "")


def learned_tables(steps: Iterable[Any], values: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """What the learned steps have to show, by title: the first rows of each."""
    tables = {}
    for step in steps:
        rows = step.op.report(values[step.key])
        if rows:
            few = len(step.unit) <= 4
            columns = ", ".join(step.unit) if few else f"{step.unit[0]} .. {step.unit[-1]} ({len(step.unit):,} columns)"
            tables[f"{type(step.op).__name__} of {columns}"] = rows[:TABLE_ROWS]
    return tables


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of plain values as a Markdown table, numbers to six digits.

    >>> print(markdown_table([{"column": "x", "r2": 0.123456789, "n": None}]))
    | column | r2 | n |
    |---|---|---|
    | x | 0.123457 |  |
    """
    names = list(rows[0])
    lines = [names, *([_shown(row[name]) for name in names] for row in rows)]
    text = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([text[0], "|" + "---|" * len(names), *text[1:]])


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
