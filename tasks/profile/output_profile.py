"""The profile of all rows that a run has read: counts, extremes, moments and distributions by column."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator

from tasks.core.strict_json import encode_floats
from tasks.storage.atomic import read_json
from tasks.storage.documents import Count, Figure, Form, Number, TypeName, Value, dump_document, parse_document
from tasks.storage.own_files import PROFILE

FORMAT = 1
BUCKETS = 1024  # of categories, by the lowest ten bits of MurmurHash3
TOP = 100  # most frequent categories that a profile names
# The bins of the infinities.
MINUS_INFINITY = 0x000F
PLUS_INFINITY = 0xFFF0
SIGN = 1 << 63


def _index_by_bin(pairs: object) -> object:
    """Make a dict of counts by bin from the [bin, count] pairs of a file; other values are left to the validation."""
    if not isinstance(pairs, list):
        return pairs
    is_pairs = all(isinstance(pair, list) and [type(number) for number in pair] == [int, int] for pair in pairs)
    return dict(pairs) if is_pairs else pairs


@dataclass(frozen=True)
class ColumnProfile:
    """The figures of one column of the source, over all rows that were read.

    These are the rows after `source.filter` and before filters of the graph. For a list column the elements count
    instead of the rows, and a null list counts as a null element. NaN is null.

    distinct : number of distinct values without null, exact within `distinct_error`
    distinct_error : relative, two standard errors. 0 is exact; infinite means that `distinct` was counted in one of
        `sampled` rows, so that all rows have at least about as many.
    minimum, maximum, mean, std (ddof 1) : of finite values. Bools are 0 and 1, decimals the nearest float64. Times are
        microseconds since 1970, dates days, durations and times of the day microseconds; the extremes of all but
        durations are ISO texts.
    infinite : number of infinite values
    bins : number of values by the upper 16 bits of the order-preserving uint64 of their float64; None for texts.
        Counted in one of `sampled` rows: if that is more than 1, a share p of the values is within
        sqrt(p (1 - p) / n) of that of all rows (one standard error, n = `in_bins`).
    hours : number of timestamps by hour of the day in UTC, in the same rows as `bins`
    buckets : number of texts, bytes or integers by the lower ten bits of their MurmurHash3; None for other values
    top : the most frequent of these values with their counts, largest count first, equal counts by value; empty unless
        `top_exact`, since with too many distinct values their counts are unknown
    """

    name: str
    type: TypeName
    rows: Count
    nulls: Count
    distinct: Figure = 0.0
    distinct_error: Figure = 0.0
    minimum: int | Figure | str | None = None
    maximum: int | Figure | str | None = None
    mean: Figure | None = None
    std: Figure | None = None
    infinite: Count = 0
    bins: Annotated[Mapping[Count, Count] | None, BeforeValidator(_index_by_bin)] = None
    sampled: Number = 1
    hours: list[Count] | None = None
    buckets: list[Count] | None = None
    top: list[tuple[Value, Count]] = field(default_factory=list)
    top_exact: bool = False

    @property
    def values(self) -> int:
        """The number of values that are not null."""
        return self.rows - self.nulls

    @property
    def in_bins(self) -> int:
        """The number of values in `bins`, or of all values if these are not in bins."""
        return sum(self.bins.values()) if self.bins else self.values

    @property
    def is_distinct_known(self) -> bool:
        """Whether `distinct` is of all rows, not of a sample of them."""
        return math.isfinite(self.distinct_error)

    @property
    def is_constant(self) -> bool:
        """Whether all values are equal."""
        return (
            self.values > 0 and round(self.distinct) == 1 and (self.is_distinct_known or self.minimum == self.maximum)
        )

    def quantile(self, q: float) -> float:
        """Estimate the value at the fraction `q` of the finite values; NaN without bins or values.

        The result is the middle of the value's bin, within 1/16 of the exact value, and never outside the column's
        extremes if these are numbers.

        >>> column = ColumnProfile("x", "int8", rows=4, nulls=0, bins={bin_of(1.0): 3, bin_of(100.0): 1})
        >>> column.quantile(0.5), column.quantile(1.0)
        (1.03125, 102.0)
        """
        finite = sorted((b, n) for b, n in (self.bins or {}).items() if b not in (MINUS_INFINITY, PLUS_INFINITY) and n)
        if not finite:
            return math.nan
        rank = q * (sum(n for _, n in finite) - 1)
        values_up_to_bin = 0
        bin_of_rank = finite[-1][0]
        for number, count in finite:
            values_up_to_bin += count
            if values_up_to_bin > rank:
                bin_of_rank = number
                break
        low, high = bin_edges(bin_of_rank)
        value = 0.0 if bin_of_rank == bin_of(0.0) else low / 2 + high / 2
        if isinstance(self.minimum, (int, float)) and isinstance(self.maximum, (int, float)):
            value = float(min(max(value, self.minimum), self.maximum))
        return value

    def to_json(self) -> dict[str, Any]:
        counts = {
            "bins": None if self.bins is None else [[b, self.bins[b]] for b in sorted(self.bins)],
            "buckets": self.buckets,
        }
        return {name: counts[name] if name in counts else encode_floats(value) for name, value in vars(self).items()}


@dataclass(frozen=True)
class StepProfile:
    """Counts of one step of the graph.

    `rows` (or elements of lists) that the step transformed; how many of them are out of its vocabulary (Categorify) or
    unmatched (JoinExternal), None for other operators; casts that failed in the step.
    """

    key: str
    op: str
    columns: tuple[str, ...]
    rows: Count
    out_of_vocabulary: Count | None = None
    unmatched: Count | None = None
    failed_casts: Count = 0


class Association(NamedTuple):
    """The association of two columns: Cramér's V, from 0 (independent) to 1.

    `by_chance` is the V that independent columns reach by chance, at one standard deviation.
    """

    v: float
    by_chance: float = 0.0


class _StoredProfile(Form):
    """A profile as its file has it."""

    format: Number
    rows: Count
    repeated: float | None = None
    compared: Count = 0
    associations: list[tuple[str, str, float, float]] = []
    associated: Count = 0
    source: dict[str, TypeName] = {}
    columns: list[ColumnProfile]
    steps: list[StepProfile] = []
    seconds: float = 0.0


@dataclass(frozen=True)
class Profile:
    """The figures of what a run read: `rows` of the source that passed its filter, columns by name, steps by key.

    seconds : time of all workers together that the profile took
    repeated : share of rows that equal an earlier row in all columns of which the output is made (except lists), among
        `compared` rows, which are chosen by a hash of their values; None if these columns do not tell rows apart
    associations : association of two columns, by their names, over `associated` rows
    source : types of all columns of the source, read or not
    """

    rows: int
    columns: Mapping[str, ColumnProfile] = field(default_factory=dict)
    steps: Mapping[str, StepProfile] = field(default_factory=dict)
    seconds: float = 0.0
    format: int = FORMAT
    repeated: float | None = None
    compared: int = 0
    associations: Mapping[tuple[str, str], Association] = field(default_factory=dict)
    associated: int = 0
    source: Mapping[str, str] = field(default_factory=dict)

    @property
    def types(self) -> dict[str, str]:
        """The types of all columns of the source, by name; those of columns that were read are as read."""
        return {**self.source, **{name: column.type for name, column in self.columns.items()}}

    @property
    def unread(self) -> dict[str, str]:
        """The types of the columns of the source that the run did not read, by name."""
        return {name: dtype for name, dtype in self.source.items() if name not in self.columns}

    def with_columns_of(self, other: Profile) -> Profile:
        """Combine two profiles of the same rows: each pass profiles the columns that the others do not."""
        return replace(
            self,
            rows=max(self.rows, other.rows),
            columns={**other.columns, **self.columns},
            steps={**other.steps, **self.steps},
            seconds=self.seconds + other.seconds,
        )

    def with_keys_of(self, other: Profile) -> Profile:
        """Give the steps the keys that they have in another profile: a changed job may number its nodes differently."""
        known = {(step.op, step.columns): key for key, step in other.steps.items()}
        keys = {key: key if key in other.steps else known.get((s.op, s.columns), key) for key, s in self.steps.items()}
        return replace(self, steps={keys[key]: replace(step, key=keys[key]) for key, step in self.steps.items()})

    def to_json(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "rows": self.rows,
            "seconds": round(self.seconds, 3),
            "repeated": self.repeated,
            "compared": self.compared,
            "associations": [[*pair, *self.associations[pair]] for pair in sorted(self.associations)],
            "associated": self.associated,
            "source": dict(self.source),
            "columns": [self.columns[name].to_json() for name in sorted(self.columns)],
            "steps": [dump_document(self.steps[key]) for key in sorted(self.steps)],
        }

    @classmethod
    def from_json(cls, data: object, path: Path = Path(PROFILE)) -> Profile:
        """Parse a file's content; DataError that names the file and the damaged field."""
        stored = parse_document(_StoredProfile, data, path)
        return cls(
            rows=stored.rows,
            columns={column.name: column for column in stored.columns},
            steps={step.key: step for step in stored.steps},
            seconds=stored.seconds,
            format=stored.format,
            repeated=stored.repeated,
            compared=stored.compared,
            associations={(a, b): Association(v, by_chance) for a, b, v, by_chance in stored.associations},
            associated=stored.associated,
            source=stored.source,
        )

    def text(self, **fields: Any) -> str:
        """Write the profile as JSON on one line, with further fields; equal profiles give equal texts."""
        return json.dumps({**self.to_json(), **fields}, allow_nan=False)


def bin_of(value: float) -> int:
    """Return the bin of a number: the upper 16 bits of its order-preserving uint64; both zeros have the same bin.

    >>> bin_of(-1.0) < bin_of(-0.0) == bin_of(0.0) < bin_of(1.0) < bin_of(float("inf"))
    True
    """
    bits: int = struct.unpack("<Q", struct.pack("<d", value + 0.0))[0]
    return ((~bits if bits & SIGN else bits | SIGN) & 0xFFFFFFFFFFFFFFFF) >> 48


def bin_edges(number: int) -> tuple[float, float]:
    """Return the least and the greatest number of a bin; the bin of the largest numbers ends at infinity."""
    ends = sorted((_decode_ordered_float(number << 48), _decode_ordered_float((number + 1 << 48) - 1)))
    return ends[0], ends[1]


def _decode_ordered_float(ordered: int) -> float:
    bits = ordered ^ SIGN if ordered & SIGN else ~ordered & 0xFFFFFFFFFFFFFFFF
    value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return value


def read_profile(folder: Path) -> Profile | None:
    """Read the profile in an output's folder; None if it has none, DataError if it is damaged."""
    path = folder / PROFILE
    return Profile.from_json(read_json(path), path) if path.is_file() else None
