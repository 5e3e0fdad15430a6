"""A deployment and the form name a job file; what they say themselves is laid over it, key by key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job import parameters
from flows.job.dates import date_of_run_now
from flows.job.job import Job
from flows.job.parameters import job_maker
from tasks.errors import JobError
from tasks.manifest import Manifest
from tests.flows.runs import call

pytestmark = pytest.mark.xdist_group("flows")


def job_of(parameters: dict[str, Any]) -> Job:
    """The job of parameters, as a flow that is started now has it."""
    return job_maker(parameters)(date_of_run_now)


JOB = """
source: {path: in.parquet, filter: x > 0}
features:
  - columns: [x]
    ops: [{op: Clip, max_value: 2}]
output:
  path: out
  seed: 5
  files: 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a job file and its data."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    pq.write_table(pa.table({"x": [0.0, 1.0, 2.0, 3.0]}), tmp_path / "in.parquet")
    return tmp_path


@pytest.mark.promise("the parameters of deployment and run are laid over it")
def test_keys_of_deployment_and_run_are_laid_over_the_job_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployed = {"job": "job.yaml", "output": {"files": 2}, "source": {"null_values": ["NA"]}}
    monkeypatch.setattr(parameters, "_of_deployment", lambda: deployed)
    found = job_of({"output": {"seed": 9}, "job": None})

    assert (found.output.path, found.output.seed, found.output.files) == ("out", 9, 2)
    assert (found.source.filter, found.source.null_values) == ("x > 0", ["NA"])
    assert job_of({"output": {"rows_per_file": 7}}).output.files is None
    (folder / "other.yaml").write_text(JOB.replace("seed: 5", "seed: 6"))
    assert job_of({"job": "other.yaml"}).output.seed == 6


def test_a_job_file_may_begin_with_a_recipe_and_its_sample_holds_for_its_path(folder: Path) -> None:
    (folder / "job.yaml").write_text("{recipe: toy, source: {path: mine, sample: {rows: 3}}, output: {path: out}}")
    assert job_of({"job": "job.yaml"}).source.sample is not None
    assert job_of({"job": "job.yaml", "source": {"path": "typo"}}).source.sample is None


@pytest.mark.promise("The fields `job` and `features` take the text of a job, too")
def test_a_job_may_be_written_out_as_a_draft_is(folder: Path) -> None:
    from flows.draft.draft import draft

    text = draft("in.parquet")
    found = job_of({"job": text, "output": {"seed": 9}})
    assert (found.source.path, found.output.path, found.output.seed) == ("in.parquet", "out/in", 9)
    assert [feature.columns for feature in found.features or ()] == [["x"]]
    with pytest.raises(JobError, match=r"output\.seed \(line \d+ of job\): needs a whole number, not 'a'"):
        job_of({"job": text.replace("seed: 0", "seed: a")})
    with pytest.raises(JobError, match="the job is not a map of sections"):
        job_of({"job": "- a\n- b\n"})


@pytest.mark.promise("also takes the text of a whole job, [in a form or a call]")
def test_features_take_a_whole_job_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.draft.draft import draft

    text = draft("in.parquet")
    whole = job_of({"features": text, "output": {"files": 3}, "label": None})
    assert whole.model_dump() == job_of({"job": text, "output": {"files": 3}}).model_dump()
    assert job_of({"features": JOB, "output": {"seed": 5}}).output.seed == 5
    deployed = {"source": {"path": "x"}, "output": {"metadata_file": True}}
    monkeypatch.setattr(parameters, "_of_deployment", lambda: deployed)
    found = job_of({"features": JOB})  # the run goes before its deployment
    assert (found.source.path, found.output.seed, found.output.metadata_file) == ("in.parquet", 5, True)
    monkeypatch.setattr(parameters, "_of_deployment", lambda: {"features": JOB})
    assert job_of({"output": {"seed": 9}}).output.seed == 9
    with pytest.raises(JobError, match=r"output\.seed \(line 8 of features\): needs a whole number, not 'a'"):
        job_of({"features": JOB.replace("seed: 5", "seed: a")})
    with pytest.raises(JobError, match=r"(?s)unknown operator 'Clp'.*features\[0\]\.ops\[0\] \(line 5 of features\)"):
        job_of({"features": JOB.replace("Clip", "Clp")})


@pytest.mark.promise(
    "If `features` has a whole job, a field that says something else than the job is an error that names both"
)
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"job": "job.yaml"}, r"(?s)job and features both have a whole job.*leave one of them empty"),
        ({"job": JOB}, "job and features both have a whole job"),
        ({"output": {"seed": 6}}, r"(?s)output\.seed is given twice.*line 8 of features.*field says 6.*features 5"),
        ({"source": {"path": "other.parquet"}}, r"(?s)source\.path is given twice.*leave the field empty"),
    ],
)
def test_a_whole_job_in_features_contradicts_nothing(folder: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        job_of({"features": JOB, **more})


def test_a_mistake_names_the_line_of_the_job_file_and_that_of_the_form_none(folder: Path) -> None:
    (folder / "job.yaml").write_text(JOB.replace("Clip", "Clp").replace("seed: 5", "seed: a"))
    with pytest.raises(JobError, match=r"output\.seed \(line 8 of job\.yaml\): needs a whole number, not 'a'"):
        job_of({"job": "job.yaml"})
    with pytest.raises(JobError, match=r"(?s)unknown operator 'Clp'.*features\[0\]\.ops\[0\] \(line 5 of job\.yaml\)"):
        job_of({"job": "job.yaml", "output": {"seed": 1}})
    with pytest.raises(JobError, match=r"output\.seed: needs a whole number, not 'b'"):
        job_of({"job": "job.yaml", "output": {"seed": "b"}})


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("no.yaml", "the job file cannot be read"),
        (".", "the job file cannot be read"),
        (3, "the job file needs a path"),
        ("in.parquet", "the job file cannot be read"),
    ],
)
def test_what_is_no_job_file_is_refused(folder: Path, job: Any, said: str) -> None:
    with pytest.raises(JobError, match=said):
        job_of({"job": job})


@pytest.mark.promise("(within `ROWMILL_ALLOWED_ROOTS`, on the host of the worker, relative to the folder of the runs)")
def test_a_job_file_outside_of_the_allowed_roots_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "inside").mkdir()
    (folder / "secret.yaml").write_text("password: 1")
    (folder / "inside" / "link.yaml").symlink_to(folder / "secret.yaml")
    monkeypatch.setenv("ROWMILL_ALLOWED_ROOTS", str(folder / "inside"))
    for path in ("secret.yaml", "inside/link.yaml", "inside/../secret.yaml", str(folder / "secret.yaml")):
        with pytest.raises(JobError, match="outside the allowed roots") as caught:
            job_of({"job": path})
        assert "password" not in str(caught.value)


@pytest.mark.promise("A deployment of `preprocess` or `fit` may name a job file")
@pytest.mark.promise("A recipe or a job file is enough")
def test_preprocess_and_fit_take_a_job_file(folder: Path, run_alone: Any) -> None:
    from flows.fit import fit

    (out,) = run_alone({"job": "job.yaml", "output": {"path": str(folder / "here"), "files": 1}})
    fitted = call(fit, {"job": "job.yaml", "output": {"path": str(folder / "fitted")}})

    assert Manifest.load(out).rows == {"in": 4, "dropped": 1, "added": 0, "out": 3}
    assert Manifest.load(out).data["seed"] == 5
    assert (Path(fitted) / "workflow.json").exists()
