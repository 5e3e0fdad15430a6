"""Tables of both formats on an S3 server: what is opened, and where it lies."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog import load_catalog

from tests.object_store import KEYS, ObjectStore
from tests.tasks.lake.tables import plan_of, rows_of, table_of

pytestmark = pytest.mark.system


def test_a_table_of_iceberg_is_read_from_a_bucket(
    object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    table = catalog.create_table("shop.clicks", pa.schema([("x", pa.int64()), ("name", pa.string())]))
    for number in range(3):
        table.append(table_of({"x": [number], "name": ["a"]}))
    with object_store.proxy.counting() as traffic:
        plan = plan_of(iceberg="lake.shop.clicks", filter="x == 1", storage_options=object_store.options)
        assert rows_of(plan) == [{"x": 1, "name": "a"}]
    opened = {request.path for request in traffic.requests if request.path.endswith(".parquet")}
    assert len(opened) == 1


def test_a_table_of_delta_is_read_from_a_bucket(object_store: ObjectStore) -> None:
    options = {
        "access_key_id": KEYS["key"], "secret_access_key": KEYS["secret"], "endpoint": object_store.proxy.url,
        "region": "us-east-1", "allow_http": "true", "aws_conditional_put": "etag",
    }  # fmt: skip
    for number in range(3):
        rows = table_of({"x": [number], "day": [f"d {number}"]})
        write_deltalake("s3://shop/delta", rows, mode="append", partition_by=["day"], storage_options=options)
    with object_store.proxy.counting() as traffic:
        plan = plan_of(delta="s3://shop/delta", filter="day == 'd 1'", storage_options=object_store.options)
        assert rows_of(plan) == [{"x": 1, "day": "d 1"}]
    opened = {request.path for request in traffic.requests if request.path.endswith(".parquet")}
    assert len(opened) == 1
