"""What a refit does with each step: its mode and the reason, settings, chains, side tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import ops
from tasks.core.schema import Schema
from tasks.errors import JobError
from tasks.graph.binding import Bound
from tasks.graph.node import Node, as_node
from tasks.learning import observe
from tasks.learning.growth import Base
from tasks.learning.refit_modes import behind, describe_changed_tables, mode_lines, mode_rows, modes

TABLE = pa.table({"a": ["x"], "b": ["y"], "x": [1.0], "y": [2.0], "n": [1], "l": [[1, 2]]})


def bound(nodes: Any) -> Bound:
    return Bound(as_node(nodes), Schema.from_arrow(TABLE.schema))


def decided(nodes: Any, settings: dict[str, str] | None = None, refit_all: bool = False) -> dict[str, str]:
    """The mode of each step by operator and columns."""
    return {key.split("/", 1)[1]: m.mode for key, m in modes(bound(nodes), settings or {}, refit_all).items()}


def reason(nodes: Any, step: str, settings: dict[str, str] | None = None) -> str:
    found = {key.split("/", 1)[1]: m.why for key, m in modes(bound(nodes), settings or {}).items()}
    return found[step]


def every() -> Node:
    """A graph with an operator of each kind."""
    return (
        (["a"] >> ops.Categorify())
        + (["x"] >> ops.Normalize())
        + (["y"] >> ops.FillMedian())
        + (["n"] >> ops.ReduceDtypeSize())
        + (["l"] >> ops.ValueCount())
    )


def test_each_operator_says_what_it_does() -> None:
    found = {"Categorify/a": "appended", "Normalize/x": "merged", "FillMedian/y": "frozen",
             "ReduceDtypeSize/n": "frozen", "ValueCount/l": "frozen"}  # fmt: skip
    assert decided(every()) == found
    assert reason(every(), "FillMedian/y") == "exact ranks need all rows again"
    assert reason(every(), "ReduceDtypeSize/n") == "the column's type would change"
    assert reason(every(), "Categorify/a") == "ids stay, new values are appended"


def test_refit_all_learns_everything_anew_and_keeps_ids() -> None:
    modes_of_all = {"Categorify/a": "appended", "Normalize/x": "merged", "FillMedian/y": "merged",
                    "ReduceDtypeSize/n": "merged", "ValueCount/l": "merged"}  # fmt: skip
    assert decided(every(), refit_all=True) == modes_of_all
    assert decided(every(), {"Normalize": "freeze"}, refit_all=True) == {**modes_of_all, "Normalize/x": "frozen"}


def test_settings_name_operators_columns_entries_and_steps_the_nearest_wins() -> None:
    graph = Node("apply", (Node("pick", selection=("x", "y"), name="features[0]"),), ops.Normalize(), (), "features[0]")
    assert decided(graph, {"Normalize": "freeze"}) == {"Normalize/x": "frozen", "Normalize/y": "frozen"}
    assert decided(graph, {"features[0]": "freeze", "Normalize": "merge"}) == {"Normalize/x": "frozen",
                                                                               "Normalize/y": "frozen"}  # fmt: skip
    assert decided(graph, {"y": "merge", "features[0]": "freeze"}) == {"Normalize/x": "frozen", "Normalize/y": "merged"}
    assert decided(graph, {"1/Normalize/y": "freeze", "y": "merge"}) == {"Normalize/x": "merged",
                                                                         "Normalize/y": "frozen"}  # fmt: skip
    assert (
        reason(graph, "Normalize/x", {"features[0]": "freeze"})
        == "the job says features[0]: freeze, so it does not learn from these rows"
    )


@pytest.mark.parametrize(
    ("name", "hint"), [("Normalise", "Normalize"), ("Fillmedian", "FillMedian"), ("qqqqq", "there are")]
)
def test_a_name_that_no_step_has_is_an_error_with_near_names(name: str, hint: str) -> None:
    with pytest.raises(JobError, match=f"not a learned step of this job(.|\n)*{hint}"):
        modes(bound(every()), {name: "freeze"})


def test_settings_that_are_impossible_say_why() -> None:
    with pytest.raises(JobError, match=r"neither freeze nor merge(.|\n)*'freeze'"):
        modes(bound(every()), {"Normalize": "freez"})
    with pytest.raises(JobError, match=r"FillMedian of 'y' cannot be merged(.|\n)*all rows again(.|\n)*all: true"):
        modes(bound(every()), {"FillMedian": "merge"})
    group = [["a", "b"]] >> ops.Categorify()
    with pytest.raises(JobError, match=r"two things about Categorify of 'a\+b'(.|\n)*a: freeze, b: merge"):
        modes(bound(group), {"a": "freeze", "b": "merge"})
    with pytest.raises(JobError, match="nothing of this job learns"):
        modes(bound(["x"] >> ops.LogOp()), {"Normalize": "freeze"})


def test_behind_a_merged_step_a_step_is_frozen_behind_a_frozen_one_it_is_not() -> None:
    chain = ["x", "y"] >> ops.Normalize() >> ops.LogOp() >> ops.PCA(1)
    assert decided(chain) == {"Normalize/x": "merged", "Normalize/y": "merged", "PCA/x+y": "frozen"}
    assert "comes from Normalize of 'x', Normalize of 'y', whose outputs move" in reason(chain, "PCA/x+y")
    with pytest.raises(JobError, match=r"PCA of 'x\+y' cannot be merged(.|\n)*outputs move(.|\n)*freeze Normalize"):
        modes(bound(chain), {"PCA": "merge"})
    free = {"Normalize": "freeze", "PCA": "merge"}
    assert decided(chain, free) == {"Normalize/x": "frozen", "Normalize/y": "frozen", "PCA/x+y": "merged"}
    half = {"x": "freeze"}
    assert decided(chain, half)["PCA/x+y"] == "frozen"
    deep = ["x"] >> ops.Normalize() >> ops.QuantileBucketize() >> ops.Categorify()
    assert decided(deep) == {"Normalize/x": "merged", "QuantileBucketize/x": "frozen", "Categorify/x": "frozen"}


def test_behind_ids_a_step_stays_what_it_is() -> None:
    chain = ["a"] >> ops.Categorify() >> ops.JoinGroupby("x", stats=["mean"])
    assert decided(chain) == {"Categorify/a": "appended", "JoinGroupby/a": "merged"}
    assert "behind Categorify of 'a': ids do not move" in reason(chain, "JoinGroupby/a")
    assert "under the ids that they have on disk" in reason(chain, "JoinGroupby/a")


def test_what_passes_data_through_moves_nothing() -> None:
    profiled = ["x"] >> ops.DataStats() >> ops.Normalize()
    assert decided(profiled) == {"DataStats/x": "merged", "Normalize/x": "merged"}
    fits = ["x", "y"] >> ops.PairwiseRegression("n") >> ops.Normalize()
    assert set(decided(fits).values()) == {"merged"}


def test_what_a_step_learns_from_counts_and_what_a_frozen_one_learned_from_does_not() -> None:
    scaled = ["y"] >> ops.Normalize()
    encoded = ["a"] >> ops.TargetEncoding("z", kfold=1)
    target = scaled >> ops.Rename(name="z")
    assert decided(encoded + target) == {"Normalize/y": "merged", "TargetEncoding/a": "frozen"}
    behind_it = encoded >> ops.NormalizeMinMax()
    assert decided(behind_it + target)["NormalizeMinMax/TE_a_z"] == "merged"


def test_a_filter_by_what_moves_freezes_what_learns_from_its_rows() -> None:
    scaled = ["x"] >> ops.Normalize()
    graph = (scaled >> ops.Filter(expression="x > 0")) + (["y"] >> ops.NormalizeMinMax())
    assert decided(graph) == {"Normalize/x": "merged", "NormalizeMinMax/y": "frozen"}
    assert decided(graph, {"Normalize": "freeze"}) == {"Normalize/x": "frozen", "NormalizeMinMax/y": "merged"}


def test_groups_and_runs_of_rows_are_said_to_end_with_the_night() -> None:
    runs = ["x"] >> ops.DifferenceLag("a") >> ops.Normalize()
    assert "DifferenceLag works within a night" in reason(runs, "Normalize/x_difference_lag_1")
    groups = (["x"] >> ops.Groupby("a", aggs=["sum"]))["x_sum"] >> ops.Normalize()
    assert "Groupby works within a night" in reason(groups, "Normalize/x_sum")
    filtered = (["x"] >> ops.DifferenceLag("a") >> ops.Dropna()) + (["y"] >> ops.Normalize())
    assert "DifferenceLag works within a night" in reason(filtered, "Normalize/y")


def test_a_side_table_that_changed_is_named_with_the_steps_behind_it(tmp_path: Path) -> None:
    file = tmp_path / "side.parquet"
    pq.write_table(pa.table({"n": [1, 2], "price": [1.0, 2.0]}), file)
    joined = ["n"] >> ops.JoinExternal(str(file), on="n")
    graph = bound(joined["price"] >> ops.Normalize())
    (joined_key,) = [step.key for step in graph.learned_from_parameters]
    before = observe.from_parameters(graph, Base.empty(graph))[0]
    assert [m.mode for m in modes(graph, {}).values()] == ["merged", "merged"]
    assert modes(graph, {})[joined_key].why == "read again"
    assert describe_changed_tables(graph, before, observe.from_parameters(graph, Base.empty(graph))[0]) == {}
    pq.write_table(pa.table({"n": [1, 2], "price": [1.0, 3.0]}), file)
    changed = describe_changed_tables(graph, before, observe.from_parameters(graph, Base.empty(graph))[0])
    assert list(changed) == [joined_key]
    assert f"{file} of JoinExternal of 'n' differs from what the base read" in changed[joined_key]
    assert "behind it Normalize of 'price'" in changed[joined_key]


def test_modes_are_shown_together_where_they_are_the_same() -> None:
    found = modes(bound(["a", "b"] >> ops.Categorify()), {"b": "freeze"})
    assert mode_lines(found) == [
        "Categorify of a: appended, ids stay, new values are appended",
        "Categorify of b: frozen, the job says b: freeze, so it does not learn from these rows",
    ]
    both = mode_rows(modes(bound(["a", "b"] >> ops.Categorify()), {}))
    assert both == [{"operator": "Categorify", "columns": "a, b", "mode": "appended",
                     "why": "ids stay, new values are appended"}]  # fmt: skip


def test_modes_tell_the_steps_that_they_depend_on() -> None:
    graph = bound(["x"] >> ops.Normalize() >> ops.QuantileBucketize() >> ops.Categorify())
    found = modes(graph, {})
    assert [m.behind for m in found.values()] == [(), tuple(found)[:1], tuple(found)[:2]]
    assert behind(graph, graph.learned[0]) == []
