"""Tables of Iceberg as sources: the same rows as PyIceberg's own scan."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, IdentityTransform, MonthTransform, YearTransform
from pyiceberg.types import LongType, StringType

from tasks.errors import DataError, HostError, JobError, NoInputError
from tasks.lake.iceberg import CheckedFileIO, load_table
from tests.tasks.lake.tables import catalog, delete_row, in_order, plan_of, rows_of, table_of

__all__ = ["catalog"]


def same_rows(table: Table, **source: Any) -> list[dict[str, Any]]:
    """The rows of a table, which are those of PyIceberg's own scan."""
    rows = rows_of(plan_of(iceberg="demo.shop.clicks", **source))
    assert rows == in_order(table.scan(snapshot_id=source.get("snapshot")).to_arrow().to_pylist())
    return rows


def test_columns_that_were_renamed_added_dropped_and_widened_are_read_by_their_ids(catalog: Catalog) -> None:
    first = table_of({"x": [1, 2], "name": ["a", "b"], "gone": [7, 8]}, x=pa.int32(), gone=pa.int64())
    table = catalog.create_table("shop.clicks", first.schema)
    table.append(first)
    with table.update_schema() as update:
        update.rename_column("name", "label")
        update.delete_column("gone")
        update.update_column("x", LongType())
    with table.update_schema() as update:
        update.add_column("gone", StringType())
        update.add_column("name", StringType())
    table.append(table_of({"x": [3], "label": ["c"], "gone": ["new"], "name": ["z"]}))
    assert same_rows(table) == [
        {"x": 1, "label": "a", "gone": None, "name": None},
        {"x": 2, "label": "b", "gone": None, "name": None},
        {"x": 3, "label": "c", "gone": "new", "name": "z"},
    ]
    assert plan_of(iceberg="demo.shop.clicks").schema["x"].dtype == pa.int64()


def test_a_column_that_no_file_has_is_null_in_all_rows(catalog: Catalog) -> None:
    table = catalog.create_table("shop.clicks", pa.schema([("x", pa.int64())]))
    table.append(table_of({"x": [1]}))
    with table.update_schema() as update:
        update.add_column("late", LongType())
    assert same_rows(table) == [{"x": 1, "late": None}]


def test_a_snapshot_and_a_time_name_a_state_of_the_table(catalog: Catalog) -> None:
    table = catalog.create_table("shop.clicks", pa.schema([("x", pa.int64())]))
    table.append(table_of({"x": [1]}))
    first = table.current_snapshot()
    table.append(table_of({"x": [2]}))
    assert first
    assert same_rows(table, snapshot=first.snapshot_id) == [{"x": 1}]
    assert same_rows(table) == [{"x": 1}, {"x": 2}]
    with pytest.raises(JobError, match="had no snapshot at 2020-01-01"):
        plan_of(iceberg="demo.shop.clicks", as_of="2020-01-01")
    assert plan_of(iceberg="demo.shop.clicks", as_of="2999-01-01").options["table"]["files"] == 2
    with pytest.raises(JobError, match="the table has no snapshot 5"):
        plan_of(iceberg="demo.shop.clicks", snapshot=5)


def test_files_without_ids_are_read_by_the_names_of_the_table_and_the_values_of_partitions(
    catalog: Catalog, tmp_path: Path
) -> None:
    schema = pa.schema([("x", pa.int64()), ("day", pa.date32()), ("name", pa.string())])
    table = catalog.create_table("shop.clicks", schema)
    with table.update_spec() as spec:
        spec.add_field("day", IdentityTransform(), "day")
    day = pa.array([20_758, 20_758], pa.int32()).cast(pa.date32())
    pq.write_table(pa.table({"name": ["a", "b"], "x": [1, 2], "day": day}), tmp_path / "own.parquet")
    table.add_files([f"file://{tmp_path}/own.parquet"])
    assert [row["x"] for row in same_rows(table)] == [1, 2]
    with table.update_schema() as update:
        update.rename_column("name", "label")
    assert [row["label"] for row in same_rows(table)] == ["a", "b"]


