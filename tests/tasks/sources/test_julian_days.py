"""Days before 1582-10-15 in Parquet, Avro and ORC files of Spark 2 and of Spark 3's legacy mode."""

from __future__ import annotations

import datetime
import io
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from rowmill import Dataset, Workflow

from tasks.core.settings import Source
from tasks.errors import DataError
from tasks.sources.planning import make_plan
from tasks.sources.reader import read
from tests.frames import to_list

# Spark's own pairs (RebaseDateTime): days since 1970 as Spark 2 wrote them, and the day that was meant
DAYS = {
    -719_164: datetime.date(1, 1, 1), -682_945: datetime.date(100, 3, 1), -682_946: datetime.date(100, 3, 1),
    -171_411: datetime.date(1500, 9, 1), -141_428: datetime.date(1582, 10, 4), -141_427: datetime.date(1582, 10, 15),
    0: datetime.date(1970, 1, 1),
}  # fmt: skip
ROW_SCHEMA = {"org.apache.spark.sql.parquet.row.metadata": "{}"}
SPARK_2 = [ROW_SCHEMA, {"org.apache.spark.version": "2.4.8"},
           {"org.apache.spark.version": "3.2.1", "org.apache.spark.legacyDateTime": ""}]  # fmt: skip
OTHERS: list[dict[str, str]] = [{}, {"org.apache.spark.version": "3.2.1"}, {"org.apache.spark.version": "4.0.0"}]


def write(folder: Path, columns: dict[str, pa.Array], keys: dict[str, str], **options: Any) -> None:
    pq.write_table(pa.table(columns).replace_schema_metadata(keys), folder / "a.parquet", **options)


def make_plan_of(folder: Path, **source: Any) -> Any:
    return make_plan(Source(path=str(folder), **source))


@pytest.mark.parametrize("keys", SPARK_2)
@pytest.mark.parametrize("statistics", [True, False])
def test_dates_of_spark_2_keep_their_day(keys: dict[str, str], statistics: bool, tmp_path: Path, engine: str) -> None:
    days = pa.array([None, *DAYS], pa.int32()).cast(pa.date32())
    write(tmp_path, {"d": days, "n": pa.array(range(len(days)))}, keys, write_statistics=statistics)
    data = Dataset(tmp_path, engine=engine)
    (frame,) = Workflow(["d", "n"]).fit(data).transform(data).frames()
    assert [value and str(value)[:10] for value in read(data.handle, 0)["d"].to_pylist()] == [
        None, *map(str, DAYS.values()),
    ]  # fmt: skip
    assert to_list(frame["n"]) == list(range(len(days)))


@pytest.mark.parametrize("keys", OTHERS)
def test_days_of_others_stay(keys: dict[str, str], tmp_path: Path) -> None:
    days = pa.array([-141_428, 0], pa.int32()).cast(pa.date32())
    write(tmp_path, {"d": days}, keys)
    plan = make_plan_of(tmp_path)
    assert read(plan, 0)["d"].to_pylist() == [datetime.date(1582, 10, 14), datetime.date(1970, 1, 1)]
    assert "on_host" not in plan.options


def test_only_columns_with_such_days_are_read_on_the_host(tmp_path: Path) -> None:
    days = {name: pa.array([day], pa.int32()).cast(pa.date32()) for name, day in (("old", -719_164), ("new", 0))}
    write(tmp_path, days, ROW_SCHEMA)
    assert make_plan_of(tmp_path).options["on_host"] == ["old"]


MEANT = [datetime.datetime(1, 1, 1, 12, 30, 0, 5), datetime.datetime(1582, 10, 4, 23),
         datetime.datetime(1677, 9, 22), None]  # fmt: skip
WRITTEN = [-719_164 * 86_400 * 10**6 + 45_000 * 10**6 + 5, -141_428 * 86_400 * 10**6 + 82_800 * 10**6,
           -9_223_286_400 * 10**6, None]  # fmt: skip
UTC = {"org.apache.spark.timeZone": "UTC"}


