"""What millrace, the former name, left behind is refused with the command that converts or finishes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from rowmill.cli import app
from typer.testing import CliRunner

from flows.commands.inspect import verified
from flows.job.job import make_job
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError
from tasks.graph import saved_workflow
from tasks.job.base_version import broken, newest_good
from tasks.loading import loader
from tasks.manifest import Manifest
from tasks.ops import Categorify
from tasks.storage.atomic import write_json
from tasks.storage.documents import seal
from tasks.workflow import Workflow
from tests.conftest import python_path
from tests.stages import run_stages

pytestmark = pytest.mark.system

ROWS = pa.table({"user": ["a", "b", "a"]})


@pytest.mark.parametrize("call", [["-c", "from rowmill import Dataset"], ["-m", "rowmill", "ops"]])
def test_a_process_with_a_variable_of_the_former_name_ends(call: list[str]) -> None:
    environment = os.environ | {"PYTHONPATH": python_path(), "MILLRACE_ALLOWED_ROOTS": "/data"}
    done = subprocess.run([sys.executable, *call], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "MILLRACE_ALLOWED_ROOTS is now called ROWMILL_ALLOWED_ROOTS" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("scratch", [False, True])
def test_unfinished_work_is_gone_on_with_by_the_command_of_the_error(tmp_path: Path, scratch: bool) -> None:
    Workflow(["user"]).fit_transform(Dataset(ROWS)).to_parquet(str(tmp_path / "in"), files=1)
    data = {"source": {"path": str(tmp_path / "in")}, "features": [{"columns": ["user"]}],
            "output": {"path": str(tmp_path / "out")},
            "run": {"scratch": str(tmp_path / "scratch")} if scratch else {}}  # fmt: skip
    request = make_job(data).request("pandas")
    folder = request.staging.folder
    former = folder.with_name(folder.name.removesuffix("rowmill") + "millrace")
    former.mkdir(parents=True)
    (former / "plan.json").write_text("{}")
    with pytest.raises(JobError, match="millrace, the former name of rowmill, has left unfinished work") as error:
        run_stages(request)
    command = error.value.do.removeprefix("go on with it: ").partition(";")[0]
    assert command == f"mv {former} {folder}"
    subprocess.run(command.split(), check=True)
    run_stages(request)
    assert not former.exists()
    assert Manifest.load(tmp_path / "out").data["rows"]["out"] == 3


def make_former(out: Path) -> None:
    """Give an output the former name."""
    for path, sealed in ((out / "_manifest.json", seal), (out / "_workflow/workflow.json", saved_workflow.seal)):
        data = json.loads(path.read_text())
        write_json(path, sealed({"millrace" if key == "rowmill" else key: value for key, value in data.items()}))


def test_an_output_of_the_former_name_is_converted_by_the_command_of_the_error(tmp_path: Path) -> None:
    out = tmp_path / "out"
    Workflow(["user"] >> Categorify()).fit_transform(Dataset(ROWS)).to_parquet(str(out), files=1, shuffle="none")
    parts = sorted((path.name, path.read_bytes()) for path in out.glob("part-*"))
    make_former(out)
    refused = [lambda: Manifest.load(out), lambda: loader(str(out), batch_size=3), lambda: Workflow.load(out)]
    for use in refused:
        with pytest.raises(DataError, match="written under the former name of rowmill, millrace") as error:
            use()
        assert "rowmill convert " in error.value.do

    done = CliRunner().invoke(app, ["convert", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert done.output.count("converted") == 2
    assert Manifest.load(out).data["rowmill"]
    (batch,) = loader(str(out), batch_size=3, shuffle=False)
    assert batch["user"].to_pylist() == [3, 4, 3]
    assert Workflow.load(out).transform(ROWS)["user"].to_pylist() == [3, 4, 3]
    assert sorted((path.name, path.read_bytes()) for path in out.glob("part-*")) == parts
    assert "converted" not in CliRunner().invoke(app, ["convert", str(tmp_path)]).output


def test_a_version_of_the_former_name_is_not_damaged(tmp_path: Path) -> None:
    """It is converted, and neither set aside nor left out of what the next night learns on."""
    out = tmp_path / "out"
    for _ in range(2):
        result = Workflow(["user"] >> Categorify()).fit_transform(Dataset(ROWS))
        result.to_parquet(str(out), files=1, shuffle="none", on_existing="version")
    make_former(out / "v0002")
    for use in (lambda: newest_good(out), lambda: broken(out / "v0002"), lambda: verified(out)):
        with pytest.raises(DataError, match="written under the former name") as error:
            use()
        assert error.value.do.endswith(f"rowmill convert {out}")
    assert CliRunner().invoke(app, ["convert", str(out)]).output.count("converted") == 2
    choice = newest_good(out)
    assert choice.version is not None
    assert (choice.version.path.name, choice.damaged) == ("v0002", {})

    assert "has the former name, millrace" in CliRunner().invoke(app, ["convert", str(out)]).output
    (out / "v0001/_manifest.json").write_text('{"millrace": "0.1", ')
    cut = CliRunner().invoke(app, ["convert", str(out)])
    assert (cut.exit_code, f"{out}/v0001/_manifest.json" in cut.stderr) == (1, True)
