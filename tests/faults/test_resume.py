"""The same job again: what is done is found, what changed is done again, what is damaged never reaches the output."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tasks.errors import DataError
from tasks.job import request as job_request
from tests.faults.jobs import STAGES, digests, go, make_data, make_job
from tests.faults.small_blocks import ROWS

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.usefixtures("in_small_blocks")]
NAMES = list(STAGES)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("resume") / "data", files=2, rows=ROWS)


def job(data: Path, out: Path, **sections: Any) -> dict[str, Any]:
    return make_job(data, out, **{**sections, "run": {"exchange": "disk", **sections.get("run", {})}})


@pytest.fixture(scope="module")
def expected(
    data: Path, tmp_path_factory: pytest.TempPathFactory, engine: str, in_small_blocks: None
) -> dict[str, str]:
    """The files of an undisturbed run."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    partitions: list[int] = []

    def look() -> None:
        partitions.append(len(list((out.parent / ".out.rowmill").glob("exchange/*/partition-*.arrow"))))

    assert go(job(data, out), engine, "shuffle_write", look) == []
    assert partitions == [2]
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
