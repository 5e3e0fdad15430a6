"""The draft of a job: it decides as its comments say, leaves out with a reason, and runs as it is."""

from __future__ import annotations

import datetime
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import yaml
from rowmill import Dataset, draft
from rowmill.cli import app
from typer.testing import CliRunner

from flows.draft import readable_files
from flows.job.job import load_job
from flows.sample import make_sample
from tasks.errors import DataError, JobError, NoInputError
from tasks.sources.formats import text_ranges
from tests.stages import run_stages

ROWS = 100


def ops_of(text: str) -> dict[str, list[str]]:
    """The operators of each column of a draft."""
    return {c: [o["op"] for o in f["ops"]] for f in yaml.safe_load(text)["features"] for c in f["columns"]}


def ran(text: str, folder: Path, engine: str) -> pa.Table:
    """The rows that the draft writes, unchanged, in the current folder."""
    (folder / "job.yaml").write_text(text)
    job = load_job(folder / "job.yaml")
    run_stages(job.request(engine))
    return pa.concat_tables(pq.read_table(path) for path in sorted(Path(job.output.path).glob("*.parquet")))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def table(**columns: Any) -> pa.Table:
    return pa.table({"number": np.arange(ROWS) ** 1.0, **columns})


# it runs


@pytest.mark.promise("a first job for data, with the reason of each decision as a comment")
@pytest.mark.parametrize(
    ("name", "form", "label", "columns"),
    [
        ("toy", "parquet", ["label"], {"timestamp_hour", "id", "name", "x", "y", "label"}),
        ("toy", "csv", ["label"], {"timestamp_hour", "id", "name", "x", "y", "label"}),
        ("ecommerce", "parquet", [], {"event_time_hour", "event_type", "product_id", "brand", "price", "user_session"}),
        ("ecommerce", "csv", [], {"event_time_hour", "event_type", "product_id", "brand", "price", "user_session"}),
        ("criteo", "parquet", ["label"], {"label", "I1", "C26"}),
    ],
)
def test_the_draft_of_a_sample_runs(
    folder: Path, engine: str, name: str, form: str, label: list[str], columns: set[str]
) -> None:
    make_sample(name, folder / "data", 2000, files=2, format=form)
    text = draft("data")
    rows = ran(text, folder, engine)

    assert yaml.safe_load(text)["label"] == label
    assert columns <= set(rows.column_names)
    assert rows.num_rows == 2000


def test_a_file_with_every_kind_of_column_runs(folder: Path, engine: str) -> None:
    number = np.arange(ROWS)
    day = datetime.date(2026, 1, 1)
    pq.write_table(
        table(
            user_id=number % 7,
            row_id=number,
            brand=[f"b{i % 5}" for i in number],
            price=pa.array([None if i % 10 == 0 else float(i) for i in number]),
            clicks=[0.0] * 50 + [1.0] * 48 + [1000.0, None],
            negative=-number * 3,
            flag=number % 2 == 0,
            day=[day + datetime.timedelta(days=int(i)) for i in number],
            at=pa.array(number * 10**9, pa.timestamp("us")),
            at_hour=[f"h{i % 3}" for i in number],
            words=[["a", "b"], ["b"]] * 50,
            weights=[[1.0, None], [2.5]] * 50,
            amount=pa.array(number).cast(pa.decimal128(22, 2)),
            bytes=[b"x", b"y"] * 50,
            place=[{"x": 1}, {"x": 2}] * 50,
            always=["same"] * ROWS,
            never=pa.nulls(ROWS, pa.string()),
            text=[f"a long text about the number {i}, " * 3 for i in number],
            target=number % 2,
        ),
        folder / "rows.parquet",
    )
    text = draft("rows.parquet")

    assert ops_of(text) == {
        "number": ["Normalize"],
        "user_id": ["Categorify"],
        "brand": ["Categorify"],
        "price": ["FillMedian", "Normalize"],
        "clicks": ["FillMissing", "LogOp", "Normalize"],
        "negative": ["Normalize"],
        "flag": ["Categorify"],
        "day": ["DateParts"],
        "at": ["DateParts"],
        "at_hour": ["Categorify"],
        "words": ["Categorify"],
        "weights": ["FillMissing", "Normalize"],
        "amount": ["Normalize"],
    }
    for line in (
        "#   row_id: every row has a value of its own",
        "#   bytes: the draft has no operator for binary",
        "#   place: the draft has no operator for struct<x: int64>",
        "#   always: every row has the same value",
        "#   never: every value is null",
        "#   text: free text: 100 values",
        "# target is the label: its name and its type say so.",
        "  # price: float64, 10 null(s): filled with the median, scaled",
    ):
        assert line in text
    rows = ran(text, folder, engine)
    assert {"day_weekday", "at_part_hour", "at_hour", "target"} <= set(rows.column_names)
    assert "day_hour" not in rows.column_names
    assert rows["price"].null_count == rows["clicks"].null_count == 0


