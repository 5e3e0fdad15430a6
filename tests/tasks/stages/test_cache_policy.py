"""Columns that statistics leaves decoded for transform: what is read how often, how much is held, and when it goes."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from tasks import engines, ops
from tasks.cluster import column_cache, out_of_memory, parallelism
from tasks.cluster.column_cache import CacheKey
from tasks.cluster.dask_pool import DaskPool
from tasks.cluster.local_pool import LocalPool
from tasks.core.plan import Block, Limits, Partition
from tasks.core.schema import Column, Schema
from tasks.core.settings import Output, Run, Source
from tasks.job.request import Request, SavedPlans, make_request
from tasks.job.split_work import work_of
from tasks.shuffle.choice import spare_on_device
from tasks.sources import planning
from tasks.stages import cache_policy, commit, ingest, needs, plan_splits, shuffle_write, transform
from tasks.stages import statistics as stages_statistics
from tasks.stages.cache_policy import cache_key, taking_key
from tests.reads import count_reads
from tests.stages import run_stages

ROWS = 40_000
TABLE = pa.table({"a": [1, 2, 3], "b": [4, 5, 6], "c": ["x", "y", "z"]})


def part(number: int, nbytes: int, first_row: int = 0) -> Partition:
    return Partition(number, (Block(0, first_row, len(TABLE), nbytes, ()),))


def read(key: CacheKey, partition: Partition, names: Sequence[str], reader: Callable[[Sequence[str]], Any]) -> Any:
    """The columns of a partition as a pass gets them: out of the cache, or by the reader."""
    taken = column_cache.take(key, partition, names)
    columns = column_cache.put(key, partition, taken, None if taken.complete else reader(taken.missing))
    return column_cache.select_columns(columns, names)


class Reader:
    """Reads columns of TABLE, and notes which."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def __call__(self, names: Sequence[str]) -> pa.Table:
        self.asked.append(list(names))
        return TABLE.select(list(names))


@pytest.fixture(autouse=True)
def _nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(column_cache, "FREE_SHARE_OF_HOST", 0)
    _empty()  # a test before this one may have run statistics alone
    yield
    _empty()


def _empty() -> None:
    column_cache.give_up()
    column_cache._release("")


def test_what_is_kept_is_not_read_again_and_goes_as_it_is_taken() -> None:
    reader, keeping = Reader(), CacheKey("rows", ("a", "c"), limit=10_000)
    assert read(keeping, part(0, 100), ["a", "b"], reader) == TABLE.select(["a", "b"])
    assert column_cache.measure_cache("rows") == ([0], TABLE.select(["a"]).get_total_buffer_size())
    assert read(keeping, part(0, 100), ["c", "a"], reader) == TABLE.select(["c", "a"])
    assert read(CacheKey("rows"), part(0, 100), ["a", "b", "c"], reader) == TABLE
    assert column_cache.measure_cache("rows") == ([], 0)
    assert reader.asked == [["a", "b"], ["c"], ["b"]]
    assert read(CacheKey("rows"), part(0, 100), ["b"], reader) == TABLE.select(["b"])
    assert read(CacheKey("rows"), part(0, 100), [], reader).num_columns == 0
    assert reader.asked[3:] == [["b"], []]


def test_columns_of_a_gpu_are_kept_as_they_are() -> None:
    columns = {name: np.asarray(TABLE[name]) for name in TABLE.column_names}
    asked: list[list[str]] = []

    def reader(names: Sequence[str]) -> dict[str, np.ndarray]:
        asked.append(list(names))
        return {name: columns[name] for name in names}

    keeping, taking = CacheKey("rows", ("a", "b"), limit=100, on_device=True), CacheKey("rows")
    assert column_cache.is_on_device(keeping, part(0, 100))
    assert not column_cache.is_on_device(taking, part(0, 100))
    assert list(read(keeping, part(0, 100), ["a", "b"], reader)) == ["a", "b"]
    assert column_cache.measure_cache("rows") == ([0], 48)
    assert column_cache.is_on_device(taking, part(0, 100))
    found = read(taking, part(0, 100), ["c", "a"], reader)
    assert list(found) == ["c", "a"]
    assert found["a"] is columns["a"]
    assert asked == [["a", "b"], ["c"]]
    assert column_cache.measure_cache("rows") == ([], 0)


