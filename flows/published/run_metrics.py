"""The figures of a run as metrics, exported once at its end: by OpenTelemetry, or to a file of Prometheus."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from flows.published.observed_run import WAIT_SECONDS, ObservedRun
from tasks.cluster import usage
from tasks.core.stage_results import StageResult
from tasks.core.versions import rowmill_version
from tasks.manifest import Manifest
from tasks.storage.signature import add_signature

VERDICTS = ("pass", "warn", "published by hand", "ask", "stop")
SUFFIXES = {"s": "_seconds", "By": "_bytes", "1": "_ratio", "J": "_joules"}  # of Prometheus, by unit
USED = {  # what a stage took, as far as it is known: name, unit, meaning
    "core_seconds": ("cpu_time", "s", "CPU time of the workers"),
    "gpu_seconds": ("gpu_time", "s", "time that the GPUs were used"),
    "energy_joules": ("energy", "J", "energy of the GPUs"),
    "cost": ("cost", "{price}", "run.price_per_hour times the hours of the stage"),
    "storage_gets": ("storage_gets", "{request}", "requests to storages that read files"),
    "storage_lists": ("storage_lists", "{request}", "requests to storages that list files"),
    "storage_heads": ("storage_heads", "{request}", "requests to storages that describe a file"),
    "storage_puts": ("storage_puts", "{request}", "requests to storages that write files"),
    "storage_deletes": ("storage_deletes", "{request}", "requests to storages that delete files"),
    "storage_bytes_read": ("storage_read", "By", "bytes that were read from storages"),
    "storage_bytes_written": ("storage_written", "By", "bytes that were written to storages"),
    "storage_cost": ("storage_cost", "{price}", "run.storage_price times requests and bytes"),
}


@dataclass(frozen=True)
class Metric:
    """A figure of a run: its name and unit as OpenTelemetry has them, what it is, and what it is of."""

    name: str
    unit: str
    text: str
    value: float
    of: dict[str, str] = field(default_factory=dict)


def begin(run: ObservedRun) -> None:
    """Import the library of the export while the run works."""
    _exporter(run)


def end(run: ObservedRun) -> Callable[[], None]:
    """Collect the figures of a run; return what exports them."""
    metrics = [*_of_run(run), *(metric for result in run.results for metric in _of_stage(run, result))]
    return lambda: _exporter(run)(metrics)


def _of_stage(run: ObservedRun, result: StageResult) -> Iterator[Metric]:
    workers = run.samples.get(result.title, {})
    spilled = [max((s.to_host + s.to_disk for s in one["samples"]), default=0) for one in workers.values()]
    figures = [
        ("rows", "{row}", "rows that the stage has processed", result.rows),
        ("size", "By", "bytes that the stage has processed", result.nbytes),
        ("duration", "s", "time that the stage took", result.seconds),
        ("reused", "{stage}", "1 if an earlier start had done the work", result.reused),
        ("retries", "{retry}", "attempts after the first one", result.retries),
        ("halvings", "{halving}", "partitions and files that were halved because memory was short", result.halved or 0),
        ("spilled", "By", "most bytes that lay spilled to the host or to disk, of all workers", sum(spilled)),
        ("moved", "By", "bytes that workers sent to each other", sum(usage.sum_sent_bytes(workers).values())),
    ]
    used = [(*USED[name], value) for name, value in result.resources.items()]
    for name, unit, text, value in [*(figures if workers else figures[:-2]), *used]:
        yield Metric(f"rowmill.stage.{name}", unit, text, value, {"stage": result.stage, "split": result.split})


def _of_run(run: ObservedRun) -> Iterator[Metric]:
    now = datetime.now(UTC)
    request = run.request
    profile = run.profile
    verdict = run.gate and run.gate.gate
    yield Metric("rowmill.run.success", "{run}", "1 if the run has ended well", run.end == "COMPLETE")
    yield Metric("rowmill.run.duration", "s", "time that the run took", (now - run.began).total_seconds())
    yield Metric("rowmill.run.end", "s", "when the run ended, since 1970", now.timestamp())
    if run.deadline:
        late = (now - run.deadline).total_seconds()
        yield Metric("rowmill.run.lateness", "s", "time since run.ready_by; negative if the run is early", late)
    for one in VERDICTS if verdict else ():
        yield Metric("rowmill.gate.verdict", "{run}", "1 for the verdict of the gate", one == verdict, {"verdict": one})
    for step in profile.steps.values() if profile else ():
        if step.out_of_vocabulary is not None:
            yield Metric(
                "rowmill.out_of_vocabulary",
                "1",
                "share of the values that have no id",
                step.out_of_vocabulary / max(step.rows, 1),
                {"columns": ", ".join(step.columns)},
            )
    for split, folder in zip(request.splits, run.committed if request.flow != "fit" else (), strict=False):
        manifest = Manifest.load(folder)
        for name, rows in manifest.rows.items():
            what = "rows in, of other splits, dropped, added and out"
            yield Metric("rowmill.output.rows", "{row}", what, rows, {"split": split, "rows": name})
        size = sum(part["bytes"] for part in manifest.parts)
        yield Metric("rowmill.output.size", "By", "bytes of the files", size, {"split": split})


def _exporter(run: ObservedRun) -> Callable[[Sequence[Metric]], None]:
    """Return what exports metrics to the address in `run.metrics`."""
    address = str(run.request.run.metrics)
    of = {"output": run.name, "flow": run.flow}
    if file := run.files.get("metrics"):
        from prometheus_client import CollectorRegistry, Gauge, generate_latest

        def to_file(metrics: Sequence[Metric]) -> None:
            registry = CollectorRegistry()
            gauges = dict[str, Any]()
            for one in metrics:
                name = one.name.replace(".", "_") + SUFFIXES.get(one.unit, "")
                labels = of | one.of
                if name not in gauges:
                    gauges[name] = Gauge(name, one.text, [*labels], registry=registry)
                gauges[name].labels(**labels).set(one.value)
            with file.replace() as written:
                written.write(add_signature(generate_latest(registry)))

        return to_file
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
    from opentelemetry.sdk.resources import Resource

    from flows.published.collector_session import CollectorSession

    logging.getLogger(OTLPMetricExporter.__module__.rpartition(".")[0]).setLevel(logging.CRITICAL)  # it is said below
    url = address.replace("otlp", "http", 1).rstrip("/")
    exporter = OTLPMetricExporter(f"{url}/v1/metrics", timeout=WAIT_SECONDS, session=CollectorSession())

    def to_collector(metrics: Sequence[Metric]) -> None:
        reader = InMemoryMetricReader()
        resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "rowmill")})
        provider = MeterProvider([reader], resource, shutdown_on_exit=False)
        meter = provider.get_meter("rowmill", rowmill_version())
        gauges = dict[str, Any]()
        for one in metrics:
            if one.name not in gauges:
                gauges[one.name] = meter.create_gauge(one.name, one.unit, one.text)
            gauges[one.name].set(float(one.value), of | one.of)
        data = reader.get_metrics_data()
        result = exporter.export(data) if data else MetricExportResult.SUCCESS
        exporter.shutdown()
        provider.shutdown()
        if result is not MetricExportResult.SUCCESS:
            raise OSError("nothing there takes metrics over HTTP")

    return to_collector
