"""Facts about refits of every operator: with new rows alone, what is learned is what a fit of all rows learns, and ids
stay."""

from __future__ import annotations

import datetime
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import engines, ops
from tasks.cluster.local_pool import LocalPool
from tasks.cluster.pool import Pool
from tasks.core.schema import Tags
from tasks.engines.convert.python_values import to_python_list
from tasks.errors import DataError, JobError
from tasks.graph.binding import Bound, Step
from tasks.graph.node import Node, as_node
from tasks.graph.partition_work import Work
from tasks.graph.state import State
from tasks.learning.growth import Base
from tasks.learning.refit_modes import modes
from tasks.ops.base import Learned, Operator, RefitDate
from tasks.workflow.partitions import transform_partition
from tests.examples import nightly
from tests.learning import close, cut, learned_on
from tests.tasks.ops.test_contract import EXAMPLES, ROWS, Example, example_table, write_side_tables

DAY = datetime.date(2026, 11, 22)
NIGHTS = 30


@dataclass(frozen=True)
class Rule:
    """What a refit must do for an operator: the mode of its steps, and how far floats may be from a fit of all rows (0:
    not a bit)."""

    mode: str
    relative: float = 0.0


RULES = {
    "Categorify": Rule("appended"),
    "ColumnSimilarity": Rule("merged"),
    "DataStats": Rule("merged", 1e-12),
    "DropLowCardinality": Rule("frozen"),
    "FillMedian": Rule("frozen"),
    "JoinExternal": Rule("merged"),
    "JoinGroupby": Rule("merged", 1e-12),
    "Normalize": Rule("merged", 1e-12),
    "NormalizeMinMax": Rule("merged"),
    "PCA": Rule("merged", 1e-12),
    "PairwiseRegression": Rule("merged", 1e-12),
    "QuantileBucketize": Rule("frozen"),
    "ReduceDtypeSize": Rule("frozen"),
    "TargetEncoding": Rule("merged"),
    "ValueCount": Rule("frozen"),
}
BUILT_IN = {n: c for n, c in Operator.registry.items() if ":" not in n and issubclass(c, Learned)}
LEARNED = sorted(BUILT_IN)
RULES |= {name: Rule(cls.on_refit, 1e-12) for name, cls in BUILT_IN.items() if name not in RULES}  # as it declares
CASES = [pytest.param(name, e, id=f"{name}-{i}") for name in LEARNED for i, e in enumerate(EXAMPLES.get(name, []))]


@pytest.fixture(autouse=True)
def side_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_side_tables()


def fit(nodes: Any, table: pa.Table, engine: str = "pandas", pool: Pool | None = None, block: int = 7) -> State:
    source, final = cut(table, block, 2), as_node(nodes)
    return learned_on(pool or LocalPool(2), final, source, engine)


def refit(
    nodes: Any, table: pa.Table, state: State, rows: int, engine: str = "pandas", pool: Pool | None = None,
    block: int = 7, settings: Mapping[str, str] | None = None, refit_date: RefitDate | None = None,
) -> State:  # fmt: skip
    """What a graph has learned after a refit: `state` is of the `rows` rows before."""
    source, final = cut(table, block, 2), as_node(nodes)
    decided = modes(Bound(final, source.plan.schema), settings or {}, bool(refit_date and refit_date.keep_ids_only))
    base = Base(state, rows, decided, refit_date or RefitDate(DAY))
    return learned_on(pool or LocalPool(2), final, source, engine, base)


def reread(state: State, folder: Path) -> State:
    """The state as the next refit finds it."""
    state.save(folder)
    return State.load(folder)


def applied(nodes: Any, table: pa.Table, state: State, rows: int = 0, engine: str = "pandas") -> pa.Table:
    """The output of the rows that were learned from, the first of which has the number `rows`."""
    source, final = cut(table, 1 << 20), as_node(nodes)
    work = Work(source, final, source.plan.schema, engine, state, None, True, first_row=rows)
    (partition,) = source.plan.partitions
    return pa.table({name: work.kernels.host(column) for name, column in transform_partition(work, partition).items()})


def steps(nodes: Any, table: pa.Table) -> dict[str, Step]:
    bound = Bound(as_node(nodes), cut(table, ROWS).plan.schema)
    return {step.key: step for step in [*bound.learned_from_parameters, *bound.learned]}


