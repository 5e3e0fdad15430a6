"""Nested columns of every format: as JSON, by the fields of structs; and texts that are lists of numbers."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pandas as pd
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from flows.job.job import make_application, make_job
from flows.preview.job_preview import preview
from tasks import ops
from tasks.dataset import Dataset
from tasks.engines.algorithms.text_casts import parse_text
from tasks.errors import DataError, JobError
from tasks.gate.locate import find_files
from tasks.job.base_version import find_newest_good
from tasks.sources.formats import text_ranges
from tasks.sources.formats.conform import json_texts
from tasks.workflow import Workflow
from tests.flows.runs import rows_of
from tests.frames import to_list
from tests.stages import run_stages

ROWS: list[dict[str, Any]] = [
    {"u": 1, "item": {"id": 5, "n": {"x": 1.5}, "t": "30.11.2023"}, "l": [{"id": 1}, {"id": 2}], "w": "[0.5, 1.5]"},
    {"u": 2, "item": None, "l": [], "w": "1|2|3"},
    {"u": 3, "item": {"id": 7, "n": None, "t": "01.01.2024"}, "l": None, "w": None},
]
AVRO = {
    "type": "record", "name": "row", "fields": [
        {"name": "u", "type": "long"},
        {"name": "item", "type": ["null", {"type": "record", "name": "item", "fields": [
            {"name": "id", "type": ["null", "long"]},
            {"name": "n", "type": ["null", {"type": "record", "name": "n", "fields": [
                {"name": "x", "type": "double"}]}]},
            {"name": "t", "type": "string"}]}]},
        {"name": "l", "type": ["null", {"type": "array", "items": {"type": "record", "name": "l", "fields": [
            {"name": "id", "type": "long"}]}}]},
        {"name": "w", "type": ["null", "string"]},
    ],
}  # fmt: skip
FORMATS = ("parquet", "orc", "jsonl", "avro", "arrow", "frame")
DATES = {"item.t": "parse_time(_, '%d.%m.%Y')"}


def written(folder: Path, kind: str) -> Any:
    """The rows as a source of this format."""
    table, path = pa.Table.from_pylist(ROWS), folder / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(table, path)
    elif kind == "orc":
        orc.write_table(table, path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif kind == "avro":
        with path.open("wb") as file:
            fastavro.writer(file, fastavro.parse_schema(AVRO), ROWS)
    elif kind == "arrow":
        with pa.ipc.new_file(str(path), table.schema) as file:
            file.write_table(table)
    else:
        return table
    return str(path)


def listed(frame: Any, name: str) -> list[Any]:
    return pa.array(frame[name]).to_pylist()


@pytest.mark.promise("`string` of a struct, map or list is its JSON")
@pytest.mark.parametrize("kind", FORMATS[:-1])
def test_a_nested_column_read_as_string_is_its_json(kind: str, tmp_path: Path) -> None:
    frame = Dataset(written(tmp_path, kind), schema={"item": "string", "l": "string"}, engine="pandas").head()
    items = [
        '{"id": 5, "n": {"x": 1.5}, "t": "30.11.2023"}', None, '{"id": 7, "n": null, "t": "01.01.2024"}',
    ]  # fmt: skip
    assert listed(frame, "item") == items
    assert listed(frame, "l") == ['[{"id": 1}, {"id": 2}]', "[]", None]


@pytest.mark.promise("Of a struct whose type is declared, other fields are left out")
@pytest.mark.parametrize("kind", FORMATS[:-1])
def test_fields_that_a_declared_struct_lacks_are_left_out(kind: str, tmp_path: Path) -> None:
    types = {"item": "struct<none: string, id: int64, n: struct<x: double>>", "l": "list<struct<none: int64>>"}
    frame = Dataset(written(tmp_path, kind), schema=types, engine="pandas").head()
    read = {name: listed(frame, name) for name in frame.columns}
    assert read["item"] == [{"id": 5, "n": {"x": 1.5}, "none": None}, None, {"id": 7, "n": None, "none": None}]
    assert read["l"] == [[{"none": None}, {"none": None}], [], None]
    assert read["u"] == [1, 2, 3]


@pytest.mark.parametrize("kind", FORMATS[:-1])
def test_fields_that_a_struct_of_a_fit_lacks_are_left_out(kind: str, tmp_path: Path) -> None:
    rows = [{**row, "item": row.get("item") and {"id": row["item"]["id"]}} for row in ROWS]
    first, later = tmp_path / "first.jsonl", written(tmp_path, kind)
    first.write_text("".join(json.dumps(row) + "\n" for row in rows))
    fitted = Workflow([*ROWS[0]]).fit(Dataset(first, engine="pandas"))
    frame = fitted.transform(Dataset(later, engine="pandas")).head()
    assert listed(frame, "item") == [{"id": 5}, None, {"id": 7}]


def test_other_keys_of_json_lines_are_still_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what a declared struct lacks is left out. The error names key and row, and its advice works."""
    monkeypatch.setattr(text_ranges, "SAMPLE", 100)
    rows = [{"u": n, "item": {"id": n, "name": "a"}, "more": {"x": 1}} for n in range(20)]
    last = {"u": 20, "item": {"id": 9, "late": [1, "x"]}}
    types = {"item": "struct<id: int64>"}

    def read(further: dict[str, Any], **more: str) -> dict[str, list[Any]]:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {**last, **further}]))
        frame = Dataset(path, schema={**types, **more}, engine="pandas").head(100)
        return {name: listed(frame, name) for name in frame.columns}

    assert read({})["item"] == [*({"id": n} for n in range(20)), {"id": 9}]
    with pytest.raises(DataError) as error:
        read({"late": 1})
    assert error.value.where == f"{tmp_path / 'rows.jsonl'}, column late, row 21"
    assert "source.schema: {late: string}" in error.value.do
    assert read({"late": 1}, late="string")["late"] == [*[None] * 20, "1"]
    with pytest.raises(DataError) as error:
        read({"more": {"x": 2, "y": 3}})
    assert error.value.where == f"{tmp_path / 'rows.jsonl'}, column more/y, row 21"
    assert read({"more": {"x": 2, "y": 3}}, more="struct<y: int64>")["more"] == [*[{"y": None}] * 20, {"y": 3}]


