"""What plain words of YAML mean in jobs, deployments and contracts, and that the YAML of the documents is YAML."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any

import pytest

from flows.commands.inspect import format_required_parameters
from flows.job.job import Feature, load_job, make_job
from flows.job.yaml_lines import parse_yaml
from infra.bounded_yaml import load
from infra.clusters.configurations import configurations
from infra.clusters.model import Cluster
from infra.clusters.preset import read_preset
from infra.orchestration.deployment_file import read_file
from tasks.core.settings import Output, Source
from tasks.errors import JobError
from tasks.graph.node import as_node
from tasks.ops.base import Operator, make_operator
from tests.tasks.ops.test_contract import BUILT_IN, EXAMPLES, example_table, promised, write_side_tables

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "flows").glob("*.md")), *sorted((ROOT / "tasks").rglob("*.md")),
             *sorted((ROOT / "infra").rglob("*.md"))]  # fmt: skip


@pytest.mark.promise("Only `true` and `false` are booleans, and keys are texts")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{on: a, off: b, yes: c, n: d}", {"on": "a", "off": "b", "yes": "c", "n": "d"}),
        ("{1: a, 1.5: b, true: c, null: d, 2026-11-22: e, ~: f}",
         {"1": "a", "1.5": "b", "true": "c", "null": "d", "2026-11-22": "e", "~": "f"}),
        ("[NO, NA, no, yes, On, OFF, y, n]", ["NO", "NA", "no", "yes", "On", "OFF", "y", "n"]),
        ("[true, false, True, FALSE]", [True, False, True, False]),
        ("[18:30, 1:30.5, 2:00:00]", ["18:30", "1:30.5", "2:00:00"]),
        ("[7, -7, 0x10, 1_000, 1.5, .5, -.inf, 1.0e+3]", [7, -7, 16, 1000, 1.5, 0.5, float("-inf"), 1000.0]),
        ("[null, ~, 2026-11-22]", [None, None, datetime.date(2026, 11, 22)]),
        ("{a: &x {on: 1}, b: {<<: *x, off: 2}}", {"a": {"on": 1}, "b": {"on": 1, "off": 2}}),
    ],
)  # fmt: skip
def test_plain_words_are_what_they_are_in_yaml_1_2(text: str, value: object) -> None:
    assert load(text) == parse_yaml(text, "job") == value
    assert [type(one) for one in (load(text) or ())] == [type(one) for one in value]  # type: ignore[attr-defined]


def test_jobs_deployments_and_contracts_mean_the_same(tmp_path: Path) -> None:
    contract = tmp_path / "contract.yaml"
    contract.write_text("columns: {on: {type: int64}, country: {values: [NO, SE]}}\n")
    features = "- columns: [x]\n  ops: [{op: JoinExternal, table: films.csv, on: x}]\n"
    job = tmp_path / "job.yaml"
    job.write_text(
        f"source: {{path: data, null_values: [NO, NA], schema: {{on: int64, y: string}}}}\nfeatures:\n{features}"
        f"output: {{path: out}}\ncontract: {contract}\n"
    )
    read = load_job(job, ["source.schema={no: string}", "run.ready_by=18:30", "run.timezone=UTC"])
    assert read.source.null_values == ["NO", "NA"]
    assert read.source.schema_ == {"no": "string"}
    assert read.run.ready_by == "18:30"
    assert read.features[0].ops == [{"op": "JoinExternal", "table": "films.csv", "on": "x"}]
    assert make_job({"source": {"path": "x"}, "features": features, "output": {"path": "out"}}).features[0].ops == [
        {"op": "JoinExternal", "table": "films.csv", "on": "x"}
    ]
    rules = read.rules()
    assert rules is not None
    assert set(rules.columns) == {"on", "country"}
    assert rules.columns["country"].values == ["NO", "SE"]
    deployments = tmp_path / "prefect.yaml"
    deployments.write_text(
        "deployments:\n- name: a\n  entrypoint: flows.preprocess.preprocess\n"
        "  parameters: {source: {null_values: [NO]}, features: [{columns: [x], ops: [{on: x}]}]}\n"
    )
    (spec,) = read_file(deployments)["deployments"]
    assert spec["parameters"]["source"] == {"null_values": ["NO"]}
    assert spec["parameters"]["features"][0]["ops"] == [{"on": "x"}]


def test_a_key_that_is_written_in_two_ways_is_there_twice() -> None:
    with pytest.raises(JobError, match="not valid YAML") as refused:
        parse_yaml('{1: a, "1": b}', "job")
    assert refused.value.why.startswith("the key '1' appears twice")


# the documents

LINES = re.findall(r"^In a job: `(.*)`$", (ROOT / "tasks/ops/README.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("line", LINES, ids=lambda line: re.search(r"op: (\w+)", line)[1])
def test_every_line_of_an_operator_in_a_job_is_yaml(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_side_tables()
    ((entry,),) = [parse_yaml(line, "features")]
    ((written,), name) = (entry["ops"], entry["ops"][0]["op"])
    required = re.findall(r"(\w+): \.\.", format_required_parameters(Operator.registry[name]))
    assert [*written] == ["op", *required]
    example = EXAMPLES[name][0]
    filled = line.replace("columns: [..]", f"columns: {json.dumps(example.columns)}")
    for parameter in required:
        filled = filled.replace(f"{parameter}: ..", f"{parameter}: {json.dumps(example.parameters[parameter])}")
    others = {n: value for n, value in example.parameters.items() if n not in required}
    added = "".join(f", {n}: {json.dumps(value)}" for n, value in others.items())
    ((entry,),) = [parse_yaml(filled.replace("}]}", f"{added}}}]}}"), "features")]
    op = make_operator(entry["ops"][0])
    assert op.to_json() == Operator.registry[name](**example.parameters).to_json()
    promised(as_node(entry["columns"]) >> op, example_table())


def test_every_operator_has_a_line() -> None:
    assert sorted(re.search(r"op: (\w+)", line)[1] for line in LINES) == BUILT_IN  # type: ignore[index]


def blocks() -> list[tuple[str, str]]:
    """(document, text) of the blocks of YAML; of a block in which each line is a document of its own, the lines."""
    found = []
    for document in DOCUMENTS:
        for text in re.findall(r"```ya?ml\n(.*?)```", document.read_text(), re.DOTALL):
            first = [line.partition(":")[0] for line in text.splitlines()]
            parts = text.splitlines() if len(set(first)) == 1 else [text]
            found += [(str(document.relative_to(ROOT)), part) for part in parts]
    return found


def test_every_block_of_yaml_in_the_documents_is_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for document, text in blocks():
        value: Any = parse_yaml(text, document)
        if "features" in value:
            for entry in value["features"]:
                Feature.model_validate(entry)
            Source.model_validate(value["source"])
            seen.append("job")
        elif "fitted" in value:
            Source.model_validate(value["source"])
            seen.append("apply")
        elif value.keys() & {"base", "source", "output"}:
            for section in value.keys() & {"source", "output"}:
                {"source": Source, "output": Output}[section].model_validate(value[section])
            seen.append("sections")
        elif "split" in value:
            Source.model_validate({"path": "x", **value})
            seen.append("split")
        elif "cluster" in value:
            seen.append("cluster")
        elif "keywords" in value:
            (tmp_path / "preset.yaml").write_text(text)
            assert [*read_preset(tmp_path / "preset.yaml").keywords] == [*value["keywords"]]
            seen.append("preset")
        else:
            (tmp_path / "clusters.yaml").write_text(text)
            monkeypatch.setenv("ROWMILL_CLUSTERS", str(tmp_path / "clusters.yaml"))
            assert list(configurations()) == [*value]
            seen.append("configurations")
    for _, text in blocks():
        if text.startswith("cluster:"):
            Cluster.model_validate(load(text)["cluster"])  # type: ignore[index]
    counts = {"job": 7, "apply": 1, "split": 7, "cluster": 6, "configurations": 1, "preset": 1, "sections": 3}
    assert {name: seen.count(name) for name in seen} == counts


def test_values_in_the_sentences_of_the_documents_are_yaml() -> None:
    spans = [(page, span) for page in DOCUMENTS for span in re.findall(r"`(\{(?![%{])[^`]*\})`", page.read_text())]
    assert len(spans) > 20
    for page, span in spans:
        try:
            parse_yaml(span, str(page))
        except JobError as error:
            raise AssertionError(f"{page}: {span}: {error}") from None
