"""What a person sees of a publication on Prefect's pages: its events, with the facts in the payload, and its run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from flows.preprocess import preprocess
from tests.faults.jobs import make_data, make_job
from tests.flows.runs import key_of, run_on
from tests.infra.elsewhere import until

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("published"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, cluster: Any, prefect_server: Any) -> Path:
    """A folder with the output `nightly`, whose events the server has."""
    from prefect import get_client

    folder = tmp_path_factory.mktemp("published")
    rows = make_data(folder / "in", files=1, rows=500)
    run_on(preprocess, make_job(rows, folder / "nightly", output={"on_existing": "version"}), cluster)
    name = f"rowmill.output.{key_of(folder / 'nightly').removeprefix('preprocess-')}"
    wanted = {"event": {"name": ["rowmill.output.published"]}, "resource": {"id": [name]}}
    with get_client(sync_client=True) as client:
        until(lambda: client.request("POST", "/events/filter", json={"filter": wanted}).json()["events"], "the event")
    return folder


def test_the_events_page_shows_the_publication_and_its_assets(
    folder: Path, page: Any, prefect_server: Any, keep: Callable[[Any, str], None]
) -> None:
    mine = [f"rowmill.output.{folder.name}-nightly", f"file://{folder}/nightly"]  # runs of other tests have many events
    page.goto(f"{prefect_server.ui_url}/events?{urlencode({'resource': mine}, doseq=True)}")
    page.get_by_text("Rowmill output published").first.wait_for()
    page.get_by_text("materialization succeeded").first.wait_for()
    page.get_by_text("Rowmill output published").first.scroll_into_view_if_needed()
    page.mouse.wheel(0, 180)
    keep(page, "events")
    page.get_by_text("Rowmill output published").first.click()
    page.get_by_text("Raw").first.click()
    page.get_by_text(f'"path": "{folder}/nightly/v0001"').first.wait_for()
