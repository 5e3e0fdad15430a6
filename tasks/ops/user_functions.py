"""Users' own functions and expressions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import pyarrow as pa
from pydantic import AfterValidator, PlainSerializer, model_validator

from tasks.core.dtypes import dtype_name, parse_dtype, plain_type
from tasks.core.schema import Column, Schema
from tasks.core.strict_json import JsonObject
from tasks.engines.algorithms import radix_selection
from tasks.engines.algorithms.moments import deviation, merge_moments
from tasks.engines.algorithms.reductions import extremes
from tasks.engines.expression.calendar import format_learned_time
from tasks.engines.expression.interpreter import engine_of, evaluate
from tasks.engines.expression.nodes import ExpressionNode, UnreadError
from tasks.engines.expression.syntax import Expression, parse, state_name_of
from tasks.engines.expression.type_families import family, unit_of
from tasks.engines.expression.typing import dtype_of
from tasks.errors import JobError
from tasks.ops.base import Columns, Context, Learned, Operator, Series, Unit, make_operator, refuse_infinite
from tasks.ops.fitted_values import FittedValues
from tasks.ops.quantiles import quantile_of, quantile_ranks
from tasks.ops.user_code import check_module, import_path, refuse_reordered

HERE = "_"  # in an expression: the selected column
Partial = list[Any] | float | None  # of one learned value; None without a value


def function_path(function: object) -> str | None:
    """The import path of a function, as it is saved; a JobError for one that has none."""
    if function is None or isinstance(function, str):
        return function
    name = getattr(function, "__qualname__", None)
    path = f"{getattr(function, '__module__', None)}:{name}"
    if name is None or "<" in name or _import_or_none(path) is not function:
        raise JobError(
            f"the function {name or repr(function)} cannot be saved",
            why="it has no import path: lambdas and functions within functions exist in this process alone",
            do="define it at the top of a module; in memory, Workflow.transform applies it as it is",
        )
    return path


def _check_function_path(function: object) -> object:
    if isinstance(function, str):
        if not all(function.partition(":")):
            raise ValueError(f"{function!r} is not an import path: write module:name")
        check_module(function)
    return function


UserFunction = Annotated[str | Callable[..., Any], AfterValidator(_check_function_path), PlainSerializer(function_path)]


class Lambda(Operator):
    """Apply a function or an expression of your own to each of the selected columns.

    Parameters
    ----------
    function : str or callable, default None
        Import path `module:name`, or a function of the column; a second parameter gets the frame of the selected column
        and of the columns in `dependency`.
    expression : str, default None
        Expression that names columns, `_` being the selected one: "price * 2", "_ == 'purchase'".
    dtype : str, default None
        Type out. Left out, a function must keep the column's type, and that of an expression follows from its columns.
    name : str, default None
        New name of the column; None keeps its own.
    dependency : list of str, default []
        Further columns that the function reads.
    strict : bool, default False
        Make a cast or a parse that fails in an expression a DataError that names value, column, file and row, in place
        of a null that a run counts and reports.

    Notes
    -----
    A function gets the column as a pandas Series with an Arrow type, or as a cuDF Series, and returns one value per
    row, in the order of the rows. NaN becomes null; all other values are what the function or the expression makes of
    them, also of nulls and infinities.

    A lambda, or a function within another, has no import path: fit and transform apply it, here and on the workers of a
    Dask client, but a workflow with it cannot be saved.

    Errors: a JobError unless exactly one of function and expression is given, for an expression that cannot be read,
    and for a result of another type, order or number of rows; a HostError for a function that cannot be imported here;
    a DataError for a value that `dtype` does not hold, and for an error in the function.

    Examples
    --------
    >>> from rowmill import Workflow
    >>> table = pa.table({"price": [1.5, None], "count": [2, 3]})
    >>> Workflow(["price"] >> Lambda(expression="_ * count", name="paid")).fit(table).transform(table).to_pydict()
    {'paid': [3.0, None]}
    >>> Lambda(expression="_ +")
    Traceback (most recent call last):
    ...
    tasks.errors.JobError: expression: cannot be read: invalid syntax ...
    """

    function: UserFunction | None = None
    expression: str | None = None
    dtype: str | None = None
    name: str | None = None
    dependency: list[str] = []
    strict: bool = False
    takes = frozenset({"number", "string", "bool", "time", "list", "other"})

    def __new__(cls, *args: Any, **parameters: Any) -> Lambda:
        expression = parameters.get("expression", args[1] if len(args) > 1 else None)
        learns = cls is Lambda and isinstance(expression, str) and "(" in expression and parse(expression, True).learned
        return super().__new__(_LearnedLambda if learns else cls)

    @model_validator(mode="after")
    def _one_rule(self) -> Lambda:
        if (self.function is None) == (self.expression is None):
            raise ValueError("give either a function or an expression")
        if self.dtype is not None:
            parse_dtype(self.dtype)
        if self.expression is not None:
            parse(self.expression, learned=True)
        return self

    @cached_property
    def parsed(self) -> Expression:
        assert self.expression is not None
        return parse(self.expression, learned=True)

    @cached_property
    def called(self) -> Callable[..., Any]:
        return import_path(self.function) if isinstance(self.function, str) else self.function  # type: ignore[return-value]

    def takes_wider(self, unit: Unit, name: str) -> bool:
        return self.expression is not None and self.parsed.in_float64

    def extra_columns(self, fitting: bool) -> tuple[str, ...]:
        named = [n for n in self.parsed.columns if n != HERE] if self.expression is not None else []
        return tuple(dict.fromkeys([*named, *self.dependency]))

    def outputs(self, unit: Unit, schema: Schema, fitted: object) -> list[Column]:
        column = schema[unit[0]]
        if self.dtype is not None:
            dtype = plain_type(parse_dtype(self.dtype))
        elif self.expression is not None:
            dtype = dtype_of(self.parsed, Schema([*schema.columns, Column(HERE, column.dtype)]))
        else:
            dtype = column.dtype
        return [Column(self.name or unit[0], dtype, column.tags if dtype == column.dtype else frozenset())]

    def apply(self, columns: Columns, unit: Unit, fitted: FittedValues | None, context: Context) -> Columns:
        column = columns[unit[0]]
        if self.expression is not None:
            return {self.name or unit[0]: self._evaluate_expression({**columns, HERE: column}, fitted, context)}
        result = self._call(column, columns, context)
        values = context.engine.adopt(result)
        if self.dtype is None and not same_kind(context.engine.dtype(values), context.engine.dtype(column)):
            raise JobError(
                f"the function made {dtype_name(context.engine.dtype(values))} "
                f"of {dtype_name(context.engine.dtype(column))}",
                why="without dtype the type of the column stays",
                do="give Lambda the dtype of the result",
            )
        return {self.name or unit[0]: values}

    def _evaluate_expression(self, columns: Columns, fitted: FittedValues | None, context: Context) -> Series:
        with rows_named(context):
            return evaluate(
                self.parsed, columns, None, context.failed, fitted, strict=self.strict, whole=context.hashes_whole
            )

    def _call(self, column: Series, columns: Columns, context: Context) -> object:
        series = context.engine.series(column)
        frame = (context.engine.user_frame(columns),) if _takes_frame(self.called) else ()
        result = self.called(series, *frame)
        refuse_reordered(result, series)
        return result


class _LearnedLambda(Lambda, Learned):
    """A Lambda whose expression has learned values: min, max, mean, std or quantile of a column."""

    passes: ClassVar[int] = 4

    def observe_unit(self, columns: Columns, unit: Unit, context: Context) -> dict[str, Any]:
        return {name: self._observe_value(name, node, columns, unit, context) for name, node in self.values.items()}

    def merge(self, a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
        return {name: self._merge_value(node.verb, a[name], b[name]) for name, node in self.values.items()}

    def refine(self, partial: dict[str, Any]) -> dict[str, Any] | None:
        questions = {}
        for name, node in self.values.items():
            if node.verb == "quantile":
                counted = partial[name][1]
                ranks = sorted(set(quantile_ranks(Fraction(node.args[1].value), counted.total)))
                questions[name] = radix_selection.next_question(counted, ranks)
        return {name: question for name, question in questions.items() if question is not None} or None

    def finalize(self, partial: dict[str, Any]) -> FittedValues:
        return {name: self._finalize_value(node, partial[name]) for name, node in self.values.items()}

    def to_json(self) -> JsonObject:
        return {**super().to_json(), "op": "Lambda"}

    @cached_property
    def values(self) -> dict[str, ExpressionNode]:
        return {state_name_of(node): node for node in self.parsed.learned}

    def refit_of(self, unit: Unit) -> tuple[Literal["merged", "appended", "frozen"], str]:
        exact = any(node.verb == "quantile" for node in self.values.values())
        return ("frozen", "exact ranks need all rows again") if exact else ("merged", "")

    def _observe_value(
        self, name: str, node: ExpressionNode, columns: Columns, unit: Unit, context: Context
    ) -> Partial:
        engine = context.engine
        source = unit[0] if node.args[0].value == HERE else node.args[0].value
        column = columns[source]
        if node.verb in ("mean", "std"):
            refuse_infinite("Lambda", [source], columns, context, f"{name} would not be finite")
            return list(engine.moments(column, [0, len(column)])[0])
        if node.verb in ("min", "max"):
            return _end(column, node.verb)
        values, valid = engine.numbers(engine.finite(column))
        values = values if valid is None else values[valid]
        question = (context.question or {}).get(name)
        return [values.dtype.kind, radix_selection.count(values, question, engine.xp)]

    def _merge_value(self, verb: str, a: Any, b: Any) -> Partial:
        if verb == "quantile":
            return [a[0], radix_selection.merge([a[1], b[1]])]
        if verb in ("mean", "std"):
            return list(merge_moments(tuple(a), tuple(b)))
        if a is None or b is None:
            return b if a is None else a
        return min(a, b) if verb == "min" else max(a, b)

    def _finalize_value(self, node: ExpressionNode, partial: Any) -> str | Partial:
        if node.verb == "quantile":
            return quantile_of((partial[0], partial[1]), Fraction(node.args[1].value))
        if node.verb in ("min", "max"):
            return format_learned_time(partial[1], partial[0]) if isinstance(partial, list) else partial
        n, mean, _, low, high = partial
        if not n:
            return None
        return (low if low == high else mean) if node.verb == "mean" else deviation(tuple(partial))

    def kept_partial(self, partial: dict[str, Any], fitted: FittedValues) -> FittedValues:
        """Nothing where exact ranks of more data need all data again."""
        return {} if self.refit_of(())[0] == "frozen" else super().kept_partial(partial, fitted)

    def __reduce__(self) -> tuple[Callable[..., Operator], tuple[dict[str, Any]]]:
        return make_operator, (self.to_json(),)


def _end(column: Series, verb: str) -> Partial:
    """The least or the greatest value of a column, of times [unit, count]; None where there is none."""
    verbs = engine_of(column)
    dtype = verbs.arrow_type(column)
    flat = verbs.flat(column, dtype)
    values = flat.values if flat.valid is None else flat.values[flat.valid]
    if not len(values):
        return None
    value = extremes(values)[verb == "max"]
    return [unit_of(dtype), value] if family(dtype) == "time" else value


_LearnedLambda.__name__ = "Lambda"  # in messages and in the state


@contextmanager
def rows_named(context: Context) -> Iterator[None]:
    """Errors of strict expressions say which row of the source, and of which file, holds the value."""
    try:
        yield
    except UnreadError as error:
        raise error.in_row(context.place(error.row)) from None


def _takes_frame(function: Callable[..., Any]) -> bool:
    """Whether a function has a second parameter that has to be given, or that is called frame."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # numpy's own functions do not tell
        return False
    second = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][1:2]
    return bool(second) and (second[0].default is inspect.Parameter.empty or second[0].name == "frame")


def _import_or_none(path: str) -> object:
    try:
        return import_path(path)
    except JobError:
        return None


def same_kind(dtype: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether the values of a function may be cast to a type: one of the same kind; nulls may be of any."""
    same = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, _is_zoned)
    return dtype == wanted or pa.types.is_null(dtype) or any(test(dtype) and test(wanted) for test in same)


def _is_zoned(dtype: pa.DataType) -> bool:
    """Times in zones are the same times: cuDF has them in UTC where it lacks a zone."""
    return bool(pa.types.is_timestamp(dtype) and dtype.tz)
