"""The JSON Schema of a job says what the models of the job say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from flows.draft.draft import draft
from flows.job.job import RECIPES, make_job, recipes
from flows.job.json_schema import job_schema
from flows.sample import make_sample
from tasks.errors import JobError
from tasks.ops.base import Operator

WHOLE = {"source": {"path": "data"}, "features": [{"columns": ["x"]}], "output": {"path": "out"}}


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return job_schema()


def marked(schema: dict[str, Any], job: Any) -> list[tuple[str, str]]:
    """(the place, the message) of each mistake, by the schema."""
    errors = jsonschema.Draft202012Validator(schema).iter_errors(job)
    return [(".".join(str(step) for step in error.absolute_path), error.message) for error in errors]


def with_op(**op: Any) -> dict[str, Any]:
    return {**WHOLE, "features": [{"columns": ["x"], "ops": [op]}]}


def test_the_schema_is_one_and_describes_every_operator(schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    names = [one["const"] for one in schema["$defs"]["Operator"]["properties"]["op"]["anyOf"] if "const" in one]
    assert names == sorted(Operator.registry)
    assert "keep" in schema["$defs"]["Feature"]["properties"]
    clip = schema["$defs"]["Clip"]
    assert clip["description"].startswith("Limit values to [min_value, max_value]")
    assert clip["properties"]["min_value"]["description"] == "Lower limit; None sets none."


@pytest.mark.promise("An editor with a YAML language server completes keys, operators, their parameters and choices")
def test_recipes_and_drafts_are_right_by_the_schema(schema: dict[str, Any], tmp_path: Path) -> None:
    for name in recipes():
        assert marked(schema, yaml.safe_load((RECIPES / f"{name}.yaml").read_text())) == []
        assert marked(schema, {"recipe": name, "output": {"seed": 1}}) == []
    make_sample("toy", tmp_path / "toy", 100, seed=1)
    text = draft(str(tmp_path / "toy"))
    assert text.startswith("# yaml-language-server: $schema=job.schema.json\n")
    assert marked(schema, yaml.safe_load(text)) == []
    assert marked(schema, {**WHOLE, "features": "- columns: [x]"}) == []
    assert marked(schema, with_op(op="mine.ops:Twice", anything=1)) == []


@pytest.mark.promise("An editor with a YAML language server completes keys, operators, their parameters and choices")
@pytest.mark.parametrize(
    ("job", "place", "message"),
    [
        ({"recipe": "toi"}, "recipe", "'toi' is not one of"),
        ({}, "", "'source' is a required property"),
        ({**WHOLE, "source": {}}, "source", "is not valid under any"),
        ({**WHOLE, "sorce": {}}, "", "'sorce' was unexpected"),
        ({**WHOLE, "output": {"path": "out", "shuffle": "ful"}}, "output.shuffle", "'ful' is not one of"),
        ({**WHOLE, "base": "out", "refit": {"Normalize": "frozen"}}, "refit.Normalize", "'frozen' is not one of"),
        (with_op(op="Normalise"), "features.0.ops.0.op", "is not valid under any"),
        (with_op(op="Clip", min=1), "features.0.ops.0", "'min' was unexpected"),
        (with_op(op="Categorify", num_buckets="two"), "features.0.ops.0.num_buckets", "'two' is not of type 'integer'"),
    ],
)
def test_mistakes_are_marked_where_they_stand(schema: dict[str, Any], job: Any, place: str, message: str) -> None:
    assert [where for where, said in marked(schema, job) if message in said][:1] == [place]
    with pytest.raises(JobError):
        make_job(job)


def test_the_command_prints_it(schema: dict[str, Any]) -> None:
    from rowmill.cli import app

    done = CliRunner().invoke(app, ["schema"])
    assert done.exit_code == 0
    assert json.loads(done.stdout) == schema
