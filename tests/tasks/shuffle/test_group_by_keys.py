"""Rows brought together by keys: all rows of a key in one block, sorted, whatever the partitions and the workers."""

from __future__ import annotations

import datetime as dt
import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import engines, ops
from tasks.cluster.local_pool import LocalPool
from tasks.core.schema import ROW
from tasks.core.settings import Output, Source
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError
from tasks.graph.node import as_node
from tasks.job.request import Request, SavedPlans, make_request
from tasks.ops.base import Context, Operator
from tasks.shuffle import group_by_keys, key_ranges, memory_exchange
from tasks.shuffle.group_by_keys import by_keys, keys_of
from tasks.shuffle.key_ranges import SourceRows, key_blocks
from tasks.sources.reader import read
from tasks.stages import ingest
from tasks.workflow import Workflow
from tests.examples import examples
from tests.frames import to_list
from tests.learning import cut
from tests.stages import run_stages

BLOCKS = 4


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four key blocks even for a few rows."""
    monkeypatch.setattr(key_ranges, "key_blocks", lambda rows: BLOCKS)


def keyed(table: pa.Table, names: Any, sort_by: Any, folder: Path, engine: str, rows: int = 7, threads: int = 2,
          size: int = 1) -> list[pa.Table]:  # fmt: skip
    """The partitions of the table by keys, read from `rows` rows at a time; with size 1 each is one block."""
    source = cut(table, rows)
    plan = by_keys(SourceRows(source, source.plan, engine, LocalPool(threads)), names, sort_by, folder, size)
    columns = [*table.column_names, ROW]
    return [read(plan, i, columns) for i in range(len(plan.partitions))]


WORDS = st.one_of(st.none(), st.sampled_from(["", "a", "b", "é", "zz"]))
NUMBERS = st.one_of(st.none(), st.integers(-3, 3))
ROWS = st.lists(st.tuples(WORDS, NUMBERS, NUMBERS), min_size=1, max_size=60)


def table_of(rows: list[tuple[Any, Any, Any]]) -> pa.Table:
    words, numbers, order = ([r[i] for r in rows] for i in range(3))
    return pa.table({"s": pa.array(words, pa.string()), "n": pa.array(numbers, pa.int32()),
                     "t": pa.array(order, pa.int64()), "i": pa.array(range(len(rows)), pa.int64())})  # fmt: skip


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    """Where a row stands among those of its key: nulls first, then by row number."""
    return row["t"] is not None, row["t"] or 0, row["i"]


@pytest.mark.promise("brings all rows of a key together, sorted by `sort_by`, before the operators")
@examples(40)
@given(rows=ROWS, read_rows=st.integers(1, 20), names=st.sampled_from([["s"], ["n"], ["s", "n"], ["n", "s"]]))
def test_all_rows_of_a_key_lie_together_sorted(
    rows: list[tuple[Any, Any, Any]],
    read_rows: int,
    names: list[str],
    engine: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    table = table_of(rows)
    parts = [p.to_pylist() for p in keyed(table, names, ["t"], tmp_path_factory.mktemp("keys"), engine, read_rows)]
    runs = [
        (k, list(group)) for part in parts for k, group in itertools.groupby(part, lambda r: tuple(r[n] for n in names))
    ]
    assert sorted(map(repr, {k for k, _ in runs})) == sorted(repr(k) for k, _ in runs)  # each key is one run
    assert all(sorted(group, key=place) == group for _, group in runs)
    found = [row for part in parts for row in part]
    assert sorted(found, key=lambda r: r["i"]) == [{**row, ROW: i} for i, row in enumerate(table.to_pylist())]


@examples(25)
@given(rows=ROWS, cuts=st.tuples(st.integers(1, 30), st.integers(1, 30)))
def test_the_order_does_not_depend_on_partitions_or_workers(
    rows: list[tuple[Any, Any, Any]], cuts: tuple[int, int], engine: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    table, found = table_of(rows), []
    for read_rows, threads, size in ((cuts[0], 1, 1), (cuts[1], 3, 1), (len(rows), 2, 1 << 30)):
        parts = keyed(table, ["s", "n"], ["t"], tmp_path_factory.mktemp("keys"), engine, read_rows, threads, size)
        found.append([row for part in parts for row in part.to_pylist()])
    assert found[0] == found[1] == found[2]


def test_keys_stand_by_hash_then_by_value(engine: str, tmp_path: Path) -> None:
    table = pa.table({"k": ["b", None, "a", "b", "a", None], "t": [2, 1, 2, 1, 1, 0]})
    (part,) = keyed(table, ["k"], ["t"], tmp_path, engine, size=1 << 30)
    kernels = engines.engine(engine)
    hashes = kernels.hash_columns([kernels.from_arrow(part.select(["k"]))["k"]]).tolist()
    assert hashes == sorted(hashes)
    groups = {k: [r["t"] for r in g] for k, g in itertools.groupby(part.to_pylist(), lambda r: r["k"])}
    assert groups == {"a": [1, 2], "b": [1, 2], None: [0, 1]}


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1.5, -0.0, 0.0, None, 1.5], pa.float64()),
        ([True, False, None, True, False], pa.bool_()),
        ([dt.datetime(2020, 1, 1), None, dt.datetime(2020, 1, 1), dt.datetime(1969, 1, 1), None], pa.timestamp("us")),
        ([dt.date(2020, 1, 1), None, dt.date(2020, 1, 1), dt.date(1969, 1, 1), None], pa.date32()),
    ],
)
def test_keys_of_every_type(values: list[Any], dtype: pa.DataType, engine: str, tmp_path: Path) -> None:
    table = pa.table({"k": pa.array(values, dtype), "i": range(len(values))})
    rows = [row for part in keyed(table, ["k"], [], tmp_path, engine) for row in part.to_pylist()]
    found = {k: [r["i"] for r in group] for k, group in itertools.groupby(rows, lambda r: r["k"])}
    assert found == {v: [i for i, w in enumerate(values) if w == v] for v in dict.fromkeys(values)}
    assert sum(len(group) for group in found.values()) == len(values)


def test_lists_and_nulls_travel_with_their_rows(engine: str, tmp_path: Path) -> None:
    table = pa.table(
        {"k": [2, 1, 2], "l": pa.array([[1, None], None, []], pa.list_(pa.int64())), "s": ["x", None, "y"]}
    )
    rows = [row for part in keyed(table, ["k"], [], tmp_path, engine, rows=1) for row in part.to_pylist()]
    assert sorted(rows, key=lambda r: r[ROW]) == [{**row, ROW: i} for i, row in enumerate(table.to_pylist())]


def test_the_number_of_blocks_depends_on_the_rows_alone() -> None:
    assert [key_blocks(n) for n in (0, 1, 1 << 20, (1 << 20) + 1, 10_000_000)] == [1, 1, 1, 2, 16]


def test_a_dataset_by_keys_has_its_rows_and_schema(engine: str) -> None:
    table = pa.table({"k": ["b", "a", "b"], "x": [1, 2, 3]})
    dataset = Dataset(table, engine=engine).shuffle_by_keys("k", "x")
    assert (dataset.num_rows, keys_of(dataset.plan), list(dataset.schema)) == (3, ["k"], ["k", "x", ROW])
    head = dataset.head(3)
    assert list(head.columns) == ["k", "x"]
    assert sorted(zip(to_list(head["k"]), to_list(head["x"]), strict=True)) == [("a", 2), ("b", 1), ("b", 3)]
    found = dataset.to_ddf().compute(scheduler="sync")
    assert sorted(to_list(found["x"])) == [1, 2, 3]
    assert dataset.shuffle_by_keys("x").num_rows == 3


def test_a_column_that_is_not_there_is_named(engine: str) -> None:
    with pytest.raises(
        JobError, match=r"there is no column 'usr'\n  where: source.keys and source.sort_by\n  do: did you mean 'user'"
    ):
        Dataset(pa.table({"user": [1]}), engine=engine).shuffle_by_keys("usr")


@pytest.mark.parametrize("column", [[[1], [2]], [{"a": 1}, {"a": 2}]], ids=["list", "struct"])
def test_rows_have_no_order_by_lists_and_structs(column: list[Any], engine: str, tmp_path: Path) -> None:
    dataset = Dataset(pa.table({"k": [1, 2], "l": column}), engine=engine)
    for key, sort in (("l", ()), ("k", "l")):
        with pytest.raises(JobError, match="rows have no order by column 'l'") as caught:
            dataset.shuffle_by_keys(key, sort)
        assert caught.value.where == "source.keys and source.sort_by"
    made = Workflow(as_node("k")).fit_transform(dataset)
    for where, section in (("output.keys", {"keys": ["l"]}), ("output.sort_by", {"keys": ["k"], "sort_by": ["l"]})):
        with pytest.raises(JobError, match="rows have no order by column 'l'") as caught:
            made.to_parquet(tmp_path / "out", shuffle="key", **section)
        assert caught.value.where == where


# what stays what it was


def test_folds_of_target_encoding_are_those_without_keys(engine: str) -> None:
    table = pa.table({"k": [i * 7 % 5 for i in range(40)], "g": [i % 3 for i in range(40)],
                      "y": [i % 2 for i in range(40)], "i": range(40)})  # fmt: skip
    nodes = ["i", *[["g"] >> ops.TargetEncoding("y", kfold=4, drop_folds=False)]]

    def by_row(dataset: Dataset) -> dict[int, tuple[Any, ...]]:
        frames = list(Workflow(nodes).fit_transform(dataset).frames())
        return {r[0]: r for f in frames for r in zip(*(to_list(f[n]) for n in f.columns), strict=True)}

    plain = by_row(Dataset(table, engine=engine))
    assert by_row(Dataset(table, engine=engine).shuffle_by_keys("k", "y")) == plain
    assert len(plain) == 40


def test_shuffle_none_writes_the_rows_in_the_order_of_the_keys(engine: str, tmp_path: Path) -> None:
    table = pa.table({"k": [i * 7 % 5 for i in range(40)], "t": list(range(40))[::-1]})
    dataset = Dataset(table, engine=engine).shuffle_by_keys("k", "t")
    Workflow(["k", "t"]).fit_transform(dataset).to_parquet(tmp_path / "out", shuffle="none", files=3)
    rows = written(tmp_path / "out").to_pylist()
    runs = {k: [r["t"] for r in group] for k, group in itertools.groupby(rows, lambda r: r["k"])}
    assert runs == {k: sorted(39 - i for i in range(40) if i * 7 % 5 == k) for k in range(5)}
    assert sizes(tmp_path / "out") == [13, 13, 14]


def test_shuffle_full_on_top_of_keys_gives_files_of_exact_size(engine: str, tmp_path: Path) -> None:
    table = pa.table({"k": [i % 5 for i in range(50)], "i": range(50)})
    dataset = Dataset(table, engine=engine).shuffle_by_keys("k")
    Workflow(["k", "i"]).fit_transform(dataset).to_parquet(tmp_path / "out", shuffle="full", seed=2, files=4)
    assert sizes(tmp_path / "out") == [12, 13, 12, 13]
    found = written(tmp_path / "out")["i"].to_pylist()
    assert sorted(found) == list(range(50))
    assert found != sorted(found)


@pytest.mark.promise("`shuffle: key` puts all rows of a key (`output.keys`) into one file, sorted")
@pytest.mark.parametrize("brought", [False, True])
def test_shuffle_key_puts_each_key_into_one_file_sorted(brought: bool, engine: str, tmp_path: Path) -> None:
    table = pa.table(
        {
            "k": [i * 3 % 11 for i in range(66)],
            "w": ["ab"[i % 2] for i in range(66)],
            "t": [i * 5 % 66 for i in range(66)],
        }
    )
    dataset = Dataset(table, engine=engine)
    dataset = dataset.shuffle_by_keys("w", "k") if brought else dataset
    made = Workflow(["k", "w", "t"]).fit_transform(dataset)
    made.to_parquet(tmp_path / "out", shuffle="key", keys=["k"], sort_by=["t"], files=3)
    files = [pq.read_table(path).to_pylist() for path in sorted((tmp_path / "out").glob("*.parquet"))]
    assert [{r["k"] for r in a} & {r["k"] for r in b} for a, b in itertools.combinations(files, 2)] == [
        set(),
        set(),
        set(),
    ]
    runs = [(k, [r["t"] for r in group]) for file in files for k, group in itertools.groupby(file, lambda r: r["k"])]
    assert dict(runs) == {k: sorted(i * 5 % 66 for i in range(66) if i * 3 % 11 == k) for k in range(11)}
    assert len(runs) == 11


def written(folder: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob("*.parquet")))


def sizes(folder: Path) -> list[int]:
    return [pq.read_metadata(path).num_rows for path in sorted(folder.glob("*.parquet"))]


# what is left behind


class Exchange:
    """The exchange of `by_keys`, seen closing."""

    closed = 0

    def __init__(self, exchange: Any) -> None:
        self.exchange = exchange

    def __getattr__(self, name: str) -> Any:
        return getattr(self.exchange, name)

    def close(self) -> None:
        Exchange.closed += 1
        self.exchange.close()
        assert self.exchange.cuts == []


@pytest.fixture
def closings(monkeypatch: pytest.MonkeyPatch) -> type[Exchange]:
    make = memory_exchange.memory_exchange
    monkeypatch.setattr(group_by_keys, "memory_exchange", lambda pool: Exchange(make(pool)))
    Exchange.closed = 0
    return Exchange


def broken(*_: Any) -> Any:
    raise DataError("the block broke")


def test_the_exchange_is_closed_and_the_folder_goes_with_the_dataset(
    engine: str, closings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    table = pa.table({"k": [1, 2, 1], "x": [1, 2, 3]})
    dataset = Dataset(table, engine=engine).shuffle_by_keys("k")
    (folder,) = tmp_path.iterdir()
    assert closings.closed == 1
    assert {p.suffix for p in folder.iterdir()} == {".arrow"}
    ddf = dataset.to_ddf()
    del dataset
    assert sorted(to_list(ddf.compute(scheduler="sync")["x"])) == [1, 2, 3]  # whoever reads keeps the files
    del ddf
    import gc

    gc.collect()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stage", ["assemble_sorted", "hash_columns"])
def test_after_an_error_the_exchange_is_closed_and_nothing_is_left(
    stage: str, engine: str, closings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(engines.engine(engine), stage, broken)
    with pytest.raises(DataError, match="the block broke"):
        Dataset(pa.table({"k": [1, 2, 1]}), engine=engine).shuffle_by_keys("k")
    assert closings.closed == 1
    assert list(tmp_path.iterdir()) == []


def job(
    tmp_path: Path, engine: str, keys: list[str], columns: list[str] | None = None, op: Operator | None = None
) -> Request:
    if not (tmp_path / "in.parquet").exists():
        pq.write_table(pa.table({"k": [1, 2, 1, 3], "x": [1, 2, 3, 4]}), tmp_path / "in.parquet")
    source = Source(path=str(tmp_path / "in.parquet"), keys=keys, sort_by=["x"])
    nodes = Workflow((columns or ["x"]) >> (op or ops.Groupby("k"))).final  # type: ignore[operator]
    return make_request(
        source, nodes, Output(path=str(tmp_path / "out"), shuffle="none", files=2), run_settings(), engine
    )


def run_settings() -> Any:
    from tasks.core.settings import Run

    return Run()


def test_a_run_leaves_nothing_but_its_output(engine: str, tmp_path: Path) -> None:
    run_stages(job(tmp_path, engine, ["k"]))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.parquet", "out"]
    found = written(tmp_path / "out").to_pylist()
    assert sorted(found, key=lambda r: r["k"]) == [
        {"k": 1, "x_list": [1, 3]},
        {"k": 2, "x_list": [2]},
        {"k": 3, "x_list": [4]},
    ]


def test_scratch_files_are_used_again_and_made_again_when_gone(engine: str, tmp_path: Path) -> None:
    request, pool = job(tmp_path, engine, ["k"]), LocalPool(2)
    with request.staging.hold_lock():
        assert ingest.ingest(request, pool).reused is False
        assert ingest.ingest(request, pool).reused is True
        files = sorted((request.staging.folder / "keyed").iterdir())
        assert files
        Path(SavedPlans(request).plan("").files[0].path).unlink()
        (request.staging.folder / "keyed" / "block-99999.arrow").touch()
        assert ingest.ingest(request, pool).reused is False
        assert sorted((request.staging.folder / "keyed").iterdir()) == files
    done = run_stages(request)
    assert [(d.stage, d.rows) for d in done[2:]] == [("transform", 4), ("shuffle_write", 3)]
    assert not request.staging.folder.exists()


def test_a_run_that_fails_leaves_nothing_outside_its_staging_folder(
    engine: str, closings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    request = job(tmp_path, engine, ["k"])
    with monkeypatch.context() as patched, request.staging.hold_lock():
        patched.setattr(engines.engine(engine), "assemble_sorted", broken)
        with pytest.raises(DataError, match="the block broke"):
            ingest.ingest(request, LocalPool(2))
    assert closings.closed == 1
    assert {p.name for p in tmp_path.iterdir()} <= {".out.rowmill", "in.parquet"}
    run_stages(request)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.parquet", "out"]


def test_a_job_without_the_keys_is_refused_before_any_row_moves(engine: str, closings: Any, tmp_path: Path) -> None:
    for names, why in (([], "the source has no keys"), (["x"], r"source.keys is \['x'\]")):
        request = job(tmp_path, engine, names)
        with (
            request.staging.hold_lock(),
            pytest.raises(JobError, match=f"Groupby needs all rows of k together\n  why: {why}"),
        ):
            ingest.ingest(request, LocalPool(2))
    assert closings.closed == 0
    with_keys, other = job(tmp_path, engine, ["k"]), job(tmp_path, engine, ["k"], ["x"], ops.DifferenceLag("x"))
    with with_keys.staging.hold_lock():
        ingest.ingest(with_keys, LocalPool(2))
        with pytest.raises(JobError, match="DifferenceLag needs all rows of x together"):
            ingest.ingest(other, LocalPool(2))


def test_on_a_cluster_the_rows_are_the_same_and_no_piece_stays_published(
    client: Any, engine: str, tmp_path: Path
) -> None:
    table = table_of([("ab"[i % 2], i % 7, i * 5 % 11) for i in range(60)])
    pq.write_table(table, tmp_path / "in.parquet")
    dataset = Dataset(tmp_path / "in.parquet", engine=engine).shuffle_by_keys(["s", "n"], "t")
    assert client.list_datasets() == ()
    found = [
        row
        for i in range(dataset.npartitions)
        for row in read(dataset.handle, i, [*table.column_names, ROW]).to_pylist()
    ]
    here = keyed(table, ["s", "n"], ["t"], tmp_path / "here", engine, size=1 << 30)
    assert sorted(found, key=lambda r: r["i"]) == sorted((r for p in here for r in p.to_pylist()), key=lambda r: r["i"])
    with pytest.raises(JobError, match="there is no column 'z'"):
        dataset.shuffle_by_keys("z")
    assert client.list_datasets() == ()


def test_the_context_of_grouped_rows_has_numbers_of_the_source(engine: str) -> None:
    kernels = engines.engine(engine)
    xp = kernels.xp
    columns = kernels.from_arrow(pa.table({"k": [5, 5, 3, 3, 3], "x": [1, 2, 3, 4, 5]}))
    rows, order = xp.asarray([9, 4, 7, 8, 6], dtype=xp.uint64), xp.asarray([10, 11, 12, 13, 14], dtype=xp.uint64)
    made, context = ops.Groupby("k", ["x"], ascending=False).regroup(
        columns, ("x",), Context(kernels, rows, True, order)
    )
    assert (to_list(made["k"]), to_list(made["x_list"])) == ([5, 3], [[2, 1], [5, 4, 3]])
    assert (context.rows.tolist(), context.order.tolist(), context.training) == ([4, 6], [10, 12], True)
