"""Which columns of the source, and of side tables, each output column depends on, how, and by which operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks import ops
from tasks.core.schema import Schema
from tasks.graph.binding import Bound
from tasks.graph.column_lineage import ColumnLineage
from tasks.graph.node import as_node

TABLE = pa.table({"user": ["u"], "item": ["i"], "shop": [1], "price": [1.0], "time": [1], "bought": [0]})


def lineage(nodes: Any) -> ColumnLineage:
    return ColumnLineage(Bound(as_node(nodes), Schema.from_arrow(TABLE.schema)))


def facts(nodes: Any) -> dict[str, list[str]]:
    """Each output column: `column how operators` of what it depends on."""
    known = lineage(nodes)
    return {
        name: [" ".join([one.column, one.influence, *known.operators(one)]) for one in origins]
        for name, origins in known.outputs().items()
    }


def test_a_column_that_nothing_changes_is_identical() -> None:
    assert facts(["user"] >> ops.AddTags(["user"])) == {"user": ["user IDENTITY"]}
    assert facts(["user"] >> ops.Rename(names={"user": "id"})) == {"id": ["user IDENTITY"]}


def test_operators_are_in_the_order_of_the_graph() -> None:
    assert facts(["price"] >> ops.FillMissing(0) >> ops.LogOp() >> ops.Normalize()) == {
        "price": ["price TRANSFORMATION FillMissing LogOp Normalize"]
    }


def test_a_column_of_two_ways_has_the_operators_of_both() -> None:
    time = as_node(["time"])
    both = (time >> ops.Clip(0)) + (time >> ops.Bucketize([5.0]) >> ops.Rename(postfix="_long"))
    assert facts(both[[("time", "time_long")]] >> ops.Cross()) == {
        "time_time_long": ["time TRANSFORMATION Clip Bucketize Cross"]
    }


def test_what_is_only_learned_from_is_aggregated() -> None:
    assert facts(["item"] >> ops.TargetEncoding("bought")) == {
        "TE_item_bought": ["item TRANSFORMATION TargetEncoding", "bought AGGREGATION TargetEncoding"]
    }
    shared = facts([["user", "item"]] >> ops.Categorify())
    assert shared["user"] == ["user TRANSFORMATION Categorify", "item AGGREGATION Categorify"]


def test_keys_of_runs_and_groups_are_indirect() -> None:
    assert facts(["price", "time"] >> ops.Lag("user"))["price_lag_1"] == [
        "price TRANSFORMATION Lag", "user WINDOW Lag",
    ]  # fmt: skip
    groups = ["user", "item", "price"] >> ops.Groupby(["user"], "time", {"item": "list", "price": ["mean"]})
    assert facts(groups) == {
        "user": ["user IDENTITY"],
        "item_list": ["item TRANSFORMATION Groupby", "user GROUP_BY Groupby", "time GROUP_BY Groupby"],
        "price_mean": ["price TRANSFORMATION Groupby", "user GROUP_BY Groupby", "time GROUP_BY Groupby"],
    }
    assert [one.column for one in lineage(groups).of_rows()] == ["user", "time"]


def test_columns_of_a_side_table_come_from_its_file(tmp_path: Path) -> None:
    file = str(tmp_path / "shops.parquet")
    pq.write_table(pa.table({"id": [1], "town": ["Rome"]}), file)
    joined = lineage(["shop", "price"] >> ops.JoinExternal(file, on={"shop": "id"}))
    town = joined.outputs()["town"]
    assert [(one.column, one.file, one.influence) for one in town] == [("shop", "", "JOIN"), ("town", file, "IDENTITY")]
    assert [one.influence for one in joined.outputs()["price"]] == ["IDENTITY"]


def test_filters_decide_which_rows_there_are() -> None:
    kept = lineage((["price"] >> ops.Filter("price > 0 and time < 5")) + ["user"])
    assert [(one.column, one.influence) for one in kept.of_rows()] == [("price", "FILTER"), ("time", "FILTER")]
    assert [one.column for one in kept.outputs()["price"]] == ["price"]


def test_a_long_chain_is_no_matter() -> None:
    node = as_node(["price"])
    for _ in range(390):
        node = node >> ops.Clip(min_value=0)
    [origin] = lineage(node).outputs()["price"]
    assert len(origin.nodes) == 390
