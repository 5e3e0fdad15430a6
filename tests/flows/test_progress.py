"""What a run shows while it goes on: an artifact per stage that moves."""

from __future__ import annotations

import io
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.flows.runs import key_of, run_flow

pytestmark = pytest.mark.xdist_group("flows")
BLOCK = 1 << 16  # rows; smaller row groups would be worked on together


def slowly(column: Any) -> Any:
    """The column, after a while: a stage with something to show."""
    time.sleep(0.9)
    return column


class Observer(threading.Thread):
    """Looks at the newest progress artifact of the stage transform of so many rows until it is told to end."""

    def __init__(self, rows: int, out: Path) -> None:
        super().__init__(daemon=True)
        self.rows, self.key = rows, f"{key_of(out)}-transform-progress"
        self.seen: list[tuple[float, str]] = []
        self.over = threading.Event()

    def run(self) -> None:
        from prefect import get_client
        from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

        chosen = ArtifactFilter(key=ArtifactFilterKey(any_=[self.key]))
        with get_client(sync_client=True) as client:
            last = False
            while not last:
                last = self.over.wait(0.3)  # after the end once more: what came since the last look
                for artifact in client.read_artifacts(artifact_filter=chosen):
                    state = (float(artifact.data), str(artifact.description))
                    if f"of {self.rows:,} rows" in state[1] and state not in self.seen:
                        self.seen.append(state)


def test_progress_moves_while_a_stage_runs(tmp_path: Path, prefect_server: Any, cluster: Any) -> None:
    threads = sum(worker["nthreads"] for worker in cluster.scheduler_info["workers"].values())
    rows = 9 * threads * BLOCK
    pq.write_table(pa.table({"x": np.arange(rows)}), tmp_path / "data.parquet", row_group_size=BLOCK)
    job = {
        "source": {"path": str(tmp_path / "data.parquet"), "partition_size": 1},
        "features": [{"columns": ["x"], "ops": [{"op": "Lambda", "function": "tests.flows.test_progress:slowly"}]}],
        "output": {"path": str(tmp_path / "out"), "files": 1},
    }
    observer = Observer(rows, tmp_path / "out")
    observer.start()
    try:
        run_flow(job, cluster)
    finally:
        observer.over.set()
        observer.join(10)
    percents = [percent for percent, _ in observer.seen]

    assert len(percents) >= 3  # made, and changed at least twice
    assert percents == sorted(percents)
    assert 0 < percents[0] < percents[-1]
    assert percents[-1] == 100
    assert all("rows/s" in text for _, text in observer.seen)
    assert any("s left" in text for _, text in observer.seen)


def test_a_stage_that_ends_before_anybody_looks_is_told_all_the_same(tmp_path: Path) -> None:
    from rich.console import Console

    from flows.commands.progress_view import ProgressView, show_progress
    from flows.run.listeners import notify
    from tasks.core.stage_results import StageResult

    text = io.StringIO()
    watch = ProgressView(tmp_path / "progress.json", (), Console(file=text, width=100))
    watch.start()
    with show_progress(watch):
        notify(StageResult(stage="ingest", rows=1000, nbytes=0, seconds=0.5))
        assert [line.state for line in watch.lines.values()] == ["done", "running"]
        notify(StageResult(stage="statistics", rows=2000, nbytes=0, seconds=0.5))
        watch.finish({})
    notify(StageResult(stage="statistics", rows=3000, nbytes=0, seconds=0.5))
    assert text.getvalue().splitlines() == [
        "ingest: 1,000 rows 0.5 s, 2,000 rows/s",
        "statistics: 2,000 rows 0.5 s, 4,000 rows/s",
    ]
