"""Looks up values in a vocabulary, on the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.engines.algorithms import short_strings
from tasks.engines.algorithms.arrow_arrays import find_valid_rows, raw
from tasks.engines.algorithms.host_tables import plain
from tasks.engines.cpu.columns import Column, array
from tasks.engines.cpu.groups import to_key_bits
from tasks.engines.hashing import murmur3
from tasks.engines.types import Array

MAX_DENSE_RANGE = 1 << 22  # integers of a range up to this get a table with an entry per integer
MAX_ARROW_STRINGS = 1 << 12  # for up to this many strings Arrow builds a table per call faster than we hash all values
FEW_STRINGS = 64  # wanted strings up to this many, those of a request, are looked up one by one
FEW_KEYS = 32  # wanted keys up to this many are looked up one by one: NumPy's calls for a batch cost as much
HASH_MULTIPLIER = 0x9FB21C651E98DF25
UNSIGNED = (1 << 64) - 1  # the bits of a key as those of an unsigned number
BATCH = 1 << 17  # keys that the hash table inserts or looks up at once
SAMPLE = 1 << 14  # wanted keys that show whether most of them are absent, and whether they ascend
FILTERED_SIZES = range(1 << 20, 1 << 26)  # slots of tables that do not fit into the cache while their filter does
FILTER_BITS = 2  # the filter has 2^FILTER_BITS bits per slot
KEYS_PER_WANTED = 16  # a table with more keys per wanted key is not sorted for ascending runs: sorting costs too much
CACHED_ROWS = 1 << 16  # rows whose places and ids stay in the cache
MIN_RUN = 1 << 12  # wanted keys that an ascending run should have on average


class Lookup:
    """Finds the place of values in a vocabulary, -1 for other values. Built once, then used by any thread.

    `keys` are the distinct rows of the vocabulary, one Arrow array per column; a null key matches nulls.

    Rows of several columns become one number: the number so far and the place of the next column's value are mixed as
    `number * distinct + place`, and mixed numbers are replaced by their places among those of the vocabulary. A number
    so stays below the size of the vocabulary, and the product stays within int64.
    """

    def __init__(self, keys: Sequence[pa.Array]) -> None:
        self.columns = [_OneColumn(k if len(keys) == 1 else plain(k).unique()) for k in keys]
        self.size = len(keys[0])
        if len(keys) == 1:
            return
        numbers = self.columns[0].find_places(keys[0])
        self.mixtures: list[tuple[int, _OneColumn]] = []  # of each further column: its distinct values, mixed numbers
        for column, key in zip(self.columns[1:], keys[1:], strict=True):
            mixed = numbers * np.int64(column.distinct) + column.find_places(key)
            mixture = _OneColumn(pa.array(np.unique(mixed)))
            self.mixtures.append((column.distinct, mixture))
            numbers = mixture.find_bits(mixed)
        self.place_of_number = np.empty(self.size, dtype=np.int64)
        self.place_of_number[numbers] = np.arange(self.size)

    def find_places(self, columns: Sequence[Column]) -> np.ndarray:
        """Find the place of each row in the vocabulary, int64 or int32; -1 for a row that is not in the vocabulary."""
        numbers = self.columns[0].find_places(array(columns[0]))
        if len(self.columns) == 1:
            return numbers
        if not self.size:
            return np.full(len(numbers), -1, dtype=np.int64)
        for (distinct, mixture), column, values in zip(self.mixtures, self.columns[1:], columns[1:], strict=True):
            places = column.find_places(array(values))
            mixed = np.where((numbers < 0) | (places < 0), -1, numbers * np.int64(distinct) + places)
            numbers = mixture.find_bits(mixed)
        return np.where(numbers < 0, -1, self.place_of_number[numbers])


def vocabulary_ids(
    places: Array, null: Array | None, first: int, outside: int | Array, missing: int, dtype: type, counted: bool
) -> tuple[np.ndarray, int]:
    """Make ids of places in a vocabulary; return (ids, number of places that are -1, if they are `counted`).

    An id is `first` + place; `outside` (one number, or one per row) where the place is -1; `missing` where `null` is
    true.
    """
    ids: np.ndarray = np.empty(len(places), dtype)
    is_next = isinstance(outside, int) and outside == first - 1  # what place -1 becomes
    absent = 0
    for start in range(0, len(places), CACHED_ROWS):
        part = ids[start : start + CACHED_ROWS]
        np.add(places[start : start + CACHED_ROWS], first, out=part, dtype=dtype, casting="unsafe")
        if (counted or not is_next) and part.min() < first:
            absent += int(np.count_nonzero(part < first))
    if absent and not is_next:
        ids = np.where(places < 0, outside, ids).astype(dtype, copy=False)
    if null is not None:
        ids[null] = missing
    return ids, absent


class _OneColumn:
    """Finds the places of values of one column among distinct `keys`."""

    def __init__(self, keys: pa.Array) -> None:
        keys = plain(keys)
        self.distinct = len(keys)
        self.null = int(np.flatnonzero(keys.is_null())[0]) if keys.null_count else -1
        self.type = keys.type
        self.strings = None if _is_number(keys.type) else _Strings(keys)
        self.numbers: _DenseTable | HashTable | None = None
        self.places: np.ndarray | None = None  # of the keys in `numbers`; None where they are their places
        if self.strings is None:
            self._build_numbers(to_key_bits(keys))

    def _build_numbers(self, bits: np.ndarray) -> None:
        places = None
        if self.null >= 0:
            places = np.delete(np.arange(len(bits)), self.null)
            bits = bits[places]
        low = int(bits.min()) if len(bits) else 0
        high = int(bits.max()) if len(bits) else -1
        if high - low < max(MAX_DENSE_RANGE, 4 * len(bits)):
            self.numbers = _DenseTable(bits, low, high, places)
        else:
            self.numbers = HashTable(bits)
            self.places = places

    def find_places(self, values: pa.Array) -> np.ndarray:
        """Find the place of each value among the keys, int64 or int32; -1 for a value that is not a key."""
        if isinstance(values, pa.DictionaryArray):
            return self._find_encoded(values)
        places = self._find_numbers(values) if self.strings is None else self.strings.find_places(values)
        valid = find_valid_rows(values)
        return places if valid is None else np.where(valid, places, self.null)

    def _find_encoded(self, values: pa.Array) -> np.ndarray:
        place_of_index = np.append(self.find_places(values.dictionary), self.null)
        if self.distinct < 1 << 31:
            place_of_index = place_of_index.astype(np.int32)  # rows are taken in half the time
        indices = raw(values.indices)
        valid = find_valid_rows(values)
        if valid is not None:
            indices = np.where(valid, indices, len(place_of_index) - 1)
        return place_of_index.take(indices)

    def _find_numbers(self, values: pa.Array) -> np.ndarray:
        if values.type == self.type:
            return self.find_bits(to_key_bits(values))
        if not _is_number(values.type):
            raise TypeError(f"values of type {values.type} where the vocabulary holds {self.type}")
        return self._find_numbers_of_other_type(values)

    def _find_numbers_of_other_type(self, values: pa.Array) -> np.ndarray:
        """Find numbers of another type; a number that the type of the vocabulary cannot hold exactly is not in it."""
        converted = pc.cast(values, self.type, safe=False)
        same = pc.equal(pc.cast(converted, values.type, safe=False), values)
        exact = np.asarray(pc.fill_null(same, False)).astype(bool)
        bits = to_key_bits(converted)
        if (values.type == pa.uint64()) != (self.type == pa.uint64()) and not pa.types.is_floating(self.type):
            exact = exact & (bits >= 0)  # equal bits are different numbers
        return np.where(exact, self.find_bits(bits), -1)

    def find_bits(self, bits: np.ndarray) -> np.ndarray:
        """Find the place of each number among the keys, by their int64 bits; -1 for one that is not a key."""
        assert self.numbers is not None  # it is for keys that are numbers
        places = self.numbers.find(bits)
        return places if self.places is None else np.where(places < 0, -1, self.places.take(places))


class _DenseTable:
    """Places of int64 keys from `low` to `high`, in an array with an entry per integer.

    `places` are the places of the keys; None where they are 0, 1, ...
    """

    def __init__(self, keys: np.ndarray, low: int, high: int, places: np.ndarray | None) -> None:
        self.low = low
        self.table: np.ndarray = np.full(max(high - low + 1, 0), -1, dtype=np.int32)
        self.table[keys - low] = np.arange(len(keys)) if places is None else places

    def find(self, wanted: np.ndarray) -> np.ndarray:
        """Find the place of each of the wanted keys, int64; -1 for a key that is not in the table."""
        entries = wanted - self.low
        inside = (entries >= 0) & (entries < len(self.table))
        if inside.all():
            return self.table.take(entries).astype(np.int64)
        if not len(self.table):
            return np.full(len(wanted), -1, dtype=np.int64)
        return np.where(inside, self.table.take(np.where(inside, entries, 0)), -1).astype(np.int64)


class _Strings:
    """Places of distinct strings: by a hash table of 64-bit hashes, or by Arrow where they are few.

    Strings of one length of up to 8 bytes are looked up as numbers.
    """

    def __init__(self, keys: pa.Array) -> None:
        self.keys = keys if pa.types.is_string(keys.type) else keys.cast(pa.string())
        self.width = 0 if keys.null_count else short_strings.measure_width(self.keys)
        is_large = len(keys) > MAX_ARROW_STRINGS
        if self.width:
            self.numbers = short_strings.to_numbers(self.keys, self.width)
            self.number_table = HashTable(self.numbers.view(np.int64)) if is_large else None
        self.hashed = _HashedStrings(self.keys) if is_large and not self.width else None

    @cached_property
    def _hashed_after_all(self) -> _HashedStrings:
        """The table for strings of another length than the keys have: few jobs need it."""
        return _HashedStrings(self.keys)

    @cached_property
    def _place_of_string(self) -> dict[str, int]:
        """The place of each string; a null has none. Of few strings only: Arrow builds its table anew in every call."""
        return {key: place for place, key in enumerate(self.keys.to_pylist()) if key is not None}

    def find_places(self, values: pa.Array) -> np.ndarray:
        """Find the place of each value among the keys, int64; -1 for a value that is not a key."""
        values = values if pa.types.is_string(values.type) else values.cast(pa.string())
        if len(values) <= FEW_STRINGS and len(self.keys) <= MAX_ARROW_STRINGS:
            place_of = self._place_of_string
            return np.array([place_of.get(value, -1) for value in values.to_pylist()], dtype=np.int64)
        are_few = len(self.keys) <= max(MAX_ARROW_STRINGS, len(values) // 8)
        if self.width and short_strings.measure_width(values) == self.width:
            return self._find_numbers(values, are_few)
        if are_few:
            return _index_in(values, self.keys)
        return (self.hashed or self._hashed_after_all).find_places(values)

    def _find_numbers(self, values: pa.Array, are_few: bool) -> np.ndarray:
        wanted = short_strings.to_numbers(values, self.width)
        if are_few or self.number_table is None:
            places = _index_in(pa.array(wanted), pa.array(self.numbers))
        else:
            places = self.number_table.find(wanted.view(np.int64))
        valid = find_valid_rows(values)
        if valid is None:
            return places
        places_by_row = np.full(len(values), -1, dtype=np.int64)
        places_by_row[valid] = places
        return places_by_row


def _index_in(values: pa.Array, keys: pa.Array) -> np.ndarray:
    """Find the place of each value among the keys, int64; -1 for a value that is not a key, and for null."""
    places = pc.index_in(values, value_set=keys, skip_nulls=True)
    return raw(pc.fill_null(places, -1)).astype(np.int64)


class _HashedStrings:
    """Places of distinct strings by a hash table of 64-bit hashes."""

    def __init__(self, keys: pa.Array) -> None:
        self.keys = keys
        self.colliding_hashes: np.ndarray | None = None
        hashes = _hash64(keys)
        self.hash_table = HashTable(hashes)
        colliding = np.unique(hashes[self.hash_table.repeated])
        if len(colliding):  # the hash table gives one place for all strings of a hash: these are looked up as strings
            self.colliding_hashes = colliding
            self.colliding_places = np.flatnonzero(np.isin(hashes, colliding))
            self.colliding_keys = keys.take(pa.array(self.colliding_places))

    def find_places(self, values: pa.Array) -> np.ndarray:
        """Find the place of each value among the keys, int64; -1 for a value that is not a key."""
        hashes = _hash64(values)
        places = self.hash_table.find(hashes)
        same = pc.equal(self.keys.take(pa.array(np.maximum(places, 0))), values)
        places = np.where(np.asarray(pc.fill_null(same, False)), places, -1)
        if self.colliding_hashes is not None:
            rows = np.flatnonzero(np.isin(hashes, self.colliding_hashes))
            wanted = values.take(pa.array(rows))
            matches = raw(pc.fill_null(pc.index_in(wanted, value_set=self.colliding_keys), -1))
            places[rows] = np.where(matches < 0, -1, self.colliding_places.take(matches, mode="clip"))
        return places


class HashTable:
    """Places of int64 keys by open addressing, with two to four times as many slots (of 4 bytes) as keys.

    Inserts and finds keys in batches, so that temporaries stay in the cache. `repeated` are the places of keys that
    equal a key inserted before; `find` returns one place for equal keys. Read-only once built: any thread may use it.

    Two cases are faster than one probe per wanted key. Where few of many wanted keys are in a large table, a filter of
    few bits per slot, which stays in the cache, sorts out most of the others: that takes half the time. Where the
    wanted keys come in ascending runs, as those of a vocabulary do, the keys of the table within the range of a run are
    looked up in the run instead: that takes a fifth of the time.
    """

    def __init__(self, keys: np.ndarray) -> None:
        self.keys = np.ascontiguousarray(keys)
        bits = max((2 * len(keys)).bit_length(), 4)
        self.shift = np.uint64(64 - bits)
        self.mask = np.int64((1 << bits) - 1)
        width: type = np.int32 if len(keys) < 1 << 31 else np.int64
        self.slots: np.ndarray = np.full(1 << bits, -1, dtype=width)
        repeated = [self._insert(start) for start in range(0, len(keys), BATCH)]
        self.repeated = np.concatenate(repeated) if repeated else np.empty(0, dtype=np.int64)

    def _first_slots(self, keys: np.ndarray, extra_bits: int = 0) -> np.ndarray:
        mixed = keys.view(np.uint64)
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(HASH_MULTIPLIER)
        return (mixed >> (self.shift - np.uint64(extra_bits))).view(np.int64)

    @cached_property
    def _filter(self) -> np.ndarray:
        """2^FILTER_BITS bits per slot, packed: whether the search of a key begins in that part of the slot."""
        bits = np.zeros(len(self.slots) << FILTER_BITS, dtype=bool)
        for start in range(0, len(self.keys), BATCH):
            bits[self._first_slots(self.keys[start : start + BATCH], extra_bits=FILTER_BITS)] = True
        return np.packbits(bits, bitorder="little")

    def _filter_rows(self, wanted: np.ndarray) -> np.ndarray:
        """Return the rows of all wanted keys that are in the table, and of some others, by the filter."""
        rows = []
        for start in range(0, len(wanted), BATCH):
            bits = self._first_slots(wanted[start : start + BATCH], extra_bits=FILTER_BITS)
            passing = (self._filter.take(bits >> 3) >> (bits & 7).astype(np.uint8)) & np.uint8(1)
            rows.append(np.flatnonzero(passing) + start)
        return np.concatenate(rows)

    def _insert(self, start: int) -> np.ndarray:
        keys = self.keys[start : start + BATCH]
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
    def _sorted_keys(self) -> np.ndarray:
        return np.sort(self.keys)

    def find(self, wanted: np.ndarray) -> np.ndarray:
        """Find the place of each of the wanted keys, int64; -1 for a key that is not in the table."""
        if len(wanted) <= FEW_KEYS:
            return np.array([self._find_one(key) for key in wanted.tolist()], dtype=np.int64)
        out = np.full(len(wanted), -1, dtype=np.int64)
        wanted = np.ascontiguousarray(wanted)
        if not len(self.keys):
            return out
        are_enough = len(wanted) >= max(2 * SAMPLE, len(self.keys) // KEYS_PER_WANTED)
        edges = _find_edges_of_runs(wanted) if are_enough else []
        for start, stop in itertools.pairwise(edges):
            self._find_ascending(wanted[start:stop], out[start:stop])
        if not edges:
            self._find_filtered(wanted, out)
        return out

    def _find_one(self, key: int) -> int:
        """Find the place of one key, by the same slots as `_probe`."""
        bits = key & UNSIGNED
        mixed = ((bits ^ (bits >> 32)) * HASH_MULTIPLIER) & UNSIGNED
        slot = mixed >> int(self.shift)
        while (place := self.slots.item(slot)) >= 0:
            if self.keys.item(place) == key:
                return place
            slot = (slot + 1) & int(self.mask)
        return -1

    def _find_ascending(self, wanted: np.ndarray, out: np.ndarray) -> None:
        """Find strictly ascending wanted keys: the table's keys within their range are searched among them.

        That pays only where these keys are less than a third of the wanted ones, since a binary search costs more than
        a probe of the hash table.
        """
        low = np.searchsorted(self._sorted_keys, wanted[0])
        high = np.searchsorted(self._sorted_keys, wanted[-1], "right")
        if 3 * (high - low) > len(wanted):
            self._find_filtered(wanted, out)
            return
        keys = self._sorted_keys[low:high]
        rows = np.searchsorted(wanted, keys)
        same = np.flatnonzero(wanted.take(rows) == keys)
        places = np.full(len(same), -1, dtype=np.int64)
        self._probe(keys.take(same), places)
        out[rows[same]] = places

    def _find_filtered(self, wanted: np.ndarray, out: np.ndarray) -> None:
        """Find wanted keys in any order; if less than a quarter of the first ones are present, filter the others."""
        if len(self.slots) not in FILTERED_SIZES or len(wanted) < 2 * SAMPLE:
            self._probe(wanted, out)
            return
        self._probe(wanted[:SAMPLE], out[:SAMPLE])
        wanted = wanted[SAMPLE:]
        rest = out[SAMPLE:]
        if 4 * np.count_nonzero(out[:SAMPLE] >= 0) > SAMPLE:
            self._probe(wanted, rest)
            return
        rows = self._filter_rows(wanted)
        places = np.full(len(rows), -1, dtype=np.int64)
        self._probe(wanted.take(rows), places)
        rest[rows] = places

    def _probe(self, wanted: np.ndarray, out: np.ndarray) -> None:
        """Write the places of the wanted keys to `out`, which is -1 everywhere."""
        for start in range(0, len(wanted), BATCH):
            keys = wanted[start : start + BATCH]
            rows = np.arange(len(keys))
            slots = self._first_slots(keys)
            batch = out[start : start + len(keys)]
            while len(rows):
                places = self.slots.take(slots)
                occupied = places >= 0
                hit = (self.keys.take(places) == keys) & occupied  # an empty slot, -1, takes the last key
                batch[rows[hit]] = places[hit]
                unresolved = np.flatnonzero(~hit & occupied)  # another key is in the slot: try the next slot
                rows = rows[unresolved]
                keys = keys[unresolved]
                slots = (slots[unresolved] + 1) & self.mask


LOOKUP_CLASSES = (
    Lookup,
    _OneColumn,
    _DenseTable,
    _Strings,
    _HashedStrings,
    HashTable,
)  # arrays, numbers, and one another


def _find_edges_of_runs(keys: np.ndarray) -> list[int]:
    """Find where each ascending run of distinct keys begins, and the end of the last; [] if the runs are short."""
    if _are_runs_short(_find_falls(keys[:SAMPLE]), SAMPLE):  # a cheap look refuses most keys
        return []
    falls = _find_falls(keys)
    return [] if _are_runs_short(falls, len(keys)) else [0, *(falls + 1).tolist(), len(keys)]


def _find_falls(keys: np.ndarray) -> np.ndarray:
    return np.flatnonzero(keys[1:] <= keys[:-1])


def _are_runs_short(falls: np.ndarray, count: int) -> bool:
    return len(falls) * MIN_RUN > count


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
