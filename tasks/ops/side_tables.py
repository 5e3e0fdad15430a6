"""Small tables beside the data: Parquet or CSV files that every worker needs whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq

from tasks.core.dtypes import plain_type
from tasks.core.units import amount
from tasks.errors import DataError, JobError
from tasks.storage.allowed_roots import allowed_name, check_files_in

MOST_BYTES = 4 << 30


def read_side_table(path: str, columns: list[str] | None = None) -> pa.Table:
    """The whole table of a Parquet or CSV file (or a folder of Parquet files); strings plain, NaN null.

    A JobError if there is no such file or it is neither; a DataError if it cannot be read.
    """
    file = _existing(path)
    try:
        with _opened(file) as name:
            if file.suffix in (".csv", ".tsv"):
                table = pc_csv.read_csv(name, parse_options=_delimiter(file))
                table = table if columns is None else table.select(columns)
            else:
                table = pq.read_table(name, columns=columns)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise DataError(
            "the side table cannot be read", where=path, why=str(error), do="mend or replace the file"
        ) from None
    if table.nbytes > MOST_BYTES:
        raise JobError(
            f"the side table has {amount(table.nbytes)}; it is copied to every worker",
            where=path,
            do=f"name fewer columns, or join so large a table before (at most {amount(MOST_BYTES)})",
        )
    return pa.table([_plain(c) for c in table.columns], table.column_names)


def side_schema(path: str) -> pa.Schema:
    """Names and types of the columns, from the footer (of a CSV file: from its text)."""
    file = _existing(path)
    if file.suffix in (".csv", ".tsv"):
        schema = read_side_table(path).schema
    else:
        try:
            with _opened(file) as name:
                schema = pq.read_schema(name) if file.is_file() else pq.ParquetDataset(name).schema
        except (pa.ArrowException, OSError) as error:
            raise DataError("the side table cannot be read", where=path, why=str(error)) from None
    return pa.schema([(field.name, plain_type(field.type)) for field in schema])


@contextmanager
def _opened(file: Path) -> Iterator[str]:
    """A name of the table for Arrow, inside of the allowed roots; of a folder every file in it is looked at."""
    if file.is_dir():
        check_files_in(file, "a side table")
        yield str(file)
    else:
        with allowed_name(file, "a side table") as name:
            yield name


def _existing(path: str) -> Path:
    file = Path(path)
    if not file.exists():
        raise JobError(f"there is no side table {path!r}", do="give the path of a Parquet or CSV file")
    if file.is_file() and file.suffix not in (".parquet", ".pq", ".csv", ".tsv"):
        raise JobError(f"the side table {path!r} is neither .parquet nor .csv or .tsv", do="convert it to Parquet")
    return file


def _delimiter(file: Path) -> pc_csv.ParseOptions:
    return pc_csv.ParseOptions(delimiter="\t" if file.suffix == ".tsv" else ",")


def _plain(column: pa.ChunkedArray) -> pa.Array:
    plain = plain_type(column.type)
    values = (column if column.type == plain else column.cast(plain)).combine_chunks()
    values = values if isinstance(values, pa.Array) else pa.array([], plain)
    return pc.if_else(pc.is_nan(values), None, values) if pa.types.is_floating(plain) else values
