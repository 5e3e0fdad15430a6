"""Markdown of texts and rows that come from people's data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.core.strict_json import JsonObject
from tasks.errors import visible

# What Markdown or HTML takes for its own: neither underscores within words nor parentheses without brackets.
MARKUP = re.compile(
    r"[\\`*\[\]<>|~@#]|(?<![^\W_])_|_(?![^\W_])|^[+-](?=\s)|&(?=#?\w+;)|:(?=//)|(?<=www)\.", re.IGNORECASE
)


ESCAPE = re.compile(r"\\([^\w\s]|_)")


class Markdown(str):
    """A text that is Markdown already: tables and artifacts show it as such."""


def escape_markdown(text: str) -> str:
    r"""A text of the data in Markdown: nothing in it is markup or a link, and it is one line.

    >>> print(escape_markdown("![x](http://h/y)"), escape_markdown("user_id _x_"), escape_markdown("a\n<b>"))
    !\[x\](http\://h/y) user_id \_x\_ a \<b\>
    """
    return text if isinstance(text, Markdown) else MARKUP.sub(r"\\\g<0>", visible(" ".join(str(text).split())))


def unescape_markdown(text: str) -> str:
    r"""A Markdown text without the escapes of `escape_markdown`, as a terminal or a file shows it.

    >>> print(unescape_markdown(escape_markdown("out_/a|b <c>")))
    out_/a|b <c>
    """
    return ESCAPE.sub(r"\1", text)


def escape_rows(rows: Sequence[Mapping[str, Any]]) -> list[JsonObject]:
    """Rows for the table of an artifact, whose texts the page of the server shows as Markdown."""
    return [
        {name: escape_markdown(cell) if isinstance(cell, str) else cell for name, cell in row.items()} for row in rows
    ]


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of plain values as a Markdown table, numbers to six digits, texts as they are unless they are `Markdown`.

    >>> print(markdown_table([{"column": "x", "r2": 0.123456789, "n": None}]))
    | column | r2 | n |
    |---|---|---|
    | x | 0.123457 |  |
    """
    names = list(rows[0])
    lines = [
        [escape_markdown(name) for name in names],
        *([escape_markdown(_format_cell(row[name])) for name in names] for row in rows),
    ]
    text = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([text[0], "|" + "---|" * len(names), *text[1:]])


def _format_cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return f"{value:.6g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
