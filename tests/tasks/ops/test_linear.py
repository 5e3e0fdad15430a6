"""Facts about operators on several columns at once, against numpy and scikit-learn."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import engines, ops
from tasks.core.stage_results import StatisticsResult
from tasks.dataset import Dataset
from tasks.engines.algorithms.factors import Factor, merge, principal_axes
from tasks.errors import DataError, JobError
from tasks.graph.binding import Bound
from tasks.graph.learned_text import collect_report_tables
from tasks.ops.base import Context
from tasks.report.artifact import markdown_numbers, stage_markdown
from tasks.workflow import Workflow
from tests.tasks.ops.fitting import learned, transformed


def mixed(rows, columns, seed=0, offset=0.0):
    """Columns that depend on each other, with singular values that are well apart."""
    random = np.random.default_rng(seed)
    return (
        random.normal(size=(rows, columns)) * 2.0 ** np.arange(columns) @ random.normal(size=(columns, columns))
        + offset
    )


def table_of(matrix, names=None):
    return pa.table([pa.array(column) for column in matrix.T], names or [f"x{j}" for j in range(matrix.shape[1])])


def scores_of(made):
    return np.column_stack([np.array(values, float) for values in made.values()])


def fitted_of(nodes, table, engine):
    (fitted,) = Workflow(nodes).fit(Dataset(table, engine=engine)).state.values.values()
    return fitted


def loadings_of(fitted):
    names = fitted["components"]["component"].to_pylist()
    return np.column_stack([fitted["loadings"][name].to_numpy() for name in names])


class TestPCA:
    def test_a_line(self, engine):
        made = transformed(["x", "y"] >> ops.PCA(1), pa.table({"x": [0.0, 3.0, 6.0], "y": [1, 5, 9]}), engine)
        assert made == {"pca_0": [pytest.approx(-5, abs=1e-14), 0.0, pytest.approx(5, abs=1e-14)]}

    def test_what_is_learned(self, engine):
        fitted = fitted_of(
            ["x", "y"] >> ops.PCA(2), pa.table({"x": [-2.0, 2.0, 0.0, 0.0], "y": [0.0, 0.0, -1.0, 1.0]}), engine
        )
        assert fitted["loadings"].to_pydict() == {
            "column": ["x", "y"], "mean": [0.0, 0.0], "mean_rest": [0.0, 0.0], "pca_0": [1.0, 0.0], "pca_1": [0.0, 1.0],
        }  # fmt: skip
        assert fitted["components"].to_pydict() == {
            "component": ["pca_0", "pca_1"],
            "singular_value": [pytest.approx(8**0.5), pytest.approx(2**0.5)],
            "variance": [pytest.approx(8 / 3), pytest.approx(2 / 3)],
            "share": [pytest.approx(0.8), pytest.approx(0.2)],
        }
        assert (fitted["n"], fitted["left_out"], fitted["total_variance"]) == (4, 0, pytest.approx(10 / 3))

    @pytest.mark.parametrize("offset", [0.0, 1e9])
    def test_singular_values_and_projectors_are_those_of_numpy(self, engine, offset):
        matrix = mixed(20_000, 12, offset=offset)
        fitted = fitted_of([f"x{j}" for j in range(12)] >> ops.PCA(5), table_of(matrix), engine)
        exact = matrix - offset  # what is left of the values, without the offset that would cost numpy digits
        _, singular, axes = np.linalg.svd(exact - exact.mean(axis=0), full_matrices=False)
        np.testing.assert_allclose(fitted["components"]["singular_value"], singular[:5], rtol=1e-10)
        ours = loadings_of(fitted)
        np.testing.assert_allclose(ours @ ours.T, axes[:5].T @ axes[:5], atol=1e-8)

    @pytest.mark.promise(
        "Project rows on the principal components of all selected columns: `pca_0` .. "
        "`pca_<n_components - 1>`, float64",
        "tasks/ops/README.md#pca",
    )
    @pytest.mark.parametrize("whiten", [False, True])
    def test_scores_are_those_of_scikit_learn_up_to_sign(self, engine, whiten):
        matrix = mixed(3_000, 6, offset=5.0)
        made = scores_of(
            transformed([f"x{j}" for j in range(6)] >> ops.PCA(4, whiten=whiten), table_of(matrix), engine)
        )
        reference = (
            pytest.importorskip("sklearn.decomposition").PCA(4, whiten=whiten, svd_solver="full").fit_transform(matrix)
        )
        signs = np.sign((made * reference).sum(axis=0))
        np.testing.assert_allclose(made, reference * signs, atol=1e-9 * np.abs(reference).max())

    def test_the_largest_loading_is_positive(self, engine):
        loadings = loadings_of(
            fitted_of([f"x{j}" for j in range(9)] >> ops.PCA(9), table_of(mixed(500, 9, seed=4)), engine)
        )
        largest = np.abs(loadings).argmax(axis=0)
        assert (loadings[largest, range(9)] > 0).all()

    def test_of_equal_loadings_the_first_one_is_positive(self):
        _, axes = principal_axes(np.array([[1.0, -1.0], [0.0, 0.0]]))
        assert axes[:, 0].tolist() == pytest.approx([0.5**0.5, -(0.5**0.5)])

    def test_a_row_with_a_null_gives_nulls_and_is_not_learned_from(self, engine):
        table = pa.table({"x": [0.0, None, 2.0, 9.0, float("nan")], "y": [0, 7, 2, None, 1]})
        made = transformed(["x", "y"] >> ops.PCA(2), table, engine)
        assert made["pca_0"] == [pytest.approx(-(2**0.5)), None, pytest.approx(2**0.5), None, None]
        assert made["pca_1"] == [0.0, None, 0.0, None, None]
        fitted = fitted_of(["x", "y"] >> ops.PCA(2), table, engine)
        assert (fitted["n"], fitted["left_out"], fitted["loadings"]["mean"].to_pylist()) == (2, 3, [1.0, 1.0])

    def test_fewer_rows_than_columns(self, engine):
        matrix = mixed(3, 5)
        fitted = fitted_of([f"x{j}" for j in range(5)] >> ops.PCA(4), table_of(matrix), engine)
        singular = fitted["components"]["singular_value"].to_pylist()
        expected = np.linalg.svd(matrix - matrix.mean(axis=0), compute_uv=False)
        assert singular == [pytest.approx(expected[0]), pytest.approx(expected[1]), 0.0, 0.0]
        assert (loadings_of(fitted)[:, 2:] == 0).all()

    @pytest.mark.parametrize("whiten", [False, True])
    def test_constant_columns_have_no_part(self, engine, whiten):
        table = pa.table({"x": [1.0, 3.0, 5.0], "c": [1e9 + 0.1] * 3, "k": [7, 7, 7]})
        made = transformed(["x", "c", "k"] >> ops.PCA(3, whiten=whiten), table, engine)
        assert made["pca_0"] == ([-1.0, 0.0, 1.0] if whiten else [-2.0, 0.0, 2.0])
        assert made["pca_1"] == made["pca_2"] == [0.0, 0.0, 0.0]

    @pytest.mark.parametrize("whiten", [False, True])
    @pytest.mark.parametrize("rows", [[], [4.0], [None, 4.0], [None]])
    def test_fewer_than_two_rows_give_zeros(self, engine, rows, whiten):
        seen = pa.table({"x": pa.array([*rows, None], pa.float64()), "y": pa.array([*rows, 1.0], pa.float64())})
        other = pa.table({"x": [1.0, None], "y": [2.0, 2.0]})
        made = transformed(["x", "y"] >> ops.PCA(2, whiten=whiten), seen, engine, other)
        assert made == {"pca_0": [0.0, None], "pca_1": [0.0, None]}

    def test_a_column_of_nothing_but_nulls_leaves_no_row(self, engine):
        table = pa.table({"x": [1.0, 2.0], "nothing": pa.nulls(2, pa.float64())})
        assert transformed(["x", "nothing"] >> ops.PCA(1), table, engine) == {"pca_0": [None, None]}

    def test_infinite_values_are_refused(self, engine):
        with pytest.raises(DataError, match=r"(?s)PCA cannot learn from inf in column 'y'.*PCA of 'x\+y'.*row 1"):
            fitted_of(["x", "y"] >> ops.PCA(1), pa.table({"x": [1.0, 2.0], "y": [1.0, math.inf]}), engine)

    def test_more_components_than_columns_are_refused_before_any_row_is_read(self):
        with pytest.raises(JobError, match="PCA cannot make 3 components of 2 columns"):
            Workflow(["x", "y"] >> ops.PCA(3)).output_schema_of(Dataset(pa.table({"x": [1.0], "y": [1.0]})).schema)

    @pytest.mark.parametrize(("given", "said"), [({}, "needs the parameter"), ({"n_components": 0}, "at least 1")])
    def test_bad_parameters(self, given, said):
        with pytest.raises(JobError, match=said):
            ops.PCA(**given)

    def test_text_is_refused(self):
        with pytest.raises(DataError, match="PCA does not take column 't' of type string"):
            Workflow(["x", "t"] >> ops.PCA(1)).output_schema_of(Dataset(pa.table({"x": [1.0], "t": ["a"]})).schema)

    def test_the_schema_is_known_before_and_true_after(self, engine):
        table = pa.table(
            {"x": pa.array([1, 2, 4], pa.int8()), "b": [True, False, True], "f": pa.array([1, 0, 2], pa.float32())}
        )
        workflow = Workflow(["x", "b", "f"] >> ops.PCA(2))
        promised = workflow.output_schema_of(Dataset(table).schema).to_arrow()
        assert promised == pa.schema({"pca_0": pa.float64(), "pca_1": pa.float64()})
        assert workflow.fit(Dataset(table, engine=engine)).transform(table).schema.equals(promised)

    def test_a_thousand_columns_are_bound_once_each_not_in_pairs(self):
        names = [f"x{j}" for j in range(1000)]
        schema = Dataset(pa.table({name: [1.0] for name in names})).schema
        calls = 0

        def count(*_):
            nonlocal calls
            calls += 1

        sys.setprofile(count)
        try:
            bound = Bound(names >> ops.PCA(1000), schema)
            needed = bound.source_columns(bound.targets, training=True)
        finally:
            sys.setprofile(None)
        assert needed == names
        assert calls < 400_000


class TestTheTree:
    """Learned values do not depend on how the rows lie."""

    TABLE = table_of(mixed(997, 5, offset=1e6))
    NAMES = tuple(f"x{j}" for j in range(5))

    @pytest.mark.parametrize("cuts", [(1,), (2, 2, 3), (500,), (100, 300, 600, 990)])
    @pytest.mark.parametrize("backward", [False, True])
    def test_any_split_in_any_order_is_the_whole(self, engine, cuts, backward):
        whole = learned(ops.PCA(5), self.TABLE, self.NAMES, engine)
        split = learned(ops.PCA(5), self.TABLE, self.NAMES, engine, cuts, backward)
        np.testing.assert_allclose(
            split["components"]["singular_value"], whole["components"]["singular_value"], rtol=1e-12
        )
        np.testing.assert_allclose(loadings_of(split), loadings_of(whole), atol=1e-12)
        np.testing.assert_allclose(split["loadings"]["mean"], whole["loadings"]["mean"], rtol=1e-15)

    def test_merge_is_associative_and_commutative_with_a_neutral_element(self):
        def parts(start, stop):
            columns = engines.engine("pandas").from_arrow(self.TABLE.slice(start, stop - start))
            return engines.engine("pandas").factorize_columns(list(columns.values()))

        a, b, c, nothing = parts(0, 10), parts(10, 400), parts(400, 997), parts(5, 5)
        assert nothing.n == 0
        for one, other in ((merge(merge(a, b), c), merge(a, merge(b, c))), (merge(a, b), merge(b, a))):
            assert (one.n, one.left_out) == (other.n, other.left_out)
            np.testing.assert_allclose(one.mean.sum(axis=0), other.mean.sum(axis=0), rtol=1e-15)
            np.testing.assert_allclose(one.r, other.r, atol=1e-12 * np.abs(other.r).max())
        assert merge(a, nothing).r is a.r
        assert merge(nothing, a).r is a.r

    def test_the_factor_is_upper_triangular_with_a_diagonal_that_is_not_negative(self, engine):
        columns = engines.engine(engine).from_arrow(self.TABLE)
        r = engines.engine(engine).factorize_columns(list(columns.values())).r
        assert (np.tril(r, -1) == 0).all()
        assert (np.diag(r) > 0).all()

    def test_partition_sizes_do_not_change_a_bit(self, engine, tmp_path):
        pq.write_table(table_of(mixed(300_000, 4, offset=3.0)), tmp_path / "part-0.parquet", row_group_size=1 << 16)
        made = []
        for size in ("1GB", "2MB", "5MB"):
            dataset = Dataset(str(tmp_path), partition_size=size, engine=engine)
            workflow = Workflow([f"x{j}" for j in range(4)] >> ops.PCA(3)).fit(dataset)
            (fitted,) = workflow.state.values.values()
            scores = np.vstack([np.asarray(f.to_numpy(), float) for f in workflow.transform(dataset).frames()])
            made.append((dataset.npartitions, fitted, scores.tobytes()))
        assert len({parts for parts, _, _ in made}) > 1
        assert all(fitted == made[0][1] and scores == made[0][2] for _, fitted, scores in made)

    def test_a_row_alone_gets_the_bits_that_it_gets_among_others(self, engine):
        workflow = Workflow(list(self.NAMES) >> ops.PCA(3)).fit(Dataset(self.TABLE, engine=engine))
        whole = workflow.transform(self.TABLE)
        assert [workflow.transform(self.TABLE.slice(i, 1)).to_pylist()[0] for i in (0, 13, 996)] == [
            whole.slice(i, 1).to_pylist()[0] for i in (0, 13, 996)
        ]

    @pytest.mark.system
    @pytest.mark.parametrize("threads", ["1", "4"])
    def test_the_number_of_threads_of_blas_does_not_change_a_bit(self, threads, tmp_path):
        code = (
            "import numpy as np, sys; from tasks.engines.algorithms.factors import factor;"
            "m = np.random.default_rng(0).normal(size=(20000, 150));"
            "f = factor([(c, None) for c in m.T], 20000, np, 8192); sys.stdout.write(f.r.tobytes().hex()[::64])"
        )
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        matrix = np.random.default_rng(0).normal(size=(20000, 150))
        assert out.stdout == frame_factor(matrix).r.tobytes().hex()[::64]

    @pytest.mark.gpu
    def test_how_cupy_adds_does_not_change_a_bit(self):
        """Workers run CuPy without CUB, a process of the user's may run it with CUB, whose sums have other bits."""
        from cupy._core import _accelerator

        before, factors = _accelerator.get_routine_accelerators(), []
        kernels = engines.engine("cudf")
        columns = [kernels.from_numbers(column) for column in np.ascontiguousarray(mixed(20_011, 3, offset=5.0).T)]
        try:
            for accelerators in ([], ["cub"]):
                _accelerator.set_routine_accelerators(accelerators)
                factors.append(kernels.factorize_columns(columns))
        finally:
            _accelerator.set_routine_accelerators(before)
        assert factors[0].mean.tobytes() == factors[1].mean.tobytes()
        assert factors[0].r.tobytes() == factors[1].r.tobytes()

    def test_saved_and_loaded(self, engine, tmp_path):
        nodes = (list(self.NAMES) >> ops.PCA(2, whiten=True)) + (list(self.NAMES) >> ops.PairwiseRegression("x4"))
        workflow = Workflow(nodes).fit(Dataset(self.TABLE, engine=engine))
        workflow.save(tmp_path / "fitted")
        loaded = Workflow.load(tmp_path / "fitted")
        assert loaded.transform(self.TABLE).equals(workflow.transform(self.TABLE))
        assert loaded.state.values == workflow.state.values
        for kept in loaded.state.partials.values():
            assert (kept["n"], kept["left_out"], kept["mean"].num_rows, kept["r"].num_rows) == (997, 0, 5, 15)


