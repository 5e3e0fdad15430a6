"""The base classes of operators: declared parameters, a rule for types, and the verbs that `tasks.graph` calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticSerializationError

from tasks.core.dtypes import dtype_name, is_bytes, is_list, kind_of, leaf_type, schema_advice
from tasks.core.nvtabular import of_parameter, of_value
from tasks.core.schema import Column, Schema
from tasks.core.strict_json import JsonObject, decode_floats, encode_floats, from_marked_json, to_marked_json
from tasks.core.versions import VALUE_RULES
from tasks.engines.algorithms.protocol import Kernels
from tasks.engines.types import Array, Series
from tasks.errors import DataError, JobError, mistakes, near, place_text
from tasks.ops.docstrings import docstring_of
from tasks.ops.fitted_values import FittedValues
from tasks.ops.installed import load_installed_operator, refuse_clash
from tasks.ops.user_code import import_path

Unit = tuple[str, ...]  # the input columns that an operator treats together: one column, or a group
Entry = str | tuple[str, ...]  # what stands in a selection: a column or a group (nested list)
Columns = dict[str, Series]  # name -> column of the engine

# Former name of a verb -> its name. Nothing calls the former one, so a class that defines it is refused.
RENAMED_VERBS = {"prepare_night": "prepare_refit"}


@dataclass(frozen=True)
class Context:
    """The surroundings of an operator's work on a run of rows.

    engine: the module of the engine's kernels (`tasks.engines.cpu` or `gpu`).
    rows: the row numbers, int64, an array of the engine.
    training: True for the rows that the workflow learned from, as in `fit_transform`.
    order: the order numbers; None where they are the row numbers, as always without `source.keys`.
    rules: the number of the rules by which values are hashed and joined (`VALUE_RULES`), that of the state.
    question: the question of this pass, for an operator that learns in several passes (`Learned.refine`).
    failed: by expression, the number of rows that are null because a cast failed in this step.
    met: counts what this step meets, such as values out of its vocabulary; None if not needed.
    origin: says in words where a row of the source lies, by its row number; None where only the number is known.
    own: whether each row belongs to the split of this pass. Other rows are earlier rows of a run: histories and groups
        see them, and they are not written. None where all rows belong to it.
    """

    engine: Kernels
    rows: Array
    training: bool = False
    order: Array | None = None
    question: Any = None
    failed: Counter[str] = field(default_factory=Counter)
    met: Counter[str] | None = None
    origin: Callable[[int], str] | None = None
    own: Array | None = None
    rules: int = VALUE_RULES

    def place(self, index: int) -> str:
        """Where the source has one of these rows, in words: its number, and its file if there is one."""
        row = int(self.rows[index])
        return self.origin(row) if self.origin else f"row {row:,} of the source"

    def hashes(self, columns: Sequence[Series]) -> Array:
        """The hash of each row, of one column or of several; whole floats as integers, unless an older rule holds."""
        return self.engine.hash_columns(columns, whole=self.rules >= 2)

    @property
    def hashes_whole(self) -> bool:
        """Whether `hash` of an expression takes whole floats as integers, as `hashes` does."""
        return self.rules >= 3

    def ordered(self) -> Array:
        """The order numbers of the rows."""
        return self.rows if self.order is None else self.order

    def part(self, start: int, stop: int) -> Context:
        """The context of rows [start, stop)."""
        order = None if self.order is None else self.order[start:stop]
        own = None if self.own is None else self.own[start:stop]
        return replace(self, rows=self.rows[start:stop], order=order, own=own)


@dataclass(frozen=True)
class RefitDate:
    """The date of a refit, and what the refit forgets.

    day: the date of the refit: values of its rows are seen on it.
    forget_days: counts of values without an id that were not seen for so many days are dropped; None: none are.
    keep_ids_only: of what was learned, only ids stay; all counts begin anew with the rows of the refit.
    since: the day of the base; values that were learned without a day were seen on it. None: the day of the refit.
    engine: the engine that looks up values in this process; the vocabularies are in host memory.
    """

    day: date
    forget_days: int | None = None
    keep_ids_only: bool = False
    since: date | None = None
    engine: str = "pandas"

    @property
    def number(self) -> int:
        """The day as days since 1970-01-01, as Arrow's date32 counts them."""
        return _day_number(self.day)

    @property
    def since_number(self) -> int:
        """The day on which values were seen that were learned without a day, in the same count."""
        return _day_number(self.since or self.day)


