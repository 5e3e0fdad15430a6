"""`Workflow`: a graph of operators that learns from a data set and transforms others, here or on a cluster."""

from __future__ import annotations

import logging
import os
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, TypeVar, overload

from tasks.cluster.current import using
from tasks.cluster.dask_frames import dask_frame
from tasks.core.nvtabular import KnownFromNVTabular, of_parameter
from tasks.core.plan import Plan
from tasks.core.schema import ROW, Schema, Tags, embeddings_of
from tasks.core.settings import Output, Run, make_section
from tasks.dataset import Dataset
from tasks.engines.convert.libraries import library, resolve_engine
from tasks.engines.types import DataFrame
from tasks.errors import DataError, JobError, near
from tasks.graph.binding import Bound
from tasks.graph.node import Node, as_node, topological
from tasks.graph.partition_work import Work
from tasks.graph.state import State
from tasks.job.apply_fitted import (
    in_fitted_types,
    list_needed_columns,
    list_targets,
    list_unmakeable_labels,
    remove_outputs,
    with_read_types,
)
from tasks.manifest import Manifest
from tasks.shuffle.group_by_keys import check_runs, keys_of
from tasks.sources.frames import frame_here
from tasks.stages.without_prefect import Origin, write_transformed
from tasks.workflow.given_frames import FrameTransform, decode_ids
from tasks.workflow.learning import learn_rows, make_base, warn_of_failed_casts
from tasks.workflow.partitions import frame_of, transform_partition
from tasks.workflow.saving import load_workflow, save_workflow

if TYPE_CHECKING:
    import dask.array as da
    import dask.dataframe as dd
    import numpy.typing as npt
    from distributed import Client

F = TypeVar("F")  # a frame of pandas, Arrow or cuDF
log = logging.getLogger("rowmill")


