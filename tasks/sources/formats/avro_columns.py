"""Avro's blocks as columns: one record of every block at a time, field by field, by numpy.

Where a field ends is known when it is read, so the records of a block come one after another; the blocks of a run do
not wait for each other. Records of other things than plain values are left to fastavro, record by record.

Why this decoder stays beside fastavro: 1 M rows of six plain fields (34 MB) take 0.69 s here and 3.72 s record by
record, 5.4 times as long (one core, median of 5, both in turns, equal tables).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.engines.convert.python_values import stored_type

PLAIN = ("int", "long", "null", "boolean", "float", "double", "string", "bytes", "enum")
MILLIS = ("timestamp-millis", "local-timestamp-millis")
LONGEST = 10  # bytes of a number
BLOCKS = 20  # read at once, on average, from which on this takes less time than record by record


class NotPlain(Exception):
    """The blocks have to be read record by record, or are no valid Avro."""


@dataclass(frozen=True)
class Field:
    """A field of plain values; `null`: the place of null in its union, -1 where it is in none."""

    name: str
    kind: str
    logical: str | None
    null: int
    symbols: tuple[str, ...] = ()


def plain_fields(schema: Any) -> list[Field]:
    """The fields of a record's schema; NotPlain where one holds more than a plain value."""
    return [_field(field["name"], field["type"]) for field in schema["fields"]]


def _field(name: str, avro: Any) -> Field:
    if isinstance(avro, list):
        if len(avro) != 2 or avro.count("null") != 1:
            raise NotPlain(name)
        null = avro.index("null")
        return replace(_field(name, avro[1 - null]), null=null)
    described = avro if isinstance(avro, dict) else {"type": avro}
    kind, logical = described["type"], described.get("logicalType")
    if kind not in PLAIN or logical in ("decimal", "uuid"):
        raise NotPlain(name)
    return Field(name, kind, logical, -1, tuple(described.get("symbols", ())))


def columns_of(
    blocks: Sequence[bytes | memoryview], counts: Sequence[int], fields: Sequence[Field], types: pa.Schema
) -> pa.Table:
    """The columns in `types` of all records; `counts` are the numbers of records of the blocks.

    NotPlain if a few blocks have most of the records, or the bytes are no records of these fields.
    """
    if sum(counts) < BLOCKS * max(counts, default=0):
        raise NotPlain("few blocks")
    data = np.frombuffer(b"".join([*blocks, bytes(LONGEST)]), np.uint8)
    ends = np.cumsum([len(block) for block in blocks])
    records = np.asarray(counts, np.int64)
    order = np.argsort(-records, kind="stable")  # those that have a record still are the first ones
    place = (ends - [len(block) for block in blocks])[order]
    row, waiting = (np.cumsum(records) - records)[order], -records[order]
    columns = [_Column(field, int(records.sum())) for field in fields]
    try:
        for number in range(int(records.max(initial=0))):
            having = int(np.searchsorted(waiting, -number))
            for column in columns:
                column.read(data, place[:having], row[:having] + number)
    except IndexError:
        raise NotPlain("values behind the end") from None
    if not np.array_equal(place, ends[order]):
        raise NotPlain("values of other lengths")
    known = {column.field.name: column for column in columns}
    return pa.table({f.name: known[f.name].to_arrow(data, f.type) for f in types})


class _Column:
    """The values of a field, as they are read."""

    def __init__(self, field: Field, rows: int) -> None:
        self.field = field
        self.valid = np.zeros(rows, bool) if field.null >= 0 else None
        kind = {"boolean": np.uint8, "float": np.float32, "double": np.float64}.get(field.kind, np.int64)
        self.values = np.zeros(rows, kind)  # of texts: where they begin
        self.lengths = np.zeros(rows, np.int64) if field.kind in ("string", "bytes") else None

    def read(self, data: np.ndarray, place: np.ndarray, row: np.ndarray) -> None:
        """Read the value at each place of the data into its row, and move the places behind the values."""
        if self.valid is None:
            place += self._values(data, place, row)
            return
        branch = data[place]
        place += 1
        valid = branch == 2 * (1 - self.field.null)
        if not valid.all():
            if not (valid | (branch == 2 * self.field.null)).all():
                raise NotPlain(self.field.name)
            chosen = np.flatnonzero(valid)
            row = row[chosen]
            place[chosen] += self._values(data, place[chosen], row)
        else:
            place += self._values(data, place, row)
        self.valid[row] = True

    def _values(self, data: np.ndarray, place: np.ndarray, row: np.ndarray) -> Any:
        """Read values; the bytes that each takes."""
        kind = self.field.kind
        if kind == "null":
            return 0
        if kind == "boolean":
            self.values[row] = data[place]
            return 1
        if kind in ("float", "double"):
            width = self.values.itemsize
            self.values[row] = data[place[:, None] + np.arange(width)].view(self.values.dtype)[:, 0]
            return width
        numbers, taken = _varints(data, place)
        if self.lengths is None:
            self.values[row] = numbers
            return taken
        if len(numbers) and int(numbers.min()) < 0:
            raise NotPlain(self.field.name)
        self.values[row], self.lengths[row] = place + taken, numbers
        return taken + numbers

    def to_arrow(self, data: np.ndarray, dtype: pa.DataType) -> pa.Array:
        rows = len(self.values)
        if self.field.kind == "null":
            return pa.nulls(rows, dtype)
        mask = None if self.valid is None or self.valid.all() else ~self.valid
        if self.lengths is not None:
            return _texts(data, self.values, self.lengths, mask, dtype)
        if self.field.kind == "enum":
            if rows and not 0 <= int(self.values.min()) <= int(self.values.max()) < len(self.field.symbols):
                raise NotPlain(self.field.name)
            indices = pa.array(self.values.astype(np.int32), mask=mask)
            return pa.DictionaryArray.from_arrays(indices, pa.array(self.field.symbols, pa.string())).cast(dtype)
        if self.field.kind == "boolean":
            return pa.array(self.values != 0, mask=mask)
        values = self.values * 1000 if self.field.logical in MILLIS else self.values
        if pa.types.is_temporal(dtype):
            return pa.array(values, mask=mask).cast(stored_type(dtype)).view(dtype)
        return pa.array(values, mask=mask).cast(dtype)


def _varints(data: np.ndarray, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the numbers at the places, the bytes that each takes)."""
    byte = data[place]
    bits, taken = (byte & 127).astype(np.uint64), np.ones(len(place), np.int64)
    more = np.flatnonzero(byte > 127)
    for number in range(1, LONGEST + 1):
        if not len(more):
            break
        if number == LONGEST:
            raise NotPlain("a number of too many bytes")
        byte = data[place[more] + number]
        bits[more] |= (byte & 127).astype(np.uint64) << np.uint64(7 * number)
        taken[more] += 1
        more = more[byte > 127]
    return (bits >> np.uint64(1)).view(np.int64) ^ -(bits & np.uint64(1)).view(np.int64), taken


def _texts(
    data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, mask: np.ndarray | None, dtype: pa.DataType
) -> pa.Array:
    """The texts that begin in the data at `starts`; null where the mask is set, of length 0 there."""
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    places = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    valid = None if mask is None else pa.py_buffer(np.packbits(~mask, bitorder="little"))
    wide = pa.large_string() if pa.types.is_string(dtype) else pa.large_binary()
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(data[places])]
    texts = pa.Array.from_buffers(wide, len(starts), buffers)
    texts.validate(full=True)
    return texts.cast(dtype)
