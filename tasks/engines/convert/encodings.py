"""How Parquet files without a given codec store whole numbers and times: one rule for both engines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import pyarrow as pa

Encoding = Literal["plain", "dictionary", "delta"]

AUTO = "auto"  # each column of a Parquet file has a codec of its own
SMALL_ENCODINGS = (AUTO, "none")  # of `output.compression`: those whose files have dictionaries and differences
MOST_DICTIONARY_BYTES = 1 << 20  # more is too much for caches of readers, and PyArrow's writer gives such a one up
DELTA_BLOCK = 128  # deltas that share their least one
DELTA_MINIBLOCK = 32  # deltas that are stored in as many bits
LEAST_SAVING = 8  # an eighth of the bytes: what saves less is not worth its time


def is_encodable(dtype: pa.DataType) -> bool:
    """Say whether a GPU encodes columns of the type itself: numbers, booleans, times and dates."""
    return (
        pa.types.is_integer(dtype)
        or pa.types.is_float32(dtype)
        or pa.types.is_float64(dtype)
        or pa.types.is_boolean(dtype)
        or pa.types.is_timestamp(dtype)
        or pa.types.is_date32(dtype)
    )


def are_encoded_on_gpu(types: Iterable[pa.DataType], compression: str) -> bool:
    """Say whether a GPU encodes Parquet files of these columns itself, without a codec; cuDF writes other files."""
    return compression in SMALL_ENCODINGS and all(is_encodable(dtype) for dtype in types)


def index_bits(low: int, high: int) -> int:
    """Compute the bits of an index into a dictionary of all numbers from `low` to `high`; at least one.

    >>> index_bits(0, 0), index_bits(0, 1), index_bits(1, 5)
    (1, 1, 3)
    """
    return max((high - low).bit_length(), 1)


def saves_enough(nbytes: int, plain: int) -> bool:
    """Say whether so many bytes (or bits) in place of `plain` save an eighth.

    >>> saves_enough(7, 8), saves_enough(71, 80)
    (True, False)
    """
    return LEAST_SAVING * nbytes <= (LEAST_SAVING - 1) * plain


def choose_encoding(rows: int, low: int, high: int, width: int) -> Encoding:
    """Choose how `rows` whole numbers from `low` to `high` are stored; as they are, each takes `width` (4 or 8) bytes.

    A dictionary has all numbers of the range, so that its order is that of the numbers. Differences to the number
    before have at most one bit more than the range. Both have to save an eighth.

    >>> choose_encoding(1_000_000, 0, 25, 8), choose_encoding(1_000_000, 0, 10**7, 8), choose_encoding(9, 0, 2**62, 8)
    ('dictionary', 'delta', 'plain')
    """
    bits = (high - low).bit_length()
    sizes: dict[Encoding, int] = {"plain": 8 * width * rows}
    values = high - low + 1
    if values * width <= MOST_DICTIONARY_BYTES:
        sizes["dictionary"] = index_bits(low, high) * rows + 8 * width * values
    blocks = -(-rows // DELTA_BLOCK)
    least_delta = bits // 7 + 1  # bytes
    sizes["delta"] = (bits + 1) * rows + 8 * blocks * (least_delta + DELTA_BLOCK // DELTA_MINIBLOCK)
    best = min(sizes, key=lambda name: sizes[name])
    return best if saves_enough(sizes[best], sizes["plain"]) else "plain"
