"""The documents hold together: links and anchors exist, the README is short, and the map shows the code as it is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job.job import make_job
from flows.run import session, wings
from flows.run.flow_plugin import FlowPlugin
from flows.run.wings import flow_plugins
from flows.sample import make_sample
from tasks.cluster.local_pool import LocalPool
from tasks.run import run as real
from tasks.run.plugin import RunPlugin
from tasks.stages import commit, ingest, shuffle_write, statistics, transform
from tests.stages import report_of
from tests.tasks.run.test_run import Notes

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("flows", "tasks", "infra", "tests", ".github")
PAGES = [ROOT / "README.md", *sorted(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
DOCUMENTS = [str(page.relative_to(ROOT)) for page in PAGES]
MAP = (ROOT / "tasks" / "README.md").read_text()


def prose(text: str) -> str:
    """A document without its blocks of code and without code in a line."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))


def links(text: str) -> list[str]:
    """The targets of the links and pictures of a document that lead into the repository."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(text))
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchor_of(heading: str) -> str:
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a document."""
    without_code = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    made: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6} (.+?)\s*$", without_code, flags=re.MULTILINE):
        anchor = anchor_of(heading)
        made[anchor] = made.get(anchor, -1) + 1
        made[f"{anchor}-{made[anchor]}"] = 0
    return set(made)


def broken(document: Path) -> list[str]:
    wrong = []
    for target in links(document.read_text()):
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        if not file.exists() or not file.is_relative_to(ROOT):
            wrong.append(f"{target}: there is no such file")
        elif anchor and (file.suffix != ".md" or anchor not in anchors(file.read_text())):
            wrong.append(f"{target}: there is no such heading")
    return wrong


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_and_anchor_exists(document: str) -> None:
    assert broken(ROOT / document) == []


def test_a_broken_link_would_be_seen() -> None:
    assert links("[a](x.md#b) `[c](d)` [e](https://f.g) ![h](i.png)") == ["x.md#b", "i.png"]
    assert anchors("# One, two\n## `three` 4\n```\n# not this\n```\n## One, two") >= {"one-two", "three-4", "one-two-1"}
    assert "not-this" not in anchors("```\n# not this\n```")


@pytest.mark.promise("you want to | read", "README.md#where-to-read-on")
def test_every_manual_is_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        document = waiting.pop()
        if document not in reached:
            reached.add(document)
            targets = [(document.parent / t.partition("#")[0]).resolve() for t in links(document.read_text())]
            waiting += [target for target in targets if target.suffix == ".md"]
    assert {ROOT / document for document in DOCUMENTS} <= reached


@pytest.mark.promise("you want to | read")
def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


def section(title: str) -> str:
    return MAP.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.promise("a test executes it and compares it with the real one", "tasks/README.md#the-life-of-a-run")
@pytest.mark.parametrize("valid", [False, True], ids=["train", "train and valid"])
def test_the_run_of_the_map_does_what_the_real_one_does(valid: bool, tmp_path: Path) -> None:
    """The same calls of plugins in the same order, and the same files."""
    pq.write_table(pa.table({"x": [1.0, 2.0, 4.0]}), tmp_path / "in.parquet")
    source = {"path": str(tmp_path / "in.parquet")} | ({"valid": str(tmp_path / "in.parquet")} if valid else {})
    features = [{"columns": ["x"], "ops": [{"op": "Normalize"}]}]
    (code,) = re.findall(r"```python\n(.*?)```", section("The life of a run"), re.DOTALL)
    of_the_map: dict[str, Any] = {**vars(real)}
    exec(code, of_the_map)
    results = []
    for name, run in (("real", real.run), ("map", of_the_map["run"])):
        output = {"path": str(tmp_path / name / "out"), "files": 1}
        request = make_job({"source": source, "features": features, "output": output}).request("pandas")
        notes: list[str] = []
        manifests = run(request, real.execute_on(LocalPool(1)), [Notes("a", notes), Notes("b", notes)])
        files = [part["xxh3_128"] for manifest in manifests for part in manifest.parts]
        results.append((notes, files, [manifest.rows["out"] for manifest in manifests]))
    assert results[0] == results[1]
    assert len(results[1][0]) == (20 if valid else 16)
    assert results[1][2] == ([3, 3] if valid else [3])


METHODS = {
    RunPlugin: ("begin", "after", "before_commit", "committed", "ended"),
    FlowPlugin: ("around", "may_finish"),
}  # fmt: skip
EACH_METHOD = [name for names in METHODS.values() for name in names]


def row_of(plugin: type[RunPlugin] | type[FlowPlugin]) -> list[Any]:
    """What the map's table says of a plugin: place, module, wing, and the methods that it has."""
    module = Path(plugin.__module__.replace(".", "/"))
    wing = module.parts[1] if (ROOT / module.parent / "wing.py").exists() else "core"
    place = f"{'flow ' * issubclass(plugin, FlowPlugin)}{plugin.place}"
    (base,) = [base for base in METHODS if issubclass(plugin, base)]
    methods = [name for name in METHODS[base] if name in vars(plugin)]
    return [place, f"[{plugin.__name__}](../{module}.py)", wing, methods]


