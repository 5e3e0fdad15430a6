"""Adds versions of an output to a table of Delta, around their folder: their parts become the files of one version."""

from __future__ import annotations

import json
import os
import time
from datetime import date, datetime
from typing import Any, BinaryIO
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from tasks.core.dtypes import dtype_name
from tasks.core.schema import Schema
from tasks.core.settings import Output
from tasks.errors import JobError, TransientError
from tasks.lake.delta import LOG, named_errors, open_table, table_options
from tasks.lake.versions import Version, read_columns
from tasks.storage.credentials import storage
from tasks.storage.files import is_remote, local_path
from tasks.storage.hive import parse_folder_columns
from tasks.storage.object_store import full_url
from tasks.storage.output import PublishedOutput
from tasks.storage.stores import open_store

WHERE = "output.delta"


class Table:
    """A table of Delta that versions of an output are added to.

    The log has a transaction of its own for each version, named by its digest: it outlives cleaned logs.
    """

    def __init__(self, output: Output) -> None:
        self.path = _full_path(output.delta or "")
        self._storage = storage(output.storage_options, "output.storage_options")
        self.options = table_options(self.path, self._storage)
        self.replaces = output.mode == "replace_partition"
        self.partition_on = list(output.partition_on)
        if not f"{_full_path(output.path)}/".startswith(f"{self.path}/"):
            raise JobError(
                "the files of a table of Delta lie in its folder",
                where=f"{WHERE} = {output.delta}, output.path = {output.path}",
                do=f"write the output into a folder of the table: output.path: {self.path}/rowmill",
            )

    def check(self, schema: pa.Schema) -> None:
        """A JobError where the table cannot get files with these columns; nothing is changed."""
        for column in schema:
            if not _is_storable(column.type):
                raise JobError(
                    f"a table of Delta cannot have column {column.name!r}",
                    where=f"{WHERE} = {self.path}",
                    why=f"it is {dtype_name(column.type)}",
                    do="cast it to a type of Delta: signed integers, floats, text, dates, timestamp[us, UTC]",
                )
        table = self._load()
        if table is None:
            return
        partitions = table.metadata().partition_columns
        if partitions != self.partition_on:
            raise JobError(
                "the output is not divided as the table is",
                where=f"{WHERE} = {self.path}, output.partition_on = {self.partition_on}",
                why=f"the partitions of the table are made of {partitions or 'no column'}",
                do=f"write output.partition_on: {partitions}",
            )
        theirs = {column.name: column.type for column in pa.schema(table.schema().to_arrow())}
        differ = [one.name for one in schema if theirs.get(one.name) != one.type]
        if differ or len(schema) + len(partitions) != len(theirs):
            ours = {one.name: dtype_name(one.type) for one in schema}
            wanted = {name: dtype_name(dtype) for name, dtype in theirs.items() if name not in partitions}
            raise JobError(
                "the columns of the output do not fit the table",
                where=f"{WHERE} = {self.path}",
                why=f"the output has {ours}, the table {wanted}",
                do="change the features so that the output has the columns and types of the table, or the table",
            )

    def has(self, version: Version) -> bool:
        """Whether the version was added."""
        table = self._load()
        return table is not None and table.transaction_version(_transaction(version)) is not None

    def add(self, version: Version) -> str:
        """Add a version as one version of the table, once; returns the number of this one."""
        properties = CommitProperties(
            custom_metadata=version.note, app_transactions=[Transaction(_transaction(version), 1)]
        )
        table = self._load()
        if table is not None and self.has(version):
            return f"version {table.version()}"
        added = [self._describe_part(version, part) for part in version.parts]
        try:
            with named_errors(self.path, WHERE, passing=CommitFailedError):
                if table is None:
                    create_table_with_add_actions(
                        self.path,
                        DeltaSchema.from_arrow(self._read_schema(version)),
                        added,
                        partition_by=self.partition_on,
                        storage_options=self.options,
                        commit_properties=properties,
                    )
                else:
                    removed = self._list_replaced(table, added) if self.replaces else []
                    table.create_write_transaction(
                        [*added, *removed],
                        "append",
                        table.schema(),
                        partition_by=self.partition_on,
                        commit_properties=properties,
                    )
        except CommitFailedError as error:
            raise TransientError(
                "other writers of the table were faster",
                where=f"{WHERE} = {self.path}",
                why=str(error).split("\n")[0],
                do="run the same command again when they are done",
            ) from None
        return f"version {DeltaTable(self.path, storage_options=self.options).version()}"

    def _load(self) -> DeltaTable | None:
        log, _ = open_store(self.path, self._storage).list_folder(f"{self.path}/{LOG}")
        if not log:
            return None
        return open_table(self.path, self._storage, WHERE)

    def _read_schema(self, version: Version) -> pa.Schema:
        """The columns of the parts, and those of the names of their folders."""
        with version.open(version.parts[0]) as part:
            columns = read_columns(part)
        written = Schema.from_json(PublishedOutput(version.folder).manifest["schema"])
        return pa.schema([*columns, *(pa.field(name, written[name].dtype) for name in self.partition_on)])

    def _describe_part(self, version: Version, part: str) -> AddAction:
        file = version.stat(part)
        values = {name: texts[0] for name, texts in parse_folder_columns([f"/{part}"], ["/"]).items()}
        with version.open(part) as opened:
            statistics = read_statistics(opened)
        return AddAction(
            _full_path(file.path).removeprefix(f"{self.path}/"),
            file.size,
            {name: values[name] for name in self.partition_on},
            file.mtime // 10**6,
            True,
            json.dumps(statistics),
        )

    def _list_replaced(self, table: DeltaTable, added: list[AddAction]) -> list[RemoveAction]:
        """The files of the partitions that new files are in."""
        partitions = {tuple(sorted(action.partition_values.items())) for action in added}
        known = pa.table(table.get_add_actions()).to_pylist()
        now = int(time.time() * 1000)
        removed = []
        for file in known:
            values = {name: _to_text(value) for name, value in (file["partition"] or {}).items()}
            if tuple(sorted(values.items())) in partitions:
                removed.append(RemoveAction(unquote(file["path"]), True, now, file["size_bytes"], values))
        return removed


