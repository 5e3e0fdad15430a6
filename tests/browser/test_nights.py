"""What a person sees of nights on Prefect's pages: their table, and schedules over a change of the clocks."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tasks.manifest import Manifest
from tests.browser.conftest import Served, final
from tests.browser.deployments import CHANGES, SHORT, day_of, today
from tests.browser.test_form import field, submit
from tests.infra.elsewhere import until

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(900)]


def scheduled(api: Any, deployment: Any, start: str, end: str) -> list[Any]:
    """The runs that the server itself makes of a schedule between two times; they are due."""
    before = {run.id for run in runs_of(api, deployment)}
    body = {"start_time": start, "end_time": end, "min_runs": 2, "max_runs": 10}
    api.request("POST", "/deployments/{id}/schedule", path_params={"id": deployment.id}, json=body)
    due = [
        run for run in runs_of(api, deployment) if run.id not in before and run.expected_start_time < datetime.now(UTC)
    ]
    return sorted(due, key=lambda run: run.expected_start_time)


def runs_of(api: Any, deployment: Any) -> list[Any]:
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId

    return list(api.read_flow_runs(deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id]))))


@pytest.fixture(scope="module")
def nights(served: Served, api: Any) -> list[Any]:
    """Runs of the last nights: four with data, one of a day without; the night after the first has no run."""
    runs = []
    for number in (5, 3, 2, 1, 0):
        day = (today() - timedelta(days=number)).isoformat()
        parameters = {"run": {"date": day}}
        run = api.create_flow_run_from_deployment(served.deployments["nights"].id, parameters=parameters)
        runs.append(final(api, run.id))
    return runs


@pytest.mark.promise("with the days without a published output above it")
def test_the_nights_of_a_deployment_stand_side_by_side(
    nights: list[Any], served: Served, page: Any, api: Any, keep: Any
) -> None:
    assert [run.state_name for run in nights] == ["Completed"] * 4 + ["Failed"]
    page.set_viewport_size({"width": 1600, "height": 900})
    page.goto(f"{served.url}/v2/artifacts/key/rowmill-nights-preprocess-nights")
    page.get_by_role("link", name=re.compile("nights|preprocess")).first.wait_for()
    page.goto(f"{served.url}/v2/artifacts/artifact/{latest(api)}")
    page.get_by_role("columnheader", name="statistics").wait_for()
    keep(page, "nights")

    table = until(lambda: table_of(page), "the table")
    assert [row["day"] for row in table] == [(today() - timedelta(days=n)).isoformat() for n in (0, 1, 2, 3, 5)]
    assert [row["rows"] for row in table] == ["", "1,400", "1,200", "1,000", "600"]
    assert [row["state"] for row in table[1:]] == [f"published: v000{n}" for n in (4, 3, 2, 1)]
    assert table[0]["state"] == f"failed: there are no data for {today()}"
    assert all(float(row[name]) >= 0 for row in table[1:] for name in ("ingest", "statistics", "transform"))
    assert all(int(row["ids"]) >= 20 and row["size"] for row in table[1:])
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d", row["sent (UTC)"]) for row in table[1:])
    side = page.get_by_text("Flow Run", exact=True).first.bounding_box()["x"]
    head = page.get_by_role("columnheader").last.bounding_box()
    assert head["x"] + head["width"] < side  # the last column is not hidden by what the page says of the artifact
    page.get_by_role("link", name=str(nights[3].id)[:8]).first.click()
    page.get_by_text(re.compile("Completed")).first.wait_for()
    assert page.url.endswith(str(nights[3].id)) or str(nights[3].id) in page.url


def table_of(page: Any) -> list[dict[str, str]]:
    """The rows of the table of a page by column, all read at one moment; none while the page still builds it."""
    cells = "rows => rows.map(row => [...row.querySelectorAll('th, td')].map(cell => cell.innerText))"
    head, *rows = page.get_by_role("row").evaluate_all(cells) or [[]]
    return [dict(zip(head, row, strict=True)) for row in rows] if all(len(row) == len(head) for row in rows) else []


def latest(api: Any) -> str:
    """The id of the newest table of nights."""
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

    chosen = ArtifactFilter(key=ArtifactFilterKey(any_=["rowmill-nights-preprocess-nights"]))
    return str(max(api.read_artifacts(artifact_filter=chosen), key=lambda artifact: artifact.created).id)


def test_a_refit_by_its_form_learns_a_day_on_top_of_the_last_night(
    nights: list[Any], served: Served, page: Any, api: Any, keep: Any
) -> None:
    day_of(served.folder, today() - timedelta(days=1), 300)
    deployment = served.deployments["refit"]
    page.goto(f"{served.url}/v2/deployments/deployment/{deployment.id}/run")
    page.get_by_label("base").wait_for()
    assert page.get_by_label("base").input_value() == "out/nights"
    assert field(page, "source", "Path").input_value() == "in/{date-1}"
    field(page, "run", "Date").fill(today().isoformat())
    page.get_by_text("Parameters", exact=True).scroll_into_view_if_needed()
    keep(page, "refit")
    submit(page, "refit-by-hand")
    [made] = until(lambda: runs_of(api, deployment), "the run of the form")
    run = final(api, made.id)

    assert run.state_name == "Completed", run.state.message
    manifest = Manifest.load(served.folder / "out/nights")
    assert Path(manifest.path).name == "v0005"
    assert (manifest.rows["out"], manifest.data["dated"]["date"]) == (300, today().isoformat())
    assert (Path(manifest.path) / "_workflow/changes.json").exists()


@pytest.mark.parametrize("zone", CHANGES)
def test_a_schedule_reads_the_day_before_over_a_change_of_the_clocks(
    zone: str, served: Served, api: Any, page: Any, keep: Any
) -> None:
    """The server makes the runs of the schedule; the paths are of the days of the zone, on both sides of the change."""
    name, expected = SHORT[zone], CHANGES[zone]
    deployment, times = served.deployments[name], sorted(expected)
    start = datetime.fromisoformat(times[0]) - timedelta(hours=1)
    end = datetime.fromisoformat(times[-1]) + timedelta(hours=1)
    runs = scheduled(api, deployment, start.isoformat(), end.isoformat())
    assert [f"{run.expected_start_time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}" for run in runs] == times
    ended = [final(api, run.id) for run in runs]

    assert [run.state_name for run in ended] == ["Completed", "Completed"]
    became = {}
    for version in sorted((served.folder / "out" / name).glob("v*")):
        manifest = Manifest.load(version).data
        assert manifest["dated"]["origin"] == "scheduled"
        became[manifest["run"]] = manifest["dated"]["became"]["source.path"]["text"]
    assert {str(run.id): became[str(run.id)] for run in runs} == {
        str(run.id): f"in/{expected[time]}" for run, time in zip(runs, times, strict=True)
    }
    page.goto(f"{served.url}/v2/deployments/deployment/{deployment.id}")
    page.get_by_text(re.compile(rf"At 12:30 AM.*\({zone}\)|At 12:30 AM")).first.wait_for()
    for run in ended:
        page.get_by_text(re.compile(rf"out/{name} \(in/\d{{4}}-\d\d-\d\d\)")).first.wait_for()
        assert f"out/{name} (in/{expected[times[ended.index(run)]]}) " in run.name
    keep(page, f"schedule-{name}")
