"""A schema as NVIDIA Merlin reads it: `schema.pbtxt`, a Schema of tensorflow-metadata as text protobuf."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from tasks.core.dtypes import is_list
from tasks.core.schema import Column, Schema

# Text protobuf writes the Any of `extra_metadata`, which holds a Struct, under this name.
STRUCT = "[type.googleapis.com/google.protobuf.Struct]"


def merlin_text(schema: Schema) -> str:
    """Write `schema.pbtxt`: name, type, range of ids, list lengths, tags and embedding sizes of each column.

    Integers are INT and floats FLOAT with `dtype_item_size` bits, texts BYTES. Merlin has no name for other types, so
    their columns have no `type`. A list whose lengths were not learned (`ValueCount`) has a value_count of 0 to 0, as
    Merlin writes it.

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
    return "".join(f"{line}\n" for column in schema.columns for line in _write_block("feature", _write_feature(column)))


def _write_feature(column: Column) -> Iterator[str]:
    """Yield the lines of a feature, the message of one column."""
    kind, bits = _name_type(column.leaf)
    yield f"name: {_quote_text(column.name)}"
    listed = is_list(column.dtype)
    lengths = column.properties.get("value_count", {"min": 0, "max": 0})
    if listed:
        yield from _write_block("value_count", (f"{end}: {lengths[end]}" for end in ("min", "max")))
    if kind:
        yield f"type: {kind}"
    domain = column.properties.get("domain")
    if domain and kind == "INT":
        categorical = str("categorical" in column.tags).lower()
        ends = [f"{end}: {domain[end]}" for end in ("min", "max")]
        lines = [f"name: {_quote_text(column.name)}", *ends, f"is_categorical: {categorical}"]
        yield from _write_block("int_domain", lines)
    has_one_length = 0 < lengths["min"] == lengths["max"]
    extra_metadata: dict[str, Any] = {"is_list": listed, "is_ragged": listed and not has_one_length}
    if bits:  # Merlin writes no size for BYTES
        extra_metadata["dtype_item_size"] = bits
    # The first cardinality is the number of rows of the embedding table, the second the number of ids.
    if size := column.properties.get("embedding"):
        extra_metadata["embedding_sizes"] = {"cardinality": size["rows"], "dimension": size["dimension"]}
    cardinality = column.properties.get("cardinality")
    if cardinality is not None:
        extra_metadata["cardinality"] = cardinality
    tags = [f"tag: {_quote_text(tag)}" for tag in sorted(column.tags)]
    struct = _write_block(STRUCT, _write_struct_fields(extra_metadata))
    yield from _write_block("annotation", [*tags, *_write_block("extra_metadata", struct)])


def _name_type(dtype: pa.DataType) -> tuple[str, int]:
    """Return Merlin's name of a type, and its bits; ("", 0) for a type without a name."""
    if pa.types.is_integer(dtype):
        return "INT", dtype.bit_width
    if pa.types.is_floating(dtype):
        return "FLOAT", dtype.bit_width
    return ("BYTES", 0) if pa.types.is_string(dtype) else ("", 0)


def _write_struct_fields(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the fields of a protobuf Struct."""
    for key, value in values.items():
        yield from _write_block("fields", [f"key: {_quote_text(key)}", *_write_block("value", _format_value(value))])


def _format_value(value: Mapping[str, Any] | float) -> Iterator[str]:
    if isinstance(value, bool):
        yield f"bool_value: {str(value).lower()}"
    elif isinstance(value, Mapping):
        yield from _write_block("struct_value", _write_struct_fields(value))
    else:
        yield f"number_value: {float(value)!r}"


def _write_block(name: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a message in braces, indented."""
    yield f"{name} {{"
    for line in lines:
        yield f"  {line}"
    yield "}"


def _quote_text(text: str) -> str:
    """Put a text in quotes; protobuf reads JSON's escapes of ASCII, and UTF-8 as it stands."""
    return json.dumps(text, ensure_ascii=False)