def test_na_between_numbers_and_times_is_null(folder: Path, engine: str) -> None:
    lines = [f"{i % 9},{'NA' if i % 5 == 0 else i * 0.5},{'?' if i == 3 else '2026-01-02'},c{i % 4}" for i in range(60)]
    (folder / "rows.csv").write_text(
        "\n".join(["item,price,seen,country", *lines[:-1], "1,2.5,2026-01-03,NULL"]) + "\n"
    )
    text = draft("rows.csv")

    assert yaml.safe_load(text)["source"] == {"path": "rows.csv", "null_values": ["", "NA", "?"]}
    assert '"NA", "?" stand(s) between numbers or times, so it means null, in every column.' in text
    assert '"NULL" in it may mean null: if so, name it in source.null_values' in text
    assert ops_of(text)["price"] == ["FillMedian", "Normalize"]
    assert ran(text, folder, engine)["price"].null_count == 0


@pytest.mark.promise("An expression reads times and numbers written as text")
def test_times_and_numbers_in_texts_are_read_by_expressions(folder: Path, engine: str) -> None:
    day = datetime.date(2026, 1, 1)
    days = [day + datetime.timedelta(days=i) for i in range(ROWS)]
    pq.write_table(
        table(
            paid=["NA" if i == 7 else f"1.{i:03},50" for i in range(ROWS)],
            weight=[f"{i},5" for i in range(ROWS)],
            bought=[d.strftime("%d.%m.%Y") for d in days],
            seen=[d.strftime("%m/%d/%Y 12:30") for d in days],
            maybe=[f"0{i % 9 + 1}/02/2026" for i in range(ROWS)],
            version=[f"{i % 7}" for i in range(ROWS)],
            words=[f"1,{i % 5} or so" for i in range(ROWS)],
        ),
        folder / "rows.parquet",
    )
    text = draft("rows.parquet")
    rows = ran(text, folder, engine)

    assert ops_of(text) == {
        "number": ["Normalize"],
        "paid": ["Lambda", "FillMedian", "Normalize"],
        "weight": ["Lambda", "Normalize"],
        "bought": ["Lambda", "DateParts"],
        "seen": ["Lambda", "DateParts"],
        "maybe": ["Lambda", "DateParts"],
        "version": ["Categorify"],
        "words": ["Categorify"],
    }
    for line in (
        "  # paid: string, a number with decimal=',', group='.', 1 null(s): filled with the median, scaled;"
        ' "NA" in it becomes null',
        "  # bought: string, a time as %d.%m.%Y: its parts, in UTC",
        "  # maybe: string, a time as %m/%d/%Y: its parts, in UTC; it might be %d/%m/%Y, too: look which it is",
    ):
        assert line in text.splitlines()
    assert rows["bought_day"].to_pylist().count(31) == 2  # in January and March
    assert "bought_hour" not in rows.column_names
    assert set(rows["seen_hour"].to_pylist()) == {12}
    assert rows["paid"].null_count == 0


LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "decimal commas": ("a;b;city\n" + "1,5;x;Münster\n2,5;y;Ulm\n" * 30, {"delimiter": ";", "decimal": ","}),
    "two decimal signs": ("a;b;city\n" + "1.5;x, z;Münster\n2,5;y;Ulm\n" * 30, {"delimiter": ";"}),
    "bars": ("a|b|city\n" + "1.5|x|Münster\n2.5|y|Bonn\n" * 30, {"delimiter": "|"}),
    "a head": ("Report of May\n\nby hand\na,b,city\n" + "1.5,x,Münster\n2.5,y,Bonn\n" * 30, {"skip_rows": 3}),
    "as usual": ("a,b,city\n" + '1.5,x,Münster\n2.5,"y\nz",Bonn\n' * 30, {}),
    "euros": ("a,b,city\n" + "1.5,€ 2,Münster\n2.5,€ 3,Bonn\n" * 30, {}),
}


@pytest.mark.promise(
    "Encoding, delimiter, decimal comma and lines before the header are those of the first CSV or TSV file"
)
@pytest.mark.parametrize(
    ("name", "encoding"),
    [*((name, "utf-8") for name in LAYOUTS), ("bars", "latin-1"), ("euros", "windows-1252"), ("a head", "utf-16")],
)
def test_the_layout_of_text_is_seen(folder: Path, engine: str, name: str, encoding: str) -> None:
    content, layout = LAYOUTS[name]
    (folder / "rows.csv").write_bytes(content.encode(encoding))
    text = draft("rows.csv")
    rows = ran(text, folder, engine)

    source = yaml.safe_load(text)["source"]
    assert source == {"path": "rows.csv", **layout, **({} if encoding == "utf-8" else {"encoding": encoding})}
    assert ("# The first lines of the first file need this: " in text) == (len(source) > 1)
    assert rows.num_rows == 60
    assert len(rows["city"].unique()) == 2


