"""Which columns the passes of statistics leave decoded in the workers' memory for transform."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tasks.cluster import column_cache
from tasks.cluster.column_cache import CacheKey
from tasks.cluster.pool import Pool
from tasks.core.plan import Plan
from tasks.graph.partition_work import Work
from tasks.job.request import Request
from tasks.shuffle.choice import spare, spare_on_device
from tasks.shuffle.row_order import list_output_places
from tasks.sources.formats import FORMATS
from tasks.sources.parsed_text import is_parsed
from tasks.storage.files import is_remote


@contextmanager
def cache_for_transform(request: Request, plan: Plan, work: Work, pool: Pool) -> Iterator[CacheKey | None]:
    """Provide the key under which the passes of statistics cache columns while the block runs.

    The columns stay for transform if the flow has one of the same engine and the block raises nothing.
    """
    key = cache_key(request, plan, work, pool)
    stays = False
    try:
        yield key
        stays = request.flow != "fit" and request.of_stage("transform").engine == request.engine
    finally:
        if not stays:
            column_cache.release(pool, key)


def cache_key(request: Request, plan: Plan, work: Work, pool: Pool) -> CacheKey | None:
    """Make the key of what the passes of statistics cache; None if that is nothing.

    That is the columns that a later pass or transform reads again, as far as pieces leave memory for them.

    On a GPU the columns stay there. Columns of local Parquet, ORC and Arrow files are not cached in host memory: a
    cached byte costs clearing its memory first, 2 to 4 ns, as long as decoding it takes.
    """
    on_gpu = request.engine == "cudf"
    costly = is_costly(plan)
    columns = read_again(request, plan, work) if on_gpu or costly else ()
    if not columns:
        return None
    name = name_of(request, plan)
    exchange = request.run.exchange
    output = work.bound.output
    rows = 0 if request.flow == "fit" else plan.rows
    if on_gpu and (limit := spare_on_device(exchange, rows, output, pool)):
        return CacheKey(name, columns, limit, together=True, on_device=True)
    limit = spare(exchange, rows, output, pool, request.engine) if costly else 0
    return CacheKey(name, columns, limit, FORMATS[plan.format].ranged) if limit else None


def taking_key(request: Request, plan: Plan) -> CacheKey | None:
    """Make the key under which transform takes cached columns; None if statistics never caches any."""
    return CacheKey(name_of(request, plan)) if is_costly(plan) or request.engine == "cudf" else None


def is_costly(plan: Plan) -> bool:
    """Return whether a plan's rows cost more to read again than to hold in host memory."""
    return not is_parsed(plan) and (FORMATS[plan.format].ranged or any(is_remote(file.path) for file in plan.files))


def name_of(request: Request, plan: Plan) -> str:
    """Compute the fingerprint under which the columns of a plan are cached."""
    return request.state_fingerprint(plan.fingerprint)


def read_again(request: Request, plan: Plan, work: Work) -> tuple[str, ...]:
    """List the source columns that are read by transform, or by another pass of statistics than the first one."""
    bound = work.bound
    work = replace(work, training=True)
    if not bound.learned:
        return ()
    first = min(step.depth for step in bound.learned)
    later = [step for step in bound.learned if step.depth > first or step.op.passes > 1]  # type: ignore[attr-defined]
    places = [place for step in later for place in step.fit_inputs.values()]
    if request.flow != "fit":
        places += list_output_places(work, request.output, plan)
    return tuple(work.reads(places)) if places else ()
