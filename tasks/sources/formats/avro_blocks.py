"""The header of an Avro file, its blocks as they are stored, and what a block decodes to.

Checked before fastavro decodes anything: fastavro trusts the counts and lengths of a file, and the only limit of its
recursion is the stack of the process.
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from tasks.core.plan import ReadOptions
from tasks.errors import DataError
from tasks.sources.formats.bounds import MOST_DEPTH, block_limit, check_block, make_depth_error
from tasks.sources.formats.readable_lines import depth

MAGIC = b"Obj\x01"
SYNC = 16
HEADER_SCHEMA = {
    "type": "record",
    "name": "header",
    "fields": [
        {"name": "meta", "type": {"type": "map", "values": "bytes"}},
        {"name": "sync", "type": {"type": "fixed", "name": "sync", "size": SYNC}},
    ],
}
LONGEST_HEADER = 64 * 2**20
EMPTY_RECORD = 64  # bytes of memory that a record of no bytes takes
STEP = 2**20
MOST_OF = {"deflate": 1032, "zstandard": 33_000, "lz4": 255, "null": 1}  # bytes that one byte decompresses to


@dataclass(frozen=True)
class Header:
    """The schema, codec and marker of a file, where its blocks begin, and what else its writer says."""

    schema: dict[str, Any]
    codec: str
    sync: bytes
    end: int
    metadata: dict[str, bytes]

    def file_of(self, schema: dict[str, Any], blocks: bytes) -> BinaryIO:
        """A file of stored blocks whose records are read as `schema` says."""
        import fastavro

        file = io.BytesIO()
        file.write(MAGIC)
        meta = {"avro.codec": self.codec.encode(), "avro.schema": json.dumps(schema).encode()}
        fastavro.schemaless_writer(file, HEADER_SCHEMA, {"meta": meta, "sync": self.sync})
        file.write(blocks)
        file.seek(0)
        return file


@dataclass(frozen=True)
class Stored:
    """A block as it is stored: where, how many records it says it has, its bytes, and where it ends."""

    start: int
    records: int
    data: bytes
    stop: int


class _Limited:
    """A source of which at most `LONGEST_HEADER` bytes are read."""

    def __init__(self, source: BinaryIO) -> None:
        self.source = source
        self.left = LONGEST_HEADER

    def read(self, nbytes: int) -> bytes:
        if not 0 <= nbytes <= self.left:
            raise ValueError(f"its header has a value of {nbytes:,} bytes")
        self.left -= nbytes
        return self.source.read(nbytes)


def header(source: BinaryIO, path: str) -> Header:
    """The header at the beginning of a file; ValueError or EOFError where there is none."""
    import fastavro

    if source.read(len(MAGIC)) != MAGIC:
        raise ValueError("it does not begin as Avro files do")
    stored: Any = fastavro.schemaless_reader(_Limited(source), HEADER_SCHEMA)  # type: ignore[call-arg,arg-type]
    text = stored["meta"].get("avro.schema", b"null")
    if depth(text) > 4 * MOST_DEPTH:  # a record in a record takes four levels of JSON
        raise make_depth_error(path, "its schema")
    schema = json.loads(text)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise DataError("an Avro file does not hold records", where=path, do="write records with named fields")
    metadata: dict[str, bytes] = stored["meta"]
    return Header(schema, metadata.get("avro.codec", b"null").decode(), stored["sync"], source.tell(), metadata)


def number(source: BinaryIO) -> int:
    """The number that a source stands at; EOFError at its end."""
    import fastavro

    return int(fastavro.schemaless_reader(source, "long"))  # type: ignore[call-arg,arg-type]


def read_checked_blocks(
    source: BinaryIO, begun: Header, start: int, stop: int, path: str, options: ReadOptions
) -> Iterator[Stored]:
    """The blocks that lie in a file from `start`, where the source stands, to `stop`.

    ValueError where one is not what it says, DataError where it decodes to more than `source.max_block_bytes`.
    """
    shift = start - source.tell()
    place = start
    while place < stop:
        records = number(source)
        length = number(source)
        at = source.tell() + shift
        if records < 0 or not 0 <= length <= stop - at - SYNC:
            raise ValueError(
                f"the block at byte {place:,} promises {records:,} records in {length:,} bytes, "
                f"of which {max(0, stop - at - SYNC):,} are there"
            )
        data = source.read(length)
        if source.read(SYNC) != begun.sync:
            raise ValueError(f"the block at byte {place:,} does not end with the file's marker")
        block = Stored(place, records, data, at + length + SYNC)
        _check_size(block, begun.codec, path, options)
        yield block
        place = block.stop


def _check_size(block: Stored, codec: str, path: str, options: ReadOptions) -> None:
    what = f"the block at byte {block.start:,}"
    nbytes = _count_decompressed_bytes(block.data, codec, block_limit(options))
    if block.records > nbytes:  # records of nothing but nulls take no byte of the file
        nbytes = max(nbytes, block.records * EMPTY_RECORD)
        what = f"{what} of {block.records:,} records without a byte"
    check_block(path, nbytes, options, what)


def _count_decompressed_bytes(data: bytes, codec: str, limit: int) -> int:
    """The number of bytes that data decompress to; counting stops at the limit."""
    if len(data) * MOST_OF.get(codec, limit) <= limit:
        return len(data)
    total = 0
    for part in _sizes(data, codec):
        total += part
        if total > limit:
            break
    return total


def _sizes(data: bytes, codec: str) -> Iterator[int]:
    """The lengths of the parts of what data decompress to, of which no more than one is in memory."""
    if codec == "null":
        yield len(data)
    elif codec == "snappy":
        size = number(io.BytesIO(data))
        yield 2 * size if size >= 0 else -2 * size - 1  # Snappy's numbers have no sign
    elif codec == "lz4":
        yield int.from_bytes(data[:4], "little")
    elif codec == "deflate":
        plain = zlib.decompressobj(-15)
        while part := plain.decompress(data, STEP):
            yield len(part)
            data = plain.unconsumed_tail
    elif codec in ("bzip2", "xz", "zstandard"):
        with _open_decompressor(io.BytesIO(data), codec) as stream:
            while part := stream.read(STEP):
                yield len(part)
    else:
        raise ValueError(f"its codec {codec!r} is not known")


def _open_decompressor(data: BinaryIO, codec: str) -> pa.CompressedInputStream | BinaryIO:
    if codec == "zstandard":
        return pa.CompressedInputStream(data, "zstd")
    return bz2.open(data) if codec == "bzip2" else lzma.open(data)


@dataclass(frozen=True)
class Walk:
    """A walk over the values of a block that keeps none; `named`: the definitions of the names in the schema."""

    source: BinaryIO
    nbytes: int
    named: dict[str, Any]
    path: str

    def check(self, kind: Any, level: int = 0) -> None:
        """Pass a value; DataError where values nest deeper than `MOST_DEPTH`, ValueError where a list promises more
        elements than the block has bytes."""
        if level > MOST_DEPTH:
            raise make_depth_error(self.path, "a record")
        described = self.named.get(kind, {"type": kind}) if isinstance(kind, str) else kind
        if isinstance(kind, list):
            self.check(kind[number(self.source)], level + 1)
        elif described["type"] in ("record", "error"):
            for field in described["fields"]:
                self.check(field["type"], level + 1)
        elif described["type"] in ("array", "map"):
            while count := self._count():
                for _ in range(count):
                    if described["type"] == "map":
                        self._pass("string")
                    self.check(described.get("items") or described["values"], level + 1)
        else:
            self._pass(described)

    def _count(self) -> int:
        count = number(self.source)
        if count < 0:  # the bytes of the elements follow
            count = -count
            _ = number(self.source)
        if count > self.nbytes:
            raise ValueError(f"a list promises {count:,} elements in {self.nbytes:,} bytes")
        return count

    def _pass(self, kind: Any) -> None:
        import fastavro

        fastavro.schemaless_reader(self.source, kind)  # type: ignore[call-arg]
