"""Options of the three clouds: what a job's storage options and the environment say, as obstore takes it.

Options have the names of fsspec's file systems (s3fs, gcsfs, adlfs), which rowmill has always taken, or those of
obstore. What is left out comes from the standard chain of the cloud: environment, profile, role of the instance.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tasks.errors import JobError

S3, GS, AZURE = "s3", "gs", "azure"
KINDS = {
    "s3": S3, "s3a": S3, "gs": GS, "gcs": GS, "abfs": AZURE, "abfss": AZURE, "az": AZURE, "azure": AZURE,
}  # fmt: skip
EXTRAS = {S3: "s3", GS: "gs", AZURE: "azure"}  # of the installation
# Our own options, next to those of the client.
RETRY_SECONDS = "retry_seconds"
ALLOW_HTTP = "allow_http"
RETRY_VARIABLE = "ROWMILL_RETRY_SECONDS"
SECONDS = 180.0  # of retries, where neither options nor environment say it
LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|\[?::1\]?", re.IGNORECASE)
SILENT_SECONDS = 30  # after which a request is tried again
LONGEST_SECONDS = 3600  # of a whole request: a large range takes its time
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")

S3_NAMES = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "username": "access_key_id",
    "password": "secret_access_key",
    "endpoint_url": "endpoint",
    "region_name": "region",
    "requester_pays": "request_payer",
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
AZURE_NAMES = {"sas_token": "sas_key", "account_host": "endpoint"}
# Options of fsspec's file systems that change nothing for what is done here.
WITHOUT_EFFECT = {
    "use_listings_cache", "skip_instance_cache", "default_block_size", "default_fill_cache", "default_cache_type",
    "asynchronous", "max_concurrency", "blocksize", "version_aware", "consistency", "check_connection",
}  # fmt: skip
KNOWN: dict[str, set[str]] = {
    S3: {
        "access_key_id", "secret_access_key", "session_token", "endpoint", "region", "skip_signature", "role_arn",
        "role_session_name", "request_payer", "virtual_hosted_style_request", "unsigned_payload", "checksum_algorithm",
        "server_side_encryption", "sse_kms_key_id", "sse_bucket_key_enabled", "sse_customer_key_base64",
        "disable_tagging", "imdsv1_fallback", "metadata_endpoint", "sts_endpoint", "web_identity_token_file",
        "disable_bulk_delete", "s3_express",
    },
    GS: {
        "service_account", "service_account_key", "application_credentials", "base_url", "skip_signature",
        "bearer_token",
    },
    AZURE: {
        "account_name", "account_key", "client_id", "client_secret", "tenant_id", "sas_key", "endpoint",
        "authority_host", "msi_endpoint", "object_id", "msi_resource_id", "federated_token_file", "use_azure_cli",
        "skip_signature", "use_emulator", "use_fabric_endpoint", "bearer_token",
    },
}  # fmt: skip


@dataclass(frozen=True)
class CloudOptions:
    """What a client of one bucket is made of."""

    kind: str
    bucket: str
    config: dict[str, Any] = field(repr=False)
    client: dict[str, Any]
    retry_seconds: float
    profile: str | None = None  # of AWS

    @property
    def retry(self) -> dict[str, Any]:
        """Backoff with jitter, until the time is over."""
        backoff = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=15), "base": 2}
        return {"max_retries": 100, "retry_timeout": timedelta(seconds=self.retry_seconds), "backoff": backoff}


def kind_of(url: str) -> str | None:
    """The cloud of a URL; None for another storage."""
    return KINDS.get(url.partition("://")[0].lower()) if "://" in url else None


def known_names(kind: str) -> set[str]:
    """The names that options of a cloud may have: those of fsspec's file system, of obstore, and our own."""
    renamed = {S3: S3_NAMES, AZURE: AZURE_NAMES}.get(kind, {})
    own = {"client_kwargs", "profile"} if kind == S3 else {"connection_string"} if kind == AZURE else {"token"}
    return {"anon", ALLOW_HTTP, RETRY_SECONDS, *own, *renamed, *KNOWN[kind]}


def unknown_options(kind: str, options: Mapping[str, Any]) -> list[str]:
    """Options that are fsspec's alone: such a storage is read by fsspec."""
    return sorted(
        name for name in _translate_options(kind, options) if name not in KNOWN[kind] | {ALLOW_HTTP, RETRY_SECONDS}
    )


