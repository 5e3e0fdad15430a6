"""Find the files in which a change begins: the columns of findings are read once more, file by file."""

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
from tasks.gate.distributions import list_cells
from tasks.gate.figures import compute_figures
from tasks.gate.verdict import Finding, Verdict
from tasks.profile.column_figures import make_column_profile
from tasks.profile.output_profile import ColumnProfile, Profile
from tasks.sources.reader import read_pieces

MOST_ROWS = 1 << 22  # read at once
MOST_FILES = 10  # named for a finding
MOST_SPAN = 1 << 28  # rows (of text files, bytes) of a column that are searched
MOST_COLUMNS = 10  # searched
SURE = 3.0  # standard deviations beyond which the distance of a file's values is not chance
FIGURES = ("nulls", "mean", "extremes", "quantiles")
DISTRIBUTIONS = ("l_infinity", "jensen_shannon", "psi", "swapped")

Test = Callable[[ColumnProfile], bool]


def add_files(
    verdict: Verdict,
    plan: Plan,
    profile: Profile,
    last: Profile | None,
    contract: Contract | None,
    filter: str | None,
    shown: Callable[[str], str] = str,
) -> Verdict:
    """Add to each finding of a verdict the files of the plan in which it begins, in its `files` and in its sentence.

    `profile` was judged, `last` is that of the last good version. A file is named if its own rows break the contract,
    all have one value, have the new values, or differ from the last good version by more than half of the change of a
    figure, in its direction, or three quarters of a distance. No file is named for rows, numbers of distinct values,
    types, duplicates, associations and steps: a single file cannot show these. Notes say which columns and files were
    not searched. `shown` converts a path to what people may see.
    """
    tests: dict[str, dict[int, Test]] = {}
    for place, finding in enumerate(verdict.findings):
        name = _choose_column(finding, profile)
        test = _make_test(finding, name, profile, last, contract) if name in plan.schema else None
        if test is not None:
            tests.setdefault(name, {})[place] = test
    notes: list[str] = []
    if skipped := list(tests)[MOST_COLUMNS:]:
        notes.append(f"the files in which a change begins were not searched for {', '.join(skipped)}")
    paths: dict[int, list[str]] = {}
    for name in list(tests)[:MOST_COLUMNS]:
        try:
            search = find_files(plan, name, tests[name], filter)
        except (RowmillError, OSError) as error:
            notes.append(f"{name}: the files in which its change begins could not be searched: {error}")
            continue
        paths |= search.paths
        if search.searched < search.files:
            counts = f"{search.searched:,} of {search.files:,}"
            notes.append(f"{name}: only {counts} files were searched for where its change begins")
    findings = []
    for place, finding in enumerate(verdict.findings):
        findings.append(_add_files(finding, [shown(path) for path in paths.get(place, [])]))
    return replace(verdict, findings=tuple(findings), notes=(*verdict.notes, *notes))


class FileSearch(NamedTuple):
    """The result of a search for files."""

    paths: dict[int, list[str]]  # by test, those of the first files for which it is true
    searched: int  # the number of files that were read
    files: int  # the number of all files


def find_files(
    plan: Plan, column: str, tests: Mapping[int, Test], filter: str | None = None, most: int = MOST_FILES
) -> FileSearch:
    """Find the first `most` files of a plan, in its order, for whose rows each test is true.

    A test gets the profile of the column over the rows of one file that pass `filter`, the source filter; files without
    such rows are left out. Only this column and those of the filter are read, until `most` files are known. Nothing is
    searched if the plan lacks the column, or is of scratch files (`source.keys`), whose rows do not know their file.
    """
    paths: dict[int, list[str]] = {place: [] for place in tests}
    if column not in plan.schema or ROW in plan.schema:
        return FileSearch(paths, 0, 0)
    pieces = sorted((p for block in plan.blocks for p in block.pieces), key=lambda p: p.file)
    files = [(number, list(of_file)) for number, of_file in groupby(pieces, key=lambda p: p.file)]
    span = 0
    for place, (number, of_file) in enumerate(files):
        span += sum(piece.stop - piece.start for piece in of_file)
        if place and span > MOST_SPAN:
            return FileSearch(paths, place, len(files))
        sketch, values = _sketch_column(plan, of_file, column, filter)
        if not sketch.rows:
            continue
        profile = make_column_profile(column, plan.schema[column].dtype, sketch, values)
        for key, test in tests.items():
            if len(paths[key]) < most and test(profile):
                paths[key].append(plan.files[number].path)
        if all(len(known) == most for known in paths.values()):
            break
    return FileSearch(paths, len(files), len(files))


