"""Jobs whose paths hold a date: what they become, what is begun is finished first, days without data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job.dates import date_of_run_now
from flows.job.job import load_job, make_application, make_job
from flows.job.run_calendar import find_published_outputs
from flows.preprocess import preprocess
from flows.run.work_of_job import date_of_this_run
from tasks.core.settings import Run
from tasks.errors import DataError, JobError, RowmillError
from tasks.job.run_date import RunDate, parse_run_date, run_date_at
from tasks.manifest import Manifest
from tests.commands import rowmill
from tests.flows.runs import call, execute, have_previews_here, key_of, rows_of
from tests.infra.elsewhere import until

pytestmark = pytest.mark.xdist_group("flows")


def day_of(folder: Path, day: str, rows: int = 3) -> Path:
    """A file of one day, `in/DAY/a.parquet`, whose values say the day."""
    (path := folder / "in" / day).mkdir(parents=True)
    pq.write_table(pa.table({"x": [float(n) for n in range(rows)], "day": [day] * rows}), path / "a.parquet")
    return path


def nightly(folder: Path, **run: Any) -> dict[str, Any]:
    """Learns from the day before its date, and writes a version."""
    return {
        "source": {"path": f"{folder}/in/{{date-1}}"},
        "features": [{"columns": ["x"], "ops": [{"op": "Normalize"}]}, {"columns": ["day"]}],
        "output": {"path": str(folder / "out"), "on_existing": "version", "shuffle": "none", "files": 1},
        "run": {"report": False, **run},
    }


def on(day: str, timezone: str = "UTC") -> Any:
    return lambda _: parse_run_date(day, timezone)


def test_every_place_of_a_job_may_hold_a_date(tmp_path: Path) -> None:
    data = nightly(tmp_path, date="2026-11-23")
    data["source"] = {"path": ["a/{date}", "b"], "valid": "v/{date+1}", "filter": "day == '{date-1}'"}
    data["output"]["path"] = "out/{date:%Y/%m}/{{x}}"
    job = make_job(data)

    assert job.source.path == ["a/2026-11-23", "b"]
    assert (job.source.valid, job.source.filter) == ("v/2026-11-24", "day == '2026-11-22'")
    assert job.output.path == "out/2026/11/{x}"
    assert job.dated is not None
    assert job.dated.to_json() == {
        "date": "2026-11-23", "run_date": "2026-11-23", "timezone": "UTC", "origin": "run.date",
        "became": {
            "source.path[0]": {"pattern": "a/{date}", "text": "a/2026-11-23"},
            "source.valid": {"pattern": "v/{date+1}", "text": "v/2026-11-24"},
            "source.filter": {"pattern": "day == '{date-1}'", "text": "day == '2026-11-22'"},
            "output.path": {"pattern": "out/{date:%Y/%m}/{{x}}", "text": "out/2026/11/{x}"},
        },
    }  # fmt: skip


def test_a_job_is_passed_on_as_it_was_written(tmp_path: Path) -> None:
    data = nightly(tmp_path)
    assert make_job(data).as_written()["source"]["path"] == data["source"]["path"]
    assert make_job(make_job(data).as_written(), date_of=on("2026-01-01")).source.path == f"{tmp_path}/in/2025-12-31"


def test_the_date_of_yaml_is_a_text(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        "source: {path: 'in/{date}'}\nfeatures: [{columns: [x]}]\noutput: {path: out}\nrun: {date: 2026-11-22}\n"
    )
    assert load_job(tmp_path / "job.yaml").source.path == "in/2026-11-22"
    assert load_job(tmp_path / "job.yaml", ["run.date=2026-11-21"]).source.path == "in/2026-11-21"


def test_a_job_without_a_date_has_none(tmp_path: Path) -> None:
    data = nightly(tmp_path)
    data["source"]["path"] = "in"
    assert make_job(data).dated is None
    assert make_job({**data, "run": {"date": "2026-11-22"}}).dated is not None  # its output is of that date


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": {"path": "in/{yesterday}"}}, "there is no {yesterday}\n  where: source.path (line 1 of job.yaml)"),
        ({"source": {"path": ["a", "in/{dat}"]}}, "where: source.path[1]"),
        ({"output": {"path": "out/{hour}"}}, "run.date has no hour, and {hour} needs one\n  where: output.path"),
        ({"run": {"date": "monday"}}, "'monday' is not a date\n  where: run.date"),
        ({"run": {"date": "2026-11-22", "timezone": "Berlin"}}, "there is no time zone 'Berlin'"),
        ({"run": {"if_empty": "ignore"}}, "run.if_empty"),
        (
            {"source": {"path": "in/{date}"}, "output": {"path": "in/2026-11-22/out"}},
            "the output is inside its own source",
        ),
    ],
)
def test_a_mistake_in_a_date_is_found_before_anything_starts(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    data = {"source": {"path": "in"}, "features": [{"columns": ["x"]}], "output": {"path": "out"}}
    whole = {**data, "run": {"date": "2026-11-22"}, **changes}
    (tmp_path / "job.yaml").write_text("\n".join(f"{name}: {json.dumps(value)}" for name, value in whole.items()))
    with pytest.raises(JobError) as caught:
        load_job(tmp_path / "job.yaml")
    assert message in str(caught.value).replace(str(tmp_path) + "/", "")


def test_a_date_does_not_leave_the_allowed_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWMILL_ALLOWED_ROOTS", str(tmp_path / "data"))
    data = {"source": {"path": f"{tmp_path}/data/{{date:../../secret/%d}}"}, "features": [{"columns": ["x"]}]}
    with pytest.raises(JobError, match="allowed"):
        make_job({**data, "output": {"path": str(tmp_path / "data/out")}})


# Runs


@pytest.fixture
def run(run_alone: Any) -> Any:
    """A run without Prefect: what is tested is how the flow goes about dates."""
    return run_alone


def today(monkeypatch: pytest.MonkeyPatch, day: str) -> None:
    """Runs that have no date of their own begin on this day, at 2 o'clock."""

    def date_of(run: Run) -> RunDate:
        if run.date is not None:
            return date_of_run_now(run)
        return run_date_at(datetime.fromisoformat(f"{day}T02:00:00+00:00").astimezone(UTC), run.timezone, "started")

    monkeypatch.setattr("flows.run.session.date_of_this_run", date_of)


