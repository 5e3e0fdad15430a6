"""The same job again: what is done is found, what changed is done again, what is damaged never reaches the output."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flows.job.job import make_job as job_of
from tasks.cluster.local_pool import LocalPool
from tasks.errors import DataError
from tasks.job import request as job_request
from tasks.stages import commit, ingest, shuffle_write, statistics, transform
from tests.faults.jobs import FEATURES, STAGES, digests, flow_state, make_data, make_job, run_here

pytestmark = pytest.mark.xdist_group("faults")
NAMES = list(STAGES)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("resume") / "data", files=2)


def job(data: Path, out: Path, **sections: Any) -> dict[str, Any]:
    return make_job(data, out, **{**sections, "run": {"exchange": "disk", **sections.get("run", {})}})


def go(asked: dict[str, Any], engine: str, before: str = "", action: Callable[[], Any] = int) -> list[str]:
    """The stages of a job as the flow runs them, the action `before` one (or `commit`); those that were found done."""
    request, pool, done = job_of(asked).request(engine), LocalPool(2), []
    work = {
        "ingest": ingest.ingest,
        "statistics": statistics.statistics,
        "transform": transform.transform,
        "shuffle_write": shuffle_write.shuffle_write,
    }
    request.staging.check(request.output.on_existing)
    with request.staging.locked():
        for name, stage in work.items():
            if name == before:
                action()
            done.append(stage(request, *([""] if name in NAMES[2:] else []), pool))
        if before == "commit":
            action()
        commit.commit(request, done)
    return [s.stage for s in done if s.reused]


@pytest.fixture(scope="module")
def expected(data: Path, tmp_path_factory: pytest.TempPathFactory, engine: str) -> dict[str, str]:
    """The files of an undisturbed run."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    assert go(job(data, out), engine) == []
    return digests(out)


def stop() -> None:
    raise ConnectionResetError("pulled out")


def cut_off(asked: dict[str, Any], engine: str, before: str) -> None:
    """A run that fails just before a stage."""
    with pytest.raises(ConnectionResetError):
        go(asked, engine, before, stop)
    assert not Path(asked["output"]["path"]).exists()


@pytest.mark.parametrize("stage", [*NAMES[1:], "commit"])
def test_what_is_done_before_a_failure_is_found_done(
    stage: str, data: Path, tmp_path: Path, engine: str, expected: dict[str, str]
) -> None:
    asked, done = job(data, tmp_path / "out"), [*NAMES, "commit"][: [*NAMES, "commit"].index(stage)]
    cut_off(asked, engine, stage)
    if stage == "shuffle_write":
        done.remove("transform")  # it checks its scratch files and takes them, which is more than finding it done
    assert go(asked, engine) == done
    assert digests(tmp_path / "out") == expected


def rewrite(folder: Path) -> None:
    """Another size, time and content of one file."""
    table = pq.read_table(folder / "1.parquet")
    pq.write_table(table.slice(0, table.num_rows - 1), folder / "1.parquet")


def touch(folder: Path) -> None:
    """Another time alone."""
    stat = (folder / "1.parquet").stat()
    os.utime(folder / "1.parquet", ns=(stat.st_atime_ns, stat.st_mtime_ns + 10**9))


def rename(folder: Path) -> None:
    """The same content under another name."""
    (folder / "1.parquet").rename(folder / "2.parquet")


def leave(folder: Path) -> None:
    return


# what changes after a run that failed before shuffle_write; the stages that are then found done
FEWER = [{"columns": ["x"], "ops": [{"op": "Normalize"}]}]
CHANGES: dict[str, tuple[Callable[[Path], None], dict[str, dict[str, Any] | Any], list[str]]] = {
    "a file": (rewrite, {}, []),
    "the time of a file": (touch, {}, []),
    "the name of a file": (rename, {}, []),
    "features": (leave, {"features": FEWER}, ["ingest"]),
    "the filter": (leave, {"source": {"filter": "x > 0"}}, ["ingest"]),
    "the seed": (leave, {"output": {"seed": 8}}, ["ingest", "statistics"]),
    "the files": (leave, {"output": {"files": 3}}, ["ingest", "statistics"]),
    "how it is done": (leave, {"run": {"retries": 0}, "output": {"on_existing": "replace"}}, NAMES),
}  # fmt: skip


@pytest.mark.promise("When the job or the data have changed, the old work is thrown away")
@pytest.mark.parametrize("case", CHANGES)
def test_what_changed_is_done_again_from_its_stage_on(case: str, data: Path, tmp_path: Path, engine: str) -> None:
    change, sections, kept = CHANGES[case]
    source = Path(shutil.copytree(data, tmp_path / "data"))
    cut_off(job(source, tmp_path / "out"), engine, "commit")
    change(source)
    assert go(job(source, tmp_path / "out", **sections), engine) == kept
    go(job(source, tmp_path / "fresh", **sections), engine)
    assert digests(tmp_path / "out") == digests(tmp_path / "fresh")


