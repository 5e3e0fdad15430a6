"""Train, valid and test of one source: which rows each gets, and that train alone is learned from."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from flows.commands.inspect import verify_output
from flows.job.job import make_application, make_job
from flows.preview.job_preview import preview
from flows.preview.preview_text import sections
from flows.public.rowmill.cli import app
from tasks.cluster.local_pool import LocalPool
from tasks.core.settings import Source
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError
from tasks.job.base_version import find_newest_good
from tasks.manifest import Manifest
from tasks.report.html import reports_of
from tasks.stages import ingest, statistics, transform
from tasks.storage.staging import Staging
from tests.examples import examples
from tests.flows.runs import rows_of
from tests.frames import write_parts
from tests.stages import run_stages
from tests.tasks.shuffle import test_row_sets as row_rules

DAY = dt.datetime(2026, 11, 1)


def write_data(folder: Path, rows: int = 300, order: Any = None, files: int = 2) -> pd.DataFrame:
    numbers = np.arange(rows)
    days = [None if i % 50 == 7 else DAY + dt.timedelta(hours=int(i * 37 % rows)) for i in numbers]
    frame = pd.DataFrame({"i": numbers, "u": numbers * numbers % 101, "y": numbers % 2, "t": pd.Series(days)})
    frame["fold"] = [None if i % 9 == 0 else "abcd"[i % 4] for i in numbers]
    frame = frame if order is None else frame.iloc[order]
    write_parts(folder, frame, files)
    return frame


def job_of(tmp_path: Path, split: dict[str, Any], output: str = "out", **more: Any) -> dict[str, Any]:
    source = {"split": split, **more.pop("source", {})}
    return row_rules.job_of(tmp_path, output, source=source, **{"features": [{"columns": ["i", "u"]}], **more})


def split_frames(tmp_path: Path, split: dict[str, Any], engine: str, output: str = "out", threads: int = 2,
                 **more: Any) -> dict[str, pd.DataFrame]:  # fmt: skip
    """The rows of each split, in the order of the output."""
    run_stages(make_job(job_of(tmp_path, split, output, **more)).request(engine), threads)
    folders = [tmp_path / output / name for name in ("train", "valid", "test")]
    return {folder.name: rows_of(folder).to_pandas() for folder in folders if folder.exists()}


def split_rows(*args: Any, **more: Any) -> dict[str, list[int]]:
    """The numbers of the rows of each split, in the order of the output; the parameters of `split_frames`."""
    return {name: frame["i"].to_list() for name, frame in split_frames(*args, **more).items()}


def test_diff_compares_an_output_with_splits_with_itself(tmp_path: Path, engine: str) -> None:
    write_data(tmp_path / "data")
    split_rows(tmp_path, {"by": "fraction", "valid": 0.3}, engine)
    out = str(tmp_path / "out")
    done = CliRunner().invoke(app, ["diff", out, out])
    assert done.exit_code == 0, done.stderr
    titles = [line for line in done.stdout.splitlines() if line.startswith("out/") and "profile" not in line]
    assert titles == ["out/train and out/train", "out/valid and out/valid"]
    done = CliRunner().invoke(app, ["diff", out, f"{out}/train"])
    assert done.exit_code == 1
    assert "compare a split with a split: rowmill diff OUT/train OTHER/train" in done.stderr


@pytest.mark.promise("A row at a cut is in the later split. A null is in train, and counted")
def test_later_rows_are_in_later_splits_a_cut_in_the_later_one_and_nulls_in_train(tmp_path: Path, engine: str) -> None:
    frame = write_data(tmp_path / "data")
    first, second = DAY + dt.timedelta(hours=200), DAY + dt.timedelta(hours=250)
    rows = split_rows(tmp_path, {"by": "time", "column": "t", "valid": str(first), "test": str(second)}, engine)
    is_test = frame["t"] >= second
    is_valid = (frame["t"] >= first) & ~is_test
    assert rows == {"train": [*frame["i"][~is_valid & ~is_test]], "valid": [*frame["i"][is_valid]],
                    "test": [*frame["i"][is_test]]}  # fmt: skip
    assert {first, second} <= {*frame["t"]}
    train = Manifest.load(tmp_path / "out" / "train").data["row_rules"]["split"]
    later, null = int((is_valid | is_test).sum()), int(frame["t"].isna().sum())
    assert (train["rows"], train["null_in_train"]) == (later, null)
    (report,) = reports_of(tmp_path / "out" / "train")
    assert f"In other splits by source.split: {later} rows; {null} rows are here since t is null." in report.read_text()


@pytest.mark.promise("A row at a cut is in the later split. A null is in train, and counted")
@pytest.mark.parametrize(
    ("valid", "test", "expected"),
    [
        (5, 8, {"train": [0, 1, 2, 3, 4], "valid": [5, 6, 7], "test": [8, 9]}),
        (None, 8, {"train": [0, 1, 2, 3, 4, 5, 6, 7], "test": [8, 9]}),
        (7, None, {"train": [0, 1, 2, 3, 4, 5, 6], "valid": [7, 8, 9]}),
    ],
)
def test_cuts_of_numbers(valid: Any, test: Any, expected: dict[str, list[int]], tmp_path: Path, engine: str) -> None:
    write_data(tmp_path / "data", 10)
    assert split_rows(tmp_path, {"by": "time", "column": "i", "valid": valid, "test": test}, engine) == expected


@pytest.mark.promise("`valid` and `test` are values of `column`; rows with other values are train")
def test_values_of_a_column_name_the_split_and_others_are_train(tmp_path: Path, engine: str) -> None:
    frame = write_data(tmp_path / "data")
    rows = split_rows(tmp_path, {"by": "column", "column": "fold", "valid": "b", "test": ["c", "d"]}, engine)
    assert rows == {
        "train": [*frame["i"][frame["fold"].isna() | (frame["fold"] == "a")]],
        "valid": [*frame["i"][frame["fold"] == "b"]],
        "test": [*frame["i"][frame["fold"].isin(["c", "d"])]],
    }


@pytest.mark.promise("shares of the rows, by a hash of seed and row number")
@examples(8)
@given(
    size=st.integers(1, 4000), threads=st.integers(1, 3), valid=st.sampled_from([0.1, 0.3]),
    test=st.sampled_from([None, 0.2, 0.5]), seed=st.integers(0, 3), keys=st.sampled_from([[], ["u"], ["u", "fold"]]),
)  # fmt: skip
def test_every_row_is_in_one_split_whatever_the_partitions(
    size: int, threads: int, valid: float, test: float | None, seed: int, keys: list[str], engine: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    tmp_path = tmp_path_factory.mktemp("splits")
    frame = write_data(tmp_path / "data", 200)
    split = {"by": "hash" if keys else "fraction", "together": keys, "valid": valid, "test": test, "seed": seed}
    rows = split_rows(tmp_path, split, engine, threads=threads, source={"partition_size": size})
    assert sorted(i for part in rows.values() for i in part) == [*range(200)]
    assert all(part == sorted(part) for part in rows.values())
    assert rows == split_rows(tmp_path, split, engine, "again")
    where = {i: name for name, part in rows.items() for i in part}
    if keys:
        assert all(len({where[i] for i in group["i"]}) == 1 for _, group in frame.groupby(keys, dropna=False))


@pytest.mark.promise("shares of the rows, by a hash of seed and row number")
def test_shares_are_about_those_asked_for(tmp_path: Path, engine: str) -> None:
    write_data(tmp_path / "data", 4000)
    rows = split_rows(tmp_path, {"by": "fraction", "valid": 0.1, "test": 0.3}, engine)
    assert 340 < len(rows["valid"]) < 460
    assert 1100 < len(rows["test"]) < 1300
    other = split_rows(tmp_path, {"by": "fraction", "valid": 0.1, "test": 0.2}, engine, "other")
    assert other["valid"] == rows["valid"]
    assert {*other["test"]} < {*rows["test"]}


@pytest.mark.promise("Rows of a key stay in one split, wherever they lie")
def test_a_user_is_in_the_same_split_wherever_the_rows_lie(tmp_path: Path, engine: str) -> None:
    order = np.random.default_rng(0).permutation(300)
    splits = []
    for name, rows_order in (("one", None), ("other", order)):
        write_data(tmp_path / name / "data", order=rows_order)
        splits.append(split_rows(tmp_path / name, {"by": "hash", "together": ["u"], "valid": 0.3}, engine))
    assert {*splits[0]["valid"]} == {*splits[1]["valid"]}
    assert {*splits[0]["train"]} == {*splits[1]["train"]}


@pytest.mark.promise("a row whose single key is null is in train")
def test_a_null_key_is_in_train(tmp_path: Path, engine: str) -> None:
    frame = write_data(tmp_path / "data")
    rows = split_rows(tmp_path, {"by": "hash", "together": ["fold"], "valid": 0.49, "test": 0.5}, engine)
    assert {*frame["i"][frame["fold"].isna()]} <= {*rows["train"]}


@pytest.mark.promise("Only train is learned from", "flows/KEYS.md#splits-and-samples")
def test_train_alone_is_learned_from(tmp_path: Path, engine: str) -> None:
    frame = write_data(tmp_path / "data")
    features = [
        {"columns": ["i"]},
        {"columns": ["i"], "ops": [{"op": "NormalizeMinMax"}, {"op": "Rename", "name": "m"}]},
        {"columns": ["fold"], "ops": [{"op": "TargetEncoding", "target": "u", "kfold": 3, "p_smooth": 0}]},
        {"columns": ["u"], "ops": [{"op": "Categorify"}]},
    ]
    split = {"by": "time", "column": "i", "valid": 150, "test": 225}
    run_stages(make_job(job_of(tmp_path, split, features=features)).request(engine))
    parts = {name: rows_of(tmp_path / "out" / name).to_pandas() for name in ("train", "valid", "test")}
    assert parts["train"]["m"].max() == 1.0
    assert parts["test"]["m"].max() > 1.9
    train = frame[frame["i"] < 150]
    known = {*train["u"]}
    for name in ("valid", "test"):
        users = frame.set_index("i").loc[parts[name]["i"], "u"]
        assert [code > 2 for code in parts[name]["u"]] == [user in known for user in users]
    (encoded,) = [column for column in parts["train"] if column.startswith("TE_")]
    means = train.groupby("fold")["u"].mean()
    folds = frame.set_index("i")["fold"]
    for name in ("valid", "test"):  # of all folds of train, while train has each row without its own fold
        there = [(value, folds[i]) for value, i in zip(parts[name][encoded], parts[name]["i"], strict=True)]
        assert all(value == pytest.approx(means[fold], rel=1e-5) for value, fold in there if fold in means.index)
    assert parts["train"].groupby(folds[parts["train"]["i"]].to_numpy())[encoded].nunique().max() > 1


def test_filter_unique_split_and_down_sampling_come_one_after_another(tmp_path: Path, engine: str) -> None:
    frame = write_data(tmp_path / "data")
    source = {"filter": "i % 3 != 0", "unique": {"keys": ["u"]},
              "downsample": {"where": "y == 0", "fraction": 0.5, "weight": "w"}}  # fmt: skip
    features = [{"columns": ["i", "u", "w"]}]
    rows = split_rows(tmp_path, {"by": "time", "column": "i", "valid": 60}, engine, source=source, features=features)
    stay = frame[frame["i"] % 3 != 0].drop_duplicates("u")
    assert rows["valid"] == [*stay["i"][stay["i"] >= 60]]
    assert {*rows["train"]} < {*stay["i"][stay["i"] < 60]}
    assert {i for i in rows["train"] if i % 2} == {i for i in stay["i"] if i < 60 and i % 2}
    assert {*rows_of(tmp_path / "out" / "valid")["w"].to_pylist()} == {1.0}
    rules = Manifest.load(tmp_path / "out" / "valid").data["row_rules"]
    assert [*rules] == ["unique", "split"]


def test_rows_brought_together_by_keys_are_split_by_their_row_numbers_too(tmp_path: Path, engine: str) -> None:
    write_data(tmp_path / "data")
    split = {"by": "fraction", "valid": 0.2}
    plain = split_rows(tmp_path, split, engine)
    keyed = split_rows(tmp_path, split, engine, "keyed", source={"keys": ["u"], "sort_by": ["i"]})
    assert {name: {*part} for name, part in plain.items()} == {name: {*part} for name, part in keyed.items()}


def test_an_output_of_three_splits_is_whole_or_says_what_is_missing(tmp_path: Path) -> None:
    write_data(tmp_path / "data")
    split = {"by": "fraction", "valid": 0.2, "test": 0.2}
    split_rows(tmp_path, split, "pandas")
    whole, damaged, _ = verify_output(tmp_path / "out")
    assert ([line.split(":")[0] for line in whole], damaged) == (["train", "valid", "test"], [])
    (tmp_path / "out" / "test" / "_manifest.json").unlink()
    assert "test: _manifest.json is missing" in verify_output(tmp_path / "out")[1]
    split_rows(tmp_path, {"by": "fraction", "test": 0.2}, "pandas", "two")
    assert verify_output(tmp_path / "two")[1] == []
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == ["_workflow", "test", "train"]
    assert find_newest_good(tmp_path / "two").version is not None


def test_an_output_of_splits_is_replaced_as_a_whole(tmp_path: Path) -> None:
    write_data(tmp_path / "data")
    output = {"path": str(tmp_path / "out"), "files": 2, "on_existing": "replace"}
    for split in ({"by": "fraction", "valid": 0.2, "test": 0.2}, {"by": "fraction", "valid": 0.2}):
        run_stages(make_job(job_of(tmp_path, split) | {"output": output}).request("pandas"))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["_workflow", "train", "valid"]


def test_an_output_of_splits_does_not_become_a_folder_of_versions(tmp_path: Path) -> None:
    write_data(tmp_path / "data")
    split = {"by": "fraction", "valid": 0.2}
    output = {"path": str(tmp_path / "out"), "on_existing": "version"}
    split_rows(tmp_path, split, "pandas")
    with pytest.raises(JobError, match="a single output, not a folder of versions"):
        Staging(tmp_path / "out").check("version")
    (tmp_path / "out").rename(tmp_path / "single")
    (tmp_path / "out").mkdir()
    (tmp_path / "single").rename(tmp_path / "out/v0001")  # as the error says
    Staging(tmp_path / "out").check("version")
    run_stages(make_job(job_of(tmp_path, split) | {"output": output}).request("pandas"))
    assert (tmp_path / "out/v0002/valid/_manifest.json").exists()


@pytest.mark.parametrize(
    ("split", "rule"),
    [
        ({"by": "column", "column": "fold", "valid": "zz"}, "col('fold') in ['zz']"),
        ({"by": "time", "column": "t", "valid": "2030-01-01"}, "2030-01-01"),
    ],
)
def test_a_split_without_a_row_is_named_with_its_rule(
    split: dict[str, Any], rule: str, tmp_path: Path, engine: str
) -> None:
    write_data(tmp_path / "data")
    with pytest.raises(DataError, match="no row of valid is left") as caught:
        split_rows(tmp_path, split, engine)
    assert rule in caught.value.why
    assert caught.value.where == "source.split.valid"
    splits = Dataset(str(tmp_path / "data"), engine=engine).split(**split)
    assert splits["train"].num_rows == 300
    with pytest.raises(DataError, match="no row of valid is left"):
        splits["valid"].num_rows  # it counts


def test_a_value_of_another_type_than_its_column_is_named_as_a_value(tmp_path: Path) -> None:
    write_data(tmp_path / "data", 20)
    with pytest.raises(JobError, match=r"source\.split\.valid") as caught:
        preview(make_job(job_of(tmp_path, {"by": "column", "column": "i", "valid": "1"})))
    assert caught.value.do == "give a number, as the column has"
    preview(make_job(job_of(tmp_path, {"by": "column", "column": "i", "valid": 1})))


def test_an_earlier_start_is_used_again_as_far_as_the_split_is_the_same(tmp_path: Path) -> None:
    write_data(tmp_path / "data")
    features = [{"columns": ["i"], "ops": [{"op": "Normalize"}]}]

    def stages(split: dict[str, Any]) -> list[bool]:
        request = make_job(job_of(tmp_path, split, features=features)).request("pandas")
        with request.staging.hold_lock():
            pool = LocalPool(2)
            results: list[Any] = [ingest.ingest(request, pool), statistics.statistics(request, pool)]
            results += [transform.transform(request, name, pool) for name in request.splits]
            return [result.reused for result in results]

    split = {"by": "fraction", "valid": 0.2}
    assert stages(split) == [False] * 4
    assert stages(split)[:2] == [True, True]
    assert stages({**split, "seed": 1}) == [False] * 4
    assert stages({**split, "test": 0.1}) == [False] * 5


def test_a_preview_shows_the_splits(tmp_path: Path) -> None:
    write_data(tmp_path / "data")
    shown = preview(make_job(job_of(tmp_path, {"by": "hash", "together": ["u"], "valid": 0.2, "test": 0.1})))
    assert [reading.what for reading in shown.readings] == ["transform train", "transform valid", "transform test"]
    assert shown.rows == 300
    steps = [row["step"] for section in sections(shown) if section.title == "Plan" for row in section.rows]
    assert [step for step in steps if step.startswith("shuffle_write")] == [
        "shuffle_write train", "shuffle_write valid", "shuffle_write test"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"by": "time", "column": "z", "valid": 1}, "there is no column 'z'"),
        ({"by": "hash", "together": ["z"], "valid": 0.1}, "there is no column 'z'"),
        ({"by": "time", "column": "u", "valid": "2026-11-01"}, "u"),
        ({"by": "column", "column": "fold", "valid": 3}, "fold"),
    ],
)
def test_a_preview_refuses_what_the_columns_do_not_allow(split: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_data(tmp_path / "data", 20)
    with pytest.raises(JobError, match=message):
        preview(make_job(job_of(tmp_path, split)))


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"by": "time", "valid": 1}, "by: time needs a column"),
        ({"by": "hash", "valid": 0.1}, "by: hash needs together"),
        ({"by": "fraction", "together": ["u"], "valid": 0.1}, "by: fraction takes no together; by: hash goes by it"),
        ({"by": "fraction", "column": "u", "valid": 0.1}, "by: fraction takes no column"),
        ({"by": "fraction"}, "give valid, test or both"),
        ({"by": "fraction", "valid": 0.6, "test": 0.4}, "together below 1"),
        ({"by": "fraction", "valid": 2}, "shares of the rows"),
        ({"by": "time", "column": "t", "valid": "2026-11-02", "test": "2026-11-01"}, "test begins after valid"),
        ({"by": "time", "column": "t", "valid": "2026-11-02", "test": 3}, "both texts, or both numbers"),
        ({"by": "time", "column": "t", "valid": ["2026-11-02"]}, "the moments at which they begin"),
        ({"by": "column", "column": "fold", "valid": "a", "test": ["b", "a"]}, "valid and test have both the value a"),
    ],
)
def test_a_split_that_contradicts_itself_is_refused(split: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=message):
        make_job(job_of(tmp_path, split))


def test_dates_of_yaml_are_moments() -> None:
    split = {"by": "time", "column": "t", "valid": dt.date(2026, 11, 1), "test": dt.date(2026, 11, 8)}
    rule = Source(path="a", split=split).split  # type: ignore[arg-type]
    assert rule is not None
    assert (rule.valid, rule.test) == ("2026-11-01", "2026-11-08")


@pytest.mark.promise("`split` cannot be used next to `source.valid`, with a `base`, or for `apply`")
def test_a_split_is_not_for_validation_data_a_base_or_a_fitted_workflow(tmp_path: Path) -> None:
    write_data(tmp_path / "data")
    split = {"by": "fraction", "valid": 0.1}
    with pytest.raises(JobError, match=r"source\.split and source\.valid contradict each other"):
        make_job(job_of(tmp_path, split, source={"valid": str(tmp_path / "data")}))
    with pytest.raises(JobError, match=r"source\.split is not for a job with a base"):
        make_job(job_of(tmp_path, split) | {"base": str(tmp_path / "out")})
    split_rows(tmp_path, split, "pandas")
    source = {"path": str(tmp_path / "data"), "split": split}
    with pytest.raises(JobError, match=r"source\.split is not for apply"):
        make_application({"fitted": str(tmp_path / "out"), "source": source, "output": {"path": str(tmp_path / "n")}})
