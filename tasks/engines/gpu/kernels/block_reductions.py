"""Sums of floats that are the same bits every time: a fixed tree for each segment, no atomics."""

from __future__ import annotations

from collections.abc import Sequence

import cupy
import numpy as np

THREADS = 128
WIDE = 256  # threads that share a chunk of `block_moments`
CHUNK = 1 << 14  # rows of it, and numbers of a chunk of `row_sums`

_SEGMENTS = cupy.RawKernel(
    f"""
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
""",
    "segment_sums",
)


def segment_sums(values: cupy.ndarray, counts: cupy.ndarray) -> cupy.ndarray:
    """The sum of each run of `counts` values; a run is added by 128 strided sums, joined pairwise."""
    sums = cupy.zeros(len(counts), dtype=cupy.float64)
    if len(counts):
        offsets = cupy.zeros(len(counts) + 1, dtype=cupy.int64)
        cupy.cumsum(counts, out=offsets[1:])
        _SEGMENTS((len(counts),), (THREADS,), (cupy.ascontiguousarray(values), offsets, sums))
    return sums


def row_sums(matrix: cupy.ndarray) -> cupy.ndarray:
    """The sum of each row of a float64 matrix, as a column: in chunks whose size is fixed, then those of a row.

    CuPy's own sums have other bits with CUB than without, which is a matter of how a process was started.
    """
    rows, width = matrix.shape
    chunks = np.full((rows, max(-(-width // CHUNK), 1)), CHUNK, dtype=np.int64)
    chunks[:, -1] = width - CHUNK * (chunks.shape[1] - 1)
    parts = segment_sums(matrix.ravel(), cupy.asarray(chunks.ravel()))
    return segment_sums(parts, cupy.full(rows, chunks.shape[1], dtype=cupy.int64))[:, None]


_MOMENTS = cupy.RawModule(
    code=f"""
struct Moments {{ double count, mean, squares, low, high; }};

// Two sets of values as one, by Chan, Golub and LeVeque.
__device__ Moments joined(const Moments& a, const Moments& b) {{
    if (!a.count || !b.count) return a.count ? a : b;
    const double count = a.count + b.count, share = b.count / count, delta = b.mean - a.mean;
    return {{count, a.mean + delta * share, a.squares + b.squares + delta * delta * (a.count * share),
            fmin(a.low, b.low), fmax(a.high, b.high)}};
}}

// The sum, the least and the greatest of what the threads hold, for each of them.
__device__ void reduce(double (*part)[{WIDE}], double& sum, double& low, double& high) {{
    const int me = threadIdx.x;
    part[0][me] = sum; part[1][me] = low; part[2][me] = high;
    __syncthreads();
    for (int half = {WIDE} / 2; half > 0; half /= 2) {{
        if (me < half) {{
            part[0][me] += part[0][me + half];
            part[1][me] = fmin(part[1][me], part[1][me + half]);
            part[2][me] = fmax(part[2][me], part[2][me + half]);
        }}
        __syncthreads();
    }}
    sum = part[0][0]; low = part[1][0]; high = part[2][0];
    __syncthreads();
}}

// Each chunk by itself, about its own mean; `wide`: doubles, else floats.
extern "C" __global__ void chunk_moments(const void* values, int wide, const bool* valid, const long long* edges,
                                         Moments* out) {{
    __shared__ double part[3][{WIDE}];
    const long long first = edges[2 * blockIdx.x] + threadIdx.x, stop = edges[2 * blockIdx.x + 1];
    double count = 0.0, sum = 0.0, low = 1.0 / 0.0, high = -1.0 / 0.0, none = 0.0;
    for (long long i = first; i < stop; i += {WIDE}) if (!valid || valid[i]) {{
        const double x = wide ? ((const double*)values)[i] : ((const float*)values)[i];
        count += 1.0; sum += x; low = fmin(low, x); high = fmax(high, x);
    }}
    reduce(part, sum, low, high);
    double all = count;
    reduce(part, all, none, none);
    const double mean = all > 0.0 ? sum / all : 0.0;
    double shift = 0.0, squares = 0.0;
    for (long long i = first; i < stop; i += {WIDE}) if (!valid || valid[i]) {{
        const double d = (wide ? ((const double*)values)[i] : ((const float*)values)[i]) - mean;
        shift += d; squares = __dadd_rn(squares, __dmul_rn(d, d));
    }}
    reduce(part, shift, none, none);
    reduce(part, squares, none, none);
    if (threadIdx.x) return;
    const double rest = all > 0.0 ? shift / all : 0.0;  // what rounding left in the mean
    squares -= all * rest * rest;
    if (squares < 0.0) squares = 0.0;
    if (all > 0.0) out[blockIdx.x] = {{all, mean + rest, squares, low, high}};
    else out[blockIdx.x] = {{0.0, 0.0, 0.0, 0.0, 0.0}};
}}

// The chunks of each run: those of a thread one after another, then the threads' pairwise.
extern "C" __global__ void run_moments(const Moments* chunks, const long long* runs, Moments* out) {{
    __shared__ Moments part[{THREADS}];
    const long long first = runs[blockIdx.x], each = (runs[blockIdx.x + 1] - first + {THREADS} - 1) / {THREADS};
    Moments moments = {{0.0, 0.0, 0.0, 0.0, 0.0}};
    const long long mine = first + threadIdx.x * each, stop = min(mine + each, runs[blockIdx.x + 1]);
    for (long long i = mine; i < stop; i++) moments = joined(moments, chunks[i]);
    part[threadIdx.x] = moments;
    __syncthreads();
    for (int half = 1; half < {THREADS}; half *= 2) {{
        if (threadIdx.x % (2 * half) == 0) part[threadIdx.x] = joined(part[threadIdx.x], part[threadIdx.x + half]);
        __syncthreads();
    }}
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}}
"""
)


def block_moments(values: cupy.ndarray, valid: cupy.ndarray | None, starts: Sequence[int]) -> np.ndarray:
    """Per run [starts[i], starts[i + 1]) of floats: count, mean, sum of squared deviations, least and greatest; zeros
    without values. On the host.

    A run is cut into chunks that begin where it begins, so that it has the same bits in whatever array it stands.
    """
    edges = np.asarray(starts, dtype=np.int64)
    chunks = (edges[1:] - edges[:-1] + CHUNK - 1) // CHUNK
    runs = np.concatenate([[0], np.cumsum(chunks)])
    if not runs[-1]:
        return np.zeros((len(chunks), 5))
    firsts = np.repeat(edges[:-1] - CHUNK * runs[:-1], chunks) + CHUNK * np.arange(runs[-1])
    bounds = np.stack([firsts, np.minimum(firsts + CHUNK, np.repeat(edges[1:], chunks))], axis=1)
    parts = cupy.empty((len(bounds), 5))
    out = cupy.empty((len(chunks), 5))
    mask = cupy.ascontiguousarray(valid) if valid is not None else np.uintp(0)
    data = cupy.ascontiguousarray(values)
    wide = np.int32(values.dtype.itemsize == 8)
    _MOMENTS.get_function("chunk_moments")((len(parts),), (WIDE,), (data, wide, mask, cupy.asarray(bounds), parts))
    _MOMENTS.get_function("run_moments")((len(out),), (THREADS,), (parts, cupy.asarray(runs), out))
    return cupy.asnumpy(out)