def cloud_options(url: str, options: Mapping[str, Any]) -> CloudOptions:
    """The options of the bucket of a URL; a JobError for plain HTTP to another host that nothing allows."""
    kind = kind_of(url)
    assert kind
    config = _translate_options(kind, options)
    profile = options.get("profile") or (os.environ.get("AWS_PROFILE") if "access_key_id" not in config else None)
    allow = _is_true(config.pop(ALLOW_HTTP, os.environ.get("AWS_ALLOW_HTTP")))
    seconds = _read_retry_seconds(config.pop(RETRY_SECONDS, None))
    bucket = url.partition("://")[2].partition("/")[0]
    if kind == AZURE and "@" in bucket:  # abfs://container@account.dfs.core.windows.net
        bucket, _, host = bucket.partition("@")
        config.setdefault("account_name", host.partition(".")[0])
    if kind == S3:
        _complete_s3(config)
    endpoint = str(config.get("endpoint") or config.get("base_url") or "")
    client: dict[str, Any] = {
        "timeout": f"{LONGEST_SECONDS}s",
        "read_timeout": f"{SILENT_SECONDS}s",
        "connect_timeout": "10s",
    }
    if endpoint.startswith("http://"):
        _check_http(endpoint, url, allow)
        client["allow_http"] = True
    return CloudOptions(kind, bucket, config, client, seconds, profile if kind == S3 else None)


def _complete_s3(config: dict[str, Any]) -> None:
    """Add the endpoint and the region of the environment, which the client would otherwise read unchecked."""
    if "endpoint" not in config and (named := next(filter(None, map(os.environ.get, ENDPOINTS)), None)):
        config["endpoint"] = named
    if "endpoint" in config:
        config["endpoint"] = str(config["endpoint"]).rstrip("/")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region:
        config.setdefault("region", region)


def _translate_options(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options under obstore's names."""
    flat: dict[str, Any] = {}
    for name, value in options.items():
        if kind == S3 and name == "client_kwargs" and isinstance(value, Mapping):
            flat |= _translate_options(kind, value)
        elif name in WITHOUT_EFFECT or value is None or (kind == S3 and name == "profile"):
            continue
        elif name == "anon":
            flat |= {"skip_signature": True} if value else {}
        elif kind == S3:
            flat[S3_NAMES.get(name, name)] = value
        elif kind == AZURE:
            flat |= _translate_azure(name, value)
        else:
            flat |= _translate_google(name, value)
    return flat


def _translate_azure(name: str, value: Any) -> dict[str, Any]:
    if name != "connection_string":
        return {AZURE_NAMES.get(name, name): value}
    names = {
        "AccountName": "account_name", "AccountKey": "account_key", "BlobEndpoint": "endpoint",
        "SharedAccessSignature": "sas_key",
    }  # fmt: skip
    parts = dict(part.split("=", 1) for part in str(value).split(";") if "=" in part)
    return {names[key]: text for key, text in parts.items() if key in names}


def _translate_google(name: str, value: Any) -> dict[str, Any]:
    """gcsfs' `token`: the path or the content of a file of credentials, or a word for how to find them."""
    if name == "project":  # of buckets that are made
        return {}
    if name == "endpoint_url":
        return {"base_url": value}
    if name != "token":
        return {name: value}
    if isinstance(value, Mapping):
        return {"service_account_key": json.dumps(dict(value))}
    if value == "anon":
        return {"skip_signature": True}
    if value in ("google_default", "cloud"):
        return {}
    if isinstance(value, str) and Path(value).is_file():
        return {"application_credentials": value}
    return {name: value}


def _is_true(value: object) -> bool:
    return str(value).lower() in ("1", "true", "yes", "on")


def _read_retry_seconds(value: object) -> float:
    where = f"the storage option {RETRY_SECONDS}" if value is not None else RETRY_VARIABLE
    text = os.environ.get(RETRY_VARIABLE, SECONDS) if value is None else value
    try:
        seconds = float(str(text))
    except ValueError:
        seconds = -1
    if not 0 <= seconds < float("inf"):
        raise JobError(f"{text!r} is not a number of seconds", where=where, do="write a number, such as 180")
    return seconds


def _check_http(endpoint: str, url: str, allow: bool) -> None:
    host = urlsplit(endpoint).hostname or ""
    if not allow and not LOOPBACK.fullmatch(host):
        raise JobError(
            "the storage would be reached by plain HTTP",
            where=url,
            why=f"its endpoint is http://{host}: whoever is in between reads the data and the signed requests",
            do=f'use https://, or allow it on this host: "{ALLOW_HTTP}": true in the options of the storage, '
            "or AWS_ALLOW_HTTP=true",
        )
