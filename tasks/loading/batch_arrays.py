"""The columns of a batch as arrays: made of Arrow tables, or of row groups in the memory of a device.

Arrays are NumPy's in host memory and CuPy's on a GPU. Functions that take `xp`, one of these modules, run on both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.dtypes import is_list
from tasks.engines.algorithms.arrow_arrays import one_array, raw
from tasks.engines.convert.python_values import to_storage_type
from tasks.errors import DataError, JobError, near

ELEMENTS = 1 << 24  # elements of lists that are put in order at once: their numbers take 24 bytes each


class Arrays(dict[str, Any]):
    """The columns of a batch as arrays, by name.

    `lengths` has, for each column of lists, the lengths of its lists as an array in host memory: who compares lengths
    does not wait for a GPU.
    """

    def __init__(self, *columns: Any, lengths: Mapping[str, np.ndarray] | None = None) -> None:
        super().__init__(*columns)
        self.lengths = dict(lengths or {})


@dataclass(frozen=True, eq=False)
class GroupColumn:
    """A column of a row group in the memory of a device.

    values: its numbers, of lists their elements. offsets: where the elements of each list begin, and the last ends,
    of a column of lists; ends: the same in host memory.
    """

    values: Any
    offsets: Any | None = None
    ends: np.ndarray | None = None


def arrays(table: pa.Table | Arrays, *, writable: bool = False) -> Arrays:
    """Convert the columns of a batch to numpy arrays, by name; `<column>_offsets` says where the elements of each list
    begin.

    Numbers and booleans have the column's type; times are integers in the column's unit; a null float is NaN. A list
    column gives its elements, and offsets (int64, one more than rows): row i has elements [offsets[i], offsets[i + 1]).
    A null list has no elements. Lists of one length by their type give an array of two dimensions, (rows, length),
    without offsets; a null list of floats is a row of NaN. Errors: a DataError for a column that is not of numbers, and
    for nulls in a column of integers, booleans or times.

    A batch of arrays, as a loader with a `device` gives them, is returned as it is.

    writable: the table belongs to nobody else, so its memory may be written: arrays that are views of it can be written
    where Arrow's memory can (that of a mapped file cannot).

    >>> arrays(pa.table({"x": [1.5, None], "l": [[1, 2], [3]]}))
    {'x': array([1.5, nan]), 'l': array([1, 2, 3]), 'l_offsets': array([0, 2, 3])}
    """
    if isinstance(table, Arrays):
        return table
    by_column = Arrays()
    for name, column in zip(table.column_names, table.columns, strict=True):
        values = one_array(column)
        if pa.types.is_fixed_size_list(values.type):
            by_column[name] = _rows_of_one_length(name, values, writable)
        elif is_list(values.type):
            lengths = np.asarray(values.value_lengths().fill_null(0), dtype=np.int64)
            by_column.lengths[name] = lengths
            by_column[name] = _to_numpy(name, values.flatten(), writable)
            by_column[f"{name}_offsets"] = np.concatenate([[0], np.cumsum(lengths)])
        else:
            by_column[name] = _to_numpy(name, values, writable)
    return by_column


def _rows_of_one_length(name: str, values: pa.FixedSizeListArray, writable: bool) -> np.ndarray:
    size = values.type.list_size
    elements = values.values.slice(values.offset * size, len(values) * size)
    if values.null_count:
        valid = pa.array(np.repeat(np.asarray(values.is_valid()), size))
        elements = pc.if_else(valid, elements, pa.scalar(None, elements.type))
    return _to_numpy(name, elements, writable).reshape(len(values), size)


def jagged(columns: Mapping[str, Any], names: Sequence[str] | Mapping[str, str | None]) -> dict[str, Any]:
    """Convert columns of `arrays` to the jagged form of TorchRec: {keys, values, lengths}, one column after the other.

    A column of single values has lists of length 1. `lengths` (int32) has those of the first column's rows, then those
    of the second's; `KeyedJaggedTensor(keys, values, lengths=lengths)` takes them as tensors. Arrays are of the
    columns' library, NumPy or CuPy.

    names: the columns, or a map {column: column of its weights}. With a map, `weights` (float32) is there, too: one for
    each value, 1 for the values of a column whose weights are None.

    Errors: a JobError for no names, an unknown column, and columns of several types; a DataError for a column whose
    lists have other lengths than those of its weights.

    >>> jagged(arrays(pa.table({"x": [7, 8], "l": [[1, 2], []]})), ["l", "x"])
    {'keys': ['l', 'x'], 'values': array([1, 2, 7, 8]), 'lengths': array([2, 0, 1, 1], dtype=int32)}
    >>> jagged(arrays(pa.table({"l": [[1, 2], []], "w": [[0.5, 0.25], []]})), {"l": "w"})["weights"]
    array([0.5 , 0.25], dtype=float32)
    """
    named: Mapping[str, str | None] = names if isinstance(names, Mapping) else dict.fromkeys(names)
    weights = {name: weight for name, weight in named.items() if weight is not None}
    columns = dict(columns)
    for name in [name for name, values in columns.items() if values.ndim > 1]:  # lists of one length
        rows, size = columns[name].shape
        columns |= {
            name: columns[name].reshape(-1),
            f"{name}_offsets": module_of(columns[name]).arange(rows + 1) * size,
        }
    for name in [*names, *weights.values()]:
        if name not in columns:
            raise JobError(f"there is no column {name!r} in the batch", do=near(name, columns))
    types = {name: columns[name].dtype.name for name in names}
    if len(set(types.values())) != 1:
        why = ", ".join(f"{name} is {dtype}" for name, dtype in types.items()) or "no column is named"
        raise JobError("the columns of a jagged tensor have one type", why=why, do="name columns of one type")
    for name, weight in weights.items():
        _check_lengths(columns, name, weight)
    xp = module_of(columns[next(iter(names))])
    lengths = [
        xp.diff(columns[f"{name}_offsets"]) if f"{name}_offsets" in columns else xp.ones(len(columns[name]), np.int64)
        for name in names
    ]
    form = {
        "keys": list(names),
        "values": xp.concatenate([columns[name] for name in names]),
        "lengths": xp.concatenate(lengths).astype(np.int32),
    }
    if weights:
        each = [columns[weights[n]] if n in weights else xp.ones(len(columns[n]), np.float32) for n in names]
        form["weights"] = xp.concatenate([values.astype(np.float32) for values in each])
    return form


def module_of(values: object) -> ModuleType:
    """Return the module of an array: NumPy, or CuPy."""
    return sys.modules["cupy"] if type(values).__module__.split(".")[0] == "cupy" else np


def _check_lengths(columns: Mapping[str, Any], name: str, weight: str) -> None:
    """Raise a DataError for the first row whose list has another length than the list of its weights."""
    values = _count_lengths(columns, name)
    weights = _count_lengths(columns, weight)
    rows = np.flatnonzero(values != weights)
    if len(rows):
        row = int(rows[0])
        raise DataError(
            f"the lists of {name!r} and of its weights, {weight!r}, have different lengths: "
            f"{int(values[row]):,} and {int(weights[row]):,}",
            where=f"row {row:,} of the batch, one of {len(rows):,}",
            why="each value of a jagged tensor has a weight; a null list counts as an empty one",
            do=f"fix the data; [{name}, {weight}] >> EqualLengths() in the job names the row of the source",
        )


def _count_lengths(columns: Mapping[str, Any], name: str) -> np.ndarray:
    """Count the values of each row of a column, in host memory."""
    if isinstance(columns, Arrays) and name in columns.lengths:
        return columns.lengths[name]
    if f"{name}_offsets" not in columns:
        return np.ones(len(columns[name]), np.int64)
    offsets = columns[f"{name}_offsets"]
    return np.diff(offsets if isinstance(offsets, np.ndarray) else offsets.get())


def fill_null_floats(
    xp: ModuleType, name: str, dtype: pa.DataType, values: np.ndarray, valid: Any | None
) -> np.ndarray:
    """Return the stored values of a column of numbers, null floats as NaN: what `arrays` makes of the same column.

    `valid` says which values are not null; None: all. A DataError for nulls in a column of integers, booleans or times.
    """
    if valid is None:
        return values
    if values.dtype.kind == "f":
        return xp.where(valid, values, values.dtype.type(np.nan))
    if not bool(valid.all()):
        raise _make_null_error(name, dtype)
    return values


def in_order(xp: ModuleType, host: Callable[[Any], np.ndarray], column: GroupColumn, index: Any | None) -> GroupColumn:
    """Take the rows of a column by number; `index` None: as they lie. `host` copies an array to host memory."""
    values = column.values
    offsets = column.offsets
    if offsets is None:
        return column if index is None else GroupColumn(values[index])
    if index is None:
        return GroupColumn(values, offsets, host(offsets))
    first = offsets[:-1][index]
    lengths = xp.diff(offsets)[index]
    offsets = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(lengths)])
    ends = host(offsets)
    elements = xp.empty(int(ends[-1]), values.dtype)
    for start in range(0, len(elements), ELEMENTS):
        places = xp.arange(start, min(start + ELEMENTS, len(elements)))
        rows = xp.searchsorted(offsets[1:], places, side="right")
        elements[start : start + len(places)] = values[first[rows] + places - offsets[rows]]
    return GroupColumn(elements, offsets, ends)


def assemble_batch(xp: ModuleType, pieces: Sequence[tuple[Mapping[str, GroupColumn], int, int]]) -> Arrays:
    """Assemble the batch of rows [low, high) of each (row group, low, high), in memory of its own."""
    batch = Arrays()
    for name, column in pieces[0][0].items():
        parts = [(group[name], low, high) for group, low, high in pieces]
        if column.offsets is None:
            batch[name] = _copy_parts(xp, [part.values[low:high] for part, low, high in parts])
            continue
        elements = list[Any]()
        offsets = list[Any]()
        lengths = list[np.ndarray]()
        count = 0
        for part, low, high in parts:
            assert part.offsets is not None
            assert part.ends is not None
            start = int(part.ends[low])
            stop = int(part.ends[high])
            elements.append(part.values[start:stop])
            offsets.append(part.offsets[low + bool(offsets) : high + 1] + (count - start))
            lengths.append(np.diff(part.ends[low : high + 1]))
            count += stop - start
        batch[name], batch[f"{name}_offsets"] = _copy_parts(xp, elements), _copy_parts(xp, offsets)
        batch.lengths[name] = np.concatenate(lengths)
    return batch


def _copy_parts(xp: ModuleType, parts: Sequence[Any]) -> np.ndarray:
    return parts[0].copy() if len(parts) == 1 else xp.concatenate(parts)


def group_columns(table: pa.Table, put: Callable[[np.ndarray], Any]) -> dict[str, GroupColumn]:
    """Put the columns of a row group that were read into host memory into the memory of a device. Errors: `arrays`."""
    columns = {}
    for name in table.column_names:
        column = arrays(table.select([name]))
        offsets = put(column[f"{name}_offsets"]) if name in column.lengths else None
        columns[name] = GroupColumn(put(column[name]), offsets)
    return columns


def _to_numpy(name: str, values: pa.Array, writable: bool) -> np.ndarray:
    dtype = values.type
    if pa.types.is_boolean(dtype):
        values = values.cast(pa.uint8())
    elif pa.types.is_temporal(dtype):
        values = values.cast(to_storage_type(dtype))
    elif not (pa.types.is_integer(dtype) or pa.types.is_floating(dtype)):
        raise DataError(
            f"column {name!r} is {dtype}, which is not a number",
            why="arrays and tensors hold numbers",
            do=f"leave {name!r} out of columns=, or apply Categorify to it in the job",
        )
    if values.null_count and not pa.types.is_floating(values.type):
        raise _make_null_error(name, dtype)
    if writable and not values.null_count and pa.types.is_primitive(values.type):
        numbers = raw(values)
    else:
        numbers = values.to_numpy(zero_copy_only=False)
    return numbers.astype(np.bool_) if pa.types.is_boolean(dtype) else np.ascontiguousarray(numbers)


def _make_null_error(name: str, dtype: pa.DataType) -> DataError:
    return DataError(
        f"column {name!r} has nulls",
        why=f"{dtype} has no number for them",
        do="apply FillMissing or Categorify to it in the job",
    )
