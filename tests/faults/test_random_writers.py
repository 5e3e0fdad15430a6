"""Five runs on one output at the same time, and readers beside them: one output after the other, never a mix.

Each round draws from its number what the runs do with an output that exists (`fail`, `replace`, `version`), whether
they wait for the lock, when each begins, and whether some are killed. Each run has a seed of its own, so that the bytes
tell whose output it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.jobs import make_data, make_job
from tests.faults.rounds import Rounds
from tests.faults.seeds import beside, contents, seeds

pytestmark = pytest.mark.xdist_group("rounds")
RUNS = 5
REFUSED = ("another run is working on this output", "the output already exists")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("writers")


@pytest.fixture(scope="module")
def data(place: Path) -> Path:
    return make_data(place / "data", files=1, rows=5000)


def job_of(data: Path, out: Path, number: int, **sections: dict[str, Any]) -> dict[str, Any]:
    """The job of one of the runs: its order is its own."""
    output = {"files": 3, "seed": number, **sections.get("output", {})}
    return make_job(data, out, output=output, run={"report": False, **sections.get("run", {})})


@pytest.fixture(scope="module")
def outputs(place: Path, data: Path, rounds: Rounds) -> list[dict[str, str]]:
    """What each of the runs writes."""
    made = []
    for number in range(RUNS):
        assert rounds.run("stages", job_of(data, place / f"quiet-{number}", number)).status == 0
        made.append(contents(place / f"quiet-{number}"))
    assert len({json.dumps(files) for files in made}) == RUNS
    return made


class Reader(threading.Thread):
    """Opens the output again and again and reads all of its files: whose they are, or what is wrong with them."""

    def __init__(self, out: Path, outputs: list[dict[str, str]], versions: bool) -> None:
        super().__init__(daemon=True)
        self.out, self.outputs, self.versions = out, outputs, versions
        self.seen: Counter[str] = Counter()
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.is_set():
            self.seen[self.look()] += 1
            time.sleep(0.002)

    def look(self) -> str:
        try:
            out = self.out / (self.out / "_latest").read_text().strip() if self.versions else self.out
            folder = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return "nothing there"
        try:
            names = sorted(os.listdir(folder))  # noqa: PTH208 - the folder that is open, whatever its name is by now
            files = {name: self.digest(folder, name) for name in names if name.startswith("part-")}
            noted = {part["path"] for part in json.loads(self.content(folder, "_manifest.json"))["parts"]}
        except FileNotFoundError:
            return "removed while it was read"
        finally:
            os.close(folder)
        if noted != set(files):
            return f"not whole: {names}"
        return "whole" if files in self.outputs else f"a mix: {files}"

    def content(self, folder: int, name: str) -> bytes:
        with open(os.open(name, os.O_RDONLY, dir_fd=folder), "rb") as file:  # noqa: PTH123
            return file.read()

    def digest(self, folder: int, name: str) -> str:
        return hashlib.sha256(self.content(folder, name)).hexdigest()


@pytest.fixture
def folder(place: Path) -> Iterator[Path]:
    (place / "round").mkdir()
    yield place / "round"
    shutil.rmtree(place / "round")


@pytest.mark.promise("an output is there whole or not at all")
@pytest.mark.promise("A lock next to the output keeps two runs out of it, whatever their scratch folders")
@pytest.mark.parametrize("seed", seeds(few=4, all=500))
def test_five_runs_on_one_output(
    seed: int, data: Path, folder: Path, rounds: Rounds, outputs: list[dict[str, str]]
) -> None:
    draws, out = random.Random(seed), folder / "out"
    existing, killing = draws.choice(["fail", "replace", "version"]), draws.random() < 0.3
    jobs = [
        job_of(data, out, number, output={"on_existing": existing}, run={"lock": draws.choice(["fail", "wait"])})
        for number in range(RUNS)
    ]
    if existing == "replace":
        assert rounds.run("stages", jobs[0]).status == 0
    readers = [Reader(out, outputs, existing == "version") for _ in range(2)]
    for reader in readers:
        reader.start()
    begun = []
    for job in jobs:
        faults = {"kill_at": draws.randint(1, 400)} if killing and draws.random() < 0.4 else {}
        begun.append(rounds.begin("stages", job, **faults))
        time.sleep(draws.choice([0, 0, draws.uniform(0, 0.3)]))
    ended = [rounds.end(one) for one in begun]
    for reader in readers:
        reader.done.set()
        reader.join()

    seen = readers[0].seen + readers[1].seen
    assert set(seen) <= {"whole", "nothing there", "removed while it was read"}, seen
    good = [number for number, one in enumerate(ended) if one.status == 0]
    killed = [number for number, one in enumerate(ended) if one.killed]
    for one in ended:
        assert one.status == 0 or one.killed or one.error["what"] in REFUSED, one
    waited = [n for n, job in enumerate(jobs) if job["run"]["lock"] == "wait" and n not in killed]
    assert good or killed
    if existing == "fail":
        assert len(good) <= 1
        written = [contents(out)] if out.exists() else []
        assert len(written) == 1 or killed
        assert all(files in outputs for files in written)
    elif existing == "replace":
        assert set(waited) <= set(good)  # who waits has its turn
        assert contents(out) in [outputs[n] for n in (*good, *killed, 0)]
    else:
        assert set(waited) <= set(good)
        written = [contents(version) for version in sorted(out.glob("v*"))]
        assert all(outputs[number] in written for number in good)
        assert len(good) <= len(written) <= len(good) + len(killed)
        assert all(files in outputs for files in written)
    assert beside(folder) <= {"out"} | ({".out.rowmill"} if killed else set())
