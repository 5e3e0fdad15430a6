"""`source.parse_once`: the text of a source, parsed once into Arrow files that all stages read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tasks.cluster.pool import Pool
from tasks.core.plan import Block, Plan
from tasks.errors import JobError
from tasks.shuffle.key_ranges import empty_folder
from tasks.sources.formats import FORMATS
from tasks.sources.parsed_text import locate_block_file, with_parsed, write_table
from tasks.sources.reader import read
from tasks.storage.files import check_unchanged


def parse_text(plan: Plan, folder: Path, columns: Sequence[str], pool: Pool) -> Plan:
    """Write these columns of every block of text to an Arrow file; the plan that reads them from there."""
    if not FORMATS[plan.format].ranged:
        why = f"files of {plan.format} store columns, which every stage reads about as quickly"
        do = "leave source.parse_once out"
        raise JobError("parse_once is for text", where="source.parse_once", why=why, do=do)
    empty_folder(folder)
    parsed = with_parsed(plan, folder, columns)
    pool.map(_parse_block, (plan, parsed, columns), plan.blocks)
    check_unchanged(plan.files, plan.options.get("storage_options"))
    return parsed


def _parse_block(shared: tuple[Plan, Plan, Sequence[str]], block: Block) -> None:
    plan, parsed, columns = shared
    write_table(read(plan, plan.alone(block), columns), locate_block_file(parsed, block))
