"""Refit: new rows on top of what was learned; ids stay, sums are those of all rows."""

from __future__ import annotations

import random
from collections import Counter
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tasks import engines, ops
from tasks.cluster.local_pool import LocalPool
from tasks.dataset import Dataset
from tasks.engines.convert.libraries import from_any
from tasks.errors import DataError, JobError
from tasks.graph.binding import Bound
from tasks.graph.node import as_node
from tasks.graph.state import State, copy_saved, load_changes, save_refit_tables
from tasks.learning import large_table_types, large_tables
from tasks.learning.growth import Base
from tasks.learning.refit_modes import modes
from tasks.ops.base import RefitDate
from tasks.workflow import Workflow
from tests.learning import close, cut, learned, learned_on
from tests.tasks.learning.test_large_vocabularies import nodes, table

DAY = date(2026, 11, 22)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything from 6 rows on is large, a base is looked up 8 rows at a time."""
    sizes = large_table_types.Sizes(splits=8, alone=6, large=6, chain=8, one_task=8, range=16)
    monkeypatch.setattr(large_table_types, "SIZES", {"pandas": sizes, "cudf": sizes})
    monkeypatch.setattr(large_tables, "SIZES", {"pandas": sizes, "cudf": sizes})
    monkeypatch.setattr("tasks.ops.keyed.MIN_PART_ROWS", {"pandas": 8, "cudf": 8})


def refitted(
    made_of: Any, rows: pa.Table, base: State, engine: str = "pandas", *, refit_date: RefitDate | None = None,
    partitions: int = 1, threads: int = 2, settings: dict[str, str] | None = None,
) -> State:  # fmt: skip
    """What a graph has learned after a refit."""
    final, source, refit_date = as_node(made_of), cut(rows, 16, partitions), refit_date or RefitDate(DAY)
    bound = Bound(final, source.plan.schema, base.values)
    begin = Base(base, base.rows, modes(bound, settings or {}, refit_date.keep_ids_only), refit_date, "v0006")
    return learned_on(LocalPool(threads), final, source, engine, begin)


def one(state: State) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The values, the values for a refit and the changes of the only step."""
    (values,), (saved,) = state.values.values(), state.partials.values()
    return values, saved, next(iter(state.changes.values()), {})


def vocabulary(values: dict[str, Any]) -> list[Any]:
    return list(values["values"].slice(0, values["size"])["v0"].to_pylist())


def counts(state: State, key: str) -> dict[Any, int]:
    """The counts of all values of a step, with and without an id. Times as integers: Python's years end at 9999."""
    tables = [state.values[key]["values"], state.partials[key].get("rest")]
    counted: dict[Any, int] = {}
    for part in [t for t in tables if t is not None]:
        stored = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in part.columns]
        names = [i for i, name in enumerate(part.column_names) if name.startswith("v")]
        values = zip(*(stored[i].to_pylist() for i in names), strict=True)
        counted |= dict(zip(values, part["count"].to_pylist(), strict=True))
    return counted


@pytest.mark.promise("every value keeps its id; new values get the next ids")
def test_newcomers_come_behind_the_old_ids_by_count_and_value(engine: str) -> None:
    coded = ["s"] >> ops.Categorify(num_buckets=2)
    base = learned(coded, cut(pa.table({"s": ["b", "a", "b", None]}), 16), engine)
    after = refitted(coded, pa.table({"s": ["z", "c", "z", "a", "d", "a", "a", None]}), base, engine)
    values, saved, change = one(after)
    assert vocabulary(values) == ["b", "a", "z", "c", "d"]
    assert values["values"]["count"].to_pylist() == [2, 4, 2, 1, 1]
    assert (values["nulls"], values["distinct"], values["occurrences"]) == (2, 5, 10)
    assert saved == {}
    assert change.pop("appended").to_pylist() == [
        {"v0": "z", "count": 2, "id": 6},
        {"v0": "c", "count": 1, "id": 7},
        {"v0": "d", "count": 1, "id": 8},
    ]
    assert change == {
        "op": "Categorify", "columns": ["s"], "mode": "appended", "why": "ids stay, new values are appended",
        "old_size": 2, "new_size": 5, "first_id": 4, "old_rows": 6, "new_rows": 9, "dimension": 16, "waiting": 0,
        "forgotten": 0,
    }  # fmt: skip
    assert after.changed["base"] == "v0006"
    assert after.changed["rows"] == {"old": 4, "new": 8}
    assert after.rows == 12


