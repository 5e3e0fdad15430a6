"""Numbers to text: summaries of stages as a line, as Markdown and as rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

DIAGRAM = """```mermaid
graph LR
  ingest --> statistics --> transform --> shuffle_write
  style {stage} fill:#8fd3c8,stroke:#146152,stroke-width:2px
```"""
HIDDEN = {"parts", "digest", "tables"}
TABLE_ROWS = 20


def amount(nbytes: float) -> str:
    """Bytes in the unit a person reads.

    >>> amount(1_234_567), amount(0)
    ('1.2 MB', '0 B')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if nbytes < 1000 or unit == "TB":
            return f"{nbytes:,.0f} {unit}" if unit == "B" else f"{nbytes:,.1f} {unit}"
        nbytes /= 1000
    raise AssertionError


def rate(rows: float, seconds: float) -> str:
    return f"{rows / seconds:,.0f} rows/s" if seconds > 0 else "-"


def stage_line(summary: dict[str, Any]) -> str:
    """One sentence on a stage."""
    title = " ".join(p for p in (summary["stage"], summary.get("split", "")) if p)
    text = (
        f"{title}: {summary['rows']:,} rows in {summary['seconds']:.2f} s, {rate(summary['rows'], summary['seconds'])}"
    )
    return text + (" (found done, not run again)" if summary.get("reused") else "")


def stage_markdown(summary: dict[str, Any]) -> str:
    """Numbers and a diagram of where the stage stands."""
    seconds = max(summary["seconds"], 1e-9)
    rows = [("rows", f"{summary['rows']:,}"), ("seconds", f"{summary['seconds']:.2f}"), ("rows per second", f"{summary['rows'] / seconds:,.0f}"),
            ("bytes", amount(summary["bytes"])), ("bytes per second", amount(summary["bytes"] / seconds))]  # fmt: skip
    shown = {"stage", "split", "rows", "bytes", "seconds", *HIDDEN}
    rows += [
        (k.replace("_", " "), f"{v:,}" if isinstance(v, int) and not isinstance(v, bool) else str(v))
        for k, v in summary.items()
        if k not in shown
    ]
    table = "\n".join(["| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in rows)])
    return f"### {stage_line(summary)}\n\n{DIAGRAM.format(stage=summary['stage'])}\n\n{table}\n" + "".join(
        f"\n#### {title}\n\n{markdown_table(rows)}\n" for title, rows in summary.get("tables", {}).items()
    )


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


def stage_table(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of plain scalars: the parts of a shuffle_write, for other stages name and value."""
    if summary.get("parts"):
        return [{k: part[k] for k in ("path", "rows", "bytes", "xxh3_128")} for part in summary["parts"]]
    return [
        {"what": k, "value": v if isinstance(v, (int, str, bool)) else round(float(v), 3)}
        for k, v in summary.items()
        if k not in HIDDEN and v is not None
    ]
