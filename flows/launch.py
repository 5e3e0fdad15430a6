"""A job from the terminal: a server, the flow in this process, live progress, and a summary a person can act on."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from flows.watch import Watch, shown
from infra.garbage import loading
from tasks.errors import MillraceError


def job_of(source: str, changes: Sequence[str]) -> dict[str, Any]:
    """The content of a job file or recipe with changes; modules beside the file and here become importable."""
    from flows.job import load_job

    importable(Path(source).resolve().parent if Path(source).exists() else Path.cwd(), Path.cwd())
    job = load_job(source, changes)
    data = job.model_dump(by_alias=True, mode="json", exclude_unset=True)
    return {key: value for key, value in data.items() if value is not None}


def importable(*folders: Path) -> None:
    """Folders of a user's own modules, at the end of `sys.path`; workers that this process starts inherit it."""
    for folder in folders:
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def application_of(fitted: Path, source: Sequence[str], output: Path | None, changes: Sequence[str]) -> dict[str, Any]:
    """The parameters of `apply` as typed; modules beside the current folder become importable."""
    from flows.job import Application, set_key

    importable(Path.cwd())
    data: dict[str, Any] = {"fitted": str(fitted)}
    if source:
        data["source"] = {"path": source[0] if len(source) == 1 else list(source)}
    if output:
        data["output"] = {"path": str(output)}
    for change in changes:
        set_key(data, change, Application)
    return data


def launch(data: Mapping[str, Any], console: Console, debug: bool = False, name: str = "preprocess") -> list[str]:
    """Run a flow (preprocess, fit, apply) here, under a Prefect server; says how it goes, returns the output folders.

    A job that cannot be right fails before anything is started (JobError); a run that fails is a Failed run at the
    server, its cause is said, and the command ends with status 1.
    """
    _quiet(debug)
    with loading():
        job, server, flow = _ready(data, console, name)
    from prefect import tags

    from flows.preprocess import load_outputs
    from flows.stopping import stoppable

    splits = () if name == "fit" else ("train", "valid") if job.source.valid else ("",)
    watch = Watch(_staging(job) / "progress.json", splits, console, learns=name != "apply")
    pages: list[str] = []
    _started.append(partial(_at_start, watch, pages, server.ui_url))
    try:
        with stoppable(_started), tags("millrace"), _warnings_to(console), shown(watch):
            found = flow(**data)
            manifests = [] if name == "fit" else load_outputs(found)
            watch.finish(dict(zip(splits, manifests, strict=True)))
    except Exception as error:
        _say_failure(error, pages, debug)
        raise typer.Exit(1) from None
    finally:
        _started.clear()
    if name == "fit":
        _next(console, "fitted  ", Path(found), pages)
        return [found]
    _summary(console, manifests, pages)
    return found


def _ready(data: Mapping[str, Any], console: Console, name: str) -> tuple[Any, Any, Any]:
    """(the job, the server, the flow on the job's cluster), with all that they import."""
    with console.status("looking at the job"):
        job = _job(data, name)
    from infra.server import ensure_server

    with console.status("looking for a Prefect server") as status:
        server = ensure_server(lambda text: status.update(text) if console.is_terminal else console.print(text))
    with console.status("loading the flow"):
        from infra.runner import runner

        chosen = getattr(importlib.import_module(f"flows.{name}"), name)
        on_cluster: Any = runner(job.cluster)  # Prefect's own types know its thread and process runners only
    return job, server, chosen.with_options(task_runner=on_cluster, on_running=[tell_started])


def _job(data: Mapping[str, Any], name: str) -> Any:
    """The job, for whose workers what takes long has begun."""
    from flows.job import make_application, make_job
    from infra.clusters import prepare

    job: Any = make_application(data) if name == "apply" else make_job(data)
    prepare(job.cluster)
    return job


# A hook travels with its flow to the workers, so it must be a function of a module; what it tells stays here.
_started: list[Callable[[Any], None]] = []