@pytest.mark.promise("place | plugin | wing | what it does", "tasks/README.md#plugins")
def test_the_table_of_plugins_is_what_the_code_says() -> None:
    """The order of the rows, the place of each, the file, the wing, and the methods that it overrides."""
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]] for row in section("Plugins").splitlines() if row[:1] == "|"
    ]
    of_the_map = [[*row[:3], [name for name in EACH_METHOD if f"`{name}`" in row[3]]] for row in rows[2:]]
    of_flows = [type(plugin) for plugin in flow_plugins()]
    of_wings = [plugin for wing in wings._wings() for plugin in getattr(wing, "PLUGINS", ())]
    of_core = [plugin for plugin in vars(session).values() if isinstance(plugin, type) and plugin is not RunPlugin
               and issubclass(plugin, RunPlugin)]  # fmt: skip
    of_runs = sorted([*of_core, *of_wings], key=lambda plugin: plugin.place)
    assert of_the_map == [row_of(plugin) for plugin in (*of_flows, *of_runs)]


@pytest.mark.promise("in `tasks/` | purpose", "tasks/README.md#the-rooms")
def test_the_map_has_every_room() -> None:
    rooms = section("The rooms")
    entries = [p for p in (ROOT / "tasks").iterdir() if p.suffix in ("", ".py") and not p.name.startswith(("_", "."))]
    assert [p.name for p in entries if f"]({p.name})" not in rooms] == []
    above = [p for room in ("flows", "infra") for p in (ROOT / room).iterdir() if (p / "__init__.py").exists()]
    assert [p.name for p in above if f"](../{p.relative_to(ROOT)})" not in rooms] == []


@pytest.mark.promise("A module may import rooms that stand lower, never higher")
def test_the_picture_has_every_room() -> None:
    picture = section("The house")
    rooms = [p.name for p in (ROOT / "tasks").iterdir() if (p / "__init__.py").exists()]
    assert [name for name in rooms if f" {name}/" not in picture] == []


@pytest.mark.promise("The third column is the module that defines it", "tasks/README.md#glossary")
@pytest.mark.promise("the words of the field and of the", ".github/CONTRIBUTING.md#english")
def test_the_words_of_the_glossary_are_defined_where_it_says() -> None:
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]] for row in section("Glossary").splitlines() if row[:2] == "| "
    ]
    gone = []
    for word, meaning, where in rows[1:]:
        (target,) = links(where)
        code = (ROOT / "tasks" / target).read_text()
        for name in re.findall(r": `([A-Z]\w+)`$", meaning):
            if not re.search(rf"^class {name}\b", code, flags=re.MULTILINE):
                gone.append(f"{word}: there is no class {name} in {target}")
    assert gone == []
    assert len(rows) > 25


HOW = ("an operator", "a source format", "a cluster", "a plugin", "a gate check")


@pytest.mark.promise("To define an operator's class is to register it")
@pytest.mark.promise("Job, form and schema follow from it", "tasks/README.md#how-to-add-a-source-format")
@pytest.mark.promise("form, reference and checks of access follow", "tasks/README.md#how-to-add-a-cluster")
@pytest.mark.promise("a new feature names its wing first", "tasks/README.md#how-to-add-a-plugin")
@pytest.mark.promise("compares the profile of a run with those of", "tasks/README.md#how-to-add-a-gate-check")
@pytest.mark.parametrize("what", HOW)
def test_there_are_five_steps_and_each_names_tests_that_exist(what: str) -> None:
    """Files of its commands exist; words of `-k`, all of them or one of those between `or`, select a test."""
    steps = re.split(r"^\d\. ", section(f"How to add {what}"), flags=re.MULTILINE)[1:]
    assert len(steps) == 5
    for step in steps:
        commands = re.findall(r"`pytest ([^`]+)`", " ".join(step.split()))
        assert commands, step
        for command in commands:
            paths = re.findall(r"(?<!\S)(?:tests|tasks|flows)[\w/.]*", command)
            assert [path for path in paths if not (ROOT / path).exists()] == []
            files = [
                p for path in paths for p in ([ROOT / path] if path.endswith(".py") else (ROOT / path).rglob("*.py"))
            ]
            code = "\n".join(file.read_text() for file in files)
            for words in re.findall(r'-k (?:"([^"]+)"|(\w+))', command):
                for word in "".join(words).split(" or "):
                    assert word == "NAME" or re.search(rf"^def test_\w*{word}", code, re.MULTILINE), (word, command)


@pytest.mark.promise("A step names the test that fails until the step is done")
def test_names_that_the_map_sends_to_stand_in_the_files_beside_them() -> None:
    """The steps of `How to add`: classes, constants and functions in a step stand in one of the files that it links."""
    how = MAP[MAP.index("## How to add an operator") :]
    steps = re.split(r"^\d\. ", how, flags=re.MULTILINE)[1:]
    gone, seen = [], 0
    for step in steps:
        files = [(ROOT / "tasks" / target.partition("#")[0]).resolve() for target in links(step)]
        folders = [sorted(file.glob("*.py")) if file.is_dir() else [file] for file in files]
        code = "\n".join(file.read_text() for files in folders for file in files)
        for name in re.findall(r"`(?:tasks\.)?([A-Z]\w+|\w+_\w+)(?:\(.*?\)| = True|\.\w+)?`", step):
            seen += 1
            gone += [] if re.search(rf"\b{name}\b", code) else [f"{name}: {step.splitlines()[0]}"]
    assert gone == []
    assert seen > 25


