"""A draft does not go on against its own evidence; and the dialects and keys that it sees."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from rowmill import Dataset, draft
from rowmill.cli import app
from typer.testing import CliRunner

from flows.draft.draft import DraftError
from flows.draft.readable_files import readable


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_lines(path: Path, bad: int, rows: int) -> None:
    """Write lines of two values, of which the last ones have three."""
    lines = [f"{i % 9},{i / 7:.3f}" for i in range(rows - bad)] + ["1,2,3"] * bad
    path.write_text("\n".join(["item,price", *lines]) + "\n")


# lines that cannot be read


@pytest.mark.promise("If more than one line of a hundred cannot be read, or no column is left")
def test_more_than_one_line_of_a_hundred_is_too_much(folder: Path) -> None:
    write_lines(folder / "few.csv", bad=2, rows=200)
    text = draft("few.csv")
    assert yaml.safe_load(text)["source"] == {"path": "few.csv"}
    assert "  # 2 lines cannot be read: 2 of " in text
    assert "few.csv (the first is line 200: " in text
    assert "  # bad_lines: skip\n" in text
    write_lines(folder / "many.csv", bad=3, rows=200)
    with pytest.raises(DraftError, match=r"3 of 200 lines \(1.5 %\) cannot be read like this") as refused:
        draft("many.csv")
    assert "#   - columns: [price]" in refused.value.draft
    assert yaml.safe_load(refused.value.draft) is None


def test_the_command_writes_a_refused_draft_as_comments(folder: Path) -> None:
    write_lines(folder / "many.csv", bad=50, rows=200)
    done = CliRunner().invoke(app, ["new", "many.csv"])
    assert done.exit_code == 1
    assert "50 of 200 lines (25.0 %) cannot be read like this, so that there is no draft" in done.stderr
    assert {line[0] for line in done.stdout.splitlines()} == {"#"}
    pq.write_table(pa.table({"never": pa.nulls(30, pa.string())}), folder / "rows.parquet")
    done = CliRunner().invoke(app, ["new", "rows.parquet"])
    assert done.exit_code == 1
    assert "no column is left that could be a feature" in done.stderr
    assert "#   never: every value is null" in done.stdout


def test_lines_that_the_job_leaves_out_are_the_users_choice(folder: Path) -> None:
    write_lines(folder / "many.csv", bad=50, rows=200)
    text = draft(Dataset("many.csv", bad_lines="skip"))
    assert yaml.safe_load(text)["source"] == {"path": "many.csv", "bad_lines": "skip"}
    assert "50 lines cannot be read and are left out" in text


def test_the_ratings_of_netflix_are_no_table(folder: Path) -> None:
    draw = Random(3)
    films = [f"{m}:\n" + "".join(f"{draw.randrange(999)},{i % 5},2005-01-06\n" for i in range(50)) for m in range(1, 9)]
    (folder / "combined.txt").write_text("".join(films))
    with pytest.raises(DraftError, match="cannot be read like this"):
        draft("combined.txt")


@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_of_json_says_what_it_is(folder: Path, indent: int | None) -> None:
    rows = [{"a": i, "b": f"x{i % 3}"} for i in range(55)]
    text = json.dumps(rows, indent=indent).replace("}, {", "},\n{")
    (folder / "rows.json").write_text(text)
    done = CliRunner().invoke(app, ["new", "rows.json"])
    assert done.exit_code == 1
    assert "a JSON file has no object on each line" in done.stderr
    assert "begins with an array" in done.stderr


def test_empty_columns_tell_of_a_longer_delimiter(folder: Path) -> None:
    (folder / "ratings.csv").write_text("".join(f"{i % 7}::{i % 5}::{i % 3 + 1}::{i / 7:.2f}\n" for i in range(60)))
    text = draft(Dataset("ratings.csv", delimiter=":", header=False, columns=[*"abcdefg"]))
    assert "Every second column is empty: the file may have :: between its values (delimiter: '::')." in text
    assert "#   b: every value is null" in text


@pytest.mark.promise("or that need another delimiter")
def test_tables_without_headers_are_told_apart(folder: Path) -> None:
    (folder / "ml").mkdir()
    ratings = "".join(f"{i % 7}::{i % 5}::{i % 3 + 1}::{978300760 + i}\n" for i in range(300))
    movies = "".join(f"{i}::Film {i}::War\n" for i in range(5)) + "5::Film 5: the return::Comedy|Drama\n"
    users = "".join(f"{i}::F::{i * 7}::{i % 4}::4806{i}\n" for i in range(7))
    (folder / "ml" / "README").write_text("Ratings of films,\nby their users.\n")
    for name, text in {"movies": movies, "ratings": ratings, "users": users}.items():
        (folder / "ml" / f"{name}.dat").write_text(text)
    text = draft("ml")
    assert yaml.safe_load(text)["source"]["path"] == "ml/ratings.dat"
    assert "# Exact: 300 rows, 4 columns, 1 file(s), names and types." in text
    assert "# ml/README is not read: it is not text in columns." in text
    assert "# ml/movies.dat is another table and not read" in text
    assert "# ml/users.dat is another table and not read" in text


# dialects

QUOTES = ["Clara Callan", 'Peterman "J. Peterman" Life', "A; B"]


def test_escaped_quotes_are_seen(folder: Path) -> None:
    lines = ['"' + '";"'.join([str(i), QUOTES[i % 3].replace('"', '\\"'), str(1990 + i % 10)]) + '"' for i in range(90)]
    (folder / "books.csv").write_text("\n".join(['"ISBN";"Book-Title";"Year"', *lines]) + "\n")
    seen = readable("books.csv")
    assert seen.layout == {"delimiter": ";", "escape": "\\"}
    assert {*seen.sample["Book-Title"].to_pylist()} == {*QUOTES}


def test_escaped_delimiters_are_seen(folder: Path) -> None:
    lines = [f"{i},a\\, b,{i % 7}" if i % 5 else f"{i},c,{i % 7}" for i in range(90)]
    (folder / "rows.csv").write_text("\n".join(["n,words,x", *lines]) + "\n")
    seen = readable("rows.csv")
    assert seen.layout == {"escape": "\\"}
    assert {*seen.sample["words"].to_pylist()} == {"a, b", "c"}


def test_null_of_databases_is_seen_where_a_backslash_escapes(folder: Path) -> None:
    (folder / "rows.csv").write_text('"1","the \\"old\\" one","2"\n"2",\\N,"3"\n' * 30)
    seen = readable("rows.csv")
    assert seen.layout["escape"] == "\\"
    assert seen.layout["null_values"] == ["\\N"]
    assert seen.sample["column_2"].to_pylist()[:2] == ['the "old" one', None]


def test_signs_in_quotes_do_not_count(folder: Path) -> None:
    lines = ['1;"it is; good";2,5', '2;"salt, pepper; oil";3,5', "3;bed;4,5"]
    (folder / "rows.csv").write_text("\n".join(["item;title;price", *lines * 30]) + "\n")
    seen = readable("rows.csv")
    assert seen.layout == {"delimiter": ";", "decimal": ","}
    assert {*seen.sample["title"].to_pylist()} == {"it is; good", "salt, pepper; oil", "bed"}


def test_single_quotes_are_seen(folder: Path) -> None:
    (folder / "rows.csv").write_text("n,words,x\n" + "1,'red, dark',2\n2,it's,3\n" * 30)
    seen = readable("rows.csv")
    assert seen.layout == {"quote": "'"}
    assert {*seen.sample["words"].to_pylist()} == {"red, dark", "it's"}


def test_blanks_between_numbers_are_delimiters(folder: Path) -> None:
    (folder / "rows.txt").write_text("item price color\n" + "".join(f"{i} {i / 7:.2f} c{i % 3}\n" for i in range(60)))
    assert readable("rows.txt").layout == {"format": "csv", "delimiter": " "}


def test_backslashes_that_escape_nothing_are_letters(folder: Path) -> None:
    (folder / "rows.csv").write_text("n,path\n" + '1,"C:\\"\n2,C:\\a\n' * 30)
    assert readable("rows.csv").layout == {}


def test_lines_before_the_header_may_have_the_delimiter(folder: Path) -> None:
    (folder / "rows.csv").write_text(
        "Sales, by week\nOf all, so far, and more, too\nitem,price,town\n" + "1,2.5,x\n" * 60
    )
    assert readable("rows.csv").layout == {"skip_rows": 2}
    (folder / "export.csv").write_text("Report\nJan 1, 2024 - May 30, 2024\nitem,price,town,x\n" + "1,2.5,a,b\n" * 60)
    assert readable("export.csv").layout == {"skip_rows": 2}
    (folder / "sheet.csv").write_text("Report;May;;;\n;;;;\nitem;price;town;x;y\n" + "1;2.5;a;b;c\n" * 60)
    assert readable("sheet.csv").layout == {"delimiter": ";", "skip_rows": 2}
    (folder / "gaps.csv").write_text("item;price;town;x;y\n" + "1;2.5;;;\n" * 30)
    assert readable("gaps.csv").layout == {"delimiter": ";"}
    (folder / "bunch.csv").write_text("60,2,good,bad\n" + "".join(f"{i},{i / 7},3,4,5,{i % 2}\n" for i in range(60)))
    seen = readable("bunch.csv")
    assert seen.layout == {
        "skip_rows": 1,
        "header": False,
        "columns": ["column_1", "column_2", "column_3", "column_4", "column_5", "column_6"],
    }
    assert seen.sample.num_rows == 60


@pytest.mark.parametrize(("sign", "settings"), [(",", {}), (" ", {"format": "csv", "delimiter": " "})])
def test_labels_of_rows_without_a_name_are_a_column(folder: Path, sign: str, settings: dict[str, str]) -> None:
    lines = [sign.join(['"price"', '"town"']), *(sign.join([f'"row {i}"', f"{i}.5", '"x"']) for i in range(60))]
    path = folder / ("r.txt" if settings else "r.csv")
    path.write_text("\n".join(lines) + "\n")
    seen = readable(path.name)
    assert seen.layout == {**settings, "skip_rows": 1, "header": False, "columns": ["row_name", "price", "town"]}
    assert seen.sample["row_name"].to_pylist()[:2] == ["row 0", "row 1"]
    assert seen.sample["price"].to_pylist()[:2] == [0.5, 1.5]


@pytest.mark.parametrize(
    ("line", "delimiter"),
    [("39, State-gov, 77516", ", "), ("39:State-gov:77516", ":"), ("39\x1fState-gov\x1f77516", "\x1f")],
)
def test_delimiters_that_are_seldom(folder: Path, line: str, delimiter: str) -> None:
    (folder / "adult.csv").write_text(f"{delimiter.join(['age', 'class', 'weight'])}\n" + f"{line}\n" * 30)
    seen = readable("adult.csv")
    assert seen.layout == {"delimiter": delimiter}
    assert seen.sample.slice(0, 1).to_pylist() == [{"age": 39, "class": "State-gov", "weight": 77516}]


def test_the_signs_of_times_are_no_delimiters(folder: Path) -> None:
    (folder / "times.csv").write_text("seen\n" + "12:30:45\n" * 30)
    assert "delimiter" not in readable("times.csv").layout
    (folder / "bare.csv").write_text("12:30:45\n" * 30)
    assert "delimiter" not in readable("bare.csv").layout
    (folder / "more.csv").write_text("seen,x,y\n" + "12:30:45,1,2\n" * 30)
    assert "delimiter" not in readable("more.csv").layout


@pytest.mark.promise("Keys of JSON lines with values of several kinds become text by `source.schema`")
def test_keys_of_several_kinds_become_text(folder: Path) -> None:
    rows = [{"asin": f"B{i % 40}", "price": "call" if i == 70 else i * 0.5, "rank": f"{i}" if i % 2 else ["#1"]}
            for i in range(200)]  # fmt: skip
    (folder / "meta.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = yaml.safe_load(draft("meta.jsonl"))["source"]
    assert source == {"path": "meta.jsonl", "schema": {"price": "string", "rank": "string"}}


# several tables


def write_flights(folder: Path) -> None:
    (folder / "air").mkdir()
    flights = pa.table({"year": [2013] * 100, "tailnum": [f"N{i % 50}" for i in range(100)],
                        "carrier": ["UA", "AA"] * 50, "delay": [i / 3 for i in range(100)],
                        "distance": [i * 7.5 for i in range(100)]})  # fmt: skip
    planes = pa.table({"tailnum": [f"N{i}" for i in range(8, 60)], "year": [1960 + i for i in range(52)],
                       "seats": [50 + i % 9 for i in range(52)], "maker": ["x", "y"] * 26})  # fmt: skip
    pq.write_table(flights, folder / "air" / "flights.parquet")
    pq.write_table(planes, folder / "air" / "planes.parquet")


@pytest.mark.promise(
    "by the fewest common columns that are a key of the other table, with the share of rows that match"
)
def test_tables_are_joined_by_the_smallest_key(folder: Path) -> None:
    write_flights(folder)
    text = draft("air")
    assert yaml.safe_load(text)["source"]["path"] == "air/flights.parquet"
    assert "which has each tailnum once; 84.0 % of the 100 rows looked at are in it" in text
    assert (
        "# - {columns: [tailnum], ops: [{op: JoinExternal, table: air/planes.parquet, 'on': [tailnum],"
        " columns: [seats, maker]}], keep: false}" in text
    )


def test_a_table_without_a_key_is_not_joined(folder: Path) -> None:
    write_flights(folder)
    twice = pq.read_table(folder / "air" / "planes.parquet")
    pq.write_table(pa.concat_tables([twice, twice]), folder / "air" / "planes.parquet")
    text = draft("air")
    assert "air/planes.parquet is another table" in text
    assert "JoinExternal" not in text


@pytest.mark.promise("files that have nothing but a few of the columns (keys)")
def test_a_table_of_keys_is_not_put_under_the_others(folder: Path) -> None:
    write_flights(folder)
    (folder / "air" / "planes.parquet").unlink()
    pq.write_table(pa.table({"tailnum": ["N1", "N2"]}), folder / "air" / "wanted.parquet")
    text = draft("air")
    assert yaml.safe_load(text)["source"] == {"path": "air/flights.parquet"}
    assert "# air/wanted.parquet is another table and not read: it has tailnum." in text
