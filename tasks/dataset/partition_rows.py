"""How workers read the rows of a partition: as a table, as columns or as a frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pyarrow as pa

from tasks.cluster.dask_pool import DaskPool, over_frames
from tasks.cluster.pool import Pool
from tasks.cluster.transfer import gpu_setup
from tasks.core.plan import MOST_ROWS, Block, Partition, Piece, Plan
from tasks.core.schema import Schema
from tasks.engines import synchronize
from tasks.engines.convert import libraries
from tasks.engines.types import DataFrame
from tasks.graph.node import Node
from tasks.graph.partition_work import Work
from tasks.graph.row_rules import ALL_ROWS, RowRules
from tasks.sources.frames import FrameFacts, frame_here, measure_frame
from tasks.sources.reader import FramePlan, read


def pick_columns(
    handle: Plan | FramePlan, schema: Schema, engine: str, columns: Sequence[str] = (), rules: RowRules = ALL_ROWS
) -> Work:
    """What reads these columns of the rows that rules keep."""
    return Work(handle, Node("pick", selection=tuple(columns), name="source"), schema, engine, rules=rules)


def _compute_columns(work: Work, partition: Partition) -> dict[str, Any]:
    evaluation = work.open_partition(partition, work.bound.targets)
    return {name: evaluation.column(place, name) for place, name in work.bound.targets}


def read_partition_table(
    source: Plan | FramePlan | Work, columns: Sequence[str] | None, partition: Partition, most: int = MOST_ROWS
) -> pa.Table:
    """The rows of a partition, `most` at most; of a `Work` those that its rules keep."""
    if not isinstance(source, Work):
        return read(source, partition, columns).slice(0, most)
    picked = source.kernels.slice_rows(_compute_columns(source, partition), 0, most)
    return source.kernels.host_columns(picked, Schema(source.schema[name] for name in picked))


def count_rows(work: Work, partition: Partition) -> int:
    """The rows of a partition that the rules of a data set keep."""
    return len(work.open_partition(partition, []).context.rows)


def _read_columns(work: Work, partition: Partition) -> pa.Table | dict[str, Any]:
    """All columns of a partition: a table of the host, or with cuDF columns of the GPU."""
    if work.engine != "cudf":
        return read(work.source, partition, list(work.schema))
    gpu_setup.prepare(work.engine)
    columns = work.read(partition, list(work.schema), [])
    synchronize()
    return columns


def store_partitions(pool: Pool, work: Work, partitions: Sequence[Partition]) -> list[Any]:
    """Compute the columns of all partitions, which stay in memory where they are: with a client on its workers."""
    if not isinstance(pool, DaskPool):
        return pool.map(_read_columns, work, partitions)
    function, first = pool.with_shared(_read_columns, work, len(partitions))
    parts = over_frames(function, first, partitions, f"rows-{uuid4().hex[:8]}", pool.client)
    return list(pool.client.persist(parts))


def renumber_blocks(partition: Partition) -> tuple[Block, ...]:
    """The blocks of a partition, with their places in it."""
    first = partition.first_row
    number = partition.number
    places = [(block, block.first_row - first) for block in partition.blocks]
    return tuple(replace(block, pieces=(Piece(number, row, row + block.rows),)) for block, row in places)


def measure_own_frame(engine: str, alone: Partition) -> FrameFacts:
    """The figures of a frame, on the worker that has it."""
    gpu_setup.prepare(engine)
    return measure_frame(frame_here(alone.inputs[0].frame), engine)


def read_frame(handle: tuple[Plan | FramePlan | Work, Sequence[str], str], partition: Partition) -> DataFrame:
    source, columns, engine = handle
    if isinstance(source, Work) and engine == "cudf" and partition.inputs:  # which do not leave the GPU
        return source.kernels.user_frame(_compute_columns(source, partition))
    return libraries.to_frame(read_partition_table(source, columns, partition), engine)
