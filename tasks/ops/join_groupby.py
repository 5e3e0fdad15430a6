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
        """A table in host memory: the keys k0.., their rows, and per column i what the statistics are made of.

        ci_n; ci_sum, of integers modulo 2^64, hence ci_high: the sum / 2^32, or less than 2^31 below it; of floats
        rounded, hence ci_rest: what rounding took; ci_mean, ci_meanrest and ci_m2 (sum of squared deviations) for std
        and var; ci_min, ci_max. Those of floats are of the values divided by 2^ci_exp.
        """
        engine = context.engine
        codes, keys = engine.group_codes([columns[n] for n in unit], [f"k{i}" for i in range(len(unit))])
        groups = len(keys)
        parts = {"rows": engine.sum_by(codes, groups, engine.xp.ones(len(codes), dtype="int64"))}
        for i, name in enumerate(self.summarized):
            values, valid = engine.numbers(columns[name])
            valid_codes, values = (codes, values) if valid is None else (codes[valid], values[valid])
            with np.errstate(over="ignore", invalid="ignore"):
                of_column = _compute_parts(engine, valid_codes, groups, values, set(self.of_columns))
            if pa.types.is_decimal(engine.dtype(columns[name])) and {"min", "max"} & {*self.of_columns}:
                of_column |= _decimal_extremes(engine, columns[name], valid, valid_codes, groups)
            parts |= {f"c{i}_{part}": numbers for part, numbers in of_column.items()}
        for name, numbers in parts.items():
            host_numbers = numbers if isinstance(numbers, pa.Array) else engine.host(engine.from_numbers(numbers))
            keys = keys.append_column(name, host_numbers)
        types = [dtype_name(engine.dtype(columns[n])) for n in self.summarized]
        return keys.replace_schema_metadata({"dtypes": ";".join(types)})

    def merge(self, a: pa.Table, b: pa.Table) -> pa.Table:
        return self.merge_all([a, b])

    def merge_all(self, partials: Sequence[pa.Table]) -> pa.Table:
        engine = engines.engine("pandas")
        joined = pa.concat_tables(partials)
        names = [n for n in joined.column_names if n.startswith("k")]
        codes, keys = engine.group_codes([joined.column(n) for n in names], names)
        floats: dict[str, dict[str, np.ndarray]] = {}  # what belongs together of a column, by its prefix
        for name in joined.column_names[len(names) :]:
            with np.errstate(over="ignore", invalid="ignore"):
                merged = _merge_part(engine, codes, len(keys), joined, name, floats)
            keys = keys.append_column(name, merged if isinstance(merged, pa.Array) else pa.array(merged))
        return keys.replace_schema_metadata(partials[0].schema.metadata)

    def arrange(self, partial: pa.Table, unit: Unit) -> tuple[pa.Table, dict[str, Any]]:
        return self.in_order([partial]), {}

    def finish(self, table: pa.Table, sums: Mapping[str, Any], unit: Unit) -> FittedValues:
        """`groups`: one row per key in key order, with the parts of the statistics; the columns' `dtypes`."""
        types = (table.schema.metadata or {}).get(b"dtypes", b"").decode()
        for i, name in enumerate(self.columns):
            table = _with_right_sums(table, i, repr(name) if "sum" in self.stats else None)
            table = _without_exponents(table, i)
        return {"groups": table.replace_schema_metadata(None), "dtypes": types.split(";") if types else []}

    def prepare(self, fitted: FittedValues, engine: Kernels) -> tuple[Lookup, Columns, int]:
        """(the groups' look-up, the columns to join: one row per group, and one more of nulls for all others)."""
        table = fitted["groups"]
        keys = [n for n in table.column_names if n.startswith("k")]
        columns = {"count": pa.concat_arrays([table["rows"].combine_chunks(), pa.nulls(1, pa.int64())])}
        for i, dtype in enumerate(fitted["dtypes"]):
            for stat in self.of_columns:
                values, valid = _statistic(stat, _read_parts(table, i, [stat]))
                wanted = _dtype(stat, parse_dtype(dtype))
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
        for i, name in enumerate(self.summarized):
            out |= {self._name(group, name, stat): joined[f"{i} {stat}"] for stat in self.of_columns}
        return out

    @model_validator(mode="after")
    def _check_parameters(self) -> JoinGroupby:
        if not self.stats:
            raise ValueError("at least one of stats is needed")
        if not self.columns and self.stats != ["count"]:
            raise ValueError(f"{', '.join(s for s in self.stats if s != 'count')} need cont_cols")
        return self

    @property
    def columns(self) -> list[str]:
        return [self.cont_cols] if isinstance(self.cont_cols, str) else list(dict.fromkeys(self.cont_cols))

    @property
    def of_columns(self) -> list[Stat]:
        return [s for s in dict.fromkeys(self.stats) if s != "count"]

    @property
    def summarized(self) -> list[str]:
        """Columns that a statistic is taken of: none where only rows are counted."""
        return self.columns if self.of_columns else []

    def extra_columns(self, fitting: bool) -> tuple[str, ...]:
        return tuple(self.summarized) if fitting else ()

    def outputs(self, unit: Unit, schema: Schema, fitted: FittedValues | None) -> list[Column]:
        group = self.name_sep.join(unit)
        columns = []
        tags = frozenset({Tags.CONTINUOUS.value})
        if "count" in self.stats:
            columns.append(Column(f"{group}{self.name_sep}count", pa.int64(), tags))
        for i, name in enumerate(self.summarized):
            dtype = parse_dtype(fitted["dtypes"][i]) if fitted else self._numeric(schema, name)
            columns += [Column(self._name(group, name, stat), _dtype(stat, dtype), tags) for stat in self.of_columns]
        return columns

    def _name(self, group: str, name: str, stat: str) -> str:
        return self.name_sep.join([group, name, stat])

    def _numeric(self, schema: Schema, name: str) -> pa.DataType:
        if name in schema and schema[name].kind not in ("number", "bool"):
            raise DataError(
                f"JoinGroupby needs numeric cont_cols, {name!r} is {dtype_name(schema[name].dtype)}",
                do="choose other columns, or cast it first",
            )
        return schema[name].dtype if name in schema else pa.float64()

    def order_free(self, unit: Unit, schema: Schema) -> bool:
        exact = {"count", "sum", "min", "max", "mean"}
        types = [schema[name].dtype for name in self.summarized]
        whole = all(pa.types.is_integer(dtype) or pa.types.is_boolean(dtype) for dtype in types)
        return set(self.stats) <= ({"count", "min", "max"} if not whole else exact)

    def key_names(self, partial: pa.Table) -> list[str]:
        return [n for n in names_of(partial) if n.startswith("k")]

    def in_order(self, tables: Sequence[pa.Table]) -> pa.Table:
        return sort_keys(pa.concat_tables(tables), self.key_names(tables[0]))

    def place(self, row: JsonObject) -> tuple[Any, ...]:
        return ascending_place(row, [name for name in row if name.startswith("k")])

    def restored(self, fitted: FittedValues, saved: FittedValues, unit: Unit) -> pa.Table:
        """The groups, with the parts that `finish` leaves out where they say nothing."""
        table = fitted["groups"]
        for i in range(len(self.summarized)):
            here = {name.removeprefix(f"c{i}_") for name in table.column_names if name.startswith(f"c{i}_")}
            whole = "sum" in here and not pa.types.is_floating(table.schema.field(f"c{i}_sum").type)
            if whole and "high" not in here:
                table = table.append_column(
                    f"c{i}_high", pa.array((table[f"c{i}_sum"].to_numpy() >> 32).astype(np.int64))
                )
            floats = {"sum": "rest", "mean": "meanrest"} if not whole else {"mean": "meanrest"}
            for part, rest in floats.items():
                if part in here and rest not in here:
                    table = table.append_column(f"c{i}_{rest}", pa.array(np.zeros(len(table))))
            if "exp" not in here and (("sum" in here and not whole) or "m2" in here):
                table = table.append_column(f"c{i}_exp", pa.array(np.zeros(len(table), dtype=np.int64)))
        return table

    def add_tables(self, a: pa.Table, b: pa.Table) -> pa.Table:
        """The parts of both, merged row by row: under a number as the key."""
        keys = self.key_names(a)
        rows = pa.array(np.arange(len(a)))
        numbered = [t.select([n for n in t.column_names if n not in keys]).add_column(0, "k0", rows) for t in (a, b)]
        merged = sort_keys(self.merge_all(numbered), ["k0"])  # groups may come in any order
        return pa.table({name: a[name] if name in keys else merged[name] for name in a.column_names})


