"""What collectors hear of runs: lineage as OpenLineage's own schemas have it, figures over OTLP and in a file.

The schemas in `openlineage` are those of its repository (spec, of 1.54), with its license.
"""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import referencing
from rowmill.cli import app
from typer.testing import CliRunner

from flows.published import observers, wing
from tasks.errors import GateAskedError, GateStoppedError, GiveUpError, JobError
from tasks.manifest import Manifest
from tasks.run.plugin import CurrentRun
from tests.conftest import free_port
from tests.faults.jobs import make_data, make_job
from tests.faults.rounds import Rounds
from tests.flows.runs import call, loaded_by_a_run, run_flow
from tests.flows.test_gate import BAD, FOUND, GOOD, days, job_of, versions

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("published")]
SCHEMAS = Path(__file__).parent / "openlineage"
pytest.importorskip("openlineage.client", reason="needs openlineage-python: pip install '.[lineage]'")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs OpenTelemetry: pip install '.[metrics]'")


@cache
def schemas() -> referencing.Registry:
    contents = [json.loads(path.read_text()) for path in SCHEMAS.glob("*.json")]
    return referencing.Registry().with_resources(
        (one["$id"], referencing.Resource.from_contents(one)) for one in contents
    )


def valid(event: dict[str, Any]) -> dict[str, Any]:
    """The event, which is as the schemas of OpenLineage have it, with each of its facets."""

    def check(value: Any, url: str) -> None:
        kind = {"$ref": url}
        jsonschema.Draft202012Validator(
            kind, registry=schemas(), format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        ).validate(value)

    def facets(value: Any) -> Iterator[dict[str, Any]]:
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from facets(inner)
        if isinstance(value, dict) and "_schemaURL" in value:
            yield value

    check(event, event["schemaURL"])
    for facet in facets(event):
        assert facet["_producer"].startswith("pkg:pypi/rowmill@")
        check(facet, facet["_schemaURL"])
    return event


@contextmanager
def collector() -> Iterator[tuple[str, list[tuple[str, bytes, dict[str, str]]]]]:
    """The host and port of a collector, and what it got: path, body and headers of each request."""
    got: list[tuple[str, bytes, dict[str, str]]] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["Content-Length"])), dict(self.headers)))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}", got
        server.shutdown()


def lines(path: Path) -> list[dict[str, Any]]:
    return [valid(json.loads(line)) for line in path.read_text().splitlines()]


def told(event: dict[str, Any], output: int = 0) -> dict[str, list[str]]:
    """The column lineage of an output: `column of dataset, directness, subtype, operators` by its columns."""
    fields = event["outputs"][output]["facets"]["columnLineage"]["fields"]
    return {
        name: [
            f"{one['field']} of {Path(one['name']).name} {how['type']} {how['subtype']} {how.get('description', '')}"
            for one in field["inputFields"] for how in one["transformations"]
        ]
        for name, field in fields.items()
    }  # fmt: skip


# Lineage


