"""Lists: their slices, their lengths, and lists of equal length."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar

from pydantic import model_validator

from tasks.core.schema import Column, Schema, Tags
from tasks.engines.algorithms.key_runs import with_filler
from tasks.engines.algorithms.reductions import extremes
from tasks.errors import DataError, JobError
from tasks.ops.base import Array, Columns, Context, Entry, Learned, Operator, Unit
from tasks.ops.continuous import check_fits, convert_parameter
from tasks.ops.fitted_values import FittedValues
from tasks.ops.scaling import Range, restore_range, save_range


class ListSlice(Operator):
    """Take list[start:end] of every list, as Python does, negative numbers counting from the end; null lists stay null.

    Parameters
    ----------
    start : int
        First element that is taken.
    end : int, default None
        End of the slice, which it does not include; None takes everything to the end of the list.
    pad : bool, default False
        Fill every list up on its right to end - start elements, so that all have one length. It needs `start` and `end`
        of one sign, or a negative `start` alone (the last -start elements).
    pad_value : any, default 0
        Value of the elements that `pad` or `pad_left` adds.
    pad_left : bool, default False
        Fill up on the left instead, so that the last elements of all lists stand in the last places.

    Notes
    -----
    The type stays, and null and infinite elements stay. An empty list stays empty, or is filled up.

    Errors: a JobError for `pad` or `pad_left` without a known length, and for both; a DataError for a `pad_value` that
    the elements' type does not hold exactly.

    Examples
    --------
    >>> from rowmill import Workflow
    >>> import pyarrow as pa
    >>> table = pa.table({"seen": [[1, 2, 3], [4], None]})
    >>> Workflow(["seen"] >> ListSlice(0, 2, pad=True)).fit(table).transform(table).to_pydict()
    {'seen': [[1, 2], [4, 0], None]}
    >>> Workflow(["seen"] >> ListSlice(-2, pad_left=True)).fit(table).transform(table).to_pydict()
    {'seen': [[2, 3], [0, 4], None]}
    >>> ListSlice(2, 1, pad=True)
    Traceback (most recent call last):
    ...
    tasks.errors.JobError: ListSlice: pad needs a start and an end of one sign, start at or before end: 2, 1
    """

    start: int
    end: int | None = None
    pad: bool = False
    pad_value: Any = 0
    pad_left: bool = False
    keeps_ids = True
    takes = frozenset({"list"})

    @model_validator(mode="after")
    def _width_known(self) -> ListSlice:
        if self.pad and self.pad_left:
            raise ValueError("pad fills up on the right, pad_left on the left: give one of them")
        if self.pads and self.width is None:
            name = "pad" if self.pad else "pad_left"
            raise ValueError(
                f"{name} needs a start and an end of one sign, start at or before end: {self.start}, {self.end}"
            )
        return self

    @property
    def pads(self) -> bool:
        """Whether all lists get one length."""
        return self.pad or self.pad_left

    @property
    def width(self) -> int | None:
        """How many elements a padded list has; None if that depends on the list."""
        end = 0 if self.end is None and self.start < 0 else self.end
        if end is None or (self.start < 0) != (end < 0 or (end == 0 and self.end is None)) or end < self.start:
            return None
        return end - self.start

    def outputs(self, unit: Unit, schema: Schema, fitted: FittedValues | None) -> list[Column]:
        column = schema[unit[0]]
        if self.pads:
            check_fits(self.pad_value, column.leaf, column.name, "ListSlice", "pad_value")
            size = {"min": self.width, "max": self.width}
            return [Column(column.name, column.dtype, column.tags, {**_without_lengths(column), "value_count": size})]
        return [Column(column.name, column.dtype, column.tags, _without_lengths(column))]

    def apply(self, columns: Columns, unit: Unit, fitted: object, context: Context) -> Columns:
        engine = context.engine
        xp = context.engine.xp
        column = columns[unit[0]]
        lengths, valid = engine.list_lengths(column)
        elements = engine.leaves(column)
        first = xp.cumsum(lengths) - lengths  # where each list begins among the elements
        low = _bound(self.start, lengths, xp)
        high = lengths if self.end is None else _bound(self.end, lengths, xp)
        sliced = xp.maximum(high - low, 0)
        sizes = sliced
        begin = first + low
        if self.pads:
            sizes = xp.full(len(sliced), self.width, dtype=xp.int64)
            sizes = sizes if valid is None else xp.where(valid, sizes, 0)
        ends = xp.cumsum(sizes)
        places = xp.arange(int(ends[-1]) if len(ends) else 0, dtype=xp.int64)
        row = xp.searchsorted(ends, places, side="right")
        offset = places - (ends - sizes)[row]
        if self.pads:
            if self.pad_left:
                offset = offset - (sizes - sliced)[row]  # negative where a filler stands
            is_taken = xp.logical_and(offset >= 0, offset < sliced[row])
            index = xp.where(is_taken, begin[row] + offset, len(elements))
            taken = with_filler(elements, convert_parameter(self.pad_value, engine.dtype(elements)), index, engine)
        else:
            taken = engine.take({"x": elements}, begin[row] + offset)["x"]
        return {unit[0]: engine.make_lists(sizes, valid, taken)}


def _bound(at: int, lengths: Array, xp: ModuleType) -> Array:
    """Where a slice's bound lies in lists of these lengths."""
    return xp.minimum(lengths, at) if at >= 0 else xp.maximum(lengths + at, 0)


def _without_lengths(column: Column) -> dict[str, Any]:
    return {k: v for k, v in column.properties.items() if k not in ("value_count", "fixed_size")}


