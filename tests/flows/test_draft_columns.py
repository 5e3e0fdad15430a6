"""What a draft makes of one column: ids in any spelling, amounts with few values, flags, times, and texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import pyarrow as pa
import pytest
from rowmill import Dataset, Workflow, ops

from flows.draft.decisions import Decision, decide
from flows.draft.draft import draft
from tasks.core.schema import Column

ROWS = 400


def decided(name: str, values: list[Any], whole: bool = True) -> Decision:
    array = pa.chunked_array([pa.array(values)])
    return decide(Column(name, array.type), array, whole)


def operators(name: str, values: list[Any], whole: bool = True) -> list[str]:
    return [op["op"] for op in decided(name, values, whole).ops]


IDS = [
    "userid", "USERID", "user-id", "User-ID", "User ID", "userId", "visitorid", "movieid", "uid", "adid", "ad_id",
    "customer_no", "store_nbr", "account number", "zip code", "zipcode", "item_id:token", "IDs", "item", "id_hotel",
]  # fmt: skip
NO_IDS = ["paid", "grid", "bid", "order_number", "number", "num_items", "education-num", "price", "valid"]


@pytest.mark.promise("a name tells an id in any spelling")
@pytest.mark.parametrize("name", IDS)
def test_a_name_tells_an_id(name: str) -> None:
    assert operators(name, [1_000_000 + i % 70 for i in range(ROWS)]) == ["Categorify"]


@pytest.mark.parametrize("name", NO_IDS)
def test_other_names_do_not(name: str) -> None:
    assert operators(name, [1_000_000 + i % 70 for i in range(ROWS)])[-1] == "Normalize"


def test_numbers_with_fractions_are_no_ids() -> None:
    assert operators("user_id", [i % 70 + 0.5 for i in range(ROWS)]) == ["Normalize"]
    assert operators("user_id", [None, *(i % 70 + 1.0 for i in range(ROWS))]) == ["Categorify"]


# How often each number comes; test scores are a hump, the pupils of a school are not.
SCORES = [4, 9, 20, 33, 41, 44, 40, 30, 21, 12, 8, 5, 3]
PUPILS = [90, 12, 45, 101, 30, 88, 17, 64, 99, 23, 71, 15, 84, 35, 96, 20, 77, 41, 105, 28]


def repeat(counts: Sequence[int], first: int) -> list[int]:
    """Numbers from the first on, each as often as its count, mixed by a fixed stride."""
    values = [first + place for place, count in enumerate(counts) for _ in range(count)]
    return [values[row * 7919 % len(values)] for row in range(len(values))]


@pytest.mark.promise("unless their name (`age`, `num_items`) or their counts make them an amount")
@pytest.mark.parametrize(
    ("name", "values", "operator"),
    [
        ("Age", [18 + i % 40 for i in range(ROWS)], "Normalize"),
        ("hours-per-week", [20 + i % 30 for i in range(ROWS)], "Normalize"),
        ("num_items", [1 + i % 9 for i in range(ROWS)], "Normalize"),
        ("x", [*range(20, 40), 20, 21], "Normalize"),  # hardly a value comes twice
        ("x", [0] * 600 + [1] * 200 + [2] * 40 + [3] * 20 + [4] * 18 + [5] * 5 + [8] * 7, "Normalize"),
        ("x", [0] * 200 + [1] * 200, "Categorify"),
        ("x", [1] * 200 + [2] * 180 + [3] * 490, "Categorify"),  # the class of a ticket
        ("month", [1 + i % 12 for i in range(ROWS)], "Categorify"),
        ("hour", [i % 24 for i in range(ROWS)], "Categorify"),
        ("has_children", [i % 2 for i in range(ROWS)], "Categorify"),
        ("nkids", [1 + i % 3 for i in range(ROWS)], "Normalize"),
        ("age76", [1 + i % 3 for i in range(ROWS)], "Normalize"),
        ("x", repeat(SCORES, 0), "Normalize"),
        ("x", repeat(SCORES[:11], 0), "Normalize"),
        ("x", repeat([70, 66, 69, 61, 52, 40, 30, 31, 34, 35, 36], 24), "Normalize"),  # ages of a study
        ("x", repeat([70, 66, 69, 61, 52, 40, 30, 31, 34, 35, 36], 1), "Categorify"),
        ("x", repeat([14, 5, 10, 8, 12, 3, 2, 4, 2, 7], 1), "Normalize"),  # from one to ten
        ("x", repeat([30, 6, 9, 2, 2, 1, 2, 1], 2), "Normalize"),  # deaths at one address
        ("x", repeat([70, 607, 146, 39, 5, 6, 1, 2], 0), "Normalize"),
        ("c00", [20 + i * i % 300 for i in range(ROWS)], "Normalize"),
        ("x", repeat(PUPILS, 1), "Categorify"),  # schools
        ("x", repeat(PUPILS, 1974), "Normalize"),  # years
        ("x", [1 + i // 13 for i in range(ROWS)], "Categorify"),  # households, one after the other
        ("x", [i % 100 for i in range(ROWS)], "Categorify"),  # the firms of each year
        ("county", repeat(SCORES, 1), "Categorify"),
        ("C14", repeat(SCORES, 1), "Categorify"),
        ("ps_car_11_cat", [1 + i * i % 101 for i in range(ROWS)], "Categorify"),
    ],
)
def test_few_whole_numbers_are_codes_or_an_amount(name: str, values: list[int], operator: str) -> None:
    assert operators(name, values)[-1] == operator


def test_whole_numbers_that_pandas_made_floats_for_a_null_are_whole() -> None:
    assert operators("x", [None, *map(float, repeat(PUPILS, 1))]) == ["Categorify"]
    assert operators("x", [*map(float, repeat(PUPILS, 1))]) == ["Normalize"]
    assert operators("x", [None, *([2.0**63, 2.0**64] * 20)])[-1] == "Normalize"  # they are not int64


@pytest.mark.parametrize("name", ["site", "case", "x"])
def test_numbers_of_rows_are_left_out(name: str) -> None:
    assert decided(name, [*range(1, 41), *range(42, 60)]).why == (
        "it counts the rows, from which nothing can be learned"
    )


def test_unique_numbers_that_do_not_count_rows_are_amounts_unless_they_are_codes() -> None:
    assert operators("x", [*range(30, 0, -1)]) == ["Normalize"]
    assert operators("age", [*range(1, 60)]) == ["Normalize"]
    assert "every row has a value of its own" in decided("county", [1001 + 2 * i for i in range(60)]).why


def test_labels_of_rows_that_look_like_fractions_are_an_index() -> None:
    labels = [row + part / 10 for row in range(1, 20) for part in range(1, 5)]
    assert "it looks like the index of a frame" in decided("", labels).why


@pytest.mark.parametrize("values", [[1.0, None], [0.0, None], [True, None], [1, None], ["x", None]])
def test_a_flag_of_one_value_and_null_keeps_its_meaning(values: list[Any]) -> None:
    decision = decided("flag", values * 100)
    assert [op["op"] for op in decision.ops] == ["Categorify"]
    assert "1 value(s), else null, which gets an id of its own" in decision.why


HASHES = [sha256(str(i).encode()).hexdigest() for i in range(ROWS)]


@pytest.mark.promise("Texts of which nearly every row has its own are left out")
def test_texts_that_are_nearly_unique_are_no_codes() -> None:
    names = [f"person {i}" for i in range(315)]
    assert decided("who", [*names, *names[:10]]).why == (
        "315 values in 325 rows: nearly every row has a value of its own"
    )
    assert operators("who", [*names, *names[:10]], whole=False) == ["Categorify"]  # other rows may repeat them
    assert operators("session_id", [*names, *names[:10]]) == ["Categorify"]


def test_hashes_are_ids_and_sentences_are_free_text() -> None:
    assert operators("member", HASHES[:300] + HASHES[:100]) == ["Categorify"]
    assert operators("who", HASHES[:250] * 2) == ["Categorify"]
    sentences = [f"{i} times have I said that this text is longer than sixty letters" for i in range(250)]
    assert "free text: 250 values" in decided("review", sentences + sentences[:100]).why


# times

START = datetime(1995, 3, 28, 13, tzinfo=UTC)
WRITTEN: dict[str, tuple[str, Callable[[datetime], Any]]] = {
    "%b %d %Y": ("seen", lambda t: t.strftime("%b %-d %Y")),
    "%d-%b-%Y": ("seen", lambda t: t.strftime("%d-%b-%Y")),
    "%d-%b-%y": ("seen", lambda t: t.strftime("%d-%b-%y")),
    "%m/%d/%y %H:%M": ("seen", lambda t: t.strftime("%m/%d/%y %H:%M")),
    "%a, %d %b %Y %H:%M:%S %z": ("seen", lambda t: t.strftime("%a, %d %b %Y %H:%M:%S +0000")),
    "%a %b %d %H:%M:%S %z %Y": ("seen", lambda t: t.strftime("%a %b %d %H:%M:%S +0000 %Y")),
    "%a %b %d %H:%M:%S %Y": ("seen", lambda t: t.strftime("%a %b %d %H:%M:%S %Y")),
    "%d/%b/%Y:%H:%M:%S %z": ("seen", lambda t: t.strftime("%d/%b/%Y:%H:%M:%S +0000")),
    "%y%m%d%H": ("hour", lambda t: int(t.strftime("%y%m%d%H"))),
    "%y%m%d": ("date", lambda t: int(t.strftime("%y%m%d"))),
    "%Y%m%d": ("birthdate", lambda t: int(t.strftime("%Y%m%d")) - 90_0000),
    "%Y%m%d%H": ("hour", lambda t: int(t.strftime("%Y%m%d%H"))),
    "%Y%m%d%H%M%S": ("time", lambda t: t.strftime("%Y%m%d%H%M%S")),
    "of floats": ("timestamp", lambda t: t.timestamp() + 0.378),
    "of texts": ("eventtime", lambda t: str(int(t.timestamp()))),
}


@pytest.mark.promise("in a column named like a time that count from 1970, or write a time by digits")
@pytest.mark.parametrize("written", WRITTEN)
def test_times_are_read_as_they_are_written(engine: str, written: str) -> None:
    name, write = WRITTEN[written]
    times = [START + timedelta(days=i) for i in range(10)]
    values = [None, *map(write, times)]
    decision = decided(name, values)
    assert [op["op"] for op in decision.ops] == ["Lambda", "DateParts"]
    if written.startswith("%"):
        assert written in decision.ops[0]["expression"]
    table = pa.table({name: values})
    read = [name] >> ops.Lambda(expression=decision.ops[0]["expression"]) >> ops.DateParts(parts=["day", "month"])
    made = Workflow(read).fit_transform(Dataset(table, engine=engine)).to_ddf().compute()
    assert [*made[f"{name}_day"].to_numpy()[1:].astype(int)] == [28, 29, 30, 31, 1, 2, 3, 4, 5, 6]
    assert [*made[f"{name}_month"].to_numpy()[1:].astype(int)] == [3, 3, 3, 3, 4, 4, 4, 4, 4, 4]


def test_days_before_1990_are_days() -> None:
    assert "'%Y%m%d'" in decided("dob", [19_450_101 + i for i in range(30)]).ops[0]["expression"]
    assert operators("date", [20_211_301 + i for i in range(30)])[-1] == "Normalize"  # there is no month 13


def test_versions_are_no_times() -> None:
    assert operators("version", ["1.2.10", "1.2.11", "1.3.12"] * 10) == ["Categorify"]


@pytest.mark.parametrize(("values", "is_label"), [(2, True), (20, True), (21, False), (133, False)])
def test_a_number_with_the_common_name_class_is_a_label_if_it_has_few_values(values: int, is_label: bool) -> None:
    table = pa.table({"x": [i / 7 for i in range(266)], "class": [i % values for i in range(266)]})
    assert ("label: [class]" in draft(table)) == is_label
