"""The house rules, checked by walking the syntax trees: who may import what."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(path for room in ("flows", "tasks", "infra") for path in (ROOT / room).rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in MODULES]
ENGINES = {"pandas", "cudf", "cupy", "dask_cudf", "pylibcudf", "rmm"}
every_module = pytest.mark.parametrize("path", MODULES, ids=NAMES)


def imports(path: Path) -> Iterator[str]:
    """Full dotted names of what a module imports anywhere in it; those for type checkers only do not count."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import in line {node.lineno}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def within(path: Path, *places: str) -> bool:
    relative = str(path.relative_to(ROOT))
    return any(relative == place or relative.startswith(f"{place}/") for place in places)


@every_module
def test_imports_go_one_way(path: Path) -> None:
    if within(path, "tasks"):
        assert not rooms(path) & {"flows", "infra", "tests"}
    elif within(path, "infra"):
        assert not rooms(path) & {"flows", "tests"}
        from_tasks = {name for name in imports(path) if name.startswith("tasks")}
        assert all(name.startswith("tasks.errors") for name in from_tasks), from_tasks
    else:
        assert "tests" not in rooms(path)


@every_module
def test_operators_know_the_seam_and_each_other_only(path: Path) -> None:
    if within(path, "tasks/ops"):
        known = (
            "tasks.ops",
            "tasks.engines",
            "tasks.errors",
            "tasks.core.schema",
            "tasks.core.dtypes",
            "tasks.core.strict_json",
        )
        others = {name for name in imports(path) if name.startswith("tasks.") and not name.startswith(known)}
        assert not others
        assert not rooms(path) & {"dask", "distributed", "prefect"}


@every_module
def test_only_the_seam_imports_an_engine(path: Path) -> None:
    if not within(path, "tasks/engines", "tasks/cluster/transfer"):
        assert not rooms(path) & ENGINES


@every_module
def test_only_stage_imports_prefect_in_tasks(path: Path) -> None:
    if within(path, "tasks") and not within(
        path, *(f"tasks/stages/{name}.py" for name in ("task", "progress_artifact", "storage_blocks"))
    ):
        assert not rooms(path) & {"prefect", "prefect_dask"}


@every_module
def test_a_module_says_what_it_is(path: Path) -> None:
    text = path.read_text()
    assert not text.strip() or ast.get_docstring(ast.parse(text)), "no docstring"


def test_no_module_is_called_utils() -> None:
    assert not [name for name in NAMES if Path(name).stem in {"utils", "util", "helpers", "misc", "common"}]


def test_the_importer_sees_both_spellings_and_skips_type_checking(tmp_path: Path) -> None:
    source = "import pandas as pd\nfrom tasks import ops\nif TYPE_CHECKING:\n    import cudf\nif x:\n    import cupy\n"
    (module := tmp_path / "module.py").write_text(source)
    assert set(imports(module)) == {"pandas", "tasks.ops", "cupy"}


@pytest.mark.xdist_group("grouped")
@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="one process: pytest -n0")
def test_a_group_of_tests_stays_together(request: pytest.FixtureRequest) -> None:
    assert request.node.nodeid.endswith("@grouped")
