"""Estimates, before a run starts, its memory and its space on disks, and checks that the disks have that space."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.cluster.dask_pool import Workers
from tasks.cluster.out_of_memory import UNITS
from tasks.cluster.parallelism import computing_threads, make_sizing, threads_of_each
from tasks.core.memory_budget import (
    COPIES_WRITTEN_ON_CPU,
    USABLE_SHARE_OF_HOST,
    WORKER_ITSELF,
    copies,
    host_work_limit,
    work_limit,
)
from tasks.core.plan import PARSED, Block, Plan
from tasks.core.row_sizes import POSITION, row_bytes, row_width
from tasks.core.schema import Schema
from tasks.core.units import amount, least_amount
from tasks.engines.convert.host_files import ROW_GROUP
from tasks.errors import GiveUpError, RowmillError
from tasks.job.apply_fitted import bind_graph
from tasks.job.request import Request
from tasks.job.source_rules import looks
from tasks.shuffle.choice import Choice, choose, spare, spare_on_device
from tasks.shuffle.key_ranges import exchange_of
from tasks.shuffle.row_order import PARTLY_NEEDED, compute_number_of_files, ranges_of_file
from tasks.sources.planning import partition_size
from tasks.stages.cache_policy import is_costly
from tasks.stages.trial import Sampled, run_trial
from tasks.storage.atomic import existing
from tasks.storage.staging import Staging


@dataclass(frozen=True)
class Disk:
    """A file system to which a run writes: the bytes that the run needs there, and the bytes that are free."""

    path: str
    needed: int
    free: int | None  # None where the file system does not say
    what: str

    @property
    def short(self) -> bool:
        return self.free is not None and self.needed > self.free

    @property
    def room(self) -> str:
        """The free space as text."""
        return "not known" if self.free is None else f"{amount(self.free)} free"

    @property
    def text(self) -> str:
        free = "an unknown amount is" if self.free is None else f"{amount(self.free)} is"
        return f"about {amount(self.needed)} is needed for {self.what}, {free} free"


@dataclass(frozen=True)
class ResourceEstimate:
    """Estimated bytes by purpose. `device` is 0 without GPUs; `because` says why this exchange was chosen."""

    device: int
    host: int
    scratch: int
    output: int
    exchange: str
    because: str
    memory: int
    disks: tuple[Disk, ...]

    def summary(self) -> dict[str, str]:
        """Describe the estimate in lines of a stage's summary."""
        lines = {"device_memory_needed": f"about {amount(self.device)}"} if self.device else {}
        lines["host_memory_needed"] = f"about {amount(self.host)} of {amount(self.memory)}"
        lines["scratch_needed"] = f"about {amount(self.scratch)}"
        lines["output_needed"] = f"about {amount(self.output)}"
        lines["planned_exchange"] = f"{self.exchange} ({self.because})"
        return lines | {f"disk_{i}": f"{d.path}: {d.text}" for i, d in enumerate(self.disks, 1)}


@dataclass(frozen=True)
class SplitEstimate:
    """What a run makes of the rows of one split.

    schema: the columns that are written, as far as they are known before rows are read.
    rows, rows_left: how many rows there are, and how many of them the filters leave.
    pieces, written: bytes of the pieces that are exchanged, and of the output.
    """

    plan: Plan
    schema: Schema
    rows: int
    rows_left: int
    pieces: int
    written: int
    choice: Choice


@dataclass(frozen=True)
class PartitionsAtWork:
    """The partitions that are computed at the same time: their number, and the bytes of the largest of the run."""

    count: int
    largest: int

    @property
    def nbytes(self) -> int:
        return self.count * self.largest


@dataclass(frozen=True)
class MemoryNeeds:
    """Bytes of the memory of all GPUs and of all hosts."""

    device: int
    host: int