def test_a_value_crosses_the_threshold_by_its_counts_over_all_nights(engine: str) -> None:
    coded = ["s"] >> ops.Categorify(freq_threshold=3)
    base = learned(coded, cut(pa.table({"s": ["a"] * 3 + ["b", "b", "c"]}), 16), engine)
    after = refitted(coded, pa.table({"s": ["b", "c", "d", "e", "e", "e", "e"]}), base, engine)
    values, saved, change = one(after)
    assert vocabulary(values) == ["a", "e", "b"]
    assert change["waiting"] == 0  # for room: a rare value does not
    assert values["values"]["count"].to_pylist() == [3, 4, 3]
    seen = (DAY - date(1970, 1, 1)).days
    assert saved["rest"].to_pylist() == [{"v0": "c", "count": 2, "seen": seen}, {"v0": "d", "count": 1, "seen": seen}]


def test_a_full_vocabulary_takes_no_more(engine: str) -> None:
    coded = ["s"] >> ops.Categorify(max_size=6)
    base = learned(coded, cut(pa.table({"s": ["a", "a", "b"]}), 16), engine)
    half = refitted(coded, pa.table({"s": ["x", "y", "y", "w"]}), base, engine)
    assert vocabulary(one(half)[0]) == ["a", "b", "y"]
    assert one(half)[2]["waiting"] == 2
    full = refitted(coded, pa.table({"s": ["x"] * 9}), half, engine)
    values, saved, change = one(full)
    assert vocabulary(values) == ["a", "b", "y"]
    assert (change["waiting"], change["old_rows"], change["new_rows"]) == (2, 6, 6)
    assert {r["v0"]: r["count"] for r in saved["rest"].to_pylist()} == {"x": 10, "w": 1}


@pytest.mark.promise(
    "Such a value starts from zero when it comes back. Ids are never dropped",
    "flows/KEYS.md#base-and-refit",
)
def test_values_without_an_id_are_forgotten_never_ids(engine: str) -> None:
    coded = ["s"] >> ops.Categorify(freq_threshold=2)
    base = learned(coded, cut(pa.table({"s": ["a", "a", "b", "c"]}), 16), engine)
    late = RefitDate(DAY, forget_days=30, since=DAY - timedelta(days=30))
    after = refitted(coded, pa.table({"s": ["c", "d"]}), base, engine, refit_date=late)
    values, saved, change = one(after)
    assert vocabulary(values) == ["a"]
    assert {r["v0"]: r["count"] for r in saved["rest"].to_pylist()} == {"c": 1, "d": 1}  # c begins anew
    assert (change["forgotten"], values["distinct"], values["occurrences"]) == (2, 3, 4)
    again = refitted(
        coded, pa.table({"s": ["b"]}), after, engine, refit_date=RefitDate(DAY + timedelta(29), forget_days=30)
    )
    assert sorted(one(again)[1]["rest"]["v0"].to_pylist()) == ["b", "c", "d"]
    gone = refitted(
        coded, pa.table({"s": ["b"]}), after, engine, refit_date=RefitDate(DAY + timedelta(30), forget_days=30)
    )
    assert one(gone)[1]["rest"]["v0"].to_pylist() == ["b"]


@pytest.mark.parametrize("between", [[], [8]])
def test_what_is_forgotten_does_not_depend_on_the_nights_between(engine: str, between: list[int]) -> None:
    coded = ["s"] >> ops.Categorify(freq_threshold=3)
    state = learned(coded, cut(pa.table({"s": ["a", "a", "a"]}), 16), engine)
    for day, rows in [(1, ["b", "b"]), *((day, ["a"]) for day in between), (12, ["b"])]:
        refit_date = RefitDate(date(2026, 1, day), forget_days=5)
        state = refitted(coded, pa.table({"s": rows}), state, engine, refit_date=refit_date)
    assert vocabulary(one(state)[0]) == ["a"]
    assert {r["v0"]: r["count"] for r in one(state)[1]["rest"].to_pylist()} == {"b": 1}


