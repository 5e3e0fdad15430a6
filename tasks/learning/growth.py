"""Refit: what learning starts from where it does not begin anew, and what becomes of each step of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, NamedTuple

import pyarrow as pa

from tasks import engines
from tasks.cluster.out_of_memory import is_out_of_memory, retry_without_cache
from tasks.cluster.pool import Pool
from tasks.engines.convert.frame_sizes import nbytes
from tasks.errors import DataError, JobError
from tasks.graph.binding import Bound, Step
from tasks.graph.evaluation import describe_step, explain_error
from tasks.graph.state import State
from tasks.learning.large_table_types import Chain
from tasks.learning.partials import Observed, whole_of
from tasks.learning.refit_modes import Mode
from tasks.ops.base import Grown, Learned, RefitDate
from tasks.ops.fitted_values import FittedValues
from tasks.ops.keyed import Keyed

__all__ = ["Base", "Mode"]


class Finished(NamedTuple):
    """What a step has learned: its values, those for a refit, what changed; and its `Grown.refit_table`."""

    fitted: FittedValues
    for_refit: dict[str, Any]
    change: FittedValues
    refit_table: pa.Table | None = None


@dataclass(frozen=True)
class Base:
    """What a refit starts from.

    state: what was learned so far, with what a refit needs beside it (`State.partials`).
    rows: how many rows it was learned from: row numbers of the new rows go on from there.
    modes: by the key of each learned step, what happens to it (`tasks.learning.refit_modes`).
    refit: the day of the new rows, and what is forgotten.
    version: the name of the base, for `changes.json`; "" where it has none.
    """

    state: State
    rows: int
    modes: Mapping[str, Mode]
    refit: RefitDate
    version: str = ""

    @staticmethod
    def empty(bound: Bound) -> Base:
        """What a fit starts from: every step is new."""
        steps = (*bound.learned_from_parameters, *bound.learning)
        return Base(State(), 0, {step.key: Mode("new", "") for step in steps}, RefitDate(date.min))

    @property
    def first_row(self) -> int:
        """The number of the first new row: rows are numbered on, unless everything is learned anew."""
        return 0 if self.refit.keep_ids_only else self.rows

    def mode(self, step: Step) -> Mode:
        """What happens to a step; a JobError if the base has not learned it, unless all is learned anew (its column
        was dropped before)."""
        if step.key in self.modes and self.modes[step.key].mode == "new":
            return self.modes[step.key]
        known = {*self.state.values, *(self.state.partials if self.refit.keep_ids_only else ())}
        if self.refit.keep_ids_only and step.key in self.modes and step.key not in known:
            return Mode("merged", "the base had no such column")
        if step.key not in self.modes or step.key not in known:
            raise JobError(
                f"the base has not learned {describe_step(step)}",
                why="a refit goes on with the features of its base",
                do="use the features of the base, or fit all rows again",
            )
        return self.modes[step.key]

    def learns(self, step: Step) -> bool:
        """Whether the step looks at the new rows: not if it is frozen, unless it can say what a fit would make
        different."""
        return self.mode(step).mode != "frozen" or type(step.op).would is not Learned.would  # type: ignore[attr-defined]

    def starts(self, step: Step) -> Start:
        """What the step starts from."""
        fitted = self.state.values.get(step.key)
        saved = self.state.partials.get(step.key, {})
        if fitted is None:  # its column was left out; it comes back with the ids that it had
            fitted = saved
            saved = {}
        return Start(self.mode(step), fitted, saved, self.refit)

    def collect_unused_vocabularies(self, steps: Collection[str]) -> FittedValues:
        """By step, the vocabularies of the base whose step is not among `steps`, since its column is left out now.

        They are saved among the values for a refit, so that the column comes back with its ids."""
        values = self.state.values
        partials = self.state.partials
        before = {key: saved for key, saved in partials.items() if key not in values}
        of_base = {key: fitted for key, fitted in values.items() if "values" in fitted and "size" in fitted}
        return {key: fitted for key, fitted in (before | of_base).items() if key not in steps}


@dataclass(frozen=True)
class Start:
    """What one step of a refit starts from: its mode, its learned values, and what was saved beside them."""

    mode: Mode
    fitted: FittedValues
    saved: FittedValues
    refit: RefitDate

    @property
    def anew(self) -> bool:
        """Whether the step learns as in a fit: it is new, or it is merged, and only ids stay."""
        return self.mode.mode == "new" or (self.refit.keep_ids_only and self.mode.mode == "merged")


def frozen_values(base: Base, bound: Bound) -> tuple[FittedValues, FittedValues]:
    """(fitted values, values for a refit) of the steps that stay as they are."""
    steps = [step for step in bound.learning if base.mode(step).mode == "frozen"]
    starts = {step.key: base.starts(step) for step in steps}
    return {key: dict(s.fitted) for key, s in starts.items()}, {key: dict(s.saved) for key, s in starts.items()}


def change_of(step: Step, mode: Mode, change: Mapping[str, Any]) -> FittedValues:
    """The entry of a step in `changes.json`."""
    head = {"op": type(step.op).__name__, "columns": list(step.unit), "mode": mode.mode, "why": mode.why}
    return head | dict(change)


def change_anew(step: Step, base: Base, fitted: FittedValues) -> FittedValues:
    """What changed of a step that has learned anew."""
    assert isinstance(step.op, Learned)
    return {} if base.mode(step).mode == "new" else step.op.change(base.starts(step).fitted, fitted, step.unit)


@retry_without_cache
def finalize(observed: Observed, starts: Mapping[str, Start]) -> tuple[dict[str, Finished], FittedValues]:
    """(what is learned by step; questions of steps that learn anew and need another pass) of small partials."""
    done = {}
    questions = {}
    for key, partial in observed.partials.items():
        op = partial.step.op
        start = starts[key]
        assert isinstance(op, Learned)
        try:
            whole = whole_of(op, partial.tree)
            if start.anew and (question := op.refine(whole)) is not None:
                questions[key] = question
                continue
            done[key] = _finish_step(partial.step, whole, start)._replace(refit_table=None)
        except Exception as error:
            raise explain_error(error, partial.step, "statistics") from error
    engines.synchronize()
    return done, questions


def _finish_step(step: Step, partial: object, start: Start) -> Finished:
    """What a step has learned of the rows of its base and those of the refit."""
    op = step.op
    unit = step.unit
    fitted = start.fitted
    saved = start.saved
    assert isinstance(op, Learned)
    if start.anew:
        learned = op.finalize_unit(partial, unit)
        new, for_refit = op.split_learned(partial, learned)
        return Finished(new, for_refit, {} if start.mode.mode == "new" else op.change(fitted, new, unit))
    if start.mode.mode == "appended" or (start.mode.mode == "merged" and isinstance(op, Keyed)):
        grown = Grown(*op.grown(partial, fitted, saved, unit, start.refit))
        return Finished(*op.split_learned(None, grown.learned), grown.change, grown.refit_table)
    try:
        whole = op.merge(op.restored(fitted, saved, unit), partial)
    except KeyError:
        if start.mode.mode == "merged":
            raise DataError(
                f"the base has not saved what a refit of {describe_step(step)} needs",
                why="it was saved without it, or by a rowmill that did not save it yet",
                do="freeze the step, or fit all rows again",
            ) from None
        whole = partial
    new, for_refit = op.split_learned(whole, op.finalize_unit(whole, unit))
    if start.mode.mode == "frozen":
        return Finished(dict(fitted), for_refit, {"would": op.would(fitted, new, unit)})
    return Finished(new, for_refit, op.change(fitted, new, unit))


def tables_on_host(observed: Observed) -> dict[str, pa.Table]:
    """The partial of each step, all of them tables of keys, in host memory."""
    tables = {}
    for key, partial in observed.partials.items():
        assert isinstance(partial.step.op, Learned)
        table = whole_of(partial.step.op, partial.tree)
        tables[key] = engines.engine_of(table).host_table(table)
    return tables


def chain_on_host(chain: Chain) -> list[pa.Table]:
    """The tables of a chain in host memory."""
    return [engines.engine_of(table).host_table(table) for table in chain.tables]


def working_here(pool: Pool, engine: str) -> str:
    """The engine of a run as this process has it: cudf in a worker alone, since others may have no GPU."""
    return "cudf" if engine == "cudf" and pool.works_here else "pandas"


def finish_tables(
    pool: Pool,
    steps: Mapping[str, Step],
    tables: Mapping[str, Sequence[pa.Table]],
    base: Base,
    engine: str,
    known: Callable[[FittedValues], None],
) -> dict[str, Finished]:
    """What steps with tables of keys have learned, made in this process, which has the tables of the base.

    On a GPU if the engine has one here, else by threads; `known` is called with the values of each step, in a thread.
    """
    kernels = working_here(pool, engine)
    with ThreadPoolExecutor(1 if kernels == "cudf" else 2, thread_name_prefix="rowmill-refit") as threads:
        futures = {
            key: threads.submit(_grow_step, step, tables[key], base.starts(step), kernels, known)
            for key, step in steps.items()
        }
        return {key: future.result() for key, future in futures.items()}


def _grow_step(
    step: Step, tables: Sequence[pa.Table], start: Start, engine: str, known: Callable[[FittedValues], None]
) -> Finished:
    table = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
    try:
        done = _on(engine, step, table, start)
    except Exception as error:
        if engine == "pandas" or not is_out_of_memory(error):
            raise explain_error(error, step, "statistics") from error
        done = _on("pandas", step, table, start)  # the GPU has no room for it
    known(done.fitted)
    known(done.for_refit)
    return done


def _on(engine: str, step: Step, table: pa.Table, start: Start) -> Finished:
    """`engine` looks up values of vocabularies; groups, whose sums are in host memory anyway, are merged there."""
    engine = engine if start.mode.mode == "appended" else "pandas"
    with engines.computing(engine, 4 * nbytes(table)):
        done = _finish_step(step, table, replace(start, refit=replace(start.refit, engine=engine)))
        engines.synchronize()
    return done