def _full_path(path: str) -> str:
    """A path without links, or a URL as stores write it."""
    return full_url(path) if is_remote(path) else os.path.realpath(local_path(path))


def read_statistics(part: BinaryIO) -> dict[str, Any]:
    """Read the statistics of a part as a log has them: rows, nulls and bounds of columns, as far as its footer knows.

    Bounds of times are left out: a log would have milliseconds of them.
    """
    footer = pq.read_metadata(part)
    statistics: dict[str, Any] = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for number in range(footer.num_columns):
        groups = [footer.row_group(group).column(number) for group in range(footer.num_row_groups)]
        name = groups[0].path_in_schema if groups else ""
        shown = [group.statistics for group in groups]
        if not groups or "." in name or any(one is None or one.null_count is None for one in shown):
            continue
        statistics["nullCount"][name] = sum(one.null_count for one in shown)
        bounds = [one for one in shown if one.has_min_max]
        with_values = [one for one, group in zip(shown, groups, strict=True) if one.null_count < group.num_values]
        if not bounds or any(not one.has_min_max for one in with_values):
            continue
        least, greatest = min(one.min for one in bounds), max(one.max for one in bounds)
        if isinstance(least, (bool, bytes, datetime)) or not isinstance(least, (int, float, str, date)):
            continue
        statistics["minValues"][name] = least.isoformat() if isinstance(least, date) else least
        statistics["maxValues"][name] = greatest.isoformat() if isinstance(greatest, date) else greatest
    return statistics


def _to_text(value: Any) -> str | None:
    """Write a value of a partition as a log and the names of folders do."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, date) and not isinstance(value, datetime) else str(value)


def _transaction(version: Version) -> str:
    return f"rowmill-{version.digest}"


def _is_storable(dtype: pa.DataType) -> bool:
    """Whether Delta has the type as files of Parquet hold it."""
    if pa.types.is_list(dtype):
        return _is_storable(dtype.value_type)
    if pa.types.is_struct(dtype):
        return all(_is_storable(inner.type) for inner in dtype)
    if pa.types.is_timestamp(dtype):
        return dtype.unit == "us"
    plain = pa.types.is_signed_integer(dtype) or pa.types.is_boolean(dtype) or pa.types.is_string(dtype)
    floats = pa.types.is_float32(dtype) or pa.types.is_float64(dtype)
    return plain or floats or pa.types.is_date32(dtype) or pa.types.is_decimal(dtype) or pa.types.is_binary(dtype)
