"""One schema for all files of a source: columns are united by name, types that grew by the wider type.

Files may disagree about columns that are not read. So a disagreement is not an error here: it is an `Apart`, which is
raised when its column is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

import pyarrow as pa

from tasks.core.dtypes import dtype_name, is_list, parse_dtype, plain_type, schema_advice, size_property_of
from tasks.core.plan import Plan, ReadOptions
from tasks.core.schema import Column, Schema, check_names
from tasks.engines.convert.type_widening import widest
from tasks.errors import DataError, JobError, near
from tasks.sources.formats.survey import NUMBER_TEXTS, Apart, Inspected

# in a plan's options
APART = "apart"
ABSENT = "absent"
GROWN = "grown"
RECOGNISED = "recognised"
FILTER_NOTE = "filter_note"  # in a plan's options: what the filter leaves out by statistics, in a sentence


@dataclass(frozen=True)
class United:
    """The columns of all files, in the order in which the files first have them.

    `absent` are the columns that a file lacks, by the number of the file; `apart` has the error for a column that files
    disagree about, or that shares its name with another one of its file, `grown` a sentence for a column that is read
    in a wider type than that of some files.
    """

    schema: Schema
    absent: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    apart: Mapping[str, Apart] = field(default_factory=dict)
    grown: Mapping[str, str] = field(default_factory=dict)

    def options(self) -> ReadOptions:
        """The plan's options for it, as plain values; empty for files that agree."""
        absent = {str(number): list(names) for number, names in self.absent.items()}
        every = {ABSENT: absent, APART: {n: list(a) for n, a in self.apart.items()}, GROWN: dict(self.grown)}
        return {name: value for name, value in every.items() if value}

    def with_outside(
        self, outside: Mapping[str, Sequence[str]], paths: Sequence[str], missing: Literal["error", "null"]
    ) -> United:
        """The same with the columns of folders' names that some files are in no folder of: they lack the column."""
        absent = {number: [*names] for number, names in self.absent.items()}
        apart = dict(self.apart)
        for name, those in ((name, those) for name, those in outside.items() if those):
            for number in (number for number, path in enumerate(paths) if path in {*those}):
                absent.setdefault(number, []).append(name)
            if missing == "error":
                why = f"the folders of other files name it ({name}=..), and this file is in no such folder"
                do = "move the file into one, set source.missing: null to read nulls there, or leave the file out"
                apart[name] = (missing_text(name), those[0], why, do)
        return replace(self, absent={number: tuple(names) for number, names in absent.items()}, apart=apart)

    @property
    def on_host(self) -> set[str]:
        """The columns that no reader of the GPU may read: it expects every file to have them, in one type."""
        return {*self.apart, *self.grown, *(name for names in self.absent.values() for name in names)}


def unite_files(
    inspected: Sequence[Inspected],
    declared: dict[str, str],
    null_types: Mapping[str, pa.DataType] = MappingProxyType({}),
    missing: Literal["error", "null"] = "error",
    folders: Collection[str] = (),
) -> United:
    """Unite the columns of all files by name; `declared` types replace those of the files.

    A column of nothing but nulls (type null) takes the type that it has in another file, string if it has none. What
    the names of `folders` say goes before columns of files. `missing` says whether a column that a file lacks is null.
    """
    first = inspected[0]
    check_names(first.schema.names, first.file.path)
    columns = _unite_types(inspected, declared, folders)
    types = columns.types | _parse_declared_types(declared, columns.types, first.file.path)
    absent = _absent(inspected, types)
    if missing == "error":
        for number, names in absent.items():
            for name in names:
                there = columns.origin.get(name, first.file.path)
                columns.apart.setdefault(name, _lacking(name, inspected[number], there))
    types = {n: null_types.get(n, t) if pa.types.is_null(t) else t for n, t in types.items()}
    sizes = _collect_fixed_sizes(inspected, declared)
    schema = Schema(Column(name, _without_null(dtype), properties=sizes.get(name, {})) for name, dtype in types.items())
    return United(schema, absent, columns.apart, columns.grown)


