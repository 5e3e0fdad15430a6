"""The files that a workflow has learned from: identified by size and digest, refused when they are given again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tasks.core.plan import File
from tasks.core.strict_json import JsonObject
from tasks.errors import DataError
from tasks.job.request import Request
from tasks.storage.files import read_text_range, reading_error
from tasks.storage.output import PublishedOutput
from tasks.storage.own_files import WORKFLOW, versions_of
from tasks.storage.stores import open_store

PART = 2**20  # bytes at the beginning, in the middle and at the end of a file that its digest is made of
SMALL_PART = 64 * 2**10  # of a file with a footer, which describes all of its columns
SHOWN = 5


def digest_file_samples(file: File, has_footer: bool, options: Mapping[str, Any]) -> str:
    """Compute the xxh3-128, hexadecimal, of a file's size and of its first, middle and last MiB; a smaller file counts
    whole. `options` are those of readers.

    Of a file with a footer, whose digest it has: of the size, this digest, and 64 KiB each of the beginning and the
    middle. From a storage such a file takes two requests; text is fetched once in a run. A DataError if the file cannot
    be read, or has changed.
    """
    digest = xxhash.xxh3_128(file.size.to_bytes(8, "little"))
    if has_footer:
        digest.update(file.digest.encode())
        part, starts = SMALL_PART, [0, file.size // 2]
    else:
        part, starts = PART, [0, file.size // 2 - PART // 2, file.size - PART]
    if file.size <= 3 * part:
        part, starts = file.size, [0]
    ranges = [(start, start + part) for start in starts]
    storage = options.get("storage_options")
    try:
        if has_footer:
            parts: Sequence[Any] = open_store(file.path, storage).read_ranges(file, ranges)
        else:
            parts = [read_text_range(file, start, stop, options) for start, stop in ranges]
    except Exception as error:
        raise reading_error(file.path, error, storage) from None
    for content in parts:
        digest.update(content)
    return digest.hexdigest()


def find_learned_files(files: Sequence[tuple[str, int, str]], known: pa.Table) -> list[tuple[str, str, int]]:
    """Find the files (path, size, digest) that were learned before: with the same content, or at the same path.

    Returns (path, path under which it was learned, number of the batch) of each.
    """
    by_content = dict[tuple[int, str], tuple[str, int]]()
    by_path = dict[str, int]()
    for row in known.to_pylist():
        by_content[row["size"], row["digest"]] = row["path"], row["night"]
        by_path[row["path"]] = row["night"]
    again = []
    for path, size, digest in files:
        if (size, digest) in by_content:
            again.append((path, *by_content[size, digest]))
        elif path in by_path:
            again.append((path, path, by_path[path]))
    return again


def is_last_batch(files: Sequence[tuple[str, int, str]], known: pa.Table, batches: Sequence[JsonObject]) -> bool:
    """Return whether files (path, size, digest) have exactly the contents of the files of the last batch."""
    last = known.filter(pc.equal(known["night"], len(batches) - 1))  # the history may have years of batches
    learned = [(row["size"], row["digest"]) for row in last.to_pylist()]
    return bool(learned) and sorted(learned) == sorted((size, digest) for _, size, digest in files)


def check_new(
    files: Sequence[tuple[str, int, str]], known: pa.Table, batches: Sequence[JsonObject], workflow: str = ""
) -> None:
    """Raise a DataError if some of the files (path, size, digest) were learned in an earlier batch.

    It names both, and the version of that batch in the output that has the fitted workflow.
    """
    again = find_learned_files(files, known)
    if not again:
        return
    lines = [
        f"{path} was learned in the night of {batches[batch]['day']}"
        + (f" as {before}" if before != path else "")
        + _name_version(workflow, batches[: batch + 1])
        for path, before, batch in again[:SHOWN]
    ]
    if len(again) > SHOWN:
        lines.append(f"and {len(again) - SHOWN:,} more")
    do = (
        "name only the new files in source.path, or learn these again: refit.again: true "
        "(rowmill run --set refit.again=true, rowmill refit --again)"
    )
    if is_last_batch(files, known, batches):
        do = (
            "nothing is left to do if this is the run of that night, cut off when it was published; else name new files"
        )
    raise DataError(
        f"{len(again):,} of {len(files):,} files were already learned",
        where="\n         ".join(lines),
        why="their rows would count twice",
        do=do,
    )


def _name_version(workflow: str, batches: Sequence[JsonObject]) -> str:
    """Name the version of the last of the batches, as the end of a sentence; "" if it is gone."""
    path = Path(workflow)
    versions = versions_of(path.parents[1] if path.name == WORKFLOW else path.parent) if workflow else []
    same = [version for version in versions if PublishedOutput(version).batches == [*batches]]
    return f": this night is {same[-1].name}" if same else ""


def run_date_of(request: Request) -> str:
    """Return the day of a run: its run date, else that of the refit, else today (UTC)."""
    return str(request.dated.get("date") or (request.base and request.base.day) or datetime.now(UTC).date().isoformat())
