"""The contract of a source: types, nulls, domains and ranges of its columns, and what happens to others.

The words are those of dlt (evolve, freeze, discard) and of TensorFlow Data Validation (domain). A contract is checked
twice: names and types before any row is read (here), values over all rows that were read (`tasks.gate`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import Field, ValidationError, field_validator, model_validator

from tasks.core.dtypes import NAMED, NESTED, dtype_name, kind_of, leaf_type, list_field_paths, parse_dtype
from tasks.core.schema import Column, Schema
from tasks.core.settings import Section
from tasks.errors import DataError, JobError, RowmillError, mistakes, near, place_text, visible

KINDS = ("number", "string", "bool", "time", "list")
Rule = Literal["evolve", "freeze", "discard_column"]
TIMES = re.compile(r"(list<)*(timestamp|date|time|duration)")  # names of types
CLOCK = re.compile(r"\s*\d{2}:\d{2}")  # times of the day
Value = bool | int | float | str


def compare_to_limit(value: Any, limit: object, end: str, times: bool) -> int | None:
    """-1 for a value below the limit, 1 for one above, else 0; None where the two cannot be compared.

    Texts of `times` are compared as times. A day (a month, a year) as the largest value has all its times.

    >>> compare_to_limit("2020-09-13T12:26:00", "2020-09-13 13:00:00", "least", True)
    -1
    >>> compare_to_limit(7, 5, "largest", False)
    1
    >>> [compare_to_limit(f"2020-09-{day}T12:26:00", "2020-09-13", "largest", True) for day in (12, 13, 14)]
    [-1, 0, 1]
    >>> compare_to_limit("2020-09-13", "13.09.2020", "least", True), compare_to_limit(7, "5", "least", False)
    (None, None)
    """
    if isinstance(limit, str) != isinstance(value, str):
        return None
    if isinstance(limit, str) and times:
        if bool(CLOCK.match(value)) != bool(CLOCK.match(limit)):
            return None
        value = moment_of(value)
        limit = moment_of(limit)
        if value is None or limit is None:
            return None
        if end == "largest" and np.datetime_data(limit.dtype)[0] in ("Y", "M", "W", "D") and limit <= value < limit + 1:
            return 0
    return int(value > limit) - int(value < limit)


def moment_of(text: str) -> np.datetime64 | None:
    """The moment of an ISO text (in UTC), of a time of the day that of 1970-01-01; None for another text."""
    plain = text.strip().removesuffix("Z").removesuffix("+00:00")
    try:
        moment = np.datetime64(f"1970-01-01T{plain}" if CLOCK.match(plain) else plain)
    except ValueError:
        return None
    return None if np.isnat(moment) else moment


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
        times = all(isinstance(end, str) and moment_of(end) is not None for end in ends)
        if low is not None and high is not None and (compare_to_limit(low, high, "largest", times) or 0) > 0:
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


class ContractNote(NamedTuple):
    """A column that is new, missing or of another type, and what the contract does with it, as a sentence."""

    column: str
    action: Rule
    text: str


class UnderContract(NamedTuple):
    """The schema that is read, and a note for each column that is new, missing or of another type."""

    schema: Schema
    notes: tuple[ContractNote, ...]


def apply_contract(schema: Schema, contract: Contract) -> UnderContract:
    """Apply the rules of a contract for columns to a schema.

    A source with notes of `freeze` is refused (`check_contract`); those of `evolve` and `discard_column` say what was
    taken or left out. Columns of rowmill's own (`__row__`) are not looked at. A contract may name fields of structs by
    their paths (`events.aid`), in place of the column; each of the other fields is new then. A JobError where
    `discard_column` is to leave out a field: only whole columns can be left out.
    """
    notes: list[ContractNote] = []
    names = [name for name in schema if not name.startswith("__")]
    # A field of a struct is a column of its own where it has another type than in the file.
    whole = [schema[name] for name in names if schema.root(name) is None]
    for column in whole:
        notes += _compare_to_contract(column, schema, contract)
    left_out = {note.column for note in notes if note.action == "discard_column"}
    columns = [column for column in schema.columns if not {column.name, schema.root(column.name)} & left_out]
    there = [*names, *(path for column in whole for path in list_field_paths(column.dtype, column.name))]
    for name, rule in contract.columns.items():
        if name not in schema:
            notes.append(_missing(name, rule.missing or contract.missing_columns, there))
    return UnderContract(Schema(columns), tuple(notes))


def _compare_to_contract(column: Column, schema: Schema, contract: Contract) -> list[ContractNote]:
    """Note what is new or of another type: a column, or fields of one whose fields are in the contract."""
    rule = contract.columns.get(column.name)
    paths = list_field_paths(column.dtype, column.name)
    ruled = [path for path in paths if path in contract.columns]
    notes = []
    if rule is not None:
        notes += _compare_type(column, rule, contract)
    elif not ruled:
        notes.append(_note(column.name, contract.new_columns, f"column {_describe(column)} is not in the contract"))
    for path in paths:
        field = schema[path]
        if path in ruled:
            of_field = _compare_type(field, contract.columns[path], contract)
        elif rule is None and ruled and not any(_is_within(path, one) or _is_within(one, path) for one in ruled):
            text = f"field {_describe(field)} is not in the contract"
            of_field = [_note(path, contract.new_columns, text)]
        else:
            continue
        notes += of_field
        if any(note.action == "discard_column" for note in of_field):
            raise JobError(
                "a field of a struct cannot be left out",
                where=f"the contract, {path}",
                why=f"{of_field[0].text}: discard_column leaves out whole columns",
                do=f"write evolve or freeze for it (columns: {{{path}: ..}}, new_columns), or leave out {column.name}",
            )
    return notes


def _is_within(path: str, around: str) -> bool:
    return path.startswith(f"{around}.")


def _describe(column: Column) -> str:
    return f"{column.name!r} ({dtype_name(column.dtype)})"


def _compare_type(column: Column, rule: ColumnRule, contract: Contract) -> list[ContractNote]:
    if rule.type is None or fits(column.dtype, rule.type):
        return []
    text = f"column {column.name!r} is {dtype_name(column.dtype)}, the contract says {rule.type}"
    return [_note(column.name, rule.retyped or contract.retyped_columns, text)]


def check_contract(schema: Schema, contract: Contract, where: str) -> UnderContract:
    """`apply_contract` for a stage: a DataError that names every column which the contract freezes."""
    allowed = apply_contract(schema, contract)
    frozen = [note.text for note in allowed.notes if note.action == "freeze"]
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


def _note(column: str, action: Rule, text: str) -> ContractNote:
    return ContractNote(column, action, visible(f"{text}: {ACTIONS[action]}"))


def _missing(name: str, action: Literal["evolve", "freeze"], there: Sequence[str]) -> ContractNote:
    hint = near(name, there)
    text = f"the source has no column {name!r}" + (f" ({hint.rstrip('?')})" if hint.startswith("did") else "")
    if action == "evolve":
        return ContractNote(name, action, visible(f"{text}: the contract allows that"))
    return _note(name, action, text)
