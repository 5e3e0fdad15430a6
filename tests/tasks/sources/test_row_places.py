"""Which file of a source has a row, and which of its rows it is: for any cut into blocks, in any order."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.job.job import make_job
from flows.preview.job_preview import preview
from tasks.core.plan import Limits, Plan
from tasks.core.settings import Source
from tasks.errors import DataError
from tasks.sources.planning import make_plan
from tasks.sources.reader import file_of, read
from tasks.sources.row_places import runs_by_file
from tests.examples import examples

WRITERS: dict[str, Callable[[pa.Table, Path], Any]] = {
    "parquet": lambda table, path: pq.write_table(table, path, row_group_size=3),
    "csv": pacsv.write_csv,
}


def planned(folder: str, form: str, rows: list[int], join_below: int, range_bytes: int) -> Plan:
    """Files of so many rows, each of which has the number of its file and its own."""
    for number, count in enumerate(rows):
        table = pa.table({"file": [number] * count, "row": range(count)})
        WRITERS[form](table, Path(folder) / f"{number:02d}.{form}")
    limits = Limits(join_below=join_below, cut_above=max(join_below, 4), range_bytes=range_bytes)
    return make_plan(Source(path=folder, schema={"file": "int64", "row": "int64"}), limits=limits)


@pytest.mark.parametrize("form", WRITERS)
@examples(15)
@given(
    rows=st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any),
    join_below=st.integers(1, 12),
    range_bytes=st.sampled_from([20, 60, 10**6]),
)
def test_each_row_knows_its_file(form: str, rows: list[int], join_below: int, range_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plan = planned(folder, form, rows, join_below, range_bytes)
        table = pa.concat_tables([read(plan, partition) for partition in plan.partitions])
        truth = [(str(Path(folder) / f"{row['file']:02d}.{form}"), row["row"]) for row in table.to_pylist()]
        assert [file_of(plan, row) for row in range(plan.rows)] == truth
        assert file_of(plan, plan.rows) is None
        runs = runs_by_file(plan)
        for row, (path, place) in enumerate(truth):
            first, before, paths = [run for run in runs if run[0] <= row][-1]
            assert path in paths
            assert before is None or (paths == [path] and row - first + before == place)


def test_a_preview_names_the_row_of_its_sample(tmp_path: Path) -> None:
    pq.write_table(pa.table({"code": ["1", "2", "x"]}), tmp_path / "in.parquet")
    data = {
        "source": {"path": str(tmp_path / "in.parquet"), "filter": "cast(code, 'int64') > 0", "strict": True},
        "features": [{"columns": ["code"]}],
        "output": {"path": str(tmp_path / "out")},
    }
    with pytest.raises(DataError, match=r"cannot read 'x' of column 'code' in row 2 of the sample\n"):
        preview(make_job(data), "run")
