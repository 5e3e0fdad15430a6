"""Which sign stands between the values of lines of text, and what quotes and backslashes in them mean."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from itertools import takewhile

from flows.draft.written_values import NUMBER

SIGNS = ",;\t|\x01\x1f^~"
SELDOM = ":"  # in times, too: it stands between values where no other sign does
CLOCK = re.compile(r"\b[0-9]{1,2}:[0-9]{2}\b")
MOST_OF = 0.9  # lines that are written so; values with line ends in them make others
NUMBERS = 0.5  # of the values, before blanks stand between values and not between words
FEWEST_LINES = 5  # by which blanks count as signs between values
UNQUOTED = {False: '[^"{sign}]*', True: r'(?:[^"\\{sign}]|\\.)*'}
QUOTED = {False: '"(?:[^"]|"")*"', True: r'"(?:[^"\\]|\\.|"")*"'}
# A value in quotes between two signs, whatever stands in it.
BETWEEN_SIGNS = re.compile(rf"""(?:^|(?<=[{SIGNS}: ]))"(?:[^"\\]|""|\\.)*"(?=[{SIGNS}: ]|\s*$)""")
QUOTED_VALUE = re.compile(r'"([^"]|"")*"\s*')


def find_delimiter(lines: Sequence[str]) -> str:
    """The sign that stands in most of the last lines as often as in the last; of several that do, the doubled one or
    the one that stands there most often: a decimal comma may be in every line, too.

    >>> find_delimiter(["a;b;c", "1,5;2;x", "2,5;3;y"])
    ';'
    """
    last = _without_quoted(next((line for line in reversed(lines) if line), ""))

    def rate(sign: str) -> tuple[int, int, int]:
        return count_regular(lines, sign), len(sign), last.count(sign)

    best = max(find_signs(lines), key=rate)
    filled = [line for line in lines if line]
    are_clocks = all(map(CLOCK.search, filled[1:]))
    if not count_regular(lines, best) and count_regular(lines, SELDOM) == len(filled) >= FEWEST_LINES:
        return best if are_clocks else SELDOM
    return best


def find_signs(lines: Sequence[str]) -> list[str]:
    """The signs that may stand between values, the likeliest first: doubled ones if they are in every line, and single
    ones tell less, and so do those with a blank behind each; a blank if every line has as many, between numbers.

    >>> find_signs(["1::Heat: a film::5", "2::Up::4"])[0], find_signs(["a||b|c", "d||e|f"])[0]
    ('::', ',')
    >>> find_signs(["39, State-gov, 77516", "50, Private, 83311"])[0], find_signs(['1, "a, b"', '2, "c"'])[0]
    (', ', ',')
    """
    lines = [line for line in lines if line]
    doubled = [2 * sign for sign in f"{SIGNS}:" if lines and all(2 * sign in line for line in lines)]
    alone = [sign for sign in doubled if _are_pairs(lines, sign)]
    spaced = [f"{sign} " for sign in SIGNS if _have_blanks_behind(lines, sign)]
    return [*alone, *spaced, *SIGNS, *(" " if _are_blanks_between(lines) else "")]


def _are_pairs(lines: Sequence[str], sign: str) -> bool:
    """Tell whether a sign of two letters, and not one of them alone, gives all lines as many values."""
    if count_regular(lines, sign[0]) == len(lines):
        return all(line.count(sign[0]) == 2 * line.count(sign) for line in lines)
    return count_regular(lines, sign) == len(lines)


def _have_blanks_behind(lines: Sequence[str], sign: str) -> bool:
    """Whether all lines have as many of a sign, each with a blank behind it; in quotes it may be part of a value."""
    alike = lines and count_regular(lines, sign) == len(lines)
    return bool(alike) and all(line.count(sign) == line.count(f"{sign} ") and '"' not in line for line in lines)


def _are_blanks_between(lines: Sequence[str]) -> bool:
    """Tell whether blanks stand between values, of which half are numbers; values with blanks in them are in quotes."""
    escape = "\\" if any('\\"' in line for line in lines) else None
    try:
        rows = [*csv.reader(lines, delimiter=" ", escapechar=escape)]
    except csv.Error:
        return False
    if has_one_name_too_few(rows):  # R's write.table
        return len(rows) > FEWEST_LINES
    if len(rows) < FEWEST_LINES or len({*map(len, rows)}) != 1 or len(rows[0]) < 2 or "" in rows[0]:
        return False
    values = [value for row in rows for value in row]
    return sum(bool(re.match(NUMBER, value)) for value in values) >= NUMBERS * len(values)


