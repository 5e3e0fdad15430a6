# Thousands of folders are quicker as strings.
# ruff: noqa: PTH110, PTH118
"""Tables of Delta, Iceberg and Hudi, and outputs of Spark streams: a log next to the data files says which of them
count, so that the rows of such a folder are not the rows of its files. As paths they are refused: the wing `tasks/lake`
reads tables of Delta and Iceberg by their logs."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator

from tasks.core.plan import File
from tasks.errors import DataError, RowmillError
from tasks.storage.store import Store

STREAM = "Spark stream"
# by the name in the table's folder; Hudi also marks the folder of each partition
MARKS = {
    "_delta_log": "Delta",
    ".hoodie": "Hudi",
    ".hoodie_partition_metadata": "Hudi",
    "_spark_metadata": STREAM,  # of the file sinks of structured streaming
}
METADATA = "metadata"  # of Iceberg: a common name, so that one of its files must be in it
ICEBERG = re.compile(r"(?:v\d+|\d+-[0-9a-f-]{36})(?:\.gz)?\.metadata\.json(?:\.gz)?")
# of folders in which such a table puts its files: Iceberg's, also of its layout for object stores, and partitions
INSIDE = re.compile(r"data|[01]{4,20}|.*=.*")

# By kind of table that rowmill reads, what to write in place of its folder.
KEYS = {
    "Delta": "name the table in place of its folder: source.delta: {table}",
    "Iceberg": "name the table in place of its folder, as its catalog does: source.iceberg: CATALOG.DATABASE.TABLE",
}


def refuse_table_with(names: Collection[str], folder: str) -> None:
    """A DataError if a local folder, which holds these names, is such a table."""
    for mark, kind in MARKS.items():
        if mark in names:
            raise _make_table_error(folder, kind)
    if METADATA in names and _has_iceberg_metadata(os.path.join(folder, METADATA)):
        raise _make_table_error(folder, "Iceberg")


def refuse_in_table(folder: str) -> None:
    """A DataError if a local folder is such a table, or one in which such a table puts its files."""
    for place in _with_tables_above(folder):
        names = [name for name in (*MARKS, METADATA) if os.path.exists(os.path.join(place, name))]
        refuse_table_with(names, place)


def refuse_remote_log(files: Iterable[str]) -> None:
    """A DataError if one of these files of a storage, or folders that end with a slash, is of the log of such a
    table."""
    for file in files:
        if log := find_log(file):
            raise _make_table_error(*log)


def refuse_remote_table(store: Store, folder: str) -> None:
    """A DataError if a folder of a storage is one in which such a table puts its files. The folder itself is not looked
    at."""
    for place in [*_with_tables_above(folder)][1:]:
        if place.endswith(":/"):
            return
        try:
            files, folders = store.list_folder(place)
            refuse_remote_logs_in(store, files, folders)
        except DataError:
            raise
        except (RowmillError, PermissionError):  # above the folder that this user may read
            return


def refuse_remote_logs_in(store: Store, files: Iterable[File], folders: Collection[str]) -> None:
    """A DataError if a folder of a storage, which has these files and folders, is such a table."""
    refuse_remote_log([*(file.path for file in files), *(f"{name}/" for name in folders)])
    for name in folders:
        if name.endswith(f"/{METADATA}"):
            refuse_remote_log(file.path for file in store.list_folder(name)[0])


def find_log(file: str) -> tuple[str, str] | None:
    """The folder and the kind of the table of whose log a file of a storage is, by its name."""
    parts = file.rstrip("/").split("/")
    for number, part in enumerate(parts):
        if part in MARKS:
            return "/".join(parts[:number]), MARKS[part]
    if METADATA in parts[-2:-1] and ICEBERG.fullmatch(parts[-1]):
        return "/".join(parts[:-2]), "Iceberg"
    return None


def _has_iceberg_metadata(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(ICEBERG.fullmatch(entry.name) for entry in entries)
    except NotADirectoryError:
        return False


def _with_tables_above(folder: str) -> Iterator[str]:
    """A folder, and those around it that may be its table: of `table/data` and `table/day=1/hour=2`, `table`, too."""
    yield folder
    above, _, name = folder.rpartition("/")
    while above and INSIDE.fullmatch(name):
        yield above
        above, _, name = above.rpartition("/")


def _make_table_error(folder: str, kind: str) -> DataError:
    elsewhere = "write its rows as Parquet files elsewhere, and name their folder: in Spark"
    if kind == STREAM:
        return DataError(
            "the source is the output of a Spark stream, whose log rowmill does not read",
            where=folder,
            why="its log, _spark_metadata, says which of its files count: files of batches that failed, and were "
            "written again, lie among them",
            do=f'{elsewhere} spark.read.parquet("{folder}").write.parquet("ROWS"), which follows the log; of other '
            "files spark.read.json, .orc or .csv",
        )
    if key := KEYS.get(kind):
        return DataError(
            f"the source is a table of {kind}, and source.path is for files",
            where=folder,
            why="its log says which of its files count: files of removed rows and of earlier versions lie among them",
            do=key.format(table=folder),
        )
    return DataError(
        f"the source is a table of {kind}, which rowmill does not read",
        where=folder,
        why="its log says which of its files count: files of removed rows and of earlier versions lie among them",
        do=f'{elsewhere} spark.read.format("{kind.lower()}").load("{folder}").write.parquet("ROWS")',
    )
