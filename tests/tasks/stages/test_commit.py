"""What the commit needs is made while the workers write, and its errors are the commit's."""

from __future__ import annotations

from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest

from flows.job.job import make_job as job_of
from tasks.cluster.local_pool import LocalPool
from tasks.errors import DataError, GiveUpError
from tasks.job.request import Request
from tasks.stages import commit, ingest, shuffle_write, statistics, transform
from tasks.storage.own_files import WORKFLOW
from tests.faults.jobs import make_data, make_job

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture
def request_(tmp_path: Path, engine: str) -> Request:
    return job_of(make_job(make_data(tmp_path / "data", files=1), tmp_path / "out")).request(engine)


def learned(request: Request, pool: LocalPool) -> list[dict[str, Any]]:
    return [ingest.ingest(request, pool), statistics.statistics(request, pool)]


def written(request: Request, pool: LocalPool) -> list[dict[str, Any]]:
    return [transform.transform(request, "", pool), shuffle_write.shuffle_write(request, "", pool)]


def test_the_workflow_is_there_before_the_files_are_and_goes_into_the_output(request_: Request) -> None:
    pool = LocalPool(2)
    with request_.staging.hold_lock():
        done = learned(request_, pool)
        with commit.CommitPreparation(request_) as closing:
            state, bound, folder = closing.wait_for_state()
            assert sorted(p.name for p in folder.iterdir()) == [
                "README.md", "files.vocab", "partials.json", "state.json", "v001-values.vocab", "workflow.json",
            ]  # fmt: skip
            done += written(request_, pool)
            (manifest,) = commit.commit(request_, done, closing=closing)
    assert list(bound.output) == ["x", "name", "label"]
    assert not folder.exists()
    assert (Path(manifest.path) / WORKFLOW / "state.json").exists()
    assert state.values


@pytest.mark.parametrize("share", [1e-12, 0.5])
def test_what_is_large_is_read_when_the_workers_are_done(
    request_: Request, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    from tasks.stages import commit

    monkeypatch.setattr(commit, "STATE_SHARE_OF_HOST", share)
    monkeypatch.setattr(commit, "PREPARE_DELAY", 0.0)
    with request_.staging.hold_lock():
        learned(request_, LocalPool(2))
        with commit.CommitPreparation(request_) as closing:
            read, _ = wait([closing._learned], timeout=0.5 if share < 0.1 else 60)
            assert bool(read) == (share > 0.1)
            assert closing.wait_for_state().state.values


def test_a_run_that_fails_leaves_nobody_who_writes(request_: Request) -> None:
    with request_.staging.hold_lock():
        learned(request_, LocalPool(2))
        with pytest.raises(ConnectionResetError), commit.CommitPreparation(request_) as closing:
            raise ConnectionResetError("pulled out")
    assert closing._learned.done()
    assert not list(request_.staging.folder.glob("*.tmp"))


def test_what_cannot_be_read_is_told_by_the_commit(request_: Request) -> None:
    pool = LocalPool(2)
    with request_.staging.hold_lock():
        done = [*learned(request_, pool), *written(request_, pool)]
        next((request_.staging.folder / "state").glob("*.vocab")).write_bytes(b"")
        with pytest.raises(DataError, match="is damaged"):
            commit.commit(request_, done)
    assert not request_.staging.target.exists()


def test_what_cannot_be_kept_is_told_by_the_commit(request_: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.stages import commit

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    pool = LocalPool(2)
    with request_.staging.hold_lock():
        done = [*learned(request_, pool), *written(request_, pool)]
        monkeypatch.setattr(commit, "_save_fitted", full)
        with pytest.raises(GiveUpError, match="there is no space left"):
            commit.commit(request_, done)
    assert not request_.staging.target.exists()