def test_a_filter_on_one_day_of_a_year_opens_one_file_of_365(catalog: Catalog, tmp_path: Path) -> None:
    table = catalog.create_table("shop.clicks", pa.schema([("ts", pa.timestamp("us")), ("x", pa.int64())]))
    with table.update_spec() as spec:
        spec.add_field("ts", DayTransform(), "ts_day")
    paths = []
    for number in range(365):
        start = (20_454 + number) * 86_400_000_000
        ts = pa.array([start, start + 86_399_999_999], pa.int64()).cast(pa.timestamp("us"))
        pq.write_table(pa.table({"ts": ts, "x": [number, number]}), tmp_path / f"{number:03}.parquet")
        paths.append(f"file://{tmp_path}/{number:03}.parquet")
    table.add_files(paths)
    condition = "ts >= '2026-03-01' and ts < '2026-03-02'"
    plan = plan_of(iceberg="demo.shop.clicks", filter=condition)
    assert [Path(file.path).name for file in plan.files] == ["059.parquet"]
    assert plan.options["table"]["left_out"] == 364
    assert rows_of(plan) == in_order(
        table.scan("ts >= '2026-03-01T00:00:00' and ts < '2026-03-02T00:00:00'").to_arrow().to_pylist()
    )


@pytest.mark.parametrize(
    ("column", "values", "transform", "condition", "names"),
    [
        ("day", [20_758, 20_759, 20_790], IdentityTransform(), "day == '2026-11-02'", ["1"]),
        ("day", [20_758, 20_759, 20_790], MonthTransform(), "day >= '2026-12-01'", ["2"]),
        ("day", [20_758, 20_759, 21_000], YearTransform(), "day < '2027-01-01'", ["0", "1"]),
        ("name", ["a", "b", None], IdentityTransform(), "name in ('a', 'c')", ["0", "2"]),
    ],
)
def test_manifests_whose_partitions_have_no_rows_for_the_filter_are_not_read(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    column: str, values: list[Any], transform: Any, condition: str, names: list[str],
) -> None:  # fmt: skip
    dtype = pa.date32() if column == "day" else pa.string()
    table = catalog.create_table("shop.clicks", pa.schema([(column, dtype)]))
    with table.update_spec() as spec:
        spec.add_field(column, transform, "part")
    for number, value in enumerate(values):
        cells = pa.array([value], pa.int32()).cast(dtype) if column == "day" else pa.array([value], dtype)
        pq.write_table(pa.table({column: cells}), tmp_path / f"{number}.parquet")
        table.add_files([f"file://{tmp_path}/{number}.parquet"])
    opened = []
    open_input = CheckedFileIO.new_input
    monkeypatch.setattr(CheckedFileIO, "new_input", lambda self, place: opened.append(place) or open_input(self, place))
    plan = plan_of(iceberg="demo.shop.clicks", filter=condition)
    assert [Path(file.path).stem for file in plan.files] == names
    manifests = [place for place in opened if place.endswith(".avro") and "/snap-" not in place]
    assert [len(manifests), plan.options["table"]["left_out"]] == [len(names), 3 - len(names)]


def test_a_filter_that_keeps_nothing_opens_one_file(catalog: Catalog) -> None:
    table = catalog.create_table("shop.clicks", pa.schema([("x", pa.int64())]))
    table.append(table_of({"x": [1]}))
    table.append(table_of({"x": [2]}))
    assert len(plan_of(iceberg="demo.shop.clicks", filter="x > 5").files) == 1


def test_nested_columns_are_read_unless_their_fields_changed(catalog: Catalog) -> None:
    kind = pa.struct([("a", pa.int64()), ("b", pa.string())])
    rows = pa.table(
        {"x": [1], "s": pa.array([{"a": 1, "b": "u"}], kind), "l": pa.array([[1, 2]], pa.list_(pa.int64()))}
    )
    table = catalog.create_table("shop.clicks", rows.schema)
    table.append(rows)
    assert same_rows(table) == [{"x": 1, "s": {"a": 1, "b": "u"}, "l": [1, 2]}]
    with table.update_schema() as update:
        update.rename_column(("s", "a"), "c")
    with pytest.raises(DataError, match="the fields of the nested column 's' are not those of the table"):
        plan_of(iceberg="demo.shop.clicks")


def test_names_that_lead_to_no_table_are_refused(catalog: Catalog) -> None:
    with pytest.raises(JobError, match=r"the host has no catalog 'prod'(.|\n)*its settings name demo"):
        plan_of(iceberg="prod.shop.clicks")
    with pytest.raises(JobError, match="there is no such table in the catalog"):
        plan_of(iceberg="demo.shop.clicks")
    catalog.create_table("shop.clicks", pa.schema([("x", pa.int64())]))
    with pytest.raises(NoInputError, match="there is no input"):
        plan_of(iceberg="demo.shop.clicks")