HEADLESS = {"header": False, "columns": ["column_1", "column_2", "column_3"]}


@pytest.mark.promise("Without a header, columns are `column_1`, `column_2`, ..")
@pytest.mark.parametrize(
    ("name", "content", "settings"),
    [
        ("rows.dat", "a;b;c\n" + "1;x;2.5\n" * 60, {"format": "csv", "delimiter": ";"}),
        ("rows.txt", "a\tb\tc\n" + "1\tx\t2.5\n" * 60, {"format": "tsv"}),
        ("rows", "1,x,2.5\n" * 60, {"format": "csv", **HEADLESS}),
        ("rows.csv", "1,x,2026-01-02\n" * 60, HEADLESS),
        ("rows.csv", "x,,1\n" + "y,2,NA\n" * 59, HEADLESS),
        ("rows.csv", "id,2025,2026\n" + "7,1,2\n" * 60, {}),
        ("rows.csv", "id,name,town\n" + "x,y,z\nv,w,z\n" * 30, {}),
        (
            "rows.dat",
            "1::2.5\n" * 60,
            {"format": "csv", "delimiter": "::", **HEADLESS, "columns": HEADLESS["columns"][:2]},
        ),
        ("rows.log", '{"a": 1, "b": "x"}\n{"a": 2, "b": "y"}\n' * 30, {"format": "jsonl"}),
    ],
)
def test_text_is_read_whatever_its_name_and_with_or_without_a_header(
    folder: Path, engine: str, name: str, content: str, settings: dict[str, Any]
) -> None:
    (folder / name).write_text(content.replace("1", "3", 1))
    text = draft(name)
    source = yaml.safe_load(text)["source"]
    assert {key: value for key, value in source.items() if key not in ("path", "null_values")} == settings
    assert ("The first line of the first file has values, no names" in text) == ("header" in settings)
    assert ran(text, folder, engine).num_rows == 60


def test_what_is_no_text_of_columns_is_an_error(folder: Path) -> None:
    (folder / "rows.dat").write_bytes(b"\0\1,\2\n" * 60)
    (folder / "notes.txt").write_text("about these rows\n" * 3)
    for name in ("rows.dat", "notes.txt"):
        with pytest.raises(JobError, match="the format cannot be told from the name"):
            draft(name)


@pytest.mark.promise("Files that share half of their columns with the others, or less, are another table")
@pytest.mark.parametrize(("files", "path"), [(1, "shop/clicks-0.csv"), (3, "shop/clicks-*.csv")])
def test_another_table_in_the_folder_is_named_and_not_read(folder: Path, engine: str, files: int, path: str) -> None:
    (folder / "shop").mkdir()
    for number in range(files):
        lines = [f"{i % 7},{i % 5},{i % 2}" for i in range(50)]
        (folder / "shop" / f"clicks-{number}.csv").write_text("\n".join(["user,item,click", *lines]) + "\n")
    items = [f"{i},brand {i % 3},{'long ' * 400}" for i in range(5)]
    (folder / "shop" / "items.csv").write_text("\n".join(["item,brand,words", *items]) + "\n")
    text = draft("shop")
    assert yaml.safe_load(text)["source"] == {"path": path}
    assert "# shop/items.csv is another table and not read: it has item, brand, words." in text
    looked_at = 50 * files
    assert f"which has each item once; 100.0 % of the {looked_at} rows looked at are in it" in text
    assert ran(text, folder, engine).num_rows == 50 * files

    joined = text.replace("  # - ", "  - ").replace("out/", "joined/")
    assert set(ran(joined, folder, engine)["brand"].to_pylist()) == {"brand 0", "brand 1", "brand 2"}


@pytest.mark.promise("Files that share half of their columns with the others, or less, are another table")
def test_files_that_share_most_of_their_columns_are_one_table(folder: Path) -> None:
    for name, columns in (("a", "x,y,z"), ("b", "x,y,w")):
        (folder / f"{name}.csv").write_text(columns + "\n" + "1,2,3\n2,3,5\n" * 30)
    assert yaml.safe_load(draft(["a.csv", "b.csv"]))["source"] == {"path": ["a.csv", "b.csv"], "missing": "null"}


