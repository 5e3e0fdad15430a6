"""Facts about orders that nothing fixes: the groups that a kernel returns (a GPU's hash tables give them in any order),
and the partials that arrive one before another. What is learned and what comes out is the same, bit by bit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tasks import ops
from tasks.cluster.local_pool import LocalPool
from tasks.engines import cpu
from tasks.graph.node import Node, as_node
from tasks.graph.seen import Seen
from tasks.graph.state import State
from tasks.learning import large_table_types
from tasks.learning.count_tables import CountTables
from tasks.learning.large_table_types import Sizes
from tasks.ops.base import Learned, Operator
from tests.examples import nightly
from tests.learning import applied as rows_of
from tests.learning import learned
from tests.tasks.learning.test_refit_properties import applied, fit, recipe, refit, reread, shuffled
from tests.tasks.ops.test_contract import CASES, ROWS, Example, example_table, graph, pieces, write_side_tables

ORDERS = pytest.mark.parametrize("orders", [range(1), *nightly([range(1, 6)])], ids=["one", "more"])
SMALL = Sizes(splits=4, alone=1, large=6, chain=5, one_task=8, range=4)
LEARNED = [case for case in CASES if issubclass(Operator.registry[str(case.values[1])], Learned)]
OF_RUNS = [case for case in CASES if Operator.registry[str(case.values[1])].run_columns]


@pytest.fixture(autouse=True)
def side_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_side_tables()


class AnyPool(LocalPool):
    """Merges what was observed in any order, two or three at a time, until a few are left."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__(1)
        self.draw = draw

    def gather(self, function: Any, merge: Any, shared: Any, items: Sequence[Any], done: Any = None) -> list[Any]:
        results = self.map(function, shared, items, done)
        while len(results) > 2:
            self.draw.shuffle(results)
            count = self.draw.choice([2, 3])
            results.append(merge([results.pop() for _ in range(count)]))
        return results


def seeds_of(orders: range, engine: str) -> Sequence[int]:
    return orders if engine == "pandas" else (1,)  # a GPU gives groups in orders of its own


def permuted(rows: int, draw: random.Random) -> np.ndarray:
    order = list(range(rows))
    draw.shuffle(order)
    return np.array(order, dtype=np.int64)


def of_any_rows(kernel: Callable[..., pa.Table], draw: random.Random) -> Callable[..., pa.Table]:
    """The kernel with the rows of its table in any order."""

    def called(*arguments: Any) -> pa.Table:
        table = kernel(*arguments)
        return table.take(pa.array(permuted(len(table), draw))).combine_chunks()

    return called


