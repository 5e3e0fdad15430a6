"""The text of a stage's artifact, Markdown, which `flows/run/artifacts.py` writes to Prefect.

It is far below Prefect's limit of some 100 kB.
"""

from __future__ import annotations

from datetime import UTC, datetime

from tasks.cluster import usage
from tasks.core.markdown import escape_markdown, markdown_table
from tasks.core.settings import STAGES
from tasks.core.stage_results import IngestResult, StageResult, StatisticsResult, WriteResult
from tasks.core.units import amount
from tasks.report import series
from tasks.report.svg import data_url

PARTS = 300  # rows of the table of files
MARKDOWN = 80_000  # characters of a Markdown artifact


def stage_markdown(
    result: StageResult, diagram: str = "", workers: usage.Workers | None = None, dashboard: str = ""
) -> str:
    """Write the figures of a stage, what its workers did, plots of throughput and memory, and the workflow as a
    diagram.

    `diagram` is an SVG, `workers` are samples as tasks.cluster.monitor takes them, `dashboard` is a link that works
    while the run lives.
    """
    where = " → ".join(f"**{stage}**" if stage == result.stage else stage for stage in STAGES)
    made_up = result.made_up if isinstance(result, IngestResult) else ""
    sample = [f"**Made-up data**: {escape_markdown(made_up)}."] if made_up else []
    parts = [f"### {result.line}", *sample, where, markdown_numbers(result)]
    if workers and not result.reused:
        parts += _describe_workers(result, workers)
    if dashboard:
        parts.append(f"[Dask dashboard]({dashboard}) (while the run lives)")
    if diagram:
        parts.append(f"![workflow]({data_url(diagram)})")
    if failed := result.failed_casts:
        parts.append(f"#### Casts that failed, their rows are null\n\n{markdown_table(failed[:PARTS])}")
    if isinstance(result, WriteResult) and result.parts:
        parts.append(f"#### Files\n\n{files_table(result)}")
    tables = result.tables if isinstance(result, StatisticsResult) else {}
    for title, rows in tables.items():
        parts.append(f"#### {escape_markdown(title)}\n\n{markdown_table(rows)}")
    while len("\n\n".join(parts)) > MARKDOWN and len(parts) > 3:
        parts.pop()
    return "\n\n".join(parts) + "\n"


def markdown_numbers(result: StageResult) -> str:
    """Write the figures of a stage as a Markdown table; what did not happen (`reused`, `halved`) has no row."""
    seconds = max(result.seconds, 1e-9)
    rows = [("rows", f"{result.rows:,}"), ("seconds", f"{result.seconds:.2f}")]
    rows += [("rows per second", f"{result.rows / seconds:,.0f}"), ("bytes", amount(result.nbytes))]
    rows += [("bytes per second", amount(result.nbytes / seconds))]
    rows += [(name, clock(moment)) for name, moment in _collect_moments(result).items()]
    known = {"stage", "split", "rows", "bytes", "seconds"}
    others = {name: value for name, value in result.figures().items() if name not in known and value}
    rows += [(name.replace("_", " "), _format_fact(value)) for name, value in others.items()]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {escape_markdown(value)} |" for name, value in rows)])


def _collect_moments(result: StageResult) -> dict[str, float]:
    """When a stage began and ended, as far as that is known."""
    moments = {"began": result.began, "ended": result.ended}
    return {name: moment for name, moment in moments.items() if moment is not None}


def _describe_workers(result: StageResult, workers: usage.Workers) -> list[str]:
    began = result.began or 0.0
    ended = result.ended or result.seconds
    rows = series.worker_rows(workers, ended - began)
    pictures = series.plots(workers, began, (0.0, ended - began), few=True)
    texts = [markdown_table(table[:32]) for table in (rows, series.gpu_rows(workers)) if table]
    if moved := usage.sum_sent_bytes(workers):
        texts.append("Moved between workers: " + ", ".join(f"{amount(n)} by {how}" for how, n in moved.items()))
    return [*texts, *(f"![{result.stage}]({data_url(picture)})" for picture in pictures)]


def _format_fact(value: object) -> str:
    if isinstance(value, bool):
        return "yes"
    return f"{value:,}" if isinstance(value, int) else str(value)


def clock(seconds: float) -> str:
    """Format a moment as UTC text.

    >>> clock(0)
    '1970-01-01 00:00:00.0 UTC'
    """
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-5] + " UTC"


def files_table(result: WriteResult) -> str:
    """Tabulate the files of a shuffle_write as Markdown: the first `PARTS`, with the sums of the others."""
    parts = result.parts
    rows = [{name: part[name] for name in ("path", "rows", "bytes", "xxh3_128")} for part in parts[:PARTS]]
    if rest := parts[PARTS:]:
        more = {"rows": sum(p["rows"] for p in rest), "bytes": sum(p["bytes"] for p in rest), "xxh3_128": ""}
        rows.append({"path": f"and {len(rest):,} more", **more})
    return markdown_table(rows)
