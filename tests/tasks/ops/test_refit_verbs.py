"""What operators save for a refit: it is read again as it was, and says what a fit would make different."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from tasks import engines, ops
from tasks.core.strict_json import from_marked_json, to_marked_json
from tasks.errors import DataError, JobError
from tasks.graph.state import State
from tasks.ops.base import RENAMED_VERBS, Context, Learned, Operator, Unit
from tests.learning import close


def observed(op: Learned, table: pa.Table, unit: Unit, engine: str = "pandas") -> Any:
    kernels = engines.engine(engine)
    context = Context(kernels, kernels.row_numbers(0, table.num_rows), True)
    return op.observe_unit(kernels.from_arrow(table), unit, context)


def saved(op: Learned, partial: Any, unit: Unit, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(fitted values, what is saved beside them), read from files."""
    fitted, beside = op.split_learned(partial, op.finalize_unit(partial, unit))
    State({"0/Op/x": fitted}, {"0/Op/x": beside}).save(folder)
    loaded = State.load(folder)
    return loaded.values["0/Op/x"], loaded.partials["0/Op/x"]


PAGE = Path(__file__).resolve().parents[3] / "tasks/ops/OWN_OPERATOR.md"
TABLE = pa.table(
    {
        "x": [1.5, None, -2.25, 1e9, 0.1],
        "y": [0.5, 2.0, 8.0, -1.0, 0.3],
        "z": [0.0, 1.0, 7.5, 3.0, 1.1],
        "n": [1, 2, None, 300, 5],
        "s": ["a", "b", "a", None, "é"],
        "l": [[1, 2], [], None, [3, None, 4], [5]],
    }
)
PLAIN: list[tuple[Learned, Unit]] = [
    (ops.Normalize(), ("x",)),
    (ops.NormalizeMinMax(), ("x",)),
    (ops.NormalizeMinMax(), ("n",)),
    (ops.ReduceDtypeSize(), ("n",)),
    (ops.ValueCount(), ("l",)),
    (ops.DataStats(), ("x",)),
    (ops.DataStats(), ("n",)),
    (ops.DataStats(), ("s",)),
    (ops.DataStats(), ("l",)),
    (ops.PCA(2), ("x", "y", "z")),
    (ops.PairwiseRegression("z"), ("x", "y")),
    (ops.DropLowCardinality(3), ("s",)),
    (ops.DropLowCardinality(9), ("n",)),
]


@pytest.mark.parametrize("rows", [5, 1, 0])
@pytest.mark.parametrize(
    ("op", "unit"), PLAIN, ids=lambda v: type(v).__name__ if isinstance(v, Learned) else "+".join(v)
)
def test_what_is_saved_is_the_partial(op: Learned, unit: Unit, rows: int, engine: str, tmp_path: Path) -> None:
    """Merged with more rows, and finalized, it gives what the partial in memory gives, bit by bit."""
    partial, more = observed(op, TABLE.slice(0, rows), unit, engine), observed(op, TABLE.slice(2), unit, engine)
    again = op.restored(*saved(op, partial, unit, tmp_path), unit)
    assert close(op.finalize_unit(again, unit), op.finalize_unit(partial, unit))
    for a, b in ((again, more), (more, again)):
        expected = op.merge(partial, more) if a is again else op.merge(more, partial)
        assert close(op.finalize_unit(op.merge(a, b), unit), op.finalize_unit(expected, unit))


def test_many_distinct_values_are_restored_with_their_sketch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.ops.datastats.EXACT", 10)
    monkeypatch.setattr("tasks.ops.datastats.CANDIDATES", 4)
    op, unit, table = ops.DataStats(), ("x",), pa.table({"x": list(range(40)) * 2})
    partial, more = observed(op, table.slice(0, 50), unit), observed(op, table.slice(50), unit)
    again = op.restored(*saved(op, partial, unit, tmp_path), unit)
    assert not op.finalize(again)["exact"]
    assert op.finalize(op.merge(again, more)) == op.finalize(op.merge(partial, more))