@dataclass
class UnitedTypes:
    """The columns of the files so far, each in a type that holds its values in all of them; `origin` is the file that
    the type is of, `apart` and `grown` are as in `United`."""

    apart: dict[str, Apart]
    grown: dict[str, str]
    types: dict[str, pa.DataType] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, here: pa.DataType, path: str) -> None:
        """Add the type of a known column in one more file."""
        before = self.types[name]
        both = _either(before, here)
        if both is None:
            self.apart[name] = _different(name, here, path, before, self.origin[name])
            return
        if _grew(both, before) or _grew(both, here):
            self.grown[name] = (
                f"column {name!r} is {dtype_name(here)} in {path}, {dtype_name(before)} in "
                f"{self.origin[name]}: read as {dtype_name(both)}"
            )
        if both == here != before:
            self.origin[name] = path
        self.types[name] = both


def _unite_types(inspected: Sequence[Inspected], declared: Collection[str], folders: Collection[str]) -> UnitedTypes:
    """Unite the types of the files' columns, file after file; those of `declared` columns do not matter."""
    apart: dict[str, Apart] = {}
    for item in inspected:
        apart = {**item.repeated, **apart}
    grown = {name: text for name, text in inspected[0].grown.items() if name not in declared}
    columns = UnitedTypes(apart, grown)
    seen = None
    for item in inspected:
        if item.schema == seen:  # most files are like the one before
            continue
        seen = item.schema
        for column in item.schema:
            name = column.name
            if name in folders:
                continue
            here = plain_type(column.type)
            if name not in columns.types:
                columns.types[name] = here
                columns.origin[name] = item.file.path
            elif name not in declared and name not in columns.apart:
                columns.add(name, here, item.file.path)
    return columns


def _collect_fixed_sizes(inspected: Sequence[Inspected], declared: Collection[str]) -> dict[str, dict[str, int]]:
    """By column that is not declared, the property of lists that have the same length in all files."""
    written: dict[str, set[pa.DataType]] = {}
    for name, dtype in {(f.name, f.type) for item in inspected for f in item.schema if f.name not in declared}:
        written.setdefault(name, set()).add(dtype)
    return {name: size_property_of(dtypes) for name, dtypes in written.items()}


def _absent(inspected: Sequence[Inspected], types: Mapping[str, pa.DataType]) -> dict[int, tuple[str, ...]]:
    absent = {}
    for number, item in enumerate(inspected):
        if len(item.schema) < len(types):
            there = {*item.schema.names}
            absent[number] = tuple(name for name in types if name not in there)
    return absent


def _different(name: str, here: pa.DataType, path: str, dtype: pa.DataType, first: str) -> Apart:
    return (
        f"column {name!r} has different types",
        path,
        f"{dtype_name(here)} here, {dtype_name(dtype)} in {first}",
        in_one_type(name, dtype, here),
    )


def in_one_type(name: str, *dtypes: pa.DataType) -> str:
    """What to do with files that have a column in two types."""
    wide = widest(list(dtypes))
    if pa.uint64() in dtypes and wide == pa.int64():  # which does not hold all of them
        wide = pa.string()
    elif wide == pa.string() and wide not in dtypes:
        return "write the files with one type, or leave some out of source.path"
    return f"write the files with one type, or give it: {schema_advice(name, wide)}"


def _lacking(name: str, item: Inspected, first: str) -> Apart:
    return (
        missing_text(name),
        item.file.path,
        f"{first} has it; {near(name, item.schema.names)}",
        "set source.missing: null to read nulls there, write the files with the same columns, or leave the file out",
    )


def _parse_declared_types(declared: dict[str, str], types: dict[str, pa.DataType], path: str) -> dict[str, pa.DataType]:
    for name in declared:
        if name not in types:
            raise JobError(f"source.schema names a column {name!r} that is not there", where=path, do=near(name, types))
    return {name: plain_type(parse_dtype(dtype)) for name, dtype in declared.items()}


