"""Twelve faults planted in night 31: thresholds that thirty plain nights propose stop each, and name it.

The checks were developed on the faults of test_checks.py; none of these was used for that.
Each is planted in nights that are sketched whole, and in nights of which the histograms have one row of sixteen.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tasks.core.settings import Checks
from tasks.gate.checks import judge
from tasks.gate.earlier_outputs import Past
from tasks.gate.output_profile import Profile
from tests.tasks.gate.simulated import Shop, profile_of

pytestmark = pytest.mark.xdist_group("nights of the gate")  # one process makes them
NIGHTS, FURTHER = 30, 30
FEW, MANY = 12_000, 280_000  # rows of a night: the sketches of so many are of all rows, of a sample
STOP = Checks(on_finding="stop")
SEED = 11  # no other test has it


@cache
def shop(rows: int) -> Shop:
    return Shop(SEED, rows=rows)


def table_of(night: int, rows: int) -> pa.Table:
    """A plain night, in which 1 % of the scores are null."""
    table = shop(rows).table(night)
    missing = np.random.default_rng([SEED, night, 1]).random(len(table)) < 0.01
    return changed(table, "score", pa.array(table.column("score").to_numpy(), mask=missing))


@cache
def profile(night: int, rows: int) -> Profile:
    table = table_of(night, rows)
    return profile_of(table, shop(rows).steps(night, table))


def history(nights: int, rows: int) -> list[Past]:
    return [shop(rows).past(night, profile(night, rows)) for night in range(nights)][::-1]


def changed(table: pa.Table, name: str, values: Any) -> pa.Table:
    values = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
    return table.set_column(table.column_names.index(name), name, values)


def numbers(table: pa.Table, name: str) -> np.ndarray:
    return table.column(name).to_numpy(zero_copy_only=False)


def relabelled(table: pa.Table) -> pa.Table:
    return changed(table, "country", pc.replace_substring_regex(table["country"], "^DE$", "Germany"))


def retyped(table: pa.Table) -> pa.Table:
    return changed(table, "price", pc.cast(table["price"], pa.string()))


def milliseconds(table: pa.Table) -> pa.Table:
    return changed(table, "seconds", numbers(table, "seconds") * 1000)


def half_a_day(table: pa.Table) -> pa.Table:
    hours = pc.hour(table["event_time"])
    return table.filter(pc.less(hours, 12))


def twice(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table, table])


def rehashed(table: pa.Table) -> pa.Table:
    """Other ids in the range of the old ones: each value has one."""
    ids = numbers(table, "product_id").astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)
    return changed(table, "product_id", (ids.astype(np.int64) * 24_000_000 >> 24) + 1_000_003)


def almost_all_null(table: pa.Table) -> pa.Table:
    missing = np.random.default_rng(5).random(len(table)) < 0.85
    return changed(table, "score", pa.array(numbers(table, "score"), mask=missing))


def constant(table: pa.Table) -> pa.Table:
    return changed(table, "quantity", np.ones(len(table), np.int64))


def swapped(table: pa.Table) -> pa.Table:
    return changed(changed(table, "price", table["margin"]), "margin", table["price"])


def cents(table: pa.Table) -> pa.Table:
    return changed(table, "price", numbers(table, "price") * 100)


def new_country(table: pa.Table) -> pa.Table:
    there = np.random.default_rng(6).random(len(table)) < 0.02
    return changed(table, "country", np.where(there, "AU", numbers(table, "country").astype(str)))


def truncated(table: pa.Table) -> pa.Table:
    """The one file of the night ends after 70 % of its rows, which are in the order of time."""
    return table.slice(0, int(0.7 * len(table)))


# By fault: the column that must be named, and the checks that may name it.
TWELVE: dict[str, tuple[Callable[[pa.Table], pa.Table], str, set[str]]] = {
    "relabelled category": (relabelled, "country", {"new_values"}),
    "retyped column": (retyped, "price", {"columns"}),
    "seconds to milliseconds": (milliseconds, "seconds", {"mean", "extremes"}),
    "half a day missing": (half_a_day, "event_time", {"mean", "extremes"}),
    "duplicated delivery": (twice, "", {"duplicated"}),
    "ids re-hashed": (rehashed, "product_id", {"jensen_shannon", "psi"}),
    "nulls 1 % to 85 %": (almost_all_null, "score", {"nulls"}),
    "a constant column": (constant, "quantity", {"constant"}),
    "a swapped pair of columns": (swapped, "margin, price", {"swapped"}),
    "prices in cents": (cents, "price", {"mean"}),
    "a new country": (new_country, "country", {"new_values"}),
    "a truncated file": (truncated, "", {"rows"}),
}


@pytest.mark.parametrize("rows", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TWELVE)
def test_each_fault_is_stopped_and_named(name: str, rows: int) -> None:
    fault, column, checks = TWELVE[name]
    table = fault(table_of(NIGHTS, rows))
    users = shop(rows).steps(NIGHTS, table)
    verdict = judge(profile_of(table, users), history(NIGHTS, rows), None, STOP, "commit", shop(rows).day(NIGHTS))
    found = [finding for finding in verdict.findings if finding.column == column and finding.check in checks]
    assert verdict.verdict == "stop"
    assert found, [finding.text for finding in verdict.findings]
    assert (column or "row") in found[0].text or all(name in found[0].text for name in column.split(", "))


@pytest.mark.slow
def test_plain_nights_raise_at_most_one_false_alarm() -> None:
    """Night 31 and thirty further plain nights, each with those before it as history."""
    alarms = []
    for night in range(NIGHTS, NIGHTS + 1 + FURTHER):
        verdict = judge(profile(night, FEW), history(night, FEW), None, STOP, "commit", shop(FEW).day(night))
        alarms += [f"night {night + 1}: {finding.text}" for finding in verdict.findings]
    assert len(alarms) <= 1, alarms
