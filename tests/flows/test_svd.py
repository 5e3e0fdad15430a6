"""`svd` against matrices whose singular values are known, on one worker and several."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from weakref import ref

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client
from rowmill import SVD, DataError, Dataset, JobError, Workflow, linalg, svd

from tasks.engines.algorithms.reductions import on_host
from tasks.engines.matrices import Matrices
from tests.clusters import start_threads

BLOCKS, ROWS, COLUMNS = 12, 70_000, 6
SINGULAR = np.logspace(0, -8, COLUMNS)  # of condition 1e8


def known_matrix() -> np.ndarray:
    """A matrix of these singular values."""
    draw = np.random.default_rng(3)
    left = np.linalg.qr(draw.standard_normal((BLOCKS * ROWS, COLUMNS)))[0]
    right = np.linalg.qr(draw.standard_normal((COLUMNS, COLUMNS)))[0]
    matrix: np.ndarray = (left * SINGULAR) @ right
    return matrix


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its rows in files, with blocks that are more than one merge takes."""
    folder, matrix = tmp_path_factory.mktemp("matrix"), known_matrix()
    for number, rows in enumerate(np.split(matrix, 3)):
        table = pa.table({f"x{i}": column for i, column in enumerate(rows.T)} | {"name": ["a"] * len(rows)})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=ROWS)
    return folder


NAMES = [f"x{i}" for i in range(COLUMNS)]


def host(result: SVD) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return on_host(result.u.compute()), result.s, result.v


def is_decomposition(u: np.ndarray, s: np.ndarray, v: np.ndarray, matrix: np.ndarray) -> None:
    k = len(s)
    assert u.shape == (len(matrix), k)
    assert v.shape == (k, matrix.shape[1])
    assert np.abs(u.T @ u - np.eye(k)).max() < 1e-12
    assert np.abs(v @ v.T - np.eye(k)).max() < 1e-12
    assert (v[np.arange(k), np.abs(v).argmax(axis=1)] > 0).all()
    assert np.abs(u * s @ v - matrix).max() < 1e-14 * max(1.0, np.abs(matrix).max()) * len(s)


@pytest.mark.promise("also where their condition is 1e8")
def test_all_singular_values_of_a_matrix_of_condition_1e8(folder: Path, engine: str) -> None:
    data = Dataset(folder, engine=engine)
    result = svd(data, NAMES)
    assert np.abs(result.s - SINGULAR).max() < 1e-14
    assert result.columns == tuple(NAMES)
    assert result.u.chunks == ((43_690,) * 19 + (9_890,), (COLUMNS,))  # blocks of 2 MiB
    is_decomposition(*host(result), known_matrix())


def test_the_bits_do_not_depend_on_partitions_and_k_leaves_out_the_small_ones(folder: Path, engine: str) -> None:
    whole = host(svd(Dataset(folder, engine=engine), NAMES))
    u, s, v = host(svd(Dataset(folder, engine=engine, partition_size=1), NAMES, k=2))
    assert (s.tobytes(), v.tobytes()) == (whole[1][:2].tobytes(), whole[2][:2].tobytes())
    assert np.abs(u - whole[0][:, :2]).max() < 1e-15
    again = host(svd(Dataset(folder, engine=engine, partition_size="1GB"), NAMES))
    assert [a.tobytes() for a in again] == [a.tobytes() for a in whole]


def test_an_array_has_the_bits_of_its_table_whatever_its_chunks(folder: Path) -> None:
    matrix, whole = known_matrix(), host(svd(Dataset(folder, engine="pandas"), NAMES))
    for chunks in [(100_000, 6), (840_000, 1), ((1, 0, 839_999), (2, 4))]:
        result = svd(da.from_array(matrix, chunks=chunks))
        assert [a.tobytes() for a in host(result)] == [a.tobytes() for a in whole]
        assert result.columns == ("0", "1", "2", "3", "4", "5")
    assert svd(da.from_array(np.array([[3, 0], [0, 2]], dtype="int8"), chunks=(1, 1))).s.tolist() == [3.0, 2.0]


