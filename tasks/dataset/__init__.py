"""`Dataset`: the rows of files or frames, in a fixed order, read by partition."""

from __future__ import annotations

import inspect
import logging
import os
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, Never

import pyarrow as pa

from tasks.cluster.current import current_pool, using
from tasks.cluster.dask_frames import dask_frame, delay_parts
from tasks.cluster.dask_pool import DaskPool
from tasks.cluster.pool import Pool
from tasks.cluster.transfer import gpu_setup
from tasks.core.nvtabular import KnownFromNVTabular, of_parameter
from tasks.core.plan import NUMBERED_ROWS, Input, Partition, Plan, Sizing
from tasks.core.schema import Schema
from tasks.core.settings import TABLES, Source, make_section
from tasks.dataset.chosen_rows import RULES, ChosenRows, check_condition
from tasks.dataset.file_plans import (
    choose_sizing,
    note_unread_lines,
    open_local_outputs,
    plan_files,
    with_common_columns,
)
from tasks.dataset.parameters import (
    check_engine,
    describe_source,
    is_path,
    list_version_folders,
    name_types,
    read_as_fitted,
)
from tasks.dataset.partition_rows import (
    count_rows,
    measure_own_frame,
    pick_columns,
    read_frame,
    read_partition_table,
    renumber_blocks,
    store_partitions,
)
from tasks.dataset.rows_by_key import check_sorting, group_rows
from tasks.engines.convert import libraries
from tasks.engines.matrices import Matrices, matrix_type
from tasks.engines.types import DataFrame
from tasks.errors import JobError, near
from tasks.graph.partition_work import Work
from tasks.graph.row_rules import ALL_ROWS, RowRules, make_no_row_error
from tasks.sources.frames import (
    Frames,
    check_dask_frame,
    dask_schema,
    frames_of,
    index_of,
    is_dask_collection,
    own_frame,
    to_table,
)
from tasks.sources.planning import partition_size
from tasks.sources.reader import FramePlan, resolve_columns
from tasks.sources.reading_rules import ROWS, Fit, differences
from tasks.sources.uniting import uniting_notes

if TYPE_CHECKING:
    import dask.array as da
    import dask.dataframe as dd
    import numpy.typing as npt
    from distributed import Client

log = logging.getLogger("rowmill")
LAZY = (
    "the %s partitions of the Dask frame are computed to count their rows, and again in each pass, which checks that "
    "they are the same: Dataset(..).persist() computes them once"
)
INDEX = "the index of the frame is left out (%s): index='NAME' makes it a column"


