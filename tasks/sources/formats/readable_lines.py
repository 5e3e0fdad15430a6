"""Which lines of a text file can be read: the pass that counts rows and the pass that reads them both ask here.

The verdict on a line depends on its own bytes alone, so that rows have the same numbers for any ranges and partitions.
A record of delimited text is bad in these cases:

- It has another number of values than there are columns.
- A quote is still open at the end of the file.
- Characters follow the closing quote of a value. (If the value has several lines, the quote of its first line was left
  open, and the quote that seems to close it opens another value.)
- It is the header again, as in files that were joined.
- Its bytes are not characters of the encoding.

A line of JSON is bad if it is not a JSON object (or null), or not UTF-8. A record of either is bad if one of its values
does not fit the type of its column.

In this order: the sieve of delimited text and its patterns; rewriting of nulls and delimiters for parsers that know
fewer forms; settings with which a bad record could be read; encodings; the sieve of JSON lines.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, NoReturn, Protocol

import numpy as np
import pyarrow as pa

from tasks.core.plan import ReadOptions
from tasks.sources.formats.bounds import MOST_DEPTH
from tasks.sources.formats.record_ends import NEWLINE, RETURN, Dialect

ONE_BY_ONE = 64  # lines of JSON, or values: where a reader refuses some of at most so many, each is tried alone


def any_number(pattern: bytes) -> bytes:
    """Repeat a pattern any number of times, also 0; a match does not go back into it.

    `(?:..)*+` matches wrongly before Python 3.11.5 (CPython issue 106052), and an atomic group takes 65 bytes for each
    repetition until it ends: so each thousand is a group that ends.
    """
    return rb"(?>(?:(?>(?:%b){1,1000}))*)" % pattern


# All that is not a bracket outside of texts.
BRACKETS = re.compile(rb'"%b"|[^\[\]{}"]++' % any_number(rb'[^"\\]++|\\.'), re.DOTALL)


OPEN_QUOTE = "a quote of a text file is not closed"
TORN_VALUE = "a value of a text file goes on after its closing quote"
HEADER_AGAIN = "the header of a text file is there again"


@dataclass(frozen=True)
class Bad:
    """A record in bytes [start, stop) of a text that cannot be read, and why.

    `error` is set where a parser would split this record into other rows, so that counting rows is an error: then it is
    the headline of that error.
    """

    start: int
    stop: int
    why: str
    error: str = ""


@dataclass(frozen=True)
class BadLines:
    """How many records of a file cannot be read, the number of the first one's line (from 1), and why it cannot."""

    count: int
    line: int
    why: str


@dataclass(frozen=True)
class Sifted:
    """The result of a sieve: the good records of a text in one piece, their number, and the bad ones."""

    data: bytes
    rows: int
    bad: Sequence[Bad]


class Sieve(Protocol):
    """What takes comments and bad records out of a text of whole records."""

    def sift(self, data: bytes) -> Sifted: ...


