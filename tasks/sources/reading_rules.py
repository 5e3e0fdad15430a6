"""The rules by which a source was read. A fitted workflow keeps them, so that the same text means the same value later.

What decides what a value is (null_values, schema, explode) and which rows count (filter, strict, keys, sort_by) holds
for every later source. How text is laid out (`Format.layout`) holds for a source of the same format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from tasks.core.plan import File, ReadOptions
from tasks.core.settings import Source
from tasks.errors import DataError, JobError
from tasks.sources.formats import FORMATS, LAYOUT, UNTYPED, format_of, format_settings
from tasks.storage.files import COMPRESSIONS

ROWS = ("filter", "strict", "keys", "sort_by")  # which rows, and which of them together
VALUES = ("null_values", "schema", "explode", *ROWS)
DEFAULTS: ReadOptions = {
    "null_values": [""],
    "schema": {},
    "explode": None,
    "filter": None,
    "strict": False,
    "keys": [],
    "sort_by": [],
}


@dataclass(frozen=True)
class Fit:
    """The rules of a fit's source, and what the present source sets itself: keys, and columns of its `schema`."""

    reading: ReadOptions
    own: tuple[str, ...] = ()
    own_types: tuple[str, ...] = ()

    @staticmethod
    def of(source: Source, reading: ReadOptions) -> Fit:
        own = sorted(name.removesuffix("_") for name in source.model_fields_set)
        return Fit(dict(reading), tuple(own), tuple(source.schema_ or ()))

    @property
    def number_texts(self) -> dict[str, str]:
        """The columns whose numbers the fit has read as text, since one would have become another one, with their
        types."""
        return {n: t for n, t in (self.reading.get("number_texts") or {}).items() if n not in self.own_types}

    @property
    def explodes(self) -> bool:
        """Whether it is the fit alone that turns lists into rows."""
        return "explode" not in self.own and bool(self.reading.get("explode"))

    @property
    def optional(self) -> set[str]:
        """The columns whose types only the fit names: they need not be there."""
        return {*(self.reading.get("schema") or ())} - {*self.own_types}


def reading_of(
    source: Source, format: str, files: Sequence[File], number_texts: Mapping[str, str] | None = None
) -> ReadOptions:
    """The rules by which the files of a source are read, as plain values without empty ones."""
    named = _by_suffix(files) if source.format != "auto" else [format]
    text = {"null_values": source.null_values} if format in UNTYPED else {}
    text |= {name: value for name, value in format_settings(source).items() if name in FORMATS[format].layout}
    if source.columns is not None:
        text.pop("header", None)
    reading = {
        "format": format,
        "by_suffix": None if named == [format] else named,
        **text,
        "schema": source.schema_,
        "explode": source.explode,
        "number_texts": dict(number_texts or {}),
    }
    return {name: value for name, value in reading.items() if value is not None and value != {}}


def rows_of(source: Source) -> ReadOptions:
    """The rules by which rows of a source count, as plain values without empty ones."""
    return {name: value for name in ROWS if (value := _read_setting(source, name))}


def with_values(source: Source, fit: Mapping[str, Any]) -> Source:
    """The source with the values of the fit where it says nothing itself; of `schema` column by column.

    >>> with_values(Source(path="a", schema={"x": "int8"}), {"schema": {"x": "int64", "y": "string"}}).schema_
    {'x': 'int8', 'y': 'string'}
    """
    own = source.model_fields_set
    changes = {name: fit[name] for name in VALUES if name in fit and name != "schema" and name not in own}
    if fit.get("schema") and ("schema_" not in own or source.schema_):
        changes["schema_"] = {**fit["schema"], **(source.schema_ or {})}
    return source.model_copy(update=changes)


