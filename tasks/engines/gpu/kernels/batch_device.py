"""The memory of a GPU as the place where batches for training live: row groups are decoded on a stream of their own.

Who takes a batch works on another stream, such as PyTorch's current one. Two rules keep the two streams in order:

- A row group is complete, on the host's clock, before anybody makes a batch of it.
- A batch is copied out of its row groups on the stream of the caller, into memory of that stream, and the stream of the
  row groups waits for the copy before it does anything else. So the memory of a row group, whenever and wherever it is
  freed, is written again only when it has been read; and a batch that is freed waits for the work of its own stream,
  as every array of that stream does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import cupy
import numpy as np
import pyarrow as pa
import pylibcudf as plc
import rmm

from tasks.engines.gpu.kernels import pinned_copies
from tasks.engines.gpu.kernels.column_arrays import array_of
from tasks.errors import HostError, JobError

UNITS = {"s": "SECONDS", "ms": "MILLISECONDS", "us": "MICROSECONDS", "ns": "NANOSECONDS"}
UNUSED = 1 << 30  # bytes that RMM's asynchronous resource does not give back to the GPU
TIMES = {int(plc.TypeId[f"TIMESTAMP_{unit}"]) for unit in UNITS.values()}


class BatchDevice:
    """A GPU: arrays are CuPy's, and cuDF decodes the row groups.

    number: the GPU as CUDA counts those that this process sees; None: the current one of the thread. A HostError where
    no GPU answers, a JobError for a number that no GPU has.
    """

    xp = cupy

    def __init__(self, number: int | None = None) -> None:
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            do = "look at nvidia-smi and CUDA_VISIBLE_DEVICES, or leave out device="
            raise HostError("batches on a GPU need a GPU, and none answers", why=str(error), do=do) from None
        if number is not None and number >= count:
            raise JobError(
                f"there is no GPU cuda:{number}",
                why=f"this process sees {count}, the first is cuda:0; of a GPU that is divided (MIG) it sees one part",
                do="name one that it sees, or set CUDA_VISIBLE_DEVICES for this process",
            )
        self.number = cupy.cuda.Device().id if number is None else number
        self.name = f"cuda:{self.number}"
        self.stream = _reading_stream(self.number)

    def read(self, path: str, group: int, types: dict[str, pa.DataType]) -> dict[str, tuple[Any, Any, Any]]:
        """(values, valid, offsets) of the columns of a row group of a Parquet file that cuDF reads as they are.

        `valid` is None without nulls, `offsets` (int64) None for single values; of lists, values and valid are those
        of their elements. The caller reads columns that are not in the result with Arrow.
        """
        names = [name for name, dtype in types.items() if _readable(dtype)]
        if not names:
            return {}
        options = plc.io.parquet.ParquetReaderOptions.builder(plc.io.SourceInfo([path])).build()
        options.set_column_names(names)
        options.set_row_groups([[group]])
        table = plc.io.parquet.read_parquet(options, self.stream)
        parts = table.tbl.columns()
        read = table.column_names()
        columns = {name: self._unpack_column(parts[read.index(name)], types[name]) for name in names}
        return {name: column for name, column in columns.items() if column is not None}

    def _unpack_column(self, column: plc.Column, dtype: pa.DataType) -> tuple[Any, Any, Any] | None:
        """(values, valid, offsets) of a column; None where cuDF has read another type than the output has."""
        offsets = None
        wanted = dtype
        if _is_list(dtype):
            if column.type().id() != plc.TypeId.LIST:
                return None
            lists = column.list_view()
            offsets = array_of(lists.offsets()).astype(cupy.int64) if column.size() else cupy.zeros(1, cupy.int64)
            column = lists.child()
            wanted = dtype.value_type
        kind = _type_id(wanted)
        read = int(column.type().id())
        if read != int(kind):
            if int(kind) not in TIMES or read not in TIMES:
                return None
            column = plc.unary.cast(column, plc.DataType(kind), stream=self.stream)  # seconds lie as milliseconds
        valid = array_of(plc.unary.is_valid(column, stream=self.stream)) if column.null_count() else None
        return array_of(column), valid, offsets

    def put(self, values: np.ndarray) -> cupy.ndarray:
        """A copy of an array in the memory of this GPU."""
        if values.ndim > 1:
            return self.put(values.reshape(-1)).reshape(values.shape)
        return pinned_copies.array_to_device(np.ascontiguousarray(values)) if len(values) else cupy.asarray(values)

    def host(self, values: cupy.ndarray) -> np.ndarray:
        """A copy of an array of one dimension in host memory."""
        return pinned_copies.array_to_host(cupy.ascontiguousarray(values))

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Surrounds what reads a row group and puts it in order, on their stream; all is complete at the end."""
        with cupy.cuda.Device(self.number), self.stream:
            yield
            self.stream.synchronize()

    @contextmanager
    def handing_over(self, stream: int | None = None) -> Iterator[None]:
        """Surrounds what makes a batch of row groups, on a stream (its address; None: CuPy's current one)."""
        with cupy.cuda.Device(self.number):
            caller = cupy.cuda.get_current_stream() if stream is None else _stream(stream)
            with caller:
                try:
                    yield
                finally:
                    self.stream.wait_event(caller.record())


@cache
def _reading_stream(number: int) -> cupy.cuda.Stream:
    """The stream on which all loaders of this process decode: CuPy leaves memory to the stream that has freed it, so
    that a new stream in each epoch would take more and more.

    RMM's default resource lets every free wait for all work of the GPU, the training, too. Where no other is set
    one, the asynchronous one takes its place.
    """
    with cupy.cuda.Device(number):
        if type(rmm.mr.get_per_device_resource(number)) is rmm.mr.CudaMemoryResource:
            with suppress(RuntimeError):  # of a GPU without memory pools
                rmm.mr.set_per_device_resource(number, rmm.mr.CudaAsyncMemoryResource(release_threshold=UNUSED))
        return cupy.cuda.Stream(non_blocking=True)


def _stream(address: int) -> cupy.cuda.Stream | cupy.cuda.ExternalStream:
    """CuPy's object for a stream of another library."""
    if address == 0:
        return cupy.cuda.Stream.null
    if not hasattr(cupy.cuda.Stream, "from_external"):  # CuPy 13
        return cupy.cuda.ExternalStream(address)
    return cupy.cuda.Stream.from_external(_Foreign(address))


class _Foreign:
    """A stream of another library, as the CUDA stream protocol describes it."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


def _is_list(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_list(dtype) or pa.types.is_large_list(dtype))


def _readable(dtype: pa.DataType) -> bool:
    """Whether cuDF reads a column in the very numbers that Arrow has for it."""
    leaf = dtype.value_type if _is_list(dtype) else dtype
    floats = pa.types.is_float32(leaf) or pa.types.is_float64(leaf)
    times = pa.types.is_timestamp(leaf) or pa.types.is_date32(leaf)
    return bool(pa.types.is_integer(leaf) or pa.types.is_boolean(leaf) or floats or times)


def _type_id(leaf: pa.DataType) -> plc.TypeId:
    """libcudf's name of a type that is `_readable`."""
    if pa.types.is_boolean(leaf):
        return plc.TypeId.BOOL8
    if pa.types.is_date32(leaf):
        return plc.TypeId.TIMESTAMP_DAYS
    if pa.types.is_timestamp(leaf):
        return plc.TypeId[f"TIMESTAMP_{UNITS[leaf.unit]}"]
    return plc.TypeId[{"float": "float32", "double": "float64"}.get(str(leaf), str(leaf)).upper()]
