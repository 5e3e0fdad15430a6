"""Flows on the session's server whose workers meet faults on order; their scheduler lives in this process.

And rounds of seeded faults: a fixed small sample of them in each run of the suite, hundreds with `-m nightly`.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dask
import distributed  # noqa: F401 - without its defaults, the end of a `set` would remove them
import pytest

from tasks.stages import plan_splits
from tests.faults import chaos, small_blocks
from tests.faults.jobs import make_data, plan_chaos
from tests.faults.rounds import Rounds
from tests.faults.seeds import VARIANTS, contents, variant
from tests.faults.small_blocks import ROWS


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefect_server: Any) -> Iterator[Callable[..., None]]:
    """faults({"at": .., "do": ..}, ..) is what workers meet that start after it. Every file is a block there."""
    monkeypatch.setenv(chaos.VARIABLE, str(tmp_path / "chaos.json"))
    with dask.config.set({"distributed.worker.preload": [small_blocks.__name__, chaos.__name__]}):
        yield lambda *given: plan_chaos(tmp_path / "chaos.json", given)


class Known(NamedTuple):
    """An undisturbed run: the digests of its files, how many file operations it made, and its seconds."""

    files: dict[str, str]
    operations: int
    seconds: float


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder whose files need not wait for a disk, where there is one."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="rowmill-test-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, round_data: Path, rounds: Rounds) -> dict[str, Known]:
    """Variant of the job -> what it writes when nothing happens."""
    known, place = {}, tmp_path_factory.mktemp("quiet")
    for name in VARIANTS:
        began = time.monotonic()
        ended = rounds.run("stages", variant(name, round_data, place / name))
        assert ended.status == 0, ended.error
        known[name] = Known(contents(place / name), ended.operations, time.monotonic() - began)
    return known


@pytest.fixture(scope="session")
def round_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files, which are a block each."""
    return make_data(tmp_path_factory.mktemp("rounds") / "data", files=3, rows=ROWS)


@pytest.fixture(scope="module")
def in_small_blocks() -> Iterator[None]:
    """Every file of a source is a block in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_splits, "make_plan", small_blocks.make_plan)
        yield