def needs(
    request: Request, plans: Mapping[str, Plan], workers: Workers, sample: Sampled | None = None, scale: float = 1.0
) -> ResourceEstimate:
    """Estimate the needs of all splits of a request: from its rows with a sample, else from the widths of the types.

    `scale` is the number of rows of the run for each row of the plans: above 1 for look-alike data not yet made.
    """
    splits = _estimate_splits(request, plans, workers, sample, scale)
    kind = "disk" if any(split.choice.kind == "disk" for split in splits.values()) else "memory"
    in_memory = max(split.pieces for split in splits.values()) if kind == "memory" else 0
    at_work = _estimate_partitions_at_work(request, plans, workers, scale)
    cached = _estimate_cached_bytes(request, splits, workers, scale)
    if request.engine == "cudf":
        memory = _estimate_memory_with_gpus(splits, workers, at_work, in_memory, cached)
    else:
        memory = _estimate_memory_without_gpus(request, splits, workers, at_work, in_memory, cached)
    scratch = _estimate_scratch_bytes(request, splits, workers, scale)
    written = sum(split.written for split in splits.values())
    return ResourceEstimate(
        device=memory.device,
        host=memory.host,
        scratch=scratch,
        output=written,
        exchange=kind,
        because=next(split.choice.because for split in splits.values() if split.choice.kind == kind),
        memory=workers.memory,
        disks=find_disks(request.staging, scratch, written),
    )


def _estimate_splits(
    request: Request, plans: Mapping[str, Plan], workers: Workers, sample: Sampled | None, scale: float
) -> dict[str, SplitEstimate]:
    """Estimate what the rows of each split become, and choose how they are exchanged."""
    left = sample.ratio if sample and sample.after.num_rows else 1.0
    stored = sample.estimate_row_bytes(request) * left if sample else 0.0
    splits = {}
    for name, plan in plans.items():
        schema = _bind_schema(request, plan, sample)
        rows = int(plan.rows * scale)
        of_row = left * (sample.piece_bytes + POSITION) if sample else row_bytes(schema)
        splits[name] = SplitEstimate(
            plan=plan,
            schema=schema,
            rows=rows,
            rows_left=int(rows * left),
            pieces=int(rows * of_row),
            written=int(rows * (stored or row_width(schema))),
            choice=choose(request.run.exchange, rows, schema, workers, request.engine),
        )
    return splits


def _estimate_partitions_at_work(
    request: Request, plans: Mapping[str, Plan], workers: Workers, scale: float
) -> PartitionsAtWork:
    """Estimate the partitions that are computed at the same time; with more rows than in the plans, they are larger."""
    largest = max(partition.nbytes for plan in plans.values() for partition in plan.partitions)
    nbytes = max(plan.nbytes for plan in plans.values())
    most = partition_size(request.source, int(nbytes * scale), make_sizing(request.engine, workers))
    most_partitions = max(len(plan.partitions) for plan in plans.values())
    return PartitionsAtWork(
        count=min(computing_threads(request.engine, workers), most_partitions),
        largest=max(largest, min(int(largest * scale), most)),
    )


def _estimate_cached_bytes(
    request: Request, splits: Mapping[str, SplitEstimate], workers: Workers, scale: float
) -> int:
    """Estimate the bytes of columns that statistics caches in host memory for transform until pieces need the room."""
    learned = splits.get(request.plan_names[0])
    if learned is None:  # the validation data alone, before they are brought together
        return 0
    if request.fitted or not is_costly(learned.plan):
        return 0
    exchange = request.run.exchange
    on_gpu = request.engine == "cudf"
    if on_gpu and spare_on_device(exchange, learned.rows, learned.schema, workers):  # they are cached there
        return 0
    each = spare(exchange, learned.rows, learned.schema, workers, request.engine)
    return min(each * len(workers.workers), int(learned.plan.nbytes * scale))


def _estimate_memory_with_gpus(
    splits: Mapping[str, SplitEstimate], workers: Workers, at_work: PartitionsAtWork, in_memory: int, cached: int
) -> MemoryNeeds:
    """Estimate the memory of a run on GPUs; `in_memory` are bytes of pieces, `cached` of columns."""
    working = copies("cudf") * at_work.nbytes
    if workers.device_memory:
        working = min(working, work_limit(workers.device_memory))  # further partitions wait
    on_host = any(split.choice.on_host for split in splits.values())
    return MemoryNeeds(
        device=working + (0 if on_host else in_memory),
        host=at_work.nbytes + max(in_memory if on_host else 0, cached),
    )


