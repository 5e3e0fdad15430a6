"""How much two things that a row names have in common."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import WrapValidator

from tasks.core.dtypes import dtype_name, is_list
from tasks.core.schema import Column, Schema, Tags
from tasks.engines.algorithms.arrow_arrays import one_array
from tasks.engines.algorithms.protocol import Kernels
from tasks.engines.convert.libraries import library
from tasks.errors import DataError, JobError
from tasks.ops.base import Array, Columns, Context, Learned, Unit
from tasks.ops.fitted_values import FittedValues
from tasks.ops.side_tables import AS_SAVED, SideFrame, frames_in, read_side_table, side_table

WEIGHTED = ["features", "weights"]  # the lists of a feature table with weights


def _feature_table(value: object, checked: Callable[[Any], Any]) -> str | SideFrame:
    """A parameter that is a feature table in any of its forms."""
    if library(value) in ("scipy", "cupyx") and hasattr(value, "tocsr"):
        return SideFrame.of(_of_sparse(value))
    return side_table(value, checked)


FEATURES = WrapValidator(_feature_table)


class ColumnSimilarity(Learned):
    """Compare the two things of a group (nested list) `a`, `b` by their features: column `a_b_sim`, float32.

    Parameters
    ----------
    left : str, list of list of int, or frame
        Feature table of the things whose row numbers, integers from 0, are in `a`.
    right : str, list of list of int, or frame, default None
        Feature table of the things in `b`; None takes `left`.
    metric : {"tfidf", "cosine", "inner"}, default "tfidf"
        inner: dot product of the counts; cosine: of the rows scaled to length 1; tfidf: cosine of weighted features.

    Notes
    -----
    Row i of a feature table is the list of the feature ids (integers from 0) of thing i; an id that occurs twice counts
    twice. A feature table is a list of such lists, or the path of a Parquet file with one list column, or with two list
    columns `features` and `weights`, where a weight takes the place of the count; in Python also such a pandas, Arrow
    or cuDF frame, or a sparse matrix of SciPy or CuPy, whose row i has the features and weights of thing i (a weight 0
    is not a feature). The features are saved with the workflow; a refit reads their files again.

    inner is the dot product of the counts; cosine is the dot product of the rows scaled to length 1; tfidf is cosine
    after each feature is weighted with ln((1 + n) / (1 + rows that have it)) + 1, n the number of rows.

    A thing without features has similarity 0. A null, and a number without a row, give null.

    Errors: a JobError for a group that is not of two columns, and for a file without such columns; a DataError for
    columns that are not of integers, for an empty feature table, for feature ids below 0, and for weights that are
    null, NaN or infinite, or that are not one for each feature.

    Source: TfidfTransformer and cosine_similarity of scikit-learn.

    Examples
    --------
    >>> from rowmill import Workflow
    >>> features = [[0, 1], [0], [2]]
    >>> table = pa.table({"seen": [0, 0, 0], "shown": [0, 1, 2]})
    >>> workflow = Workflow([["seen", "shown"]] >> ColumnSimilarity(features, metric="inner"))
    >>> workflow.fit(table).transform(table).to_pydict()
    {'seen_shown_sim': [2.0, 1.0, 0.0]}
    >>> workflow.transform(pa.table({"seen": [0, 1], "shown": [None, 3]})).to_pydict()
    {'seen_shown_sim': [None, None]}
    """

    left: Annotated[str | list[list[int]] | SideFrame, FEATURES, AS_SAVED]
    right: Annotated[str | list[list[int]] | SideFrame | None, FEATURES, AS_SAVED] = None
    metric: Literal["tfidf", "cosine", "inner"] = "tfidf"
    grouped = True
    passes: ClassVar[int] = 0

    def finalize_unit(self, partial: None, unit: Unit) -> FittedValues:
        left = _read_features(self.left)
        return {"left": left, "right": left if self.right is None else _read_features(self.right)}

    def prepare(self, fitted: FittedValues, engine: Kernels) -> tuple[list[Array], int]:
        """Per side (first entry of each row, features, weights), rows' features ascending, in arrays of the engine."""
        rows = [_weigh_features(fitted[side].combine_chunks(), self.metric) for side in ("left", "right")]
        width = max([int(features.max()) + 1 for _, features, _ in rows if len(features)], default=1)
        (starts, features, weights), (begins, others, theirs) = rows
        keys = np.repeat(np.arange(len(begins) - 1), np.diff(begins)) * width + others
        arrays = [starts, features, weights, begins, keys, theirs]
        return [engine.xp.asarray(a) for a in arrays], width

    def apply(self, columns: Columns, unit: Unit, fitted: tuple[list[Array], int], context: Context) -> Columns:
        xp, (arrays, width) = context.engine.xp, fitted
        starts, features, weights, begins, keys, theirs = arrays
        a, known_a = _to_row_numbers(context.engine.numbers(columns[unit[0]]), len(starts) - 1, xp)
        b, known_b = _to_row_numbers(context.engine.numbers(columns[unit[1]]), len(begins) - 1, xp)
        total = xp.zeros(len(a))
        valid = known_a & known_b
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

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(features for features in (self.left, self.right) if isinstance(features, str)))

    @property
    def frames(self) -> tuple[SideFrame, ...]:
        return frames_in(self.left, self.right)

    def restore_frames(self, fitted: FittedValues) -> None:
        for features, name in ((self.left, "left"), (self.right, "right")):
            if isinstance(features, SideFrame):
                features.restore(fitted[name])

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

    def outputs(self, unit: Unit, schema: Schema, fitted: FittedValues | None) -> list[Column]:
        return [Column(f"{unit[0]}_{unit[1]}_sim", pa.float32(), frozenset({Tags.CONTINUOUS.value}))]


