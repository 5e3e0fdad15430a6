"""Values in strict JSON, which has no infinities: these are written as {"float": "inf"}, and read as numbers again.

Parameters of operators (in jobs, too), learned values and properties of columns are written in this form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]  # an object of a JSON document: a note, a section of a job, an entry of a list

NUMBERS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def encode_floats(value: object) -> Any:
    """The value with {"float": "inf"}, "-inf" or "nan" in place of every float that is not finite.

    >>> encode_floats({"edges": [float("-inf"), 0.5], "values": (1, False)})
    {'edges': [{'float': '-inf'}, 0.5], 'values': [1, False]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": "nan" if math.isnan(value) else f"{value:g}"}
    if isinstance(value, Mapping):
        return {name: encode_floats(one) for name, one in value.items()}
    return [encode_floats(one) for one in value] if isinstance(value, (list, tuple)) else value


def decode_floats(value: object) -> Any:
    """The value that `encode_floats` wrote.

    >>> decode_floats({"edges": [{"float": "-inf"}, 0.5]})
    {'edges': [-inf, 0.5]}
    """
    if isinstance(value, Mapping):
        if len(value) == 1 and isinstance(name := value.get("float"), str) and name in NUMBERS:
            return NUMBERS[name]
        return {name: decode_floats(one) for name, one in value.items()}
    return [decode_floats(one) for one in value] if isinstance(value, list) else value


def to_marked_json(value: object) -> object:
    """The value with a mark in place of what JSON would turn into something else: tuples, and keys that are not texts.

    A named tuple keeps its name, so that `from_marked_json` can refuse it.

    >>> to_marked_json((1, {2: "b"}))
    {'tuple': [1, {'items': [[2, 'b']]}]}
    """
    if isinstance(value, tuple):
        name = {} if type(value) is tuple else {"of": type(value).__name__}
        return {"tuple": [to_marked_json(one) for one in value], **name}
    if isinstance(value, dict):
        if all(isinstance(name, str) for name in value) and not _is_mark(value):
            return {name: to_marked_json(one) for name, one in value.items()}
        return {"items": [[to_marked_json(name), to_marked_json(one)] for name, one in value.items()]}
    return [to_marked_json(one) for one in value] if isinstance(value, list) else value


def from_marked_json(value: object) -> object:
    """The value that `to_marked_json` wrote; a TypeError for a tuple of a class of its own.

    >>> from_marked_json({"tuple": [1, {"items": [[2, "b"]]}]})
    (1, {2: 'b'})
    """
    if isinstance(value, dict) and _is_mark(value):
        if "items" in value:
            return {from_marked_json(name): from_marked_json(one) for name, one in value["items"]}
        if "of" in value:
            raise TypeError(f"it holds a {value['of']}, of which a plain tuple was saved")
        return tuple(from_marked_json(one) for one in value["tuple"])
    if isinstance(value, dict):
        return {name: from_marked_json(one) for name, one in value.items()}
    return [from_marked_json(one) for one in value] if isinstance(value, list) else value


def _is_mark(value: dict[Any, Any]) -> bool:
    return set(value) in ({"tuple"}, {"tuple", "of"}, {"items"})
