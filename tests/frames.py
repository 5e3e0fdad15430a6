"""Small columns for tests: facts in, facts out, on the engine that the test run asks for; frames as files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.dtypes import parse_dtype


def make_column(
    values: Iterable[Any] | pa.Array, dtype: str | pa.DataType | None = None, engine: str = "pandas"
) -> Any:
    """A pandas Series of an Arrow type, or a cuDF Series, from Python values or an Arrow array; None is null."""
    wanted = parse_dtype(dtype) if isinstance(dtype, str) else dtype
    array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(list(values), wanted)
    if engine == "cudf":
        import cudf

        return cudf.Series.from_arrow(array)
    return pd.Series(pd.arrays.ArrowExtensionArray(array))


def to_arrow(column: Any) -> pa.Array:
    """The Arrow array of a column of either engine."""
    if type(column).__module__.partition(".")[0] == "cudf":
        return column.to_arrow()
    array = column if isinstance(column, pa.Array) else column.array.__arrow_array__()
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def to_list(column: Any) -> list[Any]:
    """The values of a column (or of a numpy or CuPy array) as Python values; null is None."""
    on_gpu = type(column).__module__.partition(".")[0] == "cudf"  # has a tolist that only raises
    if not on_gpu and not isinstance(column, pa.Array | pd.Series):
        return column.tolist()
    return to_arrow(column).to_pylist()


def write_parts(folder: Path, frame: pd.DataFrame, files: int, row_group_size: int = 20) -> None:
    """Write the rows of a frame, in their order, to so many Parquet files of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(np.array_split(np.arange(len(frame)), files)):
        table = pa.Table.from_pandas(frame.iloc[rows], preserve_index=False)
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=row_group_size)
