"""Which rows a request leaves out beyond its filter, and the column of weights that down-sampling adds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from tasks.core.dtypes import dtype_name, schema_advice
from tasks.core.schema import Column, Schema, Tags, check_names, check_ordered
from tasks.core.settings import Source, SplitRule
from tasks.core.strict_json import JsonObject
from tasks.engines.expression.syntax import parse
from tasks.engines.expression.typing import type_expression
from tasks.errors import JobError, RowmillError
from tasks.graph.row_rules import (
    LATER_FIRST,
    Division,
    Downsampling,
    RowRules,
    Splitting,
    moment_conditions,
    needs_unit,
    with_unit,
)
from tasks.job.request import SavedPlans


def downsampling_of(source: Source) -> Downsampling | None:
    """Make the down-sampling of a source; None without one."""
    section = source.downsample
    return Downsampling(section.where, section.fraction, section.weight, section.seed) if section else None


def row_rules(source: Source, plans: SavedPlans, split: str) -> RowRules:
    """Make the rules for rows of a split beyond `source.filter`."""
    splitting = splitting_of(source, split, plans.division)
    return RowRules(plans.read_repeated_rows(split), splitting, downsampling_of(source), strict=source.strict)


def describe_rules(source: Source, repeated: int | None, division: Division | None) -> dict[str, JsonObject]:
    """Describe `source.unique`, `split` and `downsample` for a manifest, without what a pass counts.

    `repeated` rows are left out by unique (None: not looked for); `division` is what a look at all rows has found of
    the splits.
    """
    unique = None if repeated is None else source.unique
    sections = {"unique": unique, "split": source.split, "downsample": source.downsample}
    rules = {name: section.model_dump(mode="json") for name, section in sections.items() if section}
    if "unique" in rules:
        rules["unique"]["rows"] = repeated
    if division:
        rules["split"]["divided"] = {**division.figures, "text": division.text}
    return rules


def add_rule_counts(rules: Mapping[str, JsonObject], left_out: Mapping[str, int]) -> dict[str, JsonObject]:
    """Select the rules that hold in a pass, and add the rows that each left out.

    A rule that the pass does not count did not hold in it, such as down-sampling in a pass over valid.
    """
    counts = {"split": left_out.get("other_splits"), "downsample": left_out.get("downsampled")}
    known = {name: rule if name == "unique" else {**rule, "rows": counts[name]} for name, rule in rules.items()}
    known = {name: rule for name, rule in known.items() if name == "unique" or rule["rows"] is not None}
    if "split" in known and "null_in_train" in left_out:
        known["split"]["null_in_train"] = left_out["null_in_train"]
    return known


def splitting_of(source: Source, split: str, division: Division | None = None) -> Splitting | None:
    """Make the rule for which rows belong to a split of the source; None if the source is not divided.

    `division` is what a pass over all rows has found, if the rule needs one.

    >>> rule = {"by": "time", "column": "t", "valid": 5, "test": 9}
    >>> splitting_of(Source(path="x", split=rule), "valid").conditions
    (('test', "col('t') >= 9"), ('valid', "col('t') >= 5"))
    """
    rule = source.split
    if rule is None:
        return None
    rule = with_unit(rule, division.figures.get("unit") if division else None)
    if rule.looks_at_all_rows:
        known = division or Division()
        return Splitting(
            split,
            column=rule.column,
            keys=tuple(rule.together),
            cuts=known.cuts,
            sets=known.sets,
            cut_type=known.cut_type,
            looks_back=rule.looks_back,
        )
    if rule.by == "time":
        return Splitting(split, moment_conditions(rule), rule.column, looks_back=rule.looks_back)
    ends = [(name, value) for name in LATER_FIRST if (value := getattr(rule, name)) is not None]
    if rule.by == "column":
        values = [(name, value if isinstance(value, list) else [value]) for name, value in ends]
        return Splitting(
            split, tuple((name, f"col({rule.column!r}) in {value!r}") for name, value in values), rule.column
        )
    shares = tuple((name, float(share)) for name, share in reversed(ends))
    return Splitting(split, shares=shares, keys=tuple(rule.together), seed=rule.seed)


def check_splitting(schema: Schema, source: Source) -> None:
    """Raise a JobError for a column that does not exist, and for values that the column's type cannot be compared
    with."""
    rule = source.split
    if rule is None:
        return
    check_ordered(schema, split_columns(source), "source.split")
    check_shares(schema, rule)
    if rule.unit and (column := schema[rule.column or ""]).kind != "number":
        what = f"unit is for a column of numbers, and {column.name!r} is {dtype_name(column.dtype)}"
        raise JobError(what, where="source.split.unit", do="leave it out")
    if needs_unit(schema, rule):
        rule = with_unit(rule, "s")
    try:
        moments = moment_conditions(rule) if rule.by == "time" and not rule.by_shares else ()
    except ValueError as error:
        raise JobError(
            "valid and test are not times in ISO 8601",
            where="source.split",
            why=str(error),
            do="write them as 2020-01-31 or 2020-01-31T12:30:00",
        ) from None
    splitting = Splitting("train", moments) if moments else splitting_of(source, "train")
    for name, condition in splitting.parsed if splitting else ():
        try:
            type_expression(condition, schema)
        except RowmillError as error:
            is_value = moments or (rule.by == "column" and schema[str(rule.column)].kind in ("number", "string"))
            alike = is_value and ("cast(" in error.do or "another column" in error.do)
            do = _explain_values(schema[str(rule.column)]) if alike else error.do
            raise type(error)(error.what, where=f"source.split.{name}: {error.where}", why=error.why, do=do) from None


def _explain_values(column: Column) -> str:
    """Explain how to give moments or values of a column of another type: as values, not expressions."""
    if pa.types.is_decimal(column.dtype):
        return f"read the column as a number: {schema_advice(column.name, pa.float64())}"
    how = {"number": "a number, as the column has", "time": "a time: '2026-11-01'", "string": "a text in quotes"}
    return f"give {how[column.kind]}" if column.kind in how else "choose a column of times or numbers"


def check_shares(schema: Schema, rule: SplitRule) -> None:
    """Raise a JobError for a column by whose values no shares of the rows can be cut off."""
    if not rule.by_shares:
        return
    assert rule.column is not None
    column = schema[rule.column]
    if column.kind not in ("number", "time") or pa.types.is_decimal(column.dtype):
        what = f"shares by time need a column of times or numbers, and {rule.column!r} is {dtype_name(column.dtype)}"
        do = f"read it as a time: {schema_advice(rule.column, pa.timestamp('us'))} for ISO 8601"
        raise JobError(what, where="source.split", do=do)


def split_columns(source: Source) -> tuple[str, ...]:
    """List the columns on which `source.split` depends."""
    rule = source.split
    return tuple(dict.fromkeys([*([rule.column] if rule.column else []), *rule.together])) if rule else ()


@dataclass(frozen=True)
class Look:
    """A look at all rows before anything is learned: its purpose and its columns. `by_keys`: the rows of each key are
    looked at together, so that these columns move. `noted` bytes of each row go to files meanwhile."""

    what: str
    columns: list[str]
    by_keys: bool = True
    noted: int = 0


def looks(source: Source, schema: Schema | None = None) -> list[Look]:
    """List the looks at all rows that ingest takes for `source.unique` and `source.split`, if the columns are known."""
    several = list[Look]()
    unique = source.unique
    rule = source.split
    if unique:
        names = dict.fromkeys([*unique.keys, *([unique.by] if unique.by else [])])
        several.append(Look("rows with equal keys", [*names]))
    if rule and schema and needs_unit(schema, rule):
        several.append(Look("the unit of times", [*split_columns(source)], by_keys=False))
    if rule and rule.looks_at_all_rows:
        what = "rows of each split" if rule.together else "moments at which splits begin"
        noted = 16 if rule.together and rule.by_shares else 0  # number and time
        several.append(Look(what, [*split_columns(source)], bool(rule.together), noted))
    return several


def condition_columns(source: Source, passes: bool = True) -> tuple[str, ...]:
    """List the columns that `source.filter`, `split` and `downsample` read.

    Without `passes`, those that every pass reads, once ingest knows the split of each row.
    """
    conditions = [source.filter, source.downsample.where if source.downsample else None]
    names = [name for text in conditions if text for name in parse(text).columns]
    rule = source.split
    by_number = rule is not None and rule.looks_at_all_rows and not (rule.by_shares and not rule.together)
    return tuple(dict.fromkeys([*names, *(() if by_number and not passes else split_columns(source))]))


def exact_columns(source: Source) -> set[str]:
    """List the columns whose values decide about rows other than by calculation: they keep the type of the fit."""
    conditions = [source.filter, source.downsample.where if source.downsample else None]
    parsed = [parse(text) for text in conditions if text]
    unique = [*source.unique.keys, *([source.unique.by] if source.unique.by else [])] if source.unique else []
    compared = [name for condition in parsed if not condition.in_float64 for name in condition.columns]
    return {*source.keys, *source.sort_by, *unique, *split_columns(source), *compared}


def with_weight(schema: Schema, source: Source) -> Schema:
    """Add the weight of down-sampling to the columns of a source; a JobError if the name is taken."""
    name = source.downsample.weight if source.downsample else None
    if name is None:
        return schema
    if name in schema:
        raise JobError(
            f"the source has a column {name!r} already",
            where="source.downsample.weight",
            why="the weight of each row is a new column",
            do="choose another name for it",
        )
    check_names([name], "source.downsample.weight")
    return Schema([*schema.columns, Column(name, pa.float32()).tagged(Tags.SAMPLE_WEIGHT)])
