"""Files behind URLs: as many bytes as are needed are fetched, a changed one is noticed, and no URL becomes a folder."""

from __future__ import annotations

import gzip
import io
import threading
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from tasks import ops
from tasks.core.plan import Plan
from tasks.core.settings import Source
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError
from tasks.sources.planning import make_plan
from tasks.sources.reader import read
from tasks.storage.files import check_unchanged, expand, read_range
from tasks.storage.staging import Staging
from tasks.workflow import Workflow
from tests.faults.jobs import make_job
from tests.object_store import ObjectStore

ROWS, COLUMNS = 400_000, 6


@pytest.fixture(scope="module")
def table() -> pa.Table:
    draws = np.random.default_rng(0)
    return pa.table({f"c{i}": draws.integers(0, 2**62, ROWS) for i in range(COLUMNS)})


def as_avro(table: pa.Table, sink: Any) -> None:
    record = {"type": "record", "name": "R", "fields": [{"name": n, "type": "long"} for n in table.column_names]}
    fastavro.writer(sink, record, table.to_pylist())


def as_lines(table: pa.Table, sink: Any) -> None:
    columns = [column.to_pylist() for column in table.columns]
    for row in zip(*columns, strict=True):
        sink.write(("{" + ", ".join(f'"c{i}": {v}' for i, v in enumerate(row)) + "}\n").encode())


def as_arrow(table: pa.Table, sink: Any) -> None:
    with pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table, max_chunksize=50_000)


def packed(table: pa.Table, sink: Any) -> None:
    plain = io.BytesIO()
    pacsv.write_csv(table, plain)
    sink.write(gzip.compress(plain.getvalue(), 1))


WRITERS: dict[str, Callable[[pa.Table, Any], Any]] = {
    "parquet": partial(pq.write_table, row_group_size=50_000), "arrow": as_arrow, "orc": orc.write_table,
    "avro": as_avro, "csv": pacsv.write_csv, "jsonl": as_lines, "csv.gz": packed,
}  # fmt: skip
# How often all bytes are fetched to plan (where nothing in the file says how many rows it has), and of a share of
# columns; then all rows are read. Text is kept on this host.
PLANNED = {"parquet": 0.1, "arrow": 0.25, "orc": 0.25, "avro": 1.05, "csv": 1.05, "jsonl": 1.05, "csv.gz": 1.05}
ONE_COLUMN = {"parquet": 0.2, "arrow": 0.2, "orc": 0.25}


def fetched(store: ObjectStore, work: Callable[[], Any]) -> tuple[int, Any]:
    with store.proxy.counting() as traffic:
        done = work()
    return traffic.fetched, done


@pytest.mark.system
@pytest.mark.parametrize("name", WRITERS)
def test_no_more_is_fetched_than_is_read(name: str, object_store: ObjectStore, table: pa.Table) -> None:
    options = object_store.options
    rows = table if name in ("parquet", "csv") else table.slice(0, 100_000)
    sink = io.BytesIO()
    WRITERS[name](rows, sink)
    content = sink.getvalue()
    object_store.put(f"{name}/a.{name}", content)
    source = Source(path=f"s3://shop/{name}", storage_options=options)
    nbytes, plan = fetched(object_store, lambda: make_plan(source))
    assert nbytes < PLANNED[name] * len(content) + 300_000
    nbytes, found = fetched(object_store, lambda: [read(plan, i) for i in range(len(plan.partitions))])
    assert sum(part.num_rows for part in found) == len(rows)
    assert nbytes < (0.01 if name in ("csv", "jsonl", "csv.gz") else 1.05) * len(content) + 300_000
    if name in ONE_COLUMN:
        nbytes, found = fetched(object_store, lambda: [read(plan, i, ["c3"]) for i in range(len(plan.partitions))])
        assert pa.concat_tables(found)["c3"].to_pylist()[:1000] == rows["c3"].to_pylist()[:1000]
        assert nbytes < ONE_COLUMN[name] * len(content) + 300_000


@pytest.mark.system
@pytest.mark.parametrize("source", ["lake", "lake/*", "lake/**", "lake/day=*"])
def test_empty_objects_that_stand_for_folders_are_not_files(source: str, object_store: ObjectStore) -> None:
    for key in ("lake/", "lake/day=1/", "lake/day=2_$folder$", "lake/empty/"):
        object_store.put(key, b"")
    object_store.put("lake/day=1/a.csv", b"x\n1\n")
    assert [file.path for file in expand(f"s3://shop/{source}", object_store.options)] == ["s3://shop/lake/day=1/a.csv"]


