"""How much two things that a row names have in common."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from tasks.core.dtypes import dtype_name, is_list
from tasks.core.schema import Column, Schema, Tags
from tasks.errors import DataError, JobError
from tasks.ops.base import Columns, Context, Learned, Unit
from tasks.ops.side_tables import read_side_table

Features = str | list[list[int]]


class ColumnSimilarity(Learned):
    """Compute how similar the two things of a group (nested list) `a`, `b` are, by their features: column `a_b_sim`,
    float32.

    The columns hold row numbers, integers from 0: `a` of the feature table `left`, `b` of `right` (default: `left`).
    Row i of a feature table is the list of the feature ids (integers from 0) of thing i; an id that occurs twice counts
    twice. A feature table is a list of such lists, or the path of a Parquet file with one list column. `metric`: inner
    is the dot product of the counts; cosine is the dot product of the rows scaled to length 1; tfidf (default) is
    cosine after each feature is weighted with ln((1 + n) / (1 + rows that have it)) + 1, n the number of rows. A thing
    without features has similarity 0. A null, and a number without a row, give null. The features are saved with the
    workflow; a refit reads their files again. Errors: a JobError for a group that is not of two columns, and for a file
    without exactly one list column; a DataError for columns that are not of integers, for an empty feature table, and
    for feature ids below 0. Source: TfidfTransformer and cosine_similarity of scikit-learn.

    >>> from millrace import Workflow
    >>> features = [[0, 1], [0], [2]]
    >>> table = pa.table({"seen": [0, 0, 0], "shown": [0, 1, 2]})
    >>> workflow = Workflow([["seen", "shown"]] >> ColumnSimilarity(features, metric="inner"))
    >>> workflow.fit(table).transform(table).to_pydict()
    {'seen_shown_sim': [2.0, 1.0, 0.0]}
    """

    left: Features
    right: Features | None = None
    metric: Literal["tfidf", "cosine", "inner"] = "tfidf"
    grouped = True
    passes: ClassVar[int] = 0

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(features for features in (self.left, self.right) if isinstance(features, str)))

    def check(self, unit: Unit, schema: Schema) -> None:
        super().check(unit, schema)
        if len(unit) != 2:
            raise JobError(f"ColumnSimilarity takes a group of two columns, not {len(unit)}", do="write [[a, b]]")
        for name in unit:
            if not pa.types.is_integer(schema[name].dtype):
                raise DataError(
                    f"ColumnSimilarity takes row numbers, column {name!r} is {dtype_name(schema[name].dtype)}",
                    do="number the things with integers from 0 first",
                )

    def outputs(self, unit: Unit, schema: Schema, fitted: Mapping[str, Any] | None) -> list[Column]:
        return [Column(f"{unit[0]}_{unit[1]}_sim", pa.float32(), frozenset({Tags.CONTINUOUS.value}))]

    def finalize_unit(self, partial: None, unit: Unit) -> dict[str, Any]:
        left = _read(self.left)
        return {"left": left, "right": left if self.right is None else _read(self.right)}

    def prepare(self, fitted: dict[str, Any], engine: ModuleType) -> Any:
        """Per side (first entry of each row, features, weights), rows' features ascending, in arrays of the engine."""
        rows = [_weighted(fitted[side]["features"].combine_chunks(), self.metric) for side in ("left", "right")]
        width = max([int(features.max()) + 1 for _, features, _ in rows if len(features)], default=1)
        (starts, features, weights), (begins, others, theirs) = rows
        keys = np.repeat(np.arange(len(begins) - 1), np.diff(begins)) * width + others
        arrays = [starts, features, weights, begins, keys, theirs]
        return [engine.xp.asarray(a) for a in arrays], width

    def apply(self, columns: Columns, unit: Unit, fitted: Any, context: Context) -> Columns:
        xp, (arrays, width) = context.engine.xp, fitted
        starts, features, weights, begins, keys, theirs = arrays
        a, known_a = _rows(context.engine.numbers(columns[unit[0]]), len(starts) - 1, xp)
        b, known_b = _rows(context.engine.numbers(columns[unit[1]]), len(begins) - 1, xp)
        total, valid = xp.zeros(len(a)), known_a & known_b
        first = starts[a]
        left = xp.where(valid, starts[a + 1] - first, 0) if len(a) else first
        rows = xp.flatnonzero(left > 0) if len(keys) else xp.zeros(0, dtype=xp.int64)
        step = 0
        while len(rows):  # one feature of every row at a time, so that a sum has one order on both engines
            entry = first[rows] + step
            wanted = b[rows] * width + features[entry]
            place = xp.minimum(xp.searchsorted(keys, wanted), len(keys) - 1)
            total[rows] += xp.where(keys[place] == wanted, weights[entry] * theirs[place], 0.0)
            step += 1
            rows = rows[left[rows] > step]
        name = f"{unit[0]}_{unit[1]}_sim"
        return {name: context.engine.from_numbers(total.astype(xp.float32), valid)}


def _rows(numbers: tuple[Any, Any], count: int, xp: Any) -> tuple[Any, Any]:
    """(row numbers, 0 where there is none; which are known)."""
    values, valid = numbers
    known = (values >= 0) & (values < count)
    known = known if valid is None else known & valid
    return xp.where(known, values, 0).astype(xp.int64), known


def _read(source: Features) -> pa.Table:
    if not isinstance(source, str):
        features = pa.array(source, pa.list_(pa.int64()))
    else:
        table = read_side_table(source)
        names = [n for n in table.column_names if is_list(table.schema.field(n).type)]
        if len(names) != 1:
            raise JobError(
                f"the feature table has {len(names)} list columns",
                where=source,
                do="keep only the column with the lists of feature ids",
            )
        features = table[names[0]].combine_chunks().cast(pa.list_(pa.int64()))
    if len(features) == 0:
        raise DataError(
            "there are no feature rows", where=source if isinstance(source, str) else "", do="give at least one"
        )
    if len(features.flatten()) and (features.flatten().null_count or np.asarray(features.flatten()).min() < 0):
        raise DataError(
            "feature ids are integers from 0",
            where=source if isinstance(source, str) else "",
            why="a list of the feature table holds a null or a negative number",
            do="leave these entries out of the lists",
        )
    return pa.table({"features": features})


def _weighted(features: pa.Array, metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(first entry of each row and the end, features ascending in each row, weights) of lists of ids."""
    lengths = np.asarray(features.value_lengths().fill_null(0), dtype=np.int64)
    rows, ids = np.repeat(np.arange(len(lengths)), lengths), np.asarray(features.flatten(), dtype=np.int64)
    width = int(ids.max()) + 1 if len(ids) else 1
    keys, counts = np.unique(rows * width + ids, return_counts=True)
    rows, ids, weights = keys // width, keys % width, counts.astype(np.float64)
    if metric == "tfidf":
        having = np.bincount(ids, minlength=width)
        weights *= (np.log((1 + len(lengths)) / (1 + having)) + 1)[ids]
    if metric != "inner":
        size = np.sqrt(np.bincount(rows, weights=weights * weights, minlength=len(lengths)))
        weights /= size[rows]
    return np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(lengths)))]), ids, weights
