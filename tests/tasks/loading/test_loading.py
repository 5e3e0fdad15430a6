"""Batches for training: every row once over ranks and workers, an order for every epoch, equal counts."""

from __future__ import annotations

import datetime
import json
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tasks import loading, ops
from tasks.core.schema import Tags
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError
from tasks.loading import Loader, Shard, arrays, jagged, loader
from tasks.workflow import Workflow

ROWS = 1003


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Path:
    """1003 rows in 3 files, in row groups of 100."""
    return written(tmp_path_factory.mktemp("loading") / "out", engine)


def written(folder: Path, engine: str, **output: Any) -> Path:
    rows = {
        "number": range(ROWS),
        "word": [["to", "be", "or"][i % 3] for i in range(ROWS)],
        "group": pa.array([None if i % 4 == 3 else i % 4 for i in range(ROWS)], pa.int16()),
        "items": [list(range(i % 3)) for i in range(ROWS)],
    }
    graph = ["number"] + (["word"] >> ops.Categorify()) + ["group", "items"]
    transformed = Workflow(graph).fit_transform(Dataset(pa.table(rows), engine=engine))
    transformed.to_parquet(str(folder), **{"files": 3, "row_group_size": 100, "seed": 1, **output})
    return folder


def numbers(source: Loader, epoch: int = 0, ranks: int = 1, workers: int = 1) -> list[list[list[int]]]:
    """The batches of every shard, as the numbers of their rows."""
    shards = [Shard(r, ranks, w, workers) for r in range(ranks) for w in range(workers)]
    return [[batch["number"].to_pylist() for batch in source.batches(epoch, shard)] for shard in shards]


def flat(batches: Any) -> list[int]:
    return [number for shard in batches for batch in shard for number in batch]


@pytest.mark.promise('`for batch in rowmill.loader("out/toy")` gives the same batches as Arrow tables')
def test_a_loader_is_iterated_over_as_it_is(out: Path) -> None:
    source = loader(out, batch_size=250)
    batches = list(source)

    assert [type(batch) for batch in batches] == [pa.Table] * 5
    assert [batch.num_rows for batch in batches] == [250, 250, 250, 250, 3]
    assert batches == list(source.batches(0)) != list(source.batches(1))
    assert list(source) == batches


@pytest.mark.parametrize(("ranks", "workers"), [(1, 1), (1, 4), (2, 1), (3, 2), (7, 3)])
@pytest.mark.parametrize("size", [1, 64, 250, 5000])
def test_every_row_once_over_ranks_and_workers(out: Path, ranks: int, workers: int, size: int) -> None:
    found = numbers(loader(out, batch_size=size), 0, ranks, workers)
    sizes = [sum(map(len, shard)) for shard in found]

    assert sorted(flat(found)) == list(range(ROWS))
    assert max(sizes) - min(sizes) <= 1
    assert all(len(batch) == size for shard in found for batch in shard[:-1])
    assert all(0 < len(shard[-1]) <= size for shard in found)


@pytest.mark.promise("the same number of batches and leaves out fewer rows than there are workers")
@pytest.mark.parametrize("drop_last", [False, True])
def test_even_shards_give_equal_numbers_of_batches(out: Path, drop_last: bool) -> None:
    source = loader(out, batch_size=16, even=True, drop_last=drop_last)
    found = numbers(source, 0, 4, 2)

    assert {tuple(map(len, shard)) for shard in found} == {(16,) * 7 + (() if drop_last else (13,))}
    assert len(set(flat(found))) == len(flat(found)) == 8 * (112 if drop_last else 125)
    assert source.batches_of(Shard(3, 4, 1, 2)) == (7 if drop_last else 8)
    left = [set(range(ROWS)) - set(flat(numbers(source, epoch, 4, 2))) for epoch in range(3)]
    assert left[0] != left[1] != left[2]


@pytest.mark.promise("`drop_last` gives whole batches only", "flows/SERVING.md#train-on-it")
def test_whole_batches_only(out: Path) -> None:
    source = loader(out, batch_size=100, drop_last=True)
    found = numbers(source, 0, 2, 1)
    assert [[len(batch) for batch in shard] for shard in found] == [[100] * 5, [100] * 5]
    assert [source.batches_of(Shard(rank, 2)) for rank in (0, 1)] == [5, 5]


