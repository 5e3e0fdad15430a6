"""Compares the two things that a row names by their lists of features."""

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

WEIGHTED_COLUMNS = ["features", "weights"]  # of a feature table with weights


def _validate_feature_table(value: object, handler: Callable[[Any], Any]) -> str | SideFrame:
    """Accept a feature table in any of its forms; `handler` is Pydantic's own validation."""
    if library(value) in ("scipy", "cupyx") and hasattr(value, "tocsr"):
        return SideFrame.of(_convert_sparse_matrix(value))
    return side_table(value, handler)


FEATURES_VALIDATOR = WrapValidator(_validate_feature_table)


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
    storage_options : str, default None
        Name of the options of the storage that the URLs of feature tables are in (`ROWMILL_STORAGE_<NAME>`); None takes
        the credentials of the environment.

    Notes
    -----
    Row i of a feature table is the list of the feature ids (integers from 0) of thing i; an id that occurs twice counts
    twice. A feature table is a list of such lists, or the path or URL of a Parquet file with one list column, or with
    two list columns `features` and `weights`, where a weight takes the place of the count; in Python also such a
    pandas, Arrow or cuDF frame, or a sparse matrix of SciPy or CuPy, whose row i has the features and weights of thing
    i (a weight 0 is not a feature). The features are saved with the workflow; a refit reads their files again.

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

    left: Annotated[str | list[list[int]] | SideFrame, FEATURES_VALIDATOR, AS_SAVED]
    right: Annotated[str | list[list[int]] | SideFrame | None, FEATURES_VALIDATOR, AS_SAVED] = None
    metric: Literal["tfidf", "cosine", "inner"] = "tfidf"
    storage_options: str | None = None
    grouped = True
    passes: ClassVar[int] = 0

    def finalize_unit(self, partial: None, unit: Unit) -> FittedValues:
        left = _read_features(self.left, self.storage_options)
        right = left if self.right is None else _read_features(self.right, self.storage_options)
        return {"left": left, "right": right}

    def prepare(self, fitted: FittedValues, engine: Kernels) -> tuple[list[Array], int]:
        """Return ([starts, features, weights of the left; starts, keys, weights of the right], width) for `apply`.

        `starts` are the first entry of each row, and the end. A key is row * width + feature, ascending: so `apply`
        finds a feature of a row by binary search.
        """
        left_starts, left_features, left_weights = _weigh_features(fitted["left"].combine_chunks(), self.metric)
        right_starts, right_features, right_weights = _weigh_features(fitted["right"].combine_chunks(), self.metric)
        width = max([int(f.max()) + 1 for f in (left_features, right_features) if len(f)], default=1)
        right_rows = np.repeat(np.arange(len(right_starts) - 1), np.diff(right_starts))
        right_keys = right_rows * width + right_features
        arrays = [left_starts, left_features, left_weights, right_starts, right_keys, right_weights]
        return [engine.xp.asarray(a) for a in arrays], width

    def apply(self, columns: Columns, unit: Unit, fitted: tuple[list[Array], int], context: Context) -> Columns:
        xp = context.engine.xp
        arrays, width = fitted
        left_starts, left_features, left_weights, right_starts, right_keys, right_weights = arrays
        a, known_a = _to_row_numbers(context.engine.numbers(columns[unit[0]]), len(left_starts) - 1, xp)
        b, known_b = _to_row_numbers(context.engine.numbers(columns[unit[1]]), len(right_starts) - 1, xp)
        total = xp.zeros(len(a))
        valid = known_a & known_b
        first = left_starts[a]
        feature_counts = xp.where(valid, left_starts[a + 1] - first, 0) if len(a) else first
        # Without keys all sums are 0, and the last key, below, would not exist.
        rows = xp.flatnonzero(feature_counts > 0) if len(right_keys) else xp.zeros(0, dtype=xp.int64)
        # Step k adds the k-th feature of each left row, if the right row has it. One feature of every row at a time, so
        # that a sum has the same order on both engines.
        step = 0
        while len(rows):
            entry = first[rows] + step
            wanted = b[rows] * width + left_features[entry]
            place = xp.minimum(xp.searchsorted(right_keys, wanted), len(right_keys) - 1)
            total[rows] += xp.where(right_keys[place] == wanted, left_weights[entry] * right_weights[place], 0.0)
            step += 1
            rows = rows[feature_counts[rows] > step]
        return {_output_name(unit): context.engine.from_numbers(total.astype(xp.float32), valid)}

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(features for features in (self.left, self.right) if isinstance(features, str)))

    @property
    def storage(self) -> str | None:
        return self.storage_options

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
        return [Column(_output_name(unit), pa.float32(), frozenset({Tags.CONTINUOUS.value}))]


