"""Memory that is short: halves of partitions and files write the same bytes, counted; what is too large is told."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.job.job import make_job as job_of
from tasks.cluster import out_of_memory, parallelism
from tasks.core.plan import Limits
from tasks.errors import DataError, GiveUpError, JobError
from tasks.manifest import Manifest
from tasks.shuffle.parts import Part, divide_into_runs
from tasks.sources import planning
from tasks.stages import plan_splits
from tests.faults.jobs import digests, flow_state, make_data, make_job, run_flow, task_runs
from tests.stages import run_stages

pytestmark = pytest.mark.xdist_group("faults")
BLOCKS, ROWS = 17, 1024
EVERYWHERE = "statistics:0:1,transform:0:2,transform:1:1,shuffle_write:0:1,shuffle_write:3:2"
FEATURES = [
    {"columns": ["x"], "ops": [{"op": "Normalize"}]},
    {"columns": ["name"], "ops": [{"op": "Categorify"}]},
    {"columns": ["row", "word"]},
]


def make_source(folder: Path, blocks: int, rows: int) -> Path:
    """Row groups of so many rows in one file; `word` holds other values in each of them."""
    folder.mkdir()
    n = np.arange(blocks * rows)
    words = pa.array([f"w{i}" for i in range(977 + blocks)])
    table = pa.table({
        "row": n, "x": pa.array(n % 1000 / 7, mask=n % 11 == 0), "name": pa.array((n % 53).astype(str)),
        "word": words.take(pa.array(n % 977 + n // rows)),
    })  # fmt: skip
    pq.write_table(table, folder / "logs.parquet", row_group_size=rows)
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_source(tmp_path_factory.mktemp("short") / "in", BLOCKS, ROWS)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row group is a block, and a thread has four partitions, in this process."""
    monkeypatch.setattr(plan_splits, "make_plan", partial(planning.make_plan, limits=Limits(join_below=1)))
    halved = {"cudf": 2, "pandas": 1}  # on a GPU a thread has half as many partitions
    monkeypatch.setattr(parallelism, "dividing_threads", lambda engine, pool: halved[engine] * pool.threads)


