"""A run whose source is on an object store says what it fetched, and its credentials appear nowhere."""

from __future__ import annotations

import os
import sqlite3
import uuid
from pathlib import Path
from typing import Any

import pytest

from tasks.core import storage_traffic
from tasks.core.storage_traffic import REQUESTS
from tasks.manifest import Manifest
from tests.flows.runs import run_flow
from tests.flows.test_preprocess import job, logs

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("flows")]
KINDS = {"get": "storage_gets", "list": "storage_lists", "head": "storage_heads"}


@pytest.mark.promise("the requests to storages, by kind", "flows/OPERATIONS.md#what-a-run-took")
@pytest.mark.promise("the bytes of files that storages sent and took; the report draws them over time")
@pytest.mark.promise("in no plan, manifest, log or artifact", "infra/README.md#secrets")
def test_what_a_run_fetches_is_counted_and_its_credentials_appear_nowhere(
    tmp_path: Path, prefect_server: Any, cluster: Any, object_store: Any, capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    from prefect.blocks.system import Secret

    secret, token = f"s3cr3t-{uuid.uuid4().hex}", f"t0k-{uuid.uuid4().hex}"
    for path in logs(tmp_path / "data", 0, 3000, files=3).iterdir():
        object_store.put(f"traffic/{path.name}", path.read_bytes())
    Secret(value={**object_store.options, "secret": secret, "token": token}).save("traffic", overwrite=True)
    wanted = job(tmp_path, path="s3://shop/traffic", storage_options="traffic")
    wanted["run"] = {"storage_price": {"gb": 1000, "thousand_requests": 1}}
    before = storage_traffic.totals()
    with object_store.proxy.counting() as traffic:
        (out,) = run_flow(wanted, cluster)
    of_this_process = storage_traffic.since(before)
    data = Manifest.load(out).data
    for kind, name in KINDS.items():
        assert data.get(name, 0) + of_this_process.get(name, 0) == traffic.count(kind)
        assert data.get(name, 0) == sum(stage.get(name, 0) for stage in data["stages"].values())
    assert data["storage_bytes_read"] + of_this_process.get("storage_bytes_read", 0) == traffic.fetched
    assert data["stages"]["statistics"]["storage_gets"] >= 3
    price = data["storage_bytes_read"] / 10**6 + sum(data.get(name, 0) for name in REQUESTS) / 1000
    assert data["storage_cost"] == pytest.approx(price)
    text = (out / "_report.html").read_text()
    assert "from storages (" in text
    assert "read from storages, bytes per second" in text

    server = Path(os.environ["PREFECT_HOME"])
    database = sqlite3.connect(f"file:{server}/prefect.db?mode=ro", uri=True)
    dump = "\n".join(database.iterdump())
    database.close()
    assert str(out) in dump  # what is looked through is what has the run
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    shown = [dump, (server / "rowmill-server.log").read_text(errors="replace"), caplog.text, *capfd.readouterr()]
    for marked in (secret, token):
        assert not any(marked in text for text in shown)
        assert not any(marked.encode() in content for content in written)
