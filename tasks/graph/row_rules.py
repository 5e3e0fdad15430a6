"""The rules for the rows of a source: filter, unique, splits and down-sampling, each a mask over partitions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.core.dtypes import parse_dtype
from tasks.core.pickled_fields import PickledFields
from tasks.core.schema import Schema
from tasks.core.settings import SplitRule
from tasks.core.strict_json import JsonObject, decode_floats
from tasks.core.units import to_epoch_units
from tasks.engines.algorithms.protocol import Kernels
from tasks.engines.algorithms.reductions import on_host, total
from tasks.engines.expression.syntax import Expression, parse
from tasks.engines.types import Array
from tasks.errors import DataError
from tasks.graph.row_masks import Mask, MaskedPartition, MaskResult, PartitionRows

HASHES = 1 << 32
LATER_FIRST = ("test", "valid")
SOURCE_FILTER = "source.filter"
SOURCE_SPLIT = "source.split"
SOURCE_DOWNSAMPLE = "source.downsample"


def seed_of(text: str) -> int:
    """Derive a seed of 32 bits for a purpose, so that rules do not share hashes: folds are hashes of row numbers, too.

    >>> seed_of("downsample 0") == seed_of("split 0")
    False
    """
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


@dataclass(frozen=True)
class RowSet:
    """A set of row numbers as a file with a bit for each row of a plan, which all workers can read."""

    path: str
    digest: str

    def members(self, first: int, rows: int) -> np.ndarray:
        """Return which of the rows [first, first + rows) are in the set; only their part of the file is read."""
        low = first // 8
        high = -(-(first + rows) // 8)
        bits = np.fromfile(self.path, dtype=np.uint8, count=high - low, offset=low)
        flags = np.unpackbits(bits, bitorder="little").view(bool)
        return flags[first - 8 * low : first - 8 * low + rows]

    def has(self, rows: np.ndarray) -> np.ndarray:
        """Return which of these row numbers, in any order, are in the set."""
        bits = np.memmap(self.path, dtype=np.uint8, mode="r")
        rows = rows.astype(np.int64)
        return (bits[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1 > 0


@dataclass(frozen=True)
class SourceFilter:
    """The rule that keeps rows for which `condition` is true (all, if it is None) and that are not in `repeated`."""

    condition: Expression | None
    repeated: RowSet | None = None

    @property
    def columns(self) -> Sequence[str]:
        return self.condition.columns if self.condition else ()

    def decide(self, rows: PartitionRows, partition: MaskedPartition) -> MaskResult:
        mask = partition.true(self.condition, SOURCE_FILTER, rows) if self.condition else None
        passed = len(rows.numbers) if mask is None else total(mask)
        left_out = {"filtered": len(rows.numbers) - passed}
        if self.repeated:
            first = partition.partition.first_row
            count = partition.partition.rows
            gone = self.repeated.has(on_host(rows.numbers)) if partition.keyed else self.repeated.members(first, count)
            fresh = partition.engine.xp.asarray(~gone)
            mask = fresh if mask is None else mask & fresh
            left_out["repeated"] = passed - total(mask)
        return MaskResult(mask, left_out=left_out)


@dataclass(frozen=True)
class Splitting(PickledFields):
    """The rule for which rows belong to the split `name`: train, valid or test. Each row belongs to exactly one split.

    By expressions: `conditions` are (split, expression); the first that is true counts. Train has all other rows, also
    those whose value in `column` is null.
    By moments: `cuts` are (split, the least stored number of `column` in it), the later split first, as numbers of the
    type `cut_type`.
    By shares: the range of hashes is divided into the share of valid, that of test and the rest, train. A row belongs
    to the split in whose part the hash of its `keys` lies, or of its number without keys.
    By numbers: `sets` are (split, its rows); train has all others.

    With `looks_back`, operators see the rows of earlier splits as the past of those of this split: operators that look
    at other rows of a run, or make one row of them, get both, but only rows of this split are written.
    """

    name: str
    conditions: tuple[tuple[str, str], ...] = ()
    column: str | None = None
    shares: tuple[tuple[str, float], ...] = ()
    keys: tuple[str, ...] = ()
    seed: int = 0
    cuts: tuple[tuple[str, int | float], ...] = ()
    cut_type: str = ""
    sets: tuple[tuple[str, RowSet], ...] = ()
    looks_back: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that decide; none where row numbers do."""
        if self.sets:
            return ()
        return (self.column,) if self.column is not None else self.keys

    def cuts_in(self, dtype: pa.DataType) -> list[tuple[str, int | float]]:
        """Convert the cuts to stored numbers of the type in which the column is read, which may be that of a fit.

        >>> Splitting("test", cuts=(("test", 5),), cut_type="timestamp[ms]").cuts_in(pa.timestamp("us"))
        [('test', 5000)]
        """
        known = parse_dtype(self.cut_type)
        if known == dtype or not pa.types.is_temporal(dtype):
            return list(self.cuts)
        return [(name, to_stored_number(moment(cut, known).cast(dtype))) for name, cut in self.cuts]

    def of_numbers(self, rows: Array) -> tuple[Array, Array]:
        """Return (which of these rows belong to the split, which belong to it or to an earlier split)."""
        own = np.ones(len(rows), dtype=bool)
        later = np.zeros(len(rows), dtype=bool)
        for name, members in self.sets:  # test, valid
            here = members.has(rows)
            if name == self.name:
                return here, ~later
            own = own & ~here
            later = later | here
        return own, own

    @cached_property
    def parsed(self) -> list[tuple[str, Expression]]:
        return [(name, parse(text)) for name, text in self.conditions]

    def decide(self, rows: PartitionRows, partition: MaskedPartition) -> MaskResult:
        here, past, left_out = self._assign_rows(rows, partition)
        left_out["other_splits"] = len(rows.numbers) - total(here)
        return MaskResult(here, left_out=left_out) if past is None else MaskResult(past, here, left_out=left_out)

    def _assign_rows(self, rows: PartitionRows, partition: MaskedPartition) -> tuple[Any, Any, dict[str, int]]:
        """Assign rows to the split.

        Returns which rows belong to it; with `looks_back`, which belong to it or to an earlier one, else None; and how
        many rows train has because their value is null.
        """
        engine = partition.engine
        xp = partition.engine.xp
        if self.sets:
            own, past = self.of_numbers(on_host(rows.numbers))
            return xp.asarray(own), xp.asarray(past) if self.looks_back else None, {}
        if self.column is None:
            return self._select_by_hash(rows, engine), None, {}
        taken = xp.zeros(len(rows.numbers), dtype=bool)
        for name, mask in self._list_side_masks(rows, partition):
            if name == self.name:
                return mask & ~taken, ~taken if self.looks_back else None, {}
            taken = taken | mask
        null = engine.null_rows([rows.columns[self.column]])
        return ~taken, None, {"null_in_train": 0 if null is None else total(null)}

    def _list_side_masks(self, rows: PartitionRows, partition: MaskedPartition) -> Iterator[tuple[str, Any]]:
        """Yield (split, the rows for which its condition or its cut is true), the later split first."""
        for name, condition in self.parsed:
            yield name, partition.true(condition, SOURCE_SPLIT, rows)
        if self.cuts:
            assert self.column is not None
            values, valid = partition.engine.numbers(rows.columns[self.column])
            for name, cut in self.cuts_in(partition.schema[self.column].dtype):
                yield name, values >= cut if valid is None else valid & (values >= cut)

    def _select_by_hash(self, rows: PartitionRows, engine: Kernels) -> Array:
        """Return the rows that belong to this split by the hash of their keys, or of their numbers."""
        xp = engine.xp
        seed = seed_of(f"split {self.seed}")
        keys = [rows.columns[name] for name in self.keys]
        hashes = engine.hash_columns(keys, seed) if keys else engine.hash_rows(rows.numbers, seed)
        hashes = hashes.astype(xp.uint64)
        low = 0
        for name, share in self.shares:
            high = low + round(share * HASHES)
            if name == self.name:
                return (hashes >= xp.uint64(low)) & (hashes < xp.uint64(high))
            low = high
        return hashes >= xp.uint64(low)


