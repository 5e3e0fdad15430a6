"""The options of a remote storage appear nowhere: not at the server, in logs, outputs or work in progress, failed or
not."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import sqlite3
import uuid
from pathlib import Path
from typing import Any

import dask
import distributed  # noqa: F401 - its settings must be there before one of them is changed
import pytest
from prefect import get_client
from prefect.blocks.system import Secret

from tasks.errors import DataError, JobError, TransientError
from tasks.storage.credentials import StorageOptions, call_masked, mask_secrets, storage
from tasks.storage.files import expand
from tests.faults import vault
from tests.faults.jobs import digests, make_data, make_job, run_flow

pytestmark = pytest.mark.xdist_group("faults")


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefect_server: Any) -> str:
    """What opens the vault, in a Secret block called shop; another one stands in the environment."""
    made = f"t0k-{uuid.uuid4().hex}"
    make_data(tmp_path / "vault" / "data", files=2, rows=100)
    (tmp_path / "vault" / "broken").mkdir()
    (tmp_path / "vault" / "broken" / "0.parquet").write_bytes(b"PAR1")
    monkeypatch.setenv(vault.FOLDER, str(tmp_path / "vault"))
    monkeypatch.setenv(vault.DIGEST, hashlib.sha256(made.encode()).hexdigest())
    monkeypatch.setenv("ROWMILL_STORAGE_WRONG", json.dumps({"token": f"{made}-wrong"}))
    Secret(value={"token": made}).save("shop", overwrite=True)
    return made


def at_the_server() -> str:
    """All that the server keeps, as SQL, and what it has logged."""
    home = Path(os.environ["PREFECT_HOME"])
    database = sqlite3.connect(f"file:{home}/prefect.db?mode=ro", uri=True)
    try:
        dump = "\n".join(database.iterdump())
    finally:
        database.close()
    return dump + (home / "rowmill-server.log").read_text(errors="replace")


@pytest.mark.promise("are in no plan, manifest, log or artifact, and errors show `***` instead")
@pytest.mark.promise("`the storage cannot be read`")
@pytest.mark.promise("secrets never appear in a job, a log or an output")
def test_a_token_appears_nowhere(
    tmp_path: Path, token: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)

    def run(folder: str) -> Any:
        how = {"scratch": str(tmp_path / "scratch"), "retries": 0}
        job = make_job(f"vault://{folder}", tmp_path / "out", source={"storage_options": "shop"}, run=how)
        with dask.config.set({"distributed.worker.preload": ["tests.faults.vault"]}):
            return run_flow(job)

    broken = run("broken")
    assert "the session of token=*** was closed" in broken.message
    assert run("data").is_completed()
    assert len(digests(tmp_path / "out")) == 5

    with get_client(sync_client=True) as client:
        logs = "".join(f"{log.message}\n" for log in client.read_logs(limit=200))
    files = [p for folder in ("out", "scratch") for p in (tmp_path / folder).rglob("*") if p.is_file()]
    assert files
    everything = [at_the_server(), logs, caplog.text, *capfd.readouterr(), broken.message]
    assert not any(token in text for text in everything)
    assert not any(token.encode() in p.read_bytes() for p in files)
    assert str(tmp_path / "out") in everything[0]  # what was looked through is what holds the run


@pytest.mark.promise("`are not known`")
def test_options_are_looked_up_where_they_are_used_and_a_pickle_holds_their_name(token: str) -> None:
    options = storage("shop")
    assert dict(options) == {"token": token}
    sent = pickle.dumps(options)
    assert token.encode() not in sent
    assert dict(pickle.loads(sent)) == {"token": token}  # noqa: S301
    assert token not in repr(options)
    assert token not in repr(storage({"token": token}))
    with pytest.raises(JobError, match=r"'shopp' are not known(.|\n)*ROWMILL_STORAGE_SHOPP(.|\n)*Secret block 'shopp'"):
        storage("shopp")
    with pytest.raises(DataError, match=r"vault://data(.|\n)*403: the token \*\*\* is not known here"):
        expand("vault://data", storage("wrong"))


@pytest.mark.promise("or in the Prefect Secret block of that name")
def test_blocks_by_type_and_name_and_what_is_no_object(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.filesystems import RemoteFileSystem

    RemoteFileSystem(basepath="s3://bucket", settings={"key": "k1", "secret": "s1"}).save("bucket", overwrite=True)
    assert dict(storage("remote-file-system/bucket")) == {"key": "k1", "secret": "s1"}
    Secret(value=json.dumps({"token": "as text"})).save("text", overwrite=True)
    assert dict(storage("secret/text")) == {"token": "as text"}
    Secret(value="hunter2").save("plain", overwrite=True)
    with pytest.raises(JobError, match="storage options are a JSON object") as refused:
        storage("plain")
    assert "hunter2" not in str(refused.value)
    with pytest.raises(JobError, match="types: secret, remote-file-system"):
        storage("slack-webhook/x")
    monkeypatch.setenv("ROWMILL_STORAGE_SHOP", '{"token": "of the environment"}')
    assert dict(storage("shop")) == {"token": "of the environment"}


@pytest.mark.promise("`aws-credentials/shop` a block by its type", "infra/README.md#secrets")
def test_credentials_of_clouds_under_the_names_of_their_file_systems() -> None:
    from tasks.stages.storage_blocks import BLOCKS

    aws = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "eu-1", "aws_session_token": None}
    assert BLOCKS["aws-credentials"](aws) == {"key": "k", "secret": "s", "client_kwargs": {"region_name": "eu-1"}}
    minio = {
        "minio_root_user": "u",
        "minio_root_password": "p",
        "aws_client_parameters": {"endpoint_url": "http://h:9"},
    }
    assert BLOCKS["minio-credentials"](minio) == {
        "key": "u", "secret": "p", "client_kwargs": {"endpoint_url": "http://h:9"},
    }  # fmt: skip
    assert BLOCKS["gcp-credentials"]({"service_account_info": {"a": 1}}) == {"token": {"a": 1}}


def test_errors_keep_their_kind_and_lose_their_secrets() -> None:
    options = StorageOptions(
        {"secret": "s3cr/et", "client_kwargs": {"endpoint_url": "http://store:9000"}, "anon": False}
    )
    assert mask_secrets("s3cr/et and s3cr%2Fet at http://store:9000", options) == "*** and *** at http://store:9000"

    def fail(error: Exception, cause: Exception | None = None) -> None:
        raise error from cause

    said = DataError("a file cannot be read", where="s3://b?x=s3cr/et", why="s3cr/et", do="fix it")
    with pytest.raises(DataError) as told:
        call_masked(options, fail, said)
    assert str(told.value) == "a file cannot be read\n  where: s3://b?x=***\n  why: ***\n  do: fix it"
    with pytest.raises(TransientError, match=r"OSError: no answer") as hidden:
        call_masked(options, fail, OSError("no answer"), ValueError("signed with s3cr/et"))
    assert hidden.value.__cause__ is hidden.value.__context__ is None
    plain = OSError("no answer")
    with pytest.raises(OSError, match="no answer") as same:
        call_masked(options, fail, plain)
    assert same.value is plain
