"""A buffer of the device in a message of Dask: lent to a worker of the same host, else sent as a frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy
from distributed.protocol import deserialize, serialize

from tasks.cluster.transfer import cuda_ipc
from tasks.cluster.transfer.headers import Context, Header


def serialize_buffer(buffer: cupy.ndarray, owner: object, kind: str, context: Context) -> tuple[Header, list[Any]]:
    """Serialize a buffer of `owner`, the result of a task: (header, frames)."""
    place = cuda_ipc.lend(buffer, owner, context)
    if place is not None:
        return {"lent": place}, []
    return serialize(buffer, serializers=(kind,), on_error="raise")


def deserialize_buffer(header: Header, frames: Sequence[Any]) -> cupy.ndarray:
    """Restore a buffer in the memory of this process."""
    return cuda_ipc.fetch(header["lent"]) if "lent" in header else deserialize(header, list(frames))
