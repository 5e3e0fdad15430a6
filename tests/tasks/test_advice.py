"""Advice is tried: what the `do` of an error says is done, and the error is gone, or it is another one."""

from __future__ import annotations

import ast
import datetime
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from rowmill import Dataset, ops

from tasks.errors import RowmillError
from tasks.ops.base import Operator
from tests.infra import house
from tests.tasks.ops.fitting import transformed

TIMES = [datetime.datetime(2026, 1, day) for day in range(1, 5)]
COLUMNS: dict[str, pa.Array] = {
    "whole": pa.array([1, 2, 3, 2]),
    "part": pa.array([1.0, 2.5, 3.0, 2.5]),
    "text": pa.array(["1", "2", "3", "2"]),
    "flag": pa.array([True, False, True, True]),
    "time": pa.array(TIMES, pa.timestamp("us")),
    "day": pa.array([time.date() for time in TIMES]),
    "price": pa.array([1, 2, 3, 2], pa.decimal128(10, 2)),
    "raw": pa.array([b"a", b"b", b"c", b"b"]),
    "list": pa.array([[1], [2], [3], [2]]),
    "item": pa.array([{"id": 1}] * 4),
}


def error_of(function: Callable[..., Any], *args: Any, **options: Any) -> RowmillError | None:
    try:
        function(*args, **options)
    except RowmillError as error:
        return error
    return None


def settings_in(advice: str) -> dict[str, Any]:
    """The settings of a source that advice names with a value."""
    found = re.findall(r"source\.(\w+): (\{.*?\}|\[.*?\]|[\w-]+)", advice)
    return {name: "null" if value == "null" else yaml.safe_load(value) for name, value in found}


# settings of the source


def parquet(*tables: pa.Table) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for number, table in enumerate(tables):
            pq.write_table(table, folder / f"{number}.parquet")

    return write


def text(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def column(values: list[Any], dtype: Any = None) -> pa.Table:
    return pa.table({"x": pa.array(values, dtype)})


SOURCES: dict[str, tuple[Callable[[Path], None], dict[str, Any], dict[str, Any]]] = {  # files, settings, advice
    "uint64 and int64": (
        parquet(column([2**63 + 5], pa.uint64()), column([-1])), {}, {"schema": {"x": "string"}}
    ),
    "times with and without a zone": (
        parquet(column(TIMES, pa.timestamp("us")), column(TIMES, pa.timestamp("us", "UTC"))), {},
        {"schema": {"x": "timestamp[us]"}},
    ),
    "times beyond nanoseconds": (
        lambda folder: pq.write_table(
            column([datetime.datetime(3000, 1, 1)], pa.timestamp("us")), folder / "a.parquet",
            use_deprecated_int96_timestamps=True,
        ),
        {"schema": {"x": "timestamp[ns]"}}, {"schema": {"x": "timestamp[us]"}},
    ),
    "numbers and texts": (parquet(column([1]), column(["a"])), {}, {"schema": {"x": "string"}}),
    "a column that a file lacks": (
        parquet(pa.table({"x": [1], "y": [1]}), column([1])), {}, {"missing": "null"},
    ),
    "a text between numbers": (text("a.csv", b"x\n" + b"1\n" * 9 + b"a\n"), {"schema": {"x": "int64"}},
                               {"schema": {"x": "string"}}),
    "a value too large": (text("a.csv", b"x\n1e999\n1.5\n"), {}, {"schema": {"x": "string"}}),
    "another encoding": (text("a.csv", b"x,y\nM\xfcnster,1\n"), {}, {"encoding": "latin-1"}),
    "another encoding of the header": (text("a.csv", b"M\xfcnster,y\na,1\n"), {}, {"encoding": "latin-1"}),
    "too many values": (text("a.csv", b"x,y\n1,2\n1,2,3\n"), {}, {"bad_lines": "skip"}),
    "a line that is a header": (text("a.csv", b"1,2\n"), {}, {"header": False}),
    "a line of JSON that is none": (text("a.jsonl", b'{"x": 1}\nx\n{"x": 2}\n'), {}, {"bad_lines": "skip"}),
    "JSON of two types": (text("a.jsonl", b'{"x": 1}\n{"x": "a"}\n'), {}, {"schema": {"x": "string"}}),
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_advised_for_a_source_helps(tmp_path: Path, name: str) -> None:
    write, settings, advised = SOURCES[name]
    write(tmp_path)
    path = str(tmp_path)
    first = error_of(lambda: Dataset(path, **settings).head())
    assert first is not None
    advice = first.do.replace("set source.header: false", "source.header: false")
    assert settings_in(advice) == advised
    second = error_of(lambda: Dataset(path, **settings | advised).head())
    assert second is None or (second.what, second.where) != (first.what, first.where)


def test_a_key_of_json_that_is_there_twice_is_refused_by_any_type(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1, "x": 2}\n{"x": 3}\n')
    for schema in ({}, {"x": "string"}, {"x": "int64"}):
        error = error_of(lambda schema=schema: Dataset(str(tmp_path), schema=schema).head())  # type: ignore[misc]
        assert error is not None
        assert error.do == "fix the line: each key of an object is there once"


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({}, "set source.header: false, if the first line has values"),
        ({"header": False, "skip_rows": 1}, "lower source.skip_rows"),
        ({"header": False, "comment": "1"}, "leave out source.comment"),
    ],
)
def test_a_file_with_lines_and_no_rows(tmp_path: Path, settings: dict[str, Any], advice: str) -> None:
    (tmp_path / "a.csv").write_text("1,2\n")
    error = error_of(lambda: Dataset(str(tmp_path), **settings).head())
    assert error is not None
    assert error.do == advice
    assert len(Dataset(str(tmp_path), header=False).head()) == 1