class Workflow(KnownFromNVTabular):
    """A graph of operators: `fit` learns its statistics, `transform` applies it.

    `nodes` are names of columns, `columns >> operator`, and lists and sums (`+`) of these; their columns are the
    output, in this order. The workers of the Dask `client` work on data sets; a method's own `client` takes precedence.
    By default those of the Dataset's client do, else of the current one, else this process. Errors: a JobError for a
    graph that cannot be right; a DataError for columns of a type that an operator does not take, as soon as the schema
    is known.

    >>> from rowmill import ops
    >>> import pyarrow as pa
    >>> workflow = Workflow(["x"] >> ops.Normalize())
    >>> table = pa.table({"x": [1.0, 2.0, 3.0]})
    >>> workflow.fit(Dataset(table)).transform(table)["x"].to_pylist()
    [-1.0, 0.0, 1.0]
    """

    _known_as = "Workflow"

    def __init__(self, nodes: object = None, *, client: Client | None = None, **unknown: Never) -> None:
        if unknown:
            name = next(iter(unknown))
            do = of_parameter("Workflow", name) or near(name, ["nodes", "client"])
            raise JobError(f"{name!r} is not a parameter of Workflow", where="Workflow", do=do)
        if nodes is None:
            raise JobError("Workflow needs nodes", do='for example: Workflow(["x"] >> ops.Normalize() + ["label"])')
        self.final: Node = as_node(nodes)
        self.client = client
        self.schema: Schema | None = None
        self.state: State | None = None
        self.reading: dict[str, Any] = {}  # how the source was read that it was fitted on
        self._frame_transform: FrameTransform | None = None  # with what was learned; made for the first frame
        self._logged_targets: list[list[str]] = []  # the targets that were logged as left out

    def __repr__(self) -> str:
        operators = [type(node.op).__name__ for node in topological(self.final) if node.op]
        columns = f"columns={reprlib.repr(list(self.output_schema))}" if self.state else "not fitted"
        return f"Workflow(operators={reprlib.repr(operators)}, {columns})"

    def __getstate__(self) -> dict[str, Any]:
        # a client belongs to its process; what was prepared for frames is made again
        return self.__dict__ | {"client": None, "_frame_transform": None}

    # learning

    def fit(self, data: object, *, client: Client | None = None) -> Workflow:
        """Learn from all rows of a Dataset (or of a frame or path), in one pass per phase; return this workflow.

        The workers of the Dask `client` do the work, by default as the class says. `data` may be a Transformed, too.
        All rows are those that `unique`, `split` and `downsample` of the Dataset leave, here and in all other methods.
        A second fit forgets the first. Errors: a DataError for values that an operator cannot learn from, which names
        column and row; a JobError for an operator that needs `Dataset.shuffle_by_keys` first.
        """
        dataset = as_dataset(data, client or self.client)
        engine = resolve_engine(dataset.engine)
        bound = Bound(self.final, dataset.schema)
        check_runs(bound, keys_of(dataset.plan))
        dataset.warn_of_differences(_read_by(bound))
        work = Work(dataset.handle, self.final, dataset.schema, engine, rules=dataset.rules)
        result = learn_rows("fit", work, dataset)
        self.state = result.state
        warn_of_failed_casts(result)
        self.schema = dataset.schema
        self.reading = reading_of(dataset.plan)
        self._forget_bound()
        return self

    def fit_transform(self, data: object, *, client: Client | None = None) -> Transformed:
        """Learn, then transform the same rows. Operators with folds (TargetEncoding) leave out the row's own fold."""
        dataset = as_dataset(data, client or self.client)
        self.fit(dataset, client=dataset.client)
        return Transformed(self, dataset, training=True)

    def refit(
        self,
        data: object,
        settings: Mapping[str, str] | None = None,
        refit_all: bool = False,
        night: date | None = None,
        forget_days: int | None = None,
    ) -> Workflow:
        """Learn from new rows on top of what was learned; return this workflow. Every value that has an id keeps it.

        The rows are those of a Dataset (or of a frame or path), read in the types of the fit; rows of earlier nights
        are not needed. Each operator is *merged* (as if it had learned from all rows), *appended* (Categorify: new
        values are appended to the old ones), or *frozen* (exact medians and quantiles; what would change columns or
        types): `rowmill ops` says which, `changes` says what became different. `settings` say otherwise, by operator,
        column or entry: {"Normalize": "freeze"}. With `refit_all` everything is learned anew from these rows alone, but
        ids stay. `night` is the day of the rows (default: today); values without an id that were not seen for
        `forget_days` lose their counts.

        Errors: a JobError before a fit, for a setting that names nothing or that is impossible, and for a workflow that
        was saved without what a refit needs; a DataError for missing columns, and for values that do not fit the types
        of the fit.

        >>> import pyarrow as pa
        >>> from rowmill import ops
        >>> workflow = Workflow(["shop"] >> ops.Categorify()).fit(pa.table({"shop": ["b", "c", "c"]}))
        >>> _ = workflow.refit(pa.table({"shop": ["a", "b", "b", "b"]}))
        >>> workflow.transform(pa.table({"shop": ["c", "b", "a"]}))["shop"].to_pylist()
        [3, 4, 5]
        >>> workflow.changes["steps"]["1/Categorify/shop"]["appended"].to_pylist()
        [{'v0': 'a', 'count': 1, 'id': 5}]
        """
        self._refit(data, settings or {}, refit_all, night, forget_days)
        return self

    def refit_transform(
        self,
        data: object,
        settings: Mapping[str, str] | None = None,
        refit_all: bool = False,
        night: date | None = None,
        forget_days: int | None = None,
    ) -> Transformed:
        """Refit, then transform the same rows. Operators with folds (TargetEncoding) leave out the row's own fold: row
        numbers go on where the rows of earlier nights ended."""
        dataset, first_row = self._refit(data, settings or {}, refit_all, night, forget_days)
        return Transformed(self, dataset, training=True, schema=self.schema, first_row=first_row)

    def _refit(
        self, data: object, settings: Mapping[str, str], refit_all: bool, night: date | None, forget_days: int | None
    ) -> tuple[Dataset, int]:
        """Learn; (the data set in the types of the fit, the number of its first row)."""
        state = self._require_state()
        schema = self.schema
        assert schema is not None
        dataset = self._as_fitted(as_dataset(data, self.client))
        # where all is learned anew, a column that was left out may come back
        bound = Bound(self.final, schema, {} if refit_all else state.values)
        needed = _read_by(bound)
        for name in needed:
            if name not in dataset.schema:
                what = f"column {name!r} is missing: the workflow has learned from it, or makes an output of it"
                raise DataError(what, where="the data set of the refit", do=near(name, dataset.schema))
        own_types = dataset.own_types
        exact = dataset.exact
        dataset = dataset.in_types(in_fitted_types(dataset.plan, bound, needed, own_types, exact, training=True))
        dataset.warn_of_differences(needed)
        schema = with_read_types(schema, dataset.schema)
        base = make_base(state, bound, settings, refit_all, night, forget_days)
        check_runs(bound, keys_of(dataset.plan))
        work = Work(dataset.handle, self.final, schema, resolve_engine(dataset.engine), rules=dataset.rules)
        result = learn_rows("refit", work, dataset, base)
        self.state = result.state
        self.schema = schema
        warn_of_failed_casts(result)
        for change in result.state.changes.values():
            if change.get("would"):
                text = "%s of %s stays as it was; a fit would differ now: %s"
                log.warning(text, change["op"], ", ".join(change["columns"]), change["would"])
        self._forget_bound()
        return dataset, base.first_row

    def _forget_bound(self) -> None:
        """Forget what was prepared for frames with what was learned before."""
        self._frame_transform = None
        self._logged_targets = []

    @property
    def changes(self) -> dict[str, Any]:
        """What the last refit changed; {} after a fit. A JobError before a fit.

        `rows` are the rows learned (`old` before, `new` in the refit); `steps` has for each learned step its operator,
        columns, mode and why. An appended step has `old_size` and `new_size` of its vocabulary, `old_rows` and
        `new_rows` of the embedding with its `dimension`, the table `appended` (value, count, id), and how many values
        are `waiting` for room (`max_size`) or `forgotten`; a merged one has `old` and `new` parameters, or how many
        `groups` are new and changed; a frozen one has in `would` what a fit would make different now.
        """
        return self._require_state().changed

    # applying

    @overload
    def transform(
        self,
        data: Dataset | Transformed | dd.DataFrame | str | os.PathLike[str] | list[Any],
        *,
        client: Client | None = None,
    ) -> Transformed: ...
    @overload
    def transform(self, data: F, *, client: None = None) -> F: ...
    def transform(self, data: object, *, client: Client | None = None) -> object:
        """Apply what was learned: to a Dataset (gives a `Transformed`) or to a frame (gives the same kind of frame).

        A path, a list, a Dask frame and a Transformed are taken as a Dataset, as `fit` takes them. A frame is a pandas
        or cuDF frame, which keeps its index, or an Arrow table. Its columns are taken in the types that the workflow
        was fitted with; columns that the workflow does not need are ignored. Where data lack the columns of a target,
        the target is left out, which is logged. The workers of the Dask `client` transform a Dataset. Errors: a
        JobError before a fit, and for a client with a frame, which is transformed in this process; a DataError for any
        other missing column, and for a column of another kind or with values that the fitted type does not hold.
        """
        if isinstance(data, (Dataset, Transformed, str, os.PathLike, list, tuple)) or library(data) == "dask":
            self._require_state()
            assert self.schema is not None
            data = self._as_fitted(as_dataset(data, client or self.client))
            bound = Bound(self.final, self.schema, self._require_state().values)
            plan = in_fitted_types(data.plan, bound, self.input_schema, data.own_types, data.exact, training=False)
            in_types = data.in_types(plan)
            if not set(self.schema) - {ROW} <= set(in_types.schema):
                return self._of_fewer_columns(in_types)
            return Transformed(self, in_types, training=False)
        if client is not None:
            what = "a client does not transform a frame, which is transformed in this process"
            raise JobError(what, where="Workflow.transform", do="give Dataset(frame), or leave client out")
        return self._transform_frame(data)

    def _as_fitted(self, data: Dataset) -> Dataset:
        """The data set, read by the rules of the fit where it sets none; what differs is logged."""
        data = data.as_fitted(self.reading)
        for line in data.differences(self.reading):
            log.warning("different from the fit: %s", line)
        return data

    def _of_fewer_columns(self, data: Dataset) -> Transformed:
        """Of a data set that lacks columns of the fit: all outputs, or all but the targets."""
        left_out = self._list_missing_targets(data.schema, "the data set")
        final, schema = remove_outputs(self.final, self._fitted_columns, data.schema, left_out)
        schema = with_read_types(schema, data.schema)
        return Transformed(self, data, training=False, final=final, schema=schema, left_out=left_out)

    @property
    def _fitted_columns(self) -> Schema:
        return Schema(c for c in (self.schema or Schema()).columns if c.name != ROW)

    def _list_missing_targets(self, there: Schema, where: str) -> list[str]:
        """The targets that cannot be made of these columns, named in the log the first time; a DataError for any other
        output."""
        fitted = self._fitted_columns
        do = "workflow.remove_inputs(['{}']) is the workflow without the outputs that need it"
        left_out = list_unmakeable_labels(
            self.final, fitted, there, list_targets(self.final, fitted, Tags.SAMPLE_WEIGHT), where, do
        )
        if left_out and left_out not in self._logged_targets:
            self._logged_targets.append(left_out)
            log.warning("left out, since %s lacks their columns: %s", where, ", ".join(left_out))
        return left_out

    def _transform_frame(self, data: F) -> F:
        state = self._require_state()
        frames = self._frame_transform
        if frames is None:
            assert self.schema is not None
            frames = FrameTransform(
                self.final, self.schema, state, lambda there: self._list_missing_targets(there, "the frame")
            )
            self._frame_transform = frames
        frame: F = frames.transform(data)
        return frame

    def inverse(self, data: F) -> F:
        """Turn ids into the values that Categorify coded, in a frame of output columns; other columns stay.

        The ids of padding, null and values out of the vocabulary give null. An id column of a tuple (`combo`) gives its
        columns. A JobError before a fit.
        """
        bound = Bound(self.final, self.schema or Schema(), self._require_state().values)
        return decode_ids(data, bound, self._require_state())

    # what is known

    @property
    def input_schema(self) -> Schema:
        """The source columns that `transform` needs; a JobError before a fit."""
        if self.schema is None:
            raise JobError("the workflow has no schema yet", do="call fit first")
        return Schema(self.schema[n] for n in list_needed_columns(Bound(self.final, self.schema)))

    @property
    def output_schema(self) -> Schema:
        """Names, types, tags, cardinalities and embedding sizes of the output; a JobError before a fit."""
        if self.schema is None:
            raise JobError("the workflow has no schema yet", do="call fit first, or output_schema_of(schema)")
        return self.output_schema_of(self.schema)

    def output_schema_of(self, schema: Schema) -> Schema:
        """The output's schema for a source of this schema; before a fit without what data decide (cardinalities)."""
        return Bound(self.final, schema, self.state.values if self.state else {}).output

    def embeddings(self) -> dict[str, dict[str, int]]:
        """The size of the embedding table of every id column: {column: {rows, dimension}}.

        `rows` are all ids: padding, null, out of vocabulary and the vocabulary. A JobError before a fit.
        """
        return embeddings_of(self.output_schema)

    def remove_inputs(self, names: Sequence[str]) -> Workflow:
        """A workflow without the outputs that need one of these source columns, for example a target.

        What was learned is shared with this workflow. A JobError before a fit, and for a column that is not an input.
        """
        if self.schema is None:
            raise JobError("the workflow has no schema yet", do="call fit first")
        for name in names:
            if name not in self.schema:
                raise JobError(f"the workflow has no input {name!r}", do=near(name, self.schema))
        bound = Bound(self.final, self.schema)
        return self._with_outputs(
            t[1] for t in bound.targets if not set(names) & set(bound.source_columns([t], training=False))
        )

    def select(self, names: Sequence[str] = (), tags: str | Sequence[str] = ()) -> Workflow:
        """A workflow with the outputs of these names, and behind them those with any of these tags (texts or `Tags`).

        What was learned is shared with this workflow. A JobError before a fit, and for a name or tag that no output
        has.

        >>> import pyarrow as pa
        >>> from rowmill import ops
        >>> made = Workflow((["x"] >> ops.Normalize()) + (["s"] >> ops.Categorify()))
        >>> table = pa.table({"x": [1.0, 2.0], "s": ["a", "b"]})
        >>> made.fit(table).select(tags=["categorical"]).transform(table).to_pydict()
        {'s': [3, 4]}
        """
        schema = self.output_schema
        chosen = [schema[name].name for name in ([names] if isinstance(names, str) else names)]
        return self._with_outputs([*chosen, *(schema.with_any_tag(tags) if tags else ())])

    def _with_outputs(self, names: Iterable[str]) -> Workflow:
        other = Workflow(Node("pick", (self.final,), selection=tuple(dict.fromkeys(names))), client=self.client)
        other.schema = self.schema
        other.state = self.state
        other.reading = self.reading
        return other

    def _require_state(self) -> State:
        if self.state is None:
            raise JobError(
                "the workflow is not fitted", do="call fit or fit_transform first, or Workflow.load a fitted one"
            )
        return self.state

    # on disk

    def save(self, path: str | Path, storage_options: str | Mapping[str, Any] | None = None) -> None:
        """Write the fitted workflow to a folder of JSON files, tables and a README, which a person can read.

        Of a URL of an object store, `storage_options` are as those of `load`; one conditional put publishes the folder.
        `Workflow.load` reads it on either engine, also after the folder was moved. A JobError before a fit, and for a
        function without an import path.
        """
        if self.schema is None:
            raise JobError("the workflow is not fitted", do="call fit or fit_transform first")
        save_workflow(self.final, self.schema, self._require_state(), self.reading, path, storage_options)

    @staticmethod
    def load(
        path: str | Path,
        storage_options: str | Mapping[str, Any] | None = None,
        *,
        mapped: str | Path | None = None,
    ) -> Workflow:
        """Load the fitted workflow of a folder that `save` wrote, or of the output folder of a run; also of a URL.

        `storage_options` are those of the storage of a URL, or their name (`ROWMILL_STORAGE_<NAME>`); without them the
        credentials of the environment count.

        `mapped` is a folder of this host. Vocabularies of 65,536 values or more, and what looks them up, are written
        there once, uncompressed (some 30 bytes for each number), and all processes that name this folder map them:
        together they hold one copy, and only the first waits for it. Whoever may write there can change the results.
        Remove the folder when no process uses it.

        Every file is checked against its digest: a DataError for one that is missing or damaged, or of a newer format.
        Tables in `mapped` were checked when they were written there. A HostError for a function or operator that cannot
        be imported here.
        """
        saved = load_workflow(path, storage_options, mapped)
        workflow = Workflow(saved.final)
        workflow.schema = saved.schema
        workflow.state = saved.state
        workflow.reading = saved.reading
        return workflow


