"""The recipe pca through the real flow: components are those of numpy's SVD, fits those of separate least squares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.manifest import Manifest
from tasks.workflow import Workflow
from tests.flows.runs import rows_of
from tests.flows.test_recipes import run_recipe, source_of

pytestmark = pytest.mark.xdist_group("flows")
ROWS, COLUMNS = 4_000, 60


@pytest.mark.promise("principal components, and a regression on every pair of columns")
def test_pca(tmp_path: Path, run_alone: Any) -> None:
    (out,) = run_recipe("pca", tmp_path, run_alone, ROWS, f"source.sample.columns={COLUMNS}", "output.files=3")
    source = source_of(tmp_path / "data" / "wide")
    names = [f"x{j:04d}" for j in range(COLUMNS)]
    matrix, y = source[names].to_numpy(), source["y"].to_numpy()
    centred = matrix - matrix.mean(axis=0)
    _, singular, axes = np.linalg.svd(centred, full_matrices=False)
    state = Workflow.load(out).state
    assert state is not None
    (found,) = (v for k, v in state.values.items() if "/PCA/" in k)
    loadings = np.stack([found["loadings"][f"pca_{i}"].to_numpy() for i in range(10)])
    (pairs,) = (v["pairs"].to_pandas() for k, v in state.values.items() if "/PairwiseRegression/" in k)

    assert found["components"]["singular_value"].to_numpy() == pytest.approx(singular[:10], rel=1e-10)
    for ours, theirs in zip(loadings[:8], axes[:8], strict=True):  # eight hidden factors; noise has no axes of its own
        assert np.abs(np.outer(ours, ours) - np.outer(theirs, theirs)).max() < 1e-8

    rows = rows_of(out).to_pandas()
    back, there = (np.lexsort((f["x0000"].to_numpy(), f["x0001"].to_numpy())) for f in (rows, source))
    assert np.array_equal(rows["y"].to_numpy()[back], y[there])
    scores = rows[[f"pca_{i}" for i in range(8)]].to_numpy()[back]
    assert np.abs(scores - (centred @ loadings[:8].T)[there]).max() < 1e-9 * singular[0]
    assert np.array_equal(rows[names[:50]].to_numpy()[back], matrix[there][:, :50])

    assert len(pairs) == 50 * 49 // 2
    assert pairs["r2"].is_monotonic_decreasing
    for pair in pairs.iloc[::150].to_dict("records"):
        chosen = centred[:, [names.index(pair["first"]), names.index(pair["second"])]]
        coefficients = np.linalg.lstsq(chosen, y - y.mean())[0]
        assert [pair["first_coefficient"], pair["second_coefficient"]] == pytest.approx(coefficients, rel=1e-8)
    assert [part["rows"] for part in Manifest.load(out).parts] == [1_333, 1_333, 1_334]
