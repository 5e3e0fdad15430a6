"""MurmurHash3_x86_32 of whole columns: the same 32-bit numbers on CPU and GPU and in every version.

The hash is that of canonical bytes, so that a value has one hash for all its storage types: integers, booleans and
timestamps (in microseconds) as int64, dates as days in int64, floats as float64 with -0.0 = 0.0, strings as UTF-8,
decimals as their fixed-point text, all little-endian. A null hashes to 0xFFFFFFFF for every seed; so does NaN, which
counts as null.

Reference: Austin Appleby, MurmurHash3.cpp, function MurmurHash3_x86_32 (public domain).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.dtypes import is_list
from tasks.engines.hashing.canonical import canonical_values, decimal_text, is_text
from tasks.engines.types import Array
from tasks.errors import JobError

NULL_HASH = 0xFFFFFFFF
BLOCK_ROWS = 1 << 13  # rows of a block: its words, hashes and one temporary stay in the first levels of cache
BLOCK_BYTES = 1 << 18
FEW_ROWS = 16  # for fewer rows a step over words is slower in numpy than in Python

_C1 = np.uint32(0xCC9E2D51)
_C2 = np.uint32(0x1B873593)
_C3 = np.uint32(0xE6546B64)
_F1 = np.uint32(0x85EBCA6B)
_F2 = np.uint32(0xC2B2AE35)
_FIVE = np.uint32(5)


def hash_fixed(values: Array, seed: int, xp: ModuleType) -> Array:
    """The hash of every 8-byte item of a uint64 array (the bits of int64 or float64) as a uint32 array of `xp`.

    `xp` is numpy or CuPy, the library of `values`. This hash of a row number, with seed `fold_seed`, decides the fold.
    """
    words = xp.ascontiguousarray(values).view(xp.uint32).reshape(-1, 2)
    return _hash_columns([words[:, 0], words[:, 1]], seed, xp)


def hash_words(columns: Sequence[Array], seed: int, xp: ModuleType) -> Array:
    """The hash of a composite key for each row: of n 4-byte little-endian words, one from each of n uint32 arrays.

    The words are the hashes of the columns of the key, one after another, with seed 0.
    """
    return _hash_columns(columns, seed, xp)


def _hash_columns(columns: Sequence[Array], seed: int, xp: ModuleType) -> Array:
    rows = len(columns[0])
    out = xp.empty(rows, dtype=xp.uint32)
    step = BLOCK_ROWS if xp is np else max(rows, 1)
    for start in range(0, rows, step):
        h = out[start : start + step]
        h[...] = np.uint32(seed)
        spare = xp.empty_like(h)
        for column in columns:
            _mix(h, column[start : start + step].copy(), spare, xp)
        _finish(h, np.uint32(4 * len(columns)), spare, xp)
    return out


def _rotate(x: object, bits: int, spare: object, xp: ModuleType) -> None:
    """Rotate left in place; overwrites `spare`."""
    xp.right_shift(x, np.uint32(32 - bits), out=spare)
    xp.left_shift(x, np.uint32(bits), out=x)
    xp.bitwise_or(x, spare, out=x)


def _scramble(k: object, spare: object, xp: ModuleType) -> None:
    xp.multiply(k, _C1, out=k)
    _rotate(k, 15, spare, xp)
    xp.multiply(k, _C2, out=k)


def _mix(h: object, k: object, spare: object, xp: ModuleType) -> None:
    """Mix one word per row into the hashes, in place; overwrites `k`."""
    _scramble(k, spare, xp)
    xp.bitwise_xor(h, k, out=h)
    _rotate(h, 13, spare, xp)
    xp.multiply(h, _FIVE, out=h)
    xp.add(h, _C3, out=h)


def _finish(h: object, length: object, spare: object, xp: ModuleType) -> None:
    """The final mix; `length` in bytes, one number or one per row."""
    xp.bitwise_xor(h, length, out=h)
    for shift, factor in ((16, _F1), (13, _F2)):
        xp.right_shift(h, np.uint32(shift), out=spare)
        xp.bitwise_xor(h, spare, out=h)
        xp.multiply(h, factor, out=h)
    xp.right_shift(h, np.uint32(16), out=spare)
    xp.bitwise_xor(h, spare, out=h)


def hash_strings(array: pa.Array, seed: int = 0) -> np.ndarray:
    """The hash of every string (or binary value) of an Arrow array; a dictionary array is hashed by its dictionary.

    Works on the offsets and the bytes of the array, also of a slice; null -> 0xFFFFFFFF.
    """
    if pa.types.is_dictionary(array.type):
        return _hash_dictionary(array, seed)
    if array.type not in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        array = array.cast(pa.large_binary())
    width = np.int64 if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type) else np.int32
    _, offset_buffer, data_buffer = array.buffers()
    out = np.empty(len(array), dtype=np.uint32)
    if len(array):
        stop_row = array.offset + len(array) + 1
        offsets = np.frombuffer(offset_buffer, dtype=width)[array.offset : stop_row].astype(np.int64)
        data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
        for start, stop in _text_blocks(offsets):
            out[start:stop] = _hash_text_block(offsets[start : stop + 1], data, seed)
    return _mask_nulls(out, array)


def _text_blocks(offsets: np.ndarray) -> Iterator[tuple[int, int]]:
    """Runs of rows of at most BLOCK_ROWS rows and BLOCK_BYTES bytes (or one long row)."""
    start = 0
    rows = len(offsets) - 1
    while start < rows:
        by_bytes = int(np.searchsorted(offsets, offsets[start] + BLOCK_BYTES, side="right")) - 1
        stop = min(rows, start + BLOCK_ROWS, max(by_bytes, start + 1))
        yield start, stop
        start = stop


def _hash_text_block(offsets: np.ndarray, data: np.ndarray, seed: int) -> np.ndarray:
    """Hash the rows of a block, longest first, so that the rows with words left are always the first rows."""
    first = int(offsets[0])
    last = int(offsets[-1])
    padded = np.zeros(last - first + 4, dtype=np.uint8)
    padded[: last - first] = data[first:last]
    word_at = np.ndarray(last - first + 1, np.dtype("<u4"), padded, strides=(1,)).astype(np.uint32)  # at every byte
    lengths = np.diff(offsets)
    words = lengths >> 2
    longest = int(words.max())
    counts = np.bincount(words, minlength=longest + 1)
    alive = len(words) - np.cumsum(counts)  # alive[step]: rows that have a word number `step`
    kind = np.uint16 if longest < 1 << 16 else np.int64
    order = np.argsort((longest - words).astype(kind), kind="stable")
    position = (offsets[:-1] - first)[order]
    h = np.full(len(order), seed, dtype=np.uint32)
    spare = np.empty_like(h)
    step = 0
    while step < longest and alive[step] >= FEW_ROWS:
        n = int(alive[step])
        _mix(h[:n], word_at[position[:n]], spare[:n], np)
        position[:n] += 4
        step += 1
    for row in range(int(alive[step]) if step < longest else 0):
        left = int(words[order[row]]) - step
        h[row] = _fold_words(int(h[row]), word_at[position[row] : position[row] + 4 * left : 4])
        position[row] += 4 * left
    tail = (lengths[order] & 3).astype(np.uint32)
    last_word = word_at[position] & ((np.uint32(1) << (tail << np.uint32(3))) - np.uint32(1))
    _scramble(last_word, spare, np)
    h ^= last_word
    _finish(h, lengths[order].astype(np.uint32), spare, np)
    out = np.empty_like(h)
    out[order] = h
    return out


def _fold_words(h: int, words: np.ndarray) -> int:
    """Mix the words of one long string into its hash, one after another."""
    words = words.copy()
    _scramble(words, np.empty_like(words), np)
    for k in words.tolist():
        h ^= k
        h = ((((h << 13) | (h >> 19)) & 0xFFFFFFFF) * 5 + 0xE6546B64) & 0xFFFFFFFF
    return h


def _hash_dictionary(array: pa.DictionaryArray, seed: int, whole: bool = False) -> np.ndarray:
    indices = array.indices
    if not len(array.dictionary):
        return np.full(len(array), NULL_HASH, dtype=np.uint32)
    out = hash_array(array.dictionary, seed, whole)[np.asarray(indices.fill_null(0))]
    return _mask_nulls(out, indices)


def _mask_nulls(hashes: np.ndarray, array: pa.Array) -> np.ndarray:
    if array.null_count:
        hashes[np.asarray(array.is_null().to_numpy(zero_copy_only=False))] = NULL_HASH
    return hashes


def hash_array(array: pa.Array | pa.ChunkedArray, seed: int = 0, whole: bool = False) -> np.ndarray:
    """The hash of the canonical bytes of every value of an Arrow column, as numpy uint32; null -> 0xFFFFFFFF.

    With `whole`, whole floats hash as integers. JobError for lists and other nested types, which have no canonical
    bytes.
    """
    if isinstance(array, pa.ChunkedArray):
        return np.concatenate([np.empty(0, np.uint32), *(hash_array(chunk, seed, whole) for chunk in array.chunks)])
    if pa.types.is_dictionary(array.type):
        return _hash_dictionary(array, seed, whole)
    refuse_nested(array.type)
    if pa.types.is_null(array.type):
        return np.full(len(array), NULL_HASH, dtype=np.uint32)
    if pa.types.is_decimal(array.type):
        array = decimal_text(array)
    if is_text(array.type):
        return hash_strings(array, seed)
    if pa.types.is_floating(array.type):
        array = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array) if _has_nan(array) else array
    return _mask_nulls(hash_fixed(canonical_values(array, whole), seed, np), array)


def _has_nan(array: pa.Array) -> bool:
    return bool(pc.any(pc.is_nan(array), min_count=0).as_py())


def refuse_nested(dtype: pa.DataType) -> None:
    """JobError for a type whose values consist of other values."""
    if is_list(dtype) or pa.types.is_nested(dtype):
        raise JobError(
            f"a column of type {dtype} cannot be hashed",
            why="only single values have canonical bytes",
            do="hash single values; Categorify codes the elements of lists",
        )
