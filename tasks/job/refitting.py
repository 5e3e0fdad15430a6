"""What a refit is asked to do: the request of a job on top of its base, and the copy of the base that it works with."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from tasks.core.schema import Schema
from tasks.core.settings import Output, Refitting, Run, Source
from tasks.core.strict_json import JsonObject
from tasks.core.versions import rowmill_version
from tasks.graph.binding import Bound
from tasks.graph.matching import Matched, match_steps
from tasks.graph.node import graph_from_json, graph_to_json
from tasks.graph.refit_history import FILES, files_table, read_files, with_batch
from tasks.graph.saved_workflow import read_fitted, read_ids_since
from tasks.graph.state import check_saved, list_state_files
from tasks.job.apply_fitted import bind_graph, list_lookalike_data, list_targets
from tasks.job.base_version import BaseVersion
from tasks.job.learned_files import run_date_of
from tasks.job.request import RefitBase, Request, SavedPlans, new_request
from tasks.ops.fitted_values import FittedSteps
from tasks.sources.reading_rules import Fit, with_values
from tasks.storage.allowed_roots import open_allowed_path
from tasks.storage.atomic import no_space, partial_folder, read_record, write_json
from tasks.storage.output_mirror import address_of
from tasks.storage.own_files import FITTED

COPY = "base"  # the folder in the staging folder
LEARN_FROM = "learn-from"  # the name of the plan of `refit.learn_from`


class Features(NamedTuple):
    """The graph of a job, as it is saved, and the columns of its labels."""

    graph: list[JsonObject]
    labels: list[str]


def refitting_request(
    source: Source,
    base: BaseVersion,
    refit: Refitting,
    output: Output,
    run: Run,
    engine: str,
    features: Features | None = None,
) -> Request:
    """Make the request that learns from a source on top of a base, as of today; without `features` it has those of the
    base.

    A graph that differs from the base's is matched to it (`tasks.graph.matching`) once the columns of the source are
    known.
    """
    own = graph_to_json(graph_from_json(base.data["graph"]))
    fit = Fit.of(source, base.data["source"])
    schema = base.data["schema"]
    if features is None:
        features = Features(own, list_targets(graph_from_json(own), Schema.from_json(schema)))
    graph = features.graph
    is_changed = features.graph != own
    return new_request(
        with_values(source, fit.reading),
        graph,
        output,
        run,
        engine,
        features.labels,
        base=RefitBase(
            str(base.workflow),
            base.data["state"],
            schema,
            fit,
            list_lookalike_data(base.data),
            (*base.data.get("ancestors", ()), base.data["state"]),
            read_ids_since(base.data),
            version=base.name,
            rows=base.rows,
            since=base.day,
            day=datetime.now(UTC).date().isoformat(),
            settings=refit.settings,
            all=refit.all,
            again=refit.again,
            forget=refit.forget,
            graph=own if is_changed else None,
            learn_from=refit.learn_from if is_changed else None,
        ),
    )


def match_to_base(request: Request, source: Schema) -> Matched | None:
    """Match the steps of the job to those of its base; None if the job has the features of its base.

    `source` are the columns of the batch. A JobError if ids would move.
    """
    if request.base is None or request.base.graph is None:
        return None
    base = Bound(graph_from_json(request.base.graph), request.fitted_schema)
    return match_steps(base, bind_graph(request, source), request.base.version)


def copy_base(request: Request) -> Path:
    """Copy the base into the staging folder, checked by its digests, as hard links if possible.

    The folder that it comes from may be replaced meanwhile.
    """
    folder = request.staging.folder / COPY
    base = request.base
    assert base
    if read_record(folder / "manifest.json").get("digest") == base.state:
        return folder
    origin = Path(base.path)
    more = [origin / name for name in (FITTED, FILES) if (origin / name).exists()]
    with no_space(folder), partial_folder(folder) as partial:
        for path in [*list_state_files(origin), *more]:
            with open_allowed_path(path, "base") as name:
                _link_or_copy(path, name, partial / path.name)
        check_saved(partial, base.state)
        write_json(partial / "manifest.json", {"digest": base.state})
    return folder


def _link_or_copy(path: Path, name: str, target: Path) -> None:
    with suppress(OSError):
        os.link(path, target, follow_symlinks=False)
        return
    shutil.copyfile(name, target)


def history_before(request: Request) -> tuple[JsonObject, pa.Table]:
    """Read (the history of the base, the table of its files); both are empty for a fit, and if all is learned anew."""
    if not request.base or request.base.all:
        return {}, files_table([], 0)
    folder = request.staging.folder / COPY
    data = read_fitted(folder)
    history = dict(data.get("history") or {})
    if not history:
        history = {"rows": request.base.rows, "nights": []}
    return history, read_files(folder, history)


def history_of(request: Request, values: FittedSteps) -> tuple[JsonObject, pa.Table]:
    """Make (the history after this run, the table of its files); `values` is what was learned, by step."""
    before, files = history_before(request)
    plans = SavedPlans(request)
    learned = plans.learned_files
    vocabularies = {key: known for key, known in values.items() if "values" in known and "size" in known}
    batch = {
        "day": run_date_of(request),
        "rows": plans.plan(request.splits[0]).numbered_rows,
        "learned": _read_learned_rows(request),
        "files": len(learned),
        "ids": {key.split("/", 2)[-1]: int(known["size"]) for key, known in vocabularies.items()},
        "rowmill": rowmill_version(),
    }
    if table := plans.table(request.splits[0]):
        batch["table"] = table
    own = files_table(learned, len(before.get("nights", ())))
    return with_batch(before, batch), pa.concat_tables([files, own])


def _read_learned_rows(request: Request) -> int:
    """Read the number of rows from which the statistics of this run have learned."""
    manifest = read_record(request.staging.folder / "state" / "manifest.json")
    return int(manifest.get("learned_rows", 0))


def base_note(request: Request) -> JsonObject:
    """Make the entry of a manifest on the base: {"base": {version, path, state, rows}}.

    It is "none" for the first run of a job that names a base; {} for a job without one.
    """
    base = request.base
    if base:
        known = {name: getattr(base, name) for name in ("version", "path", "state", "rows")}
        return {"base": known | {"path": address_of(base.path)}}
    return {"base": "none"} if request.no_base else {}
