"""What a run leaves for people: samples in artifacts and reports, links, and a command that finds the report."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from typer.testing import CliRunner

from tasks.cluster import monitor, usage
from tasks.core.stage_results import RESOURCES
from tasks.errors import GiveUpError
from tasks.job.output_check import list_damages
from tasks.manifest import Manifest
from tasks.report.html import reports_of
from tasks.stages import commit
from tests.flows.runs import key_of, run_flow
from tests.flows.test_preprocess import job, logs

pytestmark = pytest.mark.xdist_group("flows")
STAGES = ("ingest", "statistics", "transform", "shuffle-write")


@pytest.fixture(scope="module")
def outs(tmp_path_factory: pytest.TempPathFactory, prefect_server: Any, cluster: Any) -> list[Path]:
    """The outputs of a run with train and valid that was asked for Dask's own report, too."""
    folder = tmp_path_factory.mktemp("reported")
    source = {"path": str(logs(folder / "data", 0, 3000)), "valid": str(logs(folder / "valid", 3000, 600))}
    return run_flow({**job(folder, **source), "run": {"performance_report": True, "price_per_hour": 36}}, cluster)


@pytest.fixture(scope="module")
def artifacts(outs: list[Path]) -> dict[str, list[Any]]:
    """What the run published, by key without what all keys begin with."""
    from prefect import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

    run = UUID(Manifest.load(outs[0]).data["run"])
    with get_client(sync_client=True) as api:
        found = api.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run])))
    begin = f"{key_of(outs[0].parent)}-"
    assert all(artifact.key.startswith(begin) for artifact in found)
    keys = {str(artifact.key) for artifact in found}
    return {key.removeprefix(begin): [a.data for a in found if a.key == key] for key in keys}


@pytest.fixture(scope="module")
def worker(engine: str) -> str:
    """What the only worker is called."""
    return "GPU worker 0" if engine == "cudf" else "worker 0"


@pytest.mark.promise("samples the workers and puts `_report.html` into the output")
def test_every_output_has_its_report_with_what_the_workers_did(outs: list[Path], worker: str) -> None:
    assert [out.name for out in outs] == ["train", "valid"]
    for out, rows in zip(outs, (3000, 600), strict=True):
        text = (out / "_report.html").read_text()
        assert f"<dd>{rows:,}</dd>" in text
        assert "<title>rows per second</title>" in text
        assert "<title>host memory</title>" in text
        for title in ("statistics", "transform train", "shuffle_write valid"):
            assert re.search(rf'<td class="name">{title}</td>\s*<td class="r">{worker}</td>', text)
        assert list_damages(out) == []


@pytest.mark.promise("The manifest and the report have these figures for each stage and for all stages together")
def test_the_manifest_says_what_the_stages_took(outs: list[Path], engine: str) -> None:
    names = {"core_seconds", "cost", *(("gpu_seconds", "energy_joules") if engine == "cudf" else ())}
    for out in outs:
        data = Manifest.load(out).data
        assert names == {name for name in RESOURCES if name in data}
        for name in names:
            parts = [stage[name] for stage in data["stages"].values() if name in stage]
            assert data[name] == pytest.approx(sum(parts), abs=1e-5)
            assert data[name] > 0
        assert len([stage for stage in data["stages"].values() if "core_seconds" in stage]) == 4
        assert data["cost"] <= 36 * data["seconds"] / 3600
        text = (out / "_report.html").read_text()
        assert f"<p>The stages together: {data['core_seconds']:,.1f} core seconds, " in text
        assert f"cost {data['cost']:,.4g}.</p>" in text


