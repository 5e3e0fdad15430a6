"""Storage options from blocks of the Prefect server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prefect import get_client as get_prefect_client
from prefect.exceptions import ObjectNotFound
from prefect.settings import get_current_settings

from tasks.core.strict_json import JsonObject
from tasks.errors import JobError
from tasks.stages.progress_artifact import prefect_client
from tasks.storage.credentials import json_object


def from_block(name: str, where: str) -> JsonObject | None:
    """Storage options in a block of the Prefect server: `name` of a Secret block, or type and name:
    aws-credentials/shop.

    None where there is no such block, or no server; a JobError for a type that is not known, at the place that has the
    name.
    """
    if not get_current_settings().api.url:
        return None
    kind, _, block = name.rpartition("/")
    kind = kind or "secret"
    if kind not in BLOCKS:
        raise JobError(
            f"blocks of the type {kind!r} hold no storage options",
            where=where,
            do=f"name a block of one of these types: {', '.join(BLOCKS)}",
        )
    with prefect_client(None), get_prefect_client(sync_client=True) as client:
        try:
            document = client.read_block_document_by_name(block, kind, include_secrets=True)
        except ObjectNotFound:
            return None
    return dict(json_object(BLOCKS[kind](document.data), f"the block {kind}/{block}"))


def _rename_aws_fields(data: JsonObject) -> dict[str, Any]:
    """Return the fields of AwsCredentials and MinIOCredentials under the names that s3fs has for them."""
    more = data.get("aws_client_parameters") or {}
    client = {"region_name": data.get("region_name"), "endpoint_url": more.get("endpoint_url")}
    options = {
        "key": data.get("aws_access_key_id") or data.get("minio_root_user"),
        "secret": data.get("aws_secret_access_key") or data.get("minio_root_password"),
        "token": data.get("aws_session_token"),
        "client_kwargs": {name: value for name, value in client.items() if value},
    }
    return {name: value for name, value in options.items() if value}


BLOCKS: dict[str, Callable[[JsonObject], Any]] = {
    "secret": lambda data: data.get("value"),
    "remote-file-system": lambda data: data.get("settings") or {},
    "aws-credentials": _rename_aws_fields,
    "minio-credentials": _rename_aws_fields,
    "gcp-credentials": lambda data: {"token": data.get("service_account_info") or data.get("service_account_file")},
}
