"""A schema as NVIDIA Merlin reads it: `schema.pbtxt`, a Schema of tensorflow-metadata as text protobuf."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from tasks.core.dtypes import is_list
from tasks.core.schema import Column, Schema

STRUCT = "[type.googleapis.com/google.protobuf.Struct]"


def merlin_text(schema: Schema) -> str:
    """The text of `schema.pbtxt`: name, type, range of ids, list lengths, tags and embedding sizes of each column.

    Integers are INT and floats FLOAT with `dtype_item_size` bits, texts BYTES; other types have no name in Merlin, so
    their columns have none. A list whose lengths were not learned (`ValueCount`) has a value_count of 0 to 0, as Merlin
    writes it.

    >>> print(merlin_text(Schema([Column("x", pa.float32(), frozenset(["continuous"]))])))
    feature {
      name: "x"
      type: FLOAT
      annotation {
        tag: "continuous"
        extra_metadata {
          [type.googleapis.com/google.protobuf.Struct] {
            fields {
              key: "is_list"
              value {
                bool_value: false
              }
            }
            fields {
              key: "is_ragged"
              value {
                bool_value: false
              }
            }
            fields {
              key: "dtype_item_size"
              value {
                number_value: 32.0
              }
            }
          }
        }
      }
    }
    <BLANKLINE>
    """
    return "".join(f"{line}\n" for column in schema.columns for line in _block("feature", _feature(column)))


def _feature(column: Column) -> Iterator[str]:
    kind, bits = _type(column.leaf)
    yield f"name: {_quote_text(column.name)}"
    listed = is_list(column.dtype)
    count = column.properties.get("value_count", {"min": 0, "max": 0})
    if listed:
        yield from _block("value_count", (f"{end}: {count[end]}" for end in ("min", "max")))
    if kind:
        yield f"type: {kind}"
    domain = column.properties.get("domain")
    if domain and kind == "INT":
        categorical = str("categorical" in column.tags).lower()
        ends = [f"{end}: {domain[end]}" for end in ("min", "max")]
        yield from _block("int_domain", [f"name: {_quote_text(column.name)}", *ends, f"is_categorical: {categorical}"])
    facts: dict[str, Any] = {
        "is_list": listed,
        "is_ragged": listed and not 0 < count["min"] == count["max"],
    }
    if bits:
        facts["dtype_item_size"] = bits
    if size := column.properties.get("embedding"):
        facts["embedding_sizes"] = {"cardinality": size["rows"], "dimension": size["dimension"]}
    if (ids := column.properties.get("cardinality")) is not None:
        facts["cardinality"] = ids
    tags = [f"tag: {_quote_text(tag)}" for tag in sorted(column.tags)]
    yield from _block("annotation", [*tags, *_block("extra_metadata", _block(STRUCT, _fields(facts)))])


def _type(dtype: pa.DataType) -> tuple[str, int]:
    """Merlin's name of a type and its bits; ("", 0) for a type that it has no name for."""
    if pa.types.is_integer(dtype):
        return "INT", dtype.bit_width
    if pa.types.is_floating(dtype):
        return "FLOAT", dtype.bit_width
    return ("BYTES", 0) if pa.types.is_string(dtype) else ("", 0)


def _fields(values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        yield from _block("fields", [f"key: {_quote_text(key)}", *_block("value", _format_value(value))])


def _format_value(value: Mapping[str, Any] | float) -> Iterator[str]:
    if isinstance(value, bool):
        yield f"bool_value: {str(value).lower()}"
    elif isinstance(value, Mapping):
        yield from _block("struct_value", _fields(value))
    else:
        yield f"number_value: {float(value)!r}"


def _block(name: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"{name} {{"
    for line in lines:
        yield f"  {line}"
    yield "}"


def _quote_text(text: str) -> str:
    """A text in quotes; protobuf reads JSON's escapes of ASCII, and UTF-8 as it stands."""
    return json.dumps(text, ensure_ascii=False)