@pytest.mark.promise("Times do so if the file says that it was written in UTC")
@pytest.mark.parametrize("wide", [True, False])
def test_times_of_spark_2_are_read_or_refused(wide: bool, tmp_path: Path) -> None:
    times = pa.array(WRITTEN, pa.int64()).cast(pa.timestamp("us"))
    key = "org.apache.spark.legacyINT96" if wide else "org.apache.spark.legacyDateTime"
    keys = {"org.apache.spark.version": "3.5.0", key: ""}
    write(tmp_path, {"t": times}, keys | UTC, use_deprecated_int96_timestamps=wide)
    types = {"t": "timestamp[us]"}
    assert read(make_plan_of(tmp_path, schema=types), 0)["t"].to_pylist() == MEANT
    for zone in ({"org.apache.spark.timeZone": "Europe/Berlin"}, {}):
        write(tmp_path, {"t": times}, keys | zone, use_deprecated_int96_timestamps=wide)
        with pytest.raises(DataError, match="'t' has times of the Julian calendar") as refused:
            read(make_plan_of(tmp_path, schema=types), 0)
        mode = "int96RebaseMode" if wide else "datetimeRebaseMode"
        assert f"spark.sql.parquet.{mode}InRead=LEGACY" in refused.value.do
        assert f"spark.sql.parquet.{mode}InWrite=CORRECTED" in refused.value.do
        write(tmp_path, {"t": times.slice(2)}, keys | zone, use_deprecated_int96_timestamps=wide)
        assert read(make_plan_of(tmp_path, schema=types), 0)["t"].to_pylist() == MEANT[2:]
    write(tmp_path, {"t": times}, {"org.apache.spark.version": "3.5.0"}, use_deprecated_int96_timestamps=wide)
    assert read(make_plan_of(tmp_path, schema=types), 0)["t"].cast(pa.int64()).to_pylist() == WRITTEN


@pytest.mark.parametrize("nested", ["list", "struct"])
def test_such_days_in_lists_and_structs_are_refused(nested: str, tmp_path: Path) -> None:
    days = pa.array([-719_164, 0], pa.int32()).cast(pa.date32())
    columns = {"list": pa.ListArray.from_arrays([0, 1, 2], days), "struct": pa.StructArray.from_arrays([days], ["d"])}
    write(tmp_path, {"x": columns[nested]}, ROW_SCHEMA)
    with pytest.raises(DataError, match="'x' has times of the Julian calendar"):
        read(make_plan_of(tmp_path), 0)


AVRO_2 = [("topLevelRecord", {}), ("topLevelRecord", {"org.apache.spark.version": "2.4.8"}),
          ("topLevelRecord", {"org.apache.spark.version": "3.2.1", "org.apache.spark.legacyDateTime": ""})]  # fmt: skip
AVRO_OTHERS: list[tuple[str, dict[str, str]]] = [
    ("Event", {}),
    ("topLevelRecord", {"org.apache.spark.version": "3.2.1"}),
]


def write_avro(folder: Path, field: dict[str, Any], values: list[Any], name: str, keys: dict[str, str]) -> None:
    """Numbers of days or microseconds in a file whose metadata say that they are dates or times."""
    record = {"type": "record", "name": name, "fields": [{"name": "x", "type": ["null", field]}]}
    with (folder / "a.avro").open("wb") as file:
        fastavro.writer(file, record, [{"x": value} for value in values], metadata=keys)


def read_x(folder: Path) -> list[Any]:
    values: list[Any] = read(make_plan_of(folder), 0)["x"].to_pylist()
    return values


@pytest.mark.promise("Dates in such Parquet, Avro and ORC files keep their year, month and day")
@pytest.mark.parametrize(("name", "keys"), AVRO_2)
def test_dates_of_spark_2_in_avro_keep_their_day(name: str, keys: dict[str, str], tmp_path: Path) -> None:
    date = {"type": "int", "logicalType": "date"}
    write_avro(tmp_path, date, [*DAYS, None], name, keys)
    assert read_x(tmp_path) == [*DAYS.values(), None]
    dates = {"type": "array", "items": date}
    write_avro(tmp_path, dates, [[0], [-719_162]], name, keys)
    with pytest.raises(DataError, match="'x' has times of the Julian calendar") as refused:
        read_x(tmp_path)
    assert "spark.sql.avro.datetimeRebaseModeInRead=LEGACY" in refused.value.do
    assert "spark.sql.avro.datetimeRebaseModeInWrite=CORRECTED" in refused.value.do


