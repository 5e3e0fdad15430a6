"""Tables of Iceberg and Delta for tests: a SQLite catalog with a local warehouse, and folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog

from tasks.core.plan import Plan
from tasks.core.settings import Source
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
