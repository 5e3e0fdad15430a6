"""Adds versions of an output to a table of Iceberg: their parts stay where they are, and become one snapshot."""

from __future__ import annotations

import random
import time
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io.pyarrow import (
    _check_pyarrow_schema_compatible,
    _pyarrow_to_schema_without_ids,
    parquet_file_to_data_file,
)
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table import TableProperties, Transaction

from tasks.core.settings import Output
from tasks.errors import JobError, TransientError
from tasks.lake.iceberg import named_errors, open_catalog
from tasks.lake.versions import Version, output_id, read_columns
from tasks.storage.allowed_roots import is_local

WHERE = "output.iceberg"
TRIES = 10  # while other writers are faster
SECONDS = 0.2  # before the second try; twice as long before each next one, up to:
LONGEST_SECONDS = 5.0


class Table:
    """A table of Iceberg that versions of an output are added to.

    A property of the table has the digest of the version that was added last: it outlives expired snapshots.
    """

    def __init__(self, output: Output) -> None:
        self.name = output.iceberg or ""
        self.replaces = output.mode == "replace_partition"
        catalog, _, self._identifier = self.name.partition(".")
        self._catalog = open_catalog(catalog, f"{WHERE} = {self.name}")

    def check(self, schema: pa.Schema) -> None:
        """A JobError where the table cannot get files with these columns; nothing is changed."""
        table = self._load()
        if table is None and self.replaces:
            raise JobError(
                "there is no table whose partitions could be replaced",
                where=f"{WHERE} = {self.name}",
                do="make the table with its partitions first, or write output.mode: append",
            )
        if table is not None and self.replaces and table.spec().is_unpartitioned():
            raise JobError(
                "the table has no partitions that could be replaced",
                where=f"{WHERE} = {self.name}",
                do="give it partitions, or write output.mode: append",
            )
        try:
            if table is None:
                _pyarrow_to_schema_without_ids(schema)
            else:
                _check_pyarrow_schema_compatible(table.schema(), schema, format_version=table.format_version)
        except Exception as error:  # of types that Iceberg lacks, and of columns that differ
            raise JobError(
                "the columns of the output do not fit the table",
                where=f"{WHERE} = {self.name}",
                why=" ".join(str(error).split()),
                do="change the features so that the output has the columns and types of the table, or the table",
            ) from None

    def has(self, version: Version) -> bool:
        """Whether the version was added."""
        table = self._load()
        return table is not None and _has(table, version)

    def add(self, version: Version) -> str:
        """Add a version as one snapshot, once; returns the id of the snapshot."""
        seconds = SECONDS
        for _ in range(TRIES):
            table = self._load() or self._create(version)
            if _has(table, version):
                break
            try:
                with named_errors(self.name, WHERE, passing=CommitFailedException):
                    self._commit(table, version)
            except CommitFailedException:
                time.sleep(seconds * random.uniform(0.5, 1.0))
                seconds = min(2 * seconds, LONGEST_SECONDS)
                continue
            break
        else:
            raise TransientError(
                "other writers of the table were faster each time",
                where=f"{WHERE} = {self.name}",
                why=f"{TRIES} commits of version {version.folder.name} failed",
                do="run the same command again when they are done",
            )
        snapshot = table.current_snapshot()
        return f"snapshot {snapshot.snapshot_id}" if snapshot else "no snapshot"

    def _load(self) -> IcebergTable | None:
        try:
            with named_errors(self.name, WHERE, passing=(NoSuchTableError, NoSuchNamespaceError)):
                return self._catalog.load_table(self._identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def _create(self, version: Version) -> IcebergTable:
        with named_errors(self.name, WHERE):
            self._catalog.create_namespace_if_not_exists(self._identifier.rpartition(".")[0])
            with version.open(version.parts[0]) as part:
                columns = read_columns(part)
            return self._catalog.create_table_if_not_exists(self._identifier, columns)

    def _commit(self, table: IcebergTable, version: Version) -> None:
        named = [version.path_of(part) for part in version.parts]
        paths = [f"file://{path}" if is_local(path) else path for path in named]
        with table.transaction() as transaction:
            transaction.set_properties({_property(version): version.digest})
            if not self.replaces:
                # Whether the version was added is known: a look for its files would read all manifests of the table.
                transaction.add_files(paths, snapshot_properties=version.note, check_duplicate_files=False)
                return
            if transaction.table_metadata.name_mapping() is None:  # the parts have no ids of fields
                names = transaction.table_metadata.schema().name_mapping.model_dump_json()
                transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: names})
            _replace_partitions(table, transaction, paths, version)


def _replace_partitions(table: IcebergTable, transaction: Transaction, paths: list[str], version: Version) -> None:
    """Put files in the place of all others of their partitions, in one snapshot."""
    added = [parquet_file_to_data_file(table.io, transaction.table_metadata, path) for path in paths]
    fields = len(table.spec().fields)
    partitions = {_partition_of(file, fields) for file in added}
    older = [task.file for task in table.scan().plan_files()]
    if others := [file for file in older if file.spec_id != table.spec().spec_id]:
        raise JobError(
            "the table has files of earlier partitions, which cannot be compared with the new ones",
            where=f"{WHERE} = {table.name()}: {others[0].file_path}",
            do="rewrite its data files, or write output.mode: append",
        )
    with transaction.update_snapshot(snapshot_properties=version.note).overwrite() as snapshot:
        for file in added:
            snapshot.append_data_file(file)
        for file in older:
            if _partition_of(file, fields) in partitions:
                snapshot.delete_data_file(file)


def _partition_of(file: DataFile, fields: int) -> tuple[Any, ...]:
    return tuple(file.partition[place] for place in range(fields))


def _has(table: IcebergTable, version: Version) -> bool:
    if table.properties.get(_property(version)) == version.digest:
        return True
    notes = (one.summary.additional_properties for one in table.metadata.snapshots if one.summary)
    return any(note.get("rowmill.manifest") == version.digest for note in notes)


def _property(version: Version) -> str:
    return f"rowmill.last-version.{output_id(version)}"
