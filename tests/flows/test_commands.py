"""Commands in the process of a test: what they change of it is undone."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dask
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import default_client
from prefect.settings import get_current_settings

from tests.commands import rowmill

OWN = """
from rowmill.ops import Operator
class Twice(Operator):
    def transform(self, column, fitted):
        return column * 2
"""
JOB = """
source: {path: in.parquet}
features: [{columns: [x], ops: [{op: "mine:Twice"}]}]
output: {path: out, files: 1}
"""


def state(loggers: Iterable[str]) -> dict[str, Any]:
    """What a command may change of its process, among it the levels of these loggers."""
    return {
        "folder": Path.cwd(), "variables": dict(os.environ), "path": [*sys.path], "mine": "mine" in sys.modules,
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "levels": {name: logging.getLogger(name).level for name in loggers}, "raises": logging.raiseExceptions,
        "handlers": [*logging.root.handlers], "dask": dask.config.get("logging.distributed", None),
        "prefect": get_current_settings().model_dump(),
    }  # fmt: skip


def test_a_command_has_a_folder_and_variables_of_its_own_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    before = state(loggers := [*logging.root.manager.loggerDict])
    done = rowmill("ops", "mine:Twice", "--debug", folder=tmp_path, COLUMNS="100", PREFECT_API_URL="http://nowhere/api")
    assert done.exit_code == 0, done.output
    assert "Twice" in done.stdout
    assert state(loggers) == before


def test_a_run_leaves_nothing(tmp_path: Path, stages_here: None, prefect_server: Any) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "job.yaml").write_text(JOB)
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "in.parquet")
    before = state(loggers := [*logging.root.manager.loggerDict])
    done = rowmill("run", "job.yaml", folder=tmp_path)
    assert done.exit_code == 0, done.output
    assert sorted(pq.read_table(tmp_path / "out")["x"].to_pylist()) == [2, 4]
    assert state(loggers) == before
    with pytest.raises(ValueError, match="No clients found"):
        default_client()
