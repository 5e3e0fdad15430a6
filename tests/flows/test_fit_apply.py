"""Learning and applying apart: `fit` saves a workflow, `apply` takes it to new data, and says what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from flows.job.job import load_job, make_application, make_job
from tasks.cluster.local_pool import LocalPool
from tasks.errors import DataError, JobError
from tasks.manifest import Manifest
from tasks.stages import commit, ingest, shuffle_write, statistics, transform
from tasks.workflow import Workflow
from tests.flows.runs import completed_tasks, rows_of, run_on
from tests.stages import run_stages

pytestmark = pytest.mark.xdist_group("flows")
TRAIN = pa.table(
    {
        "id": pa.array([7, 7, 7, 8, 8, 9, 0], pa.int32()),
        "x1": [1.0, 2.0, 3.0, None, 2.0, 2.0, 99.0],
        "word": ["a", "a", "b", "b", "a", None, "a"],
        "label": pa.array([1, 0, 1, 0, 0, 1, 1], pa.int8()),
    }
)
NEW = pa.table(
    {
        "id": pa.array([7, 9, 0, 5], pa.int32()),
        "x1": [3.0, None, 2.0, 2.0],
        "word": ["a", "b", "b", "never seen"],
        "label": pa.array([1, 0, 1, 0], pa.int8()),
    }
)
# 0 is filtered out. Ids: 7 -> 3, 8 -> 4, 9 -> 5, others 2; a -> 3 (3 times), b -> 4. x1 has mean 2 and std 0.7071068.
EXPECTED = {
    "id": [3, 5, 2],
    "word": [3, 4, 2],
    "x1": [pytest.approx(1.4142135), None, 0.0],
    "TE_id_label": [pytest.approx(2 / 3), pytest.approx(1.0), pytest.approx(0.5)],
    "label": [1, 0, 0],
}


def job(folder: Path, source: Path, out: str = "fitted", **more: Any) -> dict[str, Any]:
    return {
        "source": {"path": str(source), "filter": "id > 0", **more},
        "features": [
            {"columns": ["id", "word"], "ops": [{"op": "Categorify"}]},
            {"columns": ["x*"], "ops": [{"op": "Normalize"}]},
            {"columns": ["id"], "ops": [{"op": "TargetEncoding", "target": "label", "p_smooth": 0, "kfold": 1}]},
        ],
        "label": ["label"],
        "output": {"path": str(folder / out), "shuffle": "none", "files": 1},
    }


def application(folder: Path, fitted: Path, new: Path, out: str = "out", **source: Any) -> dict[str, Any]:
    return {
        "fitted": str(fitted),
        "source": {"path": str(new), **source},
        "output": {"path": str(folder / out), "shuffle": "none", "files": 1},
    }


def written(table: pa.Table, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path


def fit_here(data: dict[str, Any], engine: str) -> Path:
    """The two stages of a fit in this process; the folder of the fitted workflow."""
    request = make_job(data).request(engine)
    with request.staging.hold_lock():
        ingest.ingest(request, LocalPool(2))
        statistics.statistics(request, LocalPool(2))
        return Path(commit.commit_fitted(request))


@pytest.fixture
def fitted(tmp_path: Path, engine: str) -> Path:
    return fit_here(job(tmp_path, written(TRAIN, tmp_path / "train.parquet")), engine)


def applied(folder: Path, fitted: Path, new: pa.Table | Path, engine: str, **source: Any) -> pa.Table:
    """The three stages of an application in this process; the rows that were written."""
    path = new if isinstance(new, Path) else written(new, folder / "new.parquet")
    run_stages(make_application(application(folder, fitted, path, **source)).request(engine))
    return rows_of(folder / "out")


# as Prefect flows


def test_fit_then_apply_gives_the_valid_rows_of_one_job(
    tmp_path: Path, prefect_server: Any, cluster: Any, engine: str
) -> None:
    from flows.apply import apply
    from flows.fit import fit

    train, new = written(TRAIN, tmp_path / "train.parquet"), written(NEW, tmp_path / "new.parquet")
    run_stages(make_job(job(tmp_path, train, "both", valid=str(new))).request(engine))
    valid = rows_of(tmp_path / "both" / "valid")
    fitted = run_on(fit, job(tmp_path, train, valid=str(new)), cluster)
    (out,) = run_on(apply, application(tmp_path, Path(fitted), new), cluster)
    run_stages(make_application(application(tmp_path, tmp_path / "both", new, "other")).request(engine))

    assert fitted == str(tmp_path / "fitted")
    assert valid.to_pydict() == EXPECTED
    assert rows_of(Path(out)).equals(valid)
    assert rows_of(tmp_path / "other").equals(valid)
    assert Manifest.load(out).rows == {"in": 4, "dropped": 1, "added": 0, "out": 3}
    completed_tasks(Manifest.load(out).data["run"], ["ingest", "transform", "shuffle_write"])
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        ["train.parquet", "new.parquet", "both", "fitted", "out", "other"]
    )


# what is saved


@pytest.mark.promise("saves a folder that a person can read")
def test_a_fitted_workflow_is_a_folder_that_a_person_can_read(fitted: Path, tmp_path: Path) -> None:
    said = json.loads((fitted / "workflow.json").read_text())
    names = {p.name for p in fitted.iterdir()}

    assert {"workflow.json", "state.json", "README.md"} < names
    assert {p.suffix for p in fitted.iterdir()} == {".json", ".md", ".vocab"}
    assert said["source"] == {"format": "parquet", "filter": "id > 0"}
    assert Workflow.load(fitted).transform(NEW)["word"].to_pylist() == [3, 4, 4, 2]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fitted", "train.parquet"]


def test_a_fit_replaces_its_own_folder_and_no_other(fitted: Path, tmp_path: Path, engine: str) -> None:
    data = job(tmp_path, tmp_path / "train.parquet")
    with pytest.raises(JobError, match="the output already exists"):
        make_job(data).request(engine).staging.check("fail")

    data["output"]["on_existing"] = "replace"
    assert fit_here(data, engine) == fitted
    (fitted / "mine.txt").write_text("mine")
    with pytest.raises(JobError, match="files that rowmill did not write"):
        fit_here(data, engine)
    assert (fitted / "mine.txt").read_text() == "mine"


@pytest.mark.promise("`fit` ignores the `output` section except `on_existing`")
def test_versions_of_a_fit_the_latest_is_applied(tmp_path: Path, engine: str) -> None:
    data = job(tmp_path, written(TRAIN.slice(0, 3), tmp_path / "train.parquet"))
    data["output"]["on_existing"] = "version"
    first = fit_here(data, engine)
    written(TRAIN, tmp_path / "train.parquet")
    second = fit_here(data, engine)

    assert (first, second) == (tmp_path / "fitted" / "v0001", tmp_path / "fitted" / "v0002")
    assert applied(tmp_path, tmp_path / "fitted", NEW, engine).to_pydict() == EXPECTED


def test_a_fit_that_was_cut_off_does_not_learn_again(tmp_path: Path, engine: str) -> None:
    request = make_job(job(tmp_path, written(TRAIN, tmp_path / "train.parquet"))).request(engine)
    pool = LocalPool(2)
    with request.staging.hold_lock():
        first = [ingest.ingest(request, pool), statistics.statistics(request, pool)]
    with request.staging.hold_lock():
        second = [ingest.ingest(request, pool), statistics.statistics(request, pool)]
        commit.commit_fitted(request)

    assert [s.reused for s in first] == [False, False]
    assert [s.reused for s in second] == [True, True]
    assert not request.staging.folder.exists()


def test_an_application_that_was_cut_off_goes_on_though_its_workflow_is_replaced(
    fitted: Path, tmp_path: Path, engine: str
) -> None:
    new = written(NEW, tmp_path / "new.parquet")
    request = make_application(application(tmp_path, fitted, new)).request(engine)
    pool = LocalPool(2)
    with request.staging.hold_lock():
        ingest.ingest(request, pool)
        transform.transform(request, "", pool)
        shuffle_write.shuffle_write(request, "", pool)
    for table in fitted.glob("*.vocab"):
        table.unlink()
    with request.staging.hold_lock():
        done = [
            ingest.ingest(request, pool),
            transform.transform(request, "", pool),
            shuffle_write.shuffle_write(request, "", pool),
        ]
        commit.commit(request, done)

    assert [s.reused for s in done] == [True, True, True]
    assert rows_of(tmp_path / "out").to_pydict() == EXPECTED


def test_a_damaged_workflow_is_not_applied(fitted: Path, tmp_path: Path, engine: str) -> None:
    table = min(fitted.glob("v000-*.vocab"))
    table.write_bytes(table.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"(?s)the table v000-.*is damaged.*restore the folder or fit again"):
        applied(tmp_path, fitted, NEW, engine)


# new data


@pytest.mark.promise("found by name; others are ignored")
def test_order_extra_columns_and_types_of_the_new_data_do_not_matter(fitted: Path, tmp_path: Path, engine: str) -> None:
    new = pa.table(
        {
            "label": NEW["label"].cast(pa.int64()),
            "x9": ["fits the pattern x*", None, "", "but was not there"],
            "word": NEW["word"].cast(pa.large_string()).dictionary_encode(),
            "x1": NEW["x1"].cast(pa.float32()),
            "id": NEW["id"].cast(pa.int64()),
        }
    )
    out = applied(tmp_path, fitted, new, engine)

    assert out.column_names == list(EXPECTED)
    assert out.to_pydict() == EXPECTED
    assert out.schema.field("label").type == pa.int8()


@pytest.mark.promise("cast to the types of the fit; a value that does not fit is an error with column and file")
@pytest.mark.promise("nulls of the type of the fit", "flows/SERVING.md#learn-once-apply-often")
def test_narrower_types_and_columns_of_nothing_but_nulls(fitted: Path, tmp_path: Path, engine: str) -> None:
    new = pa.table({"id": pa.array([7, 9], pa.uint8()), "x1": pa.nulls(2), "word": pa.nulls(2), "label": pa.nulls(2)})
    out = applied(tmp_path, fitted, new, engine)

    assert (out["id"].to_pylist(), out["word"].to_pylist()) == ([3, 5], [1, 1])
    assert (out["x1"].null_count, out["label"].null_count) == (2, 2)


@pytest.mark.promise("the label is left out of the output, and named in the log, the summary and the manifest")
def test_a_missing_label_is_left_out_and_named(fitted: Path, tmp_path: Path, engine: str) -> None:
    out = applied(tmp_path, fitted, NEW.drop_columns(["label"]), engine)

    assert out.to_pydict() == {name: values for name, values in EXPECTED.items() if name != "label"}
    assert Manifest.load(tmp_path / "out").data["left_out"] == ["label"]
    assert Manifest.load(tmp_path / "out").data["labels"] == []
    assert Workflow.load(tmp_path / "out").transform(NEW).column_names == list(EXPECTED)


@pytest.mark.promise("columns that only the statistics read (a target) are not needed")
def test_a_missing_column_that_is_needed_is_an_error_with_near_names(fitted: Path, tmp_path: Path, engine: str) -> None:
    new = NEW.rename_columns(["id", "x1", "words", "label"])
    with pytest.raises(DataError, match=r"(?s)no column 'word'.*source\.path.*did you mean 'words'"):
        applied(tmp_path, fitted, new, engine)
    assert not (tmp_path / "out").exists()


def test_a_column_of_another_kind_is_an_error(fitted: Path, tmp_path: Path, engine: str) -> None:
    new = NEW.set_column(2, "word", pa.array([1, 2, 3, 4]))
    with pytest.raises(DataError, match="column 'word' is int64, the workflow was fitted with string"):
        applied(tmp_path, fitted, new, engine)


@pytest.mark.promise("cast to the types of the fit; a value that does not fit is an error with column and file")
def test_a_value_that_does_not_fit_is_an_error_with_column_and_file(fitted: Path, tmp_path: Path, engine: str) -> None:
    new = NEW.set_column(0, "id", pa.array([7, 9, 0, 3_000_000_000]))
    with pytest.raises(DataError, match=r"(?s)column 'id' of type int64 does not fit int32.*new\.parquet.*3000000000"):
        applied(tmp_path, fitted, new, engine)


@pytest.mark.promise("text files are read in the types of the fit, so that `007` stays text")
def test_text_files_are_read_in_the_types_of_the_fit(tmp_path: Path, engine: str) -> None:
    words = pa.chunked_array([["007", "007", "x", "x", "007", None, "007"]])
    data = job(tmp_path, written(TRAIN.set_column(2, "word", words), tmp_path / "train.parquet"))
    fitted = fit_here(data, engine)
    new = tmp_path / "new.csv"
    pacsv.write_csv(NEW.set_column(2, "word", pa.array(["007", "7", "7", "7"])), new)

    assert applied(tmp_path, fitted, new, engine).to_pydict() == {**EXPECTED, "word": [3, 2, 2]}


@pytest.mark.promise("are those of the fit unless `--set` says otherwise")
def test_the_filter_of_the_fit_holds_unless_another_is_given(fitted: Path, tmp_path: Path, engine: str) -> None:
    assert applied(tmp_path, fitted, NEW, engine, filter=None).num_rows == 4


@pytest.mark.parametrize("key", ["valid", "sample"])
def test_apply_takes_one_data_set(fitted: Path, tmp_path: Path, key: str) -> None:
    value = {"valid": "other", "sample": {"name": "toy"}}[key]
    with pytest.raises(JobError, match=rf"source\.{key} is not for apply"):
        make_application(application(tmp_path, fitted, tmp_path, **{key: value}))


def test_mistakes_are_said_before_anything_starts(fitted: Path, tmp_path: Path) -> None:
    data = application(tmp_path, fitted, tmp_path)
    with pytest.raises(JobError, match=r"output\.sead is unknown: did you mean 'seed'"):
        make_application({**data, "output": {"path": "out", "sead": 1}})
    with pytest.raises(JobError, match="features is unknown"):
        make_application({**data, "features": []})
    with pytest.raises(DataError, match=r"workflow\.json is missing"):
        make_application({**data, "fitted": str(tmp_path)})


# rows that lie together


@pytest.mark.promise("are those of the fit unless `--set` says otherwise")
def test_keys_of_the_fit_bring_new_rows_together(tmp_path: Path, engine: str) -> None:
    train = pa.table({"user": ["u", "v", "u"], "t": [2, 1, 1], "x": [5.0, 1.0, 3.0]})
    data = {
        "source": {"path": str(written(train, tmp_path / "train.parquet")), "keys": ["user"], "sort_by": ["t"]},
        "features": [
            {"columns": ["x"], "ops": [{"op": "DifferenceLag", "partition_cols": ["user"]}, {"op": "Normalize"}]},
            {"columns": ["x", "t"]},
        ],
        "output": {"path": str(tmp_path / "fitted")},
    }
    out = applied(tmp_path, fit_here(data, engine), train.take([2, 0, 1]), engine)

    assert sorted(zip(out["t"].to_pylist(), out["x"].to_pylist(), strict=True)) == [(1, 1.0), (1, 3.0), (2, 5.0)]
    differences = dict(zip(out["x"].to_pylist(), out["x_difference_lag_1"].to_pylist(), strict=True))
    assert differences == {1.0: None, 3.0: None, 5.0: 0.0}


# operators of one's own


@pytest.mark.promise("A class of a module of your own, named by import path in `op:`, is as good an operator as these")
def test_a_class_of_a_users_module_learns_in_a_job_and_is_found_again(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"""
source: {{path: {written(TRAIN, tmp_path / "train.parquet")}}}
features:
  - columns: [x1]
    ops: [{{op: "tests.flows.own_operator:ShareOfLargest", scale: 2}}]
output: {{path: {tmp_path / "out"}, shuffle: none, files: 1}}
""")
    run_stages(load_job(path).request(engine))
    out = tmp_path / "out"
    again = Workflow.load(out).transform(NEW)["x1"].to_pylist()

    assert rows_of(out)["x1"].to_pylist() == pytest.approx([2 / 99, 4 / 99, 6 / 99, None, 4 / 99, 4 / 99, 2.0])
    assert again == pytest.approx([6 / 99, None, 4 / 99, 4 / 99])
    assert "tests.flows.own_operator:ShareOfLargest" in (out / "_workflow" / "workflow.json").read_text()