def test_a_range_that_grew_beside_a_frozen_type_is_saved_too(tmp_path: Path) -> None:
    op, unit = ops.ReduceDtypeSize(), ("n",)
    base = op.finalize((1, 200))
    assert op.kept_partial((1, 200), base) == {}
    assert op.restored(base, op.kept_partial((-3, 500), base), unit) == (-3, 500)
    empty = op.finalize(None)
    assert op.restored(empty, {}, unit) is None
    assert op.restored(empty, op.kept_partial((0, 1), empty), unit) == (0, 1)


def test_frozen_operators_say_what_a_fit_would_make_different() -> None:
    reduce = ops.ReduceDtypeSize()
    small, large, nothing = reduce.finalize((1, 200)), reduce.finalize((1, 70_000)), reduce.finalize(None)
    assert reduce.would(small, reduce.finalize((0, 255)), ("n",)) is None
    assert reduce.would(small, large, ("n",)) == "the type would be int32, not uint8: values reach from 1 to 70,000"
    assert reduce.would(nothing, small, ("n",)) == (
        "the type would be uint8, not the column's own: values reach from 1 to 200"
    )
    assert reduce.would(small, nothing, ("n",)) is None
    floats = reduce.finalize((0.5, 1.0)), reduce.finalize((0.5, 1e300))
    assert reduce.would(*floats, ("n",)) == "the type would be float64, not float32: values reach from 0.5 to 1e+300"
    lengths = ops.ValueCount()
    assert lengths.would(lengths.finalize((1, 3)), lengths.finalize((1, 3)), ("l",)) is None
    assert lengths.would(lengths.finalize((1, 3)), lengths.finalize((0, 3)), ("l",)) == (
        "value_count would be 0 to 3, not 1 to 3"
    )
    assert lengths.would(lengths.finalize(None), lengths.finalize((0, 3)), ("l",)) == (
        "value_count would be 0 to 3, not without lengths"
    )
    drop = ops.DropLowCardinality(2)
    assert drop.would({"kept": False, "at_least": 1}, {"kept": True, "at_least": 2}, ("s",)) == (
        "s would be kept: it has 2 distinct values or more"
    )
    assert drop.would({"kept": True, "at_least": 2}, {"kept": True, "at_least": 2}, ("s",)) is None


class Pair(NamedTuple):
    first: int
    second: int


@pytest.mark.parametrize(
    "value", [(1, (2.5, "x")), {1: "a", (2, 3): [4]}, {"tuple": [1]}, {"items": 1}, [], (), {}, None]
)
def test_a_plain_partial_is_read_as_it_was(value: Any, tmp_path: Path) -> None:
    State({}, {"0/Op/x": {"partial": to_marked_json(value)}}).save(tmp_path)
    again = from_marked_json(State.load(tmp_path).partials["0/Op/x"]["partial"])
    assert again == value
    assert type(again) is type(value)


def test_a_named_tuple_is_refused_when_it_is_read(tmp_path: Path) -> None:
    op = ops.Normalize()
    beside = Learned.kept_partial(op, Pair(1, 2), {})
    with pytest.raises(DataError, match=r"cannot be read again(.|\n)*Pair(.|\n)*define restored"):
        Learned.restored(op, {}, beside, ("x",))


@pytest.mark.promise(
    "A class that defines a method under its former name is refused when it is imported; the error says the new name",
    "tasks/ops/OWN_OPERATOR.md#the-operators",
)
@pytest.mark.parametrize(("former", "verb"), RENAMED_VERBS.items())
def test_a_verb_under_its_former_name_is_refused(former: str, verb: str) -> None:
    def method(self: Any) -> None: ...

    registered = {**Operator.registry}
    with pytest.raises(JobError, match=f"Old defines {former}, which is now called {verb}"):
        type("Old", (Learned,), {former: method, "__module__": __name__})
    with pytest.raises(JobError, match=f"Old defines {former}, which is now called {verb}"):
        type("Old", (type("Mixin", (), {former: method}), Learned), {"__module__": __name__})
    assert Operator.registry == registered
    assert hasattr(Learned, verb)
    assert f"| `{former}` | `{verb}` |" in PAGE.read_text()
