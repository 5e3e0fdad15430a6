"""What a person sees of nights on Prefect's pages: their table, and schedules over a change of the clocks."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.manifest import Manifest
from tests.browser.conftest import wait_for
from tests.browser.test_form import field, submit

pytestmark = [pytest.mark.xdist_group("deployments"), pytest.mark.timeout(900)]
PATIENCE = 400  # seconds for all runs of a deployment on cores that do much else; each takes ten
# Half past midnight in each zone, on both sides of a change of the clocks: the run's time, and the day that it reads.
CHANGES = {
    "Europe/Berlin": {"2026-03-28T23:30:00Z": "2026-03-28", "2026-03-29T22:30:00Z": "2026-03-29"},
    "America/New_York": {"2026-11-01T04:30:00Z": "2026-10-31", "2026-11-02T05:30:00Z": "2026-11-01"},
}
ONE_WORKER = {"kind": "cpu", "workers": 1, "threads_per_worker": 1}
SHORT = {"Europe/Berlin": "berlin", "America/New_York": "new-york"}


def job(output: str, timezone: str = "UTC", path: str = "in/{date-1}") -> dict[str, Any]:
    return {
        "source": {"path": path},
        "features": [{"columns": ["price"], "ops": [{"op": "Normalize"}]},
                     {"columns": ["brand"], "ops": [{"op": "Categorify"}]}],
        "output": {"path": output, "on_existing": "version", "files": 1},
        "cluster": ONE_WORKER,
        "run": {"timezone": timezone, "lock": "wait"},
    }  # fmt: skip


def spec(name: str, parameters: dict[str, Any], *schedules: dict[str, Any]) -> dict[str, Any]:
    entrypoint = "flows.preprocess.preprocess"
    return {"name": name, "entrypoint": entrypoint, "parameters": parameters, "schedules": list(schedules)}


def at_half_past_midnight(timezone: str) -> dict[str, Any]:
    return {"cron": "30 0 * * *", "timezone": timezone, "slug": "nightly"}


@cache
def today() -> date:
    """The day on which these tests began."""
    return datetime.now(UTC).date()


class Served(NamedTuple):
    """Where `rowmill serve` works, its deployments by name, and the page of the server."""

    folder: Path
    deployments: dict[str, Any]
    url: str


@pytest.fixture(scope="module")
def served(serve: Callable[[list[Any]], Path], api: Any, prefect_server: Any) -> Served:
    """Deployments for the nights of the last days, and in two time zones; data of the days that they read."""
    zones = [spec(SHORT[zone], job(f"out/{SHORT[zone]}", zone), at_half_past_midnight(zone)) for zone in CHANGES]
    again = {"base": "out/nights", "source": {"path": "in/{date-1}"}, "cluster": ONE_WORKER}
    refit = {"name": "refit", "entrypoint": "flows.refit.refit", "parameters": again}
    folder = serve([spec("nights", job("out/nights")), refit, *zones])
    for number in range(2, 7):
        day_of(folder, today() - timedelta(days=number), 200 * (9 - number))
    for days in CHANGES.values():
        for day in days.values():
            day_of(folder, date.fromisoformat(day), 50)
    names = ["nights", *SHORT.values()]
    known = {name: api.read_deployment_by_name(f"preprocess/{name}") for name in names}
    known["refit"] = api.read_deployment_by_name("refit/refit")
    return Served(folder, known, prefect_server.ui_url)


def day_of(folder: Path, day: date, rows: int) -> None:
    """A file of one day, `in/DAY/a.parquet`; later days have more brands."""
    (path := folder / "in" / day.isoformat()).mkdir(parents=True)
    brands = [f"brand {n % (20 + day.toordinal() % 50)}" for n in range(rows)]
    pq.write_table(pa.table({"price": [float(n) for n in range(rows)], "brand": brands}), path / "a.parquet")


def final(api: Any, run_id: Any) -> Any:
    """The run, when it has ended."""
    run = api.read_flow_run(run_id)
    return run if run.state.is_final() else None


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
        runs.append(wait_for(lambda run=run: final(api, run.id), PATIENCE))
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

    table = wait_for(lambda: table_of(page), 60)
    assert [row["day"] for row in table] == [(today() - timedelta(days=n)).isoformat() for n in (0, 1, 2, 3, 5)]
    assert [row["rows"] for row in table] == ["", "1,400", "1,200", "1,000", "600"]
    assert [row["state"] for row in table[1:]] == [f"published: v000{n}" for n in (4, 3, 2, 1)]
    assert table[0]["state"] == f"failed: there are no data for {today()}"
    assert all(float(row[name]) >= 0 for row in table[1:] for name in ("ingest", "statistics", "transform"))
    assert all(int(row["ids"]) >= 20 and row["size"] for row in table[1:])
    assert [row["report"] for row in table[1:]] == [f"v000{n}/_report.html" for n in (4, 3, 2, 1)]
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
    run = wait_for(lambda: next(filter(None, (final(api, run.id) for run in runs_of(api, deployment))), None), PATIENCE)

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
    ended = [wait_for(lambda run=run: final(api, run.id), PATIENCE) for run in runs]

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
