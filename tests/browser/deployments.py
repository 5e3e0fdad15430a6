"""The deployments that one `rowmill serve` offers to all tests of the browser, and the data that they read."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.flows.test_gate import days, job_of

PREPROCESS = "flows.preprocess.preprocess"
SAMPLE = {"path": "shop/train", "valid": "shop/valid", "sample": {"name": "ecommerce", "rows": 3000}}
# Half past midnight in each zone, on both sides of a change of the clocks: the run's time, and the day that it reads.
CHANGES = {
    "Europe/Berlin": {"2026-03-28T23:30:00Z": "2026-03-28", "2026-03-29T22:30:00Z": "2026-03-29"},
    "America/New_York": {"2026-11-01T04:30:00Z": "2026-10-31", "2026-11-02T05:30:00Z": "2026-11-01"},
}
SHORT = {"Europe/Berlin": "berlin", "America/New_York": "new-york"}


@cache
def today() -> date:
    """The day on which these tests began."""
    return datetime.now(UTC).date()


def deployments(folder: Path, cluster: dict[str, Any]) -> list[dict[str, Any]]:
    """Deployments that work in a folder, on a running cluster."""
    toy = {
        "recipe": "toy",
        "source": {"path": "toy", "sample": {"rows": 2000}},
        "output": {"path": "nightly", "on_existing": "version", "files": 2},
        "cluster": cluster,
    }
    again = {"base": "out/nights", "source": {"path": "in/{date-1}"}, "cluster": cluster}
    asks = job_of(folder / "asks", None, "ask") | {"cluster": cluster}
    return [
        {"name": "by-form", "entrypoint": PREPROCESS, "parameters": {"source": SAMPLE, "cluster": cluster}},
        {"name": "toy", "entrypoint": PREPROCESS, "parameters": toy},
        {"name": "nights", "entrypoint": PREPROCESS, "parameters": night("out/nights", "UTC", cluster)},
        {"name": "refit", "entrypoint": "flows.refit.refit", "parameters": again},
        *({"name": SHORT[zone], "entrypoint": PREPROCESS, "parameters": night(f"out/{SHORT[zone]}", zone, cluster),
           "schedules": [{"cron": "30 0 * * *", "timezone": zone, "slug": "nightly"}]} for zone in CHANGES),
        {"name": "asks", "entrypoint": PREPROCESS, "parameters": asks},
    ]  # fmt: skip


def night(output: str, timezone: str, cluster: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a job that reads the day before."""
    return {
        "source": {"path": "in/{date-1}"},
        "features": [{"columns": ["price"], "ops": [{"op": "Normalize"}]},
                     {"columns": ["brand"], "ops": [{"op": "Categorify"}]}],
        "output": {"path": output, "on_existing": "version", "files": 1},
        "cluster": cluster,
        "run": {"timezone": timezone, "lock": "wait"},
    }  # fmt: skip


def make_days(folder: Path) -> None:
    """What the nights read: the last days but yesterday, and those around the changes of the clocks."""
    for number in range(2, 7):
        day_of(folder, today() - timedelta(days=number), 200 * (9 - number))
    for read in CHANGES.values():
        for day in read.values():
            day_of(folder, date.fromisoformat(day), 50)
    days(folder / "asks")


def day_of(folder: Path, day: date, rows: int) -> None:
    """A file of one day, `in/DAY/a.parquet`; later days have more brands."""
    (path := folder / "in" / day.isoformat()).mkdir(parents=True)
    brands = [f"brand {n % (20 + day.toordinal() % 50)}" for n in range(rows)]
    pq.write_table(pa.table({"price": [float(n) for n in range(rows)], "brand": brands}), path / "a.parquet")
