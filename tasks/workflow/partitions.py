"""The output of a fitted workflow for one partition, as columns or as a frame of the engine."""

from __future__ import annotations

from typing import Any

from tasks.core.plan import Partition
from tasks.engines.types import DataFrame
from tasks.graph.failed_casts import list_records, warn
from tasks.graph.partition_work import Work


def frame_of(work: Work, partition: Partition) -> DataFrame:
    return work.kernels.user_frame(transform_partition(work, partition))


def transform_partition(work: Work, partition: Partition) -> dict[str, Any]:
    """The output columns of one partition."""
    evaluation = work.open_partition(partition, work.bound.targets)
    columns = evaluation.outputs()
    warn(list_records(evaluation.failed))
    return columns
