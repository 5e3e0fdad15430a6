"""Tables of keys that do not fit one task: split by the hash of the key, merged split by split, put in order by ranges.

A partial of a `Keyed` operator that reaches `Sizes.large` rows is cut into `splits` tables (`Split`); from then on
equal keys meet in equal splits. Chains of neighbouring splits are merged in parallel. Each chain's rows are then put in
order by themselves; quantiles of all chains cut the order into ranges, each of which gathers its rows from every chain.
Since all keys are distinct and the order is total, neither the cuts nor who did what leave a trace in the result.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from tasks import engines
from tasks.cluster.out_of_memory import frugal
from tasks.cluster.pool import Pool
from tasks.core.memory_budget import TABLES_SHARE_OF_GPU
from tasks.engines.convert.python_values import stored_type
from tasks.engines.convert.sizes import nbytes
from tasks.learning.large_table_types import SIZES, Outline, Part, Piece, Rows, Sizes, Split, sizes_of
from tasks.ops.base import Learned, Operator, Unit
from tasks.ops.keyed import Keyed

SAMPLES = 256  # rows of each chain that the ranges are cut by
ROW = 40  # bytes of a row, about


def split(op: Operator, partial: Any) -> Split:
    """The partial of a `Keyed` operator as tables by hash."""
    assert isinstance(op, Keyed)
    return partial if isinstance(partial, Split) else Split(tuple(op.split(partial, sizes_of(partial).splits)))


def split_if_large(op: Learned, partial: Any) -> Any:
    """The order-free partial, split if its operator allows it and it is large."""
    large = isinstance(op, Keyed) and not isinstance(partial, Split) and len(partial) >= sizes_of(partial).large
    return split(op, partial) if large else partial


def merge_all(op: Learned, partials: Sequence[Any]) -> Any:
    """The order-free partial of several; split by split as soon as one is split."""
    if len(partials) == 1:
        return partials[0]
    if not any(isinstance(p, Split) for p in partials):
        return split_if_large(op, op.merge_all(partials))
    return Split(tuple(op.merge_all(same) for same in zip(*(split(op, p).tables for p in partials), strict=True)))


def rows_of(op: Operator, partial: Any | None) -> Rows:
    """The rows of an order-free partial; none where there is no such partial."""
    if isinstance(partial, Split):
        return Rows(sum(len(t) for t in partial.tables), engines.engine_of(partial.tables[0]).NAME, split=True)
    if partial is None or not isinstance(op, Keyed):
        return Rows()
    return Rows(len(partial), engines.engine_of(partial).NAME)


def chains_for(rows: Rows) -> int:
    """Into how many chains the partials of a step with so many rows are merged, a power of two.

    0: the step is not finished by itself. Partials that are not split are one chain.
    """
    if rows.large:
        sizes = SIZES[rows.engine]
        return min(sizes.splits, 1 << (-(-max(rows.count, 1) // sizes.chain) - 1).bit_length())
    return 1 if rows.engine and rows.count >= SIZES[rows.engine].alone else 0


def chain_of(op: Operator, unit: Unit, partial: Any, chain: int, chains: int) -> Part:
    """What belongs to one chain."""
    assert isinstance(op, Keyed)
    tables = partial.tables if isinstance(partial, Split) else (partial,)
    return Part(op, unit, tables[chain * len(tables) // chains : (chain + 1) * len(tables) // chains])


@frugal
def merge_parts(found: Sequence[Part]) -> Part:
    """The tables of one chain from several places as one for each split."""
    op = found[0].op
    with _working([table for part in found for table in part.tables]):
        return Part(op, found[0].unit, [op.merge_all(same) for same in zip(*(f.tables for f in found), strict=True)])


@contextmanager
def _working(tables: Sequence[Any]) -> Iterator[None]:
    """A place on the GPU for work with these tables, until it is done."""
    with engines.computing(engines.engine_of(tables[0]).NAME, nbytes(list(tables))):
        yield
        engines.synchronize()


def finalize(
    pool: Pool, chains: dict[str, list[Any]], rows: Mapping[str, Rows], known: Callable[[Mapping[str, Any]], None]
) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """`Learned.parted` of every step, of the handles of its chains (merged `Part`s), which the lists lose.

    `known` is told either half of it, in threads, while other steps are worked on.
    """
    single = [key for key, of_step in chains.items() if len(of_step) == 1]
    here = _brought_together(pool, [rows[key] for key in single])
    alone = pool.call(_in_one, [(chains[key].pop(),) for key in single], here)
    ranges = _in_ranges(pool, {key: of_step for key, of_step in chains.items() if key not in single})
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="millrace-finish") as threads:
        learned = {}
        for number, (op, unit, sums, table) in pool.arriving(alone):
            learned[single[number]] = threads.submit(_finish, op, unit, sums, [table], known)
        for key in list(ranges):
            told, handles = ranges.pop(key)
            sums = {name: sum(part.sums[name] for part in told) for name in told[0].sums}
            learned[key] = threads.submit(_finish, told[0].op, told[0].unit, sums, pool.values(handles), known)
            del handles
    return {key: learned[key].result() for key in chains}


def _brought_together(pool: Pool, rows: Sequence[Rows]) -> bool:
    """Whether steps of one chain each are put in order where they are needed, in this process: on GPUs, if there is
    room. From GPU to GPU rows come in no time, out of the host memory of other workers at a gigabyte a second."""
    if not rows or any(r.engine != "cudf" for r in rows):
        return False
    return sum(r.count for r in rows) * ROW <= pool.device_memory / max(len(pool.workers), 1) * TABLES_SHARE_OF_GPU


def _in_one(part: Part) -> tuple[Keyed, Unit, Mapping[str, Any], pa.Table]:
    """What `finish` needs of a step that is one chain: its numbers, and its rows in order in host memory."""
    arranged = _arrange(part)
    return part.op, part.unit, arranged.sums or {}, _range(part.op, [Piece(arranged.tables[0])])


def _in_ranges(pool: Pool, chains: dict[str, list[Any]]) -> dict[str, tuple[list[Outline], list[Any]]]:
    """(what is told of a step's chains, handles of its rows in order by ranges) of steps of several chains."""
    arranged = {key: pool.call(_arrange, [(chain,) for chain in of_step]) for key, of_step in chains.items()}
    for of_step in chains.values():
        of_step.clear()
    outlines = iter(pool.values(pool.call(_outline, [(part,) for parts in arranged.values() for part in parts])))
    found = {}
    for key in list(arranged):
        parts = arranged.pop(key)
        told = [next(outlines) for _ in parts]
        edges = _edges([part.sample for part in told], sum(part.rows for part in told), SIZES[told[0].engine])
        cuts = pool.call(_cut, [(part, edges) for part in parts])
        del parts
        found[key] = told, [pool.call(_piece, [(cut, i) for cut in cuts]) for i in range(len(edges) + 1)]
        del cuts
    ranges = {}
    for key in list(found):
        told, pieces = found.pop(key)
        ranges[key] = told, pool.call(_range, [(told[0].op, same) for same in pieces])
        del pieces
    return ranges


def _finish(
    op: Keyed, unit: Unit, sums: Mapping[str, Any], tables: Sequence[pa.Table],
    known: Callable[[Mapping[str, Any]], None],
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """`Learned.parted` of all rows in order, which come as the tables of the ranges."""
    fitted, kept = op.parted(None, op.finish(pa.concat_tables(tables).combine_chunks(), sums, unit))
    known(fitted)
    known(kept)
    return fitted, kept


@frugal
def _arrange(part: Part) -> Part:
    engine = engines.engine_of(part.tables[0])
    with _working(part.tables):
        table, sums = part.op.arrange(engine.join_tables(part.tables), part.unit)
        table = table.combine_chunks() if isinstance(table, pa.Table) else table
    return Part(part.op, part.unit, [table], sums)


def _outline(part: Part) -> Outline:
    (table,), rows = part.tables, part.rows
    sample = _places(part.op, table, [rows * i // SAMPLES for i in range(min(SAMPLES, rows))])
    return Outline(part.op, part.unit, engines.engine_of(table).NAME, rows, part.sums or {}, sample)


def _places(op: Keyed, table: Any, rows: Sequence[int]) -> list[tuple[Any, ...]]:
    """What rows of a table are ordered by. All of them are fetched at once: from a GPU each time counts."""
    if not rows:
        return []
    engine = engines.engine_of(table)
    found = engine.host_table(engine.table_rows(table, np.array(rows, dtype=np.int64)))
    stored = pa.table({f.name: found[f.name].cast(stored_type(f.type)) for f in found.schema})
    return [op.place(row) for row in stored.to_pylist()]


def _edges(samples: Sequence[list[tuple[Any, ...]]], rows: int, sizes: Sizes) -> list[tuple[Any, ...]]:
    """Where the order is cut into ranges of about `range` rows; nowhere if one task can take all rows.

    More ranges than splits are of no use: each takes a piece of every chain, and a chain is no smaller than they.
    """
    ranges = 1 if rows <= sizes.one_task else min(-(-rows // sizes.range), sizes.splits)
    places = sorted(itertools.chain.from_iterable(samples))
    return [places[len(places) * i // ranges] for i in range(1, ranges)] if places else []


def _cut(part: Part, edges: Sequence[tuple[Any, ...]]) -> list[Piece]:
    """The arranged table in its ranges."""
    (table,) = part.tables
    if not edges:
        return [Piece(table)]
    at = [0, *_first_not_before(part.op, table, edges), len(table)]
    engine = engines.engine_of(table)
    pieces = [Piece(engine.slice_table(table, start, stop)) for start, stop in itertools.pairwise(at)]
    engines.synchronize()
    return pieces


def _first_not_before(op: Keyed, table: Any, edges: Sequence[tuple[Any, ...]]) -> list[int]:
    """For each edge the first row that does not stand before it, all by bisection at the same time."""
    low, high = [0] * len(edges), [len(table)] * len(edges)
    while open_edges := [i for i in range(len(edges)) if low[i] < high[i]]:
        middles = [(low[i] + high[i]) // 2 for i in open_edges]
        for i, middle, place in zip(open_edges, middles, _places(op, table, middles), strict=True):
            if place < edges[i]:
                low[i] = middle + 1
            else:
                high[i] = middle
    return low


def _piece(pieces: Sequence[Piece], number: int) -> Piece:
    return pieces[number]


@frugal
def _range(op: Keyed, pieces: list[Piece]) -> pa.Table:
    tables = [piece.table for piece in pieces]
    with _working(tables):
        table = tables[0] if len(tables) == 1 else op.in_order(tables)
        return engines.engine_of(table).host_table(table)
