"""CSV with a decimal comma or in another encoding, against Python's csv module."""

from __future__ import annotations

import csv
import gzip
import io
import lzma
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.core.plan import Limits
from tasks.core.settings import Source
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError
from tasks.sources.planning import make_plan
from tasks.sources.reader import read
from tasks.workflow import Workflow
from tests.frames import to_list

SMALL = Limits(join_below=1, range_bytes=64)


def rows(path: Path, limits: Limits = SMALL, **source: Any) -> dict[str, list[Any]]:
    plan = make_plan(Source(path=str(path), **source), limits=limits)
    return pa.concat_tables([read(plan, i) for i in range(len(plan.partitions))]).to_pydict()


def test_a_decimal_comma(tmp_path: Path, engine: str) -> None:
    (tmp_path / "a.csv").write_text("price;n\n1,5;1\n-0,25;2\n3;3\n")
    source = Dataset(str(tmp_path), delimiter=";", decimal=",", engine=engine)
    (frame,) = Workflow(["price", "n"]).fit(source).transform(source).frames()
    assert (to_list(frame["price"]), to_list(frame["n"])) == ([1.5, -0.25, 3.0], [1, 2, 3])
    (tmp_path / "a.csv").write_text('price,n\n"1,5",1\n"2,5",2\n')
    assert rows(tmp_path, decimal=",") == {"price": [1.5, 2.5], "n": [1, 2]}
    with pytest.raises(JobError, match="decimal"):
        Dataset(str(tmp_path), decimal=";")


@pytest.mark.parametrize("encoding", ["latin-1", "windows-1252", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("packed", [False, True])
def test_an_encoding(encoding: str, packed: bool, tmp_path: Path) -> None:
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    content = (mark + "né,x\n" + "".join(f'"café, {i}\nñ",{i}\n' for i in range(50))).encode(encoding)
    (tmp_path / ("a.csv.gz" if packed else "a.csv")).write_bytes(gzip.compress(content) if packed else content)
    name = "utf-16" if encoding.startswith("utf-16") else encoding
    assert rows(tmp_path, encoding=name) == {"né": [f"café, {i}\nñ" for i in range(50)], "x": list(range(50))}


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
    with pytest.raises(DataError, match="does not parse") as error:
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
    assert error.value.why == "byte 0x81 is no letter of windows-1252"
    for end in (b"", b"4,5,6\n"):
        (tmp_path / "a.csv").write_bytes(b"x,y\n1,a\n2,\x81\n3,c\n" + end)
        with pytest.raises(DataError) as error:
            rows(tmp_path, encoding="windows-1252")
        assert error.value.why == "byte 0x81 is no letter of windows-1252"
        assert error.value.where == f"{tmp_path}/a.csv, line 3"
        assert error.value.do == "write the file as UTF-8, or say what it is: source.encoding: latin-1"
    (tmp_path / "a.csv").write_bytes("x\né\n".encode("utf-16")[:-1])
    with pytest.raises(DataError, match="is no UTF-16"):
        rows(tmp_path, encoding="utf-16")


def test_formats_without_a_delimiter_have_neither(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    for key, value in (("decimal", ","), ("encoding", "latin-1"), ("skip_rows", 1)):
        with pytest.raises(JobError, match=f"have no {key} of their own") as error:
            rows(tmp_path, **{key: value})
        assert error.value.where == f"source.{key}"


TEXTS = st.text(st.characters(codec="latin-1", exclude_characters="\0\r"), min_size=1, max_size=12)


@given(
    values=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=20), encoding=st.sampled_from(["latin-1", "utf-16"])
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_text_is_read_as_python_reads_it(values: list[tuple[str, str]], encoding: str, tmp_path: Path) -> None:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([("a", "b"), *values])
    (tmp_path / "x.csv").write_bytes(text.getvalue().encode(encoding))
    read_rows = rows(tmp_path, encoding=encoding, schema={"a": "string", "b": "string"})
    expected = [*csv.reader(io.StringIO(text.getvalue(), newline=""))][1:]
    assert [list(row) for row in zip(read_rows["a"], read_rows["b"], strict=True)] == expected
