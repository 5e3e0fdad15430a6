"""Fingerprints: sha256 of plain values, of rowmill's own code, of the modules that a user's graph names."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import tasks
from tasks.core.versions import stable_json
from tasks.ops.installed import entries


def fingerprint(*values: Any) -> str:
    """Compute the sha256 of plain values."""
    return hashlib.sha256(stable_json(values).encode()).hexdigest()


@lru_cache(maxsize=1)
def own_code() -> str:
    """Compute the sha256 of the modules of `tasks`: an editable installation has no version of its own."""
    folder = Path(tasks.__file__).parent
    text = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        text.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return text.hexdigest()


def users_code(graph: object) -> list[str]:
    """Compute the sha256 of the code that the graph names by import path (`module:name`).

    It covers the modules of these functions and classes, and the versions of the packages that offer operators of these
    modules: a new version may change other modules, too.
    """
    names = sorted({text.partition(":")[0] for text in _find_function_names(graph)})
    digests = []
    for name in names:
        with suppress(ImportError):  # who calls it says what is missing
            spec = importlib.util.find_spec(name)
            if spec and spec.origin and Path(spec.origin).is_file():
                digests.append(hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest())
    tops = {name.partition(".")[0] for name in names}
    packages = {f"{e.package} {e.version}" for e in entries() if e.module.partition(".")[0] in tops}
    return digests + sorted(packages)


def _find_function_names(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("op", "function") and isinstance(inner, str) and ":" in inner:
                yield inner
            else:
                yield from _find_function_names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _find_function_names(inner)
