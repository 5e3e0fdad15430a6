"""One file: its table written and its footer checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks import engines
from tasks.errors import DataError
from tasks.shuffle.parts import Writing
from tasks.storage.atomic import flush, no_space, partial_file
from tasks.storage.checksum import digest


def write_table(writing: Writing, table: Any, name: str, rows: int) -> dict[str, Any]:
    """All rows of a file at once; its record."""
    write = engines.engine(writing.engine).write_file
    return write_whole(writing, name, rows, lambda path: write(table, path, writing))


def write_whole(writing: Writing, name: str, rows: int, write: Callable[[str], str | None]) -> dict[str, Any]:
    """One file that `write(path)` writes, whole or not at all, and digests where that is cheap; its record."""
    path = Path(writing.folder) / name
    with no_space(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial_file(path) as unfinished:
            known = write(str(unfinished)) or digest(unfinished)
            record = {"path": name, "rows": rows, "bytes": unfinished.stat().st_size, "xxh3_128": known}
            flush(unfinished)
            check_footer(unfinished, rows, writing.suffix)
    return record


def check_footer(path: Path, rows: int, suffix: str) -> None:
    import pyarrow.parquet as pq

    if suffix == "parquet":
        written = pq.read_metadata(path).num_rows
        if written != rows:
            raise DataError(
                f"{path.name} holds {written:,} rows instead of {rows:,}",
                why="the file was not written whole",
                do="run the job again",
            )
