"""Distances against plain formulas and SciPy, their noise against draws, quantile bins, Student's t."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats
from scipy.spatial.distance import jensenshannon

from tasks.core.schema import ROW
from tasks.gate.distances import (
    count_in_cells,
    jensen_shannon,
    l_infinity,
    noise,
    psi,
    quantile_cells,
    t_limit,
    to_shares,
)
from tasks.profile.associations import associations

RNG = np.random.default_rng(7)
PAIRS = [(RNG.integers(0, 50, n), RNG.integers(0, 50, n) + RNG.integers(0, 2, n)) for n in (2, 3, 17, 1024)]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_jensen_shannon_is_that_of_scipy_in_bits(one: np.ndarray, other: np.ndarray) -> None:
    expected = jensenshannon(one / one.sum(), other / other.sum(), base=2)
    assert float(jensen_shannon(one, other)) == pytest.approx(expected, abs=1e-12)
    assert float(jensen_shannon(other, one)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_l_infinity_and_psi_are_their_formulas(one: np.ndarray, other: np.ndarray) -> None:
    p, q = one / one.sum(), other / other.sum()
    assert float(l_infinity(one, other)) == pytest.approx(np.abs(p - q).max())
    cells = [(max(a, 1e-4), max(b, 1e-4)) for a, b in zip(p, q, strict=True) if a or b]
    assert float(psi(one, other)) == pytest.approx(sum((a - b) * np.log(a / b) for a, b in cells))


def test_many_distributions_at_once_are_each_by_itself() -> None:
    many = RNG.integers(0, 9, (6, 5))
    for distance in (l_infinity, jensen_shannon, psi):
        one = distance(many, many[0])
        assert one.tolist() == pytest.approx([float(distance(row, many[0])) for row in many])


def test_nothing_is_known_of_a_distribution_without_counts() -> None:
    for distance in (l_infinity, jensen_shannon, psi):
        assert float(distance([0, 0], [1, 2])) == 0.0
    assert to_shares([0, 0]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["l_infinity", "jensen_shannon", "psi"])
@pytest.mark.parametrize("cells", [2, 10, 200])
def test_draws_of_one_distribution_rarely_pass_its_noise(name: str, cells: int) -> None:
    """At 2 standard errors (4.6 %), of 500 pairs of draws of 5,000 and 20,000 values, at most 10 % pass."""
    rng = np.random.default_rng(cells)
    p = rng.dirichlet(np.ones(cells) * 5)
    distance = {"l_infinity": l_infinity, "jensen_shannon": jensen_shannon, "psi": psi}[name]
    one, other = rng.multinomial(5_000, p, 500), rng.multinomial(20_000, p, 500)
    bound = noise(name, p, 5_000, 20_000, 2.0)
    passed = float((distance(one, other) > bound).mean())
    assert passed <= 0.1
    assert float(np.median(distance(one, other))) > bound / 50  # it is not a bound that nothing could pass


def test_quantile_cells_have_equal_shares_and_frequent_values_their_own() -> None:
    even = dict.fromkeys(range(1600), 1)
    ends = quantile_cells([even], 16)
    assert np.diff(count_in_cells(even, ends)).tolist() == [0.0] * 15
    peak = {**even, 800: 1600}
    ends = quantile_cells([peak], 16)
    counts = count_in_cells(peak, ends)
    assert counts.max() == 1600  # a cell of its own
    assert counts.sum() == 3199
    assert quantile_cells([{}]).tolist() == []
    assert count_in_cells({}, np.zeros(0)).tolist() == [0.0]


def test_values_beyond_the_past_go_into_the_outer_cells() -> None:
    ends = quantile_cells([dict.fromkeys(range(100, 200), 1)], 4)
    assert count_in_cells({5: 3, 9000: 4}, ends).tolist() == [3.0, 0.0, 0.0, 4.0]


@pytest.mark.parametrize("degrees", [1, 2, 3, 5, 22, 50])
@pytest.mark.parametrize("chance", [0.2, 0.01, 1e-4, 1e-7])
def test_students_t(degrees: int, chance: float) -> None:
    assert t_limit(chance, degrees) == pytest.approx(stats.t.isf(chance / 2, degrees), rel=1e-4)


@pytest.mark.parametrize("counted_once", [4_096, 0])
def test_associations_have_their_values_however_cells_are_counted(
    counted_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two columns of few cells are counted once for both ways, others once for each."""
    monkeypatch.setattr("tasks.profile.associations.SMALL", counted_once)
    n = np.arange(6_000, dtype=np.uint64)
    brand = (n * n + 7 * n) % 311
    columns = {
        "brand": brand,
        "label": (brand * 13 % 17 < 4) ^ (n % 5 == 0),
        "price": pa.array((brand % 40) * 1.5 + n % 7, mask=n % 9 == 0),
        "one": np.ones(6_000),
        "few": pa.array(n % 3, mask=n % 2 == 0),
    }
    pairs, rows = associations(pa.table({ROW: n, **columns}))
    assert rows == 6_000
    assert {pair: (round(one.v, 4), round(one.by_chance, 4)) for pair, one in pairs.items()} == {
        ("brand", "few"): (0.0, 0.0636),
        ("brand", "label"): (0.5037, 0.0538),
        ("brand", "price"): (0.6487, 0.029),
        ("few", "label"): (0.0, 0.0258),
        ("few", "price"): (0.0, 0.0641),
        ("label", "price"): (0.0134, 0.032),
    }
