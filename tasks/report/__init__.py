"""Numbers to text and pictures: the artifacts of a stage, and the HTML report of an output."""

from tasks.core.units import amount, rate
from tasks.report.artifact import stage_markdown
from tasks.report.phrases import Markdown, escaped, escaped_rows, learned_tables, markdown_table, stage_line, unescaped

__all__ = [
    "Markdown",
    "amount",
    "escaped",
    "escaped_rows",
    "learned_tables",
    "markdown_table",
    "rate",
    "stage_line",
    "stage_markdown",
    "unescaped",
]