def test_json_of_values_that_json_lacks() -> None:
    dtype = pa.struct({"f": pa.float64(), "d": pa.decimal128(5, 2), "t": pa.timestamp("s"),
                       "m": pa.map_(pa.string(), pa.int64())})  # fmt: skip
    rows = [{"f": float("inf"), "d": Decimal("1.50"), "t": dt.datetime(2024, 1, 2), "m": [("k", 1)]}]
    assert json_texts(pa.array(rows, dtype), dtype).to_pylist() == [
        '{"f": null, "d": "1.50", "t": "2024-01-02 00:00:00", "m": {"k": 1}}'
    ]


@pytest.mark.promise("A field of a struct is named by its path, here as in `columns`, expressions and rules")
@pytest.mark.parametrize("kind", FORMATS)
def test_fields_of_structs_are_columns_by_their_path(kind: str, tmp_path: Path) -> None:
    data = Dataset(written(tmp_path, kind), engine="pandas")
    named = Workflow(["item.id", "item.n.x", "l.id"]).final
    ids = ["item.id"] >> ops.Categorify() >> ops.Rename(postfix="_code")
    twice = ["u"] >> ops.Lambda(expression="item.id * 2 + u", dtype="int64")
    workflow = Workflow(named + ids + twice)
    wanted = {"item.id": [5, None, 7], "item.n.x": [1.5, None, None], "l.id": [[1, 2], [], None],
              "item.id_code": [3, 1, 4], "u": [11, None, 17]}  # fmt: skip
    out = workflow.fit_transform(data).head()
    assert {name: listed(out, name) for name in out.columns} == wanted
    assert [*workflow.input_schema] == ["u", "item.id", "item.n.x", "l.id"]
    workflow.save(tmp_path / "saved")
    loaded = Workflow.load(tmp_path / "saved")
    again = loaded.transform(Dataset(written(tmp_path, kind), engine="pandas")).head()
    assert {name: listed(again, name) for name in again.columns} == wanted
    assert loaded.transform(pa.Table.from_pylist(ROWS)).to_pydict() == {**wanted}
    served = loaded.transform(pd.DataFrame({"u": [1], "item": [{"id": 7, "n": None}], "l": [[{"id": 3}]]}))
    assert {name: listed(served, name) for name in served.columns} == {
        "item.id": [7], "item.n.x": [None], "l.id": [[3]], "item.id_code": [4], "u": [15]
    }  # fmt: skip
    flat = loaded.transform(pd.DataFrame({"u": [1], "item.id": [7], "item.n.x": [2.5], "l.id": [[3]]}))
    assert listed(flat, "item.n.x") == [2.5]


