"""The end of a run: count rows, write manifests, reports and the fitted workflow, publish all with one rename."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Self

from tasks.core.memory_budget import STATE_SHARE_OF_HOST
from tasks.core.notes import leave_out_empty
from tasks.core.redaction import plain_url
from tasks.core.row_sizes import row_width
from tasks.core.schema import Schema
from tasks.core.settings import Output
from tasks.core.stage_results import (
    IngestResult,
    PartRecord,
    StageResult,
    StatisticsResult,
    TransformResult,
    WriteResult,
    total_resources,
)
from tasks.core.stored_types import to_stored_schema
from tasks.core.strict_json import JsonObject
from tasks.core.versions import PERMUTATION_VERSION, rowmill_version, versions
from tasks.errors import DataError
from tasks.graph.binding import Bound
from tasks.graph.saved_workflow import FittedOrigin, save_fitted
from tasks.graph.state import State
from tasks.job.apply_fitted import base_schema, choose_graph_and_schema, list_differences, with_read_types
from tasks.job.base_version import check_not_discarded
from tasks.job.profiles import publish_profile
from tasks.job.publication import Train, list_paths, write_publication
from tasks.job.refitting import base_note, history_of
from tasks.job.request import Request, SavedPlans
from tasks.job.source_rules import add_rule_counts, describe_rules
from tasks.manifest import FORMAT, Manifest
from tasks.ops.fitted_values import FittedSteps
from tasks.sources.reading_rules import rows_of
from tasks.storage.atomic import flush, no_space, partial_folder, write_json
from tasks.storage.documents import seal
from tasks.storage.own_files import GATE, MANIFEST, WORKFLOW
from tasks.storage.parquet_footers import write_footers
from tasks.storage.retention import publish
from tasks.storage.staging import Staging

NO_GATE: Mapping[str, Any] = MappingProxyType({})
PREPARE_DELAY = (
    0.2  # seconds before `CommitPreparation` begins: the flow first sends the tasks of a stage to the workers
)


class LearnedState(NamedTuple):
    """What the run has learned, or read from a fitted workflow, as the commit needs it."""

    state: State  # with only the heads of large vocabularies
    bound: Bound
    folder: Path  # of the saved fitted workflow; the commit moves it into the output


class RunReport(Protocol):
    """The report of a run: `look` samples the source while files are written; `write` is called before the rename.

    `performance` is Dask's own report as HTML, "" without one; `upstream` are the paths that the output is made of.
    """

    performance: str
    upstream: Sequence[str]

    def look(self) -> None: ...

    def write(
        self,
        folder: Path,
        results: Sequence[StageResult],
        manifests: Mapping[str, JsonObject],
        bound: Bound,
        values: FittedSteps,
    ) -> None: ...


class CommitPreparation:
    """The preparation of a commit by a thread of this process while the workers write: `with CommitPreparation(..)`.

    The thread reads what was learned, saves the fitted workflow and lets the report take its sample of the source. It
    begins after `PREPARE_DELAY` seconds. If the workers may need the memory that this takes, it begins only when
    `wait_for_state` is called. When the block ends, the fitted workflow is complete or abandoned: nothing writes to it
    any more.
    """

    def __init__(self, request: Request, report: RunReport | None = None) -> None:
        self.request = request
        self.report = report
        self._begin = threading.Event()
        self._learned = Future[LearnedState]()
        self._thread = threading.Thread(target=self._prepare, name="rowmill-closing", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._begin.set()
        self._learned.exception()  # waits for the fitted workflow

    def wait_for_state(self) -> LearnedState:
        """Wait for the thread; raises its error if the state could not be read or the fitted workflow not saved."""
        self._begin.set()
        learned = self._learned.result()
        self._thread.join()  # until the report has its sample
        return learned

    def _prepare(self) -> None:
        try:
            self._begin.wait(None if _is_large(self.request) else PREPARE_DELAY)
            self._learned.set_result(prepare_fitted(self.request))
        except BaseException as error:
            self._learned.set_exception(error)
        if self.report:
            self.report.look()


def _is_large(request: Request) -> bool:
    """Return whether what is read of the state takes so much memory that it is read only when the workers are done."""
    from distributed.system import MEMORY_LIMIT

    return State.bytes_of_heads(request.staging.folder / "state") > MEMORY_LIMIT * STATE_SHARE_OF_HOST


def prepare_fitted(request: Request) -> LearnedState:
    """Read what was learned, and save it as a fitted workflow in the staging folder."""
    workflow = request.staging.folder / "workflow"
    state = State.load_heads(request.staging.folder / "state")
    final, schema = choose_graph_and_schema(request, SavedPlans(request).plan(request.splits[0]).schema)
    with no_space(workflow), partial_folder(workflow) as folder:
        _save_fitted(request, state, folder)
    return LearnedState(state, Bound(final, schema, state.values), workflow)


def commit(
    request: Request,
    results: Sequence[StageResult],
    run_id: str = "",
    closing: CommitPreparation | None = None,
    gate: Mapping[str, Any] = NO_GATE,
    upstream: Sequence[str] | None = None,
    train: Train = "now",
) -> list[Manifest]:
    """Check the sum of rows, write manifests, the fitted workflow and the reports, and publish with one rename.

    `gate` is the content of `_gate.json`; without it, no such file is written. `upstream` are the paths that the
    announcement of the output names in addition to those of the request; with None, the output is not announced.
    `train` says when a training on the output starts by itself.
    """
    staging = request.staging
    output = request.output
    plans = SavedPlans(request)
    state, bound, workflow = closing.wait_for_state() if closing else prepare_fitted(request)
    manifests = {}
    written = {result.split: result for result in results if isinstance(result, WriteResult)}
    parts = {Path(split) / part["path"] for split, result in written.items() for part in result.parts}
    _remove_stray_files(staging, parts)
    for split in request.splits:
        split_results = [result for result in results if result.split in ("", split)]
        manifests[split] = _make_manifest(request, split_results, written[split], bound, run_id, plans)
        if gate:
            manifests[split]["gate"] = gate["gate"]
            write_json(staging.new / split / GATE, gate)
    workflow.rename(staging.new / WORKFLOW)
    for split, data in manifests.items():
        if request.output.metadata_file:
            data["footers"] = write_footers(staging.new / split, data["parts"])
        data["profile"] = publish_profile(request, split, staging.new / split)
        data["seconds"] = round(time.time() - plans.data["started"], 3)  # so far: the report shows it
    paths = [plain_url(path) for path in (*list_paths(request), *(upstream or ()))]
    if closing and closing.report:
        closing.report.upstream = paths
        closing.report.write(staging.new, results, manifests, bound, state.values)
    for split, data in manifests.items():
        data["seconds"] = round(time.time() - plans.data["started"], 3)  # with the time that the report took
        manifests[split] = seal(data)
        write_json(staging.new / split / MANIFEST, manifests[split])
    if upstream is not None:
        write_publication(request, manifests, paths, train)
    staging.check_owner(request.owner)
    check_not_discarded(request)
    path = publish(staging, output, anew=request.no_base)
    return [Manifest(str(path / split), data) for split, data in manifests.items()]


def commit_fitted(request: Request, gate: Mapping[str, Any] = NO_GATE) -> str:
    """Publish what was learned as the folder of a fitted workflow; return its path."""
    staging = request.staging
    staging.reset()
    with no_space(staging.new):
        _save_fitted(request, State.load_heads(staging.folder / "state"), staging.new)
        if gate:
            write_json(staging.new / GATE, gate)
        for path in [*staging.new.iterdir(), staging.new]:
            flush(path)
    staging.check_owner(request.owner)
    check_not_discarded(request)
    return str(publish(staging, request.output, anew=request.no_base))


def _save_fitted(request: Request, state: State, folder: Path) -> None:
    """Save the fitted workflow with the rules by which its rows were read; an applied one keeps those of its fit."""
    plans = SavedPlans(request)
    plan = plans.plan(request.splits[0])
    if request.base:
        schema = with_read_types(base_schema(request, plan.schema), plan.schema)
    else:
        schema = request.fitted_schema if request.fitted else choose_graph_and_schema(request, plan.schema)[1]
    reading = request.fit.reading if request.fit else {**plan.reading, **rows_of(request.source)}
    is_fit = request.flow == "fit"
    origin = request.origin
    notes = FittedOrigin(
        reading=reading,
        made_up=_select_learned_samples(request, plans.made_up),
        dated=request.dated if is_fit else None,
        history=None if request.fitted else history_of(request, state.values),
        gate=request.gate_note if is_fit else {},
        ancestors=origin.ancestors if origin else (),
        ids_since=origin.ids_since if origin else {},
    )
    save_fitted(request.final, schema, state, folder, notes, request.staging.folder / "state")


def _select_learned_samples(request: Request, samples: Sequence[JsonObject]) -> list[JsonObject]:
    """Select the look-alike data from which the workflow has learned, among all that the run has to do with.

    Samples with the key `of` are validation data. Those with `fit` are what the workflow that the run begins with was
    fitted on; the others are in the source. An applied workflow has learned from the former, a fit learns from the
    latter, a refit from both.
    """
    training = [sample for sample in samples if "of" not in sample]
    if not request.base:
        training = [sample for sample in training if bool(sample.get("fit")) == bool(request.fitted)]
    return [{name: value for name, value in sample.items() if name != "fit"} for sample in training]


def _remove_stray_files(staging: Staging, parts: set[Path]) -> None:
    """Remove the files of the new output that are not among its parts, and empty folders.

    Killed workers and earlier jobs may leave some.
    """
    folder = staging.new
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.relative_to(folder) not in parts:
            staging.discard(path)


def _make_manifest(
    request: Request, results: Sequence[StageResult], written: WriteResult, bound: Bound, run_id: str, plans: SavedPlans
) -> JsonObject:
    """Make the manifest of one split; `results` are the results of its stages."""
    plan = plans.plan(written.split)
    _check_rows(plan.rows, written)
    state = next((result.digest for result in results if isinstance(result, StatisticsResult)), "")
    transformed = next((result for result in results if isinstance(result, TransformResult)), None)
    left_out = next((result.left_out for result in results if isinstance(result, IngestResult)), "")
    stages = {result.stage: _make_stage_entry(result) for result in results}
    job = request.parts_fingerprint()
    labels = [name for name in request.labels if name in bound.output]
    differs = list_differences(request, plan)
    return describe_output(
        plan.numbered_rows,
        transformed.other_splits if transformed else None,
        written.parts,
        bound.output,
        request.output,
        request.engine,
        run=run_id,
        labels=labels,
        fingerprints={"job": job, "source": plan.fingerprint, "state": state},
        exchange=transformed.exchange if transformed else "memory",
        seconds=0.0,
        **total_resources(results),
        stages=stages,
        reading={**plan.reading, **rows_of(request.source)},
        **leave_out_empty(
            {
                "differs_from_fit": differs,
                "splits": list(request.splits) if request.source.split else [],
                "row_rules": _describe_row_rules(request, transformed, plans, written.split),
                "united": plans.data.get("united"),
                "bad_lines": _list_bad_lines(plans, written.split),
                "made_up": plans.made_up,
                "left_out": left_out.split(", ") if left_out else [],
                "dated": request.dated,
                "table": plans.table(written.split),
            }
        ),
        **request.gate_note,
        **base_note(request),
    )


def _list_bad_lines(plans: SavedPlans, split: str) -> list[JsonObject]:
    """List the files of a split of which lines were left out: how many, and the first one with the reason."""
    shown = ("path", "count", "line", "why")
    return [{name: file[name] for name in shown} for file in plans.bad_lines(split)]


def _describe_row_rules(
    request: Request, transformed: TransformResult | None, plans: SavedPlans, split: str
) -> JsonObject:
    """Describe `source.unique`, `split` and `downsample`, and how many rows each left out of this split."""
    counts = {name: getattr(transformed, name, None) for name in ("downsampled", "other_splits", "null_in_train")}
    rules = describe_rules(request.source, plans.count_repeated_rows(split), plans.division)
    return add_rule_counts(rules, {name: count for name, count in counts.items() if count is not None})


def _make_stage_entry(result: StageResult) -> JsonObject:
    """Make the entry of a stage in the manifest."""
    return {
        "seconds": round(result.seconds, 3),
        "rows": result.rows,
        "bytes": result.nbytes,
        "retries": result.retries,
        **result.resources,
        **leave_out_empty({"halved": result.halved or None, "failed_casts": list(result.failed_casts)}),
    }


def _check_rows(rows: int, written: WriteResult) -> None:
    """Check that all rows of the plan were transformed, and that all transformed rows are in the files."""
    for verb, count, wanted in (("transformed", written.rows_in, rows), ("written", written.rows, written.rows_out)):
        if count != wanted:
            raise DataError(
                f"{count:,} of {wanted:,} rows were {verb}",
                why="the output would not be whole",
                do="run the same job again; if the error persists, report it",
            )


def describe_output(
    rows_in: int,
    other_splits: int | None,
    records: Sequence[PartRecord],
    schema: Schema,
    output: Output,
    engine: str,
    **more: Any,
) -> JsonObject:
    """Describe an output: the content of its manifest.

    Of the `rows_in` of the source, `other_splits` belong to other splits (None for a source that is not divided).
    `more` are further keys of the manifest, as they are: `fingerprints`, `stages`, `reading`, ..; among them `run` and
    `labels`, which have defaults.
    """
    rows_out = sum(r["rows"] for r in records)
    split_rows = rows_in - (other_splits or 0)
    rows = {"in": rows_in}
    if other_splits is not None:
        rows["other_splits"] = other_splits
    files: JsonObject = {"files": len({Path(r["path"]).name for r in records})}
    if output.chooses_files:
        files["files_chosen"] = {"rows": rows_out, "row_bytes": row_width(schema)}
    rows |= {"dropped": max(split_rows - rows_out, 0), "added": max(rows_out - split_rows, 0), "out": rows_out}
    return {
        "format": FORMAT,
        "rowmill": rowmill_version(),
        "run": more.pop("run", ""),
        "created": datetime.now(UTC).isoformat(timespec="microseconds"),  # equal rows of one second are two outputs
        "rows": rows,
        "parts": list(records),
        "schema": to_stored_schema(schema, output).to_json(),
        "labels": list(more.pop("labels", ())),
        "output": output.model_dump(exclude={"path"}) | files,
        "seed": output.seed,
        "permutation": PERMUTATION_VERSION,
        "versions": versions(),
        "engine": engine,
        **more,
    }
