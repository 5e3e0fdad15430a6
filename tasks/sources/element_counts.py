"""Counts the elements of lists that become rows, so that blocks of these have row numbers and a bounded size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.core.dtypes import dtype_name, kind_of
from tasks.core.plan import EXPLODED, Limits, Piece, Plan, Unit, cut_blocks
from tasks.core.schema import Column
from tasks.engines.algorithms.exploded_lists import list_lengths
from tasks.sources.exploded import as_stored
from tasks.sources.formats import FORMATS
from tasks.sources.reader import read_pieces
from tasks.sources.uniting import APART, check_together

# How many times as large as the range that it is read from a block may be: numbers of few digits become as much larger
# when text is decoded.
MOST_GROWTH = 4
INDEX = 4  # bytes of a text in a table: it is an index into a dictionary


@dataclass(frozen=True)
class CountedUnit:
    """A unit as the units of elements that it is divided into, the number of its rows, and of those without any."""

    units: tuple[Unit, ...]
    rows: int
    empty: int


def with_element_rows(
    plan: Plan, name: str, units: Sequence[Unit], limits: Limits, parallel_map: Callable[..., Any]
) -> Plan:
    """The plan, whose schema has the type of the elements, with blocks of elements in place of those of rows.

    The column `name` is read once to count them; from units of bytes also other columns of lists, structs and bytes,
    whose size no type tells. A DataError for a column about which the files disagree.
    """
    check_together(plan, [name])
    facts = {"column": name, "dtype": dtype_name(plan.schema[name].dtype), "rows": 0, "empty": 0}
    stored = as_stored(replace(plan, options={**plan.options, EXPLODED: facts}))
    counted = list(parallel_map(partial(count_elements, stored, name, limits), units))
    facts |= {"rows": sum(one.rows for one in counted), "empty": sum(one.empty for one in counted)}
    blocks = cut_blocks(
        [unit for one in counted for unit in one.units], limits.join_below, 2**62, join_bytes=limits.range_bytes
    )
    return replace(plan, blocks=blocks, options={**plan.options, EXPLODED: facts})


def count_elements(stored: Plan, name: str, limits: Limits, unit: Unit) -> CountedUnit:
    """Count the elements in the lists of one unit, and divide it into units of a bounded number and size of them."""
    ranged = FORMATS[stored.format].ranged
    others = [column for column in stored.schema.columns if column.name not in (name, *stored.options.get(APART, ()))]
    varying = [column.name for column in others if _width(column) is None]
    measured = varying if ranged else []  # formats that store columns would decode these for their size alone
    lengths, of_lists, of_measured = _measure(stored, name, measured, limits, unit)
    rows = len(lengths)
    elements = int(lengths.sum())
    empty = int((lengths == 0).sum())
    if not elements:
        return CountedUnit((), rows, empty)
    width = sum(_width(column) or 0 for column in others)
    growth = elements / rows
    rest = max(0, unit.nbytes - of_lists - of_measured - width * rows)  # of texts, which are repeated as indices
    nbytes = int(of_lists + of_measured * growth + width * elements + rest * (growth if varying and not ranged else 1))
    most_bytes = MOST_GROWTH * max(limits.range_bytes, unit.nbytes if not ranged else 0)
    most = max(1, min(limits.cut_above, most_bytes * elements // max(nbytes, 1)))
    cut = _ranges_of_elements if ranged else _runs_of_rows
    pieces = cut(unit.piece, lengths, most)
    sized = [Unit(piece, piece.rows or 0, nbytes * (piece.rows or 0) // elements) for piece in pieces]
    return CountedUnit(tuple(sized), rows, empty)


def _measure(
    stored: Plan, name: str, measured: Sequence[str], limits: Limits, unit: Unit
) -> tuple[np.ndarray, int, int]:
    """The lengths of the lists of a unit, the decoded bytes of these lists, and those of other columns."""
    piece = unit.piece
    pieces = [unit.piece]
    if not FORMATS[stored.format].ranged:  # a row group may be large: its lists are read a part after the other
        rows = min(limits.cut_above, MOST_GROWTH * limits.range_bytes * unit.rows // max(unit.nbytes, 1))
        starts = range(piece.start, piece.stop, max(rows, 1))
        pieces = [replace(piece, start=start, stop=min(start + starts.step, piece.stop)) for start in starts]
    lengths = [np.zeros(0, dtype=np.int64)]
    of_lists = 0
    of_measured = 0
    for part in pieces:
        table = read_pieces(stored, [part], [name, *measured])
        lengths.append(list_lengths(table[name]))
        of_lists += table[name].nbytes
        of_measured += sum(table[column].nbytes for column in measured)
    return np.concatenate(lengths), of_lists, of_measured


def _width(column: Column) -> int | None:
    """Bytes of a value in a table; None where the values decide."""
    if kind_of(column.dtype) == "string":
        return INDEX
    if pa.types.is_null(column.dtype) or not (pa.types.is_primitive(column.dtype) or pa.types.is_decimal(column.dtype)):
        return None
    return max(1, column.dtype.bit_width // 8)


def _runs_of_rows(piece: Piece, lengths: np.ndarray, most: int) -> list[Piece]:
    """Runs of rows of a row group with at most so many elements, or of one row."""
    ends = np.cumsum(lengths)
    pieces = []
    start = 0
    before = 0
    while before < ends[-1]:
        stop = max(int(np.searchsorted(ends, before + most, side="right")), start + 1)
        if ends[stop - 1] == ends[-1]:
            stop = len(lengths)
        rows = int(ends[stop - 1]) - before
        if rows:
            pieces.append(replace(piece, start=piece.start + start, stop=piece.start + stop, rows=rows))
        start = stop
        before = before + rows
    return pieces


def _ranges_of_elements(piece: Piece, lengths: np.ndarray, most: int) -> list[Piece]:
    """Ranges of at most so many elements of a range of bytes, which is decoded whole."""
    total = int(lengths.sum())
    starts = range(0, total, most)
    rows = [min(most, total - start) for start in starts]
    return [
        replace(piece, skip=start, rows=count, left=total - start - count)
        for start, count in zip(starts, rows, strict=True)
    ]
