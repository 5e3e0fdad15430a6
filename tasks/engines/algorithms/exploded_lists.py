"""Lists as rows: one row for each element of a column of lists, with the values that its row has in other columns.

The host's readers make tables for both engines, so that this is done on Arrow tables, before an engine takes them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def list_lengths(lists: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """The number of elements of each list; a null has none."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    return np.asarray(lengths.to_numpy(), dtype=np.int64)


def explode(table: pa.Table, name: str, skip: int = 0, left: int = 0) -> pa.Table:
    """The table with a row for each element of the lists in the column `name`, in the order of rows and elements.

    The column has the elements then. Null and empty lists become no row, a null in a list becomes a row. The first
    `skip` and the last `left` of these rows are left out; the others alone are made.

    >>> explode(pa.table({"u": [1, 2, 3], "x": [[5, None], [], [7]]}), "x").to_pydict()
    {'u': [1, 1, 3], 'x': [5, None, 7]}
    """
    batches = table.to_batches()
    lengths = [list_lengths(batch.column(name)) for batch in batches]
    stop = sum(int(one.sum()) for one in lengths) - left
    exploded = []
    before = 0
    for batch, of_rows in zip(batches, lengths, strict=True):
        first = max(skip - before, 0)
        last = min(stop - before, int(of_rows.sum()))
        if first < last:
            exploded.append(_elements(batch, name, of_rows, first, last))
        before += int(of_rows.sum())
    element = table.schema.field(name).type.value_type
    fields = [field.with_type(element) if field.name == name else field for field in table.schema]
    return pa.Table.from_batches(exploded, pa.schema(fields))


def _elements(batch: pa.RecordBatch, name: str, lengths: np.ndarray, first: int, last: int) -> pa.RecordBatch:
    """The rows [first, last) of those that the lists of a batch become."""
    ends = np.cumsum(lengths)
    low = int(np.searchsorted(ends, first, side="right"))
    high = int(np.searchsorted(ends, last, side="left")) + 1
    before = int(ends[low - 1]) if low else 0
    rows = np.repeat(np.arange(low, high), lengths[low:high])[first - before : last - before]
    elements = pc.list_flatten(batch.column(name).slice(low, high - low)).slice(first - before, last - first)
    others = pa.array(rows)
    columns = [elements if field.name == name else batch.column(field.name).take(others) for field in batch.schema]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
