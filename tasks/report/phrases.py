"""Numbers to text: amounts, rates, a stage in a line, rows as a Markdown table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.core.stage_results import RESOURCES, StageResult
from tasks.core.units import rate
from tasks.errors import visible

TABLE_ROWS = 20


def samples_path(staging: Path, result: StageResult) -> Path:
    """Where the samples of a stage's workers wait for the report."""
    return staging / "samples" / f"{result.title.replace(' ', '-')}.json"


def stage_line(result: StageResult) -> str:
    """One sentence on a stage."""
    per_second = rate(result.rows, result.seconds)
    text = f"{result.title}: {result.rows:,} rows in {result.seconds:.2f} s, {per_second}"
    if result.halved:
        text += f", halved {result.halved:,} times for lack of memory"
    if result.failed_casts:
        text += f", casts failed in {sum(failed['rows'] for failed in result.failed_casts):,} rows"
    return text + (" (already done, not run again)" if result.reused else "")


def resources_text(taken: Mapping[str, float]) -> str:
    """What a stage or a run took, in words; `taken` has names of RESOURCES."""
    texts = ("{:,.1f} core seconds", "{:,.1f} GPU seconds", "{:,.1f} J ({:,.2f} Wh)", "cost {:,.4g}")
    named = [(name, text) for name, text in zip(RESOURCES, texts, strict=True) if name in taken]
    return ", ".join(text.format(taken[name], taken[name] / 3600) for name, text in named)


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


# What Markdown or HTML takes for its own: neither underscores within words nor parentheses without brackets.
MARKUP = re.compile(
    r"[\\`*\[\]<>|~@#]|(?<![^\W_])_|_(?![^\W_])|^[+-](?=\s)|&(?=#?\w+;)|:(?=//)|(?<=www)\.", re.IGNORECASE
)


ESCAPE = re.compile(r"\\([^\w\s]|_)")


class Markdown(str):
    """A text that is Markdown already: tables and artifacts show it as such."""


def escaped(text: str) -> str:
    r"""A text of the data in Markdown: nothing in it is markup or a link, and it is one line.

    >>> print(escaped("![x](http://h/y)"), escaped("user_id _x_"), escaped("a\n<b>"))
    !\[x\](http\://h/y) user_id \_x\_ a \<b\>
    """
    return text if isinstance(text, Markdown) else MARKUP.sub(r"\\\g<0>", visible(" ".join(str(text).split())))


def unescaped(text: str) -> str:
    r"""A Markdown text without the escapes of `escaped`, as a terminal or a file shows it.

    >>> print(unescaped(escaped("out_/a|b <c>")))
    out_/a|b <c>
    """
    return ESCAPE.sub(r"\1", text)


def escaped_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows for the table of an artifact, whose texts the page of the server shows as Markdown."""
    return [{name: escaped(cell) if isinstance(cell, str) else cell for name, cell in row.items()} for row in rows]


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of plain values as a Markdown table, numbers to six digits, texts as they are unless they are `Markdown`.

    >>> print(markdown_table([{"column": "x", "r2": 0.123456789, "n": None}]))
    | column | r2 | n |
    |---|---|---|
    | x | 0.123457 |  |
    """
    names = list(rows[0])
    lines = [[escaped(name) for name in names], *([escaped(_shown(row[name])) for name in names] for row in rows)]
    text = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([text[0], "|" + "---|" * len(names), *text[1:]])


def _shown(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return f"{value:.6g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
