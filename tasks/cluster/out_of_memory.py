"""Out of memory: recognized among other failures, injected for tests, answered by work on fewer rows at a time."""

from __future__ import annotations

import errno
import functools
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ParamSpec, TypeVar

import psutil

from tasks import engines
from tasks.cluster import column_cache
from tasks.core.memory_budget import copies, host_work_limit
from tasks.core.plan import Partition
from tasks.core.units import amount, most_amount
from tasks.errors import GiveUpError, JobError, RowmillError, TransientError

VARIABLE = "ROWMILL_INJECT_OOM"
CLASSES = ("OutOfMemoryError", "out_of_memory", "CUDAOutOfMemory", "bad_alloc")  # of CuPy, RMM and torch
TEXTS = ("std::bad_alloc", "out_of_memory", "out of memory", "cudaErrorMemoryAllocation", "Cannot allocate memory")
UNITS = {"parquet": "row group", "orc": "stripe"}
P = ParamSpec("P")
T = TypeVar("T")
_alone = threading.RLock()


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is an out-of-memory of host or GPU, also if a reader or operator has wrapped it.

    Recognizes errors of CUDA libraries by name and text, since no GPU library is imported here.
    """
    seen: BaseException | None = error
    for _ in range(8):
        if seen is None or isinstance(seen, GiveUpError):
            return False
        if isinstance(seen, MemoryError) or type(seen).__name__ in CLASSES:
            return True
        if isinstance(seen, OSError) and seen.errno == errno.ENOMEM:
            return True
        if isinstance(seen, RuntimeError) and any(text in str(seen) for text in TEXTS):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def inject_out_of_memory(stage: str, number: int, depth: int) -> None:
    """Fail as if memory were short, where `ROWMILL_INJECT_OOM` in the worker's environment says so.

    `transform:3:2`: partition 3 of transform fails whole and in halves, and goes well in quarters (depth 2). The stages
    are ingest (where it brings keys together), statistics, transform, and shuffle_write, whose number is that of the
    file; `*` is every number; several are separated by commas.
    """
    for wanted in filter(None, os.environ.get(VARIABLE, "").split(",")):
        try:
            where, which, times = wanted.strip().split(":")
            due = where == stage and which in ("*", str(number)) and depth < int(times)
        except ValueError:
            hint = "write STAGE:NUMBER:TIMES, for example transform:3:2 or statistics:*:1"
            raise JobError(f"{wanted!r} names no out-of-memory to inject", where=VARIABLE, do=hint) from None
        if due:
            raise MemoryError(f"injected by {VARIABLE}={wanted}")


def compute_in_halves(
    stage: str, work: Callable[[Partition], Any], partition: Partition, floor: int, source: object, engine: str
) -> list[Any]:
    """Compute a partition's result; after an out-of-memory those of its halves, down to one block or `floor` bytes.

    A process works on halves one after another, whatever the number of its threads. GiveUpError with figures if even
    the smallest part does not fit; `source` is the plan that names its file.

    A worker on the CPU is ended, and gets no error, when it takes more than its limit: there a partition that is large
    against the limit is divided at once.
    """
    results: list[Any] = []
    for part in fitting_parts(partition, work_of_a_thread(engine), floor, engine):
        results += _in_halves(stage, work, part, floor, (source, engine), 0)
    return results


def fitting_parts(part: Partition, limit: int, floor: int, engine: str) -> list[Partition]:
    """Divide a partition into parts that fit into `limit` bytes as they compute (0: no limit).

    Each has at least a block, and at least `floor` bytes.
    """
    if not limit or copies(engine) * part.nbytes <= limit:
        return [part]
    halves = _divide(part, floor)
    return [smaller for half in halves for smaller in fitting_parts(half, limit, floor, engine)] or [part]


def _divide(part: Partition, floor: int) -> tuple[Partition, ...]:
    """Divide a partition into halves; () for one block, and if they would have less than `floor` bytes."""
    halves = part.halves()
    return () if len(halves) == 1 or part.nbytes // 2 < floor else halves


def work_of_a_thread(engine: str, pieces_in_memory: bool = True) -> int:
    """Return the bytes that a thread of this CPU worker may take; 0 without a limit, with GPUs, or outside of a
    worker."""
    limit = 0 if engine == "cudf" else worker_limit()
    if not limit:
        return 0
    from distributed import get_worker

    return host_work_limit(limit, get_worker().state.nthreads, pieces_in_memory)


def _in_halves(
    stage: str, work: Callable[[Partition], Any], part: Partition, floor: int, place: tuple[Any, str], depth: int
) -> Iterator[Any]:
    try:
        inject_out_of_memory(stage, part.number, depth)
        result = work(part)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        halves = _divide(part, floor)
        if not halves:
            raise _make_too_large_error(part, floor, place, error) from error
    else:
        yield result
        return
    column_cache.give_up()
    gc.collect()
    with _alone:
        for half in halves:
            yield from _in_halves(stage, work, half, floor, place, depth + 1)


def retry_without_cache(work: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function: if memory is short and columns are cached, it empties the cache and is called once more."""

    @functools.wraps(work)
    def retry_without_cache(*args: P.args, **options: P.kwargs) -> T:
        try:
            return work(*args, **options)
        except Exception as error:
            if not is_out_of_memory(error) or not column_cache.give_up():
                raise
        gc.collect()
        return work(*args, **options)

    return retry_without_cache


