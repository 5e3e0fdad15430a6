"""One partition's work: read, filter, evaluate. What a worker gets once per stage."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tasks import engines
from tasks.cluster import column_cache
from tasks.cluster.column_cache import CacheKey
from tasks.cluster.transfer import gpu_setup
from tasks.core.pickled_fields import PickledFields
from tasks.core.plan import Partition, Plan
from tasks.core.schema import ROW, Schema
from tasks.core.unforeseen_errors import at
from tasks.engines.algorithms.moments import Moments
from tasks.engines.algorithms.protocol import Kernels
from tasks.engines.algorithms.reductions import on_host, total
from tasks.engines.expression.interpreter import true_mask
from tasks.engines.expression.nodes import UnreadError
from tasks.engines.expression.syntax import Expression, parse
from tasks.errors import DataError
from tasks.graph import row_sample
from tasks.graph.binding import SOURCE, Bound, Step
from tasks.graph.evaluation import Evaluation
from tasks.graph.failed_casts import FailedCasts
from tasks.graph.node import Node
from tasks.graph.row_rules import Downsampling, RowRules, Splitting
from tasks.graph.seen import Seen, sketched
from tasks.graph.state import State
from tasks.ops.base import Columns, Context
from tasks.sources.frames import frame_here
from tasks.sources.reader import read, read_side_by_side
from tasks.sources.row_places import row_place
from tasks.storage.files_being_read import listed

SOURCE_FILTER, SOURCE_SPLIT, SOURCE_DOWNSAMPLE = "source.filter", "source.split", "source.downsample"
_loaded: dict[tuple[str, str], State] = {}
_loading, _binding = threading.Lock(), threading.Lock()


@dataclass(frozen=True)
class StateFolder:
    """A saved state by its folder and digest: workers load the state themselves, once per process."""

    path: str
    digest: str

    def load(self) -> State:
        with _loading:
            if (self.path, self.digest) not in _loaded:
                _loaded.clear()
                _loaded[self.path, self.digest] = State.load_for_run(Path(self.path))
            return _loaded[self.path, self.digest]


class _SourceColumns(NamedTuple):
    """Columns of the source's rows that its rules keep."""

    columns: Columns
    rows: Any  # their numbers
    order: Any  # their order numbers, None if these are the same
    own: Any  # which belong to this split, None if all do
    left_out: dict[str, int]  # rows that splits and down-sampling leave out


