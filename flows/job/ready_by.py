"""The time by which a run is to be ready: `run.ready_by`."""

from __future__ import annotations

from datetime import datetime, time, timedelta

from tasks.job.run_date import zone_of


def deadline(ready_by: str, timezone: str, scheduled: datetime) -> datetime:
    """The first time of day `ready_by` after the scheduled time of a run: of the day on which it starts, or of the next
    one, where the run starts later in the day.

    >>> from datetime import UTC
    >>> deadline("06:00", "Europe/Berlin", datetime(2026, 11, 21, 23, 30, tzinfo=UTC)).isoformat()
    '2026-11-22T06:00:00+01:00'
    >>> deadline("06:00", "Europe/Berlin", datetime(2026, 11, 21, 21, 30, tzinfo=UTC)).isoformat()
    '2026-11-22T06:00:00+01:00'
    """
    zone = zone_of(timezone)
    local = scheduled.astimezone(zone)
    clock = time.fromisoformat(ready_by)
    today = datetime.combine(local.date(), clock, zone)
    is_over = today.timestamp() <= scheduled.timestamp()
    return datetime.combine(local.date() + timedelta(days=1), clock, zone) if is_over else today
