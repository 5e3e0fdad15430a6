"""What the statistics learned, as short text: vocabularies by their most frequent values, other values in a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tasks.engines.convert.python_values import rows_listed
from tasks.graph.binding import Bound, Step
from tasks.ops.base import Learned


def learned_steps(bound: Bound, values: Mapping[str, Any]) -> dict[str, Step]:
    """The steps that learned something, by key, in the order of the graph."""
    return {s.key: s for s in bound.steps.values() if isinstance(s.op, Learned) and s.key in values}


def is_vocabulary(fitted: Mapping[str, Any]) -> bool:
    return "values" in fitted and "size" in fitted


def distinct_values(fitted: Mapping[str, Any]) -> int:
    """The number of distinct values that were seen, including those that are not in the vocabulary."""
    return fitted.get("distinct", len(fitted["values"]))  # an earlier millrace kept all in one table


def frequent_text(table: pa.Table, size: int, most: int) -> str:
    """The head of a vocabulary, with counts where they are known.

    >>> frequent_text(pa.table({"v0": ["Quinn", "Ray"], "count": [38764, 38710]}), 2, 1)
    'Quinn (38,764), ..'
    """
    shown = []
    for row in rows_listed(table.slice(0, min(size, most))):
        count = row.pop("count")
        value = " + ".join(str(v) for v in row.values())
        shown.append(value if count is None else f"{value} ({count:,})")
    return ", ".join(shown) + (", .." if size > most else "")


def fitted_text(fitted: Mapping[str, Any]) -> str:
    """Learned values in a line; tables by their number of rows.

    >>> fitted_text({"mean": 0.123456789, "edges": [1.0, 2.0]})
    'mean 0.123457, edges [1, 2]'
    """
    return ", ".join(
        f"{name}: {len(value):,} rows" if isinstance(value, pa.Table) else f"{name} {value_text(value)}"
        for name, value in fitted.items()
    )


def value_text(value: Any) -> str:
    """A plain value, numbers to six digits, of a list the first eight."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return "[" + ", ".join(value_text(v) for v in value[:8]) + (", .." if len(value) > 8 else "") + "]"
    return str(value)