def in_runs(
    stage: str,
    number: int,
    most: int,
    first: int,
    attempt: Callable[[int], Any],
    refusal: Callable[[BaseException], GiveUpError],
) -> tuple[Any, int]:
    """Call attempt(runs) with `first`, twice, four times .. as many runs until memory is enough; return (result,
    halvings).

    From the second attempt on, only one such attempt works in this process at a time. If it fails with `most` runs,
    working alone, the refusal is raised.
    """
    depth = 0
    while True:
        runs = min(first << depth, most)
        try:
            with _alone if depth else nullcontext():
                inject_out_of_memory(stage, number, depth)
                return attempt(runs), runs - first
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if depth and runs == most:
                raise refusal(error) from error
        gc.collect()
        depth += 1


@contextmanager
def explain_out_of_memory(stage: str, engine: str) -> Iterator[None]:
    """Turn out of memory into an error that says what to change, where work cannot be halved (merging partials)."""
    try:
        yield
    except Exception as error:
        if isinstance(error, RowmillError) or not is_out_of_memory(error):
            raise
        do = f"{more_memory(engine)}; lower source.partition_size; then run the same job again: what is done is kept"
        raise TransientError(f"there is not enough memory for {stage}", why=shortage(error, engine), do=do) from error


def _make_too_large_error(part: Partition, floor: int, place: tuple[Any, str], error: BaseException) -> GiveUpError:
    source, engine = place
    unit = UNITS.get(getattr(source, "format", ""))
    size = f"{part.rows:,} rows from row {part.first_row:,}, about {amount(part.nbytes)} decoded"
    if len(part.blocks) == 1:
        what = f"one {unit or 'block of rows'} does not fit into memory"
        do = f"write the source with smaller {unit}s, or {more_memory(engine)}" if unit else more_memory(engine)
    else:
        what = "a partition as small as run.min_partition_size does not fit into memory"
        lower = f"set run.min_partition_size (now {amount(floor)}) to {most_amount(part.nbytes // 2)}"
        do = f"{lower}, or {more_memory(engine)}"
    where = f"partition {part.number}: {size}{_describe_file(part, source)}"
    return GiveUpError(what, where=where, why=shortage(error, engine), do=do)


def _describe_file(part: Partition, source: object) -> str:
    files = getattr(source, "files", ())
    piece = part.blocks[0].pieces[0] if part.blocks[0].pieces else None
    if piece is None or piece.file >= len(files):
        return ""
    group = f", row group {piece.group}" if getattr(source, "format", "") == "parquet" else ""
    return f"; {files[piece.file].path}{group}"


def shortage(error: BaseException, engine: str) -> str:
    """Describe what failed, and how much memory is available."""
    text = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}: {text}; {available(engine)}"


def available(engine: str) -> str:
    """Describe the memory of this process for frames: of its GPU, or the worker's share of the host."""
    if engine == "cudf":
        free, total = engines.device_memory()
        return f"{amount(free)} of the GPU's {amount(total)} are free"
    host = psutil.virtual_memory()
    limit = worker_limit()
    used = f", of which it uses {amount(psutil.Process().memory_info().rss)}" if limit else ""
    own = f"the worker may use {amount(limit)}{used}; " if limit else ""
    return f"{own}{amount(host.available)} of the host's {amount(host.total)} are free"


def worker_limit() -> int:
    """Return the bytes that this Dask worker may use of its host's memory; 0 without a limit, or outside of a
    worker."""
    if "distributed" not in sys.modules:
        return 0
    from distributed import get_worker

    try:
        return int(getattr(get_worker().memory_manager, "memory_limit", 0) or 0)
    except (ValueError, AttributeError):
        return 0


def more_memory(engine: str) -> str:
    """Describe what to change so that a thread has more memory."""
    limit = "cluster.rmm_pool_size" if engine == "cudf" else "cluster.memory_limit"
    return f"give each thread more memory: raise {limit} or lower cluster.threads_per_worker"
