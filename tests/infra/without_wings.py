"""Runs a job in a copy of the checkout that lacks a wing, one after the other: `python -m`, by test_wings.py.

Arguments: the copy, the folder with `data` (a source) and for outputs, and the wings. This process takes all wings out
of the copy and imports the core. A fork of it, for each wing, has all others back. It runs the job by the function
`run`, then by the command, and so as a flow that reports to a real server; it also tries the keys and the command that
belong to the wing. What became of it is printed as a line of JSON for each wing.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

CORE = ("tests.commands", "tests.flows.runs", "flows.preprocess", "flows.fit", "flows.apply", "flows.refit", "rowmill")
COMMANDS = {
    "flows/gate": ("publish", "OUT"),
    "flows/draft": ("new", "DATA"),
    "flows/preview": ("preview", "JOB"),
    "flows/sample": ("sample", "toy", "--path", "NEW"),
    "flows/published": ("versions", "OUT"),
    "tasks/report": ("report", "OUT"),
}


def take_away(root: Path, wings: Iterable[str]) -> None:
    for wing in wings:
        away = root / "away" / wing
        away.parent.mkdir(parents=True, exist_ok=True)
        (root / wing).rename(away)


def put_back(root: Path, wings: Iterable[str]) -> None:
    for wing in wings:
        (root / "away" / wing).rename(root / wing)


def answer_of(root: Path, folder: Path, wing: str) -> dict[str, Any]:
    """What a fork of this process finds of a wing that is taken."""
    path = folder / "answer.json"
    path.unlink(missing_ok=True)
    if (child := os.fork()) == 0:
        try:
            answer = try_out(folder, wing)
        except BaseException:
            answer = {"error": traceback.format_exc()}
        path.write_text(json.dumps(answer))
        os._exit(0)
    os.waitpid(child, 0)
    return dict(json.loads(path.read_text()))


def try_out(folder: Path, wing: str) -> dict[str, Any]:
    import pytest

    from flows.job.job import load_job
    from tasks.cluster.local_pool import LocalPool
    from tasks.core.wings import KEYS, has_wing
    from tasks.errors import JobError
    from tasks.manifest import Manifest
    from tasks.run.run import execute_on, run

    importlib.invalidate_caches()  # of what was not there a moment ago
    from tests.commands import rowmill
    from tests.flows.runs import have_stages_here

    assert not has_wing(wing)
    name = wing.replace("/", "-")
    by_function, by_command = folder / name / "function", folder / name / "command"
    job = folder / "job.yaml"
    changes = ["source.path=" + str(folder / "data"), "output.files=2"]
    request = load_job(str(job), [*changes, f"output.path={by_function}"]).request("pandas")
    [manifest] = run(request, execute_on(LocalPool(1)))
    have_stages_here(pytest.MonkeyPatch())
    words = [word for change in [*changes, f"output.path={by_command}"] for word in ("--set", change)]
    ended = rowmill("run", job, *words)
    answer: dict[str, Any] = {"status": ended.exit_code, "output": ended.output, "refused": [], "command": ""}
    answer["digests"] = [[part["xxh3_128"] for part in manifest.parts]]
    if ended.exit_code == 0:
        answer["digests"].append([part["xxh3_128"] for part in Manifest.load(by_command).parts])
    values = {"contract": "c.yaml", "checks": "{on_finding: stop}", "base": "out", "refit": "{all: true}"}
    values |= {"source.sample": "{name: toy, rows: 10}", "run.ready_by": "06:00"}
    for key in [key for key, folder_of in KEYS.items() if folder_of == wing]:
        try:
            load_job(str(job), [f"{key}={values.get(key, 'file.txt')}"])
        except JobError as error:
            answer["refused"].append([key, error.what, error.why])
    if wing in COMMANDS:
        places = {"OUT": by_command, "DATA": folder / "data", "JOB": job, "NEW": folder / "new"}
        answer["command"] = rowmill(*(places.get(word, word) for word in COMMANDS[wing])).output
    if wing == "tasks/loading":
        import rowmill as public

        try:
            public.loader(str(by_command))
        except JobError as error:
            answer["command"] = str(error)
    return answer


def main() -> None:
    root, folder, wings = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    take_away(root, wings)
    for module in CORE:
        importlib.import_module(module)
    for wing in wings:
        others = [one for one in wings if one != wing]
        put_back(root, others)
        print(json.dumps({"wing": wing, **answer_of(root, folder, wing)}), flush=True)
        take_away(root, others)


if __name__ == "__main__":
    main()