def _to_row_numbers(numbers: tuple[Any, Any], count: int, xp: ModuleType) -> tuple[Any, Any]:
    """(row numbers, 0 where there is none; which are known)."""
    values, valid = numbers
    known = (values >= 0) & (values < count)
    known = known if valid is None else known & valid
    return xp.where(known, values, 0).astype(xp.int64), known


def _of_sparse(matrix: Any) -> pa.Table:
    """The rows of a sparse matrix as lists of features and weights, both of them without zeros."""
    rows = matrix.tocsr(copy=True)
    rows = rows.get() if library(rows) == "cupyx" else rows
    rows.sum_duplicates()
    rows.eliminate_zeros()
    ends = rows.indptr.astype(np.int64)
    values = (rows.indices.astype(np.int64), rows.data.astype(np.float64))
    return pa.table([pa.LargeListArray.from_arrays(ends, column) for column in values], WEIGHTED)


def _read_features(source: str | list[list[int]] | SideFrame) -> pa.Table:
    """The table of a side: the list column `features`, and `weights` where there are any."""
    if isinstance(source, list):
        return _check_features(pa.table({"features": pa.array(source, pa.list_(pa.int64()))}), "")
    table = read_side_table(source)
    names = [n for n in table.column_names if is_list(table.schema.field(n).type)]
    if sorted(names) != WEIGHTED and len(names) != 1:
        raise JobError(
            f"the feature table has {len(names)} list columns",
            where=str(source),
            do="keep only the column with the lists of feature ids, or name the columns features and weights",
        )
    weights = {"weights": table["weights"].cast(pa.list_(pa.float64()))} if len(names) == 2 else {}
    features = table["features" if weights else names[0]].cast(pa.list_(pa.int64()))
    return _check_features(pa.table({"features": features, **weights}).combine_chunks(), str(source))


def _check_features(table: pa.Table, where: str) -> pa.Table:
    if len(table) == 0:
        raise DataError("there are no feature rows", where=where, do="give at least one")
    features, *weights = (one_array(column) for column in table.columns)
    ids = features.flatten()
    if len(ids) and (ids.null_count or np.asarray(ids).min() < 0):
        raise DataError(
            "feature ids are integers from 0",
            where=where,
            why="a list of the feature table holds a null or a negative number",
            do="leave these entries out of the lists",
        )
    if not weights:
        return table
    counts, others = (np.asarray(lists.value_lengths().fill_null(0)) for lists in (features, *weights))
    if (counts != others).any():
        row = int(np.flatnonzero(counts != others)[0])
        what = f"row {row:,} of the feature table has {counts[row]} features and {others[row]} weights"
        raise DataError(what, where=where, do="give one weight for each feature")
    values = weights[0].flatten()
    if values.null_count or not np.isfinite(np.asarray(values)).all():
        raise DataError("a weight of the feature table is null or not finite", where=where, do="give finite numbers")
    return table


def _weigh_features(table: pa.Table, metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(first entry of each row and the end, features ascending in each row, weights) of lists of ids.

    The weights of an id that occurs several times in a list are added up: without weights they are counts.
    """
    features, *weighting = (one_array(column) for column in table.columns)
    lengths = np.asarray(features.value_lengths().fill_null(0), dtype=np.int64)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    ids = np.asarray(features.flatten(), dtype=np.int64)
    width = int(ids.max()) + 1 if len(ids) else 1
    keys, places = np.unique(rows * width + ids, return_inverse=True)
    each = np.asarray(weighting[0].flatten()) if weighting else None
    rows = keys // width
    ids = keys % width
    weights = np.bincount(places, each, len(keys)).astype(np.float64)
    if metric == "tfidf":
        having = np.bincount(ids, minlength=width)
        weights *= (np.log((1 + len(lengths)) / (1 + having)) + 1)[ids]
    if metric != "inner":
        size = np.sqrt(np.bincount(rows, weights=weights * weights, minlength=len(lengths)))
        weights /= np.where(size > 0, size, 1.0)[rows]
    return np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(lengths)))]), ids, weights
