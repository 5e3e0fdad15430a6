"""The house rules: who may import what, by import-linter's contracts and by walking the syntax trees."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest

from tasks.job import fingerprints
from tests.conftest import GROUPS
from tests.infra import house

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(path for room in ("flows", "tasks", "infra") for path in (ROOT / room).rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in MODULES]
HOUSE = pytest.mark.xdist_group("house")  # one process parses all modules
ENGINES = {"pandas", "cudf", "cupy", "dask_cudf", "pylibcudf", "rmm"}


@cache
def imports(path: Path) -> frozenset[str]:
    """Full dotted names of what a module imports anywhere in it; those for type checkers only do not count."""
    for_type_checkers = {
        id(inner) for node in house.nodes(path)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name | ast.Attribute)
        and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body for inner in ast.walk(statement)
    }  # fmt: skip
    names: set[str] = set()
    for node in house.nodes(path):
        if id(node) in for_type_checkers:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import in line {node.lineno}"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def rooms(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def within(path: Path, *places: str) -> bool:
    relative = str(path.relative_to(ROOT))
    return any(relative == place or relative.startswith(f"{place}/") for place in places)


def breaking(rule: Callable[[Path], Iterable[str]]) -> dict[str, list[str]]:
    """What breaks a rule, by module."""
    broken = {name: sorted(rule(path)) for name, path in zip(NAMES, MODULES, strict=True)}
    return {name: what for name, what in broken.items() if what}


@pytest.mark.promise("A module may import rooms that stand lower, never higher", "tasks/README.md#the-house")
@pytest.mark.promise("Tests enforce both", ".github/CONTRIBUTING.md#how-we-work")
@HOUSE
def test_imports_go_one_way() -> None:
    def upwards(path: Path) -> set[str]:
        if within(path, "tasks"):
            return rooms(path) & {"flows", "infra", "tests"}
        if within(path, "infra"):
            from_tasks = {name for name in imports(path) if name.startswith("tasks")}
            above = {name for name in from_tasks if not name.startswith("tasks.errors")}
            return rooms(path) & {"flows", "tests"} | above
        return rooms(path) & {"tests"}

    assert breaking(upwards) == {}


@pytest.mark.promise("Tests enforce both")
@HOUSE
def test_operators_know_the_seam_and_each_other_only() -> None:
    def others(path: Path) -> set[str]:
        if not within(path, "tasks/ops"):
            return set()
        known: tuple[str, ...] = (
            "tasks.ops",
            "tasks.engines",
            "tasks.errors",
            "tasks.core.schema",
            "tasks.core.dtypes",
            "tasks.core.nvtabular",
            "tasks.core.strict_json",
            "tasks.core.versions",
        )
        if path.name == "side_tables.py":  # the one file that reads files, for the operators that join them
            known += ("tasks.storage", "tasks.core.plan", "tasks.core.units", "tasks.core.settings")
        beyond = {name for name in imports(path) if name.startswith("tasks.") and not name.startswith(known)}
        return beyond | rooms(path) & {"dask", "distributed", "prefect"}

    assert breaking(others) == {}


@HOUSE
def test_only_the_seam_imports_an_engine() -> None:
    def engines(path: Path) -> set[str]:
        return set() if within(path, "tasks/engines", "tasks/cluster/transfer") else rooms(path) & ENGINES

    assert breaking(engines) == {}


@HOUSE
def test_only_stage_imports_prefect_in_tasks() -> None:
    seams = [f"tasks/stages/{name}.py" for name in ("task", "progress_artifact", "storage_blocks")]

    def prefect(path: Path) -> set[str]:
        inside = within(path, "tasks") and not within(path, *seams)
        return rooms(path) & {"prefect", "prefect_dask"} if inside else set()

    assert breaking(prefect) == {}


@pytest.mark.promise(
    "Each folder is a *room* with one purpose; the first line of each module says what the module does"
)
@HOUSE
def test_a_module_says_what_it_is() -> None:
    def silent(path: Path) -> list[str]:
        module = house.nodes(path)[0]
        assert isinstance(module, ast.Module)
        return [] if ast.get_docstring(module) or not path.read_text().strip() else ["no docstring"]

    assert breaking(silent) == {}


@HOUSE
def test_a_rule_names_each_module_that_breaks_it() -> None:
    of_errors = breaking(lambda path: ["b", "a"] if within(path, "tasks/errors.py") else [])
    assert of_errors == {"tasks/errors.py": ["a", "b"]}


@HOUSE
def test_functions_that_are_looked_up_in_a_wing_by_name_exist() -> None:
    """Neither mypy nor a rename sees the name in the string."""
    asked = [
        [ast.literal_eval(argument) for argument in node.args]
        for path in MODULES for node in house.nodes(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "from_wing"
    ]  # fmt: skip
    assert ["tasks/report", "verdict_section", "draw_distribution_url"] in asked
    for folder, module, name in asked:
        nodes = house.nodes(ROOT / folder / f"{module}.py")
        defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        assert name in defined, f"{folder}/{module}.py has no function {name}"


def test_no_module_is_called_utils() -> None:
    assert not [name for name in NAMES if Path(name).stem in {"utils", "util", "helpers", "misc", "common"}]


def test_the_importer_sees_both_spellings_and_skips_type_checking(tmp_path: Path) -> None:
    source = "import pandas as pd\nfrom tasks import ops\nif TYPE_CHECKING:\n    import cudf\nif x:\n    import cupy\n"
    (module := tmp_path / "module.py").write_text(source)
    assert set(imports(module)) == {"pandas", "tasks.ops", "cupy"}


# Contracts of import-linter


def contracts() -> list[str]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return [contract["name"] for contract in tomllib.load(file)["tool"]["importlinter"]["contracts"]]


LINT_EACH = """
import json, sys
from pathlib import Path
from importlinter.cli import lint_imports
for name, module, planted in json.load(sys.stdin):
    text = Path(module).read_text()
    Path(module).write_text(text + planted)
    print(chr(12), name, sep="", flush=True)
    print("status", lint_imports(sys.argv[1], cache_dir=sys.argv[2]), flush=True)
    Path(module).write_text(text)
