"""What the first release (0.1.0, commit 934f8f3) saved and published loads, verifies and applies today.

That commit wrote `fixtures/first_release.zip` on the CPU. `operators/` holds the workflow of every example of the
contract suite, with the table that it made of `input.parquet`; `outputs/` holds the recipes in source order, with their
samples.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.dataset import Dataset
from tasks.manifest import Manifest
from tasks.sources.output_check import damages
from tasks.workflow import Workflow
from tests.learning import close

ARCHIVE = Path(__file__).with_name("fixtures") / "first_release.zip"
with zipfile.ZipFile(ARCHIVE) as archive:
    OPERATORS = sorted({name.split("/")[1] for name in archive.namelist() if name.endswith("/workflow.json")
                        and name.startswith("operators/")})  # fmt: skip
RECIPES = ["toy", "criteo", "ecommerce", "sessions", "pca"]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first-release")
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(folder)
    return folder


def assert_same(made: pa.Table, expected: pa.Table, tolerance: float = 1e-9) -> None:
    """Equal names and types; equal values, floats up to the tolerance."""
    assert made.schema.remove_metadata() == expected.schema.remove_metadata()
    different = [n for n in made.column_names if not close(made[n].to_pylist(), expected[n].to_pylist(), tolerance)]
    assert different == []


def test_there_is_a_workflow_of_every_operator_of_that_release() -> None:
    assert len({name.rpartition("-")[0] for name in OPERATORS}) == 34


@pytest.mark.parametrize("case", OPERATORS)
def test_a_saved_workflow_gives_what_it_gave(case: str, release: Path) -> None:
    folder = release / "operators"
    workflow = Workflow.load(folder / case)
    assert_same(workflow.transform(pq.read_table(folder / "input.parquet")), pq.read_table(folder / f"{case}.parquet"))


def committed(release: Path, recipe: str) -> list[Path]:
    out = release / "outputs" / "out" / recipe
    return {"criteo": [out / "v0001"], "ecommerce": [out / "train", out / "valid"]}.get(recipe, [out])


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_published_output_is_whole(recipe: str, release: Path) -> None:
    for folder in committed(release, recipe):
        assert damages(folder) == []
        assert sum(part["rows"] for part in Manifest.load(folder).parts) == Manifest.load(folder).rows["out"]


@pytest.mark.parametrize("recipe", ["toy", "criteo", "pca"])
def test_a_published_output_applies_to_its_source(recipe: str, release: Path, engine: str) -> None:
    (folder,) = committed(release, recipe)
    source = {"toy": "toy", "criteo": "criteo", "pca": "wide"}[recipe]
    workflow = Workflow.load(folder)
    data: Any = Dataset(str(release / "outputs" / "data" / source), engine=engine)
    made = pa.concat_tables([pa.Table.from_pandas(f, preserve_index=False) if engine == "pandas" else f.to_arrow()
                             for f in workflow.transform(data).frames()])  # fmt: skip
    written = pa.concat_tables(pq.read_table(folder / part["path"]) for part in Manifest.load(folder).parts)
    for name in written.column_names:
        assert close(made[name].to_pylist(), written[name].to_pylist(), 1e-6), name
