"""The question of the gate as a person meets it: a paused run, its form, and the answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.browser.conftest import Served, final
from tests.flows.test_gate import BAD, versions
from tests.infra.elsewhere import until

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(600)]


@pytest.mark.slow
def test_a_person_publishes_a_night_by_the_form_of_its_run(served: Served, api: Any, page: Any, keep: Any) -> None:
    folder = served.folder / "asks"
    run = api.create_flow_run_from_deployment(served.deployments["asks"].id, parameters={"run": {"date": BAD}})
    until(lambda: api.read_flow_run(run.id).state_name == "Suspended", "the run asks")
    page.goto(f"{served.url}/runs/flow-run/{run.id}")
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
    final(api, run.id)
    assert versions(folder) == {"v0001": BAD}
    accepted = json.loads((folder / "out/v0001/_gate.json").read_text())["accepted"]
    assert accepted[0]["who"] == "ada"