@dataclass(frozen=True)
class DelimitedSieve:
    """The sieve of delimited text with so many columns; None: any number of values, and bytes of any encoding.

    `misfits` finds the rows of a text of good records with a value that does not fit its column, and says why. `names`
    are those of the columns: a line of two or more of them is the header. A line with the name of the only column may
    be a value.
    """

    dialect: Dialect
    columns: int | None
    encoding: str = "utf-8"
    misfits: Callable[[bytes], Mapping[int, str]] | None = None
    names: tuple[str, ...] = ()

    @property
    def headers(self) -> tuple[bytes, ...]:
        """The ways in which a header with the names is written, without its line end."""
        return _write_headers(self.names, self.dialect, self.encoding) if len(self.names) > 1 else ()

    def may_have_header(self, data: bytes, start: int = 0, stop: int | None = None) -> bool:
        """Tell whether the names follow one another in bytes [start, stop) of a text: perhaps as a line."""
        return any(data.find(header, start, stop) >= 0 for header in self.headers)

    def sift(self, data: bytes) -> Sifted:
        sifted = self._sift_records(data, {})
        unfit = self.misfits(sifted.data) if self.misfits and sifted.rows else {}
        return self._sift_records(data, unfit) if unfit else sifted

    def _sift_records(self, data: bytes, misfits: Mapping[int, str]) -> Sifted:
        """Sift a text once; `misfits` are reasons by the number of a record among those that were good without them."""
        if self.columns is None and not self.may_have_header(data) and ends_at_each_line(data, self.dialect):
            return Sifted(data, _count_lines(data), [])
        good = 0
        rows = 0
        begin = 0
        parts = list[bytes]()
        bad = list[Bad]()
        has_invalid_bytes = self.columns is not None and not _is_text(data, self.encoding)
        headers = self.headers if self.may_have_header(data) else ()
        for match in _compile_record_pattern(self.dialect, self.columns).finditer(data):
            kind = match.lastindex
            if kind == EMPTY:
                continue
            if kind == GOOD and not (has_invalid_bytes and not _is_text(match[0], self.encoding)):
                if headers and match[0].rstrip(b"\r\n").removeprefix(BOM) in headers:
                    kind = HEADER
                else:
                    number = good
                    good += 1
                    if number not in misfits:
                        rows += 1
                        continue
                    kind = MISFIT
            parts.append(data[begin : match.start()])
            begin = match.end()
            if kind == MISFIT:
                bad.append(Bad(match.start(), match.end(), misfits[number]))
            elif kind != COMMENT:
                why, error = self._explain(match[0], kind)
                bad.append(Bad(match.start(), match.end(), why, error))
        return Sifted(_join_records([*parts, data[begin:]]) if begin else data, rows, bad)

    def _explain(self, record: bytes, kind: int | None) -> tuple[str, str]:
        """Return why a record is bad, and the headline of the error that it may be (`Bad.error`)."""
        if kind == HEADER:
            return "the header again", HEADER_AGAIN
        if kind in (OPEN, TORN):
            lines = line_ends(record.rstrip(b"\r\n")) + 1
            what = "quotes are open, or an escape stands alone," if self.dialect.escape else "quotes are open"
            what = "letters follow a closing quote," if kind == TORN else f"{what} at the end of the file:"
            error = TORN_VALUE if kind == TORN and lines == 1 else OPEN_QUOTE
            return f"{what} lines that are not read: {lines:,}", error
        if kind == GOOD:
            return no_letters(record, self.encoding), ""
        values = _count_values(record, self.dialect)
        columns = self.columns or 0
        return f"{values:,} value{'s' * (values != 1)}, {columns:,} column{'s' * (columns != 1)}", ""


@cache
def _write_headers(names: tuple[str, ...], dialect: Dialect, encoding: str) -> tuple[bytes, ...]:
    """Write the lines that hold these names: quoted where they must be, and all quoted.

    >>> _write_headers(("a", "b;c"), Dialect(";", "'"), "utf-8")
    (b"a;'b;c'", b"'a';'b;c'")
    """
    delimiter = dialect.delimiter or ","
    separators = [delimiter]
    if dialect.skip_space and delimiter != " ":
        separators.append(f"{delimiter} ")
    lines = [[*names]]
    if quote := dialect.quote:
        special = (delimiter, quote, "\r", "\n")
        quoted = {name: quote + name.replace(quote, 2 * quote) + quote for name in names}
        plain = [quoted[name] if any(char in name for char in special) else name for name in names]
        lines = [plain, [quoted[name] for name in names]]
    texts = [separator.join(line) for line in lines for separator in separators]
    return tuple(dict.fromkeys(text.encode(encoding, "replace") for text in texts))


