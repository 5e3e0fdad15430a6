"""Hash tables that count strings and look them up, on the GPU (open addressing; strings are equal if their bytes are).

cuDF's group-by compares strings of few distinct values slowly (90 ms for 26 million rows on an H200, these kernels
2 ms). A slot has the number of a row with the slot's string, -1 where it is free.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cupy
import numpy as np
import pylibcudf as plc

from tasks.engines.gpu.kernels.column_arrays import Column, array_of, device

SHARED = 1 << 12  # slots whose counts fit into the memory that the threads of a block share
SIZES = (SHARED, 1 << 22)  # of the tables that are tried for counting
PROBES = 64  # that a value may need before a table counts as too small
THREADS = 256
BLOCKS = 1056
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

// Where a row's string begins; libcudf numbers the bytes of large columns with 64 bits, of others with 32.
__device__ long long begin(const void* offsets, int wide, long long row) {
    return wide ? ((const long long*)offsets)[row] : (long long)((const int*)offsets)[row];
}

__device__ bool is_null(const unsigned int* mask, long long first, long long row) {
    const long long bit = first + row;
    return mask && !(mask[bit / 32] >> (bit % 32) & 1);
}

// Puts every row's string into the table once, and counts the rows of each slot unless `counts` is null. The rows of a
// warp in one slot are counted together: else most threads would wait for the counter of a frequent value.
extern "C" __global__ void insert(const void* offsets, int wide, const byte* chars, const unsigned int* mask,
                                  long long first, long long rows, int* slots, unsigned int size, unsigned int probes,
                                  u64* counts, unsigned int* status) {
    extern __shared__ unsigned int local[];
    const bool sharing = size <= SHARED;
    if (sharing) for (unsigned int s = threadIdx.x; s < size; s += blockDim.x) local[s] = 0;
    __syncthreads();
    const unsigned int all = 0xffffffffu, lane = threadIdx.x % 32;
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x; row - lane < rows; row += step) {
        if (__any_sync(all, *(volatile unsigned int*)status)) break;
        unsigned int slot = size + lane, tried = 0;  // where there is nothing to count: a slot of its own
        if (row < rows && !is_null(mask, first, row)) {
            const long long start = begin(offsets, wide, row), length = begin(offsets, wide, row + 1) - start;
            const byte* text = chars + start;
            slot = (unsigned int)hash_of(text, length) & (size - 1);
            for (; tried < probes; tried++, slot = (slot + 1) & (size - 1)) {
                int occupant = *(volatile int*)(slots + slot);
                if (occupant < 0) {
                    occupant = atomicCAS(slots + slot, -1, (int)row);
                    if (occupant < 0) occupant = (int)row;
                }
                if (occupant == row) break;
                const long long other = begin(offsets, wide, occupant);
                if (same(text, length, chars + other, begin(offsets, wide, occupant + 1) - other)) break;
            }
            if (tried == probes) { *(volatile unsigned int*)status = 1; slot = size + lane; }
        }
        if (!counts) continue;
        const unsigned int alike = __match_any_sync(all, slot);
        if (slot >= size || lane != __ffs(alike) - 1) continue;
        if (sharing) atomicAdd(local + slot, __popc(alike)); else atomicAdd(counts + slot, (u64)__popc(alike));
    }
    __syncthreads();
    if (sharing && counts)
        for (unsigned int s = threadIdx.x; s < size; s += blockDim.x)
            if (local[s]) atomicAdd(counts + s, (u64)local[s]);
}

// The rows and counts of the slots that are used, one after another; status[1] becomes their number.
extern "C" __global__ void collect(const int* slots, const u64* counts, unsigned int size, int* rows,
                                   long long* distinct_counts, unsigned int* status) {
    const unsigned int slot = blockIdx.x * blockDim.x + threadIdx.x;
    if (slot >= size || slots[slot] < 0) return;
    const unsigned int place = atomicAdd(status + 1, 1u);
    rows[place] = slots[slot];
    distinct_counts[place] = (long long)counts[slot];
}

// The row of the table's strings that equals each row, -1 where there is none.
extern "C" __global__ void find(const void* table_offsets, int table_wide, const byte* table_chars, const int* slots,
                                unsigned int size, const void* offsets, int wide, const byte* chars,
                                const unsigned int* mask, long long first, long long rows, long long* places) {
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += step) {
        int place = -1;
        if (!is_null(mask, first, row)) {
            const long long begun = begin(offsets, wide, row), length = begin(offsets, wide, row + 1) - begun;
            const byte* text = chars + begun;
            unsigned int slot = (unsigned int)hash_of(text, length) & (size - 1);
            while ((place = slots[slot]) >= 0) {
                const long long start = begin(table_offsets, table_wide, place);
                if (same(text, length, table_chars + start, begin(table_offsets, table_wide, place + 1) - start)) break;
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
    mask: np.uint64  # or NOTHING where no row is null
    first: int  # the bit of the mask that is the first row's

    @classmethod
    def of(cls, values: Column) -> _Strings:
        column = device(values)
        first = column.offset()
        rows = column.size()
        mask = column.null_mask() if column.null_count() else None
        offsets = array_of(column.child(0))[first : first + rows + 1]
        return cls(column, offsets, _pointer(column.data()), _pointer(mask), first)

    @property
    def texts(self) -> tuple[Any, ...]:
        return self.offsets, np.int32(self.offsets.dtype.itemsize == 8), self.chars

    @property
    def arguments(self) -> tuple[Any, ...]:
        return *self.texts, self.mask, np.int64(self.first), np.int64(len(self.offsets) - 1)


def _pointer(buffer: plc.gpumemoryview | None) -> np.uint64:
    return NOTHING if buffer is None else np.uint64(buffer.ptr)


def is_text(values: Column) -> bool:
    return device(values).type().id() == plc.TypeId.STRING


def count_strings(values: Column) -> tuple[cupy.ndarray, cupy.ndarray] | None:
    """(a row of each distinct string, in no certain order, null last as the number behind the last row; their counts,
    int64); None if there are too many. `values` have a row at least."""
    strings = _Strings.of(values)
    nulls = values.null_count
    for size in SIZES:
        slots = cupy.full(size, -1, dtype=cupy.int32)
        counts = cupy.zeros(size, dtype=cupy.uint64)
        rows = cupy.empty(size + 1, cupy.int32)
        distinct_counts = cupy.empty(size + 1, cupy.int64)
        status = _insert(strings, slots, counts, PROBES)
        KERNELS.get_function("collect")(
            (-(-size // THREADS),), (THREADS,), (slots, counts, np.uint32(size), rows, distinct_counts, status)
        )
        full, distinct = cupy.asnumpy(status).tolist()
        if full:
            continue
        if nulls:
            rows[distinct], distinct_counts[distinct] = len(values), nulls  # behind the last row: null
        distinct += bool(nulls)
        return rows[:distinct], distinct_counts[:distinct].copy()
    return None


def _insert(strings: _Strings, slots: cupy.ndarray, counts: object, probes: int) -> cupy.ndarray:
    """Fill a table. Returns two uint32: the first is 1 if the table is too small, `collect` uses the second."""
    status = cupy.zeros(2, dtype=cupy.uint32)
    size = len(slots)
    shared = 4 * size if size <= SHARED else 0
    blocks = min(BLOCKS, -(-(len(strings.offsets) - 1) // THREADS))
    arguments = (*strings.arguments, slots, np.uint32(size), np.uint32(probes), counts, status)
    KERNELS.get_function("insert")((blocks,), (THREADS,), arguments, shared_mem=shared)
    return status


class StringPlaces:
    """Finds the places of strings among distinct strings without nulls. Built once, then used from any thread."""

    def __init__(self, keys: Column) -> None:
        self.strings = _Strings.of(keys) if len(keys) else None
        if self.strings:
            self.slots = cupy.full(1 << max(4, (2 * len(keys) - 1).bit_length()), -1, dtype=cupy.int32)
            _insert(self.strings, self.slots, NOTHING, len(self.slots))

    def of(self, values: Column) -> cupy.ndarray:
        """int64 place of each string, -1 for others and for null."""
        places = cupy.full(len(values), -1, dtype=cupy.int64)
        if self.strings and len(values):
            distinct = self.strings
            strings = _Strings.of(values)
            table = (*distinct.texts, self.slots, np.uint32(len(self.slots)))
            blocks = min(BLOCKS, -(-len(values) // THREADS))
            KERNELS.get_function("find")((blocks,), (THREADS,), (*table, *strings.arguments, places))
        return places
