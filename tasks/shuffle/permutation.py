"""Row number -> position: seeded bijections of range(n), elementwise, with the same bits on numpy and CuPy.

Above 65,536 rows: ten rounds of (multiply by an odd key, add a key, keep k bits, xor-shift by k // 2) over the k bits
of n - 1; what lands outside range(n) walks on along its cycle until it is inside, fewer than two passes on average,
which leaves a bijection of range(n). Up to 65,536 rows: a table, the order of n distinct pseudo-random 64-bit keys,
because a few rounds reach only some of the orders of a short range. The idea (a cheap keyed bijection of a power of
two, cut down to n, instead of a gathered order) and the rival, VariablePhilox, are from Mitchell, Stokes, Frank,
Holmes: Bandwidth-Optimal Random Shuffling for GPUs, 2021; keys come from splitmix64 (Steele, Lea, Flood: Fast
Splittable Pseudorandom Number Generators, 2014).

Measured to choose the number of rounds, on n = 65,537, 2^17, 1,000,003, 2^20 and 2^20 + 1, 8 to 12 seeds each, with
numpy's own shuffle beside it. Chi-squares as (chi2 - dof) / sqrt(2 dof), the largest of all seeds and n:

- pairs at lags 1, 2, 3, the powers of two, those plus one, n/2 and n/3, high bits, low bits and differences: 20,045
  with 3 rounds, 1,240 with 4, 7.5 with 5, 4.2 with 6, 4.3 with 10; numpy 4.2
- 10 rounds, numpy: block x file (64 x 32) 2.5, 2.4; triples 2.3, 2.6; correlation with the row 1 to 64 places on,
  times sqrt(n), 3.8, 3.7; every 2nd to 256th row, tables above 3 of 3,500, 8, 9
- position against row mod 2, 3, 4, 5 and 8, 400 seeds of 2^17 + 1 and 100 of 2^20 + 1: chances uniform but for mod 2
  of the latter (p = 0.002, one of ten), which 900 fresh seeds did not confirm (p = 0.89; variance 1.02 of chance's)
- fixed points of 1,500 seeds, five n: mean 0.98 to 1.03, variance 0.96 to 1.05
- over 400,000 seeds, the joint positions of row 0 and of nine others (1, 2, 3, 2^(k-1), ..), k = 17 to 62: 22 with
  3 rounds, 4.1 with 5, 3.2 with 6, 2.7 with 10

From six rounds on nothing tells it from a random order; ten leave a margin, for 7 % more time than eight, as memory
sets the pace. One core (AVX-512): 20 M positions in 0.27 to 0.33 s, 31.5 M in 0.21 s (less walking), 2^24 in 0.08 s,
20 M of n = 5e9 in 0.5 s. A 24-round VariablePhilox takes 0.67 s for one pass over 2^24: it needs 64-bit products where
these rounds need 32. A table of 65,536 takes 3.7 ms, so blocks of just that size are the slow ones of `partition`:
1.1 s for 20 M rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np

from tasks.engines.algorithms.reductions import any_true

LARGEST_TABLE = 65_536
LARGEST_RANGE = 2**62
ROUNDS = 10

Array = Any  # one-dimensional, of numpy or of CuPy, as `xp` says
Mode = Callable[[Array, "BlockLayout", int, Any], Array]

_ALL_64 = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_BLOCK = 1 << 16  # rows whose temporaries stay in a core's cache
_CHUNK = 1 << 19  # rows that walk together: enough for the last few to cost little, few enough to stay near the core
_BLOCK_ORDER, _BLOCK_ROWS, _GROUP_ROWS = range(3)  # what a derived key is for


@dataclass(frozen=True, eq=False)
class BlockLayout:
    """What a mode must know of the source: rows, the first row number of each block (ascending, from 0), groups."""

    rows: int
    block_starts: Sequence[int] | np.ndarray
    groups: int = 1


def permute(index: Array, n: int, seed: int, xp: ModuleType = np) -> Array:
    """Compute the position of each row of `index` in a seeded random order of range(n).

    index: integers with 0 <= index < n (not checked), in any order and with repeats. Out: uint64, as long as index.
    n: 0 to 2^62. seed: any Python int. The result depends on (index, n, seed, PERMUTATION_VERSION) and on nothing else.

    >>> permute(np.arange(10), 10, seed=1).tolist()
    [5, 2, 7, 4, 9, 3, 0, 8, 6, 1]

    Errors: ValueError for n outside 0 to 2^62.
    """
    return _permute(xp.asarray(index), n, _derive_key(seed), xp)


def none(order_number: Array, layout: BlockLayout, seed: int, xp: ModuleType = np) -> Array:
    """Bias: all of it, the order stays as it is. Cost: the least, a file reads from neighbouring partitions."""
    return xp.asarray(order_number).astype(np.uint64)


def partition(order_number: Array, layout: BlockLayout, seed: int, xp: ModuleType = np) -> Array:
    """Bias: rows of a block stay together, so a file has rows of few blocks. Cost: a file reads from few partitions.

    A seeded bijection inside each block, the blocks in seeded order.
    """
    starts, rows = _number_blocks(layout)
    placed = _compute_block_starts(rows, seed)
    ranges = _Ranges(_derive_key(seed, _BLOCK_ROWS), np.arange(len(rows)), rows, -starts, placed)
    return _inside_ranges(order_number, starts, ranges, xp)


def worker(order_number: Array, layout: BlockLayout, seed: int, xp: ModuleType = np) -> Array:
    """Bias: a group of blocks shares 1/groups of the files. Cost: a file reads from the partitions of its group.

    The blocks in seeded order are cut into `groups` runs of equally many blocks (run g of G holds places g*B//G to
    (g+1)*B//G of the B); the rows of a run get a seeded bijection. With one group the bias is that of `full`.
    """
    starts, rows = _number_blocks(layout)
    placed = _compute_block_starts(rows, seed)
    places = _block_places(len(rows), seed)
    edges = range_edges(len(rows), layout.groups)
    bounds = np.append(np.sort(placed), layout.rows)[edges]  # the first position of each run of blocks
    runs = np.searchsorted(edges, places, side="right") - 1
    bases = bounds[runs]
    ranges = _Ranges(_derive_key(seed, _GROUP_ROWS), runs, np.diff(bounds)[runs], placed - starts - bases, bases)
    return _inside_ranges(order_number, starts, ranges, xp)


def full(order_number: Array, layout: BlockLayout, seed: int, xp: ModuleType = np) -> Array:
    """Bias: none that a test has found, every row may land anywhere. Cost: every file reads from every partition.

    A seeded bijection of the whole range.
    """
    return permute(order_number, layout.rows, seed, xp)


MODES: Mapping[str, Mode] = MappingProxyType({"none": none, "partition": partition, "worker": worker, "full": full})


def range_edges(rows: int, ranges: int) -> np.ndarray:
    """Compute the `ranges` + 1 edges of equal ranges of position, int64: edge j is exactly j * rows // ranges.

    Rows to 2^62, ranges 1 to 2^31.

    >>> range_edges(10, 4).tolist()
    [0, 2, 5, 7, 10]
    """
    whole, rest = divmod(rows, ranges)
    j = np.arange(ranges + 1, dtype=np.int64)
    return j * whole + j * rest // ranges  # j * rows itself may need more than 64 bits


def file_ranks(rows_left: int, files: int) -> list[tuple[int, int]]:
    """Compute the ranks [low, high) of each file: equal to one row, whatever operators dropped or multiplied.

    >>> file_ranks(10, 3)
    [(0, 3), (3, 6), (6, 10)]
    """
    return [(f * rows_left // files, (f + 1) * rows_left // files) for f in range(files)]


@dataclass(frozen=True, eq=False)
class _Ranges:
    """Where the rows of each block go: row + shift numbers them in a range of so many rows from position base on.

    Each range is permuted by a key of its own, made of `key` and the range's number. One int64 per block.
    """

    key: int
    numbers: np.ndarray
    rows: np.ndarray
    shifts: np.ndarray
    bases: np.ndarray

    def positions(self, block: int, rows: Array, xp: ModuleType) -> Array:
        """Compute the positions of these rows (uint64) of a block."""
        local = rows + np.uint64(int(self.shifts[block]) & _ALL_64)  # a negative shift wraps around
        inside = _permute(local, int(self.rows[block]), _join(self.key, int(self.numbers[block])), xp)
        return inside + np.uint64(self.bases[block])


def _number_blocks(layout: BlockLayout) -> tuple[np.ndarray, np.ndarray]:
    """First row number and number of rows of each block, int64."""
    starts = np.asarray(layout.block_starts, dtype=np.int64)
    return starts, np.diff(starts, append=np.int64(layout.rows))


def _block_places(blocks: int, seed: int) -> np.ndarray:
    """Compute the place of each block in the seeded order of blocks."""
    return _permute(np.arange(blocks, dtype=np.int64), blocks, _derive_key(seed, _BLOCK_ORDER), np).astype(np.int64)


def _compute_block_starts(rows: np.ndarray, seed: int) -> np.ndarray:
    """Compute the first position of each block once the blocks are in seeded order."""
    order = np.argsort(_block_places(len(rows), seed))
    starts = np.empty_like(rows)
    starts[order] = np.cumsum(rows[order]) - rows[order]
    return starts


def _inside_ranges(order_number: Array, starts: np.ndarray, ranges: _Ranges, xp: ModuleType) -> Array:
    """Compute positions, one slice for each block that occurs; numbers that do not ascend are sorted first and put
    back."""
    numbers = xp.asarray(order_number).astype(np.uint64, copy=False)
    if not len(numbers):
        return numbers.copy()
    positions = xp.empty_like(numbers)
    if any_true(numbers[1:] < numbers[:-1]):
        order = xp.argsort(numbers)
        positions[order] = _inside_ranges(numbers[order], starts, ranges, xp)
        return positions
    first, last = (int(np.searchsorted(starts, int(numbers[end]), side="right")) - 1 for end in (0, -1))
    cuts = xp.searchsorted(numbers, xp.asarray(starts[first : last + 1].astype(np.uint64))).tolist()
    for block, low, high in zip(range(first, last + 1), cuts, [*cuts[1:], len(numbers)], strict=True):
        if low < high:
            positions[low:high] = ranges.positions(block, numbers[low:high], xp)
    return positions


def _permute(index: Array, n: int, key: int, xp: ModuleType) -> Array:
    """Permute as `permute` does, with a 64-bit key; n goes into the key, so that ranges of other lengths are ordered
    independently."""
    if not 0 <= n <= LARGEST_RANGE:
        raise ValueError(f"a range to permute has 0 to 2^62 rows, not {n}")
    key = _join(key, n)
    if n <= LARGEST_TABLE:
        return xp.asarray(_make_permutation_table(n, key))[index].astype(np.uint64)
    bits = (n - 1).bit_length()
    if xp.__name__ == "cupy":
        mask = np.uint64(2**bits - 1)
        half = np.uint64(bits // 2)
        return _device_kernel(xp)(index, np.uint64(n), mask, half, *map(np.uint64, _derive_round_keys(key, bits)))
    return _permute_on_host(index, n, key)


def _permute_on_host(index: np.ndarray, n: int, key: int) -> np.ndarray:
    """Permute in numpy, chunk by chunk, by rounds and a walk: after each pass only the rows outside range(n) go on."""
    bits = (n - 1).bit_length()
    keys = _derive_round_keys(key, bits)
    last = _choose_word(bits)(n - 1)
    positions = np.empty(len(index), dtype=np.uint64)
    all_of_chunk = np.empty(min(_CHUNK, len(index)), dtype=_choose_word(bits))
    for start in range(0, len(index), _CHUNK):
        chunk = all_of_chunk[: len(index) - start]
        _run_rounds(index[start : start + _CHUNK], chunk, bits, keys)
        outside = np.flatnonzero(chunk > last)
        while len(outside):
            walking = chunk.take(outside)
            _run_rounds(walking, walking, bits, keys)
            chunk[outside] = walking
            outside = outside[walking > last]
        positions[start : start + _CHUNK] = chunk
    return positions


def _choose_word(bits: int) -> type[np.unsignedinteger[Any]]:
    """Choose the narrower of the two integers that hold so many bits: both give the same results."""
    return np.uint32 if bits <= 32 else np.uint64


def _run_rounds(source: np.ndarray, target: np.ndarray, bits: int, keys: Sequence[int]) -> None:
    """Compute all rounds over range(2^bits), block by block, in place."""
    word = _choose_word(bits)
    mask = word(2**bits - 1)
    half = word(bits // 2)
    pairs = [(word(multiplier), word(addend)) for multiplier, addend in zip(keys[::2], keys[1::2], strict=True)]
    x_all, shifted_all = np.empty((2, min(_BLOCK, len(source))), dtype=word)
    for start in range(0, len(source), _BLOCK):
        part = source[start : start + _BLOCK]
        x = x_all[: len(part)]
        shifted = shifted_all[: len(part)]
        np.copyto(x, part, casting="unsafe")
        for multiplier, addend in pairs:
            np.multiply(x, multiplier, out=x)
            np.add(x, addend, out=x)
            np.bitwise_and(x, mask, out=x)
            np.right_shift(x, half, out=shifted)
            np.bitwise_xor(x, shifted, out=x)
        target[start : start + _BLOCK] = x


@lru_cache(maxsize=1)
def _device_kernel(xp: ModuleType) -> Callable[..., Array]:
    """Make the CuPy kernel of the rounds and the walk; keys are arguments, so all seeds and lengths share it."""
    names = [f"{kind}{r}" for r in range(ROUNDS) for kind in ("multiplier", "addend")]
    rounds = "\n".join(f"x = (x * multiplier{r} + addend{r}) & mask; x ^= x >> half;" for r in range(ROUNDS))
    return xp.ElementwiseKernel(
        "T index, uint64 rows, uint64 mask, uint64 half, " + ", ".join(f"uint64 {name}" for name in names),
        "uint64 position",
        "unsigned long long x = index;\ndo {\n" + rounds + "\n} while (x >= rows);\nposition = x;",
        "rowmill_permute",
    )


@lru_cache(maxsize=64)
def _make_permutation_table(n: int, key: int) -> np.ndarray:
    """Make a uniformly random order of range(n), n <= 65,536, as uint16: the order of n splitmix64 keys.

    The keys of one table are distinct (splitmix64 is a bijection of its counter), so there are no ties to break, every
    order is equally likely and any sorting algorithm gives the same table.
    """
    x = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(key)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MIX_1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MIX_2)
    table = np.argsort(x ^ (x >> np.uint64(31))).astype(np.uint16)
    table.flags.writeable = False
    return table


def _derive_round_keys(key: int, bits: int) -> list[int]:
    """Multiplier (odd) and addend of each round in turn, cut to `bits` bits."""
    keys = [_mix_bits(key + step * _GOLDEN) for step in range(1, 2 * ROUNDS + 1)]
    return [(word | (1 - step % 2)) & (2**bits - 1) for step, word in enumerate(keys)]


def _derive_key(seed: int, *numbers: int) -> int:
    """Derive a 64-bit key from any Python int (by BLAKE2b of its bytes) and from what it is used for."""
    text = seed.to_bytes((seed.bit_length() + 8) // 8, "little", signed=True)
    key = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    for number in numbers:
        key = _join(key, number)
    return key


def _join(key: int, number: int) -> int:
    """Derive a 64-bit key from a key and a number."""
    return _mix_bits((key ^ _mix_bits(number + _GOLDEN)) + _GOLDEN)


def _mix_bits(x: int) -> int:
    """Mix by the output function of splitmix64, a bijection of 64-bit integers."""
    x &= _ALL_64
    x = (x ^ (x >> 30)) * _MIX_1 & _ALL_64
    x = (x ^ (x >> 27)) * _MIX_2 & _ALL_64
    return x ^ (x >> 31)
