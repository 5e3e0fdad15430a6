"""The end of a run says what its tests cost, and a test that costs too much fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import python_path
from tests.cost import without_group

CONFTEST = """
import os

from tests import cost


def pytest_addoption(parser):
    cost.add_options(parser)


def pytest_configure(config):
    cost.measure(config, owner="PYTEST_XDIST_WORKER" not in os.environ)
"""
SETTINGS = """
[pytest]
markers =
    system:
    nightly:
addopts = --test-cpu-seconds 0.15 --suite-core-minutes 0.001
"""
UNIT = 0.2  # CPU seconds on the reference host
TESTS = """
import os, subprocess, sys, time
from pathlib import Path

import pytest

unit = 0.2 * float(os.environ["ROWMILL_TEST_SLOWNESS"])
burn = f"import time\\nwhile time.process_time() < {unit}: pass\\n"


def use(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


@pytest.fixture(scope="session")
def costly():
    use(unit)


def test_alone():
    use(unit)


def test_with_a_fixture_of_the_session(costly):
    pass


@pytest.mark.system
def test_a_child():
    subprocess.run([sys.executable, "-c", burn])


@pytest.mark.system
def test_a_living_child():
    living = subprocess.Popen(
        [sys.executable, "-c", burn + "print(flush=True)\\ninput()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    living.stdout.readline()


@pytest.mark.system
def test_an_orphan(tmp_path):
    done = tmp_path / "done"
    code = burn + f"open({str(done)!r}, 'w').close()"
    subprocess.run(["sh", "-c", '"$0" -c "$1" &', sys.executable, code])
    while not done.exists():
        time.sleep(0.05)


@pytest.mark.xdist_group("group")
def test_too_dear():
    use(3 * unit)


@pytest.mark.nightly
def test_at_night():
    use(3 * unit)
"""


@pytest.mark.system
def test_all_processes_are_counted_and_a_dear_test_fails(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    (tmp_path / "test_costs.py").write_text(TESTS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-n",
        "1",
        "--dist",
        "loadgroup",
        "--cost",
        "cost.json",
    ]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": python_path()},
        text=True,
        capture_output=True,
        timeout=240,
    )

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "1 failed" in ended.stdout or "1 error" in ended.stdout
    assert "test_too_dear@group" in ended.stdout
    assert "0 are allowed on this host" in ended.stdout or "1 are allowed on this host" in ended.stdout
    assert "over the budget of the suite" in ended.stdout
    assert "over the limit of 0 CPU seconds: test_costs.py::test_at_night" in ended.stdout
    table = json.loads((tmp_path / "cost.json").read_text())
    unit = UNIT * table["slowness"]
    used = {row["name"].partition("::")[2]: row["cpu"] / unit for row in table["tests"]}
    dear = {name for name, units in used.items() if units > 0.9}
    assert dear == {"test_alone", "test_a_child", "test_a_living_child", "test_too_dear", "test_at_night"}
    assert used["test_too_dear"] > 2.9
    assert used["test_with_a_fixture_of_the_session"] < 0.5
    assert table["core_minutes"] * 60 > 11 * unit  # with the fixture and the orphan


def test_a_node_id_is_told_from_its_group() -> None:
    assert without_group("tests/test_a.py::test_b[x@y]@faults") == "tests/test_a.py::test_b[x@y]"
    assert without_group("tests/test_a.py::test_b[x@y]") == "tests/test_a.py::test_b[x@y]"
    assert without_group("tests/test_a.py::test_b") == "tests/test_a.py::test_b"
