"""Sets of rows that depend on all rows: rows that repeat a key, the last rows of each key, shares of the rows by time.

Rows are not moved: a set is a file with a bit for each row number. For shares without keys, only the times at which
valid and test begin are searched for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tasks import engines
from tasks.cluster.out_of_memory import compute_in_halves
from tasks.cluster.transfer import gpu_setup
from tasks.core.dtypes import dtype_name, schema_advice
from tasks.core.plan import Partition
from tasks.core.schema import Schema, check_ordered
from tasks.core.settings import SplitRule, Unique
from tasks.core.units import PER_SECOND, unit_of_times
from tasks.engines.algorithms import radix_selection
from tasks.engines.algorithms.radix_selection import Counted, to_sort_keys
from tasks.engines.algorithms.text_times import is_written
from tasks.engines.expression.interpreter import true_mask
from tasks.engines.expression.syntax import parse
from tasks.errors import DataError, JobError
from tasks.graph.partition_work import Work
from tasks.graph.row_rules import LATER_FIRST, Division, RowSet, moment, moment_conditions, needs_unit, with_unit
from tasks.shuffle.key_ranges import Arrays, KeyReduction, KeyRows, SourceRows, array_of, reduce_by_key, row_set
from tasks.storage.atomic import no_space


def check_unique(schema: Schema, unique: Unique) -> None:
    """Raise a JobError for a column that does not exist, or that has no order."""
    check_ordered(schema, _reduction(unique).columns, "source.unique")


def _reduction(unique: Unique) -> KeyReduction:
    return KeyReduction(_select_repeats, unique, tuple(unique.keys), unique.by)


def find_repeated_rows(rows: SourceRows, unique: Unique, path: Path) -> tuple[RowSet, int]:
    """Find the rows that repeat a key: all but one of the rows with equal keys that the filter keeps.

    Returns them as bits in the file `path`, and their number.

    Nulls are equal to each other. With `by` the row with the least (first) or greatest (last) value stays, and a null
    loses to any value; among equals the row with the least or greatest number. The result depends on the rows alone.
    """
    check_unique(rows.plan.schema, unique)
    with reduce_by_key(rows, _reduction(unique), path.with_suffix(".scratch")) as files:
        return row_set(files, "rows", rows.plan.rows, path)


def _select_repeats(unique: Unique, rows: KeyRows) -> Arrays:
    """Select the numbers of the rows that are left out."""
    gone = np.ones(len(rows.rows), dtype=bool)
    if len(gone):
        gone[_find_staying_rows(rows, unique)] = False
    return {"rows": rows.rows[gone]}


def _find_staying_rows(rows: KeyRows, unique: Unique) -> np.ndarray:
    """Find the place of the row that stays of each run; the rows of a run are sorted by `by` and row number."""
    starts = rows.runs.starts[:-1]
    last = rows.runs.starts[1:] - 1
    null = rows.nulls(unique.by) if unique.by else None
    if null is None or not null.any():
        return np.asarray(starts if unique.keep == "first" else last)
    places = np.arange(rows.runs.rows)
    if unique.keep == "first":
        first = np.minimum.reduceat(np.where(null, rows.runs.rows, places), starts)
        return np.where(first == rows.runs.rows, starts, first)
    latest = np.maximum.reduceat(np.where(null, -1, places), starts)
    return np.where(latest < 0, last, latest)


def split_division(rows: SourceRows, rule: SplitRule, folder: Path) -> Division | None:
    """Find what only all rows can tell of the splits; None if nothing is asked for.

    That is the unit of numbers that are times, and the result of `divide_rows`.
    """
    unit = None
    division = None
    if needs_unit(rows.plan.schema, rule):
        unit = find_unit_of_numbers(rows, rule)
    if rule.looks_at_all_rows:
        division = divide_rows(rows, with_unit(rule, unit), folder)
    if unit:
        division = division or Division()
        division = replace(division, figures={"unit": unit, **division.figures})
    return division


def divide_rows(rows: SourceRows, rule: SplitRule, folder: Path) -> Division:
    """Divide the rows that filter and unique keep into splits. The result depends only on the rows and their numbers.

    by: last. Of each key, the last `test` rows by time are test, the `valid` rows before them valid; of equal times the
    row with the greater number is later. Rows without a time come before all others and count for nothing. A key that
    would have no row left for train stays in train as a whole, and so do rows whose key has a null.

    by: time with `together`. All rows of a key are in the split of its last one, so that train has no row as late as
    the beginning of valid; a row whose key has a null goes by its own time, a key without any time is in train.

    Shares. Of N rows with a time (of the last row of their key, with `together`) test begins at the time of the row
    with the number N - round(test N), in the order of time; rows of that time are test. So is valid's beginning.
    """
    if not rule.together:
        return _cut_rows_by_shares(rows, rule)
    reduce = _find_last_rows if rule.by == "last" else _find_last_times if rule.by_shares else _find_sides
    reduction = KeyReduction(reduce, rule, tuple(rule.together), rule.column)
    with reduce_by_key(rows, reduction, folder / "split.scratch") as files:
        sides, more = _cut_keys_by_shares(rule, rows, files) if rule.by_shares else (files, {})
        sets = []
        counts = dict[str, int]()
        for name in LATER_FIRST:
            if name in rule.splits:
                of_split, counts[name] = row_set(sides, name, rows.plan.rows, folder / f"split-{name}.bits")
                sets.append((name, of_split))
        figures = {name: int(sum(array_of(file, name) for file in files)) for name in FIGURES}
    total = figures.pop("rows")
    counts["train"] = total - sum(counts.values())
    of_splits = {name: counts[name] for name in rule.splits}
    _refuse_empty(rule, of_splits)
    are = "are in train" if rule.by == "last" else "go by their own times"
    named: dict[str, Any] = {name: count for name, count in figures.items() if count}
    named |= {"without_key_are": are} if figures["without_key"] else {}
    return Division(tuple(sets), figures={**more, "rows": of_splits, **named})


def find_unit_of_numbers(rows: SourceRows, rule: SplitRule) -> str:
    """Find the unit in which all numbers of the rule's column count time since 1970; a JobError if they do not tell.

    Zero is 1970 in every unit. Numbers that write a time in their digits (20240131) count nothing.
    """
    column = rule.column or ""
    ends = rows.pool.map(_find_extremes, rows.pick_columns([column]), rows.plan.partitions)
    least = min(low for low, _ in ends)
    most = max(high for _, high in ends)
    units = unit_of_times(least), unit_of_times(most)
    written = [f"{least:.0f}", f"{most:.0f}"]
    digits = DIGITS.get(len(written[0])) if "1900" <= written[0][:4] <= written[1][:4] <= "2100" else None
    digits = digits if digits and is_written(pa.array(written), digits) else None
    if units[0] and units[0] == units[1] and not digits:
        return units[0]
    number = "cast(_, 'int64')" if pa.types.is_floating(rows.plan.schema[column].dtype) else "_"
    raise _make_unit_error(column, number, written if most else [], units, digits)


def _make_unit_error(
    column: str, number: str, written: Sequence[str], units: tuple[str | None, str | None], digits: str | None
) -> JobError:
    """Make the error for numbers that do not tell their unit; `number` is an expression for one as an integer.

    `written` are the least and the largest, none where all are 0 or null; `units` are theirs, None where there is none.
    """
    expression = ""
    why = "all of them are null or 0"
    if digits:
        why = f"{written[0]} may be a time as {digits} writes it"
        expression = f"parse_time(cast({number}, 'string'), '{digits}')"
    elif written:
        counts = [
            f"{n} {f'counts {u} since 1970' if u else 'is not a time from 1973 to 2286 in any unit'}"
            for n, u in zip(written, units, strict=True)
        ]
        why = " and ".join(dict.fromkeys(counts))
        if units[0] and units[1]:
            border = 10**10 * PER_SECOND[units[0]]
            times = PER_SECOND[units[1]] // PER_SECOND[units[0]]
            expression = f"cast(where(_ < {border}, {number} * {times}, {number}), 'timestamp[{units[1]}]')"
    read = f"; or read them as times, {schema_advice(column, expression)}" if expression else ""
    return JobError(
        f"the numbers of column {column!r} do not tell what they count",
        where=f"source.split, column {column}",
        why=why,
        do=f"set source.split.unit: s, ms, us or ns{read}",
    )


DIGITS = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}


def _find_extremes(work: Work, partition: Partition) -> tuple[float, float]:
    """Find the least and the largest absolute value of the numbers other than 0."""
    ((place, name),) = work.bound.targets
    values, valid = work.kernels.numbers(work.open_partition(partition, [(place, name)]).column(place, name))
    sizes = abs((values if valid is None else values[valid]).astype("float64"))
    sizes = sizes[sizes > 0]
    return (float(sizes.min()), float(sizes.max())) if len(sizes) else (float("inf"), 0.0)


FIGURES = ("rows", "keys_in_train", "rows_of_keys_in_train", "without_key", "null_in_train")


def _refuse_empty(rule: SplitRule, counts: dict[str, int]) -> None:
    """Raise a DataError for a split without a row."""
    empty = [name for name, count in counts.items() if not count]
    if not empty:
        return
    rows = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    if rule.by == "last":
        why = f"no key of {', '.join(rule.together)} has more rows with a time than valid and test take"
    else:
        why = f"too few rows differ in {rule.column}: all rows of one moment are in one split"
    raise DataError(
        f"source.split gives {' and '.join(empty)} no row",
        where="source.split",
        why=f"{why} (rows: {rows})",
        do="change valid and test, or leave out the split",
    )


def _find_keyless_rows(rows: KeyRows) -> np.ndarray:
    """Return which rows have a null in their key."""
    nulls = [rows.nulls(name) for name in rows.keys]
    return np.asarray(np.logical_or.reduce(nulls))


def _make_figures(rows: KeyRows, **figures: int) -> Arrays:
    known = {"rows": len(rows.rows), **figures}
    return {name: np.array(known.get(name, 0)) for name in FIGURES}


def _by_name(rows: KeyRows, places: dict[str, np.ndarray]) -> Arrays:
    return {name: rows.rows[of] for name, of in places.items()}


def _find_last_rows(rule: SplitRule, rows: KeyRows) -> Arrays:
    """Find the rows of valid and test: the last rows of each key; rows of a run are sorted by time and number."""
    valid, test = (int(value or 0) for value in (rule.valid, rule.test))  # type: ignore[arg-type]
    nothing = np.zeros(0, dtype=np.int64)
    if not len(rows.rows):
        return {"valid": nothing, "test": nothing, **_make_figures(rows)}
    assert rule.column is not None
    runs = rows.runs
    null = rows.nulls(rule.column)
    without = _find_keyless_rows(rows)
    starts = runs.starts[:-1]
    lengths = runs.lengths
    codes = runs.codes
    timed = np.add.reduceat((~null).astype(np.int64), starts)
    divides = (timed > valid + test) & ~without[starts]  # keys with too few rows stay in train
    following = lengths[codes] - 1 - runs.inside  # rows of the key after this one
    in_test = divides[codes] & (following < test)
    in_valid = divides[codes] & ~in_test & (following < valid + test)
    short = ~divides & ~without[starts]
    figures = _make_figures(
        rows,
        keys_in_train=int(short.sum()),
        rows_of_keys_in_train=int(lengths[short].sum()),
        without_key=int(without.sum()),
        null_in_train=int((null & ~without & divides[codes]).sum()),
    )
    return _by_name(rows, {"valid": in_valid, "test": in_test}) | figures


def _spread_over_key(flags: np.ndarray, rows: KeyRows, without: np.ndarray) -> np.ndarray:
    """Return for each row whether a row of its key has the flag; a row without a key stands for itself."""
    of_key = np.logical_or.reduceat(flags, rows.runs.starts[:-1])[rows.runs.codes]
    return np.where(without, flags, of_key)


def _find_sides(rule: SplitRule, rows: KeyRows) -> Arrays:
    """Find the rows of valid and test: a key belongs to the split of the last moment of its rows."""
    nothing = np.zeros(0, dtype=np.int64)
    if not len(rows.rows):
        return {"valid": nothing, "test": nothing, **_make_figures(rows)}
    assert rule.column is not None
    without = _find_keyless_rows(rows)
    null = rows.nulls(rule.column)
    source = {rule.column: rows.take_column(rule.column)}
    left = np.ones(len(rows.rows), dtype=bool)
    places = {name: np.zeros(len(rows.rows), bool) for name in LATER_FIRST}
    for name, condition in moment_conditions(rule):
        later = _spread_over_key(np.asarray(true_mask(parse(condition), source)), rows, without)
        places[name], left = later & left, left & ~later
    timeless = ~_spread_over_key(~null, rows, without)
    return _by_name(rows, places) | _make_figures(
        rows, without_key=int(without.sum()), null_in_train=int((timeless & left).sum())
    )


def _find_last_times(rule: SplitRule, rows: KeyRows) -> Arrays:
    """Find the rows with a time, in themselves or in their key, and the key of the last time (`to_sort_keys`)."""
    if not len(rows.rows):
        nothing = {"numbers": np.zeros(0, dtype=np.int64), "times": np.zeros(0, dtype=np.uint64)}
        return nothing | _make_figures(rows) | {"kind": np.array("")}
    assert rule.column is not None
    without = _find_keyless_rows(rows)
    null = rows.nulls(rule.column)
    values, _ = rows.host.numbers(rows.take_column(rule.column))
    times = np.where(null, np.uint64(0), to_sort_keys(values, np))
    last = np.maximum.reduceat(times, rows.runs.starts[:-1])[rows.runs.codes]
    timed = _spread_over_key(~null, rows, without)
    figures = _make_figures(rows, without_key=int(without.sum()), null_in_train=int((~timed).sum()))
    numbers = {"numbers": rows.rows[timed], "times": np.where(without, times, last)[timed]}
    return numbers | figures | {"kind": np.array(values.dtype.kind)}


def _cut_keys_by_shares(rule: SplitRule, rows: SourceRows, files: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Divide keys by shares: (the files with the rows of valid and test, figures of where these begin)."""
    assert rule.column is not None
    kind = next((kind for file in files if (kind := str(array_of(file, "kind")))), "i")
    counted = None
    question = None
    while counted is None or question is not None:
        counted = radix_selection.merge(rows.pool.map(_count_times, question, files))
        question = radix_selection.next_question(counted, _compute_ranks(rule, counted.total))
    nulls = sum(int(array_of(file, "null_in_train")) for file in files)
    cuts, _ = _compute_cuts(rule, counted, "u", nulls)
    sides = rows.pool.map(_write_sides, cuts, files)
    dtype = rows.plan.schema[rule.column].dtype
    texts = {name: _format_number(radix_selection.value_of(int(cut), kind), dtype) for name, cut in cuts}
    return sides, {"cuts": texts}


