"""How the rows of a plan get into files: what transform and shuffle_write share, in a flow and in calls from Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tasks.cluster.pool import Done
from tasks.core.plan import Plan
from tasks.core.schema import Schema
from tasks.core.settings import Output
from tasks.graph.partition_work import Work
from tasks.graph.row_rules import make_no_row_error
from tasks.shuffle.choice import Exchange
from tasks.shuffle.parts import Part, Writing, plan_parts
from tasks.shuffle.pieces import CutSummary, Cutting, totals
from tasks.shuffle.row_order import choose_files, locate_order_columns, make_order
from tasks.shuffle.writing import write_part


@dataclass(frozen=True)
class RowsToFiles:
    """The rows of one plan on their way into files: how each partition is cut, and in which order rows lie.

    `files` are those of all rows of the plan. A number that is chosen follows the rows that are left of them.
    """

    plan: Plan
    output: Output
    files: int
    cutting: Cutting

    @property
    def schema(self) -> Schema:
        """The columns of the output."""
        return self.cutting.work.bound.output

    def cut(self, exchange: Exchange, on_host: bool = False, done: Done | None = None) -> CutSummary:
        """Transform every partition and leave its pieces in the exchange, in host memory if `on_host`."""
        return totals(exchange.fill(replace(self.cutting, on_host=on_host), self.plan.partitions, done))

    def parts(self, counts: Sequence[int] | np.ndarray) -> list[Part]:
        """Plan the files of the output from the rows that all partitions have in each range of position; a DataError if
        there are none."""
        if not np.any(counts):
            raise make_no_row_error(self.cutting.work.rules.splitting)
        files = choose_files(int(np.sum(counts)), self.schema) if self.output.chooses_files else self.files
        return plan_parts(np.asarray(counts), self.output, self.cutting.order, files)

    def writing(self, folder: Path, notes: Path, fingerprint: str = "", on_host: bool = False) -> Writing:
        """Return what the files of `folder`, whose records go to `notes`, have in common."""
        cutting = self.cutting
        return Writing(
            str(folder),
            str(notes),
            cutting.work.engine,
            self.output,
            cutting.order,
            self.schema,
            fingerprint,
            cutting.floor,
            on_host,
        )


def rows_to_files(work: Work, plan: Plan, output: Output, files: int, floor: int = 0) -> RowsToFiles:
    """Make the decisions for one plan; a JobError if the order needs a column that the rows lack.

    A partition of less than `floor` bytes is not divided when memory is short.
    """
    order = make_order(output, plan, files)
    locate_order_columns(work, order)
    return RowsToFiles(plan, output, files, Cutting(work, order, floor, tuple(output.partition_on)))


def write_files(
    exchange: Exchange, writing: Writing, parts: Sequence[Part], done: Done | None = None
) -> list[list[dict[str, Any]]]:
    """Write the parts from their pieces in the exchange; the records of the files of each part."""
    return exchange.deliver(write_part, writing, parts, lambda part: (part.first, part.last), done)
