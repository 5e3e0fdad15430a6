"""Which files a source names: in outputs, behind patterns, in folders that are closed, and beside what is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasks.errors import DataError, JobError, NoInputError
from tasks.storage.files import expand, refuse_inside
from tasks.storage.own_files import current


def files_in(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x\n1\n")
    return folder


def names_of(source: Path | str, root: Path) -> list[str]:
    return [os.path.relpath(file.path, root) for file in expand(str(source))]


@pytest.mark.promise("as a source such a folder stands for its newest version")
def test_of_an_output_in_versions_the_newest_is_read(tmp_path: Path) -> None:
    out = files_in(tmp_path / "lake/out", "v0001/a.csv", "v0002/a.csv", "v0002/_workflow/b.csv")
    files_in(tmp_path / "lake", "other/c.csv")
    (out / "_latest").write_text("v0002\n")

    assert names_of(out, out) == ["v0002/a.csv"]
    assert names_of(tmp_path / "lake", tmp_path) == ["lake/other/c.csv", "lake/out/v0002/a.csv"]
    assert names_of(tmp_path / "*/out", tmp_path) == ["lake/out/v0002/a.csv"]
    assert names_of(out / "v0001", out) == ["v0001/a.csv"]
    assert current(out) == out / "v0002"


@pytest.mark.parametrize("note", ["", "v0009", "../other", "/"])
def test_a_latest_that_names_no_version_is_not_followed(tmp_path: Path, note: str) -> None:
    out = files_in(tmp_path / "out", "v0001/a.csv")
    (out / "_latest").write_text(note)
    assert names_of(out, out) == ["v0001/a.csv"]
    (out / "v0001/_manifest.json").write_text(
        '{"parts": [{"path": "a.csv", "bytes": 4}]}'
    )  # an output of rowmill: to read all versions as one would be wrong
    with pytest.raises(DataError, match="_latest names no version of this output"):
        names_of(out, out)
    assert names_of(out / "v*", out) == ["v0001/a.csv"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*", ["a.csv", "day=1/b.csv"]),
        ("**/*.csv", ["a.csv", "day=1/b.csv"]),
        ("_*/*", ["_old/c.csv"]),
        ("*/_parts/*", ["day=1/_parts/d.csv"]),
        ("[ab].csv", ["a.csv"]),
    ],
)
def test_a_pattern_passes_over_hidden_names_that_it_does_not_write(
    tmp_path: Path, pattern: str, found: list[str]
) -> None:
    root = files_in(tmp_path / "_in", "a.csv", "_b.csv", ".c.csv", "day=1/b.csv", "day=1/_parts/d.csv", "_old/c.csv")
    assert names_of(root / pattern, root) == found


LOGS = {
    "Delta": "_delta_log/00000000000000000000.json",
    "Iceberg": "metadata/00000-3f2b6c1e-8a54-4d6f-9a0e-5b7c8d9e0f1a.metadata.json",
    "Hudi": ".hoodie/hoodie.properties",
}
INSTEAD = {
    "Delta": "source.delta: {table}",
    "Iceberg": "source.iceberg: CATALOG.DATABASE.TABLE",
    "Hudi": 'spark.read.format("hudi").load("{table}")',
}
STREAM = "_spark_metadata/0"
PLACES = ["lake/t", "lake", "lake/t/*.csv", "lake/*", "lake/t/data/day=1", "lake/**/*.csv"]


def tables_in(folder: Path, log: str) -> list[str]:
    """The roots, here and in a storage, of a table with two files and a log."""
    import fsspec

    files = ["lake/t/a.csv", "lake/t/data/day=1/b.csv", f"lake/t/{log}"]
    files_in(folder, *files)
    for file in files:
        fsspec.filesystem("memory").pipe(f"{folder}/{file}", b"x\n1\n")
    return [f"{folder}", f"memory://{folder}"]


@pytest.mark.promise("`the source is a table of`")
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("kind", LOGS)
def test_the_files_of_a_table_with_a_log_are_not_taken_for_its_rows(tmp_path: Path, kind: str, where: str) -> None:
    for root in tables_in(tmp_path, LOGS[kind]):
        with pytest.raises(DataError, match=f"the source is a table of {kind}, ") as refused:
            expand(f"{root}/{where}")
        assert refused.value.where == f"{root}/lake/t"
        assert INSTEAD[kind].format(table=f"{root}/lake/t") in refused.value.do
        assert [file.path for file in expand([f"{root}/lake/t/a.csv"])] == [f"{root}/lake/t/a.csv"]


@pytest.mark.promise("`the source is the output of a Spark stream`")
@pytest.mark.parametrize("where", PLACES)
def test_nor_are_those_of_a_spark_stream_some_of_which_were_never_committed(tmp_path: Path, where: str) -> None:
    for root in tables_in(tmp_path, STREAM):
        with pytest.raises(DataError, match="the source is the output of a Spark stream") as refused:
            expand(f"{root}/{where}")
        assert refused.value.where == f"{root}/lake/t"
        assert f'spark.read.parquet("{root}/lake/t")' in refused.value.do
        assert [file.path for file in expand([f"{root}/lake/t/a.csv"])] == [f"{root}/lake/t/a.csv"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("lake/*", ["a.csv", "day=1/b.csv", "day=1/deep/c.csv"]),
        ("lake/*/", ["a.csv", "day=1/b.csv", "day=1/deep/c.csv"]),
        ("lake/d*", ["day=1/b.csv", "day=1/deep/c.csv"]),
        ("lake/*/*", ["day=1/b.csv", "day=1/deep/c.csv"]),
        ("*/day=1", ["day=1/b.csv", "day=1/deep/c.csv"]),
        ("lake/_old*", ["_old/d.csv"]),
        ("lake/**", ["a.csv", "day=1/b.csv", "day=1/deep/c.csv"]),
        ("lake/**/*.csv", ["a.csv", "day=1/b.csv", "day=1/deep/c.csv"]),
        ("lake/**/deep", []),
    ],
)
def test_a_pattern_matches_the_same_folders_here_and_behind_a_url(
    tmp_path: Path, pattern: str, found: list[str]
) -> None:
    import fsspec

    names = ["a.csv", "day=1/b.csv", "day=1/deep/c.csv", "day=1/_parts/e.csv", "_old/d.csv", "_old/.f.csv"]
    files_in(tmp_path, *[f"lake/{name}" for name in names])
    for name in names:
        fsspec.filesystem("memory").pipe(f"{tmp_path}/lake/{name}", b"x\n1\n")
    for root in (f"{tmp_path}", f"file://{tmp_path}", f"memory://{tmp_path}"):
        if not found:
            with pytest.raises(NoInputError, match="there is no input"):
                expand(f"{root}/{pattern}")
            continue
        files = [file.path.removeprefix("memory://").removeprefix(f"{tmp_path}/lake/")
                 for file in expand(f"{root}/{pattern}")]  # fmt: skip
        assert files == found, root


@pytest.mark.parametrize("name", ["metadata/columns.json", "metadata", "data=1/metadata/v1.json", "x_delta_log/1.csv"])
def test_a_folder_that_only_looks_like_a_table_is_read(tmp_path: Path, name: str) -> None:
    files_in(tmp_path, "t/a.csv", f"t/{name}")
    assert names_of(tmp_path / "t", tmp_path) == sorted(["t/a.csv", f"t/{name}"])


@pytest.mark.parametrize("pattern", ["in/*/*.csv", "in/**/*.csv", "in/**"])
def test_a_folder_that_may_not_be_read_is_named_where_a_pattern_would_pass_over_it(
    tmp_path: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = files_in(tmp_path, "in/a/x.csv", "in/b/x.csv")
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "b" and access(path, mode))
    with pytest.raises(DataError, match=r"the source cannot be listed\n  where: .*/in/b\n  why: Permission denied"):
        expand(str(root / pattern))


@pytest.mark.promise("`the source cannot be listed`")
@pytest.mark.parametrize("source", ["in", "in/*", "in/gone.csv", "in/round", "*/gone.csv"])
def test_links_that_lead_nowhere_are_named(tmp_path: Path, source: str) -> None:
    root = files_in(tmp_path, "in/a.csv")
    (root / "in/gone.csv").symlink_to(root / "nowhere")
    (root / "in/round").symlink_to("round")
    with pytest.raises(DataError, match=r"the source cannot be listed\n  where: .*/in/(gone.csv|round)\n"):
        expand(str(root / source))


def test_a_folder_that_holds_itself_is_named(tmp_path: Path) -> None:
    root = files_in(tmp_path / "in", "a.csv")
    (root / "again").symlink_to(root)
    with pytest.raises(DataError, match=r"the source cannot be listed\n  where: .*/in/again/"):
        expand(str(root))


@pytest.mark.promise("folder to write, not inside the source")
@pytest.mark.promise("`the output is inside its own source`")
@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("in", "in/out"), ("in", "in"), ("in", "link/out"), (["other", "in"], "in/a/out"), ("in/*", "in/out"),
        ("in/*.parquet", "in"), ("in/**/*.parquet", "in/out"), ("in/a*", "in/abc/out"), (".", "out"),
    ],
)  # fmt: skip
def test_an_output_in_its_own_source_is_refused(
    tmp_path: Path, source: str | list[str], output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files_in(tmp_path, "in/a/x.parquet"))
    (tmp_path / "link").symlink_to("in")
    with pytest.raises(JobError, match=f"the output is inside its own source\n  where: {output}\n"):
        refuse_inside(source, output)


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("in", "out"), ("in", "in-out"), ("in", "in/_out"), ("in", "in/.out/x"), ("in/a", "in/out"), ("in", "."),
        ("in/*.csv", "in/out"), ("in/*/x.parquet", "in/out"), ("in/**/*.csv", "in/out"), ("in/a/x.parquet", "in/a/out"),
        ("s3://lake/in", "in/out"), ("in/[ab]", "in/out"), ("in/*", "in/_out"),
    ],
)  # fmt: skip
def test_an_output_beside_its_source_is_not(
    tmp_path: Path, source: str, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files_in(tmp_path, "in/a/x.parquet"))
    refuse_inside(source, output)
