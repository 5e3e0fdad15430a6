"""Which version is the base of a refit, and what a refit starts from."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rowmill.cli import app
from typer.testing import CliRunner

from flows.commands.discard import discard_version, restore_version
from flows.job.job import make_application, make_job
from flows.job.refit_job import make_refit
from flows.job.run_calendar import find_published_outputs
from tasks.cluster.local_pool import LocalPool
from tasks.core.contract import make_contract
from tasks.dataset import Dataset
from tasks.errors import DataError, HostError, JobError
from tasks.gate import earlier_outputs as history
from tasks.job.base_version import describe_other_ids, discard_damaged, find_descendants, find_newest_good
from tasks.job.request import Request
from tasks.loading import loader
from tasks.loading.embedding_growth import grow
from tasks.run.run import execute_on, run
from tasks.storage import own_files
from tasks.storage.discarded import is_discarded, mark, read_mark
from tasks.storage.output import PublishedOutput, of_other_ids
from tasks.storage.own_files import versions_of
from tasks.storage.retention import drop_versions
from tasks.storage.staging import Staging
from tasks.workflow import Workflow
from tests.flows.runs import rows_of
from tests.flows.test_fit_apply import written
from tests.stages import run_stages

KEYS = [["a", "a", "b"], ["c", "b"], ["d"]]


def job(folder: Path, night: int, **more: Any) -> dict[str, Any]:
    path = folder / f"{night}.parquet"
    written(pa.table({"k": KEYS[night], "x": [float(night)] * len(KEYS[night])}), path)
    return {
        "source": {"path": str(path)},
        "features": [
            {"columns": ["k"], "ops": [{"op": "Categorify"}]},
            {"columns": ["x"], "ops": [{"op": "Normalize"}]},
        ],
        "output": {"path": str(folder / "out"), "on_existing": "version", "files": 1, "shuffle": "none"},
        "run": {"report": False, **more.pop("run", {})},
        **more,
    }


def night(folder: Path, number: int, engine: str = "pandas", **more: Any) -> None:
    """A run on top of the newest good version, as a flow does it."""
    made = make_job(job(folder, number, base=str(folder / "out"), **more))
    assert made.base_path is not None
    run_stages(made.request(engine, find_newest_good(made.base_path).version))


def run_fit(request: Request) -> None:
    """Ingest, statistics and the commit of a fitted workflow, as the flow `fit` does them."""
    run(replace(request, flow="fit"), execute_on(LocalPool(1)))


def nights(folder: Path, count: int, engine: str = "pandas") -> Path:
    for number in range(count):
        night(folder, number, engine)
    return folder / "out"


def manifest(out: Path, version: str) -> dict[str, Any]:
    return dict(json.loads((out / version / "_manifest.json").read_text()))


def name_of(out: Path, thorough: bool = True) -> str | None:
    version = find_newest_good(out, thorough).version
    return version.name if version else None


def test_ids_stay_and_new_values_come_behind_them(tmp_path: Path, engine: str) -> None:
    out = nights(tmp_path, 3, engine)

    assert [rows_of(out / f"v000{n}")["k"].to_pylist() for n in (1, 2, 3)] == [[3, 3, 4], [5, 4], [6]]
    assert "base" not in manifest(out, "v0001")
    assert manifest(out, "v0003")["base"]["version"] == "v0002"
    assert manifest(out, "v0003")["base"]["rows"] == 5
    history = json.loads((out / "v0003/_workflow/workflow.json").read_text())["history"]
    assert (history["rows"], [one["rows"] for one in history["nights"]]) == (6, [3, 2, 1])
    assert list(own_files.strangers(out)) == []


def test_rows_of_a_night_are_numbered_behind_those_that_keys_and_rules_left_out(tmp_path: Path, engine: str) -> None:
    """Folds and draws go by row numbers, so they are the same with the rows grouped by keys as without."""
    folds = {"columns": ["k"], "ops": [{"op": "TargetEncoding", "target": "x", "kfold": 5, "drop_folds": False}]}
    features = [folds, {"columns": ["x"]}]
    written_by = []
    for name, keys in (("as they are", {}), ("by keys", {"keys": ["k"]})):
        folder = tmp_path / name
        for number in (0, 1):
            x = np.arange(400) + 400.0 * number
            table = pa.table({"k": np.where(x % 3, "a", "b"), "x": x, "event": x // 2})
            written(table, folder / f"day{number}.parquet")
            draws = {"downsample": {"where": "k == 'a'", "fraction": 0.5, "seed": 1}}
            source = {"path": str(folder / f"day{number}.parquet"), "filter": "x % 7 != 0", **draws, **keys}
            source["unique"] = {"keys": ["event"]}
            night(folder, 0, engine, source=source, features=features)
        written_by.append([rows_of(folder / f"out/v000{n}").sort_by("x").to_pydict() for n in (1, 2)])
        assert manifest(folder / "out", "v0002")["base"]["rows"] == 400

    assert written_by[0] == written_by[1]


def test_validation_rows_have_the_ids_of_values_that_the_night_does_not_have(tmp_path: Path, engine: str) -> None:
    night(tmp_path, 0, engine)
    written(pa.table({"k": ["a", "d", None, "b", "x"], "x": [0.0] * 5}), tmp_path / "valid.parquet")
    source = {"path": str(tmp_path / "2.parquet"), "valid": str(tmp_path / "valid.parquet")}
    night(tmp_path, 2, engine, source=source)

    assert rows_of(tmp_path / "out/v0002/train")["k"].to_pylist() == [5]
    assert rows_of(tmp_path / "out/v0002/valid")["k"].to_pylist() == [3, 5, 1, 4, 2]


def test_nothing_is_published_yet(tmp_path: Path) -> None:
    assert find_newest_good(tmp_path / "out").version is None
    (tmp_path / "out").mkdir()
    assert find_newest_good(tmp_path / "out").version is None


def test_a_folder_of_something_else_is_no_base(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(JobError, match=r"(?s)the base is not an output of rowmill.*base: none"):
        find_newest_good(tmp_path)


def test_an_output_without_versions_is_its_own_base(tmp_path: Path) -> None:
    run_stages(make_job(job(tmp_path, 0, output={"path": str(tmp_path / "out"), "files": 1})).request("pandas"))
    night(tmp_path, 1, output={"path": str(tmp_path / "out"), "files": 1, "on_existing": "replace", "shuffle": "none"})

    assert rows_of(tmp_path / "out")["k"].to_pylist() == [5, 4]
    assert name_of(tmp_path / "out") == "out"


@pytest.mark.promise("The base is the newest *good* version: published, whole by `verify`, and not discarded")
def test_a_discarded_version_is_no_base_and_its_day_counts_as_missing(tmp_path: Path) -> None:
    out = nights(tmp_path, 2)
    for number, version in enumerate(("v0001", "v0002")):
        data = manifest(out, version) | {"dated": {"date": f"2026-11-2{number}"}}
        (out / version / "_manifest.json").write_text(json.dumps(data))
    assert [str(day) for day in find_published_outputs(str(out), tmp_path)] == ["2026-11-20", "2026-11-21"]

    lines = discard_version(out / "v0002", "half of the day was missing")

    assert lines[0].startswith("discarded ")
    assert [str(day) for day in find_published_outputs(str(out), tmp_path)] == ["2026-11-20"]
    assert (is_discarded(out / "v0002"), read_mark(out / "v0002").why) == (True, "half of the day was missing")
    assert "was discarded before, by" in discard_version(out / "v0002")[0]


def test_after_a_discarded_version_its_rows_may_be_named_again(tmp_path: Path) -> None:
    out = nights(tmp_path, 2)
    assert discard_version(out / "v0002") == [f"discarded {out / 'v0002'}", "_latest is v0001 now"]
    assert ((out / "_latest").read_text(), name_of(out)) == ("v0001\n", "v0001")
    assert list(own_files.strangers(out)) == []

    night(tmp_path, 1)

    assert manifest(out, "v0003")["base"]["version"] == "v0001"
    assert rows_of(out / "v0003").equals(rows_of(out / "v0002"))
    assert (out / "_latest").read_text() == "v0003\n"


@pytest.mark.promise("`--and-later` takes all of them back")
def test_a_version_is_discarded_with_those_that_were_learned_on_top_of_it(tmp_path: Path) -> None:
    out = nights(tmp_path, 3)
    with pytest.raises(JobError, match=r"(?s)v0002, v0003 were learned on top of v0001.*--and-later"):
        discard_version(out / "v0001")
    with pytest.raises(JobError, match="v0003 was learned on top of v0002"):
        discard_version(out / "v0002")
    assert not any(is_discarded(out / version) for version in ("v0001", "v0002", "v0003"))

    lines = discard_version(out / "v0002", "half of the day", "ada", and_later=True)

    assert lines == [f"discarded {out / 'v0003'}", f"discarded {out / 'v0002'}", "_latest is v0001 now"]
    assert [read_mark(out / version).who for version in ("v0002", "v0003")] == ["ada", "ada"]
    night(tmp_path, 1)  # both nights can be made again, none of their rows counts twice
    night(tmp_path, 2)
    assert (manifest(out, "v0004")["base"]["version"], manifest(out, "v0005")["base"]["version"]) == ("v0001", "v0004")
    assert rows_of(out / "v0005").equals(rows_of(out / "v0003"))
    assert discard_version(out / "v0001", and_later=True)[:2] == [
        f"discarded {out / 'v0005'}",
        f"discarded {out / 'v0004'}",
    ]


def test_a_version_that_something_else_was_learned_on_top_of_is_discarded_alone(tmp_path: Path) -> None:
    out = nights(tmp_path, 1)
    run_stages(make_job(job(tmp_path, 1)).request("pandas"))  # without a base: all ids anew
    night(tmp_path, 2)
    assert manifest(out, "v0003")["base"]["version"] == "v0002"
    assert discard_version(out / "v0001") == [f"discarded {out / 'v0001'}"]
    assert name_of(out) == "v0003"


def test_a_version_on_top_of_a_damaged_one_is_known_by_its_name(tmp_path: Path) -> None:
    out = nights(tmp_path, 3)
    (out / "v0002/_workflow/workflow.json").write_text("{")
    with pytest.raises(JobError, match="v0003 was learned on top of v0002"):
        discard_version(out / "v0002")


def test_a_model_does_not_grow_by_what_was_taken_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = nights(tmp_path, 2)
    weight = np.zeros((5, 4))
    assert len(grow(weight, out)) == 6
    discard_version(out / "v0002")
    discard_version(out / "v0001")
    assert not caplog.records
    with pytest.raises(DataError, match="no good version is left in this output"):
        grow(weight, out)
    assert len(grow(weight, out / "v0002")) == 6
    assert "v0002 was discarded, but is read anyway" in caplog.text


def test_a_damaged_mark_is_a_mark(tmp_path: Path) -> None:
    out = nights(tmp_path, 3)
    mark(out / "v0003")
    (out / "v0003/_discarded.json").write_text("{")
    lines = discard_version(out / "v0002", and_later=True)
    assert lines == [f"discarded {out / 'v0002'}", "_latest is v0001 now"]
    assert discard_version(out / "v0003")[0] == (
        f"{out / 'v0003'} was discarded before, by somebody (its mark is damaged)"
    )


def test_a_base_whose_own_base_was_taken_back_is_said(tmp_path: Path) -> None:
    """As after a discard in the very moment in which a run published on top of it."""
    out = nights(tmp_path, 2)
    assert find_newest_good(out).on_discarded == ""
    mark(out / "v0001")
    sentence = find_newest_good(out).on_discarded
    assert sentence.startswith("v0002 was learned on top of v0001, which is discarded: the ids and counts of v0001 go")
    assert f"rowmill discard {out / 'v0002'}" in sentence
    (out / "v0001/_workflow/workflow.json").write_text(json.dumps({"state": "of another"}))  # a name used again
    assert find_newest_good(out).on_discarded == ""


@pytest.mark.parametrize("run", [run_stages, run_fit])
def test_a_base_that_is_discarded_before_the_rename_publishes_nothing(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = nights(tmp_path, 1)
    request = make_job(job(tmp_path, 1, base=str(out))).request("pandas", find_newest_good(out).version)
    check = Staging.check_owner

    def meanwhile(staging: Staging, owner: str) -> None:
        check(staging, owner)
        mark(out / "v0001", who="ada")

    monkeypatch.setattr(Staging, "check_owner", meanwhile)
    with pytest.raises(
        JobError, match=r"(?s)the base of this run was discarded: v0001.*by ada at 20.*nothing is publish"
    ):
        run(request)
    assert not (out / "v0002").exists()


def test_a_workflow_that_is_discarded_while_it_is_applied_publishes_nothing(tmp_path: Path) -> None:
    out = nights(tmp_path, 2)

    def request(fitted: Path, applied: Path = tmp_path / "applied") -> Any:
        data = {"fitted": str(fitted), "source": {"path": str(tmp_path / "1.parquet")},
                "output": {"path": str(applied), "files": 1}}  # fmt: skip
        return make_application(data).request("pandas")

    begun = request(out)
    discard_version(out / "v0002", who="ada")
    with pytest.raises(JobError, match=r"(?s)the fitted workflow of this run was discarded: v0002.*by ada at 20"):
        run_stages(begun)
    assert not (tmp_path / "applied").exists()
    for number, named in enumerate((out / "v0002", out / "v0002/_workflow")):  # as somebody may want it
        applied = tmp_path / f"applied{number}"
        run_stages(request(named, applied))
        assert sorted(rows_of(applied)["k"].to_pylist()) == [4, 5]


def test_all_versions_discarded_is_as_none(tmp_path: Path) -> None:
    out = nights(tmp_path, 1)
    assert "no good version is left" in discard_version(out / "v0001")[1]
    assert find_newest_good(out).version is None
    assert find_newest_good(out).discarded == ("v0001",)
    sentence = find_newest_good(out).all_discarded(out)
    assert sentence == f"every version at {out} is discarded (v0001): this run is a fit, and all values get new ids"


@pytest.mark.parametrize("what", [".", "v0001/part-00000.parquet", "nowhere"])
def test_only_a_version_is_discarded(tmp_path: Path, what: str) -> None:
    out = nights(tmp_path, 1)
    with pytest.raises(JobError, match=r"(not a version of an output|not discarded as a whole)"):
        discard_version(out / what)


def test_versions_that_are_there_are_named(tmp_path: Path) -> None:
    out = nights(tmp_path, 2)
    discard_version(out / "v0002")
    with pytest.raises(JobError, match=r"no night of it waits(.|\n)*name the version to take back: v0001$"):
        discard_version(out)
    with pytest.raises(JobError, match=r"there are: v0001$"):
        discard_version(out / "v0009")
    with pytest.raises(JobError, match=r"these are discarded: v0002$"):
        restore_version(out / "v0001")


@pytest.mark.promise("The base is the newest *good* version: published, whole by `verify`, and not discarded")
@pytest.mark.parametrize(
    "file", ["part-00000.parquet", "_manifest.json", "_workflow/workflow.json", "_workflow/state.json",
             "_workflow/partials.json", "_workflow/files.vocab", "_workflow/v000-values.vocab"]
)  # fmt: skip
def test_a_damaged_version_is_named_and_the_one_before_it_is_the_base(tmp_path: Path, file: str) -> None:
    out = nights(tmp_path, 2)
    path = out / "v0002" / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)

    choice = find_newest_good(out)

    assert choice.version is not None
    assert choice.version.name == "v0001"
    assert [(version.name, line.partition(":")[0]) for version, line in choice.damaged.items()] == [("v0002", "v0002")]
    (out / "v0001" / "_manifest.json").write_text("{")
    with pytest.raises(DataError, match=r"(?s)no version of the base is good.*v0002.*v0001.*base: none"):
        find_newest_good(out)


def test_columns_are_read_in_the_types_of_the_base(tmp_path: Path) -> None:
    nights(tmp_path, 1)
    data = job(tmp_path, 1, base=str(tmp_path / "out"))
    written(pa.table({"more": [1], "x": pa.array([7], pa.int32()), "k": ["b"]}), tmp_path / "1.parquet")
    run_stages(make_job(data).request("pandas", find_newest_good(tmp_path / "out").version))
    assert rows_of(tmp_path / "out/v0002")["k"].to_pylist() == [4]
    schema = json.loads((tmp_path / "out/v0002/_workflow/workflow.json").read_text())["schema"]
    assert [(column["name"], column["dtype"]) for column in schema] == [("k", "string"), ("x", "float64")]

    written(pa.table({"k": ["b"]}), tmp_path / "2.parquet")
    data = {**data, "source": {"path": str(tmp_path / "2.parquet")}}
    with pytest.raises(DataError, match=r"(?s)the source has no column 'x'.*its base has learned from it"):
        run_stages(make_job(data).request("pandas", find_newest_good(tmp_path / "out").version))


def test_a_base_that_was_saved_without_partials_is_refused(tmp_path: Path) -> None:
    run_stages(make_job(job(tmp_path, 0, run={"keep_partials": False})).request("pandas"))
    with pytest.raises(JobError, match=r"run\.keep_partials"):
        night(tmp_path, 1)


def test_another_base_is_another_state(tmp_path: Path) -> None:
    out = nights(tmp_path, 2)
    made = make_job(job(tmp_path, 2, base=str(out)))
    second = find_newest_good(out).version
    discard_version(out / "v0002")
    requests = [made.request("pandas", version) for version in (None, find_newest_good(out).version, second)]
    assert len({request.state_fingerprint("plan") for request in requests}) == 3
    assert len({request.plan_fingerprint for request in requests}) == 3


@pytest.mark.parametrize(
    ("refit", "message"),
    [
        ({"Normalise": "freeze"}, r"(?s)'Normalise' is not a key of refit.*refit\.Normalise.*did you mean 'Normalize'"),
        ({"Normalize": "frozen"}, "write merge or freeze"),
        ({"Clip": "freeze"}, "refit names 'Clip', which learns nothing in this job"),
        ({"features[7]": "freeze"}, r"(?s)'features\[7\]' is not a key of refit.*features\[1\]"),
        ({"forget": "a year"}, r"refit\.forget: 'a year' is not a number of days: write 365d"),
    ],
)
def test_mistakes_in_refit(tmp_path: Path, refit: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        make_job(job(tmp_path, 0, base="out", refit=refit))


def test_refit_needs_a_base(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"(?s)refit says how to learn on top of a base.*write base:"):
        make_job(job(tmp_path, 0, refit={"all": True}))
    assert make_job(job(tmp_path, 0, base="none", refit={"all": True})).base_path is None


def test_a_refit_takes_all_but_its_source_from_the_base(tmp_path: Path) -> None:
    out = nights(tmp_path, 1)
    made = make_refit({"base": str(out), "source": {"path": job(tmp_path, 1)["source"]["path"]}})
    assert (made.output.path, made.output.on_existing) == (str(out), "version")
    run_stages(made.request("pandas"))
    assert sorted(rows_of(out / "v0002")["k"].to_pylist()) == [4, 5]
    assert manifest(out, "v0002")["base"]["version"] == "v0001"

    with pytest.raises(JobError, match="there is no base"):
        make_refit({"base": str(tmp_path / "nowhere"), "source": {"path": "in"}})
    with pytest.raises(JobError, match=r"source\.sample is not for refit"):
        make_refit({"base": str(out), "source": {"path": "in", "sample": {"name": "toy"}}})


@pytest.mark.promise("Such a value starts from zero when it comes back. Ids are never dropped")
@pytest.mark.parametrize(("forget", "id_of_x"), [("30d", 2), ("90d", 3)])
def test_values_without_an_id_are_forgotten_after_the_time(tmp_path: Path, forget: str, id_of_x: int) -> None:
    """A value that comes once in two months reaches a threshold of two only while its first count is there."""
    for number, day in enumerate(("2026-01-01", "2026-02-15", "2026-03-01")):
        values = pa.table({"k": ["x"], "x": [1.0]}) if number != 1 else pa.table({"k": ["y"], "x": [1.0]})
        written(values.append_column("n", [[number]]), tmp_path / f"{day}.parquet")
        made = make_job({
            "source": {"path": str(tmp_path / "{date}.parquet")}, "run": {"date": day},
            "features": [{"columns": ["k"], "ops": [{"op": "Categorify", "freq_threshold": 2}]}],
            "output": {"path": str(tmp_path / "out"), "on_existing": "version", "files": 1},
            "base": str(tmp_path / "out"), "refit": {"forget": forget},
        })  # fmt: skip
        assert made.base_path is not None
        run_stages(made.request("pandas", find_newest_good(made.base_path).version))
    assert rows_of(tmp_path / "out" / "v0003")["k"].to_pylist() == [id_of_x]


def test_learning_anew_keeps_ids_and_begins_the_history(tmp_path: Path) -> None:
    out = nights(tmp_path, 2)
    night(tmp_path, 0, refit={"all": True})
    history = json.loads((out / "v0003/_workflow/workflow.json").read_text())["history"]
    assert rows_of(out / "v0003")["k"].to_pylist() == [3, 3, 4]
    assert (history["rows"], len(history["nights"])) == (3, 1)


@pytest.mark.promise("So are `checks`, `contract` and `output`")
def test_a_refit_has_the_gate_and_the_files_of_its_base(tmp_path: Path) -> None:
    out, contract = tmp_path / "out", {"columns": {"x": {"nulls": 0.1}}}
    output = {"path": str(out), "on_existing": "version", "files": 3, "shuffle": "key", "keys": ["k"],
              "compression": "zstd", "keep_versions": 5}  # fmt: skip
    night(tmp_path, 0, output=output, checks={"on_finding": "stop", "rows": {"threshold": 0.5}}, contract=contract)
    path = job(tmp_path, 1)["source"]["path"]
    data: dict[str, Any] = {"base": str(out), "source": {"path": path}}

    made = make_refit(data)
    kept = made.output.model_dump(exclude_defaults=True)
    assert kept == {"path": str(out), "on_existing": "version", "files": 3, "shuffle": "key", "keys": ["k"],
                    "compression": "zstd", "keep_versions": 5}  # fmt: skip
    assert made.checks.model_dump(exclude_defaults=True) == {"on_finding": "stop", "rows": {"threshold": 0.5}}
    assert made.rules() == make_job(job(tmp_path, 0, contract=contract)).rules()
    assert made.inherited == (
        "checks.on_finding: stop, checks.rows.threshold: 0.5, output.shuffle: key, output.keys: ['k'], "
        "output.files: 3, output.compression: zstd, output.keep_versions: 5, contract"
    )

    given = {"output": {"rows_per_file": 1, "shuffle": "none"}, "checks": {"on_finding": "warn"}, "contract": {}}
    made = make_refit({**data, **given})
    own = {"path": str(out), "on_existing": "version", "shuffle": "none", "rows_per_file": 1, "compression": "zstd",
           "keep_versions": 5}  # fmt: skip
    assert made.output.model_dump(exclude_defaults=True) == own
    assert made.checks.model_dump(exclude_unset=True) == {"on_finding": "warn", "rows": {"threshold": 0.5}}
    run_stages(made.request("pandas"))
    assert len(list((out / "v0002").glob("part-*.parquet"))) == 2
    third = make_refit({**data, "output": {"path": str(tmp_path / "else"), "format": "csv"}})  # what v0002 was given
    assert third.output.model_dump(exclude_defaults=True) == {
        "path": str(tmp_path / "else"), "shuffle": "none", "rows_per_file": 1, "format": "csv",
    }  # fmt: skip
    assert third.checks.on_finding == "warn"
    assert third.rules() == make_contract({})


def test_a_refit_of_a_fitted_workflow_has_its_checks(tmp_path: Path) -> None:
    data = job(tmp_path, 0, checks={"on_finding": "stop"}, contract={"columns": {"x": {"nulls": 0.1}}})
    run_fit(make_job(data).request("pandas"))
    made = make_refit({"base": data["output"]["path"], "source": {"path": data["source"]["path"]}})
    assert made.checks.on_finding == "stop"
    assert made.rules() == make_job(data).rules()


def ks(out: Path, versions: str) -> list[int]:
    return [k for batch in loader(out, versions=versions, shuffle=False) for k in batch["k"].to_pylist()]


@pytest.mark.promise("Other versions are left out with a warning; naming one (`v0002..v0004`) is an error")
def test_readers_of_several_versions_take_the_newest_and_its_ancestors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """v0001 and v0002, then v0003 without a base and v0004 on top of it: the same id means another value there."""
    out = nights(tmp_path, 2)
    made = make_job(job(tmp_path, 1)).request("pandas")
    assert "the earlier versions (v0001 to v0002) have other ids" in describe_other_ids(made)
    run_stages(made)
    night(tmp_path, 2)

    assert ks(out, "all") == ks(out, "v0003..") == [4, 3, 5]
    told = [record.getMessage() for record in caplog.records if "has other ids than v0004" in record.getMessage()]
    assert [Path(line.split()[0]).name for line in told] == ["v0001", "v0002"]
    frames = Dataset(out, versions="all", engine="pandas").to_iter()
    assert [k for frame in frames for k in frame["k"].tolist()] == [4, 3, 5]
    assert ks(out, "v0001..v0002") == [3, 3, 4, 5, 4]
    assert ks(out, "v0002") == [5, 4]
    with pytest.raises(JobError, match=r"(?s)v0002 has other ids than v0004.*versions='v0003\.\.v0004'"):
        ks(out, "v0002..v0004")

    discard_version(out / "v0004")
    discard_version(out / "v0003")
    night(tmp_path, 2)  # v0005, on top of v0002
    assert ks(out, "all") == [3, 3, 4, 5, 4, 6]


def test_versions_of_an_earlier_rowmill_and_those_whose_base_is_gone_are_ancestors_too(tmp_path: Path) -> None:
    out = nights(tmp_path, 3)
    assert [of_other_ids(PublishedOutput(out).versions), len(fitted_json(out, "v0003")["ancestors"])] == [[], 2]
    shutil.rmtree(out / "v0002")
    assert ks(out, "all") == [3, 3, 4, 6]

    older = nights(tmp_path / "older", 3)
    for path in older.glob("v*/_workflow/workflow.json"):
        data = json.loads(path.read_text())
        path.write_text(json.dumps({name: data[name] for name in data if name not in ("ancestors", "digest")}))
    assert ks(older, "all") == [3, 3, 4, 5, 4, 6]


def test_what_was_applied_from_the_nights_of_one_workflow_has_its_ids(tmp_path: Path) -> None:
    out = nights(tmp_path, 1)

    def apply(number: int) -> None:
        source, output = str(tmp_path / f"{number}.parquet"), {"path": str(tmp_path / "applied"), "files": 1}
        data = {"fitted": str(out), "source": {"path": source}, "output": {**output, "on_existing": "version"}}
        run_stages(make_application(data).request("pandas"))

    apply(0)
    night(tmp_path, 1)
    apply(1)
    assert sorted(ks(tmp_path / "applied", "all")) == [3, 3, 4, 4, 5]
    run_stages(make_job(job(tmp_path, 1)).request("pandas"))
    apply(1)
    assert sorted(ks(tmp_path / "applied", "all")) == [3, 4]


def fitted_json(out: Path, version: str) -> dict[str, Any]:
    return dict(json.loads((out / version / "_workflow/workflow.json").read_text()))


@pytest.mark.promise("Otherwise it is set aside like a discarded one, so that readers pass over it")
def test_a_damaged_version_is_set_aside_and_brought_back(tmp_path: Path) -> None:
    out = nights(tmp_path, 3)
    damaged, whole = out / "v0003/part-00000.parquet", (out / "v0003/part-00000.parquet").read_bytes()
    damaged.write_bytes(whole[:-1])
    choice = find_newest_good(out)
    with pytest.raises(DataError, match=r"(?s)the newest version is damaged.*part-00000\.parquet has .*run its night"):
        discard_damaged(choice, stops=True)
    assert ((out / "_latest").read_text(), is_discarded(out / "v0003")) == ("v0003\n", False)
    [line] = discard_damaged(choice, stops=False)
    assert f"rowmill discard {out / 'v0003'} --undo" in line
    assert ((out / "_latest").read_text(), is_discarded(out / "v0003")) == ("v0002\n", True)
    assert ks(out, "all") == [3, 3, 4, 5, 4]
    damaged.write_bytes(whole)
    assert restore_version(out / "v0003") == [f"{out / 'v0003'} is back", "_latest is v0003 now"]
    assert ks(out, "all") == [3, 3, 4, 5, 4, 6]
    with pytest.raises(JobError, match="this is not a discarded version"):
        restore_version(out / "v0003")

    mark(out / "v0003")
    written(pa.table({"k": ["e"], "x": [0.0]}), tmp_path / "e.parquet")
    night(tmp_path, 1, source={"path": str(tmp_path / "e.parquet")})
    text = "v0004 was learned without it: readers of several versions leave it out"
    assert restore_version(out / "v0003") == [f"{out / 'v0003'} is back", text]
    assert ks(out, "all") == [3, 3, 4, 5, 4, 6]
    assert rows_of(out / "v0004")["k"].to_pylist() == [6]  # another value than in v0003


@pytest.mark.promise("the run stops, because this does not prove that the version is damaged")
@pytest.mark.parametrize("what", ["a link that leads nowhere", "a version without a manifest", "an I/O error"])
def test_a_version_that_cannot_be_read_stops_the_run(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a disk is not mounted: nothing proves that the version differs from its manifest."""
    out = nights(tmp_path, 2)
    part = out / "v0002/part-00000.parquet"
    if what == "a link that leads nowhere":
        part.unlink()
        part.symlink_to(tmp_path / "unmounted/part")
    elif what == "a version without a manifest":
        shutil.rmtree(out / "v0002")
        (out / "v0002").mkdir()
    else:

        def failing(path: Path, *_: Any) -> str:
            raise OSError(5, "Input/output error", str(path))

        monkeypatch.setattr("tasks.job.output_check.digest_opened", failing)
        monkeypatch.setattr("tasks.job.base_version.digest", failing)
    with pytest.raises(HostError, match=r"it is not known whether v0002 is whole"):
        find_newest_good(out)
    assert not is_discarded(out / "v0002")


