"""How results of tasks travel and spill on a worker with a GPU, shown without one.

The modules of CUDA are stand-ins, tables are lists of Python, buffers are numpy's; rowmill, distributed and Dask are
what they are. The arguments say in which order the worker's preload, its pre-import or a first task come, and when a
first result is sent. Prints what Dask does with a result of every class, as JSON.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import pickle
import sys
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
from dask.sizeof import sizeof
from dask.utils import Dispatch
from distributed.protocol import deserialize, serialize
from distributed.protocol.cuda import cuda_deserialize, cuda_serialize
from distributed.protocol.serialize import dask_deserialize, dask_serialize

CUDA = {"cudf", "cupy", "cupyx", "pylibcudf", "rmm", "cuda", "dask_cuda"}


class StandIn(ModuleType):
    """A module that has whatever is asked for."""

    __path__: list[str] = []
    __version__ = "13.6"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.__dict__[name] = MagicMock(name=f"{self.__name__}.{name}")
        return self.__dict__[name]


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        ours = name.partition(".")[0] in CUDA or name == "distributed.protocol.cupy"
        return importlib.machinery.ModuleSpec(name, self) if ours else None

    def create_module(self, spec: Any) -> StandIn:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "cudf":
            module.__dict__.update(DataFrame=Table, RangeIndex=range)
        if module.__name__ == "dask_cuda.is_device_object":
            module.__dict__.update(is_device_object=as_dask_cuda_has_it())


class Table:
    """A cuDF table of one column, as far as the engine asks."""

    def __init__(self, values: list[int]) -> None:
        self.values, self.index, self.columns, self.nbytes = values, range(len(values)), ["x"], 8 * len(values)

    def items(self) -> list[tuple[str, Any]]:
        return [("x", SimpleNamespace(dtype="int64", name="x"))]

    def __len__(self) -> int:
        return len(self.values)


def as_dask_cuda_has_it() -> Dispatch:
    """`dask_cuda.is_device_object`, of which the engine registers its own classes."""
    dispatch = Dispatch("is_device_object")
    dispatch.register(object)(lambda value: hasattr(value, "__cuda_array_interface__"))
    dispatch.register((list, tuple))(lambda values: any(dispatch(value) for value in values))
    dispatch.register(dict)(lambda values: any(dispatch(item) for item in values.items()))
    dispatch.register(Table)(lambda table: True)
    return dispatch


def preload() -> None:
    """What Dask does with the preload of a worker."""
    from tasks.cluster.transfer import host_memory

    ends = SimpleNamespace(connection_args={}, rpc=SimpleNamespace(connection_args={}))
    host_memory.dask_setup(ends)


def pre_import() -> None:
    """What dask-cuda's `pre_import` does."""
    import tasks.cluster.transfer.gpu_worker  # noqa: F401


def task() -> None:
    """What the first task does that computes on the GPU, in a process that rowmill did not start."""
    from tasks.graph.partition_work import Work

    work = Work.__new__(Work)
    object.__setattr__(work, "engine", "cudf")
    assert work.kernels.NAME == "cudf"


def result() -> None:
    """A result is sent, so that Dask has looked for the serializers of its class already."""
    serialize(results()["host"], serializers=("cuda", "dask", "pickle"))


def results() -> dict[str, Any]:
    """A result of each class that travels; `host` has its pieces in host memory."""
    from tasks.engines.cpu import order
    from tasks.learning import large_table_types, partials
    from tasks.shuffle.pieces import PackedPieces, PartitionPieces

    on_host = order.cut({}, np.arange(1 << 18, dtype=np.uint64), np.array([0, 1 << 18]))
    return {"host": PartitionPieces([on_host], 3, 2), "cut": PartitionPieces, "packed": PackedPieces,
            "observed": partials.Observed, "split": large_table_types.Split, "chain": large_table_types.Chain,
            "slice": large_table_types.Slice}  # fmt: skip