@pytest.mark.promise("A stage that a later start finds done has the figures of the start that did it")
def test_a_run_that_goes_on_has_the_figures_of_the_start_that_did_the_work(
    tmp_path: Path, prefect_server: Any, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> Any:
        raise GiveUpError("the disk is full", why="a test", do="free some space")

    wanted = job(tmp_path, path=str(logs(tmp_path / "data", 0, 3000)))
    with monkeypatch.context() as failing:
        failing.setattr(commit, "commit", full)
        with pytest.raises(GiveUpError):
            run_flow(wanted, cluster)
    samples = {path.stem: monitor.load(path) for path in tmp_path.rglob("samples/*.json")}
    (out,) = run_flow(wanted, cluster)
    stages = Manifest.load(out).data["stages"]
    assert len(samples) == len(stages) == 4
    for name, stage in stages.items():
        assert usage.measure_resources(samples[name])["core_seconds"] == stage["core_seconds"]
    (report,) = reports_of(out, again=True)
    text = report.read_text()
    assert f"<p>The stages together: {Manifest.load(out).data['core_seconds']:,.1f} core seconds" in text
    assert f'<td class="small">{stages["transform"]["core_seconds"]:,.1f} core seconds' in text


def test_a_report_loads_nothing_and_links_the_page_of_the_run(outs: list[Path]) -> None:
    text = (outs[0] / "_report.html").read_text()
    run = Manifest.load(outs[0]).data["run"]
    assert not re.findall(r"\b(?:src|srcset)=|@import|url\(", text)
    links = [link for link in re.findall(r'href="([^"]*)"', text) if not link.startswith("#")]
    assert len(links) == 2
    assert links[0].endswith(f"/runs/flow-run/{run}")
    assert links[1] == "../_performance.html"


@pytest.mark.promise("puts Dask's own report into the output, too", "flows/KEYS.md#run")
def test_the_report_of_dask_needs_no_network(outs: list[Path]) -> None:
    text = (outs[0].parent / "_performance.html").read_text()
    assert "Task Stream" in text
    assert not re.findall(r'<(?:script|link)[^>]*(?:src|href)="http', text)


def of_stage(artifacts: dict[str, Any], stage: str, kind: str) -> list[Any]:
    """One artifact, or one for train and one for valid, each under a key of its own."""
    keys = (
        [f"{stage}-{kind}"] if f"{stage}-{kind}" in artifacts else [f"{stage}-{s}-{kind}" for s in ("train", "valid")]
    )
    return [data for key in keys for data in artifacts[key]]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_shows_its_workers_and_its_workflow_and_stays_small(
    artifacts: dict[str, Any], worker: str, stage: str
) -> None:
    for text in of_stage(artifacts, stage, "summary"):
        assert f"| {worker} |" in text
        assert "![workflow](data:image/svg+xml;base64," in text
        assert re.search(r"\| began \| \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d UTC \|", text)
        assert len(text) < 100_000
        assert ("#### Files" in text) == (stage == "shuffle-write")
        assert "| reused |" not in text


BOTH = ["3,000", "600"]


@pytest.mark.parametrize(("stage", "rows"), [("statistics", BOTH[:1]), ("transform", BOTH), ("shuffle-write", BOTH)])
def test_the_rows_that_workers_count_are_those_of_the_stage(
    artifacts: dict[str, Any], worker: str, stage: str, rows: list[str]
) -> None:
    texts = of_stage(artifacts, stage, "summary")
    assert sorted(re.findall(rf"\| {worker} \| \d+ \| ([\d,]+) \|", "".join(texts))) == rows
    assert sorted(re.findall(r"\| rows \| ([\d,]+) \|", "".join(texts))) == rows


@pytest.mark.promise("The log has a line at the beginning and the end of each stage; Dask's own chatter is left out")
def test_the_log_of_a_run_has_a_line_of_each_stage_and_none_of_dask(
    artifacts: dict[str, Any], outs: list[Path]
) -> None:
    from prefect import get_client
    from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId

    wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[UUID(Manifest.load(outs[0]).data["run"])]))
    titles = ("ingest", "statistics", "transform train", "shuffle_write valid")
    lines = [f(title) for title in titles for f in (r"{} on 1 worker\(s\) with \d+ threads".format,
                                                    r"{}: [\d,]+ rows in .*".format)]  # fmt: skip
    deadline = time.monotonic() + 60  # flow and workers each send their lines some seconds later, in batches
    with get_client(sync_client=True) as api:
        while True:
            logs = api.read_logs(log_filter=wanted)
            of_tasks = [entry.message for entry in logs if entry.name == "prefect.task_runs"]
            missing = [line for line in lines if not any(re.fullmatch(line, m) for m in of_tasks)]
            if not missing or time.monotonic() > deadline:
                break
            time.sleep(0.5)
    assert not missing
    assert not [entry for entry in logs if entry.name.startswith(("distributed", "dask")) or entry.level > 20]


@pytest.mark.promise("and the outputs and their reports afterwards")
def test_the_links_of_a_run_are_its_outputs_and_reports_when_it_is_done(
    artifacts: dict[str, Any], outs: list[Path]
) -> None:
    (text,) = artifacts["links"]
    assert "dashboard" not in text
    for out in outs:
        assert f"Output: `{out}`" in text
        assert f"Report: `rowmill report {out} --open`" in text
    assert "file://" not in text  # a page that is served over HTTP cannot follow it


@pytest.mark.promise("where the HTML report is; made anew if it is missing")
def test_the_command_says_where_reports_are_and_makes_missing_ones(outs: list[Path]) -> None:
    from rowmill.cli import app

    (outs[1] / "_report.html").unlink()
    done = CliRunner().invoke(app, ["report", str(outs[0].parent)])
    assert done.exit_code == 0
    assert done.output.split() == [str(out.resolve() / "_report.html") for out in outs]
    assert "<title>valid: report of rowmill</title>" in (outs[1] / "_report.html").read_text()

    failed = CliRunner().invoke(app, ["report", str(outs[0].parent.parent / "data")])
    assert failed.exit_code == 1
    assert "this is not an output of rowmill" in failed.output


def test_an_output_with_its_reports_may_be_replaced(outs: list[Path]) -> None:
    from tasks.storage.own_files import own_output

    assert own_output(outs[0].parent)
