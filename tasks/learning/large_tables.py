"""Tables of keys that do not fit one task: split by the hash of the key, merged by chains, put in order by ranges.

The partial of a `Keyed` operator that reaches `Sizes.large` rows is split into `Sizes.splits` tables (`Split`). Equal
keys are in equal splits, so neighbouring splits form a `Chain` that merges beside the others. Each chain is then put
in order by itself, quantiles of all chains (`edges`) cut the order into ranges, and each range gathers a `Slice` of
every chain::

      partials of a step                          merged                 in order               cut at the edges
      p0    p1    p2
    +-----+-----+-----+
    |  0  |  0  |  0  |  split 0 \
    |  1  |  1  |  1  |  split 1 /  chain 0  -->  one table per split -> a a a a a a a a a  ->  a a a | a a a a | a a
    +-----+-----+-----+                                                                           |   |    |    |  |
    |  2  |  2  |  2  |  split 2 \\                                                                |   |    |    |  |
    |  3  |  3  |  3  |  split 3 /  chain 1  -->  one table per split -> b b b b b b b b b  ->  b b | b b b | b b b b
    +-----+-----+-----+                                                                         range 0    1       2

      split, merge_all              chain_of      merge_chains           _arrange               _edges, _cut
                                                                                 _range joins the slices of a column

The ranges one after another are the whole table in order (`_finish`). All keys are distinct and the order is total, so
the result does not depend on where tables are cut nor on which worker does what.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tasks import engines
from tasks.cluster.out_of_memory import retry_without_cache
from tasks.cluster.pool import Pool
from tasks.core.memory_budget import TABLES_SHARE_OF_GPU
from tasks.engines.convert.frame_sizes import nbytes
from tasks.engines.convert.python_values import to_storage_type
from tasks.learning.handles import Handles
from tasks.learning.large_table_types import SIZES, Chain, Outline, RowCount, Sizes, Slice, Split, sizes_of
from tasks.ops.base import Learned, Operator, Unit
from tasks.ops.fitted_values import FittedValues
from tasks.ops.keyed import Keyed

SAMPLED_ROWS = 256  # of each chain: their quantiles are the edges of the ranges
ROW_BYTES = 40  # of a table, about


def split(op: Operator, partial: object) -> Split:
    """The partial of a `Keyed` operator, split by the hash of its keys."""
    assert isinstance(op, Keyed)
    return partial if isinstance(partial, Split) else Split(tuple(op.split(partial, sizes_of(partial).splits)))


def split_if_large(op: Learned, partial: Any) -> object:
    """The order-free partial, split if its operator is `Keyed` and it is large."""
    large = isinstance(op, Keyed) and not isinstance(partial, Split) and len(partial) >= sizes_of(partial).large
    return split(op, partial) if large else partial


def merge_all(op: Learned, partials: Sequence[Any]) -> object:
    """Several order-free partials as one; merged split by split if one of them is split."""
    if len(partials) == 1:
        return partials[0]
    if not any(isinstance(p, Split) for p in partials):
        return split_if_large(op, op.merge_all(partials))
    return Split(tuple(op.merge_all(same) for same in zip(*(split(op, p).tables for p in partials), strict=True)))


def rows_of(op: Operator, partial: Any | None) -> RowCount:
    """The rows of an order-free partial; none if `partial` is None or its operator is not `Keyed`."""
    if isinstance(partial, Split):
        return RowCount(sum(len(t) for t in partial.tables), engines.engine_of(partial.tables[0]).NAME, split=True)
    if partial is None or not isinstance(op, Keyed):
        return RowCount()
    return RowCount(len(partial), engines.engine_of(partial).NAME)


def chains_for(rows: RowCount) -> int:
    """The number of chains of a step with so many rows, a power of two; 1 if its partials are not split.

    0: the step is so small that other steps share its tasks.
    """
    if rows.large:
        sizes = SIZES[rows.engine]
        return min(sizes.splits, 1 << (-(-max(rows.count, 1) // sizes.chain) - 1).bit_length())
    return 1 if rows.engine and rows.count >= SIZES[rows.engine].alone else 0


def chain_of(op: Operator, unit: Unit, partial: object, number: int, count: int) -> Chain:
    """Chain `number` of `count` of a partial."""
    assert isinstance(op, Keyed)
    tables = partial.tables if isinstance(partial, Split) else (partial,)
    return Chain(op, unit, tables[number * len(tables) // count : (number + 1) * len(tables) // count])


@retry_without_cache
def merge_chains(chains: Sequence[Chain]) -> Chain:
    """The same chain of several partials as one, with one table for each split."""
    op = chains[0].op
    unit = chains[0].unit
    with _working([table for chain in chains for table in chain.tables]):
        return Chain(op, unit, [op.merge_all(same) for same in zip(*(c.tables for c in chains), strict=True)])


@contextmanager
def _working(tables: Sequence[Any]) -> Iterator[None]:
    """Waits until the GPU has room for work with these tables, and afterwards until the work is done."""
    with engines.computing(engines.engine_of(tables[0]).NAME, nbytes(list(tables))):
        yield
        engines.synchronize()


def finalize(
    pool: Pool, chains: Mapping[str, Handles], rows: Mapping[str, RowCount], known: Callable[[FittedValues], None]
) -> dict[str, tuple[FittedValues, FittedValues]]:
    """(fitted values, partials for a refit) by step, of the handles of its merged chains, which are consumed.

    `known` is called with either dict of a step, in threads, while other steps are worked on.
    """
    single = [key for key, handles in chains.items() if len(handles) == 1]
    here = _is_arranged_here(pool, [rows[key] for key in single])
    alone = pool.call(_in_one, [(chain,) for key in single for chain in chains[key].consume()], here)
    outlines, ranges = _in_ranges(pool, {key: handles for key, handles in chains.items() if key not in single})
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="rowmill-finish") as threads:
        learned = {}
        for number, (op, unit, sums, table) in pool.arriving(alone):  # which empties the list
            learned[single[number]] = threads.submit(_finish, op, unit, sums, [table], known)
        for key, of_step in outlines.items():
            op = of_step[0].op
            unit = of_step[0].unit
            sums = {name: sum(outline.sums[name] for outline in of_step) for name in of_step[0].sums}
            learned[key] = threads.submit(_finish, op, unit, sums, pool.values(ranges[key].consume()), known)
    return {key: learned[key].result() for key in chains}


def _is_arranged_here(pool: Pool, rows: Sequence[RowCount]) -> bool:
    """Whether steps of one chain each are put in order in this process, which needs them: on a GPU that has room.

    GPU to GPU, rows take no time; out of the host memory of other workers they come at a gigabyte a second.
    """
    if not rows or any(r.engine != "cudf" for r in rows):
        return False
    return (
        sum(r.count for r in rows) * ROW_BYTES <= pool.device_memory / max(len(pool.workers), 1) * TABLES_SHARE_OF_GPU
    )


class Arranged(NamedTuple):
    """A step of one chain: its operator and unit, its sums, and all rows in order in host memory."""

    op: Keyed
    unit: Unit
    sums: Mapping[str, Any]
    table: pa.Table


def _in_one(chain: Chain) -> Arranged:
    arranged = _arrange(chain)
    return Arranged(chain.op, chain.unit, arranged.sums or {}, _range(chain.op, [Slice(arranged.tables[0])]))


def _in_ranges(pool: Pool, chains: Mapping[str, Handles]) -> tuple[dict[str, list[Outline]], dict[str, Handles]]:
    """(outlines of the arranged chains, handles of the rows in order, a table for each range) by step.

    The chains are consumed; so are arranged chains and slices as soon as the calls that take them are sent off.
    """
    arranged = {k: Handles(pool.call(_arrange, [(chain,) for chain in c.consume()])) for k, c in chains.items()}
    described = iter(pool.values(pool.call(_outline, [(chain,) for handles in arranged.values() for chain in handles])))
    outlines = {key: [next(described) for _ in handles] for key, handles in arranged.items()}
    slices = {key: _slices(pool, handles, outlines[key]) for key, handles in arranged.items()}
    ranges = {
        key: Handles(pool.call(_range, [(outlines[key][0].op, same) for same in by_range.consume()]))
        for key, by_range in slices.items()
    }
    return outlines, ranges


def _slices(pool: Pool, arranged: Handles, outlines: Sequence[Outline]) -> Handles:
    """For each range the handles of its slices of all chains of a step."""
    rows = sum(outline.rows for outline in outlines)
    sizes = SIZES[outlines[0].engine]
    edges = _edges([outline.sample for outline in outlines], rows, sizes)
    cuts = pool.call(_slice_chain, [(chain, edges) for chain in arranged.consume()])
    return Handles(pool.call(_slice, [(cut, number) for cut in cuts]) for number in range(len(edges) + 1))


def _finish(
    op: Keyed,
    unit: Unit,
    sums: Mapping[str, Any],
    tables: Sequence[pa.Table],
    known: Callable[[FittedValues], None],
) -> tuple[FittedValues, FittedValues]:
    """(fitted values, partials for a refit) of all rows in order, which come as the tables of the ranges."""
    fitted, for_refit = op.split_learned(None, op.finish(pa.concat_tables(tables).combine_chunks(), sums, unit))
    known(fitted)
    known(for_refit)
    return fitted, for_refit


@retry_without_cache
def _arrange(chain: Chain) -> Chain:
    """The chain with one table, whose rows are in order, and the operator's sums."""
    engine = engines.engine_of(chain.tables[0])
    with _working(chain.tables):
        table, sums = chain.op.arrange(engine.join_tables(chain.tables), chain.unit)
        table = table.combine_chunks() if isinstance(table, pa.Table) else table
    return Chain(chain.op, chain.unit, [table], sums)


