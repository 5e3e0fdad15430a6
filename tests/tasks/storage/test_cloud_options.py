"""Options and credentials of object stores: their names, the chain of a cloud, plain HTTP, and that none is shown."""

from __future__ import annotations

import importlib.util
import json
import os
import threading
import time
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import JobError, RowmillError
from tasks.storage import object_store as object_store_module
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


def signers(server: Server, requests: int, options: dict[str, Any]) -> list[str]:
    """The keys that sign requests of one client."""
    store = open_store("s3://shop", options)
    keys = []
    for _ in range(requests):
        time.sleep(0.15)  # the client asks for credentials ten times a second at most
        with server.proxy.counting() as traffic, pytest.raises(RowmillError):
            store.stat("s3://shop/none")
        keys.append(traffic.requests[0].headers["authorization"].partition("Credential=")[2].partition("/")[0])
    return keys


@pytest.mark.promise("and renewed while a run lasts", "infra/README.md#object-stores")
@pytest.mark.system
def test_what_a_profile_s_command_prints_is_renewed(
    object_store: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As single sign-on does it: credentials that expire, of a command."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", object_store.proxy.url)
    monkeypatch.setattr(object_store_module, "PROFILE_SECONDS", 0.0)
    expires = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()  # boto3 renews what expires within ten minutes
    answer = {"Version": 1, "SecretAccessKey": "s", "SessionToken": "t", "Expiration": expires}
    text = json.dumps({**answer, "AccessKeyId": "KEY"}).replace('"', '\\"')
    script = tmp_path / "print-keys"
    script.write_text(
        f'#!/bin/sh\necho >> {tmp_path}/calls\necho "{text}" | sed "s/KEY/KEY$(wc -l < {tmp_path}/calls)/"\n'
    )
    script.chmod(0o755)
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text(f"[default]\ncredential_process = {script}\n")
    first, second, third = signers(object_store, 3, {"retry_seconds": 21})
    assert first.startswith("KEY")
    assert int(first[3:]) < int(second[3:]) < int(third[3:])


@pytest.mark.parametrize("works_once", [False, True])
@pytest.mark.system
def test_what_a_profile_s_command_prints_is_not_shown_when_it_fails(
    object_store: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, works_once: bool
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", object_store.proxy.url)
    monkeypatch.setattr(object_store_module, "PROFILE_SECONDS", 0.0)
    expires = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
    answer = {"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "s", "Expiration": expires}
    (tmp_path / "answer").write_text(json.dumps(answer))
    script = tmp_path / "print-keys"
    first = f"mv {tmp_path}/answer {tmp_path}/moved && exec cat {tmp_path}/moved" if works_once else ""
    script.write_text(f"#!/bin/sh\n{first}\necho very-hidden >&2\nexit 3\n")
    script.chmod(0o755)
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text(f"[default]\ncredential_process = {script}\n")
    with pytest.raises(JobError, match="from custom-process") as error:
        open_store("s3://shop", {"retry_seconds": 23}).stat("s3://shop/a")
    assert "very-hidden" not in str(error.value)


class Metadata(BaseHTTPRequestHandler):
    """The metadata service of an instance: each answer has a key of its own, which expires in a minute."""

    answers = 0

    def do_PUT(self) -> None:
        self._answer("token")

    def do_GET(self) -> None:
        if not self.path.endswith("/night"):
            self._answer("night")
            return
        Metadata.answers += 1
        expires = datetime.now(UTC) + timedelta(minutes=1)
        keys = {"AccessKeyId": f"ROLE{Metadata.answers}", "SecretAccessKey": "s", "Token": "t", "Code": "Success"}
        times = {"Expiration": expires.isoformat(), "LastUpdated": "2026-01-01T00:00:00Z", "Type": "AWS-HMAC"}
        self._answer(json.dumps(keys | times))

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments: Any) -> None:
        return


@pytest.mark.system
def test_the_keys_of_an_instance_s_role_are_renewed(object_store: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL", object_store.proxy.url)
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        assert signers(object_store, 3, {"retry_seconds": 22}) == ["ROLE1", "ROLE2", "ROLE3"]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


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
