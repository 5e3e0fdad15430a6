"""Texts by which rules order rows: times in texts have to sort as times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.cluster.pool import Pool
from tasks.core.dtypes import schema_advice
from tasks.core.plan import Partition, Plan
from tasks.core.settings import Source
from tasks.engines.algorithms.text_times import Unsorted, find_unsorted_times
from tasks.errors import JobError
from tasks.graph.binding import Bound
from tasks.sources.reader import FramePlan, read

PLACES = 3  # of the source that texts are taken from: its first, middle and last block
TEXTS = 10_000  # of a place


def check_text_order(
    source: Plan | FramePlan,
    plan: Plan,
    section: Source,
    pool: Pool,
    bound: Bound | None = None,
    output_sort: Sequence[str] = (),
) -> None:
    """Raise a JobError for texts that are times but do not sort as such, in a column by which a rule orders rows.

    If `source.split` goes by time, any texts are refused. The error has the expression that makes times of them, tried
    on a value.

    Other texts are sort keys like any other, and so are times that sort by their bytes (ISO 8601 in one form).
    """
    for name, where, by_time in _list_order_columns(section, bound, output_sort):
        if name not in plan.schema or not pa.types.is_string(plan.schema[name].dtype):
            continue
        texts = _sample_texts(source, plan, name, pool)
        if unsorted := find_unsorted_times(texts, sorted_too=by_time):
            do = _as_frame(name, unsorted) if isinstance(source, FramePlan) else _as_source(name, unsorted)
            what = f"{where} goes by {name!r}, and its times are texts"
            raise JobError(what, where=f"{where}, column {name}", why=unsorted.why, do=do)
        if by_time and not (section.split and section.split.by_shares):
            some = f" ({texts[0].as_py()!r})" if len(texts) else ""
            what = f"source.split by time needs a column of times or numbers, and {name!r} is string{some}"
            raise JobError(what, where="source.split", do="name the column that has the time, or split by another rule")


def _list_order_columns(
    section: Source, bound: Bound | None, output_sort: Sequence[str]
) -> Iterator[tuple[str, str, bool]]:
    """List (column, the rule that orders rows by it, whether it has to be a time)."""
    rule = section.split
    if rule and rule.by in ("time", "last"):
        yield rule.column or "", "source.split", rule.by == "time"
    if section.unique and section.unique.by:
        yield section.unique.by, "source.unique.by", False
    for name in section.sort_by:
        yield name, "source.sort_by", False
    for name in output_sort:
        column = bound.output[name] if bound and name in bound.output else None
        if column is None or pa.types.is_string(column.dtype):
            yield name, "output.sort_by", False


def _as_source(name: str, unsorted: Unsorted) -> str:
    return f"read it as a time: {schema_advice(name, unsorted.expression)} {unsorted.tried}"


def _as_frame(name: str, unsorted: Unsorted) -> str:
    written = f", format={unsorted.format!r}" if unsorted.format else ""
    return f"give it as a time ({unsorted.text!r} is {unsorted.time}): pandas.to_datetime(frame[{name!r}]{written})"


def _sample_texts(source: Plan | FramePlan, plan: Plan, name: str, pool: Pool) -> pa.Array:
    """Distinct texts of a column, of a few blocks."""
    places = sorted({0, len(plan.blocks) // 2, len(plan.blocks) - 1})
    blocks = [plan.alone(plan.blocks[place]) for place in places[:PLACES]]
    return pc.unique(pa.concat_arrays(pool.map(_texts, (source, name), blocks)))


def _texts(task: tuple[Any, str], block: Partition) -> pa.Array:
    source, name = task
    return pc.unique(read(source, block, [name]).column(name).cast(pa.string())).drop_null()[:TEXTS]
