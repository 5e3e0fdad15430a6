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
# the bins of the infinities
MINUS_INFINITY = 0x000F
PLUS_INFINITY = 0xFFF0
SIGN = 1 << 63


def _by_bin(pairs: object) -> object:
    """The counts by bin of the pairs in a file."""
    if not isinstance(pairs, list):
        return pairs
    is_pairs = all(isinstance(pair, list) and [type(one) for one in pair] == [int, int] for pair in pairs)
    return dict(pairs) if is_pairs else pairs


@dataclass(frozen=True)
class ColumnProfile:
    """The figures of one column of the source, over all rows that were read (after `source.filter`, before filters of
    the graph). Of a list column the elements are the rows; null lists are counted as null elements. NaN is null.

    `distinct` values without null; their number is within `distinct_error` (relative, two standard errors; 0: exact;
    infinite: those among one of `sampled` rows, so that there are at least about as many).
    `minimum`, `maximum`, `mean` and `std` (ddof 1) are those of finite values; `infinite` values are counted apart.
    Numbers are numbers (bools 0 and 1, decimals the nearest float64); times count in microseconds since 1970, dates in
    days, durations and times of the day in microseconds, and their extremes are ISO texts (of durations numbers).
    `bins` has the number of values by the upper 16 bits of the order-preserving uint64 of their float64; None for
    texts. They are of one of `sampled` rows: of 1 all; of more, a share of them is within sqrt(p (1 - p) / n) (one
    standard error, n = `in_bins`) of that of all rows. `hours` has the number of values of timestamps by hour of the
    day in UTC, of the same rows. `buckets` has the number of values by the lower ten bits of
    their MurmurHash3 (texts, integers, bools), else None. `top` are the most frequent of these values with their
    counts, largest count first, equal counts by value; empty unless `top_exact`: with too many distinct values nobody
    has counted each.
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
    bins: Annotated[Mapping[Count, Count] | None, BeforeValidator(_by_bin)] = None
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
        """The number of values in `bins`; that of all values if they have none."""
        return sum(self.bins.values()) if self.bins else self.values

    @property
    def is_distinct_known(self) -> bool:
        """Whether `distinct` is of all rows, not of a sample of them."""
        return math.isfinite(self.distinct_error)

    @property
    def is_constant(self) -> bool:
        """Whether all values are one."""
        return (
            self.values > 0 and round(self.distinct) == 1 and (self.is_distinct_known or self.minimum == self.maximum)
        )

    def quantile(self, q: float) -> float:
        """The value at the fraction `q` of the finite values: the middle of its bin, within 1/16 of the exact value,
        never outside of the column's extremes where they are numbers. NaN without bins or values.

        >>> column = ColumnProfile("x", "int8", rows=4, nulls=0, bins={bin_of(1.0): 3, bin_of(100.0): 1})
        >>> column.quantile(0.5), column.quantile(1.0)
        (1.03125, 102.0)
        """
        finite = sorted((b, n) for b, n in (self.bins or {}).items() if b not in (MINUS_INFINITY, PLUS_INFINITY) and n)
        if not finite:
            return math.nan
        rank = q * (sum(n for _, n in finite) - 1)
        passed = 0
        place = finite[-1][0]
        for number, count in finite:
            passed += count
            if passed > rank:
                place = number
                break
        low, high = bin_edges(place)
        value = 0.0 if place == bin_of(0.0) else low / 2 + high / 2
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
    """What a step of the graph met: `rows` (or elements) that it looked at, how many of them are out of its vocabulary
    (Categorify) or without a match (JoinExternal), None for other operators, and casts that failed in it."""

    key: str
    op: str
    columns: tuple[str, ...]
    rows: Count
    out_of_vocabulary: Count | None = None
    unmatched: Count | None = None
    failed_casts: Count = 0


class Association(NamedTuple):
    """How strongly two columns go together: Cramér's V, 0 (not at all) .. 1, and the V that columns which have nothing
    to do with each other pass by chance with one standard deviation."""

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
    """What a run read: `rows` of the source that passed its filter, the columns by name, the steps by key.

    `seconds` of all workers together went into the profile. `repeated` is the share of rows that are equal to an
    earlier one in all columns that the output is made of (lists aside), among `compared` rows that their values chose;
    None if these columns do not tell rows apart. `associations` has how strongly two columns go together, by their
    names, over `associated` rows. `source` has the types of all columns of the source, read
    or not.
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
        """The types of all columns of the source, by their names; of those that were read, as they were read."""
        return {**self.source, **{name: column.type for name, column in self.columns.items()}}

    @property
    def unread(self) -> dict[str, str]:
        """The types of the columns of the source that the run did not read, by their names."""
        return {name: dtype for name, dtype in self.source.items() if name not in self.columns}

    def with_columns_of(self, other: Profile) -> Profile:
        """The columns and steps of both: each pass over the same rows profiles the columns that no other has."""
        return replace(
            self,
            rows=max(self.rows, other.rows),
            columns={**other.columns, **self.columns},
            steps={**other.steps, **self.steps},
            seconds=self.seconds + other.seconds,
        )

    def with_keys_of(self, other: Profile) -> Profile:
        """The profile with the keys that the same steps have in another one: a job that has changed may number its
        nodes otherwise."""
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
        """The profile of a file's content; DataError that names the file and the field that is damaged."""
        stored = parse_document(_StoredProfile, data, path)
        columns = {one.name: one for one in stored.columns}
        steps = {one.key: one for one in stored.steps}
        pairs = {(one, other): Association(v, by_chance) for one, other, v, by_chance in stored.associations}
        rows = stored.repeated, stored.compared, pairs, stored.associated, stored.source
        return cls(stored.rows, columns, steps, stored.seconds, stored.format, *rows)

    def text(self, **more: Any) -> str:
        """As JSON of one spelling, on one line, with further fields."""
        return json.dumps({**self.to_json(), **more}, allow_nan=False)


def bin_of(value: float) -> int:
    """The bin of a number: the upper 16 bits of its order-preserving uint64; both zeros have one.

    >>> bin_of(-1.0) < bin_of(-0.0) == bin_of(0.0) < bin_of(1.0) < bin_of(float("inf"))
    True
    """
    bits: int = struct.unpack("<Q", struct.pack("<d", value + 0.0))[0]
    return ((~bits if bits & SIGN else bits | SIGN) & 0xFFFFFFFFFFFFFFFF) >> 48


def bin_edges(number: int) -> tuple[float, float]:
    """The least and the greatest number of a bin, as floats; the bin that has the largest numbers ends at infinity."""
    ends = sorted((_decode_ordered_float(number << 48), _decode_ordered_float((number + 1 << 48) - 1)))
    return ends[0], ends[1]


def _decode_ordered_float(ordered: int) -> float:
    bits = ordered ^ SIGN if ordered & SIGN else ~ordered & 0xFFFFFFFFFFFFFFFF
    value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return value


def read_profile(folder: Path) -> Profile | None:
    """The profile of an output's folder; None without one, DataError for one that is damaged."""
    path = folder / PROFILE
    return Profile.from_json(read_json(path), path) if path.is_file() else None
