"""Inspected source files: what planning knows of a file before its rows are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from tasks.core.dtypes import dtype_name
from tasks.core.plan import File, Limits, Unit
from tasks.core.unforeseen_errors import at
from tasks.sources.formats.readable_lines import BadLines
from tasks.storage.files_being_read import noted

# In a plan's options: column -> a sentence on numbers that stay text; the types by which lines are told to be bad.
NUMBER_TEXTS, TYPES = "number_texts", "types"


@dataclass(frozen=True)
class Inspected:
    """The file with its digest, its schema, and its units in order (their pieces say file 0: ingest numbers files).

    Only the host's readers read the columns `on_host` as they are stored; cuDF's readers would give other values.
    `grown` has a sentence for each column of text whose type is wider than that of an earlier file, `number_texts` one
    for each whose numbers stay text. `bad` are the lines of a text file that are left out, since they cannot be read.
    """

    file: File
    schema: pa.Schema
    units: tuple[Unit, ...]
    on_host: tuple[str, ...] = ()
    grown: Mapping[str, str] = field(default_factory=dict)
    bad: BadLines | None = None
    number_texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(unit.rows for unit in self.units)


def line_types(types: Mapping[str, pa.DataType], declared: Mapping[str, str]) -> dict[str, str]:
    """The types that values of a text must fit, or its line is bad: those that are declared, else inferred."""
    known = {name: dtype_name(dtype) for name, dtype in types.items() if not pa.types.is_null(dtype)}
    return known | dict(declared)


def footers(inspect: Callable[[File, dict[str, Any]], Inspected]) -> Callable[..., list[Inspected]]:
    """A survey that looks at every file by itself, in at most 256 batches so that a cluster gets few tasks."""

    def survey(
        files: Sequence[File], options: dict[str, Any], limits: Limits, parallel_map: Callable[..., Any]
    ) -> list[Inspected]:
        size = max(1, -(-len(files) // 256))
        batches = [tuple(files[i : i + size]) for i in range(0, len(files), size)]
        return [item for batch in parallel_map(partial(_inspect_batch, inspect, options), batches) for item in batch]

    return survey


def _inspect_batch(
    inspect: Callable[[File, dict[str, Any]], Inspected], options: dict[str, Any], files: Sequence[File]
) -> list[Inspected]:
    inspected = []
    for file in files:
        with noted(options, file.path), at(f"reading {file.path}"):
            inspected.append(inspect(file, options))
    return inspected