def test_a_night_that_came_late_makes_no_count_older(engine: str) -> None:
    coded = ["s"] >> ops.Categorify(freq_threshold=3)
    state = learned(coded, cut(pa.table({"s": ["a", "a", "a"]}), 16), engine)
    nights = [(20, ["y"]), (1, ["y"]), (21, ["a"]), (22, ["y"])]  # January 1 comes after January 20
    for day, rows in nights:
        refit_date = RefitDate(date(2026, 1, day), forget_days=10)
        state = refitted(coded, pa.table({"s": rows}), state, engine, refit_date=refit_date)
        assert one(state)[2]["forgotten"] == 0
    assert vocabulary(one(state)[0]) == ["a", "y"]


@pytest.mark.promise("The embedding dimension stays that of the base, however large the vocabulary grows")
def test_the_dimension_stays_and_rows_never_shrink(engine: str) -> None:
    workflow = Workflow(["i"] >> ops.Categorify()).fit(Dataset(pa.table({"i": [1, 2]}), engine=engine))
    first = workflow.embeddings()["i"]
    workflow.refit(Dataset(pa.table({"i": list(range(500))}), engine=engine))
    assert workflow.embeddings()["i"] == {"rows": 503, "dimension": first["dimension"]}
    workflow.refit(Dataset(pa.table({"i": [7]}), engine=engine), refit_all=True)
    assert workflow.embeddings()["i"] == {"rows": 503, "dimension": first["dimension"]}


def test_to_learn_all_anew_keeps_ids_and_counts_these_rows_alone(engine: str) -> None:
    nodes = (
        (["s"] >> ops.Categorify(freq_threshold=2))
        + (["x"] >> ops.FillMedian())
        + (["x"] >> ops.Rename(postfix="_n") >> ops.Normalize())
    )
    rows = {"s": ["a", "a", "b", "b", "c"], "x": [1.0, 2.0, 3.0, 4.0, 5.0]}
    base = learned(nodes, cut(pa.table(rows), 16), engine)
    new = pa.table({"s": ["b", "d", "d", "c", None], "x": [7.0, 7.0, 9.0, None, 9.0]})
    after = refitted(nodes, new, base, engine, refit_date=RefitDate(DAY, keep_ids_only=True))
    fresh = learned(nodes, cut(new, 16), engine)
    coded, *others = after.values
    assert vocabulary(after.values[coded]) == ["a", "b", "d"]
    assert after.values[coded]["values"]["count"].to_pylist() == [0, 1, 2]
    assert after.values[coded]["nulls"] == 1
    for key in others:
        assert close(after.values[key], fresh.values[key])
    assert after.rows == 5


def test_vocabularies_of_the_job_stay_and_say_why(engine: str) -> None:
    coded = ["s"] >> ops.Categorify(vocabs=["x", "y"])
    base = learned(coded, cut(pa.table({"s": ["x"]}), 16), engine)
    after = refitted(coded, pa.table({"s": ["z"]}), base, engine)
    assert close(after.values, base.values)
    assert one(after)[2]["mode"] == "frozen"
    assert "vocabs" in one(after)[2]["why"]


def test_a_column_of_nothing_but_nulls_gets_its_first_values(engine: str) -> None:
    coded = ["i"] >> ops.Categorify()
    base = learned(coded, cut(pa.table({"i": pa.array([None, None], pa.int32())}), 16), engine)
    after = refitted(coded, pa.table({"i": pa.array([5, None], pa.int32())}), base, engine)
    assert vocabulary(one(after)[0]) == [5]
    assert one(after)[0]["nulls"] == 3
    assert one(after)[0]["values"].schema.field("v0").type == pa.int32()


