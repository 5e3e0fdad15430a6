"""Brings the rows of a data set together by keys, in temporary files that live as long as their plan."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tasks.core.plan import Plan
from tasks.core.settings import Source
from tasks.dataset.chosen_rows import RowSource
from tasks.dataset.scratch_folder import ScratchFolder
from tasks.engines.convert import libraries
from tasks.graph.row_rules import RowRules
from tasks.job.text_order import check_text_order
from tasks.shuffle.group_by_keys import by_keys
from tasks.shuffle.key_ranges import SourceRows


def check_sorting(data: RowSource, sort_by: list[str]) -> None:
    """A JobError for columns by which rows are sorted that have no order that holds for all files."""
    check_text_order(data.handle, data.plan, Source(path=".", sort_by=sort_by), data.pool)


def group_rows(data: RowSource, rules: RowRules, keys: list[str], sort_by: list[str], size: int) -> Plan:
    """Write the rows of a key into one partition, sorted; the plan of the files, of about `size` bytes a partition."""
    folder = ScratchFolder(tempfile.mkdtemp(prefix="rowmill-keys-"))
    try:
        engine = libraries.resolve_engine(data.engine)
        rows = SourceRows(data.handle, data.plan, engine, data.pool, rules=rules)
        plan = by_keys(rows, keys, sort_by, Path(folder.path), size)
    except BaseException:
        folder.remove()
        raise
    object.__setattr__(plan, "scratch", folder)  # the files live as long as the plan
    return plan