@dataclass(frozen=True)
class Division:
    """What a pass over all rows has found of the splits of a source.

    Either `sets` are (split, its rows), or `cuts` are (split, the least stored number in it, of the type `cut_type`),
    the later split first; `figures` are for log and manifest.
    """

    sets: tuple[tuple[str, RowSet], ...] = ()
    cuts: tuple[tuple[str, int | float], ...] = ()
    figures: JsonObject = field(default_factory=dict)
    cut_type: str = ""

    def to_json(self) -> JsonObject:
        sets = [[name, rows.path, rows.digest] for name, rows in self.sets]
        cuts = [list(cut) for cut in self.cuts]
        return {"sets": sets, "cuts": cuts, "figures": self.figures, "cut_type": self.cut_type}

    @staticmethod
    def from_json(data: JsonObject) -> Division:
        data = decode_floats(data)
        sets = tuple((name, RowSet(path, digest)) for name, path, digest in data["sets"])
        return Division(sets, tuple((name, cut) for name, cut in data["cuts"]), data["figures"], data["cut_type"])

    @property
    def text(self) -> str:
        """Where splits begin and how many rows they have, in one line."""
        figures = self.figures
        parts = []
        if "unit" in figures:
            parts.append(f"times are numbers that count {figures['unit']} since 1970")
        if cuts := figures.get("cuts"):
            parts.append(", ".join(f"{name} begins at {cuts[name]}" for name in reversed([*cuts])))
        if "rows" in figures:
            parts.append(", ".join(f"{count:,} rows are {name}" for name, count in figures["rows"].items()))
        if figures.get("keys_in_train"):
            keys = figures["keys_in_train"]
            rows = figures["rows_of_keys_in_train"]
            parts.append(f"{keys:,} keys with too few rows ({rows:,} rows) stay in train")
        if figures.get("without_key"):
            parts.append(f"{figures['without_key']:,} rows without a key {figures['without_key_are']}")
        if figures.get("null_in_train"):
            parts.append(f"{figures['null_in_train']:,} rows without a time are in train")
        return "; ".join(parts)