@pytest.mark.parametrize("large", [False, True])
def test_a_refit_knows_what_a_fit_of_all_rows_knows(
    engine: str, large: bool, request: pytest.FixtureRequest, chains: list[int]
) -> None:
    if large:
        request.getfixturevalue("tiny")
    rows = table(150)
    base = learned(nodes(), cut(rows.slice(0, 90), 16, 2), engine)
    after = refitted(nodes(), rows.slice(90), base, engine)
    assert (max(chains, default=0) > 1) == large
    whole = learned(nodes(), cut(rows, 16, 2), engine)
    assert list(after.values) == list(whole.values)
    for key, fitted in whole.values.items():
        if "/Categorify/" not in key:
            assert close(after.values[key], fitted, 1e-12), key
            continue
        now, before = after.values[key], base.values[key]
        assert counts(after, key) == counts(whole, key), key
        assert {n: now[n] for n in ("nulls", "distinct", "occurrences")} == {
            n: fitted[n] for n in ("nulls", "distinct", "occurrences")
        }
        keys = [name for name in now["values"].column_names if name != "count"]
        old, start = before["values"].slice(0, before["size"]), now["values"].slice(0, before["size"])
        assert start.select(keys).combine_chunks().equals(old.select(keys).combine_chunks())
    exact = [key for key in whole.values if "TargetEncoding" in key or "JoinGroupby" in key]
    assert all(close(after.values[key], whole.values[key]) for key in exact if "/few" not in key)


def test_large_tables_are_learned_anew_as_in_a_fit_but_for_ids(engine: str, tiny: None, chains: list[int]) -> None:
    rows = table(150)
    new, refit_date = rows.slice(90), RefitDate(DAY, keep_ids_only=True)
    base = learned(nodes(), cut(rows.slice(0, 90), 16, 2), engine)
    alone = learned(nodes(), cut(new, 16, 2), engine)
    chains.clear()
    first = refitted(nodes(), new, base, engine, refit_date=refit_date)
    assert max(chains) > 1
    assert list(first.values) == list(alone.values)
    for key, fitted in alone.values.items():
        if "/Categorify/" not in key:
            assert close(first.values[key], fitted, 1e-12), key
            continue
        assert {value: n for value, n in counts(first, key).items() if n} == counts(alone, key)
        before, after = (state.values[key] for state in (base, first))
        keys = [name for name in after["values"].column_names if name != "count"]
        old, start = (values["values"].slice(0, before["size"]).select(keys) for values in (before, after))
        assert start.combine_chunks().equals(old.combine_chunks()), key
    other = refitted(nodes(), new, base, engine, refit_date=refit_date, partitions=3, threads=4)
    assert close(other.values, first.values)
    assert close(other.partials, first.partials)
    assert close(other.changed, first.changed)


@pytest.mark.parametrize("large", [False, True])
def test_a_column_that_was_left_out_comes_back_with_the_ids_of_a_fit(
    engine: str, large: bool, request: pytest.FixtureRequest
) -> None:
    if large:
        request.getfixturevalue("tiny")
    coded = ["b", "a"] >> ops.DropLowCardinality(2) >> ops.Categorify(freq_threshold=2)
    few = pa.table({"b": ["x"] * 40, "a": list(range(20)) * 2})
    words, numbers = [f"v{i % 20}" for i in range(60)], [*range(20), *range(19, -1, -1), *range(21)]
    many = pa.table({"b": [*words, "once"], "a": numbers})
    workflow = Workflow(coded).fit(Dataset(few, engine=engine))
    assert workflow.transform(few).column_names == ["a"]
    workflow.refit(Dataset(many, engine=engine))
    assert workflow.transform(many).column_names == ["a"]
    workflow.refit(Dataset(many, engine=engine), refit_all=True)
    fitted = Workflow(["b"] >> ops.Categorify(freq_threshold=2)).fit(Dataset(many, engine=engine))
    assert workflow.transform(many)["b"].to_pylist() == fitted.transform(many)["b"].to_pylist()
    assert workflow.transform(few)["a"].to_pylist() == [3 + i % 20 for i in range(40)]
    workflow.refit(Dataset(many.slice(60), engine=engine))
    assert workflow.transform(many)["b"].to_pylist()[60] == 23