def _dtype(stat: str, dtype: pa.DataType) -> pa.DataType:
    if stat in ("min", "max"):
        return dtype
    if stat == "sum" and (pa.types.is_integer(dtype) or pa.types.is_boolean(dtype)):
        return pa.uint64() if pa.types.is_unsigned_integer(dtype) else pa.int64()
    return pa.float64()


def _list_needed_parts(stats: Iterable[str]) -> set[str]:
    """The parts that statistics are made of."""
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
    """The parts of a column's statistics that were learned: high is of integers alone, rest and exp are of floats."""
    return {p: table[f"c{i}_{p}"].to_numpy() for p in _list_needed_parts(stats) if f"c{i}_{p}" in table.column_names}


def _compute_parts(engine: Kernels, codes: Array, groups: int, values: Array, stats: set[str]) -> dict[str, Any]:
    """The parts of one column's statistics by group, in arrays of the engine."""
    xp = engine.xp
    needed = _list_needed_parts(stats)
    parts = {"n": engine.sum_by(codes, groups, xp.ones(len(codes), dtype="int64"))}
    integers = values.dtype.kind in "iu"
    most_rows = int(parts["n"].max()) if groups else 0
    if "sum" in needed and integers:
        parts["sum"] = engine.sum_by(codes, groups, values)
        fit = sums_fit(values, len(values))
        high = parts["sum"] >> 32 if fit else engine.sum_by(codes, groups, values >> 32)
        parts["high"] = high.astype("int64")
    data = values
    powers = None
    if needed & {"sum", "m2"} and not integers:
        data = values.astype("float64")
        powers = exact_sums.exponents(data, codes, groups, engine, "m2" in needed)
        data = data if powers is None else xp.ldexp(data, -powers[codes])
        parts["exp"] = xp.zeros(groups, dtype="int64") if powers is None else powers
    if "sum" in needed and not integers:
        parts["sum"], parts["rest"] = engine.exact_sums_by(codes, groups, data, most_rows)
    if "m2" in needed:
        data = data.astype("float64")
        total = parts.get("sum")
        rest = parts.get("rest")
        if total is None or rest is None:
            total, rest = engine.exact_sums_by(codes, groups, data, most_rows)
        mean = exact_sums.divide_pair(total, rest, xp.maximum(parts["n"], 1), xp)
        off = data - mean[codes]
        rest = engine.sum_by(codes, groups, off) / xp.maximum(parts["n"], 1)
        squares, _ = engine.exact_sums_by(codes, groups, off * off, most_rows)
        parts["mean"], parts["meanrest"] = exact_sums.two_sum(mean, rest)
        parts["m2"] = xp.maximum(squares - parts["n"] * rest * rest, 0.0)
    if needed & {"min", "max"}:
        parts["min"], parts["max"] = engine.extremes_by(codes, groups, values)
    return parts


