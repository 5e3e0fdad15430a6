"""One schema for all files of a source: columns are united by name, types that grew by the wider type.

Files may disagree about columns that are not read. So a disagreement is not an error here: it is kept as an `Apart`,
the parts of an error, which is raised when the column is read.
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

# keys of a plan's options
APART = "apart"  # by column: its `Apart`
ABSENT = "absent"  # by the number of a file: the columns that it lacks
GROWN = "grown"  # by column: a sentence on the wider type in which it is read
RECOGNISED = "recognised"  # sentences on settings that were recognised from the first file
FILTER_NOTE = "filter_note"  # a sentence on the rows that the filter leaves out by the statistics of row groups


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
        """Return these facts as options of a plan, in plain values; empty for files that agree."""
        absent = {str(number): list(names) for number, names in self.absent.items()}
        every = {ABSENT: absent, APART: {n: list(a) for n, a in self.apart.items()}, GROWN: dict(self.grown)}
        return {name: value for name, value in every.items() if value}

    def with_files_outside_folders(
        self, outside: Mapping[str, Sequence[str]], paths: Sequence[str], missing: Literal["error", "null"]
    ) -> United:
        """Add what is known of the columns that folders name (country=DE/).

        `outside` has, by column, the files that lie in no such folder: they lack the column. `paths` are all files.
        """
        absent = {number: [*names] for number, names in self.absent.items()}
        apart = dict(self.apart)
        for name, files_outside in outside.items():
            if not files_outside:
                continue
            for number, path in enumerate(paths):
                if path in files_outside:
                    absent.setdefault(number, []).append(name)
            if missing == "error":
                why = f"the folders of other files name it ({name}=..), and this file is in no such folder"
                do = "move the file into one, set source.missing: null to read nulls there, or leave the file out"
                apart[name] = (_describe_missing(name), files_outside[0], why, do)
        return replace(self, absent={number: tuple(names) for number, names in absent.items()}, apart=apart)

    @property
    def on_host(self) -> set[str]:
        """The columns that must be read on the host: the GPU's reader expects them in every file, in one type."""
        return {*self.apart, *self.grown, *(name for names in self.absent.values() for name in names)}


def unite_files(
    inspected: Sequence[Inspected],
    declared: dict[str, str],
    null_types: Mapping[str, pa.DataType] = MappingProxyType({}),
    missing: Literal["error", "null"] = "error",
    folders: Collection[str] = (),
    table: pa.Schema | None = None,
) -> United:
    """Unite the columns of all files by name; `declared` types replace those of the files.

    Of a lake table, the columns of `table` come first, also those that no file has.

    A column of nothing but nulls (type null) takes the type that it has in another file, string if it has none. Columns
    that `folders` name take precedence over columns of the same name in files. A column that a file lacks is null there
    if `missing` is null; else it is an error.
    """
    first = inspected[0]
    check_names(first.schema.names, first.file.path)
    columns = _unite_types(inspected, declared, folders, table)
    types = columns.types | _parse_declared_types(declared, columns.types, first.file.path)
    absent = _find_absent(inspected, types)
    if missing == "error":
        for number, names in absent.items():
            for name in names:
                path_with_it = columns.origin.get(name, first.file.path)
                columns.apart.setdefault(name, _make_missing_conflict(name, inspected[number], path_with_it))
    types = {n: null_types.get(n, t) if pa.types.is_null(t) else t for n, t in types.items()}
    sizes = _collect_fixed_sizes(inspected, declared)
    schema = Schema(Column(name, _without_null(dtype), properties=sizes.get(name, {})) for name, dtype in types.items())
    return United(schema, absent, columns.apart, columns.grown)


@dataclass
class UnitedTypes:
    """The columns of the files so far, each in a type that holds its values in all of them.

    `origin` is, by column, the file from which the type comes; `apart` and `grown` are as in `United`.
    """

    apart: dict[str, Apart]
    grown: dict[str, str]
    types: dict[str, pa.DataType] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, here: pa.DataType, path: str) -> None:
        """Add the type of a known column in one more file."""
        before = self.types[name]
        common = _find_common_type(before, here)
        if common is None:
            self.apart[name] = _make_type_conflict(name, here, path, before, self.origin[name])
            return
        if _is_widened(before, common) or _is_widened(here, common):
            self.grown[name] = (
                f"column {name!r} is {dtype_name(here)} in {path}, {dtype_name(before)} in "
                f"{self.origin[name]}: read as {dtype_name(common)}"
            )
        if common == here and common != before:  # the type comes from this file
            self.origin[name] = path
        self.types[name] = common


def _unite_types(
    inspected: Sequence[Inspected], declared: Collection[str], folders: Collection[str], table: pa.Schema | None
) -> UnitedTypes:
    """Unite the types of the columns of `table` and of the files, file after file; those of `declared` columns do not
    matter."""
    apart: dict[str, Apart] = {}
    for item in inspected:
        apart = {**item.repeated, **apart}
    grown = {name: text for name, text in inspected[0].grown.items() if name not in declared}
    columns = UnitedTypes(apart, grown)
    for column in table or ():
        columns.types[column.name] = plain_type(column.type)
        columns.origin[column.name] = "the schema of the table"
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
    """Return, by column without a declared type, the property of lists that have the same length in all files."""
    written: dict[str, set[pa.DataType]] = {}
    for name, dtype in {(f.name, f.type) for item in inspected for f in item.schema if f.name not in declared}:
        written.setdefault(name, set()).add(dtype)
    return {name: size_property_of(dtypes) for name, dtypes in written.items()}


