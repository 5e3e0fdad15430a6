"""Plans the files of a data set: blocks, partitions, the columns that versions share; logs what is not read."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from tasks.cluster.parallelism import dividing_threads, fastest_partition, worker_memory
from tasks.cluster.pool import Pool
from tasks.core.plan import Plan, Sizing
from tasks.core.schema import Schema
from tasks.core.settings import Source
from tasks.dataset.parameters import ChosenVersions
from tasks.manifest import LEFT_OUT
from tasks.sources.bad_lines import bad_lines_of, bad_lines_text, target_of, write_bad_lines
from tasks.sources.exploded import describe_explode
from tasks.sources.planning import make_plan
from tasks.sources.reading_rules import Fit
from tasks.sources.uniting import without_unused
from tasks.storage.files import is_remote
from tasks.storage.files_being_read import open_outputs
from tasks.storage.sidecars import check_sidecars

log = logging.getLogger("rowmill")


def plan_files(section: Source, sizing: Sizing, fit: Fit | None) -> Plan:
    """The plan of files; every file is inspected once."""
    target = target_of(section)
    check_sidecars([target] if target else [], section.paths)
    with ThreadPoolExecutor(min(16, 2 * (os.cpu_count() or 1))) as pool:
        return make_plan(section, parallel_map=pool.map, sizing=sizing, fit=fit)


def with_common_columns(plan: Plan, versions: ChosenVersions) -> Plan:
    """The plan with the columns that all versions have, with the same ids; a warning names the others."""
    common = without_unused(plan, ())
    common = replace(common, schema=Schema(c for c in common.schema.columns if c.name not in versions.begun_ids))
    if apart := [name for name in plan.schema if name not in common.schema]:
        log.warning(LEFT_OUT, versions.folders[-1].rpartition("/")[0], ", ".join(apart))
    return common


def note_unread_lines(section: Source, plan: Plan) -> None:
    """Write the lines that cannot be read to the file that the data set names for them; log how many there are, and how
    many rows lists became."""
    bad = bad_lines_of(plan)
    target = target_of(section)
    if target:
        write_bad_lines(target, [(plan, bad)])
    if bad:
        log.warning("%s", bad_lines_text(bad))
    if exploded := describe_explode(plan):
        log.info("%s", exploded)


def choose_sizing(section: Source, engine: str, pool: Pool) -> Sizing:
    """The threads for which partitions are cut, or the memory of which they take a set fraction."""
    if section.part_mem_fraction:
        return Sizing(memory=worker_memory(engine, pool))
    return Sizing(dividing_threads(engine, pool), fastest=fastest_partition(engine))


def open_local_outputs(plan: Plan) -> object:
    """Keep the versions that the files of a plan are of from being removed, while the result is referenced."""
    return open_outputs(file.path for file in plan.files if not is_remote(file.path))
