"""Outputs on an object store: what is published when, and what readers, kills and two writers find."""

from __future__ import annotations

import errno
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from rowmill.cli import app
from typer.testing import CliRunner

from tasks import ops
from tasks.dataset import Dataset
from tasks.errors import DataError, GiveUpError, JobError, NoInputError, RowmillError
from tasks.manifest import Manifest
from tasks.storage.object_store import ObjectStore as S3
from tasks.storage.output_mirror import OutputMirror
from tasks.storage.own_files import MANIFEST
from tasks.storage.staging import Staging
from tasks.storage.stores import open_store
from tasks.workflow import Workflow
from tests.object_store import ObjectStore, fail_share

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    draws = np.random.default_rng(1)
    words = draws.integers(0, 50, 2_000).astype(str)
    pq.write_table(pa.table({"word": words, "price": draws.random(2_000)}), path)
    return path


@pytest.fixture(autouse=True)
def _own_mirrors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(store: ObjectStore, source: Path, out: str, **output: object) -> Manifest:
    workflow = Workflow((["word"] >> ops.Categorify()) + (["price"] >> ops.Normalize()))
    options = {"storage_options": store.options} if "://" in out else {}
    return workflow.fit_transform(Dataset(str(source))).to_parquet(out, files=3, **options, **output)


def test_an_output_on_a_store_is_that_of_a_local_folder(
    tmp_path: Path, source: Path, object_store: ObjectStore
) -> None:
    local = write(object_store, source, str(tmp_path / "local"))
    remote = write(object_store, source, "s3://shop/outputs/same")
    names = ["path", "rows", "bytes", "xxh3_128"]
    assert [[part[n] for n in names] for part in remote.parts] == [[part[n] for n in names] for part in local.parts]
    assert remote.path.startswith("s3://shop/outputs/same/data-")
    for part in remote.parts:
        content = object_store.get(f"{remote.path.removeprefix('s3://shop/')}/{part['path']}")
        assert content == (tmp_path / "local" / part["path"]).read_bytes()


def test_versions_stand_below_one_pointer(source: Path, object_store: ObjectStore) -> None:
    out = "s3://shop/outputs/versions"
    first = write(object_store, source, out, on_existing="version")
    second = write(object_store, source, out, on_existing="version", seed=1)
    assert [manifest.path.rpartition("/")[2].partition("-")[0] for manifest in (first, second)] == ["v0001", "v0002"]
    assert Manifest.load(out, object_store.options).path == second.path
    assert Manifest.load(f"{out}/v0001", object_store.options).path == first.path
    pointer = json.loads(object_store.get("outputs/versions/_manifest.json"))
    assert [entry["name"] for entry in pointer["versions"]] == ["v0001", "v0002"]
    assert pointer["latest"] == "v0002"
    names = {key.split("/")[2].partition("-")[0] for key in object_store.list_keys("outputs/versions/")}
    assert names == {"_manifest.json", "v0001", "v0002"}


def test_the_newest_versions_are_kept(source: Path, object_store: ObjectStore) -> None:
    out = "s3://shop/outputs/kept"
    for seed in range(3):
        write(object_store, source, out, on_existing="version", keep_versions=1, seed=seed)
    pointer = json.loads(object_store.get("outputs/kept/_manifest.json"))
    assert [entry["name"] for entry in pointer["versions"]] == ["v0003"]
    # their readers may still be at work
    assert [one["prefix"].partition("-")[0] for one in pointer["replaced"]] == ["v0001", "v0002"]
    assert all(object_store.list_keys(f"outputs/kept/{one['prefix']}/") for one in pointer["replaced"])


def test_an_output_is_replaced_by_one_write(source: Path, object_store: ObjectStore) -> None:
    out = "s3://shop/outputs/replaced"
    first = write(object_store, source, out)
    with pytest.raises(JobError, match="already exists") as error:
        write(object_store, source, out)
    assert error.value.where == out
    second = write(object_store, source, out, on_existing="replace")
    assert Manifest.load(out, object_store.options).path == second.path != first.path
    assert object_store.list_keys(first.path.removeprefix("s3://shop/"))
    _end_grace(object_store, "outputs/replaced")
    write(object_store, source, out, on_existing="replace")
    assert object_store.list_keys(first.path.removeprefix("s3://shop/")) == []


