"""Lines of text files that cannot be read: what a run says of them, and the file that `source.bad_lines` names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from tasks.core.plan import File, Plan
from tasks.core.settings import Source
from tasks.errors import JobError
from tasks.sources.formats import FORMATS
from tasks.sources.formats.readable_lines import encoding_of
from tasks.sources.formats.text_ranges import BAD
from tasks.storage.files import is_remote, local_path
from tasks.storage.sidecars import Sidecar

ROW = ["file", "line", "why", "text"]
MOST_LINE = 2**26  # bytes of a row
FileWithBadLines = dict[str, Any]  # path, count of bad lines, line and why of the first, file


def bad_lines_of(plan: Plan) -> list[FileWithBadLines]:
    """The files of a plan with lines that are left out, since they cannot be read, in their order."""
    return [
        {"path": path, "count": count, "line": line, "why": why, "file": file}
        for path, (count, line, why, file) in plan.options.get(BAD, {}).items()
    ]


def bad_lines_text(files: Sequence[Mapping[str, Any]], most: int = 20, left_out: bool = True) -> str:
    """How many lines cannot be read, by file: of many files those with the most; "" where there are none. `left_out`:
    a run leaves them out, and does not stop.

    >>> bad_lines_text([{"path": "a.csv", "count": 3, "line": 7, "why": "3 values, 2 columns"}])
    '3 lines cannot be read and are left out: 3 of a.csv (the first is line 7: 3 values, 2 columns)'
    """
    if not files:
        return ""
    shown = sorted(files, key=lambda file: -file["count"])[:most]
    texts = [f"{f['count']:,} of {f['path']} (the first is line {f['line']:,}: {f['why']})" for f in shown]
    more = [f"and those of {len(files) - most:,} more files"] if len(files) > most else []
    total = sum(file["count"] for file in files)
    what = "1 line cannot be read" if total == 1 else f"{total:,} lines cannot be read"
    if left_out:
        what += " and is left out" if total == 1 else " and are left out"
    return f"{what}: {'; '.join([*texts, *more])}"


def target_of(source: Source) -> Sidecar | None:
    """The file that gets the lines which cannot be read; None if there is none. A JobError for a URL."""
    if source.bad_lines in ("error", "skip"):
        return None
    if is_remote(source.bad_lines):
        where = f"source.bad_lines = {source.bad_lines}"
        raise JobError("bad lines go into a file of this host", where=where, do="give the path of a file")
    otherwise = "write source.bad_lines: skip to keep none of these lines"
    return Sidecar(Path(local_path(source.bad_lines)), "source.bad_lines", _is_own, otherwise)


def _is_own(file: BinaryIO) -> bool:
    """Whether each line of a file is one of bad lines; an empty file is."""
    return all(_is_row(line) for line in iter(lambda: file.readline(MOST_LINE), b""))


def _is_row(line: bytes) -> bool:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and [*row] == ROW and type(row["line"]) is int


def write_bad_lines(target: Sidecar, plans: Sequence[tuple[Plan, Sequence[FileWithBadLines]]]) -> None:
    """Write the lines of all files that cannot be read to a file of JSON lines with file, line, why and text.

    The file is there whole or not at all. Its content depends on the source alone; bytes that are not text are written
    as \\xff.
    """
    with target.replace() as written:
        for plan, files in plans:
            read = FORMATS[plan.format].bad_lines
            assert read is not None
            encoding = encoding_of(plan.options)
            for one in files:
                for line, why, data in read(File(*one["file"]), plan.options):
                    text = data.decode(encoding, "backslashreplace").rstrip("\r\n")
                    row = dict(zip(ROW, (one["path"], line, why, text), strict=True))
                    written.write(json.dumps(row, ensure_ascii=False).encode("utf-8") + b"\n")
