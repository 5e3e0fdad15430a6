"""Tables of Delta as sources: the same rows as delta-rs's own read."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tasks.errors import DataError, HostError, JobError
from tests.tasks.lake.tables import in_order, plan_of, rows_of, table_of


def same_rows(path: Path, **source: Any) -> list[dict[str, Any]]:
    """The rows of a table, which are those of delta-rs's own read."""
    rows = rows_of(plan_of(delta=str(path), **source))
    own = DeltaTable(path, version=source.get("version")).to_pyarrow_table().to_pylist()
    assert rows == in_order([{name: row[name] for name in rows[0]} for row in own])
    return rows


def test_partition_columns_come_from_the_log_with_nulls_and_signs(tmp_path: Path) -> None:
    day = datetime.date(2026, 11, 1)
    rows = {"day": [day, day, None], "p": ["a b", "é/x=1", "c%20"], "x": [1, 2, 3]}
    write_deltalake(tmp_path / "t", table_of(rows), partition_by=["day", "p"])
    assert same_rows(tmp_path / "t") == [
        {"day": day, "p": "a b", "x": 1},
        {"day": day, "p": "é/x=1", "x": 2},
        {"day": None, "p": "c%20", "x": 3},
    ]


def test_partition_values_have_the_types_of_the_table(tmp_path: Path) -> None:
    ts = pa.array([1_700_000_000_123_456, 0], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    rows = pa.table({"ts": ts, "n": pa.array([7, None], pa.int16()), "ok": [True, False], "x": [1, 2]})
    write_deltalake(tmp_path / "t", rows, partition_by=["ts", "n", "ok"])
    assert same_rows(tmp_path / "t") == rows.to_pylist()
    assert plan_of(delta=str(tmp_path / "t")).schema["n"].dtype == pa.int16()


def test_a_column_that_was_added_is_null_in_older_files(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", table_of({"x": [1]}))
    write_deltalake(tmp_path / "t", table_of({"x": [2], "y": ["b"]}), mode="append", schema_mode="merge")
    assert same_rows(tmp_path / "t") == [{"x": 1, "y": None}, {"x": 2, "y": "b"}]


def test_a_version_and_a_time_name_a_state_and_removed_files_are_not_read(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", table_of({"x": [1]}))
    write_deltalake(tmp_path / "t", table_of({"x": [2]}), mode="overwrite")
    assert same_rows(tmp_path / "t") == [{"x": 2}]
    assert same_rows(tmp_path / "t", version=0) == [{"x": 1}]
    assert plan_of(delta=str(tmp_path / "t"), as_of="2999-01-01").options["table"]["version"] == 1
    with pytest.raises(DataError, match="the table cannot be used"):
        plan_of(delta=str(tmp_path / "t"), version=9)


def test_a_filter_on_one_day_of_a_year_opens_one_file_of_365(tmp_path: Path) -> None:
    days = pa.array(range(20_454, 20_819), pa.int32()).cast(pa.date32())
    write_deltalake(tmp_path / "t", pa.table({"day": days, "x": range(365)}), partition_by=["day"])
    plan = plan_of(delta=str(tmp_path / "t"), filter="day == '2026-03-01'")
    assert len(plan.files) == 1
    assert rows_of(plan) == [{"day": datetime.date(2026, 3, 1), "x": 59}]


def test_statistics_in_the_log_leave_out_files(tmp_path: Path) -> None:
    for start in (0, 1_000, 2_000):
        ts = pa.array([start, start + 999], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
        write_deltalake(tmp_path / "t", pa.table({"ts": ts, "x": [start, start + 999]}), mode="append")
    plan = plan_of(delta=str(tmp_path / "t"), filter="x >= 1000 and x < 1010")
    assert [len(plan.files), [row["x"] for row in rows_of(plan)]] == [1, [1000, 1999]]
    # the log has milliseconds: that the first file ends at 0.000999 is not known
    plan = plan_of(delta=str(tmp_path / "t"), filter="ts >= '1970-01-01T00:00:00.000999Z'")
    assert {row["x"] for row in rows_of(plan)} >= {999, 1000, 1999}


def change_log(table: Path, **changes: dict[str, Any]) -> None:
    """Lay values over the actions of the first commit of a table, by their kinds."""
    log = table / "_delta_log" / "00000000000000000000.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        for kind in changes.keys() & action.keys():
            action[kind] |= changes[kind]
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))


def test_deleted_rows_are_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", table_of({"x": [1, 2, 3]}))
    features = ["deletionVectors"]
    change_log(
        tmp_path / "t",
        protocol={"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features},
        metaData={"configuration": {"delta.enableDeletionVectors": "true"}},
    )
    assert [row["x"] for row in rows_of(plan_of(delta=str(tmp_path / "t")))] == [1, 2, 3]
    # row 1 of the file, as an array of roaring bitmaps in base 85
    vector = "^Bg9^0rr910000000000iXQKl0rr91000005c8Xg0rr91"
    change_log(
        tmp_path / "t",
        add={"deletionVector": {"storageType": "i", "pathOrInlineDv": vector, "sizeInBytes": 34, "cardinality": 1}},
    )
    with pytest.raises(DataError, match="the table has deleted rows") as refused:
        plan_of(delta=str(tmp_path / "t"))
    assert "REORG TABLE .. APPLY (PURGE)" in refused.value.do


def test_columns_under_other_names_are_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", table_of({"x": [1]}))
    field = {"name": "x", "type": "long", "nullable": True}
    names = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "x"}
    change_log(
        tmp_path / "t",
        protocol={"minReaderVersion": 2, "minWriterVersion": 5},
        metaData={
            "configuration": {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "1"},
            "schemaString": json.dumps({"type": "struct", "fields": [field | {"metadata": names}]}),
        },
    )
    with pytest.raises(DataError, match="the table renames its columns"):
        plan_of(delta=str(tmp_path / "t"))


def test_a_path_that_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    with pytest.raises(JobError, match="there is no table of Delta"):
        plan_of(delta=str(tmp_path / "t"))


def test_files_outside_of_the_allowed_roots_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_deltalake(tmp_path / "t", table_of({"x": [1]}))
    monkeypatch.setenv("ROWMILL_ALLOWED_ROOTS", f"{tmp_path}/other")
    with pytest.raises(HostError, match=r"source.delta = .*/t"):
        plan_of(delta=str(tmp_path / "t"))
    monkeypatch.setenv("ROWMILL_ALLOWED_ROOTS", f"{tmp_path}/t")
    change_log(tmp_path / "t", add={"path": f"file://{tmp_path}/other/a.parquet"})
    with pytest.raises(HostError, match=r"a data file of .*/other/a.parquet"):
        plan_of(delta=str(tmp_path / "t"))