@dataclass(frozen=True)
class Work(PickledFields):
    """What every partition of a stage shares. `source` is whatever `tasks.sources.reader.read` takes: a plan, or a
    frame's handle.

    `first_row` is added to the row numbers that operators see: the rows of a refit go on behind those of its base. The
    order numbers, of which positions are made, begin at 0. `profile` are the source columns that this pass sketches,
    over all rows that the source filter keeps; None disables profiling. `compared` are those by which whole rows are
    compared with each other.
    """

    source: Any
    final: Node
    schema: Schema
    engine: str
    state: State | StateFolder = field(default_factory=State)
    filter: str | None = None
    training: bool = False
    depth: int | None = None  # the phase of the statistics that this pass is; None when all is learned
    cache: CacheKey | None = None  # columns that passes over the same rows leave for each other
    first_row: int = 0
    profile: tuple[str, ...] | None = None
    compared: tuple[str, ...] = ()
    rules: RowRules = field(default_factory=RowRules)

    @cached_property
    def kernels(self) -> Kernels:
        gpu_setup.prepare(self.engine)
        return engines.engine(self.engine)

    @cached_property
    def learned(self) -> State:
        return self.state.load() if isinstance(self.state, StateFolder) else self.state

    @property
    def bound(self) -> Bound:
        """The graph bound to the schema, once per process: threads begin their first partitions at the same time."""
        with _binding:
            return self._bound

    @cached_property
    def _bound(self) -> Bound:
        return Bound(self.final, self.schema, self.learned.values)

    @cached_property
    def condition(self) -> Expression | None:
        return parse(self.filter) if self.filter else None

    @property
    def _conditions(self) -> Sequence[str]:
        """The columns that decide which rows are left out."""
        return (*(self.condition.columns if self.condition else ()), *self._split_columns, *self._downsampling_columns)

    @property
    def _split_columns(self) -> tuple[str, ...]:
        return self.rules.splitting.columns if self.rules.splitting else ()

    @property
    def _downsampling_columns(self) -> Sequence[str]:
        return self._downsampling.condition.columns if self._downsampling else ()

    @property
    def _downsampling(self) -> Downsampling | None:
        """The down-sampling of these rows; None where all rows stay."""
        downsamples = self.training if self.rules.downsamples is None else self.rules.downsamples
        return self.rules.downsampling if downsamples else None

    @property
    def _weight(self) -> str | None:
        """The column that down-sampling makes: it is part of the schema, and of no file."""
        return self.rules.downsampling.weight if self.rules.downsampling else None

    def opened(self, partition: Partition, targets: Sequence[tuple[int, str]]) -> Evaluation:
        """The partition read, its rows filtered, ready to make the targets (and nothing else)."""
        bound = self.bound
        noted, where = FailedCasts(), _place(partition)
        with at(where):
            needed = self._needed(targets)
            more = [name for name in self._profiled if name not in needed]
            source, rows, order, own, left = self._load(partition, [*needed, *more], self._plain(targets), noted)
        met = None if self.profile is None else Counter[str]()
        context = Context(self.kernels, rows, self.training, order, met=met, origin=self._origin, own=own)
        read = {name: source[name] for name in self._profiled}
        frame = {name: source[name] for name in needed} if more else source
        evaluation = Evaluation(bound, frame, self.learned, context, where, noted, self._notes(partition))
        evaluation.filtered(self.filters_for(targets))
        if own is not None:
            with at(where):
                evaluation.keep_own(targets)
            read, context = self._own_of(read, context)
        evaluation.read = read, context
        evaluation.left_out = left
        return evaluation

    def _notes(self, partition: Partition) -> tuple[Mapping[str, Any], str] | None:
        """Where to note what a user's function works on, and what that is in words."""
        if not isinstance(self.source, Plan):
            return None
        files = dict.fromkeys(self.source.files[piece.file].path for b in partition.blocks for piece in b.pieces)
        return self.source.options, f"{_place(partition)} of {listed([*files])}"

    def _own_of(self, columns: Columns, context: Context) -> tuple[Columns, Context]:
        """The columns and the context without the rows of earlier splits."""
        places = self.kernels.xp.flatnonzero(context.own)
        columns, rows, order = _taken(self.kernels, columns, [*columns], context.rows, context.order, places)
        return columns, replace(context, rows=rows, order=order, own=None)

    @property
    def _looks_back(self) -> bool:
        """Whether rows of earlier splits are read as the past of this split's rows."""
        rule = self.rules.splitting
        if rule is None or not rule.looks_back or rule.name == "train":
            return False
        return bool(self.bound.made_of_runs) or self.bound.space != SOURCE

    def seen(
        self, evaluation: Evaluation, partition: Partition, known: Mapping[str, Sequence[Moments]] | None = None
    ) -> Seen:
        """What this pass sees of the partition's rows before filters of the graph; `known`: moments by block."""
        start = time.thread_time()
        (columns, context), engine = evaluation.read, self.kernels
        starts = block_offsets(partition, context.ordered(), engine.xp)
        blocks = [block.number for block in partition.blocks]
        profiled = {name: columns[name] for name in self.profile or ()}
        seen = Seen(len(context.rows), sketched(profiled, starts, blocks, engine, known or {}), evaluation.met)
        rows = (self.source if isinstance(self.source, Plan) else self.source.plan).rows
        seen.step = row_sample.step_of(rows)
        sampled = {name: columns[name] for name in (*profiled, *self.compared[: row_sample.ASSOCIATED_COLUMNS])}
        compared = {name: columns[name] for name in self.compared}
        ascending = ROW not in self.schema
        seen.sample, seen.hashes = row_sample.draw(sampled, compared, context.rows, rows, ascending, engine)
        evaluation.read = {}, context
        seen.seconds = time.thread_time() - start
        return seen

    @property
    def _profiled(self) -> list[str]:
        """The columns that the profile is made of."""
        return list(dict.fromkeys([*(self.profile or ()), *self.compared]))

    def reads(self, targets: Sequence[tuple[int, str]]) -> list[str]:
        """The source columns that are read for the targets."""
        return self._read_for(self._needed(targets))

    def _needed(self, targets: Sequence[tuple[int, str]]) -> list[str]:
        """The source columns that the targets and the graph's filters are made of."""
        return self.bound.source_columns(self._with_filters(targets), self.training)

    def _with_filters(self, targets: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
        return [*targets, *(place for f in self.filters_for(targets) for place in f.inputs.values())]

    def _plain(self, targets: Sequence[tuple[int, str]]) -> list[str]:
        """The source columns whose strings may be read plain: for one operator alone, which takes them so."""
        if self.engine != "pandas" or self.cache is not None:
            return []
        bound = self.bound
        steps = [*bound.needed_steps(self._with_filters(targets)), *self.filters_for(targets)]
        uses = [(bound.origin(*place), step.op.plain_too) for step in steps for place in step.fit_inputs.values()]
        uses += [(bound.origin(*place), False) for place in targets]
        uses += [((SOURCE, name), False) for name in self._conditions]
        often = Counter(root for root, _ in uses)
        return [name for (place, name), plain in uses if plain and place == SOURCE and often[place, name] == 1]

    def _read_for(self, columns: Sequence[str]) -> list[str]:
        """These columns but the weight, those of conditions, and the row numbers where they are a column."""
        in_files = [name for name in columns if name != self._weight]
        return list(dict.fromkeys([*in_files, *self._conditions, *([ROW] if ROW in self.schema else [])]))

    @property
    def filters(self) -> list[Step]:
        """The graph's filters that hold in this phase."""
        return [f for f in self.bound.filters if self._holds(f)]

    def filters_for(self, targets: Sequence[tuple[int, str]]) -> list[Step]:
        """The graph's filters that hold in this phase for the rows of the targets."""
        return [f for f in self.bound.filters_for(targets) if self._holds(f)]

    def _holds(self, step: Step) -> bool:
        return self.depth is None or step.depth < self.depth

    def _load(self, partition: Partition, columns: list[str], plain: list[str], noted: FailedCasts) -> _SourceColumns:
        """Read the rows that filter, unique, split and down-sampling keep."""
        engine, keyed = self.kernels, ROW in self.schema
        source = self.read(partition, self._read_for(columns), plain)
        rows = engine.row_numbers(partition.first_row, partition.rows)
        order = rows if keyed or self.first_row else None
        if keyed:
            rows = engine.numbers(source[ROW])[0].astype(engine.xp.uint64)
        mask, downsampling, left, weight, own = None, self._downsampling, dict[str, int](), None, None
        if self.condition:
            mask = self._true_mask(self.condition, SOURCE_FILTER, source, rows, partition, noted)
        if self.rules.repeated:
            repeated = self.rules.repeated
            gone = repeated.has(on_host(rows)) if keyed else repeated.members(partition.first_row, partition.rows)
            fresh = engine.xp.asarray(~gone)
            mask = fresh if mask is None else mask & fresh
        names = [name for name in columns if name != self._weight]
        if mask is not None:
            wanted = [*names, *self._split_columns, *self._downsampling_columns]
            source, rows, order = _taken(engine, source, wanted, rows, order, engine.xp.flatnonzero(mask))
        if self.rules.splitting:
            here, past = self._of_split(self.rules.splitting, source, rows, partition, noted, left)
            left["other_splits"] = len(rows) - total(here)
            places = engine.xp.flatnonzero(here if past is None else past)
            own = None if past is None else here.take(places)
            wanted = [*names, *self._downsampling_columns]
            source, rows, order = _taken(engine, source, wanted, rows, order, places)
        if self.first_row:  # splits go by the numbers of these rows alone
            rows = rows + engine.xp.uint64(self.first_row)
        if downsampling:
            numbers = rows - engine.xp.uint64(self.first_row)
            chosen = self._true_mask(downsampling.condition, SOURCE_DOWNSAMPLE, source, numbers, partition, noted)
            places, before = engine.xp.flatnonzero(~chosen | downsampling.stay(rows, engine)), len(rows)
            source, rows, order = _taken(engine, source, names, rows, order, places)
            left["downsampled"] = before - len(rows)
            weight = engine.xp.where(chosen.take(places), 1 / downsampling.fraction, 1.0)
        if self._weight in columns:
            weight = engine.xp.ones(len(rows)) if weight is None else weight
            source = {**source, self._weight: engine.from_numbers(weight.astype(engine.xp.float32))}
        return _SourceColumns({n: source[n] for n in columns}, rows, order, own, left)

    def _of_split(
        self,
        rule: Splitting,
        source: Columns,
        rows: Any,
        partition: Partition,
        noted: FailedCasts,
        left: dict[str, int],
    ) -> tuple[Any, Any]:
        """(which rows belong to the split of this pass; which of them and of earlier splits are read, None if only its
        own are); `left` gets how many train has because their value is null."""
        engine, xp = self.kernels, self.kernels.xp
        if rule.sets:
            own, past = rule.of_numbers(on_host(rows))
            return xp.asarray(own), xp.asarray(past) if self._looks_back else None
        if rule.column is None:
            return rule.of_hashes(source, rows, engine), None
        taken = xp.zeros(len(rows), dtype=bool)
        for name, mask in self._sides(rule, source, rows, partition, noted):
            if name == rule.name:
                return mask & ~taken, ~taken if self._looks_back else None
            taken = taken | mask
        null = engine.null_rows([source[rule.column]])
        left["null_in_train"] = 0 if null is None else total(null)
        return ~taken, None

    def _sides(
        self, rule: Splitting, source: Columns, rows: Any, partition: Partition, noted: FailedCasts
    ) -> Iterator[tuple[str, Any]]:
        """(split, which rows its condition or its cut is true for), the later split first."""
        for name, condition in rule.parsed:
            yield name, self._true_mask(condition, SOURCE_SPLIT, source, rows, partition, noted)
        if rule.cuts:
            assert rule.column is not None
            values, valid = self.kernels.numbers(source[rule.column])
            for name, cut in rule.cuts_in(self.schema[rule.column].dtype):
                yield name, values >= cut if valid is None else valid & (values >= cut)

    def _true_mask(
        self, condition: Expression, title: str, source: Columns, rows: Any, partition: Partition, noted: FailedCasts
    ) -> Any:
        """Which rows a condition of the section `source` is true for; casts that fail are added to `noted`. `rows` are
        the numbers of the rows in the source."""
        failed = Counter[str]()
        try:
            mask = true_mask(condition, source, failed, self.rules.strict)
        except DataError as error:
            named: DataError = error
            if isinstance(error, UnreadError):
                named = error.in_row(row_place(self.source, int(rows[error.row])))
            where = f"{title}, {_place(partition)}"
            raise DataError(named.what, where=where, why=named.why, do=named.do) from None
        for text, count in failed.items():
            noted[title, text] = count
        return mask

    def _origin(self, row: int) -> str:
        """Where the source has a row, by its row number, in words."""
        return row_place(self.source, row - self.first_row)

    def read(self, partition: Partition, columns: list[str], plain: list[str]) -> Columns:
        """The source columns of a partition as columns of the engine. Each comes from the first of these that has it:

        1. the cache in the GPU's memory, where an earlier pass left it,
        2. the GPU's own reader of the format,
        3. the cache in host memory,
        4. the host's reader of the format.
        """
        cache = self._cache_of(partition)
        if cache and column_cache.is_on_device(cache, partition):
            taken = column_cache.take(cache, partition, columns)
            missing = None if taken.complete else self._read_files(partition, taken.missing, plain, None)
            by_name = column_cache.put(cache, partition, taken, missing)
        else:
            by_name = self._read_files(partition, columns, plain, cache)
        return {name: by_name[name] for name in columns}

    def _read_files(
        self, partition: Partition, columns: list[str], plain: list[str], cache: CacheKey | None
    ) -> Columns:
        """Columns of the engine out of the source's files or frames: steps 2 to 4 of `read`."""
        gpu_reader = getattr(self.kernels, "read_partition", None)
        on_gpu: Columns = {}
        if partition.inputs and gpu_reader:
            partition = partition.with_frames([frame_here(one.frame) for one in partition.inputs])
            on_gpu = self.source.frames.on_device(partition, columns, self.kernels)
        elif gpu_reader:
            on_gpu = gpu_reader(self.source, partition, columns)
        rest = [name for name in columns if name not in on_gpu]
        if on_gpu and not rest:
            return on_gpu
        table = self._host_table(partition, rest, [] if gpu_reader else plain, cache, side_by_side=bool(gpu_reader))
        return on_gpu | self.kernels.from_arrow(table)

    def _host_table(
        self, partition: Partition, columns: list[str], plain: list[str], cache: CacheKey | None, side_by_side: bool
    ) -> pa.Table:
        """Columns as an Arrow table: steps 3 and 4 of `read`."""
        taken = column_cache.take(cache, partition, columns) if cache else column_cache.Taken(None, columns)
        table = None
        if not taken.complete and side_by_side:
            table = read_side_by_side(self.source, partition, taken.missing)
        elif not taken.complete:
            table = read(self.source, partition, taken.missing, plain=plain)
        return column_cache.selected(column_cache.put(cache, partition, taken, table), columns) if cache else table

    def _cache_of(self, partition: Partition) -> CacheKey | None:
        """The cache of a whole partition; None for a part of one that was divided because memory is short."""
        whole = self.cache and partition.rows == self.source.partitions[partition.number].rows
        return self.cache if whole else None


def _taken(
    engine: Kernels, source: Columns, names: Sequence[str], rows: Any, order: Any, places: Any
) -> tuple[Columns, Any, Any]:
    """The rows at these places: columns, row numbers, order numbers."""
    columns = engine.take({name: source[name] for name in names}, places) if names else {}
    return columns, rows.take(places), None if order is None else order.take(places)


def _place(partition: Partition) -> str:
    return f"partition {partition.number} (rows from {partition.first_row:,})"


def block_offsets(partition: Partition, rows: Any, xp: Any) -> list[int]:
    """Where each block begins in the partition's rows (their numbers ascend), and where the last one ends."""
    starts = np.array([b.first_row for b in partition.blocks], dtype=np.uint64)
    return [*(int(i) for i in xp.searchsorted(rows, xp.asarray(starts))), len(rows)]
