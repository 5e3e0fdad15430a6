"""What the commands print to."""

from __future__ import annotations

import os
import sys

from rich.console import Console


class Terminal(Console):
    """Where people read: colours and moving lines on a screen, plain text in a pipe or a file."""

    def on_broken_pipe(self) -> None:
        """The reader of a pipe (head, less) has seen enough: the work goes on, and nobody is told."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def terminal(soft_wrap: bool = False) -> Terminal:
    return Terminal(soft_wrap=soft_wrap, highlight=False)
