"""Deployments of a file of one's own: what a run needs is put in, its outputs stay, what left the file is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.commands.serve import describe_doubtful_jobs
from infra.orchestration.deployment_file import FOLDER, complete, read_file
from tasks.storage.staging import Staging
from tests.infra.elsewhere import until
from tests.infra.forking_worker import OWN
from tests.infra.operations import POOL, SMALL, deploy, final_state, folder_with_decoys
from tests.running import section_of

pytestmark = [pytest.mark.xdist_group("deployments"), pytest.mark.slow]
ENTRY, WATCH = "flows.preprocess.preprocess", "flows.watch_source.watch_source"


def state_of(api: Any, name: str, worker: Path, called: str | None = None) -> tuple[str, Any]:
    deployment = api.read_deployment_by_name(name)
    run = api.create_flow_run_from_deployment(deployment.id, name=called)
    return final_state(api, run.id, worker), api.read_flow_run(run.id)


@pytest.fixture(scope="module")
def own(api: Any, cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which a file of deployments was registered, with decoys in it; log.txt is what was said."""
    folder, where = folder_with_decoys(tmp_path_factory.mktemp("own")), section_of(cluster)

    def job(output: str) -> dict[str, Any]:
        return {"recipe": "toy", "source": SMALL, "cluster": where, "run": {"lock": "wait"},
                "output": {"path": output, "on_existing": "replace"}}  # fmt: skip

    here = [{"prefect.deployments.steps.set_working_directory": {"directory": "."}}]
    nowhere = [{"prefect.deployments.steps.run_shell_script": {"script": "true"}}]  # a step that rowmill leaves alone
    text = deploy(folder, [
        {"name": "own", "entrypoint": ENTRY, "parameters": job("out/own")},
        {"name": "here", "entrypoint": ENTRY, "parameters": job("out/here"), "pull": here},
        {"name": "nowhere", "entrypoint": ENTRY, "parameters": job("out/nowhere"), "pull": nowhere},
        {"name": "nowhere", "entrypoint": WATCH, "parameters": {"path": "."}, "pull": nowhere},
        {"name": "looks", "entrypoint": WATCH, "parameters": {"path": "."}},
    ])  # fmt: skip
    (folder / "log.txt").write_text(text)
    return folder


def test_the_command_says_how_far_it_is(own: Path) -> None:
    lines = (own / "log.txt").read_text().splitlines()
    begun = lines.index("registering 5 deployment(s) of own.yaml for the pool rowmill-test")
    names = ["preprocess/own", "preprocess/here", "preprocess/nowhere", "watch-source/nowhere", "watch-source/looks"]
    assert lines[begun + 1 : begun + 6] == [f"deployed {name}" for name in names]


@pytest.mark.promise(
    "A file needs the key `deployments:` only: `deploy` adds the pull step, the environment and the tag `rowmill`"
)
@pytest.mark.parametrize(("name", "called"), [("own", OWN), ("here", None)], ids=["own", "here"])
def test_a_file_of_deployments_alone_is_enough(
    name: str, called: str | None, own: Path, api: Any, worker: Path
) -> None:
    state, run = state_of(api, f"preprocess/{name}", worker, called)
    assert state == "Completed", run.state.message
    assert json.loads((own / "out" / name / "_manifest.json").read_text())["run"] == str(run.id)
    assert sorted(run.tags) == ["made-up-data", "rowmill"]  # its data are a sample


@pytest.mark.promise("a run that would write into a temporary folder of Prefect is refused")
@pytest.mark.parametrize(("flow", "key"), [("preprocess", "output.path"), ("watch-source", "state")])
def test_an_output_in_a_temporary_folder_of_prefect_is_refused(
    flow: str, key: str, own: Path, api: Any, worker: Path
) -> None:
    state, run = state_of(api, f"{flow}/nowhere", worker)
    assert state == "Failed"
    assert f"{key} would be lost" in run.state.message
    assert "ROWMILL_FOLDER" in run.state.message