def _decimal_extremes(
    engine: Kernels, column: Series, valid: Array | None, codes: Array, groups: int
) -> dict[str, pa.Array]:
    """The smallest and the largest decimal by group, found by the ranks of the distinct ones: float64 has 15 digits.

    `valid` are the rows that are not null (None: all are), `codes` the groups of these.
    """
    places, distinct = engine.group_codes([column], ["x"])
    ranks, by_rank = _rank_values(distinct["x"].combine_chunks())
    row_ranks = engine.xp.asarray(ranks)[places if valid is None else places[valid]]
    ends = [engine.host(engine.from_numbers(end)) for end in engine.extremes_by(codes, groups, row_ranks)]
    return {part: _take_by_rank(by_rank, end.to_numpy()) for part, end in zip(("min", "max"), ends, strict=True)}


def _rank_values(values: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """(the rank of each value among the distinct ones, these by rank); a null's rank is one beyond."""
    distinct = pc.unique(values.drop_null())
    by_rank = distinct.take(pc.sort_indices(distinct))
    return pc.index_in(values, by_rank).fill_null(len(by_rank)).to_numpy().astype(np.int64), by_rank


def _take_by_rank(by_rank: pa.Array, ranks: np.ndarray) -> pa.Array:
    """The values of these ranks; where there is no value at all, nulls."""
    return by_rank.take(pa.array(ranks)) if len(by_rank) else pa.nulls(len(ranks), by_rank.type)


def _merge_part(
    engine: Kernels, codes: Array, groups: int, table: pa.Table, name: str, floats: dict[str, dict[str, np.ndarray]]
) -> np.ndarray | pa.Array:
    """One part of the groups of several partials; groups without values have no say."""
    if pa.types.is_decimal(table.schema.field(name).type):
        ranks, by_rank = _rank_values(table[name].combine_chunks())
        some = table[name.rpartition("_")[0] + "_n"].to_numpy() > 0
        return _take_by_rank(by_rank, engine.extremes_by(codes[some], groups, ranks[some])[name.endswith("max")])
    values = table[name].to_numpy()
    part = name.rpartition("_")[2]
    if part in ("rows", "n", "high") or (part == "sum" and values.dtype.kind in "iu"):
        return engine.sum_by(codes, groups, values)
    prefix = name.removesuffix(part)
    counts = table[f"{prefix}n"].to_numpy()
    if part in ("min", "max"):
        some = counts > 0
        return engine.extremes_by(codes[some], groups, values[some])[part == "max"]
    if prefix not in floats:
        floats[prefix] = _merge_float_parts(engine, codes, groups, table, prefix)
    return floats[prefix][part]


def _merge_float_parts(
    engine: Kernels, codes: Array, groups: int, table: pa.Table, prefix: str
) -> dict[str, np.ndarray]:
    """The parts of sums and squared deviations of floats, by part."""
    parts = {p: table[f"{prefix}{p}"].to_numpy() for p in _FLOAT_PARTS if f"{prefix}{p}" in table.column_names}
    merged = {}
    counts = table[f"{prefix}n"].to_numpy()
    if "exp" in parts:
        zero = np.ones(len(codes), dtype=bool)
        for part in ("sum", "mean", "m2"):
            zero &= parts[part] == 0 if part in parts else True
        powers = np.where(zero, exact_sums.NO_VALUE, parts["exp"])
        merged["exp"] = engine.extremes_by(codes, groups, powers)[1]
        down = powers - merged["exp"][codes]
        if down.any():
            parts |= {p: np.ldexp(v, 2 * down if p == "m2" else down) for p, v in parts.items() if p != "exp"}
    if "rest" in parts:
        ends = np.cumsum([len(chunk) for chunk in table[f"{prefix}sum"].chunks])[:-1]
        both = zip(np.split(parts["sum"], ends), np.split(parts["rest"], ends), strict=True)
        merged["sum"], merged["rest"] = exact_sums.merge_group_sums(codes, groups, list(both))
    if "m2" in parts:
        n = np.maximum(engine.sum_by(codes, groups, counts), 1)
        first = np.zeros((2, groups))
        off = parts["mean"]
        some = np.flatnonzero(counts > 0)[::-1]
        first[:, codes[some]] = parts["mean"][some], parts["meanrest"][some]
        off = (parts["mean"] - first[0][codes]) + (parts["meanrest"] - first[1][codes])
        shift = engine.sum_by(codes, groups, counts * off) / n
        merged["mean"], merged["meanrest"] = exact_sums.two_sum(first[0], first[1] + shift)
        off = np.where(counts > 0, off - shift[codes], 0.0)
        merged["m2"] = engine.sum_by(codes, groups, parts["m2"]) + engine.sum_by(codes, groups, counts * off * off)
    return merged


def _with_right_sums(table: pa.Table, i: int, refused: str | None) -> pa.Table:
    """A column's ci_high as the whole of sum / 2^32, where a sum is beyond 64 bits; else without.

    Such sums are an error where they are `refused`, under that name.
    """
    place = table.schema.get_field_index(f"c{i}_high")
    if place < 0:
        return table
    parts = _read_parts(table, i, ["sum"])
    if refused:
        refuse_wrapped(parts["sum"], _total(parts), refused)
    if (_total(parts) == parts["sum"]).all():
        return table.remove_column(place)
    return table.set_column(place, f"c{i}_high", pa.array(_high(parts)))


def _high(parts: Mapping[str, np.ndarray]) -> np.ndarray:
    """The whole of sum / 2^32, from less than 2^31 below it."""
    rest = parts["sum"].view(np.uint64) - (parts["high"].view(np.uint64) << np.uint64(32))
    return parts["high"] + (rest >> np.uint64(32)).view(np.int64)


def _without_exponents(table: pa.Table, i: int) -> pa.Table:
    """Without a column's ci_exp where all values are ordinary; that of nothing but zeros is 0."""
    place = table.schema.get_field_index(f"c{i}_exp")
    if place < 0:
        return table
    powers = table[f"c{i}_exp"].to_numpy()
    powers = np.where(powers == exact_sums.NO_VALUE, 0, powers)
    return table.set_column(place, f"c{i}_exp", pa.array(powers)) if powers.any() else table.remove_column(place)


def _total(parts: Mapping[str, np.ndarray]) -> np.ndarray:
    """The sums as float64, also of integers whose sums are beyond 64 bits."""
    return _exact_total(parts)[0]


def _exact_total(parts: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(the sums as float64, what rounding took); of floats divided by 2^exp."""
    sums = parts["sum"]
    if sums.dtype.kind == "f":
        return sums, parts.get("rest", np.zeros(len(sums)))
    low = (sums.view(np.uint64) & np.uint64(0xFFFFFFFF)).astype(np.float64)
    high = sums >> 32
    if "high" in parts:
        high = _high(parts)
    over = (high >> 32).astype(np.float64) * 2.0**64
    under = (high & 0xFFFFFFFF).astype(np.float64) * 2.0**32
    return exact_sums.add_pairs(exact_sums.two_sum(over, under), exact_sums.two_sum(low, np.zeros(len(low))))


def _statistic(stat: str, parts: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(values, valid) of a statistic of its parts."""
    n = parts["n"]
    powers = parts.get("exp", np.zeros(1, dtype=np.int64))
    with np.errstate(over="ignore", invalid="ignore"):  # sums and squares may be beyond float64: infinite
        if stat == "mean":
            mean = np.ldexp(exact_sums.divide_pair(*_exact_total(parts), np.maximum(n, 1), np), powers)
            return mean, (n > 0) & ~np.isnan(mean)
        if stat in ("std", "var"):
            var = parts["m2"] / np.maximum(n - 1, 1)
            values = np.ldexp(np.sqrt(var), powers) if stat == "std" else np.ldexp(var, 2 * powers)
            return values, (n > 1) & ~np.isnan(values)
        if stat == "sum" and parts["sum"].dtype.kind == "f":
            values = np.ldexp(parts["sum"], powers)
            return values, ~np.isnan(values)
    return parts[stat], (n > 0) if stat in ("min", "max") else n >= 0
