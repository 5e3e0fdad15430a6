"""Vocabularies in mapped files: the same results, one copy, and no second build."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks import ops
from tasks.graph import mapped_tables, state
from tasks.ops.categorify import Categorify
from tasks.workflow import Workflow

TABLE = pa.table(
    {
        "dense": pa.array([7, 8, 9, None, 7], pa.int32()),
        "sparse": [1 << 40, -5, 1 << 50, None, 3],
        "text": ["b", "a", "b", None, "c"],
        "y": [1.0, 0.0, 1.0, 1.0, 0.0],
    }
)
NEW = pa.table(
    {
        "dense": pa.array([8, 100, None], pa.int32()),
        "sparse": [1 << 50, 4, None],
        "text": ["a", "new", None],
        "y": [0.0, 0.0, 0.0],
    }
)


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A saved workflow, of which every table counts as large."""
    monkeypatch.setattr(mapped_tables, "LEAST_ROWS", 1)
    monkeypatch.setattr(state, "LEAST_ROWS", 1)
    graph = (["dense", "sparse", "text"] >> Categorify()) + ([["dense", "text"]] >> Categorify(combo=True))
    graph = graph + (["text"] >> ops.TargetEncoding(target="y", kfold=2))  # type: ignore[attr-defined]
    Workflow(graph).fit(TABLE).save(tmp_path / "fitted")
    return tmp_path / "fitted"


def test_mapped_vocabularies_give_the_same_results(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped = tmp_path / "mapped"
    plain = Workflow.load(saved)
    first = Workflow.load(saved, mapped=mapped)
    for table in (TABLE, NEW):
        assert first.transform(table) == plain.transform(table)
        assert first.inverse(first.transform(table)) == plain.inverse(plain.transform(table))

    monkeypatch.setattr(Categorify, "prepare", lambda *_: pytest.fail("a lookup was built again"))
    monkeypatch.setattr(state, "read_table", lambda *_: pytest.fail("a table was read again"))
    second = Workflow.load(saved, mapped=mapped)
    for table in (TABLE, NEW):
        assert second.transform(table) == plain.transform(table)
    assert not list(mapped.glob(".unfinished*"))


@pytest.mark.promise(
    "Until its first answer a process with a copy takes", "tests/bench/README.md#how-long-a-request-takes"
)
def test_what_was_mapped_is_a_view_of_the_files(saved: Path, tmp_path: Path) -> None:
    workflow = Workflow.load(saved, mapped=tmp_path / "mapped")
    workflow.transform(NEW)
    assert workflow.state is not None
    lookup = workflow.state.prepare_step("1/Categorify/sparse", Categorify(), mapped_engine())
    slots = lookup.columns[0].numbers.slots  # type: ignore[attr-defined]
    assert not slots.flags.writeable
    assert isinstance(slots.base, np.memmap)


def mapped_engine() -> object:
    from tasks import engines

    return engines.engine("pandas")


def test_other_parameters_have_another_lookup(saved: Path, tmp_path: Path) -> None:
    mapped = tmp_path / "mapped"
    workflow = Workflow.load(saved, mapped=mapped)
    workflow.transform(NEW)
    before = len(list(mapped.glob("lookup-*")))
    assert workflow.state is not None
    workflow.state._prepared.clear()
    workflow.state.prepare_step("1/Categorify/sparse", Categorify(num_buckets=3), mapped_engine())  # type: ignore[arg-type]
    assert len(list(mapped.glob("lookup-*"))) == before + 1
