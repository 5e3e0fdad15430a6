"""Numbers to text and pictures: the artifacts of a stage, and the HTML report of an output."""

from tasks.core.units import amount, rate
from tasks.report.artifact import stage_markdown, stage_table
from tasks.report.text import learned_tables, markdown_table, stage_line

__all__ = ["amount", "learned_tables", "markdown_table", "rate", "stage_line", "stage_markdown", "stage_table"]
