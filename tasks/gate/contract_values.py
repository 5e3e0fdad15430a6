"""Checks what a run has read against the values of its contract, and proposes a first contract."""

from __future__ import annotations

import math
from typing import NamedTuple

from tasks.core.contract import TIMES, ColumnRule, Contract, compare_to_limit
from tasks.errors import near
from tasks.gate.verdict import Finding, Level
from tasks.profile.output_profile import ColumnProfile, Profile

MOST_VALUES = 50  # of a column whose domain `propose_contract` writes


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
        order = compare_to_limit(value, limit, end, TIMES.match(column.type) is not None)
        if order is None:
            text = f"{column.name}: the contract's limit {limit!r} cannot be compared with values such as {value!r}"
        elif order < 0 if end == "least" else order > 0:
            word = "below" if end == "least" else "above"
            known = format_limit(limit)
            text = f"{column.name}: the {end} value is {format_limit(value)}, {word} the contract's limit {known}"
        else:
            continue
        distance = abs(value - limit) if not isinstance(value, str) and not isinstance(limit, str) else 1.0
        findings.append(Finding(column.name, "contract", value, limit, float(distance), 0.0, level, text))
    if rule.range and column.infinite and not any(isinstance(limit, str) for limit in rule.range):
        share = column.infinite / column.rows
        text = f"{column.name}: {column.infinite:,} values are infinite, the contract has a range"
        findings.append(Finding(column.name, "contract", share, 0.0, share, 0.0, level, text))
    return findings


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


def format_limit(value: str | float | None) -> str:
    """A value as short text, numbers with separators."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return str(value)
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 10_000 else f"{value:.4g}"


# a first contract


def propose_contract(profile: Profile, source: str) -> str:
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
        lines.append(f"  {quote_yaml(name)}:")
        column = profile.columns.get(name)
        if column is None:
            lines.append(
                f"    type: {quote_yaml(dtype)}  # the job does not read this column: a change is only reported"
            )
            lines += ["    missing: evolve", "    retyped: evolve"]
            continue
        lines.append(f"    type: {quote_yaml(column.type)}")
        share = column.nulls / column.rows if column.rows else 0.0
        lines.append(f"    nulls: {_suggest_null_limit(share):g}  # {percent(share)} were null")
        lines += [f"    {line}" for line in _limits(column)]
    return "\n".join(lines) + "\n"


def _suggest_null_limit(share: float) -> float:
    """Twice the share of nulls and one point more, with two digits; 0 stays 0, 1 is the most."""
    return min(1.0, float(f"{2 * share + 0.01:.2g}")) if share else 0.0


def _limits(column: ColumnProfile) -> list[str]:
    """The domain of a column with few values, the range of another one, or what was seen, as a comment."""
    few = column.top_exact and len(column.top) >= round(column.distinct) and 0 < len(column.top) <= MOST_VALUES
    if few and column.top:
        return [f"values: [{', '.join(quote_yaml(value) for value, _ in column.top)}]"]
    low = column.minimum
    high = column.maximum
    distinct = ("" if column.is_distinct_known else "at least ") + f"{round(column.distinct):,} distinct values"
    seen = [f"# {distinct}" + (f", {low} .. {high}" if low is not None else "")]
    if low is None or high is None or isinstance(low, str) or isinstance(high, str):
        return seen
    if column.infinite or not math.isfinite(high - low):
        return seen
    if column.type.startswith(("int", "uint")) and column.distinct > 10_000:
        return [f"# {distinct}, {format_limit(low)} .. {format_limit(high)}: ids grow, so no range is proposed"]
    ends = f"[{_round_outward(low, False)}, {_round_outward(high, True)}]"
    return [f"range: {ends}  # {distinct}, {format_limit(low)} .. {format_limit(high)}"]


def _round_outward(value: float, up: bool) -> str:
    """A round number beyond an extreme: 0 where it has no sign on that side, else twice its size to one digit.

    YAML reads a number with an exponent as text unless it has a point.

    >>> _round_outward(3.2, False), _round_outward(199.0, True), _round_outward(-7, False), _round_outward(-7, True), _round_outward(1e-7, True)
    ('0', '400', '-20', '0', '2.0e-07')
    """
    if (value >= 0) != up or value == 0:
        return "0"
    power = 10.0 ** math.floor(math.log10(2 * abs(value)))
    rounded = math.copysign(math.ceil(2 * abs(value) / power) * power, value)
    text = f"{rounded:.15g}"
    return text if "." in text else text.replace("e", ".0e")


def quote_yaml(value: object) -> str:
    """A value as YAML in one line.

    >>> quote_yaml("a"), quote_yaml("no"), quote_yaml(True), quote_yaml("1:2"), quote_yaml(7)
    ('a', "'no'", 'true', "'1:2'", '7')
    """
    import yaml

    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
