"""Plans: order of rows, blocks, schema checks, errors."""

from __future__ import annotations

import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job.job import make_job
from flows.preview.source_plans import plan_source
from infra.clusters.expected import ExpectedWorkers
from tasks.cluster.local_pool import LocalPool
from tasks.cluster.parallelism import make_sizing, worker_memory
from tasks.core.plan import Block, Limits, Plan, Sizing, cut_partitions
from tasks.core.settings import Source
from tasks.errors import DataError, JobError
from tasks.graph.binding import Bound
from tasks.graph.node import Node
from tasks.sources.planning import largest_partition, make_plan, partition_size
from tasks.sources.reader import read
from tasks.sources.uniting import check_together
from tasks.stages.plan_splits import plan_split
from tasks.stages.source_files import naming_valid
from tasks.storage.files import expand


def write(path: Path, values: list, dtype: pa.DataType | None = None, **options) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": pa.array(values, dtype)}), path, **options)


def rows(plan: Plan) -> list:
    return [v for p in plan.partitions for v in read(plan, p).column("n").to_pylist()]


def test_order_of_lists_globs_and_folders(tmp_path: Path) -> None:
    for name, value in (("b", 2), ("a", 1), ("é", 4), ("c/z", 3), ("_hidden", 8), (".dot", 9), ("_folder/x", 7)):
        write(tmp_path / f"{name}.parquet", [value])
    assert rows(make_plan(Source(path=str(tmp_path)))) == [1, 2, 3, 4]
    assert rows(make_plan(Source(path=f"{tmp_path}/[ab].parquet"))) == [1, 2]
    assert rows(make_plan(Source(path=[f"{tmp_path}/b.parquet", f"{tmp_path}/a.parquet"]))) == [2, 1]
    assert rows(make_plan(Source(path=f"file://{tmp_path}/c"))) == [3]


def test_memory_urls() -> None:
    import fsspec

    fs = fsspec.filesystem("memory")
    for name, value in (("b", 2), ("a", 1)):
        with fs.open(f"/plans/{name}.parquet", "wb") as file:
            pq.write_table(pa.table({"n": [value]}), file)
    with fs.open("/plans-text/a.csv", "wb") as file:
        file.write(b"n,s\n1,x\n2,y\n")
    assert rows(make_plan(Source(path="memory://plans"))) == [1, 2]
    assert rows(make_plan(Source(path="memory://plans/*.parquet"))) == [1, 2]
    assert rows(make_plan(Source(path="memory://plans-text/a.csv"))) == [1, 2]


