"""The folder of a deployment: entered, its modules last; a missing one is told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flows.job.deployed import enter_folder
from infra.orchestration.deployment_file import FOLDER
from tasks.errors import GiveUpError

pytestmark = pytest.mark.system


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "start").mkdir()
    monkeypatch.chdir(tmp_path / "start")
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.mark.promise(
    "Relative paths start in the folder in which `deploy` was called, which it prints, unless the file names one"
)
def test_a_run_works_in_the_folder_of_its_deployment(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(sys.path)
    monkeypatch.setenv(FOLDER, str(elsewhere))
    enter_folder()
    enter_folder()
    assert Path.cwd() == elsewhere
    assert sys.path == [*before, str(elsewhere)]


def test_without_a_folder_it_stays(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    enter_folder()
    assert Path.cwd() == elsewhere / "start"


def test_a_folder_of_another_host_is_told(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(elsewhere / "absent"))
    with pytest.raises(GiveUpError, match="the folder of the deployment is not here") as error:
        enter_folder()
    assert str(elsewhere / "absent") in str(error.value)
    assert FOLDER in str(error.value)
