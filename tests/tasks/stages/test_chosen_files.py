"""How many files an output has where the job does not say: by the rows that come out and the width of their types."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job.job import make_job
from flows.job.refit_job import make_refit
from flows.preview.job_preview import preview
from flows.preview.preview_text import sections
from flows.preview.split_files import SplitFiles
from tasks.cluster.local_pool import LocalPool
from tasks.core.row_sizes import row_width
from tasks.core.schema import Column, Schema
from tasks.core.settings import Output
from tasks.dataset import Dataset
from tasks.job.request import Request, SavedPlans
from tasks.manifest import Manifest
from tasks.shuffle import row_order
from tasks.shuffle.parts import plan_parts
from tasks.shuffle.row_order import RANGES_PER_FILE, Order, choose_files, compute_number_of_files
from tasks.stages import commit, ingest, shuffle_write, statistics, transform
from tasks.workflow import Workflow
from tests.stages import run_stages

ROWS = 100
WIDTH = 16  # bytes of two 64-bit numbers
CRITEO = Schema.from_arrow(
    pa.schema([*((f"I{n}", pa.float32()) for n in range(13)), *((f"C{n}", pa.int64()) for n in range(26))])
)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hundred rows in a file, and outputs with files of at most 64 bytes."""
    monkeypatch.setattr(row_order, "FILE_BYTES", 64)
    (tmp_path / "in").mkdir()
    rows = {"x": range(ROWS), "y": [n % 10 for n in range(ROWS)]}
    pq.write_table(pa.table(rows), tmp_path / "in" / "rows.parquet")
    return tmp_path / "in"


def job(data: Path, **sections: Any) -> dict[str, Any]:
    return {
        "source": {"path": str(data), **sections.get("source", {})},
        "features": [{"columns": ["x", "y"]}],
        "output": {"path": str(data.parent / "out"), **sections.get("output", {})},
    }


def request_of(data: Path, engine: str, **sections: Any) -> Request:
    return make_job(job(data, **sections)).request(engine)


@pytest.mark.promise("at most about 512 MB each, a multiple of 8, at most 10,000")
@pytest.mark.parametrize(
    ("rows", "schema", "files"),
    [
        (1, CRITEO, 8),
        (15_753_846, CRITEO, 8),  # 260 bytes: 4.1 GB
        (15_753_847, CRITEO, 16),
        (45_840_617, CRITEO, 24),  # the Kaggle data: 11.9 GB
        (4_373_472_329, CRITEO, 2_224),  # the 24 days: 1.1 TB
        (100_000_000_000, CRITEO, 10_000),
        (160_000_000, Schema([Column("id", pa.int64()), Column("name", pa.string())]), 16),  # 32 bytes
        (160_000_000, Schema([Column("last", pa.list_(pa.int64()))]), 24),  # 64 bytes, however long they are
        (10_000_000, Schema([Column("v", pa.list_(pa.float32()), properties={"fixed_size": 256})]), 24),  # 1,024 bytes
    ],
)
def test_files_by_rows_and_types(rows: int, schema: Schema, files: int) -> None:
    assert choose_files(rows, schema) == files
    assert compute_number_of_files(Output(path="x"), rows, schema, 4) == files
    assert compute_number_of_files(Output(path="x", files=3), rows, schema, 4) == 3
    assert compute_number_of_files(Output(path="x", files_per_worker=3), rows, schema, 4) == 12
    assert compute_number_of_files(Output(path="x", rows_per_file=rows), rows, schema, 4) == 1


@pytest.mark.promise("a text counts as 24 bytes, a list as 64")
def test_the_width_of_a_row_follows_from_its_types() -> None:
    types = {"a": pa.int64(), "b": pa.bool_(), "c": pa.int16(), "t": pa.timestamp("us"), "s": pa.string()}
    lists = {"l": pa.list_(pa.int8()), "n": pa.list_(pa.list_(pa.string())), "o": pa.struct([("p", pa.int8())])}
    assert row_width(Schema.from_arrow(pa.schema(types))) == 8 + 1 + 2 + 8 + 24
    assert row_width(Schema.from_arrow(pa.schema(lists))) == 64 + 64 + 64
    assert row_width(Schema([Column("v", pa.list_(pa.string()), properties={"fixed_size": 3})])) == 72