def _estimate_memory_without_gpus(
    request: Request,
    splits: Mapping[str, SplitEstimate],
    workers: Workers,
    at_work: PartitionsAtWork,
    in_memory: int,
    cached: int,
) -> MemoryNeeds:
    """Estimate the memory of a run on CPUs, which compute partitions and then write files; `in_memory` are bytes of
    pieces, `cached` of columns."""
    limit = host_work_limit(workers.smallest_memory, threads_of_each(workers), in_memory > 0)
    plans = [split.plan for split in splits.values()]
    computing = _estimate_partition_bytes(plans, at_work.largest, limit) * at_work.count
    writing = max(
        _estimate_files_bytes(request, split.rows_left, split.pieces, split.schema, workers, limit)
        for split in splits.values()
    )
    host = WORKER_ITSELF * len(workers.workers) + max(computing, writing) + max(in_memory, cached)
    return MemoryNeeds(device=0, host=host)


def _estimate_scratch_bytes(
    request: Request, splits: Mapping[str, SplitEstimate], workers: Workers, scale: float
) -> int:
    """Estimate the bytes of the run's own files at their peak: parsed text throughout; next to it either the pieces and
    the rows grouped by keys, or what the rules of the source note before these are written."""
    source = request.source
    plans = [split.plan for split in splits.values()]
    parsed = int(sum(plan.nbytes for plan in plans) * scale) if source.parse_once else 0
    keyed = sum(int(split.rows * row_bytes(split.plan.schema)) for split in splits.values()) if source.keys else 0
    pieces = max((split.pieces for split in splits.values() if split.choice.kind == "disk"), default=0)
    by_keys = [look for look in looks(source) if look.by_keys]
    exchanges = [
        exchange_of(plan, look.columns, request.run.exchange, workers, request.engine)
        for plan in plans
        for look in by_keys
    ]
    noted = sum(plan.rows for plan in plans) * max((look.noted for look in looks(source)), default=0)
    waiting = [nbytes + noted for where, nbytes in exchanges if where == "disk"]
    return parsed + max(keyed + pieces, *(int(nbytes * scale) for nbytes in [noted, *waiting]))


def _find_largest_block(plan: Plan) -> Block:
    return max((block for partition in plan.partitions for block in partition.blocks), key=lambda block: block.nbytes)


def _estimate_partition_bytes(plans: Sequence[Plan], largest: int, limit: int) -> int:
    """Estimate the bytes of a partition that a thread of a CPU worker computes.

    One that does not fit into `limit` is divided, but a block is not.
    """
    block = max(_find_largest_block(plan).nbytes for plan in plans)
    each = copies("pandas")
    return min(each * largest, max(limit, each * block))


def _estimate_files_bytes(
    request: Request, rows: int, pieces: int, schema: Schema, workers: Workers, limit: int
) -> int:
    """Estimate the bytes of the files that CPU workers write at once.

    One that does not fit into `limit` is written in runs, but a row group is not.
    """
    output = request.output
    files = compute_number_of_files(output, rows, schema, len(workers.workers))
    together = (output.row_group_size or ROW_GROUP) if output.format in ("parquet", "arrow") else 1
    of_file = pieces // files
    of_range = of_file // ranges_of_file(output, rows, files)
    of_group = pieces * min(together, rows) // max(rows, 1) + PARTLY_NEEDED * of_range
    each = min(COPIES_WRITTEN_ON_CPU * of_file, max(limit, COPIES_WRITTEN_ON_CPU * of_group))
    return each * min(workers.threads, files)


def _bind_schema(request: Request, plan: Plan, sample: Sampled | None) -> Schema:
    return sample.schema if sample else bind_graph(request, plan.schema).output


