"""How well each mode shuffles, as chances: of a random order, and of rows that went through the whole pipeline.

Every seed is fixed, so that a test always gives the same chance; each one is the p-value of a statistic whose law under
a random order is known, and is compared with CHANCE. A mode is judged by what it promises: `full` by all rows, `worker`
by the rows of each group of blocks, `partition` by the rows of each block; groups and blocks by where they land.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import ops
from tasks.cluster.local_pool import LocalPool
from tasks.core.settings import Output
from tasks.graph.node import as_node
from tasks.graph.partition_work import Work
from tasks.graph.state import State
from tasks.manifest import Manifest
from tasks.ops.base import Columns, Context, Entry, Operator, Unit
from tasks.shuffle.permutation import MODES, BlockLayout
from tasks.stages.without_prefect import write_transformed
from tests.learning import cut

stats = pytest.importorskip("scipy.stats")
CHANCE = 1e-4  # about 200 of them are looked at below
LAGS = range(1, 65)
SHUFFLING = ["full", "worker", "partition"]


class Case(NamedTuple):
    """Blocks of equal size in equal groups."""

    blocks: int
    block_rows: int
    groups: int

    @property
    def layout(self) -> BlockLayout:
        return BlockLayout(self.blocks * self.block_rows, np.arange(self.blocks) * self.block_rows, self.groups)


CASES = [Case(128, 1_000, 8), Case(4, 70_000, 2)]  # orders by table (up to 65,536 rows), and by rounds


def positions(mode: str, case: Case, seed: int, xp: Any) -> np.ndarray:
    found = MODES[mode](xp.arange(case.layout.rows), case.layout, seed, xp)
    return (found.get() if hasattr(found, "get") else found).astype(np.int64)


def runs(mode: str, case: Case, seed: int, xp: Any) -> list[np.ndarray]:
    """For each part that the mode shuffles by itself: where its rows land, in the order of the source, from 0 on."""
    placed = positions(mode, case, seed, xp)
    if mode == "full":
        return [placed]
    if mode == "partition":
        return [rows - rows.min() for rows in placed.reshape(case.blocks, case.block_rows)]
    size = len(placed) // case.groups
    return [placed[placed // size == g] - g * size for g in range(case.groups)]


def chi_square(tables: Sequence[np.ndarray], varying: float = 1.0) -> float:
    """The chance of tables this uneven, all together, if rows and columns were independent.

    `varying` is how much more the counts vary by their making than those of such tables.
    """
    total, freedom = 0.0, 0
    for seen in tables:
        expected = np.outer(seen.sum(axis=1), seen.sum(axis=0)) / seen.sum()
        total += float(((seen - expected) ** 2 / expected).sum())
        freedom += (seen.shape[0] - 1) * (seen.shape[1] - 1)
    return float(stats.chi2.sf(total / varying, freedom))


def table_of(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    return np.bincount(rows * shape[1] + columns, minlength=shape[0] * shape[1]).reshape(shape)


def even(cells: np.ndarray, count: int) -> float:
    """The chance of cells filled this unevenly if all were equally likely."""
    return float(stats.chisquare(np.bincount(cells, minlength=count)).pvalue)


def serial(sequences: Sequence[np.ndarray]) -> float:
    """The chance of the largest correlation of neighbours 1 to 64 apart, over all sequences together.

    Of m values in random order, standardised, the products of neighbours at a lag sum up to -(m - lag) / (m - 1), with
    a variance of about m - lag. 64 lags are looked at, hence Bonferroni's factor.
    """
    standard = [(s - s.mean()) / s.std() for s in sequences]
    worst = 0.0
    for lag in LAGS:
        total = sum(float((x[:-lag] * x[lag:]).sum()) + (len(x) - lag) / (len(x) - 1) for x in standard)
        worst = max(worst, abs(total) / math.sqrt(sum(len(x) - lag for x in standard)))
    return min(1.0, len(LAGS) * 2 * float(stats.norm.sf(worst)))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("mode", SHUFFLING)
class TestInsideWhatAModeShuffles:
    def test_every_source_part_gives_every_file_its_share(self, xp: Any, mode: str, case: Case) -> None:
        for seed in range(3):
            found = runs(mode, case, seed, xp)
            tables = [table_of(np.arange(len(r)) * 16 // len(r), r * 10 // len(r), (16, 10)) for r in found]
            assert chi_square(tables) > CHANCE

    def test_neighbours_1_to_64_rows_apart_are_uncorrelated(self, xp: Any, mode: str, case: Case) -> None:
        for seed in range(2):
            found = runs(mode, case, seed, xp)
            assert serial(found) > CHANCE  # neighbours in the source: where they land
            assert serial([np.argsort(r) for r in found]) > CHANCE  # neighbours in a file: where they come from

    def test_pairs_and_triples_fill_their_cells_evenly(self, xp: Any, mode: str, case: Case) -> None:
        for sequence in (runs(mode, case, 7, xp), [np.argsort(r) for r in runs(mode, case, 7, xp)]):
            places = [r * 8 // len(r) for r in sequence]
            for lag in (1, 2, 3, 7, 64):
                pairs = [np.flatnonzero(np.arange(len(p) - lag) // lag % 2 == 0) for p in places]  # a row in one each
                tables = [table_of(p[at], p[at + lag], (8, 8)) for p, at in zip(places, pairs, strict=True)]
                assert chi_square([np.sum(tables, axis=0)]) > CHANCE
            triples = np.concatenate([p[: len(p) // 3 * 3].reshape(-1, 3) for p in places])
            assert even(triples @ [64, 8, 1], 512) > CHANCE


@pytest.mark.parametrize("mode", SHUFFLING)
@pytest.mark.parametrize("rows", [2, 3, 4, 5, 6])
def test_every_order_of_a_few_rows_is_equally_likely_over_the_seeds(xp: Any, mode: str, rows: int) -> None:
    """Of a source of so many rows, or of each of 40 blocks (groups) of so many rows, which are independent."""
    names = {order: i for i, order in enumerate(itertools.permutations(range(rows)))}
    case = Case(1, rows, 1) if mode == "full" else Case(40, rows, 40)
    seeds = max(1_200, 10 * len(names)) // (1 if mode == "full" else 20)
    orders = np.concatenate([runs(mode, case, seed, xp) for seed in range(seeds)])
    found = np.array([names[tuple(order)] for order in orders.tolist()])
    assert len(set(found.tolist())) == math.factorial(rows)
    assert even(found, len(names)) > CHANCE


@pytest.mark.parametrize("mode", ["worker", "partition"])
def test_blocks_land_anywhere_and_in_any_company(xp: Any, mode: str) -> None:
    """Over 2,000 seeds: the place of each of 6 blocks, and whether two of them share a third of the output."""
    case = Case(6, 10, 3)
    lands = np.array([positions(mode, case, seed, xp).reshape(6, 10).min(axis=1) * 3 // 60 for seed in range(2_000)])
    blocks = np.broadcast_to(np.arange(6), lands.shape)
    # Each seed puts exactly two blocks into each third: counts vary 6 / 5 times as much as if blocks were independent.
    assert chi_square([table_of(blocks.ravel(), lands.ravel(), (6, 3))], varying=6 / 5) > CHANCE
    # A seed makes 3 of the 15 pairs: a variance of 0.16 each, spread over the 9 dimensions that six sums leave free.
    together = [int((lands[:, a] == lands[:, b]).sum()) for a, b in itertools.combinations(range(6), 2)]
    assert sum(together) == 3 * 2_000
    spread = sum((n - 400) ** 2 for n in together) / (2_000 * 15 * 0.16 / 9)
    assert float(stats.chi2.sf(spread, 9)) > CHANCE


# ---- through the pipeline

ROWS, BLOCK, FILES = 48_000, 3_000, 6


class Repeat(Operator):
    """Row n becomes n mod 3 rows: a third goes, a third stays, a third is doubled. `copy` numbers the copies."""

    takes = frozenset({"number"})
    groups_rows = True

    def units(self, selection: Sequence[Entry]) -> list[Unit]:
        return [tuple(str(name) for name in selection)]

    def outputs(self, unit: Unit, schema: Any, fitted: Any) -> list[Any]:
        from tasks.core.schema import Column

        return [*(schema[name] for name in unit), Column("copy", pa.int64())]

    def regroup(self, columns: Columns, unit: Unit, context: Context) -> tuple[Columns, Context]:
        engine, xp = context.engine, context.engine.xp
        times = context.rows.astype("int64") % 3
        at = xp.flatnonzero(xp.stack([times > 0, times > 1], axis=1))  # copy c of row i is place 2 i + c
        made = engine.take({name: columns[name] for name in unit}, at // 2)
        copies = engine.from_numbers((at % 2).astype("int64"))
        order = context.ordered()[at // 2]
        return made | {"copy": copies}, Context(engine, context.rows[at // 2], context.training, order)


def written(nodes: Any, folder: Path, engine: str, **output: Any) -> tuple[Manifest, list[dict[str, list[Any]]]]:
    """16 blocks in 8 partitions through the transform, the exchange and the writing: the manifest, and each file."""
    source = cut(pa.table({"n": np.arange(ROWS)}), BLOCK, 2)
    work = Work(source, as_node(nodes), source.plan.schema, engine, State())
    asked = Output(path=str(folder / "out"), seed=5, files=FILES, **output)
    manifest = write_transformed(work, source.plan, asked, LocalPool(2))
    return manifest, [pq.read_table(part).to_pydict() for part in sorted((folder / "out").glob("*.parquet"))]


KEPT = {
    "all": (["n"], np.ones(ROWS, dtype=np.int64)),
    "dropped": (["n"] >> ops.Filter("n % 7 != 3"), (np.arange(ROWS) % 7 != 3).astype(np.int64)),
    "unevenly dropped": (
        ["n"] >> ops.Filter("n > 30000 or n % 5 == 0"),
        ((np.arange(ROWS) > 30_000) | (np.arange(ROWS) % 5 == 0)).astype(np.int64),
    ),
    "repeated": (["n"] >> Repeat(), np.arange(ROWS) % 3),
}  # fmt: skip


@pytest.mark.promise("files that differ by one row at most (except for `shuffle: key`)")
@pytest.mark.parametrize("mode", [*SHUFFLING, "none"])
@pytest.mark.parametrize("kept", KEPT)
def test_files_are_equal_to_one_row_whatever_is_dropped_or_repeated(
    engine: str, tmp_path: Path, mode: str, kept: str
) -> None:
    nodes, times = KEPT[kept]
    groups = {"shuffle_groups": 2} if mode == "worker" else {}
    manifest, files = written(nodes, tmp_path, engine, shuffle=mode, **groups)
    sizes = [len(f["n"]) for f in files]
    assert len(files) == FILES
    assert max(sizes) - min(sizes) <= 1
    assert [part["rows"] for part in manifest.parts] == sizes
    rows = np.concatenate([f["n"] for f in files])
    assert np.array_equal(np.bincount(rows, minlength=ROWS), times)
    if kept == "repeated":
        copies = np.concatenate([f["copy"] for f in files])
        doubled = np.flatnonzero(copies == 1)
        assert np.array_equal(rows[doubled - 1], rows[doubled])  # a copy follows its original, across files too
        assert not copies[doubled - 1].any()


@pytest.mark.parametrize("kept", KEPT)
def test_full_takes_the_rows_of_a_file_evenly_from_all_partitions(engine: str, tmp_path: Path, kept: str) -> None:
    _, files = written(KEPT[kept][0], tmp_path, engine, shuffle="full")
    seen = [np.array(f["n"])[np.array(f["copy"]) == 0] if "copy" in f else np.array(f["n"]) for f in files]
    assert chi_square([np.stack([np.bincount(n // (2 * BLOCK), minlength=8) for n in seen])]) > CHANCE
    assert serial(seen) > CHANCE


@pytest.mark.promise("groups of `shuffle: worker`")
def test_worker_mixes_the_rows_of_a_group_evenly_and_no_others(engine: str, tmp_path: Path) -> None:
    _, files = written(["n"], tmp_path, engine, shuffle="worker", shuffle_groups=2)
    of_block = np.stack([np.bincount(np.array(f["n"]) // BLOCK, minlength=16) for f in files])
    first = of_block[:3].sum(axis=0)
    assert sorted(first) == [0] * 8 + [BLOCK] * 8
    assert chi_square([of_block[:3][:, first > 0], of_block[3:][:, first == 0]]) > CHANCE
    assert serial([np.searchsorted(np.sort(f["n"]), f["n"]) for f in files]) > CHANCE


def test_partition_shuffles_inside_blocks_and_moves_them_whole(engine: str, tmp_path: Path) -> None:
    _, files = written(["n"], tmp_path, engine, shuffle="partition")
    rows = np.concatenate([f["n"] for f in files]).reshape(16, BLOCK)
    assert (rows // BLOCK == rows[:, :1] // BLOCK).all()
    order = (rows[:, 0] // BLOCK).tolist()
    assert sorted(order) == list(range(16))
    assert order != sorted(order)
    assert serial(list(rows)) > CHANCE
    inside = rows % BLOCK
    assert chi_square([table_of(np.arange(BLOCK) * 10 // BLOCK, r * 10 // BLOCK, (10, 10)) for r in inside]) > CHANCE