@pytest.mark.system
def test_an_object_that_is_replaced_is_noticed_by_its_etag(object_store: ObjectStore) -> None:
    options = object_store.options
    object_store.put("etag/a.csv", b"x\n1\n2\n")
    plan = make_plan(Source(path="s3://shop/etag/a.csv", storage_options=options))
    plan = Plan.from_json(plan.to_json()).with_storage_options(options)
    assert plan.files[0].version != ""
    assert read(plan, 0).num_rows == 2
    check_unchanged(plan.files, options)
    object_store.put("etag/a.csv", b"x\n3\n4\n")  # of the same size, within the same second
    assert read(plan, 0)["x"].to_pylist() == [1, 2]  # what was fetched is all of one version
    with pytest.raises(DataError, match=r"its version was .* and is") as error:
        check_unchanged(plan.files, options)
    assert error.value.where == "s3://shop/etag/a.csv"
    object_store.put("etag/b.csv", b"x\n5\n")  # what was listed before is not believed
    assert len(expand("s3://shop/etag", options)) == 2


@pytest.mark.system
def test_many_files_are_looked_at_again_with_a_listing(object_store: ObjectStore) -> None:
    options = object_store.options
    for number in range(120):
        object_store.put(f"again/day={number % 7}/{number}.csv", b"x\n1\n")
    files = expand("s3://shop/again", options)
    with object_store.proxy.counting() as traffic:
        check_unchanged(files, options)
    assert traffic.by_kind == {"list": 1}
    object_store.put("again/day=1/1.csv", b"x\n2\n")
    with pytest.raises(DataError, match="its version was") as error:
        check_unchanged(files, options)
    assert error.value.where == "s3://shop/again/day=1/1.csv"
    object_store.backend.delete_object("shop", "again/day=1/1.csv")
    with pytest.raises(DataError, match="a file cannot be read"):
        check_unchanged(files, options)


class Ranges(SimpleHTTPRequestHandler):
    """A server of files that answers ranges, and counts what it sends."""

    sent = 0

    def do_GET(self) -> None:
        content = (Path(self.directory) / self.path.strip("/")).read_bytes()
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        part = content[int(first) : int(last or len(content)) + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)
        Ranges.sent += len(part)

    def log_message(self, *arguments: Any) -> None:
        return


@pytest.mark.system
def test_over_http_too(tmp_path: Path, table: pa.Table) -> None:
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=50_000)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Ranges, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        url, size = f"http://127.0.0.1:{server.server_port}/a.parquet", (tmp_path / "a.parquet").stat().st_size
        plan = make_plan(Source(path=url))
        assert Ranges.sent < 0.1 * size
        Ranges.sent = 0
        assert sum(read(plan, i, ["c1"]).num_rows for i in range(len(plan.partitions))) == ROWS
        assert Ranges.sent < 0.2 * size
        assert len(read_range(url, 1000, 2000)) == 1000
        pq.write_table(table.slice(1), tmp_path / "a.parquet")
        with pytest.raises(DataError, match="changed during the run"):
            read(plan, 0)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# A URL where a folder is meant


def test_a_url_never_becomes_a_folder_of_this_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.job.job import make_application, make_job
    from flows.sample import make_sample
    from flows.watch_source import watch_source

    monkeypatch.chdir(tmp_path)
    workflow = Workflow(["x"] >> ops.Normalize())
    made = workflow.fit_transform(Dataset(pa.table({"x": [1.0, 2.0]})))

    def job(**sections: Any) -> Any:
        return make_job(job_of(tmp_path, **sections))

    refused: list[Callable[[], Any]] = [
        lambda: Workflow.load("s3:/shop/fitted"),
        lambda: made.to_parquet("s3:/shop/out"),
        lambda: make_sample("toy", Path("s3://shop/sample"), 10),
        lambda: job(run={"scratch": "s3://shop/scratch"}),
        lambda: job(cluster={"kind": "cpu", "local_directory": "s3://shop/spill"}),
        lambda: make_application({"fitted": "s3:/shop/f", "source": {"path": "a"}, "output": {"path": "out"}}),
        lambda: watch_source.fn("s3://shop/in", state="s3://shop/state"),
        lambda: Staging("out", "gs://shop/scratch"),
    ]
    for call in refused:
        with pytest.raises(JobError, match="is not a local folder"):
            call()
    assert list(tmp_path.iterdir()) == []


def job_of(folder: Path, **sections: Any) -> dict[str, Any]:
    return make_job("in", folder / "out", **sections)
