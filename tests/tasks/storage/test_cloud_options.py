"""Options and credentials of object stores: their names, the chain of a cloud, plain HTTP, and that none is shown."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import JobError, RowmillError
from tasks.storage.cloud_options import cloud_options, kind_of, unknown_options
from tasks.storage.fsspec_store import FsspecStore
from tasks.storage.object_store import ObjectStore
from tasks.storage.stores import open_store
from tests.object_store import ObjectStore as Server
from tests.object_store import fail_share

needs_obstore = pytest.mark.skipif(not importlib.util.find_spec("obstore"), reason="needs obstore: pip install '.[s3]'")


@pytest.fixture(autouse=True)
def no_cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A host without credentials."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "ROWMILL_RETRY"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("url", "options", "config"),
    [
        ("s3://shop/a", {"key": "A", "secret": "B", "token": "C"},
         {"access_key_id": "A", "secret_access_key": "B", "session_token": "C"}),
        ("s3a://shop", {"anon": True, "client_kwargs": {"region_name": "eu-west-1"}},
         {"skip_signature": True, "region": "eu-west-1"}),
        ("s3://shop", {"endpoint_url": "https://store:9000/", "use_listings_cache": False, "profile": None},
         {"endpoint": "https://store:9000"}),
        ("s3://shop", {"access_key_id": "A", "request_payer": True}, {"access_key_id": "A", "request_payer": True}),
        ("gs://shop", {"token": {"client_email": "a@b"}, "project": "p"},
         {"service_account_key": '{"client_email": "a@b"}'}),
        ("gcs://shop", {"token": "anon"}, {"skip_signature": True}),
        ("gs://shop", {"token": "google_default"}, {}),
        ("abfs://logs@shop.dfs.core.windows.net/a", {"sas_token": "sig=x"},
         {"sas_key": "sig=x", "account_name": "shop"}),
        ("az://logs", {"connection_string": "AccountName=shop;AccountKey=a+b==;EndpointSuffix=core.windows.net"},
         {"account_name": "shop", "account_key": "a+b=="}),
    ],
)  # fmt: skip
def test_options_have_the_names_of_fsspec_or_obstore(url: str, options: dict[str, Any], config: dict[str, Any]) -> None:
    kind = kind_of(url)
    assert kind
    assert unknown_options(kind, options) == []
    found = cloud_options(url, options)
    assert found.config == config
    assert found.bucket == ("logs" if kind == "azure" else "shop")


def test_no_secret_is_shown() -> None:
    assert "hidden" not in repr(cloud_options("s3://shop", {"key": "AKIA", "secret": "hidden"}))


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:9000", "http://localhost", "http://[::1]:9000", "https://store"]
)
def test_an_endpoint_of_this_host_or_with_tls_is_used(endpoint: str) -> None:
    assert cloud_options("s3://shop", {"endpoint_url": endpoint}).config["endpoint"] == endpoint


@pytest.mark.promise("Plain HTTP is refused", "infra/README.md#object-stores")
def test_plain_http_to_another_host_needs_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"endpoint_url": "http://10.0.0.5:9000"}
    with pytest.raises(JobError, match=r"its endpoint is http://10\.0\.0\.5") as error:
        cloud_options("s3://shop", options)
    assert '"allow_http": true in the options of the storage' in error.value.do
    assert cloud_options("s3://shop", {**options, "allow_http": True}).client["allow_http"] is True
    for host in ("http://127.0.0.1.example.com", "http://localhost.example.com", "http://127.0.0.1@example.com"):
        with pytest.raises(JobError, match="plain HTTP"):
            cloud_options("s3://shop", {"endpoint_url": host})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store:9000")
    with pytest.raises(JobError, match="plain HTTP"):
        cloud_options("s3://shop", {})
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    assert cloud_options("s3://shop", {}).config["endpoint"] == "http://store:9000"


def test_how_long_requests_are_tried_is_set_by_the_host_or_the_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cloud_options("s3://shop", {}).retry_seconds == 180
    monkeypatch.setenv("ROWMILL_RETRY_SECONDS", "20")
    assert cloud_options("s3://shop", {}).retry_seconds == 20
    assert cloud_options("s3://shop", {"retry_seconds": 5}).retry_seconds == 5
    monkeypatch.setenv("ROWMILL_RETRY_SECONDS", "soon")
    with pytest.raises(JobError, match="'soon' is not a number of seconds"):
        cloud_options("s3://shop", {})


@needs_obstore
def test_options_of_fsspecs_client_alone_are_left_to_it() -> None:
    keys = {"key": "A", "secret": "B"}
    assert isinstance(open_store("s3://shop", keys), ObjectStore)
    assert open_store("s3://shop/a", keys) is open_store("s3://shop/b", dict(keys))
    assert open_store("s3://shop/a", keys) is not open_store("s3://shop/a", {**keys, "key": "C"})
    with pytest.raises(JobError, match="Missing SecretAccessKey"):
        open_store("s3://shop/a", {"key": "A"})
    pytest.importorskip("s3fs")
    assert isinstance(open_store("s3://shop", {**keys, "s3_additional_kwargs": {"ACL": "private"}}), FsspecStore)


# What signs the requests


def signer(server: Server, options: dict[str, Any] | None = None) -> str:
    """The key that signs a request to the server."""
    with server.proxy.counting() as traffic, pytest.raises(RowmillError):
        open_store("s3://shop", options).stat("s3://shop/none")
    assert traffic.by_kind == {"head": 1}
    header = traffic.requests[0].headers.get("authorization", "")
    return header.partition("Credential=")[2].partition("/")[0]


@pytest.mark.promise("take precedence over all of these", "infra/README.md#object-stores")
@pytest.mark.system
def test_keys_come_from_options_environment_or_profile(
    object_store: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", object_store.proxy.url)
    (tmp_path / ".aws").mkdir()
    text = "[default]\naws_access_key_id = DEFAULT\naws_secret_access_key = d\n"
    text += "[night]\naws_access_key_id = NIGHT\naws_secret_access_key = n\n"
    (tmp_path / ".aws" / "credentials").write_text(text)
    assert signer(object_store) == "DEFAULT"
    monkeypatch.setenv("AWS_PROFILE", "night")
    assert signer(object_store) == "NIGHT"
    assert signer(object_store, {"profile": "default"}) == "DEFAULT"
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "e")
    assert signer(object_store) == "ENVIRONMENT"
    assert signer(object_store, {"key": "OPTION", "secret": "o"}) == "OPTION"
    assert signer(object_store, {"anon": True}) == ""
    with pytest.raises(JobError, match="the AWS profile cannot be used"):
        open_store("s3://shop", {"profile": "none"})


@pytest.mark.system
def test_messages_show_no_secret(object_store: Server) -> None:
    options = {**object_store.options, "secret": "very-hidden", "retry_seconds": 0}
    store = open_store("s3://shop", options)
    for fault in (403, 500, 404, "cut"):
        with object_store.proxy.failing(fail_share(1, 0, fault)), pytest.raises(RowmillError) as error:
            store.stat("s3://shop/a")
        assert "very-hidden" not in str(error.value)
        assert "testing" not in str(error.value)
    sas = {"account_name": "shop", "sas_token": "sig=very-hidden&se=2030", "endpoint": object_store.proxy.url}
    sas["retry_seconds"] = "0"
    with object_store.proxy.failing(fail_share(1, 0, 500)), pytest.raises(RowmillError) as error:
        open_store("abfs://logs/a", sas).stat("abfs://logs/a")
    assert "very-hidden" not in str(error.value)