def test_a_column_that_is_left_out_for_some_nights_comes_back_with_its_ids(engine: str, tmp_path: Path) -> None:
    coded = ["b", "a"] >> ops.DropLowCardinality(2) >> ops.Categorify()
    many, few = (pa.table({"b": b, "a": [1, 2, 3]}) for b in (["x", "y", "y"], ["x", "x", "x"]))
    workflow = Workflow(coded).fit(Dataset(many, engine=engine))
    assert workflow.transform(many)["b"].to_pylist() == [4, 3, 3]
    dimension = workflow.embeddings()["b"]["dimension"]
    for refit_all in (True, False, True):
        workflow.refit(Dataset(few, engine=engine), refit_all=refit_all)
        workflow.save(tmp_path / "w")
        workflow = Workflow.load(tmp_path / "w")
        assert workflow.transform(few).column_names == ["a"]
    back = pa.table({"b": ["z", "x", "w", "z"], "a": [1, 2, 3, 4]})
    workflow.refit(Dataset(back, engine=engine), refit_all=True)
    assert workflow.transform(back)["b"].to_pylist() == [5, 4, 6, 5]
    assert workflow.embeddings()["b"] == {"rows": 7, "dimension": dimension}
    assert workflow.changes["steps"]["2/Categorify/b"]["mode"] == "appended"
    workflow.refit(Dataset(pa.table({"b": ["v", "y"], "a": [5, 1]}), engine=engine))
    every = pa.table({"b": ["y", "x", "z", "w", "v"], "a": [1] * 5})
    assert workflow.transform(every)["b"].to_pylist() == [3, 4, 5, 6, 7]


def test_neither_workers_nor_partitions_change_a_refit(engine: str, tiny: None, chains: list[int]) -> None:
    rows = table(150)
    base = learned(nodes(), cut(rows.slice(0, 80), 16, 2), engine)
    assert max(chains) > 1
    first = refitted(nodes(), rows.slice(80), base, engine, threads=1)
    for partitions, threads in ((1, 4), (3, 2), (100, 4)):
        other = refitted(nodes(), rows.slice(80), base, engine, partitions=partitions, threads=threads)
        assert close(other.values, first.values)
        assert close(other.partials, first.partials)
        assert close(other.changed, first.changed)


@pytest.mark.promise("every value keeps its id; new values get the next ids")
@pytest.mark.parametrize(
    "settings", [{}, {"freq_threshold": 4}, {"freq_threshold": 2, "max_size": 60, "num_buckets": 3}]
)
def test_thirty_nights_move_no_id(engine: str, settings: dict[str, int]) -> None:
    draw, coded = random.Random(7), ["s"] >> ops.Categorify(**settings)
    threshold, first = settings.get("freq_threshold", 1), 2 + settings.get("num_buckets", 1)
    room = settings.get("max_size", 10**9) - first
    total: Counter[str] = Counter()
    order: list[str] = []
    state: State | None = None
    for night in range(30):
        rows = [f"{'é' * (v % 2)}{v}" for v in (int(draw.paretovariate(0.6)) % (20 + 9 * night) for _ in range(80))]
        total.update(rows)
        column = pa.table({"s": rows})
        state = refitted(coded, column, state, engine) if state else learned(coded, cut(column, 16), engine)
        newcomers = [v for v in total if v not in order and total[v] >= threshold]
        newcomers.sort(key=lambda v: (-total[v], v.encode()))
        order += newcomers[: max(room - len(order), 0)]
        values, saved, _ = one(state)
        assert vocabulary(values) == order
        assert values["values"]["count"].to_pylist() == [total[v] for v in order]
        rest = saved["rest"] if "rest" in saved else pa.table({"v0": [], "count": []})
        assert {r["v0"]: r["count"] for r in rest.to_pylist()} == {v: n for v, n in total.items() if v not in order}
    op = ops.Categorify(**settings)
    ids = pa.array(range(first, first + len(order)))
    assert op.inverse(ids, one(state)[0])[0].to_pylist() == order  # type: ignore[arg-type]


def test_groups_of_new_keys_are_put_into_key_order(engine: str) -> None:
    joined = [["a", "b"]] >> ops.JoinGroupby("x", stats=["count", "sum", "min"])
    rows = pa.table({"a": ["k", None, "k", "m"], "b": [1.5, 2.5, None, -1.0], "x": [1, 2, 3, 4]})
    base = learned(joined, cut(rows, 16), engine)
    new = pa.table({"a": ["l", None, "k", None, "z"], "b": [0.0, 2.5, 1.5, None, 9.0], "x": [5, 6, -7, 8, 9]})
    after = refitted(joined, new, base, engine)
    whole = learned(joined, cut(pa.concat_tables([rows, new]), 16), engine)
    assert close(after.values, whole.values)
    assert one(after)[2]["groups"] == {"old": 4, "new": 7, "changed": 2}