def _day_number(day: date) -> int:
    return (day - date(1970, 1, 1)).days


class Grown(NamedTuple):
    """What an operator has learned in a refit (`Learned.grown`).

    learned: the values learned from all rows so far. change: what changed, for changes.json.
    refit_table: a table in host memory of which `prepare_refit` makes what `apply` takes for the rows of the refit.
    """

    learned: FittedValues
    change: FittedValues
    refit_table: pa.Table | None = None


def _add_descriptions(schema: JsonObject, cls: type[BaseModel]) -> None:
    """Give the JSON schema of an operator the texts of its docstring."""
    text = docstring_of(cls)
    schema["description"] = text.summary
    for name, parameter in text.parameters.items():
        if name in schema.get("properties", {}):
            schema["properties"][name]["description"] = parameter.meaning


def _built_in(cls: type[Operator]) -> bool:
    """Whether the operator is of this package: its class name names it. A user's operator is named by import path."""
    return cls.__module__.startswith(f"{__package__}.")


class Operator(BaseModel):
    """Base of all operators: an immutable set of checked parameters, and the verbs that work with them.

    A subclass declares parameters with types and defaults, as pydantic models do, and overrides the smallest verb that
    fits: `transform` for one column to one column, `apply` for everything else. The class variables say which columns
    it takes and what it may do. To define the class is to register it: a job names a class of `tasks.ops` by its name,
    any other by import path (`module:Class`). Parameters may be given by position, in the order of their declaration.
    A JobError names a parameter that is unknown, missing, given twice or of a wrong value.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        arbitrary_types_allowed=True,
        ser_json_inf_nan="constants",
        json_schema_extra=_add_descriptions,
    )

    registry: ClassVar[dict[str, type[Operator]]] = {}
    is_built_in: ClassVar[bool] = True  # its columns are those of the engine; those of a user's operator are Series
    takes: ClassVar[frozenset[str]] = frozenset({"number"})  # kinds of column: number, string, bool, time, list, other
    leaves: ClassVar[bool] = False  # works on the elements of list columns too
    encoded: ClassVar[bool] = False  # takes strings dictionary-encoded, as they were read
    plain_too: ClassVar[bool] = False  # takes strings plain as well, and hands none of them on
    grouped: ClassVar[bool] = False  # a group (nested list) is one unit
    in_float64: ClassVar[bool] = False  # integers and floats of the same value give the same: later data may be wider
    keeps_values: ClassVar[bool] = False  # changes a column's name or description only
    hands_on: ClassVar[bool] = False  # the selected columns come out as they are, maybe next to new ones
    makes_nan: ClassVar[bool] = True  # False: it makes no NaN of its own, so none is searched for
    removes_rows: ClassVar[bool] = False  # keeps some rows of the whole table: has the verb `keep`
    groups_rows: ClassVar[bool] = False  # makes one row of many: has the verb `regroup`
    run_columns: ClassVar[str | None] = None  # the parameter that names the keys whose rows must lie together
    keeps_ids: ClassVar[bool] = False  # of a column of ids it hands on ids as they are, if not all of them
    adds_tags: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.is_built_in = _built_in(cls)
        for former, verb in RENAMED_VERBS.items():
            if hasattr(cls, former):
                what = f"{cls.__name__} defines {former}, which is now called {verb}"
                raise JobError(what, where=f"{cls.__module__}.{cls.__qualname__}", do=f"rename the method to {verb}")
        if not cls.__name__.startswith("_") and cls.__name__ not in ("Learned", "Keyed"):
            Operator.registry[cls.__name__ if _built_in(cls) else f"{cls.__module__}:{cls.__qualname__}"] = cls

    def __init__(self, *args: Any, **parameters: Any) -> None:
        names = list(type(self).model_fields)
        if len(args) > len(names):
            raise JobError(
                f"{type(self).__name__} takes {len(names)} parameters, {len(args)} were given", do=", ".join(names)
            )
        for name, value in zip(names, args, strict=False):
            if name in parameters:
                raise JobError(f"{type(self).__name__}: {name} is given twice")
            parameters[name] = value
        try:
            super().__init__(**parameters)
        except ValidationError as error:
            raise JobError(_explain(type(self), error, parameters)) from None

    # the graph: before any data is read

    if TYPE_CHECKING:  # tasks.graph.node defines it, and gives a Node

        def __rrshift__(self, columns: object) -> Any: ...

    @property
    def files(self) -> tuple[str, ...]:
        """Files read besides the source; when one has changed, what was learned with it is learned again."""
        return ()

    @property
    def storage(self) -> str | None:
        """Name of the options of the storage that `files` are in; None for those of the environment."""
        return None

    @property
    def frames(self) -> tuple[Any, ...]:
        """Frames among the parameters (`tasks.ops.side_tables.SideFrame`): a job has no place for them."""
        return ()

    @property
    def may_make_nan(self) -> bool:
        """Whether outputs are searched for NaN, which becomes null; always true for a class of the user's."""
        return self.makes_nan or not self.is_built_in

    @property
    def shared_outputs(self) -> frozenset[str]:
        """Columns that every unit makes alike, so that only the first one counts."""
        return frozenset()

    def units(self, selection: Sequence[Entry]) -> list[Unit]:
        """The selection in the parts that are treated together: every column alone, groups whole if `grouped`."""
        if self.grouped:
            return [entry if isinstance(entry, tuple) else (entry,) for entry in selection]
        flat = [name for entry in selection for name in ([entry] if isinstance(entry, str) else entry)]
        return [(name,) for name in dict.fromkeys(flat)]

    def extra_columns(self, fitting: bool) -> tuple[str, ...]:
        """Columns used besides the selected ones, when fitting (or in fit_transform) and when applying."""
        return ()

    def made_of(self, output: str, unit: Unit) -> tuple[str, ...]:
        """The columns whose values are in an output column: that of its name, else the unit; of a user's class the
        unit."""
        return (output,) if output in unit and _built_in(type(self)) else unit

    def takes_wider(self, unit: Unit, name: str) -> bool:
        """Whether an input may be of a wider type of numbers than in the fit, such as fractions after whole numbers."""
        return name in unit and (self.in_float64 or self.keeps_values)

    def check(self, unit: Unit, schema: Schema) -> None:
        """Refuse columns of a type that the operator does not take (DataError)."""
        for name in unit:
            dtype = schema[name].dtype
            takes_list = "list" in self.takes or self.leaves
            kind = kind_of(leaf_type(dtype)) if is_list(dtype) and self.leaves else kind_of(dtype)
            nested = is_list(dtype) and self.leaves and "list" not in self.takes and is_list(dtype.value_type)
            if (
                (is_list(dtype) and not takes_list)
                or nested
                or (kind not in self.takes and not pa.types.is_null(leaf_type(dtype)))
            ):
                text = is_bytes(dtype) and "string" in self.takes
                lists = " and lists of these" if self.leaves else ""
                raise DataError(
                    f"{type(self).__name__} does not take column {name!r} of type {dtype_name(dtype)}",
                    why=f"it takes columns of {', '.join(sorted(self.takes))}{lists}",
                    do=f"if its bytes are text, say so: {schema_advice(name, pa.string())}"
                    if text
                    else _cast_hint(kind_of(dtype), self.takes),
                )

    def outputs(self, unit: Unit, schema: Schema, fitted: FittedValues | None) -> list[Column]:
        """The columns made of a unit, with exact types. `fitted` is None before fitting."""
        return [self.output(schema[name]) for name in unit]

    def output(self, column: Column) -> Column:
        """The column made of one column: the same name, the type of `dtype_out`, and the tags of `adds_tags` too."""
        dtype = self.dtype_out(column)
        dtype = pa.list_(dtype) if is_list(column.dtype) and self.leaves and not is_list(dtype) else dtype
        return Column(column.name, dtype, column.tags | self.adds_tags, column.properties)

    def dtype_out(self, column: Column) -> pa.DataType:
        """The type of the values that come out (of the leaves, for lists)."""
        return column.dtype

    # the work

    def apply(self, columns: Columns, unit: Unit, fitted: Any, context: Context) -> Columns:
        """The unit's output columns. Default: `transform` column by column, on the leaves of lists where allowed."""
        out = {}
        for name in unit:
            column = columns[name]
            if self.leaves and context.engine.is_list(column):
                leaves = self.transform(context.engine.leaves(column), fitted)
                out[name] = context.engine.with_leaves(column, leaves)
            else:
                out[name] = self.transform(column, fitted)
        return out

    def transform(self, column: Any, fitted: Any) -> Any:
        """The column made of one column (an Arrow array, a pandas Series in operators of users, or cuDF's), row by row.

        `fitted` is what `prepare` gave (None for an operator that does not learn). Of a list column `column` is its
        elements. NaN in the result becomes null.
        """
        raise TypeError(f"{type(self).__name__} defines neither transform nor apply")

    def keep(self, columns: Columns, unit: Unit, context: Context) -> Any:
        """Which rows stay, one boolean per row (`removes_rows`)."""
        raise TypeError(f"{type(self).__name__} does not define keep")

    def regroup(self, columns: Columns, unit: Unit, context: Context) -> tuple[Columns, Context]:
        """The columns of the new rows, and their context: the row and order numbers that they take over, and `own`,
        true for a new row that is made of at least one such row (`groups_rows`)."""
        raise TypeError(f"{type(self).__name__} does not define regroup")

    # as data

    def to_json(self) -> JsonObject:
        """The operator as in a job: {op: Name, parameter: value}, defaults left out; infinities as {"float": "inf"}."""
        cls = type(self)
        name = cls.__name__ if _built_in(cls) else f"{cls.__module__}:{cls.__qualname__}"
        try:
            values = self.model_dump(mode="json")
        except PydanticSerializationError as error:
            if isinstance(error.__cause__, JobError):  # a function without an import path
                raise error.__cause__ from None
            raise JobError(f"{cls.__name__} cannot be saved", why=str(error), do="give plain values") from None
        fields = cls.model_fields.items()
        defaults = {n for n, f in fields if _identical(getattr(self, n), f.get_default(call_default_factory=True))}
        return {"op": name, **{n: encode_floats(value) for n, value in values.items() if n not in defaults}}


