"""`Dataset`: the rows of files or frames, in a fixed order, read by partition."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.cluster.current import current_pool, graph_share
from tasks.cluster.parallelism import dividing_threads
from tasks.cluster.transfer import gpu_setup
from tasks.core.dtypes import dtype_name
from tasks.core.plan import Partition, Plan, cut_partitions
from tasks.core.schema import Schema
from tasks.core.settings import Source, checked, parse_bytes
from tasks.engines.convert import libraries
from tasks.engines.user_frames import dask_frame
from tasks.errors import JobError, near
from tasks.manifest import chosen_versions
from tasks.shuffle.group_by_keys import by_keys
from tasks.sources.bad_lines import bad_lines_of, bad_lines_text, target_of, write_bad_lines
from tasks.sources.frames import Frames, frames_of
from tasks.sources.planning import PARTITION, make_plan, shared_out
from tasks.sources.reader import FramePlan, checked_names, read
from tasks.sources.reading_rules import LAYOUT, ROWS, Fit, differences, with_values
from tasks.sources.uniting import uniting_notes
from tasks.storage.files import is_remote, local_path

log = logging.getLogger("millrace")
ENGINES = ("auto", "pandas", "cudf")


class Dataset:
    """The rows of files or frames, in a fixed order, read by partition.

    source: a path, a folder, a glob, an fsspec URL, or a list of these; or a pandas, Arrow, cuDF, Dask or dask_cudf
        frame, or a list of pandas, Arrow or cuDF frames.
    partition_size: decoded bytes of a partition, a number or a text (64MiB, 1GB). By default there are several
        partitions for each core (of the current Dask client's workers, else of this host), of 1GB at most.
    versions: of an output with versions: `all`, `v0003..v0007`, `v0003..` or `v0003`, read one after another; by
        default the newest one. Discarded versions are left out, with a warning.
    engine: pandas, cudf, or auto (default): cudf on a host with cuDF and a GPU, else pandas.

    All other parameters are for files; with a frame they are a JobError. They mean the same as in a job's `source`:

    format: parquet, csv, tsv, jsonl, orc, avro, arrow, or auto (default): by the suffix of the files.
    part_mem_fraction: partition_size as a part of this host's memory, above 0 and up to 1.
    schema: {column: type}, as text or Arrow type, instead of the types that are inferred.
    columns: the names of the columns of text files without a header.
    storage_options: for URLs, a dict, or the name of one that the host or a Prefect Secret block holds.
    header, null_values, delimiter: of text files; True, [""], and a comma or a tab by default.
    skip_rows: lines at the beginning of each CSV or TSV file, before its header; 0 by default.
    quote, escape, comment: of CSV and TSV, one character each: around values (a double quote by default, "" for none),
        before a quote, delimiter or line end that is a letter, and at the beginning of lines that are no rows.
    bad_lines: what happens to lines of CSV, TSV and JSON lines that cannot be read: "error" (default), "skip", or the
        path of a file that gets them as JSON lines (file, line, why, text). They are counted in a warning.
    decimal, encoding: of CSV and TSV; a point and utf-8 by default, else a comma; latin-1, windows-1252 or utf-16.
    missing: what a column is that some files lack: "error" (default) once it is read, or "null" in the rows of these
        files. Files are united by name, integers and floats, dates and timestamps by the wider type.

    A fitted workflow reads a data set that leaves out `schema` and the parameters of text files as it read the data set
    that it was fitted on. Nothing is read before it is needed; then every file is inspected once (`plan`). NaN in a
    column of floats is null. Errors: a JobError for a parameter that is wrong and for a source that does not exist; a
    DataError for a source without rows, for two columns of one name, and for a file that cannot be read or that changed
    since it was inspected.

    >>> Dataset(pa.table({"x": [1, 2, 3]})).head(2)
       x
    0  1
    1  2
    """

    def __init__(
        self,
        source: Any,
        format: str = "auto",
        partition_size: int | str | None = None,
        part_mem_fraction: float | None = None,
        engine: str = "auto",
        schema: dict[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        storage_options: str | dict[str, Any] | None = None,
        *,
        header: bool | None = None,
        null_values: Sequence[str] | None = None,
        delimiter: str | None = None,
        skip_rows: int | None = None,
        decimal: str | None = None,
        encoding: str | None = None,
        quote: str | None = None,
        escape: str | None = None,
        comment: str | None = None,
        bad_lines: str | os.PathLike[str] | None = None,
        missing: str | None = None,
        versions: str | None = None,
    ) -> None:
        if engine not in ENGINES:
            raise JobError(f"{engine!r} is no engine", where="Dataset", do=near(engine, ENGINES))
        if versions is not None:
            source = _versions(source, versions)
        self.source, self.engine = source, engine
        self._section: Source | None = None
        self._fit: Fit | None = None
        self._partition_size = partition_size
        self._noted: set[str] = set()  # what was logged
        dtypes = schema and {name: t if isinstance(t, str) else dtype_name(t) for name, t in schema.items()}
        values = {
            "format": None if format == "auto" else format,
            "part_mem_fraction": part_mem_fraction,
            "columns": None if columns is None else list(columns),
            "storage_options": storage_options,
            "header": header,
            "null_values": None if null_values is None else list(null_values),
            "delimiter": delimiter,
            "skip_rows": skip_rows,
            "decimal": decimal,
            "encoding": encoding,
            "quote": quote,
            "escape": escape,
            "comment": comment,
            "bad_lines": None if bad_lines is None else os.fspath(bad_lines),
            "missing": missing,
            "schema": dtypes,
        }
        values = {name: value for name, value in values.items() if value is not None}
        if _is_path(source):
            path = os.fspath(source) if isinstance(source, (str, os.PathLike)) else [os.fspath(p) for p in source]
            size = {} if partition_size is None else {"partition_size": partition_size}
            self._section = checked(Source, {"path": path, **size, **values}, "Dataset")
        elif values:
            raise JobError(
                f"a data set of a frame takes no {', '.join(values)}",
                where="Dataset",
                why="these parameters say how files are read",
                do="change the frame before, or give a path",
            )

    @cached_property
    def frames(self) -> Frames | None:
        """The rows in memory; None for a source of files."""
        return None if self._section else frames_of(self.source)

    @cached_property
    def plan(self) -> Plan:
        """Files, blocks, partitions, row numbers and schema; every file is inspected once."""
        if self.frames is not None:
            blocks = self.frames.blocks()
            size = self._bytes_of_a_partition(sum(block.nbytes for block in blocks))
            return Plan((), "frame", self.frames.schema, blocks, cut_partitions(blocks, size))
        assert self._section is not None
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if self._section.part_mem_fraction else None
        target = target_of(self._section)
        with ThreadPoolExecutor(min(16, 2 * (os.cpu_count() or 1))) as pool:
            threads = self._threads
            plan = make_plan(self._section, parallel_map=pool.map, memory=memory, threads=threads, fit=self._fit)
        bad = bad_lines_of(plan)
        if target:
            write_bad_lines(target, [(plan, bad)])
        if bad:
            log.warning("%s", bad_lines_text(bad))
        return plan

    def warn_of_differences(self, columns: Iterable[str]) -> None:
        """Log, once for each, which of the columns some files lack or have in a narrower type."""
        for text in uniting_notes(self.plan, {*columns}):
            if text not in self._noted:
                self._noted.add(text)
                log.warning("files that differ are united: %s", text)

    @property
    def _threads(self) -> int | None:
        """The threads for which partitions are cut; None if their size is set."""
        sized = self._partition_size or (self._section and self._section.part_mem_fraction)
        if sized:
            return None
        return dividing_threads(libraries.resolve_engine(self.engine), current_pool(gpu_setup.allocatable))

    def _bytes_of_a_partition(self, total: int) -> int:
        threads = self._threads
        return parse_bytes(self._partition_size or PARTITION) if threads is None else shared_out(total, threads)

    @property
    def schema(self) -> Schema:
        """Names and types of the columns."""
        return self.plan.schema

    @property
    def num_rows(self) -> int:
        """The number of rows; lines of text files are counted."""
        return self.plan.rows

    @property
    def npartitions(self) -> int:
        """The number of partitions."""
        return len(self.plan.partitions)

    @property
    def handle(self) -> Plan | FramePlan:
        """What a worker needs to read partitions: the plan; for frames also their tables, or futures of them."""
        return self.plan if self.frames is None else FramePlan(self.plan, self.frames)

    def shuffle_by_keys(self, keys: str | Sequence[str], sort_by: str | Sequence[str] = ()) -> Dataset:
        """The same rows with all rows of a key in one partition, sorted by (key hash, keys, sort_by, row number).

        `keys` and `sort_by` are names of columns; a null key is a key like any other. The rows are written to temporary
        files, which are removed with the last reference to the result. Row numbers, hence folds, stay what they were.
        Errors: a JobError for a column that does not exist, and for a list or struct, which has no order.
        """
        folder = _Scratch(tempfile.mkdtemp(prefix="millrace-keys-"))
        names, sort = ([n] if isinstance(n, str) else list(n) for n in (keys, sort_by))
        engine, size = libraries.resolve_engine(self.engine), self._bytes_of_a_partition(self.plan.nbytes)
        try:
            pool = current_pool(gpu_setup.allocatable)
            plan = by_keys(self.handle, self.plan, names, sort, engine, pool, Path(folder.path), size)
        except BaseException:
            folder.remove()
            raise
        object.__setattr__(plan, "scratch", folder)  # the files live as long as the plan
        return _Keyed(self, plan, names, sort)

    def as_fitted(self, reading: Mapping[str, Any]) -> Dataset:
        """The same rows, read by the rules of a fit (`tasks.sources.reading_rules`) where this data set sets none.

        The fit's filter, keys and sort_by do not count: a data set is read whole.
        """
        reading = {name: value for name, value in reading.items() if name not in ROWS}
        if self._section is None or not reading:
            return self
        fit, section = Fit.of(self._section, reading), with_values(self._section, reading)
        laid_out = {name for name in LAYOUT if name in reading} | ({"format"} if "by_suffix" in reading else set())
        if section == self._section and not laid_out - {*fit.own}:
            return self
        other = copy(self)
        other.__dict__.pop("plan", None)
        other._section, other._fit = section, fit
        return other

    def differences(self, reading: Mapping[str, Any]) -> list[str]:
        """The differences between the rules by which values are read here and in a fit, a text for each."""
        if self._section is None:
            return []
        values = {name: value for name, value in reading.items() if name not in ROWS}
        return differences(self._section, values, self.plan.reading.get("format", ""))

    @property
    def own_types(self) -> tuple[str, ...]:
        """The columns whose types this data set sets itself."""
        if self._fit is not None:
            return self._fit.own_types
        return tuple(self._section.schema_ or ()) if self._section else ()

    @property
    def null_values(self) -> list[str]:
        """The texts that mean null in text files."""
        return list(self._section.null_values) if self._section else []

    def with_null_values(self, texts: Sequence[str]) -> Dataset:
        """The same files, read with these texts as null: types are inferred anew. A JobError for frames."""
        if self._section is None:
            raise JobError("a data set of a frame takes no null_values", where="Dataset", do="change the frame before")
        other = copy(self)
        other.__dict__.pop("plan", None)
        other._section = self._section.model_copy(update={"null_values": list(texts)})
        return other

    def as_source(self) -> dict[str, Any] | None:
        """The section `source` of a job that reads the same rows, as far as it is set; None for frames."""
        section = self._section
        return None if section is None else section.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def in_types(self, schema: Schema) -> Dataset:
        """The same rows with their columns in the types of a schema that has the same names."""
        plan = replace(self.plan, schema=schema)
        object.__setattr__(plan, "scratch", getattr(self.plan, "scratch", None))
        return _Replanned(self, plan, self.frames and replace(self.frames, schema=schema))

    def to_iter(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """The partitions one after another, as frames of the engine (pandas with Arrow types, or cuDF).

        `columns` are the columns to read, in this order (default: all); a DataError for one that does not exist.
        """
        engine = libraries.resolve_engine(self.engine)
        self.warn_of_differences(checked_names(self.plan, columns))
        for partition in self.plan.partitions:
            yield libraries.to_frame(read(self.handle, partition, columns), engine)

    def head(self, n: int = 5) -> Any:
        """The first n rows as a frame of the engine; fewer if there are fewer."""
        tables, rows = [], 0
        self.warn_of_differences(self.schema)
        for block in self.plan.blocks:
            if rows >= n:
                break
            tables.append(read(self.handle, Partition(0, (block,))).slice(0, n - rows))
            rows += tables[-1].num_rows
        return libraries.to_frame(pa.concat_tables(tables), libraries.resolve_engine(self.engine))

    def to_ddf(self, columns: Sequence[str] | None = None) -> Any:
        """A Dask frame (dask_cudf with the engine cudf), with a partition for each partition of this data set.

        `columns` are the columns to read, in this order (default: all); a DataError for one that does not exist.
        """
        engine = libraries.resolve_engine(self.engine)
        names = checked_names(self.plan, columns)
        self.warn_of_differences(names)
        empty = pa.schema([(n, self.schema[n].dtype) for n in names]).empty_table()
        handle = (self.handle, names, engine)
        return dask_frame(_read_frame, handle, graph_share(handle, self.npartitions), self.npartitions, empty, engine)


class _Scratch:
    """A folder of temporary files, removed with the last reference in the process that made it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.remove = weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (self.path,)


class _Replanned(Dataset):
    """The rows of a data set as another plan says: in another order, or in other types."""

    def __init__(self, origin: Dataset, plan: Plan, frames: Frames | None = None) -> None:
        self.source, self.engine = origin.source, origin.engine
        self._section, self._fit, self._partition_size = None, None, origin._partition_size
        self._noted = origin._noted
        self.__dict__ |= {"plan": plan, "frames": frames}


class _Keyed(_Replanned):
    """The rows of a data set, brought together by keys."""

    def __init__(self, origin: Dataset, plan: Plan, keys: list[str], sort_by: list[str]) -> None:
        super().__init__(origin, plan)
        self.origin, self.keys, self.sort_by = origin, keys, sort_by

    def as_fitted(self, reading: Mapping[str, Any]) -> Dataset:
        again = self.origin.as_fitted(reading)
        return self if again is self.origin else again.shuffle_by_keys(self.keys, self.sort_by)

    def differences(self, reading: Mapping[str, Any]) -> list[str]:
        return self.origin.differences(reading)

    @property
    def own_types(self) -> tuple[str, ...]:
        return self.origin.own_types


def _read_frame(handle: tuple[Plan | FramePlan, Sequence[str], str], number: int) -> Any:
    source, columns, engine = handle
    return libraries.to_frame(read(source, number, columns), engine)


def _versions(source: Any, versions: str) -> list[str]:
    """The folders of the versions of an output."""
    if not isinstance(source, (str, os.PathLike)) or is_remote(os.fspath(source)):
        raise JobError("versions belongs to one output of this host", where="Dataset",
                       do="give its folder as source, or leave versions out")  # fmt: skip
    return [str(path) for path in chosen_versions(Path(local_path(os.fspath(source))), versions)]


def _is_path(source: Any) -> bool:
    if isinstance(source, (str, os.PathLike)):
        return True
    return isinstance(source, (list, tuple)) and all(isinstance(s, (str, os.PathLike)) for s in source)