def on_gpu(number: int) -> Any:
    from tasks.engines.gpu.order import Pieces

    rows = np.array([0, number])
    return Pieces(SimpleNamespace(num_rows=lambda: number), {}, rows, 8.0, 0, np.full(number, number, np.uint8), b"m")


def made() -> dict[str, Any]:
    found = results()
    tables = (Table([1, 2]), Table([3]))
    found["cut"] = found["cut"]([on_gpu(3), on_gpu(2)], 5, 4)
    found["packed"] = found["packed"]([on_gpu(3)])
    found["packed"].first, found["packed"].last = 2, 5
    found["observed"] = found["observed"]({"key": SimpleNamespace(tree={(-1, 0): Table([7])})}, halved=2)
    found["split"], found["slice"] = found["split"](tables), found["slice"](tables[0])
    found["chain"] = found["chain"]("op", ("unit",), tables, {"sum": 1})
    return found


def stand_in_libcudf() -> None:
    """Tables and buffers in host memory go through pickle and numpy."""
    from tasks.cluster.transfer import gpu_results

    def pack_run(tables: Any) -> Any:
        data = np.frombuffer(pickle.dumps([table.values for table in tables]), np.uint8)
        return gpu_results.Packed(data, b"m", {}, [len(table) for table in tables])

    gpu_results.pack_run = pack_run
    gpu_results.unpack_run = lambda packed: [Table(values) for values in pickle.loads(packed.buffer.tobytes())]  # noqa: S301
    cuda_serialize.register(np.ndarray)(lambda array: ({"dtype": array.dtype.str}, [array]))
    cuda_deserialize.register(np.ndarray)(lambda header, frames: frames[0])


def shown(value: Any) -> Any:
    """What a result holds, as plain values."""
    from tasks.graph.seen import Seen

    if isinstance(value, Table):
        return value.values
    if isinstance(value, (list, tuple)):
        return [shown(one) for one in value]
    if isinstance(value, dict):
        return {str(key): shown(one) for key, one in value.items()}
    if isinstance(value, SimpleNamespace):
        return shown(value.tree)
    if isinstance(value, Seen):
        return shown(vars(value))
    if hasattr(value, "offsets"):
        return [type(value).__module__, value.offsets.tolist(), shown(getattr(value, "buffer", None))]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value


def sent(value: Any, kind: str, context: Any = None) -> Any:
    """(the keys of the header, the number of frames, what arrives), or that this serializer leaves it to the next."""
    header, frames = serialize(value, serializers=(kind, "pickle"), context=context, on_error="raise")
    if header["serializer"] != kind:
        return header["serializer"]
    again = deserialize(header, frames)
    attributes = {name: shown(one) for name, one in again.__dict__.items() if name != "nbytes"}
    return [sorted(header["sub-header"]), len(frames), type(again).__name__, attributes]


def main() -> None:
    sys.meta_path.insert(0, Finder())
    for step in sys.argv[1:]:
        {"preload": preload, "pre_import": pre_import, "task": task, "result": result}[step]()
    from dask_cuda.is_device_object import is_device_object

    from tasks.cluster.transfer import host_memory

    stand_in_libcudf()
    to_us = {"recipient": {host_memory.OFFER: host_memory.this_host()}}
    dispatches = (dask_serialize, dask_deserialize, cuda_serialize, cuda_deserialize, is_device_object)
    values = made()
    by_dask = {name: [sent(value, "dask"), sent(value, "dask", to_us)] for name, value in values.items()}
    told = {name: {
        "dask": by_dask[name][0], "neighbour": by_dask[name][1], "cuda": sent(value, "cuda"),
        "on device": [bool(is_device_object(value)), bool(is_device_object([value]))], "sizeof": sizeof(value),
        "functions": [getattr(dispatch.dispatch(type(value)), "__qualname__", "") for dispatch in dispatches],
    } for name, value in values.items()}  # fmt: skip
    print(json.dumps(told))


if __name__ == "__main__":
    main()
