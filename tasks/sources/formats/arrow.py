"""Arrow IPC files: record batches like row groups, counted from the file's own index.

A file from outside may say anything. Its index and the headers of its batches are looked at here before Arrow reads a
batch, what it reads is validated before it is used, and a file is read, never mapped: a process that looks at a mapped
file is killed when another one cuts the file off.
"""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from tasks.core.plan import File, Piece, ReadOptions, Unit, rows_together
from tasks.errors import DataError
from tasks.sources.formats.bounds import check_block, readable, validate_table
from tasks.sources.formats.conform import concatenate_tables, with_distinct_values
from tasks.sources.formats.survey import Inspected
from tasks.storage.files import open_binary, read_range

TAIL = 64 * 2**10
MAGIC = b"ARROW1"
RECORD_BATCH = 3  # the type of a message that holds one
HEADER_BYTES = 2**28  # of one batch, at most: some bytes per column


def inspect(file: File, options: ReadOptions) -> Inspected:
    """Schema and record batches of one file; the digest is of its last 64 KiB, which hold the index."""
    storage = options.get("storage_options")
    tail = read_range(file, max(0, file.size - TAIL), file.size, storage)
    try:
        with open_binary(file, storage) as raw, _open_as_arrow_file(raw) as source:
            schema = readable(pa.ipc.open_file(source).schema)
            batches = list(_batches(source, file.size))
    except (pa.ArrowException, OSError, struct.error, ValueError) as error:  # ValueError: bytes that are not text, too
        raise _make_broken_file_error(file.path, error) from None
    for batch in batches:
        check_block(file.path, batch.nbytes, options, f"record batch {batch.number}")
    units = tuple(Unit(Piece(0, 0, b.rows, b.number), b.rows, b.nbytes) for b in batches)
    return Inspected(replace(file, digest=hashlib.sha256(tail).hexdigest()), schema, units)


def read(files: Sequence[File], pieces: Sequence[Piece], schema: pa.Schema, options: ReadOptions) -> pa.Table:
    """The rows of the pieces, in their order, as `schema` says."""
    tables: list[pa.Table] = []
    for number in dict.fromkeys(piece.file for piece in pieces):
        path = files[number].path
        try:
            with open_binary(files[number], options.get("storage_options")) as raw, _open_as_arrow_file(raw) as source:
                names = schema.names or pa.ipc.open_file(source).schema.names[:1]
                reader = open_columns(source, names)
                for piece in rows_together([p for p in pieces if p.file == number]):
                    whole = validate_table(pa.Table.from_batches([reader.get_batch(piece.group)]))
                    batch = whole.slice(piece.start, piece.stop - piece.start)
                    tables.append(with_distinct_values(batch.select(names)))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _make_broken_file_error(path, error) from None
    return concatenate_tables(tables, schema)


def _open_as_arrow_file(raw: object) -> pa.NativeFile:
    """A file as Arrow reads it: local ones by itself, without a Python call for each piece; the one that is open."""
    return (
        pa.OSFile(f"/proc/self/fd/{raw.fileno()}", "rb") if isinstance(raw, io.FileIO) else pa.PythonFile(raw, mode="r")
    )


def open_columns(source: object, names: Sequence[str]) -> pa.ipc.RecordBatchFileReader:
    """The file's reader, which reads these columns alone."""
    schema = pa.ipc.open_file(source).schema
    wanted = [schema.get_field_index(name) for name in names]
    if min(wanted, default=0) < 0:
        missing = names[wanted.index(-1)]
        raise pa.ArrowInvalid(f"it has no column {missing!r}, or several of the name")
    return pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=sorted(set(wanted))))


# The index: flatbuffers, of which so much is read here as says where batches are and how large they will be.


@dataclass(frozen=True)
class _Batch:
    """A record batch of the index: its rows, and its bytes once they are decompressed."""

    number: int
    rows: int
    nbytes: int


