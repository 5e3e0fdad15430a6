"""Look-alike data are made only where somebody wants them, and marked wherever their rows go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from flows.commands.inspect import show_folder
from flows.job import parameters
from flows.job.job import RECIPES, Job, load_job, make_job, overlay_job
from flows.preview.job_preview import preview
from flows.preview.preview_text import sections
from flows.sample import make_sample
from infra.orchestration.deployment_file import FILE
from tasks.errors import JobError
from tasks.graph.saved_workflow import read_fitted
from tasks.manifest import Manifest
from tests.flows.runs import key_of, run_any
from tests.stages import Report, run_stages

pytestmark = pytest.mark.xdist_group("flows")
TOY = {"name": "toy", "rows": 1000}


def written(folder: Path, text: str) -> Path:
    (folder / "job.yaml").write_text(text)
    return folder / "job.yaml"


def sample_of(job: Job) -> tuple[Any, Any, Any]:
    """(path, valid, what is made: rows and whether at valid too) of a job."""
    sample = job.source.sample
    return job.source.path, job.source.valid, sample and (sample.rows, sample.valid)


# where they are made


@pytest.mark.promise("a path that replaces it never makes data")
def test_a_recipe_makes_them_at_its_own_path_alone() -> None:
    shop = "data/ecommerce"
    own = (f"{shop}/train", f"{shop}/valid", (1_000_000, True))
    assert sample_of(load_job("ecommerce")) == own
    assert sample_of(load_job("ecommerce", ["output.seed=3"])) == own
    assert sample_of(load_job("ecommerce", [f"source.path={shop}/train"])) == own
    assert sample_of(make_job({"recipe": "ecommerce"})) == own
    assert sample_of(load_job("ecommerce", ["source.sample.rows=5"]))[2] == (5, True)

    assert sample_of(load_job("ecommerce", ["source.path=typo"])) == ("typo", None, None)
    assert sample_of(make_job({"recipe": "ecommerce", "source": {"path": "typo"}})) == ("typo", None, None)
    assert sample_of(make_job({"recipe": "ecommerce", "source": {"path": ["a", "b"]}})) == (["a", "b"], None, None)
    mine = load_job("ecommerce", ["source.path=typo", "source.valid=mine"])
    assert sample_of(mine) == ("typo", "mine", None)
    assert sample_of(load_job("ecommerce", ["source.valid=mine"]))[1:] == ("mine", (1_000_000, False))


@pytest.mark.promise("they are left out unless you give `--sample`", "flows/README.md#recipes")
def test_a_sample_that_is_written_with_a_path_counts(tmp_path: Path) -> None:
    job = written(tmp_path, "{recipe: toy, source: {path: mine, sample: {rows: 7}}}")
    assert sample_of(load_job(job)) == ("mine", None, (7, True))
    assert sample_of(load_job(job, ["source.path=typo"])) == ("typo", None, None)
    assert sample_of(load_job(job, ["source.path=typo", "source.sample.rows=8"])) == ("typo", None, (8, True))
    assert sample_of(load_job("toy", ["source.path=typo"], sample=True)) == ("typo", None, (1_000_000, True))
    with pytest.raises(JobError, match="the job names no sample"):
        load_job(written(tmp_path, "{source: {path: a}, features: [{columns: [x]}], output: {path: b}}"), sample=True)


def test_what_a_command_has_settled_stays_so_in_the_flow() -> None:
    for changes in ([], ["source.path=typo"], ["source.valid=mine"], ["source.path=t", "source.sample.rows=4"]):
        job = load_job("ecommerce", changes)
        again = make_job({"recipe": "ecommerce", **job.model_dump(by_alias=True, mode="json", exclude_unset=True)})
        assert sample_of(again) == sample_of(job)


def test_a_path_of_the_form_makes_none_of_a_deployments_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    deployed = {"recipe": "toy", "source": {"path": "data/toy", "sample": TOY}, "output": {"path": "out"}}
    monkeypatch.setattr(parameters, "_of_deployment", lambda: deployed)

    def of_form(**given: Any) -> tuple[Any, Any, Any]:
        return sample_of(make_job(parameters.job_data(given)))

    assert of_form() == ("data/toy", None, (1000, True))
    assert of_form(source={"path": "typo"}) == ("typo", None, None)
    assert of_form(source={"path": "new", "sample": {"rows": 9}}) == ("new", None, (9, True))


def test_the_shipped_deployments_that_make_them_say_so() -> None:
    for spec in yaml.safe_load(FILE.read_text())["deployments"]:
        given = spec.get("parameters") or {}
        base = yaml.safe_load((RECIPES / f"{given['recipe']}.yaml").read_text()) if "recipe" in given else {}
        if spec["name"] == "nightly":
            assert overlay_job(base, given)["source"]["sample"] == given["source"]["sample"]
    watched = {"recipe": "toy", "source": {"path": ["data/incoming/gone.parquet"]}, "output": {"path": "out"}}
    assert make_job(watched).source.sample is None


@pytest.mark.promise("a mistyped path is an error")
def test_a_mistyped_path_is_an_error_with_near_names_and_nothing_is_made(tmp_path: Path, run_alone: Any) -> None:
    make_sample("toy", tmp_path / "data" / "december", 10)
    data = {
        "recipe": "toy",
        "source": {"path": str(tmp_path / "data" / "decmber")},
        "output": {"path": str(tmp_path / "o")},
    }
    with pytest.raises(Exception, match=r"(?s)there is no input.*has no 'decmber', did you mean 'december'\?"):
        run_alone(data)
    with pytest.raises(JobError, match="there is no input"):
        preview(make_job(data))
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["december"]


def test_rubbish_in_the_folder_of_a_sample_is_not_read_as_its_rows(tmp_path: Path) -> None:
    make_sample("toy", tmp_path / "data", 10)
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "data" / "extra.parquet")
    (tmp_path / "data" / "_note.txt").write_text("mine")
    with pytest.raises(JobError, match=r"(?s)holds other files.*as its rows: extra\.parquet"):
        make_sample("toy", tmp_path / "data", 10)
    (tmp_path / "data" / "extra.parquet").unlink()
    assert make_sample("toy", tmp_path / "data", 10).rows == 10


# how they are marked


@pytest.mark.promise(
    "Made-up data are marked: in the log, the manifest (`made_up`), the report, by the tag `made-up-data` of the run"
)
def test_they_are_marked_in_all_that_a_run_leaves(tmp_path: Path, run_here: Any, caplog: Any, capsys: Any) -> None:
    from prefect import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

    from flows.apply import apply

    place = str(tmp_path / "data")
    (out,) = run_here({"recipe": "toy", "source": {"path": place, "sample": TOY},
                       "output": {"path": str(tmp_path / "out"), "files": 1}})  # fmt: skip
    pq.write_table(pq.read_table(f"{place}/part-00000.parquet").slice(0, 5), tmp_path / "real.parquet")
    application = {"fitted": str(out), "source": {"path": str(tmp_path / "real.parquet")},
                   "output": {"path": str(tmp_path / "applied"), "files": 1}}  # fmt: skip
    (applied,) = run_any(apply, application)
    text = f"look-alike data of toy (1000 rows, seed 0) in {place}"
    manifest, later = Manifest.load(out), Manifest.load(applied)

    assert manifest.data["made_up"] == [{"path": place, "name": "toy", "rows": 1000, "seed": 0}]
    assert later.data["made_up"] == [{"path": place, "name": "toy", "rows": 1000, "seed": 0, "fit": True}]
    assert read_fitted(out)["made_up"] == read_fitted(Path(applied))["made_up"] == manifest.data["made_up"]
    assert text in (out / "_workflow" / "README.md").read_text()
    for folder in (out, Path(applied)):
        assert f"<strong>Made-up data.</strong> {text}" in (folder / "_report.html").read_text()
    assert f"made-up data: {text}" in caplog.messages
    show_folder(out)
    assert f"made-up data: {text}" in capsys.readouterr().out.replace("\n", "")
    with get_client(sync_client=True) as api:
        for folder in (manifest, later):
            run = api.read_flow_run(folder.data["run"])
            assert "made-up-data" in run.tags
            assert run.state is not None
        own = ArtifactFilterFlowRunId(any_=[manifest_run(manifest)])
        artifacts = api.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=own))
    (ingest,) = [a for a in artifacts if a.key == f"{key_of(out)}-ingest-summary"]
    assert f"**Made-up data**: {text}." in ingest.data


def manifest_run(manifest: Manifest) -> Any:
    from uuid import UUID

    return UUID(manifest.data["run"])


def test_the_preview_says_what_is_made_up_and_what_will_be(tmp_path: Path) -> None:
    job = {
        "recipe": "toy",
        "source": {"path": str(tmp_path / "data"), "sample": TOY},
        "output": {"path": str(tmp_path / "o")},
    }
    before = {s.title: s.text for s in sections(preview(make_job(job)))}
    make_sample("toy", tmp_path / "data", 1000)
    after = {s.title: s.text for s in sections(preview(make_job(job)))}

    assert before["Made-up data"] == "look-alike data, which the run will make"
    assert after["Made-up data"] == f"look-alike data of toy (1000 rows, seed 0) in {tmp_path / 'data'}"


def test_data_that_are_not_made_up_are_not_marked(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.0, 2.0]}), tmp_path / "real.parquet")
    job = {"source": {"path": str(tmp_path / "real.parquet")}, "features": [{"columns": ["x"]}],
           "output": {"path": str(tmp_path / "out")}}  # fmt: skip
    run_stages(make_job(job).request("pandas"), plugins=[Report()])
    assert "made_up" not in Manifest.load(tmp_path / "out").data
    assert "made_up" not in json.loads((tmp_path / "out/_workflow/workflow.json").read_text())
    assert "Made-up data" not in (tmp_path / "out" / "_report.html").read_text()


@pytest.mark.promise("by the tag `made-up-data` of the run, in notifications")
def test_the_notification_of_a_failed_run_says_it(tmp_path: Path) -> None:
    import jinja2

    from infra.orchestration.deployments import AUTOMATIONS

    (payload,) = [
        spec["actions"][0]["payload"]
        for spec in yaml.safe_load(AUTOMATIONS.read_text())
        if spec["name"] == "rowmill-failed-runs"
    ]
    environment = jinja2.Environment()
    environment.filters["ui_url"] = lambda run: "http://page"
    said = {
        tags: json.loads(environment.from_string(payload).render(
            flow={"name": "preprocess"},
            flow_run={"name": "a", "tags": list(tags), "state": {"name": "Failed", "message": "no space"}},
        ))["text"]
        for tags in (("rowmill",), ("rowmill", "made-up-data"))
    }  # fmt: skip
    assert "made up" not in said["rowmill",]
    assert "data: made up" in said["rowmill", "made-up-data"].splitlines()
