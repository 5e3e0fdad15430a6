"""From merged partials to the values that operators have learned; large tables are finished in tasks of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tasks import engines
from tasks.cluster.out_of_memory import frugal
from tasks.cluster.pool import Pool, merged
from tasks.graph import seen as rows_seen
from tasks.graph.binding import Step
from tasks.graph.evaluation import explained
from tasks.graph.failed_casts import Record, added
from tasks.graph.seen import Seen
from tasks.learning import large_table_types, large_tables, refit
from tasks.learning.handles import Handles
from tasks.learning.partials import Observed, Partial, merge, whole_of, with_size
from tasks.ops.base import Learned
from tasks.ops.keyed import Keyed

FEWEST_STEPS = 8  # of one task: fewer are not worth a task of their own


def conclude(
    pool: Pool,
    observed: Handles,
    halved: Callable[[int], None],
    known: Callable[[Mapping[str, Any]], None],
    failed: Callable[[list[Record]], None],
    seen: Callable[[Seen], None] = lambda _: None,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(fitted values, partials for a refit, questions for another pass) by step, of all partials of a phase.

    `observed` (handles of `Observed`) is consumed, so that workers free partials once they are merged. Steps with large
    tables are merged and finished in tasks of their own, the other steps several in a task. `halved(times)` and
    `failed(records)` are called with what the partials say of partitions that were halved and of casts that failed,
    `seen` with what they have seen of the rows;
    `known(values)`, from threads, with the values of each step with a large table.
    """
    counts = _row_counts(pool, observed, halved, failed, seen)
    chains = {key: number for key, count in counts.items() if (number := large_tables.chains_for(count))}
    shares = _shares([key for key in counts if key not in chains], pool.threads)
    if not chains and len(shares) == 1:
        return pool.values(pool.call(finalize, [(merged(pool, merge, [observed.consume()])[0],)]))[0]
    small = [Handles(pool.call(_only, [(handle, share) for handle in observed])) for share in shares]
    large = _merged_chains(pool, observed, chains, {key for key in chains if counts[key].large})
    finalized = Handles(_finalized(pool, small))  # they run beside the large ones
    learned = large_tables.finalize(pool, large, counts, known)
    fitted, partials, questions = (_joined(each) for each in zip(*pool.values(finalized.consume()), strict=True))
    fitted |= {key: values for key, (values, _) in learned.items()}
    partials |= {key: for_refit for key, (_, for_refit) in learned.items()}
    return _in_order(fitted, counts), _in_order(partials, counts), questions


