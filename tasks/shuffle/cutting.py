"""Every partition read, transformed, every row given its place in the order, cut into pieces by range of position."""

from __future__ import annotations

from functools import partial

from tasks import engines
from tasks.cluster import monitor
from tasks.cluster.out_of_memory import compute_in_halves
from tasks.cluster.transfer import gpu_setup
from tasks.core.plan import Partition
from tasks.core.schema import HIDDEN, ROW, Schema
from tasks.graph.failed_casts import list_records
from tasks.shuffle import permutation
from tasks.shuffle.host_pieces import to_host
from tasks.shuffle.pieces import Cutting, PartitionPieces
from tasks.shuffle.row_order import locate_order_columns
from tasks.storage import hive


def cut_partition(cutting: Cutting, partition: Partition) -> PartitionPieces:
    """Return the partition's rows, transformed, in ranges of position."""
    cut = PartitionPieces()
    work = cutting.work
    gpu_setup.prepare(work.engine)
    with engines.computing(work.engine, partition.nbytes):
        cut_part = partial(_cut_partition, cutting)
        parts = compute_in_halves(cutting.stage, cut_part, partition, cutting.floor, work.source, work.engine)
    while parts:  # one after another: what is copied to the host is let go on the GPU
        part = parts.pop(0)
        cut.pieces += [
            to_host(pieces, work.engine, cutting.shares) if cutting.on_host else pieces for pieces in part.pieces
        ]
        cut.rows_in += part.rows_in
        cut.rows_out += part.rows_out
        cut.failed += part.failed
        cut.left_out += part.left_out
        cut.seen += part.seen
    monitor.count(cut.rows_in, partition.nbytes)
    return cut


def _cut_partition(cutting: Cutting, partition: Partition) -> PartitionPieces:
    work = cutting.work
    order = cutting.order
    engine = cutting.work.kernels
    carried = locate_order_columns(work, order)
    targets = work.bound.targets + list(carried.values())
    evaluation = work.open_partition(partition, targets)
    out = evaluation.outputs()
    context = evaluation.contexts[work.bound.space]
    if cutting.partition_on:
        named = Schema(work.bound.output[name] for name in cutting.partition_on)
        hive.check_number(engine.host_columns(out, named), f"partition {partition.number}")
    if order.mode == "key":
        keys = [evaluation.column(*carried[f"key{i}"]) for i in range(len(order.keys))]
        positions = engine.hash_columns(keys).astype(engine.xp.uint64)
        out |= {HIDDEN + name: evaluation.column(*place) for name, place in carried.items()}
        out[HIDDEN + "row"] = engine.from_numbers(context.ordered())
        if order.keep_row:
            out[ROW] = engine.from_numbers(context.rows)
    else:
        positions = permutation.MODES[order.mode](context.ordered(), order.layout, order.seed, engine.xp)
    seen = None if work.profile is None else work.profile_rows(evaluation, partition)
    pieces = engine.cut(out, positions, order.edges)
    engines.synchronize()
    failed = list_records(evaluation.failed)
    return PartitionPieces(
        [pieces], partition.rows, len(context.rows), [failed], [] if seen is None else [seen], [evaluation.left_out]
    )