@pytest.mark.promise("numbers since 1970 in a column named like a time; and texts that list values")
def test_numbers_that_are_times_become_their_parts(folder: Path, engine: str) -> None:
    second = 1_767_225_600 + np.arange(ROWS) * 86_400  # from 2026-01-01
    days = [datetime.date(2026, 1, 1) + datetime.timedelta(days=i) for i in range(ROWS)]
    pq.write_table(
        table(
            timestamp=second,
            created_at=pa.array([None, *second[1:]], pa.float64()),
            reviewTime=second * 1000,
            seen_date=[day.year * 10_000 + day.month * 100 + day.day for day in days],
            watch_time=np.arange(ROWS) * 10**7 + 3,
            stamp=second,
        ),
        folder / "rows.parquet",
    )
    text = draft("rows.parquet")
    rows = ran(text, folder, engine)
    assert ops_of(text) == {
        "number": ["Normalize"],
        **{name: ["Lambda", "DateParts"] for name in ("timestamp", "created_at", "reviewTime", "seen_date")},
        "watch_time": ["Normalize"],
        "stamp": ["Normalize"],
    }
    assert "# reviewTime: int64, named like a time and counting ms from 1970: its parts, in UTC" in text
    assert "# seen_date: int64, a day as %Y%m%d: its parts" in text
    for name in ("timestamp", "created_at", "reviewTime", "seen_date"):
        day = [d for d in rows[f"{name}_day"].to_pylist() if d is not None]
        assert sorted(day) == sorted(d.day for d in days[name == "created_at" :])


def test_a_number_without_an_end_is_no_time() -> None:
    text = draft(table(watch_time=[1.7e9, float("inf")] * 50))
    assert "#   watch_time: it has infinities" in text


@pytest.mark.promise("numbers since 1970 in a column named like a time; and texts that list values")
def test_texts_that_list_values_are_split(folder: Path, engine: str) -> None:
    kinds = ["Comedy", "Drama", "Crime", "War", "Horror"]
    lists = ["|".join(k for j, k in enumerate(kinds) if (i % 31 + 1) >> j & 1) for i in range(ROWS)]
    pq.write_table(
        table(
            genres=lists,
            tags=[text.replace("|", ",") for text in lists],
            listed=[text.replace("|", ", ") for text in lists],
            prose=[f"in {i % 40} words, or {i % 40 + 7}" for i in range(ROWS)],
            towns=[f"Town {i % 25}, Land {i % 5}" for i in range(ROWS)],
            codes=[f"a|{i}" for i in range(ROWS)],
        ),
        folder / "rows.parquet",
    )
    text = draft("rows.parquet")
    rows = ran(text, folder, engine)
    assert ops_of(text) == {
        "number": ["Normalize"],
        "genres": ["Lambda", "Categorify"],
        "tags": ["Lambda", "Categorify"],
        "listed": ["Lambda", "Categorify"],
        "prose": ["Categorify"],
        "towns": ["Categorify"],
    }
    assert "# listed: string, lists of 5 value(s) with ', ' between" in text
    assert "# genres: string, lists of 5 value(s) with '|' between" in text
    assert sorted(map(len, rows["genres"].to_pylist())) == sorted(text.count("|") + 1 for text in lists)


@pytest.mark.promise("Columns that share half of their values or more share a vocabulary")
def test_columns_that_share_values_share_a_vocabulary(folder: Path, engine: str) -> None:
    number = np.arange(ROWS)
    pq.write_table(
        table(
            home=[f"team {i % 30}" for i in number],
            away=[f"team {(i + 7) % 30}" for i in number],
            town=[f"town {i % 30}" for i in number],
            user_id=number % 40,
            friend_user_id=(number + 1) % 45,
            item_id=number % 40,
        ),
        folder / "rows.parquet",
    )
    text = draft("rows.parquet")
    features = yaml.safe_load(text)["features"]
    rows = ran(text, folder, engine)

    assert [f["columns"] for f in features] == [
        ["number"], [["home", "away"]], ["town", "item_id"], [["user_id", "friend_user_id"]],
    ]  # fmt: skip
    assert text.count("They share most of their values") == 2
    ids = {name: set(rows[name].to_pylist()) for name in ("home", "away", "user_id", "friend_user_id")}
    assert ids["home"] == ids["away"]
    assert ids["user_id"] < ids["friend_user_id"]


@pytest.mark.parametrize("name", ["y", "no", "1", "a: b", "# c", "{d}", "é", "two\nlines", "*", "a,b"])
def test_any_name_of_a_column_is_written_as_it_is(folder: Path, engine: str, name: str) -> None:
    pq.write_table(table(**{name: ["a", "b"] * 50}), folder / "{rows}.parquet")
    assert name in ran(draft("{rows}.parquet"), folder, engine).column_names


def test_an_output_does_not_lie_in_its_source(folder: Path, engine: str) -> None:
    (folder / "here").mkdir()
    pq.write_table(table(), folder / "here" / "rows.parquet")
    text = draft(str(folder))
    assert load_job(yaml.safe_load(text)).output.path == f"{folder}-out"


