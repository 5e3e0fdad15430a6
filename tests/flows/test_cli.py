"""The command `rowmill` as people type it: what it says, what it leaves, and its exit status."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from rowmill.cli import app
from typer.testing import CliRunner

from tests.commands import rowmill
from tests.conftest import python_path
from tests.faults import chaos
from tests.faults.jobs import STAGES, plan_chaos
from tests.flows.runs import rows_of
from tests.infra.elsewhere import eventually, until

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("cli")]
ROOT = Path(__file__).resolve().parents[2]
ROWMILL = [sys.executable, "-P", "-c", "from rowmill.cli import main; main()"]
COMMANDS = ("demo", "run", "preview", "fit", "apply", "sample", "verify", "inspect", "ops", "clean", "diff", "contract")
COMMANDS += ("new", "schema", "versions", "status", "stop", "trigger")


def typed(*words: Any, folder: Path | None = None) -> Any:
    """A command in this process: its exit code, stdout and stderr."""
    return rowmill(*words, folder=folder, COLUMNS="120")


def started(folder: Path, *words: Any, **variables: str) -> subprocess.Popen[str]:
    """A command in a process of its own, in a folder, without a terminal."""
    environment = {**os.environ, "PYTHONPATH": python_path(), "COLUMNS": "120", **variables}
    command = [*ROWMILL, *(str(word) for word in words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=pipe, stderr=pipe, start_new_session=True
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


# what teaches


def test_help_answers_at_once() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([*ROWMILL, "--help"], cwd=ROOT, text=True, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)

    assert "rowmill demo" in done.stdout
    assert all(command in done.stdout for command in COMMANDS)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert cpu < 0.7  # what others do at the same time makes no difference


@pytest.mark.promise("First steps:")
def test_the_help_has_panels_in_the_order_of_a_first_day() -> None:
    help_text = typed("--help").output
    panels = [
        line.split("─")[1].strip() for line in help_text.splitlines() if line.startswith("╭") and "Options" not in line
    ]
    assert panels == ["First steps", "Jobs", "Nights", "Outputs", "Server"]

    commands = (ROOT / "flows/README.md").read_text().partition("\n## Commands\n")[2].partition("\n## ")[0]
    in_document = dict.fromkeys(re.findall(r"^    .*?rowmill (\w+)|\| rowmill (\w+)", commands, re.MULTILINE))
    names = [first or second for first, second in in_document]
    assert re.findall(r"^│ (\w+) ", help_text, re.MULTILINE) == list(dict.fromkeys(names))


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, rowmill.cli; print([m for m in ('prefect', 'dask', 'pyarrow', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.promise("`run`, `fit`, `apply` and `refit` say at once what they start")
def test_the_first_line_of_a_run_comes_before_anything_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; from flows.commands.console import terminal; from flows.commands.launch import begin; "
        "begin(terminal(), 'job.yaml', 'flows.preprocess', 'job.yaml').__enter__(); "
        "print([m for m in ('prefect', 'dask', 'pyarrow', 'pandas') if m in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": python_path(), "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE
    )
    assert done.stdout == "starting job.yaml: loading Prefect, looking for its server, starting workers\n[]\n"


@pytest.mark.promise("If the job file or a `--set` contains the word `cluster`, they wait")
@pytest.mark.parametrize(("text", "change", "begins"), [
    ("source: {path: a}", "output.seed=1", True),
    ("source: {path: a}", "cluster.kind=slurm", False),
    ("cluster: {address: 'tls://elsewhere:8786'}", "output.seed=1", False),
])  # fmt: skip
def test_workers_of_this_host_load_before_the_job_is_known_unless_it_names_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, change: str, begins: bool
) -> None:
    from flows.commands.launch import begin

    started: list[Any] = []
    monkeypatch.setattr("infra.workers.forkserver.start", started.append)
    monkeypatch.setattr("infra.gpus.visible", list)
    (tmp_path / "job.yaml").write_text(text)
    with begin(Console(), "a job", "flows.fit", str(tmp_path / "job.yaml"), [change]):
        assert started == [("flows.fit", "rowmill.cli")] * begins
    with begin(Console(), "nothing", "flows.fit", str(tmp_path / "no.yaml")):
        assert started == [("flows.fit", "rowmill.cli")] * begins


@pytest.mark.promise("Each explains itself with `--help`")
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_examples(command: str) -> None:
    done = typed(command, "--help")
    assert done.exit_code == 0
    assert "Examples" in done.output
    assert f"rowmill {command}" in done.output


@pytest.mark.promise("`rowmill --install-completion` teaches the shell to complete them")
@pytest.mark.parametrize(("line", "words"), [("pre", ["preview"]), ("new --la", ["--label"])])
def test_the_shell_completes_commands_and_options(line: str, words: list[str]) -> None:
    place = {"COMP_WORDS": f"rowmill {line}", "COMP_CWORD": str(len(line.split()))}
    environment = {"_ROWMILL_COMPLETE": "complete_bash", **place}
    done = CliRunner().invoke(app, [], prog_name="rowmill", env=environment)
    assert done.stdout.split() == words


def test_no_command_shows_the_help() -> None:
    assert "First steps" in typed().output


def test_an_unknown_command_is_refused() -> None:
    assert typed("rum").exit_code == 2


# ops


def test_ops_lists_every_operator_with_its_first_sentence() -> None:
    from flows.commands.inspect import operators

    done = typed("ops")
    assert done.exit_code == 0
    assert all(name in done.stdout for name in operators())
    assert "Categorify" in done.stdout


@pytest.mark.promise("the operators; one with its parameters and rule")
def test_ops_explains_one_with_parameters_and_defaults() -> None:
    done = typed("ops", "TargetEncoding")
    words = " ".join(done.stdout.split())

    assert done.exit_code == 0
    assert "kfold int 5" in words
    assert "target str or list of str needed Column of numbers or bools" in words
    assert "{op: TargetEncoding, target: ..}" in words


def test_ops_keeps_brackets_in_a_docstring() -> None:
    assert "[min_value, max_value]" in typed("ops", "Clip").stdout


def test_ops_names_near_ones() -> None:
    done = typed("ops", "Normalise")
    assert done.exit_code == 1
    assert "unknown operator 'Normalise'" in done.stderr
    assert "'Normalize'" in done.stderr


# sample


def test_sample_makes_files(tmp_path: Path) -> None:
    done = typed(
        "sample", "toy", "--rows", 30, "--seed", 4, "--path", tmp_path / "toy", "--files", 3, "--format", "csv"
    )
    lines = (tmp_path / "toy" / "part-00002.csv").read_text().splitlines()

    assert done.exit_code == 0
    assert "30 rows of toy in 3 file(s)" in done.stdout
    assert lines[0] == "timestamp,id,name,x,y,label"
    assert len(lines) == 11


def test_sample_refuses_a_folder_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    done = typed("sample", "toy", "--rows", 30, "--path", tmp_path)
    assert done.exit_code == 1
    assert "the folder is not empty" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = typed("sample", "toy", "--rows", 30, "--path", tmp_path / "file" / "toy")
    assert done.exit_code == 1
    assert "Not a directory" in done.stderr


# run, verify and inspect on one output

JOB = """
source: {path: data}
features:
  - columns: [x]
    ops: [{op: Lambda, function: "mine:twice", dtype: float64}]
  - columns: [name]
    ops: [{op: Categorify}]
