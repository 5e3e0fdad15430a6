"""Sums of floats that are the same bits every time: a fixed tree for each segment, no atomics."""

from __future__ import annotations

from collections.abc import Sequence

import cupy
import numpy as np

THREADS = 128
WIDE = 512  # threads that share a run in `block_moments`

_SOURCE = f"""
extern "C" __global__ void segment_sums(const double* values, const long long* offsets, double* sums) {{
    __shared__ double part[{THREADS}];
    const long long segment = blockIdx.x, stop = offsets[segment + 1];
    double sum = 0.0;
    for (long long i = offsets[segment] + threadIdx.x; i < stop; i += {THREADS}) sum += values[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = {THREADS} / 2; half > 0; half /= 2) {{
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }}
    if (threadIdx.x == 0) sums[segment] = part[0];
}}
"""


def segment_sums(values: cupy.ndarray, counts: cupy.ndarray) -> cupy.ndarray:
    """The sum of each run of `counts` values; a run is added by 128 strided sums, joined pairwise."""
    sums = cupy.zeros(len(counts), dtype=cupy.float64)
    if len(counts):
        offsets = cupy.zeros(len(counts) + 1, dtype=cupy.int64)
        cupy.cumsum(counts, out=offsets[1:])
        kernel = cupy.RawKernel(_SOURCE, "segment_sums")
        kernel((len(counts),), (THREADS,), (cupy.ascontiguousarray(values), offsets, sums))
    return sums


_MOMENTS = f"""
__device__ double joined(double* part, double value, int what) {{
    part[threadIdx.x] = value;
    __syncthreads();
    for (int half = {WIDE} / 2; half > 0; half /= 2) {{
        if (threadIdx.x < half) {{
            double a = part[threadIdx.x], b = part[threadIdx.x + half];
            part[threadIdx.x] = what == 0 ? a + b : what == 1 ? fmin(a, b) : fmax(a, b);
        }}
        __syncthreads();
    }}
    double all = part[0];
    __syncthreads();
    return all;
}}

extern "C" __global__ void block_moments(const double* values, const bool* valid, const long long* starts,
                                         double* out) {{
    __shared__ double part[{WIDE}];
    const long long first = starts[blockIdx.x] + threadIdx.x, stop = starts[blockIdx.x + 1];
    double count = 0.0, sum = 0.0, low = 1.0 / 0.0, high = -1.0 / 0.0;
    for (long long i = first; i < stop; i += {WIDE}) if (!valid || valid[i]) {{
        const double x = values[i];
        count += 1.0; sum += x; low = fmin(low, x); high = fmax(high, x);
    }}
    count = joined(part, count, 0);
    const double mean = count > 0 ? joined(part, sum, 0) / count : 0.0;
    double shift = 0.0, squares = 0.0;
    for (long long i = first; i < stop; i += {WIDE}) if (!valid || valid[i]) {{
        const double d = values[i] - mean;
        shift += d; squares = __dadd_rn(squares, __dmul_rn(d, d));
    }}
    shift = joined(part, shift, 0);
    squares = joined(part, squares, 0);
    low = joined(part, low, 1);
    high = joined(part, high, 2);
    if (threadIdx.x == 0) {{
        double* row = out + 6 * blockIdx.x;
        row[0] = count; row[1] = mean; row[2] = shift; row[3] = squares; row[4] = low; row[5] = high;
    }}
}}
"""


def block_moments(values: cupy.ndarray, valid: cupy.ndarray | None, starts: Sequence[int]) -> np.ndarray:
    """Per run of values: count, mean, sum and sum of squares of the deviations from it, least and greatest; on the
    host."""
    out = cupy.zeros((len(starts) - 1, 6), dtype=cupy.float64)
    if len(out):
        kernel = cupy.RawKernel(_MOMENTS, "block_moments")
        offsets = cupy.asarray(np.asarray(starts, dtype=np.int64))
        mask = cupy.ascontiguousarray(valid) if valid is not None else np.uintp(0)
        kernel((len(out),), (WIDE,), (cupy.ascontiguousarray(values), mask, offsets, out))
    return cupy.asnumpy(out)
