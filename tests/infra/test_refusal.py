"""Wrong deployments are refused before a server is asked, and what a server refuses is an error that names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra.orchestration import deployments
from infra.orchestration.deployment_file import read_file
from infra.orchestration.server import MOST_LETTERS
from tasks.errors import JobError

pytestmark = pytest.mark.xdist_group("deployments")
SPEC = "deployments:\n- {name: refused, entrypoint: flows.preprocess.preprocess, %s}\n"


def written(folder: Path, more: str) -> Path:
    (folder / "own.yaml").write_text(SPEC % more)
    return folder / "own.yaml"


@pytest.mark.promise(
    "If the form of a flow would refuse a parameter, `serve` and `deploy` refuse it before they ask the server"
)
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("parameters: {output: {sead: 1}}", "field 'output'. Failure reason: 'sead' is not one of ['path'"),
        ("parameters: {output: {seed: abc}}", "field 'output.seed'. Failure reason: 'abc' is no"),
        ("parameters: {recipe: toyz}", "field 'recipe'. Failure reason: 'toyz' is not one of"),
        ("schedules: [{cron: 0 0 * * *, parameters: {run: {retries: 99}}}]", "schedules[0]"),
    ],
)
def test_parameters_are_looked_at_before_a_server_is_asked(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(JobError, match="a deployment is not valid") as caught:
        read_file(written(tmp_path, more))
    assert said in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_parameters_with_templates_of_prefect_are_left_to_it(tmp_path: Path) -> None:
    assert read_file(written(tmp_path, "parameters: {output: {seed: '{{ $SEED }}', path: out}, job: nightly.yaml}"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("concurrency_limit: {limit: 0, collision_strategy: ENQUEUE}", "Input should be greater"),
        (
            "triggers: [{type: event, expect: [a], parameters: {source: {path: '{{ bad '}}}]",
            "Invalid jinja: unexpected end of template",
        ),
    ],
)
def test_what_the_server_refuses_is_an_error_of_the_deployment(
    tmp_path: Path, prefect_server: Any, monkeypatch: pytest.MonkeyPatch, more: str, said: str
) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    with pytest.raises(JobError, match="the Prefect server refuses a deployment") as caught:
        deployments.serve(written(tmp_path, more))
    assert said in caught.value.why
    assert "own.yaml: preprocess/refused" in caught.value.where
    assert len(caught.value.why) <= MOST_LETTERS
