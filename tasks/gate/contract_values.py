"""Checks what a run has read against the values of its contract, and proposes a first contract."""

from __future__ import annotations

import math
from typing import NamedTuple

from tasks.core.contract import TIMES, ColumnRule, Contract, compare_to_limit
from tasks.errors import near
from tasks.gate.verdict import Finding, Level
from tasks.profile.output_profile import ColumnProfile, Profile
from tasks.storage.documents import Value

# values of a column whose domain `propose_contract` writes
MOST_VALUES = 50
# integers with more distinct values are taken for ids, which grow: no range is proposed
MOST_DISTINCT_WITH_RANGE = 10_000
# unexpected values in a finding
SHOWN_VALUES = 5
# values of the contract's domain in a finding
SHOWN_DOMAIN = 100


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
        findings += _check_nulls(column, rule, level)
        findings += _check_range(column, rule, level)
        domain = _check_domain(column, rule, level)
        findings += domain.findings
        notes += domain.notes
    return CheckedValues(findings, notes)


def _make_finding(
    column: ColumnProfile, now: Value, limit: Value, figure: float, threshold: float, level: Level, text: str
) -> Finding:
    """Make the finding of one column. The contract's limit takes the place of the value of an earlier output."""
    return Finding(
        column=column.name,
        check="contract",
        now=now,
        before=limit,
        figure=figure,
        threshold=threshold,
        level=level,
        text=text,
    )


def _check_nulls(column: ColumnProfile, rule: ColumnRule, level: Level) -> list[Finding]:
    """Return a finding if the column has more nulls than its rule allows."""
    share = column.nulls / column.rows if column.rows else 0.0
    if rule.nulls is None or share <= rule.nulls:
        return []
    allowed = format_percent(rule.nulls)
    text = f"{column.name}: {format_percent(share)} of {column.rows:,} values are null, the contract allows {allowed}"
    return [_make_finding(column, share, rule.nulls, share, rule.nulls, level, text)]


def _check_range(column: ColumnProfile, rule: ColumnRule, level: Level) -> list[Finding]:
    """Return a finding for each end of the range that a value is beyond, and one for infinite numbers."""
    findings = []
    low, high = rule.range or (None, None)
    for end, limit, value in (("least", low, column.minimum), ("largest", high, column.maximum)):
        if limit is None or value is None:
            continue
        # -1, 0 or 1; None if the two cannot be compared
        comparison = compare_to_limit(value, limit, end, times=TIMES.match(column.type) is not None)
        is_lower_end = end == "least"
        is_outside = comparison is not None and (comparison < 0 if is_lower_end else comparison > 0)
        if comparison is None:
            text = f"{column.name}: the contract's limit {limit!r} cannot be compared with values such as {value!r}"
        elif is_outside:
            word = "below" if is_lower_end else "above"
            limit_text = format_value(limit)
            text = f"{column.name}: the {end} value is {format_value(value)}, {word} the contract's limit {limit_text}"
        else:
            continue
        distance = 1.0  # texts have no distance: any figure above the threshold, which is 0
        if not isinstance(value, str) and not isinstance(limit, str):
            distance = float(abs(value - limit))
        findings.append(_make_finding(column, value, limit, distance, 0.0, level, text))
    # Profiles leave infinite numbers out of their minimum and maximum.
    if rule.range and column.infinite and not any(isinstance(limit, str) for limit in rule.range):
        share = column.infinite / column.rows
        text = f"{column.name}: {column.infinite:,} values are infinite, the contract has a range"
        findings.append(_make_finding(column, share, 0.0, share, 0.0, level, text))
    return findings


def _check_domain(column: ColumnProfile, rule: ColumnRule, level: Level) -> CheckedValues:
    """Check that the values of a column belong to its domain; a note says where only the frequent ones were checked."""
    if rule.values is None or not column.values:
        return CheckedValues([], [])
    if not column.top_exact:
        why = "it has too many distinct values to count each"
        return CheckedValues([], [f"{column.name}: its domain in the contract could not be checked exactly: {why}"])
    domain = {_comparison_key(value) for value in rule.values}
    unexpected = [(value, count) for value, count in column.top if _comparison_key(value) not in domain]
    notes = []
    if len(column.top) < round(column.distinct):
        notes.append(f"{column.name}: its domain was checked over its {len(column.top)} most frequent values only")
    if not unexpected:
        return CheckedValues([], notes)
    share = sum(count for _, count in unexpected) / column.rows
    values = ", ".join(f"{value!r} ({count:,})" for value, count in unexpected[:SHOWN_VALUES])
    values += ", .." if len(unexpected) > SHOWN_VALUES else ""
    allowed = list(map(str, rule.values))
    hint = near(str(unexpected[0][0]), allowed)
    text = f"{column.name}: {format_percent(share)} of the rows have values outside of the contract's domain: {values}"
    if hint.startswith("did"):  # "did you mean ..?"; without a value that is near, the hint lists all of them
        text += f" ({hint.rstrip('?')})"
    shown_values = [value for value, _ in unexpected[:SHOWN_VALUES]]
    finding = _make_finding(column, shown_values, allowed[:SHOWN_DOMAIN], share, 0.0, level, text)
    return CheckedValues([finding], notes)


