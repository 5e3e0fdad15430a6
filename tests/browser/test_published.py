"""What a person sees of a publication on Prefect's pages: its events, with the facts in the payload, and its run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.browser.conftest import Served, final

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(600)]


def test_the_events_page_shows_the_publication_and_its_assets(
    served: Served, nightly: Any, api: Any, page: Any, keep: Callable[[Any, str], None]
) -> None:
    folder = served.folder
    assert final(api, nightly).state_name == "Completed"
    mine = [f"rowmill.output.{folder.name}-nightly", f"file://{folder}/nightly"]  # runs of other tests have many events
    page.goto(f"{served.url}/events?{urlencode({'resource': mine}, doseq=True)}")
    page.get_by_text("Rowmill output published").first.wait_for()
    page.get_by_text("materialization succeeded").first.wait_for()
    page.get_by_text("Rowmill output published").first.scroll_into_view_if_needed()
    page.mouse.wheel(0, 180)
    keep(page, "events")
    page.get_by_text("Rowmill output published").first.click()
    page.get_by_text("Raw").first.click()
    page.get_by_text(f'"path": "{folder}/nightly/v0001"').first.wait_for()
