"""In which file, and where in it, a row of a source lies: for errors about one value."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from tasks.core.plan import EXPLODED, Block, Piece, Plan
from tasks.errors import RowmillError
from tasks.sources.formats import rows_of_piece
from tasks.sources.reader import FramePlan, read_pieces
from tasks.sources.uniting import APART

RUNS = "runs_by_file"  # in the options of a plan of scratch files: of which file which rows are


def row_place(source: Plan | FramePlan, row: int) -> str:
    """Where a row of a source lies, in words.

    >>> from tasks.core.schema import Schema
    >>> row_place(Plan((), "frame", Schema(), (), ()), 12)
    'row 12 of the source'
    """
    if not isinstance(source, Plan):
        return f"row {row:,} of the {source.called}"
    place = _place(source, row)
    return f"row {row:,} of the source" + (f" ({place})" if place else "")


def _place(plan: Plan, row: int) -> str:
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
            paths, earlier = [plan.files[file].path], before.get(file, 0)
            known = [count or 0 for piece, count in zip(block.pieces, counts, strict=True) if piece.file == file]
            rows = block.rows if len(files) == 1 else sum(known)
            if not runs or runs[-1][2] != paths:
                runs.append([row, earlier, paths])
            before[file] = None if earlier is None else earlier + rows
            row += rows
    return runs


def file_of(plan: Plan, row: int) -> tuple[str, int] | None:
    """The path of the file that has a row of the plan, and the number of the row in this file, from 0.

    A block of several small files of text is read once more, since it does not say how many rows each has. None where
    no file is known: for frames, and for files that cannot be read any more.
    """
    if not plan.files or not 0 <= row < plan.rows:
        return None
    number = bisect_right([block.first_row for block in plan.blocks], row) - 1
    block = plan.blocks[number]
    rest = row - block.first_row
    try:
        here = [(piece, _rows(plan, block, piece)) for piece in block.pieces]
        place = 0
        while rest >= here[place][1]:
            rest -= here[place][1]
            place += 1
        file = here[place][0].file
        rest += sum(rows for piece, rows in here[:place] if piece.file == file)
        for earlier in plan.blocks[:number]:
            rest += sum(_rows(plan, earlier, piece) for piece in earlier.pieces if piece.file == file)
    except (RowmillError, OSError):
        return None
    return plan.files[file].path, rest


def _rows(plan: Plan, block: Block, piece: Piece) -> int:
    """The number of rows of a piece of a block."""
    known = rows_of_piece(plan.format, piece)
    if known is not None:
        return known
    if len(block.pieces) == 1:
        return block.rows
    in_files = [name for name in plan.schema if name not in plan.options.get("folders", {})]
    return read_pieces(plan, [piece], [next(n for n in in_files if n not in plan.options.get(APART, ()))]).num_rows
