"""The artifact of a run with its links: to the Dask dashboard while it works, to its reports afterwards."""

from __future__ import annotations

import contextvars
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from prefect import get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.context import FlowRunContext
from prefect.utilities.urls import url_for

from flows.run.artifacts import write_markdown
from tasks.manifest import Manifest
from tasks.run.plugin import CurrentRun, RunPlugin
from tasks.stages.progress_artifact import open_prefect_client
from tasks.stages.task import find_dashboard
from tasks.storage.output_mirror import address_of
from tasks.storage.own_files import REPORTS

if TYPE_CHECKING:
    from distributed import Client, Scheduler


class Links:
    """The artifact `<flow>-<output>-links` of one flow run.

    A thread writes the artifact beside the first stage, so that no stage waits for it, and changes it when the output
    is there. Dask's performance report takes a second or more to render, and 2 MB: a run makes one only with
    `run.performance_report`.
    """

    def __init__(self, client: Any, key: str, performance: bool) -> None:
        self.client = client
        self.key = f"{key}-links"
        self.began = time.time()
        self.dashboard = find_dashboard(client)
        self.artifact: UUID | None = None
        self.first_sample = _begin_recording(client) if performance else None
        context = contextvars.copy_context()
        self.thread = threading.Thread(target=context.run, args=(self._create,), name="rowmill-links", daemon=True)
        self.thread.start()

    def _create(self) -> None:
        text = f"[Dask dashboard]({self.dashboard}), while the run lives" if self.dashboard else "No Dask dashboard."
        self.artifact = write_markdown(self.key, text, "Where to look")

    def performance(self) -> str:
        """Dask's own report of the run so far as HTML that needs no network; empty without `run.performance_report`.

        `distributed.performance_report` makes the same, but as a block around the run: one that fails would wait for a
        report that nobody reads, and the lines of this module would be in it as those of the user.
        """
        if self.first_sample is None:
            return ""
        make = self.client.scheduler.performance_report
        text = str(self.client.sync(make, start=self.began, last_count=self.first_sample, code="", mode="inline"))
        return re.sub(r'<link[^>]*href="https?://[^>]*>', "", text)  # Dask's icon

    def show_reports(self, manifests: Sequence[Manifest]) -> None:
        """Change the artifact: the dashboard ends with the run, outputs and reports stay."""
        self.thread.join()
        if self.artifact is None:
            return
        lines = []
        for manifest in manifests:
            path = Path(manifest.path) / REPORTS[0]
            output = address_of(path.parent).replace("`", "'")
            lines.append(f"Output: `{output}`, {manifest.rows['out']:,} rows in {len(manifest.parts):,} files")
            if path.exists():
                lines.append(f"Report: `rowmill report {output} --open`")
        with open_prefect_client(), get_client(sync_client=True) as client:
            client.update_artifact(self.artifact, ArtifactUpdate(data="\n\n".join(lines)))


_current: contextvars.ContextVar[Links | None] = contextvars.ContextVar("links", default=None)


@contextmanager
def links_of_this_run() -> Iterator[None]:
    """Forget the links when the run ends: their client holds its cluster, and each later run would hold both."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


def links(client: Client | None = None, key: str = "preprocess", performance: bool = False) -> Links | None:
    """Return the links of the current flow run; made when its first stage gives a client of its scheduler."""
    if _current.get() is None and client is not None:
        _current.set(Links(client, key, performance))
    return _current.get()


class LinksPlugin(RunPlugin):
    """Shows the reports of a run at the end, and gives them Dask's own report."""

    place: ClassVar[int] = 92

    def before_commit(self, run: CurrentRun) -> None:
        shown = links()
        if run.report and shown:
            run.report.performance = shown.performance()

    def committed(self, run: CurrentRun, outputs: Sequence[str]) -> None:
        if shown := links():
            shown.show_reports(run.manifests)


def flow_run_id() -> str:
    context = FlowRunContext.get()
    return str(context.flow_run.id) if context and context.flow_run else ""


def run_page() -> str:
    """Return the address of the current flow run's page; empty without a server."""
    return (url_for("flow-run", obj_id=flow_run_id()) or "") if flow_run_id() else ""


def _begin_recording(client: Client) -> int:
    """Have the scheduler record its tasks from now on; return the number of the first sample of its own load."""
    client.get_task_stream(start=0, stop=0)
    return int(client.run_on_scheduler(_samples))


def _samples(dask_scheduler: Scheduler) -> int:
    return int(dask_scheduler.monitor.count)
