"""`python -m tests.faults.run_job JOB.json`: a job as its own process, which may kill itself before a stage.

`ROWMILL_TEST_DIE_BEFORE` names the stage, `commit`, `swap` (when the new output is there, before the old one was
put away) or `latest` (when the new version has its name, before `_latest` names it).
The last line of a finished run is a JSON list of (stage, did it reuse what was there).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    from infra.orchestration.server import ensure_server

    ensure_server()
    from flows import preprocess
    from flows.run import session, stages
    from tasks.stages import commit
    from tasks.storage import atomic, staging

    victim, reused = os.environ.get("ROWMILL_TEST_DIE_BEFORE"), []
    run_stage, publish, rename = stages.run_stage, commit.commit, atomic.rename

    def stage(function: Any, *args: Any) -> Any:
        if function.name == victim:
            die()
        summary = run_stage(function, *args)
        reused.append((summary.stage, summary.reused))
        return summary

    def committed(*args: Any) -> Any:
        if victim == "commit":
            die()
        return publish(*args)

    def renamed(source: Path, target: Path) -> Path:
        if victim == "swap" and source.name == "new":
            die()
        return rename(source, target)

    point_to = staging.Staging.point_to

    def pointed(self: Any, version: Path) -> bool:
        if victim == "latest" and not self.new.exists() and (self.folder / "plan.json").exists():
            die()
        return point_to(self, version)

    staging.Staging.point_to = pointed  # type: ignore[method-assign]
    preprocess.run_stage, commit.commit, staging.rename = stage, committed, renamed
    session.run_stage = preprocess.run_stage
    preprocess.preprocess(**json.loads(Path(sys.argv[1]).read_text()))
    print(json.dumps(reused))


if __name__ == "__main__":
    main()