def test_rows_that_are_cut_anew_are_read_again() -> None:
    reader, keeping = Reader(), CacheKey("rows", ("a",), limit=10_000)
    read(keeping, part(1, 100, first_row=3), ["a"], reader)
    read(CacheKey("rows"), part(1, 100, first_row=6), ["a"], reader)
    assert len(reader.asked) == 2


def test_whole_records_are_parsed_once_for_all_passes_where_there_is_room() -> None:
    reader, keeping = Reader(), CacheKey("rows", ("b", "c"), 1000, together=True)
    assert read(keeping, part(0, 100), ["a"], reader).column_names == ["a"]
    assert read(CacheKey("rows"), part(0, 100), ["b", "c"], reader) == TABLE.select(["b", "c"])
    assert read(keeping, part(1, 2000), ["a"], reader).column_names == ["a"]
    assert reader.asked == [["a", "b", "c"], ["a"]]


def test_no_more_is_held_than_the_limit_and_only_of_one_run() -> None:
    reader, size = Reader(), TABLE.get_total_buffer_size()
    keeping = CacheKey("rows", ("a", "b", "c"), limit=2 * size)
    for number in range(3):
        read(keeping, part(number, size), ["a", "b", "c"], reader)
    assert column_cache.measure_cache("rows") == ([0, 1], 2 * size)
    read(CacheKey("others", ("a",), size), part(0, size), ["a"], reader)
    assert column_cache.measure_cache("rows") == ([], 0)
    assert column_cache.measure_cache("others")[0] == [0]


def test_memory_that_other_programs_need_is_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, keeping = Reader(), CacheKey("rows", ("a",), limit=10_000)
    monkeypatch.setattr(column_cache, "FREE_SHARE_OF_HOST", 0.25)
    for number, free in enumerate((50, 20)):
        monkeypatch.setattr(psutil, "virtual_memory", lambda free=free: SimpleNamespace(total=100, available=free))
        read(keeping, part(number, 100), ["a"], reader)
    assert column_cache.measure_cache("rows")[0] == [0]


def test_short_memory_lets_go_of_all_until_the_end_of_the_run() -> None:
    reader, keeping = Reader(), CacheKey("rows", ("a",), 1000, together=True)
    read(keeping, part(0, 10), ["a"], reader)
    column_cache.give_up()
    read(keeping, part(1, 10), ["b"], reader)
    assert column_cache.measure_cache("rows") == ([], 0)
    assert reader.asked == [["a"], ["b"]]
    column_cache.release(LocalPool(1), keeping)
    read(keeping, part(1, 10), ["b"], reader)
    assert column_cache.measure_cache("rows")[0] == [1]


@pytest.fixture(scope="module")
def table() -> pa.Table:
    draws = np.random.default_rng(0)
    return pa.table({
        "time": np.arange(ROWS), "x": pa.array(draws.normal(size=ROWS), mask=draws.random(ROWS) < 0.1),
        "name": np.char.add("n", draws.zipf(1.5, ROWS).clip(max=500).astype(str)), "unused": draws.normal(size=ROWS),
        "label": draws.integers(0, 2, ROWS),
    })  # fmt: skip


@pytest.fixture
def text(tmp_path: Path, table: pa.Table) -> Path:
    (tmp_path / "in").mkdir()
    for number in range(4):
        csv.write_csv(table.slice(number * ROWS // 4, ROWS // 4), tmp_path / "in" / f"{number}.csv")
    return tmp_path / "in"


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        plan_splits, "make_plan", partial(planning.make_plan, limits=Limits(join_below=1, range_bytes=50_000))
    )
    monkeypatch.setattr(parallelism, "dividing_threads", lambda engine, pool: 2 if engine == "pandas" else 4)


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, str]]:
    """(first row, column) -> how often it was read from its file."""
    counted: Counter[tuple[int, str]] = Counter()
    count_reads(monkeypatch, lambda partition, columns: counted.update((partition.first_row, name) for name in columns))
    return counted


