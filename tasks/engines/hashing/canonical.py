"""Canonical 8-byte values of a column: one bit pattern per value, whatever type stores it."""

from __future__ import annotations

from decimal import Decimal
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.engines.types import Array

# (multiplier, divisor) from counts of a time unit to microseconds; divisions round down.
_MICROSECONDS = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}
DAY_MS = 86_400_000
DIGITS = 18  # the most digits of a decimal that int64 holds
# a float64 holds so many digits, and 10 to this power, exactly
EXACT_DIGITS = 15
EXACT_SCALE = 22


def is_text(dtype: pa.DataType) -> bool:
    """Whether values are strings or bytes, in any of Arrow's layouts."""
    views = pa.types.is_string_view(dtype) or pa.types.is_binary_view(dtype) or pa.types.is_fixed_size_binary(dtype)
    plain = pa.types.is_string(dtype) or pa.types.is_binary(dtype)
    return plain or pa.types.is_large_string(dtype) or pa.types.is_large_binary(dtype) or views


def canonical_values(array: pa.Array, whole: bool = False) -> np.ndarray:
    """The values of a boolean, number, time or date array as uint64 bits, int64 not copied; nulls are any value."""
    return canonical_bits(raw_values(array), array.type, np, whole)


def raw_values(array: pa.Array) -> np.ndarray:
    """The stored numbers of a fixed-width Arrow array as numpy, not copied; nulls are any value."""
    if pa.types.is_boolean(array.type):
        filled = array.fill_null(False) if array.null_count else array
        return filled.to_numpy(zero_copy_only=False)
    numpy_type = np.dtype(f"i{array.type.bit_width // 8}")
    if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        numpy_type = np.dtype(array.type.to_pandas_dtype())
    if not len(array):
        return np.empty(0, dtype=numpy_type)
    return np.frombuffer(array.buffers()[1], dtype=numpy_type)[array.offset : array.offset + len(array)]


def canonical_bits(values: Array, dtype: pa.DataType, xp: ModuleType, as_integers: bool = False) -> Array:
    """uint64 bits of plain values of an Arrow type: int64, or float64 with one zero; times in whole microseconds.

    With `as_integers`, whole floats have the bits of the integer, int64 or uint64.
    """
    if pa.types.is_floating(dtype):
        with np.errstate(invalid="ignore"):  # in the place of a null there may be a signalling NaN
            floats = values.astype(xp.float64) + 0.0
        bits = floats.view(xp.uint64)
        if not as_integers:
            return bits
        integer = floats == xp.floor(floats)
        signed = integer & (floats >= -(2.0**63)) & (floats < 2.0**63)
        unsigned = integer & (floats >= 2.0**63) & (floats < 2.0**64)
        bits = xp.where(unsigned, xp.where(unsigned, floats, 0.0).astype(xp.uint64), bits)
        return xp.where(signed, xp.where(signed, floats, 0.0).astype(xp.int64).view(xp.uint64), bits)
    if values.dtype == xp.uint64:
        return values
    whole = values.astype(xp.int64, copy=False)
    if pa.types.is_date64(dtype):
        whole = whole // DAY_MS
    elif pa.types.is_temporal(dtype) and not pa.types.is_date(dtype):
        multiply, divide = _MICROSECONDS[dtype.unit]
        whole = whole // divide if divide > 1 else whole * multiply if multiply > 1 else whole
    return whole.view(xp.uint64)


def decimal_text(array: pa.Array) -> pa.Array:
    """Decimals as fixed-point text with all digits of their scale, without an exponent; null stays."""
    text = pc.cast(array, pa.string())
    if not pc.any(pc.match_substring(text, "E"), min_count=0).as_py():
        return text
    return pa.array([None if t is None else format(Decimal(t), "f") for t in text.to_pylist()], pa.string())


def decimal_floats(array: pa.Array) -> pa.Array:
    """Decimals as the nearest float64; null stays. (Arrow's cast is off by the last bit for one value in seven.)"""
    dtype = array.type
    if pa.types.is_decimal128(dtype) and 0 <= dtype.scale <= EXACT_SCALE and len(array):
        words = np.frombuffer(array.buffers()[1], np.int64)[2 * array.offset : 2 * (array.offset + len(array))]
        low = words[::2]
        high = words[1::2]
        if dtype.precision <= EXACT_DIGITS or ((high == low >> 63) & (low >= -(2**53)) & (low <= 2**53)).all():
            mask = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
            return pa.array(low / 10.0**dtype.scale, mask=mask)  # both operands are exact: one rounding
    return pc.cast(pc.cast(array, pa.string()), pa.float64())


def to_unscaled(array: pa.Array) -> np.ndarray:
    """The digits of decimals of up to `DIGITS` digits, int64: 1.50 of scale 2 is 150; nulls are any value."""
    if not len(array):
        return np.empty(0, dtype=np.int64)
    words = max(array.type.bit_width // 64, 1)
    width = np.int64 if array.type.bit_width >= 64 else np.int32
    first = words * array.offset
    stop = words * (array.offset + len(array))
    return np.frombuffer(array.buffers()[1], width)[first:stop:words].astype(np.int64)


def decimal_halves(low: pa.Array, high: pa.Array) -> pa.Array:
    """The means of pairs of decimals as the nearest float64; null where either is null."""
    dtype = low.type
    if dtype.precision > 74:  # Arrow lacks the digits for the sum and its half
        return pc.divide(pc.add(decimal_floats(low), decimal_floats(high)), 2.0)
    wide = pa.decimal256(dtype.precision, dtype.scale)
    half = pa.scalar(Decimal("0.5"), pa.decimal256(1, 1))
    return decimal_floats(pc.multiply(pc.add(low.cast(wide), high.cast(wide)), half))
