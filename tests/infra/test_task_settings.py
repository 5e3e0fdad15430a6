"""Prefect's settings as the tasks of a run get them."""

from __future__ import annotations

import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from distributed.protocol import pickle
from prefect.context import SettingsContext, get_settings_context
from prefect.settings import (
    PREFECT_API_SSL_CERT_FILE,
    PREFECT_API_URL,
    PREFECT_LOGGING_LEVEL,
    PREFECT_TASKS_DEFAULT_RETRIES,
    temporary_settings,
)

from infra.orchestration.task_settings import TaskSettings

pytestmark = pytest.mark.system

HERE = "http://127.0.0.1:4200/api"


def sent() -> Any:
    """What a task in this process gets of the settings that hold here."""
    return pickle.loads(pickle.dumps(get_settings_context().serialize()))


def test_a_task_has_the_settings_of_its_flow() -> None:
    with temporary_settings({PREFECT_API_URL: HERE, PREFECT_LOGGING_LEVEL: "ERROR", PREFECT_TASKS_DEFAULT_RETRIES: 3}):
        plain = get_settings_context()
        with TaskSettings.current():
            found = SettingsContext(**sent())
    assert found.profile == plain.profile
    assert found.settings.logging.level == "ERROR"
    assert found.settings.tasks.default_retries == 3
    assert str(found.settings.api.url) == HERE
    told = found.settings.model_dump()
    told["api"]["ssl_cert_file"] = plain.settings.api.ssl_cert_file
    assert told == plain.settings.model_dump()


def test_they_are_made_once_in_a_process() -> None:
    with temporary_settings({PREFECT_LOGGING_LEVEL: "ERROR"}), TaskSettings.current():
        first, second = (SettingsContext(**sent()).settings for _ in range(2))
    assert first is second


def test_they_hold_within_the_block_alone() -> None:
    before = get_settings_context()
    with TaskSettings.current() as inside:
        assert get_settings_context() is inside
    assert get_settings_context() is before


def test_a_server_on_the_loopback_needs_no_authorities_and_any_other_has_all(tmp_path: Path) -> None:
    given = str(tmp_path / "authorities.pem")
    for url, local in [(HERE, True), ("http://localhost:4200/api", True), ("https://127.0.0.1:4200/api", False),
                       ("https://prefect.example/api", False), ("http://prefect.example/api", False)]:  # fmt: skip
        with temporary_settings({PREFECT_API_URL: url, PREFECT_API_SSL_CERT_FILE: given}), TaskSettings.current():
            found = PREFECT_API_SSL_CERT_FILE.value()
        assert (found != given) == local
    with temporary_settings({PREFECT_API_URL: HERE}), TaskSettings.current():
        context = ssl.create_default_context(cafile=PREFECT_API_SSL_CERT_FILE.value())
    assert len(context.get_ca_certs()) <= 1  # what is not an authority does not count


def test_another_process_makes_a_file_of_its_own(tmp_path: Path) -> None:
    with temporary_settings({PREFECT_API_URL: HERE}), TaskSettings.current():
        (tmp_path / "settings").write_bytes(pickle.dumps(get_settings_context().serialize()))
    program = (
        "import pickle, ssl, sys; from prefect.context import SettingsContext;"
        "api = SettingsContext(**pickle.load(open(sys.argv[1], 'rb'))).settings.api;"
        "ssl.create_default_context(cafile=api.ssl_cert_file); print(api.url)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "settings")], capture_output=True, text=True)
    assert done.stdout.strip() == HERE, done.stderr
