"""Tables for a terminal: texts as they are, and rows of any number of columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tasks.errors import visible

VALUE = 36  # letters of a value, where rows stand beside each other


def print_rows(names: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    """Rows of values under their names where the terminal is wide enough, else beside them: every row a column of a
    table, and as many tables as it takes."""
    names = [visible(name) for name in names]
    rows = [[visible(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    if sum(widths) + 2 * (len(names) - 1) <= console.width:
        table = text_table("", *names)
        for row in rows:
            table.add_row(*row)
        print_table(table, console)
        return
    name_width = min(max(map(len, names)), console.width // 2)
    cut = [[value if len(value) <= VALUE else value[: VALUE - 2] + ".." for value in row] for row in rows]
    number = 0
    while number < len(cut):
        first = number
        left = console.width - name_width
        while number < len(cut) and (number == first or left >= 2 + _width(cut[number], number)):
            left -= 2 + _width(cut[number], number)
            number += 1
        table = text_table("", "column", *(f"row {n + 1}" for n in range(first, number)))
        for values in zip(names, *cut[first:number], strict=True):
            table.add_row(*values)
        print_table(table, console)
        if number < len(cut):
            console.print()


def _width(values: Sequence[str], number: int) -> int:
    return max(len(f"row {number + 1}"), *map(len, values))


class TextTable(Table):
    """A table whose cells are shown as they are (`timestamp[us]` is not markup), under a heading of any length."""

    heading = ""

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*(Text(visible(str(cell))) for cell in cells), **options)


def text_table(title: str, *columns: str) -> TextTable:
    """Return a table without frame; columns whose name ends in `>` are aligned right."""
    table = TextTable(box=None, pad_edge=False, header_style="dim")
    table.heading = title
    for name in columns:
        right = name.endswith(">")
        table.add_column(Text(name.rstrip(">")), justify="right" if right else "left", overflow="fold")
    return table


def print_table(table: TextTable, console: Console) -> None:
    if table.heading:
        console.print(Text(f"\n{table.heading}", style="bold"), soft_wrap=True)
    console.print(table)
