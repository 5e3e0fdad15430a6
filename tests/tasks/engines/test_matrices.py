"""`Dataset.to_dask_array`: columns of numbers as NumPy or CuPy arrays with known chunks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tasks.dataset import Dataset
from tasks.engines.algorithms.reductions import on_host
from tasks.errors import DataError, JobError
from tests.frames import to_list

BAD = {"x": [1.0, None, 3.0], "n": [1, 2, None]}


def library_of(array: Any) -> str:
    return type(array).__module__.partition(".")[0]


def test_a_dask_array_of_the_engine_with_known_chunks(engine: str) -> None:
    values = np.random.default_rng(5).standard_normal((3_000_000, 2))
    data = Dataset(pa.table({"a": values[:, 0], "b": values[:, 1]}), engine=engine, partition_size=1)
    array = data.to_dask_array(["b", "a"])
    assert array.chunks == (tuple(partition.rows for partition in data.plan.partitions), (2,))
    assert len(array.chunks[0]) == 3
    library = "cupy" if engine == "cudf" else "numpy"
    assert library_of(array._meta) == library_of(array.blocks[0].compute()) == library
    assert np.array_equal(on_host(array.compute()), values[:, [1, 0]])
    assert float(array[:, 0].std()) == pytest.approx(values[:, 1].std(), rel=1e-9)


def test_rules_on_rows_count(engine: str) -> None:
    train = Dataset(pa.table({"x": range(1_000)}), engine=engine).split("fraction", valid=0.3)["train"]
    array = train.to_dask_array()
    assert array.shape == (train.num_rows, 1)
    assert on_host(array.compute())[:, 0].tolist() == [row for frame in train.to_iter() for row in to_list(frame["x"])]


def test_the_type_of_the_array_holds_all_columns(engine: str) -> None:
    table = pa.table(
        {"i": pa.array([1, 2, 3], pa.int16()), "b": [True, False, True], "h": pa.array([0.5] * 3, pa.float32())}
    )
    data = Dataset(table, engine=engine)
    assert [data.to_dask_array(c).dtype for c in (["i"], ["b"], ["i", "b"], ["i", "h"])] == ["i2", "?", "i2", "f4"]
    assert on_host(data.to_dask_array(["b", "i"]).compute()).tolist() == [[1, 1], [0, 2], [1, 3]]
    assert on_host(data.to_dask_array(["i"], dtype="float64").compute()).tolist() == [[1.0], [2.0], [3.0]]


def test_bad_input_of_an_array(engine: str) -> None:
    data = Dataset(pa.table(BAD), engine=engine)
    with pytest.raises(
        DataError, match=r"(?s)'n' has a null, which arrays of int64 cannot hold.*3 rows from row 0.*float64"
    ):
        data.to_dask_array(["n"]).compute()
    assert np.isnan(on_host(data.to_dask_array(["n"], dtype="float64").compute())[2, 0])
    with pytest.raises(JobError, match="column 'x' is float64, which int64 does not hold"):
        data.to_dask_array(["x"], dtype="int64")
