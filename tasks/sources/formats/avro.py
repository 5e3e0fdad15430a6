"""Avro: runs of its blocks, counted once by their headers, decoded record by record by fastavro."""

from __future__ import annotations

import hashlib
import io
import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.dtypes import dtype_name
from tasks.core.plan import File, Piece, ReadOptions, Unit
from tasks.engines.convert.python_values import to_storage_type
from tasks.engines.convert.type_widening import widest
from tasks.errors import DataError, RowmillError
from tasks.sources.formats import julian_days
from tasks.sources.formats.avro_blocks import Header, Walk, header, read_checked_blocks
from tasks.sources.formats.conform import concatenate_tables
from tasks.sources.formats.survey import Inspected
from tasks.sources.formats.text_ranges import merge_pieces
from tasks.storage.files import open_binary

RUN_ROWS = 64 * 2**10
RUN_BYTES = 2 * 2**20  # of records that are Python objects at once, which take twenty times as much
# bytes that are read at once: of a file read from end to end, of its beginning
INSPECTED = 2**22
HEADER = 2**14
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
TIMES = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}


def inspect(file: File, options: ReadOptions) -> Inspected:
    """Schema and runs of blocks of at least 64 Ki rows; the digest is of the whole file, which is read anyway."""
    digest = hashlib.sha256()
    units: list[Unit] = []
    start = None
    rows = 0
    with (
        _whole(file.path),
        open_binary(file, options.get("storage_options")) as raw,
        _make_buffered_reader(raw, INSPECTED) as source,
    ):
        begun = header(source, file.path)
        schema = Types(begun.schema).schema
        for block in read_checked_blocks(source, begun, begun.end, file.size, file.path, options):
            start = block.start if start is None else start
            rows += block.records
            digest.update(block.data)
            stop = block.stop
            if rows >= RUN_ROWS:
                units.append(Unit(Piece(0, start, stop), rows, stop - start))
                start = None
                rows = 0
        if start is not None:
            units.append(Unit(Piece(0, start, stop), rows, stop - start))
    return Inspected(replace(file, digest=digest.hexdigest()), schema, tuple(units))


class Types:
    """The Arrow types of an Avro schema: records are structs, fixed bytes of one size, unions of numbers the wider
    number; other unions, and records that hold themselves, are JSON texts.

    `unbounded`: whether a few bytes of such records may hold any number of values: records in records of the same name,
    lists of what takes no byte.
    """

    def __init__(self, record: dict[str, Any]) -> None:
        import fastavro

        self.unbounded = False
        self.named: dict[str, pa.DataType | None] = {}  # None: the definition has not ended
        self.schema = pa.schema(list(self._type(fastavro.parse_schema(record))))

    def _type(self, avro: Any) -> pa.DataType:
        if isinstance(avro, list):
            return _union([self._type(t) for t in avro if t != "null"])
        if isinstance(avro, str):
            known = TYPES[avro] if avro in TYPES else self.named[avro]
            self.unbounded |= known is None
            return pa.string() if known is None else known
        if "name" not in avro:
            return self._to_arrow_type(avro)
        self.named[avro["name"]] = None
        dtype = self.named[avro["name"]] = self._to_arrow_type(avro)
        return dtype

    def _to_arrow_type(self, avro: dict[str, Any]) -> pa.DataType:
        kind = avro["type"]
        logical = avro.get("logicalType")
        self.unbounded |= avro.get("size") == 0
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return pa.decimal128(avro["precision"], avro.get("scale", 0))
        if kind == "array":
            items = self._type(avro["items"])
            self.unbounded |= _takes_no_byte(items)
            return pa.list_(items)
        if kind == "map":
            return pa.map_(pa.string(), self._type(avro["values"]))
        if kind in ("record", "error"):
            return pa.struct([(f["name"], self._type(f["type"])) for f in avro["fields"]])
        if kind in ("fixed", "enum"):
            return pa.binary(avro["size"]) if kind == "fixed" else pa.string()
        return TIMES[logical] if kind in ("int", "long") and logical in TIMES else TYPES[kind]


def _takes_no_byte(dtype: pa.DataType) -> bool:
    return pa.types.is_null(dtype) or (pa.types.is_struct(dtype) and all(_takes_no_byte(f.type) for f in dtype))


def _union(types: Sequence[pa.DataType]) -> pa.DataType:
    distinct = list(dict.fromkeys(types))
    if len(distinct) < 2:
        return distinct[0] if distinct else pa.null()
    return widest(distinct) if all(pa.types.is_integer(t) or pa.types.is_floating(t) for t in distinct) else pa.string()


def _column(values: Sequence[Any], field: pa.Field, avro: object) -> pa.Array:
    dtype = field.type
    if logical := _time(avro):
        numbers = pa.array(values, to_storage_type(dtype))
        millis = logical in ("timestamp-millis", "local-timestamp-millis")
        return (pc.multiply_checked(numbers, 1000) if millis else numbers).view(dtype)
    if pa.types.is_nested(dtype) or pa.types.is_string(dtype):
        values = [_to_arrow_value(value, dtype) for value in values]
    try:
        return pa.array(values, dtype)
    except pa.ArrowInvalid as error:  # of a union of numbers: whole ones beyond 2^53 beside fractions
        raise DataError(
            f"column {field.name!r} has a number that {dtype_name(dtype)} does not hold",
            why=str(error).split("\n")[0],
            do="write it in one type (a string, a decimal), or leave the column out",
        ) from None