@pytest.mark.promise("File names below start there", "tasks/README.md#the-life-of-a-partition")
def test_the_files_on_the_way_of_a_partition_are_those_that_a_run_writes(tmp_path: Path) -> None:
    way = section("The life of a partition")
    make_sample("toy", tmp_path / "data", 1000)
    job = make_job(
        {
            "source": {"path": str(tmp_path / "data")},
            "features": [{"columns": ["name"], "ops": [{"op": "Categorify"}]}],
            "output": {"path": str(tmp_path / "out" / "toy"), "files": 1},
            "run": {"exchange": "disk", "profile": True},
        }
    )
    request, pool = job.request("pandas"), LocalPool(1)
    seen: set[str] = set()
    with request.staging.hold_lock():
        done = []
        for stage in (ingest.ingest, statistics.statistics):
            done.append(stage(request, pool))
        for stage in (transform.transform, shuffle_write.shuffle_write):
            done.append(stage(request, "", pool))
            seen |= {str(p.relative_to(request.staging.folder)) for p in request.staging.folder.rglob("*.*")}
        with commit.CommitPreparation(request, report_of(request)) as closing:
            commit.commit(request, done, closing=closing)
    seen |= {str(p.relative_to(tmp_path / "out" / "toy")) for p in (tmp_path / "out" / "toy").iterdir()}
    named = [
        name for name in re.findall(r"`([\w./-]+\.(?:json|vocab|arrow|parquet|html))`", way) if "train" not in name
    ]
    assert request.staging.folder == tmp_path / "out" / ".toy.rowmill"
    assert len(named) >= 9
    assert [name for name in named if not any(path.endswith(name) for path in seen)] == []


@pytest.mark.promise("The commands, in the order of the files", "tests/bench/README.md#on-two-cores")
def test_the_benchmarks_that_are_named_are_programs() -> None:
    text = (ROOT / "tests" / "bench" / "README.md").read_text()
    named = set(re.findall(r"python -m tests\.bench\.(\w+)", text))
    programs = {path.stem for path in (ROOT / "tests" / "bench").glob("*.py") if "__main__" in path.read_text()}
    assert named <= programs
    assert programs - named <= {"rowmill_run"}, "a program that the page does not name"


def test_the_changelog_has_the_version_of_the_package() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    assert version
    headings = re.findall(r"^## (.+)$", (ROOT / ".github" / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert version[1] in headings


@pytest.mark.promise("pip install -e '.[dev]'", ".github/CONTRIBUTING.md#set-up")
@pytest.mark.promise("ruff check && ruff format --check && mypy", ".github/CONTRIBUTING.md#lint-and-types")
@pytest.mark.promise("runs the same tests on GPUs", ".github/CONTRIBUTING.md#tests")
def test_a_contributor_finds_what_the_page_names() -> None:
    text = (ROOT / ".github" / "CONTRIBUTING.md").read_text()
    extras = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    for extra in re.findall(r"\.\[([\w,]+)\]", text):
        assert all(re.search(rf"^{name} = \[", extras, flags=re.MULTILINE) for name in extra.split(","))
    for tool in ("ruff", "mypy", "pytest"):
        assert re.search(rf'^    "{tool}\b', extras, flags=re.MULTILINE)


@pytest.mark.promise("how this was measured", "README.md#on-gpus")
def test_figures_are_those_of_the_benchmarks() -> None:
    readme, text = (ROOT / "README.md").read_text(), (ROOT / "tests" / "bench" / "README.md").read_text()
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]] for row in text.splitlines() if row.startswith("| recipe toy")
    ]
    seconds = {row[0].partition(" (")[0]: row[1] for row in rows}
    assert f"takes {seconds['recipe toy, 788 M rows on one']} s on one H200" in readme.replace("\n", " ")
    assert f"20 million take {seconds['recipe toy, 20 M rows, all of them shuffled']} s on two cores" in readme.replace(
        "\n", " "
    )


@pytest.mark.promise("`--gpus` takes the numbers of the GPUs", "tests/bench/README.md#on-gpus")
def test_dates_of_the_benchmarks_are_those_of_their_files() -> None:
    text = (ROOT / "tests" / "bench" / "README.md").read_text()
    rows = re.findall(r"\| (\d{4}-\d\d-\d\d) \| \[[^\]]*\]\(([^)]+)\)", text)
    wrong = []
    for date, target in rows:
        recorded = json.loads((ROOT / "tests" / "bench" / target).read_text())
        if recorded.get("date", date) != date:
            wrong.append((target, date, recorded["date"]))
    assert wrong == []
    assert len(rows) > 10