@pytest.mark.promise("It follows the rows that come out, after filters")
@pytest.mark.parametrize(
    ("condition", "rows", "files", "nbytes"),
    [(None, 100, 32, "1.6 kB"), ("x < 33", 33, 16, "528 B"), ("x < 32", 32, 8, "512 B")],
)
@pytest.mark.parametrize("shuffle", [{"shuffle": "full"}, {"shuffle": "key", "keys": ["y"]}])
def test_a_job_chooses_by_the_rows_that_come_out(
    condition: str | None, rows: int, files: int, nbytes: str, shuffle: dict[str, Any], data: Path, engine: str
) -> None:
    request = request_of(data, engine, source={"filter": condition}, output=shuffle)
    results = run_stages(request)
    manifest = Manifest.load(data.parent / "out")

    assert len(manifest.parts) == results[-1].files == files
    assert results[-1].chosen_files == f"chosen for {nbytes} of rows of 16 bytes"
    assert manifest.data["output"]["files"] == files
    assert manifest.data["output"]["files_chosen"] == {"rows": rows, "row_bytes": WIDTH}
    found = [pq.read_table(f"{manifest.path}/{part['path']}").column("y").to_pylist() for part in manifest.parts]
    assert sum(map(len, found)) == rows
    if shuffle["shuffle"] == "key":  # each key is in one file
        assert sum(len({*of_file}) for of_file in found) == 10


@pytest.mark.promise("of each split by itself")
def test_each_split_has_files_for_its_own_rows(data: Path, engine: str) -> None:
    rule = {"by": "column", "column": "y", "valid": 1, "test": [2, 3, 4, 5]}
    run_stages(request_of(data, engine, source={"split": rule}))
    found = {name: len(Manifest.load(data.parent / "out" / name).parts) for name in ("train", "valid", "test")}
    assert found == {"train": 16, "valid": 8, "test": 16}  # 50, 10 and 40 rows


def test_the_files_of_a_small_job_are_those_of_eight_files(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_order, "FILE_BYTES", 512 * 10**6)
    digests = {}
    for name, output in {"chosen": {}, "given": {"files": 8}}.items():
        out = data.parent / name
        run_stages(request_of(data, "pandas", output={"path": str(out), "seed": 3, **output}))
        digests[name] = [(part["rows"], part["xxh3_128"]) for part in Manifest.load(out).parts]
    assert digests["chosen"] == digests["given"]
    assert len(digests["chosen"]) == 8


@pytest.mark.promise("A run that is resumed keeps it")
@pytest.mark.parametrize("exchange", ["memory", "disk"])
def test_a_resumed_run_keeps_the_number(data: Path, engine: str, exchange: str) -> None:
    request = make_job(job(data, source={"filter": "x < 40"}) | {"run": {"exchange": exchange}}).request(engine)
    begun = LocalPool(2)
    with request.staging.hold_lock():
        ingest.ingest(request, begun)
        statistics.statistics(request, begun)
        transform.transform(request, "", begun)
        first = shuffle_write.shuffle_write(request, "", begun)
        (request.staging.new / "part-00003.parquet").unlink()  # the run is cut off, and a file is damaged

        again = LocalPool(1)
        assert ingest.ingest(request, again).reused
        assert SavedPlans(request).files("") == 32  # for all rows of the source: what the positions are divided by
        statistics.statistics(request, again)
        transform.transform(request, "", again)
        second = shuffle_write.shuffle_write(request, "", again)
    assert (first.files, second.files) == (16, 16)
    assert [part["xxh3_128"] for part in second.parts] == [part["xxh3_128"] for part in first.parts]


@pytest.mark.promise("`rowmill refit` takes the number of its base, a job with a `base` chooses for its own rows")
def test_a_refit_keeps_the_number_of_its_base(data: Path) -> None:
    out = data.parent / "out"
    run_stages(request_of(data, "pandas", output={"on_existing": "version"}))
    refit = make_refit({"base": str(out), "source": {"path": str(data), "filter": "x < 20"}})
    assert refit.output.files == 32
    assert "output.files: 32" in refit.inherited


