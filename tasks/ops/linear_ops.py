"""Several columns at once: principal components, and the least squares of a target on every pair of columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from tasks.core.dtypes import dtype_name
from tasks.core.schema import Column, Schema, Tags
from tasks.core.strict_json import JsonObject
from tasks.engines.algorithms.factors import Factor, merge, one_thread, principal_axes
from tasks.engines.algorithms.protocol import Kernels
from tasks.errors import DataError, JobError
from tasks.ops.base import Columns, Context, Entry, Learned, Series, Unit, refuse_infinite
from tasks.ops.fitted_values import FittedValues

COLLINEAR = 1e-7  # of its length: what is left of a column beside another one; below, a fit would lose its digits


class _Together(Learned):
    """All selected columns as one matrix; learned from rows without a null, as number, mean and triangular factor."""

    in_float64 = True
    takes = frozenset({"number", "bool"})

    def merge(self, a: Factor, b: Factor) -> Factor:
        return merge(a, b)

    def units(self, selection: Sequence[Entry]) -> list[Unit]:
        flat = [name for entry in selection for name in ([entry] if isinstance(entry, str) else entry)]
        return [tuple(dict.fromkeys(flat))] if flat else []

    def factor(self, columns: Columns, names: Sequence[str], context: Context) -> Factor:
        """The Factor of the named columns; a DataError names one that holds an infinite value."""
        factor = context.engine.factorize_columns([columns[name] for name in names])
        large = [name for name, mean in zip(names, factor.mean[0], strict=True) if not np.isfinite(mean)]
        if large:
            refuse_infinite(type(self).__name__, large, columns, context, "its mean does not exist")
            raise DataError(
                f"{type(self).__name__} cannot learn from column {large[0]!r}",
                why="its values are so large that their sum is infinite",
                do="limit it with Clip, or leave such rows out with a filter",
            )
        return factor

    def kept_partial(self, partial: Factor, fitted: FittedValues) -> FittedValues:
        """Number, rows left out, means, and the upper triangle of the factor row by row."""
        triangle = partial.r[np.triu_indices(len(partial.r))]
        means = pa.table({"mean": partial.mean[0], "mean_rest": partial.mean[1]})
        return {"n": partial.n, "left_out": partial.left_out, "mean": means, "r": pa.table({"r": triangle})}

    def restored(self, fitted: FittedValues, saved: FittedValues, unit: Unit) -> Factor:
        mean = np.stack([saved["mean"][name].to_numpy() for name in ("mean", "mean_rest")])
        r = np.zeros((mean.shape[1], mean.shape[1]))
        r[np.triu_indices(len(r))] = saved["r"]["r"].to_numpy()
        return Factor(saved["n"], saved["left_out"], mean, r)


class PCA(_Together):
    """Project rows on the principal components of all selected columns: `pca_0` .. `pca_<n_components - 1>`, float64.

    Parameters
    ----------
    n_components : int
        Number of components, 1 up to the number of columns.
    whiten : bool, default False
        Divide every score by its component's standard deviation.

    Notes
    -----
    Score = (row - mean) . loadings; a component's variance is its singular value squared / (n - 1). The largest loading
    of a component is positive. Components beyond the rank of the data (fewer rows than columns, constant or dependent
    columns, n < 2, nothing but nulls) have variance 0 and loadings 0: their column is 0.0.

    A row with a null in any column gets nulls and is not learned from.

    An infinity cannot be learned from: an error that names column and row. A transform gives rows with infinite values
    infinite scores, or null where infinities of both signs meet.

    Learned values are the same bits for any partitioning and number of threads on one machine, and within 1e-12 of the
    largest one on another machine or on a GPU; the scores of given loadings are the same bits everywhere. A refit
    merges the factors: its learned values are those of a fit of all rows, as near as those of another machine.

    Errors: a JobError for more components than columns; a DataError for an infinite value, or an infinite sum, in the
    rows to learn from.

    Source: tall-skinny QR, Demmel, Grigori, Hoemmen, Langou, 2012; variance by row, Chan, Golub, LeVeque, 1979.

    Examples
    --------
    >>> from rowmill import Dataset, Workflow
    >>> table = pa.table({"x": [0.0, 3.0, 6.0], "y": [1.0, 5.0, 9.0]})
    >>> workflow = Workflow(["x", "y"] >> PCA(n_components=1)).fit(Dataset(table))
    >>> [round(score, 12) for score in workflow.transform(table)["pca_0"].to_pylist()]
    [-5.0, 0.0, 5.0]
    >>> Workflow(["x", "y"] >> PCA(n_components=3)).fit(Dataset(table))
    Traceback (most recent call last):
    ...
    tasks.errors.JobError: PCA cannot make 3 components of 2 columns ...
    """

    n_components: int = Field(ge=1)
    whiten: bool = False

    def observe_unit(self, columns: Columns, unit: Unit, context: Context) -> Factor:
        return self.factor(columns, unit, context)

    def finalize_unit(self, partial: Factor, unit: Unit) -> FittedValues:
        """`components`: a row per component. `loadings`: a row per column, its mean and what rounding left of it."""
        singular, axes = principal_axes(partial.r)
        rank = int((singular > singular[0] * max(partial.n, len(unit)) * np.finfo(np.float64).eps).sum())
        singular = np.where(np.arange(len(singular)) < rank, singular, 0.0)
        with np.errstate(over="ignore", under="ignore"):  # variances beyond float64 are infinite, or 0
            variances = singular**2 / max(partial.n - 1, 1)
            total = float(variances.sum())
        shares = (singular / (singular[0] or 1.0)) ** 2  # of the largest: these are all in range
        k = self.n_components
        loadings = {name: axes[:, i] if i < rank else np.zeros(len(unit)) for i, name in enumerate(self.names)}
        components = {
            "component": self.names,
            "singular_value": singular[:k],
            "variance": variances[:k],
            "share": shares[:k] / (shares.sum() or 1.0),
        }
        means = {"column": list(unit), "mean": partial.mean[0], "mean_rest": partial.mean[1]}
        return {
            "n": partial.n,
            "left_out": partial.left_out,
            "total_variance": total,
            "components": pa.table(components),
            "loadings": pa.table(means | loadings),
        }

    def prepare(self, fitted: FittedValues, engine: Kernels) -> tuple[np.ndarray, np.ndarray]:
        table = fitted["loadings"]
        mean = np.stack([table["mean"].to_numpy(), table["mean_rest"].to_numpy()])
        axes = np.stack([table[name].to_numpy() for name in self.names], axis=1)
        if self.whiten:
            deviations = fitted["components"]["singular_value"].to_numpy() / np.sqrt(max(fitted["n"] - 1, 1))
            axes = axes / np.where(deviations > 0, deviations, 1.0)
        return mean, axes

    def apply(self, columns: Columns, unit: Unit, fitted: tuple[np.ndarray, np.ndarray], context: Context) -> Columns:
        scores = context.engine.project([columns[name] for name in unit], *fitted)
        return dict(zip(self.names, scores, strict=True))

    def check(self, unit: Unit, schema: Schema) -> None:
        super().check(unit, schema)
        if self.n_components > len(unit):
            raise JobError(
                f"PCA cannot make {self.n_components:,} components of {len(unit):,} columns",
                do=f"set n_components to {len(unit):,} at most",
            )

    def outputs(self, unit: Unit, schema: Schema, fitted: FittedValues | None) -> list[Column]:
        return [Column(name, pa.float64(), frozenset({Tags.CONTINUOUS.value})) for name in self.names]

    @property
    def names(self) -> list[str]:
        return [f"pca_{i}" for i in range(self.n_components)]

    def report(self, fitted: FittedValues) -> list[JsonObject]:
        return fitted["components"].to_pylist()


class PairwiseRegression(_Together):
    """Fit `target` by least squares on every pair of the other selected columns, all in one pass; the data stay.

    Parameters
    ----------
    target : str
        Column to predict. It may be one of the selected columns, and need not exist when the workflow is applied.

    Notes
    -----
    target = first_coefficient * first + second_coefficient * second + intercept. 50 columns are 1,225 fits.

    What is learned has the table `pairs`, ranked by R^2: first, second, first_coefficient, second_coefficient,
    intercept, r2, rmse (square root of the mean squared residual, in the target's unit), n (rows), collinear. For a
    constant target r2 is null.

    Rows with a null in any of the columns or in the target are left out of all fits and counted (`left_out`). A pair is
    collinear if one column is constant or, but for 1e-7 of its length, a linear function of the other; so are all pairs
    of fewer than three rows. Collinear pairs come last, with nulls as coefficients.

    An infinity cannot be learned from: an error that names column and row. A refit merges the moments: its fits are
    those of all rows within 1e-12.

    Errors: a JobError for fewer than two columns besides the target; a DataError for a target that is not numeric, and
    for infinite values.

    Source: centred cross moments by blocks (Chan, Golub, LeVeque, 1979), stored as their triangular factor; a pair is
    fitted by orthogonalizing its three columns of the factor (modified Gram-Schmidt; Bjorck, 1967).

    Examples
    --------
    >>> from rowmill import Dataset, Workflow
    >>> table = pa.table({"x": [0.0, 1.0, 2.0, 5.0], "z": [0.0, 1.0, 0.0, 1.0], "y": [1.0, 6.0, 5.0, 14.0]})
    >>> workflow = Workflow(["x", "z"] >> PairwiseRegression(target="y")).fit(Dataset(table))
    >>> (fitted,) = workflow.state.values.values()
    >>> pair = fitted["pairs"].to_pylist()[0]
    >>> [round(pair[name], 9) for name in ("first_coefficient", "second_coefficient", "intercept", "r2")]
    [2.0, 3.0, 1.0, 1.0]
    >>> Workflow(["x"] >> PairwiseRegression(target="y")).fit(Dataset(table))
    Traceback (most recent call last):
    ...
    tasks.errors.JobError: PairwiseRegression needs at least two columns besides the target ...
    """

    target: str
    moves_values: ClassVar[bool] = False

    def observe_unit(self, columns: Columns, unit: Unit, context: Context) -> Factor:
        return self.factor(columns, [*self.predictors(unit), self.target], context)

    def finalize_unit(self, partial: Factor, unit: Unit) -> FittedValues:
        """`pairs`, ranked by r2; `n` and `left_out` rows; how many pairs are `collinear`."""
        names = np.array(self.predictors(unit), dtype=object)
        first, second = np.triu_indices(len(names), 1)
        with one_thread():  # whose number the bits would depend on
            fits = _pair_fits(partial)
        order = np.argsort(-np.nan_to_num(fits["r2"], nan=-1.0) + 2.0 * fits["collinear"], kind="stable")
        columns: dict[str, Any] = {"first": pa.array(names[first][order]), "second": pa.array(names[second][order])}
        for name, values in fits.items():
            columns[name] = pa.array(values[order], from_pandas=True)
        columns["n"] = pa.array(np.full(len(first), partial.n))
        collinear = columns.pop("collinear")
        return {
            "n": partial.n,
            "left_out": partial.left_out,
            "collinear": int(fits["collinear"].sum()),
            "pairs": pa.table(columns | {"collinear": collinear}),
        }

    def transform(self, column: Series, fitted: object) -> Series:
        return column

    def extra_columns(self, fitting: bool) -> tuple[str, ...]:
        return (self.target,) if fitting else ()

    def predictors(self, unit: Unit) -> list[str]:
        return [name for name in unit if name != self.target]

    def check(self, unit: Unit, schema: Schema) -> None:
        super().check(unit, schema)
        if len(self.predictors(unit)) < 2:
            raise JobError("PairwiseRegression needs at least two columns besides the target", do="select more columns")

    def outputs(self, unit: Unit, schema: Schema, fitted: FittedValues | None) -> list[Column]:
        if self.target in schema and schema[self.target].kind not in ("number", "bool"):
            raise DataError(
                f"PairwiseRegression needs a numeric target, {self.target!r} is "
                f"{dtype_name(schema[self.target].dtype)}",
                do="encode the target as a number first",
            )
        return super().outputs(unit, schema, fitted)

    def report(self, fitted: FittedValues) -> list[JsonObject]:
        return fitted["pairs"].slice(0, 20).to_pylist()


def _pair_fits(partial: Factor) -> dict[str, np.ndarray]:
    """The fits of the last column on all pairs (i, j), i < j, of the others, in the order of numpy.triu_indices."""
    n = partial.n
    p = len(partial.r) - 1
    powers = np.frexp(np.abs(partial.r).max(axis=0))[1]  # columns are divided by these powers of two: of any size
    r = np.ldexp(partial.r, -powers)
    mean = partial.mean[0]
    x = np.ascontiguousarray(r[:, :p].T)
    y = r[:, p]
    power = powers[p]
    length = np.linalg.norm(x, axis=1)
    whole = float(y @ y)
    parts: list[list[np.ndarray]] = []
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for i in range(p - 1):
            axis = x[i] / (length[i] or 1.0)
            along = x[i + 1 :] @ axis
            along_y = axis @ y
            beside = x[i + 1 :] - np.outer(along, axis)
            rest = y - axis * along_y
            size = np.sqrt(np.einsum("jk,jk->j", beside, beside))
            lost = (size <= COLLINEAR * length[i + 1 :]) | (length[i] == 0)
            b = np.where(lost, np.nan, beside @ rest / size**2)
            a = (along_y - along * b) / length[i]
            beside *= -b[:, None]
            beside += rest
            errors = np.einsum("jk,jk->j", beside, beside)
            r2 = 1.0 - errors / whole if whole > 0 else np.full(len(b), np.nan)
            rmse = np.ldexp(np.sqrt(errors / max(n, 1)), power)
            a = np.ldexp(a, power - powers[i])
            b = np.ldexp(b, power - powers[i + 1 : p])
            parts.append([a, b, mean[p] - a * mean[i] - b * mean[i + 1 : p], r2, rmse, lost])
    names = ("first_coefficient", "second_coefficient", "intercept", "r2", "rmse", "collinear")
    return {name: np.concatenate(arrays) for name, arrays in zip(names, zip(*parts, strict=True), strict=True)}
