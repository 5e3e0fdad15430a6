"""Two outputs side by side, the good versions of an output, and the commands `diff` and `contract`."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from rowmill.cli import app
from typer.testing import CliRunner

from flows.job.job import make_job
from tasks.core.contract import make_contract
from tasks.core.schema import Column, Schema
from tasks.gate.comparison import Side, compare_outputs
from tasks.gate.earlier_outputs import read_good_versions
from tasks.profile.output_profile import Association, ColumnProfile, Profile, StepProfile
from tests.stages import run_stages
from tests.tasks.gate.simulated import profile_of


def night(number: int) -> pa.Table:
    kinds = ["view"] * (80 - 10 * number) + ["cart"] * 15 + ["buy"] * (5 + 10 * number)
    return pa.table({
        "kind": kinds, "x": [float(n % 7) for n in range(100)],
        "brand": pa.array([f"b{n % (4 + number)}" if n % 5 else None for n in range(100)]),
    })  # fmt: skip


def sides(profile: bool = True) -> tuple[Side, Side]:
    def side(number: int) -> Side:
        values = ["b0", "b1", "b2", "b3", "b4"][: 4 + number]
        values = values if number == 0 else ["b1", "b0", *values[2:]]
        ids = Column("brand", pa.int64(), properties={"cardinality": 6 + number})
        schema = Schema([ids, Column("kind", pa.string())] if number else [ids, Column("x", pa.float64())])
        vocabulary = pa.table({"brand": values, "count": list(range(len(values)))})
        rows = {"in": 100 + 10 * number, "dropped": 0, "added": 0, "out": 100}
        taken = profile_of(night(number)) if profile else None
        return Side(f"v{number + 6:04d}", rows, schema, {"brand": vocabulary}, taken, f"2026-11-2{number}")

    return side(0), side(1)


def test_rows_schema_vocabularies_and_statistics_side_by_side() -> None:
    result = compare_outputs(*sides())
    assert list(result.rows) == [("rows in", "100", "110", "+10 %"), ("rows out", "100", "100", "=")]
    assert list(result.schema) == [
        ("brand", "int64, 6 ids", "int64, 7 ids"), ("kind", "", "string"), ("x", "float64", ""),
    ]  # fmt: skip
    (brand,) = result.vocabularies
    assert (brand.before, brand.now, brand.new, brand.gone, brand.moved, brand.examples) == (4, 5, 1, 0, 2, "b4")
    assert ("brand", "least", "b0", "b1", "") in result.statistics
    assert [one.column for one in result.distributions][-1] == "x"  # it has not moved
    kind = next(one for one in result.distributions if one.column == "kind")
    shares = dict(zip(kind.labels, zip(kind.before, kind.now, strict=True), strict=True))
    assert shares["'view'"] == (0.8, 0.7)
    assert shares["'buy'"] == (0.05, 0.15)
    assert 0 < kind.jensen_shannon < 0.2


def test_figures_that_the_gate_compares_differ_in_the_same_words() -> None:
    def side(name: str, profile: Profile) -> Side:
        return Side(name, {"in": 9, "dropped": 0, "added": 0, "out": 9}, Schema(), {}, profile, "")

    low, high = "2026-11-01T00:00:00", "2026-11-02T12:00:00"
    moment = ColumnProfile("t", "timestamp[us]", rows=9, nulls=0, distinct=9.0, minimum=low, maximum=low)
    step = StepProfile("3", "Categorify", ("brand",), 100, out_of_vocabulary=1)
    before = Profile(9, {"t": moment}, {"3": step}, repeated=0.0, compared=9, associated=10_000,
                     associations={("a", "b"): Association(0.6), ("a", "c"): Association(0.1)})  # fmt: skip
    now = replace(before, columns={"t": replace(moment, maximum=high)}, repeated=0.1,
                  steps={"4": replace(step, key="4", out_of_vocabulary=9)},
                  associations={("a", "b"): Association(0.05), ("a", "c"): Association(0.1001, 0.01)})  # fmt: skip
    result = compare_outputs(side("v0001", before), side("v0002", now))
    assert list(result.statistics) == [
        ("rows", "repeated", "0 %", "10 %", "+10 points"),
        ("t", "largest", "2026-11-01 00:00", "2026-11-02 12:00", "+36 h"),
        ("brand", "without an id", "1 %", "9 %", "+8 points"),
    ]
    assert list(result.associations) == [("a and b", "0.6", "0.05", "-0.55")]


def test_what_a_sample_does_not_know_is_no_change() -> None:
    def side(name: str, column: ColumnProfile) -> Side:
        return Side(name, {"in": 9, "dropped": 0, "added": 0, "out": 9}, Schema(), {}, Profile(9, {"x": column}), "")

    sampled = ColumnProfile("x", "float64", rows=9, nulls=0, distinct=5.0, distinct_error=math.inf, sampled=16)
    exact, estimated = replace(sampled, distinct=7.0, distinct_error=0.0), replace(sampled, distinct_error=0.04)
    for one, other, line in (
        (sampled, exact, ("x", "distinct", "at least 5", "7", "")),
        (exact, estimated, ("x", "distinct", "7", "about 5", "-28.6 %")),
    ):
        assert line in compare_outputs(side("v0001", one), side("v0002", other)).statistics


def test_an_output_without_a_profile_says_so() -> None:
    result = compare_outputs(*sides(profile=False))
    assert list(result.notes) == [
        "v0006 and v0007: no profile was taken, so statistics and distributions cannot be compared"
    ]
    assert not result.distributions


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three versions of an output, with the profiles of their sources."""
    folder = tmp_path_factory.mktemp("nights")
    for number in range(3):
        source = folder / "data" / f"{number}.parquet"
        source.parent.mkdir(exist_ok=True)
        pq.write_table(night(number), source)
        job: dict[str, Any] = {
            "source": {"path": str(source)}, "output": {"path": str(folder / "out"), "on_existing": "version"},
            "features": [{"columns": ["brand"], "ops": [{"op": "Categorify"}]}, {"columns": ["x"]}],
            "run": {"report": False},
        }  # fmt: skip
        run_stages(make_job(job).request("pandas"))
        version = folder / "out" / f"v{number + 1:04d}"
        (version / "_profile.json").write_text(profile_of(night(number)).text())
        manifest = json.loads((version / "_manifest.json").read_text())
        assert manifest["rows"]["in"] == 100
    return folder / "out"


