"""Jobs whose outputs are on an object store: the same files as in a folder, splits, versions on top of a base."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job.job import Job, make_job
from flows.nights.base import BasePlugin
from tasks.errors import JobError
from tasks.manifest import Manifest
from tests.object_store import ObjectStore
from tests.stages import Report, run_stages

pytestmark = pytest.mark.system


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, object_store: ObjectStore) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ROWMILL_STORAGE_JOBS", json.dumps(object_store.options))


def write_rows(path: Path, seed: int, most: int = 30) -> Path:
    draws = np.random.default_rng(seed)
    table = {
        "word": draws.integers(0, most, 600).astype(str),
        "price": draws.random(600),
        "day": draws.integers(1, 4, 600),
    }
    pq.write_table(pa.table(table), path)
    return path


def run_job(engine: str, rows: Path, out: str, base: str | None = None, **output: Any) -> None:
    sections: dict[str, Any] = {
        "source": {"path": str(rows), **output.pop("source", {})},
        "features": [
            {"columns": ["word"], "ops": [{"op": "Categorify"}]},
            {"columns": ["price"], "ops": [{"op": "Normalize"}]},
        ],
        "output": {"path": out, "files": 2, "storage_options": "jobs" if "://" in out else None, **output},
        "label": ["day"],
    }
    if base:
        sections["base"] = base
    job: Job = make_job(sections)
    run_stages(job.request(engine), plugins=[BasePlugin(job), Report()])


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "sections",
    [
        {"partition_on": ["day"], "metadata_file": True},
        {"source": {"split": {"by": "fraction", "valid": 0.2, "test": 0.1}}},
        {"format": "csv", "shuffle": "key", "keys": ["word"]},
    ],
)
def test_the_same_files_are_written_to_a_folder_and_to_a_store(
    tmp_path: Path, object_store: ObjectStore, engine: str, sections: dict[str, Any]
) -> None:
    source = write_rows(tmp_path / "rows.parquet", 1)
    name = "-".join(sections)
    run_job(engine, source, str(tmp_path / "out"), **sections)
    run_job(engine, source, f"s3://shop/jobs/{name}", **sections)
    place = f"jobs/{name}/data-"
    stored = {key.removeprefix(place)[9:]: object_store.get(key) for key in object_store.list_keys(place)}
    local = files_of(tmp_path / "out")
    assert stored.keys() == local.keys()
    timed = ("_manifest.json", "_report.html", "workflow.json", "README.md")
    same = [path for path in local if not path.endswith(timed)]
    assert [path for path in same if stored[path] != local[path]] == []
    assert any(path.endswith("_report.html") for path in local)


def test_nights_go_on_from_what_the_store_has_also_on_another_host(
    tmp_path: Path, object_store: ObjectStore, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = "s3://shop/jobs/nights"
    local = str(tmp_path / "local")
    for night in range(3):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"host-{night}"))
        source = write_rows(tmp_path / f"night-{night}.parquet", night, 30 + 10 * night)
        for place in (out, local):
            run_job(engine, source, place, base=place, on_existing="version", keep_versions=2)
    remote = Manifest.load(out, "jobs")
    assert remote.data["base"]["version"] == "v0002"
    assert remote.path.startswith(f"{out}/v0003-")
    assert remote.parts == Manifest.load(local).parts
    pointer = json.loads(object_store.get("jobs/nights/_manifest.json"))
    assert [entry["name"] for entry in pointer["versions"]] == ["v0002", "v0003"]
    assert [night["version"] for night in pointer["removed"]["nights"]] == ["v0001"]


@pytest.mark.parametrize("url", ["memory://out", "https://example.org/out", "sftp://host/out"])
def test_storages_without_conditional_puts_are_refused(tmp_path: Path, engine: str, url: str) -> None:
    source = write_rows(tmp_path / "rows.parquet", 1)
    with pytest.raises(JobError, match="this storage cannot be written safely") as error:
        run_job(engine, source, url)
    assert error.value.where == url
    assert "s3://, gs:// or abfs://" in error.value.do
