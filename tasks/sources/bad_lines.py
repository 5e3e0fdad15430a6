"""Lines of text files that cannot be read: what a run says of them, and the file that `source.bad_lines` names."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.core.plan import File, Plan
from tasks.core.settings import Source
from tasks.errors import JobError
from tasks.sources.formats import FORMATS
from tasks.sources.formats.readable_lines import encoding_of
from tasks.sources.formats.text_ranges import BAD
from tasks.storage.allowed_roots import check_path
from tasks.storage.atomic import check_replaceable, no_space, partial_file
from tasks.storage.files import is_remote, local_path, refuse_inside

ROW = ["file", "line", "why", "text"]
MOST_LINE = 2**26  # bytes of a row
FileWithBadLines = dict[str, Any]  # path, count of bad lines, line and why of the first, file


def bad_lines_of(plan: Plan) -> list[FileWithBadLines]:
    """The files of a plan with lines that are left out, since they cannot be read, in their order."""
    return [
        {"path": path, "count": count, "line": line, "why": why, "file": file}
        for path, (count, line, why, file) in plan.options.get(BAD, {}).items()
    ]


def bad_lines_text(files: Sequence[Mapping[str, Any]], most: int = 20) -> str:
    """How many lines cannot be read, by file: of many files those with the most; "" where there are none.

    >>> bad_lines_text([{"path": "a.csv", "count": 3, "line": 7, "why": "3 values, 2 columns"}])
    '3 lines cannot be read and are left out: 3 of a.csv (the first is line 7: 3 values, 2 columns)'
    """
    if not files:
        return ""
    shown = sorted(files, key=lambda file: -file["count"])[:most]
    texts = [f"{f['count']:,} of {f['path']} (the first is line {f['line']:,}: {f['why']})" for f in shown]
    more = [f"and those of {len(files) - most:,} more files"] if len(files) > most else []
    total = sum(file["count"] for file in files)
    what = "1 line cannot be read and is" if total == 1 else f"{total:,} lines cannot be read and are"
    return f"{what} left out: {'; '.join([*texts, *more])}"


def target_of(source: Source, output: Path | None = None) -> Path | None:
    """The file that gets the lines which cannot be read; None if there is none. A JobError for a URL, for anything but
    a file that a run has written, for a file in the output, and for one that the next run would read as part of the
    source."""
    if source.bad_lines in ("error", "skip"):
        return None
    where = f"source.bad_lines = {source.bad_lines}"
    if is_remote(source.bad_lines):
        raise JobError("bad lines go into a file of this host", where=where, do="give the path of a file")
    check_path(source.bad_lines, "source.bad_lines")
    path = Path(local_path(source.bad_lines))
    check_replaceable(path, where, _is_own, "write source.bad_lines: skip to keep none of these lines")
    if output is not None and Path(os.path.realpath(output)) in (real := Path(os.path.realpath(path)), *real.parents):
        raise JobError(
            "the file for bad lines is inside the output",
            where=where,
            why="a run publishes its own files only",
            do="choose a path outside the output",
        )
    for part in (source.path, source.valid):
        if part:
            try:
                refuse_inside(part, str(path))
            except JobError as error:
                raise JobError(
                    "the file for bad lines is inside the source",
                    where=where,
                    why=error.why,
                    do="choose a path outside the source, or a name that begins with _",
                ) from None
    return path


def _is_own(path: Path) -> bool:
    """Whether a file is one of bad lines, by its first line; empty ones are."""
    with path.open("rb") as file:
        first = file.readline(MOST_LINE)
    try:
        return not first or [*json.loads(first)] == ROW
    except ValueError:
        return False


def write_bad_lines(path: Path, plans: Sequence[tuple[Plan, Sequence[FileWithBadLines]]]) -> None:
    """Write the lines of all files that cannot be read to a file of JSON lines with file, line, why and text.

    The file is there whole or not at all. Its content depends on the source alone; bytes that are not text are written
    as \\xff.
    """
    with no_space(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial_file(path) as partial, partial.open("w", encoding="utf-8") as target:
            for plan, files in plans:
                read = FORMATS[plan.format].bad_lines
                assert read is not None
                encoding = encoding_of(plan.options)
                for one in files:
                    for line, why, data in read(File(*one["file"]), plan.options):
                        text = data.decode(encoding, "backslashreplace").rstrip("\r\n")
                        row = dict(zip(ROW, (one["path"], line, why, text), strict=True))
                        target.write(json.dumps(row, ensure_ascii=False) + "\n")
            target.flush()
            os.fsync(target.fileno())
