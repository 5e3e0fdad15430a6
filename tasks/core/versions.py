"""Versions: of millrace, of the packages that it works with, of the permutation; and JSON of one spelling."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("prefect", "dask", "distributed", "pandas", "pyarrow", "numpy", "cudf-cu13", "cudf-cu12")


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """The versions of those packages that are installed."""
    return {package: number for package in packages if (number := _version(package))}


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def millrace_version() -> str:
    return _version("millrace") or "0.1.0"


def stable_json(data: Any) -> str:
    return json.dumps(data, sort_keys=True, default=str)


PERMUTATION_VERSION = 1  # written into manifests; another number whenever any position changes
