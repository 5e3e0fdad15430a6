"""The lineage of a run as events of OpenLineage: START, then COMPLETE, FAIL or ABORT, with what it read and wrote."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from openlineage.client import event_v2 as event
from openlineage.client import facet_v2 as facet
from openlineage.client.serde import Serde
from openlineage.client.transport.http import HttpConfig, HttpTransport
from openlineage.client.uuid import generate_static_uuid

from flows.published.collector_session import CollectorSession
from flows.published.observed_run import ObservedRun
from infra.orchestration.server import ui_url
from tasks.core.dtypes import dtype_name
from tasks.core.redaction import plain_url
from tasks.core.schema import ROW, Schema
from tasks.core.versions import rowmill_version
from tasks.engines.expression.syntax import parse
from tasks.gate.notes import GateNote
from tasks.graph.column_lineage import INDIRECT, ColumnLineage, ColumnOrigin
from tasks.graph.saved_workflow import load_fitted
from tasks.job.publication import list_paths, list_source_paths
from tasks.job.request import Request
from tasks.job.run_date import parse_run_date
from tasks.manifest import Manifest
from tasks.profile.output_profile import ColumnProfile, Profile
from tasks.storage.files import is_remote, local_path
from tasks.storage.output_mirror import address_of
from tasks.storage.own_files import SPLITS, VERSION, find_description

ANSWER_SECONDS = 5.0  # in which a collector takes an event, while the run goes on
QUANTILES = (0.25, 0.5, 0.75)
VERSIONED = re.compile(rf"(.+)/({VERSION.pattern})((?:/(?:{'|'.join(SPLITS)}))?)")  # of a version, or a split of it
D = TypeVar("D", event.InputDataset, event.OutputDataset)
event.set_producer(f"pkg:pypi/rowmill@{rowmill_version()}")


def begin(run: ObservedRun) -> None:
    """Send START."""
    inputs = [_dataset(event.InputDataset, path) for path in list_paths(run.request)]
    _send(run, _event(run, event.RunState.START, inputs, []))


def end(run: ObservedRun) -> Callable[[], None]:
    """Make the last event of a run, by what it has published, else by what the gate knows; return what sends it."""
    request = run.request
    profile = run.profile
    lineage = ColumnLineage(load_fitted(run.first, heads=True).bound) if run.first else None
    columns = {one.name: one.type for one in profile.columns.values()} if profile else {}
    if lineage:
        columns = {c.name: dtype_name(c.dtype) for c in lineage.bound.source.columns if c.name != ROW}
    source = request.source
    inputs = []
    for path in list_paths(request):
        is_source = path in list_source_paths(source.path, source.valid) and columns
        facets = {"schema": _schema(columns)} if is_source else {}
        one = _dataset(event.InputDataset, path, **facets)
        if [path] == list_source_paths(source.path) and profile:  # the figures are of all paths together
            one.inputFacets = _quality(profile, run.gate)
        inputs.append(one)
    splits = request.splits if request.flow != "fit" else ("",)
    outputs = [
        _output(request, split, folder, lineage)
        for split, folder in zip(splits, run.committed, strict=False)
        if lineage
    ]
    return partial(_send, run, _event(run, event.RunState[run.end], inputs, outputs))


def name_of(path: str) -> tuple[str, str]:
    """Return namespace and name of the dataset at a path, as the conventions of OpenLineage have them.

    >>> name_of("/data/out"), name_of("s3://shop/in/*.csv")
    (('file', '/data/out'), ('s3://shop', 'in/*.csv'))
    """
    if not is_remote(path):
        return "file", local_path(path)
    scheme, _, rest = plain_url(path).partition("://")
    host, _, name = rest.partition("/")
    return f"{scheme}://{host}", name or "/"


def _dataset(kind: type[D], path: str, **facets: Any) -> D:
    """Return the dataset at a path; for a version of an output that of the output, with the version as a facet."""
    match = VERSIONED.fullmatch(path)
    if match and find_description(Path(match[1], match[2])):
        path = match[1] + match[3]
        facets["version"] = facet.dataset_version_dataset.DatasetVersionDatasetFacet(match[2])
    return kind(*name_of(path), facets=facets)


def _event(
    run: ObservedRun, state: event.RunState, inputs: list[event.InputDataset], outputs: list[event.OutputDataset]
) -> event.RunEvent:
    request = run.request
    facets: dict[str, Any] = {
        "processing_engine": facet.processing_engine_run.ProcessingEngineRunFacet(rowmill_version(), "rowmill")
    }
    if run.flow_run:
        parent = facet.parent_run.Job(plain_url(ui_url()) or "prefect", run.flow)
        facets["parent"] = facet.parent_run.ParentRunFacet(facet.parent_run.Run(run.flow_run), parent)
    dated = request.dated
    if nominal := parse_run_date(dated["run_date"], dated["timezone"]).time if dated else run.scheduled:
        facets["nominalTime"] = facet.nominal_time_run.NominalTimeRunFacet(nominal.isoformat())
    if run.error:
        message = plain_url(str(run.error) or type(run.error).__name__)
        facets["errorMessage"] = facet.error_message_run.ErrorMessageRunFacet(message, "python")
    kind = facet.job_type_job.JobTypeJobFacet(processingType="BATCH", integration="ROWMILL", jobType="JOB")
    return event.RunEvent(
        eventType=state,
        eventTime=datetime.now(UTC).isoformat(),
        inputs=inputs,
        outputs=outputs,
        run=event.Run(str(generate_static_uuid(run.began, f"{run.flow_run} {run.name}".encode())), facets),
        job=event.Job(os.environ.get("OPENLINEAGE_NAMESPACE", "rowmill"), run.name, {"jobType": kind}),
    )


def _output(request: Request, split: str, folder: str, lineage: ColumnLineage) -> event.OutputDataset:
    """Return the dataset of a split that is published, or of a fitted workflow, which has no rows."""
    schema = lineage.bound.output
    statistics = dict[str, Any]()
    if request.flow != "fit":
        manifest = Manifest.load(folder)
        schema = manifest.schema
        parts = manifest.parts
        kind = facet.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
        nbytes = sum(part["bytes"] for part in parts)
        statistics = {"outputStatistics": kind(manifest.rows["out"], nbytes, len(parts))}
    facets = {
        "schema": _schema({c.name: dtype_name(c.dtype) for c in schema.columns}),
        "columnLineage": _column_lineage(request, split, schema, lineage),
    }
    one = _dataset(event.OutputDataset, address_of(folder), **facets)
    one.outputFacets = statistics
    return one


def _schema(columns: dict[str, str]) -> facet.schema_dataset.SchemaDatasetFacet:
    one = facet.schema_dataset.SchemaDatasetFacetFields
    return facet.schema_dataset.SchemaDatasetFacet([one(name, kind) for name, kind in columns.items()])


def _column_lineage(
    request: Request, split: str, schema: Schema, lineage: ColumnLineage
) -> facet.column_lineage_dataset.ColumnLineageDatasetFacet:
    """Which columns of the source and of side tables a split's columns come from, and by which operators."""
    source = request.source
    kinds = facet.column_lineage_dataset
    train = list_source_paths(source.path)
    read = list_source_paths(source.valid) if split == "valid" and source.valid else train

    def where(path: str) -> tuple[str, str]:
        one = _dataset(event.InputDataset, path)
        return one.namespace, one.name

    def fields(origins: Iterable[ColumnOrigin]) -> list[facet.column_lineage_dataset.InputField]:
        how_by: dict[tuple[str, str], list[Any]] = {}
        for origin in origins:
            learned = [] if request.fitted else train  # what is applied was learned by another run
            paths = [origin.file] if origin.file else learned if origin.influence == "AGGREGATION" else read
            directness = "INDIRECT" if origin.influence in INDIRECT else "DIRECT"
            how = kinds.Transformation(directness, origin.influence, " > ".join(lineage.operators(origin)) or None)
            for path in paths:
                how_by.setdefault((path, origin.column), []).append(how)
        return [kinds.InputField(*where(path), name, how) for (path, name), how in how_by.items()]

    filtered = parse(source.filter).columns if source.filter else ()
    of_rows = [*(ColumnOrigin(name, influence="FILTER") for name in filtered), *lineage.of_rows()]
    columns = {name: kinds.Fields(fields(origins)) for name, origins in lineage.outputs().items() if name in schema}
    return kinds.ColumnLineageDatasetFacet(columns, fields(of_rows))


