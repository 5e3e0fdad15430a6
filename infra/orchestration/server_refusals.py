"""The reason why a Prefect server refuses a request, cut out of an error that repeats both (25 kB)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tasks.errors import JobError

ANSWER = re.compile(r"Response: (\{.*\})", re.DOTALL)
MOST_LINES, MOST_LETTERS = 8, 600


def refusal(text: str) -> str:
    """The lines that matter of an error's text; a text without a server's answer as it is, if it is not long.

    >>> refusal("Client error '422' for url 'http://h' - Response: {'exception_message': 'Invalid request received.', "
    ...         "'exception_detail': [{'type': 'greater_than', 'loc': ['body', 'concurrency_limit'], "
    ...         "'msg': 'Input should be greater than 0'}], 'request_body': {}} - For more information check: http://m")
    'concurrency_limit: Input should be greater than 0'
    """
    answered = ANSWER.search(text)
    if not answered:
        return _cut(text)
    try:
        answer = ast.literal_eval(answered[1])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return _cut(text)
    detail = answer.get("exception_detail") or answer.get("detail") or answer.get("exception_message") or text
    if not isinstance(detail, list):
        return _cut(str(detail))
    lines = list(dict.fromkeys(_line(item) for item in _of_what_was_meant(detail)))
    more = [f"and {len(lines) - MOST_LINES} more"] if len(lines) > MOST_LINES else []
    return "\n       ".join([*lines[:MOST_LINES], *more])


def refused_output(text: str) -> str:
    """The lines of a Prefect command's output that matter: no traceback; of an error the server's words."""
    lines, trace = [], False
    for line in text.splitlines():
        trace = trace or line.startswith("Traceback (most recent call last)")
        if line.strip() and not (trace and line.startswith((" ", "Traceback"))):
            lines.append(line)
    return "\n       ".join(refusal(line) for line in lines[-MOST_LINES:])


@contextmanager
def refusals(what: str, where: str) -> Iterator[None]:
    """A JobError where the server refuses a request in this block."""
    try:
        yield
    except Exception as error:
        if ANSWER.search(str(error)) is None:
            raise
        raise JobError(what, where=where, why=refusal(str(error)), do="fix it and give the command again") from None


def _of_what_was_meant(detail: list[Any]) -> list[Mapping[str, Any]]:
    """The server's complaints without those about the other members of a union, whose `type` is another one."""
    items = [item for item in detail if isinstance(item, Mapping) and item.get("msg")]
    others = [
        (*item["loc"][:-1],) for item in items if item.get("type") == "literal_error" and item["loc"][-1:] == ["type"]
    ]
    return [item for item in items if not any((*item["loc"],)[: len(other)] == other for other in others)] or items


def _line(item: Mapping[str, Any]) -> str:
    """The place and the problem, without names of classes and functions that only the server knows."""
    place = [str(key) for key in item.get("loc", ()) if key != "body" and re.fullmatch(r"[a-z_]+|\d+", str(key))]
    text = " ".join(str(item["msg"]).removeprefix("Value error, ").split())
    return _cut(f"{'.'.join(place)}: {text}" if place else text)


def _cut(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 3] + " .."
