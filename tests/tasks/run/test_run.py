"""A run calls its plugins in their order, and an error of theirs does what their interface says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job.job import make_job
from tasks.cluster.local_pool import LocalPool
from tasks.core.stage_results import StageResult
from tasks.errors import JobError
from tasks.graph.saved_workflow import read_fitted
from tasks.job.request import Request
from tasks.run.plugin import CurrentRun, NothingToDoError, RunPlugin
from tasks.run.run import execute_on, run


class Notes(RunPlugin):
    """Notes each call; raises `error` in the method that is named."""

    def __init__(self, name: str, notes: list[str], fails_in: str = "", error: BaseException | None = None) -> None:
        self.name, self.notes = name, notes
        self.fails_in, self.error = fails_in, error or JobError("no")

    def _note(self, method: str, run: CurrentRun, more: str = "") -> None:
        self.notes.append(" ".join(filter(None, (self.name, method, more))))
        assert run.request.staging.in_use()
        if method == self.fails_in:
            raise self.error

    def begin(self, run: CurrentRun) -> None:
        self._note("begin", run)

    def after(self, run: CurrentRun, result: StageResult) -> None:
        self._note("after", run, result.title)

    def before_commit(self, run: CurrentRun) -> None:
        self._note("before_commit", run)

    def committed(self, run: CurrentRun, outputs: Sequence[str]) -> None:
        self._note("committed", run, ", ".join(Path(folder).name for folder in outputs))

    def ended(self, run: CurrentRun, error: BaseException | None) -> None:
        self._note("ended", run, type(error).__name__ if error else "")


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    pq.write_table(pa.table({"x": [1.0, 2.0, 3.0], "y": [0, 1, 0]}), tmp_path / "in.parquet")
    features = [{"columns": ["x"], "ops": [{"op": "Normalize"}]}]
    job = {"source": {"path": str(tmp_path / "in.parquet")}, "features": features, "label": ["y"]}
    return make_job({**job, "output": {"path": str(tmp_path / "out")}}).request("pandas")


STAGES = ["ingest", "statistics", "transform", "shuffle_write"]


def test_plugins_are_called_in_their_order_and_at_the_end_in_reverse(request_: Request) -> None:
    notes: list[str] = []
    (manifest,) = run(request_, execute_on(LocalPool(1)), [Notes("a", notes), Notes("b", notes)], run_id="7")
    assert notes == [
        "a begin", "b begin", *(f"{name} after {stage}" for stage in STAGES for name in "ab"),
        "a before_commit", "b before_commit", "a committed out", "b committed out", "b ended", "a ended",
    ]  # fmt: skip
    assert (manifest.rows["out"], manifest.data["run"]) == (3, "7")
    assert not request_.staging.in_use()


def test_a_fit_publishes_a_fitted_workflow(request_: Request, tmp_path: Path) -> None:
    notes: list[str] = []
    assert run(replace(request_, flow="fit"), execute_on(LocalPool(1)), [Notes("a", notes)]) == []
    assert notes[-3:] == ["a before_commit", "a committed out", "a ended"]
    assert [line for line in notes if "after" in line] == ["a after ingest", "a after statistics"]
    assert read_fitted(tmp_path / "out")["state"]


@pytest.mark.promise("ends the run; what is done is kept", "flows/PLUGINS.md#what-it-is-told-and-what-its-errors-do")
@pytest.mark.parametrize("method", ["begin", "after", "before_commit"])
def test_an_error_before_the_commit_ends_the_run_and_what_is_done_is_kept(request_: Request, method: str) -> None:
    notes: list[str] = []
    plugins = [Notes("a", notes), Notes("b", notes, method), Notes("c", notes)]
    with pytest.raises(JobError, match="no"):
        run(request_, execute_on(LocalPool(1)), plugins)
    begun = "a" if method == "begin" else "abc"
    assert notes[-len(begun) :] == [f"{name} ended JobError" for name in reversed(begun)]
    assert not request_.staging.target.exists()
    assert not request_.staging.in_use()

    results: list[bool] = []

    class Reused(RunPlugin):
        def after(self, run: CurrentRun, result: StageResult) -> None:
            results.append(result.reused)

    run(request_, execute_on(LocalPool(1)), [Reused()])
    assert results == {"begin": [False] * 4, "after": [True, False, False, False], "before_commit": [True] * 4}[method]


@pytest.mark.parametrize("method", ["committed", "ended"])
def test_an_error_after_the_commit_is_logged(request_: Request, method: str, caplog: pytest.LogCaptureFixture) -> None:
    notes: list[str] = []
    assert run(request_, execute_on(LocalPool(1)), [Notes("a", notes), Notes("b", notes, method)])
    assert notes[-4:] == ["a committed out", "b committed out", "b ended", "a ended"]
    assert caplog.messages[-1] == f"{method} of the plugin Notes: JobError: no"


def test_a_plugin_that_finds_nothing_to_do_ends_the_run_well(request_: Request) -> None:
    notes: list[str] = []
    done = NothingToDoError("it is there", ["elsewhere"])
    with pytest.raises(NothingToDoError) as caught:
        run(request_, execute_on(LocalPool(1)), [Notes("a", notes), Notes("b", notes, "begin", done)])
    assert caught.value.outputs == ["elsewhere"]
    assert notes == ["a begin", "b begin", "a ended NothingToDoError"]


def test_a_run_that_is_stopped_tells_its_plugins_before_it_lets_the_lock_go(request_: Request) -> None:
    notes: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run(request_, execute_on(LocalPool(1)), [Notes("a", notes, "after", KeyboardInterrupt())])
    assert notes[-1] == "a ended KeyboardInterrupt"
    assert not request_.staging.in_use()


def test_an_output_that_must_not_be_changed_is_refused_before_any_plugin(request_: Request) -> None:
    notes: list[str] = []
    request_.staging.target.mkdir()
    (request_.staging.target / "file").touch()
    with pytest.raises(JobError, match="the output already exists"):
        run(request_, execute_on(LocalPool(1)), [Notes("a", notes)])
    assert notes == []
