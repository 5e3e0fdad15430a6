"""In which file, and where in it, a row of a source lies: for errors about one value."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from tasks.core.plan import EXPLODED, Plan
from tasks.sources.formats import rows_of_piece
from tasks.sources.reader import FramePlan, file_of

RUNS = "runs_by_file"  # in the options of a plan of scratch files: of which file which rows are


def row_place(source: Plan | FramePlan, row: int) -> str:
    """Where a row of a source lies, in words.

    >>> from tasks.core.schema import Schema
    >>> row_place(Plan((), "frame", Schema(), (), ()), 12)
    'row 12 of the source'
    """
    if not isinstance(source, Plan):
        return f"row {row:,} of the {source.called}"
    place = _describe_place(source, row)
    return f"row {row:,} of the source" + (f" ({place})" if place else "")


def _describe_place(plan: Plan, row: int) -> str:
    """The file that has a row, and the number of the row in it where that is known; "" where no file is known."""
    runs = plan.options.get(RUNS)
    if runs is None:
        place = file_of(plan, row)
        if not place:
            return ""
        what = f"element {place[1]:,} of {plan.options[EXPLODED]['column']}" if EXPLODED in plan.options else ""
        return f"{what or f'row {place[1]:,}'} of {place[0]}, counted from 0"
    if not runs:
        return ""
    first, before, paths = runs[bisect_right([run[0] for run in runs], row) - 1]
    if before is not None:
        return f"row {row - first + before:,} of {paths[0]}, counted from 0"
    return f"in {paths[0]}" if len(paths) == 1 else f"in {paths[0]} or one of the {len(paths) - 1} files after it"


def runs_by_file(plan: Plan) -> list[list[Any]]:
    """[first row, rows of the file before it, paths] of each run of rows of one file, for a plan of these rows in
    another order.

    Small files of text that share a block are one run, of which no row knows its number in its file (None). The
    elements of lists have no such number.
    """
    runs: list[list[Any]] = []
    before: dict[int, int | None] = {}
    if EXPLODED in plan.options:
        before = dict.fromkeys(range(len(plan.files)))
    for block in plan.blocks if plan.files else ():
        files = list(dict.fromkeys(piece.file for piece in block.pieces))
        row = block.first_row
        counts = [rows_of_piece(plan.format, piece) for piece in block.pieces]
        if None in counts and len(files) > 1:
            runs.append([row, None, [plan.files[file].path for file in files]])
            before |= dict.fromkeys(files)
            continue
        for file in files:
            paths = [plan.files[file].path]
            earlier = before.get(file, 0)
            known = [count or 0 for piece, count in zip(block.pieces, counts, strict=True) if piece.file == file]
            rows = block.rows if len(files) == 1 else sum(known)
            if not runs or runs[-1][2] != paths:
                runs.append([row, earlier, paths])
            before[file] = None if earlier is None else earlier + rows
            row += rows
    return runs
