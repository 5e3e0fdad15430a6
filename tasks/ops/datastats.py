"""What the data look like, column by column: the data report."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from tasks import engines
from tasks.core.dtypes import dtype_name, kind_of, leaf_type, parse_dtype
from tasks.core.schema import Column, Schema
from tasks.engines.algorithms import column_sketch
from tasks.engines.algorithms.moments import Moments, deviation, merge_moments
from tasks.engines.algorithms.protocol import Kernels
from tasks.engines.algorithms.reductions import exact_sum, extremes, on_host, total
from tasks.engines.convert.python_values import to_python_list, value_of
from tasks.errors import DataError
from tasks.ops.base import Array, Columns, Context, Learned, Series, Unit
from tasks.ops.fitted_values import FittedValues

EXACT = 1_000_000  # distinct values that are all counted
CANDIDATES = 1024  # above: so many of the most frequent values are followed on
LEAST = 1 << 16
SAMPLE = 1 << 16
SEED = 0x726F7773
FRACTIONS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)

Partial = dict[str, Any]


class DataStats(Learned):
    """Profile each column, in the pass in which other operators learn; the data pass through unchanged.

    Parameters
    ----------
    top : int, default 10
        Number of most frequent values in the profile, 0 to 100.
    histogram_bins : int, default 20
        Number of the histogram's bins, 1 to 1,000.

    Notes
    -----
    Exact are rows, nulls, min, max, mean, std (ddof 1, null for fewer than two values) and, up to a million distinct
    values, `distinct` and the `top` values (by count, equal counts by value). Beyond a million, `distinct` is estimated
    from the 65,536 least hashes of values (standard error 0.4 %) and the counts of the `top` values are lower bounds;
    `exact` is then false. Quantiles and the histogram are those of all values up to 65,536, else of a sample of about
    32,768 to 65,536 values that the hashes of the row numbers draw: a quantile is that of another share of the values,
    by 0.3 % (one standard error), and the counts of the histogram are estimates.

    Texts have distinct, top, min and max (by bytes) only. Times are ISO texts, their std is in seconds. In list
    columns, the elements are profiled, and `lengths` has the lists' lengths. Infinite values are counted in `infinite`
    and otherwise ignored. Without a value, min and max are null, and mean, std, quantiles and histogram are missing. A
    constant has std 0 and a histogram of one bin. A refit merges the profiles: that of a fit of all rows, bit for bit
    but for the mean and std of floats (within 1e-12) and counts beyond a million distinct values.

    Source: Bar-Yossef et al., "Counting distinct elements in a data stream", 2002.

    Examples
    --------
    >>> from rowmill import Workflow
    >>> workflow = Workflow(["x"] >> DataStats()).fit(pa.table({"x": [1, 2, None, 2]}))
    >>> (profile,) = workflow.state.values.values()
    >>> [profile[name] for name in ("rows", "nulls", "min", "max", "distinct")]
    [4, 1, 1, 2, 2]
    >>> profile["quantiles"]["0.5"], profile["top"][0]
    (2.0, {'value': 2, 'count': 2})
    """

    top: int = Field(10, ge=0, le=100)
    histogram_bins: int = Field(20, ge=1, le=1000)
    hands_on = True
    takes = frozenset({"number", "string", "bool", "time"})
    leaves = True
    encoded = True
    moves_values: ClassVar[bool] = False

    def observe_unit(self, columns: Columns, unit: Unit, context: Context) -> Partial:
        engine = context.engine
        column = columns[unit[0]]
        nulls = engine.null_rows([column])
        partial: Partial = {"dtype": dtype_name(engine.dtype(column)), "rows": len(column)}
        partial["nulls"] = 0 if nulls is None else total(nulls)
        if engine.is_list(column):
            lengths, valid = engine.list_lengths(column)
            lengths = lengths if valid is None else lengths[valid]
            ends = extremes(lengths) if len(lengths) else (None, None)
            partial["lengths"] = (len(lengths), total(lengths), *ends)
            column = engine.leaves(column)
        table = _finite(engine.host_table(engine.count_values([column], ["v0"])))
        partial |= _limit_counts(table, None)
        kind = kind_of(engine.dtype(column))
        if kind in ("number", "bool", "time") and not pa.types.is_null(engine.dtype(column)):
            partial |= _observe_numbers(engine, column)
            sample = _sample_values(engine, columns[unit[0]], context.rows, partial["moments"][0])
            return partial | {"sample": sample}
        low, high = pc.min_max(table["v0"]).values() if kind == "string" else (pa.scalar(None), pa.scalar(None))
        return partial | {"min": low.as_py(), "max": high.as_py()}

    def merge(self, a: Partial, b: Partial) -> Partial:
        out: Partial = {"dtype": a["dtype"], "rows": a["rows"] + b["rows"], "nulls": a["nulls"] + b["nulls"]}
        out["min"] = min((p["min"] for p in (a, b) if p["min"] is not None), default=None)
        out["max"] = max((p["max"] for p in (a, b) if p["max"] is not None), default=None)
        if "lengths" in a:
            low = [p["lengths"][2] for p in (a, b) if p["lengths"][0]]
            high = [p["lengths"][3] for p in (a, b) if p["lengths"][0]]
            n, total = (a["lengths"][i] + b["lengths"][i] for i in (0, 1))
            out["lengths"] = (n, total, min(low, default=None), max(high, default=None))
        if "moments" in a:
            out["infinite"] = a["infinite"] + b["infinite"]
            out["moments"] = merge_moments(_to_moments(a), _to_moments(b))[:3]
            out["total"] = None if a["total"] is None or b["total"] is None else a["total"] + b["total"]
            out["sample"] = _merge_samples(a["sample"], b["sample"])
        return out | _merge_counts(a, b)

    def finalize(self, partial: Partial) -> FittedValues:
        """The report of a column: plain JSON values."""
        engine = engines.engine("pandas")
        leaf = leaf_type(parse_dtype(partial["dtype"]))
        report: dict[str, Any] = {
            name: partial[name] for name in ("dtype", "rows", "nulls", "infinite") if name in partial
        }
        if "lengths" in partial:
            n, total, low, high = partial["lengths"]
            report["lengths"] = {"min": low, "max": high, "mean": total / n if n else None}
        table, _ = engine.split_nulls(_finite(partial["counts"]), ["v0"])  # older partials counted infinities, too
        exact = partial["least"] is None
        report["exact"] = exact
        report["distinct"] = len(table) if exact else round(column_sketch.estimate(partial["least"], LEAST)[0])
        first = engine.sort_counts(table, ["v0"]).slice(0, self.top)
        values = zip(to_python_list(first["v0"]), first["count"].to_pylist(), strict=True)
        report["top"] = [{"value": _to_json_value(value), "count": count} for value, count in values]
        if "moments" in partial and partial["moments"][0]:
            return report | self._of_numbers(partial, leaf)
        return report | {"min": partial["min"], "max": partial["max"]}

    def apply(self, columns: Columns, unit: Unit, fitted: object, context: Context) -> Columns:
        return {name: columns[name] for name in unit}

    def outputs(self, unit: Unit, schema: Schema, fitted: object) -> list[Column]:
        return [schema[name] for name in unit]

    def _of_numbers(self, partial: Partial, leaf: pa.DataType) -> dict[str, Any]:
        n, mean, _ = partial["moments"]
        low = partial["min"]
        high = partial["max"]
        values = np.sort(partial["sample"].values)
        quantiles = [float(values[int(q * (len(values) - 1))]) for q in FRACTIONS if len(values)]
        std = None if n < 2 else deviation(_to_moments(partial))
        mean = low if low == high else mean if partial["total"] is None else partial["total"] / n
        if pa.types.is_temporal(leaf) and std is not None:
            std *= _tick(leaf)
        return {
            "min": _to_report_value(low, leaf),
            "max": _to_report_value(high, leaf),
            "mean": _to_report_value(_finite_or_none(mean), leaf),
            "std": _finite_or_none(std),
            "quantiles": {f"{q:g}": _to_report_value(v, leaf) for q, v in zip(FRACTIONS, quantiles, strict=False)},
            "histogram": self._histogram(values, 1 << partial["sample"].level, low, high, leaf),
        }

    def _histogram(self, values: Array, each: int, low: float, high: float, leaf: pa.DataType) -> dict[str, Any]:
        """The bins between the extremes, and the values in each; a value of the sample stands for `each`."""
        span = float(high) / 2 - float(low) / 2  # halves, since the whole may be beyond the largest float
        if not span:
            return {
                "edges": [_to_report_value(low, leaf), _to_report_value(high, leaf)],
                "counts": [each * len(values)],
            }
        share = (values / 2 - float(low) / 2) / span
        places = np.minimum((share * self.histogram_bins).astype(np.int64), self.histogram_bins - 1)
        heights = each * np.bincount(places, minlength=self.histogram_bins)
        edges = [low + span * (2 * i / self.histogram_bins) for i in range(self.histogram_bins)]
        return {"edges": [_to_report_value(e, leaf) for e in [*edges, high]], "counts": heights.tolist()}

    def kept_partial(self, partial: Partial, fitted: FittedValues) -> FittedValues:
        """Numbers as JSON, counts, sample and hashes as tables; counts in order, since a GPU counts in any order."""
        saved = {k: v for k, v in partial.items() if k not in ("counts", "sample", "least", "min", "max")}
        counts = engines.engine("pandas").sort_counts(partial["counts"], ["v0"])
        saved |= {"min": _to_json_value(partial["min"]), "max": _to_json_value(partial["max"]), "counts": counts}
        if "sample" in partial:
            level, hashes, values = partial["sample"]
            saved |= {"level": level, "sample": pa.table({"hash": hashes, "value": values})}
        if partial["least"] is not None:
            saved["least"] = pa.table({"hash": partial["least"]})
        return saved

    def restored(self, fitted: FittedValues, saved: FittedValues, unit: Unit) -> Partial:
        if "bins" in saved:
            raise DataError(
                f"the profile of {unit[0]} was learned by an earlier rowmill",
                why="it has bins where this one has a sample of the rows",
                do="fit again, or refit without DataStats",
            )
        partial = {**saved, "least": None}
        for name in {"lengths", "moments"} & set(saved):
            partial[name] = tuple(saved[name])
        if "sample" in saved:
            hashes, values = (saved["sample"][name].to_numpy() for name in ("hash", "value"))
            partial["sample"] = ValueSample(partial.pop("level"), hashes, values)
        if "least" in saved:
            partial["least"] = saved["least"]["hash"].to_numpy()
        return partial


def _finite(table: pa.Table) -> pa.Table:
    """Return the counts of finite values."""
    if not pa.types.is_floating(table.schema.field("v0").type):
        return table
    return table.filter(pc.invert(pc.fill_null(pc.is_inf(table["v0"]), False)))


def _to_moments(partial: Partial) -> Moments:
    n, mean, squares = partial["moments"]
    return (n, mean, squares, partial["min"], partial["max"]) if n else (0, 0.0, 0.0, 0.0, 0.0)


def _observe_numbers(engine: Kernels, column: Series) -> Partial:
    values, valid = engine.numbers(column)
    values = values if valid is None else values[valid]
    infinite = 0
    if values.dtype.kind == "f":
        finite = engine.xp.isfinite(values)
        infinite = len(values) - total(finite)
        values = values[finite]
    ends = extremes(values) if len(values) else (None, None)
    whole = exact_sum(values) if values.dtype.kind in "iu" else None
    moments = engine.moments(engine.from_numbers(values), [0, len(values)])[0][:3]
    return {"min": ends[0], "max": ends[1], "infinite": infinite, "moments": moments, "total": whole}


class ValueSample(NamedTuple):
    """The finite values, float64, of the rows whose hash is below 2^32 / 2^level; the least level with at most `SAMPLE`
    values, so that it does not depend on how rows were parted."""

    level: int
    hashes: np.ndarray
    values: np.ndarray


def _sample_values(engine: Kernels, column: Series, rows: Array, values_there: int) -> ValueSample:
    """The sample of a column with so many finite values; a list is drawn with all of its elements."""
    xp = engine.xp
    hashes = engine.hash_rows(rows, SEED)
    least = 0 if engine.is_list(column) else max(values_there // (2 * SAMPLE), 1).bit_length() - 1
    for level in range(least, 33):
        places = xp.flatnonzero(hashes <= 0xFFFFFFFF >> level)
        taken = engine.take({"x": column}, places)["x"]
        own = hashes.take(places)
        while engine.is_list(taken):
            lengths, valid = engine.list_lengths(taken)
            own = xp.repeat(own, lengths if valid is None else xp.where(valid, lengths, 0))
            taken = engine.leaves(taken)
        values, valid = engine.numbers(taken)
        values = values.astype("float64")
        finite = xp.isfinite(values) if valid is None else valid & xp.isfinite(values)
        values = values[finite]
        own = own[finite]
        if len(values) <= SAMPLE:
            break
    return ValueSample(level, on_host(own), on_host(values))


def _merge_samples(a: ValueSample, b: ValueSample) -> ValueSample:
    hashes, values = (np.concatenate(pair) for pair in zip(a[1:], b[1:], strict=True))
    for level in range(max(a.level, b.level), 33):
        stays = hashes <= 0xFFFFFFFF >> level
        hashes = hashes[stays]
        values = values[stays]
        if len(values) <= SAMPLE:
            break
    return ValueSample(level, hashes, values)


def _limit_counts(table: pa.Table, least: object) -> Partial:
    """Counts of values, all of them while they are few; `least` are the least hashes of values once they are not."""
    if least is None and len(table) <= EXACT:
        return {"counts": table, "least": None}
    engine = engines.engine("pandas")
    least = _least(engine, table) if least is None else least
    return {"counts": engine.sort_counts(table, ["v0"]).slice(0, CANDIDATES), "least": least}


def _merge_counts(a: Partial, b: Partial) -> Partial:
    engine = engines.engine("pandas")
    least = None
    if a["least"] is not None or b["least"] is not None:
        hashes = [_least(engine, p["counts"]) if p["least"] is None else p["least"] for p in (a, b)]
        least = column_sketch.least(np.concatenate(hashes), LEAST)
    return _limit_counts(engine.merge_sums([a["counts"], b["counts"]], ["v0"]), least)


def _least(engine: Kernels, counts: pa.Table) -> np.ndarray:
    return column_sketch.least(
        column_sketch.value_hashes(engine.split_nulls(counts, ["v0"])[0]["v0"].combine_chunks()), LEAST
    )


def _tick(leaf: pa.DataType) -> float:
    """Return how many seconds a unit of a time's number is."""
    if pa.types.is_date32(leaf):
        return 86_400.0
    return {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[getattr(leaf, "unit", "ms")]


def _finite_or_none(value: float | None) -> float | None:
    """The number, or None where float64 cannot hold it."""
    return value if value is not None and math.isfinite(value) else None


def _to_report_value(value: float | None, leaf: pa.DataType) -> float | str | None:
    """Return a number as it is, a time as ISO text, a duration in seconds."""
    if value is None:
        return None
    if pa.types.is_duration(leaf):
        return value * _tick(leaf)
    if pa.types.is_timestamp(leaf):
        micro = round(value * _tick(leaf) * 1e6)
        exact = abs(micro) < 1 << 63
        number = micro if exact else max(-(1 << 63), min(round(value), (1 << 63) - 1))
        return _to_json_value(value_of(pa.scalar(number, pa.int64()).cast(pa.timestamp("us" if exact else leaf.unit))))
    if pa.types.is_date32(leaf):
        return _to_json_value(value_of(pa.scalar(round(value), pa.int32()).cast(pa.date32())))
    return value


def _to_json_value(value: object) -> float | str | None:
    """Convert a value of a column to JSON."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
