"""A source file that is replaced, written again or taken away while a run works on it, and a link that then leads
elsewhere: an error that says so, and the next start looks at all files anew."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from flows.job.job import make_application
from flows.job.job import make_job as job_of
from tasks import engines, ops
from tasks.cluster.local_pool import LocalPool
from tasks.core.plan import Plan
from tasks.core.settings import Source
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError
from tasks.ops.side_tables import read_side_table
from tasks.sources.planning import make_plan
from tasks.sources.reader import read
from tasks.stages import commit, ingest, shuffle_write, statistics, transform
from tasks.storage.allowed_roots import VARIABLE
from tasks.storage.files import check_unchanged, expand
from tasks.workflow import Workflow
from tests.faults.jobs import digests, make_data, make_job
from tests.faults.small_blocks import ROWS

STAGES = {
    "ingest": ingest.ingest,
    "statistics": statistics.statistics,
    "transform": transform.transform,
    "shuffle_write": shuffle_write.shuffle_write,
}


def go(asked: dict[str, Any], engine: str, during: str = "", action: Callable[[], Any] = int) -> list[str]:
    """The stages of a job one after another, the action in the middle of one, when it tells its first rows; the stages
    that were found done."""
    request, pool, done = job_of(asked).request(engine), LocalPool(2), []
    with request.staging.hold_lock():
        for name, stage in STAGES.items():
            calls: list[int] = []

            def told(rows: int, total: int, name: str = name, calls: list[int] = calls) -> None:
                if name == during and not calls:
                    calls.append(rows)
                    action()

            done.append(stage(request, *([""] if name in ("transform", "shuffle_write") else []), pool, told))
        commit.commit(request, done)
    return [summary.stage for summary in done if summary.reused]


def replace(path: Path) -> None:
    """Another file in the place of `path`, of the same size and time, as a copy that keeps times leaves it."""
    before, other = path.stat(), path.with_name("_other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


def rewrite(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def touch(path: Path) -> None:
    os.utime(path)


WORDS = {rewrite: "bytes and has", touch: "and again", replace: "another file took its place", Path.unlink: "disappear"}


@pytest.mark.promise(
    "They are compared whenever the file is opened and when a stage ends: if one differs, the run fails and names the "
    "file and what changed"
)
@pytest.mark.promise("`disappeared during the run`")
@pytest.mark.promise("If a source file changes while the run works, the run fails and names the file")
@pytest.mark.parametrize("change", WORDS)
@pytest.mark.parametrize("stage", ["statistics", "transform", "shuffle_write"])
def test_a_file_that_changes_in_a_stage_ends_the_run_and_the_next_start_plans_anew(
    stage: str, change: Callable[[Path], None], tmp_path: Path, engine: str, in_small_blocks: None
) -> None:
    data, out = make_data(tmp_path / "data", files=2, rows=ROWS), tmp_path / "out"
    whole = (data / "1.parquet").read_bytes()
    asked = make_job(data, out, run={"exchange": "disk"})
    with pytest.raises(DataError, match=r"source file (changed|disappeared)|cannot be read") as error:
        go(asked, engine, stage, lambda: change(data / "1.parquet"))
    assert error.value.where == str(data / "1.parquet")
    is_half_written = "cannot be read" in str(error.value)  # what a reader meets in the middle of the rewriting
    assert WORDS[change] in str(error.value) or change is Path.unlink or is_half_written
    assert not out.exists()
    (data / "1.parquet").write_bytes(whole)
    assert go(asked, engine) == []
    go(make_job(data, tmp_path / "fresh"), engine)
    assert digests(out) == digests(tmp_path / "fresh")


def test_one_file_in_the_place_of_another_is_seen_by_the_next_start(
    tmp_path: Path, engine: str, in_small_blocks: None
) -> None:
    data, out = make_data(tmp_path / "data", files=2, rows=ROWS), tmp_path / "out"
    with pytest.raises(DataError, match="took its place"):
        go(make_job(data, out), engine, "shuffle_write", lambda: replace(data / "0.parquet"))
    assert go(make_job(data, out), engine) == []  # size and time are what they were


def test_rights_and_further_names_of_a_file_change_nothing(tmp_path: Path, engine: str, in_small_blocks: None) -> None:
    data = make_data(tmp_path / "data", files=2, rows=ROWS)

    def harmless() -> None:
        (data / "0.parquet").chmod(0o400)
        os.link(data / "1.parquet", tmp_path / "backup.parquet")

    assert go(make_job(data, tmp_path / "out"), engine, "transform", harmless) == []


def test_a_source_brought_together_by_keys_is_compared_when_that_is_done(tmp_path: Path, engine: str) -> None:
    data = make_data(tmp_path / "data", files=2, rows=ROWS)
    asked = make_job(data, tmp_path / "out", source={"keys": ["name"]}, features=[{"columns": ["x", "name"]}])
    assert go(asked, engine) == []
    dataset = Dataset(str(data), engine=engine)
    assert dataset.num_rows == 2 * ROWS
    touch(data / "1.parquet")
    with pytest.raises(DataError, match="and again"):
        dataset.shuffle_by_keys("name")


# Every reader compares what it has opened

TABLE = pa.table({"a": list(range(20)), "b": [f"word {i}" for i in range(20)]})


def write_avro(table: pa.Table, path: str) -> None:
    fields = [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}]
    with Path(path).open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "R", "fields": fields}, table.to_pylist())


def write_lines(table: pa.Table, path: str) -> None:
    Path(path).write_text("".join(f'{{"a": {r["a"]}, "b": "{r["b"]}"}}\n' for r in table.to_pylist()))


def write_packed(table: pa.Table, path: str) -> None:
    pacsv.write_csv(table, f"{path}.plain")
    Path(path).write_bytes(gzip.compress(Path(f"{path}.plain").read_bytes()))
    Path(f"{path}.plain").unlink()


def write_arrow(table: pa.Table, path: str) -> None:
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)


WRITERS: dict[str, Callable[[pa.Table, str], Any]] = {
    "a.parquet": pq.write_table, "a.arrow": write_arrow, "a.orc": orc.write_table, "a.avro": write_avro,
    "a.csv": pacsv.write_csv, "a.csv.gz": write_packed, "a.jsonl": write_lines,
}  # fmt: skip


def rows(plan: Plan, engine: str) -> int:
    """The rows of a plan, read as a run on this engine reads them."""
    kernels, partition = engines.engine(engine), plan.partitions[0]
    reader = getattr(kernels, "read_partition", None)
    found = reader(plan, partition, ["a", "b"]) if reader else {}
    return len(found["a"]) if found else read(plan, partition).num_rows


@pytest.mark.promise("`changed during the run`")
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("change", [rewrite, touch, replace])
def test_every_format_compares_what_it_opens(
    name: str, change: Callable[[Path], None], tmp_path: Path, engine: str
) -> None:
    WRITERS[name](TABLE, str(tmp_path / name))
    plan = make_plan(Source(path=str(tmp_path)))
    assert rows(plan, engine) == 20
    change(tmp_path / name)
    with pytest.raises(DataError, match="a source file changed during the run") as error:
        rows(plan, engine)
    assert error.value.where == str(tmp_path / name)
    assert WORDS[change] in error.value.why


def test_a_plan_that_was_saved_knows_its_files(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    plan = Plan.from_json(make_plan(Source(path=str(tmp_path))).to_json())
    check_unchanged(plan.files)
    replace(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="another file took its place"):
        check_unchanged(plan.files)


def test_what_is_learned_and_written_from_python_is_compared_too(tmp_path: Path, engine: str) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    dataset = Dataset(str(tmp_path), engine=engine)
    made = Workflow(["a"] >> ops.Normalize()).fit_transform(dataset)
    touch(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="a source file changed"):
        made.to_parquet(str(tmp_path / "out"))
    with pytest.raises(DataError, match="a source file changed"):
        Workflow(["a"] >> ops.Normalize()).fit(dataset)
    assert not (tmp_path / "out").exists()


# Where paths lead


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`in/linked` and the folder `in/now` lead to places in `in`; `out` beside it is not allowed."""
    for folder in ("in/real", "out/real"):
        (tmp_path / folder).mkdir(parents=True)
        for name in WRITERS:
            (tmp_path / folder / name).mkdir()
            WRITERS[name](TABLE, str(tmp_path / folder / name / name))
    monkeypatch.setenv(VARIABLE, str(tmp_path / "in"))
    return tmp_path


