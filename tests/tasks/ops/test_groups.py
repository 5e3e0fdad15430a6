"""Facts about statistics of groups joined back."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tasks import ops
from tasks.cluster.dask_pool import DaskPool
from tasks.cluster.local_pool import LocalPool
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError
from tasks.workflow import Workflow
from tests.tasks.ops.fitting import learned, transformed

STATS = ["count", "sum", "mean", "std", "var", "min", "max"]


def test_statistics_are_joined_to_every_row_of_the_group(engine):
    table = pa.table({"g": ["a", "b", "a", None], "x": [1, 5, 4, 7]})
    assert transformed(["g"] >> ops.JoinGroupby(cont_cols=["x"], stats=STATS), table, engine) == {
        "g_count": [2, 1, 2, 1],
        "g_x_sum": [5, 5, 5, 7],
        "g_x_mean": [2.5, 5.0, 2.5, 7.0],
        "g_x_std": [4.5**0.5, None, 4.5**0.5, None],
        "g_x_var": [4.5, None, 4.5, None],
        "g_x_min": [1, 5, 1, 7],
        "g_x_max": [4, 5, 4, 7],
    }


def test_statistics_are_of_values_that_are_not_null(engine):
    table = pa.table({"g": [1, 1, 2], "x": [2.0, None, None]})
    assert transformed(
        ["g"] >> ops.JoinGroupby(cont_cols="x", stats=["count", "sum", "mean", "min"]), table, engine
    ) == {
        "g_count": [2, 2, 1],
        "g_x_sum": [2.0, 2.0, 0.0],
        "g_x_mean": [2.0, 2.0, None],
        "g_x_min": [2.0, 2.0, None],
    }


@pytest.mark.promise(
    "its operator's answer: Categorify an out-of-vocabulary id, TargetEncoding the global mean, JoinGroupby null"
)
def test_a_group_that_was_not_seen_gets_nulls_and_needs_no_values(engine):
    table = pa.table({"g": ["a"], "x": [3]})
    made = transformed(
        ["g"] >> ops.JoinGroupby(cont_cols=["x"], stats=["count", "max"]), table, engine, pa.table({"g": ["z", "a"]})
    )
    assert made == {"g_count": [None, 1], "g_x_max": [None, 3]}


def test_a_nested_list_is_one_key_and_a_list_of_names_several(engine):
    table = pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"]})
    assert transformed([["a", "b"]] >> ops.JoinGroupby(), table, engine) == {"a_b_count": [1, 1, 1]}
    counted = ops.JoinGroupby(cont_cols=["nowhere"], stats=["count"])  # a column that no statistic is of is not read
    assert transformed([["a", "b"]] >> counted, table, engine) == {"a_b_count": [1, 1, 1]}
    assert transformed(["a", "b"] >> ops.JoinGroupby(name_sep="."), table, engine) == {
        "a.count": [2, 2, 1],
        "b.count": [2, 1, 2],
    }


def test_types_are_as_the_schema_promised(engine):
    table = pa.table(
        {"g": [1], "i": pa.array([1], pa.int8()), "u": pa.array([2], pa.uint16()), "f": pa.array([1.5], pa.float32())}
    )
    workflow = Workflow(["g"] >> ops.JoinGroupby(cont_cols=["i", "u", "f"], stats=["sum", "min", "mean"]))
    promised = workflow.output_schema_of(Dataset(table).schema)
    assert [str(c.dtype) for c in promised.columns] == [
        "int64", "int8", "double", "uint64", "uint16", "double", "double", "float", "double",
    ]  # fmt: skip
    assert workflow.fit(Dataset(table, engine=engine)).output_schema.to_arrow() == promised.to_arrow()


def _frame(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(4)
    return pd.DataFrame(
        {
            "g": rng.integers(0, 20, rows),
            "h": rng.choice(["p", "q", "r"], rows),
            "x": rng.normal(1e9, 1, rows),
            "i": rng.integers(-(2**40), 2**40, rows),
        }
    )


@pytest.mark.promise(
    "Statistics of each group, joined back to its rows: `<group>_count` and `<group>_<column>_<stat>`",
    "tasks/ops/README.md#joingroupby",
)
def test_all_statistics_are_those_of_pandas(engine):
    df = _frame(2000)
    made = transformed(
        [["g", "h"]] >> ops.JoinGroupby(cont_cols=["x", "i"], stats=STATS), pa.Table.from_pandas(df), engine
    )
    groups = df.groupby(["g", "h"])
    for name in ("x", "i"):
        for stat in STATS[1:]:
            expected = groups[name].transform(stat)
            tolerance = 1e-7 if stat in ("std", "var") else 1e-14
            np.testing.assert_allclose(made[f"g_h_{name}_{stat}"], expected, rtol=tolerance, err_msg=f"{name} {stat}")
    assert made["g_h_count"] == groups["x"].transform("count").tolist()


@pytest.mark.parametrize("backward", [False, True])
def test_any_split_of_the_rows_is_the_whole(engine, backward):
    table, op = pa.Table.from_pandas(_frame(300)), ops.JoinGroupby(cont_cols=["x", "i"], stats=STATS)
    whole = learned(op, table, ["g"], engine)["groups"]
    split = learned(op, table, ["g"], engine, (0, 7, 7, 150, 299), backward)["groups"]
    assert split.schema == whole.schema
    for name in whole.column_names:
        scale = 1e-6 if name == "c0_m2" or name.endswith("_meanrest") else 1e-13
        least = 1e-4 if name.endswith("_meanrest") else 0
        values = split[name].to_numpy(), whole[name].to_numpy()
        np.testing.assert_allclose(*values, rtol=scale, atol=least, err_msg=name)
    exact = [n for n in whole.column_names if not n.endswith(("mean", "meanrest", "m2"))]
    assert split.select(exact).equals(whole.select(exact))


def test_sums_of_large_integers_are_exact(engine):
    table = pa.table({"g": [1, 1], "x": [2**60, 2**60 + 1]})
    assert transformed(["g"] >> ops.JoinGroupby(cont_cols=["x"], stats=["sum"]), table, engine) == {
        "g_x_sum": [2**61 + 1] * 2
    }


def test_text_has_no_sum(engine):
    with pytest.raises(DataError, match="JoinGroupby needs numeric cont_cols, 's' is string"):
        transformed(["g"] >> ops.JoinGroupby(cont_cols=["s"], stats=["sum"]), pa.table({"g": [1], "s": ["a"]}), engine)


def test_statistics_of_no_column_are_refused():
    with pytest.raises(JobError, match="sum, mean need cont_cols"):
        ops.JoinGroupby(stats=["count", "sum", "mean"])


def test_squares_beyond_float64_are_infinite(engine):
    table = pa.table({"g": [1, 1, 1], "x": [1.7e308, -1.7e308, 0.0]})
    made = transformed(["g"] >> ops.JoinGroupby(cont_cols=["x"], stats=["var", "max"]), table, engine)
    assert made == {"g_x_var": [float("inf")] * 3, "g_x_max": [1.7e308] * 3}


def test_the_smallest_of_decimals_is_a_decimal(engine):
    table = pa.table({"g": [1, 1], "x": pa.array([Decimal("1.25"), Decimal("-0.50")], pa.decimal128(21, 2))})
    made = transformed(["g"] >> ops.JoinGroupby(cont_cols=["x"], stats=["min", "sum"]), table, engine)
    assert made == {"g_x_min": [Decimal("-0.50")] * 2, "g_x_sum": [0.75] * 2}


@pytest.mark.parametrize("parts", [1, 3])
def test_the_extremes_of_decimals_are_exact(engine, parts):
    digits = 12345678901234567890123456789012345600
    values = [None, *(Decimal(digits + i).scaleb(-2) for i in (3, -7, 5, 1)), None, -Decimal(digits).scaleb(-2)]
    table = pa.table({"g": [3, 1, 2, 1, 1, 2, 2], "x": pa.array(values, pa.decimal128(38, 2))})
    op = ["g"] >> ops.JoinGroupby(cont_cols=["x"], stats=["min", "max"])
    dataset = Dataset([table.slice(i, -(-7 // parts)) for i in range(0, 7, -(-7 // parts))], engine=engine)
    made = Workflow(op).fit(dataset).transform(table)
    assert made.schema.types == [pa.decimal128(38, 2)] * 2
    least, most = {1: values[4], 2: values[6], 3: None}, {1: values[3], 2: values[2], 3: None}
    assert made.to_pydict() == {
        "g_x_min": [least[g] for g in table["g"].to_pylist()], "g_x_max": [most[g] for g in table["g"].to_pylist()]
    }  # fmt: skip


def test_on_a_cluster_the_same_is_learned(engine, client):
    from tests.learning import cut, learned_on

    assert client.status == "running"
    table = pa.Table.from_pandas(_frame(500))
    nodes = (["g"] >> ops.JoinGroupby(cont_cols=["x"], stats=STATS)) + (
        ["x", "i"] >> ops.QuantileBucketize(5) >> ops.Rename(postfix="_q")
    )
    source = cut(table, 100)
    found = [learned_on(pool, nodes, source, engine) for pool in (LocalPool(2), DaskPool(client))]
    assert found[0].values.keys() == found[1].values.keys()
    for key, fitted in found[0].values.items():
        assert fitted == found[1].values[key]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("dtype", "base"),
    [
        ("int64", 1_700_000_000_000_000_000),
        ("int64", -(2**62)),
        ("int64", -(2**63)),
        ("uint64", 2**64 - 99),
        ("int64", 0),
    ],
)
def test_means_of_integers_are_right_where_their_sums_are_beyond_64_bits(engine, dtype, base, backward):
    numbers = [base + i for i in range(99)]
    groups = [i % 3 for i in range(99)]
    table = pa.table({"g": groups, "x": pa.array(numbers, dtype)})
    op = ops.JoinGroupby(cont_cols=["x"], stats=["mean", "min"])
    whole = learned(op, table, ["g"], engine)
    assert learned(op, table, ["g"], engine, (0, 7, 7, 50, 98), backward)["groups"].equals(whole["groups"])
    assert ("c0_high" in whole["groups"].column_names) == (base != 0)
    means = [sum(n for n, k in zip(numbers, groups, strict=True) if k == g) / 33 for g in range(3)]
    made = transformed(["g"] >> op, table, engine)
    assert made["g_x_mean"] == pytest.approx([means[g] for g in groups], rel=4e-16)
    assert made["g_x_min"] == [base + g for g in groups]


@pytest.mark.promise("`is beyond 64 bits`")
def test_a_sum_beyond_64_bits_is_refused(engine):
    most = pa.table({"g": [1, 1, 2], "x": [2**63 - 2, 1, -(2**63)]})
    made = transformed(["g"] >> ops.JoinGroupby(cont_cols=["x"], stats=["sum"]), most, engine)
    assert made == {"g_x_sum": [2**63 - 1, 2**63 - 1, -(2**63)]}
    unsigned = pa.table({"g": [1, 1], "x": pa.array([2**64 - 2, 1], pa.uint64())})
    assert transformed(["g"] >> ops.JoinGroupby(cont_cols=["x"], stats=["sum"]), unsigned, engine) == {
        "g_x_sum": [2**64 - 1] * 2
    }
    for values, about in (([2**63 - 1, 1], "9.223e+18"), ([-(2**63), -1], "-9.223e+18")):
        with pytest.raises(DataError, match="a sum of 'x' is beyond 64 bits") as caught:
            transformed(
                ["g"] >> ops.JoinGroupby(cont_cols="x", stats=["sum"]), pa.table({"g": [1, 1], "x": values}), engine
            )
        assert caught.value.why == f"it is about {about}"
        assert "cast(_, 'float64')" in caught.value.do
