"""ORC: stripes like row groups. The footer tells rows per file; rows per stripe come from its narrowest column."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.orc as paorc

from tasks.core.plan import File, Piece, ReadOptions, Unit, rows_together
from tasks.errors import DataError
from tasks.sources.formats import julian_days, orc_footer
from tasks.sources.formats.bounds import MOST_ROWS, readable, validate_table
from tasks.sources.formats.conform import concatenate_tables
from tasks.sources.formats.survey import Inspected
from tasks.storage.files import open_binary, read_range

TAIL = 64 * 2**10


def inspect(file: File, options: ReadOptions) -> Inspected:
    """Schema and stripes of one file; the digest is of its last 64 KiB, which hold the footer."""
    storage = options.get("storage_options")
    tail = read_range(file, max(0, file.size - TAIL), file.size, storage)
    try:
        with open_binary(file, storage) as source:
            orc = paorc.ORCFile(pa.PythonFile(source, mode="r"))
            schema = readable(orc.schema)
            rows = _stripe_rows(orc)
            if any(not 0 <= n < MOST_ROWS for n in rows):
                raise pa.ArrowInvalid(f"its stripes have {rows} rows")
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _make_broken_file_error(file.path, error) from None
    units = tuple(Unit(Piece(0, 0, n, i), n, file.size * 2 * n // max(1, sum(rows))) for i, n in enumerate(rows))
    return Inspected(replace(file, digest=hashlib.sha256(tail).hexdigest()), schema, units)


def _stripe_rows(orc: paorc.ORCFile) -> list[int]:
    if orc.nstripes < 2:
        return [orc.nrows] * orc.nstripes
    flat = [f for f in orc.schema if not pa.types.is_nested(f.type)] or list(orc.schema)
    narrow = min(flat, key=lambda f: f.type.bit_width if pa.types.is_primitive(f.type) else 10**6)
    return [orc.read_stripe(i, columns=[narrow.name]).num_rows for i in range(orc.nstripes)]


def read(files: Sequence[File], pieces: Sequence[Piece], schema: pa.Schema, options: ReadOptions) -> pa.Table:
    """The rows of the pieces, in their order, as `schema` says."""
    tables: list[pa.Table] = []
    for number in dict.fromkeys(piece.file for piece in pieces):
        path = files[number].path
        try:
            with open_binary(files[number], options.get("storage_options")) as source:
                orc = paorc.ORCFile(pa.PythonFile(source, mode="r"))
                names = schema.names or orc.schema.names[:1]
                for piece in rows_together([p for p in pieces if p.file == number]):
                    stripe = validate_table(pa.Table.from_batches([orc.read_stripe(piece.group, columns=names)]))
                    stripe = julian_days.of_orc(stripe, partial(_footer, files[number], options), path)
                    tables.append(stripe.slice(piece.start, piece.stop - piece.start).select(names))
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _make_broken_file_error(path, error) from None
    return concatenate_tables(tables, schema)


def _footer(file: File, options: ReadOptions) -> orc_footer.Footer:
    storage = options.get("storage_options")
    return orc_footer.parse(lambda start, stop: read_range(file, start, stop, storage), file.size)


def _make_broken_file_error(path: str, error: Exception) -> DataError:
    if "out of range for nanosecond" in str(error):
        return DataError(
            "a file has times that nanoseconds cannot hold",
            where=path,
            why=f"{error}; ORC is read in nanoseconds, which reach from 1677 to 2262",
            do="write the column as Parquet, or leave it out of the job",
        )
    return DataError(
        "this is not a whole ORC file",
        where=path,
        why=str(error).split("\n")[0],
        do="write it again, leave it out of source.path, or say its format in source.format",
    )
