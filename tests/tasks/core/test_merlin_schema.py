"""The schema of an output as Merlin's schema.pbtxt."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from rowmill.cli import app
from typer.testing import CliRunner

from tasks import ops
from tasks.core.merlin import merlin_text
from tasks.core.schema import Column, Schema, Tags
from tasks.dataset import Dataset
from tasks.errors import JobError
from tasks.manifest import Manifest
from tasks.workflow import Workflow


@pytest.mark.promise("`rowmill inspect out/toy --merlin` prints")
@pytest.mark.promise('`Manifest.load("out/toy").to_merlin()` gives as text')
def test_tags_ranges_lengths_and_embedding_sizes_of_an_output(tmp_path: Path, engine: str) -> None:
    rows = pa.table({"word": ["to", "be", "to"], "seen": pa.array([[1], [2, 3], [4, 5]], pa.list_(pa.int32()))})
    graph = (["word"] >> ops.Categorify()) + (["seen"] >> ops.ValueCount())
    Workflow(graph).fit_transform(Dataset(rows, engine=engine)).to_parquet(str(tmp_path / "out"))
    manifest = Manifest.load(tmp_path / "out")
    word = Schema.from_json(manifest.data["schema"])["word"]

    text = " ".join(manifest.to_merlin().split())
    last = word.properties["domain"]["max"]
    assert f'feature {{ name: "word" type: INT int_domain {{ name: "word" min: 0 max: {last}' in text
    assert 'is_categorical: true } annotation { tag: "categorical"' in text
    size = word.properties["embedding"]
    rows_field = f'fields {{ key: "cardinality" value {{ number_value: {float(size["rows"])} }} }}'
    width_field = f'fields {{ key: "dimension" value {{ number_value: {float(size["dimension"])} }} }}'
    assert f'key: "embedding_sizes" value {{ struct_value {{ {rows_field} {width_field} }} }}' in text
    assert 'name: "seen" value_count { min: 1 max: 2 } type: INT' in text
    assert text.count("{") == text.count("}")
    for path in (tmp_path / "out", tmp_path / "out" / "_workflow"):
        printed = CliRunner().invoke(app, ["inspect", str(path), "--merlin"]).output
        assert printed == manifest.to_merlin()


@pytest.mark.promise("the outputs of these names, then those with a tag")
def test_columns_are_selected_by_tag(tmp_path: Path, engine: str) -> None:
    rows = pa.table({"word": ["to", "be", "to"], "x": [1.0, 2.0, 3.0], "y": [0, 1, 0]})
    graph = (["word"] >> ops.Categorify()) + (["x"] >> ops.Normalize()) + (["y"] >> ops.AddTags([Tags.TARGET, "own"]))
    workflow = Workflow(graph)
    with pytest.raises(JobError, match="call fit first"):
        workflow.select(tags=Tags.TARGET)
    made = workflow.fit_transform(Dataset(rows, engine=engine))
    made.to_parquet(str(tmp_path / "out"))

    assert list(workflow.select(["y"], tags=[Tags.CATEGORICAL, "own"]).output_schema) == ["y", "word"]
    assert list(workflow.select(tags="categorical").input_schema) == ["word"]
    assert workflow.select("word").transform(rows).to_pydict() == {"word": [3, 4, 3]}
    workflow.select(tags=["own"]).save(tmp_path / "own")
    assert Workflow.load(tmp_path / "own").transform(rows).to_pydict() == {"y": [0, 1, 0]}
    assert Manifest.load(tmp_path / "out").schema.with_tag(Tags.CONTINUOUS) == ["x"]
    with pytest.raises(JobError, match=r"(?s)no column has the tag 'targt'.*did you mean 'target'"):
        workflow.select(tags=["targt"])
    with pytest.raises(JobError, match=r"(?s)no column 'words'.*did you mean 'word'"):
        workflow.select(["words"])


def test_lists_of_one_length_are_not_ragged_and_names_are_quoted() -> None:
    lists = Column("a", pa.list_(pa.float64())).with_properties(value_count={"min": 3, "max": 3})
    text = " ".join(
        merlin_text(Schema([lists, Column('b "\\ö', pa.timestamp("us")), Column("c", pa.string())])).split()
    )

    assert "value_count { min: 3 max: 3 } type: FLOAT" in text
    assert 'key: "is_list" value { bool_value: true } } fields { key: "is_ragged" value { bool_value: false }' in text
    assert 'feature { name: "b \\"\\\\ö" annotation {' in text
    assert 'name: "c" type: BYTES annotation' in text
    unknown = " ".join(merlin_text(Schema([Column("l", pa.list_(pa.int8()))])).split())
    assert "value_count { min: 0 max: 0 } type: INT" in unknown
    assert 'key: "is_ragged" value { bool_value: true }' in unknown
