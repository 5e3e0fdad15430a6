"""How text is written by other programs: signs that were not told are errors that name them, and all pairs of keys."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tasks.core.plan import Limits
from tasks.core.settings import Source
from tasks.errors import DataError
from tasks.sources.bad_lines import bad_lines_of
from tasks.sources.formats import readable_lines
from tasks.sources.formats.readable_lines import DelimitedSieve, complete, with_one_null
from tasks.sources.formats.record_ends import Dialect
from tasks.sources.planning import make_plan
from tasks.sources.reader import read


def plan_of(path: Path, range_bytes: int = 2**20, **source: Any) -> Any:
    return make_plan(Source(path=str(path), **source), limits=Limits(join_below=1, range_bytes=range_bytes))


def rows(path: Path, range_bytes: int = 2**20, **source: Any) -> dict[str, list[Any]]:
    plan = plan_of(path, range_bytes, **source)
    return pa.concat_tables([read(plan, i) for i in range(len(plan.partitions))]).to_pydict()


# quotes

TORN = "a value of a text file goes on after its closing quote"
OPEN = "a quote of a text file is not closed"
COUNT = "a text file cannot be parsed"
# text of columns i and v, the error, its advice, the settings that the advice names, the values with them
TOLD = [
    ('1,"say \\"hi\\""\n2,x\n', TORN, 'source.escape: "\\\\"', {"escape": "\\"}, ['say "hi"', "x"]),
    ('1,"say \\" hi"\n2,x\n', TORN, 'source.escape: "\\\\"', {"escape": "\\"}, ['say " hi', "x"]),
    ('1,"a\\", b"\n2,x\n', COUNT, 'source.escape: "\\\\"', {"escape": "\\"}, ['a", b', "x"]),
    ('1,"\\""\n2,x\n', OPEN, 'source.escape: "\\\\"', {"escape": "\\"}, ['"', "x"]),
    ("1,a\\, b\n2,x\n", COUNT, 'source.escape: "\\\\"', {"escape": "\\"}, ["a, b", "x"]),
    ('1,"a" of b\n2,x\n', TORN, 'source.quote: ""', {"quote": ""}, ['"a" of b', "x"]),
    ('1,"5 inch\n2,x\n', OPEN, 'source.quote: ""', {"quote": ""}, ['"5 inch', "x"]),
    ("1,'a, b'\n2,x\n", COUNT, 'source.quote: "\'"', {"quote": "'"}, ["a, b", "x"]),
]  # fmt: skip


@pytest.mark.promise("`a value of a text file goes on after its closing quote`")
@pytest.mark.promise("has letters after a closing quote")
@pytest.mark.parametrize("range_bytes", [3, 2**20])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("text", "error", "advice", "settings", "values"), TOLD)
def test_a_line_of_another_dialect_is_an_error_that_names_the_setting(
    text: str, error: str, advice: str, settings: dict[str, str], values: list[str], packed: bool, range_bytes: int,
    tmp_path: Path,
) -> None:  # fmt: skip
    data = b"i,v\n0,y\n" + text.encode()
    path = tmp_path / ("a.csv.gz" if packed else "a.csv")
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(DataError, match=error) as refused:
        rows(path, range_bytes)
    assert "line 3" in refused.value.where
    assert refused.value.do.startswith(f"set {advice}")
    assert rows(path, range_bytes, **settings) == {"i": [0, 1, 2], "v": ["y", *values]}
    left = rows(path, range_bytes, bad_lines="skip")
    assert [int(i) for i in left["i"]] == ([0] if error == OPEN else [0, 2])


@pytest.mark.parametrize("range_bytes", [3, 5, 2**20])
def test_blanks_may_follow_a_closing_quote(range_bytes: int, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'"i" ,v\n1,"a" \n"2"\t,"b, c"  \r\n3,"d" ')
    read_rows = rows(tmp_path / "a.csv", range_bytes, schema={"i ": "string", "v": "string"})
    assert read_rows == {"i ": ["1", "2\t", "3"], "v": ["a ", "b, c  ", "d "]}
    (tmp_path / "a.csv").write_bytes(b'"i"\t"v"\n"1" \t"a"\n"2"\t"b"  \t\n')
    assert rows(tmp_path / "a.csv", range_bytes, delimiter="\t", columns=["i", "v"], skip_rows=1, bad_lines="skip") == {
        "i": [1], "v": ["a"],
    }  # fmt: skip


def test_a_header_of_another_dialect_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('"the \\"i\\"",v\n1,2\n')
    with pytest.raises(DataError, match=TORN) as refused:
        rows(tmp_path)
    assert refused.value.do.startswith('set source.escape: "\\\\"')
    assert rows(tmp_path, escape="\\") == {'the "i"': [1], "v": [2]}


# headers


@pytest.mark.promise("`the header of a text file is there again`")
@pytest.mark.promise("has the names of the columns again")
@pytest.mark.parametrize("range_bytes", [1, 5, 8, 2**20])
@pytest.mark.parametrize("kind", ["plain", "gzip", "utf-16", "escape", "comment", "CR", "quoted", "BOM", "several"])
def test_the_header_in_the_middle_is_a_bad_line(kind: str, range_bytes: int, tmp_path: Path) -> None:
    signs: dict[str, Any] = {
        "utf-16": {"encoding": "utf-16"}, "escape": {"escape": "!"}, "comment": {"comment": "#"},
        "several": {"delimiter": "::"},
    }.get(kind, {})  # fmt: skip
    again = {"quoted": '"id","b c"', "BOM": "\ufeffid,b c"}.get(kind, "id,b c")
    text = f'id,b c\n1,x\n\n2,"\nid,b c\n"\n{again}\n3,id\n4,b c\n{again}'
    text = text.replace(",", "::") if kind == "several" else text
    text = text.replace("\n", "\r") if kind == "CR" else text
    data = text.encode("utf-16" if kind == "utf-16" else "utf-8")
    path = tmp_path / ("a.csv.gz" if kind == "gzip" else "a.csv")
    path.write_bytes(gzip.compress(data) if kind == "gzip" else data)
    with pytest.raises(DataError, match="the header of a text file is there again") as refused:
        plan_of(path, range_bytes, **signs)
    assert refused.value.where == f"{path}, line 7"
    assert refused.value.do == "remove the line; or leave such lines out, source.bad_lines: skip"
    plan = plan_of(path, range_bytes, bad_lines="skip", **signs)
    (bad,) = bad_lines_of(plan)
    assert (bad["count"], bad["line"], bad["why"]) == (2, 7, "the header again")
    inside = text[text.index('"') + 1 :].partition('"')[0]
    found = pa.concat_tables([read(plan, i) for i in range(len(plan.partitions))]).to_pydict()
    assert found == {"id": [1, 2, 3, 4], "b c": ["x", inside, "id", "b c"]}


def test_names_that_were_given_are_no_values(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    with pytest.raises(DataError, match="the header of a text file is there again") as refused:
        rows(tmp_path, columns=["x", "y"])
    assert refused.value.do.startswith("if it is the header, source.skip_rows: 1; else remove the line")
    assert rows(tmp_path, columns=["x", "y"], skip_rows=1) == {"x": [1], "y": [2]}
    assert rows(tmp_path, columns=["x", "z"]) == {"x": ["x", "1"], "z": ["y", "2"]}


def test_of_one_column_its_name_is_a_value(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("word\nthe\nword\n")
    assert rows(tmp_path) == {"word": ["the", "word"]}


@pytest.mark.parametrize(
    ("text", "signs", "names", "row"),
    [
        ('"a" "b"\n"1" 5 "x y"\n"2" 6 "it\'s"\n', {"delimiter": " "}, ["row", "a", "b"], [1, 5, "x y"]),
        ("t\na,b\n1,5,x\n2,6,y\n", {"skip_rows": 1}, ["row", "a", "b"], [1, 5, "x"]),
        ("a,b\n1,x,\n2,y,\n", {}, ["a", "b", "_end"], [1, "x", None]),
    ],
)
def test_a_header_with_a_name_too_few_is_an_error_that_says_it(
    text: str, signs: dict[str, Any], names: list[str], row: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match="a text file cannot be parsed") as refused:
        rows(tmp_path, **signs)
    skip = 1 + signs.get("skip_rows", 0)
    listed = ", ".join(f'"{name}"' for name in names)
    assert refused.value.do.endswith(f": source.columns: [{listed}] and source.skip_rows: {skip}")
    found = rows(tmp_path, **{**signs, "columns": names, "skip_rows": skip})
    assert [found[name][0] for name in names] == row
    with pytest.raises(DataError, match="no rows at all") as refused:
        rows(tmp_path, bad_lines="skip", **signs)
    assert refused.value.why.endswith("3 values, 2 columns")


# null


@pytest.mark.promise(
    "A text with the escape, such as `\\N` of MySQL, Hive and ClickHouse, is compared with values as they are written"
)
@pytest.mark.parametrize("range_bytes", [3, 2**20])
@pytest.mark.parametrize("signs", [{}, {"quote": ""}, {"delimiter": "::"}, {"bad_lines": "skip"}, {"comment": "#"}])
def test_null_may_be_written_with_the_escape(signs: dict[str, str], range_bytes: int, tmp_path: Path) -> None:
    lines = ["i,v", "1,\\N", "\\N,x", "2,\\\\N", "\\N,\\N", "3,a\\,\\N", "4,\\\\", "5,N", "6,a\\\n\\N", "\\N,\\N"]
    delimiter = signs.get("delimiter", ",")
    text = "\n".join(lines).replace("\\,", "\\:\\:" if delimiter == "::" else "\\,")
    text = text.replace(",", delimiter) if delimiter != "," else text
    (tmp_path / "a.csv").write_text(text)
    found = rows(tmp_path / "a.csv", range_bytes, escape="\\", null_values=["\\N"], **signs)
    assert found["i"] == [1, None, 2, None, 3, 4, 5, 6, None]
    assert found["v"] == [None, "x", "\\N", None, f"a{delimiter}N", "\\", "N", "a\nN", None]


def test_null_with_the_escape_among_quotes(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('i,v\n1,"\\N"\n\\N,"x,\\N,y"\n2,"say \\"\n\\N,\\N"\n3,5"\n4,\\N\n')
    found = rows(tmp_path, escape="\\", null_values=["\\N"])
    assert found == {"i": [1, None, 2, 3, 4], "v": [None, "x,N,y", 'say "\nN,N', '5"', None]}


# pairs of all keys

KEYS: dict[str, list[Any]] = {
    "delimiter": [";", "\t", "::"], "quote": ["'", ""], "escape": ["\\", "^"], "comment": ["#"], "columns": [True],
    "skip_rows": [2], "skip_initial_space": [True], "decimal": [","], "encoding": ["utf-16", "gbk"],
    "null_values": [["\\N"], ["NULL", "-"]], "bad_lines": ["skip"],
}  # fmt: skip
NAMES = ["id", "price", "text"]
ROWS: list[tuple[int, float | None, str | None]] = [
    (1, 1.5, "plain"), (2, None, "a,b;c::d\te"), (3, -0.25, 'say "hi"'), (4, 2.0, "it's"), (5, 1000.0, "back\\slash"),
    (6, 0.5, None), (7, 3.0, "line\nbreak"), (8, 4.0, "# no comment"), (9, 5.0, "N"), (10, 6.0, "中"),
    (11, 7.0, "^caret"), (12, 8.0, '"'), (13, 9.0, "'"),
]  # fmt: skip


def plain_text(value: str, signs: dict[str, Any]) -> str:
    """A text without the signs for which a dialect without quote and escape has no way to write them."""
    if signs["quote"] or signs["escape"]:
        return value
    return value.replace(signs["delimiter"], "_").replace("\n", "_")


def written(value: Any, signs: dict[str, Any]) -> str:
    """A value as a program with this dialect writes it."""
    delimiter, quote, escape = signs["delimiter"], signs["quote"], signs["escape"]
    if value is None:
        return str(signs["null_values"][0])
    text = str(value).replace(".", signs["decimal"]) if isinstance(value, float) else plain_text(str(value), signs)
    if quote and any(sign in text for sign in (delimiter, quote, "\n")):
        doubled = text.replace(quote, 2 * quote)
        escaped = text.replace(escape, 2 * escape).replace(quote, escape + quote) if escape else doubled
        return quote + escaped + quote
    if escape:
        text = text.replace(escape, 2 * escape)
        for sign in {*delimiter, "\n"} if delimiter in text or "\n" in text else ():
            text = text.replace(sign, escape + sign)
    return text


@pytest.mark.parametrize("key", KEYS)
def test_all_pairs_of_keys_of_text(key: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for other in KEYS:
        for first, second in itertools.product(KEYS[key], KEYS[other]):
            told = {key: first, other: second}
            if told.get("decimal") == "," and "quote" in told:  # a decimal comma between commas needs quotes
                told["delimiter"] = ";"
            signs = {
                "delimiter": ",", "quote": '"', "escape": None, "comment": None, "decimal": ".", "null_values": [""],
                "encoding": "utf-8", "skip_rows": 0,
            } | told  # fmt: skip
            between = signs["delimiter"] + (" " if signs.get("skip_initial_space") else "")
            lines = ["by 'x, \"y", "; z"][: signs["skip_rows"]]
            lines += [] if signs.get("columns") else [between.join(NAMES)]
            for row in ROWS:
                lines += ["# a comment, \"with it's signs"] if signs["comment"] else []
                lines.append(between.join(written(value, signs) for value in row))
            path.write_bytes("\n".join(lines).encode(signs["encoding"]))
            if "columns" in told:
                told["columns"] = NAMES
            for range_bytes in (16, 2**20):
                found = rows(path, range_bytes, **told)
                assert found["id"] == [row[0] for row in ROWS], told
                assert found["price"] == [row[1] for row in ROWS], told
                texts = [None if row[2] is None else plain_text(row[2], signs) for row in ROWS]
                assert found["text"] == texts, told


# texts that need not be followed value by value

ESCAPED = Dialect(escape="\\")


@given(
    st.text("ab,\\N\r\n", max_size=12).map(str.encode), st.sampled_from([ESCAPED, Dialect(comment="b"), Dialect("ab")])
)
@example(b"a\\N\r\nb\n\n\ra", ESCAPED)
@example(b"a\\\\\n", ESCAPED)
def test_lines_are_counted_as_records_are(data: bytes, dialect: Dialect) -> None:
    quick = (DelimitedSieve(dialect, None).sift(data), complete(data, dialect))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readable_lines, "ends_at_each_line", lambda data, dialect: False)
        assert quick == (DelimitedSieve(dialect, None).sift(data), complete(data, dialect))


@given(
    st.lists(
        st.sampled_from([r"\N", "a", "", '"\\N"', r'"a,\N,b"', r"\\N", r"\,", '"\\""', r"\N\N"]), min_size=1, max_size=8
    )
)
@example([r"\N"])
@example([r"\\N", r"\N", '"\\N"'])
def test_nulls_with_an_escape_are_found_wherever_they_are_whole_values(values: list[str]) -> None:
    data = (",".join(values) + "\n").encode()
    found, _ = with_one_null(data, ESCAPED, [r"\N"])
    nulls = {r"\N": "\x1f\x1f", '"\\N"': "\x1f" * 4}
    assert found == (",".join(nulls.get(value, value) for value in values) + "\n").encode()


def test_a_row_of_numbers_that_is_there_again_may_be_no_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("2.47,.9\n2.47,.9\n2.5,.8\n")
    with pytest.raises(DataError, match="the header of a text file is there again") as refused:
        rows(tmp_path)
    assert refused.value.do.startswith("if the first line is a row as well, set source.header: false; else remove")
    assert rows(tmp_path, header=False) == {"f0": [2.47, 2.47, 2.5], "f1": [0.9, 0.9, 0.8]}
