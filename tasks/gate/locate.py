"""Names the files in which a change begins: the columns of findings are read once more, file by file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa

from tasks import engines
from tasks.core.contract import Contract
from tasks.core.plan import Piece, Plan
from tasks.core.schema import ROW
from tasks.engines.algorithms import column_sketch
from tasks.engines.algorithms.column_sketch import Sketch
from tasks.engines.expression.interpreter import true_rows
from tasks.engines.expression.syntax import parse
from tasks.errors import RowmillError
from tasks.gate.contract_values import check_values
from tasks.gate.distances import jensen_shannon, noise
from tasks.gate.distributions import cells_of
from tasks.gate.figures import figures_of
from tasks.gate.verdict import Finding, Verdict
from tasks.profile.column_figures import column_profile
from tasks.profile.output_profile import ColumnProfile, Profile
from tasks.sources.reader import read_pieces

MOST_ROWS = 1 << 22  # that are read at once
MOST_FILES = 10  # that are named
MOST_SPAN = 1 << 28  # rows (of text files, bytes) of a column that are searched
MOST_COLUMNS = 10  # that are searched
SURE = 3.0  # standard deviations beyond which the distance of a file's values is no chance
FIGURES = ("nulls", "mean", "extremes", "quantiles")
DISTRIBUTIONS = ("l_infinity", "jensen_shannon", "psi", "swapped")

Test = Callable[[ColumnProfile], bool]


def with_files(
    verdict: Verdict,
    plan: Plan,
    profile: Profile,
    last: Profile | None,
    contract: Contract | None,
    filter: str | None,
    shown: Callable[[str], str] = str,
) -> Verdict:
    """The verdict with the files of the plan in which each finding begins, in its `files` and in its sentence.

    `night` was judged, `last` is of the last good version. A file is named if its own rows break the contract, are
    all of one value, have the new values, or are away from the last good version by more than half of the night's
    change of a figure, in its direction, or three quarters of its distance. Of rows, numbers of distinct values,
    types, duplicates, associations and steps no file is named. Notes say which columns and files were not searched.
    `shown` gives a path as people may see it.
    """
    tests: dict[str, dict[int, Test]] = {}
    for place, finding in enumerate(verdict.findings):
        name = _column(finding, profile)
        test = _test(finding, name, profile, last, contract) if name in plan.schema else None
        if test is not None:
            tests.setdefault(name, {})[place] = test
    notes: list[str] = []
    if left := list(tests)[MOST_COLUMNS:]:
        notes.append(f"the files in which a change begins were not searched for {', '.join(left)}")
    wrong: dict[int, list[str]] = {}
    for name in list(tests)[:MOST_COLUMNS]:
        try:
            search = files_where(plan, name, tests[name], filter)
        except (RowmillError, OSError) as error:
            notes.append(f"{name}: the files in which its change begins could not be searched: {error}")
            continue
        wrong |= search.paths
        if search.searched < search.files:
            counts = f"{search.searched:,} of {search.files:,}"
            notes.append(f"{name}: only {counts} files were searched for where its change begins")
    findings = tuple(_add_files(one, [*map(shown, wrong.get(place, []))]) for place, one in enumerate(verdict.findings))
    return replace(verdict, findings=findings, notes=(*verdict.notes, *notes))


class FilesWhere(NamedTuple):
    """paths: for each test the paths of the first files for which it is true; searched: the number of files that were
    looked at, of `files`."""

    paths: dict[int, list[str]]
    searched: int
    files: int


def files_where(
    plan: Plan, column: str, tests: Mapping[int, Test], filter: str | None = None, most: int = MOST_FILES
) -> FilesWhere:
    """The first `most` files of a plan, in its order, for whose rows each test is true.

    A test gets the profile of the column over the rows of one file that pass `filter`, the source filter; files without
    such rows are left out. Only this column is read, and those of the filter, and only until `most` files are known.
    None are searched for a plan of scratch files (`source.keys`), of which no row knows its file, and for a column that
    is not there.
    """
    wrong: dict[int, list[str]] = {place: [] for place in tests}
    if column not in plan.schema or ROW in plan.schema:
        return FilesWhere(wrong, 0, 0)
    pieces = sorted((p for block in plan.blocks for p in block.pieces), key=lambda p: p.file)
    files = [(number, list(of_file)) for number, of_file in groupby(pieces, key=lambda p: p.file)]
    span = 0
    for place, (number, of_file) in enumerate(files):
        span += sum(piece.stop - piece.start for piece in of_file)
        if place and span > MOST_SPAN:
            return FilesWhere(wrong, place, len(files))
        sketch, values = _sketch_column(plan, of_file, column, filter)
        if not sketch.rows:
            continue
        profile = column_profile(column, plan.schema[column].dtype, sketch, values)
        for key, test in tests.items():
            if len(wrong[key]) < most and test(profile):
                wrong[key].append(plan.files[number].path)
        if all(len(paths) == most for paths in wrong.values()):
            break
    return FilesWhere(wrong, len(files), len(files))


def _add_files(finding: Finding, files: list[str]) -> Finding:
    """The finding with its files, and a sentence that names the first of them."""
    if not files:
        return finding
    others = len(files) - 1
    more = f" and {others}{' or more' if len(files) == MOST_FILES else ''} other file{'s' * (others > 1)}"
    text = f"{finding.text}; the change begins in {files[0]}{more if others else ''}"
    return replace(finding, files=tuple(files), text=text)


def _column(finding: Finding, profile: Profile) -> str:
    """The column that is searched for a finding: its own, of two that look swapped the first; "" for none."""
    if finding.column in profile.columns:
        return finding.column
    if finding.check == "swapped":
        pairs = (name for name in profile.columns if finding.column.startswith(f"{name}, "))
        return next((name for name in pairs if finding.column[len(name) + 2 :] in profile.columns), "")
    return ""


def _test(
    finding: Finding, name: str, profile: Profile, last: Profile | None, contract: Contract | None
) -> Test | None:
    """Whether the rows of a file have what the finding says; None where a file alone cannot show it."""
    before = last.columns.get(name) if last else None
    if finding.check == "contract" and contract is not None:
        return lambda column: any(
            one.before == finding.before
            for one in check_values(Profile(column.rows, {name: column}), contract, finding.level).findings
        )
    if finding.check == "constant":
        return lambda column: column.is_constant
    if finding.check == "new_values":
        new = {(type(value), value) for value in finding.now}
        return lambda column: any((type(value), value) in new for value, _ in column.top)
    if finding.check in FIGURES:
        return _figure_test(finding, profile.columns[name])
    if finding.check in DISTRIBUTIONS and before is not None:
        return _distance_test(before, profile.columns[name])
    return None


def _figure_test(finding: Finding, now: ColumnProfile) -> Test | None:
    """Whether a figure of a file is on the far side of the middle between the last good version and the night."""
    figures = _compute_figures(now)
    key = next((key for key, value in figures.items() if key.check == finding.check and value == finding.now), None)
    if key is None or finding.now == finding.before:
        return None
    middle = finding.now / 2 + finding.before / 2
    upwards = finding.now > finding.before

    def test(column: ColumnProfile) -> bool:
        value = _compute_figures(column).get(key)
        return value is not None and (value > middle if upwards else value < middle)

    return test


def _compute_figures(column: ColumnProfile) -> dict[Any, float]:
    return figures_of(Profile(column.rows, {column.name: column}))


def _distance_test(before: ColumnProfile, now: ColumnProfile) -> Test:
    """Whether the values of a file are further from the last good version than three quarters of the night's distance,
    and than chance explains."""
    least = {cells.part: 0.75 * float(jensen_shannon(cells.past[-1], cells.now)) for cells in cells_of([before], now)}

    def test(column: ColumnProfile) -> bool:
        for cells in cells_of([before], column):
            chance = noise("jensen_shannon", cells.past[-1], column.values, before.values, SURE)
            if float(jensen_shannon(cells.past[-1], cells.now)) > max(least.get(cells.part, 1.0), chance):
                return True
        return False

    return test


def _sketch_column(plan: Plan, pieces: list[Piece], column: str, filter: str | None) -> tuple[Sketch, pa.ChunkedArray]:
    """The sketch and the values of the column over the rows of these pieces."""
    engine = engines.engine("pandas")
    condition = parse(filter) if filter else None
    names = list(dict.fromkeys([column, *(condition.columns if condition else ())]))
    sketches = []
    values = []
    for number, run in enumerate(_chunk_pieces(pieces)):
        frame = engine.from_arrow(read_pieces(plan, run, names))
        if condition:
            frame = engine.take({column: frame[column]}, true_rows(condition, frame))
        sketches.append(engine.sketch_leaves(frame[column], [0, len(frame[column])], [number]))
        values.append(engine.host(frame[column]))
    return column_sketch.merge(sketches), pa.chunked_array(values)


def _chunk_pieces(pieces: list[Piece]) -> list[list[Piece]]:
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
