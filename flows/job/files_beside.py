"""The files of `run.lineage` and `run.metrics`, and how a file that an earlier run wrote is known."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from tasks.core.settings import Run, collector_file
from tasks.job.request import Request
from tasks.sources.bad_lines import target_of
from tasks.storage.sidecars import Sidecar, check_sidecars
from tasks.storage.signature import is_signed

EVENT = b'{"eventTime": "'  # how OpenLineage's own client begins an event in a file
PRODUCER = b'"producer": "pkg:pypi/rowmill@'


def check_files_beside(request: Request) -> None:
    """Raise a JobError for the first file next to the output that the run must not write; nothing is written.

    For a run, before it takes the lock, and for a preview.
    """
    bad_lines = target_of(request.source)
    files = [*collector_files(request.run).values(), *([bad_lines] if bad_lines else [])]
    check_sidecars(files, request.read_paths, request.staging)


def collector_files(run: Run) -> dict[str, Sidecar]:
    """Return the files of `lineage` and `metrics`, as far as these are files."""
    files = dict[str, Sidecar]()
    for key, address, is_own in (
        ("lineage", run.lineage, _has_only_our_events),
        ("metrics", run.metrics, _has_our_signature),
    ):
        if address and (path := collector_file(address)):
            files[key] = Sidecar(Path(path), f"run.{key}", is_own)
    return files


def _has_only_our_events(file: BinaryIO) -> bool:
    """Tell whether each line is a whole event of rowmill; an empty file has none."""
    return all(line.startswith(EVENT) and PRODUCER in line and line.endswith(b"}\n") for line in file)


def _has_our_signature(file: BinaryIO) -> bool:
    """Tell whether the file ends in the signature of what it holds; an empty file is ours, too."""
    return is_signed(file) or file.tell() == 0
