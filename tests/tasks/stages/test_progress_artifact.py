"""What is shown at a Prefect server, where there is none."""

from __future__ import annotations

import logging

import pytest
from prefect import get_client
from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_EPHEMERAL_ENABLED, temporary_settings

from tasks.stages import progress_artifact
from tasks.stages.progress_artifact import open_prefect_client


def test_without_an_api_url_what_cannot_be_shown_is_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_artifact, "_away", {"until": 0.0})
    alone = temporary_settings({PREFECT_API_URL: None, PREFECT_SERVER_EPHEMERAL_ENABLED: False})
    reached = []
    with alone, caplog.at_level(logging.WARNING, "rowmill"), open_prefect_client():
        reached.append("the block")
        get_client(sync_client=True)
        reached.append("a client")
    assert reached == ["the block"]
    assert "an artifact could not be published: ValueError: No Prefect API URL provided" in caplog.text
