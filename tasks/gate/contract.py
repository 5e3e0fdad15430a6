"""The contract of a source: types, nulls, domains and ranges of its columns, and what happens to others.

The words are those of dlt (evolve, freeze, discard) and of TensorFlow Data Validation (domain). A contract is checked
twice: names and types before any row is read, values over all rows that were read, by their profile.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import Field, ValidationError, field_validator, model_validator

from tasks.core.dtypes import NAMED, NESTED, dtype_name, kind_of, leaf_type, parse_dtype
from tasks.core.schema import Column, Schema
from tasks.core.settings import Section
from tasks.errors import DataError, JobError, RowmillError, mistakes, near, place_text
from tasks.gate.output_profile import ColumnProfile, Profile
from tasks.gate.verdict import Finding, Level

KINDS = ("number", "string", "bool", "time", "list")
Rule = Literal["evolve", "freeze", "discard_column"]
TIMES = re.compile(r"(list<)*(timestamp|date|time|duration)")  # names of types
CLOCK = re.compile(r"\s*\d{2}:\d{2}")  # times of the day
MOST_VALUES = 50  # of a column whose domain `proposed` writes
Value = bool | int | float | str


class ColumnRule(Section):
    """What the contract says of a column; what is left out is not checked."""

    type: str | None = Field(None, description="a type as in source.schema, or one of number, string, bool, time, list")
    nulls: float | None = Field(None, ge=0, le=1, description="the largest share of nulls")
    values: list[Value] | None = Field(None, min_length=1, description="the domain: all values that it may have")
    range: list[float | str | None] | None = Field(
        None, description="[least, largest] value; null for no limit, times as texts"
    )
    missing: Literal["evolve", "freeze"] | None = Field(None, description="missing_columns if empty")
    retyped: Rule | None = Field(None, description="retyped_columns if empty")

    @field_validator("type")
    @classmethod
    def _some_type(cls, name: str | None) -> str | None:
        if name is not None and name not in KINDS:
            try:
                parse_dtype(name)
            except RowmillError as error:
                raise ValueError(f"{name!r} is not a type: {near(name, [*KINDS, *NAMED, *NESTED])}") from error
        return name

    @field_validator("nulls", "values", "range")
    @classmethod
    def _no_nan(cls, value: object) -> object:
        if any(isinstance(one, float) and math.isnan(one) for one in (value if isinstance(value, list) else [value])):
            raise ValueError("nan can be compared with nothing: did you mean null, for no limit?")
        return value

    @field_validator("range")
    @classmethod
    def _two_ends(cls, ends: list[float | str | None] | None) -> list[float | str | None] | None:
        if ends is None:
            return None
        if len(ends) != 2:
            raise ValueError("needs two ends, [least, largest], null for no limit")
        low, high = ends
        times = all(isinstance(end, str) and _moment(end) is not None for end in ends)
        if low is not None and high is not None and (_order(low, high, "largest", times) or 0) > 0:
            raise ValueError(f"the least value {low!r} is above the largest, {high!r}")
        return ends

    @model_validator(mode="after")
    def _one_domain(self) -> ColumnRule:
        if self.values is not None and self.range is not None:
            raise ValueError("values and range contradict each other: give one")
        return self


class Contract(Section):
    """What a source has to be like. Rules: `evolve` takes the source as it is and says so, `freeze` refuses it,
    `discard_column` reads it as if the column were not there."""

    new_columns: Rule = Field("evolve", description="columns of the source that are not in the contract")
    missing_columns: Literal["evolve", "freeze"] = Field("freeze", description="columns that the source lacks")
    retyped_columns: Rule = Field("freeze", description="columns of another type")
    columns: dict[str, ColumnRule] = Field({}, description="what each column has to be like")

    @property
    def missing_rules(self) -> dict[str, str]:
        """What happens to a column that the source, or some of its files, lack: evolve or freeze, by column."""
        return {name: rule.missing or self.missing_columns for name, rule in self.columns.items()}


def make_contract(data: object, where: str = "contract") -> Contract:
    """The contract of plain values, which may stand below a key `contract`; a JobError with near names for mistakes.

    >>> make_contract({"columns": {"price": {"nuls": 0.1}}})
    Traceback (most recent call last):
    tasks.errors.JobError: the contract is not valid: columns.price.nuls is unknown: did you mean 'nulls'?
      where: contract
    """
    if isinstance(data, Mapping) and [*data] == ["contract"]:
        data = data["contract"]
    if not isinstance(data, Mapping):
        raise JobError(
            "the contract is not a map", where=where, do="write columns: {price: {type: float64, nulls: 0.01}}"
        )
    try:
        return Contract.model_validate(data)
    except ValidationError as error:
        lines = []
        for one in mistakes(error, data):
            place = place_text(one.place)
            model = ColumnRule if len(one.place) == 3 else Contract
            if one.kind == "unknown":
                lines.append(f"{place} is unknown: {near(str(one.place[-1]), model.model_fields)}")
            else:
                lines.append(f"{place}{' ' if one.kind == 'missing' else ': '}{one.text}")
        raise JobError(f"the contract is not valid: {'; '.join(dict.fromkeys(lines))}", where=where) from None


# names and types


def fits(dtype: pa.DataType, rule: str) -> bool:
    """Whether a type is the one of a contract: by its name, or by its kind. A column of nulls only has no type yet.

    >>> fits(pa.int32(), "number"), fits(pa.int32(), "int64"), fits(pa.null(), "int64")
    (True, False, True)
    """
    if pa.types.is_null(leaf_type(dtype)):
        return True
    return kind_of(dtype) == rule if rule in KINDS else parse_dtype(rule) == dtype


class UnderContract(NamedTuple):
    """The schema that is read, and a finding for each column that is new, missing or of another type."""

    schema: Schema
    findings: tuple[Finding, ...]


def with_contract(schema: Schema, contract: Contract) -> UnderContract:
    """Apply the rules of a contract for columns to a schema.

    Findings of `freeze` have the level stop: such a source is refused. Those of `evolve` and `discard_column` have the
    level warn: they say what was taken or left out. Columns of rowmill's own (`__row__`) are not looked at.
    """
    findings: list[Finding] = []
    columns: list[Column] = []
    names = [name for name in schema if not name.startswith("__")]
    for column in schema.columns:
        rule = contract.columns.get(column.name)
        if column.name not in names:
            columns.append(column)
            continue
        action: str = "evolve"
        if rule is None:
            action = contract.new_columns
            findings.append(_new(column, contract))
        elif rule.type is not None and not fits(column.dtype, rule.type):
            action = rule.retyped or contract.retyped_columns
            findings.append(_retyped(column, rule.type, action))
        if action != "discard_column":
            columns.append(column)
    for name, rule in contract.columns.items():
        if name not in schema:
            findings.append(_missing(name, rule.missing or contract.missing_columns, names))
    return UnderContract(Schema(columns), tuple(findings))


def under_contract(schema: Schema, contract: Contract, where: str) -> UnderContract:
    """`with_contract` for a stage: a DataError that names every column which the contract freezes."""
    allowed = with_contract(schema, contract)
    frozen = [finding.text for finding in allowed.findings if finding.level == "stop"]
    if frozen:
        raise DataError(
            "the source does not match the contract",
            where=where,
            why="; ".join(frozen[:20]),
            do="fix the source, or change the contract: evolve accepts the column, discard_column leaves it out",
        )
    return allowed


ACTIONS = {
    "evolve": "it is accepted as it is",
    "discard_column": "it is left out",
    "freeze": "the contract forbids that (freeze)",
}


def _schema_finding(column: str, now: str | None, before: str | None, action: str, text: str) -> Finding:
    level: Literal["warn", "stop"] = "stop" if action == "freeze" else "warn"
    return Finding(column, "contract", now, before, 1.0, 0.0, level, f"{text}: {ACTIONS[action]}")


def _new(column: Column, contract: Contract) -> Finding:
    kind = dtype_name(column.dtype)
    text = f"column {column.name!r} ({kind}) is not in the contract"
    return _schema_finding(column.name, kind, None, contract.new_columns, text)


def _retyped(column: Column, wanted: str, action: str) -> Finding:
    kind = dtype_name(column.dtype)
    text = f"column {column.name!r} is {kind}, the contract says {wanted}"
    return _schema_finding(column.name, kind, wanted, action, text)


def _missing(name: str, action: str, there: Sequence[str]) -> Finding:
    hint = near(name, there)
    text = f"the source has no column {name!r}" + (f" ({hint.rstrip('?')})" if hint.startswith("did") else "")
    if action == "evolve":
        return Finding(name, "contract", None, name, 1.0, 0.0, "warn", f"{text}: the contract allows that")
    return _schema_finding(name, None, name, action, text)


# values


class CheckedValues(NamedTuple):
    """Findings, and notes on what could not be checked."""

    findings: list[Finding]
    notes: list[str]


def check_values(profile: Profile, contract: Contract, level: Level) -> CheckedValues:
    """Check nulls, domains and ranges over all rows of a profile."""
    findings: list[Finding] = []
    notes: list[str] = []
    for name, rule in contract.columns.items():
        column = profile.columns.get(name)
        if column is None:  # not read
            continue
        findings += _nulls(column, rule, level)
        findings += _range(column, rule, level)
        domain = _domain(column, rule, level)
        findings += domain.findings
        notes += domain.notes
    return CheckedValues(findings, notes)


def _nulls(column: ColumnProfile, rule: ColumnRule, level: Level) -> list[Finding]:
    share = column.nulls / column.rows if column.rows else 0.0
    if rule.nulls is None or share <= rule.nulls:
        return []
    text = (
        f"{column.name}: {percent(share)} of {column.rows:,} values are null, the contract allows {percent(rule.nulls)}"
    )
    return [Finding(column.name, "contract", share, rule.nulls, share, rule.nulls, level, text)]


def _range(column: ColumnProfile, rule: ColumnRule, level: Level) -> list[Finding]:
    findings = []
    low, high = rule.range or (None, None)
    for end, limit, value in (("least", low, column.minimum), ("largest", high, column.maximum)):
        if limit is None or value is None:
            continue
        order = _order(value, limit, end, TIMES.match(column.type) is not None)
        if order is None:
            text = f"{column.name}: the contract's limit {limit!r} cannot be compared with values such as {value!r}"
        elif order < 0 if end == "least" else order > 0:
            word = "below" if end == "least" else "above"
            text = f"{column.name}: the {end} value is {shown(value)}, {word} the contract's limit {shown(limit)}"
        else:
            continue
        distance = abs(value - limit) if not isinstance(value, str) and not isinstance(limit, str) else 1.0
        findings.append(Finding(column.name, "contract", value, limit, float(distance), 0.0, level, text))
    if rule.range and column.infinite and not any(isinstance(limit, str) for limit in rule.range):
        share = column.infinite / column.rows
        text = f"{column.name}: {column.infinite:,} values are infinite, the contract has a range"
        findings.append(Finding(column.name, "contract", share, 0.0, share, 0.0, level, text))
    return findings


def _order(value: Any, limit: object, end: str, times: bool) -> int | None:
    """-1 for a value below the limit, 1 for one above, else 0; None where the two cannot be compared.

    Texts of `times` are compared as times. A day (a month, a year) as the largest value has all its times.

    >>> _order("2020-09-13T12:26:00", "2020-09-13 13:00:00", "least", True), _order(7, 5, "largest", False)
    (-1, 1)
    >>> [_order(f"2020-09-{day}T12:26:00", "2020-09-13", "largest", True) for day in (12, 13, 14)]
    [-1, 0, 1]
    >>> _order("2020-09-13", "13.09.2020", "least", True), _order(7, "5", "least", False)
    (None, None)
    """
    if isinstance(limit, str) != isinstance(value, str):
        return None
    if isinstance(limit, str) and times:
        if bool(CLOCK.match(value)) != bool(CLOCK.match(limit)):
            return None
        value, limit = _moment(value), _moment(limit)
        if value is None or limit is None:
            return None
        if end == "largest" and np.datetime_data(limit.dtype)[0] in ("Y", "M", "W", "D") and limit <= value < limit + 1:
            return 0
    return int(value > limit) - int(value < limit)


def _moment(text: str) -> np.datetime64 | None:
    """The moment of an ISO text (in UTC), of a time of the day that of 1970-01-01; None for another text."""
    plain = text.strip().removesuffix("Z").removesuffix("+00:00")
    try:
        moment = np.datetime64(f"1970-01-01T{plain}" if CLOCK.match(plain) else plain)
    except ValueError:
        return None
    return None if np.isnat(moment) else moment


def _domain(column: ColumnProfile, rule: ColumnRule, level: Level) -> CheckedValues:
    if rule.values is None or not column.values:
        return CheckedValues([], [])
    if not column.top_exact:
        why = "it has too many distinct values to count each"
        return CheckedValues([], [f"{column.name}: its domain in the contract could not be checked exactly: {why}"])
    domain = {_key(value) for value in rule.values}
    strange = [(value, count) for value, count in column.top if _key(value) not in domain]
    notes = []
    if len(column.top) < round(column.distinct):
        notes.append(f"{column.name}: its domain was checked over its {len(column.top)} most frequent values only")
    if not strange:
        return CheckedValues([], notes)
    share = sum(count for _, count in strange) / column.rows
    values = ", ".join(f"{value!r} ({count:,})" for value, count in strange[:5]) + (", .." if len(strange) > 5 else "")
    known = list(map(str, rule.values))
    hint = near(str(strange[0][0]), known)
    text = f"{column.name}: {percent(share)} of the rows have values outside of the contract's domain: {values}"
    text += f" ({hint.rstrip('?')})" if hint.startswith("did") else ""
    shown_values = [value for value, _ in strange[:5]]
    finding = Finding(column.name, "contract", shown_values, known[:100], share, 0.0, level, text)
    return CheckedValues([finding], notes)


def _key(value: str | float) -> str:
    """Values of a YAML file and of a profile by one name: true is True, 1 is 1.0."""
    if isinstance(value, str):
        return f"text {value}"
    return f"number {float(value)}"


def percent(share: float) -> str:
    """
    >>> percent(0.5), percent(0.00012), percent(0.123456), percent(0.0), percent(1e-9), percent(474.0)
    ('50 %', '0.012 %', '12.3 %', '0 %', '< 0.001 %', '47,400 %')
    """
    if 0 < share < 1e-5:
        return "< 0.001 %"
    return f"{100 * share:,.0f} %" if share >= 10 else f"{100 * share:.3g} %"


def shown(value: str | float | None) -> str:
    """A value as short text, numbers with separators."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return str(value)
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 10_000 else f"{value:.4g}"


