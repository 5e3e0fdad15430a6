"""What the statistics learned, as short text: vocabularies by their most frequent values, other values in a line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.strict_json import JsonObject
from tasks.engines.convert.python_values import rows_listed
from tasks.graph.binding import Bound, Step
from tasks.ops.base import Learned
from tasks.ops.fitted_values import FittedSteps, FittedValues

TABLE_ROWS = 20


def select_learned_steps(bound: Bound, values: FittedSteps) -> dict[str, Step]:
    """Select the steps that learned something, by key, in the order of the graph."""
    return {s.key: s for s in bound.steps.values() if isinstance(s.op, Learned) and s.key in values}


def collect_report_tables(steps: Iterable[Any], values: FittedSteps) -> dict[str, list[JsonObject]]:
    """Collect the tables with which learned steps report what they learned, by title: the first rows of each."""
    tables = {}
    for step in steps:
        rows = step.op.report(values[step.key])
        if rows:
            few = len(step.unit) <= 4
            columns = ", ".join(step.unit) if few else f"{step.unit[0]} .. {step.unit[-1]} ({len(step.unit):,} columns)"
            tables[f"{type(step.op).__name__} of {columns}"] = rows[:TABLE_ROWS]
    return tables


def is_vocabulary(fitted: FittedValues) -> bool:
    return "values" in fitted and "size" in fitted


def count_distinct_values(fitted: FittedValues) -> int:
    """Return the number of distinct values that were seen, including those that are not in the vocabulary."""
    return int(fitted["distinct"])


def most_frequent(table: pa.Table, most: int) -> pa.Table:
    """Select the rows of a vocabulary with the largest counts, equal counts in its order; its first rows without
    counts.

    Only after a fit is a vocabulary in the order of counts: a refit appends new values and leaves the old ones in
    place.
    """
    if table["count"].null_count:
        return table.slice(0, most)
    places = pa.table({"count": table["count"], "place": pa.array(np.arange(len(table)))})
    keys = [("count", "descending"), ("place", "ascending")]
    return table.take(pc.select_k_unstable(places, min(most, len(table)), keys))


def describe_frequent_values(fitted: FittedValues, most: int) -> str:
    """List the most frequent values of a vocabulary in a text, with counts if they are known.

    The report of a run has only the first ids of a large vocabulary that a refit has made larger; the text says so.

    >>> values = pa.table({"v0": ["Quinn", "Ray"], "count": [38710, 38764]})
    >>> describe_frequent_values({"values": values, "size": 2}, 1)
    'Ray (38,764), ..'
    """
    size = fitted["size"]
    table = fitted["values"].slice(0, fitted["size"])
    shown = []
    for row in rows_listed(most_frequent(table, most)):
        count = row.pop("count")
        value = " + ".join(str(v) for v in row.values())
        shown.append(value if count is None else f"{value} ({count:,})")
    of = f" (of the first {len(table):,} ids)" if len(table) < size and "dimension" in fitted else ""
    return ", ".join(shown) + (", .." if size > most else "") + of


def describe_fitted(fitted: FittedValues) -> str:
    """Learned values in a line; tables by their number of rows.

    >>> describe_fitted({"mean": 0.123456789, "edges": [1.0, 2.0]})
    'mean 0.123457, edges [1, 2]'
    """
    return ", ".join(
        f"{name}: {len(value):,} rows" if isinstance(value, pa.Table) else f"{name} {format_value(value)}"
        for name, value in fitted.items()
    )


def format_value(value: object) -> str:
    """Format a plain value: numbers to six digits, the first eight items of a list."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return "[" + ", ".join(format_value(v) for v in value[:8]) + (", .." if len(value) > 8 else "") + "]"
    return str(value)


def tabulate_growth(changes: Mapping[str, JsonObject]) -> list[JsonObject]:
    """Tabulate the learned steps of a refit: operator, columns, mode, what is different now, why."""
    return [
        {
            "operator": change.get("op", ""),
            "columns": ", ".join(change.get("columns", [])[:4]) + (" .." if len(change.get("columns", [])) > 4 else ""),
            "mode": change.get("mode", ""),
            "what": growth_text(change),
            "why": change.get("why", ""),
        }
        for change in changes.values()
    ]


def growth_text(change: JsonObject) -> str:
    """Describe what a refit changed in a step.

    >>> growth_text({"mode": "appended", "old_size": 1000, "new_size": 1012, "waiting": 3})
    '1,000 values are 1,012 now; 3 wait for room'
    >>> growth_text({"mode": "merged", "old": {"mean": 1.5}, "new": {"mean": 1.625}})
    'mean 1.5 -> 1.625'
    >>> growth_text({"mode": "merged", "groups": {"old": 5, "new": 7, "changed": 2}}), growth_text({"mode": "frozen"})
    ('5 groups are 7 now, 2 changed', '')
    """
    texts = []
    if "old_size" in change:
        texts.append(f"{change['old_size']:,} values are {change['new_size']:,} now")
        texts += [f"{change['waiting']:,} wait for room"] if change.get("waiting") else []
        texts += [f"{change['forgotten']:,} forgotten"] if change.get("forgotten") else []
    if isinstance(groups := change.get("groups"), Mapping):
        texts.append(f"{groups['old']:,} groups are {groups['new']:,} now, {groups.get('changed', 0):,} changed")
    old = change.get("old")
    new = change.get("new")
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        names = [name for name in new if not isinstance(new[name], (list, dict))][:4]
        texts += [f"{name} {format_value(old.get(name))} -> {format_value(new[name])}" for name in names]
        texts += ["more in changes.json"] if len(new) > len(names) else []
    if change.get("would"):
        texts.append(f"a fit would differ now: {change['would']}")
    return "; ".join(texts)
