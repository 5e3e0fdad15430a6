"""Columns of numbers as matrices of the engine (NumPy or CuPy), and as a Dask array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tasks import engines
from tasks.core.dtypes import dtype_name, kind_of
from tasks.core.plan import Partition
from tasks.core.schema import Schema
from tasks.engines.types import Array
from tasks.errors import DataError, JobError


def matrix_type(schema: Schema, names: Sequence[str], dtype: Any = None) -> np.dtype[Any]:
    """The type of a matrix of columns: `dtype`, else the one that holds all; a JobError for what is not a number."""
    types = []
    for name in names:
        column = schema[name].dtype
        do = "name the columns of numbers: columns=[..]"
        if kind_of(column) not in ("number", "bool"):
            raise JobError(f"column {name!r} is {dtype_name(column)}, and an array holds numbers", do=do)
        types.append(np.dtype("float64" if pa.types.is_decimal(column) else column.to_pandas_dtype()))
        if dtype is not None and not np.can_cast(types[-1], dtype, "same_kind"):
            what = f"column {name!r} is {dtype_name(column)}, which {np.dtype(dtype)} does not hold"
            raise JobError(what, do="leave dtype out, or cast the column first")
    if not types:
        raise JobError("an array needs at least one column", do="name columns of numbers: columns=[..]")
    return np.dtype(dtype or np.result_type(*types))


@dataclass(frozen=True)
class Matrices:
    """Reads rows as matrices of one type; `frame(partition)` gives the rows of a partition as a frame of the engine."""

    frame: Callable[[Partition], Any]
    names: tuple[str, ...]
    dtype: np.dtype[Any]
    engine: str

    def read(self, partition: Partition) -> Array:
        """The rows of a partition; null is NaN. A DataError for a null where the type has no NaN."""
        kernels = engines.engine(self.engine)
        frame = self.frame(partition)
        matrix = kernels.xp.empty((len(frame), len(self.names)), self.dtype)
        for i, name in enumerate(self.names):
            values, valid = kernels.numbers(kernels.adopt(frame[name]))
            matrix[:, i] = values
            if valid is not None and self.dtype.kind != "f":
                what = f"column {name!r} has a null, which arrays of {self.dtype} cannot hold"
                where = f"the {partition.rows:,} rows from row {partition.first_row:,}"
                raise DataError(what, where=where, do="take dtype='float64', where null is NaN, or fill it first")
            if valid is not None:
                matrix[~valid, i] = np.nan
        engines.synchronize()
        return matrix

    def stack_blocks(self, blocks: Sequence[Any], rows: Sequence[int], width: int) -> Any:
        """The Dask array of matrices of so many rows and of `width` columns, one delayed matrix below the other."""
        import dask.array as da

        empty = engines.engine(self.engine).xp.empty((0, width), self.dtype)
        chunks = [da.from_delayed(b, (n, width), meta=empty) for b, n in zip(blocks, rows, strict=True)]
        return da.concatenate(chunks)
