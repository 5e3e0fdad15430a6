"""Which state of a table a run reads: one, from its plan to its manifest, however often the table is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tasks.core.settings import Source
from tasks.core.strict_json import JsonObject
from tasks.errors import JobError
from tasks.graph.saved_workflow import read_fitted
from tasks.job.request import Request
from tasks.lake.tables import import_kind


def pin_table(request: Request) -> Request:
    """Return the request with the id of the snapshot, or the version, that its source names by a time, by `last` or not
    at all; of files, the request as it is."""
    source = request.source
    if not source.table:
        return request
    since = _find_last(request) if source.since == "last" else source.since
    state: Mapping[str, Any] = import_kind(source.table, f"source.{source.table}").choose_state(source)
    pinned = {**request.sections["source"], **state, "as_of": None, "since": since}
    return replace(request, sections={**request.sections, "source": pinned})


def describe_state(source: Source) -> str:
    """Which state of which table a pinned source is."""
    state = f"version {source.version}" if source.delta else f"snapshot {source.snapshot or 'none: it is empty'}"
    since = f", what was added since snapshot {source.since}" if source.since else ""
    return f"the source is {source.path}, {state}{since}"


def _find_last(request: Request) -> int | None:
    """Find the snapshot up to which the base has read the table; None for the first run of a base, which reads it all.

    A JobError for a run without a base, and for a base that has not read the table.
    """
    name = request.source.iceberg
    where = f"source.iceberg = {name}, since: last"
    if request.no_base:
        return None
    if request.base is None:
        raise JobError(
            "since: last needs a base, from whose snapshot it goes on",
            where=where,
            do="run it with rowmill refit, or name a base in the job; or give the id of a snapshot",
        )
    history: JsonObject = read_fitted(Path(request.base.path)).get("history") or {}
    for batch in reversed(history.get("nights", [])):
        table = batch.get("table") or {}
        if table.get("kind") == "iceberg" and table.get("name") == name and table.get("snapshot") is not None:
            return int(table["snapshot"])
    raise JobError(
        "the base has not read this table",
        where=where,
        why=f"no batch of {request.base.path} names a snapshot of it: what is new is not known",
        do="give the id of the snapshot whose rows the base has learned (since: ID), or leave since out once",
    )