def _time(avro: object) -> str | None:
    """The logical type of a field of times, or null."""
    kinds = [kind for kind in avro if kind != "null"] if isinstance(avro, list) else [avro]
    if len(kinds) != 1 or not isinstance(kinds[0], dict) or kinds[0]["type"] not in ("int", "long"):
        return None
    logical = kinds[0].get("logicalType")
    return logical if logical in TIMES else None


def _with_numbers(record: dict[str, Any]) -> dict[str, Any]:
    """The schema with the numbers that store times: Python's times end at the year 9999, and take long to make."""
    fields = [f | {"type": _strip_logical_type(f["type"])} if _time(f["type"]) else f for f in record["fields"]]
    return record | {"fields": fields}


def _strip_logical_type(avro: object) -> object:
    if isinstance(avro, list):
        return [_strip_logical_type(kind) for kind in avro]
    return avro["type"] if isinstance(avro, dict) else avro


def _to_arrow_value(value: Any, dtype: pa.DataType) -> object:
    """A value as Arrow takes it: maps as pairs, other values without an Arrow type as text."""
    if value is None or (isinstance(value, str) and pa.types.is_string(dtype)):
        return value
    if pa.types.is_string(dtype):
        return str(value) if isinstance(value, uuid.UUID) else json.dumps(value, default=str, ensure_ascii=False)
    if pa.types.is_struct(dtype):
        return {field.name: _to_arrow_value(value[field.name], field.type) for field in dtype}
    if pa.types.is_map(dtype):
        return [(key, _to_arrow_value(item, dtype.item_type)) for key, item in value.items()]
    return [_to_arrow_value(item, dtype.value_type) for item in value] if pa.types.is_list(dtype) else value


def read(files: Sequence[File], pieces: Sequence[Piece], schema: pa.Schema, options: ReadOptions) -> pa.Table:
    """The rows of the pieces, in their order, as `schema` says."""
    tables: list[pa.Table] = []
    for piece in merge_pieces(pieces):
        file = files[piece.file]
        with _whole(file.path):
            with open_binary(file, options.get("storage_options")) as raw, _make_buffered_reader(raw, HEADER) as source:
                begun = header(source, file.path)
                source.seek(piece.start)
                data = source.read(piece.stop - piece.start)
            types = Types(begun.schema)
            avro_types = {f["name"]: f["type"] for f in begun.schema["fields"]}
            fields = [types.schema.field(name) for name in schema.names]
            for run in _decode_runs(begun, data, piece, types.unbounded, file.path, options):
                columns = {f.name: _column([row[f.name] for row in run], f, avro_types[f.name]) for f in fields}
                table = pa.table(columns or {"": pa.nulls(len(run))})
                tables.append(julian_days.of_avro(table, begun.schema.get("name", ""), begun.metadata, file.path))
    return concatenate_tables(tables, schema)


def _decode_runs(
    begun: Header, data: bytes, piece: Piece, unbounded: bool, path: str, options: ReadOptions
) -> Iterator[list[Any]]:
    """Decode the records of a piece, in runs; times of columns are numbers."""
    import fastavro

    named: dict[str, Any] = {}
    schema = _with_numbers(begun.schema)
    record = fastavro.parse_schema(schema, named)
    stored = read_checked_blocks(io.BytesIO(data), begun, piece.start, piece.stop, path, options)
    blocks: Any = fastavro.block_reader(begun.file_of(schema, data))
    run: list[Any] = []
    nbytes = 0
    for block, decoded in zip(stored, blocks, strict=True):  # the stored block is checked before it is decompressed
        size = len(decoded.bytes_.getbuffer())
        with _whole(f"{path}, block at byte {block.start:,}"):
            if unbounded:
                walk = Walk(decoded.bytes_, size, named, path)
                for _ in range(block.records):
                    walk.check(record)
                decoded.bytes_.seek(0)
            run += decoded
            if decoded.bytes_.read(1):
                raise ValueError("bytes are left after its last record")
        nbytes += size
        if nbytes >= RUN_BYTES:
            yield run
            run = []
            nbytes = 0
    yield run


def _make_buffered_reader(source: object, nbytes: int) -> Any:
    """The file with a buffer; a local file fills it page by page, a storage fetches it at once."""
    return io.BufferedReader(source, nbytes)


@contextmanager
def _whole(path: str) -> Iterator[None]:
    """Turns errors of codecs and of fastavro, which have classes of their own, into a DataError that names the file."""
    try:
        yield
    except (RowmillError, MemoryError):
        raise
    except Exception as error:
        ended = isinstance(error, EOFError)
        raise DataError(
            "this is not a whole Avro file",
            where=path,
            why=str(error).split("\n")[0] or ("it ends within a value" if ended else type(error).__name__),
            do="write it again, leave it out of source.path, or say its format in source.format",
        ) from None
