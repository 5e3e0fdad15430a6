"""Casts of expressions that failed: from the rows of a partition to the words of a run."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

FailedCasts = dict[tuple[str, str], int]  # (entry, expression) -> rows that are null because a cast in it failed
Record = dict[str, Any]  # the same as plain values: entry, expression, rows

log = logging.getLogger("rowmill")


def list_records(failed: Mapping[tuple[str, str], int]) -> list[Record]:
    """Convert failed casts to plain values for notes and manifests, most rows first.

    >>> list_records({("Lambda of 'x'", "cast(_, 'int8')"): 2})
    [{'entry': "Lambda of 'x'", 'expression': "cast(_, 'int8')", 'rows': 2}]
    """
    ordered = sorted(failed.items(), key=lambda item: (-item[1], item[0]))
    return [{"entry": entry, "expression": text, "rows": rows} for (entry, text), rows in ordered]


def sum_records(several: Iterable[Sequence[Record]]) -> list[Record]:
    """Sum the records of parts of the rows to those of all rows."""
    total = Counter[tuple[str, str]]()
    for records_of_part in several:
        for record in records_of_part:
            total[record["entry"], record["expression"]] += record["rows"]
    return list_records(total)


def merge_largest(several: Iterable[Sequence[Record]]) -> list[Record]:
    """Merge the records of several passes over the same rows: for each cast, the largest count of a pass."""
    most: FailedCasts = {}
    for records_of_pass in several:
        for record in records_of_pass:
            key = record["entry"], record["expression"]
            most[key] = max(record["rows"], most.get(key, 0))
    return list_records(most)


def describe_record(record: Record) -> str:
    """Describe a record in words.

    >>> describe_record({"entry": "Lambda of 'x'", "expression": "cast(_, 'int8')", "rows": 1200})
    "1,200 row(s) are null in Lambda of 'x' because a cast failed: cast(_, 'int8')"
    """
    names = [what for call, what in (("cast(", "a cast"), ("parse_", "a parse")) if call in record["expression"]]
    what = " or ".join(names)
    return f"{record['rows']:,} row(s) are null in {record['entry']} because {what} failed: {record['expression']}"


def warn(failed: Iterable[Record]) -> None:
    """Log a warning for each record; for calls from Python, which have no run that shows them."""
    for record in failed:
        log.warning(describe_record(record))