def with_layout(source: Source, fit: Fit, files: Sequence[File]) -> Source:
    """The source with the format and the layout of the fit where its files are of the same format.

    Files whose names tell of the same format as those of the fit, which was read as another one, are read as that one.
    """
    reading = fit.reading
    own = fit.own
    if "format" not in reading:
        return source
    changes: dict[str, Any] = {}
    if "format" not in own and "by_suffix" in reading and set(_by_suffix(files)) <= {*reading["by_suffix"]}:
        changes["format"] = reading["format"]
    if format_of(files, changes.get("format", source.format)) == reading["format"]:
        changes |= {name: reading[name] for name in LAYOUT if name in reading and name not in own}
        if "columns" in own:
            changes.pop("header", None)
        if "header" in own and source.header:
            changes.pop("columns", None)
    return source.model_copy(update=changes)


def differences(source: Source, fit: Mapping[str, Any], format: str) -> list[str]:
    """A sentence for everything in which a source is read otherwise than the fit's, as far as it decides about values
    and rows."""
    if not fit:
        return []
    lines = []
    for name in VALUES:
        now = _read_setting(source, name) or DEFAULTS[name]
        was = fit.get(name) or DEFAULTS[name]
        if name == "null_values" and (format not in UNTYPED or (name not in fit and fit.get("format") not in UNTYPED)):
            continue
        if name == "schema":
            lines += [
                f"source.schema.{column} is {dtype}, in the fit {was[column]}"
                for column, dtype in now.items()
                if was.get(column, dtype) != dtype
            ]
        elif (sorted(now) != sorted(was)) if name == "null_values" else now != was:
            lines.append(f"source.{name} is {_format_setting(now)}, in the fit {_format_setting(was)}")
    return lines


def reading_lines(fit: Mapping[str, Any]) -> list[str]:
    """How a source was read, for people: a line for each thing.

    >>> reading_lines({"format": "csv", "null_values": ["", "NA"], "header": False, "delimiter": ";"})
    ['format: csv', "null_values: ['', 'NA']", 'header: false', "delimiter: ';'"]
    """

    def format_value(value: object) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        return repr(value) if isinstance(value, str) and len(value) == 1 else str(value)  # signs need quotes

    return [f"{name}: {format_value(value)}" for name, value in fit.items() if name != "by_suffix"]


def check_reading_rules(saved: object, where: str) -> ReadOptions:
    """The reading rules of a saved workflow, checked; a DataError if no source can be read by them."""
    if saved is None:
        return {}
    if isinstance(saved, Mapping) and saved.keys() <= {"format", "by_suffix", "number_texts", *VALUES, *LAYOUT}:
        known = {name: value for name, value in saved.items() if name not in ("by_suffix", "number_texts")}
        named = saved.get("by_suffix", [])
        try:
            Source.model_validate({"path": "any", **known})
            Source.model_validate({"path": "any", "schema": saved.get("number_texts", {})})
            if isinstance(named, list) and all(isinstance(name, str) for name in named):
                return dict(saved)
        except ValueError:
            pass
    raise DataError(
        "workflow.json is damaged",
        where=where,
        why="what it says of the source it was fitted on is not what a source can say",
        do="restore the folder or fit again",
    )


def _by_suffix(files: Sequence[File]) -> list[str]:
    """The formats that the suffixes of files name; "" for suffixes that name none."""
    first: dict[tuple[str, ...], File] = {}
    for file in files:
        suffixes = [suffix.lower() for suffix in PurePosixPath(file.path).suffixes]
        compressed = bool(suffixes) and suffixes[-1] in COMPRESSIONS
        first.setdefault(tuple(suffixes[-2:] if compressed else suffixes[-1:]), file)
    return sorted({_detect_format(file) for file in first.values()})


def _detect_format(file: File) -> str:
    try:
        return format_of([file])
    except JobError:
        return ""


def _read_setting(source: Source, name: str) -> Any:
    return getattr(source, "schema_" if name == "schema" else name)


def _format_setting(value: object) -> str:
    return "none" if value in (None, [], {}) else str(value)
