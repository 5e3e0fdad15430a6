"""A shuffle is a bijection with pinned values that no statistic tells from a random order; every seed here is fixed."""

from __future__ import annotations

import hashlib
import itertools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.core.versions import PERMUTATION_VERSION
from tasks.shuffle.permutation import MODES, BlockLayout, file_ranks, permute, range_edges

fixed = settings(
    deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
SEEDS = st.integers(-(2**80), 2**80)
LENGTHS = [65_536, 65_537, 2**17, 2**17 + 1, 200_000]
CHANCE = 0.0001  # some 1,000 such chances are looked at below, each far from it if an order is not random


def stats():
    """scipy.stats; on a host without it what is judged by it is skipped, and the rest is tested."""
    return pytest.importorskip("scipy.stats")


def host(array) -> np.ndarray:
    return array.get() if hasattr(array, "get") else np.asarray(array)


def order(n: int, seed: int, xp) -> np.ndarray:
    return host(permute(xp.arange(n), n, seed, xp)).astype(np.int64)


def is_bijection(positions: np.ndarray, n: int) -> bool:
    return len(positions) == n and np.array_equal(np.sort(positions), np.arange(n))


def table_p(rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int]) -> float:
    """The chance of a table this uneven if rows and columns were independent."""
    seen = np.bincount(rows * shape[1] + cols, minlength=shape[0] * shape[1]).reshape(shape)
    expected = np.outer(seen.sum(axis=1), seen.sum(axis=0)) / seen.sum()
    return float(stats().chi2.sf(((seen - expected) ** 2 / expected).sum(), (shape[0] - 1) * (shape[1] - 1)))


def even_p(cells: np.ndarray, count: int) -> float:
    """The chance of counts this uneven if all cells were equally likely."""
    return float(stats().chisquare(np.bincount(cells, minlength=count)).pvalue)


# ---- the definition, in plain Python integers


