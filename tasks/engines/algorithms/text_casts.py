"""Casts from and to text, on Arrow arrays in host memory. Both engines use them, so that their texts are equal."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.dtypes import is_list
from tasks.engines.hashing.canonical import decimal_floats, decimal_text


def parse_text(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """The values of texts, parsed by Arrow's rules; null where a text is not a value of the type.

    Whole numbers are written as 12, +12, -12, never as 0x0c; other numbers as 12, -0.5, 1e3; booleans as true, false,
    1, 0; times as 2020-01-31 or 2020-01-31 12:30:00, also with a fraction, with T, and with Z, UTC or an offset
    (+02:00) at the end; lists of numbers as [0.5, 1.5], 1|2|3, 1;2 or 1 2, in brackets or without. White space at both
    ends is ignored. Each distinct text is parsed once.
    """
    encoded = array.dictionary_encode() if not pa.types.is_dictionary(array.type) else array
    texts = pc.utf8_trim_whitespace(encoded.dictionary.cast(pa.string()))
    if is_list(dtype):
        return _lists(texts, dtype).take(encoded.indices)
    if pa.types.is_integer(dtype):
        texts = _with_digits(texts)
    values = times_of(texts, dtype, _lenient) if pa.types.is_timestamp(dtype) else _lenient(texts, dtype)
    return values.take(encoded.indices)


_ELEMENT = r"[^\s,|;\[\]]+"
_RUNS = [f"{_ELEMENT}(?:{sign}{_ELEMENT})*" for sign in (r"\s*,\s*", r"\s*[|]\s*", r"\s*;\s*", r"\s+")]
_ELEMENTS = r"\s*(?:" + "|".join(_RUNS) + r")?\s*"


def _lists(texts: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Lists of numbers of distinct texts, with one sign between all elements of a text; null where a text is no such
    list. `null`, `None` and `nan` are null elements.

    >>> _lists(pa.array(["[0.5, null]", "1|2", "[]", "1|2,3"]), pa.list_(pa.float64())).to_pylist()
    [[0.5, None], [1.0, 2.0], [], None]
    """
    right = pc.match_substring_regex(texts, rf"^(?:\[{_ELEMENTS}\]|{_ELEMENTS})$")
    bare = pc.utf8_trim_whitespace(pc.replace_substring_regex(pc.if_else(right, texts, ""), r"[\[\],|;\s]+", " "))
    parts = pc.split_pattern(pc.fill_null(bare, ""), " ")
    elements = parts.values.filter(pc.not_equal(parts.values, ""))
    lengths = pc.if_else(pc.equal(pc.fill_null(bare, ""), ""), 0, pc.list_value_length(parts))
    nothing = pc.match_substring_regex(elements, "^(?i:null|none|nan)$")
    numbers = parse_text(pc.if_else(nothing, pa.scalar(None, pa.string()), elements), dtype.value_type)
    unread = pc.and_not(numbers.is_null(), nothing)
    if pa.types.is_floating(dtype.value_type):  # a number beyond the type is not infinity
        beyond = pc.and_not(pc.is_inf(numbers), pc.match_substring_regex(elements, "(?i)inf"))
        unread = pc.or_(unread, pc.fill_null(beyond, False))
    offsets = np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False))]).astype(np.int32)
    counts = np.concatenate([[0], np.cumsum(unread.to_numpy(zero_copy_only=False))])
    wrong = pa.array(counts[offsets[1:]] > counts[offsets[:-1]])
    mask = pc.or_(pc.invert(pc.fill_null(right, False)), wrong)
    return pa.ListArray.from_arrays(pa.array(offsets), numbers.cast(dtype.value_type), type=dtype, mask=mask)


def times_of(
    texts: pa.Array, dtype: pa.TimestampType, cast: Callable[[pa.Array, pa.DataType], pa.Array] = pc.cast
) -> pa.Array:
    """Times of ISO 8601 texts, UTC if they name no zone. For other texts pa.ArrowInvalid, or the answer of `cast`.

    >>> times_of(pa.array(["2020-01-01T01:00:00+02:00", "2020-01-01"]), pa.timestamp("s")).to_pylist()
    [datetime.datetime(2019, 12, 31, 23, 0), datetime.datetime(2020, 1, 1, 0, 0)]
    """
    plain = pa.timestamp(dtype.unit)
    bare = pc.replace_substring_regex(texts, r"\s*(UTC|Z)$", "")
    zoned = None
    try:
        times = pc.cast(bare, plain)
    except pa.ArrowInvalid:
        zoned = pc.match_substring_regex(bare, r"[T ]\d\d(:\d\d){0,2}([.,]\d+)?\s*[+-]\d\d(:?\d\d)?$")
        times = None
    if times is None and not pc.any(zoned).as_py():
        times = cast(bare, plain)
    elif times is None:
        nothing = pa.scalar(None, pa.string())
        joined = pc.replace_substring_regex(bare, r"\s+([+-][0-9:]+)$", r"\1")
        moved = cast(pc.if_else(zoned, joined, nothing), pa.timestamp(dtype.unit, "UTC")).cast(plain)
        times = pc.if_else(zoned, moved, cast(pc.if_else(zoned, nothing, bare), plain))
    return times.cast(dtype) if dtype.tz else times


def _with_digits(texts: pa.Array) -> pa.Array:
    """The texts as Arrow reads whole numbers: +5 without its sign, and null for 0xff..ff, which Arrow takes for -1."""
    if pc.any(pc.starts_with(texts, "+")).as_py():
        texts = pc.replace_substring_regex(texts, r"^\+(\d)", r"\1")
    is_hex = pc.starts_with(texts, "0x", ignore_case=True)
    return pc.if_else(is_hex, pa.scalar(None, pa.string()), texts) if pc.any(is_hex).as_py() else texts


def _lenient(texts: pa.Array, dtype: pa.DataType) -> pa.Array:
    """The values of texts; null where a text is not a value of the type."""
    try:
        return pc.cast(texts, dtype)
    except pa.ArrowInvalid:
        return pa.array([_parse_one(text, dtype) for text in texts], dtype)


def _parse_one(text: pa.Scalar, dtype: pa.DataType) -> pa.Scalar:
    try:
        return text.cast(dtype)
    except pa.ArrowInvalid:
        return pa.scalar(None, dtype)


def format_text(array: pa.Array) -> pa.Array:
    """Values as text: 12, 0.5, true, 2020-01-31 12:30:00; decimals with all digits of their scale; null stays."""
    if pa.types.is_decimal(array.type):
        return decimal_text(array)
    if pa.types.is_timestamp(array.type) and array.type.tz is not None:
        array = array.cast(pa.timestamp(array.type.unit))
    return pc.cast(array, pa.string())


def decimal_numbers(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Decimals as integers, truncated towards zero, or as floats; null where the type cannot hold the value."""
    if pa.types.is_floating(dtype):
        return pc.cast(decimal_floats(array), dtype, safe=False)
    whole = pc.cast(pc.trunc(array), pa.string())
    return parse_text(pc.replace_substring_regex(whole, r"\.0*$", ""), dtype)
