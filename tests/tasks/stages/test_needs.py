"""What a run will need: figures before it starts, measured on some of the rows, and a disk that is too small."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.feather as feather
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from tasks import ops
from tasks.cluster.local_pool import LocalPool
from tasks.core.plan import Plan
from tasks.core.settings import Output, Run, Source
from tasks.errors import GiveUpError
from tasks.job.request import Request, make_request
from tasks.sources import reader
from tasks.sources.planning import make_plan
from tasks.stages import ingest, needs, trial
from tasks.stages.trial import list_phases, run_trial
from tests.stages import run_stages

ROWS = 140_000


@dataclass
class Two:
    """Two threads of one worker with a gigabyte."""

    threads: int = 2
    workers: tuple[str, ...] = ("one",)
    memory: int = 10**9
    device_memory: int = 0
    smallest_memory: int = 10**9
    smallest_device_memory: int = 0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for part in range(2):
        columns = {
            "time": np.arange(ROWS // 2) + part * ROWS // 2,
            "word": np.array(["to", "be", "or", "not"])[rng.integers(0, 4, ROWS // 2)],
            "x": rng.normal(size=ROWS // 2),
            "unused": rng.normal(size=ROWS // 2),
        }
        pq.write_table(pa.table(columns), folder / f"logs-{part}.parquet")
    return folder


def asked(
    data: Path, out: Path, nodes: Any = None, engine: str = "pandas", filter: str | None = None, **settings: Any
) -> Request:
    source = {k: settings.pop(k) for k in ("keys", "sort_by") if k in settings}
    section = {k: settings.pop(k) for k in ("exchange", "scratch") if k in settings}
    graph = nodes or ["time"] + (["word"] >> ops.Categorify()) + (["x"] >> ops.FillMedian() >> ops.Normalize())
    return make_request(Source(path=str(data), filter=filter, **source), graph, Output(path=str(out), **settings),
                        Run(**section), engine)  # fmt: skip


def plans_of(request: Request) -> dict[str, Plan]:
    return {"": make_plan(request.source)}


def test_a_sample_is_of_several_places_and_fitted_on_itself(data: Path, tmp_path: Path) -> None:
    request = asked(data, tmp_path / "out")
    found = run_trial(request, plans_of(request)[""], rows=1000)

    assert found.before.column_names == ["time", "word", "x"]
    assert found.before["time"].to_pylist() == [*range(500), *range(70_000, 70_500)]
    assert found.after.column_names == ["time", "word", "x"]
    assert found.fitted_on == 1000
    assert sorted(set(found.after["word"].to_pylist())) == [3, 4, 5, 6]
    assert found.after["x"].to_numpy().mean() == pytest.approx(0, abs=1e-6)
    assert found.schema["word"].properties["cardinality"] == 7
    assert list(tmp_path.iterdir()) == []


def test_a_sample_is_filtered_and_brought_together_by_keys(data: Path, tmp_path: Path) -> None:
    request = asked(data, tmp_path / "out", ["time"] + (["x"] >> ops.DifferenceLag(partition_cols=["word"])),
                    filter="time < 250", keys=["word"], sort_by=["time"])  # fmt: skip
    found = run_trial(request, plans_of(request)[""], rows=1000)

    assert found.after.num_rows == 250
    assert sorted(found.after["time"].to_pylist()) == list(range(250))
    assert found.ratio == 0.25


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_the_measured_output_is_about_what_is_written(form: str, data: Path, tmp_path: Path) -> None:
    request = asked(data, tmp_path / "out", format=form, files=2)
    plans = plans_of(request)
    found = needs.needs(request, plans, Two(), run_trial(request, plans[""]))
    run_stages(request)
    wrote = sum(p.stat().st_size for p in (tmp_path / "out").glob("part-*"))

    assert found.output == pytest.approx(wrote, rel=0.25)
    assert (found.scratch, found.device) == (0, 0)
    assert found.exchange == "memory"
    assert found.disks[0].what == "output"


def test_the_disk_exchange_and_keys_need_scratch(data: Path, tmp_path: Path) -> None:
    memory = needs.needs(asked(data, tmp_path / "out"), plans_of(asked(data, tmp_path / "out")), Two())
    request = asked(data, tmp_path / "out", exchange="disk")
    disk = needs.needs(request, plans_of(request), Two())
    # number 8, id 4, float 4 and the position's 8 bytes
    assert disk.scratch == ROWS * 24
    assert memory.scratch == 0
    assert disk.disks[0].needed == disk.scratch + disk.output == ROWS * (24 + 16)
    assert memory.host - disk.host == ROWS * 24
    keyed = asked(data, tmp_path / "out", keys=["word"])
    assert needs.needs(keyed, plans_of(keyed), Two()).scratch == ROWS * (8 + 8 + 24 + 8 + 8)


def test_device_memory_is_estimated_for_gpus(data: Path, tmp_path: Path) -> None:
    request = asked(data, tmp_path / "out", engine="cudf")
    found = needs.needs(request, plans_of(request), Two())
    largest = max(p.nbytes for p in plans_of(request)[""].partitions)
    assert found.device == 4 * largest + ROWS * 24  # one partition in four copies, as a GPU admits it, and pieces
    assert found.summary()["device_memory_needed"].startswith("about ")


def test_scratch_elsewhere_counts_on_its_own_disk(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    request = asked(data, tmp_path / "out", exchange="disk", scratch=str(scratch))
    monkeypatch.setattr(needs, "_find_file_system", lambda path: 1 if path == scratch else 2)
    work, target = needs.needs(request, plans_of(request), Two()).disks

    assert (work.path, work.needed, work.what) == (str(scratch), ROWS * 40, "scratch and output")
    assert (target.path, target.needed, target.what) == (str(tmp_path), ROWS * 16, "output")


@pytest.mark.promise("ends there if a disk is too small for it", "flows/README.md#look-before-it-runs")
@pytest.mark.promise("`the disk is too small for this run`")
@pytest.mark.parametrize("exchange", ["memory", "disk"])
def test_a_disk_that_is_too_small_refuses_the_run_before_any_work(
    exchange: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.setattr(needs, "_read_free_bytes", lambda path: 100_000)
    request = asked(data, tmp_path / "out", exchange=exchange, engine=engine)
    what = "scratch and output" if exchange == "disk" else "output"
    with (
        request.staging.hold_lock(),
        pytest.raises(GiveUpError, match=rf"too small for this run\n.*\n.*{what}, 100.0 kB is free"),
    ):
        ingest.ingest(request, LocalPool(2))
    assert list(tmp_path.iterdir()) == [tmp_path / ".out.rowmill"]


@pytest.mark.promise("`a worker has too little memory for this run`")
@pytest.mark.promise("A run of which not even one row group of the source fits is refused at ingest")
def test_a_worker_without_the_memory_for_a_block_refuses_the_run_before_any_work(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, pool = asked(data, tmp_path / "out"), LocalPool(1)
    monkeypatch.setattr(needs, "_read_block", lambda *_: (37_634_000, 1_000_000))
    pool.memory = pool.smallest_memory = 400_000_000
    with request.staging.hold_lock(), pytest.raises(GiveUpError) as caught:
        ingest.ingest(request, pool)
    assert caught.value.what == "a worker has too little memory for this run"
    assert caught.value.where == "cluster.memory_limit"
    assert caught.value.why == (
        "250.0 MB for itself and 4 times the 37.6 MB that the run reads of 1,000,000 rows at once are 400.5 MB; it may "
        "use 360.0 MB of its 400.0 MB"
    )
    assert caught.value.do.startswith("set cluster.memory_limit to 445.1 MB or more")
    assert "row groups of fewer rows" in caught.value.do
    enough = replace(Two(), smallest_memory=445_100_000)
    assert needs.explain_too_little_memory(request, plans_of(request), enough) is None
    on_gpu = asked(data, tmp_path / "out", engine="cudf")
    assert needs.explain_too_little_memory(on_gpu, plans_of(on_gpu), replace(Two(), smallest_memory=1)) is None


def test_only_columns_that_are_read_count_against_a_worker(data: Path, tmp_path: Path) -> None:
    all_three = asked(data, tmp_path / "out")
    one = asked(data, tmp_path / "out", ["x"] >> ops.FillMissing())
    nbytes, rows = needs._read_block(all_three, plans_of(all_three)[""])
    of_one, _ = needs._read_block(one, plans_of(one)[""])
    assert rows == 70_000
    assert of_one == pytest.approx(nbytes * (8 + 8) / (8 + 8 + 24 + 8), rel=0.01)
    small = replace(Two(), smallest_memory=1)  # this little work may do
    assert needs.explain_too_little_memory(one, plans_of(one), small) is None


def test_a_worker_itself_and_what_it_works_on_are_in_the_estimate(data: Path, tmp_path: Path) -> None:
    request = asked(data, tmp_path / "out", exchange="disk", files=8)
    plans, one = plans_of(request), replace(Two(), threads=1)
    largest = max(partition.nbytes for partition in plans[""].partitions)
    assert needs.needs(request, plans, one).host == 250_000_000 + 4 * largest
    # 10 M rows of 24 bytes in 8 files, each of which is held three times; two threads write two of them
    schema = plans[""].schema
    written = [
        needs._estimate_files_bytes(request, 10_000_000, 240_000_000, schema, pool, 10**9) for pool in (one, Two())
    ]
    assert written == [90_000_000, 180_000_000]
    whole = asked(data, tmp_path / "out", exchange="disk", files=1)  # in runs where it does not fit
    assert needs._estimate_files_bytes(whole, 10_000_000, 240_000_000, schema, one, 120_000_000) == 120_000_000
    # A row group of 1 M rows, and two ranges of 250,000 that are needed in part.
    assert needs._estimate_files_bytes(whole, 10_000_000, 240_000_000, schema, one, 1) == 108_000_000


def test_types_alone_refuse_nothing_that_would_fit(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    widths = ROWS * 16
    monkeypatch.setattr(needs, "_read_free_bytes", lambda path: widths - 1)
    request = asked(data, tmp_path / "out", compression="zstd")
    with request.staging.hold_lock():
        summary = ingest.ingest(request, LocalPool(2))
    assert summary.estimate["disk_1"].startswith(f"{tmp_path}")
    assert summary.estimate["planned_exchange"].startswith("memory (about ")
    assert "about" in summary.estimate["host_memory_needed"]


def test_parts_that_are_there_need_no_room_again(data: Path, tmp_path: Path) -> None:
    request = asked(data, tmp_path / "out")
    before = needs.needs(request, plans_of(request), Two()).disks[0].needed
    request.staging.new.mkdir(parents=True)
    (request.staging.new / "part-00000.parquet").write_bytes(b"x" * 1000)
    assert needs.needs(request, plans_of(request), Two()).disks[0].needed == before - 1000


def test_each_phase_reads_the_columns_that_it_needs(data: Path, tmp_path: Path) -> None:
    from tasks.graph.binding import Bound

    request = asked(data, tmp_path / "out")
    schema = plans_of(request)[""].schema
    assert list_phases(Bound(request.final, schema)) == [["word", "x"], ["x"]]


@pytest.mark.parametrize("form", ["parquet", "arrow", "orc", "csv", "jsonl", "avro"])
def test_of_every_format_only_the_first_rows_are_decoded(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"time": range(1000), "word": ["to", "be"] * 500, "x": [0.5] * 1000})
    path = tmp_path / f"logs.{form}"
    if form in ("jsonl", "avro"):
        write_records(table, path, form)
    else:
        writers = {
            "parquet": pq.write_table,
            "arrow": feather.write_feather,
            "orc": orc.write_table,
            "csv": csv.write_csv,
        }
        writers[form](table, str(path))
    request = asked(path, tmp_path / "out")
    whole, asked_for = reader.read, list[int]()
    monkeypatch.setattr(trial, "read", lambda p, part, names: asked_for.append(part.rows) or whole(p, part, names))
    found = run_trial(request, plans_of(request)[""], rows=10)
    assert asked_for == [10 if form in ("parquet", "arrow", "orc") else 1000]  # others know their rows by bytes
    assert found.before["time"].to_pylist() == list(range(10))
    assert found.after.num_rows == 10


def write_records(table: pa.Table, path: Path, form: str) -> None:
    import json

    import fastavro

    if form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
        return
    kinds = {"time": "long", "word": "string", "x": "double"}
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    with path.open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "row", "fields": fields}, table.to_pylist())
