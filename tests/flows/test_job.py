"""The job as YAML: recipes and changes laid over each other, and what is said of every mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flows.job.job import load_job, make_job, merge_maps, recipes
from tasks.errors import DataError, JobError, RowmillError
from tasks.graph.node import graph_from_json
from tests.learning import rows

JOB: dict[str, Any] = {
    "source": {"path": "data"},
    "features": [{"columns": ["x", "y"], "ops": [{"op": "Normalize"}]}],
    "label": ["label"],
    "output": {"path": "out"},
}


def job_file(folder: Path, text: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(text)
    return path


def refusal(changes: list[str], job: Any = None) -> str:
    with pytest.raises(RowmillError) as caught:
        load_job(JOB if job is None else job, changes)
    assert isinstance(caught.value, JobError | DataError)
    return str(caught.value)


def test_a_job_file_is_read_with_its_defaults(tmp_path: Path) -> None:
    text = """
source: {path: data}
features:
  - columns: [x, y]
    ops: [{op: FillMissing, fill_value: 1}, {op: Normalize}]
  - columns: [[a, b]]
    ops: [{op: Categorify, combo: true}]
    keep: false
label: [label]
output: {path: out}
"""
    job = load_job(job_file(tmp_path, text))

    assert job.features[0].columns == ["x", "y"]
    assert job.features[1].columns == [["a", "b"]]
    assert [feature.keep for feature in job.features] == [True, False]
    assert (job.output.shuffle, job.output.seed, job.output.on_existing) == ("full", 0, "fail")
    assert (job.source.partition_size, job.run.retries, job.cluster.kind) == (None, 2, "auto")


@pytest.mark.promise("`--set section.key=value` changes any key", "flows/README.md#the-job")
def test_changes_are_yaml_values_by_section_and_key() -> None:
    changes = ["output.seed=7", "output.files=3", "source.partition_size=64MB", "label=[a, b]", "output.path=o ut"]
    job = load_job(JOB, changes)

    assert (job.output.seed, job.output.files, job.output.path) == (7, 3, "o ut")
    assert (job.source.partition_size, job.label) == (64 * 10**6, ["a", "b"])
    assert JOB["output"] == {"path": "out"}  # the given job stays as it is


@pytest.mark.promise("maps merge, lists replace", "flows/KEYS.md#recipe-and-features")
def test_maps_merge_and_lists_replace() -> None:
    base = {"output": {"path": "a", "seed": 1}, "label": ["x", "y"]}
    assert merge_maps(base, {"output": {"seed": 2}, "label": ["z"]}) == {
        "output": {"path": "a", "seed": 2},
        "label": ["z"],
    }


def test_a_recipe_is_the_base_of_a_job_that_names_it() -> None:
    job = make_job({"recipe": "toy", "output": {"seed": 5}, "source": {"sample": {"rows": 10, "name": "toy"}}})

    assert (job.output.seed, job.output.path, job.output.files_per_worker) == (5, "out/toy", 8)
    assert job.source.sample is not None
    assert job.source.sample.rows == 10
    assert [feature.columns for feature in job.features] == [["timestamp"], ["x", "y"], ["name", "id"]]


def test_a_recipe_is_a_job_by_its_name_and_a_change_with_null_takes_a_key_away() -> None:
    job = load_job("toy", ["output.files_per_worker=null", "output.files=2"])
    assert (job.output.files_per_worker, job.output.files) == (None, 2)


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_is_a_job(name: str) -> None:
    job = load_job(name)
    assert job.features
    assert job.output.path == f"out/{name}"


@pytest.mark.promise("Unknown keys are errors that name near ones")
@pytest.mark.promise("`the job is not valid`")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["outptu.seed=1"], ["there is no section 'outptu'", "did you mean 'output'?"]),
        (["output.sead=1"], ["output.sead is unknown", "did you mean 'seed'?"]),
        (["source.formt=csv"], ["source.formt is unknown", "did you mean 'format'"]),
        (["cluster.workerz=2"], ["cluster.workerz is unknown", "did you mean 'workers'"]),
        (["run.retry=2"], ["run.retry is unknown", "did you mean 'retries'"]),
        (["source.schema_=1"], ["source.schema"]),
        (["output.seed=abc"], ["output.seed", "whole number", "'abc'"]),
        (["output.shuffle=all"], ["output.shuffle", "'full'"]),
        (["output.files=0"], ["output.files", "must be at least 1, not 0"]),
        (["output.files=2", "output.rows_per_file=5"], ["files and rows_per_file contradict each other"]),
        (["output.shuffle=key"], ["shuffle: key needs output.keys"]),
        (["output.sort_by=[x]"], ["sort_by belongs to shuffle: key; full would not look at it"]),
        (["output.keys=[x]", "output.shuffle=none"], ["keys belongs to shuffle: key; none would not look at it"]),
        (["source.partition_size=big"], ["source.partition_size", "'big' is not a size", "64MiB"]),
        (["cluster.kind=gpu"], ["cluster.kind", "'cuda'"]),
        (["cluster.kind=address"], ["needs `address`"]),
        (["output.seed"], ["'output.seed' does not change a key", "--set output.seed=1"]),
        (["output.seed=[1"], ["not valid YAML", "--set output.seed=[1"]),
        (["features=3"], ["features", "needs a list, not 3"]),
        (["features=[]"], ["features", "at least 1 entry"]),
        (["source.filter=x = 1"], ["expression: cannot be read", "source.filter", "x = 1"]),
        (["recipe=toys"], ["there is no recipe 'toys'", "did you mean 'toy'?"]),
    ],
)
def test_a_mistake_in_a_section_is_named_with_its_place(changes: list[str], said: list[str]) -> None:
    message = refusal(changes)
    for part in said:
        assert part in message


@pytest.mark.parametrize(
    ("features", "said"),
    [
        ([{"columns": ["x"], "ops": [{"op": "Normalise"}]}], ["'Normalise'", "features[0].ops[0]", "'Normalize'"]),
        (
            [{"columns": ["x"]}, {"columns": ["x"], "ops": [{"op": "Clip", "minvalue": 0}]}],
            ["Clip has no parameter 'minvalue'", "features[1].ops[0]", "'min_value'"],
        ),
        ([{"columns": ["x"], "ops": [{"op": "Clip"}]}], ["features[0].ops[0]", "at least one of min_value"]),
        ([{"columns": ["x"], "ops": [{"Normalize": {}}]}], ["features[0].ops[0]", "needs the key 'op'"]),
        ([{"columns": ["x"], "ops": [{"op": "nowhere:Op"}]}], ["features[0].ops[0]", "cannot be imported"]),
        ([{"columns": ["x"], "ops": [{"op": "pathlib:Path"}]}], ["is not an operator"]),
        ([{"columns": []}], ["features[0].columns", "at least 1 entry"]),
        ([{"columns": ["x"], "opps": []}], ["features[0].opps is unknown", "'ops'"]),
        ([{"columns": ["x"], "keep": False}], ["nothing would be written", "keep: false"]),
        (
            [{"columns": ["x"], "ops": [{"op": "Lambda", "expression": "x +"}]}],
            ["features[0].ops[0]", "x +"],
        ),
    ],
)
def test_a_mistake_in_an_entry_is_named_with_its_place(features: list[Any], said: list[str]) -> None:
    message = refusal([], {**JOB, "features": features, "label": []})
    for part in said:
        assert part in message


def test_missing_sections_are_named() -> None:
    message = refusal([], {"label": ["x"]})
    assert "source is missing" in message
    assert "features is missing" in message
    assert "output is missing" in message


def test_a_line_that_is_no_yaml_is_shown(tmp_path: Path) -> None:
    path = job_file(tmp_path, "source: {path: data}\noutput: [unclosed\nlabel: x\n")
    message = refusal([], str(path))

    assert "the job is not valid YAML" in message
    assert f"{path}, line 3" in message
    assert "label: x" in message


def test_a_file_without_sections_is_no_job(tmp_path: Path) -> None:
    assert "the job is not a map of sections" in refusal([], job_file(tmp_path, "- a\n- b\n"))


def test_a_job_file_that_is_not_there_names_the_recipes(tmp_path: Path) -> None:
    message = refusal([], tmp_path / "no.yaml")
    assert "the job file cannot be read" in message
    assert "No such file or directory" in message
    assert "criteo, ecommerce" in message


@pytest.mark.promise("Entries of `features` are read from top to bottom")
def test_a_graph_reads_entries_from_top_to_bottom() -> None:
    features = [
        {"columns": ["x"], "ops": [{"op": "Rename", "name": "z"}], "keep": False},
        {"columns": ["z"], "ops": [{"op": "Clip", "min_value": 0}]},
    ]
    graph = make_job({**JOB, "features": features}).request("pandas").graph

    assert [step["op"]["op"] for step in graph if "op" in step] == ["Rename", "Clip", "AddTags"]


SCALED = {"columns": ["x"], "ops": [{"op": "Clip", "max_value": 2}, {"op": "Rename", "name": "low"}]}
TWICE = {"columns": ["x"], "ops": [{"op": "Lambda", "expression": "x * 2", "name": "x"}], "keep": False}
MEAN = {"columns": ["k"], "ops": [{"op": "JoinGroupby", "cont_cols": ["x"], "stats": ["mean"]}]}
LARGE = {"columns": ["k"], "ops": [{"op": "Filter", "expression": "x > 4"}]}


@pytest.mark.promise("then in the entries above (nearest first), then in the source")
@pytest.mark.parametrize(
    ("features", "found"),
    [
        ([SCALED, MEAN], {"low": [1, 2, 2], "k_x_mean": [3.0, 3.0, 9.0]}),
        ([MEAN, SCALED], {"k_x_mean": [3.0, 3.0, 9.0], "low": [1, 2, 2]}),
        ([SCALED, LARGE], {"low": [2, 2], "k": ["a", "b"]}),
        ([TWICE, MEAN], {"k_x_mean": [6.0, 6.0, 18.0]}),
        ([TWICE, TWICE, MEAN], {"k_x_mean": [12.0, 12.0, 36.0]}),
        ([{**SCALED, "ops": [*SCALED["ops"], {"op": "Lambda", "expression": "low + x", "name": "both"}]}],
         {"both": [2, 4, 4]}),
    ],
)  # fmt: skip
def test_operators_read_what_entries_above_make_and_not_what_they_pass_on(
    features: list[dict[str, Any]], found: dict[str, list[Any]], engine: str
) -> None:
    table = pa.table({"x": [1, 5, 9], "k": ["a", "a", "b"]})
    graph = graph_from_json(make_job({**JOB, "features": features, "label": []}).request("pandas").graph)
    assert rows(graph, table, engine) == found


FEATURES = """
- columns: [price]
  ops:
    - op: FillMissing
    - op: Normalise
