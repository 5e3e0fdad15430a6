"""A sample of the rows of a source, the same for any partitions, and hashes of rows that show which are repeated.

Of each `step` consecutive rows of the source one is drawn, by a hash of the seed and its number: the sample is
stratified, and has at most `ROWS` rows. The share of rows below a quantile of the sample is within about 0.4 % of what
it is over all rows (two standard errors at the median, sqrt(1 / 4 n) each).
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tasks import engines
from tasks.core.dtypes import is_list, kind_of, leaf_type
from tasks.core.schema import ROW
from tasks.core.strict_json import JsonObject
from tasks.engines.algorithms.column_sketch import hash_bits, integer_bits, unique
from tasks.engines.algorithms.protocol import Kernels
from tasks.engines.hashing import murmur3
from tasks.engines.types import Array, Series

ROWS = 1 << 16  # most rows of the sample
COMPARED = 1 << 14  # about how many rows are compared with each other
SEED = 0x726F7773
CODES = 1 << 16  # codes by which the sample distinguishes texts, which it does not have
CHOOSING = 2  # columns whose values choose the rows that are compared
CHUNK = 1 << 14  # values that fit into the first levels of cache, with what is computed from them
ASSOCIATED_COLUMNS = 24  # columns that are in the sample only for their associations
CROWD = 8  # times the expected number of chosen rows beyond which their values say too little to choose by


def step_of(rows: int) -> int:
    """Compute of how many consecutive rows one is drawn, for a source of so many rows."""
    return max(-(-rows // ROWS), 1)


def draw_places(rows: Array, step: int, ascending: bool, engine: Kernels) -> Array:
    """Find the places of the drawn rows among these row numbers (uint64 of the engine), some of which may be
    missing."""
    xp = engine.xp
    if step == 1 or not len(rows):
        return xp.arange(len(rows))
    if not ascending:
        drawn = rows // step * step + engine.hash_rows(rows // step, SEED) % step
        return xp.flatnonzero(rows == drawn)
    first = int(rows[0])
    last = int(rows[-1])
    strata = np.arange(first // step, last // step + 1, dtype=np.uint64)
    drawn = strata * np.uint64(step) + murmur3.hash_fixed(strata, SEED, np).astype(np.uint64) % np.uint64(step)
    drawn = drawn[(drawn >= first) & (drawn <= last)]
    if last - first + 1 == len(rows):
        return xp.asarray((drawn - np.uint64(first)).astype(np.int64))
    numbers = xp.asarray(drawn)
    places = xp.searchsorted(rows, numbers)
    return places[rows.take(places) == numbers]


class Drawn(NamedTuple):
    """Rows of a partition in host memory.

    sample: the rows that their numbers draw, with these in the column `ROW`, and with texts as codes by their hash,
        uint16; None without a column of numbers, times, bools or texts.
    hashes: those of whole rows, for about `COMPARED` rows that their own values choose: of equal rows either
        all are chosen or none. None where the values do not tell rows apart well enough to choose by.
    """

    sample: pa.Table | None
    hashes: np.ndarray | None


def draw(sampled: JsonObject, compared: JsonObject, rows: Array, of: int, ascending: bool, engine: Kernels) -> Drawn:
    """Draw from rows with these numbers (uint64 of the engine), of a source of `of` rows; lists are not compared."""
    xp = engine.xp
    step = step_of(of)
    among = max(-(-of // COMPARED), 1)
    sampled = {name: column for name, column in sampled.items() if _is_sampled(engine.dtype(column))}
    plain = {name: column for name, column in compared.items() if _is_plain(engine.dtype(column))}
    places = draw_places(rows, step, ascending, engine) if sampled or among == 1 else xp.arange(0)
    chosen = (
        _choose_places_by_hash(_choose_widest(plain, engine), len(rows), among, engine)
        if plain and among > 1
        else xp.arange(0)
    )
    crowded = len(chosen) > CROWD * (len(rows) // among + 1_000)
    both = places if crowded else xp.concatenate([places, chosen])
    taken = engine.take({**sampled, **plain}, both)  # once, since each copy from a GPU is waited for
    arrays = {name: engine.host(column) for name, column in taken.items()}
    drawn = len(places)
    sample = None
    if sampled:
        numbers = engine.host(engine.from_numbers(rows.take(places)))
        sample = pa.table({ROW: numbers, **{name: _hash_strings(arrays[name][:drawn]) for name in sampled}})
    if crowded or (compared and not plain):
        return Drawn(sample, None)
    start = 0 if among == 1 else drawn
    return Drawn(sample, _hash_rows([arrays[name][start:] for name in plain]))


def _hash_rows(columns: Sequence[pa.Array]) -> np.ndarray:
    if not columns:
        return np.empty(0, np.uint32)
    kernels = engines.engine("pandas")
    hashes: np.ndarray = kernels.hash_columns([kernels.column(column) for column in columns])
    return hashes  # of so many different rows hardly any two have one hash


def _is_sampled(dtype: pa.DataType) -> bool:
    kind = kind_of(leaf_type(dtype))
    return kind in ("number", "time", "bool") or (kind == "string" and not is_list(dtype))


def _hash_strings(array: pa.Array) -> pa.Array:
    if kind_of(array.type) != "string":
        return array
    codes = (murmur3.hash_array(array.fill_null("")) % CODES).astype(np.uint16)
    return pa.array(codes, mask=array.is_null().to_numpy(zero_copy_only=False))


def join_samples(samples: Iterable[pa.Table | None]) -> pa.Table | None:
    """Join the samples of parts that have no row in common."""
    tables = [table for table in samples if table is not None]
    if not tables:
        return None
    return pa.concat_tables(tables, promote_options="permissive") if len(tables) > 1 else tables[0]


def join_columns(one: pa.Table | None, other: pa.Table | None) -> pa.Table | None:
    """Join the samples of two passes over the same rows, each with columns of its own."""
    if one is None or other is None:
        return other if one is None else one
    one = one.sort_by(ROW)
    other = other.sort_by(ROW)
    assert one[ROW].equals(other[ROW]), "two passes over the same rows have drawn the same ones"
    for name in other.column_names:
        one = one if name in one.column_names else one.append_column(name, other[name])
    return one


def encode_sample(sample: pa.Table | None) -> str:
    """Encode a sample as text."""
    if sample is None:
        return ""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, sample.schema) as writer:  # what it holds hardly compresses
        writer.write_table(sample)
    return base64.b64encode(sink.getvalue()).decode()


def decode_sample(text: str) -> pa.Table | None:
    """Decode what `encode_sample` made."""
    return pa.ipc.open_stream(base64.b64decode(text)).read_all() if text else None


def _is_plain(dtype: pa.DataType) -> bool:
    return kind_of(dtype) in ("number", "time", "bool", "string")


def _choose_widest(columns: JsonObject, engine: Kernels) -> list[Any]:
    """Choose the columns whose values differ most, by their types: times and wide numbers, then narrow ones, then
    texts."""

    def rank(column: Series) -> tuple[int, int]:
        dtype = engine.dtype(column)
        kind = kind_of(dtype)
        if kind == "string" or pa.types.is_decimal(dtype):
            return 2, 0
        return (0 if kind == "time" else 1), -dtype.bit_width

    return sorted(columns.values(), key=rank)[:CHOOSING]


def _choose_places_by_hash(columns: Sequence[Any], rows: int, step: int, engine: Kernels) -> np.ndarray:
    """Choose about one of `step` rows by the hash of their values in these columns; return their places."""
    xp = engine.xp
    size = CHUNK if engine.xp is np else rows
    bits = [_to_bits(column, engine) for column in columns]
    limit = xp.uint64((1 << 64) // step)
    places = []
    for start in range(0, rows, size):
        first, *others = (values[start : start + size] for values in bits)
        for values in others:
            first = first * xp.uint64(3) + values
        places.append(xp.flatnonzero(hash_bits(first, xp) < limit) + start)
    return xp.concatenate(places)


def _to_bits(column: Series, engine: Kernels) -> Array:
    """Convert each value to a uint64 that is the same for equal values."""
    xp = engine.xp
    dtype = engine.dtype(column)
    if pa.types.is_decimal(dtype) or kind_of(dtype) == "string":
        return engine.hash_columns([column]).astype(xp.uint64)
    values, valid = engine.numbers(column)
    bits = integer_bits(
        values.astype(xp.float64, copy=False).view(xp.uint64) if values.dtype.kind == "f" else values, xp
    )
    return bits if valid is None else xp.where(valid, bits, xp.uint64(0))


def measure_repeated_share(hashes: np.ndarray | None) -> tuple[float | None, int]:
    """Measure the share of rows that repeat an earlier one, and count the rows that were compared.

    The share is None if no rows were compared.
    """
    if hashes is None or not len(hashes):
        return None, 0
    return 1 - len(unique(hashes)) / len(hashes), len(hashes)