def moment(number: int | float, dtype: pa.DataType) -> pa.Scalar:
    """Convert a stored number to the time that it stands for.

    >>> str(moment(86_400_000_001, pa.timestamp("us")))
    '1970-01-02 00:00:00.000001'
    """
    return pa.scalar(int(number), pa.int32() if dtype.bit_width == 32 else pa.int64()).cast(dtype)


def to_stored_number(time: pa.Scalar) -> int:
    """Convert a time to the number that it is stored as."""
    return int(time.cast(pa.int32() if time.type.bit_width == 32 else pa.int64()).as_py())


def moment_conditions(rule: SplitRule) -> tuple[tuple[str, str], ...]:
    """List (split, the condition that a row is not earlier than its beginning), the later split first.

    >>> moment_conditions(SplitRule(by="time", column="t", valid="2024-01-02", unit="s"))
    (('valid', "col('t') >= 1704153600"),)
    """
    ends = [(name, getattr(rule, name)) for name in LATER_FIRST]
    if rule.unit:
        ends = [(name, value and to_epoch_units(value, rule.unit)) for name, value in ends]
    return tuple((name, f"col({rule.column!r}) >= {value!r}") for name, value in ends if value is not None)


def with_unit(rule: SplitRule, unit: str | None) -> SplitRule:
    """Add to a rule the unit of the numbers in its column, if it was found by a look at all rows."""
    return rule.model_copy(update={"unit": unit}) if unit else rule


def needs_unit(schema: Schema, rule: SplitRule | None) -> bool:
    """Return whether the column has numbers, valid and test are times, and the rule does not say what the numbers
    count."""
    return bool(rule and rule.moments and not rule.unit and schema[rule.column or ""].kind == "number")