def test_from_python_the_choice_is_the_same_and_logged(
    data: Path, engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = Workflow(["x", "y"]).fit_transform(Dataset(str(data), engine=engine))
    run_stages(request_of(data, engine, output={"seed": 5}))
    by_job = Manifest.load(data.parent / "out")
    with caplog.at_level(logging.INFO, "rowmill"):
        by_call = rows.to_parquet(str(data.parent / "called"), shuffle="full", seed=5)
        in_order = rows.to_parquet(str(data.parent / "in_order"), shuffle="none")
    assert "output.files: 32, chosen for 1.6 kB of rows of 16 bytes" in caplog.messages
    assert [part["xxh3_128"] for part in by_call.parts] == [part["xxh3_128"] for part in by_job.parts]
    assert len(in_order.parts) == 32


@pytest.mark.parametrize(
    ("source", "files", "text"),
    [
        ({}, 32, "32 files, about 3 rows each, if none are dropped; chosen for 1.6 kB of rows of 16 bytes"),
        (
            {"filter": "x < 40"},
            16,
            "16 files, about 6 rows each, if none are dropped; chosen for about 640 B of rows of 16 bytes; the run "
            "counts them",
        ),
        (
            {"unique": {"keys": ["y"]}},
            32,
            "32 files, about 3 rows each, if none are dropped; chosen for at most 1.6 kB of rows of 16 bytes; the run "
            "counts them",
        ),
    ],
)
def test_a_preview_says_how_many_there_will_be(source: dict[str, Any], files: int, text: str, data: Path) -> None:
    found = preview(make_job(job(data, source=source)))
    (plan,) = [section for section in sections(found) if section.title == "Plan"]
    assert found.files[""].number == files
    assert plan.rows[-1]["reads"] == text


def test_a_preview_knows_the_shares_of_splits(data: Path) -> None:
    rule = {"by": "fraction", "valid": 0.1, "test": 0.5}
    found = preview(make_job(job(data, source={"split": rule})))
    assert {name: (of_split.number, of_split.left) for name, of_split in found.files.items()} == {
        "train": (16, 40), "valid": (8, 10), "test": (16, 50),
    }  # fmt: skip
    given = preview(make_job(job(data, output={"files": 3})))
    assert given.files == {"": SplitFiles(3, 100, 100)}


def test_hash_ranges_are_divided_among_any_number_of_files() -> None:
    """A chosen number need not be the one that the positions were divided by; each range goes to one file."""
    counts = pa.array(range(4 * RANGES_PER_FILE)).to_numpy()
    order = Order("key", 0, 1000, (0,), 8, len(counts), keys=("k",))
    output = Output(path="x", shuffle="key", keys=["k"])
    three = plan_parts(counts, output, order, 3)
    assert [(part.first, part.last, part.skip) for part in three] == [(0, 10, 0), (10, 21, 0), (21, 32, 0)]
    assert sum(part.rows for part in three) == sum(range(32))
    assert len(plan_parts(counts, output, order, 100)) == 32


def test_the_numbers_of_files_are_in_the_plan(data: Path) -> None:
    request = request_of(data, "pandas", source={"valid": str(data)})
    with request.staging.hold_lock():
        ingest.ingest(request, LocalPool(1))
        content = json.loads((request.staging.folder / "plan.json").read_text())
    assert content["files"] == {"train": 32, "valid": 32}


def test_a_run_says_it_in_its_manifest_alone_where_it_has_chosen(data: Path) -> None:
    run_stages(request_of(data, "pandas", output={"files": 2}))
    assert "files_chosen" not in Manifest.load(data.parent / "out").data["output"]
    assert commit.describe_output(0, None, [], CRITEO, Output(path="x"), "pandas", seconds=0.0, stages={})["output"][
        "files_chosen"
    ] == {"rows": 0, "row_bytes": 260}