def _count_times(question: radix_selection.SelectionQuestion | None, file: str) -> Counted:
    return radix_selection.count(array_of(file, "times"), question, np)


def _write_sides(cuts: Sequence[tuple[str, int]], file: str) -> str:
    """Write the file with the rows of valid and test of one range of key hashes."""
    numbers = array_of(file, "numbers")
    times = array_of(file, "times")
    left = np.ones(len(times), dtype=bool)
    sides = {}
    for name, cut in cuts:
        later = times >= np.uint64(cut)
        sides[name], left = numbers[later & left], left & ~later
    path = Path(file).with_suffix(".sides.npz")
    with no_space(path):
        np.savez(path, **sides)  # type: ignore[arg-type]
    return str(path)


def _cut_rows_by_shares(rows: SourceRows, rule: SplitRule) -> Division:
    """Find the moments at which the last shares of all rows begin."""
    assert rule.column is not None
    work = rows.pick_columns([rule.column])
    pool = rows.pool
    counted: Counted | None = None
    question: radix_selection.SelectionQuestion | None = None
    kind = "i"
    nulls = 0
    while counted is None or question is not None:
        task = (work, rule.column, question, rows.floor)
        parts = pool.values(pool.gather(_count_partition, _together, task, rows.plan.partitions))
        whole = _together(parts)
        counted, kind, nulls = whole
        question = radix_selection.next_question(counted, _compute_ranks(rule, counted.total))
    cuts, counts = _compute_cuts(rule, counted, kind, nulls)
    dtype = rows.plan.schema[rule.column].dtype
    figures: dict[str, Any] = {"cuts": {name: _format_number(cut, dtype) for name, cut in cuts}, "rows": counts}
    return Division(cuts=tuple(cuts), figures=figures, cut_type=dtype_name(dtype))