@pytest.mark.promise(
    "preview, manifest (`dated`), report and `rowmill inspect` show the date, where it comes from, and what each "
    "pattern became"
)
def test_the_manifest_says_what_the_patterns_became(tmp_path: Path, run: Any) -> None:
    day_of(tmp_path, "2026-11-22")
    [out] = run(nightly(tmp_path, date="2026-11-23"))

    dated = Manifest.load(out).data["dated"]
    assert (dated["date"], dated["origin"], dated["timezone"]) == ("2026-11-23", "run.date", "UTC")
    pattern, text = f"{tmp_path}/in/{{date-1}}", f"{tmp_path}/in/2026-11-22"
    assert dated["became"] == {"source.path": {"pattern": pattern, "text": text}}
    assert rows_of(out)["day"].to_pylist() == ["2026-11-22"] * 3


@pytest.mark.promise(
    "preview, manifest (`dated`), report and `rowmill inspect` show the date, where it comes from, and what each "
    "pattern became"
)
def test_report_and_inspect_show_the_date_and_what_the_patterns_became(tmp_path: Path, run: Any) -> None:
    from io import StringIO

    from rich.console import Console

    from flows.commands.inspect import show_folder

    day_of(tmp_path, "2026-11-22")
    [out] = run(nightly(tmp_path, date="2026-11-23", report=True))
    shown, pattern = Console(file=StringIO(), width=300), f"{tmp_path}/in/{{date-1}}"
    show_folder(out, console=shown)
    lines = ["2026-11-23, of run.date (UTC)", f"source.path: {pattern} is {tmp_path}/in/2026-11-22"]
    text = shown.file.getvalue()  # type: ignore[attr-defined]
    assert f"the date is {lines[0]}\n{lines[1]}\n" in text
    assert f"The date of the run is {lines[0]}.<br>{lines[1]}</p>" in (out / "_report.html").read_text()


