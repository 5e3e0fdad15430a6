"""The files that were learned: their digests, and which of them are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tasks.errors import DataError
from tasks.graph.refit_history import check_history, files_table, read_files, save_history, with_batch
from tasks.job.learned_files import PART, check_new, digest_file_samples, find_learned_files
from tasks.storage.source_changes import file_of
from tests.tasks.job.test_base_version import job, night, nights

NIGHTS = [{"day": "2026-11-21", "rows": 3, "files": 1}, {"day": "2026-11-22", "rows": 1, "files": 1}]
KNOWN = files_table([("/in/a", 10, "aa")], 0).cast(files_table([], 0).schema)


def digest(path: Path) -> str:
    return digest_file_samples(file_of(str(path)), has_footer=False, options={})


def test_a_digest_is_of_the_size_and_of_three_places(tmp_path: Path) -> None:
    content = bytearray(5 * PART)
    (path := tmp_path / "a").write_bytes(content)
    whole = digest(path)
    changed = {}
    for place in (0, PART + 1, 2 * PART + PART // 2, 5 * PART - 1):
        content[place] = 1
        path.write_bytes(content)
        changed[place] = digest(path)
        content[place] = 0
    path.write_bytes(content + b"0")

    assert [place for place, now in changed.items() if now == whole] == [PART + 1]  # between the places
    assert digest(path) != whole
    assert len(whole) == 32


def test_a_small_file_counts_whole(tmp_path: Path) -> None:
    digests = set()
    for name, content in {"a": b"", "b": b"x", "c": b"y", "d": bytes(PART) + b"x", "e": bytes(PART) + b"y"}.items():
        (tmp_path / name).write_bytes(content)
        digests.add(digest(tmp_path / name))
    assert len(digests) == 5


def test_a_file_from_a_storage_has_the_same_digest(tmp_path: Path) -> None:
    import fsspec

    content = bytes(range(256)) * (4 * PART // 256)
    (tmp_path / "a").write_bytes(content)
    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/a", content)
    from tasks.storage.files import expand

    (file,) = expand("memory://bucket/a")
    assert digest_file_samples(file, False, {}) == digest(tmp_path / "a")
    described = replace(file, digest="of its footer")
    there = digest_file_samples(described, True, {})
    here = replace(file_of(str(tmp_path / "a")), digest="of its footer")
    assert there == digest_file_samples(here, True, {}) != digest_file_samples(replace(here, digest=""), True, {})


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (("/in/a", 10, "aa"), [("/in/a", "/in/a", 0)]),
        (("/in/copy", 10, "aa"), [("/in/copy", "/in/a", 0)]),
        (("/in/a", 11, "bb"), [("/in/a", "/in/a", 0)]),
        (("/in/b", 11, "aa"), []),
        (("/in/b", 10, "bb"), []),
    ],
)
def test_a_file_is_known_by_its_content_or_its_path(
    file: tuple[str, int, str], expected: list[tuple[str, str, int]]
) -> None:
    assert find_learned_files([file], KNOWN) == expected


def test_the_night_of_a_known_file_is_named() -> None:
    check_new([("/in/b", 1, "b")], KNOWN, NIGHTS)
    with pytest.raises(DataError) as caught:
        check_new([("/in/b", 1, "b"), ("/in/copy", 10, "aa")], KNOWN, NIGHTS)
    text = str(caught.value)
    assert "1 of 2 files were already learned" in text
    assert "/in/copy was learned in the night of 2026-11-21 as /in/a" in text
    assert "refit.again: true (rowmill run --set refit.again=true" in text


def test_a_history_is_read_as_it_was_saved(tmp_path: Path) -> None:
    history = with_batch(with_batch({}, NIGHTS[0]), NIGHTS[1])
    saved = save_history(tmp_path, history, KNOWN)

    assert (saved["rows"], saved["nights"]) == (4, NIGHTS)
    assert read_files(tmp_path, saved).equals(KNOWN)
    check_history(tmp_path, {"history": saved})
    (tmp_path / "files.vocab").write_bytes(b"else")
    with pytest.raises(DataError, match=r"files\.vocab is damaged"):
        check_history(tmp_path, {"history": saved})


@pytest.mark.promise("`files were already learned`")
def test_a_night_that_comes_again_is_refused_unless_somebody_insists(tmp_path: Path) -> None:
    out = nights(tmp_path, 2)
    with pytest.raises(
        DataError, match=r"(?s)1 of 1 files were already learned.*0\.parquet was learned in the night of"
    ):
        night(tmp_path, 0)
    assert not (tmp_path / ".out.rowmill").exists()  # nothing was begun that a later run had to finish
    (tmp_path / "0.parquet").rename(tmp_path / "2.parquet")
    (tmp_path / "copy").mkdir()
    copy = {"path": str(tmp_path / "copy/0.parquet")}
    (tmp_path / "copy/0.parquet").write_bytes((tmp_path / "2.parquet").read_bytes())
    with pytest.raises(DataError, match=r"copy/0\.parquet was learned in the night of .* as .*/0\.parquet"):
        night(tmp_path, 0, source=copy)

    night(tmp_path, 0, refit={"again": True})

    assert job(tmp_path, 0)["source"]["path"] in {row["path"] for row in _files(out / "v0003")}
    assert len(_files(out / "v0003")) == 3


def _files(version: Path) -> list[dict[str, object]]:
    from tasks.graph.saved_workflow import read_fitted

    data = read_fitted(version)
    rows: list[dict[str, object]] = read_files(version / "_workflow", data["history"]).to_pylist()
    return rows
