"""Tables of Iceberg and Delta for tests: a SQLite catalog with a local warehouse, and folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record

from tasks.core.plan import Plan
from tasks.core.settings import Source
from tasks.sources.formats.parquet_fields import MARK
from tasks.sources.planning import make_plan
from tasks.sources.reader import read


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """The catalog `demo` with the namespace `shop`, as the host's settings name it."""
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    settings = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    for key, value in settings.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__DEMO__{key.upper()}", value)
    (tmp_path / "warehouse").mkdir()
    opened = load_catalog("demo", **settings)
    opened.create_namespace("shop")
    return opened


def plan_of(**source: Any) -> Plan:
    return make_plan(Source.model_validate(source))


def rows_of(plan: Plan, sort_by: str = "x") -> list[dict[str, Any]]:
    """The rows of all partitions, as plain values, in the order of a column."""
    tables = [read(plan, number) for number in range(len(plan.partitions))]
    rows = [row for table in tables for row in table.to_pylist()]
    return in_order(rows, sort_by)


def in_order(rows: list[dict[str, Any]], sort_by: str = "x") -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row[sort_by] is None, row[sort_by]))


def table_of(columns: Mapping[str, Any], **types: pa.DataType) -> pa.Table:
    return pa.table({name: pa.array(values, types.get(name)) for name, values in columns.items()})


class _DeleteWriter(ManifestWriterV2):
    """Writes a manifest of delete files, which PyIceberg reads but does not write."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _Deletes(_FastAppendFiles):
    """A snapshot with delete files on top of the files of the one before."""

    def _manifests(self) -> list[ManifestFile]:
        table = self._transaction._table
        snapshot = table.current_snapshot()
        assert snapshot
        place = self._io.new_output(f"{table.location()}/metadata/deletes-{self.snapshot_id}.avro")
        with _DeleteWriter(table.spec(), table.schema(), place, self.snapshot_id, "null") as writer:
            for file in self._added_data_files:
                status = ManifestEntryStatus.ADDED
                entry = ManifestEntry.from_args(status=status, snapshot_id=self.snapshot_id, data_file=file)
                writer.add_entry(entry)
        return [*snapshot.manifests(self._io), writer.to_manifest_file()]


def delete_row(table: Table, folder: Path, place: int) -> None:
    """Delete one row of the only data file of a table, as Spark does it: by a file that names the row."""
    (task,) = table.scan().plan_files()
    named = pa.schema([
        pa.field("file_path", pa.string(), metadata={MARK: "2147483546"}),
        pa.field("pos", pa.int64(), metadata={MARK: "2147483545"}),
    ])  # fmt: skip
    rows = pa.table([[task.file.file_path], [place]], schema=named)
    pq.write_table(rows, folder / "deletes.parquet")
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES, file_path=f"file://{folder}/deletes.parquet",
        file_format=FileFormat.PARQUET, partition=Record(), record_count=1, spec_id=0,
        file_size_in_bytes=(folder / "deletes.parquet").stat().st_size,
    )  # fmt: skip
    with table.transaction() as transaction, _Deletes(Operation.OVERWRITE, transaction, table.io) as snapshot:
        snapshot.append_data_file(file)
