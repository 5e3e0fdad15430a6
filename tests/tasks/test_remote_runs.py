"""Whole runs whose source is on an object store: what they fetch, and that failing requests change no byte."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from tasks import ops
from tasks.dataset import Dataset
from tasks.sources.formats import parquet_chunks
from tasks.sources.formats.parquet_chunks import chunk_ranges
from tasks.workflow import Workflow
from tests.object_store import ObjectStore, fail_share

pytestmark = pytest.mark.system

FILES, GROUPS, ROWS = 2, 3, 20_000
USED = ["word", "price"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, object_store: ObjectStore) -> Path:
    """A local folder; the same files are below s3://shop/runs."""
    place = tmp_path_factory.mktemp("runs")
    for number in range(FILES):
        draws = np.random.default_rng(number)
        rows = GROUPS * ROWS
        table = pa.table({
            "word": draws.integers(0, 5_000, rows).astype(str),
            "unused": draws.integers(0, 2**62, rows),
            "price": draws.random(rows),
            "more": draws.random(rows),
        })  # fmt: skip
        path = place / f"part-{number}.parquet"
        pq.write_table(table, path, row_group_size=ROWS)
        object_store.put(f"runs/{path.name}", path.read_bytes())
    return place


def digests_of(dataset: Dataset, out: Path) -> dict[str, str]:
    features = (["word"] >> ops.Categorify()) + (["price"] >> ops.Normalize())
    workflow = Workflow(features)
    workflow.fit_transform(dataset).to_parquet(str(out), files=2, shuffle="full")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.glob("*.parquet"))}


def remote(store: ObjectStore) -> Dataset:
    parquet_chunks.footers.forget()
    return Dataset("s3://shop/runs", storage_options=store.options)


def test_a_run_fetches_what_its_passes_need(tmp_path: Path, folder: Path, object_store: ObjectStore) -> None:
    with object_store.proxy.counting() as traffic:
        digests = digests_of(remote(object_store), tmp_path / "out")
    assert digests == digests_of(Dataset(str(folder)), tmp_path / "local")
    footers = [pq.read_metadata(path) for path in sorted(folder.glob("*.parquet"))]
    chunks = [chunk_ranges(footer, range(GROUPS), USED) for footer in footers]
    needed = sum(stop - start for ranges in chunks for start, stop in ranges)
    passes = 2
    assert traffic.fetched <= 1.1 * passes * needed + FILES * 64 * 2**10
    for number in range(FILES):
        gets = sum(r.kind == "get" and r.path.endswith(f"part-{number}.parquet") for r in traffic.requests)
        assert gets <= passes * len(chunks[number]) + 3


@pytest.mark.nightly
@pytest.mark.parametrize(("scheme", "server"), [("abfs", "azure_store"), ("gs", "gcs_double")])
def test_each_cloud_gives_the_same_files(
    tmp_path: Path, folder: Path, request: pytest.FixtureRequest, scheme: str, server: str
) -> None:
    store = request.getfixturevalue(server)
    for path in folder.glob("*.parquet"):
        store.put(f"runs/{path.name}", path.read_bytes())
    there = Dataset(f"{scheme}://shop/runs", storage_options=store.options)
    assert digests_of(there, tmp_path / "out") == digests_of(Dataset(str(folder)), tmp_path / "local")


@pytest.mark.promise("Text is fetched once in a run", "infra/README.md#object-stores")
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.csv.gz"])
def test_a_run_fetches_text_once(tmp_path: Path, folder: Path, object_store: ObjectStore, name: str) -> None:
    table = pq.read_table(folder / "part-0.parquet")
    local = tmp_path / name
    if name == "a.jsonl":
        local.write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))
    else:
        sink = io.BytesIO()
        pacsv.write_csv(table, sink)
        local.write_bytes(gzip.compress(sink.getvalue(), 1) if name == "a.csv.gz" else sink.getvalue())
    object_store.put(f"texts/{name}", local.read_bytes())
    with object_store.proxy.counting() as traffic:
        digests = digests_of(Dataset(f"s3://shop/texts/{name}", storage_options=object_store.options), tmp_path / "out")
    assert digests == digests_of(Dataset(str(local)), tmp_path / "local")
    assert traffic.fetched <= 1.1 * local.stat().st_size


@pytest.mark.parametrize("seed", [1, 2])
def test_a_fifth_of_all_requests_may_fail(tmp_path: Path, folder: Path, object_store: ObjectStore, seed: int) -> None:
    expected = digests_of(Dataset(str(folder)), tmp_path / "local")
    with object_store.proxy.failing(fail_share(0.2, seed, 503, 429, 500, "cut", "lost", "half")):
        assert digests_of(remote(object_store), tmp_path / "out") == expected