def _join_records(parts: list[bytes]) -> bytes:
    r"""Join runs of whole records; a CR becomes LF where the LF behind it would turn two line ends into one.

    >>> _join_records([b"a\r", b"", b"\n"])
    b'a\n\n'
    """
    runs = [part for part in parts if part]
    for i, (part, following) in enumerate(pairwise(runs)):
        if part.endswith(b"\r") and following.startswith(b"\n"):
            runs[i] = part[:-1] + b"\n"
    return b"".join(runs)


# The kinds of records. These are the groups of `_compile_record_pattern`:
EMPTY = 1  # empty lines
COMMENT = 2
GOOD = 3  # with the right number of values
OTHER = 4  # with another number of values
TORN = 5  # characters follow the closing quote of a value
OPEN = 6  # without an end
# These two are found among the good ones by other means:
MISFIT = 0  # a value does not fit its column
HEADER = -1  # the header again
BOM = b"\xef\xbb\xbf"


@cache
def _compile_record_pattern(dialect: Dialect, columns: int | None) -> re.Pattern[bytes]:
    """Compile the pattern of a record, whose group says its kind (EMPTY to OPEN, in this order of precedence).

    A quote opens at the beginning of a value, two inside quotes stand for one, any other is an ordinary character, as
    for Arrow's parser.
    """
    end = rb"(?:\r\n?|\n|\Z)"
    delimiter = _write_delimiter_pattern(dialect)

    def record(field: bytes, columns: int | None) -> bytes:
        other = delimiter + field
        others = any_number(other) if columns is None else rb"(?:%b){%d}" % (other, columns - 1)
        return rb"(?!\Z)%b%b%b" % (field, others, end)

    whole = _write_value_pattern(dialect, torn=False)
    good = record(whole, columns)
    other = record(whole, None)
    torn = record(_write_value_pattern(dialect), None)
    comment = _write_comment_pattern(dialect) + end
    empty = rb"(?!)" if dialect.blank else rb"[\r\n]++"
    return re.compile(rb"(%b)|(%b)|(%b)|(%b)|(%b)|(.++)" % (empty, comment, good, other, torn), re.DOTALL)


def _write_comment_pattern(dialect: Dialect) -> bytes:
    """Write the pattern of a comment without its line end; one that never matches in a dialect without comments."""
    return re.escape(dialect.comment.encode()) + rb"[^\r\n]*+" if dialect.comment else rb"(?!)"


def _write_delimiter_pattern(dialect: Dialect) -> bytes:
    """Write the pattern of what is between values."""
    return re.escape((dialect.delimiter or ",").encode()) + (rb" *+" if dialect.skip_space else b"")


def _write_value_pattern(dialect: Dialect, torn: bool = True) -> bytes:
    """Write the pattern of a value with its quotes.

    If `torn`, anything may follow its closing quote; otherwise only blanks, as far as the delimiter or the line end.
    """
    delimiter = re.escape((dialect.delimiter or ",").encode())
    escape = re.escape(dialect.escape.encode()) if dialect.escape else b""
    escaped = rb"|%b." % escape if escape else b""
    plain = rb"[^%b\r\n%b]++" % (delimiter, escape)
    if len((dialect.delimiter or ",").encode()) > 1:  # no class of characters excludes several in a row
        plain = rb"(?!%b)[^\r\n%b]" % (delimiter, escape)
    unquoted = any_number(plain + escaped)
    if not dialect.quote:
        return unquoted
    quote = re.escape(dialect.quote.encode())

    inner = rb"[^%b%b]++|%b%b%b" % (quote, escape, quote, quote, escaped)
    quoted = quote + any_number(inner) + quote
    if not torn:
        quoted += rb"(?=[ \t]*(?:%b|[\r\n]|\Z))" % delimiter
    return rb"(?:%b|(?!%b))%b" % (quoted, quote, unquoted)


def _count_values(record: bytes, dialect: Dialect) -> int:
    """Count the values of a record that has an end."""
    value = _compile_value_pattern(dialect)
    count = 1
    match = value.match(record)
    while match:
        count = count + 1
        match = value.match(record, match.end())
    return count