label: [label]
output: {path: out, files: 2}
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, prefect_server: Any) -> Path:
    """A folder with data, a job that needs a module beside it, a decoy of our own package, and the job's output."""
    folder = tmp_path_factory.mktemp("work")
    typed("sample", "toy", "--rows", 2000, "--path", folder / "data")
    (folder / "tasks").mkdir()
    (folder / "tasks" / "__init__.py").write_text("raise ImportError('the decoy')")
    (folder / "jobs").mkdir()
    (folder / "jobs" / "job.yaml").write_text(JOB)
    (folder / "jobs" / "mine.py").write_text("def twice(column):\n    return column * 2\n")
    code, out, err = ended(started(folder, "run", "jobs/job.yaml", "--set", "output.seed=3"))
    assert (code, err) == (0, "")
    (folder / "said.txt").write_text(out)
    return folder


def test_run_says_stages_rows_files_output_and_page(work: Path, prefect_server: Any) -> None:
    said = (work / "said.txt").read_text()
    run = json.loads((work / "out" / "_manifest.json").read_text())["run"]

    assert said.isascii()
    assert "\x1b" not in said
    for stage in ("ingest", "statistics", "transform", "shuffle_write"):
        assert f"{stage}: 2,000 rows" in said
    assert "written  2,000 rows in 2 files" in said
    assert f"output   {work / 'out'}" in said
    assert f"run      {prefect_server.ui_url}/runs/flow-run/{run}" in said