def test_small_row_groups_are_joined_over_files_and_large_ones_cut(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", list(range(5)), row_group_size=2)
    write(tmp_path / "b.parquet", list(range(5, 30)))
    plan = make_plan(Source(path=str(tmp_path), partition_size=1), limits=Limits(join_below=4, cut_above=10))
    assert [(b.first_row, b.rows) for b in plan.blocks] == [(0, 4), (4, 1), (5, 10), (15, 10), (25, 5)]
    assert len(plan.partitions) == 5
    assert rows(plan) == list(range(30))
    joined = make_plan(Source(path=str(tmp_path)), limits=Limits(join_below=100))
    assert [len(b.pieces) for b in joined.blocks] == [4]
    assert rows(joined) == list(range(30))


def test_row_groups_of_wide_rows_are_joined_up_to_64_mib(tmp_path: Path) -> None:
    wide = pa.table({f"x{i}": [0.0] * 400 for i in range(10)})
    pq.write_table(wide, tmp_path / "a.parquet", row_group_size=100, use_dictionary=False, compression="none")
    group = make_plan(Source(path=str(tmp_path)), limits=Limits(join_below=1)).blocks[0].nbytes
    plan = make_plan(Source(path=str(tmp_path)), limits=Limits(range_bytes=3 * group))
    assert [b.rows for b in plan.blocks] == [300, 100]
    assert [b.rows for b in make_plan(Source(path=str(tmp_path)), limits=Limits(range_bytes=1)).blocks] == [100] * 4


def test_halves_hold_the_same_rows(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", list(range(10)), row_group_size=1)
    plan = make_plan(Source(path=str(tmp_path)), limits=Limits(join_below=1))
    left, right = plan.partitions[0].halves()
    assert (left.rows, right.first_row) == (5, 5)
    assert [*read(plan, left)["n"].to_pylist(), *read(plan, right)["n"].to_pylist()] == list(range(10))


def test_plan_survives_json_and_pickle_and_keeps_secrets_out(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", list(range(10)))
    plan = make_plan(Source(path=str(tmp_path), storage_options={"key": "secret"}))
    text = json.dumps(plan.to_json())
    assert "secret" not in text
    again = Plan.from_json(json.loads(text))
    assert again.fingerprint == plan.fingerprint
    assert rows(again) == rows(pickle.loads(pickle.dumps(plan))) == list(range(10))  # noqa: S301
    assert again.with_storage_options({"key": "secret"}) == plan


def test_fingerprint_follows_content_not_partition_size(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", list(range(10)), row_group_size=2)
    one = make_plan(Source(path=str(tmp_path)), limits=Limits(join_below=1))
    many = make_plan(Source(path=str(tmp_path), partition_size=1), limits=Limits(join_below=1))
    assert len(many.partitions) == 5
    assert one.fingerprint == many.fingerprint
    write(tmp_path / "a.parquet", list(range(1, 11)), row_group_size=2)
    assert make_plan(Source(path=str(tmp_path)), limits=Limits(join_below=1)).fingerprint != one.fingerprint


def test_a_partition_is_a_share_of_the_memory_of_the_smallest_worker(tmp_path: Path) -> None:
    write(tmp_path / "in.parquet", list(range(4 * 2**16)), row_group_size=2**16)  # blocks of half a MiB
    data = {"source": {"path": str(tmp_path / "in.parquet"), "part_mem_fraction": 0.5},
            "features": [{"columns": ["n"]}],
            "output": {"path": str(tmp_path / "out")}}  # fmt: skip
    workers = ExpectedWorkers("pandas", ("a", "b"), 1, 4 * 2**20, 0, "")
    request = make_job(data).request("pandas")

    pool = LocalPool(1)
    pool.smallest_memory = workers.smallest_memory  # 2 MiB: a partition of 1 MiB has two blocks
    assert [part.rows for part in plan_source(request, workers, [], [])[""].partitions] == [2**17] * 2
    assert [part.rows for part in plan_split(request, "", request.source.path, pool).plan.partitions] == [2**17] * 2
    with pytest.raises(JobError, match="partition_size and part_mem_fraction both say how large a partition is"):
        make_job({**data, "source": {**data["source"], "partition_size": "1GB"}})


def test_with_cudf_the_memory_is_that_of_the_gpu_of_a_worker() -> None:
    workers = ExpectedWorkers("cudf", ("a", "b"), 2, 64 * 10**9, 16 * 10**9, "")
    assert [worker_memory(engine, workers) for engine in ("cudf", "pandas")] == [8 * 10**9, 32 * 10**9]
    share = Source(path="x", part_mem_fraction=0.25)
    assert largest_partition(share, Sizing(limit=10**9, memory=worker_memory("cudf", workers))) == 2 * 10**9


@pytest.mark.parametrize(
    ("asked", "limit", "size"),
    [(None, None, 10**9), (None, 3 * 10**9, 3 * 10**9), ("2GB", 3 * 10**9, 2 * 10**9), ("5GB", 3 * 10**9, 3 * 10**9)],
)
def test_the_largest_partition_is_what_was_asked_for_or_what_a_gpu_takes(
    asked: str | None, limit: int | None, size: int
) -> None:
    assert partition_size(Source(path="x", partition_size=asked), 10**12, Sizing(smallest=1, limit=limit)) == size


@pytest.mark.parametrize(
    ("total", "smallest", "size"),
    [
        (10**6, 16 * 10**6, 16 * 10**6),
        (10**9, 16 * 10**6, 10**9 // 24),  # four for each of six threads
        (8 * 10**9, 16 * 10**6, 64 * 10**6),
        (8 * 10**9, 10**8, 10**8),
        (5 * 10**11, 16 * 10**6, 5 * 10**8),  # a thousand
        (10**13, 16 * 10**6, 10**9),
    ],
)
def test_partitions_on_the_cpu_stay_small_and_are_not_too_many(total: int, smallest: int, size: int) -> None:
    sizing = replace(make_sizing("pandas", ExpectedWorkers("pandas", ("a",), 2, 10**10, 0, ""), smallest), threads=6)
    assert partition_size(Source(path="x"), total, sizing) == size
    asked = Source(path="x", partition_size="300MB")
    assert partition_size(asked, total, sizing) == min(max(total // 24, smallest), 3 * 10**8)
    unknown = make_sizing("cudf", ExpectedWorkers("cudf", ("a",), 2, 10**10, 0, ""), smallest)
    assert partition_size(Source(path="x"), total, unknown) == min(max(total // 4, smallest), 10**9)


@pytest.mark.parametrize(
    ("total", "threads", "size"),
    [(8, 1, 4), (9, 1, 3), (100, 2, 4), (7, 4, 2), (3, 1, 2)],  # 2, 4, 26 of each; not below the smallest
)
def test_a_gpu_gets_two_partitions_or_a_multiple(total: int, threads: int, size: int) -> None:
    assert partition_size(Source(path="x"), total, Sizing(threads, 2, limit=4)) == size


@pytest.mark.parametrize("size", [1, 7, 30, 64, 65, 100, 1000])
def test_even_partitions_differ_by_a_block(size: int) -> None:
    nbytes = [5, 5, 5, 5, 1, 9, 5, 5, 5, 5, 5, 0, 5, 5]
    blocks = tuple(Block(i, 10 * i, 10, n, ()) for i, n in enumerate(nbytes))
    found = cut_partitions(blocks, size, even=True)
    assert [b for part in found for b in part.blocks] == list(blocks)
    assert [part.number for part in found] == list(range(len(found)))
    assert len(found) <= -(-65 // size)
    if size >= 7:
        sums = [sum(b.nbytes for b in part.blocks) for part in found]
        assert max(sums) - min(sums) <= 9 + 5
        assert max(sums) <= 65 / len(found) + 9


def test_a_partition_on_a_gpu_has_less_rows_than_a_column_may_have() -> None:
    blocks = tuple(Block(i, i << 29, 1 << 29, 1, ()) for i in range(6))
    assert [len(part.blocks) for part in cut_partitions(blocks, 100, even=True)] == [2, 2, 2]


def test_threads_make_partitions_smaller(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", list(range(1000)), row_group_size=10)
    plan = make_plan(Source(path=str(tmp_path)), sizing=Sizing(2, 100), limits=Limits(join_below=1))
    assert len(plan.partitions) == 9  # 8000 bytes, at most 1000 in each: whole blocks of 80
    assert len(make_plan(Source(path=str(tmp_path)), sizing=Sizing(2), limits=Limits(join_below=1)).partitions) == 1


@pytest.mark.parametrize(("smallest", "partitions"), [({}, 1), ({"min_partition_size": 100}, 4)])
def test_no_partition_is_smaller_than_the_job_says(tmp_path: Path, smallest: dict[str, int], partitions: int) -> None:
    write(tmp_path / "a.parquet", list(range(4 * 2**16)), row_group_size=2**16)
    job = make_job({"source": {"path": str(tmp_path / "a.parquet")}, "features": [{"columns": ["n"]}],
                    "output": {"path": str(tmp_path / "out")}, "run": smallest})  # fmt: skip
    request = job.request("pandas")
    assert len(plan_split(request, "", request.source.path, LocalPool(2)).plan.partitions) == partitions


@pytest.mark.parametrize("more", ["a.parquet", "", "*.parquet"])
def test_a_file_that_is_named_twice_is_an_error(tmp_path: Path, more: str) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    with pytest.raises(JobError, match="a file is named twice") as error:
        expand([str(tmp_path / "a.parquet"), str(tmp_path / more)])
    assert error.value.where == f"source.path: {tmp_path}/a.parquet"
    with pytest.raises(JobError, match="a file is named twice") as error, naming_valid("valid"):
        expand([str(tmp_path / "a.parquet"), str(tmp_path / more)])
    assert error.value.where == f"source.valid: {tmp_path}/a.parquet"


def test_empty_files_are_skipped_and_named(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [], pa.int64())
    write(tmp_path / "b.parquet", [1])
    (tmp_path / "c.parquet").touch()
    plan = make_plan(Source(path=str(tmp_path)))
    assert sorted(os.path.basename(p) for p in plan.skipped) == ["a.parquet", "c.parquet"]  # noqa: PTH119
    assert rows(plan) == [1]
    for text in ("", "n\n", "n,m\n\n"):
        (tmp_path / "x.csv").write_text(text)
        with pytest.raises(DataError, match="no rows at all"):
            make_plan(Source(path=str(tmp_path / "x.csv")))


@pytest.mark.promise("`there is no input`")
@pytest.mark.parametrize("path", ["missing", "*.parquet", "."])
def test_no_input(path: str, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="there is no input") as error:
        make_plan(Source(path=f"{tmp_path}/{path}"))
    assert "correct the path" in error.value.do
    assert ("rowmill sample" in error.value.do) == (path == "missing")


@pytest.mark.promise("`this is not a whole Parquet file`")
def test_truncated_and_foreign_files(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", list(range(1000)))
    whole = (tmp_path / "a.parquet").read_bytes()
    for content in (whole[:-10], b"no parquet at all", whole[:-8] + b"\xff\xff\x00\x00PAR1"):
        (tmp_path / "a.parquet").write_bytes(content)
        with pytest.raises(DataError, match="not a whole Parquet file") as error:
            make_plan(Source(path=str(tmp_path)))
        assert error.value.where == str(tmp_path / "a.parquet")


@pytest.mark.promise("`has different types`")
def test_types_must_agree_over_files(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [1])
    write(tmp_path / "b.parquet", ["x"])
    with pytest.raises(DataError, match="column 'n' has different types") as error:
        check_together(make_plan(Source(path=str(tmp_path))), ["n"])
    assert error.value.where == str(tmp_path / "b.parquet")
    assert error.value.why == f"string here, int64 in {tmp_path / 'a.parquet'}"


def test_null_columns_and_encodings_take_the_type_of_the_others(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [None], pa.null())
    write(tmp_path / "b.parquet", ["x"], pa.large_string())
    write(tmp_path / "c.parquet", ["y"], pa.dictionary(pa.int8(), pa.string()))
    plan = make_plan(Source(path=str(tmp_path)))
    assert str(plan.schema["n"].dtype) == "string"
    assert rows(plan) == [None, "x", "y"]


def test_missing_columns_name_near_ones(tmp_path: Path) -> None:
    pq.write_table(pa.table({"price": [1], "brand": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(JobError, match="did you mean 'price'"):
        Bound(Node("pick", selection=("prise",), name="source"), make_plan(Source(path=str(tmp_path))).schema)
    pq.write_table(pa.table({"brand": ["x"], "prices": [1]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match="column 'price' is missing in a file"):
        check_together(make_plan(Source(path=str(tmp_path))), ["brand", "price"])


def test_a_given_type_replaces_that_of_the_files(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [1, 2])
    write(tmp_path / "b.parquet", [3], pa.int32())
    assert rows(make_plan(Source(path=str(tmp_path), schema={"n": "float32"}))) == [1.0, 2.0, 3.0]
    with pytest.raises(JobError, match="there are: n"):
        make_plan(Source(path=str(tmp_path), schema={"m": "float32"}))


def test_many_files_in_threads_give_the_same_plan(tmp_path: Path) -> None:
    for i in range(300):
        write(tmp_path / f"{i:03}.parquet", [i])
    with ThreadPoolExecutor(2) as pool:
        plan = make_plan(Source(path=str(tmp_path)), parallel_map=pool.map)
    assert plan == make_plan(Source(path=str(tmp_path)))
    assert rows(plan) == list(range(300))