def has_one_name_too_few(rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether the first line has names for all columns but the first, as R writes it above the labels of rows.

    >>> has_one_name_too_few([["x", "y"], ["1", "7", "8"], ["2", "7", "9"]])
    True
    """
    first, *others = rows or [[]]
    labels = [row[0] for row in others if row]
    is_short = len(others) > 1 and {len(row) for row in others} == {len(first) + 1}
    return is_short and len({*labels}) == len(labels) and not any(re.match(NUMBER, name) for name in first)


def count_regular(lines: Sequence[str], sign: str) -> int:
    """How many of these lines, from the last on, have the sign as often as the last, but in quoted values; 0 where it
    has none."""
    lines = [_without_quoted(line) for line in lines if line]
    number = lines[-1].count(sign) if lines else 0
    alike = list(takewhile(lambda line: line.count(sign) == number, reversed(lines)))
    return len(alike) if number else 0


def _without_quoted(line: str) -> str:
    return BETWEEN_SIGNS.sub("", line) if '"' in line else line


def has_escapes(lines: Sequence[str], delimiter: str) -> bool:
    r"""Tell whether lines of text can be read only if a backslash is the escape sign.

    >>> has_escapes(['"1";"say \\"hi\\""', '"2";"ok"'], ";"), has_escapes(['"1";"C:\\"', '"2";"D:\\"'], ";")
    (True, False)
    >>> has_escapes(["1,a\\, b", "2,c"], ",")
    True
    """
    with_quote = [line for line in lines if '\\"' in line]
    misread = [line for line in with_quote if not _is_line(line, delimiter, escaped=False)]
    if misread:
        right = [line for line in misread if _is_line(line, delimiter, escaped=True)]
        return len(right) >= MOST_OF * len(misread)
    if not any(f"\\{delimiter}" in line for line in lines):
        return False
    differ = len(_widths(lines, delimiter)) > 1
    return differ and len(_widths(lines, delimiter, escape="\\")) == 1


def has_single_quotes(lines: Sequence[str], delimiter: str) -> bool:
    """Tell whether all lines have as many values only if single quotes are around those with a delimiter in them.

    >>> has_single_quotes(["1,'a, b'", "2,c"], ","), has_single_quotes(["1,it's", "2,'c'"], ",")
    (True, False)
    """
    if not any(f"{delimiter}'" in line for line in lines):
        return False
    differ = len(_widths(lines, delimiter)) > 1
    return differ and len(_widths(lines, delimiter, quote="'")) == 1


def has_escaped_null(lines: Sequence[str], delimiter: str) -> bool:
    r"""Tell whether a value is \N, which databases write for null where a backslash is the escape sign.

    >>> has_escaped_null(["1,\\N", "2,c"], ","), has_escaped_null(["1,C:\\New", "2,c"], ",")
    (True, False)
    """
    return any("\\N" in line.split(delimiter) for line in lines)


def quotes_are_letters(lines: Sequence[str], delimiter: str) -> bool:
    """Whether every line has as many values as the others if quotes are letters, and one begins but does not end with
    a quote."""
    rows = [line.split(delimiter) for line in lines if line]
    if len({len(row) for row in rows}) != 1 or len(rows[0]) < 2:
        return False
    return any(value.startswith('"') and not QUOTED_VALUE.fullmatch(value) for row in rows for value in row)


def _is_line(line: str, delimiter: str, escaped: bool) -> bool:
    """Tell whether a line consists of values of which each quote begins, ends or is doubled, or is escaped."""
    value = f"(?:{QUOTED[escaped]}|{UNQUOTED[escaped].format(sign=re.escape(delimiter))})"
    return bool(re.fullmatch(f"{value}(?:{re.escape(delimiter)}{value})*", line))


def _widths(lines: Sequence[str], delimiter: str, quote: str = '"', escape: str | None = None) -> set[int]:
    """Return the numbers of values that lines have."""
    widths: set[int] = set()
    try:
        for row in csv.reader(lines, delimiter=delimiter, quotechar=quote, escapechar=escape):
            widths |= {len(row)} - {0}
    except csv.Error:  # a quote that is never closed makes one value of many lines
        widths |= {0, 1}
    return widths
