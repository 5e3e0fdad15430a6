"""Two outputs side by side: rows, schema, vocabularies, statistics and distributions of their columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.dtypes import dtype_name
from tasks.core.schema import Schema
from tasks.engines.convert.python_values import rows_listed
from tasks.gate.contract_values import format_value
from tasks.gate.distances import jensen_shannon, psi, to_shares
from tasks.gate.distributions import list_cells
from tasks.gate.figures import SHARES, compute_figures, family, format_values
from tasks.profile.output_profile import ColumnProfile, Profile

Cells = tuple[str, ...]  # a row of a table
MOST_CELLS = 24  # shown of a distribution
MOST_NEW = 5  # new values that a line names
MOST_PAIRS = 10  # pairs of columns whose association has moved that are shown
FIGURES = {  # checks of the gate, and the names of their figures here; extremes have those of their ends
    "repeated": "repeated",
    "nulls": "null",
    "mean": "mean",
    "extremes": "",
    "quantiles": "median",
    "out_of_vocabulary": "without an id",
    "unmatched": "unmatched",
    "failed_casts": "casts that failed",
}


@dataclass(frozen=True)
class Side:
    """One of two outputs.

    `rows` are the counts of the manifest. `vocabularies` are tables of values in the order of their ids, by the names
    of their columns. `profile` is None for an output without one.
    """

    name: str
    rows: Mapping[str, int]
    schema: Schema
    vocabularies: Mapping[str, pa.Table] = field(default_factory=dict)
    profile: Profile | None = None
    day: str = ""


@dataclass(frozen=True)
class VocabularyChange:
    """The change of the vocabulary of some columns, in numbers of values."""

    columns: str
    before: int
    now: int
    new: int
    gone: int
    moved: int  # values on both sides whose ids differ
    examples: str  # some of the new values


@dataclass(frozen=True)
class Distribution:
    """The shares of cells on both sides. Of many cells, only the `MOST_CELLS` largest are here, in their order."""

    column: str
    labels: Sequence[str]
    before: Sequence[float]
    now: Sequence[float]
    jensen_shannon: float
    psi: float


@dataclass(frozen=True)
class OutputDifference:
    """What differs between two outputs; tables have a row for each column, figures as texts."""

    before: Side
    now: Side
    rows: Sequence[Cells]  # what, before, now, change
    schema: Sequence[Cells]  # column, before, now
    vocabularies: Sequence[VocabularyChange]
    statistics: Sequence[Cells]  # column, what, before, now, change
    distributions: Sequence[Distribution]
    associations: Sequence[Cells]  # columns, before, now, change
    notes: Sequence[str]


def compare_outputs(before: Side, now: Side) -> OutputDifference:
    """Compare two outputs. Columns are in the order of their distance, those that moved most first."""
    notes = []
    distributions = []
    statistics = []
    associated = []
    if before.profile is None or now.profile is None:
        lacking = " and ".join(side.name for side in (before, now) if side.profile is None)
        notes.append(f"{lacking}: no profile was taken, so statistics and distributions cannot be compared")
    else:
        distributions = _compare_distributions(before.profile, now.profile)
        order = {one.column: place for place, one in enumerate(distributions)}
        both = [name for name in now.profile.columns if name in before.profile.columns]
        both.sort(key=lambda name: (order.get(name, len(order)), name))
        later = now.profile.with_keys_of(before.profile)
        statistics = _compare_statistics(before.profile, later, both)
        associated = _compare_associations(before.profile, later)
        for side, other in ((before.profile, now.profile), (now.profile, before.profile)):
            where = before.name if side is before.profile else now.name
            notes += [f"{name} was read for {where} only" for name in sorted({*side.columns} - {*other.columns})]
    return OutputDifference(
        before,
        now,
        _compare_row_counts(before, now),
        _compare_schemas(before.schema, now.schema),
        _compare_vocabularies(before, now),
        statistics,
        distributions,
        associated,
        notes,
    )


def _format_change(before: float, now: float) -> str:
    """Format a relative change.

    >>> _format_change(100, 148), _format_change(100, 100), _format_change(0, 3), _format_change(200, 100)
    ('+48 %', '=', 'new', '-50 %')
    """
    if before == now:
        return "="
    return f"{100 * (now / before - 1):+.3g} %" if before else "new"


def _compare_row_counts(before: Side, now: Side) -> list[Cells]:
    names = [
        name
        for name in ("in", "other_splits", "dropped", "added", "out")
        if before.rows.get(name) or now.rows.get(name)
    ]
    counts = [(name, before.rows.get(name, 0), now.rows.get(name, 0)) for name in names]
    return [(f"rows {name}", f"{one:,}", f"{other:,}", _format_change(one, other)) for name, one, other in counts]


def _compare_schemas(before: Schema, now: Schema) -> list[Cells]:
    """List the columns that are new, gone, of another type, or with another number of ids."""
    lines: list[Cells] = []
    for name in dict.fromkeys([*now, *before]):
        texts = []
        for schema in (before, now):
            if name not in schema:
                texts.append("")
                continue
            column = schema[name]
            text = dtype_name(column.dtype)
            if ids := column.properties.get("cardinality"):
                text += f", {ids:,} ids"
            if size := column.properties.get("embedding"):
                text += f", embedding {size['rows']:,} x {size['dimension']}"
            texts.append(text)
        if texts[0] != texts[1]:
            lines.append((name, texts[0], texts[1]))
    return lines


def _compare_vocabularies(before: Side, now: Side) -> list[VocabularyChange]:
    changes = []
    for name in dict.fromkeys([*now.vocabularies, *before.vocabularies]):
        old, new = (_join_columns(side.vocabularies.get(name)) for side in (before, now))
        places = pc.index_in(new, value_set=old) if new.type == old.type else pa.nulls(len(new), pa.int32())
        places = pa.chunked_array([places]) if isinstance(places, pa.Array) else places
        common = places.drop_null().to_numpy()
        common_now = np.flatnonzero(places.is_valid().to_numpy())
        unknown = np.flatnonzero(places.is_null().to_numpy())
        table = now.vocabularies.get(name)
        examples = _format_examples(table, unknown[:MOST_NEW]) if table is not None else ""
        examples += ", .." if len(unknown) > MOST_NEW else ""
        moved = int(np.count_nonzero(common != common_now))
        changes.append(
            VocabularyChange(name, len(old), len(new), len(unknown), len(old) - len(common), moved, examples)
        )
    return changes


def _join_columns(table: pa.Table | None) -> pa.ChunkedArray:
    """Return the values of a vocabulary; those of several columns are joined to one text each."""
    if table is None:
        return pa.chunked_array([], pa.string())
    columns = [table.column(name) for name in table.column_names if name != "count"]
    if len(columns) == 1:
        return columns[0]
    texts = [pc.fill_null(column.cast(pa.string()), "\0") for column in columns]
    return pc.binary_join_element_wise(*texts, "\1")


def _format_examples(table: pa.Table, places: object) -> str:
    rows = rows_listed(table.take(pa.array(places)))
    return ", ".join(" + ".join(str(v) for name, v in row.items() if name != "count") for row in rows)


def _compare_statistics(before: Profile, now: Profile, names: Sequence[str]) -> list[Cells]:
    """List the figures that differ: those that the gate compares, of rows, columns and steps, and for each column its
    type, number of distinct values, standard deviation and extremes of texts."""
    old = compute_figures(before)
    new = compute_figures(now)
    lines: dict[str, list[Cells]] = {
        "": [],
        **{name: _compare_column(name, before, now) for name in names},
    }
    for key in new:
        if key not in old or key.check not in FIGURES or (key.check == "quantiles" and key.part != "50 %"):
            continue
        one = old[key]
        other = new[key]
        column = now.columns.get(key.column)
        what = FIGURES[key.check] or key.part
        kind = family(column) if column else ""
        title = key.column if key.column not in now.steps else ", ".join(now.steps[key.column].columns)
        texts = format_values(key, one, other, kind)
        if one == other or texts[0] == texts[1]:
            continue
        if key.check in SHARES:
            change = f"{100 * (other - one):+.3g} points"
        else:
            change = f"{other - one:+,.3g} h" if kind == "moment" else _format_change(one, other)
        lines.setdefault(title, []).append((title or "rows", what, *texts, change))
    return [line for title_lines in lines.values() for line in title_lines]


def _compare_column(name: str, before: Profile, now: Profile) -> list[Cells]:
    """List what differs of a column, except the figures that the gate compares."""
    lines: list[Cells] = []
    one = before.columns[name]
    other = now.columns[name]
    if one.type != other.type:
        lines.append((name, "type", one.type, other.type, ""))
    counts = [round(column.distinct) for column in (one, other)]
    if counts[0] != counts[1]:
        both_known = one.is_distinct_known and other.is_distinct_known
        lines.append(
            (
                name,
                "distinct",
                _format_distinct(one),
                _format_distinct(other),
                _format_change(*counts) if both_known else "",
            )
        )
    if one.std != other.std and one.std is not None and other.std is not None and math.isfinite(one.std + other.std):
        texts = [format_value(float(f"{column.std:.9g}")) for column in (one, other)]
        lines.append((name, "standard deviation", *texts, _format_change(one.std, other.std)))
    for what, low, high in (("least", one.minimum, other.minimum), ("largest", one.maximum, other.maximum)):
        if isinstance(low, str) and isinstance(high, str) and low != high and family(other) == "text":
            lines.append((name, what, _shorten_text(low), _shorten_text(high), ""))
    return lines


def _compare_associations(before: Profile, now: Profile) -> list[Cells]:
    """List the pairs of columns whose association has moved most: (columns, before, now, change)."""
    both = {
        pair: (one, now.associations[pair]) for pair, one in before.associations.items() if pair in now.associations
    }
    moved = {pair: other.v - one.v for pair, (one, other) in both.items()}
    by_chance = {pair: max(one.by_chance, other.by_chance) for pair, (one, other) in both.items()}
    far = (pair for pair in moved if abs(moved[pair]) > 3 * by_chance[pair])
    most = sorted(far, key=lambda pair: (-abs(moved[pair]), pair))
    shares = [(" and ".join(pair), both[pair][0].v, both[pair][1].v) for pair in most[:MOST_PAIRS]]
    return [(names, f"{one:.3g}", f"{other:.3g}", f"{other - one:+.3g}") for names, one, other in shares]


def _format_distinct(column: ColumnProfile) -> str:
    """Format the number of distinct values; a sample shows only that it is at least so large."""
    known = ("about " if column.distinct_error else "") if column.is_distinct_known else "at least "
    return f"{known}{round(column.distinct):,}"


def _shorten_text(text: str) -> str:
    return text if len(text) <= 40 else text[:38] + ".."


def _compare_distributions(before: Profile, now: Profile) -> list[Distribution]:
    """Compare the distributions of columns that both have: by value if each was counted, else by bins or buckets."""
    every = []
    for name, column in now.columns.items():
        past = before.columns.get(name)
        if past is None or family(past) != family(column) or not past.values or not column.values:
            continue
        ways = {cells.part: cells for cells in list_cells([past], column)}
        cells = ways.get("bins") if "buckets" in ways else ways.get("values") or ways.get("bins")
        cells = cells or ways.get("values") or ways.get("buckets")
        if cells is None:
            continue
        one = to_shares(cells.past[0])
        other = to_shares(cells.now)
        few = cells.for_psi()
        order = np.arange(len(one))
        if cells.part == "buckets":
            one = to_shares(few.past[0])
            other = to_shares(few.now)
            labels = list(few.labels)
            order = np.arange(len(one))
        else:
            labels = list(cells.labels)
        if len(order) > MOST_CELLS:
            order = np.sort(np.argsort(-np.maximum(one, other), kind="stable")[:MOST_CELLS])
        every.append(
            Distribution(
                name,
                [labels[place] for place in order],
                [float(one[place]) for place in order],
                [float(other[place]) for place in order],
                float(jensen_shannon(cells.past[0], cells.now)),
                float(psi(few.past[0], few.now)),
            )
        )
    return sorted(every, key=lambda one: (-one.jensen_shannon, one.column))
