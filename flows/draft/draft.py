"""A first job for data without a description: what each column becomes, and why."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import yaml

from flows.draft.decisions import Decision, decide, is_number, joint, without_clashes
from flows.draft.names import is_common_name, label_rank
from flows.draft.other_tables import OtherTable
from flows.draft.readable_files import Readable, readable
from tasks.core.dtypes import dtype_name
from tasks.dataset import Dataset
from tasks.errors import JobError, near
from tasks.sources.bad_lines import FileWithBadLines, bad_lines_of, bad_lines_text
from tasks.sources.exploded import describe_explode
from tasks.sources.formats.survey import NUMBER_TEXTS
from tasks.sources.uniting import uniting_notes
from tasks.storage.files import refuse_inside

NOTED = ("missing", "bad_lines", "header", "columns", "schema", "explode")  # settings with a note of their own
MOST_BAD = 0.01  # of the lines: beyond it the layout is more likely wrong than the lines
# Values of a label whose name is as often that of a feature: `class` with 133 values is the class of a school.
MOST_CLASSES = 20


class DraftError(JobError):
    """What was drafted cannot be a job for the data. `draft` is its text, as comments."""

    draft = ""


def draft(dataset: object, label: str | None = None, storage_options: str | dict[str, Any] | None = None) -> str:
    """A first job for a data set, as YAML with a comment on each decision; it runs as it is, unless lines cannot be
    read.

    dataset: a Dataset, or what a Dataset takes (a path, a list of paths, a frame). A job names files, so that the draft
        of a frame has a path to be replaced.
    label: the column to be predicted; by default the first number that is named like one (label, target, click, ..).
    storage_options: for URLs, as of a Dataset; a Dataset has its own.

    The names, types and the number of rows are those of the whole data set; all else is seen in a sample of 20,000 rows
    at most, in ranges over all of it. Texts such as NA between numbers become `source.null_values` of CSV and TSV, and
    a column is text if values further down do not fit the type of the first.
    Format (where the suffix tells none), delimiter, encoding, decimal comma, lines before the header, quotes that are
    letters, and whether there is a header, are those of the first file of a path. Columns that only some files have are
    null elsewhere, and lines that cannot be read stop the job unless `bad_lines` is set: the draft names both, and sets
    nothing. Files that share half of their columns with the others, or less, are another table, and so are those of
    another delimiter or, without a header, of another number of columns; the draft leaves them out, with the entry that
    joins them. If one column alone has lists of structs, their elements are the rows (`source.explode`).
    Numbers and times in texts (1.234,50 or 31.01.2026), texts that list values (Comedy|Drama), and numbers that are
    named like a time and count from 1970 or write a day (20260131), are read by an expression. Columns of texts, or of
    numbers whose names end alike, that share half of their values get one vocabulary.
    Errors: a JobError for a source that does not exist and for a label that is not a column; a DraftError, with the
    text as its `draft`, if no column is left, and if more than one line of a hundred cannot be read; a DataError for a
    source without rows.

    >>> table = pa.table({"price": [1.0, None, 3.0], "brand": ["a", "b", "a"], "click": [0, 1, 0]})
    >>> print(draft(table))  # doctest: +ELLIPSIS
    # yaml-language-server: $schema=job.schema.json
    # (Editors complete and check the job with that file: rowmill schema > job.schema.json.)
    # A draft by rowmill new: read it, fix it, then rowmill preview and rowmill run.
    ...
    features:
      # price: float64, 1 null(s): filled with the median, scaled
      - columns: [price]
        ops: [{op: FillMedian}, {op: Normalize}]
      # brand: string, 2 value(s)
      - columns: [brand]
        ops: [{op: Categorify}]
    # click is the label: its name and its type say so.
    label: [click]
    ...
    """
    source = readable(dataset, storage_options)
    data = source.data
    sample = source.sample
    names = source.columns
    if label is not None and label not in names:
        raise JobError(f"there is no column {label!r}", where="label", do=near(label, names))
    assert sample is not None
    whole = sample.num_rows == data.num_rows
    target, others = _labels(source, sample, label)
    decisions = [
        Decision(name, others[name])
        if name in others
        else decide(data.schema[name], sample.column(name), whole, name in data.plan.options.get(NUMBER_TEXTS, ()))
        for name in names
        if name != target
    ]
    decisions = joint(without_clashes(decisions, names), sample)
    text = "\n".join(_write_job_lines(data, sample, decisions, target, label is not None, source)) + "\n"
    if error := _refusal(source, decisions):
        error.draft = "".join(f"# {line}".rstrip() + "\n" for line in text.splitlines())
        raise error
    return text


def _refusal(source: Readable, decisions: Sequence[Decision]) -> DraftError | None:
    """Why a draft is none; None for one that may be a job."""
    bad = bad_lines_of(source.data.plan) if source.refused else []
    left_out = sum(file["count"] for file in bad)
    lines = left_out + source.data.plan.rows
    if source.refused and left_out > MOST_BAD * lines:
        share = 100 * left_out / lines
        return DraftError(
            f"{left_out:,} of {lines:,} lines ({share:.1f} %) cannot be read like this, so that there is no draft",
            where=source.refused.where,
            why=f"{source.refused.what}; {source.refused.why}".rstrip("; "),
            do=_advice(bad, source),
        )
    if any(decision.ops for decision in decisions):
        return None
    reasons = "; ".join(f"{d.name}: {d.why}" for d in decisions[:10]) or "the label is the only column"
    reasons = "; ".join([reasons, *uniting_notes(source.data.plan, source.data.schema)])
    return DraftError("no column is left that could be a feature", why=reasons, do="write the job by hand")


def _advice(bad: Sequence[FileWithBadLines], source: Readable) -> str:
    """What to do about lines that cannot be read."""
    assert source.refused is not None
    if source.data.plan.format == "jsonl":
        return source.refused.do
    if len(source.data.plan.files) > 1 and len(bad) < len(source.data.plan.files):
        return (
            f"draft a job for each kind of file, if they are not alike (most of these lines are in "
            f"{max(bad, key=lambda file: file['count'])['path']}); else write the job by hand"
        )
    return (
        "look at the first lines of the file, and write the job by hand with the delimiter, quote, escape, skip_rows "
        f"or columns that fit; the reader's advice is: {source.refused.do}"
    )


def _labels(source: Readable, sample: pa.Table, label: str | None) -> tuple[str | None, dict[str, str]]:
    """Return the label, and why other columns that are named like one are left out."""
    data = source.data
    ranked = sorted((rank, name) for name in source.columns if (rank := label_rank(name)) is not None)
    numbers = [name for _, name in ranked if is_number(data.schema[name].dtype)]
    likely = (name for name in numbers if not is_common_name(name, True) or _has_few_values(sample.column(name)))
    target = label or next(likely, None)
    reasons = {}
    for _, name in ranked:
        if name == target or is_common_name(name, is_number(data.schema[name].dtype)):
            continue
        if name in numbers:
            reasons[name] = "it is named like a label, too, and might give the answer away"
        else:
            kind = dtype_name(data.schema[name].dtype)
            reasons[name] = f"it is named like a label, but is {kind}: if it is the label, say --label {name}"
    return target, reasons


def _has_few_values(values: pa.ChunkedArray) -> bool:
    return pc.count_distinct(values).as_py() <= MOST_CLASSES


# The text


def _write_job_lines(
    data: Dataset,
    sample: pa.Table,
    decisions: list[Decision],
    target: str | None,
    named: bool,
    seen: Readable,
) -> Iterable[str]:
    rows = data.num_rows
    yield "# yaml-language-server: $schema=job.schema.json"
    yield "# (Editors complete and check the job with that file: rowmill schema > job.schema.json.)"
    yield "# A draft by rowmill new: read it, fix it, then rowmill preview and rowmill run."
    counted = f"{rows:,} rows, {len(seen.columns):,} columns, {len(data.plan.files):,} file(s), names and types"
    bad = bad_lines_of(data.plan)
    left_out = ", without the lines that cannot be read" if bad else ""
    yield f"# {'As read below' if seen.doubt else 'Exact'}: {counted}{left_out}."
    if sample.num_rows < rows:
        yield f"# Sampled: values, nulls and skewness are those of {sample.num_rows:,} rows, in ranges over all of the"
        yield "# source. What the other rows hold is not known here."
    else:
        yield "# Values, nulls and skewness are exact, too: all rows were read."
    yield "source:"
    source = data.as_source()
    if source is None:
        yield "  path: data  # the rows came from a frame: name the files here"
        source = {"path": "data"}
    else:
        if seen.refused:
            source.pop("bad_lines", None)
        if settings := [name for name in seen.layout if name not in NOTED]:
            yield f"  # The first lines of the first file need this: {', '.join(settings)}."
        if "schema" in seen.layout:
            misfits = ", ".join(map(_name, seen.layout["schema"]))
            yield f"  # {misfits}: a value does not fit the type of the first ones, so that they are read as texts."
        if seen.doubt:
            yield f"  # Look at the first line of the first file: {_line(seen.doubt)}."
        elif "columns" in seen.layout:
            yield "  # The first line of the first file has values, no names: here are some, give better ones."
        if "explode" in seen.layout:
            yield f"  # {seen.layout['explode']} has lists of structs: each element is a row, the fields are columns."
            yield f"  # {_line(describe_explode(data.plan))}."
        for other in seen.others:
            yield f"  # {_line(_other_table(other))}."
        yield from (f"  # {_line(note)}." for note in uniting_notes(data.plan, data.schema))
        if every_second := _empty_between(data, sample):
            yield f"  # {every_second}"
        if bad:
            yield f"  # {_line(bad_lines_text(bad, left_out=seen.refused is None))}."
        yield from _source_lines(source, seen.nulls)
        if seen.refused:
            yield "  # A run stops at such a line. Fix it, or take the # away to leave these lines out:"
            yield "  # bad_lines: skip"
    yield "features:" if any(decision.ops for decision in decisions) else "features: []"
    for other in seen.others:
        yield from _joining_lines(other, sample.num_rows, source.get("storage_options"))
    groups: dict[tuple[str, tuple[str, ...]], list[Decision]] = {}
    for decision in decisions:
        if decision.ops:
            groups.setdefault((_flow(list(decision.ops)), decision.group), []).append(decision)
    for (ops, group), members in groups.items():
        yield from (f"  # {_name(member.name)}: {_line(member.why)}" for member in members)
        if group:
            yield "  # They share most of their values, so that they share ids: a list in the list is one vocabulary."
        columns = [member.name for member in members]
        yield f"  - columns: {_flow([columns] if group else columns)}"
        yield f"    ops: {ops}"
    if without := [decision for decision in decisions if not decision.ops]:
        yield "# Left out:"
        yield from (f"#   {_name(decision.name)}: {_line(decision.why)}" for decision in without)
    if target is None:
        yield "# No column is taken as the label: name it with --label COLUMN, or here."
        yield "label: []"
    else:
        yield from _label_lines(sample.column(target), target, named)
    yield "output:"
    yield f"  path: {_flow(_output(source['path']))}"
    yield "  shuffle: full  # over all rows"
    yield "  seed: 0"


def _empty_between(data: Dataset, sample: pa.Table) -> str:
    """What to say of text in which every second column is empty; "" for other data."""
    empty = [sample.column(name).null_count == sample.num_rows for name in data.schema]
    pattern = [place % 2 == 1 for place in range(len(empty))]
    sign = (data.as_source() or {}).get("delimiter", ",")
    if data.plan.format != "csv" or len(empty) < 3 or empty != pattern:
        return ""
    return (
        f"Every second column is empty: the file may have {2 * sign} between its values (delimiter: {_flow(2 * sign)})."
    )


def _other_table(other: OtherTable) -> str:
    more = f" and {len(other.paths) - 1:,} more file(s)" if len(other.paths) > 1 else ""
    if not other.columns:
        return f"{other.paths[0]}{more} is not read: it is not text in columns"
    return f"{other.paths[0]}{more} is another table and not read: it has {', '.join(map(_name, other.columns))}"


def _joining_lines(other: OtherTable, rows: int, storage_options: object) -> Iterable[str]:
    """Return the entries that bring the columns of another table to the rows, as comments."""
    columns = [column for column in other.columns if column not in (*other.keys, *other.shared)]
    if not other.keys or not columns:
        return
    keys = list(other.keys)
    join: dict[str, Any] = {"op": "JoinExternal", "table": other.paths[0], "on": keys, "columns": columns}
    if other.layout:
        join["read"] = dict(other.layout)
    if isinstance(storage_options, str):
        join["storage_options"] = storage_options
    yield (
        f"  # Columns of another table, which has each {' and '.join(map(_name, keys))} once; "
        f"{100 * other.matched:.1f} % of the {rows:,} rows looked at are in it (take the # away):"
    )
    yield f"  # - {{columns: {_flow(keys)}, ops: [{_flow(join)}], keep: false}}"
    yield f"  # - {{columns: {_flow(columns)}, ops: []}}"


def _source_lines(source: dict[str, Any], nulls: Sequence[str]) -> Iterable[str]:
    for key, value in source.items():
        if key == "null_values" and nulls:
            texts = ", ".join(map(json.dumps, nulls))
            yield f"  # {texts} stand(s) between numbers or times, so it means null, in every column."
        if key == "storage_options" and not isinstance(value, str):
            yield "  # storage_options are not written, since they may be secret: name those of the host here."
            continue
        if key == "path":
            value = [_no_pattern(path) for path in value] if isinstance(value, list) else _no_pattern(value)
        yield f"  {key}: {_flow(value)}"


def _label_lines(values: pa.ChunkedArray, target: str, named: bool) -> Iterable[str]:
    how = "as you said" if named else "its name and its type say so"
    yield f"# {_name(target)} is the label: {how}."
    if values.null_count:
        yield f"# It is null in {values.null_count:,} row(s) of those looked at: source.filter can leave these out."
    if not is_number(values.type):
        yield f"# It is written as {dtype_name(values.type)}: if a model needs a number, make one with Lambda."
    yield f"label: {_flow([target])}"


def _output(source: str | list[str]) -> str:
    """Return a folder beside the source, below out/ where that is possible."""
    first = source if isinstance(source, str) else source[0]
    stem = re.sub(r"\W+", "-", Path(first.rstrip("/*")).stem).strip("-") or "data"
    path = f"out/{stem}"
    try:
        refuse_inside(source, path)
    except JobError:
        return str(Path(os.path.realpath(first)).parent / f"{stem}-out")
    return path


def _no_pattern(path: str) -> str:
    """Return a path as a job writes it, in which braces are dates."""
    return path.replace("{", "{{").replace("}", "}}")


def _flow(value: object) -> str:
    """Return a value as YAML in one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=float("inf"))
    return text.removesuffix("\n").removesuffix("\n...")


def _name(name: str) -> str:
    return name if name and name.isprintable() else json.dumps(name)


def _line(text: str) -> str:
    return " ".join(text.split())
