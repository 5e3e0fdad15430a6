"""Text in columns as other programs write it, read as a draft reads it, by DuckDB and by clevercsv without settings.

Each writer writes two tables: plain values, and texts with delimiters, quotes, apostrophes and empty values in them.
Writers are Python's csv module, pandas, Polars, PyArrow, DuckDB and numpy where they are installed; the output of R,
MySQL, PostgreSQL, Hive, Spark, SQLite, Excel and of some portals is written as their documentation says. A file is read
rightly if its names and all its values are those that were written, as texts; empty values and the writer's own text
for null are the same. clevercsv finds no lines before a header, so that these count against it.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import io
import platform
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv

from flows.draft.readable_files import ROW_NAME_COLUMN, readable
from tasks.core.plan import Partition
from tasks.core.schema import Schema
from tasks.engines.convert import libraries
from tasks.sources.reader import read
from tests.bench.record import write_record

ROWS = 150
NULLS = ("", "NA", "NULL", "\\N", "None", "null")
NAMES = ("item", "title", "price", "day", "stars")
COLORS = ("red", "dark blue", "green", "grey")
PLAIN = ("chair", "table", "lamp", "bed")
SPECIAL = ("chair, red", 'the "old" one', "it's; good", "a|b", "Müller", "", "5 inch", "salt, pepper; oil")


@dataclass(frozen=True)
class Written:
    """A file as it was written: its bytes, the end of its name, and its table; no names where it has no header."""

    data: bytes
    suffix: str
    names: tuple[str, ...] | None
    rows: tuple[tuple[str, ...], ...]


Rows = tuple[tuple[str, ...], ...]
WRITERS: dict[str, Callable[[Rows], Written]] = {}


def make_rows(titles: Sequence[str]) -> Rows:
    start = date(2024, 1, 1)
    return tuple(
        (
            str(number + 1),
            titles[number % len(titles)],
            f"{(number * 7 % 101) + 0.25:.2f}",
            (start + timedelta(days=number)).isoformat(),
            str(number * 5 % 9),
        )
        for number in range(ROWS)
    )


def frame_of(rows: Rows) -> pd.DataFrame:
    """The table with types."""
    item, title, price, day, stars = zip(*rows, strict=True)
    columns = [[*map(int, item)], [text or None for text in title], [*map(float, price)], day, [*map(int, stars)]]
    return pd.DataFrame(dict(zip(NAMES, columns, strict=True)))


def as_numbers(rows: Rows) -> Rows:
    """The rows as a writer of numbers writes them: 0.5 for 0.50."""
    return tuple((a, b, str(float(c)), d, e) for a, b, c, d, e in rows)


def with_commas(rows: Rows) -> Rows:
    return tuple((a, b, c.replace(".", ","), d, e) for a, b, c, d, e in rows)


def writer(function: Callable[[Rows], Written]) -> Callable[[Rows], Written]:
    WRITERS[function.__name__] = function
    return function


def write_lines(rows: Sequence[Sequence[str]], **settings: Any) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, **settings).writerows(rows)
    return text.getvalue()


def add_csv_module(
    name: str, suffix: str = "csv", encoding: str = "utf-8", header: bool = True, **settings: Any
) -> None:
    def write(rows: Rows) -> Written:
        text = write_lines([NAMES, *rows] if header else rows, **settings)
        return Written(text.encode(encoding), suffix, NAMES if header else None, rows)

    WRITERS[f"csv_{name}"] = write


add_csv_module("excel")
add_csv_module("excel_tab", "tsv", dialect="excel-tab")
add_csv_module("tab_in_csv", dialect="excel-tab")
add_csv_module("unix", dialect="unix")
add_csv_module("nonnumeric", quoting=csv.QUOTE_NONNUMERIC)
add_csv_module("semicolon", delimiter=";")
add_csv_module("pipe", "txt", delimiter="|")
add_csv_module("colon", delimiter=":")
add_csv_module("caret", delimiter="^")
add_csv_module("tilde", delimiter="~")
add_csv_module("apostrophes", quotechar="'")
add_csv_module("backslashes", escapechar="\\", doublequote=False)
add_csv_module("backslash_no_quotes", escapechar="\\", quoting=csv.QUOTE_NONE)
add_csv_module("backslash_pipe_no_quotes", escapechar="\\", quoting=csv.QUOTE_NONE, delimiter="|")
add_csv_module("all_quoted_semicolon", delimiter=";", quoting=csv.QUOTE_ALL)
add_csv_module("line_feed", lineterminator="\n")
add_csv_module("no_header", header=False)
add_csv_module("no_header_tab", "tsv", header=False, dialect="excel-tab")
add_csv_module("utf_16", encoding="utf-16")
add_csv_module("latin_1", encoding="latin-1")
add_csv_module("windows_1252_semicolon", encoding="windows-1252", delimiter=";")
add_csv_module("bom", encoding="utf-8-sig")
add_csv_module("ascii_separators", "txt", delimiter="\x1f")
add_csv_module("no_suffix", "", delimiter=";")
add_csv_module("data_suffix", "data", header=False)


def add_pandas(name: str, decimal: str = ".", header: bool = True, encoding: str = "utf-8", **settings: Any) -> None:
    def write(rows: Rows) -> Written:
        text = frame_of(rows).to_csv(decimal=decimal, header=header, **settings)
        there = as_numbers(rows)
        names: tuple[str, ...] = NAMES
        if settings.get("index", True):
            names = ("", *NAMES)
            there = tuple((str(number), *row) for number, row in enumerate(there))
        if decimal == ",":
            there = tuple(tuple(v.replace(".", ",") if is_price(v) else v for v in row) for row in there)
        return Written(text.encode(encoding), "csv", names if header else None, there)

    WRITERS[f"pandas_{name}"] = write


def is_price(text: str) -> bool:
    return text.replace(".", "", 1).isdigit() and "." in text


add_pandas("default")
add_pandas("no_index", index=False)
add_pandas("european", index=False, sep=";", decimal=",")
add_pandas("european_index", sep=";", decimal=",")
add_pandas("european_tab", index=False, sep="\t", decimal=",")
add_pandas("european_comma", index=False, decimal=",")
add_pandas("na_rep", index=False, na_rep="NA")
add_pandas("no_header", index=False, header=False)
add_pandas("quote_all", index=False, quoting=csv.QUOTE_ALL)
add_pandas("nonnumeric_semicolon", index=False, quoting=csv.QUOTE_NONNUMERIC, sep=";")
add_pandas("escape", index=False, escapechar="\\", doublequote=False)
add_pandas("blank", index=False, sep=" ")
add_pandas("utf_16_tab", index=False, sep="\t", encoding="utf-16")


def add_polars(name: str, decimal: str = ".", header: bool = True, **settings: Any) -> None:
    def write(rows: Rows) -> Written:
        text = pl.from_pandas(frame_of(rows)).write_csv(decimal_comma=decimal == ",", include_header=header, **settings)
        there = as_numbers(rows)
        return Written(text.encode(), "csv", NAMES if header else None, with_commas(there) if decimal == "," else there)

    WRITERS[f"polars_{name}"] = write


add_polars("default")
add_polars("bom", include_bom=True)
add_polars("always", quote_style="always")
add_polars("non_numeric", quote_style="non_numeric")
add_polars("tab", separator="\t")
add_polars("european", separator=";", decimal=",")
add_polars("null_value", null_value="NULL")
add_polars("no_header_pipe", separator="|", header=False)
add_polars("apostrophes", quote_char="'")


def add_pyarrow(name: str, **settings: Any) -> None:
    def write(rows: Rows) -> Written:
        sink = pa.BufferOutputStream()
        options = pacsv.WriteOptions(**settings)
        pacsv.write_csv(pa.Table.from_pandas(frame_of(rows), preserve_index=False), sink, options)
        header = settings.get("include_header", True)
        return Written(sink.getvalue().to_pybytes(), "csv", NAMES if header else None, as_numbers(rows))

    WRITERS[f"pyarrow_{name}"] = write


add_pyarrow("default")
add_pyarrow("all_valid", quoting_style="all_valid")
add_pyarrow("semicolon", delimiter=";")
add_pyarrow("no_header_tab", delimiter="\t", include_header=False)


def add_duckdb(name: str, settings: str, header: bool = True) -> None:
    def write(rows: Rows) -> Written:
        with tempfile.TemporaryDirectory() as folder, duckdb.connect() as connection:
            path = Path(folder) / "x.csv"
            connection.register("frame", frame_of(rows))
            connection.execute(f"COPY (FROM frame) TO '{path}' ({settings})").fetchall()
            return Written(path.read_bytes(), "csv", NAMES if header else None, as_numbers(rows))

    WRITERS[f"duckdb_{name}"] = write


add_duckdb("default", "FORMAT csv")
add_duckdb("pipe_no_header", "FORMAT csv, DELIMITER '|', HEADER false", header=False)
add_duckdb("escape", "FORMAT csv, ESCAPE '\\', FORCE_QUOTE *")
add_duckdb("apostrophes", "FORMAT csv, QUOTE '''', ESCAPE ''''")
add_duckdb("tab_null", "FORMAT csv, DELIMITER '\t', NULLSTR '\\N'")
add_duckdb("semicolon", "FORMAT csv, DELIMITER ';', FORCE_QUOTE (title)")


# As the documentation of other programs says


def quote_text(text: str, escaped: str = '""') -> str:
    return '"' + text.replace('"', escaped) + '"'


def join_r(rows: Rows, sign: str, escaped: str) -> list[str]:
    quoted = [(a, quote_text(b, escaped) if b else "NA", c, quote_text(d, escaped), e) for a, b, c, d, e in rows]
    return [sign.join(row) for row in quoted]


@writer
def r_write_csv(rows: Rows) -> Written:
    lines = [f'"{number}",{line}' for number, line in enumerate(join_r(rows, ",", '""'), 1)]
    head = ",".join(map(quote_text, ("", *NAMES)))
    there = tuple((str(number), *row) for number, row in enumerate(rows, 1))
    return Written(("\n".join([head, *lines]) + "\n").encode(), "csv", ("", *NAMES), there)


@writer
def r_write_csv2(rows: Rows) -> Written:
    there = with_commas(rows)
    head = ";".join(map(quote_text, NAMES))
    text = "\n".join([head, *join_r(there, ";", '""')]) + "\n"
    return Written(text.encode(), "csv", NAMES, there)


@writer
def r_write_table(rows: Rows) -> Written:
    lines = [f'"{number}" {line}' for number, line in enumerate(join_r(rows, " ", '\\"'), 1)]
    there = tuple((str(number), *row) for number, row in enumerate(rows, 1))
    return Written(("\n".join([" ".join(map(quote_text, NAMES)), *lines]) + "\n").encode(), "txt", ("*", *NAMES), there)


@writer
def r_write_table_sep_comma(rows: Rows) -> Written:
    lines = [f'"{number}",{line}' for number, line in enumerate(join_r(rows, ",", '\\"'), 1)]
    there = tuple((str(number), *row) for number, row in enumerate(rows, 1))
    return Written(("\n".join([",".join(map(quote_text, NAMES)), *lines]) + "\n").encode(), "csv", ("*", *NAMES), there)


@writer
def r_write_table_tab_no_quotes(rows: Rows) -> Written:
    lines = ["\t".join(value or "NA" for value in row) for row in [NAMES, *rows]]
    return Written(("\n".join(lines) + "\n").encode(), "tsv", NAMES, rows)


@writer
def tsv_with_quotes_as_letters(rows: Rows) -> Written:
    titled = tuple((a, f'"{b}" she said' if b else b, c, d, e) for a, b, c, d, e in rows)
    return Written(("\n".join("\t".join(row) for row in [NAMES, *titled]) + "\n").encode(), "tsv", NAMES, titled)


def escape_text(text: str, signs: str) -> str:
    if not text:
        return "\\N"
    return "".join(f"\\{letter}" if letter in signs else letter for letter in text)


@writer
def mysql_outfile(rows: Rows) -> Written:
    lines = ["\t".join(escape_text(value, "\\\t") for value in row) for row in rows]
    return Written(("\n".join(lines) + "\n").encode(), "txt", None, rows)


@writer
def mysql_outfile_enclosed(rows: Rows) -> Written:
    lines = [",".join(f'"{escape_text(v, chr(34) + chr(92))}"' if v else "\\N" for v in row) for row in rows]
    return Written(("\n".join(lines) + "\n").encode(), "csv", None, rows)


@writer
def mysql_batch(rows: Rows) -> Written:
    lines = ["\t".join(value or "NULL" for value in row) for row in [NAMES, *rows]]
    return Written(("\n".join(lines) + "\n").encode(), "tsv", NAMES, rows)


@writer
def postgres_copy_text(rows: Rows) -> Written:
    return mysql_outfile(rows)


@writer
def postgres_copy_csv_header(rows: Rows) -> Written:
    text = write_lines([NAMES, *rows], lineterminator="\n", delimiter="|")
    return Written(text.encode(), "csv", NAMES, rows)


@writer
def hive_text(rows: Rows) -> Written:
    return Written(("\n".join("\x01".join(v or "\\N" for v in row) for row in rows) + "\n").encode(), "", None, rows)


@writer
def spark_csv(rows: Rows) -> Written:
    def quote(value: str) -> str:
        return quote_text(value, '\\"') if any(sign in value for sign in ',"\n') else value

    lines = [",".join(quote(value) for value in row) for row in [NAMES, *rows]]
    return Written(("\n".join(lines) + "\n").encode(), "csv", NAMES, rows)


@writer
def sqlite_list(rows: Rows) -> Written:
    safe = tuple((a, b.replace("|", "/"), c, d, e) for a, b, c, d, e in rows)
    return Written(("\n".join("|".join(row) for row in safe) + "\n").encode(), "txt", None, safe)


@writer
def excel_sep_line(rows: Rows) -> Written:
    text = "sep=;\r\n" + write_lines([NAMES, *with_commas(rows)], delimiter=";")
    return Written(text.encode("utf-8-sig"), "csv", NAMES, with_commas(rows))


@writer
def excel_unicode_text(rows: Rows) -> Written:
    return Written(write_lines([NAMES, *rows], dialect="excel-tab").encode("utf-16"), "txt", NAMES, rows)


@writer
def excel_german(rows: Rows) -> Written:
    days = tuple((a, b, c, date.fromisoformat(d).strftime("%d.%m.%Y"), e) for a, b, c, d, e in with_commas(rows))
    return Written(write_lines([NAMES, *days], delimiter=";").encode("windows-1252"), "csv", NAMES, days)


@writer
def preface_of_comments(rows: Rows) -> Written:
    head = "# Station 12, hourly values\n# Units: C, mm\n#\n"
    return Written((head + write_lines([NAMES, *rows])).encode(), "csv", NAMES, rows)


@writer
def preface_of_a_portal(rows: Rows) -> Written:
    head = '"Data Source","World Development Indicators",\r\n\r\n"Last Updated Date","2024-05-30",\r\n\r\n'
    return Written((head + write_lines([NAMES, *rows], quoting=csv.QUOTE_ALL)).encode(), "csv", NAMES, rows)


@writer
def preface_of_an_export(rows: Rows) -> Written:
    head = "Campaign report\nJan 1, 2024 - May 30, 2024\n"
    return Written((head + write_lines([NAMES, *rows])).encode(), "csv", NAMES, rows)


@writer
def preface_semicolons(rows: Rows) -> Written:
    head = "Bericht;Mai;;;\r\n;;;;\r\n"
    there = with_commas(rows)
    return Written((head + write_lines([NAMES, *there], delimiter=";")).encode("latin-1"), "csv", NAMES, there)


@writer
def preface_without_header(rows: Rows) -> Written:
    head = f"{len(rows)},2,good,bad\n"  # as the files of scikit-learn begin
    numbers = tuple((c, e, a, *(str(int(a) * k % 7 + 0.5) for k in (1, 2, 3))) for a, _, c, _, e in rows)
    return Written((head + write_lines(numbers)).encode(), "csv", None, numbers)


@writer
def comment_before_names(rows: Rows) -> Written:
    names = ("# item", *NAMES[1:])
    return Written(write_lines([names, *rows]).encode(), "csv", names, rows)


@writer
def numpy_savetxt(rows: Rows) -> Written:
    text = io.StringIO()
    numbers = np.array([[float(a), float(c), float(e)] for a, _, c, _, e in rows])
    np.savetxt(text, numbers, fmt="%.2f")
    there = tuple(tuple(f"{value:.2f}" for value in row) for row in numbers)
    return Written(text.getvalue().encode(), "txt", None, there)


@writer
def numpy_savetxt_scientific(rows: Rows) -> Written:
    text = io.StringIO()
    numbers = np.array([[float(a), float(c), float(e)] for a, _, c, _, e in rows])
    np.savetxt(text, numbers, delimiter=",")
    return Written(text.getvalue().encode(), "csv", None, tuple(tuple(f"{v:.18e}" for v in row) for row in numbers))


@writer
def two_colons(rows: Rows) -> Written:
    return Written(("\n".join("::".join(row) for row in rows) + "\n").encode("latin-1"), "dat", None, rows)


@writer
def comma_and_blank(rows: Rows) -> Written:
    safe = tuple((a, b.replace(",", "").replace('"', ""), c, d, e) for a, b, c, d, e in rows)
    return Written(("\n".join(", ".join(row) for row in [NAMES, *safe]) + "\n").encode(), "csv", NAMES, safe)


@writer
def trailing_commas(rows: Rows) -> Written:
    there = tuple((*row, "") for row in rows)
    return Written(write_lines([(*NAMES, ""), *there]).encode(), "csv", (*NAMES, ""), there)


@writer
def thousands_quoted(rows: Rows) -> Written:
    there = tuple((a, b, f"{float(c) * 1000:,.2f}", d, e) for a, b, c, d, e in rows)
    return Written(write_lines([NAMES, *there]).encode(), "csv", NAMES, there)


@writer
def line_ends_in_values(rows: Rows) -> Written:
    there = tuple((a, f"{b}\nsecond line, of {a}", c, d, e) for a, b, c, d, e in rows)
    return Written(write_lines([NAMES, *there]).encode(), "csv", NAMES, there)


# Written after the draft was made to read those above, and left as they are


@writer
def later_analytics_export(rows: Rows) -> Written:
    head = f"# {'-' * 40}\n# All Web Site Data\n# Pages, by day\n# 20240101-20240530\n# {'-' * 40}\n\n"
    return Written((head + write_lines([NAMES, *rows])).encode(), "csv", NAMES, rows)


@writer
def later_variants(rows: Rows) -> Written:
    head = '##fileformat=VCFv4.2\n##INFO=<ID=DP,Number=1,Description="Total depth">\n'
    names = ("#item", *NAMES[1:])
    lines = ["\t".join(value or "." for value in row) for row in [names, *rows]]
    there = tuple(tuple(value or "." for value in row) for row in rows)
    return Written((head + "\n".join(lines) + "\n").encode(), "tsv", names, there)


@writer
def later_mysql_semicolon_header(rows: Rows) -> Written:
    lines = [";".join(f'"{escape_text(v, chr(34) + chr(92))}"' if v else "\\N" for v in row) for row in [NAMES, *rows]]
    return Written(("\r\n".join(lines) + "\r\n").encode(), "csv", NAMES, rows)


@writer
def later_clickhouse_tab_separated(rows: Rows) -> Written:
    lines = ["\t".join(escape_text(value, "\\\t'") for value in row) for row in [NAMES, *rows]]
    return Written(("\n".join(lines) + "\n").encode(), "tsv", NAMES, rows)


@writer
def later_apostrophes_semicolon_commas(rows: Rows) -> Written:
    there = with_commas(rows)
    text = write_lines([NAMES, *there], delimiter=";", quotechar="'", lineterminator="\n")
    return Written(text.encode(), "csv", NAMES, there)


@writer
def later_utf_16_without_mark(rows: Rows) -> Written:
    return Written(write_lines([NAMES, *rows]).encode("utf-16-le"), "csv", NAMES, rows)


@writer
def later_sep_line_of_tabs(rows: Rows) -> Written:
    return Written(("sep=\t\r\n" + write_lines([NAMES, *rows], dialect="excel-tab")).encode(), "csv", NAMES, rows)


@writer
def later_tab_behind_each_line(rows: Rows) -> Written:
    lines = ["\t".join(row) + "\t" for row in [NAMES, *rows]]
    there = tuple((*row, "") for row in rows)
    return Written(("\n".join(lines) + "\n").encode(), "tsv", (*NAMES, ""), there)


@writer
def later_fixed_width(rows: Rows) -> Written:
    safe = tuple((a, b.replace(" ", "_") or "-", c, d, e) for a, b, c, d, e in rows)
    lines = [f"{a:>5}  {b:<20} {c:>8}  {d}  {e:>5}" for a, b, c, d, e in [NAMES, *safe]]
    return Written(("\n".join(lines) + "\n").encode(), "txt", NAMES, safe)


@writer
def later_markdown_of_psql(rows: Rows) -> Written:
    safe = tuple((a, b.replace("|", "/"), c, d, e) for a, b, c, d, e in rows)
    lines = [" | ".join(row) for row in [NAMES, *safe]]
    return Written(("\n".join(lines) + "\n").encode(), "txt", NAMES, safe)


@writer
def later_source_below(rows: Rows) -> Written:
    text = write_lines([NAMES, *rows]) + "Source: the office of statistics\r\n"
    return Written(text.encode(), "csv", NAMES, rows)


# Readers

Table = tuple[tuple[str, ...] | None, Rows]


def read_as_drafted(path: Path) -> Table:
    seen = readable(str(path))
    if seen.refused:
        raise seen.refused
    plan = seen.data.plan
    texts = Schema(replace(column, dtype=pa.string()) for column in plan.schema.columns)
    data = seen.data.in_types(replace(plan, schema=texts))
    table = libraries.decode_dictionaries(read(data.handle, Partition(0, data.plan.blocks), [*texts]))
    is_named = seen.layout.get("header", True) or ROW_NAME_COLUMN in table.column_names
    names = tuple(table.column_names) if is_named else None
    return names, tuple(zip(*(column.to_pylist() for column in table.columns), strict=True))


def read_by_duckdb(path: Path) -> Table:
    with duckdb.connect() as connection:
        header = connection.execute(f"SELECT HasHeader FROM sniff_csv('{path}')").fetchall()[0][0]
        rows = connection.execute(f"SELECT * FROM read_csv('{path}', all_varchar=true)").fetchall()
        names = tuple(column[0] for column in connection.description or ())
    return names if header else None, tuple(rows)


def read_by_clevercsv(path: Path) -> Table:
    clevercsv = importlib.import_module("clevercsv")
    text = path.read_text(encoding=clevercsv.encoding.get_encoding(str(path)), errors="replace").removeprefix("\ufeff")
    dialect = clevercsv.Sniffer().sniff(text)
    rows = [tuple(row) for row in clevercsv.reader(io.StringIO(text, newline=""), dialect) if row]
    return (rows[0], tuple(rows[1:])) if clevercsv.Sniffer().has_header(text) else (None, tuple(rows))


def find_difference(written: Written, got: Table) -> str:
    """What is wrong with a table that was read; "" if nothing is."""
    names, rows = got
    if (names is None) != (written.names is None):
        return "header"
    if len(rows) != len(written.rows):
        return f"{len(rows)} rows"
    if len(rows[0]) != len(written.rows[0]):
        return f"{len(rows[0])} columns"
    if names and written.names and any(w not in ("*", "", n) for n, w in zip(names, written.names, strict=True)):
        return f"names {names}"
    for want, row in zip(written.rows, rows, strict=True):
        for text, value in zip(want, row, strict=True):
            if value != text and not {value or "", text} <= {*NULLS}:
                return f"{value!r} for {text!r}"
    return ""


def compare(folder: Path, readers: Mapping[str, Callable[[Path], Table]]) -> dict[str, dict[str, str]]:
    """What each reader has wrong in each file."""
    result: dict[str, dict[str, str]] = {}
    for kind, titles in (("plain", PLAIN), ("texts", SPECIAL)):
        for name, write in WRITERS.items():
            written = write(make_rows(titles))
            path = folder / "-".join(filter(None, (name, kind)))
            if written.suffix:
                path = path.with_suffix(f".{written.suffix}")
            path.write_bytes(written.data)
            wrong = {}
            for reader, read_file in readers.items():
                try:
                    wrong[reader] = find_difference(written, read_file(path))
                except Exception as error:
                    wrong[reader] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
            result[path.name] = wrong
    return result


def count_right(files: Mapping[str, Mapping[str, str]], readers: Iterable[str], later: bool) -> dict[str, int]:
    """How many files each reader read rightly, of those that were there while the draft was changed, or of the later
    ones."""
    chosen = [wrong for name, wrong in files.items() if name.startswith("later") == later]
    return {reader: sum(not wrong[reader] for wrong in chosen) for reader in readers}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the files are written and kept")
    parser.add_argument("--out", type=Path, help="the JSON file; without it the result is printed")
    options = parser.parse_args(arguments)
    readers: dict[str, Callable[[Path], Table]] = {"rowmill": read_as_drafted, "duckdb": read_by_duckdb}
    if importlib.util.find_spec("clevercsv"):
        readers["clevercsv"] = read_by_clevercsv
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        files = compare(folder, readers)
    summary = {
        "command": "python -m tests.bench.dialects",
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in readers if name != "rowmill"}
        | {name: version(name) for name in ("pandas", "polars", "pyarrow", "numpy")},
        "files": sum(not name.startswith("later") for name in files),
        "right": count_right(files, readers, later=False),
        "later_files": sum(name.startswith("later") for name in files),
        "later_right": count_right(files, readers, later=True),
        "wrong": {
            name: {r: what for r, what in wrong.items() if what} for name, wrong in files.items() if any(wrong.values())
        },
    }
    write_record(summary, options.out)


if __name__ == "__main__":
    main()