class EqualLengths(Operator):
    """Check that the lists of all selected columns have one length in each row, as ids and their weights; data stay.

    Notes
    -----
    Select two columns or more. Lengths are numbers of elements, null ones included; a null list counts as an empty one.
    Types, nulls and values stay. Rows that a filter removes are not checked.

    Errors: a JobError for fewer than two columns; a DataError that names the first row with lists of different lengths,
    the two columns and their lengths.

    Examples
    --------
    >>> from rowmill import Workflow
    >>> import pyarrow as pa
    >>> table = pa.table({"ids": [[7, 8], [], None], "weights": [[0.5, None], None, []]})
    >>> Workflow(["ids", "weights"] >> EqualLengths()).fit(table).transform(table).to_pydict()
    {'ids': [[7, 8], [], None], 'weights': [[0.5, None], None, []]}
    >>> Workflow(["ids", "weights"] >> EqualLengths()).fit(table).transform(pa.table({"ids": [[7]], "weights": [[]]}))
    Traceback (most recent call last):
    ...
    tasks.errors.DataError: the lists of 'ids' and 'weights' have different lengths: 1 and 0 ...
    """

    takes = frozenset({"list"})
    keeps_values = True
    makes_nan = False

    def units(self, selection: Sequence[Entry]) -> list[Unit]:
        unit = tuple(name for one in super().units(selection) for name in one)
        return [unit] if unit else []

    def check(self, unit: Unit, schema: Schema) -> None:
        super().check(unit, schema)
        if len(unit) < 2:
            raise JobError(
                f"EqualLengths compares two columns or more, only {unit[0]!r} is selected",
                do="select all columns whose lists belong together",
            )

    def apply(self, columns: Columns, unit: Unit, fitted: object, context: Context) -> Columns:
        engine = context.engine
        xp = context.engine.xp
        lengths = {name: engine.list_lengths(columns[name])[0] for name in unit}
        first, *others = unit
        differing = {name: xp.flatnonzero(lengths[name] != lengths[first]) for name in others}
        places = {name: int(rows[0]) for name, rows in differing.items() if len(rows)}
        if places:
            name = min(places, key=places.__getitem__)
            place = places[name]
            raise DataError(
                f"the lists of {first!r} and {name!r} have different lengths: "
                f"{int(lengths[first][place]):,} and {int(lengths[name][place]):,}",
                why=f"{context.place(place)} holds them; a null list counts as an empty one",
                do="fix the data, or leave such rows out with a filter",
            )
        return {name: columns[name] for name in unit}


class ValueCount(Learned):
    """Learn the lengths of the shortest and the longest list, for the schema: `value_count`: {min, max}; the data stay.

    Notes
    -----
    Lengths are numbers of elements, null ones included. Null lists do not count, empty lists have the length 0. Lists
    of one length throughout have min = max. Before fitting, and for a column without a list, the schema has no lengths.
    The column gets the tag `list`. A refit leaves the lengths in the schema as they are, and warns where a fit of all
    rows would widen them.

    Examples
    --------
    >>> from rowmill import Workflow
    >>> import pyarrow as pa
    >>> workflow = Workflow(["seen"] >> ValueCount()).fit(pa.table({"seen": [[1, 2, 3], [4], None]}))
    >>> workflow.output_schema["seen"].properties["value_count"]
    {'min': 1, 'max': 3}
    >>> workflow = Workflow(["seen"] >> ValueCount()).fit(pa.table({"seen": [[], [None], None]}))
    >>> workflow.output_schema["seen"].properties["value_count"]
    {'min': 0, 'max': 1}
    """

    hands_on = True
    takes = frozenset({"list"})
    on_refit = "frozen"
    frozen_why = "the column's schema would change"
    moves_values: ClassVar[bool] = False
    adds_tags: ClassVar[frozenset[str]] = frozenset({Tags.LIST.value})

    def observe_unit(self, columns: Columns, unit: Unit, context: Context) -> Range:
        lengths, valid = context.engine.list_lengths(columns[unit[0]])
        lengths = lengths if valid is None else lengths[valid]
        return extremes(lengths) if len(lengths) else None

    def merge(self, a: Range, b: Range) -> Range:
        if a is None or b is None:
            return b if a is None else a
        return min(a[0], b[0]), max(a[1], b[1])

    def finalize(self, partial: Range) -> FittedValues:
        return dict(zip(("min", "max"), partial or (None, None), strict=True))

    def apply(self, columns: Columns, unit: Unit, fitted: object, context: Context) -> Columns:
        return {unit[0]: columns[unit[0]]}

    def outputs(self, unit: Unit, schema: Schema, fitted: FittedValues | None) -> list[Column]:
        column = schema[unit[0]].tagged(*self.adds_tags)
        if fitted is None or fitted["min"] is None:
            return [column]
        return [column.with_properties(value_count={"min": fitted["min"], "max": fitted["max"]})]

    def order_free(self, unit: Unit, schema: Schema) -> bool:
        return True

    def kept_partial(self, partial: Range, fitted: FittedValues) -> FittedValues:
        return save_range(partial, fitted)

    def restored(self, fitted: FittedValues, saved: FittedValues, unit: Unit) -> Range:
        return restore_range(fitted, saved)

    def would(self, old: FittedValues, new: FittedValues, unit: Unit) -> str | None:
        if (old["min"], old["max"]) == (new["min"], new["max"]):
            return None
        before = "without lengths" if old["min"] is None else f"{old['min']:,} to {old['max']:,}"
        return f"value_count would be {new['min']:,} to {new['max']:,}, not {before}"
