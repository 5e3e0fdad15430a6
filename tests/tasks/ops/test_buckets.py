"""Facts about buckets by boundaries and by hash."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import ops
from tasks.dataset import Dataset
from tasks.engines.hashing.murmur3 import hash_array
from tasks.errors import JobError
from tasks.graph.state import State
from tasks.learning import observe
from tasks.workflow import Workflow
from tests.examples import examples
from tests.tasks.ops.fitting import one_column, transformed


def test_bucketize_counts_the_boundaries_at_or_below(engine):
    values = [-1, 0, 9, 10, 99, 100, None]
    assert one_column(ops.Bucketize([0, 10, 100]), values, pa.int64(), engine) == [0, 1, 1, 2, 2, 3, None]


@pytest.mark.promise(
    "Replace each value by the number of boundaries at or below it, int32; null stays null",
    "tasks/ops/README.md#bucketize",
)
def test_bucketize_agrees_with_numpy_digitize(engine):
    values, edges = np.random.default_rng(1).normal(0, 3, 1000).astype("float32"), [-2.5, 0.0, 0.1, 4.0]
    made = one_column(ops.Bucketize(edges), values.tolist(), pa.float32(), engine)
    assert made == np.digitize(values.astype(float), edges).tolist()


def test_whole_numbers_are_compared_as_such(engine):
    values = [2**53, 2**53 + 1]
    assert one_column(ops.Bucketize([2**53 + 1]), values, pa.int64(), engine) == [0, 1]
    assert one_column(ops.Bucketize([-1, 2**53 + 1]), values, pa.uint64(), engine) == [1, 2]


@pytest.mark.parametrize("kind", ["int8", "uint8", "int64", "uint64"])
@examples(30)
@given(data=st.data())
def test_integers_are_compared_exactly_with_any_boundary(engine, kind, data):
    low, high = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
    values = data.draw(st.lists(st.sampled_from([low, low + 1, high - 1, high]) | st.integers(low, high), min_size=1))
    edge = st.integers(low - 2, high + 2) | st.floats(allow_nan=False) | st.sampled_from(values)
    edges = sorted(data.draw(st.lists(edge, min_size=1, max_size=6)))
    wanted = [sum(value >= edge for edge in edges) for value in values]
    assert one_column(ops.Bucketize(edges), values, getattr(pa, kind)(), engine) == wanted


def test_bucketize_takes_elements_of_lists_and_infinities(engine):
    dtype = pa.list_(pa.float64())
    values = [[0.5, float("inf")], None, [], [None, -float("inf")]]
    assert one_column(ops.Bucketize([0, 1]), values, dtype, engine) == [[1, 2], None, [], [None, 0]]


def test_each_column_may_have_its_own_boundaries(engine):
    table = pa.table({"a": [5], "b": [5]})
    assert transformed(["a", "b"] >> ops.Bucketize({"a": [0], "b": [6, 7]}), table, engine) == {"a": [1], "b": [0]}
    with pytest.raises(JobError, match="no boundaries for column 'b'"):
        transformed(["a", "b"] >> ops.Bucketize({"a": [0]}), table, engine)


@pytest.mark.parametrize("edges", [[], [1, 0], [float("nan")]])
def test_boundaries_that_do_not_ascend_are_refused(edges):
    with pytest.raises(JobError, match="boundaries must"):
        ops.Bucketize(edges)


@pytest.mark.promise(
    "Replace each value by its hash mod `num_buckets`, int32: the same on CPU, GPU and in every version"
)
def test_hash_bucket_is_murmur3_of_canonical_bytes(engine):
    assert one_column(ops.HashBucket(2**31 - 1), [10, None], pa.int64(), engine) == [
        4004982076 % (2**31 - 1),
        0xFFFFFFFF % (2**31 - 1),
    ]
    assert one_column(ops.HashBucket(1000), [10], pa.int8(), engine) == [4004982076 % 1000]
    assert one_column(ops.HashBucket(1000), [""], pa.string(), engine) == [0]
    assert (
        one_column(ops.HashBucket(7), [0.0, -0.0], pa.float64(), engine)[0]
        == one_column(ops.HashBucket(7), [-0.0], pa.float64(), engine)[0]
    )


@pytest.mark.promise(
    "So an id has one bucket whether a file stores it as 7 or as 7.0",
    "tasks/ops/README.md#hashbucket",
)
def test_whole_floats_have_the_bucket_of_the_integer(engine):
    whole = [7.0, -7.0, 0.0, -0.0, 2.0**53, -(2.0**63), 2.0**63, None]
    integers = [7, -7, 0, 0, 2**53, -(2**63)]
    buckets = one_column(ops.HashBucket(1000), whole, pa.float64(), engine)
    assert buckets[:6] == one_column(ops.HashBucket(1000), integers, pa.int64(), engine)
    assert buckets[6:] == one_column(ops.HashBucket(1000), [2**63, None], pa.uint64(), engine)
    assert one_column(ops.HashBucket(1000), [7.0, 0.5], pa.float32(), engine)[0] == buckets[0]
    assert one_column(ops.HashBucket(1000), [0.5, 2.0**64, np.inf], pa.float64(), engine) == [
        int(hash_array(pa.array([value]))[0]) % 1000 for value in (0.5, 2.0**64, np.inf)
    ]
    table = pa.table({"a": [7.0], "b": ["x"]})
    assert transformed([["a", "b"]] >> ops.HashedCross(1000), table, engine) == transformed(
        [["a", "b"]] >> ops.HashedCross(1000), pa.table({"a": [7], "b": ["x"]}), engine
    )
    vocabulary = ["x"] >> ops.Categorify(num_buckets=50, vocabs={"x": [1]})
    assert transformed(vocabulary, pa.table({"x": [7.0]}), engine) == transformed(
        vocabulary, pa.table({"x": [7]}), engine
    )


@pytest.mark.promise(
    "A workflow that an older rowmill fitted hashes every float as float64, and keeps doing so in refits"
)
def test_a_state_of_older_rules_keeps_them_in_refits(engine, tmp_path, monkeypatch):
    nodes = (["x"] >> ops.HashBucket(1000)) + ([["a", "b"]] >> ops.Cross() >> ops.Categorify())
    table = pa.table({"x": [7.0, 8.0], "a": ["x_y", "x"], "b": ["z", "y_z"]})
    workflow = Workflow(nodes).fit(Dataset(table, engine=engine))
    assert workflow.transform(table).to_pydict() == {"x": [267, 271], "a_b": [3, 4]}

    monkeypatch.setattr(observe, "VALUE_RULES", 1)  # as it was fitted by the rules before
    Workflow(nodes).fit(Dataset(table, engine=engine)).save(tmp_path / "old")
    monkeypatch.undo()
    assert json.loads((tmp_path / "old/state.json").read_text())["rules"] == 1
    old = Workflow(nodes)
    old.schema, old.state = workflow.schema, State.load(tmp_path / "old")
    assert old.transform(table).to_pydict() == {"x": [853, 817], "a_b": [3, 3]}
    old.refit(Dataset(table, engine=engine)).save(tmp_path / "refitted")
    assert Workflow.load(tmp_path / "refitted").transform(table).to_pydict() == {"x": [853, 817], "a_b": [3, 3]}


@pytest.mark.promise("of values that are not null, `hash(x) % n` is what `HashBucket` gives, also for whole floats")
@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([7.0, 8.0, -3.0, 0.5, -0.0, 2.0**64, np.inf], pa.float64()),
        ([7.0, 0.5], pa.float32()),
        ([7, 8, 2**62], pa.int64()),
        ([True, False], pa.bool_()),
        (["7", ""], pa.string()),
    ],
)
def test_hash_of_an_expression_is_that_of_hash_bucket(values, dtype, engine):
    hashed = ops.Lambda(expression="hash(x) % 1000")
    assert one_column(hashed, values, dtype, engine) == one_column(ops.HashBucket(1000), values, dtype, engine)
    assert one_column(hashed, [7.0, None], pa.float64(), engine) == [267, None]
    table = pa.table({"x": pa.array(values, dtype), "row": range(len(values))})
    kept = transformed((["x", "row"] >> ops.Filter("hash(x) % 1000 == 267"))["row"], table, engine)["row"]
    assert kept == [n for n, value in enumerate(values) if value == 7 and dtype != pa.string()]


def test_an_older_state_keeps_the_hashes_of_its_expressions(engine, tmp_path, monkeypatch):
    nodes = ["x"] >> ops.Lambda(expression="hash(x) % 1000")
    table = pa.table({"x": [7.0, 8.0]})
    assert transformed(nodes, table, engine) == {"x": [267, 271]}
    monkeypatch.setattr(observe, "VALUE_RULES", 2)
    Workflow(nodes).fit(Dataset(table, engine=engine)).save(tmp_path / "old")
    monkeypatch.undo()
    assert json.loads((tmp_path / "old/state.json").read_text())["rules"] == 2
    assert Workflow.load(tmp_path / "old").transform(table).to_pydict() == {"x": [853, 817]}


def test_hash_bucket_hashes_the_elements_of_lists(engine):
    dtype = pa.list_(pa.string())
    (a,) = one_column(ops.HashBucket(50), ["a"], pa.string(), engine)
    assert one_column(ops.HashBucket(50), [["a", ""], None, [], [None]], dtype, engine) == [
        [a, 0], None, [], [0xFFFFFFFF % 50],
    ]  # fmt: skip


@pytest.mark.promise(
    "Replace a group (nested list) by the hash of its values mod `num_buckets`: column `a_X_b`, int32, never null",
    "tasks/ops/README.md#hashedcross",
)
def test_hashed_cross_hashes_the_hashes(engine):
    a, b = pa.array([1, None, 1]), pa.array(["x", "x", "y"])
    words = np.stack([hash_array(a), hash_array(b)], axis=1).astype("<u4")
    made = transformed([["a", "b"]] >> ops.HashedCross(100), pa.table({"a": a, "b": b}), engine)
    assert list(made) == ["a_X_b"]
    assert made["a_X_b"] == [_murmur3(row.tobytes()) % 100 for row in words]


def _murmur3(data: bytes) -> int:
    """MurmurHash3_x86_32, seed 0, of whole 4-byte words, as its reference writes it."""
    mask, h = 0xFFFFFFFF, 0
    for at in range(0, len(data), 4):
        k = int.from_bytes(data[at : at + 4], "little") * 0xCC9E2D51 & mask
        k = ((k << 15 | k >> 17) & mask) * 0x1B873593 & mask
        h ^= k
        h = ((h << 13 | h >> 19) & mask) * 5 + 0xE6546B64 & mask
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & mask
    h = (h ^ h >> 13) * 0xC2B2AE35 & mask
    return h ^ h >> 16


def test_hashed_cross_needs_a_group(engine):
    with pytest.raises(JobError, match="'a' stands alone"):
        transformed(["a"] >> ops.HashedCross(10), pa.table({"a": [1]}), engine)


@pytest.mark.parametrize("buckets", [0, 2**31, {"a": -1}])
def test_a_number_of_buckets_that_int32_cannot_hold_is_refused(buckets):
    with pytest.raises(JobError, match="num_buckets is 1 to"):
        ops.HashBucket(buckets)


def test_bucket_columns_carry_their_cardinality():
    from tasks.dataset import Dataset
    from tasks.workflow import Workflow

    schema = Workflow(["x"] >> ops.HashBucket(8)).output_schema_of(Dataset(pa.table({"x": [1]})).schema)
    assert schema["x"].properties == {"cardinality": 8, "domain": {"min": 0, "max": 7}}
