"""Pieces between workers: not through pickle, but as buffers of the device.

A worker of the same host copies a buffer out of this GPU by itself; to others it travels as a frame, over UCX without
touching the host.

Imported with the engine: a worker that receives pieces must have imported it before (`pre_import`).
"""

from __future__ import annotations

import pickle
from itertools import islice
from typing import Any

from dask.sizeof import sizeof
from distributed.protocol import deserialize, serialize
from distributed.protocol.cuda import cuda_deserialize, cuda_serialize
from distributed.protocol.serialize import dask_deserialize, dask_serialize

from tasks import neighbours
from tasks.frame.gpu import holders
from tasks.frame.gpu.buffers import Context, sent, taken
from tasks.frame.gpu.order import Pieces, unpacked

KINDS = {"cuda": (cuda_serialize, cuda_deserialize), "dask": (dask_serialize, dask_deserialize)}


def _register_pieces(kind: str) -> None:
    """Pieces are one buffer, and what libcudf and `rebuilt` have to know to see columns in it."""
    dumps, loads = KINDS[kind]

    @dumps.register(Pieces)
    def dump(pieces: Pieces, context: Context = None) -> tuple[dict[str, Any], list[Any]]:
        packed = pieces if pieces.buffer is not None else pieces.packed()
        header, frames = sent(packed.buffer, pieces, kind, context)
        known = pickle.dumps((packed.metadata, packed.marks, packed.offsets))
        return {"buffer": header, "known": known}, frames

    @loads.register(Pieces)
    def load(header: dict[str, Any], frames: list[Any]) -> Pieces:
        metadata, marks, offsets = pickle.loads(header["known"])  # noqa: S301  as Dask sends everything else
        return unpacked(metadata, taken(header["buffer"], frames), marks, offsets)


def _register_cuts(kind: str) -> None:
    """A cut is a list of pieces and a few numbers; pieces in host memory travel as they do between CPUs."""
    from tasks.exchange import Packed
    from tasks.transform import Cut

    dumps, loads = KINDS[kind]

    def dump(cut: Any, context: Context = None) -> tuple[dict[str, Any], list[Any]]:
        if not all(isinstance(piece, Pieces) for piece in cut.pieces):
            return neighbours.dump(cut, context)
        dumped = [serialize(piece, serializers=(kind,), on_error="raise", context=context) for piece in cut.pieces]
        rest = pickle.dumps({name: value for name, value in cut.__dict__.items() if name != "pieces"})
        header = {"packed": type(cut) is Packed, "rest": rest, "pieces": [header for header, _ in dumped],
                  "frames": [len(frames) for _, frames in dumped]}  # fmt: skip
        return header, [frame for _, frames in dumped for frame in frames]

    def load(header: dict[str, Any], frames: list[Any]) -> Any:
        if "pieces" not in header:
            return neighbours.load(header, frames)
        cut = Packed() if header["packed"] else Cut()
        left = iter(frames)
        cut.pieces = [
            deserialize(piece, list(islice(left, count)))
            for piece, count in zip(header["pieces"], header["frames"], strict=True)
        ]
        cut.__dict__.update(pickle.loads(header["rest"]))  # noqa: S301  as Dask sends everything else
        return cut

    for cls in (Cut, Packed):
        dumps.register(cls)(dump)
        loads.register(cls)(load)


def register() -> None:
    """Make the serializers known to distributed, and the sizes to Dask."""
    import distributed.protocol.cupy  # noqa: F401  the serializers of CuPy's arrays

    for kind in KINDS:
        _register_pieces(kind)
    sizeof.register(Pieces)(lambda pieces: pieces.nbytes)


def _when_first_asked() -> None:
    from tasks.large import Part, Piece, Split
    from tasks.statistics import Observed

    for kind in KINDS:
        _register_cuts(kind)
    holders.register((Observed, Part, Piece, Split), KINDS)


def _register_sizes() -> None:
    from tasks.exchange import Packed
    from tasks.transform import Cut

    for cls in (Cut, Packed):
        sizeof.register(cls)(lambda cut: cut.nbytes)


register()
sizeof.register_lazy("tasks", _register_sizes)
for _dispatch in (*KINDS["cuda"], *KINDS["dask"]):
    _dispatch.register_lazy("tasks", _when_first_asked)
