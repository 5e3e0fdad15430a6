"""Numbers as hexadecimal text, whole arrays at a time."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from flows.sample.draws import Array, TableDraw


def _four_digits() -> np.ndarray:
    """Return the four ASCII digits of every 16-bit number, packed into a uint32 in reading order."""
    digit = np.frombuffer(b"0123456789abcdef", np.uint8)
    number = np.arange(1 << 16)
    text = np.stack([digit[(number >> shift) & 15] for shift in (12, 8, 4, 0)], axis=1)
    return np.ascontiguousarray(text).view(np.uint32).ravel()


_FOUR_DIGITS = TableDraw((_four_digits(),))


def eight_digits(xp: ModuleType, values: Array) -> Array:
    """uint8 array (n, 8): the lower 32 bits of each uint64 as text."""
    text = xp.empty((len(values), 2), np.uint32)
    (text[:, 0],) = _FOUR_DIGITS.look_up(xp, ((values >> np.uint64(16)) & np.uint64(0xFFFF)).view(np.int64))
    (text[:, 1],) = _FOUR_DIGITS.look_up(xp, (values & np.uint64(0xFFFF)).view(np.int64))
    return text.view(np.uint8)


def uuid(xp: ModuleType, high: Array, low: Array) -> Array:
    """uint8 array (n, 36): 128 bits as 8-4-4-4-12 digits with the marks of a random (version 4) UUID."""
    high = (high & np.uint64(0xFFFFFFFFFFFF0FFF)) | np.uint64(0x4000)
    low = (low & np.uint64(0x3FFFFFFFFFFFFFFF)) | np.uint64(0x8000000000000000)
    half = np.uint64(32)
    digits = xp.concatenate([eight_digits(xp, part) for part in (high >> half, high, low >> half, low)], axis=1)
    text = xp.full((len(high), 36), ord("-"), np.uint8)
    for source, target, length in ((0, 0, 8), (8, 9, 4), (12, 14, 4), (16, 19, 4), (20, 24, 12)):
        text[:, target : target + length] = digits[:, source : source + length]
    return text
