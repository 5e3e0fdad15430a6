"""Sketches of source columns whose values a vocabulary counts anyway: of the counts, not of the rows."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from tasks import engines
from tasks.cluster.out_of_memory import is_out_of_memory
from tasks.engines.algorithms import column_sketch
from tasks.engines.algorithms.arrow_arrays import one_array, raw
from tasks.engines.algorithms.column_sketch import Sketch
from tasks.engines.convert.frame_sizes import nbytes
from tasks.graph.seen import Seen
from tasks.ops.fitted_values import FittedValues

PART = {"pandas": 1 << 20, "cudf": 1 << 24}  # distinct values that are sketched at once
FEW = 1 << 14  # distinct values up to which a core is faster than a GPU


class CountTables:
    """Sketches of the tables of a phase, which are in host memory. Those of more than `FEW` values are sketched by
    `engine`, on a GPU one part after another; smaller ones by the CPU."""

    def __init__(self, engine: str) -> None:
        self.engine = engine

    def sketch_columns(
        self,
        columns: Mapping[str, str],
        of_rows: Mapping[str, Sequence[pa.Table]],
        fitted: FittedValues,
        partials: Mapping[str, Any],
    ) -> Seen:
        """What the counts say of the columns (step -> column): the tables of the new rows of a refit, which have no
        value in common, else what was learned in a phase."""
        start = time.thread_time()
        seen = Seen()
        cores = len(os.sched_getaffinity(0))
        with (
            ThreadPoolExecutor(cores, thread_name_prefix="rowmill-profile") as threads,
            ThreadPoolExecutor(1, thread_name_prefix="rowmill-profile-gpu") as on_gpu,
        ):
            futures = {}
            for key, name in columns.items():
                if key in of_rows:
                    tables = of_rows[key]
                    nulls = 0
                else:
                    tables, nulls = _collect_count_tables(fitted[key], partials.get(key, {}))
                engine = self.engine if sum(map(len, tables)) > FEW else "pandas"
                workers = on_gpu if engine == "cudf" else threads
                parts = _cut_tables(tables, PART[engine])
                futures[name] = nulls, [workers.submit(_sketch_table, part, engine) for part in parts]
            for name, (nulls, parts) in futures.items():
                sketches, seconds = zip(*[part.result() for part in parts], strict=True)
                sketch = column_sketch.merge(sketches)
                sketch.rows += nulls
                sketch.nulls += nulls
                seen.seconds += sum(seconds)
                seen.columns[name] = sketch
        seen.seconds += time.thread_time() - start
        seen.rows = max((sketch.rows for sketch in seen.columns.values()), default=0)
        return seen


def _cut_tables(tables: Sequence[pa.Table], size: int) -> list[pa.Table]:
    """The rows of tables in parts of so many; one empty part where there are no rows."""
    parts = [table.slice(at, size) for table in tables for at in range(0, len(table), size)]
    return parts or [tables[0].slice(0, 0)]


def _collect_count_tables(fitted: FittedValues, saved: FittedValues) -> tuple[Sequence[pa.Table], int]:
    """(tables of values and counts without a common value, nulls that they do not count)."""
    tables = [table for table in (fitted["values"], fitted.get("rest"), saved.get("rest")) if table is not None]
    return [table.select([table.column_names[0], "count"]) for table in tables], int(fitted.get("nulls", 0))


def _sketch_table(table: pa.Table, engine: str) -> tuple[Sketch, float]:
    """The sketch of a table of counts, and the CPU seconds that it took."""
    start = time.thread_time()
    counts = raw(one_array(table["count"]))
    if len(counts) and not counts.min():
        table = table.filter(pa.array(counts > 0))  # values that have an id, but no row since their counts began anew
    try:
        sketch = _sketch(table, engine)
    except Exception as error:
        if engine == "pandas" or not is_out_of_memory(error):
            raise
        sketch = _sketch(table, "pandas")  # the GPU has no room for it
    return sketch, time.thread_time() - start


def _sketch(table: pa.Table, engine: str) -> Sketch:
    kernels = engines.engine(engine)
    with engines.computing(engine, nbytes(table)):
        sketch: Sketch = kernels.sketch_counts(kernels.table_from_host(table), whole=True)
    return sketch
