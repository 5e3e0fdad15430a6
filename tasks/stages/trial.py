"""A few rows of a source through its workflow, fitted on these rows alone: what a preview shows and measures."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa

from tasks import engines
from tasks.cluster.local_pool import LocalPool
from tasks.core.plan import EXPLODED, Block, Partition, Piece, Plan, cut_partitions
from tasks.core.schema import ROW, Schema
from tasks.core.settings import Source
from tasks.engines.convert.encodings import are_encoded_on_gpu
from tasks.engines.convert.libraries import decode_dictionaries
from tasks.graph.binding import Bound
from tasks.graph.failed_casts import Record, list_records, sum_records
from tasks.graph.partition_work import Work
from tasks.graph.row_rules import RowRules
from tasks.graph.state import State
from tasks.job.apply_fitted import choose_graph_and_schema
from tasks.job.request import Request
from tasks.job.source_rules import condition_columns, downsampling_of, looks
from tasks.learning.observe import learn
from tasks.ops.base import Learned
from tasks.shuffle.group_by_keys import by_keys
from tasks.shuffle.key_ranges import SourceRows
from tasks.shuffle.parts import Writing
from tasks.shuffle.row_order import make_order
from tasks.sources.formats import FORMATS
from tasks.sources.frames import frames_of
from tasks.sources.planning import PARTITION
from tasks.sources.reader import FramePlan, read
from tasks.storage import hive
from tasks.storage.published_copy import open_published

SAMPLE_ROWS = 20_000
PLACES = 3  # of the source that rows are taken from


@dataclass(frozen=True)
class Sampled:
    """Rows of a source before and after its workflow, fitted on `fitted_on` rows (None: before, on others).

    `failed_casts` are the rows that expressions tables null of because a cast failed.
    """

    before: pa.Table
    after: pa.Table
    schema: Schema
    fitted_on: int | None
    failed_casts: list[Record] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Rows that come out of one that goes in."""
        return self.after.num_rows / max(self.before.num_rows, 1)

    @cached_property
    def piece_bytes(self) -> float:
        """Bytes that a row of the output takes between the stages."""
        return self.after.nbytes / max(self.after.num_rows, 1)

    def estimate_row_bytes(self, request: Request) -> float:
        """Estimate the bytes of a row in the files of the output, shuffled as they will be; 0.0 if no row is left."""
        output = request.output
        rows = self.after.num_rows
        if not rows:
            return 0.0
        table = self.after
        if output.shuffle != "none":  # sorted rows would be pressed together as shuffled ones are not
            table = table.take(np.random.default_rng(0).permutation(rows))
        schema = hive.drop_folder_columns(self.schema, output.partition_on)
        writing = Writing("", "", "pandas", output, make_order(output, _plan_of(rows), 1), schema)
        named = writing.dictionary_columns
        if request.engine == "cudf":
            named = []
            if are_encoded_on_gpu([column.dtype for column in schema.columns], output.compression):
                output = output.model_copy(update={"compression": "none"})
        sink = pa.BufferOutputStream()
        settings = SimpleNamespace(output=output, schema=schema, dictionary_columns=named)
        engines.engine("pandas").write_file(table, sink, settings)
        return sink.getvalue().size / rows


def _plan_of(rows: int) -> Plan:
    return Plan((), "frame", Schema(), (Block(0, 0, rows, 0, ()),), ())


def run_trial(request: Request, plan: Plan, rows: int = SAMPLE_ROWS) -> Sampled:
    """At most so many rows of a few places of the source, in order, through the workflow on the CPU.

    A fitted workflow is what it is; another one is fitted on these rows. Errors are those of the whole job.
    """
    source = request.source
    final, schema = choose_graph_and_schema(request, plan.schema)
    state = None
    if request.fitted:
        with open_published(request.fitted.path, source.storage_options, "the fitted workflow", "fitted") as copy:
            state = State.load(copy.folder)
    table = _read_spread_rows(
        plan, _list_read_columns(Bound(final, schema), source.keys, source.sort_by, request), rows
    )
    with tempfile.TemporaryDirectory(prefix="rowmill-trial-") as scratch:
        sample = _make_source(table, source, Path(scratch) / "keyed")
        own = sample if isinstance(sample, Plan) else sample.plan
        rules = RowRules(downsampling=downsampling_of(source), strict=source.strict)
        weight = rules.downsampling.weight if rules.downsampling else None
        names = {*table.column_names, ROW, *([weight] if weight else [])}
        columns = [column for column in schema.columns if column.name in names]
        if ROW in own.schema and ROW not in schema:
            columns.append(own.schema[ROW])
        bound_to = Schema(columns)
        work = Work(sample, final, bound_to, "pandas", filter=source.filter, training=not request.fitted, rules=rules)
        work = replace(work, state=state or learn(work, own, LocalPool()).state)
        failed: list[list[Record]] = []
        tables = [_transform_partition(work, partition, failed) for partition in own.partitions]
    after = pa.concat_tables(tables) if tables else work.bound.output.to_arrow().empty_table()
    fitted_on = None if request.fitted else table.num_rows
    return Sampled(table, after, work.bound.output, fitted_on, sum_records(failed))