def _add_files(finding: Finding, files: list[str]) -> Finding:
    """Add files to a finding, and the first of them to its sentence."""
    if not files:
        return finding
    others = len(files) - 1
    more = f" and {others}{' or more' if len(files) == MOST_FILES else ''} other file{'s' * (others > 1)}"
    text = f"{finding.text}; the change begins in {files[0]}{more if others else ''}"
    return replace(finding, files=tuple(files), text=text)


def _choose_column(finding: Finding, profile: Profile) -> str:
    """Choose the column that is searched for a finding: its own, the first of two that look swapped; "" for none."""
    if finding.column in profile.columns:
        return finding.column
    if finding.check == "swapped":
        pairs = (name for name in profile.columns if finding.column.startswith(f"{name}, "))
        return next((name for name in pairs if finding.column[len(name) + 2 :] in profile.columns), "")
    return ""


def _make_test(
    finding: Finding, name: str, profile: Profile, last: Profile | None, contract: Contract | None
) -> Test | None:
    """Make a test whether the rows of a file have what the finding says; None if a single file cannot show it."""
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
        return _make_figure_test(finding, profile.columns[name])
    if finding.check in DISTRIBUTIONS and before is not None:
        return _make_distance_test(before, profile.columns[name])
    return None


def _make_figure_test(finding: Finding, now: ColumnProfile) -> Test | None:
    """Make a test whether a figure of a file is nearer to that of the batch than to that of the last good version."""
    figures = _compute_column_figures(now)
    key = next((key for key, value in figures.items() if key.check == finding.check and value == finding.now), None)
    if key is None or finding.now == finding.before:
        return None
    middle = finding.now / 2 + finding.before / 2
    upwards = finding.now > finding.before

    def test(column: ColumnProfile) -> bool:
        value = _compute_column_figures(column).get(key)
        return value is not None and (value > middle if upwards else value < middle)

    return test


def _compute_column_figures(column: ColumnProfile) -> dict[Any, float]:
    return compute_figures(Profile(column.rows, {column.name: column}))


def _make_distance_test(before: ColumnProfile, now: ColumnProfile) -> Test:
    """Make a test whether a file's values are far from the last good version: by more than chance explains, and by more
    than three quarters of the distance of the batch."""
    least = {cells.part: 0.75 * float(jensen_shannon(cells.past[-1], cells.now)) for cells in list_cells([before], now)}

    def test(column: ColumnProfile) -> bool:
        for cells in list_cells([before], column):
            chance = noise("jensen_shannon", cells.past[-1], column.values, before.values, SURE)
            if float(jensen_shannon(cells.past[-1], cells.now)) > max(least.get(cells.part, 1.0), chance):
                return True
        return False

    return test


def _sketch_column(plan: Plan, pieces: list[Piece], column: str, filter: str | None) -> tuple[Sketch, pa.ChunkedArray]:
    """Compute the sketch of a column over the rows of these pieces; return its values, too."""
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
    """Divide pieces into runs of about `MOST_ROWS` rows (of text files, bytes)."""
    runs: list[list[Piece]] = [[]]
    size = 0
    for piece in pieces:
        if runs[-1] and size + piece.stop - piece.start > MOST_ROWS:
            runs.append([])
            size = 0
        runs[-1].append(piece)
        size += piece.stop - piece.start
    return runs
