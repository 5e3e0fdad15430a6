"""What nobody foresaw is said at every door: what failed, where, that it is a bug, and how to report it."""

from __future__ import annotations

import logging
import pickle
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from distributed import KilledWorker
from rowmill.cli import app
from typer.testing import CliRunner

from flows.commands import inspect
from flows.commands.console import DEFECT
from flows.job.job import make_job
from tasks.core.unforeseen_errors import DefectError, defect
from tasks.errors import DataError, GiveUpError, RowmillError, TransientError
from tasks.sources.formats import FORMATS, Format
from tasks.stages.task import may_pass, report_defects
from tests.faults.jobs import make_data
from tests.stages import run_stages


def typed(*words: str) -> Any:
    return CliRunner().invoke(app, [*words], env={"COLUMNS": "200"})


@pytest.fixture
def broken_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    def verified(out: str, storage_options: str | None) -> Any:
        return {}["parts"]

    monkeypatch.setattr(inspect, "verify_output", verified)


@pytest.mark.promise(
    "An unexpected error is reported as a bug of rowmill or of a library, with the code location and the versions "
    "to include in a bug report: exit status 70"
)
def test_a_command_says_what_to_report(broken_verify: None, tmp_path: Path) -> None:
    done = typed("verify", str(tmp_path))
    assert done.exit_code == DEFECT == 70
    assert done.stderr.startswith("error: rowmill verify failed with an unexpected error\n")
    assert "rowmill/cli.py, line" in done.stderr
    assert "KeyError: 'parts'; this is a bug in rowmill" in done.stderr
    assert f"pyarrow {pa.__version__}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.promise("`--debug` adds the traceback")
def test_debug_shows_the_traceback(broken_verify: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWMILL_DEBUG", "0")
    done = typed("--debug", "verify", str(tmp_path))
    assert done.exit_code == DEFECT
    assert "Traceback" in done.stderr


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied", "/data/x"), MemoryError()])
def test_what_the_host_refuses_is_no_defect(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def verified(out: str, storage_options: str | None) -> Any:
        raise error

    monkeypatch.setattr(inspect, "verify_output", verified)
    done = typed("verify", str(tmp_path))
    assert done.exit_code == 1
    assert "defect" not in done.stderr
    assert ("/data/x" in done.stderr) == isinstance(error, OSError)


def test_a_stage_says_which_partition_of_which_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    def read(*_: Any) -> Any:
        raise AttributeError("no attribute 'x'")

    data = make_data(tmp_path / "in", files=1, rows=10)
    job = make_job(
        {"source": {"path": str(data)}, "features": [{"columns": ["x"]}], "output": {"path": str(tmp_path / "out")}}
    )
    monkeypatch.setitem(FORMATS, "parquet", Format(FORMATS["parquet"].survey, read))
    if engine == "cudf":
        monkeypatch.setattr("tasks.engines.gpu.device_files._is_readable", lambda *_: False)
    with pytest.raises(DefectError) as caught, report_defects("transform", logging.getLogger("rowmill")):
        run_stages(job.request(engine))
    assert caught.value.what == "the stage transform failed with an unexpected error"
    assert f"reading {data}/0.parquet" in caught.value.where
    assert "partition 0 (rows from 0)" in caught.value.where
    assert "AttributeError: no attribute 'x'" in caught.value.trace


@pytest.mark.parametrize(
    "error", [DataError("the data"), KilledWorker("task", None, 0), MemoryError("injected"), TransientError("later")]
)
def test_what_a_stage_knows_stays_what_it_is(error: Exception) -> None:
    with pytest.raises(type(error)), report_defects("transform", logging.getLogger("rowmill")):
        raise error


def test_a_defect_travels_with_its_traceback_and_is_tried_again() -> None:
    try:
        raise KeyError("name")
    except KeyError as error:
        found = defect(error, "the stage ingest")
    travelled = pickle.loads(pickle.dumps(found))  # noqa: S301
    assert isinstance(travelled, DefectError)
    assert (str(travelled), "KeyError" in travelled.trace) == (str(found), True)

    class State:
        def result(self, raise_on_failure: bool) -> None:
            raise travelled

    assert may_pass(None, None, State())  # type: ignore[arg-type]


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Python would leave half the bytecode of a module that is imported now, and no later process could import that.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_larger_than_the_process_may_write_is_told(tmp_path: Path, request: Any, engine: str) -> None:
    data = make_data(tmp_path / "in", files=1, rows=50_000)
    features = [{"columns": ["x", "row"]}]
    job = make_job(
        {"source": {"path": str(data)}, "features": features, "output": {"path": str(tmp_path / "out"), "files": 1}}
    )
    if engine == "cudf":  # kernels that are compiled first are files, too
        warm = job.model_copy(update={"output": job.output.model_copy(update={"path": str(tmp_path / "warm")})})
        run_stages(warm.request(engine))
    request.getfixturevalue("small_files")
    with pytest.raises(GiveUpError) as caught:
        run_stages(job.request(engine))
    assert caught.value.what == "a file would become larger than it may be"
    assert "ulimit -f" in caught.value.why
    assert not (tmp_path / "out").exists()


PLAUSIBLE = {
    "a header with a name twice": ("rows.csv", b"a,b,a\n1,2,3\n", "there are two columns 'a'"),
    "a text of Latin 1": ("rows.csv", "a,b\n1,caf\xe9\n".encode("latin-1"), "write the file as UTF-8"),
    "a header of Latin 1": ("rows.csv", "caf\xe9,b\n1,2\n".encode("latin-1"), "write the file as UTF-8"),
    "UTF-16": ("rows.csv", "a,b\n1,2\n".encode("utf-16"), "write the file as UTF-8"),
    "JSON of 900 levels": ("rows.jsonl", b'{"a":' * 900 + b"1" + b"}" * 900 + b"\n", "nested more than 100 deep"),
    "a key twice": ("rows.jsonl", b'{"a": 1, "a": 2}\n', "was specified twice"),
    "gzip that is cut off": ("rows.csv.gz", b"\x1f\x8b\x08\x00garbage", "Truncated"),
    "Avro that is cut off": ("rows.avro", b"Obj\x01\x04", "this is not a whole Avro file"),
    "Avro of another schema": ("rows.avro", b"Obj\x01\x02\x16avro.schema\x06[1]\x00" + bytes(16), "records"),
}


@pytest.mark.parametrize("case", PLAUSIBLE)
def test_plausible_data_end_in_a_clear_error(case: str, tmp_path: Path) -> None:
    name, content, said = PLAUSIBLE[case]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(content)
    features = [{"columns": ["*"]}]
    job = make_job({"source": {"path": str(tmp_path / "in")}, "features": features,
                    "output": {"path": str(tmp_path / "out")}})  # fmt: skip
    with pytest.raises(RowmillError) as caught:
        run_stages(job.request("pandas"))
    assert said in str(caught.value)
    assert name in caught.value.where
