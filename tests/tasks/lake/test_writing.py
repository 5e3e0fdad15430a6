"""Outputs as tables: each version is one snapshot, once; read back by the libraries of the formats and by others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.transforms import IdentityTransform

from flows.job.job import make_job
from flows.lake.plugins import TableOutputPlugin
from tasks.errors import JobError, TransientError
from tasks.lake import delta_writing, iceberg_writing
from tasks.lake.iceberg_writing import Table
from tasks.run.plugin import NothingToDoError, UnfinishedError
from tasks.workflow import Workflow
from tests.stages import run_stages
from tests.tasks.lake.tables import catalog, in_order, plan_of, table_of
from tests.tasks.lake.tables import rows_of as lake_rows

__all__ = ["catalog"]
FIRST, SECOND = {"x": [1, 2, 3], "name": ["a", "b", None]}, {"x": [4, 5], "name": ["c", "d"]}


def write(out: Path, rows: dict[str, Any], killed: bool = False, **more: Any) -> Path:
    """Run a job that writes rows, and adds them to a table, unless the run is `killed` right before; the folder of the
    newest version."""
    out.parent.mkdir(exist_ok=True)
    pq.write_table(table_of(rows), out.parent / f"{out.name}.in.parquet")
    made = make_job({
        "source": {"path": str(out.parent / f"{out.name}.in.parquet")}, "features": [{"columns": ["*"]}],
        "output": {"path": str(out), "files": 2, "shuffle": "none", "on_existing": "version", **more},
        "run": {"report": False},
    })  # fmt: skip
    run_stages(made.request("pandas"), plugins=[] if killed else [TableOutputPlugin(made)])
    return out / (out / "_latest").read_text().strip()


def rows_of(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return table_of(columns).to_pylist()


def test_each_version_is_one_snapshot_of_a_table_of_iceberg(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # else it warns that it could plan faster
    newest = write(tmp_path / "out", FIRST, iceberg="demo.shop.clicks")
    table = catalog.load_table("shop.clicks")
    assert in_order(table.scan().to_arrow().to_pylist()) == rows_of(FIRST)
    newest = write(tmp_path / "out", SECOND, iceberg="demo.shop.clicks")
    table = table.refresh()
    assert in_order(table.scan().to_arrow().to_pylist()) == [*rows_of(FIRST), *rows_of(SECOND)]
    snapshot = table.current_snapshot()
    assert snapshot
    assert snapshot.summary
    digest = json.loads((newest / "_manifest.json").read_text())["digest"]
    assert snapshot.summary.operation.value == "append"
    assert {name: snapshot.summary[name] for name in ("rowmill.manifest", "rowmill.version", "added-data-files")} == {
        "rowmill.manifest": digest, "rowmill.version": "v0002", "added-data-files": "2",
    }  # fmt: skip
    assert len(table.metadata.snapshots) == 2
    assert polars.scan_iceberg(table).sort("x").collect().to_dicts() == [*rows_of(FIRST), *rows_of(SECOND)]
    files = sorted(task.file.file_path.removeprefix("file://") for task in table.scan().plan_files())
    assert files == sorted(str(path) for path in (tmp_path / "out").glob("v*/*.parquet"))
    assert duckdb.sql(f"select count(*), max(x) from read_parquet({files})").fetchall() == [(5, 5)]


@pytest.mark.promise("as one snapshot", "flows/KEYS.md#outputiceberg-outputdelta")
def test_each_version_is_one_version_of_a_table_of_delta(tmp_path: Path) -> None:
    place = str(tmp_path / "t")
    write(tmp_path / "t" / "rows", FIRST, delta=place)
    newest = write(tmp_path / "t" / "rows", SECOND, delta=place)
    table = DeltaTable(place)
    assert in_order(table.to_pyarrow_table().to_pylist()) == [*rows_of(FIRST), *rows_of(SECOND)]
    digest = json.loads((newest / "_manifest.json").read_text())["digest"]
    assert [table.version(), table.history(1)[0]["rowmill.manifest"]] == [1, digest]
    assert polars.read_delta(place).sort("x").to_dicts() == [*rows_of(FIRST), *rows_of(SECOND)]
    bounds = pa.table(table.get_add_actions(flatten=True)).sort_by("min.x").to_pylist()
    assert [(row["num_records"], row["min.x"], row["max.x"], row["null_count.name"]) for row in bounds] == [
        (1, 1, 1, 0), (2, 2, 3, 1), (1, 4, 4, 0), (1, 5, 5, 0),
    ]  # fmt: skip


def test_partitions_of_a_table_of_delta_are_the_folders_of_the_output(tmp_path: Path) -> None:
    place = str(tmp_path / "t")
    rows = {"x": [1, 2, 3], "day": ["a b", "é/1", None]}
    write(tmp_path / "t" / "rows", rows, delta=place, partition_on=["day"])
    assert in_order(DeltaTable(place).to_pyarrow_table().select(["x", "day"]).to_pylist()) == rows_of(rows)
    assert in_order(lake_rows(plan_of(delta=place))) == rows_of(rows)
    newer = {"x": [7, 8], "day": ["a b", "c"]}
    write(tmp_path / "t" / "rows", newer, delta=place, partition_on=["day"], mode="replace_partition")
    assert in_order(DeltaTable(place).to_pyarrow_table().select(["x", "day"]).to_pylist()) == rows_of(
        {"x": [2, 3, 7, 8], "day": ["é/1", None, "a b", "c"]}
    )


def test_the_partitions_of_new_rows_are_replaced_in_one_snapshot(catalog: Catalog, tmp_path: Path) -> None:
    table = catalog.create_table("shop.clicks", pa.schema([("x", pa.int64()), ("day", pa.string())]))
    with table.update_spec() as spec:
        spec.add_field("day", IdentityTransform(), "day")
    table.append(table_of({"x": [1, 2], "day": ["mon", "tue"]}))
    more = {"iceberg": "demo.shop.clicks", "mode": "replace_partition"}
    write(tmp_path / "out", {"x": [3, 4], "day": ["tue", "tue"]}, **more)
    table = table.refresh()
    assert in_order(table.scan().to_arrow().to_pylist()) == rows_of({"x": [1, 3, 4], "day": ["mon", "tue", "tue"]})
    assert [one.summary.operation.value for one in table.metadata.snapshots if one.summary] == ["append", "overwrite"]


@contextmanager
def no_commits(monkeypatch: pytest.MonkeyPatch, times: int) -> Iterator[None]:
    """So many commits to a table of Iceberg fail, as if another writer was there first."""
    left = [times]
    commit = Table._commit

    def fail(self: Table, *args: Any) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise CommitFailedException("the table has changed")
        commit(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(iceberg_writing, "SECONDS", 0.0)
        patched.setattr(Table, "_commit", fail)
        yield


def test_of_two_writers_the_second_tries_again(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = catalog.create_table("shop.clicks", table_of(FIRST).schema)
    commit = Table._commit
    tries = []

    def commit_after_another(self: Table, loaded: Any, *args: Any) -> None:
        tries.append(loaded)
        if len(tries) == 1:
            table.append(table_of(SECOND))
        commit(self, loaded, *args)

    monkeypatch.setattr(iceberg_writing, "SECONDS", 0.0)
    monkeypatch.setattr(Table, "_commit", commit_after_another)
    write(tmp_path / "out", FIRST, iceberg="demo.shop.clicks")
    table = table.refresh()
    assert in_order(table.scan().to_arrow().to_pylist()) == [*rows_of(FIRST), *rows_of(SECOND)]
    notes = [one.summary.additional_properties for one in table.metadata.snapshots if one.summary]
    assert [note.get("rowmill.version") for note in notes] == [None, "v0001"]


@pytest.mark.promise("`published, but not in the table`")
def test_a_table_that_was_not_written_fails_the_run_and_gets_the_version_once(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"iceberg": "demo.shop.clicks"}
    with no_commits(monkeypatch, 100), pytest.raises(UnfinishedError, match="published, but not in the table: other"):
        write(tmp_path / "out", FIRST, **more)
    assert [path.name for path in (tmp_path / "out").glob("v*")] == ["v0001"]
    with pytest.raises(NothingToDoError):
        write(tmp_path / "out", FIRST, **more)
    with no_commits(monkeypatch, 100), pytest.raises(UnfinishedError):
        write(tmp_path / "out", SECOND, **more)
    write(tmp_path / "out", {"x": [6], "name": ["e"]}, files=1, **more)  # another job: what waits is added before
    table = catalog.load_table("shop.clicks")
    assert [one.summary["rowmill.version"] for one in table.metadata.snapshots if one.summary] == [
        "v0001", "v0002", "v0003",
    ]  # fmt: skip
    assert sorted(table.scan().to_arrow()["x"].to_pylist()) == [1, 2, 3, 4, 5, 6]


def test_a_version_of_a_table_of_delta_is_added_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = str(tmp_path / "t")
    add = delta_writing.Table.add

    def add_and_lose_the_answer(self: delta_writing.Table, *args: Any) -> str:
        add(self, *args)
        raise TransientError("the connection broke")

    with monkeypatch.context() as patched:
        patched.setattr(delta_writing.Table, "add", add_and_lose_the_answer)
        with pytest.raises(UnfinishedError, match="the connection broke"):
            write(tmp_path / "t" / "rows", FIRST, delta=place)
    write(tmp_path / "t" / "rows", SECOND, delta=place)
    assert DeltaTable(place).version() == 1
    assert sorted(DeltaTable(place).to_pyarrow_table()["x"].to_pylist()) == [1, 2, 3, 4, 5]


def test_a_run_that_ends_right_after_it_has_published_leaves_the_table_to_the_next(
    catalog: Catalog, tmp_path: Path
) -> None:
    write(tmp_path / "out", FIRST, killed=True, iceberg="demo.shop.clicks")
    assert [path.name for path in (tmp_path / "out").glob("v*")] == ["v0001"]
    with pytest.raises(NothingToDoError, match="v0001 is published, and now in the table"):
        write(tmp_path / "out", FIRST, iceberg="demo.shop.clicks")
    assert in_order(catalog.load_table("shop.clicks").scan().to_arrow().to_pylist()) == rows_of(FIRST)


def test_of_two_writers_of_a_table_of_delta_both_add_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = str(tmp_path / "t")
    write(tmp_path / "t" / "rows", FIRST, delta=place)
    describe = delta_writing.Table._describe_part

    def describe_after_another(self: delta_writing.Table, *args: Any) -> Any:
        write_deltalake(place, table_of({"x": [9], "name": ["z"]}), mode="append")
        return describe(self, *args)

    monkeypatch.setattr(delta_writing.Table, "_describe_part", describe_after_another)
    write(tmp_path / "t" / "rows", {"x": [4], "name": ["c"]}, delta=place, files=1)
    assert sorted(DeltaTable(place).to_pyarrow_table()["x"].to_pylist()) == [1, 2, 3, 4, 9]


def test_a_partition_that_another_writer_replaces_meanwhile_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "t")
    more = {"delta": place, "partition_on": ["day"], "mode": "replace_partition", "files": 1}
    write(tmp_path / "t" / "rows", {"x": [1], "day": ["mon"]}, **more)
    replaced = delta_writing.Table._list_replaced

    def replace_after_another(self: delta_writing.Table, *args: Any) -> Any:
        removed = replaced(self, *args)
        DeltaTable(place).delete("day = 'mon'")
        return removed

    with monkeypatch.context() as patched:
        patched.setattr(delta_writing.Table, "_list_replaced", replace_after_another)
        with pytest.raises(UnfinishedError, match="other writers of the table were faster"):
            write(tmp_path / "t" / "rows", {"x": [2], "day": ["mon"]}, **more)
    with pytest.raises(NothingToDoError):
        write(tmp_path / "t" / "rows", {"x": [2], "day": ["mon"]}, **more)
    assert DeltaTable(place).to_pyarrow_table()["x"].to_pylist() == [2]


def test_what_the_table_cannot_take_is_refused_before_anything_is_published(catalog: Catalog, tmp_path: Path) -> None:
    catalog.create_table("shop.clicks", pa.schema([("x", pa.string()), ("name", pa.string())]))
    with pytest.raises(JobError, match="the columns of the output do not fit the table"):
        write(tmp_path / "out", FIRST, iceberg="demo.shop.clicks")
    write_deltalake(tmp_path / "t", table_of({"x": [1]}))
    with pytest.raises(JobError, match="the columns of the output do not fit the table"):
        write(tmp_path / "t" / "rows", FIRST, delta=str(tmp_path / "t"))
    with pytest.raises(JobError, match="the files of a table of Delta lie in its folder"):
        write(tmp_path / "elsewhere", FIRST, delta=str(tmp_path / "t"))
    with pytest.raises(JobError, match="the host has no catalog 'prod'"):
        write(tmp_path / "out", FIRST, iceberg="prod.shop.clicks")
    with pytest.raises(JobError, match="there is no table whose partitions could be replaced"):
        write(tmp_path / "out", FIRST, iceberg="demo.shop.new", mode="replace_partition")
    assert [*tmp_path.glob("*/v*"), *tmp_path.glob("t/rows/v*")] == []


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ({"iceberg": "a.b.c", "on_existing": "replace"}, "iceberg belongs to on_existing: version"),
        ({"iceberg": "a.b.c", "on_existing": "version", "keep_versions": 3}, "keep_versions would remove files of the"),
        ({"iceberg": "a.b.c", "on_existing": "version", "partition_on": ["x"]}, "leave partition_on out"),
        ({"delta": "t", "on_existing": "version", "mode": "replace_partition"}, "needs partition_on"),
        ({"delta": "t", "iceberg": "a.b.c", "on_existing": "version"}, "iceberg and delta both name a table"),
        ({"mode": "append"}, "mode belongs to iceberg and delta"),
        ({"delta": "t", "on_existing": "version", "format": "csv"}, "the files of a table are Parquet"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(output: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        make_job({"source": {"path": "in"}, "features": [{"columns": ["x"]}], "output": {"path": "out", **output}})


def test_a_call_from_python_adds_nothing_to_a_table(tmp_path: Path) -> None:
    workflow = Workflow(["x"])
    more = {"on_existing": "version", "iceberg": "demo.shop.clicks"}
    with pytest.raises(JobError, match="adds no output to a table"):
        workflow.fit_transform(pa.table({"x": [1]}).to_pandas()).to_parquet(tmp_path / "out", **more)