def _read_by(bound: Bound) -> list[str]:
    """The columns of the source that a graph learns from or makes its outputs of."""
    places = [place for step in bound.learned for place in step.fit_inputs.values()]
    return bound.source_columns([*bound.targets, *places], training=True)


def as_dataset(data: object, client: Client | None = None) -> Dataset:
    """The data set, or that of a frame, a path or the rows of a Transformed, with this client if there is one."""
    if isinstance(data, Transformed):
        there = copy(data)
        there.dataset = data.dataset.with_client(client)
        data = Dataset(there.to_ddf(), engine=there.dataset.engine, client=there.dataset.client)
    return (data if isinstance(data, Dataset) else Dataset(data)).with_client(client)


class Transformed(KnownFromNVTabular):
    """The rows of a data set after a workflow. `Workflow.transform` and `fit_transform` make it.

    Every method computes the rows anew, one partition at a time, unless `persist` has computed them. `left_out` names
    the targets that are not in the output since the data set lacks their columns.
    """

    _known_as = "Dataset"
    _persisted: Any = None  # the rows as a Dask frame in memory

    def __init__(
        self,
        workflow: Workflow,
        dataset: Dataset,
        training: bool,
        *,
        final: Node | None = None,
        schema: Schema | None = None,
        left_out: Sequence[str] = (),
        first_row: int = 0,
    ) -> None:
        self.workflow = workflow
        self.dataset = dataset
        self.training = training
        self.first_row = first_row  # of a refit: its rows are numbered on
        self.final = final or workflow.final
        self.bound_to = schema or dataset.schema
        self.left_out = list(left_out)

    def __repr__(self) -> str:
        columns = list(Bound(self.final, self.bound_to, self.workflow._require_state().values).output)
        return f"Transformed({self.dataset!r}, columns={reprlib.repr(columns)})"

    @property
    def schema(self) -> Schema:
        """Names, types, tags, cardinalities and embedding sizes of the output."""
        return self._work().bound.output

    def _work(self) -> Work:
        workflow = self.workflow
        dataset = self.dataset
        engine = resolve_engine(dataset.engine)
        bound = Bound(self.final, self.bound_to, workflow._require_state().values)
        dataset.warn_of_differences(bound.source_columns(bound.targets, training=self.training))
        check_runs(bound, keys_of(dataset.plan))
        return Work(
            dataset.handle,
            self.final,
            self.bound_to,
            engine,
            workflow._require_state(),
            None,
            self.training,
            first_row=self.first_row,
            rules=dataset.rules,
        )

    def frames(self) -> Iterator[Any]:
        """One frame (pandas with Arrow types, or cuDF) per partition, in the order of the source's rows."""
        work = self._work()
        persisted = self._persisted
        for part in self.dataset.plan.partitions if persisted is None else persisted.to_delayed():
            with using(self.dataset.client):
                frame = frame_of(work, part) if persisted is None else frame_here(part)
            yield frame

    def to_iter(self) -> Iterator[Any]:
        """The same as `frames`, under the name that `Dataset` has."""
        return self.frames()

    def head(self, n: int = 5) -> DataFrame:
        """The first n rows as a frame of the engine; fewer if there are fewer."""
        if self._persisted is not None:
            with using(self.dataset.client):
                return self._persisted.head(n, npartitions=-1)
        work = self._work()
        tables = []
        rows = 0
        for partition in self.dataset.plan.partitions:
            with using(self.dataset.client):
                tables.append(transform_partition(work, partition))
            rows += work.kernels.length(tables[-1])
            if rows >= n:
                break
        whole = work.kernels.concat(tables)
        return work.kernels.user_frame(work.kernels.slice_rows(whole, 0, min(n, rows)))

    def to_ddf(self) -> dd.DataFrame:
        """A Dask frame (dask_cudf with the engine cudf), with a partition for each partition of the data set."""
        if self._persisted is not None:
            return self._persisted
        work = self._work()
        empty = work.bound.output.to_arrow().empty_table()
        with using(self.dataset.client):
            return dask_frame(frame_of, work, self.dataset.plan.partitions, empty, work.engine)

    def to_dask_array(self, columns: Sequence[str] | None = None, dtype: npt.DTypeLike | None = None) -> da.Array:
        """A Dask array of columns of numbers, with known chunks, as `Dataset.to_dask_array` gives it.

        A pass counts the rows, and to compute the array is another one: `persist` before it computes them once.
        """
        return as_dataset(self).to_dask_array(columns, dtype)

    def persist(self) -> Transformed:
        """The same rows, computed once and in memory where they are: with a client on its workers.

        `frames`, `to_iter`, `head` and `to_ddf` take them from there; `to_parquet` computes the rows from the data set,
        in the pass in which it shuffles them. The memory is free again with the last reference to the result.
        """
        other = copy(self)
        with using(self.dataset.client):
            other._persisted = self.to_ddf().persist()
        return other

    def to_parquet(
        self,
        path: str,
        *,
        client: Client | None = None,
        scratch: str | os.PathLike[str] | None = None,
        exchange: str = "auto",
        **output: Any,
    ) -> Manifest:
        """Shuffle the rows, write them to the folder `path`, and return the Manifest of the output.

        The workers of the Dask `client` do the work, by default those that `transform` or the Dataset names.

        `exchange` says where rows wait for their file: in the `memory` of the workers, on `disk`, or as `auto`
        (default) chooses by the same estimate as a job; rows that keep their order (`shuffle="none"`), of which none is
        left out, do not wait: each file is made of its own partitions. With exchange="disk" the output may be larger
        than memory. `scratch` is the folder for the work in progress, the files of the exchange among it, which all
        workers share; by default one next to the output.

        `output` are keys of a job's section `output`: shuffle, seed, files, format and others, with their defaults
        (`full`, 0, 8, `parquet`). The folder is there whole or not at all. Errors: a JobError for a wrong key, and for
        a folder that exists (unless `on_existing` says otherwise); a DataError if no row is left; a GiveUpError if the
        scratch disk is too small; a TransientError if workers are lost for lack of memory.
        """
        settings = make_section(Output, {"path": str(path), **output}, "output", known_as="to_parquet")
        if settings.table:
            raise JobError(
                "a call from Python adds no output to a table",
                where=f"to_parquet, {settings.table}={settings.table_name!r}",
                do=f"run it as a job, whose section output takes {settings.table}",
            )
        run = make_section(Run, {"exchange": exchange, "scratch": scratch and os.fspath(scratch)}, "to_parquet")
        assert self.workflow.schema is not None
        workflow = self.workflow
        dataset = self.dataset
        if dataset.frames is not None and dataset.frames.inputs:
            log.info("%s: rows of a frame: a run that ends early begins anew, it cannot be resumed", path)
        origin = Origin(workflow.reading, workflow.final, self.left_out, dataset.rules_text)
        return write_transformed(self._work(), dataset.plan, settings, dataset.with_client(client).pool, origin, run)


def reading_of(plan: Plan) -> dict[str, Any]:
    """How the rows of a plan were read, and by which keys they were brought together."""
    keyed = plan.options.get("keyed", {})
    return {**plan.reading, **{name: value for name, value in keyed.items() if value}}