@cache
def _compile_value_pattern(dialect: Dialect, also_last: bool = False) -> re.Pattern[bytes]:
    """Compile the pattern of a value with the delimiter that follows it.

    `also_last`: or with the end of the record; its groups are the value, the delimiter and the end.
    """
    value = _write_value_pattern(dialect)
    delimiter = _write_delimiter_pattern(dialect)
    if also_last:
        return re.compile(rb"(%b)(?:(%b)|(\r\n?|\n|\Z))" % (value, delimiter), re.DOTALL)
    return re.compile(value + delimiter, re.DOTALL)


@cache
def _compile_run_pattern(dialect: Dialect) -> re.Pattern[bytes]:
    """Compile the pattern of a run of records, comments and empty lines, all with their line ends."""
    field = _write_value_pattern(dialect)
    end = rb"(?:\r\n|\n|\r(?!\n|\Z))"
    others = any_number(_write_delimiter_pattern(dialect) + field)
    line = rb"(?:%b|%b%b)%b" % (_write_comment_pattern(dialect), field, others, end)
    return re.compile(any_number(line), re.DOTALL)


def ends_at_each_line(data: bytes, dialect: Dialect) -> bool:
    """Tell whether each line of a text that is not empty is a record.

    Such a text need not be followed value by value, which takes ten times as long.
    """
    if dialect.blank or any(mark and mark.encode() in data for mark in (dialect.quote, dialect.comment)):
        return False
    escape = (dialect.escape or "").encode()
    behind = (escape + b"\n", escape + b"\r")
    return not escape or not (data.endswith(escape) or any(pair in data for pair in behind))


def _count_lines(data: bytes) -> int:
    """Count the lines of a text that are not empty."""
    text = np.frombuffer(data, np.uint8)
    if not len(text):
        return 0
    is_end = (text == NEWLINE) | (text == RETURN)
    return int(np.count_nonzero(is_end[1:] > is_end[:-1])) + int(not is_end[-1])


def complete(data: bytes, dialect: Dialect) -> int:
    """Measure the whole records, with their line ends, at the beginning of a text, in bytes.

    The text begins with a record.
    """
    if not dialect.quoted or (b"\r" not in data and ends_at_each_line(data, dialect)):
        return data.rfind(b"\n") + 1
    match = _compile_run_pattern(dialect).match(data)
    return match.end() if match else 0


def first_record(data: bytes, start: int, dialect: Dialect, whole: bool) -> tuple[int, int]:
    """Find the first record from `start` on, behind comments and empty lines: (first byte, byte behind it).

    In a text that is not `whole` a record that reaches its end may go on behind it, and is not taken. (len, len) if no
    record is left.
    """
    for match in _compile_record_pattern(dialect, None).finditer(data, start):
        if match.lastindex in (GOOD, TORN, OPEN) and (whole or match.end() < len(data)):
            return match.span()
    return len(data), len(data)


def with_one_null(data: bytes, dialect: Dialect, nulls: Sequence[str]) -> tuple[bytes, list[str]]:
    r"""Replace nulls that are written with an escape, such as \N of MySQL and Hive, for parsers that remove escapes
    before they look for nulls; return the text, and the texts that stand for null in it.

    The text is of whole records with delimiters of one byte. Each such value among `nulls` becomes as many characters
    of a kind that the text does not hold, so that all records keep their places.

    >>> with_one_null(b"1,\\N,\\\\N\n", Dialect(escape="\\"), ["", r"\N"])
    (b'1,\x1f\x1f,\\\\N\n', ['', '\x1f\x1f'])
    >>> with_one_null(b'\\N,"a,\\N,b"\n', Dialect(escape="\\"), [r"\N"])
    (b'\x1f\x1f,"a,\\N,b"\n', ['\x1f\x1f'])
    """
    escaped = {text.encode() for text in nulls if dialect.escape and dialect.escape in text}
    others = [text for text in nulls if text.encode() not in escaped]
    used = [text for text in escaped if text in data]
    if not used:
        return data, others
    quote = dialect.quote.encode()
    quoted = [quote + text + quote for text in used] if quote in data else []
    values = {*used, *quoted}
    unused = _find_unused_character(data)
    text = np.frombuffer(data, np.uint8).copy()
    lengths = set[int]()
    for value, places in _places_of_values(data, values, dialect).items():
        for offset in range(len(value)):
            text[places + offset] = unused[0]
        if len(places):
            lengths.add(len(value))
    return text.tobytes(), [*others, *(length * unused.decode() for length in sorted(lengths))]


