"""The date of a run: what patterns become, in which time zone, over changes of the clocks."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.errors import JobError
from tasks.job.run_date import find_fixed_folder, is_pattern, names_hour, parse_run_date, resolve_patterns, run_date_at

NOVEMBER = run_date_at(datetime(2026, 11, 23, 1, 0, tzinfo=UTC), "UTC", "scheduled")


@pytest.mark.parametrize(
    ("text", "became"),
    [
        ("logs/{date}", "logs/2026-11-23"),
        ("logs/{date-1}/", "logs/2026-11-22/"),
        ("logs/{date-1:%Y/%m/%d}", "logs/2026/11/22"),
        ("logs/{ date - 23 }", "logs/2026-10-31"),
        ("{date+7:%G-W%V}", "2026-W49"),
        ("{date:%y%m%d}/{hour}", "261123/01"),
        ("{hour-2:%Y-%m-%dT%H%z}", "2026-11-22T23+0000"),
        ("{date:%-d.%-m.}", "23.11."),
        ("{date:100%%}", "100%"),
        ("{{date}}/{date}", "{date}/2026-11-23"),
        ("day == '{date-1}' and x in [1, 2]", "day == '2026-11-22' and x in [1, 2]"),
        ("plain", "plain"),
    ],
)
def test_what_a_pattern_becomes(text: str, became: str) -> None:
    assert resolve_patterns(text, NOVEMBER) == became


@pytest.mark.promise("Anything else in braces is an error that lists the patterns")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{dat}",
            "there is no {dat}\n  where: source.path\n  why: in '{dat}'\n  do: did you mean 'date'?",
        ),
        ("{yesterday}", "write {date}, {date-1}, {hour} or, with a format, {date:%Y/%m/%d}; {{ and }} are braces"),
        ("{}", "there is no {}"),
        ("{date*2}", "there is no {date*2}"),
        ("a{", "a brace of 'a{' has no partner"),
        ("a}", "a brace of 'a}' has no partner"),
        ("{date:%Q}", "{date:%Q} has the unknown directive '%Q'"),
        ("{date:%B}", "{date:%B} has the unknown directive '%B'"),
        ("{date:%}", "{date:%} has the unknown directive '%'"),
        ("{date:%H}", "{date:%H} is a day, and '%H' needs a time\n  where: source.path\n  do: write {hour:%H}"),
        ("{date-99999999}", "{date-99999999} is out of reach"),
        ("{date+99999:%Y}{date-99999}{date-99999}" * 9 + "{date-100000}{hour-x}", "there is no {hour-x}"),
    ],
)
def test_a_pattern_that_says_nothing_is_an_error(text: str, message: str) -> None:
    with pytest.raises(JobError) as caught:
        resolve_patterns(text, NOVEMBER, "source.path")
    assert message in str(caught.value)


def test_the_day_is_that_of_the_time_zone() -> None:
    instant = datetime(2026, 11, 22, 23, 30, tzinfo=UTC)
    zones = ("UTC", "Europe/Berlin", "America/New_York", "Pacific/Kiritimati")
    days = {zone: resolve_patterns("{date} {hour}", run_date_at(instant, zone, "scheduled")) for zone in zones}
    assert days == {
        "UTC": "2026-11-22 23",
        "Europe/Berlin": "2026-11-23 00",
        "America/New_York": "2026-11-22 18",
        "Pacific/Kiritimati": "2026-11-23 13",
    }


# A schedule of 2:30 every night, as Prefect's cron makes it: one instant a day, in two zones over both changes.
NIGHTS = {
    ("Europe/Berlin", "spring"): ["2026-03-28T01:30Z", "2026-03-29T01:30Z", "2026-03-30T00:30Z"],
    ("Europe/Berlin", "autumn"): ["2026-10-24T00:30Z", "2026-10-25T00:30Z", "2026-10-26T01:30Z"],
    ("America/New_York", "spring"): ["2026-03-07T07:30Z", "2026-03-08T07:30Z", "2026-03-09T06:30Z"],
    ("America/New_York", "autumn"): ["2026-10-31T06:30Z", "2026-11-01T06:30Z", "2026-11-02T07:30Z"],
}


@pytest.mark.promise("the day of the run, the day before, the day after: calendar days, whatever the clocks do")
@pytest.mark.parametrize(("zone", "season"), NIGHTS)
def test_each_night_has_its_own_day_over_a_change_of_the_clocks(zone: str, season: str) -> None:
    nights = [run_date_at(datetime.fromisoformat(text), zone, "scheduled") for text in NIGHTS[zone, season]]
    first = nights[0].day
    assert [night.day for night in nights] == [first, first + timedelta(days=1), first + timedelta(days=2)]
    assert [resolve_patterns("{date-1}", night) for night in nights] == [
        (first + timedelta(days=shift)).isoformat() for shift in (-1, 0, 1)
    ]


def hours_before(zone: str, instant: datetime, count: int) -> list[str]:
    run_date = run_date_at(instant, zone, "scheduled")
    return [resolve_patterns(f"{{hour-{shift}:%H%z}}", run_date) for shift in range(count)]


@pytest.mark.promise("when the clocks change, no hour is skipped or repeated")
def test_hours_are_those_that_passed() -> None:
    """In spring 2 o'clock does not come, in autumn it comes twice; the offset tells the two apart."""
    spring = hours_before("Europe/Berlin", datetime(2026, 3, 29, 2, 0, tzinfo=UTC), 4)
    autumn = hours_before("Europe/Berlin", datetime(2026, 10, 25, 2, 0, tzinfo=UTC), 4)
    new_york = hours_before("America/New_York", datetime(2026, 11, 1, 7, 0, tzinfo=UTC), 4)

    assert spring == ["04+0200", "03+0200", "01+0100", "00+0100"]
    assert autumn == ["03+0100", "02+0100", "02+0200", "01+0200"]
    assert new_york == ["02-0500", "01-0500", "01-0400", "00-0400"]