def small_job(source: Path, out: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    """With one thread partitions of four blocks; five files of several row groups each."""
    return {
        "source": {"path": str(source)},
        "features": FEATURES,
        "output": {"path": str(out), "files": 5, "row_group_size": 320, "seed": 4, **sections.get("output", {})},
        "run": {"min_partition_size": 1, "exchange": "memory", **sections.get("run", {})},
    }


def written(folder: Path) -> list[tuple[str, bytes]]:
    return [(str(p.relative_to(folder)), p.read_bytes()) for p in sorted(folder.rglob("part-*"))]


def run(source: Path, out: Path, engine: str, **sections: dict[str, Any]) -> dict[str, int]:
    """The stages in this process; how often each halved."""
    done = run_stages(job_of(small_job(source, out, **sections)).request(engine), threads=1)
    assert (done[0].blocks, done[0].partitions) == (17, 4 if engine == "cudf" else 5)  # equal ones on a GPU
    return {s.stage: s.halved for s in done if s.stage != "ingest"}


SHAPES: dict[str, dict[str, dict[str, Any]]] = {
    "full": {},
    "on disk": {"run": {"exchange": "disk"}},
    "by key": {"output": {"shuffle": "key", "keys": ["name"], "sort_by": ["row"]}},
    "without order": {"output": {"shuffle": "none"}},
    "full files": {"output": {"files": None, "rows_per_file": 3_000}},
    "arrow": {"output": {"format": "arrow", "compression": "none"}},
    "csv": {"output": {"format": "csv", "row_group_size": None}},
    "orc": {"output": {"format": "orc", "row_group_size": None}},
    "folders": {"output": {"partition_on": ["name"]}},
    "folders by key": {
        "output": {"partition_on": ["name"], "shuffle": "key", "keys": ["row"], "format": "csv", "row_group_size": None}
    },
}


@pytest.mark.promise("down to which a partition, or the rows of a file, is halved when memory is short")
@pytest.mark.parametrize("shape", SHAPES)
def test_halves_write_the_same_bytes_and_are_counted(
    shape: str, source: Path, small_blocks: None, tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections = SHAPES[shape]
    assert set(run(source, tmp_path / "quiet", engine, **sections).values()) == {0}
    monkeypatch.setenv(out_of_memory.VARIABLE, EVERYWHERE)
    counted = run(source, tmp_path / "short", engine, **sections)
    assert counted == {"statistics": 1, "transform": 4, "shuffle_write": 4}
    assert written(tmp_path / "short") == written(tmp_path / "quiet")
    stages = Manifest.load(tmp_path / "short").data["stages"]
    assert [stages[name].get("halved", 0) for name in ("ingest", *counted)] == [0, 1, 4, 4]


def test_the_flow_answers_with_halves_on_the_workers_of_a_cluster(
    tmp_path: Path, faults: Callable[..., None], in_small_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults()  # but every row group is a block on the workers, too
    source = make_source(tmp_path / "in", 26, 1024)  # a thread has twelve partitions: of two blocks, one more
    job = small_job(source, tmp_path / "quiet", output={"row_group_size": 320})
    run_stages(job_of(job).request("pandas"))
    faults = "statistics:0:1,transform:0:1,transform:2:1,shuffle_write:0:1,shuffle_write:3:2"
    monkeypatch.setenv(out_of_memory.VARIABLE, faults)
    short = {**job, "output": {**job["output"], "path": str(tmp_path / "short")}}
    state = run_flow(short | {"cluster": {"kind": "cpu", "threads_per_worker": 1}})
    done = [(n, "Completed") for n in ("ingest", "statistics", "transform", "shuffle_write")]
    assert task_runs(state, done) == done
    assert written(tmp_path / "short") == written(tmp_path / "quiet")
    stages = Manifest.load(tmp_path / "short").data["stages"]
    assert [stages[n].get("halved", 0) for n in ("statistics", "transform", "shuffle_write")] == [1, 2, 4]
    assert [s["retries"] for s in stages.values()] == [0, 0, 0, 0]


REFUSED: dict[str, tuple[str, dict[str, dict[str, Any]], list[str]]] = {
    "one row group": (
        "transform:1:9", {},
        ["one row group does not fit into memory", "partition 1: 1,024 rows from row 4,096, about 3", "kB decoded; ",
         "logs.parquet, row group 4", "MemoryError: injected by ROWMILL_INJECT_OOM", "are free",
         "write the source with smaller row groups, or give each thread more memory: raise cluster.memory_limit"],
    ),
    "the floor of partitions": (
        "statistics:0:9", {"run": {"min_partition_size": "60kB"}},
        ["a partition as small as run.min_partition_size does not fit into memory",
         "partition 0: 2,048 rows from row 0", "set run.min_partition_size (now 60.0 kB) to 3"],
    ),
    "one row group of a file": (
        "shuffle_write:2:9", {},
        ["one row group of a file does not fit into memory", "part-00002.parquet: 3,481 rows, about 167.1 kB",
         "set output.row_group_size below 320 rows, or a higher output.files"],
    ),
    "the floor of files": (
        "shuffle_write:*:9", {"run": {"min_partition_size": "60kB"}},
        ["a part of a file as small as run.min_partition_size", "set run.min_partition_size below 60.0 kB"],
    ),
    "folders": (
        "shuffle_write:1:9", {"output": {"partition_on": ["name"]}, "run": {"min_partition_size": "20kB"}},
        ["a part of a file as small as run.min_partition_size", "part-00001.parquet", "or a higher output.files (or"],
    ),
    "no such injection": ("transform:3", {}, ["'transform:3' names no out-of-memory to inject", "transform:3:2"]),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_in_the_smallest_part_is_told(
    case: str, source: Path, small_blocks: None, tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    injected, sections, told = REFUSED[case]
    monkeypatch.setenv(out_of_memory.VARIABLE, injected)
    with pytest.raises((GiveUpError, JobError)) as caught:
        run(source, tmp_path / "out", engine, **sections)
    if engine == "cudf":
        told = [t.replace("cluster.memory_limit", "cluster.rmm_pool_size") for t in told]
    assert [text for text in told if text not in str(caught.value)] == [], str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.promise("`does not fit into memory`")
def test_a_block_of_text_has_no_smaller_unit(tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "logs.csv").write_text("row,x,name,word\n1,2.5,a,b\n")
    monkeypatch.setenv(out_of_memory.VARIABLE, "statistics:0:9")
    with pytest.raises(GiveUpError, match="one block of rows does not fit into memory") as caught:
        run(tmp_path / "in", tmp_path / "out", engine)
    assert "do: give each thread more memory" in str(caught.value)


@pytest.mark.promise("`there is not enough memory for`")
def test_what_cannot_be_halved_is_tried_again_and_told(
    faults: Callable[..., None], tmp_path: Path, prefect_server: Any
) -> None:
    data = make_data(tmp_path / "data", files=1, rows=1000)
    fault = {"at": "tasks.learning.growth:finalize", "do": "out-of-memory"}
    faults({**fault, "always": True})
    job = make_job(data, tmp_path / "out")
    state = run_flow(job)
    failed = [("ingest", "Completed"), ("statistics", "Failed")]
    assert (flow_state(state), task_runs(state, failed)) == ("Failed", failed)
    told = ("there is not enough memory for statistics", "injected: no memory", "the worker may use", "memory_limit")
    assert [text for text in told if text not in state.message] == []
    faults(fault)
    assert run_flow(job).is_completed()
    assert len(digests(tmp_path / "out")) == 5


class OutOfMemoryError(Exception):
    """What torch and CuPy call theirs."""


def caused(kind: type[Exception], cause: BaseException) -> Exception:
    """An error raised while another one was handled, as a reader does it."""
    try:
        try:
            raise cause
        except BaseException:
            raise kind("a file cannot be read") from None
    except Exception as error:
        return error


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (MemoryError("std::bad_alloc: out_of_memory: CUDA error at: cuda_async_memory_resource.hpp:121"), True),
        (pa.ArrowMemoryError("realloc of size 17179869184 failed"), True),
        (OutOfMemoryError("Out of memory allocating 4,294,967,296 bytes"), True),
        (RuntimeError("after cudaMalloc: cudaErrorMemoryAllocation: out of memory"), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (caused(DataError, pa.ArrowMemoryError("malloc of size 64 failed")), True),
        (RuntimeError("illegal memory access"), False),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (caused(GiveUpError, MemoryError("told already")), False),
        (ValueError("out of memory of the past"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_out_of_memory_is_told_from_other_failures(error: Exception, found: bool) -> None:
    assert out_of_memory.is_out_of_memory(error) is found


@pytest.mark.system
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any), st.integers(1, 9), st.integers(1, 9), st.data()
)
def test_runs_cover_the_rows_of_a_file_in_whole_units(counts: list[int], unit: int, runs: int, data: Any) -> None:
    total, first = sum(counts), 3
    skip = data.draw(st.integers(0, total - 1))
    part = Part(7, first, first + len(counts), skip, data.draw(st.integers(1, total - skip)))
    made = divide_into_runs(part, np.array(counts), unit, min(runs, -(-part.rows // unit)))
    starts = [sum(counts[: p.first - first]) + p.skip for p in made]
    assert all(p.rows > 0 for p in made)
    assert [*starts, starts[-1] + made[-1].rows] == [skip, *(s + p.rows for s, p in zip(starts, made, strict=True))]
    assert starts[-1] + made[-1].rows == skip + part.rows
    assert all((b - a) % unit == 0 for a, b in pairwise(starts))
    assert all(sum(counts[p.first - first : p.last - first]) >= p.skip + p.rows for p in made)
    assert all(p.number == 7 for p in made)