def test_blocks_follow_from_rows_and_columns_alone() -> None:
    array = da.zeros((100_000, 1_000), chunks=(1_000, 1_000))
    assert linalg.rows_of_block(*array.shape) == 4_000  # 25 blocks of 32 MB
    assert linalg.rows_of_block(10**9, 32) == 1_048_576  # of 256 MiB
    assert linalg.rows_of_block(3, 2) == 131_072


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (da.zeros(3), r"svd takes an array of two dimensions, and this one has 1\n  where: svd\n  do: give rows and"),
        (da.zeros((3, 2), dtype="complex128"), r"svd takes numbers, and the array is of complex128"),
        (
            da.zeros((3, 2), chunks=1)[da.ones(3, chunks=1) > 0],
            r"not known\n  where: svd\n  do: call array.compute_chunk",
        ),
        (
            da.from_array(np.array([[1.0], [np.nan]]), chunks=1),
            r"cannot take nan in column '0'\n  where: row 1, counted",
        ),
    ],
)
def test_an_array_that_is_no_matrix_of_numbers_is_refused(array: Any, message: str) -> None:
    with pytest.raises((DataError, JobError), match=message):
        svd(array)
    with pytest.raises(JobError, match=r"an array has no named columns(.|\n)*array\[:, \[0, 2\]\]"):
        svd(da.zeros((3, 2)), ["x"])


@pytest.mark.promise("decomposes columns of more rows than memory holds")
def test_threads_have_few_rows_each_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, matrices, alive = Matrices.read, list[ref[Any]](), list[int]()

    def counted(reader: Matrices, block: Any) -> Any:
        matrix = read(reader, block)
        matrices.append(ref(matrix))
        alive.append(sum(one() is not None for one in matrices))
        return matrix

    monkeypatch.setattr(Matrices, "read", counted)
    with dask.config.set(scheduler="threads", num_workers=2):
        result = svd(Dataset(folder, engine="pandas"), NAMES)
        assert float(abs(result.u.sum(axis=0)).max()) < ROWS
    assert len(alive) == 2 * BLOCKS
    assert max(alive) <= 2 * 4  # a block is made of parts of four


