"""Samples as files: rows are made in blocks, on threads, and every file appears whole or not at all.

Threads, since nearly all the time is spent in numpy and Arrow without the interpreter's lock; they need no guard in the
caller's script and work inside a Dask worker.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from flows.sample import criteo, ecommerce, sample_batches, toy, wide
from flows.sample.sample_batches import NEW_IDS, START, SampleBatch, make_batch
from flows.sample.sample_columns import plain
from tasks.errors import JobError, near
from tasks.storage.files import local_folder
from tasks.storage.sample_data import MARKER, marker

Block = Callable[..., pa.Table]

BLOCKS: dict[str, Block] = {"toy": toy.block, "criteo": criteo.block, "ecommerce": ecommerce.block, "wide": wide.block}
FORMATS = ("parquet", "csv", "tsv")
BLOCK_ROWS = {"cpu": 1 << 17, "device": 1 << 20}
ROW_GROUP_ROWS = 1_000_000
FILE_ROWS = 4_000_000
WIDE_CELLS = {"block": 1 << 22, "file": 1 << 26}  # numbers made at a time, and in a file, of the wide sample
WIDE_GROUP_ROWS = 1 << 16
# Columns whose dictionaries stay small enough to be worth their page.
DICTIONARY = ["id", "name", "label", "event_type", "product_id", "category_id", "category_code", "brand"]
DICTIONARY += [name for name, count in criteo.CARDINALITY.items() if count <= 1_000_000]
RULE = 1  # raise it when the same (name, rows, seed) gives other rows


@dataclass(frozen=True)
class WrittenSample:
    """What makes two samples the same, and how it is cut into files."""

    name: str
    rows: int
    seed: int
    format: str = "parquet"
    drift: bool = False
    files: int = 1
    rule: int = RULE
    columns: int | None = None
    night: SampleBatch | None = None

    def to_marker(self) -> dict[str, Any]:
        """As the marker holds it."""
        written = {key: value for key, value in asdict(self).items() if value is not None}
        if self.night:
            of = self.night
            written["night"] = {"start": of.start.isoformat(), "number": of.number, "mean": of.mean}
            written["night"] |= {"new_ids": of.new_ids, "rule": sample_batches.RULE}
        return written

    def part(self, number: int) -> str:
        return f"part-{number:05d}.{self.format}"

    def cut(self, number: int) -> tuple[int, int]:
        """First row of a file, and the one after its last."""
        return number * self.rows // self.files, (number + 1) * self.rows // self.files


@dataclass(frozen=True)
class SampleSummary:
    """What lies in the folder; `seconds` is the time this call took, nearly none if all was there already."""

    name: str
    rows: int
    files: int
    bytes: int
    seconds: float
    batches: int = 0


class Variant(TypedDict, total=False):
    """What only some samples have. drift: December 2019, for ecommerce alone. columns: for wide alone, 100 unless given
    (beside the target)."""

    drift: bool
    columns: int | None


class FileOptions(TypedDict, total=False):
    """How a sample is written. format: parquet (snappy, row groups of a million rows, of 65,536 for wide), csv (with a
    header) or tsv (without one). files: one per 4 million rows, or 67 million numbers of wide. workers: threads, one
    per core. engine: "cpu", or an array module such as cupy to draw on its device."""

    files: int | None
    format: str
    workers: int | None
    engine: str | ModuleType


def sample_table(
    name: str, start: int, stop: int, rows: int, seed: int = 0, *, xp: ModuleType = np, **variant: Unpack[Variant]
) -> pa.Table:
    """Rows start .. stop - 1 of the sample of `rows` rows, in host memory; `xp` is numpy or CuPy and draws them.

    Errors: JobError for an unknown name or a range outside 0 .. rows.
    """
    sample = _check_sample(WrittenSample(name, rows, seed, files=1, **variant))
    if not 0 <= start <= stop <= rows:
        raise JobError(f"rows {start} .. {stop} are not in the sample", why=f"it has {rows} rows")
    return plain(_block(sample, start, stop, xp))


def make_batch_table(of: SampleBatch, start: int = 0, stop: int | None = None, *, xp: ModuleType = np) -> pa.Table:
    """Rows start .. stop - 1 of one night of the shop, all of them unless given, as `sample_table` gives them."""
    return plain(sample_batches.block(start, of.rows if stop is None else stop, of, xp))


def make_sample(
    name: str,
    path: str | os.PathLike[str],
    rows: int,
    seed: int = 0,
    *,
    drift: bool = False,
    columns: int | None = None,
    **options: Unpack[FileOptions],
) -> SampleSummary:
    """Writes part-00000.<format> .. into the folder `path`; a folder that holds the same sample is completed or kept.

    name: toy, criteo, ecommerce or wide. The rest is as in `Variant` and `FileOptions`.
    Errors: JobError for a bad parameter, or a folder that holds anything else.
    """
    began = time.perf_counter()
    path = local_folder(path, "the folder of the sample", "path")
    sample = _plan_files(Path(path), WrittenSample(name, rows, seed, drift=drift, columns=columns), options)
    size = _write([(Path(path), sample)], options)
    return SampleSummary(name, rows, sample.files, size, time.perf_counter() - began)


def make_batches(
    path: str | os.PathLike[str],
    batch_count: int,
    rows: int,
    seed: int = 0,
    *,
    start: dt.date = START,
    new_ids: float = NEW_IDS,
    only: Collection[dt.date] = (),
    **options: Unpack[FileOptions],
) -> SampleSummary:
    """Writes a folder for each night of the shop, `path`/2026-10-01 .., which drift from one to the next.

    nights: how many days from `start` on. rows: of a night in the mean, before weekday, trend and noise. new_ids: users
    who come for the first time, per row, 0.02 .. 1. only: days to write, all unless given; a night has the same bytes
    whatever else is written. options: as in `FileOptions`; `files` are those of each night.
    Errors: JobError for a bad parameter, a day that is none of the nights, or a folder of a night that holds anything
    else.
    """
    began = time.perf_counter()
    path = local_folder(path, "the folder of the sample", "path")
    if batch_count < 1:
        raise JobError(f"{batch_count} nights cannot be made", do="give 1 or more")
    if batch_count > (dt.date.max - start).days + 1:
        do = "give an earlier day, or fewer nights"
        raise JobError("the nights go beyond the year 9999", why=f"{batch_count} nights from {start}", do=do)
    days = [start + dt.timedelta(number) for number in range(batch_count)]
    strange = sorted(set(only) - set(days))
    if strange:
        last = f"there are {days[0]} .. {days[-1]}"
        raise JobError(f"{strange[0]} is none of the nights", why=last, do="give another day, or more nights")
    samples = []
    for number, day in enumerate(days):
        if not only or day in only:
            of = make_batch(number, rows, seed, start, new_ids)
            folder = Path(path) / day.isoformat()
            samples.append((folder, _plan_files(folder, WrittenSample("ecommerce", of.rows, seed, night=of), options)))
    size = _write(samples, options)
    total = (sum(one.rows for _, one in samples), sum(one.files for _, one in samples), size)
    return SampleSummary("ecommerce", *total, time.perf_counter() - began, len(samples))


def _write(samples: Sequence[tuple[Path, WrittenSample]], options: FileOptions) -> int:
    """Writes the missing parts of samples into their folders; the bytes of all parts."""
    xp = _array_module(options.get("engine", "cpu"))
    workers = options.get("workers")
    workers = workers if workers is not None else len(os.sched_getaffinity(0))
    if workers < 1:
        raise JobError(f"workers is {workers}", do="give 1 or more, or leave it out for one per core")
    for folder, sample in samples:
        _claim(folder, sample)
    parts = [(folder, sample, number) for folder, sample in samples for number in range(sample.files)]
    missing = [(folder, sample, number) for folder, sample, number in parts if not _there(folder, sample, number)]
    if missing:
        _block(missing[0][1], 0, 1, xp)  # builds the tables once, before the threads want them
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda part: _write_part(part[0], part[1], part[2], xp), missing))
    return sum((folder / sample.part(number)).stat().st_size for folder, sample, number in parts)


def _there(folder: Path, sample: WrittenSample, number: int) -> bool:
    return (folder / sample.part(number)).exists()


def _block(sample: WrittenSample, start: int, stop: int, xp: ModuleType) -> pa.Table:
    if sample.night:
        return sample_batches.block(start, stop, sample.night, xp)
    options: dict[str, Any] = {"drift": sample.drift} if sample.name == "ecommerce" else {}
    if sample.name == "wide":
        options = {"columns": sample.columns}
    return BLOCKS[sample.name](start, stop, sample.rows, sample.seed, xp=xp, **options)


def _check_sample(sample: WrittenSample) -> WrittenSample:
    """Refuses what cannot be; the sample with the number of columns that wide has, None for the others."""
    name = sample.name
    rows = sample.rows
    columns = sample.columns
    if name not in BLOCKS:
        raise JobError(f"no sample is called {name!r}", do=near(name, BLOCKS))
    if rows < 1:
        raise JobError(f"a sample of {rows} rows", do="give 1 or more")
    if sample.drift and name != "ecommerce":
        raise JobError(f"{name} has no drifted month", do="leave drift out, or take the sample 'ecommerce'")
    if columns is not None and name != "wide":
        raise JobError(f"{name} has columns of its own", do="leave columns out, or take the sample 'wide'")
    if columns is not None and not 1 <= columns <= wide.MOST_COLUMNS:
        raise JobError(f"a sample of {columns} columns", do=f"give 1 .. {wide.MOST_COLUMNS}")
    return replace(sample, columns=(columns or wide.COLUMNS) if name == "wide" else None)


def _plan_files(folder: Path, sample: WrittenSample, options: FileOptions) -> WrittenSample:
    """Plan the sample in the files asked for; without `files`, a folder that holds it decides how many."""
    sample = _check_sample(sample)
    format = options.get("format", "parquet")
    files = options.get("files")
    if format not in FORMATS:
        raise JobError(f"no format is called {format!r}", do=near(format, FORMATS))
    rows = sample.rows
    if files is not None and not 1 <= files <= rows:
        raise JobError(f"{rows} rows cannot make {files} files", do=f"give 1 .. {rows} files, or leave files out")
    file_rows = max(1, WIDE_CELLS["file"] // sample.columns) if sample.columns else FILE_ROWS
    sample = replace(sample, format=format, files=files or max(1, round(rows / file_rows)))
    there = marker(folder)
    if files is None and "files" in there:
        existing = replace(sample, files=there["files"])
        return existing if existing.to_marker() == there else sample
    return sample


def _array_module(engine: str | ModuleType) -> ModuleType:
    if engine == "cpu":
        return np
    if isinstance(engine, str):
        raise JobError(f"no engine is called {engine!r}", do="give 'cpu', or an array module such as cupy itself")
    return engine


def _claim(folder: Path, sample: WrittenSample) -> None:
    """Marks an empty folder as this sample's before its first part, so that a killed run can go on; refuses others.

    Names that begin with an underscore do not count: another process may be marking the same folder at this moment.
    """
    if folder.exists() and not folder.is_dir():
        raise JobError("the sample needs a folder", where=str(folder), why="it is a file", do="give another path")
    there = marker(folder)
    if there == sample.to_marker():
        _refuse_strangers(folder, sample)
        return
    if there or (folder.exists() and any(not entry.name.startswith("_") for entry in folder.iterdir())):
        content = ", ".join(f"{key} {value}" for key, value in there.items()) or "files that no sample wrote"
        raise JobError(
            f"the folder is not empty and not this sample of {sample.name}",
            where=str(folder),
            why=f"it holds {content}",
            do="give another path, or remove the folder first",
        )
    folder.mkdir(parents=True, exist_ok=True)
    _atomically(folder / MARKER, lambda temporary: temporary.write_text(json.dumps(sample.to_marker(), indent=1)))


def _refuse_strangers(folder: Path, sample: WrittenSample) -> None:
    """Raise a JobError where a reader of the folder would take other files for rows of the sample."""
    own = {sample.part(number) for number in range(sample.files)}
    strange = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith(("_", ".")))
    strange = [name for name in strange if name not in own]
    if strange:
        raise JobError(
            f"the folder of a sample of {sample.name} holds other files",
            where=str(folder),
            why="they would be read as its rows: " + ", ".join(strange[:5]) + (", .." if len(strange) > 5 else ""),
            do="move them away, or give another path",
        )


def _atomically(target: Path, write: Callable[[Path], object]) -> None:
    """Lets `write` fill a file beside the target, hidden from readers, then renames it; a failure leaves nothing."""
    temporary = target.with_name(f"_{target.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        write(temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _write_part(folder: Path, sample: WrittenSample, number: int, xp: ModuleType) -> None:
    write = _write_parquet if sample.format == "parquet" else _write_text
    groups = _row_groups(sample, number, xp)
    _atomically(folder / sample.part(number), lambda temporary: write(temporary, sample, groups))


def _row_groups(sample: WrittenSample, number: int, xp: ModuleType) -> Iterator[pa.Table]:
    """Return the rows of a file, a row group at a time, made in blocks that end at multiples of the block size."""
    size = BLOCK_ROWS["cpu" if xp is np else "device"]
    if sample.columns:
        size = max(1, min(size, WIDE_CELLS["block"] // sample.columns))
    start, stop = sample.cut(number)
    group = WIDE_GROUP_ROWS if sample.columns else ROW_GROUP_ROWS
    for first in range(start, stop, group):
        last = min(first + group, stop)
        edges = [first, *range((first // size + 1) * size, last, size), last]
        yield pa.concat_tables(_block(sample, a, b, xp) for a, b in itertools.pairwise(edges))


def _write_parquet(target: Path, sample: WrittenSample, groups: Iterator[pa.Table]) -> None:
    first = next(groups)
    dictionary = [name for name in first.column_names if name in DICTIONARY]
    # Without the Arrow schema in the footer, readers see plain strings where the writer was given dictionaries.
    options = {"compression": "snappy", "use_dictionary": dictionary, "store_schema": False}
    with pq.ParquetWriter(target, first.schema, **options) as writer:
        writer.write_table(first, row_group_size=ROW_GROUP_ROWS)
        del first  # one group in memory at a time
        for table in groups:
            writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
            del table


def _write_text(target: Path, sample: WrittenSample, groups: Iterator[pa.Table]) -> None:
    """No value of any sample needs quotes; a null is an empty field."""
    delimiter = "," if sample.format == "csv" else "\t"
    options = pyarrow.csv.WriteOptions(include_header=False, delimiter=delimiter, quoting_style="none")
    with target.open("wb") as file:
        for number, table in enumerate(groups):
            if number == 0 and sample.format == "csv":
                file.write((delimiter.join(table.column_names) + "\n").encode())
            pyarrow.csv.write_csv(_as_text(plain(table)), file, options)


def _as_text(table: pa.Table) -> pa.Table:
    """Return the table as its original writes it: event_time as "2019-11-01 00:00:00 UTC"; times to the second."""
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            text = table[field.name].cast(pa.timestamp("s")).cast(pa.string())
            if field.name == "event_time":
                text = pc.binary_join_element_wise(text, "UTC", " ")
            table = table.set_column(place, field.name, text)
    return table