def mix(x: int) -> int:
    x %= 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def plain_permute(index: list[int], n: int, seed: int) -> list[int]:
    golden = 0x9E3779B97F4A7C15
    data = seed.to_bytes((seed.bit_length() + 8) // 8, "little", signed=True)
    key = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
    key = mix((key ^ mix(n + golden)) + golden)
    if n <= 65_536:
        table = sorted(range(n), key=lambda i: mix(key + (i + 1) * golden))
        return [table[i] for i in index]
    k = (n - 1).bit_length()
    words = [mix(key + step * golden) for step in range(1, 21)]

    def walk(x: int) -> int:
        for r in range(10):
            x = (x * (words[2 * r] | 1) + words[2 * r + 1]) % 2**k
            x ^= x >> k // 2
        return x if x < n else walk(x)

    return [walk(i) for i in index]


@pytest.mark.promise("Where a row goes is computed from the seed and the row's number in the source")
@pytest.mark.parametrize("n", [1, 2, 3, 255, 65_535, *LENGTHS, 2**24 + 1, 2**32, 2**32 + 1, 2**53 + 3, 2**62])
@pytest.mark.parametrize("seed", [0, 1, -1, 42, 2**64 + 7, -(2**100)])
def test_positions_are_those_of_the_definition(xp, n, seed):
    index = sorted({i * (n - 1) // 60 for i in range(61)})
    found = host(permute(xp.asarray(np.array(index, dtype=np.uint64)), n, seed, xp))
    assert found.dtype == np.uint64
    assert found.tolist() == plain_permute(index, n, seed)


def test_every_row_of_a_long_run_is_that_of_the_definition(xp):
    n = 65_537 * 3  # more than one cache block, none of them whole
    assert order(n, 9, xp).tolist() == plain_permute(list(range(n)), n, 9)


@pytest.mark.parametrize(
    ("n", "positions"),
    [
        (10, [5, 2, 7, 3, 6, 1]),
        (65_535, [52366, 22630, 14215, 19181, 40581, 30231]),
        (65_536, [36141, 35863, 50756, 39449, 54077, 38035]),
        (65_537, [17139, 46685, 41462, 198, 52693, 45231]),
        (1_000_003, [255569, 600491, 844228, 999409, 823483, 133373]),
        (4_294_967_296, [1688711409, 2754293845, 760688886, 1960180641, 784653894, 3917609506]),
        (5_000_000_000, [1141312550, 2628934750, 4252346301, 103453936, 4163445354, 3753236320]),
        (
            4_611_686_018_427_387_904,
            [
                574786395872059566,
                3984327310026471170,
                4179048171885528583,
                2199624857773548537,
                1713344043505155882,
                4043970276539926609,
            ],
        ),
    ],
)
def test_positions_of_version_1_never_change(xp, n, positions):
    index = xp.asarray(np.array([0, 1, 2, n // 2, n - 2, n - 1], dtype=np.uint64))
    assert PERMUTATION_VERSION == 1
    assert host(permute(index, n, 1, xp)).tolist() == positions


def test_ten_rows_of_version_1_never_change(xp):
    assert order(10, 1, xp).tolist() == [5, 2, 7, 4, 9, 3, 0, 8, 6, 1]
    assert order(10, -1, xp).tolist() == [7, 5, 8, 2, 9, 6, 0, 3, 1, 4]


# ---- bijections


@fixed
@given(n=st.one_of(st.integers(0, 2_000), st.integers(65_500, 65_600), st.integers(65_537, 300_000)), seed=SEEDS)
def test_permute_is_a_bijection(xp, n, seed):
    assert is_bijection(order(n, seed, xp), n)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 2**16 - 1, 2**16, 2**16 + 1, 2**20, 2**20 + 1, 1_500_000])
def test_permute_is_a_bijection_at_the_edges(xp, n):
    assert is_bijection(order(n, 5, xp), n)


@fixed
@given(n=st.integers(65_537, 2**62), seed=SEEDS)
def test_distinct_rows_of_any_range_get_distinct_positions_inside(xp, n, seed):
    index = np.unique(np.array([*range(500), *range(n - 500, n), *range(0, n, n // 40)], dtype=np.uint64))
    found = host(permute(xp.asarray(index), n, seed, xp))
    assert len(np.unique(found)) == len(index)
    assert int(found.max()) < n


@fixed
@given(n=st.sampled_from([7, 65_536, 65_537, 2**17, 150_001]), seed=SEEDS, data=st.data())
def test_a_position_depends_on_its_own_row_alone(xp, n, seed, data):
    index = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=50)), dtype=np.int64)
    assert host(permute(xp.asarray(index), n, seed, xp)).tolist() == order(n, seed, xp)[index].tolist()


@pytest.mark.parametrize("dtype", ["uint8", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("n", [1_000, 100_000])
def test_the_integer_type_and_the_strides_of_the_index_do_not_matter(xp, dtype, n):
    index = xp.arange(120, dtype=dtype)[::-3]
    assert host(permute(index, n, 3, xp)).tolist() == order(n, 3, xp)[:120][::-3].tolist()


def test_the_index_is_left_as_it_is(xp):
    index = xp.arange(100_000, dtype="uint64")
    permute(index, 100_000, 3, xp)
    assert np.array_equal(host(index), np.arange(100_000))


@pytest.mark.parametrize("n", [-1, 2**62 + 1])
def test_a_range_too_long_or_negative_is_refused(xp, n):
    with pytest.raises(ValueError, match=f"0 to 2\\^62 rows, not {n}"):
        permute(xp.arange(1), n, 0, xp)


# ---- as good as random


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_every_order_of_a_short_range_is_equally_likely(xp, n):
    names = {o: i for i, o in enumerate(itertools.permutations(range(n)))}
    found = [names[tuple(order(n, seed, xp).tolist())] for seed in range(max(2_000, 20 * len(names)))]
    assert set(found) == set(names.values())
    assert even_p(np.array(found), len(names)) > CHANCE


@pytest.mark.parametrize("n", LENGTHS)
def test_a_files_rows_come_evenly_from_all_blocks(xp, n):
    rows = np.arange(n)
    for seed in range(5):
        assert table_p(rows * 64 // n, order(n, seed, xp) * 32 // n, (64, 32)) > CHANCE


@pytest.mark.parametrize("n", LENGTHS)
def test_low_bits_and_residues_are_independent_of_the_rows(xp, n):
    rows, positions = np.arange(n), order(n, 11, xp)
    chances = [table_p(rows % m, positions % m, (m, m)) for m in range(2, 65)]
    assert min(chances) > CHANCE
    assert table_p(rows % 32, positions * 32 // n, (32, 32)) > CHANCE
    assert table_p(rows * 32 // n, positions % 32, (32, 32)) > CHANCE


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("stride", [2, 3, 7, 16, 17, 64])
def test_every_so_manyth_row_is_spread_like_all(xp, n, stride):
    rows = np.arange(n)[::stride]
    positions = order(n, 12, xp)[::stride]
    assert table_p(rows * 8 // n, positions * 16 // n, (8, 16)) > CHANCE
    assert even_p(positions * 64 // n, 64) > CHANCE


@pytest.mark.parametrize("n", LENGTHS)
def test_neighbours_1_to_64_rows_apart_are_uncorrelated(xp, n):
    for seed in range(3):
        x = stats().zscore(order(n, seed, xp))
        assert max(abs((x[:-lag] * x[lag:]).sum()) / math.sqrt(n) for lag in range(1, 65)) < 4.5


@pytest.mark.parametrize("n", LENGTHS)
def test_pairs_and_triples_fill_their_cells_evenly(xp, n):
    positions = order(n, 13, xp)
    places = positions * 8 // n
    for lag in (1, 2, 3, 64, 2**8, 2**9, 2**15, n // 2):
        pairs = np.flatnonzero(np.arange(n - lag) // lag % 2 == 0)  # each row in one pair
        assert table_p(places[pairs], places[pairs + lag], (8, 8)) > CHANCE
        assert even_p((positions[pairs + lag] - positions[pairs]) % n * 64 // n, 64) > CHANCE
        assert even_p((positions[pairs] ^ positions[pairs + lag]) % 64, 64) > CHANCE
    first, second, third = places[: n // 3 * 3].reshape(-1, 3).T
    assert even_p(first * 64 + second * 8 + third, 512) > CHANCE


@pytest.mark.parametrize("k", [17, 20])
def test_a_changed_bit_of_the_row_changes_half_of_the_positions_bits(xp, k):
    positions = order(2**k, 14, xp)
    for bit in range(k):
        flipped = positions ^ positions[np.arange(2**k) ^ (1 << bit)]
        share = np.array([(flipped >> out & 1).mean() for out in range(k)])
        assert np.abs(share - 0.5).max() < 6 * 0.5 / math.sqrt(2 ** (k - 1))


@pytest.mark.parametrize("n", [5_000, 65_537, 2**17])
def test_two_seeds_agree_on_about_one_row(xp, n):
    orders = [order(n, seed, xp) for seed in range(40)]
    agree = np.array([(a == b).sum() for a, b in itertools.combinations(orders, 2)])
    stay = np.array([(a == np.arange(n)).sum() for a in orders])
    expected = stats().poisson(1).pmf([0, 1, 2, 3]) * len(agree)
    seen = np.bincount(np.minimum(agree, 4), minlength=5)
    assert stats().chisquare(seen, [*expected, len(agree) - expected.sum()]).pvalue > CHANCE
    assert stats().poisson(len(stay)).cdf(stay.sum()) == pytest.approx(0.5, abs=0.4995)
    correlation = np.corrcoef(orders)[np.triu_indices(len(orders), 1)]
    assert np.abs(correlation).max() < 4.5 / math.sqrt(n)


@pytest.mark.parametrize("n", [100, 1_000, 65_537, 2**33])
def test_a_row_lands_anywhere_over_the_seeds(xp, n):
    index = xp.asarray(np.array([0, n - 1]))
    found = np.array([host(permute(index, n, seed, xp)).tolist() for seed in range(4_000)])
    assert even_p(found[:, 0] * 16 // n, 16) > CHANCE
    assert table_p(found[:, 0] * 10 // n, found[:, 1] * 10 // n, (10, 10)) > CHANCE


def test_every_python_integer_is_a_seed_of_its_own(xp):
    seeds = [0, 1, -1, 255, 256, -255, 2**63, 2**64, 2**64 + 1, -(2**64), 2**200, -(2**200)]
    assert len({tuple(order(50, seed, xp).tolist()) for seed in seeds}) == len(seeds)


def test_the_order_of_a_range_is_not_that_of_a_longer_one(xp):
    a, b = order(100_000, 1, xp), order(100_001, 1, xp)[:100_000]
    assert (a == b).sum() < 10
    assert stats().spearmanr(order(1_000, 1, xp), order(1_001, 1, xp)[:1_000]).statistic == pytest.approx(0, abs=0.12)


# ---- modes

BLOCKS = BlockLayout(rows=200_000, block_starts=(0, 70_000, 70_003, 140_000, 140_000, 199_999), groups=2)


def spread(mode: str, layout: BlockLayout, seed: int, xp) -> np.ndarray:
    return host(MODES[mode](xp.arange(layout.rows), layout, seed, xp)).astype(np.int64)


def layouts() -> st.SearchStrategy[BlockLayout]:
    sizes = st.lists(st.integers(0, 400) | st.integers(65_500, 65_600), min_size=1, max_size=8)
    return st.builds(
        lambda s, groups: BlockLayout(sum(s), np.concatenate([[0], np.cumsum(s)[:-1]]), groups),
        sizes,
        st.integers(1, 10),
    )


@pytest.mark.parametrize("mode", MODES)
@fixed
@given(layout=layouts(), seed=SEEDS)
def test_every_mode_is_a_bijection(xp, mode, layout, seed):
    assert is_bijection(spread(mode, layout, seed, xp), layout.rows)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_every_mode_gives_a_row_its_position_wherever_it_stands(xp, mode, dtype):
    whole = spread(mode, BLOCKS, 8, xp)
    scattered = np.array([199_999, 3, 70_001, 3, 70_000])
    for rows in (np.arange(70_000, 140_000), scattered, np.arange(0), np.arange(199_999, 0, -7)):
        found = host(MODES[mode](xp.asarray(rows.astype(dtype)), BLOCKS, 8, xp))
        assert found.dtype == np.uint64
        assert np.array_equal(found, whole[rows])


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_knows_the_empty_and_the_one_row_source(xp, mode):
    assert spread(mode, BlockLayout(0, (), 3), 1, xp).tolist() == []
    assert spread(mode, BlockLayout(0, (0,), 3), 1, xp).tolist() == []
    assert spread(mode, BlockLayout(1, (0,), 3), 1, xp).tolist() == [0]


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_states_its_bias_and_cost_first(mode):
    first = (MODES[mode].__doc__ or "").splitlines()[0]
    assert first.startswith("Bias: ")
    assert " Cost: " in first


def test_none_keeps_the_order(xp):
    assert spread("none", BLOCKS, 1, xp).tolist() == list(range(200_000))


def test_full_is_one_permutation_of_all_rows(xp):
    assert np.array_equal(spread("full", BLOCKS, 6, xp), order(200_000, 6, xp))


def test_partition_keeps_the_rows_of_a_block_together_and_shuffles_them(xp):
    starts = np.arange(0, 100_000, 1_000)
    positions = spread("partition", BlockLayout(100_000, starts, 1), 4, xp).reshape(100, 1_000)
    assert (positions.max(axis=1) - positions.min(axis=1) == 999).all()
    places = positions.min(axis=1) // 1_000
    assert is_bijection(places, 100)
    assert places.tolist() != list(range(100))
    inside = positions - positions.min(axis=1, keepdims=True)
    assert len({tuple(row) for row in inside.tolist()}) == 100
    assert np.abs(np.corrcoef(inside)[np.triu_indices(100, 1)]).max() < 4.7 / math.sqrt(1_000)


def test_partition_moves_blocks_of_unequal_size_whole(xp):
    positions = spread("partition", BLOCKS, 4, xp)
    ends = [*BLOCKS.block_starts[1:], 200_000]
    spans = [positions[a:b] for a, b in zip(BLOCKS.block_starts, ends, strict=True) if a < b]
    assert [int(s.max() - s.min()) + 1 for s in spans] == [len(s) for s in spans]


@pytest.mark.parametrize("groups", [1, 3, 4, 10, 25])
def test_worker_keeps_groups_of_blocks_together_and_mixes_their_rows(xp, groups):
    layout = BlockLayout(100_000, np.arange(0, 100_000, 10_000), groups)
    positions = spread("worker", layout, 4, xp).reshape(10, 10_000)
    edges = [g * 10 // groups * 10_000 for g in range(groups + 1)]
    group = np.searchsorted(edges, positions, side="right") - 1
    assert (group == group[:, :1]).all()
    for g in np.unique(group):
        rows = positions[group[:, 0] == g]
        size = edges[g + 1] - edges[g]
        assert is_bijection(rows.reshape(-1) - edges[g], size)
        cells = (rows - edges[g]) * 20 // size
        blocks = np.repeat(np.arange(len(rows)), 10_000)
        assert len(rows) == 1 or table_p(blocks, cells.reshape(-1), (len(rows), 20)) > CHANCE


def test_worker_groups_follow_the_order_in_which_partition_puts_blocks(xp):
    layout = BlockLayout(100_000, np.arange(0, 100_000, 10_000), 5)
    places = spread("partition", layout, 4, xp).reshape(10, 10_000).min(axis=1) // 10_000
    groups = spread("worker", layout, 4, xp).reshape(10, 10_000).min(axis=1) // 20_000
    assert groups.tolist() == (places // 2).tolist()


def test_blocks_take_every_order_over_the_seeds(xp):
    layout = BlockLayout(4, (0, 1, 2, 3), 1)
    names = {o: i for i, o in enumerate(itertools.permutations(range(4)))}
    for mode in ("partition", "worker", "full"):
        found = [names[tuple(spread(mode, layout, seed, xp).tolist())] for seed in range(1_200)]
        assert even_p(np.array(found), 24) > CHANCE


def test_modes_of_version_1_never_change(xp):
    rows = xp.asarray(np.array([0, 69_999, 70_000, 70_002, 70_003, 139_999, 140_000, 199_999]))
    found = {mode: host(MODES[mode](rows, BLOCKS, 1, xp)).tolist() for mode in MODES}
    assert found == {
        "none": [0, 69999, 70000, 70002, 70003, 139999, 140000, 199999],
        "partition": [131143, 158698, 69997, 69999, 21691, 24236, 74438, 70000],
        "worker": [156538, 73409, 24640, 65459, 28365, 61173, 188957, 129561],
        "full": [32746, 139218, 180703, 174666, 83938, 99096, 36717, 60858],
    }


def test_modes_reach_the_longest_range(xp):
    layout = BlockLayout(2**62, (0, 5, 2**61, 2**62 - 3), 2)
    rows = xp.asarray(np.array([0, 4, 5, 2**61 - 1, 2**61, 2**62 - 1]))
    for mode in MODES:
        found = host(MODES[mode](rows, layout, 2, xp)).tolist()
        assert len(set(found)) == 6
        assert max(found) < 2**62


# ---- ranges and files


@given(rows=st.integers(0, 2**62), ranges=st.integers(1, 3_000))
@fixed
def test_range_edges_are_exact(rows, ranges):
    edges = range_edges(rows, ranges)
    assert edges.dtype == np.int64
    assert edges.tolist() == [j * rows // ranges for j in range(ranges + 1)]


@given(rows=st.integers(0, 2**62), files=st.integers(1, 300))
@fixed
def test_files_are_equal_to_one_row_and_hold_every_rank(rows, files):
    ranks = file_ranks(rows, files)
    assert [low for low, _ in ranks] == [0, *(high for _, high in ranks[:-1])]
    assert ranks[-1][1] == rows
    sizes = [high - low for low, high in ranks]
    assert max(sizes) - min(sizes) <= 1


def test_more_files_than_rows_leaves_some_empty():
    assert file_ranks(2, 3) == [(0, 0), (0, 1), (1, 2)]
    assert range_edges(2, 4).tolist() == [0, 0, 1, 1, 2]
