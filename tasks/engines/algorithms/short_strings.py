"""Strings of one length as numbers, which are cheaper to count, sort and look up.

Hexadecimal codes, dates and postal codes are such strings. The numbers of two strings of the same length are equal
where the strings are, and sort as their bytes do.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

WIDEST = 8  # bytes that fit into a number


def measure_width(strings: pa.Array) -> int:
    """Measure how many bytes each string has; 0 if they differ in that, or have more than fit into a number.

    Nulls have none: 0 too if bytes stand in the place of a null, or if all strings are null.

    >>> [measure_width(pa.array(texts)) for texts in (["ab", None, "cd"], ["ab", "c"], ["123456789"], [1])]
    [2, 0, 0, 0]
    """
    if not pa.types.is_string(strings.type) or not len(strings):
        return 0
    lengths = np.diff(_view_offsets(strings))
    width = int(lengths.max())
    if not 0 < width <= WIDEST:
        return 0
    whole = lengths == width
    if strings.null_count:
        same = np.array_equal(whole, strings.is_valid().to_numpy(zero_copy_only=False))
    else:
        same = bool(whole.all())
    return width if same else 0


def to_numbers(strings: pa.Array, width: int) -> np.ndarray:
    """Convert the strings that are not null, each of `width` bytes, to uint64.

    >>> [hex(number) for number in to_numbers(pa.array(["ab", None, "b0"]), 2).tolist()]
    ['0x6162000000000000', '0x6230000000000000']
    """
    start, stop = _view_offsets(strings)[[0, -1]].tolist()
    count = (stop - start) // width
    letters = np.frombuffer(strings.buffers()[2], np.uint8, stop - start, start).reshape(count, width)
    if width < WIDEST:
        padded = np.zeros((count, WIDEST), np.uint8)
        padded[:, :width] = letters
        letters = padded
    return letters.reshape(-1).view(">u8").astype(np.uint64)


def to_strings(numbers: np.ndarray, width: int) -> pa.Array:
    """Convert what `to_numbers` made to strings again."""
    letters = numbers.astype(">u8").view(np.uint8).reshape(len(numbers), WIDEST)
    offsets = np.arange(0, width * (len(numbers) + 1), width, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(letters[:, :width]))]
    return pa.Array.from_buffers(pa.string(), len(numbers), buffers)


def encode(strings: pa.Array, width: int) -> pa.DictionaryArray:
    """Dictionary-encode strings of `width` bytes as Arrow does: the values in the order in which they appear.

    >>> encode(pa.array(["b", None, "a", "b"]), 1).equals(pa.array(["b", None, "a", "b"]).dictionary_encode())
    True
    """
    numbers = to_numbers(strings, width)
    null = None
    if strings.null_count:
        valid = strings.is_valid().to_numpy(zero_copy_only=False)
        null = ~valid
        spread = np.zeros(len(strings), np.uint64)
        spread[valid] = numbers
        numbers = spread
    encoded = pa.array(numbers, mask=null).dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices, to_strings(encoded.dictionary.to_numpy(), width))


def _view_offsets(strings: pa.Array) -> np.ndarray:
    return np.frombuffer(strings.buffers()[1], np.int32, len(strings) + 1, 4 * strings.offset)
