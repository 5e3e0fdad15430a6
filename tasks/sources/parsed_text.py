"""Text that ingest parsed once: the columns of each block in an Arrow file, which later stages read in its place."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from tasks.core.plan import PARSED, Block, File, Partition, Piece, Plan
from tasks.errors import DataError
from tasks.sources.formats import FORMATS
from tasks.storage.atomic import no_space


def write_table(table: pa.Table, path: Path) -> None:
    """Write an Arrow file of one record batch, whole or not at all."""
    partial = path.with_suffix(".tmp")
    with no_space(path):
        with pa.ipc.new_file(str(partial), table.schema) as file:
            file.write_table(table.combine_chunks(), max_chunksize=max(table.num_rows, 1))
        partial.replace(path)


def with_parsed(plan: Plan, folder: Path, columns: Collection[str]) -> Plan:
    """The plan, whose rows are read from the files of `folder` as far as these have the columns."""
    return replace(plan, options={**plan.options, PARSED: {"folder": str(folder), "columns": sorted(columns)}})


def is_parsed(plan: Plan, columns: Collection[str] = ()) -> bool:
    """Whether all of the columns are in the files of parsed text."""
    return PARSED in plan.options and {*columns} <= {*plan.options[PARSED]["columns"]}


def locate_block_file(plan: Plan, block: Block) -> Path:
    """The file that has the columns of a block."""
    return Path(plan.options[PARSED]["folder"], f"block-{block.number:08d}.arrow")


def all_there(plan: Plan) -> bool:
    """Whether every block of a plan has its file."""
    return all(locate_block_file(plan, block).exists() for block in plan.blocks)


def read_parsed(plan: Plan, partition: Partition, columns: Sequence[str]) -> pa.Table:
    """The rows of a partition out of the files of its blocks."""
    try:
        paths = [locate_block_file(plan, block) for block in partition.blocks]
        files = [File(str(path), path.stat().st_size, 0) for path in paths]
    except OSError as error:
        why = "something else removed it between two stages"
        do = "run the same job again"
        raise DataError("a file of parsed text is gone", where=str(error.filename), why=why, do=do) from None
    pieces = [Piece(i, 0, block.rows) for i, block in enumerate(partition.blocks)]
    return FORMATS["arrow"].read(files, pieces, pa.schema([(name, plan.schema[name].dtype) for name in columns]), {})