- columns: [brand]
  kep: false
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            FEATURES.replace("kep", "keep"),
            ["unknown operator 'Normalise'", "features[0].ops[1] (line 5 of features)"],
        ),
        (FEATURES, ["features[1].kep (line 7 of features) is unknown", "did you mean 'keep'"]),
        (
            "- columns: [x]\n  ops: [{op: Clip, minvalue: 0}]\n",
            ["'minvalue'", "features[0].ops[0] (line 2 of features)"],
        ),
        ("- columns: x\n", ["features[0].columns (line 1 of features)", "needs a list, not 'x'"]),
        ("- columns: [x]\n ops: 3\n", ["features is not valid YAML", "features, line 2"]),
        ("features:\n  - columns: []\n", ["features[0].columns (line 2 of features)", "at least 1 entry"]),
        ("columns: [x]\n", ["features is not a list of entries", "it is a map", "begin each entry with a dash"]),
        ("ecommerce", ["features is not a list of entries", "it is 'ecommerce'", "choose it as `recipe`"]),
        ("", ["features is not a list of entries", "it is None"]),
    ],
)
def test_features_as_text_are_named_with_their_line(text: str, said: list[str]) -> None:
    message = refusal([], {**JOB, "features": text})
    for part in said:
        assert part in message


def test_features_as_text_are_the_list_that_they_say() -> None:
    as_list = make_job(JOB)
    assert make_job({**JOB, "features": "- columns: [x, y]\n  ops:\n    - op: Normalize\n"}) == as_list
    assert make_job({**JOB, "features": "features: [{columns: [x, y], ops: [{op: Normalize}]}]"}) == as_list


