"""TargetEncoding: the formula, in and out of fold, against plain Python, pandas and scikit-learn."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tasks import ops
from tasks.core.schema import Schema
from tasks.engines.hashing import murmur3
from tasks.errors import DataError, JobError
from tasks.graph.binding import Bound
from tests.learning import applied, cut, fitted, learned, rows

TE = ops.TargetEncoding


def folds(n: int, kfold: int, seed: int = 42) -> list[int]:
    hashes = murmur3.hash_fixed(np.arange(n, dtype=np.uint64), seed, np)
    return [int(h) * kfold >> 32 for h in hashes]


def by_formula(keys: list[Any], target: list[Any], fold: list[int], p: float, training: bool) -> list[float | None]:
    """(S_g - S_gf + p m) / (C_g - C_gf + p), row by row."""
    known = [(k, t, f) for k, t, f in zip(keys, target, fold, strict=True) if t is not None]
    m = sum(t for _, t, _ in known) / len(known)
    out = []
    for key, own in zip(keys, fold, strict=True):
        kept = [t for k, t, f in known if k == key and not (training and f == own)]
        out.append((sum(kept) + p * m) / (len(kept) + p) if len(kept) + p else m)
    return out


def approximately(values: list[Any]) -> Any:
    return pytest.approx(values, rel=1e-6)


@pytest.mark.promise(
    "Replace a group by the smoothed mean of a target, out of fold on the rows that were learned from",
    "tasks/ops/README.md#targetencoding",
)
def test_full_encoding_smooths_towards_the_mean(engine: str) -> None:
    table = {"g": ["a", "a", "b", None], "t": [1.0, 0.0, 1.0, 0.0]}
    assert rows(["g"] >> TE("t", p_smooth=2), table, engine)["TE_g_t"] == approximately([0.5, 0.5, 2 / 3, 1 / 3])
    assert rows(["g"] >> TE("t", p_smooth=0), table, engine)["TE_g_t"] == [0.5, 0.5, 1.0, 0.0]


@pytest.mark.promise("Replace a group by the smoothed mean of a target, out of fold on the rows that were learned from")
def test_out_of_fold_on_the_rows_learned_from_only(engine: str) -> None:
    keys = ["a", "b", "a", None, "b", "a", None, "c", "a", "b"]
    target = [1, 0, 1, 1, None, 0, 0, 1, 1, 1]
    table = {"g": keys, "t": target}
    node = ["g"] >> TE("t", kfold=3, p_smooth=1.5)
    fold = folds(10, 3)
    assert rows(node, table, engine, training=True)["TE_g_t"] == approximately(
        by_formula(keys, target, fold, 1.5, True)
    )
    assert rows(node, table, engine)["TE_g_t"] == approximately(by_formula(keys, target, fold, 1.5, False))


@pytest.mark.promise("folds by row number, not by partition; counts of targets that are not null")
def test_folds_are_of_row_numbers_whatever_the_partitions(engine: str) -> None:
    table = pa.table({"g": ["a", "b"] * 20, "t": list(range(40))})
    node = ["g"] >> TE("t", kfold=4, drop_folds=False)
    made = []
    for block, blocks in ((40, 1), (7, 2), (1, 3)):
        source = cut(table, block, blocks)
        made.append(applied(node, source, learned(node, source, engine), engine, training=True).combine_chunks())
    assert made[0]["__fold__"].to_pylist() == folds(40, 4)
    assert made[0].equals(made[1])
    assert made[0].equals(made[2])
    other = rows(["g"] >> TE("t", kfold=4, fold_seed=7, drop_folds=False), table, engine)["__fold__"]
    assert other == folds(40, 4, 7)


def test_a_fold_column_and_one_fold(engine: str) -> None:
    table = {"g": ["a"] * 4, "t": [0, 0, 1, 1], "fold": [0, 1, 2, None]}
    node = ["g"] >> TE("t", kfold=3, fold_column="fold", p_smooth=0, drop_folds=False)
    made = rows(node, table, engine, training=True)
    assert made["__fold__"] == [0, 1, 2, 0]
    assert made["TE_g_t"] == approximately([1 / 2, 2 / 3, 1 / 3, 1 / 2])
    assert rows(["g"] >> TE("t", kfold=1, p_smooth=0), table, engine, training=True)["TE_g_t"] == [0.5] * 4
    with pytest.raises(DataError, match="needs a fold_column of integers, 'fold' is string"):
        Bound(node, Schema.from_arrow(pa.schema([("g", pa.string()), ("t", pa.int64()), ("fold", pa.string())])))


@pytest.mark.promise(
    "its operator's answer: Categorify an out-of-vocabulary id, TargetEncoding the global mean, JoinGroupby null"
)
def test_small_groups_unseen_groups_and_no_denominator_get_the_mean(engine: str) -> None:
    table = {"g": ["a", "a", "a", "b"], "t": [1.0, 1.0, 1.0, 0.0]}
    assert rows(["g"] >> TE("t", p_smooth=0, min_count=2), table, engine)["TE_g_t"] == [1.0, 1.0, 1.0, 0.75]
    workflow = fitted(["g"] >> TE("t", p_smooth=0), table, engine)
    assert workflow.transform(pa.table({"g": ["z", None, "b"]}))["TE_g_t"].to_pylist() == [0.75, 0.75, 0.0]
    alone = rows(["g"] >> TE("t", kfold=2, p_smooth=0), {"g": ["a", "b"], "t": [1.0, 0.0]}, engine, training=True)
    assert alone["TE_g_t"] == [0.5, 0.5]
    assert rows(["g"] >> TE("t", p_smooth=0, target_mean=9, min_count=2), table, engine)["TE_g_t"][3] == 9.0


@pytest.mark.promise("folds by row number, not by partition; counts of targets that are not null")
def test_null_targets_do_not_count(engine: str) -> None:
    table = {"g": ["a", "a", "b"], "t": pa.array([1, None, None], pa.int32())}
    made = rows(["g"] >> TE("t", p_smooth=0, with_count=True), table, engine)
    assert made == {"TE_g_t": [1.0, 1.0, 1.0], "TE_g_count": [1, 1, 0]}
    nothing = {"g": ["a", "b"], "t": pa.array([None, None], pa.float64())}
    assert rows(["g"] >> TE("t"), nothing, engine)["TE_g_t"] == [None, None]


def test_several_targets_and_composite_keys(engine: str) -> None:
    table = {"g": ["a", "a", "b", "b"], "h": [1, None, 1, 1], "t": [1.0, 0.0, 0.0, 1.0], "u": [True, False, None, True]}
    made = rows([["g", "h"]] >> TE(["t", "u"], p_smooth=0, with_count=True), table, engine)
    assert made == {
        "TE_g_h_t": [1.0, 0.0, 0.5, 0.5],
        "TE_g_h_u": [1.0, 0.0, 1.0, 1.0],
        "TE_g_h_t_count": [1, 1, 2, 2],
        "TE_g_h_u_count": [1, 1, 1, 1],
    }


@pytest.mark.parametrize(
    "keys",
    [
        [1.5, -0.0, 0.0, None],
        [True, False, False, None],
        [datetime.datetime(2020, 1, 1), datetime.datetime(1950, 1, 1), datetime.datetime(1950, 1, 1), None],
        [2**62, -(2**62), -(2**62), None],
    ],
)
def test_keys_of_every_type(keys: list[Any], engine: str) -> None:
    assert rows(["g"] >> TE("t", p_smooth=0), {"g": keys, "t": [1.0, 2.0, 4.0, 8.0]}, engine)["TE_g_t"] == [
        1.0,
        3.0,
        3.0,
        8.0,
    ]


@pytest.mark.promise("columns that only the statistics read (a target) are not needed")
def test_the_target_need_not_exist_when_applied(engine: str) -> None:
    workflow = fitted(["g"] >> TE("t", p_smooth=0), {"g": [1, 2], "t": [0, 1]}, engine)
    assert list(workflow.input_schema) == ["g"]
    assert workflow.transform(pa.table({"g": [2, 1]}))["TE_g_t"].to_pylist() == [1.0, 0.0]


def test_the_mean_of_sklearn_and_the_groups_of_pandas(engine: str) -> None:
    encoder = pytest.importorskip("sklearn.preprocessing").TargetEncoder
    rng = np.random.default_rng(5)
    df = pd.DataFrame({"g": rng.integers(0, 30, 2000), "t": rng.normal(3, 2, 2000), "fold": rng.integers(0, 4, 2000)})
    table = pa.Table.from_pandas(df)
    full = rows(["g"] >> TE("t", p_smooth=7, dtype="float64"), table, engine)["TE_g_t"]
    reference = encoder(smooth=7.0, target_type="continuous").fit(df[["g"]], df["t"]).transform(df[["g"]])
    assert np.allclose(full, reference.ravel(), rtol=1e-12)
    node = ["g"] >> TE("t", kfold=4, fold_column="fold", p_smooth=7, dtype="float64")
    made = np.array(rows(node, table, engine, training=True)["TE_g_t"])
    mean = df["t"].mean()
    for fold in range(4):
        others, own = df[df["fold"] != fold], df["fold"] == fold
        group = others.groupby("g")["t"].agg(["sum", "count"])
        value = (group["sum"] + 7 * mean) / (group["count"] + 7)
        assert np.allclose(made[own], df.loc[own, "g"].map(value).fillna(mean), rtol=1e-12)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "TargetEncoding needs the parameter 'target'"),
        ({"target": []}, "at least one target"),
        ({"target": ["t", "t"]}, "a target is named twice"),
        ({"target": "t", "kfold": 0}, "kfold is at least 1"),
        ({"target": "t", "p_smooth": -1}, "p_smooth is at least 0"),
        ({"target": "t", "p_smooth": float("inf")}, "p_smooth is a finite number"),
        ({"target": "t", "target_mean": {"u": 1}}, "target_mean names 'u', which is not a target"),
        ({"target": "t", "smooth": 1}, "has no parameter 'smooth': did you mean 'p_smooth'"),
    ],
)
def test_wrong_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        TE(**parameters)


def test_wrong_targets(engine: str) -> None:
    with pytest.raises(DataError, match="needs a numeric target, 't' is string"):
        rows(["g"] >> TE("t"), {"g": [1], "t": ["x"]}, engine)
    with pytest.raises(DataError, match="needs the column 'z' to learn from"):
        rows(["g"] >> TE("z"), {"g": [1]}, engine)
    with pytest.raises(DataError, match="the target 't' has no finite mean"):
        rows(["g"] >> TE("t"), {"g": [1, 1], "t": [1.7e308, 1.7e308]}, engine)


@pytest.mark.parametrize("kfold", [1, 5])
@pytest.mark.parametrize("size", [1, 7, 40])
def test_sums_of_integer_targets_beyond_int64_are_refused_wherever_they_arise(
    engine: str, kfold: int, size: int
) -> None:
    node = ["g"] >> TE("t", kfold=kfold)
    for least in (2**58, -(2**58)):  # 31 of them fit, 32 do not
        table = pa.table({"g": ["a"] * 40, "t": [least] * 40})
        with pytest.raises(DataError, match="is beyond 64 bits") as caught:
            learned(node, cut(table, size), engine)
        assert str(caught.value.where).startswith("TargetEncoding of 'g'")
        assert learned(node, cut(table.slice(0, 31), size), engine).values["1/TargetEncoding/g"]["means"] == [least]


def test_the_mean_of_integer_targets_is_right_where_their_sum_over_all_groups_is_beyond_int64(engine: str) -> None:
    table = pa.table({"g": [i % 4 for i in range(40)], "t": [2**59 + i for i in range(40)]})
    state = learned(["g"] >> TE("t", kfold=1), cut(table, 7), engine)
    assert state.values["1/TargetEncoding/g"]["means"] == [2.0**59]
