"""Operators that change what is known of a column, not its values."""

from __future__ import annotations

from typing import Any

from pydantic import JsonValue, field_validator, model_validator

from tasks.ops.base import Columns, Context, Operator, Unit
from tasks.schema import Column, Schema
from tasks.strict_json import decoded


class AddTags(Operator):
    """Add tags, by which a graph or a model can select columns; the values stay.

    >>> import pyarrow as pa
    >>> from tasks.workflow import Workflow
    >>> workflow = Workflow(["price"] >> AddTags(["continuous"])).fit(pa.table({"price": [1.0]}))
    >>> sorted(workflow.output_schema["price"].tags)
    ['continuous']
    """

    tags: list[str]
    takes = frozenset({"number", "string", "bool", "time", "list", "other"})
    encoded = True
    keeps_values = True

    def outputs(self, unit: Unit, schema: Schema, fitted: Any) -> list[Column]:
        return [schema[name].tagged(*self.tags) for name in unit]

    def apply(self, columns: Columns, unit: Unit, fitted: Any, context: Context) -> Columns:
        return {name: columns[name] for name in unit}


class AddMetadata(Operator):
    """Add properties to the schema of the columns, as they then stand in the manifest; the values stay.

    >>> import pyarrow as pa
    >>> from tasks.workflow import Workflow
    >>> workflow = Workflow(["price"] >> AddMetadata({"unit": "EUR"})).fit(pa.table({"price": [1.0]}))
    >>> workflow.output_schema["price"].properties
    {'unit': 'EUR'}
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
        return {name: decoded(one) for name, one in value.items()}

    def outputs(self, unit: Unit, schema: Schema, fitted: Any) -> list[Column]:
        return [schema[name].with_properties(**self.metadata) for name in unit]

    def apply(self, columns: Columns, unit: Unit, fitted: Any, context: Context) -> Columns:
        return {name: columns[name] for name in unit}