def _places_of_values(data: bytes, values: Collection[bytes], dialect: Dialect) -> dict[bytes, np.ndarray]:
    """Find where each of some values, as it is written with its quotes, is a whole value of a text of whole records."""
    text = np.frombuffer(data, np.uint8)
    is_end = np.zeros(256, bool)
    is_end[[*(dialect.delimiter or ",").encode(), *b"\r\n"]] = True

    def begin_values(places: np.ndarray) -> np.ndarray:
        before = np.maximum(places - 1, 0)
        return (places == 0) | (is_end[text[before]] & _are_unescaped(text, before, dialect))

    quotes = np.flatnonzero(text == dialect.quote_code)
    quotes = quotes[_are_unescaped(text, quotes, dialect)]
    opening = quotes[::2]
    # a quote that opens nothing is an ordinary character within a value, after which the pairs are others
    if not (begin_values(opening) | _are_among(opening - 1, quotes)).all():
        return _places_in_order(data, values, dialect)
    by_value: dict[bytes, np.ndarray] = {}
    for value in values:
        places = _places_of(value, text)
        behind = places + len(value)
        is_whole = (behind == len(text)) | is_end[text[np.minimum(behind, len(text) - 1)]]
        places = places[is_whole & begin_values(places)]
        by_value[value] = places[np.searchsorted(quotes, places) % 2 == 0]  # outside quotes
    return by_value


def _places_of(value: bytes, text: np.ndarray) -> np.ndarray:
    """Find where some bytes occur in a text."""
    length = max(len(text) - len(value) + 1, 0)
    is_there = np.ones(length, bool)
    for offset, byte in enumerate(value):
        is_there &= text[offset : offset + length] == byte
    return np.flatnonzero(is_there)


