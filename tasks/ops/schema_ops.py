"""Operators that change the schema of a column, not its values."""

from __future__ import annotations

from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, JsonValue, field_validator, model_validator

from tasks.core.schema import Column, Schema
from tasks.core.strict_json import decode_floats
from tasks.ops.base import Columns, Context, Learned, Operator, Unit
from tasks.ops.fitted_values import FittedValues


class AddTags(Operator):
    """Add tags to the selected columns; values, nulls and types stay.

    Parameters
    ----------
    tags : list of str
        Texts or members of `Tags`, by which graphs and models select columns (`Tags.CONTINUOUS`).

    Notes
    -----
    Tags that a column has already stay.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from rowmill import Workflow
    >>> workflow = Workflow(["price"] >> AddTags(["continuous"])).fit(pa.table({"price": [1.0]}))
    >>> sorted(workflow.output_schema["price"].tags)
    ['continuous']
    >>> workflow = Workflow(["price"] >> AddTags(["own"]) >> AddTags(["target"])).fit(pa.table({"price": [1.0]}))
    >>> sorted(workflow.output_schema["price"].tags)
    ['own', 'target']
    """

    tags: list[str]
    takes = frozenset({"number", "string", "bool", "time", "list", "other"})
    encoded = True
    keeps_values = True

    def outputs(self, unit: Unit, schema: Schema, fitted: object) -> list[Column]:
        return [schema[name].tagged(*self.tags) for name in unit]

    def apply(self, columns: Columns, unit: Unit, fitted: FittedValues, context: Context) -> Columns:
        return {name: columns[name] for name in unit}


class AddMetadata(Operator):
    """Add properties to the schema of the selected columns; values, nulls and types stay.

    Parameters
    ----------
    metadata : dict of str to JSON value
        Properties by name. One replaces an older one of the same name; {"float": "inf"} stands for an infinity, which
        JSON lacks.

    Notes
    -----
    The properties stand in `Workflow.output_schema`, in the manifest and in the files' own metadata.

    Errors: a JobError for the names `name`, `dtype` and `tags`, which belong to the column itself.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from rowmill import Workflow
    >>> workflow = Workflow(["price"] >> AddMetadata({"unit": "EUR"})).fit(pa.table({"price": [1.0]}))
    >>> workflow.output_schema["price"].properties
    {'unit': 'EUR'}
    >>> AddMetadata({"dtype": "int64"})
    Traceback (most recent call last):
    ...
    tasks.errors.JobError: AddMetadata: 'dtype' belongs to the column itself: use another key
    """

    metadata: dict[str, JsonValue]
    takes = frozenset({"number", "string", "bool", "time", "list", "other"})
    encoded = True
    keeps_values = True

    @model_validator(mode="after")
    def _own_keys(self) -> AddMetadata:
        for key in ("name", "dtype", "tags"):
            if key in self.metadata:
                raise ValueError(f"{key!r} belongs to the column itself: use another key")
        return self

    @field_validator("metadata")
    @classmethod
    def _with_infinities(cls, value: dict[str, Any]) -> dict[str, Any]:
        """{"float": "inf"} means the number wherever properties are read, so also here."""
        return {name: decode_floats(one) for name, one in value.items()}

    def outputs(self, unit: Unit, schema: Schema, fitted: object) -> list[Column]:
        return [schema[name].with_properties(**self.metadata) for name in unit]

    def apply(self, columns: Columns, unit: Unit, fitted: FittedValues, context: Context) -> Columns:
        return {name: columns[name] for name in unit}


class DropLowCardinality(Learned):
    """Drop columns with fewer than `min_cardinality` distinct values; nulls do not count, the elements of lists do.

    Parameters
    ----------
    min_cardinality : int, default 4
        Lowest number of distinct values of a column that stays, 1 to 1,000,000.

    Notes
    -----
    An all-null column has no value and is dropped. An infinity is a value like any other. A column that
    stays keeps its values, nulls and type.

    The fit decides which columns stay: before it, the schema shows all of them with the property `settles` =
    "presence". An operator that selects a dropped column works without it. Among ids of Categorify the id of null
    counts as a value: drop columns before coding them, or raise `min_cardinality` by one. A refit leaves the columns as
    they are, and warns where a fit of all rows would keep one that was dropped.

    Examples
    --------
    >>> from rowmill import Workflow
    >>> table = pa.table({"shop": [1, 1, 2, 1], "user": [7, 8, 9, 7]})
    >>> Workflow(["shop", "user"] >> DropLowCardinality(3)).fit(table).transform(table).to_pydict()
    {'user': [7, 8, 9, 7]}
    >>> Workflow(["shop"] >> DropLowCardinality(2)).fit(table).transform(table).to_pydict()
    {'shop': [1, 1, 2, 1]}
    """

    min_cardinality: int = Field(4, ge=1, le=1_000_000)
    takes = frozenset({"number", "string", "bool", "time"})
    leaves = True
    encoded = True
    settles_schema: ClassVar[bool] = True
    on_refit = "frozen"
    frozen_why = "columns would come or go"

    def observe_unit(self, columns: Columns, unit: Unit, context: Context) -> pa.Array:
        """The smallest distinct values, as many as are needed to tell."""
        engine = context.engine
        column = columns[unit[0]]
        values = engine.leaves(column) if engine.is_list(column) else column
        return self._first(engine.host_table(engine.count_values([values], ["v0"])).column("v0").combine_chunks())

    def merge(self, a: pa.Array, b: pa.Array) -> pa.Array:
        return self._first(pa.concat_arrays([a, b]))

    def finalize(self, partial: pa.Array) -> FittedValues:
        return {"kept": len(partial) >= self.min_cardinality, "at_least": len(partial)}

    def apply(self, columns: Columns, unit: Unit, fitted: FittedValues, context: Context) -> Columns:
        return {unit[0]: columns[unit[0]]} if fitted["kept"] else {}

    def outputs(self, unit: Unit, schema: Schema, fitted: FittedValues | None) -> list[Column]:
        column = schema[unit[0]]
        if fitted is None:
            return [column.with_properties(settles="presence")]
        return [column] if fitted["kept"] else []

    def order_free(self, unit: Unit, schema: Schema) -> bool:
        return True

    def _first(self, values: pa.Array) -> pa.Array:
        values = values.cast(pa.uint8()) if pa.types.is_boolean(values.type) else values
        values = values.drop_null().unique()
        return values.take(pc.sort_indices(values)[: self.min_cardinality])

    def kept_partial(self, partial: pa.Array, fitted: FittedValues) -> FittedValues:
        return {"values": pa.table({"v0": partial})}

    def restored(self, fitted: FittedValues, saved: FittedValues, unit: Unit) -> pa.Array:
        values = saved["values"]["v0"]
        return pa.concat_arrays([pa.array([], values.type), *values.chunks])

    def would(self, old: FittedValues, new: FittedValues, unit: Unit) -> str | None:
        if old["kept"] == new["kept"]:
            return None
        return f"{unit[0]} would be kept: it has {new['at_least']:,} distinct values or more"
