"""Look-alike data that rowmill makes: how a folder of them is marked, and whether files come from one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.core.strict_json import JsonObject
from tasks.storage.atomic import read_record
from tasks.storage.files import is_remote

MARKER = "_sample.json"
NAMED = 3  # samples that a message names
MOST_FOLDERS = 1000  # a sample lies in one; a source may have very many


def marker(folder: Path) -> JsonObject:
    """The marker file of a folder of look-alike data: name, rows, seed, ..; {} for other folders."""
    return read_record(folder / MARKER)


def find_sample_folders(paths: Iterable[str]) -> list[JsonObject]:
    """The folders among those of the files that hold look-alike data: path, and name, rows and seed of the sample."""
    folders = list(dict.fromkeys(str(Path(path).parent) for path in paths if not is_remote(path)))[:MOST_FOLDERS]
    return [
        {"path": folder, **{name: sample[name] for name in ("name", "rows", "seed") if name in sample}}
        for folder in folders
        if (sample := marker(Path(folder.removeprefix("file:"))))
    ]


def describe_sample_data(samples: Sequence[Mapping[str, Any]]) -> str:
    """One line about the look-alike data among the sources: `NAMED` of them, and how many more there are.

    >>> describe_sample_data([{"path": "data/toy", "name": "toy", "rows": 1000, "seed": 0}])
    'look-alike data of toy (1000 rows, seed 0) in data/toy'
    """
    texts = [
        f"look-alike data of {one.get('name', 'a sample')} ({one.get('rows', '?')} rows, seed {one.get('seed', '?')}) "
        f"in {one.get('path', '?')}" + (", which the workflow was fitted on" if one.get("fit") else "")
        for one in samples
    ]
    more = [f"and {len(texts) - NAMED} more"] if len(texts) > NAMED else []
    return "; ".join(texts[:NAMED] + more)
