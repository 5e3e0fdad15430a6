"""The table of tests/README.md: its words stand in the documents, its tests exist, and no section goes without."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import python_path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests" / "README.md"
MANUALS = [
    "README.md", "flows/README.md", "flows/KEYS.md", "flows/SPLITS.md", "flows/NIGHTS.md", "flows/SERVING.md",
    "flows/OPERATIONS.md", "infra/README.md", "tasks/README.md", "tasks/ops/README.md",
    "tasks/ops/EXPRESSIONS.md", "tasks/ops/NVTABULAR.md", "tasks/ops/OWN_OPERATOR.md", "tests/bench/README.md",
    ".github/CONTRIBUTING.md",
]  # fmt: skip


class Promise(NamedTuple):
    words: str
    document: str
    tests: tuple[str, ...]


def promises() -> list[Promise]:
    """The rows below `## Promises`; a bar in a cell is written with a backslash."""
    text = TABLE.read_text().partition("## Promises")[2]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip().replace("\\|", "|") for cell in row] for row in rows]
    return [Promise(row[0], row[1], tuple(row[2].split())) for row in cells if row[0] != "promise"]


PROMISES = promises()


@cache
def words_of(document: str) -> str:
    """The text of a document in one line; comments of YAML and units without their sign, so that lines may break."""
    text = (ROOT / document).read_text()
    return " ".join(re.sub(r"^\s*#+ ?", "", text, flags=re.MULTILINE).replace("\\_", "_").split())


@cache
def functions_of(module: str) -> set[str]:
    path = ROOT / module
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_promise_stands_in_its_document() -> None:
    gone = [f"{p.document}: {p.words}" for p in PROMISES if " ".join(p.words.split()) not in words_of(p.document)]
    assert gone == [], "these words are in the document no more: change the row, or take it away with its test"


def test_every_test_of_a_promise_exists() -> None:
    tests = [(p.words, test) for p in PROMISES for test in p.tests]
    gone = [
        f"{words}: {test}" for words, test in tests
        if test.rpartition("::")[2].partition("[")[0] not in functions_of(test.partition("::")[0])
    ]  # fmt: skip
    assert gone == []
    assert [p.words for p in PROMISES if not p.tests] == []
    assert len(PROMISES) == len({(p.words, p.document) for p in PROMISES}), "a promise stands there twice"


def test_the_check_sees_what_is_wrong() -> None:
    assert "the same promise that nobody makes" not in words_of("README.md")
    assert "The same seed gives the same rows in the same order in the same files" in words_of("README.md")
    assert "test_nothing_of_this_name" not in functions_of("tests/test_promises.py")
    assert functions_of("tests/no_such_file.py") == set()


@pytest.mark.parametrize("document", MANUALS)
def test_every_section_has_a_promise(document: str) -> None:
    text = (ROOT / document).read_text()
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    made = [" ".join(p.words.split()) for p in PROMISES if p.document == document]
    without = []
    for section in sections:
        body = " ".join(section.replace("\\_", "_").split())
        if not any(words in body for words in made):
            without.append(section.partition("\n")[0])
    assert without == []


@pytest.mark.parametrize("document", ["flows/OPERATIONS.md", "infra/README.md"])
def test_every_message_of_the_table_of_failures_has_a_test(document: str) -> None:
    table = (ROOT / document).read_text().partition("## When it fails")[2].partition("\n## ")[0]
    messages = {m for row in table.splitlines() for m in re.findall(r"`([^`]+)`", row.split(" | ")[0])}
    made = {p.words.strip("`") for p in PROMISES if p.document == document}
    assert messages
    assert sorted(messages - made) == []


SERVING = """
import sys
import pyarrow as pa
from tasks.workflow import Workflow
workflow = Workflow.load(sys.argv[1])
print(workflow.transform(pa.table({"x": [1.0, 3.0]})).to_pydict())
print(sorted({"distributed", "prefect"} & set(sys.modules)))
"""


def test_serving_imports_neither_dask_nor_prefect(tmp_path: Path) -> None:
    import pyarrow as pa

    from tasks import ops
    from tasks.workflow import Workflow

    features: Any = ["x"] >> ops.NormalizeMinMax()  # type: ignore[attr-defined, operator]
    Workflow(features).fit(pa.table({"x": [1.0, 3.0]})).save(tmp_path / "fitted")
    command = [sys.executable, "-c", SERVING, str(tmp_path / "fitted")]
    environment = {"PYTHONPATH": python_path(), "HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["{'x': [0.0, 1.0]}", "[]"], done.stderr


def test_the_figures_of_scale_are_those_that_were_recorded() -> None:
    found = json.loads((ROOT / "tests/bench/results/scale.json").read_text())
    text = words_of("infra/scale.md")
    assert f"makes {found['one_gpu']['rows_per_second'] / 1e6:.0f} M rows/s" in text
    eight, sixty_four, _ = found["needs"]["1 TB"]
    assert f"| {eight['read_gb_per_s']:.0f} GB/s | {sixty_four['read_gb_per_s']:.0f} GB/s |" in text
    assert f"| {eight['write_gb_per_s']:.0f} GB/s | {sixty_four['write_gb_per_s']:.0f} GB/s |" in text


def test_what_was_measured_is_recorded() -> None:
    results = sorted((ROOT / "tests" / "bench" / "results").glob("*.json"))
    assert len(results) > 20
    for path in results:
        found = json.loads(path.read_text())
        commands = ("python -m tests.bench.", "rowmill run ", "millrace run ")  # the last: under the former name
        assert any(command in json.dumps(found) for command in commands), path.name