@pytest.mark.promise("put `mine.py` next to the job file or into the current folder")
def test_run_finds_functions_beside_the_job_file(work: Path) -> None:
    source = sum(pq.read_table(work / "data")["x"].to_pylist())
    assert sum(rows_of(work / "out")["x"].to_pylist()) == pytest.approx(2 * source)


def test_the_run_is_tagged(work: Path, prefect_server: Any) -> None:
    from prefect import get_client

    run = json.loads((work / "out" / "_manifest.json").read_text())["run"]
    with get_client(sync_client=True) as client:
        assert sorted(client.read_flow_run(run).tags) == ["made-up-data", "rowmill"]  # its data are a sample


@pytest.mark.promise("exit status 0 whole, 1 damaged (each part is named), 2 not an output")
def test_verify_finds_an_output_whole(work: Path) -> None:
    done = typed("verify", work / "out")
    assert done.exit_code == 0
    assert "whole: 2,000 rows in 2 parts" in done.stdout


def damaged(work: Path, folder: Path) -> Path:
    shutil.copytree(work / "out", folder / "out")
    return folder / "out"


@pytest.mark.promise("exit status 0 whole, 1 damaged (each part is named), 2 not an output")
def test_verify_names_each_damaged_part(work: Path, tmp_path: Path) -> None:
    out = damaged(work, tmp_path)
    content = bytearray((out / "part-00000.parquet").read_bytes())
    content[100] ^= 1
    (out / "part-00000.parquet").write_bytes(content)
    (out / "part-00001.parquet").unlink()
    (out / "part-00002.parquet").write_bytes(b"stray")
    done = typed("verify", out)

    assert done.exit_code == 1
    assert "part-00000.parquet has other content" in done.stdout
    assert "part-00001.parquet is missing" in done.stdout
    assert "part-00002.parquet is not in the manifest" in done.stdout


def test_verify_finds_a_damaged_workflow(work: Path, tmp_path: Path) -> None:
    out = damaged(work, tmp_path)
    table = next((out / "_workflow").glob("*.vocab"))
    table.write_bytes(b"nothing")
    done = typed("verify", out)

    assert done.exit_code == 1
    assert f"_workflow: the table {table.name} is damaged" in done.stdout


def test_verify_takes_train_and_valid_together(work: Path, tmp_path: Path) -> None:
    for split in ("train", "valid"):
        shutil.copytree(work / "out", tmp_path / "out" / split)
        shutil.rmtree(tmp_path / "out" / split / "_workflow")
    shutil.copytree(work / "out" / "_workflow", tmp_path / "out" / "_workflow")
    whole = typed("verify", tmp_path / "out")
    (tmp_path / "out" / "valid" / "part-00001.parquet").unlink()
    broken = typed("verify", tmp_path / "out")
    (tmp_path / "out" / "valid" / "_manifest.json").unlink()
    headless = typed("verify", tmp_path / "out")

    assert [whole.exit_code, broken.exit_code, headless.exit_code] == [0, 1, 1]
    assert "train: whole: 2,000 rows" in whole.stdout
    assert "valid: part-00001.parquet is missing" in broken.stdout
    assert "valid: _manifest.json is missing" in headless.stdout


@pytest.mark.promise("exit status 0 whole, 1 damaged (each part is named), 2 not an output")
@pytest.mark.parametrize("name", ["data", "nowhere", "jobs/job.yaml"])
def test_verify_tells_what_is_no_output(work: Path, name: str) -> None:
    done = typed("verify", work / name)
    assert done.exit_code == 2
    assert "this is not an output of rowmill" in done.stderr


