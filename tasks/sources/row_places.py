"""In which file, and where in it, a row of a source lies: for errors about one value."""

from __future__ import annotations

from bisect import bisect_right

from tasks.core.plan import Block, Piece, Plan
from tasks.core.schema import ROW
from tasks.errors import MillraceError
from tasks.sources.formats import FORMATS
from tasks.sources.reader import FramePlan, read_pieces
from tasks.sources.uniting import APART


def row_place(source: Plan | FramePlan, row: int) -> str:
    """Where a row of a source lies, in words.

    >>> from tasks.core.schema import Schema
    >>> row_place(Plan((), "frame", Schema(), (), ()), 12)
    'row 12 of the source'
    """
    place = file_of(source, row) if isinstance(source, Plan) else None
    of_file = f" (row {place[1]:,} of {place[0]}, counted from 0)" if place else ""
    return f"row {row:,} of the source{of_file}"


def file_of(plan: Plan, row: int) -> tuple[str, int] | None:
    """The path of the file that has a row of the plan, and the number of the row in this file, from 0.

    A block of several small files of text is read once more, since it does not say how many rows each has. None where
    no file is known: for frames, for rows that `source.keys` brought into another order, and for files that cannot be
    read any more.
    """
    if not plan.files or ROW in plan.schema or not 0 <= row < plan.rows:
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
    except (MillraceError, OSError):
        return None
    return plan.files[file].path, rest


def _rows(plan: Plan, block: Block, piece: Piece) -> int:
    """The number of rows of a piece of a block."""
    if not FORMATS[plan.format].ranged:
        return piece.stop - piece.start
    if len(block.pieces) == 1:
        return block.rows
    in_files = [name for name in plan.schema if name not in plan.options.get("folders", {})]
    return read_pieces(plan, [piece], [next(n for n in in_files if n not in plan.options.get(APART, ()))]).num_rows
