"""Frames where a side table is meant: what they give, how they are saved, where they are refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job.job import make_job
from flows.job.refit_job import make_refit
from tasks import ops
from tasks.core.settings import Output, Run, Source
from tasks.dataset import Dataset
from tasks.engines.convert.libraries import to_cudf
from tasks.errors import DataError, JobError
from tasks.job.apply_fitted import make_applying_request
from tasks.job.request import make_request
from tasks.workflow import Workflow
from tests.stages import run_stages
from tests.tasks.ops.fitting import transformed

SIDE = pa.table({"id": [3, 1, 7], "colour": ["red", "blue", None], "size": [1.5, None, 0.0]})
ROWS = pa.table({"id": [1, 9, 3]})
JOINED = {"id": [1, 9, 3], "colour": ["blue", None, "red"], "size": [None, None, 1.5]}


def kinds(table: pa.Table, engine: str) -> list[Any]:
    frames = [table, table.to_pandas(), table.to_pandas(types_mapper=pd.ArrowDtype)]
    return [*frames, to_cudf(table)] if engine == "cudf" else frames


def sparse(values: list[list[float]]) -> Any:
    return pytest.importorskip("scipy.sparse").csr_matrix(np.array(values))


def test_a_frame_joins_as_a_file_does(engine: str) -> None:
    for frame in kinds(SIDE, engine):
        assert transformed(["id"] >> ops.JoinExternal(frame, on="id"), ROWS, engine) == JOINED


@pytest.mark.promise(
    "It counts as it was when the operator was made, is saved with the workflow, and is refused in a job"
)
def test_the_frame_counts_as_it_was(engine: str) -> None:
    frame = pd.DataFrame({"id": [1, 2], "n": [10, 20]})
    join = ops.JoinExternal(frame, on="id")
    frame.loc[0, "n"] = 99
    frame["n"].array[:] = 99
    assert transformed(["id"] >> join, pa.table({"id": [1, 2]}), engine) == {"id": [1, 2], "n": [10, 20]}


@pytest.mark.promise(
    "It counts as it was when the operator was made, is saved with the workflow, and is refused in a job"
)
def test_a_saved_workflow_has_the_frame_and_can_learn_again(engine: str, tmp_path: Path) -> None:
    made = Workflow(["id"] >> ops.JoinExternal(SIDE, on="id", columns=["colour"])).fit(Dataset(ROWS, engine=engine))
    made.save(tmp_path / "fitted")
    loaded = Workflow.load(tmp_path / "fitted")
    expected = {"id": [1, 9, 3], "colour": ["blue", None, "red"]}
    assert loaded.transform(ROWS).to_pydict() == expected
    loaded.refit(Dataset(ROWS, engine=engine))
    assert loaded.changes["steps"] == {}
    assert loaded.fit(Dataset(ROWS, engine=engine)).transform(ROWS).to_pydict() == expected
    assert pickle.loads(pickle.dumps(loaded)).transform(ROWS).to_pydict() == expected  # noqa: S301
    loaded.save(tmp_path / "again")
    graphs = [json.loads((tmp_path / name / "workflow.json").read_text())["graph"] for name in ("fitted", "again")]
    assert graphs[0] == graphs[1]
    assert graphs[0][-1]["op"]["table"]["columns"] == {"id": "int64", "colour": "string", "size": "float64"}


def test_a_saved_workflow_is_applied_by_a_run(engine: str, tmp_path: Path) -> None:
    Workflow(["id"] >> ops.JoinExternal(SIDE, on="id")).fit(Dataset(ROWS, engine=engine)).save(tmp_path / "fitted")
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    source, output = Source(path=str(tmp_path / "rows.parquet")), Output(path=str(tmp_path / "out"), shuffle="none")
    run_stages(make_applying_request(source, tmp_path / "fitted", output, Run(), engine))
    assert pq.read_table(tmp_path / "out").to_pydict() == JOINED


def test_a_run_learns_on_top_of_an_output_whose_workflow_has_a_frame(engine: str, tmp_path: Path) -> None:
    graph = ["id"] >> ops.JoinExternal(SIDE, on="id", columns=["colour"])
    nodes = graph["id"] + (graph["colour"] >> ops.Categorify())
    Workflow(nodes).fit_transform(Dataset(ROWS, engine=engine)).to_parquet(str(tmp_path / "out"))
    pq.write_table(pa.table({"id": [7, 3, 1]}), tmp_path / "new.parquet")
    output = {"path": str(tmp_path / "next"), "shuffle": "none"}
    refit = make_refit(
        {"base": str(tmp_path / "out"), "source": {"path": str(tmp_path / "new.parquet")}, "output": output}
    )
    run_stages(refit.request(engine))
    assert pq.read_table(tmp_path / "next").to_pydict() == {"id": [7, 3, 1], "colour": [1, 4, 3]}


def test_equal_content_has_one_fingerprint_in_whatever_frame(tmp_path: Path) -> None:
    def fingerprint(frame: Any) -> str:
        source, output = Source(path=str(tmp_path / "data.parquet")), Output(path=str(tmp_path / "out"))
        graph = ["id"] >> ops.JoinExternal(frame, on="id")
        return make_request(source, graph, output, Run(), "pandas").state_fingerprint("plan")

    cut = pa.concat_tables([SIDE.slice(0, 1), SIDE.slice(1)])
    more = pa.concat_tables([SIDE, SIDE]).slice(3)
    assert len({fingerprint(frame) for frame in (SIDE, SIDE.to_pandas(), cut, more)}) == 1
    assert fingerprint(SIDE.slice(0, 2)) != fingerprint(SIDE)
    assert ops.JoinExternal(SIDE, on="id") == ops.JoinExternal(cut, on="id") != ops.JoinExternal(more[1:], on="id")


@pytest.mark.promise(
    "It counts as it was when the operator was made, is saved with the workflow, and is refused in a job"
)
def test_a_job_refuses_frames() -> None:
    for table in (SIDE, ops.JoinExternal(SIDE, on="id").to_json()["table"]):
        job = {
            "source": {"path": "x.parquet"},
            "output": {"path": "out"},
            "features": [{"columns": ["id"], "ops": [{"op": "JoinExternal", "table": table, "on": "id"}]}],
        }
        with pytest.raises(JobError, match=r"(?s)has a frame in memory.*features\[0\].ops\[0\].*Parquet file"):
            make_job(job).graph()


def test_what_is_no_frame_is_named() -> None:
    with pytest.raises(JobError, match=r"JoinExternal\(table\): needs a text or a frame, not 3"):
        ops.JoinExternal(3, on="id")
    with pytest.raises(JobError, match=r"ColumnSimilarity\(left\[0\]\[0\]\): needs a whole number, not 'a'"):
        ops.ColumnSimilarity([["a"]])
    with pytest.raises(DataError, match="two columns 'id'"):
        ops.JoinExternal(pa.table([[1], [2]], ["id", "id"]), on="id")
    saved = ops.JoinExternal(SIDE, on="id").to_json()
    with pytest.raises(JobError, match=r"(?s)frame of a side table is not here.*Workflow.load"):
        Workflow(["id"] >> ops.make_operator(saved)).fit(ROWS)


WEIGHTS = [[0.5, 2.0, 0.0], [0.0, 1.0, -3.0], [0.0, 0.0, 0.0]]
PAIRS = pa.table({"a": [0, 0, 1, 2, 1], "b": [0, 1, 1, 0, 0]})


def test_sparse_matrices_and_frames_with_weights(engine: str) -> None:
    lists = pa.table({"features": [[1, 0], [2, 1], []], "weights": [[2.0, 0.5], [-3.0, 1.0], None]})
    for features in [sparse(WEIGHTS), sparse(WEIGHTS).tocoo(), *kinds(lists, engine)]:
        nodes = [["a", "b"]] >> ops.ColumnSimilarity(features, metric="inner")
        assert transformed(nodes, PAIRS, engine) == {"a_b_sim": [4.25, 2.0, 10.0, 0.0, 2.0]}
    counts = pa.table({"any": [[0, 0, 1], [1], None]})
    for features in kinds(counts, engine):
        nodes = [["a", "b"]] >> ops.ColumnSimilarity(features, metric="inner")
        assert transformed(nodes, PAIRS, engine) == {"a_b_sim": [5.0, 1.0, 1.0, 0.0, 1.0]}


@pytest.mark.promise("a sparse matrix of SciPy or CuPy")
@pytest.mark.parametrize("metric", ["cosine", "tfidf"])
def test_weighted_metrics_are_those_of_scikit_learn(metric: str, engine: str) -> None:
    rng = np.random.default_rng(5)
    left, right = (rng.integers(-3, 4, (n, 15)) * rng.random((n, 15)) for n in (30, 20))
    a, b = rng.integers(0, 30, 200), rng.integers(0, 20, 200)
    x, y = sparse(left), sparse(right)
    if metric == "tfidf":
        text = pytest.importorskip("sklearn.feature_extraction.text")
        x, y = (text.TfidfTransformer().fit_transform(side) for side in (x, y))
    expected = pytest.importorskip("sklearn.metrics.pairwise").cosine_similarity(x, y)[a, b]
    nodes = [["a", "b"]] >> ops.ColumnSimilarity(sparse(left), sparse(right), metric=metric)
    made = transformed(nodes, pa.table({"a": a, "b": b}), engine)["a_b_sim"]
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-7)


def test_features_are_saved_with_the_workflow(engine: str, tmp_path: Path) -> None:
    operator = ops.ColumnSimilarity(sparse(WEIGHTS), [[1], [0, 2]], metric="inner")
    Workflow([["a", "b"]] >> operator).fit(Dataset(PAIRS, engine=engine)).save(tmp_path / "fitted")
    loaded, expected = Workflow.load(tmp_path / "fitted"), [2.0, 0.5, -3.0, 0.0, 1.0]
    assert loaded.transform(PAIRS)["a_b_sim"].to_pylist() == expected
    assert loaded.fit(Dataset(PAIRS, engine=engine)).transform(PAIRS)["a_b_sim"].to_pylist() == expected


def test_weights_that_do_not_fit_are_named() -> None:
    cases = {
        r"row 1 of the feature table has 1 features and 2 weights": ([[0], [1]], [[1.0], [1.0, 2.0]]),
        r"a weight of the feature table is null or not finite": ([[0], [1]], [[1.0], [None]]),
        r"feature ids are integers from 0": ([[-1]], [[1.0]]),
    }
    for message, (features, weights) in cases.items():
        operator = ops.ColumnSimilarity(pa.table({"features": features, "weights": weights}))
        with pytest.raises(DataError, match=message):
            Workflow([["a", "b"]] >> operator).fit(PAIRS)
    with pytest.raises(JobError, match=r"(?s)has 2 list columns.*a frame in memory.*features and weights"):
        Workflow([["a", "b"]] >> ops.ColumnSimilarity(pa.table({"x": [[1]], "y": [[1]]}))).fit(PAIRS)
