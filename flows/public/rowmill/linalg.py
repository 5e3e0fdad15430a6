"""The singular value decomposition of columns of a data set that is larger than memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks import engines
from tasks.cluster.current import using
from tasks.cluster.dask_frames import delayed_parts
from tasks.cluster.pool import FAN_IN
from tasks.cluster.transfer import gpu_setup
from tasks.core.plan import Partition
from tasks.dataset import Dataset
from tasks.engines.algorithms.factors import one_thread, signs
from tasks.engines.algorithms.reductions import on_host
from tasks.engines.matrices import Matrices
from tasks.errors import DataError, JobError
from tasks.workflow import as_dataset

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True)
class SVD:
    """u diag(s) v, the nearest matrix of rank k to that of the columns of a data set.

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

    `data` is a Dataset, a Transformed, or a source of a Dataset, such as a path or a frame. The columns are neither
    centred nor scaled. By default k is the number of columns, or of rows if there are fewer. The largest entry of
    each row of v is positive; of several that are equal up to rounding, the first.

    The workers of the Dask `client` do the work, by default those of the Dataset's client, else of the current one,
    else threads, block by block: the rows need not fit into memory, but a matrix of columns x columns for each block
    must. The first pass gives s and v; to compute u is another one. The rows of a Dask frame or a Transformed are also
    counted in a pass, and their partitions end blocks. Of others, blocks depend on the data alone, so that s, u and v
    have the same bits for any number of workers and threads of one kind of machine, if workers have one thread for
    BLAS, as those that a nanny starts.

    Singular values are exact to rounding of the largest one (1e-15), u and v orthogonal to rounding, also at condition
    1e8: no product of the matrix with itself is formed. Errors: a JobError for an array, for columns that are not
    numbers, and for a k below 1 or beyond rows or columns; a DataError for null, NaN or infinity, which names column
    and row.

    Source: direct tall-skinny QR, Benson, Gleich, Demmel, 2013. `dask.array.linalg.svd` decomposes the triangular
    factors of the blocks, on the host; of the rows themselves it would hold Q until the last factor is there.

    >>> import pyarrow as pa
    >>> result = svd(Dataset(pa.table({"x": [3.0, 0.0, 0.0], "y": [0.0, 0.0, 2.0]}), engine="pandas"))
    >>> result.s.tolist(), result.v.tolist(), result.u.compute().tolist()
    ([3.0, 2.0], [[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    """
    import dask.array as da

    if isinstance(data, da.Array):
        what, do = "svd takes named columns, not a Dask array", "call dask.array.linalg.svd(array), or give "
        raise JobError(what, where="svd", do=f"{do}dask.dataframe.from_dask_array(array, columns=[..])")
    dataset = as_dataset(data, client)
    with using(dataset.client):
        return _svd(dataset, dataset.matrices(columns, "float64"), k)


def _svd(dataset: Dataset, matrices: Matrices, k: int | None) -> SVD:
    import dask
    import dask.array as da

    parts, width = [one for p in dataset.plan.partitions for one in p.by_block()], len(matrices.names)
    counts = {part: rows for part, rows in zip(parts, dataset.row_counts(parts), strict=True) if rows}
    rows = sum(counts.values())
    k = min(rows or 1, width) if k is None else k
    if not 1 <= k <= min(rows, width):
        what = f"svd cannot make {k:,} vectors of {rows:,} rows and {width:,} columns"
        raise JobError(what, do="choose a k from 1 to the number of rows or of columns, whichever is smaller")
    factors = delayed_parts(_decomposed, matrices, [*counts], "factor")
    stacked = replace(matrices, engine="pandas").stacked(factors, [min(n, width) for n in counts.values()], width)
    weights, s, v = da.linalg.svd(stacked.rechunk({0: FAN_IN * width}), coerce_signs=False)
    with one_thread():  # the bits would depend on the number of threads of BLAS
        weights, s, v = dask.persist(weights[:, :k].rechunk((stacked.chunks[0], k)), s[:k], v[:k])
        s, v = dask.compute(s, v)
    positive = signs(v)
    of_blocks = weights.to_delayed(optimize_graph=False)[:, 0]  # optimized, futures are lost
    lefts = delayed_parts(_decomposed, matrices, [*counts], "u", [(weight, positive[:, 0]) for weight in of_blocks])
    return SVD(matrices.stacked(lefts, [*counts.values()], k), s, v * positive, matrices.names)


def _decomposed(matrices: Matrices, block: Partition, weight: Any = None, positive: Any = None) -> np.ndarray:
    """R of the rows of a block, on the host; with the weight of R, its rows of u. A DataError for an infinite value."""
    gpu_setup.prepare(matrices.engine)
    with engines.computing(matrices.engine, block.nbytes), one_thread():
        matrix = matrices.read(block)
        finite = np.isfinite(matrix)
        if not finite.all():
            row, column = (int(i) for i in np.argwhere(~finite)[0])
            what = f"svd cannot take {float(matrix[row, column])} in column {matrices.names[column]!r}"
            where = f"row {row:,} of the rows from row {block.first_row:,}, counted from 0"
            do = "fill it with FillMissing, limit it with Clip, or leave such rows or columns out"
            raise DataError(what, where=where, why="null counts as nan", do=do)
        factor = np.linalg.qr(matrix, mode="r" if weight is None else "reduced")
        result = on_host(factor) if weight is None else factor[0] @ np.asarray(weight * positive, like=matrix)
        engines.synchronize()
        return result
