"""Vocabularies too large for one task: split by hash, put in order by ranges, and equal to those of one task."""

from __future__ import annotations

import pickle
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from dask.sizeof import sizeof
from distributed import Client
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tasks import ops
from tasks.cluster.dask_pool import DaskPool, workers_at
from tasks.cluster.local_pool import LocalPool
from tasks.engines.cpu import lookup
from tasks.engines.cpu.lookup import HashTable
from tasks.graph.node import as_node
from tasks.graph.partition_work import Work
from tasks.learning import large_table_types, large_tables
from tasks.learning import observe as passes
from tasks.learning.handles import Handles
from tasks.learning.observe import observe
from tasks.learning.partials import Phase, merge
from tests.clusters import ON_LOOPBACK, ThreadWorker, start_threads
from tests.examples import examples
from tests.learning import close, cut, learned, learned_on


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything from 6 rows on is large, and every range of the order has about 16."""
    sizes = large_table_types.Sizes(splits=8, alone=6, large=6, chain=8, one_task=8, range=16)
    monkeypatch.setattr(large_table_types, "SIZES", {"pandas": sizes, "cudf": sizes})
    monkeypatch.setattr(large_tables, "SIZES", {"pandas": sizes, "cudf": sizes})


@pytest.fixture
def current(two_workers: Any) -> Iterator[Any]:
    """The client of two workers, the current one while the test runs."""
    with two_workers.as_current():
        yield two_workers


def table(rows: int = 150) -> pa.Table:
    rng = np.random.default_rng(5)
    return pa.table(
        {
            "i": pa.array(rng.integers(-50, 50, rows) << 40, mask=rng.random(rows) < 0.1),
            "s": [None if v == 3 else f"é{v % 7}-{v}" * (v % 5) for v in rng.integers(0, 90, rows)],
            "f": pa.array(rng.integers(0, 60, rows) / 4, pa.float32()),
            "b": rng.random(rows) < 0.3,
            "few": rng.integers(0, 3, rows),
            "d": pa.array(rng.integers(0, 40, rows).astype("datetime64[D]")),
            "far": pa.array(rng.integers(0, 40, rows) << 55).cast(pa.timestamp("us")),  # Python's years end at 9999
            "l": [[int(v), None, 7] if v % 3 else None for v in rng.integers(0, 50, rows)],
            "y": rng.integers(0, 2, rows),
            "x": rng.normal(0, 1, rows),
        }
    )


def nodes() -> Any:
    return (
        (["i", "s", "f", "d", "far", "l", "few"] >> ops.Categorify(freq_threshold=2, max_size=40))
        + ([["i", "s"], ["b", "few"]] >> ops.Categorify(combo=True, num_buckets=3))
        + ([["few", "i"]] >> ops.Rename(postfix="_one") >> ops.Categorify())
        + (["i", "s", "few", ["s", "d"]] >> ops.TargetEncoding(["y", "few"], kfold=3))
        + (["f"] >> ops.TargetEncoding("x"))
        + ([["i", "b"], "s"] >> ops.JoinGroupby("few", stats=["count", "mean", "max"]))
        + (["few"] >> ops.JoinGroupby("x", stats=["std"]))
        + (["x"] >> ops.Normalize())
    )


def test_the_same_is_learned_as_in_one_task(
    engine: str, monkeypatch: pytest.MonkeyPatch, tiny: None, chains: list[int]
) -> None:
    split = [learned(nodes(), cut(table(), 16, n), engine, threads) for n, threads in ((1, 3), (4, 2), (100, 1))]
    assert [*map(bool, chains)].count(True) >= 3
    assert max(chains) > 1
    tiny_sizes = large_table_types.SIZES["pandas"]
    alone = tiny_sizes._replace(large=1 << 30)  # steps for themselves, tables in one piece
    monkeypatch.setattr(large_table_types, "SIZES", {"pandas": alone, "cudf": alone})
    monkeypatch.setattr(large_tables, "SIZES", {"pandas": alone, "cudf": alone})
    chains.clear()
    split.append(learned(nodes(), cut(table(), 16, 3), engine))
    assert max(chains) == 1
    never = alone._replace(alone=1 << 30)
    monkeypatch.setattr(large_table_types, "SIZES", {"pandas": never, "cudf": never})
    monkeypatch.setattr(large_tables, "SIZES", {"pandas": never, "cudf": never})
    chains.clear()
    whole = learned(nodes(), cut(table(), 16, 3), engine)
    assert max(chains, default=0) == 0
    for sizes in ({"pandas": tiny_sizes, "cudf": never}, {"pandas": never, "cudf": tiny_sizes}):
        monkeypatch.setattr(large_table_types, "SIZES", sizes)
        monkeypatch.setattr(large_tables, "SIZES", sizes)  # on a GPU some steps keep their tables in host memory
        split += [learned(nodes(), cut(table(), 16, n), engine) for n in (1, 4)]
    uneven = tiny_sizes._replace(large=40)  # of one step some partials are split, others not
    monkeypatch.setattr(large_table_types, "SIZES", {"pandas": uneven, "cudf": uneven})
    monkeypatch.setattr(large_tables, "SIZES", {"pandas": uneven, "cudf": uneven})
    chains.clear()
    split.append(learned(nodes(), cut(table(), 16), engine))
    assert max(chains) > 1
    for state in split:
        assert close(state.values, whole.values)
        assert list(state.values) == list(whole.values)
        assert list(state.partials) == list(whole.partials)


def test_partials_are_free_before_large_tables_are_put_in_order(monkeypatch: pytest.MonkeyPatch, tiny: None) -> None:
    conclude, finalize = passes.conclude, large_tables.finalize
    partials, alive = list[weakref.ref[Any]](), list[int]()

    def watched(pool: Any, observed: Handles, *functions: Any) -> Any:
        partials.extend(weakref.ref(handle) for handle in observed)  # handles of threads are the values themselves
        return conclude(pool, observed, *functions)

    def counted(*arguments: Any) -> Any:
        alive.append(sum(ref() is not None for ref in partials))
        return finalize(*arguments)

    monkeypatch.setattr(passes, "conclude", watched)
    monkeypatch.setattr(large_tables, "finalize", counted)
    learned(nodes(), cut(table(), 16, 2), "pandas")
    assert len(partials) > 1
    assert alive == [0] * len(alive) != []


def test_the_same_is_learned_on_a_cluster(client: Any, engine: str, tiny: None) -> None:
    source = cut(table(), 16, 2)
    found = learned_on(DaskPool(client), nodes(), source, engine)
    assert close(found.values, learned(nodes(), cut(table(), 16, 100), engine).values)


def test_ids_go_by_count_and_then_by_value_over_all_splits(engine: str, tiny: None) -> None:
    values = [5, 5, 5, 9, 9, 1, 1, 8, 2, 7, 3, None, 6, 4, 4, -1, 12, 11]
    state = learned(["c"] >> ops.Categorify(), cut(pa.table({"c": values}), 2), engine)
    (found,) = state.values.values()
    assert found["values"].to_pydict() == {
        "v0": [5, 1, 4, 9, -1, 2, 3, 6, 7, 8, 11, 12],
        "count": [3, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1],
    }
    assert (found["size"], found["nulls"]) == (12, 1)


@examples(40, HealthCheck.function_scoped_fixture)
@given(
    values=st.lists(st.none() | st.text(alphabet="aé\x00bz🜚", max_size=10), min_size=8, max_size=60),
    rows=st.integers(1, 20),
    threshold=st.integers(0, 3),
)
def test_any_strings_in_any_blocks(engine: str, tiny: None, values: list[Any], rows: int, threshold: int) -> None:
    source = cut(pa.table({"c": pa.array(values, pa.string())}), rows)
    state = learned(["c"] >> ops.Categorify(freq_threshold=threshold), source, engine)
    (found,), (kept,) = state.values.values(), state.partials.values()
    counts = Counter(v for v in values if v is not None)
    expected = sorted(counts.items(), key=lambda item: (-item[1], item[0].encode()))
    size = sum(n >= threshold for n in counts.values())
    assert list(zip(*found["values"].to_pydict().values(), strict=True)) == expected[:size]
    rest = kept["rest"].to_pydict().values() if kept else ()
    assert list(zip(*rest, strict=True)) == expected[size:]
    assert (found["size"], found["distinct"], found["occurrences"]) == (size, len(expected), counts.total())
    assert found["nulls"] == values.count(None)


def test_a_table_is_split_by_the_keys_alone(engine: str) -> None:
    from tasks import engines

    kernels = engines.engine(engine)
    values = kernels.column(pa.array([*range(1000), None]))
    counts = kernels.count_values([values], ["v0"])
    parts = kernels.split_table(counts, ["v0"], 8)
    assert sorted(len(p) for p in parts)[0] > 90
    assert sum(len(p) for p in parts) == 1001
    again = kernels.split_table(kernels.join_tables(parts[::-1]), ["v0"], 8)
    for part, same in zip(parts, again, strict=True):
        assert kernels.host_table(kernels.sort_counts(part, ["v0"])) == kernels.host_table(
            kernels.sort_counts(same, ["v0"])
        )


def test_all_ranges_of_a_table_are_found_with_few_looks_at_it(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks import engines

    kernels, op = engines.engine(engine), ops.Categorify()
    values = pa.array([value for value in range(1000) for _ in range(1 + (value % 7 == 0))])
    table = kernels.sort_counts(kernels.count_values([kernels.column(values)], ["v0"]), ["v0"])
    looks, places = [], large_tables._sort_keys
    monkeypatch.setattr(large_tables, "_sort_keys", lambda *given: looks.append(given) or places(*given))
    edges = [
        op.place({"v0": value, "count": count}) for count, value in ((3, 0), (2, 0), (2, 8), (1, 1), (1, 999), (0, 0))
    ]
    assert large_tables._first_not_before(op, table, edges) == [0, 0, 2, 143, 999, 1000]
    assert len(looks) <= 11


@pytest.mark.parametrize("kind", ["int64", "uint32", "float64", "string", "timestamp[us]", "date32"])
def test_a_long_table_of_counts_is_put_in_order_like_a_short_one(engine: str, kind: str) -> None:
    from tasks import engines

    kernels, rng = engines.engine(engine), np.random.default_rng(1)
    counts = rng.choice([1, 2, 2, 3, 255, 256, 70_000, 80_000], 70_000)
    numbers = rng.permutation(70_000)
    if kind == "string":
        values = pa.array([f"{'common-prefix' * (n % 2)}{n:x}"[: n % 30 + 12] + f"/{n}" for n in numbers.tolist()])
    else:
        values = pa.array(numbers).cast(pa.int32() if kind == "date32" else pa.int64()).cast(kind)
    host = pa.table({"v0": values, "count": counts})
    table = kernels.count_values([kernels.column(values)], ["v0"])
    table = kernels.merge_sums([table, *([table] * 0)], ["v0"])
    found = kernels.host_table(kernels.sort_counts(_with_counts(kernels, table, host), ["v0"]))
    assert found.to_pydict() == host.sort_by([("count", "descending"), ("v0", "ascending")]).to_pydict()


def test_a_slice_travels_without_the_rest_of_its_table() -> None:
    table = pa.table({"v0": [f"value {i}" for i in range(100_000)], "count": np.arange(100_000)})
    packed = pickle.dumps(large_table_types.Slice(table.slice(10, 2)))
    assert len(packed) < 2000
    travelled = pickle.loads(packed)  # noqa: S301
    assert travelled.table.to_pydict() == {"v0": ["value 10", "value 11"], "count": [10, 11]}


def test_dask_knows_how_large_what_is_learned_is(engine: str, tiny: None) -> None:
    """It spills results by their size, on GPUs from the device to the host."""
    source = cut(pa.table({"c": np.arange(40_000) << 20}), 10_000)
    work = Work(source, as_node(["c"] >> ops.Categorify()), source.plan.schema, engine, training=True, depth=1)
    found = [observe(Phase(work, 1, 0), partition) for partition in source.plan.partitions]
    assert [sizeof(part) for part in found] == pytest.approx([160_000] * 4, rel=0.05)  # 16 bytes a value
    whole = merge(found)
    assert sizeof(whole) == pytest.approx(640_000, rel=0.05)
    (partial,) = whole.partials.values()
    chain = large_tables.chain_of(partial.step.op, partial.step.unit, partial.tree[-1, 0], 0, 2)
    assert 300_000 < sizeof(chain) < 340_000
    pieces = large_tables._slice_chain(
        large_tables._arrange(chain), [(-1, (True, v << 20)) for v in (10_000, 20_000, 30_000)]
    )
    assert sizeof(pieces) == pytest.approx(sizeof(chain), rel=0.05)  # slices of one table: each by what it shows


def test_few_keys_are_found_where_many_are() -> None:
    keys = np.random.default_rng(3).integers(-(2**63), 2**63 - 1, 5_000)
    table = HashTable(np.append(keys, keys[:100]))
    wanted = np.append(keys[::10], keys[::10] + 1)
    found = table.find(wanted)
    assert np.count_nonzero(found < 0) == 500
    assert [table.find(wanted[row : row + 1]).item() for row in range(len(wanted))] == found.tolist()


@pytest.mark.parametrize("rows", [1, 3, 200_000])
def test_a_hash_table_finds_every_key_and_no_other(rows: int) -> None:
    keys = np.random.default_rng(3).permutation(rows).astype(np.int64) * np.int64(1 << 44) - 7
    made = HashTable(np.append(keys, keys[:1]))
    expected = np.unique(keys, return_index=True)[1]
    found = made.find(np.unique(keys))
    assert made.repeated.tolist() in ([0], [rows])
    assert (keys[np.where(found == rows, 0, found)] == keys[expected]).all()
    assert made.find(np.unique(keys) + 1).max() == -1
    assert HashTable(keys[:0]).find(keys).tolist() == [-1] * rows


@pytest.mark.parametrize("present", [0.0, 0.1, 0.9])
def test_a_large_hash_table_finds_the_same_with_and_without_a_filter(
    monkeypatch: pytest.MonkeyPatch, present: float
) -> None:
    monkeypatch.setattr(lookup, "FILTERED_SIZES", range(1 << 10, 1 << 26))
    random = np.random.default_rng(5)
    keys = random.permutation(300_000).astype(np.int64) * np.int64(1 << 44) - 7
    table, wanted = HashTable(keys[:150_000]), keys[150_000 + random.permutation(150_000)]
    chosen = random.integers(0, 150_000, 150_000)
    is_present = random.random(150_000) < present
    found = table.find(np.where(is_present, keys[chosen], wanted))
    assert (found == np.where(is_present, chosen, -1)).all()
    assert ("_filter" in vars(table)) == (present < 0.25)


@examples(60, HealthCheck.function_scoped_fixture)
@given(
    keys=st.sets(st.integers(-300, 300) | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=60),
    runs=st.lists(st.sets(st.integers(-300, 300) | st.integers(-(2**63), 2**63 - 1), max_size=90), max_size=5),
    shuffled=st.booleans(),
)
def test_ascending_runs_are_found_as_any_other_keys(
    monkeypatch: pytest.MonkeyPatch, keys: set[int], runs: list[set[int]], shuffled: bool
) -> None:
    monkeypatch.setattr(lookup, "FEW_KEYS", 0)
    monkeypatch.setattr(lookup, "SAMPLE", 4)
    monkeypatch.setattr(lookup, "MIN_RUN", 6)
    places = {key: place for place, key in enumerate(sorted(keys, key=hash))}
    wanted = [key for run in runs for key in (run if shuffled else sorted(run))]
    found = HashTable(np.array([*places], dtype=np.int64)).find(np.array(wanted, dtype=np.int64))
    assert found.tolist() == [places.get(key, -1) for key in wanted]


def test_a_long_ascending_run_is_not_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the base of a refit streams by the values of a night; keys in any other order are hashed."""
    keys, hashed = np.random.default_rng(5).permutation(100_000) * np.int64(1 << 40), []
    table, find = HashTable(keys), HashTable._probe
    monkeypatch.setattr(HashTable, "_probe", lambda *given: hashed.append(len(given[1])) or find(*given))
    order = np.argsort(keys)
    run = np.repeat(keys[order][500:20_000], 20) + np.tile(np.arange(20), 19_500)  # every 20th is a key
    expected = np.full(len(run), -1)
    expected[::20] = order[500:20_000]
    assert (table.find(run) == expected).all()
    assert (table.find(np.append(run, run)) == np.append(expected, expected)).all()
    assert hashed == [19_500] * 3  # the keys that are in a run
    assert (table.find(keys) == np.arange(100_000)).all()
    assert sum(hashed[3:]) == 100_000


