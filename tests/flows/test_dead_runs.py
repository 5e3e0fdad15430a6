"""What the Prefect server can tell of runs: which of their processes have ended, and the keys of their stages."""

from __future__ import annotations

import os

import pytest

from flows.job.run_labels import has_ended, this_process
from tasks.stages import task


def with_field(number: int, value: str) -> str:
    """The text of this process with another boot (0), namespace (1), number (2) or start (3)."""
    fields = this_process().split(" ")
    fields[number] = value
    return " ".join(fields)


def test_a_process_whose_number_was_given_to_another_has_ended() -> None:
    assert this_process().split(" ")[2] == str(os.getpid())
    assert has_ended(with_field(3, "1"))


def test_a_number_that_no_process_has_is_that_of_one_that_has_ended() -> None:
    assert has_ended(with_field(2, "4194304"))  # PID_MAX_LIMIT of Linux: the first number that is never given


@pytest.mark.parametrize(("number", "value"), [
    (0, "11111111-2222-3333-4444-555555555555"),  # another host, or before it was booted again
    (1, "pid:[1]"),  # another container
    (2, "none"),
])  # fmt: skip
def test_a_process_that_cannot_be_seen_from_here_may_be_alive(number: int, value: str) -> None:
    assert not has_ended(with_field(number, value))


@pytest.mark.parametrize("process", ["", "rowmill"])
def test_what_is_not_the_text_of_a_process_tells_nothing(process: str) -> None:
    assert not has_ended(process)


def test_each_stage_has_a_task_key_of_its_own() -> None:
    stages = (task.ingest, task.statistics, task.transform, task.shuffle_write)
    names = [stage.task_key.rpartition("-")[0] for stage in stages]
    assert names == ["ingest", "statistics", "transform", "shuffle_write"]
