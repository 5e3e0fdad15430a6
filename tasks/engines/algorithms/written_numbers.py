"""Texts that are numbers: a column becomes numbers only where no two different texts become one value.

*Whole numbers* (no point, no exponent) are int64 or uint64 where they are written back alike: leading zeros, `0x` and
more than 64 bits make the column text; a sign may stand before them (`+5` is 5, `-0` is 0). *Decimals* (any value with
a point or a negative exponent) are float64, unless whole numbers beyond 2^53 are among them. Other exponents make the
column text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.dtypes import dtype_name, schema_advice

EXACT = 2**53  # float64 holds whole numbers up to it
INT = 2**63 - 1
UINT = 2**64 - 1
WHOLE = r"^[ \t]*[+-]?[0-9]+[ \t]*$"
PADDED = r"^[ \t]*[+-]?0[0-9xX]"
CHUNK = 2**18
# Of numbers in texts: the decimal sign, and the sign between groups of digits. 1,234 is read as 1234.
SIGNS = ((".", None), (".", ","), (",", None), (",", "."))


@dataclass(frozen=True)
class Written:
    """How the numbers of a column are written in a file: the least and the greatest whole number, whether one has a
    `point` (or a negative exponent) or is infinite or NaN (`odd`), and an example of an exponent without a point
    (`power`) and of a leading zero or `0x` (`padded`). Of lists and structs only their type (`nested`)."""

    path: str
    low: int = 0
    high: int = 0
    point: bool = False
    odd: bool = False
    power: str = ""
    padded: str = ""
    nested: pa.DataType | None = None

    def __or__(self, other: Written) -> Written:
        """What both files show; the path is that of the file with the example."""
        text = pa.string()
        larger = max(-other.low, other.high) > max(-self.low, self.high)
        others = other.dtype == text or larger if self.dtype != text else False
        return Written(
            other.path if others else self.path,
            min(self.low, other.low),
            max(self.high, other.high),
            self.point or other.point,
            self.odd or other.odd,
            self.power or other.power,
            self.padded or other.padded,
            self.nested,
        )

    @property
    def dtype(self) -> pa.DataType:
        """The type of the column: a number only if none becomes another's.

        >>> Written("a.csv", high=7, padded="007").dtype, Written("a.csv", high=2**64 - 1).dtype
        (DataType(string), DataType(uint64))
        >>> Written("a.csv", power="1e5", point=True).dtype, Written("a.csv", high=2**53 + 1, point=True).dtype
        (DataType(double), DataType(string))
        """
        if self.nested is not None:
            return self.nested
        if self.point or self.odd:
            fits = self.is_exact and not self._is_hex and (self.point or not (self.power or self.padded))
            return pa.float64() if fits else pa.string()
        if self.power or self.padded or self._needs_more_bits:
            return pa.string()
        return pa.uint64() if self.high > INT else pa.int64()

    @property
    def is_exact(self) -> bool:
        """Whether float64 holds the whole numbers."""
        return max(-self.low, self.high) <= EXACT

    @property
    def _is_hex(self) -> bool:
        return "x" in self.padded.lower()

    @property
    def _needs_more_bits(self) -> bool:
        return self.high > UINT or self.low < -INT - 1 or (self.high > INT and self.low < 0)

    @property
    def is_text(self) -> bool:
        return self.nested is not None or self.dtype == pa.string()

    def sentence(self, name: str) -> str:
        """The sentence on a column that stays text: an example, where, and the setting that makes numbers of it."""
        if self.nested is not None:
            return (
                f"numbers in column {name!r} stay text ({dtype_name(self.nested)}) since {self.path} has some that "
                "floating-point numbers do not hold; source.schema takes another type"
            )
        floating = self.point or self.odd or self.power or self._needs_more_bits
        if self.padded and not (self.point and not self._is_hex):
            example = self.padded
            why = f"a number is not written with {'0x' if self._is_hex else 'leading zeros'}"
        elif self.power and not self.point:
            example = self.power
            why = "a whole number is not written with an exponent"
        else:
            example = str(self.high if self.high > EXACT else self.low)
            why = "it has more than 64 bits" if not (self.point or self.odd) else "decimals are exact up to 2^53 only"
        number = "float64" if floating else "uint64" if self.high > INT else "int64"
        do = "" if floating and self._is_hex else f"; {schema_advice(name, number)} makes numbers of it"
        return f"column {name!r} stays text (string), for example {example!r} in {self.path}: {why}{do}"


def describe_notation(texts: pa.ChunkedArray, values: pa.ChunkedArray, path: str, decimal: str = ".") -> Written:
    """How the numbers of a column are written: its texts, and the int64 or float64 that Arrow makes of them."""
    seen = Written(path)
    if pa.types.is_integer(values.type):
        bounds = pc.min_max(values).as_py()
        row = find_padded_row(texts)
        padded = texts[row].as_py() if row is not None else ""
        return replace(seen, low=bounds["min"] or 0, high=bounds["max"] or 0, padded=padded)
    fraction = f"[{decimal}]|[eE]-"
    point = any(_any(pc.match_substring_regex(part, fraction)) for part in (texts.slice(0, 1000), texts))
    large = texts.filter(pc.greater_equal(pc.abs(values), float(EXACT)))
    large = large.filter(pc.match_substring_regex(large, WHOLE))
    numbers = [_parse_whole_number(text) for text in pc.unique(large).to_pylist() if text is not None]
    seen = replace(seen, low=min([0, *numbers]), high=max([0, *numbers]), point=point)
    if point:
        return seen
    odd = pc.invert(pc.is_finite(values))
    power = pc.and_(pc.match_substring_regex(texts, "[0-9][eE]"), pc.is_valid(values))
    row = find_padded_row(texts)
    first = pc.index(power, pa.scalar(True)).as_py()
    lowest = pc.min(values.filter(pc.is_finite(values))).as_py()
    return replace(
        seen,
        odd=_any(pc.and_not(odd, power)),
        power=texts[first].as_py() if first >= 0 else "",
        padded=texts[row].as_py() if row is not None else "",
        low=min(seen.low, -1 if (lowest or 0) < 0 else 0),
    )


def of_tokens(tokens: Sequence[str], path: str) -> Written:
    """How numbers are written that a JSON reader has left as texts.

    >>> of_tokens(["1", "18446744073709551616"], "a.jsonl").dtype, of_tokens(["1e5", "0.5"], "a.jsonl").dtype
    (DataType(string), DataType(double))
    """
    whole = [_parse_whole_number(token) for token in tokens if token.lstrip("-").isdigit()]
    return Written(
        path,
        min([0, *whole]),
        max([0, *whole]),
        any("." in t or "e-" in t.lower() for t in tokens),
        power=next((t for t in tokens if "e" in t.lower() and "." not in t and "e-" not in t.lower()), ""),
    )


def find_padded_row(texts: pa.ChunkedArray) -> int | None:
    """The first row whose text is a whole number with leading zeros or `0x`; None for none."""
    rows = 0
    for chunk in texts.chunks:
        offsets = np.frombuffer(chunk.buffers()[1], np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
        longer = np.flatnonzero(np.diff(offsets) > 1) if len(chunk) else np.array([], int)
        if len(longer):
            letters = np.frombuffer(chunk.buffers()[2], np.uint8)
            first = letters[offsets[longer]]
            longer = longer[first <= ord("0")]  # signs and blanks, too
            # Of -1 and -20 the second letter shows that they are not: many columns have such numbers.
            is_negative = letters[offsets[longer]] == ord("-")
            second = letters[offsets[longer] + 1]
            longer = longer[~is_negative | (second < ord("1")) | (second > ord("9"))]
            place = pc.index(pc.match_substring_regex(chunk.take(longer), PADDED), pa.scalar(True)).as_py()
            if place >= 0:
                return rows + int(longer[place])
        rows += len(chunk)
    return None


def is_large(values: pa.ChunkedArray) -> bool:
    """Whether there are floats from 2^53 on, some of which may be a whole number that was rounded."""
    bounds = pc.min_max(values)
    return max(bounds["max"].as_py() or 0, -(bounds["min"].as_py() or 0)) >= EXACT


def long_row(texts: pa.Array, values: pa.ChunkedArray) -> int | None:
    """The first row with a whole number beyond 2^53, which a column of floats would change; None for none."""
    large = pc.greater_equal(pc.abs(values), float(EXACT))
    for row in pc.indices_nonzero(pc.and_(large, pc.match_substring_regex(texts, WHOLE))).to_pylist():
        if abs(_parse_whole_number(texts[row].as_py())) > EXACT:
            return int(row)
    return None


def whole_numbers(
    texts: pa.Array | pa.ChunkedArray, dtype: pa.DataType, name: str, point: str = "."
) -> pa.Array | pa.ChunkedArray:
    """Texts as integers, `+5` as 5 and `7.0` as 7, digit by digit; pa.ArrowInvalid names column, value and row of
    another one."""
    try:
        return texts.cast(dtype)
    except pa.ArrowInvalid:
        number = rf"\+?([0-9]+|-[0-9]+)(?:\{point}0*)?"
        row = pc.index(pc.match_substring_regex(texts, rf"^[ \t]*({number}|0[xX][0-9A-Fa-f]+)[ \t]*$"), False).as_py()
        if row >= 0:
            why = f"Column(/{name}) has {texts[row].as_py()!r}, which is not a whole number, in row {row}"
            raise pa.ArrowInvalid(why) from None
        return pc.replace_substring_regex(texts, rf"^[ \t]*{number}[ \t]*$", r"\1").cast(dtype)


def may_be_padded(data: bytes, signs: str, signed: bool) -> bool:
    """Whether a value of a text may be a number with leading zeros or `0x`; if `signed`, one with a minus before them,
    else one without. It begins behind a line end or one of the `signs`. One look at the bytes costs less than to read
    numbers as texts."""
    # bytes from the one before the value to the zero
    array = np.frombuffer(data, np.uint8)
    width = 1 + signed
    begins = np.array([10, 13, *signs.encode()], np.uint8)
    begin, blank = np.zeros((2, 256), bool)  # whether a byte is such a sign, or a blank or sign before a number
    begin[begins] = blank[[32, 9, ord("+"), ord("-")]] = True
    if re.match(PADDED.encode(), data):
        return True
    for at in range(width, len(array) - 1, CHUNK):
        stop = min(at + CHUNK, len(array) - 1)
        before = array[at - width : stop - width]
        zeros = (array[at:stop] == 48) & (array[at + 1 : stop + 1] > 47)
        if signed:
            zeros &= array[at - 1 : stop - 1] == ord("-")
        begun = before < ord("-")  # line ends, blanks, and most delimiters and quotes
        for sign in begins[begins >= ord("-")]:
            begun |= before == sign
        zeros &= begun
        if not zeros.any():
            continue
        places = np.flatnonzero(zeros) + at
        after = array[places + 1]
        places = places[(after <= 57) | (after == ord("x")) | (after == ord("X"))] - width
        last = array[places]
        second = array[np.maximum(places - 1, 0)]
        if (begin[last] | (blank[last] & (begin[second] | blank[second] | (places < 1)))).any():
            return True
    return False


def same_number_advice(name: str, dtype: pa.DataType) -> str:
    """What to do about a text that would become the number of another one."""
    return (
        f"fix the value, or name the column's type, {schema_advice(name, pa.string())} keeps texts apart (fit again "
        f"where a workflow was fitted with numbers), {schema_advice(name, dtype)} makes one number of them"
    )


def number_pattern(decimal: str, group: str | None) -> str:
    """The pattern of a whole text that is a number: digits, in groups or not, a decimal sign, an exponent."""
    point = re.escape(decimal)
    digits = r"\d+"
    if group:
        sign = re.escape(group) if not group.isspace() else group
        digits = rf"(?:\d+|\d{{1,3}}(?:{sign}\d{{2,3}})*{sign}\d{{3}})"
    return rf"^[+-]?(?:{digits}(?:{point}\d*)?|{point}\d+)(?:[eE][+-]?\d+)?$"


def number_signs(text: str, decimal: str = ".") -> tuple[str, str | None] | None:
    """The decimal sign and the sign between groups of digits of a number; `decimal` is preferred. None for other texts.

    >>> number_signs("1.234,5"), number_signs("1,234"), number_signs("1,234", decimal=","), number_signs("n/a")
    ((',', '.'), ('.', ','), (',', None), None)
    """
    own_first = sorted(SIGNS, key=lambda signs: signs[0] != decimal)
    return next((signs for signs in own_first if re.match(number_pattern(*signs), text.strip())), None)


def _parse_whole_number(text: str) -> int:
    """The whole number of a text; one beyond 64 bits for a text that is too long for Python."""
    return int(text) if len(text) < 4000 else 10**30


def _any(mask: object) -> bool:
    return bool(pc.any(mask).as_py())