# the whole file


def flights(rows: int, late: str = "5") -> str:
    """Flights by month, as CSV: the last ones have another delay."""
    lines = [f"{1 + 12 * i // rows},{'NA' if i == 5 else i % 300},N{i % 90}" for i in range(rows)]
    return "\n".join(["month,delay,tail", *lines[:-1], f"12,{late},N7"]) + "\n"


@pytest.mark.promise("values, nulls and skewness come from at most 20,000 rows, in ranges spread over the source")
@pytest.mark.parametrize("form", ["csv", "csv.gz", "utf-16", "parquet", "frame"])
def test_a_column_that_changes_late_is_no_constant(folder: Path, engine: str, form: str) -> None:
    text = flights(60_000)
    name: Any = f"rows.{form}"
    if form == "csv.gz":
        (folder / name).write_bytes(gzip.compress(text.encode()))
    elif form in ("csv", "utf-16"):
        name = "rows.csv"
        (folder / name).write_text(text, encoding=form if form == "utf-16" else "utf-8")
    else:
        rows = pa.csv.read_csv(
            pa.BufferReader(text.encode()), convert_options=pa.csv.ConvertOptions(null_values=["NA"])
        )
        pq.write_table(rows, folder / "rows.parquet", row_group_size=20_000)
        name = Dataset(rows) if form == "frame" else name
    found = draft(name)
    assert "# month: int64, 12 value(s) of the sample: taken as codes" in found
    assert ops_of(found)["month"] == ["Categorify"]
    assert found == draft(name)


