"""The exchange on disk: the same files as through memory, found again after a crash, refused where it cannot fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from flows.job.job import make_job
from tasks import engines
from tasks.cluster import out_of_memory
from tasks.cluster.dask_pool import DaskPool
from tasks.cluster.local_pool import LocalPool
from tasks.core.plan import Block, Partition
from tasks.core.row_sizes import row_bytes
from tasks.core.schema import Schema
from tasks.engines.cpu.order import Pieces
from tasks.errors import GiveUpError
from tasks.manifest import Manifest
from tasks.shuffle import choice, disk_exchange, writing
from tasks.shuffle.choice import choose
from tasks.shuffle.host_pieces import OnHost, join_on_host, to_host
from tasks.shuffle.pieces import PartitionPieces
from tasks.stages import commit, ingest, shuffle_write, statistics, transform
from tests.stages import run_stages

ROWS = 300_000  # four blocks, hence four partitions


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for part in range(4):
        rows = range(part * ROWS // 4, (part + 1) * ROWS // 4)
        table = pa.table(
            {"n": list(rows), "s": [f"v{i % 97}" if i % 11 else None for i in rows], "x": [i / 7 for i in rows]}
        )
        pq.write_table(table, folder / f"{part}.parquet")
    return folder


def request(source: Path, out: Path, engine: str, exchange: str, **output: Any) -> Any:
    job = make_job({
        "source": {"path": str(source), "partition_size": "100kB"},
        "features": [{"columns": ["x"], "ops": [{"op": "Normalize"}]}, {"columns": ["n", "s"]}],
        "output": {"path": str(out), "files": 5, "seed": 3, **output},
        "run": {"exchange": exchange, "min_partition_size": 1000},
    })  # fmt: skip
    return job.request(engine)


def parts(out: Path) -> list[tuple[str, bytes]]:
    return [(p.name, p.read_bytes()) for p in sorted(out.glob("*.parquet"))]


@pytest.mark.parametrize(
    "output", [{}, {"shuffle": "key", "keys": ["s"], "sort_by": ["n"]}, {"rows_per_file": 70_000, "files": None}]
)
def test_memory_and_disk_write_the_same_bytes(
    source: Path, tmp_path: Path, engine: str, output: dict[str, Any]
) -> None:
    for exchange in ("memory", "disk"):
        run_stages(request(source, tmp_path / exchange, engine, exchange, **output))
        assert Manifest.load(tmp_path / exchange).data["exchange"] == exchange
    assert parts(tmp_path / "disk") == parts(tmp_path / "memory")
    assert not list(tmp_path.glob(".*.rowmill"))


def test_row_groups_have_the_bounds_and_the_nulls_of_all_columns(source: Path, tmp_path: Path, engine: str) -> None:
    run_stages(request(source, tmp_path / "out", engine, "memory", row_group_size=10_000))
    for path in (tmp_path / "out").glob("*.parquet"):
        footer = pq.read_metadata(path)
        table = pq.read_table(path)
        start = 0
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            rows = table.slice(start, group.num_rows)
            start += group.num_rows
            shown = [group.column(place).statistics for place in range(group.num_columns)]
            bounds = [pc.min_max(column).as_py() for column in rows.columns]
            assert [(one.min, one.max) for one in shown] == [(one["min"], one["max"]) for one in bounds]
            assert [one.null_count for one in shown] == [column.null_count for column in rows.columns]


@pytest.mark.parametrize("output", [{}, {"shuffle": "key", "keys": ["s"], "sort_by": ["n"]}])
def test_pieces_kept_in_host_memory_make_the_same_bytes(
    source: Path, tmp_path: Path, engine: str, output: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_stages(request(source, tmp_path / "device", engine, "memory", **output))
    monkeypatch.setattr(transform, "choose", lambda *_: choice.Choice("memory", "the GPU is small", on_host=True))
    run_stages(request(source, tmp_path / "host", engine, "memory", **output))
    assert parts(tmp_path / "host") == parts(tmp_path / "device")


def test_pieces_with_strings_of_more_than_two_gigabytes_join_others() -> None:
    def held(kind: pa.DataType, first: int) -> OnHost:
        table = pa.table({"s": pa.array(["a", None, "é"], kind)})
        return OnHost((Pieces(table, np.arange(first, first + 3, dtype=np.uint32), np.array([0, 3])),), "pandas")

    (found,) = join_on_host([held(pa.string(), 0), held(pa.large_string(), 3), held(pa.string(), 6)])
    (whole,) = found.parts
    assert whole.table["s"].to_pylist() == ["a", None, "é"] * 3
    assert whole.table.schema.types == [pa.large_string()]
    assert whole.positions.tolist() == list(range(9))


def test_pieces_in_host_memory_are_copied_once_for_each_worker(engine: str) -> None:
    kernels = engines.engine(engine)
    table = pa.table({"n": np.arange(1000), "s": pa.array(np.arange(1000).astype(str), mask=np.arange(1000) % 7 == 0)})
    columns = {name: kernels.column(table[name]) for name in table.column_names}
    cut = kernels.cut(columns, kernels.xp.arange(1000)[::-1], np.arange(0, 1001, 100))
    held = to_host(cut, engine, (0, 3, 3, 10))
    assert held.counts.tolist() == [100] * 10
    first, last = held.ranges(0, 3).pack_rows(), held.ranges(3, 10).pack_rows()
    if engine == "cudf":
        assert (first.parts, last.parts) == ((held.parts[0],), (held.parts[2],))  # as they were copied
    across = held.ranges(2, 4).pack_rows()
    assert across.counts.tolist() == [100, 100]
    assert held.ranges(4, 4).counts.tolist() == []
    for found, rows in ((first, range(300)), (last, range(300, 1000)), (across, range(200, 400))):
        (whole,) = join_on_host([found])[0].parts
        assert sorted(whole.positions.tolist()) == list(rows)
        values = dict(zip(whole.positions.tolist(), whole.table.to_pylist(), strict=True))
        assert all(values[row] == table.slice(999 - row, 1).to_pylist()[0] for row in rows)


@pytest.mark.parametrize("rows", [1, 5000])
def test_pieces_are_packed_only_out_of_larger_ones(rows: int) -> None:
    table = pa.table({"n": np.arange(rows), "s": np.arange(rows).astype(str)})
    pieces = Pieces(table, np.arange(rows, dtype=np.uint32), np.array([0, rows // 2, rows]))
    assert pieces.pack_rows() is pieces
    part = pieces.ranges(1, 2)
    packed = part.pack_rows()
    assert packed.table.equals(part.table)
    assert packed.positions.tolist() == part.positions.tolist()
    assert (packed is part) == (rows == 1)
    assert packed.pack_rows() is packed


@pytest.mark.system
@pytest.mark.xdist_group("determinism")
def test_two_workers_write_what_one_writes_of_pieces_in_host_memory(
    source: Path, tmp_path: Path, two_workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_stages(request(source, tmp_path / "one", "pandas", "memory"))
    monkeypatch.setattr(transform, "choose", lambda *_: choice.Choice("memory", "the GPU is small", on_host=True))
    pool, two = DaskPool(two_workers), request(source, tmp_path / "two", "pandas", "memory")
    with two_workers.as_current(), two.staging.hold_lock():
        done = [
            ingest.ingest(two, pool),
            statistics.statistics(two, pool),
            transform.transform(two, "", pool),
            shuffle_write.shuffle_write(two, "", pool),
        ]
        commit.commit(two, done)
    assert parts(tmp_path / "two") == parts(tmp_path / "one")


def test_scratch_files_are_found_again_unless_they_are_damaged(source: Path, tmp_path: Path, engine: str) -> None:
    asked, pool = request(source, tmp_path / "out", engine, "disk"), LocalPool(2)
    with asked.staging.hold_lock():
        ingest.ingest(asked, pool)
        statistics.statistics(asked, pool)
        transform.transform(asked, "", pool)
        (folder,) = (asked.staging.folder / "exchange").iterdir()
        files = sorted(folder.glob("*.arrow"))
        before = [f.stat().st_mtime_ns for f in files]
        content = bytearray(files[1].read_bytes())
        content[len(content) // 2] ^= 1
        files[1].write_bytes(bytes(content))
        transform.transform(asked, "", pool)
        after = [f.stat().st_mtime_ns for f in files]
    assert [a == b for a, b in zip(before, after, strict=True)] == [i != 1 for i in range(len(files))]
    run_stages(asked)
    run_stages(request(source, tmp_path / "other", engine, "memory"))
    assert parts(tmp_path / "out") == parts(tmp_path / "other")


@pytest.mark.promise("`auto` goes by an estimate, which `rowmill preview` shows")
def test_auto_takes_memory_while_the_estimate_fits() -> None:
    schema = Schema.from_arrow(pa.schema([("a", pa.int32()), ("b", pa.float32()), ("s", pa.string())]))
    pool = LocalPool(1)
    pool.memory = 251 * 10**6  # of which a worker takes 250 MB for itself
    assert row_bytes(schema) == 8 + 4 + 4 + 24
    assert choose("auto", 12_500, schema, pool)[0] == "memory"
    assert choose("auto", 12_501, schema, pool) == (
        "disk",
        "about 500.0 kB of pieces, 500.0 kB allowed in the workers' memory",
        False,
    )
    assert choose("memory", 10**9, schema, pool)[0] == "memory"


def test_pieces_that_gpus_cannot_hold_are_kept_in_host_memory() -> None:
    from types import SimpleNamespace

    schema = Schema.from_arrow(pa.schema([("a", pa.int64()), ("b", pa.float64())]))  # 24 bytes a row with its position
    pool: Any = SimpleNamespace(memory=24 * 10**9, device_memory=4 * 10**9, workers=("one",))
    told = "about 2.4 GB of pieces, 12.0 GB allowed in the workers' memory, 2.0 GB on their GPUs"
    assert choose("auto", 80_000_000, schema, pool, "cudf").on_host is False
    assert choose("auto", 100_000_000, schema, pool, "cudf") == (
        "memory", f"{told}: they are kept in host memory", True,
    )  # fmt: skip
    assert choose("auto", 600_000_000, schema, pool, "cudf")[::2] == ("disk", False)
    assert choose("auto", 100_000_000, schema, pool, "pandas").on_host is False
    assert choose("disk", 100_000_000, schema, pool, "cudf")[::2] == ("disk", False)


@pytest.mark.promise("`the scratch disk is too small for the exchange`")
def test_a_scratch_disk_that_is_too_small_is_refused_with_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=10**9)
    monkeypatch.setattr(choice.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(GiveUpError) as caught:
        choice.make_exchange("disk", LocalPool(1), "x", tmp_path, 2 * 10**9)
    assert caught.value.why == "about 2.0 GB is needed, 1.0 GB is free"
    assert "run.scratch" in caught.value.do


def test_the_note_of_a_partition_says_what_it_holds(source: Path, tmp_path: Path, engine: str) -> None:
    asked, pool = request(source, tmp_path / "out", engine, "disk"), LocalPool(2)
    with asked.staging.hold_lock():
        ingest.ingest(asked, pool)
        statistics.statistics(asked, pool)
        summary = transform.transform(asked, "", pool)
    (folder,) = (asked.staging.folder / "exchange").iterdir()
    notes = [json.loads(p.read_text()) for p in sorted(folder.glob("*.json"))]
    assert summary.exchange == "disk"
    assert [sum(n["counts"]) for n in notes] == [n["rows_out"] for n in notes]
    assert sum(n["rows_out"] for n in notes) == ROWS


def test_dask_takes_pieces_for_as_large_as_they_are() -> None:
    from types import SimpleNamespace

    from dask.sizeof import sizeof

    pieces = [SimpleNamespace(nbytes=3_000_000), SimpleNamespace(nbytes=2_000_000)]
    assert 5_000_000 <= sizeof(PartitionPieces(pieces)) < 5_001_000


def scratch_cut(path: Path, rows: int) -> disk_exchange.ScratchCut:
    """A piece of so many rows of 8 + 4 bytes in eight ranges, in a scratch file."""
    table = pa.table({"x": np.arange(rows, dtype=np.int64)})
    offsets = np.arange(9) * rows // 8
    written, batch_rows = disk_exchange.write_scratch(path, [(table, np.arange(rows, dtype=np.uint32), offsets)])
    return disk_exchange.ScratchCut(str(path), tuple(map(tuple, written)), batch_rows, "pandas")


def test_a_file_reads_its_own_rows_of_a_scratch_file_into_memory(tmp_path: Path) -> None:
    """Pages of mapped files would count as memory of the worker, which its nanny ends for it."""
    cut = scratch_cut(tmp_path / "cut.arrow", 1_000_000)
    assert cut.batch_rows == 5461  # 64 KiB
    before = pa.total_allocated_bytes()
    (piece,) = cut.ranges(2, 3)
    assert piece.table["x"].to_pylist()[::50_000] == [250_000, 300_000, 350_000]
    assert piece.positions[[0, -1]].tolist() == [250_000, 374_999]
    assert piece.offsets.tolist() == [0, 125_000]
    assert 1_500_000 <= pa.total_allocated_bytes() - before < 1_600_000
    assert "cut.arrow" not in Path("/proc/self/maps").read_text()


def test_a_halved_partition_and_ranges_without_rows_in_a_scratch_file(tmp_path: Path) -> None:
    def piece(first: int, rows: int, offsets: list[int]) -> tuple[pa.Table, np.ndarray, np.ndarray]:
        values = pa.array([f"v{i % 3}" for i in range(first, first + rows)], pa.string()).dictionary_encode()
        return pa.table({"s": values}), np.arange(first, first + rows, dtype=np.uint32), np.array(offsets)

    halves = [piece(0, 5, [0, 2, 2, 5]), piece(0, 0, [0, 0, 0, 0]), piece(5, 4, [0, 0, 4, 4])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk_exchange, "rows_of_batch", lambda *_: 2)
        offsets, batch_rows = disk_exchange.write_scratch(tmp_path / "cut.arrow", halves)
    cut = disk_exchange.ScratchCut(str(tmp_path / "cut.arrow"), tuple(map(tuple, offsets)), batch_rows, "pandas")
    found = [[piece.table["s"].to_pylist() for piece in cut.ranges(first, first + 1)] for first in range(3)]
    assert found == [[["v0", "v1"], [], []], [[], [], ["v2", "v0", "v1", "v2"]], [["v2", "v0", "v1"], [], []]]
    assert cut.rows_of(0, 3).tolist() == [2, 4, 3]


@pytest.mark.promise("and a large file is written row group by row group; the bytes of the output stay the same")
def test_a_file_that_is_large_for_a_worker_is_written_in_runs_with_the_same_bytes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = {"files": 2, "row_group_size": 10_000}
    run_stages(request(source, tmp_path / "whole", "pandas", "disk", **output))
    monkeypatch.setattr(writing, "work_of_a_thread", lambda *_, **__: 5_000_000)
    monkeypatch.setattr(out_of_memory, "work_of_a_thread", lambda *_, **__: 5_000_000)
    results = run_stages(request(source, tmp_path / "small", "pandas", "disk", **output))
    assert parts(tmp_path / "small") == parts(tmp_path / "whole")
    assert results[3].halved == 0  # it was not tried in vain before


def test_a_partition_that_is_large_for_a_worker_is_divided_into_its_blocks() -> None:
    blocks = tuple(Block(i, 100 * i, 100, 1_000, ()) for i in range(5))
    whole = Partition(0, blocks)
    found = out_of_memory.fitting_parts(whole, 8_000, 0, "pandas")  # four times 2,000 bytes
    assert [[block.number for block in part.blocks] for part in found] == [[0, 1], [2], [3, 4]]
    assert out_of_memory.fitting_parts(whole, 0, 0, "pandas") == [whole]  # no limit
    assert len(out_of_memory.fitting_parts(whole, 1, 0, "pandas")) == 5
    assert len(out_of_memory.fitting_parts(whole, 1, 2_500, "pandas")) == 2  # run.min_partition_size