@pytest.mark.parametrize(("name", "keys"), AVRO_OTHERS)
def test_days_of_others_in_avro_stay(name: str, keys: dict[str, str], tmp_path: Path) -> None:
    write_avro(tmp_path, {"type": "int", "logicalType": "date"}, [-141_428], name, keys)
    assert read_x(tmp_path) == [datetime.date(1582, 10, 14)]


def test_times_of_spark_2_in_avro_are_read_or_refused(tmp_path: Path) -> None:
    micros = {"type": "long", "logicalType": "timestamp-micros"}
    keys = {"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyDateTime": ""}
    write_avro(tmp_path, micros, WRITTEN, "topLevelRecord", keys | UTC)
    assert [value and value.replace(tzinfo=None) for value in read_x(tmp_path)] == MEANT
    write_avro(tmp_path, micros, WRITTEN, "topLevelRecord", keys)
    with pytest.raises(DataError, match="'x' has times of the Julian calendar"):
        read_x(tmp_path)
    write_avro(tmp_path, micros, WRITTEN[2:], "topLevelRecord", keys)
    assert [value and value.replace(tzinfo=None) for value in read_x(tmp_path)] == MEANT[2:]


JAVA, CPP = b"\x48\x00", b"\x48\x01"  # field 9 of a footer: the program that wrote the file
HYBRID, PROLEPTIC = b"\x58\x01", b"\x58\x02"  # field 11: its calendar


def write_orc(folder: Path, values: pa.Array, said: bytes) -> None:
    """An ORC file whose footer ends with these fields: of two, the last one counts."""
    sink = io.BytesIO()
    orc.write_table(pa.table({"x": values}), sink, compression="uncompressed")
    body, length = sink.getvalue()[:-1], sink.getvalue()[-1]
    body, postscript = body[:-length], body[-length:]
    assert postscript[0] == 8  # field 1, the length of the footer, which is less than 128 here
    assert postscript[1] < 120
    postscript = bytes([8, postscript[1] + len(said)]) + postscript[2:]
    (folder / "a.orc").write_bytes(body + said + postscript + bytes([len(postscript)]))


@pytest.mark.parametrize(("said", "is_julian"), [
    (JAVA, True), (JAVA + HYBRID, True), (CPP + HYBRID, True), (JAVA + PROLEPTIC, False), (CPP, False), (b"", False),
])  # fmt: skip
def test_dates_of_orc_for_java_keep_their_day(said: bytes, is_julian: bool, tmp_path: Path) -> None:
    days = pa.array([-141_428, None, 0], pa.int32()).cast(pa.date32())
    write_orc(tmp_path, days, said)
    first = datetime.date(1582, 10, 4) if is_julian else datetime.date(1582, 10, 14)
    assert read_x(tmp_path) == [first, None, datetime.date(1970, 1, 1)]
    write_orc(tmp_path, pa.ListArray.from_arrays([0, 1, 3], days), said)
    if is_julian:
        with pytest.raises(DataError, match="'x' has times of the Julian calendar") as refused:
            read_x(tmp_path)
        assert refused.value.do == "write the column as Parquet; or leave it out"
    else:
        assert read_x(tmp_path) == [[first], [None, datetime.date(1970, 1, 1)]]


@pytest.mark.parametrize("codec", ["uncompressed", "zlib", "snappy", "zstd", "lz4"])
def test_the_footer_of_orc_is_read_in_each_codec(codec: str, tmp_path: Path) -> None:
    days = pa.array([-141_428], pa.int32()).cast(pa.date32())
    orc.write_table(pa.table({"x": days}), tmp_path / "a.orc", compression=codec)
    if codec == "lz4":
        with pytest.raises(DataError, match="'x' has times of the Julian calendar"):
            read_x(tmp_path)
    else:
        assert read_x(tmp_path) == [datetime.date(1582, 10, 14)]
