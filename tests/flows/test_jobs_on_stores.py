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
from flows.job.refit_job import make_refit
from flows.nights.base import BasePlugin
from tasks.errors import DataError, JobError
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


def copy_to_store(folder: Path, store: ObjectStore, place: str) -> list[str]:
    """What `aws s3 cp --recursive` does."""
    for name, content in files_of(folder).items():
        store.put(f"{place}/{name}", content)
    return store.list_keys(place)


@pytest.mark.promise("A copy may also be the base of a refit")
@pytest.mark.parametrize("versions", [True, False])
def test_a_copied_output_is_a_base_for_another_place(
    tmp_path: Path, object_store: ObjectStore, engine: str, versions: bool
) -> None:
    nights = [write_rows(tmp_path / f"{seed}.parquet", seed, 30 + seed) for seed in range(3)]
    out = str(tmp_path / "out")
    writing = {"on_existing": "version"} if versions else {}
    run_job(engine, nights[0], out, **writing)
    if versions:
        run_job(engine, nights[1], out, base=out, **writing)
    place = f"jobs/copied-{versions}"
    copied = copy_to_store(tmp_path / "out", object_store, place)
    on_copy = {"base": f"s3://shop/{place}", "source": {"storage_options": "jobs"}}
    run_job(engine, nights[2], str(tmp_path / "local"), base=out)
    run_job(engine, nights[2], str(tmp_path / "next"), **on_copy)
    run_job(engine, nights[2], f"s3://shop/{place}-next", **on_copy)
    local, here = (Manifest.load(tmp_path / name) for name in ("local", "next"))
    remote = Manifest.load(f"s3://shop/{place}-next", "jobs")
    assert here.data["base"]["state"] == remote.data["base"]["state"] == local.data["base"]["state"]
    assert here.data["base"]["path"] == f"s3://shop/{place}/{'v0002/' if versions else ''}_workflow"
    assert local.parts == here.parts == remote.parts
    refit = make_refit({**on_copy, "source": {"path": "new", "storage_options": "jobs"}, "output": {"path": "next"}})
    assert refit.request(engine).base is not None
    assert object_store.list_keys(f"{place}/") == copied  # neither a lock nor a pointer


@pytest.mark.parametrize("versions", [True, False])
def test_a_copied_output_is_not_written_to(
    tmp_path: Path, object_store: ObjectStore, engine: str, versions: bool
) -> None:
    night = write_rows(tmp_path / "night.parquet", 1)
    writing = {"on_existing": "version" if versions else "replace"}
    run_job(engine, night, str(tmp_path / "out"), **writing)
    place = f"jobs/kept-{versions}"
    copied = copy_to_store(tmp_path / "out", object_store, place)
    url = f"s3://shop/{place}"
    with pytest.raises(JobError, match="an output was copied to this place by other means") as refused:
        run_job(engine, night, url, base=url, **writing)
    assert "write to another place (output.path; rowmill refit: --output)" in refused.value.do
    assert object_store.list_keys(f"{place}/") == copied


def test_an_incomplete_copy_is_not_a_base(tmp_path: Path, object_store: ObjectStore, engine: str) -> None:
    night = write_rows(tmp_path / "night.parquet", 1)
    run_job(engine, night, str(tmp_path / "out"), on_existing="version")
    run_job(engine, night, str(tmp_path / "out"), on_existing="version")
    on_copy = {"base": "s3://shop/jobs/cut", "source": {"storage_options": "jobs"}}
    files = files_of(tmp_path / "out")
    for name, content in files.items():
        if not name.startswith("v0002"):
            object_store.put(f"jobs/cut/{name}", content)
    with pytest.raises(DataError, match="_latest names a version that is not there") as refused:
        run_job(engine, night, str(tmp_path / "next"), **on_copy)
    assert refused.value.where == "s3://shop/jobs/cut/_latest"
    for name, content in files.items():
        object_store.put(f"jobs/cut/{name}", content)
    object_store.put("jobs/cut/v0002/part-00001.parquet", b"cut off")
    with pytest.raises(DataError, match="the newest version is damaged") as refused:
        run_job(engine, night, str(tmp_path / "next"), **on_copy)
    assert refused.value.where == "s3://shop/jobs/cut/v0002"
    assert refused.value.do.endswith("base: s3://shop/jobs/cut/v0001")
    on_older = {**on_copy, "base": "s3://shop/jobs/cut/v0001"}
    run_job(engine, write_rows(tmp_path / "new.parquet", 2), str(tmp_path / "next"), **on_older)
    object_store.put("jobs/cut/v0001/part-00001.parquet", b"cut off")
    with pytest.raises(DataError, match="no version of the base is good"):
        run_job(engine, night, str(tmp_path / "last"), **on_copy)
