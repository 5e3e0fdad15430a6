"""Facts about the similarity of two columns by features."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import ops
from tasks.errors import DataError, JobError
from tests.tasks.ops.fitting import transformed

FEATURES = [[0, 1, 2], [2, 1], [], [5], [1, 1, 5]]


def similar(a, b, engine, **parameters):
    table = pa.table({"a": pa.array(a, pa.int64()), "b": pa.array(b, pa.int32())})
    return transformed([["a", "b"]] >> ops.ColumnSimilarity(FEATURES, **parameters), table, engine)["a_b_sim"]


def test_inner_is_the_dot_product_of_the_counts(engine):
    assert similar([0, 0, 0, 4, 4], [1, 2, 3, 4, 3], engine, metric="inner") == [2.0, 0.0, 0.0, 5.0, 1.0]


def test_cosine_of_a_thing_with_itself_is_one_and_without_features_zero(engine):
    made = similar([1, 2, 0], [1, 2, 1], engine, metric="cosine")
    assert made == pytest.approx([1.0, 0.0, 2 / 6**0.5], rel=1e-6)


def test_null_and_unknown_rows_give_null(engine):
    assert similar([None, 0, -1, 5], [0, None, 0, 0], engine) == [None] * 4


def _sparse(rows, width):
    places = [(i, f) for i, row in enumerate(rows) for f in row]
    return pytest.importorskip("scipy.sparse").csr_matrix(
        (np.ones(len(places)), tuple(np.array(places).T)), shape=(len(rows), width)
    )


@pytest.mark.promise(
    "Compare the two things of a group (nested list) `a`, `b` by their features: column `a_b_sim`, float32",
    "tasks/ops/README.md#columnsimilarity",
)
@pytest.mark.parametrize("metric", ["inner", "cosine", "tfidf"])
def test_metrics_are_those_of_scikit_learn(engine, metric):
    rng = np.random.default_rng(7)
    left = [rng.integers(0, 30, n).tolist() for n in rng.integers(0, 12, 40)]
    right = [rng.integers(0, 25, n).tolist() for n in rng.integers(0, 6, 20)]
    a, b = rng.integers(0, 40, 200), rng.integers(0, 20, 200)
    x, y = _sparse(left, 30), _sparse(right, 30)
    if metric == "tfidf":
        text = pytest.importorskip("sklearn.feature_extraction.text")
        x, y = (text.TfidfTransformer().fit_transform(side) for side in (x, y))
    cosine = pytest.importorskip("sklearn.metrics.pairwise").cosine_similarity
    expected = (x @ y.T).toarray() if metric == "inner" else cosine(x, y)
    nodes = [["a", "b"]] >> ops.ColumnSimilarity(left, right, metric=metric)
    made = transformed(nodes, pa.table({"a": a, "b": b}), engine)["a_b_sim"]
    np.testing.assert_allclose(made, expected[a, b], rtol=1e-6, atol=1e-7)


def test_features_of_a_file(engine, tmp_path):
    pq.write_table(pa.table({"name": list("abcde"), "features": FEATURES}), tmp_path / "features.parquet")
    nodes = [["a", "b"]] >> ops.ColumnSimilarity(str(tmp_path / "features.parquet"), metric="inner")
    assert transformed(nodes, pa.table({"a": [0], "b": [4]}), engine) == {"a_b_sim": [2.0]}


def test_what_does_not_fit_is_named(engine):
    table = pa.table({"a": [0], "b": [0.5]})
    with pytest.raises(JobError, match="takes a group of two columns, not 1"):
        transformed(["a"] >> ops.ColumnSimilarity(FEATURES), table, engine)
    with pytest.raises(DataError, match="row numbers, column 'b' is float64"):
        transformed([["a", "b"]] >> ops.ColumnSimilarity(FEATURES), table, engine)
    with pytest.raises(DataError, match="feature ids are integers from 0"):
        transformed([["a", "a"]] >> ops.ColumnSimilarity([[-1]]), table, engine)