def shuffled(table: pa.Table, draw: random.Random) -> pa.Table:
    order = list(range(len(table)))
    draw.shuffle(order)
    return table.take(pa.array(order)).combine_chunks()


def counts_of(fitted: Mapping[str, Any], beside: Mapping[str, Any]) -> Counter[Any]:
    """How often each value was counted, with and without an id."""
    counts: Counter[Any] = Counter()
    for table in (fitted["values"], beside.get("rest")):
        if table is not None:
            keys = [to_python_list(table[name]) for name in table.column_names if name.startswith("v")]
            counts.update(dict(zip(map(repr, zip(*keys, strict=True)), table["count"].to_pylist(), strict=True)))
    return counts


def vocabulary(fitted: Mapping[str, Any]) -> list[str]:
    """The values in the order of their ids."""
    table = fitted["values"].slice(0, fitted["size"])
    return list(
        map(repr, zip(*(to_python_list(table[n]) for n in table.column_names if n.startswith("v")), strict=True))
    )


def agrees(key: str, mode: str, relative: float, old: State, new: State, whole: State) -> None:
    """One step after a refit of `old`, where a fit of all rows learned `whole`."""
    if mode == "frozen":
        assert close(new.values[key], old.values[key])
    elif mode == "merged":
        assert close(new.values[key], whole.values[key], relative), (new.values[key], whole.values[key])
    else:
        before, after = vocabulary(old.values[key]), vocabulary(new.values[key])
        assert after[: len(before)] == before
        counted = [counts_of(state.values[key], state.partials.get(key, {})) for state in (new, whole)]
        assert counted[0] == counted[1]
        assert new.values[key]["nulls"] == whole.values[key]["nulls"]


def test_every_operator_that_learns_has_a_rule_and_examples() -> None:
    assert sorted(RULES) == LEARNED
    assert [name for name in LEARNED if name not in EXAMPLES] == []


@pytest.mark.parametrize("rounds", [2, *nightly([6])])
@pytest.mark.parametrize(("name", "example"), CASES)
def test_a_refit_with_new_rows_is_a_fit_of_all_rows(
    name: str, example: Example, rounds: int, engine: str, tmp_path: Path
) -> None:
    node = as_node(example.columns) >> Operator.registry[name](**example.parameters)
    draw = random.Random(f"{name} {example.columns}")
    for number in range(rounds):
        table = shuffled(example_table(), draw)
        rows = draw.choice([1, ROWS - 1]) if number == 0 else draw.randrange(1, ROWS)
        old = reread(fit(node, table.slice(0, rows), engine), tmp_path / f"{number}")
        new = refit(node, table.slice(rows), old, rows, engine)
        whole = fit(node, table, engine)
        for key, mode in modes(Bound(node, cut(table, ROWS).plan.schema), {}).items():
            own = getattr(node.op, "vocabs", None) is not None and "/s" in key
            assert mode.mode == ("frozen" if own else RULES[name].mode)
            agrees(key, mode.mode, RULES[name].relative, old, new, whole)


@pytest.mark.parametrize(("name", "example"), CASES)
def test_a_refit_is_the_same_for_any_workers_and_partitions(
    name: str, example: Example, engine: str, tmp_path: Path
) -> None:
    node = as_node(example.columns) >> Operator.registry[name](**example.parameters)
    table = shuffled(example_table(), random.Random(name))
    old = reread(fit(node, table.slice(0, 23), engine), tmp_path / "old")
    new = [refit(node, table.slice(23), old, 23, engine, LocalPool(n), block=4) for n in (1, 4)]
    assert new[0].save(tmp_path / "1") == new[1].save(tmp_path / "4")
    if engine == "cudf":
        on_cpu = refit(node, table.slice(23), old, 23, "pandas", block=4)
        assert all(close(new[0].values[k], on_cpu.values[k], max(RULES[name].relative, 1e-9)) for k in on_cpu.values)


@contextmanager
def of_cluster(cluster: Any) -> Iterator[Pool]:
    from distributed import Client

    from tasks.cluster.dask_pool import DaskPool

    with Client(cluster, set_as_default=False) as client, client.as_current():
        yield DaskPool(client)