def _end_grace(store: ObjectStore, out: str) -> None:
    """The time of replaced files is over."""
    pointer = json.loads(store.get(f"{out}/_manifest.json"))
    pointer["replaced"] = [{**one, "until": 1} for one in pointer["replaced"]]
    store.put(f"{out}/_manifest.json", json.dumps(pointer).encode())


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("notes.txt", b"mine", "there are files at the place of the output"),
        ("_manifest.json", b'{"format": 1, "parts": []}', "an output was copied to this place"),
        ("_manifest.json", b'{"pointer": 1, "generation": 1, "versions": [{"name": "", "prefix": "../b"}]}', "damaged"),
        ("_manifest.json", b'{"pointer": 2}', "this version reads up to 1"),
    ],
)
def test_a_place_with_files_of_others_stays(
    source: Path, object_store: ObjectStore, name: str, content: bytes, what: str
) -> None:
    place = f"outputs/strange-{len(content)}"
    object_store.put(f"{place}/{name}", content)
    with pytest.raises(RowmillError, match=what):
        write(object_store, source, f"s3://shop/{place}", on_existing="replace")
    assert object_store.list_keys(place) == [f"{place}/{name}"]
    assert object_store.get(f"{place}/{name}") == content


def test_a_run_that_was_cut_off_goes_on_with_what_was_uploaded(
    tmp_path: Path, source: Path, object_store: ObjectStore
) -> None:
    out = "s3://shop/outputs/resumed"
    new = tmp_path / "new"
    new.mkdir()
    for name in ("part-0", "part-1", MANIFEST):
        (new / name).write_text(name)
    mirror = OutputMirror(out, object_store.options)
    refused = lambda request: 403 if request.kind == "put" and request.path.endswith("part-1") else None  # noqa: E731
    with mirror.hold_lock({"id": "first"}, wait=False):
        with object_store.proxy.failing(refused), pytest.raises(JobError):
            mirror.publish(new, tmp_path, is_version=True, until=0)
        with object_store.proxy.counting() as traffic:
            assert mirror.publish(new, tmp_path, is_version=True, until=0) == "v0001"
    sent = [r.path.rpartition("/")[2] for r in traffic.requests if r.kind == "put"]
    assert sent == ["part-1", MANIFEST]


def test_a_run_that_has_lost_the_lock_publishes_nothing(tmp_path: Path, object_store: ObjectStore) -> None:
    out = "s3://shop/outputs/taken"
    first, second = (OutputMirror(out, object_store.options) for _ in range(2))
    news = []
    for name in ("first", "second"):
        news.append(tmp_path / name / "new")
        news[-1].mkdir(parents=True)
        (news[-1] / MANIFEST).write_text(name)
    with first.hold_lock({"id": "first", "host": "a"}, wait=False):
        with pytest.raises(JobError, match="another run is working"), second.hold_lock({"id": "second"}, wait=False):
            pass
        lock = object_store.backend.get_object("shop", "outputs/taken/_lock.json")
        lock.last_modified -= timedelta(seconds=100)  # silent, as a stopped process is
        with second.hold_lock({"id": "second", "host": "b"}, wait=False):
            with pytest.raises(GiveUpError, match="another run took over"):
                first.publish(news[0], tmp_path / "first", is_version=True, until=0)
            assert second.publish(news[1], tmp_path / "second", is_version=True, until=0) == "v0001"
        with pytest.raises(GiveUpError, match="another run took over"):
            first.publish(news[0], tmp_path / "first", is_version=True, until=0)
    pointer = json.loads(object_store.get("outputs/taken/_manifest.json"))
    assert len(pointer["versions"]) == 1
    assert object_store.get(f"outputs/taken/{pointer['versions'][0]['prefix']}/{MANIFEST}") == b"second"


def test_failing_requests_change_nothing(tmp_path: Path, source: Path, object_store: ObjectStore) -> None:
    local = write(object_store, source, str(tmp_path / "local"))
    with object_store.proxy.failing(fail_share(0.2, 1, 503, "cut", "lost")):
        remote = write(object_store, source, "s3://shop/outputs/failing")
    assert remote.parts == local.parts
    for part in remote.parts:
        content = object_store.get(f"{remote.path.removeprefix('s3://shop/')}/{part['path']}")
        assert content == (tmp_path / "local" / part["path"]).read_bytes()