def test_mistakes_of_a_job_file_are_named_with_their_line(tmp_path: Path) -> None:
    entry = "  - columns: [x]\n    ops:\n      - {op: Clp}\n"
    text = f"source: {{path: data}}\nfeatures:\n{entry}output:\n  path: out\n  seed: a\n"
    path = job_file(tmp_path, text)

    assert "output.seed (line 8 of job.yaml): " in refusal([], str(path))
    assert "features[0].ops[0] (line 5 of job.yaml)" in refusal(["output.seed=1"], str(path))
    assert "output.seed: " in refusal(["output.seed=b"], str(path))  # what was typed stands on no line
    missing = job_file(tmp_path, "source:\n  format: csv\nfeatures: [{columns: [x]}]\noutput: {path: out}\n")
    assert "source.path (line 1 of job.yaml) is missing" in refusal([], str(missing))


@pytest.mark.promise("Give one of the three, or none")
def test_one_way_to_say_how_many_files_replaces_that_of_the_recipe() -> None:
    job = make_job({"recipe": "toy", "output": {"files": 2}})
    assert (job.output.files, job.output.files_per_worker) == (2, None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("output.seed=99999999999999999999999", "output.seed needs more than 64 bits: 1.000e+23"),
        ("output.seed=-9223372036854775809", "output.seed needs more than 64 bits"),
        ("output.seed=9223372036854775808", "output.seed: must be less than 9223372036854775808"),
        (
            f"features=[{{columns: [x], ops: [{{op: Clip, max_value: {10**400}}}]}}]",
            "features[0].ops[0].max_value needs",
        ),
        ('output.path="o\\0b"', "output.path is not text that can be kept"),
        ('features=[{columns: ["\\ud800"]}]', "features[0].columns[0] is not text that can be kept"),
        ("output.path=", "output.path: "),
        ('output.path=" "', "output.path: the path is empty"),
        ('source.path=[data, ""]', "source.path: the path is empty"),
        ("source.partition_size=0", "source.partition_size: must be at least 1"),
        ("source.partition_size=-1GB", "source.partition_size: must be at least 1"),
        ("output.seed=2026-13-45", "the value is not valid YAML"),
    ],
)
def test_values_that_nobody_can_keep_or_mean_are_refused(change: str, said: str) -> None:
    assert said in refusal([change])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("output: {seed: 2026-13-45}", "month must be in 1..12"),
        ("output: {seed: !!int abc}", "invalid literal"),
        (
            "output: {seed: 1}\nlabel: []\noutput: {seed: 2}\n",
            "line 3, column 1\n  why: the key 'output' appears twice",
        ),
        ("features:\n- {columns: [x],\n   columns: [y]}", "line 3, column 4\n  why: the key 'columns' appears twice"),
    ],
)
def test_yaml_that_says_nothing_or_two_things_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(JobError, match="the job is not valid YAML") as caught:
        load_job(job_file(tmp_path, text))
    assert said in str(caught.value)