def test_sums_beyond_64_bits_are_refused_as_in_a_fit(engine: str) -> None:
    big = pa.table({"k": [1], "x": [2**62], "y": [2**62]})
    for operator in (ops.TargetEncoding("y", kfold=1), ops.JoinGroupby("x", stats=["sum"])):
        base = learned(["k"] >> operator, cut(big, 16), engine)
        with pytest.raises(DataError, match=r"beyond|overflow|int64"):
            refitted(["k"] >> operator, big, base, engine)


def test_no_row_sees_its_own_target_and_folds_go_on(engine: str) -> None:
    rng = np.random.default_rng(3)
    rows = pa.table({"k": rng.integers(0, 5, 90), "y": rng.integers(0, 2, 90)})
    encoded = ["k"] >> ops.TargetEncoding("y", drop_folds=False)
    workflow = Workflow(encoded).fit(Dataset(rows.slice(0, 50), engine=engine))
    new = workflow.refit_transform(Dataset(rows.slice(50), engine=engine))
    whole = Workflow(encoded).fit_transform(Dataset(rows, engine=engine))
    found, wanted = _lists(new), _lists(whole)
    assert found == {name: values[50:] for name, values in wanted.items()}


def _lists(made: Any) -> dict[str, list[Any]]:
    """All rows of transformed data, by column."""
    return pa.concat_tables([from_any(frame) for frame in made.frames()]).to_pydict()


def test_a_refit_goes_on_after_save_and_load(engine: str, tmp_path: Path) -> None:
    first, second = pa.table({"s": ["a", "b", "b"], "x": [1.0, 2.0, 3.0]}), pa.table({"s": ["c", "a"], "x": [4.0, 5.0]})
    made_of = (["s"] >> ops.Categorify(freq_threshold=2)) + (["x"] >> ops.Normalize())
    straight = Workflow(made_of).fit(Dataset(first, engine=engine)).refit(Dataset(second, engine=engine), night=DAY)
    Workflow(made_of).fit(Dataset(first, engine=engine)).save(tmp_path / "1")
    loaded = Workflow.load(tmp_path / "1")
    assert loaded.changes == {}
    loaded.refit(Dataset(second, engine=engine), night=DAY).save(tmp_path / "2")
    again = Workflow.load(tmp_path / "2")
    assert again.state is not None
    assert straight.state is not None
    assert close(again.state.values, straight.state.values)
    assert close(again.changes["steps"], straight.changes["steps"])
    assert close(load_changes(tmp_path / "2")["steps"], straight.changes["steps"])
    assert again.state.rows == 5
    assert again.refit(Dataset(second, engine=engine), night=DAY).changes["rows"] == {"old": 5, "new": 2}


def test_what_is_missing_for_a_refit_is_named(engine: str, tmp_path: Path) -> None:
    rows = pa.table({"s": ["a", "b"], "x": [1.0, 2.0]})
    workflow = Workflow((["s"] >> ops.Categorify()) + (["x"] >> ops.Normalize()))
    with pytest.raises(JobError, match=r"not fitted"):
        workflow.refit(rows)
    workflow.fit(Dataset(rows, engine=engine)).save(tmp_path)
    with pytest.raises(DataError, match=r"column 'x' is missing"):
        workflow.refit(Dataset(rows.select(["s"]), engine=engine))
    assert workflow.state is not None
    workflow.state.save(tmp_path / "without", keep_partials=False)
    workflow.state = State.load(tmp_path / "without")
    with pytest.raises(JobError, match=r"(?s)saved without what a refit needs.*run\.keep_partials was false"):
        workflow.refit(Dataset(rows, engine=engine))