def conclude_refit(
    pool: Pool,
    observed: Handles,
    halved: Callable[[int], None],
    known: Callable[[Mapping[str, Any]], None],
    failed: Callable[[list[Record]], None],
    steps: Mapping[str, Step],
    base: refit.Base,
    engine: str,
    seen: Callable[[Seen], None] = lambda _: None,
    tables_of: Callable[[str, list[Any]], None] = lambda key, tables: None,
    of_night: Callable[[str, pa.Table], None] = lambda key, table: None,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(fitted values, partials for a refit, questions for another pass, what changed) by step: `conclude` of a refit.

    Partials of the new rows are merged as in a fit. Tables of keys then come to this process, which has those of the
    base; other partials are finished in a task, which gets what the base has learned, and large tables that are learned
    anew as in a fit. `tables_of(step, tables)` is called with the tables of the new rows, before they are merged with
    the base's, `of_night(step, table)` with the step's table of the night (`Grown`).
    """
    counts = _row_counts(pool, observed, halved, failed, seen)
    keyed = {k: s for k, s in steps.items() if isinstance(s.op, Keyed) and not base.starts(s).anew}
    chains = {key: number for key in counts if (number := large_tables.chains_for(counts[key]))}
    single = [key for key in keyed if key not in chains]
    others = [key for key in counts if key not in keyed and key not in chains]
    small = [Handles(pool.call(_only, [(handle, share) for handle in observed])) for share in (others, single)]
    large = _merged_chains(pool, observed, chains, {key for key in chains if counts[key].large})
    anew = {key: large.pop(key) for key in chains if key not in keyed}
    of_others, of_single = merged(pool, merge, [share.consume() for share in small])
    done, questions = {}, {}
    if others:
        starts = {key: base.starts(steps[key]) for key in others}
        done, questions = pool.values(pool.call(refit.finalize, [(of_others, starts)]))[0]
    for key, (values, for_refit) in large_tables.finalize(pool, anew, counts, known).items():
        done[key] = refit.Finished(values, for_refit, refit.change_anew(steps[key], base, values))
    tables: dict[str, Any] = {}
    if single:
        (on_host,) = pool.values(pool.call(refit.tables_on_host, [(of_single,)]))
        tables |= {key: [table] for key, table in on_host.items()}
    for key, handles in large.items():
        several = pool.values(pool.call(refit.chain_on_host, [(chain,) for chain in handles.consume()]))
        tables[key] = [table for of_chain in several for table in of_chain]
    for key, several in tables.items():
        tables_of(key, several)
    done |= refit.finish_tables(pool, keyed, tables, base, engine, known)
    for key, learned in done.items():
        if learned.of_night is not None:
            of_night(key, learned.of_night)
    fitted, partials, changes = ({key: learned[i] for key, learned in done.items()} for i in range(3))
    return _in_order(fitted, counts), _in_order(partials, counts), questions, _in_order(changes, counts)


def _row_counts(
    pool: Pool, observed: Handles, halved: Callable[[int], None], failed: Callable[[list[Record]], None],
    seen: Callable[[Seen], None],
) -> dict[str, large_table_types.RowCount]:  # fmt: skip
    """The rows of all partials of each step; `halved`, `failed` and `seen` are called."""
    totals: dict[str, large_table_types.RowCount] = {}
    casts: list[list[Record]] = []
    rows: list[Seen] = []
    for counts, times, records, seen_rows in pool.values(pool.call(_described, [(handle,) for handle in observed])):
        totals = {key: totals[key] + count if key in totals else count for key, count in counts.items()}
        halved(times)
        casts.append(records)
        rows.append(seen_rows)
    failed(added(casts))
    seen(rows_seen.added(rows))
    return totals


def _merged_chains(pool: Pool, observed: Handles, chains: Mapping[str, int], large: set[str]) -> dict[str, Handles]:
    """The merged `Chain`s of each step in `chains` (step -> their number); `large` ones are split before."""
    if large:
        observed = Handles(pool.call(_split, [(handle, set(chains), large) for handle in observed.consume()]))
    wanted = [(key, number, count) for key, count in chains.items() for number in range(count)]
    merged_chains = iter(merged(pool, large_tables.merge_chains, _cut_chains(pool, observed, wanted)))
    return {key: Handles(next(merged_chains) for _ in range(count)) for key, count in chains.items()}


def _cut_chains(pool: Pool, observed: Handles, wanted: Sequence[tuple[str, int, int]]) -> list[list[Any]]:
    """For each wanted (step, number of the chain, number of chains) the handles of its `Chain` in every `Observed`."""
    handles = observed.consume()
    return [pool.call(_chain, [(handle, *chain) for handle in handles]) for chain in wanted]


def _finalized(pool: Pool, shares: list[Handles]) -> list[Any]:
    """Handles of `finalize` of each share of the steps."""
    return pool.call(finalize, [(whole,) for whole in merged(pool, merge, [share.consume() for share in shares])])


def _shares(steps: Sequence[str], threads: int) -> list[list[str]]:
    """The steps as several threads finish them side by side, about equally many and at least `FEWEST_STEPS` each.

    >>> _shares(["a", "b", "c"], 2), [len(share) for share in _shares(["s"] * 33, 16)]
    ([['a', 'b', 'c']], [9, 8, 8, 8])
    """
    count = max(1, min(threads, len(steps) // FEWEST_STEPS))
    return [list(steps[i::count]) for i in range(count)]


def _joined(several: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: value for values in several for key, value in values.items()}


def _in_order(values: Mapping[str, Any], steps: Iterable[str]) -> dict[str, Any]:
    """The values in the order of the steps."""
    return {key: values[key] for key in steps if key in values}


def _described(observed: Observed) -> tuple[dict[str, large_table_types.RowCount], int, list[Record], Seen]:
    """(the rows of each step, how often partitions were halved, the casts that failed, what was seen)."""
    counts = {key: large_tables.rows_of(p.step.op, p.tree.get((-1, 0))) for key, p in observed.partials.items()}
    return counts, observed.halved, observed.failed, observed.seen


def _only(observed: Observed, steps: Sequence[str]) -> Observed:
    """The partials of some steps."""
    return with_size(Observed({key: observed.partials[key] for key in steps}))


def _split(observed: Observed, steps: set[str], large: set[str]) -> Observed:
    """The partials of some steps; those of `large` steps split by hash."""
    partials = {key: observed.partials[key] for key in steps}
    for key in large:
        step, tree = partials[key].step, partials[key].tree
        partials[key] = Partial(step, {(-1, 0): large_tables.split(step.op, tree[-1, 0])})
    return with_size(Observed(partials))


def _chain(observed: Observed, key: str, number: int, count: int) -> large_table_types.Chain:
    """Chain `number` of `count` of a step."""
    partial = observed.partials[key]
    return large_tables.chain_of(partial.step.op, partial.step.unit, partial.tree[-1, 0], number, count)


@frugal
def finalize(observed: Observed) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(fitted values, partials for a refit) of every step that is done; (questions) of those that need another pass."""
    fitted: dict[str, Any] = {}
    partials: dict[str, Any] = {}
    questions: dict[str, Any] = {}
    for key, partial in observed.partials.items():
        op = partial.step.op
        assert isinstance(op, Learned)
        whole = whole_of(op, partial.tree)
        try:
            question = op.refine(whole)
            if question is not None:
                questions[key] = question
                continue
            fitted[key], partials[key] = op.parted(whole, op.finalize_unit(whole, partial.step.unit))
        except Exception as error:
            raise explained(error, partial.step, "statistics") from error
    engines.synchronize()
    return fitted, partials, questions
