"""Errors, one class per decision: fix the data, fix the job, try again, give up; and the words of their messages.

Where the gate stops or asks, the run ends as designed: those errors are none of the four. The second half of the module
turns pydantic's errors into mistakes in the words of a job.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

MOST_CHARACTERS = 10_000  # characters of each text of a message


class RowmillError(Exception):
    """Base of all errors of rowmill: what happened, where, why, and what to do next, as one readable message.

    The four texts are the attributes `what`, `where`, `why` and `do`; "" for a text that is left out.
    """

    def __init__(self, what: str, *, where: str = "", why: str = "", do: str = "") -> None:
        what, where, why, do = (_readable(text) for text in (what, where, why, do))
        self.what = what
        self.where = where
        self.why = why
        self.do = do
        lines = [what, *(f"{label}: {text}" for label, text in (("where", where), ("why", why), ("do", do)) if text)]
        super().__init__("\n  ".join(lines))

    def __reduce__(self):  # keyword-only arguments do not survive Exception's own pickling
        return _rebuild, (type(self), self.what, self.where, self.why, self.do)


def _readable(text: str) -> str:
    """Shorten a very long text, such as a value of the data, to its beginning and its length."""
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} .. ({len(text):,} characters)"


def _rebuild(kind: type[RowmillError], what: str, where: str, why: str, do: str) -> RowmillError:
    return kind(what, where=where, why=why, do=do)


def rewrite_error(error: RowmillError, change: Callable[[str], str]) -> RowmillError:
    """The same error with each of its texts changed."""
    return type(error)(change(error.what), where=change(error.where), why=change(error.why), do=change(error.do))


class DataError(RowmillError):
    """The data are wrong: fix them. Another run with the same data fails in the same way."""


class JobError(RowmillError):
    """The job, a parameter or a path is wrong: fix it. Another run of the same job fails in the same way."""


class HostError(JobError):
    """This host does not allow a function or path, or lacks its code; the job may be right on another host."""


class NoInputError(JobError):
    """No file is at a path of the source."""


class GateStoppedError(RowmillError):
    """The gate stops a run: a check of its rows fails. What was published before stays as it is."""


class GateAskedError(RowmillError):
    """The gate asks a person: publish or discard. The work waits in the staging folder; nothing is published."""


class OpenQuestionError(JobError):
    """Work of an earlier run waits for an answer in the staging folder, and must not be touched."""


class TransientError(RowmillError):
    """A condition that may pass, such as a lost worker or short memory: run again."""


class GiveUpError(RowmillError):
    """The host cannot do the job: no space, no GPU, no cluster."""


def few(names: Iterable[str], most: int = 4) -> str:
    """Join the first names of several for a sentence, with the number of the others.

    >>> few("abcdef")
    'a, b, c, d and 2 more'
    """
    every = list(names)
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


DELIMITERS = "|;,\t\x01"  # that text files are written with


def near(name: str, known: Iterable[str]) -> str:
    """Suggest names that exist: those nearest to `name`, else the first 30.

    >>> near("prise", ["price", "brand"]), near("brand", ["price|brand"])[-27:]
    ("did you mean 'price'?", "set source.delimiter to '|'")
    """
    known = [str(k) for k in known]
    # A file read with the wrong delimiter has one column, named like the whole header.
    header = known[0] if len(known) == 1 else ""
    delimiter = next((mark for mark in DELIMITERS if mark in header and name in header.split(mark)), "")
    if delimiter:
        return f"the only one is {header[:40]!r}: if it is several columns, set source.delimiter to {delimiter!r}"
    lower = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    close = close or [lower[k] for k in difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.6)]
    if close:
        return "did you mean " + " or ".join(repr(k) for k in close) + "?"
    return "there are: " + (", ".join(known[:30]) + (", .." if len(known) > 30 else "") if known else "none")


# Moves the cursor, changes colours or the direction of writing, or is not a letter at all (half of a surrogate pair).
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str, keep: str = "") -> str:
    r"""Escape the control characters of a text of the data, so that a terminal or a log shows them and does nothing.

    >>> print(visible("a\x1b[2J\nb"), visible("x\x85", keep="\n"))
    a\x1b[2J\nb x\x85
    """
    return CONTROL.sub(lambda sign: sign[0] if sign[0] in keep else sign[0].encode("unicode_escape").decode(), text)


# User, query and fragment of a URL, which may hold secrets: the Prefect server stores messages.
SECRET_OF_URL = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)|(?<=[?#])[^\s'\"]*=[^\s'\"]*")
TEMPORAL = ("date", "datetime", "time")
KINDS = {  # what is needed, by the first word of pydantic's type of error
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "a text",
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "dict": "a map",
    "mapping": "a map",
    "model": "a map",
    "dataclass": "a map",
    "frame": "a frame",
}


@dataclass(frozen=True)
class Mistake:
    """One value that a model refuses: its place among the values, what is wrong in words, and the kind of mistake."""

    place: tuple[str | int, ...]
    text: str
    kind: Literal["unknown", "missing", "wrong"] = "wrong"


def mistakes(error: Any, data: object) -> list[Mistake]:
    """Turn pydantic's ValidationError about `data` into mistakes in the words of a job.

    A text says what is needed, what is there, and what to write. A union makes one mistake, not one for each of its
    members.
    """
    wrong: dict[tuple[str | int, ...], list[Mapping[str, Any]]] = {}
    refused: list[Mistake] = []
    for item in error.errors(include_url=False):
        place = _place_in(data, item["loc"], item["type"] == "missing")
        if item["type"] == "extra_forbidden":
            refused.append(Mistake(place, "is unknown", "unknown"))
        elif item["type"] == "missing":
            refused.append(Mistake(place, "is missing", "missing"))
        else:
            wrong.setdefault(place, []).append(item)
    parents = {place[:-1] for place in wrong if place}
    for place, items in wrong.items():
        # A union of a list and other types reports the list, as of a wrong type, and the entry in it that is at fault.
        is_fault_of_entry = place in parents and all(_kind_of(item["type"]) for item in items)
        if not is_fault_of_entry:
            refused.append(Mistake(place, _describe_mistake(items)))
    return refused


def _place_in(data: object, loc: Sequence[str | int], missing: bool) -> tuple[str | int, ...]:
    """Return the keys of a mistake's place, without pydantic's names for the members of a union."""
    place: list[str | int] = []
    for number, key in enumerate(loc):
        last = missing and number == len(loc) - 1
        if isinstance(data, Mapping) and (key in data or last):
            data = data.get(key)
        elif isinstance(data, (list, tuple)) and isinstance(key, int) and key < len(data):
            data = data[key]
        elif not last:
            continue
        place.append(key)
    return tuple(place)


def place_text(place: Sequence[str | int]) -> str:
    """Write a place in a job as people do.

    >>> place_text(("features", 0, "columns"))
    'features[0].columns'
    """
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place).lstrip(".")


def _kind_of(name: str) -> str:
    """Return what is needed, for pydantic's types of errors about wrong types; "" for other errors."""
    first, _, rest = name.partition("_")
    is_wrong_type = rest.removeprefix("attributes_") in ("type", "parsing", "from_float", "parsing_size", "number")
    return KINDS.get(first, "") if is_wrong_type else ""


def _describe_mistake(items: Sequence[Mapping[str, Any]]) -> str:
    item = items[0]
    value = items[0].get("input")
    kinds = list(dict.fromkeys(kind for one in items if (kind := _kind_of(one["type"]))))
    if "a number" in kinds and "a whole number" in kinds:
        kinds.remove("a whole number")
    if item["loc"] and item["loc"][-1] == "[key]":
        return f"the key {value!r} is not text: put it in quotes, '{value}'"
    if all(_kind_of(one["type"]) for one in items):
        return f"needs {' or '.join(kinds)}{_describe_input(value)}{_suggest_spelling(value, kinds)}"
    texts = [_describe_other_mistake(one) for one in items if not _kind_of(one["type"])]
    return "; or ".join(dict.fromkeys(texts))


def _describe_other_mistake(item: Mapping[str, Any]) -> str:
    value = item.get("input")
    context = item.get("ctx") or {}
    if item["type"] in ("literal_error", "enum"):
        close = near(str(value), re.findall(r"'([^']*)'", str(context.get("expected", "")))) if value else ""
        hint = f": {close}" if close.startswith("did") else ""
        return f"must be {context.get('expected')}{_describe_input(value)}{hint}"
    limits = {
        "greater_than_equal": ("at least", "ge"),
        "greater_than": ("more than", "gt"),
        "less_than_equal": ("at most", "le"),
        "less_than": ("less than", "lt"),
    }
    if item["type"] in limits:
        words, key = limits[item["type"]]
        return f"must be {words} {context.get(key)}{_describe_input(value)}"
    if item["type"] in ("too_short", "too_long"):
        short = item["type"] == "too_short"
        count = context.get("min_length" if short else "max_length")
        limit = f"{'at least' if short else 'at most'} {count} {'entry' if count == 1 else 'entries'}"
        return f"needs {limit}{_describe_input(value)}"
    text = str(item["msg"]).removeprefix("Value error, ")
    return text if isinstance(value, (dict, list)) or repr(value) in text else f"{text}{_describe_input(value)}"


def _describe_input(value: object) -> str:
    """Describe the value that is there, in a few characters, as the end of a sentence."""
    if value is None:
        return ", but it is empty"
    text = str(value).lower() if isinstance(value, bool) else SECRET_OF_URL.sub("***", repr(value))
    if type(value).__name__ in TEMPORAL:
        text = f"the {type(value).__name__} {value}"
    return f", not {text}" if len(text) <= 60 else f", not {text[:57]}.."


def _suggest_spelling(value: object, kinds: Sequence[str]) -> str:
    """Suggest what to write, if the value shows what was meant."""
    scalar = isinstance(value, (str, bytes, int, float)) or type(value).__name__ in TEMPORAL
    if "a text" in kinds and scalar:
        return f": put it in quotes, '{str(value).lower() if isinstance(value, bool) else value}'"
    if "a list" in kinds and value is not None:
        return f": put it in brackets, [{value}]" if scalar else ": begin each entry with a dash, or use brackets"
    if "a map" in kinds and value is not None:
        return ": write {key: value}"
    return ""
