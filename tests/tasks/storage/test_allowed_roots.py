"""The allowed roots: links, `..`, patterns and URLs, each resolved before it counts; unset means no limit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job.job import make_application, make_job
from tasks.errors import JobError
from tasks.manifest import Manifest
from tasks.ops.side_tables import read_side_table
from tasks.storage import files, published_copy, stores
from tasks.storage.allowed_roots import VARIABLE, check_path, limit_roots, read_allowed_roots
from tasks.storage.files import expand
from tasks.workflow import Workflow


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`in` is allowed, `out` beside it is not; `in` holds links to it."""
    for name in ("in", "in/deep", "out", "inner"):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"x": [1]}), tmp_path / name / "a.parquet")
    (tmp_path / "in" / "away").symlink_to(tmp_path / "out")
    (tmp_path / "in" / "round").symlink_to(tmp_path / "in" / "deep")
    monkeypatch.setenv(VARIABLE, f"{tmp_path}/in:memory://shelf/a:https://Host:8080/x")
    monkeypatch.chdir(tmp_path)
    return tmp_path


INSIDE = ["in", "in/", "./in/deep/a.parquet", "in/deep/../a.parquet", "out/../in", "in/*.parquet", "in/new/x",
          "in/round/x", "file://{here}/in/a.parquet", "{here}/in/**/*.parquet"]  # fmt: skip
OUTSIDE = ["out", "inner", ".", "in/..", "in/../out", "in/away", "in/away/a.parquet", "in/away/../a.parquet",
           "in/round/../../out", "/etc/passwd", "out/*", "*/a.parquet", "file:///etc/passwd", "FILE:///etc/passwd", "local:///etc/passwd",
           "in/*/../../out/*", "simplecache::file:///etc/passwd"]  # fmt: skip


@pytest.mark.parametrize("path", INSIDE)
def test_inside(path: str, house: Path) -> None:
    check_path(path.format(here=house), "source.path")


@pytest.mark.parametrize("path", OUTSIDE)
def test_outside(path: str, house: Path) -> None:
    with pytest.raises(JobError) as refused:
        check_path(path.format(here=house), "source.path")
    assert path.format(here=house) in refused.value.where


@pytest.mark.promise("`the path is outside the allowed roots`")
def test_the_message_names_field_path_where_it_leads_and_roots(house: Path) -> None:
    with pytest.raises(JobError) as refused:
        check_path("in/away/a.parquet", "run.scratch")
    assert refused.value.where == f"run.scratch = in/away/a.parquet, which leads to {house}/out/a.parquet"
    assert f"{house}/in, memory://shelf/a, https://Host:8080/x (ROWMILL_ALLOWED_ROOTS" in refused.value.why


URLS = {
    "memory://shelf/a": True, "memory://shelf/a/b/*.csv": True, "memory:///shelf/a/b": True, "memory://shelf/ab": False,
    "memory://shelf": False, "memory://Shelf/a": False, "memory://shelf/a/../b": False,
    "memory://shelf/a/%2e%2e/b": False,
    "memory://shelf/a/%252e%252e/b": False, "memory://shelf/a%2F..%2Fb": False, "memory://shelf/%61/x": False,
    "memory://shelf/a\\..\\b": False, "memory://shelf/a/b%20c": True, "https://host:8080/x/y": True,
    "http://host:8080/x/y": False, "https://host/x/y": False, "https://host:8080.evil.org/x": False,
    "https://host:8080@evil.org/x": False, "s3://shelf/a": False, "simplecache::memory://shelf/a": False,
}  # fmt: skip


@pytest.mark.promise("URLs go by scheme, host and whole path segments")
@pytest.mark.parametrize("url", URLS)
def test_urls_go_by_scheme_host_and_segments(url: str, house: Path) -> None:
    try:
        check_path(url, "source.path")
        allowed = True
    except JobError:
        allowed = False
    assert allowed is URLS[url]


def test_two_names_of_one_storage_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "s3://bucket/logs/")
    check_path("s3a://bucket/logs/today", "source.path")
    with pytest.raises(JobError):
        check_path("s3a://bucket/logs-of-others", "source.path")


TRICKS = [
    "s3://shop/logs-of-others/a.parquet", "s3://shop/other/a.parquet", "s3://other/logs/a.parquet", "s3://shop",
    "s3://shop/logs/../other/a.parquet", "s3://shop/logs/./../other/a.parquet", "s3://shop/logs/%2e%2e/other/a.parquet",
    "s3://shop/logs/%2E%2e/other/a.parquet", "s3://shop/logs/.%252e/other/a.parquet",
    "s3://shop/logs%2f..%2fother/a.parquet", "s3://shop/logs%2Fa.parquet", "s3://shop/logs/..%5cother/a.parquet",
    "s3://shop/logs/..\\other/a.parquet", "s3://shop//logs/a.parquet", "s3://shop/%2flogs/a.parquet",
    "s3://shop/logs/.\t./other/a.parquet", "s3://shop/logs/%2e%0a%2e/other/a.parquet", "S3://shop/other/a.parquet",
    "S3A://other/logs/a.parquet", "s3://key:very-hidden@shop/logs/a.parquet", "s3://key@shop/logs/a.parquet",
    "s3://shop@other/logs/a.parquet", "s3://shop%40other/logs/a.parquet", "s3://SHOP/logs/a.parquet",
    "s3://shop/Logs/a.parquet", "s3://shop/l*gs/a.parquet", "s3://*/logs/a.parquet", "s3://shop?/logs/a.parquet",
    "simplecache::s3://shop/logs/a.parquet", "FILE:///etc/passwd", "local:///etc/passwd", "https://shop/logs/a.parquet",
    "gs://shop/logs/a.parquet", "az://shop/logs/a.parquet", "abfs://shop@logs/a.parquet", "sftp://shop/logs/a.parquet",
]  # fmt: skip
ROOT = "s3://shop/logs"