def frame_factor(matrix):
    kernels = engines.engine("pandas")
    return kernels.factorize_columns([kernels.from_numbers(np.ascontiguousarray(c)) for c in matrix.T])


def pairs_of(names, target, table, engine):
    fitted = fitted_of(names >> ops.PairwiseRegression(target), table, engine)
    return fitted, {(row["first"], row["second"]): row for row in fitted["pairs"].to_pylist()}


class TestPairwiseRegression:
    def test_an_exact_plane(self, engine):
        table = pa.table({"x": [0.0, 1.0, 2.0, 5.0], "z": [0, 1, 0, 1], "y": [1.0, 6.0, 5.0, 14.0]})
        fitted, pairs = pairs_of(["x", "z"], "y", table, engine)
        row = pairs["x", "z"]
        assert (row["first_coefficient"], row["second_coefficient"], row["intercept"]) == (
            pytest.approx(2), pytest.approx(3), pytest.approx(1),
        )  # fmt: skip
        assert (row["r2"], row["rmse"], row["n"], row["collinear"]) == (
            pytest.approx(1),
            pytest.approx(0, abs=1e-12),
            4,
            False,
        )
        assert (fitted["n"], fitted["left_out"], fitted["collinear"]) == (4, 0, 0)

    @pytest.mark.promise(
        "Fit `target` by least squares on every pair of the other selected columns, all in one pass; the data stay",
        "tasks/ops/README.md#pairwiseregression",
    )
    @pytest.mark.parametrize("offset", [0.0, 1e6])
    def test_every_pair_equals_a_separate_least_squares(self, engine, offset):
        matrix = mixed(5_000, 8, seed=2, offset=offset)
        y = matrix[:, 0] - 3 * matrix[:, 3] + np.random.default_rng(1).normal(size=5_000)
        names = [f"x{j}" for j in range(8)]
        _, pairs = pairs_of(names, "y", table_of(np.column_stack([matrix, y]), [*names, "y"]), engine)
        assert set(pairs) == set(itertools.combinations(names, 2))
        for i, j in itertools.combinations(range(8), 2):
            two = matrix[:, [i, j]]
            centre, level = two.mean(axis=0), y.mean()
            (a, b), (squares,), _, _ = np.linalg.lstsq(two - centre, y - level)
            row = pairs[f"x{i}", f"x{j}"]
            assert row["first_coefficient"] == pytest.approx(a, rel=1e-8)
            assert row["second_coefficient"] == pytest.approx(b, rel=1e-8)
            assert row["intercept"] == pytest.approx(level - centre @ [a, b], rel=1e-8, abs=1e-8)
            assert row["rmse"] == pytest.approx((squares / 5_000) ** 0.5, rel=1e-8)
            assert row["r2"] == pytest.approx(1 - squares / ((y - level) ** 2).sum(), rel=1e-8)

    def test_it_agrees_with_scikit_learn(self, engine):
        matrix = np.random.default_rng(8).normal(size=(400, 3))
        _, pairs = pairs_of(["x0", "x1"], "x2", table_of(matrix), engine)
        reference = pytest.importorskip("sklearn.linear_model").LinearRegression().fit(matrix[:, :2], matrix[:, 2])
        row = pairs["x0", "x1"]
        assert [row["first_coefficient"], row["second_coefficient"], row["intercept"], row["r2"]] == pytest.approx(
            [*reference.coef_, reference.intercept_, reference.score(matrix[:, :2], matrix[:, 2])], rel=1e-10
        )

    def test_nearly_collinear_columns_keep_their_digits(self, engine):
        random = np.random.default_rng(5)
        x, apart, noise = random.normal(size=(3, 2_000))
        z = x + 1e-5 * apart
        table = pa.table({"x": x, "z": z, "y": 2 * x + 3 * z + noise})
        row = pairs_of(["x", "z"], "y", table, engine)[1]["x", "z"]
        two = np.column_stack([x, z])
        (a, b), *_ = np.linalg.lstsq(two - two.mean(axis=0), table["y"].to_numpy() - table["y"].to_numpy().mean())
        assert (row["first_coefficient"], row["second_coefficient"]) == (
            pytest.approx(a, rel=1e-8),
            pytest.approx(b, rel=1e-8),
        )

    def test_collinear_and_constant_columns_are_reported_and_stand_last(self, engine):
        x = [1.0, 2.0, 4.0, 9.0]
        table = pa.table(
            {"x": x, "c": [5] * 4, "d": [3 - 2 * v for v in x], "z": [1.0, 0.0, 0.5, 2.0], "y": [1.0, 4.0, 2.0, 7.0]}
        )
        fitted, pairs = pairs_of(["x", "c", "d", "z"], "y", table, engine)
        lost = {pair for pair, row in pairs.items() if row["collinear"]}
        assert lost == {("x", "c"), ("x", "d"), ("c", "d"), ("c", "z")}
        assert fitted["collinear"] == 4
        assert fitted["pairs"]["collinear"].to_pylist() == [False, False, True, True, True, True]
        blank = dict.fromkeys(("first_coefficient", "second_coefficient", "intercept", "r2", "rmse"))
        assert pairs["x", "d"] == {"first": "x", "second": "d", **blank, "n": 4, "collinear": True}

    def test_rows_with_nulls_are_left_out_of_all_fits_and_counted(self, engine):
        table = pa.table(
            {"x": [0.0, 1.0, 0.0, 1.0, None, 5.0], "z": [0, 0, 1, 1, 3, 4], "y": [1.0, 2.0, 3.0, 4.0, 9.0, None]}
        )
        fitted, pairs = pairs_of(["x", "z"], "y", table, engine)
        assert (fitted["n"], fitted["left_out"], pairs["x", "z"]["n"]) == (4, 2, 4)
        assert pairs["x", "z"]["second_coefficient"] == pytest.approx(2)

    def test_pairs_are_ranked_by_their_share_of_the_variance(self, engine):
        matrix = np.random.default_rng(3).normal(size=(1_000, 4))
        y = 5 * matrix[:, 1] + 2 * matrix[:, 2] + matrix[:, 3]
        names = ["a", "b", "c", "d"]
        fitted, _ = pairs_of(names, "y", table_of(np.column_stack([matrix, y]), [*names, "y"]), engine)
        ranked = [(row["first"], row["second"]) for row in fitted["pairs"].to_pylist()]
        assert ranked[:2] == [("b", "c"), ("b", "d")]
        assert fitted["pairs"]["r2"].to_pylist() == sorted(fitted["pairs"]["r2"].to_pylist(), reverse=True)

    @pytest.mark.parametrize("rows", [0, 1, 2])
    def test_too_few_rows_leave_every_pair_collinear(self, engine, rows):
        table = pa.table(
            {"x": [*[1.0, 2.0][:rows], None], "z": [*[3.0, 1.0][:rows], 1.0], "y": [*[1.0, 4.0][:rows], 1.0]}
        )
        table = table.cast(pa.schema({name: pa.float64() for name in "xzy"}))
        fitted, _ = pairs_of(["x", "z"], "y", table, engine)
        assert (fitted["n"], fitted["left_out"], fitted["collinear"]) == (rows, 1, 1)

    def test_a_constant_target_has_no_share_to_explain(self, engine):
        row = pairs_of(["x", "z"], "y", pa.table({"x": [0, 1, 0, 1], "z": [0, 0, 1, 1], "y": [3.0] * 4}), engine)[1][
            "x", "z"
        ]
        assert (row["first_coefficient"], row["second_coefficient"], row["intercept"]) == (0.0, 0.0, 3.0)
        assert (row["r2"], row["rmse"]) == (None, 0.0)

    def test_fifty_columns_are_1225_fits_from_one_factor(self, engine):
        matrix = np.random.default_rng(6).normal(size=(500, 51))
        fitted = fitted_of([f"x{j}" for j in range(50)] >> ops.PairwiseRegression("x50"), table_of(matrix), engine)
        assert fitted["pairs"].num_rows == 1225

    def test_the_data_stay_as_they_are_also_without_the_target(self, engine):
        seen = pa.table({"x": pa.array([1, None, 3], pa.int16()), "z": [0.5, 1.5, None], "y": [1.0, 2.0, 3.0]})
        made = transformed(["x", "z"] >> ops.PairwiseRegression("y"), seen, engine, seen.select(["x", "z"]))
        assert made == {"x": [1, None, 3], "z": [0.5, 1.5, None]}

    def test_a_target_among_the_columns_is_no_predictor_of_itself(self, engine):
        fitted, pairs = pairs_of(
            ["x", "y", "z"], "y", pa.table({"x": [0, 1, 5], "y": [1, 2, 3], "z": [1, 0, 3]}), engine
        )
        assert list(pairs) == [("x", "z")]
        assert fitted["pairs"].num_rows == 1

    @pytest.mark.parametrize("columns", [["x"], ["x", "y"]])
    def test_one_column_is_no_pair(self, columns):
        schema = Dataset(pa.table({"x": [1.0], "y": [1.0]})).schema
        with pytest.raises(JobError, match="at least two columns besides the target"):
            Workflow(columns >> ops.PairwiseRegression("y")).output_schema_of(schema)

    def test_a_target_of_text_is_refused(self):
        schema = Dataset(pa.table({"x": [1.0], "z": [1.0], "y": ["a"]})).schema
        with pytest.raises(DataError, match="needs a numeric target, 'y' is string"):
            Workflow(["x", "z"] >> ops.PairwiseRegression("y")).output_schema_of(schema)

    def test_a_missing_target_is_named(self, engine):
        with pytest.raises(DataError, match="PairwiseRegression needs the column 'y' to learn from"):
            fitted_of(["x", "z"] >> ops.PairwiseRegression("y"), pa.table({"x": [1.0], "z": [1.0]}), engine)

    def test_infinite_values_are_refused(self, engine):
        table = pa.table({"x": [1.0, 2.0], "z": [1.0, 3.0], "y": [1.0, -math.inf]})
        with pytest.raises(DataError, match="PairwiseRegression cannot learn from -inf in column 'y'"):
            fitted_of(["x", "z"] >> ops.PairwiseRegression("y"), table, engine)


