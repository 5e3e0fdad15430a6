"""Notes: plain values by name, as manifests and other documents have them."""

from __future__ import annotations

from collections.abc import Sized

from tasks.core.strict_json import JsonObject


def leave_out_empty(values: JsonObject) -> JsonObject:
    """The values without None and without empty texts, lists and maps: a document says nothing of what is not there.

    >>> leave_out_empty({"rows": 0, "dated": {}, "base": None, "left_out": ["y"]})
    {'rows': 0, 'left_out': ['y']}
    """
    return {name: value for name, value in values.items() if not _is_empty(value)}


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, Sized) and not len(value))
