"""What people do with an output afterwards: Dask frames of it and of a workflow, and the page that shows how."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job.job import RECIPES, load_job
from flows.sample import make_sample
from tasks import ops
from tasks.dataset import Dataset
from tasks.workflow import Workflow
from tests.stages import run_stages


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Path:
    """A folder in which the recipe ecommerce ran on 60,000 rows."""
    folder = tmp_path_factory.mktemp("shop")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        make_sample("ecommerce", folder / "data/ecommerce/train", 60_000, 0)
        make_sample("ecommerce", folder / "data/ecommerce/valid", 12_000, 1)
        run_stages(load_job(RECIPES / "ecommerce.yaml").request(engine))
    return folder


def host(frame: Any) -> pd.DataFrame:
    return frame.to_pandas() if hasattr(frame, "to_pandas") else frame


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Path:
    """An output of three files of 70,000 rows."""
    folder = tmp_path_factory.mktemp("large") / "out"
    number = np.arange(210_000)
    table = pa.table({"brand": pa.array(number % 7, pa.int32()), "target": number % 3 == 0, "price": number / 8})
    nodes = ["brand", "price", *[["target"] >> ops.Lambda(expression="cast(_, 'int8')")]]
    Workflow(nodes).fit_transform(Dataset(table, engine=engine)).to_parquet(folder, seed=1, files=3)
    return folder


@pytest.mark.promise("with one partition for each run of row groups that fits `partition_size`")
def test_an_output_is_a_dask_frame_of_known_partitions(out: Path, engine: str) -> None:
    dataset = Dataset(out, engine=engine, partition_size="100KB")
    ddf = dataset.to_ddf()
    assert (ddf.npartitions, dataset.npartitions) == (3, 3)
    assert list(ddf.columns) == ["brand", "price", "target"]
    parts = [part.compute(scheduler="sync") for part in ddf.partitions]
    assert [len(part) for part in parts] == [p.rows for p in dataset.plan.partitions] == [70_000, 70_000, 70_000]
    assert ddf._meta.dtypes.astype(str).to_dict() == parts[0].dtypes.astype(str).to_dict()


def test_group_by_and_join_are_those_of_pandas(out: Path, engine: str) -> None:
    ddf = Dataset(out, engine=engine, partition_size="100KB").to_ddf()
    with dask.config.set({"scheduler": "sync", "dataframe.shuffle.method": "tasks"}):
        found = host(ddf.groupby("brand").agg({"target": "sum", "price": "max"}).compute()).sort_index()
        joined = ddf[["brand", "target"]].merge(ddf.groupby("brand")["price"].max().reset_index(), on="brand")
        prices = host(joined.compute())["price"].astype(float)
    assert found["target"].astype(int).to_dict() == dict.fromkeys(range(7), 10_000)
    most = {brand: (209_993 + brand) / 8 for brand in range(7)}
    assert found["price"].astype(float).to_dict() == most
    assert prices.value_counts().to_dict() == dict.fromkeys(most.values(), 30000)


def test_a_workflow_gives_a_dask_frame_too(engine: str, tmp_path: Path) -> None:
    for part in range(3):
        pq.write_table(pa.table({"x": [float(part), 1.0], "k": ["a", "b"]}), tmp_path / f"{part}.parquet")
    dataset = Dataset(tmp_path, engine=engine)
    made = Workflow((["x"] >> ops.NormalizeMinMax()) + ["k"]).fit(dataset).transform(dataset)
    ddf = made.to_ddf()
    assert ddf.npartitions == dataset.npartitions
    with dask.config.set({"scheduler": "sync"}):
        found = host(ddf.groupby("k").agg({"x": "sum"}).compute()).sort_index()
        assert found["x"].astype(float).to_dict() == {"a": 1.5, "b": 1.5}
        ddf.to_parquet(tmp_path / "out")
    assert pq.read_table(tmp_path / "out")["x"].to_pylist() == [0.0, 0.5, 0.5, 0.5, 1.0, 0.5]


@pytest.mark.promise("with a `distributed.Client` the workers read")
def test_on_a_cluster_the_workers_read_group_join_and_write(
    client: Any, out: Path, tmp_path: Path, engine: str
) -> None:
    dataset = Dataset(out, engine=engine, partition_size="100KB")
    workflow = Workflow((["price"] >> ops.NormalizeMinMax()) + ["brand", "target"]).fit(dataset)
    rows, features = dataset.to_ddf(), workflow.transform(dataset).to_ddf()
    most = rows.groupby("brand").agg({"price": "max"}).reset_index()
    joined = features.rename(columns={"price": "share"}).merge(most, on="brand", how="left")
    joined.to_parquet(tmp_path / "joined")
    found = pq.read_table(tmp_path / "joined").to_pandas().astype({"brand": int, "price": float, "share": float})
    assert len(found) == 210_000
    assert found.groupby("brand")["price"].unique().map(list).to_dict() == {b: [(209_993 + b) / 8] for b in range(7)}
    assert (found["share"].min(), found["share"].max()) == (0.0, 1.0)
    assert found.groupby("brand")["target"].sum().astype(int).to_dict() == dict.fromkeys(range(7), 10_000)


@pytest.mark.system  # the page starts a cluster
@pytest.mark.promise("grouped, joined and written")
def test_the_page_runs_as_it_stands(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(shop)
    blocks = re.findall(r"```python\n(.*?)```", (RECIPES / "follow-up.md").read_text(), re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, Any] = {}
    with dask.config.set({"dataframe.shuffle.method": "tasks"}):
        for block in blocks:
            exec(block, names)
    rows, kept = pq.read_table(shop / "follow-up/rows"), pq.read_table(shop / "out/ecommerce/train")
    assert rows.num_rows == kept.num_rows
    assert rows["target"].to_pandas().sum() == kept["target"].to_pandas().sum()
    assert {"bought", "events"} <= set(rows.column_names)
    assert "events" in capsys.readouterr().out
    assert str(host(names["names"])["brand"].dropna().iloc[0]).islower()
    assert pq.read_table(shop / "follow-up/new").num_rows > 1
    assert pq.read_table(shop / "follow-up/again").num_rows == 12_000
