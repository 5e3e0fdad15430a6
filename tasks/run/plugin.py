"""What accompanies a run without making its rows: the interface of plugins, and what they see of the run."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tasks.core.stage_results import StageResult
from tasks.errors import TransientError
from tasks.job.publication import Train
from tasks.job.request import Request
from tasks.manifest import Manifest
from tasks.stages.commit import NO_GATE, RunReport
from tasks.storage.files_being_read import OpenFolder


class UnfinishedError(TransientError):
    """The output is published, and what a plugin has to do next has failed: the run fails, too."""


class NothingToDoError(Exception):
    """A run ends well before its work is done: a plugin, or an interrupted run that published it, leaves nothing to do.

    `outputs` are the folders that have what the run was to make.
    """

    def __init__(self, message: str, outputs: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.outputs = [*outputs]


@dataclass
class CurrentRun:
    """A run as its plugins see it.

    `request` is what the run is to do; a plugin may put another in its place in `begin`. `results` are those of the
    stages that are done. `outputs` are the folders that are published, `manifests` what they say of themselves (none
    for a fit, whose output is a fitted workflow). `run_id` is the id of its flow run, "" without Prefect.

    Plugins may set what the commit takes from them: `report` is written into each output, `gate` is the content of
    `_gate.json`, and `upstream` are paths that the announcement of the output names in addition to those of the
    request; None if it is not announced. `train` says when a training on the output starts by itself.
    """

    request: Request
    log: Any = field(default_factory=lambda: logging.getLogger("rowmill"))
    run_id: str = ""
    results: list[StageResult] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    manifests: list[Manifest] = field(default_factory=list)
    report: RunReport | None = None
    gate: Mapping[str, Any] = field(default_factory=lambda: NO_GATE)
    upstream: list[str] | None = None
    train: Train = "now"
    read_outputs: list[OpenFolder] = field(default_factory=list)  # that the run reads; they are not removed meanwhile


class RunPlugin:
    """Takes part in a run. Each method does nothing unless a subclass says otherwise.

    Plugins are called one after another in the order in which the run was given them, at the end in the reverse order.
    All of their methods are called in the process of the run while it has the lock of its output.
    """

    place: ClassVar[int] = 100  # of rowmill's own among each other, from 0 on; installed ones come after them

    def begin(self, run: CurrentRun) -> None:
        """Called before the first stage. An error ends the run; NothingToDoError ends it well."""

    def after(self, run: CurrentRun, result: StageResult) -> None:
        """Called after each stage. An error ends the run; what is done is kept for the next start of the same job."""

    def before_commit(self, run: CurrentRun) -> None:
        """Called when all stages are done. An error ends the run: nothing is published, what is done is kept."""

    def committed(self, run: CurrentRun, outputs: Sequence[str]) -> None:
        """Called when the folders `outputs` are published. An UnfinishedError ends the run, once all plugins have been
        called; another error is logged."""

    def ended(self, run: CurrentRun, error: BaseException | None) -> None:
        """Called at the end of each run whose `begin` this plugin has passed; `error` is what ended it, None if nothing
        did. An error is logged."""
