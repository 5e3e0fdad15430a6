"""A workflow as a picture and as rows: what goes where."""

from __future__ import annotations

from xml.etree import ElementTree

import pyarrow as pa

from tasks import ops
from tasks.core.schema import Schema
from tasks.graph.binding import Bound
from tasks.graph.node import Node
from tasks.report import diagram
from tasks.report.box_graph import Bend, in_order, put_in_place, split_at_columns
from tasks.workflow import Workflow


def bound(graph: Node, names: str) -> Bound:
    return Bound(Workflow(graph).final, Schema.from_arrow(pa.schema([(n, pa.float64()) for n in names.split()])))


def texts(picture: str) -> list[str]:
    return [str(e.text) for e in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text") if e.text]


def test_boxes_are_columns_steps_and_outputs() -> None:
    graph = (["x", "y"] >> ops.FillMissing() >> ops.Normalize()) + ["z"] + (["a"] >> ops.Clip(max_value=9))
    found = diagram.make_boxes(bound(graph, "x y z a unused"))
    assert [(b.kind, b.text) for b in found.values()] == [
        ("source", "x, y"), ("source", "z"), ("source", "a"),
        ("operator", "FillMissing"), ("operator", "Normalize"), ("operator", "Clip(max_value=9)"),
        ("output", "x, y"), ("output", "z"), ("output", "a"),
    ]  # fmt: skip
    texts_of = {key: box.text for key, box in found.items()}
    lines = {(texts_of[a], box.text, box.kind) for box in found.values() for a in box.inputs}
    assert lines == {
        ("x, y", "FillMissing", "operator"), ("FillMissing", "Normalize", "operator"), ("Normalize", "x, y", "output"),
        ("z", "z", "output"), ("a", "Clip(max_value=9)", "operator"), ("Clip(max_value=9)", "a", "output"),
    }  # fmt: skip


def test_what_is_only_learned_from_is_dotted() -> None:
    graph = (["a"] >> ops.TargetEncoding(target="t")) + (["t"] >> ops.Clip(min_value=0.0))
    picture = diagram.draw_workflow(bound(graph, "a t"))
    assert picture.count("stroke-dasharray") == 0  # the target is a column of the source: it is read for both
    made = (["a"] >> ops.TargetEncoding(target="t_copy")) + (["t"] >> ops.Rename(postfix="_copy"))
    assert diagram.draw_workflow(bound(made, "a t")).count("stroke-dasharray") == 1


def test_a_line_over_several_columns_passes_between_the_boxes() -> None:
    boxes = {name: ("operator", name) for name in "abcd"}
    steps = split_at_columns(
        {"a": 0, "b": 0, "c": 1, "d": 2}, [("a", "c", "after"), ("c", "d", "after"), ("b", "d", "after")]
    )
    bend = Bend("b", "after", 1)
    places = put_in_place(in_order([["a", "b"], ["c", bend], ["d"]], steps), steps, boxes)
    assert {key: place.middle for key, place in places.items()} == {"a": 24, "b": 58, "c": 24, bend: 58, "d": 41}


def test_of_many_boxes_the_first_are_drawn_and_the_others_counted() -> None:
    graph = ["c0"] >> ops.Clip(max_value=0)
    for i in range(1, 40):
        graph = graph + ([f"c{i}"] >> ops.Clip(max_value=i))
    picture = diagram.draw_workflow(bound(graph, " ".join(f"c{i}" for i in range(40))))
    assert texts(picture)[-1] == "not drawn: 24 groups of columns, 24 operators, 24 outputs"
    assert len(picture) < 20_000


def test_ways_name_columns_operators_and_outputs() -> None:
    graph = (["x", "y"] >> ops.FillMissing() >> ops.Normalize()) + ["z"]
    assert diagram.tabulate_paths(bound(graph, "x y z")) == [
        {"columns": "x, y", "operators": "FillMissing → Normalize", "outputs": "x, y", "types": "float32"},
        {"columns": "z", "operators": "as it is", "outputs": "z", "types": "float64"},
    ]
