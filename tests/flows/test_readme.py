"""The README and the manuals are true: their code runs, their keys, commands and recipes are those that exist."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dask.dataframe
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import rowmill
import yaml

from flows.job.job import make_job, recipes
from infra.clusters.model import Cluster
from tasks import ops
from tasks.core.schema import Tags
from tasks.dataset import Dataset
from tasks.engines.algorithms.reductions import on_host
from tasks.manifest import Manifest
from tasks.workflow import Workflow
from tests.frames import to_list

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
JOBS = (ROOT / "flows" / "README.md").read_text()
APPLY = (ROOT / "flows" / "SERVING.md").read_text()
MANUALS = [page.read_text() for page in sorted((ROOT / "flows").glob("*.md"))]
CLUSTERS = (ROOT / "infra" / "README.md").read_text()


def block(language: str) -> str:
    (text,) = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return str(text)


@pytest.mark.promise("python3 -m venv .venv && . .venv/bin/activate && pip install -e . && rowmill demo")
def test_the_two_commands_stand_on_the_first_screen() -> None:
    first = README.splitlines()[:20]
    assert "    python3 -m venv .venv && . .venv/bin/activate && pip install -e . && rowmill demo" in first
    install, tests = ". .venv/bin/activate && pip install -e '.[test]'", 'pytest -m "system or not system"'
    assert f"    python3 -m venv .venv && {install} && {tests}" in first
    assert f"{tests} || status=$?" in (ROOT / ".ci" / "run").read_text().splitlines()


@pytest.mark.promise(
    'workflow.fit_transform(Dataset("data/*.parquet")).to_parquet("out", shuffle="full", seed=0, files=8)'
)
def test_the_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.sample import make_sample

    make_sample("toy", tmp_path / "data", 1000)
    make_sample("toy", tmp_path / "new", 100, seed=1)
    monkeypatch.chdir(tmp_path)
    exec(block("python"), {})

    assert Manifest.load("out").rows["out"] == 1000
    assert len(Manifest.load("out").parts) == 8
    assert sum(pq.read_metadata(part).num_rows for part in Path("out-new").glob("*.parquet")) == 100


@pytest.mark.promise("A job is a YAML file.", "README.md#as-a-job")
def test_the_job_is_a_job() -> None:
    assert make_job(yaml.safe_load(block("yaml"))).output.files == 8
    text, *_ = re.findall(r"```yaml\n(.*?)```", JOBS, re.DOTALL)
    assert make_job(yaml.safe_load(text)).output.files == 8


@pytest.mark.promise(
    "`rowmill new data/toy > job.yaml` looks at the data and drafts one, with the reason of each decision"
)
def test_the_job_of_the_readme_is_the_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.draft.draft import draft
    from flows.sample import make_sample

    make_sample("toy", tmp_path / "data" / "toy", 1_000_000)
    monkeypatch.chdir(tmp_path)
    lines = draft("data/toy").splitlines()
    assert block("yaml").splitlines() == [*lines[lines.index("source:") :], "  files: 8"]


def test_the_clusters_are_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, of_host = re.findall(r"```yml\n(.*?)```", CLUSTERS, re.DOTALL)
    (tmp_path / "clusters.yaml").write_text(of_host)
    monkeypatch.setenv("ROWMILL_CLUSTERS", str(tmp_path / "clusters.yaml"))
    kinds = [Cluster.model_validate(yaml.safe_load(line)["cluster"]).kind for line in text.splitlines()]
    assert kinds == ["address", "ssh", "slurm", "kubernetes", "class", "class"]


def test_python_that_is_shown_names_what_exists() -> None:
    """Blocks of `py` are parts of programs: they parse, and what they import is there."""
    blocks = re.findall(r"```py\n(.*?)```", "\n".join([README, *MANUALS]), re.DOTALL)
    assert len(blocks) >= 3
    for text in blocks:
        ast.parse(text)
        for module, name in re.findall(r"from (tasks[\w.]*) import (\w+)", text):
            assert find_spec(module) is not None, module
            assert module == "tasks.loading.torch" or hasattr(import_module(module), name)


@pytest.mark.promise("the outputs of these names, then those with a tag")
def test_the_examples_of_serving_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame({"event_type": ["view", "cart"], "brand": ["zeta", "acme"], "price": [2.0, 4.0]}, index=[7, 9])
    graph = (["brand"] >> ops.Categorify()) + ["price"] + (["event_type"] >> ops.AddTags([Tags.TARGET]))
    Workflow(graph).fit_transform(Dataset(frame, engine="pandas")).to_parquet("out/ecommerce")
    first, second = re.findall(r"```py\n(.*?)```", APPLY.partition("\n## Serving")[2].partition("\n## ")[0], re.DOTALL)
    names: dict[str, Any] = {"Workflow": Workflow, "ops": ops, "pandas": pd, "frame": frame}

    lines = first.splitlines()
    assert [line.partition(" = ")[0] for line in lines[:2]] == ["workflow", "ids"]
    exec("\n".join(lines[:2]), names)
    _, values, _, chosen = (eval(line, names) for line in lines[2:])
    assert values["brand"].tolist() == ["zeta", "acme"]
    assert list(chosen.output_schema) == ["price", "brand"]
    assert list(names["ids"].index) == [7, 9]
    exec(second, names)
    assert names["workflow"].transform(frame).to_dict("list") == {
        "price": [2.38, 4.76], "brand": ["zeta", "acme"], "country": ["IT", "DE"],
    }  # fmt: skip


def test_the_recipes_are_those_that_are_shipped() -> None:
    assert set(re.findall(r"\(recipes/(\w+)\.yaml\)", JOBS)) == set(recipes())


def test_the_commands_exist() -> None:
    from rowmill.cli import app

    known = {command.callback.__name__ for command in app.registered_commands if command.callback}
    section = JOBS.partition("## Commands")[2].partition("## ")[0]
    assert set(re.findall(r"^    rowmill (\w+)", section, re.MULTILINE)) == known


@pytest.mark.promise(
    "of a list of names the fit takes them from a sample", "flows/SERVING.md#work-of-your-own-at-scale"
)
@pytest.mark.promise("an error names its item")
def test_the_code_about_work_of_one_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame({"user": [1, 2, 1], "time": [1, 2, 3], "price": [1.0, 2.0, 5.0], "stock": [3, 5, 8]})
    Path("data").mkdir()
    frame.to_parquet("data/0.parquet")
    section = APPLY.partition("\n## Work of your own at scale")[2].partition("\n## ")[0]
    names = {name: getattr(rowmill, name) for name in rowmill.__all__} | {"frame": frame, "numpy": np, "dask": dask}
    if engine == "cudf":
        change = "result.u.map_blocks(cupy.asnumpy)"
        assert f"On a GPU write `{change}`." in section
        section, names["cupy"] = section.replace("(result.u,", f"({change},"), pytest.importorskip("cupy")
    for code in re.findall(r"```py\n(.*?)```", section, re.DOTALL):
        exec(code, names)
    assert sorted(to_list(names["prices"].head()["price"])) == [1.0, 2.0, 3.0]
    assert len(names["fits"]) == 2
    assert names["array"].shape == (3, 3)
    assert np.array_equal(pd.read_parquet("u"), on_host(names["result"].u.compute()))
