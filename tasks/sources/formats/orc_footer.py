"""The end of an ORC file as far as Arrow does not show it: which program wrote the file, in which calendar.

It is two messages of Protocol Buffers (orc_proto.proto): the postscript, and before it the footer, in chunks.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

# of the postscript
FOOTER_LENGTH = 1
COMPRESSION = 2
CHUNK_SIZE = 3
CODECS = {0: None, 1: "zlib", 2: "snappy", 5: "zstd", 6: "brotli"}  # for LZ4's chunks Arrow asks for their exact length
# of the footer
WRITER = 9
CALENDAR = 11
JAVA = 0  # as a writer; also where none is stated
# as a calendar
UNKNOWN = 0
JULIAN_AND_GREGORIAN = 1


@dataclass(frozen=True)
class Footer:
    """What a footer says of its writer: the numbers of its program and of its calendar."""

    writer: int = JAVA
    calendar: int = UNKNOWN

    @property
    def is_julian(self) -> bool:
        """Whether days before 1582-10-15 are of the Julian calendar: Java's classes of dates have both calendars, and
        before ORC 1.6 a file did not state which one it has."""
        return self.calendar == JULIAN_AND_GREGORIAN or (self.calendar == UNKNOWN and self.writer == JAVA)


def parse(read: Callable[[int, int], bytes], size: int) -> Footer:
    """The footer of a file of this size, of which `read` gives the bytes [start, stop). ValueError if it is
    damaged, or compressed by another codec."""
    end = size - 1
    start = end - read(end, size)[0]
    postscript = dict(_fields(read(start, end)))
    stored = read(start - postscript.get(FOOTER_LENGTH, 0), start)
    codec = postscript.get(COMPRESSION, 0)
    if codec not in CODECS:
        raise ValueError(f"its codec {codec} is not known")
    known = dict(_fields(_decompress(stored, CODECS[codec], postscript.get(CHUNK_SIZE, 0))))
    return Footer(known.get(WRITER, JAVA), known.get(CALENDAR, UNKNOWN))


def _decompress(data: bytes, codec: str | None, most: int) -> bytes:
    """The content of chunks, whose first three bytes are their length and whether they are stored as they are."""
    if codec is None:
        return data
    parts = []
    place = 0
    while place < len(data):
        head = int.from_bytes(data[place : place + 3], "little")
        place += 3
        chunk = data[place : place + (head >> 1)]
        place += head >> 1
        parts.append(chunk if head & 1 else _decompress_chunk(chunk, codec, most))
    return b"".join(parts)


def _decompress_chunk(chunk: bytes, codec: str, most: int) -> bytes:
    """A chunk of at most so many bytes."""
    if codec == "zlib":
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(chunk, most)
    if codec == "snappy":
        return pa.decompress(chunk, _decode_varint(chunk, 0)[0], codec, asbytes=True)
    return pa.CompressedInputStream(pa.BufferReader(chunk), codec).read(most)


def _fields(message: bytes) -> Iterator[tuple[int, int]]:
    """(number, value) of the fields of a message that are whole numbers."""
    place = 0
    while place < len(message):
        key, place = _decode_varint(message, place)
        kind = key & 7
        if kind == 0:
            value, place = _decode_varint(message, place)
            yield key >> 3, value
        elif kind == 2:
            length, place = _decode_varint(message, place)
            place += length
        elif kind in (1, 5):
            place += 8 if kind == 1 else 4
        else:
            raise ValueError(f"its end has a field of the kind {kind}")


def _decode_varint(message: bytes, place: int) -> tuple[int, int]:
    """The whole number that begins in a message at this place, and the place behind it."""
    value = shift = 0
    while place < len(message):
        byte = message[place]
        value |= (byte & 127) << shift
        shift += 7
        place += 1
        if byte < 128:
            return value, place
    raise ValueError("its end is cut off")
