"""Texts that may become part of a job script, or of a command on another host, and the patterns that they have."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator

# What becomes part of a job script, or of a command on another host. A line feed there would begin a command, a blank
# an option of SLURM, a quote would end the text around it.
WORD = re.compile(r"\w[\w.:@/+=%,-]*")
PATH_WORD = re.compile(r"[\w.~/][\w.~/:@+=%,-]*")
PATH = re.compile(r"[^\x00-\x1f\x7f\x85\u2028\u2029'\"`$\\]+")
HOST = re.compile(r"[\w:\[][\w.:%\[\]-]*")
LINE_BREAK = re.compile(r"[\n\r\0\v\f\x1c-\x1e\x85\u2028\u2029]")


def check_word(text: str) -> str:
    """Check the text; a ValueError if it is more than one word of a script."""
    return _check_text(text, WORD, "letters, digits and . : @ / + = % , - _")


def _check_text(text: str, pattern: re.Pattern[str], takes: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(f"{text!r} may become part of a script, and takes {takes} only")
    return text


Word = Annotated[str, AfterValidator(check_word)]
PathWord = Annotated[
    str, AfterValidator(partial(_check_text, pattern=PATH_WORD, takes="letters, digits and . ~ : @ / + = % , - _"))
]
AnyPath = Annotated[
    str, AfterValidator(partial(_check_text, pattern=PATH, takes="printable characters without quotes, $ and \\"))
]
Host = Annotated[str, AfterValidator(partial(_check_text, pattern=HOST, takes="letters, digits and . : % [ ] - _"))]


def check_line(text: str) -> str:
    """Check the text; a ValueError if it is more than one line."""
    if LINE_BREAK.search(text):
        raise ValueError(f"{text!r} holds a line break")
    return text


Line = Annotated[str, AfterValidator(check_line)]


def check_nested(value: Any) -> Any:
    """Check the value; a ValueError if a text in it, key or value, however deep, is more than one line."""
    if isinstance(value, str):
        return check_line(value)
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    for one in inner:
        check_nested(one)
    return value
