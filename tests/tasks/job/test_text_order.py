"""Rules that go by times: texts that do not sort as times are refused, numbers are times in a unit that all of them
tell."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from flows.job.job import make_job
from flows.preview.job_preview import preview
from tasks import ops
from tasks.dataset import Dataset
from tasks.engines.algorithms.text_times import find_unsorted_times
from tasks.errors import DataError, JobError
from tasks.manifest import Manifest
from tasks.workflow import Workflow
from tests.flows.runs import rows_of
from tests.stages import run_stages

DAYS = ["30.11.2023", "31.12.2023", "01.01.2024", "05.02.2024"]
READ = {"t": "parse_time(_, '%d.%m.%Y')"}
NIGHT = 1704153600  # 2024-01-02, midnight in UTC


def written(path: Path, texts: list[str], name: str = "x.csv") -> str:
    lines = [f"{number},{text}\n" for number, text in enumerate(texts)]
    (path / name).write_text("u,t\n" + "".join(lines))
    return str(path / name)


def rows(data: Dataset, column: str = "u") -> list[Any]:
    return [int(value) for frame in data.to_iter() for value in frame[column].tolist()]


RULES: dict[str, Any] = {
    "split by moments": lambda data: data.split("time", column="t", valid="2024-01-01")["train"],
    "split by shares": lambda data: data.split("time", column="t", valid=0.5)["train"],
    "split by last": lambda data: data.split("last", column="t", together="u", valid=1)["train"],
    "unique": lambda data: data.unique("u", by="t"),
    "sort_by": lambda data: data.shuffle_by_keys("u", sort_by="t"),
}


@pytest.mark.promise("an error names the expression for `source.schema` that makes times of them, tried on a value")
@pytest.mark.parametrize("rule", RULES)
def test_texts_that_do_not_sort_as_times_are_refused(rule: str, tmp_path: Path) -> None:
    path = written(tmp_path, DAYS)
    with pytest.raises(JobError, match="its times are texts") as error:
        rows(RULES[rule](Dataset(path, engine="pandas")))
    assert error.value.why == "texts are compared byte by byte: '30.11.2023' comes after '05.02.2024'"
    advice = re.search(r"source\.schema: (\{.*\}) makes 2024-01-01 00:00:00 of '01.01.2024'", error.value.do)
    assert advice
    assert yaml.safe_load(advice[1]) == READ
    with pytest.raises((JobError, DataError)) as again:  # of a frame there is no source.schema
        rows(RULES[rule](Dataset(pa.table({"u": [1, 2, 3, 4], "t": DAYS}), engine="pandas")))
    assert "pandas.to_datetime(frame['t'], format='%d.%m.%Y')" in str(again.value.__dict__.get("do"))


@pytest.mark.promise("an error names the expression for `source.schema` that makes times of them, tried on a value")
def test_the_expression_of_the_advice_makes_times_for_every_rule(tmp_path: Path) -> None:
    path = written(tmp_path, [*DAYS[2:], *DAYS[:2]])  # 2024 first
    data = Dataset(path, schema=READ, engine="pandas")
    assert str(data.schema["t"].dtype) == "timestamp[us]"
    splits = data.split("time", column="t", valid="2024-01-01")
    assert {name: rows(part) for name, part in splits.items()} == {"train": [2, 3], "valid": [0, 1]}
    shares = data.split("time", column="t", valid=0.25)
    assert rows(shares["valid"]) == [1]
    (tmp_path / "one.csv").write_text("u,i,t\n" + "".join(f"7,{n},{day}\n" for n, day in enumerate(DAYS[::-1])))
    one = Dataset(str(tmp_path / "one.csv"), schema=READ, engine="pandas")
    assert rows(one.unique("u", keep="last", by="t"), "i") == [0]
    assert rows(one.shuffle_by_keys("u", sort_by="t"), "i") == [3, 2, 1, 0]
    assert rows(one.split("last", column="t", together="u", valid=1)["valid"], "i") == [0]
    keyed = one.shuffle_by_keys("u", sort_by="t")
    frame = Workflow(["i"] >> ops.History(3, "u", time_col="t")).fit_transform(keyed).head(4)
    assert [[int(i) for i in history] for history in frame["i_history"]] == [[], [3], [3, 2], [3, 2, 1]]


@pytest.mark.promise("A value that the expression cannot read is an error with its file and row")
def test_an_expression_of_the_schema_holds_for_later_data_and_names_a_value_that_it_cannot_read(tmp_path: Path) -> None:
    workflow = Workflow(["t"] >> ops.Lambda(expression="day(t)", dtype="int64"))
    workflow.fit(Dataset(written(tmp_path, DAYS), schema=READ, engine="pandas"))
    later = Dataset(written(tmp_path, ["07.03.2024"], "later.csv"), engine="pandas")
    assert workflow.transform(later).head()["t"].tolist() == [7]
    bad = written(tmp_path, ["07.03.2024", "2024-03-08"], "bad.csv")
    with pytest.raises(DataError, match="cannot read '2024-03-08' of column 't'") as error:
        Dataset(bad, schema=READ, engine="pandas").head()
    assert error.value.where == f"{bad}, row 2 of the source"
    both = {"t": "coalesce(parse_time(_, '%d.%m.%Y'), parse_time(_))"}
    assert Dataset(bad, schema=both, engine="pandas").head()["t"].tolist() == [
        dt.datetime(2024, 3, 7), dt.datetime(2024, 3, 8)
    ]  # fmt: skip
    with pytest.raises(JobError, match="can only use its own column"):
        rows(Dataset(bad, schema={"t": "coalesce(_, lower(u))"}, engine="pandas"))


@pytest.mark.promise("ISO 8601 in one form sorts as it is, and so do texts that are not times")
@pytest.mark.parametrize(
    ("texts", "expression"),
    [
        (["2023-12-31", "2024-01-01T12:00:00.5"], None),
        (["2023-12-31 23:00Z", "2024-01-01 00:00Z"], None),
        (["2023/12/31", "2024/01/01"], None),
        (["1.10", "1.9", "2.0"], None),
        (["new", "shipped", "step 2"], None),
        (["2023-12-31T23:00+00:00", "2024-01-01T00:30+02:00"], "parse_time(_)"),
        (["2023-12-31T23:00", "2023-12-31 23:30"], "parse_time(_)"),
        (["11/14/2019 9:05:58 AM", "11/14/2019 10:05:58 AM"], "parse_time(_, '%m/%d/%Y %I:%M:%S %p')"),
        (["31 Dec 2023", "1 Jan 2024"], "parse_time(_, '%d %b %Y')"),
        (["01.02.2024", "02.01.2024"], "parse_time(_, '%d.%m.%Y')"),
    ],
)
def test_texts_are_refused_where_their_bytes_do_not_sort_as_their_times(texts: list[str], expression: str) -> None:
    found = find_unsorted_times(pa.array(texts))
    assert (found and found.expression) == expression


def test_days_and_months_that_cannot_be_told_apart_are_said_to_be_so() -> None:
    found = find_unsorted_times(pa.array(["01/02/2024", "02/01/2023"]))
    assert found
    assert found.format == "%m/%d/%Y"
    assert "'%d/%m/%Y' too" in found.why


@pytest.mark.promise("ISO 8601 in one form sorts as it is, and so do texts that are not times")
def test_a_text_that_is_no_time_sorts_as_text_but_splits_nothing_by_time(tmp_path: Path) -> None:
    table = pa.table({"u": [1, 1, 1], "v": ["b", "c", "a"], "i": [0, 1, 2]})
    data = Dataset(table, engine="pandas")
    assert rows(data.shuffle_by_keys("u", sort_by="v"), "i") == [2, 0, 1]
    assert rows(data.unique("u", by="v"), "i") == [2]
    with pytest.raises(JobError, match=r"needs a column of times or numbers, and 'v' is string \('b'\)"):
        rows(data.split("time", column="v", valid="2024-01-01")["train"])


def test_groupby_refuses_to_sort_by_texts_that_are_times() -> None:
    table = pa.table({"u": [1, 1], "t": ["31.12.2023", "01.01.2024"], "i": [1, 2]})
    keyed = Dataset(table, engine="pandas").shuffle_by_keys("u")
    groupby = ops.Groupby("u", ["t"], {"i": "list"})
    with pytest.raises(DataError, match="Groupby sorts by 't', and its times are texts") as error:
        Workflow(["u", "t", "i"] >> groupby).fit_transform(keyed).head()
    assert "Lambda(expression=\"parse_time(_, '%d.%m.%Y')\")" in error.value.do
    columns = ["u", "i"] + (["t"] >> ops.Lambda(expression="parse_time(_, '%d.%m.%Y')"))
    assert [*Workflow(columns >> groupby).fit_transform(keyed).head()["i_list"][0]] == [1, 2]


@pytest.mark.promise("The unit is found from all values; log and manifest state it")
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("dtype", [pa.int64(), pa.float64(), pa.uint64()])
def test_a_moment_splits_numbers_that_count_since_1970(unit: str, dtype: pa.DataType) -> None:
    per = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    times = pa.array([0, (NIGHT - 7200) * per, None, NIGHT * per, (NIGHT + 7200) * per], pa.int64()).cast(
        dtype, safe=False
    )
    data = Dataset(pa.table({"u": [0, 1, 2, 3, 4], "t": times}), engine="pandas")
    splits = data.split("time", column="t", valid="2024-01-02", test="2024-01-02T03:00+02:00")
    assert {name: rows(part) for name, part in splits.items()} == {"train": [0, 1, 2], "valid": [3], "test": [4]}
    whole = data.split("time", column="t", together="u", valid="2024-01-02")
    assert rows(whole["valid"]) == [3, 4]


@pytest.mark.parametrize(
    "times",
    [
        pa.array([NIGHT - 1, NIGHT], pa.int64()).cast(pa.timestamp("s", "Europe/Berlin")),
        pa.array([dt.date(2024, 1, 1), dt.date(2024, 1, 2)]),
        pa.array([NIGHT - 1, NIGHT], pa.int64()).cast(pa.timestamp("s")),
    ],
)
def test_a_moment_splits_dates_and_timestamps_with_and_without_zone(times: pa.Array) -> None:
    splits = Dataset(pa.table({"u": [0, 1], "t": times}), engine="pandas").split("time", column="t", valid="2024-01-02")
    assert {name: rows(part) for name, part in splits.items()} == {"train": [0], "valid": [1]}


@pytest.mark.promise("The unit is found from all values; log and manifest state it")
@pytest.mark.parametrize(
    ("times", "why"),
    [
        ([NIGHT, NIGHT * 1000], "1704153600 counts s since 1970 and 1704153600000 counts ms since 1970"),
        ([20240101, 20240102], "20240101 may be a time as %Y%m%d writes it"),
        ([202401010000, 202401020000], "202401010000 may be a time as %Y%m%d%H%M writes it"),
        ([3, 4], "3 is not a time from 1973 to 2286 in any unit and 4 is not a time from 1973 to 2286 in any unit"),
        ([0, None], "all of them are null or 0"),
    ],
)
def test_numbers_that_do_not_tell_their_unit_are_refused(times: list[int], why: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"u": [0, 1], "t": pa.array(times, pa.int64())}), tmp_path / "x.parquet")
    split: dict[str, Any] = {"by": "time", "column": "t", "valid": "2024-01-02"}
    with pytest.raises(JobError, match="do not tell what they count") as error:
        rows(Dataset(str(tmp_path / "x.parquet"), engine="pandas").split(**split)["train"])
    assert error.value.why == why
    if advice := re.search(r"source\.schema: (\{.*\})", error.value.do):
        data = Dataset(str(tmp_path / "x.parquet"), schema=yaml.safe_load(advice[1]), engine="pandas")
        assert rows(data.split(**split)["valid"]) == ([0, 1] if times[0] == NIGHT else [1])
    late = Dataset(str(tmp_path / "x.parquet"), engine="pandas").split(**split | {"valid": "1970-01-01", "unit": "s"})
    assert rows(late["valid"]) == [number for number, time in enumerate(times) if time is not None]


@pytest.mark.promise("The unit is found from all values; log and manifest state it")
def test_a_job_says_the_unit_in_log_and_manifest_and_a_preview_refuses_what_the_run_will(tmp_path: Path) -> None:
    pq.write_table(pa.table({"u": [0, 1], "t": [NIGHT - 1, NIGHT], "s": DAYS[:2]}), tmp_path / "x.parquet")
    split = {"by": "time", "column": "t", "valid": "2024-01-02"}
    job = {"source": {"path": str(tmp_path / "x.parquet"), "split": split}, "features": [{"columns": ["u"]}],
           "output": {"path": str(tmp_path / "out"), "files": 1}}  # fmt: skip
    results = run_stages(make_job(job).request("pandas"))
    assert results[0].divided == "times are numbers that count s since 1970"
    divided = Manifest.load(tmp_path / "out" / "valid").data["row_rules"]["split"]["divided"]
    assert divided == {"unit": "s", "text": "times are numbers that count s since 1970"}
    assert rows_of(tmp_path / "out" / "valid")["u"].to_pylist() == [1]
    assert [(r.what, r.columns) for r in preview(make_job(job)).readings][0] == ("ingest: the unit of times", ["t"])
    for source, message in (
        ({"split": {**split, "column": "u"}}, "the numbers of column 'u' do not tell what they count"),
        ({"split": {**split, "column": "s"}}, "source.split goes by 's', and its times are texts"),
        ({"unique": {"keys": ["u"], "by": "s"}}, "source.unique.by goes by 's'"),
        ({"keys": ["u"], "sort_by": ["s"]}, "source.sort_by goes by 's'"),
    ):
        other = {**job, "source": {"path": str(tmp_path / "x.parquet"), **source}}
        with pytest.raises(JobError, match=message):
            preview(make_job(other))
    sorted_output = {**job, "source": {"path": str(tmp_path / "x.parquet")}, "features": [{"columns": ["u", "s"]}],
                     "output": {**job["output"], "shuffle": "key", "keys": ["u"], "sort_by": ["s"]}}  # fmt: skip
    with pytest.raises(JobError, match=r"output.sort_by goes by 's'"):
        preview(make_job(sorted_output))


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"valid": 0.1, "unit": "s"}, "unit is for by: time with times as valid and test"),
        ({"valid": 5, "unit": "s"}, "unit is for by: time with times as valid and test"),
        ({"valid": "2024-01-02T00:30+02:00", "test": "2024-01-01T22:00"}, "test begins after valid"),
    ],
)
def test_a_split_by_moments_that_contradicts_itself_is_refused(split: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        Dataset(pa.table({"t": [1]}), engine="pandas").split("time", column="t", **split)


def test_a_unit_for_times_and_a_moment_that_is_none_are_refused() -> None:
    data = Dataset(pa.table({"t": [NIGHT, NIGHT + 1], "d": [dt.date(2024, 1, 1)] * 2}), engine="pandas")
    with pytest.raises(JobError, match="unit is for a column of numbers, and 'd' is date32"):
        rows(data.split("time", column="d", valid="2024-01-01", unit="s")["train"], "t")
    with pytest.raises(JobError, match="valid and test are not times in ISO 8601"):
        rows(data.split("time", column="t", valid="31.12.2023")["train"], "t")