def _format_number(number: int | float, dtype: pa.DataType) -> str:
    """Format a stored number for people."""
    return str(moment(number, dtype).cast(pa.string())) if pa.types.is_temporal(dtype) else str(number)


class _Times(NamedTuple):
    """Times of some rows, counted, the kind of their numbers, and how many rows have none."""

    counted: Counted
    kind: str
    nulls: int


def _together(parts: Sequence[_Times]) -> _Times:
    return _Times(radix_selection.merge([part.counted for part in parts]), parts[0].kind, sum(p.nulls for p in parts))


def _count_partition(
    task: tuple[Work, str, radix_selection.SelectionQuestion | None, int], partition: Partition
) -> _Times:
    """Count the times of one partition (of its halves, if memory is short)."""
    work, _, _, floor = task
    gpu_setup.prepare(work.engine)
    with engines.computing(work.engine, partition.nbytes):
        parts = compute_in_halves("ingest", partial(_count, task), partition, floor, work.source, work.engine)
    return _together(parts)


def _count(task: tuple[Work, str, radix_selection.SelectionQuestion | None, int], partition: Partition) -> _Times:
    work, name, question, _ = task
    evaluation = work.open_partition(partition, work.bound.targets)
    values, valid = work.kernels.numbers(evaluation.column(work.bound.targets[0][0], name))
    rows = len(values)
    values = values if valid is None else values[valid]
    return _Times(radix_selection.count(values, question, work.kernels.xp), values.dtype.kind, rows - len(values))


