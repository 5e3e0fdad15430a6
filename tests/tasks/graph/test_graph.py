"""The graph: what is selected, joined, dropped, computed once and read at all; and what is said about mistakes."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from tasks import ops
from tasks.core.schema import Column, Schema, Tags
from tasks.errors import JobError
from tasks.graph import binding
from tasks.graph.binding import Bound
from tasks.graph.node import as_node, graph_from_json, graph_to_json
from tests.learning import applied, cut, learned, rows
from tests.reads import count_reads

TABLE = pa.table({"a": [1, 2, 3], "b": [4, None, 6], "c": ["x", "y", "x"], "t": [1, 0, 1], "unused": [0, 0, 0]})


def names(nodes: Any, table: pa.Table = TABLE) -> list[str]:
    return list(bound(nodes, table).output)


def bound(nodes: Any, table: pa.Table = TABLE) -> Bound:
    return Bound(as_node(nodes), Schema.from_arrow(table.schema))


class Counted(ops.Operator):
    """Passes a column on and counts how often it is asked to."""

    calls: ClassVar[Counter[str]] = Counter()
    label: str = ""

    def transform(self, column: Any, fitted: Any) -> Any:
        Counted.calls[self.label] += 1
        return column


@pytest.mark.promise("A plain list of names passes columns through")
def test_selections() -> None:
    both = (["a", "b"] >> ops.Clip(0)) + ["c"]
    assert names(both) == ["a", "b", "c"]
    assert names(both - "a") == ["b", "c"]
    assert names(both - ["a", "c"]) == ["b"]
    assert names(both["b"]) == ["b"]
    assert names(both[["c", "a"]]) == ["c", "a"]
    assert names(["c"] + (["a"] >> ops.Clip(0))) == ["c", "a"]
    assert names([["a"] >> ops.Clip(0), "c", as_node(["b"]) >> ops.LogOp]) == ["a", "c", "b"]
    assert names("a" >> ops.Clip(0)) == ["a"]
    assert names(["a", "a", "b"] >> ops.Clip(0)) == ["a", "b"]
    assert names(["a"]) == ["a"]


def test_tags_select_what_operators_said() -> None:
    both = (["a"] >> ops.Normalize()) + (["c"] >> ops.Categorify())
    assert names(both[Tags.CATEGORICAL]) == ["c"]
    assert names(both - Tags.CATEGORICAL) == ["a"]
    assert names(both[Tags.CONTINUOUS] >> ops.Rename(postfix="_n")) == ["a_n"]
    assert names((["a", "b"] >> ops.AddTags(["own"]))[[Tags.TIME, "b"]]) == ["b"]


@pytest.mark.promise("a nested list is a group that is treated as one")
def test_groups_stay_together_through_joins_and_drops() -> None:
    node = (as_node([["a", "b"], "c"]) - "c") >> ops.Categorify(combo=True)
    assert names(node) == ["a_b"]
    assert names((as_node([["a", "b"], "t"]) - "b") >> ops.Categorify()) == ["a", "t"]
    assert names([["c"] >> ops.Rename(name="d"), ["a", "b"]] >> ops.Categorify(combo=True)) == ["d", "a_b"]


@pytest.mark.promise("The output has the columns of the entries in their order, then the labels")
def test_entries_stand_in_order_and_equal_columns_count_once(engine: str) -> None:
    shared = ["a"] >> ops.Clip(2)
    assert rows((shared >> ops.Rename(name="z")) + shared + ["c"] + shared, TABLE, engine) == {
        "z": [2, 2, 3],
        "a": [2, 2, 3],
        "c": ["x", "y", "x"],
    }


def test_two_columns_of_one_name_are_named_both() -> None:
    with pytest.raises(JobError, match=r"(?s)two columns are called 'a'.*Normalize of a and LogOp of a, b"):
        names((["a"] >> ops.Normalize()) + (["a", "b"] >> ops.LogOp()))
    with pytest.raises(JobError, match=r"(?s)two columns are called 'a'.*Clip of a and a"):
        names((["a"] >> ops.Clip(0)) + ["a"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ["aa"] >> ops.Clip(0), "there is no column 'aa'"),
        (lambda: ["unusd"] >> ops.Clip(0), "did you mean 'unused'"),
        (lambda: (["a"] >> ops.Clip(0))["b"], "there is no column 'b'"),
        (lambda: as_node(["a"]) - "b", "cannot drop 'b': there is no such column"),
        (
            lambda: ["a"] >> ops.Lambda(expression="_ + unusd"),
            "(?s)Lambda needs the column 'unusd'.*did you mean 'unused'",
        ),
        (lambda: as_node(["a"]) >> 3, "takes an operator, not 3"),
    ],
)
def test_mistakes(make: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        names(make())


def test_a_graph_survives_json() -> None:
    node = (
        ([["a", "b"]] >> ops.Categorify(combo=True)) + (as_node(["c", "t"]) - "t")[Tags.TEXT] + (["t"] >> ops.Clip(0))
    )
    text = graph_to_json(as_node(node))
    again = graph_from_json(text)
    assert graph_to_json(again) == text
    assert names(again) == names(node)


def test_a_shared_node_is_computed_once_per_partition(engine: str) -> None:
    Counted.calls.clear()
    shared = ["a"] >> Counted(label="shared")
    node = (shared >> ops.Rename(name="x")) + (shared >> ops.LogOp() >> ops.Rename(name="y")) + shared
    node = (
        node
        + (shared >> ops.Normalize() >> ops.Rename(name="z"))
        + (shared >> ops.Categorify() >> ops.Rename(name="w"))
    )
    source = cut(TABLE, 1)
    state = learned(node, source, engine)
    assert Counted.calls == {"shared": 3}  # a phase, three partitions
    applied(node, source, state, engine)
    assert Counted.calls == {"shared": 6}


def test_what_nobody_asks_for_is_not_computed(engine: str) -> None:
    Counted.calls.clear()
    branch = (["a"] >> Counted(label="kept")) + (["b"] >> Counted(label="dropped"))
    assert rows(branch - "b", TABLE, engine) == {"a": [1, 2, 3]}
    assert Counted.calls == {"kept": 1}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[str]]]:
    """(partition, columns) of every read."""
    found: list[tuple[int, list[str]]] = []
    count_reads(monkeypatch, lambda partition, columns: found.append((partition.number, columns)))
    return found


@pytest.mark.promise("all statistics of a phase in one pass; equal bits for any partitioning")
def test_ten_learned_operators_of_a_phase_read_once(reads: list[Any], engine: str) -> None:
    nodes = as_node(["t"])
    for i in range(5):
        nodes = nodes + (["a"] >> ops.Normalize() >> ops.Rename(name=f"a{i}"))
        nodes = nodes + (["c"] >> ops.Categorify(freq_threshold=i) >> ops.Rename(name=f"c{i}"))
    source = cut(TABLE, 1)
    state = learned(nodes, source, engine)
    assert sorted(reads) == [(0, ["a", "c"]), (1, ["a", "c"]), (2, ["a", "c"])]
    reads.clear()
    applied(nodes, source, state, engine)
    assert sorted(reads) == [(0, ["a", "c", "t"]), (1, ["a", "c", "t"]), (2, ["a", "c", "t"])]


def test_learned_after_learned_takes_a_phase_each(reads: list[Any], engine: str) -> None:
    node = ["c"] >> ops.Categorify() >> ops.TargetEncoding("t", kfold=1, p_smooth=0) >> ops.Normalize("float64")
    node = node + (["b"] >> ops.Normalize())
    source = cut(TABLE, 3)
    state = learned(node, source, engine)
    assert reads == [(0, ["b", "c"]), (0, ["c", "t"]), (0, ["c", "t"])]
    assert [s.depth for s in bound(node).learned] == [1, 2, 3, 1]
    made = applied(node, source, state, engine)
    assert made["TE_c_t"].to_pylist() == pytest.approx([3**-0.5, -2 * 3**-0.5, 3**-0.5])
    assert made["b"].to_pylist() == pytest.approx([-(2**-0.5), None, 2**-0.5])


def test_a_target_may_be_made_by_another_entry_before_or_after(engine: str) -> None:
    target = ["b"] >> ops.Lambda(expression="cast(_ > 4, 'int8')", name="bought")
    encoded = ["c"] >> ops.TargetEncoding("bought", kfold=1, p_smooth=0)
    table = TABLE.set_column(1, "b", pa.array([4, 4, 6]))
    for nodes in (target + encoded, encoded + target):
        assert rows(nodes, table, engine)["TE_c_bought"] == [0.5, 0.0, 0.5]


def test_a_column_name_may_hold_a_plus(engine: str) -> None:
    table = {"a+b": [1, 2, 2], "a": ["x", "x", "y"], "b": [1, 1, 1], "t": [1.0, 2.0, 3.0]}
    made = rows(["a+b", ["a", "b"]] >> ops.TargetEncoding("t", kfold=1, p_smooth=0), table, engine)
    assert made == {"TE_a+b_t": [1.0, 2.5, 2.5], "TE_a_b_t": [1.5, 1.5, 3.0]}


def test_thousands_of_columns_are_bound_by_work_proportional_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Binding makes no title, since an entry's title names all its columns: one for each column took minutes."""
    titles = []
    monkeypatch.setattr(binding, "title", lambda node: titles.append(node) or "")

    def calls(columns: int) -> int:
        counted: Counter[str] = Counter()
        names = [f"x{i}" for i in range(columns)]
        schema = Schema(Column(name, pa.float64()) for name in names)
        sys.setprofile(lambda frame, event, value: counted.update([event]))
        try:
            Bound(names >> ops.FillMissing() >> ops.Normalize(), schema)
        finally:
            sys.setprofile(None)
        return counted["call"] + counted["c_call"]

    assert calls(4000) < 8.5 * calls(500)
    assert not titles
