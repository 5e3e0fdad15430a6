"""Runs whose source is a table: one state of it, which the manifest and the history name, and refits on what is new."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog import Catalog
from pyiceberg.types import LongType
from rich.console import Console

from flows.commands.inspect import show_folder
from flows.job.job import make_job
from flows.lake.plugins import TableSourcePlugin
from flows.nights.base import BasePlugin
from flows.preview.job_preview import preview
from tasks.cluster.local_pool import LocalPool
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError, NoInputError
from tasks.lake.pinning import pin_table
from tasks.stages.ingest import ingest
from tests.stages import run_stages
from tests.tasks.lake.tables import catalog, in_order, plan_of, table_of

__all__ = ["catalog"]


def run(out: Path, source: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Run a job as the flow does; the manifest of its newest output."""
    made = make_job({
        "source": source, "features": [{"columns": ["x"]}, {"columns": ["name"], "ops": [{"op": "Categorify"}]}],
        "output": {"path": str(out), "files": 1, "shuffle": "none", "on_existing": "version"},
        "run": {"report": False}, **more,
    })  # fmt: skip
    run_stages(made.request("pandas"), plugins=[BasePlugin(made), TableSourcePlugin(made)])
    newest = out / (out / "_latest").read_text().strip()
    manifest: dict[str, Any] = json.loads((newest / "_manifest.json").read_text())
    return manifest


def written(out: Path, version: str) -> list[dict[str, Any]]:
    return in_order(pq.read_table(out / version, partitioning=None).to_pylist())


def test_a_refit_reads_each_row_of_a_table_once(catalog: Catalog, tmp_path: Path) -> None:
    table = catalog.create_table("shop.clicks", pa.schema([("x", pa.int64()), ("name", pa.string())]))
    table.append(table_of({"x": [1, 2], "name": ["a", "b"]}))
    out = tmp_path / "out"
    nightly = {"iceberg": "demo.shop.clicks", "since": "last"}
    first = run(out, nightly, base=str(out))
    snapshots = [table.refresh().metadata.current_snapshot_id]
    assert first["table"] == {
        "kind": "iceberg", "name": "demo.shop.clicks", "snapshot": snapshots[0], "schema": 0, "files": 1, "left_out": 0,
    }  # fmt: skip
    assert written(out, "v0001") == [{"x": 1, "name": 3}, {"x": 2, "name": 4}]

    table.append(table_of({"x": [3], "name": ["c"]}))
    table.append(table_of({"x": [4], "name": ["a"]}))
    second = run(out, nightly, base=str(out))
    snapshots.append(table.refresh().metadata.current_snapshot_id)
    shown = io.StringIO()
    show_folder(out, console=Console(file=shown, width=400))
    assert f"source: snapshot {snapshots[1]} of demo.shop.clicks, since snapshot {snapshots[0]}, 2" in shown.getvalue()
    assert [second["table"]["since"], second["table"]["snapshot"], second["rows"]["in"]] == [*snapshots, 2]
    assert written(out, "v0002") == [{"x": 3, "name": 5}, {"x": 4, "name": 3}]
    learned = json.loads((out / "v0002" / "_workflow" / "workflow.json").read_text())["history"]["nights"]
    assert [night["table"]["snapshot"] for night in learned] == snapshots

    with pytest.raises(NoInputError, match="no data files that are new"):
        run(out, nightly, base=str(out))
    table.delete("x = 1")
    with pytest.raises(DataError, match="not only appended to"):
        run(out, nightly, base=str(out))


def test_since_last_needs_a_base_that_has_read_the_table(catalog: Catalog, tmp_path: Path) -> None:
    table = catalog.create_table("shop.clicks", pa.schema([("x", pa.int64()), ("name", pa.string())]))
    table.append(table_of({"x": [1], "name": ["a"]}))
    nightly = {"iceberg": "demo.shop.clicks", "since": "last"}
    with pytest.raises(JobError, match="since: last needs a base"):
        run(tmp_path / "out", nightly)
    pq.write_table(table_of({"x": [1], "name": ["a"]}), tmp_path / "in.parquet")
    run(tmp_path / "out", {"path": str(tmp_path / "in.parquet")})
    with pytest.raises(JobError, match="the base has not read this table"):
        run(tmp_path / "out", nightly, base=str(tmp_path / "out"))


