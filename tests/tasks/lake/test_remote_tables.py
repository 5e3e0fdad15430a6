"""Tables of both formats on an S3 server: what is opened, and where it lies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import Catalog, load_catalog

from flows.job.job import make_job
from flows.lake.plugins import TableOutputPlugin
from tests.object_store import KEYS, ObjectStore
from tests.stages import run_stages
from tests.tasks.lake.tables import in_order, plan_of, rows_of, table_of

pytestmark = pytest.mark.system


@pytest.fixture
def bucket_catalog(object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """A catalog of this host, as its settings have it, whose tables are in the bucket."""
    settings = {
        "type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": "s3://shop/warehouse",
        "s3.endpoint": object_store.proxy.url, "s3.access-key-id": KEYS["key"], "s3.secret-access-key": KEYS["secret"],
        "s3.region": "us-east-1",
    }  # fmt: skip
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    for key, value in settings.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{key.replace('.', '__').replace('-', '_').upper()}", value)
    monkeypatch.setenv("ROWMILL_ALLOWED_ROOTS", f"{tmp_path}:s3://shop/warehouse")
    catalog = load_catalog("lake", **settings)
    catalog.create_namespace("shop")
    return catalog


@pytest.fixture
def storage(object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the options of the store."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ROWMILL_STORAGE_LAKE", json.dumps(object_store.options))
    return "lake"


def delta_options(store: ObjectStore) -> dict[str, str]:
    return {
        "access_key_id": KEYS["key"], "secret_access_key": KEYS["secret"], "endpoint": store.proxy.url,
        "region": "us-east-1", "allow_http": "true", "aws_conditional_put": "etag",
    }  # fmt: skip


def test_a_table_of_iceberg_is_read_from_a_bucket(object_store: ObjectStore, bucket_catalog: Catalog) -> None:
    table = bucket_catalog.create_table("shop.clicks", pa.schema([("x", pa.int64()), ("name", pa.string())]))
    for number in range(3):
        table.append(table_of({"x": [number], "name": ["a"]}))
    with object_store.proxy.counting() as traffic:
        plan = plan_of(iceberg="lake.shop.clicks", filter="x == 1", storage_options=object_store.options)
        assert rows_of(plan) == [{"x": 1, "name": "a"}]
    opened = {request.path for request in traffic.requests if request.path.endswith(".parquet")}
    assert len(opened) == 1


def test_a_table_of_delta_is_read_from_a_bucket(object_store: ObjectStore) -> None:
    options = delta_options(object_store)
    for number in range(3):
        rows = table_of({"x": [number], "day": [f"d {number}"]})
        write_deltalake("s3://shop/delta", rows, mode="append", partition_by=["day"], storage_options=options)
    with object_store.proxy.counting() as traffic:
        plan = plan_of(delta="s3://shop/delta", filter="day == 'd 1'", storage_options=object_store.options)
        assert rows_of(plan) == [{"x": 1, "day": "d 1"}]
    opened = {request.path for request in traffic.requests if request.path.endswith(".parquet")}
    assert len(opened) == 1


def write(out: str, source: Path, rows: dict[str, Any], **more: Any) -> None:
    pq.write_table(table_of(rows), source)
    made = make_job({
        "source": {"path": str(source)}, "features": [{"columns": ["*"]}], "run": {"report": False},
        "output": {"path": out, "files": 2, "shuffle": "none", "on_existing": "version", **more},
    })  # fmt: skip
    run_stages(made.request("pandas"), plugins=[TableOutputPlugin(made)])


ROWS = [{"x": [1, 2, 3], "name": ["a", "b", None]}, {"x": [4, 5], "name": ["c", "d"]}]
ALL = [
    {"x": 1, "name": "a"},
    {"x": 2, "name": "b"},
    {"x": 3, "name": None},
    {"x": 4, "name": "c"},
    {"x": 5, "name": "d"},
]


def test_versions_in_a_bucket_become_snapshots_of_a_table_of_iceberg(
    bucket_catalog: Catalog, storage: str, tmp_path: Path
) -> None:
    for rows in ROWS:
        write(
            "s3://shop/warehouse/out",
            tmp_path / "rows.parquet",
            rows,
            iceberg="lake.shop.made",
            storage_options=storage,
        )
    table = bucket_catalog.load_table("shop.made")
    assert in_order(table.scan().to_arrow().to_pylist()) == ALL
    summaries = [snapshot.summary for snapshot in table.metadata.snapshots]
    assert [(one["rowmill.output"], one["rowmill.version"]) for one in summaries if one] == [
        ("s3://shop/warehouse/out", "v0001"),
        ("s3://shop/warehouse/out", "v0002"),
    ]


def test_versions_in_a_bucket_become_versions_of_a_table_of_delta(
    object_store: ObjectStore, storage: str, tmp_path: Path
) -> None:
    place = "s3://shop/delta-made"
    for rows in ROWS:
        write(f"{place}/rowmill", tmp_path / "rows.parquet", rows, delta=place, storage_options=storage)
    table = DeltaTable(place, storage_options=delta_options(object_store))
    assert table.version() == 1
    assert in_order(pa.table(table.to_pyarrow_table()).to_pylist()) == ALL