"""


def lint_each(root: Path, cases: list[tuple[str, str, str]]) -> dict[str, str]:
    """By case, what import-linter says of the packages in a folder under this repository's contracts, its status at the
    end; each of the cases (name, module, what is planted in it) by itself."""
    importlinter = pytest.importorskip("importlinter", reason="needs import-linter: pip install '.[test]'")
    folders = os.pathsep.join(map(str, [root, root / "flows/public", Path(importlinter.__file__).parents[1]]))
    done = subprocess.run(
        [sys.executable, "-c", LINT_EACH, str(ROOT / "pyproject.toml"), str(root / "cache")], input=json.dumps(cases),
        cwd=root, env={**os.environ, "PYTHONPATH": folders, "NO_COLOR": "1", "COLUMNS": "200"}, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = [text.partition("\n") for text in done.stdout.split("\f")[1:]]
    return {name: text.strip() for name, _, text in said}


def copied(root: Path, *tops: str) -> Path:
    for top in tops:
        shutil.copytree(ROOT / top, root / top, ignore=lambda folder, names: [
            name for name in names if not name.endswith(".py") and not (Path(folder) / name).is_dir()])  # fmt: skip
    return root


FUNCTION, TYPES = "\n\ndef planted():\n    {}\n", "\n\nif TYPE_CHECKING:\n    {}\n"
# By contract: a module, and an import that the contract forbids there, hidden as well as one can.
PLANTED = {
    "tasks, from top to ground": ("tasks/core/units.py", FUNCTION.format("from tasks.storage import files")),
    "the core knows no run dates, no versions": (
        "tasks/shuffle/parts.py",
        FUNCTION.format("from tasks.manifest import chosen_versions"),
    ),
    "engines, from expressions to types": (
        "tasks/engines/gpu/device_frames.py",
        FUNCTION.format("from tasks.engines.cpu import columns"),
    ),
    "kernels know no engine": (
        "tasks/engines/gpu/kernels/denormals.py",
        FUNCTION.format("from tasks.engines.gpu import columns"),
    ),
    "what workers hand each other is below the pools": (
        "tasks/cluster/transfer/host_memory.py",
        FUNCTION.format("from tasks.cluster.monitor import count"),
    ),
    "pools do not know how workers hand over results": (
        "tasks/cluster/parallelism.py",
        FUNCTION.format("from tasks.cluster.transfer import host_memory"),
    ),
    "tasks know no infra, no flows": ("tasks/errors.py", FUNCTION.format("import infra.sizes")),
    "infra knows of tasks only tasks.errors": (
        "infra/sizes.py",
        FUNCTION.format("from tasks.core.units import amount"),
    ),
    "flows, from top to ground": ("flows/job/access.py", FUNCTION.format("from flows.preview import text")),
    "nothing imports rowmill, which users import": ("flows/commands/console.py", FUNCTION.format("import rowmill")),
    "infra, from top to ground": ("infra/workers/garbage.py", TYPES.format("from infra.clusters.model import Cluster")),
    "clusters, from top to ground": (
        "infra/clusters/model.py",
        FUNCTION.format("from infra.clusters.resolve import resolve"),
    ),
    "infra knows no flows": ("infra/sizes.py", FUNCTION.format("import flows.job")),
}


def test_each_contract_has_a_violation_to_find() -> None:
    assert [*PLANTED] == contracts()


@pytest.mark.system
def test_all_contracts_hold_and_each_planted_violation_breaks_its_contract_alone(tmp_path: Path) -> None:
    copied(tmp_path, "tasks", "flows", "infra")
    cases = [("nothing planted", "tasks/errors.py", ""), *((name, *planted) for name, planted in PLANTED.items())]
    said = lint_each(tmp_path, cases)
    plain = said.pop("nothing planted")
    assert plain.endswith("status 0"), plain
    assert all(f"{name} KEPT" in plain for name in contracts()), plain
    broken = {name: re.findall(r"^(.*) BROKEN$", text, re.MULTILINE) for name, text in said.items()}
    assert broken == {name: [name] for name in PLANTED}
    assert all(text.endswith("status 1") for text in said.values())


# Circles, floors


@pytest.fixture(scope="module")
def whole() -> house.Graph:
    return house.imports(ROOT)


@pytest.fixture(scope="module")
def tasks_alone(whole: house.Graph) -> house.Graph:
    return {module: used for module, used in whole.items() if module.split(".")[0] == "tasks"}


@HOUSE
def test_tasks_have_no_circle_of_modules_or_rooms(tasks_alone: house.Graph) -> None:
    graph = tasks_alone
    assert house.circle(graph) == []
    assert house.circle(house.rooms(graph, ROOT)) == []
    assert house.circle(house.rooms(graph, ROOT, depth=2)) == []


@HOUSE
def test_flows_and_infra_have_no_circle_of_modules_or_rooms(whole: house.Graph) -> None:
    assert house.circle(whole) == []
    assert house.circle(house.rooms(whole, ROOT)) == []


@HOUSE
def test_the_house_has_at_most_15_floors(whole: house.Graph) -> None:
    """Every folder is a room, also one within another: `tasks/engines/cpu` beside `tasks/engines`."""
    floors = house.floors(house.rooms(whole, ROOT))
    assert max(floors.values()) <= 15, floors


@HOUSE
def test_tasks_have_at_most_9_floors_of_outer_rooms(tasks_alone: house.Graph) -> None:
    """A room counts with the folders in it: `tasks/engines` with its six."""
    floors = house.floors(house.rooms(tasks_alone, ROOT, depth=2))
    assert max(floors.values()) <= 9, floors


WORDS = ("found", "given", "asked", "told", "said", "kept", "made", "held")


@HOUSE
def test_names_say_what_a_thing_is() -> None:
    """These words say that something happened to a thing, not what the thing is: the style of the code has none."""
    assert breaking(lambda path: [name for name in house.identifiers(path) if name in WORDS]) == {}


CORE = tuple(f"tasks/{room}" for room in ("ops", "graph", "learning", "shuffle", "sources"))


def of_nights(path: Path) -> list[str]:
    return [text for text in (path.stem, *house.identifiers(path), *house.docstrings(path)) if "night" in text.lower()]


@HOUSE
def test_the_core_does_not_know_nights() -> None:
    """Its words are refit, batch and date: a refit may come at any time. Names in files are texts, and stay."""
    assert breaking(lambda path: of_nights(path) if within(path, *CORE) else []) == {}


def test_a_night_is_seen_in_names_and_docstrings(tmp_path: Path) -> None:
    source = (
        '"""A night."""\nclass NightForm:\n    def f(self, of_night):\n        """Nights."""\n        self.night = ""'
    )
    (module := tmp_path / "by_night.py").write_text(source)
    assert {*of_nights(module)} == {"by_night", "NightForm", "of_night", "night", "A night.", "Nights."}


@HOUSE
def test_nothing_is_registered_upwards() -> None:
    assert house.lazily_registered(ROOT / "tasks") == []


def test_the_counter_sees_every_kind_of_import(tmp_path: Path) -> None:
    sources = {
        "tasks/__init__.py": "", "tasks/top.py": "import tasks.room.a", "tasks/room/__init__.py": "",
        "tasks/room/a.py": '"""tasks.room.d"""\ndef f():\n    "tasks.room.d"\n    from tasks.room import b',
        "tasks/room/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tasks.room.c import C",
        "tasks/room/c.py": 'KERNELS = ("tasks.room.d:Kernel", "tasks.nothing", "no tasks.room.a")',
        "tasks/room/d.py": 'import os\nregister_lazy("tasks", f)\n',
        "tasks/room/inner/__init__.py": "import tasks.room",
    }  # fmt: skip
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    graph = house.imports(tmp_path)
    assert graph == {
        "tasks": set(), "tasks.top": {"tasks.room.a"}, "tasks.room": set(), "tasks.room.a": {"tasks.room.b"},
        "tasks.room.b": {"tasks.room.c"}, "tasks.room.c": {"tasks.room.d", "tasks"}, "tasks.room.d": set(),
        "tasks.room.inner": {"tasks.room"},
    }  # fmt: skip
    assert house.rooms(graph, tmp_path)["tasks/room/inner"] == {"tasks/room"}
    assert house.circle(graph) == []
    assert house.floors(graph)["tasks.top"] == 5
    assert house.lazily_registered(tmp_path) == ["tasks/room/d.py:2"]
    graph["tasks.room.d"].add("tasks.room.b")
    assert house.circle(graph)


# What is cached is made anew after every change of the code


ROOMS = sorted({str(path.parent.relative_to(ROOT)) for path in MODULES if path.parts[len(ROOT.parts)] == "tasks"})


def test_own_code_is_that_of_tasks_and_a_change_in_any_room_is_other_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.__file__", str(copied(tmp_path, "tasks") / "tasks/__init__.py"))
    own_code = fingerprints.own_code.__wrapped__
    assert own_code() == fingerprints.own_code()
    unseen = []
    for room in ROOMS:
        changed = sorted((tmp_path / room).glob("*.py"))[-1]
        text = changed.read_text()
        changed.write_text(text + "# changed\n")
        if own_code() == fingerprints.own_code():
            unseen.append(room)
        changed.write_text(text)
    assert unseen == []
    assert own_code() == fingerprints.own_code()


def test_the_groups_that_begin_first_are_groups_of_tests() -> None:
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    assert set(GROUPS) <= {name for text in texts for name in re.findall(r'xdist_group\("([\w-]+)"\)', text)}


@pytest.mark.xdist_group("grouped")
@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="one process: pytest -n0")
def test_a_group_of_tests_stays_together(request: pytest.FixtureRequest) -> None:
    assert request.node.nodeid.endswith("@grouped")


@HOUSE
def test_no_pattern_has_a_possessive_group() -> None:
    """Before Python 3.11.5 they match wrongly where their parts may backtrack (CPython issue 106052); `any_number` of
    readable_lines.py is right everywhere."""
    possessive = []
    for path in MODULES:
        documents = {id(node.value) for node in house.nodes(path) if isinstance(node, ast.Expr)}
        for node in house.nodes(path):
            value = node.value if isinstance(node, ast.Constant) and id(node) not in documents else ""
            text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
            possessive += [(path.name, text)] if re.search(r"\)[*+?]\+", text) else []
    assert possessive == []
