"""How often small numbers occur, on the GPU: without CuPy's looks at the whole array before it counts."""

from __future__ import annotations

import cupy
import numpy as np

SHARED = 1 << 13  # counters that fit into the memory that the threads of a block share
THREADS = 256
BLOCKS = 528

_KERNEL = cupy.RawKernel(
    r"""
typedef unsigned long long u64;

extern "C" __global__ void histogram(const long long* numbers, long long rows, unsigned int shared, u64* counts) {
    extern __shared__ unsigned int local[];
    for (unsigned int i = threadIdx.x; i < shared; i += blockDim.x) local[i] = 0;
    __syncthreads();
    const unsigned int all = 0xffffffffu, lane = threadIdx.x % 32;
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x; row - lane < rows; row += step) {
        const long long number = row < rows ? numbers[row] : -1;
        const unsigned int alike = __match_any_sync(all, number);  // of a warp, counted together
        if (number < 0 || lane != __ffs(alike) - 1) continue;
        if (shared) atomicAdd(local + number, __popc(alike)); else atomicAdd(counts + number, (u64)__popc(alike));
    }
    __syncthreads();
    for (unsigned int i = threadIdx.x; i < shared; i += blockDim.x)
        if (local[i]) atomicAdd(counts + i, (u64)local[i]);
}
""",
    "histogram",
)


def histogram(numbers: cupy.ndarray, size: int) -> cupy.ndarray:
    """How often each of 0 .. size - 1 occurs among the numbers, which are all of that range; int64."""
    counts = cupy.zeros(size, dtype=cupy.uint64)
    if len(numbers):
        numbers = cupy.ascontiguousarray(numbers.astype(cupy.int64, copy=False))
        shared = size if size <= SHARED else 0
        blocks = min(BLOCKS, -(-len(numbers) // THREADS))
        arguments = (numbers, np.int64(len(numbers)), np.uint32(shared), counts)
        _KERNEL((blocks,), (THREADS,), arguments, shared_mem=4 * shared)
    return counts.view(cupy.int64)
