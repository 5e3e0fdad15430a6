"""How text is read belongs to what was learned: a fitted workflow reads new data as it read its own."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from flows.commands import inspect
from flows.job.job import make_application, make_job
from flows.preview.job_preview import preview
from flows.preview.preview_text import sections
from tasks import ops
from tasks.cluster.local_pool import LocalPool
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError
from tasks.graph.saved_workflow import read_fitted
from tasks.manifest import Manifest
from tasks.stages import commit, ingest, statistics
from tasks.workflow import Workflow
from tests.flows.runs import rows_of
from tests.stages import Report, run_stages

WORDS = "w,n\nNA,1\nx,2\nx,3\nNA,4\n"
IDS_WITH_NULLS = [1, 3, 3, 1]  # NA is null
IDS_OF_TEXTS = [3, 4, 4, 3]  # NA is a value, as frequent as x


def fit_words(folder: Path, name: str, text: str, **source: Any) -> Path:
    """A Categorify of column w that is fitted on a text file; the folder of the fitted workflow."""
    (folder / name).write_text(text)
    job = {
        "source": {"path": str(folder / name), **source},
        "features": [{"columns": ["w"], "ops": [{"op": "Categorify"}]}, {"columns": ["n"]}],
        "output": {"path": str(folder / "fitted"), "shuffle": "none", "files": 1},
    }
    request = make_job(job).request("pandas")
    with request.staging.hold_lock():
        ingest.ingest(request, LocalPool(1))
        statistics.statistics(request, LocalPool(1))
        return Path(commit.commit_fitted(request))


def application(folder: Path, fitted: Path, new: Path, **source: Any) -> dict[str, Any]:
    return {
        "fitted": str(fitted),
        "source": {"path": str(new), **source},
        "output": {"path": str(folder / "out"), "shuffle": "none", "files": 1, "on_existing": "replace"},
    }


def apply_words(folder: Path, fitted: Path, new: Path, **source: Any) -> Manifest:
    run_stages(make_application(application(folder, fitted, new, **source)).request("pandas"))
    return Manifest.load(folder / "out")


def ids(folder: Path) -> list[int]:
    found: list[int] = rows_of(folder / "out")["w"].to_pylist()
    return found


# a job


@pytest.mark.promise("read as those of the fit unless `--set` says otherwise: `null_values` and `schema` always")
def test_a_text_for_null_stays_null_in_what_is_applied(tmp_path: Path) -> None:
    fitted = fit_words(tmp_path, "a.csv", WORDS, null_values=["NA"])
    manifest = apply_words(tmp_path, fitted, tmp_path / "a.csv")

    assert ids(tmp_path) == IDS_WITH_NULLS
    assert manifest.data["reading"] == {"format": "csv", "null_values": ["NA"]}
    assert "differs_from_fit" not in manifest.data


@pytest.mark.promise(
    "`null_values` that differ from the fit's are named in the log, the summary and the manifest "
    "(`differs_from_fit`), as are types and rows"
)
def test_another_text_for_null_is_taken_and_said_to_differ(tmp_path: Path) -> None:
    fitted = fit_words(tmp_path, "a.csv", WORDS, null_values=["NA"])
    request = make_application(application(tmp_path, fitted, tmp_path / "a.csv", null_values=["x"])).request("pandas")
    summary = run_stages(request, plugins=[Report()])[0]
    manifest = Manifest.load(tmp_path / "out")
    said = "source.null_values is ['x'], in the fit ['NA']"

    assert ids(tmp_path) == [2, 1, 1, 2]
    assert summary.differs_from_fit == said
    assert manifest.data["differs_from_fit"] == [said]
    assert f"Different from the fit: {said}".replace("'", "&#39;") in (tmp_path / "out" / "_report.html").read_text()


def test_what_was_learned_stays_what_it_was_when_it_is_applied_otherwise(tmp_path: Path) -> None:
    fitted = fit_words(tmp_path, "a.csv", WORDS, null_values=["NA"], filter="n < 4")
    apply_words(tmp_path, fitted, tmp_path / "a.csv", null_values=[], filter=None)

    assert ids(tmp_path) == [2, 3, 3, 2]
    assert read_fitted(tmp_path / "out")["source"] == read_fitted(fitted)["source"]


@pytest.mark.promise(
    "`delimiter`, `quote`, `escape`, `comment`, `header`, `columns`, `skip_rows`, `skip_initial_space`, `decimal` and "
    "`encoding` where they have the format of the fit"
)
def test_delimiter_header_and_columns_hold_for_the_format_of_the_fit_alone(tmp_path: Path) -> None:
    fitted = fit_words(tmp_path, "a.csv", "NA;1\nx;2\nx;3\n", null_values=["NA"], delimiter=";", columns=["w", "n"])
    (tmp_path / "b.csv").write_text("x;1\nNA;2\n")
    (tmp_path / "b.tsv").write_text("w\tn\nx\t1\nNA\t2\n")
    apply_words(tmp_path, fitted, tmp_path / "b.csv")
    assert ids(tmp_path) == [3, 1]
    apply_words(tmp_path, fitted, tmp_path / "b.tsv")
    assert ids(tmp_path) == [3, 1]


@pytest.mark.promise(
    "`delimiter`, `quote`, `escape`, `comment`, `header`, `columns`, `skip_rows`, `skip_initial_space`, `decimal` and "
    "`encoding` where they have the format of the fit"
)
def test_signs_skipped_rows_decimal_and_encoding_hold_for_the_format_of_the_fit(tmp_path: Path) -> None:
    head = "a note\nw;n\n# a comment; of; values\n"
    signs = {"delimiter": ";", "quote": "'", "escape": "\\", "comment": "#"}
    layout = {**signs, "skip_rows": 1, "decimal": ",", "encoding": "latin-1"}
    fitted = fit_words(tmp_path, "a.csv", head + "'é;x';1,5\n'é;x';2,5\n'\\'q';3,5\n", **layout)
    (tmp_path / "b.csv").write_text(head + "'\\'q';4,5\n'é;x';5,5\n")
    manifest = apply_words(tmp_path, fitted, tmp_path / "b.csv")
    assert rows_of(tmp_path / "out").to_pydict() == {"w": [4, 3], "n": [4.5, 5.5]}
    assert manifest.data["reading"] == {"format": "csv", "null_values": [""], **layout}


def test_a_header_of_the_new_file_takes_the_place_of_the_fits_columns(tmp_path: Path) -> None:
    fitted = fit_words(tmp_path, "a.csv", "NA,1\nx,2\n", null_values=["NA"], columns=["w", "n"])
    (tmp_path / "b.csv").write_text("n,w\n1,x\n2,NA\n")
    apply_words(tmp_path, fitted, tmp_path / "b.csv", header=True)
    assert ids(tmp_path) == [3, 1]


@pytest.mark.parametrize("name", ["a.log", "a.tsv"])
def test_files_are_read_in_the_format_that_files_of_their_suffix_had_in_the_fit(tmp_path: Path, name: str) -> None:
    fitted = fit_words(tmp_path, name, WORDS.replace(",", "|"), format="csv", delimiter="|", null_values=["NA"])
    (tmp_path / f"new-{name}").write_text("w|n\nx|1\nNA|2\n")
    apply_words(tmp_path, fitted, tmp_path / f"new-{name}")
    assert ids(tmp_path) == [3, 1]


def test_types_of_the_fit_hold_column_by_column_and_need_not_be_there(tmp_path: Path) -> None:
    (tmp_path / "new.jsonl").write_text('{"w": 7}\n{"w": "x"}\n')
    lines = '{"w": 7, "n": 1, "label": 1}\n{"w": "x", "n": 2, "label": 0}\n{"w": "x", "n": 2}\n'
    (tmp_path / "a.jsonl").write_text(lines)
    job = {
        "source": {"path": str(tmp_path / "a.jsonl"), "schema": {"w": "string", "label": "int8"}},
        "features": [{"columns": ["w"], "ops": [{"op": "Categorify"}]}],
        "label": ["label"],
        "output": {"path": str(tmp_path / "first"), "shuffle": "none", "files": 1},
    }
    run_stages(make_job(job).request("pandas"))
    manifest = apply_words(tmp_path, tmp_path / "first", tmp_path / "new.jsonl")

    assert ids(tmp_path) == [4, 3]
    assert manifest.data["left_out"] == ["label"]
    assert manifest.data["reading"]["schema"] == {"w": "string", "label": "int8"}


def test_a_type_of_another_kind_is_refused_in_text_too(tmp_path: Path) -> None:
    fitted = fit_words(tmp_path, "a.csv", "w,n\n007,1\nx,2\n")
    with pytest.raises(DataError, match="column 'w' is int64, the workflow was fitted with string"):
        apply_words(tmp_path, fitted, tmp_path / "a.csv", schema={"w": "int64"})


@pytest.mark.promise(
    "`source.filter`, `strict`, `keys` and `sort_by` are those of the fit unless `--set` says otherwise"
)
def test_another_filter_is_said_to_differ_and_no_filter_too(tmp_path: Path) -> None:
    fitted = fit_words(tmp_path, "a.csv", WORDS, filter="n > 1")
    for condition, shown in (("n > 2", "n > 2"), (None, "none")):
        manifest = apply_words(tmp_path, fitted, tmp_path / "a.csv", filter=condition)
        assert manifest.data["differs_from_fit"] == [f"source.filter is {shown}, in the fit n > 1"]
    assert "differs_from_fit" not in apply_words(tmp_path, fitted, tmp_path / "a.csv").data


@pytest.mark.promise("JSON (how the source was read, too), tables with their sha256, a README")
def test_it_is_shown_where_a_person_looks(tmp_path: Path, capsys: Any) -> None:
    fitted = fit_words(tmp_path, "a.csv", WORDS, null_values=["NA"], filter="n > 1")
    inspect.show_folder(fitted)
    found = preview(make_application(application(tmp_path, fitted, tmp_path / "a.csv", null_values=[""])), "apply")

    assert json.loads((fitted / "workflow.json").read_text())["source"] == {
        "format": "csv", "null_values": ["NA"], "filter": "n > 1",
    }  # fmt: skip
    assert "null_values: ['NA']\n    filter: n > 1\n" in (fitted / "README.md").read_text()
    assert "source read with format: csv; null_values: ['NA']; filter: n > 1" in capsys.readouterr().out
    assert ("Different from the fit", "source.null_values is [''], in the fit ['NA']") in [
        (section.title, section.text) for section in sections(found)
    ]


def test_a_workflow_of_an_earlier_rowmill_says_of_its_source_only_what_it_knew(tmp_path: Path) -> None:
    fitted = fit_words(tmp_path, "a.csv", WORDS)
    saved = json.loads((fitted / "workflow.json").read_text())
    del saved["digest"]  # which it did not have either
    for source in ({"filter": "n > 1"}, {}, None):
        saved["source"] = source
        (fitted / "workflow.json").write_text(json.dumps({k: v for k, v in saved.items() if v is not None}))
        apply_words(tmp_path, fitted, tmp_path / "a.csv", null_values=["NA"])
        assert ids(tmp_path) == ([4, 4, 1] if source else [1, 4, 4, 1])


@pytest.mark.parametrize("source", [7, {"null_values": 7}, {"by_suffix": 3}, {"path": []}, {"delimiter": ";;"}, []])
def test_a_reading_that_no_source_can_have_is_damage(tmp_path: Path, source: Any) -> None:
    fitted = fit_words(tmp_path, "a.csv", WORDS)
    saved = json.loads((fitted / "workflow.json").read_text())
    (fitted / "workflow.json").write_text(json.dumps({**saved, "source": source}))
    with pytest.raises(DataError, match=r"workflow\.json is damaged"):
        make_application(application(tmp_path, fitted, tmp_path / "a.csv"))


def test_a_delimiter_for_another_format_is_still_refused(tmp_path: Path) -> None:
    fitted = fit_words(tmp_path, "a.csv", WORDS)
    (tmp_path / "b.jsonl").write_text('{"w": "x", "n": 1}\n')
    with pytest.raises(JobError, match="the format jsonl takes no delimiter"):
        apply_words(tmp_path, fitted, tmp_path / "b.jsonl", delimiter=";")


# Python


@pytest.mark.promise('`Workflow.transform(Dataset("new.csv"))` reads text as the fit did, too')
def test_a_workflow_of_python_reads_new_files_as_those_it_was_fitted_on(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(WORDS.replace(",", ";"))
    data = Dataset(tmp_path / "a.csv", engine="pandas", null_values=["NA"], delimiter=";", schema={"n": "int8"})
    Workflow((["w"] >> ops.Categorify()) + ["n"]).fit(data).save(tmp_path / "fitted")
    loaded = Workflow.load(tmp_path / "fitted")
    loaded.save(tmp_path / "again")
    new = Dataset(tmp_path / "a.csv", engine="pandas")
    assert list(new.schema) == ["w;n"]  # what was planned before is planned anew

    for workflow in (loaded, Workflow.load(tmp_path / "again"), loaded.remove_inputs(["n"])):
        assert list(workflow.transform(new).head()["w"]) == IDS_WITH_NULLS
    loaded.transform(new).to_parquet(str(tmp_path / "out"), shuffle="none", files=1)
    assert read_fitted(tmp_path / "out")["source"] == {
        "format": "csv", "null_values": ["NA"], "delimiter": ";", "schema": {"n": "int8"},
    }  # fmt: skip
    apply_words(tmp_path, tmp_path / "fitted", tmp_path / "a.csv")
    assert ids(tmp_path) == IDS_WITH_NULLS


def test_a_data_set_that_says_otherwise_is_read_otherwise_with_a_warning(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "a.csv").write_text(WORDS)
    workflow = Workflow(["w"] >> ops.Categorify()).fit(Dataset(tmp_path / "a.csv", engine="pandas", null_values=["NA"]))
    with caplog.at_level(logging.WARNING, "rowmill"):
        assert list(workflow.transform(Dataset(tmp_path / "a.csv", engine="pandas", null_values=[""])).head()["w"]) == [
            2,
            3,
            3,
            2,
        ]
    assert caplog.messages == ["different from the fit: source.null_values is [''], in the fit ['NA']"]


def test_rows_that_were_brought_together_are_read_as_those_of_the_fit_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(WORDS)
    data = Dataset(tmp_path / "a.csv", engine="pandas", null_values=["NA"]).shuffle_by_keys("w", sort_by="n")
    workflow = Workflow((["w"] >> ops.Categorify()) + ["n"]).fit(data)
    workflow.save(tmp_path / "fitted")
    new = Dataset(tmp_path / "a.csv", engine="pandas").shuffle_by_keys("n")

    assert read_fitted(tmp_path / "fitted")["source"] == {
        "format": "csv", "null_values": ["NA"], "keys": ["w"], "sort_by": ["n"],
    }  # fmt: skip
    rows = workflow.transform(new).head(9)
    assert [i for _, i in sorted(zip(rows["n"], rows["w"], strict=True))] == IDS_WITH_NULLS
