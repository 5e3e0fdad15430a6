"""The form as a schema: what Prefect's server takes and refuses before a run is made, and that no default lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import ValidationError, validate

from flows.apply import apply
from flows.fit import fit
from flows.job.form import cluster_section, section, with_form
from flows.job.job import Application
from flows.preprocess import preprocess
from flows.refit import refit
from tasks.core.settings import Output


def schema_of(flow: Any) -> dict[str, Any]:
    return dict(parameter_schema(flow).model_dump())


def refusal(parameters: dict[str, Any], flow: Any = preprocess) -> str:
    with pytest.raises(ValidationError) as caught:
        validate(parameters, schema_of(flow), raise_on_error=True)
    return str(caught.value)


def test_the_fields_stand_in_the_order_in_which_a_job_is_thought_of() -> None:
    fields = schema_of(preprocess)["properties"]

    assert list(fields) == ["recipe", "job", "source", "features", "label", "output", "base", "refit", "cluster",
                            "contract", "checks", "dry_run", "run"]  # fmt: skip
    assert [fields[name]["position"] for name in fields] == list(range(len(fields)))
    assert list(fields["output"]["properties"]) == ["path", "seed", "shuffle", "files", "on_existing"]


@pytest.mark.parametrize("flow", [preprocess, fit, apply, refit], ids=lambda flow: flow.name)
def test_every_field_is_described(flow: Any) -> None:
    fields = schema_of(flow)["properties"]
    inner = [field for one in fields.values() for field in one.get("properties", {}).values()]

    assert all(field.get("description") for field in [*fields.values(), *inner])
    assert flow.description
    assert "Args" not in flow.description


@pytest.mark.parametrize("flow", [preprocess, fit, apply, refit], ids=lambda flow: flow.name)
def test_the_text_of_a_section_names_the_keys_that_the_page_does_not_show(flow: Any) -> None:
    for name, field in schema_of(flow)["properties"].items():
        hidden = {key.strip("^$") for key in field.get("patternProperties", {})}
        assert hidden.isdisjoint({"cluster_class", "cluster_kwargs", "adapt_kwargs"})
        refused = {"apply": {"valid", "split", "sample", "downsample"}, "refit": {"valid", "split", "sample"}}
        if name == "source":
            hidden -= refused.get(flow.name, set())
        if (flow.name, name) != ("fit", "output"):  # a fit writes no rows
            named = field["description"].partition("More keys as JSON, from the menu of this field: ")[2].rstrip(".")
            assert set(filter(None, named.split(", "))) == hidden, name


def test_only_a_fitted_workflow_or_a_base_must_be_named() -> None:
    assert schema_of(preprocess)["required"] == []
    assert schema_of(fit)["required"] == []
    assert schema_of(apply)["required"] == ["fitted"]
    assert schema_of(refit)["required"] == ["base"]


def test_only_validation_data_can_be_chosen_away() -> None:
    fields = {**schema_of(preprocess)["properties"]}
    inner = [part for field in fields.values() for part in field.get("properties", {}).items()]
    choices = {
        name: [kind["title"] for kind in part["anyOf"]] for name, part in [*fields.items(), *inner] if "anyOf" in part
    }

    valid = ["one", "several", "none"]
    contract = ["file", "map"]
    assert choices == {"features": ["YAML", "list"], "path": ["one", "several"], "valid": valid, "contract": contract}


@pytest.mark.promise("An empty field stays as recipe, job file or deployment has it: the form fills in nothing")
@pytest.mark.promise("Job, form and schema follow from it")
@pytest.mark.parametrize("flow", [preprocess, fit, apply, refit], ids=lambda flow: flow.name)
def test_the_form_fills_in_nothing_that_a_recipe_or_a_job_file_says(flow: Any) -> None:
    fields = schema_of(flow)["properties"]
    inner = [part for field in fields.values() for part in field.get("properties", {}).values()]

    assert [name for name, field in fields.items() if field.get("default") not in (None, False)] == []
    assert [part for part in inner if "default" in part] == []


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"recipe": "toy", "output": {"seed": 1}},
        {"source": {"path": "a"}, "features": [{"columns": ["x"]}]},
        {"source": {"path": ["a", "b"], "valid": None}, "features": "- columns: [x]", "label": ["y"]},
        {"source": {"path": "a", "partition_size": "64MB", "sample": {"rows": 10}, "schema": {"x": "int64"}}},
        {"source": {"partition_size": 10**8}, "output": {"compression": "zstd", "files": None, "rows_per_file": 9}},
        {"cluster": {"kind": "cuda", "visible_devices": "0,1", "memory_limit": 0.5, "adapt": None}},
        {"cluster": {"kind": "cpu", "memory_limit": "16GB", "adapt": {"maximum": 2}, "workers": None}},
        {"cluster": {"configuration": "night", "workers": 4, "adapt": {"maximum": 2}}},
        {"run": {"retries": 0, "scratch": "/fast", "min_partition_size": "1MB"}},
    ],
)
def test_a_partial_job_is_taken(parameters: dict[str, Any]) -> None:
    assert not validate(parameters, schema_of(preprocess))


@pytest.mark.promise("The form names the field of a wrong type, key or choice")
@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"recipe": "toyz"}, ["'recipe'", "'toyz' is not one of", "'toy'"]),
        ({"output": {"sead": 1}}, ["'output'", "'sead' is not one of", "'seed'"]),
        ({"output": {"seed": "abc"}}, ["'output.seed'", "'abc'"]),
        ({"output": {"files": 0}}, ["'output.files'", "0 is less than the minimum of 1"]),
        ({"output": {"rows_per_file": "many"}}, ["'output.rows_per_file'", "'many' is not of type 'integer'"]),
        ({"output": {"compression": "zip"}}, ["'output.compression'", "'zip' is not one of", "'zstd'"]),
        ({"source": {"sample": {"rows": "many"}}}, ["'source.sample.rows'", "'many' is not of type 'integer'"]),
        ({"source": {"path": 3}}, ["'source.path'", "3"]),
        ({"cluster": {"kind": "gpu"}}, ["'cluster.kind'", "'gpu' is not one of", "'cuda'"]),
        ({"cluster": {"kind": "class"}}, ["'cluster.kind'", "'class' is not one of"]),
        ({"cluster": {"cluster_class": "dask_jobqueue.PBSCluster"}}, ["'cluster'", "'cluster_class' is not one of"]),
        ({"cluster": {"cluster_kwargs": {"cores": 1}}}, ["'cluster'", "'cluster_kwargs' is not one of"]),
        ({"cluster": {"adapt_kwargs": {"maximum": 9}}}, ["'cluster'", "'adapt_kwargs' is not one of"]),
        ({"run": {"retries": 99}}, ["'run.retries'", "maximum of 20"]),
        ({"features": {"columns": ["x"]}}, ["'features'"]),
    ],
)
def test_nonsense_is_refused_with_its_field(parameters: dict[str, Any], said: list[str]) -> None:
    message = refusal(parameters)
    for part in said:
        assert part in message


@pytest.mark.promise("A form offers these names, those of the host that registers it")
def test_the_form_offers_the_configurations_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "enum" not in cluster_section(["kind", "configuration"])["properties"]["configuration"]
    (file := tmp_path / "clusters.yaml").write_text("night: {kind: cpu}\nday: {kind: cpu}\n")
    monkeypatch.setenv("ROWMILL_CLUSTERS", str(file))
    assert cluster_section(["kind", "configuration"])["properties"]["configuration"]["enum"] == ["night", "day"]
    file.write_text("night: [")
    assert "enum" not in cluster_section(["kind", "configuration"])["properties"]["configuration"]


def test_a_form_has_the_parameters_of_its_function() -> None:
    with pytest.raises(TypeError, match="form and function of preprocess differ"):
        with_form(preprocess.with_options(), Application)


def test_a_section_shows_some_keys_and_checks_all() -> None:
    form = section(Output, ("seed", "path"))

    assert list(form["properties"]) == ["seed", "path"]
    assert form["patternProperties"]["^files$"] == {"type": ["integer", "null"], "minimum": 1, "maximum": 100_000}
    assert set(Output.model_fields) == set(form["propertyNames"]["enum"])
