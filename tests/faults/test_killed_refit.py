"""The process of a refit killed with kill -9, also right after its rename; the same command ends the night once."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.faults.jobs import STAGES, digests, make_data, make_job, run_flow
from tests.faults.test_killed_flow import start

pytestmark = [pytest.mark.xdist_group("killed-flow"), pytest.mark.timeout(900)]


def test_a_refit_that_is_killed_anywhere_is_completed_once(tmp_path: Path, prefect_server: Any) -> None:
    first, second = make_data(tmp_path / "1"), make_data(tmp_path / "2", seed=1)
    out, quiet = tmp_path / "out", tmp_path / "quiet"

    def job(data: Path, to: Path) -> dict[str, Any]:
        return {**make_job(data, to, output={"on_existing": "version"}), "base": str(to)}

    for to in (quiet, out):
        assert run_flow(job(first, to)).is_completed()
    assert run_flow(job(second, quiet)).is_completed()

    def killed(*faults: dict[str, Any], before: str = "") -> None:
        process = start(job(second, out), tmp_path, *({"do": "kill-flow", **fault} for fault in faults), before=before)
        assert process.returncode == -signal.SIGKILL, process.stderr

    killed({"at": STAGES["statistics"], "call": 2})
    killed(before="transform")
    killed({"at": STAGES["shuffle_write"], "call": 3})
    killed(before="commit")
    assert not (out / "v0002").exists()
    killed(before="latest")
    assert (out / "v0002").is_dir()
    assert (out / "_latest").read_text() == "v0001\n"

    last = start(job(second, out), tmp_path)

    assert last.returncode == 0, last.stderr
    assert json.loads(last.stdout.splitlines()[-1]) == []  # no stage ran: the night was published
    assert sorted(path.name for path in out.iterdir()) == ["_latest", "v0001", "v0002"]
    assert (out / "_latest").read_text() == "v0002\n"
    assert digests(out / "v0002") == digests(quiet / "v0002")
    prints = [json.loads((to / "v0002/_manifest.json").read_text())["fingerprints"]["state"] for to in (out, quiet)]
    assert prints[0] == prints[1]
    assert not (tmp_path / ".out.rowmill").exists()