def asked(source: Any, out: Path, engine: str, filter: str | None = None, **more: Any) -> Request:
    run_section = {"min_partition_size": 1, **{k: more.pop(k) for k in ("exchange",) if k in more}}
    nodes = ["time"] + (["name"] >> ops.Categorify()) + (["x"] >> ops.FillMedian() >> ops.Normalize()) + ["label"]
    section = Source(path=str(source), partition_size=400_000, filter=filter)
    return make_request(section, nodes, Output(path=str(out), files=3, seed=5, **more), Run(**run_section), engine)


def written(out: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(out.glob("part-*"))]


@pytest.mark.promise(
    "once: the columns that the stage statistics decodes stay in the workers' memory for the stage transform"
)
@pytest.mark.parametrize("filter", [None, "unused > 0"])
def test_text_is_parsed_once_and_the_output_is_the_same(
    text: Path, tmp_path: Path, engine: str, readings: Counter[tuple[int, str]], filter: str | None
) -> None:
    done = run_stages(asked(text, tmp_path / "kept", engine, filter))
    once = dict(readings)
    readings.clear()
    run_stages(asked(text, tmp_path / "disk", engine, filter, exchange="disk"))

    assert len({first for first, _ in once}) >= 4
    assert set(once.values()) == {1}
    assert {name for _, name in once} == {"time", "name", "x", "label"} | ({"unused"} if filter else set())
    assert {name: max(n for (_, at), n in readings.items() if at == name) for name in ("x", "name", "time")} == {
        "x": 3, "name": 2, "time": 1,
    }  # fmt: skip
    assert written(tmp_path / "kept") == written(tmp_path / "disk")
    statistics = next(stage for stage in done if stage.stage == "statistics")
    assert statistics.decoded > ROWS * 24
    assert column_cache._store.tables == {}