@pytest.mark.parametrize("kind", FORMATS[:-1])
def test_fields_of_structs_have_types_expressions_and_rules_of_their_own(kind: str, tmp_path: Path) -> None:
    path = written(tmp_path, kind)
    data = Dataset(path, schema={"item.id": "string", **DATES}, engine="pandas")
    assert next(data.to_iter(["item.id", "item.t"]))["item.id"].tolist() == ["5", pd.NA, "7"]
    splits = data.split("time", column="item.t", valid="2024-01-01")
    assert {name: listed(part.head(), "u") for name, part in splits.items()} == {"train": [1, 2], "valid": [3]}
    assert listed(data.unique("item.t").head(), "u") == [1, 2, 3]
    with pytest.raises(JobError, match=r"source\.sort_by goes by 'item\.t', and its times are texts"):
        Dataset(path, engine="pandas").shuffle_by_keys("u", sort_by="item.t")
    with pytest.raises(JobError, match=r"there is no column 'item\.ids'"):
        Workflow(["item.ids"]).fit(Dataset(path, engine="pandas"))


@pytest.mark.promise("A column with that very name takes precedence")
def test_a_column_that_is_called_like_the_path_takes_precedence(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(ROWS).append_column("item.id", pa.array([100, 200, 300]))
    pq.write_table(table, tmp_path / "x.parquet")
    for source in (table, str(tmp_path / "x.parquet")):
        out = Workflow(["item.id"] + (["u"] >> ops.Lambda(expression="item.id + 1"))).fit_transform(
            Dataset(source, engine="pandas")
        ).head()  # fmt: skip
        assert (listed(out, "item.id"), listed(out, "u")) == ([100, 200, 300], [101, 201, 301])


@pytest.mark.promise("A field of a struct is named by its path, here as in `columns`, expressions and rules")
def test_a_job_its_preview_and_a_fitted_workflow_take_fields_of_structs(tmp_path: Path) -> None:
    job: dict[str, Any] = {
        "source": {"path": written(tmp_path, "parquet"), "schema": DATES, "filter": "item.id > 4 or item.id is None",
                   "keys": ["u"], "sort_by": ["item.t"],
                   "split": {"by": "time", "column": "item.t", "test": "2024-01-01"}},
        "features": [{"columns": ["item.id"], "ops": [{"op": "Categorify"}]},
                     {"columns": ["item.t"], "ops": [{"op": "Lambda", "expression": "year(_)", "dtype": "int64"}]},
                     {"columns": ["u"]}],
        "output": {"path": str(tmp_path / "out"), "files": 1, "shuffle": "none"},
    }  # fmt: skip
    sample = preview(make_job(job)).sample.after
    by_user = dict(zip(sample["u"].to_pylist(), sample["item.t"].to_pylist(), strict=True))
    assert by_user == {1: 2023, 2: None, 3: 2024}
    run_stages(make_job(job).request("pandas"))
    train, test = rows_of(tmp_path / "out" / "train"), rows_of(tmp_path / "out" / "test")
    rows = sorted(zip(*(train[name].to_pylist() for name in ("u", "item.id", "item.t")), strict=True))
    assert rows == [(1, 3, 2023), (2, 1, None)]
    assert test.to_pydict() == {"item.id": [2], "item.t": [2024], "u": [3]}
    fitted = Workflow.load(tmp_path / "out" / "train")
    later = [{**ROWS[0], "item": {"t": "02.03.2025", "id": 5, "new": True}}]  # another order, one field more
    pq.write_table(pa.Table.from_pylist(later), tmp_path / "later.parquet")
    assert fitted.transform(Dataset(str(tmp_path / "later.parquet"), engine="pandas")).head().to_dict("list") == {
        "item.id": [3], "item.t": [2025], "u": [1]
    }  # fmt: skip


LISTS = [
    ("[0.5, 1.5]", [0.5, 1.5]), ("1|2|3", [1.0, 2.0, 3.0]), ("1; 2", [1.0, 2.0]), (" [1 2.5] ", [1.0, 2.5]),
    ("[]", []), ("7", [7.0]), ("[1, null, NaN]", [1.0, None, None]), ("1|2,5", None), ("[1, 2", None),
    ("[1,,2]", None), ("1|x", None), ("[[1], [2]]", None), ("[1e999]", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "numbers"), LISTS)
def test_a_text_is_a_list_of_numbers_or_null(text: str, numbers: list[float] | None) -> None:
    assert parse_text(pa.array([text, None]), pa.list_(pa.float64())).to_pylist() == [numbers, None]


def test_whole_numbers_in_lists_stay_exact() -> None:
    texts = pa.array(["[9007199254740993, -1]", "9223372036854775808", "1.5"])
    assert parse_text(texts, pa.list_(pa.int64())).to_pylist() == [[9007199254740993, -1], None, None]


@pytest.mark.promise("`list<double>` or `list<int64>` of a text reads")
@pytest.mark.parametrize("kind", FORMATS[:-1])
def test_texts_are_read_as_lists_of_numbers_on_every_format(kind: str, tmp_path: Path) -> None:
    data = Dataset(written(tmp_path, kind), schema={"w": "list<double>"}, engine="pandas")
    assert str(data.schema["w"].dtype) == "list<item: double>"
    assert listed(data.head(), "w") == [[0.5, 1.5], [1.0, 2.0, 3.0], None]


@pytest.mark.promise("`list<double>` or `list<int64>` of a text reads")
def test_lists_in_csv_and_in_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('id,v\n1,"[0.5, 1.5]"\n2,[]\n3,1|2\n4,\n')
    workflow = Workflow(["v"]).fit(Dataset(str(path), schema={"v": "list<float32>"}, engine="pandas"))
    later = Dataset(str(path), engine="pandas")  # the schema of the fit counts
    assert listed(workflow.transform(later).head(), "v") == [[0.5, 1.5], [], [1.0, 2.0], None]
    path.write_text('id,v\n1,"[0.5, 1.5]"\n2,"one, two"\n')
    with pytest.raises(
        DataError, match="column 'v' has a value that is not of type list<float32>: 'one, two'"
    ) as error:
        Dataset(str(path), schema={"v": "list<float32>"}, engine="pandas").head()
    assert error.value.where == f"{path}, column v, row 2 (the header not counted)"
    lines = tmp_path / "x.jsonl"
    lines.write_text('{"v": [0.5]}\n{"v": "1|2"}\n{"v": null}\n')
    assert listed(Dataset(str(lines), schema={"v": "list<double>"}, engine="pandas").head(), "v") == [
        [0.5],
        [1.0, 2.0],
        None,
    ]


def test_expressions_cast_texts_to_lists_of_numbers() -> None:
    data = Dataset(pa.table({"v": ['{"e": [0.5, 1.5]}', '{"e": "1|2"}', '{"e": "x"}', None]}), engine="pandas")
    values = ["v"] >> ops.Lambda(expression="cast(parse_json(_, '$.e'), 'list<double>')")
    sums = ["v"] >> ops.Lambda(expression="coalesce(sum(cast(parse_json(_, 'e'), 'list<double>')), -1.0)")
    workflow = Workflow(values + (sums >> ops.Rename(postfix="_sum")))
    out = workflow.fit_transform(data).head()
    assert listed(out, "v") == [[0.5, 1.5], [1.0, 2.0], None, None]
    assert listed(out, "v_sum") == [2.0, 3.0, -1.0, -1.0]
    with pytest.raises(JobError, match="string cannot be cast to list"):
        Workflow(["v"] >> ops.Lambda(expression="cast(_, 'list<string>')")).fit(data)


def test_a_line_of_json_whose_text_is_no_list_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"v": "1|2"}\n{"v": "1|x"}\n')
    with pytest.raises(DataError, match="a line of JSON does not fit") as error:
        Dataset(str(tmp_path / "x.jsonl"), schema={"v": "list<double>"}, engine="pandas").head()
    assert error.value.where == f"{tmp_path / 'x.jsonl'}, column v, row 2"