# casts


def operators() -> list[Operator]:
    return [
        ops.Normalize(), ops.LogOp(), ops.Categorify(), ops.HashBucket(10), ops.DateParts(), ops.Bucketize([2.0]),
        ops.FillMedian(), ops.HashedCross(num_buckets=5), ops.ListSlice(0, 1), ops.ValueCount(), ops.Clip(0, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
def test_a_cast_that_an_operator_advises_makes_a_column_that_it_takes(engine: str, name: str) -> None:
    table = pa.table({name: COLUMNS[name]})
    tried = 0
    for op in operators():
        error = error_of(transformed, [name] >> op, table, engine)
        if error is None or "does not take column" not in error.what:
            continue
        cast = re.search(r'Lambda\(expression="(.*)"\)', error.do)
        if cast is None:
            if name == "raw" and "source.schema" in error.do:
                continue  # bytes of a file
            assert error.do == "choose other columns"
            continue
        tried += 1
        assert error_of(transformed, [name] >> ops.Lambda(expression=cast[1]) >> op, table, engine) is None
    assert (tried > 0) == (name not in ("raw", "list", "item"))


EXPRESSIONS = [
    "d == 5", "time > 5", "text > 5", "whole == 'x'", "flag == 'x'", "price == 'x'", "text + 1", "time + 1", "day - 1",
    "price + 1", "price > 1.5", "mean(text)", "min(text)", "sqrt(text)", "split(whole, ',')", "lower(whole)",
    "cast(part, 'timestamp[us]')", "cast(time, 'float64')", "cast(flag, 'date32')", "cast(whole, 'decimal128(10, 2)')",
    "cast(whole, 'decimal(10,2)')", "cast(whole, 'integer')", "whole == text", "mean(time)", "text in [1]",
]  # fmt: skip


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_cast_that_an_expression_advises_is_right_in_it(engine: str, expression: str) -> None:
    table = pa.table(COLUMNS)
    expression = expression.replace("d ==", "day ==")

    def tried(nodes: Any) -> RowmillError | None:
        return error_of(transformed, nodes, table, engine)

    error = tried(["whole"] >> ops.Lambda(expression=expression))
    assert error is not None
    columns = [c for c in COLUMNS if re.search(rf"\b{c}\b", expression)]
    if before := re.search(r'Lambda\(expression="(.*)"\)', error.do):
        (name,) = columns
        learned = ops.Lambda(expression=expression.replace(name, "_"))
        assert tried([name] >> ops.Lambda(expression=before[1]) >> learned) is None
        return
    names = re.findall(r"\b(bool|int64|float64|string)\b", error.do)
    if expression.startswith("cast("):
        variants = [re.sub(r", '.*'\)$", f", '{to}')", expression) for to in names]
    else:
        variants = [re.sub(rf"\b{c}\b", f"cast({c}, '{to}')", expression) for to in names for c in columns]
    assert None in [tried(["whole"] >> ops.Lambda(expression=text)) for text in variants]


@pytest.mark.parametrize("name", ["item", "raw", "list"])
def test_what_no_cast_takes_is_not_cast(engine: str, name: str) -> None:
    table = pa.table(COLUMNS)
    for expression in (f"cast({name}, 'string')", f"{name} == 1"):
        error = error_of(transformed, ["whole"] >> ops.Lambda(expression=expression), table, engine)
        assert error is not None
        assert error.do.startswith("name another column")


# moments


@pytest.mark.parametrize(
    ("name", "moment", "better"),
    [
        ("whole", "2026-01-02", 3), ("part", "2026-01-02", 2.5), ("time", 3, "2026-01-03"), ("day", 3, "2026-01-03"),
        ("time", "x", "2020-01-31"), ("time", "cast('2026-01-03', 'timestamp[us]')", "2020-01-31T12:30:00"),
        ("raw", 3, None), ("price", "2026-01-02", None), ("price", 2, None),
    ],
)  # fmt: skip
def test_a_moment_is_a_value_of_its_column(name: str, moment: Any, better: Any) -> None:
    data = Dataset(pa.table(COLUMNS), engine="pandas")
    error = error_of(data.split("time", column=name, test=moment)["test"].head)
    assert error is not None
    assert "cast(" not in error.do
    if better is None:
        assert error.do in (
            "choose a column of times or numbers",
            f"read the column as a number: source.schema: {{{name}: float64}}",
        )
        return
    assert len(data.split("time", column=name, test=better)["test"].head())


def test_a_decimal_that_is_read_as_a_float_has_moments(tmp_path: Path) -> None:
    pq.write_table(pa.table({"price": COLUMNS["price"]}), tmp_path / "a.parquet")
    error = error_of(Dataset(str(tmp_path)).split("time", column="price", test=2)["test"].head)
    assert error is not None
    advised = settings_in(error.do)
    assert advised == {"schema": {"price": "float64"}}
    source = Dataset(str(tmp_path), engine="pandas", **advised)
    rows = source.split("time", column="price", test=2)["test"].head()
    assert rows["price"].tolist() == [2.0, 3.0, 2.0]


# all of them

TRIED = {  # modules whose advice names a setting of the source with its value: tried above, or where it says
    "tasks/core/dtypes.py", "tasks/sources/uniting.py", "tasks/sources/formats/csv.py",
    "tasks/sources/formats/jsonl.py", "tasks/sources/planning.py", "tasks/job/source_rules.py",
    "tasks/sources/formats/parquet_int96.py",
    "tasks/sources/exploded.py",  # tests/tasks/sources/test_exploded.py
    "tasks/ops/base.py",  # tests/tasks/ops/test_categorify.py
    "tasks/shuffle/row_sets.py", "tasks/job/text_order.py",  # tests/tasks/job/test_text_order.py
    "tasks/engines/algorithms/written_numbers.py",  # tests/tasks/sources/test_written_numbers.py
    "tasks/storage/hive.py", "tasks/engines/expression/function_rules.py",  # the same
    "tasks/sources/formats/text_ranges.py", "tasks/sources/bad_lines.py",  # tests/tasks/sources/test_bad_lines.py
    "tasks/core/schema.py", "tasks/job/apply_fitted.py",  # tests/tasks/job/test_wider_types.py
    "tasks/engines/convert/host_files.py",  # tests/tasks/loading/test_fixed_size_lists.py
    "flows/draft/readable_files.py",  # tests/flows/test_draft_refused.py
    "tasks/storage/lake_tables.py",  # tests/tasks/lake/test_delta.py
}  # fmt: skip


@pytest.mark.xdist_group("house")  # the process that has parsed all modules
def test_every_setting_with_a_value_in_advice_is_tried() -> None:
    """In the texts of the code, documents of functions aside, a setting with a value is advice."""
    root, advising = Path(__file__).parents[2], set()
    for path in (path for folder in ("tasks", "flows", "infra") for path in (root / folder).rglob("*.py")):
        documents = {id(node.value) for node in house.nodes(path) if isinstance(node, ast.Expr)}
        for node in house.nodes(path):
            text = node.value if isinstance(node, ast.Constant) and id(node) not in documents else ""
            called = node.func if isinstance(node, ast.Call) else None
            calls = isinstance(called, ast.Name) and called.id == "schema_advice"
            if calls or (isinstance(text, str) and re.search(r"\bsource\.(?!path|split|valid)\w+: ", text)):
                advising.add(str(path.relative_to(root)))
    assert advising == TRIED
