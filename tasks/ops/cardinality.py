"""Columns with too few values to learn from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from tasks.ops.base import Columns, Context, Learned, Unit
from tasks.schema import Column, Schema


class DropLowCardinality(Learned):
    """Drops columns with fewer than `min_cardinality` distinct values; nulls do not count, the elements of lists do.

    An infinity is a value like any other.

    Which columns stay is known when it is fitted: before, the schema shows all of them with the property `settles` =
    "presence". A dropped column is gone for everything below that selects it. Of ids made by Categorify the null's id
    counts as a value: drop before coding, or count it in.

    >>> from tasks.workflow import Workflow
    >>> table = pa.table({"shop": [1, 1, 2, 1], "user": [7, 8, 9, 7]})
    >>> Workflow(["shop", "user"] >> DropLowCardinality(3)).fit(table).transform(table).to_pydict()
    {'user': [7, 8, 9, 7]}
    """

    min_cardinality: int = Field(4, ge=1, le=1_000_000)
    takes = frozenset({"number", "string", "bool", "time"})
    leaves = True
    encoded = True
    settles_schema: ClassVar[bool] = True

    def outputs(self, unit: Unit, schema: Schema, fitted: Mapping[str, Any] | None) -> list[Column]:
        column = schema[unit[0]]
        if fitted is None:
            return [column.with_properties(settles="presence")]
        return [column] if fitted["kept"] else []

    def order_free(self, unit: Unit, schema: Schema) -> bool:
        return True

    def observe_unit(self, columns: Columns, unit: Unit, context: Context) -> pa.Array:
        """The smallest distinct values, as many as are needed to tell."""
        engine, column = context.engine, columns[unit[0]]
        values = engine.leaves(column) if engine.is_list(column) else column
        return self._first(engine.host_table(engine.count_values([values], ["v0"])).column("v0").combine_chunks())

    def _first(self, values: pa.Array) -> pa.Array:
        values = values.cast(pa.uint8()) if pa.types.is_boolean(values.type) else values
        values = values.drop_null().unique()
        return values.take(pc.sort_indices(values)[: self.min_cardinality])

    def merge(self, a: pa.Array, b: pa.Array) -> pa.Array:
        return self._first(pa.concat_arrays([a, b]))

    def finalize(self, partial: pa.Array) -> dict[str, Any]:
        return {"kept": len(partial) >= self.min_cardinality, "at_least": len(partial)}

    def kept_partial(self, partial: pa.Array, fitted: dict[str, Any]) -> dict[str, Any]:
        return {"values": pa.table({"v0": partial})}

    def apply(self, columns: Columns, unit: Unit, fitted: Any, context: Context) -> Columns:
        return {unit[0]: columns[unit[0]]} if fitted["kept"] else {}