@pytest.mark.promise("values, nulls and skewness come from at most 20,000 rows, in ranges spread over the source")
def test_blocks_that_are_too_large_to_be_read_whole_show_their_first_rows(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 1_000_000
    pq.write_table(pa.table({"x": np.arange(rows)}), folder / "rows.parquet", row_group_size=100_000)
    monkeypatch.setattr(readable_files, "WHOLE_BYTES", 1)
    sample = readable_files.sample_rows(Dataset("rows.parquet"))["x"].to_numpy()
    read = [{int(x) // 10_000 % 10 for x in sample if x // 100_000 == block} for block in range(10)]
    assert len(sample) == 19_994
    assert [len(places) for places in read] == [10, 1, 1, 1, 10, 1, 1, 1, 1, 10]


def test_null_texts_and_types_are_those_of_the_whole_file(
    folder: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_ranges, "SAMPLE", 1000)  # bytes that types are inferred from
    lines = [f"{i},{i % 50},{i % 9}" for i in range(60_000)]
    lines[40_000] = "NA,A7,2"
    (folder / "rows.csv").write_text("\n".join(["amount,code,x", *lines]) + "\n")
    text = draft("rows.csv")
    assert yaml.safe_load(text)["source"] == {
        "path": "rows.csv", "schema": {"code": "string"}, "null_values": ["", "NA"],
    }  # fmt: skip
    assert "code: a value does not fit the type of the first ones, so that they are read as texts." in text
    rows = ran(text, folder, engine)
    assert rows.num_rows == 60_000
    assert len(rows["code"].unique()) == 51


@pytest.mark.promise("Files that share half of their columns with the others, or less, are another table")
def test_of_the_tables_of_a_folder_the_largest_is_drafted_whatever_the_others_hold(folder: Path, engine: str) -> None:
    (folder / "air").mkdir()
    (folder / "air" / "airlines.csv").write_text("tail,name\n" + "".join(f"N{i},Air {i}\n" for i in range(20)))
    planes = "".join(f"N{i},{'NA' if i == 87 else 1950 + i % 60},{i},x\n" for i in range(90))
    (folder / "air" / "planes.csv").write_text("tail,month,seats,maker\n" + planes)
    of_months = flights(200).splitlines()
    wide = ["year,day," + of_months[0], *(f"2013,{i % 28 + 1},{line}" for i, line in enumerate(of_months[1:]))]
    (folder / "air" / "flights.csv").write_text("\n".join(wide) + "\n")
    text = draft("air")
    source = yaml.safe_load(text)["source"]
    assert source == {"path": "air/flights.csv", "null_values": ["", "NA"]}
    assert "# air/planes.csv is another table and not read: it has " in text
    assert "# air/airlines.csv is another table and not read: it has tail, name." in text
    assert ran(text, folder, engine).num_rows == 200


COLORS, SIZES = ("red", "blue", "green"), ("S", "M", "L")
CATEGORIES = "".join(f"{COLORS[i % 3]},{SIZES[i // 2 % 3]},{'yn'[i // 5 % 2]}\n" for i in range(60))
WORDS = "This was a really good film {0}, I think.,{0}\n"


FIRST_LINES = {  # content, whether the first line names the columns, rows, what is doubtful
    "values come again": (CATEGORIES, False, 60, ""),
    "names do not": ("color,size,answer\n" + CATEGORIES, True, 60, ""),
    "an index": ('"",1940,1945\n' + "".join(f'"row {i}",{i},{i / 2}\n' for i in range(60)), True, 60, ""),
    "years": ("country,1940,1945\n" + "".join(f"c{i},{i}.5,{i / 2}\n" for i in range(60)), True, 60, ""),
    "numbers of pandas": ("0,1,2\n" + "".join(f"{i}.5,{i / 2},{i}.1\n" for i in range(60)), True, 60, ""),
    "lives": ("".join(f"name {i},{1700 + i},{1750 + i}\n" for i in range(60)), False, 60, ""),
    "addresses": ("".join(f"https://a.b/{i},title {i}\n" for i in range(60)), False, 60, ""),
    "sentences": ("".join(f"This was the film of {i} years.,k{i}\n" for i in range(60)), False, 60, "as the others"),
    "questions": ("How old are you?,Where do you live at the moment?\n" + "9,x\n8,y\n" * 30, True, 60, ""),
    "texts": ("word,meaning\n" + "".join(f"w{i} v,m{i} n\n" for i in range(60)), True, 60, "say header: false"),
    "one comes again": ("a,b,c\n" + "".join(f"{'a' if i == 7 else f'x{i}'},b{i}x,c{i}x\n" for i in range(60)), False,
                        61, "'a' of the first line comes again below it"),
}  # fmt: skip


@pytest.mark.promise(
    "If the first line could be either names or values, or a date could be day-first or month-first, the draft says so"
)
@pytest.mark.parametrize("name", FIRST_LINES)
def test_the_first_line_has_names_or_values(folder: Path, name: str) -> None:
    content, named, rows, doubt = FIRST_LINES[name]
    (folder / "rows.csv").write_text(content)
    seen = readable_files.readable("rows.csv")
    assert ("header" not in seen.layout) == named
    assert seen.data.num_rows == rows
    assert (doubt in seen.doubt) if doubt else not seen.doubt


@pytest.mark.promise(
    "If the first line could be either names or values, or a date could be day-first or month-first, the draft says so"
)
def test_rows_are_exact_where_the_first_line_is_sure(folder: Path, engine: str) -> None:
    content = FIRST_LINES["one comes again"][0]
    (folder / "rows.csv").write_text(content.replace("x\n", "x,k\n").replace("a,b,c\n", "a,b,c,d\n"))
    text = draft("rows.csv")
    assert "# As read below: 61 rows, 4 columns" in text
    assert "# Look at the first line of the first file: 'a' of the first line comes again below it" in text
    (folder / "rows.csv").write_text(2 * CATEGORIES + "red\n")
    text = draft("rows.csv")
    assert "# Exact: 120 rows, 3 columns, 1 file(s), names and types, without the lines that cannot be read." in text
    assert ran(text.replace("# bad_lines", "bad_lines"), folder, engine).num_rows == 120


@pytest.mark.promise(
    "A quote sign that is part of a text is recognized as such if all lines then have the same number of values"
)
def test_quotes_in_text_of_tabs_may_be_letters(folder: Path, engine: str) -> None:
    lines = [f"{i}\t{COLORS[i % 3]}\t{i % 7}" for i in range(30_000)]
    lines[20_000] = '7\t"Hello" he said\t3'
    lines[25_000] = '8\t"open\t3'
    (folder / "rows.tsv").write_text("\n".join(["n\twords\tx", *lines]) + "\n")
    text = draft("rows.tsv")
    assert yaml.safe_load(text)["source"] == {"path": "rows.tsv", "quote": ""}
    rows = Dataset("rows.tsv", quote="").to_ddf().compute()
    assert (len(rows), rows["words"][20_000], rows["words"][25_000]) == (30_000, '"Hello" he said', '"open')
    (folder / "quoted.csv").write_text("n,words\n" + '1,"a, b"\n2,"c\nd"\n' * 30)
    assert yaml.safe_load(draft("quoted.csv"))["source"] == {"path": "quoted.csv"}


def test_the_line_of_excel_that_names_the_delimiter_is_no_header(folder: Path, engine: str) -> None:
    (folder / "rows.csv").write_text("\ufeffsep=;\r\nday;amount\r\n" + "2,5;1,5\r\n3,5;2,5\r\n" * 30)
    text = draft("rows.csv")
    assert yaml.safe_load(text)["source"] == {"path": "rows.csv", "delimiter": ";", "skip_rows": 1, "decimal": ","}
    assert ran(text, folder, engine).num_rows == 60


def test_an_encoding_that_shows_late_is_seen(folder: Path, engine: str) -> None:
    lines = [f"{i},{COLORS[i % 3]}" for i in range(30_000)]
    lines[15_000:] = [f"{i},grün" for i in range(15_000)]
    (folder / "rows.csv").write_text("\n".join(["n,color", *lines]) + "\n", encoding="latin-1")
    text = draft("rows.csv")
    assert yaml.safe_load(text)["source"] == {"path": "rows.csv", "encoding": "latin-1"}
    assert "# color: string, 4 value(s) of the sample" in text


def test_words_with_spaces_between_are_lists_or_names(folder: Path, engine: str) -> None:
    kinds = ["action", "crime", "drama", "horror", "war"]
    number = range(ROWS)
    first, last = ("Ann", "Bob", "Cem", "Dan"), ("Ng", "Ot", "Pi", "Que", "Roe", "Sy", "Tam", "Ur")
    pq.write_table(
        table(
            kinds=[" ".join(k for j, k in enumerate(kinds) if (i % 31 + 1) >> j & 1) for i in number],
            clicks=[" ".join(f"N{j}" for j in range(i % 20, i % 20 + 1 + i % 7)) for i in number],
            people=[f"{first[i % 4]} {last[i // 4 % 8]}" for i in number],
            said=[f"we saw {i % 40} of the kind, and more" for i in number],
            moment=[f"{i % 12 + 1}/14/2019 9:05:{i % 60:02} {'AP'[i % 2]}M" for i in number],
            price=["1,234", "2,345"] * (ROWS // 2),
        ),
        folder / "rows.parquet",
    )
    text = draft("rows.parquet")
    rows = ran(text, folder, engine)
    assert ops_of(text) == {
        "number": ["Normalize"],
        "kinds": ["Lambda", "Categorify"],
        "clicks": ["Lambda", "Categorify"],
        "people": ["Categorify"],
        "said": ["Categorify"],
        "moment": ["Lambda", "DateParts"],
        "price": ["Lambda", "Normalize"],
    }
    assert "# kinds: string, lists of 5 value(s) with ' ' between; if each text is one value" in text
    assert "# moment: string, a time as %m/%d/%Y %I:%M:%S %p" in text
    assert "# price: string, a number with decimal='.', group=','" in text
    assert "it might be decimal=',', too: look which it is" in text
    assert sorted(map(len, rows["clicks"].to_pylist())) == sorted(1 + i % 7 for i in number)
    assert {*rows["moment_hour"].to_pylist()} == {9, 21}


def test_a_column_that_is_constant_in_the_sample_stays(folder: Path, engine: str) -> None:
    text = draft(pa.table({"x": np.arange(50_000.0), "year": [2013] * 50_000}))
    assert ops_of(text)["year"] == ["Categorify"]
    assert "the same value in every row of the sample (if all rows have it, leave it out)" in text


# what it says


@pytest.mark.promise("The draft says which. Read it before you run it.", "flows/README.md#draft-a-job")
def test_it_says_what_is_exact_and_what_is_sampled(folder: Path) -> None:
    number = np.arange(50_000)
    pq.write_table(pa.table({"x": number / 7, "id": number // 2}), folder / "rows.parquet", row_group_size=1000)
    text = draft("rows.parquet")
    assert "# Exact: 50,000 rows, 2 columns, 1 file(s), names and types." in text
    assert "nulls and skewness are those of " in text
    assert "in ranges over all of the\n# source. What the other rows hold is not known here." in text
    assert "no null in the sample" in text
    assert ops_of(text)["x"] == ["FillMissing", "Normalize"]
    few = draft(Dataset(table()))
    assert "# Values, nulls and skewness are exact, too: all rows were read." in few


def test_a_large_vocabulary_gets_a_limit() -> None:
    number = np.arange(12_000)
    text = draft(pa.table({"user_id": number // 2, "x": number / 1.0}))
    (entry,) = [f for f in yaml.safe_load(text)["features"] if f["columns"] == ["user_id"]]
    assert entry["ops"] == [{"op": "Categorify", "freq_threshold": 2, "max_size": 1_000_000}]


@pytest.mark.parametrize(
    ("columns", "label", "labels", "left_out"),
    [
        (["click", "x"], None, ["click"], []),
        (["y", "rating"], None, ["rating"], []),
        (["label", "clicked"], None, ["label"], ["clicked"]),
        (["label", "x"], "x", ["x"], ["label"]),
        (["isFraud", "x"], None, ["isFraud"], []),
        (["Class", "Survived"], None, ["Survived"], []),
        (["default.payment.next.month", "x"], None, ["default.payment.next.month"], []),
        (["x", "z"], None, [], []),
    ],
)
def test_the_label_goes_by_name_and_type(
    columns: list[str], label: str | None, labels: list[str], left_out: list[str]
) -> None:
    text = draft(table(**{name: np.arange(ROWS) % 2 for name in columns}), label)
    assert yaml.safe_load(text)["label"] == labels
    assert [name for name in columns if name not in {*ops_of(text), *labels}] == left_out


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "index"])
def test_the_index_that_pandas_writes_is_no_feature(folder: Path, name: str) -> None:
    (folder / "a.csv").write_text(f"{name},x,y\n0,1.5,a\n1,2.5,b\n2,3.5,a\n")
    text = draft(Dataset(folder / "a.csv"))
    assert ": it looks like the index of a frame: every row has a number of its own" in text
    assert yaml.safe_load(text)["features"][0]["columns"] == ["x"]
    (folder / "b.csv").write_text(f"{name},x,y\n7,1.5,a\n7,2.5,b\n2,3.5,a\n")
    assert name in yaml.safe_load(draft(Dataset(folder / "b.csv")))["features"][0]["columns"]


def test_a_text_that_is_called_label_is_no_label_by_itself() -> None:
    text = draft(table(label=["a", "b"] * 50))
    assert yaml.safe_load(text)["label"] == []
    assert "label" not in ops_of(text)  # it would give the answer away
    assert "#   label: it is named like a label, but is string: if it is the label, say --label label" in text
    assert yaml.safe_load(draft(table(label=["a", "b"] * 50), label="label"))["label"] == ["label"]


def test_what_may_be_secret_is_not_written(folder: Path) -> None:
    pq.write_table(table(), folder / "rows.parquet")
    text = draft(Dataset(f"file://{folder}/rows.parquet", storage_options={"auto_mkdir": False}))
    assert "auto_mkdir" not in text
    assert "storage_options are not written" in text


# errors


def test_wrong_words_are_errors_with_near_names(folder: Path) -> None:
    with pytest.raises(NoInputError, match="there is no input"):
        draft("nowhere")
    with pytest.raises(JobError, match=r"there is no column 'numbr'\n.*\n.*did you mean 'number'"):
        draft(table(), label="numbr")
    with pytest.raises(JobError, match=r"no column is left that could be a feature\n.*never: every value is null"):
        draft(pa.table({"never": pa.nulls(3, pa.int64())}))
    with pytest.raises(DataError, match="no rows"):
        draft(table().slice(0, 0))


@pytest.mark.promise("a first job for data, with the reason of each decision as a comment")
def test_the_command_prints_what_python_gives(folder: Path) -> None:
    pq.write_table(table(click=np.arange(ROWS) % 2), folder / "rows.parquet")
    done = CliRunner().invoke(app, ["new", "rows.parquet"])
    assert (done.exit_code, done.stdout) == (0, draft("rows.parquet"))
    wrong = CliRunner().invoke(app, ["new", "rows.parquet", "--label", "clic"])
    assert wrong.exit_code == 1
    assert "did you mean 'click'?" in wrong.stderr


def test_a_list_of_structs_becomes_rows(folder: Path, engine: str) -> None:
    """Of two such lists none is chosen; one without any element stays a list."""
    sessions = [
        {"session": n, "events": [{"aid": n % 5, "type": "cart" if k else "click"} for k in range(n % 3)]}
        for n in range(60)
    ]
    Path("rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in sessions))
    text = draft("rows.jsonl")
    assert yaml.safe_load(text)["source"] == {"path": "rows.jsonl", "explode": "events"}
    assert "# Exact: 60 rows, 3 columns, 1 file(s), names and types." in text
    assert "  # events has lists of structs: each element is a row, the fields are columns.\n" in text
    assert "60 rows of the files become 60, one for each element of events; 20 have an empty list or null there" in text
    assert ops_of(text).keys() == {"session", "events.aid", "events.type"}
    assert ran(text, folder, engine).num_rows == 60

    two = [{"session": n % 7, "a": [{"x": 1}], "b": [{"x": 2}]} for n in range(60)]
    Path("two.jsonl").write_text("".join(json.dumps(one) + "\n" for one in two))
    text = draft("two.jsonl")
    assert yaml.safe_load(text)["source"] == {"path": "two.jsonl"}
    reason = "the draft has no operator for list<struct<x: int64>>; source.explode makes rows of its elements"
    assert f"#   a: {reason}\n#   b: {reason}\n" in text

    pq.write_table(
        pa.table({"u": [n % 7 for n in range(60)], "x": pa.array([[]] * 60, pa.list_(pa.struct({"y": pa.int64()})))}),
        "none.parquet",
    )
    assert yaml.safe_load(draft("none.parquet"))["source"] == {"path": "none.parquet"}
