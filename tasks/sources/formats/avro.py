"""Avro: runs of its blocks, counted once by their headers, read through fastavro."""

from __future__ import annotations

import hashlib
import io
import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa

from tasks.core.plan import File, Piece, Unit
from tasks.engines.convert.type_widening import widest
from tasks.errors import DataError, RowmillError
from tasks.sources.formats.avro_blocks import check_records, check_stored, header, is_deep, stored_blocks
from tasks.sources.formats.avro_columns import NotPlain, columns_of, plain_fields
from tasks.sources.formats.conform import conform
from tasks.sources.formats.survey import Inspected
from tasks.sources.formats.text_ranges import merged
from tasks.storage.files import open_binary

RUN_ROWS = 64 * 2**10
INSPECTED, HEADER = 2**22, 2**14  # bytes that are read at once: of a file read from end to end, of its beginning
RUN_BYTES = 32 * 2**20  # of blocks that are decoded at once
TYPES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
LOGICAL = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "uuid": pa.string(),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}


def inspect(file: File, options: dict[str, Any]) -> Inspected:
    """Schema and runs of blocks of at least 64 Ki rows; the digest is of the whole file, which is read anyway."""
    digest = hashlib.sha256()
    units: list[Unit] = []
    start, rows = None, 0
    with (
        _whole(file.path),
        open_binary(file, options.get("storage_options")) as raw,
        _buffered(raw, INSPECTED) as source,
    ):
        begun = header(source, file.path)
        schema = arrow_schema(begun.schema, file.path)
        for block in stored_blocks(source, begun.end, file.size, begun.sync):
            check_stored(block, begun.codec, file.path, options)
            start = block.start if start is None else start
            rows += block.records
            digest.update(block.data)
            stop = block.stop
            if rows >= RUN_ROWS:
                units.append(Unit(Piece(0, start, stop), rows, stop - start))
                start, rows = None, 0
        if start is not None:
            units.append(Unit(Piece(0, start, stop), rows, stop - start))
    return Inspected(replace(file, digest=digest.hexdigest()), schema, tuple(units))


def arrow_schema(record: Any, path: str) -> pa.Schema:
    """The Arrow schema of an Avro record: records are structs, fixed bytes of one size, unions of numbers the wider
    number; other unions, and records that hold themselves, are JSON texts."""
    if not isinstance(record, dict) or record.get("type") != "record":
        raise DataError("an Avro file does not hold records", where=path, do="write records with named fields")
    named: dict[str, pa.DataType] = dict.fromkeys(_names(record), pa.string())
    return pa.schema([(f["name"], _arrow_type(f["type"], named)) for f in record["fields"]])


def _arrow_type(avro: Any, named: dict[str, pa.DataType]) -> pa.DataType:
    if isinstance(avro, list):
        return _union([_arrow_type(t, named) for t in avro if t != "null"])
    described = avro if isinstance(avro, dict) else {"type": avro}
    kind, logical = described["type"], described.get("logicalType")
    if logical == "decimal":
        return pa.decimal128(described["precision"], described.get("scale", 0))
    if logical in LOGICAL:
        return LOGICAL[logical]
    if isinstance(kind, (dict, list)):
        return _arrow_type(kind, named)
    if kind == "array":
        return pa.list_(_arrow_type(described["items"], named))
    if kind == "map":
        return pa.map_(pa.string(), _arrow_type(described["values"], named))
    if kind in ("record", "error", "fixed", "enum"):
        return _named_type(kind, described, named)
    return TYPES[kind] if kind in TYPES else named[kind]


def _named_type(kind: str, described: dict[str, Any], named: dict[str, pa.DataType]) -> pa.DataType:
    """The type of what has a name, by which others call it: whole, or without its namespace."""
    names = _names(described)
    named |= dict.fromkeys(names, pa.string())
    if kind == "fixed":
        named |= dict.fromkeys(names, pa.binary(described["size"]))
    elif kind != "enum":
        fields = [(f["name"], _arrow_type(f["type"], named)) for f in described["fields"]]
        named |= dict.fromkeys(names, pa.struct(fields))
    return named[described["name"]]


def _names(described: Any) -> set[str]:
    short = described["name"].rpartition(".")[2]
    return {described["name"], short, f"{described['namespace']}.{short}" if described.get("namespace") else short}


def _union(types: Sequence[pa.DataType]) -> pa.DataType:
    distinct = list(dict.fromkeys(types))
    if len(distinct) < 2:
        return distinct[0] if distinct else pa.null()
    return widest(distinct) if all(pa.types.is_integer(t) or pa.types.is_floating(t) for t in distinct) else pa.string()