@pytest.mark.promise("a copy of a version under another number does not count")
def test_a_night_on_another_disk_is_a_version_and_a_copy_is_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = nights(tmp_path, 3)
    (tmp_path / "disk").mkdir()
    shutil.move(out / "v0001", tmp_path / "disk/v0001")
    (out / "v0001").symlink_to(tmp_path / "disk/v0001")
    shutil.copytree(out / "v0002", out / "v0007")
    (out / "v0008").symlink_to(out / "v0003")

    assert [path.name for path in versions_of(out)] == ["v0001", "v0002", "v0003"]
    assert ks(out, "all") == [3, 3, 4, 5, 4, 6]
    assert ks(out, "v0001") == [3, 3, 4]
    assert name_of(out) == "v0003"  # not the copy, which has a higher number
    told = f"{out / 'v0007'} is a copy of v0002, or a link to it: it does not count as a version"
    assert [record.getMessage() for record in caplog.records].count(told) == 1
    assert [path.name for path in find_descendants(out / "v0001")] == ["v0002", "v0003"]
    assert [path.name for path in history.list_versions(out)] == ["v0003", "v0002", "v0001"]
    with Staging(out).hold_lock():
        assert drop_versions(Staging(out), 1) == [out / "v0002"]
    assert (tmp_path / "disk/v0001/_manifest.json").exists()

    monkeypatch.setenv("ROWMILL_ALLOWED_ROOTS", f"{out}")
    with pytest.raises(HostError, match=r"(?s)outside the allowed roots.*disk/v0001"):
        ks(out, "all")
    monkeypatch.delenv("ROWMILL_ALLOWED_ROOTS")
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    with pytest.raises(JobError, match="v0001 is not a finished version"):
        ks(out, "all")


