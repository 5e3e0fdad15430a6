"""A look-alike of the Criteo 1 TB click logs: label, 13 counts I1..I13, 26 hexadecimal categories C1..C26."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import numpy as np
import pyarrow as pa

from flows.sample import draws
from flows.sample.sample_columns import letters, numbers, words
from flows.sample.sample_text import eight_digits

FULL_ROWS = 4_373_472_329
POSITIVE = 0.032

CARDINALITY = {
    f"C{i}": count
    for i, count in enumerate(
        (
            *(227605432, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 130229467, 3067956, 405282, 10),
            *(2209, 11938, 155, 4, 976, 14, 292775614, 40790948, 187188510, 590152, 12973, 108, 36),
        ),
        start=1,
    )
}

# median, sigma of the logarithm, largest value, rate of -1, rate of -2
COUNTS = {
    "I1": (2.0, 1.6, 60_000, 0.003, 0.0002),
    "I2": (8.0, 2.2, 300_000, 0.100, 0.0040),
    "I3": (6.0, 1.6, 70_000, 0.003, 0.0002),
    "I4": (5.0, 1.2, 10_000, 0.001, 0.0001),
    "I5": (1400.0, 2.2, 10_000_000, 0.003, 0.0002),
    "I6": (34.0, 1.7, 450_000, 0.003, 0.0002),
    "I7": (4.0, 1.7, 60_000, 0.003, 0.0002),
    "I8": (8.0, 1.2, 30_000, 0.003, 0.0002),
    "I9": (40.0, 1.5, 30_000, 0.001, 0.0001),
    "I10": (1.2, 0.9, 10_000, 0.003, 0.0002),
    "I11": (2.0, 1.2, 10_000, 0.003, 0.0002),
    "I12": (1.1, 1.3, 10_000, 0.001, 0.0001),
    "I13": (4.5, 1.3, 20_000, 0.003, 0.0002),
}

# Columns of one line are null together.
NULL_GROUPS = {
    0.45: ("I1", "I10"),
    0.21: ("I3",),
    0.22: ("I4", "I6", "I13"),
    0.04: ("I7", "I9", "I11"),
    0.77: ("I12",),
    0.03: ("I5", "C3", "C4", "C12", "C16", "C21", "C24"),
    0.12: ("C6",),
    0.44: ("C19", "C20", "C25", "C26"),
    0.76: ("C22",),
}

NAMES = ("label", *COUNTS, *CARDINALITY)
SMALL = 50_000  # vocabularies up to this size are kept as a dictionary of ready strings


def block(start: int, stop: int, rows: int, seed: int, xp: ModuleType = np) -> pa.Table:
    """Rows start .. stop - 1; `rows`, the size of the whole, changes nothing here.

    label: uint8, 3.2 % ones. I1..I13: int32, log-normal-like counts, -1 and -2 among them. C1..C26: 8 hexadecimal
    digits, Zipf over the published cardinality. The vocabulary does not depend on the seed: another seed is other
    data of the same world. Nulls are draws of their own, shared by the columns of a group.
    """
    row = xp.arange(start, stop, dtype=np.uint64)
    valid = _valid(row, seed)
    positive = draws.field(draws.draw(draws.stream("criteo", "label", seed), row), 0) < draws.rate(POSITIVE)
    columns: dict[str, pa.Array] = {"label": numbers(positive.astype(np.uint8))}
    for name, law in COUNTS.items():
        value = draws.log_normal(*law).pick(xp, draws.draw(draws.stream("criteo", name, seed), row))
        columns[name] = numbers(value, pa.int32(), valid.get(name))
    for name, count in CARDINALITY.items():
        rank = draws.zipf(count, exponent(count)).pick(xp, draws.draw(draws.stream("criteo", name, seed), row))
        columns[name] = _category(xp, name, count, rank, valid.get(name))
    return pa.table(columns)


def exponent(cardinality: int) -> float:
    """Return the Zipf exponent of a column: the larger the vocabulary, the heavier its tail."""
    return 1.1 if cardinality > 1_000_000 else 1.3 if cardinality > 10_000 else 1.4 if cardinality > 100 else 1.5


def value(name: str, rank: draws.Array, xp: ModuleType = np) -> draws.Array:
    """Return the text of a category by its rank, uint8 (n, 8): distinct ranks have distinct texts."""
    return eight_digits(xp, draws.scramble(rank.view(np.uint64), 32, draws.stream("criteo", "vocabulary", name)))


def _category(xp: ModuleType, name: str, count: int, rank: draws.Array, valid: draws.Array | None) -> pa.Array:
    if count <= SMALL:
        return words(rank, _vocabulary(name, count), valid)
    return letters(value(name, rank, xp), valid)


@cache
def _vocabulary(name: str, count: int) -> pa.Array:
    return letters(value(name, np.arange(count)))


def _valid(row: draws.Array, seed: int) -> dict[str, draws.Array]:
    """Where the columns that have nulls are not null, by column."""
    valid = {}
    for number, (share, names) in enumerate(NULL_GROUPS.items()):
        if number % 4 == 0:
            bits = draws.draw(draws.stream("criteo", "null", number, seed), row)
        valid.update(dict.fromkeys(names, draws.field(bits, number % 4) >= draws.rate(share)))
    return valid