def find_disks(staging: Staging, scratch: int, output: int) -> tuple[Disk, ...]:
    """Find the file systems of the staging folder and of the target, with the bytes that a run will add there."""
    work = existing(staging.folder)
    target = existing(staging.target.parent)
    one = staging.mirror is not None or _find_file_system(work) == _find_file_system(target)
    reusable = _count_reusable_bytes(staging.folder)
    purpose = "scratch and output" if scratch else "output"
    here = Disk(str(work), max(scratch + output - reusable, 0), _read_free_bytes(work), purpose)
    return (here,) if one else (here, Disk(str(target), output, _read_free_bytes(target), "output"))


def _count_reusable_bytes(folder: Path) -> int:
    """Count the bytes of pieces and parts of an earlier start, which this start need not write again."""
    places = [folder / "new", folder / "exchange", *folder.glob("keyed*"), *folder.glob(f"{PARSED}*")]
    paths = [p for place in places if place.is_dir() for p in place.rglob("*")]
    total = 0
    for path in paths:
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # removed meanwhile
            continue
    return total


def _find_file_system(path: Path) -> int:
    return path.stat().st_dev


def _read_free_bytes(path: Path) -> int | None:
    usage = shutil.disk_usage(path)
    return usage.free if usage.total else None


def check_needs(request: Request, plans: Mapping[str, Plan], workers: Workers) -> ResourceEstimate:
    """Check that the disks have enough space and a worker has the memory for one block; return the estimate.

    A GiveUpError with the figures if not.

    An estimate from types alone is too high, since files are compressed: if it does not fit, a sample of rows decides.
    """
    if error := explain_too_little_memory(request, plans, workers):
        raise error
    estimate = needs(request, plans, workers)
    if not any(disk.short for disk in estimate.disks):
        return estimate
    try:
        sample = run_trial(request, next(iter(plans.values())))
    except RowmillError:
        return estimate  # the stage that reads all rows reports what is wrong with them
    if not sample.after.num_rows:
        return estimate
    estimate = needs(request, plans, workers, sample)
    for disk in estimate.disks:
        if disk.short:
            raise make_disk_error(disk)
    return estimate


def explain_too_little_memory(request: Request, plans: Mapping[str, Plan], workers: Workers) -> GiveUpError | None:
    """Explain why a CPU worker would be killed for its memory while it works on a single block; None if it would
    not."""
    if request.engine == "cudf":
        return None
    nbytes, rows = max(_read_block(request, plan) for plan in plans.values())
    work = copies(request.engine) * nbytes
    need = WORKER_ITSELF + work
    allowed = USABLE_SHARE_OF_HOST * workers.smallest_memory
    if need <= allowed or work < WORKER_ITSELF // 10:  # a worker may be small, and still do little work
        return None
    limit = least_amount(need / USABLE_SHARE_OF_HOST)
    formats = {plan.format for plan in plans.values()}
    unit = UNITS.get(formats.pop()) if len(formats) == 1 else None
    smaller = f", or write the source with {unit}s of fewer rows" if unit else ""
    return GiveUpError(
        "a worker has too little memory for this run",
        where="cluster.memory_limit",
        why=f"{amount(WORKER_ITSELF)} for itself and {copies(request.engine)} times the {amount(nbytes)} that the run "
        f"reads of {rows:,} rows at once are {amount(need)}; it may use {amount(int(allowed))} of its "
        f"{amount(workers.smallest_memory)}",
        do=f"set cluster.memory_limit to {limit} or more, with fewer cluster.workers if the host has no more{smaller}",
    )


def _read_block(request: Request, plan: Plan) -> tuple[int, int]:
    """Estimate (bytes of the columns that the run reads, rows) of the largest block."""
    block = _find_largest_block(plan)
    bound = bind_graph(request, plan.schema)
    names = [name for name in bound.source_columns(bound.targets, True) if name in plan.schema]
    share = row_bytes(Schema(plan.schema[name] for name in names)) / row_bytes(plan.schema)
    return int(block.nbytes * share), block.rows


def make_disk_error(disk: Disk) -> GiveUpError:
    """Make the error for a disk that is too small for a run."""
    return GiveUpError(
        "the disk is too small for this run",
        where=disk.path,
        why=f"{disk.text} (measured on some of the rows)",
        do="free some space, or choose another output.path or run.scratch",
    )