def read_as_side_table(url: str) -> object:
    return read_side_table(url)


def read_as_job(url: str) -> object:
    return make_job({"source": {"path": url}, "features": [{"columns": ["x"]}], "output": {"path": "in/out"}})


def join_in_job(url: str) -> object:
    joins = [{"columns": ["x"], "ops": [{"op": "JoinExternal", "table": url, "on": "x"}]}]
    return make_job({"source": {"path": "in"}, "features": joins, "output": {"path": "in/out"}})


def write_in_job(url: str) -> object:
    return make_job({"source": {"path": "in"}, "features": [{"columns": ["x"]}], "output": {"path": url}})


def apply_in_job(url: str) -> object:
    return make_application({"fitted": url, "source": {"path": "in"}, "output": {"path": "in/out"}})


DOORS: list[Callable[[str], object]] = [
    expand, read_as_side_table, Workflow.load, Manifest.load, read_as_job, join_in_job, write_in_job, apply_in_job,
]  # fmt: skip


@pytest.mark.promise("URLs go by scheme, host and whole path segments")
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__qualname__)
def test_no_door_opens_for_a_url_outside_of_the_roots(
    door: Callable[[str], object], house: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_store(path: str, options: object = None) -> NoReturn:
        raise AssertionError(f"{path} was opened")

    monkeypatch.setenv(VARIABLE, f"{house}/in:{ROOT}")
    for module in (files, published_copy, stores):
        monkeypatch.setattr(module, "open_store", open_store)
    for url in TRICKS:
        with pytest.raises(JobError) as refused:
            door(url)
        assert "very-hidden" not in str(refused.value)


def test_a_url_inside_of_a_root_is_allowed_under_each_of_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"{ROOT}/:abfs://logs@shop.dfs.core.windows.net/day")
    below = ("", "/", "/a b/ü+%20.csv", "/a//b.csv", "/day=*/*.parquet", "/..a/b..", "/a?versionId=1")
    others = ("S3A://shop/logs/a.csv", "abfss://logs@shop.dfs.core.windows.net/day/1")
    for url in (*(f"{ROOT}{path}" for path in below), *others):
        check_path(url, "source.path")
    for url in ("abfs://logs@other.dfs.core.windows.net/day", "abfs://day@shop.dfs.core.windows.net/day"):
        with pytest.raises(JobError, match="outside the allowed roots") as refused:
            check_path(url, "source.path")
        assert refused.value.where == f"source.path = {url}"


@pytest.mark.parametrize("url", ["s3://key:very-hidden@shop/a", "s3://very-hidden@shop/a", "abfs://a:very-hidden@b/c"])
def test_a_url_with_a_user_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(JobError, match="holds a user or a password") as refused:
        stores.open_store(url)
    assert "very-hidden" not in str(refused.value)


@pytest.mark.promise(
    "Links and `..` count for where they lead, also links in a folder, before the run and again when a file is opened"
)
def test_links_found_in_an_allowed_folder_are_refused_by_name(house: Path) -> None:
    assert [Path(f.path).name for f in expand("in/*.parquet")] == ["a.parquet"]
    with pytest.raises(JobError, match=r"in/away, which leads to .*/out"):
        expand("in")
    (house / "in" / "away").unlink()
    assert len(expand("in")) == 3
    (house / "in" / "b.parquet").symlink_to(house / "out" / "a.parquet")
    for source in ("in", "in/*.parquet", ["in/a.parquet", "in/b.parquet"]):
        with pytest.raises(JobError, match=r"in/b.parquet, which leads to .*/out/a.parquet"):
            expand(source)


def test_files_of_a_storage_are_checked_when_they_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        fsspec.filesystem("memory").pipe(f"/allowed-test/{name}/a.csv", b"x\n1\n")
    monkeypatch.setenv(VARIABLE, "memory://allowed-test/one")
    assert len(expand("memory://allowed-test/one")) == 1
    with pytest.raises(JobError, match="allowed-test/two"):
        expand("memory://allowed-test/two")
    with pytest.raises(JobError, match="outside"):
        expand("memory://allowed-test/one*")


@pytest.mark.promise("Empty: nothing is allowed", "infra/README.md#who-may-do-what")
def test_unset_allows_all_empty_nothing_and_words_are_an_error(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    assert read_allowed_roots() is None
    check_path("/etc/passwd", "source.path")
    with limit_roots([f"{house}/in"]), pytest.raises(JobError, match="outside"):
        check_path("out", "source.path")
    monkeypatch.setenv(VARIABLE, "")
    with pytest.raises(JobError, match="no root is allowed"):
        check_path("in", "source.path")
    monkeypatch.setenv(VARIABLE, "data")
    with pytest.raises(JobError, match="neither an absolute path nor a URL"):
        check_path("in", "source.path")