def _quality(profile: Profile, note: GateNote | None) -> dict[str, Any]:
    """Return the figures of the columns that were read, and the findings of the gate."""
    by_column = {name: _make_column_metrics(column) for name, column in profile.columns.items()}
    figures = facet.data_quality_metrics_input_dataset.DataQualityMetricsInputDatasetFacet(by_column, profile.rows)
    if note is None:
        return {"dataQualityMetrics": figures}
    kinds = facet.data_quality_assertions_dataset
    tests = [kinds.Assertion("gate", note.gate in ("pass", "warn", "published by hand"), description=note.gate)]
    for one in (finding for verdict in note.verdicts.values() for finding in verdict.findings):
        tests.append(
            kinds.Assertion(
                one.check,
                False,
                one.column or None,
                "warn" if one.level == "warn" else "error",
                description=one.text,
                expected=str(one.threshold),
                actual=str(one.figure),
            )
        )
    return {"dataQualityMetrics": figures, "dataQualityAssertions": kinds.DataQualityAssertionsDatasetFacet(tests)}


def _make_column_metrics(column: ColumnProfile) -> facet.data_quality_metrics_input_dataset.ColumnMetrics:
    extremes = {
        name: float(value)
        for name, value in (("min", column.minimum), ("max", column.maximum))
        if isinstance(value, (int, float))
    }
    return facet.data_quality_metrics_input_dataset.ColumnMetrics(
        nullCount=column.nulls,
        distinctCount=round(column.distinct) if column.is_distinct_known else None,
        count=column.values,
        **extremes,
        quantiles={str(q): column.quantile(q) for q in QUANTILES} if column.bins and extremes else None,
    )


def _send(run: ObservedRun, message: event.RunEvent) -> None:
    address = str(run.request.run.lineage)
    if file := run.files.get("lineage"):
        file.append(Serde.to_json(message).encode("utf-8") + b"\n")
        return
    key = os.environ.get("OPENLINEAGE_API_KEY")
    auth = {"auth": {"type": "api_key", "api_key": key}} if key else {}
    endpoint = {"endpoint": name} if (name := os.environ.get("OPENLINEAGE_ENDPOINT")) else {}
    url = f"{address.rstrip('/')}/"
    transport = HttpTransport(
        HttpConfig.from_dict({"url": url, "timeout": ANSWER_SECONDS, "retry": {"total": 0}, **auth, **endpoint})
    )
    transport.session = CollectorSession()
    try:
        transport.emit(message)
    finally:
        transport.close()
