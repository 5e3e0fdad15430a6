"""Results of tasks are registered with Dask once, for their base class: it sends and spills each the same way, whoever
registers first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.engines.task_result import PiecesResult, TaskResult
from tasks.learning.large_table_types import Chain, Slice, Split
from tasks.learning.partials import Observed
from tasks.shuffle.pieces import PackedPieces, PartitionPieces
from tests.conftest import python_path

ROOT = Path(__file__).resolve().parents[3]
PIECES, TABLES = ["frames", "pieces", "rest"], ["buffer", "known", "value"]  # what a header has
LENT = ["head", "places", "process", "started"]
THREE, TWO = ["tasks.engines.gpu.order", [0, 3], [3, 3, 3]], ["tasks.engines.gpu.order", [0, 2], [2, 2]]
NOTHING_SEEN = {
    "rows": 0, "columns": {}, "met": {}, "seconds": 0.0, "left_out": {}, "sample": None, "step": 1, "hashes": [],
}  # fmt: skip
ON_HOST = {
    "pieces": [["tasks.engines.cpu.order", [0, 1 << 18], None]], "rows_in": 3, "rows_out": 2, "failed": [], "seen": [],
    "left_out": [],
}  # fmt: skip
ARRIVED = {
    "cut": [PIECES, 2, "PartitionPieces",
            {"pieces": [THREE, TWO], "rows_in": 5, "rows_out": 4, "failed": [], "seen": [], "left_out": []}],
    "packed": [PIECES, 1, "PackedPieces",
               {"pieces": [THREE], "rows_in": 0, "rows_out": 0, "failed": [], "seen": [], "left_out": [],
                "first": 2, "last": 5}],
    "observed": [TABLES, 1, "Observed",
                 {"partials": {"key": {"(-1, 0)": [7]}}, "halved": 2, "failed": [], "seen": NOTHING_SEEN}],
    "split": [TABLES, 1, "Split", {"tables": [[1, 2], [3]]}],
    "chain": [TABLES, 1, "Chain", {"op": "op", "unit": ["unit"], "tables": [[1, 2], [3]], "sums": {"sum": 1}}],
    "slice": [TABLES, 1, "Slice", {"table": [1, 2]}],
}  # fmt: skip


@pytest.mark.system
@pytest.mark.parametrize(
    "steps", ["pre_import", "preload pre_import", "pre_import preload", "preload result pre_import", "task"]
)
def test_results_travel_alike_whoever_registers_first(steps: str) -> None:
    script = ROOT / "tests/tasks/engines/results_without_gpu.py"
    environment = {**os.environ, "PYTHONPATH": python_path()}
    done = subprocess.run(
        [sys.executable, str(script), *steps.split()], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, dict[str, Any]] = json.loads(done.stdout)
    on_host = told.pop("host")
    assert (on_host["dask"], on_host["cuda"], on_host["on device"]) == ("pickle", "pickle", [False, False])
    assert on_host["neighbour"] == [LENT, 0, "PartitionPieces", ON_HOST]
    assert {name: one["dask"] for name, one in told.items()} == ARRIVED
    assert {name: one["cuda"] for name, one in told.items()} == ARRIVED
    assert {name: one["neighbour"] for name, one in told.items()} == ARRIVED  # no GPU is shared here
    assert {name: one["on device"] for name, one in told.items()} == {name: [True, True] for name in ARRIVED}
    assert {(*one["functions"],) for one in told.values()} == {(*on_host["functions"],)}


def test_what_travels_is_a_task_result() -> None:
    assert {*TaskResult.__subclasses__()} == {PiecesResult, Observed, Split, Chain, Slice}
    assert PiecesResult.__subclasses__() == [PartitionPieces]
    assert PartitionPieces.__subclasses__() == [PackedPieces]


def test_nothing_is_registered_by_the_name_of_the_package() -> None:
    """Dask keeps one function for a name, so that of two modules the later one would silently win."""
    found = [path for room in ("tasks", "infra", "flows") for path in (ROOT / room).rglob("*.py")]
    assert not [path for path in found if "register_lazy(" in path.read_text()]