def _are_among(places: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Tell whether each place is one of the others, which are in order: NumPy's `isin` takes ten times as long."""
    if not len(others):
        return np.zeros(len(places), bool)
    nearest = np.searchsorted(others, places)
    return others[np.minimum(nearest, len(others) - 1)] == places


def _places_in_order(data: bytes, values: Collection[bytes], dialect: Dialect) -> dict[bytes, np.ndarray]:
    """Do what `_places_of_values` does value by value: slower, and right for quotes within values, too."""
    by_value: dict[bytes, list[int]] = {value: [] for value in values}
    for match in _compile_value_pattern(dialect, True).finditer(data):
        if match[1] in by_value:
            by_value[match[1]].append(match.start())
    return {value: np.array(places, np.int64) for value, places in by_value.items()}


def _are_unescaped(text: np.ndarray, places: np.ndarray, dialect: Dialect) -> np.ndarray:
    """Tell whether an even number of escapes precedes each place of a text: an odd one takes its special meaning."""
    escape = ord(dialect.escape or "\0")
    if not (text[np.maximum(places - 1, 0)] == escape).any():
        return np.ones(len(places), bool)
    escapes = np.flatnonzero(text == escape)
    runs = escapes[np.diff(escapes, prepend=-2) != 1]
    lengths = places - runs[np.searchsorted(runs, places) - 1]
    return (places == 0) | (text[places - 1] != escape) | (lengths % 2 == 0)


def _find_unused_character(data: bytes) -> bytes:
    """Find a control character that a text does not hold."""
    unused = next((bytes([code]) for code in CONTROL_CHARACTERS if code not in data), b"")
    if not unused:
        raise pa.ArrowInvalid("it holds all control characters that could stand for a delimiter or for null")
    return unused


# They may stand for a delimiter of several characters, and for null.
CONTROL_CHARACTERS = b"\x1f\x1e\x1d\x1c\x01\x02\x03\x04\x05\x06\x07\x08\x0e\x0f"


def with_one_sign(data: bytes, dialect: Dialect) -> tuple[bytes, str]:
    """Give a text of whole records a delimiter of one byte, for parsers that know no others; return it and this byte.

    >>> with_one_sign(b'a::"b::c"::d:\\n', Dialect("::"))
    (b'a\\x1f"b::c"\\x1fd:\\n', '\\x1f')
    >>> with_one_sign(b'a,  "b, c"\\n', Dialect(",", skip_space=True))
    (b'a,"b, c"\\n', ',')
    """
    delimiter = (dialect.delimiter or ",").encode()
    if not dialect.is_rewritten:
        return data, delimiter.decode()
    byte = delimiter if len(delimiter) == 1 else _find_unused_character(data)
    if not any(c and c.encode() in data for c in (dialect.quote, dialect.escape)):
        return re.sub(_write_delimiter_pattern(dialect), lambda _: byte, data), byte.decode()
    pattern = _compile_value_pattern(dialect, True)
    return pattern.sub(lambda value: value[1] + (byte if value[2] else value[3]), data), byte.decode()


def settings_that_read(data: bytes, start: int, dialect: Dialect, columns: int | None) -> dict[str, str]:
    r"""Find settings with which a bad record could be read: an escape, or another quote; {} if none helps.

    The record begins at `start` of a text. With the settings it has as many values as there are columns (None: any
    number).

    >>> settings_that_read(b'1,"say \\"hi\\""\n', 0, Dialect(), 2), settings_that_read(b'1,"a" of b\n', 0, Dialect(), 2)
    ({'escape': '\\'}, {'quote': ''})
    >>> settings_that_read(b"1,'a,b'\n", 0, Dialect(), 2), settings_that_read(b"1,2,3\n", 0, Dialect(), 2)
    ({'quote': "'"}, {})
    """
    record = _compile_record_pattern(dialect, None).match(data, start)
    text = record[0] if record else data[start:]
    candidates = [("escape", "\\")] if dialect.escape is None else []
    candidates += [("quote", mark) for mark in ("'", '"') if mark != dialect.quote]
    candidates += [("quote", "")] if dialect.quote else []
    used = (dialect.delimiter, dialect.comment, dialect.escape)
    for key, mark in candidates:
        if mark in used or (mark or dialect.quote).encode() not in text:  # a character has one meaning
            continue
        other = replace(dialect, escape=mark) if key == "escape" else replace(dialect, quote=mark)
        match = _compile_record_pattern(other, columns).match(data, start)
        if match and match.lastindex == GOOD:
            return {key: mark}
    return {}


def has_initial_spaces(data: bytes, dialect: Dialect) -> bool:
    """Tell whether a text of whole records has delimiters and a space follows each of them.

    >>> has_initial_spaces(b'a, b\\n1, "2,3"\\n', Dialect(",")), has_initial_spaces(b"a, b\\n1,2\\n", Dialect(","))
    (True, False)
    """
    delimiters = [
        match[2] for match in _compile_value_pattern(replace(dialect, skip_space=True), True).finditer(data) if match[2]
    ]
    return bool(delimiters) and all(delimiter.endswith(b" ") for delimiter in delimiters)


def line_ends(data: bytes) -> int:
    r"""Count line ends: LF, CR LF and CR.

    >>> line_ends(b"a\r\nb\rc\n")
    3
    """
    return data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n") if b"\r" in data else data.count(b"\n")


def _is_text(data: bytes, encoding: str) -> bool:
    return not no_letters(data, encoding)


@cache
def cuts_anywhere(encoding: str) -> bool:
    """Tell whether each ASCII byte of a text stands for itself, so that bytes can be cut at line ends.

    >>> cuts_anywhere("windows-1251"), cuts_anywhere("euc-kr"), cuts_anywhere("gbk"), cuts_anywhere("utf-16")
    (True, True, False, False)
    """
    ascii_bytes = bytes(range(128))
    texts = [ascii_bytes, *(b"".join(bytes([high, low]) for low in ascii_bytes) for high in range(128, 256))]
    stateful = codecs.lookup(encoding).name.startswith("iso2022")  # bytes after an escape are other characters
    return not stateful and all(
        "".join(char for char in text.decode(encoding, "replace") if char.isascii()) == ascii_bytes.decode()
        for text in texts
    )


def becomes_utf8(options: ReadOptions) -> bool:
    """Tell whether a text is read as a whole and becomes UTF-8 before anything looks at its bytes.

    That is so if its bytes cannot be cut at line ends, and if it has a delimiter that is not ASCII, in another encoding
    than UTF-8.
    """
    encoding = options.get("encoding", "utf-8")
    delimiter = options.get("delimiter") or ","
    return encoding != "utf-8" and not (delimiter.isascii() and cuts_anywhere(encoding))


def encoding_of(options: ReadOptions) -> str:
    """Return the encoding of the bytes that are cut into lines."""
    return "utf-8" if becomes_utf8(options) else str(options.get("encoding", "utf-8"))


def no_letters(data: bytes, encoding: str) -> str:
    """Return the reason why bytes are not text in an encoding; "" for text."""
    if data.isascii():
        return ""
    try:
        data.decode(encoding)
    except UnicodeDecodeError as error:
        return f"byte 0x{data[error.start]:02x} is not a letter of {encoding}"
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
            if why := _explain_not_object(text):
                reasons[number] = why
            else:
                objects.append(number)

        def takes_lines(numbers: Sequence[int]) -> bool:
            return self.takes(b"".join(lines[n] if lines[n].endswith(b"\n") else lines[n] + b"\n" for n in numbers))

        for number in find_refused_items(objects, takes_lines):
            reasons[number] = "a value does not fit its column"
        if not reasons:
            return Sifted(data, rows, ())
        starts = np.cumsum([0, *map(len, lines)]).tolist()
        bad = [Bad(starts[number], starts[number + 1], reasons[number]) for number in sorted(reasons)]
        good = b"".join(line for number, line in enumerate(lines) if number not in reasons)
        return Sifted(good, rows - len(bad), bad)


def _split(data: bytes) -> list[bytes]:
    """Split a text into lines with their line feeds: a carriage return ends none."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _explain_not_object(line: bytes) -> str:
    """Return the reason why a line is not a JSON object; "" for an object."""
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
    raise ValueError(f"{constant} is not JSON")


DECODER = json.JSONDecoder(parse_constant=_refuse)


def depth(line: bytes) -> int:
    """Measure how deep the brackets of a line lie in each other; those in texts do not count."""
    brackets = np.frombuffer(BRACKETS.sub(b"", line), np.uint8)
    steps = np.select([(brackets == c) for c in b"[{]}"], [1, 1, -1, -1], 0)
    return int(np.cumsum(steps).max(initial=0))


def find_refused_items(items: Any, takes: Callable[[Any], bool]) -> list[Any]:
    """List the items of a list or an array that `takes` does not take.

    All are tried at once, then in pieces, then one by one: in most files few items are refused, or none.
    """
    if not len(items) or takes(items):
        return []
    if len(items) == 1:
        return list(items)
    size = 1 if len(items) <= ONE_BY_ONE else 1 + len(items) // 16
    pieces = [items[start : start + size] for start in range(0, len(items), size)]
    return [item for piece in pieces for item in find_refused_items(piece, takes)]
