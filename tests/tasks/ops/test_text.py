"""Cross, SplitText, DateParts, Rename, AddTags and AddMetadata."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tasks import ops
from tasks.core.schema import Schema, Tags
from tasks.errors import DataError, JobError
from tasks.graph.binding import Bound
from tests.learning import rows

PARTS = ["hour", "minute", "second", "weekday", "day", "month", "year", "dayofyear"]


def bound(nodes: Any, **types: pa.DataType) -> Bound:
    return Bound(nodes, Schema.from_arrow(pa.schema(list(types.items()))))


@pytest.mark.promise(
    "Join the values of a group (nested list) as text, in the column `a_b`: light_apple; null if any value is null"
)
def test_cross_joins_the_values_as_text(engine: str) -> None:
    table = {
        "a": ["light", None, "dark", "é"],
        "b": ["apple", "pear", None, ""],
        "n": [1, 2, 3, -4],
        "f": [True, False, None, True],
    }
    assert rows([["a", "b"]] >> ops.Cross(), table, engine) == {"a_b": ["light_apple", None, None, "é_"]}
    assert rows([["n", "f", "a"]] >> ops.Cross(sep=" "), table, engine) == {
        "n_f_a": ["1 true light", None, None, "-4 true é"]
    }


@pytest.mark.promise(
    "a backslash stands before each `sep` and each backslash of its values",
    "tasks/ops/README.md#cross",
)
def test_cross_escapes_its_separator_inside_of_values_alone(engine: str) -> None:
    table = {"a": ["x_y", "x", "x", None, "a\\", "a\\"], "b": ["z", "y_z", "z\\", "_", "b", "b_"]}
    assert rows([["a", "b"]] >> ops.Cross(), table, engine) == {
        "a_b": ["x\\_y_z", "x_y\\_z", "x_z\\", None, "a\\_b", "a\\\\_b\\_"]
    }
    table = {"a": ["a:", "a", "a:b", "a::b"], "b": ["b", ":b", "c", "c"]}
    assert rows([["a", "b"]] >> ops.Cross(sep="::"), table, engine) == {
        "a_b": ["a\\:::b", "a::\\:b", "a:b::c", "a\\:\\:b::c"]
    }
    table = {"a": ["x:", "x:y", "x\\"], "b": ["y", "z", "y"]}
    assert rows([["a", "b"]] >> ops.Cross(sep="::"), table, engine) == {"a_b": ["x\\:::y", "x:y::z", "x\\\\::y"]}
    assert rows([["n", "m"]] >> ops.Cross(sep="-"), {"n": [1, 1], "m": [2, -2]}, engine) == {"n_m": ["1-2", "1-\\-2"]}


@pytest.mark.promise(
    "If `sep` has a backslash, the escape is a slash; if it has both, a tilde", "tasks/ops/README.md#cross"
)
def test_cross_escapes_a_separator_with_a_backslash_otherwise(engine: str) -> None:
    table = {"a": ["x\\y", "a/b", "a/b"], "b": ["z", "c\\d", "c"]}
    assert rows([["a", "b"]] >> ops.Cross(sep="\\"), table, engine) == {"a_b": ["x/\\y\\z", "a//b\\c/\\d", "a/b\\c"]}
    assert rows([["a", "b"]] >> ops.Cross(sep="/\\"), {"a": ["x/"], "b": ["y"]}, engine) == {"a_b": ["x~//\\y"]}


@pytest.mark.parametrize("sep", ["_", "::", "__", "-_-", "\\", "/\\", "aba"])
def test_cross_gives_distinct_groups_distinct_texts(sep: str, engine: str) -> None:
    letters = list(dict.fromkeys(sep + "\\/x"))
    words = ["", *letters, *(a + b for a in letters for b in letters)]
    groups = [(a, b) for a in words for b in words]
    made = rows([["a", "b"]] >> ops.Cross(sep=sep), dict(zip("ab", zip(*groups, strict=True), strict=True)), engine)
    assert len(set(made["a_b"])) == len(groups)


def test_cross_takes_groups_of_whole_values(engine: str) -> None:
    with pytest.raises(DataError, match=r"Cross takes groups of columns, 'a' stands alone"):
        bound(["a"] >> ops.Cross(), a=pa.string())
    with pytest.raises(DataError, match="does not take the fractional numbers of column 'x'"):
        bound([["a", "x"]] >> ops.Cross(), a=pa.string(), x=pa.float64())
    with pytest.raises(DataError, match="does not take column 'x' of type timestamp"):
        bound([["a", "x"]] >> ops.Cross(), a=pa.string(), x=pa.timestamp("us"))


@pytest.mark.promise(
    "Split texts at `sep` into columns: electronics.audio.headphone -> cat_0, cat_1, cat_2; a missing part is null",
    "tasks/ops/README.md#splittext",
)
def test_split_text(engine: str) -> None:
    table = {"c": ["electronics.audio.headphone", "a", "", None, ".x", "a.b.c.d.e"]}
    assert rows(["c"] >> ops.SplitText(max_parts=3, prefix="cat"), table, engine) == {
        "cat_0": ["electronics", "a", "", None, "", "a"],
        "cat_1": ["audio", None, None, None, "x", "b"],
        "cat_2": ["headphone", None, None, None, None, "c"],
    }
    assert rows(["c"] >> ops.SplitText("::", 2), {"c": ["a::b", "a:b"]}, engine) == {
        "c_0": ["a", "a:b"],
        "c_1": ["b", None],
    }
    assert rows(["c"] >> ops.SplitText("é", 2), {"c": ["aéb", None]}, engine) == {
        "c_0": ["a", None],
        "c_1": ["b", None],
    }


def test_date_parts_of_times_dates_and_texts(engine: str) -> None:
    expected = {"c_year": [2020, None], "c_weekday": [5, None], "c_dayofyear": [60, None], "c_hour": [23, None]}
    op = ops.DateParts(["year", "weekday", "dayofyear", "hour"])
    moment = datetime.datetime(2020, 2, 29, 23, 5)
    assert rows(["c"] >> op, {"c": [moment, None]}, engine) == expected
    assert rows(["c"] >> op, {"c": ["2020-02-29 23:05:00 UTC", None]}, engine) == expected
    assert rows(["c"] >> op, {"c": ["2020-02-29T23:05:00Z", None]}, engine) == expected
    zoned = (
        pa.array([moment, None], pa.timestamp("us"))
        .cast(pa.timestamp("ns", "UTC"))
        .cast(pa.timestamp("ns", "Asia/Tokyo"))
    )
    assert rows(["c"] >> op, {"c": zoned}, engine) == expected
    days = {"c": pa.array([datetime.date(1969, 12, 31), None])}
    assert rows(["c"] >> ops.DateParts(["day", "hour"], prefix="ts"), days, engine) == {
        "ts_day": [31, None],
        "ts_hour": [0, None],
    }


@pytest.mark.promise(
    "Take parts of a time in UTC, int16: hour, minute, second, weekday (Monday 0), day, month, year, dayofyear",
    "tasks/ops/README.md#dateparts",
)
def test_date_parts_are_those_of_pandas(engine: str) -> None:
    times = pd.Series(pd.to_datetime(np.random.default_rng(4).integers(-2_000_000_000, 4_000_000_000, 500), unit="s"))
    made = rows(["c"] >> ops.DateParts(PARTS), {"c": pa.array(times.astype("datetime64[us]"))}, engine)
    for part in PARTS:
        assert made[f"c_{part}"] == getattr(times.dt, part).tolist()


def test_date_parts_of_texts_with_an_offset_are_those_of_utc(engine: str) -> None:
    texts = {"c": ["2020-03-01T01:30:00+02:00", "2020-02-29 23:05:00 UTC", None, "2020-02-28 20:00:00-0530"]}
    made = rows(["c"] >> ops.DateParts(["day", "hour", "minute"]), texts, engine)
    assert made == {"c_day": [29, 29, None, 29], "c_hour": [23, 23, None, 1], "c_minute": [30, 5, None, 30]}


def test_a_text_that_is_no_time_is_named(engine: str) -> None:
    texts = {"c": ["2020-01-02", "soon", "0000-00-00 00:00:00", None]}
    with pytest.raises(
        DataError, match=r"(?s)column 'c' has a value that is not a time.*DateParts of 'c'.*(soon|0000)"
    ) as caught:
        rows(["c"] >> ops.DateParts(["day"]), texts, engine)
    expression = str(caught.value.do).split('"')[1]
    fixed = ["c"] >> ops.Lambda(expression=expression) >> ops.DateParts(["day"])
    assert rows(fixed, texts, engine) == {"c_day": [2, None, None, None]}
    with pytest.raises(DataError, match=r"DateParts does not take column 'c' of type time64\[us\]"):
        bound(["c"] >> ops.DateParts(), c=pa.time64("us"))


@pytest.mark.promise(
    "Give columns other names: `names` maps old ones to new ones, `name` is for one column, `postfix` is added to all",
    "tasks/ops/README.md#rename",
)
def test_rename(engine: str) -> None:
    table = {"a": ["x", None], "b": [1, 2]}
    assert rows(["a", "b"] >> ops.Rename(postfix="_new"), table, engine) == {"a_new": ["x", None], "b_new": [1, 2]}
    assert rows(["a", "b"] >> ops.Rename({"b": "c"}), table, engine) == {"a": ["x", None], "c": [1, 2]}
    assert rows(["b"] >> ops.Rename(name="c"), table, engine) == {"c": [1, 2]}
    with pytest.raises(DataError, match=r"Rename\(name='c'\) takes one column, 2 are selected"):
        bound(["a", "b"] >> ops.Rename(name="c"), a=pa.int64(), b=pa.int64())
    with pytest.raises(JobError, match="Rename names 'bb', which is not selected"):
        bound(["a", "b"] >> ops.Rename({"bb": "c"}), a=pa.int64(), b=pa.int64())
    with pytest.raises(JobError, match="Rename makes the column 'a' twice"):
        bound(["a", "b"] >> ops.Rename({"b": "a"}), a=pa.int64(), b=pa.int64())


@pytest.mark.promise(
    "Add properties to the schema of the selected columns; values, nulls and types stay",
    "tasks/ops/README.md#addmetadata",
)
@pytest.mark.promise("Add tags to the selected columns; values, nulls and types stay", "tasks/ops/README.md#addtags")
def test_tags_and_metadata(engine: str) -> None:
    nodes = ["a"] >> ops.AddTags([Tags.USER_ID, "own"]) >> ops.AddMetadata({"unit": "m"})
    column = bound(nodes, a=pa.int64()).output["a"]
    assert column.tags == {"user_id", "own"}
    assert column.to_json() == {"name": "a", "dtype": "int64", "tags": ["own", "user_id"], "unit": "m"}
    assert rows(nodes, {"a": [1, None]}, engine) == {"a": [1, None]}
    assert ops.AddTags([Tags.USER_ID]).to_json() == {"op": "AddTags", "tags": ["user_id"]}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ops.SplitText(sep=""), "sep must not be empty"),
        (lambda: ops.SplitText(max_parts=0), "max_parts"),
        (lambda: ops.DateParts([]), "parts"),
        (lambda: ops.DateParts(["weekend"]), "parts"),
        (ops.Rename, "give one of names, name and postfix"),
        (lambda: ops.Rename(name="a", postfix="b"), "give one of names, name and postfix"),
        (lambda: ops.AddMetadata({"dtype": "x"}), "'dtype' belongs to the column itself"),
        (lambda: ops.AddMetadata({"x": object()}), "metadata"),
        (ops.AddTags, "AddTags needs the parameter 'tags'"),
    ],
)
def test_wrong_parameters(make: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        make()