@pytest.mark.promise("schema, parts, vocabularies, embedding sizes (as JSON), first rows")
def test_inspect_shows_schema_parts_vocabularies_and_rows(work: Path) -> None:
    done = typed("inspect", work / "out", "--rows", 2, "--values", 3)
    words = " ".join(done.stdout.split())

    assert done.exit_code == 0
    assert "name int32 categorical 29 29 x 16" in words
    assert "part-00001.parquet 1,000" in words
    assert "name 26 0 0" in words
    assert "first rows of out/part-00000.parquet x name label" in words


def test_inspect_shows_a_saved_workflow(work: Path) -> None:
    done = typed("inspect", work / "out" / "_workflow")
    words = " ".join(done.stdout.split())
    assert done.exit_code == 0
    assert "takes column type" in words
    assert "timestamp timestamp[us]" in words
    assert "gives column type" in words


def test_inspect_tells_what_is_no_output(work: Path) -> None:
    done = typed("inspect", work / "data")
    assert done.exit_code == 1
    assert "this is not an output of rowmill" in done.stderr


# runs that fail


def session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


@pytest.mark.promise("say what, where, why and what to do, and end with an exit status that is not 0")
def test_a_job_that_cannot_be_right_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("Categorify", "Categorise"))
    process = started(tmp_path, "run", "job.yaml")
    code, out, err = ended(process)

    assert (code, out) == (1, "starting job.yaml: loading Prefect, looking for its server, starting workers\n")
    assert eventually(lambda: not any(session_of(pid) == process.pid for pid in psutil.pids()))
    assert "error: unknown operator 'Categorise'" in err
    assert "where: features[1].ops[0]" in err
    assert "do: did you mean 'Categorify'?" in err
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]


@pytest.mark.promise("`--debug` adds the traceback", "flows/README.md#what-you-can-rely-on")
def test_debug_shows_the_traceback_too(tmp_path: Path) -> None:
    done = typed("run", "toy", "--set", "output.seed=x", "--debug", folder=tmp_path)
    assert done.exit_code == 1
    assert "Traceback" in done.stderr
    assert "output.seed" in done.stderr


def test_a_failed_run_tells_cause_and_page(tmp_path: Path, stages_here: None, prefect_server: Any) -> None:
    typed("sample", "toy", "--rows", 100, "--path", tmp_path / "data")
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "mine.py").write_text("def twice(column):\n    raise ValueError('the function does not like this')\n")
    done = typed("run", "job.yaml", folder=tmp_path)

    assert done.exit_code == 1
    assert "why: ValueError: the function does not like this" in done.stderr
    assert f"run: {prefect_server.ui_url}/runs/flow-run/" in done.stderr
    assert "Traceback" not in done.output
    assert not (tmp_path / "out").exists()


@pytest.mark.promise("rowmill demo", "flows/README.md#commands")
def test_demo_replaces_its_own_earlier_output(tmp_path: Path, stages_here: None, prefect_server: Any) -> None:
    runs = []
    for _ in range(2):
        done = typed("demo", "--rows", 3000, folder=tmp_path)
        assert (done.exit_code, done.stderr) == (0, "")
        assert "3,000 rows in " in done.stdout
        runs.append(json.loads((tmp_path / "rowmill-demo" / "out" / "_manifest.json").read_text())["run"])

    assert runs[0] != runs[1]
    replaced, *rest = sorted((tmp_path / "rowmill-demo").iterdir())  # the old one stays for run.keep_replaced
    assert [path.name for path in rest] == ["data", "out"]
    assert replaced.name.startswith(".out.rowmill-old-")
    assert json.loads((replaced / "_manifest.json").read_text())["run"] == runs[0]


def test_ctrl_c_ends_cleanly_and_the_same_command_goes_on(
    tmp_path: Path, prefect_server: Any, stages_here: None
) -> None:
    typed("sample", "toy", "--rows", 2_000, "--path", tmp_path / "data" / "toy")
    plan = plan_chaos(tmp_path / "chaos.json", [{"at": STAGES["transform"], "do": "hold"}])
    preloads = repr([chaos.__name__])
    held_up = {chaos.VARIABLE: str(plan), "DASK_DISTRIBUTED__WORKER__PRELOAD": preloads}
    # Workers on GPUs have no preloads.
    process = started(tmp_path, "run", "toy", "--set", "cluster.kind=cpu", **held_up)
    staging = tmp_path / "out" / ".toy.rowmill"
    held = tmp_path / "chaos.held"
    until(lambda: held.exists() or process.poll() is not None, "a worker is held in transform")
    assert (staging / "plan.json").exists()
    children = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    code, _, err = ended(process)

    assert code == 130
    assert err == "error: stopped by Ctrl-C; give the same command again to go on\n"
    assert children
    assert not psutil.wait_procs(children, timeout=20)[1]
    assert not (staging / "lock").exists()
    assert not (tmp_path / "out" / "toy").exists()
    assert typed("run", "toy", folder=tmp_path).exit_code == 0


