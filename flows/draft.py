"""A first job for data that nobody has described yet: what is to become of each column, and why."""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import yaml

from tasks.core.dtypes import dtype_name, is_list, leaf_type
from tasks.core.plan import Partition
from tasks.core.schema import Column
from tasks.dataset import Dataset
from tasks.engines.algorithms.text_times import format_of, times_in
from tasks.engines.convert import libraries
from tasks.engines.expression.text_functions import parse_number
from tasks.errors import DataError, JobError, near
from tasks.sources.bad_lines import bad_lines_of, bad_lines_text
from tasks.sources.formats import format_of as format_of_files
from tasks.sources.reader import read
from tasks.sources.uniting import ABSENT, uniting_notes
from tasks.storage.files import expand, open_binary, refuse_inside

SAMPLE_ROWS = 20_000
LARGE = 5_000  # values of the sample from which a vocabulary gets a limit
FEW = 50  # values of a column of whole numbers that are more likely codes than amounts
UNIQUE_FROM = 20  # values that must all differ before a column counts as unique
FREE_TEXT = 60  # characters of a text on average
SKEWED = 2.0
TEXT_FORMATS = ("csv", "tsv")
LABELS = (
    "label", "target", "is_click", "clicked", "click", "is_purchase", "purchased", "converted", "conversion",
    "rating", "stars", "y",
)  # fmt: skip
ID = re.compile(r"(^|_)(ids?|uuid|guid|code|key|hash|zip|zipcode|sku|isbn|user|item|product|session)$|[a-z]I[dD]$")
NULL_TEXTS = ("NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "Null", "None", "none", "nil", "-", "?", "\\N")
NUMBER = r"^[ \t]*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[ \t]*$"
TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?( UTC|Z|[+-][0-9]{2}:[0-9]{2})?)?$"
LOOKED_AT, HEAD_LINES = 1 << 16, 200  # bytes and lines of the first file of text
COMMA, POINT = re.compile(r'"?[+-]?[0-9]+,[0-9]+"?'), re.compile(r'"?[+-]?[0-9]+\.[0-9]+"?')
# Of numbers in texts: the decimal sign, and the sign between groups of digits. 1,234 is read as 1234.
SIGNS = ((".", None), (".", ","), (",", None), (",", "."))
DAYS = ("%d.%m.%Y", "%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%d-%m-%Y", "%d %b %Y", "%b %d, %Y")
CLOCKS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p")
EITHER = {"%m/%d/%Y": "%d/%m/%Y"}  # formats that the same texts may have
SHARED = 0.5  # of the values of the smaller of two columns, from which both columns get one vocabulary
DAY_PARTS = ["weekday", "day", "month", "year"]
ALL_PARTS = ["hour", "minute", *DAY_PARTS]


@dataclass(frozen=True)
class Decision:
    """What is to become of one column, and why. Without `ops` the draft leaves the column out. The columns of `group`
    share a vocabulary."""

    name: str
    why: str
    ops: tuple[Mapping[str, Any], ...] = ()
    group: tuple[str, ...] = ()


