"""What was published, copied to an object store as `aws s3 cp --recursive` copies it, is read as from its folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job.job import make_application
from tasks import ops
from tasks.dataset import Dataset
from tasks.errors import DataError, HostError, JobError
from tasks.manifest import Manifest
from tasks.storage import published_copy
from tasks.workflow import Workflow
from tests.object_store import ObjectStore
from tests.stages import run_stages

pytestmark = pytest.mark.system

ROWS = pa.table({"word": ["a", "b", "a", "c"], "price": [1.0, 2.0, 3.0, 4.0]})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/rowmill/published"


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output with one version."""
    out = tmp_path_factory.mktemp("published") / "out"
    workflow = Workflow((["word"] >> ops.Categorify()) + (["price"] >> ops.Normalize()))
    workflow.fit_transform(Dataset(ROWS)).to_parquet(str(out / "v0001"), files=2)
    (out / "_latest").write_text("v0001\n")
    return out


def upload(store: ObjectStore, folder: Path, prefix: str) -> str:
    for path in folder.rglob("*"):
        if path.is_file():
            store.put(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())
    return f"s3://shop/{prefix}"


def test_a_fitted_workflow_is_loaded_from_a_url(output: Path, object_store: ObjectStore) -> None:
    options = object_store.options
    url = upload(object_store, output, "published/a")
    expected = Workflow.load(output).transform(ROWS)
    with object_store.proxy.counting() as traffic:
        assert Workflow.load(url, options).transform(ROWS).equals(expected)
    paths = [request.path for request in traffic.requests if request.kind == "get"]
    assert not [path for path in paths if "part-" in path]
    assert traffic.count("list") == 3  # the output, its newest version, _workflow
    with object_store.proxy.counting() as traffic:
        assert Workflow.load(f"{url}/v0001", options).transform(ROWS).equals(expected)
        assert Workflow.load(f"{url}/v0001/_workflow", options).transform(ROWS).equals(expected)
        Workflow.load(url, options)
    again = Workflow.load(url, options)
    assert again.transform(ROWS).equals(expected)
    with object_store.proxy.counting() as traffic:
        Workflow.load(url, options)
    assert [request.path for request in traffic.requests if request.kind == "get"] == ["/shop/published/a/_latest"]


def test_a_manifest_is_loaded_from_a_url(output: Path, object_store: ObjectStore) -> None:
    url = upload(object_store, output, "published/b")
    expected = Manifest.load(output)
    assert Manifest.load(url, object_store.options) == replace(expected, path=f"{url}/v0001")


def test_a_fitted_workflow_behind_a_url_is_applied(
    output: Path, object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROWMILL_STORAGE_SHOP", json.dumps(object_store.options))
    url = upload(object_store, output, "published/e")
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    digests = []
    for fitted in (str(output), url):
        target = tmp_path / f"out{len(digests)}"
        source = {"path": str(tmp_path / "rows.parquet"), "storage_options": "shop"}
        application = make_application({"fitted": fitted, "source": source, "output": {"path": str(target)}})
        request = application.request("pandas")
        run_stages(request)
        digests.append([part["xxh3_128"] for part in Manifest.load(target).parts])
    assert digests[0] == digests[1]
    assert request.fitted
    assert request.fitted.path == f"{url}/v0001/_workflow"


def test_damage_is_found_and_named_by_its_url(output: Path, object_store: ObjectStore) -> None:
    options = object_store.options
    url = upload(object_store, output, "published/c")
    state = (output / "v0001/_workflow/state.json").read_bytes()
    object_store.put("published/c/v0001/_workflow/state.json", state.replace(b"1", b"2", 1))
    with pytest.raises(DataError) as error:
        Workflow.load(url, options)
    assert error.value.where.startswith(f"{url}/v0001/_workflow")
    assert "cache" not in str(error.value)
    object_store.put("published/c/_latest", b"v0002\n")
    with pytest.raises(DataError, match="_latest names a version that is not there"):
        Workflow.load(url, options)
    object_store.put("published/c/_latest", b"../else")
    with pytest.raises(DataError, match="is not a version in this folder"):
        Workflow.load(url, options)


def test_what_is_not_there_or_not_allowed_is_a_clear_error(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="this is not an output of rowmill") as error:
        Manifest.load("s3://shop/published/none", object_store.options)
    assert error.value.where == "s3://shop/published/none"
    with object_store.proxy.failing(lambda request: 403), pytest.raises(JobError, match="refuses this user"):
        Workflow.load("s3://shop/published/none", object_store.options)
    monkeypatch.setenv("ROWMILL_ALLOWED_ROOTS", "s3://shop/logs")
    with pytest.raises(HostError, match="outside the allowed roots"):
        Workflow.load("s3://shop/published/none", object_store.options)


def test_the_folder_of_copies_has_a_limit(
    output: Path, object_store: ObjectStore, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [upload(object_store, output, f"published/d{number}") for number in range(3)]
    monkeypatch.setattr(published_copy, "LIMIT", 1)
    for url in urls:
        Workflow.load(url, object_store.options)
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 3  # all are in use by this process
    for key in list(published_copy._in_use):
        published_copy._in_use.pop(key).close()
    url = upload(object_store, output, "published/d3")
    Workflow.load(url, object_store.options)
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 1
