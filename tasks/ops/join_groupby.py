"""Statistics of groups, joined back to their rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import model_validator

from tasks import engines
from tasks.core.dtypes import dtype_name, parse_dtype
from tasks.core.schema import Column, Schema, Tags
from tasks.core.strict_json import JsonObject
from tasks.engines.algorithms import exact_sums
from tasks.engines.algorithms.host_tables import sort_keys
from tasks.engines.algorithms.protocol import Kernels
from tasks.engines.algorithms.reductions import refuse_wrapped, sums_fit
from tasks.engines.types import Array, Lookup, Series
from tasks.errors import DataError
from tasks.ops.base import Columns, Context, Unit
from tasks.ops.fitted_values import FittedValues
from tasks.ops.keyed import Keyed, ascending_place, names_of

# What statistics are made of. A table of groups has these parts of the column i as ci_<part>, and `rows` of each group.
#
# n               the number of values that are not null
# sum             integers: the sum modulo 2^64; floats: the rounded sum
# high            integers: floor(sum / 2^32), or up to 2^31 less; from it and `sum` follow sums beyond 64 bits
# rest            floats: what rounding took from `sum`
# mean, meanrest  the mean and what rounding took from it; the deviations of `m2` are from their sum
# m2              the sum of squared deviations, for std and var
# min, max        the extremes
# exp             floats: sum, rest, mean, meanrest and m2 are of the values divided by 2^exp
_FLOAT_PARTS = ("sum", "rest", "exp", "mean", "meanrest", "m2")
Stat = Literal["count", "sum", "mean", "std", "var", "min", "max"]


class JoinGroupby(Keyed):
    """Statistics of each group, joined back to its rows: `<group>_count` and `<group>_<column>_<stat>`.

    Parameters
    ----------
    cont_cols : str or list of str, default []
        Columns to summarize; they are not needed when applied.
    stats : list of {"count", "sum", "mean", "std", "var", "min", "max"}, default ["count"]
        Statistics; count is the number of the group's rows, the others are of the values of `cont_cols`, nulls left
        out.
    name_sep : str, default "_"
        Text between the parts of the new names.

    Notes
    -----
    Types out: count int64; sum int64, uint64 or float64; mean, std and var float64 (ddof 1; null for fewer than two
    values); min and max the column's type.

    A null key is a key like any other; a group (nested list) is one composite key. A group that the fit has not seen
    (cold start) gets nulls.

    Moments are merged along a fixed tree as Chan, Golub, LeVeque do. Sums of floats are exact to 2^-100 of the sum
    of absolute values before they are rounded, so that the same rows have the same sum in any order, and a mean lies
    among its values; std is right for values from 1e-300 to 1e300. Integers count as float64 in std.

    With an infinity the sum and the mean are infinite (null with both signs), std and var null, and min and max may be
    infinite. An infinite key is a key like any other.

    Errors: a DataError for a sum of integers beyond 64 bits; their mean is not one.

    Examples
    --------
    >>> from rowmill import Workflow
    >>> table = pa.table({"shop": [1, 1, 2], "price": [2.0, 4.0, 5.0]})
    >>> workflow = Workflow(["shop"] >> JoinGroupby(cont_cols=["price"], stats=["count", "mean"]))
    >>> workflow.fit(table).transform(table).to_pydict()
    {'shop_count': [2, 2, 1], 'shop_price_mean': [3.0, 3.0, 5.0]}
    >>> workflow.transform(pa.table({"shop": [9]})).to_pydict()
    {'shop_count': [None], 'shop_price_mean': [None]}
    """

    cont_cols: str | list[str] = []
    stats: list[Stat] = ["count"]
    name_sep: str = "_"
    takes = frozenset({"number", "string", "bool", "time"})
    encoded = True
    grouped = True

    def observe_unit(self, columns: Columns, unit: Unit, context: Context) -> pa.Table:
        """Return a table in host memory: the keys k0.., their rows, and the parts of each column's statistics."""
        engine = context.engine
        codes, keys = engine.group_codes([columns[n] for n in unit], [f"k{i}" for i in range(len(unit))])
        groups = len(keys)
        parts = {"rows": engine.sum_by(codes, groups, engine.xp.ones(len(codes), dtype="int64"))}
        for i, name in enumerate(self.summarized_columns):
            values, valid = engine.numbers(columns[name])
            valid_codes, values = (codes, values) if valid is None else (codes[valid], values[valid])
            with np.errstate(over="ignore", invalid="ignore"):
                column_parts = _compute_parts(engine, valid_codes, groups, values, set(self.value_stats))
            if pa.types.is_decimal(engine.dtype(columns[name])) and {"min", "max"} & {*self.value_stats}:
                column_parts |= _decimal_extremes(engine, columns[name], valid, valid_codes, groups)
            parts |= {f"c{i}_{part}": numbers for part, numbers in column_parts.items()}
        for name, numbers in parts.items():
            host_numbers = numbers if isinstance(numbers, pa.Array) else engine.host(engine.from_numbers(numbers))
            keys = keys.append_column(name, host_numbers)
        types = [dtype_name(engine.dtype(columns[n])) for n in self.summarized_columns]
        return keys.replace_schema_metadata({"dtypes": ";".join(types)})

    def merge(self, a: pa.Table, b: pa.Table) -> pa.Table:
        return self.merge_all([a, b])

    def merge_all(self, partials: Sequence[pa.Table]) -> pa.Table:
        engine = engines.engine("pandas")
        joined = pa.concat_tables(partials)
        names = [n for n in joined.column_names if n.startswith("k")]
        codes, keys = engine.group_codes([joined.column(n) for n in names], names)
        floats: dict[str, dict[str, np.ndarray]] = {}  # the float parts of a column, merged together, by its prefix
        for name in joined.column_names[len(names) :]:
            with np.errstate(over="ignore", invalid="ignore"):
                merged = _merge_part(engine, codes, len(keys), joined, name, floats)
            keys = keys.append_column(name, merged if isinstance(merged, pa.Array) else pa.array(merged))
        return keys.replace_schema_metadata(partials[0].schema.metadata)

    def arrange(self, partial: pa.Table, unit: Unit) -> tuple[pa.Table, dict[str, Any]]:
        return self.in_order([partial]), {}

    def finish(self, table: pa.Table, sums: Mapping[str, Any], unit: Unit) -> FittedValues:
        """Return `groups`, one row per key in key order with the parts of the statistics; and the `dtypes`."""
        types = (table.schema.metadata or {}).get(b"dtypes", b"").decode()
        for i, name in enumerate(self.cont_columns):
            if "sum" in self.stats:
                _refuse_long_sums(table, i, repr(name))
            table = _settle_high(table, i)
            table = _drop_ordinary_exponents(table, i)
        return {"groups": table.replace_schema_metadata(None), "dtypes": types.split(";") if types else []}

    def prepare(self, fitted: FittedValues, engine: Kernels) -> tuple[Lookup, Columns, int]:
        """Return (the groups' look-up, the columns to join, the number of groups).

        The columns have one row per group, and one more of nulls for all other keys.
        """
        table = fitted["groups"]
        keys = [n for n in table.column_names if n.startswith("k")]
        columns = {"count": pa.concat_arrays([table["rows"].combine_chunks(), pa.nulls(1, pa.int64())])}
        for i, dtype in enumerate(fitted["dtypes"]):
            for stat in self.value_stats:
                values, valid = _compute_statistic(stat, _read_parts(table, i, [stat]))
                wanted = _stat_dtype(stat, parse_dtype(dtype))
                array = pa.array(values, mask=~valid).cast(wanted)
                columns[f"{i} {stat}"] = pa.concat_arrays([array, pa.nulls(1, wanted)])
        lookup = engine.Lookup([table[n].combine_chunks() for n in keys])
        return lookup, engine.from_arrow(pa.table(columns)), len(table)

    def apply(self, columns: Columns, unit: Unit, fitted: tuple[Lookup, Columns, int], context: Context) -> Columns:
        lookup, table, last = fitted
        codes = lookup.find_places([columns[n] for n in unit])
        joined = context.engine.take(table, context.engine.xp.where(codes < 0, last, codes))
        group = self.name_sep.join(unit)
        out = {}
        if "count" in self.stats:
            out[f"{group}{self.name_sep}count"] = joined["count"]
        for i, name in enumerate(self.summarized_columns):
            out |= {self._output_name(group, name, stat): joined[f"{i} {stat}"] for stat in self.value_stats}
        return out

    @model_validator(mode="after")
    def _check_parameters(self) -> JoinGroupby:
        if not self.stats:
            raise ValueError("at least one of stats is needed")
        if not self.cont_columns and self.stats != ["count"]:
            raise ValueError(f"{', '.join(s for s in self.stats if s != 'count')} need cont_cols")
        return self

    @property
    def cont_columns(self) -> list[str]:
        return [self.cont_cols] if isinstance(self.cont_cols, str) else list(dict.fromkeys(self.cont_cols))

    @property
    def value_stats(self) -> list[Stat]:
        return [s for s in dict.fromkeys(self.stats) if s != "count"]

    @property
    def summarized_columns(self) -> list[str]:
        """The columns that are summarized: none if only rows are counted."""
        return self.cont_columns if self.value_stats else []

    def extra_columns(self, fitting: bool) -> tuple[str, ...]:
        return tuple(self.summarized_columns) if fitting else ()

    def outputs(self, unit: Unit, schema: Schema, fitted: FittedValues | None) -> list[Column]:
        group = self.name_sep.join(unit)
        columns = []
        tags = frozenset({Tags.CONTINUOUS.value})
        if "count" in self.stats:
            columns.append(Column(f"{group}{self.name_sep}count", pa.int64(), tags))
        for i, name in enumerate(self.summarized_columns):
            dtype = parse_dtype(fitted["dtypes"][i]) if fitted else self._numeric_dtype(schema, name)
            columns += [
                Column(self._output_name(group, name, stat), _stat_dtype(stat, dtype), tags)
                for stat in self.value_stats
            ]
        return columns

    def _output_name(self, group: str, name: str, stat: str) -> str:
        return self.name_sep.join([group, name, stat])

    def _numeric_dtype(self, schema: Schema, name: str) -> pa.DataType:
        if name in schema and schema[name].kind not in ("number", "bool"):
            raise DataError(
                f"JoinGroupby needs numeric cont_cols, {name!r} is {dtype_name(schema[name].dtype)}",
                do="choose other columns, or cast it first",
            )
        return schema[name].dtype if name in schema else pa.float64()

    def order_free(self, unit: Unit, schema: Schema) -> bool:
        exact = {"count", "sum", "min", "max", "mean"}
        types = [schema[name].dtype for name in self.summarized_columns]
        are_integers = all(pa.types.is_integer(dtype) or pa.types.is_boolean(dtype) for dtype in types)
        return set(self.stats) <= (exact if are_integers else {"count", "min", "max"})

    def key_names(self, partial: pa.Table) -> list[str]:
        return [n for n in names_of(partial) if n.startswith("k")]

    def in_order(self, tables: Sequence[pa.Table]) -> pa.Table:
        return sort_keys(pa.concat_tables(tables), self.key_names(tables[0]))

    def place(self, row: JsonObject) -> tuple[Any, ...]:
        return ascending_place(row, [name for name in row if name.startswith("k")])

    def restored(self, fitted: FittedValues, saved: FittedValues, unit: Unit) -> pa.Table:
        """Restore the table of groups from the fitted one.

        `finish` drops high if no sum exceeds 64 bits, and exp if it is 0 for all groups. Workflows of older versions of
        rowmill lack rest and meanrest.
        """
        table = fitted["groups"]
        for i in range(len(self.summarized_columns)):
            here = {name.removeprefix(f"c{i}_") for name in table.column_names if name.startswith(f"c{i}_")}
            has_integer_sum = "sum" in here and not pa.types.is_floating(table.schema.field(f"c{i}_sum").type)
            if has_integer_sum and "high" not in here:
                table = table.append_column(
                    f"c{i}_high", pa.array((table[f"c{i}_sum"].to_numpy() >> 32).astype(np.int64))
                )
            rests = {"mean": "meanrest"} if has_integer_sum else {"sum": "rest", "mean": "meanrest"}
            for part, rest in rests.items():
                if part in here and rest not in here:
                    table = table.append_column(f"c{i}_{rest}", pa.array(np.zeros(len(table))))
            if "exp" not in here and (("sum" in here and not has_integer_sum) or "m2" in here):
                table = table.append_column(f"c{i}_exp", pa.array(np.zeros(len(table), dtype=np.int64)))
        return table

    def add_tables(self, a: pa.Table, b: pa.Table) -> pa.Table:
        """Merge the parts of both row by row: the number of the row is the key."""
        keys = self.key_names(a)
        rows = pa.array(np.arange(len(a)))
        numbered = [t.select([n for n in t.column_names if n not in keys]).add_column(0, "k0", rows) for t in (a, b)]
        merged = sort_keys(self.merge_all(numbered), ["k0"])  # groups may come in any order
        return pa.table({name: a[name] if name in keys else merged[name] for name in a.column_names})


