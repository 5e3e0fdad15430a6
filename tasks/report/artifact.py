"""The artifacts of a stage: one Markdown and one table, both far below Prefect's limit of some 100 kB."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tasks.core.settings import STAGES
from tasks.core.units import amount
from tasks.report import series
from tasks.report.svg import data_url
from tasks.report.text import markdown_table, stage_line

HIDDEN = {"parts", "digest", "tables", "began", "ended", "failed_casts"}
PARTS, MARKDOWN = 300, 80_000  # rows of the table of files; characters of a Markdown artifact


def stage_markdown(
    summary: Mapping[str, Any], diagram: str = "", workers: series.Workers | None = None, dashboard: str = ""
) -> str:
    """Numbers of a stage, what its workers did, throughput and memory as plots, and the workflow as a diagram.

    `diagram` is an SVG, `workers` are samples as tasks.cluster.monitor takes them, `dashboard` is a link that works
    while the run lives.
    """
    where = " → ".join(f"**{s}**" if s == summary["stage"] else s for s in STAGES)
    sample = [f"**Made-up data**: {summary['made_up']}."] if summary.get("made_up") else []
    parts = [f"### {stage_line(summary)}", *sample, where, markdown_numbers(summary)]
    if workers and not summary.get("reused"):
        parts += _of_workers(summary, workers)
    if dashboard:
        parts.append(f"[Dask dashboard]({dashboard}) (while the run lives)")
    if diagram:
        parts.append(f"![workflow]({data_url(diagram)})")
    if failed := summary.get("failed_casts"):
        parts.append(f"#### Casts that failed, their rows are null\n\n{markdown_table(failed[:PARTS])}")
    for title, rows in summary.get("tables", {}).items():
        parts.append(f"#### {title}\n\n{markdown_table(rows)}")
    while len("\n\n".join(parts)) > MARKDOWN and len(parts) > 3:
        parts.pop()
    return "\n\n".join(parts) + "\n"


def markdown_numbers(summary: Mapping[str, Any]) -> str:
    """The figures of a summary as a Markdown table."""
    seconds = max(summary["seconds"], 1e-9)
    rows = [("rows", f"{summary['rows']:,}"), ("seconds", f"{summary['seconds']:.2f}")]
    rows += [("rows per second", f"{summary['rows'] / seconds:,.0f}"), ("bytes", amount(summary["bytes"]))]
    rows += [("bytes per second", amount(summary["bytes"] / seconds))]
    rows += [(name, clock(summary[name])) for name in ("began", "ended") if name in summary]
    known = {"stage", "split", "rows", "bytes", "seconds", *HIDDEN}
    rows += [(name.replace("_", " "), _shown(value)) for name, value in summary.items() if name not in known]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def _of_workers(summary: Mapping[str, Any], workers: series.Workers) -> list[str]:
    began, ended = summary["began"], summary["ended"]
    rows = series.worker_rows(workers, ended - began)
    pictures = series.plots(workers, began, (0.0, ended - began), few=True)
    blocks = [markdown_table(rows[:32])] if rows else []
    if moved := series.moved(workers):
        blocks.append("Moved between workers: " + ", ".join(f"{amount(n)} by {how}" for how, n in moved.items()))
    return [*blocks, *(f"![{summary['stage']}]({data_url(picture)})" for picture in pictures)]


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def clock(seconds: float) -> str:
    """A moment as UTC text.

    >>> clock(0)
    '1970-01-01 00:00:00.0 UTC'
    """
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-5] + " UTC"


def stage_table(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of plain scalars: the files of a shuffle_write (the first `PARTS`), for other stages name and value."""
    if parts := summary.get("parts"):
        rows = [{name: part[name] for name in ("path", "rows", "bytes", "xxh3_128")} for part in parts[:PARTS]]
        if len(parts) > PARTS:
            rest = parts[PARTS:]
            more = {"rows": sum(p["rows"] for p in rest), "bytes": sum(p["bytes"] for p in rest), "xxh3_128": ""}
            rows.append({"path": f"and {len(rest):,} more", **more})
        return rows
    lines: list[dict[str, Any]] = []
    for name, value in summary.items():
        if name in ("began", "ended"):
            lines.append({"what": name, "value": clock(value)})
        elif name not in HIDDEN and value is not None:
            lines.append(
                {"what": name, "value": value if isinstance(value, int | str | bool) else round(float(value), 3)}
            )
    return lines