def _output_name(unit: Unit) -> str:
    return f"{unit[0]}_{unit[1]}_sim"


def _to_row_numbers(numbers: tuple[Any, Any], count: int, xp: ModuleType) -> tuple[Any, Any]:
    """Return (rows of a feature table of `count` rows, 0 if unknown; which of them are known)."""
    values, valid = numbers
    known = (values >= 0) & (values < count)
    known = known if valid is None else known & valid
    return xp.where(known, values, 0).astype(xp.int64), known


def _convert_sparse_matrix(matrix: Any) -> pa.Table:
    """Convert the rows of a sparse matrix to lists of features and weights, without features of weight 0."""
    rows = matrix.tocsr(copy=True)
    rows = rows.get() if library(rows) == "cupyx" else rows
    rows.sum_duplicates()
    rows.eliminate_zeros()
    ends = rows.indptr.astype(np.int64)
    values = (rows.indices.astype(np.int64), rows.data.astype(np.float64))
    return pa.table([pa.LargeListArray.from_arrays(ends, column) for column in values], WEIGHTED_COLUMNS)


def _read_features(source: str | list[list[int]] | SideFrame, storage_options: str | None) -> pa.Table:
    """Read the table of a side: the list column `features`, and `weights` if the source has them."""
    if isinstance(source, list):
        return _check_features(pa.table({"features": pa.array(source, pa.list_(pa.int64()))}), "")
    table = read_side_table(source, storage_options=storage_options)
    names = [n for n in table.column_names if is_list(table.schema.field(n).type)]
    if sorted(names) != WEIGHTED_COLUMNS and len(names) != 1:
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
    feature_counts, weight_counts = (np.asarray(c.value_lengths().fill_null(0)) for c in (features, *weights))
    if (feature_counts != weight_counts).any():
        row = int(np.flatnonzero(feature_counts != weight_counts)[0])
        what = f"row {row:,} of the feature table has {feature_counts[row]} features and {weight_counts[row]} weights"
        raise DataError(what, where=where, do="give one weight for each feature")
    values = weights[0].flatten()
    if values.null_count or not np.isfinite(np.asarray(values)).all():
        raise DataError("a weight of the feature table is null or not finite", where=where, do="give finite numbers")
    return table


def _weigh_features(table: pa.Table, metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (first entry of each row and the end, features ascending in each row, weights) of lists of ids.

    The weights of an id that occurs several times in a list are added up: without weights they are counts.
    """
    features, *weight_lists = (one_array(column) for column in table.columns)
    lengths = np.asarray(features.value_lengths().fill_null(0), dtype=np.int64)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    ids = np.asarray(features.flatten(), dtype=np.int64)
    width = int(ids.max()) + 1 if len(ids) else 1
    keys, places = np.unique(rows * width + ids, return_inverse=True)
    entry_weights = np.asarray(weight_lists[0].flatten()) if weight_lists else None
    rows = keys // width
    ids = keys % width
    weights = np.bincount(places, entry_weights, len(keys)).astype(np.float64)
    if metric == "tfidf":
        document_frequency = np.bincount(ids, minlength=width)
        weights *= (np.log((1 + len(lengths)) / (1 + document_frequency)) + 1)[ids]
    if metric != "inner":
        norms = np.sqrt(np.bincount(rows, weights=weights * weights, minlength=len(lengths)))
        weights /= np.where(norms > 0, norms, 1.0)[rows]
    return np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(lengths)))]), ids, weights