@dataclass(frozen=True)
class _Table:
    """A table of a flatbuffer: fields by number, each at an offset of its own or absent."""

    data: bytes
    place: int

    def at(self, field: int) -> int:
        """Where the field's value lies; 0 if it is absent."""
        entries = self.place - self._unpack_number("i", self.place)
        if 4 + 2 * field >= self._unpack_number("H", entries):
            return 0
        offset = self._unpack_number("H", entries + 4 + 2 * field)
        return self.place + offset if offset else 0

    def number(self, code: str, field: int) -> int:
        place = self.at(field)
        return self._unpack_number(code, place) if place else 0

    def table(self, field: int) -> _Table | None:
        place = self.at(field)
        return _Table(self.data, place + self._unpack_number("I", place)) if place else None

    def structs(self, field: int, code: str) -> list[tuple[int, ...]]:
        """The structs of a vector."""
        place = self.at(field)
        if not place:
            return []
        place += self._unpack_number("I", place)
        count = self._unpack_number("I", place)
        size = struct.calcsize(code)
        if place + 4 + count * size > len(self.data):
            raise ValueError("a list of the index ends behind it")
        return list(struct.iter_unpack(code, self.data[place + 4 : place + 4 + count * size]))

    def _unpack_number(self, code: str, place: int) -> int:
        if place < 0:
            raise ValueError("the index leads out of itself")
        return int(struct.unpack_from("<" + code, self.data, place)[0])


def _root(data: bytes) -> _Table:
    return _Table(data, struct.unpack_from("<I", data)[0])


def _batches(source: object, size: int) -> Iterator[_Batch]:
    """The record batches of a file by its index and their headers; their columns are not read. ValueError where the
    index is not true."""
    length = struct.unpack("<i", _bytes(source, size - len(MAGIC) - 4, 4))[0]
    if not 0 < length <= size - 2 * len(MAGIC) - 4:
        raise ValueError("the index does not fit into the file")
    footer = _root(_bytes(source, size - len(MAGIC) - 4 - length, length))
    for number, (offset, header, body) in enumerate(footer.structs(3, "<qi4xq")):
        if not (offset >= 0 and 0 < header <= HEADER_BYTES and body >= 0 and offset + header + body <= size):
            raise ValueError(f"record batch {number} lies behind the end of the file: it was cut off, or is damaged")
        message = _bytes(source, offset, header)
        begin = 8 if message[:4] == b"\xff\xff\xff\xff" else 4
        header_table = _root(message[begin:])
        described = header_table.table(2)
        if header_table.number("B", 1) != RECORD_BATCH or described is None:
            raise ValueError(f"what the index calls record batch {number} is none")
        rows = described.number("q", 0)
        if any(not length >= 0 for length, _ in described.structs(1, "<qq")) or rows < 0:
            raise ValueError(f"record batch {number} has a negative number of rows")
        yield _Batch(number, rows, max(rows, _measure_decoded_buffers(source, described, offset + header, body)))


def _measure_decoded_buffers(source: object, described: _Table, begin: int, body: int) -> int:
    """The bytes of a batch's buffers; of compressed ones the first eight say it."""
    total = 0
    for offset, length in described.structs(2, "<qq"):
        if not (offset >= 0 and length >= 0 and offset + length <= body):
            raise ValueError("a buffer lies outside of its record batch")
        if described.at(3) and length:
            stored = struct.unpack("<q", _bytes(source, begin + offset, 8))[0]
            length = length - 8 if stored == -1 else stored
            if length < 0:
                raise ValueError("a compressed buffer has a negative size")
        total += length
    return total


def _bytes(source: Any, place: int, length: int) -> bytes:
    source.seek(place)
    data: bytes = source.read(length)
    if len(data) < length:
        raise ValueError("the file ends before its index says")
    return data


def _make_broken_file_error(path: str, error: Exception) -> DataError:
    do = "write it again (pyarrow.ipc.new_file: a stream is not a file), leave it out of source.path, or say its "
    return DataError(
        "this is not a whole Arrow IPC file",
        where=path,
        why=str(error).split("\n")[0],
        do=f"{do}format in source.format",
    )
