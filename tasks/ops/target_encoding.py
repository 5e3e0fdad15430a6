"""Groups to the mean of a target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import model_validator

from tasks import engines
from tasks.core.dtypes import dtype_name
from tasks.core.schema import Column, Schema, Tags
from tasks.core.strict_json import JsonObject
from tasks.engines.algorithms import exact_sums
from tasks.engines.algorithms.host_tables import sort_groups, sort_keys
from tasks.engines.algorithms.protocol import Kernels
from tasks.engines.algorithms.reductions import exact_sum, refuse_wrapped, sums_fit
from tasks.engines.types import Array, CountTable, Lookup
from tasks.errors import DataError, near
from tasks.ops.base import Columns, Context, Unit, refuse_infinite
from tasks.ops.continuous import FLOATS
from tasks.ops.fitted_values import FittedValues
from tasks.ops.keyed import Keyed, ascending_place, names_of

FOLD = "__fold__"
Encodings = tuple[Lookup, list[tuple[Array, Array, float]]]  # by target: values by fold and group, counts, mean


class TargetEncoding(Keyed):
    """Replace a group by the smoothed mean of a target, out of fold on the rows that were learned from.

    Parameters
    ----------
    target : str or list of str
        Column of numbers or bools, or several of them; it is not needed when applied.
    kfold : int, default 5
        Number of folds; 1 leaves nothing out.
    fold_seed : int, default 42
        Seed of the hash that gives each row its fold.
    fold_column : str, default None
        Column of integers whose value mod kfold is the fold (null: 0), in place of the hash.
    p_smooth : float, default 20.0
        Weight of the mean over all rows, as a number of rows: p in the formula.
    min_count : int, default 0
        Groups with fewer targets get the mean of all rows.
    target_mean : float, or dict of str to float, default None
        Mean in place of that over all rows, m in the formula: a number, or one for each target.
    drop_folds : bool, default True
        Leave out the column `__fold__` (int32) with the fold of each row.
    with_count : bool, default False
        Add the number of targets of the group, int64, 0 for an unseen group.
    dtype : {"float32", "float64"}, default "float32"
        Type of the encodings.

    Notes
    -----
    For group g and fold f: (S_g - S_gf + p m) / (C_g - C_gf + p), where S and C are sum and count of the targets that
    are not null, p is `p_smooth` and m the mean of the target over all rows (or `target_mean`). `fit_transform` and the
    flow `preprocess` leave out the row's own fold; other data use all folds. A group with C_g < `min_count`, an unseen
    group and a denominator of 0 get m. Sums of floats are exact to 2^-100 of the sum of
    absolute values before they are rounded.

    fold(row) = floor(h kfold / 2^32) with h = MurmurHash3_x86_32(row number as int64, seed `fold_seed`). So the folds
    depend neither on partitions nor on workers.

    Columns out: `TE_<group>_<target>`; the count is `TE_<group>_count`, with several targets
    `TE_<group>_<target>_count`.

    A null key is a key like any other; a group (nested list) is one composite key. If every target is null and there is
    no `target_mean`, the encodings are null.

    An infinite target cannot be learned from: an error that names column and row. An infinite key is a key like any
    other; `target_mean` may be infinite.

    Errors: a JobError for parameters out of range; a DataError for a target that is missing, not numeric or infinite,
    for a sum of integer targets beyond int64 or of floats beyond float64, and for a `fold_column` that is not of
    integers.

    Source: Micci-Barreca, "A preprocessing scheme for high-cardinality categorical attributes", 2001.

    Examples
    --------
    >>> from rowmill import Workflow
    >>> table = pa.table({"shop": ["a", "a", "b"], "bought": [1, 0, 1]})
    >>> encoding = TargetEncoding("bought", kfold=1, p_smooth=0)
    >>> workflow = Workflow(["shop"] >> encoding).fit(table)
    >>> workflow.transform(pa.table({"shop": ["a", "b"]})).to_pydict()
    {'TE_shop_bought': [0.5, 1.0]}
    >>> TargetEncoding("bought", kfold=0)
    Traceback (most recent call last):
    ...
    tasks.errors.JobError: TargetEncoding: kfold is at least 1
    """

    target: str | list[str]
    kfold: int = 5
    fold_seed: int = 42
    fold_column: str | None = None
    p_smooth: float = 20.0
    min_count: int = 0
    target_mean: float | dict[str, float] | None = None
    drop_folds: bool = True
    with_count: bool = False
    dtype: Literal["float32", "float64"] = "float32"
    retunable = frozenset({"p_smooth", "min_count", "with_count", "dtype"})
    takes = frozenset({"number", "string", "bool", "time"})
    encoded = True
    grouped = True

    def observe_unit(self, columns: Columns, unit: Unit, context: Context) -> CountTable:
        """A table of the keys (v0, ..), the fold, and count and sum of each target (t0_count, t0_sum, ..).

        Of a float target also what rounding took of the sum, t0_rest.
        """
        engine = context.engine
        missing = [t for t in self.extra_columns(fitting=True) if t not in columns]
        if missing:
            raise DataError(
                f"TargetEncoding needs the column {missing[0]!r} to learn from", do="name an existing column as target"
            )
        refuse_infinite("TargetEncoding", self.targets, columns, context, "the target's mean does not exist")
        keys = [columns[n] for n in unit]
        names = [f"v{i}" for i in range(len(unit))]
        if self.kfold > 1:
            keys.append(engine.from_numbers(self.folds(columns, context)))
            names.append("fold")
        return engine.group_sums(keys, names, {f"t{i}": columns[t] for i, t in enumerate(self.targets)})

    def merge(self, a: CountTable, b: CountTable) -> CountTable:
        return self.merge_all([a, b])

    def merge_all(self, partials: Sequence[Any]) -> CountTable:
        keys = [n for n in names_of(partials[0]) if not n.startswith("t")]
        return engines.engine_of(partials[0]).merge_sums(partials, keys)

    def arrange(self, partial: object, unit: Unit) -> tuple[pa.Table, dict[str, Any]]:
        """One row per key in key order, with count and sum of each target in each fold; their totals."""
        table = engines.engine_of(partial).host_table(partial)
        keys = self.key_names(table)
        groups, codes = sort_groups(table, keys)
        folds = table["fold"].to_numpy() if "fold" in table.column_names else np.zeros(len(table), dtype=np.int64)
        columns = {name: groups[name] for name in keys}
        for i in range(len(self.targets)):
            for what in ("count", "sum", "rest"):
                if f"t{i}_{what}" not in table.column_names:  # the rest of integers
                    continue
                values = table[f"t{i}_{what}"].to_numpy()
                wide = np.zeros((self.kfold, len(groups)), dtype=values.dtype)
                wide[folds, codes] = values
                if values.dtype.kind == "i" and not sums_fit(wide, self.kfold):
                    refuse_wrapped(wide.sum(axis=0), wide.astype(np.float64).sum(axis=0), repr(self.targets[i]))
                columns |= {f"t{i}_{what}_{fold}": pa.array(wide[fold]) for fold in range(self.kfold)}
        arranged = pa.table(columns)
        return arranged, self.sums(arranged)

    def finish(self, table: pa.Table, sums: Mapping[str, Any], unit: Unit) -> FittedValues:
        """`groups`: the table of `arrange`; and the targets' means, None where no target is known."""
        means = []
        for i, target in enumerate(self.targets):
            count = sums[f"t{i}_count"]
            total = sums[f"t{i}_sum"] + sums.get(f"t{i}_rest", 0)
            if isinstance(total, float):  # infinite: exact ones are fractions
                raise DataError(
                    f"the target {target!r} has no finite mean",
                    why="its values are so large that their sum is infinite",
                    do="limit it with Clip first",
                )
            mean = self.target_mean.get(target) if isinstance(self.target_mean, dict) else self.target_mean
            if mean is None and count:
                mean = float(total / count)
            means.append(mean)  # None: no target is known, and every encoding is null
        return {"groups": table, "means": means}

    def prepare(self, fitted: FittedValues, engine: Kernels) -> Encodings:
        table = fitted["groups"]
        xp = engine.xp
        lookup = engine.Lookup([table[n].combine_chunks() for n in table.column_names if n.startswith("v")])

        targets = []
        for i, known in enumerate(fitted["means"]):
            mean = np.nan if known is None else float(known)
            counts = _by_fold(table, i, "count", self.kfold)
            of = np.empty((self.kfold + 1, len(table)))
            sums = _by_fold(table, i, "sum", self.kfold), _by_fold(table, i, "rest", self.kfold)
            total = counts.sum(axis=0)
            everything = _sum_over_folds(*sums)
            for fold in range(self.kfold):
                of[fold] = self._encode_groups(total - counts[fold], _without(everything, sums, fold), mean)
            of[self.kfold] = self._encode_groups(total, _as_floats(everything), mean)
            of[:, total < self.min_count] = mean
            targets.append((xp.asarray(of.ravel()), xp.asarray(total), mean))
        return lookup, targets

    def apply(self, columns: Columns, unit: Unit, fitted: Encodings, context: Context) -> Columns:
        engine = context.engine
        xp = context.engine.xp
        lookup, targets = fitted
        codes = lookup.find_places([columns[n] for n in unit])
        place = xp.maximum(codes, 0)
        unseen = codes < 0
        group = "_".join(unit)
        out = {}
        out_of_fold = context.training and self.kfold > 1
        folds: Any = self.folds(columns, context) if out_of_fold or not self.drop_folds else None
        way = folds.astype(xp.int64) if out_of_fold else self.kfold  # of all folds but this one, or of all
        for name, count_name, (values, counts, mean) in zip(
            self.targets, self._count_names(group), targets, strict=True
        ):
            value = values.take(way * lookup.size + place) if lookup.size else xp.zeros(len(codes))
            out[f"TE_{group}_{name}"] = engine.from_numbers(xp.where(unseen, mean, value).astype(self.dtype))
            if self.with_count:
                total = counts.take(place) if lookup.size else xp.zeros(len(codes), dtype=xp.int64)
                out[count_name] = engine.from_numbers(xp.where(unseen, 0, total))
        if not self.drop_folds:
            out[FOLD] = engine.from_numbers(folds)
        return out

    @model_validator(mode="after")
    def _check_parameters(self) -> TargetEncoding:
        for name, low in (("kfold", 1), ("p_smooth", 0), ("min_count", 0)):
            if getattr(self, name) < low:
                raise ValueError(f"{name} is at least {low}")
        if self.kfold >= 1 << 31:
            raise ValueError("kfold is below 2^31")
        if not math.isfinite(self.p_smooth):
            raise ValueError("p_smooth is a finite number")
        if not self.targets:
            raise ValueError("at least one target is needed")
        if len(set(self.targets)) < len(self.targets):
            raise ValueError("a target is named twice")
        for name in self.target_mean if isinstance(self.target_mean, dict) else ():
            if name not in self.targets:
                raise ValueError(f"target_mean names {name!r}, which is not a target: {near(name, self.targets)}")
        return self

    @property
    def targets(self) -> list[str]:
        return [self.target] if isinstance(self.target, str) else list(self.target)

    @property
    def shared_outputs(self) -> frozenset[str]:
        return frozenset() if self.drop_folds else frozenset({FOLD})

    def extra_columns(self, fitting: bool) -> tuple[str, ...]:
        folds = (self.fold_column,) if self.fold_column and self.kfold > 1 else ()
        if fitting:
            return (*self.targets, *folds)
        return () if self.drop_folds else folds

    def outputs(self, unit: Unit, schema: Schema, fitted: FittedValues | None) -> list[Column]:
        for name in self.targets:
            if name in schema and schema[name].kind not in ("number", "bool"):
                raise DataError(
                    f"TargetEncoding needs a numeric target, {name!r} is {dtype_name(schema[name].dtype)}",
                    do="encode the target as a number first",
                )
        folds = schema[self.fold_column].dtype if self.fold_column and self.fold_column in schema else pa.int64()
        if not pa.types.is_integer(folds):
            raise DataError(
                f"TargetEncoding needs a fold_column of integers, {self.fold_column!r} is {dtype_name(folds)}",
                do="cast it, or give up fold_column: folds are then drawn by row number",
            )
        group = "_".join(unit)
        columns = [
            Column(f"TE_{group}_{t}", FLOATS[self.dtype], frozenset({Tags.CONTINUOUS.value})) for t in self.targets
        ]
        if self.with_count:
            columns += [
                Column(name, pa.int64(), frozenset({Tags.CONTINUOUS.value})) for name in self._count_names(group)
            ]
        return columns if self.drop_folds else [*columns, Column(FOLD, pa.int32())]

    def _count_names(self, group: str) -> list[str]:
        return [f"TE_{group}_count"] if len(self.targets) == 1 else [f"TE_{group}_{t}_count" for t in self.targets]

    def order_free(self, unit: Unit, schema: Schema) -> bool:
        return all(
            not pa.types.is_floating(schema[t].dtype) and not pa.types.is_decimal(schema[t].dtype) for t in self.targets
        )

    def folds(self, columns: Columns, context: Context) -> Array:
        """The fold of every row, int32 in [0, kfold)."""
        engine = context.engine
        xp = context.engine.xp
        if self.fold_column and self.kfold > 1 and self.fold_column in columns:
            values, valid = engine.numbers(columns[self.fold_column])
            values = values.astype(xp.int64) % self.kfold
            return (values if valid is None else xp.where(valid, values, 0)).astype(xp.int32)
        return (
            (engine.hash_rows(context.rows, self.fold_seed).astype(xp.uint64) * xp.uint64(self.kfold)) >> xp.uint64(32)
        ).astype(xp.int32)

    def key_names(self, partial: object) -> list[str]:
        return [n for n in names_of(partial) if n.startswith("v")]

    def sums(self, table: pa.Table) -> dict[str, Any]:
        totals: dict[str, Any] = {}
        for i in range(len(self.targets)):
            for what in ("count", "sum", "rest"):
                if f"t{i}_{what}_0" in table.column_names:
                    wide = _by_fold(table, i, what, self.kfold)
                    totals[f"t{i}_{what}"] = exact_sum(wide) if wide.dtype.kind == "i" else _total(wide)
        return totals

    def restored(self, fitted: FittedValues, saved: FittedValues, unit: Unit) -> pa.Table:
        table: pa.Table = fitted["groups"]
        return table

    def add_tables(self, a: pa.Table, b: pa.Table) -> pa.Table:
        """Counts and sums of both, fold by fold; a DataError for sums of integers beyond int64, as in a fit."""
        columns = {name: a[name] for name in self.key_names(a)}
        for i, target in enumerate(self.targets):
            for name in ("count", "sum"):
                first, second = (_by_fold(t, i, name, self.kfold) for t in (a, b))
                if first.dtype.kind == "i":
                    wide = first + second
                    rests = None
                    refuse_wrapped(wide.ravel(), (first.astype(np.float64) + second).ravel(), repr(target))
                    refuse_wrapped(wide.sum(axis=0), wide.astype(np.float64).sum(axis=0), repr(target))
                else:
                    of_both = ((s, _by_fold(t, i, "rest", self.kfold)) for s, t in ((first, a), (second, b)))
                    wide, rests = exact_sums.add_pairs(*of_both)
                columns |= {f"t{i}_{name}_{fold}": pa.array(wide[fold]) for fold in range(self.kfold)}
                if rests is not None:
                    columns |= {f"t{i}_rest_{fold}": pa.array(rests[fold]) for fold in range(self.kfold)}
        return pa.table(columns).select(a.column_names)

    def in_order(self, tables: Sequence[pa.Table]) -> pa.Table:
        return sort_keys(pa.concat_tables(tables), self.key_names(tables[0]))

    def place(self, row: JsonObject) -> tuple[Any, ...]:
        return ascending_place(row, [name for name in row if name.startswith("v")])

    def _encode_groups(self, counts: np.ndarray, sums: tuple[np.ndarray, np.ndarray], mean: float) -> np.ndarray:
        """(sum + p_smooth mean) / (count + p_smooth) by group, rounded once; `mean` where that is 0 / 0."""
        with np.errstate(over="ignore", invalid="ignore"):
            smoothed = (
                exact_sums.two_product(np.float64(self.p_smooth), np.float64(mean)) if self.p_smooth else (0.0, 0.0)
            )
            rough = sums[0] + smoothed[0]
            total, rest = (
                exact_sums.add_pairs(sums, smoothed) if np.isfinite(smoothed[1]) else (rough, np.zeros(len(rough)))
            )
        below = counts + self.p_smooth
        return np.where(below == 0, mean, exact_sums.divide_pair(total, rest, np.where(below == 0, 1.0, below), np))


