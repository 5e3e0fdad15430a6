"""Tables of Iceberg, by PyIceberg: the state that is read, its data files, and what is known of their columns."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, OutputFile, load_file_io
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import ManifestGroupPlanner, Table
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_between, ancestors_of
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, MonthTransform, YearTransform
from pyiceberg.utils.config import Config

from tasks.core.settings import Source
from tasks.core.units import nanoseconds
from tasks.errors import DataError, JobError, RowmillError
from tasks.lake.pruning import as_bounds, choose_files, to_arrow, to_texts
from tasks.sources.formats.parquet_bounds import Bounds
from tasks.sources.formats.parquet_fields import FieldId, list_field_ids
from tasks.sources.table_files import TableFiles
from tasks.storage.allowed_roots import check_path

HOSTS_IO = "rowmill.py-io-impl"  # the class that the host's settings name for files of the metadata
DAY = 86_400_000_000  # microseconds


class CheckedFileIO(FileIO):
    """Opens files of the metadata, each after a check that it is inside of the allowed roots."""

    def new_input(self, location: str) -> InputFile:
        return self._open(location).new_input(location)

    def new_output(self, location: str) -> OutputFile:
        return self._open(location).new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        place = location if isinstance(location, str) else location.location
        self._open(place).delete(place)

    def _open(self, location: str) -> FileIO:
        check_path(to_path(location), "a file of the metadata of an Iceberg table")
        properties = {name: value for name, value in self.properties.items() if name not in (PY_IO_IMPL, HOSTS_IO)}
        if hosts := self.properties.get(HOSTS_IO):
            properties[PY_IO_IMPL] = hosts
        return load_file_io(properties, location)


def to_path(location: str) -> str:
    """Write a location as rowmill writes paths: Java's `file:/data` is a path of this host.

    >>> to_path("file:/data/a.parquet"), to_path("file:///data/a.parquet"), to_path("s3://lake/a.parquet")
    ('/data/a.parquet', '/data/a.parquet', 's3://lake/a.parquet')
    """
    return re.sub(r"^file:/+", "/", location)


def open_catalog(name: str, where: str) -> Catalog:
    """Open a catalog by its name in the host's settings of PyIceberg, as they are now; a JobError if they do not have
    it, or if it does not answer."""
    known = Config().config.get("catalog") or {}
    settings = {key: str(value) for key, value in (Config().get_catalog_config(name) or {}).items()}
    do = (
        "describe it where the run works, in ~/.pyiceberg.yaml or in variables such as "
        f"PYICEBERG_CATALOG__{name.upper()}__URI: a job has only its name"
    )
    if not settings:
        names = ", ".join(sorted(known)) if isinstance(known, Mapping) and known else "none"
        raise JobError(f"the host has no catalog {name!r}", where=where, why=f"its settings name {names}", do=do)
    hosts = settings.pop(PY_IO_IMPL, None)
    own = {PY_IO_IMPL: f"{CheckedFileIO.__module__}.{CheckedFileIO.__name__}", HOSTS_IO: hosts or ""}
    try:
        catalog = load_catalog(name, **{**settings, **own})
    except RowmillError:
        raise
    except Exception as error:  # each kind of catalog has errors of its own
        why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise JobError(f"the catalog {name!r} cannot be opened", where=where, why=why, do=do) from None

    load = catalog._load_file_io

    def load_checked(properties: Mapping[str, str] | None = None, location: str | None = None) -> FileIO:
        # The properties of a table are as trustworthy as its writers: they must not name a class to be imported.
        return load({**(properties or {}), **own}, location)

    vars(catalog)["_load_file_io"] = load_checked
    return catalog


@contextmanager
def named_errors(table: str, where: str, passing: type[Exception] | tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn the errors of PyIceberg, but for those `passing`, into some that name the table and what to do."""
    try:
        yield
    except RowmillError:
        raise
    except passing:
        raise
    except (NoSuchTableError, NoSuchNamespaceError):
        raise JobError(
            "there is no such table in the catalog",
            where=f"{where} = {table}",
            do="correct the name: catalog.database.table",
        ) from None
    except FileNotFoundError as error:
        raise DataError(
            "a file of the metadata of the table is gone",
            where=f"{where} = {table}",
            why=str(error).split("\n")[0],
            do="read a newer state of the table, or repair its metadata",
        ) from None
    except Exception as error:  # of catalogs, storages and formats
        raise DataError(
            "the table cannot be used",
            where=f"{where} = {table}",
            why=f"{type(error).__name__}: {str(error).split(chr(10))[0]}",
            do="look at it with pyiceberg describe; check the settings of the catalog and its storage",
        ) from None


def load_table(name: str, where: str) -> Table:
    """Load a table by its name, catalog.database.table."""
    catalog, _, identifier = name.partition(".")
    opened = open_catalog(catalog, f"{where} = {name}")
    with named_errors(name, where):
        return opened.load_table(identifier)


