"""Categorify: value -> id, by the table of rules."""

from __future__ import annotations

import datetime
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import ops
from tasks.core.schema import Schema
from tasks.engines.hashing import murmur3
from tasks.errors import DataError, JobError
from tasks.graph.binding import Bound
from tasks.graph.node import as_node
from tests.examples import examples
from tests.learning import fitted, rows

Categorify = ops.Categorify


def ids(values: Any, engine: str, **parameters: Any) -> list[Any]:
    return rows(["c"] >> Categorify(**parameters), {"c": values}, engine)["c"]


def typed(values: list[Any], dtype: pa.DataType) -> pa.Array:
    return pa.array(values, dtype)


@pytest.mark.promise("ids by count, equal counts by value, not by partition; null is 1 everywhere")
@pytest.mark.promise(
    "Code values as ids: 0 padding, 1 null, [2, 2 + num_buckets) out of vocabulary, then the vocabulary by frequency"
)
def test_frequent_values_first_ties_by_value(engine: str) -> None:
    assert ids(["b", "a", "c", "b", "c", None, "d"], engine) == [3, 5, 4, 3, 4, 1, 6]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["Z", "a", "é", "~", ""], [4, 5, 7, 6, 3]),
        ([10, 9, -1, None], [5, 4, 3, 1]),
        ([True, False, None], [4, 3, 1]),
        ([1.5, -0.0, 0.0, -3.0], [5, 3, 3, 4]),
        ([datetime.datetime(2021, 1, 1), datetime.datetime(1960, 1, 1), None], [4, 3, 1]),
        ([datetime.date(2021, 1, 1), datetime.date(2020, 1, 1)], [4, 3]),
        (typed([None, None], pa.int64()), [1, 1]),
        (typed([None, None], pa.string()), [1, 1]),
        (typed([2**64 - 1, 1, 2**63], pa.uint64()), [5, 3, 4]),
        (typed([-(2**63), 2**63 - 1, 0], pa.int64()), [3, 5, 4]),
        (typed([-5, 7, 7], pa.int8()), [4, 3, 3]),
        (typed([127, -128, None, 5], pa.int8()), [5, 3, 1, 4]),
        (typed([-30_000, 30_000, 30_000], pa.int16()), [4, 3, 3]),
        (typed([2**64 - 1, 2**64 - 3, None], pa.uint64()), [4, 3, 1]),
        (["same"] * 3, [3, 3, 3]),
        ([7], [3]),
    ],
)
def test_values_ascend_by_their_own_order(values: Any, expected: list[int], engine: str) -> None:
    assert ids(values, engine) == expected


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
@examples(25)
@given(data=st.data())
def test_integers_of_any_type_and_range(engine: str, kind: str, data: st.DataObject) -> None:
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    base = data.draw(st.sampled_from([low, high, 0, int(high) // 2]))
    near = st.integers(-5, 5).map(lambda off: min(max(int(base) + off, int(low)), int(high)))
    values = data.draw(st.lists(st.none() | near | st.integers(int(low), int(high)), min_size=1, max_size=30))
    counts = Counter(v for v in values if v is not None)
    order = sorted(counts, key=lambda v: (-counts[v], v))
    assert ids(typed(values, getattr(pa, kind)()), engine) == [1 if v is None else 3 + order.index(v) for v in values]


def test_freq_threshold_keeps_what_occurs_so_often(engine: str) -> None:
    values = ["a"] * 3 + ["b"] * 2 + ["c"]
    assert ids(values, engine, freq_threshold=2) == [3, 3, 3, 4, 4, 2]
    assert ids(values, engine, freq_threshold=3) == [3, 3, 3, 2, 2, 2]
    assert ids(values, engine, freq_threshold=9) == [2] * 6


def test_thresholds_per_column(engine: str) -> None:
    table = {"c": ["a", "a", "b"], "d": ["a", "a", "b"]}
    made = rows(["c", "d"] >> Categorify(freq_threshold={"d": 2}), table, engine)
    assert made == {"c": [3, 3, 4], "d": [3, 3, 2]}
    made = rows(["c", "d"] >> Categorify(max_size={"c": 4}), table, engine)
    assert made == {"c": [3, 3, 2], "d": [3, 3, 4]}


def test_max_size_counts_all_ids_and_the_threshold_comes_first(engine: str) -> None:
    values = ["a"] * 4 + ["b"] * 3 + ["c"] * 2 + ["d"]
    assert ids(values, engine, max_size=5) == [3] * 4 + [4] * 3 + [2] * 3
    assert ids(values, engine, max_size=5, freq_threshold=4) == [3] * 4 + [2] * 6
    assert ids(values, engine, max_size=6, num_buckets=3)[:4] == [5] * 4
    assert max(ids(values, engine, max_size=6, num_buckets=3)) == 5


def test_out_of_vocabulary_goes_to_a_bucket_by_hash(engine: str) -> None:
    values = ["a", "a", "x", "y", "z", "é", None]
    hashes = murmur3.hash_array(pa.array(values))
    expected = [6, 6, *(2 + int(h) % 4 for h in hashes[2:6]), 1]
    assert ids(values, engine, freq_threshold=2, num_buckets=4) == expected


@pytest.mark.promise(
    "its operator's answer: Categorify an out-of-vocabulary id, TargetEncoding the global mean, JoinGroupby null"
)
def test_a_value_never_seen_is_out_of_vocabulary(engine: str) -> None:
    workflow = fitted(["c"] >> Categorify(num_buckets=2), {"c": [10, 20, 20]}, engine)
    made = workflow.transform(pa.table({"c": [20, 10, 30, None]}))["c"].to_pylist()
    assert made == [4, 5, 2 + int(murmur3.hash_array(pa.array([30]))[0]) % 2, 1]


def test_given_vocabularies_keep_their_order(engine: str) -> None:
    table = {"c": ["x", "y", "z", None], "d": [1, 2, 3, 3]}
    assert rows(["c", "d"] >> Categorify(vocabs={"c": ["z", "x"]}), table, engine) == {
        "c": [4, 2, 3, 1],
        "d": [4, 5, 3, 3],
    }
    assert ids([[1, 2], None, [9]], engine, vocabs=[2, 1]) == [[4, 3], None, [2]]
    assert ids([datetime.datetime(2020, 1, 1), None], engine, vocabs=["2020-01-01T00:00:00"]) == [3, 1]
    pairs = rows(
        [["c", "d"]] >> Categorify(combo=True, vocabs=[["z", 3], ["x", 1]]),
        {k: v[:3] for k, v in table.items()},
        engine,
    )
    assert pairs == {"c_d": [4, 2, 3]}


def test_sizes_of_given_vocabularies_are_known_before_fitting(engine: str) -> None:
    schema = Schema.from_arrow(pa.schema([("c", pa.string())]))
    column = Bound(["c"] >> Categorify(vocabs=["x", "y"]), schema).output["c"]
    assert column.properties == {
        "cardinality": 5,
        "embedding": {"rows": 5, "dimension": 16},
        "domain": {"min": 0, "max": 4},
    }


@pytest.mark.parametrize(
    ("vocabs", "message"),
    [
        (["a", "a"], "vocabs holds 'a' twice"),
        (["a", None], "vocabs holds a null"),
        ([1.0, float("nan")], "vocabs holds NaN"),
        ([("a", float("nan"))], "vocabs holds NaN"),
    ],
)
def test_impossible_vocabularies(vocabs: list[Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        Categorify(vocabs=vocabs)


def test_a_vocabulary_of_another_type_is_refused_before_data_is_read() -> None:
    schema = Schema.from_arrow(pa.schema([("c", pa.int64())]))
    with pytest.raises(DataError, match=r"vocabs does not fit 'c' of type int64"):
        Bound(["c"] >> Categorify(vocabs=["x"]), schema)
    with pytest.raises(DataError, match=r"vocabs does not fit 'c'"):
        Bound(["c"] >> Categorify(vocabs=[1.5]), schema)


def test_columns_of_a_group_share_one_vocabulary(engine: str) -> None:
    made = rows([["a", "b"]] >> Categorify(), {"a": ["x", "y", None], "b": ["y", "z", "y"]}, engine)
    assert made == {"a": [4, 3, 1], "b": [3, 5, 3]}
    made = rows([["a", "b"]] >> Categorify(), {"a": [1, 300], "b": pa.array([300, 5], pa.int16())}, engine)
    assert made == {"a": [4, 3], "b": [3, 5]}
    made = rows([["a", "b"]] >> Categorify(), {"a": ["x", "y"], "b": [["x", None], None]}, engine)
    assert made == {"a": [3, 4], "b": [[3, 1], None]}
    seconds = pa.array([1, 3, 3]).cast(pa.timestamp("s"))
    millis = pa.array([1000, 3000, 5000]).cast(pa.timestamp("ms"))
    assert rows([["a", "b"]] >> Categorify(), {"a": seconds, "b": millis}, engine) == {"a": [4, 3, 3], "b": [4, 3, 5]}


def test_combo_codes_the_tuple(engine: str) -> None:
    table = {"a": ["x", "x", None, None, "x"], "b": [1, 2, 1, None, 1]}
    assert rows([["a", "b"]] >> Categorify(combo=True), table, engine) == {"a_b": [3, 5, 4, 1, 3]}
    assert rows([["a", "b"]] >> Categorify(combo=True, name_sep="."), table, engine) == {"a.b": [3, 5, 4, 1, 3]}


def test_lists_are_coded_by_their_elements(engine: str) -> None:
    assert ids([["a", "b", None], [], None, ["b"]], engine) == [[4, 3, 1], [], None, [3]]
    assert ids(pa.array([[None], None], pa.list_(pa.int64())), engine) == [[1], None]


def test_int64_when_asked_and_when_needed(engine: str) -> None:
    schema = Schema.from_arrow(pa.schema([("c", pa.string())]))
    assert Bound(["c"] >> Categorify(), schema).output["c"].dtype == pa.int32()
    assert Bound(["c"] >> Categorify(dtype="int64"), schema).output["c"].dtype == pa.int64()
    assert Bound(["c"] >> Categorify(num_buckets=2**31), schema).output["c"].dtype == pa.int64()
    assert ids(["a", "b", "b"], engine, num_buckets=2**31) == [2**31 + 3, 2**31 + 2, 2**31 + 2]


@pytest.mark.parametrize(("rows_", "dimension"), [(29, 16), (100, 21), (1000, 77), (10**9, 512)])
def test_embedding_sizes(rows_: int, dimension: int) -> None:
    from tasks.ops.categorify import embedding_size

    assert embedding_size(rows_) == {"rows": rows_, "dimension": dimension}


def test_inverse_gives_the_values_back(engine: str) -> None:
    table = pa.table({"s": ["b", "a", "b", None], "l": [[1, 2], None, [2], []], "u": [1, 2, 3, 4], "v": [9, 9, 8, 8]})
    nodes = (["s", "l"] >> Categorify()) + ([["u", "v"]] >> Categorify(combo=True) >> ops.Rename(name="uv"))
    workflow = fitted(nodes, table, engine)
    back = workflow.inverse(workflow.transform(table))
    assert back.to_pydict() == table.to_pydict()
    strange = pa.table({"s": pa.array([0, 1, 2, 99, None, -4], pa.int32())})
    assert workflow.inverse(strange)["s"].to_pylist() == [None] * 6


def test_what_was_not_kept_is_counted_too(engine: str) -> None:
    workflow = fitted(["c"] >> Categorify(freq_threshold=2), {"c": ["a", "a", "b", None]}, engine)
    assert workflow.state is not None
    (found,), (kept,) = workflow.state.values.values(), workflow.state.partials.values()
    assert found.pop("values").to_pydict() == {"v0": ["a"], "count": [2]}
    assert found == {"size": 1, "nulls": 1, "distinct": 2, "occurrences": 3}
    assert kept["rest"].to_pydict() == {"v0": ["b"], "count": [1]}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"freq_treshold": 2}, "Categorify has no parameter 'freq_treshold': did you mean 'freq_threshold'"),
        ({"freq_threshold": -1}, "freq_threshold -1 is negative"),
        ({"num_buckets": 0}, "num_buckets is at least 1"),
        ({"num_buckets": 2**32}, r"num_buckets is below 2\^32"),
        ({"max_size": 3}, "max_size 3 leaves no id for the vocabulary: at least 4"),
        ({"max_size": {"c": 2}}, "max_size 2 leaves no id"),
        ({"dtype": "int8"}, r"Categorify\(dtype\): must be 'int32' or 'int64'"),
        ({"freq_threshold": "many"}, "freq_threshold"),
    ],
)
def test_wrong_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        Categorify(**parameters)


def test_wrong_columns() -> None:
    schema = Schema.from_arrow(
        pa.schema([("i", pa.int64()), ("s", pa.string()), ("x", pa.binary()), ("l", pa.list_(pa.string()))])
    )
    for nodes, message in (
        (["x"] >> Categorify(), r"does not take column 'x' of type binary[\s\S]*source.schema: \{x: string\}"),
        ([["i", "s"]] >> Categorify(), "columns i, s cannot share a vocabulary"),
        ([["s", "l"]] >> Categorify(combo=True), "combo does not take list columns"),
    ):
        with pytest.raises(DataError, match=message):
            Bound(nodes, schema)
    with pytest.raises(JobError, match="freq_threshold names 'j', which is not selected"):
        Bound(["i"] >> Categorify(freq_threshold={"j": 2}), schema)
    with pytest.raises(JobError, match="combo needs a group of columns"):
        Bound(["i", "s"] >> Categorify(combo=True), schema)


def test_other_types_of_the_same_numbers_find_their_ids(engine: str) -> None:
    """A lookup compares values, not bits: 1.5 is not the integer 1, a second is 1000 milliseconds."""
    from tasks import engines
    from tests.frames import make_column

    kernels = engines.engine(engine)
    numbers = kernels.Lookup([pa.array([1, 2, 2**62])])
    assert numbers.find_places([make_column([1.0, 1.5, 2.0, None], "float64", engine)]).tolist() == [0, -1, 1, -1]
    assert numbers.find_places([make_column([1, 2**63], pa.uint64(), engine)]).tolist() == [0, -1]
    times = kernels.Lookup([pa.array([1, 2]).cast(pa.timestamp("s"))])
    millis = make_column(pa.array([2000, 1500]).cast(pa.timestamp("ms")), engine=engine)
    assert times.find_places([millis]).tolist() == [1, -1]


@pytest.mark.promise(
    "Code values as ids: 0 padding, 1 null, [2, 2 + num_buckets) out of vocabulary, then the vocabulary by frequency",
    "tasks/ops/README.md#categorify",
)
@examples(40)
@given(values=st.lists(st.one_of(st.none(), st.text(max_size=3)), min_size=1, max_size=40), threshold=st.integers(0, 3))
def test_the_rule_in_plain_python(values: list[str | None], threshold: int) -> None:
    counts = Counter(v for v in values if v is not None)
    order = sorted(counts, key=lambda v: (-counts[v], v.encode()))
    kept = [v for v in order if counts[v] >= threshold]
    place = {v: i + 3 for i, v in enumerate(kept)}
    expected = [1 if v is None else place.get(v, 2) for v in values]
    assert ids(pa.array(values, pa.string()), "pandas", freq_threshold=threshold) == expected


def test_a_group_is_kept_when_nodes_and_groups_are_mixed() -> None:
    schema = Schema.from_arrow(pa.schema([(n, pa.int64()) for n in "abc"]))
    node = as_node([["a"] >> ops.FillMissing(0), ["b", "c"]]) >> Categorify()
    assert sorted({s.unit for s in Bound(node, schema).steps.values() if isinstance(s.op, Categorify)}) == [
        ("a",),
        ("b", "c"),
    ]
