"""The header of an Avro file, the headers of its blocks, and the size of a block once it is decoded.

They are checked before fastavro decodes anything: fastavro believes the counts and lengths of a file, and its recursion
has no limit but the stack of the process.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from tasks.sources.formats.bounds import MOST_DEPTH, block_limit, check_block, nested_too_deep

MAGIC, SYNC = b"Obj\x01", 16
LONGEST_HEADER = 64 * 2**20
EMPTY_RECORD = 64  # bytes of memory that a record of no bytes takes
STEP = 2**20
MOST_OF = {"deflate": 1032, "zstandard": 33_000, "lz4": 255, "null": 1}  # bytes that one byte decompresses to


@dataclass(frozen=True)
class Header:
    """The schema, codec and marker of a file, and where its blocks begin."""

    schema: Any
    codec: str
    sync: bytes
    end: int


@dataclass(frozen=True)
class Stored:
    """A block as it is stored: where, how many records it says it has, its bytes, and where it ends."""

    start: int
    records: int
    data: bytes
    stop: int


def header(source: BinaryIO, path: str) -> Header:
    """The header at the beginning of a file; ValueError where there is none."""
    if source.read(len(MAGIC)) != MAGIC:
        raise ValueError("it does not begin as Avro files do")
    values: dict[str, bytes] = {}
    while (count := number(source)) != 0:
        if count < 0:
            count, _ = -count, number(source)
        if count > 1000:
            raise ValueError(f"its header promises {count:,} entries")
        for _ in range(count):
            name = _sized(source).decode()
            values[name] = _sized(source)
    sync = source.read(SYNC)
    if len(sync) < SYNC or "avro.schema" not in values:
        raise ValueError("its header is not whole")
    try:
        schema = json.loads(values["avro.schema"])
    except RecursionError:
        raise nested_too_deep(path, "its schema") from None
    if _depth(schema) > 4 * MOST_DEPTH:  # a record in a record takes four levels of JSON
        raise nested_too_deep(path, "its schema")
    return Header(schema, values.get("avro.codec", b"null").decode(), sync, source.tell())


def _sized(source: BinaryIO) -> bytes:
    length = number(source)
    if not 0 <= length <= LONGEST_HEADER:
        raise ValueError(f"its header has a value of {length:,} bytes")
    data = source.read(length)
    if len(data) < length:
        raise ValueError("its header is not whole")
    return data


def _depth(value: Any) -> int:
    deepest, todo = 0, [(value, 0)]
    while todo:
        here, depth = todo.pop()
        deepest = max(deepest, depth)
        inner = here.values() if isinstance(here, dict) else here if isinstance(here, list) else ()
        todo += [(item, depth + 1) for item in inner]
    return deepest


def number(source: BinaryIO) -> int:
    """A number as Avro writes them: seven bits a byte, the sign in the lowest bit."""
    value, shift = 0, 0
    while True:
        byte = source.read(1)
        if not byte:
            raise ValueError("the file ends within a number")
        value |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return (value >> 1) ^ -(value & 1)
        shift += 7
        if shift > 63:
            raise ValueError("a number has too many bytes")


def stored_blocks(source: BinaryIO, begin: int, size: int, sync: bytes) -> Iterator[Stored]:
    """The blocks from a place of a file of `size` bytes on; ValueError where one is not what it says."""
    source.seek(begin)
    place = begin
    while place < size:
        records, length = number(source), number(source)
        at = source.tell()
        if records < 0 or not 0 <= length <= size - at - SYNC:
            raise ValueError(f"the block at byte {place:,} promises {records:,} records in {length:,} bytes, "
                             f"of which {max(0, size - at - SYNC):,} are there")  # fmt: skip
        data = source.read(length)
        if source.read(SYNC) != sync:
            raise ValueError(f"the block at byte {place:,} does not end with the file's marker")
        yield Stored(place, records, data, at + length + SYNC)
        place = at + length + SYNC


def check_stored(block: Stored, codec: str, path: str, options: dict[str, Any]) -> None:
    """A DataError where a block would decode to more bytes than `source.max_block_bytes`."""
    limit, what = block_limit(options), f"the block at byte {block.start:,}"
    nbytes = _decompressed(block.data, codec, limit)
    if block.records > nbytes:  # records of nothing but nulls take no byte of the file
        nbytes = max(nbytes, block.records * EMPTY_RECORD)
        what = f"{what} of {block.records:,} records without a byte"
    check_block(path, nbytes, options, what)


def _decompressed(data: bytes, codec: str, limit: int) -> int:
    """The number of bytes that data decompress to; counting stops at the limit."""
    if len(data) * MOST_OF.get(codec, limit) <= limit:
        return len(data) if codec == "null" else limit if not data else len(data)
    if codec == "snappy":
        return _unsigned(data)
    if codec == "lz4":
        return int.from_bytes(data[:4], "little")
    total = 0
    for part in _streamed(data, codec):
        total += part
        if total > limit:
            break
    return total


def _unsigned(data: bytes) -> int:
    value = 0
    for place, byte in enumerate(data[:5]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value
    raise ValueError("a block says no size")


def _streamed(data: bytes, codec: str) -> Iterator[int]:
    """The lengths of the parts of what data decompress to, of which no more than one is in memory."""
    if codec == "deflate":
        plain = zlib.decompressobj(-15)
        while data and not plain.eof:
            yield len(plain.decompress(data, STEP))
            data = plain.unconsumed_tail
    elif codec in ("bzip2", "zstandard"):
        name = {"bzip2": "bz2", "zstandard": "zstd"}[codec]
        with pa.CompressedInputStream(pa.BufferReader(data), name) as stream:
            while part := stream.read(STEP):
                yield len(part)
    elif codec == "xz":
        import lzma

        xz = lzma.LZMADecompressor()
        part = xz.decompress(data, STEP)
        while part:
            yield len(part)
            part = b"" if xz.eof else xz.decompress(b"", STEP)
    elif codec == "null":
        yield len(data)
    else:
        raise ValueError(f"its codec {codec!r} is not known")


# What decoding follows into its depth


def is_deep(schema: Any) -> bool:
    """Whether a few bytes of such records may hold any number of values: records in records of the same name, lists
    of what takes no byte."""
    return _Walk(schema).deep


def check_records(schema: Any, data: bytes, records: int, path: str) -> None:
    """A DataError where records lie in each other deeper than `MOST_DEPTH`; ValueError where they are none."""
    walk, place = _Walk(schema), 0
    for _ in range(records):
        try:
            place = walk.skip(schema, data, place, 0)
        except (RecursionError, _Deep):
            raise nested_too_deep(path, "a record") from None
        except IndexError:
            raise ValueError("a value ends behind its block") from None


class _Deep(Exception):
    """Values lie in each other deeper than `MOST_DEPTH`."""


class _Walk:
    """Goes over values without making them."""

    def __init__(self, schema: Any) -> None:
        self.named: dict[str, Any] = {}
        self.deep = False
        self.inside: list[str] = []
        self._learn(schema)

    def _learn(self, kind: Any) -> None:
        if isinstance(kind, list):
            for inner in kind:
                self._learn(inner)
        elif isinstance(kind, str):
            self.deep |= kind in self.inside
        elif isinstance(kind.get("type"), (dict, list)):
            self._learn(kind["type"])
        elif kind["type"] in ("record", "error", "enum", "fixed"):
            names = self._names(kind)
            self.named |= dict.fromkeys(names, kind)
            self.inside += names
            for field in kind.get("fields", ()):
                self._learn(field["type"])
            del self.inside[len(self.inside) - len(names) :]
        elif kind["type"] == "array":
            self._learn(kind["items"])
            self.deep |= self._least(kind["items"], 0) == 0
        elif kind["type"] == "map":
            self._learn(kind["values"])
        else:
            self._learn(kind["type"])

    @staticmethod
    def _names(kind: Any) -> list[str]:
        short = str(kind["name"]).rpartition(".")[2]
        space = [f"{kind['namespace']}.{short}"] if kind.get("namespace") else []
        return [str(kind["name"]), short, *space]

    def _least(self, kind: Any, depth: int) -> int:
        """0 for what may take no byte, else 1."""
        if depth > MOST_DEPTH or isinstance(kind, list):
            return 1
        if isinstance(kind, str):
            return self._least(self.named[kind], depth + 1) if kind in self.named else int(kind != "null")
        if isinstance(kind["type"], (dict, list)):
            return self._least(kind["type"], depth + 1)
        if kind["type"] in ("record", "error"):
            return int(any(self._least(field["type"], depth + 1) for field in kind["fields"]))
        return int(kind["size"] > 0) if kind["type"] == "fixed" else int(kind["type"] != "null")

    def skip(self, kind: Any, data: bytes, place: int, depth: int) -> int:
        """Where the value at a place ends."""
        if depth > MOST_DEPTH:
            raise _Deep
        if isinstance(kind, list):
            branch, place = _varint(data, place)
            return self.skip(kind[branch], data, place, depth + 1)
        if isinstance(kind, str) and kind in self.named:
            return self.skip(self.named[kind], data, place, depth)
        name = kind if isinstance(kind, str) else kind["type"]
        if isinstance(name, (dict, list)):
            return self.skip(name, data, place, depth)
        if name in ("record", "error"):
            for field in kind["fields"]:
                place = self.skip(field["type"], data, place, depth + 1)
            return place
        if name in ("array", "map"):
            return self._skip_items(kind, name, data, place, depth)
        if name in ("string", "bytes"):
            length, place = _varint(data, place)
            return _behind(data, place, length)
        if name in ("int", "long", "enum"):
            return _varint(data, place)[1]
        sizes = {
            "null": 0,
            "boolean": 1,
            "float": 4,
            "double": 8,
            "fixed": kind.get("size", 0) if name == "fixed" else 0,
        }
        return _behind(data, place, sizes[name])

    def _skip_items(self, kind: Any, name: str, data: bytes, place: int, depth: int) -> int:
        while True:
            count, place = _varint(data, place)
            if count < 0:
                count, (_, place) = -count, _varint(data, place)
            if count == 0:
                return place
            if count > len(data):
                raise ValueError(f"a list promises {count:,} elements in {len(data):,} bytes")
            for _ in range(count):
                if name == "map":
                    length, place = _varint(data, place)
                    place = _behind(data, place, length)
                place = self.skip(kind["values"] if name == "map" else kind["items"], data, place, depth + 1)


def _behind(data: bytes, place: int, length: int) -> int:
    if not 0 <= length <= len(data) - place:
        raise ValueError("a value ends behind its block")
    return place + length


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1), place
        shift += 7
        if shift > 63:
            raise ValueError("a number has too many bytes")
