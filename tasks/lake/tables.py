"""Any kind of table: what the metadata says of its data files, and where versions of an output are added."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType

from tasks.core.settings import Output, Source
from tasks.errors import JobError
from tasks.lake.versions import Table
from tasks.sources.table_files import TableFiles

LIBRARIES = {"iceberg": "pyiceberg", "delta": "deltalake"}  # by kind, which is also the name of the extra


def read_table(source: Source) -> TableFiles:
    """Read the data files of the table of a source that may have rows for its filter.

    A JobError where the extra is not installed, or the table is not there; a DataError for a table that has to be read
    in ways that rowmill does not know.
    """
    read: Callable[[Source], TableFiles] = import_kind(source.table, f"source.{source.table}").read_table
    return read(source)


def open_output_table(output: Output) -> Table:
    """Open the table that versions of an output are added to; it need not be there.

    A JobError where the extra is not installed, and where its catalog or its place does not suit.
    """
    table: Table = import_kind(output.table, f"output.{output.table}", "_writing").Table(output)
    return table


def import_kind(kind: str, where: str, suffix: str = "") -> ModuleType:
    """Import the module that reads a kind of table, or with `_writing` the one that writes it.

    A JobError where the library behind it is not installed.
    """
    try:
        return import_module(f"tasks.lake.{kind}{suffix}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != LIBRARIES[kind]:
            raise
        raise JobError(
            f"this installation cannot read or write tables of {kind.capitalize()}",
            where=where,
            why=f"{LIBRARIES[kind]} is not installed",
            do=f"pip install 'rowmill[{kind}]', on every host of the run",
        ) from None
