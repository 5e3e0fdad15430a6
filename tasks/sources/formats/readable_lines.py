"""Which lines of a text file can be read: the pass that counts rows and the pass that reads them both ask here.

The verdict on a line depends on its own bytes alone, so that rows have the same numbers for any ranges and partitions.
A record of delimited text is bad if its number of values is another one than that of the columns, if a quote is still
open at the end of the file, or if bytes are no letters of the encoding. A line of JSON is bad if it is no JSON object
(or null), or no UTF-8. And a record is bad if a value of it does not fit the type of its column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn, Protocol

import numpy as np

from tasks.sources.formats.bounds import MOST_DEPTH
from tasks.sources.formats.record_ends import Dialect

ONE_BY_ONE = 64  # lines of JSON, or values, are tried alone where a reader refuses some of so many
BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+"|[^\[\]{}"]++', re.DOTALL)  # all else than those outside of texts


@dataclass(frozen=True)
class Bad:
    """A record in bytes [start, stop) of a text that cannot be read, and why."""

    start: int
    stop: int
    why: str


@dataclass(frozen=True)
class BadLines:
    """How many records of a file cannot be read, the number of the first one's line (from 1), and why it cannot."""

    count: int
    line: int
    why: str


@dataclass(frozen=True)
class Sifted:
    """The records of a text that can be read as they stand there, their number, and the bad ones."""

    data: bytes
    rows: int
    bad: Sequence[Bad]


class Sieve(Protocol):
    """Takes comments and bad records out of a text of whole records."""

    def sift(self, data: bytes) -> Sifted: ...


@dataclass(frozen=True)
class DelimitedSieve:
    """The sieve of delimited text with so many columns; None: records stay as they are, comments go.

    `misfits` finds the rows of a text of good records with a value that does not fit, and says why.
    """

    dialect: Dialect
    columns: int | None
    encoding: str = "utf-8"
    misfits: Callable[[bytes], Mapping[int, str]] | None = None

    def sift(self, data: bytes) -> Sifted:
        sifted = self._sifted(data, {})
        unfit = self.misfits(sifted.data) if self.misfits and sifted.rows else {}
        return self._sifted(data, unfit) if unfit else sifted

    def _sifted(self, data: bytes, misfits: Mapping[int, str]) -> Sifted:
        good = 0
        rows, begin, parts, bad = 0, 0, list[bytes](), list[Bad]()
        checked = self.columns is not None and not _is_text(data, self.encoding)
        for match in _records(self.dialect, self.columns).finditer(data):
            kind = match.lastindex
            if kind == EMPTY:
                continue
            if (kind == GOOD and not (checked and not _is_text(match[0], self.encoding))) or self._is_kept(kind):
                good += 1
                if good - 1 not in misfits:
                    rows += 1
                    continue
                kind = MISFIT
            parts.append(data[begin : match.start()])
            begin = match.end()
            if kind != COMMENT:
                why = misfits[good - 1] if kind == MISFIT else self._why(match[0], kind)
                bad.append(Bad(match.start(), match.end(), why))
        return Sifted(b"".join([*parts, data[begin:]]) if begin else data, rows, bad)

    def _is_kept(self, kind: int | None) -> bool:
        """Whether a record counts although it has no end."""
        return kind == OPEN and self.columns is None

    def _why(self, record: bytes, kind: int | None) -> str:
        if kind == OPEN:
            lines = line_ends(record.rstrip(b"\r\n")) + 1
            what = "quotes are open, or an escape stands alone," if self.dialect.escape else "quotes are open"
            return f"{what} at the end of the file: lines that are not read: {lines:,}"
        if kind == GOOD:
            return no_letters(record, self.encoding)
        values, columns = _values(record, self.dialect), self.columns or 0
        return f"{values:,} value{'s' * (values != 1)}, {columns:,} column{'s' * (columns != 1)}"


EMPTY, COMMENT, GOOD, OTHER, OPEN = 1, 2, 3, 4, 5  # the groups of `_records`
MISFIT = 0


@cache
def _records(dialect: Dialect, columns: int | None) -> re.Pattern[bytes]:
    """The pattern of a record: in the group GOOD with the right number of values, in OTHER with another one, in OPEN if
    it has no end.

    A quote opens at the beginning of a value, two inside quotes stand for one, any other is a letter, as for Arrow's
    parser.
    """
    field, end = _field(dialect), rb"(?:\r\n?|\n|\Z)"
    delimiter = re.escape((dialect.delimiter or ",").encode())
    more = rb"(?:%b%b)" % (delimiter, field)
    any_record = rb"(?!\Z)%b%b*+%b" % (field, more, end)
    good = any_record if columns is None else rb"(?!\Z)%b%b{%d}%b" % (field, more, columns - 1, end)
    comment = _comment(dialect) + end
    return re.compile(rb"([\r\n]++)|(%b)|(%b)|(%b)|(.++)" % (comment, good, any_record), re.DOTALL)


def _comment(dialect: Dialect) -> bytes:
    """The pattern of a comment without its line end; one that matches nothing where there are none."""
    return re.escape(dialect.comment.encode()) + rb"[^\r\n]*+" if dialect.comment else rb"(?!)"


def _field(dialect: Dialect) -> bytes:
    """The pattern of a value with its quotes."""
    delimiter = re.escape((dialect.delimiter or ",").encode())
    escape = re.escape(dialect.escape.encode()) if dialect.escape else b""
    escaped = rb"|%b." % escape if escape else b""
    letters = rb"(?:[^%b\r\n%b]++%b)*+" % (delimiter, escape, escaped)
    if not dialect.quote:
        return letters
    quote = re.escape(dialect.quote.encode())
    return rb"(?:%b(?:[^%b%b]++|%b%b%b)*+%b|(?!%b))%b" % (
        quote, quote, escape, quote, quote, escaped, quote, quote, letters
    )  # fmt: skip


