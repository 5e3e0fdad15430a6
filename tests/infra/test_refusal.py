"""What a Prefect server refuses is told in a few lines, not with the whole schema of the form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra.orchestration import deployments
from infra.orchestration.deployment_file import read_file
from infra.orchestration.server_refusals import refusal, refused_output
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
    with pytest.raises(JobError, match="a deployment is not right") as caught:
        read_file(written(tmp_path, more))
    assert said in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_parameters_with_templates_of_prefect_are_left_to_it(tmp_path: Path) -> None:
    assert read_file(written(tmp_path, "parameters: {output: {seed: '{{ $SEED }}', path: out}, job: nightly.yaml}"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("concurrency_limit: {limit: 0, collision_strategy: ENQUEUE}", "concurrency_limit: Input should be greater"),
        (
            "triggers: [{type: event, expect: [a], parameters: {source: {path: '{{ bad '}}}]",
            "source.path: Invalid jinja: unexpected end of template",
        ),
    ],
)
def test_what_the_server_refuses_is_told_in_a_few_lines(
    tmp_path: Path, prefect_server: Any, monkeypatch: pytest.MonkeyPatch, more: str, said: str
) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    with pytest.raises(JobError, match="the Prefect server refuses a deployment") as caught:
        deployments.serve(written(tmp_path, more))

    assert said in str(caught.value)
    assert "own.yaml: preprocess/refused" in caught.value.where
    assert len(str(caught.value)) < 1000
    assert len(str(caught.value).splitlines()) < 8


ANSWER = (
    "Client error '422 Unprocessable Entity' for url 'http://h/api/deployments/' - Response: {'exception_message': "
    "'Invalid request received.', 'exception_detail': [{'type': 'value_error', 'loc': ['body'], 'msg': \"Value error, "
    "Validation failed for field 'output'\", 'input': {'x': '" + 30_000 * "y" + "'}}], 'request_body': {}} - For more "
    "information check: http://m"
)


def test_of_a_long_answer_the_reason_stays() -> None:
    assert refusal(ANSWER) == "Validation failed for field 'output'"
    assert refusal("Response: {'detail': 'Data integrity conflict.'}") == "Data integrity conflict."
    assert refusal("no answer at all") == "no answer at all"
    assert len(refusal("Response: {'broken'" + 30_000 * "x" + "}")) == 600
    many = [{"loc": ["body", "tags", n], "msg": "wrong"} for n in range(20)]
    assert refusal(f"Response: {{'exception_detail': {many}}}").splitlines()[-1].strip() == "and 12 more"


def test_of_a_commands_output_the_traceback_goes() -> None:
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in b\n    raise c\n'
    assert refused_output(f"Deploying\n\n{trace}prefect.exceptions.E: {ANSWER}\n") == (
        "Deploying\n       Validation failed for field 'output'"
    )