def recipe() -> Node:
    """Chains like those of the recipes: counts filled, cut off and scaled; ids; encodings; statistics of groups."""
    counts = ["i", "f", "h"] >> ops.FillMissing(0) >> ops.Clip(min_value=0) >> ops.LogOp() >> ops.Normalize()
    ids = ["s", "n", "ls"] >> ops.Categorify(freq_threshold=2, max_size=6)
    both = [["s", "n"]] >> ops.Categorify(combo=True)
    kept_columns = ["t", "i"] >> ops.DataStats() >> ops.AddTags([Tags.ITEM_ID])
    encoded = [["s", "n"]] >> ops.TargetEncoding("y", kfold=3, dtype="float64")
    groups = ["n"] >> ops.JoinGroupby(["z", "i"], stats=["count", "sum", "mean", "std", "min", "max"])
    axes = ["f", "z"] >> ops.FillMissing(0) >> ops.PCA(1)
    renamed = kept_columns >> ops.Rename(postfix="_seen")
    return counts + ids + both + renamed + encoded + groups + axes


def test_chains_of_the_recipes_on_workers(engine: str, tmp_path: Path, cluster: Any) -> None:
    table = shuffled(example_table(), random.Random(5))
    old = reread(fit(recipe(), table.slice(0, 31), engine), tmp_path / "old")
    new, whole = refit(recipe(), table.slice(31), old, 31, engine), fit(recipe(), table, engine)
    for key, mode in modes(Bound(recipe(), cut(table, ROWS).plan.schema), {}).items():
        agrees(key, mode.mode, RULES[key.split("/")[1]].relative, old, new, whole)
    with of_cluster(cluster) as pool:
        assert refit(recipe(), table.slice(31), old, 31, engine, pool).save(tmp_path / "a") == new.save(tmp_path / "b")


# thirty nights


