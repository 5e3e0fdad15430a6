"""The files `_metadata` and `_common_metadata` of a Parquet output: the footers of all parts in one place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tasks.storage.atomic import flush, no_space
from tasks.storage.checksum import digest
from tasks.storage.own_files import COMMON_METADATA, METADATA


def write_footers(folder: Path, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write both beside the parts, with the parts' paths relative to them; their records (path, bytes, xxh3_128).

    `_metadata` has the row groups of all parts in the order of the manifest, `_common_metadata` the schema alone.
    """
    whole: pq.FileMetaData | None = None
    for record in records:
        footer = pq.read_metadata(folder / record["path"])
        footer.set_file_path(record["path"])
        if whole is None:
            whole = footer
        else:
            whole.append_row_groups(footer)
    if whole is None:
        return []
    with no_space(folder):
        whole.write_metadata_file(str(folder / METADATA))
        pq.write_metadata(pq.read_schema(folder / records[0]["path"]), str(folder / COMMON_METADATA))
        for name in (METADATA, COMMON_METADATA):
            flush(folder / name)
    paths = [folder / name for name in (METADATA, COMMON_METADATA)]
    return [{"path": p.name, "bytes": p.stat().st_size, "xxh3_128": digest(p)} for p in paths]
