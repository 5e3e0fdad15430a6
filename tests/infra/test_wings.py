"""Wings can be taken away: the job of the recipe toy runs without any of them, and what is missing is named."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flows.sample import make_sample
from tasks.core.wings import KEYS, WINGS

ROOT = Path(__file__).resolve().parents[2]
JOB = """\
recipe: toy
output: {shuffle: full, on_existing: replace}
"""


def copy_checkout(to: Path) -> Path:
    """The code of the checkout, and of the tests."""
    for top in ("flows", "tasks", "infra", "tests"):
        ignore = shutil.ignore_patterns("__pycache__", "results", "screenshots", "*.md")
        shutil.copytree(ROOT / top, to / top, ignore=ignore)
    return to


class Answers:
    """What became of the job without each wing; half of the wings are tried when the first of them is asked for."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._folder = folder
        self._known: dict[str, dict[str, Any]] = {}

    def __getitem__(self, wing: str) -> dict[str, Any]:
        if wing not in self._known:
            wings = [*WINGS]
            half = len(wings) // 2
            self._try(wings[:half] if wing in wings[:half] else wings[half:])
        return self._known[wing]

    def _try(self, wings: list[str]) -> None:
        command = [sys.executable, "-m", "tests.infra.without_wings", str(self._root), str(self._folder), *wings]
        variables = {
            **os.environ,
            "PYTHONPATH": f"{self._root}{os.pathsep}{self._root / 'flows/public'}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(command, cwd=self._root, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        self._known |= {line.pop("wing"): line for line in lines}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory, prefect_server: Any) -> Answers:
    root = copy_checkout(tmp_path_factory.mktemp("house"))
    folder = tmp_path_factory.mktemp("outputs")
    (folder / "job.yaml").write_text(JOB)
    make_sample("toy", folder / "data", 1000)
    return Answers(root, folder)


pytestmark = [pytest.mark.system, pytest.mark.xdist_group("house")]


@pytest.mark.promise("Each can be taken away", "tasks/README.md#wings")
@pytest.mark.parametrize("wing", WINGS)
def test_a_job_runs_without_a_wing(answers: Answers, wing: str) -> None:
    answer = answers[wing]
    assert "error" not in answer, answer["error"]
    assert answer["status"] == 0, answer["output"]
    by_function, by_command = answer["digests"]
    assert by_function == by_command == answers["flows/draft"]["digests"][0]
    assert len(by_function) == 2


@pytest.mark.parametrize("wing", WINGS)
def test_what_belongs_to_a_wing_that_is_not_there_is_one_clear_error(answers: Answers, wing: str) -> None:
    answer = answers[wing]
    keys = [key for key, folder in KEYS.items() if folder == wing]
    why = f"its folder {wing} was left out"
    assert answer["refused"] == [[key, f"this installation cannot {WINGS[wing]}", why] for key in keys]
    if answer["command"]:
        assert f"this installation cannot {WINGS[wing]}" in answer["command"]
        assert why in answer["command"]


@cache
def modules_of(root: Path) -> set[str]:
    """The dotted names of the modules and packages of a checkout."""
    tops = ("flows", "tasks", "infra", "tests")
    paths = [path.relative_to(root) for top in tops for path in (root / top).rglob("*.py")]
    return {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths}


@cache
def imports_at_top(path: Path) -> set[str]:
    """The modules of this checkout that a test module imports before any test runs."""
    body = ast.parse(path.read_text()).body
    names = {f"{node.module}.{alias.name}" for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}
    names |= {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
    return {name for name in names if name.startswith(("flows.", "tasks.", "infra.", "tests."))}


@pytest.mark.parametrize("wing", WINGS)
def test_the_tests_of_the_core_can_be_collected_without_a_wing(wing: str) -> None:
    """Those that a wing takes along are a part of all; what others share imports no wing at its top."""
    known = modules_of(ROOT)
    gone = wing.replace("/", ".")

    def needs(module: str, seen: frozenset[str] = frozenset()) -> bool:
        path = ROOT / f"{module.replace('.', '/')}.py"
        if module == gone or module.startswith(f"{gone}."):
            return True
        if module in seen or not module.startswith("tests.") or not path.is_file():
            return False
        used = {name if name in known else name.rpartition(".")[0] for name in imports_at_top(path)}
        return any(needs(name, seen | {module}) for name in used)

    tests = sorted(name for name in known if name.rpartition(".")[2].startswith("test_"))
    lost = [name for name in tests if needs(name)]
    assert len(lost) < len(tests) / 5, lost
    assert not needs("tests.conftest")
    assert not needs("tests.stages")
