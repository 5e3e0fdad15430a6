"""The allowed roots: links, `..`, patterns and URLs, each resolved before it counts; unset means no limit."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.errors import JobError
from tasks.storage.allowed_roots import VARIABLE, check_path, limit_roots, read_allowed_roots
from tasks.storage.files import expand


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
