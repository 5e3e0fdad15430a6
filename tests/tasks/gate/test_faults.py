"""Twelve faults planted in night 31: thresholds that thirty plain nights propose stop each, and name it.

The checks were developed on the faults of test_checks.py; none of these was used for that.
Each is planted in nights of which all rows are in the sample, and in nights of which it has a part.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from flows.job.job import make_job
from tasks.core.settings import Checks
from tasks.gate.decide import judge
from tasks.gate.earlier_outputs import Past
from tasks.profile.output_profile import Association, ColumnProfile, Profile
from tests.examples import nightly_but
from tests.stages import run_stages
from tests.tasks.gate.simulated import FIRST, Shop, profile_of

pytestmark = pytest.mark.xdist_group("nights of the gate")  # one process makes them
NIGHTS, FURTHER = 30, 30
FEW, MANY = 12_000, 90_000  # rows of a night: the sample is of all of them, of a part
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


# Those whose checks find nothing else in test_checks.py or test_locate.py; the others with -m nightly.
ALWAYS = ("retyped column", "half a day missing", "duplicated delivery", "a constant column")


@pytest.mark.parametrize("rows", [FEW, pytest.param(MANY, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", nightly_but(ALWAYS, TWELVE))
def test_each_fault_is_stopped_and_named(name: str, rows: int) -> None:
    fault, column, checks = TWELVE[name]
    table = fault(table_of(NIGHTS, rows))
    users = shop(rows).steps(NIGHTS, table)
    verdict = judge(profile_of(table, users), history(NIGHTS, rows), None, STOP, shop(rows).day(NIGHTS))
    found = [finding for finding in verdict.findings if finding.column == column and finding.check in checks]
    assert verdict.verdict == "stop"
    assert found, [finding.text for finding in verdict.findings]
    assert (column or "row") in found[0].text or all(name in found[0].text for name in column.split(", "))


@pytest.mark.nightly
def test_plain_nights_raise_at_most_one_false_alarm() -> None:
    """Night 31 and thirty further plain nights, each with those before it as history."""
    alarms = []
    for night in range(NIGHTS, NIGHTS + 1 + FURTHER):
        verdict = judge(profile(night, FEW), history(night, FEW), None, STOP, shop(FEW).day(night))
        alarms += [f"night {night + 1}: {finding.text}" for finding in verdict.findings]
    assert len(alarms) <= 1, alarms


# Faults that only the rows together show, in profiles that runs make


def events(rows: int, night: int, part: int = 0) -> pa.Table:
    """A part of a night of clicks: the dearer a product is the fewer, and the more the later the hour; products have a
    price."""
    rng = np.random.default_rng([SEED, night, part] if part else [SEED, night])
    product = (2_000 * rng.random(rows) ** 2).astype(np.int64)
    price = np.exp(np.random.default_rng(SEED).normal(3, 1, 2_000))[product]
    hour = np.clip(rng.normal(14, 5, rows), 0, 23.999)
    chance = 1 / (1 + np.exp(0.5 * np.log(price) - 0.1 * hour))
    day = night * 86_400_000_000
    return pa.table({
        "click": (rng.random(rows) < chance).astype(np.int8),
        "product": pa.array([f"p{n}" for n in range(2_000)]).take(pa.array(product)),
        "price": price.round(2),
        "at": pa.array(day + (hour * 3.6e9).astype(np.int64), pa.timestamp("us")),
        "visit": rng.integers(0, 2**40, rows),
    })  # fmt: skip


def shuffled(name: str) -> Callable[[pa.Table], pa.Table]:
    return lambda table: changed(table, name, table[name].take(np.random.default_rng(3).permutation(len(table))))


# By fault: what is planted, the check and the column that must be named.
TOGETHER: dict[str, tuple[Callable[[pa.Table], pa.Table], str, str]] = {
    "a tenth delivered again": (lambda t: pa.concat_tables([t, t.slice(0, len(t) // 10)]), "repeated", ""),
    "an hour missing": (lambda t: t.filter(pc.not_equal(pc.hour(t["at"]), 13)), "psi", "at"),
    "the label shuffled": (shuffled("click"), "associations", "click"),
    "a key shuffled": (shuffled("product"), "associations", "product"),
}


def profile_of_run(table: pa.Table, folder: Path, engine: str) -> Profile:
    """The profile that a run makes of a table of several files."""
    (folder / "in").mkdir(parents=True)
    for part in range(3):
        size = -(-len(table) // 3)
        pq.write_table(table.slice(part * size, size), folder / "in" / f"{part}.parquet")
    return profile_of_files(folder, engine)


def profile_of_files(folder: Path, engine: str, threads: int = 2) -> Profile:
    """The profile that a run makes of the files in the folder `in`; all of them are removed."""
    job = {
        "source": {"path": str(folder / "in")},
        "features": [
            {"columns": ["product"], "ops": [{"op": "Categorify"}]},
            {"columns": ["price"], "ops": [{"op": "Normalize"}]},
            {"columns": ["click", "at", "visit"]},
        ],
        "output": {"path": str(folder / "out"), "files": 2},
        "run": {"profile": True, "report": False},
    }  # fmt: skip
    run_stages(make_job(job).request(engine), threads)
    profile = Profile.from_json(json.loads((folder / "out" / "_profile.json").read_bytes()))
    shutil.rmtree(folder)
    return profile


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[[int], list[Past]]:
    """Eight plain nights of so many rows, newest first."""
    engine = request.config.getoption("--engine")

    @cache
    def nights(rows: int) -> list[Past]:
        folder = tmp_path_factory.mktemp("nights")
        profiles = [profile_of_run(events(rows, night), folder / str(night), engine) for night in range(8)]
        return [Past(f"v{n + 1:04d}", FIRST + timedelta(days=n), one) for n, one in enumerate(profiles)][::-1]

    return nights


@pytest.mark.promise("rows that are equal to an earlier row")
@pytest.mark.parametrize("rows", [30_000, pytest.param(1_000_000, marks=pytest.mark.nightly)])
def test_faults_that_only_whole_rows_show_are_stopped_and_named(
    rows: int, good: Callable[[int], list[Past]], tmp_path: Path, engine: str
) -> None:
    plain = events(rows, 8)
    night = FIRST + timedelta(days=8)
    calm = judge(profile_of_run(plain, tmp_path / "plain", engine), good(rows), None, STOP, night)
    assert calm.findings == ()
    for name, (fault, check, column) in TOGETHER.items():
        verdict = judge(profile_of_run(fault(plain), tmp_path / name, engine), good(rows), None, STOP, night)
        assert verdict.verdict == "stop", name
        named = {(finding.check, finding.column) for finding in verdict.findings}
        assert (check, column) in named, (name, [finding.text for finding in verdict.findings])
        of_check = {column for other, column in named if other == check}
        assert of_check == {column}, (name, named)


def test_a_column_that_goes_with_one_other_alone_is_named_with_it() -> None:
    """Neither of the two can be told from the other; a column whose partners lost theirs is not named."""
    before = {("a", "b"): 0.5, ("c", "d"): 0.6, ("c", "e"): 0.4, ("c", "f"): 0.3, ("d", "e"): 0.02}
    now = before | {("a", "b"): 0.1, ("c", "d"): 0.0, ("c", "e"): 0.1, ("c", "f"): 0.1}
    columns = {name: ColumnProfile(name, "float64", 10_000, 0, mean=0.0, std=1.0) for name in "abcdef"}
    one, other = (
        Profile(10_000, columns, associations={pair: Association(v) for pair, v in pairs.items()}, associated=10_000)
        for pairs in (before, now)
    )
    past = [Past(f"v{n:04d}", FIRST + timedelta(days=n), one) for n in range(8, 0, -1)]
    verdict = judge(other, past, None, STOP, FIRST + timedelta(days=9))
    assert [finding.column for finding in verdict.findings] == ["a", "c"]
    assert "no longer go together with those of d, e, f" in verdict.findings[1].text
