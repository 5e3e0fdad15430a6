"""Each figure has one meaning, whatever the split, the rules of the source and its keys: compared with pandas."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job.job import make_job
from tasks.graph.refit_history import count_learned_rows
from tasks.graph.saved_workflow import read_fitted
from tasks.manifest import Manifest
from tests.stages import run_stages

ROWS = 600
SPLITS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "hash": {"by": "hash", "together": ["user"], "valid": 0.2, "test": 0.1},
    "fraction": {"by": "fraction", "valid": 0.2},
    "column": {"by": "column", "column": "kind", "valid": "b", "test": "c"},
    "moments": {"by": "time", "column": "at", "valid": 400, "test": 500},
    "shares": {"by": "time", "column": "at", "valid": 0.2, "test": 0.1},
    "last": {"by": "last", "column": "at", "together": ["user"], "valid": 1, "test": 1},
}


def rows() -> pd.DataFrame:
    rng = np.random.default_rng(4)
    return pd.DataFrame({
        "id": np.arange(ROWS), "user": rng.integers(0, 40, ROWS), "visit": rng.integers(0, 450, ROWS),
        "kind": rng.choice(["a", "b", "c"], ROWS, p=[0.7, 0.2, 0.1]), "at": np.arange(ROWS), "x": rng.random(ROWS),
    })  # fmt: skip


def job_of(folder: Path, split: dict[str, Any] | None, unique: bool, keys: bool, filter: bool) -> dict[str, Any]:
    source: dict[str, Any] = {"path": str(folder / "in")}
    if split:
        source["split"] = split
    if unique:
        source["unique"] = {"keys": ["visit"]}
    if keys:
        source |= {"keys": ["user"], "sort_by": ["at"]}
    if filter:
        source["filter"] = "x > 0.25"
    return {
        "source": source,
        "features": [{"columns": ["x"], "ops": [{"op": "Normalize"}]}, {"columns": ["id"]}],
        "output": {"path": str(folder / "out"), "files": 1},
        "run": {"report": False, "profile": True},
    }


@pytest.mark.promise("`in` - `other_splits` - `dropped` + `added` = `out`")
@pytest.mark.promise("rows from which statistics learned: of train, after filter, unique, split and down-sampling")
@pytest.mark.promise("never less than its stages together")
@pytest.mark.parametrize("name", SPLITS)
def test_each_figure_is_what_pandas_counts(name: str, tmp_path: Path) -> None:
    frame = rows()
    for number, (unique, keys, filter) in enumerate(product((False, True), repeat=3)):
        (folder := tmp_path / str(number) / "in").mkdir(parents=True)
        for part in range(2):
            table = pa.Table.from_pandas(frame.iloc[part::2], preserve_index=False)
            pq.write_table(table, folder / f"{part}.parquet")
        job = make_job(job_of(tmp_path / str(number), SPLITS[name], unique, keys, filter))
        run_stages(job.request("pandas"))
        left = frame[frame["x"] > 0.25] if filter else frame
        left = left.drop_duplicates("visit") if unique else left
        written: dict[str, int] = {}
        for split in job.source.splits:
            out = Manifest.load(tmp_path / str(number) / "out" / split)
            ids = pq.read_table(f"{out.path}/part-00000.parquet", columns=["id"])["id"].to_pylist()
            assert len(set(ids)) == len(ids)
            written[split] = len(ids)
            expected = {"in": ROWS, "dropped": ROWS - len(left), "added": 0, "out": len(ids)}
            if SPLITS[name]:
                expected["other_splits"] = len(left) - len(ids)
            assert out.rows == expected, (unique, keys, filter, split)
            profile = json.loads((Path(out.path) / "_profile.json").read_text())
            assert profile["rows"] == len(ids)
            assert sum(stage["seconds"] for stage in out.data["stages"].values()) <= out.seconds + 0.01
        assert sum(written.values()) == len(left)
        workflow = next((tmp_path / str(number) / "out").rglob("_workflow"))
        assert count_learned_rows(read_fitted(workflow)["history"]) == written[job.source.splits[0]]
