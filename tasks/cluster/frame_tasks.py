"""Tasks over frames that stay where they are: Dask brings each task the frames of its partition, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from tasks.core.plan import Partition


class _OnFrames:
    """`function` of a partition whose frames reach the task as arguments."""

    def __init__(self, function: Callable[..., Any], partition: Partition) -> None:
        self.function, self.partition = function, partition

    def __call__(self, frames: Sequence[Any], *first: Any) -> Any:
        return self.function(*first, self.partition.with_frames(frames))


def over_frames(
    function: Callable[..., Any], first: Sequence[Any], partitions: Sequence[Partition], name: str, client: Any = None
) -> list[Any]:
    """A Delayed of function(*first, partition) for each partition.

    The scheduler computes a frame where its data are, prefers that worker for the task, and lets go of the frame
    behind the last task that takes it. A frame of this process is copied to one worker, by the transport of Dask.
    """
    import dask

    @cache
    def copied(number: int) -> Any:
        return client.scatter(by_number[number].frame)

    def placed(number: int) -> Any:
        frame = by_number[number].frame
        return frame if client is None or dask.is_dask_collection(frame) else copied(number)

    by_number = {one.number: one for partition in partitions for one in partition.inputs}
    calls = [dask.delayed(_OnFrames(function, partition), pure=False, traverse=False) for partition in partitions]
    return [
        call([placed(one.number) for one in partition.inputs], *first, dask_key_name=f"{name}-{i:06d}")
        for i, (call, partition) in enumerate(zip(calls, partitions, strict=True))
    ]
