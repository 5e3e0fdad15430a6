"""Sources whose rows are the elements of lists (`source.explode`): their schema, and which pieces are read together.

The plan has the schema, the blocks and the row numbers of the elements. Its pieces are ranges of files, with the number
of elements in each, so that a range whose elements are many can be in several blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from tasks.core.dtypes import dtype_name, is_list, kind_of, parse_dtype, plain_type
from tasks.core.plan import EXPLODED, RETYPED, Piece, Plan
from tasks.core.schema import Column, Schema
from tasks.errors import JobError, near
from tasks.sources.formats.survey import Inspected

WHERE = "source.explode"


def as_elements(dtype: pa.DataType, name: str, path: str, inherited: bool) -> pa.DataType:
    """The type of the elements of lists; of nulls alone null. A JobError for a column that has no lists.

    `inherited`: not the source names the column, but the fit of the workflow that is applied.
    """
    dtype = plain_type(dtype)
    if pa.types.is_null(dtype):
        return dtype
    if is_list(dtype):
        return dtype.value_type
    advice = "name a column of lists, or leave it out"
    if kind_of(dtype) == "string":
        advice += f'; if its texts are lists of numbers, say so: source.schema: {{{name}: "list<int64>"}}'
    raise JobError(
        f"column {name!r} has no lists whose elements could become rows",
        where=f"{WHERE}: {path}",
        why=f"it is {dtype_name(dtype)}",
        do=_unset("its values are rows already") if inherited else advice,
    )


def with_elements(inspected: Sequence[Inspected], name: str, declared: str | None, inherited: bool) -> list[Inspected]:
    """The files with the type of the elements in place of that of the lists; `declared` is that of `source.schema`.

    A JobError for a column that no file has, and for one that has no lists.
    """
    known = dict.fromkeys(column for item in inspected for column in item.schema.names)
    if name not in known:
        path = inspected[0].file.path
        field = any(Schema.from_arrow(item.schema).root(name) for item in inspected)
        advice = "a list in a struct stays a list: name a column of the files" if field else near(name, known)
        raise JobError(
            f"there is no column {name!r}",
            where=f"{WHERE}: {path}",
            do=_unset("these files have rows of single events") if inherited else advice,
        )
    return [_of_elements(item, name, declared, inherited) for item in inspected]


def _of_elements(item: Inspected, name: str, declared: str | None, inherited: bool) -> Inspected:
    place = item.schema.get_field_index(name)
    if place < 0:
        return item
    field = item.schema.field(place)
    dtype = as_elements(parse_dtype(declared) if declared else field.type, name, item.file.path, inherited)
    return replace(item, schema=item.schema.set(place, field.with_type(dtype)))


def _unset(reason: str) -> str:
    return f"the fitted workflow explodes this column; if {reason}, set source.explode: null"


def as_stored(plan: Plan) -> Plan:
    """The plan whose rows are those of the files, with the column of lists."""
    known = plan.options[EXPLODED]
    name = known["column"]
    if name in plan.options.get(RETYPED, {}):  # of text, too, whole numbers written as 7.0 are read in their own type
        element = parse_dtype(plan.options[RETYPED][name])
    elif name in {*plan.schema}:
        element = plan.schema[name].dtype
    else:  # the schema of a refit whose base uses only fields of the structs
        element = parse_dtype(known["dtype"])
    others = [column for column in plan.schema.columns if column.name != name]
    options = {option: value for option, value in plan.options.items() if option != EXPLODED}
    return replace(plan, schema=Schema([*others, Column(name, pa.list_(element))]), options=options)


@dataclass(frozen=True)
class StoredRun:
    """Stored ranges whose elements are read together, without the first `skip` and the last `left` of these."""

    pieces: tuple[Piece, ...]
    skip: int
    left: int


def to_stored_runs(pieces: Sequence[Piece]) -> list[StoredRun]:
    """Pieces of elements as runs of stored ranges, each of which is read once.

    >>> cut = [Piece(0, 0, 90, rows=7), Piece(0, 90, 99, 0, 0, 4, 6), Piece(0, 90, 99, 0, 4, 6, 0)]
    >>> [(len(run.pieces), run.skip, run.left) for run in (*to_stored_runs(cut[:2]), *to_stored_runs(cut[1:]))]
    [(2, 0, 6), (1, 0, 0)]
    """
    runs: list[StoredRun] = []
    for piece in pieces:
        last = runs[-1] if runs else None
        if last and last.left and last.pieces[-1] == piece.stored:  # the elements after those of the piece before
            runs[-1] = replace(last, left=piece.left)
        elif last and not last.left and not piece.skip:
            runs[-1] = replace(last, pieces=(*last.pieces, piece.stored), left=piece.left)
        else:
            runs.append(StoredRun((piece.stored,), piece.skip, piece.left))
    return runs


def describe_explode(plan: Plan) -> str:
    """How many rows of the files became how many rows; "" for a source without `source.explode`."""
    known = plan.options.get(EXPLODED)
    if not known:
        return ""
    text = f"source.explode: {known['rows']:,} rows of the files become {plan.rows:,}, one for each element of"
    left_out = f"; {known['empty']:,} have an empty list or null there and are left out" if known["empty"] else ""
    return f"{text} {known['column']}{left_out}"
