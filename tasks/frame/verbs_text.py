"""Casts from and to text, on Arrow arrays in host memory: both engines use these bodies, so that they agree."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tasks.frame.canonical import decimal_floats, decimal_text


def parse_text(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """The values that texts stand for, after Arrow's rules of reading; null where a text is no such value.

    Numbers as 12, -0.5, 1e3; truth as true, false, 1, 0; times as 2020-01-31 or 2020-01-31 12:30:00, also with a
    fraction, T, Z or UTC behind. White space around is not part of a value. Each distinct text is read once.
    """
    encoded = array.dictionary_encode() if not pa.types.is_dictionary(array.type) else array
    texts = pc.utf8_trim_whitespace(encoded.dictionary.cast(pa.string()))
    zone = None
    if pa.types.is_timestamp(dtype):
        texts, zone = pc.replace_substring_regex(texts, r"(\s*UTC|Z)$", ""), dtype.tz
        dtype = pa.timestamp(dtype.unit)
    try:
        values = pc.cast(texts, dtype)
    except pa.ArrowInvalid:
        values = pa.array([_parse_one(text, dtype) for text in texts], dtype)
    parsed = values.take(encoded.indices)
    return parsed.cast(pa.timestamp(dtype.unit, zone)) if zone else parsed


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
    """Decimals as integers, cut towards zero, or as floats; null where the type cannot hold the value."""
    if pa.types.is_floating(dtype):
        return pc.cast(decimal_floats(array), dtype, safe=False)
    whole = pc.cast(pc.trunc(array), pa.string())
    return parse_text(pc.replace_substring_regex(whole, r"\.0*$", ""), dtype)