class Learned(Operator):
    """Base of the operators that learn: observe(block) -> partial, merge(a, b) -> partial, finalize(partial) -> values.

    Partials are a monoid: the learned values are the same for any cut of the rows into blocks. Most operators take one
    pass over their columns. An operator that needs more passes overrides `refine`, which gives the question of the next
    pass; an operator that learns from its parameters alone has `passes` 0, and is finalized with None before any data
    are read.
    """

    passes: ClassVar[int] = 1  # the most passes that it takes
    on_refit: ClassVar[Literal["merged", "appended", "frozen"]] = "merged"  # what a refit does with what was learned
    frozen_why: ClassVar[str] = ""  # of a frozen operator: why, in one clause
    for_refit: ClassVar[frozenset[str]] = frozenset()  # what was learned that `apply` does not need: saved apart
    settles_schema: ClassVar[bool] = False  # which columns come out, or their types, is known only when it is fitted
    moves_values: ClassVar[bool] = True  # False: the values that come out do not depend on what is learned
    retunable: ClassVar[frozenset[str]] = frozenset()  # parameters that a job may change: what was learned stays valid

    def order_free(self, unit: Unit, schema: Schema) -> bool:
        """True if merging is exact in any order (counts, integer sums, min, max); False: one fixed tree over blocks."""
        return False

    def observe_unit(self, columns: Columns, unit: Unit, context: Context) -> Any:
        """The partial of a run of rows. Default: `observe` of the unit's column, or of its leaves if it is a list."""
        (name,) = unit
        column = columns[name]
        return self.observe(context.engine.leaves(column) if context.engine.is_list(column) else column)

    def observe_blocks(self, columns: Columns, unit: Unit, context: Context, starts: Sequence[int]) -> list[Any]:
        """A partial for each block of rows [starts[i], starts[i + 1]). Default: block by block."""
        partials = []
        for start, stop in pairwise(starts):
            cut = context.engine.slice_rows(columns, start, stop)
            partials.append(self.observe_unit(cut, unit, context.part(start, stop)))
        return partials

    def observe(self, column: Any) -> Any:
        """The partial of a run of rows of one column (of a list column: of its elements): a plain value or a table."""
        raise TypeError(f"{type(self).__name__} defines neither observe nor observe_unit")

    def merge(self, a: Any, b: Any) -> Any:
        """The partial of the rows of both; `a` and `b` stay as they are."""
        raise TypeError(f"{type(self).__name__} does not define merge")

    def merge_all(self, partials: Sequence[Any]) -> Any:
        """The partial of all; order-free operators override it where many at once are cheaper than pairs."""
        result = partials[0]
        for partial in partials[1:]:
            result = self.merge(result, partial)
        return result

    def refine(self, partial: Any) -> Any:
        """The `context.question` of the next pass (a small plain value); None if this partial answers everything."""
        return None

    def finalize_unit(self, partial: Any, unit: Unit) -> FittedValues:
        """The learned values of a unit. Default: `finalize`, for operators that do not look at the columns' names."""
        return self.finalize(partial)

    def finalize(self, partial: Any) -> FittedValues:
        """The learned values by name: plain JSON values and Arrow tables."""
        raise TypeError(f"{type(self).__name__} does not define finalize")

    def kept_partial(self, partial: Any, fitted: FittedValues) -> FittedValues:
        """The partial as saved beside the fitted values for a refit; {} where the fitted values hold it already.

        Default: `partial`, with a mark where JSON has no tuples and no keys but texts (`tasks.core.strict_json`).
        """
        return {"partial": to_marked_json(partial)}

    def refit_of(self, unit: Unit) -> tuple[Literal["merged", "appended", "frozen"], str]:
        """(what a refit does with a unit, why in one clause) if nobody wants it otherwise. Default: of every unit the
        same."""
        return self.on_refit, self.frozen_why

    def check_retuned(self, fitted: FittedValues, unit: Unit) -> None:
        """A JobError where other values of `retunable` parameters than those of the base do not allow what the base has
        learned. Default: they allow all."""
        return

    def restored(self, fitted: FittedValues, saved: FittedValues, unit: Unit) -> Any:
        """The partial of all rows that were learned so far, for a refit: the inverse of `parted`.

        `fitted` are the values, `saved` is what was saved beside them for a refit (`kept_partial`, `for_refit`).
        Default: the saved partial, as it was observed. A KeyError where it was not saved; a DataError where it was not
        saved as it was.
        """
        try:
            return from_marked_json(saved["partial"])
        except TypeError as error:
            raise DataError(
                f"the partial of {type(self).__name__} cannot be read again",
                why=str(error),
                do="let the operator define restored, the inverse of kept_partial",
            ) from None

    def grown(
        self, partial: Any, fitted: FittedValues, saved: FittedValues, unit: Unit, refit: RefitDate
    ) -> Grown | tuple[FittedValues, FittedValues]:
        """(the learned values after a refit, what changed) of an operator with `on_refit` "appended".

        `partial` is of the rows of the refit alone, `fitted` and `saved` are as in `restored`. What changed are plain
        JSON values and Arrow tables, which changes.json names beside operator and columns. A `Grown` may have besides
        what `prepare_refit` takes.
        """
        raise TypeError(f"{type(self).__name__} does not define grown")

    def change(self, old: FittedValues, new: FittedValues, unit: Unit) -> FittedValues:
        """What a refit changed, of an operator with `on_refit` "merged": small plain values, for changes.json.

        Default: the plain values that differ, as {"old": .., "new": ..}.
        """
        plain = {n for n in (*old, *new) if not isinstance(old.get(n, new.get(n)), pa.Table)}
        names = sorted(n for n in plain if old.get(n) != new.get(n))
        return {"old": {n: old.get(n) for n in names}, "new": {n: new.get(n) for n in names}}

    def would(self, old: FittedValues, new: FittedValues, unit: Unit) -> str | None:
        """What a fit would make different now, of a frozen operator that defines it; None: nothing.

        `old` are the learned values, which stay; `new` are those of all rows so far, or of the refit's rows alone where
        no partial is saved.
        """
        return None

    def split_learned(self, partial: Any, learned: FittedValues) -> tuple[FittedValues, FittedValues]:
        """(the learned values that `apply` needs, the values that are saved apart for a refit)."""
        fitted = {name: value for name, value in learned.items() if name not in self.for_refit}
        for_refit = {name: value for name, value in learned.items() if name in self.for_refit}
        return fitted, self.kept_partial(partial, learned) | for_refit

    def restore_frames(self, fitted: FittedValues) -> None:
        """Give `frames` that were saved by their digest alone what was learned from them, for another fit."""
        return

    def report(self, fitted: FittedValues) -> list[JsonObject] | None:
        """Rows of plain values worth showing in the statistics stage's artifact, the most telling first; None:
        nothing."""
        return None

    def prepare(self, fitted: FittedValues, engine: Kernels) -> Any:
        """What `apply` gets as `fitted`, made once per process and engine (look-up tables)."""
        return fitted

    def prepare_refit(
        self, refit_table: pa.Table, fitted: FittedValues, whole: Callable[[], Any], engine: Kernels
    ) -> Any:
        """What `apply` gets as `fitted` in the run of a refit, made of `Grown.refit_table`: its cost depends on
        the rows of the refit alone.

        `fitted` has no tables. `whole` makes what `prepare` makes, for values that the rows of the refit do not have.
        Default: that.
        """
        return whole()


