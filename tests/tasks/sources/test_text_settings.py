"""CSV with a decimal comma or in another encoding, against Python's csv module."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import itertools
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tasks.core.plan import Limits
from tasks.core.settings import Source
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError
from tasks.sources.formats import FORMATS, SETTINGS, check_settings
from tasks.sources.formats.csv import _number_repeated_names, _settings_that_name
from tasks.sources.planning import make_plan
from tasks.sources.reader import read
from tasks.sources.uniting import uniting_notes
from tasks.workflow import Workflow
from tests.examples import examples
from tests.frames import to_list

SMALL = Limits(join_below=1, range_bytes=64)


def rows(path: Path, limits: Limits = SMALL, **source: Any) -> dict[str, list[Any]]:
    plan = make_plan(Source(path=str(path), **source), limits=limits)
    return pa.concat_tables([read(plan, i) for i in range(len(plan.partitions))]).to_pydict()


@pytest.mark.promise("If it is also the delimiter, values with a decimal sign need quotes")
def test_a_decimal_comma(tmp_path: Path, engine: str) -> None:
    (tmp_path / "a.csv").write_text("price;n\n1,5;1\n-0,25;2\n3;3\n")
    source = Dataset(str(tmp_path), delimiter=";", decimal=",", engine=engine)
    (frame,) = Workflow(["price", "n"]).fit(source).transform(source).frames()
    assert (to_list(frame["price"]), to_list(frame["n"])) == ([1.5, -0.25, 3.0], [1, 2, 3])
    (tmp_path / "a.csv").write_text('price,n\n"1,5",1\n"2,5",2\n')
    assert rows(tmp_path, decimal=",") == {"price": [1.5, 2.5], "n": [1, 2]}
    with pytest.raises(JobError, match="decimal"):
        Dataset(str(tmp_path), decimal=";")


@pytest.mark.promise(
    "of a text file with a delimiter is utf-8, latin-1, windows-1252, utf-16, gbk, shift-jis or any other text "
    "encoding of Python"
)
@pytest.mark.parametrize("encoding", ["latin-1", "windows-1252", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("packed", [False, True])
def test_an_encoding(encoding: str, packed: bool, tmp_path: Path) -> None:
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    content = (mark + "né,x\n" + "".join(f'"café, {i}\nñ",{i}\n' for i in range(50))).encode(encoding)
    (tmp_path / ("a.csv.gz" if packed else "a.csv")).write_bytes(gzip.compress(content) if packed else content)
    name = "utf-16" if encoding.startswith("utf-16") else encoding
    assert rows(tmp_path, encoding=name) == {"né": [f"café, {i}\nñ" for i in range(50)], "x": list(range(50))}


@pytest.mark.promise("Lines at the beginning of each text file with a delimiter, before its header")
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_skipped_rows(mark: bytes, end: bytes, tmp_path: Path) -> None:
    lines = [b'made by "x', b"# ,,,", b"n,s", *(b"%d,a" % i for i in range(99))]
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_bytes(mark + end.join(lines))
    numbers = list(range(99))
    assert rows(tmp_path, skip_rows=2) == {"n": numbers * 2, "s": ["a"] * 198}
    assert rows(tmp_path, skip_rows=3, columns=["n", "s"])["n"] == numbers * 2
    with pytest.raises(DataError, match="no rows at all"):
        rows(tmp_path, skip_rows=1000)


def test_text_packed_by_xz(tmp_path: Path) -> None:
    (tmp_path / "a.csv.xz").write_bytes(lzma.compress(b"n\n" + b"".join(b"%d\n" % i for i in range(99))))
    assert rows(tmp_path) == {"n": list(range(99))}
    (tmp_path / "a.csv.xz").write_bytes((tmp_path / "a.csv.xz").read_bytes()[:-20])
    with pytest.raises(DataError, match="cannot be read"):
        rows(tmp_path)


def test_a_wrong_encoding_suggests_one(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("x,y\né,1\n".encode("latin-1"))
    with pytest.raises(DataError, match="cannot be parsed") as error:
        rows(tmp_path)
    assert "source.encoding: latin-1" in error.value.do
    for encoding in ("utf-16", "latin-1"):
        (tmp_path / "a.csv").write_bytes("é,y\né,1\n".encode(encoding))
        with pytest.raises(DataError, match="first line of a text file") as error:
            rows(tmp_path)
        assert f"source.encoding: {encoding}" in error.value.do
    (tmp_path / "a.csv").write_bytes(b"x\n\x81\n")
    with pytest.raises(DataError) as error:
        rows(tmp_path, encoding="windows-1252")
    assert error.value.why == "byte 0x81 is not a letter of windows-1252"
    for end in (b"", b"4,5,6\n"):
        (tmp_path / "a.csv").write_bytes(b"x,y\n1,a\n2,\x81\n3,c\n" + end)
        with pytest.raises(DataError) as error:
            rows(tmp_path, encoding="windows-1252")
        assert error.value.why == "byte 0x81 is not a letter of windows-1252"
        assert error.value.where == f"{tmp_path}/a.csv, line 3"
        assert error.value.do == "write the file as UTF-8, or name its encoding: source.encoding: latin-1"
    (tmp_path / "a.csv").write_bytes("x\né\n".encode("utf-16")[:-1])
    with pytest.raises(DataError, match="is not UTF-16"):
        rows(tmp_path, encoding="utf-16")


def test_a_format_refuses_the_settings_that_only_others_take() -> None:
    values = {"delimiter": ";", "header": False, "columns": ["x"], "skip_rows": 1, "skip_initial_space": False,
              "decimal": ",", "encoding": "latin-1", "quote": "", "escape": "^", "comment": "#", "null_values": [],
              "bad_lines": "skip"}  # fmt: skip
    assert {*values} == {*SETTINGS}
    for name, key in itertools.product(FORMATS, values):
        source = Source(path="a", **{key: values[key]})
        if name in ("csv", "tsv") or (name, key) == ("jsonl", "bad_lines"):
            check_settings(source, name)
            continue
        with pytest.raises(JobError, match=f"the format {name} takes no {key}") as error:
            check_settings(source, name)
        assert error.value.where == f"source.{key}"
        others = "csv or tsv or jsonl" if key == "bad_lines" else "csv or tsv"
        assert error.value.do == f"leave it out, or set source.format if the files are {others}"


TEXTS = st.text(st.characters(codec="latin-1", exclude_characters="\0\r"), min_size=1, max_size=12)


@given(
    values=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=20), encoding=st.sampled_from(["latin-1", "utf-16"])
)
@examples(60, HealthCheck.function_scoped_fixture)
def test_every_text_is_read_as_python_reads_it(values: list[tuple[str, str]], encoding: str, tmp_path: Path) -> None:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([("a", "b"), *values])
    (tmp_path / "x.csv").write_bytes(text.getvalue().encode(encoding))
    read_rows = rows(tmp_path, encoding=encoding, schema={"a": "string", "b": "string"})
    expected = [*csv.reader(io.StringIO(text.getvalue(), newline=""))][1:]
    assert [list(row) for row in zip(read_rows["a"], read_rows["b"], strict=True)] == expected


COLONS = ('a::b::c', '1::x: y::2', '3::"u::v\nw"::4', '5::::6')  # fmt: skip


@pytest.mark.promise("`delimiter` takes up to 20 letters")
@pytest.mark.parametrize("delimiter", ["::", "||", "§", "~|~"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_delimiter_of_several_letters_or_bytes(delimiter: str, encoding: str, packed: bool, tmp_path: Path) -> None:
    data = "\n".join(line.replace("::", delimiter) for line in COLONS).encode(encoding)
    (tmp_path / ("a.csv.gz" if packed else "a.csv")).write_bytes(gzip.compress(data) if packed else data)
    texts = ["x: y", f"u{delimiter}v\nw", None]
    for limit in (1, 2**20):
        signs: Any = {"delimiter": delimiter, "encoding": encoding, "limits": Limits(1, range_bytes=limit)}
        assert rows(tmp_path, **signs) == {"a": [1, 3, 5], "b": texts, "c": [2, 4, 6]}
        assert rows(tmp_path, bad_lines="skip", **signs)["b"] == texts


def test_an_error_in_a_text_of_other_delimiters_shows_it_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a::b\n1::2\n3::4::5\n")
    with pytest.raises(DataError, match="cannot be parsed") as error:
        rows(tmp_path, delimiter="::")
    assert error.value.where == f"{tmp_path}/a.csv, row 2 (line 3 of the file)"
    assert error.value.why.endswith("Expected 2 columns, got 3: 3::4::5")


@pytest.mark.promise("Whether spaces after the delimiters of a text file are left out")
def test_spaces_behind_every_delimiter_are_left_out_and_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a, b, c\n1, x y, 2\n3, "u, v", 4\n')
    assert rows(tmp_path) == {"a": [1, 3], "b": ["x y", "u, v"], "c": [2, 4]}
    assert rows(tmp_path, skip_initial_space=False, quote="", bad_lines="skip") == {
        "a": [1], " b": [" x y"], " c": [2],
    }  # fmt: skip
    plan = make_plan(Source(path=str(tmp_path)))
    assert uniting_notes(plan, []) == [
        f"{tmp_path}/a.csv has a space behind each delimiter, which is left out: source.skip_initial_space: true"
    ]
    assert plan.reading["skip_initial_space"] is True
    (tmp_path / "a.csv").write_text("a, b\n1, x\n2,y\n3,  z\n")
    assert rows(tmp_path) == {"a": [1, 2, 3], " b": [" x", "y", "  z"]}
    assert rows(tmp_path, skip_initial_space=True) == {"a": [1, 2, 3], "b": ["x", "y", "z"]}
    (tmp_path / "a.csv").write_text("a   b\n1 x\n2  y\n")
    assert rows(tmp_path, skip_initial_space=True, delimiter=" ") == {"a": [1, 2], "b": ["x", "y"]}


@pytest.mark.promise("If no delimiter is set, Excel's line `sep=;` is skipped, and its delimiter is used")
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_the_line_by_which_excel_names_the_delimiter(mark: str, encoding: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(f"{mark}sep=;\r\na;b\r\n1;x,y\r\n".encode(encoding))
    for signs in ({}, {"delimiter": ";"}, {"skip_rows": 1}, {"skip_rows": 2, "columns": ["a", "b"]}):
        assert rows(tmp_path, encoding=encoding, **signs) == {"a": [1], "b": ["x,y"]}
    assert make_plan(Source(path=str(tmp_path), encoding=encoding)).reading["delimiter"] == ";"
    (tmp_path / "b.csv").write_bytes("sep=|\r\na|b\r\n2|z\r\n".encode(encoding))
    with pytest.raises(DataError, match=r"names the delimiter '\|', and ';' is expected") as error:
        rows(tmp_path, encoding=encoding)
    assert error.value.where == f"{tmp_path}/b.csv, line 1"


ENCODED = {
    "gbk": "中文", "shift-jis": "表ソ", "big5": "功能", "gb18030": "𠀀中", "euc-kr": "한글", "iso2022-jp": "日本",
    "windows-1251": "Ёж", "windows-1250": "Łódź", "cp037": "abc", "utf-32": "ñ", "utf-16-be": "é", "koi8-r": "ы",
}  # fmt: skip


@pytest.mark.promise(
    "of a text file with a delimiter is utf-8, latin-1, windows-1252, utf-16, gbk, shift-jis or any other text "
    "encoding of Python"
)
@pytest.mark.parametrize("encoding", ENCODED)
@pytest.mark.parametrize("delimiter", [",", "|", "\\"])
def test_every_text_encoding_of_python(encoding: str, delimiter: str, tmp_path: Path) -> None:
    text = ENCODED[encoding]
    lines = [f"{text}{delimiter}x", *(f'"{text}{delimiter}\n{i}"{delimiter}{i}' for i in range(9))]
    (tmp_path / "a.csv").write_bytes("\n".join(lines).encode(encoding))
    expected = {text: [f"{text}{delimiter}\n{i}" for i in range(9)], "x": list(range(9))}
    for limits in (Limits(1, range_bytes=5), Limits()):
        assert rows(tmp_path, limits, encoding=encoding, delimiter=delimiter) == expected


@pytest.mark.parametrize("wrong", ["gbk2", "hex", "idna", "", "\0", "rot13", "undefined"])
def test_what_is_no_encoding_of_text_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="not an encoding of text that Python knows"):
        Source(path="a.csv", encoding=wrong)


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress,
    "zstd": lambda data: pa.Codec("zstd").compress(data, asbytes=True), "zip": lambda data: zipped(a=data),
}  # fmt: skip


def zipped(**members: bytes) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__MACOSX/._a.csv", b"\x00\x05")
        for name, data in members.items():
            archive.writestr(f"folder/{name}.csv", data)
    return whole.getvalue()


@pytest.mark.promise(
    "Text that is compressed with gzip, bz2, xz, zstd, lz4 or zip is recognized by its first bytes, whatever the suffix"
)
@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "jsonl", "csv.zip"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_compression_is_told_by_the_first_bytes(codec: str, suffix: str, encoding: str, tmp_path: Path) -> None:
    text = '{"n": 1}\n{"n": 2}\n' if suffix == "jsonl" else "n\n1\n2\n"
    encoding = "utf-8" if suffix == "jsonl" else encoding
    (tmp_path / f"a.{suffix}").write_bytes(PACKED[codec](text.encode(encoding)))
    assert rows(tmp_path, encoding=encoding) == {"n": [1, 2]}


def test_text_that_is_called_compressed_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_text("n\n1\n")
    assert rows(tmp_path) == {"n": [1]}
    (tmp_path / "a.csv.gz").write_bytes(b"\x1f\x8b\x07\x00 no gzip")
    with pytest.raises(DataError, match="cannot be read"):
        rows(tmp_path)


@pytest.mark.promise("The files in a zip file are one table, and their headers must agree")
def test_the_files_in_a_zip_file_are_one_table(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.zip"
    path.write_bytes(zipped(a=b"title\nn,s\n1,a", b=b"\xef\xbb\xbfother\r\nn,s\r\n2,b\r\n", c=b"last\nn,s\n"))
    assert rows(tmp_path, skip_rows=1) == {"n": [1, 2], "s": ["a", "b"]}
    path.write_bytes(zipped(a=b"1,a", b=b"1,a\n"))
    assert rows(tmp_path, columns=["n", "s"]) == {"n": [1, 1], "s": ["a", "a"]}
    path.write_bytes(zipped(a=b"n,s\n1,a", b=b"s,n\nb,2\n"))
    with pytest.raises(DataError, match="the files in a zip file have different headers") as error:
        rows(tmp_path)
    assert error.value.where == f"{path}, folder/b.csv"
    assert error.value.why == "'s,n' here, 'n,s' in folder/a.csv"
    path.write_bytes(zipped())
    with pytest.raises(DataError, match="a zip file holds no data file"):
        rows(tmp_path)


@pytest.mark.promise("In a file of one column an empty line is null; in other files it is not a row")
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("packed", [False, True])
def test_an_empty_line_of_one_column_is_null(end: str, packed: bool, tmp_path: Path) -> None:
    data = end.join(["n", "1", "", '"2"', "", ""]).encode()
    (tmp_path / "a.csv").write_bytes(gzip.compress(data) if packed else data)
    for limits in (Limits(1, range_bytes=1), Limits()):
        assert rows(tmp_path, limits) == {"n": [1, None, 2, None]}
        assert rows(tmp_path, limits, bad_lines="skip") == {"n": [1, None, 2, None]}
    (tmp_path / "a.csv").write_bytes(end.join(["", "1", "", "2"]).encode())
    assert rows(tmp_path, columns=["n"]) == {"n": [None, 1, None, 2]}
    assert rows(tmp_path, header=False) == {"f0": [None, 1, None, 2]}
    (tmp_path / "a.csv").write_bytes(end.join(["n,m", "1,2", "", "3,4"]).encode())
    assert rows(tmp_path) == {"n": [1, 3], "m": [2, 4]}


def test_two_columns_of_one_name_are_named_apart_as_the_error_says(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("title\na,b,a,a_2\n1,x,2,3\n")
    plan = make_plan(Source(path=str(tmp_path), skip_rows=1))
    with pytest.raises(DataError, match="there are two columns 'a'") as error:
        read(plan, 0, ["a"])
    do = 'name the columns and skip the header: source.columns: ["a", "b", "a_3", "a_2"] and source.skip_rows: 2'
    assert error.value.do == do
    assert rows(tmp_path, columns=["a", "b", "a_3", "a_2"], skip_rows=2) == {
        "a": [1], "b": ["x"], "a_3": [2], "a_2": [3],
    }  # fmt: skip


@pytest.mark.promise(
    "`delimiter`, `quote`, `escape`, `comment`, `header`, `columns`, `skip_rows`, `skip_initial_space`, `decimal` and "
    "`encoding` where they have the format of the fit"
)
def test_a_fit_keeps_how_text_is_laid_out(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("sep=::\na:: b\n1:: x\n2:: y\n")
    workflow = Workflow(["a", "b"]).fit(Dataset(str(tmp_path / "a.csv")))
    workflow.save(tmp_path / "fitted")
    (tmp_path / "b.csv").write_text("a::b\n3:: z\n")
    (frame,) = Workflow.load(tmp_path / "fitted").transform(Dataset(str(tmp_path / "b.csv"))).frames()
    assert (to_list(frame["a"]), to_list(frame["b"])) == ([3], ["z"])


@pytest.mark.parametrize("name", ["c{}", "c"])
def test_a_header_of_many_columns_is_read_in_linear_time(name: str, tmp_path: Path) -> None:
    """Counted, not timed: 8,000 names were compared with each other."""
    names = [name.format(number) for number in range(8_000)]
    compared = 0

    class Counted(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        def __hash__(self) -> int:
            return str.__hash__(self)

    own = _number_repeated_names([Counted(one) for one in names])
    assert "a name for each" in _settings_that_name(own, 1)
    assert compared < 40_000
    assert _number_repeated_names(["a", "a", "a_2", "a"]) == ["a", "a_3", "a_2", "a_4"]
