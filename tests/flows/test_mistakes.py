"""What people write by mistake, and what they are told: where, what is needed, what stands there, what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.job.job import load_job, make_job
from tasks.dataset import Dataset
from tasks.errors import JobError, RowmillError
from tasks.ops import Categorify
from tasks.storage.retention import seconds_of

JOB = {
    "source": "source: {path: data}",
    "features": "features: [{columns: [x]}]",
    "output": "output: {path: out}",
}
FOREIGN = ("Input should", "valid ", "instance of", "unable to", "Field required", "Extra inputs", "type=", "pydantic")
MISTAKES = [
    ("features:\n- [qty]", "features[0] (line 3 of job.yaml): needs a map, not ['qty']: write - columns: [qty]"),
    ("features: [qty]", "features[0] (line 2 of job.yaml): needs a map, not 'qty': write - columns: [qty]"),
    ("features: {columns: [x]}", "features (line 2 of job.yaml): needs a list, not {'columns': ['x']}: begin each"),
    ("features:", "features (line 2 of job.yaml): needs a list, but it is empty"),
    (
        "features: [{qty: [Normalize]}]",
        "features[0].qty (line 2 of job.yaml) is unknown: there are: columns, ops, keep",
    ),
    ("features: [{columns: x}]", "needs a list, not 'x': put it in brackets, [x]"),
    ("features: [{columns: [1]}]", "features[0].columns[0] (line 2 of job.yaml): needs a text or a list, not 1"),
    (
        "features: [{columns: [[a, 2]]}]",
        "features[0].columns[0][1] (line 2 of job.yaml): needs a text, not 2: put it",
    ),
    ("features: [{columns: [{a: 1}]}]", "features[0].columns[0] (line 2 of job.yaml): needs a text or a list, not {"),
    ("features: [{columns: []}]", "features[0].columns (line 2 of job.yaml): needs at least 1 entry"),
    ("features: [{columns: [x], ops: Normalize}]", "needs a list, not 'Normalize': put it in brackets, [Normalize]"),
    ("features: [{columns: [x], ops: [Normalize]}]", "needs a map, not 'Normalize': write {op: Normalize}"),
    ("features: [{columns: [x], ops: {op: Normalize}}]", "features[0].ops (line 2 of job.yaml): needs a list, not {"),
    ("features: [{columns: [x], ops: [[Normalize]]}]", "needs a map, not ['Normalize']: write {op: Normalize}"),
    ("features: [{columns: [x], ops: [{op: 3}]}]", "unknown operator '3'"),
    (
        "features: [{columns: [x], ops: [{op: Clip, 3: 4}]}]",
        "Clip has no parameter '3'",
    ),
    ("features: [{columns: [x], ops: [{op: Clip, min_value: low}]}]", "Clip(min_value): needs a number, not 'low'"),
    ("features: [{columns: [x], ops: [{op: Categorify, freq_threshold: 1.5}]}]", "needs a whole number or a map"),
    ("features: [{columns: [x], ops: [{op: Categorify, dtype: float}]}]", "must be 'int32' or 'int64', not 'float'"),
    ("features: [{columns: [x], ops: [{op: DateParts, parts: [hours]}]}]", "DateParts(parts[0]): must be 'hour'"),
    ("features: [{columns: [x], keep: perhaps}]", "needs true or false, not 'perhaps'"),
    ("label: y", "label (line 4 of job.yaml): needs a list, not 'y': put it in brackets, [y]"),
    ("label: [3]", "label[0] (line 4 of job.yaml): needs a text, not 3: put it in quotes, '3'"),
    ("source: data", "source (line 1 of job.yaml): needs a map, not 'data': write {path: data}"),
    (
        "source:",
        "source (line 1 of job.yaml): needs a map, but it is empty: write {key: value}; there are: path, valid,",
    ),
    ("source: {path: 5}", "source.path (line 1 of job.yaml): needs a text or a list, not 5: put it in quotes, '5'"),
    ("source: {path:}", "source.path (line 1 of job.yaml): needs a text or a list, but it is empty"),
    ("source: {path: [1]}", "source.path[0] (line 1 of job.yaml): needs a text, not 1"),
    ("source: {path: a, header: maybe}", "source.header (line 1 of job.yaml): needs true or false, not 'maybe'"),
    ("source: {path: a, format: cvs}", "not 'cvs': did you mean 'csv'?"),
    (
        "source: {path: a, schema: [x]}",
        "source.schema (line 1 of job.yaml): needs a map, not ['x']: write {key: value}",
    ),
    ("source: {path: a, null_values: NA}", "source.null_values (line 1 of job.yaml): needs a list, not 'NA'"),
    ("source: {path: a, null_values: [NA, 0]}", "source.null_values[1] (line 1 of job.yaml): needs a text, not 0"),
    ("source: {path: a, part_mem_fraction: 2}", "source.part_mem_fraction (line 1 of job.yaml): must be at most 1.0"),
    ("source: {path: a, filter: true}", "source.filter (line 1 of job.yaml): needs a text, not true"),
    (
        "source: {path: a, filter: 2026-01-01}",
        "needs a text, not the date 2026-01-01: put it in quotes, '2026-01-01'",
    ),
    (
        "source: {path: a, sample: toy}",
        "source.sample (line 1 of job.yaml): needs a map, not 'toy': write {name: toy}",
    ),
    ("source: {path: a, sample: {rows: 5}}", "source.sample.name (line 1 of job.yaml) is missing"),
    ("source: {path: a, storage_options: [1]}", "source.storage_options (line 1 of job.yaml): needs a text or a map"),
    ("output: out", "output (line 3 of job.yaml): needs a map, not 'out': write {path: out}"),
    ("output: {path: o, seed: 1.5}", "output.seed (line 3 of job.yaml): needs a whole number, not 1.5"),
    ("output: {path: o, shuffle: yes}", "'full' or 'key', not 'yes'"),
    ("output: {path: o, on_existing: overwrite}", "must be 'fail', 'replace' or 'version', not 'overwrite'"),
    ("output: {path: o, files: true}", "output.files (line 3 of job.yaml): needs a number, not true"),
    ("output: {path: o, files: 1000000}", "output.files (line 3 of job.yaml): must be at most 100000, not 1000000"),
    ("cluster: cuda", "cluster (line 4 of job.yaml): needs a map, not 'cuda': write {kind: cuda}"),
    ("cluster: {kind: gpu}", "not 'gpu': did you mean 'cpu'?"),
    (
        "cluster: {adapt: 3}",
        "cluster.adapt (line 4 of job.yaml): needs a map, not 3: write {key: value}; there are: min",
    ),
    ("cluster: {resources: {transform: GPU}}", "cluster.resources.transform (line 4 of job.yaml): needs a map, not"),
    ("cluster: {tls: {ca: 3}}", "cluster.tls.cert (line 4 of job.yaml) is missing"),
    ("run: fast", "run (line 4 of job.yaml): needs a map, not 'fast': write {key: value}; there are: exchange,"),
    ("run: {lock: true}", "run.lock (line 4 of job.yaml): must be 'fail' or 'wait', not true"),
    ("recipe: [toy]", "there is no recipe ['toy']"),
    ("outptu: {path: o}", "outptu (line 4 of job.yaml) is unknown: did you mean 'output'?"),
]


@pytest.mark.promise("say what, where, why and what to do, and end with an exit status that is not 0")
@pytest.mark.parametrize(("mistake", "said"), MISTAKES, ids=[mistake for mistake, _ in MISTAKES])
def test_a_mistake_is_told_in_words_of_the_job(tmp_path: Path, mistake: str, said: str) -> None:
    section = mistake.partition(":")[0]
    lines = {**JOB, section: mistake}
    path = tmp_path / "job.yaml"
    path.write_text("\n".join(lines.values()) + "\n")
    with pytest.raises(RowmillError) as caught:
        load_job(path)

    assert said in str(caught.value)
    assert not [words for words in FOREIGN if words in str(caught.value)]


def test_mistakes_in_python_are_told_in_the_same_words() -> None:
    with pytest.raises(JobError, match=r"^Dataset\.partition_size: 'many' is not a size") as caught:
        Dataset("a.csv", partition_size="many", storage_options=3)  # type: ignore[arg-type]
    assert "Dataset.storage_options: needs a text or a map, not 3" in str(caught.value)
    with pytest.raises(JobError, match=r"^Categorify\(max_size\): needs a whole number or a map, not 'x'"):
        Categorify(max_size="x")


def test_operators_in_a_row_have_a_bound() -> None:
    ops = [{"op": "FillMissing"}] * 2000
    with pytest.raises(JobError, match="more than 400 operators follow one another"):
        make_job(
            {"source": {"path": "a"}, "features": [{"columns": ["x"], "ops": ops}], "output": {"path": "o"}}
        ).request("pandas")


@pytest.mark.parametrize("text", ["a: \0", "[" * 5000, "{" * 5000, "\ud800", "!!timestamp x"])
@pytest.mark.parametrize("field", ["job", "features"])
def test_a_field_of_the_form_that_is_no_yaml_is_a_mistake(field: str, text: str) -> None:
    with pytest.raises(JobError):
        make_job({"source": {"path": "a"}, "output": {"path": "o"}, field: text})


def test_a_long_value_is_cut_in_a_message() -> None:
    error = JobError("there is no column " + "x" * 900_000, where="features[0]", do="there are: x")
    assert str(error) == "there is no column " + "x" * (10_000 - 19) + " .. (900,019 characters)\n" + (
        "  where: features[0]\n  do: there are: x"
    )


@pytest.mark.parametrize("age", ["3000000d", "36501d", "-1d", "nan", "infd"])
def test_an_age_of_more_than_a_century_is_refused(age: str) -> None:
    with pytest.raises(JobError, match="at most 36500d"):
        seconds_of(age)
