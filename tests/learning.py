"""Small tables through the statistics and the transform, with blocks and partitions cut where a test wants them."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.cluster.local_pool import LocalPool
from tasks.cluster.pool import Pool
from tasks.core.plan import Limits, Partition, Plan
from tasks.dataset import Dataset
from tasks.engines.convert.python_values import to_python_list
from tasks.graph.node import as_node
from tasks.graph.partition_work import Work
from tasks.graph.state import State
from tasks.learning.growth import Base
from tasks.learning.observe import PassOptions, learn
from tasks.sources.frames import frames_of
from tasks.sources.reader import FramePlan
from tasks.workflow import Workflow
from tasks.workflow.partitions import transform_partition


def cut(table: pa.Table, block_rows: int, blocks_per_partition: int = 1) -> FramePlan:
    """A plan over the table with blocks of `block_rows` rows and partitions of so many blocks."""
    frames = frames_of(table)
    blocks = frames.blocks(Limits(join_below=1, frame_rows=block_rows, cut_above=block_rows))
    runs = [blocks[i : i + blocks_per_partition] for i in range(0, len(blocks), blocks_per_partition)]
    return FramePlan(
        Plan((), "frame", frames.schema, blocks, tuple(Partition(i, tuple(run)) for i, run in enumerate(runs))), frames
    )


def learned(nodes: Any, source: FramePlan, engine: str, threads: int = 2) -> State:
    """What the graph learns from a plan."""
    return learned_on(LocalPool(threads), nodes, source, engine)


def learned_on(
    pool: Pool, nodes: Any, source: FramePlan, engine: str, base: Base | None = None,
    options: PassOptions | None = None, **work: Any,
) -> State:  # fmt: skip
    """What the graph learns from a plan on a pool, and on top of a base; `work` are fields of `Work`."""
    work_ = Work(source, as_node(nodes), source.plan.schema, engine, **work)
    return learn(work_, source.plan, pool, base, options or PassOptions()).state


def applied(nodes: Any, source: FramePlan, state: State, engine: str, training: bool = False) -> pa.Table:
    """The graph's output over a plan, as one table with the promised schema."""
    work = Work(source, as_node(nodes), source.plan.schema, engine, state, None, training)
    parts = []
    for partition in source.plan.partitions:
        made = transform_partition(work, partition)
        parts.append(pa.table({name: work.kernels.host(column) for name, column in made.items()}))
    return pa.concat_tables(parts)


def rows(nodes: Any, table: pa.Table | dict[str, Any], engine: str, training: bool = False) -> dict[str, list[Any]]:
    """Fitted on the table, applied to the same: the output columns as lists."""
    source = cut(pa.table(table), 1 << 20)
    return applied(nodes, source, learned(nodes, source, engine), engine, training).to_pydict()


def fitted(nodes: Any, table: pa.Table | dict[str, Any], engine: str) -> Workflow:
    """A workflow fitted on the table."""
    return Workflow(nodes).fit(Dataset(pa.table(table), engine=engine))


def has_nan(array: pa.Array | pa.ChunkedArray) -> bool:
    """Whether a column holds NaN, in lists too."""
    if isinstance(array, pa.ChunkedArray):
        return any(has_nan(chunk) for chunk in array.chunks)
    if pa.types.is_list(array.type):
        return has_nan(array.flatten())
    return pa.types.is_floating(array.type) and bool(pc.any(pc.is_nan(array), min_count=0).as_py())


def close(a: Any, b: Any, relative: float = 0.0) -> bool:
    """Equal fitted values: tables, lists and numbers, floats up to a relative error (0: bit by bit)."""
    if isinstance(a, pa.Table):
        alike = isinstance(b, pa.Table) and a.schema == b.schema
        return alike and all(close(to_python_list(a[n]), to_python_list(b[n]), relative) for n in a.column_names)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(close(a[k], b[k], relative) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(close(x, y, relative) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float) and relative:
        return math.isclose(a, b, rel_tol=relative, abs_tol=relative)
    return bool(a == b)