# a first contract


def proposed(profile: Profile, source: str) -> str:
    """A contract as YAML with comments, as a night's profile suggests it: a place to begin, to be read by a person."""
    lines = [
        f"# A contract, proposed by `rowmill contract` from {profile.rows:,} rows of {source}.",
        "# Read it, fix it, and name it in the job: `contract: contract.yaml`. evolve: take it and say so;",
        "# freeze: refuse the night; discard_column: read the source as if the column were not there.",
        "new_columns: evolve",
        "missing_columns: freeze",
        "retyped_columns: freeze",
        "columns:" + ("" if profile.types else " {}"),
    ]
    for name, dtype in sorted(profile.types.items()):
        lines.append(f"  {quoted(name)}:")
        column = profile.columns.get(name)
        if column is None:
            lines.append(f"    type: {quoted(dtype)}  # the job does not read this column: a change is only reported")
            lines += ["    missing: evolve", "    retyped: evolve"]
            continue
        lines.append(f"    type: {quoted(column.type)}")
        share = column.nulls / column.rows if column.rows else 0.0
        lines.append(f"    nulls: {_allowed(share):g}  # {percent(share)} were null")
        lines += [f"    {line}" for line in _limits(column)]
    return "\n".join(lines) + "\n"


def _allowed(share: float) -> float:
    """Twice the share of nulls and one point more, with two digits; 0 stays 0, 1 is the most."""
    return min(1.0, float(f"{2 * share + 0.01:.2g}")) if share else 0.0


