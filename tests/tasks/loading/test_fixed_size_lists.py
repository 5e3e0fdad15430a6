"""Lists that have one length by their type keep it: in files, in frames, and as arrays of two dimensions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import ops
from tasks.dataset import Dataset
from tasks.errors import DataError
from tasks.loading import loader
from tasks.loading.batch_arrays import arrays, jagged
from tasks.workflow import Workflow

PAIRS = pa.list_(pa.float32(), 2)
TABLE = pa.table({"id": [1, 2, 3], "v": pa.array([[1.0, 2.0], None, [3.0, 4.0]], PAIRS)})
SETTINGS = {"shuffle": "none", "files": 1}


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize("kind", ["files", "frame"])
def test_they_come_out_as_they_went_in(form: str, kind: str, tmp_path: Path, engine: str) -> None:
    pq.write_table(TABLE, tmp_path / "in.parquet")
    source = tmp_path / "in.parquet" if kind == "files" else TABLE
    workflow = Workflow((["v"] >> ops.Rename(name="w")) + ["id", "v"])
    out = str(tmp_path / "out")
    workflow.fit_transform(Dataset(source, engine=engine)).to_parquet(out, format=form, **SETTINGS)
    path = next(Path(out).glob("part-*"))
    read = pq.read_table(path) if form == "parquet" else pa.ipc.open_file(path).read_all()
    assert read.schema.types == [PAIRS, pa.int64(), PAIRS]
    assert read["v"].to_pylist() == TABLE["v"].to_pylist()
    again = Dataset(out, engine=engine).schema["v"]
    assert again.properties["fixed_size"] == 2


def test_elements_that_are_scaled_keep_the_length_and_slices_have_their_own(tmp_path: Path, engine: str) -> None:
    table = pa.table({"v": pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))})
    nodes = (["v"] >> ops.Normalize()) + (["v"] >> ops.ListSlice(0, 1) >> ops.Rename(name="first"))
    Workflow(nodes).fit_transform(Dataset(table, engine=engine)).to_parquet(str(tmp_path / "out"), **SETTINGS)
    (path,) = (tmp_path / "out").glob("part-*")
    assert pq.read_schema(path).types == [PAIRS, pa.list_(pa.int32())]


def test_files_of_other_lengths_are_lists(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [4], "v": pa.array([[1.0]], pa.list_(pa.float32()))}), tmp_path / "b.parquet")
    data = Dataset(str(tmp_path / "*.parquet"))
    assert data.schema["v"].properties == {}
    Workflow(["v"]).fit_transform(data).to_parquet(str(tmp_path / "out"), **SETTINGS)
    (path,) = (tmp_path / "out").glob("part-*")
    assert pq.read_table(path)["v"].to_pylist() == [[1.0, 2.0], None, [3.0, 4.0], [1.0]]


def test_a_list_of_another_length_after_the_fit_is_an_error(tmp_path: Path, engine: str) -> None:
    workflow = Workflow(["v"]).fit(Dataset(TABLE, engine=engine))
    later = Dataset(pa.table({"v": pa.array([[1.0], [2.0]], pa.list_(pa.float32()))}), engine=engine)
    with pytest.raises(DataError, match="the lists of 'v' have other lengths than those of the fit"):
        workflow.transform(later).to_parquet(str(tmp_path / "out"), **SETTINGS)


@pytest.mark.promise("those of lists that have one length by their type")
def test_a_loader_gives_rows_of_two_dimensions(tmp_path: Path, engine: str) -> None:
    whole = TABLE.set_column(1, "v", pa.array([[1, 2], [5, 6], [3, 4]], pa.list_(pa.int32(), 2)))
    whole = whole.append_column("w", pa.array([7, 8, 9], pa.int32()))
    Workflow(["id", "v", "w"]).fit_transform(Dataset(whole, engine=engine)).to_parquet(
        str(tmp_path / "out"), **SETTINGS
    )
    for device in (None, "cuda" if engine == "cudf" else "cpu"):
        (batch,) = loader(str(tmp_path / "out"), batch_size=3, shuffle=False, device=device)
        columns = arrays(batch)
        assert columns["v"].dtype == np.int32
        assert columns["v"].tolist() == [[1, 2], [5, 6], [3, 4]]
        assert "v_offsets" not in columns
        form = jagged(columns, ["v", "w"])
        assert form["values"].tolist() == [1, 2, 5, 6, 3, 4, 7, 8, 9]
        assert form["lengths"].tolist() == [2, 2, 2, 1, 1, 1]


def test_a_null_list_of_floats_is_a_row_of_nan_also_of_a_slice() -> None:
    assert np.isnan(arrays(TABLE.slice(1))["v"]).tolist() == [[True, True], [False, False]]