def _total(values: np.ndarray) -> Fraction | float:
    """The sum of floats, exactly; a float where it is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        (total,), (rest,) = exact_sums.sums(values.ravel(), lambda v: v.sum(keepdims=True), values.size, np)
    return Fraction(float(total)) + Fraction(float(rest)) if np.isfinite(total) else float(total)


def _by_fold(table: pa.Table, i: int, what: str, folds: int) -> np.ndarray:
    """A target's counts, sums or rests, a row for each fold."""
    if f"t{i}_{what}_0" not in table.column_names:  # integers have no rests
        return np.zeros((folds, len(table)))
    return np.stack([table[f"t{i}_{what}_{fold}"].to_numpy() for fold in range(folds)])


Sums = tuple[np.ndarray, np.ndarray]  # sums rounded, and what rounding took; integers exactly, and zeros


def _sum_over_folds(sums: np.ndarray, rests: np.ndarray) -> Sums:
    """The sums over all folds."""
    if sums.dtype.kind == "i":
        return sums.sum(axis=0), rests[0]
    total = sums[0], rests[0]
    for more in zip(sums[1:], rests[1:], strict=True):
        total = exact_sums.add_pairs(total, more)
    return total


def _without(everything: Sums, sums: Sums, fold: int) -> Sums:
    """The sums over all folds but one, as floats."""
    if sums[0].dtype.kind == "i":
        return _as_floats((everything[0] - sums[0][fold], everything[1]))
    rest: Sums = exact_sums.add_pairs(everything, (-sums[0][fold], -sums[1][fold]))
    return rest


def _as_floats(sums: Sums) -> Sums:
    if sums[0].dtype.kind != "i":
        return sums
    floats: Sums = exact_sums.two_sum((sums[0] >> 32) * 2.0**32, (sums[0] & 0xFFFFFFFF).astype(np.float64))
    return floats
