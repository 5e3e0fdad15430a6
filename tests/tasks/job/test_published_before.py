"""What a run that was cut off has published: the same rows of the same date and job, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job.job import make_job
from tasks.cluster.local_pool import LocalPool
from tasks.errors import DataError, JobError
from tasks.job.base_version import find_newest_good
from tasks.job.request import Request
from tasks.stages import ingest
from tasks.storage.discarded import mark
from tests.stages import run_stages


@pytest.fixture
def request_of(tmp_path: Path, engine: str) -> Callable[..., Request]:
    """The request of a job over one file of three rows, published once; `more` changes the job."""
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"x": [1.0, 2.0, 3.0], "name": ["a", "b", "a"]}), tmp_path / "in" / "0.parquet")

    def made(resumes: bool = True, op: str = "Normalize", **output: Any) -> Request:
        features = [{"columns": ["x"], "ops": [{"op": op}]}, {"columns": ["name"], "ops": [{"op": "Categorify"}]}]
        job = make_job(
            {
                "source": {"path": str(tmp_path / "in")},
                "features": features,
                "output": {"path": str(tmp_path / "out"), "files": 1, **output},
            }
        )
        return replace(job.request(engine), resumes=resumes)

    run_stages(made(resumes=False))
    return made


def published(request: Request) -> str:
    with request.staging.hold_lock():
        return ingest.ingest(request, LocalPool(1)).published


def test_the_output_of_the_same_job_is_found_after_a_cut(request_of: Callable[..., Request], tmp_path: Path) -> None:
    assert published(request_of()) == str(tmp_path / "out")
    assert published(request_of(on_existing="replace")) == str(tmp_path / "out")


def test_without_a_cut_nothing_is_taken_for_published(request_of: Callable[..., Request]) -> None:
    assert published(request_of(resumes=False, on_existing="replace")) == ""


@pytest.mark.parametrize("change", [{"op": "LogOp"}, {"seed": 5}])
def test_another_job_is_not_published_and_the_output_stays_refused(
    request_of: Callable[..., Request], change: dict[str, Any]
) -> None:
    assert published(request_of(**change, on_existing="replace")) == ""
    with pytest.raises(JobError, match="the output already exists"):
        published(request_of(**change))
    assert not (request_of().staging.folder / "plan.json").exists()


def test_other_rows_or_another_date_are_not_published(request_of: Callable[..., Request], tmp_path: Path) -> None:
    dated = replace(request_of(on_existing="replace"), dated={"run_date": "2026-11-29"})
    assert published(dated) == ""
    pq.write_table(pa.table({"x": [1.0, 2.0, 4.0], "name": ["a", "b", "a"]}), tmp_path / "in" / "0.parquet")
    assert published(request_of(on_existing="replace")) == ""


def test_what_was_taken_back_is_made_again(request_of: Callable[..., Request], tmp_path: Path) -> None:
    mark(tmp_path / "out")
    assert published(request_of(on_existing="replace")) == ""


def test_a_night_that_was_learned_is_published_after_a_cut_and_refused_else(tmp_path: Path, engine: str) -> None:
    (tmp_path / "in").mkdir()
    out = tmp_path / "out"
    pq.write_table(pa.table({"name": ["a", "b"]}), tmp_path / "in" / "0.parquet")

    def request(**refit: Any) -> Request:
        """On top of the newest version."""
        job = make_job(
            {
                "source": {"path": str(tmp_path / "in")},
                "features": [{"columns": ["name"], "ops": [{"op": "Categorify"}]}],
                "output": {"path": str(out), "files": 1, "on_existing": "version"},
                "base": str(out),
                "refit": refit,
            }
        )
        version = find_newest_good(out).version
        return replace(job.request(engine, version), no_base=version is None, resumes=True)

    run_stages(request())
    assert published(request()) == str(out / "v0001")
    with pytest.raises(DataError, match="1 of 1 files were already learned") as refused:
        published(replace(request(), resumes=False))
    assert "nothing is left to do" in refused.value.do
    assert published(request(all=True)) == ""
    assert published(request(again=True)) == ""  # cut off before it has learned them once more
    run_stages(request(again=True))
    assert published(request(again=True)) == str(out / "v0002")
