"""Tables of Delta, by delta-rs: the version that is read, its data files, and what is known of their columns."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tasks.core.settings import Source
from tasks.core.units import nanoseconds
from tasks.errors import DataError, JobError, RowmillError
from tasks.lake.pruning import choose_files, to_texts
from tasks.sources.formats.parquet_bounds import Bounds
from tasks.sources.formats.parquet_fields import FieldId
from tasks.sources.table_files import TableFiles
from tasks.storage.allowed_roots import check_files_in, check_path
from tasks.storage.cloud_options import cloud_options, kind_of
from tasks.storage.credentials import StorageOptions, storage
from tasks.storage.files import is_remote, local_path

LOG = "_delta_log"
# What a reader has to know of a table that names it: features that change nothing for the files of a version.
KNOWN_FEATURES = {
    "timestampNtz", "vacuumProtocolCheck", "v2Checkpoint", "typeWidening", "typeWidening-preview", "columnMapping",
    "deletionVectors",
}  # fmt: skip
MILLISECOND = pa.scalar(1_000, pa.duration("us"))


@contextmanager
def named_errors(path: str, where: str, passing: type[Exception] | tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn the errors of delta-rs, but for those `passing`, into some that name the table and what to do."""
    try:
        yield
    except RowmillError:
        raise
    except passing:
        raise
    except TableNotFoundError:
        do = f"correct the path: it is the folder that has {LOG}"
        raise JobError("there is no table of Delta", where=f"{where} = {path}", do=do) from None
    except Exception as error:  # of storages, logs and features
        raise DataError(
            "the table cannot be used",
            where=f"{where} = {path}",
            why=str(error).split("\n")[0],
            do="check the path and the options of its storage; a table that needs features of newer "
            "programs has to be used with Spark",
        ) from None


def table_options(path: str, options: StorageOptions) -> dict[str, str]:
    """The options of a storage as delta-rs takes them; those of the clouds come from the environment as well."""
    if kind_of(path) is None:
        return {}
    cloud = cloud_options(path, options)
    more = {"allow_http": "true"} if cloud.client.get("allow_http") else {}
    return {name: _write_option(value) for name, value in cloud.config.items()} | more


def _write_option(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def open_table(path: str, options: StorageOptions, where: str, version: int | None = None) -> DeltaTable:
    """Open a table at a version, the newest one if that is None; its log lies inside of the allowed roots."""
    check_path(path, where)
    place = path
    if not is_remote(path):
        place = local_path(path)
        check_files_in(Path(place) / LOG, where)  # a link there may lead elsewhere
    with named_errors(path, where):
        return DeltaTable(place, version=version, storage_options=table_options(path, options))


def read_table(source: Source) -> TableFiles:
    """Read the data files of the table of a source that may have rows for its filter."""
    path = str(source.path)
    table = _open_state(source)
    with named_errors(path, "source.delta"):
        _check_features(table, path)
        return _describe_files(table, path, source)


def choose_state(source: Source) -> dict[str, int | None]:
    """Choose the version that a source reads, as the key that names it."""
    return {"version": _open_state(source).version()}


def _open_state(source: Source) -> DeltaTable:
    options = storage(source.storage_options, "source.storage_options")
    table = open_table(str(source.path), options, "source.delta", source.version)
    if source.as_of is not None:
        with named_errors(str(source.path), "source.delta"):
            table.load_as_version(_parse_time(source.as_of))
    return table


def _parse_time(text: str) -> datetime:
    try:
        return datetime.fromtimestamp(nanoseconds(text) / 10**9, UTC)
    except ValueError:
        do = "write it as 2026-11-01, or 2026-11-01 06:00"
        raise JobError(f"{text!r} is not a time", where="source.as_of", do=do) from None


def _check_features(table: DeltaTable, path: str) -> None:
    """A DataError for a table whose files do not have the rows of the table under the names of its columns."""
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    unknown = sorted({*(table.protocol().reader_features or ())} - KNOWN_FEATURES)
    deleted = pa.table(table.deletion_vectors()).num_rows
    if deleted:
        what = "the table has deleted rows, which rowmill does not read"
        why = f"deletion vectors say which rows of {deleted:,} data file(s) are gone"
        do = "rewrite these files without them (in Spark: REORG TABLE .. APPLY (PURGE)), or read an earlier version"
    elif mode != "none":
        what = "the table renames its columns, which rowmill does not follow"
        why = f"delta.columnMapping.mode is {mode}: the files have other names than the table"
        do = "write the table anew without column mapping, or write its rows as Parquet files and read those"
    elif unknown:
        what = f"the table needs a feature of readers that rowmill lacks: {', '.join(unknown)}"
        why = "its rows would not be read as its writer means them"
        do = "drop the feature (in Spark: ALTER TABLE .. DROP FEATURE), or write its rows as Parquet files"
    else:
        return
    raise DataError(what, where=f"source.delta = {path}, version {table.version()}", why=why, do=do)


def _describe_files(table: DeltaTable, path: str, source: Source) -> TableFiles:
    schema = pa.schema(table.schema().to_arrow())
    partitions = table.metadata().partition_columns
    actions = pa.table(table.get_add_actions(flatten=True))
    paths = [_locate(path, place) for place in actions["path"].to_pylist()]
    order = sorted(range(len(paths)), key=lambda number: os.fsencode(paths[number]))
    actions = actions.take(pa.array(order, pa.int64()))
    paths = [paths[number] for number in order]

    def find_bounds(name: str, dtype: pa.DataType) -> Bounds | None:
        if name in partitions:
            values = actions[f"partition.{name}"].combine_chunks().cast(dtype)
            return Bounds(values, values)
        if f"min.{name}" not in actions.column_names:
            return None
        least, greatest = (actions[f"{bound}.{name}"].combine_chunks().cast(dtype) for bound in ("min", "max"))
        if pa.types.is_timestamp(dtype):  # statistics have milliseconds: the greatest is cut
            greatest = pc.add(greatest, MILLISECOND).cast(dtype)
        return Bounds(least, greatest)

    chosen = choose_files(source, schema, len(paths), find_bounds)
    remaining = [path for path, stays in zip(paths, chosen, strict=True) if stays]
    note = {
        "kind": "delta",
        "name": path,
        "version": table.version(),
        "files": len(remaining),
        "left_out": len(paths) - len(remaining),
    }
    chosen_actions = actions.filter(pa.array(chosen))
    return TableFiles(
        note,
        remaining,
        schema,
        {name: FieldId(None, (name,)) for name in schema.names if name not in partitions},
        _list_constants(chosen_actions, schema, partitions),
    )


def _locate(table: str, path: str) -> str:
    """The place of a data file whose path the log writes as a URL, from the table's folder unless it is a whole one.

    >>> _locate("s3://lake/clicks", "p=a%2520b/x.parquet"), _locate("/lake", "s3://other/y.parquet")
    ('s3://lake/clicks/p=a%20b/x.parquet', 's3://other/y.parquet')
    """
    place = unquote(path)
    if "://" in place or place.startswith("/"):
        return place
    return f"{table.rstrip('/')}/{place}"


def _list_constants(actions: pa.Table, schema: pa.Schema, partitions: Sequence[str]) -> dict[str, list[str | None]]:
    """By column that partitions are made of, the text of its value for each file: no file has the column."""
    columns = {name: actions[f"partition.{name}"].combine_chunks() for name in partitions}
    return {name: to_texts(column.cast(schema.field(name).type)) for name, column in columns.items()}