def test_inspect_shows_the_date_of_a_fitted_workflow(tmp_path: Path, stages_here: None) -> None:
    from io import StringIO

    from rich.console import Console

    from flows.commands.inspect import show_folder
    from flows.fit import fit

    day_of(tmp_path, "2026-11-22")
    data = nightly(tmp_path, date="2026-11-23")
    call(fit, {**data, "output": {"path": str(tmp_path / "fitted")}})
    shown = Console(file=StringIO(), width=300)
    show_folder(tmp_path / "fitted", console=shown)
    assert "the date is 2026-11-23, of run.date (UTC)" in shown.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.promise("The name of the run shows the paths", "flows/NIGHTS.md#dates-in-paths")
def test_the_name_of_a_run_shows_what_its_paths_became(tmp_path: Path, run_here: Any, api: Any) -> None:
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags

    day_of(tmp_path, "2026-11-22")
    run_here(nightly(tmp_path, date="2026-11-23"))
    [flow_run] = api.read_flow_runs(flow_run_filter=FlowRunFilter(tags=FlowRunFilterTags(all_=[str(tmp_path / "out")])))
    assert flow_run.name.startswith(f"{tmp_path.name}/out (in/2026-11-22) ")


@pytest.mark.promise("A run by hand without it has the date of its start, and its log says so")
def test_a_run_by_hand_is_of_its_start_and_says_so(
    tmp_path: Path, run_here: Any, caplog: pytest.LogCaptureFixture
) -> None:
    data = nightly(tmp_path)
    data["source"]["path"] = f"{tmp_path}/in/{{date}}"
    today = datetime.now(UTC).date()
    days = [(today + timedelta(days=number)).isoformat() for number in range(2)]  # midnight may come before the run
    for day in days:
        day_of(tmp_path, day)
    with caplog.at_level("INFO"):
        [out] = run_here(data)

    dated = Manifest.load(out).data["dated"]
    day = dated["date"]
    assert (dated["origin"], day in days) == ("started", True)
    assert f"the date is {day}, of the run's start" in caplog.text
    assert f"source.path: {tmp_path}/in/{{date}} is {tmp_path}/in/{day}" in caplog.text


NIGHTS = {  # half past midnight in each zone, on both sides of a change of the clocks
    "Europe/Berlin": ["2026-03-28T23:30Z", "2026-03-29T22:30Z", "2026-10-24T22:30Z", "2026-10-25T23:30Z"],
    "America/New_York": ["2026-03-08T05:30Z", "2026-03-09T04:30Z", "2026-11-01T04:30Z", "2026-11-02T05:30Z"],
}