@pytest.mark.promise(
    "Links and `..` count for where they lead, also links in a folder, before the run and again when a file is opened"
)
@pytest.mark.parametrize("name", WRITERS)
def test_a_link_that_leads_outside_after_the_plan_is_not_read(name: str, house: Path, engine: str) -> None:
    link = house / "in" / f"linked-{name}"
    link.symlink_to(house / "in/real" / name / name)
    plan = make_plan(Source(path=str(link)))
    assert plan.files[0].real == str(house / "in/real" / name / name)
    assert rows(plan, engine) == 20
    link.unlink()
    link.symlink_to(house / "out/real" / name / name)
    with pytest.raises(JobError, match="outside the allowed roots") as error:
        rows(plan, engine)
    assert str(house / "out/real" / name / name) in error.value.where


@pytest.mark.promise(
    "Links and `..` count for where they lead, also links in a folder, before the run and again when a file is opened"
)
def test_a_folder_that_leads_outside_after_the_plan_is_not_read(house: Path, engine: str) -> None:
    (house / "in/now").symlink_to(house / "in/real/a.parquet")
    plan = make_plan(Source(path=str(house / "in/now")))
    (house / "in/now").unlink()
    (house / "in/now").symlink_to(house / "out/real/a.parquet")
    with pytest.raises(JobError, match="outside the allowed roots"):
        rows(plan, engine)


