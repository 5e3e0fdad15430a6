"""Looking is not running: commands that show an output import nothing that it names, nor from the current folder."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rowmill.cli import app
from typer.testing import CliRunner

from flows.job.job import make_job
from tasks.errors import HostError
from tasks.graph.saved_workflow import load_fitted
from tasks.storage.documents import seal
from tests.stages import run_stages

OWN = """
from pathlib import Path
import pyarrow as pa
from tasks.core.schema import Column
from tasks.ops.base import Learned, Operator

Path("{trap}").touch()


class Largest(Learned):
    scale: float = 1.0

    def dtype_out(self, column):
        return pa.float64()

    def observe(self, column):
        return float(column.max())

    def merge(self, a, b):
        return max(a, b)

    def finalize(self, partial):
        return {{"largest": partial}}

    def transform(self, column, fitted):
        return column.astype("float64[pyarrow]") / fitted["largest"] * self.scale


class Both(Operator):
    grouped = True

    def outputs(self, unit, schema, fitted):
        return [Column("both", pa.float64())]

    def extra_columns(self, fitting):
        return ("z",)

    def apply(self, columns, unit, fitted, context):
        return {{"both": columns[unit[0]] + columns[unit[1]] + columns["z"]}}


def double(column):
    return column * 2
"""
FEATURES = [
    {"columns": ["x"], "ops": [{"op": "traps:Largest", "scale": 2.0}, {"op": "Normalize"}]},
    {"columns": [["y", "z"]], "ops": [{"op": "traps:Both"}]},
    {"columns": ["y"], "ops": [{"op": "Lambda", "function": "traps:double"}]},
]


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that exists once the module of an output was imported. The module lies in the current folder, with others
    that have the names of libraries."""
    trap = tmp_path / "imported"
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("x,y,z\n1.0,2.0,3.0\n4.0,5.0,6.0\n")
    (tmp_path / "traps.py").write_text(OWN.format(trap=trap))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for version in (1, 2):
        job: dict[str, Any] = {
            "source": {"path": "in/*.csv"},
            "features": FEATURES,
            "output": {"path": f"out{version}", "shuffle": "none", "files": 1},
        }
        run_stages(make_job(job).request("pandas"))
    assert trap.exists()
    trap.unlink()
    sys.modules.pop("traps")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(tmp_path)])
    for name in ("jinja2", "pyarrow", "rich"):
        (tmp_path / f"{name}.py").write_text(OWN.format(trap=trap))
    importlib.invalidate_caches()
    yield trap
    assert not trap.exists()
    assert "traps" not in sys.modules


def shown(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, f"{words}: {result.output} {result.stderr} {result.exception}"
    return result.output


@pytest.mark.promise("import nothing that an output names", "flows/SERVING.md#serving")
def test_commands_that_show_an_output_import_nothing_that_it_names(trap: Path) -> None:
    assert "whole: 2 rows in 1 parts" in shown("verify", "out1")
    text = shown("inspect", "out1")
    assert "Largest" in text
    assert json.loads(shown("inspect", "out1", "--embeddings")) == {}
    assert '"both"' in shown("inspect", "out1", "--merlin")
    lines = shown("lineage", "out1").splitlines()
    assert "x: x, Largest > Normalize" in lines or any(line.startswith("x: ") and "Largest" in line for line in lines)
    assert any(line.startswith("both: ") and "Both" in line for line in lines)
    assert "out1" in shown("report", "out1", "--again")
    assert "out1" in shown("versions", "out1")
    shown("diff", "out1", "out2")


def test_who_applies_it_imports_it(trap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HostError, match="'traps:Largest' cannot be imported"):
        load_fitted(Path("out1"))


def test_an_output_whose_note_is_not_true_runs_nothing(trap: Path) -> None:
    path = Path("out1/_workflow/workflow.json")
    data = json.loads(path.read_text())
    assert sorted(data["noted"]) == ["1", "4"]
    number = next(iter(data["noted"]))
    for note in ({"units": []}, {"units": [], "applying": ["x"], "fitting": [], "kinds": ["registry", "grouped"]}, 5):
        changed = {**data, "noted": {**data["noted"], number: note}}
        path.write_text(json.dumps(seal({k: v for k, v in changed.items() if k != "digest"})))
        result = CliRunner().invoke(app, ["inspect", "out1"])
        assert result.exit_code in (0, 1), result.output
        assert not isinstance(result.exception, (AttributeError, KeyError, TypeError, StopIteration))
