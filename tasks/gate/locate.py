"""Names the files in which a figure of a column is wrong: one column is read once more, file by file."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from tasks import engines
from tasks.core.plan import Piece, Plan
from tasks.core.schema import ROW
from tasks.engines.algorithms import column_sketch
from tasks.engines.algorithms.column_sketch import Sketch
from tasks.engines.expression.evaluation import true_rows
from tasks.engines.expression.syntax import parse
from tasks.gate.columns import column_profile
from tasks.gate.profile import ColumnProfile
from tasks.sources.reader import read_pieces

MOST_ROWS = 1 << 22  # that are read at once
MOST_FILES = 10  # that are named


def files_where(
    plan: Plan, column: str, test: Callable[[ColumnProfile], bool], filter: str | None = None, most: int = MOST_FILES
) -> list[str]:
    """The paths of the first `most` files of a plan, in its order, for whose rows `test` is true.

    `test` gets the profile of the column over the rows of one file that pass `filter`, the source filter; files without
    such rows are left out. Only this column is read, and those of the filter, and only until `most` files are known.
    [] for a plan of scratch files (`source.keys`), of which no row knows its file, and for a column that is not there.
    """
    if column not in plan.schema or ROW in plan.schema:
        return []
    pieces = sorted((p for block in plan.blocks for p in block.pieces), key=lambda p: p.file)
    wrong: list[str] = []
    for number, of_file in groupby(pieces, key=lambda p: p.file):
        sketch = _sketch(plan, list(of_file), column, filter)
        if sketch.rows and test(column_profile(column, plan.schema[column].dtype, sketch)):
            wrong.append(plan.files[number].path)
        if len(wrong) == most:
            break
    return wrong


def _sketch(plan: Plan, pieces: list[Piece], column: str, filter: str | None) -> Sketch:
    """The sketch of the column over the rows of these pieces."""
    engine = engines.engine("pandas")
    condition = parse(filter) if filter else None
    names = list(dict.fromkeys([column, *(condition.columns if condition else ())]))
    sketches = []
    for number, run in enumerate(_runs(pieces)):
        frame = engine.from_arrow(read_pieces(plan, run, names))
        if condition:
            frame = engine.take({column: frame[column]}, true_rows(condition, frame))
        sketches.append(engine.sketch_leaves(frame[column], [0, len(frame[column])], [number]))
    return column_sketch.merge(sketches)


def _runs(pieces: list[Piece]) -> list[list[Piece]]:
    """The pieces in runs of about `MOST_ROWS` rows (of text files, bytes)."""
    runs: list[list[Piece]] = [[]]
    size = 0
    for piece in pieces:
        if runs[-1] and size + piece.stop - piece.start > MOST_ROWS:
            runs.append([])
            size = 0
        runs[-1].append(piece)
        size += piece.stop - piece.start
    return runs
