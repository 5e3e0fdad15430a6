"""The reference: every operator explains itself with an example that runs, and the page is what the code says."""

from __future__ import annotations

import doctest
import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from rowmill.cli import app
from typer.testing import CliRunner

from flows.commands.inspect import operators
from flows.job.job import Feature, Job
from tasks import ops
from tasks.dataset import Dataset
from tasks.engines.expression.functions import FUNCTIONS
from tasks.ops.base import Operator
from tasks.ops.docstrings import docstring_of
from tasks.workflow import Workflow
from tests.reference import (
    COMMAND,
    EXPRESSIONS_PAGE,
    KEYS_PAGE,
    NVTABULAR_PAGE,
    PAGE,
    expressions_page,
    keys_table,
    nvtabular_page,
    reference_page,
    with_keys,
)


@pytest.mark.promise("The examples run as tests")
@pytest.mark.parametrize("cls", operators().values(), ids=list(operators()))
def test_every_operator_has_an_example(cls: type[Operator]) -> None:
    found = doctest.DocTestParser().get_examples(docstring_of(cls).examples)

    assert any(cls.__name__ in example.source for example in found)
    assert any(example.want for example in found)


@pytest.mark.promise("operator | learns, on refit | parameters | what it does", "tasks/ops/README.md#all-operators")
def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text() == reference_page() + "\n", f"run: {COMMAND}"


@pytest.mark.promise("impute missing values, with a missing-value indicator", "tasks/ops/README.md#by-task")
def test_every_operator_stands_in_the_table_of_tasks() -> None:
    table = PAGE.read_text().partition("\n## By task\n")[2].partition("\n## ")[0]
    assert {*re.findall(r"\[(\w+)\]\(#\w+\)", table)} == {*operators()}


@pytest.mark.promise("The examples run as tests on both engines")
def test_the_page_of_expressions_is_what_the_code_says() -> None:
    """Grammar, types, nulls, precedence, and every function with an example."""
    shown = expressions_page() + "\n"
    assert EXPRESSIONS_PAGE.read_text() == shown, f"run: {COMMAND}"
    assert [f.signature for f in FUNCTIONS.values() if f"| `{f.signature}`" not in shown] == []
    assert [f.name for f in FUNCTIONS.values() if not any(f"{f.name}(" in text for text, *_ in f.examples)] == []


@pytest.mark.promise("key | default | takes | meaning", "flows/KEYS.md#keys")
def test_the_table_of_keys_is_what_the_models_say() -> None:
    assert with_keys(KEYS_PAGE.read_text()) == KEYS_PAGE.read_text(), f"run: {COMMAND}"
    rows = keys_table().splitlines()
    assert "| `run.lock` | fail | fail, wait | what to do while another run works on the same output |" in rows
    assert "| `output.seed` | 0 | number | the same seed gives the same order in the same files |" in rows
    assert '| `source.null_values` | [""] | list | texts that stand for null in CSV and TSV files |' in rows
    assert "| `checks.*.level` |  | warn, stop, ask, off | checks.on\\_finding if empty |" in rows
    assert len(rows) == len({*rows})


@pytest.mark.promise("key | default | takes | meaning")
def test_every_key_of_a_job_has_a_row() -> None:
    sections = {name: getattr(Job.model_fields[name].annotation, "model_fields", {}) for name in Job.model_fields}
    known = {f"{section}.{f.alias or name}" for section, fields in sections.items() for name, f in fields.items()}
    known |= {name for name, fields in sections.items() if not fields} | {
        f"features[].{n}" for n in Feature.model_fields
    }
    named = set(re.findall(r"^\| `([^`]+)` \|", keys_table(), re.MULTILINE))
    assert known - named == set()
    assert {"source.split.look_back", "cluster.slurm.walltime", "refit.NAME", "checks.*.threshold"} <= named


@pytest.mark.promise("NVTabular | rowmill | what differs, and why", "tasks/ops/NVTABULAR.md#moving-from-nvtabular")
@pytest.mark.promise("NVTabular | write", "tasks/ops/NVTABULAR.md#names")
def test_the_tables_for_users_of_nvtabular_are_what_the_errors_say() -> None:
    text = NVTABULAR_PAGE.read_text()
    assert text == nvtabular_page() + "\n", f"run: {COMMAND}"
    assert "| `FillMissing(fill_val=)` | fill\\_value= |" in text


def test_the_readme_links_the_page() -> None:
    assert "](tasks/ops/README.md)" in (PAGE.parents[2] / "README.md").read_text()


def test_the_table_from_nvtabular_names_operators() -> None:
    """The second column of each row that is about an operator names one that exists."""
    rows = [row.split(" | ") for row in (PAGE.parent / "NVTABULAR.md").read_text().splitlines() if row.startswith("| ")]
    named = {word for row in rows for word in re.findall(r"\b[A-Z]\w+", row[0]) if word in operators()}
    assert named >= {"Categorify", "Normalize", "TargetEncoding", "JoinGroupby", "DifferenceLag"}
    same = {word for row in rows for word in re.findall(r"^\|? ?([A-Z]\w+)$", row[1].strip())}
    assert same <= set(operators())


@pytest.mark.parametrize("name", ["Clip", "Categorify"])
def test_ops_name_shows_rule_parameters_and_example(name: str) -> None:
    shown = CliRunner().invoke(app, ["ops", name], env={"COLUMNS": "200"}).output
    text = docstring_of(operators()[name])

    assert all(part in shown for part in (text.summary, text.notes, text.examples))
    assert all(f"{p.name} " in shown and p.meaning.split()[0] in shown for p in text.parameters.values())
    assert f"{{op: {name}}}" in shown


@pytest.mark.promise("schema, parts, vocabularies, embedding sizes (as JSON), first rows")
def test_inspect_shows_vocabularies_and_embeddings(tmp_path: Path) -> None:
    table = pa.table({"s": ["b", "a", "b"], "u": [1, 2, 1], "v": [1, 1, 1], "x": [1.0, 2.0, 3.0]})
    nodes = (["s"] >> ops.Categorify()) + ([["u", "v"]] >> ops.Categorify(combo=True)) + (["x"] >> ops.Normalize())
    workflow = Workflow(nodes).fit(table)
    workflow.fit_transform(Dataset(table)).to_parquet(str(tmp_path / "out"))
    expected = {"s": {"rows": 5, "dimension": 16}, "u_v": {"rows": 5, "dimension": 16}}
    only = CliRunner().invoke(app, ["inspect", str(tmp_path / "out"), "--embeddings"]).output
    saved = CliRunner().invoke(app, ["inspect", str(tmp_path / "out" / "_workflow"), "--embeddings"]).output
    whole = CliRunner().invoke(app, ["inspect", str(tmp_path / "out")], env={"COLUMNS": "200"}).output

    assert workflow.embeddings() == expected
    assert json.loads(only) == json.loads(saved) == expected
    assert "b (2), a (1)" in whole
    assert only.strip() in whole
