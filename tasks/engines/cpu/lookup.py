"""Looks up values in a vocabulary, on the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.engines.algorithms.arrow_arrays import raw
from tasks.engines.algorithms.host_tables import plain
from tasks.engines.cpu.columns import Column, array
from tasks.engines.cpu.groups import to_key_bits
from tasks.engines.hashing import murmur3
from tasks.engines.types import Array

DENSE = 1 << 22  # integers of a range up to this get a table with a place per integer
SMALL = 1 << 12  # for up to this many strings Arrow builds a table per call faster than we hash all values
BLOCK = 1 << 17  # keys that the hash table inserts or looks up at once
SAMPLE = 1 << 14  # keys that say whether most of them are absent
FILTERED = range(1 << 20, 1 << 26)  # slots that no cache holds, but a filter of which it does
FINER = 2  # the filter has 2^FINER bits per slot
MERGED = 16  # keys per wanted key up to which they are worth sorting
CACHED = 1 << 16  # rows whose codes and ids stay in the cache
RUN = 1 << 12  # wanted keys that an ascending run should have


class Lookup:
    """Finds the place of values in a vocabulary, -1 for other values. Built once, then used by any thread.

    `keys` are the distinct rows of the vocabulary, one Arrow array per column; a null key matches nulls.
    """

    def __init__(self, keys: Sequence[pa.Array]) -> None:
        self.columns = [_OneColumn(k if len(keys) == 1 else plain(k).unique()) for k in keys]
        self.size = len(keys[0])
        if len(keys) == 1:
            return
        codes = self.columns[0].codes(keys[0])
        self.steps: list[tuple[int, _OneColumn]] = []
        for one, key in zip(self.columns[1:], keys[1:], strict=True):
            mixed = codes * np.int64(one.distinct) + one.codes(key)
            inner = _OneColumn(pa.array(np.unique(mixed)))
            self.steps.append((one.distinct, inner))
            codes = inner.codes(pa.array(mixed))
        self.places = np.empty(self.size, dtype=np.int64)
        self.places[codes] = np.arange(self.size)

    def codes(self, columns: Sequence[Column]) -> np.ndarray:
        """The place of each row in the vocabulary, int64; -1 for a row that is not in the vocabulary."""
        codes = self.columns[0].codes(array(columns[0]))
        if len(self.columns) == 1:
            return codes
        if not self.size:
            return np.full(len(codes), -1, dtype=np.int64)
        for (distinct, inner), one, values in zip(self.steps, self.columns[1:], columns[1:], strict=True):
            more = one.codes(array(values))
            mixed = np.where((codes < 0) | (more < 0), -1, codes * np.int64(distinct) + more)
            codes = inner.codes(pa.array(mixed))
        return np.where(codes < 0, -1, self.places[codes])


def vocabulary_ids(
    codes: Array, null: Array | None, first: int, outside: int | Array, missing: int, dtype: type, counted: bool
) -> tuple[np.ndarray, int]:
    """(`first` + code; `outside` (one number, or one per row) where the code is -1, `missing` where `null` is true; how
    many codes are -1, `counted` or not). By runs of rows that stay in the cache."""
    ids: np.ndarray = np.empty(len(codes), dtype)
    absent = 0
    for start in range(0, len(codes), CACHED):
        part = ids[start : start + CACHED]
        part[...] = codes[start : start + CACHED]
        if part.min() < 0:
            absent += int(np.count_nonzero(part < 0))
        part += first
    is_next = isinstance(outside, int) and outside == first - 1  # what code -1 has become
    if absent and not is_next:
        ids = np.where(codes < 0, outside, ids).astype(dtype, copy=False)
    if null is not None:
        ids[null] = missing
    return ids, absent


class _OneColumn:
    """The places of values of one column among distinct `keys`: by a dense table, by a hash table, or as strings."""

    def __init__(self, keys: pa.Array) -> None:
        keys = plain(keys)
        self.distinct = len(keys)
        self.null = int(np.flatnonzero(keys.is_null())[0]) if keys.null_count else -1
        self.type = keys.type
        self.text = not (_is_number(keys.type))
        self.dense: np.ndarray | None = None
        if self.text:
            self._build_text(keys)
        else:
            self._build_numbers(to_key_bits(keys))

    def _build_numbers(self, bits: np.ndarray) -> None:
        places = None
        if self.null >= 0:
            places = np.delete(np.arange(len(bits)), self.null)
            bits = bits[places]
        low, high = (int(bits.min()), int(bits.max())) if len(bits) else (0, -1)
        self.low = low
        if high - low < max(DENSE, 4 * len(bits)):
            self.dense = np.full(max(high - low + 1, 0), -1, dtype=np.int32)
            self.dense[bits - low] = np.arange(len(bits)) if places is None else places
        else:
            self.index = HashTable(bits)
            self.places = places

    def _build_text(self, keys: pa.Array) -> None:
        keys = keys if pa.types.is_string(keys.type) else keys.cast(pa.string())
        self.strings = keys
        if len(keys) <= SMALL:
            return
        bits = _hash64(keys)
        self.index = HashTable(bits)
        shared = np.unique(bits[self.index.repeated])  # strings of the vocabulary with one hash: looked up as strings
        self.shared_hashes = shared if len(shared) else None
        if self.shared_hashes is not None:
            self.odd_places = np.flatnonzero(np.isin(bits, shared))
            self.odd = keys.take(pa.array(self.odd_places))

    def codes(self, values: pa.Array) -> np.ndarray:
        if pa.types.is_dictionary(values.type):
            return self._through_dictionary(values)
        codes = self._text_codes(values) if self.text else self._number_codes(values)
        if values.null_count:
            codes = np.where(values.is_valid().to_numpy(zero_copy_only=False), codes, self.null)
        return codes

    def _through_dictionary(self, values: pa.Array) -> np.ndarray:
        table = np.append(self.codes(values.dictionary), self.null)
        indices = raw(values.indices)
        if values.null_count:
            indices = np.where(values.is_valid().to_numpy(zero_copy_only=False), indices, len(table) - 1)
        return table.take(indices)

    def _number_codes(self, values: pa.Array) -> np.ndarray:
        if not _is_number(values.type):
            raise TypeError(f"values of type {values.type} where the vocabulary holds {self.type}")
        if values.type != self.type:
            return self._codes_of_other_type(values)
        return self._codes_of_bits(to_key_bits(values))

    def _codes_of_other_type(self, values: pa.Array) -> np.ndarray:
        """Codes of values of another type; -1 for a value that the type of the vocabulary cannot hold exactly."""
        converted = pc.cast(values, self.type, safe=False)
        same = pc.equal(pc.cast(converted, values.type, safe=False), values)
        exact = np.asarray(pc.fill_null(same, False)).astype(bool)
        bits = to_key_bits(converted)
        if (values.type == pa.uint64()) != (self.type == pa.uint64()) and not pa.types.is_floating(self.type):
            exact = exact & (bits >= 0)  # equal bits are different numbers
        return np.where(exact, self._codes_of_bits(bits), -1)

    def _codes_of_bits(self, bits: np.ndarray) -> np.ndarray:
        if self.dense is not None:
            place = bits - self.low
            inside = (place >= 0) & (place < len(self.dense))
            if inside.all():
                return self.dense.take(place).astype(np.int64)
            return np.where(inside, self.dense.take(np.where(inside, place, 0)) if len(self.dense) else -1, -1).astype(
                np.int64
            )
        codes = self.index.find(bits)
        return codes if self.places is None else np.where(codes < 0, -1, self.places.take(codes))

    def _text_codes(self, values: pa.Array) -> np.ndarray:
        values = values if pa.types.is_string(values.type) else values.cast(pa.string())
        if len(self.strings) <= max(SMALL, len(values) // 8):
            places = pc.index_in(values, value_set=self.strings, skip_nulls=True)
            return raw(pc.fill_null(places, -1)).astype(np.int64)
        bits = _hash64(values)
        codes = self.index.find(bits)
        same = pc.equal(self.strings.take(pa.array(np.maximum(codes, 0))), values)
        codes = np.where(np.asarray(pc.fill_null(same, False)), codes, -1)
        if self.shared_hashes is not None:
            rows = np.flatnonzero(np.isin(bits, self.shared_hashes))
            odd = raw(pc.fill_null(pc.index_in(values.take(pa.array(rows)), value_set=self.odd), -1))
            codes[rows] = np.where(odd < 0, -1, self.odd_places.take(odd, mode="clip"))
        return codes


class HashTable:
    """Places of int64 keys by open addressing, with two to four times as many slots (of 4 bytes) as keys.

    Inserts and finds keys in blocks, so that temporaries stay in the cache. `repeated` are the places of keys that
    equal a key inserted before; `find` returns one place for equal keys. Read-only once built: any thread may use it.
    Where few of many wanted keys are in a large table, a filter of few bits per slot, which stays in the cache, sorts
    out most of the others: half of the time. Where the wanted keys come in ascending runs, as those of a vocabulary do,
    the keys within the range of a long run are looked up in the run instead: a fifth of the time.
    """

    def __init__(self, keys: np.ndarray) -> None:
        self.keys = np.ascontiguousarray(keys)
        bits = max((2 * len(keys)).bit_length(), 4)
        self.shift = np.uint64(64 - bits)
        self.mask = np.int64((1 << bits) - 1)
        width: type = np.int32 if len(keys) < 1 << 31 else np.int64
        self.slots: np.ndarray = np.full(1 << bits, -1, dtype=width)
        repeated = [self._insert(start) for start in range(0, len(keys), BLOCK)]
        self.repeated = np.concatenate(repeated) if repeated else np.empty(0, dtype=np.int64)

    def _first_slots(self, keys: np.ndarray, finer: int = 0) -> np.ndarray:
        mixed = keys.view(np.uint64)
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0x9FB21C651E98DF25)
        return (mixed >> (self.shift - np.uint64(finer))).view(np.int64)

    @cached_property
    def _filter(self) -> np.ndarray:
        """A bit for each part of a slot: whether a key begins its search there."""
        bits = np.zeros(len(self.slots) << FINER, dtype=bool)
        for start in range(0, len(self.keys), BLOCK):
            bits[self._first_slots(self.keys[start : start + BLOCK], finer=FINER)] = True
        return np.packbits(bits, bitorder="little")

    def _candidates(self, wanted: np.ndarray) -> np.ndarray:
        """The places of all wanted keys that are in the table, and of some others."""
        rows = []
        for start in range(0, len(wanted), BLOCK):
            bits = self._first_slots(wanted[start : start + BLOCK], finer=FINER)
            passing = (self._filter.take(bits >> 3) >> (bits & 7).astype(np.uint8)) & np.uint8(1)
            rows.append(np.flatnonzero(passing) + start)
        return np.concatenate(rows)

    def _insert(self, start: int) -> np.ndarray:
        keys = self.keys[start : start + BLOCK]
        places = np.arange(start, start + len(keys))
        slots = self._first_slots(keys)
        repeated = []
        while len(places):
            free = self.slots.take(slots) < 0
            self.slots[slots[free]] = places[free]  # if several keys want one slot, the last one gets it
            holder = self.slots.take(slots)
            lost = np.flatnonzero(holder != places)
            places = places[lost]
            slots = slots[lost]
            holder = holder[lost]
            same = self.keys.take(holder) == self.keys.take(places)
            repeated.append(places[same])
            places = places[~same]
            slots = (slots[~same] + 1) & self.mask
        return np.concatenate(repeated) if repeated else places

    @cached_property
    def _ascending(self) -> np.ndarray:
        return np.sort(self.keys)

    def find(self, wanted: np.ndarray) -> np.ndarray:
        """The place of each of the wanted keys, int64; -1 for a key that is not in the table."""
        out = np.full(len(wanted), -1, dtype=np.int64)
        wanted = np.ascontiguousarray(wanted)
        if not len(self.keys):
            return out
        edges = _edges_of_runs(wanted) if len(wanted) >= max(2 * SAMPLE, len(self.keys) // MERGED) else []
        for start, stop in itertools.pairwise(edges):
            self._find_run(wanted[start:stop], out[start:stop])
        if not edges:
            self._find_many(wanted, out)
        return out

    def _find_run(self, wanted: np.ndarray, out: np.ndarray) -> None:
        """`_find` of wanted keys each of which is larger than the one before."""
        low = np.searchsorted(self._ascending, wanted[0])
        high = np.searchsorted(self._ascending, wanted[-1], "right")
        if 3 * (high - low) > len(wanted):
            self._find_many(wanted, out)
            return
        keys = self._ascending[low:high]
        rows = np.searchsorted(wanted, keys)
        same = np.flatnonzero(wanted.take(rows) == keys)
        places = np.full(len(same), -1, dtype=np.int64)
        self._find(keys.take(same), places)
        out[rows[same]] = places

    def _find_many(self, wanted: np.ndarray, out: np.ndarray) -> None:
        """`_find` of any number of wanted keys, through the filter where that is faster."""
        if len(self.slots) not in FILTERED or len(wanted) < 2 * SAMPLE:
            self._find(wanted, out)
            return
        self._find(wanted[:SAMPLE], out[:SAMPLE])
        wanted = wanted[SAMPLE:]
        rest = out[SAMPLE:]
        if 4 * np.count_nonzero(out[:SAMPLE] >= 0) > SAMPLE:
            self._find(wanted, rest)
            return
        rows = self._candidates(wanted)
        codes = np.full(len(rows), -1, dtype=np.int64)
        self._find(wanted.take(rows), codes)
        rest[rows] = codes

    def _find(self, wanted: np.ndarray, out: np.ndarray) -> None:
        """Write the places of the wanted keys to `out`, which is -1 everywhere."""
        for start in range(0, len(wanted), BLOCK):
            keys = wanted[start : start + BLOCK]
            rows = np.arange(len(keys))
            slots = self._first_slots(keys)
            codes = out[start : start + len(keys)]
            while len(rows):
                places = self.slots.take(slots)
                hit = (self.keys.take(places) == keys) & (places >= 0)
                codes[rows[hit]] = places[hit]
                left = np.flatnonzero(~hit & (places >= 0))
                rows = rows[left]
                keys = keys[left]
                slots = (slots[left] + 1) & self.mask


def _edges_of_runs(keys: np.ndarray) -> list[int]:
    """Where each ascending run of distinct keys begins, and the end of the last; [] if the runs are short."""
    for part in (keys[:SAMPLE], keys):
        falls = np.flatnonzero(part[1:] <= part[:-1])
        if len(falls) * RUN > len(part):
            return []
    return [0, *(falls + 1).tolist(), len(keys)]


def _is_number(dtype: pa.DataType) -> bool:
    return (
        pa.types.is_integer(dtype)
        or pa.types.is_floating(dtype)
        or pa.types.is_boolean(dtype)
        or pa.types.is_temporal(dtype)
    )


def _hash64(strings: pa.Array) -> np.ndarray:
    high, low = (murmur3.hash_strings(strings, seed).astype(np.uint64) for seed in (1000, 1001))
    return ((high << np.uint64(32)) | low).view(np.int64)
