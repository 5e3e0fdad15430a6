"""kill -9 at random moments: the same command again gives the bytes of an undisturbed run, and leaves nothing behind.

A round is a number, from which everything is drawn: the job, what is killed, when, and how often. A failed round is run
again by its node id: `pytest "tests/faults/test_random_kills.py::test_a_killed_run_is_completed_by_the_next[137]"`.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.storage.retention import leftovers, remove
from tests.faults.conftest import Known
from tests.faults.rounds import Rounds
from tests.faults.seeds import VARIANTS, beside, contents, seeds, variant

pytestmark = pytest.mark.xdist_group("rounds")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kills")


@pytest.fixture
def folder(place: Path) -> Iterator[Path]:
    """Where a round writes; the next one has it for itself."""
    (place / "round").mkdir()
    yield place / "round"
    shutil.rmtree(place / "round")


@pytest.mark.promise("After a killed run, give the same command again")
@pytest.mark.parametrize("seed", seeds(few=10, all=500))
def test_a_killed_run_is_completed_by_the_next(
    seed: int, round_data: Path, folder: Path, rounds: Rounds, undisturbed: dict[str, Known]
) -> None:
    draws = random.Random(seed)
    name = draws.choice(sorted(VARIANTS))
    known, job = undisturbed[name], variant(name, round_data, folder / "out")
    for _ in range(draws.choice([1, 1, 2, 4])):
        moment: dict[str, Any] = {"kill_at": draws.randint(1, known.operations)}
        if draws.random() < 0.4:
            moment = {"after": draws.uniform(0, known.seconds)}
        ended = rounds.run("stages", job, **moment)
        assert ended.killed or ended.status == 0 or ended.error["what"] == "the output already exists", ended
        if ended.killed and (folder / "out").exists():  # after the rename: it is there as a whole
            assert contents(folder / "out") == known.files
    last = rounds.run("stages", job)
    assert last.status == 0 or last.error["what"] == "the output already exists", last
    assert contents(folder / "out") == known.files
    if last.status:  # killed between its rename and its cleaning up, and refused since then
        for left in leftovers([folder]):
            remove(left)
    assert beside(folder) == {"out"}


@pytest.mark.promise("then one rename publishes all of it")
@pytest.mark.parametrize("seed", seeds(few=4, all=150))
def test_a_killed_replace_leaves_one_of_both_outputs(
    seed: int, round_data: Path, folder: Path, rounds: Rounds, undisturbed: dict[str, Known]
) -> None:
    draws = random.Random(1000 + seed)
    old, new = draws.sample(sorted(VARIANTS), 2)
    out, replace = folder / "out", {"on_existing": "replace"}
    assert rounds.run("stages", variant(old, round_data, out)).status == 0
    job = variant(new, round_data, out, output=replace)
    known = undisturbed[new]
    # Half of the kills come where the old one gives way to the new one.
    least = 1 if draws.random() < 0.5 else known.operations - 60
    ended = rounds.run("stages", job, kill_at=draws.randint(max(1, least), known.operations + 20))
    assert ended.killed or ended.status == 0, ended
    if out.exists():
        assert contents(out) in (undisturbed[old].files, known.files)
    assert rounds.run("stages", job).status == 0
    assert contents(out) == known.files
    assert beside(folder) == {"out"}
