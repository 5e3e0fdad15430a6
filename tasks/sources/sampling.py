"""A few thousand rows of a source or of an output, read without reading much of its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.plan import EXPLODED, Block, File, Piece, Plan, ReadOptions, find_root_columns
from tasks.core.schema import ROW
from tasks.engines.algorithms.exploded_lists import explode
from tasks.sources.exploded import as_stored
from tasks.sources.formats import FORMATS
from tasks.sources.formats.conform import conform, with_fields
from tasks.sources.formats.parquet import source_of
from tasks.sources.formats.parquet_fields import FIELD_IDS
from tasks.sources.formats.readable_lines import complete
from tasks.sources.formats.record_ends import Dialect
from tasks.sources.formats.text_ranges import is_whole
from tasks.sources.reader import read_pieces
from tasks.storage.arrow_files import make_dataset
from tasks.storage.files import read_text_range
from tasks.storage.hive import parse_folder_columns
from tasks.storage.published_copy import PublishedCopy

ROWS = 10_000  # rows of a sample
PLACES = 4  # places of the source that they are from
TEXT_BYTES = 2**19  # bytes of a text file that are read
LARGE = 2**26  # decoded size of blocks that are not read whole
BUFFER = 2**18  # bytes that are read of a column at once
MOST_PIECES = 16  # parts of files that are opened


def of_source(plan: Plan, rows: int = ROWS) -> pa.Table | None:
    """Rows from the beginnings of up to `PLACES` blocks, spread over the source; None where that costs too much."""
    blocks = plan.blocks
    number = places_of_sample(plan)
    schema = pa.schema([(c.name, c.dtype) for c in plan.schema.columns if c.name != ROW])
    tables: list[pa.Table] = []
    for block in (blocks[i * len(blocks) // number] for i in range(number)):
        heads = beginning_of(plan, block, -(-rows // number), schema, max(1, MOST_PIECES - len(tables)))
        if heads is None:
            return None
        tables += heads
    return pa.concat_tables(tables) if tables else None


def places_of_sample(plan: Plan) -> int:
    """The number of blocks from whose beginnings `of_source` takes its rows."""
    return min(PLACES, len(plan.blocks))


def beginning_of(
    plan: Plan, block: Block, rows: int, schema: pa.Schema, pieces: int = MOST_PIECES
) -> list[pa.Table] | None:
    """The first rows of a block, out of as many of its pieces at most; None where that costs too much."""
    tables: list[pa.Table] = []
    stored = pa.schema([(name, plan.schema[name].dtype) for name in find_root_columns(plan, schema.names)])
    for piece in block.pieces[:pieces]:
        head = _first_rows(plan, piece, block.nbytes, rows, stored)
        if head is None:
            return None
        tables.append(conform(with_fields(head, schema.names), schema))
        rows -= head.num_rows
        if rows <= 0:
            break
    return tables


def _first_rows(plan: Plan, piece: Piece, nbytes: int, rows: int, schema: pa.Schema) -> pa.Table | None:
    if EXPLODED in plan.options:
        return _first_elements(plan, piece, nbytes, rows, schema)
    if plan.format == "parquet" and FIELD_IDS not in plan.options:
        return _of_parquet(plan.files[piece.file], piece, rows, schema, plan.options)
    if dialect := FORMATS[plan.format].dialect:
        short = _short_range(plan, piece, dialect(plan.options))
        return short and read_pieces(plan, [short], schema.names).slice(0, rows)
    if plan.format in ("arrow", "parquet"):  # of a table, whose files may lack columns
        piece = replace(piece, stop=min(piece.stop, piece.start + rows))
    elif nbytes > LARGE:
        return None
    return read_pieces(plan, [piece], schema.names).slice(0, rows)


def _first_elements(plan: Plan, piece: Piece, nbytes: int, rows: int, schema: pa.Schema) -> pa.Table | None:
    """The first elements of lists in a piece; those of its first rows, which may be fewer."""
    stored = as_stored(plan)
    name = plan.options[EXPLODED]["column"]
    read = pa.schema([(n, stored.schema[n].dtype) for n in dict.fromkeys([*schema.names, name])])
    lists = _first_rows(stored, piece.stored, nbytes, piece.skip + rows, read)
    return None if lists is None else explode(lists, name, piece.skip).slice(0, rows).select(schema.names)


def _of_parquet(origin: File, piece: Piece, rows: int, schema: pa.Schema, options: ReadOptions) -> pa.Table:
    """The first rows of a row group's piece, page by page."""
    with (
        source_of(origin, options) as (source, footer),
        pq.ParquetFile(source, metadata=footer, buffer_size=BUFFER, pre_buffer=False) as file,
    ):
        start = piece.start if piece.start < rows else 0  # pages in the middle cannot be had without those before
        batches = file.iter_batches(start + rows, row_groups=[piece.group], columns=schema.names, use_threads=False)
        first = next(iter(batches), None)
        return (
            schema.empty_table()
            if first is None
            else conform(pa.Table.from_batches([first.slice(start, rows)]), schema)
        )