@pytest.mark.system
@pytest.mark.promise("The bits are the same for any number of workers", "flows/SERVING.md#work-of-your-own-at-scale")
@pytest.mark.parametrize("workers", [1, 3])
def test_the_bits_are_those_of_any_workers(
    folder: Path, workers: int, engine: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [array.tobytes() for array in host(svd(Dataset(folder, engine="pandas"), NAMES))]
    if workers == 1 and engine == "pandas":
        cluster = nullcontext(request.getfixturevalue("cluster"))  # a process of two threads
    else:
        cluster = start_threads([{}] * workers)
    with cluster as started, Client(started, set_as_default=False) as client, client.as_current():
        monkeypatch.setattr("tasks.cluster.current.LARGE", 0 if workers == 1 else 4 << 20)  # what all tasks share
        result = svd(Dataset(folder, engine="pandas"), NAMES)
        gc.collect()
        assert [array.tobytes() for array in host(result)] == expected
        array = Dataset(folder, engine="pandas").to_dask_array(NAMES)
        assert float(abs(result.u * result.s @ result.v - array.rechunk(result.u.chunks[0])).max()) < 1e-15


def test_u_as_a_folder_of_parquet_files(folder: Path, tmp_path: Path) -> None:
    u, _, _ = host(result := svd(Dataset(folder, engine="pandas"), NAMES, k=2))
    frame = dd.from_dask_array(result.u.map_blocks(on_host), columns=["u_0", "u_1"])
    frame.to_parquet(tmp_path / "u", write_index=False, name_function="{:06}.parquet".format)
    assert np.array_equal(on_host(Dataset(tmp_path / "u").to_dask_array().compute()), u)


@pytest.mark.parametrize("k", [None, 1, 2])
def test_constant_and_dependent_columns_and_few_rows(k: int | None, engine: str) -> None:
    table = pa.table({"one": [1, 1, 1, 1], "two": [2, 2, 2, 2], "x": [True, False, True, False], "y": [0.5, 1, 2, 4]})
    matrix = np.stack([column.to_numpy() for column in table.columns], axis=1).astype("float64")
    u, s, v = host(svd(Dataset(table, engine=engine), k=k))
    assert np.abs(s - np.linalg.svd(matrix)[1][:k]).max() < 1e-14
    assert np.abs(u.T @ u - np.eye(len(s))).max() < 1e-14
    if k is None:
        is_decomposition(u, s, v, matrix)
    two = svd(Dataset(table.slice(0, 2), engine=engine))
    assert (two.u.shape, two.s.shape, two.v.shape) == ((2, 2), (2,), (2, 4))
    is_decomposition(*host(two), matrix[:2])


def test_rules_on_rows_count(folder: Path, engine: str) -> None:
    train = Dataset(folder, engine=engine).split("fraction", valid=0.3)["train"]
    array, result = train.to_dask_array(NAMES), svd(train, NAMES)
    assert sum(array.chunks[0]) == train.num_rows < BLOCKS * ROWS
    is_decomposition(*host(result), on_host(array.compute()))


BAD = {"x": [1.0, None, 3.0], "y": [1.0, 2.0, float("inf")], "s": ["a", "b", "c"], "n": [1, 2, None]}


@pytest.mark.parametrize(
    ("columns", "k", "message"),
    [
        (
            ["y", "x"],
            None,
            r"svd cannot take nan in column 'x'\n  where: row 1, counted from 0(.|\n)*FillMissing",
        ),
        (["y"], None, r"svd cannot take inf in column 'y'\n  where: row 2"),
        (["s"], None, r"column 's' is string, and an array holds numbers\n  do: name the columns of numbers"),
        (None, None, "column 's' is string"),
        ([], None, "at least one column"),
        (["z"], None, "there is no column 'z'"),
        (["x", "y"], 3, r"svd cannot make 3 vectors of 3 rows and 2 columns\n  do: choose a k"),
        (["x"], 0, "svd cannot make 0 vectors"),
    ],
)
def test_bad_input_of_svd(columns: list[str] | None, k: int | None, message: str, engine: str) -> None:
    with pytest.raises((DataError, JobError), match=message):
        svd(Dataset(pa.table(BAD), engine=engine), columns, k)


def test_u_s_and_v_of_whatever_a_data_set_can_be_made_of(engine: str, tmp_path: Path) -> None:
    table = pa.table({"x": [3.0, 0.0, 0.0], "y": [0.0, 0.0, 2.0]})
    pq.write_table(table, tmp_path / "in.parquet")
    dataset = Dataset(table, engine=engine)
    transformed = Workflow(["x", "y"]).fit_transform(dataset)
    frame = dd.from_pandas(table.to_pandas(), npartitions=2)
    for source in (dataset, transformed, transformed.persist(), transformed.to_ddf(), frame, table, tmp_path):
        u, s, v = svd(source)
        assert on_host(u.compute()).tolist() == [[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]
        assert (s.tolist(), v.tolist()) == ([3.0, 2.0], [[1.0, 0.0], [0.0, 1.0]])


def test_an_array_is_decomposed_as_it_is_or_as_a_frame() -> None:
    array = da.from_array(np.array([[3.0, 0.0], [0.0, 0.0], [0.0, 2.0]]), chunks=(2, 2))
    assert svd(array).s.tolist() == [3.0, 2.0]
    assert svd(dd.from_dask_array(array, columns=["x", "y"])).s.tolist() == [3.0, 2.0]


@pytest.mark.system
def test_svd_runs_on_the_workers_of_its_client(folder: Path) -> None:
    data = Dataset(folder, engine="pandas")
    with start_threads([{}, {}]) as started, Client(started, set_as_default=False) as client:
        result = svd(data, NAMES, 2, client=client)
        assert len(client.who_has()) > 0  # the weights of u wait on the workers
        with client.as_current():
            assert [array.tobytes() for array in host(result)] == [a.tobytes() for a in host(svd(data, NAMES, 2))]
