"""Elements of lists as rows, `source.explode`: the rows of every format, their numbers, blocks, and what is refused."""

from __future__ import annotations

import gzip
import json
import logging
import math
import tempfile
from pathlib import Path
from typing import Any

import fastavro
import fsspec
import pandas as pd
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import ops
from tasks.core.plan import LIMITS, Limits, Piece, Plan
from tasks.core.settings import Source
from tasks.dataset import Dataset
from tasks.engines.algorithms.exploded_lists import explode
from tasks.errors import DataError, JobError
from tasks.sources import element_counts
from tasks.sources.exploded import describe_explode
from tasks.sources.planning import NoRowsError, make_plan
from tasks.sources.reader import file_of, read, read_side_by_side
from tasks.sources.row_places import row_place, runs_by_file
from tasks.workflow import Workflow
from tests.examples import examples

SESSIONS: list[dict[str, Any]] = [
    {"session": 1, "events": [{"aid": 5, "ts": 10, "type": "clicks"}, {"aid": 6, "ts": 11, "type": "carts"}]},
    {"session": 2, "events": []},
    {"session": 3, "events": None},
    {"session": 4, "events": [{"aid": 7, "ts": 12, "type": "clicks"}, None]},
]
EVENTS = {
    "session": [1, 1, 4, 4],
    "events.aid": [5, 6, 7, None],
    "events.ts": [10, 11, 12, None],
    "events.type": ["clicks", "carts", "clicks", None],
}
AVRO = {
    "type": "record", "name": "row", "fields": [
        {"name": "session", "type": "long"},
        {"name": "events", "type": ["null", {"type": "array", "items": ["null", {
            "type": "record", "name": "event", "fields": [
                {"name": "aid", "type": "long"}, {"name": "ts", "type": "long"}, {"name": "type", "type": "string"},
            ]}]}]},
    ],
}  # fmt: skip
FORMATS = ("jsonl", "parquet", "orc", "avro", "arrow")
NAMES = list(EVENTS)


def written(folder: Path, kind: str, rows: list[dict[str, Any]] = SESSIONS, name: str = "a") -> str:
    """The rows as a file of this format."""
    table, path = pa.Table.from_pylist(rows), folder / f"{name}.{kind}"
    if kind == "parquet":
        pq.write_table(table, path)
    elif kind == "orc":
        orc.write_table(table, path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "avro":
        with path.open("wb") as file:
            fastavro.writer(file, fastavro.parse_schema(AVRO), rows)
    else:
        with pa.ipc.new_file(str(path), table.schema) as file:
            file.write_table(table)
    return str(path)


def planned(path: object, limits: Limits = LIMITS, **more: Any) -> Plan:
    return make_plan(Source(path=str(path), **{"explode": "events", **more}), limits=limits)


def rows(plan: Plan, names: list[str] = NAMES) -> dict[str, list[Any]]:
    return pa.concat_tables([read(plan, p, names) for p in plan.partitions]).to_pydict()


@pytest.mark.promise("Each element of the list is a row", "flows/KEYS.md#sourceexplode")
@pytest.mark.parametrize("kind", FORMATS)
def test_elements_are_rows_with_the_other_columns_of_theirs(kind: str, tmp_path: Path) -> None:
    plan = planned(written(tmp_path, kind))
    assert rows(plan) == EVENTS
    assert rows(plan, ["session"]) == {"session": [1, 1, 4, 4]}
    assert rows(plan, ["events"])["events"][3] is None
    assert [str(plan.schema[name].dtype) for name in NAMES] == ["int64", "int64", "int64", "string"]
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))).blocks == plan.blocks
    (partition,) = plan.partitions
    assert read_side_by_side(plan, partition, NAMES, smallest=1).to_pydict() == EVENTS


@pytest.mark.promise("Rows whose list is empty or null are left out")
def test_rows_without_elements_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path, "jsonl")
    text = (
        "source.explode: 4 rows of the files become 4, one for each element of events; 2 have an empty list or null "
        "there and are left out"
    )
    assert describe_explode(planned(path)) == text
    with caplog.at_level(logging.INFO, "rowmill"):
        assert len(Dataset(path, explode="events", engine="pandas")) == 4
    assert [record.message for record in caplog.records] == [text]
    (tmp_path / "b.jsonl").write_text('{"session": 1, "events": [3]}\n')
    text = "source.explode: 1 rows of the files become 1, one for each element of events"
    assert describe_explode(planned(tmp_path / "b.jsonl")) == text