def test_a_newest_version_whose_disk_is_not_mounted_stops_the_run(tmp_path: Path) -> None:
    out = nights(tmp_path, 2)
    shutil.move(out / "v0002", tmp_path / "disk")
    (out / "v0002").symlink_to(tmp_path / "disk")
    assert name_of(out) == "v0002"
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    with pytest.raises(HostError, match="it is not known whether v0002 is whole"):
        find_newest_good(out)


def test_a_latest_of_odd_bytes_is_damaged_and_the_next_night_writes_it_again(tmp_path: Path) -> None:
    out = nights(tmp_path, 2)
    (out / "_latest").write_bytes(b"v0002\xff\xfe\n")
    for read in (loader, Workflow.load):
        with pytest.raises(DataError, match="_latest is damaged"):
            read(out)
    with pytest.raises(DataError, match="_latest names no version of this output"):
        _ = Dataset(out, engine="pandas").num_rows
    assert Staging(out).point_to(out / "v0002")
    assert (out / "_latest").read_text() == "v0002\n"
    (out / "_latest").write_bytes(b"\xff")
    with Staging(out).hold_lock():
        assert drop_versions(Staging(out), 1) == [out / "v0001"]
    night(tmp_path, 2)
    assert (out / "_latest").read_text() == "v0003\n"


def test_a_damaged_version_is_not_replaced(tmp_path: Path) -> None:
    out = nights(tmp_path, 2)
    (out / "v0001/part-00000.parquet").unlink()
    shown = CliRunner().invoke(app, ["verify", str(out / "v0001")])
    assert (shown.exit_code, "replace" in shown.output) == (1, False)
    assert f"take it back, rowmill discard {out / 'v0001'}, and run its night again" in shown.output
    (out / "v0002/part-00000.parquet").unlink()
    assert f"rowmill discard {out / 'v0002'}" in CliRunner().invoke(app, ["verify", str(out)]).output


def test_a_night_that_is_there_already_is_named_with_its_version(tmp_path: Path) -> None:
    nights(tmp_path, 3)
    with pytest.raises(DataError, match=r"1\.parquet was learned in the night of [\d-]+: this night is v0002"):
        night(tmp_path, 1)