def test_another_version_of_the_code_does_everything_again(
    data: Path, tmp_path: Path, engine: str, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = job(data, tmp_path / "out")
    cut_off(asked, engine, "commit")
    monkeypatch.setattr(job_request, "own_code", lambda: "another version")
    assert go(asked, engine) == []
    assert digests(tmp_path / "out") == expected


def test_bad_data_mended_and_the_same_job_completes(
    data: Path, tmp_path: Path, engine: str, expected: dict[str, str]
) -> None:
    source = Path(shutil.copytree(data, tmp_path / "data"))
    whole, asked = (source / "1.parquet").read_bytes(), job(source, tmp_path / "out")
    (source / "1.parquet").write_bytes(whole[:-20])
    with pytest.raises(DataError, match="not a whole Parquet file"):
        go(asked, engine)
    assert not (tmp_path / "out").exists()
    (source / "1.parquet").write_bytes(whole)
    assert go(asked, engine) == []
    assert digests(tmp_path / "out") == expected


def damage(pattern: str, folder: Path) -> Callable[[], None]:
    """Turn a bit in the middle of the first file that the pattern finds, its size and name as they were."""

    def turn() -> None:
        path = sorted(folder.glob(pattern))[0]
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(bytes(content))

    return turn


# the file that is damaged, the stage before which it happens, the stage that says so (none: it is fixed silently)
DAMAGES: dict[str, tuple[str, str, str]] = {
    "a scratch file": ("exchange/*/partition-*.arrow", "shuffle_write", ""),
    "a note of a scratch file": ("exchange/*/partition-*.json", "shuffle_write", ""),
    "what transform found": ("exchange.json", "shuffle_write", ""),
    "a vocabulary": ("state/*.vocab", "transform", "is damaged"),
    "the state": ("state/state.json", "transform", "is damaged"),
    "the plan": ("plan.json", "statistics", "the plan of this run is gone or damaged"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_damage_between_stages_is_mended_or_told(
    case: str, data: Path, tmp_path: Path, engine: str, expected: dict[str, str]
) -> None:
    pattern, stage, told = DAMAGES[case]
    asked, harm = job(data, tmp_path / "out"), damage(pattern, tmp_path / ".out.rowmill")
    if told:
        with pytest.raises(DataError, match=told):
            go(asked, engine, stage, harm)
        assert not (tmp_path / "out").exists()
        go(asked, engine)
    else:
        go(asked, engine, stage, harm)
    assert digests(tmp_path / "out") == expected


@pytest.mark.promise("parts are written, flushed to disk and checked, the manifest comes last")
def test_written_parts_that_were_damaged_or_lost_are_written_again(
    data: Path, tmp_path: Path, engine: str, expected: dict[str, str]
) -> None:
    asked, staging = job(data, tmp_path / "out"), tmp_path / ".out.rowmill"
    cut_off(asked, engine, "commit")
    damage("new/part-00001.parquet", staging)()
    kept = (staging / "new" / "part-00000.parquet").stat().st_ino
    (staging / "new" / "part-00003.parquet").unlink()
    assert go(asked, engine) == ["ingest", "statistics"]
    assert digests(tmp_path / "out") == expected
    assert (tmp_path / "out" / "part-00000.parquet").stat().st_ino == kept


def test_two_flows_at_once_on_one_scheduler_keep_apart(
    data: Path, tmp_path: Path, prefect_server: Any, cluster: Any, client: Any, engine: str, expected: dict[str, str]
) -> None:
    """The same source, different targets; what one releases is its own alone."""
    client.publish_dataset(client.submit(len, "abc"), name="rowmill-of-somebody-else")
    other = {"output": {"seed": 99}, "features": FEATURES[:1]}
    jobs = [make_job(data, tmp_path / "a"), make_job(data, tmp_path / "b", **other)]
    with ThreadPoolExecutor(2) as threads:
        states = list(threads.map(lambda one: run_here(one, cluster), jobs))
    assert [flow_state(state) for state in states] == ["Completed"] * 2
    go(job(data, tmp_path / "alone", **other), engine)
    assert digests(tmp_path / "a") == expected
    assert digests(tmp_path / "b") == digests(tmp_path / "alone")
    assert list(client.list_datasets()) == ["rowmill-of-somebody-else"]
    client.unpublish_dataset("rowmill-of-somebody-else")
