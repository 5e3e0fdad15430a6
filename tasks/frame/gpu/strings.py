"""Strings counted and found by their bytes, on the GPU: tables of rows, by hash with open addressing.

cuDF's group-by compares strings of few distinct values slowly (90 ms for 26 million rows on an H200, these kernels
2 ms). A slot holds the number of a row with the slot's string, -1 where it is free; equal means equal in every byte.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cupy
import numpy as np
import pylibcudf as plc

from tasks.frame.gpu.columns import Column, device, from_pylibcudf, taken, valid_rows

SHARED = 1 << 12  # slots whose counts fit into the memory that the threads of a block share
SIZES = (SHARED, 1 << 22)  # of the tables that are tried for counting
PROBES = 64  # that a value may need before a table counts as too small
THREADS, BLOCKS = 256, 1056
NOTHING = np.uint64(0)  # a pointer to nothing

_SOURCE = """
typedef unsigned long long u64;
typedef unsigned char byte;

__device__ u64 hash_of(const byte* text, long long size) {
    u64 hash = 14695981039346656037ULL;
    for (long long i = 0; i < size; i++) hash = (hash ^ text[i]) * 1099511628211ULL;
    hash ^= hash >> 32;
    hash *= 0x9E3779B97F4A7C15ULL;
    return hash ^ (hash >> 29);
}

__device__ bool same(const byte* a, long long size, const byte* b, long long other) {
    if (size != other) return false;
    for (long long i = 0; i < size; i++) if (a[i] != b[i]) return false;
    return true;
}

// Puts every row's string into the table once, and counts the rows of each slot if `counts` is given.
extern "C" __global__ void insert(const long long* offsets, const byte* chars, const bool* valid, long long rows,
                                  int* slots, unsigned int size, unsigned int probes, u64* counts, int* full) {
    extern __shared__ unsigned int local[];
    const bool sharing = size <= SHARED;
    if (sharing) for (unsigned int s = threadIdx.x; s < size; s += blockDim.x) local[s] = 0;
    __syncthreads();
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += step) {
        if (valid && !valid[row]) continue;
        if (*(volatile int*)full) break;
        const byte* text = chars + offsets[row];
        const long long length = offsets[row + 1] - offsets[row];
        unsigned int slot = (unsigned int)hash_of(text, length) & (size - 1), tried = 0;
        for (; tried < probes; tried++, slot = (slot + 1) & (size - 1)) {
            int held = *(volatile int*)(slots + slot);
            if (held < 0) {
                held = atomicCAS(slots + slot, -1, (int)row);
                if (held < 0) held = (int)row;
            }
            if (held == row || same(text, length, chars + offsets[held], offsets[held + 1] - offsets[held])) break;
        }
        if (tried == probes) { *(volatile int*)full = 1; break; }
        if (!counts) continue;
        if (sharing) atomicAdd(local + slot, 1u); else atomicAdd(counts + slot, 1ULL);
    }
    __syncthreads();
    if (sharing && counts)
        for (unsigned int s = threadIdx.x; s < size; s += blockDim.x)
            if (local[s]) atomicAdd(counts + s, (u64)local[s]);
}

// The row of the table's strings that equals each row, -1 where there is none.
extern "C" __global__ void find(const long long* held_offsets, const byte* held_chars, const int* slots,
                                unsigned int size, const long long* offsets, const byte* chars, const bool* valid,
                                long long rows, long long* places) {
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += step) {
        int place = -1;
        if (!valid || valid[row]) {
            const byte* text = chars + offsets[row];
            const long long length = offsets[row + 1] - offsets[row];
            unsigned int slot = (unsigned int)hash_of(text, length) & (size - 1);
            while ((place = slots[slot]) >= 0) {
                const long long start = held_offsets[place];
                if (same(text, length, held_chars + start, held_offsets[place + 1] - start)) break;
                slot = (slot + 1) & (size - 1);
            }
        }
        places[row] = place;
    }
}
"""
KERNELS = cupy.RawModule(code=f"#define SHARED {SHARED}\n{_SOURCE}")


class _Strings(NamedTuple):
    """The buffers of a column of strings; `column` keeps them alive."""

    column: Any
    offsets: cupy.ndarray
    chars: np.uint64
    valid: Any  # a bool array, or NOTHING where no row is null

    @classmethod
    def of(cls, values: Column) -> _Strings:
        found = device(values)
        start, rows = found.offset(), found.size()
        offsets = from_pylibcudf(found.child(0)).values[start : start + rows + 1].astype(cupy.int64, copy=False)
        chars, valid = found.data(), valid_rows(values)
        return cls(found, offsets, np.uint64(chars.ptr if chars else 0), NOTHING if valid is None else valid)

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self.offsets, self.chars, self.valid, np.int64(len(self.offsets) - 1)


def is_text(values: Column) -> bool:
    return device(values).type().id() == plc.TypeId.STRING


def count_strings(values: Column) -> tuple[Column, cupy.ndarray] | None:
    """(the distinct strings in no certain order, null last; their counts, int64); None if there are too many."""
    if not len(values):
        return values, cupy.zeros(0, dtype=cupy.int64)
    strings = _Strings.of(values)
    for size in SIZES:
        slots, counts = cupy.full(size, -1, dtype=cupy.int32), cupy.zeros(size, dtype=cupy.uint64)
        if not _insert(strings, slots, counts, PROBES):
            continue
        used = cupy.flatnonzero(slots >= 0)
        rows, counts = slots[used].astype(cupy.int32), counts[used].astype(cupy.int64)
        if values.null_count:
            rows = cupy.append(rows, cupy.asarray([len(values)], dtype=cupy.int32))  # behind the last row: null
            counts = cupy.append(counts, cupy.asarray([values.null_count], dtype=cupy.int64))
        return taken(values, rows, nullify=True), counts
    return None


def _insert(strings: _Strings, slots: cupy.ndarray, counts: Any, probes: int) -> bool:
    """Fill a table; False if it is too small."""
    full, size = cupy.zeros(1, dtype=cupy.int32), len(slots)
    shared = 4 * size if size <= SHARED else 0
    blocks = min(BLOCKS, -(-(len(strings.offsets) - 1) // THREADS))
    arguments = (*strings.arguments, slots, np.uint32(size), np.uint32(probes), counts, full)
    KERNELS.get_function("insert")((blocks,), (THREADS,), arguments, shared_mem=shared)
    return not int(full[0])


class StringPlaces:
    """From strings to their place among distinct strings without nulls. Made once, then used from any thread."""

    def __init__(self, keys: Column) -> None:
        self.strings = _Strings.of(keys) if len(keys) else None
        if self.strings:
            self.slots = cupy.full(1 << max(4, (2 * len(keys) - 1).bit_length()), -1, dtype=cupy.int32)
            _insert(self.strings, self.slots, NOTHING, len(self.slots))

    def of(self, values: Column) -> cupy.ndarray:
        """int64 place of each string, -1 for others and for null."""
        places = cupy.full(len(values), -1, dtype=cupy.int64)
        if self.strings and len(values):
            held, strings = self.strings, _Strings.of(values)
            table = (held.offsets, held.chars, self.slots, np.uint32(len(self.slots)))
            blocks = min(BLOCKS, -(-len(values) // THREADS))
            KERNELS.get_function("find")((blocks,), (THREADS,), (*table, *strings.arguments, places))
        return places
