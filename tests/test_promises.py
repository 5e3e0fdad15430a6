"""No section of the manuals and no message of their tables is without a test that keeps its promise."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flows.commands.inspect import operators
from tests.conftest import python_path
from tests.promises import ROOT, listing, promises
from tests.test_documents import anchor_of, anchors

MANUALS = [
    "README.md", "flows/README.md", "flows/KEYS.md", "flows/SPLITS.md", "flows/NIGHTS.md", "flows/SERVING.md",
    "flows/OPERATIONS.md", "flows/PLUGINS.md", "infra/README.md", "tasks/README.md", "tasks/ops/README.md",
    "tasks/ops/EXPRESSIONS.md", "tasks/ops/NVTABULAR.md", "tasks/ops/OWN_OPERATOR.md", "tests/bench/README.md",
    ".github/CONTRIBUTING.md",
]  # fmt: skip

pytestmark = pytest.mark.xdist_group("promises")  # one process reads the marks of all tests
kept_promises = cache(promises)  # the modules of all tests are parsed once


@cache
def words_of(document: str) -> str:
    """The text of a document in one line."""
    return " ".join((ROOT / document).read_text().replace("\\_", "_").split())


@pytest.mark.parametrize("document", MANUALS)
def test_every_section_has_a_promise(document: str) -> None:
    headings = re.findall(r"^## (.+?)\s*$", (ROOT / document).read_text(), flags=re.MULTILINE)
    sections = {f"{document}#{anchor_of(heading)}" for heading in headings}
    sections -= {f"tasks/ops/README.md#{name.lower()}" for name in operators()}  # the contract keeps what these say
    assert sections - {promise.section for promise in kept_promises()} == set(), "name them in the mark of a test"


def test_every_section_of_a_promise_exists() -> None:
    sections = {promise.section.partition("#")[::2] for promise in kept_promises() if promise.section}
    assert [(page, anchor) for page, anchor in sections if anchor not in anchors((ROOT / page).read_text())] == []


@pytest.mark.parametrize("document", ["flows/OPERATIONS.md", "infra/README.md"])
def test_every_message_of_the_table_of_failures_has_a_test(document: str) -> None:
    table = (ROOT / document).read_text().partition("## When it fails")[2].partition("\n## ")[0]
    messages = {m for row in table.splitlines() for m in re.findall(r"`([^`]+)`", row.split(" | ")[0])}
    assert messages
    assert sorted(messages - {promise.words.strip("`") for promise in kept_promises()}) == []


def test_marks_are_read_as_pytest_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.promises.ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text(
        "import pytest\n"
        "pytestmark = [pytest.mark.gpu, pytest.mark.promise('of all')]\n"
        "@pytest.mark.promise('two', 'README.md#there')\n"
        "@pytest.mark.promise('one')\n"
        "def test_it(): ...\n"
        "class TestAll:\n"
        "    @pytest.mark.promise('three')\n"
        "    def test_that(self): ...\n"
        "@pytest.mark.nightly\n"
        "@pytest.mark.promise('four')\n"
        "def test_at_night(): ...\n"
    )
    assert promises() == [
        ("of all", "", "tests/test_one.py"),
        ("two", "README.md#there", "tests/test_one.py::test_it"),
        ("one", "", "tests/test_one.py::test_it"),
        ("three", "", "tests/test_one.py::TestAll::test_that"),
    ]
    assert listing("THERE") == "two\n    README.md#there\n    tests/test_one.py::test_it"
    assert listing("nothing of the kind") == ""


SERVING = """
import sys
import pyarrow as pa
from tasks.workflow import Workflow
workflow = Workflow.load(sys.argv[1])
print(workflow.transform(pa.table({"x": [1.0, 3.0]})).to_pydict())
print(sorted({"distributed", "prefect"} & set(sys.modules)))
"""


@pytest.mark.system
@pytest.mark.promise("without Dask or Prefect", "flows/SERVING.md#serving")
def test_serving_imports_neither_dask_nor_prefect(tmp_path: Path) -> None:
    import pyarrow as pa

    from tasks import ops
    from tasks.workflow import Workflow

    features: Any = ["x"] >> ops.NormalizeMinMax()  # type: ignore[attr-defined, operator]
    Workflow(features).fit(pa.table({"x": [1.0, 3.0]})).save(tmp_path / "fitted")
    command = [sys.executable, "-c", SERVING, str(tmp_path / "fitted")]
    environment = {"PYTHONPATH": python_path(), "HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.stdout.splitlines() == ["{'x': [0.0, 1.0]}", "[]"], done.stderr


@pytest.mark.promise("plans are cut by the real rules and weighed as they are sent")
def test_the_figures_of_scale_are_those_that_were_recorded() -> None:
    found = json.loads((ROOT / "tests/bench/results/scale.json").read_text())
    text = words_of("infra/scale.md")
    assert f"processes {found['one_gpu']['rows_per_second'] / 1e6:.0f} M rows/s" in text
    eight, sixty_four, _ = found["needs"]["1 TB"]
    assert f"| {eight['read_gb_per_s']:.0f} GB/s | {sixty_four['read_gb_per_s']:.0f} GB/s |" in text
    assert f"| {eight['write_gb_per_s']:.0f} GB/s | {sixty_four['write_gb_per_s']:.0f} GB/s |" in text


@pytest.mark.promise("Each program writes one JSON file: the command, the machine, the versions, every run")
def test_what_was_measured_is_recorded() -> None:
    results = sorted((ROOT / "tests" / "bench" / "results").glob("*.json"))
    assert len(results) > 20
    for path in results:
        found = json.loads(path.read_text())
        commands = ("python -m tests.bench.", "rowmill run ", "pytest -")  # the last: what the tests themselves cost
        assert any(command in json.dumps(found) for command in commands), path.name
