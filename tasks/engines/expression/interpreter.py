"""Evaluates the typed steps of expressions on the columns of a frame, with the engine of the columns."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.schema import Column, Schema
from tasks.engines.algorithms.reductions import any_true
from tasks.engines.algorithms.text_casts import decimal_numbers, format_text, parse_text
from tasks.engines.expression import calendar, list_functions, text_functions, verbs_arrow, verbs_numbers
from tasks.engines.expression.nodes import Typed, columns_of, failure, unread
from tasks.engines.expression.syntax import Expression
from tasks.engines.expression.type_families import family, unit_of
from tasks.engines.expression.typing import type_expression
from tasks.engines.expression.verbs_numbers import Flat, Lost
from tasks.engines.types import Array, Series
from tasks.errors import DataError, JobError

FLAT = ("bool", "int", "float", "time")


def engine_of(column: object) -> ModuleType:
    """The module with the verbs of the engine of a column."""
    if type(column).__module__.partition(".")[0] == "cudf":
        from tasks.engines.expression import verbs_cudf

        return verbs_cudf
    return verbs_arrow


Failed = Counter[str]  # rows that are null because a cast or a parse failed, by expression


def beyond_in(lost: Lost) -> tuple[Any | None, Lost]:
    """(where no number is lost because it is beyond its type, None: nowhere; what was lost so)."""
    beyond = tuple((step, gone) for step, gone in lost if not can_fail(step))
    return reduce(operator.and_, [~gone for _, gone in beyond]) if beyond else None, beyond


def is_true(condition: Flat) -> Flat:
    """Whether a condition is true, also of null: false; but null where it depends on a number beyond its type."""
    values = condition.values if condition.valid is None else condition.values & condition.valid
    return without_beyond(Flat(values, None, condition.lost), [condition])


def without_beyond(answer: Flat, sides: Sequence[Flat]) -> Flat:
    """An answer that passes over nulls; null where a side is null only because its number is beyond its type."""
    for side in sides:
        known, beyond = beyond_in(side.lost)
        if beyond and side.valid is not None:
            known = known | side.valid
            answer = replace(answer, valid=known if answer.valid is None else answer.valid & known)
    return answer


def can_fail(step: Typed) -> bool:
    """Whether a value that the step loses is a cast or a parse that failed; else it is a number beyond 64 bits."""
    return step.verb == "convert" or step.verb.startswith("parse_")


def evaluate(
    expression: Expression,
    columns: Mapping[str, Any],
    schema: Schema | None = None,
    failed: Failed | None = None,
    learned: Mapping[str, Any] | None = None,
    strict: bool = False,
    whole: bool = True,
) -> Series:
    """The result for columns of a frame: pandas Series of Arrow types, or cuDF Series; the result is of the same kind.

    It has the index of the first column that the expression uses and exactly the type `dtype_of(expression, schema)`.
    A `schema` is needed only for dates in cuDF, where they are timestamps; all other types are those of the columns.
    `failed` counts, under the text of the expression, the rows that are null because a cast or a parse failed; with
    `strict` they are an UnreadError. `learned` are the learned values by name. With `whole`, whole floats hash as
    integers, as for HashBucket. DataError for whole numbers beyond 64 bits.
    """
    root = _steps(expression, columns, schema)
    like = columns[expression.columns[0]]
    answer = _answer(root, columns, expression, failed, learned, strict, whole)
    return engine_of(like).column(answer, root.dtype, like)


def filter_mask(
    condition: Expression,
    columns: Mapping[str, Any],
    schema: Schema | None = None,
    failed: Failed | None = None,
    strict: bool = False,
    whole: bool = True,
) -> Array:
    """Which rows pass a filter, as numpy (or CuPy) array: true where the condition is true, false where false or null.

    JobError for an expression whose type is not boolean. `schema`, `failed`, `strict` and `whole` as for `evaluate`.
    """
    root = _steps(condition, columns, schema)
    if root.dtype != pa.bool_():
        what = f"a filter needs true or false, this is {root.dtype}"
        raise failure(what, condition.text, (0, len(condition.text)), "compare it: x != 0, x is not None")
    first = condition.columns[0]
    flat = _answer(root, columns, condition, failed, None, strict, whole)
    rows = len(columns[first])
    mask = flat.values if flat.valid is None else flat.values & flat.valid
    xp = engine_of(columns[first]).xp
    return xp.ascontiguousarray(xp.broadcast_to(mask, (rows,)))


def true_mask(
    condition: Expression,
    frame: Mapping[str, Any],
    failed: Failed | None = None,
    strict: bool = False,
    whole: bool = True,
) -> Array:
    """`filter_mask` for a frame of an engine, whose columns may be dictionary-encoded."""
    verbs = engine_of(frame[condition.columns[0]])
    columns = {name: verbs.decode_column(frame[name]) for name in condition.columns}
    return verbs.xp.asarray(filter_mask(condition, columns, failed=failed, strict=strict, whole=whole))


def true_rows(condition: Expression, frame: Mapping[str, Any], failed: Failed | None = None) -> Array:
    """The row numbers, from 0, of the rows for which `true_mask` is true."""
    return engine_of(frame[condition.columns[0]]).xp.flatnonzero(true_mask(condition, frame, failed))


def list_types(columns: Mapping[str, Any], dates: Mapping[str, Column] | None = None) -> dict[str, pa.DataType]:
    """List the types of the columns of a frame: their own, but dates for columns that are dates in `dates`."""
    types = {name: engine_of(column).arrow_type(column) for name, column in columns.items()}
    if dates is None:
        return types
    for name in types:
        if name in dates and dates[name].dtype == pa.date32():
            types[name] = pa.date32()
    return types


def _steps(expression: Expression, columns: Mapping[str, Any], schema: Schema | None) -> Typed:
    """The typed steps for the columns of a frame."""
    used = {name: columns[name] for name in columns if name in expression.columns} or columns
    types = list_types(used, schema)
    key = tuple(types.items())
    if key not in expression.typed:
        expression.typed[key] = type_expression(expression, Schema(Column(*column) for column in key))
    return expression.typed[key]


def _answer(
    root: Typed,
    columns: Mapping[str, Any],
    of: Expression,
    failed: Failed | None,
    learned: Mapping[str, Any] | None = None,
    strict: bool = False,
    whole: bool = True,
) -> Any:
    like = columns[of.columns[0]]
    with np.errstate(all="ignore"):
        runner = _StepRunner(columns, engine_of(like), len(like), of, learned or {}, strict, whole)
        value = runner.settle_losses(runner.value(root))
    if failed is not None and runner.failed is not None:
        failed[of.text] += int(runner.failed.sum())
    return value


@dataclass(frozen=True)
class Lossy:
    """Texts or lists of which some are null because a step lost them: `lost` as of a Flat."""

    values: Any
    lost: Lost


Value: TypeAlias = "Flat | Lossy | Series | pa.Array | str"  # of a step; a literal text is a str


def bare(value: Value) -> Value:
    """The texts or lists themselves; a Flat, and a literal text, as it is."""
    return value.values if isinstance(value, Lossy) else value


def losses_of(value: object) -> Lost:
    """The rows that steps lost on the way to a value."""
    return value.lost if isinstance(value, Flat | Lossy) else ()


def with_lost(value: Value, lost: Lost) -> Value:
    """The value, which also has the rows that were lost in what it is made of."""
    if not lost:
        return value
    if isinstance(value, Flat):
        return replace(value, lost=value.lost + lost)
    return Lossy(bare(value), losses_of(value) + lost)


@dataclass
class _StepRunner:
    """Computes the values of steps: a Flat for numbers, booleans and times, a text for strings, else the column itself.

    A text, or lists, with lost rows are Lossy. `failed` are the rows in which a cast or a parse failed, None without
    such rows.
    """

    columns: Mapping[str, Any]
    engine: ModuleType
    rows: int
    of: Expression
    learned: Mapping[str, Any]
    strict: bool
    whole: bool
    failed: Any = None

    def settle_losses(self, value: Value) -> Value:
        """The value without lost rows, of which those count that are null in it: DataError for integers beyond their
        type; failed casts go to `failed`, and are an UnreadError if the expression is strict."""
        if lost := losses_of(value):
            null = self.nulls(value)
            for step, gone in lost if null is not None else ():
                rows = self.engine.xp.broadcast_to(gone & null, (self.rows,))
                if not any_true(rows):
                    continue
                if not can_fail(step):
                    raise self._beyond(step, int(rows.sum()))
                if self.strict:
                    raise self._unread(step, rows)
                self.failed = rows if self.failed is None else self.failed | rows
        return replace(value, lost=()) if isinstance(value, Flat) and lost else bare(value)

    def nulls(self, value: object) -> Any | None:
        """Which rows of a value are null; None where no row is."""
        if isinstance(value, Flat):
            return None if value.valid is None else ~value.valid
        if isinstance(value, str):
            return None
        return self.engine.is_null(bare(value))

    def arrow(self, value: object, dtype: pa.DataType) -> pa.Array:
        """The value in host memory."""
        return self.engine.to_arrow(bare(value), dtype, self.rows)

    def _unread(self, step: Typed, rows: object) -> DataError:
        (source,) = step.args
        places = self.engine.xp.flatnonzero(rows)
        first = int(places[0])
        arrow = self.arrow(self.value(source), source.dtype)
        value = arrow.slice(first, 1)
        columns = ", ".join(repr(name) for name in dict.fromkeys(columns_of(step)))
        shown = format_text(value)[0].as_py() if family(source.dtype) == "time" else repr(value[0].as_py())
        part = self.of.text[slice(*step.place)]
        return unread(f"{part} cannot read {shown} of column {columns}", first, len(places))

    def _beyond(self, step: Typed, rows: int) -> DataError:
        part = self.of.text[slice(*step.place)]
        name = str(step.dtype)
        info = self.engine.xp.iinfo(name)
        columns = ", ".join(repr(column) for column in dict.fromkeys(columns_of(step)))
        return DataError(
            f"{part} is beyond {name} in {rows:,} row(s), column(s) {columns}",
            why=f"expression {self.of.text!r} computes with whole numbers from {int(info.min)} to {int(info.max)}",
            do="compute in floats, write cast(x, 'float64') for a column in it; or leave such rows out with where(..) "
            "or a filter",
        )

    def value(self, step: Typed) -> Value:
        if step.verb == "column":
            return self.column(step)
        if step.verb == "literal":
            return self.literal(step)
        if step.verb == "convert":
            return self.convert(step)
        if step.verb == "learned":
            return self.look_up_learned_value(step)
        args = [self.value(arg) for arg in step.args]
        if step.verb in ("where", "case", "coalesce"):
            return self.choice(step, args)
        if step.verb in text_functions.ON_HOST or step.verb in list_functions.ON_HOST:
            return self.on_host(step, args[0])
        if step.verb == "hash":
            return self.hash(step, args[0])
        if step.verb == "is None":
            return self.is_null(args[0])
        if family(step.args[0].dtype) == "string":
            return self.text(step, args)
        return self.numeric(step, args)

    def look_up_learned_value(self, step: Typed) -> Flat:
        if step.value not in self.learned:
            raise JobError(f"{step.value} is not learned yet", where=self.of.text, do="fit the workflow first")
        value = self.learned[step.value]
        if value is not None and family(step.dtype) == "time":
            value = calendar.parse_learned_time(value, step.dtype)
        number = self.engine.xp.asarray([0 if value is None else value], dtype=verbs_numbers.numpy_dtype(step.dtype))
        return Flat(number, self.engine.xp.zeros(1, dtype=bool) if value is None else None)

    def choice(self, step: Typed, args: list[Any]) -> Value:
        """where, case and coalesce: from the last answer to the first, each where its condition is true."""
        if step.verb == "where":
            return self.choose_values(step, *args)
        result = args[-1]
        if step.verb == "case":
            for condition, value in zip(args[-3::-2], args[-2::-2], strict=True):
                result = self.choose_values(step, is_true(condition), value, result)
        else:
            for value in args[-2::-1]:
                result = self.choose_values(step, self.is_null(value), result, value)
        return result

    def choose_values(self, step: Typed, condition: Flat, a: Any, b: Any) -> Value:
        engine = self.engine
        if family(step.dtype) != "string":
            return verbs_numbers.where(condition, a, b, engine.xp)
        choices = [engine.literal_text(side, self.rows) if isinstance(side, str) else bare(side) for side in (a, b)]
        lost = (*condition.lost, *verbs_numbers.choose_losses(condition, losses_of(a), losses_of(b)))
        texts = engine.text_where(condition, *choices, self.rows)
        null = engine.is_null(texts) if lost else None
        return with_lost(texts, tuple((step, gone & null) for step, gone in lost))

    def on_host(self, step: Typed, value: object) -> Value:
        """A function that Arrow computes in host memory, for both engines."""
        arrow = self.arrow(value, step.args[0].dtype)
        if step.verb in text_functions.ON_HOST:
            result, gone = text_functions.apply(step.verb, arrow, step.value)
        else:
            answer = list_functions.ON_HOST[step.verb](arrow, *step.value)
            result, gone = answer if isinstance(answer, tuple) else (answer, None)
        lost = losses_of(value) + (() if gone is None else ((step, self.engine.xp.asarray(gone)),))
        if family(step.dtype) in FLAT:
            return with_lost(self.engine.from_arrow(result, step.dtype), lost)
        is_text = family(step.dtype) == "string"
        column = self.engine.text_from_arrow(result) if is_text else self.engine.nested_from_arrow(result)
        return with_lost(column, lost)

    def hash(self, step: Typed, value: object) -> Flat:
        like = self.columns[self.of.columns[0]]
        null = self.nulls(value)
        column = self.engine.column(bare(value), step.args[0].dtype, like)
        hashes = self.engine.hash_column(column, *step.value, self.whole)
        valid = None if null is None else self.engine.xp.broadcast_to(~null, (self.rows,))
        return Flat(hashes.astype("int64"), valid, losses_of(value), bounds=(0, 2**32 - 1))

    def column(self, step: Typed) -> Value:
        column = self.columns[step.value]
        kind = family(step.dtype)
        if kind in FLAT:
            return self.engine.flat(column, step.dtype)
        return self.engine.text(column) if kind == "string" else column

    def literal(self, step: Typed) -> Flat | str:
        kind = family(step.dtype)
        if kind == "string":
            return step.value
        name = "bool" if kind == "none" else verbs_numbers.numpy_dtype(step.dtype)
        bounds = (step.value, step.value) if kind == "int" else None
        return Flat(self.engine.xp.asarray([False if kind == "none" else step.value], dtype=name), bounds=bounds)

    def numeric(self, step: Typed, args: list[Any]) -> Flat:
        xp = self.engine.xp
        verb = step.verb
        match verb:
            case "+" | "-" | "*" | "/" | "//" | "%":
                return verbs_numbers.arithmetic(step, args[0], args[1], xp)
            case "==" | "!=" | "<" | "<=" | ">" | ">=":
                return verbs_numbers.compare(verb, args[0], args[1])
            case "and" | "or" | "not":
                return verbs_numbers.logic(verb, args, xp)
            case "in":
                items: list[Any] = [self.value(item) for item in step.value]
                return verbs_numbers.is_in(args[0], items, xp)
            case "ticks":
                return verbs_numbers.ticks(args[0], unit_of(step.args[0].dtype), step.value, xp)
            case "least" | "greatest":
                return verbs_numbers.drop_answered_losses(without_beyond(verbs_numbers.extreme(verb, args, xp), args))
            case "second" | "minute" | "hour" | "weekday" | "day" | "dayofyear" | "month" | "year":
                values = calendar.part(args[0].values, unit_of(step.args[0].dtype), verb, xp)
                return replace(args[0], values=values, bounds=None)
            case "floor_time":
                of, every, from_monday = step.value
                values = calendar.floor_times(args[0].values, unit_of(step.dtype), of, every, from_monday, xp)
                return replace(args[0], values=values, bounds=None)
            case "list length":
                return self.engine.list_length(bare(args[0]))
        return verbs_numbers.function(step, args[0], xp)

    def is_null(self, value: object) -> Flat:
        null, (known, beyond) = self.nulls(value), beyond_in(losses_of(value))
        return Flat(self.engine.xp.zeros(self.rows, dtype=bool) if null is None else null, known, beyond)

    def text(self, step: Typed, args: list[Any]) -> Value:
        """A function of texts; rows that are lost in one of them are lost."""
        texts = [bare(arg) for arg in args]
        verb = step.verb
        if verb == "text in":
            result = self.engine.text_in(texts[0], [item.value for item in step.value])
        elif verb.startswith("text "):
            result = self.engine.text_compare(verb.removeprefix("text "), *texts)
        else:
            result = getattr(self.engine, verb)(*texts, *(step.value or ()))
        return with_lost(result, sum((losses_of(arg) for arg in args), ()))

    def convert(self, step: Typed) -> Value:
        (source,) = step.args
        here = family(source.dtype)
        there = family(step.dtype)
        if here == "none" and there == "string":
            return self.engine.literal_text(None, self.rows)
        value: Any = self.value(source)
        if here in (*FLAT, "none") and there in FLAT:
            return verbs_numbers.convert(step, value, self.engine.xp)
        arrow = self.arrow(value, source.dtype)
        if there == "string":
            return with_lost(self.engine.text_from_arrow(format_text(arrow)), losses_of(value))
        parsed = (
            decimal_numbers(arrow, step.dtype) if pa.types.is_decimal(source.dtype) else parse_text(arrow, step.dtype)
        )
        is_flat = there in FLAT
        flat = self.engine.from_arrow(parsed, step.dtype) if is_flat else self.engine.nested_from_arrow(parsed)
        if parsed.null_count == arrow.null_count:
            return with_lost(flat, losses_of(value))
        gone = pc.and_(arrow.is_valid(), parsed.is_null()).to_numpy(zero_copy_only=False)
        return with_lost(flat, (*losses_of(value), (step, self.engine.xp.asarray(gone))))