def _comparison_key(value: str | float) -> str:
    """Return a key under which equal values of a YAML file and of a profile are the same: 1 is 1.0, true is 1."""
    if isinstance(value, str):
        return f"text {value}"
    return f"number {float(value)}"


def format_percent(share: float) -> str:
    """Format a share for people.

    >>> format_percent(0.5), format_percent(0.00012), format_percent(0.123456)
    ('50 %', '0.012 %', '12.3 %')
    >>> format_percent(0.0), format_percent(1e-9), format_percent(474.0)
    ('0 %', '< 0.001 %', '47,400 %')
    """
    if 0 < share < 1e-5:
        return "< 0.001 %"
    return f"{100 * share:,.0f} %" if share >= 10 else f"{100 * share:.3g} %"


def format_value(value: str | float | None) -> str:
    """Format a value as short text, numbers with separators."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return str(value)
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 10_000 else f"{value:.4g}"


# a first contract


def propose_contract(profile: Profile, source: str) -> str:
    """Write a first contract, as YAML with comments, from the profile of a run; a person is to read and correct it."""
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
        lines.append(f"  {_quote_yaml(name)}:")
        column = profile.columns.get(name)
        if column is None:
            lines.append(
                f"    type: {_quote_yaml(dtype)}  # the job does not read this column: a change is only reported"
            )
            lines += ["    missing: evolve", "    retyped: evolve"]
            continue
        lines.append(f"    type: {_quote_yaml(column.type)}")
        share = column.nulls / column.rows if column.rows else 0.0
        lines.append(f"    nulls: {_suggest_null_limit(share):g}  # {format_percent(share)} were null")
        lines += [f"    {line}" for line in _propose_rule(column)]
    return "\n".join(lines) + "\n"


def _suggest_null_limit(share: float) -> float:
    """Double a share of nulls and add one percentage point, in two digits and at most 1; 0 stays 0."""
    return min(1.0, float(f"{2 * share + 0.01:.2g}")) if share else 0.0


def _propose_rule(column: ColumnProfile) -> list[str]:
    """Propose the domain of a column with few values, or the range of a numeric one; otherwise describe its values.

    The description is a comment. Ranges are for numbers that do not grow from batch to batch, as ids do.
    """
    has_all_values = column.top_exact and len(column.top) >= round(column.distinct)
    if has_all_values and 0 < len(column.top) <= MOST_VALUES:
        return [f"values: [{', '.join(_quote_yaml(value) for value, _ in column.top)}]"]
    low = column.minimum
    high = column.maximum
    distinct = ("" if column.is_distinct_known else "at least ") + f"{round(column.distinct):,} distinct values"
    description = [f"# {distinct}" + (f", {low} .. {high}" if low is not None else "")]
    if low is None or high is None or isinstance(low, str) or isinstance(high, str):
        return description
    if column.infinite or not math.isfinite(high - low):
        return description
    if column.type.startswith(("int", "uint")) and column.distinct > MOST_DISTINCT_WITH_RANGE:
        return [f"# {distinct}, {format_value(low)} .. {format_value(high)}: ids grow, so no range is proposed"]
    ends = f"[{_round_outward(low, up=False)}, {_round_outward(high, up=True)}]"
    return [f"range: {ends}  # {distinct}, {format_value(low)} .. {format_value(high)}"]


def _round_outward(value: float, up: bool) -> str:
    """Widen an extreme, since later batches vary: to twice its value, rounded up to one digit.

    It becomes 0 if 0 lies on that side of the values.

    The point before an exponent is for YAML, which reads `2e-07` as text.

    >>> _round_outward(3.2, False), _round_outward(199.0, True)
    ('0', '400')
    >>> _round_outward(-7, False), _round_outward(-7, True), _round_outward(1e-7, True)
    ('-20', '0', '2.0e-07')
    """
    if (value >= 0) != up or value == 0:
        return "0"
    power = 10.0 ** math.floor(math.log10(2 * abs(value)))
    rounded = math.copysign(math.ceil(2 * abs(value) / power) * power, value)
    text = f"{rounded:.15g}"
    return text if "." in text else text.replace("e", ".0e")


def _quote_yaml(value: object) -> str:
    """Write a value as YAML in one line.

    >>> _quote_yaml("a"), _quote_yaml("no"), _quote_yaml(True), _quote_yaml("1:2"), _quote_yaml(7)
    ('a', "'no'", 'true', "'1:2'", '7')
    """
    import yaml

    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