def test_nights_with_profiles_a_base_and_an_application_read_fields_of_structs(tmp_path: Path) -> None:
    nights = (
        [{"u": 1, "item": {"id": 5, "t": "30.11.2023"}}, {"u": 2, "item": {"id": 5, "t": "30.11.2023"}},
         {"u": 2, "item": {"id": 7, "t": "30.11.2023"}}],
        [{"u": 1, "item": {"t": "01.12.2023", "id": 9, "new": 1}}, {"u": 2, "item": None}],
    )  # fmt: skip
    out = tmp_path / "out"
    for number, rows in enumerate(nights):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{number}.parquet")
        job = {"source": {"path": str(tmp_path / f"{number}.parquet"), "schema": DATES},
               "features": [{"columns": ["item.id"], "ops": [{"op": "Categorify"}]}, {"columns": ["item.t"]}],
               "output": {"path": str(out), "on_existing": "version", "files": 1, "shuffle": "none"},
               "base": str(out) if number else None}  # fmt: skip
        made = make_job({name: value for name, value in job.items() if value is not None})
        run_stages(made.request("pandas", find_newest_good(made.base_path).version if made.base_path else None))
    assert rows_of(out / "v0001")["item.id"].to_pylist() == [3, 3, 4]
    assert rows_of(out / "v0002").to_pydict() == {"item.id": [5, 1], "item.t": [dt.datetime(2023, 12, 1), None]}
    output = {"path": str(tmp_path / "applied"), "files": 1, "shuffle": "none"}
    later = {"fitted": str(out), "source": {"path": str(tmp_path / "0.parquet")}, "output": output}
    run_stages(make_application(later).request("pandas"))
    assert rows_of(tmp_path / "applied")["item.id"].to_pylist() == [3, 3, 4]