LISTS = st.lists(
    st.tuples(st.integers(0, 99), st.none() | st.lists(st.none() | st.integers(0, 9), max_size=6)), max_size=25
)


@examples(25)
@given(
    values=LISTS, kind=st.sampled_from(["jsonl", "parquet", "arrow"]), cut=st.integers(1, 40), size=st.integers(1, 999)
)
def test_the_rows_are_those_of_pandas(values: list[Any], kind: str, cut: int, size: int) -> None:
    frame = pd.DataFrame(values, columns=["u", "x"])
    has_elements = frame["x"].map(lambda one: bool(one) if isinstance(one, list) else False)
    exploded = frame[has_elements.astype(bool)].explode("x")
    wanted = [(int(u), None if x is None or math.isnan(x) else int(x)) for u, x in exploded.itertuples(index=False)]
    with tempfile.TemporaryDirectory() as folder:
        table = pa.table({"u": pa.array([u for u, _ in values], pa.int64()),
                          "x": pa.array([x for _, x in values], pa.list_(pa.int64()))})  # fmt: skip
        path = Path(folder) / f"in.{kind}"
        if kind == "jsonl":
            path.write_text("".join(json.dumps({"u": u, "x": x}) + "\n" for u, x in values))
        elif kind == "parquet":
            pq.write_table(table, path, row_group_size=7)
        else:
            with pa.ipc.new_file(str(path), table.schema) as file:
                file.write_table(table, max_chunksize=7)
        if not wanted:
            with pytest.raises(DataError):
                planned(folder, explode="x", schema={"x": "list<int64>"})
            return
        types = {"u": "int64", "x": "list<int64>"}
        for limits in (Limits(), Limits(join_below=1, cut_above=cut, range_bytes=size), Limits(1, 1, 1)):
            plan = planned(folder, limits, explode="x", schema=types)
            assert [*zip(*rows(plan, ["u", "x"]).values(), strict=True)] == wanted
            by_block = [read(plan, plan.alone(block), ["u", "x"]) for block in plan.blocks]
            assert [*zip(*pa.concat_tables(by_block).to_pydict().values(), strict=True)] == wanted
            assert [block.first_row for block in plan.blocks] == [
                sum(b.rows for b in plan.blocks[:n]) for n in range(len(plan.blocks))
            ]
            if kind == "jsonl":
                assert all(block.rows <= limits.cut_above for block in plan.blocks)


def test_lists_of_which_a_null_hides_values_become_no_rows() -> None:
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 3]), pa.array([1, 2, 3]), mask=pa.array([True, False]))
    assert explode(pa.table({"u": ["a", "b"], "x": lists}), "x").to_pydict() == {"u": ["b"], "x": [3]}


def test_a_part_of_the_elements() -> None:
    table = pa.concat_tables([pa.table({"u": [1, 2], "x": [[1, 2, 3], [4]]}), pa.table({"u": [3], "x": [[5, 6]]})])
    assert explode(table, "x", 2, 1).to_pydict() == {"u": [1, 2, 3], "x": [3, 4, 5]}
    assert explode(table, "x", 4, 2).num_rows == 0
    assert explode(table.slice(1), "x").to_pydict() == {"u": [2, 3, 3], "x": [4, 5, 6]}


def test_a_range_of_text_with_many_elements_is_in_several_blocks(tmp_path: Path) -> None:
    """80 KB of text are 40,000 rows of 800 bytes, 32 MB: a block has four times the bytes of a range at most."""
    wide = {f"n{i}": 0.5 for i in range(99)}
    lines = [json.dumps({"x": [1] * 10_000, **wide}) + "\n" for _ in range(4)]
    (tmp_path / "in.jsonl").write_text("".join(lines))
    plan = planned(tmp_path, Limits(range_bytes=2**17), explode="x")
    assert plan.rows == 40_000
    assert len(plan.blocks) > 50
    assert max(block.nbytes for block in plan.blocks) <= 4 * 2**17
    assert {(piece.start, piece.stop) for block in plan.blocks for piece in block.pieces} == {(0, len("".join(lines)))}
    middle = plan.blocks[30]
    assert middle.pieces[0].rows == middle.rows
    assert read(plan, plan.alone(middle)).nbytes == pytest.approx(middle.nbytes, rel=0.1)
    assert read(plan, plan.alone(middle), ["x"]).to_pydict() == {"x": [1] * middle.rows}