def _values(record: bytes, dialect: Dialect) -> int:
    """The number of values in a record that has an end."""
    value = _value(dialect)
    count, match = 1, value.match(record)
    while match:
        count, match = count + 1, value.match(record, match.end())
    return count


@cache
def _value(dialect: Dialect) -> re.Pattern[bytes]:
    """The pattern of a value with the delimiter behind it."""
    return re.compile(_field(dialect) + re.escape((dialect.delimiter or ",").encode()), re.DOTALL)


@cache
def _complete(dialect: Dialect) -> re.Pattern[bytes]:
    """The pattern of a run of records, comments and empty lines, all with their line ends."""
    field, end = _field(dialect), rb"(?:\r\n|\n|\r(?!\n|\Z))"
    delimiter = re.escape((dialect.delimiter or ",").encode())
    line = rb"(?:%b|%b(?:%b%b)*+)%b" % (_comment(dialect), field, delimiter, field, end)
    return re.compile(rb"(?:%b)*+" % line, re.DOTALL)


def complete(data: bytes, dialect: Dialect) -> int:
    """How many bytes at the beginning of a text, which begins with a record, are whole records with their line ends."""
    if not dialect.quoted:
        return data.rfind(b"\n") + 1
    match = _complete(dialect).match(data)
    return match.end() if match else 0


def first_record(data: bytes, start: int, dialect: Dialect, whole: bool) -> tuple[int, int]:
    """The bytes of the first record from `start` on, behind comments and empty lines; the end of the text twice where
    none is there, or none that ends, unless the text is `whole`."""
    for match in _records(dialect, None).finditer(data, start):
        if match.lastindex in (GOOD, OPEN) and (whole or match.end() < len(data)):
            return match.span()
    return len(data), len(data)


def line_ends(data: bytes) -> int:
    r"""The number of line ends: LF, CR LF and CR.

    >>> line_ends(b"a\r\nb\rc\n")
    3
    """
    return data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n") if b"\r" in data else data.count(b"\n")


def _is_text(data: bytes, encoding: str) -> bool:
    return not no_letters(data, encoding)


def no_letters(data: bytes, encoding: str) -> str:
    """The reason why bytes are no text; "" for text. Of UTF-16, UTF-8 was made before."""
    if data.isascii():
        return ""
    encoding = "utf-8" if encoding == "utf-16" else encoding
    try:
        data.decode(encoding)
    except UnicodeDecodeError as error:
        return f"byte 0x{data[error.start]:02x} is no letter of {encoding}"
    return ""


# JSON lines


@dataclass(frozen=True)
class JsonSieve:
    """The sieve of JSON lines; `takes` says whether a reader takes all of some lines."""

    takes: Callable[[bytes], bool]

    def sift(self, data: bytes) -> Sifted:
        lines = data.splitlines(keepends=True) if b"\r" not in data else _split(data)
        reasons: dict[int, str] = {}
        objects: list[int] = []
        rows = 0
        for number, line in enumerate(lines):
            text = line.strip(b" \t\r\n")
            if not text:
                continue
            rows += 1
            if text == b"null":
                continue
            if why := _no_object(text):
                reasons[number] = why
            else:
                objects.append(number)

        def takes(numbers: Sequence[int]) -> bool:
            return self.takes(b"".join(lines[n] if lines[n].endswith(b"\n") else lines[n] + b"\n" for n in numbers))

        for number in refused(objects, takes):
            reasons[number] = "a value does not fit its column"
        if not reasons:
            return Sifted(data, rows, ())
        starts = np.cumsum([0, *map(len, lines)]).tolist()
        bad = [Bad(starts[number], starts[number + 1], reasons[number]) for number in sorted(reasons)]
        good = b"".join(line for number, line in enumerate(lines) if number not in reasons)
        return Sifted(good, rows - len(bad), bad)


def _split(data: bytes) -> list[bytes]:
    """Lines with their line feeds: a carriage return ends none."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _no_object(line: bytes) -> str:
    """The reason why a line is no JSON object; "" for an object."""
    if why := no_letters(line, "utf-8"):
        return why
    try:
        value = DECODER.decode(line.decode())
    except RecursionError:
        return f"it is nested more than {MOST_DEPTH} deep"
    except ValueError as error:
        return f"no JSON: {error}"
    if not isinstance(value, dict):
        return "no object"
    if line.count(b"[") + line.count(b"{") > MOST_DEPTH and depth(line) > MOST_DEPTH:
        return f"it is nested more than {MOST_DEPTH} deep"
    return ""


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


DECODER = json.JSONDecoder(parse_constant=_refuse)


def depth(line: bytes) -> int:
    """How deep brackets of a line lie in each other; those in texts do not count."""
    brackets = np.frombuffer(BRACKETS.sub(b"", line), np.uint8)
    steps = np.select([(brackets == c) for c in b"[{]}"], [1, 1, -1, -1], 0)
    return int(np.cumsum(steps).max(initial=0))


def refused(items: Any, takes: Callable[[Any], bool]) -> list[Any]:
    """The items of a list or an array that `takes` does not take: all are tried at once, then in pieces, then one by
    one."""
    if not len(items) or takes(items):
        return []
    if len(items) == 1:
        return list(items)
    size = 1 if len(items) <= ONE_BY_ONE else 1 + len(items) // 16
    return [one for i in range(0, len(items), size) for one in refused(items[i : i + size], takes)]
