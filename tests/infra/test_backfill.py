"""Backfills: which days a deployment has, which are published, and real runs over restarts of server and command."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prefect.client.schemas.schedules import CronSchedule
from prefect.events import Event

from flows.commands import backfill
from flows.job.access import CLUSTERS, SWITCHES
from flows.job.run_calendar import Calendar, DeployedJob, find_published_outputs, make_deployed_job
from flows.nights.table import tabulate_run_dates
from flows.published import outbox
from flows.published.events import make_published_events as published_events
from infra.orchestration.deployment_file import FILE, read_file
from tasks.errors import GiveUpError, JobError
from tasks.job.publication import Publication, SplitFacts, Train, read_publication
from tasks.storage.atomic import write_note
from tasks.storage.discarded import mark
from tasks.storage.documents import dump_document
from tasks.storage.own_files import PUBLISHED
from tasks.storage.retention import drop_versions
from tasks.storage.staging import Staging
from tests.commands import rowmill
from tests.hosts import Host
from tests.infra.elsewhere import until
from tests.running import section_of

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("backfill")]


def output_of(path: Path, day: str, run: str = "", rows: int = 5) -> None:
    """A folder with as much of a manifest as says which day it is of."""
    path.mkdir(parents=True)
    content = {"dated": {"date": day}, "run": run, "rows": {"out": rows}, "seconds": 1.5}
    (path / "_manifest.json").write_text(json.dumps(content))


def table_of(text: str) -> list[dict[str, str]]:
    """The rows of a Markdown table by the names of its columns."""
    lines = [re.split(r"\s*(?<!\\)\|\s*", line.strip()[1:-1].strip()) for line in text.splitlines() if line[:1] == "|"]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def nights_of(folder: Path, *crons: str, timezone: str = "UTC", **job: Any) -> DeployedJob:
    schedules = tuple(CronSchedule(cron=cron, timezone=timezone) for cron in crons)
    whole = {
        "source": {"path": "in/{date-1}"},
        "output": {"path": "out", "on_existing": "version"},
        "run": {"timezone": timezone},
        **job,
    }
    return DeployedJob("preprocess/n", "id", datetime(2026, 3, 1, tzinfo=UTC), schedules, whole, folder)


@pytest.mark.promise("days named by the manifest of an output or version that is not discarded")
def test_the_days_of_versions_are_those_that_their_manifests_name(tmp_path: Path) -> None:
    for number, day in enumerate(["2026-03-02", "2026-03-01", "2026-03-02"], 1):
        output_of(tmp_path / f"out/v{number:04d}", day)
    (tmp_path / "out/v0004").mkdir()
    output_of(tmp_path / "out/v0005/train", "2026-03-09")

    names = {night.day.day: night.path.name for night in find_published_outputs("out", tmp_path).values()}
    assert names == {1: "v0002", 2: "v0003", 9: "v0005"}


def test_a_day_whose_version_is_discarded_is_missing(tmp_path: Path) -> None:
    nights = nights_of(tmp_path)
    days = [date(2026, 3, 1), date(2026, 3, 2)]
    for number, day in enumerate(days, 1):
        output_of(tmp_path / f"out/v{number:04d}", day.isoformat())
    mark(tmp_path / "out/v0002", "prices in cents", "somebody")
    assert nights.missing(*days) == [days[1]]
    output_of(tmp_path / "out/v0003", days[1].isoformat())
    assert nights.missing(*days) == []


@pytest.mark.promise("days whose versions `output.keep_versions` has removed")
def test_a_day_whose_version_was_removed_is_not_missing(tmp_path: Path) -> None:
    nights = nights_of(tmp_path)
    today = nights.today()
    days = nights.calendar.between(nights.calendar.back(today, 3), today)
    for number, day in enumerate(days, 1):
        place = tmp_path / f"out/v{number:04d}"
        output_of(place, day.isoformat(), f"{number}{number}-run")
        known = json.loads((place / "_manifest.json").read_text())
        (place / "_manifest.json").write_text(json.dumps(known | {"parts": []}))
    (tmp_path / "out/_latest").write_text("v0004\n")
    mark(tmp_path / "out/v0002")
    with Staging(tmp_path / "out").hold_lock():
        drop_versions(Staging(tmp_path / "out"), 1)

    assert sorted(nights.find_published_outputs()) == [days[3]]
    assert {day: night.path.name for day, night in nights.find_all_outputs().items()} == {
        days[0]: "v0001", days[2]: "v0003", days[3]: "v0004",
    }  # fmt: skip
    assert (nights.find_first_run_date(), nights.missing()) == (days[0], [days[1]])  # taken back before it was removed
    output_of(tmp_path / "out/v0003", days[2].isoformat())  # noted, and then not removed: somebody took it back
    mark(tmp_path / "out/v0003")
    assert nights.missing() == [days[1], days[2]]
    shutil.rmtree(tmp_path / "out/v0003")
    recorded = {"11-run": {"rows": 7, "seconds": {"ingest": 1.0}}}
    rows = [
        [row[name] for name in ("day", "rows", "state")]
        for row in table_of(tabulate_run_dates(nights, {}, {}, recorded))
    ]
    assert [days[0].isoformat(), "7", "published, and removed by keep_versions: v0001"] in rows


@pytest.mark.promise("the night that a schedule starts later today is left to it")
def test_the_last_night_is_the_one_that_the_schedule_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def last_at(hour: int, *crons: str) -> date:
        class Then(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return datetime(2026, 3, 5, hour, tzinfo=UTC)

        monkeypatch.setattr("flows.job.run_calendar.datetime", Then)
        return nights_of(tmp_path, *crons).find_last_run_date()

    today, before = date(2026, 3, 5), date(2026, 3, 4)
    assert last_at(1, "30 2 * * *") == before  # its run comes at half past two, and must not find the night made
    assert last_at(3, "30 2 * * *") == today
    assert last_at(3, "30 2 * * *", "30 6 * * *") == today
    assert last_at(1) == today
    assert last_at(1, "30 2 1 * *") == today  # of no schedule


def test_a_range_that_the_schedule_has_not_begun_says_how_to_make_it_now(tmp_path: Path) -> None:
    nights = nights_of(tmp_path, "30 2 * * *")
    today = nights.today()
    before = nights.calendar.back(today, 1)
    assert f"give --to {today}, to make it now" in str(
        backfill._make_empty_range_error(nights, today, before, str(today), None)
    )
    assert "give --from an earlier day" in str(
        backfill._make_empty_range_error(nights, today, before, str(today), before.isoformat())
    )


def test_a_refit_without_a_path_has_the_nights_of_its_base(tmp_path: Path) -> None:
    nights = nights_of(tmp_path, base="out", output={})
    output_of(tmp_path / "out/v0001", "2026-03-01")
    nights.check()
    assert [day.day for day in nights.find_published_outputs()] == [1]


def test_the_days_of_an_output_with_a_date_are_those_of_its_folders(tmp_path: Path) -> None:
    output_of(tmp_path / "out/2026/03/01", "2026-03-01")
    output_of(tmp_path / "out/2026/03/02", "2026-03-05")  # renamed by somebody: the manifest counts
    (tmp_path / "out/2026/03/03").mkdir()

    both = [date(2026, 3, 1), date(2026, 3, 5)]
    assert sorted(find_published_outputs("out/{date:%Y/%m/%d}", tmp_path)) == both
    assert sorted(find_published_outputs("out/{date:%Y}/03/{date:%d}", tmp_path)) == both
    assert sorted(find_published_outputs("out/{date}", tmp_path)) == []


@pytest.mark.promise("With `--missing` only the days on which the schedules start a run count")
@pytest.mark.parametrize(
    ("zone", "days"),
    [
        ("Europe/Berlin", ["2026-03-28", "2026-03-29", "2026-03-30"]),
        ("America/New_York", ["2026-03-07", "2026-03-08", "2026-03-09"]),
    ],
)
def test_a_day_of_the_schedule_is_missing_until_it_is_published(tmp_path: Path, zone: str, days: list[str]) -> None:
    """At half past two: that time does not exist in the night in which the clocks go forward."""
    nights = nights_of(tmp_path, "30 2 * * *", timezone=zone)
    first, second, third = (date.fromisoformat(day) for day in days)

    assert nights.list_scheduled_run_dates(first, third) == [first, second, third]
    output_of(tmp_path / "out/v0001", days[0])
    output_of(tmp_path / "out/v0002", days[2])
    assert nights.missing(last=third) == [second]


@pytest.mark.promise("With `--missing` only the days on which the schedules start a run count")
def test_days_without_a_schedule_are_not_missing(tmp_path: Path) -> None:
    weekdays, march = nights_of(tmp_path, "0 2 * * 1-5"), (date(2026, 3, 5), date(2026, 3, 10))
    assert [day.day for day in weekdays.missing(*march)] == [5, 6, 9, 10]
    assert [day.day for day in nights_of(tmp_path).missing(*march)] == [5, 6, 7, 8, 9, 10]
    assert nights_of(tmp_path, "0 2 * * *").missing(date(2999, 1, 1), date(2999, 1, 2)) == []


@pytest.mark.promise("The output needs a date in its path, or `on_existing: version`")
@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"source": {"path": "in"}}, "names no date"),
        ({"output": {"path": "out", "on_existing": "replace"}}, "all days of preprocess/n write the same output"),
        (
            {"source": {"path": "in/{date}/{hour}"}, "output": {"path": "out/{date}"}},
            "all hours of preprocess/n write the same output",
        ),
    ],
)
def test_what_has_no_output_for_each_day_is_refused(tmp_path: Path, job: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        nights_of(tmp_path, **job).check()


def test_a_deployment_has_the_job_of_its_file_and_recipe(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("{recipe: toy, source: {path: 'in/{date}'}, run: {timezone: Europe/Berlin}}")
    known = SimpleNamespace(
        id="id", created=datetime(2026, 3, 1, tzinfo=UTC), schedules=[SimpleNamespace(schedule="", active=False)],
        paused=False,
        job_variables={"env": {"ROWMILL_FOLDER": str(tmp_path)}},
        parameters={"job": "job.yaml", "dry_run": False, "output": {"path": "nights", "on_existing": "version"}},
    )  # fmt: skip
    nights = make_deployed_job("preprocess/n", known)

    assert (nights.output, nights.run.timezone, nights.folder) == ("nights", "Europe/Berlin", tmp_path)
    assert nights.is_paused
    known.schedules[0].active = True
    assert not make_deployed_job("preprocess/n", known).is_paused
    nights.check()


@pytest.mark.promise("with the days without a published output above it")
def test_the_table_names_each_day(tmp_path: Path) -> None:
    nights = nights_of(tmp_path)
    today = nights.today()
    days = nights.calendar.between(date.fromordinal(today.toordinal() - 3), today)
    output_of(tmp_path / "out/v0001", days[0].isoformat(), "11111111-aaaa", 1234)
    output_of(tmp_path / "out/v0002", days[3].isoformat())
    crashed = SimpleNamespace(id="22222222-bbbb", state_name="Crashed")
    text = tabulate_run_dates(nights, {days[1]: crashed}, {days[2]: "no data"})

    lines = [[line[name] for name in ("day", "rows", "seconds", "state")] for line in table_of(text)]
    assert lines == [
        [days[3].isoformat(), "5", "1.5", "published: v0002"],
        [days[2].isoformat(), "", "", "no data"],
        [days[1].isoformat(), "", "", "Crashed"],
        [days[0].isoformat(), "1,234", "1.5", "published: v0001"],
    ]
    head = f"**1 day(s) without a published output**: {days[1]}. `rowmill backfill preprocess/n --missing`"
    assert text.startswith(head)


@pytest.mark.promise("the finding that is the furthest above its threshold")
def test_the_table_has_seconds_by_stage_sizes_ids_drift_and_verdicts(tmp_path: Path) -> None:
    nights = nights_of(tmp_path)
    today = nights.today()
    out = tmp_path / "out/v0001"
    for split, rows in (("train", 1000), ("valid", 200)):
        output_of(out / split, today.isoformat(), "11111111-aaaa", rows)
        manifest = json.loads((out / split / "_manifest.json").read_text())
        manifest["stages"] = {"ingest": {"seconds": 1.0}, "statistics": {"seconds": 2.0}, "transform": {"seconds": 3.0}}
        manifest["parts"] = [{"path": "part-00000.parquet", "bytes": 512, "rows": rows}] * 2
        (out / split / "_manifest.json").write_text(json.dumps(manifest))
    fitted = {
        "a": {"size": 40, "values": {"table": "v000-values.vocab"}},
        "b": {"size": 2, "values": {}},
        "c": {"mean": 1},
    }
    (out / "_workflow").mkdir()
    (out / "_workflow/state.json").write_text(json.dumps({"format": 3, "fitted": fitted}))
    steps = {"a": {"old_size": 30, "new_size": 40}, "b": {"old_size": 2, "new_size": 2}, "c": {"mode": "merged"}}
    (out / "_workflow/changes.json").write_text(json.dumps({"format": 1, "steps": steps}))
    findings = [{"column": "tax", "check": "psi", "figure": 0.5, "threshold": 0.2, "level": "warn",
                 "files": ["in/2.parquet", "in/3.parquet"]},
                {"column": "", "check": "rows", "figure": 0.3, "threshold": 0.2, "level": "warn"}]  # fmt: skip
    verdicts = {"statistics": {"verdict": "warn", "findings": findings}, "commit": {"verdict": "pass", "findings": []}}
    (out / "_gate.json").write_text(json.dumps({"format": 1, "gate": "warn", "verdicts": verdicts, "accepted": []}))

    [row] = table_of(tabulate_run_dates(nights, {}, {}))
    assert row.pop("run").startswith("[11111111](")
    assert row == {
        "day": today.isoformat(), "state": "published: v0001", "rows": "1,200", "seconds": "1.5", "ingest": "1.0",
        "statistics": "2.0", "transform": "6.0", "size": "2.0 kB", "ids": "42", "newcomers": "10",
        "drift": "2.5 x tax", "verdict": "warn", "begins in": "in/2.parquet",
    }  # fmt: skip


@pytest.mark.promise("are listed under the days on which its runs began")
def test_the_runs_of_a_job_without_a_date_stand_at_the_day_on_which_they_began(tmp_path: Path) -> None:
    nights = nights_of(tmp_path, source={"path": "in"})
    today = nights.today()
    before = date.fromordinal(today.toordinal() - 1)
    output_of(tmp_path / "out/v0001", "")
    manifest = {"created": f"{today}T00:30:00+00:00", "rows": {"out": 7}, "run": "b", "seconds": 2.0}
    (tmp_path / "out/v0001/_manifest.json").write_text(json.dumps(manifest))
    replaced = SimpleNamespace(id="a", state_name="Completed")
    rates = {"a": {"rows": 5, "seconds": {"ingest": 1.0, "statistics": 2.5}}}
    text = tabulate_run_dates(
        nights, {today: SimpleNamespace(id="b", state_name="Running"), before: replaced}, {}, rates
    )

    assert text.startswith("The runs of preprocess/n. Its job names no date")
    rows = [[row[name] for name in ("day", "rows", "seconds", "state")] for row in table_of(text)]
    assert rows == [
        [today.isoformat(), "7", "2.0", "published: v0001"], [before.isoformat(), "5", "3.5", "Completed"],
    ]  # fmt: skip


# Hours


def hours_of(folder: Path, *crons: str, **job: Any) -> DeployedJob:
    return nights_of(folder, *crons, timezone="Europe/Berlin", source={"path": "in/{date}/{hour}"}, **job)


@pytest.mark.promise("on the days on which the clocks change there are 23 or 25")
@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-11-22", 24)])
def test_a_day_has_the_hours_that_passed(tmp_path: Path, day: str, hours: int) -> None:
    nights = hours_of(tmp_path)
    nights.check()
    calendar = nights.calendar
    every = calendar.between(calendar.parse(day, "--from"), calendar.parse(day, "--to", is_last=True))

    assert len(every) == len({calendar.text(hour) for hour in every}) == hours
    assert all(calendar.parse(calendar.text(hour), "--from") == hour for hour in every)
    assert [calendar.format_run_date(hour) for hour in (every[0], every[-1])] == [
        f"{day} 00:00+0{2 if hours == 25 else 1}:00", f"{day} 23:00+0{2 if hours == 23 else 1}:00"
    ]  # fmt: skip


@pytest.mark.parametrize(("day", "last"), [("2026-04-05", 24), ("2026-10-04", 24), ("2026-11-22", 24)])
def test_hours_where_clocks_move_by_half_an_hour(day: str, last: int) -> None:
    calendar = Calendar("Australia/Lord_Howe", hourly=True)
    every = calendar.between(calendar.parse(day, "--from"), calendar.parse(day, "--to", is_last=True))
    assert len({calendar.text(hour) for hour in every}) == len(every) == last
    assert [calendar.back(hour, 1) for hour in every[1:]] == every[:-1]
    assert [calendar.end(hour) for hour in every[:-1]] == [calendar.begin(hour) for hour in every[1:]]
    assert calendar.back(calendar.back(every[0], -5), 5) == every[0]


@pytest.mark.promise("an offset tells the two hours of one name apart")
def test_an_hour_that_comes_twice_is_two_hours() -> None:
    calendar = Calendar("Europe/Berlin", hourly=True)
    first, last = calendar.parse("2026-10-25T02", "--from"), calendar.parse("2026-10-25T02", "--to", is_last=True)
    assert [calendar.text(hour) for hour in calendar.between(first, last)] == [
        "2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00"
    ]  # fmt: skip
    with pytest.raises(JobError, match="there is no 2026-03-29T02") as caught:
        calendar.parse("2026-03-29T02", "--from")
    assert caught.value.where == "--from"
    with pytest.raises(JobError, match="'2026-03-29T02' is not a day"):
        Calendar().parse("2026-03-29T02", "--to")


@pytest.mark.promise(
    "A cron schedule of Prefect starts one run in two hours of one name: the second one is not missing"
)
def test_an_hour_is_published_if_a_manifest_says_so_and_missing_else(tmp_path: Path) -> None:
    """Prefect starts one run in the two hours of the same name: the other is not missing."""
    nights = hours_of(tmp_path, "15 * * * *")
    for number, text in enumerate(["2026-10-25T02:15:00+02:00", "2026-10-25T03:00:00+01:00", "2026-10-25"], 1):
        output_of(tmp_path / f"out/v{number:04d}", "2026-10-25")
        dated = {"date": "2026-10-25", "run_date": text, "timezone": "Europe/Berlin"}
        (tmp_path / f"out/v{number:04d}/_manifest.json").write_text(json.dumps({"dated": dated}))
    calendar = nights.calendar
    first, last = calendar.parse("2026-10-24T23", "--from"), calendar.parse("2026-10-25T04", "--to", is_last=True)

    def shown(hours: Iterable[date]) -> list[str]:
        return [calendar.format_run_date(hour)[8:] for hour in hours if hour >= first]

    assert shown(nights.find_published_outputs()) == ["25 02:00+02:00", "25 03:00+01:00"]
    assert shown(nights.missing(first, last)) == [
        "24 23:00+02:00",
        "25 00:00+02:00",
        "25 01:00+02:00",
        "25 04:00+01:00",
    ]


# A training at the end


def announced(folder: Path, created: str, train: Train) -> None:
    """The note of a publication in an output."""
    split = SplitFacts("", 5, 100, 1, folder.name)
    note = Publication(folder.name, "preprocess", "run", created, [split], None, None, None, None, [], train=train)
    write_note(folder / PUBLISHED, dump_document(note))


def covers(event: Event) -> bool:
    """Whether the server starts `train/train` of the shipped deployments at an event, as if it were of out/nightly."""
    from prefect.server.events.schemas.automations import EventTrigger
    from prefect.server.events.schemas.events import ReceivedEvent

    (spec,) = [one for one in read_file(FILE)["deployments"] if one["name"] == "train"]
    (wanted,) = spec["triggers"]
    trigger = EventTrigger(posture="Reactive", expect=wanted["expect"], match=wanted["match"], threshold=1, within=0)
    sent = event.model_dump(mode="json")
    sent["resource"]["prefect.resource.id"] = "rowmill.output.out-nightly"
    received = ReceivedEvent.model_validate({**sent, "received": datetime.now(UTC)})
    return trigger.covers(received) and trigger.expects(received.event)


@pytest.mark.promise("With `--train-once` one training starts, on the newest output, when the last run has ended")
def test_a_backfill_that_trains_once_announces_its_newest_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Event] = []
    monkeypatch.setattr(outbox, "send_new", sent.extend)
    nights = nights_of(tmp_path)
    assert backfill._announce_newest(nights) is None  # nothing is published
    for number, (day, train) in enumerate([("2026-03-03", "now"), ("2026-03-01", "later"), ("2026-03-02", "later")], 1):
        folder = tmp_path / f"out/v{number:04d}"
        output_of(folder, day)
        announced(folder, f"2026-03-09T00:00:0{number}+00:00", train)  # type: ignore[arg-type]

    newest = tmp_path / "out/v0003"
    assert [backfill._announce_newest(nights) for _ in range(2)] == [newest, newest]
    first, again = sent
    assert first.id == again.id  # the server counts it once
    assert (first.event, first.payload["path"], first.payload["version"]) == (
        "rowmill.output.backfilled", str(newest), "v0003",
    )  # fmt: skip
    notes = [read_publication(tmp_path / f"out/v000{number}") for number in (1, 3)]
    one, later = (published_events(newest, note)[-1] for note in notes if note)
    assert [covers(event) for event in (first, one, later)] == [True, True, False]

    output_of(tmp_path / "out/v0004", "2026-03-04")
    announced(tmp_path / "out/v0004", "2026-03-09T00:00:04+00:00", "now")  # by the schedule, which trains on it
    assert backfill._announce_newest(nights) is None


@pytest.mark.promise("While the server is away, it waits for an hour")
def test_a_server_that_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill, "POLL_SECONDS", 0.0)
    answers = iter([httpx.ConnectError("refused"), httpx.ReadError("reset"), "an answer"])

    def call() -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def always_away() -> Any:
        raise httpx.ConnectError("refused")

    assert backfill._retry_while_away(call) == "an answer"
    monkeypatch.setattr(backfill, "AWAY_SECONDS", 0.0)
    with pytest.raises(GiveUpError, match="give the same command again: it goes on"):
        backfill._retry_while_away(always_away)


# A real server of the test's own, which is killed and started again

DAYS = ["2026-03-28", "2026-03-29", "2026-03-30"]


class Daily(Host):
    """A folder with data of each day and a deployment over them."""

    def __init__(self, folder: Path, days: Sequence[str], cluster: dict[str, Any]) -> None:
        """`days` are those of the runs; each reads the rows of the day before."""
        for day in [(date.fromisoformat(day) - timedelta(days=1)).isoformat() for day in days]:
            (folder / "in" / day).mkdir(parents=True)
            pq.write_table(pa.table({"x": [1.0, 2.0], "day": [day] * 2}), folder / "in" / day / "a.parquet")
        job = {
            "source": {"path": "in/{date-1}"},
            "features": [{"columns": ["x", "day"]}],
            "output": {"path": "out", "on_existing": "version", "shuffle": "none", "files": 1},
            "cluster": cluster,
            "run": {"report": False, "timezone": "Europe/Berlin"},
        }
        schedule = {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "active": False, "slug": "nightly"}
        super().__init__(folder, job, poll_seconds=1, schedules=[schedule])
        self.environment[CLUSTERS] = cluster.get("address", "")
        self.environment[SWITCHES] = "tls"

    def labels(self, what: str) -> list[tuple[str, str]]:
        """(version, when a training starts) of each event of the output that the server has."""
        asked = {"filter": {"event": {"name": [f"rowmill.output.{what}"]}}}
        found = httpx.post(f"{self.api_url}/events/filter", json=asked).json()["events"]
        return sorted((one["resource"]["rowmill.version"], one["resource"]["rowmill.train"]) for one in found)

    def days(self) -> list[str]:
        """The day of each version, in the order in which they were published."""
        paths = sorted((self.folder / "out").glob("v*/_manifest.json"))
        return [json.loads(path.read_text())["dated"]["date"] for path in paths]


def killed(process: subprocess.Popen[str], how: signal.Signals = signal.SIGKILL) -> None:
    if process.poll() is None:
        os.killpg(process.pid, how)
    process.wait(60)


@pytest.mark.promise("with the days without a published output above it")
@pytest.mark.promise("It makes no day twice and leaves none out", "flows/NIGHTS.md#nights-that-are-missing")
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_backfill_goes_on_after_restarts_with_no_day_twice_and_none_left_out(
    tmp_path: Path, new_prefect_home: Callable[[Path], Path], cluster: Any
) -> None:
    host = Daily(tmp_path, DAYS, section_of(cluster))
    new_prefect_home(host.home)
    host.start_server()
    serving = host.serve()
    words = ("backfill", "preprocess/nights", "--from", DAYS[0], "--to", DAYS[-1], "--train-once")
    variables = {"PREFECT_HOME": str(host.home), "PREFECT_API_URL": host.api_url}

    def restart_server() -> subprocess.Popen[str]:
        until(lambda: len(host.days()) >= 2, "the second day")
        host.kill_server()
        host.start_server()
        return host.serve() if serving.poll() is not None else serving  # Prefect's runner may end without a server

    try:
        until(lambda: "press Ctrl-C to stop" in host.log, "serve")
        first = host.rowmill(*words, "--missing")
        until(lambda: len(host.days()) >= 1, "the first day")
        assert f"3 day(s) of the schedule have no published output\n{', '.join(DAYS)}\n" in host.log
        killed(first)  # the host of the command is gone
        with ThreadPoolExecutor() as beside:
            restarted = beside.submit(restart_server)
            second = rowmill(*words, folder=tmp_path, **variables)
            serving = restarted.result()
        assert second.exit_code == 0, second.output + host.log
        assert host.days() == DAYS
        third = rowmill(*words, folder=tmp_path, **variables)
        assert third.exit_code == 0, third.output
        assert host.days() == DAYS
        assert "3 day(s), 3 of them are published" in third.output
        assert f"rowmill.output.backfilled: a training can start on {tmp_path / 'out/v0003'}" in third.output
        until(lambda: host.labels("backfilled") == [("v0003", "now")], "the event, once for two commands")
        assert {train for _, train in host.labels("published")} == {"later"}
        table = httpx.get(f"{host.api_url}/artifacts/rowmill-nights-preprocess-nights/latest").json()["data"]
        assert table.startswith("**")  # this month has no run
    finally:
        killed(serving, signal.SIGTERM)
        host.kill_server()


@pytest.mark.promise("It makes no day twice and leaves none out", "flows/NIGHTS.md#nights-that-are-missing")
@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_sixty_days_are_backfilled_across_restarts_of_the_server(tmp_path: Path) -> None:
    """Over a change of the clocks, with a server that is killed twice and a command that is killed once."""
    days = [(date(2026, 2, 20) + timedelta(days=number)).isoformat() for number in range(60)]
    host = Daily(tmp_path, days, {"kind": "cpu", "workers": 1, "threads_per_worker": 1})
    host.start_server()
    serving = host.rowmill("serve", "--file", "nights.yaml")
    command = ("backfill", "preprocess/nights", "--from", days[0], "--to", days[-1])
    try:
        until(lambda: "press Ctrl-C to stop" in host.log, "serve")
        filling = host.rowmill(*command)
        for published_days, restarts_command in ((15, False), (30, True), (45, False)):
            until(lambda number=published_days: len(host.days()) >= number, f"{published_days} days", 900)
            if restarts_command:
                killed(filling)
                filling = host.rowmill(*command)
                continue
            host.kill_server()
            host.start_server()
            if serving.poll() is not None:
                serving = host.rowmill("serve", "--file", "nights.yaml")
        assert filling.wait(900) == 0, host.log
        assert host.days() == days
    finally:
        killed(serving, signal.SIGTERM)
        host.kill_server()
