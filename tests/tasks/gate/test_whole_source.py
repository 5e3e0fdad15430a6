"""What the gate guarantees of the whole source: columns that the job does not read, labels that depend on many values,
values that vanish, and checks of columns that nothing profiles."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml

from flows.job.job import make_job
from flows.preview.job_preview import preview
from infra.clusters.model import Cluster
from tasks.core.contract import make_contract
from tasks.core.settings import Checks
from tasks.errors import JobError
from tasks.gate.contract_values import propose_contract
from tasks.gate.decide import judge
from tasks.gate.earlier_outputs import Past
from tasks.gate.verdict import Verdict
from tasks.profile.associations import cramers_v
from tasks.profile.output_profile import Association, Profile
from tests.stages import run_stages
from tests.tasks.gate.simulated import FIRST, LabelledShop, Shop, profile_of

STOP = Checks(on_finding="stop")
ROWS, NIGHTS = 20_000, 9


# Columns that the job does not read


def profile_of_run(folder: Path, table: pa.Table, engine: str = "pandas", **more: Any) -> Profile:
    """The profile of a run whose features are of the column x alone."""
    folder.mkdir()
    pq.write_table(table, folder / "a.parquet")
    job = {
        "source": {"path": str(folder / "a.parquet")},
        "features": [{"columns": ["x"], "ops": [{"op": "Normalize"}]}],
        "output": {"path": str(folder / "out"), "files": 1},
        "run": {"profile": True, "report": False},
        **more,
    }
    run_stages(make_job(job).request(engine))
    return Profile.from_json(json.loads((folder / "out/_profile.json").read_bytes()))


def plain(**more: Any) -> pa.Table:
    return pa.table({"x": [1.0, 2.0, 3.0, 4.0], "note": ["a", "b", "c", "d"], **more})


@pytest.mark.promise(
    "columns of the source that are new, missing or of another type, whether the job reads them or not"
)
def test_a_column_that_the_job_does_not_read_is_reported(tmp_path: Path, engine: str) -> None:
    before = profile_of_run(tmp_path / "before", plain(), engine)
    assert (dict(before.source), [*before.columns]) == ({"x": "float64", "note": "string"}, ["x"])
    assert before.unread == {"note": "string"}
    fresh = plain(extra=[1, 2, 3, 4]).set_column(1, "note", pa.array([1, 2, 3, 4]))
    now = profile_of_run(tmp_path / "now", fresh, engine)
    past = [Past("v0001", FIRST, before)]
    assert [one.text for one in judge(now, past, None, STOP).findings if one.check == "columns"] == [
        "extra: the column (int64) is new, v0001 did not have it (the job does not read it)",
        "note: the column is int64, it was string in v0001 (the job does not read it)",
    ]
    gone = profile_of_run(tmp_path / "gone", plain().drop_columns("note"), engine)
    assert [one.text for one in judge(gone, past, None, STOP).findings if one.check == "columns"] == [
        "note: the column is missing, v0001 had it as string"
    ]
    assert judge(before, past, None, Checks(), FIRST).findings == ()


def test_a_column_that_some_files_lack_is_a_column_of_the_source(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, table in (("a", plain()), ("b", plain(extra=[1, 2, 3, 4]))):
        pq.write_table(table, tmp_path / "in" / f"{name}.parquet")
    profile = profile_of_run(tmp_path / "job", plain(), source={"path": str(tmp_path / "in")})
    assert profile.unread == {"note": "string", "extra": "int64"}


@pytest.mark.promise("names the columns that the job does not read, by their types")
def test_a_proposed_contract_lets_a_plain_night_pass(tmp_path: Path) -> None:
    profile = profile_of_run(tmp_path / "before", plain())
    text = propose_contract(profile, "v0001")
    assert "    type: string  # the job does not read this column: a change is only reported\n" in text
    contract = make_contract({**yaml.safe_load(text), "new_columns": "freeze"})
    again = profile_of_run(tmp_path / "again", plain(), contract=contract.model_dump(exclude_none=True))
    assert again.rows == 4
    fewer = profile_of_run(
        tmp_path / "fewer", plain().drop_columns("note"), contract=contract.model_dump(exclude_none=True)
    )
    assert fewer.unread == {}


def test_a_preview_is_refused_where_the_run_is(tmp_path: Path) -> None:
    pq.write_table(plain(), tmp_path / "a.parquet")
    job = {
        "source": {"path": str(tmp_path / "a.parquet")},
        "features": [{"columns": ["x"]}],
        "output": {"path": str(tmp_path / "out")},
        "contract": {"columns": {"x": {}}, "new_columns": "freeze"},
    }
    [refused] = preview(make_job(job)).refused
    assert str(refused).startswith("the source does not match the contract")
    job["contract"] = {"columns": {"x": {}}, "new_columns": "discard_column"}
    seen = preview(make_job(job))
    assert (seen.refused, [*seen.source]) == ([], ["x"])
    assert seen.contract == ["column 'note' (string) is not in the contract: it is left out"]


# Checks of columns that nothing profiles


@pytest.mark.promise("A column that only `source.unique` or `source.keys` look at is not profiled")
@pytest.mark.parametrize(
    ("check", "name", "known"),
    [
        ("nulls", "key", "there are: x"),  # of source.unique alone
        ("nulls", "day", "there are: x"),  # in the contract, in the source, and not read
        ("out_of_vocabulary", "key", "there are: x"),
        ("columns", "nowhere", "there are: day, key, x"),
    ],
)
def test_a_check_of_a_column_that_it_never_sees_is_refused(tmp_path: Path, check: str, name: str, known: str) -> None:
    table = pa.table({"x": [1.0, 2.0], "key": [1, 2], "day": [1, 1]})
    more = {"contract": {"columns": {"day": {}}}, "checks": {check: {"columns": [name]}}}
    source = {"path": str(tmp_path / "job/a.parquet"), "unique": {"keys": ["key"]}}
    with pytest.raises(JobError, match=f"the run reads no column '{name}'") as caught:
        profile_of_run(tmp_path / "job", table, source=source, **more)
    assert (caught.value.where, caught.value.do) == (f"checks.{check}.columns", known)
    allowed = {**more, "checks": {"columns": {"columns": ["day"]}, "nulls": {"columns": ["x"]}}}
    (tmp_path / "again").mkdir()
    source["path"] = str(tmp_path / "again/job/a.parquet")
    assert profile_of_run(tmp_path / "again/job", table, source=source, **allowed).rows == 2


def test_sizes_of_gpus_are_refused_where_workers_have_none() -> None:
    for data in (
        {"rmm_pool_size": "1GB"},
        {"device_memory_limit": 0.5},
        {"visible_devices": ["0"]},
        {"cuda_ipc": False},
    ):
        with pytest.raises(ValueError, match=f"kind is cpu, so workers have no GPU: leave out `{[*data][0]}`"):
            Cluster(kind="cpu", **data)
    slurm = {"cores": 4, "memory": "8GB"}
    with pytest.raises(ValueError, match=r"slurm\.gpus is 0, so workers have no GPU: leave out `rmm_pool_size`"):
        Cluster(kind="slurm", slurm=slurm, rmm_pool_size="1GB")
    assert Cluster(kind="slurm", slurm={**slurm, "gpus": 1}, rmm_pool_size="1GB").gpu_keys == ["rmm_pool_size"]


# A label that depends on a column of many values; a value that vanishes


def labelled(seed: int, night: int) -> pa.Table:
    shop = LabelledShop(seed, rows=ROWS, nights=NIGHTS + 1)
    return shop.table(night).select(["brand", "price", "country", "bought"])


@cache
def history(seed: int) -> list[Past]:
    profiles = [profile_of(labelled(seed, night)) for night in range(NIGHTS)]
    return [Past(f"v{n + 1:04d}", Shop(seed, 1).day(n), one) for n, one in enumerate(profiles)][::-1]


def verdict_of(seed: int, table: pa.Table) -> Verdict:
    return judge(profile_of(table), history(seed), None, STOP, Shop(seed, 1).day(NIGHTS))


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (2, 3))])
def test_a_shuffled_label_and_a_vanished_value_are_stopped_and_named(seed: int) -> None:
    tonight = labelled(seed, NIGHTS)
    assert verdict_of(seed, tonight).findings == ()
    order = pa.array(np.random.default_rng(seed).permutation(len(tonight)))
    shuffled = verdict_of(seed, tonight.set_column(3, "bought", tonight["bought"].take(order)))
    assert [(one.check, one.column, one.level) for one in shuffled.findings] == [("associations", "bought", "stop")]
    assert "no longer go together with those of brand" in shuffled.findings[0].text
    without = verdict_of(seed, tonight.filter(pc.not_equal(tonight["country"], "IE")))
    [gone] = [one for one in without.findings if one.check == "vanished_values"]
    assert (gone.column, gone.level, gone.before) == ("country", "stop", ["IE"])
    assert 0.005 < gone.figure < 0.015
    assert gone.text.startswith("country: values that had at least 1.")


def test_a_value_of_few_rows_or_of_some_nights_does_not_vanish() -> None:
    def night(number: int, **counts: int) -> Past:
        values = [name for name, count in counts.items() for _ in range(count)]
        return Past(f"v{number:04d}", None, profile_of(pa.table({"kind": values})))

    def gone(tonight: Past, past: list[Past]) -> list[str]:
        findings = judge(tonight.profile, past[::-1], None, Checks(vanished_values={"level": "stop"})).findings
        return [one.text for one in findings if one.check == "vanished_values"]

    tonight, plain_nights = night(9, view=2_000), [night(n, view=1_970, cart=30) for n in range(8)]
    assert gone(tonight, plain_nights) == [
        "kind: values that had at least 1.5 % in each of 8 good nights are gone: 'cart' (1.5 %) (threshold 0.5 %)"
    ]
    assert gone(night(9, view=2_000, cart=1), plain_nights) == []
    assert gone(tonight, plain_nights[:6]) == []  # of no whole week
    assert gone(tonight, [*plain_nights, night(8, view=2_000)]) == []  # a night before had none, either
    assert gone(tonight, [night(n, view=1_985, cart=15) for n in range(8)]) == []  # fifteen rows


def test_cramers_v_and_what_chance_makes_of_it() -> None:
    assert cramers_v([np.array([[50, 0], [0, 50]])])[0].v == 1.0
    assert cramers_v([np.array([[5, 5]])]) == [Association(0.0)]
    rng = np.random.default_rng(0)
    brand, label = rng.zipf(1.4, 4_000) % 300, rng.random(4_000) < 0.02
    squares = []
    for _ in range(200):
        rng.shuffle(label)
        table = np.bincount(brand * 2 + label, minlength=600).reshape(-1, 2)
        table = table[table.sum(axis=1) >= 8].astype(float)
        n, expected = table.sum(), np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
        squares.append(float(((table - expected) ** 2 / expected).sum() / n))
    assert cramers_v([table])[0].by_chance ** 2 == pytest.approx(np.std(squares), rel=0.2)
