"""Removes passwords, tokens and options of storages from jobs before they are shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from tasks.core.strict_json import JsonObject

HIDDEN = "(not shown)"
NAMED = re.compile(
    r"passw|secret|token|credential|(api|access|account|private)_?key|connection_?string|sas", re.IGNORECASE
)
# Before the host of an Azure URL stands its container, which is not a secret: abfs://logs@shop.dfs.core.windows.net.
USER = re.compile(r"(?<=://)(?:(?<!\babfs://)(?<!\babfss://)[^/\s@'\"]+|[^/\s@'\":]*:[^/\s@'\"]*)@")
QUERY = re.compile(r"(\w+://[^\s?'\"]+?)(\?[^\s'\"]+|#[^\s'\"]*=[^\s'\"]*)")  # a fragment may hold a token, too


def redact(value: object, name: str = "") -> Any:
    """The value with `(not shown)` for entries named like secrets; URLs lose user names and queries (signatures).

    >>> redact({"path": "s3://key:word@bucket/x?sig=1", "storage_options": {"key": "a"}, "keys": ["user"]})
    {'path': 's3://bucket/x', 'storage_options': '(not shown)', 'keys': ['user']}
    """
    if isinstance(value, Mapping):
        if name == "storage_options":
            return HIDDEN
        return {key: redact(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redact(inner, name) for inner in value]
    if isinstance(value, str):
        return HIDDEN if NAMED.search(name) and value else plain_url(value)
    return value


def plain_url(text: str) -> str:
    """The text with URLs that have lost user, query, and a fragment that gives something a value.

    >>> plain_url("of https://me:word@host/x?sig=1 and s3://bucket/a#b.csv and http://host/x#token=1")
    'of https://host/x and s3://bucket/a#b.csv and http://host/x'
    >>> plain_url("abfs://logs@shop.dfs.core.windows.net/a and abfs://logs:word@shop.dfs.core.windows.net/a")
    'abfs://logs@shop.dfs.core.windows.net/a and abfs://shop.dfs.core.windows.net/a'
    """
    return QUERY.sub(r"\1", USER.sub("", text))


def job_text(job: JsonObject) -> str:
    """The job as YAML without its secrets."""
    return yaml.safe_dump(redact(job), sort_keys=False, allow_unicode=True, width=100)
