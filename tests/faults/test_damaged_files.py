"""Files that are damaged: read, or refused by an error that names them; never a crash, a raw error or no end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.settings import Source
from tasks.errors import DataError
from tasks.sources.planning import make_plan
from tasks.sources.reader import read
from tests.faults.damaged import FILES, outcomes, wrong
from tests.faults.rounds import Rounds

SAMPLE = range(len(FILES))  # each format once
NIGHTLY = range(100 * len(FILES))  # at least 500 of each kind


@pytest.mark.xdist_group("rounds")
@pytest.mark.promise("rowmill checks what a file says about itself before it uses it")
@pytest.mark.promise("A damaged file is an error that names it", "flows/KEYS.md#reading")
@pytest.mark.parametrize("kind", ["files", "bits"])
def test_a_damaged_file_is_read_or_refused(kind: str, tmp_path: Path, rounds: Rounds) -> None:
    found = outcomes(kind, SAMPLE, tmp_path, rounds)
    assert (len(found), wrong(found)) == (len(SAMPLE), {})


@pytest.mark.nightly
@pytest.mark.xdist_group("rounds")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["files", "bits"])
def test_thousands_of_damaged_files_are_read_or_refused(kind: str, tmp_path: Path, rounds: Rounds) -> None:
    found = outcomes(kind, NIGHTLY, tmp_path, rounds)
    assert (len(found), wrong(found)) == (len(NIGHTLY), {})


def arrow_file(folder: Path, table: pa.Table) -> Path:
    path = folder / "rows.arrow"
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)
    return path


def read_all(source: Source) -> None:
    plan = make_plan(source)
    for partition in plan.partitions:
        read(plan, partition)


def refusal(path: Path) -> str:
    """What is said of a file that is read whole."""
    with pytest.raises(DataError) as caught:
        read_all(Source(path=str(path)))
    assert str(path) in caught.value.where
    return str(caught.value)


def test_an_arrow_file_with_an_offset_out_of_bounds_is_refused(tmp_path: Path) -> None:
    path = arrow_file(tmp_path, pa.table({"name": [f"name-{n}" for n in range(1000)]}))
    content = bytearray(path.read_bytes())
    offsets = np.cumsum([0, *(len(f"name-{n}") for n in range(1000))]).astype(np.int32).tobytes()
    place = content.index(offsets)
    content[place + 2000 : place + 2004] = (2**31 - 10).to_bytes(4, "little")
    path.write_bytes(content)
    assert "column 'name'" in refusal(path)


def test_an_arrow_file_with_a_dictionary_index_out_of_bounds_is_refused(tmp_path: Path) -> None:
    table = pa.table({"name": pa.array([f"name-{n % 7}" for n in range(1000)]).dictionary_encode()})
    path = arrow_file(tmp_path, table)
    content = bytearray(path.read_bytes())
    place = content.index((np.arange(1000, dtype=np.int32) % 7).tobytes())
    content[place + 400 : place + 404] = (2**30).to_bytes(4, "little")
    path.write_bytes(content)
    assert "column 'name'" in refusal(path)


def test_an_arrow_file_that_is_cut_off_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = arrow_file(tmp_path, pa.table({"x": np.arange(1_000_000)}))
    plan = make_plan(Source(path=str(path)))
    path.write_bytes(path.read_bytes()[:100_000])
    with pytest.raises(DataError) as caught:
        read(plan, 0)
    assert caught.value.where == str(path)


def test_an_arrow_file_is_planned_without_reading_its_columns(tmp_path: Path) -> None:
    table = pa.table({"x": np.arange(1_000_000), "name": ["some text"] * 1_000_000})
    path = arrow_file(tmp_path, table)
    content = bytearray(path.read_bytes())
    content[10_000:-10_000] = bytes(len(content) - 20_000)
    path.write_bytes(content)
    plan = make_plan(Source(path=str(path)))
    assert (plan.rows, abs(plan.nbytes - table.nbytes) < 1000) == (1_000_000, True)


@pytest.mark.promise("A damaged file is an error that names it")
@pytest.mark.parametrize("suffix", ["parquet", "arrow", "orc"])
def test_texts_that_are_no_utf8_are_refused(suffix: str, tmp_path: Path) -> None:
    import pyarrow.orc

    latin = pa.Array.from_buffers(pa.string(), 2, pa.array([b"caf\xe9", b"bar"]).buffers())
    table, path = pa.table({"name": latin, "x": [1, 2]}), tmp_path / f"rows.{suffix}"
    if suffix == "arrow":
        arrow_file(tmp_path, table)
    elif suffix == "orc":
        pyarrow.orc.write_table(table, path)
    else:
        pq.write_table(table, path)
    assert "UTF8" in refusal(path)
