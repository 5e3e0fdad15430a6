"""What every operator keeps to, whatever is registered: an operator without an example here fails the suite."""

from __future__ import annotations

import datetime
import decimal
import inspect
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import engines, ops
from tasks.dataset import Dataset
from tasks.engines.convert.libraries import to_cudf
from tasks.engines.convert.python_values import to_python_list
from tasks.graph.binding import Bound, Step
from tasks.graph.column_lineage import ColumnLineage
from tasks.graph.node import Node, as_node
from tasks.graph.partition_work import Work
from tasks.graph.state import State
from tasks.learning.growth import Base, finalize
from tasks.learning.observe import observe
from tasks.learning.partials import Phase, merge
from tasks.ops.base import Context, Learned, Operator, make_operator
from tasks.sources.reader import FramePlan
from tasks.workflow import Workflow
from tests.learning import applied, close, cut, has_nan, learned

ROWS = 60
OFFSET = pa.timestamp("us", "+05:30")
LACKED = {"d64", "o"}  # columns that no cuDF frame holds
ALL_NULL = {"vi", "vs", "v"}


@cache
def example_table() -> pa.Table:
    """Sixty rows of every type that a source may have, with nulls, ties, repeated keys, both zeros, floats below the
    normal range, and columns of nothing but nulls."""
    draw = random.Random(7)

    def some(values: Callable[[], Any], nulls: float = 0.15) -> list[Any]:
        return [None if draw.random() < nulls else values() for _ in range(ROWS)]

    def lists(value: Callable[[], Any]) -> list[Any]:
        return some(lambda: some(value)[: draw.randrange(4)], 0.1)

    def days() -> list[Any]:
        return some(lambda: datetime.date(1969, 12, 30) + datetime.timedelta(days=draw.randrange(4)), 0.05)

    def decimals() -> list[Any]:
        return some(lambda: decimal.Decimal(draw.randrange(-3, 4)) / 4, 0.05)

    start = datetime.datetime(2020, 2, 28, 22, 30)
    return pa.table(
        {
            "i": pa.array(some(lambda: draw.randrange(-4, 5)), pa.int64()),
            "n": pa.array(some(lambda: draw.randrange(0, 3)), pa.int32()),
            "f": pa.array([1e-320, *some(lambda: draw.choice([0.0, -0.0, 1.5, draw.gauss(0, 3)]))[1:]], pa.float64()),
            "h": pa.array(some(lambda: draw.choice([0.25, draw.gauss(0, 3)])), pa.float32()),
            "s": pa.array(some(lambda: draw.choice(["a.b", "b", "é.x.y", "", "B"])), pa.string()),
            "b": pa.array(some(lambda: draw.random() < 0.5), pa.bool_()),
            "t": pa.array(some(lambda: start + datetime.timedelta(minutes=97 * draw.randrange(9))), pa.timestamp("us")),
            "li": pa.array(lists(lambda: draw.randrange(4)), pa.list_(pa.int64())),
            "lf": pa.array(lists(lambda: draw.gauss(0, 2)), pa.list_(pa.float64())),
            "ls": pa.array(lists(lambda: draw.choice(["x", "y", "é"])), pa.list_(pa.string())),
            "y": pa.array(some(lambda: draw.randrange(2)), pa.int8()),
            "z": pa.array(some(lambda: draw.gauss(1, 1)), pa.float64()),
            "d": pa.array(days(), pa.date32()),
            "d64": pa.array(days(), pa.date64()),
            "o": pa.array(some(lambda: start + datetime.timedelta(hours=7 * draw.randrange(5)), 0.05), OFFSET),
            "c": pa.array(decimals(), pa.decimal128(9, 2)),
            "c32": pa.array(decimals(), pa.decimal32(7, 2)),
            "c64": pa.array(decimals(), pa.decimal64(15, 3)),
            "w": pa.array(some(lambda: draw.choice([1e-45, -6e-39, 0.0, 2e-38]), 0.05), pa.float32()),
            "ld": pa.array([None if day is None else [day, None] for day in days()], pa.list_(pa.date32())),
            "lw": pa.array([[1e-45, None], [], [-6e-39]] * (ROWS // 3), pa.list_(pa.float32())),
            "vi": pa.nulls(ROWS, pa.int64()),
            "vs": pa.nulls(ROWS, pa.string()),
            "v": pa.nulls(ROWS),
            "lk": pa.array([[7, 8], None, [None]] * (ROWS // 3), pa.list_(pa.int64())),  # as long as those of lw
            "lc": pa.array([[decimal.Decimal("1.25"), None], None, []] * (ROWS // 3), pa.list_(pa.decimal128(9, 2))),
        }
    )


@dataclass(frozen=True)
class Example:
    """Parameters and columns on which every rule is tried."""

    columns: list[Any]
    parameters: dict[str, Any]


def double(column: Any) -> Any:
    return column * 2


def doubled(frame: Any) -> Any:
    frame["twice"] = frame["f"] * 2
    return frame[["twice", "s"]]


def larger_of_two(frame: Any) -> Any:
    """Of each row the larger f of it and the next smaller one: a window over sorted rows."""
    frame = frame.sort_values("f")
    frame["larger"] = frame["f"].rolling(2).max()
    return frame


HERE = __name__
ODD = ["d", "d64", "o", "c", "c32", "c64", "w", "ld", "lw", "vi", "vs", "v"]  # where the engines' types differ
NUMBERS = ["c", "c32", "c64", "w", "lw", "vi"]
GROUPED = {
    "i": ["list", "first", "last", "count", "nunique", "sum", "mean", "std", "var", "min", "max", "median"],
    "h": ["sum", "mean", "var", "median"],
    "b": ["sum", "last"],
    "t": ["list", "min", "nunique"],
    "s": ["list", "min"],
    "li": ["first", "count"],
}
EXAMPLES: dict[str, list[Example]] = {
    "AddMetadata": [
        Example(["i", "s", "ls"], {"metadata": {"unit": "m", "limits": [1, 2]}}),
        Example(ODD, {"metadata": {}}),
    ],
    "AddTags": [Example(["i", "s", "li", *ODD], {"tags": ["user_id", "own"]})],
    "Bucketize": [
        Example(["i", "f", "lf"], {"boundaries": [-1.0, 0.0, 2.5]}),
        Example(["c", "c32", "c64", "w", "lw", "vi"], {"boundaries": [-1e-40, 0.0, 0.25]}),
    ],
    "Categorify": [
        Example(["i", "f", "s", "b", "t", "li", "ls"], {}),
        Example([["s", "ls"], ["i", "n"]], {"freq_threshold": 2, "max_size": 6, "num_buckets": 2, "dtype": "int64"}),
        Example([["s", "n"], ["b", "f", "t"]], {"combo": True, "freq_threshold": {"s_n": 2}}),
        Example(["s", "i"], {"vocabs": {"s": ["b", "a.b"]}}),
        Example(ODD, {"num_buckets": 3, "freq_threshold": 14}),
        Example([["d", "d64", "ld"], ["c", "c64"], ["w", "lw"]], {}),
        Example([["o", "d64"], ["vs", "s"], ["c32", "w"]], {"combo": True}),
    ],
    "Clip": [
        Example(["i", "li"], {"min_value": -1, "max_value": 2}),
        Example(["f", "h", "lf"], {"max_value": 0.5}),
        Example(["w", "lw"], {"max_value": 1e-40}),
        Example(["vi"], {"min_value": 0}),
    ],
    "ColumnSimilarity": [
        Example([["i", "n"], ["i", "vi"]], {"left": [[0, 1], [1], [], [2, 2, 0]], "metric": "cosine"})
    ],
    "Cross": [Example([["s", "n"], ["b", "s", "i"], ["vs", "s"], ["i", "v", "vi"]], {"sep": "|"})],
    "DataStats": [Example(["i", "f", "s", "b", "t", "li", *ODD], {"top": 3})],
    "DateParts": [
        Example(["t"], {"parts": ["hour", "weekday", "year", "dayofyear"], "prefix": "ts"}),
        Example(["d", "d64", "o", "vs", "v"], {}),
    ],
    "DropLowCardinality": [Example(["i", "n", "s", "b", *ODD], {"min_cardinality": 4})],
    "DifferenceLag": [
        Example(["f", "i", "t"], {"partition_cols": ["n"], "shift": [1, -2]}),
        Example(["d", "d64", "o", "c", "c32", "c64", "w", "vi"], {"partition_cols": ["n"]}),
    ],
    "Dropna": [Example(["i", "s"], {}), Example(["d", "d64", "o", "c32", "c64", "w", "ld", "lc"], {})],
    "EqualLengths": [Example(["lw", "lk"], {})],
    "FillMedian": [
        Example(["i", "f", "h"], {"add_binary_cols": True}),
        Example(["c", "c32", "c64", "w", "vi"], {}),
    ],
    "FillMissing": [
        Example(["i", "f", "li"], {"fill_value": 7, "add_binary_cols": True}),
        Example(["s", "ls"], {"fill_value": "none"}),
        Example(["t"], {"fill_value": datetime.datetime(2020, 1, 1)}),
        Example(["d", "d64", "ld"], {"fill_value": datetime.date(2020, 1, 1), "add_binary_cols": True}),
        Example(["o"], {"fill_value": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)}),
        Example(["c", "c32", "c64", "w", "lw", "vi"], {"fill_value": 2}),
        Example(["vs", "v"], {"fill_value": "none"}),
    ],
    "Filter": [
        Example(["i", "s"], {"expression": "i >= 0"}),
        Example(ODD, {"expression": "d > '1969-12-31' and d64 >= '1969-12-31' and o is not None and w >= -1e-39"}),
    ],
    "Groupby": [
        Example(["i", "f", "s"], {"groupby_cols": ["n"], "aggs": ["list", "first", "count", "max"]}),
        Example(["i", "h", "b", "t", "s", "li"], {"groupby_cols": ["s", "b"], "sort_cols": "t", "aggs": GROUPED}),
        Example(ODD, {"groupby_cols": ["n"], "sort_cols": "o", "aggs": ["first", "last", "count"]}),
        Example(["d", "w"], {"groupby_cols": ["d64", "c32", "o", "v"], "aggs": ["list", "min", "max", "nunique"]}),
        Example(
            ["i", "h", "b", "t", "s", "li"],
            {"groupby_cols": ["s"], "sort_cols": "t", "aggs": GROUPED, "min_length": 3, "max_length": 4, "last": True},
        ),
    ],
    "HashBucket": [Example(["i", "f", "s", "b", "t", "ls", *ODD], {"num_buckets": 13})],
    "HashedCross": [Example([["s", "i"], ["d", "d64", "o"], ["c32", "w", "v"]], {"num_buckets": 100})],
    "History": [
        Example(["i", "f", "s", "b", "t"], {"length": 3, "partition_cols": ["n"]}),
        Example(["i", "h"], {"length": 2, "partition_cols": ["s"], "time_col": "t", "min_length": 1, "pad": "left"}),
        Example(
            ["d", "d64", "o", "c", "c32", "c64", "w", "vi", "vs", "v"],
            {"length": 4, "partition_cols": ["n", "b"], "include_current": True, "time_col": "o"},
        ),
    ],
    "JoinExternal": [
        Example(["i", "s"], {"table": "side.parquet", "on": "i"}),
        Example(["d64", "o", "c32", "vi"], {"table": "odd.parquet", "on": ["d64", "o", "c32"], "duplicates": "first"}),
        Example(["vi"], {"table": "side.parquet", "on": {"vi": "i"}}),
    ],
    "JoinGroupby": [
        Example(["s", ["n", "b"]], {"cont_cols": ["f", "i"], "stats": ["count", "sum", "mean", "std", "min"]}),
        Example(["d64", "o", ["c32", "d"], ["w", "v"], "vs"], {"cont_cols": ["w", "vi"], "stats": ["sum", "max"]}),
    ],
    "Lag": [
        Example(["i", "f", "s", "b", "t", "li", "ls"], {"partition_cols": ["n"], "shift": [1, -2]}),
        Example(ODD, {"partition_cols": "n"}),
    ],
    "Lambda": [
        Example(["i", "f"], {"function": f"{HERE}:double"}),
        Example(["i"], {"expression": "_ / 2 + n", "name": "half"}),
        Example(["s"], {"expression": "upper(_)"}),
        Example(["w", "f"], {"expression": "where(_ < 0, _ / 2, -_)"}),
        Example(["d", "d64", "o"], {"expression": "_ >= '1970-01-01' or vi > 0"}),
        Example(["s", "vs"], {"expression": "_ + vs + 'x'"}),
        Example(["c", "c32", "c64"], {"expression": "cast(_, 'float64') % w"}),
        Example(["t", "d", "d64", "o"], {"expression": "_ - min(_)"}),
        Example(["t", "d", "o"], {"expression": "greatest(_, max(t))"}),
        Example(["f", "h", "i", "w", "vi"], {"expression": "(_ - mean(_)) / (max(_) - min(_))"}),
    ],
    "ListSlice": [
        Example(["li", "ls", "ld", "lw", "lc"], {"start": 1}),
        Example(["lf"], {"start": 0, "end": 2, "pad": True}),
    ],
    "LogOp": [Example(["i", "f", "b", "lf", *NUMBERS], {})],
    "MapPartitions": [
        Example(["f", "s"], {"function": f"{HERE}:doubled", "columns_out": {"twice": "float32", "s": "string"}}),
        Example(["f", ["s", "h"]], {"function": f"{HERE}:doubled", "columns_out": ["s", "twice"]}),
        Example(
            ["f", "li"],
            {"function": f"{HERE}:larger_of_two", "columns_out": {"larger": "float64"}, "partition_cols": ["n"]},
        ),
    ],
    "Normalize": [Example(["i", "f", "h", "b", "lf"], {}), Example(["f", *NUMBERS], {"dtype": "float64"})],
    "NormalizeMinMax": [Example(["i", "f", "h", "lf", *NUMBERS], {})],
    "PCA": [Example(["f", "h", "z"], {"n_components": 2}), Example(["f", "c32", "c64"], {"n_components": 1})],
    "PairwiseRegression": [Example(["f", "h", "i"], {"target": "z"}), Example(["f", "c32"], {"target": "c64"})],
    "QuantileBucketize": [Example(["f", "h", "i", "c", "c32", "c64", "w", "vi"], {"num_buckets": 4})],
    "ReduceDtypeSize": [Example(["i", "f", "li", "w", "lw", "vi"], {})],
    "Rename": [
        Example(["i", "s", "ls", *ODD], {"postfix": "_new"}),
        Example(["i", "s"], {"names": {"i": "j"}}),
    ],
    "Rolling": [
        Example(["f", "i"], {"window": 3, "aggregation": ["mean", "max"], "partition_cols": "n", "min_periods": 1}),
        Example(["c", "c32", "c64", "w", "vi"], {"window": 2, "aggregation": "sum", "partition_cols": "n"}),
    ],
    "SplitText": [
        Example(["s"], {"sep": ".", "max_parts": 2, "prefix": "cat"}),
        Example(["vs", "v"], {"sep": ".", "max_parts": 2}),
    ],
    "TargetEncoding": [
        Example(["s", ["n", "b"]], {"target": "y"}),
        Example(["d64", "o", ["c32", "d"], ["w", "v"], "vs"], {"target": "c64"}),
        Example(["i", "f", "t"], {"target": ["z", "y"], "kfold": 3, "with_count": True, "drop_folds": False}),
        Example(["b"], {"target": "z", "kfold": 1, "p_smooth": 0, "min_count": 5, "target_mean": 0.5}),
    ],
    "ValueCount": [Example(["li", "ls", "ld", "lw", "lc"], {})],
}
BUILT_IN = sorted(name for name in Operator.registry if ":" not in name)
CASES = [pytest.param(e, name, id=f"{name}-{i}") for name in sorted(EXAMPLES) for i, e in enumerate(EXAMPLES[name])
         if name in BUILT_IN]  # fmt: skip
LEARNED = [case for case in CASES if issubclass(Operator.registry[str(case.values[1])], Learned)]


@cache
def side_tables() -> dict[str, bytes]:
    """The files that examples of JoinExternal name."""
    odd = example_table().select(["d64", "o", "c32", "w", "ld"])
    odd = odd.set_column(2, "c32", odd["c32"].cast(pa.decimal128(7, 2))).slice(0, 20)
    side = pa.table({"i": [-1, 0, 3, 9], "colour": ["red", None, "é", "blue"]})
    return {name: parquet_of(table) for name, table in (("side.parquet", side), ("odd.parquet", odd))}


def parquet_of(table: pa.Table) -> bytes:
    file = BytesIO()
    pq.write_table(table, file)
    return file.getvalue()


def write_side_tables() -> None:
    """Write them into the current folder."""
    for name, content in side_tables().items():
        Path(name).write_bytes(content)


@pytest.fixture(autouse=True)
def side_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_side_tables()


def pieces(node: Node, table: pa.Table, block_rows: int, blocks_per_partition: int = 1) -> FramePlan:
    """A plan in small blocks; in one block, sorted by key, for operators that need all rows of a key together."""
    if keys_needed(node):
        return cut(table.sort_by([(k, "ascending") for k in keys_needed(node)]), ROWS)
    return cut(table, block_rows, blocks_per_partition)


def keys_needed(node: Node) -> list[str]:
    assert node.op is not None
    keys = getattr(node.op, node.op.run_columns) if node.op.run_columns else []
    return [keys] if isinstance(keys, str) else list(keys)


def fitted(node: Node, table: pa.Table, engine: str) -> Workflow:
    dataset = Dataset(table, engine=engine)
    keys = keys_needed(node)
    return Workflow(node).fit(dataset.shuffle_by_keys(keys) if keys else dataset)


def graph(example: Example, name: str) -> Node:
    return as_node(example.columns) >> Operator.registry[name](**example.parameters)


def promised(node: Node, table: pa.Table, state: State | None = None) -> pa.Schema:
    source = cut(table, ROWS)
    return Bound(node, source.plan.schema, state.values if state else {}).output.to_arrow()


@pytest.mark.promise("Without it the suite fails", "tasks/README.md#how-to-add-an-operator")
def test_every_registered_operator_has_an_example() -> None:
    assert [name for name in BUILT_IN if name not in EXAMPLES] == []


@pytest.mark.parametrize(("example", "name"), CASES)
def test_parameters_survive_json(example: Example, name: str) -> None:
    op = Operator.registry[name](**example.parameters)
    text = json.dumps(op.to_json(), allow_nan=False)
    again = make_operator(json.loads(text))
    assert json.dumps(again.to_json(), allow_nan=False) == text
    assert type(again) is type(op)


@pytest.mark.parametrize(("example", "name"), CASES)
def test_output_is_what_the_schema_promised_and_input_is_unchanged(example: Example, name: str, engine: str) -> None:
    node, table = graph(example, name), example_table.__wrapped__()  # no other test has had it
    before = table.to_pydict()
    source = pieces(node, table, 16, 2)
    state = learned(node, source, engine)
    out = applied(node, source, state, engine)
    op = node.op
    assert op is not None
    settled = isinstance(op, Learned) and op.settles_schema
    assert out.schema == promised(node, table, state if settled else None)
    if not settled:
        assert promised(node, table, state) == promised(node, table)
    assert [c for c in out.column_names if has_nan(out.column(c))] == []
    assert out.num_rows == ROWS or op.removes_rows or op.groups_rows
    assert repr(table.to_pydict()) == repr(before)


@pytest.mark.parametrize(("example", "name"), CASES)
def test_training_gives_the_same_columns(example: Example, name: str, engine: str) -> None:
    node = graph(example, name)
    source = pieces(node, example_table(), 16)
    state = learned(node, source, engine)
    assert applied(node, source, state, engine, training=True).schema == applied(node, source, state, engine).schema


@pytest.mark.promise("learned values are merged in an order that depends on the data alone")
@pytest.mark.promise("all statistics of a phase in one pass; equal bits for any partitioning")
@pytest.mark.parametrize(("example", "name"), LEARNED)
def test_learned_values_do_not_depend_on_partitions_or_order(example: Example, name: str, engine: str) -> None:
    node, table = graph(example, name), example_table()
    states = [
        learned(node, cut(table, 7, blocks), engine, threads).values for blocks, threads in ((1, 2), (2, 1), (9, 1))
    ]
    assert close(states[0], states[1])
    assert close(states[0], states[2])
    assert close(states[0], in_random_order(node, table, engine))


def in_random_order(node: Node, table: pa.Table, engine: str) -> dict[str, Any]:
    """Fitted values, every partition's partials merged in a random tree."""
    draw, source = random.Random(3), cut(table, 7)
    schema, values, questions = source.plan.schema, dict[str, Any](), None
    work = Work(source, node, schema, engine, State(), None, True, 1)
    if not Phase(work, 1, 0).steps:
        return learned(node, source, engine).values
    while questions is None or questions:
        found = [observe(Phase(work, 1, 0, questions), partition) for partition in source.plan.partitions]
        while len(found) > 1:
            some = [found.pop(draw.randrange(len(found))) for _ in range(min(draw.randrange(2, 4), len(found)))]
            found.append(merge(some))
        starts = {key: Base.empty(work.bound).starts(partial.step) for key, partial in found[0].partials.items()}
        done, questions = finalize(found[0], starts)
        values |= {key: one.fitted for key, one in done.items()}
    return values


@pytest.mark.parametrize(("example", "name"), LEARNED)
def test_learned_values_do_not_depend_on_blocks_beyond_rounding(example: Example, name: str, engine: str) -> None:
    node = graph(example, name)
    for table, blocks in ((example_table(), (11, 59)), (example_table().slice(0, 12), (1,))):
        whole = learned(node, cut(table, ROWS), engine).values
        for rows in blocks:
            assert close(whole, learned(node, cut(table, rows), engine).values, 1e-9)


@pytest.mark.parametrize(("example", "name"), LEARNED)
def test_merge_has_a_neutral_element_and_commutes(example: Example, name: str, engine: str) -> None:
    node, source = graph(example, name), cut(example_table(), ROWS)
    bound, kernels = Bound(node, source.plan.schema), engines.engine(engine)
    work = Work(source, node, source.plan.schema, engine, training=True, depth=1)
    for step in bound.learned:
        evaluation = work.open_partition(source.plan.partitions[0], list(step.fit_inputs.values()))
        context = Context(kernels, kernels.row_numbers(0, ROWS), True)
        is_a_monoid(step, evaluation.inputs(step, fitting=True), context)


def is_a_monoid(step: Step, columns: Any, context: Context) -> None:
    op = step.op
    assert isinstance(op, Learned)

    def part(start: int, stop: int) -> Any:
        cut_columns = context.engine.slice_rows(columns, start, stop)
        return op.observe_unit(cut_columns, step.unit, context.part(start, stop))

    def answer(partial: Any) -> Any:
        question = op.refine(partial)
        return op.finalize_unit(partial, step.unit) if question is None else question

    assert close(answer(op.merge(part(5, 5), part(0, 20))), answer(part(0, 20)))
    assert close(answer(op.merge(part(0, 20), part(5, 5))), answer(part(0, 20)))
    left = op.merge(op.merge(part(0, 20), part(20, 21)), part(21, ROWS))
    right = op.merge(part(0, 20), op.merge(part(20, 21), part(21, ROWS)))
    assert close(answer(left), answer(right), 1e-9)
    swapped, straight = op.merge(part(20, 21), part(0, 20)), op.merge(part(0, 20), part(20, 21))
    assert close(answer(swapped), answer(straight), 1e-9)


@pytest.mark.promise("which columns of the source each column depends on")
@pytest.mark.parametrize(("example", "name"), [c for c in CASES if c.values[1] != "EqualLengths"])  # refuses the change
def test_no_column_depends_on_another_than_its_lineage_names(example: Example, name: str, engine: str) -> None:
    node, table = graph(example, name), example_table()

    def fitted_and_applied(rows: pa.Table) -> tuple[State, pa.Table]:
        source = pieces(node, rows, ROWS)
        state = learned(node, source, engine)
        return state, applied(node, source, state, engine)

    state, before = fitted_and_applied(table)
    bound = Bound(node, cut(table, ROWS).plan.schema, state.values)
    lineage = ColumnLineage(bound)
    several = [step for step in bound.steps.values() if len(step.fit_inputs) > 1]
    for column in dict.fromkeys(name for step in several for name in step.fit_inputs):
        values = table[column].take(pa.array(range(ROWS))[::-1])
        _, after = fitted_and_applied(table.set_column(table.column_names.index(column), column, values))
        for output, origins in lineage.outputs().items():
            if column not in {one.column for one in (*origins, *lineage.of_rows())}:
                assert close(to_python_list(after[output]), to_python_list(before[output])), (
                    f"{output} depends on {column}"
                )


@pytest.mark.parametrize(("example", "name"), CASES)
def test_saved_and_loaded_it_does_the_same(example: Example, name: str, engine: str, tmp_path: Path) -> None:
    node, table = graph(example, name), example_table()
    workflow = fitted(node, table, engine)
    workflow.save(tmp_path / "fitted")
    loaded = Workflow.load(tmp_path / "fitted")
    assert workflow.state is not None
    assert loaded.state is not None
    assert close(loaded.state.values, workflow.state.values)
    made = workflow.transform(table)
    assert loaded.transform(table).equals(made)
    assert loaded.output_schema.to_json() == json.loads(json.dumps(workflow.output_schema.to_json()))


@pytest.mark.promise("the same numbers as the batch job, bit by bit")
@pytest.mark.promise("from one to the other the last bits of sums of floats may differ (1e-12 of the value)")
@pytest.mark.parametrize(("example", "name"), CASES)
def test_a_frame_gives_what_the_batch_gives(example: Example, name: str, engine: str) -> None:
    """Bit by bit on one engine. Arrow tables are the CPU's: a batch of the GPU adds floats in another order."""
    node, table = graph(example, name), example_table()
    workflow = fitted(node, table, engine)
    source = pieces(node, table, 7, 3)
    assert workflow.state is not None
    batch = applied(node, source, workflow.state, engine)
    given = source.frames.read(source.plan.blocks[0].pieces, table.column_names) if keys_needed(node) else table
    found = workflow.transform(given).combine_chunks()
    batch = batch.combine_chunks()
    if engine == "cudf":
        assert {
            n: (found[n], batch[n])
            for n in batch.column_names
            if not close(found[n].to_pylist(), batch[n].to_pylist(), 1e-12)
        } == {}
        needed = list(workflow.input_schema)
        if LACKED.intersection(needed):
            return
        kernels, frame_of_gpu = engines.engine(engine), workflow.transform(to_cudf(given.select(needed)))
        columns = {n: kernels.host(frame_of_gpu[n]).cast(batch.schema.field(n).type) for n in frame_of_gpu.columns}
        found = pa.table(columns, batch.schema)
    assert {n: (found[n], batch[n]) for n in batch.column_names if not found[n].equals(batch[n])} == {}
    assert found.equals(batch)


@cache
def unusual_tables() -> dict[str, pa.Table]:
    table = example_table()
    places = {c: [i for i in range(ROWS) if table[c][i].as_py() not in (None, [])] for c in table.column_names}
    one_row = pa.table({c: table[c].slice(rows[0] if rows else 0, 1) for c, rows in places.items()})
    half = [pa.nulls(1, f.type) if i % 2 else one_row[f.name] for i, f in enumerate(table.schema)]
    nothing = pa.table([pa.nulls(4, f.type) for f in table.schema], table.schema)
    return {
        "one row": one_row,
        "one row, half of it null": pa.table(half, table.schema),
        "constant": pa.concat_tables([one_row] * 5),
        "all null": nothing,
        "one null row": nothing.slice(0, 1),
        "sliced": table.slice(13, 20),
    }


def alike(a: pa.ChunkedArray, b: pa.ChunkedArray) -> bool:
    """Whether the engines made the same of a column: of floats up to rounding, relative to the values."""
    return a.type == b.type and close(to_python_list(a), to_python_list(b), 1e-9)


UNUSUAL = ("one row", "one row, half of it null", "constant", "all null", "one null row", "sliced")


def unusual_cases() -> list[Any]:
    """Every operator with every kind of data, in turn with each of its examples; with -m nightly all examples."""
    cases = []
    for name in BUILT_IN:
        of_operator = EXAMPLES.get(name, [])
        turns = range(max(len(of_operator), len(UNUSUAL)))
        in_turn = {(turn % len(of_operator), turn % len(UNUSUAL)) for turn in turns if of_operator}
        for number, place in product(range(len(of_operator)), range(len(UNUSUAL))):
            marks = () if (number, place) in in_turn else pytest.mark.nightly
            kind = UNUSUAL[place]
            cases.append(pytest.param(of_operator[number], name, kind, id=f"{name}-{number}-{kind}", marks=marks))
    return cases


def test_every_kind_of_unusual_data_is_tried() -> None:
    assert [*unusual_tables()] == [*UNUSUAL]


@pytest.mark.parametrize(("example", "name", "kind"), unusual_cases())
def test_unusual_data(example: Example, name: str, kind: str, engine: str) -> None:
    node, table = graph(example, name), unusual_tables()[kind]
    source = pieces(node, table, 2)
    state = learned(node, source, engine)
    json.dumps(
        {k: {n: v for n, v in f.items() if not isinstance(v, pa.Table)} for k, f in state.values.items()},
        allow_nan=False,
    )
    out = applied(node, source, state, engine)
    op = node.op
    assert op is not None
    assert out.schema == promised(node, table, state if isinstance(op, Learned) and op.settles_schema else None)
    assert [c for c in out.column_names if has_nan(out.column(c))] == []
    if engine == "cudf":
        same = applied(node, source, learned(node, source, "pandas"), "pandas")
        assert {n: (out[n], same[n]) for n in out.column_names if not alike(out[n], same[n])} == {}
    whole = example_table()
    elsewhere = applied(node, pieces(node, whole, ROWS), state, engine)
    assert elsewhere.schema == out.schema
    assert [c for c in elsewhere.column_names if has_nan(elsewhere.column(c))] == []


@pytest.mark.parametrize(("example", "name"), CASES)
def test_no_rows_give_no_rows(example: Example, name: str, engine: str) -> None:
    node, table = graph(example, name), example_table()
    workflow = fitted(node, table, engine)
    out = workflow.transform(table.slice(0, 0))
    assert out.num_rows == 0
    assert out.schema == workflow.output_schema.to_arrow()


STEPS = (("observe", "observe_unit", "observe_blocks"), ("merge", "merge_all"), ("refine",),
         ("arrange", "finish", "finalize", "finalize_unit"), ("prepare",), ("transform", "apply"))  # fmt: skip
VERBS = {verb: number for number, verbs in enumerate(STEPS) for verb in verbs}
ORDERED = {str(case.values[1]) for case in LEARNED}


@pytest.mark.promise("A learned operator begins with `observe`, `merge`, `finalize` and `apply`")
@pytest.mark.parametrize("name", sorted(ORDERED))
def test_a_learned_operator_begins_with_its_verbs_in_the_order_of_the_work(name: str) -> None:
    defined = vars(Operator.registry[name])
    methods = [name for name, value in defined.items() if inspect.isfunction(value) and not name.startswith("_")]
    verbs = sorted((method for method in methods if method in VERBS), key=lambda verb: VERBS[verb])
    assert methods[: len(verbs)] == verbs


def test_the_package_offers_what_is_registered() -> None:
    assert set(BUILT_IN) <= set(ops.__all__)
    assert all(getattr(ops, name) is Operator.registry[name] for name in BUILT_IN)
