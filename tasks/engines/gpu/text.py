"""Texts and times on the GPU. What cuDF writes or reads otherwise than Arrow goes through Arrow on the host."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

import cudf
import pyarrow as pa
import pyarrow.compute as pc
import pylibcudf as plc

from tasks.engines.algorithms.separators import escapes
from tasks.engines.algorithms.text_casts import times_of
from tasks.engines.convert.gpu_types import lacks_zone
from tasks.engines.gpu.columns import (
    Column,
    column,
    device,
    dtype,
    from_numbers,
    from_pylibcudf,
    host,
    numbers,
    renumber_rows,
)

FORMS = {10: "%Y-%m-%d", 19: "%Y-%m-%d %H:%M:%S"}  # length -> form, and the same with a T
PARTS = {
    "hour": "hour",
    "minute": "minute",
    "second": "second",
    "weekday": "weekday",
    "day": "day",
    "month": "month",
    "year": "year",
    "dayofyear": "day_of_year",
}


def text(values: Column) -> Column:
    """The values as text: integers in decimal digits, booleans true and false, strings as they are."""
    here = dtype(values)
    if here == pa.string():
        return values
    if pa.types.is_boolean(here):
        words = [plc.Scalar.from_py(word) for word in ("true", "false")]
        return from_pylibcudf(plc.strings.convert.convert_booleans.from_booleans(device(values), *words))
    if pa.types.is_integer(here):
        return renumber_rows(values.astype("str"))
    return column(pc.cast(host(values), pa.string()))


def join_text(columns: list[Column], sep: str, escape: bool = False) -> Column:
    """The values of each row as one text; null if any is null. Plain strings. With `escape`, separators in values are
    escaped."""
    texts = [text(c) for c in columns]
    plain = from_pylibcudf(concat_texts([device(t) for t in texts], sep))
    tests, replacements = escapes(sep) if escape else ([], [])
    ambiguous = [mask for t in texts for test, part in tests if bool((mask := _passing(t, test, part)).any())]
    if not ambiguous:
        return plain
    for letter, replacement in replacements:
        texts = [t.str.replace(letter, replacement, regex=False) for t in texts]
    escaped = from_pylibcudf(concat_texts([device(t) for t in texts], sep))
    where = device(functools.reduce(operator.or_, ambiguous))
    return from_pylibcudf(plc.copying.copy_if_else(device(escaped), device(plain), where))


def _passing(texts: Column, test: str, part: str) -> Column:
    """Which texts pass a test; a null passes none."""
    if test == "contains":
        mask = texts.str.contains(part, regex=False)
    else:
        mask = texts.str.startswith(part) if test == "starts" else texts.str.endswith(part)
    return renumber_rows(mask.fillna(False))


def concat_texts(texts: Sequence[plc.Column], sep: str) -> plc.Column:
    """The texts of each row, one after another; null if any is null. (cuDF's `str.cat` makes "" of one row's null.)"""
    kind = plc.DataType(plc.TypeId.STRING)
    between = plc.Scalar.from_py(sep, kind)
    null = plc.Scalar.from_py(None, kind)
    return plc.strings.combine.concatenate(plc.Table(list(texts)), between, null)


def split_text(values: Column, sep: str, parts: int) -> list[Column]:
    """The first `parts` parts of each text (the last one holds no rest); missing parts are null."""
    lists = plc.strings.split.split.split_record(device(values), plc.Scalar.from_py(sep), -1)
    return [from_pylibcudf(plc.lists.extract_list_element(lists, number)) for number in range(parts)]


def to_time(values: Column) -> Column:
    """Timestamps, in UTC, of a column of times, dates or ISO texts, which may end in UTC, Z or an offset."""
    here = dtype(values)
    if here == pa.string():
        return _parse_times(values)
    if lacks_zone(here):
        return from_numbers(*numbers(values), pa.timestamp(here.unit))
    return values.dt.tz_convert(None) if getattr(values.dtype, "tz", None) is not None else values


def _parse_times(texts: Column) -> Column:
    """Texts of one of two fixed forms on the device, all others by Arrow."""
    bare = texts.str.replace(r"\s*(UTC|Z|\+00:?00)$", "", regex=True)
    sizes = bare.str.byte_count()
    if bare.null_count < len(bare) and sizes.min() == sizes.max() and int(sizes.max()) in FORMS:
        form = FORMS[int(sizes.max())]
        for pattern in (form, form.replace(" ", "T")):
            fits = from_pylibcudf(plc.strings.convert.convert_datetime.is_timestamp(device(bare), pattern))
            if bool(fits.all()):
                unit = plc.DataType(plc.TypeId.TIMESTAMP_MICROSECONDS)
                return from_pylibcudf(plc.strings.convert.convert_datetime.to_timestamps(device(bare), unit, pattern))
    return column(times_of(host(bare), pa.timestamp("us")))


def date_part(values: Column, part: str) -> Column:
    """hour, minute, second, weekday (Monday 0), day, month, year or dayofyear in UTC, int16; null stays."""
    series: cudf.Series = getattr(to_time(values).dt, PARTS[part]).astype("int16")
    series.name = None
    return renumber_rows(series)
