"""Jobs, outputs and fitted workflows that are damaged or hostile: an error that names the file and the field."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rowmill.cli import app
from typer.testing import CliRunner

from flows.job.job import make_application
from tasks.errors import DataError
from tasks.manifest import Manifest
from tasks.storage.documents import seal
from tasks.workflow import Workflow
from tests.faults.damaged import _whole_output, outcomes, wrong
from tests.faults.rounds import Rounds

SAMPLE, NIGHTLY = range(12), range(600)


@pytest.mark.xdist_group("rounds")
@pytest.mark.parametrize("kind", ["jobs", "folders"])
def test_what_is_damaged_is_refused_or_read(kind: str, tmp_path: Path, rounds: Rounds) -> None:
    found = outcomes(kind, SAMPLE, tmp_path, rounds)
    assert (len(found), wrong(found)) == (len(SAMPLE), {})


@pytest.mark.nightly
@pytest.mark.xdist_group("rounds")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["jobs", "folders"])
def test_hundreds_of_damaged_ones_are_refused_or_read(kind: str, tmp_path: Path, rounds: Rounds) -> None:
    found = outcomes(kind, NIGHTLY, tmp_path, rounds)
    assert (len(found), wrong(found)) == (len(NIGHTLY), {})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _whole_output(tmp_path_factory.mktemp("folders"))


@pytest.fixture
def out(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "out"))


def edited(path: Path, change: Callable[[Any], Any], sealed: bool = True) -> None:
    """The JSON file changed, with the digests that it and the workflow then have."""
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(seal(data) if sealed and "digest" in data else data))
    if path.name == "state.json":
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        edited(path.parent / "workflow.json", lambda workflow: workflow.update(state=digest))


def verify(out: Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["verify", str(out)], env={"COLUMNS": "300"})
    return done.exit_code, done.stdout + done.stderr


@pytest.mark.promise("with a digest of itself: rows in, dropped and out")
def test_a_changed_schema_in_the_manifest_is_noticed(out: Path) -> None:
    edited(out / "_manifest.json", lambda m: m["schema"][0].update(dtype="float64"), sealed=False)
    status, said = verify(out)
    assert (status, "_manifest.json was changed since it was written" in said) == (1, True)
    with pytest.raises(DataError, match=r"_manifest.json was changed since it was written"):
        Manifest.load(out)


def test_a_manifest_that_is_sealed_again_is_compared_with_the_files(out: Path) -> None:
    edited(out / "_manifest.json", lambda m: m["schema"][0].update(dtype="float64"))
    assert "has float in column 'x'" in verify(out)[1].replace("float32", "float")
    edited(out / "_manifest.json", lambda m: m["schema"][0].update(dtype="float32", name="y"))
    assert "column 'y', unlike what the manifest says" in verify(out)[1]


def test_rows_that_a_part_does_not_have_are_noticed(out: Path) -> None:
    def move(manifest: Any) -> None:
        manifest["parts"][0]["rows"] += 1
        manifest["parts"][1]["rows"] -= 1

    edited(out / "_manifest.json", move)
    assert "has 150 rows, the manifest says 151" in verify(out)[1]


MANIFESTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "an absolute path": (lambda m: m["parts"][0].update(path="/etc/passwd"), "parts[0].path"),
    "a path that leads out": (lambda m: m["parts"][0].update(path="../x.parquet"), "parts[0].path"),
    "rows as text": (lambda m: m["rows"].update(out="300"), "rows.out"),
    "rows below zero": (lambda m: m["parts"][1].update(rows=-1), "parts[1].rows"),
    "parts as a map": (lambda m: m.update(parts={"a": 1}), "parts"),
    "a type that is none": (lambda m: m["schema"][2].update(dtype="flaot"), "schema[2].dtype"),
    "a column twice": (lambda m: m["schema"].append(m["schema"][0]), "schema"),
    "no output": (lambda m: m.pop("output"), "output"),
    "stages as a list": (lambda m: m.update(stages=[1]), "stages"),
}


@pytest.mark.promise("exit status 0 whole, 1 damaged (each part is named), 2 not an output")
@pytest.mark.parametrize("case", MANIFESTS)
def test_a_hostile_manifest_is_refused_by_its_field(case: str, out: Path) -> None:
    change, field = MANIFESTS[case]
    edited(out / "_manifest.json", change)
    with pytest.raises(DataError) as caught:
        Manifest.load(out)
    assert caught.value.what == "_manifest.json is damaged"
    assert caught.value.where.endswith(f"_manifest.json: {field}")
    assert verify(out)[0] == 1
    assert CliRunner().invoke(app, ["inspect", str(out)]).exit_code == 1


def first_table(state: Any) -> Any:
    return next(v for values in state["fitted"].values() for v in values.values() if isinstance(v, dict))


STATES: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "a graph that is none": ("workflow", lambda w: w.update(graph=[]), "graph"),
    "a node of a later one": ("workflow", lambda w: w["graph"][1].update(parents=[9]), "graph[1].parents"),
    "a node of no kind": ("workflow", lambda w: w["graph"][0].update(kind="boil"), "graph[0].kind"),
    "an operator that is none": ("workflow", lambda w: w["graph"][1]["op"].update(op="Boil"), "graph[1].op"),
    "a parameter that is none": ("workflow", lambda w: w["graph"][1]["op"].update(add=1), "graph[1].op"),
    "a schema that is none": ("workflow", lambda w: w.update(schema="x"), "schema"),
    "a table of an absolute path": (
        "state", lambda s: first_table(s).update(table="/etc/passwd"), "fitted.4/Categorify/name.values.table",
    ),
    "a table that leads out": (
        "state", lambda s: first_table(s).update(table="../x.vocab"), "fitted.4/Categorify/name.values.table",
    ),
    "values that are a list": ("state", lambda s: s.update(fitted=[]), "fitted"),
    "nothing of a step": ("state", lambda s: s["fitted"].pop("2/Normalize/x"), "fitted"),
}  # fmt: skip


@pytest.mark.parametrize("case", STATES)
def test_a_hostile_workflow_is_refused_by_its_field(case: str, out: Path) -> None:
    name, change, field = STATES[case]
    edited(out / "_workflow" / f"{name}.json", change)
    with pytest.raises(DataError) as caught:
        Workflow.load(out)
    assert caught.value.what == f"{name}.json is damaged"
    assert caught.value.where.endswith(f"{name}.json: {field}")


@pytest.mark.promise("once; every table is checked")
def test_a_table_that_is_a_link_is_refused(out: Path, tmp_path: Path) -> None:
    table = next((out / "_workflow").glob("*.vocab"))
    table.rename(tmp_path / "elsewhere")
    table.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError) as caught:
        Workflow.load(out)
    assert "is a link" in caught.value.why


def test_learned_values_of_another_kind_end_in_an_error_that_names_the_operator(out: Path) -> None:
    edited(out / "_workflow" / "state.json", lambda s: s["fitted"]["2/Normalize/x"].update(mean="high"))
    frame = pa.table({"x": [0.5], "name": ["n1"], "row": [1], "label": [True]})
    with pytest.raises(DataError, match="Normalize of 'x' failed"):
        Workflow.load(out).transform(frame)


def test_a_changed_workflow_is_not_applied(out: Path, tmp_path: Path) -> None:
    edited(out / "_workflow" / "workflow.json", lambda w: w["source"].update(filter="x > 0"), sealed=False)
    with pytest.raises(DataError, match=r"workflow.json is damaged"):
        make_application({"fitted": str(out), "source": {"path": "in"}, "output": {"path": str(tmp_path / "new")}})


def test_a_latest_that_leads_out_is_refused(out: Path) -> None:
    (out / "_latest").write_text("../../etc")
    with pytest.raises(DataError, match=r"_latest is damaged"):
        Manifest.load(out)