@pytest.mark.promise("has to be inside of `ROWMILL_ALLOWED_ROOTS`")
def test_files_outside_of_the_allowed_roots_are_not_opened(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = catalog.create_table("shop.clicks", pa.schema([("x", pa.int64())]))
    (tmp_path / "other").mkdir()
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other" / "a.parquet")
    table.add_files([f"file://{tmp_path}/other/a.parquet"])
    monkeypatch.setenv("ROWMILL_ALLOWED_ROOTS", f"{tmp_path}/warehouse")
    with pytest.raises(HostError, match=r"a data file of iceberg://demo/shop.clicks = .*/other/a.parquet"):
        plan_of(iceberg="demo.shop.clicks")
    monkeypatch.setenv("ROWMILL_ALLOWED_ROOTS", f"{tmp_path}/other")
    with pytest.raises(HostError, match=r"a file of the metadata of an Iceberg table = .*/warehouse/"):
        plan_of(iceberg="demo.shop.clicks")


def test_the_properties_of_a_table_name_no_class_that_opens_its_files(catalog: Catalog) -> None:
    theirs = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
    table = catalog.create_table("shop.clicks", pa.schema([("x", pa.int64())]), properties=theirs)
    table.append(table_of({"x": [1]}))
    assert type(load_table("demo.shop.clicks", "source.iceberg").io) is CheckedFileIO
    assert rows_of(plan_of(iceberg="demo.shop.clicks")) == [{"x": 1}]


@pytest.mark.promise("each once", "flows/KEYS.md#sourceiceberg-sourcedelta")
def test_what_was_added_since_a_snapshot_is_read_once(catalog: Catalog) -> None:
    table = catalog.create_table("shop.clicks", pa.schema([("x", pa.int64())]))
    table.append(table_of({"x": [1]}))
    start = table.current_snapshot()
    table.append(table_of({"x": [2]}))
    table.append(table_of({"x": [3]}))
    assert start
    assert rows_of(plan_of(iceberg="demo.shop.clicks", since=start.snapshot_id)) == [{"x": 2}, {"x": 3}]
    last = table.current_snapshot()
    assert last
    with pytest.raises(NoInputError, match=r"has no data files that are new"):
        plan_of(iceberg="demo.shop.clicks", since=last.snapshot_id)


@pytest.mark.promise("`not only appended to`")
def test_a_table_that_was_not_only_appended_to_has_no_rows_since(catalog: Catalog) -> None:
    table = catalog.create_table("shop.clicks", pa.schema([("x", pa.int64())]))
    table.append(table_of({"x": [1, 5]}))
    start = table.current_snapshot()
    table.append(table_of({"x": [2]}))
    table.delete("x = 1")
    assert start
    with pytest.raises(DataError, match="not only appended to") as refused:
        plan_of(iceberg="demo.shop.clicks", since=start.snapshot_id)
    assert re.fullmatch(
        r"snapshot \d+ of 20.* UTC is overwrite: 2 deleted records, 1 deleted data files, 1 added records, "
        r"1 added data files",
        refused.value.why,
    )
    with pytest.raises(DataError, match="snapshot 7 has expired"):
        plan_of(iceberg="demo.shop.clicks", since=7)
    with pytest.raises(JobError, match="since: last is for a run with a base"):
        plan_of(iceberg="demo.shop.clicks", since="last")


def test_deleted_rows_are_refused_and_earlier_snapshots_are_read(catalog: Catalog, tmp_path: Path) -> None:
    table = catalog.create_table("shop.clicks", pa.schema([("x", pa.int64())]))
    table.append(table_of({"x": [1, 2, 3]}))
    before = table.current_snapshot()
    delete_row(table, tmp_path, 1)
    assert before
    assert table.refresh().scan().to_arrow()["x"].to_pylist() == [1, 3]
    with pytest.raises(DataError, match="the table has deleted rows") as refused:
        plan_of(iceberg="demo.shop.clicks")
    assert "CALL system.rewrite_data_files" in refused.value.do
    assert len(rows_of(plan_of(iceberg="demo.shop.clicks", snapshot=before.snapshot_id))) == 3
