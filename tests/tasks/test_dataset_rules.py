"""`unique`, `split` and `downsample` of a Dataset: the rows are those of a job with the same keys."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.job.job import make_job
from tasks import ops
from tasks.core.settings import Unique
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError, RowmillError
from tasks.manifest import Manifest
from tasks.shuffle import key_ranges
from tasks.workflow import Workflow
from tests.examples import examples
from tests.flows.runs import rows_of
from tests.frames import to_list, write_parts
from tests.stages import run_stages
from tests.tasks.shuffle.test_row_sets import ROWS, staying, table_of

DAY = dt.datetime(2026, 11, 1)


def write_data(folder: Path, rows: int = 300, files: int = 3, text: bool = False) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"i": np.arange(rows), "u": rng.integers(0, 50, rows), "y": np.arange(rows) % 3 // 2})
    frame["t"] = [
        None if i % 40 == 7 else DAY + dt.timedelta(hours=int(h)) for i, h in enumerate(rng.integers(0, 150, rows))
    ]
    frame["x"] = rng.normal(size=rows)
    if not text:
        write_parts(folder, frame, files)
        return frame
    folder.mkdir(parents=True)
    for number, part in enumerate(np.array_split(np.arange(rows), files)):
        frame.iloc[part].to_csv(folder / f"{number}.csv", index=False)
    return frame


def numbers(data: Any, column: str = "i") -> list[int]:
    """A column of a data set, or of rows that a workflow made, in order."""
    return [int(value) for frame in data.to_iter() for value in pa_column(frame[column])]


def pa_column(values: Any) -> list[Any]:
    return values.to_arrow().to_pylist() if hasattr(values, "to_arrow") else values.tolist()


@pytest.mark.promise("The same rules are methods of a `Dataset`, and their rows are those of the job")
@examples(25)
@given(
    rows=ROWS, keep=st.sampled_from(["first", "last"]), keys=st.sampled_from([["s"], ["n"], ["s", "n"]]),
    by=st.sampled_from([None, "t", "n"]), size=st.sampled_from([1, 200, None]),
)  # fmt: skip
def test_one_row_of_each_key_stays_as_in_pandas(
    rows: list[tuple[Any, Any, Any]], keep: Any, keys: list[str], by: str | None, size: int | None, engine: str
) -> None:
    table = table_of(rows).append_column("i", pa.array(range(len(rows))))
    data = Dataset(table, engine=engine, partition_size=size).unique(keys, keep=keep, by=by)
    stay = staying(table.to_pandas(), Unique(keys=keys, keep=keep, by=by))
    assert numbers(data) == sorted(stay)
    assert data.num_rows == len(stay)


SPLITS: list[dict[str, Any]] = [
    {"by": "last", "column": "t", "together": ["u"], "valid": 1, "test": 1},
    {"by": "time", "column": "t", "valid": 0.1, "test": 0.2},
    {"by": "time", "column": "t", "valid": "2026-11-05T04:00:00", "test": "2026-11-06"},
    {"by": "time", "column": "t", "together": ["u"], "test": 0.2},
    {"by": "hash", "together": ["u"], "valid": 0.2, "seed": 3},
    {"by": "fraction", "valid": 0.1, "test": 0.2, "seed": 5},
    {"by": "column", "column": "y", "test": 1},
]  # fmt: skip
KEYED = [{}, {"keys": ["u"], "sort_by": ["t"]}]
DOWN = {"where": "y == 0", "fraction": 0.5, "weight": "w", "seed": 1}


def job_of(tmp_path: Path, source: dict[str, Any], weighted: bool) -> dict[str, Any]:
    return {
        "source": {"path": str(tmp_path / "data"), **source},
        "features": [
            {"columns": ["i", *(["w"] if weighted else [])]},
            {"columns": ["u"], "ops": [{"op": "Categorify"}]},
            {"columns": ["x"], "ops": [{"op": "Normalize"}]},
        ],
        "output": {"path": str(tmp_path / "job"), "shuffle": "full", "seed": 3, "files": 2},
        "run": {"min_partition_size": 1},
    }


@pytest.mark.promise("The same rules are methods of a `Dataset`, and their rows are those of the job")
@pytest.mark.promise(
    "`downsample` before `split` leaves rows out of train alone, and gives valid and test the weight 1"
)
@pytest.mark.parametrize("split", SPLITS, ids=lambda split: f"{split['by']}-{split.get('together')}")
@pytest.mark.parametrize("keyed", KEYED, ids=["plain", "keyed"])
def test_the_rows_are_those_of_a_job(split: dict[str, Any], keyed: dict[str, Any], tmp_path: Path, engine: str) -> None:
    write_data(tmp_path / "data")
    unique = {"keys": ["u", "t"], "keep": "last"}
    source = {"unique": unique, "split": split, "downsample": DOWN, **keyed, "partition_size": 3000}
    run_stages(make_job(job_of(tmp_path, source, weighted=True)).request(engine))
    data = Dataset(str(tmp_path / "data"), engine=engine, partition_size=3000).unique(**unique).downsample(**DOWN)
    data = data.shuffle_by_keys(keyed["keys"], keyed["sort_by"]) if keyed else data
    splits = data.split(**split)
    workflow = Workflow(["i", "w"] + (["u"] >> ops.Categorify()) + (["x"] >> ops.Normalize()))
    for name, rows in splits.items():
        out = workflow.fit_transform(rows) if name == "train" else workflow.transform(rows)
        manifest = out.to_parquet(str(tmp_path / name), seed=3, files=2)
        wanted, known = rows_of(tmp_path / "job" / name), rows_of(tmp_path / name)
        assert known.equals(wanted)
        rules = Manifest.load(tmp_path / "job" / name).data["row_rules"]
        assert {rule: of for rule, of in manifest.data["row_rules"].items() if rule != "split"} == {
            rule: of for rule, of in rules.items() if rule != "split"
        }
        of_job = rules["split"]["rows"], rules["split"].get("divided")
        assert (
            manifest.data["row_rules"]["split"]["rows"],
            manifest.data["row_rules"]["split"].get("divided"),
        ) == of_job
        assert rows.num_rows == known.num_rows
        assert sorted(numbers(rows)) == sorted(known["i"].to_pylist())


def test_rows_may_be_brought_together_before_or_after(tmp_path: Path, engine: str) -> None:
    frame = write_data(tmp_path / "data")
    rule = {"by": "last", "column": "t", "together": "u", "valid": 1, "test": 1}
    plain = Dataset(frame, engine=engine).split(**rule)
    before = Dataset(frame, engine=engine).shuffle_by_keys("u", sort_by="t").split(**rule)
    for name, rows in plain.items():
        after = rows.shuffle_by_keys("u", sort_by="t")
        assert numbers(before[name]) == numbers(after)
        assert sorted(numbers(after)) == numbers(rows)


def test_histories_of_test_look_back_into_train_and_valid(engine: str) -> None:
    table = pa.table({"u": ["a", "b", "a", "a", "b", "a"], "t": [1, 1, 4, 2, 2, 3], "item": [10, 20, 13, 11, 21, 12]})
    data = Dataset(table, engine=engine).shuffle_by_keys("u", sort_by="t")
    splits = data.split("last", column="t", together="u", valid=1, test=1)
    workflow = Workflow(["item"] + (["item"] >> ops.History(9, "u"))).fit(splits["train"])
    out = {name: workflow.transform(rows).head(9) for name, rows in splits.items()}
    lists = {
        name: dict(zip(pa_column(rows["item"]), [[*items] for items in pa_column(rows["item_history"])], strict=True))
        for name, rows in out.items()
    }
    assert lists == {"train": {10: [], 11: [10], 20: [], 21: [20]}, "valid": {12: [10, 11]}, "test": {13: [10, 11, 12]}}
    groups = Workflow(["u", "item", "t"] >> ops.Groupby("u", "t", {"item": "list"})).fit(splits["train"])
    lasts = {name: [[int(x) for x in items] for items in pa_column(groups.transform(rows).head(9)["item_list"])]
             for name, rows in splits.items()}  # fmt: skip
    assert sorted(lasts["train"]) == [[10, 11], [20, 21]]
    assert (lasts["valid"], lasts["test"]) == ([[10, 11, 12]], [[10, 11, 12, 13]])


def features_of_runs() -> Workflow:
    features = ["item", "u"] + (["item"] >> ops.History(99, "u"))
    features += ["item"] >> ops.NormalizeMinMax() >> ops.Rename(name="scaled")
    return Workflow(features + (["u"] >> ops.JoinGroupby(cont_cols=["item"], stats=["count", "sum"])))


def by_item(frame: Any) -> list[dict[str, Any]]:
    table = frame.to_arrow() if hasattr(frame, "to_arrow") else pa.Table.from_pandas(frame, preserve_index=False)
    return sorted(table.to_pylist(), key=lambda row: row["item"])


@examples(25)
@given(
    rows=st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.integers(0, 9))), min_size=1, max_size=40),
    valid=st.sampled_from([None, 1, 2]), test=st.integers(1, 2), size=st.sampled_from([1, None]),
)  # fmt: skip
def test_train_is_as_if_later_rows_had_never_been_there(
    rows: list[tuple[str, Any]], valid: int | None, test: int, size: int | None, engine: str
) -> None:
    times = pd.array([t for _, t in rows], "Int64")
    frame = pd.DataFrame({"u": [u for u, _ in rows], "t": times, "item": range(len(rows))})
    data = Dataset(frame, engine=engine, partition_size=size).shuffle_by_keys("u", sort_by="t")
    splits = data.split("last", column="t", together="u", valid=valid, test=test)
    sizes = frame.dropna().groupby("u").size()
    if not (sizes > test + (valid or 0)).any():
        with pytest.raises(DataError, match="no row"):
            numbers(splits["train"])
        return
    train, workflow = numbers(splits["train"], "item"), features_of_runs()
    whole = by_item(workflow.fit_transform(splits["train"]).head(99))
    alone = Dataset(frame.iloc[sorted(train)], engine=engine).shuffle_by_keys("u", sort_by="t")
    assert whole == by_item(features_of_runs().fit_transform(alone).head(99))
    order, seen = frame.sort_values("t", kind="stable", na_position="first"), {*train}
    for name in [name for name in ("valid", "test") if name in splits]:
        out = by_item(workflow.transform(splits[name]).head(99))
        seen |= {row["item"] for row in out}
        for row in out:
            items = [i for i in order.index[order["u"] == row["u"]] if i in seen]
            assert row["item_history"] == items[: items.index(row["item"])]


@pytest.mark.promise("`head` and `num_rows` go by the rows that stay")
def test_every_way_to_read_gives_the_rows_that_stay(engine: str) -> None:
    table = pa.table({"i": [0, 1, 2, 3, 4, 5], "u": [1, 1, 2, 2, 3, None], "s": ["a", "b", None, "a", "b", "c"]})
    data = Dataset(table, engine=engine, partition_size=1).unique("u").downsample("i >= 4", 1.0, "w")
    assert numbers(data) == [0, 2, 4, 5]
    assert [None if pd.isna(text) else text for text in pa_column(data.head(3)["s"])] == ["a", None, "b"]
    assert pa_column(data.head(9)["w"]) == [1.0] * 4
    assert pa_column(next(iter(data.to_iter(["w", "i"])))["w"]) == [1.0] * 4
    computed = data.to_ddf(["i", "w"]).compute()
    assert (pa_column(computed["i"]), [*computed.columns]) == ([0, 2, 4, 5], ["i", "w"])
    assert [*data.schema] == ["i", "u", "s", "w"]
    assert data.num_rows == 4
    with pytest.raises(DataError, match="there is no column 'v'"):
        data.to_ddf(["v"])


@pytest.mark.promise("One look at all rows serves all splits")
def test_texts_are_read_as_in_the_fit_and_split_once(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = write_data(tmp_path / "data", text=True)
    looks: list[str] = []
    whole = key_ranges.reduce_by_key
    monkeypatch.setattr(
        "tasks.shuffle.row_sets.reduce_by_key", lambda *args, **more: looks.append("look") or whole(*args, **more)
    )
    path = str(tmp_path / "data" / "*.csv")
    splits = Dataset(path, engine=engine).split("last", column="t", together="u", valid=1, test=1)
    assert not looks
    workflow = Workflow(["i"] + (["x"] >> ops.Normalize())).fit(splits["train"])
    rows = {name: numbers(workflow.transform(data)) for name, data in splits.items()}
    assert sorted(i for part in rows.values() for i in part) == [*frame["i"]]
    assert len(looks) <= 2


@pytest.mark.promise("`head` and `num_rows` go by the rows that stay")
def test_a_workflow_is_refitted_on_the_rows_that_stay(engine: str) -> None:
    table = pa.table({"k": ["a", "a", "b"], "x": [1.0, 3.0, 5.0]})
    later = pa.table({"k": ["a", "c", "c", "d"], "x": [9.0, 9.0, 2.0, 4.0]})
    workflow = Workflow((["k"] >> ops.Categorify()) + (["x"] >> ops.NormalizeMinMax())).fit(
        Dataset(table, engine=engine)
    )
    workflow.refit(
        Dataset(later, engine=engine).unique("k", keep="last").split("column", column="k", test="a")["train"]
    )
    out = workflow.transform(pa.table({"k": ["d", "c", "b", "a"], "x": [1.0, 5.0, 3.0, 3.0]}))
    assert out["k"].to_pylist()[2:] == [4, 3]
    assert {*out["k"].to_pylist()[:2]} == {5, 6}
    assert out["x"].to_pylist() == [0.0, 1.0, 0.5, 0.5]  # 9.0 of a was in test, that of c repeated


@pytest.mark.parametrize("unit", ["s", "ms", "ns"])
def test_moments_hold_in_the_types_of_a_fit_too(unit: str, engine: str) -> None:
    times = [1_767_225_600 + 60 * i for i in range(10)]
    fitted = pa.table({"i": range(10), "t": pa.array(times).cast(pa.timestamp("s")).cast(pa.timestamp("us"))})
    workflow = Workflow(["i", "t"]).fit(Dataset(fitted, engine=engine))
    table = fitted.set_column(1, "t", fitted["t"].cast(pa.timestamp(unit)))
    splits = Dataset(table, engine=engine).split("time", column="t", valid=0.2, test=0.3)
    rows = {name: numbers(workflow.transform(part)) for name, part in splits.items()}
    assert rows == {"train": [0, 1, 2, 3, 4], "valid": [5, 6], "test": [7, 8, 9]}


def test_the_weight_of_train_is_left_out_where_rows_have_none(engine: str) -> None:
    table = pa.table({"i": list(range(40)), "y": [i % 4 for i in range(40)]})
    splits = Dataset(table, engine=engine).split("fraction", test=0.3)
    train = splits["train"].downsample("y > 0", 0.5, "w")
    workflow = Workflow(["i", "w"])
    assert 0 < sum(value == 2.0 for value in numbers(workflow.fit_transform(train), "w")) < 25
    assert workflow.transform(splits["test"]).left_out == ["w"]
    with pytest.raises(JobError, match="the rows of test are not down-sampled"):
        splits["test"].downsample("y > 0", 0.5)


def test_the_same_rows_on_a_cluster(tmp_path: Path, engine: str, client: Any) -> None:
    write_data(tmp_path / "data")
    data = Dataset(str(tmp_path / "data"), engine=engine, partition_size=3000).unique(["u", "t"])
    rows = data.split("last", column="t", together="u", test=1)
    there = {
        name: (numbers(part), part.num_rows, pa_column(part.to_ddf(["i"]).compute()["i"]))
        for name, part in rows.items()
    }
    for name, part in rows.items():
        Workflow(["i"]).fit_transform(part).to_parquet(str(tmp_path / name), shuffle="none", files=1)
        stay = rows_of(tmp_path / name)["i"].to_pylist()
        assert there[name] == (stay, len(stay), stay)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([("downsample", {"where": "i = 0", "fraction": 0.5})], "cannot be read"),
        ([("downsample", {"where": "i == 0", "fraction": 2})], r"Dataset\.downsample\.fraction"),
        ([("split", {"by": "time", "test": 0.1})], "by: time needs a column"),
        ([("unique", {"keys": []})], r"Dataset\.unique\.keys"),
        ([("unique", {"keys": "i"}), ("unique", {"keys": "i"})], "unique is called twice"),
        ([("downsample", {"where": "i > 0", "fraction": 1}), ("unique", {"keys": "i"})], "unique is called after down"),
    ],
)  # fmt: skip
def test_rules_that_cannot_be_right_are_refused_at_once(rules: list[tuple[str, Any]], message: str) -> None:
    data = Dataset(pa.table({"i": [1, 2]}), engine="pandas")
    for name, values in rules[:-1]:
        data = getattr(data, name)(**values)
    with pytest.raises(JobError, match=message):
        getattr(data, rules[-1][0])(**rules[-1][1])


@pytest.mark.parametrize(
    ("rule", "values", "message"),
    [
        ("unique", {"keys": "z"}, "there is no column 'z'"),
        ("downsample", {"where": "z == 0", "fraction": 0.5}, "there is no column 'z'"),
        ("downsample", {"where": "i == 0", "fraction": 0.5, "weight": "i"}, "has a column 'i' already"),
    ],
)
def test_columns_that_are_not_there_are_named(rule: str, values: dict[str, Any], message: str) -> None:
    data = Dataset(pa.table({"i": [1, 2]}), engine="pandas")
    with pytest.raises(RowmillError, match=message):
        getattr(data, rule)(**values).head()


def test_a_condition_is_checked_where_the_rows_were_looked_at_before() -> None:
    data = Dataset(pa.table({"i": [1, 1, 2]}), engine="pandas").unique("i")
    assert data.num_rows == 2
    with pytest.raises(JobError, match=r"expression: there is no column 'z'\n  where: z == 1\n {9}\^"):
        assert data.downsample("z == 1", 0.5).num_rows


def test_the_draft_of_ruled_rows_says_the_rules(tmp_path: Path) -> None:
    write_data(tmp_path / "data")
    source = Dataset(str(tmp_path / "data")).unique("u", by="t").downsample("y == 0", 0.5).as_source()
    assert source == {"path": str(tmp_path / "data"), "unique": {"keys": ["u"], "keep": "first", "by": "t"},
                      "downsample": {"where": "y == 0", "fraction": 0.5, "weight": None, "seed": 0}}  # fmt: skip


def test_the_source_of_strictly_ruled_rows_is_strict(tmp_path: Path) -> None:
    write_data(tmp_path / "data")
    data = Dataset(str(tmp_path / "data"))
    strict = data.downsample("cast(x, 'int64') > 0", 0.5, strict=True)
    rule = {"where": "cast(x, 'int64') > 0", "fraction": 0.5, "weight": None, "seed": 0}
    assert strict.as_source() == {"path": str(tmp_path / "data"), "downsample": rule, "strict": True}
    assert data.downsample("cast(x, 'int64') > 0", 0.5).as_source() == {
        "path": str(tmp_path / "data"), "downsample": rule,
    }  # fmt: skip


def test_a_strict_downsampling_refuses_what_cannot_be_read(engine: str) -> None:
    rows = Dataset(pa.table({"code": ["1", "x", "3"], "n": [0, 1, 2]}), engine=engine)
    with pytest.raises(DataError, match="cannot read 'x' of column 'code' in row 1 of the source"):
        rows.downsample("cast(code, 'int64') > 0", 0.5, strict=True).head()
    assert 1 in to_list(rows.downsample("cast(code, 'int64') > 0", 0.5).head()["n"])
