"""Text that ingest parses once, for stages on other workers: the same output, and no later stage reads text."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from tasks import ops
from tasks.cluster.local_pool import LocalPool
from tasks.core.plan import Piece
from tasks.core.settings import Downsample, Output, Run, Source, SplitRule, Unique
from tasks.errors import DataError, JobError
from tasks.job.request import Request, SavedPlans, make_request
from tasks.sources import reader
from tasks.sources.formats import FORMATS
from tasks.sources.row_places import row_place
from tasks.stages import ingest, needs
from tests.stages import run_stages

ROWS = 3_000
GRAPH = ["n"] + (["name"] >> ops.Categorify()) + (["x"] >> ops.FillMedian() >> ops.Normalize()) + ["label"]
TABLE = pa.table({"n": range(ROWS), "x": [None if i % 9 == 0 else i / 7 for i in range(ROWS)], "unused": [1] * ROWS,
                  "name": [None if i % 11 == 0 else f"n{i * i % 97}" for i in range(ROWS)],
                  "time": range(ROWS), "label": [i % 2 for i in range(ROWS)]})  # fmt: skip


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int, int]]:
    """How often each piece of a text file was parsed for its rows."""
    times: Counter[tuple[str, int, int]] = Counter()
    for name in ("csv", "jsonl"):
        plain = FORMATS[name].read

        def read(files: Any, pieces: Sequence[Piece], schema: Any, options: Any, plain: Any = plain) -> pa.Table:
            times.update((files[p.file].path, p.start, p.stop) for p in pieces)
            return plain(files, pieces, schema, options)

        monkeypatch.setitem(FORMATS, name, replace(FORMATS[name], read=read))
    return times


def write_text(folder: Path, kind: str) -> Path:
    for number in range(3):
        rows, day = TABLE.slice(number * 1_000, 1_000), folder / f"day={number}"
        day.mkdir(parents=True)
        if kind == "csv":
            csv.write_csv(rows, day / "rows.csv")
        else:
            lines = "".join(f"{json.dumps(row)}\n" for row in rows.to_pylist())
            (day / "rows.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    return folder


def job(source: Path, out: Path, engine: str, parse_once: bool, **more: Any) -> Request:
    section = Source(path=str(source), parse_once=parse_once, **more)
    files = Output(path=str(out), files=2, seed=5)
    return make_request(section, GRAPH + "day", files, Run(min_partition_size=1, report=False), engine)


def written(out: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(out.rglob("part-*"))]


def ingest_only(request: Request) -> bool:
    with request.staging.hold_lock():
        ingest.ingest(request, LocalPool(2))
    return True


def parsed_folder(request: Request) -> Path:
    return request.staging.folder / "parsed"


SOURCES: dict[str, dict[str, Any]] = {
    "plain": {},
    "filter": {"filter": "x > 10 and unused == 1"},
    "keys": {"keys": ["name"], "sort_by": ["n"]},
    "split": {"split": SplitRule(by="time", column="time", valid=0.2)},
    "unique": {"unique": Unique(keys=["name", "label"]), "downsample": Downsample(where="label == 0", fraction=0.5)},
    "computed": {"schema": {"x": "cast(_, 'float32') * 2", "n": "int16"}},
}


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("source", SOURCES)
def test_the_output_is_the_same_and_text_is_read_once(
    tmp_path: Path, engine: str, parsed: Counter[tuple[str, int, int]], kind: str, source: str
) -> None:
    folder, more = write_text(tmp_path / "in", kind), SOURCES[source]
    run_stages(job(folder, tmp_path / "each", engine, parse_once=False, **more))
    parsed.clear()  # of what the sizes of columns are guessed from, too
    request = job(folder, tmp_path / "once", engine, parse_once=True, **more)
    results = run_stages(request)
    assert written(tmp_path / "once") == written(tmp_path / "each") != []
    assert {*parsed.values()} == {1}
    assert results[0].files == 3


def test_a_second_start_takes_the_parsed_text_while_all_of_it_is_there(
    tmp_path: Path, engine: str, parsed: Counter[tuple[str, int, int]]
) -> None:
    request = job(write_text(tmp_path / "in", "csv"), tmp_path / "out", engine, parse_once=True)
    with request.staging.hold_lock():
        assert not ingest.ingest(request, LocalPool(2)).reused
        parsed.clear()
        assert ingest.ingest(request, LocalPool(2)).reused
        assert not parsed
        other = make_request(request.source, GRAPH + "time", request.output, request.run, engine)
        assert not ingest.ingest(other, LocalPool(2)).reused  # it needs another column
        files = sorted(parsed_folder(request).iterdir())
        files[-1].unlink()
        plan = SavedPlans(request).plan("")
        with pytest.raises(DataError, match=r"a file of parsed text is gone(.|\n)*do: run the same job again"):
            reader.read(plan, 0, ["time"])
        parsed.clear()
        assert not ingest.ingest(other, LocalPool(2)).reused
    assert (len(parsed), len(files)) == (3, 1)  # a block of three small files


def test_a_value_that_an_operator_refuses_is_named_by_its_place_in_the_text(tmp_path: Path, engine: str) -> None:
    request = job(write_text(tmp_path / "in", "csv"), tmp_path / "out", engine, parse_once=True)
    with request.staging.hold_lock():
        ingest.ingest(request, LocalPool(2))
    place = row_place(SavedPlans(request).plan(""), 1_007)
    assert place == f"row 1,007 of the source (row 7 of {tmp_path}/in/day=1/rows.csv, counted from 0)"


def test_the_disk_must_have_room_for_the_columns(tmp_path: Path, engine: str) -> None:
    folder = write_text(tmp_path / "in", "csv")
    scratch = [
        needs.needs(r, {"": SavedPlans(r).plan("")}, LocalPool(2)).scratch
        for r in (job(folder, tmp_path / f"{parse_once}", engine, parse_once) for parse_once in (False, True))
        if ingest_only(r)
    ]
    assert scratch[1] - scratch[0] == SavedPlans(job(folder, tmp_path / "True", engine, True)).plan("").nbytes


def test_files_of_columns_are_refused(tmp_path: Path, engine: str) -> None:
    pq.write_table(TABLE.append_column("day", pa.array([1] * ROWS)), tmp_path / "in.parquet")
    with pytest.raises(JobError) as caught:
        ingest_only(job(tmp_path / "in.parquet", tmp_path / "out", engine, parse_once=True))
    assert str(caught.value).splitlines() == [
        "parse_once is for text",
        "  where: source.parse_once",
        "  why: files of parquet store columns, which every stage reads about as quickly",
        "  do: leave source.parse_once out",
    ]
