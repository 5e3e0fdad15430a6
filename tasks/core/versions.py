"""Versions: of rowmill, of the packages that it works with, of the permutation; and JSON of one spelling."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version

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


def rowmill_version() -> str:
    return _version("rowmill") or "0.1.0"


def stable_json(data: object) -> str:
    return json.dumps(data, sort_keys=True, default=str)


# Saved with a state, which keeps its number; another number whenever HashBucket, HashedCross, `hash` of an expression,
# the hashes of Categorify, or Cross make another value. 1: a float always hashes as a float, Cross escapes nothing;
# 2: whole floats hash as integers, Cross escapes its separator in values; 3: so do they in `hash` of an expression.
VALUE_RULES = 3
PERMUTATION_VERSION = 1  # written into manifests; another number whenever any position changes