def typed(*words: Any) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "150"})


def test_good_versions_come_newest_first_and_others_are_named(output: Path) -> None:
    past, notes = read_good_versions(output)
    assert ([one.version for one in past], notes) == (["v0003", "v0002", "v0001"], [])
    assert past[0].profile == Profile.from_json(profile_of(night(2)).to_json())
    assert [one.version for one in read_good_versions(output, most=1)[0]] == ["v0003"]
    assert [one.version for one in read_good_versions(output, without=["v0003"])[0]] == ["v0002", "v0001"]
    assert read_good_versions(output / "v0002")[0][0].profile == past[1].profile
    assert read_good_versions(output.parent / "nothing") == ([], [])
    profile = output / "v0001" / "_profile.json"
    text = profile.read_text()
    (output / "v0002" / "_discarded.json").write_text("{}")
    profile.write_text("{")
    try:
        past, notes = read_good_versions(output)
        assert [one.version for one in past] == ["v0003"]
        assert notes[0] == "v0002 is left out: it is discarded"
        assert notes[1].startswith("v0001 is left out: _profile.json is damaged")
        profile.unlink()
        assert read_good_versions(output)[1][1] == "v0001 is left out: it has no _profile.json"
    finally:
        profile.write_text(text)
        (output / "v0002" / "_discarded.json").unlink()


def test_the_day_of_a_version_is_that_of_its_manifest(output: Path) -> None:
    from tasks.gate import earlier_outputs as history

    assert history._read_run_date({"dated": {"date": "2026-11-22"}}) == date(2026, 11, 22)
    assert history._read_run_date({}) is None


def test_rowmill_diff_shows_two_versions(output: Path) -> None:
    done = typed("diff", output / "v0001", "v0003")
    assert done.exit_code == 0, done.output
    assert "v0001 and v0003" in done.output
    assert "rows in" in done.output
    assert "'view'" in done.output
    assert "brand" in done.output.partition("vocabularies")[2]
    newest = typed("diff", output, "v0001")  # the newest one beside it
    assert newest.exit_code == 0, newest.output
    refused = typed("diff", output / "v0001", output / "v0009")
    assert refused.exit_code != 0
    assert "this is not an output of rowmill" in refused.output


def test_rowmill_contract_writes_what_the_source_keeps(output: Path) -> None:
    done = typed("contract", output)
    assert done.exit_code == 0, done.output
    contract = make_contract(yaml.safe_load(done.stdout))
    assert contract.columns["kind"].values == ["view", "buy", "cart"]
    assert contract.columns["brand"].nulls == 0.41
    assert done.stdout.startswith("# A contract, proposed by `rowmill contract` from 100 rows of v0003.")