@pytest.mark.promise("looks at watched folders have the queue `light`, and wait for no job")
def test_the_watch_does_not_wait_behind_a_long_job(own: Path, api: Any, worker: Path) -> None:
    from prefect.states import Cancelling

    deployment = api.read_deployment_by_name("preprocess/own")
    with Staging(own / "out/long").hold_lock():  # for which the job waits
        given = {"output": {"path": "out/long"}}
        long, next_ = (api.create_flow_run_from_deployment(deployment.id, parameters=given) for _ in range(2))
        until(lambda: api.read_flow_run(long.id).state_name == "Running", "the job runs")
        assert state_of(api, "watch-source/looks", worker)[0] == "Completed"
        assert api.read_flow_run(long.id).state_name == "Running"
        assert api.read_flow_run(next_.id).state_name in ("Scheduled", "Late")
        api.delete_flow_run(next_.id)
        api.set_flow_run_state(long.id, Cancelling())
        assert final_state(api, long.id, worker) == "Cancelled"


@pytest.mark.promise("names those that are not in the file any more; `--prune` removes them")
@pytest.mark.promise("`deploy` for another pool moves it there and says so")
def test_what_left_the_file_is_named_and_pruned_and_what_has_another_pool_is_moved(tmp_path: Path, api: Any) -> None:
    def names() -> set[str]:
        return {d.name for d in api.read_deployments(limit=200)}

    arrived = {"type": "event", "name": "of-leaves", "expect": ["rowmill.data.arrived"],
               "match": {"prefect.resource.id": f"rowmill.source.{tmp_path}/*"}}  # fmt: skip
    stays = {"name": "stays", "entrypoint": ENTRY}
    leaves = {"name": "leaves", "entrypoint": ENTRY, "triggers": [arrived]}
    moves = {"name": "moves", "entrypoint": ENTRY, "parameters": {"job": "jobs/none.yaml"}}
    other = tmp_path / "other"
    other.mkdir()
    deploy(other, [{"name": "of-another-file", "entrypoint": ENTRY}])
    first = deploy(tmp_path, [stays, leaves, moves])
    assert "leaves" in first
    assert f"folder   {tmp_path}, unless the file names another" in first
    assert "check    preprocess/moves: jobs/none.yaml is not here" in first

    text = deploy(tmp_path, [stays, moves])
    assert "moved" not in text
    assert "left     preprocess/leaves is no longer in the file: it stays" in text
    assert "--prune removes it" in text
    assert "preprocess/of-another-file" in text.split("also     ")[1]
    assert {"stays", "leaves", "of-another-file"} <= names()

    assert "left     preprocess/leaves is no longer in the file: removed" in deploy(tmp_path, [stays, moves], "--prune")
    assert {"stays", "of-another-file"} <= names()
    assert "leaves" not in names()
    assert not api.read_automations_by_name("of-leaves")

    text = deploy(tmp_path, [moves], "--pool", "rowmill-other")
    assert f"moved    preprocess/moves from the pool {POOL}: a deployment is in one pool" in text
    assert api.read_deployment_by_name("preprocess/moves").work_pool_name == "rowmill-other"