@pytest.mark.promise(
    "once: the columns that the stage statistics decodes stay in the workers' memory for the stage transform"
)
def test_files_elsewhere_are_read_once_and_only_what_each_pass_needs(
    table: pa.Table, tmp_path: Path, readings: Counter[tuple[int, str]]
) -> None:
    for number in range(4):
        with fsspec.open(f"memory://kept/{number}.parquet", "wb") as file:
            pq.write_table(table.slice(number * ROWS // 4, ROWS // 4), file)
    run_stages(asked("memory://kept/*.parquet", tmp_path / "out", "pandas"))
    assert set(readings.values()) == {1}
    assert {name for _, name in readings} == {"time", "name", "x", "label"}


@pytest.mark.promise("It reads local Parquet, ORC and Arrow files again")
def test_local_parquet_is_read_again(table: pa.Table, tmp_path: Path, readings: Counter[tuple[int, str]]) -> None:
    pq.write_table(table, tmp_path / "rows.parquet")
    done = run_stages(asked(tmp_path / "rows.parquet", tmp_path / "out", "pandas"))
    assert readings[0, "name"] == 2
    assert next(stage for stage in done if stage.stage == "statistics").decoded == 0


@pytest.mark.gpu
def test_a_gpu_keeps_what_it_has_read_of_local_parquet(
    table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=ROWS // 8)
    engine, counted = engines.engine("cudf"), Counter[tuple[int, str]]()
    read_partition = engine.read_partition

    def counting(plan: Any, partition: Any, columns: Sequence[str]) -> Any:
        counted.update((partition.first_row, name) for name in columns)
        return read_partition(plan, partition, columns)

    monkeypatch.setattr(engine, "read_partition", counting)
    done = run_stages(asked(tmp_path / "rows.parquet", tmp_path / "kept", "cudf"))
    assert set(counted.values()) == {1}
    assert {name for _, name in counted} == {"time", "name", "x", "label"}
    assert done[1].decoded > ROWS * 16
    assert column_cache._store.tables == {}
    counted.clear()
    monkeypatch.setattr(cache_policy, "spare_on_device", lambda *_: 0)
    run_stages(asked(tmp_path / "rows.parquet", tmp_path / "read", "cudf"))
    assert max(counted.values()) > 1
    assert written(tmp_path / "kept") == written(tmp_path / "read")


def test_columns_that_the_engine_keeps_are_parsed_once(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readings: Counter[tuple[int, str]]
) -> None:
    """As on a GPU, of which the CPU's engine keeps its own columns here."""
    run_stages(asked(text, tmp_path / "host", "pandas"))
    readings.clear()
    cache_key = cache_policy.cache_key
    monkeypatch.setattr(cache_policy, "cache_key", lambda *of: replace(cache_key(*of), on_device=True))  # type: ignore[type-var]
    done = run_stages(asked(text, tmp_path / "engine", "pandas"))
    assert set(readings.values()) == {1}
    assert {name for _, name in readings} == {"time", "name", "x", "label"}
    assert done[1].decoded > 0
    assert column_cache._store.tables == {}
    assert written(tmp_path / "engine") == written(tmp_path / "host")


def test_a_gpu_keeps_no_more_than_pieces_leave() -> None:
    class Gpus:
        threads, workers, memory, device_memory = 2, ("a", "b"), 100_000, 20_000

    schema = Schema([Column("x", pa.int64())])
    room = partial(spare_on_device, "auto", schema=schema, pool=Gpus())
    assert room(rows=0) == 2_500  # a quarter of each
    assert room(rows=400) == (10_000 - 400 * 16) // 2
    assert room(rows=700) == 0  # they go to host memory
    assert spare_on_device("disk", 10, schema, Gpus()) == 0


def test_short_memory_is_tried_once_more_without_what_is_kept() -> None:
    tried: list[int] = []

    @out_of_memory.retry_without_cache
    def work(fails: int) -> str:
        tried.append(fails)
        if len(tried) <= fails:
            raise MemoryError
        return "done"

    with pytest.raises(MemoryError):
        work(1)  # there is nothing to let go of
    tried.clear()
    for fails in (1, 2):
        column_cache.release(LocalPool(1), CacheKey("rows"))
        read(CacheKey("rows", ("a",), 1000), part(0, 10), ["a"], Reader())
        if fails == 1:
            assert work(fails) == "done"
        else:
            with pytest.raises(MemoryError):
                work(fails)
        assert column_cache.measure_cache("rows") == ([], 0)
        assert len(tried) == 2
        tried.clear()


@pytest.mark.parametrize("stage", ["statistics", "transform"])
def test_a_partition_that_is_halved_is_read_again(
    text: Path, tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch, stage: str, readings: Counter[Any]
) -> None:
    run_stages(asked(text, tmp_path / "whole", engine))
    readings.clear()
    monkeypatch.setenv(out_of_memory.VARIABLE, f"{stage}:1:1")
    done = run_stages(asked(text, tmp_path / "halves", engine))
    assert sum(result.halved or 0 for result in done) == {"statistics": 2, "transform": 1}[stage]
    assert max(readings.values()) > 1
    assert written(tmp_path / "whole") == written(tmp_path / "halves")
    assert column_cache._store.tables == {}


@pytest.mark.parametrize(
    "rules",
    [
        {"split": {"by": "time", "column": "moment", "valid": 30_000}},
        {"split": {"by": "hash", "together": ["moment"], "valid": 0.2}},
        {"downsample": {"where": "moment >= 0", "fraction": 0.5}},
    ],
)
def test_columns_that_decide_about_rows_are_read_once_too(
    rules: dict[str, Any], table: pa.Table, tmp_path: Path, engine: str, readings: Counter[tuple[int, str]]
) -> None:
    csv.write_csv(table.append_column("moment", table["time"]), tmp_path / "in.csv")
    request = asked(tmp_path / "in.csv", tmp_path / "out", engine)
    request = replace(request, sections={**request.sections, "source": {**request.sections["source"], **rules}})
    with request.staging.hold_lock():
        ingest.ingest(request, pool := LocalPool(2))
        readings.clear()
        stages_statistics.statistics(request, pool)
        transform.transform(request, request.splits[0], pool)
    assert set(readings.values()) == {1}
    assert {name for _, name in readings} == {"time", "name", "x", "label", "moment"}


def test_a_fit_leaves_nothing_and_a_failure_neither(
    text: Path, tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, pool = asked(text, tmp_path / "out", engine), LocalPool(2)
    with request.staging.hold_lock():
        ingest.ingest(request, pool)
        plan = SavedPlans(request).plan("")
        keeping = cache_key(request, plan, work_of(request, SavedPlans(request), ""), pool)
        assert keeping is not None
        assert keeping.columns == ("time", "x", "name", "label")
        monkeypatch.setattr(stages_statistics, "collect_report_tables", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            stages_statistics.statistics(request, pool)
        assert column_cache.measure_cache(keeping.name) == ([], 0)
        monkeypatch.undo()
        object.__setattr__(request, "flow", "fit")
        only_learned = cache_key(request, plan, work_of(request, SavedPlans(request), ""), pool)
        assert only_learned is not None
        assert only_learned.columns == ("x",)
        assert stages_statistics.statistics(request, pool).decoded == 0
        assert column_cache.measure_cache(keeping.name) == ([], 0)


def test_the_estimate_counts_what_is_kept(text: Path, tmp_path: Path) -> None:
    memory, disk = (asked(text, tmp_path / "out", "pandas", exchange=kind) for kind in ("memory", "disk"))
    with memory.staging.hold_lock():
        ingest.ingest(memory, LocalPool(2))
    plan = SavedPlans(memory).plan("")
    pieces = ROWS * (8 + 8 + 4 + 8 + 8)
    more = [needs.needs(request, {"": plan}, LocalPool(2)).host for request in (memory, disk)]
    assert more[0] - more[1] == max(pieces, plan.nbytes)


@pytest.fixture
def pool(two_workers: Any) -> Iterator[DaskPool]:
    with two_workers.as_current():
        yield DaskPool(two_workers)


@pytest.mark.system
@pytest.mark.xdist_group("determinism")
def test_two_workers_hold_their_partitions_until_transform_takes_them(
    text: Path, tmp_path: Path, pool: DaskPool
) -> None:
    run_stages(asked(text, tmp_path / "one", "pandas"))
    request = asked(text, tmp_path / "two", "pandas")
    with request.staging.hold_lock():
        done = [ingest.ingest(request, pool), stages_statistics.statistics(request, pool)]
        plan = SavedPlans(request).plan("")
        where = column_cache.workers_of(pool, taking_key(request, plan))
        assert sorted(where) == [partition.number for partition in plan.partitions]
        assert set(where.values()) == set(pool.workers)
        done += [
            transform.transform(request, "", pool),
            shuffle_write.shuffle_write(request, "", pool),
        ]
        commit.commit(request, done)
    assert done[1].decoded > ROWS * 24
    assert column_cache.workers_of(pool, taking_key(request, plan)) == {}
    assert written(tmp_path / "one") == written(tmp_path / "two")


@pytest.mark.system
@pytest.mark.xdist_group("determinism")
def test_items_are_worked_on_where_their_columns_are(pool: DaskPool) -> None:
    """Two workers, each with what half of the items need."""
    from distributed import get_worker

    def where(shared: Any, item: int) -> tuple[str, int]:
        time.sleep(0.02)
        return get_worker().address, os.getpid()

    first, second = pool.workers
    wanted = {i: (first if i % 3 else second) for i in range(0, 24, 2)}
    found = pool.finish(pool.start(where, None, range(24), wanted))
    assert sum(found[i][0] == worker for i, worker in wanted.items()) >= 10  # an idle worker may help
    assert {pid for _, pid in found} == set(pool.on_workers(os.getpid).values())
    with pytest.raises(ZeroDivisionError):
        pool.on_workers(divmod, 1, 0)