def test_the_block_of_a_row_group_has_whole_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"u": [1, 2, 3, 4], "x": [[1, 2], [3, 4, 5], [], [6]]}), tmp_path / "in.parquet")
    plan = planned(tmp_path, Limits(join_below=1, cut_above=3), explode="x")
    assert [(b.first_row, b.rows, *b.pieces) for b in plan.blocks] == [
        (0, 2, Piece(0, 0, 1, rows=2)), (2, 3, Piece(0, 1, 3, rows=3)), (5, 1, Piece(0, 3, 4, rows=1))
    ]  # fmt: skip
    one = planned(tmp_path, Limits(join_below=1, cut_above=1), explode="x")
    assert [b.rows for b in one.blocks] == [2, 3, 1]


def test_elements_know_their_file_and_their_number(tmp_path: Path) -> None:
    for number in range(2):
        written(tmp_path, "jsonl", SESSIONS, f"{number}")
    plan = planned(tmp_path)
    assert len(plan.blocks) == 1
    assert file_of(plan, 6) == (str(tmp_path / "1.jsonl"), 2)
    assert row_place(plan, 6) == f"row 6 of the source (element 2 of events of {tmp_path}/1.jsonl, counted from 0)"
    assert runs_by_file(plan) == [
        [0, None, [str(tmp_path / "0.jsonl")]], [4, None, [str(tmp_path / "1.jsonl")]]
    ]  # fmt: skip


def test_names_of_folders_missing_columns_and_types_of_fields(tmp_path: Path) -> None:
    for country in ("DE", "FR"):
        (tmp_path / f"country={country}").mkdir()
        written(tmp_path / f"country={country}", "parquet")
    pq.write_table(pa.table({"session": [9], "more": [1]}), tmp_path / "country=FR" / "z.parquet")
    plan = planned(tmp_path, missing="null", schema={"events.aid": "string"})
    assert rows(plan, ["country", "events.aid", "more"]) == {
        "country": ["DE"] * 4 + ["FR"] * 4, "events.aid": ["5", "6", "7", None] * 2, "more": [None] * 8
    }  # fmt: skip
    with pytest.raises(DataError, match="column 'events' is missing in a file") as error:
        planned(tmp_path)
    assert error.value.where == str(tmp_path / "country=FR" / "z.parquet")


def test_files_behind_a_url() -> None:
    files = fsspec.filesystem("memory")
    with files.open("/exploded/a.jsonl", "wb") as file:
        file.write("".join(json.dumps(row) + "\n" for row in SESSIONS).encode())
    assert rows(planned("memory://exploded/*.jsonl")) == EVENTS


def test_compressed_text_is_read_whole_and_divided(tmp_path: Path) -> None:
    text = "".join(json.dumps({"u": u, "x": [*range(20)]}) + "\n" for u in range(20))
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    plan = planned(tmp_path, Limits(join_below=1, cut_above=70), explode="x")
    assert [block.rows for block in plan.blocks] == [70, 70, 70, 70, 70, 50]
    assert rows(plan, ["u", "x"]) == {"u": [u for u in range(20) for _ in range(20)], "x": [*range(20)] * 20}


def test_lists_in_lists_maps_and_texts_that_are_lists(tmp_path: Path) -> None:
    pq.write_table(pa.table({"u": [1, 2], "x": [[[1, 2], []], [None]]}), tmp_path / "in.parquet")
    assert rows(planned(tmp_path / "in.parquet", explode="x"), ["u", "x"]) == {"u": [1, 1, 2], "x": [[1, 2], [], None]}
    (tmp_path / "in.csv").write_text('u,x\n1,"[3, 4]"\n2,\n3,5|6\n')
    plan = planned(tmp_path / "in.csv", explode="x", schema={"x": "list<int64>"})
    assert rows(plan, ["u", "x"]) == {"u": [1, 1, 3, 3], "x": [3, 4, 5, 6]}


def test_bad_lines_are_no_rows(tmp_path: Path) -> None:
    lines = ['{"u": 1, "x": [1, 2]}', "no JSON", '{"u": 3, "x": [3]}']
    (tmp_path / "in.jsonl").write_text("".join(line + "\n" for line in lines))
    plan = planned(tmp_path, explode="x", bad_lines="skip")
    assert rows(plan, ["u", "x"]) == {"u": [1, 1, 3], "x": [1, 2, 3]}
    assert plan.options["exploded"] == {"column": "x", "dtype": "int64", "rows": 2, "empty": 0}


