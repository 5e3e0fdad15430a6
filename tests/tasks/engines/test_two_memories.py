"""Facts about code that both engines share: arrays of the engine and of the host stay apart; without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tasks import engines
from tasks.core.schema import Column, Schema
from tasks.engines.expression import interpreter as evaluation
from tasks.engines.expression.functions import FUNCTIONS
from tasks.engines.expression.syntax import parse
from tasks.graph.node import Node, as_node
from tasks.graph.partition_work import Work
from tasks.graph.row_rules import Downsampling, RowRules, RowSet, Splitting
from tasks.ops.keyed import RefitLookup
from tests.frames import make_column, to_arrow
from tests.learning import applied, cut, learned
from tests.tasks.engines import two_memories
from tests.tasks.ops.test_contract import CASES, Example, example_table, graph, pieces, write_side_tables

FUNCTION_EXAMPLES = [example for f in FUNCTIONS.values() if f.runs != "learned" for example in f.examples]


@pytest.fixture(autouse=True)
def side_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_side_tables()


def test_the_memories_do_not_mix() -> None:
    there, here = two_memories.XP.arange(3), np.arange(3)
    for mixed in (lambda: there + here, lambda: np.where(there > 1, here, 0), lambda: two_memories.XP.abs(here)):
        with pytest.raises(TypeError, match="host"):
            mixed()
    assert (there + 1).get().tolist() == [1, 2, 3]
    assert two_memories.XP.asarray(here).sum() == there.sum() == 3


@pytest.mark.parametrize(("example", "name"), CASES)
def test_operators_keep_the_memories_apart(example: Example, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    node, table = graph(example, name), example_table()
    source = pieces(node, table, 16, 2)
    expected = applied(node, source, learned(node, source, "pandas"), "pandas", training=True)
    two_memories.use(monkeypatch)
    out = applied(node, source, learned(node, source, two_memories.NAME), two_memories.NAME, training=True)
    assert repr(out.to_pydict()) == repr(expected.to_pydict())


@pytest.mark.parametrize(("text", "columns", "expected"), FUNCTION_EXAMPLES, ids=[e[0] for e in FUNCTION_EXAMPLES])
def test_expressions_keep_the_memories_apart(
    text: str, columns: Any, expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    two_memories.use(monkeypatch)
    frame = {name: make_column(pa.array(values), engine="pandas") for name, values in columns.items()}
    close = [pytest.approx(v, abs=1e-15) if isinstance(v, float) else v for v in expected]
    assert to_arrow(evaluation.evaluate(parse(text), frame)).to_pylist() == close


SPLITTINGS = [
    Splitting("valid", (("test", "col('i') >= 3"), ("valid", "col('i') >= 1")), "i"),
    Splitting("train", (("valid", "col('s') in ['b']"),), "s"),
    Splitting("train", shares=(("valid", 0.2), ("test", 0.2)), keys=("s", "n")),
    Splitting("test", shares=(("valid", 0.2), ("test", 0.3)), seed=5),
    None,
]


@pytest.mark.parametrize("splitting", SPLITTINGS)
def test_rules_on_rows_keep_the_memories_apart(
    splitting: Splitting | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = cut(example_table(), 13, 2), []
    np.packbits(np.arange(64) % 7 == 0, bitorder="little").tofile(tmp_path / "repeated.bits")
    rules = RowRules(RowSet(str(tmp_path / "repeated.bits"), ""), splitting, Downsampling("y == 1", 0.5, "weight"))
    node: Node = as_node(["i", "s", "y", "weight"])
    schema = Schema([*source.plan.schema.columns, Column("weight", pa.float32())])
    for engine in ("pandas", two_memories.NAME):
        if engine != "pandas":
            two_memories.use(monkeypatch)
        work = Work(source, node, schema, engine, filter="f > -2 or b", training=True, rules=rules)
        for partition in source.plan.partitions:
            evaluation_of_part = work.open_partition(partition, work.bound.targets)
            columns = evaluation_of_part.outputs()
            rows = np.asarray(two_memories.host(evaluation_of_part.context.rows)).tolist()
            out.append([rows, {n: work.kernels.host(c).to_pylist() for n, c in columns.items()}])
    assert out[: len(out) // 2] == out[len(out) // 2 :]
    assert sum(len(rows) for rows, _ in out)


def test_a_lookup_of_a_refit_keeps_the_memories_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    two_memories.use(monkeypatch)
    kernels = engines.engine(two_memories.NAME)
    values = pa.table({"v0": ["b", "c"], "place": [1, -1]})
    lookup = RefitLookup(values, 2, lambda: kernels.Lookup([pa.array(["a", "b"])]), kernels)
    for column, expected in ((["b", "c"], [1, -1]), (["c", None, "b"], [-1, -1, 1]), (["a", "b", "d"], [0, 1, -1])):
        assert lookup.find_places([kernels.column(pa.array(column, pa.string()))]).get().tolist() == expected
