"""The plugins that announce outputs: what waits is sent when a run begins, and what it publishes at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from prefect.context import FlowRunContext

from flows.job.refit_job import AnyJob
from flows.job.run_calendar import TRAIN_LATER, roots_of
from flows.published.outbox import deliver
from flows.run.flow_plugin import CurrentFlow, Ended, FlowPlugin
from tasks.run.plugin import CurrentRun, RunPlugin
from tasks.storage.staging import Staging


class OutboxPlugin(FlowPlugin):
    """Sends what waits of the outputs of a job, on all its dates, before a flow run does anything else."""

    place: ClassVar[int] = 0

    def around(self, flow: CurrentFlow, run: Callable[[], Ended]) -> Ended:
        output = flow.own.output
        written = str(flow.own.as_written()["output"]["path"])
        deliver({*roots_of(written, Path.cwd(), output.storage_options), Staging.of(output, flow.own.run).target})
        return run()


class EventsPlugin(RunPlugin):
    """Announces the outputs of a run, with the paths that they are made of."""

    place: ClassVar[int] = 90

    def __init__(self, job: AnyJob) -> None:
        self.job = job

    def before_commit(self, run: CurrentRun) -> None:
        contract = getattr(self.job, "contract", None)
        run.upstream = [str(Path(contract).absolute())] if isinstance(contract, str) else []
        context = FlowRunContext.get()
        if context and context.flow_run and TRAIN_LATER in context.flow_run.tags:
            run.train = "later"

    def committed(self, run: CurrentRun, outputs: Sequence[str]) -> None:
        if run.request.flow != "fit":
            deliver([run.request.staging.target])
