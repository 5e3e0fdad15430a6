"""Readers of an output that is replaced, or of versions that are to be removed, while they read."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tasks.dataset import Dataset
from tasks.errors import DataError
from tasks.loading import Loader, loader
from tasks.storage.staging import Staging
from tasks.workflow import Workflow

ROWS = 1000


def write(folder: Path, value: int, **output: Any) -> None:
    table = pa.table({"x": [value] * ROWS, "n": range(ROWS)})
    settings = {"files": 10, "row_group_size": 20, "on_existing": "replace", **output}
    Workflow(["x", "n"]).fit_transform(Dataset(table, engine="pandas")).to_parquet(str(folder), **settings)


def remove_replaced(out: Path) -> None:
    """As a later run does once the time of run.keep_replaced is over."""
    Staging(out)._sweep(time.time() + 10_000)


@pytest.mark.promise("An epoch that began before a `replace` finishes with the old rows")
@pytest.mark.parametrize("device", [None, "cpu"])
def test_an_epoch_that_began_before_a_replace_has_the_old_rows_alone(tmp_path: Path, device: str | None) -> None:
    write(tmp_path / "out", 1)
    source = loader(tmp_path / "out", batch_size=50, device=device)
    batches = source.batches()
    seen = next(batches)["n"].tolist() if device else next(batches)["n"].to_pylist()
    write(tmp_path / "out", 2)

    for batch in batches:
        assert {int(x) for x in (batch["x"] if device else batch["x"].to_pylist())} == {1}
        seen += batch["n"].tolist() if device else batch["n"].to_pylist()
    assert sorted(seen) == list(range(ROWS))
    other = source.with_settings(columns=("x",))  # as Rows does for its GPU
    assert {x for batch in other.batches(1) for x in (batch["x"].tolist() if device else batch["x"].to_pylist())} == {1}
    assert set(loader(tmp_path / "out").batches().__next__()["x"].to_pylist()) == {2}


def in_process(pickled: bytes, found: Any) -> None:
    source: Loader = pickle.loads(pickled)  # noqa: S301
    try:
        found.put(sorted({x for batch in source for x in batch["x"].to_pylist()}))
    except DataError as error:
        found.put(error.what)


@pytest.mark.system
@pytest.mark.promise("An epoch that began before a `replace` finishes with the old rows")
def test_a_loader_in_another_process_finds_the_output_that_was_replaced(tmp_path: Path) -> None:
    write(tmp_path / "out", 1)
    source = loader(tmp_path / "out")
    write(tmp_path / "out", 2)
    write(tmp_path / "out", 3)
    pickled, context = pickle.dumps(source), multiprocessing.get_context("spawn")
    found = context.Queue()

    def ask() -> Any:
        process = context.Process(target=in_process, args=(pickled, found))
        process.start()
        answer = found.get(timeout=120)
        process.join()
        return answer

    assert ask() == [1]
    remove_replaced(tmp_path / "out")
    assert ask() == "the output that is read is gone"


@pytest.mark.promise("it fails with one error; it never mixes old and new rows")
@pytest.mark.parametrize("device", [None, "cpu"])
def test_once_a_replaced_output_is_removed_there_is_one_clear_error(tmp_path: Path, device: str | None) -> None:
    write(tmp_path / "out", 1)
    batches = loader(tmp_path / "out", batch_size=20, ahead=0, device=device).batches()
    next(batches)
    write(tmp_path / "out", 2)
    remove_replaced(tmp_path / "out")
    seen = list[Any]()
    with pytest.raises(DataError, match=r"(?s)the output that is read is gone.*run\.keep_replaced"):
        seen.extend(batches)
    assert {int(x) for batch in seen for x in (batch["x"] if device else batch["x"].to_pylist())} <= {1}


def test_a_split_is_found_where_its_output_went(tmp_path: Path) -> None:
    write(tmp_path / "out/train", 1)
    source = loader(tmp_path / "out/train")
    (tmp_path / "out").rename(tmp_path / f".out.rowmill-old-{int(time.time()) + 600}")
    write(tmp_path / "out/train", 2)
    again: Loader = pickle.loads(pickle.dumps(source))  # noqa: S301
    assert {x for batch in again for x in batch["x"].to_pylist()} == {1}


@pytest.mark.promise("one that a run works on or a reader on this host")
def test_a_version_that_a_reader_holds_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = tmp_path / "out"
    for value in (1, 2, 3):
        write(out, value, on_existing="version")
    first, second = loader(out, versions="v0001"), Dataset(out / "v0002", engine="pandas")
    assert second.num_rows == ROWS
    write(out, 4, on_existing="version", keep_versions=1)
    assert sorted(path.name for path in out.glob("v*")) == ["v0001", "v0002", "v0004"]
    assert f"the old version {out / 'v0001'} stays: a reader on this host holds it" in caplog.text
    assert {x for batch in first for x in batch["x"].to_pylist()} == {1}
    del first, second
    gc.collect()
    write(out, 5, on_existing="version", keep_versions=1)
    assert sorted(path.name for path in out.glob("v*")) == ["v0005"]


@pytest.mark.system
def test_a_reader_in_another_process_holds_its_version_until_it_ends(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, 1, on_existing="version")
    code = f"from tasks.loading import loader; held = loader({str(out)!r}); print('held', flush=True); input()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "held\n"
        write(out, 2, on_existing="version", keep_versions=1)
        assert (out / "v0001").exists()
        reader.communicate("\n")
    write(out, 3, on_existing="version", keep_versions=1)
    assert sorted(path.name for path in out.glob("v*")) == ["v0003"]


@pytest.mark.promise("a file that is missing, cut off or not in it is an error")
def test_a_reader_takes_the_files_that_the_manifest_names(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, 1)

    def rows(path: Path) -> int:
        return Dataset(path, engine="pandas").num_rows

    shutil.copy(out / "part-00000.parquet", out / "copy.parquet")
    with pytest.raises(DataError, match=r"(?s)not as its manifest says.*copy\.parquet is not in the manifest"):
        rows(out)
    assert rows(out / "*.parquet") == ROWS + 100  # as the error says
    (out / "copy.parquet").unlink()

    (out / "part-00003.parquet").rename(tmp_path / "part-00003.parquet")
    for path in (out, out / "*.parquet", out / "part-*", tmp_path / "*t", tmp_path / "**/part-*"):
        with pytest.raises(DataError, match=r"(?s)not as its manifest says.*part-00003\.parquet is missing"):
            rows(path)
    assert rows(out / "part-0000[012].parquet") == 300
    assert rows(out / "part-00001.parquet") == 100

    shutil.copy(out / "part-00000.parquet", out / "part-00003.parquet")
    with (out / "part-00003.parquet").open("ab") as file:
        file.write(b"x")
    for path in (out, out / "*.parquet", out / "part-00003.parquet"):
        with pytest.raises(DataError, match=r"(?s)part-00003\.parquet has [\d,]+ bytes, the manifest says"):
            rows(path)

    (out / "_manifest.json").write_text('{"parts": [')
    with pytest.raises(DataError, match=r"_manifest\.json is damaged"):
        rows(out)


def test_the_folders_of_partition_on_are_of_the_output_around_them(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, 1, partition_on=["x"], files=2)
    assert Dataset(out, engine="pandas").num_rows == ROWS
    assert Dataset(out / "x=1", engine="pandas").num_rows == ROWS
    (out / "x=1/part-00000.parquet").unlink()
    for path in (out, out / "x=1", out / "*", out / "x=*/*.parquet"):
        with pytest.raises(DataError, match=r"x=1/part-00000\.parquet is missing"):
            _ = Dataset(path, engine="pandas").num_rows
