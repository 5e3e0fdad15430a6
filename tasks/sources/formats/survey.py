"""Inspected source files: what planning knows of a file before its rows are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from tasks.core.dtypes import dtype_name
from tasks.core.plan import File, Limits, ReadOptions, Unit
from tasks.core.schema import own_names, two_columns
from tasks.core.unforeseen_errors import at
from tasks.sources.formats.parquet_bounds import Bounds
from tasks.sources.formats.readable_lines import BadLines
from tasks.storage.files import batch_files, map_files
from tasks.storage.files_being_read import note_activity

# In a plan's options: column -> a sentence on numbers that stay text; the types by which lines are told to be bad.
NUMBER_TEXTS = "number_texts"
TYPES = "types"
FILTERED = "filtered"  # in the options of a survey: the columns that the filter compares

Apart = tuple[str, str, str, str]  # what, where, why and do of the error for a column that cannot be used


@dataclass(frozen=True)
class Inspected:
    """The file with its digest, its schema, and its units in order (their pieces say file 0: ingest numbers files).

    Only the host's readers read the columns `on_host` as they are stored; cuDF's readers would give other values.
    `bounds` are those of the columns that the filter compares, for each unit.
    `grown` has a sentence for each column of text whose type is wider than that of an earlier file, `number_texts` one
    for each whose numbers stay text. `bad` are the lines of a text file that are left out, since they cannot be read.
    Where several columns have one name, the schema has a name of its own for each, and `repeated` the error for those
    that use one.
    """

    file: File
    schema: pa.Schema
    units: tuple[Unit, ...]
    on_host: tuple[str, ...] = ()
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    grown: Mapping[str, str] = field(default_factory=dict)
    bad: BadLines | None = None
    number_texts: Mapping[str, str] = field(default_factory=dict)
    repeated: Mapping[str, Apart] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(unit.rows for unit in self.units)


def make_repeated_name_errors(names: Sequence[str], path: str, do: str) -> dict[str, Apart]:
    """The errors for columns of a file that share a name, by the names that `own_names` gives them."""
    counts = Counter(names)
    return {
        own: (two_columns(name), path, "which of them is meant is not known", do)
        for own, name in zip(own_names(names), names, strict=True)
        if counts[name] > 1
    }


def with_own_names(inspected: Inspected) -> Inspected:
    """The same with a name of its own for each column of the file."""
    names = inspected.schema.names
    repeated = make_repeated_name_errors(
        names, inspected.file.path, "write the file with a name of its own for each column"
    )
    if not repeated:
        return inspected
    fields = [field.with_name(own) for field, own in zip(inspected.schema, own_names(names), strict=True)]
    return replace(inspected, schema=pa.schema(fields, inspected.schema.metadata), repeated=repeated)


def line_types(types: Mapping[str, pa.DataType], declared: Mapping[str, str]) -> dict[str, str]:
    """The types that values of a text must fit, or its line is bad: those that are declared, else inferred."""
    known = {name: dtype_name(dtype) for name, dtype in types.items() if not pa.types.is_null(dtype)}
    return known | dict(declared)


def footers(inspect: Callable[[File, ReadOptions], Inspected]) -> Callable[..., list[Inspected]]:
    """A survey that looks at every file by itself, in at most 256 batches so that a cluster gets few tasks."""

    def survey(
        files: Sequence[File], options: ReadOptions, limits: Limits, parallel_map: Callable[..., Any]
    ) -> list[Inspected]:
        batches = batch_files(files, most=256)
        return [item for batch in parallel_map(partial(_inspect_batch, inspect, options), batches) for item in batch]

    return survey


def _inspect_batch(
    inspect: Callable[[File, ReadOptions], Inspected], options: ReadOptions, files: Sequence[File]
) -> list[Inspected]:
    def inspect_one(file: File) -> Inspected:
        with note_activity(options, file.path), at(f"reading {file.path}"):
            return with_own_names(inspect(file, options))

    return map_files(inspect_one, files)