def _outline(chain: Chain) -> Outline:
    (table,), rows = chain.tables, chain.rows
    sample = _sort_keys(chain.op, table, [rows * i // SAMPLED_ROWS for i in range(min(SAMPLED_ROWS, rows))])
    return Outline(chain.op, chain.unit, engines.engine_of(table).NAME, rows, chain.sums or {}, sample)


def _sort_keys(op: Keyed, table: object, rows: Sequence[int]) -> list[tuple[Any, ...]]:
    """`Keyed.place` of rows of a table. They are fetched all at once: each fetch from a GPU takes time."""
    if not rows:
        return []
    engine = engines.engine_of(table)
    fetched = engine.host_table(engine.table_rows(table, np.array(rows, dtype=np.int64)))
    stored = pa.table({f.name: fetched[f.name].cast(to_storage_type(f.type)) for f in fetched.schema})
    return [op.place(row) for row in stored.to_pylist()]


def _edges(samples: Sequence[list[tuple[Any, ...]]], rows: int, sizes: Sizes) -> list[tuple[Any, ...]]:
    """The sort keys at which ranges of about `Sizes.range` rows begin, but the first; [] if one task can take all rows.

    There are at most as many ranges as splits: each range takes a slice of every chain.
    """
    ranges = 1 if rows <= sizes.one_task else min(-(-rows // sizes.range), sizes.splits)
    keys = sorted(itertools.chain.from_iterable(samples))
    return [keys[len(keys) * i // ranges] for i in range(1, ranges)] if keys else []


def _slice_chain(chain: Chain, edges: Sequence[tuple[Any, ...]]) -> list[Slice]:
    """The slices of an arranged chain, one for each range."""
    (table,) = chain.tables
    if not edges:
        return [Slice(table)]
    at = [0, *_first_not_before(chain.op, table, edges), len(table)]
    engine = engines.engine_of(table)
    slices = [Slice(engine.slice_table(table, start, stop)) for start, stop in itertools.pairwise(at)]
    engines.synchronize()
    return slices


def _first_not_before(op: Keyed, table: Any, edges: Sequence[tuple[Any, ...]]) -> list[int]:
    """For each edge the number of the first row whose sort key is not smaller, all by bisection at the same time."""
    low = [0] * len(edges)
    high = [len(table)] * len(edges)
    while open_edges := [i for i in range(len(edges)) if low[i] < high[i]]:
        middles = [(low[i] + high[i]) // 2 for i in open_edges]
        for i, middle, sort_key in zip(open_edges, middles, _sort_keys(op, table, middles), strict=True):
            if sort_key < edges[i]:
                low[i] = middle + 1
            else:
                high[i] = middle
    return low


def _slice(slices: Sequence[Slice], number: int) -> Slice:
    return slices[number]


@retry_without_cache
def _range(op: Keyed, slices: list[Slice]) -> pa.Table:
    """The rows of one range in order, in host memory."""
    tables = [each.table for each in slices]
    with _working(tables):
        table = tables[0] if len(tables) == 1 else op.in_order(tables)
        return engines.engine_of(table).host_table(table)
