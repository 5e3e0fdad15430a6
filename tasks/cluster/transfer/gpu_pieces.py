"""Sends results of tasks between workers as buffers of the device instead of pickles.

A worker of the same host copies a buffer out of this GPU by itself; to others it travels as a frame, over UCX without
touching the host.

`gpu_worker` registers this before a worker has its first task: one that receives pieces must know them.
"""

from __future__ import annotations

import pickle
from itertools import islice
from typing import Any

from dask.sizeof import sizeof
from distributed.protocol import deserialize, serialize
from distributed.protocol.cuda import cuda_deserialize, cuda_serialize
from distributed.protocol.serialize import dask_deserialize, dask_serialize

from tasks.cluster.transfer import gpu_results, host_memory
from tasks.cluster.transfer.device_buffers import deserialize_buffer, serialize_buffer
from tasks.cluster.transfer.headers import Context, Header
from tasks.engines.gpu.order import Pieces, unpack_pieces
from tasks.engines.task_result import PiecesResult, TaskResult

KINDS = {"cuda": (cuda_serialize, cuda_deserialize), "dask": (dask_serialize, dask_deserialize)}


def _register_pieces(kind: str) -> None:
    """Have Dask send pieces as one buffer, with the metadata from which libcudf and `rebuilt` make columns again."""
    dumps, loads = KINDS[kind]

    @dumps.register(Pieces)
    def dump(pieces: Pieces, context: Context = None) -> tuple[Header, list[Any]]:
        packed = pieces if pieces.buffer is not None else pieces.pack_rows()
        assert packed.buffer is not None  # `packed` makes one
        header, frames = serialize_buffer(packed.buffer, pieces, kind, context)
        known = pickle.dumps((packed.metadata, packed.marks, packed.offsets))
        return {"buffer": header, "known": known}, frames

    @loads.register(Pieces)
    def load(header: Header, frames: list[Any]) -> Pieces:
        metadata, marks, offsets = pickle.loads(header["known"])  # noqa: S301  as Dask sends everything else
        return unpack_pieces(metadata, deserialize_buffer(header["buffer"], frames), marks, offsets)


def dump(result: TaskResult, kind: str, context: Context) -> tuple[Header, list[Any]]:
    """Header and frames of a result: piece by piece if it consists of pieces, else its tables in one buffer."""
    if isinstance(result, PiecesResult):
        return _dump_pieces(result, kind, context)
    return gpu_results.dump(result, kind, context)


def load(header: Header, frames: list[Any]) -> object:
    """Restore the result."""
    return _load_pieces(header, frames) if "pieces" in header else gpu_results.load(header, frames)


def _dump_pieces(result: PiecesResult, kind: str, context: Context) -> tuple[Header, list[Any]]:
    """Header and frames of a list of pieces and a few numbers; pieces in host memory travel as between CPUs."""
    if not all(isinstance(piece, Pieces) for piece in result.pieces):
        return host_memory.dump(result, context)
    dumped = [serialize(piece, serializers=(kind,), on_error="raise", context=context) for piece in result.pieces]
    rest = {name: value for name, value in result.__dict__.items() if name != "pieces"}
    header = {
        "rest": pickle.dumps((type(result), rest)),
        "pieces": [header for header, _ in dumped],
        "frames": [len(frames) for _, frames in dumped],
    }
    return header, [frame for _, frames in dumped for frame in frames]


def _load_pieces(header: Header, frames: list[Any]) -> PiecesResult:
    kind, rest = pickle.loads(header["rest"])  # noqa: S301  as Dask sends everything else
    left = iter(frames)
    result = kind.__new__(kind)
    result.pieces = [
        deserialize(piece, list(islice(left, count)))
        for piece, count in zip(header["pieces"], header["frames"], strict=True)
    ]
    result.__dict__.update(rest)
    return result


def register() -> None:
    """Make the serializers known to distributed, and the sizes of pieces to Dask."""
    import distributed.protocol.cupy  # noqa: F401  the serializers of CuPy's arrays

    for kind in KINDS:
        _register_pieces(kind)
    cuda_serialize.register(TaskResult)(lambda result: dump(result, "cuda", None))
    cuda_deserialize.register(TaskResult)(load)
    host_memory.register(host_memory.Transport(lambda result, context: dump(result, "dask", context), load))
    sizeof.register((Pieces, PiecesResult))(lambda pieces: pieces.nbytes)