def _make_source(table: pa.Table, source: Source, folder: Path) -> Plan | FramePlan:
    """Turn rows into a source of one partition or a few, with rows of equal `source.keys` grouped in `folder`."""
    frames = frames_of(table)
    blocks = frames.blocks()
    plan = Plan((), "frame", frames.schema, blocks, cut_partitions(blocks, PARTITION))
    rows = FramePlan(plan, frames, "sample")
    if not source.keys:
        return rows
    return by_keys(SourceRows(rows, plan, "pandas", LocalPool()), source.keys, source.sort_by, folder, PARTITION)


def _transform_partition(work: Work, partition: Partition, failed: list[list[Record]]) -> pa.Table:
    evaluation = work.open_partition(partition, work.bound.targets)
    columns = evaluation.outputs()
    failed.append(list_records(evaluation.failed))
    return work.kernels.host_columns(columns, work.bound.output)


def _list_read_columns(bound: Bound, keys: Sequence[str], sort_by: Sequence[str], request: Request) -> list[str]:
    """List the source columns that the job reads, in the source's order."""
    places = list(bound.targets) + [place for f in bound.filters for place in f.inputs.values()]
    if not request.fitted:
        places += [place for s in bound.learned for place in s.fit_inputs.values()]
    names = {
        *bound.source_columns(places, training=not request.fitted),
        *keys,
        *sort_by,
        *condition_columns(request.source),
    }
    output = request.output
    if output.shuffle == "key":
        names |= {n for n in (*output.keys, *output.sort_by) if n in bound.source}
    weight = request.source.downsample.weight if request.source.downsample else None
    names |= {root for name in names if name not in {*bound.source} and (root := bound.source.root(name))}
    return [name for name in bound.source if name in names and name not in (ROW, weight)]


def _read_spread_rows(plan: Plan, columns: list[str], rows: int) -> pa.Table:
    """Read the first rows of blocks at even distances."""
    places = min(PLACES, len(plan.blocks))
    each = -(-rows // places)
    blocks = [_cut_to_head(plan, plan.blocks[i * len(plan.blocks) // places], each) for i in range(places)]
    tables = [read(plan, Partition(0, (block,)), columns).slice(0, each) for block in blocks]
    return pa.concat_tables(map(decode_dictionaries, tables)).combine_chunks().slice(0, rows)


def _cut_to_head(plan: Plan, block: Block, rows: int) -> Block:
    """Cut a block to its first rows, so that no more of it is decoded.

    Text, and elements of lists, are read as a whole block, whose pieces cannot be cut by rows.
    """
    if FORMATS[plan.format].ranged or EXPLODED in plan.options:
        return block
    pieces: list[Piece] = []
    for piece in block.pieces:
        left = rows - sum(p.stop - p.start for p in pieces)
        if left > 0:
            pieces.append(replace(piece, stop=min(piece.stop, piece.start + left)))
    return replace(block, pieces=tuple(pieces), rows=sum(p.stop - p.start for p in pieces))


def list_phases(bound: Bound) -> list[list[str]]:
    """List the source columns that each pass of the statistics reads, with those of the filters that hold in it."""
    phases = []
    for depth in sorted({s.depth for s in bound.learned}):
        steps = [s for s in bound.learned if s.depth == depth and isinstance(s.op, Learned)]
        places = [place for s in steps for place in s.fit_inputs.values()]
        filters = [f for f in bound.filters_for(places) if f.depth < depth]
        places += [place for f in filters for place in f.inputs.values()]
        phases.append(bound.source_columns(places, training=True))
    return phases


def list_used_columns(request: Request, bound: Bound) -> set[str]:
    """List the source columns that a run reads: for learning, for the output, for its order and for rules on rows."""
    source = request.source
    written = _list_output_sources(request, bound)  # of a fit, too: its features must be possible
    rows = [*condition_columns(source), *(name for look in looks(source) for name in look.columns)]
    used = {*list_profiled_columns(request, bound), *written, *rows, *source.keys, *source.sort_by}
    return used | {root for name in used if (root := bound.source.root(name))}


def list_profiled_columns(request: Request, bound: Bound) -> set[str]:
    """List the source columns that statistics and transform read, of which the gate has a profile.

    Columns that only ingest reads are not among them.
    """
    source = request.source
    output = request.output
    learned = set() if request.fitted else {name for names in list_phases(bound) for name in names}
    every_pass = condition_columns(source, passes=False)
    if request.flow == "fit":
        return {*learned, *every_pass} if learned else set()
    return {*learned, *every_pass, *_list_output_sources(request, bound), *output.keys, *output.sort_by}


def _list_output_sources(request: Request, bound: Bound) -> list[str]:
    filters = [place for f in bound.filters for place in f.inputs.values()]
    return bound.source_columns([*bound.targets, *filters], training=not request.fitted)
