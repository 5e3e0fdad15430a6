"""One file of any format as a table, read as a source reads it: side tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from tasks.core.dtypes import parse_dtype, plain_type
from tasks.core.plan import LIMITS, File
from tasks.core.settings import Source
from tasks.errors import DataError, JobError, near
from tasks.sources.formats import FORMATS, check_settings, format_of, read_options, with_recognised
from tasks.sources.formats.survey import NUMBER_TEXTS

_SKIP = re.compile(r"; or[^;]*source\.bad_lines: skip|, or leave the file out of source\.path")  # not for side tables


def table_of(file: File, read: Mapping[str, Any]) -> pa.Table:
    """The rows of a file by settings of a source, which errors call `read`.

    Where these name no `null_values`, those of Arrow (NA, NaN, null, ..) are null in columns that are not text, and
    every text is itself.
    """
    try:
        return _read_table(Source.model_validate({"path": file.path, **read}), file)
    except (DataError, JobError) as error:
        where = re.sub(r"^source\.", "read.", error.where)
        do = _SKIP.sub("", error.do)
        do = re.sub(r"\bsource\.", "read.", do)
        raise type(error)(error.what, where=where, why=error.why, do=do) from None


def _read_table(source: Source, file: File) -> pa.Table:
    files = [file]
    path = file.path
    name = format_of(files, source.format)
    check_settings(source, name)
    source, _ = with_recognised(source, name, files)
    options = read_options(source)
    options["header"] = options["header"] and "header" in FORMATS[name].layout
    if "null_values" not in source.model_fields_set:
        options |= {"null_values": pacsv.ConvertOptions().null_values, "texts_are_null": False}
    if not files[0].size:
        raise DataError("a side table has no columns", where=path, why="the file is empty", do="replace the file")
    (item,) = FORMATS[name].survey(files, options, LIMITS, map)
    for what, where, why, do in item.repeated.values():  # all columns of a side table are read
        raise DataError(what, where=where, why=why, do=do)
    types = {f.name: pa.string() if pa.types.is_null(f.type) else f.type for f in item.schema}
    for column, dtype in (source.schema_ or {}).items():
        if column not in types:
            raise JobError(
                f"read.schema names a column {column!r} that is not there", where=path, do=near(column, types)
            )
        types[column] = plain_type(parse_dtype(dtype))
    schema = pa.schema(types.items())
    pieces = [unit.piece for unit in item.units]
    options |= {"names": item.schema.names, "other_names": {}, NUMBER_TEXTS: item.number_texts}
    return FORMATS[name].read([item.file], pieces, schema, options) if pieces else schema.empty_table()
