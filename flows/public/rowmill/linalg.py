"""The singular value decomposition of columns of a data set that is larger than memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks import engines
from tasks.cluster.current import using
from tasks.cluster.dask_frames import delay_parts
from tasks.cluster.pool import FAN_IN
from tasks.cluster.transfer import gpu_setup
from tasks.core.plan import Partition
from tasks.dataset import Dataset
from tasks.engines.algorithms.factors import one_thread, signs
from tasks.engines.algorithms.reductions import on_host
from tasks.engines.convert.libraries import library
from tasks.engines.matrices import Matrices
from tasks.errors import DataError, JobError
from tasks.workflow import as_dataset

if TYPE_CHECKING:
    from distributed import Client


BLOCKS = 64  # into which the rows are cut, as far as the limits of a block allow
# bytes of a block: it fits into a cache, and a task takes little memory
SMALLEST = 2 << 20
LARGEST = 256 << 20
TALL = 4  # a block has at least 4 times as many rows as columns: else the factors would be as large as the rows


@dataclass(frozen=True)
class SVD:
    """u diag(s) v, the nearest matrix of rank k to that of the columns of a data set, or to a Dask array.

    u: a Dask array (rows, k) of NumPy or CuPy arrays. s: the singular values (k,), descending. v: (k, columns).
    `u, s, v = svd(..)` works, too.
    """

    u: Any
    s: np.ndarray
    v: np.ndarray
    columns: tuple[str, ...]

    def __iter__(self) -> Iterator[Any]:
        return iter((self.u, self.s, self.v))


def svd(
    data: object, columns: Sequence[str] | None = None, k: int | None = None, *, client: Client | None = None
) -> SVD:
    """Decompose the matrix of columns of numbers (default: all) into its k largest singular values and their vectors.

    `data` is a Dataset, a Transformed, a source of a Dataset, such as a path or a frame, or a Dask array of rows and
    columns, whose `columns` are named by their numbers. The columns are neither centred nor scaled. By default k is the
    number of columns, or of rows if there are fewer. The largest entry of each row of v is positive; of several that
    are equal up to rounding, the first.

    The workers of the Dask `client` do the work, by default those of the Dataset's client, else of the current one,
    else threads, block by block: the rows need not fit into memory, but a matrix of columns x columns for each block
    must. The first pass gives s and v; to compute u is another one. The rows of a Dask frame or a Transformed are also
    counted in a pass. Blocks follow from the numbers of rows and columns alone (about 64 of them, of 2 to 256 MiB and
    of at least four times as many rows as columns), so that s, u and v have the same bits for any partitions, chunks,
    workers and threads of one kind of machine, if workers have one thread for BLAS, as those that a nanny starts.

    Singular values are exact to rounding of the largest one (1e-15), u and v orthogonal to rounding, also at condition
    1e8: no product of the matrix with itself is formed. Errors: a JobError for columns that are not numbers, for an
    array that has not two dimensions or whose chunks have no known size, and for a k below 1 or beyond rows or columns;
    a DataError for null, NaN or infinity, which names column and row.

    Source: direct tall-skinny QR, Benson, Gleich, Demmel, 2013. `dask.array.linalg.svd` decomposes the triangular
    factors of the blocks, on the host; of the rows themselves it would hold Q until the last factor is there.

    >>> import pyarrow as pa
    >>> result = svd(Dataset(pa.table({"x": [3.0, 0.0, 0.0], "y": [0.0, 0.0, 2.0]}), engine="pandas"))
    >>> result.s.tolist(), result.v.tolist(), result.u.compute().tolist()
    ([3.0, 2.0], [[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    """
    import dask.array as da

    if isinstance(data, da.Array):
        with using(client):
            matrix = _check_array(data, columns)
            names = tuple(str(number) for number in range(matrix.shape[1]))
            engine = "cudf" if library(data._meta) == "cupy" else "pandas"
            return _svd(matrix, names, engine, k)
    dataset = as_dataset(data, client)
    with using(dataset.client):
        matrices = dataset.matrices(columns, "float64")
        return _svd(_stack_blocks(dataset, matrices), matrices.names, matrices.engine, k)


def _check_array(array: Any, columns: Sequence[str] | None) -> Any:
    """Check the array as float64; a JobError for one that is no matrix of numbers of a known size."""
    what = do = ""
    if array.ndim != 2:
        what = f"svd takes an array of two dimensions, and this one has {array.ndim}"
        do = "give rows and columns"
    elif array.dtype.kind not in "biuf":
        what = f"svd takes numbers, and the array is of {array.dtype}"
        do = "convert it: array.astype('float64')"
    elif np.isnan(array.shape[0]) or np.isnan(array.shape[1]):
        what = "the sizes of the array's chunks are not known"
        do = "call array.compute_chunk_sizes() first"
    elif columns is not None:
        what = "an array has no named columns"
        do = "leave columns out, or choose them: array[:, [0, 2]]"
    if what:
        raise JobError(what, where="svd", do=do)
    return array.astype("float64")


def _stack_blocks(dataset: Dataset, matrices: Matrices) -> Any:
    """Return the Dask array of the rows of a data set, a chunk for each block of its plan that has rows."""
    import dask.array as da

    parts = [one for p in dataset.plan.partitions for one in p.by_block()]
    counts = {part: rows for part, rows in zip(parts, dataset.row_counts(parts), strict=True) if rows}
    if not counts:
        return da.empty((0, len(matrices.names)))
    blocks = delay_parts(_read_block, matrices, [*counts], "matrix")
    return matrices.stack_blocks(blocks, [*counts.values()], len(matrices.names))


def _read_block(matrices: Matrices, block: Partition) -> Any:
    """Read the rows of a block as a matrix."""
    gpu_setup.prepare(matrices.engine)
    with engines.computing(matrices.engine, block.nbytes):
        return matrices.read(block)


def rows_of_block(rows: int, width: int) -> int:
    """Return the rows of each block of a matrix of so many rows and columns.

    >>> rows_of_block(100_000, 100), rows_of_block(100_000, 1_000), rows_of_block(16_000_000, 32)
    (2621, 4000, 250000)
    """
    nbytes = min(max(8 * rows * width // BLOCKS, SMALLEST), LARGEST)
    return max(nbytes // (8 * width), TALL * width)


def _svd(matrix: Any, names: tuple[str, ...], engine: str, k: int | None) -> SVD:
    import dask
    import dask.array as da

    rows, width = matrix.shape
    k = min(rows or 1, width) if k is None else k
    if not 1 <= k <= min(rows, width):
        what = f"svd cannot make {k:,} vectors of {rows:,} rows and {width:,} columns"
        raise JobError(what, do="choose a k from 1 to the number of rows or of columns, whichever is smaller")
    blocks = matrix.rechunk({0: rows_of_block(rows, width), 1: -1}, method="tasks")
    sizes = tuple(min(n, width) for n in blocks.chunks[0])
    factors = blocks.map_blocks(
        _factor_block, names, engine, chunks=(sizes, (width,)), dtype="float64", meta=np.empty((0, 0))
    )
    with one_thread():  # the bits would depend on the number of threads of BLAS
        factors = factors.persist()  # Dask cannot put the graph of a frame that was shuffled into that of its svd
        weights, s, v = da.linalg.svd(factors.rechunk({0: FAN_IN * width}), coerce_signs=False)
        weights, s, v = dask.persist(weights[:, :k].rechunk((sizes, k)), s[:k], v[:k])
        s, v = dask.compute(s, v)
    positive = signs(v)
    u = da.map_blocks(
        _make_left_vectors,
        blocks,
        weights,
        positive[:, 0],
        engine,
        chunks=(blocks.chunks[0], (k,)),
        dtype="float64",
        meta=engines.engine(engine).xp.empty((0, 0)),
    )
    return SVD(u, s, v * positive, names)


def _factor_block(matrix: Any, names: tuple[str, ...], engine: str, block_info: Any = None) -> np.ndarray:
    """R of the rows of a block, on the host; a DataError for a value that is not finite."""
    gpu_setup.prepare(engine)
    with engines.computing(engine, matrix.nbytes), one_thread():
        finite = np.isfinite(matrix)
        if not finite.all():
            row, column = (int(i) for i in np.argwhere(~finite)[0])
            what = f"svd cannot take {float(matrix[row, column])} in column {names[column]!r}"
            first = block_info[0]["array-location"][0][0]
            do = "fill it with FillMissing, limit it with Clip, or leave such rows or columns out"
            raise DataError(what, where=f"row {first + row:,}, counted from 0", why="null counts as nan", do=do)
        factor: Any = np.linalg.qr(matrix, mode="r")
        result: np.ndarray = on_host(factor)
        engines.synchronize()
        return result


def _make_left_vectors(matrix: Any, weight: np.ndarray, positive: np.ndarray, engine: str) -> Any:
    """Make the rows of u of a block, from the weight of its R."""
    gpu_setup.prepare(engine)
    with engines.computing(engine, matrix.nbytes), one_thread():
        result = np.linalg.qr(matrix)[0] @ np.asarray(weight * positive, like=matrix)
        engines.synchronize()
        return result