def _stat_dtype(stat: str, dtype: pa.DataType) -> pa.DataType:
    if stat in ("min", "max"):
        return dtype
    if stat == "sum" and (pa.types.is_integer(dtype) or pa.types.is_boolean(dtype)):
        return pa.uint64() if pa.types.is_unsigned_integer(dtype) else pa.int64()
    return pa.float64()


def _needed_parts(stats: Iterable[str]) -> set[str]:
    """Collect the parts from which the statistics are computed."""
    parts = {
        "sum": {"n", "sum", "high", "rest", "exp"},
        "mean": {"n", "sum", "high", "rest", "exp"},
        "std": {"n", "m2", "exp"},
        "var": {"n", "m2", "exp"},
        "min": {"n", "min"},
        "max": {"n", "max"},
    }
    return set().union(*(parts[stat] for stat in stats))


def _read_parts(table: pa.Table, i: int, stats: Sequence[str]) -> dict[str, np.ndarray]:
    """Read those parts of the statistics that the table has: high is there for integers only, rest for floats only."""
    return {p: table[f"c{i}_{p}"].to_numpy() for p in _needed_parts(stats) if f"c{i}_{p}" in table.column_names}


def _compute_parts(engine: Kernels, codes: Array, groups: int, values: Array, stats: set[str]) -> dict[str, Any]:
    """Compute the parts of one column's statistics by group, in arrays of the engine."""
    xp = engine.xp
    needed = _needed_parts(stats)
    parts = {"n": engine.sum_by(codes, groups, xp.ones(len(codes), dtype="int64"))}
    are_integers = values.dtype.kind in "iu"
    most_rows = int(parts["n"].max()) if groups else 0
    if "sum" in needed and are_integers:
        parts["sum"] = engine.sum_by(codes, groups, values)
        fit = sums_fit(values, len(values))
        high = parts["sum"] >> 32 if fit else engine.sum_by(codes, groups, values >> 32)
        parts["high"] = high.astype("int64")
    data = values
    powers = None
    if needed & {"sum", "m2"} and not are_integers:
        data = values.astype("float64")
        powers = exact_sums.exponents(data, codes, groups, engine, "m2" in needed)
        data = data if powers is None else xp.ldexp(data, -powers[codes])
        parts["exp"] = xp.zeros(groups, dtype="int64") if powers is None else powers
    if "sum" in needed and not are_integers:
        parts["sum"], parts["rest"] = engine.exact_sums_by(codes, groups, data, most_rows)
    if "m2" in needed:
        data = data.astype("float64")
        total = parts.get("sum")
        rest = parts.get("rest")
        if total is None or rest is None:
            total, rest = engine.exact_sums_by(codes, groups, data, most_rows)
        # The corrected two-pass algorithm: the mean of the deviations is the rounding error of the first mean.
        mean = exact_sums.divide_pair(total, rest, xp.maximum(parts["n"], 1), xp)
        deviations = data - mean[codes]
        mean_error = engine.sum_by(codes, groups, deviations) / xp.maximum(parts["n"], 1)
        squares, _ = engine.exact_sums_by(codes, groups, deviations * deviations, most_rows)
        parts["mean"], parts["meanrest"] = exact_sums.two_sum(mean, mean_error)
        parts["m2"] = xp.maximum(squares - parts["n"] * mean_error * mean_error, 0.0)
    if needed & {"min", "max"}:
        parts["min"], parts["max"] = engine.extremes_by(codes, groups, values)
    return parts