def _identical(a: Any, b: Any) -> bool:
    """Whether two parameters have the same value and type: False is not 0, and 0.0 is neither 0 nor -0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_identical(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(_identical(x, y) for x, y in zip(a, b, strict=True))
    return repr(a) == repr(b) if isinstance(a, float) else bool(a == b)


def _explain(cls: type[Operator], error: ValidationError, parameters: JsonObject) -> str:
    lines = []
    known_as = cls.__name__ if _built_in(cls) else ""  # NVTabular has no operator of a user's own
    for one in mistakes(error, parameters):
        name = place_text(one.place)
        if one.kind == "unknown":
            hint = of_parameter(known_as, name) or near(name, cls.model_fields)
            lines.append(f"{cls.__name__} has no parameter {name!r}: {hint}")
        elif one.kind == "missing":
            lines.append(f"{cls.__name__} needs the parameter {name!r}")
        else:
            place = f"({name})" if name else ""
            texts = filter(None, [one.text, of_value(known_as, name, parameters)])
            lines.append(f"{cls.__name__}{place}: {'; '.join(texts)}")
    return "; ".join(lines)


def make_operator(spec: Mapping[str, Any] | str) -> Operator:
    """Make the operator of a job's entry {op: Name, parameter: value}; `op` may be an import path `module:Class`.

    A JobError for an unknown operator or parameter, a HostError for a class that cannot be imported here.
    """
    spec = {"op": spec} if isinstance(spec, str) else decode_floats(spec)
    if "op" not in spec:
        raise JobError(f"an operator needs the key 'op': {spec!r}", do="write {op: Name, parameter: value}")
    name = str(spec.pop("op"))
    return operator_class(name)(**spec)


def operator_class(name: str) -> type[Operator]:
    """The class of a built-in operator's name, of one of an installed package, or of an import path `module:Class`.

    A JobError for any other name.
    """
    if ":" not in name:
        built_in = sorted(n for n in Operator.registry if ":" not in n)
        if name not in built_in:
            return load_installed_operator(name, Operator, built_in)
        refuse_clash(name)
        return Operator.registry[name]
    cls = import_path(name)
    if not (isinstance(cls, type) and issubclass(cls, Operator)):
        why = f"it is {cls!r}"
        do = "name a subclass of rowmill.ops.Operator"
        raise JobError(f"{name!r} is not an operator", why=why, do=do)
    return cls


def refuse_infinite(operator: str, names: Sequence[str], columns: Columns, context: Context, why: str) -> None:
    """Raise a DataError about the first row with an infinite value in one of the named columns, if there is one."""
    engine = context.engine
    xp = context.engine.xp
    first: tuple[int, str, float] | None = None
    for name in names:
        values, valid = engine.numbers(columns[name])
        if values.dtype.kind != "f":
            continue
        infinite = xp.isinf(values) if valid is None else xp.logical_and(xp.isinf(values), valid)
        places = xp.flatnonzero(infinite)
        if len(places) and (first is None or int(places[0]) < first[0]):
            first = int(places[0]), name, float(values[places[0]])
    if first is None:
        return
    place, name, value = first
    raise DataError(
        f"{operator} cannot learn from {value} in column {name!r}",
        why=f"{context.place(place)} holds it; {why}",
        do="limit the values with Clip first, or leave such rows out with a filter",
    )


def _cast_hint(kind: str, takes: frozenset[str]) -> str:
    """What to do with a column of a kind that an operator does not take: the cast that makes one of another kind."""
    casts = {
        ("string", "number"): "cast(_, 'float64')",
        ("time", "number"): "cast(_, 'int64')",
        ("bool", "number"): "cast(_, 'int64')",
        ("number", "time"): "cast(cast(_, 'int64'), 'timestamp[s]')",
        ("string", "time"): "cast(_, 'timestamp[us]')",
        **{(other, "string"): "cast(_, 'string')" for other in ("number", "time")},
    }
    cast = next((casts[kind, to] for to in ("number", "time", "string") if to in takes and (kind, to) in casts), "")
    lambda_ = f', or cast this one first with Lambda(expression="{cast}")' if cast else ""
    if cast == casts["string", "number"]:
        lambda_ += """; for texts such as 1.234,50 with expression="parse_number(_, ',', '.')\""""
    return f"choose other columns{lambda_}"