@pytest.mark.promise("A start names the deployments that have left the file since the last one")
def test_serve_names_what_left_its_file_until_it_is_deleted(
    tmp_path: Path, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rowmill.cli import app
    from typer.testing import CliRunner

    from infra.orchestration import deployments
    from infra.orchestration.deployment_file import flow_of

    def registered(path: Path, limit: int, notify: str | None) -> None:
        """What `deployments.serve` leaves at the server when it ends."""
        for spec in read_file(path)["deployments"]:
            flow_of(spec["entrypoint"]).to_deployment(spec["name"]).apply()

    def served(file: Path, *names: str) -> str:
        file.write_text(yaml.safe_dump({"deployments": [{"name": name, "entrypoint": ENTRY} for name in names]}))
        done = CliRunner().invoke(app, ["serve", "--file", str(file)])
        assert done.exit_code == 0, done.output
        return done.output

    monkeypatch.setattr(deployments, "serve", registered)
    monkeypatch.setattr("flows.job.access.serving_limits", list)  # they would hold for all of this process
    file, other = tmp_path / "own.yaml", tmp_path / "other.yaml"
    assert "left" not in served(file, "served-on", "served-once")
    assert "left" not in served(other, "served-by-another-file")
    for _ in range(2):
        text = served(file, "served-on")
        assert "left     preprocess/served-once is no longer in the file: it stays on the server" in text
        assert text.count("left  ") == 1
    api.delete_deployment(api.read_deployment_by_name("preprocess/served-once").id)
    assert "left" not in served(file, "served-on")


@pytest.mark.promise(
    "Relative paths start in the folder in which `deploy` was called, else in the one that the file names"
)
@pytest.mark.parametrize(
    ("spec", "pull", "folder"),
    [
        ({}, None, "/here"),
        ({}, [], "/here"),
        ({"pull": [{"prefect.deployments.steps.set_working_directory": {"directory": "/data"}}]}, None, "/data"),
        ({"work_pool": {"job_variables": {"env": {"ROWMILL_FOLDER": "jobs"}}}}, None, "/here/jobs"),
        ({"work_pool": {"job_variables": {"env": {"ROWMILL_FOLDER": "{{ $PWD }}"}}}}, None, "{{ $PWD }}"),
        ({}, [{"prefect.deployments.steps.git_clone": {"repository": "x"}}], None),
        ({}, [{"prefect.deployments.steps.set_working_directory": {"directory": "{{ clone.directory }}"}}], None),
    ],
)
def test_the_folder_of_a_run(spec: dict[str, Any], pull: Any, folder: str | None) -> None:
    spec = {"name": "a", "entrypoint": ENTRY, **spec}
    complete(spec, pull, Path("/here"), "/here/own.yaml")
    environment = spec["work_pool"]["job_variables"]["env"]
    assert environment.get("ROWMILL_FOLDER") == folder
    assert environment["PYTHONSAFEPATH"] == "1"


@pytest.mark.promise("It loads the job files that are on this host, and names those that are not valid")
def test_jobs_that_are_not_valid_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    steps = "features: [{columns: [x], ops: [{op: %s}]}]"
    for name, operator in {"good": "Normalize", "bad": "Normalise"}.items():
        text = "source: {path: 'logs/{date}'}\n" + steps % operator + "\noutput: {path: out, on_existing: version}\n"
        (tmp_path / f"{name}.yaml").write_text(text)
    jobs = {
        "good": {"job": "good.yaml"}, "bad": {"job": "bad.yaml"}, "gone": {"job": "gone.yaml"}, "empty": {},
        "once": {"job": "good.yaml", "output": {"on_existing": "fail"}},
        "dated": {"job": "good.yaml", "output": {"path": "out/{date}", "on_existing": "fail"}},
        "filled": {"job": "{{ event.payload.job }}"}, "recipe": {"recipe": "toi", "output": {"path": "o"}},
    }  # fmt: skip
    nightly = [{"cron": "0 2 * * *"}]
    specs = [{"name": n, "entrypoint": ENTRY, "parameters": p, "schedules": nightly} for n, p in jobs.items()]
    specs[0]["schedules"] = [{"cron": "17 2 * * *", "timezone": "Asia/Tokyo"}]
    specs.append({**specs[1], "name": "elsewhere", "work_pool": {"job_variables": {"env": {FOLDER: "/srv"}}}})
    lines = list(describe_doubtful_jobs({"deployments": specs}))
    named = [line.partition(":")[0].partition("/")[2] for line in lines]
    assert named == ["good", "bad", "gone", "once", "recipe"]
    assert "its hours are those of Asia/Tokyo, its dates those of run.timezone, UTC" in lines[0]
    assert "unknown operator 'Normalise'" in lines[1]
    assert "(line 2 of bad.yaml)" in lines[1]
    assert "every run after the first fails" in lines[3]
