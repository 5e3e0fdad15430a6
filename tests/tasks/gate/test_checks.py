"""The judgement of nights: plain ones pass, own faults are named in a sentence, settings decide what follows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tasks.core.contract import make_contract
from tasks.core.settings import Check, Checks
from tasks.engines.hashing import murmur3
from tasks.errors import DataError, JobError
from tasks.gate.decide import judge
from tasks.gate.earlier_outputs import Past
from tasks.gate.figures import compute_figures
from tasks.gate.notes import read_gate
from tasks.gate.verdict import Finding, Verdict, choose_outcome
from tasks.profile.output_profile import ColumnProfile, Profile, StepProfile
from tasks.storage.documents import dump_document, parse_document
from tests.examples import nightly_but
from tests.tasks.gate.simulated import FIRST, SHOPS_OF_ROWS, Shop, profile_of

NIGHTS = 30
TEN = 10  # nights of which all checks may stop, where no more are needed
STOP = Checks(on_finding="stop")
Fault = Callable[[pa.Table], pa.Table]


@cache
def shop() -> Shop:
    return Shop(3)


@cache
def history() -> tuple[Past, ...]:
    """Thirty plain nights, newest first."""
    return tuple(shop().past(night) for night in range(NIGHTS))[::-1]


@cache
def tonight() -> pa.Table:
    return shop().table(NIGHTS)


def verdict_of(table: pa.Table, settings: Checks = STOP, steps: Any = (), nights: int = NIGHTS) -> Verdict:
    return judge(profile_of(table, steps), history()[:nights], None, settings, shop().day(NIGHTS))


def with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    values = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
    return table.set_column(table.column_names.index(name), name, values)


def plain(table: pa.Table, name: str) -> np.ndarray:
    return table.column(name).to_numpy()


def chance(table: pa.Table, share: float) -> np.ndarray:
    return np.random.default_rng(11).random(len(table)) < share


def test_a_plain_night_passes_and_thresholds_are_proposed() -> None:
    verdict = verdict_of(tonight())
    assert (verdict.verdict, verdict.findings) == ("pass", ())
    assert verdict.compared_with[:2] == ["v0030", "v0029"]
    assert 0.05 <= verdict.proposed["rows"][""] < 0.3
    assert set(verdict.proposed["jensen_shannon"]) == {*tonight().column_names}
    assert any(note.startswith("order_id: its values move on every night") for note in verdict.notes)


def alarms_of_plain_nights(seed: int, nights: Iterable[int]) -> list[str]:
    made = Shop(seed, rows=5_000)
    past = [made.past(night) for night in range(30)][::-1]
    alarms = []
    for night in nights:
        verdict = judge(past[29 - night].profile, past[30 - night :], None, STOP, made.day(night))
        alarms += [f"night {night}: {finding.text}" for finding in verdict.findings]
    return alarms


def test_five_plain_nights_have_no_false_alarm() -> None:
    """The first, the second, one of the first weekend, the first that may stop, and a late one."""
    assert alarms_of_plain_nights(1, (0, 1, 5, 7, 27)) == []


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 2])
def test_thirty_plain_nights_have_at_most_one_false_alarm(seed: int) -> None:
    """From the first night on: with few nights there are only warnings, and of these as few."""
    alarms = alarms_of_plain_nights(seed, range(30))
    assert len(alarms) <= 1, alarms


def shifted(hours: int) -> Fault:
    def fault(table: pa.Table) -> pa.Table:
        moments = plain(table, "event_time").astype("datetime64[us]") + np.timedelta64(hours, "h")
        return with_column(table, "event_time", moments)

    return fault


def lost(country: str, share: float) -> Fault:
    return lambda table: table.filter(pa.array(~((plain(table, "country") == country) & chance(table, share))))


# Faults to develop on: the column that a finding names, and its check.
OWN: dict[str, tuple[str, str, Fault]] = {
    "a column shifted by an hour": ("event_time", "mean", shifted(1)),
    "another time zone": ("event_time", "extremes", shifted(-9)),
    "a fifth of a category lost": ("country", "l_infinity", lost("US", 0.2)),
    "half of a category lost": ("country", "psi", lost("US", 0.5)),
    "a rare kind lost": (
        "event_type", "jensen_shannon", lambda table: table.filter(pc.not_equal(table["event_type"], "cart")),
    ),
    "another unit": ("margin", "mean", lambda table: with_column(table, "margin", plain(table, "margin") * 10)),
    "truncated ids": ("product_id", "distinct", lambda table: with_column(
        table, "product_id", plain(table, "product_id") // 100_000)),
    "another sign": ("price", "extremes", lambda table: with_column(table, "price", -plain(table, "price"))),
    "a default in a twentieth of the rows": ("score", "l_infinity", lambda table: with_column(
        table, "score", np.where(chance(table, 0.05), np.float32(-1), plain(table, "score")))),
    "a default country": ("country", "l_infinity", lambda table: with_column(
        table, "country", np.where(chance(table, 0.1), "US", plain(table, "country").astype(str)))),
    "a few nulls where there were none": ("score", "nulls", lambda table: with_column(
        table, "score", pa.array(plain(table, "score"), mask=chance(table, 0.003)))),
    "one visitor in a twentieth of the rows": ("user_id", "l_infinity", lambda table: with_column(
        table, "user_id", np.where(chance(table, 0.05), 500_000_031, plain(table, "user_id")))),
    "a blank behind a word": ("country", "new_values", lambda table: with_column(
        table, "country", pc.replace_substring_regex(table["country"], "^IN$", "IN "))),
    "rounded prices": ("price", "distinct", lambda table: with_column(
        table, "price", np.round(plain(table, "price")))),
    "twice the scatter": ("score", "quantiles", lambda table: with_column(
        table, "score", plain(table, "score") * np.float32(2))),
    "a third of the rows twice": ("", "rows", lambda table: pa.concat_tables([table, table.slice(0, len(table) // 3)])),
}  # fmt: skip


# One fault of each check; the others with -m nightly.
ONE_OF_EACH = (
    "a column shifted by an hour", "another time zone", "a fifth of a category lost", "half of a category lost",
    "a rare kind lost", "truncated ids", "a few nulls where there were none", "a blank behind a word",
    "twice the scatter", "a third of the rows twice",
)  # fmt: skip


def test_each_check_of_the_faults_has_one_in_every_run() -> None:
    assert [OWN[name][1] for name in ONE_OF_EACH] == [*dict.fromkeys(check for _, check, _ in OWN.values())]


@pytest.mark.parametrize("name", nightly_but(ONE_OF_EACH, OWN))
def test_own_faults_are_stopped_and_named(name: str) -> None:
    column, check, fault = OWN[name]
    verdict = verdict_of(fault(tonight()))
    assert verdict.verdict == "stop"
    assert (column, check) in {(one.column, one.check) for one in verdict.findings}
    assert all(one.figure > one.threshold and one.text for one in verdict.findings)


def texts_of(table: pa.Table) -> dict[tuple[str, str], str]:
    """The first sentence of each check of a column."""
    return {(finding.column, finding.check): finding.text for finding in reversed(verdict_of(table).findings)}


def test_sentences_say_what_changed_by_how_much_against_what_threshold() -> None:
    table = tonight()
    cut = table.slice(0, len(table) // 2)
    rows = texts_of(cut)["", "rows"]
    assert rows.startswith(f"rows: {len(cut):,} rows, 4")
    assert " % fewer than the " in rows
    assert " that 30 good nights and the weekday predict (threshold 1" in rows
    faulty = with_column(table, "score", pa.array(plain(table, "score"), mask=chance(table, 0.85)))
    faulty = with_column(faulty, "price", plain(table, "price") * 100)
    faulty = OWN["a blank behind a word"][2](shifted(5)(faulty))
    texts = texts_of(faulty)
    text = texts["score", "nulls"]
    assert text.startswith("score: 8")
    assert "% of the values are null, 30 good nights and the weekday predict 0 %: a change of 8" in text
    assert text.endswith("points (threshold 0.09)")
    cents = texts["price", "mean"]
    assert "price: the mean is " in cents
    assert "standard deviations away (threshold 0." in cents
    times = texts["event_time", "extremes"]
    assert "the largest value is 2026-10-08 0" in times
    assert "predict 2026-10-07 23:59: " in times
    assert " hours away (threshold 1.2)" in times
    strange = texts["country", "new_values"]
    assert "of the values were in none of 30 good nights: 'IN ' (" in strange
    moved = texts_of(lost("US", 0.5)(table))["country", "jensen_shannon"]
    assert moved.startswith("country: the distribution has moved by 0.1")
    assert "(Jensen-Shannon distance, threshold 0.05) from what 30 good nights and the weekday predict" in moved
    assert "; most at 'US': 39.8 % -> 2" in moved


def test_columns_that_come_go_and_change_their_type() -> None:
    table = tonight().drop_columns(["margin"]).append_column("fresh", pa.array(np.zeros(len(tonight()))))
    table = with_column(table, "product_id", pc.cast(table["product_id"], pa.string()))
    texts = {f.column: f.text for f in verdict_of(table, nights=TEN).findings if f.check == "columns"}
    assert (
        texts
        == {
            "margin": "margin: the column is missing, v0030 had it as float64",
            "fresh": "fresh: the column (float64) is new, v0030 did not have it",
            "product_id": "product_id: the column is string, it was int64 in v0030",
        }
        or texts["margin"] == "margin: the column is missing, v0030 had it as float64"
    )
    profile = profile_of(table)
    contract = make_contract({"columns": {"margin": {"missing": "evolve"}, "product_id": {}, "fresh": {}}})
    ruled = judge(profile, history()[:TEN], contract, STOP, shop().day(NIGHTS))
    assert [f for f in ruled.findings if f.check == "columns"] == []  # the contract says what is right


def test_after_a_night_of_one_row_nothing_looks_delivered_twice() -> None:
    tiny = Past("v0001", None, profile_of(pa.table({"x": [1]})))
    verdict = judge(profile_of(pa.table({"x": [n % 9 for n in range(100)]})), [tiny], None, STOP, None)
    assert [f.text for f in verdict.findings if f.check == "duplicated"] == []
    assert [f.check for f in verdict.findings if f.check == "rows"] == ["rows"]


def test_the_same_rows_again_and_every_row_twice() -> None:
    again = judge(history()[0].profile, history()[:TEN], None, STOP, shop().day(NIGHTS))
    texts = [f.text for f in again.findings if f.check == "duplicated"]
    assert texts == [f"the rows are those of v0030: {history()[0].profile.rows:,} rows with the same values"]
    twice = verdict_of(pa.concat_tables([tonight(), tonight()]), nights=TEN)
    texts = [f.text for f in twice.findings if f.check == "duplicated"]
    assert texts == ["every row occurs 2 times: all counts of values are multiples of 2"]
    partly = verdict_of(pa.concat_tables([tonight(), tonight().slice(0, len(tonight()) // 3)]))
    texts = [f.text for f in partly.findings if f.check == "duplicated"]
    assert texts[0].startswith("some rows look delivered twice: there are 2")


def test_steps_are_compared_by_shares() -> None:
    def step(strange: int) -> list[StepProfile]:
        return [StepProfile("3:brand", "JoinExternal", ("brand",), 1_000, unmatched=strange, failed_casts=0)]

    past = [
        Past(f"v{n}", FIRST + timedelta(days=n), Profile(1_000, steps={"3:brand": step(20 + n % 3)[0]}))
        for n in range(10)
    ]
    tonight = Profile(1_000, steps={"3:brand": step(300)[0]})
    verdict = judge(tonight, past[::-1], None, STOP, FIRST + timedelta(days=10))
    (finding,) = verdict.findings
    assert (finding.column, finding.check, finding.now) == ("brand", "unmatched", 0.3)
    assert finding.text.startswith("brand: 30 % of the rows have no match in the joined table, 10 good nights predict")


def test_few_nights_only_warn_unless_the_user_has_set_something() -> None:
    table = with_column(tonight(), "price", plain(tonight(), "price") * 100)
    assert verdict_of(table, nights=5).verdict == "warn"
    assert verdict_of(table, Checks(on_finding="stop", psi=Check(level="ask")), nights=5).verdict == "ask"
    assert verdict_of(table, Checks(on_finding="stop", psi=Check(threshold=0.2)), nights=5).verdict == "stop"
    assert verdict_of(table, Checks(on_finding="stop", nights=5), nights=5).verdict == "stop"
    assert verdict_of(table, nights=5).proposed == {}
    assert verdict_of(table, Checks()).verdict == "warn"  # warn is what a job without a word about it gets
    assert verdict_of(table, nights=0).findings == ()


@pytest.mark.parametrize("check", ["mean", "extremes", "quantiles"])
def test_a_threshold_of_the_user_counts_from_the_second_night_on(check: str) -> None:
    table = with_column(tonight(), "score", plain(tonight(), "score") + 1e6)
    of_user = Checks(on_finding="stop", **{check: Check(threshold=0.5, columns=["score"])})
    (finding,) = [f for f in verdict_of(table, of_user, nights=1).findings if f.check == check][:1]
    assert (finding.column, finding.level) == ("score", "stop")
    assert not [f for f in verdict_of(tonight(), of_user, nights=1).findings if f.check == check]
    assert not [f for f in verdict_of(table, nights=1).findings if f.check == check]


def test_thresholds_levels_and_columns_of_the_user() -> None:
    faulty = profile_of(lost("US", 0.5)(tonight()))

    def judged(settings: Checks) -> Verdict:
        return judge(faulty, history()[:TEN], None, settings, shop().day(NIGHTS))

    assert judged(Checks(on_finding="stop", rows=Check(threshold=0.5))).findings
    silent = {name: Check(level="off") for name in ("l_infinity", "jensen_shannon", "psi", "rows", "distinct")}
    assert judged(Checks(on_finding="stop", **silent)).verdict == "pass"
    wide = Checks(on_finding="stop", l_infinity=Check(threshold=0.9), jensen_shannon=Check(threshold=0.9),
                  psi=Check(threshold=9), rows=Check(threshold=9))  # fmt: skip
    assert judged(wide).verdict == "pass"
    chosen = Checks(on_finding="stop", l_infinity=Check(columns=["score"]))
    assert not [f for f in judged(chosen).findings if f.check == "l_infinity"]
    with pytest.raises(ValueError, match="jensen_shanon"):
        Checks(jensen_shanon=Check())


def test_a_contract_stops_whatever_the_history() -> None:
    contract = make_contract({"columns": {"price": {"range": [None, 10]}}})
    verdict = judge(profile_of(tonight()), [], contract, Checks(), FIRST)
    assert [(f.check, f.level) for f in verdict.findings] == [("contract", "stop")]
    warned = judge(profile_of(tonight()), [], contract, Checks(contract=Check(level="warn")), FIRST)
    assert warned.verdict == "warn"


def test_a_fault_that_was_published_makes_no_alarm_of_the_nights_after_it() -> None:
    price = with_column(tonight(), "price", plain(tonight(), "price") * 100)
    past = [Past("v0031", shop().day(NIGHTS), profile_of(price)), *history()]
    verdict = judge(shop().profile(NIGHTS + 1), past, None, STOP, shop().day(NIGHTS + 1))
    assert verdict.verdict == "pass", [f.text for f in verdict.findings]


def test_a_change_that_was_published_is_the_new_plain() -> None:
    def dearer(table: pa.Table) -> pa.Table:
        return with_column(table, "price", plain(table, "price") * 3)

    past = [Past("v0031", shop().day(NIGHTS), profile_of(dearer(tonight()))), *history()]
    verdict = judge(profile_of(dearer(shop().table(NIGHTS + 1))), past, None, STOP, shop().day(NIGHTS + 1))
    assert verdict.verdict == "pass", [f.text for f in verdict.findings]


def test_nights_without_dates_count_one_after_another() -> None:
    past = [replace(one, day=None) for one in history()[:TEN]]
    assert judge(profile_of(tonight()), past, None, STOP).verdict == "pass"
    cut = tonight().slice(0, len(tonight()) // 4)
    assert judge(profile_of(cut), past, None, STOP).verdict == "stop"


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_nights_of_almost_nothing_are_judged(rows: int) -> None:
    small = profile_of(tonight().slice(0, rows))
    assert judge(small, history()[:TEN], None, STOP, shop().day(NIGHTS)).verdict == "stop"
    few = [Past(f"v{n}", None, small) for n in range(8)]
    assert not [f for f in judge(small, few, None, STOP).findings if f.check != "duplicated"]
    judge(shop().profile(NIGHTS), few, None, STOP)


def test_a_column_that_was_all_null_or_constant_for_ever_makes_no_alarm() -> None:
    nights = [pa.table({"n": pa.nulls(500, pa.string()), "one": [7] * 500, "flag": [True] * 500}) for _ in range(12)]
    past = [Past(f"v{n}", FIRST + timedelta(days=n), profile_of(night)) for n, night in enumerate(nights)]
    verdict = judge(profile_of(nights[0]), past[::-1], None, STOP, FIRST + timedelta(days=12))
    assert verdict.verdict == "pass"


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_visitors_of_a_first_weekend_of_half_the_rows_are_not_new_values(seed: int) -> None:
    """Each leaves as many rows as on a workday: their shares are twice as large."""
    made = Shop(seed, rows=5_000)
    nights = [profile_of(made.table(n, 2_500 if n == 5 else 5_000).select(["user_id"])) for n in range(6)]
    past = [Past(f"v{n}", made.day(n), nights[n]) for n in range(5)]
    verdict = judge(nights[5], past[::-1], None, STOP, made.day(5))
    assert [f.text for f in verdict.findings if f.check == "new_values"] == []
    crowd = with_column(made.table(5, 2_500).select(["user_id"]), "user_id", np.arange(2_500) % 50)
    found = judge(profile_of(crowd), past[::-1], None, STOP, made.day(5)).findings
    assert [f.figure for f in found if f.check == "new_values"] == [1.0]


def test_the_worst_finding_decides() -> None:
    finding = Finding("x", "mean", 1, 2, 3.0, 1.0, "warn", "..")
    assert choose_outcome([finding]) == "warn"
    assert choose_outcome([finding, replace(finding, level="ask")]) == "ask"
    assert choose_outcome([replace(finding, level="stop"), replace(finding, level="ask")]) == "stop"


def test_a_verdict_is_read_as_it_was_written() -> None:
    verdict = verdict_of(with_column(tonight(), "price", plain(tonight(), "price") * 100), nights=TEN)
    data = json.loads(json.dumps(dump_document(verdict), allow_nan=False))
    assert parse_document(Verdict, data, Path("gate.json")) == verdict
    assert set(data) == {"format", "verdict", "findings", "compared_with", "proposed", "notes"}
    assert all(type(value) in (int, float, str, list, type(None)) for f in data["findings"] for value in f.values())


def test_the_job_says_what_is_wrong_with_its_checks() -> None:
    from flows.job.job import make_job

    job = {"source": {"path": "data"}, "output": {"path": "out"}, "features": [{"columns": ["x"]}]}
    with pytest.raises(JobError, match=r"checks.jensen_shanon is unknown: did you mean 'jensen_shannon'"):
        make_job({**job, "checks": {"jensen_shanon": {"threshold": 1}}})
    with pytest.raises(JobError, match=r"checks.rows.level: must be 'warn', 'stop', 'ask' or 'off'"):
        make_job({**job, "checks": {"rows": {"level": "halt"}}})
    made = make_job({**job, "checks": {"on_finding": "ask", "rows": {"threshold": 0.5}}})
    gate = made.request("pandas").gate
    assert (gate.on_finding, gate.rows.threshold, gate.contract.level) == ("ask", 0.5, "stop")


def test_samples_do_not_count_as_rows_delivered_twice_and_have_no_number_of_distinct_values() -> None:
    """The counts of a sample may all be even; only a column that is all one value is constant."""
    bins = {32_768 + 16 * n: 2 for n in range(80)}
    column = ColumnProfile("x", "double", 2_560, 0, 80.0, math.inf, 1.0, 9.0, 4.0, 1.0, bins=bins, sampled=16)
    past = [Past(f"v{n}", None, Profile(2_561 + n, {"x": replace(column, bins=bins | {40_000: 3})})) for n in range(9)]
    assert [f.check for f in judge(Profile(2_560, {"x": column}), past, None, STOP, None).findings] == []
    assert not [key for key in compute_figures(past[0].profile) if key.check == "distinct"]
    whole = {"x": replace(column, sampled=1, distinct_error=0.0)}
    (found,) = judge(Profile(2_560, whole), past, None, STOP, None).findings
    assert found.check == "duplicated"
    stuck = {"x": replace(column, distinct=1.0, bins={32_768: 160})}
    found_checks = {f.check for f in judge(Profile(2_560, stuck), past, None, STOP, None).findings}
    assert "constant" not in found_checks


def test_the_rows_of_the_last_night_are_known_again_in_another_order_though_their_samples_differ() -> None:
    bins = {32_768 + n: 5 for n in range(80)}
    column = ColumnProfile("x", "double", 6_400, 0, 80.0, math.inf, 1.0, 9.0, 4.0, 1.0, bins=bins, sampled=16)
    past = [Past("v1", None, Profile(6_400, {"x": column}))]
    again = replace(column, mean=4.0 + 1e-13, bins=bins | {32_768: 9})
    (found,) = judge(Profile(6_400, {"x": again}), past, None, STOP, None).findings
    assert found.check == "duplicated"
    other = replace(column, mean=4.01)
    assert judge(Profile(6_400, {"x": other}), past, None, STOP, None).verdict == "pass"


@pytest.mark.parametrize("name", SHOPS_OF_ROWS)
@pytest.mark.parametrize("dated", [True, False])
def test_counters_make_no_trend_alarm_before_the_seventh_night(name: str, dated: bool) -> None:
    shop = SHOPS_OF_ROWS[name]._replace(starts=3)  # a Thursday: the first weekend comes soon
    past: list[Past] = []
    order, visit = 1_000_000, 500
    for night, rows in enumerate(count // 10 for count in shop.rows(1, 8)):
        rng, day = np.random.default_rng([night, 3]), shop.day(night) if dated else None
        seconds = shop.day(night).toordinal() * 86_400 + np.sort(rng.integers(0, 86_400, rows))
        profile = profile_of(pa.table({
            "order": np.arange(order, order + rows), "visit": visit + np.sort(rng.integers(0, rows // 4, rows)),
            "seconds": seconds, "ratio": 0.5 * np.arange(order, order + rows), "user": rng.integers(0, 3_000, rows),
        }))  # fmt: skip
        assert [f.text for f in judge(profile, past[::-1], None, STOP, day).findings] == []
        past.append(Past(f"v{night + 1:04d}", day, profile))
        order, visit = order + rows, visit + rows // 4
    other_unit = pa.table({"seconds": seconds * 1_000, "visit": visit + rng.integers(0, rows // 4, rows)})
    early = judge(profile_of(other_unit), past[3::-1], None, STOP, shop.day(4) if dated else None)
    assert {f.check for f in early.findings if f.column == "seconds"} >= {"extremes", "quantiles"}


@pytest.mark.promise("`columns` names columns that the run reads: another name is an error with names that exist")
def test_a_check_cannot_be_switched_off_by_a_mistake() -> None:
    from flows.job.job import make_job

    job = {"source": {"path": "data"}, "output": {"path": "out"}, "features": [{"columns": ["x"]}]}
    refused = {
        r"checks.psi.threshold: inf is not a threshold: did you mean level: 'off'\?": {"psi": {"threshold": math.inf}},
        r"checks.psi.threshold: must be at least 0.0, not nan": {"psi": {"threshold": math.nan}},
        r"checks.psi.columns: needs at least 1 entry": {"psi": {"columns": []}},
        r"rows takes no columns: it looks at whole rows": {"rows": {"columns": ["x"]}},
    }
    for text, checks in refused.items():
        with pytest.raises(JobError, match=text):
            make_job({**job, "checks": checks})
    for rule in ({"range": [0, math.nan]}, {"values": [1.0, math.nan]}):
        with pytest.raises(JobError, match=r"nan can be compared with nothing: did you mean null, for no limit\?"):
            make_contract({"columns": {"price": rule}})
    assert make_contract({"columns": {"price": {"range": [0, math.inf]}}}).columns["price"].range == [0, math.inf]


def test_a_value_of_a_bucket_is_named_and_control_characters_of_names_are_escaped() -> None:
    rows = 20_000
    strange = "bad\x1b[31m\nname"

    def night(seed: int, share: float) -> Profile:
        draw = np.random.default_rng(seed)
        users = np.where(draw.random(rows) < share, 4_711, draw.integers(10_000, 12_000, rows))
        hashes = murmur3.hash_array(pa.array(users)) % 1024
        column = profile_of(pa.table({strange: users})).columns[strange]
        return Profile(rows, {strange: replace(column, buckets=np.bincount(hashes, minlength=1024).tolist())})

    past = [Past(f"v{n}", FIRST + timedelta(days=n), night(n, 0.01)) for n in range(9)]
    verdict = judge(night(99, 0.2), past[::-1], None, STOP, FIRST + timedelta(days=9))
    texts = [f.text for f in verdict.findings if f.check == "l_infinity"]
    text = next(text for text in texts if "of its hash" in text)
    assert text.startswith(r"bad\x1b[31m\nname: one share has moved by 0.1")
    assert "; most at 4711 and others of its hash: 1." in text


@pytest.mark.parametrize("damage", [
    {"format": 0}, {"gate": "fine"}, {"verdicts": None}, {"verdicts": {"later": {}}},
    {"verdicts": {"commit": {"verdict": "pass"}}}, {"accepted": [{"answer": "publish"}]},
])  # fmt: skip
def test_a_damaged_note_of_the_gate_is_refused(damage: dict[str, object], tmp_path: Path) -> None:
    good = {"format": 1, "gate": "pass", "verdicts": {"commit": {"verdict": "pass", "findings": []}}}
    (tmp_path / "_gate.json").write_text(json.dumps(good))
    note = read_gate(tmp_path)
    assert note is not None
    assert note.gate == "pass"
    for content in (good | damage, {name: good[name] for name in good if name not in damage}):
        if content == good:  # `accepted` may be missing
            continue
        (tmp_path / "_gate.json").write_text(json.dumps(content))
        with pytest.raises(DataError, match=r"_gate\.json is damaged"):
            read_gate(tmp_path)
