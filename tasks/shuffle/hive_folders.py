"""Files in folders named by the values of columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from tasks import engines
from tasks.core.schema import Schema
from tasks.shuffle.file_writer import write_table
from tasks.shuffle.parts import Writing
from tasks.storage import hive


def _write_folders(writing: Writing, table: Any, name: str) -> list[dict[str, Any]]:
    """Write the rows of one file into their folders, in order; the columns in the folders' names are left out."""
    engine, inner = engines.engine(writing.engine), _in_folders(writing)
    order, ranges = _folders(writing, table, name)
    table = engine.table_rows(table, order)
    return [
        write_table(inner, engine.slice_table(table, start, stop), f"{folder}/{name}", stop - start)
        for folder, start, stop in ranges
    ]


def _write_folders_of_runs(writing: Writing, tables: Iterator[Any], name: str) -> list[dict[str, Any]]:
    """Write the rows of one file, which come in runs; host memory collects the rows of each folder."""
    engine, inner = engines.engine(writing.engine), _in_folders(writing)
    by_folder: dict[str, list[pa.Table]] = {}
    while (table := next(tables, None)) is not None:
        order, ranges = _folders(writing, table, name)
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


def _folders(writing: Writing, table: Any, name: str) -> tuple[np.ndarray, list[tuple[str, int, int]]]:
    """`hive.folders` of a table."""
    named = Schema(writing.schema[n] for n in writing.output.partition_on)
    return hive.folders(engines.engine(writing.engine).host_columns(table, named), f"file {name}")


def _in_folders(writing: Writing) -> Writing:
    return replace(writing, schema=hive.stored(writing.schema, writing.output.partition_on))
