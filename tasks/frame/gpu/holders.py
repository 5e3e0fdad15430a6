"""Objects that hold cuDF's tables, between workers: the tables as buffers of the device, all else pickled.

Pickle would take every column through the host, and cuDF's own serializer sends each of its buffers by itself: a large
partial has thousands.
"""

from __future__ import annotations

import io
import pickle
import weakref
from collections.abc import Mapping, Sequence
from itertools import accumulate, islice
from typing import Any, NamedTuple

import cloudpickle
import cudf
import cupy
import pylibcudf as plc

from tasks import monitor
from tasks.frame.gpu import ipc
from tasks.frame.gpu.buffers import Context, sent, taken
from tasks.frame.gpu.columns import device, rebuilt, synchronize
from tasks.frame.gpu.order import Marks, marks_of, pack, unpack


class Packed(NamedTuple):
    """Tables of the same columns, one after another in a buffer, and what has to be known to take them out again."""

    buffer: cupy.ndarray
    metadata: bytes
    marks: Marks
    rows: list[int]


def pack_run(tables: Sequence[cudf.DataFrame]) -> Packed:
    """Tables of the same columns, copied into one buffer."""
    parts = [plc.Table([device(table[name]) for name in table.columns]) for table in tables]
    joined = plc.concatenate.concatenate(parts) if len(parts) > 1 else parts[0]
    metadata, buffer = pack(joined)
    return Packed(buffer, metadata, marks_of(tables[0]), [len(table) for table in tables])


def unpack_run(packed: Packed) -> list[cudf.DataFrame]:
    """The tables, each column in memory of its own."""
    table = unpack(packed.metadata, packed.buffer)
    ends = list(accumulate(packed.rows))
    parts = plc.copying.split(table, ends[:-1]) if len(ends) > 1 else [table]
    marks = packed.marks
    return [
        cudf.DataFrame({n: rebuilt(c.copy(), marks[n]) for n, c in zip(marks, part.columns(), strict=True)})
        for part in parts
    ]


def _is_plain(value: Any) -> bool:
    return type(value) is cudf.DataFrame and isinstance(value.index, cudf.RangeIndex) and len(value.columns) > 0


def _are_alike(values: Sequence[Any]) -> bool:
    return all(_is_plain(value) for value in values) and all(marks_of(v) == marks_of(values[0]) for v in values[1:])


class _Pickler(cloudpickle.Pickler):
    """Puts tables, and runs of tables of the same columns, into `held` instead of among the bytes."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.held: list[Packed] = []

    def persistent_id(self, value: Any) -> tuple[int, str] | None:
        if _is_plain(value):
            self.held.append(pack_run([value]))
            return len(self.held) - 1, "one"
        if type(value) in (list, tuple) and len(value) > 1 and _are_alike(value):
            self.held.append(pack_run(value))
            return len(self.held) - 1, type(value).__name__
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, held: list[Packed]) -> None:
        super().__init__(file)
        self.held = held

    def persistent_load(self, place: tuple[int, str]) -> Any:
        number, kind = place
        tables = unpack_run(self.held[number])
        return {"one": tables[0], "list": tables, "tuple": tuple(tables)}[kind]


_lent: dict[int, tuple[dict[str, Any], int]] = {}  # by id: what workers of this host find an object by, and its bytes


def dump(value: Any, kind: str, context: Context = None) -> tuple[dict[str, Any], list[Any]]:
    """Header and frames of an object with tables; NotImplementedError, which leaves it to pickle, without any.

    Many workers of a host that ask for the same object copy it out of the same buffers.
    """
    if (again := _lent.get(id(value))) and ipc.reaches(context):
        monitor.count_lent(again[1])
        return again[0], []
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    if not pickler.held:
        raise NotImplementedError
    synchronize()
    dumped = [sent(packed.buffer, value, kind, context) for packed in pickler.held]
    known = pickle.dumps([packed[1:] for packed in pickler.held])
    header = {"value": file.getvalue(), "known": known, "buffers": [buffer for buffer, _ in dumped],
              "frames": [len(frames) for _, frames in dumped]}  # fmt: skip
    if not any(frames for _, frames in dumped):
        _lent[id(value)] = header, sum(packed.buffer.nbytes for packed in pickler.held)
        weakref.finalize(value, _lent.pop, id(value), None).atexit = False
    return header, [frame for _, frames in dumped for frame in frames]


def load(header: dict[str, Any], frames: list[Any]) -> Any:
    """The object again."""
    left = iter(frames)
    known = pickle.loads(header["known"])  # noqa: S301  as Dask sends everything else
    held = [
        Packed(taken(buffer, list(islice(left, count))), *rest)
        for buffer, count, rest in zip(header["buffers"], header["frames"], known, strict=True)
    ]
    found = _Unpickler(io.BytesIO(header["value"]), held).load()
    synchronize()
    return found


def register(classes: Sequence[type], kinds: Mapping[str, Sequence[Any]]) -> None:
    """Make `dump` and `load` known to distributed for the classes, by kind of serializer."""
    for kind, (dumps, loads) in kinds.items():
        for cls in classes:
            dumps.register(cls)(lambda value, context=None, kind=kind: dump(value, kind, context))
            loads.register(cls)(load)
