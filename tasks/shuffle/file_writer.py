"""One file, or its rows in folders named by the values of columns: written whole, and its footer checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks import engines
from tasks.core.schema import Schema
from tasks.errors import DataError
from tasks.shuffle.parts import Writing
from tasks.storage import hive
from tasks.storage.atomic import flush, no_space, partial_file
from tasks.storage.checksum import digest


def write_table(writing: Writing, table: object, name: str, rows: int) -> dict[str, Any]:
    """Write all rows of a file at once; return its record."""
    write = engines.engine(writing.engine).write_file
    return write_whole(writing, name, rows, lambda path: write(table, path, writing))


def write_whole(writing: Writing, name: str, rows: int, write: Callable[[str], str | None]) -> dict[str, Any]:
    """Write one file by `write(path)`, atomically, and digest it if that is cheap; return its record."""
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


def write_folders(writing: Writing, table: object, name: str) -> list[dict[str, Any]]:
    """Write the rows of one file into their folders, in order; the columns in the folders' names are left out."""
    engine = engines.engine(writing.engine)
    inner = _in_folders(writing)
    order, ranges = _split_into_folders(writing, table, name)
    table = engine.table_rows(table, order)
    return [
        write_table(inner, engine.slice_table(table, start, stop), f"{folder}/{name}", stop - start)
        for folder, start, stop in ranges
    ]


def write_folders_of_runs(writing: Writing, tables: Iterator[Any], name: str) -> list[dict[str, Any]]:
    """Write the rows of one file, which come in runs; host memory collects the rows of each folder."""
    engine = engines.engine(writing.engine)
    inner = _in_folders(writing)
    by_folder: dict[str, list[pa.Table]] = {}
    while (table := next(tables, None)) is not None:
        order, ranges = _split_into_folders(writing, table, name)
        rows = engine.host_columns(table, inner.schema).take(pa.array(order))
        del table
        for folder, start, stop in ranges:
            by_folder.setdefault(folder, []).append(rows.slice(start, stop - start))
        del rows
    return [
        write_table(inner, engines.table_on(writing.engine, rows), f"{folder}/{name}", len(rows))
        for folder in sorted(by_folder)
        for rows in [pa.concat_tables(by_folder.pop(folder)).combine_chunks()]
    ]


def _split_into_folders(writing: Writing, table: object, name: str) -> tuple[np.ndarray, list[tuple[str, int, int]]]:
    """Call `hive.folders` on a table."""
    named = Schema(writing.schema[n] for n in writing.output.partition_on)
    return hive.folders(engines.engine(writing.engine).host_columns(table, named), f"file {name}")


def _in_folders(writing: Writing) -> Writing:
    return replace(writing, schema=hive.drop_folder_columns(writing.schema, writing.output.partition_on))