@dataclass(frozen=True)
class Downsampling(PickledFields):
    """The rule that keeps rows for which `where` is true with the probability `fraction`, by a hash of their numbers.

    `weight` is the column of 1 / fraction for these rows and of 1 for others; None without one. Row numbers begin at
    `first_row`. Unless it is `active`, all rows stay, with the weight 1.
    """

    where: str
    fraction: float
    weight: str | None = None
    seed: int = 0
    first_row: int = 0
    active: bool = True

    @property
    def columns(self) -> Sequence[str]:
        return self.condition.columns if self.active else ()

    @cached_property
    def condition(self) -> Expression:
        return parse(self.where)

    def decide(self, rows: PartitionRows, partition: MaskedPartition) -> MaskResult:
        engine = partition.engine
        xp = partition.engine.xp
        if not self.active:
            return MaskResult(columns=self._make_weights(xp.ones(len(rows.numbers)), engine))
        chosen = partition.true(self.condition, SOURCE_DOWNSAMPLE, rows)
        mask = ~chosen | self.stay(rows.numbers + xp.uint64(self.first_row), engine)
        weights = self._make_weights(xp.where(chosen, 1 / self.fraction, 1.0), engine)
        return MaskResult(mask, columns=weights, left_out={"downsampled": len(rows.numbers) - total(mask)})

    def _make_weights(self, weights: Array, engine: Kernels) -> JsonObject:
        return {self.weight: engine.from_numbers(weights.astype(engine.xp.float32))} if self.weight else {}

    def stay(self, rows: Array, engine: Kernels) -> Array:
        """Return which of these row numbers stay among those where `where` is true.

        >>> from tasks import engines
        >>> Downsampling("x > 0", 0.5).stay(np.arange(8, dtype=np.uint64), engines.engine("pandas")).tolist()
        [True, False, True, True, False, True, False, False]
        """
        xp = engine.xp
        return engine.hash_rows(rows, seed_of(f"downsample {self.seed}")).astype(xp.uint64) < xp.uint64(
            round(self.fraction * HASHES)
        )


@dataclass(frozen=True)
class RowRules:
    """The rules of a pass beyond `source.filter`: they leave out rows that repeat a key, rows of other splits, and a
    part of some training rows.

    `downsamples`: whether down-sampling leaves rows out in this pass; None: if it is a pass over training rows.
    `strict`: a cast or a parse that fails in filter, split or down-sampling is an error; else it is null and counted.
    """

    repeated: RowSet | None = None
    splitting: Splitting | None = None
    downsampling: Downsampling | None = None
    downsamples: bool | None = None
    strict: bool = False

    def masks(self, condition: Expression | None, training: bool, looks_back: bool, first_row: int) -> list[Mask]:
        """List all rules in their order, with `source.filter`, for a pass over training rows or over others.

        `looks_back`: whether rows of earlier splits are read as the past of this split's rows.
        """
        masks: list[Mask] = []
        if condition or self.repeated:
            masks.append(SourceFilter(condition, self.repeated))
        if self.splitting:
            masks.append(replace(self.splitting, looks_back=looks_back))
        if self.downsampling:
            active = training if self.downsamples is None else self.downsamples
            masks.append(replace(self.downsampling, first_row=first_row, active=active))
        return masks


ALL_ROWS = RowRules()


def make_no_row_error(splitting: Splitting | None) -> DataError:
    """Make the error for a split, or a source without splits, that filters and rules leave without a row."""
    if splitting is None:
        do = "check source.filter and the filters of features against the data"
        return DataError("no row is left to write", why="filters removed every row", do=do)
    name = splitting.name
    conditions = dict(splitting.conditions)
    rule = f" by {conditions[name]}" if name in conditions else ""
    return DataError(
        f"no row of {name} is left",
        where=f"source.split.{name}" if name != "train" else "source.split",
        why=f"source.split gives {name} none{rule}, or filters removed every row",
        do="check valid and test of source.split, and filters, against the data",
    )
