"""Bad input: one clear message (what, where, why or what to do), and the target is left as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job.job import make_job
from tasks.errors import RowmillError
from tests.stages import run_stages

Write = Callable[[Path], None]
GOOD = pa.table({"price": [1.0, 2.0, None], "brand": ["a", "b", "a"]})


def write(*tables: pa.Table) -> Write:
    def make(folder: Path) -> None:
        for number, table in enumerate(tables):
            pq.write_table(table, folder / f"{number}.parquet")

    return make


def truncated(folder: Path) -> None:
    write(GOOD)(folder)
    path = folder / "0.parquet"
    path.write_bytes(path.read_bytes()[:-20])


def no_parquet(folder: Path) -> None:
    (folder / "0.parquet").write_text("price,brand\n1.0,a\n")


def raising(column: Any) -> Any:
    raise ValueError("the function does not like this")


def shorter(column: Any) -> Any:
    return column.iloc[:1]


NORMALIZE = [{"columns": ["price"], "ops": [{"op": "Normalize"}]}]
CASES: dict[str, tuple[Write, list[dict[str, Any]], str, str]] = {
    "no input": (lambda folder: None, NORMALIZE, "no", "correct the path"),
    "no rows at all": (write(GOOD.slice(0, 0), GOOD.slice(0, 0)), NORMALIZE, "no rows at all", "source.path"),
    "a truncated file": (truncated, NORMALIZE, "not a whole Parquet file", "0.parquet"),
    "not a Parquet file": (no_parquet, NORMALIZE, "not a whole Parquet file", "0.parquet"),
    "schemas that differ": (
        write(GOOD, pa.table({"price": ["1"], "brand": ["a"]})),
        NORMALIZE,
        "'price' has different types",
        "1.parquet",
    ),
    "a missing column": (write(GOOD), [{"columns": ["prize"]}], "no column 'prize'", "did you mean 'price'"),
    "a refused type": (
        write(GOOD),
        [{"columns": ["brand"], "ops": [{"op": "LogOp"}]}],
        "does not take column 'brand'",
        "string",
    ),
    "a function that raises": (
        write(GOOD),
        [{"columns": ["price"], "ops": [{"op": "Lambda", "function": f"{__name__}:raising"}]}],
        "Lambda of 'price' failed",
        "the function does not like this",
    ),
    "a function that changes the rows": (
        write(GOOD),
        [{"columns": ["price"], "ops": [{"op": "Lambda", "function": f"{__name__}:shorter"}]}],
        "changed the number of rows of 'price' from 3 to 1",
        "one value per row",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_told_and_nothing_is_written(case: str, tmp_path: Path, engine: str) -> None:
    make, features, what, more = CASES[case]
    folder = tmp_path / "in"
    folder.mkdir()
    make(folder)
    job = make_job(
        {"source": {"path": str(folder)}, "features": features, "output": {"path": str(tmp_path / "out"), "files": 2}}
    )
    with pytest.raises(RowmillError) as caught:
        run_stages(job.request(engine))
    assert what in caught.value.what
    assert more in str(caught.value)
    assert {p.name for p in tmp_path.iterdir()} <= {"in", ".out.rowmill"}


def test_single_empty_files_are_skipped_and_counted(tmp_path: Path, engine: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write(GOOD.slice(0, 0), GOOD)(folder)
    job = make_job(
        {"source": {"path": str(folder)}, "features": NORMALIZE, "output": {"path": str(tmp_path / "out"), "files": 2}}
    )
    ingest = run_stages(job.request(engine))[0]
    assert (ingest.files, ingest.skipped, ingest.rows) == (1, 1, 3)