def in_any_order(draw: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of the CPU give groups in any order, as those of a GPU do."""
    codes_of, runs_of = cpu.group_codes, cpu.run_codes

    def group_codes(keys: Sequence[Any], names: Sequence[str]) -> tuple[np.ndarray, pa.Table]:
        codes, table = codes_of(keys, names)
        order = permuted(len(table), draw)
        return np.argsort(order)[codes], table.take(pa.array(order)).combine_chunks()

    def run_codes(keys: Sequence[Any]) -> np.ndarray:
        codes = runs_of(keys)
        return permuted(int(codes.max(initial=-1)) + 1, draw)[codes]

    for name in ("count_values", "merge_sums", "group_sums"):
        monkeypatch.setattr(cpu, name, of_any_rows(getattr(cpu, name), draw))
    monkeypatch.setattr(cpu, "group_codes", group_codes)
    monkeypatch.setattr(cpu, "run_codes", run_codes)


@contextmanager
def adding_with(names: Sequence[str], engine: str) -> Iterator[None]:
    """CuPy adds with CUB, as in a process of a user's, or without, as in our workers; other bits of floats come out."""
    if engine != "cudf":
        yield
        return
    from cupy._core import _accelerator

    before = _accelerator.get_routine_accelerators()
    _accelerator.set_routine_accelerators(names)
    try:
        yield
    finally:
        _accelerator.set_routine_accelerators(before)


def learned_again(
    node: Node, table: pa.Table, engine: str, folder: Path, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The digests of a fit, of a refit, and the rows that come out; `seed` None: in the order as it is."""
    pool, draw = LocalPool(1), random.Random(seed)
    with monkeypatch.context() as patch, adding_with(["cub"] if seed else [], engine):
        if seed is not None:
            pool = AnyPool(draw)
            if engine == "pandas":
                in_any_order(draw, patch)
        old = fit(node, table.slice(0, 35), engine, pool, block=4)
        first = old.save(folder / "old")
        new = refit(node, table.slice(35), State.load(folder / "old"), 35, engine, pool, block=4)
        out = applied(node, table.slice(35), reread(new, folder / "new"), 35, engine)
        return [first, new.save(folder / "again"), repr(out.to_pydict())]


@ORDERS
@pytest.mark.parametrize(("example", "name"), LEARNED)
def test_what_is_learned_has_one_order(
    example: Example, name: str, orders: range, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, table = graph(example, name), shuffled(example_table(), random.Random(name))
    expected = learned_again(node, table, engine, tmp_path, None, monkeypatch)
    for seed in seeds_of(orders, engine):
        assert learned_again(node, table, engine, tmp_path, seed, monkeypatch) == expected


@ORDERS
def test_chains_of_the_recipes_have_one_order(
    orders: range, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = shuffled(example_table(), random.Random(5))
    expected = learned_again(recipe(), table, engine, tmp_path, None, monkeypatch)
    for seed in seeds_of(orders, engine):
        assert learned_again(recipe(), table, engine, tmp_path, seed, monkeypatch) == expected


@ORDERS
def test_tables_that_are_split_have_one_order(
    orders: range, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = shuffled(example_table(), random.Random(6))
    node = as_node(["s", "i", "f", "ls", "d"]) >> ops.Categorify(freq_threshold=2)
    node += [["s", "i"]] >> ops.Categorify(combo=True, max_size=9)
    node += ["s"] >> ops.TargetEncoding("y", kfold=2)
    node += ["i"] >> ops.JoinGroupby("f", stats=["min", "max", "count"])
    monkeypatch.setitem(large_table_types.SIZES, engine, SMALL)
    expected = learned_again(node, table, engine, tmp_path, None, monkeypatch)
    for seed in seeds_of(orders, engine):
        assert learned_again(node, table, engine, tmp_path, seed, monkeypatch) == expected


@ORDERS
@pytest.mark.parametrize(("example", "name"), OF_RUNS)
def test_rows_made_of_runs_have_one_order(
    example: Example, name: str, orders: range, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = graph(example, name)
    source = pieces(node, example_table(), ROWS)
    state = learned(node, source, engine)
    expected = repr(rows_of(node, source, state, engine).to_pydict())
    for seed in seeds_of(orders, engine):
        with monkeypatch.context() as patch:
            if engine == "pandas":
                in_any_order(random.Random(seed), patch)
            assert repr(rows_of(node, source, state, engine).to_pydict()) == expected


@pytest.mark.parametrize("signs", [(0.0, -0.0), (-0.0, 0.0)])
def test_of_both_zeros_the_positive_one_is_learned(signs: tuple[float, float], engine: str, tmp_path: Path) -> None:
    """A minimum of both takes either, by the order of the rows and of what arrives."""
    table = pa.table({"k": [1, 1, 1, 1], "x": pa.array([*signs, *signs[::-1]], pa.float64())})
    node = (["x"] >> ops.NormalizeMinMax() >> ops.Rename(postfix="_n")) + (["x"] >> ops.DataStats())
    node += ["k"] >> ops.JoinGroupby("x", stats=["min", "max"])
    state = fit(node, table, engine, block=1)
    ends = [v for values in state.values.values() for n, v in values.items() if n in ("min", "max")]
    groups = next(values["groups"] for values in state.values.values() if "groups" in values)
    ends += [groups[n][0].as_py() for n in groups.column_names if n.endswith(("min", "max"))]
    assert list(map(repr, ends)) == ["0.0"] * 6


@pytest.mark.parametrize("name", ["s", "i", "b"])
def test_the_sketch_of_a_partition_has_one_order(name: str) -> None:
    draw = random.Random(name)
    counts = cpu.count_values([cpu.column(example_table()[name].combine_chunks())], ["v0"])
    several = [counts.take(pa.array(permuted(len(counts), draw))) for _ in range(3)]
    assert len({Seen(columns={"x": cpu.sketch_counts(table, False)}).to_text() for table in several}) == 1


@pytest.mark.parametrize("name", ["s", "i", "f", "t", "b", "c"])
def test_the_sketch_of_what_a_night_has_counted_has_one_order(
    name: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.learning.count_tables.FEW", 0)
    draw, sketches = random.Random(name), set()
    counts = cpu.count_values([cpu.column(example_table()[name].combine_chunks())], ["v0"])
    for _ in range(4):
        table = counts.take(pa.array(permuted(len(counts), draw)))
        seen = CountTables(engine).sketch_columns({"step": name}, {"step": [table]}, {"step": {}}, {})
        sketches.add(Seen(columns=seen.columns).to_text())
    assert len(sketches) == 1
