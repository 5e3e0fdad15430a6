"""Kernels of the CPU engine: a column is an Arrow array; operators of users see it as a pandas Series."""

import numpy as xp

from tasks.engines.algorithms.host_tables import host_table
from tasks.engines.convert.host_files import run_unit, write_file, write_runs
from tasks.engines.cpu.batch_device import BatchDevice
from tasks.engines.cpu.columns import (
    adopt,
    affine,
    array,
    cast,
    clip,
    column,
    date_part,
    decode,
    dtype,
    fill_null,
    finite,
    from_arrow,
    from_numbers,
    host,
    is_list,
    is_null,
    join_text,
    leaves,
    length,
    log1p,
    moments,
    numbers,
    row_numbers,
    series,
    split_text,
    text,
    to_arrow,
    to_time,
    user_frame,
    with_leaves,
)
from tasks.engines.cpu.groups import (
    count_at_least,
    count_values,
    group_sums,
    hash_columns,
    hash_rows,
    merge_sums,
    null_rows,
    same_types,
    split_nulls,
)
from tasks.engines.cpu.linear import factorize_columns, project
from tasks.engines.cpu.lists import list_lengths, make_lists
from tasks.engines.cpu.lookup import Lookup, vocabulary_ids
from tasks.engines.cpu.order import (
    Pieces,
    assemble,
    assemble_sorted,
    concat,
    cut,
    pieces_from_host,
    pieces_to_host,
    slice_rows,
    table_rows,
    take,
)
from tasks.engines.cpu.profile import sketch_column, sketch_counts, sketch_leaves
from tasks.engines.cpu.runs import run_codes, run_sums, sort_within
from tasks.engines.cpu.segments import exact_sums_by, extremes_by, group_codes, sum_by
from tasks.engines.cpu.tables import host_columns, join_tables, slice_table, sort_counts, split_table, table_from_host

NAME = "pandas"