@pytest.mark.parametrize(
    ("text", "zone", "shown"),
    [
        ("2026-11-22", "Europe/Berlin", "2026-11-22"),
        ("2026-11-22T02:00", "Europe/Berlin", "2026-11-22T02:00:00+01:00"),
        ("2026-07-22 02:00", "Europe/Berlin", "2026-07-22T02:00:00+02:00"),
        ("2026-11-22T23:30Z", "Europe/Berlin", "2026-11-23T00:30:00+01:00"),
        ("2026-10-25T02:30", "Europe/Berlin", "2026-10-25T02:30:00+02:00"),
        ("2026-10-25T02:30+01:00", "Europe/Berlin", "2026-10-25T02:30:00+01:00"),
    ],
)
def test_run_date_names_a_day_or_a_time(text: str, zone: str, shown: str) -> None:
    run_date = parse_run_date(text, zone)
    assert run_date.text == shown
    assert parse_run_date(run_date.text, zone) == run_date


@pytest.mark.parametrize(
    ("text", "zone", "message"),
    [
        ("tomorrow", "UTC", "'tomorrow' is not a date"),
        ("2026-02-29", "UTC", "'2026-02-29' is not a date"),
        ("20261122", "UTC", "'20261122' is not a date"),
        ("9999-12-31T23:30-05:00", "UTC", "'9999-12-31T23:30-05:00' is not a date"),
        ("0001-01-01T00:00", "Europe/Berlin", "'0001-01-01T00:00' is not a date"),
        ("2026-03-29T02:30", "Europe/Berlin", "there is no 2026-03-29T02:30 in Europe/Berlin"),
        (
            "2026-11-22",
            "Europe/Berlim",
            "there is no time zone 'Europe/Berlim'\n  where: run.timezone\n  do: did",
        ),
        ("2026-11-22", "../etc/passwd", "there is no time zone '../etc/passwd'"),
    ],
)
def test_what_is_no_date_is_refused(text: str, zone: str, message: str) -> None:
    with pytest.raises(JobError) as caught:
        parse_run_date(text, zone)
    assert message in str(caught.value)


def test_a_day_alone_has_no_hour() -> None:
    with pytest.raises(JobError, match=r"run\.date has no hour, and \{hour\} needs one"):
        resolve_patterns("{hour}", parse_run_date("2026-11-22", "UTC"))


def test_which_texts_hold_a_date() -> None:
    assert [is_pattern(text) for text in ("{date}", "{{date}}", "a", "{dat}", None, ["{date}"])] == [
        True, False, False, True, False, False,
    ]  # fmt: skip
    assert names_hour("a/{hour-1:%H}")
    assert not names_hour("{date}")
    assert [find_fixed_folder(path) for path in ("in/{date}/a", "in/d{date}", "in/*.csv", "in/a", "/{date}")] == [
        "in", "in", "in", "in", "",
    ]  # fmt: skip


@given(
    st.datetimes(datetime(1990, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC)),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    st.integers(-400, 400),
)
def test_the_text_of_a_date_gives_it_again(instant: datetime, zone: str, shift: int) -> None:
    """A retry or a backfill that sets `run.date` to the text of a date means the same day and the same hour."""
    run_date = run_date_at(instant.replace(microsecond=0), zone, "started")
    again = parse_run_date(run_date.text, zone)
    pattern = f"{{date{shift:+d}}} {{hour{shift:+d}:%F %T %z}}"

    assert resolve_patterns(pattern, again) == resolve_patterns(pattern, run_date)
    assert date.fromisoformat(resolve_patterns(f"{{date{shift:+d}}}", again)) == run_date.day + timedelta(days=shift)
    # In UTC: Python calls times of two zones unequal, whatever they are, in an hour that comes twice.
    assert run_date.time.astimezone(UTC) == instant.replace(microsecond=0)