def _column(values: Sequence[Any], dtype: pa.DataType, avro: Any) -> pa.Array:
    if pa.types.is_nested(dtype) or (pa.types.is_string(dtype) and not _is_text(avro)):
        values = [_plain(value, dtype) for value in values]
    return pa.array(values, dtype)


def _is_text(avro: Any) -> bool:
    """Whether values of an Avro type are texts already, or null."""
    if isinstance(avro, list):
        return all(_is_text(t) for t in avro)
    if isinstance(avro, dict):  # Java's writers add of which class their texts are
        return avro["type"] == "string" and "logicalType" not in avro
    return avro in ("string", "null")


def _plain(value: Any, dtype: pa.DataType) -> Any:
    """A value as Arrow takes it: maps as pairs, other values without an Arrow type as text."""
    if value is None or (isinstance(value, str) and pa.types.is_string(dtype)):
        return value
    if pa.types.is_string(dtype):
        return str(value) if isinstance(value, uuid.UUID) else json.dumps(value, default=str, ensure_ascii=False)
    if pa.types.is_struct(dtype):
        return {field.name: _plain(value[field.name], field.type) for field in dtype}
    if pa.types.is_map(dtype):
        return [(key, _plain(item, dtype.item_type)) for key, item in value.items()]
    return [_plain(item, dtype.value_type) for item in value] if pa.types.is_list(dtype) else value


def read(files: Sequence[File], pieces: Sequence[Piece], schema: pa.Schema, options: dict[str, Any]) -> pa.Table:
    """The rows of the pieces, in their order, as `schema` says."""
    import fastavro

    storage = options.get("storage_options")
    tables: list[pa.Table] = []
    for piece in merged(pieces):
        path = files[piece.file].path
        with _whole(path):
            with open_binary(files[piece.file], storage) as raw, _buffered(raw, HEADER) as source:
                begun = header(source, path)
                source.seek(0)
                data = source.read(begun.end)
                source.seek(piece.start)
                data += source.read(piece.stop - piece.start)
            for block in stored_blocks(io.BytesIO(data), begun.end, len(data), begun.sync):
                check_stored(block, begun.codec, path, options)
            file_schema = arrow_schema(begun.schema, path)
            types = pa.schema([file_schema.field(n) for n in schema.names or file_schema.names[:1]])
            blocks = fastavro.block_reader(io.BytesIO(data))
            runs = _runs(cast("Iterator[Any]", blocks))
            tables += [_table(run, blocks.writer_schema, types, path) for run in runs]
    return conform(pa.concat_tables(tables), schema)


def _runs(blocks: Iterator[Any]) -> Iterator[list[Any]]:
    """Blocks of together as many bytes as are decoded at once."""
    run, nbytes = [], 0
    for block in blocks:
        run.append(block)
        nbytes += len(block.bytes_.getbuffer())
        if nbytes >= RUN_BYTES:
            yield run
            run, nbytes = [], 0
    if run:
        yield run


def _table(blocks: list[Any], record: Any, types: pa.Schema, path: str) -> pa.Table:
    """The columns of blocks: all values of a field at once where they are plain, else record by record."""
    try:
        fields, counts = plain_fields(record), [block.num_records for block in blocks]
        return columns_of([block.bytes_.getbuffer() for block in blocks], counts, fields, types)
    except (NotPlain, pa.ArrowException):  # fastavro says what is wrong with values that are none
        if is_deep(record):
            for block in blocks:
                check_records(record, bytes(block.bytes_.getbuffer()), block.num_records, path)
        rows: list[Any] = [row for block in blocks for row in block]
    avro_types = {f["name"]: f["type"] for f in record["fields"]}
    return pa.table({f.name: _column([row[f.name] for row in rows], f.type, avro_types[f.name]) for f in types})


def _buffered(source: Any, nbytes: int) -> Any:
    """The file with a buffer; a local file fills it page by page, a storage fetches it at once."""
    return io.BufferedReader(source, nbytes)


@contextmanager
def _whole(path: str) -> Iterator[None]:
    """Turns errors of codecs and of fastavro, which have classes of their own, into a DataError that names the file."""
    try:
        yield
    except RowmillError:
        raise
    except MemoryError:
        raise
    except Exception as error:
        raise _broken(path, error) from None


def _broken(path: str, error: Exception) -> DataError:
    return DataError(
        "this is no whole Avro file",
        where=path,
        why=str(error).split("\n")[0] or type(error).__name__,
        do="write it again, leave it out of source.path, or say its format in source.format",
    )