def test_bytes_of_a_fixed_size_in_a_struct_are_read_as_the_advice_says(tmp_path: Path, engine: str) -> None:
    kind = pa.struct([("hash", pa.binary(2)), ("id", pa.int64())])
    rows = [{"hash": b"ab", "id": 1}, {"hash": b"cd", "id": 2}, {"hash": b"ab", "id": 3}]
    pq.write_table(pa.table({"item": pa.array(rows, kind)}), tmp_path / "in.parquet")
    coded = Workflow(["item.hash"] >> ops.Categorify())
    with pytest.raises(DataError) as error:
        coded.fit(Dataset(tmp_path / "in.parquet", engine=engine))
    assert error.value.do == 'if its bytes are text, say so: source.schema: {"item.hash": string}'
    read = Dataset(tmp_path / "in.parquet", engine=engine, schema={"item.hash": "string"})
    assert to_list(coded.fit_transform(read).head()["item.hash"]) == [3, 4, 3]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_field_that_does_not_fit_the_type_of_the_fit_is_named_with_its_file_and_row(
    kind: str, tmp_path: Path
) -> None:
    paths = []
    for number, ids in enumerate(([1, 2], [3], [4, 5.5])):
        rows = [{"item": {"id": one}} for one in ids]
        paths.append(tmp_path / f"{number}.{kind}")
        if kind == "jsonl":
            paths[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            pq.write_table(pa.Table.from_pylist(rows), paths[-1])
    coded = Workflow(["item.id"] >> ops.Categorify()).fit(Dataset(str(paths[0]), engine="pandas"))
    later = Dataset([str(paths[0]), str(paths[2])] if kind == "jsonl" else str(paths[2]), engine="pandas")
    with pytest.raises(DataError, match=r"column 'item\.id' has a value that is not of type int64: 5\.5") as error:
        coded.transform(later).head()
    assert error.value.where == f"{paths[2]}, column item.id, row 2"


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_the_files_in_which_a_field_changes_are_searched(kind: str, tmp_path: Path) -> None:
    for number, ids in enumerate(([1, 2], [None, 3])):
        rows, path = [{"item": {"id": one}} for one in ids], tmp_path / f"{number}.{kind}"
        if kind == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            pq.write_table(pa.Table.from_pylist(rows), path)
    plan = Dataset(f"{tmp_path}/*.{kind}", engine="pandas").plan
    where = find_files(plan, "item.id", {0: lambda profile: profile.nulls > 0})
    assert where.paths == {0: [str(tmp_path / f"1.{kind}")]}
