"""Texts that write null, a number or a time."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tasks.dataset import Dataset
from tasks.engines.algorithms.text_times import find_time_format
from tasks.engines.algorithms.written_numbers import SIGNS
from tasks.engines.expression.text_functions import parse_number

NULL_TEXTS = ("NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "Null", "None", "none", "nil", "-", "?", "\\N")
NUMBER = r"^[ \t]*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[ \t]*$"
TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?( UTC|Z|[+-][0-9]{2}:[0-9]{2})?)?$"


def null_texts(data: Dataset, sample: pa.Table) -> list[str]:
    """Return the texts that mean null in columns that hold nothing else but numbers or times."""
    if data.plan.format not in ("csv", "tsv"):
        return []
    texts: set[str] = set()
    for name in sample.column_names:
        column = sample.column(name)
        if name in data.own_types or not pa.types.is_string(column.type):
            continue
        others, marks = marks_in(column)
        patterns = len(others) and (all_match(others, NUMBER) or all_match(others, TIME))
        if marks and (patterns or detect_number_signs(others) or find_time_format(others)):
            texts.update(marks)
    return [text for text in NULL_TEXTS if text in texts]


def marks_in(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, list[str]]:
    """Return the values of a column of texts that are not null texts, and the null texts in it."""
    values = column.drop_null()
    is_mark = pc.is_in(values, value_set=pa.array(NULL_TEXTS))
    return values.filter(pc.invert(is_mark)), sorted(values.filter(is_mark).unique().to_pylist())


def detect_number_signs(values: pa.ChunkedArray) -> tuple[str, str | None] | None:
    """The decimal sign and the sign between groups of digits of texts that are all numbers; None for other texts, and
    for digits alone, which are codes more often than amounts.

    >>> detect_number_signs(pa.chunked_array([["1.234,50", "7"]])), detect_number_signs(pa.chunked_array([["12", "7"]]))
    ((',', '.'), None)
    """
    distinct = pc.unique(values)
    if not len(distinct) or not pc.any(pc.match_substring_regex(distinct, "[.,]")).as_py():
        return None
    return next((s for s in SIGNS if writes(distinct, s)), None)


def writes(distinct: pa.Array, signs: tuple[str, str | None]) -> bool:
    """Tell whether texts are numbers with a decimal sign and a sign between groups of digits."""
    return not parse_number(distinct, *signs)[0].null_count


def all_match(values: pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(values, pattern)).as_py())