def test_strings_with_one_hash_keep_their_own_places(monkeypatch: pytest.MonkeyPatch) -> None:
    real = lookup._hash64
    monkeypatch.setattr(lookup, "_hash64", lambda strings: real(strings) & 0x1FFF)
    strings = pa.array([f"{i}" for i in range(5000)])
    found = lookup.Lookup([strings]).find_places([pa.chunked_array([["4999", "x", "0", None, "77", "5000"]])])
    assert found.tolist() == [4999, -1, 0, -1, 77, -1]


def _with_counts(kernels: Any, table: Any, host: pa.Table) -> Any:
    """The host's counts as a table of the engine, whose columns are called as the engine calls them."""
    return host if isinstance(table, pa.Table) else type(table).from_arrow(host.rename_columns(list(table.columns)))


def addressed(number: int) -> tuple[int, str]:
    from distributed import get_worker

    return number, get_worker().address


def asked(here: bool) -> tuple[str, list[tuple[int, str]]]:
    """(the worker that asks, who did each of ten calls)."""
    from distributed import get_client, get_worker

    pool = DaskPool(get_client())
    return get_worker().address, pool.values(pool.call(addressed, [(n,) for n in range(10)], here))


@pytest.mark.system
def test_what_is_asked_for_here_is_done_by_the_worker_that_asks() -> None:
    of_two_threads = {"cls": ThreadWorker, "options": {**ON_LOOPBACK, "nthreads": 2}}
    with (
        start_threads([], one=of_two_threads, other=of_two_threads) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        for worker in workers_at(client):
            me, done = client.submit(asked, True, workers=[worker], pure=False).result()
            assert me == worker
            assert [n for n, _ in done] == list(range(10))
            assert sum(who == worker for _, who in done) > 5  # an idle one may help where the host is busy
        pool = DaskPool(client)
        assert pool.here is None  # the thread of the test is not a worker's
        calls = pool.call(addressed, [(n,) for n in range(10)], here=True)
        assert [n for n, _ in pool.values(calls)] == list(range(10))


@pytest.mark.system
@pytest.mark.parametrize("large_ones", [False, True])
def test_steps_are_finished_in_several_tasks(
    engine: str, current: Any, large_ones: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large_ones:
        monkeypatch.setitem(large_table_types.SIZES, "pandas", large_table_types.SIZES["pandas"]._replace(alone=1000))
    rng = np.random.default_rng(2)
    numbers = {f"c{i}": rng.integers(0, 3000 if i % 9 == 0 else 9 + i, 8000) << 40 for i in range(18)}
    table = pa.table(numbers | {f"x{i}": rng.normal(size=8000) for i in range(4)})
    nodes = as_node((list(numbers) >> ops.Categorify()) + ([f"x{i}" for i in range(4)] >> ops.Normalize()))
    source = cut(table, 1000)
    current.get_task_stream(count=0)  # from here on they are kept
    began = time.time()
    found = learned_on(DaskPool(current), nodes, source, "pandas")
    alone = learned(nodes, source, "pandas")
    assert list(found.values) == list(alone.values)
    assert close(found.values, alone.values)
    done = {task["key"] for task in current.get_task_stream(start=began) if task["key"].startswith("finalize-")}
    assert len(done) == 2  # which worker does which is for Dask to say


def halved(number: int) -> float:
    if number == 3:
        raise ValueError("three")
    return number / 2


@pytest.mark.system
def test_values_come_as_they_are_done_and_an_error_ends_them(current: Any) -> None:
    for pool in (DaskPool(current), LocalPool(2)):
        handles = pool.call(halved, [(n,) for n in (8, 2, 6)])
        assert sorted(pool.arriving(handles)) == [(0, 4.0), (1, 1.0), (2, 3.0)]
        assert handles == []
        assert list(pool.arriving([])) == []
    pool = DaskPool(current)
    with pytest.raises(ValueError, match="three"):
        list(pool.arriving(pool.call(halved, [(2,), (3,)])))


@pytest.mark.parametrize(
    ("rows", "memory", "together"),
    [([], 0, False), ([10], 8 * 40 * 10, True), ([10, 1], 8 * 40 * 10, False), ([10, 10], 2 * 8 * 40 * 10, True)],
)
def test_tables_are_brought_together_on_one_of_two_gpus_that_has_room(
    rows: list[int], memory: int, together: bool
) -> None:
    pool: Any = SimpleNamespace(workers=("a", "b"), device_memory=2 * memory)
    assert large_tables._is_arranged_here(pool, [large_table_types.RowCount(n, "cudf") for n in rows]) == together
    assert not large_tables._is_arranged_here(pool, [large_table_types.RowCount(n, "pandas") for n in rows])