def _either(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """The type that holds the values of both: null takes the other type; None for a text and a number.

    >>> _either(pa.int32(), pa.int64()), _either(pa.float32(), pa.int8()), _either(pa.string(), pa.int8())
    (DataType(int64), DataType(double), None)
    """
    if pa.types.is_null(a) or a == b:
        return b
    if pa.types.is_null(b):
        return a
    if is_list(a) and is_list(b) and (leaf := _either(a.value_type, b.value_type)) is not None:
        return pa.list_(leaf)
    if _is_number(a) and _is_number(b):
        if {a, b} <= {pa.float16(), pa.float32(), pa.float64()}:
            return max(a, b, key=lambda dtype: dtype.bit_width)
        wide = widest([a, b])
        unsigned = pa.uint64() in (a, b) and wide == pa.int64()  # int64 does not hold all of them
        return None if unsigned else wide
    if _is_time(a) and _is_time(b):
        zones = {t.tz for t in (a, b) if pa.types.is_timestamp(t)}
        return widest([a, b]) if len(zones) == 1 and pa.date64() not in (a, b) else None
    return None


def _grew(both: pa.DataType, dtype: pa.DataType) -> bool:
    """Whether values of a type are read in another one; a list of nulls only has no type yet."""
    while is_list(both) and is_list(dtype):
        both = both.value_type
        dtype = dtype.value_type
    return both != dtype and not pa.types.is_null(dtype)


def _is_number(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_integer(dtype) or pa.types.is_floating(dtype))


def _is_time(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(dtype) or pa.types.is_date(dtype))


def _without_null(dtype: pa.DataType) -> pa.DataType:
    if is_list(dtype):
        return pa.list_(_without_null(dtype.value_type))
    return pa.string() if pa.types.is_null(dtype) else dtype


# plans whose files disagree


def check_together(plan: Plan, columns: Iterable[str]) -> None:
    """The DataError of the first of the columns that the files of a plan disagree about."""
    apart = plan.options.get(APART, {})
    for name in columns:
        if name in apart:
            what, where, why, do = apart[name]
            raise DataError(what, where=where, why=why, do=do)


def differ(plan: Plan) -> bool:
    """Whether files of a plan differ in their columns: what the plan says of them depends on who uses which."""
    return not plan.options.keys().isdisjoint((APART, ABSENT, GROWN, NUMBER_TEXTS))


def without_unused(plan: Plan, used: Collection[str]) -> Plan:
    """The plan without the columns that its files disagree about; a DataError for one that is used."""
    check_together(plan, [name for name in plan.schema if name in used])
    apart = plan.options.get(APART, {})
    columns = [column for column in plan.schema.columns if column.name not in apart]
    return replace(plan, schema=Schema(columns)) if apart else plan


def with_missing(plan: Plan, rules: Mapping[str, str]) -> Plan:
    """The plan under a contract's rules for columns that some files lack: `evolve` reads nulls there, `freeze` refuses
    the first such column by a DataError that names the file. The rules go before `source.missing`."""
    apart = dict(plan.options.get(APART, {}))
    for number, names in plan.options.get(ABSENT, {}).items():
        for name in names:
            if rules.get(name) == "freeze":
                raise DataError(
                    f"column {name!r} is missing in a file, and the contract forbids that (freeze)",
                    where=plan.files[int(number)].path,
                    why="other files have it",
                    do="fix the file, or allow it in the contract: missing: evolve reads nulls there",
                )
            if rules.get(name) == "evolve" and apart.get(name, [""])[0] == missing_text(name):
                del apart[name]
    options = {**plan.options, APART: apart} if apart else {k: v for k, v in plan.options.items() if k != APART}
    return replace(plan, options=options)


def missing_text(name: str) -> str:
    return f"column {name!r} is missing in a file"


def uniting_notes(plan: Plan, used: Collection[str]) -> list[str]:
    """A sentence for each setting that a file showed, for row groups that the filter leaves out, and for each used
    column that some files lack, or have in a narrower type, or whose numbers stay text."""
    texts = [*plan.options.get(NUMBER_TEXTS, {}).items(), *plan.options.get(GROWN, {}).items()]
    notes = [*plan.options.get(RECOGNISED, ()), *plan.options.get(FILTER_NOTE, ())]
    notes += [text for name, text in texts if name in used and name in plan.schema]
    absent: dict[str, list[str]] = {}
    for number, names in plan.options.get(ABSENT, {}).items():
        for name in names:
            if name in used and name in plan.schema:
                absent.setdefault(name, []).append(plan.files[int(number)].path)
    for name, paths in absent.items():
        more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
        notes.append(f"column {name!r} is missing in {paths[0]}{more} of {len(plan.files):,} files: read as null there")
    return notes
