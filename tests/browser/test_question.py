"""The question of the gate as a person meets it: a paused run, its form, and the answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import wait_for
from tests.flows.test_gate import BAD, days, job_of, versions

pytestmark = [pytest.mark.xdist_group("deployments"), pytest.mark.timeout(600)]
PATIENCE = 200


@pytest.mark.slow
def test_a_person_publishes_a_night_by_the_form_of_its_run(
    tmp_path: Path, serve: Callable[[list[Any]], Path], prefect_server: Any, api: Any, page: Any, keep: Any
) -> None:
    days(tmp_path)
    job = job_of(tmp_path, None, "ask") | {"cluster": {"kind": "cpu", "workers": 1, "threads_per_worker": 1}}
    serve([{"name": "asks", "entrypoint": "flows.preprocess.preprocess", "parameters": job}])
    deployment = api.read_deployment_by_name("preprocess/asks")
    run = api.create_flow_run_from_deployment(deployment.id, parameters={"run": {"date": BAD}})

    def state(*names: str) -> bool:
        return api.read_flow_run(run.id).state_name in names

    wait_for(lambda: state("Suspended"), PATIENCE)
    page.goto(f"{prefect_server.ui_url}/runs/flow-run/{run.id}")
    page.get_by_role("button", name="Resume").first.click()
    page.get_by_text("Publish the night").first.wait_for()
    page.get_by_text("x: 100 % of 3 values are null").first.wait_for()
    page.wait_for_timeout(500)
    keep(page, "question")
    form = page.locator(".p-modal__card")
    choice = page.locator(".p-select-option", has_text="publish").first
    form.locator(".p-select-button__control").first.click()
    if not choice.is_visible():  # the first click only took the focus
        page.keyboard.press("ArrowDown")
    choice.click()
    form.locator("textarea").last.fill("ada")
    form.get_by_role("button", name="Submit").click()
    wait_for(lambda: state("Completed", "Failed", "Crashed"), PATIENCE)
    assert versions(tmp_path) == {"v0001": BAD}
    accepted = json.loads((tmp_path / "out/v0001/_gate.json").read_text())["accepted"]
    assert accepted[0]["who"] == "ada"