def _decimal_extremes(
    engine: Kernels, column: Series, valid: Array | None, codes: Array, groups: int
) -> dict[str, pa.Array]:
    """Find the smallest and the largest decimal by group by the ranks of the distinct ones: float64 has 15 digits.

    `valid` marks the rows that are not null (None: all rows), `codes` are the groups of these rows.
    """
    places, distinct = engine.group_codes([column], ["x"])
    ranks, by_rank = _rank_values(distinct["x"].combine_chunks())
    row_ranks = engine.xp.asarray(ranks)[places if valid is None else places[valid]]
    ends = [engine.host(engine.from_numbers(end)) for end in engine.extremes_by(codes, groups, row_ranks)]
    return {part: _take_by_rank(by_rank, end.to_numpy()) for part, end in zip(("min", "max"), ends, strict=True)}


def _rank_values(values: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Return (the rank of each value among the distinct ones, these by rank); a null ranks after all of them."""
    distinct = pc.unique(values.drop_null())
    by_rank = distinct.take(pc.sort_indices(distinct))
    return pc.index_in(values, by_rank).fill_null(len(by_rank)).to_numpy().astype(np.int64), by_rank


def _take_by_rank(by_rank: pa.Array, ranks: np.ndarray) -> pa.Array:
    """Take the values of these ranks; nulls if there are no values at all."""
    return by_rank.take(pa.array(ranks)) if len(by_rank) else pa.nulls(len(ranks), by_rank.type)


def _merge_part(
    engine: Kernels, codes: Array, groups: int, table: pa.Table, name: str, floats: dict[str, dict[str, np.ndarray]]
) -> np.ndarray | pa.Array:
    """Merge one part of the groups of several partials; groups without values do not count."""
    if pa.types.is_decimal(table.schema.field(name).type):
        ranks, by_rank = _rank_values(table[name].combine_chunks())
        has_values = table[name.rpartition("_")[0] + "_n"].to_numpy() > 0
        extremes = engine.extremes_by(codes[has_values], groups, ranks[has_values])
        return _take_by_rank(by_rank, extremes[name.endswith("max")])
    values = table[name].to_numpy()
    part = name.rpartition("_")[2]
    if part in ("rows", "n", "high") or (part == "sum" and values.dtype.kind in "iu"):
        return engine.sum_by(codes, groups, values)
    prefix = name.removesuffix(part)
    counts = table[f"{prefix}n"].to_numpy()
    if part in ("min", "max"):
        has_values = counts > 0
        return engine.extremes_by(codes[has_values], groups, values[has_values])[part == "max"]
    if prefix not in floats:
        floats[prefix] = _merge_float_parts(engine, codes, groups, table, prefix)
    return floats[prefix][part]


def _merge_float_parts(
    engine: Kernels, codes: Array, groups: int, table: pa.Table, prefix: str
) -> dict[str, np.ndarray]:
    """Merge the parts of sums and squared deviations of floats; return them by part."""
    parts = {p: table[f"{prefix}{p}"].to_numpy() for p in _FLOAT_PARTS if f"{prefix}{p}" in table.column_names}
    merged = {}
    counts = table[f"{prefix}n"].to_numpy()
    if "exp" in parts:
        # All partials of a group are scaled to its largest exponent. Zeros have no exponent that could be the largest.
        is_zero = np.ones(len(codes), dtype=bool)
        for part in ("sum", "mean", "m2"):
            is_zero &= parts[part] == 0 if part in parts else True
        powers = np.where(is_zero, exact_sums.NO_VALUE, parts["exp"])
        merged["exp"] = engine.extremes_by(codes, groups, powers)[1]
        shift_down = powers - merged["exp"][codes]
        if shift_down.any():
            for part in parts.keys() - {"exp"}:
                parts[part] = np.ldexp(parts[part], 2 * shift_down if part == "m2" else shift_down)
    if "rest" in parts:
        ends = np.cumsum([len(chunk) for chunk in table[f"{prefix}sum"].chunks])[:-1]
        pairs = zip(np.split(parts["sum"], ends), np.split(parts["rest"], ends), strict=True)
        merged["sum"], merged["rest"] = exact_sums.merge_group_sums(codes, groups, list(pairs))
    if "m2" in parts:
        n = np.maximum(engine.sum_by(codes, groups, counts), 1)
        # Means are merged as distances from the first mean of the group, which are small where the means are large.
        first_mean = np.zeros((2, groups))
        has_values = np.flatnonzero(counts > 0)[::-1]  # backwards: the first partial of a group is assigned last
        first_mean[:, codes[has_values]] = parts["mean"][has_values], parts["meanrest"][has_values]
        distance = (parts["mean"] - first_mean[0][codes]) + (parts["meanrest"] - first_mean[1][codes])
        shift = engine.sum_by(codes, groups, counts * distance) / n
        merged["mean"], merged["meanrest"] = exact_sums.two_sum(first_mean[0], first_mean[1] + shift)
        deviation = np.where(counts > 0, distance - shift[codes], 0.0)
        between = engine.sum_by(codes, groups, counts * deviation * deviation)
        merged["m2"] = engine.sum_by(codes, groups, parts["m2"]) + between
    return merged


def _refuse_long_sums(table: pa.Table, i: int, name: str) -> None:
    """Raise a DataError, with the name of the column, if a sum of integers exceeds 64 bits."""
    if f"c{i}_high" in table.column_names:
        parts = _read_parts(table, i, ["sum"])
        refuse_wrapped(parts["sum"], _round_sums(parts), name)


def _settle_high(table: pa.Table, i: int) -> pa.Table:
    """Make a column's high exactly floor(sum / 2^32) if any of its sums exceeds 64 bits; drop it otherwise."""
    place = table.schema.get_field_index(f"c{i}_high")
    if place < 0:
        return table
    parts = _read_parts(table, i, ["sum"])
    if (_round_sums(parts) == parts["sum"]).all():
        return table.remove_column(place)
    return table.set_column(place, f"c{i}_high", pa.array(_compute_exact_high(parts)))


def _compute_exact_high(parts: Mapping[str, np.ndarray]) -> np.ndarray:
    """Compute floor(sum / 2^32) from high, which is up to 2^31 less, and the sum modulo 2^64."""
    remainder = parts["sum"].view(np.uint64) - (parts["high"].view(np.uint64) << np.uint64(32))
    return parts["high"] + (remainder >> np.uint64(32)).view(np.int64)


def _drop_ordinary_exponents(table: pa.Table, i: int) -> pa.Table:
    """Drop a column's exp if it is 0 for all groups; groups of only zeros get 0."""
    place = table.schema.get_field_index(f"c{i}_exp")
    if place < 0:
        return table
    powers = table[f"c{i}_exp"].to_numpy()
    powers = np.where(powers == exact_sums.NO_VALUE, 0, powers)
    return table.set_column(place, f"c{i}_exp", pa.array(powers)) if powers.any() else table.remove_column(place)


def _round_sums(parts: Mapping[str, np.ndarray]) -> np.ndarray:
    """Round the sums to float64, also those of integers beyond 64 bits."""
    return _split_sums(parts)[0]


def _split_sums(parts: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return (the sums rounded to float64, what rounding took); those of floats are divided by 2^exp."""
    sums = parts["sum"]
    if sums.dtype.kind == "f":
        return sums, parts.get("rest", np.zeros(len(sums)))
    low = (sums.view(np.uint64) & np.uint64(0xFFFFFFFF)).astype(np.float64)
    high = _compute_exact_high(parts) if "high" in parts else sums >> 32
    over = (high >> 32).astype(np.float64) * 2.0**64
    under = (high & 0xFFFFFFFF).astype(np.float64) * 2.0**32
    return exact_sums.add_pairs(exact_sums.two_sum(over, under), exact_sums.two_sum(low, np.zeros(len(low))))


def _compute_statistic(stat: str, parts: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Compute (values, valid) of a statistic from its parts."""
    n = parts["n"]
    powers = parts.get("exp", np.zeros(1, dtype=np.int64))
    with np.errstate(over="ignore", invalid="ignore"):  # sums and squares may be beyond float64: infinite
        if stat == "mean":
            mean = np.ldexp(exact_sums.divide_pair(*_split_sums(parts), np.maximum(n, 1), np), powers)
            return mean, (n > 0) & ~np.isnan(mean)
        if stat in ("std", "var"):
            var = parts["m2"] / np.maximum(n - 1, 1)
            values = np.ldexp(np.sqrt(var), powers) if stat == "std" else np.ldexp(var, 2 * powers)
            return values, (n > 1) & ~np.isnan(values)
        if stat == "sum" and parts["sum"].dtype.kind == "f":
            values = np.ldexp(parts["sum"], powers)
            return values, ~np.isnan(values)
    return parts[stat], (n > 0) if stat in ("min", "max") else n >= 0