def _find_absent(inspected: Sequence[Inspected], types: Mapping[str, pa.DataType]) -> dict[int, tuple[str, ...]]:
    """Find the columns that each file lacks, by the number of the file."""
    absent = {}
    for number, item in enumerate(inspected):
        if len(item.schema) < len(types):
            present = {*item.schema.names}
            absent[number] = tuple(name for name in types if name not in present)
    return absent


def _make_type_conflict(name: str, here: pa.DataType, path: str, dtype: pa.DataType, first: str) -> Apart:
    return (
        f"column {name!r} has different types",
        path,
        f"{dtype_name(here)} here, {dtype_name(dtype)} in {first}",
        advise_one_type(name, dtype, here),
    )


def advise_one_type(name: str, *dtypes: pa.DataType) -> str:
    """Write what to do with files that have a column in two types."""
    wide = widest(list(dtypes))
    if _loses_values(dtypes, wide):
        wide = pa.string()
    elif wide == pa.string() and wide not in dtypes:
        return "write the files with one type, or leave some out of source.path"
    return f"write the files with one type, or give it: {schema_advice(name, wide)}"


def _loses_values(dtypes: Collection[pa.DataType], wide: pa.DataType) -> bool:
    """Whether the widest of the types does not hold all values: it is int64 for uint64 and a signed integer."""
    return pa.uint64() in dtypes and wide == pa.int64()


def _make_missing_conflict(name: str, item: Inspected, path_with_it: str) -> Apart:
    return (
        _describe_missing(name),
        item.file.path,
        f"{path_with_it} has it; {near(name, item.schema.names)}",
        "set source.missing: null to read nulls there, write the files with the same columns, or leave the file out",
    )


def _parse_declared_types(declared: dict[str, str], types: dict[str, pa.DataType], path: str) -> dict[str, pa.DataType]:
    for name in declared:
        if name not in types:
            raise JobError(f"source.schema names a column {name!r} that is not there", where=path, do=near(name, types))
    return {name: plain_type(parse_dtype(dtype)) for name, dtype in declared.items()}


def _find_common_type(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """Find the type that holds the values of both, None if there is none; null takes the other type.

    >>> _find_common_type(pa.int32(), pa.int64()), _find_common_type(pa.float32(), pa.int8())
    (DataType(int64), DataType(double))
    >>> _find_common_type(pa.string(), pa.int8())
    """
    if pa.types.is_null(a) or a == b:
        return b
    if pa.types.is_null(b):
        return a
    if is_list(a) and is_list(b):
        leaf = _find_common_type(a.value_type, b.value_type)
        return None if leaf is None else pa.list_(leaf)
    if _is_number(a) and _is_number(b):
        if {a, b} <= {pa.float16(), pa.float32(), pa.float64()}:
            return max(a, b, key=lambda dtype: dtype.bit_width)
        wide = widest([a, b])
        return None if _loses_values((a, b), wide) else wide
    if _is_time(a) and _is_time(b):
        zones = {t.tz for t in (a, b) if pa.types.is_timestamp(t)}
        return widest([a, b]) if len(zones) == 1 and pa.date64() not in (a, b) else None
    return None


def _is_widened(dtype: pa.DataType, common: pa.DataType) -> bool:
    """Whether values of a type are read in another, common one; nulls, and lists of nulls only, have no type yet."""
    while is_list(common) and is_list(dtype):
        common = common.value_type
        dtype = dtype.value_type
    return common != dtype and not pa.types.is_null(dtype)


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
    """Raise the DataError of the first of these columns about which the files of the plan disagree, if any."""
    apart = plan.options.get(APART, {})
    for name in columns:
        if name in apart:
            what, where, why, do = apart[name]
            raise DataError(what, where=where, why=why, do=do)


def files_differ(plan: Plan) -> bool:
    """Whether files of a plan differ in their columns: then its schema and notes depend on which columns are used."""
    return not plan.options.keys().isdisjoint((APART, ABSENT, GROWN, NUMBER_TEXTS))


def without_unused(plan: Plan, used: Collection[str]) -> Plan:
    """Return the plan without the columns about which its files disagree; DataError if one of them is used."""
    check_together(plan, [name for name in plan.schema if name in used])
    apart = plan.options.get(APART, {})
    columns = [column for column in plan.schema.columns if column.name not in apart]
    return replace(plan, schema=Schema(columns)) if apart else plan


def with_missing(plan: Plan, rules: Mapping[str, str]) -> Plan:
    """Apply a contract's rules for columns that some files lack to a plan.

    `evolve` reads nulls there; `freeze` raises a DataError that names the file. The rules take precedence over
    `source.missing`.
    """
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
            # A column may be missing in one file and have two types in others: nulls settle the first only.
            if rules.get(name) == "evolve" and name in apart and apart[name][0] == _describe_missing(name):
                del apart[name]
    options = {**plan.options, APART: apart} if apart else {k: v for k, v in plan.options.items() if k != APART}
    return replace(plan, options=options)


def _describe_missing(name: str) -> str:
    """Write what the `Apart` of a missing column says happened: by this, missing columns are told from other ones."""
    return f"column {name!r} is missing in a file"


def uniting_notes(plan: Plan, used: Collection[str]) -> list[str]:
    """Write a sentence for each setting that was recognised, and for row groups that the filter leaves out.

    Also for each used column that some files lack, or have in a narrower type, or whose numbers stay text.
    """
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