def test_a_link_that_leads_to_another_file_of_the_same_size_and_time(tmp_path: Path, engine: str) -> None:
    for name in ("one", "two"):
        pq.write_table(TABLE, tmp_path / f"_{name}.parquet")
        os.utime(tmp_path / f"_{name}.parquet", ns=(10**18, 10**18))
    (tmp_path / "a.parquet").symlink_to(tmp_path / "_one.parquet")
    plan = make_plan(Source(path=str(tmp_path)))
    (tmp_path / "a.parquet").unlink()
    (tmp_path / "a.parquet").symlink_to(tmp_path / "_two.parquet")
    with pytest.raises(DataError, match=r"_one.parquet and leads to .*_two.parquet now"):
        rows(plan, engine)


def test_a_side_table_is_looked_at_again_when_it_is_read(house: Path) -> None:
    link = house / "in/side.parquet"
    for where in ("in", "out"):
        pq.write_table(TABLE, house / where / "towns.parquet")
    link.symlink_to(house / "in/towns.parquet")
    assert read_side_table(str(link)).num_rows == 20
    link.unlink()
    link.symlink_to(house / "out/towns.parquet")
    with pytest.raises(JobError, match="outside the allowed roots"):
        read_side_table(str(link))
    link.unlink()
    link.symlink_to(house / "out/real/a.parquet")
    with pytest.raises(JobError, match="outside the allowed roots"):
        read_side_table(str(link.parent / "side.parquet"))


@pytest.mark.promise("`changed during the run`")
def test_a_side_table_that_changes_while_its_workflow_learns(
    tmp_path: Path, engine: str, in_small_blocks: None
) -> None:
    data, towns = make_data(tmp_path / "data", files=2, rows=ROWS), tmp_path / "towns.csv"
    towns.write_text("name,town\nn1,Rome\n")
    features = [
        {"columns": ["x"], "ops": [{"op": "Normalize"}]},
        {"columns": ["name"], "ops": [{"op": "JoinExternal", "table": str(towns), "on": "name"}]},
    ]
    asked = make_job(data, tmp_path / "out", features=features)
    with pytest.raises(DataError, match="a side table changed during the run") as error:
        go(asked, engine, "statistics", lambda: towns.write_text("name,town\nn1,Oslo\n"))
    assert error.value.where == str(towns)
    assert go(asked, engine) == ["ingest"]


def test_a_fitted_workflow_that_leads_outside_is_not_copied(house: Path, engine: str) -> None:
    data, out = make_data(house / "in/data", files=1, rows=100), house / "in/out"
    Workflow(["x"] >> ops.Normalize()).fit(Dataset(str(data))).save(house / "in/fitted")
    shutil.copytree(house / "in/fitted", house / "out/fitted")
    asked = {"fitted": str(house / "in/fitted"), "source": {"path": str(data)}, "output": {"path": str(out)}}
    request = make_application(asked).request(engine)
    (house / "in/fitted/state.json").unlink()
    (house / "in/fitted/state.json").symlink_to(house / "out/fitted/state.json")
    with request.staging.hold_lock(), pytest.raises(JobError, match="outside the allowed roots"):
        ingest.ingest(request, LocalPool(1))


def test_listing_records_what_is_compared(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    (file,) = expand(str(tmp_path))
    found = (tmp_path / "a.parquet").stat()
    known = (found.st_size, found.st_mtime_ns, found.st_ino, found.st_ctime_ns)
    assert (file.size, file.mtime, file.inode, file.ctime) == known
    assert file.real == ("" if tmp_path.resolve() == tmp_path else str((tmp_path / "a.parquet").resolve()))