def tell_started(flow: Any, flow_run: Any, state: Any) -> None:
    for listener in _started:
        listener(flow_run.id)


def _at_start(watch: Watch, pages: list[str], ui_url: str, flow_run_id: Any) -> None:
    """Say the page of the run as soon as it has one."""
    from infra.server import flow_run_url

    if not pages:
        pages.append(flow_run_url(ui_url, flow_run_id))
        watch.console.print(f"run      {pages[0]}", soft_wrap=True)
    watch.start()


def _staging(job: Any) -> Path:
    from tasks.commit import Staging

    return Staging(job.output.path, job.run.scratch).folder


def _say_failure(error: Exception, pages: Sequence[str], debug: bool) -> None:
    from flows.cli import say_error, show_traceback

    if debug:
        show_traceback()
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, MillraceError):
        cause = cause.__cause__
    message = str(cause) if cause else f"{type(error).__name__}: {error}\n  do: run it again with --debug to see where"
    say_error(message + (f"\n  run: {pages[0]}" if pages else ""))


def _summary(console: Console, manifests: Sequence[Any], pages: Sequence[str]) -> None:
    """Rows, files, bytes, seconds per stage, and where to look next."""
    from tasks.report import amount

    root = Path(os.path.commonpath([m.path for m in manifests]))
    for manifest in manifests:
        split = f"{Path(manifest.path).name}: " if len(manifests) > 1 else ""
        nbytes = sum(part["bytes"] for part in manifest.parts)
        dropped = f" ({manifest.rows['dropped']:,} dropped)" if manifest.rows["dropped"] else ""
        stages = ", ".join(f"{name} {numbers['seconds']:.1f}" for name, numbers in manifest.data["stages"].items())
        rows = f"{split}{manifest.rows['out']:,} rows{dropped}"
        text = (
            f"written  {rows} in {len(manifest.parts)} files, {amount(nbytes)}, in {manifest.seconds:.1f} s ({stages})"
        )
        console.print(text, soft_wrap=True, markup=False)
        if manifest.data.get("left_out"):
            names = ", ".join(manifest.data["left_out"])
            console.print(f"left out {names}: the source lacks what they need", soft_wrap=True, markup=False)
    report = next((p / "_report.html" for p in (root, Path(manifests[0].path)) if (p / "_report.html").exists()), None)
    _next(console, "output  ", root, pages, report)


def _next(console: Console, what: str, root: Path, pages: Sequence[str], report: Path | None = None) -> None:
    """Where it is, and where to look next."""
    console.print(f"{what} {root}", soft_wrap=True, markup=False)
    if report:
        console.print(f"report   {report}", soft_wrap=True, markup=False)
    for page in pages:
        console.print(f"run      {page}", soft_wrap=True)
    shorter = os.path.relpath(root)
    text = f"next     millrace inspect {min(shorter, str(root), key=len)}"
    console.print(text, soft_wrap=True, markup=False)


def _quiet(debug: bool) -> None:
    """Prefect's and Dask's own lines go to the server, not to the screen; also in the workers, by the environment."""
    if debug:
        return
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "critical")
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    import dask.config
    import distributed  # noqa: F401  # it sets its loggers when it is imported

    dask.config.set({"logging.distributed": "critical"})  # imported before the environment was set, as a rule
    for name in ("distributed", "distributed.client", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


class _Warnings(logging.Handler):
    """Warnings of the run (a lost worker, say) as lines above the progress."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING:
            text = record.getMessage().partition("\n")[0]
            self.console.print(f"warning: {text}", style="yellow", markup=False, soft_wrap=True)


@contextmanager
def _warnings_to(console: Console) -> Iterator[None]:
    from prefect.logging.configuration import setup_logging

    setup_logging()
    handler = _Warnings(console)
    loggers = [logging.getLogger(name) for name in ("prefect.flow_runs", "millrace")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