def test_other_columns_of_lists_are_measured_where_text_is_parsed_anyway(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps({"x": [1] * 100, "more": [7] * 100}) + "\n")
    plan = planned(tmp_path, explode="x")
    assert plan.nbytes == pytest.approx(100 * 8 + 100 * 100 * 8, rel=0.1)
    assert rows(plan, ["more"])["more"] == [[7] * 100] * 100


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"explode": "event"}, "there is no column 'event'", "did you mean 'events'?"),
    ({"explode": "session"}, "column 'session' has no lists whose elements could become rows",
     "name a column of lists, or leave it out"),
    ({"explode": "text"}, "column 'text' has no lists whose elements could become rows",
     'name a column of lists, or leave it out; if its texts are lists of numbers, say so: source.schema: {text: '
     '"list<int64>"}'),
    ({"explode": "in.l"}, "there is no column 'in.l'", "a list in a struct stays a list: name a column of the files"),
    ({"explode": "events", "schema": {"events": "slice(_, 0, 1)"}},
     "the elements of 'events' become rows, and source.schema has an expression of it",
     "give it a type there, or none; a Lambda computes with the elements"),
    ({"explode": "none"}, "no list in column 'none' has an element",
     "name another column, or leave source.explode out"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "what", "do"), REFUSED)
def test_a_column_that_cannot_be_rows_is_refused(settings: dict[str, Any], what: str, do: str, tmp_path: Path) -> None:
    row = {"session": 1, "events": [1], "text": "1|2", "in": {"l": [1]}, "none": []}
    (tmp_path / "in.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises((JobError, NoRowsError)) as error:
        planned(tmp_path, **settings)
    assert (error.value.what, error.value.do) == (what, do)


def test_several_columns_frames_and_no_name_are_refused() -> None:
    with pytest.raises(JobError, match="name one column: the lists of several columns cannot become rows together"):
        Dataset("in.jsonl", explode=["a", "b"], engine="pandas")  # type: ignore[arg-type]
    with pytest.raises(JobError, match="name a column of lists, or leave it out"):
        Dataset("in.jsonl", explode=" ", engine="pandas")
    with pytest.raises(JobError, match="a data set of a frame takes no explode"):
        Dataset(pa.table({"x": [[1]]}), explode="x", engine="pandas")


def test_the_elements_are_counted_a_part_of_a_row_group_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"x": [[1], [2, 3], [4]] * 4}), tmp_path / "in.parquet")
    asked: list[Piece] = []
    plain = element_counts.read_pieces
    monkeypatch.setattr(element_counts, "read_pieces", lambda *args: asked.extend(args[1]) or plain(*args))
    plan = planned(tmp_path, Limits(cut_above=5), explode="x")
    assert [(piece.start, piece.stop) for piece in asked] == [(0, 5), (5, 10), (10, 12)]
    asked.clear()
    (group,) = make_plan(Source(path=str(tmp_path))).blocks
    planned(tmp_path, Limits(range_bytes=group.nbytes // 16), explode="x")
    assert [(piece.start, piece.stop) for piece in asked] == [(0, 3), (3, 6), (6, 9), (9, 12)]
    assert rows(plan, ["x"]) == {"x": [1, 2, 3, 4] * 4}


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_whole_numbers_of_the_fit_and_values_that_do_not_fit(kind: str, tmp_path: Path) -> None:
    def data(name: str, values: list[list[float]]) -> Dataset:
        path = tmp_path / f"{name}.{kind}"
        if kind == "jsonl":
            path.write_text("".join(json.dumps({"x": one}) + "\n" for one in values))
        else:
            pq.write_table(pa.table({"x": values}), path)
        return Dataset(str(path), explode="x", engine="pandas")

    coded = Workflow(["x"] >> ops.Categorify()).fit(data("fit", [[1, 2], [2]]))
    assert coded.transform(data("whole", [[1.0], [2.0, 9.0]])).head()["x"].tolist() == [4, 3, 2]
    with pytest.raises(DataError, match=r"column 'x' has a value that is not of type int64: 5\.5") as error:
        coded.transform(data("part", [[1.0], [2.0, 5.5]])).head()
    assert error.value.where == f"{tmp_path / 'part'}.{kind}, column x, element 3"
