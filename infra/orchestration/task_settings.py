"""Prefect's settings on their way to the tasks of a run: read once in a process, not anew for each task.

A task of Prefect on Dask reads all settings anew and loads all certificate authorities twice before its work begins,
0.1 to 0.2 s on a host with GPUs: as long as a stage of a hundred million rows takes there. Without this module,
`task_runner.Runner` and the switch interval of `infra.workers.preload`, toy with 788 M rows on one H200 takes 3.9 s
instead of 3.4 s (tests/bench/results/toy-788m-h200-house.json); on two cores of a CPU they save 0.2 s of processor time
(hooks-cpu.json).
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import certifi
from prefect.context import SettingsContext, get_settings_context
from pydantic import PrivateAttr

from infra.environment import is_loopback


class TaskSettings(SettingsContext):
    """The settings of the flow run within a `with` block; what its tasks get of them is packed once."""

    _packed: _PackedSettings = PrivateAttr()

    @classmethod
    def current(cls) -> TaskSettings:
        """Return the settings that hold here."""
        packed = _PackedSettings(pickle.dumps(get_settings_context().serialize()))
        settings = cls(**packed)
        settings._packed = packed
        return settings

    def serialize(self, include_secrets: bool = True) -> Any:
        """The fields from which `SettingsContext(**fields)` builds the same settings, here or in another process."""
        return self._packed if include_secrets else super().serialize(include_secrets=False)


class _PackedSettings(Mapping[str, Any]):
    """The fields of a SettingsContext, built at their first use: the scheduler passes them on and never uses them."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __getitem__(self, name: str) -> object:
        return getattr(_built(self.data), name)

    def __iter__(self) -> Iterator[str]:
        return iter(("profile", "settings"))

    def __len__(self) -> int:
        return 2

    def __dask_tokenize__(self) -> bytes:
        return self.data


@lru_cache(maxsize=16)
def _built(data: bytes) -> SettingsContext:
    fields = pickle.loads(data)  # noqa: S301 of this module, inside of what Dask has pickled
    api = fields["settings"].get("api", {})
    if is_local(api.get("url")):
        api["ssl_cert_file"] = _one_authority()
    return SettingsContext(**fields)


def is_local(url: str | None) -> bool:
    """Tell whether a server is asked without TLS and on the loopback, where no certificates are shown.

    >>> is_local("http://127.0.0.1:4200/api"), is_local("https://127.0.0.1:4200/api"), is_local(None)
    (True, False, False)
    """
    parts = urlsplit(str(url or ""))
    return parts.scheme == "http" and is_loopback(parts.hostname or "")


@cache
def _one_authority() -> str:
    """Return a file with one certificate authority, for clients that load authorities whether they need them or not."""
    first, end, _ = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----\n")
    file = os.memfd_create("authority")
    os.write(file, (first + end).encode())
    return f"/proc/self/fd/{file}"