class Dataset(KnownFromNVTabular):
    """The rows of files or frames, in a fixed order, read by partition.

    source: a path, a folder, a glob, an fsspec URL, or a list of these; or a pandas, Arrow, cuDF, Dask or dask_cudf
        frame, or a list of pandas, Arrow or cuDF frames. Frames stay where they are: cuDF frames on the GPU with the
        engine cudf, and partitions of a Dask frame with its workers, which compute them anew in each pass (`persist`).
    partition_size: decoded bytes of a partition, a number or a text (64MiB, 1GB). By default there are several
        partitions for each core (of the client's workers, else of this host), of 1GB at most; of a Dask frame its own,
        which a size divides and does not join.
    versions: of an output with versions: `all`, `v0003..v0007`, `v0003..` or `v0003`, read one after another; by
        default the newest one. Discarded versions are left out, with a warning, and so are those that have other ids
        than the newest one.
    engine: pandas, cudf, or auto (default): cudf on a host with cuDF and a GPU, else pandas, for which frames of cuDF
        are copied to the host.
    index: the name of a column that gets the index of a frame; by default the index is left out, with a warning unless
        it only numbers the rows.
    client: the Dask client whose workers work on the rows; by default the current one, if any, else threads. `fit`,
        `transform` and `to_parquet` take another.

    All other parameters are for files; with a frame they are a JobError. They mean the same as in a job's `source`:

    format: parquet, csv, tsv, jsonl, orc, avro, arrow, or auto (default): by the suffix of the files. With iceberg or
        delta, source is a table: catalog.database.table, or a folder or URL.
    snapshot, version, as_of, since: which state of a table is read; the current one by default.
    part_mem_fraction: partition_size as a share of the memory of one worker, on GPUs of its GPU, above 0 and up to 1.
    schema: {column: type}, as text or Arrow type, instead of the types that are inferred.
    columns: the names of the columns of text files without a header.
    storage_options: for URLs, a dict, or the name of one that the host or a Prefect Secret block holds.
    header, null_values, delimiter: of text files; True, [""], and a comma or a tab by default.
    skip_rows: lines at the beginning of each CSV or TSV file, before its header; 0 by default.
    skip_initial_space: whether spaces behind the delimiters of CSV and TSV are left out; by default they are where each
        delimiter of the header and the first rows has one.
    quote, escape, comment: of CSV and TSV, one character each: around values (a double quote by default, "" for none),
        before a quote, delimiter or line end that is a letter, and at the beginning of lines that are not rows.
    bad_lines: what happens to lines of CSV, TSV and JSON lines that cannot be read: "error" (default), "skip", or the
        path of a file that gets them as JSON lines (file, line, why, text). They are counted in a warning.
    decimal, encoding: of CSV and TSV; a point and utf-8 by default, else a comma; utf-16, latin-1, windows-1252, gbk,
        shift-jis or any other text encoding of Python.
    missing: what a column is that some files lack: "error" (default) once it is read, or "null" in the rows of these
        files. Files are united by name, integers and floats, dates and timestamps by the wider type.
    explode: the column of lists whose elements become rows, each with the other columns of its row. A field of a struct
        is then `events.aid`. Rows whose list is empty or null are left out; the log counts them.
    max_record_bytes, max_block_bytes: bytes of one line of text, at most (16MiB by default), and of what a reader has
        to decode at once (a quarter of the memory that a process may use).

    A fitted workflow reads a data set that leaves out `schema` and the parameters of text files as it read the data set
    that it was fitted on. Nothing is read before it is needed; then every file is inspected once (`plan`). NaN in a
    column of floats is null. Errors: a JobError for a parameter that is wrong and for a source that does not exist; a
    DataError for a source without rows, for a file that cannot be read, for two columns of one name (in files, if one
    of them is used), and for a file or a partition of a Dask frame that changed since it was inspected.

    >>> Dataset(pa.table({"x": [1, 2, 3]})).head(2)
       x
    0  1
    1  2
    """

    _known_as = "Dataset"
    _is_persisted = False  # whether the workers have the partitions of a Dask frame

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
        skip_initial_space: bool | None = None,
        decimal: str | None = None,
        encoding: str | None = None,
        quote: str | None = None,
        escape: str | None = None,
        comment: str | None = None,
        bad_lines: str | os.PathLike[str] | None = None,
        missing: str | None = None,
        explode: str | None = None,
        max_record_bytes: int | str | None = None,
        max_block_bytes: int | str | None = None,
        snapshot: int | None = None,
        version: int | None = None,
        as_of: str | None = None,
        since: int | None = None,
        versions: str | None = None,
        index: str | None = None,
        client: Client | None = None,
        **unknown: Never,  # type checkers refuse any
    ) -> None:
        if unknown:
            name = next(iter(unknown))
            known = [*inspect.signature(Dataset).parameters][:-1]
            do = of_parameter("Dataset", name) or near(name, known)
            raise JobError(f"{name!r} is not a parameter of Dataset", where="Dataset", do=do)
        check_engine(engine)
        self._versions = None if versions is None else list_version_folders(source, versions, storage_options)
        if self._versions is not None:
            source = self._versions.folders
        self.source = source
        self.engine = engine
        self.client = client
        self._index = index
        self._section: Source | None = None
        self._fit: Fit | None = None
        self._rows: ChosenRows[Dataset] | None = None
        self._noted: set[str] = set()  # what was logged
        values = {
            "format": None if format == "auto" or format in TABLES else format,
            "columns": None if columns is None else list(columns),
            "storage_options": storage_options,
            "header": header,
            "null_values": None if null_values is None else list(null_values),
            "delimiter": delimiter,
            "skip_rows": skip_rows,
            "skip_initial_space": skip_initial_space,
            "decimal": decimal,
            "encoding": encoding,
            "quote": quote,
            "escape": escape,
            "comment": comment,
            "bad_lines": None if bad_lines is None else os.fspath(bad_lines),
            "missing": missing,
            "explode": explode,
            "max_record_bytes": max_record_bytes,
            "max_block_bytes": max_block_bytes,
            "snapshot": snapshot,
            "version": version,
            "as_of": as_of,
            "since": since,
            "schema": schema and name_types(schema),
        }
        values = {name: value for name, value in values.items() if value is not None}
        size = {
            name: value
            for name, value in (("partition_size", partition_size), ("part_mem_fraction", part_mem_fraction))
            if value is not None
        }
        if is_path(source):
            path = os.fspath(source) if isinstance(source, (str, os.PathLike)) else [os.fspath(p) for p in source]
            if index is not None:
                raise JobError("files have no index", where=f"Dataset, index={index!r}", do="leave index out")
            key = format if format in TABLES else "path"
            self._section = make_section(Source, {key: path, **size, **values}, "Dataset")
        elif values:
            raise JobError(
                f"a data set of a frame takes no {', '.join(values)}",
                where="Dataset",
                why="these parameters say how files are read",
                do="change the frame before, or give a path",
            )
        elif is_dask_collection(source):
            check_dask_frame(source)
        self._size = self._section or make_section(Source, {"path": ".", **size}, "Dataset")

    def __repr__(self) -> str:
        texts = [describe_source(self.source), f"engine={self.engine!r}"]
        if "plan" in self.__dict__ or (self._rows and "plan" in self._rows.dataset.__dict__):
            texts += [f"columns={reprlib.repr(list(self.schema))}", f"partitions={self.npartitions}"]
        return f"Dataset({', '.join(texts)})"

    @cached_property
    def frames(self) -> Frames | None:
        """The frames that have the rows; None for a source of files."""
        if self._rows:
            return self._rows.dataset.frames
        if self._section:
            return None
        engine = libraries.resolve_engine(self.engine)
        frames = frames_of(
            self.source, engine, self._index, lambda alone: self.pool.map(measure_own_frame, engine, alone)
        )
        if frames.indexes:
            self._warn_once(INDEX, frames.indexes[0])
        if self._is_lazy and not self._is_persisted:
            log.info(LAZY, len(frames.inputs))
        elif frames.inputs and isinstance(self.pool, DaskPool):
            log.info("each pass copies the cuDF frame of this process to workers; persist() does so once")
        first = self.source[0] if isinstance(self.source, (list, tuple)) else self.source
        if engine != "cudf" and type(first).__module__.startswith(("cudf", "dask_cudf")):
            log.info("the cuDF frame is copied to the host, since the engine is pandas")
        return frames

    def _warn_once(self, message: str, text: str) -> None:
        """Log a warning about a text, unless it was logged before."""
        if text not in self._noted:
            self._noted.add(text)
            log.warning(message, text)

    @property
    def _is_lazy(self) -> bool:
        return self._section is None and is_dask_collection(self.source)

    @cached_property
    def _own_schema(self) -> Schema | None:
        """The schema of a Dask frame as the frame itself describes it; None for other sources, and where the
        description leaves a type open."""
        return dask_schema(self.source, self._index) if type(self) is Dataset and self._is_lazy else None

    @cached_property
    def plan(self) -> Plan:
        """Files, blocks, partitions, row numbers and schema; every file is inspected once. Of all rows of the source,
        also those that `unique`, `split` and `downsample` leave out."""
        if self._rows:
            return self._rows.dataset.plan
        if self.frames is not None:
            blocks = self.frames.blocks()
            total = sum(block.nbytes for block in blocks)
            is_cut = not self._is_lazy or self._size.partition_size or self._size.part_mem_fraction
            size = self._bytes_of_a_partition(total) if is_cut else total
            return Plan((), "frame", self.frames.schema, blocks, self.frames.partitions(blocks, size))
        assert self._section is not None
        plan = plan_files(self._section, self._sizing, self._fit)
        if self._versions is not None:
            plan = with_common_columns(plan, self._versions)
        self._opened = open_local_outputs(plan)
        note_unread_lines(self._section, plan)
        return plan

    def warn_of_differences(self, columns: Iterable[str]) -> None:
        """Log, once for each, which of the columns some files lack or have in a narrower type, or stay text."""
        for text in uniting_notes(self.plan, {*columns}):
            self._warn_once("how columns are read: %s", text)

    @property
    def _sizing(self) -> Sizing:
        """The threads for which partitions are cut, or the memory of which they take a set fraction."""
        if self._size.partition_size:
            return Sizing()
        return choose_sizing(self._size, libraries.resolve_engine(self.engine), self.pool)

    def _bytes_of_a_partition(self, total: int) -> int:
        return partition_size(self._size, total, self._sizing)

    def with_client(self, client: Client | None) -> Dataset:
        """The same rows, worked on by the workers of this Dask client; None changes nothing."""
        if client is None or client is self.client:
            return self
        with using(client):
            _ = self.frames and self.plan  # rows of frames are counted once
        other = copy(self)
        other.client = client
        other._rows = self._rows and replace(self._rows, dataset=self._rows.dataset.with_client(client))
        return other

    @property
    def pool(self) -> Pool:
        """What works on the partitions: the cluster of `client`, else of the current one, else threads."""
        engine = libraries.resolve_engine(self.engine)
        with using(self.client):
            return current_pool(gpu_setup.allocatable, lambda client: gpu_setup.prepare_workers(client, engine))

    @property
    def schema(self) -> Schema:
        """Names and types of the columns. Those of a Dask frame are as the frame describes them; where it leaves a
        type open (objects of Python, unknown categories), the partitions are computed."""
        if self._rows:
            return self._rows.with_weight(self.plan.schema)
        if "plan" not in self.__dict__ and self._own_schema is not None:
            return self._own_schema
        return self.plan.schema

    def __len__(self) -> int:
        """The number of rows, as `num_rows` has it."""
        return self.num_rows

    def __bool__(self) -> bool:
        return True  # not by its length, which may cost a pass

    @property
    def num_rows(self) -> int:
        """The number of rows; lines of text files are counted, and so are the rows that rules keep, in a pass."""
        return self.plan.rows if self._rows is None else sum(self.row_counts(self.plan.partitions))

    def row_counts(self, partitions: Sequence[Partition]) -> list[int]:
        """The number of rows of each partition; of a data set with rules those that they keep, in a pass. A DataError
        for a split without a row."""
        if self._rows is None:
            return [partition.rows for partition in partitions]
        counts = self.pool.map(count_rows, self._work([]), partitions)
        if self._rows.split and not any(counts) and len(partitions) == self.npartitions:
            raise make_no_row_error(self._rows.rules.splitting)
        return counts

    @property
    def npartitions(self) -> int:
        """The number of partitions."""
        return self.source.npartitions if self._keeps_partitions else len(self.plan.partitions)

    @property
    def _keeps_partitions(self) -> bool:
        """Whether this is a Dask frame with its own partitions, of which nothing was computed yet."""
        return self._is_own_frame and "plan" not in self.__dict__

    @property
    def _is_own_frame(self) -> bool:
        """Whether these are the rows and partitions of a Dask frame, in types that the frame itself describes."""
        is_divided = self._size.partition_size or self._size.part_mem_fraction
        if self._rows or is_divided or self._own_schema is None:
            return False
        return self.schema.to_arrow().equals(self._own_schema.to_arrow())  # else its rows had other types

    @property
    def handle(self) -> Plan | FramePlan:
        """What a worker needs to read partitions: the plan; for frames also their tables, or futures of them."""
        return self.plan if self.frames is None else FramePlan(self.plan, self.frames)

    def unique(
        self, keys: str | Sequence[str], keep: Literal["first", "last"] = "first", by: str | None = None
    ) -> Dataset:
        """The data set without the rows whose key another row has: over all files, exact, as `source.unique` of a job.

        Of the rows with equal `keys` the first stays, or the last, in the order of the column `by` (a time), or of the
        rows without it. A null key equals a null key; a null in `by` loses to any value; of equal values the first (or
        last) row stays. Nothing is read before the rows are needed. Errors: a JobError behind `split` or `downsample`,
        which come after it, and, once the rows are needed, for a column that does not exist or has no order.

        >>> Dataset(pa.table({"u": ["a", "b", "a"], "t": [2, 5, 1]}), engine="pandas").unique("u", by="t").head()
           u  t
        0  b  5
        1  a  1
        """
        names = [keys] if isinstance(keys, str) else list(keys)
        return self._add_rule("unique", {"keys": names, "keep": keep, "by": by}, behind=("split", "downsample"))

    def split(
        self,
        by: str,
        valid: object = None,
        test: object = None,
        *,
        column: str | None = None,
        together: str | Sequence[str] = (),
        seed: int = 0,
        look_back: bool | None = None,
        unit: Literal["s", "ms", "us", "ns"] | None = None,
    ) -> dict[str, Dataset]:
        """The rows as data sets by name: `train`, then `valid` and `test` as far as they are named.

        The parameters are the keys of a job's `source.split`, and the rows of each split are those of the job's: by
        "time" (moments, or the last shares of the rows), "last" (the last rows of each key), "hash" (whole keys),
        "fraction" (rows) or "column" (values). To learn from train alone, fit on it:

            splits = Dataset("clicks/").split("last", column="t", together="user", valid=1, test=1)
            workflow.fit_transform(splits["train"]).to_parquet("out/train")
            workflow.transform(splits["test"]).to_parquet("out/test")

        With "last", histories and groups of valid and test see the rows of earlier splits as the past, unless
        `look_back` is False; with "time" if it is True. Moments split numbers, too, that count s, ms, us or ns since
        1970: all values tell which, unless `unit` does. Rows may be brought together (`shuffle_by_keys`) before or
        after. Nothing is read before the rows are needed. Errors: a JobError for parameters that contradict each other
        and, once the rows are needed, for a column that does not exist, for texts as times, and for numbers that do not
        tell what they count; a DataError for a split without a row.

        >>> splits = Dataset(pa.table({"t": [3, 1, 2, 4]}), engine="pandas").split("time", column="t", test=0.25)
        >>> {name: rows.head()["t"].tolist() for name, rows in splits.items()}
        {'train': [3, 1, 2], 'test': [4]}
        """
        names = [together] if isinstance(together, str) else list(together)
        values = {
            "by": by,
            "column": column,
            "together": names,
            "valid": valid,
            "test": test,
            "seed": seed,
            "look_back": look_back,
            "unit": unit,
        }
        whole = self._add_rule("split", values)
        assert whole._rows is not None
        splits: dict[str, Dataset] = {}
        for name in whole._rows.source.splits:
            splits[name] = copy(whole)
            splits[name]._rows = replace(whole._rows, split=name)
        return splits

    def downsample(
        self, where: str, fraction: float, weight: str | None = None, seed: int = 0, *, strict: bool = False
    ) -> Dataset:
        """The data set with a part of the rows for which the expression `where` is true, as `source.downsample` does.

        A hash of `seed` and row number decides which stay, whatever the partitions and workers; `fraction` is the part
        that stays. `weight` names a new column, float32: 1 / fraction for these rows, 1 for others. Before `split` it
        is meant for train: all rows of valid and test stay, with the weight 1. A cast or a parse in `where` that fails
        is null, so that the row stays, and counted in a warning; with `strict` it is a DataError. Errors: a JobError
        for an expression that cannot be read, for a fraction that is not above 0 and up to 1, for valid and test, and,
        once the rows are needed, for a column that does not exist or a weight that does.

        >>> rows = Dataset(pa.table({"label": [0, 1, 0, 0, 0]}), engine="pandas").downsample("label == 0", 0.5, "w")
        >>> rows.head().to_dict("list")
        {'label': [0, 1, 0, 0], 'w': [2.0, 1.0, 2.0, 2.0]}
        """
        if self._rows and self._rows.split not in ("", "train"):
            what = f"the rows of {self._rows.split} are not down-sampled"
            raise JobError(
                what,
                where="Dataset.downsample",
                why="only rows that are learned from are",
                do="down-sample train, or all rows before split",
            )
        check_condition(where)
        values = {"where": where, "fraction": fraction, "weight": weight, "seed": seed}
        ruled = self._add_rule("downsample", values)
        assert ruled._rows is not None
        ruled._rows = replace(ruled._rows, source=ruled._rows.source.model_copy(update={"strict": strict}))
        return ruled

    def _add_rule(self, name: str, values: dict[str, Any], behind: Sequence[str] = ()) -> Dataset:
        """The data set with one more rule on its rows."""
        where = f"Dataset.{name}"
        known = self._rows or ChosenRows[Dataset](self._unkeyed, Source(path="."))
        for other in (name, *behind):
            if getattr(known.source, other) is None:
                continue
            what = f"{name} is called after {other}"
            do = f"call {name} before {other}"
            if other == name:
                what = f"{name} is called twice"
                do = f"call {name} once"
            why = "rows are made unique, then split and down-sampled, each once"
            raise JobError(what, where=where, why=why, do=do)
        ruled = copy(self)
        ruled._rows = known.with_rule(name, make_section(RULES[name], values, where))
        return ruled

    @property
    def _unkeyed(self) -> Dataset:
        """The data set whose row numbers count."""
        return self

    @property
    def rules(self) -> RowRules:
        """Which rows a pass leaves out; what only a look at all rows tells is looked for once."""
        return self._rows.rules if self._rows else ALL_ROWS

    @property
    def rules_text(self) -> dict[str, Any]:
        """The rules on rows by their name, as a manifest has them; {} without any."""
        return self._rows.described if self._rows else {}

    def _work(self, columns: Sequence[str]) -> Work:
        """What reads the rows that rules keep."""
        engine = libraries.resolve_engine(self.engine)
        return pick_columns(self.handle, self.schema, engine, columns, self.rules)

    def shuffle_by_keys(self, keys: str | Sequence[str], sort_by: str | Sequence[str] = ()) -> Dataset:
        """The same rows with all rows of a key in one partition, sorted by (key hash, keys, sort_by, row number).

        `keys` and `sort_by` are names of columns; a null key is a key like any other. The rows are written to temporary
        files, which are removed with the last reference to the result. Row numbers, hence folds, stay what they were,
        and so do the rows that `unique`, `split` and `downsample` choose, before or after.
        Errors: a JobError for a column that does not exist, and for a list or struct, which has no order.
        """
        names, sort = ([n] if isinstance(n, str) else list(n) for n in (keys, sort_by))
        size = self._bytes_of_a_partition(self.plan.nbytes)
        check_sorting(self, sort)
        fresh = RowRules(self._rows.repeated if self._rows else None)  # as in a job with source.keys
        plan = group_rows(self, fresh, names, sort, size)
        return _KeyedRows(self, plan, names, sort)

    def as_fitted(self, reading: Mapping[str, Any]) -> Dataset:
        """The same rows, read by the rules of a fit (`tasks.sources.reading_rules`) where this data set sets none.

        The fit's filter, keys and sort_by do not count: a data set is read whole.
        """
        reading = {name: value for name, value in reading.items() if name not in ROWS}
        if self._section is None or not reading:
            return self
        if self._rows:
            rows = self._rows.as_fitted(reading)
            if rows is self._rows:
                return self
            other = copy(self)
            other.__dict__.pop("plan", None)
            other._rows = rows
            other._section = rows.dataset._section
            other._fit = rows.dataset._fit
            return other
        fitted = read_as_fitted(self._section, reading)
        if fitted is None:
            return self
        other = copy(self)
        other.__dict__.pop("plan", None)
        other._section, other._fit = fitted
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
    def exact(self) -> set[str]:
        """The columns whose values decide about rows here, and not by calculation alone."""
        keyed = self.plan.options.get("keyed", {})
        of_rules = self._rows.exact if self._rows else set()
        return of_rules | {*keyed.get("keys", ()), *keyed.get("sort_by", ())}

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
        if self._rows:
            other._rows = replace(self._rows, dataset=self._rows.dataset.with_null_values(texts), shared={})
        return other

    def as_source(self) -> dict[str, Any] | None:
        """The section `source` of a job that reads the same rows, as far as it is set; None for frames."""
        section = self._section
        if section is None:
            return None
        rules = self._rows.sections if self._rows else {}
        return section.model_dump(mode="json", by_alias=True, exclude_unset=True) | rules

    def in_types(self, plan: Plan) -> Dataset:
        """The same rows as this plan of them reads their columns: in other types."""
        plan, schema = replace(plan), plan.schema
        object.__setattr__(plan, "scratch", getattr(self.plan, "scratch", None))
        return _Replanned(self, plan, self.frames and replace(self.frames, schema=schema))

    def to_iter(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """The partitions one after another, as frames of the engine (pandas with Arrow types, or cuDF).

        `columns` are the columns to read, in this order (default: all); a DataError for one that does not exist.
        """
        engine = libraries.resolve_engine(self.engine)
        names, source = self._reading(columns)
        for partition in self.plan.partitions:
            with using(self.client):
                frame = read_frame((source, names, engine), partition)
            yield frame

    def _reading(self, columns: Sequence[str] | None) -> tuple[list[str], Plan | FramePlan | Work]:
        """(the columns to read, all but the row number where none are named; what reads them); a DataError for a column
        that is not there."""
        names = resolve_columns(replace(self.plan, schema=self.schema), columns)
        self.warn_of_differences(names)
        stays = libraries.resolve_engine(self.engine) == "cudf" and self.frames is not None and self.frames.inputs
        return names, self.handle if self._rows is None and not stays else self._work(names)

    def head(self, n: int = 5) -> DataFrame:
        """The first n rows as a frame of the engine; fewer if there are fewer.

        Of a Dask frame only the first partitions are computed.
        """
        if self._keeps_partitions and (first := self._first_rows(n)) is not None:
            return first
        tables = list[pa.Table]()
        rows = 0
        _, source = self._reading(None)
        for block in self.plan.blocks:
            if rows >= n and tables:
                break
            with using(self.client):
                tables.append(read_partition_table(source, None, self.plan.alone(block), n - rows))
            rows += tables[-1].num_rows
        return libraries.to_frame(pa.concat_tables(tables), libraries.resolve_engine(self.engine))

    def _first_rows(self, n: int) -> DataFrame | None:
        """The first n rows of a Dask frame whose partitions nothing has computed yet; None if it has no row."""
        frame = self.to_ddf()
        tables = list[pa.Table]()
        rows = 0
        for number in range(frame.npartitions):
            with using(self.client):
                tables.append(to_table(frame.get_partition(number).compute().head(n - rows)))
            rows += tables[-1].num_rows
            if rows >= n:
                break
        if not rows:
            return None
        return libraries.to_frame(pa.concat_tables(tables), libraries.resolve_engine(self.engine))

    def to_ddf(self, columns: Sequence[str] | None = None) -> dd.DataFrame:
        """A Dask frame (dask_cudf with the engine cudf), with a partition for each partition of this data set.

        `columns` are the columns to read, in this order (default: all); a DataError for one that does not exist.
        Nothing is computed. Of a Dask frame it is the frame itself, in the types of the engine.
        """
        engine = libraries.resolve_engine(self.engine)
        if self._own_schema is not None and self._is_own_frame:
            names = resolve_columns(Plan((), "frame", self._own_schema, (), ()), columns)
            if self._index is None and (index := index_of(self.source._meta)):
                self._warn_once(INDEX, index)
            return own_frame(self.source, names, self._own_schema, engine, self._index)
        names, source = self._reading(columns)
        empty = pa.schema([(n, self.schema[n].dtype) for n in names]).empty_table()
        with using(self.client):
            return dask_frame(read_frame, (source, names, engine), self.plan.partitions, empty, engine)

    def persist(self) -> Dataset:
        """The data set with its partitions computed once, and in memory where they are: with a client on its workers.

        Passes then read nothing, and a Dask frame whose rows differ from one computation to the next can be used. The
        rows, their numbers and what `unique`, `split` and `downsample` leave out stay the same. The memory is free
        again with the last reference to the result. `dask.persist(dataset)` and `distributed.wait(dataset)` do nothing,
        since a Dataset is not a Dask collection; the next pass waits for the partitions.
        """
        rules = self._rows
        if type(self) is Dataset and (rules or self._is_lazy):
            other = copy(self)
            other.__dict__ = {name: value for name, value in [*self.__dict__.items()] if name not in ("plan", "frames")}
            if rules:
                other._rows = replace(rules, dataset=rules.dataset.persist(), shared={})
                return other
            with using(self.client):
                other.source = self.source.persist()
                other._is_persisted = True
            return other
        plan = self.plan
        work = pick_columns(self.handle, plan.schema, libraries.resolve_engine(self.engine))
        stored = store_partitions(self.pool, work, plan.partitions)
        inputs = [Input(p.number, frame, p.rows) for p, frame in zip(plan.partitions, stored, strict=True)]
        partitions = tuple(
            Partition(one.number, renumber_blocks(plan.partitions[one.number]), (one,)) for one in inputs
        )
        blocks = tuple(block for partition in partitions for block in partition.blocks)
        options = {name: value for name, value in plan.options.items() if name in ("keyed", NUMBERED_ROWS)}
        again = replace(plan, files=(), format="frame", blocks=blocks, partitions=partitions, options=options)
        return _Replanned(self, again, Frames((), (), (), plan.schema, tuple(inputs)))

    def to_dask_array(self, columns: Sequence[str] | None = None, dtype: npt.DTypeLike | None = None) -> da.Array:
        """A Dask array of columns of numbers: NumPy chunks, CuPy with the engine cudf, one for each partition.

        The columns have this order (default: all), and by default the type that holds all. Null is NaN; in an array of
        another type than floats it is a DataError. Sizes of chunks are known; `unique`, `split` and `downsample` cost a
        pass for it. A JobError for a column that is not of numbers or booleans, or that `dtype` does not hold.

        >>> Dataset(pa.table({"x": [1, 2, 3], "y": [0.5, None, 1.5]})).to_dask_array(["x", "y"]).compute()
        array([[1. , 0.5],
               [2. , nan],
               [3. , 1.5]])
        """
        matrices = self.matrices(columns, dtype)
        partitions = self.plan.partitions
        with using(self.client):
            blocks = delay_parts(Matrices.read, matrices, partitions, "matrix")
        return matrices.stack_blocks(blocks, self.row_counts(partitions), len(matrices.names))

    def matrices(self, columns: Sequence[str] | None = None, dtype: npt.DTypeLike | None = None) -> Matrices:
        """What reads partitions as the matrices of which `to_dask_array` consists."""
        names, source = self._reading(columns)
        engine = libraries.resolve_engine(self.engine)
        frame = partial(read_frame, (source, names, engine))
        return Matrices(frame, tuple(names), matrix_type(self.schema, names, dtype), engine)


class _Replanned(Dataset):
    """The rows of a data set as another plan says: in another order, in other types, or in memory."""

    def __init__(self, origin: Dataset, plan: Plan, frames: Frames | None = None) -> None:
        self.source = origin.source
        self.engine = origin.engine
        self.client = origin.client
        self._index = None
        self._section = None
        self._fit = None
        self._size = origin._size
        self._noted = origin._noted
        self._rows = origin._rows
        self._origin = origin
        self.__dict__ |= {"plan": plan, "frames": frames}

    @property
    def _unkeyed(self) -> Dataset:
        return self._origin._unkeyed

    def differences(self, reading: Mapping[str, Any]) -> list[str]:
        return self._origin.differences(reading)

    @property
    def own_types(self) -> tuple[str, ...]:
        return self._origin.own_types


class _KeyedRows(_Replanned):
    """The rows of a data set, brought together by keys."""

    def __init__(self, origin: Dataset, plan: Plan, keys: list[str], sort_by: list[str]) -> None:
        super().__init__(origin, plan)
        self.keys = keys
        self.sort_by = sort_by

    def as_fitted(self, reading: Mapping[str, Any]) -> Dataset:
        again = self._origin.as_fitted(reading)
        if again is self._origin:
            return self
        keyed = again.shuffle_by_keys(self.keys, self.sort_by)
        keyed._rows = self._rows and self._rows.as_fitted({n: v for n, v in reading.items() if n not in ROWS})
        return keyed