def draft(dataset: Any, label: str | None = None) -> str:
    """A first job for a data set, as YAML with a comment on each decision; it runs as it is.

    dataset: a Dataset, or what a Dataset takes (a path, a list of paths, a frame). A job names files, so that the draft
        of a frame has a path to be replaced.
    label: the column to be predicted; by default the first number that is named like one (label, target, click, ..).

    The names, types and the number of rows are those of the whole data set; all else is seen in a sample of 20,000 rows
    at most, which the draft describes. Texts such as NA between numbers become `source.null_values` of CSV and TSV.
    Delimiter, encoding, decimal comma and lines before the header are those of the first file of a path. Columns that
    only some files have are null elsewhere, and where lines cannot be read, they are left out: the draft names both.
    Numbers and times in texts (1.234,50 or 31.01.2026) are read by an expression. Columns of texts, or of numbers whose
    names end alike, that share half of their values get one vocabulary.
    Errors: a JobError for a source that does not exist, for a label that is no column, and where no column is left; a
    DataError for a source without rows.

    >>> table = pa.table({"price": [1.0, None, 3.0], "brand": ["a", "b", "a"], "click": [0, 1, 0]})
    >>> print(draft(table))  # doctest: +ELLIPSIS
    # yaml-language-server: $schema=job.schema.json
    # (Editors complete and check the job with that file: millrace schema > job.schema.json.)
    # A draft by millrace new: read it, mend it, then millrace preview and millrace run.
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
    data, layout = (dataset, {}) if isinstance(dataset, Dataset) else _readable(dataset)
    names = list(data.schema)
    if label is not None and label not in names:
        raise JobError(f"there is no column {label!r}", where="label", do=near(label, names))
    sample = _sample(data)
    nulls = _null_texts(data, sample)
    if nulls:
        data = data.with_null_values([*data.null_values, *nulls])
        sample = _sample(data)
    whole = sample.num_rows == data.num_rows
    target, others = _labels(data, label)
    decisions = [
        Decision(name, "it is named like a label, too, and might give the answer away")
        if name in others
        else decide(data.schema[name], sample.column(name), whole)
        for name in names
        if name != target
    ]
    decisions = _joint(_without_clashes(decisions, names), sample)
    if not any(decision.ops for decision in decisions):
        reasons = "; ".join(f"{d.name}: {d.why}" for d in decisions[:10]) or "the label is the only column"
        raise JobError("no column is left that could be a feature", why=reasons, do="write the job by hand")
    return "\n".join(_written(data, sample, nulls, decisions, target, label is not None, layout)) + "\n"


def _readable(source: Any) -> tuple[Dataset, dict[str, Any]]:
    """The data set of a source, and the settings with which its files can be read: their layout, null for columns that
    only some files have, and that lines are left out which cannot be read, where there are any."""
    data = Dataset(source)
    if data.as_source() is None:
        return data, {}
    if layout := _layout(data):
        data = Dataset(source, **layout)
    try:
        if ABSENT in data.plan.options:
            layout["missing"] = "null"
            data = Dataset(source, **layout)
        _sample(data)
    except DataError:
        if format_of_files(expand(data.as_source()["path"])) not in (*TEXT_FORMATS, "jsonl"):  # type: ignore[index]
            raise
        without = Dataset(source, **layout, bad_lines="skip")
        if ABSENT in without.plan.options and "missing" not in layout:
            layout["missing"] = "null"
            without = Dataset(source, **layout, bad_lines="skip")
        if not bad_lines_of(without.plan):
            raise
        return without, {**layout, "bad_lines": "skip"}
    return data, layout


def _layout(data: Dataset) -> dict[str, Any]:
    """The settings with which the first file of CSV or TSV can be read, where those by default do not fit it: encoding,
    delimiter, lines before the header, decimal comma, by its first 64 KiB."""
    source = data.as_source()
    if source is None:
        return {}
    first = expand(source["path"])[0]
    if not first.path.lower().endswith((".csv", ".tsv")):
        return {}
    with open_binary(first) as file:
        start = file.read(LOOKED_AT)
    layout: dict[str, Any] = {}
    if encoding := _encoding(start):
        layout["encoding"] = encoding
    text = start.decode(encoding or "utf-8", errors="replace")
    lines = text.splitlines()[: -1 if len(start) == LOOKED_AT else None][:HEAD_LINES]
    usual = "\t" if first.path.lower().endswith(".tsv") else ","
    delimiter = usual if usual == "\t" else max(",;\t|", key=lambda sign: _regular(lines, sign))
    if delimiter != usual:
        layout["delimiter"] = delimiter
    if before := _lines_before_header(lines, delimiter):
        layout["skip_rows"] = before
    fields = [field for line in lines[before + 1 :] for field in line.split(delimiter)] if delimiter != "," else []
    if any(COMMA.fullmatch(field) for field in fields) and not any(POINT.fullmatch(field) for field in fields):
        layout["decimal"] = ","
    return layout


def _encoding(start: bytes) -> str | None:
    """The encoding of a file that begins so; None for UTF-8."""
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)  # the last letter may be cut off
    except UnicodeDecodeError:
        return "windows-1252" if any(0x80 <= byte < 0xA0 for byte in start) else "latin-1"
    return None


def _regular(lines: Sequence[str], sign: str) -> int:
    """How many of these lines, from the last on, have the sign as often as the last; 0 where it has none."""
    lines = [line for line in lines if line]
    number = lines[-1].count(sign) if lines else 0
    alike = list(takewhile(lambda line: line.count(sign) == number, reversed(lines)))
    return len(alike) if number else 0


def _lines_before_header(lines: Sequence[str], delimiter: str) -> int:
    """How many lines without any delimiter come before lines that all have some."""
    before = len(list(takewhile(lambda line: delimiter not in line, lines)))
    return before if before < len(lines) and all(delimiter in line for line in lines[before:] if line) else 0


def _sample(data: Dataset) -> pa.Table:
    """All rows if they are few, else as many of the first, the middle and the last block."""
    blocks = data.plan.blocks
    if data.num_rows > SAMPLE_ROWS:
        blocks = tuple(blocks[i] for i in sorted({0, len(blocks) // 2, len(blocks) - 1}))
        most = SAMPLE_ROWS // len(blocks)
        parts = [read(data.handle, Partition(0, (block,))).slice(0, most) for block in blocks]
        return pa.concat_tables([libraries.decoded(part) for part in parts])
    return libraries.decoded(read(data.handle, Partition(0, blocks)))


def _null_texts(data: Dataset, sample: pa.Table) -> list[str]:
    """The texts that mean null in columns that hold nothing else but numbers or times."""
    if data.plan.format not in TEXT_FORMATS:
        return []
    texts: set[str] = set()
    for name in sample.column_names:
        column = sample.column(name)
        if name in data.own_types or not pa.types.is_string(column.type):
            continue
        others, marks = _marks(column)
        patterns = len(others) and (_all_match(others, NUMBER) or _all_match(others, TIME))
        if marks and (patterns or written_number(others) or written_time(others)):
            texts.update(marks)
    return [text for text in NULL_TEXTS if text in texts]


def _marks(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, list[str]]:
    """The values of a column of texts that are no null texts, and the null texts in it."""
    values = column.drop_null()
    is_mark = pc.is_in(values, value_set=pa.array(NULL_TEXTS))
    return values.filter(pc.invert(is_mark)), sorted(values.filter(is_mark).unique().to_pylist())


def written_number(values: pa.ChunkedArray) -> tuple[str, str | None] | None:
    """The decimal sign and the sign between groups of digits of texts that are all numbers; None for other texts, and
    for digits alone, which are codes more often than amounts.

    >>> written_number(pa.chunked_array([["1.234,50", "7"]])), written_number(pa.chunked_array([["12", "7"]]))
    ((',', '.'), None)
    """
    distinct = pc.unique(values)
    if not len(distinct) or not pc.any(pc.match_substring_regex(distinct, "[.,]")).as_py():
        return None
    return next((s for s in SIGNS if not parse_number(distinct, *s)[0].null_count), None)


def written_time(values: pa.ChunkedArray) -> str | None:
    """The format of texts that are all times, but not of ISO 8601; None for other texts.

    >>> written_time(pa.chunked_array([["31.01.2026 12:30", "01.02.2026 00:00"]]))
    '%d.%m.%Y %H:%M'
    """
    distinct = pc.unique(values)
    formats = (f"{day}{clock}" for day in DAYS for clock in CLOCKS)
    return next((f for f in formats if len(distinct) and _is_written(distinct, f)), None)


def _is_written(distinct: pa.Array, format: str) -> bool:
    first = distinct.slice(0, 100)
    return not any(times_in(texts, format_of(format)).null_count for texts in (first, distinct))


def _all_match(values: pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(values, pattern)).as_py())


def _labels(data: Dataset, label: str | None) -> tuple[str | None, list[str]]:
    """The label, and the columns that are named like one besides."""
    likely = [
        name
        for known in LABELS
        for name in data.schema
        if name.lower() == known and _is_number(data.schema[name].dtype)
    ]
    target = label or next(iter(likely), None)
    return target, [name for name in likely if name != target and name.lower() != "y"]  # a common name of any number


def _is_number(dtype: pa.DataType) -> bool:
    return pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_boolean(dtype)


def decide(column: Column, sample: pa.ChunkedArray, whole: bool) -> Decision:
    """What is to become of a column, by its name, its type and a sample; `whole`: the sample is all rows."""
    name, dtype = column.name, leaf_type(column.dtype)
    if is_list(dtype_of := column.dtype) and is_list(dtype_of.value_type):
        return Decision(name, f"no operator takes {dtype_name(dtype_of)}")
    kind = f"{'list of ' if is_list(column.dtype) else ''}{dtype_name(dtype)}"
    values = (pc.list_flatten(sample) if is_list(column.dtype) else sample).drop_null()
    nulls = len(sample) - len(values) if not is_list(column.dtype) else 0
    where = "" if whole else " of the sample"
    if not len(values):
        return Decision(name, f"every value{where} is null")
    is_time = pa.types.is_timestamp(dtype) or pa.types.is_date(dtype)
    if not (_is_number(dtype) or pa.types.is_decimal(dtype) or pa.types.is_string(dtype) or is_time):
        return Decision(name, f"the draft has no operator for {dtype_name(column.dtype)}")
    distinct = len(pc.unique(values))
    if distinct == 1 and not nulls and len(sample) > 1:
        return Decision(name, f"every row{where} has the same value")
    if is_time or (pa.types.is_string(dtype) and _all_match(values, TIME)):
        if is_list(column.dtype):
            return Decision(name, f"DateParts takes no {kind}s")
        days = pa.types.is_date(dtype) or (pa.types.is_string(dtype) and pc.max(pc.utf8_length(values)).as_py() == 10)
        parts: dict[str, Any] = {"parts": DAY_PARTS} if days else {}
        return Decision(name, f"{kind}, a time: its parts, in UTC", ({"op": "DateParts", **parts},))
    named_id = bool(ID.search(name) or ID.search(name.lower()))
    text = pa.types.is_string(dtype)
    if text and not named_id and not is_list(column.dtype) and (decision := _in_texts(name, values, nulls, whole)):
        return decision
    if text and pc.mean(pc.utf8_length(values)).as_py() > FREE_TEXT and distinct > len(values) // 2:
        return Decision(name, f"free text: {distinct:,} values of {FREE_TEXT} characters and more on average")
    if (text or named_id) and distinct == len(values) >= UNIQUE_FROM and not is_list(column.dtype):
        return Decision(name, f"every row{where} has a value of its own, from which nothing can be learned")
    whole_numbers = pa.types.is_integer(dtype) or pa.types.is_boolean(dtype)
    few = whole_numbers and distinct <= FEW and len(values) >= UNIQUE_FROM and pc.min(values).as_py() >= 0
    if text or pa.types.is_boolean(dtype) or named_id or few:
        return _category(name, f"{kind}, {distinct:,} value(s){where}", distinct, few and not named_id, values)
    return _amount(name, kind, values.cast(pa.float64(), safe=False), nulls, whole, is_list(column.dtype))


def _in_texts(name: str, values: pa.ChunkedArray, nulls: int, whole: bool) -> Decision | None:
    """What is to become of texts that write times or numbers; None for other texts."""
    others, marks = _marks(values)
    lost = f"; {', '.join(map(json.dumps, marks))} in it becomes null" if marks else ""
    if written := written_time(others):
        day = written.split(" %H")[0].split(" %I")[0]
        either = EITHER.get(day)
        if either and _is_written(pc.unique(others), written.replace(day, either)):
            lost += f"; it might be {either}, too: look which it is"
        parse = {"op": "Lambda", "expression": f"parse_time(_, {written!r})"}
        parts: dict[str, Any] = {"parts": DAY_PARTS} if written == day else {}
        why = f"string, a time as {written}: its parts, in UTC{lost}"
        return Decision(name, why, (parse, {"op": "DateParts", **parts}))
    if signs := written_number(others):
        decimal, group = signs
        arguments = f"decimal={decimal!r}" + (f", group={group!r}" if group else "")
        numbers = pa.chunked_array([parse_number(others.combine_chunks(), decimal, group)[0]])
        amount = _amount(
            name, f"string, a number with {arguments}", numbers, nulls + len(values) - len(others), whole, False
        )
        parse = {"op": "Lambda", "expression": f"parse_number(_, {arguments})"}
        return Decision(name, f"{amount.why}{lost}", (parse, *amount.ops) if amount.ops else ())
    return None


def _category(name: str, seen: str, distinct: int, few: bool, values: pa.ChunkedArray) -> Decision:
    spec: dict[str, Any] = {"op": "Categorify"}
    if distinct > LARGE:
        spec |= {"freq_threshold": 2, "max_size": 1_000_000}
        seen += ": values that occur once share an id, and there are 1,000,000 ids at most"
    elif few and not pa.types.is_boolean(values.type):
        seen += ": few, so taken as codes; for an amount write FillMissing, Normalize"
    if pa.types.is_string(values.type) and (marks := _marks(values)[1]):
        seen += f"; {', '.join(map(json.dumps, marks))} in it may mean null: if so, name it in source.null_values"
    return Decision(name, seen, (spec,))


def _amount(name: str, kind: str, values: pa.ChunkedArray, nulls: int, whole: bool, lists: bool) -> Decision:
    finite = values.filter(pc.is_finite(values))
    if len(finite) < len(values):
        return Decision(name, "it has infinities, which Normalize refuses: mend them, or begin with Clip")
    ops: list[Mapping[str, Any]] = []
    words = []
    if nulls:
        median = pc.quantile(values, 0.5, interpolation="lower")[0].as_py()
        zeros = median == 0 <= pc.min(values).as_py()
        ops.append({"op": "FillMissing"} if zeros else {"op": "FillMedian"})
        seen = f"{nulls:,} null(s){'' if whole else ' in the sample'}"
        words.append(f"filled with {'0, its most common value' if zeros else 'the median'}")
    else:
        seen = "no null" if whole else "no null in the sample"
        if not whole or lists:
            ops.append({"op": "FillMissing"})
            words.append("others are filled with 0")
    skew = pc.skew(values).as_py()
    if pc.min(values).as_py() >= 0 and skew is not None and skew > SKEWED:
        ops.append({"op": "LogOp"})
        words.append(f"logarithm (skewness {skew:.1f})")
    ops.append({"op": "Normalize"})
    return Decision(name, f"{kind}, {seen}: {', '.join([*words, 'scaled'])}", tuple(ops))


def _without_clashes(decisions: Iterable[Decision], names: Sequence[str]) -> list[Decision]:
    """The same decisions; parts of times get another prefix where a column has their name already."""
    taken, result = set(names), []
    for decision in decisions:
        if decision.ops and decision.ops[-1]["op"] == "DateParts":
            prefix = decision.name
            while any(f"{prefix}_{part}" in taken for part in ALL_PARTS):
                prefix += "_part"
            if prefix != decision.name:
                decision = Decision(
                    decision.name, decision.why, (*decision.ops[:-1], {**decision.ops[-1], "prefix": prefix})
                )
        result.append(decision)
    return result


def _joint(decisions: Sequence[Decision], sample: pa.Table) -> list[Decision]:
    """The same decisions; columns of ids that share most of their values share a vocabulary.

    Numbers count from 1 in every table: they share one only where their names end alike, such as user_id and
    friend_user_id.
    """
    values = {
        d.name: pc.unique(sample.column(d.name).drop_null())
        for d in decisions
        if d.ops and d.ops[0]["op"] == "Categorify" and not is_list(sample.schema.field(d.name).type)
    }
    groups: dict[str, list[str]] = {}
    for name in values:
        for other in values:
            if other == name:
                groups[name] = [name]
                break
            if groups[other][0] == other and _shares(name, other, values):
                groups[name] = groups[other]
                groups[name].append(name)
                break
    specs = {d.name: d.ops[0] for d in decisions if d.ops}
    result = []
    for decision in decisions:
        members = tuple(groups.get(decision.name, ()))
        if len(members) > 1:
            largest = max((specs[member] for member in members), key=len)
            decision = Decision(decision.name, decision.why, (largest,), members)
        result.append(decision)
    return result


def _shares(name: str, other: str, values: Mapping[str, pa.Array]) -> bool:
    one, two = values[name], values[other]
    if one.type != two.type or min(len(one), len(two)) < UNIQUE_FROM:
        return False
    if not pa.types.is_string(one.type) and not (name.endswith(f"_{other}") or other.endswith(f"_{name}")):
        return False
    smaller, larger = sorted((one, two), key=len)
    return bool(pc.sum(pc.is_in(smaller, value_set=larger)).as_py() >= SHARED * len(smaller))


# The text


def _written(
    data: Dataset,
    sample: pa.Table,
    nulls: list[str],
    decisions: list[Decision],
    target: str | None,
    named: bool,
    layout: Mapping[str, Any],
) -> Iterable[str]:
    rows = data.num_rows
    yield "# yaml-language-server: $schema=job.schema.json"
    yield "# (Editors complete and check the job with that file: millrace schema > job.schema.json.)"
    yield "# A draft by millrace new: read it, mend it, then millrace preview and millrace run."
    yield f"# Exact: {rows:,} rows, {len(data.schema):,} columns, {len(data.plan.files):,} file(s), names and types."
    if sample.num_rows < rows:
        blocks = len(data.plan.blocks)
        yield f"# Sampled: values, nulls and skewness are those of {sample.num_rows:,} rows, the first of the first,"
        yield f"# the middle and the last block (of {blocks:,}). What the other rows hold is not known here."
    else:
        yield "# Values, nulls and skewness are exact, too: all rows were read."
    yield "source:"
    source = data.as_source()
    if source is None:
        yield "  path: data  # the rows came from a frame: name the files here"
        source = {"path": "data"}
    else:
        if settings := [name for name in layout if name not in ("missing", "bad_lines")]:
            yield f"  # The first lines of the first file need this: {', '.join(settings)}."
        yield from (f"  # {_line(note)}." for note in uniting_notes(data.plan, data.schema))
        if bad := bad_lines_of(data.plan):
            yield f"  # {_line(bad_lines_text(bad))}."
        yield from _source_lines(source, nulls)
    yield "features:"
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
    if left_out := [decision for decision in decisions if not decision.ops]:
        yield "# Left out:"
        yield from (f"#   {_name(decision.name)}: {_line(decision.why)}" for decision in left_out)
    if target is None:
        yield "# No column is named like a label: name it with --label COLUMN, or here."
        yield "label: []"
    else:
        yield from _label_lines(sample.column(target), target, named)
    yield "output:"
    yield f"  path: {_flow(_output(source['path']))}"
    yield "  shuffle: full  # over all rows"
    yield "  seed: 0"


def _source_lines(source: dict[str, Any], nulls: list[str]) -> Iterable[str]:
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
    if not _is_number(values.type):
        yield f"# It is written as {dtype_name(values.type)}: if a model needs a number, make one with Lambda."
    yield f"label: {_flow([target])}"


def _output(source: str | list[str]) -> str:
    """A folder beside the source, below out/ where that is possible."""
    first = source if isinstance(source, str) else source[0]
    stem = re.sub(r"\W+", "-", Path(first.rstrip("/*")).stem).strip("-") or "data"
    path = f"out/{stem}"
    try:
        refuse_inside(source, path)
    except JobError:
        return str(Path(os.path.realpath(first)).parent / f"{stem}-out")
    return path


def _no_pattern(path: str) -> str:
    """A path as a job writes it, in which braces are dates."""
    return path.replace("{", "{{").replace("}", "}}")


def _flow(value: Any) -> str:
    """A value as YAML in one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=float("inf"))
    return text.removesuffix("\n").removesuffix("\n...")


def _name(name: str) -> str:
    return name if name.isprintable() else json.dumps(name)


def _line(text: str) -> str:
    return " ".join(text.split())