@pytest.mark.promise("in an order drawn from (`seed`, epoch), rows shuffled within")
def test_an_epoch_has_an_order_of_its_own_that_the_seed_repeats(out: Path) -> None:
    source = loader(out, batch_size=50, seed=7)
    first, second = flat(numbers(source, 0)), flat(numbers(source, 1))

    assert first != second
    assert flat(numbers(loader(out, batch_size=50, seed=7), 0)) == first
    assert flat(numbers(loader(out, batch_size=50, seed=8), 0)) != first
    # the shards cut the very same sequence
    assert flat(numbers(source, 0, 3, 2)) == first
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.15


def test_without_shuffle_the_order_is_that_of_the_files(out: Path) -> None:
    import pyarrow.parquet as pq

    stored = [n for path in sorted(out.glob("*.parquet")) for n in pq.read_table(path)["number"].to_pylist()]
    source = loader(out, batch_size=64, shuffle=False)
    assert flat(numbers(source, 0, 2, 2)) == stored == flat(numbers(source, 5))


@pytest.mark.parametrize(
    "output", [{"format": "arrow"}, {"partition_on": ["group"]}, {"partition_on": ["group"], "format": "arrow"}]
)
def test_arrow_files_and_folders_are_read_too(output: dict[str, Any], tmp_path: Path, engine: str) -> None:
    source = loader(written(tmp_path / "out", engine, **output), batch_size=64)
    batches = [batch for worker in range(2) for batch in source.batches(0, Shard(worker=worker, workers=2))]
    rows = pa.concat_tables(batches).sort_by("number")

    assert batches[0].column_names == ["number", "word", "group", "items"]
    assert rows["number"].to_pylist() == list(range(ROWS))
    assert rows["group"].to_pylist() == [None if i % 4 == 3 else i % 4 for i in range(ROWS)]
    assert rows["group"].type == pa.int16()


def test_columns_are_those_asked_for_and_the_schema_is_at_hand(out: Path) -> None:
    source = loader(out, ["word", "number"], batch_size=10)
    assert next(source.batches()).column_names == ["word", "number"]
    assert source.schema["word"].properties["embedding"] == {"rows": 6, "dimension": 16}
    with pytest.raises(JobError, match=r"no column 'wort'\n.*\n.*did you mean 'word'"):
        loader(out, ["wort"])


def test_a_loader_travels_to_other_processes(out: Path) -> None:
    source = loader(out, batch_size=100)
    assert source.rows == ROWS
    again = pickle.loads(pickle.dumps(source))  # noqa: S301
    assert "groups" not in again.__dict__
    assert numbers(again) == numbers(source)


@pytest.mark.promise("Columns of lists come as elements and offsets")
def test_lists_come_as_elements_and_offsets(out: Path) -> None:
    (batch,) = loader(out, ["number", "items"], batch_size=ROWS).batches()
    found = arrays(batch)
    where = found["items_offsets"]
    assert where.dtype == np.int64
    for row in (0, 1, 500, ROWS - 1):
        assert found["items"][where[row] : where[row + 1]].tolist() == list(range(found["number"][row] % 3))


