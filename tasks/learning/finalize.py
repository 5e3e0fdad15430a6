"""From merged partials to what operators have learned: finalize, also along chains of large tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tasks import engines
from tasks.cluster.out_of_memory import frugal
from tasks.cluster.pool import Pool, merged
from tasks.graph.evaluation import explained
from tasks.graph.failed_casts import Record, added
from tasks.learning import large_table_types, large_tables
from tasks.learning.partials import Observed, Partial, _sized, merge
from tasks.ops.base import Learned

FEW = 8  # steps that are worth a task of their own


def conclude(
    pool: Pool,
    roots: list[Any],
    halved: Callable[[int], None],
    known: Callable[[Mapping[str, Any]], None],
    failed: Callable[[list[Record]], None],
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """`finalize` of the handles of partials, which the list loses; large tables in tasks of their own."""
    rows = dict[str, large_table_types.Rows]()
    noted = list[list[Record]]()
    for found, times, casts in pool.values(pool.call(_rows, [(root,) for root in roots])):
        rows = {key: rows[key] + told if key in rows else told for key, told in found.items()}
        halved(times)
        noted.append(casts)
    failed(added(noted))
    chains = {key: count for key, told in rows.items() if (count := large_tables.chains_for(told))}
    shares = _shares([key for key in rows if key not in chains], pool.threads)
    if not chains and len(shares) == 1:
        return pool.values(pool.call(finalize, [(merged(pool, merge, [roots])[0],)]))[0]
    small = [pool.call(_only, [(root, share) for root in roots]) for share in shares]
    split = {key for key in chains if rows[key].large}
    if split:
        roots[:] = pool.call(_split, [(root, set(chains), split) for root in roots])
    cuts = [(key, chain) for key, count in chains.items() for chain in range(count)]
    parts = [pool.call(_chain, [(root, key, chain, chains[key]) for root in roots]) for key, chain in cuts]
    roots.clear()
    handles: dict[str, list[Any]] = {key: [] for key in chains}
    for (key, _), handle in zip(cuts, merged(pool, large_tables.merge_parts, parts), strict=True):
        handles[key].append(handle)
        del handle
    del parts
    finalized = pool.call(finalize, [(one,) for one in merged(pool, merge, small)])  # beside the large ones
    del small
    learned = large_tables.finalize(pool, handles, rows, known)
    found = [_joined(several) for several in zip(*pool.values(finalized), strict=True)]
    fitted = found[0] | {key: values for key, (values, _) in learned.items()}
    kept = found[1] | {key: partials for key, (_, partials) in learned.items()}
    return {k: fitted[k] for k in rows if k in fitted}, {k: kept[k] for k in rows if k in kept}, found[2]


def _shares(steps: Sequence[str], threads: int) -> list[list[str]]:
    """The steps as several threads finish them side by side, about equally many and at least `FEW` each.

    >>> _shares(["a", "b", "c"], 2), [len(share) for share in _shares(["s"] * 33, 16)]
    ([['a', 'b', 'c']], [9, 8, 8, 8])
    """
    count = max(1, min(threads, len(steps) // FEW))
    return [list(steps[i::count]) for i in range(count)]


def _joined(found: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: value for one in found for key, value in one.items()}


def _rows(found: Observed) -> tuple[dict[str, large_table_types.Rows], int, list[Record]]:
    """(the rows of each step, how often partitions were halved, the casts that failed)."""
    rows = {key: large_tables.rows_of(p.step.op, p.tree.get((-1, 0))) for key, p in found.partials.items()}
    return rows, found.halved, found.failed


def _only(found: Observed, steps: Sequence[str]) -> Observed:
    return _sized(Observed({key: found.partials[key] for key in steps}))


def _split(found: Observed, keys: set[str], split: set[str]) -> Observed:
    """The partials of these steps, those of `split` as tables by hash."""
    made = {k: found.partials[k] for k in keys}
    for k in split:
        made[k] = Partial(made[k].step, {(-1, 0): large_tables.split(made[k].step.op, made[k].tree[-1, 0])})
    return _sized(Observed(made))


def _chain(found: Observed, key: str, chain: int, chains: int) -> large_table_types.Part:
    partial = found.partials[key]
    return large_tables.chain_of(partial.step.op, partial.step.unit, partial.tree[-1, 0], chain, chains)


@frugal
def finalize(found: Observed) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(fitted values, partials to keep) of every step; (questions) of those that need another pass."""
    fitted: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    questions: dict[str, Any] = {}
    for key, partial in found.partials.items():
        op = partial.step.op
        assert isinstance(op, Learned)
        whole = None
        for _place, value in sorted(partial.tree.items(), key=lambda item: item[0][1] << max(item[0][0], 0)):
            whole = value if whole is None else op.merge(whole, value)
        try:
            question = op.refine(whole)
            if question is not None:
                questions[key] = question
                continue
            fitted[key], kept[key] = op.parted(whole, op.finalize_unit(whole, partial.step.unit))
        except Exception as error:
            raise explained(error, partial.step, "statistics") from error
    engines.synchronize()
    return fitted, kept, questions