def test_a_reader_finds_one_version_or_the_next(source: Path, object_store: ObjectStore) -> None:
    out = "s3://shop/outputs/loop"
    write(object_store, source, out)
    stop = threading.Event()

    def read() -> int:
        count = 0
        while not stop.is_set():
            manifest = Manifest.load(out, object_store.options)
            keys = set(object_store.list_keys(manifest.path.removeprefix("s3://shop/")))
            assert {f"{manifest.path.removeprefix('s3://shop/')}/{part['path']}" for part in manifest.parts} <= keys
            count += 1
        return count

    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(read)
        for seed in range(3):
            write(object_store, source, out, on_existing="replace", seed=seed)
        stop.set()
        assert reading.result() > 0


def test_what_interrupted_runs_have_left_is_removed(
    source: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = "s3://shop/outputs/cleaned"
    write(object_store, source, out)
    write(object_store, source, out, on_existing="replace")
    object_store.put("outputs/cleaned/data-00000000/part-00000.parquet", b"12345")
    monkeypatch.setenv("ROWMILL_STORAGE_CLEANED", json.dumps(object_store.options))

    def clean(*options: str) -> str:
        result = CliRunner().invoke(app, ["clean", out, "--storage-options", "cleaned", *options])
        assert result.exit_code == 0, result.output
        return " ".join(result.output.split())

    text = clean()
    assert re.search(rf"kept {out}/data-00000000, 5 B, \d+ s old: younger than 7d", text)
    assert "readers may use it for another" in text
    before = object_store.list_keys("outputs/cleaned/")
    assert f"would go {out}/data-00000000" in clean("--older-than", "0", "--dry-run")
    assert object_store.list_keys("outputs/cleaned/") == before
    assert f"removed {out}/data-00000000" in clean("--older-than", "0")
    current = Manifest.load(out, object_store.options).path.removeprefix("s3://shop/")
    assert {key.rpartition("/")[0] for key in object_store.list_keys("outputs/cleaned/")} == {
        "outputs/cleaned",
        current,
        f"{current}/_workflow",
    }
    assert json.loads(object_store.get("outputs/cleaned/_manifest.json"))["replaced"] == []


def test_a_fitted_workflow_is_saved_to_a_store(source: Path, object_store: ObjectStore) -> None:
    out = "s3://shop/outputs/fitted"
    workflow = Workflow(["word"] >> ops.Categorify())
    workflow.fit(Dataset(str(source)))
    for _ in range(2):
        workflow.save(out, storage_options=object_store.options)
    loaded = Workflow.load(out, storage_options=object_store.options)
    rows = Dataset(pd.DataFrame({"word": ["7", "no such word"]}))
    pd.testing.assert_frame_equal(
        loaded.transform(rows).to_ddf().compute(), workflow.transform(rows).to_ddf().compute()
    )


def test_parts_are_uploaded_while_others_are_written(tmp_path: Path, object_store: ObjectStore) -> None:
    new, notes = tmp_path / "new", tmp_path / "parts"
    for folder in (new / "train", notes / "train"):
        folder.mkdir(parents=True)
    mirror = OutputMirror("s3://shop/outputs/ahead", object_store.options)
    with mirror.hold_lock({"id": "one"}, wait=False):
        with mirror.upload_ahead(new, notes, tmp_path, is_version=False), object_store.proxy.counting() as traffic:
            (new / "train/part-00000.parquet").write_text("12345")
            (notes / "train/part-00000.parquet.json").write_text('{"parts": [{"path": "part-00000.parquet"}]}')
            until = time.monotonic() + 30
            while not object_store.list_keys("outputs/ahead/data-") and time.monotonic() < until:
                time.sleep(0.02)
        assert traffic.count("put") == 1
        (new / MANIFEST).write_text("{}")
        with object_store.proxy.counting() as traffic:
            mirror.publish(new, tmp_path, is_version=False, until=0)
    keys = object_store.list_keys("outputs/ahead/data-")
    assert [key.partition("/data-")[2][9:] for key in keys] == [MANIFEST, "train/part-00000.parquet"]
    assert [r.path for r in traffic.requests if r.path.endswith("part-00000.parquet")] == []


@pytest.mark.promise(
    "Readers find the files below the path of the manifest", "infra/README.md#outputs-on-object-stores"
)
def test_others_read_an_output_from_its_store(source: Path, object_store: ObjectStore) -> None:
    write(object_store, source, "s3://shop/outputs/read")
    path = Manifest.load("s3://shop/outputs/read", object_store.options).path
    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "aws_region": "us-east-1"}
    endpoint = object_store.proxy.url

    by_polars = pl.scan_parquet(f"{path}/*.parquet", storage_options={**keys, "aws_endpoint_url": endpoint}).collect()
    fs = pafs.S3FileSystem(access_key="testing", secret_key="testing", region="us-east-1", endpoint_override=endpoint)
    by_arrow = pads.dataset(path.removeprefix("s3://"), filesystem=fs, format="parquet").to_table()
    by_dask = dd.read_parquet(f"{path}/*.parquet", storage_options=object_store.options).compute()

    assert by_arrow.num_rows == 2_000
    assert by_arrow.equals(by_polars.to_arrow().cast(by_arrow.schema))
    assert by_dask["price"].tolist() == by_arrow["price"].to_pylist()


