"""The partitions of a Dask frame as Delayed objects, each task the same in every computation that takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask._task_spec import GraphNode, Task, convert_legacy_graph
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph


class UnfusedTask(Task):  # type: ignore[misc]  # dask._task_spec has no types
    """A task that Dask does not fuse with its neighbours.

    Computations of arrays fuse tasks, and those of frames and Delayed objects do not. A fused task keeps its key but
    depends on others. The scheduler warns of that ("Detected different run_spec") while the other computation is there.
    """

    __slots__ = ()

    @property
    def block_fusion(self) -> bool:
        return True


def to_delayed_partitions(frame: Any) -> list[Delayed]:
    """A Delayed of each partition of a Dask frame."""
    parts = frame.to_delayed()
    graph: Mapping[Any, GraphNode] = convert_legacy_graph(dict(parts[0].dask))
    layer = f"partitions-{frame._name}"
    tasks = {key: _keep_apart(task) for key, task in graph.items()}
    whole = HighLevelGraph.from_collections(layer, tasks, dependencies=())
    return [Delayed(part.key, whole, layer=layer) for part in parts]


def _keep_apart(task: GraphNode) -> GraphNode:
    """The task as one that is not fused; aliases, values and the barriers of a shuffle as they are."""
    if type(task) is not Task:
        return task
    return UnfusedTask(task.key, task.func, *task.args, _data_producer=task.data_producer, **task.kwargs)
