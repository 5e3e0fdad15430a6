"""Kernels of the GPU engine: a column is a cuDF Series, an array is CuPy's, a table of counts a cuDF DataFrame."""

import cupy as xp

from tasks.engines.gpu.columns import (
    affine,
    array,
    cast,
    clip,
    column,
    decode,
    dtype,
    fill_null,
    finite,
    from_numbers,
    host,
    is_list,
    is_null,
    leaves,
    length,
    log1p,
    moments,
    numbers,
    row_numbers,
    synchronize,
    to_arrow,
    with_leaves,
)
from tasks.engines.gpu.device_files import (
    allocatable,
    device_memory,
    host_columns,
    read_partition,
    run_unit,
    write_file,
    write_runs,
)
from tasks.engines.gpu.device_frames import adopt, series, user_frame
from tasks.engines.gpu.from_arrow import from_arrow
from tasks.engines.gpu.groups import (
    count_at_least,
    count_values,
    group_sums,
    hash_columns,
    hash_rows,
    host_table,
    join_tables,
    merge_sums,
    null_rows,
    same_types,
    sort_counts,
    split_nulls,
    split_table,
    table_from_host,
)
from tasks.engines.gpu.kernels import denormals
from tasks.engines.gpu.kernels.batch_device import BatchDevice
from tasks.engines.gpu.linear import factorize_columns, project
from tasks.engines.gpu.lists import list_lengths, make_lists
from tasks.engines.gpu.lookup import Lookup, vocabulary_ids
from tasks.engines.gpu.order import (
    Pieces,
    assemble,
    assemble_sorted,
    concat,
    cut,
    pieces_from_host,
    pieces_to_host,
    slice_rows,
    slice_table,
    table_rows,
    take,
)
from tasks.engines.gpu.profile import sketch_column, sketch_counts, sketch_leaves
from tasks.engines.gpu.runs import run_codes, run_sums, sort_within
from tasks.engines.gpu.segments import exact_sums_by, extremes_by, group_codes, sum_by
from tasks.engines.gpu.text import date_part, join_text, split_text, text, to_time

NAME = "cudf"

denormals.keep_denormals()