def test_the_newest_version_is_a_source(source: Path, object_store: ObjectStore) -> None:
    out = "s3://shop/outputs/as-source"
    for seed in (0, 1):
        manifest = write(object_store, source, out, on_existing="version", seed=seed)
    object_store.put("outputs/as-source/v0003-00000000/part-00000.parquet", b"PAR1")  # a run that is under way
    options = {"storage_options": object_store.options, "engine": "pandas"}
    newest = Dataset(out, **options)
    assert newest.num_rows == 2_000
    assert {path.rpartition("/")[0] for path in (file.path for file in newest.plan.files)} == {manifest.path}
    first = Dataset(f"{out}/v0001", **options)
    assert first.num_rows == 2_000
    assert first.plan.files[0].path.startswith(f"{out}/v0001-")
    replaced = "s3://shop/outputs/replaced-source"
    for seed in (0, 1):
        write(object_store, source, replaced, on_existing="replace", seed=seed)
    assert Dataset(replaced, **options).num_rows == 2_000
    with pytest.raises(NoInputError, match="there is no input"):
        _ = Dataset(f"{out}/v0009", **options).num_rows


def test_a_version_stays_published_when_this_host_fails_right_after(
    source: Path, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = "s3://shop/outputs/after"
    write(object_store, source, out, on_existing="version")

    def fail(*_: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Staging, "_publish_version", fail)
        with pytest.raises(GiveUpError, match="there is no space left"):
            write(object_store, source, out, on_existing="version", seed=1)
    assert Manifest.load(out, object_store.options).path.startswith(f"{out}/v0002-")
    write(object_store, source, out, on_existing="version", seed=2)
    pointer = json.loads(object_store.get("outputs/after/_manifest.json"))
    assert [entry["name"] for entry in pointer["versions"]] == ["v0001", "v0002", "v0003"]
    assert pointer["replaced"] == []


@pytest.mark.parametrize("on_existing", ["fail", "version"])
def test_a_bucket_that_is_not_there_is_an_error_at_once(
    source: Path, object_store: ObjectStore, on_existing: str
) -> None:
    with pytest.raises(DataError) as error:
        write(object_store, source, "s3://shopp/out", on_existing=on_existing)
    assert "bucket" in str(error.value)
    assert error.value.where.startswith("s3://shopp/out")


def test_a_save_that_was_refused_is_tried_again(source: Path, object_store: ObjectStore) -> None:
    workflow = Workflow(["word"] >> ops.Categorify())
    workflow.fit(Dataset(str(source)))
    with object_store.proxy.failing(lambda request: 403), pytest.raises(JobError, match="refuses this user"):
        workflow.save("s3://shop/outputs/again", storage_options=object_store.options)
    workflow.save("s3://shop/outputs/again", storage_options=object_store.options)
    assert Workflow.load("s3://shop/outputs/again", storage_options=object_store.options).schema


@pytest.mark.promise("`there are no credentials for the storage`")
@pytest.mark.parametrize("end", ["status code: 403 Forbidden", "HTTP error: error sending request"])
def test_credentials_that_nobody_named_are_said_to_be_missing(object_store: ObjectStore, end: str) -> None:
    store = open_store("s3://shop/logs", object_store.options)
    assert isinstance(store, S3)
    error = store._failure("s3://shop/logs", ValueError(f"PUT http://169.254.169.254/latest/api/token - {end}"))
    assert isinstance(error, JobError)
    assert error.what == "there are no credentials for the storage"
    assert "--storage-options NAME" in error.do