def _list_shares(rule: SplitRule) -> list[tuple[str, float]]:
    """List (split, the share of the rows in it and in later splits), the later split first."""
    ends = []
    share = 0.0
    for name in LATER_FIRST:
        if name in rule.splits:
            share += float(getattr(rule, name))
            ends.append((name, share))
    return ends


def _compute_ranks(rule: SplitRule, total: int) -> list[int]:
    """Compute the ranks, ascending by time from 0, of the rows at whose times test and valid begin."""
    if not total:
        return []
    return [min(max(total - int(share * total + 0.5), 0), total - 1) for _, share in _list_shares(rule)]


def _compute_cuts(
    rule: SplitRule, counted: Counted, kind: str, nulls: int
) -> tuple[list[tuple[str, Any]], dict[str, int]]:
    """Compute the cuts of splits, and their rows.

    Returns (split, the least number in it), the later split first; and the rows of each split, train first, with the
    rows without a time.
    """
    names = [name for name, _ in _list_shares(rule)]
    total = counted.total
    if not total:
        _refuse_empty(rule, {**dict.fromkeys(rule.splits, 0), "train": nulls})
    ranks = _compute_ranks(rule, total)
    cuts = list(zip(names, radix_selection.values_at(counted, ranks, kind), strict=True))
    rows = {}
    end = total
    for name, first in zip(names, radix_selection.first_ranks(counted, ranks), strict=True):
        rows[name], end = end - first, first
    rows = {name: {**rows, "train": end + nulls}[name] for name in rule.splits}
    _refuse_empty(rule, rows)
    return cuts, rows