def _short_range(plan: Plan, piece: Piece, dialect: Dialect) -> Piece | None:
    """The first records of a text file's piece; None for files that can only be read whole, as compressed ones."""
    file = plan.files[piece.file]
    if is_whole(file, plan.options):
        return None
    if piece.stop - piece.start <= TEXT_BYTES:
        return piece
    data = read_text_range(file, piece.start, piece.start + TEXT_BYTES, plan.options)
    end = complete(data, dialect)
    return replace(piece, stop=piece.start + end) if end else None


def of_output(origin: PublishedCopy, manifest: Mapping[str, Any], rows: int = ROWS) -> pa.Table | None:
    """The first rows of an output's files: of one where rows are shuffled over all of them, else of up to `PLACES`."""
    parts = [part for part in manifest["parts"] if part["rows"]]
    number = files_of_sample(manifest)
    chosen = [parts[i * len(parts) // number] for i in range(number)]
    tables = _of_parts(origin, chosen, manifest["output"]["format"], -(-rows // max(number, 1)))
    completed = [_with_folders(table, path) for path, table in tables]
    return pa.concat_tables(completed, promote_options="permissive") if completed else None


def files_of_sample(manifest: Mapping[str, Any]) -> int:
    """The number of files from which `of_output` takes its rows."""
    parts = sum(part["rows"] > 0 for part in manifest["parts"])
    return min(1 if is_random(manifest) else PLACES, parts)


def is_random(manifest: Mapping[str, Any]) -> bool:
    """True if the first rows of any file are a random sample of all rows."""
    return manifest["output"]["shuffle"] == "full" and not manifest["output"].get("partition_on")


def _with_folders(table: pa.Table, path: str) -> pa.Table:
    """The columns that the names of Hive folders (`label=1`) hold, as text."""
    for name, (value,) in parse_folder_columns([f"/{path}"], ["/"]).items():
        table = table.append_column(name, pa.array([value] * table.num_rows, pa.string()))
    return table


def _of_parts(
    origin: PublishedCopy, parts: Sequence[Mapping[str, Any]], form: str, rows: int
) -> Iterator[tuple[str, pa.Table]]:
    for part in parts:
        path = origin.folder / part["path"]
        if form == "parquet":
            with (
                origin.open_file(path) as opened,
                pq.ParquetFile(opened, buffer_size=BUFFER, pre_buffer=False) as file,
            ):
                batch = next(file.iter_batches(rows, row_groups=[0], use_threads=False), None)
                if batch is not None:
                    yield part["path"], pa.Table.from_batches([batch])
        elif form in ("csv", "arrow") or part["bytes"] <= LARGE:
            file_of_part = origin.find_file(path)
            arrow_form = {"arrow": "ipc"}.get(form, form)
            whole = make_dataset(origin.name(path.parent), [file_of_part], origin.options, arrow_form)
            yield part["path"], whole.head(rows)


def null_counts(origin: PublishedCopy, manifest: Mapping[str, Any]) -> dict[str, int]:
    """Nulls of every column of all rows, where every footer of up to 64 Parquet files counts them; else {}."""
    if manifest["output"]["format"] != "parquet" or len(manifest["parts"]) > 64:
        return {}
    nulls: dict[str, int] = {}
    unknown: set[str] = set()
    for part in manifest["parts"]:
        with origin.open_file(origin.folder / part["path"]) as opened:
            footer = pq.read_metadata(opened)
        for group in range(footer.num_row_groups):
            for i in range(footer.num_columns):
                column = footer.row_group(group).column(i)
                name = column.path_in_schema
                statistics = column.statistics
                if statistics is None or not statistics.has_null_count:
                    unknown.add(name)
                else:
                    nulls[name] = nulls.get(name, 0) + statistics.null_count
        if unknown >= set(nulls):
            return {}
    return {name: n for name, n in nulls.items() if name not in unknown}
