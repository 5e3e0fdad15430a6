"""Commands that look at an output take its URL: nothing but what they show is fetched, and errors name the URL."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from flows.public.rowmill.cli import app
from tasks import ops
from tasks.dataset import Dataset
from tasks.loading import loader
from tasks.manifest import Manifest
from tasks.workflow import Workflow
from tests.object_store import ObjectStore

pytestmark = pytest.mark.system

ROWS = pa.table({"word": ["a", "b", "a", "c"] * 250, "price": [float(number) for number in range(1000)]})


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output with two versions."""
    out = tmp_path_factory.mktemp("published") / "out"
    workflow = Workflow((["word"] >> ops.Categorify()) + (["price"] >> ops.Normalize()))
    for version in ("v0001", "v0002"):
        workflow.fit_transform(Dataset(ROWS)).to_parquet(str(out / version), files=3, shuffle="none")
    (out / "_latest").write_text("v0002\n")
    return out


@pytest.fixture
def url(output: Path, object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ROWMILL_STORAGE_SHOP", json.dumps(object_store.options))
    monkeypatch.setenv("ROWMILL_ALLOWED_ROOTS", f"s3://shop/looked-at:{output}")
    prefix = f"looked-at/{tmp_path.name}"
    for path in output.rglob("*"):
        if path.is_file():
            object_store.put(f"{prefix}/{path.relative_to(output)}", path.read_bytes())
    return f"s3://shop/{prefix}"


def run(*words: str) -> Any:
    return CliRunner().invoke(app, [*words, "--storage-options", "shop"], env={"COLUMNS": "400"})


def fetched_parts(traffic: Any) -> list[str]:
    paths = [request.path for request in traffic.requests if request.kind == "get"]
    return sorted({path.rpartition("/")[2] for path in paths if "part-" in path})


def test_inspect_shows_what_it_shows_of_the_folder(url: str, output: Path, object_store: ObjectStore) -> None:
    expected = CliRunner().invoke(app, ["inspect", str(output)], env={"COLUMNS": "400"}).stdout
    with object_store.proxy.counting() as traffic:
        done = run("inspect", url)
    assert done.exit_code == 0, done.stderr
    assert done.stdout == expected.replace(str(output), url)
    assert fetched_parts(traffic) == ["part-00000.parquet"]
    embeddings = run("inspect", f"{url}/v0001/_workflow", "--embeddings").stdout
    assert json.loads(embeddings) == {"word": {"rows": 6, "dimension": 16}}


def test_verify_reads_each_byte_once_and_names_all_damage(url: str, output: Path, object_store: ObjectStore) -> None:
    parts = Manifest.load(output).parts
    with object_store.proxy.counting() as traffic:
        done = run("verify", url)
    assert (done.exit_code, done.stdout) == (0, f"whole: 1,000 rows in 3 parts, {done.stdout.rpartition(', ')[2]}")
    reads = [request for request in traffic.requests if request.kind == "get" and "part-" in request.path]
    assert sum(request.received for request in reads) <= 1.3 * sum(part["bytes"] for part in parts) + 3 * 2**16

    prefix = url.removeprefix("s3://shop/") + "/v0002"
    flipped = bytearray((output / "v0002" / parts[0]["path"]).read_bytes())
    flipped[len(flipped) // 2] ^= 1
    object_store.put(f"{prefix}/{parts[0]['path']}", bytes(flipped))
    object_store.backend.delete_object("shop", f"{prefix}/{parts[1]['path']}")
    object_store.put(f"{prefix}/{parts[2]['path']}", b"PAR1")
    object_store.put(f"{prefix}/part-00009.parquet", b"PAR1")
    done = run("verify", url)
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        "damaged: part-00000.parquet has other content than when it was written (xxh3-128 differs)",
        "damaged: part-00001.parquet is missing",
        f"damaged: part-00002.parquet has 4 bytes, the manifest says {parts[2]['bytes']:,}",
        "damaged: part-00009.parquet is not in the manifest",
    ]
    assert f"4 problem(s) in {url}\n  do: restore it from a copy" in done.stderr


def test_what_is_not_there_or_not_allowed_is_said(url: str) -> None:
    done = run("verify", f"{url}-none")
    assert done.exit_code == 2
    assert "outside the allowed roots" not in done.stderr
    assert f"{url}-none" in done.stderr
    done = run("inspect", "s3://shop/other")
    assert done.exit_code != 0
    assert "outside the allowed roots" in done.stderr


def test_lineage_versions_diff_and_contract_name_the_url(url: str, output: Path) -> None:
    assert f"{url}/v0002: 1,000 rows, written by rowmill" in run("lineage", url).stdout
    shown = run("versions", url).stdout
    assert shown.startswith(f"# {url}\n")
    assert re.findall(r"v000\d(?: \(_latest\))?", shown) == ["v0002 (_latest)", "v0001"]
    done = run("diff", f"{url}/v0001", "v0002")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("v0001 and v0002\n")
    assert run("diff", str(output / "v0001"), f"{url}/v0002").exit_code == 0
    done = run("contract", url)
    assert done.exit_code == 1
    assert f"{url}/v0002" in done.stderr


def test_a_report_is_copied_or_made_on_this_host(url: str, object_store: ObjectStore, tmp_path: Path) -> None:
    done = run("report", url)
    assert done.exit_code == 0, done.stderr
    made = Path(done.stdout.strip())
    assert made.is_relative_to(tmp_path / "cache")
    assert "part-00002.parquet" in made.read_text()
    object_store.put(f"{url.removeprefix('s3://shop/')}/v0001/_report.html", b"<html>as it was written</html>")
    copied = Path(run("report", f"{url}/v0001").stdout.strip())
    assert copied.read_text() == "<html>as it was written</html>"


def test_an_output_of_any_storage_is_shown(output: Path, tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    for path in (output / "v0001").rglob("*"):
        if path.is_file():
            memory.pipe(f"/shown/{tmp_path.name}/{path.relative_to(output / 'v0001')}", path.read_bytes())
    url = f"memory://shown/{tmp_path.name}"
    name = f"memory:///shown/{tmp_path.name}"
    for words in (["verify"], ["inspect"], ["report"], ["lineage"], ["versions"], ["diff", url]):
        done = CliRunner().invoke(app, [words[0], url, *words[1:]], env={"COLUMNS": "400"})
        assert done.exit_code == 0, f"{words}: {done.stderr}"
        assert words[0] != "versions" or f"| {tmp_path.name} |" in done.stdout.replace("\\", "")
        assert words[0] not in ("inspect", "lineage", "versions") or name in done.stdout
    assert next(iter(loader(url, batch_size=100, shuffle=False))).num_rows == 100
