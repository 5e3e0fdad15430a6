"""What the Prefect server hears of a run besides its stages, and what Prefect's tasks need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flows.run.artifacts import all_shown
from flows.run.links import links_of_this_run
from flows.run.signs_of_life import signs_of_life
from flows.run.stages import stages_of_this_run
from infra.orchestration.task_settings import TaskSettings
from tasks.job.request import Request


@contextmanager
def in_prefect(request: Request) -> Iterator[None]:
    """What the Prefect server hears of a run besides its stages, and what Prefect's tasks need, while the block runs.

    It surrounds the lock of the output, since a run that waits for that lock lives.
    """
    with (
        signs_of_life(str(request.staging.target)),
        TaskSettings.current(),
        links_of_this_run(),
        all_shown(),
        stages_of_this_run(),
    ):
        yield
