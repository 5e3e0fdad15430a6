"""From merged partials to the values that operators have learned; large tables are finished in tasks of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from tasks.cluster.pool import Pool, merge_groups
from tasks.graph import seen as rows_seen
from tasks.graph.binding import Step
from tasks.graph.failed_casts import Record, sum_records
from tasks.graph.seen import Seen
from tasks.learning import growth, large_table_types, large_tables
from tasks.learning.handles import Handles
from tasks.learning.partials import WHOLE, Observed, Partial, merge, with_size
from tasks.ops.fitted_values import FittedValues
from tasks.ops.keyed import Keyed

FEWEST_STEPS = 8  # of one task: fewer are not worth a task of their own


@dataclass
class Concluded:
    """What a pass has come to: by step what is learned (`done`), the `questions` of those that need another pass, and
    the `tables` of the new rows of those with tables of keys in the base; how often partitions were halved, the casts
    that failed, and what was seen of the rows."""

    halved: int
    failed: list[Record]
    seen: Seen
    done: dict[str, growth.Finished] = field(default_factory=dict)
    questions: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, Sequence[pa.Table]] = field(default_factory=dict)

    def each(self, name: str) -> FittedValues:
        """By step, one field of what is learned."""
        return {key: getattr(one, name) for key, one in self.done.items()}


@dataclass(frozen=True)
class StepGroups:
    """Where the steps of a pass are merged and finished.

    shares: steps with small partials, in groups that one task finishes.
    keyed: steps with tables of keys in the base, which this process finishes.
    chains: by step with a large table, the number of its chains, each of which has tasks of its own.
    """

    shares: Sequence[list[str]]
    keyed: Mapping[str, Step]
    chains: Mapping[str, int]

    @property
    def small_keyed(self) -> list[str]:
        """The keyed steps whose tables are small: they are merged together, in one group."""
        return [key for key in self.keyed if key not in self.chains]

    @property
    def small(self) -> list[list[str]]:
        """All groups of steps with small partials, the keyed ones last."""
        return [*self.shares, self.small_keyed] if self.small_keyed else [*self.shares]


@dataclass(frozen=True)
class MergedPartials:
    """Handles of the partials of a pass, merged by group.

    shares: the `Observed` of each of `StepGroups.shares`.
    small_keyed: that of `StepGroups.small_keyed`; empty where there is no such step.
    anew, keyed: by step with a large table, its `Chain`s; `keyed` are those that the base has.
    """

    shares: Handles
    small_keyed: Handles
    anew: Mapping[str, Handles]
    keyed: Mapping[str, Handles]


def conclude(
    pool: Pool,
    observed: Handles,
    steps: Mapping[str, Step],
    base: growth.Base,
    engine: str,
    known: Callable[[FittedValues], None],
) -> Concluded:
    """Finish all partials of a phase on top of what the base has learned.

    `observed` (handles of `Observed`) is consumed, so that workers free partials once they are merged. Tables of keys
    that the base has come to this process, which has those of the base. Other steps with large tables are merged and
    finished in tasks of their own, the rest several in a task. `known(values)` is called, from threads, with the values
    of each step with a large table.
    """
    counts, result = _summarize_all_partials(pool, observed)
    starts = {key: base.starts(steps[key]) for key in counts}
    groups = _group_steps({key: steps[key] for key in counts}, starts, counts, pool.threads)
    partials = _merge_partials(pool, observed, groups, counts)
    of_shares = [{key: starts[key] for key in share} for share in groups.shares]
    # The small ones are only begun here: workers finish them beside the large ones.
    finished = Handles(pool.call(growth.finalize, list(zip(partials.shares.consume(), of_shares, strict=True))))
    for key, (values, for_refit) in large_tables.finalize(pool, partials.anew, counts, known).items():
        result.done[key] = growth.Finished(values, for_refit, growth.change_anew(steps[key], base, values))
    for done, questions in pool.values(finished.consume()):
        result.done |= done
        result.questions |= questions
    result.tables |= _bring_to_host(pool, partials)
    result.done |= growth.finish_tables(pool, groups.keyed, result.tables, base, engine, known)
    result.done = {key: result.done[key] for key in counts if key in result.done}
    return result


def _group_steps(
    steps: Mapping[str, Step],
    starts: Mapping[str, growth.Start],
    counts: Mapping[str, large_table_types.RowCount],
    threads: int,
) -> StepGroups:
    """Group the steps by where they are finished, each in the order of the steps; `counts` are rows of partials."""
    keyed = {key: step for key, step in steps.items() if isinstance(step.op, Keyed) and not starts[key].anew}
    chains = {key: number for key, count in counts.items() if (number := large_tables.chains_for(count))}
    shares = _shares([key for key in steps if key not in keyed and key not in chains], threads)
    return StepGroups(shares, keyed, chains)


def _merge_partials(
    pool: Pool, observed: Handles, groups: StepGroups, counts: Mapping[str, large_table_types.RowCount]
) -> MergedPartials:
    """Merge the partials of each group; those of `observed` are consumed."""
    chains: dict[str, Handles] = {}
    if len(groups.small) == 1 and not groups.chains:  # the only group has all steps: nothing is to be taken apart
        small = [observed]
    else:
        small = [Handles(pool.call(_only, [(handle, group) for handle in observed])) for group in groups.small]
        chains = _merge_step_chains(pool, observed, groups.chains, {key for key in groups.chains if counts[key].large})
    whole = merge_groups(pool, merge, [group.consume() for group in small])
    small_keyed = Handles([whole.pop()] if groups.small_keyed else [])
    anew = {key: chains.pop(key) for key in groups.chains if key not in groups.keyed}
    return MergedPartials(Handles(whole), small_keyed, anew, keyed=chains)


def _bring_to_host(pool: Pool, partials: MergedPartials) -> dict[str, list[pa.Table]]:
    """Bring the tables of keyed steps to this process, which has those of the base; their handles are consumed."""
    tables: dict[str, list[pa.Table]] = {}
    small = pool.values(pool.call(growth.tables_on_host, [(handle,) for handle in partials.small_keyed.consume()]))
    for of_steps in small:
        tables |= {key: [table] for key, table in of_steps.items()}
    for key, chains in partials.keyed.items():
        several = pool.values(pool.call(growth.chain_on_host, [(chain,) for chain in chains.consume()]))
        tables[key] = [table for of_chain in several for table in of_chain]
    return tables


def _summarize_all_partials(pool: Pool, observed: Handles) -> tuple[dict[str, large_table_types.RowCount], Concluded]:
    """(the rows of all partials of each step, what the partials say besides)."""
    totals: dict[str, large_table_types.RowCount] = {}
    result = Concluded(0, [], Seen())
    casts = list[list[Record]]()
    rows = list[Seen]()
    for one in pool.values(pool.call(_summarize_partials, [(handle,) for handle in observed])):
        totals = {key: totals[key] + count if key in totals else count for key, count in one.counts.items()}
        result.halved += one.halved
        casts.append(one.failed)
        rows.append(one.seen)
    result.failed = sum_records(casts)
    result.seen = rows_seen.merge_seen(rows)
    return totals, result


def _merge_step_chains(pool: Pool, observed: Handles, chains: Mapping[str, int], large: set[str]) -> dict[str, Handles]:
    """The merged `Chain`s of each step in `chains` (step -> their number); `large` ones are split before."""
    if large:
        observed = Handles(pool.call(_split, [(handle, set(chains), large) for handle in observed.consume()]))
    wanted = [(key, number, count) for key, count in chains.items() for number in range(count)]
    merged_chains = iter(merge_groups(pool, large_tables.merge_chains, _cut_chains(pool, observed, wanted)))
    return {key: Handles(next(merged_chains) for _ in range(count)) for key, count in chains.items()}


def _cut_chains(pool: Pool, observed: Handles, wanted: Sequence[tuple[str, int, int]]) -> list[list[Any]]:
    """For each wanted (step, number of the chain, number of chains) the handles of its `Chain` in every `Observed`."""
    handles = observed.consume()
    return [pool.call(_chain, [(handle, *chain) for handle in handles]) for chain in wanted]


def _shares(steps: Sequence[str], threads: int) -> list[list[str]]:
    """The steps as several threads finish them side by side, about equally many and at least `FEWEST_STEPS` each.

    >>> _shares(["a", "b", "c"], 2), [len(share) for share in _shares(["s"] * 33, 16)]
    ([['a', 'b', 'c']], [9, 8, 8, 8])
    """
    count = max(1, min(threads, len(steps) // FEWEST_STEPS))
    return [list(steps[i::count]) for i in range(count)] if steps else []


class _Described(NamedTuple):
    """The rows of each step of a partition, how often it was halved, the casts that failed, what was seen."""

    counts: dict[str, large_table_types.RowCount]
    halved: int
    failed: list[Record]
    seen: Seen


def _summarize_partials(observed: Observed) -> _Described:
    counts = {key: large_tables.rows_of(p.step.op, p.tree.get(WHOLE)) for key, p in observed.partials.items()}
    return _Described(counts, observed.halved, observed.failed, observed.seen)


def _only(observed: Observed, steps: Sequence[str]) -> Observed:
    """The partials of some steps."""
    return with_size(Observed({key: observed.partials[key] for key in steps}))


def _split(observed: Observed, steps: set[str], large: set[str]) -> Observed:
    """The partials of some steps; those of `large` steps split by hash."""
    partials = {key: observed.partials[key] for key in steps}
    for key in large:
        step = partials[key].step
        tree = partials[key].tree
        partials[key] = Partial(step, {WHOLE: large_tables.split(step.op, tree[WHOLE])})
    return with_size(Observed(partials))


def _chain(observed: Observed, key: str, number: int, count: int) -> large_table_types.Chain:
    """Chain `number` of `count` of a step."""
    partial = observed.partials[key]
    return large_tables.chain_of(partial.step.op, partial.step.unit, partial.tree[WHOLE], number, count)
