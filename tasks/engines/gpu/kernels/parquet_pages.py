"""Kernels that put the pages of a Parquet file together: a block of threads for each page, of all columns at once.

Every kernel takes a matrix of whole numbers, with a row for each property of pages and a column for each page. Its
first rows are the address of the values, their kind, the first value of the page, and how many it has. Values are
without nulls.
"""

from __future__ import annotations

import cupy
import numpy as np

from tasks.engines.convert.encodings import DELTA_BLOCK, DELTA_MINIBLOCK

THREADS = 512
KINDS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")  # of the values, numbered in this order

_SOURCE = r"""
typedef unsigned char u8;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#define PAGE blockIdx.x
#define PAGES gridDim.x
#define PROPERTY(number) pages[(number) * (i64)PAGES + PAGE]
#define VALUES ((const void*)PROPERTY(0))
#define KIND ((int)PROPERTY(1))
#define FIRST PROPERTY(2)
#define COUNT PROPERTY(3)
#define EACH(index, count) for (i64 index = threadIdx.x; index < (count); index += blockDim.x)

// The bits of a value; whole numbers of less than 64 bits keep their sign.
__device__ i64 load(const void* values, int kind, i64 at) {
    switch (kind) {
        case 0: return ((const signed char*)values)[at];
        case 1: return ((const short*)values)[at];
        case 2: return ((const int*)values)[at];
        case 4: return ((const unsigned char*)values)[at];
        case 5: return ((const unsigned short*)values)[at];
        case 6: case 8: return ((const u32*)values)[at];
        default: return ((const i64*)values)[at];
    }
}

// A number whose order is that of the values; false for NaN.
__device__ bool rank_of(i64 bits, int kind, i64* rank) {
    if (kind == 7) bits ^= 1ll << 63;
    if (kind == 8) {
        if ((bits & 0x7fffffff) > 0x7f800000) return false;
        bits = bits >> 31 ? -(bits & 0x7fffffff) - 1 : bits;
    }
    if (kind == 9) {
        if ((bits & 0x7fffffffffffffffll) > 0x7ff0000000000000ll) return false;
        bits = bits < 0 ? bits ^ 0x7fffffffffffffffll : bits;
    }
    *rank = bits;
    return true;
}

// 4: the place among the results. The least and the greatest rank of the pages that have the same place.
extern "C" __global__ void find_extremes(const i64* pages, i64* low, i64* high) {
    i64 least = 0x7fffffffffffffffll, greatest = -0x7fffffffffffffffll - 1, rank;
    const void* values = VALUES;
    const int kind = KIND;
    const i64 first = FIRST, count = COUNT, place = PROPERTY(4);
    EACH(i, count) if (rank_of(load(values, kind, first + i), kind, &rank)) {
        least = min(least, rank);
        greatest = max(greatest, rank);
    }
    if (least > greatest) return;
    atomicMin(low + place, least);
    atomicMax(high + place, greatest);
}

// 4: where the values go to, 5: bytes of a value, 4 or 8.
extern "C" __global__ void write_plain(const i64* pages, u8* out) {
    const void* values = VALUES;
    const int kind = KIND, width = (int)PROPERTY(5);
    const i64 first = FIRST, count = COUNT;
    u8* target = out + PROPERTY(4);
    const bool aligned = (u64)target % width == 0;
    EACH(i, count) {
        const i64 bits = load(values, kind, first + i);
        if (aligned && width == 4) ((u32*)target)[i] = (u32)bits;
        else if (aligned) ((i64*)target)[i] = bits;
        else for (int b = 0; b < width; b++) target[i * width + b] = (u8)(bits >> 8 * b);
    }
}

// 4: where the numbers go to, 5: bytes of a number, 6: the first one. Numbers one after another, for dictionaries.
extern "C" __global__ void write_range(const i64* pages, u8* out) {
    const int width = (int)PROPERTY(5);
    const i64 count = COUNT, low = PROPERTY(6);
    u8* target = out + PROPERTY(4);
    EACH(i, count) for (int b = 0; b < width; b++) target[i * width + b] = (u8)((u64)(low + i) >> 8 * b);
}

// 4: where the numbers go to, 5: what is subtracted from each, 6: bits of a number. In eights, the last filled with 0.
extern "C" __global__ void write_packed(const i64* pages, u8* out) {
    const void* values = VALUES;
    const int kind = KIND, bits = (int)PROPERTY(6);
    const i64 first = FIRST, count = COUNT, start = PROPERTY(4), low = PROPERTY(5);
    EACH(eight, (count + 7) / 8) {
        u8* target = out + start + eight * bits;
        u64 waiting = 0;
        int held = 0;
        for (i64 i = 8 * eight; i < 8 * eight + 8; i++) {
            if (i < count) waiting |= (u64)(load(values, kind, first + i) - low) << held;
            for (held += bits; held >= 8; held -= 8) {
                *target++ = (u8)waiting;
                waiting >>= 8;
            }
        }
    }
}

__device__ u64 zigzag(i64 number) { return ((u64)number << 1) ^ (u64)(number >> 63); }

__device__ int number_bytes(u64 number) {
    int count = 1;
    while (number >>= 7) count++;
    return count;
}

__device__ u8* write_number(u8* target, u64 number) {
    for (; number > 127; number >>= 7) *target++ = (u8)(number | 128);
    *target++ = (u8)number;
    return target;
}

// The first value as Parquet's type has it, which is signed.
__device__ i64 load_signed(const void* values, int kind, i64 at) {
    const i64 bits = load(values, kind, at);
    return kind == 6 ? (i64)(int)bits : bits;
}

__device__ int head_bytes(i64 first, i64 count) {
    return number_bytes(BLOCK) + number_bytes(BLOCK / MINIBLOCK) + number_bytes(count) + number_bytes(zigzag(first));
}

// 4: the number of the first block of the page. The least delta of each block, the bits of its miniblocks, its bytes.
extern "C" __global__ void measure_deltas(const i64* pages, i64* least, u8* widths, i64* sizes, i64* heads) {
    const void* values = VALUES;
    const int kind = KIND;
    const i64 first = FIRST, count = COUNT, start = PROPERTY(4);
    if (threadIdx.x == 0) heads[PAGE] = head_bytes(count ? load_signed(values, kind, first) : 0, count);
    EACH(block, (count - 1 + BLOCK - 1) / BLOCK) {
        const i64 from = block * BLOCK + 1, to = min(from + BLOCK, count);
        i64 low = 0x7fffffffffffffffll;
        i64 before = load(values, kind, first + from - 1);
        for (i64 i = from; i < to; i++) {
            const i64 value = load(values, kind, first + i);
            low = min(low, value - before);
            before = value;
        }
        int nbytes = number_bytes(zigzag(low)) + BLOCK / MINIBLOCK;
        before = load(values, kind, first + from - 1);
        for (int part = 0; part < BLOCK / MINIBLOCK; part++) {
            u64 all = 0;
            for (i64 i = from + part * MINIBLOCK; i < min(from + (part + 1) * MINIBLOCK, to); i++) {
                const i64 value = load(values, kind, first + i);
                all |= (u64)(value - before - low);
                before = value;
            }
            int bits = 0;
            for (; all; all >>= 1) bits++;
            widths[(start + block) * (BLOCK / MINIBLOCK) + part] = (u8)bits;
            nbytes += bits * (MINIBLOCK / 8);
        }
        least[start + block] = low;
        sizes[start + block] = nbytes;
    }
}

// 4: the number of the first block of the page, 5: where the page goes to. `ends`: running sums of the blocks' bytes.
extern "C" __global__ void write_deltas(const i64* pages, const i64* least, const u8* widths, const i64* sizes,
                                        const i64* ends, u8* out) {
    const void* values = VALUES;
    const int kind = KIND;
    const i64 first = FIRST, count = COUNT, start = PROPERTY(4);
    if (!count) {  // a page of nulls alone has the head of no values
        if (threadIdx.x == 0) {
            u8* head = write_number(out + PROPERTY(5), BLOCK);
            write_number(write_number(write_number(head, BLOCK / MINIBLOCK), 0), 0);
        }
        return;
    }
    const i64 value = load_signed(values, kind, first);
    u8* target = out + PROPERTY(5);
    if (threadIdx.x == 0) {
        u8* head = write_number(write_number(target, BLOCK), BLOCK / MINIBLOCK);
        write_number(write_number(head, count), zigzag(value));
    }
    target += head_bytes(value, count);
    const i64 before_page = start ? ends[start - 1] : 0;
    const i64 parts = (count - 1 + BLOCK - 1) / BLOCK * (BLOCK / MINIBLOCK);
    EACH(part, parts) {
        const i64 block = part / (BLOCK / MINIBLOCK);
        const int inner = (int)(part % (BLOCK / MINIBLOCK));
        const u8* bits_of = widths + (start + block) * (BLOCK / MINIBLOCK);
        const i64 low = least[start + block];
        u8* place = target + ends[start + block] - sizes[start + block] - before_page;
        if (inner == 0) {
            u8* head = write_number(place, zigzag(low));
            for (int i = 0; i < BLOCK / MINIBLOCK; i++) *head++ = bits_of[i];
        }
        place += number_bytes(zigzag(low)) + BLOCK / MINIBLOCK;
        for (int i = 0; i < inner; i++) place += bits_of[i] * (MINIBLOCK / 8);
        const int bits = bits_of[inner];
        if (!bits) continue;
        const i64 from = block * BLOCK + 1 + inner * MINIBLOCK;
        u64 waiting = 0;
        int held = 0;
        i64 before = load(values, kind, first + from - 1);
        for (i64 i = from; i < from + MINIBLOCK; i++) {
            if (i < count) {
                const i64 now = load(values, kind, first + i);
                waiting |= (u64)(now - before - low) << held;
                before = now;
            }
            for (held += bits; held >= 8; held -= 8) {
                *place++ = (u8)waiting;
                waiting >>= 8;
            }
        }
    }
}

// 4: where the bytes go to. Bytes as they are.
extern "C" __global__ void write_bytes(const i64* pages, u8* out) {
    const u8* bytes = (const u8*)VALUES;
    const i64 first = FIRST, count = COUNT, start = PROPERTY(4);
    EACH(i, count) out[start + i] = bytes[first + i];
}
"""

_KERNELS = cupy.RawModule(code=f"#define BLOCK {DELTA_BLOCK}\n#define MINIBLOCK {DELTA_MINIBLOCK}\n{_SOURCE}")


def run_kernel(name: str, pages: np.ndarray, *arguments: cupy.ndarray) -> None:
    """Run a kernel for pages with these properties, a row for each; `arguments` are its other ones."""
    count = pages.shape[1]
    if count:
        _KERNELS.get_function(name)((count,), (THREADS,), (cupy.asarray(pages), *arguments))
