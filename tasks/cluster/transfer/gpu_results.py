"""Sends objects that contain cuDF's tables between workers: the tables as buffers of the device, all else pickled.

Pickle would take every column through the host, and cuDF's own serializer sends each of its buffers by itself: a large
partial has thousands.
"""

from __future__ import annotations

import io
import pickle
import weakref
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import cloudpickle
import cudf
import cupy
import pylibcudf as plc

from tasks.cluster.transfer import cuda_ipc, host_memory
from tasks.cluster.transfer.device_buffers import deserialize_buffer, serialize_buffer
from tasks.cluster.transfer.headers import Context, Header
from tasks.core import lent_bytes
from tasks.engines.gpu.columns import synchronize
from tasks.engines.gpu.order import Marks, make_marked_table, marks_of, pack, unpack
from tasks.engines.gpu.tables import parts_of

ALIGNED = 256  # bytes, as libcudf wants its buffers


class Packed(NamedTuple):
    """Tables of the same columns, one after another in a buffer, and the metadata to unpack them."""

    buffer: cupy.ndarray
    metadata: bytes
    marks: Marks
    rows: list[int]


def pack_run(tables: Sequence[cudf.DataFrame]) -> Packed:
    """Copy tables of the same columns into one buffer."""
    parts = [plc.Table(parts_of(table)) for table in tables]
    joined = plc.concatenate.concatenate(parts) if len(parts) > 1 else parts[0]
    metadata, buffer = pack(joined)
    return Packed(buffer, metadata, marks_of(tables[0]), [len(table) for table in tables])


def unpack_run(packed: Packed) -> list[cudf.DataFrame]:
    """Restore the tables, each column in memory of its own."""
    table = unpack(packed.metadata, packed.buffer)
    ends = list(accumulate(packed.rows))
    parts = plc.copying.split(table, ends[:-1]) if len(ends) > 1 else [table]
    return [make_marked_table([c.copy() for c in part.columns()], packed.marks) for part in parts]


def _is_plain(value: Any) -> bool:
    return type(value) is cudf.DataFrame and isinstance(value.index, cudf.RangeIndex) and len(value.columns) > 0


def _are_alike(values: Sequence[Any]) -> bool:
    return all(_is_plain(value) for value in values) and all(marks_of(v) == marks_of(values[0]) for v in values[1:])


class _Pickler(cloudpickle.Pickler):
    """Packs tables, and runs of tables of the same columns, into `runs`; the pickle has their numbers."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.runs: list[Packed] = []

    def persistent_id(self, value: Any) -> tuple[int, str] | None:
        if _is_plain(value):
            self.runs.append(pack_run([value]))
            return len(self.runs) - 1, "one"
        if type(value) in (list, tuple) and len(value) > 1 and _are_alike(value):
            self.runs.append(pack_run(value))
            return len(self.runs) - 1, type(value).__name__
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, runs: list[Packed]) -> None:
        super().__init__(file)
        self.runs = runs

    def persistent_load(self, place: tuple[int, str]) -> cudf.DataFrame | Sequence[cudf.DataFrame]:
        number, kind = place
        tables = unpack_run(self.runs[number])
        return {"one": tables[0], "list": tables, "tuple": tuple(tables)}[kind]


def _join_buffers(buffers: list[cupy.ndarray]) -> tuple[cupy.ndarray, list[tuple[int, int]]]:
    """Copy buffers into one; return it, with start and stop of each. Another process opens and copies one, not
    hundreds.

    Empties the list.
    """
    if len(buffers) == 1:
        return (alone := buffers.pop()), [(0, alone.nbytes)]
    starts = list(accumulate((-(-b.nbytes // ALIGNED) * ALIGNED for b in buffers), initial=0))
    edges = [(start, start + b.nbytes) for start, b in zip(starts, buffers, strict=False)]
    whole = cupy.empty(starts[-1], cupy.uint8)
    for start, stop in edges:
        whole[start:stop] = buffers.pop(0)
    synchronize()
    return whole, edges


_lent: dict[int, tuple[Header, int]] = {}  # by id of an object: header for workers of this host, bytes


def dump(value: object, kind: str, context: Context = None) -> tuple[Header, list[Any]]:
    """Header and frames of an object with tables. Objects without tables raise NotImplementedError, so that Dask
    pickles them, unless a worker of this host can read them from host memory.

    If many workers of a host fetch the same object, all copy from the same buffers.
    """
    if (again := _lent.get(id(value))) and cuda_ipc.reaches(context):
        lent_bytes.count(again[1])
        return again[0], []
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    if not pickler.runs:
        return host_memory.dump(value, context)
    synchronize()
    buffers = [packed.buffer for packed in pickler.runs]
    known = [packed[1:] for packed in pickler.runs]
    pickler.runs.clear()
    whole, edges = _join_buffers(buffers)
    buffer, frames = serialize_buffer(whole, value, kind, context)
    header = {"value": file.getvalue(), "known": pickle.dumps((edges, known)), "buffer": buffer}
    if not frames:
        _lent[id(value)] = header, whole.nbytes
        weakref.finalize(value, _lent.pop, id(value), None).atexit = False
    return header, frames


def load(header: Header, frames: list[Any]) -> object:
    """Restore the object."""
    if "known" not in header:
        return host_memory.load(header, frames)
    edges, known = pickle.loads(header["known"])  # noqa: S301  as Dask sends everything else
    whole = deserialize_buffer(header["buffer"], frames)
    runs = [Packed(whole[start:stop], *rest) for (start, stop), rest in zip(edges, known, strict=True)]
    value = _Unpickler(io.BytesIO(header["value"]), runs).load()
    synchronize()
    return value
