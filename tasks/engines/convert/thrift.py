"""The compact protocol of Thrift, in which Parquet files keep their footers and the headers of their pages.

A struct is a dict of its fields: {number: (type, value)}. A list is (type of its items, items).
Source: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from typing import Any, TypeAlias

Struct: TypeAlias = dict[int, tuple[int, Any]]

TRUE = 1
FALSE = 2
BYTE = 3
I16 = 4
I32 = 5
I64 = 6
DOUBLE = 7
BINARY = 8
LIST = 9
STRUCT = 12

LONG_LIST = 15  # from so many items on, the number of items follows the first byte


def encode_number(number: int) -> bytes:
    """Encode a number that is not negative: seven bits in each byte, the lowest first.

    >>> encode_number(1).hex(), encode_number(300).hex()
    ('01', 'ac02')
    """
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def encode_signed(number: int) -> bytes:
    """Encode a number of at most 64 bits, small ones of either sign in few bytes.

    >>> [encode_signed(number).hex() for number in (0, -1, 1, -2)]
    ['00', '01', '02', '03']
    """
    return encode_number(2 * number if number >= 0 else -2 * number - 1)


def encode_struct(fields: Struct) -> bytes:
    """Encode a struct, its fields in the order of their numbers."""
    encoded = bytearray()
    last = 0
    for number, (kind, value) in sorted(fields.items()):
        step = number - last
        last = number
        if step <= LONG_LIST:
            encoded.append(step << 4 | kind)
        else:
            encoded.append(kind)
            encoded += encode_signed(number)
        if kind not in (TRUE, FALSE):  # the type says it all
            encoded += _encode_value(kind, value)
    encoded.append(0)
    return bytes(encoded)


def _encode_value(kind: int, value: Any) -> bytes:
    if kind in (I16, I32, I64):
        return encode_signed(value)
    if kind == BYTE:
        return (value & 0xFF).to_bytes(1, "little")
    if kind == DOUBLE:
        return bytes(value)
    if kind == BINARY:
        return encode_number(len(value)) + value
    if kind == STRUCT:
        return encode_struct(value)
    assert kind == LIST, kind
    of, items = value
    count = len(items)
    head = bytes([count << 4 | of]) if count < LONG_LIST else bytes([0xF0 | of]) + encode_number(count)
    return head + b"".join(_encode_value(of, item) for item in items)


def decode_struct(encoded: bytes) -> Struct:
    """Decode a struct that is the whole of `encoded`, or its beginning."""
    return _Reader(encoded).struct()


class _Reader:
    def __init__(self, encoded: bytes) -> None:
        self.encoded = encoded
        self.place = 0

    def take(self, count: int) -> bytes:
        start = self.place
        self.place += count
        return self.encoded[start : self.place]

    def number(self) -> int:
        number = shift = 0
        while True:
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    def signed(self) -> int:
        number = self.number()
        return number >> 1 if number % 2 == 0 else -(number >> 1) - 1

    def struct(self) -> Struct:
        fields: Struct = {}
        last = 0
        while head := self.take(1)[0]:
            kind = head & 0x0F
            last = last + (head >> 4) if head >> 4 else self.signed()
            fields[last] = kind, self.value(kind)
        return fields

    def value(self, kind: int) -> Any:
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind in (I16, I32, I64):
            return self.signed()
        if kind == BYTE:
            return self.take(1)[0]
        if kind == DOUBLE:
            return self.take(8)
        if kind == BINARY:
            return self.take(self.number())
        if kind == STRUCT:
            return self.struct()
        assert kind == LIST, kind
        head = self.take(1)[0]
        count = head >> 4
        if count == LONG_LIST:
            count = self.number()
        of = head & 0x0F
        return of, [self.value(of) for _ in range(count)]