def test_a_run_reads_one_version_and_preview_shows_it(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", table_of({"x": [1], "name": ["a"]}))
    manifest = run(tmp_path / "out", {"delta": str(tmp_path / "t")})
    assert manifest["table"] == {
        "kind": "delta", "name": str(tmp_path / "t"), "version": 0, "files": 1, "left_out": 0,
    }  # fmt: skip
    job = make_job({
        "source": {"delta": str(tmp_path / "t")}, "features": [{"columns": ["x"]}],
        "output": {"path": str(tmp_path / "out2")},
    })  # fmt: skip
    assert preview(job, "preprocess").job_source.version == 0
    assert "path" not in job.as_written()["source"]


def test_a_table_is_a_data_set(tmp_path: Path, catalog: Catalog) -> None:
    write_deltalake(tmp_path / "t", table_of({"x": [1]}))
    write_deltalake(tmp_path / "t", table_of({"x": [2]}), mode="append")
    assert Dataset(str(tmp_path / "t"), format="delta", version=0).num_rows == 1
    catalog.create_table("shop.clicks", pa.schema([("x", pa.int64())])).append(table_of({"x": [1, 2, 3]}))
    assert Dataset("demo.shop.clicks", format="iceberg").num_rows == 3


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"iceberg": "a.b.c", "delta": "t"}, "iceberg and delta both say where the rows are"),
        ({"iceberg": "a.b.c", "path": "x"}, "path and iceberg both say where the rows are"),
        ({"iceberg": "clicks"}, "source.iceberg"),
        ({"path": "x", "snapshot": 1}, "snapshot belongs to iceberg"),
        ({"delta": "t", "snapshot": 1}, "snapshot belongs to iceberg"),
        ({"delta": "t", "version": 1, "as_of": "2026-11-01"}, "version and as_of both say which state"),
        ({"delta": "t", "format": "csv"}, "those of a table are Parquet"),
        ({"delta": "t", "valid": "v"}, "use split"),
        ({}, "source.path is missing"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(source: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        make_job({"source": source, "features": [{"columns": ["x"]}], "output": {"path": "out"}})


@pytest.mark.parametrize(
    ("source", "library"), [({"iceberg": "demo.shop.clicks"}, "pyiceberg"), ({"delta": "t"}, "deltalake")]
)
def test_a_library_that_is_not_installed_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, source: dict[str, Any], library: str
) -> None:
    (kind,) = source
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"tasks.lake.{kind}", raising=False)
    with pytest.raises(JobError, match=rf"{library} is not installed(.|\n)*pip install 'rowmill\[{kind}\]'"):
        plan_of(**source)


def test_a_new_snapshot_is_new_data_and_the_same_one_is_not(catalog: Catalog, tmp_path: Path) -> None:
    table = catalog.create_table("shop.clicks", pa.schema([("x", pa.int64())]))
    table.append(table_of({"x": [1]}))
    made = make_job({
        "source": {"iceberg": "demo.shop.clicks"}, "features": [{"columns": ["x"]}],
        "output": {"path": str(tmp_path / "out")},
    })  # fmt: skip
    request = made.request("pandas")
    with request.staging.hold_lock():
        results = [ingest(pin_table(request), LocalPool(1)) for _ in range(2)]
        table.append(table_of({"x": [2]}))
        results.append(ingest(pin_table(request), LocalPool(1)))
        with table.update_schema() as update:
            update.rename_column("x", "y")
        with table.update_schema() as update:
            update.add_column("x", LongType())
        results.append(ingest(pin_table(request), LocalPool(1)))
    assert [(result.reused, result.rows, result.columns) for result in results] == [
        (False, 1, 1), (True, 1, 1), (False, 2, 1), (False, 2, 2),
    ]  # fmt: skip