def test_a_key_beside_a_merge_may_be_said_again(tmp_path: Path) -> None:
    entry = "&first {columns: [x], keep: true}"
    text = f"source: {{path: d}}\nfeatures:\n- {entry}\n- {{<<: *first, keep: false}}\noutput: {{path: o}}\n"
    assert [feature.keep for feature in load_job(job_file(tmp_path, text)).features] == [True, False]


def test_a_job_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_bytes("label: [café]".encode("latin-1"))
    with pytest.raises(JobError, match="the job file cannot be read"):
        load_job(tmp_path / "job.yaml")


def test_infinity_in_a_job_reaches_its_operator(tmp_path: Path) -> None:
    from flows.commands.launch import job_of
    from tasks.ops.base import make_operator

    text = "{op: Bucketize, boundaries: [-.inf, 0, .inf]}, {op: Clip, max_value: .inf}"
    path = job_file(
        tmp_path, f"source: {{path: d}}\nfeatures: [{{columns: [x], ops: [{text}]}}]\noutput: {{path: o}}\n"
    )
    bucketize, clip = job_of(str(path), [])["features"][0]["ops"]
    assert clip["max_value"] == {"float": "inf"}  # as JSON holds it, on the way to the flow
    assert list(make_operator(bucketize).boundaries) == [-float("inf"), 0, float("inf")]
    assert make_operator(clip).max_value == float("inf")


@pytest.mark.parametrize(
    "changes", [["output.path=data/out"], ["source.path=a", "source.valid=data/*", "output.path=data/o"]]
)
def test_an_output_in_its_own_source_is_refused_before_anything_starts(changes: list[str]) -> None:
    assert "the output is inside its own source\n  where: data/" in refusal(changes)