def test_times_bools_and_null_floats_are_numbers() -> None:
    day = datetime.date(1970, 1, 3)
    found = arrays(pa.table({"d": [day], "b": [True], "f": pa.array([None], pa.float32())}))
    assert found["d"].tolist() == [2]
    assert found["b"].dtype == np.bool_
    assert np.isnan(found["f"]).all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a"], "column 'c' is string, which is not a number"),
        ([1, None], "column 'c' has nulls"),
        ([True, None], "column 'c' has nulls"),
    ],
)
def test_what_has_no_number_is_refused(values: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        arrays(pa.table({"c": values}))


def test_what_cannot_be_read_by_parts_or_is_no_output_is_refused(tmp_path: Path, engine: str) -> None:
    table = pa.table({"number": [1, 2]})
    for form in ("csv", "orc"):
        Workflow(["number"]).fit_transform(Dataset(table, engine=engine)).to_parquet(str(tmp_path / form), format=form)
        with pytest.raises(JobError, match=f"rows of {form} files cannot be read by parts"):
            loader(tmp_path / form)
    with pytest.raises(DataError, match="not an output of rowmill"):
        loader(tmp_path)
    with pytest.raises(JobError, match="no worker 2 of 2"):
        Shard(worker=2, workers=2)


def test_a_file_that_is_not_as_the_manifest_says(tmp_path: Path, engine: str) -> None:
    import pyarrow.parquet as pq

    folder = written(tmp_path / "out", engine)
    pq.write_table(pa.table({"number": [1]}), folder / "part-00001.parquet")
    size = (folder / "part-00001.parquet").stat().st_size
    with pytest.raises(DataError, match=rf"part-00001.parquet has {size:,} bytes, the manifest says"):
        list(loader(folder).batches())
    manifest = json.loads((folder / "_manifest.json").read_text())
    manifest["parts"][1]["bytes"] = size
    (folder / "_manifest.json").write_text(json.dumps({n: v for n, v in manifest.items() if n != "digest"}))
    with pytest.raises(DataError, match=r"part-00001.parquet holds 1 rows, the manifest says 33\d"):
        list(loader(folder).batches())
    (folder / "part-00001.parquet").unlink()
    with pytest.raises(DataError, match=r"part-00001.parquet is missing"):
        list(loader(folder).batches())


def global_batches(source: Loader, ranks: int, workers: int = 1, epoch: int = 0) -> list[list[int]]:
    """The batches of all ranks together, step by step; a rank takes those of its workers in turn."""
    found = numbers(source, epoch, ranks, workers)
    steps = sum(len(found[worker]) for worker in range(workers))
    return [
        [n for rank in range(ranks) for n in found[rank * workers + step % workers][step // workers]]
        for step in range(steps)
    ]


@pytest.mark.promise("the sequence of global batches is the same for any number of ranks and workers")
@pytest.mark.parametrize("shuffle", [False, True])
def test_global_batches_are_the_same_for_any_number_of_ranks_and_workers(out: Path, shuffle: bool) -> None:
    source = loader(out, batch_size=96, global_batches=True, shuffle=shuffle, seed=3)
    alone = global_batches(source, 1)

    assert [len(batch) for batch in alone] == [96] * 10 + [43]
    assert sorted(n for batch in alone for n in batch) == list(range(ROWS))
    for ranks, workers in [(2, 1), (3, 2), (8, 1), (8, 3)]:
        assert global_batches(source, ranks, workers) == alone
    assert (global_batches(source, 1, epoch=1) != alone) == shuffle


def test_a_last_batch_of_fewer_rows_than_ranks_leaves_some_without_rows(out: Path) -> None:
    source = loader(out, batch_size=100, global_batches=True)
    assert [len(shard[-1]) for shard in numbers(source, 0, 8)] == [0, 0, 1, 0, 0, 1, 0, 1]
    assert {len(shard) for shard in numbers(source, 0, 8)} == {11}
    whole = loader(out, batch_size=100, global_batches=True, drop_last=True)
    assert {len(shard) for shard in numbers(whole, 0, 8)} == {10}


@pytest.mark.promise("then `rows.load_state_dict(state)` in the next process continues after them")
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("settings", [{}, {"global_batches": True}, {"even": True, "drop_last": True, "ahead": 0}])
def test_a_loader_goes_on_behind_every_batch(out: Path, ranks: int, settings: dict[str, Any]) -> None:
    source = loader(out, ["number"], batch_size=64 if "global_batches" not in settings else 160, **settings)
    for rank in range(ranks):
        whole = list(source.batches(2, Shard(rank, ranks)))
        running = source.batches(2, Shard(rank, ranks))
        for taken in range(len(whole) + 1):
            state = json.loads(json.dumps(running.state_dict()))
            resumed = source.batches(0, Shard(rank, ranks))
            resumed.load_state_dict(state)
            assert list(resumed) == whole[taken:]
            assert next(running, None) == (whole[taken] if taken < len(whole) else None)


def test_a_state_of_global_batches_is_right_for_other_ranks_and_workers(out: Path) -> None:
    source = loader(out, batch_size=96, global_batches=True)
    alone, running = global_batches(source, 1), source.batches(0, Shard(1, 2))
    for taken in range(1, 12):
        next(running)
        found = []
        for worker in range(2):
            for rank in range(3):
                part = source.batches(0, Shard(rank, 3, worker, 2))
                part.load_state_dict(running.state_dict())
                found += [n for batch in part for n in batch["number"].to_pylist()]
        assert sorted(found) == sorted(n for batch in alone[taken:] for n in batch)


def test_a_state_of_another_order_is_refused(out: Path) -> None:
    state = loader(out, batch_size=96).batches(0, Shard(0, 2)).state_dict()
    with pytest.raises(JobError, match=r"another order of rows\n.*\n.*ranks was 2, it is 1"):
        loader(out, batch_size=96).batches().load_state_dict(state)
    with pytest.raises(JobError, match="seed was 0, it is 1"):
        loader(out, batch_size=96, seed=1).batches(0, Shard(0, 2)).load_state_dict(state)


def test_settings_of_the_loader_that_cannot_be(out: Path) -> None:
    with pytest.raises(JobError, match="even and global_batches do not go together"):
        loader(out, global_batches=True, even=True)
    with pytest.raises(JobError, match="ahead is -1"):
        loader(out, ahead=-1)
    with pytest.raises(JobError, match="a part of every batch, not one run of rows"):
        loader(out, global_batches=True).rows_of(Shard())


def test_batches_ahead_are_bounded(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []
    plain = loading._Sequence.begin
    monkeypatch.setattr(loading._Sequence, "begin", lambda *span: (begun.append(span[2]), plain(*span))[1])
    batches = loader(out, batch_size=100, ahead=3).batches()
    next(batches)
    assert begun == [0, 100, 200, 300]
    assert batches.state_dict()["batch"] == 1


def test_orders_of_the_next_row_groups_are_drawn_by_threads(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    plain = loading._Sequence._order

    def draw(sequence: Any, at: int) -> Any:
        drawn.append((at, threading.current_thread().name.partition("_")[0]))
        return plain(sequence, at)

    monkeypatch.setattr(loading._Sequence, "_order", draw)
    source = loader(out, ["number"], batch_size=100, ahead=1)
    batches = source.batches()
    next(batches)
    groups = len(source.groups)
    assert len(drawn) <= 3 + loading.ORDERS_AHEAD < groups
    list(batches)
    assert sorted(drawn) == [(at, "rowmill-orders") for at in range(groups)]


def test_columns_are_selected_by_tag(out: Path) -> None:
    assert loader(out, tags=[Tags.CATEGORICAL]).names == ("word",)
    assert loader(out, ["number"], tags="categorical").names == ("number", "word")
    with pytest.raises(JobError, match=r"no column has the tag 'categoric'\n.*\n.*did you mean 'categorical'"):
        loader(out, tags=["categoric"])


@pytest.mark.promise("gives values and lengths as TorchRec's KeyedJaggedTensor takes them")
def test_columns_in_jagged_form_are_those_of_the_batch(out: Path) -> None:
    batch = next(loader(out, ["number", "items"], batch_size=50).batches())
    form = jagged(arrays(batch), ["items", "number"])

    lists = [*batch["items"].to_pylist(), *([n] for n in batch["number"].to_pylist())]
    assert form["keys"] == ["items", "number"]
    assert form["lengths"].dtype == np.int32
    assert form["lengths"].tolist() == list(map(len, lists))
    assert form["values"].tolist() == [n for values in lists for n in values]


def test_columns_of_several_types_have_no_jagged_form(out: Path) -> None:
    columns = arrays(next(loader(out, ["number", "word"], batch_size=50).batches()))
    with pytest.raises(JobError, match=r"have one type\n.*number is int64, word is int32"):
        jagged(columns, ["number", "word"])
    with pytest.raises(JobError, match="no column 'wort' in the batch"):
        jagged(columns, ["wort"])


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_batch_that_could_not_be_read_is_read_again_and_not_left_out(
    out: Path, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    source = loader(out, ["number"], batch_size=100, ahead=ahead)
    whole, batches = list(source), source.batches()
    assert next(batches) == whole[0]
    with monkeypatch.context() as patch:
        patch.setattr(loading._Sequence, "_load_group", lambda *_: (_ for _ in ()).throw(OSError("no such disk")))
        with pytest.raises(OSError, match="no such disk"):
            list(batches)
    taken = batches.state_dict()["batch"]
    assert list(batches) == whole[taken:]