@pytest.mark.parametrize("zone", NIGHTS)
def test_a_schedule_has_the_day_before_over_a_change_of_the_clocks(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    for text in NIGHTS[zone]:
        scheduled = datetime.fromisoformat(text)
        flow_run = SimpleNamespace(expected_start_time=scheduled, created=scheduled, auto_scheduled=True)
        monkeypatch.setattr("prefect.context.FlowRunContext.get", lambda run=flow_run: SimpleNamespace(flow_run=run))
        job = make_job(nightly(Path("/data"), timezone=zone), date_of=date_of_this_run)
        assert job.dated is not None
        assert job.dated.run_date.origin == "scheduled"
        shown.append(f"{job.dated.run_date.day} reads {Path(str(job.source.path)).name}")

    spring, autumn = (29, 25) if zone == "Europe/Berlin" else (8, 1)
    month = 10 if zone == "Europe/Berlin" else 11
    before = "2026-10-24" if zone == "Europe/Berlin" else "2026-10-31"
    assert shown == [
        f"2026-03-{spring:02d} reads 2026-03-{spring - 1:02d}",
        f"2026-03-{spring + 1:02d} reads 2026-03-{spring:02d}",
        f"2026-{month}-{autumn:02d} reads {before}",
        f"2026-{month}-{autumn + 1:02d} reads 2026-{month}-{autumn:02d}",
    ]


@pytest.mark.promise("resolved from the run's scheduled time in `run.timezone`")
@pytest.mark.promise("a retry and a resume have the date that the run was made for")
def test_a_scheduled_run_has_the_date_of_its_schedule_and_keeps_it(
    tmp_path: Path, api: Any, stages_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was due at half past midnight in Berlin begins now; it fails, and is tried again by the server."""
    from prefect.states import Scheduled

    day_of(tmp_path, "2026-03-28")
    due = Scheduled(scheduled_time=datetime.fromisoformat("2026-03-28T23:30Z"))
    flow_run = api.create_flow_run(preprocess, parameters=nightly(tmp_path, timezone="Europe/Berlin"), state=due)

    with cut_off_before_transform(monkeypatch), pytest.raises(DataError, match="cut off"):
        execute(preprocess, api.read_flow_run(flow_run.id)).result()
    api.set_flow_run_state(flow_run.id, Scheduled(name="AwaitingRetry"), force=True)
    assert execute(preprocess, api.read_flow_run(flow_run.id)).is_completed()

    dated = Manifest.load(tmp_path / "out").data["dated"]
    assert (dated["date"], dated["origin"]) == ("2026-03-29", "scheduled")
    assert dated["run_date"] == "2026-03-29T00:30:00+01:00"
    assert dates(tmp_path / "out") == {"v0001": "2026-03-29"}


@contextmanager
def cut_off_before_transform(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A run in this block is cut off after its statistics, as by a kill."""
    from flows.run import session

    run_stage = session.run_stage

    def cut_off(function: Any, *more: Any) -> Any:
        if function.name == "transform":
            raise DataError("cut off")
        return run_stage(function, *more)

    with monkeypatch.context() as patched:
        patched.setattr(session, "run_stage", cut_off)
        yield


def begin(run: Any, data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is cut off after its statistics, as by a kill."""
    with cut_off_before_transform(monkeypatch), pytest.raises(DataError, match="cut off"):
        run(data)


def dates(folder: Path) -> dict[str, str]:
    """The date of each version."""
    found = sorted(folder.glob("v*/_manifest.json"))
    return {path.parent.name: json.loads(path.read_text())["dated"]["date"] for path in found}


@pytest.mark.promise("A command that is rerun after midnight finishes the date that it began, then does its own")
def test_the_same_command_after_midnight_finishes_its_date_and_does_the_next(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    day_of(tmp_path, "2026-11-21")
    day_of(tmp_path, "2026-11-22")
    today(monkeypatch, "2026-11-22")
    begin(run, nightly(tmp_path), monkeypatch)
    today(monkeypatch, "2026-11-23")
    first, second = run(nightly(tmp_path))

    assert rows_of(first)["day"].to_pylist() == ["2026-11-21"] * 3
    assert rows_of(second)["day"].to_pylist() == ["2026-11-22"] * 3
    assert dates(tmp_path / "out") == {"v0001": "2026-11-22", "v0002": "2026-11-23"}
    assert [Manifest.load(out).data["dated"]["origin"] for out in (first, second)] == ["begun", "started"]


@pytest.mark.promise("is named and finished before the next one")
def test_a_night_that_was_begun_is_finished_before_the_next(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The output has no date, so both nights work in one folder; nothing of the first is done twice."""
    day_of(tmp_path, "2026-11-21")
    day_of(tmp_path, "2026-11-22")
    begin(run, nightly(tmp_path, date="2026-11-22"), monkeypatch)
    state = tmp_path / "out/.out.rowmill" if (tmp_path / "out/.out.rowmill").exists() else tmp_path / ".out.rowmill"
    learned = (state / "state" / "state.json").stat().st_mtime_ns
    assert json.loads((state / "night.json").read_text())["date"] == "2026-11-22"

    folders = run(nightly(tmp_path, date="2026-11-23"))

    assert dates(tmp_path / "out") == {"v0001": "2026-11-22", "v0002": "2026-11-23"}
    assert [folder.name for folder in folders] == ["v0001", "v0002"]
    assert "2026-11-22 was begun by an earlier run but not published: it is finished first" in caplog.text
    assert Manifest.load(folders[0]).data["stages"]["statistics"]["rows"] == 3
    assert learned
    assert not state.exists()


@pytest.mark.promise("is named and finished before the next one")
def test_a_night_of_another_folder_is_finished_first_too(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a date in output.path each night has a folder of its own: later ones are left alone."""
    for day in ("2026-11-21", "2026-11-22", "2026-11-24"):
        day_of(tmp_path, day)

    def of(day: str) -> dict[str, Any]:
        data = nightly(tmp_path, date=day, scratch=str(tmp_path / "scratch"))
        return {**data, "output": {**data["output"], "path": f"{tmp_path}/out/{{date}}", "on_existing": "fail"}}

    begin(run, of("2026-11-25"), monkeypatch)
    begin(run, of("2026-11-22"), monkeypatch)
    run(of("2026-11-23"))
    there = sorted(path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith("."))
    assert there == ["2026-11-22", "2026-11-23"]
    assert [path.name[:11] for path in (tmp_path / "scratch").iterdir()] == [".2026-11-25"]


def test_the_work_of_a_night_in_a_scratch_folder_is_abandoned_by_the_command_that_the_error_names(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    day_of(tmp_path, "2026-11-21")
    begin(run, nightly(tmp_path, date="2026-11-22", scratch=str(tmp_path / "scratch")), monkeypatch)
    data = nightly(tmp_path, scratch=str(tmp_path / "scratch"))
    data["source"]["path"] = f"{tmp_path}/in/2026-11-21"
    with pytest.raises(JobError, match="was begun and not published") as caught:
        run(data)

    command = str(caught.value).split("to abandon it: rowmill ")[1].split()
    assert rowmill(*command).exit_code == 0
    run(data)
    assert len(list((tmp_path / "out").glob("v*"))) == 1


@pytest.mark.promise("While a night's unfinished work is there, a job without a date is refused for the same output")
def test_a_job_without_a_date_does_not_throw_away_a_night(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    day_of(tmp_path, "2026-11-21")
    begin(run, nightly(tmp_path, date="2026-11-22"), monkeypatch)
    state = tmp_path / ".out.rowmill" / "state" / "state.json"
    data = nightly(tmp_path)
    data["source"]["path"] = f"{tmp_path}/in/2026-11-21"
    with pytest.raises(JobError) as caught:
        run(data)

    assert str(caught.value).splitlines()[0] == "the run of 2026-11-22 was begun and not published"
    assert "--date 2026-11-22; to abandon it: rowmill clean --older-than 0" in str(caught.value)
    assert state.exists()
    run(nightly(tmp_path, date="2026-11-22"))
    run(data)
    assert len(list((tmp_path / "out").glob("v*"))) == 2


@pytest.mark.promise("`was begun and not published, cannot be finished`")
@pytest.mark.promise("The next run passes it over", "flows/NIGHTS.md#dates-in-paths")
def test_a_night_that_cannot_be_finished_is_named_and_passed_over(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = day_of(tmp_path, "2026-11-21")
    day_of(tmp_path, "2026-11-22")
    begin(run, nightly(tmp_path, date="2026-11-22"), monkeypatch)
    (source / "a.parquet").unlink()
    with pytest.raises(JobError) as caught:
        run(nightly(tmp_path, date="2026-11-23"))

    assert "the run of 2026-11-22, which was begun and not published, cannot be finished" in str(caught.value)
    assert "then run it with --date 2026-11-22, or abandon it: rowmill clean --older-than 0" in str(caught.value)
    assert not (tmp_path / "out").exists()
    run(nightly(tmp_path, date="2026-11-23"))
    assert "the work of 2026-11-22, which is passed over, gives way to this run" in caplog.text
    assert dates(tmp_path / "out") == {"v0001": "2026-11-23"}


@pytest.mark.promise("The next run passes it over")
def test_a_night_of_another_folder_that_is_passed_over_keeps_its_work(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = day_of(tmp_path, "2026-11-21")
    day_of(tmp_path, "2026-11-22")

    def of(day: str) -> dict[str, Any]:
        data = nightly(tmp_path, date=day)
        return {**data, "output": {**data["output"], "path": f"{tmp_path}/out/{{date}}", "on_existing": "fail"}}

    begin(run, of("2026-11-22"), monkeypatch)
    (source / "a.parquet").rename(tmp_path / "a.parquet")
    with pytest.raises(JobError, match="cannot be finished"):
        run(of("2026-11-23"))
    run(of("2026-11-23"))
    text = "2026-11-22 was begun and not published, and is passed over: run it with --date 2026-11-22"
    assert text in caplog.text
    (tmp_path / "a.parquet").rename(source / "a.parquet")
    run(of("2026-11-22"))
    there = sorted(path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith("."))
    assert there == ["2026-11-22", "2026-11-23"]


# Days without data


@pytest.mark.promise("`there are no data`")
def test_a_day_without_data_is_a_clear_error(tmp_path: Path, run: Any) -> None:
    day_of(tmp_path, "2026-11-20")
    with pytest.raises(JobError) as caught:
        run(nightly(tmp_path, date="2026-11-22"))
    assert str(caught.value).splitlines()[:2] == [
        "there are no data for 2026-11-22",
        f"  where: source.path: {tmp_path}/in/{{date-1}} is {tmp_path}/in/2026-11-21",
    ]
    assert not (tmp_path / "out").exists()


@pytest.mark.promise("set `run.if_empty: skip`. Such a run is Completed")
def test_a_day_without_data_may_be_skipped(tmp_path: Path, run_here: Any, api: Any) -> None:
    day_of(tmp_path, "2026-11-20")
    assert run_here(nightly(tmp_path, date="2026-11-22", if_empty="skip")) == []

    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey, FlowRunFilter, FlowRunFilterTags

    [flow_run] = api.read_flow_runs(flow_run_filter=FlowRunFilter(tags=FlowRunFilterTags(all_=[str(tmp_path / "out")])))
    assert flow_run.state.name == "Completed"
    assert "nothing was written: there are no data for 2026-11-22" in flow_run.state.message
    key = f"{key_of(tmp_path / 'out')}-skipped"
    [artifact] = api.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))
    assert "there are no data for 2026-11-22" in artifact.data
    slug = key.removeprefix("preprocess-").removesuffix("-skipped")
    wanted = {"event": {"name": ["rowmill.run.skipped"]}, "resource": {"id": [f"rowmill.output.{slug}"]}}

    def events() -> Any:
        return api.request("POST", "/events/filter", json={"filter": wanted}).json()["events"]

    assert until(events, "the event")[0]["payload"]["date"] == "2026-11-22"


def test_the_command_of_a_day_without_data_ends_with_0(tmp_path: Path, stages_here: None, prefect_server: Any) -> None:
    day_of(tmp_path, "2026-11-22")
    (tmp_path / "job.yaml").write_text(json.dumps(nightly(tmp_path, if_empty="skip")))
    empty, full = (rowmill("run", "job.yaml", "--date", f"2026-11-{day}", folder=tmp_path) for day in (22, 23))
    assert (empty.exit_code, full.exit_code) == (0, 0), empty.stderr + full.stderr
    assert "skipped  nothing was written: there are no data" in empty.stdout
    assert "date     2026-11-23 (run.date, UTC)" in full.stdout
    assert dates(tmp_path / "out") == {"v0001": "2026-11-23"}


@pytest.mark.promise("Missing validation data are an error too if `source.valid` has no date")
@pytest.mark.parametrize("files", ["none", "without rows"])
@pytest.mark.parametrize("if_empty", ["fail", "skip"])
def test_validation_data_without_a_date_that_are_missing_are_a_clear_error(
    tmp_path: Path, run: Any, files: str, if_empty: str
) -> None:
    """They are the same on every day: that they are not there is no day without data."""
    day_of(tmp_path, "2026-11-22")
    data = nightly(tmp_path, date="2026-11-23", if_empty=if_empty)
    data["source"]["valid"] = f"{tmp_path}/valid"
    if files == "without rows":
        (tmp_path / "valid").mkdir()
        pq.write_table(pa.table({"x": pa.array([], pa.float64()), "day": pa.array([], pa.string())}),
                       tmp_path / "valid/a.parquet")  # fmt: skip
    with pytest.raises(RowmillError) as caught:
        run(data)

    assert str(caught.value).splitlines()[:2] == [
        "there are no validation data",
        f"  where: source.valid: {tmp_path}/valid{'/a.parquet' if files == 'without rows' else ''}",
    ]
    assert caught.value.do == "correct source.valid, or leave it out"


@pytest.mark.parametrize("files", ["none", "without rows"])
def test_validation_data_of_a_day_may_be_missing(tmp_path: Path, run: Any, files: str) -> None:
    day_of(tmp_path, "2026-11-22")
    (tmp_path / "valid").mkdir()
    data = nightly(tmp_path, date="2026-11-23")
    data["source"]["valid"] = f"{tmp_path}/valid/{{date-1}}"
    if files == "without rows":
        (tmp_path / "valid/2026-11-22").mkdir()
        pq.write_table(pa.table({"x": pa.array([], pa.float64()), "day": pa.array([], pa.string())}),
                       tmp_path / "valid/2026-11-22/a.parquet")  # fmt: skip
    with pytest.raises(JobError) as caught:
        run(data)
    assert f"source.valid: {tmp_path}/valid/{{date-1}} is {tmp_path}/valid/2026-11-22" in caught.value.where
    assert run({**data, "run": {**data["run"], "if_empty": "skip"}}) == []


@pytest.mark.promise("If the folder before the first pattern is missing, that is still an error")
def test_a_mistyped_path_is_no_empty_day(tmp_path: Path, run: Any) -> None:
    data = nightly(tmp_path, date="2026-11-22", if_empty="skip")
    data["source"]["path"] = f"{tmp_path}/inn/{{date-1}}"
    with pytest.raises(JobError, match=f"the folder {tmp_path}/inn does not exist"):
        run(data)


@pytest.mark.promise("if the files or the filter of a source with a date leave no row")
@pytest.mark.parametrize("rows", [0, 3])
def test_a_filter_that_leaves_no_row_leaves_no_data(tmp_path: Path, run: Any, rows: int) -> None:
    day_of(tmp_path, "2026-11-20", rows)
    data = nightly(tmp_path, date="2026-11-22")
    data["source"] = {"path": f"{tmp_path}/in", "filter": "day == '{date-1}'"}
    with pytest.raises(JobError, match="there are no data for 2026-11-22"):
        run(data)
    assert run({**data, "run": {**data["run"], "if_empty": "skip"}}) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_the_fitted_workflow_of_a_date_is_applied(tmp_path: Path, run: Any) -> None:
    day_of(tmp_path, "2026-11-22")
    data = nightly(tmp_path, date="2026-11-23")
    data["output"]["path"] = f"{tmp_path}/out/{{date}}"
    run({**data, "output": {**data["output"], "on_existing": "fail"}})
    given = {"fitted": f"{tmp_path}/out/{{date-1}}", "source": {"path": "x"}, "output": {"path": "{date}"}}
    application = make_application({**given, "run": {"date": "2026-11-24"}})

    assert (application.fitted, application.output.path) == (f"{tmp_path}/out/2026-11-23", "2026-11-24")


def test_a_fitted_workflow_says_its_date(tmp_path: Path, stages_here: None) -> None:
    from flows.fit import fit

    day_of(tmp_path, "2026-11-22")
    call(fit, nightly(tmp_path, date="2026-11-23"))
    assert [*find_published_outputs(str(tmp_path / "out"), tmp_path)] == [date(2026, 11, 23)]


# The command line


@pytest.mark.promise(
    "preview, manifest (`dated`), report and `rowmill inspect` show the date, where it comes from, and what each "
    "pattern became"
)
def test_preview_shows_what_a_date_became(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have_previews_here(monkeypatch)
    day_of(tmp_path, "2026-11-22")
    (tmp_path / "job.yaml").write_text(json.dumps(nightly(tmp_path)))
    shown = rowmill("preview", tmp_path / "job.yaml", "--date", "2026-11-23", COLUMNS="300")

    assert shown.exit_code == 0, shown.output
    assert "Date  2026-11-23, of run.date (UTC)" in shown.output
    assert f"{tmp_path}/in/2026-11-22" in shown.output