class TestPatterns:
    SCHEMA = Dataset(pa.table({name: [1.0] for name in ("x1", "y", "x2", "x10", "z*")})).schema

    @pytest.mark.parametrize(
        ("pattern", "columns"),
        [("x*", ["x1", "x2", "x10"]), ("x?", ["x1", "x2"]), ("x[2-9]", ["x2"]), ("z*", ["z*"])],
    )
    def test_a_pattern_stands_for_all_columns_so_called(self, pattern, columns):
        assert list(Workflow([pattern]).output_schema_of(self.SCHEMA)) == columns

    def test_a_pattern_picks_from_its_node(self):
        node = ["x*"] >> ops.Rename(postfix="_new")
        assert list(Workflow(node["x1*"]).output_schema_of(self.SCHEMA)) == ["x1_new", "x10_new"]

    def test_a_pattern_that_fits_nothing_is_a_missing_column(self):
        with pytest.raises(JobError, match=r"there is no column 'w\*'"):
            Workflow(["w*"]).output_schema_of(self.SCHEMA)


class TestReport:
    def test_the_first_twenty_pairs_and_all_components_are_shown(self, engine):
        table = table_of(mixed(100, 9))
        names = [f"x{j}" for j in range(8)]
        nodes = (names[:2] >> ops.PCA(2)) + (names >> ops.PairwiseRegression("x8"))
        workflow = Workflow(nodes).fit(Dataset(table, engine=engine))
        bound = Bound(workflow.final, workflow.schema, workflow.state.values)
        tables = collect_report_tables(bound.learned, workflow.state.values)
        assert {title: len(rows) for title, rows in tables.items()} == {
            "PCA of x0, x1": 2,
            "PairwiseRegression of x0 .. x7 (8 columns)": 20,
        }
        assert list(tables["PCA of x0, x1"][0]) == ["component", "singular_value", "variance", "share"]

    def test_the_stage_shows_the_tables_below_its_numbers(self):
        tables = {"PCA of x, y": [{"component": "pca_0"}]}
        result = StatisticsResult(
            rows=4, nbytes=8, seconds=1.0, phases=1, operators=1, learned=1, digest="d", tables=tables
        )
        text = stage_markdown(result)
        assert text.endswith("#### PCA of x, y\n\n| component |\n|---|\n| pca_0 |\n")
        shown = [line.split(" | ")[0] for line in markdown_numbers(result).splitlines()[2:]]
        figures = ["rows", "seconds", "rows per second", "bytes", "bytes per second", "phases", "operators", "learned"]
        assert shown == [f"| {name}" for name in figures]  # neither `reused` nor `retries`

    def test_other_operators_show_nothing(self):
        assert ops.Normalize().report({"n": 1, "mean": 0.0, "std": 1.0}) is None


def test_a_context_is_all_that_learning_needs(engine):
    kernels = engines.engine(engine)
    columns = kernels.from_arrow(pa.table({"x": [1.0, 3.0], "y": [0.0, 0.0]}))
    found = ops.PCA(1).observe_unit(columns, ("x", "y"), Context(kernels, kernels.row_numbers(0, 2)))
    assert isinstance(found, Factor)
    assert (found.n, found.left_out, found.mean.tolist()) == (2, 0, [[2.0, 0.0], [0.0, 0.0]])
    assert np.abs(found.r).tolist() == [[pytest.approx(2**0.5), 0.0], [0.0, 0.0]]
