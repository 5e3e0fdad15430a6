"""Strings that a Parquet file holds plain: when they are read so, and that the output does not tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import ops
from tasks.core.plan import Limits, Plan
from tasks.core.settings import Output, Run, Source
from tasks.graph import partition_work
from tasks.job.request import Request, make_request
from tasks.sources import planning, reader
from tasks.sources.formats import parquet
from tasks.sources.planning import make_plan
from tasks.sources.reader import read
from tasks.stages import plan_splits
from tests.stages import run_stages

ROWS = 200_000
ENCODED, PLAIN = pa.dictionary(pa.int32(), pa.string()), pa.string()


def texts(distinct: int, width: int, rows: int = ROWS, nulls: float = 0.1) -> pa.Array:
    """Strings of `width` letters of which so many are different, some null."""
    draws = np.random.default_rng(distinct)
    values = np.char.zfill(draws.integers(0, distinct, rows).astype(str), width)
    return pa.array(values, mask=draws.random(rows) < nulls)


def types_read(folder: Path, plain: Sequence[str], table: pa.Table) -> list[pa.DataType]:
    """The types of the columns of all files together; their values are those of the table."""
    plan = make_plan(Source(path=str(folder), partition_size=2**40))
    assert len(plan.partitions) == 1
    found = read(plan, 0, plain=plain)
    assert found.cast(table.schema).equals(table)
    return found.schema.types


@pytest.mark.parametrize(
    ("column", "options", "expected"),
    [
        (lambda: texts(100_000, 20), {"use_dictionary": False}, PLAIN),
        (lambda: texts(10, 20), {"use_dictionary": False}, PLAIN),
        (lambda: texts(10, 20), {}, ENCODED),
        (lambda: texts(100_000, 20), {}, PLAIN),  # a dictionary of 1 MB that most of the values did not fit into
        (lambda: texts(100_000, 20), {"write_statistics": False}, ENCODED),  # nothing shows how long they are
        (lambda: texts(20_000, 20), {}, ENCODED),
        (lambda: texts(1_000, 500), {}, ENCODED),
        (lambda: pa.array([*["short"] * 9, "a" * 99] * 20_000), {}, ENCODED),
        (lambda: texts(100_000, 20), {"use_dictionary": False, "row_group_size": 7_000}, PLAIN),
        (lambda: texts(100_000, 20), {"use_dictionary": False, "column_encoding": {"a": "DELTA_BYTE_ARRAY"}}, ENCODED),
        (lambda: texts(10, 20), {"use_dictionary": False, "column_encoding": {"a": "DELTA_LENGTH_BYTE_ARRAY"}}, PLAIN),
        (lambda: texts(10, 20).dictionary_encode(), {"use_dictionary": False}, ENCODED),  # as its writer says
        (lambda: texts(10, 20, rows=1), {"use_dictionary": False}, PLAIN),
        (lambda: pa.nulls(1000, pa.string()), {"use_dictionary": False}, PLAIN),
    ],
)
def test_strings_come_plain_where_most_of_them_stand_so_in_the_file(
    tmp_path: Path, column: Callable[[], pa.Array], options: dict[str, Any], expected: pa.DataType
) -> None:
    made = column()
    table = pa.table({"a": made, "x": np.arange(len(made))})
    pq.write_table(table, tmp_path / "a.parquet", **options)
    table = table.cast(pa.schema({"a": pa.string(), "x": pa.int64()}))
    assert types_read(tmp_path, ["a", "x"], table) == [expected, pa.int64()]
    assert types_read(tmp_path, [], table) == [ENCODED, pa.int64()]


def test_numbers_that_the_job_wants_as_texts(tmp_path: Path) -> None:
    table = pa.table({"few": np.arange(ROWS) % 100, "many": np.arange(ROWS)})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=["few"])
    plan = make_plan(Source(path=str(tmp_path), partition_size=2**40, schema={"few": "string", "many": "string"}))
    found = read(plan, 0, plain=["few", "many"])
    assert found.schema.types == [ENCODED, ENCODED]
    assert found["many"][-3:].to_pylist() == ["199997", "199998", "199999"]


def test_columns_too_large_for_one_array_are_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"a": texts(100_000, 20)})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False)
    monkeypatch.setattr(parquet, "PLAIN_BYTES", 4_000_000)
    assert types_read(tmp_path, ["a"], table) == [ENCODED]


@pytest.mark.parametrize(("dictionaries", "expected"), [(["b"], [PLAIN, ENCODED]), ([], [PLAIN, PLAIN])])
def test_files_of_both_kinds_are_encoded(tmp_path: Path, dictionaries: list[str], expected: list[pa.DataType]) -> None:
    table = pa.table({"a": texts(1000, 20), "b": texts(1000, 9)})
    for number, encoded in enumerate(([], dictionaries)):
        half = table.slice(number * ROWS // 2, ROWS // 2)
        pq.write_table(half, tmp_path / f"{number}.parquet", use_dictionary=encoded)
    assert types_read(tmp_path, ["a", "b"], table) == expected


def test_row_groups_of_both_kinds_are_encoded(tmp_path: Path) -> None:
    table = pa.table({"a": pa.concat_arrays([texts(100_000, 20), texts(10, 20)])})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=ROWS)
    assert types_read(tmp_path, ["a"], table) == [ENCODED]
    pq.write_table(table.slice(0, ROWS), tmp_path / "a.parquet", row_group_size=ROWS)
    assert types_read(tmp_path, ["a"], table.slice(0, ROWS)) == [PLAIN]


def test_a_part_of_a_row_group(tmp_path: Path) -> None:
    table = pa.table({"a": texts(100_000, 20)})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False)
    plan = make_plan(
        Source(path=str(tmp_path), partition_size=1_300_000), limits=Limits(join_below=1, cut_above=ROWS // 4)
    )
    assert len(plan.partitions) == 4
    for partition in plan.partitions:
        found = read(plan, partition, plain=["a"])
        assert found.schema.types == [PLAIN]
        assert found.equals(table.slice(partition.first_row, partition.rows))


GRAPH = (
    ["time", "kept"]
    + (["kept", "coded", "both"] >> ops.Categorify(freq_threshold=3, num_buckets=4) >> ops.Rename(postfix="_id"))
    + (["hashed"] >> ops.HashBucket(50))
    + ([["pair", "other"]] >> ops.Categorify(combo=True))
    + (["both"] >> ops.TargetEncoding("label", kfold=3))
    + (["given"] >> ops.FillMissing(fill_value="none") >> ops.Categorify())
    + (["renamed"] >> ops.Rename(name="called"))
    + (["filtered"] >> ops.Filter("filtered != '00000005'") >> ops.Categorify())
)
STRINGS = ["kept", "coded", "both", "hashed", "pair", "other", "given", "renamed", "filtered", "asked"]
DELTA = dict(zip(STRINGS, 5 * ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"], strict=True))
ONCE = {"coded", "hashed", "pair", "other"}  # not: written, used twice, changed first, looked at by a filter
LEARNED_ONCE = {"kept", "coded", "pair", "other"}  # statistics do not read what is written or hashed


@pytest.fixture(scope="module")
def table() -> pa.Table:
    rows = 30_000
    columns = {name: texts(2000 + 100 * i, 8, rows) for i, name in enumerate(STRINGS)}
    return pa.table({"time": np.arange(rows), **columns, "label": np.arange(rows) % 3 == 0})


def request(source: Path, out: Path, engine: str) -> Request:
    section = Source(path=str(source), partition_size=400_000, filter="asked != '00000007'")
    return make_request(section, GRAPH, Output(path=str(out), files=3, seed=5), Run(), engine)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_splits, "make_plan", partial(planning.make_plan, limits=Limits(join_below=1)))


def written(table: pa.Table, folder: Path, engine: str, *files: dict[str, Any]) -> list[bytes]:
    """What comes out where the table lies in files that are written with these options."""
    (folder / "in").mkdir(parents=True)
    rows = len(table) // len(files)
    for number, options in enumerate(files):
        part = table.slice(number * rows, rows)
        pq.write_table(part, folder / "in" / f"{number}.parquet", row_group_size=5000, **options)
    run_stages(request(folder / "in", folder / "out", engine))
    return [path.read_bytes() for path in sorted((folder / "out").glob("part-*"))]


def test_the_output_is_the_same(table: pa.Table, tmp_path: Path, engine: str) -> None:
    encoded, plain, delta = {}, {"use_dictionary": False}, {"use_dictionary": False, "column_encoding": DELTA}
    expected = written(table, tmp_path / "encoded", engine, encoded, encoded, encoded)
    assert len(expected) == 3
    assert written(table, tmp_path / "plain", engine, plain, plain, plain) == expected
    assert written(table, tmp_path / "delta", engine, delta, delta, delta) == expected
    assert written(table, tmp_path / "mixed", engine, plain, encoded, delta) == expected


def test_only_strings_for_one_operator_are_read_plain(
    table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[str]] = []
    real = reader.read

    def reading(source: Plan, partition: Any, columns: Any, plain: Sequence[str] = ()) -> pa.Table:
        asked.append(set(plain) & set(STRINGS))
        found = real(source, partition, columns, plain)
        assert {n for n in columns if found.schema.field(n).type == PLAIN} == set(plain) & set(STRINGS)
        return found

    monkeypatch.setattr(partition_work, "read", reading)
    written(table, tmp_path, "pandas", {"use_dictionary": False})
    assert asked.count(ONCE) >= 3
    assert asked.count(LEARNED_ONCE) >= 3
    assert asked.count(ONCE) + asked.count(LEARNED_ONCE) == len(asked)
