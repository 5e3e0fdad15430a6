"""What a run says in its log of casts that failed: once for each entry and expression."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.xdist_group("flows")


@pytest.mark.promise("`because a cast failed`")
def test_a_run_warns_of_casts_that_failed(tmp_path: Path, run_alone: Any, caplog: pytest.LogCaptureFixture) -> None:
    pq.write_table(pa.table({"text": ["1", "two", "", "4"]}), tmp_path / "in.parquet")
    ops = [{"op": "Lambda", "expression": "cast(_, 'int64')"}, {"op": "Normalize"}]
    job = {
        "source": {"path": str(tmp_path / "in.parquet")},
        "features": [{"columns": ["text"], "ops": ops}],
        "output": {"path": str(tmp_path / "out"), "files": 1},
    }
    run_alone(job)
    said = [r.getMessage() for r in caplog.records if r.levelname == "WARNING" and "cast failed" in r.getMessage()]
    assert said == ["2 row(s) are null in Lambda of 'text' because a cast failed: cast(_, 'int64')"]