def choose_snapshot(table: Table, source: Source) -> Snapshot | None:
    """Choose the snapshot that a source reads: by its id, by a time, or the current one (None: an empty table)."""
    where = f"source.iceberg = {source.iceberg}"
    if source.snapshot is not None:
        snapshot = table.snapshot_by_id(source.snapshot)
        if snapshot is None:
            raise JobError(
                f"the table has no snapshot {source.snapshot}",
                where=where,
                why="it has expired, or it is of another table",
                do=f"choose one of its {len(table.metadata.snapshots)} snapshots: {_list_snapshots(table)}",
            )
        return snapshot
    if source.as_of is not None:
        try:
            time = nanoseconds(source.as_of)
        except ValueError:
            do = "write it as 2026-11-01, or 2026-11-01 06:00"
            raise JobError(f"{source.as_of!r} is not a time", where="source.as_of", do=do) from None
        snapshot = table.snapshot_as_of_timestamp(time // 10**6)
        if snapshot is None:
            raise JobError(
                f"the table had no snapshot at {source.as_of}",
                where=where,
                do=f"choose a later time, or one of its snapshots: {_list_snapshots(table)}",
            )
        return snapshot
    return table.current_snapshot()


def _list_snapshots(table: Table) -> str:
    """The newest snapshots, with their times."""
    newest = sorted(table.metadata.snapshots, key=lambda one: one.timestamp_ms)[-3:]
    times = [datetime.fromtimestamp(one.timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S") for one in newest]
    return ", ".join(f"{one.snapshot_id} ({time} UTC)" for one, time in zip(newest, times, strict=True)) or "none"


def read_table(source: Source) -> TableFiles:
    """Read the data files of the table of a source that may have rows for its filter."""
    name = source.iceberg or ""
    table = load_table(name, "source.iceberg")
    with named_errors(name, "source.iceberg"):
        snapshot = choose_snapshot(table, source)
        schema = _choose_schema(table, snapshot)
        files, passed_over = _list_files(table, schema, snapshot, source)
        return _describe_files(table, schema, files, passed_over, snapshot, source)


def choose_state(source: Source) -> dict[str, int | None]:
    """Choose the snapshot that a source reads, as the key that names it."""
    table = load_table(source.iceberg or "", "source.iceberg")
    with named_errors(source.iceberg or "", "source.iceberg"):
        snapshot = choose_snapshot(table, source)
    return {"snapshot": snapshot.snapshot_id if snapshot else None}


def _choose_schema(table: Table, snapshot: Snapshot | None) -> Schema:
    """The schema of the table for its current snapshot, else that with which the snapshot was written."""
    current = table.current_snapshot()
    if snapshot is None or snapshot.schema_id is None or (current and current.snapshot_id == snapshot.snapshot_id):
        return table.schema()
    return table.schemas().get(snapshot.schema_id, table.schema())


def _list_files(table: Table, schema: Schema, snapshot: Snapshot | None, source: Source) -> tuple[list[DataFile], int]:
    """(the data files by their paths, how many others are in manifests that the filter leaves out); a DataError for
    files that are not Parquet, and for deleted rows."""
    passed_over = 0
    if snapshot is None:
        return [], 0
    if source.since is None:
        manifests = snapshot.manifests(table.io)
        chosen = _choose_manifests(table, schema, manifests, source)
        passed_over = sum(_count_files(one) for one in manifests) - sum(_count_files(one) for one in chosen)
        tasks = ManifestGroupPlanner(table.metadata, table.io).plan_files(chosen)
    else:
        check_appends(table, source, snapshot)
        if source.since == snapshot.snapshot_id:
            return [], 0
        tasks = table.incremental_append_scan(
            from_snapshot_id_exclusive=int(source.since), to_snapshot_id_inclusive=snapshot.snapshot_id
        ).plan_files()
    files = []
    for task in tasks:
        if task.delete_files:
            raise DataError(
                "the table has deleted rows, which rowmill does not read",
                where=f"source.iceberg = {source.iceberg}, {to_path(task.file.file_path)}",
                why="a delete file says which rows of the data file are gone",
                do="rewrite its data files without them (in Spark: CALL system.rewrite_data_files(table => '..', "
                "options => map('delete-file-threshold', '1'))), or read a snapshot from before the delete",
            )
        if task.file.file_format != FileFormat.PARQUET or task.file.content != DataFileContent.DATA:
            raise DataError(
                f"the table has files of {task.file.file_format.name}",
                where=f"source.iceberg = {source.iceberg}, {to_path(task.file.file_path)}",
                why="rowmill reads tables of Parquet files only",
                do="rewrite its data files with write.format.default = parquet",
            )
        files.append(task.file)
    return sorted(files, key=lambda file: os.fsencode(file.file_path)), passed_over


def _count_files(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def _choose_manifests(
    table: Table, schema: Schema, manifests: Sequence[ManifestFile], source: Source
) -> list[ManifestFile]:
    """Choose the manifests that have to be read: those whose partitions may have rows for the filter, and all of
    deleted rows."""
    of_data = [one for one in manifests if one.content == ManifestContent.DATA]
    partitions = _PartitionsOfManifests(table, of_data)
    ids = {field.name: field.field_id for field in schema.fields}

    def find_bounds(name: str, dtype: pa.DataType) -> Bounds | None:
        return as_bounds(*partitions.bounds(ids[name], dtype), dtype)

    mask = choose_files(source, schema_to_pyarrow(schema), len(of_data), find_bounds)
    left_out = {one.manifest_path for one, stays in zip(of_data, mask, strict=True) if not stays}
    return [one for one in manifests if one.manifest_path not in left_out]


def check_appends(table: Table, source: Source, snapshot: Snapshot) -> None:
    """A DataError if anything but appends happened to the table after the snapshot `source.since`."""
    where = f"source.iceberg = {source.iceberg}"
    if source.since == "last":
        raise JobError(
            "since: last is for a run with a base, whose snapshot it goes on from",
            where=where,
            do="run it with rowmill refit, or name a base in the job; or give the id of a snapshot",
        )
    again = "read the whole table again: a fit (rowmill run without base) learns from it as it is now"
    start = table.snapshot_by_id(int(source.since or 0))
    if start is None:
        why = f"snapshot {source.since} has expired: what came after it is not known"
        raise DataError("the table cannot be read from the last snapshot on", where=where, why=why, do=again)
    if start.snapshot_id not in {one.snapshot_id for one in ancestors_of(snapshot, table.metadata)}:
        why = f"snapshot {source.since} is not among the ancestors of {snapshot.snapshot_id}: the table was rolled back"
        raise DataError("the table cannot be read from the last snapshot on", where=where, why=why, do=again)
    for one in ancestors_between(start, snapshot, table.metadata):
        operation = one.summary.operation if one.summary else None
        if one.snapshot_id != start.snapshot_id and operation != Operation.APPEND:
            counts = one.summary.additional_properties if one.summary else {}
            changed = [f"{counts[key]} {key.replace('-', ' ')}" for key in CHANGES if counts.get(key, "0") != "0"]
            time = datetime.fromtimestamp(one.timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            name = operation.value if operation else "an unknown operation"
            raise DataError(
                "the table was not only appended to since the last snapshot",
                where=where,
                why=f"snapshot {one.snapshot_id} of {time} is {name}: {', '.join(changed) or 'files were replaced'}",
                do=again,
            )


CHANGES = ("deleted-records", "deleted-data-files", "added-records", "added-data-files", "added-delete-files")


def _describe_files(
    table: Table,
    schema: Schema,
    files: Sequence[DataFile],
    passed_over: int,
    snapshot: Snapshot | None,
    source: Source,
) -> TableFiles:
    arrow = schema_to_pyarrow(schema)
    ids = {field.name: field.field_id for field in schema.fields}
    partitions = _Partitions(table, files)

    def find_bounds(name: str, dtype: pa.DataType) -> Bounds | None:
        least, greatest = partitions.bounds(ids[name], dtype)
        for number, file in enumerate(files):
            kind = schema.find_type(ids[name])
            if (low := _decode(kind, file.lower_bounds, ids[name])) is not None:
                least[number] = low
            if (high := _decode(kind, file.upper_bounds, ids[name])) is not None:
                greatest[number] = high
        return as_bounds(least, greatest, dtype)

    chosen = choose_files(source, arrow, len(files), find_bounds)
    remaining = [file for file, stays in zip(files, chosen, strict=True) if stays]
    mapping = table.name_mapping()
    note = {
        "kind": "iceberg",
        "name": source.iceberg,
        "snapshot": snapshot.snapshot_id if snapshot else None,
        "schema": schema.schema_id,
        "files": len(remaining),
        "left_out": passed_over + len(files) - len(remaining),
    }
    return TableFiles(
        note if source.since is None else {**note, "since": source.since},
        [to_path(file.file_path) for file in remaining],
        arrow.remove_metadata(),
        {
            field.name: FieldId(ids[field.name], _list_names(mapping, ids[field.name]), list_field_ids(field))
            for field in arrow
        },
        _list_constants(schema, arrow, _Partitions(table, remaining)),
    )


def _decode(kind: Any, bounds: Mapping[int, bytes] | None, number: int) -> Any:
    """The bound of a column in a file; None where the metadata has none that can be read."""
    stored = (bounds or {}).get(number)
    if stored is None:
        return None
    try:
        return from_bytes(kind, stored)
    except Exception:  # written before the type of the column grew
        return None


def _list_names(mapping: NameMapping | None, number: int) -> tuple[str, ...]:
    """The names of a column in files without ids."""
    if mapping is None:
        return ()
    return next((tuple(sorted(field.names)) for field in mapping.root if field.field_id == number), ())


class _Partitions:
    """What the partitions of files say of the columns that they are made of."""

    def __init__(self, table: Table, files: Sequence[DataFile]) -> None:
        self._files = files
        self._specs = table.specs()

    def values(self, column: int, kinds: tuple[type, ...]) -> list[tuple[Any, Any] | None]:
        """By file, (the transform of one of these kinds, its value) for a column; None where there is none."""
        of_files: list[tuple[Any, Any] | None] = []
        for file in self._files:
            fields = self._specs[file.spec_id].fields
            of_file = [
                (field.transform, file.partition[place])
                for place, field in enumerate(fields)
                if field.source_id == column and isinstance(field.transform, kinds)
            ]
            of_files.append(of_file[0] if of_file else None)
        return of_files

    def bounds(self, column: int, dtype: pa.DataType) -> tuple[list[Any], list[Any]]:
        """By file, the least and the greatest value that a column may have in its partition; None: not known."""
        least: list[Any] = []
        greatest: list[Any] = []
        for known in self.values(column, (IdentityTransform, *SPANS)):
            low, high = (None, None) if known is None or known[1] is None else _find_span(*known, dtype)
            least.append(low)
            greatest.append(high)
        return least, greatest


class _PartitionsOfManifests:
    """What the partitions of the files of manifests say of the columns that they are made of."""

    def __init__(self, table: Table, manifests: Sequence[ManifestFile]) -> None:
        self._manifests = manifests
        self._specs = table.specs()
        self._schema = table.schema()

    def bounds(self, column: int, dtype: pa.DataType) -> tuple[list[Any], list[Any]]:
        """By manifest, the least and the greatest value that a column may have; None: not known."""
        pairs = [self._find_bounds(manifest, column, dtype) for manifest in self._manifests]
        return [low for low, _ in pairs], [high for _, high in pairs]

    def _find_bounds(self, manifest: ManifestFile, column: int, dtype: pa.DataType) -> tuple[Any, Any]:
        for place, field in enumerate(self._specs[manifest.partition_spec_id].fields):
            if field.source_id != column or not isinstance(field.transform, (IdentityTransform, *SPANS)):
                continue
            summary = (manifest.partitions or [])[place : place + 1]
            source = next((one.field_type for one in self._schema.fields if one.field_id == column), None)
            if not summary or source is None:
                return None, None
            kind = field.transform.result_type(source)
            low, high = (
                None if stored is None else _decode(kind, {column: stored}, column)
                for stored in (summary[0].lower_bound, summary[0].upper_bound)
            )
            if low is None or high is None:
                return None, None
            return _find_span(field.transform, low, dtype)[0], _find_span(field.transform, high, dtype)[1]
        return None, None


def _find_span(transform: Any, value: Any, dtype: pa.DataType) -> tuple[Any, Any]:
    """The least and the greatest value of a column that a transform turns into this value."""
    if isinstance(transform, IdentityTransform):
        return value, value
    start, end = SPANS[type(transform)](value), SPANS[type(transform)](value + 1)
    if pa.types.is_date(dtype):
        return start // DAY, end // DAY - 1
    if not pa.types.is_timestamp(dtype) or dtype.unit != "us":
        return None, None
    return start, end - 1


def _start_of_month(number: int) -> int:
    time = datetime(1970 + number // 12, number % 12 + 1, 1, tzinfo=UTC)
    return int(time.timestamp()) * 10**6


# By transform, the first microsecond since 1970 of a value.
SPANS: dict[type, Callable[[int], int]] = {
    HourTransform: lambda value: value * DAY // 24,
    DayTransform: lambda value: value * DAY,
    MonthTransform: _start_of_month,
    YearTransform: lambda value: _start_of_month(12 * value),
}


def _list_constants(schema: Schema, arrow: pa.Schema, partitions: _Partitions) -> dict[str, list[str | None]]:
    """By column, for each file the text of the value that a file without the column has in all rows: that of its
    partition, or the default of the column."""
    constants = {}
    for field in schema.fields:
        dtype = arrow.field(field.name).type
        if pa.types.is_nested(dtype) or pa.types.is_binary(dtype) or pa.types.is_fixed_size_binary(dtype):
            continue
        known = partitions.values(field.field_id, (IdentityTransform,))
        default = getattr(field, "initial_default", None)
        values = [default if of_file is None else of_file[1] for of_file in known]
        if any(value is not None for value in values):
            constants[field.name] = to_texts(to_arrow(values, dtype))
    return constants
