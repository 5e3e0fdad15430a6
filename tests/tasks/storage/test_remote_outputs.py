"""An output behind a URL as a source: its newest version alone, and the files that its manifest names."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest

from tasks.dataset import Dataset
from tasks.errors import DataError
from tasks.storage.files import expand
from tasks.workflow import Workflow


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Two versions of an output, of three and of two rows, behind a URL."""
    for version, values in (("v0001", [1, 2, 3]), ("v0002", [4, 5])):
        transformed = Workflow(["x"]).fit_transform(Dataset(pa.table({"x": values}), engine="pandas"))
        transformed.to_parquet(tmp_path / "out" / version, files=2)
    put(tmp_path.name, "_latest", b"v0002\n")
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file():
            put(tmp_path.name, str(path.relative_to(tmp_path / "out")), path.read_bytes())
    return f"memory://outputs/{tmp_path.name}"


def put(folder: str, name: str, content: bytes) -> None:
    fsspec.filesystem("memory").pipe(f"/outputs/{folder}/{name}", content)


def names(url: str) -> list[str]:
    return ["/".join(file.path.split("/")[-2:]) for file in expand(url)]


def test_the_newest_version_is_read_and_others_by_their_names(url: str) -> None:
    assert names(url) == ["v0002/part-00000.parquet", "v0002/part-00001.parquet"]
    assert Dataset(url, engine="pandas").num_rows == 2
    assert Dataset("memory://outputs", engine="pandas").num_rows >= 2
    assert names(f"{url}/v0001") == ["v0001/part-00000.parquet", "v0001/part-00001.parquet"]
    assert len(names(f"{url}/v*")) == 4


def test_files_are_those_of_the_manifest(url: str, tmp_path: Path) -> None:
    put(tmp_path.name, "v0002/part-00000.parquet", b"PAR1")
    put(tmp_path.name, "v0002/part-00009.parquet", b"PAR1")
    fsspec.filesystem("memory").rm(f"/outputs/{tmp_path.name}/v0002/part-00001.parquet")
    with pytest.raises(DataError, match="an output is not as its manifest says") as error:
        expand(url)
    assert error.value.where == f"memory:///outputs/{tmp_path.name}/v0002"
    first, second, third = error.value.why.split("; ")
    assert first.startswith("part-00000.parquet has 4 bytes, the manifest says ")
    assert (second, third) == ("part-00001.parquet is missing", "part-00009.parquet is not in the manifest")
    put(tmp_path.name, "v0002/_manifest.json", b"{")
    with pytest.raises(DataError, match=r"_manifest\.json is damaged"):
        expand(url)


def test_what_latest_names_has_to_be_there_and_good(url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(tmp_path.name, "v0002/_discarded.json", json.dumps({"who": "me", "when": "now"}).encode())
    with pytest.raises(DataError, match="no good version is left in this output"):
        expand(url)
    with caplog.at_level(logging.WARNING, "rowmill"):
        assert len(names(f"{url}/v0002")) == 2
    assert "v0002 was discarded, but is read anyway" in caplog.text
    for text in (b"v0009", b"", b"../else"):
        put(tmp_path.name, "_latest", text)
        with pytest.raises(DataError, match="_latest names no version of this output"):
            expand(url)


def test_manifests_of_other_programs_say_nothing() -> None:
    put("foreign", "a.csv", b"x\n1\n")
    put("foreign", "_manifest.json", b'{"entries": []}')
    put("foreign", "_latest", b"a.csv")
    assert names("memory://outputs/foreign") == ["foreign/a.csv"]
    fsspec.filesystem("memory").rm("/outputs/foreign", recursive=True)