def _limits(column: ColumnProfile) -> list[str]:
    """The domain of a column with few values, the range of another one, or what was seen, as a comment."""
    few = column.top_exact and len(column.top) >= round(column.distinct) and 0 < len(column.top) <= MOST_VALUES
    if few and column.top:
        return [f"values: [{', '.join(quoted(value) for value, _ in column.top)}]"]
    low, high = column.minimum, column.maximum
    distinct = ("" if column.is_distinct_known else "at least ") + f"{round(column.distinct):,} distinct values"
    seen = [f"# {distinct}" + (f", {low} .. {high}" if low is not None else "")]
    if low is None or high is None or isinstance(low, str) or isinstance(high, str):
        return seen
    if column.infinite or not math.isfinite(high - low):
        return seen
    if column.type.startswith(("int", "uint")) and column.distinct > 10_000:
        return [f"# {distinct}, {shown(low)} .. {shown(high)}: ids grow, so no range is proposed"]
    ends = f"[{_rounded(low, False)}, {_rounded(high, True)}]"
    return [f"range: {ends}  # {distinct}, {shown(low)} .. {shown(high)}"]


def _rounded(value: float, up: bool) -> str:
    """A round number beyond an extreme: 0 where it has no sign on that side, else twice its size to one digit.

    YAML reads a number with an exponent as text unless it has a point.

    >>> _rounded(3.2, False), _rounded(199.0, True), _rounded(-7, False), _rounded(-7, True), _rounded(1e-7, True)
    ('0', '400', '-20', '0', '2.0e-07')
    """
    if (value >= 0) != up or value == 0:
        return "0"
    power = 10.0 ** math.floor(math.log10(2 * abs(value)))
    rounded = math.copysign(math.ceil(2 * abs(value) / power) * power, value)
    text = f"{rounded:.15g}"
    return text if "." in text else text.replace("e", ".0e")


def quoted(value: object) -> str:
    """A value as YAML in one line.

    >>> quoted("a"), quoted("no"), quoted(True), quoted("1:2"), quoted(7)
    ('a', "'no'", 'true', "'1:2'", '7')
    """
    import yaml

    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
