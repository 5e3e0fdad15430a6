"""The terminal of the commands, and how they report errors."""

from __future__ import annotations

import functools
import inspect
import io
import os
import sys
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text
from rich.traceback import Traceback

from tasks.core.wings import absent_wing
from tasks.errors import GateAskedError, GateStoppedError, RowmillError, visible


class Terminal(Console):
    """Where people read: colours and moving lines on a screen, plain text in a pipe or a file.

    Control characters of names and values are shown as escapes, whatever prints them.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            own = segment.control or not segment.text
            yield segment if own else Segment(visible(segment.text, keep="\n\t"), segment.style)

    def on_broken_pipe(self) -> None:
        """Ignore that the reader of a pipe (head, less) has gone: the work goes on."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def terminal(soft_wrap: bool = False) -> Terminal:
    return Terminal(soft_wrap=soft_wrap, highlight=False)


def escape_what_cannot_be_printed() -> None:
    """Have the output of this process show characters that its encoding lacks as escapes, such as \\xe9."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_document(text: str, escape: Callable[[str], str]) -> None:
    """Print a text that is to become a file, which is read as UTF-8: where the output has another encoding,
    `escape(text)` says the same in ASCII."""
    is_utf8 = (sys.stdout.encoding or "utf-8").lower().replace("_", "-") in ("utf-8", "utf8")
    print(text if is_utf8 else escape(text), end="")


def ascii_yaml(text: str) -> str:
    r"""The same YAML in ASCII: names and values with escapes that YAML reads, comments with plain ones.

    >>> print(ascii_yaml("größe: [x, 'é']  # ü"))
    "gr\xF6\xDFe": [x, "\xE9"]  # \xfc
    """
    import yaml

    pieces = []
    done = 0
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        if isinstance(token, yaml.ScalarToken) and not token.value.isascii():
            pieces.append(text[done : token.start_mark.index])
            pieces.append(yaml.safe_dump(token.value, default_style='"', width=float("inf")).rstrip("\n"))
            done = token.end_mark.index
    return "".join([*pieces, text[done:]]).encode("ascii", "backslashreplace").decode()


def ascii_prototext(text: str) -> str:
    r"""The same text of a protocol buffer in ASCII: its strings are bytes of UTF-8, which octal escapes say.

    >>> print(ascii_prototext('name: "é"'))
    name: "\303\251"
    """
    return "".join(sign if sign.isascii() else "".join(f"\\{byte:03o}" for byte in sign.encode()) for sign in text)


P = ParamSpec("P")
R = TypeVar("R")
WHOLE = 0
FAILED = 1
DAMAGED = 1
NO_OUTPUT = 2
UNRECORDED = 3
STOPPED = 4
ASKED = 5
DEFECT = 70
INTERRUPTED = 130
TERMINATED = 143


def report_failures(command: Callable[P, R]) -> Callable[P, R]:
    """A command that reports a failure as what, where, why and what to do; with --debug as a traceback, too."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            say_error("stopped by Ctrl-C; give the same command again to go on")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # the reader of a pipe (head, less) has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(WHOLE) from None
        except RowmillError as error:
            raise typer.Exit(say_failure(error, f"rowmill {command.__name__}")) from None
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except ModuleNotFoundError as error:
            absent = absent_wing(error, f"rowmill {command.__name__}")
            raise typer.Exit(say_failure(absent or error, f"rowmill {command.__name__}")) from None
        except Exception as error:
            raise typer.Exit(say_failure(error, f"rowmill {command.__name__}")) from None

    run.__doc__ = unwrap_paragraphs(command.__doc__ or "")
    return run


def unwrap_paragraphs(text: str) -> str:
    r"""A docstring for a terminal of any width: a paragraph is one line, unless its lines are indented.

    >>> unwrap_paragraphs("First\n    line.\n\n    Examples\n\n      rowmill run\n      rowmill new\n    ")
    'First line.\n\nExamples\n\n  rowmill run\n  rowmill new'
    """
    paragraphs = inspect.cleandoc(text).split("\n\n")
    indented = (any(line.startswith(" ") for line in one.split("\n")) for one in paragraphs)
    return "\n\n".join(p if as_is else p.replace("\n", " ") for p, as_is in zip(paragraphs, indented, strict=True))


def say_failure(error: BaseException, doing: str, more: str = "") -> int:
    """Print what failed, where, why and what to do; return the exit status. An unforeseen error is a defect, status
    70. With --debug the traceback comes first."""
    from tasks.core.unforeseen_errors import DefectError, defect

    shown: BaseException | None = error
    while shown is not None and not isinstance(shown, RowmillError):
        shown = shown.__cause__
    if shown is None:
        if isinstance(error, MemoryError):
            do = "\n  do: end other programs, or work on less at once: a smaller source.partition_size"
            say_error(f"there is not enough memory for {doing}{do}{more}")
        else:
            shown = defect(error, doing)
    if shown is None:
        return FAILED
    show_traceback(error)
    if isinstance(shown, DefectError) and shown.trace and debugging():
        print(shown.trace, file=sys.stderr)
    say_error(f"{shown}{more}")
    statuses: dict[type[RowmillError], int] = {
        DefectError: DEFECT,
        GateStoppedError: STOPPED,
        GateAskedError: ASKED,
    }
    return next((status for kind, status in statuses.items() if isinstance(shown, kind)), FAILED)


def debugging() -> bool:
    return os.environ.get("ROWMILL_DEBUG", "") not in ("", "0")


def show_traceback(error: BaseException) -> None:
    if debugging():
        Console(stderr=True).print(Traceback.from_exception(type(error), error, error.__traceback__))


def say_error(message: str) -> None:
    """On stderr: the first line in red, then where, why and what to do."""
    first, *rest = message.splitlines() or [""]
    text = Text("error: ", style="bold red").append(first, style="bold")
    for line in rest:
        text.append(f"\n{line}", style="not bold")
    Terminal(stderr=True, soft_wrap=True, highlight=False).print(text)
