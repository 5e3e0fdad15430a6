"""`rowmill run` on what cannot be right: exit status 1, a message that helps, a Failed run, nothing written."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prefect import get_client
from rowmill.cli import app
from typer.testing import CliRunner

from tests.faults.test_data_errors import CASES, GOOD, NORMALIZE
from tests.running import section_of

pytestmark = pytest.mark.xdist_group("killed-flow")


def rowmill_run(folder: Path, job: dict[str, Any] | str) -> Any:
    """The command on a job file: exit code, stdout, stderr."""
    file = folder / "job.yaml"
    file.write_text(job if isinstance(job, str) else json.dumps(job))
    return CliRunner().invoke(app, ["run", str(file)], env={"COLUMNS": "200"})


def job_in(folder: Path, cluster: Any, **sections: Any) -> dict[str, Any]:
    job: dict[str, Any] = {
        "source": {"path": str(folder / "in")}, "features": NORMALIZE, "run": {"retries": 0},
        "output": {"path": str(folder / "out"), "files": 2},
    }  # fmt: skip
    if cluster is not None:
        job["cluster"] = section_of(cluster)
    return job | sections


def final_state(stderr: str) -> str:
    """The state of the run whose page the error names."""
    (run,) = re.findall(r"flow-run/([0-9a-f-]{36})", stderr)
    with get_client(sync_client=True) as client:
        return str(client.read_flow_run(run).state_name)


@pytest.mark.promise("An error within a run gives a Failed run in Prefect with the same message")
@pytest.mark.parametrize("case", CASES)
def test_bad_data_are_told_by_a_failed_run(case: str, tmp_path: Path, prefect_server: Any, cluster: Any) -> None:
    make, features, what, more = CASES[case]
    (tmp_path / "in").mkdir()
    make(tmp_path / "in")
    done = rowmill_run(tmp_path, job_in(tmp_path, cluster, features=features))
    said = " ".join(done.stderr.split())
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
    assert what in done.stderr.splitlines()[0]
    assert more in said
    assert "Traceback" not in done.stderr
    assert final_state(done.stderr) == "Failed"
    assert {p.name for p in tmp_path.iterdir()} <= {"in", "job.yaml", ".out.rowmill"}


def exists(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "mine.txt").write_text("mine")


def file_above(folder: Path) -> None:
    (folder / "out").write_text("a file")


def nothing(folder: Path) -> None:
    return


UNKNOWN = [{"columns": ["price"], "ops": [{"op": "Normalise"}]}]
MISSPELT = [{"columns": ["price"], "ops": [{"op": "Clip", "min_valu": 2}]}]
TOLD: dict[str, tuple[Callable[[Path], None], dict[str, Any] | str, list[str]]] = {
    "invalid YAML": (nothing, "source: {path: in\nfeatures: [", ["job.yaml", "line"]),
    "an unknown operator": (nothing, {"features": UNKNOWN}, ["operator 'Normalise'", "did you mean 'Normalize'"]),
    "an unknown option of an operator": (nothing, {"features": MISSPELT}, ["min_valu", "did you mean 'min_value'"]),
    "an unknown key": (nothing, {"ouput": {}}, ["ouput", "is unknown: did you mean 'output'"]),
    "an output that exists": (exists, {}, ["the output already exists", "where:", "output.on_existing"]),
    "an output below a file": (
        file_above, {"output": {"path": "out/deeper"}}, ["the output cannot be written", "where:", "Not a directory"],
    ),
    "scratch where no folder can be made": (
        nothing, {"run": {"scratch": "/proc/x"}}, ["the output cannot be written", "where: /proc/x", "run.scratch"],
    ),
    "a GPU that is absent": (nothing, {"cluster": {"kind": "cuda"}}, ["no GPU", "set cluster.kind to cpu or auto"]),
}  # fmt: skip


@pytest.mark.parametrize("case", TOLD)
def test_a_job_that_cannot_be_right_is_told(
    case: str, tmp_path: Path, prefect_server: Any, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, changes, told = TOLD[case]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "in").mkdir()
    pq.write_table(GOOD, tmp_path / "in" / "0.parquet")
    prepare(tmp_path)
    before = {p.name for p in tmp_path.iterdir()}
    job = changes if isinstance(changes, str) else job_in(tmp_path, cluster) | changes
    done = rowmill_run(tmp_path, job)
    assert done.exit_code == 1, done.output
    assert [text for text in told if text not in done.stderr] == [], done.stderr
    assert "Traceback" not in done.stderr
    assert {p.name for p in tmp_path.iterdir()} - before == {"job.yaml"}


def test_a_read_only_file_system_is_told(tmp_path: Path, prefect_server: Any, cluster: Any) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"price": [1.0]}), tmp_path / "in" / "0.parquet")
    place = tmp_path / "read-only"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        done = rowmill_run(tmp_path, job_in(tmp_path, cluster, output={"path": str(place / "out")}))
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
    assert done.exit_code == 1
    assert "the output cannot be written" in done.stderr
    assert "Read-only file system" in done.stderr
    assert final_state(done.stderr) == "Failed"
