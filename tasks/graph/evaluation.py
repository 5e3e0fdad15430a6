"""The evaluation of a bound graph on one frame: columns are computed on request, each step once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tasks.cluster.out_of_memory import is_out_of_memory
from tasks.core.dtypes import is_list
from tasks.core.schema import Column
from tasks.core.strict_json import JsonObject
from tasks.core.unforeseen_errors import reason
from tasks.engines import user_column, user_kernels
from tasks.engines.algorithms.reductions import all_true
from tasks.errors import DataError, RowmillError
from tasks.graph.binding import SOURCE, Bound, Step
from tasks.graph.failed_casts import FailedCasts
from tasks.graph.state import State
from tasks.ops.base import Array, Columns, Context, Series
from tasks.ops.user_code import users_code
from tasks.storage.files_being_read import RAN, note_activity


class Evaluation:
    """The columns of one frame; `column(node, name)` computes a column, and the columns before it, when needed.

    Steps run one after another, and each counts in the context, out of which its counts are moved.
    """

    def __init__(
        self,
        bound: Bound,
        source: Columns,
        state: State,
        context: Context,
        where: str = "",
        failed: FailedCasts | None = None,
        activity: tuple[JsonObject, str] | None = None,
    ) -> None:
        # (the options that say where the user's function that runs is noted, a description of its rows)
        self.activity = activity
        self.bound = bound
        self.state = state
        self.context = context
        self.where = where
        self.failed: FailedCasts = {} if failed is None else failed
        # Set by `Work.open_partition`, for the profile: the columns to sketch, as they are before filters of the graph,
        # and how many rows each rule on rows of the source left out.
        self.profiled: tuple[Columns, Context] = {}, context
        self.left_out: dict[str, int] = {}
        self.met: dict[str, dict[str, int]] = {}  # counts by step: rows, unmatched or out of vocabulary
        self.contexts = {SOURCE: context}  # by the rows that columns have: the source's, or those that a Groupby made
        self.computed: dict[tuple[int, str], Any] = {(SOURCE, name): column for name, column in source.items()}

    def column(self, node: int, name: str) -> Any:
        return self._compute({name: self.bound.origin(node, name)})[name]

    def columns(self, targets: Iterable[tuple[int, str]]) -> Columns:
        return {name: self.column(node, name) for node, name in targets}

    def _compute(self, origins: Mapping[str, tuple[int, str]]) -> Columns:
        """Compute columns of steps or of the source, by the names that they get."""
        columns = {}
        for name, origin in origins.items():
            if origin not in self.computed:
                self._run(self.bound.steps[origin])
            columns[name] = self.computed[origin]
        return columns

    def outputs(self) -> Columns:
        """Return the output columns, in the types of the schema."""
        columns = self._compute(self.bound.output_origins)
        for name, dtype in self.bound.finer.items():
            try:
                columns[name] = self.context.engine.cast(columns[name], dtype)
            except (pa.ArrowInvalid, ValueError) as error:
                raise DataError(
                    f"column {name!r} has times beyond {dtype}",
                    where=self.where,
                    why=str(error).split("\n")[0],
                    do="leave such rows out with a filter, or write numbers: Lambda(expression=\"cast(_, 'int64')\")",
                ) from None
        return columns

    def inputs(self, step: Step, fitting: bool) -> Columns:
        """Return the input columns of a step; strings are decoded unless its operator takes them dictionary-encoded."""
        columns = self._compute(step.fit_origins if fitting else step.origins)
        if step.texts and not step.op.encoded:
            for name in step.texts.intersection(columns):
                columns[name] = self.context.engine.decode(columns[name])
        return columns if step.op.is_built_in else {name: user_column(c) for name, c in columns.items()}

    def context_of(self, step: Step) -> Context:
        """Return the context of the rows of a step's outputs, with counts of its own; an operator of users has kernels
        that make Series."""
        context = self._in_kernels_of(step, self.contexts[step.space])
        return replace(context, failed=Counter(), met=None if context.met is None else Counter())

    def _in_kernels_of(self, step: Step, context: Context) -> Context:
        return context if step.op.is_built_in else replace(context, engine=user_kernels(context.engine))

    def note_users_code(self, step: Step) -> AbstractContextManager[None]:
        """Keep a note on disk while code of a user runs: it may end the process."""
        called = users_code(step.op)
        if called is None or self.activity is None:
            return nullcontext()
        options, rows = self.activity
        return note_activity(options, f"{RAN}{called} ({describe_step(step)}) on {rows}")

    def describe_place(self, step: Step) -> str:
        """Describe the partition for messages; for code of a user, with its files."""
        if self.activity and users_code(step.op):
            _options, rows = self.activity
            return rows
        return self.where

    def _run(self, step: Step) -> None:
        engine = self.context.engine
        inputs = self.inputs(step, self.context.training)
        fitted = self.state.prepare_step(step.key, step.op, engine)
        try:
            if step.op.groups_rows:
                before = self._in_kernels_of(step, self.contexts[step.within])
                with self.note_users_code(step):
                    out, after = step.op.regroup(inputs, step.unit, before)
                self.contexts[step.space] = replace(_check_own_rows(after, before, step), engine=engine)
            else:
                # What most steps do not need is not called: a request of one row runs tens of steps, in a millisecond.
                context = self.contexts[step.space]
                if not step.op.is_built_in:
                    context = self._in_kernels_of(step, context)
                if self.activity is None:
                    out = step.op.apply(inputs, step.unit, fitted, context)
                else:
                    with self.note_users_code(step):
                        out = step.op.apply(inputs, step.unit, fitted, context)
                if context.failed or context.met:
                    self._move_counts(step, context)
            rows = len(self.contexts[step.space].rows)
        except Exception as error:
            raise explain_error(error, step, self.describe_place(step)) from error
        for column in step.outputs:
            if column.name not in out:
                raise DataError(
                    f"{type(step.op).__name__} did not make the column {column.name!r} that it promised",
                    where=self.describe_place(step),
                )
            column_values = out[column.name]
            if len(column_values) != rows:
                raise DataError(
                    f"{type(step.op).__name__} changed the number of rows of {'+'.join(step.unit)!r} "
                    f"from {rows:,} to {len(column_values):,}",
                    where=self.describe_place(step),
                    why="an operator gives one value per row",
                    do="return a column of the same length; to remove rows use a filter",
                )
            self.computed[step.node, column.name] = self._cast_to_promised_type(column_values, column, step)

    def _move_counts(self, step: Step, context: Context) -> None:
        """Move the failed casts of a step, and what it counted, out of the context, which the next step counts in.

        A step may run again, on the rows that filters keep. A cast that fails both times is counted once.
        """
        if context.failed:
            for text, rows in context.failed.items():
                key = describe_step(step), text
                self.failed[key] = max(rows, self.failed.get(key, 0))
            context.failed.clear()
        if context.met:
            self.met[step.key] = dict(context.met)
            context.met.clear()

    def _find_kept_rows(self, filters: Sequence[Step]) -> Any:
        """Find the places of the rows that all these filters of the same rows keep; None if they keep every row."""
        xp = self.context.engine.xp
        mask = None
        for step in filters:
            try:
                inputs = self.inputs(step, fitting=False)
                context = self._in_kernels_of(step, self.contexts[step.within])
                with self.note_users_code(step):
                    mask_of_step = step.op.keep(inputs, step.unit, context)
                self._move_counts(step, context)
            except Exception as error:
                raise explain_error(error, step, self.describe_place(step)) from error
            mask = mask_of_step if mask is None else mask & mask_of_step
        return None if mask is None or all_true(mask) else xp.flatnonzero(mask)

    def _keep_rows(self, space: int, places: Array) -> None:
        """Restrict a space to the rows at these places; the space is the source, or the node that grouped its rows.

        Columns computed from the source's rows are dropped, and computed again from the rows that stay. Exempt are
        those that depend on other rows of their run, such as histories: they have seen the rows that are removed here,
        and keep their values.
        """
        context = self.contexts[space]
        engine = self.context.engine
        order = None if context.order is None else context.order.take(places)
        own = None if context.own is None else context.own.take(places)
        self.contexts[space] = replace(context, rows=context.rows.take(places), order=order, own=own)
        if space == SOURCE:
            self.context = self.contexts[space]
            runs = self.bound.made_of_runs
            # Steps that run again count again.
            self.met = {key: counts for key, counts in self.met.items() if key in runs}
            steps = {origin: self.bound.steps.get(origin) for origin in self.computed}
            unchanged = {origin: self.computed[origin] for origin, s in steps.items() if s is None or s.key in runs}
            self.computed = engine.take(unchanged, places)
            return
        columns = {origin: column for origin, column in self.computed.items() if self._space_of(origin) == space}
        self.computed |= engine.take(columns, places)

    def apply_filters(self, filters: Sequence[Step] | None = None) -> Evaluation:
        """Keep only the rows that the filters keep: all filters of the graph, or `filters`."""
        for together in self.bound.filter_rounds(self.bound.filters if filters is None else filters):
            places = self._find_kept_rows(together)
            if places is not None:
                self._keep_rows(together[0].within, places)
        return self

    def keep_own(self, targets: Sequence[tuple[int, str]]) -> None:
        """Keep only the rows of this split; of grouped rows, those with a row of this split in them.

        Steps that depend on other rows of a run are computed first, since they look back at rows of earlier splits.
        """
        bound = self.bound
        runs = [step for step in bound.needed_steps(targets) if step.key in bound.made_of_runs]
        for step in runs:
            for column in step.outputs:
                self.column(step.node, column.name)
        self._keep_rows(bound.space, self.context.engine.xp.flatnonzero(self.contexts[bound.space].own))

    def _space_of(self, origin: tuple[int, str]) -> int:
        return SOURCE if origin[0] == SOURCE else self.bound.steps[origin].space

    def _cast_to_promised_type(self, values: Series, column: Column, step: Step) -> Any:
        engine = self.context.engine
        try:
            if step.op.encoded and column.dtype == pa.string():
                return values
            cast = engine.cast(values, column.dtype)
            if column.name not in step.may_hold_nan:
                return cast
            if not is_list(column.dtype):
                return engine.finite(cast)
            return engine.with_leaves(cast, engine.finite(engine.leaves(cast)))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, TypeError, OverflowError) as error:
            raise DataError(
                f"{describe_step(step)} made values that do not fit the type {column.dtype}",
                where=self.describe_place(step),
                why=str(error),
                do="give the operator a wider dtype",
            ) from error


def _check_own_rows(after: Context, before: Context, step: Step) -> Context:
    """Return the context of grouped rows; DataError if it does not say which of them have a row of this split."""
    if before.own is not None and (after.own is None or len(after.own) != len(after.rows)):
        raise DataError(
            f"{type(step.op).__name__} does not say which of its rows belong to this split",
            why="where source.split looks back, its rows are made of rows of earlier splits, too",
            do="give the context of its rows `own`: true where one of their rows has it",
        )
    return after


def describe_step(step: Step) -> str:
    """Describe a step for messages: its operator and its columns."""
    return f"{type(step.op).__name__} of {'+'.join(step.unit)!r}"


def explain_error(error: Exception, step: Step, where: str) -> Exception:
    """Add operator, column and partition to an error; out-of-memory errors stay as they are."""
    if is_out_of_memory(error):
        return error
    title = describe_step(step)
    if isinstance(error, RowmillError):
        return type(error)(
            error.what, where=error.where or ", ".join(p for p in (title, where) if p), why=error.why, do=error.do
        )
    return DataError(
        f"{title} failed",
        where=where,
        why=reason(error),
        do="fix the data or the operator's parameters",
    )
