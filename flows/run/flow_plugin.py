"""What a flow run does besides running jobs: the interface of its plugins, and what they see of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from prefect.states import State

from flows.job.dates import DateOf
from flows.job.refit_job import AnyJob
from tasks.core.settings import FlowName
from tasks.errors import RowmillError
from tasks.run.plugin import NothingToDoError
from tasks.storage.staging import Staging

# What a flow returns: the folders that are committed, or the state of a run that has none.
Ended: TypeAlias = "list[str] | State[list[str]]"


class NoOutputError(NothingToDoError):
    """Raised by a plugin of a run: it ends here, has no output, and gives its flow run a state."""

    def __init__(self, message: str, state: State[list[str]]) -> None:
        super().__init__(message)
        self.state = state


@dataclass
class CurrentFlow:
    """A flow run as its plugins see it.

    `own` is the job of the run's own date, `make` gives that of another one. `jobs` are run one after another: the own
    one alone, unless a plugin puts others before it. `errors` has the jobs that ended without an output, with why.
    """

    flow: FlowName
    own: AnyJob
    make: Callable[[DateOf], AnyJob]
    plugins: Sequence[FlowPlugin]
    jobs: list[AnyJob] = field(default_factory=list)
    errors: list[tuple[AnyJob, RowmillError | NothingToDoError]] = field(default_factory=list)

    def may_finish(self, staging: Staging) -> bool:
        """Tell whether no plugin objects to finishing work that an earlier run has begun."""
        return all(plugin.may_finish(staging) for plugin in self.plugins)


class FlowPlugin:
    """Takes part in a flow run. Each method does nothing unless a subclass says otherwise."""

    place: ClassVar[int] = 100  # the plugin of the lowest place is around all others

    def around(self, flow: CurrentFlow, run: Callable[[], Ended]) -> Ended:
        """Called once in a flow run; `run` runs the jobs of the flow, with what other plugins put around that."""
        return run()

    def may_finish(self, staging: Staging) -> bool:
        """Tell whether work in a staging folder that an earlier run has begun may be finished by this one."""
        return True
