"""Parquet on an object store: requests and bytes are counted by a proxy, which also fails requests."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.plan import Plan
from tasks.core.settings import Source
from tasks.errors import DataError
from tasks.sources.formats import parquet_chunks
from tasks.sources.formats.parquet_chunks import chunk_ranges, footers
from tasks.sources.planning import make_plan
from tasks.sources.reader import read
from tasks.storage import ranges
from tests.object_store import ObjectStore, Request, fail_share

pytestmark = pytest.mark.system

GROUPS, ROWS, COLUMNS, FILES = 4, 20_000, 10, 3
WANTED = ["c1", "c2", "c7", "word"]


def one_table(seed: int) -> pa.Table:
    draws = np.random.default_rng(seed)
    columns: dict[str, Any] = {f"c{i}": draws.integers(0, 2**62, GROUPS * ROWS) for i in range(COLUMNS)}
    return pa.table({**columns, "word": pa.array(draws.integers(0, 500, GROUPS * ROWS).astype(str))})


@pytest.fixture(scope="module")
def files(object_store: ObjectStore) -> dict[str, bytes]:
    """What the objects below s3://shop/wide hold."""
    contents = {}
    for number in range(FILES):
        sink = io.BytesIO()
        pq.write_table(one_table(number), sink, row_group_size=ROWS)
        contents[f"wide/part-{number}.parquet"] = sink.getvalue()
    for key, content in contents.items():
        object_store.put(key, content)
    return contents


@pytest.fixture(autouse=True)
def no_footers() -> None:
    """As in a process that has read nothing."""
    footers.forget()


def needed(content: bytes, columns: list[str]) -> tuple[int, int]:
    """(bytes, number) of the column chunks of a file."""
    footer = pq.read_metadata(pa.BufferReader(content))
    chunks = chunk_ranges(footer, range(footer.num_row_groups), columns)
    return sum(stop - start for start, stop in chunks), len(chunks)


def read_whole(plan: Plan, columns: list[str] | None = None) -> pa.Table:
    return pa.concat_tables(read(plan, part, columns) for part in plan.partitions)


@pytest.mark.promise("those of several files at once", "infra/README.md#object-stores")
@pytest.mark.parametrize("columns", [WANTED, ["c9"], None])
def test_what_is_fetched_is_what_is_needed(
    columns: list[str] | None, object_store: ObjectStore, files: dict[str, bytes]
) -> None:
    source = Source(path="s3://shop/wide", storage_options=object_store.options)
    with object_store.proxy.counting() as planning:
        plan = make_plan(source)
    assert planning.count("get") == FILES
    with object_store.proxy.counting() as reading:
        table = read_whole(plan, columns)
    assert table.num_rows == FILES * GROUPS * ROWS
    everything = [f"c{i}" for i in range(COLUMNS)] + ["word"]
    counts = [needed(content, columns or everything) for content in files.values()]
    assert planning.fetched + reading.fetched <= 1.1 * sum(nbytes for nbytes, _ in counts) + FILES * 64 * 2**10
    assert reading.fetched <= 1.05 * sum(nbytes for nbytes, _ in counts)
    assert reading.count("get") <= sum(chunks for _, chunks in counts)
    assert set(reading.by_kind) == {"get"}


def test_a_process_that_did_not_plan_reads_each_footer_once(object_store: ObjectStore, files: dict[str, bytes]) -> None:
    plan = make_plan(Source(path="s3://shop/wide", storage_options=object_store.options))
    footers.forget()
    with object_store.proxy.counting() as traffic:
        for column in ("c3", "c5"):
            read_whole(plan, [column])
    assert traffic.by_kind == {"get": FILES + 2 * FILES * GROUPS}


def test_what_is_on_its_way_is_bounded(
    object_store: ObjectStore, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(Source(path="s3://shop/wide", storage_options=object_store.options))
    expected = read_whole(plan, ["c1", "c2"])
    bounded = ranges.InFlight(needed(files["wide/part-0.parquet"], ["c1", "c2"])[0] + 1_000_000)
    monkeypatch.setattr(parquet_chunks, "in_flight", bounded)
    assert read_whole(plan, ["c1", "c2"]).equals(expected)
    assert 0 < bounded.most <= bounded.limit
    assert bounded.take_if_free(bounded.limit)  # all was given back
    bounded.give_back(bounded.limit)
    with object_store.proxy.failing(lambda request: 404 if request.kind == "get" else None), pytest.raises(DataError):
        read_whole(plan, ["c1"])
    assert bounded.take_if_free(bounded.limit)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_fifth_of_all_requests_may_fail(object_store: ObjectStore, files: dict[str, bytes], seed: int) -> None:
    source = Source(path="s3://shop/wide", storage_options=object_store.options)
    expected = read_whole(make_plan(source))
    footers.forget()
    with object_store.proxy.failing(fail_share(0.2, seed, 503, 429, 500, "cut", "lost", "half")):
        plan = make_plan(source)
        assert read_whole(plan).equals(expected)
    assert plan.fingerprint == make_plan(source).fingerprint


def test_an_object_that_changes_between_two_requests_is_an_error(
    object_store: ObjectStore, files: dict[str, bytes]
) -> None:
    content = files["wide/part-0.parquet"]
    object_store.put("changing/a.parquet", content)
    plan = make_plan(Source(path="s3://shop/changing", storage_options=object_store.options))
    reads = 0

    def replace_before_the_second(request: Request) -> None:
        nonlocal reads
        reads += request.kind == "get"
        if reads == 2:
            object_store.put("changing/a.parquet", content[::-1])

    with (
        object_store.proxy.failing(replace_before_the_second),
        pytest.raises(DataError, match=r"its version was .* and is"),
    ):
        read_whole(plan, ["c1", "c5"])