def test_a_frozen_step_stays_and_is_not_looked_at(engine: str) -> None:
    made_of = (["x"] >> ops.Normalize()) + (["y"] >> ops.FillMedian())
    rows = pa.table({"x": [1.0, 2.0, 3.0], "y": [1.0, None, 3.0]})
    base = learned(made_of, cut(rows, 16), engine)
    after = refitted(
        made_of, pa.table({"x": [9.0, 9.0], "y": [9.0, 9.0]}), base, engine, settings={"Normalize": "freeze"}
    )
    assert close(after.values, base.values)
    assert close(after.partials, base.partials)
    assert [change["mode"] for change in after.changes.values()] == ["frozen", "frozen"]
    assert all(change["why"] for change in after.changes.values())


def test_a_vocabulary_behind_a_vocabulary_goes_on(engine: str) -> None:
    made_of = (["s"] >> ops.Categorify()) >> ops.TargetEncoding("y", kfold=1, p_smooth=0)
    base = learned(made_of, cut(pa.table({"s": ["a", "b", "b"], "y": [1, 0, 1]}), 16), engine)
    after = refitted(made_of, pa.table({"s": ["c", "a", "c"], "y": [1, 1, 0]}), base, engine)
    encoding = next(v for k, v in after.values.items() if "TargetEncoding" in k)
    groups = encoding["groups"]
    assert groups["v0"].to_pylist() == [3, 4, 5]
    assert groups["t0_count_0"].to_pylist() == [2, 2, 2]
    assert groups["t0_sum_0"].to_pylist() == [1, 2, 1]


def test_the_places_of_the_values_of_the_refit_are_handed_on(engine: str, tmp_path: Path) -> None:
    coded = ["s"] >> ops.Categorify(freq_threshold=2)
    base = learned(coded, cut(pa.table({"s": ["b", "b", "a", "a", "d", "d", "e", "e", "c"]}), 16), engine)
    after = refitted(coded, pa.table({"s": ["z", "z", "b", None, "c", "q"]}), base, engine)
    (key,), op = after.values, ops.Categorify(freq_threshold=2)
    assert vocabulary(after.values[key]) == ["a", "b", "d", "e", "c", "z"]
    table = after.refit_tables[key]
    assert dict(zip(*table.to_pydict().values(), strict=True)) == {"b": 1, "c": 4, "q": -1, "z": 5}
    kernels = engines.engine(engine)

    def places(state: State, *values: str | None) -> list[int]:
        codes = state.prepare_step(key, op, kernels).find_places([kernels.column(pa.array(values, pa.string()))])
        return [int(code) for code in codes]

    digest = after.save(tmp_path)
    save_refit_tables(tmp_path, after.refit_tables, digest)
    [vocabulary_file] = tmp_path.glob("v*-values.vocab")
    vocabulary_file.rename(tmp_path / "elsewhere")
    state = State.load_for_run(tmp_path)
    assert places(state, "z", None, "q", "b") == [5, -1, -1, 1]
    assert places(state) == []
    with pytest.raises(DataError, match=r"the table v000-values\.vocab is missing"):  # other values need the vocabulary
        places(state, "z", "a")
    (tmp_path / "elsewhere").rename(vocabulary_file)
    assert places(state, "z", "a", "x", None) == [5, 0, -1, -1]
    assert places(state, "z", "q", "b") == [5, -1, 1]


def test_without_the_tables_of_this_refit_the_whole_vocabulary_is_read(tmp_path: Path) -> None:
    coded = ["s"] >> ops.Categorify()
    base = learned(coded, cut(pa.table({"s": ["a", "b", "c"]}), 16), "pandas")
    after = refitted(coded, pa.table({"s": ["d", "b"]}), base)
    (key,) = after.values
    digest = after.save(tmp_path / "state")
    for name, damage in {
        "none": lambda folder: (folder / "of_night.json").unlink(),
        "of another": lambda folder: save_refit_tables(folder, after.refit_tables, "0" * 64),
        "cut off": lambda folder: (folder / "of_night.json").write_text("{"),
        "of another form": lambda folder: (folder / "of_night.json").write_text("[]"),
        "without its table": lambda folder: next(folder.glob("night-*.vocab")).unlink(),
        "whole": lambda folder: None,
    }.items():
        folder = tmp_path / name
        copy_saved(tmp_path / "state", folder)
        save_refit_tables(folder, after.refit_tables, digest)
        damage(folder)
        state = State.load_for_run(folder)
        assert ("values" in state.values[key]) == (name != "whole"), name
        assert state.values[key]["size"] == 4, name
