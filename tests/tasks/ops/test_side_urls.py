"""Side tables behind URLs: the same columns as from a local file, ETags in fingerprints, and clear errors."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import ops
from tasks.core.settings import Output, Run, Source
from tasks.errors import DataError, HostError, JobError
from tasks.job.request import make_request
from tasks.stages.statistics import check_side_files
from tasks.workflow import Workflow
from tests.object_store import ObjectStore

pytestmark = pytest.mark.system

ROWS = pa.table({"shop": [2, 3, 1]})
TOWNS = pa.table({"shop": [1, 2], "town": ["Rome", "Oslo"], "unused": ["x" * 10**6, "y" * 10**6]})
JOINED = {"shop": [2, 3, 1], "town": ["Oslo", None, "Rome"]}


def to_parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, use_dictionary=False, compression="none")
    return sink.getvalue()


@pytest.fixture
def shop(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """The store, with side tables in it and its options under the name `shop`."""
    monkeypatch.setenv("ROWMILL_STORAGE_SHOP", json.dumps(object_store.options))
    object_store.put("side/towns.parquet", to_parquet(TOWNS))
    object_store.put("side/towns.csv", b"shop;town\n1;Rome\n2;Oslo\n")
    object_store.put("side/folder/country=it/a.parquet", to_parquet(TOWNS.slice(0, 1)))
    object_store.put("side/folder/country=no/b.parquet", to_parquet(TOWNS.slice(1)))
    object_store.put("side/folder/_SUCCESS", b"")
    return object_store


def join(table: str, **parameters: Any) -> ops.JoinExternal:
    return ops.JoinExternal(f"s3://shop/side/{table}", on="shop", storage_options="shop", **parameters)


def join_rows(operator: ops.JoinExternal) -> dict[str, list[Any]]:
    joined: dict[str, list[Any]] = Workflow(["shop"] >> operator).fit(ROWS).transform(ROWS).to_pydict()
    return joined


@pytest.mark.promise("Path or URL of a file, or of a folder of Parquet files", "tasks/ops/README.md#joinexternal")
def test_a_side_table_is_read_from_a_url(shop: ObjectStore) -> None:
    with shop.proxy.counting() as traffic:
        assert join_rows(join("towns.parquet", columns=["town"])) == JOINED
    assert traffic.fetched < 2 * 2**16 + 1_000  # two reads of the footer, and the two columns that are needed
    assert join_rows(join("towns.csv", read={"delimiter": ";"})) == JOINED
    in_folders = join_rows(join("folder", columns=["town", "country"]))
    assert in_folders == {**JOINED, "country": ["no", None, "it"]}


def test_features_of_things_are_read_from_a_url(shop: ObjectStore) -> None:
    shop.put("side/features.parquet", to_parquet(pa.table({"features": [[0, 1], [0], [2]]})))
    sim = ops.ColumnSimilarity("s3://shop/side/features.parquet", metric="inner", storage_options="shop")
    table = pa.table({"a": [0, 0, 0], "b": [0, 1, 2]})
    assert Workflow([["a", "b"]] >> sim).fit(table).transform(table).to_pydict() == {"a_b_sim": [2.0, 1.0, 0.0]}


def test_a_changed_object_is_other_work(shop: ObjectStore) -> None:
    graph = ["shop"] >> join("towns.parquet", columns=["town"])
    request = make_request(Source(path="data"), graph, Output(path="out"), Run(), "pandas")
    before = request.side_files
    fingerprint = request.state_fingerprint("plan")
    assert request.state_fingerprint("plan") == fingerprint
    assert before[0][0] == "s3://shop/side/towns.parquet"
    check_side_files(request, before)
    shop.put("side/towns.parquet", to_parquet(TOWNS.slice(0, 1)))
    assert request.state_fingerprint("plan") != fingerprint
    with pytest.raises(DataError, match="a side table changed during the run") as error:
        check_side_files(request, before)
    assert error.value.where == "s3://shop/side/towns.parquet"


def test_errors_of_a_side_table_behind_a_url_are_clear(shop: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JobError, match=r"there is no side table 's3://shop/side/none\.csv'"):
        join_rows(join("none.csv"))
    with pytest.raises(JobError, match="storage options 'else' are not known"):
        join_rows(join("towns.csv", columns=["town"]).model_copy(update={"storage_options": "else"}))
    shop.put("side/broken.parquet", b"PAR1 no footer")
    with pytest.raises(DataError, match="the side table cannot be read"):
        join_rows(join("broken.parquet"))
    refused = shop.proxy.failing(lambda request: 403 if request.path.endswith("towns.csv") else None)
    with refused, pytest.raises(JobError, match="the storage refuses this user"):
        join_rows(join("towns.csv"))
    monkeypatch.setenv("ROWMILL_ALLOWED_ROOTS", "s3://shop/logs")
    with pytest.raises(HostError, match=r"a side table = s3://shop/side/towns\.csv"):
        join_rows(join("towns.csv"))
