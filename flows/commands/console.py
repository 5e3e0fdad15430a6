"""The terminal of the commands: what they print, how they report errors, and their exit statuses."""

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
            if segment.control or not segment.text:  # rich's own codes, such as those that move the cursor
                yield segment
            else:
                yield Segment(visible(segment.text, keep="\n\t"), segment.style)

    def on_broken_pipe(self) -> None:
        """Let the command go on without output when the reader of its pipe (head, less) has gone.

        rich calls this. A plain print raises BrokenPipeError instead, which ends the command (`report_failures`).
        """
        discard_stdout()


def discard_stdout() -> None:
    """Send the rest of the output to /dev/null, so that neither a print nor the flush at exit fails."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def terminal(soft_wrap: bool = False) -> Terminal:
    return Terminal(soft_wrap=soft_wrap, highlight=False)


def escape_what_cannot_be_printed() -> None:
    """Have the output of this process show characters that its encoding lacks as escapes, such as \\xe9."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_document(text: str, escape: Callable[[str], str]) -> None:
    """Print a text that is meant to be redirected into a UTF-8 file.

    If stdout has another encoding, print `escape(text)` instead: the same content in ASCII.
    """
    is_utf8 = (sys.stdout.encoding or "utf-8").lower().replace("_", "-") in ("utf-8", "utf8")
    print(text if is_utf8 else escape(text), end="")


def ascii_yaml(text: str) -> str:
    r"""Write YAML in ASCII: with YAML's escapes in names and values, with Python's in comments.

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
    r"""Write the text of a protocol buffer in ASCII: an octal escape for each UTF-8 byte of another character.

    >>> print(ascii_prototext('name: "é"'))
    name: "\303\251"
    """
    return "".join(char if char.isascii() else "".join(f"\\{byte:03o}" for byte in char.encode()) for char in text)


P = ParamSpec("P")
R = TypeVar("R")
# exit statuses
OK = 0
FAILED = 1
DAMAGED = 1  # `verify`: the output has problems
NO_OUTPUT = 2  # `verify`: not an output of rowmill
UNRECORDED = 3  # the output is published, but the server did not hear that the run has completed
STOPPED = 4  # by the gate
ASKED = 5  # the gate waits for an answer
DEFECT = 70  # EX_SOFTWARE of sysexits.h: a bug of rowmill
INTERRUPTED = 130  # 128 + SIGINT
TERMINATED = 143  # 128 + SIGTERM


def report_failures(command: Callable[P, R]) -> Callable[P, R]:
    """Wrap a command: it reports a failure as what, where, why and what to do; with --debug as a traceback, too."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            say_error("stopped by Ctrl-C; give the same command again to go on")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # the reader of a pipe (head, less) has seen enough
            discard_stdout()
            raise typer.Exit(OK) from None
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
    r"""Turn a docstring into text for a terminal of any width: a paragraph is one line, unless its lines are indented.

    >>> unwrap_paragraphs("First\n    line.\n\n    Examples\n\n      rowmill run\n      rowmill new\n    ")
    'First line.\n\nExamples\n\n  rowmill run\n  rowmill new'
    """
    paragraphs = inspect.cleandoc(text).split("\n\n")
    unwrapped = []
    for paragraph in paragraphs:
        is_indented = any(line.startswith(" ") for line in paragraph.split("\n"))
        unwrapped.append(paragraph if is_indented else paragraph.replace("\n", " "))
    return "\n\n".join(unwrapped)


def say_failure(error: BaseException, activity: str, suffix: str = "") -> int:
    """Print what failed, where, why and what to do; return the exit status.

    `activity` names what was being done, such as "rowmill run"; `suffix` is appended to the message. An unforeseen
    error is reported as a defect. With --debug, which sets ROWMILL_DEBUG, the traceback is printed first.
    """
    from tasks.core.unforeseen_errors import DefectError, defect

    shown: BaseException | None = error
    while shown is not None and not isinstance(shown, RowmillError):
        shown = shown.__cause__
    if shown is None and isinstance(error, MemoryError):
        do = "\n  do: end other programs, or work on less at once: a smaller source.partition_size"
        say_error(f"there is not enough memory for {activity}{do}{suffix}")
        return FAILED
    if shown is None:
        shown = defect(error, activity)
    show_traceback(error)
    if isinstance(shown, DefectError) and shown.trace and is_debugging():
        print(shown.trace, file=sys.stderr)
    say_error(f"{shown}{suffix}")
    statuses: dict[type[RowmillError], int] = {
        DefectError: DEFECT,
        GateStoppedError: STOPPED,
        GateAskedError: ASKED,
    }
    return next((status for kind, status in statuses.items() if isinstance(shown, kind)), FAILED)


def is_debugging() -> bool:
    return os.environ.get("ROWMILL_DEBUG", "") not in ("", "0")


def show_traceback(error: BaseException) -> None:
    if is_debugging():
        Console(stderr=True).print(Traceback.from_exception(type(error), error, error.__traceback__))


def say_error(message: str) -> None:
    """Print an error on stderr: its first line in bold, then where, why and what to do."""
    first, *rest = message.splitlines() or [""]
    text = Text("error: ", style="bold red").append(first, style="bold")
    for line in rest:
        text.append(f"\n{line}", style="not bold")
    Terminal(stderr=True, soft_wrap=True, highlight=False).print(text)
