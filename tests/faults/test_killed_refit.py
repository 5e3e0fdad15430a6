"""The process of a refit killed with kill -9, also right after its rename; the same command ends the night once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.faults.chaos import kill_at
from tests.faults.jobs import STAGES, digests, make_data, make_job
from tests.faults.rounds import Rounds
from tests.faults.small_blocks import ROWS
from tests.faults.test_killed_flow import COMMIT, before

pytestmark = pytest.mark.xdist_group("rounds")


def test_a_refit_that_is_killed_anywhere_is_completed_once(tmp_path: Path, rounds: Rounds) -> None:
    first, second = make_data(tmp_path / "1", rows=ROWS), make_data(tmp_path / "2", rows=ROWS, seed=1)
    out, quiet = tmp_path / "out", tmp_path / "quiet"

    def job(data: Path, to: Path) -> dict[str, Any]:
        return {**make_job(data, to, output={"on_existing": "version"}), "base": str(to)}

    for to in (quiet, out):
        assert rounds.run("stages", job(first, to)).status == 0
    assert rounds.run("stages", job(second, quiet)).status == 0

    def killed(fault: dict[str, Any]) -> None:
        ended = rounds.run("stages", job(second, out), here=[fault])
        assert ended.killed, ended

    killed(kill_at(STAGES["statistics"], call=2))
    killed(before("transform"))
    killed(kill_at(STAGES["shuffle_write"], call=3))
    killed(kill_at(COMMIT))
    assert not (out / "v0002").exists()
    # at its start, a refit lets `_latest` name its base; the second time it names the new version
    killed(kill_at("tasks.storage.staging:Staging.point_to", call=2))
    assert (out / "v0002").is_dir()
    assert (out / "_latest").read_text() == "v0001\n"

    last = rounds.run("stages", job(second, out))

    assert last.status == 0, last.error
    assert last.stages == []  # no stage ran: the night was published
    assert last.committed == [str(out / "v0002")]
    assert sorted(path.name for path in out.iterdir()) == ["_latest", "v0001", "v0002"]
    assert (out / "_latest").read_text() == "v0002\n"
    assert digests(out / "v0002") == digests(quiet / "v0002")
    prints = [json.loads((to / "v0002/_manifest.json").read_text())["fingerprints"]["state"] for to in (out, quiet)]
    assert prints[0] == prints[1]
    assert not (tmp_path / ".out.rowmill").exists()
