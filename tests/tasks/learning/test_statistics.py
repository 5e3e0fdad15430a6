"""Statistics: the same values bit by bit, however the rows are cut and whoever works on them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import ops
from tasks.cluster.dask_pool import DaskPool
from tasks.cluster.local_pool import LocalPool
from tasks.core.plan import Partition
from tasks.dataset import Dataset
from tasks.errors import DataError
from tasks.graph.binding import Bound
from tasks.graph.node import as_node
from tasks.graph.partition_work import Work
from tasks.learning import observe as learning_observe
from tasks.learning.observe import PassOptions, passes
from tasks.learning.partials import join_siblings
from tasks.ops.base import Learned
from tasks.ops.continuous import Normalize
from tasks.workflow import Workflow
from tests.examples import examples
from tests.learning import close, cut, learned, learned_on


def table(rows: int = 500) -> pa.Table:
    rng = np.random.default_rng(11)
    return pa.table(
        {
            "x": rng.normal(1e6, 1e-2, rows),
            "i": rng.integers(0, 40, rows),
            "s": [None if v > 8 else f"k{v}" for v in rng.integers(0, 10, rows)],
            "y": rng.normal(0, 1, rows),
            "l": [[1.5, float(v)] if v else None for v in rng.integers(0, 5, rows)],
        }
    )


def nodes() -> Any:
    coded = ["s", "i"] >> ops.Categorify(freq_threshold=3)
    return (
        (["x", "l"] >> ops.Normalize())
        + coded
        + (["i", "s"] >> ops.TargetEncoding("y", kfold=3))
        + (coded >> ops.Rename(postfix="_n") >> ops.Normalize())
    )


def test_bit_by_bit_for_any_partitions_and_threads(engine: str) -> None:
    whole = learned(nodes(), cut(table(), 16, 100), engine, threads=1).values
    for blocks, threads in ((1, 1), (2, 4), (3, 2), (7, 2)):
        assert close(learned(nodes(), cut(table(), 16, blocks), engine, threads).values, whole)


@pytest.mark.parametrize("blocks", [1, 5])
def test_bit_by_bit_on_a_cluster(blocks: int, client: Any, engine: str) -> None:
    source = cut(table(), 16, blocks)
    node = as_node(nodes())
    found = learned_on(DaskPool(client), node, source, engine)
    assert close(found.values, learned(node, cut(table(), 16, 100), engine).values)


@pytest.mark.promise(
    "Calls from Python use the current `distributed.Client` if there is one, else threads of this process"
)
def test_the_python_api_uses_the_current_client_or_threads(client: Any, engine: str) -> None:
    with_client = Workflow(nodes()).fit(Dataset(table(), engine=engine))
    assert with_client.state is not None
    assert close(with_client.state.values, learned(nodes(), cut(table(), 1 << 20), engine).values)
    made = with_client.transform(Dataset(table(), engine=engine)).head(3)
    assert len(made) == 3


def test_out_of_memory_is_answered_with_halves_and_changes_no_bit(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original, refused = learning_observe._observe, set[int]()

    def short_of_memory(phase: Any, partition: Partition) -> Any:
        if len(partition.blocks) > 3:
            refused.add(len(partition.blocks))
            raise MemoryError("no")
        return original(phase, partition)

    expected = learned(nodes(), cut(table(150), 16, 100), engine).values
    monkeypatch.setattr(learning_observe, "_observe", short_of_memory)
    assert close(learned(nodes(), cut(table(150), 16, 100), engine).values, expected)
    assert refused == {10, 6, 4}  # halves were halved


@examples(50)
@given(order=st.permutations(range(13)), cuts=st.lists(st.integers(1, 12), max_size=5))
def test_the_tree_is_the_same_whatever_came_together_when(order: list[int], cuts: list[int]) -> None:
    leaves = {(0, i): (1, 0.1 * i, 0.0, 0.1 * i, 0.1 * i) for i in range(13)}
    whole = join_siblings(Normalize(), leaves)
    edges = [0, *sorted(set(cuts)), 13]
    joined: dict[Any, Any] = {}
    for start, stop in pairwise(edges):
        part = join_siblings(Normalize(), {(0, i): leaves[0, i] for i in order[start:stop]})
        joined = join_siblings(Normalize(), joined | part)
    assert joined == whole
    assert sorted(whole) == [(0, 12), (2, 2), (3, 0)]


def test_a_filter_of_the_source_is_learned_from_too(engine: str) -> None:
    source = cut(pa.table({"x": [1.0, 2.0, 100.0, 3.0]}), 2)
    found = learned_on(LocalPool(2), ["x"] >> ops.Normalize(), source, engine, filter="x < 50")
    assert found.values["1/Normalize/x"] == {"n": 3, "mean": 2.0, "std": 1.0}


def test_progress_counts_the_rows_of_every_phase(engine: str) -> None:
    source, seen = cut(table(100), 10), list[tuple[int, int]]()
    node = ["s"] >> ops.Categorify() >> ops.Normalize()
    learned_on(LocalPool(2), node, source, engine, options=PassOptions(progress=lambda p, n: seen.append((p, n))))
    assert sorted(seen) == [(0, 10)] * 10 + [(1, 10)] * 10
    assert passes(Bound(node, source.plan.schema)) == 2
    assert passes(Bound(as_node(["s"]), source.plan.schema)) == 0


class Refuses(Learned):
    """Cannot learn from negative numbers."""

    def observe(self, column: Any) -> int:
        if (column < 0).any():
            raise ValueError(f"{int(column[column < 0].iloc[0])} is negative")
        return 0

    def merge(self, a: int, b: int) -> int:
        return a + b

    def finalize(self, partial: int) -> dict[str, Any]:
        return {}


def test_an_error_names_operator_column_partition_and_value(engine: str) -> None:
    with pytest.raises(
        DataError, match=r"(?s)Refuses of 'x' failed.*partition 1 \(rows from 2\).*ValueError: -7 is negative"
    ):
        learned(["x"] >> Refuses(), cut(pa.table({"x": [1, 2, -7, -8]}), 2), engine)


def test_a_phase_travels_without_what_it_can_make_itself(engine: str) -> None:
    source = cut(table(10), 5)
    work = Work(source, as_node(["x"]), source.plan.schema, engine)
    assert work.bound.output
    assert "bound" not in work.__getstate__()