@pytest.mark.promise(
    "sends the lineage of each run as events of OpenLineage", "flows/OPERATIONS.md#lineage-and-metrics"
)
def test_a_run_is_told_by_its_begin_and_its_end(
    tmp_path: Path, run_alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "word")
    days(tmp_path)
    with collector() as (address, got):
        [out] = run_alone(job_of(tmp_path, GOOD, "stop", lineage=f"http://{address}"))
    assert [(path, headers["Authorization"]) for path, _, headers in got] == [("/api/v1/lineage", "Bearer word")] * 2
    start, complete = (valid(json.loads(body)) for _, body, _ in got)
    manifest = Manifest.load(out)
    source, [part] = f"{tmp_path}/in/2026-11-20", manifest.parts

    assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == complete["run"]["runId"]
    assert start["job"]["name"] == complete["job"]["name"] == str(tmp_path / "out")
    parent = complete["run"]["facets"]["parent"]
    assert (parent["run"]["runId"], parent["job"]["name"]) == (manifest.data["run"], "preprocess")
    assert complete["run"]["facets"]["nominalTime"]["nominalStartTime"].startswith(GOOD)
    assert [(one["namespace"], one["name"]) for one in start["inputs"]] == [("file", source)]
    assert start["outputs"] == []

    [read], [written] = complete["inputs"], complete["outputs"]
    assert [(one["name"], one["type"]) for one in read["facets"]["schema"]["fields"]] == [
        ("x", "float64"), ("day", "string"),
    ]  # fmt: skip
    figures = read["inputFacets"]["dataQualityMetrics"]
    assert (figures["rowCount"], figures["columnMetrics"]["x"]["nullCount"]) == (3, 0)
    assert read["inputFacets"]["dataQualityAssertions"]["assertions"][0]["success"] is True
    assert (written["name"], written["facets"]["version"]["datasetVersion"]) == (str(tmp_path / "out"), "v0001")
    assert [one["name"] for one in written["facets"]["schema"]["fields"]] == ["x", "day"]
    statistics = written["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["size"], statistics["fileCount"]) == (3, part["bytes"], 1)
    assert told(complete) == {
        "x": ["x of 2026-11-20 DIRECT TRANSFORMATION Normalize"], "day": ["day of 2026-11-20 DIRECT IDENTITY "],
    }  # fmt: skip


def test_a_night_that_the_gate_stops_has_failed_assertions(tmp_path: Path, run_alone: Any) -> None:
    days(tmp_path)
    file = tmp_path / "lineage.jsonl"
    with pytest.raises(GateStoppedError):
        run_alone(job_of(tmp_path, BAD, "stop", lineage=f"file:{file}"))
    with pytest.raises(GateAskedError):
        run_alone(job_of(tmp_path, BAD, "ask", lineage=str(file)))
    start, failed, again, aborted = lines(file)
    assert [one["eventType"] for one in (start, failed, again, aborted)] == ["START", "FAIL", "START", "ABORT"]
    assert start["run"]["runId"] == failed["run"]["runId"] != again["run"]["runId"]
    assert FOUND in failed["run"]["facets"]["errorMessage"]["message"]
    _, finding = failed["inputs"][0]["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert (finding["success"], finding["column"], finding["severity"]) == (False, "x", "error")
    assert failed["outputs"] == []


def test_a_refit_names_its_base_and_a_split_its_own_rows(tmp_path: Path, run_alone: Any) -> None:
    from flows.apply import apply
    from flows.fit import fit
    from flows.refit import refit

    data, file = make_data(tmp_path / "in", files=1, rows=200), tmp_path / "lineage.jsonl"
    valid_data = str(make_data(tmp_path / "later", files=1, rows=50))
    job = make_job(data, tmp_path / "out", source={"valid": valid_data})
    job = {**job, "output": {**job["output"], "on_existing": "version"}, "run": {"lineage": str(file)}}
    run_alone(job)
    [_, complete] = lines(file)
    assert [Path(one["name"]).name for one in complete["outputs"]] == ["train", "valid"]
    train, later = told(complete, 0), told(complete, 1)
    assert {*train} == {*later}
    assert all(" of in " in text for texts in train.values() for text in texts)
    for texts in later.values():
        assert {text.split()[2] for text in texts if "AGGREGATION" not in text} == {"later"}
    out = str(tmp_path / "out")
    new = {"source": {"path": valid_data}, "run": {"lineage": str(file)}}
    call(refit, {"base": out, **new, "output": {"path": out, "on_existing": "version"}})
    applied = {"fitted": out, **new, "output": {"path": str(tmp_path / "applied"), "shuffle": "none"}}
    call(apply, applied)
    call(fit, {**job, "output": {"path": str(tmp_path / "fitted")}})
    ends = [one for one in lines(file) if one["eventType"] == "COMPLETE"]
    assert [one["run"]["facets"]["parent"]["job"]["name"] for one in ends] == ["preprocess", "refit", "apply", "fit"]
    assert [[Path(one["name"]).name for one in end["inputs"]] for end in ends] == [
        ["in", "later"], ["later", "out"], ["later", "out"], ["in"],
    ]  # fmt: skip
    assert "outputStatistics" not in ends[-1]["outputs"][0]["outputFacets"]
    assert {*told(ends[-1])} == {*train}

    printed = CliRunner().invoke(app, ["lineage", out]).output
    assert f"{out}/v0002: " in printed
    assert f"{out}/v0001: " in printed
    files = [path for folder in (data, valid_data) for path in Path(folder).iterdir()]
    assert [line.split(",")[0] for line in printed.splitlines() if line.startswith("learned: ")] == [
        f"learned: {path}" for path in files if path.suffix == ".parquet"
    ]
    one = next(iter(train))
    only = CliRunner().invoke(app, ["lineage", out, "--column", one]).output
    assert [line for line in printed.splitlines() if line.startswith(f"{one}: ")] == only.splitlines()
    (tmp_path / "out/v0001").rename(tmp_path / "elsewhere")
    assert f"{out}/v0001: removed since" in CliRunner().invoke(app, ["lineage", out]).output
    wrong = CliRunner().invoke(app, ["lineage", out, "--column", f"{one}x"])
    assert wrong.exit_code == 1
    assert "this is not an output of rowmill" in CliRunner().invoke(app, ["lineage", str(data)]).output


# Metrics


@pytest.mark.promise("sends the figures of each run", "flows/OPERATIONS.md#lineage-and-metrics")
def test_figures_reach_a_collector_of_opentelemetry(
    tmp_path: Path, cluster: Any, prefect_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=word")
    days(tmp_path)
    with collector() as (address, got):
        run_flow(job_of(tmp_path, GOOD, "stop", metrics=f"otlp://{address}", ready_by="23:59"), cluster)
    [(path, body, headers)] = got
    assert (path, headers["x-key"]) == ("/v1/metrics", "word")
    sent = ExportMetricsServiceRequest.FromString(body).resource_metrics[0]
    assert [(a.key, a.value.string_value) for a in sent.resource.attributes if a.key == "service.name"] == [
        ("service.name", "rowmill")
    ]
    figures: dict[str, dict[str, float]] = {}
    for metric in sent.scope_metrics[0].metrics:
        for point in metric.gauge.data_points:
            of = {one.key: one.value.string_value for one in point.attributes}
            assert (of.pop("output"), of.pop("flow")) == (str(tmp_path / "out"), "preprocess")
            figures.setdefault(metric.name, {})[" ".join(filter(None, of.values()))] = point.as_double or point.as_int
    assert figures["rowmill.stage.rows"] == {"ingest": 3, "statistics": 3, "transform": 3, "shuffle_write": 3}
    assert figures["rowmill.output.rows"] == {"in": 3, "dropped": 0, "added": 0, "out": 3}
    assert figures["rowmill.gate.verdict"]["pass"] == 1
    assert figures["rowmill.run.lateness"][""] < 0
    for name in ("size", "duration", "retries", "halvings", "spilled", "moved", "reused"):
        assert {*figures[f"rowmill.stage.{name}"]} == {"ingest", "statistics", "transform", "shuffle_write"}


def test_figures_lie_in_a_file_of_prometheus_also_of_a_run_that_fails(
    tmp_path: Path, cluster: Any, prefect_server: Any
) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    def read() -> dict[tuple[str, str], float]:
        text = (tmp_path / "run.prom").read_text()
        samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
        names = ("stage", "split", "verdict", "columns", "rows")
        return {(one.name, " ".join(filter(None, map(one.labels.get, names)))): one.value for one in samples}

    data = make_data(tmp_path / "in", files=1, rows=200)
    valid_data = str(make_data(tmp_path / "later", files=1, rows=50))
    job = make_job(data, tmp_path / "splits", source={"valid": valid_data})
    run_flow({**job, "run": {"metrics": f"file:{tmp_path}/run.prom", "profile": True}}, cluster)
    figures = read()
    assert figures["rowmill_run_success", ""] == 1
    assert (figures["rowmill_stage_rows", "transform train"], figures["rowmill_stage_rows", "transform valid"]) == (
        200,
        50,
    )
    assert figures["rowmill_stage_duration_seconds", "statistics"] > 0
    assert figures["rowmill_stage_cpu_time_seconds", "statistics"] > 0
    assert any(name == "rowmill_out_of_vocabulary_ratio" for name, _ in figures)
    days(tmp_path)
    with pytest.raises(GateStoppedError):
        run_flow(job_of(tmp_path, BAD, "stop", metrics=f"file:{tmp_path}/run.prom"), cluster)
    figures = read()
    assert (figures["rowmill_run_success", ""], figures["rowmill_gate_verdict", "stop"]) == (0, 1)
    assert ("rowmill_output_rows", "out") not in figures


# Both


@pytest.mark.promise(
    "A collector that is away costs a run less than a second and no byte", "flows/OPERATIONS.md#lineage-and-metrics"
)
def test_a_collector_that_is_away_or_silent_costs_nothing(
    tmp_path: Path, run_alone: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    class Timed(observers.CollectorsPlugin):
        def ended(self, run: CurrentRun, error: BaseException | None) -> None:
            began = time.monotonic()
            super().ended(run, error)
            waited.append(time.monotonic() - began)

    monkeypatch.setattr(wing, "PLUGINS", [Timed])
    monkeypatch.setattr(wing, "FLOW_PLUGINS", [])  # which would warn that there is no Prefect server
    days(tmp_path)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        digests = []
        for port in (None, free_port(), silent.getsockname()[1]):
            to = {"lineage": f"http://127.0.0.1:{port}", "metrics": f"otlp://127.0.0.1:{port}"} if port else {}
            [out] = run_alone(job_of(tmp_path, GOOD, "stop", **to))
            digests.append([part["xxh3_128"] for part in Manifest.load(out).parts])
            said = [one.getMessage() for one in caplog.records
                    if one.levelname in ("WARNING", "ERROR") and one.name != "asyncio"]  # fmt: skip
            assert [text.partition(":")[0] for text in said] == (["run.lineage", "run.metrics"] if port else [])
            caplog.clear()
    assert digests[0] == digests[1] == digests[2]
    assert max(waited) < 1.2, waited
    time.sleep(5)  # until the threads end


def test_without_collectors_nothing_is_imported(tmp_path: Path, rounds: Rounds) -> None:
    days(tmp_path)
    packages = ["openlineage", "opentelemetry.sdk", "opentelemetry.exporter", "flows.published"]
    asked = {"job": job_of(tmp_path, GOOD, "warn"), "packages": packages}
    ended = rounds.run(f"{loaded_by_a_run.__module__}:{loaded_by_a_run.__name__}", asked)
    modules = ["assets", "events", "observed_run", "observers", "outbox", "plugins", "unsent", "wing"]
    assert ended.answer == ["flows.published", *(f"flows.published.{name}" for name in modules)], rounds.says()
    assert versions(tmp_path) == {"v0001": GOOD}


def test_a_library_that_is_missing_is_an_error_before_work(
    tmp_path: Path, run_alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        raise observers.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(observers.importlib.metadata, "version", version)
    days(tmp_path)
    with pytest.raises(GiveUpError, match=r"openlineage-python is not installed[^$]*rowmill\[lineage\]"):
        run_alone(job_of(tmp_path, GOOD, "warn", lineage="http://127.0.0.1:1"))
    assert not (tmp_path / "out").exists()


def test_a_file_in_a_temporary_folder_of_prefect_is_refused(tmp_path: Path, run_alone: Any) -> None:
    days(tmp_path)
    file = tmp_path / "tmpab12cd34prefect" / "run.prom"
    with pytest.raises(JobError, match=r"run\.metrics would be lost"):
        run_alone(job_of(tmp_path, GOOD, "warn", metrics=f"file:{file}"))