@pytest.mark.parametrize(("number", "expected", "code"), [
    (signal.SIGINT, KeyboardInterrupt, None), (signal.SIGTERM, SystemExit, 143),
])  # fmt: skip
def test_a_stop_is_understood_where_a_library_makes_an_error_of_it(
    number: signal.Signals, expected: type[BaseException], code: int | None
) -> None:
    from flows.commands.stop_command import stoppable

    def be_stopped() -> None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Prefect does, with one of its own
        try:
            signal.raise_signal(number)
        except BaseException:
            raise ValueError("cannot serialize: KeyboardInterrupt") from None

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(expected) as caught, stoppable([]):
        be_stopped()
    assert getattr(caught.value, "code", None) == code
    assert caught.value.__suppress_context__  # nobody is shown the ValueError
    assert signal.getsignal(signal.SIGTERM) == before


# learning and applying apart


def test_fit_then_apply_names_the_label_that_is_missing(tmp_path: Path, stages_here: None, prefect_server: Any) -> None:
    from flows.sample import make_sample

    make_sample("toy", tmp_path / "new", 500, seed=1)
    (file,) = (tmp_path / "new").glob("*.parquet")
    pq.write_table(pq.read_table(file).drop_columns(["label"]), file)
    fit = typed("fit", "toy", "--path", "fitted", "--set", "source.sample.rows=1000", folder=tmp_path)
    options = ("--source", "new", "--output", "out", "--set", "output.files=2")
    apply = typed("apply", "fitted", *options, folder=tmp_path)

    assert (fit.exit_code, apply.exit_code) == (0, 0), fit.stderr + apply.stderr
    assert f"fitted   {tmp_path}/fitted" in fit.stdout
    assert "statistics: 1,000 rows" in fit.stdout
    assert "written  500 rows in 2 files" in apply.stdout
    assert "left out label: the source lacks what they need" in apply.stdout
    assert "statistics" not in apply.stdout
    assert "label" not in rows_of(tmp_path / "out").column_names


def test_apply_says_what_it_lacks_before_anything_starts(tmp_path: Path) -> None:
    nothing = typed("apply", tmp_path, "--source", "new", "--output", "out")
    assert nothing.exit_code == 1
    assert "workflow.json is missing" in nothing.stderr


# what people name things, and where they look


def test_brackets_in_a_path_are_said_as_they_are(tmp_path: Path) -> None:
    place = tmp_path / "a[/b] [draft]"
    done = typed("sample", "toy", "--rows", 10, "--path", place)
    assert done.exit_code == 0
    assert str(place) in done.stdout.replace("\n", "")


def test_a_reader_that_has_seen_enough_ends_nothing(tmp_path: Path) -> None:
    command = [*ROWMILL, "ops"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
        assert (process.wait(60), said) == (0, "")


def test_verify_names_a_part_that_cannot_be_read_and_looks_at_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.dataset import Dataset
    from tasks.job import output_check
    from tasks.workflow import Workflow

    made = Workflow(["x"]).fit_transform(Dataset(pa.table({"x": [1, 2, 3]}), engine="pandas"))
    made.to_parquet(tmp_path / "out", files=3)
    (tmp_path / "out/part-00002.parquet").unlink()
    digest_opened = output_check.digest_opened

    def closed(file: Any, nbytes: int) -> str:
        if file.name.endswith("part-00001.parquet"):
            raise PermissionError(13, "Permission denied", file.name)
        return digest_opened(file, nbytes)

    monkeypatch.setattr(output_check, "digest_opened", closed)
    done = typed("verify", tmp_path / "out")
    assert done.exit_code == 1
    assert "damaged: part-00001.parquet cannot be read: Permission denied" in done.stdout
    assert "damaged: part-00002.parquet is missing" in done.stdout