def nights(seed: int, rows: int = 40) -> list[pa.Table]:
    """Small tables with values that come, go and become frequent; some nights have one row or two."""
    draw, tables = random.Random(seed), []
    for night in range(NIGHTS):
        n = draw.choice([1, 2, rows, rows, rows, 2 * rows])
        words = [None if draw.random() < 0.1 else f"v{int(draw.paretovariate(0.7)) + night}" for _ in range(n)]
        numbers = [None if draw.random() < 0.1 else draw.randrange(night // 3, night + 4) for _ in range(n)]
        tables.append(
            pa.table(
                {
                    "s": pa.array(words, pa.string()),
                    "n": pa.array(numbers, pa.int32()),
                    "l": pa.array([[w, "v1", None][: draw.randrange(4)] for w in words], pa.list_(pa.string())),
                    "x": pa.array([draw.gauss(night, 3) for _ in range(n)], pa.float64()),
                    "y": pa.array([draw.randrange(2) for _ in range(n)], pa.int8()),
                }
            )
        )
    return tables


THRESHOLD, SIZE, BUCKETS = 3, 24, 2


def every_night() -> Node:
    ids = ["n", "l"] >> ops.Categorify()
    limited = ["s"] >> ops.Categorify(freq_threshold=THRESHOLD, max_size=SIZE, num_buckets=BUCKETS)
    joint = [["s", "n"]] >> ops.Categorify(combo=True)
    scaled = ["x"] >> ops.Normalize() >> ops.Rename(name="x_scaled")
    profile = ["x"] >> ops.DataStats() >> ops.Rename(name="x_seen")
    ranged = ["x"] >> ops.NormalizeMinMax() >> ops.Rename(name="x_ranged")
    encoded = ["s"] >> ops.TargetEncoding("y", kfold=3)
    groups = ["s"] >> ops.JoinGroupby("x", stats=["count", "sum", "std"])
    return ids + limited + joint + scaled + profile + ranged + encoded + groups


def grown(ids: dict[str, int], counts: Counter[str], rows: Sequence[str | None]) -> None:
    """The rule of ids, in Python: newcomers that are frequent enough get ids behind the others, as far as there is
    room, the most frequent first, equal counts by value."""
    counts.update(value for value in rows if value is not None)
    new = sorted((v for v, n in counts.items() if v not in ids and n >= THRESHOLD), key=lambda v: (-counts[v], v))
    for value in new[: SIZE - 2 - BUCKETS - len(ids)]:
        ids[value] = 2 + BUCKETS + len(ids)


@pytest.mark.parametrize("seed", [1, *nightly([2])])
def test_after_thirty_nights_ids_are_where_they_were_and_all_else_is_a_fit_of_all_rows(
    seed: int, engine: str, tmp_path: Path
) -> None:
    tables, node = nights(seed), every_night()
    first, *later = tables
    state, rows, ids, counts = fit(node, first, engine), first.num_rows, dict[str, int](), Counter[str]()
    grown(ids, counts, first["s"].to_pylist())
    given = {key: list[str]() for key, step in steps(node, first).items() if isinstance(step.op, ops.Categorify)}
    for number, table in enumerate(later):
        state = reread(state, tmp_path / f"{number}")
        for key, order in given.items():
            now = vocabulary(state.values[key])
            assert now[: len(order)] == order
            given[key] = now
        state = refit(node, table, state, rows, engine, refit_date=RefitDate(DAY + datetime.timedelta(number)))
        rows += table.num_rows
        grown(ids, counts, table["s"].to_pylist())
    (limited,) = [k for k, s in steps(node, first).items() if isinstance(s.op, ops.Categorify) and s.op.max_size]
    assert vocabulary(state.values[limited]) == [repr((value,)) for value in ids]
    whole = fit(node, pa.concat_tables(tables).combine_chunks(), engine)
    for key, mode in modes(Bound(node, cut(first, ROWS).plan.schema), {}).items():
        agrees(key, mode.mode, RULES[key.split("/")[1]].relative, state, state, whole)
        if mode.mode == "appended":
            assert vocabulary(state.values[key])[: len(given[key])] == given[key]


def test_every_id_ever_written_means_the_same_value_for_ever(engine: str, tmp_path: Path) -> None:
    """The ids in the output of each night, turned into values by the workflow of the last one."""
    tables, node = nights(3), ["s"] >> ops.Categorify(freq_threshold=THRESHOLD, num_buckets=BUCKETS)
    state, rows, written = State(), 0, []
    for number, table in enumerate(tables):
        state = refit(node, table, state, rows, engine) if number else fit(node, table, engine)
        state = reread(state, tmp_path / f"{number}")
        rows += table.num_rows
        written.append((table["s"].to_pylist(), applied(node, table, state, engine=engine)["s"]))
    (fitted,), op = state.values.values(), node.op
    assert isinstance(op, ops.Categorify)
    for values, ids in written:
        (meant,) = op.inverse(ids.combine_chunks(), fitted)
        for value, again, number in zip(values, meant.to_pylist(), ids.to_pylist(), strict=True):
            assert again == (value if number >= 2 + BUCKETS else None)
    assert any(number >= 2 + BUCKETS for _, ids in written[10:] for number in ids.to_pylist())


def test_one_night_of_many_rows_and_many_nights_of_few_learn_the_same(tmp_path: Path) -> None:
    """Merging is the same whether the rows come in one night, or in ten: but for ids, which come as values do."""
    tables, node = nights(4)[:10], every_night()
    all_later = pa.concat_tables(tables[1:]).combine_chunks()
    start = fit(node, tables[0])
    at_once = refit(node, all_later, start, tables[0].num_rows)
    state, rows = start, tables[0].num_rows
    for table in tables[1:]:
        state, rows = refit(node, table, state, rows), rows + table.num_rows
    for key, mode in modes(Bound(node, cut(tables[0], ROWS).plan.schema), {}).items():
        relative = RULES[key.split("/")[1]].relative
        if mode.mode == "merged":
            assert close(state.values[key], at_once.values[key], relative)
        else:
            both = [counts_of(s.values[key], s.partials.get(key, {})) for s in (state, at_once)]
            assert both[0] == both[1]


# what is behind ids, and out of fold


def test_behind_ids_a_step_learns_what_is_on_disk(engine: str, tmp_path: Path) -> None:
    """Ids do not move, so what was learned under the ids of earlier nights is right: the statistics after a refit are
    those of the ids that were written, night by night."""
    ids = ["s"] >> ops.Categorify(freq_threshold=THRESHOLD, num_buckets=BUCKETS)
    node = ids + (ids >> ops.JoinGroupby("x", stats=["count", "sum", "min"]))
    tables, state, rows, on_disk = nights(6)[:8], State(), 0, []
    for number, table in enumerate(tables):
        state = refit(node, table, state, rows, engine) if number else fit(node, table, engine)
        state = reread(state, tmp_path / f"{number}")
        rows += table.num_rows
        out = applied(node, table, state, engine=engine)
        on_disk.append(pa.table({"s": out["s"], "x": table["x"]}))
    plain = ["s"] >> ops.JoinGroupby("x", stats=["count", "sum", "min"])
    (expected,) = fit(plain, pa.concat_tables(on_disk).combine_chunks(), engine).values.values()
    (key,) = [k for k in state.values if "JoinGroupby" in k]
    assert close(state.values[key]["groups"].to_pylist(), expected["groups"].to_pylist())


@pytest.mark.promise("Row numbers go on from night to night, so that out-of-fold encodings never see their own target")
def test_no_row_of_any_night_sees_its_own_target(engine: str) -> None:
    """Another target in one row of a night: its own encoding stays, bit by bit, in the output of that night."""
    tables = [t for t in nights(7) if t.num_rows > 10][:4]
    encoding = ops.TargetEncoding("y", kfold=4, p_smooth=2.0, target_mean=0.25, dtype="float64")
    node = ["n"] >> encoding
    draw, others_moved = random.Random(1), 0

    def written(tables: Sequence[pa.Table]) -> list[list[float]]:
        state, rows, out = State(), 0, []
        for number, table in enumerate(tables):
            state = refit(node, table, state, rows, engine) if number else fit(node, table, engine)
            out.append(applied(node, table, state, rows, engine)["TE_n_y"].to_pylist())
            rows += table.num_rows
        return out

    before = written(tables)
    for number, table in enumerate(tables):
        for row in draw.sample(range(table.num_rows), 4):
            targets = table["y"].to_pylist()
            targets[row] = 1 - targets[row]
            changed = table.set_column(table.column_names.index("y"), "y", pa.array(targets, pa.int8()))
            after = written([*tables[:number], changed, *tables[number + 1 :]])
            assert after[number][row] == before[number][row]
            assert after[:number] == before[:number]
            others_moved += after != before
    assert others_moved > 8


def test_folds_of_new_rows_go_on_behind_those_of_old_ones(engine: str) -> None:
    table = nights(8)[2] if nights(8)[2].num_rows else nights(8)[3]
    node = ["n"] >> ops.TargetEncoding("y", kfold=4, drop_folds=False)
    half = table.num_rows // 2
    whole = applied(node, table, fit(node, table, engine), 0, engine)["__fold__"].to_pylist()
    old = fit(node, table.slice(0, half), engine)
    new = refit(node, table.slice(half), old, half, engine)
    assert applied(node, table.slice(half), new, half, engine)["__fold__"].to_pylist() == whole[half:]


# frozen steps, settings, operators of one's own


def test_frozen_steps_say_what_a_fit_would_make_different(engine: str) -> None:
    node = (
        (["a"] >> ops.ReduceDtypeSize())
        + (["l"] >> ops.ValueCount())
        + (["b", "a"] >> ops.DropLowCardinality(3) >> ops.Rename(postfix="_few"))
    )

    def rows(a: list[int], b: list[str], lists: list[list[int]]) -> pa.Table:
        return pa.table({"a": a, "b": b, "l": lists})

    old = fit(node, rows([1, 2, 3], ["x", "x", "y"], [[1], [1, 2], []]), engine)
    same = refit(node, rows([4], ["x"], [[1]]), old, 3, engine)
    would = {key.split("/", 1)[1]: change["would"] for key, change in same.changes.items()}
    assert set(would.values()) == {None}
    new = refit(node, rows([100], ["z"], [[1, 2, 3, 4]]), same, 4, engine)
    would = {key.split("/", 1)[1]: change["would"] for key, change in new.changes.items()}
    assert would["ValueCount/l"] == "value_count would be 0 to 4, not 0 to 2"
    assert would["DropLowCardinality/b"] == "b would be kept: it has 3 distinct values or more"
    assert would["DropLowCardinality/a"] is None
    assert would["ReduceDtypeSize/a"] is None
    assert {k: v for k, v in new.values.items() if "Drop" in k or "Reduce" in k or "Value" in k} == old.values


def test_what_is_frozen_by_the_job_stays(engine: str) -> None:
    node = every_night()
    tables = [t for t in nights(9) if t.num_rows > 20][:2]
    old = fit(node, tables[0], engine)
    settings = {"Normalize": "freeze", "JoinGroupby": "freeze", "l": "freeze"}
    new = refit(node, tables[1], old, tables[0].num_rows, engine, settings=settings)
    for key in old.values:
        frozen = any(word in key for word in ("/Normalize/", "JoinGroupby", "Categorify/l"))
        assert close(new.values[key], old.values[key]) == frozen, key


def test_a_chain_of_a_merged_step_and_one_behind_it(engine: str) -> None:
    node = ["x"] >> ops.Normalize() >> ops.NormalizeMinMax()
    tables = [t for t in nights(10) if t.num_rows > 20][:2]
    old = fit(node, tables[0], engine)
    new = refit(node, tables[1], old, tables[0].num_rows, engine)
    first, second = old.values
    assert new.values[first] != old.values[first]
    assert new.values[second] == old.values[second]
    new = refit(node, tables[1], old, tables[0].num_rows, engine, settings={"Normalize": "freeze"})
    assert new.values[first] == old.values[first]
    assert new.values[second] != old.values[second]


class OwnSum(Learned):
    """An operator of one's own, without a word on refits: its partial is a tuple with a dict of numbers."""

    def observe(self, column: Any) -> tuple[int, dict[int, int]]:
        values = [v for v in engines.engine_of(column).host(column).to_pylist() if v is not None]
        return sum(values), dict(Counter(v % 3 for v in values))

    def merge(self, a: tuple[int, dict[int, int]], b: tuple[int, dict[int, int]]) -> tuple[int, dict[int, int]]:
        return a[0] + b[0], {k: a[1].get(k, 0) + b[1].get(k, 0) for k in sorted({*a[1], *b[1]})}

    def finalize(self, partial: tuple[int, dict[int, int]]) -> dict[str, Any]:
        total, classes = partial
        return {"total": total, "classes": [classes.get(k, 0) for k in range(3)]}

    def transform(self, column: Any, fitted: dict[str, Any]) -> Any:
        return column


def test_an_operator_of_ones_own_is_merged_by_the_partial_that_was_saved(engine: str, tmp_path: Path) -> None:
    table, node = example_table(), ["i"] >> OwnSum()
    old = reread(fit(node, table.slice(0, 33), engine), tmp_path / "old")
    new = reread(refit(node, table.slice(33, 10), old, 33, engine), tmp_path / "new")
    last = refit(node, table.slice(43), new, 43, engine)
    assert last.values == fit(node, table, engine).values
    (change,) = last.changes.values()
    assert change["mode"] == "merged"
    assert change["old"]["total"] == next(iter(new.values.values()))["total"]
    assert change["new"]["total"] == next(iter(last.values.values()))["total"]


def test_pairs_of_nights_are_one_after_another() -> None:
    """The tables of a seed are the same every time, so that a failure can be looked at."""
    assert all(a.equals(b) for a, b in zip(nights(1), nights(1), strict=True))
    assert any(not a.equals(b) for a, b in pairwise(nights(1)))


# learning all anew, side tables


def test_learning_all_anew_is_a_fit_of_these_rows_but_for_ids(engine: str) -> None:
    tables = [t for t in nights(11) if t.num_rows > 20][:3]
    node = every_night() + (["x"] >> ops.FillMedian() >> ops.Rename(name="x_median"))
    old = refit(node, tables[1], fit(node, tables[0], engine), tables[0].num_rows, engine)
    rows = tables[0].num_rows + tables[1].num_rows
    anew = refit(node, tables[2], old, rows, engine, refit_date=RefitDate(DAY, keep_ids_only=True))
    alone = fit(node, tables[2], engine)
    for key, mode in modes(Bound(node, cut(tables[0], ROWS).plan.schema), {}, refit_all=True).items():
        if mode.mode == "appended":
            before, after = vocabulary(old.values[key]), vocabulary(anew.values[key])
            assert after[: len(before)] == before
            counts, only = (counts_of(s.values[key], s.partials.get(key, {})) for s in (anew, alone))
            assert {v: n for v, n in counts.items() if n} == only
        elif "TargetEncoding" not in key:  # its folds go on behind the rows of the base
            assert close(anew.values[key], alone.values[key])


def test_a_column_that_was_dropped_comes_back_when_all_is_learned_anew(engine: str) -> None:
    node = ["b", "a"] >> ops.DropLowCardinality(2) >> ops.Categorify()
    one, two = pa.table({"a": [1, 2, 3], "b": ["x", "x", "x"]}), pa.table({"a": [4, 4], "b": ["y", "z"]})
    old = fit(node, one, engine)
    assert applied(node, one, old, engine=engine).column_names == ["a"]
    night = refit(node, two, old, 3, engine)
    assert applied(node, two, night, 3, engine).to_pydict() == {"a": [6, 6]}
    anew = refit(node, two, night, 5, engine, refit_date=RefitDate(DAY, keep_ids_only=True))
    assert applied(node, two, anew, 5, engine).to_pydict() == {"b": [3, 4]}
    again = refit(node, pa.table({"a": [2, 5], "b": ["x", "y"]}), night, 5, engine)
    assert {change["would"] for key, change in again.changes.items() if "Drop" in key} == {
        None, "b would be kept: it has 2 distinct values or more"
    }  # fmt: skip


def side_table(prices: list[float], name: str = "price") -> None:
    pq.write_table(pa.table({"n": list(range(len(prices))), name: prices}), "prices.parquet")


def test_a_side_table_is_read_again_and_named_where_it_differs(engine: str) -> None:
    joined = (["n"] >> ops.JoinExternal("prices.parquet", on="n"))["price"] >> ops.NormalizeMinMax()
    rows = pa.table({"n": [0, 1, 1]})
    side_table([1.0, 2.0])
    old = fit(joined, rows, engine)
    assert not [c for c in refit(joined, rows, old, 3, engine).changes.values() if c["op"] == "JoinExternal"]
    side_table([1.0, 5.0])
    new = refit(joined, rows, old, 3, engine)
    (change,) = [c for c in new.changes.values() if c["op"] == "JoinExternal"]
    assert "prices.parquet of JoinExternal of 'n' differs from what the base read" in change["why"]
    assert [key.split("/", 1)[1] for key in change["behind"]] == ["NormalizeMinMax/price"]
    assert list(new.values.values())[-1] == {"min": 1.0, "max": 5.0}
    frozen = refit(joined, rows, old, 3, engine, settings={"JoinExternal": "freeze"})
    assert list(frozen.values.values())[-1] == {"min": 1.0, "max": 2.0}
    side_table([1.0, 5.0], "cost")
    with pytest.raises((DataError, JobError), match=r"price|other columns than in the base"):
        refit(joined, rows, old, 3, engine)
    everything = ["n"] >> ops.JoinExternal("prices.parquet", on="n")
    side_table([1.0, 2.0])
    old = fit(everything, rows, engine)
    side_table([1.0, 5.0], "cost")
    with pytest.raises(DataError, match=r"other columns than in the base(.|\n)*cost, price(.|\n)*JoinExternal: freeze"):
        refit(everything, rows, old, 3, engine)


class OwnPair(NamedTuple):
    total: int
    rows: int


class OwnNamed(OwnSum):
    """Its partial is a class of its own, which no file holds."""

    def observe(self, column: Any) -> Any:
        return OwnPair(super().observe(column)[0], 1)

    def merge(self, a: Any, b: Any) -> Any:
        return OwnPair(a.total + b.total, a.rows + b.rows)

    def finalize(self, partial: Any) -> dict[str, Any]:
        return {"total": partial.total}


class OwnSlim(OwnSum):
    """It saves no partial."""

    def kept_partial(self, partial: Any, fitted: Mapping[str, Any]) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("operator", "text"),
    [
        (OwnNamed, r"partial of OwnNamed cannot be read again(.|\n)*OwnPair(.|\n)*define restored"),
        (OwnSlim, r"the base has not saved what a refit of OwnSlim of 'i' needs(.|\n)*freeze the step"),
    ],
)
def test_an_operator_whose_partial_cannot_be_read_again_says_why(
    operator: type[Learned], text: str, engine: str, tmp_path: Path
) -> None:
    table, node = example_table(), ["i"] >> operator()
    old = reread(fit(node, table.slice(0, 33), engine), tmp_path / "old")
    with pytest.raises(DataError, match=text):
        refit(node, table.slice(33), old, 33, engine)
    frozen = refit(node, table.slice(33), old, 33, engine, settings={f"{__name__}:{operator.__name__}": "freeze"})
    assert frozen.values == old.values
