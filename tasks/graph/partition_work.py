"""One partition's work: read, filter, evaluate. What a worker gets once per stage."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from tasks import engines
from tasks.cluster import column_cache
from tasks.cluster.column_cache import CacheKey
from tasks.cluster.transfer import gpu_setup
from tasks.core.pickled_fields import PickledFields
from tasks.core.plan import Partition, Plan
from tasks.core.schema import ROW, Schema
from tasks.core.strict_json import JsonObject
from tasks.core.unforeseen_errors import at
from tasks.engines.algorithms.moments import Moments
from tasks.engines.algorithms.protocol import Kernels
from tasks.engines.expression.syntax import parse
from tasks.engines.types import Array
from tasks.graph import row_sample
from tasks.graph.binding import SOURCE, Bound, Step
from tasks.graph.evaluation import Evaluation
from tasks.graph.failed_casts import FailedCasts
from tasks.graph.node import Node
from tasks.graph.row_masks import Mask, MaskedPartition, PartitionRows, place_of
from tasks.graph.row_rules import RowRules
from tasks.graph.seen import Seen, sketch_source_columns
from tasks.graph.state import State
from tasks.ops.base import Columns, Context
from tasks.sources.frames import frame_here
from tasks.sources.reader import read, read_side_by_side
from tasks.sources.row_places import row_place
from tasks.storage.files_being_read import format_files

_loaded: dict[tuple[str, str], State] = {}
_loading = threading.Lock()
_binding = threading.Lock()


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
    def _masks(self) -> list[Mask]:
        """The rules that decide which rows are left out, in their order."""
        rule = self.rules.splitting
        bound = self.bound
        looks_back = rule is not None and rule.looks_back and rule.name != "train"
        looks_back = looks_back and (bool(bound.made_of_runs) or bound.space != SOURCE)
        condition = parse(self.filter) if self.filter else None
        return self.rules.masks(condition, self.training, looks_back, self.first_row)

    @property
    def _conditions(self) -> list[str]:
        """The columns that decide which rows are left out."""
        return [name for mask in self._masks for name in mask.columns]

    @property
    def _weight(self) -> str | None:
        """The column that down-sampling makes: it is part of the schema, and of no file."""
        return self.rules.downsampling.weight if self.rules.downsampling else None

    def open_partition(
        self, partition: Partition, targets: Sequence[tuple[int, str]], learning: Sequence[Step] = ()
    ) -> Evaluation:
        """Read a partition and filter its rows; it is then ready to make the targets, and nothing else.

        `learning` are the steps that learn from the targets, if nothing else uses these.
        """
        bound = self.bound
        noted = FailedCasts()
        where = place_of(partition)
        with at(where):
            needed = self._list_source_columns(targets)
            more = [name for name in self._profiled if name not in needed]
            rows = self._load(partition, [*needed, *more], self._list_plain_columns(targets, learning), noted)
        met = None if self.profile is None else Counter[str]()
        context = Context(
            self.kernels,
            rows.numbers,
            self.training,
            rows.order,
            met=met,
            origin=self._describe_row_place,
            own=rows.own,
            rules=self.learned.rules,
        )
        frame = {name: rows.columns[name] for name in needed} if more else rows.columns
        evaluation = Evaluation(bound, frame, self.learned, context, where, noted, self._describe_activity(partition))
        evaluation.apply_filters(self.filters_for(targets))
        if rows.own is not None:
            with at(where):
                evaluation.keep_own(targets)
            rows = rows.take_rows(self.kernels.xp.flatnonzero(rows.own), self._profiled, self.kernels)
            context = replace(context, rows=rows.numbers, order=rows.order, own=None)
        evaluation.profiled = {name: rows.columns[name] for name in self._profiled}, context
        evaluation.left_out = dict(rows.left_out)
        return evaluation

    def _describe_activity(self, partition: Partition) -> tuple[JsonObject, str] | None:
        """Find where to note what a user's function works on, and describe that."""
        if not isinstance(self.source, Plan):
            return None
        files = dict.fromkeys(self.source.files[piece.file].path for b in partition.blocks for piece in b.pieces)
        return self.source.options, f"{place_of(partition)} of {format_files([*files])}"

    def profile_rows(
        self, evaluation: Evaluation, partition: Partition, known: Mapping[str, Sequence[Moments]] | None = None
    ) -> Seen:
        """Profile the rows of the partition before filters of the graph; `known`: moments by block."""
        start = time.thread_time()
        (columns, context), engine = evaluation.profiled, self.kernels
        starts = find_block_offsets(partition, context.ordered(), engine.xp)
        blocks = [block.number for block in partition.blocks]
        profiled = {name: columns[name] for name in self.profile or ()}
        seen = Seen(
            len(context.rows), sketch_source_columns(profiled, starts, blocks, engine, known or {}), evaluation.met
        )
        rows = (self.source if isinstance(self.source, Plan) else self.source.plan).rows
        seen.step = row_sample.step_of(rows)
        sampled = {name: columns[name] for name in (*profiled, *self.compared[: row_sample.ASSOCIATED_COLUMNS])}
        compared = {name: columns[name] for name in self.compared}
        ascending = ROW not in self.schema
        seen.sample, seen.hashes = row_sample.draw(sampled, compared, context.rows, rows, ascending, engine)
        evaluation.profiled = {}, context
        seen.seconds = time.thread_time() - start
        return seen

    @property
    def _profiled(self) -> list[str]:
        """The columns that the profile is made of."""
        return list(dict.fromkeys([*(self.profile or ()), *self.compared]))

    def reads(self, targets: Sequence[tuple[int, str]]) -> list[str]:
        """List the source columns that are read for the targets."""
        return self._read_for(self._list_source_columns(targets))

    def _list_source_columns(self, targets: Sequence[tuple[int, str]]) -> list[str]:
        """List the source columns that the targets and the graph's filters are made of."""
        return self.bound.source_columns(self._with_filters(targets), self.training)

    def _with_filters(self, targets: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
        return [*targets, *(place for f in self.filters_for(targets) for place in f.inputs.values())]

    def _list_plain_columns(self, targets: Sequence[tuple[int, str]], learning: Sequence[Step]) -> list[str]:
        """List the source columns whose strings may be read as plain strings: those that only one operator uses, which
        takes them so."""
        if self.engine != "pandas" or self.cache is not None:
            return []
        bound = self.bound
        steps = [*bound.needed_steps(self._with_filters(targets)), *self.filters_for(targets), *learning]
        uses = [(bound.origin(*place), step.op.plain_too) for step in steps for place in step.fit_inputs.values()]
        if not learning:
            uses += [(bound.origin(*place), False) for place in targets]
        uses += [((SOURCE, name), False) for name in self._conditions]
        often = Counter(root for root, _ in uses)
        return [name for (place, name), plain in uses if plain and place == SOURCE and often[place, name] == 1]

    def _read_for(self, columns: Sequence[str]) -> list[str]:
        """List these columns without the weight, those of conditions, and the row numbers if they are a column."""
        in_files = [name for name in columns if name != self._weight]
        return list(dict.fromkeys([*in_files, *self._conditions, *([ROW] if ROW in self.schema else [])]))

    @property
    def filters(self) -> list[Step]:
        """The graph's filters that hold in this phase."""
        return [f for f in self.bound.filters if self._holds(f)]

    def filters_for(self, targets: Sequence[tuple[int, str]]) -> list[Step]:
        """Return the graph's filters that hold in this phase for the rows of the targets."""
        return [f for f in self.bound.filters_for(targets) if self._holds(f)]

    def _holds(self, step: Step) -> bool:
        return self.depth is None or step.depth < self.depth

    def _load(self, partition: Partition, columns: list[str], plain: list[str], noted: FailedCasts) -> PartitionRows:
        """Read these columns of the rows that filter, unique, split and down-sampling keep."""
        masked = MaskedPartition(partition, self.source, self.schema, self.kernels, self.rules.strict, noted)
        every = masked.rows(self.read(partition, self._read_for(columns), plain), bool(self.first_row))
        rows = masked.apply_masks(every, self._masks, columns)
        numbers = rows.numbers + self.kernels.xp.uint64(self.first_row) if self.first_row else rows.numbers
        return replace(rows, columns={name: rows.columns[name] for name in columns}, numbers=numbers)

    def _describe_row_place(self, row: int) -> str:
        """Describe where the source has a row, by its row number."""
        return row_place(self.source, row - self.first_row)

    def read(self, partition: Partition, columns: list[str], plain: list[str]) -> Columns:
        """Read the source columns of a partition as columns of the engine. Each comes from the first of these that has
        it:

        1. the cache in the GPU's memory, where an earlier pass left it,
        2. the GPU's own reader of the format,
        3. the cache in host memory,
        4. the host's reader of the format.
        """
        cache = self._choose_cache(partition)
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
        """Read columns of the engine from the source's files or frames: steps 2 to 4 of `read`."""
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
        table = self._read_host_table(
            partition, rest, [] if gpu_reader else plain, cache, side_by_side=bool(gpu_reader)
        )
        return on_gpu | self.kernels.from_arrow(table)

    def _read_host_table(
        self, partition: Partition, columns: list[str], plain: list[str], cache: CacheKey | None, side_by_side: bool
    ) -> pa.Table:
        """Read columns as an Arrow table: steps 3 and 4 of `read`."""
        taken = column_cache.take(cache, partition, columns) if cache else column_cache.Taken(None, columns)
        table = None
        if not taken.complete and side_by_side:
            table = read_side_by_side(self.source, partition, taken.missing)
        elif not taken.complete:
            table = read(self.source, partition, taken.missing, plain=plain)
        return (
            column_cache.select_columns(column_cache.put(cache, partition, taken, table), columns) if cache else table
        )

    def _choose_cache(self, partition: Partition) -> CacheKey | None:
        """Return the cache of a whole partition; None for a part of one that was divided because memory is short."""
        whole = self.cache and partition.rows == self.source.partitions[partition.number].rows
        return self.cache if whole else None


def find_block_offsets(partition: Partition, rows: Array, xp: ModuleType) -> list[int]:
    """Find where each block begins in the partition's rows (their numbers ascend), and where the last one ends."""
    starts = np.array([b.first_row for b in partition.blocks], dtype=np.uint64)
    return [*(int(i) for i in xp.searchsorted(rows, xp.asarray(starts))), len(rows)]
