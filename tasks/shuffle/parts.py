"""Parts of the output: what each file gathers, in runs of whole row groups where memory is short."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.orc as paorc

from tasks.core.dtypes import dtype_name
from tasks.core.pickled_fields import PickledFields
from tasks.core.schema import Column, Schema
from tasks.core.settings import Output
from tasks.errors import JobError
from tasks.shuffle import permutation
from tasks.shuffle.row_order import Order
from tasks.storage.atomic import read_json


def units_of(rows: int, unit: int) -> int:
    """Count the runs that are possible: one for each `unit` rows that a file stores together, 1 if unit is 0.

    >>> units_of(10, 4), units_of(8, 4), units_of(0, 4), units_of(10, 0)
    (3, 2, 1, 1)
    """
    return max(1, -(-rows // unit)) if unit else 1


def divide_into_runs(part: Part, counts: np.ndarray, unit: int, runs: int) -> list[Part]:
    """Divide a part (`tasks.shuffle.parts.Part`) into that many parts of whole units of rows, in their order.

    `counts` are the rows of each of its ranges of position; each run names only the ranges that it needs.
    """
    units = units_of(part.rows, unit)
    edges = [min(units * r // runs * unit, part.rows) for r in range(runs + 1)]
    ends = np.cumsum(counts)
    parts = []
    for low, high in pairwise(edges):
        start = part.skip + low
        stop = part.skip + high
        first = int(np.searchsorted(ends, start, side="right"))
        last = int(np.searchsorted(ends, stop, side="left")) + 1
        before = int(ends[first - 1]) if first else 0
        parts.append(
            replace(part, first=part.first + first, last=part.first + last, skip=start - before, rows=high - low)
        )
    return parts


BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)


def check_types(output: Output, written: Mapping[str, Column]) -> None:
    """Refuse columns that files of the format cannot hold, which Arrow says of a table without rows."""
    write: Any = {"csv": pacsv.write_csv, "orc": paorc.write_table}.get(output.format)
    for column in written.values() if write else ():
        try:
            write(pa.schema([("x", column.dtype)]).empty_table(), pa.BufferOutputStream())
            if output.format == "csv" and any(holds(column.dtype) for holds in BYTES):
                raise pa.ArrowInvalid("bytes are not text, which a table without rows does not show")
        except pa.ArrowException:
            raise JobError(
                f"files of the format {output.format} cannot hold column {column.name!r}",
                where="output.format",
                why=f"it is {dtype_name(column.dtype)}",
                do="write parquet or arrow, cast the column with Lambda(expression='cast(..)'), or leave it out",
            ) from None


@dataclass(frozen=True)
class Part:
    """A file to be written: ranges [first, last) of position, of whose rows `skip` are left out and `rows` taken."""

    number: int
    first: int
    last: int
    skip: int
    rows: int

    def name(self, suffix: str) -> str:
        return f"part-{self.number:05d}.{suffix}"


@dataclass(frozen=True)
class Writing(PickledFields):
    """What every file of the stage shares."""

    folder: str
    notes: str
    engine: str
    output: Output
    order: Order
    schema: Schema
    fingerprint: str = ""
    floor: int = 0  # bytes of rows below which a file is not written in smaller runs when memory is short
    on_host: bool = False  # pieces are not kept on the GPU, on the CPU: not in memory

    @property
    def suffix(self) -> str:
        return self.output.format

    @cached_property
    def dictionary_columns(self) -> list[str]:
        """Columns that a dictionary makes smaller: strings and categories of few values."""
        few = [
            c for c in self.schema.columns if "categorical" in c.tags and c.properties.get("cardinality", 0) <= 1 << 17
        ]
        return [c.name for c in self.schema.columns if c in few or pa.types.is_string(c.leaf)]


def plan_parts(counts: np.ndarray, output: Output, order: Order, files: int) -> list[Part]:
    """Plan the files from the rows that are left in every range of position: equal to one row, or all full but the
    last."""
    ends = np.cumsum(counts)
    rows = int(ends[-1])
    if order.mode == "key":
        files = min(files, len(counts))  # a range of hashes is not divided: it may be one key
        each = permutation.file_ranks(len(counts), files)
        return [Part(f, low, high, 0, int(counts[low:high].sum())) for f, (low, high) in enumerate(each)]
    if output.rows_per_file:
        size = output.rows_per_file
        ranks = [(low, min(low + size, rows)) for low in range(0, rows, size)]
    else:
        ranks = permutation.file_ranks(rows, files)
    parts = []
    for number, (low, high) in enumerate(ranks):
        first = int(np.searchsorted(ends, low, side="right"))
        last = int(np.searchsorted(ends, high, side="left")) + 1 if high > low else first
        before = int(ends[first - 1]) if first else 0
        parts.append(
            Part(
                number,
                min(first, len(counts) - 1),
                min(last, len(counts)),
                low - before if high > low else 0,
                high - low,
            )
        )
    return parts


def read_part_records(note: Path, folder: Path, fingerprint: str) -> list[dict[str, Any]] | None:
    """Read the records of a file that this very work wrote and that still exists; else None."""
    content = read_json(note)
    if not isinstance(content, dict) or content.get("work") != fingerprint:
        return None
    records: list[dict[str, Any]] = content["parts"]
    paths = [folder / record["path"] for record in records]
    whole = all(p.is_file() and p.stat().st_size == r["bytes"] for p, r in zip(paths, records, strict=True))
    return records if whole else None
